"""What measuring itself costs: the same training steps in every timer mode, alternating in one process.

    python -m horovod_study.programs.timers PLAN.json        on every rank, under a launcher; rank 0 answers

One model, one optimiser and one stream of batches make blocks of a few steps, one of each way in a round, in an order
shuffled again in every round, and only blocks of one round are compared (analysis/compare/comparison.py). A way is the
clock that training has in a timer mode, with a recorder and a file of its own. `off` is there twice: the second one,
`control`, shows what the method finds where there is nothing to be found. With CUDA graphs, off and light share the
graphs of the whole step; strict has graphs of its own, of the phases. Rows are written between the blocks, as rarely as
in training, and that is timed by itself.
"""

import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from horovod_study import records
from horovod_study.comm import Backend, fail_together, gpus
from horovod_study.config.run import ORDINARY_LAPS, TIMER_MODES
from horovod_study.measure import environment, evidence
from horovod_study.measure.clock import KernelStamps, LapClock, now, open_clock, utc_now
from horovod_study.measure.recorder import DRAIN_S, DRAIN_STEPS, Recorder
from horovod_study.programs.answer import ROWS, Told, serve_measurement
from horovod_study.programs.loading import LoneStep
from horovod_study.strain import dataset as data
from horovod_study.strain.graphs import RING, CapturedStep
from horovod_study.strain.loaders import feed, open_loader, resident
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.room import keep_freed_memory
from horovod_study.strain.trainer import train_step

_LEAD_STEPS = 1  # steps at the begin of each block that are not timed: they follow steps of another way, and a barrier

_MOST_ROUNDS = 20_000


@dataclass(kw_only=True)
class _Variant:
    """One way to make a step: its clock and recorder, and what was found."""

    clock: LapClock
    laps: tuple[str, ...]  # of each step
    phases: bool = False  # graphs of their own for forward and backward
    recorder: Recorder
    steps: int = 0  # of a block that are timed
    block_s: list[float] = field(default_factory=list)  # of the timed steps
    drains: list[tuple[int, float]] = field(default_factory=list)  # rows, seconds

    def drain(self) -> None:
        """Write the rows, and note what that takes."""
        rows, began = len(self.recorder), now()
        self.recorder.drain(self.clock)
        self.drains.append((rows, now() - began))


def measure(
    plan: Mapping[str, Any],
    config: StrainConfig,
    backend: Backend,
    on_progress: Told = lambda text: None,
    *,
    folder: Path,
) -> dict[str, Any]:
    """Return what was measured on all ranks; collective, and the same on all of them.

    `plan`: the path of a `dataset`; `seconds`, or `rounds` of blocks; and where they are not the usual ones
    `steps_per_block` and `seed` of the order. Files are written to `folder`.

    `block_s`: for each way one number per round: the seconds of the slowest rank for so many `steps`. `drains`: for
    each way what writing rows took, [rows, seconds]. `calls_s`: for each timer mode the seconds that recording one step
    takes where there is no step, writing included.
    """
    plan = {"rounds": None, "steps_per_block": None, "seed": 1, **plan}
    keep_freed_memory()
    torch.set_num_threads(config.threads)
    device = gpus.take(config.device, backend)
    places = backend.gather((os.uname().nodename, environment.affinity()))
    here = places[backend.rank][0]
    load = evidence.OtherLoad(sorted({core for host, cores in places if host == here for core in cores}))
    with ExitStack() as stack:
        with fail_together(backend):
            steps = _ModelSteps(config, backend, device, Path(plan["dataset"]), folder, stack)
        rows_per_drain = steps.calibrate(plan["steps_per_block"])
        began = now()
        steps.alternate(plan, rows_per_drain, on_progress)
        calls_s = {mode: steps.calls(mode, rows_per_drain) for mode in TIMER_MODES}
    variants = steps.variants
    mine: dict[str, Any] = {"block_s": {name: each.block_s for name, each in variants.items()}}
    mine["drains"] = {name: each.drains for name, each in variants.items()}
    everybody = backend.gather({**mine, "calls_s": calls_s})
    samples = backend.gather(load.sample(at_least_s=0.0))
    others = evidence.other_cores(samples, [{"host": host} for host, _ in places])
    captured = f", CUDA graphs, {config.kernels} kernels" if config.cuda_graphs else ""
    return {
        "backend": backend.name,
        **{name: getattr(backend, name) for name in ("transport", "reduction", "workers")},
        "hosts": [host for host, _ in places],
        "batch": config.batch,
        "threads": config.threads,
        "device": (torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu") + captured,
        "plan": plan,
        "config": vars(config),
        "ways": list(variants),
        "steps": {name: variant.steps for name, variant in variants.items()},
        "lead_steps": _LEAD_STEPS,
        "rows_per_drain": rows_per_drain,
        "seconds": now() - began,
        # of the rank that took longest, block by block
        **{
            kind: {name: np.max([rank[kind][name] for rank in everybody], axis=0).tolist() for name in values}
            for kind, values in everybody[0].items()
        },
        "measured": utc_now(),
        "other_cores": max((each for each in others.values() if each is not None), default=None),
        "cores": psutil.cpu_count(),
        "environment": environment.describe(),
    }


class _Stream:
    """Batches without end. The order of an epoch is drawn when it begins, and that is kept out of the blocks."""

    def __init__(self, begin: Callable[[int], Iterator[Any]], steps_per_epoch: int) -> None:
        """`begin` gives the batches of an epoch; for steps that gather their own, None for each."""
        self._begin, self._per_epoch, self._epochs, self._left = begin, steps_per_epoch, itertools.count(), 0

    def ready(self, steps: int = 1) -> None:
        """Begin another epoch if this one has not so many steps left."""
        if self._left < min(steps, self._per_epoch):
            self._batches, self._left = self._begin(next(self._epochs)), self._per_epoch

    def __next__(self) -> Any:
        self.ready()
        self._left -= 1
        return next(self._batches)


class _ModelSteps:
    """The trainer's step on one model, in blocks of each way."""

    def __init__(
        self, config: StrainConfig, backend: Backend, device: torch.device, dataset: Path, out: Path, stack: ExitStack
    ) -> None:
        """All is open until `stack` is left; each way writes into a folder of its own below `out`."""
        self._backend = backend
        who: dict[str, Any] = {"rank": backend.rank, "workers": backend.workers, "seed": config.seed}
        opened = data.open_dataset(dataset)
        batches = data.Batches(opened.train_size, batch=config.batch, **who)
        loader = open_loader(config, opened, batches, device)
        stack.callback(loader.close)
        self._lone = lone = LoneStep(config, device, backend)
        shared = _Stream(loader.epoch, batches.steps_per_epoch)
        self._streams = {False: shared, True: shared}
        self._captured: dict[bool, CapturedStep] = {}  # with graphs of the phases or without -> the step
        parts = {name: getattr(lone, name) for name in ("model", "bare_model", "optimizer", "backend", "arithmetic")}
        parts |= {"device": device, "resident": resident(loader)}
        for phases in (False, True) if config.cuda_graphs else ():
            self._captured[phases] = captured = CapturedStep(config, **parts, phases=phases)
            stack.callback(captured.close)
            if resident(loader) is not None:  # each gathers its own batches, and knows which come next
                self._streams[phases] = _Stream(partial(feed, loader, captured), batches.steps_per_epoch)
        self._step, self._loss = 0, torch.zeros((), device=device)
        self.variants: dict[str, _Variant] = {}
        for name in (*TIMER_MODES, "control"):
            step = self._captured.get(phases := config.cuda_graphs and name == "strict")
            (out / name).mkdir(parents=True, exist_ok=True)
            writer = records.StepWriter(out / name, backend.rank)
            stack.callback(writer.close)
            stamps, laps = (None, ORDINARY_LAPS) if step is None else (step.stamps, step.laps)
            clock = open_clock(name if name in TIMER_MODES else "off", device, stamps=stamps)
            recorder = Recorder(writer, config.batch, rank=backend.rank)
            self.variants[name] = _Variant(clock=clock, laps=laps, phases=phases, recorder=recorder)
            clock.start()  # an endless stretch

    def calibrate(self, steps_per_block: int | None) -> int:
        """Warm up every way and choose its steps; return the rows at which training writes. Equal on all ranks."""
        off = self.variants["off"]
        off.steps = 20
        for _ in range(2):  # the first one is slow
            self.block(off)
        step_s = self._backend.maximum(min(off.block_s) / off.steps)
        # Short, so that the blocks of a round are neighbours. Steps of 2.8 ms recorded for 25 s on a busy machine and
        # cut into blocks of 1, 5, 15 and 50 steps give intervals of +-0.13, 0.15, 0.28 and 0.51 % where there is
        # nothing to be found.
        count = steps_per_block or max(2, round(0.012 / step_s))
        for variant in self.variants.values():
            variant.steps = count
            self.block(variant)
            variant.drain()
            variant.block_s, variant.drains = [], []
        rows = max(1, min(DRAIN_STEPS, round(DRAIN_S / step_s)))
        # The losses of captured steps are in rings that ways share: they are read before one has gone round.
        return max(1, min(rows, RING // (2 * len(self.variants)))) if self._captured else rows

    def alternate(self, plan: Mapping[str, Any], rows_per_drain: int, on_progress: Told) -> None:
        """Make round after round, of every way a block, until there are enough."""
        shuffle, began, rounds, off = random.Random(plan["seed"]), now(), plan["rounds"], self.variants["off"]
        for done in itertools.count(1):
            for variant in shuffle.sample([*self.variants.values()], len(self.variants)):
                self.block(variant)
                if len(variant.recorder) >= rows_per_drain:
                    variant.drain()
            spent_s = self._backend.maximum(now() - began)
            whole = min(1.0, spent_s / plan["seconds"] if rounds is None else done / rounds)
            on_progress(f"round {done}, {off.block_s[-1] / off.steps * 1e3:.2f} ms a step, {100 * whole:.0f} %")
            if done >= (rounds or _MOST_ROUNDS) or (rounds is None and done >= 3 and spent_s >= plan["seconds"]):
                break
        for variant in self.variants.values():  # too short for a full one
            if len(variant.recorder) and not variant.drains:
                variant.drain()

    def calls(self, mode: str, rows_per_drain: int) -> float:
        """Return the seconds that recording a step takes where there is none: the calls in a row, and writing.

        Everything they need is in the processor's cache then, which it need not be in training.
        """
        clock, recorder, count = self.variants[mode].clock, self.variants[mode].recorder, 2000
        recorder.drain(clock)
        if isinstance(clock.device, KernelStamps):  # without steps no kernel writes a time: a stamp would be a launch
            clock = LapClock()
            clock.start()
        began = now()
        for step in range(count):
            clock.begin()
            for lap in self.variants[mode].laps:
                clock.lap(lap)
            recorder.add(step, 0, self._loss, None)
            if len(recorder) >= rows_per_drain:
                recorder.drain(clock)
        recorder.drain(clock)
        return (now() - began) / count

    def block(self, variant: _Variant) -> None:
        """Make a block of steps `variant`, untimed ones first, and note the seconds of the others on this rank."""
        self._streams[variant.phases].ready(_LEAD_STEPS + variant.steps)
        self._backend.barrier()
        self._make(variant, _LEAD_STEPS)
        self._lone.wait()
        opened = now()
        self._make(variant, variant.steps)
        self._lone.wait()
        variant.block_s.append(now() - opened)

    def _make(self, variant: _Variant, count: int) -> None:
        clock, recorder, stream, step = variant.clock, variant.recorder, self._streams[variant.phases], self._step
        captured, lone = self._captured.get(variant.phases), self._lone
        model, optimizer, backend, arithmetic = lone.model, lone.optimizer, lone.backend, lone.arithmetic
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
            recorder.add(step, 0, loss, None if arithmetic.scaler else norm2)
            step += 1
        self._step, self._loss = step, loss


if __name__ == "__main__":
    serve_measurement(partial(measure, folder=Path(sys.argv[1]).parent / ROWS))
