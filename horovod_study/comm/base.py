"""The Backend protocol, and what its leaves share."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from horovod_study.comm.launch import Launch
from horovod_study.config.run import RunConfig
from horovod_study.errors import BackendError, StudyError

Optimizer = torch.optim.Optimizer

_FLAT_BELOW_BYTES = 4_000_000
"""Gradients smaller than this are averaged as one flat buffer after backward, larger ones from hooks."""
BUCKET_MB = 25.0
"""Size of a bucket of gradients that leave from hooks, as torch's DistributedDataParallel has it."""


class Peers(Protocol):
    """The workers of a run, as far as they have to agree."""

    def gather(self, value: Any) -> list[Any]:
        """Return the (small, plain) values of all ranks, in the order of ranks, on every rank."""


class Backend(Peers, Protocol):
    """How workers agree, start equal, and average their gradients.

    A leaf is connected when it is made. The order of use is `bind` once, then for each step `zero_grad`, the loss's
    backward, `synchronize`, `step`. `synchronize` is `pack_gradients` and `exchange`: a CUDA graph holds the first, and
    the second comes between two graphs. All methods but the per-step ones are collective: every rank must call them.
    """

    name: str  # serial | horovod | ddp | mpi | ps
    transport: str  # what really carries gradients: none | nccl | mpi | gloo
    reduction: str  # none | flat | hooks, known once `bind` has seen the model
    rank: int
    workers: int
    settings: dict[str, Any]  # communication settings in effect, see settings.py
    flat: "FlatGradients | None"  # the buffer that is averaged in every step, where it is one buffer
    capturable: bool  # whether a CUDA graph can hold `exchange`, which then does nothing on the host
    last_gradient: "LastGradient | None"
    """Where backward, having made the own gradients, goes on to wait for the other ranks: sees when they are made."""

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

    def pack_gradients(self) -> None:
        """Bring the gradients that backward has made into the flat buffer, where there is one; no other rank is needed.

        From then on they are views of it. Nothing is waited for or read on the host, so a CUDA graph can hold this.
        """

    def exchange(self) -> None:
        """Average what was packed, or what left from hooks; on a GPU in the order of the current stream."""

    def step(self, optimizer: Optimizer) -> None:
        """Update the parameters from the averaged gradients."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Let every rank train for itself inside: nothing is averaged, nor copied or packed to be averaged.

        For measuring; entered and left between two steps, by all ranks at the same one. It changes nothing by itself:
        parameters that went apart inside stay apart.
        """

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum over ranks, of the same shape, on every rank."""

    def maximum(self, value: float) -> float:
        """Return the largest value of any rank, on every rank."""

    def find_missing(self, timeout_s: float) -> str:
        """Return what the library says of ranks that do not answer within `timeout_s`; "" where it cannot be asked."""

    def close(self) -> None:
        """Leave; no other method may be called after this."""


class Averaging:
    """What the leaves have in common: one flat buffer is averaged after backward, or gradients leave from hooks."""

    flat: "FlatGradients | None" = None
    capturable = False
    last_gradient: "LastGradient | None" = None
    silent = False
    """Whether every rank trains for itself, see Backend.no_sync."""

    @property
    def local_norm2(self) -> torch.Tensor | None:
        return self.flat.norm2 if self.flat else None

    def zero_grad(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()  # without arguments: Horovod's optimizer takes none

    def synchronize(self, optimizer: Optimizer) -> None:
        self.pack_gradients()
        self.exchange()

    def pack_gradients(self) -> None:
        if self.flat is not None and not self.silent:
            self.flat.pack()

    def exchange(self) -> None:
        pass

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._silence(True)
        try:
            yield
        finally:
            self._silence(False)

    def gather(self, value: Any) -> list[Any]:
        raise NotImplementedError

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sum(self.gather(values), axis=0))  # in the order of ranks

    def find_missing(self, timeout_s: float) -> str:
        return ""

    def choose(self: Any, model: nn.Module, **hints: Any) -> None:
        """Choose the reduction for `model`, see `choose_reduction`."""
        size = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
        self.reduction, self.settings["reduction"] = choose_reduction(self._config, self.workers, size, **hints)

    def _silence(self, silent: bool) -> None:
        """Begin or end `no_sync`; leaves silence here what else they have."""
        self.silent = silent
        if self.flat is not None:
            self.flat.silent = silent


class SerialBackend(Averaging):
    """One worker and no communication library, the `plain` baseline: every collective of one rank is the identity."""

    name = "serial"
    transport = "none"
    reduction = "none"
    rank = 0
    workers = 1

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        if launch.workers > 1:
            raise BackendError(
                f"backend serial is one worker, but {launch.named} started {launch.workers}; "
                "use --backend auto, or start one process"
            )
        self.settings: dict[str, Any] = {}

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass

    def maximum(self, value: float) -> float:
        return value

    def close(self) -> None:
        pass


class FlatGradients:
    """All gradients in one buffer, so that one all-reduce of 614 kB replaces one for each of the eight tensors.

    Autograd hands over its gradients as separate tensors. On a CPU each is copied into the buffer by a hook, as soon as
    backward has made it and while it is in the processor's cache; on a GPU all are copied together, because there the
    number of kernels counts. Afterwards the gradients *are* views of the buffer.
    """

    norm2: torch.Tensor | None = None
    """Squared norm of the buffer when it was last packed, before any reduction; shape ()."""
    silent = False
    """Gradients stay where backward made them; see Backend.no_sync."""
    always_hooked = False  # on a GPU too

    def __init__(self, parameters: Iterable[nn.Parameter], *, workers: int = 1) -> None:
        self._parameters = list(parameters)
        self._share = 1 / workers
        first = self._parameters[0]
        total = sum(parameter.numel() for parameter in self._parameters)
        self.buffer = torch.zeros(total, dtype=first.dtype, device=first.device)  # (number of parameters,)
        self.views: list[torch.Tensor] = []  # the gradient of each parameter, in the buffer
        offset = 0
        for parameter in self._parameters:
            view = self.buffer[offset : offset + parameter.numel()].view(parameter.shape)
            self.views.append(view)
            offset += parameter.numel()
            if self.always_hooked or not self.buffer.is_cuda:
                parameter.register_post_accumulate_grad_hook(self._taker(view))  # type: ignore[no-untyped-call]

    def _taker(self, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        """Return what copies a gradient that backward has just made into its place."""

        def take(parameter: torch.Tensor) -> None:
            if parameter.grad is not None and not self.silent:
                # Divided on the way: the sum over the workers is then the mean, and nothing is left to do after it.
                torch.mul(parameter.grad, self._share, out=view)
                parameter.grad = view

        return take

    def pack(self) -> torch.Tensor:
        """Return the buffer with this rank's gradients divided by the number of workers; they are now views of it.

        Raises BackendError if a parameter has none: the others would average theirs with what is left of the last step.
        """
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if len(gradients) < len(self.views):
            raise BackendError(
                "a parameter got no gradient in this step, and there is nothing to average; use a model that uses all "
                "its parameters"
            )
        if self.buffer.is_cuda:
            torch._foreach_copy_(self.views, gradients)
            self.buffer.mul_(self._share)
        for parameter, gradient, view in zip(self._parameters, gradients, self.views, strict=True):
            if gradient is not view:
                if not self.buffer.is_cuda:  # set manually, not by backward
                    torch.mul(gradient, self._share, out=view)
                parameter.grad = view
        self.measure()
        return self.buffer

    def measure(self) -> None:
        """Take `norm2` of the buffer as it is now: packed, or written by kernels of one's own."""
        self.norm2 = torch.dot(self.buffer, self.buffer)


class LastGradient:
    """The moment at which a rank's own backward has made its last gradient, seen by a hook.

    A library that reduces gradients by hooks of its own may wait for the other ranks before backward returns. The
    hooks here come before the library's. All parameters are watched until the same one was last `CERTAIN` times, then
    that one alone, because a hook costs more than a stamp; after `AGAIN` steps all are watched again, for a model may
    change. Where the order changes from step to step all stay watched.
    """

    CERTAIN = 20
    AGAIN = 500

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._hooks: dict[int, Any] = {}  # number of the parameter -> its hook; none before the first `arm`
        self._stamp: Callable[[], Any] | None = None
        self._taken: Any = None
        self._last, self._candidate, self._times = -1, -1, 0

    def arm(self, stamp: Callable[[], Any]) -> None:
        """Take `stamp()` at the last gradient of the backward that comes."""
        if not self._hooks:
            for number, parameter in enumerate(self._parameters):
                if not parameter.requires_grad:
                    continue
                self._hooks[number] = parameter.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]
        self._stamp, self._taken = stamp, None

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def made(_: torch.Tensor) -> None:
            # On a GPU this is a thread of autograd, which has the gradient's stream current: so has the stamp.
            if self._stamp is not None:
                self._taken, self._last = self._stamp(), number

        return made

    def taken(self) -> Any:
        """Return the stamp of the backward that has ended; None if no watched parameter got a gradient."""
        taken, self._taken, self._stamp = self._taken, None, None
        self._times = self._times + 1 if self._last == self._candidate else 1
        self._candidate = self._last
        if taken is None or self._times == self.AGAIN:
            for hook in self._hooks.values():
                hook.remove()
            self._hooks, self._times = {}, 0
        elif len(self._hooks) > 1:
            if self._times == self.CERTAIN:
                for number in [each for each in self._hooks if each != self._last]:
                    self._hooks.pop(number).remove()
        return taken


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

    Below `_FLAT_BELOW_BYTES` messages cost by their number, and one flat buffer after backward is the fewest. Above it
    they cost by their size, which hooks hide behind backward. `hooks_asked`: an option was given that only hooks have.
    `flat_because`: why hooks cannot be used. `hooks_because`: why hooks are better whatever the size.
    Raises BackendError for such an option where no hooks are called (`no_hooks` of the configuration).
    """
    if workers == 1:
        return "none", {"value": "none", "source": "one worker averages nothing"}
    if config.no_hooks is not None:
        option, flat_because = config.no_hooks
        if hooks_asked:
            raise BackendError(
                f"{option} does not go with an option that only hooks have: {flat_because}; leave that option out, "
                f"or leave {option} out"
            )
    if config.reduction != "auto":
        return config.reduction, {"value": config.reduction, "source": "asked"}
    size, limit = f"gradients of {gradients_bytes / 1e6:.2f} MB", f"{_FLAT_BELOW_BYTES / 1e6:g} MB"
    if hooks_asked:
        chosen, why = "hooks", "an option that only hooks have was given"
    elif flat_because:
        chosen, why = "flat", flat_because
    elif hooks_because:
        chosen, why = "hooks", hooks_because
    elif gradients_bytes < _FLAT_BELOW_BYTES:
        chosen, why = "flat", f"{size} are below {limit}"
    else:
        chosen, why = "hooks", f"{size} are not below {limit}"
    return chosen, {"value": chosen, "source": f"chosen: {why}"}


@contextmanager
def fail_together(backend: Peers) -> Iterator[None]:
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


def require_parity(backend: Peers, facts: dict[str, Any]) -> None:
    """Raise BackendError, on every rank, if the ranks were started with different facts; names the first difference."""
    everybody = backend.gather({"host": os.uname().nodename, **facts})
    for rank, theirs in enumerate(everybody):
        for name, value in everybody[0].items():
            if name != "host" and theirs[name] != value:
                raise BackendError(
                    f"rank {rank} on {theirs['host']} has {name} {theirs[name]!r}, rank 0 on {everybody[0]['host']} "
                    f"has {value!r}; start all ranks with the same options and the same data set"
                )
