"""The learning rate as pure functions of the number of workers and of the step."""

import math

from horovod_study.config import RunConfig

STEP_DECAY = 0.1
STEP_EVERY = 1 / 3
"""Schedule `step`: a tenth of the rate after each third of the run."""


def scaled_lr(config: RunConfig, workers: int) -> float:
    """Return the base rate after scaling by the number of workers: times 1, sqrt(N) or N."""
    factor = {"none": 1.0, "sqrt": math.sqrt(workers), "linear": float(workers)}[config.lr_scaling]
    return config.lr * factor


def lr_factor(config: RunConfig, step: int, progress: float) -> float:
    """Return what the scaled rate is multiplied with at `step`, `progress` (0..1) through the run.

    Warm-up rises linearly over lr_warmup_steps; then constant, cosine to zero (Loshchilov and Hutter, 2017,
    without restarts) or step decay.
    """
    warmup = min(1.0, (step + 1) / config.lr_warmup_steps) if config.lr_warmup_steps else 1.0
    if config.schedule == "cosine":
        return warmup * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    if config.schedule == "step":
        # The small term keeps progress = 1/3 in the second third although 3 * (1/3) may round below 1.
        return warmup * STEP_DECAY ** math.floor(min(progress, 1.0) / STEP_EVERY + 1e-9)
    return warmup
