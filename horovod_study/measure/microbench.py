"""What one core, or one GPU, can do at best, and what a training step asks of it."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from horovod_study.measure.clock import now
from horovod_study.workload.material import CHANNELS, POINTS, TARGETS

SIZES = (256, 512, 1024, 2048)
"""Edges of the square matrices: from within a core's cache to well beyond it."""

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
GPU_DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""tf32 takes float32 numbers and multiplies the leading 11 bits of their significands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixRate:
    """The speed of square matrix products of one size on one thread or GPU; 1 GFLOP/s = 1e9 operations per second."""

    dtype: str
    size: int
    gflops_median: float
    gflops_min: float
    gflops_max: float
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def matrix_rates(
    *, sizes: Sequence[int] = SIZES, rounds: int = 5, seconds: float = 0.2, device: str = "cpu"
) -> list[MatrixRate]:
    """Measure n x n matrix products, 2 n^3 operations each, in float32 and bf16 with one thread, on a GPU in all types.

    Sizes and types take turns within a round, so that a slow moment of the machine hits all alike; each turn lasts
    at least `seconds`. bf16 sums in float32 inside; without instructions for it, it may be far slower than float32.
    """
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    try:
        factors = {
            (name, size): (torch.randn(size, size).to(device, dtype), torch.randn(size, size).to(device, dtype))
            for name, dtype in (DTYPES if device == "cpu" else GPU_DTYPES).items()
            for size in sizes
        }
        found: dict[tuple[str, int], list[float]] = {key: [] for key in factors}
        for a, b in factors.values():
            torch.mm(a, b)  # the library chooses and prepares its kernel
        for _ in range(rounds):
            for key, (a, b) in factors.items():
                torch.backends.cuda.matmul.allow_tf32 = key[0] == "tf32"
                found[key].append(2 * key[1] ** 3 / _seconds_each(a, b, seconds) / 1e9)
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = tf32
    return [
        MatrixRate(
            dtype=name,
            size=size,
            gflops_median=statistics.median(rates),
            gflops_min=min(rates),
            gflops_max=max(rates),
            rounds=rounds,
        )
        for (name, size), rates in found.items()
    ]


def _seconds_each(a: torch.Tensor, b: torch.Tensor, seconds: float) -> float:
    out = torch.empty_like(a)
    count, began = 0, now()
    while count == 0 or now() - began < seconds:
        torch.mm(a, b, out=out)
        if a.is_cuda:
            torch.cuda.synchronize()
        count += 1
    return (now() - began) / count


def matrix_peak(rates: Sequence[MatrixRate], dtype: str) -> MatrixRate:
    """Return the size at which `dtype` is fastest: the matrix peak of a core is its median there."""
    return max((rate for rate in rates if rate.dtype == dtype), key=lambda rate: rate.gflops_median)


def step_flops(widths: tuple[int, int, int]) -> int:
    """Return the floating point operations of forward and backward per curve, in convolutions and matrix products.

    A product of a multiplication and an addition is 2 operations. With widths (w1, w2, h), 197 = 201 - 4 and
    61 = 65 - 4 the lengths after the convolutions of 5 points (65 = floor(197 / 3)), 20 = floor(61 / 3) points left:

        conv1 = 2 * 197 * w1 * (3 * 5)      conv2 = 2 * 61 * w2 * (w1 * 5)
        fc1   = 2 * (w2 * 20) * h           fc2   = 2 * h * 2

    Backward computes, for each layer, the gradient of the weights and that of its input, each as many operations as
    forward; the curves need no gradient, so conv1 has the first only. Together 3 * (conv1 + conv2 + fc1 + fc2) -
    conv1: 2,121,084 for widths 15-38-197. Biases, ReLU, pooling, loss and update do not count.
    """
    first, second, hidden = widths
    after_1 = POINTS - 4
    after_2 = after_1 // 3 - 4
    left = after_2 // 3
    conv1 = 2 * after_1 * first * CHANNELS * 5
    conv2 = 2 * after_2 * second * first * 5
    fc1 = 2 * second * left * hidden
    fc2 = 2 * hidden * TARGETS
    return 3 * (conv1 + conv2 + fc1 + fc2) - conv1
