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


_SWEPT = Role.SWEEPABLE | Role.CELL
_HOW = Role.COMPUTING | Role.CELL
_LEARNT = Role.LEARNING | _SWEPT
_RATE = Role.RATE | _LEARNT
learned = partial(option, heading=LEARNED, roles=_LEARNT)
data = partial(option, heading="data", roles=Role.DATA)
computing = partial(option, heading=COMPUTING, roles=_HOW)
loading = partial(option, heading="data", roles=_HOW)
course = partial(option, heading=LENGTH, roles=Role.COURSE)


@dataclass(frozen=True, kw_only=True)
class _Training(Configuration):
    """What is trained, and how it is computed: a base of its own, so that these fields come first."""

    # What is learned, and how.
    batch: int = learned(75, "curves per worker and step", low=1, roles=_LEARNT | Role.APPLIED)
    widths: str = learned(
        "15-38-197",
        "channels of the two convolutions and units of the hidden layer; 15-38-197 has 153,441 parameters",
        metavar="C-C-H",
        parse=parse_widths,
        roles=_LEARNT | Role.MODEL | Role.APPLIED,
        words="widths {}",
        short_title="widths",
    )
    dataset: str = data(
        "100000", "directory of a data set, or a number of curves to generate once and keep", metavar="PATH|SIZE"
    )
    data_seed: int = data(1, "seed of a generated data set", low=0)
    input_scaling: str = data(
        "none",
        "fixed divides strain by 0.25 and stress by 120 MPa first, standard makes their means 0 and deviations 1; none "
        "trains on physical units, as the original did",
        choices=("none", "fixed", "standard"),
        roles=_LEARNT | Role.APPLIED,
        words=lambda value: "raw inputs" if value == "none" else f"{value} input scaling",
        short_title="input scaling",
    )
    optimizer: str = learned(
        "adam",
        "update rule; sgd has Nesterov momentum 0.9",
        choices=("adam", "adamw", "sgd"),
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
        words="epsilon {:g}",
        later=True,
        short_title="epsilon",
    )
    lr: float = learned(
        4.7331e-4,
        "learning rate of one worker",
        above=0,
        roles=_RATE,
        words=lambda value: f"lr {short_rate(value)}",
        short_title="learning rate",
    )
    lr_scaling: str = learned(
        "none",
        "how the learning rate grows with the workers",
        choices=tuple(LR_SCALINGS),
        roles=_RATE | Role.SEVERAL,
        words=lambda value: "unscaled lr" if value == "none" else f"{value} lr scaling",
        short_title="learning-rate scaling",
    )
    lr_warmup_steps: int = learned(
        0,
        "steps of linear learning-rate warm-up",
        low=0,
        roles=_RATE,
        words="lr warm-up {:g}",
        short_title="warm-up steps of the learning rate",
    )
    schedule: str = learned(
        "constant",
        "learning rate over the run; range rises from the rate to its end and is for finding a rate",
        choices=("constant", "cosine", "step", "one-cycle", "range"),
        roles=_RATE | Role.APPLIED,
        words="{} schedule",
        short_title="schedule",
    )
    lr_end: float | None = learned(
        None, "last learning rate of schedule range, and of no other", above=0, roles=Role.LEARNING | Role.RATE
    )
    seed: int = shared("seed")
    # Computing.
    device: str = declared(DEVICE)
    precision: str = computing(
        "fp32",
        "arithmetic of forward and backward; tf32 and fp16 (with loss scaling) need a GPU",
        choices=("fp32", "tf32", "bf16", "fp16"),
        roles=_SWEPT | Role.APPLIED,
    )
    memory_format: str = computing(
        "channels-last",
        "layout of the activations: two-dimensional convolutions on channels-last, or one-dimensional ones",
        choices=("channels-last", "contiguous"),
        roles=_HOW | Role.SWEEPABLE | Role.APPLIED,
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
    capture_sync: bool = computing(
        False,
        "ddp over NCCL: the average of the gradients goes into the CUDA graph of the step, where it has no time of its "
        "own; needs cuda_graphs",
        roles=_HOW | Role.SEVERAL,
        words=lambda value: "average inside the graph" if value else "",
    )
    loader: str = loading(
        "memory",
        "whole batches gathered from shared memory, the same one batch ahead in a thread (prefetch), from a copy of "
        "the whole set on the device, or by torch's DataLoader",
        choices=LOADERS,
        roles=_HOW | Role.SWEEPABLE | Role.APPLIED,
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
    target_mse: float | None = course(
        None,
        "stop at the first evaluation whose test MSE is at most this",
        above=0,
        roles=Role.COURSE | Role.TARGET,
        quiet=None,
    )
    warmup_steps: int = shared("warmup_steps")
    evaluate_every: float = course(
        1.0,
        "epochs between two evaluations on the test set; 0.5 is twice an epoch",
        above=0,
        quiet=1e6,  # at the end only
    )
    checkpoint_every: int | None = course(
        None,
        "write a checkpoint every so many steps; the newest two are kept",
        low=1,
        roles=Role.COURSE | _SWEPT,
        quiet=None,
        words=lambda value: "no checkpoints on the way" if value == AS_SHIPPED else f"checkpoint every {value} steps",
    )
    checkpoint_at_end: bool = course(
        True, "write a checkpoint when the run ends or is stopped by a signal", quiet=False
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
            needs = "schedule range needs lr_end, and no other schedule has one"
            yield f"schedule is {self.schedule!r} and lr_end is {self.lr_end}; {needs}"
        if self.optimizer == "sgd" and self.epsilon != ADAM_EPSILON:
            yield f"epsilon is {self.epsilon:g}, and optimizer sgd has none; leave it out, or use optimizer adam"
        if self.schedule == "range" and self.seconds is not None:
            yield "schedule range counts steps; give steps or epochs instead of seconds"
        if self.loader != "dataloader" and self.loader_processes:
            found = f"loader {self.loader} has no processes, but loader_processes is {self.loader_processes}"
            yield f"{found}; use loader dataloader, or leave loader_processes out"
        if self.no_hooks is not None and self.reduction == "hooks":
            name, why = self.no_hooks
            yield f"reduction is 'hooks', and with {name} {why}; leave reduction out, or leave {name} out"
        if self.profile == "sync-points" and self.compile:
            yield "profile sync-points looks at each operation, and compiled ones are not seen; leave compile out"
        yield from self._unfit_kernels()
        yield from self._unfit_captured_sync()

    def _unfit_kernels(self) -> Iterator[str]:
        if self.kernels == "fused":
            if not self.cuda_graphs:
                yield "kernels fused needs cuda_graphs; add cuda_graphs, or leave kernels fused out"
            for name, asked in (("precision fp16", self.precision == "fp16"), ("compile", self.compile)):
                if asked:
                    what = "kernels fused computes in fp32, tf32 and bf16, and without torch.compile"
                    instead = "use precision bf16 in place of fp16" if "fp16" in name else "leave compile out"
                    yield f"{what}; {instead}, or use kernels torch"
        if self.kernels == "native":
            for name, asked, instead in (
                (f"precision {self.precision}", self.precision != "fp32", "precision fp32"),
                (f"device {self.device}", self.device == "cuda", "device cpu"),
                ("compile", self.compile, "no compile"),
                ("cuda_graphs", self.cuda_graphs, "no cuda_graphs"),
                ("an update that is not fused", not self.fused_optimizer, "fused_optimizer"),
                (f"threads {self.threads}", self.threads > 1, "threads 1"),
            ):
                if asked:
                    what = f"kernels native computes in fp32 on one thread of a CPU and has no {name}"
                    yield f"{what}; use {instead}, or kernels torch"

    def _unfit_captured_sync(self) -> Iterator[str]:
        if not self.capture_sync:
            return
        if not self.cuda_graphs:
            yield "capture_sync needs cuda_graphs; add cuda_graphs, or leave capture_sync out"
        if self.backend not in ("auto", "ddp") or self.transport not in ("auto", "nccl"):
            found = f"backend is {self.backend!r} and transport {self.transport!r}"
            yield f"capture_sync needs backend ddp over transport nccl, but {found}; use both, or leave it out"
        strict = self.timer_mode == "strict"
        for name, asked in (("timer_mode strict", strict), ("measure_ablation", self.measure_ablation)):
            if asked:
                yield f"capture_sync leaves nothing between graphs, where {name} looks; leave one of the two out"


def _rate_of(requested: Mapping[str, Any], workers: int) -> float | None:
    lr, grown = requested.get("lr"), LR_SCALINGS.get(requested.get("lr_scaling", "none"))
    return lr * grown(workers) if isinstance(lr, int | float) and grown is not None else None


_SMALL = {"dataset": "400", "batch": 16, "warmup_steps": 0, "steady": "declared", "system_interval_s": 0.0}

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
    samples_of_epoch=lambda config: (
        0.75 * int(size) if (size := cast(StrainConfig, config).dataset).isdigit() else None
    ),
    rate_of=_rate_of,
    small={**_SMALL, "start_timeout_s": 60.0},
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
    factor, progress = 1.0, min(max(progress, 0.0), 1.0)
    if config.schedule == "cosine":
        factor = _half_cosine(1.0, 0.0, progress)
    elif config.schedule == "step":  # the small term keeps progress = 1/3 in the second third
        factor = 0.1 ** math.floor(progress / (1 / 3) + 1e-9)
    elif config.schedule == "one-cycle" and progress < 0.3:
        factor = _half_cosine(1 / 25, 1.0, progress / 0.3)
    elif config.schedule == "one-cycle":
        factor = _half_cosine(1.0, 1e-4 / 25, (progress - 0.3) / (1 - 0.3))
    elif config.schedule == "range" and config.lr_end is not None:
        factor = float((config.lr_end / config.lr) ** progress)
    warmup = min(1.0, (step + 1) / config.lr_warmup_steps) if config.lr_warmup_steps else 1.0
    return warmup * factor


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
