"""Exporting recorded runs: traces that tile, and trackers' own readers that find what was recorded."""

import contextlib
import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from drawn_figures import figures_only
from make.synthetic_runs import run_table
from make.synthetic_study import write_study
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis.series.exchange import extra_p, history, points_of
from horovod_study.analysis.series.points import with_series
from horovod_study.analysis.steps.timeline import events
from horovod_study.analysis.study import analyze
from horovod_study.api import read_analysis
from horovod_study.cli import main
from horovod_study.errors import AnalysisError, RecordError
from horovod_study.report import export
from horovod_study.report.page.check import _changed

LAPS = {"data_s": 1e-4, "forward_s": 1e-3, "backward_s": 1.5e-3, "sync_s": 4e-4, "update_s": 2e-4}
RESIDUAL_S = 3e-4
EVALUATION = {"epoch": 1.0, "steps": 4, "samples": 400, "train_s": 0.1, "wall_s": 0.011, "train_mse": 0.5}
EVALUATION |= {"test_mse": 0.25, "g0_rmse_mpa": 80.0, "a_rmse": 1.5, "lr": 1e-3}


def step_rows(steps: int, *, forward_s: float = 1e-3, **other: float) -> pd.DataFrame:
    laps = {**LAPS, "forward_s": forward_s, **other}
    step_s = sum(laps.values()) + RESIDUAL_S
    return pd.DataFrame(
        {
            "step": range(steps),
            "epoch": [step // 4 for step in range(steps)],
            "begin_s": [step * step_s + RESIDUAL_S for step in range(steps)],
            **laps,
            "compute_s": float("nan"),
            "residual_s": RESIDUAL_S,
            "step_s": step_s,
            "sync_host_s": float("nan"),
            "samples": 100,
            "loss": [1 / (step + 1) for step in range(steps)],
        }
    )


def test_a_trace_has_a_row_per_rank_and_laps_that_tile_their_step() -> None:
    found = events({0: step_rows(6), 1: step_rows(6)}, {0: "node1", 1: "node2"}, evaluations=[EVALUATION])

    names = [(each["pid"], each["tid"], each["args"]["name"]) for each in found if each["ph"] == "M"]
    assert names == [(0, 0, "node1"), (1, 0, "node2"), (0, 0, "rank 0"), (1, 1, "rank 1")]
    for tid in (0, 1):
        spans = [each for each in found if each["ph"] == "X" and each["tid"] == tid]
        steps = [each for each in spans if each["cat"] == "step"]
        assert len(steps) == 6
        for step in steps:
            laps = [each for each in spans if each["cat"] == "lap" and each["args"]["step"] == step["args"]["step"]]
            assert [each["name"] for each in laps] == ["data", "forward", "backward", "sync", "update"]
            ends = [each["ts"] + each["dur"] for each in laps]
            assert [each["ts"] for each in laps[1:]] == pytest.approx(ends[:-1], abs=2e-3)
            assert (laps[0]["ts"], ends[-1]) == pytest.approx((step["ts"], step["ts"] + step["dur"]), abs=6e-3)
        gaps = [b["ts"] - a["ts"] - a["dur"] for a, b in pairwise(steps)]
        assert gaps == pytest.approx([RESIDUAL_S * 1e6] * 5, abs=0.1)  # the residual stays visible, as a gap
    assert [(each["ts"], each["args"]["test_mse"]) for each in found if each["ph"] == "i"] == [(11_000.0, 0.25)]


def test_what_a_trace_cannot_know_is_left_out_of_it() -> None:
    rows = step_rows(3, sync_s=float("nan")).assign(loss=float("nan"))

    found = events({0: rows}, {0: "node1"}, evaluations=[{**EVALUATION, "wall_s": 9.0}], warmup_steps=2)

    assert {each["name"] for each in found if each["ph"] == "X"} == {"step", "data", "forward", "backward", "update"}
    steps = [each["args"] for each in found if each.get("cat") == "step"]
    assert steps[1:] == [
        {"step": 1, "epoch": 0, "samples": 100, "excluded": True},
        {"step": 2, "epoch": 0, "samples": 100},
    ]
    assert [each for each in found if each["ph"] == "i"] == []


def test_curves_of_a_run_end_with_its_shortest_rank_and_are_medians_of_equal_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("horovod_study.analysis.series.exchange.CURVE_POINTS", 5)
    slow = step_rows(10, forward_s=3e-3)
    found = history({0: step_rows(12), 1: slow}, [EVALUATION])

    forward = found[found["tag"] == "steps/forward_ms"]
    assert forward["step"].tolist() == [1, 3, 5, 7, 9]
    assert forward["value"].tolist() == pytest.approx([2.0] * 5)
    rate = found[found["tag"] == "steps/samples_per_s"]["value"].tolist()
    assert rate == pytest.approx([200 / slow["step_s"].iloc[0]] * 5)
    assert found[found["tag"] == "steps/sync_host_ms"].empty
    assert found[found["tag"] == "evaluation/test_mse"][["step", "at_s", "value"]].values.tolist() == [[4, 0.011, 0.25]]


def test_rows_of_an_older_program_are_placed_by_their_steps() -> None:
    rows = step_rows(4).assign(begin_s=float("nan"))

    found = history({0: rows}, [])

    loss = found[found["tag"] == "steps/loss"]
    assert loss["at_s"].tolist() == pytest.approx(rows["step_s"].cumsum().tolist())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One short real run."""
    from horovod_study.train import main as train

    out = tmp_path_factory.mktemp("runs") / "one"
    options = ["--dataset", "400", "--batch", "30", "--steps", "30", "--warmup-steps", "5", "--system-interval-s", "0"]
    assert train([*options, "--out", str(out)]) == 0
    return out


def test_a_trace_of_a_real_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"

    assert main(["report", str(run), "--export", "trace", "--steps", "5:10", "--out", str(path)]) == 0

    content = json.loads(path.read_text())
    assert capsys.readouterr().out == f"{path}\n"
    assert [e["args"]["step"] for e in content["traceEvents"] if e.get("cat") == "step"] == [5, 6, 7, 8, 9]
    assert content["displayTimeUnit"] == "ms"


@pytest.mark.parametrize("kinds", [["trace,tensorboard"], ["trace", "tensorboard"], ["trace, tensorboard"]])
def test_several_kinds_come_with_commas_or_blanks(
    kinds: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), "--export", *kinds, "--out", str(tmp_path), "--steps", "5:10", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["exports"] == [{"to": "trace", "runs": 1}, {"to": "tensorboard", "runs": 1}]
    assert told["files"] == [str(tmp_path / "trace"), str(tmp_path / "tensorboard" / "one")]
    assert all(Path(each).exists() for each in told["files"])
    assert main(["report", str(run), "--export", "trace,tensor"]) == 2
    assert "'tensor'" in capsys.readouterr().err


def test_tensorboard_reads_what_was_recorded(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["report", str(run), "--export", "tensorboard", "--out", str(tmp_path / "tb")]) == 0

    logged = EventAccumulator(str(tmp_path / "tb" / "one"))
    logged.Reload()
    rows, totals = export.rows_between(run)[0], records.read_run(run).totals
    steps = logged.Scalars("steps/step_ms")
    assert [each.step for each in steps] == rows["step"].tolist()
    assert [each.value for each in steps] == pytest.approx((rows["step_s"] * 1e3).tolist(), rel=1e-6)
    assert logged.Scalars("totals/samples_per_s")[0].value == pytest.approx(totals["samples_per_s"])
    assert logged.Scalars("evaluation/test_mse")[-1].value == pytest.approx(totals["test_mse"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_recorded(run: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    assert main(["report", str(run), "--export", "mlflow", "--out", str(tmp_path / "ml")]) == 0

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'ml' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("train")
    assert experiment is not None
    (tracked,) = client.search_runs([experiment.experiment_id])
    losses = client.get_metric_history(tracked.info.run_id, "steps/loss")
    record = records.read_run(run)
    assert (tracked.info.status, tracked.data.params["effective.backend"]) == ("FINISHED", "serial")
    assert tracked.data.metrics["totals/samples_per_s"] == pytest.approx(record.totals["samples_per_s"])
    assert [each.step for each in losses] == list(range(35))


@pytest.mark.slow
def test_wandb_keeps_an_offline_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--export", "wandb", "--out", str(tmp_path / "wb"), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    (log,) = Path(answer["files"][0]).glob("*.wandb")
    content = log.read_bytes()  # records of protobuf, whose texts are there as they are
    for text in ("one", "steps/step_ms", "steps/loss", "evaluation/test_mse", "totals/samples_per_s", "effective.lr"):
        assert text.encode() in content


def test_a_second_export_into_the_same_folder_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    (tmp_path / "note").write_text("mine")

    assert main(["report", str(run), "--export", "tensorboard", "--out", str(tmp_path)]) == 2

    golden(capsys.readouterr().err, "--out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--export", "trace", "--steps", "900:901"], "900"),
        (["--export", "mlflow", "--steps", "0:5"], "--steps"),
        (["--export", "trace", "--steps", "7:7"], "FIRST:LAST"),
        (["--export", "trace", "--steps", "7"], "FIRST:LAST"),
        (["--export", "trace", "--out", "/dev/null/x"], "--out"),
    ],
)
def test_wrong_use_is_one_line(
    words: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    try:
        code = main(["report", str(run), *words])
    except SystemExit as ended:
        code = int(str(ended.code))

    told = capsys.readouterr().err
    assert (code, told.count("Traceback")) == (2, 0)
    golden(told, said)


def test_a_trace_is_of_one_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(run)
    folder = SimpleNamespace(root=run.parent)
    (folder.root / "again").mkdir(exist_ok=True)
    (folder.root / "again" / "run.json").write_text((run / "run.json").read_text())

    assert main(["report", str(run.parent), "--export", "trace"]) == 2

    golden(capsys.readouterr().err, "2 runs")


def test_a_tracker_that_is_not_installed_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)

    assert main(["report", str(run), "--export", "wandb", "--out", str(tmp_path / "new")]) == 2

    golden(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------ points and Extra-P


def tables(directory: Path, **how: object) -> Path:
    """Write the analysis of runs that were made up; return its directory."""
    table = run_table(workers=(1, 2, 4, 8, 16, 32), **how)  # type: ignore[arg-type]
    found = analyze(table)
    records.save_tables(directory, found.tables(), found.documents())
    return directory


@pytest.mark.slow
def test_extra_p_gets_the_finished_runs_of_an_analysis(tmp_path: Path) -> None:
    place = tables(tmp_path / "analysis")

    assert main(["report", str(place), "--export", "extra-p"]) == 0

    (document,) = (json.loads(path.read_text()) for path in (place / "extra-p").iterdir())
    counts = [len(each["values"]) for curve in document["measurements"].values() for each in curve["step_s"]]
    assert len(document["measurements"]) == 3
    assert set(counts) == {2, 3}, "every finished run is a value; the one that failed is none"


def test_extra_p_gets_every_repeat_of_every_point(tmp_path: Path) -> None:
    rows = [(n, 100.0 * n + repeat, 0.01 * n, 50.0) for n in (1, 2, 4) for repeat in (0, 1)]
    points = pd.DataFrame(rows, columns=["workers", "samples_per_s", "sync_s", "batch_size"])
    (document,) = extra_p(points).values()

    assert document["parameters"] == ["workers"]
    assert list(document["measurements"]) == ["all points"]
    curves = document["measurements"]["all points"]
    assert list(curves) == ["step_s", "s_per_sample", "sync_s"]
    assert [each["point"] for each in curves["step_s"]] == [[1], [2], [4]]
    assert curves["step_s"][1]["values"] == [2 * 50 / 200.0, 2 * 50 / 201.0]
    assert curves["s_per_sample"][2]["values"] == [1 / 400.0, 1 / 401.0]
    assert curves["sync_s"][0]["values"] == [0.01, 0.01]


def test_extra_p_gets_a_file_for_each_set_of_worker_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Its reader refuses a file in which a curve lacks a point that another one has."""
    text = "series,workers,samples_per_s,sync_s\n" + "".join(
        f"{series},{n},{100 * n / (1 + 0.01 * n)},{'' if n == 1 else 0.01 * n}\n"
        for series, counts in (("b", (1, 2, 4, 8, 16)), ("a", (1, 2, 4, 8, 16)), ("c", (2, 16)), ("d", (4,)))
        for n in counts
    )
    (tmp_path / "points.csv").write_text(text)
    assert main(["report", str(tmp_path / "points.csv"), "--export", "extra-p", "--json"]) == 0
    printed = capsys.readouterr()
    said = json.loads(printed.out)

    assert [Path(path).name for path in said["files"]] == [
        *("workers-1-16.json", "workers-2-16.json", "workers-2-16-part-2.json")
    ]
    assert {Path(path).parent for path in said["files"]} == {tmp_path / "extra-p"}
    found = [json.loads(Path(path).read_text())["measurements"] for path in said["files"]]
    assert {name: list(curves) for name, curves in found[0].items()} == {"a": ["s_per_sample"], "b": ["s_per_sample"]}
    assert sorted(name for each in found for name in each) == ["a", "a", "b", "b", "c"], "d has one point"
    for document in found:
        shapes = {
            tuple(each["point"][0] for each in curve) for curves in document.values() for curve in curves.values()
        }
        assert len(shapes) == 1
    golden(printed.err, "2 worker", "16")
    assert "NaN" not in "".join(Path(path).read_text() for path in said["files"])


@pytest.mark.slow
def test_extra_p_reads_the_file_and_finds_the_law_in_it(tmp_path: Path) -> None:
    pytest.importorskip("extrap", reason="Extra-P comes with `make extras`")
    # In a process of its own: its packages warn of each other.
    text = "workers,samples_per_s,batch_size\n" + "".join(
        f"{n},{75 * n / (2e-3 + 5e-4 * n):.17g},75\n" for n in (1, 2, 4, 8, 16, 32) for _ in range(2)
    )
    (tmp_path / "points.csv").write_text(text)
    assert main(["report", str(tmp_path / "points.csv"), "--export", "extra-p", "--out", str(tmp_path)]) == 0
    program = (
        "import sys\n"
        "from extrap.fileio.file_reader.json_file_reader import JsonFileReader\n"
        "from extrap.modelers.model_generator import ModelGenerator\n"
        "experiment = JsonFileReader().read_experiment(sys.argv[1])\n"
        "generator = ModelGenerator(experiment)\n"
        "generator.model_all()\n"
        "for (path, metric), model in generator.models.items():\n"
        "    print(path, metric, model.hypothesis.function.evaluate(64.0), sep=';')\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "workers-1-32.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    models = {line.split(";")[1]: float(line.split(";")[2]) for line in done.stdout.splitlines()}

    assert sorted(models) == ["s_per_sample", "step_s"]
    assert models["step_s"] == pytest.approx(2e-3 + 5e-4 * 64, rel=1e-6), "linear in the workers, as it was made"


def test_mistakes_in_what_is_to_be_exported_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    def error(*words: str) -> str:
        assert main(["report", *words]) == 2
        return capsys.readouterr().err

    file = tmp_path / "points.csv"
    file.write_text("workers,samples_per_s,series\n1,10,a\n1,11,a\n2,19,b\n")
    place = str(tmp_path)
    golden(error(place, "--export", "extra-p"), "runs.csv", "RUNS --out")
    golden(error(str(file), "--export", "extra-p"))
    golden(error(str(file), "--export", "extra-p", "--steps", "1:2"), "--steps", "--export")
    golden(error(str(tmp_path / "none.csv"), "--export", "extra-p"))
    file.write_text("workers,samples_per_s\n1,-10\n")
    golden(error(str(file), "--export", "extra-p"))
    serial = run_table(workers=(1,), ways=(("serial", "none"),))
    with golden.raises(AnalysisError):
        points_of(with_series(serial))


# ---------------------------------------------------------------------------------------------------- archive


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two counts with a checkpoint and slices, and its archive."""
    runs = write_study(tmp_path_factory.mktemp("study") / "s", workers=(1, 2), ways=(("horovod", "mpi"),), repeats=1)
    first = sorted(runs.iterdir())[0]
    (first / "checkpoints").mkdir()
    (first / "checkpoints" / "step-1.pt").write_bytes(b"weights")
    (runs / ".hidden").write_text("")
    one = {"block": "b", "launch": 0, "round": 0, "position": 0, "steps": 4, "samples": 300, "other_load": None}
    records.append_turns(runs, [records.TurnSlice(run=first.name, begin_s=0.0, end_s=0.3, **one)])
    with figures_only("breakdown"):
        assert main(["report", str(runs), "--export", "zip"]) == 0
    return runs.with_name("s.zip")


@pytest.mark.slow
def test_an_unpacked_archive_is_checked_where_it_is_and_a_changed_slice_is_found(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    study = tmp_path / "s"
    there = {path.relative_to(study).as_posix() for path in study.rglob("*") if path.is_file()}
    assert not any("step-1.pt" in name or name.startswith(".") for name in there)
    readme = (study / "README.md").read_text()
    assert "1 checkpoint, 7 bytes" in readme
    command = re.search(r"horovod-study (report analysis --check.*)", readme)[1].split()
    with figures_only("breakdown"), contextlib.chdir(study):
        assert main([*command, "--json"]) in (0, 1)
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each for each in findings if each["severity"] == "error"] == []
    with (study / "turns.csv").open("a") as stream:
        stream.write("b,0,1,0,x,0.3,0.6,4,300,\n")
    found = list(_changed({**records.read_source(study / "analysis"), "runs": study}, {}))
    assert [(each.name, each.where) for each in found] == [("run-changed", "turns.csv")]


@pytest.mark.slow
def test_a_study_that_is_none_or_goes_on_is_refused_in_one_line(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign").mkdir()
    for words in (["foreign"], ["nowhere"], ["foreign", "--steps", "1:2"]):
        assert main(["report", str(tmp_path / words[0]), "--export", "zip", *words[1:]]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    directory = packed.with_suffix("") / "analysis"
    made = read_analysis(directory)
    goes_on = replace(made, provenance={**made.provenance, "runs": {"total": 2, "running": 1}})
    ones = [export.write_archive(directory, made, tmp_path / f"{name}.zip")[0] for name in "ab"]
    assert ones[0].read_bytes() == ones[1].read_bytes()
    with pytest.raises(RecordError, match="1 run "):
        export.write_archive(directory, goes_on, tmp_path / "no.zip")
    assert not (tmp_path / "no.zip").exists()
