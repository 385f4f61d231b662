"""A rank that stalls, dies, or computes nonsense is named, and the run ends in bounded time with no process left."""

import math
import os
import re
import shutil
import signal
import socket
import subprocess
import textwrap
import threading
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
from horovod_study.analysis.study import analyze
from horovod_study.cluster.reason import failure_reason
from horovod_study.comm import liveness
from horovod_study.comm.liveness import MissingRanks, State, find_late, is_lost_peer
from horovod_study.measure.clock import LapClock
from horovod_study.measure.recorder import Recorder
from horovod_study.workload import dataset

# ---------------------------------------------------------------------------------------------- who is late


def at(rank: int, calls: int, **known: Any) -> State:
    return State(rank=rank, calls=calls, **known)


ME = at(0, 10, waiting=True, still_s=60.0)


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [
        # nothing is wrong
        (at(0, 10, waiting=True, still_s=59.0), [at(1, 9, still_s=59.0)], None),
        (ME, [at(1, 9, still_s=59.0)], None),  # it moved a second ago
        (ME, [at(1, 9, still_s=61.0, patience=10.0)], None),  # it evaluates, or writes a checkpoint
        (ME, [at(1, 9, still_s=1e6, patience=math.inf)], None),  # it makes the data set
        (at(0, 9, still_s=100.0), [at(1, 10, waiting=True, still_s=99.0)], None),  # this rank is the late one
        (at(0, 9, still_s=100.0), [at(1, 9, still_s=99.0)], None),  # all compute
        (ME, [at(1, 10, waiting=True, still_s=60.0)], None),  # all have come: a slow network gets more time
        (at(0, 10, still_s=59.0), [at(1, 9, ended=True, gone=True)], None),  # it has said itself why it ends
        # somebody is late
        (ME, [at(1, 9, still_s=61.0)], MissingRanks(ranks=(1,), how="computes")),
        (ME, [at(1, 9, still_s=601.0, patience=10.0)], MissingRanks(ranks=(1,), how="computes")),
        (ME, [at(1, 9, still_s=61.0, waiting=True)], MissingRanks(ranks=(1,), how="elsewhere")),
        (ME, [at(1, 10, waiting=True), at(2, 9, still_s=61.0)], MissingRanks(ranks=(2,), how="computes")),
        # the last one holds up the others that are late too
        (ME, [at(1, 8, still_s=61.0), at(2, 9, waiting=True, still_s=61.0)], MissingRanks(ranks=(1,), how="computes")),
        # a silent one before all that wait, however far it was when it was heard last
        (ME, [at(1, 9, still_s=61.0), at(2, 10, silent_s=58.0)], MissingRanks(ranks=(2,), how="silent")),
        (at(0, 10, still_s=60.0), [at(1, 10, silent_s=58.0)], MissingRanks(ranks=(1,), how="silent")),  # not in a call
        (ME, [at(1, 10, silent_s=29.0, waiting=True)], None),
        # a process that has ended is known without waiting for the whole timeout, but launchers come first
        (at(0, 10, still_s=4.0), [at(1, 9, gone=True)], None),
        (at(0, 10, still_s=5.0), [at(1, 9, gone=True), at(2, 8)], MissingRanks(ranks=(1,), how="died")),
        (
            ME,
            [at(1, 9, gone=True, ended=True), at(2, 10)],
            MissingRanks(ranks=(1,), how="ended"),
        ),  # and no launcher acts
        (ME, [at(1, 9, ended=True), at(2, 10, silent_s=58.0)], MissingRanks(ranks=(2,), how="silent")),
        # all have come, and nothing moves
        (
            at(0, 10, waiting=True, still_s=120.0),
            [at(1, 10, waiting=True, still_s=121.0)],
            MissingRanks(ranks=(), how="stuck"),
        ),
        (at(0, 10, waiting=True, still_s=120.0), [at(1, 10, still_s=121.0)], None),
    ],
)
def test_who_holds_up_the_others(mine: State, others: list[State], expected: MissingRanks | None) -> None:
    assert expected == find_late(mine, others, 60.0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[../third_party/gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"), True),
        (RuntimeError("[gloo/pair.cc:50] Read error [127.0.0.1]:1234: Connection reset by peer"), True),
        (type("HorovodInternalError", (RuntimeError,), {})("Horovod has been shut down."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_errors_of_a_lost_rank_are_told_from_bugs(error: BaseException, expected: bool) -> None:
    assert expected is is_lost_peer(error)


NAMED = "rank 1 on h (pid 7) has died or left during step 1,234; look for its last lines above"
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
        (f"error: {NAMED}\nsrun: error: n1: task 1: Killed\n", f"{NAMED} (it was killed by SIGKILL)"),
        (
            "srun: error: Unable to create step for job 3: Job has ended\n",
            "Unable to create step for job 3: Job has ended",
        ),
    ],
)
def test_the_line_that_names_a_rank_is_the_reason_unless_that_rank_gave_its_own(log: str, expected: str) -> None:
    assert expected == failure_reason(log, 1)


# --------------------------------------------------------------------------------------------- the side channel


def closed(watch: liveness.Liveness) -> None:
    """End the watch, and return when its thread has closed its socket."""
    watch.close()
    for thread in threading.enumerate():
        if thread.name == "liveness":
            thread.join(PATIENCE_S)


class Told:
    """Rank 0 of two, told by the test what rank 1 says of itself."""

    rank, workers = 0, 2

    def __init__(self, *others: Any) -> None:
        self._others = list(others)
        self.called: list[str] = []

    def gather(self, value: Any) -> list[Any]:
        return [value, self._others.pop(0)]

    def exchange(self) -> str:
        self.called.append("exchange")
        return "done"

    bind = barrier = sum = maximum = gather


def test_a_rank_that_cannot_be_reached_is_not_watched_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(*arguments: Any) -> Any:
        raise OSError("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(liveness, "REACH_S", 0.5)
    monkeypatch.setattr(liveness, "WAKE_S", 0.1)
    backend = Told("faraway", [77, None, 4711, "token"])
    watch = liveness.Liveness(backend, 0.1)  # type: ignore[arg-type]
    said: list[str] = []
    until(lambda: said.append(capsys.readouterr().err) or "".join(said), "it is said")
    here = os.uname().nodename

    assert (
        f"note: rank 1 on faraway (pid 77) cannot be reached from {here} (UDP port 4711): a rank that stalls will not "
        "be named\n" == "".join(said)
    )
    lost = RuntimeError("Connection closed by peer")
    assert lost is watch.explain(lost)
    closed(watch)


def test_collective_calls_are_counted_and_nested_ones_too() -> None:
    backend = Told("faraway", [77, None, 4711, "token"])
    watch = liveness.Liveness(backend, 60.0)  # type: ignore[arg-type]
    seen: list[tuple[int, bool]] = []
    backend._others = [None]
    whole = backend.exchange

    def outer() -> str:
        seen.append((watch.calls, watch.waiting))
        whole()
        seen.append((watch.calls, watch.waiting))
        return "done"

    backend.outer = outer  # type: ignore[attr-defined]
    watch.watch(backend, "outer")

    assert (0, False) == (watch.calls, watch.waiting)
    assert "done" == backend.outer()  # type: ignore[attr-defined]
    assert [(1, True), (2, True)] == seen
    assert (2, False) == (watch.calls, watch.waiting)
    closed(watch)


def test_a_worker_alone_has_nobody_to_watch() -> None:
    class Alone(Told):
        workers = 1

    backend = Alone()
    watch = liveness.Liveness(backend, 0.1)  # type: ignore[arg-type]
    backend.exchange()

    assert 0 == watch.calls
    error = RuntimeError("Connection closed by peer")
    assert error is watch.explain(error)
    closed(watch)


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


@pytest.mark.horovod
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_stopped_rank_is_named_and_ended(start: Any, tmp_path: Path, launcher: str) -> None:
    out = tmp_path / "run"
    run = start(launcher, "--seconds", "300", "--stall-timeout-s", "10")
    run.until(out, 5)
    run.ranks[1].suspend()

    assert run.ended() != 0, "and within a minute"
    (said,) = run.errors()
    pid = run.ranks[1].pid
    assert re.search(
        rf"rank 1 on \S+ \(pid {pid}\) has not come to the \w+ of step \d+ for \d+ s: it is stopped; look at this "
        rf"process and its host; the run ends, and so is pid {pid}$",
        said,
    )
    record = records.read_run(out)
    assert ("failed", said) == (record.status, record.reason)
    assert said == failure_reason(run.text(), 1)


@pytest.mark.horovod
@pytest.mark.parametrize(("launcher", "rank"), [("horovodrun --gloo", 0), ("torchrun", 1)])
def test_a_killed_rank_is_named_by_the_other(start: Any, tmp_path: Path, launcher: str, rank: int) -> None:
    out = tmp_path / "run"
    run = start(launcher, "--seconds", "300")
    run.until(out, 5)
    os.kill(run.ranks[rank].pid, signal.SIGKILL)

    assert run.ended() != 0
    (said,) = run.errors()
    pid = run.ranks[rank].pid
    assert re.search(rf"rank {rank} on \S+ \(pid {pid}\) has died or left during step \d+; look for its last", said)
    record = records.read_run(out)
    assert ("failed", said) == (record.status, record.reason)
    assert f"{said} (it was killed by SIGKILL)" == failure_reason(run.text(), 1)
    assert "HorovodInternalError" not in run.text()


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize(("launcher", "rank"), [("mpirun", 0), ("torchrun", 1)])
def test_a_killed_rank_takes_nothing_from_the_rows_of_the_others_and_nothing_from_the_study(
    start: Any, tmp_path: Path, launcher: str, rank: int
) -> None:
    out = tmp_path / "run"
    run = start(launcher, "--seconds", "300")
    run.until(out, 30)
    there = [_rows(out, each) for each in (0, 1)]
    os.kill(run.ranks[rank].pid, signal.SIGKILL)
    run.ended()
    shutil.copytree(Path(__file__).parent / "runs" / "schema-3", tmp_path / "whole")
    record = records.read_run(out)

    assert record.state() in ("failed", "incomplete")
    assert record.state() == "incomplete" or f"rank {rank} on" in record.reason
    for each in (0, 1):
        rows = records.read_steps(out, each)
        assert rows.num_rows >= there[each], "what was written before is there"
        assert np.array_equal(rows.column("step").to_numpy(), np.arange(rows.num_rows))
        assert rows.column("step_s").null_count == 0
    table = records.run_table(tmp_path)
    assert dict(zip(table["run"], table["status"], strict=True)) == {"run": record.state(), "whole": "done"}
    study = analyze(table)
    assert study.provenance["runs"] == {"total": 2, "done": 1, record.state(): 1}
    assert [(each["run"], each["status"]) for each in study.provenance["failed"]] == [("run", record.state())]
    assert study.points["repeats"].sum() == 1, "and the points are those of the run that is whole"


def patched(tmp_path: Path, text: str) -> tuple[str, ...]:
    """Write a program that changes the trainer and runs it."""
    program = tmp_path / "patched.py"
    program.write_text(
        "import os, sys, time\nimport torch\n"
        "from horovod_study import train\nfrom horovod_study.workload import trainer\n"
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
def test_a_rank_that_computes_too_long_is_named(start: Any, tmp_path: Path) -> None:
    program = patched(
        tmp_path,
        """
        whole, steps = torch.nn.functional.mse_loss, [0]

        def loss_of(prediction, targets):
            if steps[0] == 7 and rank == 1:
                time.sleep(300.0)
            steps[0] += 1
            return whole(prediction, targets)

        torch.nn.functional.mse_loss = loss_of
        """,
    )
    run = start("mpirun", "--steps", "60", "--backend", "mpi", "--stall-timeout-s", "2", program=program)

    assert run.ended() == 2
    (said,) = run.errors()
    assert re.search(
        r"rank 1 on \S+ \(pid \d+\) has not come to the synchronisation of step 7 for \d+ s: it still computes; "
        r"look at what it does, or raise --stall-timeout-s if it may take so long; the run ends$",
        said,
    )


@pytest.mark.horovod
def test_a_rank_that_fails_by_itself_speaks_for_itself(start: Any, tmp_path: Path) -> None:
    """The others lose their connections, and say nothing of it."""
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

    assert run.ended() == 1
    assert [] == run.errors()
    assert "KeyError: 'a bug' (exit code 1)" == failure_reason(run.text(), 1)
    assert 1 == run.text().count("Traceback")


@pytest.mark.parametrize(("name", "expected"), [("orted", -signal.SIGTERM), ("mpirun", None)])
def test_behind_a_cut_link_open_mpis_daemon_is_ended_and_nothing_else(
    tmp_path: Path, name: str, expected: int | None
) -> None:
    program = shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / name)
    with subprocess.Popen([program, "60"]) as daemon:
        while (Path("/proc") / str(daemon.pid) / "comm").read_text().strip() != name:
            time.sleep(0.01)

        liveness._end_daemon(daemon.pid)

        if expected is None:
            time.sleep(0.2)
            assert daemon.poll() is None
            daemon.kill()
        else:
            assert daemon.wait(PATIENCE_S) == expected
