"""Calls at which the host waits for the device, with the source line that made them.

Training on a GPU is fast because the host runs ahead of the device. A call such as `loss.item()` in the loop stops
that: the host waits until the device has done everything it was given. On a GPU, PyTorch itself warns of such calls
(`torch.cuda.set_sync_debug_mode`). On a CPU nothing waits, but the same calls are made: there, they are recognised by
their operation, and what is reported "would wait on a GPU".

A call is attributed to the innermost line that belongs to no installed package: the user's own.
"""

import linecache
import os
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from horovod_study.config.run import LAPS

_WAITING = {
    "_local_scalar_dense": "item",
    "_unique2": "unique",
    "unique_dim": "unique",
    **{name: name for name in ("nonzero", "masked_select", "unique_consecutive", "equal", "allclose", "bincount")},
    "repeat_interleave": "repeat_interleave",
}
"""Operation of ATen -> what it is called in Python. The host needs their result, or the size of it, to go on."""

_CUDA_WARNING = "called a synchronizing CUDA operation"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_STANDARD = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncPoint:
    """One source line that makes the host wait, and how often it did."""

    operation: str
    file: str
    line: int
    function: str
    source: str  # the text of the line
    count: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operation} in {self.function}: {self.source}"


class Finder:
    """Collects the calls that wait while its `watching` is entered."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, str, int, str]] = Counter()
        self.paused = False

    def note(self, operation: str, frame: FrameType | None) -> None:
        """Count one call, made below `frame`."""
        if self.paused:
            return
        user = _users_frame(frame)
        if user is None:
            self._found[operation, "?", 0, "?"] += 1
        else:
            code = user.f_code
            self._found[operation, code.co_filename, user.f_lineno, code.co_qualname] += 1

    def points(self) -> list[SyncPoint]:
        """Return what was found, the most frequent first, then by place."""
        rows = sorted(self._found.items(), key=lambda each: (-each[1], each[0][1:3], each[0][0]))
        return [
            SyncPoint(
                operation=operation,
                file=_short(file),
                line=line,
                function=function,
                source=linecache.getline(file, line).strip(),
                count=count,
            )
            for (operation, file, line, function), count in rows
        ]

    @contextmanager
    def watching(self, device: torch.device) -> Iterator[None]:
        """Note the waiting calls that are made inside, in the way of the device that computes."""
        if device.type == "cuda":
            with self._warned():
                yield
        else:
            with _ToHost(self.note), _Waiting(self.note):
                yield

    @property
    def not_in_data(self) -> tuple[Callable[[str], object], Callable[[], object]]:
        """Ranges in which the lap data is passed over: on a CPU batches are made from tensors of the host anywhere."""

        def push(name: str) -> None:
            self.paused = name == LAPS[0]

        return push, lambda: None

    @contextmanager
    def _warned(self) -> Iterator[None]:
        def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
            if _CUDA_WARNING in str(message):
                self.note("CUDA call", sys._getframe(1))
            else:
                shown(message, category, *rest, **named)

        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            shown = warnings.showwarning
            warnings.filterwarnings("always", message=f".*{_CUDA_WARNING}")
            # PyTorch says so when it is switched on
            warnings.filterwarnings("ignore", message=".*Synchronization debug mode is a prototype feature")
            warnings.showwarning = show  # the place that a warning names is a line of PyTorch where that made the call
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(before)


class _Waiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation that really runs, backward and hooks included."""

    def __init__(self, note: Callable[[str, FrameType | None], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        operation = _WAITING.get(name, "")
        if name in ("index", "index_put", "index_put_") and _by_mask(args):
            operation = "indexing by a mask"
        if name == "repeat_interleave" and (kwargs or {}).get("output_size") is not None:
            operation = ""
        # Optimisers keep their step counts on the host on a GPU too, and read them there.
        frames = _stack(sys._getframe(1)) if operation == "item" else ()
        if operation and not any(each.f_code.co_filename.startswith(f"{_TORCH}optim{os.sep}") for each in frames):
            self._note(operation, sys._getframe(1))
        return func(*args, **(kwargs or {}))


class _ToHost(TorchFunctionMode):
    """Sees the methods that are no operation on a CPU, because the tensor is there already."""

    def __init__(self, note: Callable[[str, FrameType | None], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        # Tensor.numpy is none of them: on a GPU it fails instead of waiting.
        if name in ("cpu", "tolist") and args and isinstance(args[0], torch.Tensor):
            self._note(name, sys._getframe(1))
        return func(*args, **(kwargs or {}))


def _by_mask(args: Sequence[Any]) -> bool:
    indices = args[1] if len(args) > 1 else ()
    masks = (torch.bool, torch.uint8)
    return any(isinstance(each, torch.Tensor) and each.dtype in masks for each in indices)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames from the innermost outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of no installed package, else the innermost of another package than PyTorch."""
    candidate = None
    for each in _stack(frame):
        file = each.f_code.co_filename
        installed = any(part in file for part in _PACKAGES)
        if file == __file__ or file.startswith(_TORCH) or (file.startswith(_STANDARD) and not installed):
            continue
        if not installed:
            return each
        candidate = candidate or each
    return candidate


def _short(file: str) -> str:
    """Return a path relative to the folder we are in where it is below it."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return file
