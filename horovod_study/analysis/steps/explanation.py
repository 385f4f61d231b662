"""One page about a run or a study: where the time of a step goes, who is slow, what more workers add, what would help.

Nothing is measured or fitted here that another module does not do: laps and their growth are those of accounting.py,
waiting and exposed communication those of attribution.py, slow ranks those of rank_steps.py, what makes a number mean
something else those of series/culprits.py. What is unknown is None, with the reason.

A gain is a share of the throughput. A step of T seconds that loses d of them makes d / (T - d) more samples per second:
`at most` where d is all of a part, and nobody removes all of it.
"""

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series import culprits
from horovod_study.analysis.series.points import (
    StudyTurns,
    again,
    baseline_command,
    disturbed_runs,
    efficiency_doubts,
    levelled,
    measured,
    scaling_points,
)
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.accounting import Accounting, RunAccount, account, account_run, stalls_of, stalls_over
from horovod_study.analysis.steps.attribution import BUSY_CORES, INSIDE_BACKWARD, answer_of
from horovod_study.analysis.steps.breakdown import BASES, PARTS, UNEXPLAINED
from horovod_study.analysis.steps.rank_steps import (
    CAUSES,
    MIN_STEPS,
    NO_EXCHANGE,
    RankSteps,
    Stragglers,
    align,
    find_stragglers,
    waiting,
)
from horovod_study.config.roles import Role
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun, RunSideFiles, facts, hosts_of, timed_from
from horovod_study.text.numbers import milliseconds, percent
from horovod_study.text.words import plural


class Inspection(SimpleNamespace):
    """What one run says of itself; its attributes are the keys of inspect.json. Times in s, None: not known.

    window: first_step, by, excluded (steps recorded before it) and steps (compared). ranks: of each its rank, host,
    steps, means laps_s, step_s, own_s and wait_s (for the last rank), and gap, the greatest distance of the sum of laps
    from the step as a share of it. system: rows of `resources.summary`, or why_not. recorded_beside: kind ->
    paths. stragglers, pop, stalls and ablation are values of their modules.
    """


def side_by_side(run: RecordedRun) -> tuple[RankSteps, dict[str, Any], list[str]]:
    """Return the steps of a run's ranks from its timed window on, that window (see Inspection), and doubts about it.

    Of a run with few of them all are taken. Raises AnalysisError for a run without rows.
    """
    if all(np.isnan(np.asarray(rows["step_s"], dtype=np.float64)).all() for rows in run.rows.values()):
        why = "; ".join(f"rank {rank} {text}" for rank, text in list(run.missing.items())[:3])
        none = f"holds no step rows{f' ({why})' if why else ''}; name a run that made steps"
        untimed = "its steps were not timed (--timer-mode off); record it again with --timer-mode light"
        raise AnalysisError(f"{run.directory}: {untimed if run.rows else none}")
    hosts, doubts = list(hosts_of(run.record, range(run.workers)).values()), []
    lay = partial(align, run.rows, workers=run.workers, hosts=hosts, missing=run.missing, name=str(run.directory))
    everything = lay()
    first, by = timed_from(run.record)

    def longest() -> int:
        return max(int((np.asarray(rows["step"]) >= first).sum()) for rows in run.rows.values())

    if longest() < (MIN_STEPS if len(run.rows) > 1 else 1):
        doubts.append(f"{longest():,} steps were recorded from step {first:,} on, so that the warm-up is looked at too")
        first, by = int(everything.step[0]), "the first that was recorded"
    rows = lay(from_step=first, fewest=min(MIN_STEPS, longest()))
    window = {"first_step": first, "by": by, "excluded": int((everything.step < first).sum()), "steps": len(rows.step)}
    return rows, window, [*doubts, *rows.notes]


def inspect(run: RecordedRun, beside: RunSideFiles | None = None) -> Inspection:
    """Look at everything that one run recorded, finished or not.

    Raises AnalysisError for a run without rows.
    """
    rows, window, doubts = side_by_side(run)
    record = run.record
    if run.state != "done":
        so_far = "these are its rows so far" if run.state == "running" else "its rows end early"
        doubts.insert(0, f"the run is {run.state}{f' ({record.reason})' if record.reason else ''}: {so_far}")
    late, lost = find_stragglers(rows), record.totals.get("rows_lost")
    counts = [int(each or 0) for each in (lost if isinstance(lost, list) else [lost])]
    if any(counts):
        doubts.append(f"{sum(counts):,} rows were lost to a full disk")
    if doubt := (record.totals.get("steady") or {}).get("doubt"):
        doubts.append(str(doubt))
    beside = beside or RunSideFiles(why_no_system="not looked at")
    found = Inspection(name=run.name, directory=str(run.directory), state=run.state, reason=record.reason)
    found.facts = {**facts(record, "study", "started", "finished"), "workers": run.workers}
    found.facts |= {"hosts": list(dict.fromkeys(hosts_of(record, range(run.workers)).values()))}
    for name in ("backend", "transport", "reduction", "batch", "device", "precision", "launcher"):
        found.facts[name] = record.effective.get(name, record.requested.get(name))
    timer = record.effective.get("timer_mode")
    timer = timer.get("value") if isinstance(timer, Mapping) else record.requested.get("timer_mode")
    found.facts |= {"timer_mode": timer, **{name: record.totals.get(name) for name in ("samples_per_s", "window_s")}}
    found.window, found.rows_lost = window, None if lost is None else counts
    found.ablation, found.why_no_ablation = answer_of(run)
    found.system, system_doubts = _system(run, beside)
    files = {"timeline": [beside.timeline] if beside.timeline else [], "profile": beside.profiles}
    found.recorded_beside = {kind: [str(path) for path in paths] for kind, paths in files.items() if paths}
    found.doubts, found.ranks, found.stragglers = [*doubts, *system_doubts], _ranks(rows, late), late
    found.pop, laps = waiting(rows)[0] if rows.workers > 1 else None, [f"{lap}_s" for lap in rows.laps]
    each = (stalls_of(rows.step_s[:, place], rows.columns(rank), laps) for place, rank in enumerate(rows.ranks))
    found.stalls = stalls_over([*each])
    return found


def _system(run: RecordedRun, beside: RunSideFiles) -> tuple[dict[str, Any], list[str]]:
    if not beside.system:
        return {"rows": [], "why_not": beside.why_no_system}, [beside.why_no_system] if beside.damaged_system else []
    from horovod_study.analysis.machine import resources  # the page of `explain` needs none of it

    found: list[Any] = []
    told: list[str] = []
    steps = pd.DataFrame(dict(run.rows[min(run.rows)]))
    for host, samples in beside.system.items():
        first_s, last_s = (float(each) for each in samples.rows["at_s"].agg(["min", "max"]))
        table = resources.phases(steps, beside.evaluations, first_timed=run.first_step, first_s=first_s, last_s=last_s)
        found += resources.summary({host: samples}, table).to_dict("records")
        told += resources.sensor_doubts({host: samples}, table, run.record.totals)
    told += resources.told_doubts(run.record.totals)
    return {"rows": found, "why_not": ""}, [text.rstrip(".") for text in told]


def _ranks(rows: RankSteps, late: Stragglers) -> list[SimpleNamespace]:
    # Without the synchronisation `own` is a part only, and no column of a table.
    own = {} if rows.sync_s is None else {each.rank: each for each in late.ranks}
    means = {
        lap: rows.laps[lap].mean(axis=0).tolist() if lap in rows.laps else [None] * len(rows.ranks)
        for lap in PARTS[:-1]
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


# -------------------------------------------------------------------------------- what a run or a study says of itself

WORTH = 0.02  # a share of the step below this is not worth an advice
Row: TypeAlias = SimpleNamespace  # a cell, who is slow in one, or what one has more than another; s per step


@dataclass(frozen=True, slots=True)
class Help:
    """Something to do next."""

    what: str
    name: str  # of the rule
    command: str = ""  # a line to type
    gain: Interval | None = None  # as a share; None where nobody can say
    kind: str = ""  # about | at most | measured
    of: str = "samples/s"  # what there is more of


class Explanation(SimpleNamespace):
    """What a run or a set of runs says of itself; its attributes are the keys of its document.

    names of the runs, states: how many are in each, hosts. steps, steps_most: of a rank, the fewest and the most.
    cells: see `_cells`; slow: see `_slow`, for the most workers of each series; growth: see `_growth`, why_no_growth.
    help: what makes the numbers mean something else, then the greatest gain first. doubts.
    """

    @property
    def last(self) -> tuple[Row, ...]:
        """Return the cell with the most workers of each series."""
        return tuple({cell.series: cell for cell in self.cells}.values())

    @property
    def top(self) -> Row:
        """Return the cell with the most workers, of several the quickest."""
        return max(self.last, key=lambda each: (each.workers, each.samples_per_s or 0.0))


def explain(
    table: pd.DataFrame,
    runs: Iterable[RecordedRun],
    turns: StudyTurns | None = None,
    *,
    about: str = "",
    taken: Collection[str] = (),
) -> Explanation:
    """Explain recorded runs; `table` and `runs` are those of records.recorded_runs, `turns` the slices of runs that
    alternated, by the column `run`.

    `about`: the run that is asked about, beside which the others are for comparison; `taken`: names of run directories
    that no command may make. Raises AnalysisError where no run has a step.
    """
    named = levelled(table, turns)
    most = named.groupby("series")["workers"].transform("max")
    largest = set(named.loc[(named["workers"] == most) & (named["workers"] > 1), "run"]) | {about}
    accounts: list[RunAccount] = []
    looked: dict[str, Stragglers | str] = {}
    kept: dict[str, RecordedRun] = {}
    for run in runs:
        accounts.append(account_run(run, take=run.name in largest))
        kept[run.name] = replace(run, rows={})  # rows are large
        if run.name in largest and run.workers > 1:
            try:
                looked[run.name] = find_stragglers(side_by_side(run)[0])
            except AnalysisError as error:
                looked[run.name] = str(error).partition(": ")[2]
    accounting = account(table, accounts)
    if accounting.cells.empty:
        why = next((run.why_not for run in accounts if run.why_not), "none holds a step")
        raise AnalysisError(f"{accounts[0].run}: nothing to explain: {why}; name a run that made steps")
    points = scaling_points(named, accounting.run_rows(), turns)
    cells = _cells(named, points, accounting, kept)
    own = tuple(cell for cell in cells if about in ("", *cell.runs))
    told = [run for run in accounting.runs if about in ("", run.run)]
    steps = [rank.steps for run in told for rank in run.ranks] or [0]
    places = pd.concat([_rows_of(points, cell.series, cell.workers, cell.nodes) for cell in own])
    found = Explanation(names=tuple(run.run for run in told), steps=min(steps), steps_most=max(steps), cells=own)
    found.states = dict(sorted(Counter(run.state for run in told).items()))
    found.hosts = tuple(dict.fromkeys(rank.host for run in told for rank in run.ranks if rank.host))
    seen = [(cell, {run: looked[run] for run in cell.runs if run in looked}) for cell in found.last]
    found.slow = tuple(_slow(cell, each) for cell, each in seen if each)
    about_series = {cell.series for cell in own}
    found.growth, found.why_no_growth = _growth(accounting.cells, [c for c in cells if c.series in about_series])
    doubts = [*efficiency_doubts(places), *_doubts(accounting, looked, kept.values())]
    found.doubts = tuple(dict.fromkeys(doubts))
    names, top = [*taken, *(str(each) for each in named["run"])], found.top
    point = {f"{name}": value for name, value in _rows_of(points, top.series, top.workers, top.nodes).iloc[0].items()}
    alone: list[Any] = named[(named["workers"] == 1) & (named["model"] == point["model"])].to_dict("records")
    disturbed: list[Any] = named[named["run"].isin(top.unsteady)].to_dict("records")
    facts = Row(c=top, p=point)
    facts.base, facts.again = (next((again(row, names) for row in rows), "") for rows in (alone, disturbed))
    facts.base_threads = facts.base and f"OMP_NUM_THREADS={point['rank_threads']:.0f} {facts.base}"
    late_run = next((each.run for each in found.slow if each.series == top.series), top.runs[0])
    facts.late_run = shlex.quote(f"{kept[late_run].directory}")
    beside = _beside(found, named, turns, names)
    found.help = tuple(_advice(found, kept[top.runs[0]], facts, beside))
    return found


def _cells(
    named: pd.DataFrame, points: pd.DataFrame, accounting: Accounting, records: Mapping[str, RecordedRun]
) -> list[Row]:
    """Return the cells in the order of the account: series after series, the fewest workers first.

    Each is the mean over its repeats; a rate is their median, `first` what makes its numbers mean something else.
    """
    accounts = {run.run: run for run in accounting.runs}
    done = measured(named)
    cells: list[Row] = []
    keys: Any
    for keys, rows in accounting.cells.groupby(["series", "workers", "nodes"], sort=False, dropna=False):
        by_part = dict(zip(rows["lap"], rows["mean_s"], strict=True))
        here, own = (_rows_of(each, *keys) for each in (named, points))
        finished = here[done[here.index]]
        used = [str(each) for each in (here if finished.empty else finished)["run"]]
        recorded = [accounts[run] for run in used if run in accounts]
        record = records[used[0]].record
        point = {f"{name}": value for name, value in own.iloc[0].items()}
        ways = () if culprits.withheld(point) else BASES
        cell = Row(series=str(keys[0]), workers=int(keys[1]), nodes=float(keys[2]), runs=tuple(used))
        cell.samples_per_s = stats.finite_or_none(float(finished["samples_per_s"].median()))
        cell.efficiency = next((float(each) for kind in ways for each in own[f"efficiency_{kind}"].dropna()), None)
        cell.step_s = float(by_part["step"])
        cell.parts_s = {part: stats.finite_or_none(by_part.get(part, math.nan)) for part in PARTS[:-1]}
        for name in ("outside", "stalls"):  # between the steps, and steps that took far longer, of its first run
            setattr(cell, name, next((getattr(run, name) for run in recorded), None))
        # A share of the training's time, the rate with it, and s per step.
        for name in ("outside_share", "whole_samples_per_s", "stall_s"):
            setattr(cell, name, stats.finite_or_none(point[f"{name}_median"]))
        cell.stall_s, stacks = cell.stall_s or 0.0, record.totals.get("stacks") or ()
        cell.stacks = tuple(each for each in stacks if each.get("where") in ("outside", "residual"))
        cell.calls = record.effective.get("calls")  # collective ones of the script's own in a step
        cell.apart, cell.withheld = point["apart"], culprits.withheld(point)
        cell.unsteady = tuple(finished["run"][disturbed_runs(finished)]) if culprits.unsteady(point) else ()
        cell.loader_thread = bool(record.effective.get("loader_thread"))
        # What a reader must know before any number of the cell.
        cell.first, residual_s = culprits.told(point), cell.parts_s["residual"] or 0.0
        if cell.loader_thread and residual_s > UNEXPLAINED * cell.step_s:
            share = f"{percent(residual_s / cell.step_s)} of the step"
            cell.first.append(f"a thread loads the batches, and the training waits for it outside all laps, {share}")
        if cell.unsteady:
            more = f" (and {len(cell.unsteady) - 1} more)" if len(cell.unsteady) > 1 else ""
            disturbed = f"run {cell.unsteady[0]} was disturbed{more}"
            cell.first.append(f"{disturbed}, so that no advice follows from its times")
        cells.append(Row(**vars(cell), **_communication(cell, recorded)))
    return cells


def _communication(cell: Row, runs: Sequence[RunAccount]) -> dict[str, Any]:
    """Return what communication costs that no computing hides, the wait for the last rank, and both by leaving it out.

    None where it is not known, with the reason.
    """
    found: dict[str, Any] = dict.fromkeys(("exposed_s", "waiting_s", "left_out_s"))
    shared = cell.parts_s["sync"] or (cell.calls or {}).get("per_step")  # gradients or a metric
    if cell.workers == 1 or (cell.apart in ("processes", "none") and not shared):
        return {**found, "why_not": NO_EXCHANGE if cell.apart else "one worker communicates with nobody"}
    taken = [run.taken for run in runs if run.taken is not None]
    for name, part in (("exposed_s", "exposed"), ("waiting_s", "skew")):
        if taken and all(part in each.parts for each in taken):
            found[name] = stats.together([each.parts[part] for each in taken])
    told = [each for each in (*(run.why_not_taken for run in runs), *(each.hidden for each in taken)) if each]
    known = found["exposed_s"] is not None or found["waiting_s"] is not None
    if left_out := [run.left_out.ablation_s for run in runs if run.left_out is not None]:
        found["left_out_s"] = stats.together(left_out)
    return {**found, "why_not": "" if known else next(iter(told), INSIDE_BACKWARD)}


def _rows_of(table: pd.DataFrame, series: str, workers: int, nodes: float) -> pd.DataFrame:
    """Return the rows of one cell; how many nodes it has may be unknown."""
    same = table["nodes"].isna() if math.isnan(nodes) else table["nodes"] == nodes
    return table[(table["series"] == series) & (table["workers"] == workers) & same]


def _slow(cell: Row, looked: Mapping[str, Stragglers | str]) -> Row:
    """Return who is slow in the runs of one cell, one or more; in repeats the same rank is counted.

    `run` is that which is told of: the one with the latest rank, else one with a rank that is longer in a lap.
    """
    seen = {name: late for name, late in looked.items() if isinstance(late, Stragglers) and late.verdict != "unknown"}
    run, late, why_not = cell.runs[0], Stragglers(verdict="unknown", period_s=cell.step_s), ""
    if cell.why_not == NO_EXCHANGE:
        why_not = NO_EXCHANGE
    elif not seen:
        first = next(iter(looked.values()))
        why_not = first if isinstance(first, str) else first.why_not
    else:
        run = max(seen, key=lambda each: (bool(seen[each].slow), seen[each].delay_s, bool(seen[each].balanced)))
        late = seen[run]
    ends = {name: stats.finite_or_none(getattr(late, name)) for name in ("delay_low_s", "delay_high_s", "resolution_s")}
    row = Row(series=cell.series, workers=cell.workers, run=run, looked_at=len(looked), why_not=why_not, **ends)
    vars(row).update({name: getattr(late, name) for name in ("balanced", "period_s", "delay_s")})
    row.ranks, row.chance = late.named, 1 / (len(late.ranks) or cell.workers)
    row.named_in = sum(late.slow[0] in each.slow for each in seen.values()) if late.slow else 0
    row.waiting_s = None if late.skew_s is None else late.skew_s["mean"]
    return row


def _growth(table: pd.DataFrame, cells: Sequence[Row]) -> tuple[tuple[Row, ...], str]:
    """Return what the most workers of each series add to a step of one worker, or to that of its fewest workers; or
    why nothing is known of it.
    """
    found, last = [], list({cell.series: cell for cell in cells}.values())
    for cell in last:
        rows = _rows_of(table, cell.series, cell.workers, cell.nodes).set_index("lap")
        first = next(each for each in cells if each.series == cell.series)
        kind = next((each for each in BASES if rows[f"minus_{each}_s"].notna()["step"]), None)
        if cell.withheld or cell.unsteady or first.unsteady or (kind is None and first is cell) or cell.workers == 1:
            continue
        if kind is not None:
            ends: Any = [rows.at["step", f"minus_{kind}{end}_s"] for end in ("", "_low", "_high")]
            base = "1 worker alone" if kind == "plain" else "1 worker inside the library"
            parts = {part: stats.finite_or_none(rows[f"minus_{kind}_s"].get(part, math.nan)) for part in PARTS[:-1]}
        else:
            ends, base = (cell.step_s - first.step_s, math.nan, math.nan), f"{first.workers} workers"
            both = ((part, cell.parts_s[part], first.parts_s[part]) for part in PARTS[:-1])
            parts = {part: None if a is None or b is None else a - b for part, a, b in both}
        step = Interval(**dict(zip(("value", "low", "high"), ends, strict=True)))
        found.append(Row(series=cell.series, base=base, workers=cell.workers, parts_s=parts, step_s=step))
    withheld = [f"no speedup: {cell.withheld}" for cell in last if cell.withheld and cell.workers > 1]
    if all(cell.workers == 1 for cell in cells):
        withheld = ["no run has several workers"]
    elif len({cell.workers for cell in cells if cell.series == last[-1].series}) > 1:
        withheld.append("a run is not steady")
    why = [*withheld, "one worker count only, and no run of one worker with the same work beside it"]
    return tuple(found), "" if found else why[0]


def _doubts(
    accounting: Accounting, looked: Mapping[str, Stragglers | str], records: Iterable[RecordedRun]
) -> Iterator[str]:
    """Yield what a reader must know, each once, without what culprits.APART says."""
    for doubt in accounting.doubts:
        head, found, rest = doubt.partition(culprits.UNSTEADY)
        if not any(each in doubt for each in ("different parameters", "no library connects")):
            yield doubt
        elif found:
            yield f"{head.partition(': ')[0]}: {found}{rest}"
    told: dict[str, Any] = {name: late.notes for name, late in looked.items() if isinstance(late, Stragglers)}
    yield from (f"{name}: {note}" for name, notes in told.items() for note in notes)
    seen = {run.run: run.taken.other_cores for run in accounting.runs if run.taken is not None}
    began = {run.name: run.record.effective.get("other_programs_cores") or {} for run in records}
    used = [seen.get(run, max(filter(None, cores.values()), default=0.0)) for run, cores in began.items()]
    if busy := [cores for cores in used if cores >= BUSY_CORES]:
        yield f"other programs used up to {max(busy):.1f} cores during {len(busy)} of {plural(len(used), 'run')}"


_SENTENCES = """
apart | let the {c.workers} workers train one model: start them by a library (torchrun), begin with equal parameters,
    and average all gradients before each update, as DistributedDataParallel around the model does
withheld | record the baseline again on a quiet machine, in place of the one that is there: {c.withheld} | {base}
undivided | divide the data among the ranks (DistributedSampler, or a sampler of your own): {whose}, {passes:.0f} times
    the work; an epoch is {p[epoch_steps]:.0f} steps on each, and would be {divided:.0f}
threads | compare with a baseline of as many threads: {threads} | {base_threads}
outside | evaluate and save more rarely, outside of steps
stalls | find what stops {stalls}
tensors | average all gradients in one message, a flat one or that of DistributedDataParallel: the script makes
    {p[calls]}
unsteady | record {c.unsteady[0]} again on a quiet machine, for no advice follows from its times (a study makes it again
    where its folder is deleted) | {again}
late rank | make {late} as quick as the others; its steps in detail
    | horovod-study explain {late_run} --part steps
uneven | make the steps of all ranks equally long: each rank is late in some of them; is the machine quiet?
    | horovod-study doctor
data | load data while computing: more processes of the loader (num_workers) | {loading}
thread | wait less for the loader, which runs in a thread: a DataLoader with num_workers, or a longer queue
residual | find what is outside all laps, such as making batches: three lines mark its parts (docs/your_script.md)
    | horovod-study explain {run} --part account
beside | find out why workers compute more slowly beside each other: cores, memory or clock rates are shared
    | horovod-study doctor
communication | communicate less: a larger batch per worker, 16 bits, several batches per update (no_sync of DDP,
    backward_passes_per_step of Horovod), parameters that FSDP keeps whole (reshard_after_forward=False)
hooks | send gradients while backward computes (reduction: hooks), not after it (flat)
    | {hooks}
tune | find the fastest communication settings | horovod-study run STUDY.yaml --tune
ablation | measure communication by leaving it out in some blocks: a run with this option
    | ... python -m horovod_study.train --measure-ablation {options}
synchronisation | find out what the communication consists of: transfer, or the library around it
    | horovod-study explain --measure --runtime {runtime} {work}
"""
"""Rule | what to do | what to type; a line that is indented goes on with the one above."""
_FIRST = {"apart": -1, "withheld": -1, "undivided": 0, **dict.fromkeys(("threads", "outside", "stalls", "tensors"), 1)}
"""Rules that say that numbers are of something else (< 1), or of one cause of many; the others go by their gain."""
_GAINS = {
    "undivided": {"kind": "about", "of": "epochs per hour"},
    "late rank": {"kind": "about"},
    "threads": {"of": "speedup"},
    "outside": {"of": "samples/s of the whole training"},
}


def _advice(found: Explanation, run: RecordedRun, facts: Row, beside: Iterable[Help]) -> list[Help]:
    """Return what the steps with the most workers say, and what runs beside them say; what matters most first.

    `facts`: what sentences name, and the sizes of rules need; of the point `facts.p`.
    """
    rules = (line.split("|") for line in _SENTENCES.strip().replace("\n   ", "").split("\n"))
    sentences = {name.strip(): (what.strip(), "".join(command).strip()) for name, what, *command in rules}
    told = [(2, each) for each in beside]
    for name, size in _sizes(found, run, facts).items():
        if not size:
            continue
        gain = size if isinstance(size, Interval) else _gain(math.nan if size is True else size, found.top.step_s)
        sized: dict[str, Any] = {"gain": gain, "kind": "at most", **_GAINS.get(name, {})}
        what, command = (each.format(**vars(facts)) for each in sentences[name])
        told.append((_FIRST.get(name, 2), Help(what, name, command, **({} if math.isnan(gain.value) else sized))))

    def least(each: Help) -> float:  # a gain that is sure goes before one that is at most that
        if each.gain is None or math.isfinite(each.gain.low):
            return -1.0 if each.gain is None else each.gain.low
        return each.gain.value * (0.5 if each.kind == "at most" else 1.0)

    return [each for _, each in sorted(told, key=lambda pair: (pair[0], -least(pair[1])))]


def _sizes(found: Explanation, run: RecordedRun, f: Row) -> dict[str, float | Interval | bool]:
    """Return for each rule what a step loses by it in s, or its gain; True is unknown, and where it is false or 0 the
    rule does not apply. Also note for sentences what only some of them name.
    """
    c, p, flags, effective = found.top, f.p, f.p["flags"].split(), run.record.effective
    slow = next((each for each in found.slow if each.series == c.series), None)
    late, waiting_s = (slow.ranks, slow.waiting_s or 0.0) if slow else ((), 0.0)
    ours = "steps_per_epoch" in effective  # this package's trainer made it, which commands can start again
    here = ours and len({rank.get("host") for rank in effective.get("ranks") or ()}) <= 1
    cost = c.exposed_s or c.left_out_s
    # What communication of gradients costs a step; NaN where it is not known.
    cost_s = math.nan if cost is None or c.workers == 1 or c.apart else cost.value
    grown: Mapping[str, float | None] = next((each.parts_s for each in found.growth if each.series == c.series), {})
    runtime = f.runtime = f"{effective.get('backend')}/{effective.get('transport')}"
    options: list[str] = []  # what a run trained, as far as they are not the usual ones
    for name, each in packaged().options.items():
        value, flag = run.record.requested.get(name, each.default), "--" + name.replace("_", "-")
        if each.roles & (Role.DATA | Role.LEARNING | Role.COMPUTING) and value not in (each.default, None):
            options += [flag if value else f"--no-{flag[2:]}"] if each.kind is bool else [flag, str(value)]
    f.options, f.run, f.passes = shlex.join(options), shlex.quote(f"{run.directory}"), culprits.passes(p)
    f.work, f.whose = f"--workers {c.workers} {f.options}".rstrip(), culprits.whose_data(p)
    f.divided = math.ceil(p["epoch_steps"] / f.passes) if f.passes > 1 else math.nan
    f.loading = f"horovod-study bench loading --batch {p['batch']}" if ours else ""
    f.hooks = f"horovod-study run {runtime},reduction=flat {runtime},reduction=hooks {f.work}" if here else ""
    more = math.nan
    if "threads" in flags:
        f.threads = f"{culprits.threads(p)}; {culprits.same_threads(p)}"
        unsure = p["base_unsteady"] or c.withheld
        more = math.nan if unsure else max(0.0, p["base_threads"] / p["rank_threads"] - 1)
    if late:
        who = f"rank {late[0].rank}" if len(late) == 1 else f"{len(late)} ranks"
        f.late = who + (f" on {late[0].host}" if late[0].host else "")
    if c.stalls is not None:
        opens = c.stalls.opening and c.stalls.lap == "data"
        f.stalls = (
            stall_words(c.stalls) + "; they open epochs: keep the loader's processes (persistent_workers)" * opens
        )

    def part(lap: str) -> float:  # what neither late ranks nor stalls explain, which are told of them
        late_s: float = sum(each.cause_s for each in late if each.cause == lap) / c.workers
        stalled_s: float = c.stall_s if c.stalls is not None and c.stalls.lap == lap else 0.0
        return float(c.parts_s[lap] or 0.0) - late_s - stalled_s

    def over(seconds: float, share: float) -> float:
        return seconds if seconds > share * c.step_s else 0.0

    withheld, steady = bool(c.withheld) and not c.apart, not c.unsteady
    outside = c.outside_share or 0.0
    sizes: dict[str, float | Interval | bool] = {
        "apart": bool(c.apart),
        "withheld": withheld and "threads" not in flags,  # else another baseline is asked for anyway
        "undivided": f.passes > 1 and Interval(value=f.passes - 1),
        "threads": "threads" in flags and Interval(value=more),
        "tensors": "tensors" in flags and (cost_s if steady else True),
        "unsteady": not steady,
        "outside": steady and outside >= culprits.WORTH and _gain(outside, 1.0),
        "stalls": steady and c.stalls is not None and over(c.stall_s, culprits.STALLED),
    }
    if not steady or withheld:  # with a speedup that cannot be, the times of one of the two are wrong
        return sizes
    if slow is not None and late:
        ends = (math.nan if each is None else each for each in (slow.delay_low_s, slow.delay_high_s))
        low, high = (_gain(each, slow.period_s).value for each in ends)
        sizes["late rank"] = replace(_gain(slow.delay_s, slow.period_s), low=low, high=high)
    elif slow is not None and waiting_s > WORTH * slow.period_s:
        sizes["uneven"] = _gain(waiting_s, slow.period_s)
    flat = effective.get("reduction") == "flat" and packaged().options["reduction"].matters(runtime)
    hidden_s = cost_s if c.parts_s.get("backward") is None else min(cost_s, c.parts_s["backward"])
    beside_s = sum(grown.get(name) or 0.0 for name in ("compute", "forward", "backward", "update"))
    return sizes | {
        "data": over(part("data"), WORTH),
        "thread" if c.loader_thread else "residual": over(part("residual"), UNEXPLAINED),
        "beside": over(beside_s, UNEXPLAINED),
        "communication": not ours and over(cost_s, WORTH),
        "hooks": ours and flat and over(hidden_s, WORTH),
        "tune": here and over(cost_s, WORTH),
        "ablation": ours and c.workers > 1 and math.isnan(cost_s) and run.state == "done",
        "synchronisation": here and run.synchronisation is None and bool(over(cost_s, WORTH)),
    }


def stall_words(stalls: SimpleNamespace) -> str:
    """Return how many steps stalled, for how long and where, of `accounting.stalls_of`."""
    lap = {"": "", "sync": "while all ranks wait", "several": "in several laps"} | CAUSES
    many = f"{stalls.count:,} of {plural(stalls.of, 'step', ',')}"
    return f"{many} for up to {milliseconds(stalls.longest_s)} ms {lap[stalls.lap]}".rstrip()


def _beside(
    found: Explanation, named: pd.DataFrame, turns: StudyTurns | None, taken: Collection[str]
) -> Iterator[Help]:
    """Yield what other runs say: a quicker library within rounds, else over repeats, where its interval holds a gain,
    neither of a disturbed run nor of workers that train apart; the one-worker run that those of another script lack.
    """
    rates = dict(zip(named["run"], named["samples_per_s"], strict=True))
    last = [each for each in found.last if each.samples_per_s and not each.unsteady and not each.apart]
    for cell in last:
        best = max((each for each in last if each.workers == cell.workers), key=lambda each: float(each.samples_per_s))
        if best.series != cell.series and cell.workers > 1:
            rounds = turns.estimate(best.runs, cell.runs) if turns else None
            sides = ([rates[run] for run in each.runs] for each in (best, cell))
            ratio = stats.median_ratio(*sides) if rounds is None else rounds.ratio
            gain = Interval(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)
            if gain.value > WORTH and not gain.low <= 0:
                what = f"{best.series} instead of {cell.series}, at {cell.workers} workers"
                yield Help(what, "quicker", gain=gain, kind="measured")
    cell = found.top
    run: dict[Any, Any] = _rows_of(named, cell.series, cell.workers, cell.nodes).iloc[0].to_dict()
    if found.why_no_growth and cell.workers > 1 and not cell.withheld and run["model"] != packaged().model:
        notes, line = ["in the study file: baselines: [wrapped]"], ""
        if not run.get("declared"):
            notes, line = baseline_command(run, batch=float(run["ref_batch"]), taken=taken)
        what = "record one worker of the same script beside it: that says what more workers add"
        yield Help("; ".join([what, *notes]), "baseline", line)


def _gain(seconds: float, step_s: float) -> Interval:
    """Return how much more throughput it makes when a step loses so many seconds."""
    return Interval(value=math.inf if seconds >= step_s else seconds / (step_s - seconds))
