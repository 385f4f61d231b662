"""`run -- COMMAND`, `record --repeats`, and commands in which no step is seen: from the line to the answer."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from conftest import BIN
from make.records import record as make_record
from make.records import write_command_run
from make.waiting import PATIENCE_S

from horovod_study import api, records
from horovod_study.cli import main
from horovod_study.cli.verbs import runs_folder
from horovod_study.config.partitions import Partition
from horovod_study.errors import ConfigError, StudyError
from horovod_study.recording.said import rate_said
from horovod_study.studies import study_file
from horovod_study.studies.ledger import foreign, read_ledger
from horovod_study.studies.plan import study_view
from horovod_study.studies.study_file import command_study, load_study, sweep_of
from horovod_study.studies.turns import Aim, runs_alone

TORCHRUN = ["torchrun", "--nproc-per-node", "{workers}", "train.py", "--tag", "two words"]
PROGRESS = "".join(f"\r{place}/9 [{'=' * place}>{'.' * (9 - place)}] - ETA: 0s" for place in range(9))
OUTPUTS = {
    "Horovod's benchmark": (
        "Model: resnet50\n"
        + "".join(f"Iter #{place}: {203 + place / 10:.1f} img/sec per GPU\n" for place in range(10))
        + "Img/sec per GPU: 203.5 +-1.0\nTotal img/sec on 4 GPU(s): 812.3 +-2.1\n",
        812.3,
    ),
    "its workers alone": ("Iter #0: 90 img/sec per GPU\nIter #1: 100 img/sec per GPU\n", 400.0),
    "Keras": (f"Epoch 1/2\n{PROGRESS}\r\x1b[1m9/9\x1b[0m ━━ \x1b[1m2s\x1b[0m 12ms/step - loss: 0.5\n", 1 / 0.012),
    "an older Keras": ("60000/60000 [=====] - 5s 86us/sample - loss: 0.2\n", 1 / 86e-6),
    "tqdm": ("".join(f"\r{n}%|##| {n}/99 [00:01<00:10, {9 + n / 100:.2f}it/s, loss=0.{n}]" for n in range(9)), 9.06),
    "slow tqdm": ("5/100 [00:10<03:00, 1.50s/it]", 1 / 1.5),
    "Transformers": (
        " 50%|#| 5/10 [00:01<00:01, 5.00it/s]\n{'eval_samples_per_second': 900.0, 'eval_steps_per_second': 30.1}\n"
        "{'train_runtime': 12.3, 'train_samples_per_second': 97.1, 'train_steps_per_second': 3.0}\n",
        97.1,
    ),
    "fairseq": ("epoch 001:  10 / 100 loss=9.1, wps=21345.6, ups=1.2\nepoch 002 | loss 8.1 | wps 22345.6\n", 22345.6),
    "tf_cnn_benchmarks": (
        "1\timages/sec: 203.1 +/- 0.0 (jitter = 0.0)\t7.9\n9\timages/sec: 204.1\t7.9\ntotal images/sec: 812.3\n",
        812.3,
    ),
    "an estimator": (
        "INFO:tensorflow:global_step/sec: 12.34\nINFO:tensorflow:loss = 1.2, step = 100 (8.1 sec)\n",
        12.34,
    ),
    "timm": ("Train: 0 [ 50/100 ( 50%)]  Loss: 6.9 (6.9)  Time: 0.123s, 1040.32/s  (0.130s,  984.23/s)\n", 984.23),
    "a language model": ("step 9 | loss 4.1 | tokens/s: 12,345 | mfu 31%\nstep 19 | tokens/s: 12,545 |\n", 12545.0),
    "in thousands": ("step 10 loss 4.1 12.5k tok/s\n", 12500.0),
    "in millions": ("step 10 loss 4.1 1.25M tokens/s\n", 1.25e6),
    "MXNet": ("INFO:root:Epoch[0] Batch [20]\tSpeed: 1910.41 samples/sec\taccuracy=0.1\n", 1910.41),
    "Paddle": ("epoch: 1 batch: 10, avg_samples: 64.0, ips: 812.34 samples/s\n", 812.34),
    "MLPerf's Keras": ("TimeHistory: 12.34 seconds, 1234.5 examples/second between steps 0 and 100\n", 1234.5),
    "of one of four": ("speed: 99 samples/sec/GPU\n", 396.0),
    "beside an evaluation": ("train: 500 images/s\nvalidation: 1900 images/s\nvalidation: 1900 images/s\n", 500.0),
    "JSON": ('{"epoch": 1, "images_per_sec": 1234.0}\n', 1234.0),
    "in words": ("done: 4,321.5 sentences per second\n", 4321.5),
    "scientific": ("throughput: 1.5e+04 samples/sec\n", 15000.0),
    "a disk": ("read 123 MB/s, Throughput: 12.3 MB/s\n", None),
    "operations": ("elapsed time per iteration (ms): 12.4 | throughput per GPU (TFLOP/s/GPU): 99.1 |\n", None),
    "nothing": ("epoch 1 loss 0.3 acc 99.1 time 12 s, steps: 12, /usr/lib/python3.11/site-packages\n", None),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_rate_that_an_output_says(name: str) -> None:
    text, rate = OUTPUTS[name]
    said = rate_said(text, None, workers=4)

    assert (None if said is None else said[0]) == (rate if rate is None else pytest.approx(rate))
    assert said is None or f"{said[0]:g}" in said[1] or said[1].startswith("4 x ")


def test_the_last_half_of_what_is_said_counts_and_a_pattern_says_what_it_is() -> None:
    text = "".join(
        f"step {place}: {rate} samples/s; score<{place}>\n" for place, rate in enumerate([1, 2, 50, 60, 70], 1)
    )

    assert rate_said(text) == (60.0, "60 samples/s")
    assert rate_said(text, r"score<(\d+)>") == (4.0, "4 by --rate")
    assert rate_said(text, r"speed (\d+)") is None
    assert rate_said("speed many", r"speed (\w+)") is None


# ---------------------------------------------------------------------------------------------- the study file


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, on a machine of 6 cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study_file, "this_machine", lambda: Partition(name="local", cores_per_node=6))
    (tmp_path / "train.py").write_text("")
    return tmp_path


def test_a_command_leaves_a_study_file_of_at_most_12_lines_which_is_used_the_next_time(here: Path) -> None:
    path = command_study(TORCHRUN)
    study, text = load_study(path), path.read_text()

    assert path.name == "train-study.yaml" and len(text.splitlines()) <= 12
    assert (study.name, study.workers, study.repeats) == ("train", (1, 2, 4, 6), 3)
    assert {cell.placement.workers for cell in study.cells()} == {1, 2, 4, 6} and len(study.cells()) == 12
    assert yaml.safe_load(text)["command"] == "torchrun --nproc-per-node {workers} train.py --tag 'two words'"
    path.write_text(text.replace("repeats: 3", "repeats: 5"))
    assert load_study(command_study(TORCHRUN)).repeats == 5, "what was changed in it stays"
    assert command_study([*TORCHRUN, "--more"]).name == "train-2-study.yaml", "another command has another file"
    assert command_study(TORCHRUN, rate=r"at ([0-9]+)").name == "train-3-study.yaml"


def test_all_verbs_find_the_runs_beside_a_study_file_of_another_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "a").mkdir()
    path = command_study(TORCHRUN).rename(here / "a" / "train-study.yaml")

    def found() -> str:
        assert main(["run", str(path), "--plan", "--json"]) == 0
        directory = json.loads(capsys.readouterr().out)["directory"]
        assert main(["status", str(path)]) == 0
        assert capsys.readouterr().out.endswith(f"runs: {directory}\n")
        assert directory == str(runs_folder(path)), "where report, explain and export look"
        return str(directory)

    assert found() == "runs/train"
    (here / "a" / "runs" / "train").mkdir(parents=True)
    assert found() == f"{here}/a/runs/train"
    (here / "runs" / "train").mkdir(parents=True)
    assert found() == "runs/train"
    assert main(["status", str(path), "--runs", "other"]) == 0
    assert capsys.readouterr().out.endswith("runs: other/train\n")


@pytest.mark.parametrize(
    ("gpus", "counts"), [(8, (1, 2, 4, 8)), (3, (1, 2, 3)), (1, (1,)), (0, (1, 2, 4, 8, 16, 32, 64, 96))]
)
def test_counts_go_up_to_the_gpus_or_the_cores(
    here: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, counts: tuple[int, ...]
) -> None:
    machine = Partition(name="local", cores_per_node=96, gpus_per_node=gpus)
    monkeypatch.setattr(study_file, "this_machine", lambda: machine)

    assert tuple(yaml.safe_load(command_study(TORCHRUN).read_text())["sweep"]["workers"]) == counts


@pytest.mark.parametrize(
    ("line", "name", "count"),
    [
        ("torchrun --nproc-per-node 2 train.py -n 9", "train", 2),
        ("torchrun --nproc_per_node=4 -m project.train", "project.train", 4),
        ("mpirun -np 3 python a/train.py", "train", 3),
        ("accelerate launch --num_processes 2 train.py", "train", 2),
        ("./train.sh 4", "train", 1),
        ("make train", "make", 1),
    ],
)
def test_without_a_place_there_is_the_count_that_the_command_says(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, name: str, count: int
) -> None:
    study = load_study(command_study(line.split()))

    assert (study.name, {cell.placement.workers for cell in study.cells()}) == (name, {count})
    assert f"one worker count, {count}:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--"], "run: no command; write `horovod-study run -- torchrun"),
        (
            ["run", "--", "make", "--lr", "{lr}"],
            "nothing is known to put in the place of {lr}; there are",
        ),
        (["run", "x.yaml", "--", "python", "train.py"], "run: x.yaml and a command are both given"),
        (["run", "--", "./missing.sh", "{workers}"], "./missing.sh is not in"),
        (["run", "--", "missing.sh", "{workers}"], "missing.sh is not on PATH"),
        (["run", "--rate", "x", "x.yaml"], "--rate: a study file says it by itself"),
        (["run", "--rate", "speed", "--", "make"], "--rate: speed has no group"),
        (["run", "--rate", "(", "--", "make"], "--rate: ( is no regular expression"),
        (["record", "--repeats", "0", "--", "make"], "--repeats: '0' is not a whole number of 1 or more"),
        (["record", "--rate", "speed", "--", "make"], "--rate: speed has no group"),
    ],
)
def test_errors_are_one_line_and_nothing_is_left(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["train.py"]


def test_a_rate_belongs_to_a_command(here: Path) -> None:
    (here / "study.yaml").write_text("{study: s, script: train.py, rate: 'at (.*)', sweep: {workers: 1}}")
    with pytest.raises(ConfigError, match="rate is what the output of a command says"):
        load_study(here / "study.yaml")
    (here / "study.yaml").write_text("{study: s, command: make, rate: 'at .*', sweep: {workers: 1}}")
    with pytest.raises(ConfigError, match="has no group"):
        load_study(here / "study.yaml")


# ------------------------------------------------------------------------------------------- runs without steps


@pytest.fixture(params=[None, 500.0], ids=["whole", "said"])
def commands(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, float | None]:
    """Twelve runs of one command with 1 to 8 workers, which take 10 s / N + 1 s, and the rate that they say, if any."""
    for workers in (1, 2, 4, 8):
        for repeat in range(3):
            wall_s = 10 / workers + 1 + 0.02 * repeat
            said = None if request.param is None else request.param / wall_s
            place = tmp_path / "runs" / f"w{workers}-r{repeat}"
            write_command_run(place, workers=workers, wall_s=wall_s, repeat=repeat, said=said)
    return tmp_path / "runs", request.param


@pytest.mark.slow
def test_a_command_without_steps_has_a_speedup_laws_and_a_forecast(
    commands: tuple[Path, float | None], capsys: pytest.CaptureFixture[str], no_figures: None
) -> None:
    runs, said = commands
    assert main(["report", str(runs)]) == 0
    out, err = capsys.readouterr()
    analysis = api.read_analysis(runs / "analysis")
    unit = "runs/s" if said is None else "images/sec"
    whole = (
        "speedups are of whole times" if said is None else "speedups are of the rate that the output says (images/sec)"
    )

    points = analysis.points.set_index("workers")
    for workers in (2, 4, 8):
        assert points.at[workers, "speedup_wrapped"] == pytest.approx(11.02 / (10 / workers + 1.02))
    assert f"({unit})" in out and "8 workers run" in out
    assert err.count("\n") == 1 and f"steps were not seen: {whole}" in err
    assert analysis.breakdown.empty and analysis.accounting.empty and analysis.learning.empty
    assert main(["report", str(runs), "--check"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "totals of 12 runs: w1-r0, w1-r1, w1-r2, ... (no step was seen, or they did not end well)" in told
    laws = api.fit(api.read_points(runs))
    assert [each.selected for each in laws.values()] == ["amdahl"]
    ((forecast, *_),) = api.predict(api.read_points(runs), workers=[16]).values()
    assert forecast.low < (1 / 1.645 if said is None else said / 1.645) < forecast.high


def test_explain_says_what_is_known_of_a_command(
    commands: tuple[Path, float | None], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, _ = commands
    for place, repeats in ((runs, 3), (runs / "w2-r0", 1)):  # which finds the runs beside it
        assert main(["explain", str(place), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["commands"]
        assert [row["workers"] for row in rows] == [1, 2, 4, 8] and rows[1]["repeats"] == repeats
        assert rows[-1]["speedup"] == pytest.approx(11.02 / 2.27)
    row = rows[1]
    assert row["cpu_s"] == pytest.approx(0.9 * 2 * 6) and row["cores"] == pytest.approx(1.8)
    assert main(["explain", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "no steps seen" in out and "Steps were not seen: speedups are of" in out
    assert main(["status", str(runs / "w2-r0")]) == 0
    assert "no steps seen" in capsys.readouterr().out


def test_rates_in_different_words_are_not_compared(tmp_path: Path) -> None:
    write_command_run(tmp_path / "one", workers=1, wall_s=10.0, said=100.0)
    write_command_run(tmp_path / "two", workers=2, wall_s=5.0)
    table: pd.DataFrame = records.run_table(tmp_path)

    assert sorted(table["samples_per_s"]) == [0.1, 0.2]
    assert set(map(records.rate_unit, table["rate_from"])) == {records.COMMANDS}


@pytest.mark.parametrize(
    ("told", "unit"),
    [
        ("512.3 images/sec", "images/sec"),
        ("812.3 total img/sec on 4 GPU(s)", "total img/sec on GPU(s)"),
        ("4 x 203 img/sec per GPU", "img/sec"),
        ("1.2e+06 tokens per second", "tokens per second"),
        ("12 throughput", "throughput, per second"),
        ("whole command: 1 / seconds", "runs/s"),
        ("", "runs/s"),
    ],
)
def test_the_unit_of_a_rate(told: str, unit: str) -> None:
    assert records.rate_unit(told) == unit


@pytest.mark.parametrize(("scatter", "more"), [(0.001, [1]), (0.1, [1, 2])])
def test_an_aim_takes_runs_that_did_not_alternate(here: Path, scatter: float, more: list[int]) -> None:
    """Launches end when the ratio of medians, as in a report, is as narrow as asked for."""
    study = load_study(command_study(["./train.sh", "{workers}"])).until(0.05)
    some = [cell for cell in study.cells() if cell.placement.workers < 4]
    for cell in some:
        wall_s = (10.0 if cell.placement.workers == 1 else 5.0) * (1 + scatter * cell.config.repeat)
        if cell.config.repeat < 3:
            place = here / "runs" / cell.key
            write_command_run(place, workers=cell.placement.workers, wall_s=wall_s, repeat=cell.config.repeat)
    aim = Aim(sweep := replace(sweep_of(study, here), directory=here / "runs"))
    fourth = [cell for cell in some if cell.config.repeat == 3]

    assert len(aim.needed(fourth)) == 2
    aim.take((), runs_alone(sweep, ()))
    assert [cell.placement.workers for cell in aim.needed(fourth)] == more, "of one worker because others need it"
    lines = "\n".join(aim.lines())
    assert "2 workers / 1 worker: 2.000 [" in lines and ("more launch" in lines) == (more == [1, 2])


@pytest.mark.parametrize(("scatter", "reached"), [(0.001, True), (0.1, False)])
def test_a_study_whose_precision_is_reached_misses_no_run(here: Path, scatter: float, reached: bool) -> None:
    path = command_study(["./train.sh", "{workers}"])
    path.write_text(f"{path.read_text().replace('[1, 2, 4, 6]', '[1, 2]')}precision: 5%\n")
    study = load_study(path).until(0.05)
    for cell in study.cells():
        config, workers = cell.config, cell.placement.workers
        if config.repeat < 3:
            place = here / "runs" / study.name / cell.key
            wall_s = 10.0 / workers * (1 + scatter * config.repeat)
            write_command_run(
                place, workers=workers, wall_s=wall_s, repeat=config.repeat, key=cell.key, study=study.name
            )
    ledger = read_ledger(sweep_of(study, here / "runs"))
    assert re.fullmatch("command-1w-r0-[0-9a-f]{12}", ledger.entries[0].key), (
        "of Horovod, MPI, a batch nothing is known"
    )

    said = "+- 5 % is reached with 6 of at most 20 runs" if reached else "6 of 20 cells done (14 missing)"
    assert ledger.summary() == f"study {study.name}: {said}"
    assert len(ledger.to_do(retry=True)) == (0 if reached else 14)
    assert any("at most" in line for line in study_view(sweep_of(study, here / "runs")).lines) == reached


def test_a_command_that_starts_fewer_workers_is_told_so(here: Path) -> None:
    study = load_study(command_study(["accelerate", "launch", "--num_processes", "{workers}", "train.py"]))
    two = next(cell for cell in study.cells() if cell.placement.workers == 2)
    record = make_record(study=study.name, key=two.key, requested={"batch": 1, "workers": 1})

    assert foreign(record, two).startswith("the command started 1 worker, not 2; look at how")


@pytest.mark.slow
def test_a_record_that_finds_no_room_says_so_also_at_the_end(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is tried again when the command has ended, by the one that held the run before."""
    (here / "train.py").write_text(
        "import time, torch\nmodel = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(60):\n    optimizer.zero_grad(); model(torch.randn(8, 4)).sum().backward(); optimizer.step()\n"
        "time.sleep(1.5)\n"
    )

    def full(*_: object) -> None:
        raise StudyError("out: No space left on device; make room there")

    monkeypatch.setattr(records, "create_run", full)
    assert main(["record", "--out", "out", "--", sys.executable, "train.py"]) == 0
    err = capsys.readouterr().err
    assert "the recording failed: out: No space left" in err and "being run" not in err


# ------------------------------------------------------------------------------------------------ whole commands

SCRIPT = """
import os, sys, time
workers, seconds = int(sys.argv[1]), 1.2
time.sleep(seconds / workers)
print(f"throughput: {1000 * workers:,} images/s")
sys.exit(int(os.environ.get("ENDS", "0")))
"""


def typed(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "horovod-study"), *words],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.slow
def test_one_command_from_a_script_to_its_answer_and_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "--", sys.executable, "train.py", "{workers}"]
    first = typed(*words, cwd=tmp_path)

    assert first.returncode == 0, first.stderr
    assert "order: one block per repeat" in first.stdout
    assert "(images/s)" in first.stdout
    assert "report: runs/train/analysis/report.html" in first.stdout
    assert "study file: train-study.yaml; again, or with more in it: horovod-study run train-study.yaml" in first.stdout
    study = load_study(tmp_path / "train-study.yaml")
    runs = records.run_table(tmp_path / "runs" / "train")
    assert len(runs) == len(study.cells()) and set(runs["status"]) == {"done"}
    assert (runs["samples_per_s"] == 1000 * runs["workers"]).all()
    again = typed(*words, cwd=tmp_path)
    assert again.returncode == 0 and "done    " not in again.stdout, "nothing is run twice"
    assert "report: runs/train/analysis/report.html" in again.stdout
    with (tmp_path / "train-study.yaml").open("a") as more:
        more.write("run: {threads: 1}\n")
    planned = json.loads(typed("run", "train-study.yaml", "--plan", "--json", cwd=tmp_path).stdout)
    assert planned["to_do"] == len(study.cells()), "the command chose its threads before: other runs"


@pytest.mark.slow
@pytest.mark.parametrize("smoke", [True, False])
def test_a_command_that_fails_says_its_last_words_and_how_it_ended(smoke: bool, tmp_path: Path) -> None:
    (tmp_path / "bad.sh").write_text("#!/bin/sh\necho hello\necho boom >&2\nexit 3\n")
    (tmp_path / "bad.sh").chmod(0o755)
    ended = typed("run", *([] if smoke else ["--no-smoke"]), "--", "./bad.sh", "{workers}", cwd=tmp_path)
    said = ended.stdout + ended.stderr

    assert ended.returncode == (2 if smoke else 1)
    assert "boom (exit code 3)" in said
    assert not [word for word in ("sinfo", "Slurm") if word in said]
    assert ("2 workers on this machine failed: boom (exit code 3); see runs/bad/.smoke/command-" in said) == smoke


@pytest.mark.slow
def test_repeats_of_one_recording_end_with_the_first_that_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["record", "--repeats", "3", "--out", "runs/1w", "--", sys.executable, "train.py", "4"]

    assert typed(*words, cwd=tmp_path).returncode == 0
    table = records.run_table(tmp_path / "runs")
    assert table.sort_values("repeat")["run"].tolist() == ["1w", "1w-2", "1w-3"]
    assert table.sort_values("repeat")["repeat"].tolist() == [0, 1, 2]
    assert "nothing was overwritten" in typed(*words, cwd=tmp_path).stderr
    words[4] = "runs/2w"
    assert typed(*words, cwd=tmp_path, ENDS="7").returncode == 7
    assert (tmp_path / "runs" / "2w").exists() and not (tmp_path / "runs" / "2w-2").exists()
