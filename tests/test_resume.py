"""Stopping and resuming: the run that goes on is, bit for bit, the one that was never interrupted."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import BIN, LAUNCHERS, Launch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.waiting import PATIENCE_S, until
from make.wording import Golden

from horovod_study import records, train
from horovod_study.comm.liveness import StopRequest, Terminated
from horovod_study.errors import BackendError, ConfigError, RecordError
from horovod_study.records import checkpoint_paths, read_run
from horovod_study.strain import resume as going_on
from horovod_study.strain import trainer
from horovod_study.strain.checkpoint import decode, read_newest
from horovod_study.strain.options import STRAIN
from horovod_study.studies import lease

pytestmark = pytest.mark.slow

# 450 training curves: 18 steps per epoch, 36 in all, 5 of them before the timed window.
SMALL = (
    *("--steady", "declared"),  # as a resumed run has it: the windows are to be the same
    *("--dataset", "600", "--batch", "25", "--widths", "3-4-6", "--warmup-steps", "5", "--epochs", "2"),
)
MOVING = ("--schedule", "cosine", "--lr-warmup-steps", "8", "--lr", "2e-3", "--evaluate-every", "0.5")
LAST = 36
TIMES = ("train_s", "wall_s")


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The trainer's handlers end with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Crash(Exception):
    """What ends a run in the middle of a step, as a lost power line would."""


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let the trainer fail at the step after so many, counted from here."""
    whole, done = trainer.train_step, [0]

    def step(*arguments: Any) -> Any:
        if done[0] == steps:
            raise Crash
        done[0] += 1
        return whole(*arguments)

    monkeypatch.setattr(trainer, "train_step", step)


def signal_after(monkeypatch: pytest.MonkeyPatch, steps: int, number: int) -> None:
    """Send `number` to this process within the step after so many."""
    whole, done = trainer.train_step, [0]

    def step(*arguments: Any) -> Any:
        if done[0] == steps:
            os.kill(os.getpid(), number)
        done[0] += 1
        return whole(*arguments)

    monkeypatch.setattr(trainer, "train_step", step)


def note_rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that receives the learning rate of every step from here on."""
    whole, rates = trainer.train_step, []

    def step(model: Any, optimizer: Any, *arguments: Any) -> Any:
        rates.append(optimizer.param_groups[0]["lr"])
        return whole(model, optimizer, *arguments)

    monkeypatch.setattr(trainer, "train_step", step)
    return rates


def crashed_run(out: Path, *options: str, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, steps)
        train.main([*options, "--out", str(out)])


def evaluations(directory: Path) -> list[dict[str, str]]:
    head, *rows = (directory / "epochs.csv").read_text().splitlines()
    found = [dict(zip(head.split(","), row.split(","), strict=True)) for row in rows]
    for name in TIMES:
        seconds = [float(row[name]) for row in found]
        assert seconds == sorted(seconds), f"{name} goes on where it was"
    return [{name: value for name, value in row.items() if name not in TIMES} for row in found]


def what_happened(directory: Path) -> dict[str, Any]:
    """All that must not depend on interruptions: losses of every step and rank, evaluations, final parameters."""
    record = read_run(directory)
    steps = [records.read_steps(directory, rank) for rank in records.step_ranks(directory)]
    return {
        "status": record.status,
        "steps": [rows.column("step").to_pylist() for rows in steps],
        "epochs": [rows.column("epoch").to_pylist() for rows in steps],
        "losses": [rows.column("loss").to_pylist() for rows in steps],
        "evaluations": evaluations(directory),
        "sha256": record.totals["parameter_sha256"],
        "timed": (record.totals["steps"], record.totals["excluded_steps"]),
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train.main([*SMALL, *MOVING, "--out", str(out)]) == 0
    return what_happened(out)


# ---------------------------------------------------------------------------------------------------- bit for bit


# Each epoch has 18 steps and an evaluation in its middle; the timed window opens at 5, the rate has risen at 8.
@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(every=st.sampled_from([1, 2, 5, 7, 8, 9, 18, 35]), more=st.integers(0, 20))
def test_a_run_that_crashed_anywhere_goes_on_as_if_it_had_not(
    tmp_path_factory: pytest.TempPathFactory, uninterrupted: dict[str, Any], every: int, more: int
) -> None:
    out = tmp_path_factory.mktemp("crashed") / "run"
    crashed_run(out, *SMALL, *MOVING, "--checkpoint-every", str(every), steps=min(every + more, LAST - 1))
    newest = decode(read_newest(out), "").step
    assert train.main(["--resume", str(out)]) == 0

    assert what_happened(out) == uninterrupted
    attempts = read_run(out).attempts
    assert [(each["from_step"], each["status"]) for each in attempts] == [(0, "failed"), (newest, "done")]


@pytest.mark.parametrize("target", [(), ("--target-mse", "10")])
def test_a_run_killed_after_its_last_checkpoint_makes_no_step_more(tmp_path: Path, target: tuple[str, ...]) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert train.main([*SMALL, *MOVING, *target, "--out", str(whole)]) == 0

    def die(*arguments: Any, **options: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(records, "finish_run", die)
        train.main([*SMALL, *MOVING, *target, "--out", str(out)])
    child = subprocess.Popen(["true"])
    child.wait()
    assert read_run(changed(out, pid=child.pid, process=None)).state() == "incomplete"
    assert train.main(["--resume", str(out)]) == 0

    assert what_happened(out) == what_happened(whole)
    assert read_run(out).totals["target_reached"] == read_run(whole).totals["target_reached"]


@pytest.mark.parametrize(
    "options",
    [
        ("--loader", "prefetch"),
        ("--loader", "dataloader"),
        ("--loader", "device"),
        ("--kernels", "native"),
        ("--optimizer", "sgd"),
        ("--optimizer", "adamw", "--weight-decay", "0.01", "--no-fused-optimizer"),
        ("--input-scaling", "fixed", "--precision", "bf16", "--memory-format", "contiguous"),
        ("--schedule", "constant", "--lr-warmup-steps", "0"),
    ],
)
def test_it_holds_for_every_way_of_training(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert train.main([*SMALL, *MOVING, *options, "--out", str(tmp_path / "whole")]) == 0
    crashed_run(tmp_path / "run", *SMALL, *MOVING, *options, "--checkpoint-every", "11", steps=27)
    assert train.main(["--resume", str(tmp_path / "run")]) == 0

    assert what_happened(tmp_path / "run") == what_happened(tmp_path / "whole")


def test_a_run_resumed_again_and_again(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    out = tmp_path / "run"
    crashed_run(out, *SMALL, *MOVING, "--checkpoint-every", "4", steps=6)
    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_after(patch, 9)
            train.main(["--resume", str(out)])
    assert train.main(["--resume", str(out)]) == 0

    assert what_happened(out) == uninterrupted
    assert [each["from_step"] for each in read_run(out).attempts] == [0, 4, 12, 20, 28]
    assert read_run(out).started == read_run(out).attempts[0]["started"]
    assert read_run(out).totals["checkpoints"] == 9 - 4, "of those it was resumed from the cost is not known"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:999] + b"!" + data[1000:]]
)
def test_a_damaged_newest_checkpoint_is_passed_over(
    tmp_path: Path, uninterrupted: dict[str, Any], capsys: pytest.CaptureFixture[str], damage: Any, golden: Golden
) -> None:
    out = tmp_path / "run"
    crashed_run(out, *SMALL, *MOVING, "--checkpoint-every", "10", steps=25)
    newest, older = checkpoint_paths(out)
    newest.write_bytes(damage(newest.read_bytes()))
    assert train.main(["--resume", str(out)]) == 0
    printed = capsys.readouterr().err

    assert what_happened(out) == uninterrupted
    assert re.search(rf"^warning: {re.escape(str(newest))}: .*; it is passed over$", printed, re.M)
    golden.line(printed, "step 10", older)
    assert (newest.parent / f"{newest.name}.damaged").exists()


def test_both_damaged_is_one_line_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    crashed_run(out, *SMALL, "--checkpoint-every", "10", steps=25)
    for path in checkpoint_paths(out):
        path.write_bytes(b"")
    before = {path: path.read_bytes() for path in out.glob("[!.]*") if path.is_file()}

    assert train.main(["--resume", str(out)]) == 2
    assert re.search(
        r"^error: .*: none of its 2 checkpoints can be used .*; start the run again", capsys.readouterr().err, re.M
    )
    assert {path: path.read_bytes() for path in out.glob("[!.]*") if path.is_file()} == before
    assert all(path.read_bytes() == b"" for path in checkpoint_paths(out))


# ---------------------------------------------------------------------------------------------------- budgets


def test_an_extended_run_is_the_longer_one(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    assert train.main([*SMALL, "--out", str(short)]) == 0
    assert train.main([*SMALL, "--epochs", "3", "--out", str(long)]) == 0
    capsys.readouterr()

    assert train.main(["--resume", str(short), "--json"]) == 0
    printed = capsys.readouterr()
    golden(printed.err, short, "2 epochs", "--epochs")
    assert json.loads(printed.out)["parameter_sha256"] == read_run(short).totals["parameter_sha256"]
    assert train.main(["--resume", str(short), "--epochs", "3"]) == 0
    assert what_happened(short) == what_happened(long)
    assert read_run(short).requested["epochs"] == 3


def test_an_extended_schedule_says_that_it_is_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    train.main([*SMALL, *MOVING, "--out", str(out)])

    assert train.main(["--resume", str(out), "--epochs", "3"]) == 0
    assert "note: schedule cosine counts from the new end, epochs 3: this is not the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "note"),
    [
        ("constant", "each step is that of the uninterrupted run bit for bit, but which one is the last follows"),
        ("cosine", "schedule cosine follows the clock, the run continues but not bit for bit"),
    ],
)
def test_a_budget_of_seconds_continues_where_it_was(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    schedule: str,
    note: str,
    golden: Golden,
) -> None:
    out = tmp_path / "run"
    rates = note_rates(monkeypatch)
    monkeypatch.setattr(trainer, "_steps_between_checks", lambda backend, rows, config: 20)
    options = [*SMALL[:-2], "--seconds", "2.0", "--schedule", schedule, "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, 30, signal.SIGUSR1)
        assert train.main(options) == 75
    stopped = len(rates)
    before = decode(read_newest(out), "").progress["window_s"]
    assert 0 < before < 2
    stopped_at = read_run(out).attempts[-1]["reason"]
    assert re.fullmatch(r"stopped by SIGUSR1 after step \d+", stopped_at)
    assert train.main(["--resume", str(out)]) == 0

    assert rates[stopped] == (rates[0] if schedule == "constant" else pytest.approx(rates[stopped - 1], rel=0.05))
    assert schedule == "constant" or rates[stopped] < rates[0]
    golden.line(capsys.readouterr().err, note)
    assert read_run(out).totals["window_s"] >= 2.0
    assert records.read_steps(out, 0).column("step").to_pylist() == list(range(records.read_steps(out, 0).num_rows))


# ---------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
# In the middle of an epoch, and, where the ranks ask each other less often, at the evaluation that comes first.
@pytest.mark.parametrize(("check_every", "step"), [(7, 14), (100, 18)])
def test_a_signal_stops_the_run_with_a_checkpoint(
    tmp_path: Path,
    uninterrupted: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    check_every: int,
    step: int,
    golden: Golden,
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_steps_between_checks", lambda backend, rows, config: check_every)
        signal_after(patch, 12, number)
        code = train.main([*SMALL, *MOVING, "--out", str(out)])
    record = read_run(out)

    assert (code, decode(read_newest(out), "").step) == (75, step)
    golden((record.status, record.state(), record.reason), "stopped", number.name, step)
    assert record.totals["checkpoints"] == 1 and record.totals["checkpoint_bytes"] > 0
    golden.line(capsys.readouterr().err, number.name, step, "--resume")
    assert train.main(["--resume", str(out)]) == 0
    assert what_happened(out) == uninterrupted
    assert read_run(out).totals["checkpoints"] == 1, "of the one it was resumed from the cost is not known"


def test_without_checkpoint_at_end_a_signal_ends_the_run_as_failed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, 12, signal.SIGTERM)
        code = train.main([*SMALL, "--no-checkpoint-at-end", "--out", str(tmp_path / "run")])

    assert code == 143
    assert read_run(tmp_path / "run").status == "failed"
    assert checkpoint_paths(tmp_path / "run") == []


def test_a_second_signal_ends_at_once_but_not_the_same_one_on_another_way(
    monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    from horovod_study.comm import liveness

    clock = [100.0]
    monkeypatch.setattr(liveness, "now", lambda: clock[0])
    request = StopRequest()
    request.listen()
    with golden.raises(Terminated, match="signal 10.*SIGUSR1"):
        os.kill(os.getpid(), signal.SIGUSR1)
    request.defer()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert request.requested and request.number == signal.SIGUSR1
    clock[0] += 0.5
    os.kill(os.getpid(), signal.SIGTERM)  # what mpirun passes on
    assert request.number == signal.SIGUSR1
    clock[0] += 0.6
    with pytest.raises(Terminated, match=r"ended by signal 15 \(SIGTERM\)"):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_full_disk_at_a_checkpoint_is_one_line_and_the_run_can_be_resumed(
    tmp_path: Path,
    uninterrupted: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
) -> None:
    out = tmp_path / "run"
    whole = os.fsync

    def full(descriptor: int) -> None:
        if "step-000000020.pt" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, os.strerror(28))
        whole(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert train.main([*SMALL, *MOVING, "--checkpoint-every", "10", "--out", str(out)]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    golden(errors[0], "step-000000020.pt", "step-000000010.pt", "--resume")
    assert read_run(out).status == "failed"
    monkeypatch.undo()
    assert train.main(["--resume", str(out)]) == 0
    assert what_happened(out) == uninterrupted


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert train.main([*SMALL, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", "50"), "batch is 50, but the run was started with 25; leave it out to continue that run, or"),
        (("--lr", "1e-3"), "lr is 0.001, but the run was started with 0.00047331; leave it out"),
        (("--epochs", "1"), "epochs is 1, but the run was started with 2; a budget can only be extended"),
        (("--steps", "99"), "steps is given, but the run was started with epochs 2; extend that budget with --epochs"),
        (("--out", "elsewhere"), "train: --resume continues in its own directory; leave --out out"),
        (("--bach", "1"), "unknown argument '--bach'"),
    ],
)
def test_another_run_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    before = (finished / "run.json").read_bytes()

    assert train.main(["--resume", str(finished), *options]) == 2
    assert re.search(rf"^error: .*{re.escape(message)}", capsys.readouterr().err, re.M)
    assert (finished / "run.json").read_bytes() == before


def test_equal_options_and_the_file_it_was_started_from_are_no_difference(finished: Path, tmp_path: Path) -> None:
    import yaml

    requested = {name: value for name, value in read_run(finished).requested.items() if name in STRAIN.options}
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(requested))

    assert train.main(["--resume", str(finished), "--config", str(tmp_path / "cell.yaml"), "--batch", "25"]) == 0


def test_another_number_of_workers_says_why(finished: Path, golden: Golden) -> None:
    with golden.raises(ConfigError, match="1 workers"):
        going_on.plan_resume(finished, {}, workers=2)


def changed(run: Path, **changes: Any) -> Path:
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, **changes}))
    return run


def copy_of(run: Path, to: Path) -> Path:
    subprocess.run(["cp", "-r", str(run), str(to)], check=True)
    return to


def test_a_run_that_still_runs_is_refused(finished: Path, tmp_path: Path) -> None:
    run = changed(copy_of(finished, tmp_path / "run"), status="running", finished=None, pid=os.getpid())

    still = rf"the run is still running \(process {os.getpid()} on \S+ since \S+\); wait for its"
    with pytest.raises(RecordError, match=still):
        going_on.plan_resume(run, {}, workers=1)


def test_a_run_on_another_host_is_believed_until_it_has_been_silent(finished: Path, tmp_path: Path) -> None:
    run = changed(copy_of(finished, tmp_path / "run"), status="running", finished=None, host="node9", pid=7)

    seems = r"running \(process 7 on node9 since \S+, taken for alive until .* UTC, unless more is written\); stop"
    with pytest.raises(RecordError, match=seems):
        going_on.plan_resume(run, {}, workers=1)
    for path in run.iterdir():
        os.utime(path, (time.time() - 700, time.time() - 700))
    assert going_on.plan_resume(run, {}, workers=1).finished == ""


def test_another_data_set_or_library_is_refused_and_another_version_noted(finished: Path, golden: Golden) -> None:
    record = read_run(finished)
    for name, value in (
        ("dataset_digest", "abc"),
        ("transport", "mpi"),
        ("reduction", "hooks"),
        ("device", "NVIDIA X"),
    ):
        text = "a GPU" if name == "device" else value
        with golden.raises(BackendError, match=f"{name.replace('_', ' ')}.*{text}"):
            going_on.require_same_run(finished, record, {**record.effective, name: value})
    plan = going_on.plan_resume(finished, {"epochs": 3}, workers=1)
    assert going_on.notes(plan, record.environment, record.effective) == []
    assert going_on.notes(plan, {**record.environment, "torch": "9.9"}, record.effective) == [
        f"note: torch is 9.9, was {record.environment['torch']}: the run continues, but perhaps not bit for bit"
    ]


def test_a_run_that_reached_its_target_is_finished_whatever_the_budget(tmp_path: Path, golden: Golden) -> None:
    assert train.main([*SMALL, "--target-mse", "10", "--out", str(tmp_path / "run")]) == 0
    plan = going_on.plan_resume(tmp_path / "run", {"epochs": 9}, workers=1)

    golden(plan.finished, "MSE", "10")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", r"/none/run\.json: no such file; .*name a run directory"),
        ("no checkpoint", "holds no checkpoint; train with --checkpoint-every STEPS"),
        (
            "rows lost",
            r"steps-00000\.arrows: holds rows up to step 36, but the checkpoint is at step 37; rows were lost",
        ),
    ],
)
def test_what_cannot_be_resumed_says_so(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, message: str, golden: Golden
) -> None:
    run = changed(copy_of(finished, tmp_path / "run"), status="failed")
    if what == "nothing":
        run = tmp_path / "none"
    elif what == "no checkpoint":
        checkpoint_paths(run)[0].unlink()
    else:
        with golden.raises(RecordError, match=message):
            records.StepWriter(run, 0, resume_at=37)
        return

    assert train.main(["--resume", str(run)]) == 2
    assert re.search(message, capsys.readouterr().err)


# ---------------------------------------------------------------------------------------------------- two workers

TWO = (
    *("--dataset", "4000", "--batch", "10", "--widths", "8-16-32", "--epochs", "2", *MOVING[:6]),
    *("--warmup-steps", "5", "--steady", "declared"),
)
TWO_LAST = 2 * 150


@pytest.fixture(scope="module")
def two_whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("two") / "run"
    done = subprocess.run(
        start_line("mpirun", *TWO, "--out", str(out)), capture_output=True, text=True, timeout=180, env=environ()
    )
    assert done.returncode == 0, done.stderr
    return what_happened(out)


def environ() -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def start_line(launcher: str, *options: str) -> list[str]:
    line = [str(part).format(workers=2) for part in LAUNCHERS[launcher]]
    return [*line, "-m", "horovod_study.train", *options]


def interrupt_at(launcher: str, out: Path, step: int, *options: str, kill: str) -> int:
    """Start two workers and end them as `kill` says once `step` is written; return the launcher's exit code."""
    slowed = {
        **environ(),
        # Steps of more than 20 ms, a run of some seconds: it can be caught.
        "HOROVOD_CYCLE_TIME": "20",
        "HOROVOD_IDLE_CYCLE_TIME": "0",
        # mpirun waits so many seconds before it passes SIGTERM on, and again before SIGKILL; 1 by default.
        "OMPI_MCA_odls_base_sigkill_timeout": "3",
    }
    process = subprocess.Popen(
        start_line(launcher, *TWO, *options, "--out", str(out)),
        env=slowed,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    pids: list[int] = []
    try:
        until(
            (out / "checkpoints" / f"step-{step:09d}.pt").exists,
            f"step {step} with {launcher}",
            alive=lambda: process.poll() is None,
        )
        pids = [rank["pid"] for rank in read_run(out).effective["ranks"]]
        name, _, to = kill.partition(" to ")
        for pid in {"all": pids, "rank 1": pids[1:], "the launcher": [process.pid]}[to]:
            os.kill(pid, getattr(signal, name))
        code = process.wait(timeout=PATIENCE_S)
        psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=120)
    finally:
        for pid in pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
            process.wait()
    return code


@pytest.mark.horovod
def test_two_workers_killed_at_a_random_step_go_on_as_if_they_had_not(
    launch: Launch, tmp_path: Path, two_whole: dict[str, Any]
) -> None:
    seed = int.from_bytes(os.urandom(4))
    every = random.Random(seed).randrange(5, 60)
    step = every * random.Random(seed).randrange(1, (TWO_LAST - 100) // every)
    print(f"seed {seed}: checkpoints every {every} steps, killed after the one at step {step}")
    out = tmp_path / "run"
    interrupt_at("horovodrun --mpi", out, step, "--checkpoint-every", str(every), kill="SIGKILL to all")
    assert read_run(out).state() == "incomplete"
    assert decode(read_newest(out), "").step >= step
    done = launch("horovodrun --mpi", 2, "--resume", str(out))

    assert done.returncode == 0, done.stderr
    assert what_happened(out) == two_whole
    assert [each["status"] for each in read_run(out).attempts] == ["incomplete", "done"]


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("launcher", "kill", "exit_code", "name"),
    [
        ("mpirun", "SIGUSR1 to the launcher", 75, "SIGUSR1"),
        ("mpirun", "SIGTERM to the launcher", 1, "SIGTERM"),  # a mpirun that was told to end answers 1
        ("horovodrun --gloo", "SIGTERM to rank 1", 75, "SIGTERM"),
    ],
)
def test_two_workers_stopped_by_a_signal_go_on_as_if_they_had_not(
    launch: Launch,
    tmp_path: Path,
    two_whole: dict[str, Any],
    launcher: str,
    kill: str,
    exit_code: int,
    name: str,
) -> None:
    out = tmp_path / "run"
    code = interrupt_at(launcher, out, 20, "--checkpoint-every", "20", kill=kill)
    record = read_run(out)

    assert (record.status, code) == ("stopped", exit_code), record.reason
    assert re.fullmatch(rf"stopped by {name} after step \d+", record.reason)
    assert decode(read_newest(out), "").step >= 20
    done = launch(launcher, 2, "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert what_happened(out) == two_whole


# ------------------------------------------------------------------------------------------ one holder at a time


def test_of_two_that_resume_at_once_one_trains(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    argv = [sys.executable, "-m", "horovod_study.train", "--resume", str(out), "--epochs", "6"]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]

    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]), said
    if codes == [0, 0]:  # one began when the other had ended: there was nothing left to train
        assert any("is finished" in text for text in said), said
    epochs = [row.split(",")[0] for row in (out / "epochs.csv").read_text().splitlines()[1:]]
    assert len(epochs) == len(set(epochs)), "no row twice"
    assert len(read_run(out).attempts) == 2


def test_who_resumes_while_another_holds_the_run_is_told_who(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    before = (out / "run.json").read_bytes()
    with lease.hold_run(out):
        assert train.main(["--resume", str(out), "--epochs", "6"]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert str(out) in line
    assert (out / "run.json").read_bytes() == before
    assert train.main(["--resume", str(out), "--epochs", "3"]) == 0, "and then it is free"
    assert lease.holder_of_run(out) is None


def test_who_planned_before_another_one_went_on_is_refused(finished: Path, tmp_path: Path) -> None:
    """Between its plan and its claim somebody else has begun and ended."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    hold = lease.hold_run

    def late(directory: Path) -> lease.Lease:
        record = read_run(directory)
        records.finish_run(directory, record, status="stopped", finished="2026-01-01T00:00:00+00:00", totals={})
        return hold(directory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "hold_run", late)
        assert train.main(["--resume", str(out), "--epochs", "6"]) == 2
    assert read_run(out).status == "stopped"
    assert len(read_run(out).attempts) == 1


def test_a_start_in_a_directory_that_somebody_else_holds_is_refused(tmp_path: Path) -> None:
    with lease.hold_run(tmp_path / "run"):
        assert train.main([*SMALL, "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run" / "run.json").exists()


def test_again_keeps_a_failed_start_aside_and_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        crash_after(patch, 0)
        train.main([*SMALL, "--out", str(out)])
    before = (out / "run.json").read_bytes()

    assert train.main([*SMALL, "--out", str(out)]) == 2
    assert "--again" in capsys.readouterr().err
    assert (out / "run.json").read_bytes() == before
    assert train.main([*SMALL, "--out", str(out), "--again"]) == 0
    assert read_run(out).status == "done"
    assert (tmp_path / ".attempts" / "run-1" / "run.json").read_bytes() == before
    assert list(records.run_directories(tmp_path)) == [out]
    assert lease.holder_of_run(out) is None and lease.holder_of_run(tmp_path / ".attempts" / "run-1") is None


def test_again_never_moves_a_run_that_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train.main([*SMALL, "--out", str(out)]) == 0
    with lease.hold_run(out):
        assert train.main([*SMALL, "--out", str(out), "--again"]) == 2
    assert not (tmp_path / ".attempts").exists() or not any((tmp_path / ".attempts").iterdir())
    assert read_run(out).status == "done"


@pytest.mark.parametrize("options", [["--again"], ["--again", "--resume", "run"]])
def test_again_needs_a_directory(options: list[str]) -> None:
    assert train.main([*SMALL, *options]) == 2
