"""A scaling law as a small value: speedup S as a function of the worker count N, with names, bounds and meaning.

Letters: N worker count (at least 1), M nodes, F workers on the fullest node, S speedup relative to one worker,
B parameter sets evaluated at once, K places (a place is a worker count on a number of nodes), k parameters of a law.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError

MAX_WORKERS = 10_000_000  # beyond this count nobody looks for a peak or a knee

EVERY_MODE = frozenset({"strong", "weak", "mixed"})
STEPS = frozenset({"strong", "weak"})  # scaling modes in which a step is the work of one worker, or its Nth part

UNLIKELY = 0.5
"""Prior of trends that level off too late, or too early, for nearly all published curves of the scaling mode."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where points were measured: worker counts, nodes and workers on the fullest node, each of shape (K,)."""

    workers: Floats
    nodes: Floats
    fullest: Floats

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def several_nodes(self) -> bool:
        return bool(np.any(self.nodes > 1))


def places(workers: ArrayLike, nodes: ArrayLike | None = None, *, per_node: ArrayLike | None = None) -> Places:
    """Places of `workers` (K,). Nodes are filled one after another with `per_node` workers where that is known.

    With `nodes` alone the fullest node has N/M workers, rounded up; without either all workers share one node.
    Raises AnalysisError where there are more nodes than workers, or workers than places on the nodes.
    """
    n = np.atleast_1d(np.asarray(workers, dtype=np.float64))
    if nodes is None:
        m = np.ones_like(n) if per_node is None else np.ceil(n / np.asarray(per_node, dtype=np.float64))
    else:
        m = np.broadcast_to(np.asarray(nodes, dtype=np.float64), n.shape)
    wrong = ~((m >= 1) & (m <= np.ceil(n)))
    if wrong.any():
        raise AnalysisError(
            f"{m[wrong][0]:g} nodes for {n[wrong][0]:g} workers: every node has at least one worker, so correct either"
        )
    evenly = np.where(m > 1, np.ceil(n / m), n)
    fullest = evenly
    if per_node is not None:
        full = np.broadcast_to(np.asarray(per_node, dtype=np.float64), n.shape)
        # A node cannot be fuller than full, nor leave another one empty.
        fullest = np.where(m > 1, np.clip(np.minimum(full, n - m + 1), evenly, None), n)
    return Places(n, m, fullest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How forecasts continue a law: per-worker throughput r = X/N with a free scale, costs not below zero.

    `of` says in what it is a sum of costs f_i(N), with factors c_i that are fitted (`analysis.fit.trends`):

        time    1/r = a + sum of c_i f_i(N), the step time of weak scaling, or N times that of strong scaling
        rate    r = a + c f(N)
        log     log r = a - c log N, the power law
        last    r as at the largest known count
        sync    1/r = a + c f(N), c fitted to `sync_s` and a the rest of the step at the largest known count
        bench   1/r = a + the all-reduce as the micro-benchmark has it, nothing of it fitted
    """

    name: str
    of: str
    place: int = 0  # among the trends
    prior: float = 1.0  # with a fixed batch per worker
    strong_prior: float = 1.0  # with a fixed global batch; zero leaves it out, as above
    costs: tuple[Callable[[Floats], Floats], ...] = ()
    share: Mapping[float, float] | None = None  # workers -> share of the step that is synchronisation
    batch: float = math.nan  # samples per worker and step


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One scaling law: what it says, what its parameters may be, and the questions that its parameters answer."""

    name: str
    label: str  # for readers
    place: int  # among the laws; of two that describe points equally well with equally many parameters, the first
    formula: str
    parameters: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]  # one (lowest, highest) per parameter
    modes: frozenset[str]  # scaling modes in which the parameters mean what their names say
    misread: str = ""  # what to make of the parameters in other modes, as the end of a sentence
    curve: Callable[..., Any]  # curve(n, *parameters), or curve(n, nodes, fullest, *parameters) -> S; all broadcast
    slopes: Callable[..., tuple[Any, ...]]  # called like `curve` -> dS/dparameter, in the order of the parameters
    starts: Callable[[Places, Floats], list[tuple[float, ...]]]  # first guesses from K places and their S, shape (K,)
    peak: Callable[..., float]  # worker count with the highest speedup; inf when there is none
    limit: Callable[..., float]  # speedup that no worker count exceeds; inf when there is none
    bottleneck: Callable[..., str | None] = lambda n, **values: None  # what costs most at n workers, where it says so
    costs: tuple[str, ...] = ()  # parameters that are zero when nothing is lost, where a law has several
    range_at: Mapping[str, Callable[[float], float]] = field(default_factory=dict)  # cost -> the most it can be at n
    hiding: str = ""  # parameter from 1 up that says how much of the costs hides behind the work
    linear: bool = False  # linear in its parameters, so that least squares has a closed form
    staircase: bool = False  # whether only whole counts can be shown
    by_nodes: bool = False  # whether its curve takes nodes and fullest
    needs_profile: bool = False  # whether its parameters make up for each other, so that only profiles give intervals
    reduced: "Law | None" = field(default=None, repr=False)  # fewer free parameters, for few distinct places
    strong: "Law | None" = field(default=None, repr=False)  # the form for a fixed total of work, where it differs
    multi_node: "Law | None" = field(default=None, repr=False)  # the form with constants of its own across nodes
    quantity: "Law | None" = field(default=None, repr=False)  # the form for any positive quantity y(N), if any
    trends: tuple[Trend, ...] = ()  # as forecasts combine it

    def for_mode(self, mode: str) -> "Law":
        """This law for "strong" scaling (a fixed total of work), or as it is for any other mode."""
        return self.strong if mode == "strong" and self.strong is not None else self

    def at(self, where: Places | ArrayLike, values: Floats) -> Floats:
        """Speedup at K places or worker counts, for parameter vectors `values` (..., k), as (..., K)."""
        where = where if isinstance(where, Places) else places(where)
        columns = np.moveaxis(values, -1, 0)[..., np.newaxis]
        return np.broadcast_to(self.curve(*self._arguments(where), *columns), (*values.shape[:-1], len(where)))

    def gradient(self, where: Places | ArrayLike, values: Floats) -> Floats:
        """dS/dparameter at K places or worker counts, for parameter vectors `values` (..., k), as (..., K, k)."""
        where = where if isinstance(where, Places) else places(where)
        columns = np.moveaxis(values, -1, 0)[..., np.newaxis]
        shape = (*values.shape[:-1], len(where))
        slopes = self.slopes(*self._arguments(where), *columns)
        return np.stack([np.broadcast_to(slope, shape) for slope in slopes], axis=-1)

    def with_slopes(self, where: Places, values: Floats) -> tuple[Floats, Floats]:
        """Speedup (K, B) and dS/dparameter (k, K, B) for B parameter sets `values` (k, B).

        The long axis comes last here: thousands of sets are solved at once.
        """
        layout = [each[:, np.newaxis] for each in self._arguments(where)]
        shape = (len(where), values.shape[1])
        slopes = np.empty((len(values), *shape))
        for slope, each in zip(slopes, self.slopes(*layout, *values), strict=True):
            slope[:] = each
        return np.broadcast_to(self.curve(*layout, *values), shape), slopes

    def _arguments(self, where: Places) -> tuple[Floats, ...]:
        return (where.workers, where.nodes, where.fullest) if self.by_nodes else (where.workers,)


def with_quantity(law: Law, *, place: int | None = None) -> Law:
    """Return `law` with the same form for any positive quantity y(N), in its unit; that has neither peak nor limit."""
    form = replace(
        law,
        formula=law.formula.replace("S = ", "y = "),
        place=law.place if place is None else place,
        peak=lambda **_: math.nan,
        limit=lambda **_: math.nan,
        trends=(),
    )
    return replace(law, quantity=form)


def no_less_than_zero(rows: Floats, target: Floats) -> Floats:
    """Least squares with all parameters zero or more; columns are scaled to one."""
    size = np.linalg.norm(rows, axis=0)
    size = np.where(size > 0, size, 1.0)
    return np.asarray(optimize.nnls(rows / size, target)[0] / size, dtype=np.float64)


def knee(law: Law, params: Mapping[str, float], *, per_node: float | None = None) -> float:
    """Worker count with the best speedup times efficiency, S^2/N; inf when more workers always improve it.

    The knee of Eager, Zahorjan and Lazowska 1989: where the time saved stops being worth the efficiency lost.
    Amdahl's law has it at (1 - s)/s.
    """
    return best_count(law, params, lambda n, s: s**2 / n, per_node)


def best_counts(law: Law, values: Floats, *, power: float, per_node: float | None = None) -> Floats:
    """Worker counts (B,) with the highest S^power / N^(power - 1) for parameter vectors `values` (B, k); inf for none.

    power 1 is the peak and 2 the knee. Within a few tenths of a per cent: this is for the spread of many vectors.
    """
    coarse = np.unique(np.concatenate([np.arange(1.0, 9.0), np.geomspace(8, MAX_WORKERS, 49).round()]))
    columns = values.T[..., np.newaxis]

    def found(n: Floats) -> Floats:
        where = places(n.ravel(), per_node=per_node)
        layout = [each.reshape(n.shape) for each in law._arguments(where)]
        with np.errstate(all="ignore"):
            speedup = np.maximum(law.curve(*layout, *columns), 0.0)
            return np.asarray(np.nan_to_num(speedup * (speedup / n) ** (power - 1)))

    worth = found(np.broadcast_to(coarse, (len(values), len(coarse))))
    best = np.argmax(worth >= worth.max(axis=1, keepdims=True) * (1 - 1e-12), axis=1)
    none = best == len(coarse) - 1
    low, high = coarse[np.maximum(best - 1, 0)], coarse[np.minimum(best + 1, len(coarse) - 1)]
    fine = low[:, np.newaxis] * (high / low)[:, np.newaxis] ** np.linspace(0, 1, 65)
    if law.by_nodes or law.staircase:
        fine = fine.round()
    at = np.argmax(found(fine), axis=1)
    return np.where(none, np.inf, fine[np.arange(len(fine)), at])


def best_count(
    law: Law, params: Mapping[str, float], worth: Callable[[Floats, Floats], Floats], per_node: float | None = None
) -> float:
    """Worker count of at most MAX_WORKERS with the highest worth(n, S); inf when it is there."""
    values = np.array([params[name] for name in law.parameters])

    def of(n: Floats) -> Floats:
        speedup = law.at(places(n, per_node=per_node), values)
        return np.where(speedup > 0, worth(n, np.maximum(speedup, 0.0)), -1.0)

    # Whole counts to 64 and 300 a decade beyond; then a finer look between the neighbours of the best.
    grid = np.unique(np.concatenate([np.arange(1.0, 65.0), np.geomspace(64, MAX_WORKERS, 1560).round()]))
    found = of(grid)
    best = int(np.argmax(found >= found.max() * (1 - 1e-12)))
    if best == len(grid) - 1:
        return math.inf
    low, high = grid[max(best - 1, 0)], grid[best + 1]
    fine = np.unique(
        np.round(np.linspace(low, high, 401)) if law.by_nodes or law.staircase else np.linspace(low, high, 401)
    )
    found = of(fine)
    return float(fine[int(np.argmax(found))])
