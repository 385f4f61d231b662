"""The universal scalability law, S = gamma N / (1 + alpha (N - 1) + beta N (N - 1)) (N. Gunther).

alpha is contention (queueing for something shared), beta coherency (everybody to everybody). gamma belongs to the
published form, X(N) = X1 N / (...), which has the free one-worker throughput X1. With it the other parameters do not
depend on which baseline the speedup was divided by, nor on the luck of a single one-worker run.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from horovod_study.analysis.costs import ring_messages
from horovod_study.analysis.laws.amdahl import first_guesses as serial_fractions
from horovod_study.analysis.laws.law import EVERY_MODE, UNLIKELY, Law, Places, Trend
from horovod_study.analysis.stats import Floats


def usl_peak(alpha: float, beta: float, gamma: float = 1.0) -> float:
    """Worker count with the highest speedup, sqrt((1 - alpha) / beta); 1 when alpha >= 1, inf when beta is 0."""
    if alpha >= 1:
        return 1.0
    return math.inf if beta <= 0 else max(1.0, math.sqrt((1 - alpha) / beta))


def usl_limit(alpha: float, beta: float, gamma: float = 1.0) -> float:
    """Highest speedup of all: the one at the peak, gamma / alpha without coherency cost, inf without any cost."""
    peak = usl_peak(alpha, beta)
    if math.isfinite(peak):
        return float(_curve(peak, alpha, beta, gamma))
    return gamma / alpha if alpha > 0 else math.inf


def usl_bottleneck(workers: float, alpha: float, beta: float, gamma: float = 1.0) -> str:
    """What costs more at `workers`: "contention" (alpha (N - 1)) or "coherency" (beta N (N - 1)); "none" if neither."""
    if alpha <= 0 and beta <= 0:
        return "none"
    return "coherency" if beta * workers > alpha else "contention"


def _curve(n: Any, alpha: Any, beta: Any, gamma: Any = 1.0) -> Any:
    return gamma * n / (1 + alpha * (n - 1) + beta * n * (n - 1))


def _slopes(n: Any, alpha: Any, beta: Any, gamma: Any = 1.0) -> tuple[Any, ...]:
    step = 1 + alpha * (n - 1) + beta * n * (n - 1)
    rate = n / step
    fall = -gamma * rate / step * (n - 1)
    return fall, fall * n, rate


def _starts(where: Places, s: Floats) -> list[tuple[float, ...]]:
    # N/S = (1 + alpha (N - 1) + beta N (N - 1)) / gamma is linear in 1/gamma, alpha/gamma and beta/gamma.
    # Dividing by N/S makes the residuals relative, so that the largest N does not drown the rest.
    n = where.workers
    columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1) * (s / n)[:, np.newaxis]
    inverse, contention, coherency = np.linalg.lstsq(columns, np.ones_like(n))[0]
    gamma = 1 / inverse if inverse > 0 else float(np.max(s / n))
    guess = (max(contention * gamma, 1e-6), max(coherency * gamma, 1e-9), gamma)
    return [guess, *((alpha, beta, 1.0) for alpha, beta in _anchored_starts(where, s))]


def _anchored_starts(where: Places, s: Floats) -> list[tuple[float, ...]]:
    n = where.workers
    columns = np.stack([n - 1, n * (n - 1)], axis=1) * (s / n)[:, np.newaxis]
    contention, coherency = np.linalg.lstsq(columns, 1 - s / n)[0]
    # Amdahl's law is the case beta = 0: starting there, too, USL never ends up worse.
    return [(max(contention, 1e-6), max(coherency, 1e-9)), *((s0, 0.0) for (s0,) in serial_fractions(where, s))]


_ANCHORED = Law(
    name="usl",
    label="USL",
    place=4,
    formula="S = N / (1 + alpha (N - 1) + beta N (N - 1))",
    parameters=("alpha", "beta"),
    bounds=((0.0, math.inf), (0.0, math.inf)),
    modes=EVERY_MODE,
    curve=_curve,
    slopes=lambda n, alpha, beta: _slopes(n, alpha, beta)[:2],
    starts=_anchored_starts,
    peak=usl_peak,
    limit=usl_limit,
    bottleneck=usl_bottleneck,
    costs=("alpha", "beta"),
    range_at={"alpha": lambda n: 1.0, "beta": lambda n: 1.0 / n},
)

LAW = replace(
    _ANCHORED,
    formula="S = gamma N / (1 + alpha (N - 1) + beta N (N - 1))",
    parameters=("alpha", "beta", "gamma"),
    bounds=((0.0, math.inf), (0.0, math.inf), (0.0, math.inf)),
    slopes=_slopes,
    starts=_starts,
    reduced=_ANCHORED,
    trends=(
        # Unlikely for the reason that Amdahl's law is.
        Trend(name="usl", place=8, of="time", prior=UNLIKELY, costs=(ring_messages, lambda n: n * (n - 1))),
    ),
)
