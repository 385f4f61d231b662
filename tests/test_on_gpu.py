"""The first things to try on a GPU, the plainest first: what fails names what to look at.

    python -m pytest -m gpu tests/test_on_gpu.py
    benchmarks/gpu.sh --part tests                        some at a time, without the plugins that a site has for pytest

Each test builds on what those before it have shown. Nothing here is about speed: times are only asked to be possible.
What a CPU can show with the same code is shown elsewhere.
"""

import faulthandler
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from horovod_study import records
from horovod_study.comm import Backend, builds, detect, open_backend
from horovod_study.measure import evidence
from horovod_study.measure.clock import DeviceStamps, LapClock, Unstamped, now
from horovod_study.measure.recorder import Recorder
from horovod_study.measure.sensors import Gpus
from horovod_study.programs import timers
from horovod_study.programs.microbench import (
    copy_kinds,
    copy_seconds,
    launch_latency,
    launches_of,
    matrix_rates,
)
from horovod_study.strain import dataset as data
from horovod_study.strain import kernels
from horovod_study.strain.graphs import CapturedStep, DeviceGraph
from horovod_study.strain.loaders import Loader, feed, open_loader, resident
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic, accelerate, make_optimizer, set_learning_rate
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.profiling import Finder
from horovod_study.strain.trainer import train_step

LIMIT_S = 60
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.filterwarnings("default"),  # of versions nobody has tried: they are no failure here
]

GPU = torch.device("cuda", 0)
CURVES = 4000
STEPS = 100
CONFIG = StrainConfig(
    backend="serial", dataset=str(CURVES), batch=75, steps=STEPS, loader="device", input_scaling="standard", lr=1e-4
)
"""Chosen so that rounding stays rounding: with raw input and the shipped rate, another order of summation alone moves
losses by some thousandths within 100 steps, with these by less than a millionth. Products in bf16 move them by 0.3 %.
"""
EXACT, ROUNDED = 1e-4, 2e-2

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """End the process with its stacks where a call into CUDA does not return: no signal reaches Python then."""
    faulthandler.dump_traceback_later(1.5 * LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "curves"
    data.generate(path, CURVES, seed=3)
    return path


def settle() -> None:
    torch.cuda.synchronize(GPU)


# ------------------------------------------------------------------------------------------ the device and its clock


def test_the_gpu_computes() -> None:
    """Driver, CUDA and this build of PyTorch fit each other and the GPU."""
    a = torch.arange(4096.0, device=GPU).reshape(64, 64)
    found = (a @ torch.eye(64, device=GPU)).cpu()

    assert torch.equal(found, torch.arange(4096.0).reshape(64, 64)), (
        f"{torch.cuda.get_device_name(GPU)} multiplies wrongly with PyTorch {torch.__version__}: is it built for "
        f"compute capability {torch.cuda.get_device_capability(GPU)}? it has {torch.cuda.get_arch_list()}"
    )


def test_events_see_the_time_of_the_device() -> None:
    a = torch.randn(2048, 2048, device=GPU)
    stamps = DeviceStamps()
    for _ in range(2):  # the second time with events that were used before
        settle()
        began = now()
        marks = [stamps.stamp()]
        for _ in range(3):
            for _ in range(20):
                a @ a
            marks.append(stamps.stamp())
        given_s = now() - began
        laps_s = stamps.differences_s(marks)
        host_s = now() - began
        stamps.take_back([marks[-1]])

        assert (laps_s > 0).all(), f"laps of work are {laps_s} s: events were recorded on another stream than the work"
        assert laps_s.sum() <= host_s + 1e-3, (
            f"the device says {laps_s.sum()} s, the host waited {host_s} s: elapsed_time is not in milliseconds?"
        )
        assert laps_s.sum() > 0.2 * (host_s - given_s), f"{laps_s.sum()} s of {host_s - given_s} s of waiting are seen"


def test_laps_of_the_device_tile_the_step() -> None:
    a = torch.randn(1024, 1024, device=GPU)
    clock = LapClock(device=DeviceStamps())
    clock.start()
    for _ in range(10):
        clock.begin()
        a @ a
        clock.lap("forward")
        for _ in range(9):
            a @ a
        clock.lap("backward")
    columns = clock.drain()
    tiled = columns["forward_s"] + columns["backward_s"] + columns["residual_s"]

    np.testing.assert_allclose(tiled, columns["step_s"], rtol=1e-6, atol=1e-9)
    assert np.median(columns["backward_s"][1:]) > np.median(columns["forward_s"][1:]), "nine products, and one"


def test_a_graph_does_its_work_again() -> None:
    given, made = torch.ones(4, device=GPU), torch.zeros(4, device=GPU)

    def work() -> None:
        torch.add(given, 1.0, out=made)

    stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work()
    settle()
    graph = DeviceGraph(stream, torch.cuda.graph_pool_handle())
    made.zero_()
    graph.capture(work)
    settle()

    assert made.tolist() == [0.0] * 4, "capturing computed something: the work ran outside the captured stream"
    for number in (2.0, 3.0):
        given.fill_(number)
        graph.replay()
        assert made.tolist() == [number + 1] * 4, "a replay reads what is at the captured address now"


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_a_captured_update_follows_its_rate(kind: str) -> None:
    """The rate is on the device: a graph that has it as a number would go on with the first one."""
    ends = []
    for captured in (False, True):
        torch.manual_seed(1)
        layer = nn.Linear(8, 8).to(GPU)
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer, _ = make_optimizer(
            replace(CONFIG, optimizer=kind, cuda_graphs=captured), layer.parameters(), workers=1
        )
        step: Callable[[], Any] = optimizer.step
        optimizer.step()  # makes its state
        if captured:
            settle()
            stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]
            graph = DeviceGraph(stream, torch.cuda.graph_pool_handle())
            graph.capture(step)
            step = graph.replay
        for rate in (1e-3, 1e-2, 1e-4):
            set_learning_rate(optimizer, rate)
            step()
        settle()
        ends.append(torch.cat([each.detach().flatten() for each in layer.parameters()]))

    torch.testing.assert_close(ends[1], ends[0], rtol=1e-6, atol=1e-7)


# --------------------------------------------------------------------------------------------------- the captured step


@dataclass(kw_only=True)
class Training:
    """One worker's training, from the same start each time."""

    config: StrainConfig
    model: nn.Module
    bare_model: StressCNN
    optimizer: torch.optim.Optimizer
    backend: Backend
    arithmetic: Arithmetic
    loader: Loader
    per_epoch: int

    def captured(self, *, phases: bool = False) -> CapturedStep:
        return CapturedStep(
            self.config,
            model=self.model,
            bare_model=self.bare_model,
            optimizer=self.optimizer,
            backend=self.backend,
            arithmetic=self.arithmetic,
            device=GPU,
            resident=resident(self.loader),
            phases=phases,
        )

    def plain(self, steps: int, clock: LapClock) -> list[torch.Tensor]:
        """Make steps without graphs; return their losses, each of shape (), on the device."""
        losses: list[torch.Tensor] = []
        for epoch in range(-(-steps // self.per_epoch)):
            for curves, targets in self.loader.epoch(epoch):
                if len(losses) == steps:
                    break
                clock.begin()
                clock.lap("data")
                losses.append(
                    train_step(self.model, self.optimizer, curves, targets, self.backend, clock, self.arithmetic)
                )
        return losses

    def replayed(self, captured: CapturedStep, steps: int, clock: LapClock) -> list[torch.Tensor]:
        """Make captured steps; return their losses, views of the ring."""
        losses: list[torch.Tensor] = []
        for epoch in range(-(-steps // self.per_epoch)):
            for batch in feed(self.loader, captured, epoch):
                if len(losses) == steps:
                    break
                clock.begin(captured.begin_of_next(clock))
                losses.append(captured.take(batch, clock))
        return losses


def training(curves: Path, **changes: Any) -> Training:
    config = replace(CONFIG, **changes)
    dataset = data.open_dataset(curves)
    batches = data.Batches(dataset.train_size, batch=config.batch, rank=0, workers=1, seed=config.seed)
    torch.manual_seed(config.seed)
    arithmetic = Arithmetic(config, GPU)
    bare_model = StressCNN(input_scaling=config.input_scaling, memory_format=config.memory_format).to(GPU)
    bare_optimizer, _ = make_optimizer(config, bare_model.parameters(), workers=1)
    backend = open_backend(config, detect({}))
    model, optimizer = backend.bind(accelerate(bare_model, config, GPU), bare_optimizer)
    return Training(
        config=config,
        model=model,
        bare_model=bare_model,
        optimizer=optimizer,
        backend=backend,
        arithmetic=arithmetic,
        loader=open_loader(config, dataset, batches, GPU),
        per_epoch=batches.steps_per_epoch,
    )


def numbers(losses: list[torch.Tensor]) -> np.ndarray:
    return torch.stack(losses).double().cpu().numpy()


def plain_losses(curves: Path, **changes: Any) -> np.ndarray:
    return numbers(training(curves, **changes).plain(STEPS, Unstamped()))


def captured_losses(curves: Path, *, phases: bool = False, **changes: Any) -> np.ndarray:
    own = training(curves, cuda_graphs=True, **changes)
    return numbers(own.replayed(own.captured(phases=phases), STEPS, Unstamped()))


def require_same(found: np.ndarray, wanted: np.ndarray, tolerance: float, what: str) -> None:
    assert np.isfinite(wanted).all(), f"the plain loop's losses are not finite: {wanted[:5]}"
    assert np.isfinite(found).all(), f"{what}: losses are not finite from step {np.argmin(np.isfinite(found))} on"
    apart = np.abs(found - wanted) / np.abs(wanted)
    first = int(np.argmax(apart > tolerance))
    assert apart.max() <= tolerance, (
        f"{what}: from step {first} on losses differ by up to {apart.max():.1e} of the plain loop's; allowed are "
        f"{tolerance:.0e}; at step 0 by {apart[0]:.1e} (forward), at step 1 by {apart[1]:.1e} (backward and the "
        f"update); there {found[first]:.6g} for {wanted[first]:.6g}"
    )


def test_the_plain_loop_learns_on_the_gpu_what_it_learns_on_the_cpu(curves: Path) -> None:
    """In fp32, with TF32 off: products of TF32 would be some thousandths off at the first step."""
    own = training(curves)
    found = numbers(own.plain(STEPS, Unstamped()))
    model, config = StressCNN(input_scaling="standard"), own.config
    first = next(iter(own.loader.epoch(0)))
    torch.manual_seed(config.seed)
    model = StressCNN(input_scaling=config.input_scaling)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(first[0].cpu()), first[1].cpu())

    assert found[0] == pytest.approx(float(loss), rel=1e-5), "TF32 is on, or the weights are others"
    assert found[-10:].mean() < 0.7 * found[:10].mean(), f"it does not learn: {found[:3]} ... {found[-3:]}"


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", EXACT), ("tf32", ROUNDED), ("bf16", ROUNDED), ("fp16", ROUNDED)]
)
def test_the_captured_step_makes_the_losses_of_the_plain_loop(curves: Path, precision: str, tolerance: float) -> None:
    wanted = plain_losses(curves, precision=precision)
    found = captured_losses(curves, precision=precision)

    require_same(found, wanted, tolerance, f"captured with torch's kernels in {precision}")


@pytest.mark.parametrize(
    "changes",
    [
        {"loader": "memory"},
        {"loader": "prefetch", "pin_memory": True},
        {"phases": True},
        {"optimizer": "sgd"},
        {"memory_format": "contiguous"},
        {"fused_optimizer": False},
    ],
    ids=str,
)
def test_variants_of_the_captured_step_make_the_same_losses(curves: Path, changes: dict[str, Any]) -> None:
    phases = changes.pop("phases", False) if "phases" in (changes := dict(changes)) else False
    plain = {
        name: value for name, value in changes.items() if name in ("optimizer", "memory_format", "fused_optimizer")
    }

    require_same(captured_losses(curves, phases=phases, **changes), plain_losses(curves, **plain), EXACT, str(changes))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", EXACT), ("tf32", ROUNDED), ("bf16", ROUNDED)])
def test_the_fused_kernels_make_the_losses_of_the_plain_loop(curves: Path, precision: str, tolerance: float) -> None:
    assert not kernels.why_not(), f"the fused kernels are not there: {kernels.why_not()}"
    wanted = plain_losses(curves, precision=precision)
    found = captured_losses(curves, precision=precision, kernels="fused")

    require_same(found, wanted, tolerance, f"fused kernels in {precision}")


def test_the_fused_kernels_give_the_same_bits_in_every_run(curves: Path) -> None:
    first, second = (captured_losses(curves, precision="bf16", kernels="fused") for _ in range(2))

    assert np.array_equal(first, second), "something is summed in the order in which it comes"


def test_curves_that_are_no_numbers_reach_the_loss_and_every_gradient(curves: Path) -> None:
    """A maximum of the GPU returns the other number, and would hide them; Triton's interpreter cannot see that."""
    own = training(curves, cuda_graphs=True, kernels="fused")
    captured, held = own.captured(), resident(own.loader)
    assert held is not None
    held.curves.fill_(math.nan)

    assert np.isnan(numbers(own.replayed(captured, 1, Unstamped()))).all(), "ReLU or pooling took NaN for a number"
    for name, weights in own.bare_model.named_parameters():
        assert weights.isnan().any(), f"no gradient of {name} is NaN"


def test_many_replays_in_a_row_stay_finite(curves: Path) -> None:
    """Several times round the ring of losses, without anybody waiting."""
    own = training(curves, cuda_graphs=True)
    captured = own.captured()
    losses = own.replayed(captured, 3000, Unstamped())

    assert np.isfinite(numbers(losses)).all()
    captured.close()


# --------------------------------------------------------------------------------------------------- measuring there


def test_laps_of_captured_steps_are_those_of_the_device(curves: Path) -> None:
    own = training(curves, cuda_graphs=True)
    captured = own.captured()
    clock = LapClock(device=DeviceStamps())
    own.replayed(captured, 20, Unstamped())
    settle()
    clock.start()
    began = now()
    own.replayed(captured, 500, clock)
    settle()
    whole_s = now() - began
    columns = clock.drain()

    assert set(columns) >= {"compute_s", "residual_s", "step_s"} and "forward_s" not in columns
    np.testing.assert_allclose(columns["compute_s"] + columns["residual_s"], columns["step_s"], rtol=1e-6, atol=1e-9)
    assert (columns["compute_s"] > 0).all(), "a lap of a replayed graph has no time: the event is on another stream"
    assert columns["step_s"].sum() == pytest.approx(whole_s, rel=0.3), "events and the host disagree about 500 steps"


def test_times_that_the_kernels_write_are_those_of_the_host(curves: Path) -> None:
    own = training(curves, cuda_graphs=True, kernels="fused")
    captured = own.captured()
    assert captured.stamps is not None
    clock = LapClock(device=captured.stamps)
    own.replayed(captured, 20, Unstamped())
    sums, spans = [], []
    for _ in range(3):  # 6,000 steps: round the ring
        settle()
        clock.start()
        began = now()
        own.replayed(captured, 2000, clock)
        settle()
        spans.append(now() - began)
        columns = clock.drain()
        sums.append(columns["step_s"].sum())
        assert (columns["compute_s"] > 5e-6).all() and (columns["residual_s"] >= 0).all()
        assert columns["compute_s"].sum() > 0.3 * columns["step_s"].sum(), "a step is between its two times"

    assert np.median(np.divide(sums, spans)) == pytest.approx(1, rel=0.05)


def test_strict_laps_name_the_phases(curves: Path) -> None:
    own = training(curves, cuda_graphs=True)
    clock = LapClock(device=DeviceStamps(), settle=lambda: torch.cuda.current_stream(GPU).synchronize())
    clock.start()
    own.replayed(own.captured(phases=True), 50, clock)
    columns = clock.drain()

    assert {"forward_s", "backward_s", "update_s"} <= set(columns)
    assert all((columns[f"{lap}_s"] > 0).all() for lap in ("forward", "backward", "update"))


def test_rows_are_read_while_the_device_works(curves: Path, tmp_path: Path) -> None:
    """A drain in the loop must read what is made and leave the rest: else the device stands still meanwhile."""
    own = training(curves, cuda_graphs=True)
    captured, clock = own.captured(), LapClock(device=DeviceStamps())
    recorder = Recorder(records.StepWriter(tmp_path, 0), own.config.batch)
    recorder.follow(GPU)
    clock.start()
    made = torch.cuda.Event()  # type: ignore[no-untyped-call]
    # Kernels are loaded when they are first called, which waits for the device: all that follows was called before.
    for step, loss in enumerate(own.replayed(captured, 64, clock)):
        recorder.add(step, 0, loss)
    settle()
    recorder.drain_made(clock)
    recorder.drain(clock)
    torch.cuda._sleep(1000)  # type: ignore[no-untyped-call]
    for step, loss in enumerate(own.replayed(captured, 128, clock), 64):
        recorder.add(step, 0, loss)
    made.record()
    made.synchronize()
    torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]  # half a second of the device, about
    for step, loss in enumerate(own.replayed(captured, 64, clock), 192):
        recorder.add(step, 0, loss)
    end = torch.cuda.Event()  # type: ignore[no-untyped-call]
    end.record()
    began = now()
    recorder.drain_made(clock)
    took_s, working = now() - began, not end.query()  # type: ignore[no-untyped-call]
    left = len(recorder)

    assert working, f"the drain took {took_s:.3f} s: it waited for steps that were given later"
    assert 64 <= left <= 64 + 32, f"{left} of 192 steps are left to read; 64 were not made yet"
    settle()
    recorder.drain(clock)
    assert len(recorder) == 0 and recorder.broken_step is None


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "captured"])
def test_nothing_in_the_hot_loop_waits_for_the_device(curves: Path, graphs: bool) -> None:
    own = training(curves, cuda_graphs=graphs)
    captured = own.captured() if graphs else None
    clock = LapClock(device=DeviceStamps())
    clock.start()

    def steps(count: int) -> None:
        if captured is None:
            own.plain(count, clock)
        else:
            own.replayed(captured, count, clock)

    steps(5)
    finder = Finder()
    with finder.watching(GPU):
        steps(30)
    # The order of an epoch is drawn and copied when it begins, once in 40 steps.
    waits = [str(point) for point in finder.points() if "places" not in point.function]

    assert waits == [], "the host waits for the device in the training loop"


def test_a_wait_in_the_loop_is_found_with_its_line(curves: Path) -> None:
    own, finder = training(curves), Finder()
    with finder.watching(GPU):
        for loss in own.plain(3, Unstamped()):
            loss.item()  # the one to be found
    points = finder.points()

    assert any("the one to be found" in point.source and point.number == 3 for point in points), (
        f"found {[str(point) for point in points]}: set_sync_debug_mode of PyTorch {torch.__version__} warns in other "
        "words than before"
    )


def test_a_profiler_sees_the_kernels_of_a_replayed_graph(curves: Path) -> None:
    own = training(curves, cuda_graphs=True)
    captured = own.captured()
    captured.begin_epoch(torch.zeros(10, own.config.batch, dtype=torch.int64, device=GPU))
    launches = launches_of(lambda: captured.take(None, Unstamped()))

    assert launches is not None, "torch.profiler sees no kernel: CUPTI may need rights here (RmProfilingAdminOnly)"
    assert 10 <= launches <= 300, f"a step of {launches} kernels"


_INJECTED = """
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
typedef void (*Function)(void);
typedef struct { size_t size; int (*table)(int module, Function ***table, unsigned *size); } Callbacks;
static FILE *out;
static int push(const char *name) { fprintf(out, "+%s\\n", name); return 0; }
static int pop(void) { fprintf(out, "-\\n"); return 0; }
int InitializeInjectionNvtx2(const void *(*get)(unsigned)) {
    const Callbacks *callbacks = get(1);
    Function **table;
    unsigned size;
    out = fopen(getenv("RANGES_LOG"), "a");
    if (!out || !callbacks || !callbacks->table(1, &table, &size) || size < 12) return 0;
    setvbuf(out, NULL, _IOLBF, 0);
    *table[9] = (Function)push;
    *table[11] = (Function)pop;
    return 1;
}
"""
"""What a profiler gives to NVTX: functions that are called in place of nvtxRangePushA and nvtxRangePop."""


def test_a_profiler_gets_the_ranges(
    curves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch
) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler, which the CUDA toolkit needs too"
    (tmp_path / "ranges.c").write_text(_INJECTED)
    library, log = tmp_path / "ranges.so", tmp_path / "ranges.log"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "ranges.c"], check=True)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(library))
    monkeypatch.setenv("RANGES_LOG", str(log))
    trained(launch, "none", 1, curves, tmp_path / "run", "--cuda-graphs", "--ranges", "nvtx")
    lines = log.read_text().splitlines()

    assert "+step 0" in lines and "+compute" in lines, f"ranges are {sorted(set(lines))[:10]}"
    assert lines.count("-") == sum(line.startswith("+") for line in lines), "a range is left open"


def test_nvml_knows_the_gpu_of_this_process() -> None:
    """By its UUID: its numbers count all GPUs of the machine, those of PyTorch only the visible ones."""
    told = evidence.gpu_identity(GPU)
    assert told is not None and told["uuid"], "PyTorch tells no UUID"
    gpus = Gpus([told["uuid"]])

    assert gpus.missing == {}, f"NVML does not know it: {gpus.missing}"
    assert gpus.devices["gpu 0"] == told["name"], "NVML's handle is another GPU"
    held = torch.zeros(2**28, device=GPU)  # 1.07 GB
    settle()
    first = gpus.read(0.0)["gpu 0"]
    began = now()
    while now() - began < 1.0:
        held.mul_(1.0)
        settle()
    took_s = now() - began
    second = gpus.read(took_s)["gpu 0"]

    assert gpus.missing == {}, f"NVML does not tell all: {gpus.missing}"
    assert second["gpu_memory_mb"] > 1073, f"{second['gpu_memory_mb']} MB in use, and 1074 MB are ours"
    assert 10 < second["power_w"] < 3000, f"{second['power_w']} W: NVML tells milliwatts"
    mean_w = (second["energy_j"] - first["energy_j"]) / took_s
    assert 10 < mean_w < 3000, f"the counter says {mean_w} W: NVML tells millijoules"
    assert 100 < second["sm_mhz"] < 10_000 and 0 < second["temperature_c"] < 120
    assert second["gpu_percent"] > 0, "the GPU was busy for a second"


def test_what_the_gpu_can_do_is_possible() -> None:
    latency = launch_latency(seconds=0.005)
    assert 0 < latency["graph_s"] < latency["eager_s"], f"a kernel in a graph takes longer than alone: {latency}"
    assert 1e-7 < latency["graph_s"] < 5e-5 and 5e-7 < latency["eager_s"] < 2e-4, f"not in seconds? {latency}"
    kinds = copy_kinds(torch.device("cuda"), 2**26)
    rates = {name: 2**26 / copy_seconds(*pair, 0.01) / 1e9 for name, pair in kinds.items()}
    assert rates["GPU memory"] > rates["host to device, pinned"] > 0, f"copies in GB/s: {rates}"
    assert all(0.1 < rate < 1e5 for rate in rates.values()), f"copies in GB/s: {rates}"
    products = matrix_rates(sizes=(4096,), rounds=2, seconds=0.02, device="cuda")
    peaks = {
        dtype: max(rate.gflops_median for rate in products if rate.dtype == dtype)
        for dtype in ("float32", "tf32", "bf16", "fp16")
    }
    assert 1e3 < peaks["float32"] < min(peaks["bf16"], peaks["fp16"]), f"matrix peaks in GFLOP/s: {peaks}"
    assert peaks["float32"] <= 1.05 * peaks["tf32"], f"TF32 was not switched on: {peaks}"


def test_timer_modes_take_turns_on_captured_steps(curves: Path, tmp_path: Path) -> None:
    plan = {"dataset": str(curves), "seconds": 2.0, "rounds": 5}
    config = replace(CONFIG, cuda_graphs=True, dataset=str(curves))
    threads = torch.get_num_threads()
    found = timers.measure(plan, config, open_backend(config, detect({})), folder=tmp_path)
    torch.set_num_threads(threads)

    assert found["device"].endswith("CUDA graphs, torch kernels")
    assert all(seconds > 0 for blocks in found["block_s"].values() for seconds in blocks)
    assert found["calls_s"]["light"] < 1e-3, f"recording a step takes {found['calls_s']['light']} s"


# ------------------------------------------------------------------------------------------------------- loaders


@pytest.mark.parametrize("loader", ["memory", "prefetch", "device", "dataloader"])
@pytest.mark.parametrize("pin", [False, True], ids=["pageable", "pinned"])
def test_batches_arrive_on_the_gpu_as_they_are(curves: Path, loader: str, pin: bool) -> None:
    dataset = data.open_dataset(curves)
    batches = data.Batches(dataset.train_size, batch=75, rank=0, workers=1, seed=1)
    own = open_loader(StrainConfig(batch=75, loader=loader, pin_memory=pin), dataset, batches, GPU)
    for step, (rows, (found, targets)) in enumerate(zip(batches.epoch(0), own.epoch(0), strict=True)):
        found.mul_(1.0)  # as a step would: on the stream of the step, before the next batch is asked for
        if step % 8:
            continue
        assert found.device == GPU, f"loader {loader} leaves batches on {found.device}"
        assert torch.equal(found.cpu(), torch.from_numpy(dataset.curves[rows])), (
            f"batch {step} of loader {loader} is not what it should be: a buffer was filled again before it was copied"
        )
        assert torch.equal(targets.cpu(), torch.from_numpy(dataset.targets[rows]))
    own.close()


# ---------------------------------------------------------------------------------------------------- whole runs


def trained(launch: Launch, launcher: str, workers: int, curves: Path, out: Path, *options: str) -> dict[str, Any]:
    """Train 300 steps, or the seconds that `options` give; return what --json prints."""
    done = launch(
        *(launcher, workers, "--dataset", str(curves), "--device", GPU.type, "--loader", "device", "--out", str(out)),
        *("--warmup-steps", "50", "--batch", "75", "--input-scaling", "standard", "--lr", "1e-4"),
        *("--lr-scaling", "none", "--json", *(() if "--seconds" in options else ("--steps", "300")), *options),
        timeout_s=LIMIT_S - 5,
    )
    assert done.returncode == 0, f"{' '.join(map(str, done.args))}\n{done.stderr[-3000:]}"
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def column(out: Path, name: str, rank: int = 0) -> np.ndarray:
    return np.asarray(records.read_steps(out, rank).column(name).to_numpy())


@pytest.mark.parametrize(
    ("options", "laps"),
    [
        ((), ("data", "forward", "backward", "sync", "update")),
        (("--cuda-graphs",), ("compute",)),
        (("--cuda-graphs", "--kernels", "fused", "--precision", "bf16"), ("compute",)),
        (("--cuda-graphs", "--timer-mode", "strict"), ("forward", "backward", "sync", "update")),
    ],
    ids=["plain", "graphs", "fused", "strict"],
)
def test_a_run_is_recorded(
    curves: Path, tmp_path: Path, launch: Launch, options: tuple[str, ...], laps: tuple[str, ...]
) -> None:
    result = trained(launch, "none", 1, curves, tmp_path / "run", *options)

    assert {name for name, value in result["laps_ms"].items() if value is not None} == {*laps, "residual"}
    assert math.isfinite(result["test_mse"]) and result["step_ms_median"] > 0
    assert np.isfinite(column(tmp_path / "run", "loss")).all()


def test_energy_is_known_by_counter_and_by_integral(curves: Path, tmp_path: Path, launch: Launch) -> None:
    trained(
        *(launch, "none", 1, curves, tmp_path / "run", "--cuda-graphs", "--system-interval-s", "0.1"),
        *("--seconds", "8"),
    )
    energy = records.read_run(tmp_path / "run").totals["energy"]

    assert energy["counter_j"] is not None and energy["integral_j"] is not None, f"not known: {energy['reason']}"
    assert energy["integral_j"] == pytest.approx(energy["counter_j"], rel=0.3), "they disagree about the same seconds"


def test_two_workers_share_the_gpu_over_mpi(curves: Path, tmp_path: Path, launch: Launch) -> None:
    """Gradients go through page-locked host memory where MPI takes no pointers to the GPU."""
    require_same_with_graphs(launch, "mpirun", curves, tmp_path, "--backend", "mpi")


def test_two_workers_share_the_gpu_over_gloo(curves: Path, tmp_path: Path, launch: Launch) -> None:
    require_same_with_graphs(launch, "torchrun", curves, tmp_path, "--backend", "ddp", "--transport", "gloo")


def require_same_with_graphs(launch: Launch, launcher: str, curves: Path, folder: Path, *options: str) -> None:
    own = ("--steps", "120", "--warmup-steps", "20", "--reduction", "flat", "--system-interval-s", "0", *options)
    trained(launch, launcher, 2, curves, folder / "plain", *own)
    result = trained(launch, launcher, 2, curves, folder / "graphs", "--cuda-graphs", *own)

    assert {name for name, value in result["laps_ms"].items() if value is not None} >= {"compute", "sync", "update"}
    for rank in range(2):
        found, wanted = (column(folder / name, "loss", rank)[:STEPS] for name in ("graphs", "plain"))
        require_same(found, wanted, EXACT, f"rank {rank} of two with CUDA graphs")


def test_nccl_takes_no_two_workers_on_one_gpu(
    curves: Path, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{evidence.gpu_identity(GPU)['uuid']}")  # of several, one
    done = launch(
        *("torchrun", 2, "--backend", "ddp", "--transport", "nccl", "--dataset", str(curves), "--steps", "5"),
        *("--out", str(tmp_path / "run")),
        timeout_s=LIMIT_S - 5,
    )

    assert done.returncode != 0
    assert "NCCL needs a GPU for each worker" in done.stderr, done.stderr[-3000:]


# ------------------------------------------------------------------------------------- a GPU for each of two workers

ONE_EACH = """
import os, runpy
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
runpy.run_module("horovod_study.train", run_name="__main__", alter_sys=True)
"""


def require_same_as_one(launch: Launch, launcher: str, curves: Path, folder: Path, *options: str) -> None:
    """Two workers over NCCL make the losses of one whose batch is both of theirs."""
    short = ("--steps", "120", "--warmup-steps", "20", "--system-interval-s", "0")
    trained(launch, "none", 1, curves, folder / "one", *short, "--batch", "150")
    trained(launch, launcher, 2, curves, folder / "two", *short, "--transport", "nccl", *options)

    gpus = [rank["gpu"]["uuid"] for rank in records.read_run(folder / "two").effective["ranks"]]
    assert len(set(gpus)) == 2, f"both train on the same GPU: {gpus}"
    shares = [column(folder / "two", "loss", rank)[:STEPS] for rank in range(2)]
    require_same(np.mean(shares, axis=0), column(folder / "one", "loss")[:STEPS], EXACT, f"two workers {options}")


if torch.cuda.device_count() > 1:  # elsewhere there is nothing to skip

    @pytest.mark.parametrize(
        "options",
        [
            ("--reduction", "flat"),
            ("--reduction", "hooks"),
            ("--cuda-graphs",),
            ("--cuda-graphs", "--capture-sync"),
            ("--cuda-graphs", "--capture-sync", "--kernels", "fused"),
        ],
        ids=" ".join,
    )
    def test_two_workers_of_ddp_learn_what_one_learns(
        curves: Path, tmp_path: Path, launch: Launch, options: tuple[str, ...]
    ) -> None:
        require_same_as_one(launch, "torchrun", curves, tmp_path, "--backend", "ddp", *options)

    def test_two_workers_that_see_one_gpu_each_learn_what_one_learns(
        curves: Path, tmp_path: Path, launch: Launch
    ) -> None:
        program = tmp_path / "one_each.py"
        program.write_text(ONE_EACH)

        def start(launcher: str, workers: int, *options: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
            if workers == 1:
                return launch(launcher, workers, *options, timeout_s=timeout_s)
            line = [str(Path(sys.executable).parent / launcher), "--standalone", "--nproc-per-node", str(workers)]
            line += [str(program), *options]
            return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s)

        require_same_as_one(start, "torchrun", curves, tmp_path, "--backend", "ddp")

    def test_two_workers_of_horovod_learn_what_one_learns(curves: Path, tmp_path: Path, launch: Launch) -> None:
        if "nccl" not in builds.available():
            pytest.skip("no build of Horovod with NCCL: `make setup` makes it on a GPU machine")
        require_same_as_one(launch, "mpirun", curves, tmp_path, "--backend", "horovod", "--cuda-graphs")


# --------------------------------------------------------------------------------------------------- NCCL, one rank


def test_a_graph_can_hold_an_all_reduce_of_nccl() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    torch.cuda.set_device(GPU)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        given = torch.ones(1000, device=GPU)
        total = torch.empty_like(given)

        def work() -> None:
            total.copy_(given)
            dist.all_reduce(total)
            total.mul_(2.0)

        stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(GPU))
        with torch.cuda.stream(stream):
            work()  # NCCL connects
        settle()
        graph = DeviceGraph(stream, torch.cuda.graph_pool_handle())
        graph.capture(work)
        given.fill_(3.0)
        graph.replay()
        settle()

        assert torch.equal(total, torch.full_like(total, 6.0)), f"{total[:3]} is not twice the sum over one rank"
    finally:
        dist.destroy_process_group()


def test_one_worker_of_ddp_over_nccl_trains_with_its_sync_captured(
    curves: Path, tmp_path: Path, launch: Launch
) -> None:
    """One worker averages nothing, so that this is about starting; the test before has an all-reduce in a graph."""
    nccl = ("--backend", "ddp", "--transport", "nccl", "--cuda-graphs", "--capture-sync")
    result = trained(launch, "torchrun", 1, curves, tmp_path / "run", *nccl)

    assert result["laps_ms"]["compute"] > 0 and math.isfinite(result["test_mse"])


def test_horovod_over_nccl_trains_one_worker(curves: Path, tmp_path: Path, launch: Launch) -> None:
    if "nccl" not in builds.available():
        pytest.skip(
            f"no build of Horovod with NCCL in {builds.builds_folder()}: `make setup` makes it on a GPU machine"
        )
    result = trained(
        *(launch, "mpirun", 1, curves, tmp_path / "run", "--cuda-graphs"),
        *("--backend", "horovod", "--transport", "nccl"),
    )

    assert (result["backend"], result["transport"]) == ("horovod", "nccl")
    assert result["laps_ms"]["compute"] > 0 and math.isfinite(result["test_mse"])


def test_the_benchmark_of_one_rank_over_nccl(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "horovod_study.cli", "bench", "--workers", "1", "--transport", "nccl", "--runtime"]
    line += ["--sizes", "4", "1M", "--seconds", "2", "--rounds", "3", "--json", "--out", str(tmp_path / "bench")]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=LIMIT_S - 5, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert {row["way"] for row in found["points"]} == {"nccl"} and found["wrong"] == 0
    assert found["launch"]["graph_s"] < found["launch"]["eager_s"]
    assert found["step_roofline"]["launches"] is None or found["step_roofline"]["launches"] > 20
    assert any(row["name"] == "GPU memory" and row["gb_per_s_median"] > 10 for row in found["copies"])
