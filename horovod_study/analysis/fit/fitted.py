"""One law fitted to the rows of one series: its parameters, their intervals, and every reason to doubt them."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from horovod_study.analysis.fit.form import LawForm, Places, best_counts, places
from horovod_study.analysis.fit.intervals import Noise, as_likely, profiles, reach_of, stretched
from horovod_study.analysis.fit.least_squares import Solved, distinct_places, solve
from horovod_study.analysis.fit.rows import Sample, sample_of
from horovod_study.analysis.impossible import impossible
from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError
from horovod_study.text.words import listed

REACH = 1.5
"""Curves are drawn to this multiple of the largest worker count measured; the part beyond it is extrapolated."""
NOT_IDENTIFIABLE = "not identifiable"
_GRACE, _MOST_NOISE = 0.03, 0.25  # least and largest share of a speedup that two points differ by for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """One law fitted to one series; call it with worker counts (and nodes, where known), shape (N,) -> (N,)."""

    DOCUMENT = (
        "formula=law.formula params ci95 rmse aicc loo_error=loo_median loo_error_rms=loo_rms applies "
        "why_not? identifiable doubts interval_method"
    )

    law: LawForm  # in the form that was fitted
    params: Mapping[str, float]
    ci95: Mapping[str, tuple[float, float]]
    workers: tuple[int, int]  # smallest and largest count fitted
    points: int  # rows fitted
    rmse: float  # of speedup (or of the quantity), over all rows
    aicc: float | None  # None where there are too few rows for it
    loo_median: float | None  # median over worker counts of the relative error of each, fitted without it
    loo_rms: float | None  # root mean square of the same
    doubts: tuple[str, ...]
    interval_method: str
    peak: float  # worker count with the highest speedup; inf when it keeps rising, NaN where nodes decide or refuted
    limit: float  # speedup never exceeded; inf when there is no such bound, NaN where nodes decide or more was measured
    why_not: str = ""  # why the law does not apply to the scaling mode; empty where it does
    workers_fitted: int = 0  # distinct worker counts
    _per_node: float | None = field(default=None, repr=False)  # workers of the fullest node fitted
    _noise: "Noise" = field(repr=False, compare=False)
    _draws: Floats | None = field(default=None, repr=False, compare=False)  # bootstrap replicates (B, k)
    # Of a profiled law without replicates: vectors as likely as the ends of its profile, found where they are asked.
    _edge: Callable[[], Floats | None] | None = field(default=None, repr=False, compare=False)

    def __call__(self, n: ArrayLike, nodes: ArrayLike | None = None) -> Floats:
        """Speedup at worker counts `n`; without `nodes`, nodes are filled as the fullest one fitted was."""
        counts = np.asarray(n, dtype=np.float64)
        values = self.law.at(self._places(counts.ravel(), nodes), self._values)
        return np.array(values, dtype=np.float64).reshape(counts.shape)

    def interval(self, n: ArrayLike, nodes: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """95 % band of the curve at worker counts `n`: (low, high), shapes as `n`; never below zero."""
        counts = np.asarray(n, dtype=np.float64)
        where = self._places(counts.ravel(), nodes)
        values = np.array(self.law.at(where, self._values))
        reach, stretch = self._noise.reach(self.law.gradient(where, self._values))
        edge = None if self._edge is None else self._edge()
        if self._draws is None:
            low, high = values - reach, values + reach
            if edge is not None:
                curves = self.law.at(where, edge)
                low, high = np.maximum(low, curves.min(axis=0)), np.minimum(high, curves.max(axis=0))
        else:
            low, high = stretched(values, self.law.at(where, self._draws), stretch)
        low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
        return low.reshape(counts.shape), high.reshape(counts.shape)

    def grid(self, most: int, *, whole: bool = False) -> Floats:
        """Return worker counts from 1 to REACH x `most`, (N,): the fitted ends, and enough between for a smooth line.

        `whole`: for a law with steps, whole counts, between which no run could show them.
        """
        last = max(most + 1, math.ceil(REACH * most))
        return np.unique([*np.linspace(1, last, 49).round(0 if whole else 4), *map(float, self.workers)])

    def extrapolates(self, n: float) -> bool:
        """Whether `n` is outside the worker counts that were fitted."""
        return not self.workers[0] <= n <= self.workers[1]

    @property
    def applies(self) -> bool:
        """Whether the law is about the scaling mode of the points; `why_not` says what stands against it."""
        return not self.why_not

    @property
    def identifiable(self) -> bool:
        """Whether the points determine all parameters; `doubts` says what stands against it."""
        return not any(doubt.startswith(NOT_IDENTIFIABLE) for doubt in self.doubts)

    @property
    def shown(self) -> bool:
        """Whether the points show what the law is about: of a law of costs, all parameters and one cost above zero.

        USL bends to any noise of a straight line.
        """
        costs = self.law.costs
        return not costs or (self.identifiable and any(self.ci95[cost][0] > 0 for cost in costs))

    @property
    def holdout(self) -> float | None:
        """Root mean square error at worker counts left out of the fit, none counting for more than 100 %."""
        return self.loo_rms if self.loo_rms is None else min(self.loo_rms, 1.0)

    @property
    def knee(self) -> float:
        """Worker count with the best speedup times efficiency; inf when more workers always improve it."""
        return self.law.knee_of(self._per_node, **self.params)

    @property
    def peak_ci95(self) -> tuple[float, float] | None:
        """95 % interval of `peak`, inf where it is open; None where it is not known."""
        return None if math.isnan(self.peak) else self._spread_of(1)

    @property
    def knee_ci95(self) -> tuple[float, float] | None:
        """95 % interval of `knee`, inf where it is open; None where it is not known."""
        return self._spread_of(2)

    def _spread_of(self, power: int) -> tuple[float, float] | None:
        """Where the peak (1) or knee (2) of 250 parameter vectors is that are as likely as the interval says."""
        if not self.identifiable:
            return None
        values, moves = self._values, self._noise.moves
        own = self.peak if power == 1 else self.knee
        edge = None if self._edge is None else self._edge()
        _, stretch = self._noise.reach(np.eye(len(values)))
        if self._draws is None:
            if not np.isfinite(moves).all():
                return None
            generator = np.random.default_rng(0)
            drawn = generator.multivariate_normal(values, moves @ moves.T, 250, method="svd")
        else:
            drawn = self._draws[:: len(self._draws) // 250]
        lower, upper = (np.array(side) for side in zip(*self.law.ranges, strict=True))
        drawn = np.clip(values + (drawn - values) * stretch, lower, upper)
        where = best_counts(self.law, drawn, power=power, per_node=self._per_node)
        low, high = np.quantile(where, [0.025, 0.975], method="closest_observation")
        if edge is not None:
            where = best_counts(self.law, edge[:: 1 + len(edge) // 1000], power=power, per_node=self._per_node)
            low, high = max(low, where.min()), min(high, where.max())
        return min(float(low), own), max(float(high), own)

    def bottleneck(self, n: float | None = None) -> str | None:
        """What costs most at `n` (the largest fitted count): "contention", "communication" or "none"; else None.

        usl says "contention" or "coherency", its word for communication of all with all. amdahl and gustafson know
        serial work only ("contention"), ring, tree and overlap communication; the others claim nothing about causes.
        """
        return self.law.bottleneck_of(self.workers[1] if n is None else n, **self.params)

    @property
    def _values(self) -> Floats:
        return np.array(list(self.params.values()))

    def _places(self, n: Floats, nodes: ArrayLike | None) -> Places:
        if not self.law.by_nodes:
            return Places(n, np.ones_like(n), n)
        if nodes is None:
            return places(n, per_node=self._per_node)
        return places(n, np.asarray(nodes, dtype=np.float64).ravel())


def fit(
    law: LawForm,
    workers: ArrayLike,
    speedup: ArrayLike,
    *,
    nodes: ArrayLike | None = None,
    per_node: ArrayLike | None = None,
    runs: Sequence[Any] | ArrayLike | None = None,
    scaled_by: int | None = None,
) -> ScalingFit:
    """Fit `law` to rows of (workers (R,), speedup (R,)); every row is one observation.

    `nodes` and `per_node` (workers that fill a node) say where the rows were measured, for laws with constants of their
    own across nodes. `runs` labels the rows of one run (default: every row is a run of its own); the bootstrap draws
    whole runs. `scaled_by` is the worker count whose median throughput the speedups were divided by, when that baseline
    comes from these rows: its noise then belongs to the intervals.
    A law with more parameters than distinct worker counts is fitted in its `reduced` form where it has one.

    Raises AnalysisError when the rows are not numbers above zero, or too few to determine the parameters.
    """
    sample = sample_of(workers, speedup, nodes, per_node, runs, scaled_by)
    solved = solve(law, [sample])[0]
    if isinstance(solved, str):
        raise AnalysisError(solved)
    return fitted_law(solved, sample)


def spread_of_medians(sample: Sample) -> float:
    """Relative standard deviation of the median speedup of a place, over all with repeats; 0 where none has."""
    known = np.isfinite(sample.run_variance)
    return float(np.sqrt(np.mean(sample.run_variance[known] / sample.medians[known] ** 2))) if known.any() else 0.0


def slack_of(noise: float) -> float:
    """The share of a speedup by which two medians of this relative standard deviation differ for nothing."""
    return min(max(2 * noise, _GRACE), _MOST_NOISE)


def fitted_law(
    solved: Solved,
    sample: Sample,
    base_noise: float = math.inf,
    *,
    why_not: str = "",
    ends: tuple[Floats, Floats] | None = None,
) -> ScalingFit:
    """Add the intervals; `base_noise` limits the noise of one baseline run, in units of speedup.

    `ends` are the intervals of a profiled law where they have been found before.
    """
    law, values, draws = solved.law, solved.values, solved.draws
    jacobian = law.gradient(sample.where, values)
    noise, method, reach, stretch = reach_of(solved, sample, base_noise, jacobian)
    edge = None
    if law.needs_profile:
        low, high = found = profiles([(solved, sample, base_noise)])[0] if ends is None else ends
        if draws is None:
            edge = functools.cache(functools.partial(as_likely, solved, sample, base_noise, found))
        method = f"profile of least squares, its width by {'the spread of the runs' if draws is not None else method}"
    elif draws is None:
        low, high = values - reach, values + reach
    else:
        low, high = stretched(values, draws, stretch)
        # Percentiles do not hold where a parameter meets its bound (Andrews 2000), neither its own nor those of others
        # that make up for it: there the linear theory has a say, too.
        bounds = np.array(law.ranges)
        if np.mean(np.any((draws <= bounds[:, 0]) | (draws >= bounds[:, 1]), axis=1)) > 0.025:
            low, high = np.minimum(low, values - reach), np.maximum(high, values + reach)
    ci95 = {
        name: (max(float(low[i]), law.ranges[i][0]), min(float(high[i]), law.ranges[i][1]))
        for i, name in enumerate(law.parameters)
    }
    total, errors = len(sample.speedup), solved.left_out
    params = dict(zip(law.parameters, values.tolist(), strict=True))
    peak, limit, beyond = _ends_of(law, params, sample)
    return ScalingFit(
        law=law,
        params=params,
        ci95=ci95,
        workers=(int(sample.where.workers[0]), int(sample.where.workers[-1])),
        points=total,
        rmse=math.sqrt(solved.error / total),
        aicc=solved.aicc,
        loo_median=None if errors is None else float(np.median(np.abs(errors))),
        loo_rms=None if errors is None else float(np.sqrt(np.mean(errors**2))),
        doubts=(*_fit_doubts(law, sample, values, ci95), *beyond),
        interval_method=method,
        peak=peak,
        limit=limit,
        why_not=why_not,
        workers_fitted=len(np.unique(sample.where.workers)),
        _per_node=float(sample.where.fullest.max()) if sample.where.several_nodes else None,
        _noise=noise,
        _draws=draws,
        _edge=edge,
    )


def _ends_of(law: LawForm, params: Mapping[str, float], sample: Sample) -> tuple[float, float, list[str]]:
    """Peak and limit of a law, NaN where a run refutes them, and why."""
    peak, limit = float(law.peak_of(**params)), float(law.limit_of(**params))
    highest = float(sample.speedup.max())
    limit = highest if limit < highest < limit * (1 + 1e-6) else limit  # below it by rounding
    no_limit = impossible("limit", law=law.name, limit=limit, measured=highest)
    slack = slack_of(spread_of_medians(sample))
    told = [
        impossible("peak", law=law.name, peak=peak, limit=limit, workers=float(n), measured=float(median))
        for n, median in zip(sample.where.workers, sample.medians, strict=True)
        if limit * (1 + slack) < median
    ]
    no_peak = next(filter(None, reversed(told)), "")
    if no_limit and limit * (1 + slack) >= sample.medians.max():
        no_limit += ", by less than noise"
    refuted = [no_peak or no_limit] if no_peak or no_limit else []
    return math.nan if no_peak else peak, math.nan if no_limit else limit, refuted


def _fit_doubts(law: LawForm, sample: Sample, values: Floats, ci95: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    distinct = distinct_places(law, sample.where)
    if distinct <= len(values) + 1:
        what = "places" if law.by_nodes else "worker counts"
        yield (
            f"{NOT_IDENTIFIABLE}: {distinct} distinct {what} for {len(values)} parameter{'s' * (len(values) > 1)} "
            f"({listed(law.parameters)}); measure at least {len(values) + 2}"
        )
    if not law.by_nodes and law.across() is not None and sample.where.several_nodes:
        yield "one pair of constants for links inside and across nodes: too few places for two"
    blind = [name for name in law.parameters if not math.isfinite(ci95[name][1] - ci95[name][0])]
    if len(blind) == len(values):
        yield "nothing is known about its uncertainty: no point is left over to see the noise in"
        return
    for i, (name, (lowest, highest)) in enumerate(zip(law.parameters, law.ranges, strict=True)):
        low, high = ci95[name]
        if name in blind:
            yield f"{NOT_IDENTIFIABLE}: {name} has no effect at these worker counts"
            continue
        if values[i] in (lowest, highest) and high > low:
            end = high if values[i] == lowest else low
            yield (
                f"{NOT_IDENTIFIABLE}: {name} is at its bound {values[i]:g}; the other end of its interval is {end:.3g}"
            )
        elif _spans(law, sample.where, values, i, low, high):
            yield f"{NOT_IDENTIFIABLE}: the interval of {name} ({low:.3g} to {high:.3g}) spans its range"
        elif math.isfinite(lowest) and low <= lowest and high > low:
            yield f"{name} cannot be distinguished from {lowest:g} (interval {low:.3g} to {high:.3g})"


def _spans(law: LawForm, where: Places, values: Floats, i: int, low: float, high: float) -> bool:
    """Whether the interval of parameter `i` holds nearly all that it could be.

    That is its range; for a cost without an upper bound, all between nothing and as much as the work itself.
    """
    name, (lowest, highest) = law.parameters[i], law.ranges[i]
    if name == law.hiding:
        # 1/g, between all after each other and all at once, is what an exponent is about.
        return 1 / low - 1 / high >= 0.9 * (1 / lowest - 1 / highest)
    if math.isfinite(highest - lowest):
        return high - low >= 0.9 * (highest - lowest)
    if name not in law.costs:
        return False
    if name in law.range_at:
        return high - low >= 0.9 * law.range_at[name](float(where.workers[-1]))
    if low > lowest:
        return False
    # A cost that hides would look like none: what counts is how much it could be.
    nothing = np.array(
        [
            0.0 if other in law.costs else 1.0 if other == law.hiding else values[j]
            for j, other in enumerate(law.parameters)
        ]
    )
    only = np.where(np.arange(len(values)) == i, high, nothing)
    without, alone = law.at(where, nothing), law.at(where, only)
    if law.linear:
        return bool(np.max(alone - without) >= 0.9 * np.max(law.at(where, values)))
    return bool(np.any(without >= 1.9 * alone))
