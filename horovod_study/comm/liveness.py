"""Ends a rank that waits too long for another one, and names that one where somebody knows it.

A rank that waits in a collective is inside a library and cannot be interrupted. MPI has no time-out, and those of the
others know neither of evaluations and checkpoints nor of the time in which the whole job was stopped. So each rank has
one thread that looks once a second whether its training still waits in the same call. Who is missing is asked of the
system, for the ranks of this host; of Gloo's `monitored_barrier`; and of Horovod's stall inspector, whose words stand
in the log (studies/attempt.py reads them there).

SIGTERM and SIGUSR1 may reach one rank, all of them, or all of them twice (from the launcher and from the batch system).
A rank that simply ended would leave the others waiting. So during training a signal is only remembered; the loop asks
about four times a second whether any rank has one, and then all stop together at the same step.
"""

import faulthandler
import os
import re
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from horovod_study.cluster import alive
from horovod_study.comm.launch import Launch
from horovod_study.errors import BackendError, StudyError, first_line
from horovod_study.measure.clock import now, sleep
from horovod_study.text.progress import say
from horovod_study.text.words import cut

PATIENCE = 10.0
"""Between the stretches of steps (evaluation, checkpoint, preparation) a rank may take this many times the timeout."""
UNNAMED = "does not say which rank is missing"
_WAKE_S, _GRACE_S = 1.0, 3.0  # between two looks; before a rank speaks that is not the first to do so
_LOST = re.compile(
    r"HorovodInternalError|Horovod has been shut down|(?:closed|reset) by peer|Broken pipe|Connection closed"
    r"|Connection refused|Socket closed|Timed out waiting|Application timeout caused|ncclRemoteError|ncclInternalError"
    r"|MPI_ERR_PROC_FAILED"
)
_NAMING = re.compile(  # how torch's monitored_barrier and Horovod's stall inspector name ranks
    r"Ranks ([\d, ]+) failed to pass monitoredBarrier|^Missing ranks:\n((?:\d+!?: \[.*\n?)+)", re.M
)


def named_ranks(text: str) -> list[int]:
    """Return the ranks that a library names as missing, its last word counting; none where it names none."""
    found = _NAMING.findall(text)
    return [int(rank) for rank in re.findall(r"(?:^|, )(\d+)(?=!?:|,|$)", "".join(found[-1]), re.M)] if found else []


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error of a communication library says no more than that another rank is not there."""
    return isinstance(error, Exception) and bool(_LOST.search(f"{type(error).__name__}: {error}"))


class Liveness:
    """Watches the start of this rank, and from `follow` on its training, which writes `step` and `patience`."""

    def __init__(self, start_timeout_s: float, launch: Launch) -> None:
        self.step, self.patience = 0, 1.0
        self.fail: Callable[[str], None] = lambda reason: None  # writes the reason into the record
        self._launch, self._timeout_s = launch, start_timeout_s
        self._backend: Any = None
        self._call = ["start"]  # the collective call that this rank is in, another list for each; empty: in none
        self._names = list[str]()  # of all ranks
        self._here = dict[int, tuple[int, int | None]]()  # process and begin of the other ranks seen from here
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="liveness").start()

    def follow(self, backend: Any, timeout_s: float) -> None:
        """All have arrived: watch the collective calls of `backend` from now on. Collective."""
        self._call, self._timeout_s, self.patience = [], timeout_s, PATIENCE
        if backend.workers == 1:
            return self.close()
        host, self._backend = os.uname().nodename, backend
        for rank, (where, pid, began) in enumerate(backend.gather((host, os.getpid(), alive.began(os.getpid())))):
            self._names.append(f"rank {rank} on {where} (pid {pid})")
            # Equal names may belong to two containers: here is who can be seen from here.
            if rank != backend.rank and where == host and alive.runs(pid, began):
                self._here[rank] = (pid, began)
        for name in ("bind", "exchange", "gather", "barrier", "sum", "maximum"):
            self.watch(backend, name)

    def watch(self, owner: object, name: str) -> None:
        """Note when this rank is inside a collective method of `owner`."""
        call = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            outer, self._call = self._call, [name]
            try:
                return call(*arguments, **named)
            finally:
                self._call = outer

        setattr(owner, name, noted)

    def close(self) -> None:
        """End the watch: ranks may leave one after the other."""
        self._closed.set()

    def explain(self, error: BaseException) -> BaseException:
        """Return what to raise in place of `error`, where that says only that another rank is gone. Takes up to 5 s.

        A signal of the launcher, which has noticed too, is not followed any more.
        """
        if self._backend is None or not is_lost_peer(error):
            return error
        with suppress(ValueError):  # not in the main thread, where no signal arrives anyway
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        until_s = now() + _GRACE_S
        while not (lost := self._seen()) and now() < until_s:
            sleep(0.05)
        if not lost and len(self._here) + 1 == len(self._names):
            return error  # all are there: not for one line
        if not lost and self._backend.rank > 0:
            sleep(2.0)
        what = f"lost a connection ({cut(first_line(error), 60)})"
        return LostPeer(self._reason(lost, what), speaks=self._speaks(lost))

    def _watch(self) -> None:
        call, waited_s, woken_s = self._call, 0.0, now()
        while not self._closed.wait(min(_WAKE_S, self._timeout_s / 4)):
            gap_s, woken_s = now() - woken_s, now()
            waited_s += min(gap_s, 2 * _WAKE_S)  # a job that was stopped as a whole has not waited meanwhile
            if not self._call or self._call is not call:
                call, waited_s = self._call, 0.0
            if waited_s < self._timeout_s:
                continue
            if self._backend is None:
                launch = self._launch
                at = os.environ.get("MASTER_ADDR") if launch.launcher in ("mpirun", "srun") else ""
                where = f" (at {at}:{os.environ.get('MASTER_PORT')})" if at else ""
                self._end(
                    f"rank {launch.rank} of {launch.workers} waited {self._timeout_s:g} s for the other ranks to "
                    f"start{where}; start all ranks with the same options, or raise --start-timeout-s"
                )
            if not (lost := self._seen()) and waited_s < self._timeout_s * self.patience:
                continue
            lost = lost or named_ranks(self._backend.find_missing(_GRACE_S))
            if not self._speaks(lost) or (not lost and self._backend.rank > 0):
                sleep(_GRACE_S)
            if self._call is call and not self._closed.is_set():
                what = f"has waited {waited_s:.0f} s for others in step {self.step:,} ({call[0]})"
                self._end(self._reason(lost, what))

    def _end(self, reason: str) -> NoReturn:
        """Say why and end this process: its training cannot be interrupted. A stopped one is ended by no launcher."""
        say(f"error: {reason}")
        faulthandler.dump_traceback_later(5.0, exit=True)  # a file system that does not answer may be what all wait for
        self.fail(reason)
        for pid, began in self._here.values():
            if alive.is_stopped(pid) and alive.runs(pid, began):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):  # behind a cut link no mpirun tells Open MPI's daemon to end
            if Path(f"/proc/{os.getppid()}/comm").read_text().strip() == "orted":
                os.kill(os.getppid(), signal.SIGTERM)
        os._exit(2)

    def _seen(self) -> list[int]:
        """Return the ranks of this host that have ended, or are stopped where none has."""
        gone = [rank for rank, (pid, began) in self._here.items() if not alive.runs(pid, began)]
        return gone or [rank for rank, (pid, _) in self._here.items() if alive.is_stopped(pid)]

    def _speaks(self, lost: Collection[int]) -> bool:
        """Return whether this rank is the first that is not lost; all are where nobody knows who is."""
        return not lost or self._backend.rank == min(set(range(len(self._names))) - set(lost))

    def _reason(self, lost: Collection[int], what: str) -> str:
        """Return in one line who is lost, or `what` happened to this rank where nobody knows who is."""
        backend, how = self._backend, "not come to the end of"
        advice = "look at its last lines and its host, or raise --stall-timeout-s"
        if not lost:
            others = "look at the last lines of the others, or raise --stall-timeout-s"
            return f"{self._names[backend.rank]} {what}, and {backend.name}/{backend.transport} {UNNAMED}; {others}"
        here = [self._here[rank] for rank in lost if rank in self._here]
        if not all(alive.runs(*each) for each in here):
            how, advice = "died or left during", "look for its last lines, or for lack of memory in the system's log"
        elif any(alive.is_stopped(pid) for pid, _ in here):
            how, advice = "been stopped during", "look for what sent it a signal (SIGSTOP); it is ended with the run"
        names = ", ".join([self._names[rank] for rank in lost][:3]) + f" and {len(lost) - 3} more" * (len(lost) > 3)
        return f"{names} {'has' if len(lost) == 1 else 'have'} {how} step {self.step:,}; {advice}"


_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
STOPPED_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: not done yet, try again; what a stopped run that can be resumed exits with."""


class Terminated(StudyError):
    """A signal that ends the run at once: before it trains, or without a checkpoint."""


class Stopped(StudyError):
    """The run has stopped at a signal, its checkpoint is written, and it can be resumed."""

    def __init__(self, message: str, totals: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.totals = totals  # what is known of the run by then, for its record


class LostPeer(BackendError):
    """Another rank is gone, and this one cannot go on. `speaks`: this rank is the one to say so."""

    def __init__(self, message: str, *, speaks: bool) -> None:
        super().__init__(message)
        self.speaks = speaks


class StopRequest:
    """Receives the signals of this process, once it listens; made once."""

    def __init__(self) -> None:
        self.number = 0  # the signal that was received while deferring, 0: none
        self._deferring = False
        self._since_s = 0.0

    def listen(self) -> None:
        """Receive signals from now on, ending at once; only the main thread can do this."""
        for number in _SIGNALS:
            signal.signal(number, self._receive)

    def defer(self) -> None:
        """Remember signals from now on, instead of ending at once."""
        self._deferring = True

    def over(self) -> None:
        """Ignore signals from now on: everything is written, and the process ends by itself."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self.number != 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A second signal so soon is the first one on another way: launchers pass on what the batch system sends to all.
        if not self._deferring or (self.requested and now() - self._since_s > 1.0):
            raise Terminated(f"ended by signal {number} ({signal_name(number)}); start it again")
        if not self.requested:
            self.number, self._since_s = number, now()


def signal_name(number: int) -> str:
    """Return e.g. SIGTERM."""
    return signal.Signals(number).name
