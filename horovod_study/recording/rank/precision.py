"""What the first steps of a training computed in, seen in the results of its layers.

The type of the parameters does not say it: under autocast parameters in float32 are multiplied in bfloat16, wherever
the autocast was put (around the loop's forward, into the model's forward as Accelerate does, around the training step
as Lightning does). A layer of PyTorch that multiplies by its weights returns what it computed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
_MULTIPLYING = (nn.Linear, nn.Bilinear, nn.MultiheadAttention, _ConvNd, nn.RNNBase, nn.RNNCellBase)


class PrecisionObserver:
    """Watches layers that multiply by weights until `stop`; what they cost meanwhile is in no later step.

    Not seen, and therefore of no type: compiled models, whose layers are not called one by one, and layers with a
    `forward` that is not PyTorch's, because what it returns may be converted.
    """

    def __init__(self, model: nn.Module, safe: Callable[[Callable[..., None]], Any] = lambda call: call) -> None:
        """`safe` returns a hook that calls what it is given, and keeps what goes wrong in it from the model."""
        self._weights: dict[nn.Module, int] = {}  # layer -> weights of two or more dimensions, none of them twice
        self._types: dict[nn.Module, set[str | None]] = {}  # of what it returned
        self._handles: list[Any] = []
        inside: set[nn.Module] = set()
        for module in model.modules():
            # rows are copied, nothing is computed
            if module in inside or isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                continue
            whole = isinstance(module, nn.MultiheadAttention)  # it does not call the layer inside it
            if whole:
                inside |= set(module.modules())
            count = sum(each.numel() for each in module.parameters(recurse=whole) if each.dim() > 1)
            if count:
                self._weights[module] = count
        for module in model.modules():
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
                return
        for module in self._weights:
            own = type(module).forward.__module__.startswith("torch.") and "forward" not in vars(module)
            if isinstance(module, _MULTIPLYING) and own:
                self._handles.append(module.register_forward_hook(safe(self._note)))

    def _note(self, module: nn.Module, _: Any, result: Any) -> None:
        first = result[0] if isinstance(result, tuple) else result
        if isinstance(first, torch.Tensor) and first.is_floating_point() and torch.is_grad_enabled():
            self._types.setdefault(module, set()).add(_computed_in(module, first))

    def stop(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def found(self) -> str | None:
        """Return fp32, tf32, bf16, fp16 or fp64; None unless most weights were seen to compute in one of them."""
        seen: Counter[str | None] = Counter()
        for module, types in self._types.items():
            if len(types) == 1:
                seen[next(iter(types))] += self._weights[module]
        name, count = max(seen.items(), key=lambda each: each[1], default=(None, 0))
        return name if count >= 0.9 * sum(self._weights.values()) else None


def _computed_in(module: nn.Module, result: torch.Tensor) -> str | None:
    """Return the type that a layer multiplied in; None where that is the library's choice."""
    if result.dtype != torch.float32:
        return NAMES.get(result.dtype)
    on_gpu = result.device.type == "cuda"
    kinds: Any = torch.backends.cudnn if on_gpu else torch.backends.mkldnn
    if isinstance(module, _ConvNd):
        kind = kinds.conv
    elif isinstance(module, nn.RNNBase):
        kind = kinds.rnn
    else:
        kind = torch.backends.cuda.matmul if on_gpu else kinds.matmul
    rounds = kind.fp32_precision in ("tf32", "bf16")
    if on_gpu:  # TF32 is of NVIDIA's GPUs from compute capability 8 on
        rounds = rounds and not torch.version.hip and torch.cuda.get_device_capability(result.device) >= (8, 0)
        return "tf32" if rounds else "fp32"
    return None if rounds else "fp32"  # allowed, and done where the processor can
