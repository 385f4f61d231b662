"""A document of `horovod-study bench` made without measuring anything: times from alpha and beta that are known."""

from collections.abc import Mapping, Sequence
from typing import Any

MODEL: dict[str, Any] = {
    "widths": "15-38-197",
    "batch": 75,
    "parameters": 153_441,
    "gradients": {"conv1.weight": 900, "conv1.bias": 60, "fc1.weight": 598_880},
    "flat_bytes": 613_764,
    "step_flops": 159_081_300,
    "activations_per_curve": 8007,
}
SIZES = (4, 64, 900, 1024, 16_384, 262_144, 613_764, 4_194_304, 67_108_864)
WAYS = {"mpi": (2e-6, 6e9), "horovod/mpi": (30e-6, 5e9)}
"""way -> alpha in seconds, beta in bytes per second."""


def document(
    *,
    ways: Mapping[str, tuple[float, float]] = WAYS,
    workers: int = 2,
    sizes: Sequence[int] = SIZES,
    wrong: int = 0,
    load: float = 0.1,
    rounds: int = 3,
) -> dict[str, Any]:
    """Return a document of one job; `wrong` elements are wrong in the first way's smallest all-reduce in place."""
    points = [
        {
            "way": way,
            "operation": operation,
            "place": place,
            "bytes": size,
            "iterations": 10,
            "seconds": [alpha + size / beta] * rounds,
            "seconds_median_op": [alpha + size / beta] * rounds,
            "wrong": wrong if (way, operation, place, size) == (next(iter(ways)), "allreduce", "in", sizes[0]) else 0,
        }
        for way, (alpha, beta) in ways.items()
        for operation, place in (("allreduce", "out"), ("allreduce", "in"), ("broadcast", "in"))
        for size in sizes
    ]
    rate = {"size": 512, "gflops_min": 90.0, "gflops_max": 110.0, "rounds": 3}
    job = {
        "conditions": {
            "started": "2026-01-02T03:04:05+00:00",
            "backend": "horovod",
            "workers": workers,
            "ranks": [{"host": "node1", "cores": [rank], "threads": 1} for rank in range(workers)],
            "settings": {},
            "mpi_library": "Open MPI v4.1.8",
            "load_before": load,
            "environment": {
                "cpu_model": "Some CPU",
                "cores": 8,
                "torch": "2.13.0",
                "horovod": "0.28.1",
                "mpi4py": None,
                "mpi": "Open MPI 4.1.8",
            },
        },
        "ways": [{"name": way, "raw": "/" not in way, "device": "cpu"} for way in ways],
        "missing": {"nccl": "no GPU is visible"},
        "points": points,
        "barriers": [{"way": way, "iterations": 100, "seconds": [1e-6, 2e-6, 3e-6]} for way in ways],
        "copies": [
            {"name": "host memory, all workers", "bytes": 2**26, "seconds": [2**26 / 5e9] * 3, "reason": None},
            {"name": "host to device, pinned", "bytes": None, "seconds": None, "reason": "no GPU is visible"},
        ],
        "step": {"batch": 75, "seconds": [3e-3, 2.5e-3, 2.6e-3]},
        "matrices": [
            {"dtype": "float32", "gflops_median": 100.0, **rate},
            {"dtype": "float32", "gflops_median": 80.0, **rate},
            {"dtype": "bf16", "gflops_median": 300.0, **rate},
        ],
    }
    return {"workers": workers, "model": MODEL, "jobs": [job], "unavailable": {"nccl": "no GPU is visible"}}
