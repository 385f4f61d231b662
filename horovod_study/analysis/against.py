"""Two studies, cell by cell: what is faster or slower after a change or on another cluster, and can the runs tell.

A cell of AFTER is compared with the one of BEFORE that is defined by the same settings, batch, data, workers and nodes.
Every number is a ratio AFTER / BEFORE of geometric means over repeats, with Welch's t on logarithms, 95 % (see
stats.log_contrast), and Holm's p over all cells (and targets) of one metric. A throughput has two parts; a speedup has
four, because the baselines of both studies were measured with errors of their own. Studies are made one after the
other: to decide between two configurations on one machine, `run A B` runs both in turns.

A difference is resolved when p after Holm is below stats.ALPHA and the interval leaves out 1, as in transports.py.
Fewer than stats.MIN_REPEATS repeats on any side give neither interval nor verdict.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import CELL, ENVIRONMENT, FLAGS, REPORTED, baseline_place, measured
from horovod_study.analysis.study import Analysis
from horovod_study.errors import AnalysisError, ConfigError, require_known
from horovod_study.roles import Role
from horovod_study.runtimes import BACKENDS, TRANSPORTS
from horovod_study.workloads import packaged


class Metric(NamedTuple):
    """One quantity that is compared, of which every run has a value (a speedup: every run and its baseline)."""

    column: str  # of the table `runs`, or of `crossings` for times to target
    title: str
    unit: str  # in which it is shown; "" without one
    scale: float  # from the unit of the column to that one
    word: str  # of the gate
    better: str  # what AFTER is when it is resolved to be better, ...
    worse: str
    sign: int = 1  # -1 where higher is better


METRICS: Mapping[str, Metric] = {
    "throughput": Metric("samples_per_s", "throughput", "samples/s", 1, "slower", "faster", "slower", -1),
    "step": Metric("step_s_median", "median step", "ms", 1e3, "step", "shorter", "longer"),
    "sync": Metric("sync_s", "exposed synchronisation", "ms per step", 1e3, "sync", "shorter", "longer"),
    "speedup": Metric("samples_per_s", "speedup", "", 1, "speedup", "higher", "lower", -1),
    "target": Metric("train_s", "time to target", "s", 1, "target", "sooner", "later"),
    "energy": Metric("energy_per_sample_j", "energy per sample", "mJ", 1e3, "energy", "less", "more"),
}
"""What is compared, in the order of the table. Efficiencies have the ratios of the speedups: workers are equal."""

BETTER, WORSE, ALIKE, TOO_FEW, UNKNOWN = "better", "worse", "no difference resolved", "too few repeats", "not known"
"""Verdicts: of AFTER against BEFORE."""
FAILED, PASSED, UNDECIDED = "failed", "passed", "undecided"
GATE_WORDS: Mapping[str, str] = {metric.word: name for name, metric in METRICS.items()} | {"efficiency": "speedup"}
"""Words of `--fail-on WORD=LIMIT`, and the metric that each one is about."""
BARE_WORDS = ("missing", "unresolved")

_OPTIONS = packaged().options
_CHOICES = (name for name in packaged().distinguishing if not _OPTIONS[name].roles & Role.LEARNING)
_HOW = ("partition", "backend", "transport", *_CHOICES)
"""Settings that say how and where the same work is done: a change of one of these is what studies are compared for."""
_SEEN = ("budget", "warmup_steps", "per_node", "path", "device", "energy_of")
"""Columns of the runs that should not differ unless they are the change."""
_OF_CELL = ["study", "series", "workers", "nodes", "batch", "train_samples"]
_SHOWN = ("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch")
_STUDIES = ("after", "before")


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """What AFTER says against BEFORE.

    `differences` has one row per matched cell and metric (and target): `before` and `after` are geometric means over
    repeats, `ratio` is after / before, and `no_more_than` the largest relative difference that the interval leaves
    open where none is resolved. `unmatched` are the cells that one `study` alone has a result of.
    """

    points: tuple[pd.DataFrame, pd.DataFrame]  # of AFTER and BEFORE
    names: tuple[str, str]  # of AFTER and BEFORE, for readers
    differences: pd.DataFrame
    unmatched: pd.DataFrame
    matched_by_all_but: tuple[str, ...]  # settings in which matched cells may differ
    matching: str  # the same in words
    changes: tuple[Mapping[str, str], ...]  # what else differs: what, before, after
    doubts: tuple[str, ...]

    def of(self, metric: str) -> pd.DataFrame:
        """Return the rows of one of METRICS."""
        return self.differences[self.differences["metric"] == metric]


def compare_studies(
    after: Analysis, before: Analysis, *, match: str | None = None, names: tuple[str, str] = _STUDIES
) -> StudyComparison:
    """Return what `after` says against `before`; equal analyses with rows in any order give equal results.

    `match`: `exact` matches cells by all columns of points.CELL, `except:SETTING,SETTING` by all others. None and
    `auto` leave out those that say how the same work is done, of which each study has one value, and not the same.
    Where partitions differ, equal workers on other numbers of nodes are matched too: nodes of two clusters have
    different sizes. `names` are those of AFTER and BEFORE in texts. Raises ConfigError for another `match`, and
    AnalysisError when no cell with a result has a partner.
    """
    cells, runs, crossings = _joined(after, before, names)
    free = _free(match, cells)
    pairs, unmatched = _matched(cells, free, names)
    own = runs[runs["cell"].isin(np.ravel(pairs))]
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        table = crossings if metric == "target" else runs
        told = [row for pair in pairs for row in _effects(metric, cells, table, pair)]
        effects = [stats.Interval(value=r["ratio"], low=r["ratio_low"], high=r["ratio_high"], p=r["p"]) for r in told]
        words = {BETTER: METRICS[metric].better, WORSE: METRICS[metric].worse}
        for row, each, (verdict, p_holm) in zip(told, effects, verdicts(metric, effects), strict=True):
            row |= {"p_holm": p_holm, "verdict": verdict, "word": words.get(verdict, "")}
            row["tests"] = sum(math.isfinite(one.p) for one in effects)
            row["no_more_than"] = max(abs(each.low - 1), abs(each.high - 1)) if verdict == ALIKE else math.nan
        rows += told
    changes = _changes(cells.loc[np.ravel(pairs)], own, (after, before), free)
    differences, how = pd.DataFrame(rows), f"everything that defines them{' but ' * bool(free)}{', '.join(free)}"
    how += "; equal workers on other numbers of nodes too" if "partition" in free else ""
    return StudyComparison(
        points=(after.points, before.points),
        names=names,
        differences=differences,
        unmatched=unmatched,
        matched_by_all_but=free,
        matching=f"Cells are matched by {how}.",
        changes=changes,
        doubts=tuple(_doubts(own, differences, changes, names)),
    )


def verdicts(metric: str, effects: Sequence[stats.Interval]) -> list[tuple[str, float]]:
    """Return verdict and p after Holm of each effect of one of METRICS; all of them are one family."""
    adjusted = iter(stats.holm([each.p for each in effects if math.isfinite(each.p)]))
    found = []
    for each in effects:
        verdict, p_holm = TOO_FEW if math.isfinite(each.value) else UNKNOWN, math.nan
        if math.isfinite(each.p):
            p_holm = next(adjusted)
            resolved = p_holm < stats.ALPHA and each.excludes(1)
            verdict = ALIKE if not resolved else WORSE if METRICS[metric].sign * (each.value - 1) > 0 else BETTER
        found.append((verdict, p_holm))
    return found


def _joined(after: Analysis, before: Analysis, names: tuple[str, str]) -> tuple[pd.DataFrame, ...]:
    """Return points, finished runs and crossings of both studies in one order, whatever that of their rows.

    The place of a point is the `cell` of its runs and crossings; `base` is that of its baseline, -1 without one.
    """

    def of_both(name: str) -> pd.DataFrame:
        # As objects: what one study does not know changes no value of the other.
        both = zip(_STUDIES, (after, before), strict=True)
        frames = [getattr(one, name).astype(object).assign(study=study) for study, one in both]
        return pd.DataFrame(pd.concat(frames))

    known = {"backend": [*BACKENDS], "transport": [*TRANSPORTS]}
    ranks = {name: {value: place for place, value in enumerate(values)} for name, values in known.items()}
    by = ["study", "partition", *ranks, "ref_batch", "setting", *_OF_CELL[1:]]
    key = lambda each: each.map(ranks[each.name].get) if each.name in ranks else each  # noqa: E731
    cells = of_both("points").sort_values(by, key=key, ignore_index=True)
    runs = of_both("runs")
    runs = runs[measured(runs)].sort_values(["study", "repeat", "run"], ignore_index=True)
    runs = runs.reindex(columns=list(dict.fromkeys((*runs.columns, *_SEEN))))
    keys = _texts(cells, _OF_CELL).assign(cell=cells.index)
    runs["cell"] = _texts(runs, _OF_CELL).merge(keys, how="left", on=_OF_CELL)["cell"].to_numpy()
    for study in cells["study"][runs["cell"].value_counts().reindex(cells.index, fill_value=0) != cells["repeats"]]:
        again = "make the directory again with horovod-study report"
        name = names[study == "before"]
        raise AnalysisError(f"{name}: runs.csv and points.csv do not tell of the same runs; {again}")
    kinds = [k for k in ("plain", "wrapped") if all(s.points[f"speedup_{k}"].notna().any() for s in (after, before))]
    cells["base"] = -1
    for _, own in cells.groupby("study") if kinds else ():
        records: list[Any] = own.to_dict("records")
        bases = [baseline_place(records, cell, kinds[0]) for cell in records]
        cells.loc[own.index, "base"] = [-1 if base is None else own.index[base] for base in bases]
    crossings = runs[["study", "run", "cell"]].merge(of_both("crossings"), on=["study", "run"])
    return cells, runs, crossings


def _texts(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return columns as texts that a saved table keeps; one worker sits on one node, recorded or not."""
    texts = rows[list(names)].map(_text).astype(object)
    if "nodes" in texts:
        texts.loc[(texts["nodes"] == "") & (rows["workers"] == 1), "nodes"] = "1"
    return texts


def _text(value: Any) -> str:
    if pd.isna(value) or f"{value}" in ("True", "False"):
        return "" if pd.isna(value) else "on" if f"{value}" == "True" else "off"
    return f"{_number(value):.10g}" if math.isfinite(_number(value)) else f"{value}"


def _number(text: Any) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def _listed(values: Iterable[Any]) -> str:
    """Return distinct values, those that are known, as texts, smallest number first."""
    return ", ".join(sorted(set(map(_text, values)) - {""}, key=lambda text: (_number(text), text)))


def _values(cells: pd.DataFrame, name: str) -> list[set[str]]:
    """Return the values of a setting after and before; how workers communicate means nothing to one alone."""
    several = (cells["backend"] != "serial") & (cells["workers"] > 1)
    found = []
    for study in _STUDIES:
        own = cells["study"] == study
        found.append(
            set(cells.loc[own & several if name in _HOW[1:] and (own & several).any() else own, name].map(_text))
        )
    return found


def _free(match: str | None, cells: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of points.CELL that matched cells may differ in."""
    if match in (None, "auto"):
        values = {name: _values(cells, name) for name in _HOW}
        return tuple(name for name, (one, other) in values.items() if len(one) == len(other) == 1 and one != other)
    head, _, names = f"{match}".partition(":")
    if match != "exact" and (head != "except" or not names):
        forms = "auto, exact, except:SETTING,SETTING (batch, threads)"
        raise ConfigError(f"--match {match}: is not known; allowed: {forms}")
    allowed = [name for name in CELL if name != "workers"]
    for name in (chosen := [name.strip() for name in names.split(",") if names]):
        require_known(f"--match {match}: the setting", name, allowed)
    return tuple(name for name in allowed if name in chosen)


def _matched(
    cells: pd.DataFrame, free: Sequence[str], names: tuple[str, str]
) -> tuple[list[tuple[int, int]], pd.DataFrame]:
    """Return places of matched cells with results, (AFTER, BEFORE) each, and the cells of one study alone."""
    keys = ["serial", *(name for name in CELL if name not in free)]  # a plain worker is no partner of a library's one
    texts = _texts(cells, CELL).assign(serial=cells["backend"] == "serial", study=cells["study"], place=cells.index)
    partner: dict[Any, int] = {}
    # Nodes of two clusters hold different numbers of workers: equal nodes first, then any where that is not ambiguous.
    for on in (keys, [name for name in keys if name != "nodes"])[: 2 if "partition" in free else 1]:
        one, other = (texts.drop(list(partner)).query("study == @study") for study in _STUDIES)
        found = one.merge(other, on=on, suffixes=("", "_before"))
        several = found.duplicated(on, keep=False)
        for own, theirs in (("place", "place_before"), ("place_before", "place")):
            partner |= dict(zip(found[own][~several], found[theirs][~several], strict=True))
    rows = []
    for place, cell in cells[cells["repeats"] > 0].sort_values("study", ascending=False, kind="stable").iterrows():
        name, mate = names[cell["study"] == "after"], partner.get(place)
        if mate is None:
            once = f" once {', '.join(free)} may differ" if free else ""
            rows.append({**cell, "kind": "absent", "reason": f"no one cell of {name} fits it{once}"})
        elif not cells["repeats"][mate]:
            why = cells["reasons"][mate] or "no reason recorded"
            rows.append({**cell, "kind": "no result", "reason": f"no result in {name}: {why}"})
    pairs = [pair for pair in sorted(partner.items()) if pair[0] < pair[1] and cells["repeats"][[*pair]].all()]
    if not pairs:
        raise AnalysisError(_nothing_shared(cells[cells["repeats"] > 0], free, names))
    return pairs, pd.DataFrame(rows, columns=["study", *_SHOWN, "repeats", "kind", "reason"])


def _nothing_shared(known: pd.DataFrame, free: Sequence[str], names: tuple[str, str]) -> str:
    """Return why no cell has a partner: the settings that differ between the studies, and what can be done."""
    for study, name in zip(_STUDIES, names, strict=True):
        if study not in set(known["study"]):
            return f"{name}: holds no finished run; there is nothing to compare"
    differ = {n: two for n in CELL if n not in free and not set.intersection(*(two := _values(known, n)))}
    told = ", ".join(f"{name} ({_listed(two[0])} against {_listed(two[1])})" for name, two in differ.items())
    alone = f"none fits, or several do once {', '.join(free)} may differ; name fewer" if free else "none fits"
    why = f"they differ in {told}" if told else alone
    but = ",".join(name for name in differ if name != "workers")
    advice = f"; --match except:{but} matches cells all the same" if but else ""
    return f"{names[0]} and {names[1]} have no cell in common: {why}{advice}"


def _effects(metric: str, cells: pd.DataFrame, table: pd.DataFrame, pair: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the row of a pair (one for each target) that its runs or crossings in `table` give; none if not known."""
    (after, before), bases = (cells.loc[place] for place in pair), list(cells["base"][[*pair]])
    if (metric == "speedup" and set(bases) & {-1, *pair}) or (metric == "sync" and after["workers"] == 1):
        return
    parts = [table[table["cell"] == place] for place in (*pair, *(bases if metric == "speedup" else ()))]
    withheld = [flag for cell in (after, before) for flag in ("apart", "withheld") if flag in cell["flags"].split()]
    row = {
        "metric": metric,
        **{name: after[name] for name in _SHOWN},
        **{f"before_{name}": before[name] for name in ("series", "partition", "nodes", "repeats")},
        "after_repeats": after["repeats"],
        **dict.fromkeys(("target_mse", "before", "after", "ratio", "ratio_low", "ratio_high", "p"), math.nan),
        "test": "",
        "note": "",
    }
    if metric == "speedup" and withheld:
        yield row | {"note": FLAGS[withheld[0]]}
    elif metric == "target":
        for target in sorted(set(parts[0]["target_mse"]) & set(parts[1]["target_mse"]), reverse=True):
            own = [each[each["target_mse"] == target] for each in parts]
            row |= {"target_mse": target, "after_repeats": len(own[0]), "before_repeats": len(own[1])}
            yield row | _effect(metric, own)
    elif any(pd.to_numeric(each[METRICS[metric].column], errors="coerce").notna().any() for each in parts):
        yield row | _effect(metric, parts)


def _effect(metric: str, parts: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the numbers, or the note, of AFTER and BEFORE, and their baselines where `parts` has those, too."""
    values = [pd.to_numeric(each[METRICS[metric].column], errors="coerce").to_numpy(np.float64) for each in parts]
    for rows, each, when in zip(parts, values, _STUDIES * 2, strict=False):
        if metric == "target" and (missed := int((~rows["reached"].astype(bool)).sum())):
            return {"note": f"{missed} of {len(rows)} runs {when} missed the target: the times are lower bounds"}
        if not (each > 0).all():
            return {"note": f"not known, or 0, in a run {when}"}
    after, before = (_listed(each["energy_of"]) if metric == "energy" else "" for each in parts[:2])
    if after != before:
        return {"note": f"energy of {before or 'unknown devices'} before, of {after or 'unknown devices'} after"}
    means = [float(np.log(each).mean()) for each in values]
    found = stats.log_contrast(list(zip((1, -1, -1, 1), values, strict=False)))
    named = {**found.named("ratio", "ratio_low", "ratio_high"), "p": found.p, "test": "Welch t on logarithms"}
    return {"after": math.exp(means[0] - sum(means[2:3])), "before": math.exp(means[1] - sum(means[3:])), **named}


def _changes(
    cells: pd.DataFrame, runs: pd.DataFrame, studies: tuple[Analysis, Analysis], free: Sequence[str]
) -> tuple[Mapping[str, str], ...]:
    """Return what is not the same besides the numbers: settings left out of the matching, machines, versions, ..."""
    found = {name: [_listed(each) for each in _values(cells, name)] for name in (*free, "repeats")}
    if set(cells["backend"]) == {REPORTED}:
        found.pop("partition", None)  # of tables it is the name of the file
    for column in ("host", *ENVIRONMENT):
        known = [{each.get(column) for each in study.provenance["environment"]} for study in studies]
        # As texts: 3.10 of a version is not a number.
        found[column] = [", ".join(sorted(f"{value}" for value in each if value not in (None, ""))) for each in known]
    found |= {name: [_listed(runs[name][runs["study"] == study]) for study in _STUDIES] for name in _SEEN}
    return tuple(
        {"what": name.replace("_", " "), "before": before, "after": after}
        for name, (after, before) in found.items()
        if after != before
    )


def _doubts(
    runs: pd.DataFrame, differences: pd.DataFrame, changes: Sequence[Mapping[str, str]], names: tuple[str, str]
) -> Iterator[str]:
    """Yield what speaks against the numbers, and against their causes; `runs`: the matched ones."""
    after, before = names
    told = _texts(runs.dropna(subset="started"), ["study", "run", "started", "samples_per_s"]).drop_duplicates()
    if same := int(told.duplicated(["run", "started", "samples_per_s"]).sum()):
        yield (
            f"{same} of the {(runs['study'] == 'after').sum()} matched runs of {after} are runs of {before} too, with "
            "the same start and throughput: nothing new was measured there."
        )
    elif (differences["partition"] == differences["before_partition"]).any():
        days = [sorted(told["started"][told["study"] == study].str[:10]) for study in ("before", "after")]
        spans = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in days if each]
        when = f" ({' and '.join(spans)})" if len(set(spans)) == 2 else ""
        yield (
            f"The runs of {before} and {after} were not made in turns{when}: what drifted on the machine between them "
            "(temperature, clock rates, other users) counts as a difference. horovod-study run A B runs both in turns."
        )
    if (several := sum(each["what"] != "repeats" for each in changes)) > 1:
        yield f"{several} things differ between {before} and {after}; each is a possible cause of a difference."
    rows = differences[differences["metric"] == "throughput"]
    for row in rows[(rows["backend"] == "serial") & rows["verdict"].isin((BETTER, WORSE))].to_dict("records"):
        if (share := abs(row["ratio"] - 1)) > 0.02:  # a smaller change is not worth a doubt
            yield (
                f"One plain worker ({row['setting']}), which does not communicate, is {100 * share:.1f} % "
                f"{row['word']} too: that part of a difference in throughput is not one of communication; speedups "
                "are free of it."
            )


def read_limits(words: Sequence[str]) -> dict[str, float]:
    """Return {word: limit as a share} of `slower=5%`, `missing`, ...; ConfigError for what is no such word."""
    limits: dict[str, float] = {}
    for text in words:
        word, _, value = text.partition("=")
        require_known("--fail-on", word, (*GATE_WORDS, *BARE_WORDS))
        number = _number(value.strip().removesuffix("%")) if value.strip().endswith("%") else math.nan
        if word in limits or (value if word in BARE_WORDS else not 0 <= number < 1000):
            form = word if word in BARE_WORDS else f"a percentage, as in {word}=5%"
            raise ConfigError(f"--fail-on {text}: give {form}, and give it once")
        limits[word] = 0.0 if word in BARE_WORDS else number / 100
    return limits


def gate(found: StudyComparison, limits: Mapping[str, float]) -> dict[str, Any]:
    """Return what `limits` (of `read_limits`) say of a comparison: `passed`, `unresolved_fails`, `checks`, `missing`.

    `checks` has a row of `differences` with `limit` and `outcome` for each cell and limit, one without a cell for a
    metric that no cell knows. `missing`: rows of `unmatched`; None where nobody asked.
    """
    checks: list[dict[Any, Any]] = []
    for word in (each for each in limits if each in GATE_WORDS):
        nothing: dict[Any, Any] = {
            "metric": GATE_WORDS[word],
            "verdict": UNKNOWN,
            "note": "not known in any matched cell",
        }
        for row in found.of(GATE_WORDS[word]).to_dict("records") or [nothing]:
            checks.append({**row, "word": word, "limit": limits[word], "outcome": outcome(row, limits[word])})
    missing = found.unmatched.query("study == 'before'").to_dict("records") if "missing" in limits else None
    bad = (FAILED, UNDECIDED) if "unresolved" in limits else (FAILED,)
    passed = not missing and not any(each["outcome"] in bad for each in checks)
    return {"passed": passed, "unresolved_fails": "unresolved" in limits, "checks": checks, "missing": missing}


def outcome(row: Mapping[Any, Any], limit: float) -> str:
    """Return FAILED, PASSED or UNDECIDED for one row of `differences` and a limit as a share.

    A cell fails when it is resolved to be worse, and worse by the limit or more. It passes when its whole 95 % interval
    is on the good side of the limit. What is in between is undecided, as are cells without an interval.
    """
    sign = METRICS[row["metric"]].sign
    if row["verdict"] == WORSE and sign * (row["ratio"] - 1) >= limit:
        return FAILED
    worst = row.get("ratio_low" if sign < 0 else "ratio_high", math.nan)
    return PASSED if sign * (worst - 1) < limit else UNDECIDED  # NaN compares false: undecided
