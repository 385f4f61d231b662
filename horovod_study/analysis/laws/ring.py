"""Ring all-reduce, step = 1 + 2 (N - 1) alpha + 2 (N - 1)/N beta (R. Thakur, R. Rabenseifner and W. Gropp 2005).

2 (N - 1) messages, of which each carries 1/N of the gradients: alpha is the latency of one message, beta the time of
all gradients through one link, both in steps of one worker. Across nodes:

    step = 1 + 2 (F - 1) alpha + 2 (F - 1)/F beta + 2 (M - 1) alpha_across + 2 (M - 1)/M beta_across
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from horovod_study.analysis.costs import moved_share, ring_messages
from horovod_study.analysis.laws.cost_law import Costs, Term, cost_law
from horovod_study.analysis.laws.law import UNLIKELY, Trend
from horovod_study.analysis.stats import Floats

TERMS: Mapping[str, Term] = MappingProxyType(
    {"alpha": lambda n, m, f: ring_messages(n), "beta": lambda n, m, f: moved_share(n)}
)
TEXT = "2(N-1) alpha + 2(N-1)/N beta"
_MULTI_NODE: Mapping[str, Term] = MappingProxyType(
    {
        "alpha": lambda n, m, f: ring_messages(f),
        "beta": lambda n, m, f: moved_share(f),
        "alpha_across": lambda n, m, f: ring_messages(m),
        "beta_across": lambda n, m, f: moved_share(m),
    }
)
_MULTI_NODE_TEXT = "2(F-1) alpha + 2(F-1)/F beta + 2(M-1) alpha_across + 2(M-1)/M beta_across"


def ring_cost(workers: ArrayLike, alpha: float, beta: float) -> Floats:
    """Time of a ring all-reduce, 2 (n - 1) alpha + 2 (n - 1)/n beta, in the unit of alpha and beta.

    alpha is the latency of one message, beta the time of the whole buffer through one link (bytes / bandwidth).
    """
    n = np.asarray(workers, dtype=np.float64)
    return np.asarray(ring_messages(n) * alpha + moved_share(n) * beta)


def _peak(alpha: float, beta: float) -> float:
    # 1/N + 2 (N - 1) alpha + 2 beta - 2 beta/N has its minimum at N^2 = (1 - 2 beta) / (2 alpha).
    if 2 * beta >= 1:
        return 1.0
    return math.inf if alpha <= 0 else max(1.0, math.sqrt((1 - 2 * beta) / (2 * alpha)))


def _strong_limit(alpha: float, beta: float) -> float:
    peak = _peak(alpha, beta)
    return 1 / (2 * beta) if math.isinf(peak) else float(1 / (1 / peak + ring_cost(peak, alpha, beta)))


LAW = cost_law(
    name="ring",
    place=7,
    inside=Costs(terms=TERMS, text=TEXT),
    multi_node=Costs(terms=_MULTI_NODE, text=_MULTI_NODE_TEXT),
    peak=_peak,
    limit=lambda alpha, beta: 1 / (2 * alpha) if alpha > 0 else math.inf,
    strong_limit=_strong_limit,
    trends=(
        # With a fixed global batch N/X is N times the step: what a step spends on a ring is then Amdahl's cost.
        Trend(name="ring", place=1, of="time", strong_prior=UNLIKELY, costs=(moved_share,)),
        Trend(
            name="ring with latency",
            place=2,
            of="time",
            prior=UNLIKELY,
            strong_prior=UNLIKELY,
            costs=(moved_share, ring_messages),
        ),
        Trend(name="sync ring", place=10, of="sync", strong_prior=0.0, costs=(moved_share,)),
    ),
)
