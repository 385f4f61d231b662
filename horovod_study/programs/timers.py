"""What measuring itself costs: the same training steps in every timer mode, alternating in one process.

    python -m horovod_study.programs.timers PLAN.json        on every rank, under a launcher; rank 0 answers

Two processes of the same program differ by more than what is looked for here, and so do two models in one process:
their memory is elsewhere. So there is one model, one optimiser and one stream of batches, and blocks of a few steps
alternate, one of each way in a round, in an order shuffled again in every round. What the machine does within a second
hits all blocks of a round alike, and only blocks of one round are compared (analysis/steps/timers.py).

A way is what is different: the clock that training has in a timer mode with a recorder of its own that writes rows to a
file of its own, or a profiler around the step. `off` is there twice: the second one, `control`, shows what the method
finds where there is nothing to be found.

With CUDA graphs, off and light share the graphs of the whole step; strict has graphs of its own, of the phases, as in
training.

Rows are written between the blocks, as rarely as in training, and that is timed by itself: a block that happens to
contain the writing would stand out, and be taken for a disturbance.
"""

import cProfile
import itertools
import math
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from horovod_study import records
from horovod_study.comm import Backend, Launch, fail_together, gpus, open_backend
from horovod_study.config import ORDINARY_LAPS, TIMER_MODES
from horovod_study.errors import ConfigError
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import KernelStamps, LapClock, now, open_clock, utc_now
from horovod_study.measure.recorder import DRAIN_S, DRAIN_STEPS, Recorder
from horovod_study.programs.answer import ROWS, serve
from horovod_study.workload import dataset as data
from horovod_study.workload.allocator import keep_freed_memory
from horovod_study.workload.graphs import RING, CapturedStep
from horovod_study.workload.loaders import Loader, feed, open_loader, resident
from horovod_study.workload.model import StressCNN
from horovod_study.workload.optimizer import Arithmetic, accelerate, make_optimizer
from horovod_study.workload.options import StrainConfig, parse_widths, strain_config
from horovod_study.workload.trainer import train_step

BESIDE = ("nothing", "torch.profiler", "cProfile", "module hooks")
"""What a user would do otherwise; `nothing` keeps not even the losses, to see what mode off costs."""

_LEAD_STEPS = 1
"""Steps at the begin of each block that are not timed: they follow steps of another way, and a barrier."""

WARMUP_STEPS = 20
CALLS = 2000
"""Steps without any work that are recorded to see what the calls take by themselves."""

_MAX_ROUNDS = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerPlan:
    """What one launch of ranks measures: `rounds` of blocks, or as many as fit into `seconds`."""

    dataset: str
    seconds: float
    rounds: int | None = None
    steps_per_block: int | None = None
    beside: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        for option, value, low in (
            ("rounds", self.rounds, 3),
            ("steps-per-block", self.steps_per_block, 1),
            ("seed", self.seed, 0),
        ):
            if value is not None and value < low:
                raise ConfigError(f"bench timers: --{option} is {value}; it must be at least {low}")
        if self.rounds is not None and self.rounds > _MAX_ROUNDS:
            raise ConfigError(f"bench timers: --rounds is {self.rounds}; at most {_MAX_ROUNDS:,} rounds are kept")
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ConfigError(f"bench timers: --seconds is {self.seconds:g}; it must be greater than 0")

    @property
    def variants(self) -> tuple[str, ...]:
        """All ways that alternate."""
        return (*TIMER_MODES, "control", *(BESIDE if self.beside else ()))

    def every(self, variant: str) -> int:
        """Return 1 for a way that is in every round, k for one in every k-th from the first on."""
        # profilers cost so much that a few blocks are enough
        return 5 if variant in BESIDE else 1


@dataclass(kw_only=True)
class _Variant:
    """One way to make a step: its clock and recorder, what goes around a block, and what was found."""

    clock: LapClock
    laps: tuple[str, ...]  # of each step
    phases: bool = False  # graphs of their own for forward and backward
    steps: int = 0  # of a block that are timed
    writer: records.StepWriter | None = None
    recorder: Recorder | None = None
    around: Callable[[], AbstractContextManager[Any]] | None = None  # of a block, its untimed steps included
    block_s: list[float] = field(default_factory=list)  # of the timed steps
    around_s: list[float] = field(default_factory=list)  # entering and leaving `around`
    drains: list[tuple[int, float]] = field(default_factory=list)  # rows, seconds


def measure(
    plan: TimerPlan,
    config: StrainConfig,
    backend: Backend,
    folder: Path,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return what was measured on all ranks; collective, and the same on all of them.

    `block_s`: for each way one number per round, or per `every`-th round, the first one included: the seconds of the
    slowest rank for so many `steps`.
    `drains`: for each way what writing rows took, [rows, seconds]. `around_s`: starting and stopping of what is around
    a block. `calls_s`: for each timer mode the seconds that recording one step takes where there is no step, writing
    included. Files are written into `folder`.
    """
    keep_freed_memory()
    torch.set_num_threads(config.threads)
    device = gpus.take(config.device, backend)
    places = backend.gather((os.uname().nodename, environment.affinity()))
    here = places[backend.rank][0]
    load = evidence.OtherLoad(sorted({core for host, cores in places if host == here for core in cores}))
    with fail_together(backend):
        dataset = data.open_dataset(Path(plan.dataset))
        batches = data.Batches(
            dataset.train_size, batch=config.batch, rank=backend.rank, workers=backend.workers, seed=config.seed
        )
        loader = open_loader(config, dataset, batches, device)
        steps = _ModelSteps(config, backend, device, loader, batches.steps_per_epoch)
        # None are called in a CUDA graph.
        names = [name for name in plan.variants if not (config.cuda_graphs and name == "module hooks")]
        variants = _open_variants(names, config, backend, device, steps, folder)
    try:
        rows_per_drain = _calibrate(plan, backend, steps, variants)
        shuffle = random.Random(plan.seed)
        began = now()
        for done in itertools.count(1):
            due = [name for name in names if (done - 1) % plan.every(name) == 0]
            for name in shuffle.sample(due, len(due)):
                steps.block(variants[name])
                if (recorder := variants[name].recorder) is not None and len(recorder) >= rows_per_drain:
                    _drain(variants[name])
            spent_s = backend.maximum(now() - began)
            if on_progress:
                whole = spent_s / plan.seconds if plan.rounds is None else done / plan.rounds
                step_ms = variants["off"].block_s[-1] / variants["off"].steps * 1e3
                on_progress(f"round {done}, {step_ms:.2f} ms a step, {100 * min(1.0, whole):.0f} %")
            if done >= (plan.rounds or _MAX_ROUNDS) or (plan.rounds is None and done >= 3 and spent_s >= plan.seconds):
                break
        for variant in variants.values():  # too short for a full one
            if variant.recorder is not None and len(variant.recorder) and not variant.drains:
                _drain(variant)
        calls_s = {mode: _calls(variants[mode], steps.loss, rows_per_drain) for mode in TIMER_MODES}
    finally:
        steps.close()
        loader.close()
        for variant in variants.values():
            if variant.writer is not None:
                variant.writer.close()
    samples = backend.gather(load.sample(at_least_s=0.0))
    others = evidence.other_cores(samples, [{"host": host} for host, _ in places])
    return {
        "backend": backend.name,
        "transport": backend.transport,
        "reduction": backend.reduction,
        "workers": backend.workers,
        "hosts": [host for host, _ in places],
        "batch": config.batch,
        "threads": config.threads,
        "device": (torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu")
        + (f", CUDA graphs, {config.kernels} kernels" if config.cuda_graphs else ""),
        "plan": asdict(plan),
        "config": config.to_dict(),
        "ways": names,
        "steps": {name: variant.steps for name, variant in variants.items()},
        "every": {name: plan.every(name) for name in variants},
        "lead_steps": _LEAD_STEPS,
        "rows_per_drain": rows_per_drain,
        "seconds": now() - began,
        **_of_all_ranks(backend, variants, calls_s),
        "measured": utc_now(),
        "other_cores": max((each for each in others.values() if each is not None), default=None),
        "cores": psutil.cpu_count(),
        "environment": environment.describe(),
    }


def _of_all_ranks(backend: Backend, variants: Mapping[str, _Variant], calls_s: Mapping[str, float]) -> dict[str, Any]:
    """Return the times of the rank that took longest; collective."""
    everybody = backend.gather(
        {
            "block_s": {name: variant.block_s for name, variant in variants.items()},
            "around_s": {name: variant.around_s for name, variant in variants.items() if variant.around_s},
            "drains": {name: variant.drains for name, variant in variants.items() if variant.recorder is not None},
            "calls_s": calls_s,
        }
    )
    return {
        "block_s": _slowest([rank["block_s"] for rank in everybody]),
        "around_s": _slowest([rank["around_s"] for rank in everybody]),
        "drains": {
            name: [
                [rows, max(rank["drains"][name][place][1] for rank in everybody)]
                for place, (rows, _) in enumerate(drains)
            ]
            for name, drains in everybody[0]["drains"].items()
        },
        "calls_s": {mode: max(rank["calls_s"][mode] for rank in everybody) for mode in TIMER_MODES},
    }


def _slowest(ranks: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return for each way the numbers of the rank that took longest, block by block."""
    return {name: [max(values) for values in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}


class _Stream:
    """Batches without end. The order of an epoch is drawn when it begins, and that is kept out of the blocks."""

    def __init__(self, begin: Callable[[int], Iterator[Any]], steps_per_epoch: int) -> None:
        """`begin` gives the batches of an epoch; for steps that gather their own, None for each."""
        self._begin_epoch, self._per_epoch = begin, steps_per_epoch
        self._epoch, self._left = 0, 0
        self._batches: Iterator[Any] = iter(())

    def ready(self, steps: int) -> None:
        """Begin another epoch if this one has not so many steps left."""
        if self._left < min(steps, self._per_epoch):
            self._begin()

    def __next__(self) -> Any:
        if not self._left:
            self._begin()
        self._left -= 1
        return next(self._batches)

    def _begin(self) -> None:
        self._batches, self._left = self._begin_epoch(self._epoch), self._per_epoch
        self._epoch += 1


class _ModelSteps:
    """The trainer's step on one model, in blocks."""

    def __init__(
        self, config: StrainConfig, backend: Backend, device: torch.device, loader: Loader, steps_per_epoch: int
    ) -> None:
        self._backend, self._device = backend, device
        torch.manual_seed(config.seed)
        self._arithmetic = Arithmetic(config, device)
        self.bare_model = StressCNN(
            widths=parse_widths(config.widths), input_scaling=config.input_scaling, memory_format=config.memory_format
        ).to(device)
        bare_optimizer, _ = make_optimizer(config, self.bare_model.parameters(), workers=backend.workers)
        called = accelerate(self.bare_model, config, device)
        self._model, self._optimizer = backend.bind(called, bare_optimizer)
        self._arithmetic.bind(self.bare_model, self._optimizer, backend)
        shared = _Stream(loader.epoch, steps_per_epoch)
        self._streams = {False: shared, True: shared}
        self.captured: dict[bool, CapturedStep] = {}  # with graphs of the phases or without -> the step
        for phases in (False, True) if config.cuda_graphs else ():
            self.captured[phases] = captured = CapturedStep(
                config,
                model=self._model,
                bare_model=self.bare_model,
                optimizer=self._optimizer,
                backend=backend,
                arithmetic=self._arithmetic,
                device=device,
                resident=resident(loader),
                phases=phases,
            )
            if resident(loader) is not None:  # each gathers its own batches, and knows which come next
                self._streams[phases] = _Stream(partial(feed, loader, captured), steps_per_epoch)
        self._step = 0
        self.loss = torch.zeros((), device=device)

    def block(self, variant: _Variant) -> None:
        """Make a block of steps `variant`, untimed ones first, and note the seconds of the others on this rank."""
        self._streams[variant.phases].ready(_LEAD_STEPS + variant.steps)
        self._backend.barrier()
        with ExitStack() as stack:
            entered = now()
            if variant.around is not None:
                stack.enter_context(variant.around())
            began = now()
            self._make(variant, _LEAD_STEPS)
            self._settle()
            opened = now()
            self._make(variant, variant.steps)
            self._settle()
            closed = now()
            variant.block_s.append(closed - opened)
            stack.close()
            if variant.around is not None:
                variant.around_s.append(now() - closed + began - entered)

    def _make(self, variant: _Variant, count: int) -> None:
        clock, recorder, stream, step = variant.clock, variant.recorder, self._streams[variant.phases], self._step
        captured = self.captured.get(variant.phases)
        model, optimizer, backend, arithmetic = self._model, self._optimizer, self._backend, self._arithmetic
        # The lines of the training loop: the batch, the step, and what is kept of it.
        for _ in range(count):
            clock.begin(None if captured is None else captured.begin_of_next(clock))
            batch = next(stream)
            if captured is None:
                curves, targets = batch  # (B, C, L), (B, P)
                clock.lap("data")
                loss = train_step(model, optimizer, curves, targets, backend, clock, arithmetic)
                norm2 = backend.local_norm2
            else:
                loss = captured.take(batch, clock)
                norm2 = captured.norm2
            if recorder is not None:
                recorder.add(step, 0, loss, None if arithmetic.scaler else norm2)
            step += 1
        self._step, self.loss = step, loss

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Free the graphs."""
        for captured in self.captured.values():
            captured.close()


def _open_variants(
    names: Sequence[str], config: StrainConfig, backend: Backend, device: torch.device, steps: _ModelSteps, folder: Path
) -> dict[str, _Variant]:
    """Return the ways by name; those with a recorder write into folders of their own."""
    around: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "torch.profiler": torch.profiler.profile,
        "cProfile": cProfile.Profile,
        "module hooks": lambda: _module_hooks(steps.bare_model),
    }
    variants = {}
    for name in names:
        phases = config.cuda_graphs and name == "strict"
        stamps = steps.captured[phases].stamps if steps.captured else None
        variant = _Variant(
            clock=open_clock(name if name in TIMER_MODES else "off", device, stamps=stamps),
            laps=steps.captured[phases].laps if steps.captured else ORDINARY_LAPS,
            phases=phases,
            around=around.get(name),
        )
        variant.clock.start()  # an endless stretch
        if name != "nothing":
            own = folder / name.replace(" ", "-")
            own.mkdir(parents=True, exist_ok=True)
            variant.writer = records.StepWriter(own, backend.rank)
            variant.recorder = Recorder(variant.writer, config.batch, rank=backend.rank)
        variants[name] = variant
    return variants


@contextmanager
def _module_hooks(model: nn.Module) -> Iterator[None]:
    """Stamp the begin and the end of every layer's forward and backward, as hand-made timers do."""
    stamps: list[tuple[str, float]] = []
    hooks = []
    for name, layer in model.named_modules():
        if next(layer.children(), None) is not None:
            continue

        def stamp(*_: Any, name: str = name) -> None:
            stamps.append((name, now()))

        hooks += [layer.register_forward_pre_hook(stamp), layer.register_forward_hook(stamp)]
        if next(layer.parameters(), None) is not None:
            hooks += [layer.register_full_backward_pre_hook(stamp), layer.register_full_backward_hook(stamp)]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")  # of the first layer
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _calibrate(plan: TimerPlan, backend: Backend, steps: _ModelSteps, variants: Mapping[str, _Variant]) -> int:
    """Warm up every way and choose its steps; return the rows at which training writes. Equal on all ranks."""
    off = variants["off"]
    off.steps = WARMUP_STEPS
    for _ in range(2):  # the first one is slow
        steps.block(off)
    step_s = backend.maximum(min(off.block_s) / WARMUP_STEPS)
    # Short, so that the blocks of a round are neighbours. Steps of 2.8 ms recorded for 25 s on a busy machine and cut
    # into blocks of 1, 5, 15 and 50 steps give intervals of +-0.13, 0.15, 0.28 and 0.51 % where there is nothing to be
    # found.
    count = plan.steps_per_block or max(2, round(0.012 / step_s))
    for name, variant in variants.items():
        variant.steps = max(count, 20) if name in BESIDE else count
        steps.block(variant)
        if variant.recorder is not None:
            _drain(variant)
        variant.block_s, variant.around_s, variant.drains = [], [], []
    rows = max(1, min(DRAIN_STEPS, round(DRAIN_S / step_s)))
    # The losses of captured steps are in rings that ways share: they are read before one has gone round.
    return max(1, min(rows, RING // (2 * len(variants)))) if steps.captured else rows


def _drain(variant: _Variant) -> None:
    assert variant.recorder is not None
    rows, began = len(variant.recorder), now()
    variant.recorder.drain(variant.clock)
    variant.drains.append((rows, now() - began))


def _calls(variant: _Variant, loss: torch.Tensor, rows_per_drain: int) -> float:
    """Return the seconds that recording a step takes where there is none: the calls one after the other, and writing.

    Everything they need is in the processor's cache then, which it need not be in training.
    """
    clock, recorder = variant.clock, variant.recorder
    assert recorder is not None
    recorder.drain(clock)
    if isinstance(clock.device, KernelStamps):  # without steps no kernel writes a time, and a stamp would be a launch
        clock = LapClock()
        clock.start()
    began = now()
    for step in range(CALLS):
        clock.begin()
        for lap in variant.laps:
            clock.lap(lap)
        recorder.add(step, 0, loss, None)
        if len(recorder) >= rows_per_drain:
            recorder.drain(clock)
    recorder.drain(clock)
    return (now() - began) / CALLS


def _work(
    path: Path, content: Mapping[str, Any], launch: Launch, on_progress: Callable[[str], None]
) -> Mapping[str, Any]:
    plan, config = TimerPlan(**content["plan"]), strain_config(content["config"], source="bench timers")
    backend = open_backend(config, launch)
    result = measure(plan, config, backend, path.parent / ROWS, on_progress=on_progress)
    backend.close()
    return result


if __name__ == "__main__":
    serve(_work)
