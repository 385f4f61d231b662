"""Sees the calls of torch.distributed and Horovod in which the host waits for other ranks: what a script sends itself.

The gradients of DistributedDataParallel and of Horovod's optimizer are sent out of Python's sight, and have places of
their own where they are seen. FSDP, scripts that average their gradients, and whoever averages a metric or tells others
whether to stop (Lightning does, in every step) call these functions. On a GPU a call returns at once and the device
waits: there the host's time says nothing, and nothing is to be wrapped.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

CALLS = (
    *("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "scatter", "barrier", "recv"),
    "monitored_barrier",
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "all_to_all", "all_to_all_single"),
)


class Observed:
    """Calls `before` and `after` around each outermost wait, until `remove`."""

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after, self._depth = before, after, 0
        self._undo: list[Callable[[], None]] = []
        for name in CALLS:
            for module in (dist, distributed_c10d):
                self._wrap(module, name)
        self._wrap(dist.Work, "wait")
        self._wrap(_functional_collectives, "wait_tensor")  # of sharded tensors, such as the norm that is clipped
        if horovod := sys.modules.get("horovod.torch.mpi_ops"):  # its optimizer has a reference of its own
            self._wrap(horovod, "synchronize")

    def remove(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()
        self._undo = []

    def _wrap(self, place: Any, name: str) -> None:
        original = getattr(place, name)

        @functools.wraps(original)
        def observed(*arguments: Any, **named: Any) -> Any:
            if not self._depth:
                self._before()
            self._depth += 1
            try:
                return original(*arguments, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._after()

        setattr(place, name, observed)
        self._undo.append(lambda: setattr(place, name, original))
