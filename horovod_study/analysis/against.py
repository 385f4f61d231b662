"""Two studies joined by cell: what is faster or slower after a change or on another cluster, and can the runs tell.

Every number is a ratio AFTER / BEFORE of geometric means over repeats, with Welch's t on logarithms, 95 % (see
stats.log_contrast), and Holm's p over all cells (and targets) of one metric. A throughput has two parts; a speedup has
four: the baselines of both studies have errors of their own. A difference is resolved when p after Holm is below
stats.ALPHA and the interval leaves out 1; too few repeats give neither interval nor verdict.
"""

import math
from collections import namedtuple
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import CELL, ENVIRONMENT, FLAGS, REPORTED, baseline_place, measured
from horovod_study.analysis.study import Analysis
from horovod_study.config.doors import accept
from horovod_study.config.roles import Role
from horovod_study.config.study_file import Share
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError

Metric = namedtuple("Metric", "column title unit scale better worse sign")
"""One quantity: its column in `runs` (a target's in `crossings`), the scale to its unit, the words of verdicts, and -1
where higher is better."""
METRICS: Mapping[str, Metric] = {
    "throughput": Metric("samples_per_s", "throughput", "samples/s", 1, "faster", "slower", -1),
    "step": Metric("step_s_median", "median step", "ms", 1e3, "shorter", "longer", 1),
    "sync": Metric("sync_s", "exposed synchronisation", "ms per step", 1e3, "shorter", "longer", 1),
    "speedup": Metric("samples_per_s", "speedup", "", 1, "higher", "lower", -1),
    "target": Metric("train_s", "time to target", "s", 1, "sooner", "later", 1),
    "energy": Metric("energy_per_sample_j", "energy per sample", "mJ", 1e3, "less", "more", 1),
}
BETTER, WORSE, ALIKE, TOO_FEW, UNKNOWN = "better", "worse", "no difference resolved", "too few repeats", "not known"
FAILED, PASSED, UNDECIDED = "failed", "passed", "undecided"
_STUDIES = ("after", "before")
_PARALLEL = tuple(name for name in packaged().distinguishing if not packaged().options[name].roles & Role.LEARNING)
_HOW = ("partition", "backend", "transport", *_PARALLEL)
"""Settings that say how and where the same work is done: a change of one of these is what studies are compared for."""
_SEEN = ("budget", "warmup_steps", "per_node", "path", "device", "energy_of")
"""Columns of the runs that should not differ unless they are the change."""
_SHOWN = ("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch")


@dataclass(frozen=True)
class StudyComparison:
    """What AFTER says against BEFORE; docs/metrics.md has the columns of `differences` and `unmatched`."""

    points: tuple[pd.DataFrame, pd.DataFrame]  # of AFTER and BEFORE, as are `names`
    names: tuple[str, str]
    differences: pd.DataFrame  # a row per matched cell and metric (and target)
    unmatched: pd.DataFrame  # cells that one study alone has a result of
    matched_by_all_but: tuple[str, ...]
    changes: tuple[Mapping[str, str], ...]  # what else differs: what, before, after
    doubts: tuple[str, ...]

    def of(self, metric: str) -> pd.DataFrame:
        """Return the rows of one of METRICS."""
        return self.differences[self.differences["metric"] == metric]

    @property
    def matching(self) -> str:
        """By what cells are matched, in words."""
        but = ", ".join(("", *self.matched_by_all_but)).replace(",", " but", 1)
        return f"Cells are matched by everything that defines them{but}."


def compare_studies(after: Analysis, before: Analysis, *, names: tuple[str, str] = _STUDIES) -> StudyComparison:
    """Return what `after` says against `before`; equal analyses with rows in any order give equal results.

    Cells match in all but the settings that say how the same work is done, of which each study has one value, and not
    the same. Where partitions differ, equal workers on other numbers of nodes match too. Raises AnalysisError when no
    cell with a result has a partner.
    """
    cells, runs = _joined(after, before)
    values = {name: _values(cells, name) for name in _HOW}
    free = tuple(name for name, (one, other) in values.items() if len(one) == len(other) == 1 and one != other)
    pairs, unmatched = _pairs(cells, free, names)
    parts: dict[Any, pd.DataFrame] = dict(list(runs.groupby(["cell", "target_mse"])))
    targets = sorted({of for _, of in parts}, reverse=True)
    rows: list[dict[str, Any]] = []
    for metric, how in METRICS.items():
        goals = [each for each in targets if bool(each) == (metric == "target")]
        told = [row for pair in pairs for goal in goals if (row := _effect(metric, pair, goal, parts))]
        effects = [stats.Interval(value=r["ratio"], low=r["ratio_low"], high=r["ratio_high"], p=r["p"]) for r in told]
        tests = sum(math.isfinite(each.p) for each in effects)
        for row, each, (verdict, p) in zip(told, effects, verdicts(metric, effects), strict=True):
            most = max(abs(each.low - 1), abs(each.high - 1)) if verdict == ALIKE else math.nan
            word = {BETTER: how.better, WORSE: how.worse}.get(verdict, "")
            rows.append(row | {"p_holm": p, "verdict": verdict, "word": word, "tests": tests, "no_more_than": most})
    own = [place for pair in pairs for place in (pair["place"], pair["before_place"])]
    runs, differences = runs[runs["cell"].isin(own) & (runs["target_mse"] == 0)], pd.DataFrame(rows)
    changes = _changes(cells.loc[own], runs, (after, before), free)
    doubts = tuple(_doubts(runs, differences, changes, names))
    return StudyComparison((after.points, before.points), names, differences, unmatched, free, changes, doubts)


def verdicts(metric: str, effects: Sequence[stats.Interval]) -> list[tuple[str, float]]:
    """Return verdict and p after Holm of each effect of one of METRICS; all of them are one family."""
    adjusted, found = iter(stats.holm([each.p for each in effects if math.isfinite(each.p)])), []
    for each in effects:
        verdict, p = TOO_FEW if math.isfinite(each.value) else UNKNOWN, math.nan
        if math.isfinite(each.p):
            p = next(adjusted)
            verdict = WORSE if METRICS[metric].sign * (each.value - 1) > 0 else BETTER
            verdict = verdict if p < stats.ALPHA and each.excludes(1) else ALIKE
        found.append((verdict, p))
    return found


def _joined(after: Analysis, before: Analysis) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return points, and finished runs with crossings, of both studies in one order, whatever that of their rows.

    The `place` of a point is the `cell` of its runs; `base` is that of its baseline, -1 without one. Runs as such have
    the target 0.
    """

    def of_both(name: str) -> pd.DataFrame:
        # As objects: what one study does not know changes no value of the other.
        both = zip(_STUDIES, (after, before), strict=True)
        tables = [getattr(one, name).astype(object).copy().assign(study=study) for study, one in both]
        return pd.DataFrame(pd.concat(tables))

    key = ["study", "series", "workers", "nodes", "batch", "train_samples"]
    cells = of_both("points").assign(parallel=lambda table: table["backend"] != "serial", base=-1)
    by = ["study", "partition", "parallel", "backend", "transport", "ref_batch", "setting", *key[1:]]
    cells = cells.sort_values(by, ignore_index=True).assign(place=lambda table: table.index)
    runs = of_both("runs").sort_values(["study", "repeat", "run"])
    runs = runs[measured(runs)].reset_index(drop=True).copy()
    places = _texts(cells, key).assign(cell=cells.index)
    runs["cell"] = _texts(runs, key).merge(places, how="left", on=key)["cell"].to_numpy()
    # Of cells that alternated, the page says the rate that follows from the ratios within rounds: the same here.
    rates, said = (
        pd.to_numeric(each, errors="coerce") for each in (runs["samples_per_s"], cells["samples_per_s_median"])
    )
    runs["samples_per_s"] = rates * runs["cell"].map(said) / rates.groupby(runs["cell"]).transform("median")
    kinds = [k for k in ("plain", "wrapped") if all(s.points[f"speedup_{k}"].notna().any() for s in (after, before))]
    for _, own in cells.groupby("study") if kinds else ():
        records: list[Any] = own.to_dict("records")
        bases = [baseline_place(records, cell, kinds[0]) for cell in records]
        cells.loc[own.index, "base"] = [-1 if base is None else own.index[base] for base in bases]
    crossings = runs[["study", "run", "cell"]].merge(of_both("crossings"), on=["study", "run"])
    columns = list(dict.fromkeys((*runs, *_SEEN, "target_mse")))
    return cells, pd.concat([runs.assign(target_mse=0.0).reindex(columns=columns), crossings], ignore_index=True)


def _texts(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return columns as texts that a saved table keeps; one worker sits on one node, recorded or not."""
    texts = rows[list(names)].map(_text).astype(object)
    if "nodes" in texts:
        texts.loc[(texts["nodes"] == "") & (rows["workers"] == 1), "nodes"] = "1"
    return texts


def _text(value: Any) -> str:
    try:
        return {"True": "on", "False": "off"}.get(f"{value}") or ("" if pd.isna(value) else f"{float(value):.10g}")
    except ValueError:
        return f"{value}"


def _values(cells: pd.DataFrame, name: str) -> list[set[str]]:
    """Return the values of a setting after and before; how workers communicate means nothing to one alone."""
    several = cells[cells["parallel"] & (cells["workers"] > 1)] if name in _HOW[1:] else cells
    both = ([each[each["study"] == study] for each in (several, cells)] for study in _STUDIES)
    return [set((one if len(one) else other)[name].map(_text)) for one, other in both]


def _listed(texts: Collection[str]) -> str:
    return ", ".join(sorted({*texts} - {""}, key=lambda text: (len(text), text)))


def _pairs(
    cells: pd.DataFrame, free: Sequence[str], names: tuple[str, str]
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Return matched cells, those of BEFORE as `before_...` beside those of AFTER, and what one study alone has."""
    texts = _texts(cells, CELL).assign(**cells[["study", "parallel", "place"]])
    keys = ["parallel", *(name for name in CELL if name not in free)]  # a plain worker is no partner of a library's one
    mates: dict[int, int] = {}
    # Nodes of two clusters hold different numbers of workers: equal nodes first, then any where that is not ambiguous.
    for on in (keys, [name for name in keys if name != "nodes"])[: 2 if "partition" in free else 1]:
        one, other = (texts.drop(list(mates)).query("study == @study") for study in _STUDIES)
        found = one.merge(other, on=on, suffixes=("", "_before")).drop_duplicates(on, keep=False)
        mates |= dict(found[["place", "place_before"]].itertuples(index=False))
        mates |= dict(found[["place_before", "place"]].itertuples(index=False))
    known, alone, pairs = cells[cells["repeats"] > 0], [], []
    for place, cell in known.sort_values("study", ascending=False, kind="stable").iterrows():
        name, mate = names[cell["study"] == "after"], mates.get(place)  # type: ignore[call-overload]
        if mate is None:
            alone.append({**cell, "kind": "absent", "reason": f"no one cell of {name} fits it"})
        elif mate not in known.index:
            why = f"no result in {name}: {cells['reasons'][mate] or 'no reason recorded'}"
            alone.append({**cell, "kind": "no result", "reason": why})
        elif cell["study"] == "after":
            pairs.append(
                {f"{name}": value for name, value in {**cell, **cells.loc[mate].add_prefix("before_")}.items()}
            )
    if pairs:
        return pairs, pd.DataFrame(alone, columns=["study", *_SHOWN, "repeats", "kind", "reason"])
    values = {name: _values(known, name) for name in CELL if name not in free}
    differ = {name: both for name, both in values.items() if not set.intersection(*both)}
    why = "; ".join(
        f"{name} is {_listed(a)} in {names[0]}, {_listed(b)} in {names[1]}" for name, (a, b) in differ.items()
    )
    raise AnalysisError(f"{' and '.join(names)} have no cell in common: {why or 'none fits, or several do'}")


def _effect(
    metric: str, pair: Mapping[str, Any], target: float, runs: Mapping[Any, pd.DataFrame]
) -> dict[str, Any] | None:
    """Return the row of a pair that its `runs` (by cell and target) give; None where they do not know the metric."""
    sides = ("place", "before_place", "base", "before_base")  # a speedup has baselines, too
    places = [pair[name] for name in sides[: 4 if metric == "speedup" else 2]]
    if set(places[2:]) & {-1, *places[:2]} or (metric == "sync" and pair["workers"] == 1):
        return None
    if any((place, target) not in runs for place in places):
        return None
    parts = [runs[place, target] for place in places]
    values = [pd.to_numeric(each[METRICS[metric].column], errors="coerce").to_numpy(np.float64) for each in parts]
    row = {name: pair[name] for name in (*_SHOWN, "before_series", "before_partition", "before_nodes")}
    row = {"metric": metric, **row, "target_mse": target or math.nan}
    row |= dict.fromkeys(("before", "after", "ratio", "ratio_low", "ratio_high", "p"), math.nan)
    row |= {"test": "", "note": "", "before_repeats": len(parts[1]), "after_repeats": len(parts[0])}
    flags = {*f"{pair['flags']} {pair['before_flags']}".split()} & {"apart", "withheld"} if metric == "speedup" else ()
    devices = [_listed(each["energy_of"].map(_text)) or "unknown devices" for each in parts[:2]]
    notes = [FLAGS[flag] for flag in sorted(flags)]
    for table, own, when in zip(parts, values, _STUDIES * 2, strict=False):
        missed = int((~table["reached"].astype(bool)).sum()) if metric == "target" else 0
        late = f"{missed} of {len(table)} runs {when} missed the target: the times are lower bounds"
        notes += [late] * bool(missed) + [f"not known, or 0, in a run {when}"] * (not (own > 0).all())
    if metric == "energy" and devices[0] != devices[1]:
        notes.append(f"energy of {devices[1]} before, of {devices[0]} after")
    if not flags and not np.isfinite(np.concatenate(values)).any():
        return None
    if notes:
        return row | {"note": notes[0]}
    found = stats.log_contrast(list(zip((1, -1, -1, 1), values, strict=False)))
    one, other, *bases = (float(np.log(each).mean()) for each in values)
    row |= {"after": math.exp(one - sum(bases[:1])), "before": math.exp(other - sum(bases[1:]))}
    return row | found.named("ratio", "ratio_low", "ratio_high") | {"p": found.p, "test": "Welch t on logarithms"}


def _changes(
    cells: pd.DataFrame, runs: pd.DataFrame, studies: tuple[Analysis, Analysis], free: Sequence[str]
) -> tuple[Mapping[str, str], ...]:
    """Return what is not the same besides the numbers: settings left out of the matching, machines, versions, ..."""
    reported = set(cells["backend"]) == {REPORTED}  # of tables the partition is the name of the file
    found = {name: _values(cells, name) for name in (*free, "repeats") if not (reported and name == "partition")}
    for column in ("host", *ENVIRONMENT):  # not by _text: 3.10 of a version is not a number
        known = [{each.get(column) for each in study.provenance["environment"]} - {None} for study in studies]
        found[column] = [{f"{value}" for value in each} for each in known]
    found |= {name: [set(runs[name][runs["study"] == study].map(_text)) for study in _STUDIES] for name in _SEEN}
    told = ((name.replace("_", " "), _listed(one), _listed(other)) for name, (one, other) in found.items())
    return tuple({"what": name, "before": other, "after": one} for name, one, other in told if one != other)


def _doubts(
    runs: pd.DataFrame, differences: pd.DataFrame, changes: Sequence[Mapping[str, str]], names: tuple[str, str]
) -> Iterator[str]:
    """Yield what speaks against the numbers, and against their causes; `runs`: the matched ones."""
    after, before = names
    told = _texts(runs.dropna(subset="started"), ["run", "started", "step_s_median"])
    if same := int(told.duplicated().sum()):
        yield f"{same} of the {(runs['study'] == 'after').sum()} matched runs of {after} are runs of {before} too."
    elif (differences["partition"] == differences["before_partition"]).any():
        yield (
            f"The runs of {before} and {after} were not made in turns: what drifted on the machine between them counts "
            "as a difference. horovod-study run A B makes them in turns."
        )
    if (several := sum(each["what"] != "repeats" for each in changes)) > 1:
        yield f"{several} things differ between {before} and {after}; each is a possible cause of a difference."
    alone = differences.query(f"metric == 'throughput' and backend == 'serial' and verdict in {[BETTER, WORSE]}")
    for row in alone[(alone["ratio"] - 1).abs() > 0.02].to_dict("records"):  # a smaller change is not worth a doubt
        share = f"{100 * abs(row['ratio'] - 1):.1f} % {row['word']}"
        yield f"One plain worker ({row['setting']}) is {share} too: look at the speedups, which are free of that."


def limit_of(text: str) -> float:
    """Return the share that `--fail-on` says, such as 5%; ConfigError for what is none."""
    share: float = accept(Share, text, "report", name="--fail-on")
    return share


def gate(found: StudyComparison, limit: float) -> dict[str, Any]:
    """Return whether no throughput is lower by the share `limit` and no cell has vanished: `passed`, and rows of both.

    `checks`: the rows of throughput with their `outcome`; `missing`: rows of `unmatched` that BEFORE alone has.
    """
    checks = [{**row, "outcome": outcome(row, limit)} for row in found.of("throughput").to_dict("records")]
    missing = found.unmatched.query("study == 'before'").to_dict("records")
    passed = not missing and all(each["outcome"] != FAILED for each in checks)
    return {"limit": limit, "passed": passed, "checks": checks, "missing": missing}


def outcome(row: Mapping[Any, Any], limit: float) -> str:
    """Return FAILED where a row of `differences` is resolved to be worse by `limit` (a share) or more, PASSED where its
    whole interval is on the good side of the limit, else UNDECIDED."""
    sign = METRICS[row["metric"]].sign
    if row["verdict"] == WORSE and sign * (row["ratio"] - 1) >= limit:
        return FAILED
    worst = row.get("ratio_low" if sign < 0 else "ratio_high", math.nan)
    return PASSED if sign * (worst - 1) < limit else UNDECIDED  # NaN compares false: undecided
