"""Points in, fitted laws with honest intervals out.

Letters: R rows (observations), K distinct worker counts, k parameters of a law, B bootstrap replicates.

The estimate is plain least squares of the law on all rows of speedup against workers, inside the law's bounds:
in closed form for laws that are linear in their parameters, otherwise by `scipy.optimize.least_squares`.

The 95 % interval depends on what was measured, and `interval_method` says which way was gone:

- **Repeats** (at least three runs at every worker count): bootstrap over runs.
  Runs are drawn anew within each worker count, m - 1 out of m, which gives the right variance where drawing m out of m
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
from scipy import optimize, stats

from horovod_study.analysis.laws import LAWS, Array, Law, karp_flatt, usl_bottleneck
from horovod_study.errors import AnalysisError

__all__ = ["ScalingFit", "SeriesFit", "check_points", "fit", "fit_series", "karp_flatt", "off_counts", "point_doubts"]

REPLICATES = 1000
_Z95 = float(stats.norm.ppf(0.975))
_CLEARLY = 2.0  # in log likelihood
_EXACT = 1e-10  # residuals below this share of the largest speedup are rounding, not misfit


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """One law fitted to the speedups of one series; call it with worker counts, shape (N,) -> (N,)."""

    law: Law
    params: Mapping[str, float]
    ci95: Mapping[str, tuple[float, float]]
    workers: tuple[int, int]  # smallest and largest count fitted
    points: int  # rows fitted
    rmse: float  # of speedup, over all rows
    aicc: float | None  # None where there are too few rows for it
    doubts: tuple[str, ...]
    interval_method: str
    _noise: "_Noise" = field(repr=False, compare=False)
    _draws: Array | None = field(default=None, repr=False, compare=False)  # bootstrap replicates (B, k)

    def __call__(self, n: ArrayLike) -> Array:
        return np.asarray(self.law.curve(np.asarray(n, dtype=np.float64), **self.params), dtype=np.float64)

    def interval(self, n: ArrayLike) -> tuple[Array, Array]:
        """95 % band of the curve at worker counts `n`: (low, high), shapes as `n`; never below zero."""
        counts = np.asarray(n, dtype=np.float64)
        flat = np.atleast_1d(counts).ravel()
        centre = np.array(list(self.params.values()))
        values = self(flat)
        reach, stretch = self._noise.reach(self.law.gradient(flat, centre))
        if self._draws is None:
            low, high = values - reach, values + reach
        else:
            low, high = _stretched(values, self.law.at(flat, self._draws), stretch)
        low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
        return low.reshape(counts.shape), high.reshape(counts.shape)

    def extrapolates(self, n: float) -> bool:
        """Whether `n` lies outside the worker counts that were fitted."""
        return not self.workers[0] <= n <= self.workers[1]

    @property
    def peak(self) -> float:
        """Worker count with the highest speedup of this law; inf when it keeps rising."""
        return float(self.law.peak(**self.params))

    @property
    def limit(self) -> float:
        """Speedup that this law never exceeds; inf when there is no such bound."""
        return float(self.law.limit(**self.params))

    def bottleneck(self, n: float | None = None) -> str | None:
        """USL only: whether "contention" or "coherency" costs more at `n` (largest fitted count); else None."""
        if self.law.name != "usl":
            return None
        return usl_bottleneck(self.workers[1] if n is None else n, self.params["alpha"], self.params["beta"])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: params, ci95, rmse, aicc and how the interval was made; null where a number is not known."""
        return {
            "params": {name: _finite(value) for name, value in self.params.items()},
            "ci95": {name: [_finite(low), _finite(high)] for name, (low, high) in self.ci95.items()},
            "rmse": _finite(self.rmse),
            "aicc": _finite(self.aicc),
            "interval_method": self.interval_method,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFit:
    """All laws fitted to one series, the one selected, and every reason to doubt them."""

    name: str
    baseline: str  # what the speedup is relative to, in words
    base_samples_per_s: float  # throughput of one worker of that baseline
    mode: str  # "strong", "weak", "mixed" or "unknown", from the recorded batch sizes
    fits: Mapping[str, ScalingFit]
    selected: str | None
    doubts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of one series as the command line prints it."""
        return {
            "baseline": self.baseline,
            "base_samples_per_s": _finite(self.base_samples_per_s),
            "mode": self.mode,
            "laws": {name: fitted.to_dict() for name, fitted in self.fits.items()},
            "selected": self.selected,
            "doubts": list(self.doubts),
        }


def fit(
    law: Law,
    workers: ArrayLike,
    speedup: ArrayLike,
    *,
    runs: Sequence[Any] | ArrayLike | None = None,
    scaled_by: int | None = None,
    seed: int = 0,
) -> ScalingFit:
    """Fit `law` to rows of (workers (R,), speedup (R,)); every row is one observation.

    `runs` labels the rows of one run (default: every row is a run of its own); the bootstrap draws whole runs.
    `scaled_by` is the worker count whose median throughput the speedups were divided by, when that baseline comes
    from these rows: its noise then belongs to the intervals.
    A law with more parameters than distinct worker counts is fitted in its `reduced` form where it has one.

    Raises AnalysisError when the rows are not numbers above zero, or too few to determine the parameters.
    """
    sample = _sample(workers, speedup, runs, scaled_by, seed)
    return _fit(_solve(law, sample), sample)


def fit_series(
    points: pd.DataFrame,
    *,
    baseline_samples_per_s: float | Mapping[str, float] | None = None,
    seed: int = 0,
) -> dict[str, SeriesFit]:
    """Fit every law to every series of `points`, in the order of their names ("" without a `series` column).

    Columns: workers, samples_per_s (samples/s of all workers); optional series, batch_size (per worker).
    Rows of one worker count are its repeats; `points.attrs["doubts"]` (see points_file) joins the doubts.
    Speedup is throughput over `baseline_samples_per_s` (one number, or one per series name);
    without it, over the median throughput at the smallest worker count divided by that count.

    Raises AnalysisError for rows that are not positive numbers, for a series without its baseline, and for a single
    series with one distinct worker count. Among several series, such a one is returned without fits and says why.
    """
    check_points(points)
    names = points["series"].astype(str) if "series" in points else pd.Series("", index=points.index)
    groups = {str(name): rows for name, rows in points.groupby(names.to_numpy(), sort=True)}
    of_file = tuple(points.attrs.get("doubts", ()))
    return {
        name: _fit_one(name, rows, _baseline_of(name, baseline_samples_per_s), seed, of_file, alone=len(groups) == 1)
        for name, rows in groups.items()
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
        doubts.append(f"only {len(counts)} distinct worker counts ({_numbers(counts)}): laws cannot be told apart")

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


def _fit_one(
    name: str, rows: pd.DataFrame, baseline: float | None, seed: int, of_file: Sequence[str], *, alone: bool
) -> SeriesFit:
    # Sorted, so that neither sums nor drawn runs depend on the order of the rows.
    rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
    n = rows["workers"].to_numpy(dtype=np.float64)
    x = rows["samples_per_s"].to_numpy(dtype=np.float64)
    smallest = int(n[0])
    if baseline is None:
        base = float(np.median(x[n == smallest])) / smallest
        text = f"median of {smallest} worker{'s' * (smallest > 1)} of this series"
        if smallest > 1:
            text += f", divided by {smallest}"
        scaled_by: int | None = smallest
    else:
        base, text, scaled_by = baseline, f"{baseline:g} samples/s (given)", None
    mode, mode_doubts = _mode(rows)
    doubts = [*of_file, *point_doubts(n, x, base), *mode_doubts]
    if baseline is None and smallest > 1:
        doubts.append(
            f"no 1-worker point: amdahl and gustafson take {smallest} workers as perfectly scaled; "
            "give the baseline to have their s"
        )

    fits: dict[str, ScalingFit] = {}
    if n[0] == n[-1]:
        message = _one_count(smallest)
        if alone:
            raise AnalysisError(message if not name else f"series {name!r}: {message}")
        doubts.append(message)
    else:
        sample = _sample(n, x / base, None, scaled_by, seed)
        solved = []
        for law in LAWS.values():
            try:
                solved.append(_solve(law, sample))
            except AnalysisError as error:
                doubts.append(f"{law.name} is not fitted: {error}")
        base_noise = _baseline_noise(solved, sample)
        fits = {each.law.name: _fit(each, sample, base_noise) for each in solved}
    for fitted in fits.values():
        doubts += [f"{fitted.law.name}: {doubt}" for doubt in fitted.doubts]
        if mode not in fitted.law.modes and mode != "unknown":
            doubts.append(f"{fitted.law.name} does not apply to {mode} scaling: its s is not a fraction of anything")
    candidates = {law: f for law, f in fits.items() if mode == "unknown" or mode in f.law.modes}
    selected, why = _select(candidates)
    return SeriesFit(
        name=name,
        baseline=text,
        base_samples_per_s=base,
        mode=mode,
        fits=fits,
        selected=selected,
        doubts=tuple(doubts + why),
    )


def _select(fits: Mapping[str, ScalingFit]) -> tuple[str | None, list[str]]:
    """The law with the fewest parameters within 2 AICc units of the best one; and a doubt where that is no contest.

    Two units is the difference below which a model has as much support as the best (Burnham and Anderson 2002).
    A law of several costs stands back as long as the data show none of them: USL bends to any noise of a straight line.
    """
    shown = {n: f for n, f in fits.items() if not f.law.costs or any(f.ci95[cost][0] > 0 for cost in f.law.costs)}
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


def _mode(rows: pd.DataFrame) -> tuple[str, list[str]]:
    """Scaling mode from the batch size per worker: constant is weak, total constant is strong; and doubts."""
    if "batch_size" not in rows or rows["batch_size"].isna().any():
        return "unknown", []
    batch = rows["batch_size"].to_numpy(dtype=np.float64)
    total = batch * rows["workers"].to_numpy(dtype=np.float64)
    constant, fixed_total = np.ptp(batch) == 0, np.ptp(total) <= 0.01 * total.max()
    if constant:
        # Over a fixed data set the time per epoch then shrinks as in strong scaling, with the same points:
        # both readings of s are legitimate, so neither law is refused.
        return "unknown", []
    if fixed_total:
        return "strong", []
    return "mixed", [f"batch sizes differ ({_numbers(np.unique(batch))}): neither strong nor weak scaling"]


def _baseline_of(name: str, given: float | Mapping[str, float] | None) -> float | None:
    if isinstance(given, Mapping):
        if name not in given:
            raise AnalysisError(f"series {name!r} has no baseline: give one for each of the series, in samples/s")
        given = given[name]
    if given is None:
        return None
    if not (math.isfinite(given) and given > 0):
        raise AnalysisError(f"baseline {given!r} is not a throughput: give samples/s of one worker, above 0")
    return float(given)


def check_points(points: pd.DataFrame) -> None:
    """Raise AnalysisError unless there are rows with worker counts of at least 1 and throughputs above 0."""
    missing = [column for column in ("workers", "samples_per_s") if column not in points]
    if missing:
        raise AnalysisError(f"points without column {missing[0]!r}: needed are 'workers' and 'samples_per_s'")
    if points.empty:
        raise AnalysisError("there are no points to fit: at least 2 distinct worker counts are needed")
    _check_numbers(points["workers"].to_numpy(dtype=np.float64), points["samples_per_s"].to_numpy(dtype=np.float64))


def _check_numbers(n: Array, value: Array) -> None:
    wrong = ~(np.isfinite(n) & (n >= 1))
    if wrong.any():
        raise AnalysisError(f"{n[wrong][0]:g} workers: every point needs a worker count of at least 1")
    wrong = ~(np.isfinite(value) & (value > 0))
    if wrong.any():
        at, bad = n[wrong][0], value[wrong][0]
        raise AnalysisError(f"{bad:g} at {at:g} workers is no throughput: leave out runs without a value above 0")


def _one_count(count: float) -> str:
    return f"all points have {count:g} workers: measure at least 2 distinct worker counts (4 to tell laws apart)"


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
        guilt = clash.sum(axis=0) + clash.sum(axis=1)
        if not guilt.any():
            return off
        worst = guilt == guilt.max()
        off |= set(n[worst].tolist())
        n, x = n[~worst], x[~worst]
    return off


# --- one law ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Rows of one series in the form that all laws share: per worker count and per run."""

    workers: Array  # (R,)
    speedup: Array  # (R,)
    counts: Array  # (K,) distinct worker counts
    rows: Array  # (K,) rows per worker count
    means: Array  # (K,) mean speedup
    within: float  # sum of squares of the rows around their means
    runs: tuple[int, ...]  # (K,) runs per worker count
    run_variance: Array  # (K,) variance of the mean over runs; NaN with one run
    scaled_by: int | None
    drawn: Array | None  # (B, K) bootstrap means, rescaled by their own baseline


def _sample(
    workers: ArrayLike, speedup: ArrayLike, runs: Sequence[Any] | ArrayLike | None, scaled_by: int | None, seed: int
) -> _Sample:
    n, s = np.asarray(workers, dtype=np.float64).ravel(), np.asarray(speedup, dtype=np.float64).ravel()
    if n.shape != s.shape or n.size == 0:
        raise AnalysisError(f"{n.size} worker counts and {s.size} speedups: give one speedup per worker count")
    _check_numbers(n, s)
    labels = np.arange(n.size) if runs is None else pd.factorize(np.asarray(runs), sort=True)[0]
    if labels.shape != n.shape:
        raise AnalysisError(f"{n.size} rows but {labels.size} run labels: give one label per row")
    if scaled_by is not None and not np.any(n == scaled_by):
        raise AnalysisError(f"speedups cannot be scaled by {scaled_by} workers: no row has that worker count")
    order = np.lexsort((s, n)) if runs is None else np.lexsort((s, labels, n))
    n, s, labels = n[order], s[order], labels[order]

    counts, first, rows = np.unique(n, return_index=True, return_counts=True)
    per_run = []  # per worker count: (sum of speedups, rows) of each run
    for start, size in zip(first, rows, strict=True):
        of_run = np.unique(labels[start : start + size], return_inverse=True)[1]
        per_run.append(
            (np.bincount(of_run, s[start : start + size]).astype(np.float64), np.bincount(of_run).astype(np.float64))
        )
    means = np.array([sums.sum() / size.sum() for sums, size in per_run])
    within = float(np.sum((s - np.repeat(means, rows)) ** 2))
    variance = np.array(
        [np.var(sums / size, ddof=1) / len(sums) if len(sums) > 1 else np.nan for sums, size in per_run]
    )
    numbers = tuple(len(sums) for sums, _ in per_run)
    return _Sample(
        workers=n,
        speedup=s,
        counts=counts,
        rows=rows.astype(np.float64),
        means=means,
        within=within,
        runs=numbers,
        run_variance=variance,
        scaled_by=scaled_by,
        drawn=_draw(counts, per_run, scaled_by, seed) if min(numbers) >= 3 and len(counts) > 1 else None,
    )


def _draw(counts: Array, per_run: list[tuple[Array, Array]], scaled_by: int | None, seed: int) -> Array:
    """Bootstrap means (B, K): m - 1 of the m runs of each worker count, drawn with replacement."""
    generator = np.random.default_rng(seed)
    drawn = np.empty((REPLICATES, len(counts)))
    base = np.ones(REPLICATES)
    for i, (sums, size) in enumerate(per_run):
        pick = generator.integers(len(sums), size=(REPLICATES, len(sums) - 1))
        drawn[:, i] = sums[pick].sum(axis=1) / size[pick].sum(axis=1)
        if counts[i] == scaled_by:
            middle = float(np.median(sums / size))
            base = np.median((sums / size)[pick], axis=1) / middle
    return drawn / base[:, np.newaxis]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A law with the parameters of least squares, before the question of how well they are known."""

    law: Law
    values: Array  # (k,)
    error: float  # sum of squares over all rows
    aicc: float | None


def _solve(law: Law, sample: _Sample) -> _Solved:
    if len(sample.counts) < 2:
        raise AnalysisError(_one_count(sample.counts[0]))
    if law.reduced is not None and len(sample.counts) <= len(law.parameters):
        law = law.reduced
    values = _estimate(law, sample)
    _check_determined(law, sample, values)
    error = sample.within + float(np.sum(sample.rows * (sample.means - law.at(sample.counts, values)) ** 2))
    return _Solved(law=law, values=values, error=error, aicc=_aicc(error, sample, len(values)))


def _check_determined(law: Law, sample: _Sample, values: Array) -> None:
    """Raise AnalysisError where the worker counts leave some combination of the parameters open."""
    jacobian = law.gradient(sample.counts, values)
    scale = np.linalg.norm(jacobian, axis=0)
    if np.linalg.matrix_rank(jacobian / np.where(scale > 0, scale, 1), tol=1e-9) < len(values):
        raise AnalysisError(
            f"{_numbers(sample.counts)} workers do not determine {_words(law.parameters)}: measure more worker counts"
        )


def _fit(solved: _Solved, sample: _Sample, base_noise: float = math.inf) -> ScalingFit:
    """Add the intervals; `base_noise` limits the noise of one baseline run, in units of speedup."""
    law, values = solved.law, solved.values
    if sample.drawn is None:
        draws = None
        noise, method = _from_residuals(solved, sample, base_noise)
    else:
        draws = _refit(law, sample, sample.drawn, values)
        noise = _from_repeats(solved, sample)
        method = "bootstrap over runs within each worker count, stretched by Student t for few repeats"
    reach, stretch = noise.reach(np.eye(len(values)))
    low, high = values - reach, values + reach
    if draws is not None:
        # A parameter on its bound stays there in most replicates; what it could be is for the linear theory to say.
        inside = np.array([value not in bounds for value, bounds in zip(values, law.bounds, strict=True)])
        lower, upper = _stretched(values, draws, stretch)
        low, high = np.where(inside, lower, np.minimum(low, lower)), np.where(inside, upper, np.maximum(high, upper))
    ci95 = {
        name: (max(float(low[i]), law.bounds[i][0]), min(float(high[i]), law.bounds[i][1]))
        for i, name in enumerate(law.parameters)
    }
    total = len(sample.workers)
    return ScalingFit(
        law=law,
        params=dict(zip(law.parameters, values.tolist(), strict=True)),
        ci95=ci95,
        workers=(int(sample.counts[0]), int(sample.counts[-1])),
        points=total,
        rmse=math.sqrt(solved.error / total),
        aicc=solved.aicc,
        doubts=tuple(_fit_doubts(law, sample, values, ci95)),
        interval_method=method,
        _noise=noise,
        _draws=draws,
    )


def _estimate(law: Law, sample: _Sample) -> Array:
    """Least squares on all rows, (k,). Rows enter as means per worker count, which has the same minimum."""
    n, weight = sample.counts, np.sqrt(sample.rows)
    lower, upper = (np.array(side) for side in zip(*law.bounds, strict=True))
    if law.linear:
        zero = np.zeros(len(law.parameters))
        target = sample.means - law.at(n, zero)
        solved = optimize.lsq_linear(law.gradient(n, zero) * weight[:, np.newaxis], target * weight, (lower, upper))
        return _snapped(law, sample, np.asarray(solved.x, dtype=np.float64))
    starts = np.clip(law.starts(n, sample.means), lower, upper)
    _check_determined(law, sample, starts[0])
    with np.errstate(all="ignore"):  # its steps may overflow on points that no law of this kind could have made
        solved = optimize.least_squares(
            lambda values: (law.at(n, values) - sample.means) * weight,
            starts[0],
            jac=lambda values: law.gradient(n, values) * weight[:, np.newaxis],
            bounds=(lower, upper),
            x_scale="jac",
            ftol=1e-14,
            xtol=1e-14,
            gtol=1e-14,
        )
    # The trust region stays strictly inside the bounds and may end in a valley of its own: the last digits, a solution
    # on a bound and the comparison with the other starts are ours.
    tried = np.vstack([solved.x, starts]) if np.isfinite(solved.x).all() else starts
    found = _refit(law, sample, np.broadcast_to(sample.means, (len(tried), len(n))), tried, tolerance=1e-13)
    misfit = np.sum(sample.rows * (law.at(n, found) - sample.means) ** 2, axis=1)
    best = int(np.argmax(misfit <= misfit.min() * (1 + 1e-9)))
    return _snapped(law, sample, found[best])


def _snapped(law: Law, sample: _Sample, values: Array) -> Array:
    """Values that differ from a bound or from zero by rounding only, put there."""
    curve = law.at(sample.counts, values)
    for i, (lowest, highest) in enumerate(law.bounds):
        for target in (0.0, lowest, highest):
            if math.isfinite(target):
                moved = np.where(np.arange(len(values)) == i, target, values)
                if np.max(np.abs(law.at(sample.counts, moved) - curve)) < 1e-13 * np.max(sample.means):
                    values = moved
    return values


def _refit(law: Law, sample: _Sample, targets: Array, start: Array, *, tolerance: float = 1e-6) -> Array:
    """Bounded least squares for many sets of means at once: targets (B, K), start (B, k) or (k,) -> parameters (B, k).

    Levenberg-Marquardt with an active set: a parameter that sits on a bound and wants to leave the allowed range is
    held there for the step. `tolerance` is the last step's effect on the curve, relative to the largest target.
    """
    n, weight = sample.counts, sample.rows
    lower, upper = (np.array(side) for side in zip(*law.bounds, strict=True))
    unit = np.eye(len(lower))
    found = np.broadcast_to(start, (len(targets), len(lower))).copy()
    # The rows still moving, with their place in `found`.
    place, values = np.arange(len(targets)), found.copy()
    cost = np.sum(weight * (targets - law.at(n, values)) ** 2, axis=1)
    damping = np.full(len(targets), 0.0 if law.linear else 1e-6)
    close = tolerance * np.max(targets)
    for _ in range(2 if law.linear else 50):
        jacobian = law.gradient(n, values)
        across = np.swapaxes(jacobian * weight[:, np.newaxis], 1, 2)
        descent = (across @ (targets - law.at(n, values))[..., np.newaxis])[..., 0]
        normal = across @ jacobian
        size = np.sqrt(np.einsum("bkk->bk", normal))
        size = np.where(size > 0, size, 1.0)  # columns scaled to one: parameters may differ by many orders
        free = ~(((values <= lower) & (descent < 0)) | ((values >= upper) & (descent > 0)))
        both = free[:, :, np.newaxis] & free[:, np.newaxis, :]
        normal = normal / (size[:, :, np.newaxis] * size[:, np.newaxis, :]) * both
        normal = normal + unit * (~free[:, :, np.newaxis] + damping[:, np.newaxis, np.newaxis] + 1e-15)
        step = np.linalg.solve(normal, (descent / size * free)[..., np.newaxis])[..., 0] / size
        candidates = np.clip(values + step, lower, upper)
        reached = np.sum(weight * (targets - law.at(n, candidates)) ** 2, axis=1)
        better = reached <= cost
        moving = np.max(np.abs(candidates - values) * size, axis=1) > close
        values = np.where(better[:, np.newaxis], candidates, values)
        found[place] = values
        if not moving.any():
            break
        cost = np.where(better, reached, cost)[moving]
        damping = np.where(better, damping / 10, np.maximum(damping, 1e-8) * 10)[moving]
        place, values, targets = place[moving], values[moving], targets[moving]
    return found


# --- intervals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """Covariance of the parameters as a sum over independent sources of noise, each with its degrees of freedom."""

    covariance: Array  # (sources, k, k); inf where nothing is known
    freedom: Array  # (sources,)

    def reach(self, contrasts: Array) -> tuple[Array, Array]:
        """Half width of the 95 % interval of linear contrasts (C, k) of the parameters, and its t/z; shapes (C,)."""
        if not np.isfinite(self.covariance).all():
            return np.full(len(contrasts), np.inf), np.ones(len(contrasts))
        parts = np.maximum(np.einsum("ck,skl,cl->cs", contrasts, self.covariance, contrasts), 0.0)
        variance = parts.sum(axis=1)
        # Satterthwaite: the sum of variances that are each known with their own degrees of freedom.
        blur = np.sum(parts**2 / self.freedom, axis=1)
        degrees = np.divide(variance**2, blur, out=np.full(len(contrasts), np.inf), where=blur > 0)
        t = stats.t.ppf(0.975, np.maximum(degrees, 1.0))
        return t * np.sqrt(variance), t / _Z95


def _from_repeats(solved: _Solved, sample: _Sample) -> _Noise:
    """Noise of the parameters from the spread of the runs at each worker count, one source each."""
    influence = _influence(solved.law.gradient(sample.counts, solved.values), sample.rows)
    if sample.scaled_by is not None:
        at_base = sample.counts == sample.scaled_by
        influence = influence - np.outer(influence @ sample.means, at_base / sample.scaled_by)
    sources = influence * np.sqrt(sample.run_variance)
    return _Noise(covariance=np.einsum("ks,ls->skl", sources, sources), freedom=np.array(sample.runs) - 1.0)


def _from_residuals(solved: _Solved, sample: _Sample, base_noise: float) -> tuple[_Noise, str]:
    """Noise of the parameters from the residuals of the fit, and how it was found.

    The misfit of a wrong law is no noise of the baseline: `base_noise` is an upper limit for the latter.
    """
    k = len(solved.values)
    spread = _residual_spread(solved, sample)
    if spread is None:
        nothing = np.full((1, k, k), np.inf)
        return _Noise(covariance=nothing, freedom=np.ones(1)), "none: no point is left over to see the noise in"
    at_base = _baseline_rows(sample)
    moves = _influence(solved.law.gradient(sample.workers, solved.values), np.ones(len(sample.workers)))
    if at_base.any():
        # A baseline run moves its own point and, the other way, all points.
        moves = moves - np.outer(moves @ sample.speedup, at_base / (at_base.sum() * sample.speedup[at_base].mean()))
    size = np.where(at_base, np.minimum(spread.size, base_noise), spread.size)
    parts = [(moves * size)[:, at_base == which] for which in (False, True)]
    return (
        _Noise(covariance=np.stack([part @ part.T for part in parts]), freedom=np.full(2, float(spread.freedom))),
        f"Student t from the residuals, noise {spread.model} (too few repeats for a bootstrap over runs)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spread:
    """Noise of single rows, from residuals."""

    model: str
    size: Array  # (R,) standard deviations of the speedups
    freedom: int


def _residual_spread(solved: _Solved, sample: _Sample) -> _Spread | None:
    """Noise of the rows: proportional to the speedup, unless constant noise is clearly likelier; None without a rest.

    Residuals are taken orthogonal to what the parameters and the common scale of all points can do,
    which leaves sigma^2 with as many degrees of freedom as directions remain (restricted likelihood).
    """
    n, s = sample.workers, sample.speedup
    curve = solved.law.at(n, solved.values)
    columns = solved.law.gradient(n, solved.values)
    if sample.scaled_by is not None:
        columns = np.column_stack([columns, curve])
    columns = columns / np.linalg.norm(columns, axis=0)
    fits = []
    for model, unit in (("proportional to the speedup", np.maximum(curve, 1e-3 * s)), ("constant", np.ones_like(s))):
        basis, strength, _ = np.linalg.svd(columns / unit[:, np.newaxis], full_matrices=False)
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
        fits.append((likelihood, _Spread(model=model, size=unit * math.sqrt(variance), freedom=freedom)))
    (proportional, relative), (constant, absolute) = fits
    if constant > proportional + _CLEARLY:
        return absolute
    if proportional > constant + _CLEARLY:
        return relative
    return replace(
        relative, model="proportional to the speedup or constant", size=np.maximum(relative.size, absolute.size)
    )


def _baseline_rows(sample: _Sample) -> NDArray[np.bool_]:
    if sample.scaled_by is None:
        return np.zeros(len(sample.workers), dtype=bool)
    return np.asarray(sample.workers == sample.scaled_by)


def _baseline_noise(solved: Sequence[_Solved], sample: _Sample) -> float:
    """Noise of one baseline run in units of speedup, as the law with the best AICc leaves it; inf when none says."""
    scored = [each for each in solved if each.aicc is not None]
    at_base = _baseline_rows(sample)
    if not scored or not at_base.any():
        return math.inf
    spread = _residual_spread(min(scored, key=lambda each: each.aicc or 0.0), sample)
    return math.inf if spread is None else float(spread.size[at_base].max())


def _influence(jacobian: Array, weight: Array) -> Array:
    """d parameters / d points, (k, points): the weighted pseudo-inverse of the Jacobian (points, k)."""
    root = np.sqrt(weight)
    scale = np.linalg.norm(jacobian * root[:, np.newaxis], axis=0)
    inverse = np.linalg.pinv(jacobian * root[:, np.newaxis] / scale)
    return np.asarray(inverse * root / scale[:, np.newaxis], dtype=np.float64)


def _stretched(values: Array, drawn: Array, stretch: Array) -> tuple[Array, Array]:
    """Percentile interval of replicates (B, C) around `values` (C,), widened by `stretch` (C,)."""
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return (
        np.minimum(values, values + (low - values) * stretch),
        np.maximum(values, values + (high - values) * stretch),
    )


def _aicc(error: float, sample: _Sample, parameters: int) -> float | None:
    """Akaike's criterion for least squares with the small-sample term (Hurvich and Tsai 1989).

    n log(RSS / n) + 2 K + 2 K (K + 1) / (n - K - 1), K counting the noise as a parameter.
    """
    n, k = len(sample.workers), parameters + 1
    if n - k - 1 <= 0:
        return None
    variance = max(error / n, (_EXACT * float(sample.speedup.max())) ** 2)
    return n * math.log(variance) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def _fit_doubts(law: Law, sample: _Sample, values: Array, ci95: Mapping[str, tuple[float, float]]) -> list[str]:
    doubts = []
    if len(sample.counts) <= len(values) + 1:
        doubts.append(
            f"not identifiable: {len(sample.counts)} distinct worker counts for {len(values)} "
            f"parameter{'s' * (len(values) > 1)} ({_words(law.parameters)}); measure at least {len(values) + 2}"
        )
    for i, (name, (lowest, highest)) in enumerate(zip(law.parameters, law.bounds, strict=True)):
        low, high = ci95[name]
        if not math.isfinite(high - low):
            doubts.append(
                f"nothing is known about the uncertainty of {name}: no point is left over to see the noise in"
            )
            continue
        # What the parameter could be at all: a fraction, or for beta a cost as large as the work itself.
        span = min(highest - lowest, 1.0 if name != "beta" else 1.0 / float(sample.counts[-1]))
        if values[i] in (lowest, highest) and high > low:
            end = high if values[i] == lowest else low
            doubts.append(
                f"not identifiable: {name} sits on its bound {values[i]:g}; the other end of its interval is {end:.3g}"
            )
        elif math.isfinite(lowest) and name != "gamma" and high - low >= 0.9 * span:
            doubts.append(f"not identifiable: the interval of {name} ({low:.3g} to {high:.3g}) spans its range")
        elif math.isfinite(lowest) and low <= lowest and high > low:
            doubts.append(f"{name} cannot be told from {lowest:g} (interval {low:.3g} to {high:.3g})")
    return doubts


# --- words ------------------------------------------------------------------------------------------------------------


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _numbers(values: Sequence[float] | Array) -> str:
    """'1, 2 and 4': at most six, then how many more."""
    texts = [f"{value:g}" for value in values]
    if len(texts) > 6:
        texts = [*texts[:5], f"{len(texts) - 5} more"]
    return _words(texts)


def _words(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
