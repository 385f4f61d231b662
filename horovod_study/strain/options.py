"""The options of the worked example: what its network, data, training and computing may be, its length and its rate."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from horovod_study.config.roles import AS_SHIPPED, Role, declared, option
from horovod_study.config.run import DEVICE, RunConfig
from horovod_study.config.workload import COMPUTING, LEARNED, LENGTH, Configuration, Workload, shared
from horovod_study.errors import ConfigError
from horovod_study.text.numbers import short_rate

LOADERS = ("memory", "prefetch", "device", "dataloader")
DEFAULT_EPOCHS = 10
ADAM_EPSILON = 1e-8  # as PyTorch has it
LR_SCALINGS: Mapping[str, Callable[[int], float]] = {"none": lambda workers: 1.0, "linear": float, "sqrt": math.sqrt}
"""How the learning rate grows with the workers."""


def parse_widths(text: str) -> tuple[int, int, int]:
    """Return the widths meant by `15-38-197`: channels of the two convolutions, units of the hidden layer."""
    parts = text.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 65536 for part in parts):
        raise ConfigError(
            "it must be three whole numbers from 1 to 65536 such as 15-38-197: "
            "channels of the two convolutions and units of the hidden layer"
        )
    first, second, hidden = (int(part) for part in parts)
    return first, second, hidden


learned = partial(option, heading=LEARNED)
computing = partial(option, heading=COMPUTING, roles=Role.COMPUTING | Role.CELL)
loading = partial(option, heading="data", roles=Role.COMPUTING | Role.CELL)


@dataclass(frozen=True, kw_only=True)
class _Training(Configuration):
    """What is trained, and how it is computed: a base of its own, so that these fields come first."""

    # What is learned, and how.
    batch: int = learned(
        75,
        "curves per worker and step",
        low=1,
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
    )
    widths: str = learned(
        "15-38-197",
        "channels of the two convolutions and units of the hidden layer; 15-38-197 has 153,441 parameters",
        metavar="C-C-H",
        parse=parse_widths,
        roles=Role.MODEL | Role.LEARNING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="widths {}",
        short_title="widths",
    )
    dataset: str = option(
        "100000",
        "directory of a data set, or a number of curves to generate once and keep",
        metavar="PATH|SIZE",
        heading="data",
        roles=Role.DATA,
    )
    data_seed: int = option(1, "seed of a generated data set", low=0, heading="data", roles=Role.DATA)
    input_scaling: str = option(
        "none",
        "fixed divides strain by 0.25 and stress by 120 MPa first, standard makes their means 0 and deviations 1; none "
        "trains on physical units, as the original did",
        choices=("none", "fixed", "standard"),
        heading="data",
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words=lambda value: "raw inputs" if value == "none" else f"{value} input scaling",
        short_title="input scaling",
    )
    optimizer: str = learned(
        "adam",
        "update rule; sgd has Nesterov momentum 0.9",
        choices=("adam", "adamw", "sgd"),
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL,
        words="{}",
        short_title="optimiser",
    )
    weight_decay: float = learned(
        0.0,
        "decay of the weights: added to the gradient, decoupled from it with adamw",
        low=0,
        roles=Role.LEARNING | Role.CELL,
        words="weight decay {:g}",
        short_title="weight decay",
    )
    epsilon: float = learned(
        ADAM_EPSILON,
        "added to the root of Adam's second moment; with 1e-5 units that few curves reach stay alive in long trainings",
        above=0,
        roles=Role.LEARNING | Role.SWEEPABLE | Role.CELL,
        words="epsilon {:g}",
        later=True,
        short_title="epsilon",
    )
    lr: float = learned(
        4.7331e-4,
        "learning rate of one worker",
        above=0,
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL,
        words=lambda value: f"lr {short_rate(value)}",
        short_title="learning rate",
    )
    lr_scaling: str = learned(
        "none",
        "how the learning rate grows with the workers",
        choices=tuple(LR_SCALINGS),
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL | Role.SEVERAL,
        words=lambda value: "unscaled lr" if value == "none" else f"{value} lr scaling",
        short_title="learning-rate scaling",
    )
    lr_warmup_steps: int = learned(
        0,
        "steps of linear learning-rate warm-up",
        low=0,
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL,
        words="lr warm-up {:g}",
        short_title="warm-up steps of the learning rate",
    )
    schedule: str = learned(
        "constant",
        "learning rate over the run; range rises from the rate to its end and is for finding a rate",
        choices=("constant", "cosine", "step", "one-cycle", "range"),
        roles=Role.LEARNING | Role.RATE | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="{} schedule",
        short_title="schedule",
    )
    lr_end: float | None = learned(
        None,
        "last learning rate of schedule range, and of no other",
        above=0,
        roles=Role.LEARNING | Role.RATE,
    )
    seed: int = shared("seed")
    # Computing.
    device: str = declared(DEVICE)
    precision: str = option(
        "fp32",
        "arithmetic of forward and backward; tf32 and fp16 (with loss scaling) need a GPU",
        choices=("fp32", "tf32", "bf16", "fp16"),
        heading=COMPUTING,
        roles=Role.SWEEPABLE | Role.CELL | Role.APPLIED,
    )
    memory_format: str = option(
        "channels-last",
        "layout of the activations: two-dimensional convolutions on channels-last, or one-dimensional ones",
        choices=("channels-last", "contiguous"),
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="{}",
        short_title="layout",
    )
    fused_optimizer: bool = computing(
        True, "update all parameters in one operation", words=lambda value: f"{'' if value else 'un'}fused optimizer"
    )
    compile: bool = computing(
        False,
        "compile forward and backward with torch.compile",
        words=lambda value: "compiled" if value else "not compiled",
    )
    cuda_graphs: bool = computing(
        False,
        "replay whole steps as CUDA graphs, from the gathering of the batch to the update; needs a GPU",
        words=lambda value: f"{'' if value else 'no '}CUDA graphs",
    )
    kernels: str = computing(
        "torch",
        "who computes a step: PyTorch, or code made for this network: on a GPU forward and backward (fused; needs "
        "cuda_graphs), on a CPU in fp32 the update too (native)",
        choices=("torch", "fused", "native"),
        words="{} kernels",
    )
    capture_sync: bool = option(
        False,
        "ddp over NCCL: the average of the gradients goes into the CUDA graph of the step, where it has no time of its "
        "own; needs cuda_graphs",
        heading=COMPUTING,
        roles=Role.COMPUTING | Role.CELL | Role.SEVERAL,
        words=lambda value: "average inside the graph" if value else "",
    )
    loader: str = option(
        "memory",
        "whole batches gathered from shared memory, the same one batch ahead in a thread (prefetch), from a copy of "
        "the whole set on the device, or by torch's DataLoader",
        choices=LOADERS,
        heading="data",
        roles=Role.COMPUTING | Role.SWEEPABLE | Role.CELL | Role.APPLIED,
        words="loader {}",
        short_title="loader",
    )
    loader_processes: int = loading(
        0, "processes of loader dataloader; 0 loads in the trainer", low=0, words="{:g} loader processes"
    )
    pin_memory: bool = loading(
        False,
        "copy batches to the GPU from page-locked memory",
        words=lambda value: f"{'' if value else 'un'}pinned memory",
    )
    persistent_processes: bool = loading(
        True,
        "keep the processes of loader dataloader from one epoch to the next",
        words=lambda value: f"{'' if value else 'no '}persistent processes",
    )
    threads: int = shared("threads")
    # How long, and what happens on the way.
    epochs: int | None = shared("epochs")
    seconds: float | None = shared("seconds")
    steps: int | None = shared("steps")
    target_mse: float | None = option(
        None,
        "stop at the first evaluation whose test MSE is at most this",
        above=0,
        heading=LENGTH,
        roles=Role.COURSE | Role.TARGET,
        quiet=None,
    )
    warmup_steps: int = shared("warmup_steps")
    evaluate_every: float = option(
        1.0,
        "epochs between two evaluations on the test set; 0.5 is twice an epoch",
        above=0,
        heading=LENGTH,
        roles=Role.COURSE,
        quiet=1e6,  # at the end only
    )
    checkpoint_every: int | None = option(
        None,
        "write a checkpoint every so many steps; the newest two are kept",
        low=1,
        heading=LENGTH,
        roles=Role.COURSE | Role.SWEEPABLE | Role.CELL,
        quiet=None,
        words=lambda value: "no checkpoints on the way" if value == AS_SHIPPED else f"checkpoint every {value} steps",
    )
    checkpoint_at_end: bool = option(
        True,
        "write a checkpoint when the run ends or is stopped by a signal",
        heading=LENGTH,
        roles=Role.COURSE,
        quiet=False,
    )


@dataclass(frozen=True, kw_only=True)
class StrainConfig(RunConfig, _Training):
    """One training run as it was asked for; what it became (such as a scaled learning rate) is recorded separately."""

    @property
    def no_hooks(self) -> tuple[str, str] | None:
        if self.cuda_graphs:
            return "cuda_graphs", "a CUDA graph captures no hooks"
        return ("kernels native", "its gradients are made without autograd") if self.kernels == "native" else None

    @property
    def loss_scaled(self) -> bool:
        return self.precision == "fp16"

    def check_together(self, source: str = "run") -> None:
        if all(getattr(self, name) is None for name in self.workload.budgets):
            object.__setattr__(self, "epochs", DEFAULT_EPOCHS)
        super().check_together(source)

    def unfit(self) -> Iterator[str]:
        """Yield in words what does not fit together, and what to do about it."""
        yield from super().unfit()
        if (self.lr_end is not None) != (self.schedule == "range"):
            yield (
                f"schedule is {self.schedule!r} and lr_end is {self.lr_end}; schedule range needs lr_end, and no other "
                "schedule has one"
            )
        if self.optimizer == "sgd" and self.epsilon != ADAM_EPSILON:
            yield f"epsilon is {self.epsilon:g}, and optimizer sgd has none; leave it out, or use optimizer adam"
        if self.schedule == "range" and self.seconds is not None:
            yield "schedule range counts steps; give steps or epochs instead of seconds"
        if self.loader != "dataloader" and self.loader_processes:
            yield (
                f"loader {self.loader} has no processes, but loader_processes is {self.loader_processes}; use loader "
                "dataloader, or leave loader_processes out"
            )
        yield from self._unfit_graphs()
        if self.kernels == "native":
            yield from self._unfit_native()
        if self.profile == "sync-points" and self.compile:
            yield "profile sync-points looks at each operation, and compiled ones are not seen; leave compile out"

    def _unfit_native(self) -> Iterator[str]:
        """Yield what the native step has not."""
        for name, asked, instead in (
            (f"precision {self.precision}", self.precision != "fp32", "precision fp32"),
            (f"device {self.device}", self.device == "cuda", "device cpu"),
            ("compile", self.compile, "no compile"),
            ("cuda_graphs", self.cuda_graphs, "no cuda_graphs"),
            ("an update that is not fused", not self.fused_optimizer, "fused_optimizer"),
            (f"threads {self.threads}", self.threads > 1, "threads 1"),
        ):
            if asked:
                yield (
                    f"kernels native computes in fp32 on one thread of a CPU and has no {name}; use {instead}, or "
                    "kernels torch"
                )

    def _unfit_graphs(self) -> Iterator[str]:
        """Yield what cannot be captured in CUDA graphs, or needs them."""
        if self.no_hooks is not None and self.reduction == "hooks":
            option, why = self.no_hooks
            yield (
                f"reduction is 'hooks', and with {option} {why}; leave reduction out (one flat buffer is averaged "
                f"after backward), or leave {option} out"
            )
        for name, asked in (("kernels fused", self.kernels == "fused"), ("capture_sync", self.capture_sync)):
            if asked and not self.cuda_graphs:
                yield f"{name} needs cuda_graphs; add cuda_graphs, or leave {name} out"
        if self.kernels == "fused" and self.precision == "fp16":
            yield (
                "kernels fused computes in fp32, tf32 and bf16, but precision is 'fp16'; use precision bf16, or "
                "kernels torch"
            )
        if self.kernels == "fused" and self.compile:
            yield "kernels fused leaves torch.compile nothing to compile; leave compile out, or use kernels torch"
        if not self.capture_sync:
            return
        if self.backend not in ("auto", "ddp") or self.transport not in ("auto", "nccl"):
            yield (
                "capture_sync needs backend ddp over nccl, whose all-reduce a CUDA graph can hold, but backend is "
                f"{self.backend!r} and transport {self.transport!r}; use backend ddp and transport nccl, or leave "
                "capture_sync out"
            )
        if self.timer_mode == "strict":
            yield (
                "timer_mode strict looks between the phases of a step, and capture_sync leaves nothing between them; "
                "use timer_mode light, or leave capture_sync out"
            )
        if self.measure_ablation:
            yield (
                "measure_ablation makes steps that average nothing, and with capture_sync the average is in the graph "
                "of every step; leave one of the two out"
            )


def _rate_of(requested: Mapping[str, Any], workers: int) -> float | None:
    lr, grown = requested.get("lr"), LR_SCALINGS.get(requested.get("lr_scaling", "none"))
    return lr * grown(workers) if isinstance(lr, int | float) and grown is not None else None


def _samples_of_epoch(config: Configuration) -> float | None:
    size = cast(StrainConfig, config).dataset
    return 0.75 * int(size) if size.isdigit() else None


WORKLOAD = STRAIN = Workload(
    name="strain",
    configuration=StrainConfig,
    command=lambda config, directory, resume: (
        *("-m", "horovod_study.train", "--config", str(config)),
        *("--resume" if resume else "--out", str(directory)),
    ),
    samples="curves",
    model="StressCNN",
    threads_of=lambda config: config.threads + cast(StrainConfig, config).loader_processes,
    samples_of_epoch=_samples_of_epoch,
    rate_of=_rate_of,
    small={
        "dataset": "400",
        "batch": 16,
        "warmup_steps": 0,
        "steady": "declared",
        "system_interval_s": 0.0,
        "start_timeout_s": 60.0,
    },
)
"""The package's own training, and the workload of studies that name none."""


def strain_config(values: Mapping[str, Any], *, source: str = "run") -> StrainConfig:
    """Make a StrainConfig from option or YAML values; an unknown name is refused with the nearest known one."""
    return cast(StrainConfig, STRAIN.configure(values, source=source))


# --------------------------------------------------------------------------------------- length and learning rate


def scaled_lr(config: StrainConfig, workers: int) -> float:
    """Return the base rate after scaling by the number of workers: times 1, sqrt(N) or N."""
    return config.lr * LR_SCALINGS[config.lr_scaling](workers)


def lr_factor(config: StrainConfig, step: int, progress: float) -> float:
    """Return what the scaled rate is multiplied with at `step` (from 0), `progress` (0..1) through the run.

    Warm-up rises linearly over lr_warmup_steps (Goyal et al., 2017); then

        constant    1
        cosine      from 1 to 0 along half a cosine (Loshchilov and Hutter, 2017, without restarts)
        step        a tenth after each third
        one-cycle   from 1/25 to 1 in the first 30 % and to 4e-6 in the rest, both along half a cosine
                    (Smith and Topin, 2018, with the constants of torch's OneCycleLR)
        range       from 1 to lr_end/lr exponentially: the learning-rate range test of Smith (2017)
    """
    warmup = min(1.0, (step + 1) / config.lr_warmup_steps) if config.lr_warmup_steps else 1.0
    return warmup * _shape(config, min(max(progress, 0.0), 1.0))


def _shape(config: StrainConfig, progress: float) -> float:
    if config.schedule == "cosine":
        return _half_cosine(1.0, 0.0, progress)
    if config.schedule == "step":
        # A tenth of the rate after each third of the run. The small term keeps progress = 1/3 in the second third.
        return 0.1 ** math.floor(progress / (1 / 3) + 1e-9)
    if config.schedule == "one-cycle":
        if progress < 0.3:
            return _half_cosine(1 / 25, 1.0, progress / 0.3)
        return _half_cosine(1.0, 1e-4 / 25, (progress - 0.3) / (1 - 0.3))
    if config.schedule == "range" and config.lr_end is not None:
        return float((config.lr_end / config.lr) ** progress)
    return 1.0


def _half_cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * progress))


def last_step(config: StrainConfig, per_epoch: int) -> float:
    """Return the number of steps to make, warm-up included; infinite for a budget of seconds.

    Raises ConfigError where the warm-up leaves nothing to measure.
    """
    if config.epochs is not None:
        steps = config.epochs * per_epoch
        if steps <= config.warmup_steps:
            raise ConfigError(
                f"warmup_steps {config.warmup_steps} leaves nothing of {config.epochs} epochs x {per_epoch} steps; "
                "use fewer warm-up steps or more epochs"
            )
        return steps
    return math.inf if config.steps is None else config.warmup_steps + config.steps


def next_evaluation(config: StrainConfig, step: int, per_epoch: int) -> int:
    """Return the first evaluation after `step`: the multiples of evaluate_every epochs, rounded up to whole steps."""
    length = config.evaluate_every * per_epoch
    return max(step + 1, math.ceil((math.floor(step / length) + 1) * length - 1e-9))


class Budget:
    """How far the run is, equal on all ranks to the last bit, or their learning rates would differ.

    With a budget of steps it is the share of them. With a budget of seconds it is the time that the ranks last agreed
    on and the mean step until then, carried on from there.
    """

    def __init__(self, config: StrainConfig, last_step: float) -> None:
        self._seconds, self._warmup_steps, self._last_step = config.seconds, config.warmup_steps, last_step
        self._agreed_step, self._agreed_s, self._step_s = 0, 0.0, 0.0

    def agree(self, step: int, elapsed_s: float) -> None:
        """Note the seconds of the timed window after `step` steps, the same number on all ranks."""
        self._agreed_step, self._agreed_s = step, elapsed_s
        self._step_s = elapsed_s / (step - self._warmup_steps)

    def state(self) -> list[float]:
        """Return what `take_up` needs to continue from here."""
        return [self._agreed_step, self._agreed_s, self._step_s]

    def take_up(self, state: Sequence[float]) -> None:
        """Continue from where `state` was taken."""
        self._agreed_step, self._agreed_s, self._step_s = int(state[0]), state[1], state[2]

    @property
    def spent(self) -> bool:
        """Whether the agreed time has reached the budget of seconds."""
        return self._seconds is not None and self._agreed_s >= self._seconds

    def progress(self, step: int) -> float:
        """Return the share of the budget, 0..1, that is used up when `step` steps are done."""
        if self._seconds is None:
            return step / self._last_step
        return (self._agreed_s + (step - self._agreed_step) * self._step_s) / self._seconds
