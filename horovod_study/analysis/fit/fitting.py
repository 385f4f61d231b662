"""Points in, fitted laws with honest intervals out.

Letters: R rows (observations), K distinct places (a worker count on a number of nodes), k parameters of a law,
B sets of medians fitted at once (series, bootstrap replicates, or series with a worker count left out).

The estimate is least squares of the law on the median speedup of the runs at each place, as pages show it, weighted
with its rows, inside the law's bounds. The 95 % interval depends on what was measured, and `interval_method` says which
way was gone: bootstrap over runs where there are three at every worker count, stretched by t/z with the degrees of
freedom that they leave for the parameter in question (five repeats know their own variance badly, and most of what a
slope depends on are the runs at the largest count); else Student t with the residuals of the fit, whose noise is
constant or proportional to the speedup, as likelihood says. docs/metrics.md, "Laws", has all of it and its sources.
Where the speedup was divided by runs of the same series, their noise moves all points together; both ways know that.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from horovod_study.analysis.fit.intervals import Noise, as_likely, baseline_noise, profiles, reach_of, stretched
from horovod_study.analysis.fit.least_squares import Solved, distinct_places, solve
from horovod_study.analysis.fit.rows import (
    Sample,
    by_series,
    check_points,
    one_count,
    point_doubts,
    sample_of,
    shortened,
)
from horovod_study.analysis.impossible import impossible
from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS
from horovod_study.analysis.laws.law import Law, Places, best_counts, knee, places
from horovod_study.analysis.series.baselines import Base, base_of, impossibilities
from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError
from horovod_study.records import COMMANDS, finite
from horovod_study.text.words import cut, listed

REACH = 1.5
"""Curves are drawn to this multiple of the largest worker count measured; the part beyond it is extrapolated."""
_NOT_IDENTIFIABLE = "not identifiable"
_CLEARLY = 2.0  # times the least error at counts left out: from there on a law is clearly worse
_SAME = 0.01  # errors that differ by less are alike, whatever their ratio
_BAD = 0.10  # error of a selected law from which on none describes the points
_GRACE, _MOST_NOISE = 0.03, 0.25  # least and largest share of a speedup that two points differ by for nothing
_HOPELESS = 0.25  # error of a law at counts left out from which on it is not selected


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """One law fitted to one series; call it with worker counts (and nodes, where known), shape (N,) -> (N,)."""

    DOCUMENT = (
        "formula=law.formula params ci95 rmse aicc loo_error=loo_median loo_error_rms=loo_rms applies "
        "why_not? identifiable doubts interval_method"
    )

    law: Law  # in the form that was fitted
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
        return not any(doubt.startswith(_NOT_IDENTIFIABLE) for doubt in self.doubts)

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
        return knee(self.law, self.params, per_node=self._per_node)

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
        values, total = self._values, self._noise.covariance.sum(axis=0)
        own = self.peak if power == 1 else self.knee
        edge = None if self._edge is None else self._edge()
        _, stretch = self._noise.reach(np.eye(len(values)))
        if self._draws is None:
            if not np.isfinite(total).all():
                return None
            generator = np.random.default_rng(0)
            drawn = generator.multivariate_normal(values, total, 250, method="svd")
        else:
            drawn = self._draws[:: len(self._draws) // 250]
        lower, upper = (np.array(side) for side in zip(*self.law.bounds, strict=True))
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
        return self.law.bottleneck(self.workers[1] if n is None else n, **self.params)

    @property
    def _values(self) -> Floats:
        return np.array(list(self.params.values()))

    def _places(self, n: Floats, nodes: ArrayLike | None) -> Places:
        if not self.law.by_nodes:
            return Places(n, np.ones_like(n), n)
        if nodes is None:
            return places(n, per_node=self._per_node)
        return places(n, np.asarray(nodes, dtype=np.float64).ravel())


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFit:
    """All laws fitted to one series, the one selected, and every reason to doubt them."""

    DOCUMENT = "baseline base_samples_per_s mode assumed laws selected doubts"

    name: str
    baseline: str  # what the speedup is relative to, in words
    base_samples_per_s: float  # throughput of one worker of that baseline
    mode: str  # "strong", "weak", "mixed" or "unknown", from the recorded batch sizes
    assumed: str | None  # what the laws took for granted because nothing was recorded about it
    fits: Mapping[str, ScalingFit] = field(default_factory=dict)
    selected: str | None = None
    doubts: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict, repr=False)  # laws that do not apply -> why
    possible: bool = field(default=True, repr=False)  # whether all numbers can be; else no law is selected
    contradicted: Sequence[str] = field(default=(), repr=False)  # those of the doubts that are about what laws deny

    @property
    def laws(self) -> dict[str, Any]:
        """The documents of all fits, with where they turn; its interval of the selected one."""
        laws = {}
        for name, fitted in self.fits.items():
            ends = {"peak": fitted.peak_ci95, "knee": fitted.knee_ci95} if name == self.selected else {}
            laws[name] = {
                **finite(fitted),
                "peak": fitted.peak,
                "peak_ci95": _ends(ends.get("peak")),
                "knee": fitted.knee,
                "knee_ci95": _ends(ends.get("knee")),
                "limit": fitted.limit,
                "bottleneck": fitted.bottleneck(),
            }
        return laws


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityFit:
    """Laws fitted to any positive quantity y(N): the one selected, and every reason to doubt them."""

    DOCUMENT = "laws=fits selected doubts"

    fits: Mapping[str, ScalingFit]
    selected: str | None
    doubts: tuple[str, ...]


def fit(
    law: Law,
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
    return _fit(solved, sample)


def fit_quantity(
    workers: ArrayLike,
    values: ArrayLike,
    *,
    nodes: ArrayLike | None = None,
    runs: Sequence[Any] | ArrayLike | None = None,
    laws: Sequence[str] = tuple(QUANTITY_LAWS),
    seed: int = 0,
) -> QuantityFit:
    """Fit the laws of `QUANTITY_LAWS` to rows of a positive quantity: workers (R,), values (R,) in any unit.

    `nodes` and `runs` are as for `fit`; `laws` are the names of those to fit.
    With one distinct worker count there are no fits, and a doubt that says so.
    Raises AnalysisError when the rows are not numbers above zero.
    """
    sample = sample_of(workers, values, nodes, runs=runs, seed=seed, kind="no value to fit a law to")
    if len(np.unique(sample.where.workers)) == 1:
        return QuantityFit(fits={}, selected=None, doubts=(one_count(sample.where.workers[0]),))
    doubts, fits = [], {}
    for law in (QUANTITY_LAWS[name] for name in laws):
        solved = solve(law, [sample])[0]
        if isinstance(solved, str):
            doubts.append(f"{law.name} is not fitted: {solved}")
        else:
            fits[law.name] = _fit(solved, sample)
    selected, why = _select(fits, _spread_of_medians(sample))
    return QuantityFit(fits=fits, selected=selected, doubts=(*doubts, *_law_doubts(fits, selected), *why))


def fit_series(
    points: pd.DataFrame,
    *,
    baseline_samples_per_s: float | Mapping[str, float] | None = None,
    laws: Sequence[str] = tuple(LAWS),
    seed: int = 0,
) -> dict[str, SeriesFit]:
    """Fit all `laws` to every series of `points`, in the order of their names ("" without a `series` column).

    Columns: workers, samples_per_s (samples/s of all workers); optional series, batch_size (per worker), nodes,
    workers_per_node, and train_samples (size of the data set; a fixed one gives Amdahl's law its meaning for epochs).
    Rows of one worker count are its repeats, in their order unless `repeat` numbers them: runs of one repeat may share
    noise (`rows.Drift`). `points.attrs["doubts"]` (see importers) joins the doubts.
    Speedup is throughput over `baseline_samples_per_s` (one number, or one per series name), else over what
    `baselines.base_of` says.

    Raises AnalysisError for rows that are not positive numbers, for a series without its baseline, and for a single
    series with one distinct worker count. Among several series, such a one is returned without fits and says why.
    """
    check_points(points)
    of_file = tuple(points.attrs.get("doubts", ()))
    if "repeat" not in points or points["repeat"].isna().any():
        series = points["series"].astype(str) if "series" in points else pd.Series("", index=points.index)
        points = points.assign(repeat=points.groupby([series, points["workers"]]).cumcount())
    # Sorted, so that neither sums nor drawn runs depend on the order of the rows.
    keys = [key for key in ("nodes", "samples_per_s", "batch_size") if key in points]
    frames = dict(by_series(points.sort_values(["workers", *keys], kind="stable", ignore_index=True)))
    asked = {
        name: _ask(name, rows, base_of(rows, name, baseline_samples_per_s), seed, of_file, alone=len(frames) == 1)
        for name, rows in frames.items()
    }
    samples = {name: sample for name, (_, sample) in asked.items() if sample is not None}
    solved: dict[str, dict[str, Solved | str]] = {name: {} for name in asked}
    for law in laws:
        for mode in ("strong", "weak"):
            names_of = [name for name in samples if (asked[name][0].mode == "strong") == (mode == "strong")]
            found = solve(LAWS[law].for_mode(mode), [samples[name] for name in names_of])
            for name, one_solved in zip(names_of, found, strict=True):
                solved[name][law] = one_solved
    good = {name: [each for each in found.values() if not isinstance(each, str)] for name, found in solved.items()}
    noise = {name: baseline_noise(good[name], sample) for name, sample in samples.items()}
    bent = [(name, each) for name in samples for each in good[name] if each.law.needs_profile]
    found_ends = profiles([(each, samples[name], noise[name]) for name, each in bent])
    ends = {(name, each.law.name): end for (name, each), end in zip(bent, found_ends, strict=True)}
    answers = {}
    for name, (one, sample) in asked.items():
        fits = {}
        for each in good[name]:
            why_not, law_ends = one.refused.get(each.law.name, ""), ends.get((name, each.law.name))
            fits[each.law.name] = _fit(each, samples[name], noise[name], why_not=why_not, ends=law_ends)
        refused = [f"{law} is not fitted: {why}" for law, why in solved[name].items() if isinstance(why, str)]
        selected, why, against = (
            _select_possible(fits, sample) if sample is not None and one.possible else (None, [], [])
        )
        of_laws = _law_doubts(fits, selected)
        odd = [f"{law} does not apply to {one.mode} scaling: {f.why_not}" for law, f in fits.items() if f.why_not]
        doubts = (*one.doubts, *refused, *of_laws, *odd, *why, *against)
        answers[name] = replace(one, fits=fits, selected=selected, doubts=doubts, contradicted=against)
    return answers


def _ask(
    name: str, rows: pd.DataFrame, base: Base, seed: int, of_file: Sequence[str], *, alone: bool
) -> tuple[SeriesFit, Sample | None]:
    """One series before its laws are fitted, and its rows; None with one distinct worker count."""
    n, x = (rows[each].to_numpy(dtype=np.float64) for each in ("workers", "samples_per_s"))
    nodes, per_node = _nodes(rows)
    mode, why_not, assumed, mode_doubts = _mode(rows)
    odd = [f"no law is selected: {why}" for why in impossibilities(rows, base.samples_per_s)]
    doubts = [*of_file, *odd, *point_doubts(n, x, base.samples_per_s), *mode_doubts, *filter(None, [base.doubt])]
    sample = None
    if n[0] == n[-1]:
        message = one_count(n[0])
        if alone:
            raise AnalysisError(message if not name else f"series {cut(name, 60)!r}: {message}")
        doubts.append(message)
    else:
        speedup, repeat = x / base.samples_per_s, rows["repeat"]
        sample = sample_of(n, speedup, nodes, per_node, scaled_by=base.workers, seed=seed, repeat=repeat)
    return SeriesFit(
        name=name,
        baseline=base.words,
        base_samples_per_s=base.samples_per_s,
        mode=mode,
        assumed=assumed,
        doubts=tuple(doubts),
        refused=why_not,
        possible=not odd,
    ), sample


def _law_doubts(fits: Mapping[str, ScalingFit], selected: str | None) -> Iterator[str]:
    """All doubts of the law selected; of the others, that and why they are not identifiable, one line each."""
    for law, fitted in fits.items():
        if law == selected:
            yield from [f"{law}: {doubt}" for doubt in fitted.doubts]
        elif fitted.applies:
            yield from [f"{law}: {doubt}" for doubt in fitted.doubts if doubt.startswith(_NOT_IDENTIFIABLE)][:1]


def _nodes(rows: pd.DataFrame) -> tuple[Floats | None, Floats | None]:
    """Nodes and workers per full node of every row; None where that is not known for all of them."""
    n = rows["workers"].to_numpy(dtype=np.float64)
    unknown = np.full(len(n), np.nan)
    nodes = rows["nodes"].to_numpy(dtype=np.float64) if "nodes" in rows else unknown
    per_node = rows["workers_per_node"].to_numpy(dtype=np.float64) if "workers_per_node" in rows else unknown
    nodes = np.where(np.isnan(nodes), np.ceil(n / per_node), nodes)
    if np.isnan(nodes).any() or nodes.max() <= 1:
        return None, None
    return nodes, None if np.isnan(per_node).any() else per_node


def _select(fits: Mapping[str, ScalingFit], noise: float) -> tuple[str | None, list[str]]:
    """The law that no other clearly beats on worker counts left out, the simplest one; and doubts about it.

    Of the laws that are not beaten, those that apply to the scaling mode and show what they are about come first, and
    among them the one with the fewest parameters within 2 AICc units of the best: the difference below which a model
    has as much support as the best (Burnham and Anderson 2002). `noise` is the relative spread of the medians.
    """
    if not fits:
        return None, []
    counts = max(fitted.workers_fitted for fitted in fits.values())
    if counts < 3:
        return None, [f"no law is selected: {counts} worker counts are on a curve of every law; measure at least 3"]
    if "constant" in fits and "linear" in fits:
        low, high = fits["linear"].ci95["slope"]
        if low > 0 or high < 0:
            # With few points AICc knows the laws of one parameter only, however badly they fit.
            fits = {name: fitted for name, fitted in fits.items() if name != "constant"}
    least = min((fitted.holdout for fitted in fits.values() if fitted.holdout is not None), default=None)
    limit = math.inf if least is None else max(_CLEARLY * least, least + max(_SAME, noise))
    left = {name: f for name, f in fits.items() if f.holdout is not None and f.holdout <= limit} or fits
    # Those that apply and show it, those that apply, those that show it, any: the first kind that is there.
    kinds = {name: (f.applies, f.shown) for name, f in left.items()}
    left = {name: f for name, f in left.items() if kinds[name] == max(kinds.values())}
    scored = {name: f.aicc for name, f in left.items() if f.aicc is not None}
    if scored:
        best = min(scored.values())
        close = [(len(left[name].params), round(aicc, 6), i, name) for i, (name, aicc) in enumerate(scored.items())]
        selected, doubts = min(entry for entry in close if entry[1] <= best + 2)[3], []
    else:
        fewest = min(len(f.params) for f in left.values())
        selected = min((f.rmse, i, law) for i, (law, f) in enumerate(left.items()) if len(f.params) == fewest)[2]
        doubts = [f"too few points to compare laws: {selected} is the closest of those with the fewest parameters"]
    one = fits[selected]
    if not one.applies:
        doubts.append(
            f"{selected} is selected as a description, for its parameters mean something else here: no law of this "
            "kind of scaling is nearly as close"
        )
    if one.holdout is not None and one.holdout > _BAD:
        doubts.append(
            f"{selected} is the best of these laws, and off by {100 * one.holdout:.0f} % at worker counts left out "
            "of the fit: none of them describes these points well"
        )
    return selected, doubts


def _spread_of_medians(sample: Sample) -> float:
    """Relative standard deviation of the median speedup of a place, over all with repeats; 0 where none has."""
    known = np.isfinite(sample.run_variance)
    return float(np.sqrt(np.mean(sample.run_variance[known] / sample.medians[known] ** 2))) if known.any() else 0.0


def _slack(noise: float) -> float:
    """The share of a speedup by which two medians of this relative standard deviation differ for nothing."""
    return min(max(2 * noise, _GRACE), _MOST_NOISE)


def _select_possible(fits: Mapping[str, ScalingFit], sample: Sample) -> tuple[str | None, list[str], list[str]]:
    """The law of `_select` among those that no median refutes, doubts about it, and what the points have against laws.

    A law is refuted where its peak or limit contradicts a median, by more than the spread of the repeats; where it is
    clearly below the highest median, does not fall where the medians beyond that one do, or does not rise where those
    before it do: by more than noise, which is that spread, else the scatter about the best of the other laws.
    """
    n, medians, spread = sample.where.workers, sample.medians, _spread_of_medians(sample)
    if len(np.unique(n)) < 3:
        return *_select(fits, spread), []
    curves = {name: one.law.at(sample.where, one._values) for name, one in fits.items()}
    free = {name: len(n) - len(one.params) for name, one in fits.items()}
    scatter = {name: math.sqrt(np.sum((curves[name] - medians) ** 2) / free[name]) for name in fits if free[name] > 0}
    top, against = int(np.argmax(medians)), []
    left: dict[str, ScalingFit] = {}
    for name, one in fits.items():
        noise = spread or min((each for other, each in scatter.items() if other != name), default=0.0) / medians[top]
        slack = _slack(noise)
        less, curve = medians < medians[top] * (1 - slack), curves[name]
        before, after = np.flatnonzero(less & (n < n[top])), np.flatnonzero(less & (n > n[top]))
        refuted = one.law.limit(**one.params) * (1 + _slack(spread)) < medians[top]
        refuted |= curve[top] < medians[top] * (1 - max(slack, _BAD))
        if len(before):
            refuted |= curve[top] <= curve[before[-1]]
        if len(after):
            low = after[np.argmin(medians[after])]
            refuted |= curve[low] > curve[top] * (1 - slack / 2)
            fall = f"{n[top]:g} workers and {100 * (1 - medians[low] / medians[top]):.0f} % lower at {n[low]:g}"
            against = [f"throughput is largest at {fall}: laws that do not fall there are not selected"]
        left |= {} if refuted else {name: one}
    if fits and not left:
        highest = f"{medians[top]:.4g} times the baseline at {n[top]:g} workers"
        return None, [], [*against, f"no law is selected: none has the rise to {highest} and what follows"]
    selected, doubts = _select(left, spread)
    if selected is not None and (off := fits[selected].holdout or 0.0) > _HOPELESS:
        told = f"no law is selected: {selected} is the closest, and off by {100 * off:.0f} % at worker counts left out"
        return None, [told], against
    return selected, doubts, against


def _mode(rows: pd.DataFrame) -> tuple[str, dict[str, str], str | None, list[str]]:
    """Scaling mode, the laws that do not apply with the reason, what was assumed, and doubts.

    The batch per worker says it: constant is weak, a constant total is strong.
    """
    if rows.attrs.get("unit") == COMMANDS:
        assumed = "the same work with every worker count (strong scaling): what is known is the time of whole commands"
        return "strong", _refused("strong", "a whole command is fixed work"), assumed, []
    if "batch_size" not in rows or rows["batch_size"].isna().any():
        return "unknown", {}, "fixed work per worker (weak scaling): batch sizes are not recorded", []
    batch = rows["batch_size"].to_numpy(dtype=np.float64)
    total = batch * rows["workers"].to_numpy(dtype=np.float64)
    if np.ptp(batch) == 0:
        if "train_samples" in rows and rows["train_samples"].notna().all() and rows["train_samples"].nunique() == 1:
            # Over a fixed data set epochs scale strongly while steps scale weakly, with the same points.
            return "weak", {}, None, []
        why = f"{batch[0]:g} samples per worker make the work of a step grow with the workers"
        return "weak", _refused("weak", why), None, []
    if np.ptp(total) <= 0.01 * total.max():
        return "strong", _refused("strong", f"{np.median(total):g} samples in all workers are fixed work"), None, []
    doubt = f"batch sizes differ ({shortened(np.unique(batch))}): neither strong nor weak scaling"
    return "mixed", _refused("mixed", "neither the batch per worker nor its total is fixed"), None, [doubt]


def _refused(mode: str, why: str) -> dict[str, str]:
    """The laws whose parameters mean something else in this scaling mode, each with the reason."""
    return {law.name: why + (law.misread if mode != "mixed" else "") for law in LAWS.values() if mode not in law.modes}


def _fit(
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
        bounds = np.array(law.bounds)
        if np.mean(np.any((draws <= bounds[:, 0]) | (draws >= bounds[:, 1]), axis=1)) > 0.025:
            low, high = np.minimum(low, values - reach), np.maximum(high, values + reach)
    ci95 = {
        name: (max(float(low[i]), law.bounds[i][0]), min(float(high[i]), law.bounds[i][1]))
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


def _ends_of(law: Law, params: Mapping[str, float], sample: Sample) -> tuple[float, float, list[str]]:
    """Peak and limit of a law, NaN where a run refutes them, and why."""
    peak, limit = float(law.peak(**params)), float(law.limit(**params))
    highest = float(sample.speedup.max())
    limit = highest if limit < highest < limit * (1 + 1e-6) else limit  # below it by rounding
    no_limit = impossible("limit", law=law.name, limit=limit, measured=highest)
    slack = _slack(_spread_of_medians(sample))
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


def _fit_doubts(law: Law, sample: Sample, values: Floats, ci95: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    distinct = distinct_places(law, sample.where)
    if distinct <= len(values) + 1:
        what = "places" if law.by_nodes else "worker counts"
        yield (
            f"{_NOT_IDENTIFIABLE}: {distinct} distinct {what} for {len(values)} parameter{'s' * (len(values) > 1)} "
            f"({listed(law.parameters)}); measure at least {len(values) + 2}"
        )
    if LAWS.get(law.name, law).multi_node is not None and not law.by_nodes and sample.where.several_nodes:
        yield "one pair of constants for links inside and across nodes: too few places for two"
    blind = [name for name in law.parameters if not math.isfinite(ci95[name][1] - ci95[name][0])]
    if len(blind) == len(values):
        yield "nothing is known about its uncertainty: no point is left over to see the noise in"
        return
    for i, (name, (lowest, highest)) in enumerate(zip(law.parameters, law.bounds, strict=True)):
        low, high = ci95[name]
        if name in blind:
            yield f"{_NOT_IDENTIFIABLE}: {name} has no effect at these worker counts"
            continue
        if values[i] in (lowest, highest) and high > low:
            end = high if values[i] == lowest else low
            yield (
                f"{_NOT_IDENTIFIABLE}: {name} is at its bound {values[i]:g}; the other end of its interval is {end:.3g}"
            )
        elif _spans(law, sample.where, values, i, low, high):
            yield f"{_NOT_IDENTIFIABLE}: the interval of {name} ({low:.3g} to {high:.3g}) spans its range"
        elif math.isfinite(lowest) and low <= lowest and high > low:
            yield f"{name} cannot be distinguished from {lowest:g} (interval {low:.3g} to {high:.3g})"


def _spans(law: Law, where: Places, values: Floats, i: int, low: float, high: float) -> bool:
    """Whether the interval of parameter `i` holds nearly all that it could be.

    That is its range; for a cost without an upper bound, all between nothing and as much as the work itself.
    """
    name, (lowest, highest) = law.parameters[i], law.bounds[i]
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


def _ends(interval: tuple[float, float] | None) -> Any:
    return None if interval is None or math.isinf(interval[0]) else finite(interval)
