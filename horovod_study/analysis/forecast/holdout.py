"""Forecasts scored like forecasts: the largest worker counts are hidden, forecast from the smaller ones, and compared.

The combination of `prediction.predict` and every single law of `laws.LAWS` get the same known runs and hidden counts,
and what a planner knows beforehand: nodes, batches, the micro-benchmark. docs/metrics.md defines the scores, and when
a law fails. Intervals are of a single run for the combination, of the curve for a law. Errors are shares, not per cent.

Letters: K distinct worker counts, T targets.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis.fit.fitting import fit
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
from horovod_study.text.words import wrapped

COMBINED = "combined"  # the name of `prediction.predict` among the laws
_MIN_KNOWN = 2  # fewer worker counts say nothing about a trend; the default leaves three, where there are four
_ROUNDING = 1e-9  # an interval of exact points has no width, and its forecast is right to rounding

Scores: TypeAlias = SimpleNamespace
"""Of one series: hidden and known (worker counts; those that stay known when all of `hidden` are hidden), laws (name ->
scores, the combination first), forecasts, doubts, and why_not: why there are no scores, else None.

A forecast: law, known_to (largest known count), workers, nodes (None: not known), measured (median over the runs),
forecast, low and high (samples/s of all workers; NaN without an interval), error (forecast / measured - 1), covered
(whether what was measured is in the 95 % interval; None without one)."""


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
) -> dict[str, Scores]:
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
    names = list(LAWS if laws is None else laws)
    found = {}
    for name, rows in by_series(points):
        rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
        counts = [int(count) for count in np.unique(rows["workers"])]
        hidden = hidden_counts(counts, hide)
        if hidden:
            sizes = range(1, hidden + 1) if rolling else (hidden,)
            found[name] = _scores(rows, sizes, names, workers_per_node or planned_per_node(rows), bench)
            continue
        why = f"hiding {hide} leaves fewer than {_MIN_KNOWN}; hide at most {len(counts) - _MIN_KNOWN}"
        if hide is None or len(counts) <= _MIN_KNOWN:
            why = f"one is hidden and {_MIN_KNOWN} stay known, so at least {_MIN_KNOWN + 1} are needed"
        why_not = f"{len(counts)} distinct worker count{'s' * (len(counts) > 1)}: {why}"
        found[name] = Scores(hidden=[], known=counts, laws={}, forecasts=[], doubts=[], why_not=why_not)
    return found


def summarise(scores: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    """Score every law over the targets of all series together, the combination first, as a document.

    `series`: how many have a target of this law; `failed`: those in which it fails.
    """
    found = {}
    for law in dict.fromkeys(law for one in scores.values() for law in one.laws):
        series = sum(any(each["law"] == law for each in one.forecasts) for one in scores.values())
        failed = [name for name, one in scores.items() if law in one.laws and one.laws[law]["fails"]]
        found[law] = {"series": series, **over_all(scores.values(), law), "failed": failed}
        del found[law]["fails"]
    return found


def over_all(scores: Iterable[Scores], law: str) -> dict[str, Any]:
    """Score one law over the targets of all `scores`."""
    return _law_score([each for one in scores for each in one.forecasts if each["law"] == law])


def document(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """The JSON of `horovod-study predict --holdout`."""
    return {"series": finite(scores), "summary": summarise(scores)}


def hidden_counts(counts: Sequence[int], hide: int | None) -> int:
    """How many of K distinct counts are hidden; 0 when too few would stay known."""
    distinct = len(set(counts))
    if hide is None:
        hide = distinct - max(math.ceil(distinct / 2), min(3, distinct - 1))
    return hide if distinct - hide >= _MIN_KNOWN else 0


def planned_per_node(rows: pd.DataFrame) -> int | None:
    """Workers that fill a node, from all rows: whoever plans a run knows it. None where no row spans several nodes."""
    if "workers_per_node" in rows and rows["workers_per_node"].notna().any():
        return int(rows["workers_per_node"].max())
    if "nodes" not in rows:
        return None
    several = bool((rows["nodes"] > 1).any())
    return int(np.ceil(rows["workers"] / rows["nodes"]).max()) if several else None


def _scores(rows: pd.DataFrame, sizes: Sequence[int], laws: Sequence[str], per_node: int | None, bench: Any) -> Scores:
    """The scores of one series, of whose worker counts (K,) the largest are hidden, as many as each of `sizes` says."""
    from sklearn.model_selection import PredefinedSplit

    counts = [int(count) for count in np.unique(rows["workers"])]
    targets: dict[str, list[dict[str, Any]]] = {law: [] for law in (COMBINED, *laws)}
    refused: dict[str, str] = {}
    for size in sizes:
        split = PredefinedSplit(np.where(rows["workers"] > counts[-size - 1], 0, -1))
        known, hidden = (rows.iloc[places] for places in next(split.split()))
        measured = hidden.groupby("workers")["samples_per_s"].median()
        for law, own in targets.items():
            try:
                if law == COMBINED:
                    forecasts = _combined(known, hidden, per_node, bench)
                else:
                    forecasts = _single(LAWS[law], known, measured.index.to_numpy(), per_node)
            except AnalysisError as error:
                if law == COMBINED:
                    raise
                refused[law] = f"cannot be fitted: {error}"
                continue
            for count, truth, (nodes, forecast, low, high) in zip(measured.index, measured, forecasts, strict=True):
                slack = _ROUNDING * truth
                inside = low - slack <= truth <= high + slack if math.isfinite(low) and math.isfinite(high) else None
                place = {"law": law, "known_to": counts[-size - 1], "workers": int(count), "nodes": nodes}
                values = {"measured": truth, "forecast": forecast, "low": low, "high": high}
                own.append({**place, **values, "error": forecast / truth - 1, "covered": inside})
    most = sizes[-1]
    every = [each for own in targets.values() for each in own]
    found = Scores(hidden=counts[-most:], known=counts[:-most], why_not=None)
    found.laws = {law: _law_score(own, refused.get(law, "")) for law, own in targets.items()}
    found.forecasts = sorted(every, key=lambda each: (each["known_to"], each["workers"]))
    found.doubts = list(_doubts(rows, counts[-most - 1], most))
    return found


def _combined(known: pd.DataFrame, hidden: pd.DataFrame, per_node: int | None, bench: Any) -> list[tuple[Any, ...]]:
    """Nodes, samples/s and the ends of its interval at each of the hidden counts."""
    points, batch = known.drop(columns="series", errors="ignore"), None  # which whoever plans a run chooses
    if "batch_size" in known and not (known["batch_size"].isna().any() or hidden["batch_size"].isna().any()):
        batch = hidden.groupby("workers")["batch_size"].median().tolist()
    counts = hidden["workers"].astype("int64").unique().tolist()
    made = predict(points, workers=counts, workers_per_node=per_node, bench=bench, batch=batch)[""]
    return [(one.nodes, one.samples_per_s, one.low, one.high) for one in made]


def _single(law: Law, known: pd.DataFrame, counts: Any, per_node: int | None) -> list[tuple[Any, ...]]:
    """As `_combined` for one law; NaN without an interval."""
    base, nodes = base_of(known), known["nodes"] if "nodes" in known and known["nodes"].notna().all() else None
    speedup = known["samples_per_s"] / base.samples_per_s
    fitted = fit(law, known["workers"], speedup, nodes=nodes, per_node=per_node, scaled_by=base.workers)
    on = None if per_node is None else np.ceil(counts / per_node)
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


def _law_score(targets: Sequence[Mapping[str, Any]], refused: str = "") -> dict[str, Any]:
    """Return how well one law forecast its targets, JSON-ready: None is what is not known, or that it does not fail."""
    from sklearn.metrics import max_error, median_absolute_error

    names = ("median_ape", "worst_ape", "bias", "coverage", "median_width")
    if not targets:
        return {"targets": 0, **dict.fromkeys(names), "fails": refused or None}
    exact, errors = np.zeros(len(targets)), np.array([target["error"] for target in targets])
    known = [target for target in targets if target["covered"] is not None]
    inside, median = sum(target["covered"] for target in known), float(median_absolute_error(exact, errors))
    widths = [(target["high"] - target["low"]) / target["forecast"] for target in known if target["forecast"] > 0]
    coverage, width = inside / len(known) if known else None, float(np.median(widths)) if widths else None
    if not refused and median > (0.50 if not known or 2 * inside > len(known) else 0.10):
        refused = f"off by {100 * median:.0f} % in the median"
        refused += f" ({inside} of {len(known)} inside its 95 % interval)" if known else ""
        first, last = (end(targets, key=lambda each: each["workers"]) for end in (min, max))
        fell, rose = last["measured"] < first["measured"], last["forecast"] > first["forecast"]
        if last["workers"] > first["workers"] and fell and rose:
            between = f"from {first['workers']} to {last['workers']} workers"
            refused += f"; it rises where the measured throughput falls, {between}"
    values = (median, float(max_error(exact, errors)), float(np.mean(errors)), coverage, width)
    return {"targets": len(targets), **dict(zip(names, values, strict=True)), "fails": refused or None}


def lines(series: str, one: Scores, unit: str = "samples/s") -> list[str]:
    """The scores of one series for a terminal of 100 columns; `unit` is of throughputs."""
    name = series or "all points"
    if one.why_not:
        return wrapped(f"{name}: not scored: {one.why_not}", 100, "", " " * 23)
    text = [f"{name}: known {_listed(one.known)} workers, hidden {_listed(one.hidden)}", *_table(one.laws)]
    text.append(f"  forecasts of the combination, {unit} with 95 % interval:")
    rows = []
    for each in (each for each in one.forecasts if each["law"] == COMBINED):
        told = "{forecast:,.5g} [{low:,.5g}, {high:,.5g}], measured {measured:,.5g}, ".format(**each)
        rows.append(("{workers:,} workers from {known_to:,}:".format(**each), told + _signed(each["error"])))
    text += to_lines(table_of(("", ""), rows, texts=(1,)), indent=4, gap=1)
    for doubt in one.doubts:
        text += wrapped(f"doubt: {doubt}", 100, "  ", " " * 9)
    return text


def summary_lines(scores: Mapping[str, Scores]) -> list[str]:
    """The scores over all series, and how the combination compares with the best single law that covers as much."""
    found = summarise(scores)
    scored = sum(not one.why_not for one in scores.values())
    text = [f"all {scored} series that could be scored, of {len(scores)}"]
    text += _table({law: over_all(scores.values(), law) for law in found})
    failing = [f"{law} in {len(one['failed'])}" for law, one in found.items() if one["failed"]]
    text += [f"  fails hold-out, number of series: {', '.join(failing)}"] if failing else []
    own = found.pop(COMBINED)
    full = [(one["median_ape"], law) for law, one in found.items() if one["targets"] == own["targets"] > 0]
    if full:
        error, law = min(full)
        best = f"best single law ({law}) {_share(error)}"
        text.append(f"  median error: combination {_share(own['median_ape'])}, {best}")
    return text


def _table(scores: Mapping[str, dict[str, Any]]) -> list[str]:
    heads, rows = ("law", "targets", "median", "worst", "bias", "in 95 %", "width"), []
    for law, one in scores.items():
        unknown = "-" if one["targets"] else ""
        told = [_share(one[name]) for name in ("median_ape", "worst_ape")]
        told += [_signed(one["bias"]), *(_share(one[name]) or unknown for name in ("coverage", "median_width"))]
        rows.append((law, f"{one['targets']}", *told))
    head, *lines_of = to_lines(table_of(heads, rows), indent=2)
    text = [head]
    for one, line in zip(scores.values(), lines_of, strict=True):
        text += [line, *(wrapped(f"fails: {one['fails']}", 100, " " * 16) if one["fails"] else [])]
    return text


def _listed(counts: Sequence[int]) -> str:
    texts = [f"{count:,}" for count in counts]
    return ", ".join(texts if len(texts) < 9 else [*texts[:3], "...", *texts[-3:]])


def _share(value: float | None) -> str:
    """A share in per cent with three digits, but no more than one decimal; "" for None."""
    if value is None:
        return ""
    return f"{100 * value:{',.1f' if abs(value) < 10 else ',.0f' if abs(value) < 1000 else '.2g'}} %"


def _signed(value: float | None) -> str:
    return f"{'+' if value is not None and value >= 0 else ''}{_share(value)}"
