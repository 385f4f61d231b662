"""Two configurations compared block by block: which is faster, by how much, and whether the runs can tell.

A block is one run of A and one of B, one right after the other. What both share - the temperature, a neighbour, a slow
drift of the machine - cancels in the ratio of their throughputs, so the ratios of the blocks are what is analysed:

    effect      geometric mean of the block ratios B/A
    interval    Student's t on the logarithms of the ratios, 95 %
    p           sign-flip permutation test on their mean: were A and B alike, each block could as well have come out the
                other way round (R. A. Fisher, The Design of Experiments, 1935, section 21). Every pattern of signs is
                tried up to EXACT_UP_TO blocks, a seeded sample of patterns beyond
    Holm        p over all worker counts together (S. Holm, Scand. J. Statist. 6, 1979, 65-70)

Why t and not a bootstrap: with the usual ten blocks a percentile interval is too narrow, and a bootstrap-t divides by
the spread of resamples that hold the same block many times (T. Hesterberg, The American Statistician 69, 2015,
371-386); logarithms of ratios of neighbouring runs are close to symmetric, which is what t needs.

Where single blocks stand apart (a launch that fell into a slow mode), they count in the mean as they should, and make
its interval wide. What is typical is then told beside it: the median of the ratios with its exact interval from order
statistics (binomial; W. Conover, Practical Nonparametric Statistics, 1999, section 3.2): an odd block cannot move it.

A difference is resolved when p after Holm is below ALPHA and one of the two intervals leaves out 1. Letter: n blocks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from horovod_study.errors import AnalysisError

Floats = NDArray[np.float64]

ALPHA = 0.05
POWER = 0.8
"""How likely a true difference is resolved with the number of blocks that is advised."""
EXACT_UP_TO = 16
PATTERNS = 20_000
"""Patterns of signs that are drawn when there are too many to try all."""
OF_INTEREST = 0.01
"""The difference for which the number of blocks is given when nothing is resolved."""
ALIKE = 1e-4
"""Losses of the first steps that agree to this part: rounding differs between ways to add, and little else does."""
ODD_ONE = 5.0
"""A block is odd when its log ratio lies so many times the usual deviation (1.4826 MAD) from the median, ..."""
ODD_LEAST = 0.05
"""... and at least so far from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """B/A of one quantity over n blocks, both as geometric means; the interval is None for a single block."""

    ratio: float
    low: float | None
    high: float | None
    p: float
    blocks: int
    exact: bool  # every pattern of signs was tried
    log_sd: float | None  # standard deviation of the log ratios

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "blocks": self.blocks,
            "exact": self.exact,
            "log_sd": self.log_sd,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class CountResult:
    """The comparison at one worker count."""

    workers: int
    samples_per_s: tuple[float, float]  # A, B: geometric means over the blocks
    speed: Ratio  # of samples/s
    typical: tuple[float, float | None, float | None]  # median and interval; None with under six blocks
    odd: tuple[int, ...]  # numbers of the blocks that stand apart
    p_holm: float
    resolved: bool
    ratios: tuple[float, ...]  # of samples/s, one per block, in their order
    block_numbers: tuple[int, ...]
    stability: tuple[float, float]  # A, B: median over the blocks of p90/median of the step
    spread: Ratio  # of p90/median of the step
    step_ms: tuple[float, float]  # A, B: median over the blocks of the median step
    unpaired_p: float | None  # Welch's test of the same runs as if they had no partners
    needed: int | None  # blocks that would resolve OF_INTEREST; None when the spread is not known
    verdict: str
    doubts: tuple[str, ...]

    @property
    def shown(self) -> tuple[float, float | None, float | None]:
        """The ratio to show with its interval: the mean, or what is typical where blocks stand apart."""
        return self.typical if self.odd else (self.speed.ratio, self.speed.low, self.speed.high)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "workers": self.workers,
            "a_samples_per_s": self.samples_per_s[0],
            "b_samples_per_s": self.samples_per_s[1],
            **self.speed.to_dict(),
            "p_holm": self.p_holm,
            "typical_ratio": self.typical[0],
            "typical_low": self.typical[1],
            "typical_high": self.typical[2],
            "odd_blocks": list(self.odd),
            "resolved": self.resolved,
            "b_faster_in": sum(ratio > 1 for ratio in self.ratios),
            "ratios": list(self.ratios),
            "block_numbers": list(self.block_numbers),
            "a_step_ms_median": self.step_ms[0],
            "b_step_ms_median": self.step_ms[1],
            "a_p90_over_median": self.stability[0],
            "b_p90_over_median": self.stability[1],
            "p90_over_median": self.spread.to_dict(),
            "unpaired_p": self.unpaired_p,
            "blocks_for_one_percent": self.needed,
            "verdict": self.verdict,
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """Whether A and B learned the same."""

    same_parameters: bool  # bit for bit, in every block
    first_steps: int  # whose losses were compared; 0: none were recorded
    loss_difference: float | None  # largest relative one over these steps
    test_mse: tuple[float, float]  # A, B: means over the runs
    test_difference: float | None  # largest relative one within a block

    @property
    def alike(self) -> bool | None:
        """Whether the first losses agree to ALIKE; None where none were recorded."""
        if self.same_parameters:
            return True
        return None if self.loss_difference is None else self.loss_difference <= ALIKE

    @property
    def text(self) -> str:
        """The finding in words."""
        if self.same_parameters:
            return "both learn the same: the parameters at the end agree bit for bit"
        end = "" if self.test_difference is None else f"; the test MSE at the end differs by up to {self._end}"
        if self.loss_difference is None:
            return f"losses of the first steps were not recorded{end}"
        found = (
            f"the losses of the first {self.first_steps} steps differ by up to {self.loss_difference:.1e} of their size"
        )
        if self.alike:
            return f"both learn the same: {found}{end} (rounding grows with the steps)"
        return f"they do not learn the same: {found}, more than rounding explains{end}"

    @property
    def _end(self) -> str:
        assert self.test_difference is not None
        return f"{self.test_difference:.2%}".replace("%", " %")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "same_parameters": self.same_parameters,
            "alike": self.alike,
            "first_steps": self.first_steps,
            "loss_difference": self.loss_difference,
            "a_test_mse": _finite(self.test_mse[0]),
            "b_test_mse": _finite(self.test_mse[1]),
            "test_mse_difference": self.test_difference,
            "text": self.text,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The whole comparison: one result per worker count, and whether both learned the same."""

    counts: tuple[CountResult, ...]
    learning: Learning

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"workers": [each.to_dict() for each in self.counts], "learning": self.learning.to_dict()}

    def lines(self) -> list[str]:
        """Return a table and the verdicts in words."""
        heads = (
            "workers",
            "blocks",
            "A samples/s",
            "B samples/s",
            "B/A",
            "95 % interval",
            "p",
            "p (Holm)",
            "p90/med A, B",
        )
        rows = [
            (
                f"{each.workers}",
                f"{each.speed.blocks}",
                f"{each.samples_per_s[0]:,.0f}",
                f"{each.samples_per_s[1]:,.0f}",
                f"{each.speed.ratio:.3f}",
                "-" if each.speed.low is None else f"{each.speed.low:.3f} - {each.speed.high:.3f}",
                f"{each.speed.p:.4f}",
                f"{each.p_holm:.4f}",
                f"{each.stability[0]:.2f}, {each.stability[1]:.2f}",
            )
            for each in self.counts
        ]
        widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
        table = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)
        ]
        verdicts = [f"{_plural(each.workers, 'worker')}: {each.verdict}" for each in self.counts]
        doubts = [f"doubt, {_plural(each.workers, 'worker')}: {doubt}" for each in self.counts for doubt in each.doubts]
        return [*table, "", *verdicts, self.learning.text, *doubts]


# ------------------------------------------------------------------------------------------------------ statistics


def sign_flip_p(values: ArrayLike, *, seed: int = 1) -> Floats:
    """Return the two-sided p of the mean of `values` (..., n) under independent flips of sign, shape (...).

    Up to EXACT_UP_TO values all 2^n patterns are tried; beyond, PATTERNS drawn ones and the observed one, which keeps
    the test valid (B. Phipson and G. Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010, article 39).
    """
    flat = np.asarray(values, dtype=float)
    n = flat.shape[-1]
    observed = np.abs(flat.sum(axis=-1))
    # Sums that differ in their last bits are equal: the order of the terms differs.
    limit = observed - 1e-12 * np.abs(flat).sum(axis=-1)
    signs = _patterns(n, seed)
    sums = np.abs(flat @ signs.T)  # (..., patterns)
    reached = (sums >= limit[..., None]).sum(axis=-1)
    if n <= EXACT_UP_TO:
        return np.asarray(reached / len(signs), dtype=float)
    return np.asarray((1 + reached) / (1 + len(signs)), dtype=float)


def _patterns(n: int, seed: int) -> Floats:
    """Return signs (patterns, n). All patterns with the first sign fixed are enough: the others mirror them."""
    if n <= EXACT_UP_TO:
        numbers = np.arange(2 ** (n - 1))[:, None]
        rest = 1.0 - 2.0 * ((numbers >> np.arange(n - 1)) & 1)
        return np.hstack([np.ones((len(numbers), 1)), rest])
    return np.asarray(np.random.default_rng(seed).choice([-1.0, 1.0], size=(PATTERNS, n)), dtype=float)


def log_interval(values: ArrayLike, *, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the ends of Student's interval for the mean of `values` (..., n), n >= 2, each of shape (...)."""
    flat = np.asarray(values, dtype=float)
    n = flat.shape[-1]
    half = stats.t.ppf(0.5 + level / 2, n - 1) * flat.std(axis=-1, ddof=1) / math.sqrt(n)
    mean = flat.mean(axis=-1)
    return np.asarray(mean - half, dtype=float), np.asarray(mean + half, dtype=float)


def median_interval(values: ArrayLike, *, level: float = 0.95) -> tuple[float, float | None, float | None]:
    """Return the median of `values` (n,) and the order statistics that enclose the true one with at least `level`.

    The ends are None where n is too small for the level: below six values for 95 %.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    n, middle = len(ordered), float(np.median(ordered))
    cut = int(stats.binom.ppf((1 - level) / 2, n, 0.5))
    if stats.binom.cdf(cut, n, 0.5) > (1 - level) / 2:
        cut -= 1  # as many may lie outside on either side
    return (middle, None, None) if cut < 0 else (middle, float(ordered[cut]), float(ordered[n - 1 - cut]))


def holm(values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p of each of `values`, in their order."""
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
    """Return how many blocks are needed for a p below ALPHA after Holm over so many worker counts."""
    blocks = 2
    while smallest_p(blocks, tests) >= ALPHA:
        blocks += 1
    return blocks


def too_few(blocks: int, tests: int) -> str:
    """Return what must be said before starting when so many blocks cannot resolve anything; empty when they can."""
    least = fewest_blocks(tests)
    if blocks >= least:
        return ""
    return (
        f"{_plural(blocks, 'block')} cannot resolve any difference: the smallest possible p is "
        f"{smallest_p(blocks):.3g}"
        + (f", {smallest_p(blocks, tests):.3g} after Holm over {tests} worker counts" if tests > 1 else "")
        + f"; {ALPHA:g} needs at least {least} blocks (--blocks {least})"
    )


def needed_blocks(log_sd: float, difference: float = OF_INTEREST, *, tests: int = 1) -> int:
    """Return how many blocks resolve a true relative `difference` with the probability POWER.

    The usual count for a paired t test, n = ((t(1 - ALPHA/2/tests, n-1) + t(POWER, n-1)) sd / ln(1 + difference))^2,
    solved for n; never fewer than the permutation test needs. `log_sd`: standard deviation of the log ratios.
    """
    shift = math.log1p(difference)
    most = 10_000_000

    def enough(n: int) -> bool:
        t = stats.t.ppf(1 - ALPHA / 2 / tests, n - 1) + stats.t.ppf(POWER, n - 1)
        return bool(n >= (t * log_sd / shift) ** 2)

    low, high = fewest_blocks(tests), 2
    while high < most and not enough(high):
        high *= 2
    low_end = high // 2
    while high - low_end > 1:
        middle = (low_end + high) // 2
        low_end, high = (low_end, middle) if enough(max(2, middle)) else (middle, high)
    return max(low, high)


def ratio_of(a: ArrayLike, b: ArrayLike, *, seed: int = 1) -> Ratio:
    """Return B/A over n blocks from the positive values `a` and `b`, both (n,)."""
    ones, others = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if not ones.size or not all(np.isfinite(each).all() and (each > 0).all() for each in (ones, others)):
        raise AnalysisError("compare: a block holds a value that is not a positive number; run that block again")
    logs = np.log(others / ones)
    several = len(logs) > 1
    low, high = (float(np.exp(end)) for end in log_interval(logs)) if several else (None, None)
    return Ratio(
        ratio=float(np.exp(logs.mean())),
        low=low,
        high=high,
        p=float(sign_flip_p(logs, seed=seed)),
        blocks=len(logs),
        exact=len(logs) <= EXACT_UP_TO,
        log_sd=float(logs.std(ddof=1)) if several else None,
    )


# ------------------------------------------------------------------------------------------------------ comparison


def compare(blocks: Sequence[Mapping[str, Any]], *, seed: int = 1) -> Comparison:
    """Return the comparison of B with A from blocks as `cluster/compare.py` makes them.

    A block: `workers`, `block` (its number, from 1), and under `A` and `B` the figures of one run each:
    `samples_per_s`, `step_s_median`, `step_s_p90`, `test_mse`, `parameter_sha256`, `first_losses` (mean over the
    workers, one per step). Raises AnalysisError when there is no block.
    """
    if not blocks:
        raise AnalysisError("compare: no block has both its runs; run the command again to go on")
    by_count: dict[int, list[Mapping[str, Any]]] = {}
    for block in sorted(blocks, key=lambda block: (block["workers"], block["block"])):
        by_count.setdefault(int(block["workers"]), []).append(block)
    speeds = {count: _ratio(rows, "samples_per_s", seed) for count, rows in by_count.items()}
    adjusted = dict(zip(speeds, holm([each.p for each in speeds.values()]), strict=True))
    counts = tuple(
        _count(workers, rows, speeds[workers], adjusted[workers], tests=len(by_count), seed=seed)
        for workers, rows in by_count.items()
    )
    return Comparison(counts=counts, learning=_learning(blocks))


def _values(rows: Sequence[Mapping[str, Any]], arm: str, name: str) -> Floats:
    return np.array([math.nan if row[arm][name] is None else float(row[arm][name]) for row in rows])


def _ratio(rows: Sequence[Mapping[str, Any]], name: str, seed: int) -> Ratio:
    return ratio_of(_values(rows, "A", name), _values(rows, "B", name), seed=seed)


def _count(
    workers: int, rows: Sequence[Mapping[str, Any]], speed: Ratio, p_holm: float, *, tests: int, seed: int
) -> CountResult:
    a, b = _values(rows, "A", "samples_per_s"), _values(rows, "B", "samples_per_s")
    unrest_a, unrest_b = (_values(rows, arm, "step_s_p90") / _values(rows, arm, "step_s_median") for arm in "AB")
    logs = np.log(b / a)
    typical = tuple(None if end is None else math.exp(end) for end in median_interval(logs))
    odd = tuple(int(rows[place]["block"]) for place in _apart(logs))
    intervals = ((speed.low, speed.high), (typical[1], typical[2]))
    outside = any(low is not None and high is not None and not low <= 1 <= high for low, high in intervals)
    resolved = p_holm < ALPHA and outside
    needed = None if speed.log_sd is None or odd else needed_blocks(speed.log_sd, tests=tests)
    return CountResult(
        workers=workers,
        samples_per_s=(_mean(a), _mean(b)),
        speed=speed,
        typical=typical,  # type: ignore[arg-type]
        odd=odd,
        p_holm=p_holm,
        resolved=resolved,
        ratios=tuple(float(each) for each in b / a),
        block_numbers=tuple(int(row["block"]) for row in rows),
        stability=(float(np.median(unrest_a)), float(np.median(unrest_b))),
        spread=ratio_of(unrest_a, unrest_b, seed=seed),
        step_ms=tuple(float(np.median(_values(rows, arm, "step_s_median"))) * 1e3 for arm in "AB"),  # type: ignore[arg-type]
        unpaired_p=_welch(np.log(a), np.log(b)),
        needed=needed,
        verdict=_verdict(speed, typical, odd, p_holm, resolved=resolved, needed=needed, tests=tests),  # type: ignore[arg-type]
        doubts=tuple(_doubts(rows, logs, odd, unrest_a, unrest_b)),
    )


def _mean(values: Floats) -> float:
    return float(np.exp(np.log(values).mean()))


def _welch(a: Floats, b: Floats) -> float | None:
    """Return Welch's p, None where it is not defined: fewer than two runs, or no spread at all."""
    if len(a) < 2 or not (a.std() or b.std()):
        return None
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def _apart(logs: Floats) -> list[int]:
    """Return the places of the blocks that stand apart from the others, of four blocks or more."""
    if len(logs) < 4:
        return []
    away = np.abs(logs - np.median(logs))
    return [int(place) for place in np.flatnonzero(away > max(ODD_ONE * 1.4826 * float(np.median(away)), ODD_LEAST))]


def _verdict(
    speed: Ratio,
    typical: tuple[float, float | None, float | None],
    odd: Sequence[int],
    p_holm: float,
    *,
    resolved: bool,
    needed: int | None,
    tests: int,
) -> str:
    p = f"p = {p_holm:.2g}{' after Holm' if tests > 1 else ''}"
    if speed.low is None or speed.high is None:
        return f"not resolved: one block says B/A = {speed.ratio:.3f}, and nothing says how far that can be trusted"
    ratio, low, high = typical if odd else (speed.ratio, speed.low, speed.high)
    usually = "typically " if odd else ""
    if resolved and low is not None and high is not None and not low <= 1 <= high:
        word = "faster" if ratio > 1 else "slower"
        ends = sorted((abs(low - 1), abs(high - 1)))
        digits = _digits(low, high)
        change, least, most = (f"{100 * value:.{digits}f}" for value in (abs(ratio - 1), *ends))
        apart = f", in the mean by a factor of {speed.ratio:.3g} that odd blocks leave uncertain" if odd else ""
        return f"B is {usually}{word} by {change} % ({least} - {most} %), resolved ({p}){apart}"
    if low is None or high is None:
        low, high, usually = speed.low, speed.high, ""
    digits = _digits(low, high)
    between = f"{_signed(low, digits)} and {_signed(high, digits)}"
    text = f"not resolved: the difference lies {usually}between {between} ({p})"
    if odd and needed is None:
        return f"{text}; how many blocks would resolve it cannot be said while some stand apart"
    would = f"about {needed} blocks would resolve {OF_INTEREST * 100:g} %"
    if speed.blocks < (least_blocks := fewest_blocks(tests)):
        return f"{text}; no difference can be with fewer than {least_blocks} blocks, and {would}"
    if max(abs(low - 1), abs(high - 1)) <= OF_INTEREST:
        return f"{text}: A and B are no more than {OF_INTEREST * 100:g} % apart"
    return f"{text}; {would}"


def _digits(low: float, high: float) -> int:
    width = (high - low) * 100
    return 0 if width >= 20 else 1 if width >= 0.2 else 2


def _signed(value: float, digits: int) -> str:
    return f"{(value - 1) * 100:+.{digits}f} %"


def _doubts(
    rows: Sequence[Mapping[str, Any]], logs: Floats, odd: Sequence[int], unrest_a: Floats, unrest_b: Floats
) -> list[str]:
    doubts = []
    middle = float(np.median(logs))
    for row, log in zip(rows, logs.tolist(), strict=True):
        if row["block"] in odd:
            # Of the two, the one that is further from its own median is the one something happened to.
            own = {arm: _values(rows, arm, "samples_per_s") for arm in "AB"}
            gaps = {arm: abs(math.log(row[arm]["samples_per_s"] / np.median(own[arm]))) for arm in "AB"}
            arm = max(gaps, key=lambda arm: gaps[arm])
            doubts.append(
                f"block {row['block']} stands apart (B/A = {math.exp(log):.3f}, usually {math.exp(middle):.3f}): {arm} "
                f"made {row[arm]['samples_per_s']:,.0f} samples/s there against {np.median(own[arm]):,.0f} usually; it "
                "counts like the others"
            )
    for arm, unrest in (("A", unrest_a), ("B", unrest_b)):
        if (restless := float(np.median(unrest))) > 1.5:
            doubts.append(f"{arm} is unsteady: one step in ten takes at least {restless:.1f} times the median step")
    firsts = {str(row.get("first", "")) for row in rows}
    if len(rows) > 1 and firsts in ({"A"}, {"B"}):
        doubts.append(f"{firsts.pop()} came first in every block; give more blocks")
    return doubts


def _learning(blocks: Sequence[Mapping[str, Any]]) -> Learning:
    tests = np.array([[block[arm]["test_mse"] or math.nan for arm in "AB"] for block in blocks], dtype=float)  # (n, 2)
    differences = []
    steps = 0
    for block in blocks:
        a, b = (np.asarray(block[arm].get("first_losses") or [], dtype=float) for arm in "AB")
        shared = min(len(a), len(b))
        if shared:
            steps = max(steps, shared)
            size = np.maximum(np.abs(a[:shared]), np.abs(b[:shared]))
            gap = np.abs(a[:shared] - b[:shared]) / np.where(size > 0, size, 1.0)
            differences.append(float(np.max(np.where(np.isfinite(gap), gap, 1.0))))
    known = tests[np.isfinite(tests).all(axis=1)]
    return Learning(
        same_parameters=all(
            block["A"]["parameter_sha256"] == block["B"]["parameter_sha256"] is not None for block in blocks
        ),
        first_steps=steps,
        loss_difference=max(differences) if differences else None,
        test_mse=(float(known[:, 0].mean()), float(known[:, 1].mean())) if len(known) else (math.nan, math.nan),
        test_difference=float(np.max(np.abs(np.diff(known, axis=1)[:, 0]) / known.max(axis=1))) if len(known) else None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
