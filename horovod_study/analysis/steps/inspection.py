"""One run in detail: what it was, whether its laps add up, who was late, and what paused."""

import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import ndimage

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps.attribution import answer_of
from horovod_study.analysis.steps.rank_steps import (
    BEFORE_SYNC,
    MIN_STEPS,
    PARTS,
    RankSteps,
    Stragglers,
    align,
    find_stragglers,
    waiting,
)
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun, RunSideFiles, facts, hosts_of, timed_from

_FACTS = ("backend", "transport", "reduction", "batch", "device", "precision", "launcher")


class Inspection(SimpleNamespace):
    """What one run says of itself; its attributes are the keys of inspect.json. Times in s, None: not known.

    window: first_step, by, excluded (steps recorded before it) and steps (compared). ranks: of each its rank, host,
    steps, means laps_s, step_s, own_s and wait_s (for the last rank), and gap, the greatest distance of the sum of laps
    from the step as a share of it. system: rows of `analysis.system.summary`, or why_not. recorded_beside: kind ->
    paths. stragglers, pop, pauses and ablation are values of their modules.
    """


def inspect(run: RecordedRun, beside: RunSideFiles | None = None) -> Inspection:
    """Look at everything that one run recorded, finished or not.

    Raises AnalysisError for a run without rows.
    """
    if all(np.isnan(np.asarray(rows["step_s"], dtype=np.float64)).all() for rows in run.rows.values()):
        why = "; ".join(f"rank {rank} {text}" for rank, text in list(run.missing.items())[:3])
        none = f"holds no step rows{f' ({why})' if why else ''}; name a run that made steps"
        untimed = "its steps were not timed (--timer-mode off); record it again with --timer-mode light"
        raise AnalysisError(f"{run.directory}: {untimed if run.rows else none}")
    record, doubts = run.record, []
    hosts = list(hosts_of(record, range(run.workers)).values())
    lay = partial(align, run.rows, workers=run.workers, hosts=hosts, missing=run.missing, name=str(run.directory))
    everything = lay()
    first, by = timed_from(record)

    def longest() -> int:
        return max(int((np.asarray(rows["step"]) >= first).sum()) for rows in run.rows.values())

    if longest() < (MIN_STEPS if len(run.rows) > 1 else 1):
        doubts.append(f"{longest():,} steps were recorded from step {first:,} on, so that the warm-up is looked at too")
        first, by = int(everything.step[0]), "the first that was recorded"
    rows = lay(from_step=first, fewest=min(MIN_STEPS, longest()))
    if run.state != "done":
        so_far = "these are its rows so far" if run.state == "running" else "its rows end early"
        doubts.insert(0, f"the run is {run.state}{f' ({record.reason})' if record.reason else ''}: {so_far}")
    doubts += rows.notes
    late, lost = find_stragglers(rows), record.totals.get("rows_lost")
    counts = [int(each or 0) for each in (lost if isinstance(lost, list) else [lost])]
    if any(counts):
        doubts.append(f"{sum(counts):,} rows were lost to a full disk")
    if doubt := (record.totals.get("steady") or {}).get("doubt"):
        doubts.append(str(doubt))
    beside = beside or RunSideFiles(why_no_system="not looked at")
    found = Inspection(name=run.name, directory=str(run.directory), state=run.state, reason=record.reason)
    found.facts = {**facts(record, "study", "started", "finished"), "workers": run.workers}
    found.facts |= {"hosts": list(dict.fromkeys(hosts))}
    found.facts |= {name: record.effective.get(name, record.requested.get(name)) for name in _FACTS}
    timer = record.effective.get("timer_mode")
    timer = timer.get("value") if isinstance(timer, Mapping) else record.requested.get("timer_mode")
    found.facts |= {"timer_mode": timer, **{name: record.totals.get(name) for name in ("samples_per_s", "window_s")}}
    excluded = int((everything.step < first).sum())
    found.window = {"first_step": first, "by": by, "excluded": excluded, "steps": len(rows.step)}
    found.rows_lost = None if lost is None else counts
    found.ablation, found.why_no_ablation = answer_of(run)
    found.system, system_doubts = _system(run, beside)
    files = {"timeline": [beside.timeline] if beside.timeline else [], "profile": beside.profiles}
    found.recorded_beside = {kind: [str(path) for path in paths] for kind, paths in files.items() if paths}
    found.doubts, found.ranks, found.stragglers = [*doubts, *system_doubts], _ranks(rows, late), late
    found.pop, found.pauses = waiting(rows)[0] if rows.workers > 1 else None, find_pauses(rows)
    return found


def _system(run: RecordedRun, beside: RunSideFiles) -> tuple[dict[str, Any], list[str]]:
    if not beside.system:
        return {"rows": [], "why_not": beside.why_no_system}, [beside.why_no_system] if beside.damaged_system else []
    import pandas as pd

    from horovod_study.analysis.machine import system

    found: list[Any] = []
    told: list[str] = []
    steps = pd.DataFrame(dict(run.rows[min(run.rows)]))
    for host, samples in beside.system.items():
        first_s, last_s = (float(each) for each in samples.rows["at_s"].agg(["min", "max"]))
        table = system.phases(steps, beside.evaluations, first_timed=run.first_step, first_s=first_s, last_s=last_s)
        found += system.summary({host: samples}, table).to_dict("records")
        told += system.doubts({host: samples}, table, run.record.totals)
    told += system.told_doubts(run.record.totals)
    return {"rows": found, "why_not": ""}, [text.rstrip(".") for text in told]


def _ranks(rows: RankSteps, late: Stragglers) -> list[SimpleNamespace]:
    # Without the synchronisation `own` is a part only, and no column of a table.
    own = {} if rows.sync_s is None else {each.rank: each for each in late.ranks}
    means = {
        lap: rows.laps[lap].mean(axis=0).tolist() if lap in rows.laps else [None] * len(rows.ranks) for lap in PARTS
    }
    gaps = [None] * len(rows.ranks)
    if "residual" in rows.laps and (rows.step_s > 0).all():
        gaps = np.abs(np.sum(list(rows.laps.values()), axis=0) / rows.step_s - 1).max(axis=0).tolist()
    found = []
    for place, rank in enumerate(rows.ranks):
        told = {"rank": rank, "host": rows.hosts[place], "steps": len(rows.step), "gap": gaps[place]}
        told["laps_s"] = {lap: values[place] for lap, values in means.items()}
        told["step_s"] = float(rows.step_s[:, place].mean())
        told |= {name: getattr(own.get(rank), name, None) for name in ("own_s", "wait_s")}
        found.append(SimpleNamespace(**told))
    return found


# ------------------------------------------------------------------------------------------ steps that took far longer

WINDOW, _FEWEST = 101, 50
_THRESHOLD = 10.0  # scatters above the level
MOST = 20  # so many pauses are listed, the longest ones; all are counted
_FEWEST_TIMES, _SHORTEST, _REGULAR = 4, 10, 0.6  # so many, so many steps apart, such a share of one distance


class Pauses(SimpleNamespace):
    """What was found in S steps; its attributes are the keys of its document. Times in s, NaN: unknown.

    steps; why_not: why nothing could be looked for. level_s: median of a step; scatter_s; threshold_s: above the local
    level, the median of it. total_s, count: of all pauses; share: of the time of all steps. every_steps: None where
    they are not regular. longest: at most MOST, the longest first, each with its step (in whose lap it is, as in the
    rows), at_s (begin of the step, see records.step_schema), size_s above the level, steps in a row, the lap that took
    most of it, the ranks that were paused (the others waited for them), and whether that was everywhere.
    """


def find_pauses(rows: RankSteps) -> Pauses:
    """Find the pauses of a run, and whether they are regular.

    What a step (from the end of one synchronisation to that of the next) exceeds the running median of 101 steps by is
    its excess; the scatter is the median of the positive excesses, scaled to the standard deviation of a normal law. A
    pause exceeds 10 scatters and 10 % of the level. Several in a row are one with the time of all, named after the
    longest.
    """
    total = len(rows.step)
    found = Pauses(steps=total, why_not="", level_s=math.nan, scatter_s=math.nan, threshold_s=math.nan, total_s=0.0)
    vars(found).update(share=0.0, count=0, longest=(), every_steps=None)
    if total < _FEWEST:
        found.why_not = f"{total} steps are recorded; at least {_FEWEST} are needed"
        return found
    # From the end of one synchronisation to the end of the next, (S, R): the update is that of the step before, and
    # there is none at the first step of a stretch. Where no lap is known, the whole step is called `step`.
    laps = {lap: rows.laps[lap] for lap in (*BEFORE_SYNC, "sync") if lap in rows.laps}
    if "residual" not in laps:
        laps = {"step": rows.step_s}
    elif "update" in laps:
        before = np.concatenate([laps["update"][:1], laps["update"][:-1]])
        laps["update"] = np.where(rows.follows[:, np.newaxis], before, 0.0)
    length = np.sum(list(laps.values()), axis=0).max(axis=1)  # (S,)
    level = ndimage.median_filter(length, size=min(WINDOW, total - 1 + total % 2), mode="mirror")
    excess = length - level
    above = excess[excess > 0]
    scatter = stats.normal_deviation(above) if len(above) else 0.0
    threshold = np.maximum(_THRESHOLD * scatter, 0.1 * level)
    over = excess > threshold
    number, count = ndimage.label(over)  # of the row of long steps that each step is in
    each = np.arange(1, count + 1)
    first = np.flatnonzero(over & ~np.concatenate([[False], over[:-1]]))
    size_s = np.asarray(ndimage.sum_labels(excess, number, each), dtype=np.float64)
    peaks, lengths = ndimage.maximum_position(excess, number, each), ndimage.sum_labels(over, number, each)
    for event in np.argsort(-size_s, kind="stable")[:MOST]:
        pause = _pause(rows, laps, int(peaks[event][0]))
        pause.size_s, pause.steps = float(size_s[event]), int(lengths[event])
        found.longest += (pause,)
    apart = np.diff(rows.step[first])
    usual = float(np.median(apart)) if count >= _FEWEST_TIMES else 0.0
    if usual >= _SHORTEST and (np.abs(apart - usual) <= 1).mean() >= _REGULAR:
        found.every_steps = round(usual)
    found.level_s, found.scatter_s, found.threshold_s = float(np.median(length)), scatter, float(np.median(threshold))
    found.count, found.total_s = count, float(size_s.sum())
    found.share = found.total_s / float(length.sum()) if length.sum() > 0 else 0.0
    return found


def _pause(rows: RankSteps, laps: Mapping[str, Floats], place: int) -> SimpleNamespace:
    """Return the pause whose longest step is at a place: the lap that took most of it, and the ranks that were paused
    in it rather than waiting for others."""
    begin, end = max(0, place - WINDOW // 2), place + WINDOW // 2 + 1
    excess = {lap: values[place] - np.median(values[begin:end], axis=0) for lap, values in laps.items()}  # (R,) each
    told = rows.told_laps() if rows.workers > 1 and rows.sync_s is None else [lap for lap in laps if lap != "sync"]
    own = {lap: value for lap, value in excess.items() if lap in told}
    whole = np.sum(list(excess.values()), axis=0)  # (R,)
    mine = np.sum(list(own.values()), axis=0) if own else np.zeros_like(whole)
    paused = np.flatnonzero(mine > 0.5 * float(whole.max()))
    if len(paused):
        lap = max(own, key=lambda each: float(own[each][paused].mean()))
    else:  # nobody was late: the synchronisation itself took long, or what holds it
        paused = np.arange(len(rows.ranks))
        lap = max([each for each in excess if each not in own] or own, key=lambda each: float(excess[each].mean()))
    step = int(rows.step[place]) - int(lap == "update")  # which is in the row of the step before
    at_s = float(rows.columns(rows.ranks[0])("begin_s")[place]) if "begin_s" in rows.known else None
    found = SimpleNamespace(step=step, at_s=at_s, size_s=math.nan, steps=0, lap=lap)
    found.ranks, found.everywhere = tuple(rows.ranks[each] for each in paused), len(paused) == len(rows.ranks)
    return found
