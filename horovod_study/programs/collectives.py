"""All-reduce, broadcast and barrier measured on every rank, with what a worker can compute and copy beside them.

    python -m horovod_study.programs.collectives PLAN.json        on every rank, under a launcher; rank 0 answers

The conventions are those of nccl-tests: 32-bit floats, sums, a warm-up, many operations in a row per measurement,
in place and out of place, every size checked against the known sum. A measurement's time is that of the slowest rank:
the mean over its operations, and their median beside it. Nothing is divided by anything here: bandwidths are made of
these seconds by analysis/machine/network.py.

Everything is measured in rounds. Within a round all sizes, operations and runtimes alternate, so that a slow
moment of the machine hits all alike, and the spread over the rounds says how much a number can be trusted.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F

from horovod_study.comm import Backend, detect, fail_together, gpus
from horovod_study.comm.priority import NewThreads
from horovod_study.comm.raw import Raw, open_raw, open_runtime, why_missing
from horovod_study.errors import BackendError, ConfigError
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.programs.answer import Told, serve_measurement
from horovod_study.programs.loading import LoneStep
from horovod_study.programs.microbench import (
    copy_kinds,
    copy_seconds,
    launch_latency,
    launches_of,
    layer_sizes,
    matrix_rates,
    seconds_per_call,
    step_flops,
    step_roofline,
)
from horovod_study.recording.rank import facts
from horovod_study.workload.allocator import keep_freed_memory
from horovod_study.workload.material import CHANNELS, POINTS, TARGETS
from horovod_study.workload.model import StressCNN
from horovod_study.workload.options import StrainConfig, parse_widths

ELEMENT_BYTES = 4
PERIOD = 1021  # The test values repeat after so many elements: a prime, so that a part in the wrong place does not pass

_SLOW_S = 0.1  # an operation that takes longer than this is measured in fewer rounds, and its warm-up is its check
_BARRIERS = 100
_COPY_BYTES = 64 * 1024 * 1024  # beyond the caches of a core


def model_facts(widths: str, batch: int) -> dict[str, Any]:
    """Return what the model asks of the network and of a worker.

    "gradients" is parameter name -> bytes; "flat_bytes" all of them together; "step_flops" the operations of one
    worker's forward and backward for a batch; "activations_per_curve" the numbers that go into and out of the four
    layers.
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


# ------------------------------------------------------------------------------------------------- collectives


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
        raw, *what = prepared(at, "")
        raw.barrier()
        mean_s, median_s = _timed(_call(raw, *what), raw, 1 if slow else 20)
        cost.append(median_s or mean_s)
    slowest = np.max(np.array(backend.gather(cost)), axis=0)
    slot_s = seconds / (len(keys) * rounds)
    counts = np.clip(slot_s / slowest, 1, 20_000).astype(int).tolist()
    enough = np.where(slowest <= max(_SLOW_S, slot_s), rounds, min(3, rounds))
    mine: list[list[tuple[float, float | None]]] = [[] for _ in keys]
    barriers: list[list[float]] = [[] for _ in raws]
    for number in range(rounds):
        for at in np.flatnonzero(number < enough).tolist():
            raw, *what = prepared(at, f"round {number + 1} of {rounds}: ")
            call = _call(raw, *what)
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
    for unit, factor in (("MB", 2**20), ("kB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size:,} B"


# ------------------------------------------------------------------------------------------ copies, peak, step


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


# -------------------------------------------------------------------------------------------------- the program


def measure(plan: Mapping[str, Any], backend: Backend, *, on_progress: Told = lambda text: None) -> dict[str, Any]:
    """Do all that `plan` says; return it as plain values, the same on every rank. Collective.

    `plan`: `sizes` in bytes; `transports`, raw ones, that `insist` makes an error where they cannot be opened, else
    they are left out with their reason; `runtime`: also the all-reduce of the backend itself; `seconds` of all
    operations together, about; `rounds`; `machine`: also copies, matrix products and the training step with `widths`
    and `batch`.

    Raises BackendError for a transport that is insisted on and cannot be opened, ConfigError where sizes do not fit
    into memory; on all ranks.
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
