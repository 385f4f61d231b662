"""Forecasts scored like forecasts: the largest worker counts are hidden, forecast from the smaller ones, and compared.

The combination of `prediction.predict` and every single law of `laws.LAWS` get the same known runs and hidden counts,
and what a planner knows beforehand: nodes, batches, the micro-benchmark. docs/metrics.md defines the scores, and when
a law fails. Intervals are of a single run for the combination, of the curve for a law. Errors are shares, not per cent.

Letters: K distinct worker counts, T targets.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pandas as pd

from horovod_study.analysis.fit.fitted import fit
from horovod_study.analysis.fit.rows import by_series, check_points, off_counts, off_doubts
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.laws import LAWS
from horovod_study.analysis.laws.law import Law
from horovod_study.analysis.series.baselines import base_of, impossibilities
from horovod_study.analysis.stats import Floats
from horovod_study.config.doors import Options, Text, Whole, asked, at_least, one_of
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines

COMBINED = "combined"  # the name of `prediction.predict` among the laws

_MIN_KNOWN = 2
"""Fewer worker counts say nothing about a trend; the default hides no more than leaves three, where there are four."""

_ROUNDING = 1e-9  # an interval of exact points has no width, and its forecast is right to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One forecast of one hidden worker count, samples/s of all workers."""

    DOCUMENT = "law known_to workers nodes measured forecast low high error covered"

    law: str
    known_to: int  # largest worker count that was known
    workers: int
    nodes: int | None
    measured: float  # median over the runs
    forecast: float
    low: float  # NaN without an interval
    high: float

    @property
    def error(self) -> float:
        """Relative error, forecast / measured - 1."""
        return self.forecast / self.measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the measured throughput is in the 95 % interval; None without one."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return None
        slack = _ROUNDING * self.measured
        return self.low - slack <= self.measured <= self.high + slack


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutScore:
    """The scores of one series; `why_not` says why there are none."""

    DOCUMENT = "hidden known laws forecasts doubts why_not?"

    series: str
    known: tuple[int, ...]  # worker counts that stayed known when all of `hidden` were hidden
    hidden: tuple[int, ...]
    laws: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # the combination first
    forecasts: tuple[Target, ...] = ()
    doubts: tuple[str, ...] = ()
    why_not: str = ""


class _HoldoutOptions(Options):
    holdout: Annotated[Whole, at_least(1)] | None = None
    laws: list[Annotated[Text, one_of(LAWS)]] | None = None


def score(
    points: pd.DataFrame,
    *,
    hide: int | None = None,
    rolling: bool = False,
    workers_per_node: int | None = None,
    bench: Mapping[str, Any] | None = None,
    laws: Sequence[str] | None = None,
) -> dict[str, HoldoutScore]:
    """Score the forecasts of every series of `points`, in the order of their names ("" without a `series` column).

    Columns as for `prediction.predict`, to which `workers_per_node` and `bench` are handed on.
    `hide` is how many of the largest distinct worker counts are hidden; by default the upper half, of which three stay
    known where there are four. With `rolling` the largest one is hidden, then the largest two, up to `hide`: more
    targets, near ones more often than far ones. `laws` are the single laws that are scored beside the combination
    (default: all of LAWS; () for none).
    A series that is too short has no scores and says why.
    Raises AnalysisError for rows that are not positive numbers and for a `hide` below 1.
    """
    check_points(points)
    asked(_HoldoutOptions, {"holdout": hide, "laws": laws and list(laws)}, "predict")
    known: dict[str, Any] = {
        "per_node": workers_per_node,
        "bench": bench,
        "laws": [LAWS[name] for name in (LAWS if laws is None else laws)],
    }
    return {name: _score_series(name, rows, hide, rolling=rolling, **known) for name, rows in by_series(points)}


def summarise(scores: Mapping[str, HoldoutScore]) -> dict[str, dict[str, Any]]:
    """Score every law over the targets of all series together, the combination first, as a document.

    `series`: how many have a target of this law; `failed`: those in which it fails.
    """
    found = {}
    for law, score in _over_all(scores).items():
        series = sum(any(each.law == law for each in one.forecasts) for one in scores.values())
        failed = [name for name, one in scores.items() if law in one.laws and one.laws[law]["fails"]]
        found[law] = {"series": series, **score, "failed": failed}
        del found[law]["fails"]
    return found


def _over_all(scores: Mapping[str, HoldoutScore]) -> dict[str, dict[str, Any]]:
    laws = dict.fromkeys(law for one in scores.values() for law in one.laws)
    targets = [each for one in scores.values() for each in one.forecasts]
    return {law: _law_score([each for each in targets if each.law == law], "") for law in laws}


def document(scores: Mapping[str, HoldoutScore]) -> dict[str, Any]:
    """The JSON of `horovod-study predict --holdout`."""
    return {"series": finite(scores), "summary": summarise(scores)}


def hidden_counts(counts: Sequence[int], hide: int | None) -> int:
    """How many of K distinct counts are hidden; 0 when too few would stay known."""
    distinct = len(set(counts))
    if hide is None:
        hide = distinct - max(math.ceil(distinct / 2), min(3, distinct - 1))
    return hide if distinct - hide >= _MIN_KNOWN else 0


def _score_series(
    name: str,
    rows: pd.DataFrame,
    hide: int | None,
    *,
    rolling: bool,
    laws: Sequence[Law],
    per_node: int | None,
    bench: Any,
) -> HoldoutScore:
    rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
    counts = [int(count) for count in np.unique(rows["workers"])]
    hidden = hidden_counts(counts, hide)
    if hidden < 1:
        why = f"hiding {hide} leaves fewer than {_MIN_KNOWN}; hide at most {len(counts) - _MIN_KNOWN}"
        if hide is None or len(counts) <= _MIN_KNOWN:
            why = f"one is hidden and {_MIN_KNOWN} stay known, so at least {_MIN_KNOWN + 1} are needed"
        why_not = f"{len(counts)} distinct worker count{'s' * (len(counts) > 1)}: {why}"
        return HoldoutScore(series=name, known=tuple(counts), hidden=(), why_not=why_not)
    per_node = per_node or planned_per_node(rows)
    targets: list[Target] = []
    refused: dict[str, str] = {}
    for size in range(1, hidden + 1) if rolling else (hidden,):
        known_to = counts[-size - 1]
        known, asked = rows[rows["workers"] <= known_to], rows[rows["workers"] > known_to]
        targets += _targets(None, known, asked, per_node, bench)
        for law in laws:
            try:
                targets += _targets(law, known, asked, per_node, bench)
            except AnalysisError as error:
                refused[law.name] = f"cannot be fitted: {error}"
    known_to = counts[-hidden - 1]
    return HoldoutScore(
        series=name,
        known=tuple(counts[:-hidden]),
        hidden=tuple(counts[-hidden:]),
        laws={
            law: _law_score([target for target in targets if target.law == law], refused.get(law, ""))
            for law in (COMBINED, *(law.name for law in laws))
        },
        forecasts=tuple(sorted(targets, key=lambda target: (target.known_to, target.workers))),
        doubts=tuple(_doubts(rows, known_to, hidden)),
    )


def planned_per_node(rows: pd.DataFrame) -> int | None:
    """Workers that fill a node, from all rows: whoever plans a run knows it. None where no row spans several nodes."""
    if "workers_per_node" in rows and rows["workers_per_node"].notna().any():
        return int(rows["workers_per_node"].max())
    if "nodes" not in rows:
        return None
    several = bool((rows["nodes"] > 1).any())
    return int(np.ceil(rows["workers"] / rows["nodes"]).max()) if several else None


def _targets(
    law: Law | None, known: pd.DataFrame, asked: pd.DataFrame, per_node: int | None, bench: Mapping[str, Any] | None
) -> Iterator[Target]:
    """Yield the forecasts of the counts of `asked` from the rows of `known`: of one law, or of the combination."""
    measured = asked.groupby("workers")["samples_per_s"].median()
    counts = [int(count) for count in measured.index]
    if law is None:
        points, batch = known.drop(columns="series", errors="ignore"), None  # which whoever plans a run chooses
        if "batch_size" in known and not (known["batch_size"].isna().any() or asked["batch_size"].isna().any()):
            batch = [float(each) for each in asked.groupby("workers")["batch_size"].median()]
        made = predict(points, workers=counts, workers_per_node=per_node, bench=bench, batch=batch)[""]
        found = [(one.nodes, one.samples_per_s, one.low, one.high) for one in made]
    else:
        found = _single(law, known, counts, per_node)
    name, known_to = COMBINED if law is None else law.name, int(known["workers"].max())
    for count, truth, (nodes, forecast, low, high) in zip(counts, measured, found, strict=True):
        place: dict[str, Any] = {"law": name, "known_to": known_to, "workers": count, "nodes": nodes}
        yield Target(**place, measured=float(truth), forecast=forecast, low=low, high=high)


def _single(
    law: Law, known: pd.DataFrame, counts: list[int], per_node: int | None
) -> list[tuple[int | None, float, float, float]]:
    """Nodes, samples/s and the ends of its interval at each of `counts`; NaN without one."""
    base, nodes = base_of(known), known["nodes"] if "nodes" in known and known["nodes"].notna().all() else None
    speedup = known["samples_per_s"] / base.samples_per_s
    fitted = fit(law, known["workers"], speedup, nodes=nodes, per_node=per_node, scaled_by=base.workers)
    on = None if per_node is None else np.ceil(np.asarray(counts) / per_node)
    forecasts: Floats = fitted(counts, on) * base.samples_per_s
    if not np.isfinite(forecasts).all():
        raise AnalysisError("its curve gives no number at the hidden worker counts")
    ends = [side * base.samples_per_s for side in fitted.interval(counts, on)]
    low, high = (np.where(np.isfinite(ends[1]), side, math.nan).tolist() for side in ends)
    places = [None] * len(counts) if on is None else [int(each) for each in on]
    return list(zip(places, forecasts.tolist(), low, high, strict=True))


def _doubts(rows: pd.DataFrame, known_to: int, hidden: int) -> Iterator[str]:
    yield from impossibilities(rows, base_of(rows).samples_per_s)
    yield from off_doubts(off_counts(rows["workers"], rows["samples_per_s"]))
    if hidden < 3:
        targets = "one target" if hidden == 1 else "two targets"
        yield f"{targets} only: an error by chance cannot be distinguished from a bad forecast"
    if "nodes" in rows:
        inside = rows["nodes"] == 1
        if inside[rows["workers"] <= known_to].all() and (rows.loc[rows["workers"] > known_to, "nodes"] > 1).any():
            yield f"up to {known_to} workers all are on one node: the network between nodes was hidden, too"


def _law_score(targets: Sequence[Target], refused: str) -> dict[str, Any]:
    """Return how well one law forecast its targets, JSON-ready: None is what is not known, or that it does not fail."""
    if not targets:
        nothing = dict.fromkeys(("median_ape", "worst_ape", "bias", "coverage", "median_width"))
        return {"targets": 0, **nothing, "fails": refused or None}
    errors = np.array([target.error for target in targets])
    known = [target for target in targets if target.covered is not None]
    covered = sum(bool(target.covered) for target in known)
    widths = [(target.high - target.low) / target.forecast for target in known if target.forecast > 0]
    median = float(np.median(np.abs(errors)))
    coverage = covered / len(known) if known else None
    return {
        "targets": len(targets),
        "median_ape": median,
        "worst_ape": float(np.max(np.abs(errors))),
        "bias": float(np.mean(errors)),
        "coverage": coverage,
        "median_width": float(np.median(widths)) if widths else None,
        "fails": refused or _fails(targets, median, coverage, covered, len(known)) or None,
    }


def _fails(targets: Sequence[Target], median: float, coverage: float | None, covered: int, known: int) -> str:
    # the first where its interval does not say so
    if median <= 0.10 or (median <= 0.50 and (coverage is None or coverage > 0.5)):
        return ""
    text = f"off by {100 * median:.0f} % in the median"
    if coverage is not None:
        text += f" ({covered} of {known} inside its 95 % interval)"
    first, last = min(targets, key=lambda each: each.workers), max(targets, key=lambda each: each.workers)
    if last.workers > first.workers and last.measured < first.measured and last.forecast > first.forecast:
        text += f"; it rises where the measured throughput falls, from {first.workers} to {last.workers} workers"
    return text


def lines(one: HoldoutScore, unit: str = "samples/s") -> list[str]:
    """The scores of one series for a terminal of 100 columns; `unit` is of throughputs."""
    name = one.series or "all points"
    if one.why_not:
        return textwrap.wrap(f"{name}: not scored: {one.why_not}", 100, subsequent_indent=" " * 23)
    text = [f"{name}: known {_listed(one.known)} workers, hidden {_listed(one.hidden)}", *_table(one.laws)]
    text.append(f"  forecasts of the combination, {unit} with 95 % interval:")
    rows = [
        (
            f"{target.workers:,} workers from {target.known_to:,}:",
            f"{target.forecast:,.5g} [{target.low:,.5g}, {target.high:,.5g}], measured {target.measured:,.5g}, "
            f"{_signed(target.error)}",
        )
        for target in one.forecasts
        if target.law == COMBINED
    ]
    text += to_lines(table_of(("", ""), rows, texts=(1,)), indent=4, gap=1)
    for doubt in one.doubts:
        text += textwrap.wrap(f"  doubt: {doubt}", 100, subsequent_indent=" " * 9)
    return text


def summary_lines(scores: Mapping[str, HoldoutScore]) -> list[str]:
    """The scores over all series, and how the combination compares with the best single law that covers as much."""
    found = summarise(scores)
    scored = sum(not one.why_not for one in scores.values())
    text = [f"all {scored} series that could be scored, of {len(scores)}", *_table(_over_all(scores))]
    failing = [f"{law} in {len(one['failed'])}" for law, one in found.items() if one["failed"]]
    if failing:
        text.append(f"  fails hold-out, number of series: {', '.join(failing)}")
    own = found[COMBINED]
    full = [
        (one["median_ape"], law)
        for law, one in found.items()
        if law != COMBINED and one["targets"] == own["targets"] and one["median_ape"] is not None
    ]
    if full and own["median_ape"] is not None:
        error, law = min(full)
        best = f"best single law ({law}) {_share(error)}"
        text.append(f"  median error: combination {_share(own['median_ape'])}, {best}")
    return text


_HEADS = ("law", "targets", "median", "worst", "bias", "in 95 %", "width")


def _table(scores: Mapping[str, dict[str, Any]]) -> list[str]:
    rows = []
    for law, one in scores.items():
        unknown = "-" if one["targets"] else ""
        bias = "" if one["bias"] is None else _signed(one["bias"])
        told = [_share(each) or unknown for each in (one["coverage"], one["median_width"])]
        rows.append((law, f"{one['targets']}", _share(one["median_ape"]), _share(one["worst_ape"]), bias, *told))
    head, *told = to_lines(table_of(_HEADS, rows), indent=2)
    text = [head]
    for one, line in zip(scores.values(), told, strict=True):
        fails = textwrap.wrap(f"fails: {one['fails']}", 100, initial_indent=_BELOW, subsequent_indent=_BELOW)
        text += [line, *(fails if one["fails"] else [])]
    return text


_BELOW = " " * 16


def _listed(counts: Sequence[int]) -> str:
    texts = [f"{count:,}" for count in counts]
    return ", ".join(texts if len(texts) < 9 else [*texts[:3], "...", *texts[-3:]])


def _share(value: float | None) -> str:
    """A share in per cent with three digits, but no more than one decimal; "" for None."""
    if value is None:
        return ""
    return f"{100 * value:{',.1f' if abs(value) < 10 else ',.0f' if abs(value) < 1000 else '.2g'}} %"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{_share(value)}"
