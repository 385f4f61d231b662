"""Laps as named ranges, for a profiler that looks at the process from outside (nsys, VTune) or from inside (torch's).

    step 17
    |- data | forward | backward | sync | update

A range must be named when it opens, a lap is named when it ends. So each range takes the name of the lap that comes
next in the order that is given, in which `trainer.py` makes them. Ranges are what the host's calls took: on a GPU the
kernels of a range run later.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.measure.clock import LapClock

Marker = tuple[Callable[[str], object], Callable[[], object]]
"""What opens a range, and what closes the one that was opened last."""


class Ranged(LapClock):
    """A lap clock that opens and closes ranges as it is called; its times are those of the clock inside it."""

    def __init__(self, inner: LapClock, marker: Marker, laps: Sequence[str] = ORDINARY_LAPS) -> None:
        """`laps`: those of each step, in their order."""
        self._inner, self._laps = inner, tuple(laps)
        self._push, self._pop = marker
        self.takes_stamps, self.device = inner.takes_stamps, inner.device
        self._step, self._lap, self._opened = 0, 0, 0

    def start(self) -> None:
        """Open a stretch of steps."""
        self._inner.start()

    def begin(self, at: Any = None) -> None:
        """Begin a step: its range, and that of its first lap, open."""
        self._inner.begin(at)
        self._close()
        self._push(f"step {self._step}")
        self._push(self._laps[0])
        self._step, self._lap, self._opened = self._step + 1, 0, 2

    def lap(self, name: str, at: Any = None) -> None:
        """Close the range of a lap and open the next; the last lap closes that of its step too."""
        self._inner.lap(name, at)
        if name not in self._laps or self._opened < 2:  # "residual" has no range
            return
        self._pop()
        self._opened = 1
        self._lap = self._laps.index(name) + 1
        if self._lap == len(self._laps):
            self._close()
        else:
            self._push(self._laps[self._lap])
            self._opened = 2

    def mark(self) -> Any:
        """Return a stamp of the clock inside."""
        return self._inner.mark()

    def drain(self, keep: int = 0) -> dict[str, np.ndarray]:
        """Return and forget the steps so far but for the newest `keep`, as the clock inside has them."""
        columns = self._inner.drain(keep)
        self.span_s = self._inner.span_s
        return columns

    def _close(self) -> None:
        while self._opened:
            self._pop()
            self._opened -= 1


def recorded() -> Marker:
    """Return ranges in the trace of torch.profiler."""
    opened: list[Any] = []

    def push(name: str) -> None:
        opened.append(torch.profiler.record_function(name))
        opened[-1].__enter__()

    return push, lambda: opened.pop().__exit__(None, None, None)


def why_not(kind: str) -> str:
    """Return why ranges of this kind cannot be made here, empty where they can."""
    if kind == "nvtx" and not torch.cuda.is_available():
        other = "" if torch.version.cuda else f", and this is {torch.__version__}"
        return f"NVTX ranges need a GPU and a CUDA build of PyTorch{other}"
    if kind == "itt" and not torch.profiler.itt.is_available():  # type: ignore[no-untyped-call]
        return f"this PyTorch ({torch.__version__}) was built without ITT"
    return ""


def ranged(clock: LapClock, kind: str, laps: Sequence[str] = ORDINARY_LAPS) -> LapClock:
    """Return `clock`, with ranges of `kind` (off, nvtx, itt) around its `laps`; with off it is the clock itself."""
    if kind == "off":
        return clock
    module = torch.cuda.nvtx if kind == "nvtx" else torch.profiler.itt
    return Ranged(clock, (module.range_push, module.range_pop), laps)
