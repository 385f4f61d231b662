"""The update rule and the arithmetic of a training step, as the configuration asks for them."""

import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from horovod_study.comm import Backend
from horovod_study.config import RunConfig
from horovod_study.errors import ConfigError
from horovod_study.workload.material import CHANNELS, POINTS
from horovod_study.workload.schedule import scaled_lr

SGD_MOMENTUM = 0.9


def make_optimizer(
    config: RunConfig, parameters: Iterable[nn.Parameter], *, workers: int
) -> tuple[torch.optim.Optimizer, str]:
    """Return the optimiser at the rate scaled for `workers`, and its description for the record.

    Adam and AdamW with the libraries' moments (0.9, 0.999); SGD with Nesterov momentum 0.9.
    """
    kinds: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
        "adam": (torch.optim.Adam, {}),
        "adamw": (torch.optim.AdamW, {}),
        "sgd": (torch.optim.SGD, {"momentum": SGD_MOMENTUM, "nesterov": True}),
    }
    kind, extra = kinds[config.optimizer]
    optimizer = kind(
        parameters,
        lr=scaled_lr(config, workers),  # type: ignore[call-arg]
        weight_decay=config.weight_decay,
        fused=config.fused_optimizer,
        **extra,
    )
    details = [kind.__name__, *(["fused"] if config.fused_optimizer else [])]
    if config.weight_decay:
        details.append(f"weight decay {config.weight_decay:g}")
    return optimizer, ", ".join(details)


class Arithmetic:
    """The precision of forward and backward, and for fp16 the scaling of the loss.

    fp32 is real float32 on a GPU too: the use of TF32, which cuDNN takes by default, is switched off; tf32 switches
    it on for convolutions and matrix products. bf16 and fp16 are torch's automatic mixed precision: parameters,
    gradients and updates stay float32. fp16 alone needs its loss scaled, or small gradients vanish; steps whose
    gradients overflow are skipped and the scale is lowered (torch.amp.GradScaler).
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        for name, asked, why in (
            ("precision tf32", config.precision == "tf32", "TF32 is a mode of NVIDIA GPUs"),
            ("precision fp16", config.precision == "fp16", "float16 arithmetic on a CPU is slower than float32"),
            ("cuda_graphs", config.cuda_graphs, "CUDA graphs replay work of a GPU"),
        ):
            if asked and not on_gpu:
                instead = "use precision fp32 or bf16" if "precision" in name else "leave it out"
                raise ConfigError(f"run: {name} needs a GPU, this run computes on the CPU ({why}); {instead}")
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
            torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
        self._device = device.type
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
        self._graphs = config.cuda_graphs
        self.scaler = torch.amp.GradScaler(device.type) if config.precision == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which forward is computed."""
        if self._type is None:
            return nullcontext()
        # Casts kept from one use of a weight to the next would be freed between the replays of a captured graph.
        return torch.autocast(self._device, self._type, cache_enabled=not self._graphs)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of `loss`, shape (), scaled where the precision needs it."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, backend: Backend) -> None:
        """Update the parameters from the averaged gradients.

        Averaged gradients are the same on all workers, so all of them skip a step that overflowed, or none does.
        """
        if self.scaler is None:
            backend.step(optimizer)
        else:
            self.scaler.step(optimizer)
            self.scaler.update()


def accelerate(model: nn.Module, config: RunConfig, device: torch.device, arithmetic: Arithmetic) -> nn.Module:
    """Return what is called in place of `model` in training: the same, compiled, or captured as CUDA graphs.

    The parameters are those of `model`. Raises ConfigError where that cannot work.
    """
    if config.compile:
        compiler = os.environ.get("CXX", "g++")
        if device.type == "cpu" and shutil.which(compiler) is None:
            raise ConfigError(
                f"run: compile needs a C++ compiler, and {compiler} is not on PATH; install one, or leave compile out"
            )
        compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
        return compiled
    if config.cuda_graphs:
        sample = torch.zeros(config.batch, CHANNELS, POINTS, device=device)
        with arithmetic.autocast():
            graphed: nn.Module = torch.cuda.make_graphed_callables(model, (sample,))  # type: ignore[assignment]
        return graphed
    return model
