"""SIGTERM and SIGUSR1: a request to stop that the ranks agree on, or the end at once where they cannot.

Batch systems announce the end of a job, or its pre-emption, with a signal that may reach one rank, all of them, or all
of them twice (from the launcher and from the batch system). A rank that simply ended would leave the others waiting.
So during training a signal is only remembered; the loop asks about four times a second whether any rank has one, and
then all stop together at the same step.
"""

import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

from horovod_study.errors import BackendError, StudyError
from horovod_study.measure.clock import now

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
