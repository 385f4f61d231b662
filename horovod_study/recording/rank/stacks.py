"""Where a training is, 20 times a second: what time outside of all laps is spent in.

A sample is named after the innermost frame of the script's own files: by the library that it has called,
`gymnasium/step`, or, where it is in no other frame, by itself, `train.py/rollout`.
"""

from __future__ import annotations

import _thread
import functools
import os
import sys
import sysconfig
from array import array
from collections.abc import Callable
from typing import Any

from horovod_study.recording.rank.events import now

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SAYS_NOTHING = ("wrapper", "wrapped", "inner", "call", "decorate_context", "<lambda>")
_LIBRARIES = tuple(
    {os.path.join(folder, "") for name, folder in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
)


class Stacks:
    """Samples the stack of one thread into the file `path` until `stop`: float64 pairs of a moment and a name's number.

    `told(name)` is called with each new name, in the order of their numbers; -1 stands for the time inside laps, when
    `in_lap()` is true: nobody asks for it, and it takes a while to look.
    """

    def __init__(self, thread: int, path: str, told: Callable[[str], None], in_lap: Callable[[], bool]) -> None:
        self._thread, self._told, self._in_lap, self._stopped = thread, told, in_lap, False
        self._names: dict[Any, int] = {}
        self._path = path
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
