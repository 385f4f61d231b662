"""One page about a run or a study: where the time of a step goes, who is slow, what more workers add, what would help.

Nothing is measured or fitted here that another module does not do: laps and their growth are those of accounting.py,
waiting and exposed communication those of attribution.py, slow ranks those of stragglers.py, what makes a number mean
something else those of series/culprits.py. What is unknown is None, with the reason. What would help is a table of
rules, RULES, over the facts of the most workers.

A gain is a share of the throughput. A step of T seconds that loses d of them makes d / (T - d) more samples per second:
`at most` where d is all of a part, and nobody removes all of it.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.series import culprits
from horovod_study.analysis.series.baseline_commands import again, baseline_command
from horovod_study.analysis.series.exchange import points_of
from horovod_study.analysis.series.points import efficiency_doubts, levelled, measured, scaling_points
from horovod_study.analysis.series.turns import StudyTurns
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.accounting import Accounting, RunAccount, account, account_run
from horovod_study.analysis.steps.attribution import BUSY_CORES, INSIDE_BACKWARD, over_runs, parts_of
from horovod_study.analysis.steps.breakdown import BASES, PARTS, UNEXPLAINED
from horovod_study.analysis.steps.inspection import Inspection, inspect
from horovod_study.analysis.steps.outside import Outside, Stalls
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE
from horovod_study.analysis.steps.stragglers import CAUSES, MIN_STEPS, Lateness
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun
from horovod_study.roles import Role
from horovod_study.text.numbers import amount, milliseconds, percent, rounded
from horovod_study.text.words import plural
from horovod_study.workloads import packaged

WORTH = 0.02
"""A share of the step below this is not worth an advice."""
_SLOWER_UPDATE, _SAME_COMPUTING = 2.0, 1.25
"""An update that has become so many times as long, while forward and backward have become no longer than this."""
_EARLY_STEPS = slice(10, 60)
_UNDISTURBED = 0.1  # the quantile of a lap that only its undisturbed steps determine
_MANY_CALLS, _SMALL_BYTES = 4, 2_000_000
"""More collective calls than that in a step, of such a size at most, are one for each tensor."""
_WORK = Role.DATA | Role.LEARNING | Role.COMPUTING
_UNCONNECTED = ("processes", "none")
"""Of culprits.APART, workers that never wait for each other."""
_KINDS = ("outside", "residual")
"""Of `totals.stacks`, those that are told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One worker count of a series: the mean over its repeats, times in s per step."""

    series: str
    workers: int
    nodes: float
    runs: tuple[str, ...]
    samples_per_s: float | None  # median over repeats
    efficiency: float | None  # of points.scaling_points, against one worker alone, else one inside the library
    step_s: float
    parts_s: Mapping[str, float | None]  # breakdown.PARTS but step
    exposed_s: Interval | None = None  # communication that no computing hides, without waiting for the last rank
    waiting_s: Interval | None = None  # for the last rank
    left_out_s: Interval | None = None  # what communication costs, by blocks without it
    why_not: str = ""  # why exposed and waiting are not known
    outside: Outside | None = None  # between the steps, of its first run; None where not known
    outside_alone_s: float | None = None  # the same of one worker, each time
    outside_share: float | None = None  # of the training's time, median over repeats
    whole_samples_per_s: float | None = None  # the rate with it
    stalls: Stalls | None = None  # of its first run
    stall_s: float = 0.0  # in the mean step, median over repeats
    stacks: tuple[Mapping[str, Any], ...] = ()  # where the time is that no lap covers: where, name, share of all time
    calls: Mapping[str, Any] | None = None  # collective calls of the script's own in a step
    apart: str = ""  # why its workers do not train one model; see culprits.APART
    unsteady: bool = False  # whether it was disturbed
    loader_thread: bool = False  # whether another thread than the training's has fetched batches

    @property
    def unconnected(self) -> bool:
        """Whether its workers exchange nothing: neither gradients nor a metric."""
        return self.apart in _UNCONNECTED and not self.parts_s.get("sync")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """Whether a rank of the runs of one cell is slower than the others beyond chance."""

    series: str
    workers: int
    run: str  # that which is told of: the one with the latest rank
    looked_at: int  # runs
    named_in: int = 0  # runs in which this rank is named
    ranks: tuple[Lateness, ...] = ()  # the named ranks of `run`, the slowest first
    balanced: tuple[Lateness, ...] = ()  # ranks of `run` that are longer in one lap and shorter in others
    chance: float  # how often a rank is the last one where all are equal
    period_s: float  # of a step
    delay_s: float = 0.0  # see stragglers.Stragglers
    delay_low_s: float | None = None  # its 95 % interval
    delay_high_s: float | None = None
    waiting_s: float | None = None  # mean over ranks and steps
    resolution_s: float | None = None  # a lateness that would certainly have been named
    why_not: str = ""  # why it is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """What more workers add to a step of a series, in s."""

    series: str
    base: str  # the baseline, in words
    workers: int
    parts_s: Mapping[str, float | None]  # breakdown.PARTS but step
    step_s: Interval
    unsteady: bool = False  # whether one of the two was disturbed


@dataclass(frozen=True, kw_only=True, slots=True)
class Help:
    """Something to do next."""

    what: str
    name: str  # of the rule
    command: str = ""  # a line to type
    gain: Interval | None = None  # as a share; None where nobody can say
    kind: str = ""  # about | at most | forecast | measured
    of: str = "samples/s"  # what there is more of


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What a run or a set of runs says of itself."""

    names: tuple[str, ...]  # of the runs
    states: Mapping[str, int]
    hosts: tuple[str, ...]
    steps: int  # of a rank, the fewest and ...
    steps_most: int  # ... the most
    cells: tuple[Cell, ...]
    slow: tuple[Slow, ...]  # of the most workers of each series
    growth: tuple[Growth, ...]
    why_no_growth: str
    help: tuple[Help, ...]  # what makes the numbers mean something else, then the greatest gain first
    doubts: tuple[str, ...]

    @property
    def last(self) -> tuple[Cell, ...]:
        """Return the cell with the most workers of each series."""
        return tuple({cell.series: cell for cell in self.cells}.values())


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
    looked: dict[str, Inspection | str] = {}
    slower: dict[str, float | None] = {}
    kept: dict[str, RecordedRun] = {}
    for run in runs:
        accounts.append(account_run(run, views=run.name in largest))
        slower[run.name] = _slower_updates(run)
        kept[run.name] = replace(run, rows={})  # rows are large
        if run.name in largest and run.workers > 1:
            try:
                looked[run.name] = inspect(run)
            except AnalysisError as error:
                looked[run.name] = str(error).partition(": ")[2]
    accounting = account(table, accounts)
    if accounting.cells.empty:
        why = next((run.why_not for run in accounts if run.why_not), "none holds a step")
        raise AnalysisError(f"{accounts[0].run}: nothing to explain: {why}; name a run that made steps")
    points = scaling_points(named, accounting.run_rows(), turns)
    cells = _with_records(_cells(named, points, accounting), kept)
    growth, why_no_growth = _growth(accounting.cells, cells)
    own = [cell for cell in cells if about in ("", *cell.runs)]
    seen = [(cell, [looked[run] for run in cell.runs if run in looked]) for cell in {c.series: c for c in own}.values()]
    told = [run for run in accounting.runs if about in ("", run.run)]
    steps = [rank.steps for run in told for rank in run.ranks] or [0]
    found = Explanation(
        names=tuple(run.run for run in told),
        states=dict(sorted(Counter(run.state for run in accounts if about in ("", run.run)).items())),
        hosts=tuple(dict.fromkeys(rank.host for run in told for rank in run.ranks if rank.host)),
        steps=min(steps),
        steps_most=max(steps),
        cells=tuple(own),
        slow=tuple(_slow(cell, each) for cell, each in seen if each),
        growth=tuple(growth),
        why_no_growth=why_no_growth,
        help=(),
        doubts=tuple(
            dict.fromkeys([*efficiency_doubts(_points_of(points, own)), *_doubts(accounting, looked.values())])
        ),
    )
    study = _Study(named=named, points=points, cells=cells, runs=kept, slower=slower, taken=taken, turns=turns)
    return replace(found, help=tuple(_advice(found, study)))


# ---------------------------------------------------------------------------------------------------- what there is


def _cells(named: pd.DataFrame, points: pd.DataFrame, accounting: Accounting) -> list[Cell]:
    """Return the cells in the order of the account: series after series, the fewest workers first."""
    accounts = {run.run: run for run in accounting.runs}
    done = measured(named)
    cells: list[Cell] = []
    keys: Any
    for keys, rows in accounting.cells.groupby(["series", "workers", "nodes"], sort=False, dropna=False):
        series, workers, nodes = keys
        by_part = dict(zip(rows["lap"], rows["mean_s"], strict=True))
        here, own = (_rows_of(each, series, workers, nodes) for each in (named, points))
        finished = here[done[here.index]]
        used = [str(each) for each in (here if finished.empty else finished)["run"]]
        recorded = [accounts[run] for run in used if run in accounts]
        point = {f"{name}": value for name, value in own.iloc[0].items()}
        cell = Cell(
            series=str(series),
            workers=int(workers),
            nodes=float(nodes),
            runs=tuple(used),
            samples_per_s=stats.finite_or_none(float(finished["samples_per_s"].median())),
            efficiency=next((float(each) for kind in BASES for each in own[f"efficiency_{kind}"].dropna()), None),
            step_s=float(by_part["step"]),
            parts_s={part: stats.finite_or_none(by_part.get(part, math.nan)) for part in PARTS[:-1]},
            outside=next((run.outside for run in recorded), None),
            outside_share=stats.finite_or_none(point["outside_share_median"]),
            whole_samples_per_s=stats.finite_or_none(point["whole_samples_per_s_median"]),
            stalls=next((run.stalls for run in recorded), None),
            stall_s=stats.finite_or_none(point["stall_s_median"]) or 0.0,
            apart=point["apart"],
            unsteady=culprits.unsteady(point),
        )
        cells.append(_with_communication(cell, recorded))
    return cells


def _with_records(cells: Sequence[Cell], runs: Mapping[str, RecordedRun]) -> list[Cell]:
    """Return cells with what the record of their first run says of calls, and of where time is that no lap covers."""
    alone = next(
        (each.outside.gap_s for each in cells if each.workers == 1 and each.outside and each.outside.where), None
    )
    found = []
    for cell in cells:
        record = runs[cell.runs[0]].record
        stacks = tuple(each for each in record.totals.get("stacks") or () if each.get("where") in _KINDS)
        calls = record.effective.get("calls")
        thread = bool(record.effective.get("loader_thread"))
        found.append(replace(cell, calls=calls, stacks=stacks, outside_alone_s=alone, loader_thread=thread))
    return found


def _with_communication(cell: Cell, runs: Sequence[RunAccount]) -> Cell:
    """Return a cell with what its communication costs, as far as its runs say so."""
    if cell.workers == 1 or cell.unconnected:
        return replace(cell, why_not=NO_EXCHANGE if cell.apart else "one worker communicates with nobody")
    left_out = [run.left_out.ablation_s for run in runs if run.left_out is not None]
    blocks = stats.together(left_out) if left_out else None
    parts = [parts_of(run.seen, seed=1 + place) for place, run in enumerate(runs) if run.seen is not None]
    exposed, waiting = (
        over_runs([each[name] for each in parts]) if parts and all(name in each for each in parts) else None
        for name in ("exposed", "skew")
    )
    why_not = ""
    if exposed is None and waiting is None:
        told = [run.why_not_seen for run in runs if run.why_not_seen]
        hidden = [run.seen.why_no_sync for run in runs if run.seen is not None and run.seen.sync_s is None]
        why_not = next(iter([*told, *hidden]), INSIDE_BACKWARD)
    return replace(cell, exposed_s=exposed, waiting_s=waiting, left_out_s=blocks, why_not=why_not)


def _rows_of(table: pd.DataFrame, series: str, workers: int, nodes: float) -> pd.DataFrame:
    """Return the rows of one cell; how many nodes it has may be unknown."""
    same = table["nodes"].isna() if math.isnan(nodes) else table["nodes"] == nodes
    return table[(table["series"] == series) & (table["workers"] == workers) & same]


def _points_of(points: pd.DataFrame, cells: Sequence[Cell]) -> pd.DataFrame:
    return pd.concat([_rows_of(points, cell.series, cell.workers, cell.nodes) for cell in cells])


def _slow(cell: Cell, looked: Sequence[Inspection | str]) -> Slow:
    """Return who is slow in the runs of one cell, one or more; in repeats the same rank is counted."""
    told = [each for each in looked if isinstance(each, Inspection) and each.stragglers.verdict != "unknown"]
    head: dict[str, Any] = {"series": cell.series, "workers": cell.workers, "looked_at": len(looked)}
    if not told or cell.unconnected:
        why_not = (
            NO_EXCHANGE
            if cell.unconnected
            else looked[0]
            if isinstance(looked[0], str)
            else looked[0].stragglers.why_not
        )
        return Slow(**head, run=cell.runs[0], chance=1 / cell.workers, period_s=cell.step_s, why_not=why_not)

    def told_first(each: Inspection) -> tuple[bool, float, bool]:
        """The latest rank, else one that is longer in a lap."""
        return bool(each.stragglers.slow), each.stragglers.delay_s, bool(each.stragglers.balanced)

    worst = max(told, key=told_first)
    late = worst.stragglers
    slowest = late.slow[:1]
    return Slow(
        **head,
        run=worst.name,
        named_in=sum(bool(slowest) and slowest[0] in each.stragglers.slow for each in told),
        ranks=late.named,
        balanced=late.balanced,
        chance=1 / len(late.ranks),
        period_s=late.period_s,
        delay_s=late.delay_s,
        delay_low_s=stats.finite_or_none(late.delay_low_s),
        delay_high_s=stats.finite_or_none(late.delay_high_s),
        waiting_s=None if late.skew_s is None else late.skew_s["mean"],
        resolution_s=stats.finite_or_none(late.resolution_s),
    )


def _growth(table: pd.DataFrame, cells: Sequence[Cell]) -> tuple[list[Growth], str]:
    """Return what the most workers of each series add to a step of one worker, or to that of its fewest workers."""
    found = []
    for cell in {cell.series: cell for cell in cells}.values():
        rows = _rows_of(table, cell.series, cell.workers, cell.nodes).set_index("lap")
        whole: dict[Any, Any] = rows.loc["step"].to_dict()
        kind = next((each for each in BASES if math.isfinite(whole[f"minus_{each}_s"])), None)
        first = next(each for each in cells if each.series == cell.series)
        if cell.workers > 1 and kind is not None:
            minus = rows[f"minus_{kind}_s"]
            low, high = (whole[f"minus_{kind}_{end}_s"] for end in ("low", "high"))
            step = Interval(value=float(minus["step"]), low=low, high=high)
            base = "1 worker alone" if kind == "plain" else "1 worker inside the library"
            parts = {part: stats.finite_or_none(float(minus.get(part, math.nan))) for part in PARTS[:-1]}
            first = next(each for each in cells if each.series == whole[f"base_{kind}"] and each.workers == 1)
        elif first.workers < cell.workers:
            step, base = Interval(value=cell.step_s - first.step_s), f"{first.workers} workers"
            parts = {part: _less(cell.parts_s[part], first.parts_s[part]) for part in PARTS[:-1]}
        else:
            continue
        how: dict[str, Any] = {"series": cell.series, "base": base, "workers": cell.workers, "parts_s": parts}
        found.append(Growth(**how, step_s=step, unsteady=cell.unsteady or first.unsteady))
    if found or all(cell.workers == 1 for cell in cells):
        return found, "" if found else "no run has several workers"
    return [], "one worker count only, and no run of one worker with the same work beside it"


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _doubts(accounting: Accounting, looked: Iterable[Inspection | str]) -> list[str]:
    """Return what a reader must know, each once."""
    doubts = list(accounting.doubts)
    for each in looked:
        if isinstance(each, Inspection):
            doubts += [f"{each.name}: {note}" for note in each.stragglers.notes]
    used = [run.seen.other_cores for run in accounting.runs if run.seen is not None]
    if busy := [cores for cores in used if cores >= BUSY_CORES]:
        runs = f"{len(busy)} of {len(accounting.runs)} runs"
        doubts.append(f"other programs used up to {max(busy):.1f} cores during {runs}")
    return doubts


# ------------------------------------------------------------------------------------------------- what would help


@dataclass(frozen=True, kw_only=True, slots=True)
class _Study:
    """All runs that are there, also those that were not asked about."""

    named: pd.DataFrame
    points: pd.DataFrame
    cells: Sequence[Cell]
    runs: Mapping[str, RecordedRun]
    slower: Mapping[str, float | None]  # see _slower_updates
    taken: Collection[str]
    turns: StudyTurns | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What the rules are about: the cell with the most workers, and what belongs to it."""

    cell: Cell
    run: RecordedRun  # the first of its runs
    point: Mapping[str, Any]
    slow: Slow | None
    late_s: Mapping[str, float]  # lap -> what late ranks make of it, which is told of them
    beside_s: float  # what computing takes more than on one worker alone
    slower_s: float
    ours: bool  # whether this package's trainer made it, which other commands can start again
    several_hosts: bool
    runtime: str
    base_line: str  # the command of the baseline, as it can be typed again
    late_run: str  # directory of the run with the latest rank

    def part(self, lap: str) -> float:
        """Return the seconds of a lap that neither late ranks nor stalls explain."""
        stalled = self.cell.stall_s if self.cell.stalls is not None and self.cell.stalls.lap == lap else 0.0
        return (self.cell.parts_s[lap] or 0.0) - self.late_s.get(lap, 0.0) - stalled

    @property
    def cost_s(self) -> float:
        """Return what communication costs a step; NaN where it is not known."""
        cost = self.cell.exposed_s or self.cell.left_out_s
        return math.nan if cost is None or self.cell.workers == 1 else cost.value

    @property
    def tensors(self) -> bool:
        """Whether the script averages tensor by tensor."""
        calls = self.cell.calls or {}
        small = (calls.get("bytes_median") or 0) <= _SMALL_BYTES
        return self.cell.workers > 1 and (calls.get("per_step") or 0) > _MANY_CALLS and small

    def work(self, *words: object) -> str:
        """Return a line to type about runs of the same work."""
        return _line(*words, "--workers", self.cell.workers, *_work_of(self.run))


@dataclass(frozen=True, slots=True)
class _AdviceRule:
    """One line of what would help.

    `size`: seconds of a step that it is worth, a gain, None where the rule does not hold; NaN where nobody can say.
    """

    name: str
    size: Callable[[_Facts], float | Interval | None]
    what: Callable[[_Facts], str]
    line: Callable[[_Facts], str] = lambda facts: ""
    kind: str = "at most"
    of: str = "samples/s"
    rank: int = 2  # -1, 0: the numbers are of something else; 1: one cause of many; 2: a part of a step
    timed: bool = True  # it follows from times, which say nothing in a disturbed run


def _if(holds: bool, size: float | Interval = math.nan) -> float | Interval | None:
    return size if holds else None


def _worth(facts: _Facts, seconds: float, share: float = WORTH) -> float | None:
    return seconds if seconds > share * facts.cell.step_s else None


def _more_threads(point: Mapping[str, Any]) -> float:
    """Return how much higher a speedup can be over a baseline with as many threads as the workers have."""
    return max(0.0, float(point["base_threads"] / point["rank_threads"] - 1))


def _lateness(facts: _Facts) -> Interval | None:
    slow = facts.slow
    if slow is None or not slow.ranks:
        return None
    gain = _gain(slow.delay_s, slow.period_s)
    if slow.delay_low_s is None or slow.delay_high_s is None:
        return gain
    low, high = (_gain(each, slow.period_s).value for each in (slow.delay_low_s, slow.delay_high_s))
    return replace(gain, low=low, high=high)


def _late_words(facts: _Facts) -> str:
    assert facts.slow is not None
    first, count = facts.slow.ranks[0], len(facts.slow.ranks)
    where = f" on {first.host}" if first.host else ""
    ranks = f"rank {first.rank}" if count == 1 else f"{count} ranks"
    return f"make {ranks}{where} as quick as the others: {_TRY.get(first.cause, _SHARED)}; its steps in detail"


def _uneven(facts: _Facts) -> Interval | None:
    slow = facts.slow
    if slow is None or slow.ranks or slow.waiting_s is None or slow.waiting_s <= WORTH * slow.period_s:
        return None
    return _gain(slow.waiting_s, slow.period_s)


def _outside_words(facts: _Facts) -> str:
    outside = facts.cell.outside
    each = "" if outside is None or not outside.where else f", {rounded(outside.gap_s, 3)} s {outside.where}"
    share = "let all ranks share the evaluation, and write" if facts.cell.workers > 1 else "evaluate more rarely, write"
    return (
        f"shorten what is outside of steps, {percent(facts.cell.outside_share or 0.0)} of the time{each}: {share} "
        "fewer checkpoints"
    )


def _call_words(facts: _Facts) -> str:
    calls = facts.cell.calls or {}
    names = " and ".join(calls.get("names") or {"collective": 0})
    size = f" of at most {amount(calls['bytes_max'])}" if calls.get("bytes_max") else ""
    return (
        f"average all gradients in one message: the script makes {calls['per_step']:.0f} calls of {names} in a step, "
        f"each{size}; one flat message, or DistributedDataParallel, takes their place"
    )


def _stall_words(facts: _Facts) -> str:
    stalls = facts.cell.stalls
    assert stalls is not None
    many = f"{stalls.count:,} of {plural(stalls.of, 'step', ',')}"
    cost = f"they cost {milliseconds(facts.cell.stall_s)} ms of the mean step"
    if stalls.opening and stalls.lap == "data":
        return f"keep the loader's processes over epochs (persistent_workers): the first steps of epochs wait, {cost}"
    where = {"sync": "while all ranks wait", "several": "in several laps"}.get(stalls.lap, CAUSES.get(stalls.lap, ""))
    return f"find what stops {many} for up to {milliseconds(stalls.longest_s)} ms {where}: {cost}"


def _less_communication(facts: _Facts) -> str:
    effective = facts.run.record.effective
    library = "FSDP" if str(effective.get("model")).startswith("FSDP") else str(effective.get("backend"))
    own = {
        "ddp": " (no_sync), gradients in 16 bits (bf16_compress_hook), other buckets (bucket_cap_mb)",
        "horovod": " (backward_passes_per_step), gradients in 16 bits (hvd.Compression.fp16)",
    }
    if library == "FSDP":
        how = (
            "parameters kept whole from forward to backward (reshard_after_forward=False), or gathered ahead "
            "(set_modules_to_forward_prefetch), 16 bits (MixedPrecisionPolicy)"
        )
    else:
        how = f"several batches per update, of which only the last averages{own.get(library, '')}"
    return f"communicate less: a larger batch per worker, {how}"


def _hidden(facts: _Facts) -> float | None:
    """Return what hooks could hide of the communication that comes after backward."""
    flat = facts.run.record.effective.get("reduction") == "flat"
    if not (facts.ours and flat and packaged().options["reduction"].matters(facts.runtime)):
        return None
    backward = facts.cell.parts_s.get("backward")
    return _worth(facts, facts.cost_s if backward is None else min(facts.cost_s, backward))


def _residual_words(facts: _Facts) -> str:
    if facts.cell.loader_thread:
        return "wait less for the loader, which runs in a thread: a DataLoader with num_workers, or a longer queue"
    unseen = ", such as making its batches, for which no DataLoader was seen" * (facts.cell.parts_s["data"] is None)
    theirs = f"the script does outside all laps{unseen}: three lines in it mark its parts (docs/your_script.md)"
    return f"find what {'is outside all laps' if facts.ours else theirs}"


_SHARED = (
    "does the script do more on it than on others, is its core or GPU shared with other programs, or clocked lower?"
)
_TRY = {
    "data": "look at its data loader, and at the disk that it reads from",
    "residual": "look at what the script does there beside training: logging, checkpoints, evaluation",
}
"""What to try for a slow rank, by the lap in which it is slow (stragglers.CAUSES)."""
_TOGETHER = {
    "processes": "connect the {workers} processes (torchrun, and DistributedDataParallel around the model): they train "
    "{workers} models side by side",
    "none": "let the {workers} workers train one model: none averages gradients; wrap the model in "
    "DistributedDataParallel, or average the gradients before each update",
    "parted": "keep the parameters of the {workers} workers equal: begin with the same, and average all gradients, "
    "also of parameters that not every worker uses",
}
"""By culprits.APART."""

_COUNTED: dict[str, Any] = {"rank": 1, "timed": False}
_RULES = (
    _AdviceRule(
        "apart",
        lambda f: _if(f.cell.apart != ""),
        lambda f: _TOGETHER[f.cell.apart].format(workers=f.cell.workers),
        rank=-1,
        timed=False,
    ),
    _AdviceRule(
        "undivided",
        lambda f: _if(culprits.passes(f.point) > 1, Interval(value=culprits.passes(f.point) - 1)),
        lambda f: (
            "divide the data among the ranks (DistributedSampler, or a sampler of your own): "
            f"{culprits.whose_data(f.point)}, {culprits.passes(f.point):.0f} times the work; an epoch is "
            f"{f.point['epoch_steps']:.0f} steps on each, and would be "
            f"{math.ceil(f.point['epoch_steps'] / culprits.passes(f.point))}"
        ),
        kind="about",
        of="epochs per hour",
        rank=0,
        timed=False,
    ),
    _AdviceRule(
        "threads",
        lambda f: _if("threads" in f.point["flags"].split(), Interval(value=_more_threads(f.point))),
        lambda f: (
            f"compare with a baseline of as many threads: a worker computes with "
            f"{f.point['rank_threads']:.0f}, the baseline with {f.point['base_threads']:.0f}; "
            f"{culprits.same_threads(f.point)}"
        ),
        line=lambda f: f.base_line and f"OMP_NUM_THREADS={f.point['rank_threads']:.0f} {f.base_line}",
        of="speedup",
        **_COUNTED,
    ),
    _AdviceRule(
        "outside",
        lambda f: _if((f.cell.outside_share or 0.0) >= culprits.WORTH, _gain(f.cell.outside_share or 0.0, 1.0)),
        _outside_words,
        of="samples/s of the whole training",
        **_COUNTED,
    ),
    _AdviceRule(
        "stalls",
        lambda f: _worth(f, f.cell.stall_s, culprits.STALLED),
        _stall_words,
        **_COUNTED,
    ),
    _AdviceRule(
        "late rank",
        _lateness,
        _late_words,
        line=lambda f: _line("explain", f.late_run, "--part", "steps"),
        kind="about",
    ),
    _AdviceRule(
        "uneven",
        _uneven,
        lambda f: "make the steps of all ranks equally long: each rank is late in some of them; is the machine quiet?",
        line=lambda f: _line("doctor"),
    ),
    _AdviceRule(
        "data",
        lambda f: _worth(f, f.part("data")),
        lambda f: (
            "load data while computing"
            + (
                ", with another loader"
                if f.ours
                else ": more processes of the loader (num_workers), less work for each sample"
            )
        ),
        line=lambda f: _line("bench", "loading", "--batch", f.point["batch"]) if f.ours else "",
    ),
    _AdviceRule(
        "residual",
        lambda f: _worth(f, f.part("residual"), UNEXPLAINED),
        _residual_words,
        line=lambda f: _line("explain", f.run.directory, "--part", "account") if f.ours else "",
    ),
    _AdviceRule(
        "hooks",
        _hidden,
        lambda f: (
            "send gradients while backward computes (hooks), not after it (flat)"
            + ("; in a study file, reduction: [flat, hooks]" if f.several_hosts else "")
        ),
        line=lambda f: (
            "" if f.several_hosts else f.work("compare", f"{f.runtime},reduction=flat", f"{f.runtime},reduction=hooks")
        ),
    ),
    _AdviceRule(
        "tune",
        lambda f: _worth(f, f.cost_s) if f.ours and not f.several_hosts else None,
        lambda f: "find the fastest communication settings",
        line=lambda f: f.work("tune", "--runtime", f.runtime),
    ),
    _AdviceRule(
        "tensors",
        lambda f: _if(f.tensors, math.nan if f.cell.unsteady else f.cost_s),
        _call_words,
        **_COUNTED,
    ),
    _AdviceRule("communication", lambda f: None if f.ours else _worth(f, f.cost_s), _less_communication),
    _AdviceRule(
        "denormal",
        lambda f: None if f.ours else _worth(f, f.slower_s),  # ours flushes denormal numbers to 0
        lambda f: (
            "call torch.set_flush_denormal(True) at the start of the script: the update became several "
            "times as long over the run, and forward and backward did not, as where moments of Adam fade into denormal "
            "numbers, with which processors compute slowly"
        ),
    ),
    _AdviceRule(
        "beside",
        lambda f: _worth(f, f.beside_s, UNEXPLAINED),
        lambda f: "find out why workers compute more slowly beside each other: cores, memory or clock rates are shared",
        line=lambda f: _line("doctor"),
    ),
    _AdviceRule(
        "ablation",
        lambda f: _if(f.ours and f.cell.workers > 1 and math.isnan(f.cost_s) and f.run.state == "done"),
        lambda f: "measure communication by leaving it out in some blocks: a run with this option",
        line=lambda f: f"... python -m horovod_study.train --measure-ablation {shlex.join(_work_of(f.run))}",
    ),
    _AdviceRule(
        "synchronisation",
        lambda f: _if(
            f.ours and not f.several_hosts and f.run.synchronisation is None and f.cost_s >= WORTH * f.cell.step_s
        ),
        lambda f: "find out what the communication consists of: transfer, or the library around it",
        line=lambda f: f.work("explain", "--measure", "--runtime", f.runtime),
    ),
    _AdviceRule(
        "unsteady",
        lambda f: _if(f.cell.unsteady),
        lambda f: (
            f"record {f.cell.runs[0]} again on a quiet machine: it was disturbed, so that no advice follows "
            "from its times"
        ),
        line=lambda f: _line("doctor"),
        timed=False,
    ),
)
"""In the order in which equal gains are told."""


def _advice(found: Explanation, study: _Study) -> list[Help]:
    """Return what the rules say of the steps with the most workers, and what the runs beside them say."""
    facts = _facts(found, study)
    told: list[tuple[tuple[int, float], Help]] = []
    for rule in _RULES:
        size = rule.size(facts)
        if size is None or (rule.timed and facts.cell.unsteady):
            continue
        gain = size if isinstance(size, Interval) else _gain(size, facts.cell.step_s)
        sized: dict[str, Any] = {} if math.isnan(gain.value) else {"gain": gain, "kind": rule.kind, "of": rule.of}
        each = Help(what=rule.what(facts), name=rule.name, command=rule.line(facts), **sized)
        told.append(((rule.rank, -_least(each)), each))
    more = [*_quicker_series(found, study), *_missing_baseline(found, study), *_more_workers(found, study)]
    told += [((2, -_least(each)), each) for each in more]
    return [each for _, each in sorted(told, key=lambda pair: pair[0])]


def _facts(found: Explanation, study: _Study) -> _Facts:
    cell = max(found.last, key=lambda each: (each.workers, each.samples_per_s or 0.0))
    run = study.runs[cell.runs[0]]
    effective = run.record.effective
    slow = next((each for each in found.slow if each.series == cell.series), None)
    late: Counter[str] = Counter()
    for each in slow.ranks if slow is not None else ():
        late[each.cause] += each.cause_s / cell.workers  # type: ignore[assignment]
    growth = next((each for each in found.growth if each.series == cell.series and not each.unsteady), None)
    computing = ("compute", "forward", "backward", "update")
    point = _rows_of(study.points, cell.series, cell.workers, cell.nodes).iloc[0].to_dict()
    alone = study.named[(study.named["workers"] == 1) & (study.named["model"] == point["model"])]
    return _Facts(
        cell=cell,
        run=run,
        point={f"{name}": value for name, value in point.items()},
        slow=slow,
        late_run=str((run if slow is None else study.runs[slow.run]).directory),
        late_s=late,
        beside_s=0.0 if growth is None else sum(growth.parts_s.get(part) or 0.0 for part in computing),
        slower_s=max(study.slower.get(name) or 0.0 for name in cell.runs),
        ours="steps_per_epoch" in effective,
        several_hosts=len({rank.get("host") for rank in effective.get("ranks") or ()}) > 1,
        runtime=f"{effective.get('backend')}/{effective.get('transport')}",
        base_line=next((again(row, _taken(study)) for row in alone.to_dict("records")), ""),
    )


def _least(each: Help) -> float:
    """Return by what advice is sorted: a gain that is sure goes before one that is at most that."""
    if each.gain is None:
        return -1.0
    if math.isfinite(each.gain.low):
        return each.gain.low
    return each.gain.value * (0.5 if each.kind == "at most" else 1.0)


def _taken(study: _Study) -> list[str]:
    return [*study.taken, *(str(each) for each in study.named["run"])]


def _missing_baseline(found: Explanation, study: _Study) -> Iterable[Help]:
    """Yield what to type for the one-worker run that the runs of another script lack."""
    cell = max(found.last, key=lambda each: (each.workers, each.samples_per_s or 0.0))
    runs = _rows_of(study.named, cell.series, cell.workers, cell.nodes)
    if not found.why_no_growth or cell.workers == 1 or cell.apart or runs.iloc[0]["model"] == packaged().model:
        return
    run = {f"{name}": value for name, value in runs.iloc[0].items()}
    what = "record one worker of the same script beside it: that says what more workers add"
    if run.get("declared"):
        yield Help(name="baseline", what=f"{what}; in the study file: baselines: [wrapped]")
        return
    notes, line = baseline_command(run, batch=float(run["ref_batch"]), taken=_taken(study))
    yield Help(name="baseline", what="; ".join([what, *notes]), command=line)


def _slower_updates(run: RecordedRun) -> float | None:
    """Return what updates on processors take more than early ones, mean over steps in s, of the rank with most; None
    where they have not become longer, or forward and backward have too.

    Compared are undisturbed steps: the 10 % quantiles of the first steps and of each of the last three tenths.
    """
    if run.record.effective.get("device") != "cpu":
        return None
    found = []
    for columns in run.rows.values():
        laps = [columns.get(f"{lap}_s") for lap in ("update", "forward", "backward")]
        if any(lap is None for lap in laps):
            continue
        update, forward, backward = (np.asarray(lap, dtype=np.float64) for lap in laps)
        computing = np.nan_to_num(forward) + backward  # a forward that is not seen is in backward
        if len(update) < 10 * MIN_STEPS or np.isnan(update + computing).any():
            continue
        ends = [round(share * len(update)) for share in (0.7, 0.8, 0.9, 1.0)]
        (early_s, late_s), (before_s, after_s) = (
            (
                float(np.quantile(lap[_EARLY_STEPS], _UNDISTURBED)),
                min(float(np.quantile(lap[first:end], _UNDISTURBED)) for first, end in pairwise(ends)),
            )
            for lap in (update, computing)
        )
        if late_s >= _SLOWER_UPDATE * early_s and after_s <= _SAME_COMPUTING * before_s:
            found.append(float(np.mean(update)) - early_s)
    return max(found, default=None)


def _quicker_series(found: Explanation, study: _Study) -> Iterable[Help]:
    """Yield that another library made more samples per second with as many workers: within rounds, else over repeats.

    Neither of a disturbed run, nor of one worker, nor of workers that train apart; none where the interval holds no
    gain.
    """
    rates = dict(zip(study.named["run"], study.named["samples_per_s"], strict=True))
    last = [each for each in found.last if each.samples_per_s and each.workers > 1]
    last = [each for each in last if not each.unsteady and not each.apart]
    for cell in last:
        rivals = [each for each in last if each.workers == cell.workers and each.series != cell.series]
        best = max(rivals, key=lambda each: each.samples_per_s or 0.0, default=None)
        if best is None:
            continue
        rounds = study.turns.estimate(best.runs, cell.runs) if study.turns else None
        sides = ([rates[run] for run in each.runs] for each in (best, cell))
        ratio = stats.median_ratio(*sides) if rounds is None else rounds.ratio
        gain = Interval(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)
        if gain.value > WORTH and not gain.low <= 0:
            what = f"{best.series} instead of {cell.series}, at {cell.workers} workers"
            yield Help(name="quicker", what=what, gain=gain, kind="measured")


def _more_workers(found: Explanation, study: _Study) -> Iterable[Help]:
    """Yield the forecast of twice as many workers for each series with enough worker counts."""
    steady = {run for cell in study.cells if not cell.unsteady for run in cell.runs}
    try:
        points = points_of(study.named[study.named["run"].isin(steady)])
    except AnalysisError:
        return
    for cell in found.last:
        rows = points[points["series"] == cell.series]
        if rows["workers"].nunique() < 3 or not cell.samples_per_s or cell.unsteady:
            continue
        try:
            forecast = next(iter(predict(rows, workers=[2 * cell.workers]).values()))[0]
        except AnalysisError:
            continue
        now = cell.samples_per_s
        more, low, high = (each / now - 1 for each in (forecast.samples_per_s, forecast.low, forecast.high))
        gain = Interval(value=more, low=low, high=high)
        if gain.low > WORTH:
            what = f"{2 * cell.workers} workers instead of {cell.workers} ({cell.series})"
            yield Help(name="workers", what=what, gain=gain, kind="forecast")


def _gain(seconds: float, step_s: float) -> Interval:
    """Return how much more throughput it makes when a step loses so many seconds."""
    return Interval(value=math.inf if seconds >= step_s else seconds / (step_s - seconds))


def _work_of(run: RecordedRun) -> Iterator[str]:
    """Return the options that say what a run trained, as far as they are not the usual ones."""
    for name, each in packaged().options.items():
        value = run.record.requested.get(name, each.default)
        if not each.roles & _WORK or value in (each.default, None):
            continue
        flag = "--" + name.replace("_", "-")
        yield from [flag if value else f"--no-{flag[2:]}"] if each.kind is bool else [flag, str(value)]


def _line(*words: object) -> str:
    return shlex.join(["horovod-study", *map(str, words)])
