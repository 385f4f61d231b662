"""Scaling laws as small values: speedup S as a function of the worker count N, with names, bounds and meaning.

Letters: N worker count (at least 1), M nodes, F workers on the fullest node, S speedup relative to one worker,
B parameter sets evaluated at once, K places (a place is a worker count on a number of nodes), k parameters of a law.

    linear     S = slope N + intercept              the regression line of the original study
    amdahl     S = 1 / (s + (1 - s) / N)            Amdahl 1967; s is the serial fraction of fixed work
    gustafson  S = s + (1 - s) N                    Gustafson 1988; s is the serial fraction of scaled work
    usl        S = gamma N / (1 + alpha (N - 1) + beta N (N - 1))
                                                    Gunther's Universal Scalability Law; alpha is contention (queueing
                                                    for something shared), beta coherency (everybody to everybody)
    power      S = scale N^exponent                 a straight line on doubly logarithmic paper
    log2       S = intercept + slope log2 N         what every doubling adds
    ring       step = 1 + 2 (N - 1) alpha + 2 (N - 1)/N beta
                                                    ring all-reduce (Thakur, Rabenseifner and Gropp 2005): 2 (N - 1)
                                                    messages, of which each carries 1/N of the gradients
    tree       step = 1 + 2 ceil(log2 N) hop        reduce and broadcast along a binomial tree; hop = alpha + beta of
                                                    one whole message
    overlap    step = (1 + c^g)^(1/g)               c as in ring; g = 1 puts communication after computing, g = inf
                                                    hides all of the shorter one
    constant   S = level                            workers do not matter

**Steps.** The last but one group gives the time of a step in units of the step of one worker, and S = gamma N / step:
the work of a worker is fixed (weak scaling). Where the work of all is fixed (strong scaling), computing takes 1/N of it
and S = gamma / step: `for_mode("strong")` is that form. alpha is the latency of one message, beta the time of all
gradients through one link, both in steps of one worker.

**Nodes.** Where places span several nodes, ring and tree have constants of their own across nodes: `multi_node` is that
form. Gradients are then reduced inside each node and between nodes, and the fullest node and the number of nodes count:

    ring   step = 1 + 2 (F - 1) alpha + 2 (F - 1)/F beta + 2 (M - 1) alpha_across + 2 (M - 1)/M beta_across
    tree   step = 1 + 2 ceil(log2 F) hop + 2 ceil(log2 M) hop_across

A tree has whole levels: its curve is a staircase, as the algorithm is, and not a smooth logarithm, which would call
five workers cheaper than eight.

`usl`, `ring`, `tree` and `overlap` have a scale gamma because their published form, X(N) = X1 N / (...), has the free
one-worker throughput X1. With it the other parameters do not depend on which baseline the speedup was divided by, nor
on the luck of a single one-worker run. With few distinct places there is nothing left to determine another number:
`reduced` is the next smaller form.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from horovod_study.analysis.costs import moved_share, ring_messages, rounds
from horovod_study.errors import AnalysisError

if TYPE_CHECKING:
    from horovod_study.analysis.fitting import ScalingFit

Array: TypeAlias = NDArray[np.float64]

MAX_WORKERS = 10_000_000
"""Beyond this count nobody looks for a peak or a knee."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where points were measured: worker counts, nodes and workers on the fullest node, each of shape (K,)."""

    workers: Array
    nodes: Array
    fullest: Array

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
class Law:
    """One scaling law: what it says, what its parameters may be, and the questions that its parameters answer."""

    name: str
    formula: str
    parameters: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]  # one (lowest, highest) per parameter
    modes: frozenset[str]  # scaling modes in which the parameters mean what their names say
    curve: Callable[..., Any]  # curve(n, *parameters), or curve(n, nodes, fullest, *parameters) -> S; all broadcast
    slopes: Callable[..., tuple[Any, ...]]  # called like `curve` -> dS/dparameter, in the order of the parameters
    starts: Callable[[Places, Array], list[tuple[float, ...]]]  # first guesses from K places and their S, shape (K,)
    peak: Callable[..., float]  # worker count with the highest speedup; inf when there is none
    limit: Callable[..., float]  # speedup that no worker count exceeds; inf when there is none
    costs: tuple[str, ...] = ()  # parameters that are zero when nothing is lost, where a law has several
    linear: bool = False  # linear in its parameters, so that least squares has a closed form
    by_nodes: bool = False  # whether its curve takes nodes and fullest
    needs_profile: bool = False  # whether its parameters make up for each other, so that only profiles give intervals
    reduced: "Law | None" = field(default=None, repr=False)  # fewer free parameters, for few distinct places
    strong: "Law | None" = field(default=None, repr=False)  # the form for a fixed total of work, where it differs
    multi_node: "Law | None" = field(default=None, repr=False)  # the form with constants of its own across nodes

    def __post_init__(self) -> None:
        if len(self.parameters) != len(self.bounds):
            raise ValueError(f"law {self.name!r}: {len(self.parameters)} parameters but {len(self.bounds)} bounds")

    def for_mode(self, mode: str) -> "Law":
        """This law for "strong" scaling (a fixed total of work), or as it is for any other mode."""
        return self.strong if mode == "strong" and self.strong is not None else self

    def fit(self, workers: ArrayLike, speedup: ArrayLike, **options: Any) -> "ScalingFit":
        """Fit this law and return the fitted value; the law itself stays as it is.

        `workers` is (R,) or (R, 1), or (R, 2) with the nodes in the second column; `options` are those of
        `fitting.fit`. The result has `predict`, which takes worker counts in the same forms.
        """
        from horovod_study.analysis.fitting import fit  # it imports this module

        n, nodes = columns(workers)
        return fit(self, n, speedup, **{"nodes": nodes, **options})

    def at(self, where: Places | ArrayLike, values: Array) -> Array:
        """Speedup at K places or worker counts, for parameter vectors `values` (..., k), as (..., K)."""
        where = where if isinstance(where, Places) else places(where)
        columns = np.moveaxis(values, -1, 0)[..., np.newaxis]
        return np.broadcast_to(self.curve(*self._arguments(where), *columns), (*values.shape[:-1], len(where)))

    def gradient(self, where: Places | ArrayLike, values: Array) -> Array:
        """dS/dparameter at K places or worker counts, for parameter vectors `values` (..., k), as (..., K, k)."""
        where = where if isinstance(where, Places) else places(where)
        columns = np.moveaxis(values, -1, 0)[..., np.newaxis]
        shape = (*values.shape[:-1], len(where))
        slopes = self.slopes(*self._arguments(where), *columns)
        return np.stack([np.broadcast_to(slope, shape) for slope in slopes], axis=-1)

    def with_slopes(self, where: Places, values: Array) -> tuple[Array, Array]:
        """Speedup (K, B) and dS/dparameter (k, K, B) for B parameter sets `values` (k, B).

        The long axis comes last here: thousands of sets are solved at once.
        """
        layout = [each[:, np.newaxis] for each in self._arguments(where)]
        shape = (len(where), values.shape[1])
        slopes = np.empty((len(values), *shape))
        for slope, each in zip(slopes, self.slopes(*layout, *values), strict=True):
            slope[:] = each
        return np.broadcast_to(self.curve(*layout, *values), shape), slopes

    def _arguments(self, where: Places) -> tuple[Array, ...]:
        return (where.workers, where.nodes, where.fullest) if self.by_nodes else (where.workers,)


def columns(workers: ArrayLike) -> tuple[Array, Array | None]:
    """Worker counts (R,) and nodes (R,), the latter None without a second column; `workers` is (R,), (R, 1), (R, 2)."""
    table = np.asarray(workers, dtype=np.float64)
    if table.ndim < 2:
        return np.atleast_1d(table), None
    if table.ndim > 2 or table.shape[1] not in (1, 2):
        raise AnalysisError(f"worker counts of shape {table.shape}: give (R,), (R, 1), or (R, 2) with nodes second")
    return table[:, 0], table[:, 1] if table.shape[1] == 2 else None


# --- questions --------------------------------------------------------------------------------------------------------


def karp_flatt(speedup: ArrayLike, workers: ArrayLike) -> Array:
    """Experimentally determined serial fraction e = (1/S - 1/N) / (1 - 1/N) (Karp and Flatt 1990); NaN at N = 1.

    It needs no fit: e that stays level speaks for serial work, e that rises with N for overhead that grows with N.
    """
    s, n = np.broadcast_arrays(np.asarray(speedup, dtype=np.float64), np.asarray(workers, dtype=np.float64))
    fraction = np.full(s.shape, np.nan)
    several = n > 1
    fraction[several] = (1 / s[several] - 1 / n[several]) / (1 - 1 / n[several])
    return fraction


def usl_peak(alpha: float, beta: float, gamma: float = 1.0) -> float:
    """Worker count with the highest speedup, sqrt((1 - alpha) / beta); 1 when alpha >= 1, inf when beta is 0."""
    if alpha >= 1:
        return 1.0
    return math.inf if beta <= 0 else max(1.0, math.sqrt((1 - alpha) / beta))


def usl_limit(alpha: float, beta: float, gamma: float = 1.0) -> float:
    """Highest speedup of all: the one at the peak, gamma / alpha without coherency cost, inf without any cost."""
    peak = usl_peak(alpha, beta)
    if math.isfinite(peak):
        return float(_usl(peak, alpha, beta, gamma))
    return gamma / alpha if alpha > 0 else math.inf


def usl_bottleneck(workers: float, alpha: float, beta: float) -> str:
    """What costs more at `workers`: "contention" (alpha (N - 1)) or "coherency" (beta N (N - 1)); "none" if neither."""
    if alpha <= 0 and beta <= 0:
        return "none"
    return "coherency" if beta * workers > alpha else "contention"


def amdahl_limit(s: float) -> float:
    """Speedup that Amdahl's law never exceeds, 1 / s."""
    return 1 / s if s > 0 else math.inf


def ring_cost(workers: ArrayLike, alpha: float, beta: float) -> Array:
    """Time of a ring all-reduce, 2 (n - 1) alpha + 2 (n - 1)/n beta, in the unit of alpha and beta.

    alpha is the latency of one message, beta the time of the whole buffer through one link (bytes / bandwidth).
    """
    n = np.asarray(workers, dtype=np.float64)
    return np.asarray(ring_messages(n) * alpha + moved_share(n) * beta)


def tree_cost(workers: ArrayLike, hop: float) -> Array:
    """Time of reduce and broadcast along a binomial tree, 2 ceil(log2 n) hop, in the unit of hop."""
    return np.asarray(2 * rounds(np.asarray(workers, dtype=np.float64)) * hop)


def knee(law: Law, params: Mapping[str, float], *, per_node: float | None = None) -> float:
    """Worker count with the best speedup times efficiency, S^2/N; inf when more workers always improve it.

    The knee of Eager, Zahorjan and Lazowska 1989: where the time saved stops being worth the efficiency lost.
    Amdahl's law has it at (1 - s)/s.
    """
    return _best(law, params, lambda n, s: s**2 / n, per_node)


def best_counts(law: Law, values: Array, *, power: float, per_node: float | None = None) -> Array:
    """Worker counts (B,) with the highest S^power / N^(power - 1) for parameter vectors `values` (B, k); inf for none.

    power 1 is the peak and 2 the knee. Within a few tenths of a per cent: this is for the spread of many vectors.
    """
    coarse = np.unique(np.concatenate([np.arange(1.0, 9.0), np.geomspace(8, MAX_WORKERS, 49).round()]))
    columns = values.T[..., np.newaxis]

    def found(n: Array) -> Array:
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
    if law.by_nodes or law.name == "tree":
        fine = fine.round()
    at = np.argmax(found(fine), axis=1)
    return np.where(none, np.inf, fine[np.arange(len(fine)), at])


def _best(
    law: Law, params: Mapping[str, float], worth: Callable[[Array, Array], Array], per_node: float | None = None
) -> float:
    """Worker count of at most MAX_WORKERS with the highest worth(n, S); inf when it lies there."""
    values = np.array([params[name] for name in law.parameters])

    def of(n: Array) -> Array:
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
        np.round(np.linspace(low, high, 401)) if law.by_nodes or law.name == "tree" else np.linspace(low, high, 401)
    )
    found = of(fine)
    return float(fine[int(np.argmax(found))])


# --- curves -----------------------------------------------------------------------------------------------------------


def _linear(n: Any, slope: Any, intercept: Any) -> Any:
    return slope * n + intercept


def _linear_slopes(n: Any, slope: Any, intercept: Any) -> tuple[Any, ...]:
    return n, 1.0


def _amdahl(n: Any, s: Any) -> Any:
    return n / (1 + s * (n - 1))


def _amdahl_slopes(n: Any, s: Any) -> tuple[Any, ...]:
    return (-n * (n - 1) / (1 + s * (n - 1)) ** 2,)


def _gustafson(n: Any, s: Any) -> Any:
    return s + (1 - s) * n


def _gustafson_slopes(n: Any, s: Any) -> tuple[Any, ...]:
    return (1 - n,)


def _usl(n: Any, alpha: Any, beta: Any, gamma: Any = 1.0) -> Any:
    return gamma * n / (1 + alpha * (n - 1) + beta * n * (n - 1))


def _usl_slopes(n: Any, alpha: Any, beta: Any, gamma: Any = 1.0) -> tuple[Any, ...]:
    step = 1 + alpha * (n - 1) + beta * n * (n - 1)
    rate = n / step
    fall = -gamma * rate / step * (n - 1)
    return fall, fall * n, rate


def _usl_anchored_slopes(n: Any, alpha: Any, beta: Any) -> tuple[Any, ...]:
    return _usl_slopes(n, alpha, beta)[:2]


def _power(n: Any, scale: Any, exponent: Any) -> Any:
    return scale * np.exp(exponent * np.log(n))


def _power_slopes(n: Any, scale: Any, exponent: Any) -> tuple[Any, ...]:
    rise = np.exp(exponent * np.log(n))
    return rise, scale * rise * np.log(n)


def _log2(n: Any, intercept: Any, slope: Any) -> Any:
    return intercept + slope * np.log2(n)


def _log2_slopes(n: Any, intercept: Any, slope: Any) -> tuple[Any, ...]:
    return 1.0, np.log2(n)


def _constant(n: Any, level: Any) -> Any:
    return level + 0.0 * n


def _constant_slopes(n: Any, level: Any) -> tuple[Any, ...]:
    return (1.0,)


Term: TypeAlias = Callable[[Any, Any, Any], Any]
"""What one parameter costs per unit, at N workers on M nodes with F on the fullest."""

_RING: Mapping[str, Term] = MappingProxyType(
    {"alpha": lambda n, m, f: ring_messages(n), "beta": lambda n, m, f: moved_share(n)}
)
_RING_MULTI_NODE: Mapping[str, Term] = MappingProxyType(
    {
        "alpha": lambda n, m, f: ring_messages(f),
        "beta": lambda n, m, f: moved_share(f),
        "alpha_across": lambda n, m, f: ring_messages(m),
        "beta_across": lambda n, m, f: moved_share(m),
    }
)
_TREE: Mapping[str, Term] = MappingProxyType({"hop": lambda n, m, f: 2 * rounds(n)})
_TREE_MULTI_NODE: Mapping[str, Term] = MappingProxyType(
    {"hop": lambda n, m, f: 2 * rounds(f), "hop_across": lambda n, m, f: 2 * rounds(m)}
)
_RING_TEXT = "2(N-1) alpha + 2(N-1)/N beta"
_RING_MULTI_NODE_TEXT = "2(F-1) alpha + 2(F-1)/F beta + 2(M-1) alpha_across + 2(M-1)/M beta_across"
_TREE_TEXT = "2 ceil(log2 N) hop"
_TREE_MULTI_NODE_TEXT = "2 ceil(log2 F) hop + 2 ceil(log2 M) hop_across"

_EVERY_MODE = frozenset({"strong", "weak", "mixed"})
_STEPS = frozenset({"strong", "weak"})


# --- first guesses ----------------------------------------------------------------------------------------------------


def _starts_linear(where: Places, s: Array) -> list[tuple[float, ...]]:
    return [(float(np.mean(s / where.workers)), 0.0)]


def _starts_amdahl(where: Places, s: Array) -> list[tuple[float, ...]]:
    # N/S - 1 = s (N - 1) is linear in s.
    n = where.workers
    weight = np.sum((n - 1) ** 2)
    guess = np.sum((n - 1) * (n / s - 1)) / weight if weight > 0 else 0.0
    return [(float(np.clip(guess, 1e-6, 1.0)),), (0.0,), (1.0,)]


def _starts_gustafson(where: Places, s: Array) -> list[tuple[float, ...]]:
    return [(0.5,)]


def _starts_usl(where: Places, s: Array) -> list[tuple[float, ...]]:
    # N/S = (1 + alpha (N - 1) + beta N (N - 1)) / gamma is linear in 1/gamma, alpha/gamma and beta/gamma.
    # Dividing by N/S makes the residuals relative, so that the largest N does not drown the rest.
    n = where.workers
    columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1) * (s / n)[:, np.newaxis]
    inverse, contention, coherency = np.linalg.lstsq(columns, np.ones_like(n))[0]
    gamma = 1 / inverse if inverse > 0 else float(np.max(s / n))
    guess = (max(contention * gamma, 1e-6), max(coherency * gamma, 1e-9), gamma)
    return [guess, *((alpha, beta, 1.0) for alpha, beta in _starts_usl_anchored(where, s))]


def _starts_usl_anchored(where: Places, s: Array) -> list[tuple[float, ...]]:
    n = where.workers
    columns = np.stack([n - 1, n * (n - 1)], axis=1) * (s / n)[:, np.newaxis]
    contention, coherency = np.linalg.lstsq(columns, 1 - s / n)[0]
    # Amdahl's law is the case beta = 0: starting there, too, USL never ends up worse.
    return [(max(contention, 1e-6), max(coherency, 1e-9)), *((s0, 0.0) for (s0,) in _starts_amdahl(where, s))]


def _starts_power(where: Places, s: Array) -> list[tuple[float, ...]]:
    x, y = np.log(where.workers), np.log(np.maximum(s, 1e-300))
    spread = float(np.sum((x - x.mean()) ** 2))
    exponent = float(np.clip(np.sum((x - x.mean()) * (y - y.mean())) / spread if spread > 0 else 0.0, -9.9, 9.9))
    at_largest = float(np.exp(y[-1] - exponent * x[-1]))
    return [(float(np.exp(y.mean() - exponent * x.mean())), exponent), (at_largest, exponent), (float(s.mean()), 0.0)]


def _starts_log2(where: Places, s: Array) -> list[tuple[float, ...]]:
    return [(float(s[0]), 1.0)]


def _starts_constant(where: Places, s: Array) -> list[tuple[float, ...]]:
    return [(float(s.mean()),)]


def _starts_costs(terms: Mapping[str, Term], *, strong: bool, scaled: bool) -> Callable[..., list[tuple[float, ...]]]:
    """Guesses of laws S = gamma / (own + sum of p_i f_i), own being 1/N (strong) or with all of it times N (weak).

    1/S is linear in 1/gamma and p_i/gamma, all of them zero or more; residuals are relative, as for `usl`.
    """

    def starts(where: Places, s: Array) -> list[tuple[float, ...]]:
        n = where.workers
        own = 1 / n if strong else np.ones_like(n)
        scale = s if strong else s / n
        rows = np.stack([term(n, where.nodes, where.fullest) for term in terms.values()], axis=1) * scale[:, np.newaxis]
        none = (1e-6,) * len(terms)
        if not scaled:
            return [tuple(no_less_than_zero(rows, 1 - own * scale)), none]
        found = no_less_than_zero(np.column_stack([own * scale, rows]), np.ones_like(n))
        if found[0] <= 0:
            return [(*none, float(np.max(scale)))]
        return [(*(found[1:] / found[0]), 1 / found[0]), (*none, float(np.max(scale)))]

    return starts


def no_less_than_zero(rows: Array, target: Array) -> Array:
    """Least squares with all parameters zero or more; columns are scaled to one."""
    size = np.linalg.norm(rows, axis=0)
    size = np.where(size > 0, size, 1.0)
    return np.asarray(optimize.nnls(rows / size, target)[0] / size, dtype=np.float64)


# --- laws whose step is computing plus costs --------------------------------------------------------------------------


def _cost_curve(
    terms: Mapping[str, Term], *, strong: bool, by_nodes: bool
) -> tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]:
    """Curve and slopes of gamma times work over step, gamma being 1 where it is not among the parameters."""
    number = len(terms)

    def parts(n: Any, *values: Any) -> tuple[Any, list[Any], Any]:
        (nodes, fullest), values = (values[:2], values[2:]) if by_nodes else ((1.0, n), values)
        per_unit = [term(n, nodes, fullest) for term in terms.values()]
        step = 1 / n if strong else 1.0
        for value, each in zip(values[:number], per_unit, strict=True):
            step = step + value * each
        return step, per_unit, values[number] if len(values) > number else None

    def curve(n: Any, *values: Any, **named: Any) -> Any:
        step, _, gamma = parts(n, *values, *(named[name] for name in (*terms, "gamma") if name in named))
        rate = (1.0 if strong else n) / step
        return rate if gamma is None else gamma * rate

    def slopes(n: Any, *values: Any) -> tuple[Any, ...]:
        step, per_unit, gamma = parts(n, *values)
        rate = (1.0 if strong else n) / step
        fall = -rate / step if gamma is None else -gamma * rate / step
        return (*(fall * each for each in per_unit), *(() if gamma is None else (rate,)))

    return curve, slopes


def _cost_laws(
    name: str, inside: Mapping[str, Term], text: str, multi_node: Mapping[str, Term], multi_node_text: str
) -> Law:
    """The form for fixed work per worker, with those for fixed total work, for several nodes and for few places."""

    def form(terms: Mapping[str, Term], words: str, *, strong: bool, scaled: bool, reduced: Law | None) -> Law:
        over = f"(1/N + {words})" if strong else f"(1 + {words})"
        top = " ".join((["gamma"] if scaled else []) + ([] if strong else ["N"])) or "1"
        by_nodes = len(terms) > len(inside)
        curve, slopes = _cost_curve(terms, strong=strong, by_nodes=by_nodes)

        def peak(gamma: float = 1.0, **costs: float) -> float:
            return _cost_peak(name, strong, by_nodes, costs)

        def limit(gamma: float = 1.0, **costs: float) -> float:
            return _cost_limit(name, strong, by_nodes, costs) * gamma

        return Law(
            name=name,
            formula=f"S = {top} / {over}",
            parameters=(*terms, "gamma") if scaled else tuple(terms),
            bounds=((0.0, math.inf),) * (len(terms) + scaled),
            modes=_STEPS,
            curve=curve,
            slopes=slopes,
            starts=_starts_costs(terms, strong=strong, scaled=scaled),
            peak=peak,
            limit=limit,
            costs=tuple(terms),
            by_nodes=by_nodes,
            reduced=reduced,
        )

    laws = {}
    for strong in (True, False):
        anchored = form(inside, text, strong=strong, scaled=False, reduced=None)
        flat = form(inside, text, strong=strong, scaled=True, reduced=anchored)
        tied = form(multi_node, multi_node_text, strong=strong, scaled=False, reduced=flat)
        several = form(multi_node, multi_node_text, strong=strong, scaled=True, reduced=tied)
        laws[strong] = replace(flat, multi_node=several)
    return replace(laws[False], strong=laws[True])


def _cost_peak(name: str, strong: bool, by_nodes: bool, costs: Mapping[str, float]) -> float:
    """Where the step of a fixed total of work is shortest; a fixed work per worker only saturates."""
    if not strong or not any(costs.values()):
        return math.inf
    if by_nodes:
        # It depends on how nodes are filled.
        return math.nan
    if name == "ring":
        # 1/N + 2 (N - 1) alpha + 2 beta - 2 beta/N has its minimum at N^2 = (1 - 2 beta) / (2 alpha).
        alpha, beta = costs["alpha"], costs["beta"]
        if 2 * beta >= 1:
            return 1.0
        return math.inf if alpha <= 0 else max(1.0, math.sqrt((1 - 2 * beta) / (2 * alpha)))
    # A tree is quickest with full levels: one more level pays while 1/N - 1/(2 N) > 2 hop.
    levels = np.arange(0, 64)
    step = 0.5**levels + 2 * costs["hop"] * levels
    return float(2.0 ** levels[int(np.argmin(step))])


def _cost_limit(name: str, strong: bool, by_nodes: bool, costs: Mapping[str, float]) -> float:
    """Speedup that is never exceeded, without the scale."""
    if not any(costs.values()):
        return math.inf
    if by_nodes:
        return math.nan
    if name == "ring":
        alpha, beta = costs["alpha"], costs["beta"]
        if not strong:
            return 1 / (2 * alpha) if alpha > 0 else math.inf
        peak = _cost_peak(name, strong, by_nodes, costs)
        if math.isinf(peak):
            return 1 / (2 * beta)
        return float(1 / (1 / peak + ring_cost(peak, alpha, beta)))
    if not strong:
        return math.inf
    peak = _cost_peak(name, strong, by_nodes, costs)
    return float(1 / (1 / peak + tree_cost(peak, costs["hop"])))


# --- overlap ----------------------------------------------------------------------------------------------------------


def _blend(first: Array, second: Array, g: Array) -> tuple[Array, Array, Array]:
    """step = (first^g + second^g)^(1/g) with dstep/dsecond and dstep/dg, without overflow for large g; shapes alike."""
    larger = np.maximum(first, second)
    logs = [np.log(np.maximum(each / larger, 1e-300)) for each in (first, second)]
    powers = [np.exp(g * log) for log in logs]
    total = powers[0] + powers[1]
    log_total = np.log(total)
    step = larger * np.exp(log_total / g)
    by_second = np.exp((g - 1) * (logs[1] - log_total / g))
    by_g = step * ((powers[0] * logs[0] + powers[1] * logs[1]) / (g * total) - log_total / g**2)
    return step, by_second, by_g


def _overlap_curve(*, strong: bool) -> Callable[..., Any]:
    def curve(n: Any, alpha: Any, beta: Any, g: Any, gamma: Any = 1.0) -> Any:
        n = np.asarray(n, dtype=np.float64)
        exchange = alpha * ring_messages(n) + beta * moved_share(n)
        step, _, _ = _blend(1 / n if strong else np.ones_like(n), exchange, np.asarray(g))
        return gamma / step if strong else gamma * n / step

    return curve


def _overlap_slopes(*, strong: bool, scaled: bool) -> Callable[..., tuple[Any, ...]]:
    def slopes(n: Any, alpha: Any, beta: Any, g: Any, gamma: Any = 1.0) -> tuple[Any, ...]:
        exchange = alpha * ring_messages(n) + beta * moved_share(n)
        step, by_exchange, by_g = _blend(1 / n if strong else np.ones_like(n), exchange, g)
        rate = (1.0 if strong else n) / step
        fall = -gamma * rate / step
        found = (fall * by_exchange * ring_messages(n), fall * by_exchange * moved_share(n), fall * by_g)
        return (*found, rate) if scaled else found

    return slopes


def _starts_overlap(*, strong: bool, scaled: bool) -> Callable[..., list[tuple[float, ...]]]:
    serial = _starts_costs(_RING, strong=strong, scaled=scaled)
    bare = _starts_costs(_RING, strong=strong, scaled=False)

    def starts(where: Places, s: Array) -> list[tuple[float, ...]]:
        n = where.workers
        guesses = []
        for guess in serial(where, s):
            # g = 1 is the ring; starting there, overlap never ends up worse.
            guesses.append((guess[0], guess[1], 1.0, *guess[2:]))
        scale = float(np.max(s / n)) if scaled else 1.0
        # What the step has beyond computing, if computing to the power g goes off it, is the exchange to the power g.
        step = scale / s if strong else scale * n / s
        own = 1 / n if strong else np.ones_like(n)
        for g in (2.0, 4.0):
            exchange = np.maximum(step**g - own**g, 0.0) ** (1 / g)
            late = exchange > 0
            if np.count_nonzero(late) < 2:
                continue
            rows = np.stack([ring_messages(n), moved_share(n)], axis=1)[late] / step[late, np.newaxis]
            alpha, beta = no_less_than_zero(rows, exchange[late] / step[late])
            guesses.append((max(alpha, 1e-6), max(beta, 1e-6), g, *((scale,) if scaled else ())))
        guesses.append((*np.maximum(bare(where, s)[0], 1e-6), 1.5, *((scale,) if scaled else ())))
        return guesses

    return starts


def _overlap_law() -> Law:
    def form(*, strong: bool, scaled: bool, reduced: Law | None) -> Law:
        def params(values: Mapping[str, float]) -> dict[str, float]:
            return {"gamma": 1.0, **values}

        def peak(**values: float) -> float:
            if not (values["alpha"] > 0 or values["beta"] > 0) or not strong:
                return math.inf
            return _best(law, values, lambda n, s: s)

        def limit(**values: float) -> float:
            gamma = params(values)["gamma"]
            if not strong:
                return gamma / (2 * values["alpha"]) if values["alpha"] > 0 else math.inf
            if not (values["alpha"] > 0 or values["beta"] > 0):
                return math.inf
            best = peak(**values)
            return gamma / (2 * values["beta"]) if math.isinf(best) else float(law.curve(best, **values))

        exchange = f"c = {_RING_TEXT}"
        top = "gamma" if scaled else "1"
        law = Law(
            name="overlap",
            formula=f"S = {top} / (N^-g + c^g)^(1/g), {exchange}"
            if strong
            else f"S = {'gamma N' if scaled else 'N'} / (1 + c^g)^(1/g), {exchange}",
            parameters=("alpha", "beta", "g", *(("gamma",) if scaled else ())),
            bounds=((0.0, math.inf), (0.0, math.inf), (1.0, 64.0), *(((0.0, math.inf),) if scaled else ())),
            modes=_STEPS,
            curve=_overlap_curve(strong=strong),
            slopes=_overlap_slopes(strong=strong, scaled=scaled),
            starts=_starts_overlap(strong=strong, scaled=scaled),
            peak=peak,
            limit=limit,
            costs=("alpha", "beta"),
            needs_profile=True,
            reduced=reduced,
        )
        return law

    strong = form(strong=True, scaled=True, reduced=form(strong=True, scaled=False, reduced=None))
    weak = form(strong=False, scaled=True, reduced=form(strong=False, scaled=False, reduced=None))
    return replace(weak, strong=strong)


# --- the laws ---------------------------------------------------------------------------------------------------------

LINEAR = Law(
    name="linear",
    formula="S = slope N + intercept",
    parameters=("slope", "intercept"),
    bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
    modes=_EVERY_MODE,
    curve=_linear,
    slopes=_linear_slopes,
    starts=_starts_linear,
    peak=lambda slope, intercept: math.inf if slope > 0 else 1.0,
    limit=lambda slope, intercept: math.inf if slope > 0 else slope + intercept,
    linear=True,
)

AMDAHL = Law(
    name="amdahl",
    formula="S = 1 / (s + (1 - s) / N)",
    parameters=("s",),
    bounds=((0.0, 1.0),),
    modes=frozenset({"strong"}),
    curve=_amdahl,
    slopes=_amdahl_slopes,
    starts=_starts_amdahl,
    peak=lambda s: math.inf if s < 1 else 1.0,
    limit=amdahl_limit,
)

GUSTAFSON = Law(
    name="gustafson",
    formula="S = s + (1 - s) N",
    parameters=("s",),
    bounds=((0.0, 1.0),),
    modes=frozenset({"weak"}),
    curve=_gustafson,
    slopes=_gustafson_slopes,
    starts=_starts_gustafson,
    peak=lambda s: math.inf if s < 1 else 1.0,
    limit=lambda s: math.inf if s < 1 else 1.0,
    linear=True,
)

USL_ANCHORED = Law(
    name="usl",
    formula="S = N / (1 + alpha (N - 1) + beta N (N - 1))",
    parameters=("alpha", "beta"),
    bounds=((0.0, math.inf), (0.0, math.inf)),
    modes=_EVERY_MODE,
    curve=_usl,
    slopes=_usl_anchored_slopes,
    starts=_starts_usl_anchored,
    peak=usl_peak,
    limit=usl_limit,
    costs=("alpha", "beta"),
)

USL = Law(
    name="usl",
    formula="S = gamma N / (1 + alpha (N - 1) + beta N (N - 1))",
    parameters=("alpha", "beta", "gamma"),
    bounds=((0.0, math.inf), (0.0, math.inf), (0.0, math.inf)),
    modes=_EVERY_MODE,
    curve=_usl,
    slopes=_usl_slopes,
    starts=_starts_usl,
    peak=usl_peak,
    limit=usl_limit,
    costs=("alpha", "beta"),
    reduced=USL_ANCHORED,
)

POWER = Law(
    name="power",
    formula="S = scale N^exponent",
    parameters=("scale", "exponent"),
    bounds=((0.0, math.inf), (-10.0, 10.0)),
    modes=_EVERY_MODE,
    curve=_power,
    slopes=_power_slopes,
    starts=_starts_power,
    peak=lambda scale, exponent: math.inf if exponent > 0 else 1.0,
    limit=lambda scale, exponent: math.inf if exponent > 0 else scale,
)

LOG2 = Law(
    name="log2",
    formula="S = intercept + slope log2 N",
    parameters=("intercept", "slope"),
    bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
    modes=_EVERY_MODE,
    curve=_log2,
    slopes=_log2_slopes,
    starts=_starts_log2,
    peak=lambda intercept, slope: math.inf if slope > 0 else 1.0,
    limit=lambda intercept, slope: math.inf if slope > 0 else intercept,
    linear=True,
)

RING = _cost_laws("ring", _RING, _RING_TEXT, _RING_MULTI_NODE, _RING_MULTI_NODE_TEXT)
TREE = _cost_laws("tree", _TREE, _TREE_TEXT, _TREE_MULTI_NODE, _TREE_MULTI_NODE_TEXT)
OVERLAP = _overlap_law()

CONSTANT = Law(
    name="constant",
    formula="S = level",
    parameters=("level",),
    bounds=((0.0, math.inf),),
    modes=_EVERY_MODE,
    curve=_constant,
    slopes=_constant_slopes,
    starts=_starts_constant,
    peak=lambda level: 1.0,
    limit=lambda level: level,
    linear=True,
)

LAWS: Mapping[str, Law] = MappingProxyType(
    {law.name: law for law in (LINEAR, AMDAHL, GUSTAFSON, USL, POWER, LOG2, RING, TREE, OVERLAP, CONSTANT)}
)


# --- laws of other quantities -----------------------------------------------------------------------------------------


def _quantity_law(
    name: str, inside: Mapping[str, Term], text: str, multi_node: Mapping[str, Term], multi_node_text: str
) -> Law:
    """y = base + costs, in the unit of y: linear in its parameters, none of them below zero."""

    def form(
        terms: Mapping[str, Term], words: str, *, multi_node: Law | None = None, reduced: Law | None = None
    ) -> Law:
        by_nodes = len(terms) > len(inside)

        def slopes(n: Any, *values: Any) -> tuple[Any, ...]:
            nodes, fullest = values[:2] if by_nodes else (1.0, n)
            return (1.0, *(term(n, nodes, fullest) for term in terms.values()))

        def curve(n: Any, *values: Any) -> Any:
            y = 0.0
            for value, slope in zip(values[2 * by_nodes :], slopes(n, *values), strict=True):
                y = y + value * slope
            return y

        return Law(
            name=name,
            formula=f"y = base + {words}",
            parameters=("base", *terms),
            bounds=((0.0, math.inf),) * (1 + len(terms)),
            modes=_EVERY_MODE,
            curve=curve,
            slopes=slopes,
            starts=lambda where, y: [(float(y.mean()), *(0.0 for _ in terms))],
            peak=lambda **_: math.nan,
            limit=lambda **_: math.nan,
            costs=tuple(terms),
            linear=True,
            by_nodes=by_nodes,
            multi_node=multi_node,
            reduced=reduced,
        )

    flat = form(inside, text)
    return form(inside, text, multi_node=form(multi_node, multi_node_text, reduced=flat))


def _of_quantity(law: Law) -> Law:
    return replace(
        law, formula=law.formula.replace("S = ", "y = "), peak=lambda **_: math.nan, limit=lambda **_: math.nan
    )


QUANTITY_LAWS: Mapping[str, Law] = MappingProxyType(
    {
        law.name: law
        for law in (
            *map(_of_quantity, (CONSTANT, LINEAR, POWER, LOG2)),
            _quantity_law("ring", _RING, _RING_TEXT, _RING_MULTI_NODE, _RING_MULTI_NODE_TEXT),
            _quantity_law("tree", _TREE, _TREE_TEXT, _TREE_MULTI_NODE, _TREE_MULTI_NODE_TEXT),
        )
    }
)
"""Laws of any positive quantity y(N): seconds, joules, GPU hours. base, alpha, beta and hop are in the unit of y."""
