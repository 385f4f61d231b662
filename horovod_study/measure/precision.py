"""What the first steps of a training computed in, seen in the results of its layers.

The type of the parameters does not say it: under autocast parameters in float32 are multiplied in bfloat16, wherever
the autocast was put (around the loop's forward, into the model's forward as Accelerate does, around the training step
as Lightning does). A layer with a matrix of weights returns what it computed in.
"""

from collections import Counter
from typing import Any

import torch
from torch import nn

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
CLEAR_SHARE = 0.9
"""So much of the observed weights must have computed in one type, for it to be that of the model."""


class PrecisionObserver:
    """Watches layers with weights of two or more dimensions until `stop`; what they cost meanwhile is in no later step.

    Not seen, and therefore None: compiled models, whose layers are not called one by one, and layers whose `forward`
    was replaced, because what such a wrapper returns may be converted.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights: Counter[torch.dtype] = Counter()  # type -> weights whose layer returned it
        self._handles: list[Any] = []
        if any(_is_compiled(module) for module in model.modules()):
            return
        for module in model.modules():
            count = sum(each.numel() for each in module.parameters(recurse=False) if each.dim() > 1)
            if count and not any(module.children()) and "forward" not in vars(module):
                self._handles.append(module.register_forward_hook(self._returned(count)))

    def _returned(self, count: int) -> Any:
        def note(_: nn.Module, __: Any, result: Any) -> None:
            if isinstance(result, torch.Tensor) and result.is_floating_point() and torch.is_grad_enabled():
                self._weights[result.dtype] += count

        return note

    @property
    def watching(self) -> bool:
        """Whether layers are still watched."""
        return bool(self._handles)

    def stop(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def found(self) -> str | None:
        """Return fp32, tf32, bf16, fp16 or fp64; None where layers were not seen, or no type is clearly the most."""
        if not self._weights:
            return None
        (dtype, count), *_ = self._weights.most_common(1)
        if count < CLEAR_SHARE * self._weights.total():
            return None
        return "tf32" if dtype == torch.float32 and _multiplies_in_tf32() else NAMES.get(dtype)


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _multiplies_in_tf32() -> bool:
    return torch.cuda.is_available() and torch.get_float32_matmul_precision() != "highest"
