"""What happens in a training, as events that are written as they come.

An event is a moment, and what happened, with a number: two float64 in the file of its process (with a GPU three: the
device's time comes between them). Once an update is made they are with the operating system, so that a process that
is killed leaves all of them. `recording.steps` makes step rows of them.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import mmap
import os
import sys
import sysconfig
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

now = time.perf_counter
"""The counter that measure/clock.py reads, which is alike for all processes of a host."""
wall = time.time

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
    "updated",  # which of the optimizers it was, in the order of their first steps
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
    "eval",  # a model that is trained is put into eval mode
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
_KEPT = 6144  # so many numbers are kept of a process in which no training was seen yet
_PART = 3 << 16  # bytes by which a file of events grows: whole events of either width, and whole pages
_AMPLE = 1 << 28
"""With fewer bytes left on the disk a file is written and not mapped: a store to it could not fail with an error."""
# mmap.mmap would keep a descriptor and close it: by then its number may be that of a file of the script.
_LIBC = ctypes.CDLL(None)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _unmap(at: int) -> None:
    if at:
        _LIBC.munmap(at, _PART)


class Log:
    """The events of one training in one process; in memory until `open` gives it a file.

    The file is mapped, so that what a process has noted when it is killed is in it. It ends with zeros. Whoever makes
    it shorter meanwhile ends the process, as with any file that is mapped.
    """

    __slots__ = ("_at", "_mapped", "_path", "_room", "_since", "_size", "note")
    width = 2

    def __init__(self) -> None:
        self._room = memoryview(bytearray(8 * _KEPT)).cast("d")
        self._at = 0  # where the next number goes
        self._since = 0  # where it was at the last `write`
        self._path, self._size, self._mapped = "", 0, 0
        self.note = self._note

    def _note(self, kind: int, number: int = 0) -> None:
        """Note that something happens now."""
        at = self._at
        try:
            self._room[at] = now()
        except IndexError:
            at = self._make_room()
            self._room[at] = now()
        self._room[at + 1] = kind + PLACES * number  # last: an event without a kind is none
        self._at = at + 2

    def _make_room(self) -> int:
        """Return where to go on: in the next part of the file, or, without one, behind the newer half of all."""
        if self._path:
            self.write()
            self._grow()
        else:
            half = len(self._room) // 2
            self._room[:half] = self._room[half:]
            self._at, self._since = half, max(0, self._since - half)
        return self._at

    def _grow(self) -> None:
        room: Any = bytearray(_PART)
        with open(self._path, "r+b") as stream:
            stream.seek(self._size)
            stream.write(room)  # it has its place before anything is stored there: a full disk raises here
            stream.flush()
            free, mapped = os.statvfs(self._path), None
            if free.f_bavail * free.f_frsize > _AMPLE:
                access = mmap.PROT_READ | mmap.PROT_WRITE
                mapped = _LIBC.mmap(None, _PART, access, mmap.MAP_SHARED, stream.fileno(), self._size)
        if mapped in (None, ctypes.c_void_p(-1).value):  # its file system cannot
            mapped = 0
        else:
            room = (ctypes.c_char * _PART).from_address(mapped)
        before, self._mapped = self._mapped, mapped
        self._room, self._at, self._since = memoryview(room).cast("B").cast("d"), 0, 0
        self._size += _PART
        _unmap(before)

    def open(self, path: str) -> None:
        """Write what was noted, and what will be, to a new file."""
        pending = self._room[: self._at]
        open(path, "xb").close()
        self._path = path
        self._grow()
        self._room[: len(pending)] = pending
        self._at = len(pending)
        self.write()

    def write(self) -> None:
        """Give what was noted to the operating system; it belongs to this training."""
        if self._path and not self._mapped:
            with open(self._path, "r+b") as stream:
                stream.seek(self._size - _PART + 8 * self._since)
                stream.write(self._room[self._since : self._at])
        self._since = self._at

    def take(self) -> array[float]:
        """Return what was noted since the last `write`, for the log of another training, and forget it."""
        pending = array("d", self._room[self._since : self._at])
        self._room[self._since : self._at] = array("d", bytes(8 * len(pending)))
        self._at = self._since
        return pending

    def give(self, pending: array[float]) -> None:
        """Begin with what another log has forgotten, the newest of it."""
        pending = pending[-len(self._room) :]
        self._room[: len(pending)] = pending
        self._at = len(pending)

    def close(self) -> None:
        """Write the rest, and leave no zeros."""
        if self._path:
            self.write()
            size, path = self._size - _PART + 8 * self._at, self._path
            self.leave()  # before the file is shorter: nothing may be stored behind its end
            os.truncate(path, size)

    def leave(self) -> None:
        """Note nothing in the file any more, as in the child of a fork, with which it is shared."""
        before = self._mapped
        Log.__init__(self)
        _unmap(before)


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

        self._cuda: Any = torch.cuda
        self._ahead: deque[tuple[float, Any, float]] = deque()
        self._free: list[Any] = []
        self._cuda.synchronize()
        self._newest, self._newest_s = self._event(), now()
        self._cuda.synchronize()
        for place in range(0, before._at, 2):
            self._put(before._room[place], before._room[place], before._room[place + 1])

    def take(self) -> array[float]:
        """Return nothing: where the device was then is not known yet."""
        return array("d")

    def _event(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note(self, kind: int, number: int = 0) -> None:
        if self._cuda.is_current_stream_capturing():  # a graph would make the event again in each replay
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
            self._put(at, self._newest_s, what)
        super().write()

    def _put(self, at: float, device_s: float, what: float) -> None:
        place = self._at if self._at + 3 <= len(self._room) else self._make_room()
        self._room[place], self._room[place + 1] = at, device_s
        self._room[place + 2] = what
        self._at = place + 3

    def close(self) -> None:
        """Wait for the device, and write the rest."""
        self._cuda.synchronize()
        self._read()
        super().close()


_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SAYS_NOTHING = ("wrapper", "wrapped", "inner", "call", "decorate_context", "<lambda>")
_LIBRARIES = tuple(
    {os.path.join(folder, "") for name, folder in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
)


class Stacks:
    """Where a training is, 20 times a second: what time outside of all laps is spent in.

    A sample is named after the innermost frame of the script's own files: by the library that it has called,
    `gymnasium/step`, or, where it is in no other frame, by itself, `train.py/rollout`. The file `path` has float64
    pairs of a moment and a name's number. `told(name)` is called with each new name, in the order of their numbers; -1
    stands for the time inside laps, when `in_lap()` is true: nobody asks for it, and it takes a while to look.
    """

    def __init__(self, thread: int, path: str, told: Callable[[str], None], in_lap: Callable[[], bool]) -> None:
        self._thread, self._path, self._told, self._in_lap, self._stopped = thread, path, told, in_lap, False
        self._names: dict[Any, int] = {}
        self._over, self._ended = _thread.allocate_lock(), _thread.allocate_lock()  # held until then
        self._over.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._sample, ())  # a script that joins all of its threads knows nothing of it

    def stop(self) -> None:
        """End the samples."""
        if not self._stopped:
            self._stopped = True
            self._over.release()
            self._ended.acquire(timeout=1.0)

    def _sample(self) -> None:
        pending = array("d")
        try:
            while not self._over.acquire(timeout=0.05):
                pending.extend((now(), -1 if self._in_lap() else self._number(sys._current_frames().get(self._thread))))
                if len(pending) >= 64:  # two numbers a sample
                    self._write(pending)
            self._write(pending)
        except Exception:  # what is sampled so far is enough
            pass
        finally:
            self._ended.release()

    def _write(self, pending: array[float]) -> None:
        with open(self._path, "ab") as stream:  # a script may close what stays open
            stream.write(pending)
        del pending[:]

    def _number(self, frame: Any) -> int:
        if frame is None:
            return -1
        called = None
        while frame.f_back is not None and _is_library(frame.f_code.co_filename):
            code = frame.f_code
            says_nothing = code.co_name.startswith("_") or code.co_name in _SAYS_NOTHING
            if not code.co_filename.startswith(_OWN) and (called is None or not says_nothing):
                called = code
            frame = frame.f_back
        code = frame.f_code
        place = (code, frame.f_lineno if code.co_name == "<module>" else 0, called)
        if place not in self._names:
            self._names[place] = len(self._names)
            self._told(_name(*place))
        return self._names[place]


@functools.lru_cache(maxsize=4096)
def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _OWN, "<")) or "torchinductor_" in file


def _name(code: Any, line: int, called: Any) -> str:
    """Return `library/function` of what own code has called, or `file.py/function` of it, `file.py:LINE` at its top."""
    if called is None:
        file = os.path.basename(code.co_filename)
        return f"{file}:{line}" if line else f"{file}/{code.co_name}"
    inside = next((called.co_filename[len(each) :] for each in _LIBRARIES if called.co_filename.startswith(each)), "")
    package = inside.replace(f"site-packages{os.sep}", "").split(os.sep)[0].partition(".")[0]
    return f"{package or 'compiled code'}/{called.co_name}"
