"""What one core, or one GPU, can do at best, and what a training step asks of it."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from horovod_study.measure.clock import DeviceStamps, now
from horovod_study.workload import native
from horovod_study.workload.material import CHANNELS, POINTS, TARGETS

SIZES = (256, 512, 1024, 2048)  # Edges of the square matrices: from within a core's cache to well beyond it
IN_REGISTERS = 0  # In the place of a size: what a core can do at most, whatever a library's products reach
_MAX_CALLS = 100_000  # so many calls are in a row at most: the queue of a GPU has an end, and so has patience


class MatrixRate(NamedTuple):
    """The speed of square matrix products of one size on one thread or GPU; 1 GFLOP/s = 1e9 operations per second."""

    dtype: str
    size: int  # IN_REGISTERS: no product, but multiply-adds with the widest vectors of the core
    gflops_median: float
    gflops_min: float
    gflops_max: float
    rounds: int


def matrix_rates(
    *, sizes: Sequence[int] = SIZES, rounds: int = 5, seconds: float = 0.2, device: str = "cpu"
) -> list[MatrixRate]:
    """Measure n x n matrix products, 2 n^3 operations each, in float32 and bf16 with one thread, on a GPU in all types.

    Sizes and types alternate within a round, so that a slow moment of the machine hits all alike; each turn lasts
    at least `seconds`. bf16 sums in float32 inside; without instructions for it, it may be far slower than float32.
    On a CPU with the native step, multiply-adds in registers are measured too: a library may use narrower vectors.
    """
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    try:
        calls: dict[tuple[str, int], Callable[[], object]] = {}
        work: dict[tuple[str, int], float] = {}  # operations of a call
        # tf32 takes float32 numbers and multiplies the leading 11 bits of their significands.
        for name in ("float32", "bf16") if device == "cpu" else ("float32", "tf32", "bf16", "fp16"):
            dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
            for size in sizes:
                first, second = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
                calls[name, size] = partial(torch.mm, first, second, out=torch.mm(first, second))  # kernel chosen here
                work[name, size] = 2 * size**3
        instructions, _ = native.usable() if device == "cpu" else ([], "")
        for name in instructions[:1]:
            work["float32", IN_REGISTERS] = native.multiply_add(name, 200_000)  # about a millisecond
            calls["float32", IN_REGISTERS] = partial(native.multiply_add, name, 200_000)
        found: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
        for _ in range(rounds):
            for key, call in calls.items():
                torch.backends.cuda.matmul.allow_tf32 = key[0] == "tf32"
                found[key].append(work[key] / seconds_per_call(call, seconds, torch.device(device)) / 1e9)
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = tf32
    return [
        MatrixRate(name, size, statistics.median(rates), min(rates), max(rates), rounds)
        for (name, size), rates in found.items()
    ]


def seconds_per_call(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Return the mean seconds of `call`, made in a row for about `seconds`.

    On a GPU they are timed by events around calls that the host gives without waiting: a wait after each one would be
    part of it. The calls between two looks at the clock grow, until a look costs nothing beside them.
    """
    if device.type != "cuda":
        count, began = 0, now()
        while count == 0 or now() - began < seconds:
            call()
            count += 1
        return (now() - began) / count
    stamps, several = DeviceStamps(), 1
    while True:
        ends = [stamps.stamp()]
        for _ in range(several):
            call()
        ends.append(stamps.stamp())
        spent_s = float(stamps.differences_s(ends)[0])
        if spent_s >= seconds or several >= _MAX_CALLS:
            return spent_s / several
        several = min(_MAX_CALLS, max(2 * several, int(1.1 * several * seconds / max(spent_s, 1e-6))))


def layer_sizes(widths: tuple[int, int, int]) -> NDArray[np.int64]:
    """Return per layer and curve: numbers that go in, numbers that come out, operations, and the layer's parameters.

    With widths (w1, w2, h), convolutions of 5 points leave 197 = 201 - 4 and 61 = 65 - 4 points, pooling 65 and 20. A
    product of a multiplication and an addition is 2 operations; biases, ReLU, pooling, loss and update do not count.
    """
    first, second, hidden = widths
    pooled_1 = (after_1 := POINTS - 4) // 3
    pooled_2 = (after_2 := pooled_1 - 4) // 3
    return np.array(
        [
            (CHANNELS * POINTS, after_1 * first, 2 * after_1 * first * CHANNELS * 5, first * (CHANNELS * 5 + 1)),
            (pooled_1 * first, after_2 * second, 2 * after_2 * second * first * 5, second * (first * 5 + 1)),
            (pooled_2 * second, hidden, 2 * second * pooled_2 * hidden, hidden * (second * pooled_2 + 1)),
            (hidden, TARGETS, 2 * hidden * TARGETS, TARGETS * (hidden + 1)),
        ]
    )


def step_flops(widths: tuple[int, int, int]) -> int:
    """Return the floating point operations of forward and backward per curve, in convolutions and matrix products.

    Backward computes, for each layer, the gradient of the weights and that of its input, each as many operations as
    forward; the curves need no gradient, so conv1 has the first only. Together 3 * (conv1 + conv2 + fc1 + fc2) -
    conv1: 2,121,084 for widths 15-38-197.
    """
    operations = layer_sizes(widths)[:, 2]
    return int(3 * operations.sum() - operations[0])


def launch_latency(*, seconds: float) -> dict[str, float]:
    """Measure what launching a kernel takes on a GPU, one by one and inside a CUDA graph.

    The kernel adds 1 to a number, so each waits for the one before: what it takes is launching, not work. A graph of k
    kernels takes r + (k - 1) g to replay, so g = (t(k) - t(1)) / (k - 1) from a graph of k = 1000 and one of a single
    kernel; r = t(1). Each turn lasts about `seconds`. Returns medians over the rounds, with smallest and largest:
    `host_s`, the host's time for one call of PyTorch while it does not wait (no loop can be faster eagerly); `eager_s`
    and `graph_s`, from one kernel to the next, called one by one and inside a graph; `replay_s`, from one replay to the
    next of a graph with a single kernel.
    """
    kernels, rounds = 1000, 5
    where = torch.device("cuda")
    number = torch.zeros(1, device=where)

    def work(count: int) -> None:
        for _ in range(count):
            number.add_(1.0)

    single, many = _captured(lambda: work(1)), _captured(lambda: work(kernels))
    found: dict[str, list[float]] = {"host": [], "eager": [], "graph": [], "replay": []}
    for _ in range(rounds):
        torch.cuda.synchronize(where)
        began = now()
        work(kernels)  # few enough for the queue of the device, so that nothing waits
        found["host"].append((now() - began) / kernels)
        torch.cuda.synchronize(where)
        found["eager"].append(seconds_per_call(lambda: work(100), seconds, where) / 100)
        found["replay"].append(seconds_per_call(single.replay, seconds, where))
        whole = seconds_per_call(many.replay, seconds, where)
        found["graph"].append((whole - found["replay"][-1]) / (kernels - 1))
    medians = {f"{name}_s": statistics.median(each) for name, each in found.items()}
    ends = {f"{name}_{end.__name__}_s": end(found[name]) for name in ("eager", "graph") for end in (min, max)}
    return {**medians, **ends, "kernels": kernels, "rounds": rounds}


def _captured(work: Callable[[], None]) -> "torch.cuda.CUDAGraph":
    """Return a CUDA graph of `work`, which was done on a stream of its own before, as a capture wants it."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads, as those of a communication library, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph


def copy_kinds(device: torch.device, size: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the copies that concern a device: name -> source and target of `size` bytes, whose pages exist."""
    # Not torch.zeros: pages nobody has written are all one and the same page, which is never out of the cache.
    source = torch.empty(size // 4).fill_(0.0)
    if device.type != "cuda":
        return {"host memory": (source, torch.empty(size // 4).fill_(0.0))}
    first, second = (torch.zeros(size // 4, device=device) for _ in range(2))
    pinned = source.pin_memory()
    return {
        "GPU memory": (first, second),
        "host to device, pinned": (pinned, first),
        "device to host, pinned": (first, pinned),
        "host to device, pageable": (source, first),
        "device to host, pageable": (first, source),
    }


def copy_seconds(source: torch.Tensor, target: torch.Tensor, seconds: float) -> float:
    """Return the mean seconds of a copy, many in a row for about `seconds`, after one that is not timed."""
    target.copy_(source)
    device = source.device if source.is_cuda else target.device
    return seconds_per_call(lambda: target.copy_(source, non_blocking=True), seconds, device)


def step_bytes(widths: tuple[int, int, int], batch: int, *, kernels: str = "torch") -> int:
    """Return the bytes that a step must move if nothing stays in a cache from one kernel to the next.

    Numbers are 4 bytes, whatever precision multiplies them. `kernels` "torch" is one kernel for each operation and the
    gather before it; "fused", convolution, bias, pooling and ReLU in one kernel that gathers too: what is between is
    never written. docs/metrics.md has the sums, term by term.
    """
    inputs, outputs, _, parameters = (each.tolist() for each in layer_sizes(widths).T)
    curve, pooled_1, pooled_2, hidden = inputs
    moved = 4 * 10 * sum(parameters)
    if kernels == "fused":
        between = 2 * curve + TARGETS + 5 * pooled_1 + 6 * pooled_2 + 5 * hidden
        return int(moved + (4 * between + 2 * pooled_1 + 3 * pooled_2) * batch)
    return int(moved + 4 * (3 * sum(inputs + outputs) + 2 * (curve + TARGETS)) * batch)


def step_roofline(
    *,
    step_s: float,
    widths: tuple[int, int, int],
    batch: int,
    launches: int | None,
    launch_each_s: float,
    bytes_per_s: float,
    flop_per_s: float,
    kernels: str = "torch",
) -> dict[str, Any]:
    """Return a step of `step_s` seconds of one GPU beside what launching, moving and computing would take alone.

    They are launches x latency, bytes / bandwidth and operations / peak; None is not known. The three overlap on a GPU:
    the largest, `bound`, which explains a `share` of the step, is what it cannot be faster than, unless caches spare
    bytes, and their sum is what it takes if none overlaps.
    `launches`: kernels per step, see `launches_of`; `launch_each_s`: `graph_s` or `eager_s` of `launch_latency`;
    `bytes_per_s`: the traffic of a copy in the GPU's memory, twice its rate; `flop_per_s`: the matrix peak in the
    precision of the step; `kernels`: "torch" or "fused", see `step_bytes`.
    """
    moved, operations = step_bytes(widths, batch, kernels=kernels), batch * step_flops(widths)
    parts = {"moving": moved / bytes_per_s, "computing": operations / flop_per_s}
    parts |= {} if launches is None else {"launching": launches * launch_each_s}
    bound = max(parts, key=lambda name: parts[name])
    found = {"step_s": step_s, "launches": launches, "launch_each_s": launch_each_s, "launching_s": None}
    found |= {"bytes": moved, "bytes_per_s": bytes_per_s, "operations": operations, "flop_per_s": flop_per_s}
    found |= {f"{name}_s": seconds for name, seconds in parts.items()}
    return {**found, "bound": bound, "share": parts[bound] / step_s}


def launches_of(work: Callable[[], object]) -> int | None:
    """Return how many kernels, copies and fills `work` gives to the GPU, those of a replayed graph included.

    Seen by torch.profiler (CUPTI); None where it sees none: a machine may keep its counters to administrators, and
    another profiler may have them. `work` is done three times, and once before.
    """
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
    seen = (each for each in profiler.key_averages() if each.device_type.name == "CUDA" and not each.is_user_annotation)
    return round(sum(each.count for each in seen) / 3) or None
