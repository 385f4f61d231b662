"""The learning rate as pure functions of the number of workers and of the step."""

import math

from horovod_study.config import RunConfig

STEP_DECAY = 0.1
STEP_EVERY = 1 / 3
"""Schedule `step`: a tenth of the rate after each third of the run."""
ONE_CYCLE_RISE = 0.3
ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = 1e-4 / 25
"""Schedule `one-cycle`: share of the run in which the rate rises, first and last rate as parts of the largest."""


def scaled_lr(config: RunConfig, workers: int) -> float:
    """Return the base rate after scaling by the number of workers: times 1, sqrt(N) or N."""
    factor = {"none": 1.0, "sqrt": math.sqrt(workers), "linear": float(workers)}[config.lr_scaling]
    return config.lr * factor


def lr_factor(config: RunConfig, step: int, progress: float) -> float:
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


def _shape(config: RunConfig, progress: float) -> float:
    if config.schedule == "cosine":
        return _half_cosine(1.0, 0.0, progress)
    if config.schedule == "step":
        # The small term keeps progress = 1/3 in the second third although 3 * (1/3) may round below 1.
        return STEP_DECAY ** math.floor(progress / STEP_EVERY + 1e-9)
    if config.schedule == "one-cycle":
        if progress < ONE_CYCLE_RISE:
            return _half_cosine(ONE_CYCLE_START, 1.0, progress / ONE_CYCLE_RISE)
        return _half_cosine(1.0, ONE_CYCLE_END, (progress - ONE_CYCLE_RISE) / (1 - ONE_CYCLE_RISE))
    if config.schedule == "range" and config.lr_end is not None:
        return float((config.lr_end / config.lr) ** progress)
    return 1.0


def _half_cosine(first: float, last: float, progress: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * progress))
