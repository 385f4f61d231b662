"""A first look at a GPU: what a captured step takes, and each of its nodes; benchmarks/gpu.py starts it.

    python benchmarks/gpu_smoke.py PLAN.json        prints lines of JSON, as benchmarks/gpu_steps.py does

It needs no data set: the curves are random numbers on the device.

    what "smoke"    of every way and batch size: losses beside those of the plain loop, the seconds of a step with light
                    timers and without, and those of the host's calls for it; PyTorch's fused Adam with the parameters
                    as they are, which keeps a tenth of the GPU busy, and with the large one cut into pieces; at the
                    end, from torch.profiler, the time of every node of the graphs
    what "prepare"  opens every way as gpu_steps.py does, so that kernels are compiled and kept on the disk

On a CPU it is a dry run of the same code, without nodes.
"""

import gc
import json
import statistics
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gpu_steps
import torch
from gpu_steps import CALM, Plan, failed, say, settle, timed

from horovod_study.measure.clock import DeviceStamps, now
from horovod_study.strain.graphs import DeviceGraph
from horovod_study.strain.loaders import Resident
from horovod_study.strain.material import CHANNELS, POINTS, TARGETS
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import strain_config

CURVES, DRY_CURVES = 750_000, 64
STEPS, HOST_STEPS, DRY_STEPS = 2000, 300, 3
"""Of a timing; fewer where the host's own time is asked for, which is the device's once its queue is full."""

REPLAYS = 20
PIECE = 5163
"""Numbers of a piece of the large parameter: 29 pieces, and with the chunks of the others 36 blocks."""

ADAM_CALLS, ADAM_REPLAYS = 50, 20


class RandomCurves:
    """What gpu_steps.Resident is, without a data set: curves (S, C, L), targets (S, P), an order of batches of B."""

    def __init__(self, held: Resident, batch: int, device: torch.device) -> None:
        self.held, self.curves, self.targets = held, held.curves, held.targets
        self.batch, self.device = batch, device
        self.per_epoch = len(held.curves) // batch
        self.config = strain_config({"batch": batch, "loader": "device"}, source="gpu_smoke.py")
        order = torch.randperm(len(held.curves), generator=torch.Generator().manual_seed(1))
        self._order = order[: self.per_epoch * batch].reshape(self.per_epoch, batch).to(device)

    def order(self, epoch: int) -> torch.Tensor:
        """Return the places of the curves of each batch, (steps, B), on the device."""
        return self._order


def smoke(plan: Plan, device: torch.device) -> None:
    """Look at every way at every batch size, then at Adam; says what it finds."""
    on_gpu, tf32 = device.type == "cuda", gpu_steps.Tf32()
    count = CURVES if on_gpu else DRY_CURVES
    torch.manual_seed(1)
    held = Resident(
        curves=torch.rand(count, CHANNELS, POINTS, device=device), targets=torch.rand(count, TARGETS, device=device)
    )
    alive: dict[tuple[str, int], Any] = {}
    for batch in plan.batches:
        curves: Any = RandomCurves(held, batch, device)
        order = curves.order(0)[: plan.losses_steps]
        truth = gpu_steps.Plain(curves, tf32, CALM, exact=True).losses(order)
        say({"says": "order", "batch": batch, "steps_per_epoch": curves.per_epoch, "losses": truth.tolist()})
        for name in plan.ways:
            if [name, batch] in plan.without:
                continue
            say({"says": "begins", "way": name, "batch": batch})
            try:
                opened = now()
                way = gpu_steps.open_way(name, curves, plan, tf32, CALM)
                losses = way.losses(order).tolist()
                say({"says": "losses", "way": name, "batch": batch, "losses": losses, "opened_s": now() - opened})
                light = gpu_steps.open_way(name, curves, plan, tf32, {**CALM, "timer_mode": "light"})
                say({"says": "smoke", "way": name, "batch": batch, **_times(way, light, curves)})
            except Exception as error:
                failed(name, batch, error, device)
                continue
            alive[name, batch] = way
            del light
            gc.collect()
    for name, pieces in (("as they are", 1), ("the large one in pieces", PIECE)):
        say({"says": "adam", "parameters": name, **adam(pieces, device)})
    say({"says": "done"})
    if on_gpu:  # last: what a profiler leaves in the process is in no time
        for (name, batch), way in alive.items():
            try:
                way.ready(REPLAYS + 1)
                way.make(1)
                found = nodes(traced(partial(way.make, 1), REPLAYS, device), REPLAYS)
            except Exception:  # somebody else may have the counters
                traceback.print_exc()
                break
            say({"says": "nodes", "way": name, "batch": batch, "nodes": found})


def prepare(plan: Plan, device: torch.device) -> None:
    """Open every way as it is compared and as it is timed; says how long that took."""
    count = max(plan.batches) * 4
    held = Resident(
        curves=torch.rand(count, CHANNELS, POINTS, device=device), targets=torch.rand(count, TARGETS, device=device)
    )
    for batch in plan.batches:
        curves: Any = RandomCurves(held, batch, device)
        for name in plan.ways:
            if [name, batch] in plan.without:
                continue
            say({"says": "begins", "way": name, "batch": batch})
            opened = now()
            try:
                gpu_steps.open_both(name, curves, plan, gpu_steps.Tf32(), curves.order(0)[:2])
            except Exception as error:
                failed(name, batch, error, device)
                continue
            say({"says": "prepared", "way": name, "batch": batch, "opened_s": now() - opened})


def _times(way: Any, light: Any, curves: Any) -> dict[str, float]:
    """Return the seconds of a step: of the device, of the host's calls for it, and of the device with light timers."""
    device = curves.device
    wanted = (STEPS, HOST_STEPS) if device.type == "cuda" else (DRY_STEPS, DRY_STEPS)
    many, few = (min(steps, curves.per_epoch) for steps in wanted)
    with_timers = []
    for _ in range(3):
        with_timers.append(timed(light, many, device)[1] / many)
        light.clock.drain()
    return {
        "step_s": statistics.median(timed(way, many, device)[1] / many for _ in range(3)),
        "host_s": min(timed(way, few, device)[0] / few for _ in range(3)),
        "light_s": statistics.median(with_timers),
    }


def traced(work: Callable[[], object], repeats: int, device: torch.device) -> list[Mapping[str, Any]]:
    """Return the events of the trace that torch.profiler makes of `repeats` calls of `work`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(repeats):
            work()
        settle(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]  # type: ignore[no-any-return]


def nodes(events: Sequence[Mapping[str, Any]], repeats: int) -> list[dict[str, Any]]:
    """Return the nodes of one of `repeats` equal replays, in the order of their starts: medians over the second half.

    `events` are those of a trace, times in microseconds. `us` is the time of a node; `after_us` its start after the
    end of all nodes before it, below 0 where it runs beside one; `grid` and `block` as launched, None of a copy. []
    where the replays cannot be told apart, because their events are not equally many.
    """
    seen = sorted(
        (each for each in events if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=lambda each: each["ts"],
    )
    count = len(seen) // repeats
    if count == 0 or count * repeats != len(seen):
        return []
    found: dict[tuple[str, int], list[tuple[float, float, float, Mapping[str, Any]]]] = {}
    first = repeats // 2
    end = max((each["ts"] + each["dur"] for each in seen[: first * count]), default=seen[0]["ts"])
    for replay in range(first, repeats):
        here = seen[replay * count : (replay + 1) * count]
        met: Counter[str] = Counter()
        for each in here:
            key = (each["name"], met[each["name"]])  # the third kernel of this name, whatever runs beside it
            met[each["name"]] += 1
            row = (each["ts"] - here[0]["ts"], each["dur"], each["ts"] - end, each.get("args", {}))
            found.setdefault(key, []).append(row)
            end = max(end, each["ts"] + each["dur"])
    rows = []
    for (name, _), same in sorted(found.items(), key=lambda item: statistics.median(each[0] for each in item[1])):
        launched = same[0][3]
        rows.append(
            {
                "name": name[:80],
                "us": statistics.median(each[1] for each in same),
                "after_us": statistics.median(each[2] for each in same),
                **{key: launched.get(key) for key in ("grid", "block")},
                "registers": launched.get("registers per thread"),
            }
        )
    return rows


def adam(piece: int, device: torch.device) -> dict[str, Any]:
    """Return the seconds of PyTorch's fused Adam, many in one graph; parameters larger than `piece` > 1 are cut."""
    sizes = [each.numel() for each in StressCNN().parameters()]
    if piece > 1:
        sizes = [part for size in sizes for part in (*[piece] * (size // piece), size % piece) if part]
    parameters = [torch.nn.Parameter(torch.rand(size, device=device)) for size in sizes]
    for each in parameters:
        each.grad = torch.rand_like(each)
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.Adam(parameters, lr=torch.tensor(1e-4, device=device), fused=True, capturable=on_gpu)
    optimizer.step()
    if not on_gpu:
        began = now()
        optimizer.step()
        return {"tensors": len(sizes), "seconds": now() - began}

    def several() -> None:
        for _ in range(ADAM_CALLS):
            optimizer.step()

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        optimizer.step()
    settle(device)
    graph = DeviceGraph(stream, torch.cuda.graph_pool_handle())
    graph.capture(several)
    graph.replay()
    settle(device)
    stamps = DeviceStamps()
    marks = [stamps.stamp()]
    for _ in range(ADAM_REPLAYS):
        graph.replay()
    marks.append(stamps.stamp())
    return {"tensors": len(sizes), "seconds": float(stamps.differences_s(marks)[0]) / (ADAM_CALLS * ADAM_REPLAYS)}


if __name__ == "__main__":
    gpu_steps.main(sys.argv[1:], {"smoke": smoke, "prepare": prepare})
