"""Two studies, cell by cell: what is faster or slower after a change or on another cluster, and can the runs tell.

A cell of AFTER is compared with the one of BEFORE that is defined by the same settings, batch, data, workers and nodes.
Every number is a ratio AFTER / BEFORE of geometric means over repeats, on logarithms throughout:

    estimate    exp of the sum of the means of ln x, those of AFTER counted +, those of BEFORE -
    interval    Welch's t, 95 %: the variances s^2/n of all parts add, degrees of freedom by Satterthwaite
    p           of the same t
    Holm        over all cells (and targets) of one metric (stats.holm)

A throughput has two parts; a speedup has four, because the baselines of both studies were measured with errors of their
own. Where the runs of both studies alternated (repeat by repeat), a drift of the machine cancels in the ratio of each
repeat: these ratios are the one part then, and the t is Student's paired one.

A difference is resolved when p after Holm is below stats.ALPHA and the interval leaves out 1, as in transports.py.
Fewer than stats.MIN_REPEATS repeats on any side give neither interval nor verdict.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import CELL, ENVIRONMENT, KNOBS, baseline_place, measured
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.study import Analysis
from horovod_study.errors import AnalysisError, ConfigError, nearest
from horovod_study.records import facts, finite
from horovod_study.roles import Role
from horovod_study.runtimes import BACKENDS, TRANSPORTS
from horovod_study.workloads import packaged

DISTINGUISHING, OPTIONS = packaged().distinguishing, packaged().options


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity that is compared, of which every run has a value (a speedup: every run and its baseline)."""

    column: str  # of the table `runs`, or of `crossings` for times to target
    title: str
    unit: str  # of that column; "" without one
    word: str  # of the gate
    better: str  # what AFTER is when it is resolved to be better, ...
    worse: str
    higher_is_better: bool = False

    def worsening(self, ratio: float) -> float:
        """Return by which share of BEFORE a ratio is worse; negative where it is better."""
        return 1 - ratio if self.higher_is_better else ratio - 1


METRICS: Mapping[str, Metric] = {
    "throughput": Metric(
        "samples_per_s", "throughput", "samples/s", "slower", "faster", "slower", higher_is_better=True
    ),
    "step": Metric("step_s_median", "median step", "s", "step", "shorter", "longer"),
    "sync": Metric("sync_s", "exposed synchronisation", "s per step", "sync", "shorter", "longer"),
    "speedup": Metric("samples_per_s", "speedup", "", "speedup", "higher", "lower", higher_is_better=True),
    "efficiency": Metric("samples_per_s", "efficiency", "", "efficiency", "higher", "lower", higher_is_better=True),
    "target": Metric("train_s", "time to target", "s", "target", "sooner", "later"),
    "energy": Metric("energy_per_sample_j", "energy per sample", "J", "energy", "less", "more"),
}
"""What is compared, in the order of the table. `speedup` and `efficiency` have equal ratios: workers are equal."""

BETTER, WORSE, ALIKE, TOO_FEW, UNKNOWN = "better", "worse", "no difference resolved", "too few repeats", "not known"
"""Verdicts: of AFTER against BEFORE."""

_UNPAIRED, PAIRED = "Welch t on logarithms", "paired t on logarithms"

_DIFFERENCE_COLUMNS = (
    *("metric", "series", "before_series", "setting", "partition", "before_partition", "backend", "transport"),
    *("workers", "nodes", "before_nodes", "batch", "target_mse", "before", "after", "before_repeats", "after_repeats"),
    *("ratio", "ratio_low", "ratio_high", "p", "p_holm", "tests", "test", "verdict", "word", "no_more_than", "note"),
)
"""One row per matched cell and metric (and target).

`before`, `after`: geometric means over repeats, in the unit of the metric; `ratio` is after / before. `no_more_than`:
the largest relative difference that the interval leaves open, where none is resolved.
"""

_LAW_COLUMNS = (
    *("series", "before_series", "law", "before_selected", "after_selected", "parameter"),
    *("before", "before_low", "before_high", "after", "after_low", "after_high"),
    *("difference", "low", "high", "verdict"),
)
"""One row per parameter of a law that both studies have; `verdict`: `higher`, `lower`, ALIKE or UNKNOWN."""

_UNMATCHED_COLUMNS = (
    *("study", "series", "setting", "partition", "backend", "transport", "batch", "workers", "nodes", "repeats"),
    *("kind", "reason"),
)
"""Cells that one study alone has; `study` is `before` or `after`, `kind` _ABSENT, _NO_RESULT or _AMBIGUOUS."""

_ABSENT, _NO_RESULT, _AMBIGUOUS = "absent", "no result", "ambiguous"

HOW = (
    *("partition", "backend", "transport"),
    *(name for name in DISTINGUISHING if not OPTIONS[name].roles & Role.LEARNING),
)
"""Settings that say how and where the same work is done: a change of one of these is what studies are compared for."""

_SEEN = ("budget", "warmup_steps", "per_node", "path", "device", "energy_of")
"""Columns of the runs that should not differ unless they are the change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something besides the numbers that is not the same in both studies; empty where a study does not know it."""

    what: str
    before: str
    after: str

    @property
    def text(self) -> str:
        """The change in words."""
        return f"{self.what}: {self.before or 'not recorded'} before, {self.after or 'not recorded'} after"


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """What AFTER says against BEFORE."""

    after: Analysis
    before: Analysis
    names: tuple[str, str]  # of AFTER and BEFORE, for readers
    differences: pd.DataFrame  # _DIFFERENCE_COLUMNS
    laws: pd.DataFrame  # _LAW_COLUMNS
    unmatched: pd.DataFrame  # _UNMATCHED_COLUMNS
    may_differ: tuple[str, ...]  # settings in which matched cells may differ
    matching: str  # how cells were matched, in words
    interleaved: bool  # whether all matched runs alternated
    changes: tuple[Change, ...]
    doubts: tuple[str, ...]

    def of(self, metric: str) -> pd.DataFrame:
        """Return the rows of one of METRICS."""
        return self.differences[self.differences["metric"] == metric]

    def to_dict(self) -> dict[str, Any]:
        return {
            **dict(zip(("after", "before"), self.names, strict=True)),
            "matching": self.matching,
            "matched_by_all_but": list(self.may_differ),
            **facts(self, "interleaved", "differences", "laws", "unmatched", "changes", "doubts"),
        }


def compare_studies(
    after: Analysis,
    before: Analysis,
    *,
    may_differ: Sequence[str] | None = None,
    names: tuple[str, str] = ("after", "before"),
) -> StudyComparison:
    """Return what `after` says against `before`; equal analyses with rows in any order give equal results.

    `may_differ` names columns of points.CELL in which matched cells may differ; () matches by all of them. Without it
    those of HOW are left out of which each study has one value, and not the same. Where partitions differ, equal
    workers on other numbers of nodes are matched too: nodes of two clusters have different sizes. `names` are those of
    AFTER and BEFORE in texts. Raises AnalysisError when an unknown setting is named, or no cell with a result has a
    partner.
    """
    chosen = _differing(after.points, before.points) if may_differ is None else _checked(may_differ)
    sides = (_cells(after, names[0]), _cells(before, names[1]))
    pairs, lonely = _matched(*sides, chosen)
    unmatched = _unmatched(pairs, lonely, names)
    pairs = [pair for pair in pairs if len(pair.after.runs) and len(pair.before.runs)]
    if not pairs:
        raise AnalysisError(_nothing_shared(sides, chosen, names))
    bases = _baselines(after, before)
    interleaved = all(_taking_turns(pair) for pair in pairs)
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        rows += _judged(metric, [row for pair in pairs for row in _rows(metric, pair, sides, bases, turns=interleaved)])
    differences = _table(rows, _DIFFERENCE_COLUMNS)
    changes = _changes(pairs, after, before, chosen)
    return StudyComparison(
        after=after,
        before=before,
        names=names,
        differences=differences,
        laws=_law_differences(pairs, after, before),
        unmatched=unmatched,
        may_differ=chosen,
        matching=_matching(chosen, pairs),
        interleaved=interleaved,
        changes=changes,
        doubts=tuple(_doubts(pairs, differences, unmatched, changes, bases, names, interleaved=interleaved)),
    )


# ------------------------------------------------------------------------------------------------------ statistics


def verdicts(metric: str, effects: Sequence[stats.Interval]) -> list[tuple[str, float]]:
    """Return verdict and p after Holm of each effect of one of METRICS; all of them are one family."""
    tested = [place for place, each in enumerate(effects) if math.isfinite(each.p)]
    adjusted = dict(zip(tested, stats.holm([effects[place].p for place in tested]), strict=True))
    found = []
    for place, each in enumerate(effects):
        if place not in adjusted:
            found.append((TOO_FEW if math.isfinite(each.value) else UNKNOWN, math.nan))
            continue
        resolved = adjusted[place] < stats.ALPHA and each.excludes(1)
        worse = METRICS[metric].worsening(each.value) > 0
        found.append((ALIKE if not resolved else WORSE if worse else BETTER, adjusted[place]))
    return found


def _judged(metric: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add p after Holm, verdict and what follows from it to all rows of one metric."""
    effects = [stats.Interval(value=r["ratio"], low=r["ratio_low"], high=r["ratio_high"], p=r["p"]) for r in rows]
    tests = sum(math.isfinite(each.p) for each in effects)
    words = {BETTER: METRICS[metric].better, WORSE: METRICS[metric].worse}
    for row, each, (verdict, p_holm) in zip(rows, effects, verdicts(metric, effects), strict=True):
        row |= {"tests": tests, "p_holm": p_holm, "verdict": verdict, "word": words.get(verdict, "")}
        row["no_more_than"] = max(abs(each.low - 1), abs(each.high - 1)) if verdict == ALIKE else math.nan
    return rows


# ------------------------------------------------------------------------------------------------------ matching


@dataclass(frozen=True, kw_only=True, slots=True)
class _StudyCell:
    """One point of a study with its finished runs, sorted by repeat, of which there may be none."""

    point: Mapping[str, Any]
    place: int  # among the cells of its study
    runs: pd.DataFrame
    crossings: pd.DataFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    after: _StudyCell
    before: _StudyCell


_OF_CELL = ("series", "workers", "nodes", "batch", "train_samples")
_NEEDED = ("run", "series", "workers", "nodes", "status", "repeat", "samples_per_s")


def _cells(analysis: Analysis, name: str) -> list[_StudyCell]:
    """Return the cells of an analysis in an order of their own."""
    runs, points = analysis.runs, analysis.points
    missing = [column for column in _NEEDED if column not in runs.columns]
    if missing:
        raise AnalysisError(f"{name}: runs.csv lacks {missing[0]}; make the directory again with horovod-study report")
    keys = [column for column in _OF_CELL if column in runs.columns and column in points.columns]
    own: dict[tuple[str, ...], list[int]] = {}
    known = list(dict.fromkeys((*runs.columns, *_SEEN, "started", *(each.column for each in METRICS.values()))))
    good = runs[measured(runs)].sort_values(["repeat", "run"], kind="stable", ignore_index=True).reindex(columns=known)
    for place, values in enumerate(good[keys].to_dict("records")):
        own.setdefault(_place_of(_named(values), keys), []).append(place)
    cells: list[_StudyCell] = []
    for point in sorted(points.to_dict("records"), key=_order):
        found = good.iloc[own.get(_place_of(_named(point), keys), [])]
        if len(found) != point["repeats"]:
            raise AnalysisError(
                f"{name}: runs.csv and points.csv do not tell of the same runs ({point['series']}, {point['workers']} "
                "workers); make the directory again with horovod-study report"
            )
        crossed = found[["run"]].merge(analysis.crossings, on="run")
        cells.append(_StudyCell(point=_named(point), place=len(cells), runs=found, crossings=crossed))
    return cells


def _place_of(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Return which point a run belongs to; one worker sits on one node, whether that was recorded or not."""
    alone = _text(row["workers"]) == "1"
    return tuple(_text(row[name]) or ("1" if name == "nodes" and alone else "") for name in keys)


def _named(point: Mapping[Any, Any]) -> dict[str, Any]:
    return {f"{name}": value for name, value in point.items()}


def _order(point: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Sort points by what they are: as the tables do, unknown last."""
    backend, transport = point["backend"], point["transport"]
    names = ("ref_batch", "workers", "nodes", "batch", "train_samples")
    ref_batch, *rest = (math.inf if point[name] != point[name] else float(point[name]) for name in names)
    return (
        *(f"{point['partition']}", BACKENDS.index(backend) if backend in BACKENDS else 99, f"{backend}"),
        *(TRANSPORTS.index(transport) if transport in TRANSPORTS else 99, f"{transport}", ref_batch),
        *(f"{point['setting']}", f"{point['series']}", *rest),
    )


def _text(value: Any) -> str:
    """Return a value of a setting as a text that a table keeps when it is saved and read again."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return "on" if value else "off"
    try:
        number = float(value)
    except ValueError:
        return {"True": "on", "False": "off"}.get(f"{value}", f"{value}")
    return f"{number:.10g}" if math.isfinite(number) else f"{value}"


def _values(points: pd.DataFrame, name: str) -> list[str]:
    """Return the distinct values of one setting as texts, smallest number first."""
    texts = {_text(value) for value in points[name]}
    return sorted(texts, key=lambda text: (_number(text), text))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def _communicating(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that exchange gradients; all where there are none."""
    several = points[(points["backend"] != "serial") & (points["workers"] > 1)]
    return several if len(several) else points


def _differing(after: pd.DataFrame, before: pd.DataFrame) -> tuple[str, ...]:
    found = []
    for name in HOW:
        frames = (after, before) if name == "partition" else (_communicating(after), _communicating(before))
        ones, others = (_values(frame, name) for frame in frames)
        if len(ones) == len(others) == 1 and ones != others:
            found.append(name)
    return tuple(found)


def _checked(may_differ: Sequence[str]) -> tuple[str, ...]:
    allowed = [name for name in CELL if name != "workers"]
    for name in may_differ:
        if name not in allowed:
            raise AnalysisError(
                f"{name}: no setting that cells could be matched without{nearest(name, allowed)}; allowed: "
                f"{', '.join(allowed)}"
            )
    return tuple(name for name in allowed if name in may_differ)


def read_match(text: str | None) -> tuple[str, ...] | None:
    """Return `may_differ` for `auto` (or None), `exact` or `except:SETTING,...`; ConfigError for anything else."""
    if text in (None, "auto"):
        return None
    if text == "exact":
        return ()
    head, colon, names = (text or "").partition(":")
    if head != "except" or not colon or not names:
        raise ConfigError(
            f"--match {text}: is not known; allowed: auto, exact, except:SETTING,SETTING (batch, threads)"
        )
    try:
        return _checked([name.strip() for name in names.split(",")])
    except AnalysisError as error:
        raise ConfigError(f"--match {text}: {error}") from None


def _matched(
    after: Sequence[_StudyCell], before: Sequence[_StudyCell], may_differ: Sequence[str]
) -> tuple[list[_Pair], list[tuple[str, _StudyCell, str]]]:
    """Return the pairs in the order of AFTER, and the cells without a partner: (study, cell, _ABSENT or _AMBIGUOUS)."""
    keys = [name for name in CELL if name not in may_differ]
    partner: dict[int, _StudyCell] = {}
    taken: set[int] = set()
    unclear: set[tuple[str, int]] = set()
    # Nodes of two clusters hold different numbers of workers: equal nodes first, then any where that is not ambiguous.
    for names in (keys, [name for name in keys if name != "nodes"])[: 2 if "partition" in may_differ else 1]:
        ones = _grouped([cell for cell in after if cell.place not in partner], names)
        others = _grouped([cell for cell in before if cell.place not in taken], names)
        for key, own in ones.items():
            rivals = others.get(key, [])
            if len(own) == len(rivals) == 1:
                partner[own[0].place] = rivals[0]
                taken.add(rivals[0].place)
            elif rivals:
                unclear |= {("after", cell.place) for cell in own} | {("before", cell.place) for cell in rivals}
    pairs = [_Pair(after=cell, before=partner[cell.place]) for cell in after if cell.place in partner]
    lonely = [("after", cell) for cell in after if cell.place not in partner]
    lonely += [("before", cell) for cell in before if cell.place not in taken]
    return pairs, [(*each, _AMBIGUOUS if (each[0], each[1].place) in unclear else _ABSENT) for each in lonely]


def _grouped(cells: Iterable[_StudyCell], names: Sequence[str]) -> dict[tuple[str, ...], list[_StudyCell]]:
    found: dict[tuple[str, ...], list[_StudyCell]] = {}
    for cell in cells:
        serial = _text(cell.point["backend"] == "serial")  # a plain worker is no partner of a library's single one
        found.setdefault((serial, *(_text(cell.point[name]) for name in names)), []).append(cell)
    return found


def _unmatched(
    pairs: Sequence[_Pair], lonely: Sequence[tuple[str, _StudyCell, str]], names: tuple[str, str]
) -> pd.DataFrame:
    """Return _UNMATCHED_COLUMNS; cells without a result in either study say nothing and are left out."""
    other = {"after": names[1], "before": names[0]}
    rows = []
    for pair in pairs:
        for study, cell, partner in (("after", pair.after, pair.before), ("before", pair.before, pair.after)):
            if len(cell.runs) and not len(partner.runs):
                reason = f"no result in {other[study]}: {partner.point['reasons'] or 'no reason recorded'}"
                rows.append({**cell.point, "study": study, "kind": _NO_RESULT, "reason": reason})
    for study, cell, kind in lonely:
        if len(cell.runs):
            reason = f"several cells fit, here or in {other[study]}, once they may differ"
            reason = f"not measured in {other[study]}" if kind == _ABSENT else reason
            rows.append({**cell.point, "study": study, "kind": kind, "reason": reason})
    rows.sort(key=lambda row: row["study"] != "before")
    return _table(rows, _UNMATCHED_COLUMNS)


def _nothing_shared(
    sides: tuple[list[_StudyCell], list[_StudyCell]], may_differ: Sequence[str], names: tuple[str, str]
) -> str:
    """Return why no cell has a partner: the settings that differ between the studies, and what can be done."""
    ones, others = (pd.DataFrame([cell.point for cell in side if len(cell.runs)]) for side in sides)
    if not len(ones) or not len(others):
        return f"{names[0] if not len(ones) else names[1]}: holds no finished run; there is nothing to compare"
    differ = {
        name: (_values(ones, name), _values(others, name))
        for name in CELL
        if name not in may_differ and not set(_values(ones, name)) & set(_values(others, name))
    }
    told = [f"{name} ({_some(one)} against {_some(other)})" for name, (one, other) in differ.items()]
    why = f"they differ in {', '.join(told)}" if told else "every cell differs from every other in some setting"
    free = [name for name in differ if name != "workers"]
    advice = f"; --match except:{','.join(free)} matches cells all the same" if free else ""
    return f"{names[0]} and {names[1]} have no cell in common: {why}{advice}"


def _some(values: Sequence[str]) -> str:
    shown = [value or "unknown" for value in values[:4]]
    return ", ".join(shown) + (", ..." if len(values) > 4 else "")


def _matching(may_differ: Sequence[str], pairs: Sequence[_Pair]) -> str:
    if not may_differ:
        return "Cells are matched by everything that defines them: partition, settings, batch, data, workers and nodes."
    words = []
    for name in may_differ:
        ones, others = (_told(pairs, side, name) for side in _SIDES)
        words.append(f"{name.replace('_', ' ')} ({_some(sorted(ones))} before, {_some(sorted(others))} after)")
    other_nodes = any(_text(pair.after.point["nodes"]) != _text(pair.before.point["nodes"]) for pair in pairs)
    more = " Equal workers are matched on other numbers of nodes too." if other_nodes else ""
    return f"Cells are matched by everything that defines them but {', '.join(words)}.{more}"


# ------------------------------------------------------------------------------------------------------ differences


def _baselines(after: Analysis, before: Analysis) -> str:
    """Return the baseline that both studies have speedups over: `plain`, `wrapped`, or `` for none."""
    for kind in ("plain", "wrapped"):
        if all(analysis.points[f"speedup_{kind}"].notna().any() for analysis in (after, before)):
            return kind
    return ""


def _rows(
    metric: str, pair: _Pair, sides: tuple[list[_StudyCell], list[_StudyCell]], base: str, *, turns: bool
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one pair before their p are corrected; none where neither study knows the quantity."""
    workers = float(pair.after.point["workers"])
    if metric == "target":
        yield from _to_target(pair)
    elif metric in ("speedup", "efficiency"):
        bases = []
        for side, cell in zip(sides, (pair.after, pair.before), strict=True):
            place = baseline_place([each.point for each in side], cell.point, base) if base else None
            bases += [] if place in (None, cell.place) else [side[place]]
        if len(bases) == 2:
            share = workers if metric == "efficiency" else 1.0
            yield _row(metric, pair, [(pair.after, pair.before), (bases[0], bases[1])], turns=turns, scale=1 / share)
    elif metric != "sync" or workers > 1:
        if any(np.isfinite(_of_runs(cell, METRICS[metric].column)).any() for cell in (pair.after, pair.before)):
            yield _row(metric, pair, [(pair.after, pair.before)], turns=turns)


def _row(
    metric: str,
    pair: _Pair,
    cells: Sequence[tuple[_StudyCell, _StudyCell]],
    *,
    turns: bool,
    scale: float = 1.0,
) -> dict[str, Any]:
    """Return one row: the ratio of the first two cells, over that of their baselines where there are any."""
    column = METRICS[metric].column
    values = [tuple(_of_runs(cell, column) for cell in both) for both in cells]
    note = _why_unknown(metric, pair, [each for both in values for each in both])
    row = _identity(metric, pair)
    if note:
        return {**row, "note": note}
    repeats = {tuple(cell.runs["repeat"]) for both in cells for cell in both}
    parts = list(zip((1, -1, -1, 1), (each for both in values for each in both), strict=False))
    return {**row, **_found(parts, paired=turns and len(repeats) == 1, scale=scale)}


def _found(parts: Sequence[tuple[int, Floats]], *, paired: bool, scale: float = 1.0) -> dict[str, Any]:
    """Return the numbers of one row. Parts: AFTER, BEFORE, and their baselines with the opposite sign."""
    means = [float(np.log(values).mean()) for _, values in parts]
    after, before = (scale * math.exp(side[0] - sum(side[1:])) for side in (means[0::2], means[1::2]))
    if paired:
        parts = [(1, np.exp(np.sum([sign * np.log(values) for sign, values in parts], axis=0)))]
    found = stats.log_contrast(parts)
    ratio = found.named("ratio", "ratio_low", "ratio_high")
    return {"before": before, "after": after, "test": PAIRED if paired else _UNPAIRED, **ratio, "p": found.p}


def _to_target(pair: _Pair) -> Iterator[dict[str, Any]]:
    """Yield one row per target that both studies asked for; the seconds of training until it was met."""
    one, other = (cell.crossings for cell in (pair.after, pair.before))
    for target in sorted(set(one["target_mse"]) & set(other["target_mse"]), reverse=True):
        row = _identity("target", pair) | {"target_mse": float(target)}
        own = [frame[frame["target_mse"] == target] for frame in (one, other)]
        missed = [
            f"{int((~each['reached'].astype(bool)).sum())} of {len(each)} runs {when} missed the target"
            for each, when in zip(own, ("after", "before"), strict=True)
            if not each["reached"].astype(bool).all()
        ]
        values = [each["train_s"].dropna().to_numpy(dtype=np.float64) for each in own]
        row |= {"after_repeats": len(own[0]), "before_repeats": len(own[1])}
        if missed:
            yield {**row, "note": f"{' and '.join(missed)}: the times are lower bounds"}
        elif not all((each > 0).all() for each in values):
            yield {**row, "note": "met within the warm-up, in no time that could be compared"}
        elif all(len(each) for each in values):
            yield {**row, **_found([(1, values[0]), (-1, values[1])], paired=False)}


def _of_runs(cell: _StudyCell, column: str) -> Floats:
    """Return the values of the runs of a cell (R,), NaN where a run does not know it."""
    return pd.to_numeric(cell.runs[column], errors="coerce").to_numpy(dtype=np.float64)


def _why_unknown(metric: str, pair: _Pair, values: Sequence[Floats]) -> str:
    """Return why there is no ratio; empty where there is one."""
    for each, when in zip(values, ("after", "before", "after", "before"), strict=False):
        if not np.isfinite(each).all():
            return f"not known of every run {when}"
        if not (each > 0).all():
            return f"0 in a run {when}, which has no ratio"
    if metric == "energy":
        kinds = [_kinds(cell, "energy_of") for cell in (pair.after, pair.before)]
        if kinds[0] != kinds[1]:
            return f"energy of {kinds[1] or 'unknown devices'} before, of {kinds[0] or 'unknown devices'} after"
    return ""


def _kinds(cell: _StudyCell, column: str) -> str:
    return ", ".join(sorted({_text(value) for value in cell.runs[column]} - {""}))


def _identity(metric: str, pair: _Pair) -> dict[str, Any]:
    after, before = pair.after.point, pair.before.point
    return {
        "metric": metric,
        **{name: after[name] for name in ("series", "setting", "partition", "backend", "transport")},
        **{name: after[name] for name in ("workers", "nodes", "batch")},
        **{f"before_{name}": before[name] for name in ("series", "partition", "nodes", "repeats")},
        "after_repeats": after["repeats"],
        **dict.fromkeys(("target_mse", "before", "after", "ratio", "ratio_low", "ratio_high", "p"), math.nan),
        "test": "",
        "note": "",
    }


def _taking_turns(pair: _Pair) -> bool:
    """Return whether repeat by repeat both cells were run before either had its next repeat."""
    frames = (pair.after.runs, pair.before.runs)
    repeats = frames[0]["repeat"]
    if repeats.duplicated().any() or list(repeats) != list(frames[1]["repeat"]) or len(repeats) < 2:
        return False
    times = [pd.to_datetime(each["started"], utc=True, errors="coerce", format="ISO8601") for each in frames]
    if any(each.isna().any() for each in times):
        return False
    table = pd.DataFrame([each.to_numpy() for each in times])  # (2, repeats)
    order = table.min().sort_values(kind="stable").index
    first, last = table.min()[order].to_numpy(), table.max()[order].to_numpy()
    # Runs that began at the same moment ran beside each other, which is another thing.
    return bool((last[:-1] < first[1:]).all() and (first < last).all())


# ------------------------------------------------------------------------------------------------------ laws


def _law_differences(pairs: Sequence[_Pair], after: Analysis, before: Analysis) -> pd.DataFrame:
    """Return _LAW_COLUMNS of the series that matched cells belong to.

    Parameters of different baselines are not compared.
    """
    rows: list[dict[str, Any]] = []
    partners: dict[str, str] = {}
    for pair in pairs:
        partners.setdefault(f"{pair.after.point['series']}", f"{pair.before.point['series']}")
    if after.fits["baseline"] != before.fits["baseline"]:
        return _table(rows, _LAW_COLUMNS)
    for series, other in partners.items():
        ones, others = (analysis.fits["series"].get(name) for analysis, name in ((after, series), (before, other)))
        if ones is None or others is None:
            continue
        for law in (law for law in ones["laws"] if law in others["laws"]):
            own, theirs = ones["laws"][law], others["laws"][law]
            names = {"series": series, "before_series": other, "law": law}
            names |= {"after_selected": law == ones["selected"], "before_selected": law == others["selected"]}
            for parameter in (name for name in own["params"] if name in theirs["params"]):
                now, then = _estimate(own, parameter), _estimate(theirs, parameter)
                less = stats.difference(now, then)
                ends = {
                    **now.named("after", "after_low", "after_high"),
                    **then.named("before", "before_low", "before_high"),
                    **less.named("difference", "low", "high"),
                }
                verdict = "higher" if less.low > 0 else "lower" if less.high < 0 else ALIKE
                verdict = UNKNOWN if math.isnan(less.low + less.high) else verdict
                rows.append({**names, "parameter": parameter, **ends, "verdict": verdict})
    return _table(rows, _LAW_COLUMNS)


def _estimate(law: Mapping[str, Any], parameter: str) -> stats.Interval:
    low, high = law["ci95"].get(parameter) or (None, None)
    value, low, high = (math.nan if each is None else float(each) for each in (law["params"][parameter], low, high))
    return stats.Interval(value=value, low=low, high=high)


# ------------------------------------------------------------------------------------------------------ what else


def _changes(
    pairs: Sequence[_Pair], after: Analysis, before: Analysis, may_differ: Sequence[str]
) -> tuple[Change, ...]:
    """Return what is not the same besides the numbers: settings left out of the matching, machines, versions, ..."""
    found = [_change(name, *(_told(pairs, side, name) for side in _SIDES)) for name in may_differ]
    for column in ("host", *ENVIRONMENT):
        known = [{each.get(column) for each in study.provenance["environment"]} for study in (before, after)]
        # As texts: 3.10 of a version is not a number.
        found.append(_change(column, *({f"{value}" for value in each if value not in (None, "")} for each in known)))
    for column in _SEEN:
        kinds = [{_kinds(getattr(pair, side), column) for pair in pairs} - {""} for side in _SIDES]
        found.append(_change(column, *kinds))
    spans = [
        [each.get("excluded_steps") or [None] for each in study.provenance["measurement"]] for study in (before, after)
    ]
    excluded = [{" to ".join(dict.fromkeys(map(_text, one))) for one in each if None not in one} for each in spans]
    found.append(_change("excluded_steps", *excluded))
    found.append(_change("repeats", *(_told(pairs, side, "repeats") for side in _SIDES)))
    return tuple(each for each in found if each is not None)


_SIDES = ("before", "after")


def _told(pairs: Sequence[_Pair], side: str, name: str) -> set[str]:
    """Return the values of a setting; how workers communicate means nothing to one that communicates with nobody."""
    communicating = [pair for pair in pairs if name in KNOBS and pair.after.point["backend"] != "serial"]
    return {_text(getattr(pair, side).point[name]) for pair in communicating or pairs}


def _change(what: str, before: set[str], after: set[str]) -> Change | None:
    if before == after or not (before or after):
        return None
    texts = [", ".join(sorted(each, key=lambda text: (_number(text), text))) for each in (before, after)]
    return Change(what=what.replace("_", " "), before=texts[0], after=texts[1])


def _doubts(
    pairs: Sequence[_Pair],
    differences: pd.DataFrame,
    unmatched: pd.DataFrame,
    changes: Sequence[Change],
    base: str,
    names: tuple[str, str],
    *,
    interleaved: bool,
) -> Iterator[str]:
    after, before = names

    def told(cell: _StudyCell) -> set[tuple[str, ...]]:
        rows = cell.runs[["run", "started", "samples_per_s"]].dropna(subset="started")
        return {tuple(_text(value) for value in values) for values in rows.itertuples(index=False)}

    same = sum(len(told(pair.after) & told(pair.before)) for pair in pairs)
    if same:
        yield (
            f"{same} of the {sum(len(pair.after.runs) for pair in pairs)} matched runs of {after} are runs of {before} "
            "too, with the same start and throughput: nothing new was measured there."
        )
    elif not interleaved and any(pair.after.point["partition"] == pair.before.point["partition"] for pair in pairs):
        yield (
            f"The runs of {before} and {after} did not alternate{_when(pairs)}: what drifted on the machine between "
            "them (temperature, clock rates, other users) counts as a difference. Run both again in turns, or "
            "horovod-study compare, before you blame the change."
        )
    known = [each for each in changes if each.what != "repeats"]
    if len(known) > 1:
        yield (
            f"{len(known)} things differ between {before} and {after} ({'; '.join(each.text for each in known)}): a "
            "difference has all of them as possible causes."
        )
    yield from _plain_worker(differences)
    few = differences[(differences["metric"] == "throughput") & (differences["verdict"] == TOO_FEW)]
    if len(few):
        total = (differences["metric"] == "throughput").sum()
        yield (
            f"{len(few)} of {total} matched cells have fewer than {stats.MIN_REPEATS} repeats in one of the "
            "studies: no interval, and no verdict."
        )
    unclear = unmatched[unmatched["kind"] == _AMBIGUOUS]
    if len(unclear):
        yield (
            f"{len(unclear)} cells have several partners once settings may differ, and are not compared; name fewer "
            "settings after --match except:."
        )
    if not base:
        yield "No baseline that both studies have: speedups and efficiencies are not compared."


def _when(pairs: Sequence[_Pair]) -> str:
    spans = []
    for side in _SIDES:
        times = sorted(f"{value}" for pair in pairs for value in getattr(pair, side).runs["started"].dropna() if value)
        if not times:
            return ""
        spans.append((times[0][:10], times[-1][:10]))
    words = [first if first == last else f"{first} to {last}" for first, last in spans]
    return f" ({words[0]} and {words[1]})" if words[0] != words[1] else ""


def _plain_worker(differences: pd.DataFrame) -> Iterator[str]:
    """Yield a doubt where one plain worker changed, which does not communicate: the machine, or its software, did."""
    rows = differences[(differences["metric"] == "throughput") & (differences["backend"] == "serial")]
    for row in rows.to_dict("records"):
        if row["verdict"] in (BETTER, WORSE) and abs(row["ratio"] - 1) > 0.02:  # a smaller change is not worth a doubt
            yield (
                f"One plain worker ({row['setting']}), which does not communicate, is "
                f"{100 * abs(row['ratio'] - 1):.1f} % "
                f"{row['word']} too: that part of a difference in throughput is not one of communication; speedups "
                "are free of it."
            )


# ------------------------------------------------------------------------------------------------------ gate


FAILED, PASSED, UNDECIDED = "failed", "passed", "undecided"

GATE_WORDS: Mapping[str, str] = {metric.word: name for name, metric in METRICS.items()}
"""Words of `--fail-on WORD=LIMIT`, and the metric that each one is about."""

BARE_WORDS = ("missing", "unresolved")


@dataclass(frozen=True, kw_only=True)
class GateCheck:
    """What the gate says of one cell, or of a metric that no cell knows (`row` has no series then)."""

    word: str
    limit: float  # as a share: 0.05
    outcome: str  # FAILED, PASSED or UNDECIDED
    row: Mapping[str, Any]  # of `differences`


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The outcome of all limits."""

    checks: tuple[GateCheck, ...]
    missing: tuple[Mapping[str, Any], ...] | None  # rows of `unmatched`; None where nobody asked
    unresolved_fails: bool

    @property
    def passed(self) -> bool:
        """Whether nothing that was asked for failed."""
        bad = (FAILED, UNDECIDED) if self.unresolved_fails else (FAILED,)
        return not self.missing and not any(each.outcome in bad for each in self.checks)

    def to_dict(self) -> dict[str, Any]:
        checks = [{**facts(each, "word", "limit", "outcome"), **finite(each.row)} for each in self.checks]
        return {**facts(self, "passed", "unresolved_fails"), "checks": checks, "missing": finite(self.missing)}


def read_limits(words: Sequence[str]) -> dict[str, float]:
    """Return {word: limit as a share} of `slower=5%`, `missing`, ...; ConfigError for what is no such word."""
    allowed = [*GATE_WORDS, *BARE_WORDS]
    limits: dict[str, float] = {}
    for text in words:
        word, equals, value = text.partition("=")
        if word not in allowed:
            raise ConfigError(
                f"--fail-on {text}: {word!r} is not known{nearest(word, allowed)}; allowed: "
                f"{', '.join(f'{each}=PERCENT' for each in GATE_WORDS)}, {', '.join(BARE_WORDS)}"
            )
        if word in limits:
            raise ConfigError(f"--fail-on {text}: {word} has a limit already; give it once")
        if word in BARE_WORDS:
            if equals:
                raise ConfigError(f"--fail-on {text}: {word} takes no limit; give --fail-on {word}")
            limits[word] = 0.0
            continue
        number = _number(value.strip().removesuffix("%").strip()) if value.strip().endswith("%") else math.nan
        if not 0 <= number < 1000:
            raise ConfigError(f"--fail-on {text}: the limit must be a percentage, as in {word}=5%")
        limits[word] = number / 100
    return limits


def gate(found: StudyComparison, limits: Mapping[str, float]) -> Gate:
    """Return what `limits` (of `read_limits`) say of a comparison.

    A cell fails when it is resolved to be worse, and worse by the limit or more. It passes when its whole 95 % interval
    is on the good side of the limit. Whatever is in between is undecided, as are cells without an interval and
    metrics that no cell knows.
    """
    checks = []
    for word, limit in limits.items():
        if word in BARE_WORDS:
            continue
        metric = GATE_WORDS[word]
        rows = [_named(row) for row in found.of(metric).to_dict("records")]
        if not rows:
            nothing = {"metric": metric, "note": "not known in any matched cell"}
            checks.append(GateCheck(word=word, limit=limit, outcome=UNDECIDED, row=nothing))
        checks += [GateCheck(word=word, limit=limit, outcome=outcome(row, limit), row=row) for row in rows]
    gone = found.unmatched[(found.unmatched["study"] == "before") & (found.unmatched["kind"] != _AMBIGUOUS)]
    return Gate(
        checks=tuple(checks),
        missing=tuple(_named(row) for row in gone.to_dict("records")) if "missing" in limits else None,
        unresolved_fails="unresolved" in limits,
    )


def outcome(row: Mapping[str, Any], limit: float) -> str:
    """Return FAILED, PASSED or UNDECIDED for one row of `differences` and a limit as a share."""
    metric = METRICS[row["metric"]]
    if row["verdict"] == WORSE and metric.worsening(row["ratio"]) >= limit:
        return FAILED
    worst = row["ratio_low"] if metric.higher_is_better else row["ratio_high"]
    return PASSED if metric.worsening(worst) < limit else UNDECIDED  # NaN compares false: undecided


# ------------------------------------------------------------------------------------------------------ values


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame([{name: row[name] for name in columns} for row in rows], columns=list(columns))
    whole = {"workers", "before_repeats", "after_repeats", "tests", "repeats"}.intersection(columns)
    return frame.astype(dict.fromkeys(whole, "int64"))
