"""What a law says, without its estimator: names, bounds, curve with derivatives, first guesses, peak, limit and knee.

Letters: N worker count (at least 1), M nodes, F workers on the fullest node, S speedup relative to one worker,
B parameter sets evaluated at once, K places (a place is a worker count on a number of nodes), k parameters of a law.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError

REACH = 1.5  # curves are drawn to this multiple of the largest worker count measured; what is beyond is extrapolated
MAX_WORKERS = 10_000_000  # beyond this count nobody looks for a peak or a knee
EVERY_MODE = frozenset({"strong", "weak", "mixed"})


def places(workers: ArrayLike, nodes: ArrayLike | None = None, *, per_node: ArrayLike | None = None) -> Floats:
    """Places of `workers` (K,): workers, nodes and workers on the fullest node, (3, K).

    Nodes are filled one after another with `per_node` workers where that is known.

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
    return np.stack([n, m, fullest])


class LawForm:
    """One form of a law: subclasses declare `name`, `bounds` and `curve`, and what else they know better."""

    name: ClassVar[str] = ""
    label: ClassVar[str] = ""  # for readers
    place: ClassVar[int] = 100  # among the laws; of two that describe points equally well, the first
    modes: ClassVar[frozenset[str]] = EVERY_MODE  # scaling modes in which the parameters mean what their names say
    misread: ClassVar[str] = ""  # what to make of the parameters in other modes, as the end of a sentence
    range_at: ClassVar[Mapping[str, Callable[[float], float]]] = {}  # cost -> the most it can be at n
    hiding: ClassVar[str] = ""  # parameter from 1 up that says how much of the costs hides behind the work
    staircase: ClassVar[bool] = False  # whether only whole counts can be shown
    needs_profile: ClassVar[bool] = False  # whether parameters make up for each other: only profiles give intervals
    formula: str = ""
    bounds: Mapping[str, tuple[float, float]] = {}  # parameter -> its lowest and highest value
    costs: tuple[str, ...] = ()  # parameters that are zero when nothing is lost, where a law has several
    linear: bool = False  # in its parameters, so that least squares has a closed form
    by_nodes: bool = False  # whether its curve takes nodes and fullest behind n

    mode: str
    quantity: bool
    multi_node: bool
    scaled: bool

    def curve(self, n: Any, *values: Any) -> Any:
        """Return S at `n` for parameters in the order of `bounds`; all broadcast."""
        raise NotImplementedError(f"{type(self).__name__} has no curve")

    def slopes(self, *arguments: Any) -> tuple[Any, ...]:
        """Return dS/dparameter, called like `curve`: by complex steps (W. Squire and G. Trapp 1998), to the last digit.

        A curve that takes no complex numbers has slopes of its own.
        """
        first, values = arguments[: -len(self.bounds)], arguments[-len(self.bounds) :]
        moved = [[each + 1e-30j * (i == j) for j, each in enumerate(values)] for i in range(len(values))]
        return tuple(np.imag(self.curve(*first, *each)) / 1e-30 for each in moved)

    def starts(self, where: Floats, s: Floats) -> list[tuple[float, ...]]:
        """Return first guesses from K places and their S, shape (K,)."""
        ends = [(low, high) if math.isfinite(high - low) else (1e-3, 1.0) for low, high in self.bounds.values()]
        return [*itertools.product(*((low + (high - low) / 10, high) for low, high in ends))]

    def peak_of(self, **values: float) -> float:
        """Return the worker count with the highest speedup; inf when there is none, NaN where nodes decide."""
        return self._best(1, None, values)

    def knee_of(self, per_node: float | None = None, **values: float) -> float:
        """Return the worker count with the best speedup times efficiency; inf when more workers always improve it."""
        return self._best(2, per_node, values)

    def limit_of(self, **values: float) -> float:
        """Return the speedup that no worker count exceeds; inf when there is none, NaN where nodes decide."""
        peak = self.peak_of(**values)
        at, before = self.curve(1e100 if math.isinf(peak) else peak, **values), self.curve(1e50, **values)
        return math.inf if math.isinf(peak) and at > 1.001 * before else float(at)

    def bottleneck_of(self, n: float, **values: float) -> str | None:
        """Return what costs most at `n` workers, where the law says it."""
        return None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.bounds)

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """One (lowest, highest) per parameter."""
        return tuple(self.bounds.values())

    def for_mode(self, mode: str) -> Any:
        """This law for "strong" scaling (a fixed total of work), or as it is for any other mode."""
        return self.form(mode="strong" if mode == "strong" else "weak")

    def across(self) -> Any:
        """The form with constants of its own across nodes, where there is one."""
        return None

    def reduced(self) -> Any:
        """The form with fewer free parameters, for few distinct places, where there is one."""
        return None

    def form(self, **flags: Any) -> Any:
        """This law with other flags."""
        own = {name: getattr(self, name) for name in ("mode", "quantity", "multi_node", "scaled")}
        return type(self)(**{**own, **flags})

    def at(self, where: Any, values: Floats) -> Floats:
        """Speedup at K places or worker counts, for parameter vectors `values` (..., k), as (..., K)."""
        where = where if np.ndim(where) == 2 else places(where)
        columns = np.moveaxis(values, -1, 0)[..., np.newaxis]
        return np.broadcast_to(self.curve(*self._arguments(where), *columns), (*values.shape[:-1], where.shape[1]))

    def gradient(self, where: Any, values: Floats) -> Floats:
        """dS/dparameter at K places or worker counts, for parameter vectors `values` (..., k), as (..., K, k)."""
        where = where if np.ndim(where) == 2 else places(where)
        columns = np.moveaxis(values, -1, 0)[..., np.newaxis]
        shape = (*values.shape[:-1], where.shape[1])
        slopes = self.slopes(*self._arguments(where), *columns)
        return np.stack([np.broadcast_to(slope, shape) for slope in slopes], axis=-1)

    def with_slopes(self, where: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Speedup (K, B) and dS/dparameter (k, K, B) for B parameter sets `values` (k, B).

        The long axis comes last here: thousands of sets are solved at once.
        """
        layout = [each[:, np.newaxis] for each in self._arguments(where)]
        shape = (where.shape[1], values.shape[1])
        slopes = np.empty((len(values), *shape))
        for slope, each in zip(slopes, self.slopes(*layout, *values), strict=True):
            slope[:] = each
        return np.broadcast_to(self.curve(*layout, *values), shape), slopes

    def _best(self, power: float, per_node: float | None, values: Mapping[str, float]) -> float:
        vector = np.array([[values.get(name, 1.0) for name in self.parameters]])
        return float(best_counts(self, vector, power=power, per_node=per_node)[0])

    def _arguments(self, where: Floats) -> Floats:
        return where if self.by_nodes else where[:1]


def no_less_than_zero(rows: Floats, target: Floats) -> Floats:
    """Least squares with all parameters zero or more; columns are scaled to one."""
    size = np.linalg.norm(rows, axis=0)
    size = np.where(size > 0, size, 1.0)
    return np.asarray(optimize.nnls(rows / size, target)[0] / size, dtype=np.float64)


def best_counts(law: LawForm, values: Floats, *, power: float, per_node: float | None = None) -> Floats:
    """Worker counts (B,) with the highest S^power / N^(power - 1) for parameter vectors `values` (B, k); inf for none.

    power 1 is the peak. 2 is the knee, the best speedup times efficiency (Eager, Zahorjan and Lazowska 1989): where the
    time saved stops being worth the efficiency lost, (1 - s)/s for Amdahl's law. Of many vectors, whose spread is asked
    for, the counts are right within a few tenths of a per cent; of a single one within 0.01 %.
    """
    one = len(values) == 1
    first, number, steps = (65, 1560, 401) if one else (9, 49, 65)
    few, more = np.arange(1.0, first), np.geomspace(first - 1, MAX_WORKERS, number).round()
    coarse, columns = np.unique(np.concatenate([few, more])), values.T[..., np.newaxis]

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
    fine = (np.linspace if one else np.geomspace)(low, high, steps, axis=1)
    if law.by_nodes or law.staircase:
        fine = fine.round()
    at = np.argmax(found(fine), axis=1)
    return np.where(none, np.inf, fine[np.arange(len(fine)), at])
