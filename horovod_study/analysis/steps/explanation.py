"""One page about a run or a study: where the time of a step goes, who is slow, what more workers add, what would help.

Nothing is measured or fitted here that another module does not do: laps and their growth are those of accounting.py,
waiting and exposed communication those of attribution.py, slow ranks those of stragglers.py, more workers those of
prediction.py. What is unknown is None, with the reason.

A gain is a share of the throughput. A step of T seconds that loses d of them makes d / (T - d) more samples per second:
`at most` where d is all of a part, and nobody removes all of it.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.series.baseline_commands import baseline_command
from horovod_study.analysis.series.exchange import points_of
from horovod_study.analysis.series.points import levelled, measured, scaling_points
from horovod_study.analysis.series.turns import StudyTurns
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.analysis.steps.accounting import Accounting, RunAccount, account, account_run
from horovod_study.analysis.steps.attribution import BUSY_CORES, INSIDE_BACKWARD, over_runs, parts_of
from horovod_study.analysis.steps.breakdown import BASES, PARTS, UNEXPLAINED
from horovod_study.analysis.steps.inspection import Inspection, inspect
from horovod_study.analysis.steps.stragglers import MIN_STEPS, Lateness
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun
from horovod_study.roles import Role
from horovod_study.text.numbers import milliseconds, rounded
from horovod_study.text.words import plural
from horovod_study.workloads import packaged

WORTH = 0.02
"""A share of the step below this is not worth an advice."""

_SHARED = (
    "does the script do more on it than on others, is its core or GPU shared with other programs, or clocked lower?"
)
_TRY = {
    "data": "look at its data loader, and at the disk that it reads from",
    **dict.fromkeys(("compute", "forward", "backward", "update", "computing"), _SHARED),
    "residual": "look at what the script does there beside training: logging, checkpoints, evaluation",
    "several": _SHARED,
}
"""What to try for a slow rank, by the lap in which it is slow (stragglers.CAUSES)."""
_SLOWER_UPDATE, _SAME_COMPUTING = 2.0, 1.25
"""An update that has become so many times as long, while forward and backward have become no longer than this."""
_EARLY_STEPS = slice(10, 60)
_UNDISTURBED = 0.1  # the quantile of a lap that only its undisturbed steps determine
_FEWER = "several batches per update, of which only the last averages"
_LESS_COMMUNICATION = {
    "ddp": f"a larger batch per worker, {_FEWER} (no_sync), gradients in 16 bits (bf16_compress_hook), other buckets "
    "(bucket_cap_mb)",
    "horovod": f"a larger batch per worker, {_FEWER} (backward_passes_per_step), gradients in 16 bits "
    "(hvd.Compression.fp16)",
    "FSDP": "a larger batch per worker, parameters kept whole from forward to backward (reshard_after_forward=False), "
    "or gathered ahead (set_modules_to_forward_prefetch), 16 bits (MixedPrecisionPolicy)",
}
"""What makes another script wait less for gradients, by its library; FSDP: `fully_shard`, by the name of the model."""

_WORK = Role.DATA | Role.LEARNING | Role.COMPUTING


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
    nodes: tuple[int, int] | None = None  # from how many to how many, where the baseline is on fewer
    waiting: Interval | None = None  # share of `step_s` that is waiting for gradients, where a step became longer


@dataclass(frozen=True, kw_only=True, slots=True)
class _SlowerUpdates:
    """The update of a rank that became longer over a run while forward and backward did not, in s."""

    early_s: float  # undisturbed
    late_s: float
    more_s: float  # mean over steps of what an update takes more than the early one


@dataclass(frozen=True, kw_only=True, slots=True)
class Help:
    """Something to do next."""

    what: str
    command: str = ""  # a line to type
    gain: Interval | None = None  # more throughput, as a share; None where nobody can say
    kind: str = ""  # about | at most | forecast | measured


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
    help: tuple[Help, ...]  # the greatest gain first
    doubts: tuple[str, ...]

    @property
    def last(self) -> tuple[Cell, ...]:
        """Return the cell with the most workers of each series."""
        return tuple({cell.series: cell for cell in self.cells}.values())


def explain(table: pd.DataFrame, runs: Iterable[RecordedRun], turns: StudyTurns | None = None) -> Explanation:
    """Explain recorded runs; `table` and `runs` are those of records.recorded_runs, `turns` the slices of runs that
    alternated, by the column `run`.

    Raises AnalysisError where no run has a step.
    """
    named = levelled(table, turns)
    most = named.groupby("series")["workers"].transform("max")
    largest = set(named.loc[(named["workers"] == most) & (named["workers"] > 1), "run"])
    accounts: list[RunAccount] = []
    looked: dict[str, Inspection | str] = {}
    slower: dict[str, _SlowerUpdates | None] = {}
    kept: dict[str, RecordedRun] = {}
    for run in runs:
        accounts.append(account_run(run, views=run.name in largest))
        slower[run.name] = _slower_updates(run)
        kept[run.name] = replace(run, rows={})  # rows are large
        if run.name in largest:
            try:
                looked[run.name] = inspect(run)
            except AnalysisError as error:
                looked[run.name] = str(error).partition(": ")[2]
    accounting = account(table, accounts, views=False)
    if accounting.cells.empty:
        why = next((run.why_not for run in accounts if run.why_not), "none holds a step")
        raise AnalysisError(f"{accounts[0].run}: nothing to explain: {why}; name a run that made steps")
    cells = _cells(named, accounting, turns)
    growth, why_no_growth = _growth(accounting.cells, cells, named)
    of_cells = [(cell, [looked[run] for run in cell.runs if run in looked]) for cell in _last(cells)]
    slow = tuple(_slow(cell, seen) for cell, seen in of_cells if seen)
    steps = [rank.steps for run in accounting.runs for rank in run.ranks] or [0]
    found = Explanation(
        names=tuple(run.run for run in accounting.runs),
        states=dict(sorted(Counter(run.state for run in accounts).items())),
        hosts=tuple(dict.fromkeys(rank.host for run in accounting.runs for rank in run.ranks if rank.host)),
        steps=min(steps),
        steps_most=max(steps),
        cells=tuple(cells),
        slow=slow,
        growth=tuple(growth),
        why_no_growth=why_no_growth,
        help=(),
        doubts=tuple(_doubts(accounting, looked.values())),
    )
    quicker = _quicker_series(found, dict(zip(named["run"], named["samples_per_s"], strict=True)), turns)
    advice = [*_advice(found, kept, slower), *quicker, *_missing_baseline(named, found), *_more_workers(named, found)]
    return replace(found, help=tuple(sorted(advice, key=lambda each: -_least(each))))


def _least(each: Help) -> float:
    """Return by what advice is sorted: a gain that is sure goes before one that is at most that."""
    if each.gain is None:
        return -1.0
    if math.isfinite(each.gain.low):
        return each.gain.low
    return each.gain.value * (0.5 if each.kind == "at most" else 1.0)


# ---------------------------------------------------------------------------------------------------- what there is


def _cells(named: pd.DataFrame, accounting: Accounting, turns: StudyTurns | None) -> list[Cell]:
    """Return the cells in the order of the account: series after series, the fewest workers first."""
    accounts = {run.run: run for run in accounting.runs}
    done = measured(named)
    points = scaling_points(named, turns=turns)
    cells: list[Cell] = []
    keys: Any
    for keys, rows in accounting.cells.groupby(["series", "workers", "nodes"], sort=False, dropna=False):
        series, workers, nodes = keys
        by_part = dict(zip(rows["lap"], rows["mean_s"], strict=True))
        here = _rows_of(named, series, workers, nodes)
        finished = here[done[here.index]]
        used = [str(each) for each in (here if finished.empty else finished)["run"]]
        rate = float(finished["samples_per_s"].median()) if len(finished) else math.nan
        point = _rows_of(points, series, workers, nodes)
        good = [float(each) for kind in BASES for each in point[f"efficiency_{kind}"].dropna()]
        cell = Cell(
            series=str(series),
            workers=int(workers),
            nodes=float(nodes),
            runs=tuple(used),
            samples_per_s=stats.finite_or_none(rate),
            efficiency=next(iter(good), None),
            step_s=float(by_part["step"]),
            parts_s={part: stats.finite_or_none(by_part.get(part, math.nan)) for part in PARTS[:-1]},
        )
        cells.append(_with_communication(cell, [accounts[run] for run in used if run in accounts]))
    return cells


def _with_communication(cell: Cell, runs: Sequence[RunAccount]) -> Cell:
    """Return a cell with what its communication costs, as far as its runs say so."""
    if cell.workers == 1:
        return replace(cell, why_not="one worker communicates with nobody")
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


def _last(cells: Sequence[Cell]) -> list[Cell]:
    return list({cell.series: cell for cell in cells}.values())


def _slow(cell: Cell, looked: Sequence[Inspection | str]) -> Slow:
    """Return who is slow in the runs of one cell, one or more; in repeats the same rank is counted."""
    told = [each for each in looked if isinstance(each, Inspection) and each.stragglers.verdict != "unknown"]
    head: dict[str, Any] = {"series": cell.series, "workers": cell.workers, "looked_at": len(looked)}
    if not told:
        why_not = looked[0] if isinstance(looked[0], str) else looked[0].stragglers.why_not
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


def _growth(table: pd.DataFrame, cells: Sequence[Cell], named: pd.DataFrame) -> tuple[list[Growth], str]:
    """Return what the most workers of each series add to a step of one worker, or to that of its fewest workers."""
    found = []
    for cell in _last(cells):
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
        elif first.workers < cell.workers:
            step, base = Interval(value=cell.step_s - first.step_s), f"{first.workers} workers"
            parts = {part: _less(cell.parts_s[part], first.parts_s[part]) for part in PARTS[:-1]}
        else:
            continue
        found.append(Growth(series=cell.series, base=base, workers=cell.workers, parts_s=parts, step_s=step))
    found += [each for cell in _last(cells) if (each := _node_growth(cell, cells, named)) is not None]
    if found or all(cell.workers == 1 for cell in cells):
        return found, "" if found else "no run has several workers"
    return [], "one worker count only, and no run of one worker with the same work beside it"


def _node_growth(cell: Cell, cells: Sequence[Cell], named: pd.DataFrame) -> Growth | None:
    """Return what more nodes add to a step of a series: its most workers less the most of those on the fewest nodes.

    With a fixed global batch the work of a step changes too: then it is not said.
    """
    same = [each for each in cells if each.series == cell.series and not math.isnan(each.nodes)]
    few = [each for each in same if each.nodes < cell.nodes]
    if not few:
        return None
    base = max((each for each in few if each.nodes == few[0].nodes), key=lambda each: each.workers)
    more, less = (_rows_of(named, each.series, each.workers, each.nodes) for each in (cell, base))
    more, less = more[measured(more)], less[measured(less)]
    if more.empty or less.empty or set(more["mode"]) == {"strong"}:
        return None
    steps = [rows["step_s"].to_numpy(dtype=np.float64) for rows in (more, less)]
    waits = [rows["sync_s"].to_numpy(dtype=np.float64) for rows in (more, less)]
    step = stats.difference(*(stats.student(each) for each in steps))
    share = _share(steps, waits) if step.value > 0 else None
    return Growth(
        series=cell.series,
        base=f"{plural(base.workers, 'worker')} on {plural(int(base.nodes), 'node')}",
        workers=cell.workers,
        parts_s={part: _less(cell.parts_s[part], base.parts_s[part]) for part in PARTS[:-1]},
        step_s=step,
        nodes=(int(base.nodes), int(cell.nodes)),
        waiting=share,
    )


def _share(steps: Sequence[Floats], waits: Sequence[Floats]) -> Interval | None:
    """Return which share of the growth of the mean step is growth of the mean wait; None where waits are unknown.

    steps, waits: those of the runs of the longer and of the shorter step. The interval is a percentile bootstrap over
    the runs of each; none for fewer than three.
    """
    if not all(np.isfinite(each).all() for each in waits):
        return None
    value = float((waits[0].mean() - waits[1].mean()) / (steps[0].mean() - steps[1].mean()))
    if min(map(len, steps)) < stats.MIN_REPEATS:
        return Interval(value=value)
    generator = np.random.default_rng(1)
    drawn = [generator.integers(len(each), size=(2000, len(each))) for each in steps]
    step = steps[0][drawn[0]].mean(axis=1) - steps[1][drawn[1]].mean(axis=1)
    wait = waits[0][drawn[0]].mean(axis=1) - waits[1][drawn[1]].mean(axis=1)
    if (step <= 0).any():  # the growth itself may be chance
        return Interval(value=value)
    return stats.percentiles(value, wait / step)


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
    return list(dict.fromkeys(doubts))


# ------------------------------------------------------------------------------------------------- what would help


def _advice(
    found: Explanation, runs: Mapping[str, RecordedRun], slower: Mapping[str, _SlowerUpdates | None]
) -> Iterable[Help]:
    """Yield what the parts of the steps with the most workers suggest."""
    cell = max(found.last, key=lambda each: (each.workers, each.samples_per_s or 0.0))
    run = runs[cell.runs[0]]
    yield from _late_ranks(found, cell, runs)
    yield from _communication(cell, run)
    yield from _other_parts(found, cell, run)
    yield from _slower_computing(found, cell)
    if not _ours(run):  # which flushes denormal numbers to 0
        yield from _denormal(cell, [each for name in cell.runs if (each := slower.get(name)) is not None])


def _late_ranks(found: Explanation, cell: Cell, runs: Mapping[str, RecordedRun]) -> Iterable[Help]:
    slow = next((each for each in found.slow if each.series == cell.series), None)
    if slow is None:
        return
    if slow.ranks:
        first = slow.ranks[0]
        ranks = f"rank {first.rank}" if len(slow.ranks) == 1 else f"{len(slow.ranks)} ranks"
        where = f" on {first.host}" if first.host else ""
        gain = _gain(slow.delay_s, slow.period_s)
        if slow.delay_low_s is not None and slow.delay_high_s is not None:
            low, high = (_gain(each, slow.period_s).value for each in (slow.delay_low_s, slow.delay_high_s))
            gain = replace(gain, low=low, high=high)
        yield Help(
            what=f"make {ranks}{where} as quick as the others: {_TRY[first.cause]}; its steps in detail",
            command=_line("explain", runs[slow.run].directory, "--part", "steps"),
            gain=gain,
            kind="about",
        )
    elif slow.waiting_s is not None and slow.waiting_s > WORTH * slow.period_s:
        what = "make the steps of all ranks equally long: each rank is late in some of them; is the machine quiet?"
        yield _at_most(what, slow.waiting_s, slow.period_s, _line("doctor"))


def _communication(cell: Cell, run: RecordedRun) -> Iterable[Help]:
    """Yield what a large exposed communication suggests, with commands where the run is one of this package."""
    cost = cell.exposed_s or cell.left_out_s
    if cell.workers == 1 or (cost is not None and cost.value < WORTH * cell.step_s):
        return
    effective = run.record.effective
    several_hosts = len({rank.get("host") for rank in effective.get("ranks") or ()}) > 1
    runtime = f"{effective.get('backend')}/{effective.get('transport')}"
    several = ("--workers", cell.workers, *_work_of(run))
    if cost is None:
        if _ours(run) and run.state == "done":
            what = "measure communication by leaving it out in some blocks: a run with this option"
            line = f"... python -m horovod_study.train --measure-ablation {shlex.join(_work_of(run))}"
            yield Help(what=what, command=line)
        return
    if not _ours(run):
        library = "FSDP" if str(effective.get("model")).startswith("FSDP") else str(effective.get("backend"))
        how = _LESS_COMMUNICATION.get(library, f"a larger batch per worker, {_FEWER}")
        yield _at_most(f"communicate less: {how}", cost.value, cell.step_s)
        return
    if effective.get("reduction") == "flat" and packaged().options["reduction"].matters(runtime):
        backward = cell.parts_s.get("backward")
        hidden = cost.value if backward is None else min(cost.value, backward)
        sides = (f"{runtime},reduction=flat", f"{runtime},reduction=hooks")
        what = "send gradients while backward computes (hooks), not after it (flat)"
        what += "; in a study file, reduction: [flat, hooks]" if several_hosts else ""
        yield _at_most(what, hidden, cell.step_s, "" if several_hosts else _line("compare", *sides, *several))
    if several_hosts:  # the experiments below run on one machine
        return
    line = _line("tune", "--runtime", runtime, *several)
    yield _at_most("find the fastest communication settings", cost.value, cell.step_s, line)
    if run.synchronisation is None:
        yield Help(
            what="find out what the communication consists of: transfer, or the library around it",
            command=_line("explain", "--measure", "--runtime", runtime, *several),
        )


def _missing_baseline(named: pd.DataFrame, found: Explanation) -> Iterable[Help]:
    """Yield what to type for the one-worker run that the runs of another script lack."""
    cell = max(found.last, key=lambda each: (each.workers, each.samples_per_s or 0.0))
    runs = _rows_of(named, cell.series, cell.workers, cell.nodes)
    if not found.why_no_growth or cell.workers == 1 or runs.iloc[0]["model"] == packaged().model:
        return
    run = {f"{name}": value for name, value in runs.iloc[0].items()}
    what = "record one worker of the same script beside it: that says what more workers add"
    if run.get("declared"):
        yield Help(what=f"{what}; in the study file: baselines: [wrapped]")
        return
    notes, line = baseline_command(run, batch=float(run["ref_batch"]), taken=[str(each) for each in named["run"]])
    yield Help(what="; ".join([what, *notes]), command=line)


def _other_parts(found: Explanation, cell: Cell, run: RecordedRun) -> Iterable[Help]:
    slow = next((each for each in found.slow if each.series == cell.series), None)
    late = dict.fromkeys(("data", "residual"), 0.0)  # what the late ranks make of a part, which is told of them
    for each in slow.ranks if slow is not None else ():
        if each.cause in late:
            late[each.cause] += each.cause_s / cell.workers
    data, residual = ((cell.parts_s[part] or 0.0) - more for part, more in late.items())
    ours, batch = _ours(run), run.record.effective.get("batch")
    if data > WORTH * cell.step_s:
        line = _line("bench", "loading", "--batch", batch) if ours and batch else ""
        more = ": more processes of the loader (num_workers), less work for each sample"
        what = f"load data while computing{', with another loader' if ours else more}"
        yield _at_most(what, data, cell.step_s, line)
    unseen = ", such as making its batches, for which no DataLoader was seen" * (cell.parts_s["data"] is None)
    if residual > UNEXPLAINED * cell.step_s:
        theirs = f"the script does outside all laps{unseen}: three lines in it mark its parts (docs/your_script.md)"
        line = _line("explain", run.directory, "--part", "account") if ours else ""
        yield _at_most(f"find what {'is outside all laps' if ours else theirs}", residual, cell.step_s, line)


def _slower_updates(run: RecordedRun) -> _SlowerUpdates | None:
    """Return what the updates on processors take more at the end of a run than at its beginning, of the rank with most.

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
            found.append(_SlowerUpdates(early_s=early_s, late_s=late_s, more_s=float(np.mean(update)) - early_s))
    return max(found, key=lambda each: each.more_s, default=None)


def _denormal(cell: Cell, slower: Sequence[_SlowerUpdates]) -> Iterable[Help]:
    """Yield that numbers too small to matter may slow down the updates."""
    seen = max(slower, key=lambda each: each.more_s, default=None)
    if seen is not None and seen.more_s > WORTH * cell.step_s:
        what = (
            "call torch.set_flush_denormal(True) at the start of the script: the update became "
            f"{rounded(seen.late_s / seen.early_s, 2)} times as long over the run ({milliseconds(seen.early_s)} to "
            f"{milliseconds(seen.late_s)} ms) and forward and backward did not, as where moments of Adam fade into "
            "denormal numbers, with which processors compute slowly"
        )
        yield _at_most(what, seen.more_s, cell.step_s)


def _slower_computing(found: Explanation, cell: Cell) -> Iterable[Help]:
    """Yield that each worker computes more slowly beside others than alone; a batch of another size is no reason."""
    growth = next((each for each in found.growth if each.series == cell.series), None)
    if growth is None:
        return
    more = sum(growth.parts_s.get(part) or 0.0 for part in ("compute", "forward", "backward", "update"))
    if more > UNEXPLAINED * cell.step_s:
        what = "find out why workers compute more slowly beside each other: cores, memory or clock rates are shared"
        yield _at_most(what, more, cell.step_s, _line("doctor"))


def _quicker_series(found: Explanation, rates: Mapping[str, float], turns: StudyTurns | None) -> Iterable[Help]:
    """Yield that another series made more samples per second with as many workers: within rounds, else over repeats.

    `rates`: samples/s by run. None where the interval holds no gain.
    """
    last = [cell for cell in found.last if cell.samples_per_s]
    for cell in last:
        rivals = [each for each in last if each.workers == cell.workers and each.series != cell.series]
        best = max(rivals, key=lambda each: each.samples_per_s or 0.0, default=None)
        if best is None:
            continue
        rounds = turns.estimate(best.runs, cell.runs) if turns else None
        sides = ([rates[run] for run in each.runs] for each in (best, cell))
        ratio = stats.median_ratio(*sides) if rounds is None else rounds.ratio
        gain = Interval(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)
        if gain.value > WORTH and not gain.low <= 0:
            what = f"{best.series} instead of {cell.series}, at {cell.workers} workers"
            yield Help(what=what, gain=gain, kind="measured")


def _more_workers(named: pd.DataFrame, found: Explanation) -> Iterable[Help]:
    """Yield the forecast of twice as many workers for each series with enough worker counts."""
    try:
        points = points_of(named)
    except AnalysisError:
        return
    for cell in found.last:
        rows = points[points["series"] == cell.series]
        if rows["workers"].nunique() < 3 or not cell.samples_per_s:
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
            yield Help(what=what, gain=gain, kind="forecast")


def _gain(seconds: float, step_s: float) -> Interval:
    """Return how much more throughput it makes when a step loses so many seconds."""
    return Interval(value=seconds / (step_s - seconds) if seconds < step_s else math.inf)


def _at_most(what: str, seconds: float, step_s: float, command: str = "") -> Help:
    return Help(what=what, command=command, gain=_gain(seconds, step_s), kind="at most")


def _ours(run: RecordedRun) -> bool:
    """Return whether this package's trainer made a run, which other commands can start again."""
    return "steps_per_epoch" in run.record.effective


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
