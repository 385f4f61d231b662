"""The Backend protocol, and what its leaves share."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from horovod_study.config import RunConfig
from horovod_study.errors import BackendError, StudyError

Optimizer = torch.optim.Optimizer

FLAT_BELOW_BYTES = 4_000_000
"""Gradients smaller than this are averaged as one flat buffer after backward, larger ones from hooks."""
BUCKET_MB = 25.0
"""Size of a bucket of gradients that leave from hooks, as torch's DistributedDataParallel has it."""


class Backend(Protocol):
    """How workers agree, start equal, and average their gradients.

    A leaf is connected when it is made. The order of use is `bind` once, then for each step `zero_grad`, the loss's
    backward, `synchronize`, `step`. All methods but the per-step ones are collective: every rank must call them.
    """

    name: str  # serial | horovod | ddp | mpi | ps
    transport: str  # what really carries gradients: none | nccl | mpi | gloo
    reduction: str  # none | flat | hooks, known once `bind` has seen the model
    sync_visible: bool  # False where the wait is hidden inside backward and cannot be seen from here
    rank: int
    workers: int
    settings: dict[str, Any]  # communication settings in effect, see settings.py

    @property
    def local_norm2(self) -> torch.Tensor | None:
        """Squared norm of what this rank gave to the last flat average, its gradient / workers, shape ().

        It is not finite where the gradient is not, and also where the squares overflow. None before the first step,
        and where gradients leave from hooks or nothing is averaged.
        """

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

    norm2: torch.Tensor | None = None
    """Squared norm of the buffer when it was last packed, before any reduction; shape ()."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, workers: int = 1) -> None:
        self._parameters = list(parameters)
        self._share = 1 / workers
        first = self._parameters[0]
        total = sum(parameter.numel() for parameter in self._parameters)
        self.buffer = torch.zeros(total, dtype=first.dtype, device=first.device)  # (number of parameters,)
        self._views: list[torch.Tensor] = []
        offset = 0
        for parameter in self._parameters:
            self._views.append(self.buffer[offset : offset + parameter.numel()].view(parameter.shape))
            offset += parameter.numel()

    def pack(self) -> torch.Tensor:
        """Copy the gradients into the buffer, make them views of it, and return the buffer.

        They are divided by the number of workers here, while they are in the processor's cache, so that the sum over
        the workers is their mean and nothing is left to do after the reduction.
        """
        # A parameter without a gradient makes the lists unequal, which is refused here and not reduced as garbage.
        torch._foreach_copy_(self._views, [each.grad for each in self._parameters if each.grad is not None])
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
        if self._share != 1:
            self.buffer.mul_(self._share)
        self.norm2 = torch.dot(self.buffer, self.buffer)
        return self.buffer


def gradient_bytes(model: nn.Module) -> int:
    """Return the size of all gradients of `model`."""
    return sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)


def choose_reduction(
    config: RunConfig,
    workers: int,
    gradients_bytes: int,
    *,
    hooks_asked: bool = False,
    flat_because: str = "",
    hooks_because: str = "",
) -> tuple[str, dict[str, Any]]:
    """Return the reduction of a run, and {"value", "source"} for the record: asked for, or chosen and why.

    Below `FLAT_BELOW_BYTES` messages cost by their number, and one flat buffer after backward is the fewest. Above it
    they cost by their size, which hooks hide behind backward. `hooks_asked`: an option was given that only hooks have.
    `flat_because`: why hooks cannot be used. `hooks_because`: why hooks are better whatever the size.
    """
    if workers == 1:
        return "none", {"value": "none", "source": "one worker averages nothing"}
    if config.reduction != "auto":
        return config.reduction, {"value": config.reduction, "source": "asked"}
    size, limit = f"gradients of {gradients_bytes / 1e6:.2f} MB", f"{FLAT_BELOW_BYTES / 1e6:g} MB"
    if hooks_asked:
        chosen, why = "hooks", "an option that only hooks have was given"
    elif flat_because:
        chosen, why = "flat", flat_because
    elif hooks_because:
        chosen, why = "hooks", hooks_because
    elif gradients_bytes < FLAT_BELOW_BYTES:
        chosen, why = "flat", f"{size} are below {limit}"
    else:
        chosen, why = "hooks", f"{size} are not below {limit}"
    return chosen, {"value": chosen, "source": f"chosen: {why}"}


def bucket_bytes(config: RunConfig) -> tuple[float, dict[str, Any]]:
    """Return the size of a bucket of gradients, and {"value" in MB, "source"} for the record."""
    if config.bucket_mb is None:
        return BUCKET_MB * 1e6, {"value": BUCKET_MB, "source": "shipped"}
    return config.bucket_mb * 1e6, {"value": config.bucket_mb, "source": "asked"}


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
