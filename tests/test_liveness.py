"""A rank that stalls, dies, or computes nonsense is named, and the run ends in bounded time with no process left."""

import math
import os
import re
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from conftest import BIN, LAUNCHERS
from make.waiting import PATIENCE_S, until

from horovod_study import records
from horovod_study.comm.launch import Launch
from horovod_study.comm.liveness import Liveness, is_lost_peer, named_ranks
from horovod_study.measure.clock import LapClock
from horovod_study.measure.recorder import Recorder
from horovod_study.strain import dataset
from horovod_study.studies.attempt import failure_reason

# --------------------------------------------------------------------------------- what the libraries print

TORCH = "[Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 3000 ms"
AT_RANK_0 = (
    "Rank 1 reached monitoredBarrier, but received errors from rank 0. Please check rank 0 logs for faulty rank."
)
HOROVOD = "... for more than 1 seconds. \nMissing ranks:\n1: [allreduce.a, allreduce.b ...]\n3!: [maximum]\nsteps: 7"
GLOO = "[../third_party/gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [(TORCH, [1, 12]), (AT_RANK_0, []), (HOROVOD, [1, 3]), (f"{HOROVOD}\n{TORCH}", [1, 12]), (GLOO, [])],
)
def test_a_rank_is_named_where_the_library_names_it(text: str, ranks: list[int]) -> None:
    assert named_ranks(text) == ranks


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(GLOO), True),
        (RuntimeError("[gloo/pair.cc:50] Read error [127.0.0.1]:1234: Connection reset by peer"), True),
        (type("HorovodInternalError", (RuntimeError,), {})("Horovod has been shut down."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_a_lost_rank_are_told_from_bugs(error: BaseException, expected: bool) -> None:
    assert expected is is_lost_peer(error)


NAMED = "rank 1 on h (pid 7) has died or left during step 1,234; look for its last lines above"
UNNAMED = (
    "rank 0 on h (pid 6) has waited 9 s for others in step 7 (sum), and mpi/mpi does not say which rank is missing; x"
)
SSH = "rank 1 was killed on its host, or the connection to it broke (exit code 255 of ssh)"
TRACE = "[0]<stderr>:Traceback (most recent call last):\n[0]<stderr>:  File\n[0]<stderr>:"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (f"{TRACE}HorovodInternalError: closed by peer\n[2]<stderr>:error: {NAMED}\n", NAMED),
        (
            f"[0]<stderr>:error: {NAMED}\nProcess 1 exit with status code 137.\n",
            f"{NAMED} (it was killed by SIGKILL)",
        ),
        (f"[0]<stderr>:error: {NAMED}\n[1]<stderr>:error: disk full; free space\n", "disk full; free space"),
        (f"[0]<stderr>:error: {NAMED}\n{TRACE}KeyError: 3\n", "KeyError: 3 (exit code 1)"),
        (  # how srun says that tasks ended is not why they did
            "Traceback (most recent call last):\n  File\nKeyError: 3\nsrun: error: n1: task 0: Exited with exit code 1",
            "KeyError: 3 (exit code 1)",
        ),
        (
            "epoch 1\nslurmstepd-n1: error: *** STEP 2.1 ON n1 CANCELLED AT 2026-01-01T10:00:00 ***\n"
            "srun: error: n2: task 2: Killed\nsrun: error: n1: tasks 0-1: Killed\n",
            "rank 2 was killed by SIGKILL",
        ),
        (f"error: {UNNAMED}\n", UNNAMED),
        (f"error: {UNNAMED}\nmpirun noticed that process rank 1 exited on signal 9\n", "rank 1 was killed by SIGKILL"),
        (
            f"error: {UNNAMED}\nTerminating remaining workers after failure of Process 1.\n"
            "Process 1 exit with status code 255.",
            SSH,
        ),
        (f"{HOROVOD}\nerror: {UNNAMED}\n", f"rank 1, 3 is missing, as the library has printed: {UNNAMED}"),
        (f"[rank0]:[E1 gloo] {TORCH}\nerror: disk full; free space\n", "disk full; free space"),
        (f"error: {NAMED}\nsrun: error: n1: task 1: Killed\n", f"{NAMED} (it was killed by SIGKILL)"),
        (
            "srun: error: Unable to create step for job 3: Job has ended\n",
            "Unable to create step for job 3: Job has ended",
        ),
    ],
)
def test_the_line_that_names_a_rank_is_the_reason_unless_that_rank_gave_its_own(log: str, expected: str) -> None:
    assert expected == failure_reason(log, 1)


# ------------------------------------------------------------------------------------------- the watch


class Waiting:
    """Rank 0 of two, whose exchange takes as long as it is told to; the library says `text` of who is missing."""

    name, transport, rank, workers = "mpi", "mpi", 0, 2

    def __init__(self, text: str) -> None:
        self._text = text

    def gather(self, value: Any) -> list[Any]:
        return [value, ("faraway", 77, None)]

    def exchange(self, seconds: float) -> None:
        time.sleep(seconds)

    def find_missing(self, timeout_s: float) -> str:
        return self._text

    bind = barrier = sum = maximum = gather


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ranks have said at their end, which they do not come to here."""
    reasons: list[str] = []

    def end(self: Liveness, reason: str) -> None:
        reasons.append(reason)
        self.close()

    monkeypatch.setattr(Liveness, "_end", end)
    return reasons


def watched(
    text: str = "", *, patience: float = 1.0, calls: tuple[float, ...] = (1.5,), alone_s: float = 0.0
) -> Liveness:
    """Return what watched a rank with a timeout of 0.4 s that made calls of so many seconds and computed for others."""
    backend: Any = Waiting(text)
    liveness = Liveness(60.0, Launch(launcher="mpirun", rank=0, workers=2, backend="mpi"))
    liveness.follow(backend, 0.4)
    liveness.step, liveness.patience = 7, patience
    for seconds in calls:
        backend.exchange(seconds)
    time.sleep(alone_s)
    liveness.close()
    return liveness


def test_a_rank_that_waits_too_long_says_for_whom_or_that_nobody_says(said: list[str]) -> None:
    watched("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms")
    watched()
    named, unnamed = said

    assert named.startswith("rank 1 on faraway (pid 77) has not come to the end of step 7; look at its last lines")
    assert re.match(
        r"rank 0 on \S+ \(pid \d+\) has waited \d s for others in step 7 \(exchange\), and mpi/mpi", unnamed
    )
    assert "does not say which rank is missing" in unnamed


def test_who_moves_evaluates_or_computes_alone_is_not_ended(said: list[str]) -> None:
    watched(calls=(0.3,) * 5)
    watched(patience=10.0)
    liveness = watched(calls=(), alone_s=1.5)

    assert said == []
    assert liveness.explain(error := RuntimeError("a bug")) is error


def test_the_time_in_which_the_whole_job_was_stopped_is_no_wait(tmp_path: Path) -> None:
    program = (
        "import os, time\nimport test_liveness as t\nfrom horovod_study.comm.liveness import Liveness\n"
        "b = t.Waiting('')\nw = Liveness(60, None)\nw.follow(b, 6.0)\nw.patience = 1.0\nprint(1, flush=True)\n"
        "b.exchange(12)"
    )
    with subprocess.Popen([BIN / "python", "-c", program], cwd=Path(__file__).parent, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None and job.stdout.readline()
        time.sleep(2.5)  # it has been seen to wait
        os.kill(job.pid, signal.SIGSTOP)
        time.sleep(8.0)
        os.kill(job.pid, signal.SIGCONT)
        assert job.wait(PATIENCE_S) == 0


# ------------------------------------------------------------------------------------- losses that are no number


class Rows:
    """Takes what a recorder writes."""

    def append(self, columns: dict[str, Any]) -> None:
        pass


def recorded(losses: list[float], norms2: list[float] | None, drain_every: int) -> Recorder:
    clock, recorder = LapClock(), Recorder(Rows(), 1)  # type: ignore[arg-type]
    clock.start()
    for step, loss in enumerate(losses):
        clock.begin()
        for lap in ("data", "forward", "backward", "sync", "update"):
            clock.lap(lap)
        recorder.add(step, 0, torch.tensor(loss), None if norms2 is None else torch.tensor(norms2[step]))
        if (step + 1) % drain_every == 0:
            recorder.drain(clock)
    return recorder


@pytest.mark.parametrize("drain_every", [1, 2, 4])
def test_the_recorder_knows_the_first_step_that_was_not_finite(drain_every: int) -> None:
    nan = math.nan
    by_loss = recorded([0.4, 0.2, nan, nan], None, drain_every)
    by_gradient = recorded([0.4, 0.2, 0.3, nan], [1.0, 1.0, nan, nan], drain_every)
    sound = recorded([0.4, 0.2, 0.3, 0.1], [1.0] * 4, drain_every)

    assert (2, 2, None) == (by_loss.broken_step, by_gradient.broken_step, sound.broken_step)
    assert (0.3, False) == pytest.approx(by_gradient.state_at(2)[:2])
    assert (0.3, True) == pytest.approx(sound.state_at(2)[:2])
    assert math.isnan(by_loss.state_at(2)[0])
    if drain_every > 1:
        assert by_loss.state_at(2)[2] == pytest.approx(0.2)
    assert math.isnan(sound.state_at(99)[0])


def test_the_newest_loss_tells_before_anything_is_written() -> None:
    assert recorded([0.4, math.nan], None, 99).looks_broken()
    assert not recorded([0.4, 0.3], None, 99).looks_broken()


# ---------------------------------------------------------------------------------------------- real ranks

DATA = ("--dataset", "4000", "--warmup-steps", "0")


class Run:
    """Two ranks of a program under a launcher, and what was left of them in the end."""

    def __init__(self, launcher: str, program: list[str], log: Path) -> None:
        line = [str(part).format(workers=2) for part in LAUNCHERS[launcher]]
        self.log = log
        self._stream = log.open("w")
        environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([*line, *program], stdout=self._stream, stderr=self._stream, env=environment)
        self.ranks: list[psutil.Process] = []

    def until(self, out: Path, steps: int) -> None:
        """Return when both ranks have recorded so many steps."""
        until(
            lambda: all(_rows(out, rank) >= steps for rank in (0, 1)),
            f"{steps} steps of both ranks",
            alive=lambda: self.process.poll() is None,
            told=self.text,
        )
        self.ranks = [psutil.Process(rank["pid"]) for rank in records.read_run(out).effective["ranks"]]

    def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Return the exit code of the launcher; no rank may be left."""
        code = self.process.wait(timeout=timeout_s)
        _, alive = psutil.wait_procs(self.ranks, timeout=PATIENCE_S)
        assert alive == [], "no process is left"
        return code

    def text(self) -> str:
        return self.log.read_text()

    def errors(self) -> list[str]:
        return [line.split("error: ", 1)[1] for line in self.text().splitlines() if re.search(r"(^|:)error: ", line)]

    def close(self) -> None:
        for each in [
            *self.ranks,
            *(psutil.Process(self.process.pid).children(True) if self.process.poll() is None else []),
        ]:
            if each.is_running():
                each.kill()
        self.process.kill()
        self.process.wait()
        self._stream.close()


def _rows(out: Path, rank: int) -> int:
    path = out / f"steps-{rank:05d}.arrows"
    return records.read_steps(out, rank).num_rows if path.exists() and path.stat().st_size else 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Run] = []

    def begin(launcher: str, *options: str, program: tuple[str, ...] = ("-m", "horovod_study.train")) -> Run:
        started.append(Run(launcher, [*program, *DATA, "--out", str(tmp_path / "run"), *options], tmp_path / "log"))
        return started[-1]

    yield begin
    for each in started:
        each.close()


RUNTIMES = [("mpirun", "horovod"), ("horovodrun --gloo", "horovod"), ("torchrun", "ddp"), ("mpirun", "mpi")]


@pytest.mark.horovod
@pytest.mark.parametrize(("launcher", "backend"), RUNTIMES)
def test_a_stopped_rank_is_named_and_ended(start: Any, tmp_path: Path, launcher: str, backend: str) -> None:
    out, timeout_s = tmp_path / "run", 5.0
    run = start(launcher, "--backend", backend, "--seconds", "300", "--stall-timeout-s", f"{timeout_s:g}")
    run.until(out, 5)
    run.ranks[1].suspend()

    assert run.ended(timeout_s + 10.0) != 0
    (said,) = run.errors()
    assert re.match(rf"rank 1 on \S+ \(pid {run.ranks[1].pid}\) has been stopped during step \d+; look for", said)
    record = records.read_run(out)
    assert ("failed", said) == (record.status, record.reason)
    assert said == failure_reason(run.text(), 1)


@pytest.mark.horovod
@pytest.mark.parametrize(("launcher", "backend"), RUNTIMES)
def test_a_killed_rank_ends_the_run_and_takes_nothing_of_the_others(
    start: Any, tmp_path: Path, launcher: str, backend: str
) -> None:
    out = tmp_path / "run"
    run = start(launcher, "--backend", backend, "--seconds", "300")
    run.until(out, 30)
    there = [_rows(out, each) for each in (0, 1)]
    os.kill(run.ranks[1].pid, signal.SIGKILL)

    assert run.ended(10.0) != 0
    reason, record = failure_reason(run.text(), 1), records.read_run(out)
    assert reason.startswith("rank 1 ") and "killed by SIGKILL" in reason
    assert record.state() == "incomplete" or reason.startswith(record.reason)
    for each in (0, 1):
        rows = records.read_steps(out, each)
        assert rows.num_rows >= there[each], "what was written before is there"
        assert np.array_equal(rows.column("step").to_numpy(), np.arange(rows.num_rows))


def patched(tmp_path: Path, text: str) -> tuple[str, ...]:
    """Write a program that changes the trainer and runs it."""
    program = tmp_path / "patched.py"
    program.write_text(
        "import os, sys, time\nimport torch\n"
        "from horovod_study import train\nfrom horovod_study.strain import trainer\n"
        "rank = train.detect(os.environ).rank\n" + textwrap.dedent(text) + "\nsys.exit(train.main())\n"
    )
    return (str(program),)


@pytest.mark.horovod
def test_a_curve_that_is_no_number_is_named_with_rank_and_step(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "data"
    dataset.generate(path, 4000, seed=1)
    rows = dataset.Batches(3000, batch=75, rank=1, workers=2, seed=1).epoch(0)
    curve = int(rows[7, 3])
    np.load(path / dataset.CURVES, mmap_mode="r+")[curve, 1, 50] = np.nan
    run = start("horovodrun --gloo", "--dataset", str(path), "--steps", "60")

    assert run.ended() == 2
    (said,) = run.errors()
    assert re.search(
        rf"rank 1 on \S+: its loss was nan at step 7, because curve {curve:,} of {path} is not finite; make or", said
    )
    assert ("failed", said) == (records.read_run(tmp_path / "run").status, records.read_run(tmp_path / "run").reason)


@pytest.mark.horovod
@pytest.mark.parametrize("options", [("--backend", "mpi"), ("--backend", "horovod")])
def test_gradients_that_are_no_numbers_are_named_with_rank_and_step(
    start: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The loss is sound: only what rank 1 gives to the average is not, and one step later all ranks are lost."""
    program = patched(
        tmp_path,
        """
        whole, steps = torch.nn.functional.mse_loss, [0]

        def loss_of(prediction, targets):
            if steps[0] == 7 and rank == 1:
                prediction.register_hook(lambda gradient: gradient * float("nan"))
            steps[0] += 1
            return whole(prediction, targets)

        torch.nn.functional.mse_loss = loss_of
        """,
    )
    run = start("mpirun", "--steps", "60", *options, program=program)

    assert run.ended() == 2
    (said,) = run.errors()
    assert re.search(
        r"rank 1 on \S+: its gradients were not finite \(its loss 0\.\d+\) at step 7, while the other rank was "
        r"sound \(loss 0\.\d+\); look at its batch and its device, or lower --lr$",
        said,
    )


@pytest.mark.horovod
def test_a_training_that_diverges_on_all_ranks_goes_on_with_a_warning(start: Any, tmp_path: Path) -> None:
    run = start("mpirun", "--steps", "60", "--optimizer", "sgd", "--lr", "1e6")

    assert run.ended() == 0, run.text()
    assert re.search(
        r"warning: from step \d+ on the loss is not a number \((on all ranks at once|ranks? .* first)\)(, after .* at "
        r"best)?: the training diverged; lower --lr, or raise --lr-warmup-steps",
        run.text(),
    )
    assert run.text().count("the loss is not a number") == 1


@pytest.mark.horovod
def test_an_evaluation_longer_than_the_timeout_is_no_stall(start: Any, tmp_path: Path) -> None:
    program = patched(
        tmp_path,
        """
        whole = trainer.evaluate

        def slow(*arguments):
            time.sleep(4.5 * rank)
            return whole(*arguments)

        trainer.evaluate = slow
        """,
    )
    run = start("mpirun", "--steps", "20", "--backend", "mpi", "--stall-timeout-s", "2", program=program)

    assert run.ended() == 0, run.text()
    assert records.read_run(tmp_path / "run").status == "done"


@pytest.mark.horovod
def test_a_rank_that_fails_by_itself_speaks_for_itself(start: Any, tmp_path: Path) -> None:
    program = patched(
        tmp_path,
        """
        whole, steps = torch.nn.functional.mse_loss, [0]

        def loss_of(prediction, targets):
            if steps[0] == 7 and rank == 1:
                raise KeyError("a bug")
            steps[0] += 1
            return whole(prediction, targets)

        torch.nn.functional.mse_loss = loss_of
        """,
    )
    run = start("horovodrun --gloo", "--steps", "60", program=program)

    assert run.ended() != 0
    assert "KeyError: 'a bug' (exit code 1)" == failure_reason(run.text(), 1)
    assert "KeyError: 'a bug'" == records.read_run(tmp_path / "run").reason
    assert 1 == run.text().count("Traceback")
