"""The trainer with one worker: what it learns, records, prints and refuses."""

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make.waiting import PATIENCE_S, until
from make.wording import Golden
from test_records import fill_disk

from horovod_study import records
from horovod_study.config.run import LAPS, ORDINARY_LAPS
from horovod_study.measure import clock
from horovod_study.strain import dataset
from horovod_study.train import main

SMALL = ("--dataset", "2000", "--batch", "25", "--warmup-steps", "5", "--steady", "declared")


def train(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(options))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON line of a run of two epochs."""
    out = tmp_path_factory.mktemp("runs") / "two-epochs"
    done = subprocess.run(
        [sys.executable, "-m", "horovod_study.train", *SMALL, "--epochs", "2", "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("\n") == 1, "standard output holds the JSON line and nothing else"
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_json_line(result: dict[str, Any]) -> None:
    assert (result["backend"], result["transport"], result["workers"], result["nodes"]) == ("serial", "none", 1, 1)
    assert (result["batch"], result["parameters"], result["epochs"]) == (25, 153_441, 2)
    assert list(result["laps_ms"]) == [*LAPS, "residual"]
    assert result["samples_per_s"] == pytest.approx(result["steps"] * 25 / result["window_s"])
    assert result["steps"] == 2 * 60 - 5
    assert 0 < result["step_ms_median"] <= result["step_ms_p90"]
    assert 0 < result["pss_mb_max"] <= result["rss_mb_max"]
    assert re.fullmatch("[0-9a-f]{64}", result["parameter_sha256"])
    assert result["laps_ms"]["compute"] is result["laps_share"]["compute"] is None, "nothing was captured"
    assert sum(share for share in result["laps_share"].values() if share is not None) == pytest.approx(1)


def test_errors_in_physical_units_agree_with_the_mse(result: dict[str, Any]) -> None:
    g0, a = result["g0_rmse_mpa"] / 2000, result["a_rmse"] / 20

    assert (g0**2 + a**2) / 2 == pytest.approx(result["test_mse"], rel=1e-9)


def test_the_run_directory(result: dict[str, Any]) -> None:
    directory = Path(result["run_dir"])
    record = records.read_run(directory)
    steps = records.read_steps(directory, 0).to_pandas()
    epochs = (directory / "epochs.csv").read_text().splitlines()

    assert record.status == "done"
    assert record.requested["dataset"] == "2000" and record.requested["epochs"] == 2
    assert record.effective["lr"] == 4.7331e-4
    assert record.effective["parameters"] == 153_441
    assert record.effective["ranks"][0]["threads"] == 1
    assert record.environment["torch"]
    assert list(steps["step"]) == list(range(120)), "warm-up steps are kept"
    assert list(steps["epoch"]) == [0] * 60 + [1] * 60
    parts = steps[[f"{lap}_s" for lap in (*LAPS, "residual")]].sum(axis=1)
    assert list(parts) == pytest.approx(list(steps["step_s"]))
    assert steps["step_s"][5:].sum() == pytest.approx(record.totals["window_s"], rel=0.02)
    assert len(epochs) == 3 and epochs[0] == ",".join(records.EPOCH_COLUMNS)


def test_totals_are_those_of_the_rows(result: dict[str, Any]) -> None:
    totals = records.read_run(Path(result["run_dir"])).totals
    timed = records.read_steps(Path(result["run_dir"]), 0).to_pandas()[5:]

    assert totals["excluded_steps"] == 5 and totals["steps"] == len(timed)
    for lap in (*ORDINARY_LAPS, "residual", "step"):
        assert totals[f"{lap}_s"] == pytest.approx(timed[f"{lap}_s"].mean())
    assert totals["step_s_median"] == pytest.approx(timed["step_s"].median())


@pytest.mark.slow
def test_it_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a few epochs the network beats ridge regression on the raw curves (2.4e-2)."""
    code, out, _ = train(
        capsys, "--dataset", "20000", "--epochs", "12", "--lr", "2e-3", "--out", str(tmp_path / "r"), "--json"
    )

    assert code == 0
    assert json.loads(out)["test_mse"] < 2.4e-2


@pytest.mark.slow
def test_the_same_run_twice_gives_the_same_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hashes = set()
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        _, out, _ = train(capsys, *SMALL, "--steps", "5", "--seed", seed, "--out", str(tmp_path / name), "--json")
        hashes.add((seed, json.loads(out)["parameter_sha256"]))

    assert len(hashes) == 2, "equal for equal seeds, different for different ones"


def test_the_table_for_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = train(capsys, *SMALL, "--steps", "20", "--out", str(tmp_path / "r"))

    assert code == 0
    assert re.search(r"test MSE \d\.\d+e-\d+ after .* epochs", out)
    assert re.search(r"error of G0 [\d.]+ MPa, of a [\d.]+", out)
    assert re.search(r"[\d,]+ samples/s with 1 worker", out)
    assert re.search(r"data +forward +backward +sync +update +unexplained", out)
    assert f"recorded in {os.path.relpath(tmp_path / 'r')}" in out
    assert "153,441 parameters" in err


def test_steps_that_are_not_timed_are_recorded_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = train(
        capsys, *SMALL, "--steps", "40", "--timer-mode", "off", "--out", str(tmp_path / "r"), "--json"
    )
    found = json.loads(out)
    rows = records.read_steps(tmp_path / "r", 0)
    record = records.read_run(tmp_path / "r")

    assert code == 0
    assert rows.column("step").to_pylist() == list(range(45))
    assert rows.column("loss").null_count == rows.column("samples").null_count == 0
    assert all(rows.column(f"{name}_s").null_count == 45 for name in ("begin", *LAPS, "residual", "step"))
    assert found["samples_per_s"] == pytest.approx(40 * 25 / found["window_s"]), "the window is timed"
    assert {found["step_ms_median"], found["step_ms_p90"], *found["laps_ms"].values()} == {None}
    assert set(found["laps_share"].values()) == {None}
    assert "steps were not timed" in err and "share of the step" not in err
    assert record.effective["timer_mode"] == {"value": "off", "note": ""}
    assert record.totals["step_s"] is record.totals["step_s_median"] is None
    assert records.run_table(tmp_path)["step_s"].isna().all()


def test_a_strict_timer_says_that_a_cpu_has_nothing_to_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    train(capsys, *SMALL, "--steps", "5", "--timer-mode", "strict", "--out", str(tmp_path / "r"))
    record = records.read_run(tmp_path / "r")

    assert record.requested["timer_mode"] == "strict"
    golden(record.effective["timer_mode"], "value", "strict", "note", "CPU")  # fmt: skip
    assert record.totals["step_s"] > 0


@pytest.mark.slow
def test_the_date_set_back_by_hours_changes_no_row_and_no_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class SetBack(datetime):
        asked = 0

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            cls.asked += 1
            return datetime(2026, 1, 2, tzinfo=tz) - timedelta(hours=5 * cls.asked)

    monkeypatch.setattr(clock, "datetime", SetBack)
    began = time.monotonic()
    code, _, _ = train(capsys, *SMALL, "--epochs", "2", "--out", str(tmp_path / "r"))
    took_s = time.monotonic() - began
    record = records.read_run(tmp_path / "r")
    rows = records.read_steps(tmp_path / "r", 0).to_pandas()
    walls_s = [float(row["wall_s"]) for row in csv.DictReader((tmp_path / "r" / "epochs.csv").read_text().splitlines())]

    assert code == 0
    assert record.finished is not None and record.finished < record.started, "the date did go backwards"
    assert list(rows["step"]) == list(range(120))
    assert rows["begin_s"].is_monotonic_increasing
    assert (rows[[f"{lap}_s" for lap in (*ORDINARY_LAPS, "residual", "step")]] >= 0).all(axis=None)
    assert rows["step_s"].sum() < took_s
    assert 0 < record.totals["window_s"] < took_s
    assert walls_s == sorted(walls_s) and walls_s[-1] < took_s


@pytest.mark.slow
def test_a_missing_data_set_is_generated_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_STUDY_DATA", str(tmp_path / "cache"))
    options = ("--dataset", "600", "--batch", "10", "--steps", "3", "--warmup-steps", "0", "--out")
    _, _, first = train(capsys, *options, str(tmp_path / "a"))
    _, _, second = train(capsys, *options, str(tmp_path / "b"))

    assert "generating 600 curves (seed 1) into" in first
    assert "generating" not in second


def evaluations(directory: Path) -> list[dict[str, str]]:
    with (directory / "epochs.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_evaluations_are_where_they_were_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2000 curves in batches of 25 are 60 steps an epoch; the last step is evaluated whatever was asked for."""
    for every, steps in ((0.5, [30, 60, 90, 120, 150]), (2.0, [120, 150]), (0.7, [42, 84, 126, 150])):
        out = tmp_path / f"every-{every}"
        train(capsys, *SMALL, "--steps", "145", "--evaluate-every", str(every), "--out", str(out))

        assert [int(row["steps"]) for row in evaluations(out)] == steps
        assert [float(row["epoch"]) for row in evaluations(out)] == pytest.approx([step / 60 for step in steps])


@pytest.mark.slow
def test_evaluating_more_often_does_not_change_what_is_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = set()
    for every in ("0.3", "1", "5"):
        _, out, _ = train(
            capsys, *SMALL, "--epochs", "2", "--evaluate-every", every, "--out", str(tmp_path / every), "--json"
        )
        hashes.add(json.loads(out)["parameter_sha256"])

    assert len(hashes) == 1


@pytest.mark.slow
def test_it_stops_at_the_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = train(
        capsys, *SMALL, "--epochs", "50", "--target-mse", "0.08", "--out", str(tmp_path / "reached"), "--json"
    )
    reached = json.loads(out)
    _, out, _ = train(
        capsys, *SMALL, "--epochs", "2", "--target-mse", "1e-9", "--out", str(tmp_path / "missed"), "--json"
    )
    missed = json.loads(out)

    assert reached["target_reached"] is True and reached["test_mse"] <= 0.08 and reached["epochs"] < 50
    before = evaluations(tmp_path / "reached")[:-1]
    assert all(float(row["test_mse"]) > 0.08 for row in before), "not at the first evaluation that reached it"
    assert missed["target_reached"] is False and missed["epochs"] == 2


def test_the_floor_of_the_data_is_recorded(result: dict[str, Any]) -> None:
    """The Cramer-Rao bound of these 500 test curves is near that of the generator, 7.29e-5."""
    assert result["floor_mse"] == pytest.approx(7.29e-5, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "fp16"), "fp16"),
        (("--precision", "tf32"), "tf32"),
        (("--cuda-graphs",), "cuda_graphs"),
        (("--pin-memory",), "pin_memory"),
    ],
)
def test_an_option_that_cannot_work_here_says_so(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    code, _, err = train(capsys, *SMALL, "--steps", "2", *options, "--out", str(tmp_path / "r"))

    assert code == 2
    golden.line(err, "error", message)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--input-scaling", "fixed"), ("--widths", "4-6-10"), ("--optimizer", "sgd"), ("--precision", "bf16")]
)
def test_options_of_the_model_and_the_step_train(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = train(
        capsys, *SMALL, "--steps", "100", "--lr", "1e-3", *options, "--out", str(tmp_path / "r"), "--json"
    )

    assert code == 0
    assert json.loads(out)["test_mse"] < 0.3
    name, value = options[0][2:].replace("-", "_"), options[1]
    assert records.read_run(tmp_path / "r").requested[name] == value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_compiled_it_learns_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name, options in (("plain", ()), ("compiled", ("--compile",))):
        _, out, _ = train(capsys, *SMALL, "--steps", "20", *options, "--out", str(tmp_path / name), "--json")
        found[name] = json.loads(out)

    assert found["compiled"]["test_mse"] == pytest.approx(found["plain"]["test_mse"], rel=1e-3)
    assert found["compiled"]["parameters"] == 153_441


@pytest.mark.slow
def test_the_first_step_is_warmed_up_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--dataset", "2000", "--batch", "25", "--warmup-steps", "0", "--lr", "1e-3", "--lr-warmup-steps", "4")
    for steps, lr in ((1, 0.25e-3), (3, 0.75e-3), (6, 1e-3)):
        train(capsys, *options, "--steps", str(steps), "--out", str(tmp_path / str(steps)))

        assert float(evaluations(tmp_path / str(steps))[-1]["lr"]) == pytest.approx(lr)


def test_a_budget_of_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = train(capsys, *SMALL, "--seconds", "0.5", "--out", str(tmp_path / "r"), "--json")

    assert json.loads(out)["window_s"] >= 0.5


def test_yaml_first_then_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("dataset: 2000\nbatch: 25\nepochs: 3\nwarmup_steps: 0\nlr: 0.001\n")
    code, _, _ = train(
        capsys, "--config", str(tmp_path / "run.yaml"), "--steps", "4", "--lr", "0.002", "--out", str(tmp_path / "r")
    )
    record = records.read_run(tmp_path / "r")

    assert code == 0
    assert (record.requested["batch"], record.requested["lr"], record.totals["steps"]) == (25, 0.002, 4)
    assert record.requested["epochs"] is None, "a budget on the command line replaces the file's"


def test_the_last_step_has_the_rate_before_the_end_of_the_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """25 steps, the last of which begins when 24/25 of the cosine are done."""
    train(capsys, *SMALL, "--steps", "20", "--lr", "1e-3", "--schedule", "cosine", "--out", str(tmp_path / "r"))

    expected = 1e-3 * 0.5 * (1 + math.cos(math.pi * 24 / 25))
    assert float(evaluations(tmp_path / "r")[-1]["lr"]) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bach", "75"), r"unknown argument '--bach' \(did you mean '--batch'\?\)"),
        (("--batch", "1501"), "batch 1501 x 1 workers = 1501 curves per step, but the training set has 1500; use a"),
        (("--backend", "ddp"), "backend ddp needs MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE .* launch with `torchrun"),
        (("--dataset", "/nothing"), "/nothing/dataset.json: no such data set; make it with"),
        (("--dataset", "0"), "dataset 0: a size must be a whole number of curves from 1 to"),
        (("--out", "/proc/none/run"), r"/proc/none/run: cannot be written .*; choose a writable .*--out"),
        (("--epochs", "1", "--warmup-steps", "60"), "warmup_steps 60 leaves nothing of 1 epochs x 60 steps; use fewer"),
        (("--config", "/nothing.yaml"), "/nothing.yaml: no such file"),
        (("--device", "cuda"), "device cuda was asked for, but PyTorch sees no GPU; use --device cpu or auto"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    code, out, err = train(capsys, *SMALL, "--out", str(tmp_path / "r"), *options)

    assert code == 2 and out == ""
    assert re.search(message, err)
    assert err.count("error:") == 1 and len([line for line in err.splitlines() if line.startswith("error:")]) == 1
    assert "Traceback" not in err


def test_a_finished_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    options = (*SMALL, "--steps", "5", "--out", str(tmp_path / "r"))
    train(capsys, *options)
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
    code, _, err = train(capsys, *options)

    assert code == 2
    golden(err)
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()} == before


def test_a_full_disk_ends_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    make = records.StepWriter.__init__

    def make_on_full_disk(writer: records.StepWriter, directory: Path, rank: int, *, resume_at: int | None) -> None:
        make(writer, directory, rank, resume_at=resume_at)
        fill_disk(writer)

    monkeypatch.setattr(records.StepWriter, "__init__", make_on_full_disk)
    code, _, err = train(capsys, *SMALL, "--steps", "20", "--out", str(tmp_path / "r"))

    assert code == 2
    golden.line(err, "error")
    assert "Traceback" not in err
    assert records.read_run(tmp_path / "r").state() == "failed"


def start_endless(out: Path) -> subprocess.Popen[str]:
    """Start a run that would take minutes, and return when its first rows are on the disk."""
    line = [sys.executable, "-m", "horovod_study.train", *SMALL, "--seconds", "300", "--out", str(out)]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until(lambda: (out / "steps-00000.arrows").exists() and records.read_steps(out, 0).num_rows > 60)
    return process


@pytest.mark.slow
def test_a_killed_run_is_readable_and_incomplete(tmp_path: Path) -> None:
    process = start_endless(tmp_path / "r")
    process.kill()
    process.communicate()
    record = records.read_run(tmp_path / "r")
    rows = records.read_steps(tmp_path / "r", 0)

    assert (record.status, record.state()) == ("running", "incomplete")
    assert np.array_equal(rows.column("step").to_numpy(), np.arange(rows.num_rows))


@pytest.mark.parametrize(
    ("number", "code", "status", "reason"),
    [(signal.SIGTERM, 75, "stopped", "stopped by SIGTERM after step"), (signal.SIGINT, 130, "failed", "Keyboard")],
)
@pytest.mark.slow
def test_a_terminated_run_is_marked_so(tmp_path: Path, number: int, code: int, status: str, reason: str) -> None:
    process = start_endless(tmp_path / "r")
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    record = records.read_run(tmp_path / "r")

    assert process.returncode == code
    assert (record.status, record.state()) == (status, status)
    assert reason in record.reason
    assert "Traceback" not in err


def test_a_truncated_data_set_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    dataset.generate(tmp_path / "d", 400, seed=1)
    os.truncate(tmp_path / "d" / dataset.CURVES, 1000)
    code, _, err = train(capsys, "--dataset", str(tmp_path / "d"), "--batch", "10", "--out", str(tmp_path / "r"))

    assert code == 2
    golden(err, "1,000 bytes")
    assert not (tmp_path / "r").exists()


def test_a_diverged_run_is_still_valid_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    code, out, err = train(
        capsys, *SMALL, "--steps", "60", "--optimizer", "sgd", "--lr", "1e6", "--out", str(tmp_path / "r"), "--json"
    )

    assert code == 0
    assert json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["test_mse"] is None
    golden.line(err, "--lr")
