"""What the network, a core and a GPU can do at best, and what a training step asks of them.

    python -m horovod_study.programs.microbench PLAN.json        on every rank, under a launcher; rank 0 answers

All-reduce, broadcast and barrier are measured on every rank. The conventions are those of nccl-tests: 32-bit floats,
sums, a warm-up, many operations in a row per measurement, in place and out of place, every size checked against the
known sum. A measurement's time is that of the slowest rank: the mean over its operations, and their median beside it.
Nothing is divided by anything here: bandwidths are made of these seconds by analysis/machine/network.py.

Within a round all sizes, operations and runtimes alternate, so that a slow moment of the machine hits all alike.
"""

import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from horovod_study.comm import Backend, detect, fail_together, gpus
from horovod_study.comm.priority import NewThreads
from horovod_study.comm.raw import Raw, open_raw, open_runtime, why_missing
from horovod_study.errors import BackendError, ConfigError
from horovod_study.measure import environment
from horovod_study.measure.clock import DeviceStamps, now, utc_now
from horovod_study.programs.answer import Told, serve_measurement
from horovod_study.programs.loading import LoneStep
from horovod_study.recording.rank import facts
from horovod_study.strain import native
from horovod_study.strain.material import CHANNELS, POINTS, TARGETS
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import StrainConfig, parse_widths
from horovod_study.strain.room import keep_freed_memory

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
    kernels takes r + (k - 1) g to replay, so g = (t(k) - t(1)) / (k - 1); r = t(1). Each turn lasts about `seconds`.
    Returns medians over the rounds, with smallest and largest: `host_s`, of the host for one call that it does not wait
    for; `eager_s` and `graph_s`, from one kernel to the next; `replay_s`, from one replay of one kernel to the next.
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


ELEMENT_BYTES = 4
PERIOD = 1021  # The test values repeat after so many elements: a prime, so that a part in the wrong place does not pass

_SLOW_S = 0.1  # an operation that takes longer than this is measured in fewer rounds, and its warm-up is its check
_BARRIERS = 100
_COPY_BYTES = 64 * 1024 * 1024  # beyond the caches of a core


def model_facts(widths: str, batch: int) -> dict[str, Any]:
    """Return what the model asks of the network and of a worker.

    "gradients" is parameter name -> bytes; "step_flops" the operations of one worker's forward and backward for a
    batch; "activations_per_curve" the numbers that go into and out of the four layers.
    """
    model = StressCNN(widths=parse_widths(widths))
    return {
        "widths": widths,
        "batch": batch,
        "parameters": facts.count([model]),
        "gradients": {name: each.numel() * ELEMENT_BYTES for name, each in model.named_parameters()},
        "flat_bytes": facts.count([model]) * ELEMENT_BYTES,
        "step_flops": batch * step_flops(parse_widths(widths)),
        "activations_per_curve": int(layer_sizes(parse_widths(widths))[:, :2].sum()),
    }


def values_of(ranks: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return the sum of the test values of `ranks`, shape and device of `like`: whole numbers, exact in float32."""
    total = sum((torch.arange(PERIOD) * (rank + 1) % PERIOD).float() for rank in ranks)
    return torch.as_tensor(total, device=like.device).repeat(-(-like.numel() // PERIOD))[: like.numel()]


def _call(raw: Raw, operation: str, place: str, buffers: Sequence[torch.Tensor]) -> Callable[[], None]:
    source, output = buffers
    if operation == "broadcast":
        return lambda: raw.broadcast_(source)
    if place == "in":
        return lambda: raw.allreduce_(source)
    return lambda: raw.allreduce(source, output)


def count_wrong(
    raw: Raw, operation: str, place: str, buffers: Sequence[torch.Tensor], *, rank: int, workers: int
) -> int:
    """Do one operation on known values and return how many elements of this rank are wrong afterwards.

    Out of place an element of the input that was changed counts too. The buffers hold zeros afterwards, so that
    repeating the operation does not overflow.
    """
    source, output = buffers
    source.copy_(values_of([rank], source))
    output.fill_(-1.0)
    _call(raw, operation, place, buffers)()
    raw.settle()
    wanted = values_of([0] if operation == "broadcast" else range(workers), source)
    wrong = int(((output if place == "out" else source) != wanted).sum())
    if place == "out":
        wrong += int((source != values_of([rank], source)).sum())
    source.fill_(0.0)
    return wrong


def _timed(call: Callable[[], object], raw: Raw, count: int) -> tuple[float, float | None]:
    """Return mean and median seconds of `count` operations; on a GPU there are no single ones to take a median of."""
    on_gpu, stamps = raw.device.type == "cuda", [now()]
    for _ in range(count):
        call()
        if not on_gpu:
            stamps.append(now())
    raw.settle()
    median_s = None if on_gpu else float(np.median(np.diff(stamps)))
    return ((now() if on_gpu else stamps[-1]) - stamps[0]) / count, median_s


def measure_collectives(
    raws: Sequence[Raw],
    sizes: Sequence[int],
    backend: Backend,
    *,
    seconds: float,
    rounds: int = 5,
    on_progress: Told = lambda text: None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measure every operation, size in bytes and way; return the points and the barriers, the same on every rank.

    `seconds`: of all operations together, about. A point: way, operation, place, bytes, iterations, rounds, and per
    round `seconds` (mean of the slowest rank) and `seconds_median_op` (largest median of any rank, None on a GPU);
    `wrong` counts wrong elements over all ranks.
    """
    operations = (("allreduce", "out"), ("allreduce", "in"), ("broadcast", "in"))
    keys = [(size, way, *each) for size in sizes for way in range(len(raws)) for each in operations]

    # Not torch.zeros: pages nobody has written are all one and the same page, which is never out of the cache.
    buffers = {
        device: [torch.empty(max(sizes) // ELEMENT_BYTES, device=device).fill_(0.0) for _ in range(2)]
        for device in {raw.device for raw in raws}
    }

    def prepared(at: int, doing: str) -> tuple[Raw, str, str, list[torch.Tensor]]:
        size, way, operation, place = keys[at]
        on_progress(f"{doing}{operation} of {in_words(size)} over {raws[way].name}")
        return raws[way], operation, place, [each[: size // ELEMENT_BYTES] for each in buffers[raws[way].device]]

    def wrong_now(at: int) -> int:
        return count_wrong(*prepared(at, "checking "), rank=backend.rank, workers=backend.workers)

    # Everything once, checked: the warm-up, and the time from which follows how often it is repeated.
    wrong, cost = [], []
    for at in range(len(keys)):
        began = now()
        wrong.append(wrong_now(at))
        # Agreed among the ranks: they must make the same number of calls.
        slow = backend.maximum(now() - began) > _SLOW_S
        (raw, *_) = asked = prepared(at, "")
        raw.barrier()
        mean_s, median_s = _timed(_call(*asked), raw, 1 if slow else 20)
        cost.append(median_s or mean_s)
    slowest = np.max(np.array(backend.gather(cost)), axis=0)
    slot_s = seconds / (len(keys) * rounds)
    counts = np.clip(slot_s / slowest, 1, 20_000).astype(int).tolist()
    enough = np.where(slowest <= max(_SLOW_S, slot_s), rounds, min(3, rounds))
    mine: list[list[tuple[float, float | None]]] = [[] for _ in keys]
    barriers: list[list[float]] = [[] for _ in raws]
    for number in range(rounds):
        for at in np.flatnonzero(number < enough).tolist():
            (raw, *_) = asked = prepared(at, f"round {number + 1} of {rounds}: ")
            call = _call(*asked)
            for _ in range(min(20, 1 + counts[at] // 10) if counts[at] > 1 else 0):  # a tenth as many to get warm
                call()
            raw.barrier()
            raw.settle()
            mine[at].append(_timed(call, raw, counts[at]))
        for found, raw in zip(barriers, raws, strict=True):
            raw.barrier()
            found.append(_timed(raw.barrier, raw, _BARRIERS)[0])
    # Once more at the end: what has been called ten thousand times must still be right.
    for at in np.flatnonzero(slowest <= _SLOW_S).tolist():
        wrong[at] = max(wrong[at], wrong_now(at))
    everybody = backend.gather({"times": mine, "wrong": wrong, "barriers": barriers})
    points = []
    for at, (size, way, operation, place) in enumerate(keys):
        by_round = list(zip(*(theirs["times"][at] for theirs in everybody), strict=True))  # (mean, median) of each rank
        medians = None if raws[way].device.type == "cuda" else [max(m for _, m in each) for each in by_round]
        what = {"way": raws[way].name, "operation": operation, "place": place, "bytes": size}
        times = {"seconds": [max(mean for mean, _ in each) for each in by_round], "seconds_median_op": medians}
        wrong_in_all = sum(theirs["wrong"][at] for theirs in everybody)
        points.append({**what, "iterations": counts[at], **times, "wrong": wrong_in_all})
    spent = np.max(np.array([theirs["barriers"] for theirs in everybody]), axis=0).tolist()
    named = [{"way": raw.name, "iterations": _BARRIERS, "seconds": each} for raw, each in zip(raws, spent, strict=True)]
    return points, named


def in_words(size: int) -> str:
    """Return a size in bytes for readers, in powers of 1024 where it is a whole number of them."""
    whole = (
        f"{size // factor} {unit}" for unit, factor in (("MB", 2**20), ("kB", 2**10)) if size and size % factor == 0
    )
    return next(whole, f"{size:,} B")


def _measure_copies(backend: Backend, *, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure copies within the host's memory, and within a GPU's and between the two; the same on every rank.

    Each: name, `bytes` copied, per round `seconds` of the slowest rank, or `reason` where it cannot be measured. All
    ranks copy at the same time, except in "alone", where rank 0 copies and the others wait.
    """
    pair, alone = copy_kinds(torch.device("cpu"), _COPY_BYTES)["host memory"], "host memory, one worker"
    kinds = {"host memory, all workers": pair, alone: pair}
    missing = [f"{way}, {memory}" for memory in ("pinned", "pageable") for way in ("host to device", "device to host")]
    if torch.cuda.is_available():
        kinds, missing = kinds | copy_kinds(torch.device("cuda"), _COPY_BYTES), []
    mine: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (source, target) in kinds.items():
            backend.barrier()
            if backend.rank == 0 or name != alone:
                mine[name].append(copy_seconds(source, target, seconds))
    everybody = backend.gather(mine)
    slowest = {name: np.max([each[name] for each in everybody if each[name]], axis=0).tolist() for name in kinds}
    found = [{"name": name, "bytes": _COPY_BYTES, "seconds": s, "reason": None} for name, s in slowest.items()]
    no = {"bytes": None, "seconds": None, "reason": "no GPU is visible"}
    return [*found, *({"name": name, **no} for name in missing)]


def measure_step(widths: str, batch: int, backend: Backend, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure the training step without communication, on all ranks at the same time; the same on every rank.

    The model, optimiser and arithmetic are the trainer's own, the batch is one and the same. Returns "seconds": per
    round the mean step of the slowest rank; "launches": what a step gives to the GPU of rank 0, None where that is not
    known.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lone = LoneStep(StrainConfig(widths=widths, batch=batch), device)
    curves = torch.rand(batch, CHANNELS, POINTS, device=device)
    targets = torch.rand(batch, TARGETS, device=device)

    def step() -> None:
        lone.optimizer.zero_grad()
        lone.arithmetic.backward(F.mse_loss(lone.model(curves), targets))
        lone.optimizer.step()

    for _ in range(10):
        step()
    mine = []
    for _ in range(rounds):
        lone.wait()
        backend.barrier()
        mine.append(seconds_per_call(step, seconds, device))
    everybody = backend.gather((mine, launches_of(step) if device.type == "cuda" else None))
    slowest = np.max(np.array([seconds for seconds, _ in everybody]), axis=0).tolist()
    return {"batch": batch, "seconds": slowest, "launches": everybody[0][1]}


def measure(plan: Mapping[str, Any], backend: Backend, *, on_progress: Told = lambda text: None) -> dict[str, Any]:
    """Do all that `plan` says; return it as plain values, the same on every rank. Collective.

    `plan`: `sizes` in bytes; `transports`, raw ones, that `insist` makes an error where they cannot be opened, else
    they are left out with their reason; `runtime`: also the all-reduce of the backend itself; `seconds` of all
    operations together, about; `rounds`; `machine`: also copies, matrix products and the training step with `widths`
    and `batch`. Raises ConfigError, on all ranks, where sizes do not fit into memory.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    began, started = now(), utc_now()
    if backend.workers < 2 and not torch.cuda.is_available():
        raise BackendError("bench: an all-reduce needs at least 2 workers, and this launch has 1; start it with more")
    hosts = backend.gather(os.uname().nodename)
    gpus.take("auto", backend)
    with fail_together(backend):
        # Two buffers on each rank; outputs and buffers inside the libraries are up to twice as much again.
        here, free = hosts.count(hosts[backend.rank]), psutil.virtual_memory().available
        if (needed := 6 * max(plan["sizes"]) * here) > free:
            raise ConfigError(
                f"bench: messages of {in_words(max(plan['sizes']))} need about {needed / 1e9:.1f} GB for the {here} "
                f"workers on {os.uname().nodename}, which has {free / 1e9:.1f} GB free; lower --max-bytes"
            )
    missing = why_missing(backend)
    raws: list[Raw] = []
    priorities: dict[str, Any] = {}
    for transport in plan["transports"]:
        if plan["insist"] or transport not in missing:
            before = NewThreads()
            raws.append(open_raw(transport, backend))
            if transport == "gloo":  # as the runtimes over Gloo have it
                priorities[transport] = before.prioritise("auto")
    raws += [open_runtime(backend)] if plan["runtime"] else []
    load = os.getloadavg()[0]
    spend = {name: plan[name] for name in ("seconds", "rounds")}
    points, barriers = measure_collectives(raws, plan["sizes"], backend, on_progress=on_progress, **spend)
    machine = _measure_machine(plan, backend, on_progress) if plan["machine"] else {}
    own = {"host": hosts[backend.rank], "cores": environment.affinity(), "threads": torch.get_num_threads()}
    ranks, mpi = backend.gather(own), sys.modules.get("mpi4py.MPI")
    for raw in raws:
        raw.close()
    return {
        "conditions": {
            "started": started,
            "seconds": now() - began,
            "backend": backend.name,
            **{name: getattr(backend, name) for name in ("transport", "workers", "settings")},
            "launcher": detect(os.environ).launcher,
            "nodes": len(set(hosts)),
            "ranks": ranks,
            "raw_thread_priority": priorities,
            "mpi_library": None if mpi is None else str(mpi.Get_library_version()).split(",")[0].strip("\0\n "),
            "load_before": round(load, 2),
            "environment": environment.describe(),
            "plan": dict(plan),
        },
        "ways": [{"name": raw.name, "raw": "/" not in raw.name, "device": str(raw.device)} for raw in raws],
        "missing": {name: why for name, why in missing.items() if name in plan["transports"]},
        "points": points,
        "barriers": barriers,
        **machine,
    }


def _measure_machine(plan: Mapping[str, Any], backend: Backend, on_progress: Told) -> dict[str, Any]:
    # A sixtieth of the time each, but long enough to be a number.
    share_s, rounds = min(0.2, max(0.005, plan["seconds"] / 300)), min(plan["rounds"], 5)
    widths, batch = plan["widths"], plan["batch"]
    on_progress("copies")
    machine: dict[str, Any] = {"copies": _measure_copies(backend, rounds=rounds, seconds=share_s)}
    on_progress("the training step without communication")
    machine["step"] = measure_step(widths, batch, backend, rounds=rounds, seconds=2 * share_s)
    on_progress("matrix products")
    device, sizes = ("cuda", (2048, 8192)) if torch.cuda.is_available() else ("cpu", (256, 512, 1024))
    backend.barrier()
    rates = matrix_rates(sizes=sizes, rounds=min(3, rounds), seconds=share_s / 2, device=device)
    everybody = backend.gather([rate._asdict() for rate in rates])  # of each type and size the slowest rank's
    machine["matrices"] = [min(same, key=lambda rate: rate["gflops_median"]) for same in zip(*everybody, strict=True)]
    if device == "cpu":
        return machine
    backend.barrier()
    # What launching a kernel takes on the rank with the slowest host, and the step, launched kernel by kernel in fp32.
    launch = max(backend.gather(launch_latency(seconds=share_s / 2)), key=lambda each: float(each["eager_s"]))
    copied = next(each for each in machine["copies"] if each["name"] == "GPU memory")
    stands = step_roofline(
        step_s=float(np.median(machine["step"]["seconds"])),
        widths=parse_widths(widths),
        batch=batch,
        launches=machine["step"]["launches"],
        launch_each_s=launch["eager_s"],
        bytes_per_s=2 * copied["bytes"] / float(np.median(copied["seconds"])),  # a copy reads and writes each byte
        flop_per_s=1e9 * max(each["gflops_median"] for each in machine["matrices"] if each["dtype"] == "float32"),
    )
    return {**machine, "launch": launch, "step_roofline": stands}


if __name__ == "__main__":
    serve_measurement(lambda plan, config, backend, told: measure(plan, backend, on_progress=told))
