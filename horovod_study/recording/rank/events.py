"""What happens in a training, as events that are written as they come.

An event is a moment, and what happened, with a number: two float64 in the file of its process (with a GPU three: the
device's time comes between them). Once an update is made they are with the operating system, so that a process that
is killed leaves all of them. `recording.steps` makes step rows of them.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import deque
from typing import Any

now = time.perf_counter
wall = time.time
"""The counter that measure/clock.py reads, which is alike for all processes of a host."""

KINDS = (
    "none",
    "start",  # a loop over a loader begins; the number of its data set
    "fetch",  # a batch is asked for; the number of its loop, times DATA_SETS, and that of its data set
    "batch",  # it is there; its samples
    "ended",  # there is none any more
    "forward",  # the model is called; 1: with gradients, 2: in train mode, and 4 times its samples
    "forwarded",
    "backward",
    "gradient",  # the last own gradient of a model that averages in backward
    "backwarded",
    "update",  # an optimizer steps
    "updated",  # 1: not the first of the optimizers
    "sync",  # the script waits for other ranks; bytes times 32 and the number of the call
    "synced",
    "pause",  # for the turns of other cells
    "resume",
    "changed",  # the parameters are others than at the last turn, and no update was seen
    "opened",  # from here on all of this is seen
    "called",  # as sync, where the host does not wait for it
    "lap",  # the time since the event before it is what a script says: the place in LAPS
    "skip",  # what follows is in no step, as a script says
    "skipped",
    "left",  # a loop is gone, because it has ended or was left; its number as that of fetch
    "save",  # torch.save is called
    "saved",
)
NUMBER = {name: number for number, name in enumerate(KINDS)}
PLACES = 32
"""An event is its kind, and its number times so many."""
DATA_SETS = 1024
LAPS = ("data", "compute", "forward", "backward", "sync", "update")
CALLS = (
    *("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "scatter", "barrier", "recv"),
    *("monitored_barrier", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "all_to_all"),
    *("all_to_all_single", "wait", "wait_tensor", "synchronize", "send", "isend", "irecv", "batch_isend_irecv"),
)
"""Calls in which a script waits for other ranks: torch.distributed's, and Horovod's `synchronize`."""
_LOOKED = 8
"""Every so many writes it is looked whether the file is still its own."""
_KEPT = 4096
"""So many numbers are kept of a process in which no training was seen yet."""


class Log:
    """The events of one training in one process; in memory until `open` gives it a file."""

    width = 2

    def __init__(self) -> None:
        self._pending = array("d")
        self._file: int | None = None
        self.note = self._note

    def _note(self, kind: int, number: int = 0) -> None:
        """Note that something happens now."""
        add = self._pending.append
        add(now())
        add(kind + PLACES * number)

    def open(self, path: str) -> None:
        """Write what was noted, and what will be, to a new file."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._inode, self._written = os.fstat(self._file).st_ino, 0
        self.write()

    def write(self) -> None:
        """Give what was noted to the operating system."""
        if self._file is not None:
            self._written += 1
            if self._written % _LOOKED == 1 and os.fstat(self._file).st_ino != self._inode:
                self._file = None  # a script that has closed it may have opened its own
                raise OSError("the file of its events was closed")
            size = len(self._pending) * self._pending.itemsize
            if os.write(self._file, self._pending) < size:
                raise OSError("no space left for the events of this training")
            del self._pending[:]
        elif len(self._pending) > _KEPT:
            del self._pending[: -_KEPT // 2]

    def take(self) -> array[float]:
        """Return what was noted since the last update, for the log of another training, and forget it."""
        pending, self._pending[:] = self._pending[:], array("d")
        return pending

    def give(self, pending: array[float]) -> None:
        """Begin with what another log has forgotten."""
        self._pending.extend(pending)

    def close(self) -> None:
        """Write the rest."""
        if self._file is not None:
            self.write()
            os.close(self._file)
            self._file = None


class StrictLog(Log):
    """Events of a training on a GPU that is waited for at each of them."""

    def _note(self, kind: int, number: int = 0) -> None:
        import torch

        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
            super()._note(kind, number)


class DeviceLog(Log):
    """Events of a training on a GPU: the device's moments are read when it has reached them, and never waited for."""

    width = 3
    _LOOK = 64

    def __init__(self, before: Log) -> None:
        """Go on after the events that another log has kept, whose device time is that of the host."""
        super().__init__()
        import torch

        self._torch = torch
        self._ahead: deque[tuple[float, Any, float]] = deque()
        self._free: list[Any] = []
        self._torch.cuda.synchronize()
        self._newest, self._newest_s = self._event(), now()
        self._torch.cuda.synchronize()
        for place in range(0, len(before._pending), 2):
            at, what = before._pending[place : place + 2]
            self._pending.extend((at, at, what))

    def take(self) -> array[float]:
        """Return nothing: where the device was then is not known yet."""
        return array("d")

    def _event(self) -> Any:
        event = self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _note(self, kind: int, number: int = 0) -> None:
        if self._torch.cuda.is_current_stream_capturing():  # a graph would make the event again in each replay
            return
        self._ahead.append((now(), self._event(), kind + PLACES * number))

    def write(self) -> None:
        """Give what the device has reached to the operating system."""
        if len(self._ahead) >= self._LOOK:
            self._read()

    def _read(self) -> None:
        while self._ahead and self._ahead[0][1].query():
            at, event, what = self._ahead.popleft()
            # From one event to the next: milliseconds since the beginning would be too coarse in the end.
            self._newest_s += self._newest.elapsed_time(event) / 1e3
            self._free.append(self._newest)
            self._newest = event
            self._pending.extend((at, self._newest_s, what))
        super().write()

    def close(self) -> None:
        """Wait for the device, and write the rest."""
        self._torch.cuda.synchronize()
        self._read()
        super().close()
