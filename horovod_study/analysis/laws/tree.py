"""Tree all-reduce, step = 1 + 2 ceil(log2 N) hop: reduce and broadcast along a binomial tree.

hop = alpha + beta of one whole message, in steps of one worker. A tree has whole levels: its curve is a staircase, as
the algorithm is, and not a smooth logarithm, which would call five workers cheaper than eight. Across nodes:

    step = 1 + 2 ceil(log2 F) hop + 2 ceil(log2 M) hop_across
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from horovod_study.analysis.costs import rounds
from horovod_study.analysis.laws.cost_law import Costs, cost_law
from horovod_study.analysis.laws.law import UNLIKELY, Trend
from horovod_study.analysis.stats import Floats


def tree_cost(workers: ArrayLike, hop: float) -> Floats:
    """Time of reduce and broadcast along a binomial tree, 2 ceil(log2 n) hop, in the unit of hop."""
    return np.asarray(2 * rounds(np.asarray(workers, dtype=np.float64)) * hop)


def _peak(hop: float) -> float:
    # A tree is quickest with full levels: one more level pays while 1/N - 1/(2 N) > 2 hop.
    levels = np.arange(0, 64)
    step = 0.5**levels + 2 * hop * levels
    return float(2.0 ** levels[int(np.argmin(step))])


def _strong_limit(hop: float) -> float:
    peak = _peak(hop)
    return float(1 / (1 / peak + tree_cost(peak, hop)))


LAW = cost_law(
    name="tree",
    place=8,
    inside=Costs(terms={"hop": lambda n, m, f: 2 * rounds(n)}, text="2 ceil(log2 N) hop"),
    multi_node=Costs(
        terms={"hop": lambda n, m, f: 2 * rounds(f), "hop_across": lambda n, m, f: 2 * rounds(m)},
        text="2 ceil(log2 F) hop + 2 ceil(log2 M) hop_across",
    ),
    peak=_peak,
    limit=lambda hop: math.inf,
    strong_limit=_strong_limit,
    staircase=True,
    trends=(
        Trend(name="tree", place=3, of="time", strong_prior=UNLIKELY, costs=(np.log2,)),
        Trend(name="tree of fixed work", place=9, of="time", prior=0.0, costs=(lambda n: n * np.log2(n),)),
        Trend(name="sync tree", place=11, of="sync", strong_prior=0.0, costs=(np.log2,)),
    ),
)
