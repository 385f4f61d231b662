"""A training step of this network on a CPU by code made for it: forward, backward and update, in float32.

`native.cpp`, which begins with its plan, and `update.cpp` are compiled by `make setup`, once for each of
`_INSTRUCTIONS`; which of these libraries can be used is asked of the CPU that computes. They are called through ctypes
with the addresses of tensors.

Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from horovod_study.comm import Backend
from horovod_study.errors import BackendError
from horovod_study.strain.material import CHANNELS, POINTS, TARGETS
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import StrainConfig
from horovod_study.text.progress import say

_INSTRUCTIONS = ("avx512", "avx2")  # what `native.cpp` is compiled for, the fastest first
_POINTER = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {  # of each library: what a function returns, and takes
    "usable": (ctypes.c_int, ()),
    "create": (_POINTER, (*[ctypes.c_int] * 4, *[_POINTER] * 4)),
    "destroy": (None, (_POINTER,)),
    "forward": (None, (_POINTER,) * 4),
    "backward": (None, (_POINTER, ctypes.c_float)),
    "adam": (None, (ctypes.c_int, *[_POINTER] * 6, *[ctypes.c_double] * 5, ctypes.c_int)),
    "multiply_add": (ctypes.c_double, (ctypes.c_long, _POINTER)),
    "sgd": (None, (ctypes.c_int, *[_POINTER] * 4, *[ctypes.c_double] * 3)),
}


def folder() -> Path:
    """Return where `make setup` puts the libraries."""
    return Path(sys.prefix) / "lib" / "horovod-study-native"


@cache
def load(instructions: str) -> ctypes.CDLL:
    """Return the library for these instructions; OSError where there is none."""
    library = ctypes.CDLL(str(folder() / f"{instructions}.so"))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def usable() -> tuple[list[str], str]:
    """Return the instructions whose library can be used here, the fastest first; and where there are none, why."""
    found, missing = [], []
    for name in _INSTRUCTIONS:
        try:
            if load(name).usable():
                found.append(name)
        except OSError:
            missing.append(name)
    if found:
        return found, ""
    if missing:
        return [], f"it is not built in {folder()}; `make setup` builds it where there is a C++ compiler"
    return [], f"this CPU has none of {', '.join(_INSTRUCTIONS)}"


def open_native(
    config: StrainConfig, model: StressCNN, optimizer: torch.optim.Optimizer, backend: Backend
) -> "NativeStep | None":
    """Return the native step of `model`, which the backend has bound; None, with a line on why, where none can be had.

    Collective: all ranks use the same instructions, or their parameters could part in the last bit.
    """
    offers = backend.gather(usable())
    common = [name for name in _INSTRUCTIONS if all(name in names for names, _ in offers)]
    if not common:
        rank, why = next((rank, why) for rank, (_, why) in enumerate(offers) if why)
        if backend.rank == 0:
            where = f" on rank {rank}" if backend.workers > 1 else ""
            say(f"warning: kernels native cannot be used{where}: {why}; this run computes with kernels torch")
        return None
    return NativeStep(model, optimizer, backend, batch=config.batch, instructions=common[0])


def multiply_add(instructions: str, turns: int) -> float:
    """Multiply and add in the registers of this core, `turns` times each; return how many operations that were."""
    sums = torch.empty(64)
    return float(load(instructions).multiply_add(turns, sums.data_ptr()))


class NativeStep:
    """Loss, gradients and update of a StressCNN with float32 parameters on a CPU, by one of the libraries.

    Parameters are read and updated where they are, and must stay there. Gradients are written into the backend's flat
    buffer as the rank's share of their mean, or into one of its own where nothing is averaged; every parameter's `grad`
    is a view of it. The state of Adam, AdamW and SGD is that of PyTorch's `optimizer`, tensor by tensor, so that either
    goes on from the other's checkpoints. The same step gives the same bits every time.
    """

    def __init__(
        self, model: StressCNN, optimizer: torch.optim.Optimizer, backend: Backend, *, batch: int, instructions: str
    ) -> None:
        self._library = library = load(instructions)
        self._parameters = list(model.parameters())
        if any(each.dtype != torch.float32 for each in self._parameters):
            raise BackendError(
                f"kernels native computes in float32, not {self._parameters[0].dtype}; use kernels torch"
            )
        self._optimizer, self._backend, self._batch = optimizer, backend, batch
        sizes = [each.numel() for each in self._parameters]
        self._gradients = backend.flat.views if backend.flat else model.views(torch.zeros(sum(sizes)))
        self._counts = (ctypes.c_long * len(sizes))(*sizes)
        self._weights, self._slopes = _addresses(self._parameters), _addresses(self._gradients)
        scaling = [model.get_buffer(name).contiguous() for name in ("_factor", "_shift")]
        self._handle = library.create(
            batch,
            model.conv1.out_channels,
            model.conv2.out_channels,
            model.fc1.out_features,
            self._weights,
            self._slopes,
            *(each.data_ptr() for each in scaling),
        )
        if not self._handle:
            raise BackendError(f"kernels native find no memory for batch {batch} of this network; use a smaller batch")
        self._bound: Any = None  # the optimiser's state of the first parameter, when `_state` was taken
        self._state: list[Any] = []

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.destroy(self._handle)

    def forward(self, curves: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error for curves (B, C, L) and targets (B, P), shape (), with all `backward` needs.

        Raises ValueError for other shapes or types: the library reads B curves at these addresses.
        """
        for name, tensor, shape in (("curves", curves, (CHANNELS, POINTS)), ("targets", targets, (TARGETS,))):
            if tensor.shape != (self._batch, *shape) or tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise ValueError(
                    f"{name}: {tuple(tensor.shape)} {tensor.dtype}, not contiguous {(self._batch, *shape)} float32"
                )
        loss = torch.empty(())
        self._library.forward(self._handle, curves.data_ptr(), targets.data_ptr(), loss.data_ptr())
        return loss

    def backward(self, weight: float = 1.0) -> None:
        """Write the gradients of `weight` times the loss of the last `forward`."""
        flat = self._backend.flat
        shared = flat is not None and not flat.silent
        self._library.backward(self._handle, weight / self._backend.workers if shared else weight)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:  # setting them takes longer than looking
                parameter.grad = gradient

    def update(self) -> None:
        """Update the parameters from their gradients, as the optimiser is set."""
        group = self._optimizer.param_groups[0]
        if self._bound is None or self._optimizer.state.get(self._parameters[0]) is not self._bound:
            self._take_state("betas" in group)
        given = (len(self._parameters), self._counts, self._weights, self._slopes, *self._state, group["lr"])
        if "betas" in group:
            more = (*group["betas"], group["eps"], group["weight_decay"], group["decoupled_weight_decay"])
            self._library.adam(*given, *more)
        else:
            self._library.sgd(*given, group["momentum"], group["weight_decay"])

    def _take_state(self, adam: bool) -> None:
        """Take the addresses of the optimiser's state, which is made first where it has none."""
        names = ("exp_avg", "exp_avg_sq", "step") if adam else ("momentum_buffer",)
        for parameter in self._parameters:
            slots = self._optimizer.state[parameter]
            for name in names:
                if name not in slots:
                    slots[name] = torch.zeros(()) if name == "step" else torch.zeros_like(parameter)
        state = self._optimizer.state
        self._state = [_addresses([state[each][name] for each in self._parameters]) for name in names]
        self._bound = state[self._parameters[0]]


def _addresses(tensors: Sequence[torch.Tensor]) -> Any:
    assert all(each.is_contiguous() and each.dtype == torch.float32 for each in tensors)
    return (ctypes.c_void_p * len(tensors))(*(each.data_ptr() for each in tensors))
