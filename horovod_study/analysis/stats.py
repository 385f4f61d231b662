"""The statistics of repeated measurements: one interval, and the tests and estimates that everything else is made of.

A kit: it imports nothing of this package but the errors, and both wings use it (docs/architecture.md, "The walls").
Letters: n independent values, R repeats, k samples, B draws. What is not known is NaN here and null in documents.
Quantiles and tails come from scipy.special, which loads in a fraction of the time that scipy.stats takes, and only when
one is asked for: that time is half of that of a short command.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from horovod_study.errors import AnalysisError

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
"""Level of intervals where no other one is named."""
ALPHA = 0.05
"""A p below it, corrected by `holm`, is taken for a difference."""
POWER = 0.8
"""How likely a true difference is resolved with the number of blocks that is advised."""
MIN_REPEATS = 3
"""Repeats that an interval takes."""
MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of a normal sample over the variance of its mean, in the limit of many values."""
EXACT_UP_TO = 16
_PATTERNS = 20_000
"""Patterns of signs that are drawn when there are too many values to try all."""
OF_INTEREST = 0.01
"""The relative difference for which the number of blocks is given when nothing is resolved."""
_TRIM = 0.2
"""Share of the values that a trimmed mean leaves out at either end."""
_NO_SCATTER, _NO_DIFFERENCE = 1e-14, 1e-12  # what rounding leaves of values of order one


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A number with its confidence interval; NaN for what is not known, infinite for an end that is open."""

    DOCUMENT = "value low high"

    value: float
    low: float = math.nan
    high: float = math.nan
    level: float = LEVEL
    p: float = math.nan  # two-sided, of no difference; NaN where that was not tested
    n: int = 0  # independent values, pairs or blocks that it rests on; 0 where they are not counted

    @property
    def known(self) -> bool:
        """Whether both ends are known and finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def width(self) -> float:
        """Distance of the ends."""
        return self.high - self.low

    def excludes(self, value: float) -> bool:
        """Return whether `value` is outside; False where an end that would tell is not known."""
        return self.low > value or self.high < value

    def exp(self) -> "Interval":
        """Return the interval of exp of what this one is the interval of."""
        return replace(self, value=math.exp(self.value), low=math.exp(self.low), high=math.exp(self.high))

    def negated(self) -> "Interval":
        """Return the interval of the negative."""
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    def named(self, value: str, low: str, high: str) -> dict[str, float]:
        """Return value and ends under the names of columns."""
        return {value: self.value, low: self.low, high: self.high}


def finite_or_none(value: float) -> float | None:
    """Return a number as documents have it: None for one that is not finite."""
    return value if math.isfinite(value) else None


# --------------------------------------------------------------------------------------------------- distributions


@overload
def t_quantile(p: float, freedom: float) -> float: ...
@overload
def t_quantile(p: float, freedom: Floats) -> Floats: ...
def t_quantile(p: float, freedom: float | Floats) -> float | Floats:
    """Return where Student's t with `freedom` degrees of freedom, any shape, is below with probability `p`.

    Infinite degrees of freedom are the normal distribution; none, or NaN, give NaN.
    """
    from scipy import special

    found = np.where(np.isposinf(freedom), special.ndtri(p), special.stdtrit(freedom, p))
    return found if found.ndim else float(found)


def t_p(difference: float, error: float, freedom: float) -> float:
    """Return the two-sided p of a `difference` with a standard error, Student's t with `freedom` degrees of freedom.

    For values of order one, such as logarithms of ratios: without any scatter but rounding p is 1 where the difference
    is rounding too, else 0.
    """
    from scipy import special

    if error < _NO_SCATTER:
        return float(abs(difference) < _NO_DIFFERENCE)
    return float(2 * special.stdtr(freedom, -abs(difference) / error))


def lack_of_fit_p(misfit: float, within: float, freedom: tuple[int, int]) -> float:
    """Return the p of the F test for lack of fit: means of groups miss a curve by more than groups scatter.

    `misfit` and `within` are the sums of squares of the means about the curve and of the values about their means, with
    `freedom` degrees of freedom each; independent normal scatter of one variance (N. Draper and H. Smith, Applied
    Regression Analysis, 1998, section 2.1). Without any scatter every misfit counts: 0.
    """
    from scipy import special

    if within <= 0:
        return 0.0
    return float(special.fdtrc(*freedom, misfit / freedom[0] / (within / freedom[1])))


# --------------------------------------------------------------------------------------------------- Student and Welch


Z95 = 1.959963984540054
"""Half of a 95 % interval in standard errors that are known exactly; a number, so that nothing is loaded for it."""


def stretch(freedom: float) -> float:
    """Return t over z of 95 % intervals: how much wider `freedom` degrees of freedom make one of a known variance."""
    return t_quantile(0.5 + LEVEL / 2, freedom) / Z95


@overload
def half_width(error: float, freedom: float, level: float = LEVEL) -> float: ...
@overload
def half_width(error: Floats, freedom: float | Floats, level: float = LEVEL) -> Floats: ...
def half_width(error: float | Floats, freedom: float | Floats, level: float = LEVEL) -> float | Floats:
    """Return half of Student's interval of an estimate with a standard error of `freedom` degrees of freedom."""
    return t_quantile(0.5 + level / 2, freedom) * error


def around(value: float, error: float, freedom: float, level: float = LEVEL) -> Interval:
    """Return Student's interval of an estimate with a standard error of `freedom` degrees of freedom."""
    half = half_width(error, freedom, level)
    return Interval(value=value, low=value - half, high=value + half, level=level)


def standard_error(values: ArrayLike, axis: int = -1) -> Any:
    """Return the standard error of the mean of n independent values along `axis`; NaN for fewer than two."""
    table = np.asarray(values, dtype=float)
    if table.shape[axis] < 2:
        return np.full(np.delete(table.shape, axis), math.nan)
    return table.std(axis=axis, ddof=1) / math.sqrt(table.shape[axis])


def student(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Return the mean of `values` (n,) with Student's interval; no ends for a single value.

    mean -+ t s / sqrt(n) for independent normal values (Student, Biometrika 6, 1908, 1-25).
    """
    flat = np.asarray(values, dtype=float)
    n, mean, half = len(flat), float(flat.mean()), math.nan
    if n > 1:
        half = t_quantile(0.5 + level / 2, float(n - 1)) * float(flat.std(ddof=1)) / math.sqrt(n)
    return Interval(value=mean, low=mean - half, high=mean + half, level=level, n=n)


def together(estimates: Sequence[Interval]) -> Interval:
    """Return Student's interval of the mean of independent estimates from their scatter; a single one as it is."""
    return estimates[0] if len(estimates) == 1 else student([each.value for each in estimates])


def difference(a: Interval, b: Interval) -> Interval:
    """Return a - b of two independent estimates; what their intervals reach to adds like independent errors do.

    The square-and-add interval of G. Y. Zou and A. Donner, Stat. Med. 27, 2008, 1693-1702.
    """
    value = a.value - b.value
    return Interval(
        value=value,
        low=value - math.hypot(a.value - a.low, b.high - b.value),
        high=value + math.hypot(a.high - a.value, b.value - b.low),
    )


def variance_of_mean(values: ArrayLike) -> float:
    """Return the variance of the mean of n >= 2 independent values (n,)."""
    flat = np.asarray(values, dtype=float)
    return float(flat.var(ddof=1)) / len(flat)


@overload
def welch(variances: Sequence[float], sizes: ArrayLike) -> tuple[float, float]: ...
@overload
def welch(variances: Floats, sizes: ArrayLike) -> tuple[Any, Any]: ...
def welch(variances: Sequence[float] | Floats, sizes: ArrayLike) -> tuple[Any, Any]:
    """Return the variance of a sum of independent means, and its degrees of freedom.

    `variances` (k, ...) are those of the means, each known from `sizes` (k,) values: f = (sum v)^2 / sum v^2 / (n - 1)
    (B. L. Welch, Biometrika 34, 1947, 28-35; F. E. Satterthwaite, Biometrics Bull. 2, 1946, 110-114); 1, the fewest,
    where nothing scatters.
    """
    each = np.asarray(variances, dtype=float)
    freedom = np.maximum(np.asarray(sizes) - 1, 1).reshape(-1, *[1] * (each.ndim - 1))
    squares = each**2 / freedom
    if each.ndim == 1:  # exact, so that the order of the means does not reach the last bits
        total, spread = math.fsum(each), math.fsum(squares)
        return total, total**2 / spread if spread > 0 else 1.0
    total, spread = each.sum(axis=0), squares.sum(axis=0)
    return total, np.divide(total**2, spread, out=np.ones_like(total), where=spread > 0)


def log_contrast(parts: Sequence[tuple[int, ArrayLike]]) -> Interval:
    """Return exp(sum of sign x mean ln x) over independent parts, (sign, positive values (n,)) each, with its p.

    Two parts of opposite sign: Welch's t test of a ratio of geometric means. One part: Student's of a mean ratio. More:
    the same for any such sum, see `welch`. No ends and no p where a part has fewer than MIN_REPEATS values.
    """
    # Sorted, so that the order of runs does not reach the last bits.
    logs = [(sign, np.log(np.sort(np.asarray(values, dtype=np.float64)))) for sign, values in parts]
    centre = math.fsum(sign * float(values.mean()) for sign, values in logs)
    sizes = [len(values) for _, values in logs]
    if min(sizes) < MIN_REPEATS:
        return Interval(value=math.exp(centre), n=min(sizes))
    variance, freedom = welch([variance_of_mean(values) for _, values in logs], sizes)
    error = math.sqrt(variance)
    found = around(centre, error if error >= _NO_SCATTER else 0.0, freedom).exp()
    return replace(found, p=t_p(centre, error, freedom), n=min(sizes))


def median_ratio(x: ArrayLike, base: ArrayLike | None = None) -> Interval:
    """Return median(x), or median(x) / median(base), of positive repeats, (R,) each, with its 95 % interval.

    Student's t on logarithms with Welch's degrees of freedom, around the medians and widened for them by pi/2 in
    variance; no ends with fewer than MIN_REPEATS on either side. Resampling three repeats can never leave
    their range, which holds the true median in only three cases of four: hence no bootstrap here.
    Over 3 to 20 normally scattered repeats it covers in 96 to 98 % of the cases (tests/test_stats.py).
    """
    logs = [np.log(np.asarray(each, dtype=float)) for each in ((x,) if base is None else (x, base))]
    sizes = [len(each) for each in logs]
    if not min(sizes):
        return Interval(value=math.nan)
    centre = float(np.median(logs[0])) - (float(np.median(logs[1])) if base is not None else 0.0)
    if min(sizes) < MIN_REPEATS:
        return Interval(value=math.exp(centre), n=min(sizes))
    variance, freedom = welch([variance_of_mean(each) for each in logs], sizes)
    return replace(around(centre, math.sqrt(MEDIAN_VARIANCE * variance), freedom).exp(), n=min(sizes))


def spread(values: ArrayLike) -> dict[str, float]:
    """Return median, min, max, and the ends low and high of `median_ratio`, of repeats (R,); NaN for what is not known.

    The interval is one of logarithms: repeats that are not all positive have none.
    """
    known = np.asarray(values, dtype=float)
    if not len(known):
        return dict.fromkeys(("median", "min", "max", "low", "high"), math.nan)
    least, most = float(known.min()), float(known.max())
    found = median_ratio(known) if least > 0 else Interval(value=math.nan)
    return {"median": float(np.median(known)), "min": least, "max": most, "low": found.low, "high": found.high}


def moderated_ratio(differences: Floats, pooled: float, prior: float, level: float = LEVEL) -> Interval:
    """Return exp of the mean of `differences` (n,) of logarithms; their variance leans on a `pooled` one.

    The moderated t of Smyth 2004 ("Linear models and empirical Bayes methods ..."): the variance
    (D s0 + (n - 1) s) / (D + n - 1) with D + n - 1 degrees of freedom, s the variance of the differences, s0 the
    `pooled` one, D the `prior`. Where they scatter more, their own variance holds. Without s0 (NaN) it is Student's.
    """
    n = len(differences)
    if n == 0:
        return Interval(value=math.nan, level=level)
    centre = float(np.mean(differences))
    own = float(np.var(differences, ddof=1)) if n > 1 else 0.0
    if math.isnan(pooled):
        if n < 2:
            return Interval(value=math.exp(centre), level=level, n=n)
        variance, freedom = own, n - 1.0
    else:
        freedom = prior + n - 1
        variance = max(own, (prior * pooled + (n - 1) * own) / freedom)
    return replace(around(centre, math.sqrt(variance / n), freedom, level).exp(), n=n)


# --------------------------------------------------------------------------------------------------- typical values


def of_all(values: ArrayLike, what: Callable[[Floats], Any] = np.median) -> float:
    """Return `what` of the values of all repeats (R,), by default their median; NaN where one is not known, or none."""
    numbers = np.asarray(values, dtype=float)
    return float(what(numbers)) if len(numbers) and np.isfinite(numbers).all() else math.nan


def geometric_mean(values: ArrayLike) -> float:
    """Return the geometric mean of positive values (n,)."""
    return float(np.exp(np.log(values).mean()))


def normal_deviation(away: Floats) -> float:
    """Return 1.4826 times the median of distances (n,): the standard deviation where they are of a normal variable."""
    return 1.4826 * float(np.median(away))


def order_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Return the median of `values` (n,) and the order statistics that enclose the true one with at least `level`.

    Exact for any distribution, by the binomial (W. Conover, Practical Nonparametric Statistics, 1999, section 3.2). No
    ends where n is too small for the level: below six values for 95 %.
    """
    from scipy import special

    ordered = np.sort(np.asarray(values, dtype=float))
    n, middle = len(ordered), float(np.median(ordered))
    # As many may be outside on either side.
    cut = int((special.bdtr(np.arange(n), n, 0.5) <= (1 - level) / 2).sum()) - 1
    low, high = (float(ordered[cut]), float(ordered[n - 1 - cut])) if cut >= 0 else (math.nan, math.nan)
    return Interval(value=middle, low=low, high=high, level=level, n=n)


def trimmed_mean(values: ArrayLike) -> tuple[float, float, float]:
    """Return the mean of `values` (n,) without the smallest and largest fifth, its standard error, and h - 1.

    Student's t with h - 1 degrees of freedom, h values being left, and the standard error s_w / ((1 - 2 * 0.2) sqrt(n))
    of the winsorised values: Tukey and McLaughlin (Sankhya A 25, 1963, 331). The error of a single value is 0.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    cut = int(_TRIM * n)
    mean = float(ordered[cut : n - cut].mean())
    freedom = float(n - 2 * cut - 1)
    if n < 2:
        return mean, 0.0, freedom
    winsorised = np.clip(ordered, ordered[cut], ordered[-1 - cut])
    return mean, float(winsorised.std(ddof=1)) / ((1 - 2 * cut / n) * math.sqrt(n)), freedom


def percentiles(value: float, draws: Floats) -> Interval:
    """Return `value` with the percentile interval of its draws (B,) of a bootstrap."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value=value, low=float(low), high=float(high))


def bootstrap_means(table: Floats, generator: np.random.Generator, resamples: int) -> list[Interval]:
    """Return the mean of each column of `table` (n, columns) with its interval over common resamples of the n rows.

    Expanded percentiles (T. Hesterberg, The American Statistician 69, 2015, 371-386, section 5.2): the percentiles are
    moved out until the intervals of normal values are Student's.
    """
    from scipy import special

    n = len(table)
    weights = generator.multinomial(n, np.full(n, 1 / n), size=resamples) / n  # (resamples, n)
    tail = float(special.ndtr(math.sqrt(n / (n - 1)) * t_quantile(0.025, n - 1.0)))
    lows, highs = np.quantile(weights @ table, (tail, 1 - tail), axis=0)
    return [
        Interval(value=float(value), low=float(low), high=float(high), n=n)
        for value, low, high in zip(table.mean(axis=0), lows, highs, strict=True)
    ]


# --------------------------------------------------------------------------------------------------- pairs and families


def sign_flip_p(values: ArrayLike, *, seed: int = 1) -> Floats:
    """Return the two-sided p of the mean of `values` (..., n) under independent flips of sign, shape (...).

    Were a pair alike, each difference could as well have come out the other way round. Up to EXACT_UP_TO values all 2^n
    patterns are tried; beyond, _PATTERNS drawn ones and the observed one, which keeps the test valid (B. Phipson and
    G. Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010, article 39).
    """
    flat = np.asarray(values, dtype=float)
    n = flat.shape[-1]
    observed = np.abs(flat.sum(axis=-1))
    # Sums that differ in their last bits are equal: the order of the terms differs.
    limit = observed - 1e-12 * np.abs(flat).sum(axis=-1)
    if n <= EXACT_UP_TO:  # all patterns with the first sign fixed are enough: the others mirror them
        numbers = np.arange(2 ** (n - 1))[:, None]
        signs = np.hstack([np.ones((len(numbers), 1)), 1.0 - 2.0 * ((numbers >> np.arange(n - 1)) & 1)])
    else:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(_PATTERNS, n))
    sums = np.abs(flat @ signs.T)  # (..., patterns)
    drawn = int(n > EXACT_UP_TO)
    reached = (sums >= limit[..., None]).sum(axis=-1)
    return np.asarray((drawn + reached) / (drawn + len(signs)), dtype=float)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedRatio:
    """B/A over n pairs: the geometric mean with Student's interval on logarithms and the p of `sign_flip_p`."""

    DOCUMENT = "ratio=ratio.value low=ratio.low high=ratio.high p=ratio.p blocks=ratio.n exact log_sd"

    ratio: Interval
    log_sd: float | None  # standard deviation of the log ratios; None for a single pair

    @property
    def exact(self) -> bool:
        """Whether every pattern of signs was tried."""
        return self.ratio.n <= EXACT_UP_TO


def paired_ratio(a: ArrayLike, b: ArrayLike, *, seed: int = 1) -> PairedRatio:
    """Return B/A over n pairs of positive values `a` and `b`, both (n,); AnalysisError where one is not positive."""
    ones, others = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if not ones.size or not all(np.isfinite(each).all() and (each > 0).all() for each in (ones, others)):
        raise AnalysisError("compare: a block holds a value that is not a positive number; run that block again")
    logs = np.log(others / ones)
    found = student(logs)
    low, high = (float(np.exp(end)) for end in (found.low, found.high))
    value, p = float(np.exp(logs.mean())), float(sign_flip_p(logs, seed=seed))
    return PairedRatio(
        ratio=Interval(value=value, low=low, high=high, p=p, n=len(logs)),
        log_sd=float(logs.std(ddof=1)) if len(logs) > 1 else None,
    )


def holm(values: Sequence[float]) -> list[float]:
    """Return the adjusted p of each of `values`, in their order (S. Holm, Scand. J. Statist. 6, 1979, 65-70)."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
    return adjusted


def smallest_p(blocks: int, tests: int = 1) -> float:
    """Return the smallest p after Holm that so many blocks can reach in the first of so many tests: 2 / 2^n each."""
    return min(1.0, tests * 2.0 ** (1 - blocks))


def fewest_blocks(tests: int) -> int:
    """Return how many blocks a sign-flip test needs for a p below ALPHA after Holm over so many tests."""
    blocks = 2
    while smallest_p(blocks, tests) >= ALPHA:
        blocks += 1
    return blocks


def needed_blocks(log_sd: float, difference: float = OF_INTEREST, *, tests: int = 1) -> int:
    """Return how many blocks resolve a true relative `difference` with the probability POWER.

    The usual count for a paired t test, n = ((t(1 - ALPHA/2/tests, n-1) + t(POWER, n-1)) sd / ln(1 + difference))^2,
    solved for n; never fewer than the permutation test needs. `log_sd`: standard deviation of the log ratios.
    """
    shift = math.log1p(difference)
    most = 10_000_000  # of what is not finite, or next to nothing

    def enough(n: int) -> bool:
        t = t_quantile(1 - ALPHA / 2 / tests, n - 1.0) + t_quantile(POWER, n - 1.0)
        return n >= (t * log_sd / shift) ** 2

    return max(fewest_blocks(tests), 2 + bisect_left(range(2, most), True, key=enough))
