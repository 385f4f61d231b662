"""Blocks of the fused kernels that are worth trying on hardware; benchmarks/gpu_steps.py measures them."""

from dataclasses import replace
from typing import Any

from horovod_study.strain.kernels import BlockSizes, Sizes


def block_variants(sizes: Sizes, precision: str = "fp32") -> dict[str, BlockSizes]:
    """Return `BlockSizes.fitting`, and one change to it at a time, by name."""
    fitting = BlockSizes.fitting(sizes, precision)
    first, second = fitting.cells
    products, sums = ("fc1", "head", "fc1_input", "fc1_weight"), ("weight_gradient", "first_gradient", "finish")
    names = ["convolution1", "convolution2", *products, *sums, "update"]
    changes: dict[str, dict[str, Any]] = {
        "fitting": {},
        "2 warps": {"warps": dict.fromkeys(names, 2)},
        "8 warps": {"warps": dict.fromkeys(names, 8)},
        "2 stages": {"stages": dict.fromkeys(names, 2)},
        "4 stages": {"stages": {**dict.fromkeys(names, 4), "first_gradient": 3}},
        "half the cells": {"cells": (max(16, first // 2), max(16, second // 2)), "first_cells": 16},
        "twice the cells": {"cells": (2 * first, 2 * second), "first_cells": 64},
        "32 filters": {"filters": (16, 32, 32, 16)},
        "32 terms": {"terms": (16, 32), "weight_terms": 32},
        "half the chunks": {
            "weight_chunks": max(1, fitting.weight_chunks // 2),
            "first_chunks": max(1, fitting.first_chunks // 2),
        },
    }
    return {name: replace(fitting, **change) for name, change in changes.items()}
