"""Exporting recorded runs: traces that tile, and trackers' own readers that find what was recorded."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from horovod_study import records
from horovod_study.analysis.history import history
from horovod_study.analysis.trace import events
from horovod_study.cli import main
from horovod_study.report import export

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


def test_curves_of_a_run_end_with_its_shortest_rank_and_are_medians_of_equal_parts() -> None:
    slow = step_rows(10, forward_s=3e-3)
    found = history({0: step_rows(12), 1: slow}, [EVALUATION], points=5)

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

    assert main(["export", str(run), "--to", "trace", "--steps", "5:10", "--out", str(path)]) == 0

    content = json.loads(path.read_text())
    assert capsys.readouterr().out == f"{path}\n"
    assert [e["args"]["step"] for e in content["traceEvents"] if e.get("cat") == "step"] == [5, 6, 7, 8, 9]
    assert content["displayTimeUnit"] == "ms"


def test_tensorboard_reads_what_was_recorded(run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["export", str(run), "--to", "tensorboard", "--out", str(tmp_path / "tb")]) == 0

    logged = EventAccumulator(str(tmp_path / "tb" / "one"))
    logged.Reload()
    rows, totals = records.rows_between(run)[0], records.read_run(run).totals
    steps = logged.Scalars("steps/step_ms")
    assert [each.step for each in steps] == rows["step"].tolist()
    assert [each.value for each in steps] == pytest.approx((rows["step_s"] * 1e3).tolist(), rel=1e-6)
    assert logged.Scalars("totals/samples_per_s")[0].value == pytest.approx(totals["samples_per_s"])
    assert logged.Scalars("evaluation/test_mse")[-1].value == pytest.approx(totals["test_mse"])


def test_mlflow_reads_what_was_recorded(run: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    assert main(["export", str(run), "--to", "mlflow", "--out", str(tmp_path / "ml")]) == 0

    with export._quiet_mlflow():
        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'ml' / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("train")
        assert experiment is not None
        (tracked,) = client.search_runs([experiment.experiment_id])
        losses = client.get_metric_history(tracked.info.run_id, "steps/loss")
    record = records.read_run(run)
    assert (tracked.info.status, tracked.data.params["effective.backend"]) == ("FINISHED", "serial")
    assert tracked.data.metrics["totals/samples_per_s"] == pytest.approx(record.totals["samples_per_s"])
    assert [each.step for each in losses] == list(range(35))


def test_wandb_keeps_an_offline_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", "wandb", "--out", str(tmp_path / "wb"), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    (log,) = Path(answer["files"][0]).glob("*.wandb")
    content = log.read_bytes()  # records of protobuf, whose texts stand there as they are
    for text in ("one", "steps/step_ms", "steps/loss", "evaluation/test_mse", "totals/samples_per_s", "effective.lr"):
        assert text.encode() in content


def test_a_second_export_into_the_same_folder_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "note").write_text("mine")

    assert main(["export", str(run), "--to", "tensorboard", "--out", str(tmp_path)]) == 2

    assert "is not empty; the same run twice would look like two, choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "trace", "--steps", "900:901"], "no rank recorded steps from 900 to before 901"),
        (["--to", "mlflow", "--steps", "0:5"], "--steps is for --to trace; leave it out"),
        (["--to", "trace", "--steps", "7:7"], "'7:7' is not FIRST:LAST with 0 <= FIRST < LAST, such as 100:300"),
        (["--to", "trace", "--steps", "7"], "'7' is not FIRST:LAST"),
        (["--to", "trace", "--out", "/dev/null/x"], "choose a writable --out"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["export", str(run), *words])
    except SystemExit as ended:
        code = int(str(ended.code))

    told = capsys.readouterr().err
    assert (code, told.count("Traceback")) == (2, 0)
    assert said in told


def test_a_trace_is_of_one_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        (tmp_path / name).symlink_to(run)
    folder = SimpleNamespace(root=run.parent)
    (folder.root / "again").mkdir(exist_ok=True)
    (folder.root / "again" / "run.json").write_text((run / "run.json").read_text())

    assert main(["export", str(run.parent), "--to", "trace"]) == 2

    assert "holds 2 runs, and a trace shows one; name its folder" in capsys.readouterr().err


def test_a_tracker_that_is_not_installed_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)

    assert main(["export", str(run), "--to", "wandb", "--out", str(tmp_path / "new")]) == 2

    assert "needs the package wandb, which is not installed; run `make extras`" in capsys.readouterr().err
