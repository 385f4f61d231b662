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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import CELL, ENVIRONMENT, REPORTED, baseline_place, measured
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

    def worsening(self, ratio: float) -> float:
        """Return by which share of BEFORE a ratio is worse; negative where it is better."""
        return self.sign * (ratio - 1)


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

_OPTIONS = packaged().options
_CHOICES = (name for name in packaged().distinguishing if not _OPTIONS[name].roles & Role.LEARNING)
_HOW = ("partition", "backend", "transport", *_CHOICES)
"""Settings that say how and where the same work is done: a change of one of these is what studies are compared for."""
_SEEN = ("budget", "warmup_steps", "per_node", "path", "device", "energy_of")
"""Columns of the runs that should not differ unless they are the change."""
_OF_CELL = ["study", "series", "workers", "nodes", "batch", "train_samples"]
_TESTS = ("Welch t on logarithms", "paired t on logarithms")
_SHOWN = ("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch")


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
    interleaved: bool  # whether all matched runs alternated
    changes: tuple[Mapping[str, str], ...]  # what else differs: what, before, after
    doubts: tuple[str, ...]

    def of(self, metric: str) -> pd.DataFrame:
        """Return the rows of one of METRICS."""
        return self.differences[self.differences["metric"] == metric]


_Pair: TypeAlias = tuple[int, int]
"""Places of matched cells, of AFTER and of BEFORE."""


def compare_studies(
    after: Analysis, before: Analysis, *, match: str | None = None, names: tuple[str, str] = ("after", "before")
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
    if not pairs:
        raise AnalysisError(_nothing_shared(cells, free, names, several="ambiguous" in set(unmatched["kind"])))
    turns = all(_taking_turns(runs[runs["cell"].isin(pair)]) for pair in pairs)
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        table = crossings if metric == "target" else runs
        rows += _judged(metric, [row for pair in pairs for row in _effects(metric, cells, table, pair, turns=turns)])
    own = [runs[runs["cell"].isin(places)] for places in zip(*pairs, strict=True)]
    changes = _changes(cells.loc[[place for pair in pairs for place in pair]], own, (before, after), free)
    several = sum(each["what"] != "repeats" for each in changes)
    differences, words = pd.DataFrame(rows), [f"everything that defines them{' but ' * bool(free)}{', '.join(free)}"]
    words += ["equal workers on other numbers of nodes too"] if "partition" in free else []
    return StudyComparison(
        points=(after.points, before.points),
        names=names,
        differences=differences,
        unmatched=unmatched,
        matched_by_all_but=free,
        matching=f"Cells are matched by {'; '.join(words)}.",
        interleaved=turns,
        changes=changes,
        doubts=tuple(_doubts(own, differences, several, names, turns=turns)),
    )


def verdicts(metric: str, effects: Sequence[stats.Interval]) -> list[tuple[str, float]]:
    """Return verdict and p after Holm of each effect of one of METRICS; all of them are one family."""
    tested = [place for place, each in enumerate(effects) if math.isfinite(each.p)]
    adjusted = dict(zip(tested, stats.holm([effects[place].p for place in tested]), strict=True))
    found = []
    for place, each in enumerate(effects):
        verdict = TOO_FEW if math.isfinite(each.value) else UNKNOWN
        if place in adjusted:
            resolved = adjusted[place] < stats.ALPHA and each.excludes(1)
            verdict = ALIKE if not resolved else WORSE if METRICS[metric].worsening(each.value) > 0 else BETTER
        found.append((verdict, adjusted.get(place, math.nan)))
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


def _joined(after: Analysis, before: Analysis, names: tuple[str, str]) -> tuple[pd.DataFrame, ...]:
    """Return points, finished runs and crossings of both studies in one order, whatever that of their rows.

    The place of a point is the `cell` of its runs and crossings; `base` is that of its baseline, -1 without one.
    """
    studies = {"after": after, "before": before}
    ranks: dict[Any, Any] = {"backend": dict(zip(BACKENDS, range(99), strict=False))}
    ranks["transport"] = dict(zip(TRANSPORTS, range(99), strict=False))

    def of_both(name: str) -> pd.DataFrame:
        # As objects: what one study does not know changes no value of the other.
        frames = [getattr(each, name).astype(object).assign(study=study) for study, each in studies.items()]
        return pd.DataFrame(pd.concat(frames, ignore_index=True))

    cells, runs = of_both("points"), of_both("runs")
    by = ["study", "partition", *ranks, "ref_batch", "setting", *_OF_CELL[1:]]
    cells = cells.sort_values(by, key=lambda each: each.map(ranks.get(each.name, lambda x: x)), ignore_index=True)
    runs = runs[measured(runs)].sort_values(["study", "repeat", "run"], ignore_index=True)
    runs = runs.reindex(columns=list(dict.fromkeys((*runs.columns, *_SEEN))))
    keys = _texts(cells, _OF_CELL).assign(cell=cells.index)
    runs["cell"] = _texts(runs, _OF_CELL).merge(keys, how="left", on=_OF_CELL)["cell"].to_numpy()
    counted = runs["cell"].value_counts().reindex(cells.index, fill_value=0)
    for study in cells["study"][counted != cells["repeats"]]:
        again = "make the directory again with horovod-study report"
        raise AnalysisError(
            f"{names[study == 'before']}: runs.csv and points.csv do not tell of the same runs; {again}"
        )
    kinds = [k for k in ("plain", "wrapped") if all(s.points[f"speedup_{k}"].notna().any() for s in studies.values())]
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


def _listed(values: Iterable[Any], most: int = 99) -> str:
    """Return distinct values, those that are known, as texts, smallest number first; dots stand for further ones."""
    ordered = sorted(set(map(_text, values)) - {""}, key=lambda text: (_number(text), text))
    return ", ".join([*ordered[:most], *(["..."] if len(ordered) > most else [])])


def _values(cells: pd.DataFrame, name: str) -> list[set[str]]:
    """Return the values of a setting before and after; how workers communicate means nothing to one alone."""
    found = []
    for study in ("before", "after"):
        own = cells[cells["study"] == study]
        several = own[(own["backend"] != "serial") & (own["workers"] > 1)]
        found.append(set((several if len(several) and name in _HOW[1:] else own)[name].map(_text)))
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


def _matched(cells: pd.DataFrame, free: Sequence[str], names: tuple[str, str]) -> tuple[list[_Pair], pd.DataFrame]:
    """Return the pairs with results in the order of AFTER, and the cells that one study alone has a result of."""
    keys = ["serial", *(name for name in CELL if name not in free)]  # a plain worker is no partner of a library's one
    texts = _texts(cells, CELL).assign(serial=cells["backend"] == "serial", study=cells["study"], place=cells.index)
    partner: dict[Any, int] = {}
    rivals: set[int] = set()
    # Nodes of two clusters hold different numbers of workers: equal nodes first, then any where that is not ambiguous.
    for on in (keys, [name for name in keys if name != "nodes"])[: 2 if "partition" in free else 1]:
        one, other = (texts.drop(list(partner)).query("study == @study") for study in ("after", "before"))
        found = one.merge(other, on=on, suffixes=("", "_before"))
        several = found.duplicated(on, keep=False)
        for own, theirs in (("place", "place_before"), ("place_before", "place")):
            partner |= dict(zip(found[own][~several], found[theirs][~several], strict=True))
            rivals |= set(found[own][several])
    rows = []
    for place, cell in cells[cells["repeats"] > 0].sort_values("study", ascending=False, kind="stable").iterrows():
        name, mate = names[cell["study"] == "after"], partner.get(place)
        kind, reason = "absent", f"not measured in {name}"
        if place in rivals:
            more = "name fewer settings after --match except:"
            kind, reason = "ambiguous", f"several cells fit, here or in {name}; {more}"
        if mate is not None:
            kind, reason = "no result", f"no result in {name}: {cells['reasons'][mate] or 'no reason recorded'}"
        if mate is None or not cells["repeats"][mate]:
            rows.append({**cell, "kind": kind, "reason": reason})
    pairs = [pair for pair in sorted(partner.items()) if pair[0] < pair[1] and cells["repeats"][[*pair]].all()]
    return pairs, pd.DataFrame(rows, columns=["study", *_SHOWN, "repeats", "kind", "reason"])


def _nothing_shared(cells: pd.DataFrame, free: Sequence[str], names: tuple[str, str], *, several: bool) -> str:
    """Return why no cell has a partner: the settings that differ between the studies, and what can be done."""
    known = cells[cells["repeats"] > 0]
    for study, name in zip(("after", "before"), names, strict=True):
        if study not in set(known["study"]):
            return f"{name}: holds no finished run; there is nothing to compare"
    values = {name: _values(known, name) for name in CELL if name not in free}
    differ = [name for name, (one, other) in values.items() if not one & other]
    told = [f"{name} ({_listed(values[name][1], 4)} against {_listed(values[name][0], 4)})" for name in differ]
    alone = (
        f"several fit each other once {', '.join(free)} may differ; name fewer" if several else "all differ somewhere"
    )
    why = f"they differ in {', '.join(told)}" if told else alone
    but = ",".join(name for name in differ if name != "workers")
    advice = f"; --match except:{but} matches cells all the same" if but else ""
    return f"{names[0]} and {names[1]} have no cell in common: {why}{advice}"


def _effects(
    metric: str, cells: pd.DataFrame, table: pd.DataFrame, pair: _Pair, *, turns: bool
) -> Iterator[dict[str, Any]]:
    """Yield the row of a pair (one for each target) that its runs or crossings in `table` give; none if not known."""
    (after, before), bases = (cells.loc[place] for place in pair), list(cells["base"][[*pair]])
    if (metric == "speedup" and set(bases) & {-1, *pair}) or (metric == "sync" and after["workers"] == 1):
        return
    parts = [table[table["cell"] == place] for place in (*pair, *(bases if metric == "speedup" else ()))]
    row = {
        "metric": metric,
        **{name: after[name] for name in _SHOWN},
        **{f"before_{name}": before[name] for name in ("series", "partition", "nodes", "repeats")},
        "after_repeats": after["repeats"],
        **dict.fromkeys(("target_mse", "before", "after", "ratio", "ratio_low", "ratio_high", "p"), math.nan),
        "test": "",
        "note": "",
    }
    if metric == "target":
        for target in sorted(set(parts[0]["target_mse"]) & set(parts[1]["target_mse"]), reverse=True):
            own = [each[each["target_mse"] == target] for each in parts]
            row |= {"target_mse": target, "after_repeats": len(own[0]), "before_repeats": len(own[1])}
            yield row | _effect(metric, own, turns=False)
    elif any(pd.to_numeric(each[METRICS[metric].column], errors="coerce").notna().any() for each in parts):
        yield row | _effect(metric, parts, turns=turns)


def _effect(metric: str, parts: Sequence[pd.DataFrame], *, turns: bool) -> dict[str, Any]:
    """Return the numbers, or the note, of AFTER and BEFORE, and their baselines where `parts` has those, too."""
    values = [pd.to_numeric(each[METRICS[metric].column], errors="coerce").to_numpy(np.float64) for each in parts]
    for rows, each, when in zip(parts, values, ("after", "before") * 2, strict=False):
        if metric == "target" and (missed := int((~rows["reached"].astype(bool)).sum())):
            return {"note": f"{missed} of {len(rows)} runs {when} missed the target: the times are lower bounds"}
        if not (each > 0).all():
            return {"note": f"not known, or 0, in a run {when}"}
    after, before = (_listed(each["energy_of"]) if metric == "energy" else "" for each in parts[:2])
    if after != before:
        return {"note": f"energy of {before or 'unknown devices'} before, of {after or 'unknown devices'} after"}
    means = [float(np.log(each).mean()) for each in values]
    signed = list(zip((1, -1, -1, 1), values, strict=False))
    paired = turns and len({tuple(each["repeat"]) for each in parts}) == 1
    ratios = [(1, np.exp(sum(sign * np.log(each) for sign, each in signed)))] if paired else signed
    found = stats.log_contrast(ratios)
    named = {**found.named("ratio", "ratio_low", "ratio_high"), "p": found.p, "test": _TESTS[paired]}
    return {"after": math.exp(means[0] - sum(means[2:3])), "before": math.exp(means[1] - sum(means[3:])), **named}


def _taking_turns(runs: pd.DataFrame) -> bool:
    """Return whether repeat by repeat the runs of both cells were made before either had its next repeat."""
    if runs.duplicated(["study", "repeat"]).any():
        return False
    runs = runs.assign(started=pd.to_datetime(runs["started"], utc=True, errors="coerce", format="ISO8601"))
    begun = runs.pivot(index="repeat", columns="study", values="started")
    first, last = begun.min(axis=1).sort_values(), begun.max(axis=1).sort_values()
    # Runs that began at the same moment ran beside each other, which is another thing.
    apart = (begun["after"] != begun["before"]).all() and (last.to_numpy()[:-1] < first.to_numpy()[1:]).all()
    return bool(len(begun) > 1 and begun.notna().all(axis=None) and apart)


def _changes(
    cells: pd.DataFrame, runs: Sequence[pd.DataFrame], studies: tuple[Analysis, Analysis], free: Sequence[str]
) -> tuple[Mapping[str, str], ...]:
    """Return what is not the same besides the numbers: settings left out of the matching, machines, versions, ..."""
    found = {name: [_listed(each) for each in _values(cells, name)] for name in (*free, "repeats")}
    if set(cells["backend"]) == {REPORTED}:
        found.pop("partition", None)  # of tables it is the name of the file
    for column in ("host", *ENVIRONMENT):
        known = [{each.get(column) for each in study.provenance["environment"]} for study in studies]
        # As texts: 3.10 of a version is not a number.
        found[column] = [", ".join(sorted(f"{value}" for value in each if value not in (None, ""))) for each in known]
    for column in _SEEN:
        found[column] = [_listed(each[column]) for each in reversed(runs)]
    differ = ((name.replace("_", " "), *two) for name, two in found.items() if two[0] != two[1])
    return tuple(dict(zip(("what", "before", "after"), each, strict=True)) for each in differ)


def _doubts(
    runs: Sequence[pd.DataFrame], differences: pd.DataFrame, several: int, names: tuple[str, str], *, turns: bool
) -> Iterator[str]:
    """Yield what speaks against the numbers, and against their causes; `runs`: the matched ones of AFTER and BEFORE."""
    after, before = names
    started = ["run", "started", "samples_per_s"]
    told = [_texts(each.dropna(subset="started"), started).drop_duplicates() for each in runs]
    if same := len(told[0].merge(told[1], on=started)):
        yield (
            f"{same} of the {len(runs[0])} matched runs of {after} are runs of {before} too, with the same start and "
            "throughput: nothing new was measured there."
        )
    elif not turns and (differences["partition"] == differences["before_partition"]).any():
        days = [sorted(each["started"].dropna().astype(str).str[:10]) for each in reversed(runs)]
        spans = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in days if each]
        when = f" ({' and '.join(spans)})" if len(set(spans)) == 2 else ""
        yield (
            f"The runs of {before} and {after} did not alternate{when}: what drifted on the machine between them "
            "(temperature, clock rates, other users) counts as a difference. Run both again in turns, or "
            "horovod-study compare, before you blame the change."
        )
    if several > 1:
        yield f"{several} things differ between {before} and {after}; each is a possible cause of a difference."
    rows = differences[differences["metric"] == "throughput"]
    for row in rows[rows["backend"] == "serial"].to_dict("records"):
        if row["verdict"] in (BETTER, WORSE) and abs(row["ratio"] - 1) > 0.02:  # a smaller change is not worth a doubt
            yield (
                f"One plain worker ({row['setting']}), which does not communicate, is "
                f"{100 * abs(row['ratio'] - 1):.1f} % {row['word']} too: that part of a difference in throughput is "
                "not one of communication; speedups are free of it."
            )
    if few := (rows["verdict"] == TOO_FEW).sum():
        less = f"fewer than {stats.MIN_REPEATS} repeats in one of the studies"
        yield f"{few} of {len(rows)} matched cells have {less}: no interval, and no verdict."
    if "speedup" not in set(differences["metric"]) and (differences["workers"] > 1).any():
        yield "No baseline that both studies have: speedups and efficiencies are not compared."


FAILED, PASSED, UNDECIDED = "failed", "passed", "undecided"

GATE_WORDS: Mapping[str, str] = {metric.word: name for name, metric in METRICS.items()} | {"efficiency": "speedup"}
"""Words of `--fail-on WORD=LIMIT`, and the metric that each one is about."""

BARE_WORDS = ("missing", "unresolved")


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

    `checks` has a row of `differences` with `limit` and `outcome` for each cell and limit. A cell fails when it is
    resolved to be worse, and worse by the limit or more. It passes when its whole 95 % interval is on the good side of
    the limit. Whatever is in between is undecided, as are cells without an interval and metrics that no cell knows.
    `missing`: rows of `unmatched`; None where nobody asked.
    """
    checks: list[dict[Any, Any]] = []
    for word, limit in ((word, limit) for word, limit in limits.items() if word in GATE_WORDS):
        nothing: dict[Any, Any] = {
            "metric": GATE_WORDS[word],
            "verdict": UNKNOWN,
            "note": "not known in any matched cell",
        }
        rows = found.of(GATE_WORDS[word]).to_dict("records") or [nothing]
        checks += [{**row, "word": word, "limit": limit, "outcome": outcome(row, limit)} for row in rows]
    gone = found.unmatched.query("study == 'before' and kind != 'ambiguous'").to_dict("records")
    missing = gone if "missing" in limits else None
    bad = (FAILED, UNDECIDED) if "unresolved" in limits else (FAILED,)
    passed = not missing and not any(each["outcome"] in bad for each in checks)
    return {"passed": passed, "unresolved_fails": "unresolved" in limits, "checks": checks, "missing": missing}


def outcome(row: Mapping[Any, Any], limit: float) -> str:
    """Return FAILED, PASSED or UNDECIDED for one row of `differences` and a limit as a share."""
    metric = METRICS[row["metric"]]
    if row["verdict"] == WORSE and metric.worsening(row["ratio"]) >= limit:
        return FAILED
    worst = row.get("ratio_low" if metric.sign < 0 else "ratio_high", math.nan)
    return PASSED if metric.worsening(worst) < limit else UNDECIDED  # NaN compares false: undecided
