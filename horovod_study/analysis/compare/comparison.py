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

Where single blocks are outliers (a launch that fell into a slow mode), they count in the mean as they should, and make
its interval wide. What is typical is then told beside it: the median of the ratios with its exact interval from order
statistics (binomial; W. Conover, Practical Nonparametric Statistics, 1999, section 3.2): an odd block cannot move it.

A difference is resolved when p after Holm is below ALPHA and one of the two intervals leaves out 1. Letter: n blocks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod_study.analysis.stats import (
    ALPHA,
    OF_INTEREST,
    Floats,
    Interval,
    PairedRatio,
    fewest_blocks,
    finite_or_none,
    geometric_mean,
    holm,
    needed_blocks,
    normal_deviation,
    order_interval,
    paired_ratio,
    smallest_p,
    welch_p,
)
from horovod_study.errors import AnalysisError
from horovod_study.records import facts, finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

ALIKE = 1e-4
"""Losses of the first steps that agree to this part: rounding differs between ways to add, and little else does."""
ODD_ONE = 5.0
"""A block is odd when its log ratio is so many times the usual deviation (1.4826 MAD) from the median, ..."""
ODD_LEAST = 0.05
"""... and at least so far from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountResult:
    """The comparison at one worker count."""

    workers: int
    samples_per_s: tuple[float, float]  # A, B: geometric means over the blocks
    speed: PairedRatio  # of samples/s
    typical: Interval  # median of the ratios; no ends with under six blocks
    odd: tuple[int, ...]  # numbers of the blocks that are outliers
    p_holm: float
    resolved: bool
    ratios: tuple[float, ...]  # of samples/s, one per block, in their order
    block_numbers: tuple[int, ...]
    stability: tuple[float, float]  # A, B: median over the blocks of p90/median of the step
    spread: PairedRatio  # of p90/median of the step
    step_ms: tuple[float, float]  # A, B: median over the blocks of the median step
    unpaired_p: float | None  # Welch's test of the same runs as if they had no partners
    needed: int | None  # blocks that would resolve OF_INTEREST; None when the spread is not known
    verdict: str
    doubts: tuple[str, ...]

    @property
    def shown(self) -> Interval:
        """The ratio to show with its interval: the mean, or what is typical where blocks are outliers."""
        return self.typical if self.odd else self.speed.ratio

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        typical = self.typical.to_dict()
        return {
            "workers": self.workers,
            **dict(zip(("a_samples_per_s", "b_samples_per_s"), self.samples_per_s, strict=True)),
            **self.speed.to_dict(),
            "p_holm": self.p_holm,
            "typical_ratio": typical["value"],
            "typical_low": typical["low"],
            "typical_high": typical["high"],
            "odd_blocks": list(self.odd),
            "resolved": self.resolved,
            "b_faster_in": sum(ratio > 1 for ratio in self.ratios),
            **facts(self, "ratios", "block_numbers"),
            **dict(zip(("a_step_ms_median", "b_step_ms_median"), self.step_ms, strict=True)),
            **dict(zip(("a_p90_over_median", "b_p90_over_median"), self.stability, strict=True)),
            "p90_over_median": self.spread.to_dict(),
            "unpaired_p": self.unpaired_p,
            "blocks_for_one_percent": self.needed,
            **facts(self, "verdict", "doubts"),
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
            **facts(self, "same_parameters", "alike", "first_steps", "loss_difference"),
            **dict(zip(("a_test_mse", "b_test_mse"), finite(self.test_mse), strict=True)),
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
        return {"workers": finite(self.counts), "learning": self.learning.to_dict()}

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
                f"{each.speed.ratio.n}",
                f"{each.samples_per_s[0]:,.0f}",
                f"{each.samples_per_s[1]:,.0f}",
                f"{each.speed.ratio.value:.3f}",
                f"{each.speed.ratio.low:.3f} - {each.speed.ratio.high:.3f}" if each.speed.ratio.known else "-",
                f"{each.speed.ratio.p:.4f}",
                f"{each.p_holm:.4f}",
                f"{each.stability[0]:.2f}, {each.stability[1]:.2f}",
            )
            for each in self.counts
        ]
        table = to_lines(table_of(heads, rows, texts=()))
        verdicts = [f"{plural(each.workers, 'worker')}: {each.verdict}" for each in self.counts]
        doubts = [f"doubt, {plural(each.workers, 'worker')}: {doubt}" for each in self.counts for doubt in each.doubts]
        return [*table, "", *verdicts, self.learning.text, *doubts]


def too_few(blocks: int, tests: int) -> str:
    """Return what must be said before starting when so many blocks cannot resolve anything; empty when they can."""
    least = fewest_blocks(tests)
    if blocks >= least:
        return ""
    return (
        f"{plural(blocks, 'block')} cannot resolve any difference: the smallest possible p is "
        f"{smallest_p(blocks):.3g}"
        + (f", {smallest_p(blocks, tests):.3g} after Holm over {tests} worker counts" if tests > 1 else "")
        + f"; {ALPHA:g} needs at least {least} blocks (--blocks {least})"
    )


# ------------------------------------------------------------------------------------------------------ comparison


def compare(blocks: Sequence[Mapping[str, Any]], *, seed: int = 1) -> Comparison:
    """Return the comparison of B with A from blocks as `studies/compare.py` makes them.

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
    adjusted = dict(zip(speeds, holm([each.ratio.p for each in speeds.values()]), strict=True))
    counts = tuple(
        _count(workers, rows, speeds[workers], adjusted[workers], tests=len(by_count), seed=seed)
        for workers, rows in by_count.items()
    )
    return Comparison(counts=counts, learning=_learning(blocks))


def _values(rows: Sequence[Mapping[str, Any]], arm: str, name: str) -> Floats:
    return np.array([math.nan if row[arm][name] is None else float(row[arm][name]) for row in rows])


def _ratio(rows: Sequence[Mapping[str, Any]], name: str, seed: int) -> PairedRatio:
    return paired_ratio(_values(rows, "A", name), _values(rows, "B", name), seed=seed)


def _count(
    workers: int, rows: Sequence[Mapping[str, Any]], speed: PairedRatio, p_holm: float, *, tests: int, seed: int
) -> CountResult:
    a, b = _values(rows, "A", "samples_per_s"), _values(rows, "B", "samples_per_s")
    unrest_a, unrest_b = (_values(rows, arm, "step_s_p90") / _values(rows, arm, "step_s_median") for arm in "AB")
    logs = np.log(b / a)
    typical = order_interval(logs).exp()
    odd = tuple(int(rows[place]["block"]) for place in _apart(logs))
    resolved = p_holm < ALPHA and (speed.ratio.excludes(1) or typical.excludes(1))
    needed = None if speed.log_sd is None or odd else needed_blocks(speed.log_sd, tests=tests)
    return CountResult(
        workers=workers,
        samples_per_s=(geometric_mean(a), geometric_mean(b)),
        speed=speed,
        typical=typical,
        odd=odd,
        p_holm=p_holm,
        resolved=resolved,
        ratios=tuple(float(each) for each in b / a),
        block_numbers=tuple(int(row["block"]) for row in rows),
        stability=(float(np.median(unrest_a)), float(np.median(unrest_b))),
        spread=paired_ratio(unrest_a, unrest_b, seed=seed),
        step_ms=tuple(float(np.median(_values(rows, arm, "step_s_median"))) * 1e3 for arm in "AB"),  # type: ignore[arg-type]
        unpaired_p=finite_or_none(welch_p(np.log(a), np.log(b))),
        needed=needed,
        verdict=_verdict(speed.ratio, typical, odd, p_holm, resolved=resolved, needed=needed, tests=tests),
        doubts=tuple(_doubts(rows, logs, odd, unrest_a, unrest_b)),
    )


def _apart(logs: Floats) -> list[int]:
    """Return the places of the blocks that are outliers, of four blocks or more."""
    if len(logs) < 4:
        return []
    away = np.abs(logs - np.median(logs))
    return [int(place) for place in np.flatnonzero(away > max(ODD_ONE * normal_deviation(away), ODD_LEAST))]


def _verdict(
    mean: Interval,
    typical: Interval,
    odd: Sequence[int],
    p_holm: float,
    *,
    resolved: bool,
    needed: int | None,
    tests: int,
) -> str:
    p = f"p = {p_holm:.2g}{' after Holm' if tests > 1 else ''}"
    if not mean.known:
        return f"not resolved: one block says B/A = {mean.value:.3f}, and nothing says how far that can be trusted"
    shown = typical if odd else mean
    usually = "typically " if odd else ""
    if resolved and shown.excludes(1):
        word = "faster" if shown.value > 1 else "slower"
        ends = sorted((abs(shown.low - 1), abs(shown.high - 1)))
        digits = _digits(shown)
        change, least, most = (f"{100 * value:.{digits}f}" for value in (abs(shown.value - 1), *ends))
        apart = f", in the mean by a factor of {mean.value:.3g} that odd blocks leave uncertain" if odd else ""
        return f"B is {usually}{word} by {change} % ({least} - {most} %), resolved ({p}){apart}"
    if not shown.known:
        shown, usually = mean, ""
    digits = _digits(shown)
    between = f"{_signed(shown.low, digits)} and {_signed(shown.high, digits)}"
    text = f"not resolved: the difference is {usually}between {between} ({p})"
    if odd and needed is None:
        return f"{text}; how many blocks would resolve it cannot be said while some are outliers"
    would = f"about {needed} blocks would resolve {OF_INTEREST * 100:g} %"
    if mean.n < (least_blocks := fewest_blocks(tests)):
        return f"{text}; no difference can be with fewer than {least_blocks} blocks, and {would}"
    if max(abs(shown.low - 1), abs(shown.high - 1)) <= OF_INTEREST:
        return f"{text}: A and B are no more than {OF_INTEREST * 100:g} % apart"
    return f"{text}; {would}"


def _digits(each: Interval) -> int:
    width = each.width * 100
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
                f"block {row['block']} is an outlier (B/A = {math.exp(log):.3f}, usually {math.exp(middle):.3f}): "
                f"{arm} "
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
