"""The ways to make a training step, alternating in one process on one GPU; benchmarks/gpu.py starts it.

    python benchmarks/gpu_steps.py PLAN.json        prints one line of JSON for each thing it found, as it finds it

One process, because a start with its CUDA context, its data set of 2.4 GB on the GPU, its compiled kernels and captured
graphs costs seconds, and a block of steps a quarter of one: this way every way is measured in every round, neighbours
in time, on the same curves. A way that fails is named; on a GPU the process then ends with code 3, and is started again
without that way: a capture that failed leaves PyTorch's allocator in a state in which later ones fail too.

    what "steps"    first the losses of every way over some steps from the same weights and batches, then blocks of
                    steps in an order shuffled again in every round
    what "epochs"   whole epochs, again in turns: the trainer as a user starts it, with its record, and the plain loop

Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets, S curves of the training set.
"""

import gc
import json
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import plain_training
import torch
from block_variants import block_variants
from torch.utils.data import DataLoader, TensorDataset

from horovod_study import records
from horovod_study.comm import Launch, open_backend
from horovod_study.measure.clock import now, open_clock
from horovod_study.programs.microbench import launches_of
from horovod_study.strain import dataset as data
from horovod_study.strain import kernels, loaders
from horovod_study.strain.graphs import CapturedStep
from horovod_study.strain.model import INPUT_SCALINGS, StressCNN
from horovod_study.strain.optimizer import Arithmetic, accelerate, make_optimizer
from horovod_study.strain.options import StrainConfig, parse_widths, scaled_lr, strain_config
from horovod_study.strain.trainer import run, train_step

PLAIN, PLAIN_LOADER = "plain loop", "plain loop, DataLoader"
"""What everything is compared with: the loop of the thesis, its data in the memory of the GPU; and beside it the same
with a DataLoader."""

OURS: Mapping[str, Mapping[str, Any]] = {
    "no graphs": {},
    "graphs": {"cuda_graphs": True},
    "graphs tf32": {"cuda_graphs": True, "precision": "tf32"},
    "graphs bf16": {"cuda_graphs": True, "precision": "bf16"},
    "graphs fp16": {"cuda_graphs": True, "precision": "fp16"},
    "fused": {"cuda_graphs": True, "kernels": "fused"},
    "fused tf32": {"cuda_graphs": True, "kernels": "fused", "precision": "tf32"},
    "fused bf16": {"cuda_graphs": True, "kernels": "fused", "precision": "bf16"},
    "compile": {"compile": True},
    "compile + graphs": {"compile": True, "cuda_graphs": True},
}
"""Name -> options of the trainer; all take their batches from the copy of the training set on the device. Behind
`fused` may stand the name of other sizes of the kernels' blocks: "fused, 8 warps" (block_variants.py)."""

CALM: Mapping[str, Any] = {"input_scaling": "standard", "lr": 1e-4}
"""How losses are compared: with raw input and the shipped rate, another order of summation alone moves losses by some
thousandths within 100 steps, with these by less than a millionth."""

UNCOMPARED = (PLAIN_LOADER, "compile", "compile + graphs")
"""The losses of the first are those of the plain loop; the others would be compiled once more for it, slowly."""

WARMUP_STEPS = 10
"""Of a whole run of the trainer, whose timed stretch begins behind them."""

BROKEN_CONTEXT = 3
"""Exit code when a way failed on a GPU, and may have broken the process for the others."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one process measures; `seconds` is when it stops by itself, `without` the [way, batch] that failed before.

    `losses_steps` is how many losses are compared; a block of steps takes about `block_s`, and comes after three of
    `warmup_steps`; `epochs` is what a whole run of the trainer makes.
    """

    what: str
    dataset: str
    device: str
    ways: list[str]
    batches: list[int]
    rounds: int
    seconds: float
    block_s: float = 0.25
    warmup_steps: int = 20
    losses_steps: int = 100
    epochs: int = 4
    without: list[list[Any]]
    seed: int = 1


class Way(Protocol):
    """A way to make steps on batches of B curves."""

    def losses(self, order: torch.Tensor) -> torch.Tensor:
        """Make a step on each row of `order` (steps, B), the begin of epoch 0, with fresh weights; return losses."""
        ...

    def ready(self, steps: int) -> None:
        """Prepare for so many steps: an epoch that has fewer left ends here."""
        ...

    def make(self, steps: int) -> None:
        """Make so many steps of the epoch."""
        ...


class Resident:
    """The training set on the device, curves (S, C, L) and targets (S, P), and the order of the batches of B curves."""

    def __init__(self, plan: Plan, batch: int, device: torch.device) -> None:
        self.dataset = data.open_dataset(Path(plan.dataset))
        self.batch, self.device = batch, device
        batches = data.Batches(self.dataset.train_size, batch=batch, rank=0, workers=1, seed=plan.seed)
        self.per_epoch = batches.steps_per_epoch
        self.config = strain_config(
            {"dataset": plan.dataset, "batch": batch, "loader": "device", "seed": plan.seed}, source="gpu.py"
        )
        self.loader = cast(Any, loaders.open_loader(self.config, self.dataset, batches, device))
        held = loaders.resident(self.loader)
        assert held is not None, "loader device"
        self.held, self.curves, self.targets = held, held.curves, held.targets

    def order(self, epoch: int) -> torch.Tensor:
        """Return the places of the curves of each batch, (steps, B), on the device."""
        return self.loader.places(epoch, 0)  # type: ignore[no-any-return]


def textbook(resident: Resident, config: StrainConfig) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return the plain network with the weights that every way begins with, and Adam as it is by default."""
    plain = plain_training.network().to(resident.device)
    with torch.no_grad():
        for mine, other in zip(plain.parameters(), fresh_model(config, resident.device).parameters(), strict=True):
            mine.copy_(other.reshape(mine.shape))
    return plain, torch.optim.Adam(plain.parameters(), lr=scaled_lr(config, 1))


def fresh_model(config: StrainConfig, device: torch.device) -> StressCNN:
    """Return the trainer's network with the weights that every way begins with."""
    torch.manual_seed(config.seed)
    return StressCNN(
        widths=parse_widths(config.widths), input_scaling=config.input_scaling, memory_format=config.memory_format
    ).to(device)


class Tf32:
    """What float32 means to PyTorch's libraries: how it was in a process nobody has touched, and switches for it."""

    def __init__(self) -> None:
        self.untouched = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)

    def set(self, matmul: bool, convolutions: bool) -> None:
        """Allow or forbid TF32 in matrix products and in convolutions."""
        torch.backends.cuda.matmul.allow_tf32 = matmul
        torch.backends.cudnn.allow_tf32 = convolutions


class Plain:
    """The loop of the textbook, with PyTorch's defaults: TF32 in convolutions, unless `exact`."""

    def __init__(
        self, resident: Resident, tf32: Tf32, options: Mapping[str, Any], *, loader: bool = False, exact: bool = False
    ) -> None:
        self._resident, self._tf32, self._exact = resident, tf32, exact
        config = replace(resident.config, **options)
        self._model, self._optimizer = textbook(resident, config)
        offset, scale = INPUT_SCALINGS[config.input_scaling]
        self._offset, self._scale = (torch.tensor(each, device=resident.device)[:, None] for each in (offset, scale))
        self._loader: DataLoader[Any] | None = None
        if loader:
            held = TensorDataset(resident.curves.cpu(), resident.targets.cpu())
            self._loader = DataLoader(held, batch_size=resident.batch, shuffle=True, drop_last=True)
        self._stream: Iterator[Any] = iter(())
        self._left = 0

    def losses(self, order: torch.Tensor) -> torch.Tensor:
        self._set()
        losses = []
        for rows in order:
            curves = (self._resident.curves[rows] - self._offset) / self._scale
            loss = plain_training.step(self._model, self._optimizer, curves, self._resident.targets[rows])
            losses.append(loss.detach())
        return torch.stack(losses)

    def ready(self, steps: int) -> None:
        if self._left < steps:
            self._stream = (
                plain_training.resident_batches(self._resident.curves, self._resident.targets, self._resident.batch)
                if self._loader is None
                else iter(self._loader)
            )
            self._left = self._resident.per_epoch

    def make(self, steps: int) -> None:
        self._set()
        device, model, optimizer, stream = self._resident.device, self._model, self._optimizer, self._stream
        for _ in range(steps):
            x, y = next(stream)
            plain_training.step(model, optimizer, x.to(device), y.to(device))
        self._left -= steps

    def _set(self) -> None:
        self._tf32.set(*((False, False) if self._exact else self._tf32.untouched))


class Ours:
    """The trainer's step, alone, its timers off unless `options` switch them on; captured where they ask for graphs."""

    def __init__(
        self, resident: Resident, plan: Plan, tf32: Tf32, options: Mapping[str, Any], *, blocks: str = ""
    ) -> None:
        config = replace(resident.config, **{"timer_mode": "off", "device": plan.device, **options})
        device = resident.device
        self._resident, self._tf32, self._config = resident, tf32, config
        self._arithmetic = Arithmetic(config, device)
        bare_model = fresh_model(config, device)
        bare_optimizer, _ = make_optimizer(config, bare_model.parameters(), workers=1)
        self._backend = open_backend(config, Launch(launcher="none", rank=0, workers=1, backend="serial"))
        called = accelerate(bare_model, config, device)
        self._model, self._optimizer = self._backend.bind(called, bare_optimizer)
        self._captured = (
            CapturedStep(
                config,
                model=self._model,
                bare_model=bare_model,
                optimizer=self._optimizer,
                backend=self._backend,
                arithmetic=self._arithmetic,
                device=device,
                resident=resident.held,
                phases=False,
                blocks=blocks_called(blocks, bare_model, config) if blocks else None,
            )
            if config.cuda_graphs
            else None
        )
        stamps = None if self._captured is None else self._captured.stamps
        self.clock = open_clock(config.timer_mode, device, stamps=stamps)
        self.clock.start()
        self._stream: Iterator[Any] = iter(())
        self._epoch = self._left = 0

    def losses(self, order: torch.Tensor) -> torch.Tensor:
        self._set()
        if self._captured is not None:
            self._captured.begin_epoch(self._resident.order(0))  # all of it: a longer one would be captured again
            return torch.stack([self._captured.take(None, self.clock) for _ in order])
        curves, targets = self._resident.curves, self._resident.targets
        return torch.stack([self._step(curves[rows], targets[rows]) for rows in order])

    def ready(self, steps: int) -> None:
        if self._left < steps:
            if self._captured is not None:
                self._captured.begin_epoch(self._resident.order(self._epoch))
            else:
                self._stream = self._resident.loader.epoch(self._epoch)
            self._epoch, self._left = self._epoch + 1, self._resident.per_epoch

    def make(self, steps: int) -> None:
        self._set()
        if self._captured is not None:
            captured, clock = self._captured, self.clock
            for _ in range(steps):
                clock.begin(captured.begin_of_next(clock))
                captured.take(None, clock)
        else:
            for _ in range(steps):
                self._step(*next(self._stream))
        self._left -= steps

    def _step(self, curves: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return train_step(self._model, self._optimizer, curves, targets, self._backend, self.clock, self._arithmetic)

    def _set(self) -> None:
        if self._resident.device.type == "cuda":
            allowed = self._config.precision == "tf32"
            self._tf32.set(allowed, allowed)


def blocks_called(name: str, model: StressCNN, config: StrainConfig) -> kernels.BlockSizes:
    """Return the blocks of the fused kernels that are called `name` in block_variants.py."""
    return block_variants(kernels.Sizes.of(model, config.batch), config.precision)[name]


def open_way(name: str, resident: Resident, plan: Plan, tf32: Tf32, options: Mapping[str, Any] | None = None) -> Way:
    """Return the way that is called `name`, with further options of a run."""
    if name in (PLAIN, PLAIN_LOADER):
        return Plain(resident, tf32, options or {}, loader=name == PLAIN_LOADER)
    kind, _, blocks = name.partition(", ")
    return Ours(resident, plan, tf32, {**OURS[kind], **(options or {})}, blocks=blocks)


# ------------------------------------------------------------------------------------------------ what is measured


def measure_steps(plan: Plan, device: torch.device) -> None:
    """Compare the losses of all ways, then time blocks of steps of them in turns; says what it finds."""
    began, tf32 = now(), Tf32()
    open_ways: dict[tuple[str, int], Way] = {}
    per_block: dict[tuple[str, int], int] = {}
    residents: dict[int, Resident] = {}
    order_of: dict[int, torch.Tensor] = {}
    for batch in plan.batches:
        resident = residents[batch] = Resident(plan, batch, device)
        order = order_of[batch] = resident.order(0)[: plan.losses_steps]
        truth = Plain(resident, tf32, CALM, exact=True).losses(order)
        say({"says": "order", "batch": batch, "steps_per_epoch": resident.per_epoch, "losses": truth.tolist()})
    for name in plan.ways:  # the most important first, at both batch sizes, lest the time is gone before the second
        for batch, resident in residents.items():
            if [name, batch] in plan.without:
                continue
            if now() - began > 0.5 * plan.seconds and open_ways:
                say({"says": "left out", "way": name, "batch": batch, "why": "half of the section's time was gone"})
                continue
            say({"says": "begins", "way": name, "batch": batch})
            try:
                opened = now()
                losses, way = open_both(name, resident, plan, tf32, order_of[batch])
                took_s = now() - opened
                per_block[name, batch] = _steps_per_block(way, plan, resident)
            except Exception as error:
                failed(name, batch, error, device)
                continue
            open_ways[name, batch] = way
            say({"says": "losses", "way": name, "batch": batch, "losses": losses, "opened_s": took_s})
    shuffle, longest_s = random.Random(plan.seed), 0.0
    for number in range(plan.rounds):
        round_began = now()
        if round_began - began + 1.2 * longest_s > plan.seconds:
            say({"says": "ended early", "rounds": number})
            break
        for key in shuffle.sample(sorted(open_ways), len(open_ways)):
            name, batch = key
            say({"says": "begins", "way": name, "batch": batch})
            try:
                _, seconds = timed(open_ways[key], per_block[key], device)
            except Exception as error:
                del open_ways[key]
                failed(name, batch, error, device)
                continue
            block = {"round": number, "steps": per_block[key], "seconds": seconds}
            say({"says": "block", "way": name, "batch": batch, **block})
        longest_s = max(longest_s, now() - round_began)
    say({"says": "done"})
    if device.type == "cuda":  # last: what a profiler leaves in the process is in no block
        for (name, batch), way in open_ways.items():
            if now() - began > plan.seconds:
                break
            way.ready(8)
            with suppress(RuntimeError):
                say({"says": "launches", "way": name, "batch": batch, "launches": launches_of(partial(way.make, 1))})


def open_both(
    name: str, resident: Resident, plan: Plan, tf32: Tf32, order: torch.Tensor
) -> tuple[list[float] | None, Way]:
    """Return the losses of a way on the batches `order` (steps, B), if they are compared, and the way to be timed.

    Both are opened, with CALM and without it: kernels compiled for standardised curves are others.
    """
    losses = None
    if name not in UNCOMPARED:
        losses = open_way(name, resident, plan, tf32, CALM).losses(order).tolist()
    way = open_way(name, resident, plan, tf32)
    way.losses(order[:2])
    settle(resident.device)
    return losses, way


def _steps_per_block(way: Way, plan: Plan, resident: Resident) -> int:
    """Warm `way` up and return how many of its steps take about `block_s`; no block is longer than an epoch."""
    count = min(plan.warmup_steps, resident.per_epoch)
    seconds = [timed(way, count, resident.device)[1] for _ in range(3)]
    return max(2, min(resident.per_epoch, round(plan.block_s / (min(seconds) / count))))


def timed(way: Way, steps: int, device: torch.device) -> tuple[float, float]:
    """Return the seconds of so many steps: of the host's calls, and from an idle device to an idle device."""
    way.ready(steps)
    settle(device)
    opened = now()
    way.make(steps)
    host_s = now() - opened
    settle(device)
    return host_s, now() - opened


def settle(device: torch.device) -> None:
    """Wait for all that the device was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_epochs(plan: Plan, device: torch.device) -> None:
    """Make whole epochs in every way, in turns; says the seconds of each.

    An epoch of the trainer lasts from the end of the epoch before, see `epoch_seconds`. The first one of a run has its
    warm-up and is not told. One of the plain loop lasts from drawing its order to the idle device.
    """
    began, tf32 = now(), Tf32()
    residents = {batch: Resident(plan, batch, device) for batch in plan.batches} if PLAIN in plan.ways else {}
    shuffle, longest_s, alive = random.Random(plan.seed), 0.0, [(n, b) for b in plan.batches for n in plan.ways]
    plain: dict[int, Way] = {}
    for number in range(plan.rounds):
        round_began = now()
        if number and round_began - began + 1.2 * longest_s > plan.seconds:
            say({"says": "ended early", "rounds": number})
            break
        for name, batch in shuffle.sample(alive, len(alive)):
            if [name, batch] in plan.without:
                continue
            say({"says": "begins", "way": name, "batch": batch})
            try:
                if name == PLAIN:
                    if batch not in plain:
                        plain[batch] = Plain(residents[batch], tf32, {})
                        timed(plain[batch], min(plan.warmup_steps, residents[batch].per_epoch), device)
                    opened = now()
                    plain[batch].ready(residents[batch].per_epoch)
                    plain[batch].make(residents[batch].per_epoch)
                    settle(device)
                    found: dict[str, Any] = {"epoch_s": [now() - opened]}
                else:
                    found = _whole_run(plan, batch, OURS[name])
            except Exception as error:
                alive.remove((name, batch))
                failed(name, batch, error, device)
                continue
            say({"says": "epochs", "way": name, "batch": batch, "round": number, **found})
            gc.collect()
        longest_s = max(longest_s, now() - round_began)


def _whole_run(plan: Plan, batch: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `python -m horovod_study.train` would, recording every step; return the seconds of its epochs."""
    config: StrainConfig = strain_config(
        {
            "study": "gpu",
            "dataset": plan.dataset,
            "batch": batch,
            "device": plan.device,
            "loader": "device",
            "seed": plan.seed,
            "epochs": plan.epochs,
            "evaluate_every": float(plan.epochs),
            "checkpoint_at_end": False,
            "system_interval_s": 0.0,
            "warmup_steps": WARMUP_STEPS,
            "timer_mode": "light",
            **options,
        },
        source="gpu.py",
    )
    with tempfile.TemporaryDirectory() as folder:
        launch = Launch(launcher="none", rank=0, workers=1, backend="serial")
        result = run(config, out=Path(folder) / "run", launch=launch)
        rows = records.read_steps(Path(folder) / "run", rank=0)
        epoch, begin_s, step_s = (rows.column(name).to_numpy() for name in ("epoch", "begin_s", "step_s"))
    kept = ("samples_per_s", "window_s", "steps", "step_ms_median", "step_ms_p90", "laps_ms", "train_mse", "test_mse")
    return {
        "epoch_s": epoch_seconds(epoch, begin_s, step_s),
        **{name: result[name] for name in kept},
    }


def epoch_seconds(epoch: np.ndarray, begin_s: np.ndarray, step_s: np.ndarray) -> list[float]:
    """Return the seconds of each epoch of a run but the first, from three columns of its steps, each of shape (steps,).

    From the end of the epoch before to its own: drawing its order, writing rows and looking at the clock are in it.
    `begin_s` is the host's clock, and the host runs hundreds of steps ahead of a GPU. Where a stretch of steps begins,
    after the warm-up and at every epoch, the GPU is idle and the two agree; from there to the end of the epoch the
    device's own times `step_s` count.
    """
    firsts = np.searchsorted(epoch, np.arange(epoch[-1] + 1))
    firsts[0] = WARMUP_STEPS
    ends_s = begin_s[firsts] + np.add.reduceat(step_s, firsts)
    return [float(each) for each in np.diff(ends_s)]


# ------------------------------------------------------------------------------------------------ the process


def say(line: Mapping[str, Any]) -> None:
    """Print one finding; the reader has it even if this process ends badly."""
    print(json.dumps(records.finite(dict(line)), allow_nan=False), flush=True)


def failed(name: str, batch: int, error: Exception, device: torch.device) -> None:
    """Say that a way failed; on a GPU end the process, in which nothing can be trusted any more."""
    last = (str(error).strip().splitlines() or [""])[0]
    say({"says": "failed", "way": name, "batch": batch, "why": f"{type(error).__name__}: {last}"[:500]})
    traceback.print_exception(error)
    if device.type == "cuda":
        leave(BROKEN_CONTEXT)


def leave(code: int) -> NoReturn:
    """End this process at once: taking down a context with broken or living graphs may crash, or never end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str], programs: Mapping[str, Callable[[Plan, torch.device], None]]) -> NoReturn:
    """Measure what a plan file says, by one of `programs`."""
    plan = Plan(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if plan.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    programs[plan.what](plan, device)
    leave(0)


if __name__ == "__main__":
    main(sys.argv[1:], {"steps": measure_steps, "epochs": measure_epochs})
