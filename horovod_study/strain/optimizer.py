"""The update rule and the arithmetic of a training step, as the configuration asks for them."""

import inspect
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from horovod_study.comm import Backend
from horovod_study.errors import ConfigError
from horovod_study.strain.model import StressCNN
from horovod_study.strain.native import NativeStep, open_native
from horovod_study.strain.options import ADAM_EPSILON, StrainConfig, scaled_lr

REPLAY_ON_HOST = "HOROVOD_STUDY_REPLAY_ON_HOST"


def replayed_on_host() -> bool:
    """Return whether captured steps may run on a CPU, "replayed" by calling them again: for tests and dry runs."""
    return os.environ.get(REPLAY_ON_HOST) == "1"


def make_optimizer(
    config: StrainConfig, parameters: Iterable[nn.Parameter], *, workers: int
) -> tuple[torch.optim.Optimizer, str]:
    """Return the optimiser at the rate scaled for `workers`, and its description for the record.

    Adam and AdamW with the libraries' moments (0.9, 0.999); SGD with Nesterov momentum 0.9. With `cuda_graphs` the
    update reads its rate from the device: see `learning_rate` and `set_learning_rate`.
    Raises ConfigError for an update that no CUDA graph can hold.
    """
    parameters = list(parameters)
    kinds: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
        "adam": (torch.optim.Adam, {"eps": config.epsilon}),
        "adamw": (torch.optim.AdamW, {"eps": config.epsilon}),
        "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    }
    kind, extra = kinds[config.optimizer]
    rate: _DeviceRate | None = None
    if config.cuda_graphs:
        host = "looks on the host whether gradients overflowed" if config.precision == "fp16" else ""
        what = "precision fp16"
        if config.optimizer == "sgd":
            what, host = "optimizer sgd", "reads its rate on the host"
        if host and not config.fused_optimizer:
            needs = f"cuda_graphs with {what} needs the fused update: PyTorch's other one {host}"
            again = "leave fused_optimizer on, or leave cuda_graphs out"
            raise ConfigError(f"run: {needs}, which no CUDA graph can hold; {again}")
        rate = _DeviceRate(scaled_lr(config, workers), parameters[0].device)
        if config.optimizer != "sgd":  # torch has no such flag for SGD, and on a CPU none is needed
            extra["capturable"] = parameters[0].is_cuda
    # Without the wrappers that keep methods out of a compiled graph: their first call loads torch._dynamo, 900 modules
    # and 1.5 s of each rank's start, for updates that are never compiled (`compile` takes the model alone).
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    bare = type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})
    optimizer = bare(
        parameters,
        lr=scaled_lr(config, workers) if rate is None else rate.tensor,
        weight_decay=config.weight_decay,
        fused=config.fused_optimizer,
        **extra,
    )
    if rate is not None:
        _keep_on_device(optimizer, rate)
    details = [kind.__name__, *(["fused"] if config.fused_optimizer else [])]
    if config.epsilon != ADAM_EPSILON:
        details.append(f"epsilon {config.epsilon:g}")
    if config.weight_decay:
        details.append(f"weight decay {config.weight_decay:g}")
    return optimizer, ", ".join(details)


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the rate of the next update; nothing is read from the device."""
    rate: _DeviceRate | None = getattr(optimizer, _RATE, None)
    return float(optimizer.param_groups[0]["lr"]) if rate is None else rate.value


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Let the next updates use the rate `value`; on a GPU in the order of the current stream."""
    rate: _DeviceRate | None = getattr(optimizer, _RATE, None)
    if rate is not None:
        rate.set(value)
        return
    for group in optimizer.param_groups:
        group["lr"] = value


_RATE = "_rate_on_device"
"""Where an optimiser of captured steps keeps its rate."""


class _DeviceRate:
    """A rate that a captured update reads where it is: a tensor of shape (), and the number that it was given.

    float32 on a GPU, where torch's fused updates read no other; on a CPU as exact as a number of Python.
    """

    def __init__(self, value: float, device: torch.device) -> None:
        self.value = value
        self.tensor = torch.tensor(value, dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)

    def set(self, value: float) -> None:
        if value != self.value:
            self.tensor.fill_(value)
            self.value = value


def _keep_on_device(optimizer: torch.optim.Optimizer, rate: _DeviceRate) -> None:
    """Let `optimizer` save its rate as a number and load one into the tensor, so that files know nothing of graphs."""
    setattr(optimizer, _RATE, rate)
    flags = [
        {name: group[name] for name in ("fused", "capturable") if name in group} for group in optimizer.param_groups
    ]

    def saved(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            group["lr"] = rate.value
            if "capturable" in group:
                group["capturable"] = False

    def load(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        # Whoever saved it may have had other flags; by these torch decides where the number of steps is kept.
        groups = [{**group, **own} for group, own in zip(state["param_groups"], flags, strict=True)]
        return {**state, "param_groups": groups}

    def loaded(_: torch.optim.Optimizer) -> None:
        rate.set(float(optimizer.param_groups[0]["lr"]))
        for group in optimizer.param_groups:
            group["lr"] = rate.tensor

    optimizer.register_state_dict_post_hook(saved)
    optimizer.register_load_state_dict_pre_hook(load)
    optimizer.register_load_state_dict_post_hook(loaded)


_NEEDS = {
    "precision tf32": ("GPU", "TF32 is a mode of NVIDIA GPUs", "use precision fp32 or bf16"),
    "precision fp16": ("GPU", "float16 arithmetic on a CPU is slower than float32", "use precision fp32 or bf16"),
    "cuda_graphs": ("GPU", "CUDA graphs replay work of a GPU", "leave it out"),
    "kernels native": ("CPU", "its code is for the instructions of a CPU", "use device cpu, or kernels torch"),
}
"""What options need that not every device has, why, and what to ask for instead."""


class Arithmetic:
    """The precision of forward and backward, and for fp16 the scaling of the loss.

    fp32 is real float32 on a GPU too: the use of TF32, which cuDNN takes by default, is switched off; tf32 switches
    it on for convolutions and matrix products. bf16 and fp16 are torch's automatic mixed precision: parameters,
    gradients and updates stay float32. fp16 alone needs its loss scaled, or small gradients vanish; steps whose
    gradients overflow are skipped and the scale is lowered (torch.amp.GradScaler).
    """

    def __init__(self, config: StrainConfig, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        here, asked = "GPU" if on_gpu else "CPU", [f"precision {config.precision}", f"kernels {config.kernels}"]
        asked += ["cuda_graphs"] if config.cuda_graphs and not replayed_on_host() else []
        for name in asked:
            needed, why, instead = _NEEDS.get(name, (here, "", ""))
            if needed != here:
                raise ConfigError(f"run: {name} needs a {needed}, this run computes on the {here} ({why}); {instead}")
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
            torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
        self._config = config
        self._native: NativeStep | None = None
        self._device = device.type
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
        self._graphs = config.cuda_graphs
        self.scaler = torch.amp.GradScaler(device.type) if config.precision == "fp16" else None

    def bind(self, model: StressCNN, optimizer: torch.optim.Optimizer, backend: Backend) -> None:
        """Take the native step where it was asked for and can be had; after `backend.bind`. Collective."""
        if self._config.kernels == "native":
            self._native = open_native(self._config, model, optimizer, backend)

    @property
    def kernels(self) -> str:
        """Return who really computes, after `bind`: the option's value, or torch in place of native."""
        return "torch" if self._config.kernels == "native" and self._native is None else self._config.kernels

    def loss(self, model: nn.Module, curves: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error of `model` for curves (B, C, L) and targets (B, P), shape ()."""
        if self._native is not None:
            return self._native.forward(curves, targets)
        with self.autocast():
            return F.mse_loss(model(curves).to(targets.dtype), targets)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which forward is computed."""
        if self._type is None:
            return nullcontext()
        # Casts kept from one use of a weight to the next would be freed between the replays of a captured graph.
        return torch.autocast(self._device, self._type, cache_enabled=not self._graphs)

    def zero_grad(self, optimizer: torch.optim.Optimizer, backend: Backend) -> None:
        """Forget the gradients of the step before, where backward would add to them."""
        if self._native is None:  # which writes over them
            backend.zero_grad(optimizer)

    def backward(self, loss: torch.Tensor, weight: float = 1.0) -> None:
        """Compute the gradients of `weight` times `loss`, shape (), scaled where the precision needs it."""
        if self._native is not None:
            self._native.backward(weight)
            return
        if weight != 1:
            loss = loss * weight
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, backend: Backend) -> None:
        """Update the parameters from the averaged gradients.

        Averaged gradients are the same on all workers, so all of them skip a step that overflowed, or none does.
        """
        if self._native is not None:
            self._native.update()
        elif self.scaler is None:
            backend.step(optimizer)
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


def accelerate(model: nn.Module, config: StrainConfig, device: torch.device) -> nn.Module:
    """Return what is called in place of `model` in training: the same, or compiled; the parameters are its own.

    Raises ConfigError where that cannot work.
    """
    if not config.compile:
        return model
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise ConfigError(
            f"run: compile needs a C++ compiler, and {compiler} is not on PATH; install one, or leave compile out"
        )
    compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return compiled
