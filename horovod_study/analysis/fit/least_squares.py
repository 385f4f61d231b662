"""What a law says, without its estimator, and its least squares on the medians of series, inside its bounds.

In closed form for laws that are linear in their parameters, otherwise by Levenberg-Marquardt from several starts; alike
series together. Letters: N worker count (at least 1), S speedup relative to one worker, K distinct places, k parameters
of a law, B parameter sets evaluated, or sets of medians fitted, at once (series, bootstrap replicates, or series with a
worker count left out).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from scipy import optimize

from horovod_study.analysis.fit.rows import Sample, one_count, places, shortened
from horovod_study.analysis.stats import Floats
from horovod_study.text.words import listed

REACH = 1.5  # curves are drawn to this multiple of the largest worker count measured; what is beyond is extrapolated
MAX_WORKERS = 10_000_000  # beyond this count nobody looks for a peak or a knee
EVERY_MODE = frozenset({"strong", "weak", "mixed"})
TOGETHER = 20  # series whose replicates are fitted in one go
EXACT = 1e-10  # residuals below this share of the largest speedup are rounding, not misfit


class LawForm:
    """One form of a law: subclasses declare `name`, `bounds` and `curve`, and what else they know better."""

    name: ClassVar[str] = ""
    label: ClassVar[str] = ""  # for readers
    place: ClassVar[int] = 100  # among the laws; of two that describe points equally well, the first
    modes: ClassVar[frozenset[str]] = EVERY_MODE  # scaling modes in which the parameters mean what their names say
    misread: ClassVar[str] = ""  # what to make of the parameters in other modes, as the end of a sentence
    range_at: ClassVar[Mapping[str, Callable[[float], float]]] = {}  # cost -> the most it can be at n
    hiding: ClassVar[str] = ""  # parameter from 1 up that says how much of the costs hides behind the work
    cause: ClassVar[str] = ""  # what its costs are, in one word
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
        """Return what costs most at `n` workers, where the law says it: its `cause`, if any cost is above zero."""
        costly = any(values[name] > 0 for name in self.costs or self.parameters)
        return (self.cause if costly else "none") if self.cause else None

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


Solved: TypeAlias = SimpleNamespace
"""A law with the parameters of least squares, before the question of how well they are known.

law (in the form that was fitted), sample, values (k,), error (sum of squares over all rows), aicc (None: too few
places), left_out (relative error of each worker count, fitted without it; None with too few), draws ((B, k) bootstrap
replicates; None with too few repeats), base_noise (the most that the noise of one baseline run is, in speedup)."""


def solve(law: LawForm, samples: Sequence[Sample]) -> list[Solved | str]:
    """Least squares of `law` on every sample, or why it cannot be; samples of the same places are solved at once."""
    found: list[Solved | str] = [""] * len(samples)
    alike: dict[tuple[float, ...], list[int]] = {}
    for i, sample in enumerate(samples):
        alike.setdefault(tuple(sample.where.ravel()), []).append(i)
    for members in alike.values():
        where = samples[members[0]].where
        form = form_for(law, where)
        if form is None:
            counts, least = np.unique(where[0]), law
            while (less := least.reduced()) is not None:
                least = less
            of = f"{shortened(counts)} workers do not determine {listed(least.parameters)}: measure more worker counts"
            for i in members:
                found[i] = one_count(counts[0]) if len(counts) < 2 else of
            continue
        # Together as many as keep the work of one call within a few million numbers.
        chunk = max(1, 200_000 // where.shape[1] ** 2)
        for begin in range(0, len(members), chunk):
            some = members[begin : begin + chunk]
            for i, solved in zip(some, _solve_alike(form, [samples[i] for i in some]), strict=True):
                found[i] = solved
    return found


def form_for(law: LawForm, where: Floats) -> LawForm | None:
    """The form of a law with as many parameters as the places can determine; None if they cannot determine any."""
    if len(np.unique(where[0])) < 2:
        return None
    several = bool(np.any(where[1] > 1) and np.any(where[2] > 1))
    form: LawForm | None = (law.across() if several else None) or law
    while form is not None:
        less = form.reduced()
        if less is None or (distinct_places(form, where) > len(form.parameters) and _determined(form, where)):
            break
        form = less
    return form if form is not None and _determined(form, where) else None


def distinct_places(law: LawForm, where: Floats) -> int:
    """How many different places the law can see."""
    return where.shape[1] if law.by_nodes else len(np.unique(where[0]))


def _determined(law: LawForm, where: Floats) -> bool:
    """Whether the places leave no combination of the parameters open, where all of them have an effect."""
    probe = []
    for name, (low, high) in law.bounds.items():
        free = max(1.0, 2.0 * low) if low != 0.0 or name in ("gamma", "scale", "level", "base") else 0.1
        probe.append(0.5 if (low, high) == (0.0, 1.0) else free)
    jacobian = law.gradient(where, np.array(probe))
    scale = np.linalg.norm(jacobian, axis=0)
    return bool(np.linalg.matrix_rank(jacobian / np.where(scale > 0, scale, 1), tol=1e-9) == len(probe))


def _solve_alike(law: LawForm, samples: Sequence[Sample]) -> list[Solved]:
    """Solve samples that share their places (K,): one set of medians (B, K) each."""
    where = samples[0].where
    weight = np.stack([sample.rows for sample in samples])
    medians = np.stack([sample.medians for sample in samples])
    values = estimate(law, where, weight, medians)
    curves = law.at(where, values)
    misfits = np.sum(weight * (medians - curves) ** 2, axis=1).tolist()
    left_out, draws = _left_out(law, where, weight, medians, values), _replicates(law, samples, values)
    solved = []
    for i, sample in enumerate(samples):
        errors = {"error": float(np.sum((sample.speedup - curves[i][sample.place]) ** 2)), "base_noise": math.inf}
        known = {"left_out": None if left_out is None else left_out[i], "draws": draws[i]}
        aicc = _aicc(misfits[i], sample, len(law.ranges))
        solved.append(Solved(law=law, sample=sample, values=values[i], aicc=aicc, **errors, **known))
    return solved


def _replicates(law: LawForm, samples: Sequence[Sample], values: Floats) -> list[Floats | None]:
    """The law fitted to the bootstrap medians of every sample that has them, (B, k) each; values are (samples, k)."""
    found: list[Floats | None] = [None] * len(samples)
    repeated = [(i, sample.drawn) for i, sample in enumerate(samples) if sample.drawn is not None]
    where, bounds = samples[0].where, np.array(law.ranges).T
    for begin in range(0, len(repeated), TOGETHER):
        some = repeated[begin : begin + TOGETHER]
        starts, weights = [], []
        for i, drawn in some:
            # From the linear theory it is a step or two to each replicate.
            influence = influence_of(law.gradient(where, values[i]), samples[i].rows)
            starts.append(np.clip(values[i] + (drawn - samples[i].medians) @ influence.T, *bounds))
            weights.append(np.broadcast_to(samples[i].rows, drawn.shape))
        targets = np.concatenate([drawn for _, drawn in some])
        weight, start = np.concatenate(weights), np.concatenate(starts)
        # what is left after such a step is far smaller
        fitted = refit(law, where, weight, targets, start, tolerance=1e-4, steps=40)
        for (i, _), draws in zip(some, np.split(fitted, len(some)), strict=True):
            found[i] = draws.copy()
    return found


def _left_out(law: LawForm, where: Floats, weight: Floats, medians: Floats, values: Floats) -> Floats | None:
    """Relative error of every distinct worker count, fitted without it: (B, counts); None where that leaves too few."""
    from sklearn.model_selection import LeaveOneGroupOut

    folds = [*LeaveOneGroupOut().split(where.T, groups=where[0])]
    for kept, _ in folds:
        rest = where[:, kept]
        enough = distinct_places(law, rest) >= len(law.parameters) and len(np.unique(rest[0])) > 1
        if not (enough and _determined(law, rest)):
            return None
    sets, number = len(medians), len(folds)
    inside = np.array([np.isin(np.arange(where.shape[1]), kept) for kept, _ in folds])
    without = (weight[:, np.newaxis] * inside).reshape(sets * number, -1)
    targets, start = (np.repeat(each, number, axis=0) for each in (medians, values))
    tolerance, steps = (1e-12, 60) if law.linear else (1e-6, 20)
    found = refit(law, where, without, targets, start, tolerance=tolerance, steps=steps)
    apart = ((law.at(where, found) - targets) / targets).reshape(sets, number, -1)
    # A worker count on several numbers of nodes is left out as a whole; its error is the mean over those places.
    return np.stack([apart[:, i, out].mean(axis=1) for i, (_, out) in enumerate(folds)], axis=1)


def estimate(law: LawForm, where: Floats, weight: Floats, medians: Floats) -> Floats:
    """Least squares on the medians of places, `medians` (B, K), with weights (B, K) -> (B, k)."""
    lower, upper = (np.array(side) for side in zip(*law.ranges, strict=True))
    if law.linear and np.isinf(lower).all():
        from sklearn.linear_model import LinearRegression

        terms, line = law.gradient(where, np.zeros(len(lower))), LinearRegression(fit_intercept=False)
        lines = [line.fit(terms, *each).coef_ for each in zip(medians, weight, strict=True)]
        return _snapped(law, where, medians, np.stack(lines))
    starts = [np.clip(np.array(law.starts(where, np.maximum(each, 1e-9))), lower, upper) for each in medians]
    number = max(len(each) for each in starts)
    tried = np.stack([np.concatenate([each, np.repeat(each[:1], number - len(each), axis=0)]) for each in starts])
    sets = len(medians)
    found = refit(
        law,
        where,
        np.repeat(weight, number, axis=0),
        np.repeat(medians, number, axis=0),
        tried.reshape(sets * number, -1),
        tolerance=1e-13,
    ).reshape(sets, number, -1)
    misfit = np.sum(weight[:, np.newaxis] * (law.at(where, found) - medians[:, np.newaxis]) ** 2, axis=2)
    misfit = np.where(np.isfinite(misfit), misfit, np.inf)
    best = np.argmax(misfit <= misfit.min(axis=1, keepdims=True) * (1 + 1e-9), axis=1)
    return _snapped(law, where, medians, found[np.arange(sets), best])


def _snapped(law: LawForm, where: Floats, medians: Floats, values: Floats) -> Floats:
    """Values (B, k) that differ from a bound or from zero by rounding only, put there."""
    curve = law.at(where, values)
    close = 1e-13 * np.max(medians, axis=1)
    for i, (lowest, highest) in enumerate(law.ranges):
        for target in (0.0, lowest, highest):
            if math.isfinite(target) and lowest <= target <= highest:
                moved = values.copy()
                moved[:, i] = target
                near = np.max(np.abs(law.at(where, moved) - curve), axis=1) < close
                values = np.where(near[:, np.newaxis], moved, values)
    return values


def refit(
    law: LawForm,
    where: Floats,
    weight: Floats,
    targets: Floats,
    start: Floats,
    *,
    bounds: tuple[Floats, Floats] | None = None,
    tolerance: float,
    steps: int = 60,
) -> Floats:
    """Bounded least squares for many sets at once: targets (B, K), start (B, k) or (k,) -> parameters (B, k).

    Levenberg-Marquardt with an active set: a parameter that sits on a bound and wants to leave the allowed range is
    held there for the step. `weight` is (K,) or (B, K); `tolerance` is the last step's effect on the curve, relative
    to the largest target; `bounds` (k,) or (B, k) each take the place of those of the law.
    """
    shape = (len(targets), len(law.ranges))
    low, high = zip(*law.ranges, strict=True) if bounds is None else bounds
    # Inside, sets are the last axis: the long one.
    lower, upper, found = (np.broadcast_to(np.asarray(each, float), shape).T.copy() for each in (low, high, start))
    targets, weight = targets.T, np.broadcast_to(weight, targets.shape).T
    # The sets still moving, with their place in `found`.
    place, values = np.arange(shape[0]), found.copy()
    damping = np.full(shape[0], 0.0 if law.linear else 1e-6)
    close = tolerance * np.max(targets, axis=0)
    with np.errstate(all="ignore"):  # steps may overflow on points that no law of this kind could have made
        curve, slopes = law.with_slopes(where, values)
        cost = np.sum(weight * (targets - curve) ** 2, axis=0)
        cost = np.where(np.isfinite(cost), cost, np.inf)
        for _ in range(steps):
            step, size = _damped_step(weight, targets - curve, slopes, values, lower, upper, damping)
            candidates = np.clip(values + step, lower, upper)
            reached_curve, reached_slopes = law.with_slopes(where, candidates)
            reached = np.sum(weight * (targets - reached_curve) ** 2, axis=0)
            better = reached <= cost
            moving = np.max(np.abs(candidates - values) * size, axis=0) > close
            values = np.where(better, candidates, values)
            found[:, place] = values
            if not moving.any():
                break
            if not better.all():
                reached_curve = np.where(better, reached_curve, curve)
                reached_slopes = np.where(better, reached_slopes, slopes)
            curve, slopes = reached_curve, reached_slopes
            cost = np.where(better, reached, cost)
            damping = np.where(better, damping / 10, np.maximum(damping, 1e-8) * 10)
            if moving.all():
                continue
            place, cost, damping, close = place[moving], cost[moving], damping[moving], close[moving]
            values, lower, upper = values[:, moving], lower[:, moving], upper[:, moving]
            targets, weight, curve = targets[:, moving], weight[:, moving], curve[:, moving]
            slopes = slopes[..., moving]
    return found.T


def _damped_step(
    weight: Floats, rest: Floats, slopes: Floats, values: Floats, lower: Floats, upper: Floats, damping: Floats
) -> tuple[Floats, Floats]:
    """One step (k, B) towards the least squares of `rest` (K, B), and the size (k, B) of the weighted slopes."""
    weighted = slopes * weight
    descent = np.sum(weighted * rest, axis=1)
    size = np.sqrt(np.sum(weighted * slopes, axis=1))
    size = np.where(size > 0, size, 1.0)  # columns scaled to one: parameters may differ by many orders
    free = ~(((values <= lower) & (descent < 0)) | ((values >= upper) & (descent > 0)))
    scaled = np.where(free, 1 / size, 0.0)
    k = len(values)
    # Gauss elimination for all sets at once; the matrix is symmetric, positive and of unit diagonal: no pivots needed.
    rows = [[np.sum(weighted[i] * slopes[j], axis=0) * scaled[i] * scaled[j] for j in range(i, k)] for i in range(k)]
    right = [descent[i] * scaled[i] for i in range(k)]
    for i in range(k):
        rows[i][0] = np.maximum(rows[i][0] + ~free[i] + damping + 1e-15, 1e-15)
        for j in range(i + 1, k):
            share = rows[i][j - i] / rows[i][0]
            right[j] = right[j] - share * right[i]
            for m in range(j, k):
                rows[j][m - j] = rows[j][m - j] - share * rows[i][m - i]
    step: list[Floats] = [np.empty(0)] * k
    for i in reversed(range(k)):
        step[i] = (right[i] - sum(rows[i][m - i] * step[m] for m in range(i + 1, k))) / rows[i][0]
    moved = np.stack(step) * scaled
    return np.where(np.isfinite(moved), moved, 0.0), size


def influence_of(jacobian: Floats, weight: Floats) -> Floats:
    """d parameters / d points, (k, points): the weighted pseudo-inverse of the Jacobian (points, k)."""
    root = np.sqrt(weight)
    scale = np.linalg.norm(jacobian * root[:, np.newaxis], axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    inverse = np.linalg.pinv(jacobian * root[:, np.newaxis] / scale)
    return np.asarray(inverse * root / scale[:, np.newaxis], dtype=np.float64)


def _aicc(misfit: float, sample: Sample, parameters: int) -> float | None:
    """Akaike's criterion for least squares with the small-sample term (Hurvich and Tsai 1989).

    n log(RSS / n) + 2 K + 2 K (K + 1) / (n - K - 1), K counting the noise as a parameter. n is the number of places and
    RSS that of their medians, each weighted with its rows: repeats of a place share what is wrong with a law there, and
    what drifts between runs, so they are no further witnesses for or against it.
    """
    n, k = len(sample.rows), parameters + 1
    if n - k - 1 <= 0:
        return None
    variance = max(misfit / float(sample.rows.sum()), (EXACT * float(sample.speedup.max())) ** 2)
    return n * math.log(variance) + 2 * k + 2 * k * (k + 1) / (n - k - 1)
