"""Points in, fitted laws with honest intervals out.

Letters: R rows (observations), K distinct places (a worker count on a number of nodes), k parameters of a law,
B sets of means fitted at once (series, bootstrap replicates, or series with a worker count left out).

The estimate is plain least squares of the law on all rows of speedup against workers, inside the law's bounds:
in closed form for laws that are linear in their parameters, otherwise by Levenberg-Marquardt from several starts.
Series of the same places are solved together.

The 95 % interval depends on what was measured, and `interval_method` says which way was gone:

- **Repeats** (at least three runs at every worker count): bootstrap over runs.
  Runs are drawn again within each worker count, m - 1 out of m, which gives the right variance where drawing m out of m
  gives one that is too small by (m - 1)/m (McCarthy and Snowden 1985), and each replicate is fitted again.
  The percentiles are then stretched by t/z, with the degrees of freedom that the repeats leave for the parameter in
  question (Satterthwaite 1946): five repeats know their own variance badly, and most of what a slope depends on
  are the five runs at the largest worker count.
- **One run per point**: Student t with the residuals of the fit, through the Jacobian.
  Whether the noise is constant or proportional to the speedup is decided by likelihood; for constant noise and a
  linear law this is the textbook interval of ordinary least squares.

Where the speedup was divided by runs of the same series, their noise moves all points together.
Both ways take that into account.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS
from horovod_study.analysis.laws.law import (
    Array,
    Law,
    Places,
    best_counts,
    columns,
    knee,
    no_less_than_zero,
    places,
)
from horovod_study.errors import AnalysisError
from horovod_study.text.words import listed

__all__ = [
    *("QuantityFit", "ScalingFit", "SeriesFit", "check_points", "fit", "fit_quantity", "fit_series"),
    *("off_counts", "point_doubts"),
]

REPLICATES = 1000
_TOGETHER = 20  # series whose replicates are fitted in one go
_CLOSE = 1e-4  # last step of a replicate as a share of the largest speedup; what is left after it is far smaller
_CLEARLY = 2.0  # in log likelihood
_EXACT = 1e-10  # residuals below this share of the largest speedup are rounding, not misfit
_SCALES = frozenset({"gamma", "scale", "level", "base"})  # parameters that say how much, not how it scales


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """One law fitted to one series; call it with worker counts (and nodes, where known), shape (N,) -> (N,)."""

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
    why_not: str = ""  # why the law does not apply to the scaling mode; empty where it does
    _per_node: float | None = field(default=None, repr=False)  # workers of the fullest node fitted
    _noise: "_Noise" = field(repr=False, compare=False)
    _draws: Array | None = field(default=None, repr=False, compare=False)  # bootstrap replicates (B, k)

    def __call__(self, n: ArrayLike, nodes: ArrayLike | None = None) -> Array:
        """Speedup at worker counts `n`; without `nodes`, nodes are filled as the fullest one fitted was."""
        counts = np.asarray(n, dtype=np.float64)
        values = self.law.at(self._places(counts.ravel(), nodes), self._values)
        return np.array(values, dtype=np.float64).reshape(counts.shape)

    def predict(self, workers: ArrayLike) -> Array:
        """Speedup at `workers` of shape (N,), (N, 1), or (N, 2) with the nodes in the second column, as (N,)."""
        return self(*columns(workers))

    def efficiency(self, n: ArrayLike, nodes: ArrayLike | None = None) -> Array:
        """Speedup over workers at worker counts `n`, shape as `n`."""
        return np.asarray(self(n, nodes) / np.asarray(n, dtype=np.float64), dtype=np.float64)

    def interval(self, n: ArrayLike, nodes: ArrayLike | None = None) -> tuple[Array, Array]:
        """95 % band of the curve at worker counts `n`: (low, high), shapes as `n`; never below zero."""
        counts = np.asarray(n, dtype=np.float64)
        where = self._places(counts.ravel(), nodes)
        values = np.array(self.law.at(where, self._values))
        reach, stretch = self._noise.reach(self.law.gradient(where, self._values))
        if self._draws is None:
            low, high = values - reach, values + reach
        else:
            low, high = _stretched(values, self.law.at(where, self._draws), stretch)
        low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
        return low.reshape(counts.shape), high.reshape(counts.shape)

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
    def peak(self) -> float:
        """Worker count with the highest speedup of this law; inf when it keeps rising, NaN where nodes decide."""
        return float(self.law.peak(**self.params))

    @property
    def limit(self) -> float:
        """Speedup that this law never exceeds; inf when there is no such bound, NaN where nodes decide."""
        return float(self.law.limit(**self.params))

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
        own = self.peak if power == 1 else self.knee
        return min(float(low), own), max(float(high), own)

    def bottleneck(self, n: float | None = None) -> str | None:
        """What costs most at `n` (the largest fitted count): "contention", "communication" or "none"; else None.

        usl says "contention" or "coherency", its word for communication of all with all. amdahl and gustafson know
        serial work only ("contention"), ring, tree and overlap communication; the others claim nothing about causes.
        """
        return self.law.bottleneck(self.workers[1] if n is None else n, **self.params)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: parameters with intervals, how good the fit is and what speaks against it; null if not known."""
        return {
            "formula": self.law.formula,
            "params": {name: _finite(value) for name, value in self.params.items()},
            "ci95": {name: [_finite(low), _finite(high)] for name, (low, high) in self.ci95.items()},
            "rmse": _finite(self.rmse),
            "aicc": _finite(self.aicc),
            "loo_error": _finite(self.loo_median),
            "loo_error_rms": _finite(self.loo_rms),
            "applies": self.applies,
            "why_not": self.why_not or None,
            "identifiable": self.identifiable,
            "doubts": list(self.doubts),
            "interval_method": self.interval_method,
        }

    @property
    def _values(self) -> Array:
        return np.array(list(self.params.values()))

    def _places(self, n: Array, nodes: ArrayLike | None) -> Places:
        if not self.law.by_nodes:
            return Places(n, np.ones_like(n), n)
        if nodes is None:
            return places(n, per_node=self._per_node)
        return places(n, np.asarray(nodes, dtype=np.float64).ravel())


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFit:
    """All laws fitted to one series, the one selected, and every reason to doubt them."""

    name: str
    baseline: str  # what the speedup is relative to, in words
    base_samples_per_s: float  # throughput of one worker of that baseline
    mode: str  # "strong", "weak", "mixed" or "unknown", from the recorded batch sizes
    assumed: str | None  # what the laws took for granted because nothing was recorded about it
    fits: Mapping[str, ScalingFit]
    selected: str | None
    doubts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of one series as the command line prints it."""
        return {
            "baseline": self.baseline,
            "base_samples_per_s": _finite(self.base_samples_per_s),
            "mode": self.mode,
            "assumed": self.assumed,
            "laws": {
                name: {
                    **fitted.to_dict(),
                    "peak": _finite(fitted.peak),
                    "peak_ci95": _ends(fitted.peak_ci95) if name == self.selected else None,
                    "knee": _finite(fitted.knee),
                    "knee_ci95": _ends(fitted.knee_ci95) if name == self.selected else None,
                    "limit": _finite(fitted.limit),
                    "bottleneck": fitted.bottleneck(),
                }
                for name, fitted in self.fits.items()
            },
            "selected": self.selected,
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityFit:
    """Laws fitted to any positive quantity y(N): the one selected, and every reason to doubt them."""

    fits: Mapping[str, ScalingFit]
    selected: str | None
    doubts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, in the form of one series of `fit --json`."""
        return {
            "laws": {name: fitted.to_dict() for name, fitted in self.fits.items()},
            "selected": self.selected,
            "doubts": list(self.doubts),
        }


def fit(
    law: Law,
    workers: ArrayLike,
    speedup: ArrayLike,
    *,
    nodes: ArrayLike | None = None,
    per_node: ArrayLike | None = None,
    runs: Sequence[Any] | ArrayLike | None = None,
    scaled_by: int | None = None,
    seed: int = 0,
) -> ScalingFit:
    """Fit `law` to rows of (workers (R,), speedup (R,)); every row is one observation.

    `workers` may be a column (R, 1), or a table (R, 2) with the nodes second. `nodes` and `per_node` (workers that fill
    a node) say where the rows were measured, for laws with constants of their own across nodes. `runs` labels the rows
    of one run (default: every row is a run of its own); the bootstrap draws whole runs. `scaled_by` is the worker count
    whose median throughput the speedups were divided by, when that baseline comes from these rows: its noise then
    belongs to the intervals.
    A law with more parameters than distinct worker counts is fitted in its `reduced` form where it has one.

    Raises AnalysisError when the rows are not numbers above zero, or too few to determine the parameters.
    """
    n, own_nodes = columns(workers)
    sample = _sample(n, speedup, own_nodes if nodes is None else nodes, per_node, runs, scaled_by, seed)
    solved = _solve(law, [sample])[0]
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
    sample = _sample(workers, values, nodes, None, runs, None, seed, kind="no value to fit a law to")
    if len(np.unique(sample.where.workers)) == 1:
        return QuantityFit(fits={}, selected=None, doubts=(_one_count(sample.where.workers[0]),))
    doubts, fits = [], {}
    for law in (QUANTITY_LAWS[name] for name in laws):
        solved = _solve(law, [sample])[0]
        if isinstance(solved, str):
            doubts.append(f"{law.name} is not fitted: {solved}")
        else:
            fits[law.name] = _fit(solved, sample)
    selected, why = _select(fits)
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
    Rows of one worker count are its repeats; `points.attrs["doubts"]` (see points_file) joins the doubts.
    Speedup is throughput over `baseline_samples_per_s` (one number, or one per series name);
    without it, over the median throughput at the smallest worker count divided by that count.

    Raises AnalysisError for rows that are not positive numbers, for a series without its baseline, and for a single
    series with one distinct worker count. Among several series, such a one is returned without fits and says why.
    """
    check_points(points)
    names = points["series"].astype(str) if "series" in points else pd.Series("", index=points.index)
    of_file = tuple(points.attrs.get("doubts", ()))
    # Sorted, so that neither sums nor drawn runs depend on the order of the rows.
    keys = [key for key in ("nodes", "samples_per_s", "batch_size") if key in points]
    table = points.assign(series=names).sort_values(["series", "workers", *keys], kind="stable", ignore_index=True)
    frames = {str(name): rows for name, rows in table.groupby("series", sort=True)}
    asked = {
        name: _ask(name, rows, _baseline_of(name, baseline_samples_per_s), seed, of_file, alone=len(frames) == 1)
        for name, rows in frames.items()
    }
    fitted = {name: one for name, one in asked.items() if one.sample is not None}
    solved: dict[str, list[_Solved | str]] = {name: [] for name in fitted}
    for law in (LAWS[name] for name in laws):
        for strong in (True, False):
            names_of = [name for name, one in fitted.items() if (one.mode == "strong") == strong]
            samples = [fitted[name].sample for name in names_of]
            found = _solve(law.for_mode("strong" if strong else "weak"), [each for each in samples if each is not None])
            for name, one_solved in zip(names_of, found, strict=True):
                solved[name].append(one_solved)
    noise: dict[str, float] = {}
    needs_profile: list[tuple[str, str]] = []
    asked_of: list[tuple[_Solved, _Sample, float]] = []
    for name, one in fitted.items():
        good = [each for each in solved[name] if not isinstance(each, str)]
        if one.sample is not None:
            noise[name] = _baseline_noise(good, one.sample)
            bent = [each for each in good if each.law.needs_profile]
            needs_profile += [(name, each.law.name) for each in bent]
            asked_of += [(each, one.sample, noise[name]) for each in bent]
    ends = dict(zip(needs_profile, _profiles(asked_of), strict=True))
    return {
        name: _answer(name, one, laws, solved.get(name, []), noise.get(name, math.inf), ends)
        for name, one in asked.items()
    }


def point_doubts(workers: ArrayLike, samples_per_s: ArrayLike, base_samples_per_s: float) -> list[str]:
    """Reasons, in words, to doubt the points of one series before any law is fitted to them; shapes (R,), (R,)."""
    n = np.asarray(workers, dtype=np.float64)
    x = np.asarray(samples_per_s, dtype=np.float64)
    doubts = []
    counts, group = np.unique(n, return_inverse=True)
    repeats = np.bincount(group)
    medians = np.array([np.median(x[group == i]) for i in range(len(counts))])

    few = counts[repeats < 3]
    if len(few):
        which = "every worker count" if len(few) == len(counts) else f"{_numbers(few)} workers"
        doubts.append(f"fewer than 3 repeats at {which}: the spread between runs is not known there")
    if len(counts) < 4:
        doubts.append(f"only {len(counts)} distinct worker counts ({_numbers(counts)}): laws cannot be separated")

    off = off_counts(n, x)
    if off:
        doubts.append(f"throughput at {_numbers(off)} workers is more than 30 times off the other points: mixed units?")
    spread = [
        (count, np.std(x[group == i], ddof=1) / np.mean(x[group == i]))
        for i, count in enumerate(counts)
        if repeats[i] > 1 and count not in off
    ]
    wide = [(count, share) for count, share in spread if share > 0.10]
    if wide:
        worst = max(share for _, share in wide)
        doubts.append(
            f"runs at {_numbers([count for count, _ in wide])} workers differ by up to {worst:.0%} "
            "(standard deviation over mean): add repeats or look for a disturbance"
        )
    # One per cent of grace: a run that ties with the ideal line is not a finding.
    above = [count for count, x_n in zip(counts, medians, strict=True) if x_n > 1.01 * count * base_samples_per_s]
    above = [count for count in above if count not in off]
    if above:
        doubts.append(
            f"super-linear: more than N times the baseline at {_numbers(above)} workers "
            "(a slow baseline, a cache effect, or less work per step)"
        )
    return doubts


# --- one series -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One series before its laws are fitted."""

    base: float
    baseline: str
    mode: str
    assumed: str | None
    why_not: Mapping[str, str]  # laws that do not apply
    doubts: Sequence[str]
    sample: "_Sample | None"  # None with one distinct worker count


def _ask(
    name: str, rows: pd.DataFrame, baseline: float | None, seed: int, of_file: Sequence[str], *, alone: bool
) -> _Asked:
    n = rows["workers"].to_numpy(dtype=np.float64)
    x = rows["samples_per_s"].to_numpy(dtype=np.float64)
    nodes, per_node = _nodes(rows)
    smallest = int(n[0])
    if baseline is None:
        first = n == smallest if nodes is None else (n == smallest) & (nodes == nodes[n == smallest].min())
        base = float(np.median(x[first])) / smallest
        text = f"median of {smallest} worker{'s' * (smallest > 1)} of this series"
        if smallest > 1:
            text += f", divided by {smallest}"
        scaled_by: int | None = smallest
    else:
        base, text, scaled_by = baseline, f"{baseline:g} samples/s (given)", None
    mode, why_not, assumed, mode_doubts = _mode(rows)
    doubts = [*of_file, *point_doubts(n, x, base), *mode_doubts]
    if baseline is None and smallest > 1:
        doubts.append(
            f"no 1-worker point: amdahl and gustafson take {smallest} workers as perfectly scaled; "
            "give the baseline to have their s"
        )
    sample = None
    if n[0] == n[-1]:
        message = _one_count(smallest)
        if alone:
            raise AnalysisError(message if not name else f"series {_brief(name)}: {message}")
        doubts.append(message)
    else:
        sample = _sample(n, x / base, nodes, per_node, None, scaled_by, seed)
    return _Asked(base=base, baseline=text, mode=mode, assumed=assumed, why_not=why_not, doubts=doubts, sample=sample)


def _answer(
    name: str,
    asked: _Asked,
    laws: Sequence[str],
    solved: Sequence["_Solved | str"],
    noise: float,
    ends: Mapping[tuple[str, str], tuple[Array, Array]],
) -> SeriesFit:
    """Add intervals and doubts to the solved laws of one series, and select one."""
    doubts = list(asked.doubts)
    fits: dict[str, ScalingFit] = {}
    if asked.sample is not None:
        for law, each in zip(laws, solved, strict=True):
            if isinstance(each, str):
                doubts.append(f"{law} is not fitted: {each}")
        good = [each for each in solved if not isinstance(each, str)]
        fits = {
            each.law.name: _fit(
                each,
                asked.sample,
                noise,
                why_not=asked.why_not.get(each.law.name, ""),
                ends=ends.get((name, each.law.name)),
            )
            for each in good
        }
    selected, why = _select({law: fitted for law, fitted in fits.items() if fitted.applies})
    doubts += _law_doubts(fits, selected)
    doubts += [f"{law} does not apply to {asked.mode} scaling: {f.why_not}" for law, f in fits.items() if f.why_not]
    return SeriesFit(
        name=name,
        baseline=asked.baseline,
        base_samples_per_s=asked.base,
        mode=asked.mode,
        assumed=asked.assumed,
        fits=fits,
        selected=selected,
        doubts=tuple(doubts + why),
    )


def _law_doubts(fits: Mapping[str, ScalingFit], selected: str | None) -> list[str]:
    """All doubts of the law selected; of the others, that and why they are not identifiable, one line each."""
    doubts = []
    for law, fitted in fits.items():
        if law == selected:
            doubts += [f"{law}: {doubt}" for doubt in fitted.doubts]
        elif fitted.applies:
            doubts += [f"{law}: {doubt}" for doubt in fitted.doubts if doubt.startswith(_NOT_IDENTIFIABLE)][:1]
    return doubts


def _nodes(rows: pd.DataFrame) -> tuple[Array | None, Array | None]:
    """Nodes and workers per full node of every row; None where that is not known for all of them."""
    n = rows["workers"].to_numpy(dtype=np.float64)
    unknown = np.full(len(n), np.nan)
    nodes = rows["nodes"].to_numpy(dtype=np.float64) if "nodes" in rows else unknown
    per_node = rows["workers_per_node"].to_numpy(dtype=np.float64) if "workers_per_node" in rows else unknown
    nodes = np.where(np.isnan(nodes), np.ceil(n / per_node), nodes)
    if np.isnan(nodes).any() or nodes.max() <= 1:
        return None, None
    return nodes, None if np.isnan(per_node).any() else per_node


def _select(fits: Mapping[str, ScalingFit]) -> tuple[str | None, list[str]]:
    """The law with the fewest parameters within 2 AICc units of the best one; and a doubt where that is no contest.

    Two units is the difference below which a model has as much support as the best (Burnham and Anderson 2002).
    A law of costs stands back as long as the points show none of them, or do not determine its parameters: USL bends
    to any noise of a straight line.
    """
    if "constant" in fits and "linear" in fits:
        low, high = fits["linear"].ci95["slope"]
        if low > 0 or high < 0:
            # With few points AICc knows the laws of one parameter only, however badly they fit.
            fits = {name: fitted for name, fitted in fits.items() if name != "constant"}
    shown = {
        name: fitted
        for name, fitted in fits.items()
        if not fitted.law.costs or (fitted.identifiable and any(fitted.ci95[cost][0] > 0 for cost in fitted.law.costs))
    }
    fits = shown or fits
    if not fits:
        return None, []
    scored = {name: f.aicc for name, f in fits.items() if f.aicc is not None}
    if not scored:
        fewest = min(len(f.params) for f in fits.values())
        name = min((f.rmse, i, law) for i, (law, f) in enumerate(fits.items()) if len(f.params) == fewest)[2]
        return name, [f"too few points to compare laws: {name} is the closest of those with the fewest parameters"]
    best = min(scored.values())
    close = [(len(fits[name].params), aicc, i, name) for i, (name, aicc) in enumerate(scored.items())]
    return min(entry for entry in close if entry[1] <= best + 2)[3], []


def _mode(rows: pd.DataFrame) -> tuple[str, dict[str, str], str | None, list[str]]:
    """Scaling mode, the laws that do not apply with the reason, what was assumed, and doubts.

    The batch per worker says it: constant is weak, a constant total is strong.
    """
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
    doubt = f"batch sizes differ ({_numbers(np.unique(batch))}): neither strong nor weak scaling"
    return "mixed", _refused("mixed", "neither the batch per worker nor its total is fixed"), None, [doubt]


def _refused(mode: str, why: str) -> dict[str, str]:
    """The laws whose parameters mean something else in this scaling mode, each with the reason."""
    return {law.name: why + (law.misread if mode != "mixed" else "") for law in LAWS.values() if mode not in law.modes}


def _baseline_of(name: str, given: float | Mapping[str, float] | None) -> float | None:
    if isinstance(given, Mapping):
        if name not in given:
            raise AnalysisError(f"series {_brief(name)} has no baseline: give one for each of the series, in samples/s")
        given = given[name]
    if given is None:
        return None
    if not 1e-9 <= given <= 1e15:
        raise AnalysisError(
            f"baseline {given!r} is not a throughput: give samples/s of one worker, above 0 and at most 1e15"
        )
    return float(given)


def check_points(points: pd.DataFrame) -> None:
    """Raise AnalysisError unless there are rows with worker counts of at least 1 and throughputs above 0."""
    missing = [column for column in ("workers", "samples_per_s") if column not in points]
    if missing:
        raise AnalysisError(f"points without column {missing[0]!r}: needed are 'workers' and 'samples_per_s'")
    if points.empty:
        raise AnalysisError("there are no points to fit: at least 2 distinct worker counts are needed")
    _check_numbers(points["workers"].to_numpy(dtype=np.float64), points["samples_per_s"].to_numpy(dtype=np.float64))


def _check_numbers(n: Array, value: Array, kind: str = "no throughput: leave out runs without a value above 0") -> None:
    wrong = ~(np.isfinite(n) & (n >= 1))
    if wrong.any():
        raise AnalysisError(f"{n[wrong][0]:g} workers: every point needs a worker count of at least 1")
    wrong = ~(np.isfinite(value) & (value > 0))
    if wrong.any():
        at, bad = n[wrong][0], value[wrong][0]
        raise AnalysisError(f"{bad:g} at {at:g} workers is {kind}")


def _one_count(count: float) -> str:
    return f"all points have {count:g} workers: measure at least 2 distinct worker counts (4 to distinguish laws)"


def off_counts(workers: ArrayLike, samples_per_s: ArrayLike) -> list[float]:
    """Worker counts with a throughput that contradicts the other points 30-fold or more; shapes (R,), (R,)."""
    n, x = np.asarray(workers, dtype=np.float64), np.asarray(samples_per_s, dtype=np.float64)
    counts, group = np.unique(n, return_inverse=True)
    medians = np.array([np.median(x[group == i]) for i in range(len(counts))])
    apart = (x > 30 * medians[group]) | (x < medians[group] / 30)
    return sorted(_far_off(counts, medians) | set(n[apart].tolist()))


def _far_off(counts: Array, medians: Array) -> set[float]:
    """Worker counts whose throughput contradicts the others: 30 times super-linear, or a fall to a thirtieth.

    The one in most contradictions is named first, and the rest judged without it; of two equally guilty, both.
    """
    off: set[float] = set()
    n, x = counts, medians
    while len(n) > 1:
        ratio = x[:, np.newaxis] / x  # [i, j]: i over j
        more = n[:, np.newaxis] > n
        clash = more & ((ratio > 30 * n[:, np.newaxis] / n) | (ratio < 1 / 30))
        conflicts = clash.sum(axis=0) + clash.sum(axis=1)
        if not conflicts.any():
            return off
        worst = conflicts == conflicts.max()
        off |= set(n[worst].tolist())
        n, x = n[~worst], x[~worst]
    return off


# --- one law ----------------------------------------------------------------------------------------------------------

_NOT_IDENTIFIABLE = "not identifiable"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Rows of one series in the form that all laws share: per place and per run."""

    speedup: Array  # (R,)
    place: NDArray[np.intp]  # (R,) index of the place
    where: Places  # K distinct places
    rows: Array  # (K,) rows per place
    means: Array  # (K,) mean speedup
    within: float  # sum of squares of the rows around their means
    runs: tuple[int, ...]  # (K,) runs per place
    run_variance: Array  # (K,) variance of the mean over runs; NaN with one run
    base: int | None  # place that the speedups were divided by
    drawn: Array | None  # (B, K) bootstrap means, rescaled by their own baseline


def _sample(
    workers: ArrayLike,
    speedup: ArrayLike,
    nodes: ArrayLike | None,
    per_node: ArrayLike | None,
    runs: Sequence[Any] | ArrayLike | None,
    scaled_by: int | None,
    seed: int,
    kind: str = "no throughput: leave out runs without a value above 0",
) -> _Sample:
    n, s = np.asarray(workers, dtype=np.float64).ravel(), np.asarray(speedup, dtype=np.float64).ravel()
    if n.shape != s.shape or n.size == 0:
        raise AnalysisError(f"{n.size} worker counts and {s.size} speedups: give one speedup per worker count")
    _check_numbers(n, s, kind)
    labels = np.arange(n.size) if runs is None else pd.factorize(np.asarray(runs), sort=True)[0]
    if labels.shape != n.shape:
        raise AnalysisError(f"{n.size} rows but {labels.size} run labels: give one label per row")
    if scaled_by is not None and not np.any(n == scaled_by):
        raise AnalysisError(f"speedups cannot be scaled by {scaled_by} workers: no row has that worker count")
    where = places(n, nodes, per_node=per_node)
    keys = (where.fullest, where.nodes, n)
    order = np.lexsort((s, *keys) if runs is None else (s, labels, *keys))
    s, labels = s[order], labels[order]
    layout = np.stack([where.workers, where.nodes, where.fullest], axis=1)[order]

    new = np.concatenate([[True], np.any(layout[1:] != layout[:-1], axis=1)])
    first = np.flatnonzero(new)
    rows = np.diff(np.append(first, n.size))
    per_run = []  # per place: (sum of speedups, rows) of each run
    for start, size in zip(first, rows, strict=True):
        of_run = np.unique(labels[start : start + size], return_inverse=True)[1]
        per_run.append(
            (np.bincount(of_run, s[start : start + size]).astype(np.float64), np.bincount(of_run).astype(np.float64))
        )
    means = np.array([sums.sum() / size.sum() for sums, size in per_run])
    variance = [stats.variance_of_mean(sums / size) if len(sums) > 1 else np.nan for sums, size in per_run]
    numbers = tuple(len(sums) for sums, _ in per_run)
    counts = layout[first, 0]
    base = None if scaled_by is None else int(np.flatnonzero(counts == scaled_by)[0])
    return _Sample(
        speedup=s,
        place=np.cumsum(new) - 1,
        where=Places(counts, layout[first, 1], layout[first, 2]),
        rows=rows.astype(np.float64),
        means=means,
        within=float(np.sum((s - np.repeat(means, rows)) ** 2)),
        runs=numbers,
        run_variance=np.array(variance),
        base=base,
        drawn=_draw(per_run, base, seed) if min(numbers) >= 3 and len(first) > 1 else None,
    )


def _draw(per_run: list[tuple[Array, Array]], base: int | None, seed: int) -> Array:
    """Bootstrap means (B, K): m - 1 of the m runs of each place, drawn with replacement."""
    generator = np.random.default_rng(seed)
    drawn = np.empty((REPLICATES, len(per_run)))
    scale = np.ones(REPLICATES)
    for i, (sums, size) in enumerate(per_run):
        pick = generator.integers(len(sums), size=(REPLICATES, len(sums) - 1))
        drawn[:, i] = sums[pick].sum(axis=1) / size[pick].sum(axis=1)
        if i == base:
            middle = float(np.median(sums / size))
            scale = np.median((sums / size)[pick], axis=1) / middle
    return drawn / scale[:, np.newaxis]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A law with the parameters of least squares, before the question of how well they are known."""

    law: Law
    values: Array  # (k,)
    error: float  # sum of squares over all rows
    aicc: float | None
    left_out: Array | None  # (worker counts,) relative error of each, fitted without it; None with too few
    draws: Array | None  # (B, k) bootstrap replicates; None with too few repeats


def _solve(law: Law, samples: Sequence[_Sample]) -> list[_Solved | str]:
    """Least squares of `law` on every sample, or why it cannot be; samples of the same places are solved at once."""
    found: list[_Solved | str] = [""] * len(samples)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, sample in enumerate(samples):
        where = sample.where
        alike.setdefault((*where.workers, *where.nodes, *where.fullest), []).append(i)
    for members in alike.values():
        where = samples[members[0]].where
        counts = np.unique(where.workers)
        form = _form(law, where)
        if form is None:
            reason = _undetermined(law, counts)
            for i in members:
                found[i] = reason
            continue
        # Together as many as keep the work of one call within a few million numbers.
        chunk = max(1, 200_000 // len(where) ** 2)
        for begin in range(0, len(members), chunk):
            some = members[begin : begin + chunk]
            for i, solved in zip(some, _solve_alike(form, [samples[i] for i in some]), strict=True):
                found[i] = solved
    return found


def _undetermined(law: Law, counts: Array) -> str:
    if len(counts) < 2:
        return _one_count(counts[0])
    while law.reduced is not None:
        law = law.reduced
    return f"{_numbers(counts)} workers do not determine {listed(law.parameters)}: measure more worker counts"


def _form(law: Law, where: Places) -> Law | None:
    """The form of a law with as many parameters as the places can determine; None if they cannot determine any."""
    if len(np.unique(where.workers)) < 2:
        return None
    several = where.several_nodes and bool(np.any(where.fullest > 1))
    form: Law | None = law.multi_node if several and law.multi_node is not None else law
    while form is not None:
        if form.reduced is None or (_distinct(form, where) > len(form.parameters) and _determined(form, where)):
            break
        form = form.reduced
    return form if form is not None and _determined(form, where) else None


def _distinct(law: Law, where: Places) -> int:
    """How many different places the law can see."""
    return len(where) if law.by_nodes else len(np.unique(where.workers))


def _determined(law: Law, where: Places) -> bool:
    """Whether the places leave no combination of the parameters open, where all of them have an effect."""
    probe = np.array(
        [
            0.5 if (low, high) == (0.0, 1.0) else 0.1 if low == 0.0 and name not in _SCALES else max(1.0, 2.0 * low)
            for name, (low, high) in zip(law.parameters, law.bounds, strict=True)
        ]
    )
    jacobian = law.gradient(where, probe)
    scale = np.linalg.norm(jacobian, axis=0)
    return bool(np.linalg.matrix_rank(jacobian / np.where(scale > 0, scale, 1), tol=1e-9) == len(probe))


def _solve_alike(law: Law, samples: Sequence[_Sample]) -> list[_Solved]:
    """Solve samples that share their places (K,): one set of means (B, K) each."""
    where = samples[0].where
    weight = np.stack([sample.rows for sample in samples])
    means = np.stack([sample.means for sample in samples])
    values = _estimate(law, where, weight, means)
    misfit = np.sum(weight * (means - law.at(where, values)) ** 2, axis=1)
    left_out = _left_out(law, where, weight, means, values)
    draws = _replicates(law, samples, values)
    return [
        _Solved(
            law=law,
            values=values[i],
            error=sample.within + float(misfit[i]),
            aicc=_aicc(sample.within + float(misfit[i]), sample, len(values[i])),
            left_out=None if left_out is None else left_out[i],
            draws=draws[i],
        )
        for i, sample in enumerate(samples)
    ]


def _replicates(law: Law, samples: Sequence[_Sample], values: Array) -> list[Array | None]:
    """The law fitted to the bootstrap means of every sample that has them, (B, k) each; values are (samples, k)."""
    found: list[Array | None] = [None] * len(samples)
    repeated = [(i, sample.drawn) for i, sample in enumerate(samples) if sample.drawn is not None]
    where, bounds = samples[0].where, np.array(law.bounds).T
    for begin in range(0, len(repeated), _TOGETHER):
        some = repeated[begin : begin + _TOGETHER]
        starts, weights = [], []
        for i, drawn in some:
            # From the linear theory it is a step or two to each replicate.
            influence = _influence(law.gradient(where, values[i]), samples[i].rows)
            starts.append(np.clip(values[i] + (drawn - samples[i].means) @ influence.T, *bounds))
            weights.append(np.broadcast_to(samples[i].rows, drawn.shape))
        targets = np.concatenate([drawn for _, drawn in some])
        weight, start = np.concatenate(weights), np.concatenate(starts)
        if law.linear and len(law.bounds) == 1:
            fitted = _closed(law, where, weight, targets)
        else:
            fitted = _refit(law, where, weight, targets, start, tolerance=_CLOSE, steps=40)
        for (i, _), draws in zip(some, np.split(fitted, len(some)), strict=True):
            found[i] = draws.copy()
    return found


def _left_out(law: Law, where: Places, weight: Array, means: Array, values: Array) -> Array | None:
    """Relative error of every distinct worker count, fitted without it: (B, counts); None where that leaves too few."""
    counts, group = np.unique(where.workers, return_inverse=True)
    kept = [np.flatnonzero(group != i) for i in range(len(counts))]
    if any(
        _distinct(law, rest) < len(law.parameters) or len(np.unique(rest.workers)) < 2 or not _determined(law, rest)
        for rest in (_some(where, keep) for keep in kept)
    ):
        return None
    sets, number = len(means), len(counts)
    without = np.repeat(weight[:, np.newaxis], number, axis=1) * (group != np.arange(number)[:, np.newaxis])
    targets = np.repeat(means, number, axis=0)
    start = np.repeat(values, number, axis=0)
    without = without.reshape(sets * number, -1)
    found = (
        _closed(law, where, without, targets)
        if law.linear
        else _refit(law, where, without, targets, start, tolerance=1e-6, steps=20)
    )
    apart = ((law.at(where, found) - targets) / targets).reshape(sets, number, -1)
    # A worker count on several numbers of nodes is left out as a whole; its error is the mean over those places.
    return np.stack([apart[:, i, group == i].mean(axis=1) for i in range(number)], axis=1)


def _some(where: Places, keep: NDArray[np.intp]) -> Places:
    return Places(where.workers[keep], where.nodes[keep], where.fullest[keep])


def _reach(solved: _Solved, sample: _Sample, base_noise: float, jacobian: Array) -> tuple["_Noise", str, Array, Array]:
    """Noise of the parameters, how it was found, half of their linear 95 % intervals (k,), and t/z (k,)."""
    if solved.draws is None:
        noise, method = _from_residuals(solved, sample, jacobian, base_noise)
    else:
        noise = _from_repeats(sample, jacobian)
        method = "bootstrap over runs within each worker count, stretched by Student t for few repeats"
    reach, stretch = noise.reach(np.eye(len(solved.values)))
    # Where a parameter has no effect at all the points say nothing about it.
    return noise, method, np.where(np.any(jacobian != 0, axis=0), reach, np.inf), stretch


def _fit(
    solved: _Solved,
    sample: _Sample,
    base_noise: float = math.inf,
    *,
    why_not: str = "",
    ends: tuple[Array, Array] | None = None,
) -> ScalingFit:
    """Add the intervals; `base_noise` limits the noise of one baseline run, in units of speedup.

    `ends` are the intervals of a profiled law where they have been found before.
    """
    law, values, draws = solved.law, solved.values, solved.draws
    jacobian = law.gradient(sample.where, values)
    noise, method, reach, stretch = _reach(solved, sample, base_noise, jacobian)
    if law.needs_profile:
        low, high = _profiles([(solved, sample, base_noise)])[0] if ends is None else ends
        method = f"profile of least squares, its width by {'the spread of the runs' if draws is not None else method}"
    elif draws is None:
        low, high = values - reach, values + reach
    else:
        low, high = _stretched(values, draws, stretch)
        # Percentiles do not hold where a parameter meets its bound (Andrews 2000), neither its own nor those of others
        # that make up for it: there the linear theory has a say, too.
        bounds = np.array(law.bounds)
        if np.mean(np.any((draws <= bounds[:, 0]) | (draws >= bounds[:, 1]), axis=1)) > 0.025:
            low, high = np.minimum(low, values - reach), np.maximum(high, values + reach)
    ci95 = {
        name: (max(float(low[i]), law.bounds[i][0]), min(float(high[i]), law.bounds[i][1]))
        for i, name in enumerate(law.parameters)
    }
    total = len(sample.speedup)
    errors = solved.left_out
    return ScalingFit(
        law=law,
        params=dict(zip(law.parameters, values.tolist(), strict=True)),
        ci95=ci95,
        workers=(int(sample.where.workers[0]), int(sample.where.workers[-1])),
        points=total,
        rmse=math.sqrt(solved.error / total),
        aicc=solved.aicc,
        loo_median=None if errors is None else float(np.median(np.abs(errors))),
        loo_rms=None if errors is None else float(np.sqrt(np.mean(errors**2))),
        doubts=tuple(_fit_doubts(law, sample, values, ci95)),
        interval_method=method,
        why_not=why_not,
        _per_node=float(sample.where.fullest.max()) if sample.where.several_nodes else None,
        _noise=noise,
        _draws=draws,
    )


def _estimate(law: Law, where: Places, weight: Array, means: Array) -> Array:
    """Least squares on all rows: means (B, K) with weights (B, K) -> (B, k). Means have the same minimum as rows."""
    lower, upper = (np.array(side) for side in zip(*law.bounds, strict=True))
    if law.linear:
        return _snapped(law, where, means, _closed(law, where, weight, means))
    starts = [np.clip(np.array(law.starts(where, each)), lower, upper) for each in means]
    number = max(len(each) for each in starts)
    tried = np.stack([np.concatenate([each, np.repeat(each[:1], number - len(each), axis=0)]) for each in starts])
    sets = len(means)
    found = _refit(
        law,
        where,
        np.repeat(weight, number, axis=0),
        np.repeat(means, number, axis=0),
        tried.reshape(sets * number, -1),
        tolerance=1e-13,
    ).reshape(sets, number, -1)
    misfit = np.sum(weight[:, np.newaxis] * (law.at(where, found) - means[:, np.newaxis]) ** 2, axis=2)
    misfit = np.where(np.isfinite(misfit), misfit, np.inf)
    best = np.argmax(misfit <= misfit.min(axis=1, keepdims=True) * (1 + 1e-9), axis=1)
    return _snapped(law, where, means, found[np.arange(sets), best])


def _closed(law: Law, where: Places, weight: Array, means: Array) -> Array:
    """Least squares of a law that is linear in its parameters: means (B, K), weights (B, K) -> (B, k)."""
    zero = np.zeros(len(law.parameters))
    slopes, rest = law.gradient(where, zero), means - law.at(where, zero)
    root = np.sqrt(weight)
    lower, upper = (np.array(side) for side in zip(*law.bounds, strict=True))
    if len(zero) == 1:
        # Clipping one parameter is exact: the sum of squares is a parabola.
        best = np.sum(weight * slopes[:, 0] * rest, axis=1) / np.sum(weight * slopes[:, 0] ** 2, axis=1)
        return np.asarray(np.clip(best, lower[0], upper[0]))[:, np.newaxis]
    found = np.empty((len(means), len(zero)))
    for i in range(len(means)):
        rows = slopes * root[i, :, np.newaxis]
        if math.isinf(lower[0]):
            found[i] = np.linalg.lstsq(rows, rest[i] * root[i])[0]
        else:
            found[i] = no_less_than_zero(rows, rest[i] * root[i])
    return found


def _snapped(law: Law, where: Places, means: Array, values: Array) -> Array:
    """Values (B, k) that differ from a bound or from zero by rounding only, put there."""
    curve = law.at(where, values)
    close = 1e-13 * np.max(means, axis=1)
    for i, (lowest, highest) in enumerate(law.bounds):
        for target in (0.0, lowest, highest):
            if math.isfinite(target) and lowest <= target <= highest:
                moved = values.copy()
                moved[:, i] = target
                near = np.max(np.abs(law.at(where, moved) - curve), axis=1) < close
                values = np.where(near[:, np.newaxis], moved, values)
    return values


def _refit(
    law: Law,
    where: Places,
    weight: Array,
    targets: Array,
    start: Array,
    *,
    bounds: tuple[Array, Array] | None = None,
    tolerance: float,
    steps: int = 60,
) -> Array:
    """Bounded least squares for many sets of means at once: targets (B, K), start (B, k) or (k,) -> parameters (B, k).

    Levenberg-Marquardt with an active set: a parameter that sits on a bound and wants to leave the allowed range is
    held there for the step. `weight` is (K,) or (B, K); `tolerance` is the last step's effect on the curve, relative
    to the largest target; `bounds` (k,) or (B, k) each take the place of those of the law.
    """
    shape = (len(targets), len(law.bounds))
    low, high = zip(*law.bounds, strict=True) if bounds is None else bounds
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
    weight: Array, rest: Array, slopes: Array, values: Array, lower: Array, upper: Array, damping: Array
) -> tuple[Array, Array]:
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
    step: list[Array] = [np.empty(0)] * k
    for i in reversed(range(k)):
        step[i] = (right[i] - sum(rows[i][m - i] * step[m] for m in range(i + 1, k))) / rows[i][0]
    moved = np.stack(step) * scaled
    return np.where(np.isfinite(moved), moved, 0.0), size


# --- intervals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """Covariance of the parameters as a sum over independent sources of noise, each with its degrees of freedom."""

    covariance: Array  # (sources, k, k); inf where nothing is known
    freedom: Array  # (sources,)

    def reach(self, contrasts: Array) -> tuple[Array, Array]:
        """Half width of the 95 % interval of linear contrasts (C, k) of the parameters, and its t/z; shapes (C,)."""
        nothing = np.full(len(contrasts), np.inf)
        if not np.isfinite(self.covariance).all():
            return nothing, np.ones(len(contrasts))
        with np.errstate(over="ignore", invalid="ignore"):
            parts = np.maximum(np.einsum("ck,skl,cl->cs", contrasts, self.covariance, contrasts), 0.0)
            variance = parts.sum(axis=1)
        known = np.isfinite(variance)
        # Satterthwaite: the sum of variances that are each known with their own degrees of freedom.
        share = np.divide(
            parts, variance[:, np.newaxis], out=np.zeros_like(parts), where=known[:, np.newaxis] & (parts > 0)
        )
        blur = np.sum(share**2 / self.freedom, axis=1)
        degrees = np.divide(1.0, blur, out=np.full(len(contrasts), np.inf), where=blur > 0)
        t = stats.t_quantile(0.975, np.maximum(degrees, 1.0))
        return np.where(known, t * np.sqrt(np.where(known, variance, 0.0)), nothing), t / stats.Z95


def _from_repeats(sample: _Sample, jacobian: Array) -> _Noise:
    """Noise of the parameters from the spread of the runs at each place, one source each; jacobian is (K, k)."""
    influence, variance = _influence(jacobian, sample.rows), sample.run_variance
    freedom = np.array(sample.runs) - 1.0
    if sample.base is not None:
        by_base = influence @ sample.means / sample.where.workers[sample.base]
        influence[:, sample.base] -= by_base
        # What a median has beyond the mean of the same normal runs is independent of that mean.
        beyond = _median_over_mean(sample.runs[sample.base]) - 1
        influence = np.column_stack([influence, by_base])
        variance = np.append(variance, beyond * variance[sample.base])
        freedom = np.append(freedom, freedom[sample.base])
    sources = influence * np.sqrt(variance)
    return _Noise(covariance=np.einsum("ks,ls->skl", sources, sources), freedom=freedom)


def _median_over_mean(runs: int) -> float:
    """Variance of the median of normal runs over that of their mean; from order statistics (Sarhan, Greenberg 1962)."""
    return {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.193, 5: 1.434, 6: 1.288, 7: 1.473}.get(runs, math.pi / 2)


def _from_residuals(solved: _Solved, sample: _Sample, jacobian: Array, base_noise: float) -> tuple[_Noise, str]:
    """Noise of the parameters from the residuals of the fit, and how it was found.

    The misfit of a wrong law is no noise of the baseline: `base_noise` is an upper limit for the latter.
    """
    k = len(solved.values)
    spread = _residual_spread(solved, sample)
    if spread is None:
        nothing = np.full((1, k, k), np.inf)
        return _Noise(covariance=nothing, freedom=np.ones(1)), "none: no point is left over to see the noise in"
    at_base = _baseline_rows(sample)
    moves = _influence(jacobian[sample.place], np.ones(len(sample.place)))
    if at_base.any():
        # A baseline run moves its own point and, the other way, all points.
        moves = moves - np.outer(moves @ sample.speedup, at_base / (at_base.sum() * sample.speedup[at_base].mean()))
    size = np.where(at_base, np.minimum(spread.of_base, base_noise), spread.size)
    parts = [(moves * size)[:, at_base == which] for which in (False, True)]
    with np.errstate(over="ignore"):  # a parameter that hardly moves the curve may be anything
        covariance = np.stack([part @ part.T for part in parts])
    return (
        _Noise(covariance=covariance, freedom=np.full(2, float(spread.freedom))),
        f"Student t from the residuals, noise {spread.model} (too few repeats for a bootstrap over runs)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """Noise of single rows, from residuals."""

    model: str
    size: Array  # (R,) standard deviations of the speedups
    of_base: Array  # (R,) the same, as it counts for the baseline
    freedom: int


def _residual_spread(solved: _Solved, sample: _Sample) -> _Spread | None:
    """Noise of the rows: proportional to the speedup, unless constant noise is clearly likelier; None without a rest.

    Residuals are taken orthogonal to what the parameters and the common scale of all points can do,
    which leaves sigma^2 with as many degrees of freedom as directions remain (restricted likelihood).
    """
    s = sample.speedup
    curve = solved.law.at(sample.where, solved.values)[sample.place]
    slopes = solved.law.gradient(sample.where, solved.values)[sample.place]
    if sample.base is not None:
        slopes = np.column_stack([slopes, curve])
    size = np.linalg.norm(slopes, axis=0)
    slopes = slopes / np.where(size > 0, size, 1.0)
    fits = []
    for model, unit in (("proportional to the speedup", np.maximum(curve, 1e-3 * s)), ("constant", np.ones_like(s))):
        basis, strength, _ = np.linalg.svd(slopes / unit[:, np.newaxis], full_matrices=False)
        rank = int(np.sum(strength > 1e-7 * strength[0]))
        freedom = len(s) - rank
        if freedom == 0:
            return None
        rest = (s - curve) / unit
        rest = rest - basis[:, :rank] @ (basis[:, :rank].T @ rest)
        variance = float(rest @ rest) / freedom
        floor = (_EXACT * float(s.max())) ** 2
        likelihood = -0.5 * freedom * math.log(max(variance, floor)) - float(
            np.sum(np.log(unit)) + np.sum(np.log(strength[:rank]))
        )
        fits.append(
            (
                likelihood,
                _Spread(
                    model=model, size=unit * math.sqrt(variance), of_base=unit * math.sqrt(variance), freedom=freedom
                ),
            )
        )
    (proportional, relative), (constant, absolute) = fits
    if constant > proportional + _CLEARLY:
        return absolute
    if proportional > constant + _CLEARLY:
        return relative
    # Undecided, both count. A baseline run is another matter: as noisy as the largest point it would swamp all others.
    return replace(
        relative, model="proportional to the speedup or constant", size=np.maximum(relative.size, absolute.size)
    )


def _baseline_rows(sample: _Sample) -> NDArray[np.bool_]:
    return np.asarray(sample.place == (-1 if sample.base is None else sample.base))


def _baseline_noise(solved: Sequence[_Solved], sample: _Sample) -> float:
    """Noise of one baseline run in units of speedup, as the law with the best AICc leaves it; inf when none says."""
    scored = [each for each in solved if each.aicc is not None]
    at_base = _baseline_rows(sample)
    if not scored or not at_base.any():
        return math.inf
    spread = _residual_spread(min(scored, key=lambda each: each.aicc or 0.0), sample)
    return math.inf if spread is None else float(spread.of_base[at_base].max())


def _influence(jacobian: Array, weight: Array) -> Array:
    """d parameters / d points, (k, points): the weighted pseudo-inverse of the Jacobian (points, k)."""
    root = np.sqrt(weight)
    scale = np.linalg.norm(jacobian * root[:, np.newaxis], axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    inverse = np.linalg.pinv(jacobian * root[:, np.newaxis] / scale)
    return np.asarray(inverse * root / scale[:, np.newaxis], dtype=np.float64)


def _stretched(values: Array, drawn: Array, stretch: Array) -> tuple[Array, Array]:
    """Percentile interval of replicates (B, C) around `values` (C,), widened by `stretch` (C,)."""
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return (
        np.minimum(values, values + (low - values) * stretch),
        np.maximum(values, values + (high - values) * stretch),
    )


def _profiles(asked: Sequence[tuple[_Solved, _Sample, float]]) -> list[tuple[Array, Array]]:
    """Ends (k,), (k,) of the intervals of each solved law with its sample and baseline noise; alike ones together."""
    found = [(np.empty(0), np.empty(0))] * len(asked)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, (solved, sample, _) in enumerate(asked):
        alike.setdefault((id(solved.law), *sample.where.workers), []).append(i)
    for members in alike.values():
        for begin in range(0, len(members), _TOGETHER):
            some = members[begin : begin + _TOGETHER]
            for i, ends in zip(some, _profiled([asked[i] for i in some]), strict=True):
                found[i] = ends
    return found


def _profiled(alike: Sequence[tuple[_Solved, _Sample, float]]) -> list[tuple[Array, Array]]:
    """Ends of the intervals by the profile of least squares (Venzon and Moolgavkar 1988), of one law and its places.

    A parameter is moved away from its estimate, all others are fitted again, and the interval ends where the sum of
    squares has risen by what half of the linear interval costs in the linear theory. For a law that is nearly linear
    that is the linear interval; where parameters make up for each other it follows the valley.
    """
    law, where = alike[0][0].law, alike[0][1].where
    k = len(law.bounds)
    columns = [_profile_columns(*each) for each in alike]
    own, rise, first, along, values, means, rows = (np.concatenate(each) for each in zip(*columns, strict=True))
    which, sign = np.tile(np.arange(k), 2 * len(alike)), np.tile(np.repeat([-1.0, 1.0], k), len(alike))
    lower, upper = (np.array(side) for side in zip(*law.bounds, strict=True))
    edge = np.where(sign < 0, lower[which], upper[which])
    least = np.sum(rows * (means - law.at(where, values)) ** 2, axis=1)

    inner, below = own.copy(), -np.sqrt(rise)  # inside of the end, and how far the root of the rise is from its goal
    outer, above = np.clip(own + sign * first, lower[which], upper[which]), np.full(len(own), np.nan)
    # Guesses of the others: as they were at the inner point, there plus their own slopes, and at the outer point.
    at_inner, at_outer = values.copy(), values.copy()
    ends, last = np.where((own == edge) & np.isfinite(rise), edge, np.nan), np.zeros(len(own))
    ends = np.where(np.isfinite(rise), ends, sign * np.inf)
    for _ in range(60):
        todo = np.isnan(ends)
        if not todo.any():
            break
        # Outwards until the goal is passed, then the secant, slowed down where one side stays (Illinois).
        with np.errstate(invalid="ignore"):
            tried = np.where(np.isnan(above), outer, inner + (outer - inner) * below / (below - above))
        held = np.arange(k) == which[:, np.newaxis]
        bounds = (np.where(held, tried[:, np.newaxis], lower), np.where(held, tried[:, np.newaxis], upper))
        guesses = [at_inner, at_inner + along * (tried - inner)[:, np.newaxis], at_outer]
        starts = np.concatenate([np.clip(each, *bounds)[todo] for each in guesses])
        weight, targets = np.tile(rows[todo], (3, 1)), np.tile(means[todo], (3, 1))
        held_at = (np.tile(bounds[0][todo], (3, 1)), np.tile(bounds[1][todo], (3, 1)))
        found = _refit(law, where, weight, targets, starts, bounds=held_at, tolerance=1e-5)
        error = np.sum(weight * (targets - law.at(where, found)) ** 2, axis=1).reshape(3, -1)
        best, column = np.argmin(error, axis=0), np.arange(error.shape[1])
        solved, off = np.full(values.shape, np.nan), np.full(len(own), np.nan)
        solved[todo] = found.reshape(3, -1, k)[best, column]
        off[todo] = np.sqrt(np.maximum(error[best, column] - least[todo], 0.0)) - np.sqrt(rise[todo])
        passed, short = todo & (off >= 0), todo & (off < 0)
        searching = np.isnan(above)
        ends = np.where(short & searching & (tried == edge), edge, ends)
        ends = np.where(short & searching & (np.abs(tried - own) > 1e6 * first), sign * np.inf, ends)
        close = (np.abs(off) < 0.01 * np.sqrt(rise)) | (np.abs(outer - inner) < 1e-6 * np.abs(outer - own))
        ends = np.where(todo & ~searching & close, tried, ends)
        below = np.where(passed & (last > 0), below / 2, np.where(short, off, below))
        above = np.where(short & (last < 0), above / 2, np.where(passed, off, above))
        outer = np.where(passed, tried, np.where(short & searching, own + 2 * (tried - own), outer))
        outer = np.clip(outer, lower[which], upper[which])
        inner = np.where(short, tried, inner)
        at_inner = np.where(short[:, np.newaxis], solved, at_inner)
        at_outer = np.where(passed[:, np.newaxis], solved, at_outer)
        last = np.where(searching, 0.0, np.where(passed, 1.0, -1.0))
    ends = np.where(np.isnan(ends), outer, ends).reshape(-1, 2, k)
    return [(low, high) for low, high in ends]


def _profile_columns(solved: _Solved, sample: _Sample, base_noise: float) -> tuple[Array, ...]:
    """Both ends of all k parameters as 2k columns: estimates, goal of the rise, first reach, slopes of the others
    (2k, k), all values (2k, k), means and rows (2k, K)."""
    values, k = solved.values, len(solved.values)
    jacobian = solved.law.gradient(sample.where, values)
    reach = _reach(solved, sample, base_noise, jacobian)[2]
    influence = _influence(jacobian, sample.rows)
    with np.errstate(all="ignore"):  # where a parameter hardly moves the curve, its influence overflows
        spread = influence / sample.rows @ influence.T
        rise = reach**2 / np.diag(spread)
        along = spread / np.diag(spread)[:, np.newaxis]
    # Without an effect at the estimate a parameter may have one elsewhere.
    known = rise[np.isfinite(rise)]
    rise = np.where(np.isfinite(rise), rise, known.max() if len(known) else np.inf)
    first = np.where(np.isfinite(reach) & (reach > 0), reach, np.maximum(np.abs(values), 0.1))
    along = np.where(np.isfinite(along), along, 0.0)
    whole = (np.tile(each, (2 * k, 1)) for each in (values, sample.means, sample.rows))
    return np.tile(values, 2), np.tile(rise, 2), np.tile(first, 2), np.tile(along, (2, 1)), *whole


def _aicc(error: float, sample: _Sample, parameters: int) -> float | None:
    """Akaike's criterion for least squares with the small-sample term (Hurvich and Tsai 1989).

    n log(RSS / n) + 2 K + 2 K (K + 1) / (n - K - 1), K counting the noise as a parameter.
    """
    n, k = len(sample.place), parameters + 1
    if n - k - 1 <= 0:
        return None
    variance = max(error / n, (_EXACT * float(sample.speedup.max())) ** 2)
    return n * math.log(variance) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def _fit_doubts(law: Law, sample: _Sample, values: Array, ci95: Mapping[str, tuple[float, float]]) -> list[str]:
    doubts = []
    distinct = _distinct(law, sample.where)
    if distinct <= len(values) + 1:
        what = "places" if law.by_nodes else "worker counts"
        doubts.append(
            f"{_NOT_IDENTIFIABLE}: {distinct} distinct {what} for {len(values)} parameter{'s' * (len(values) > 1)} "
            f"({listed(law.parameters)}); measure at least {len(values) + 2}"
        )
    if LAWS.get(law.name, law).multi_node is not None and not law.by_nodes and sample.where.several_nodes:
        doubts.append("one pair of constants for links inside and across nodes: too few places for two")
    blind = [name for name in law.parameters if not math.isfinite(ci95[name][1] - ci95[name][0])]
    if len(blind) == len(values):
        doubts.append("nothing is known about its uncertainty: no point is left over to see the noise in")
        return doubts
    for i, (name, (lowest, highest)) in enumerate(zip(law.parameters, law.bounds, strict=True)):
        low, high = ci95[name]
        if name in blind:
            doubts.append(f"{_NOT_IDENTIFIABLE}: {name} has no effect at these worker counts")
            continue
        if values[i] in (lowest, highest) and high > low:
            end = high if values[i] == lowest else low
            doubts.append(
                f"{_NOT_IDENTIFIABLE}: {name} is at its bound {values[i]:g}; the other end of its interval is {end:.3g}"
            )
        elif _spans(law, sample.where, values, i, low, high):
            doubts.append(f"{_NOT_IDENTIFIABLE}: the interval of {name} ({low:.3g} to {high:.3g}) spans its range")
        elif math.isfinite(lowest) and low <= lowest and high > low:
            doubts.append(f"{name} cannot be distinguished from {lowest:g} (interval {low:.3g} to {high:.3g})")
    return doubts


def _spans(law: Law, where: Places, values: Array, i: int, low: float, high: float) -> bool:
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


# --- words ------------------------------------------------------------------------------------------------------------


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _ends(interval: tuple[float, float] | None) -> list[float | None] | None:
    return None if interval is None or math.isinf(interval[0]) else [_finite(end) for end in interval]


def _numbers(values: Sequence[float] | Array) -> str:
    """'1, 2 and 4': at most six, then how many more."""
    texts = [f"{value:g}" for value in values]
    if len(texts) > 6:
        texts = [*texts[:5], f"{len(texts) - 5} more"]
    return listed(texts)


def _brief(name: str) -> str:
    """A name as part of a message of one line, control characters made visible."""
    return repr(name if len(name) <= 60 else name[:57] + "...")
