"""One page about a run or a study: where the time of a step goes, who is slow, what more workers add, what would help.

Nothing is measured or fitted here that another module does not do: laps and their growth are those of accounting.py,
waiting and exposed communication those of attribution.py, slow ranks those of stragglers.py, what makes a number mean
something else those of series/culprits.py. What is unknown is None, with the reason.

A gain is a share of the throughput. A step of T seconds that loses d of them makes d / (T - d) more samples per second:
`at most` where d is all of a part, and nobody removes all of it.
"""

import math
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series import culprits
from horovod_study.analysis.series.baseline_commands import again, baseline_command
from horovod_study.analysis.series.points import disturbed_runs, efficiency_doubts, levelled, measured, scaling_points
from horovod_study.analysis.series.turns import StudyTurns
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.accounting import Accounting, RunAccount, account, account_run
from horovod_study.analysis.steps.attribution import BUSY_CORES, INSIDE_BACKWARD, over_runs, parts_of
from horovod_study.analysis.steps.breakdown import BASES, PARTS, UNEXPLAINED
from horovod_study.analysis.steps.inspection import Inspection, inspect
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE
from horovod_study.analysis.steps.stragglers import CAUSES, MIN_STEPS
from horovod_study.config.roles import Role
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun
from horovod_study.text.numbers import milliseconds, percent
from horovod_study.text.words import plural

WORTH = 0.02  # a share of the step below this is not worth an advice
Row: TypeAlias = SimpleNamespace
"""A cell, who is slow in one, or what one has more than another; times in s per step. The functions that make them say
what is in them."""


@dataclass(frozen=True, slots=True)
class Help:
    """Something to do next."""

    what: str
    name: str  # of the rule
    command: str = ""  # a line to type
    gain: Interval | None = None  # as a share; None where nobody can say
    kind: str = ""  # about | at most | measured
    of: str = "samples/s"  # what there is more of


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What a run or a set of runs says of itself."""

    names: tuple[str, ...]  # of the runs
    states: Mapping[str, int]
    hosts: tuple[str, ...]
    steps: int  # of a rank, the fewest and ...
    steps_most: int  # ... the most
    cells: tuple[Row, ...]  # of _cells
    slow: tuple[Row, ...]  # of _slow, for the most workers of each series
    growth: tuple[Row, ...]  # of _growth
    why_no_growth: str
    help: tuple[Help, ...]  # what makes the numbers mean something else, then the greatest gain first
    doubts: tuple[str, ...]

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
    looked: dict[str, Inspection | str] = {}
    slower: dict[str, float] = {}
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
    cells = _cells(named, points, accounting, kept)
    own = tuple(cell for cell in cells if about in ("", *cell.runs))
    seen = [(cell, [looked[run] for run in cell.runs if run in looked]) for cell in _last(own)]
    growth, why_no_growth = _growth(accounting.cells, cells)
    told = [run for run in accounting.runs if about in ("", run.run)]
    steps = [rank.steps for run in told for rank in run.ranks] or [0]
    places = pd.concat([_rows_of(points, cell.series, cell.workers, cell.nodes) for cell in own])
    found = Explanation(
        names=tuple(run.run for run in told),
        states=dict(sorted(Counter(run.state for run in told).items())),
        hosts=tuple(dict.fromkeys(rank.host for run in told for rank in run.ranks if rank.host)),
        steps=min(steps),
        steps_most=max(steps),
        cells=own,
        slow=tuple(_slow(cell, each) for cell, each in seen if each),
        growth=tuple(growth),
        why_no_growth=why_no_growth,
        help=(),
        doubts=tuple(dict.fromkeys([*efficiency_doubts(places), *_doubts(accounting, looked.values(), kept.values())])),
    )
    names = [*taken, *(str(each) for each in named["run"])]
    facts = _facts(found, points, kept)
    alone = named[(named["workers"] == 1) & (named["model"] == facts.point["model"])].to_dict("records")
    beside = _beside(found, named, turns, names)
    disturbed: list[Any] = named[named["run"].isin(found.top.unsteady)].to_dict("records")
    facts.base, facts.again = (next((again(row, names) for row in rows), "") for rows in (list[Any](alone), disturbed))
    facts.base_threads = facts.base and f"OMP_NUM_THREADS={facts.point['rank_threads']:.0f} {facts.base}"
    slower_s = max(slower[name] for name in found.top.runs)
    return replace(found, help=tuple(_advice(facts, slower_s, beside)))


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
        cell = Row(
            series=str(keys[0]),
            workers=int(keys[1]),
            nodes=float(keys[2]),
            runs=tuple(used),
            samples_per_s=stats.finite_or_none(float(finished["samples_per_s"].median())),
            efficiency=next((float(each) for kind in ways for each in own[f"efficiency_{kind}"].dropna()), None),
            step_s=float(by_part["step"]),
            parts_s={part: stats.finite_or_none(by_part.get(part, math.nan)) for part in PARTS[:-1]},
            outside=next((run.outside for run in recorded), None),  # between the steps, of its first run
            outside_share=stats.finite_or_none(point["outside_share_median"]),  # of the training's time
            whole_samples_per_s=stats.finite_or_none(point["whole_samples_per_s_median"]),  # the rate with it
            stalls=next((run.stalls for run in recorded), None),
            stall_s=stats.finite_or_none(point["stall_s_median"]) or 0.0,
            stacks=tuple(e for e in record.totals.get("stacks") or () if e.get("where") in ("outside", "residual")),
            calls=record.effective.get("calls"),  # collective ones of the script's own in a step
            apart=point["apart"],
            withheld=culprits.withheld(point),
            unsteady=tuple(finished["run"][disturbed_runs(finished)]) if culprits.unsteady(point) else (),
            loader_thread=bool(record.effective.get("loader_thread")),
        )
        cell.first = tuple(_first(cell, point))
        cells.append(Row(**vars(cell), **_communication(cell, recorded)))
    timed = (cell for cell in cells if cell.workers == 1 and cell.outside is not None and cell.outside.where)
    alone = next(timed, None)
    for cell in cells:
        cell.outside_alone_s = alone.outside.gap_s if alone else None
    return cells


def _first(cell: Row, point: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader must know before any number of a cell."""
    yield from culprits.told(point)
    if cell.loader_thread and (cell.parts_s["residual"] or 0.0) > UNEXPLAINED * cell.step_s:
        share = percent((cell.parts_s["residual"] or 0.0) / cell.step_s)
        yield f"a thread loads the batches, and the training waits for it outside all laps, {share} of the step"
    if cell.unsteady:
        more = f" (and {len(cell.unsteady) - 1} more)" if len(cell.unsteady) > 1 else ""
        yield f"run {cell.unsteady[0]} was disturbed{more}, so that no advice follows from its times"


def _communication(cell: Row, runs: Sequence[RunAccount]) -> dict[str, Any]:
    """Return what communication costs that no computing hides, the wait for the last rank, and both by leaving it out.

    None where it is not known, with the reason.
    """
    found: dict[str, Any] = dict.fromkeys(("exposed_s", "waiting_s", "left_out_s"))
    shared = cell.parts_s["sync"] or (cell.calls or {}).get("per_step")  # gradients or a metric
    if cell.workers == 1 or (cell.apart in ("processes", "none") and not shared):
        return {**found, "why_not": NO_EXCHANGE if cell.apart else "one worker communicates with nobody"}
    parts = [parts_of(run.seen, seed=1 + place) for place, run in enumerate(runs) if run.seen is not None]
    for name, part in (("exposed_s", "exposed"), ("waiting_s", "skew")):
        if parts and all(part in each for each in parts):
            found[name] = over_runs([each[part] for each in parts])
    told = [run.why_not_seen for run in runs if run.why_not_seen]
    told += [run.seen.why_no_sync for run in runs if run.seen is not None and run.seen.sync_s is None]
    known = found["exposed_s"] is not None or found["waiting_s"] is not None
    if left_out := [run.left_out.ablation_s for run in runs if run.left_out is not None]:
        found["left_out_s"] = stats.together(left_out)
    return {**found, "why_not": "" if known else next(iter(told), INSIDE_BACKWARD)}


def _last(cells: Iterable[Row]) -> list[Row]:
    return list({cell.series: cell for cell in cells}.values())


def _rows_of(table: pd.DataFrame, series: str, workers: int, nodes: float) -> pd.DataFrame:
    """Return the rows of one cell; how many nodes it has may be unknown."""
    same = table["nodes"].isna() if math.isnan(nodes) else table["nodes"] == nodes
    return table[(table["series"] == series) & (table["workers"] == workers) & same]


def _slow(cell: Row, looked: Sequence[Inspection | str]) -> Row:
    """Return who is slow in the runs of one cell, one or more; in repeats the same rank is counted.

    `run` is that which is told of: the one with the latest rank, else one with a rank that is longer in a lap.
    """
    told = {each.name: each.stragglers for each in looked if isinstance(each, Inspection)}
    seen = {name: late for name, late in told.items() if late.verdict != "unknown"}
    found = Row(series=cell.series, workers=cell.workers, run=cell.runs[0], looked_at=len(looked), named_in=0)
    found.ranks, found.balanced, found.chance, found.why_not = (), (), 1 / cell.workers, ""
    found.period_s, found.delay_s, found.delay_low_s, found.delay_high_s = cell.step_s, 0.0, None, None
    found.waiting_s = found.resolution_s = None
    if not seen or cell.why_not == NO_EXCHANGE:
        unknown = looked[0] if isinstance(looked[0], str) else looked[0].stragglers.why_not
        found.why_not = NO_EXCHANGE if cell.why_not == NO_EXCHANGE else unknown
        return found
    found.run = max(seen, key=lambda each: (bool(seen[each].slow), seen[each].delay_s, bool(seen[each].balanced)))
    late = seen[found.run]
    found.named_in = sum(bool(late.slow) and late.slow[0] in each.slow for each in seen.values())
    found.ranks, found.balanced, found.chance = late.named, late.balanced, 1 / len(late.ranks)
    found.period_s, found.delay_s = late.period_s, late.delay_s
    for name in ("delay_low_s", "delay_high_s", "resolution_s"):
        setattr(found, name, stats.finite_or_none(getattr(late, name)))
    found.waiting_s = None if late.skew_s is None else late.skew_s["mean"]
    return found


def _growth(table: pd.DataFrame, cells: Sequence[Row]) -> tuple[list[Row], str]:
    """Return what the most workers of each series add to a step of one worker, or to that of its fewest workers."""
    found, last = [], _last(cells)
    for cell in last:
        rows = _rows_of(table, cell.series, cell.workers, cell.nodes).set_index("lap")
        whole: dict[Any, Any] = rows.loc["step"].to_dict()
        first = next(each for each in cells if each.series == cell.series)
        kind = next((each for each in BASES if math.isfinite(whole[f"minus_{each}_s"])), None)
        if cell.withheld or cell.unsteady or first.unsteady:
            continue
        if cell.workers > 1 and kind is not None:
            value, low, high = (whole[f"minus_{kind}{end}_s"] for end in ("", "_low", "_high"))
            step, base = Interval(value=value, low=low, high=high), "1 worker alone"
            base = base if kind == "plain" else "1 worker inside the library"
            parts = {part: stats.finite_or_none(rows[f"minus_{kind}_s"].get(part, math.nan)) for part in PARTS[:-1]}
        elif first.workers < cell.workers:
            step, base = Interval(value=cell.step_s - first.step_s), f"{first.workers} workers"
            both = {part: (cell.parts_s[part], first.parts_s[part]) for part in PARTS[:-1]}
            parts = {part: None if a is None or b is None else a - b for part, (a, b) in both.items()}
        else:
            continue
        found.append(Row(series=cell.series, base=base, workers=cell.workers, parts_s=parts, step_s=step))
    why = next((f"no speedup: {cell.withheld}" for cell in last if cell.withheld and cell.workers > 1), "")
    if not why and all(cell.workers == 1 for cell in cells):
        why = "no run has several workers"
    if not why and len({cell.workers for cell in cells if cell.series == last[-1].series}) > 1:
        why = "a run is not steady"
    return found, "" if found else why or "one worker count only, and no run of one worker with the same work beside it"


def _doubts(
    accounting: Accounting, looked: Iterable[Inspection | str], records: Iterable[RecordedRun]
) -> Iterator[str]:
    """Yield what a reader must know, each once, without what culprits.APART says."""
    for doubt in accounting.doubts:
        head, found, rest = doubt.partition(culprits.UNSTEADY)
        if not any(each in doubt for each in ("different parameters", "no library connects")):
            yield doubt
        elif found:
            yield f"{head.partition(': ')[0]}: {found}{rest}"
    yield from (f"{e.name}: {note}" for e in looked if isinstance(e, Inspection) for note in e.stragglers.notes)
    seen = {run.run: run.seen.other_cores for run in accounting.runs if run.seen is not None}
    began = {run.name: run.record.effective.get("other_programs_cores") or {} for run in records}
    used = [seen.get(run, max(filter(None, cores.values()), default=0.0)) for run, cores in began.items()]
    if busy := [cores for cores in used if cores >= BUSY_CORES]:
        yield f"other programs used up to {max(busy):.1f} cores during {len(busy)} of {plural(len(used), 'run')}"


_SENTENCES = """
apart:processes | connect the {c.workers} processes (torchrun, and DistributedDataParallel around the model): they train
    {c.workers} models side by side
apart:none | let the {c.workers} workers train one model: none averages gradients; wrap the model in
    DistributedDataParallel, or average the gradients before each update
apart:parted | keep the parameters of the {c.workers} workers equal: begin with the same, and average all gradients,
    also of parameters that not every worker uses
withheld | record the baseline again on a quiet machine, in place of the one that is there: {c.withheld} | {base}
undivided | divide the data among the ranks (DistributedSampler, or a sampler of your own): {whose}, {passes:.0f} times
    the work; an epoch is {p[epoch_steps]:.0f} steps on each, and would be {divided}
threads | compare with a baseline of as many threads: {threads} | {base_threads}
outside | shorten what is outside of steps: evaluate more rarely, write fewer checkpoints
outside:several | shorten what is outside of steps: let all ranks share the evaluation, write fewer checkpoints
stalls:opening | keep the loader's processes over epochs (persistent_workers): the first steps of epochs wait
stalls | find what stops {stalls}
tensors | average all gradients in one message, a flat one or that of DistributedDataParallel: the script makes
    {p[calls]}
unsteady:made | record {c.unsteady[0]} again on a quiet machine: no advice follows from its times | {again}
unsteady | record {c.unsteady[0]} again on a quiet machine: no advice follows from its times; where {place} is deleted,
    running the study makes it again
late rank | make {late} as quick as the others: {to_try}; its steps in detail
    | horovod-study explain {late_run} --part steps
uneven | make the steps of all ranks equally long: each rank is late in some of them; is the machine quiet?
    | horovod-study doctor
data | load data while computing: more processes of the loader (num_workers), less work for each sample
data:ours | load data while computing, with another loader | horovod-study bench loading --batch {p[batch]}
residual:thread | wait less for the loader, which runs in a thread: a DataLoader with num_workers, or a longer queue
residual:ours | find what is outside all laps | horovod-study explain {run} --part account
residual:unseen | find what the script does outside all laps, such as making its batches, for which no DataLoader was
    seen: three lines in it mark its parts (docs/your_script.md)
residual | find what the script does outside all laps: three lines in it mark its parts (docs/your_script.md)
denormal | call torch.set_flush_denormal(True) at the start of the script: the update became several times as long over
    the run, and forward and backward did not, as where moments of Adam fade into denormal numbers
beside | find out why workers compute more slowly beside each other: cores, memory or clock rates are shared
    | horovod-study doctor
communication | communicate less: a larger batch per worker, {less}
hooks | send gradients while backward computes (hooks), not after it (flat); in a study file, reduction: [flat, hooks]
hooks:here | send gradients while backward computes (hooks), not after it (flat)
    | horovod-study run {runtime},reduction=flat {runtime},reduction=hooks {work}
tune | find the fastest communication settings | horovod-study run STUDY.yaml --tune
ablation | measure communication by leaving it out in some blocks: a run with this option
    | ... python -m horovod_study.train --measure-ablation {options}
synchronisation | find out what the communication consists of: transfer, or the library around it
    | horovod-study explain --measure --runtime {runtime} {work}
"""
"""Rule:variant | what to do | what to type; a line that is indented goes on with the one above."""
_ADVICE = {
    name.strip(): (what.strip(), "".join(command).strip())
    for name, what, *command in (line.split("|") for line in _SENTENCES.strip().replace("\n   ", "").split("\n"))
}
_TRY = {
    "data": "look at its data loader, and at the disk that it reads from",
    "residual": "look at what the script does there beside training: logging, checkpoints, evaluation",
    "": "is its core or GPU shared with other programs, or clocked lower, or does the script do more on it",
}
"""For a slow rank, by the lap in which it is slow (stragglers.CAUSES)."""
_LESS = {
    "ddp": "several batches per update (no_sync), 16 bits (bf16_compress_hook), other buckets (bucket_cap_mb)",
    "horovod": "several batches per update (backward_passes_per_step), 16 bits (hvd.Compression.fp16)",
    "FSDP": "parameters kept whole from forward to backward (reshard_after_forward=False), or gathered ahead "
    "(set_modules_to_forward_prefetch), 16 bits (MixedPrecisionPolicy)",
    "": "several batches per update, of which only the last averages",
}
"""How to communicate less, by library."""
_FIRST = {"apart": -1, "withheld": -1, "undivided": 0, **dict.fromkeys(("threads", "outside", "stalls", "tensors"), 1)}
"""Rules that say that numbers are of something else (< 1), or of one cause of many; the others go by their gain."""
_GAINS = {
    "undivided": {"kind": "about", "of": "epochs per hour"},
    "late rank": {"kind": "about"},
    "threads": {"kind": "at most", "of": "speedup"},
    "outside": {"kind": "at most", "of": "samples/s of the whole training"},
}


def _facts(found: Explanation, points: pd.DataFrame, records: Mapping[str, RecordedRun]) -> Row:
    """Return what advice is about: the cell with the most workers, what belongs to it, and what sentences name."""
    cell = found.top
    f = Row(cell=cell, c=cell, run_=records[cell.runs[0]])
    point: dict[str, Any]
    point = f.point = f.p = _rows_of(points, cell.series, cell.workers, cell.nodes).iloc[0].to_dict()  # type: ignore[assignment]
    f.flags, f.passes = point["flags"].split(), culprits.passes(point)
    f.slow = next((each for each in found.slow if each.series == cell.series), None)
    late = f.late_ranks = f.slow.ranks if f.slow is not None else ()
    effective = f.effective = f.run_.record.effective
    f.ours = "steps_per_epoch" in effective  # this package's trainer made it, which commands can start again
    f.here = len({rank.get("host") for rank in effective.get("ranks") or ()}) <= 1
    cost = cell.exposed_s or cell.left_out_s
    # What communication of gradients costs a step; NaN where it is not known.
    f.cost_s = math.nan if cost is None or cell.workers == 1 or cell.apart else cost.value
    grown: Mapping[str, float | None] = next((each.parts_s for each in found.growth if each.series == cell.series), {})
    # What computing takes more than on one worker alone.
    f.beside_s = sum(grown.get(part) or 0.0 for part in ("compute", "forward", "backward", "update"))
    f.runtime, f.options = f"{effective.get('backend')}/{effective.get('transport')}", shlex.join(_work_of(f.run_))
    f.work, f.run = f"--workers {cell.workers} {f.options}".rstrip(), shlex.quote(f"{f.run_.directory}")
    f.place, late_run = f.run_.directory.parent / "".join(cell.unsteady[:1]), f.slow.run if f.slow else cell.runs[0]
    f.late_run = shlex.quote(f"{records[late_run].directory}")
    if f.passes > 1:
        f.whose, f.divided = culprits.whose_data(point), math.ceil(point["epoch_steps"] / f.passes)
    if "threads" in f.flags:
        f.threads = f"{culprits.threads(point)}; {culprits.same_threads(point)}"
    library = "FSDP" if f"{effective.get('model')}".startswith("FSDP") else effective.get("backend")
    f.less = _LESS.get(f"{library}", _LESS[""])
    if late:
        who = f"rank {late[0].rank}" if len(late) == 1 else f"{len(late)} ranks"
        f.late, f.to_try = who + (f" on {late[0].host}" if late[0].host else ""), _TRY.get(late[0].cause, _TRY[""])
    if cell.stalls is not None:
        lap = {"sync": "while all ranks wait", "several": "in several laps"} | CAUSES
        many = f"{cell.stalls.count:,} of {plural(cell.stalls.of, 'step', ',')}"
        f.stalls = f"{many} for up to {milliseconds(cell.stalls.longest_s)} ms {lap.get(cell.stalls.lap, '')}"
    return f


def _part(f: Row, lap: str) -> float:
    """Return the seconds of a lap that neither late ranks nor stalls explain, which are told of them."""
    late_s = sum(each.cause_s for each in f.late_ranks if each.cause == lap) / f.cell.workers
    stalled_s = f.cell.stall_s if f.cell.stalls is not None and f.cell.stalls.lap == lap else 0.0
    part_s: float = (f.cell.parts_s[lap] or 0.0) - late_s - stalled_s
    return part_s


def _advice(f: Row, slower_s: float, beside: Iterable[Help]) -> Iterator[Help]:
    """Yield what the steps with the most workers say, and what runs beside them say; what matters most first."""
    cell, told = f.cell, [(2, each) for each in beside]
    # With a speedup that cannot be, the times of one of the two are wrong.
    useless = cell.unsteady or (cell.withheld and not cell.apart)
    for variant, size in (*_of_meaning(f), *(() if useless else _of_times(f, slower_s))):
        name = variant.partition(":")[0]
        what, command = (each.format(**vars(f)) for each in _ADVICE.get(variant) or _ADVICE[name])
        gain = size if isinstance(size, Interval) else _gain(size, cell.step_s)
        sized: dict[str, Any] = {"gain": gain, "kind": "at most", **_GAINS.get(name, {})}
        told.append((_FIRST.get(name, 2), Help(what, name, command, **({} if math.isnan(gain.value) else sized))))

    def least(each: Help) -> float:  # a gain that is sure goes before one that is at most that
        if each.gain is None or math.isfinite(each.gain.low):
            return -1.0 if each.gain is None else each.gain.low
        return each.gain.value * (0.5 if each.kind == "at most" else 1.0)

    yield from (each for _, each in sorted(told, key=lambda pair: (pair[0], -least(pair[1]))))


def _of_meaning(f: Row) -> Iterator[tuple[str, float | Interval]]:
    """Yield the rules that apply of those that say what the numbers mean, with s of a step, or a gain; NaN: unknown."""
    cell, point = f.cell, f.point
    if cell.apart:
        yield f"apart:{cell.apart}", math.nan
    elif cell.withheld and "threads" not in f.flags:  # else another baseline is asked for anyway
        yield "withheld", math.nan
    if f.passes > 1:
        yield "undivided", Interval(value=f.passes - 1)
    if "threads" in f.flags:
        more = max(0.0, point["base_threads"] / point["rank_threads"] - 1)
        yield "threads", Interval(value=math.nan if point["base_unsteady"] or cell.withheld else more)
    if "tensors" in f.flags:
        yield "tensors", math.nan if cell.unsteady else f.cost_s
    if cell.unsteady:
        yield f"unsteady:{'made' * bool(f.again)}", math.nan
        return
    if (share := cell.outside_share or 0.0) >= culprits.WORTH:
        yield f"outside:{'several' * (cell.workers > 1)}", _gain(share, 1.0)
    if (stalls := cell.stalls) is not None and cell.stall_s > culprits.STALLED * cell.step_s:
        yield f"stalls:{'opening' * (stalls.opening and stalls.lap == 'data')}", cell.stall_s


def _of_times(f: Row, slower_s: float) -> Iterator[tuple[str, float | Interval]]:
    """Yield the same of the rules about the parts of a step."""
    cell, slow, ours, cost_s = f.cell, f.slow, f.ours, f.cost_s
    waiting_s = (slow.waiting_s if slow else None) or 0.0
    if slow is not None and f.late_ranks:
        ends = (math.nan if each is None else each for each in (slow.delay_low_s, slow.delay_high_s))
        low, high = (_gain(each, slow.period_s).value for each in ends)
        yield "late rank", replace(_gain(slow.delay_s, slow.period_s), low=low, high=high)
    elif slow is not None and waiting_s > WORTH * slow.period_s:
        yield "uneven", _gain(waiting_s, slow.period_s)
    where = "thread" if cell.loader_thread else "ours" if ours else "unseen" if cell.parts_s["data"] is None else ""
    flat = f.effective.get("reduction") == "flat" and packaged().options["reduction"].matters(f.runtime)
    backward_s = cell.parts_s.get("backward")
    hidden_s = cost_s if backward_s is None else min(cost_s, backward_s)
    sizes = {
        f"data:{'ours' * ours}": (_part(f, "data"), WORTH),
        f"residual:{where}": (_part(f, "residual"), UNEXPLAINED),
        "denormal": (0 if ours else slower_s, WORTH),  # ours flushes denormal numbers to 0
        "beside": (f.beside_s, UNEXPLAINED),
        "communication": (0 if ours else cost_s, WORTH),
        f"hooks:{'here' * f.here}": (hidden_s * (ours and flat), WORTH),
        "tune": (cost_s * (ours and f.here), WORTH),
    }
    yield from ((name, seconds) for name, (seconds, share) in sizes.items() if seconds > share * cell.step_s)
    if ours and cell.workers > 1 and math.isnan(cost_s) and f.run_.state == "done":
        yield "ablation", math.nan
    if ours and f.here and f.run_.synchronisation is None and cost_s >= WORTH * cell.step_s:
        yield "synchronisation", math.nan


def _beside(
    found: Explanation, named: pd.DataFrame, turns: StudyTurns | None, taken: Collection[str]
) -> Iterator[Help]:
    """Yield what other runs say: a quicker library within rounds, else over repeats, where its interval holds a gain,
    neither of a disturbed run nor of workers that train apart; the one-worker run that those of another script lack.
    """
    rates = dict(zip(named["run"], named["samples_per_s"], strict=True))
    last = [each for each in found.last if each.samples_per_s and not each.unsteady]
    for cell in last:
        rivals = [each for each in last if each.workers == cell.workers > 1 and not each.apart]
        best = max(rivals, key=lambda each: each.samples_per_s or 0.0, default=cell)
        if best.series != cell.series and not cell.apart:
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
        what = "record one worker of the same script beside it: that says what more workers add"
        if run.get("declared"):
            notes, line = ["in the study file: baselines: [wrapped]"], ""
        else:
            notes, line = baseline_command(run, batch=float(run["ref_batch"]), taken=taken)
        yield Help("; ".join([what, *notes]), "baseline", line)


def _slower_updates(run: RecordedRun) -> float:
    """Return what updates on processors take more than early ones, mean over steps in s, of the rank with most; 0 where
    they have not become longer, or forward and backward have too.

    Compared are undisturbed steps: the 10 % quantiles of the first steps and of each of the last three tenths.
    """
    found = [0.0]
    for columns in run.rows.values() if run.record.effective.get("device") == "cpu" else ():
        laps = [columns.get(f"{lap}_s") for lap in ("update", "forward", "backward")]
        if any(lap is None for lap in laps):
            continue
        update, forward, backward = (np.asarray(lap, dtype=np.float64) for lap in laps)
        computing = np.nan_to_num(forward) + backward  # a forward that is not seen is in backward
        if len(update) < 10 * MIN_STEPS or np.isnan(update + computing).any():
            continue
        ends = [round(share * len(update)) for share in (0.7, 0.8, 0.9, 1.0)]
        asked = [slice(10, 60), *(slice(*each) for each in pairwise(ends))]
        early_s, *late_s = (float(np.quantile(update[each], 0.1)) for each in asked)
        before_s, *after_s = (float(np.quantile(computing[each], 0.1)) for each in asked)
        if min(late_s) >= 2 * early_s and min(after_s) <= 1.25 * before_s:
            found.append(float(np.mean(update)) - early_s)
    return max(found)


def _gain(seconds: float, step_s: float) -> Interval:
    """Return how much more throughput it makes when a step loses so many seconds."""
    return Interval(value=math.inf if seconds >= step_s else seconds / (step_s - seconds))


def _work_of(run: RecordedRun) -> Iterator[str]:
    """Return the options that say what a run trained, as far as they are not the usual ones."""
    for name, each in packaged().options.items():
        value = run.record.requested.get(name, each.default)
        if not each.roles & (Role.DATA | Role.LEARNING | Role.COMPUTING) or value in (each.default, None):
            continue
        flag = "--" + name.replace("_", "-")
        yield from [flag if value else f"--no-{flag[2:]}"] if each.kind is bool else [flag, str(value)]
