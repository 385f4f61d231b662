"""The Backend protocol, and what its leaves share."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from horovod_study.errors import BackendError, StudyError

Optimizer = torch.optim.Optimizer


class Backend(Protocol):
    """How workers agree, start equal, and average their gradients.

    A leaf is connected when it is made. The order of use is `bind` once, then for each step `zero_grad`, the loss's
    backward, `synchronize`, `step`. All methods but the per-step ones are collective: every rank must call them.
    """

    name: str  # serial | horovod | ddp | mpi
    transport: str  # what really carries gradients: none | nccl | mpi | gloo
    reduction: str  # none | flat | hooks
    sync_visible: bool  # False where the wait is hidden inside backward and cannot be seen from here
    rank: int
    workers: int
    settings: dict[str, Any]  # communication settings in effect, see settings.py

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Make all ranks start from rank 0's parameters and return what to call and step from now on."""

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Forget the gradients of the step before."""

    def synchronize(self, optimizer: Optimizer) -> None:
        """Return when every parameter's gradient is the mean over the workers."""

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters from the averaged gradients."""

    def gather(self, value: Any) -> list[Any]:
        """Return the (small, plain) values of all ranks, in the order of ranks, on every rank."""

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over ranks, of the same shape, on every rank."""

    def maximum(self, value: float) -> float:
        """Return the largest value of any rank, on every rank."""

    def close(self) -> None:
        """Leave; no other method may be called after this."""


class FlatGradients:
    """All gradients in one buffer, so that one all-reduce of 614 kB replaces one for each of the eight tensors.

    Autograd hands over its gradients as separate tensors; `pack` copies them into the buffer, and afterwards the
    gradients *are* views of the buffer.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        first = self._parameters[0]
        total = sum(parameter.numel() for parameter in self._parameters)
        self.buffer = torch.zeros(total, dtype=first.dtype, device=first.device)  # (number of parameters,)
        self._views: list[torch.Tensor] = []
        offset = 0
        for parameter in self._parameters:
            self._views.append(self.buffer[offset : offset + parameter.numel()].view(parameter.shape))
            offset += parameter.numel()

    def pack(self) -> torch.Tensor:
        """Copy the gradients into the buffer, make them views of it, and return the buffer."""
        # A parameter without a gradient makes the lists unequal, which is refused here and not reduced as garbage.
        torch._foreach_copy_(self._views, [each.grad for each in self._parameters if each.grad is not None])
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
        return self.buffer


@contextmanager
def agreed(backend: Backend) -> Iterator[None]:
    """Run a block that may fail on some ranks so that all ranks fail together, with the first one's message.

    Without this, a rank that stops at a missing file would leave the others waiting in the next collective.
    """
    problem: str | None = None
    try:
        yield
    except StudyError as error:
        problem = str(error)
    problems = backend.gather(problem)
    for rank, text in enumerate(problems):
        if text is not None:
            alone = sum(other is not None for other in problems) < len(problems)
            raise StudyError(f"rank {rank}: {text}" if alone else text)


def require_parity(backend: Backend, facts: dict[str, Any]) -> None:
    """Raise BackendError, on every rank, if the ranks were started with different facts; names the first difference."""
    everybody = backend.gather({"host": os.uname().nodename, **facts})
    for rank, theirs in enumerate(everybody):
        for name, value in everybody[0].items():
            if name != "host" and theirs[name] != value:
                raise BackendError(
                    f"rank {rank} on {theirs['host']} has {name} {theirs[name]!r}, rank 0 on {everybody[0]['host']} "
                    f"has {value!r}; start all ranks with the same options and the same data set"
                )
