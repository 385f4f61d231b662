"""How long a run is and where it stands, and its learning rate as pure functions of workers and step."""

import math
from collections.abc import Sequence

from horovod_study.errors import ConfigError
from horovod_study.workload.options import LR_SCALINGS, StrainConfig

_ONE_CYCLE_RISE = 0.3


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
        if progress < _ONE_CYCLE_RISE:
            return _half_cosine(1 / 25, 1.0, progress / _ONE_CYCLE_RISE)
        return _half_cosine(1.0, 1e-4 / 25, (progress - _ONE_CYCLE_RISE) / (1 - _ONE_CYCLE_RISE))
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
