"""The complete account of recorded steps: every part of every step, what none of them covers, and what N workers add.

For each rank and step

    data + forward + backward + sync + update + residual = step

(with compute in place of forward and backward where steps are captured in CUDA graphs) is checked on the rows as they
were recorded, not on totals. The means of a run (over the steps of the timed window, then over ranks) tile like the
rows do, and go through `breakdown.split`, which compares worker counts: T(N) - T(1) in the same parts.
docs/accounting.md explains how to read all of it.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from horovod_study.analysis.series.points import CELL, LAP_COLUMNS, measured, whole_runs, with_series, worker_counts
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps import ablation
from horovod_study.analysis.steps.attribution import Decomposition, Observation, decompose_observation, observe
from horovod_study.analysis.steps.breakdown import BASES, PARTS, UNEXPLAINED, folded, split
from horovod_study.analysis.steps.outside import Outside, Stalls, outside_of, stalls_of, stalls_over, whole_epoch
from horovod_study.analysis.steps.rank_steps import common_steps, where
from horovod_study.analysis.steps.run_profiles import ON_THE_WAY, SAMPLED, Course, Profile
from horovod_study.analysis.steps.stragglers import Pop, Waiting, waiting
from horovod_study.config.doors import Number, accept
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.records import RecordedRun, finite, rows_lost, run_turns, timed_from
from horovod_study.text.words import listed

CLOSES_S = 1e-6  # parts that miss their step by more than a microsecond do not add up

_NOT_TIMED = "its steps have no laps"
OFF = "recorded with --timer-mode off"
_COLUMNS = (*LAP_COLUMNS, "step_s")
RUN_COLUMNS = (
    *("run", "series", "state", "workers", "rank", "steps", "excluded", "last", *_COLUMNS),
    *("residual_share_mean", "residual_share_median", "residual_share_p99", "residual_share_worst"),
    *("worst_step", "worst_rank", "gap_s", "open_steps"),
    *("load_balance", "communication_efficiency", "parallel_efficiency", "skew_s"),
    *("outside_s", "outside_share", "stalls", "stall_s", "epoch_steps", "epoch_samples", "why_not"),
)
"""Of `Accounting.run_rows`."""
_GRADIENTS = ("compute_s", "backward_s", "residual_s")
_OBSERVED = ("backend", "transport", "reduction", "workers", "batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The residual as a share of the step, 0..1."""

    mean: float  # all residual over all time: the share that adds up
    median: float  # of the steps' shares, as the next two
    p99: float
    worst: float
    worst_step: int
    worst_rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAccount:
    """What one rank recorded: where its rows begin and end, and its mean step of the timed window."""

    rank: int
    host: str
    first: int  # first and last recorded step
    last: int
    steps: int  # in the timed window
    excluded: int  # rows before it, which are kept in the file
    holes: int  # steps between the first and the last that have no row
    gap_step: int
    open_steps: int  # steps that are off by more than CLOSES_S
    parts_s: Mapping[str, float]  # PARTS -> mean s; NaN where not known
    residual: Shares | None  # None where not timed
    gap_s: float  # the largest difference between the step and the sum of its parts
    partial_laps: Mapping[str, int]  # laps that some steps lack and others have -> how many lack them, with 0 there
    stalls: Stalls | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunAccount:
    """The account of one run, times in s per step; means over its ranks."""

    DOCUMENT = (
        "run state reason repeat workers why_not parts_s residual steps first_step excluded excluded_by "
        "notes ranks ablation=left_out pop skew_s outside stalls epoch_steps epoch_samples"
    )

    run: str
    state: str
    reason: str
    repeat: int
    workers: int
    ranks: tuple[RankAccount, ...]  # those with steps in the timed window
    parts_s: Mapping[str, float]  # PARTS -> mean s; NaN where not known
    residual: Shares | None
    why_not: str  # why there is no account of the parts; empty where there is one
    first_step: int
    excluded_by: str  # what says where the timed window begins
    notes: tuple[str, ...]  # what a reader must know: who ends where, rows that are missing
    incomplete: bool  # whether ranks have no rows, or end before others; then the first note says so
    seen: Observation | None  # for the timer's answer and the micro-benchmark
    why_not_seen: str
    left_out: ablation.CommunicationCost | None
    why_not_left_out: str
    pop: Pop | None = None  # None where not known: one worker, a wait that is not visible, ranks that are incomplete
    skew_s: float = math.nan  # mean over steps and ranks; NaN where not known
    outside: Outside | None = None  # None where not known
    stalls: Stalls | None = None
    epoch_steps: float = math.nan  # of a whole epoch on the first rank
    epoch_samples: float = math.nan  # of a whole epoch on all ranks
    taken: Decomposition | None = None  # its synchronisation decomposed; None without the measurement that it needs
    profile: Profile | None = None  # its course over the timed window; None where nobody asked, or without steps

    @property
    def excluded(self) -> int:
        """Return how many steps of a rank were left out before the timed window, the most of any."""
        return max((rank.excluded for rank in self.ranks), default=0)

    @property
    def steps(self) -> int:
        """Return how many steps of a rank are accounted for, the most of any."""
        return max((rank.steps for rank in self.ranks), default=0)

    @property
    def open_rank(self) -> RankAccount | None:
        """Return the rank with the step that misses its parts by most, or None where all steps close."""
        return max((rank for rank in self.ranks if rank.open_steps), key=lambda rank: rank.gap_s, default=None)


def account_run(run: RecordedRun, *, views: bool = False, profile: bool = False) -> RunAccount:
    """Account for the steps of one run as far as they were recorded; nothing that a run lacks is an error.

    With `views`, what its synchronisation is decomposed from is there too, as long as the run; with `profile`, its
    course over the timed window.
    """
    course = Course() if profile else None
    ranks, values = [], []
    hosts = [str(each.get("host", "")) for each in run.record.effective.get("ranks") or ()]
    shares: list[Floats | None] = []
    ends: dict[int, int] = {}
    between: dict[str, Any] = {}
    for rank, columns in run.rows.items():
        every = np.asarray(columns["step"])
        ends[rank] = int(every.max())
        between = between or _between(run, columns, every)
        timed = every >= run.first_step
        if not timed.any():
            continue
        host = hosts[rank] if rank < len(hosts) else run.record.host
        own, share = _rank(rank, host, columns, every, where(timed), course)
        ranks.append(own)
        values.append([own.parts_s[part] for part in PARTS])
        shares.append(share)
        del columns  # of a long run, before those of the next rank are there
    means = folded(np.array(values)).mean(axis=0) if ranks else np.full(len(PARTS), np.nan)
    why_not = _why_not(run, ranks, ends, means)
    residual = None if why_not else _over_ranks(shares, ranks, means)
    shares.clear()
    incomplete = bool(run.missing) or len(set(ends.values())) > 1
    late = Waiting(pop=None, skew_s=math.nan)
    if run.workers > 1 and len(ranks) == run.workers and not incomplete and not why_not:
        late = waiting(run.rows, common_steps(run.rows, workers=run.workers, from_step=run.first_step))
    measured = run.synchronisation is not None  # and worth its arrays
    seen, why_not_seen = _seen(run) if views or measured else (None, "")
    taken = decompose_observation(seen) if seen is not None and measured else None
    answer, why_not_left_out = ablation.answer_of(run)
    return RunAccount(
        run=run.name,
        state=run.state,
        reason=run.record.reason,
        repeat=run.record.repeat,
        workers=run.workers,
        ranks=tuple(ranks),
        parts_s=dict(zip(PARTS, means.tolist(), strict=True)),
        residual=residual,
        why_not=why_not,
        first_step=run.first_step,
        excluded_by=timed_from(run.record)[1],
        notes=tuple(_notes(run, ranks, ends, incomplete=incomplete)),
        incomplete=incomplete,
        seen=seen if views else None,  # arrays as long as the run
        why_not_seen=why_not_seen,
        left_out=answer,
        why_not_left_out=why_not_left_out,
        pop=late.pop,
        skew_s=late.skew_s,
        stalls=stalls_over([rank.stalls for rank in ranks]),
        **between,
        taken=taken,
        profile=None if course is None else course.profile(run.system_samples(SAMPLED)),
    )


def _between(run: RecordedRun, columns: Mapping[str, Any], every: NDArray[np.int64]) -> dict[str, Any]:
    """Return what the rows of the first rank say of the time outside of steps, and of a whole epoch."""
    timed = where(every >= run.first_step)
    epoch, begin_s, step_s = (np.asarray(columns[name], dtype=np.float64) for name in ("epoch", "begin_s", "step_s"))
    residual_s = np.nan_to_num(np.asarray(columns["residual_s"], dtype=np.float64))
    known = [each[timed] for each in (epoch, begin_s, step_s, residual_s)]
    steps = run.record.effective.get("epoch_steps")
    batches = steps, (steps or 0) * (run.record.effective.get("batch") or math.nan)
    counted = whole_epoch(epoch, np.nan_to_num(np.asarray(columns["samples"], dtype=np.float64)))
    made, samples = batches if steps else counted or (math.nan, math.nan)
    after = float((run.record.totals.get("outside") or {}).get("after_s") or 0.0)
    outside = outside_of(every[timed], *known, waits=run_turns(run.record).before, after_s=after)
    return {"outside": outside, "epoch_steps": made, "epoch_samples": samples * run.workers}


AT_ONCE_ROWS = 20_000_000
"""Runs with more step rows together than these are not taken at a time, whatever the number of threads."""


def account_runs(
    runs: Iterable[RecordedRun],
    *,
    threads: int = 1,
    on_progress: Callable[[int], None] | None = None,
    beside: Callable[[RecordedRun], None] | None = None,
) -> list[RunAccount]:
    """Return `account_run` of each run without its views but with its profile, in their order, up to `threads` of them
    at a time.

    NumPy and Arrow compute side by side in threads, and what comes out does not depend on their number. `on_progress`
    is called with how many runs are done; `beside` with each run, in its thread, for what else reads the same rows.
    """
    found: list[RunAccount] = []
    begun: deque[tuple[Future[RunAccount], int]] = deque()

    def work(run: RecordedRun) -> RunAccount:
        if beside is not None:
            beside(run)
        return account_run(run, profile=True)

    def finish() -> None:
        found.append(begun.popleft()[0].result())
        if on_progress is not None:
            on_progress(len(found))

    with ThreadPoolExecutor(threads) as pool:
        for run in runs:
            rows = run.row_count()
            while begun and (len(begun) > threads or sum(each for _, each in begun) + rows > AT_ONCE_ROWS):
                finish()
            begun.append((pool.submit(work, run), rows))
        while begun:
            finish()
    return found


def _rank(
    rank: int,
    host: str,
    columns: Mapping[str, Any],
    every: NDArray[np.int64],
    timed: slice | NDArray[np.int64],
    course: Course | None = None,
) -> tuple[RankAccount, Floats | None]:
    """Return the account of one rank, and the residual share of each timed step, (S,), None where not known.

    `every`: the steps of all rows. Columns are taken one after the other, because all of a long run are many; `course`
    takes what it needs on the way.
    """
    step = every[timed]
    if course is not None:
        course.begin_rank(step, lambda name: np.asarray(columns[name], dtype=np.float64)[timed])
    means, nulls = {}, {}
    covered = np.zeros(len(step))
    values = covered
    for part, column in zip(PARTS, _COLUMNS, strict=True):
        values = np.asarray(columns[column], dtype=np.float64)[timed]
        if course is not None and column in ON_THE_WAY:
            course.add(column, values)
        means[part], nulls[part] = float(values.sum()) / len(step), 0
        if not math.isfinite(means[part]):
            nulls[part] = int(np.isnan(values).sum())
            values = np.nan_to_num(values)
            means[part] = float(values.sum()) / len(step) if nulls[part] < len(step) else math.nan
        if part == "residual":
            residual = values
        if part != "step":
            covered += values
    known = [part for part in PARTS if nulls[part] < len(step)]
    has_laps = "residual" in known and "step" in known and len(known) > 2
    gap = np.abs(np.subtract(covered, values, out=covered), out=covered)
    worst = int(np.argmax(gap))
    own = RankAccount(
        rank=rank,
        host=host,
        first=int(every.min()),
        last=int(every.max()),
        steps=len(step),
        excluded=len(every) - len(step),
        # Steps are in order nearly always, which is quicker to see than how many different ones there are.
        holes=int(every.max() - every.min()) + 1 - len(every if (every[1:] > every[:-1]).all() else np.unique(every)),
        parts_s=means,
        residual=None,
        gap_s=float(gap[worst]) if has_laps else math.nan,
        gap_step=int(step[worst]),
        open_steps=int((gap > CLOSES_S).sum()) if has_laps else 0,
        partial_laps={part: nulls[part] for part in PARTS if has_laps and part in known and nulls[part]},
    )
    laps = [column for part, column in zip(PARTS, _COLUMNS, strict=True) if part in known and part != "step"]

    def timed_of(name: str) -> Floats:
        return np.nan_to_num(np.asarray(columns[name], dtype=np.float64)[timed])

    own = replace(own, stalls=stalls_of(values, timed_of, laps))
    if not has_laps:
        return own, None
    share = np.divide(residual, values, out=np.zeros(len(step)), where=values > 0)
    return replace(own, residual=_shares(share, step, rank, means)), share


def _shares(share: Floats, step: NDArray[np.int64], rank: int, means: Mapping[str, float]) -> Shares:
    """Return what the residual is of the steps of one rank, (S,)."""
    place = int(np.argmax(np.abs(share)))
    median, p99 = _quantiles(share.copy())
    return Shares(
        mean=means["residual"] / means["step"],
        median=median,
        p99=p99,
        worst=float(share[place]),
        worst_step=int(step[place]),
        worst_rank=rank,
    )


def _over_ranks(shares: list[Floats | None], ranks: Sequence[RankAccount], means: Floats) -> Shares | None:
    """Return what the residual is of the steps of all ranks; takes the arrays out of `shares` as it goes."""
    residuals = [rank.residual for rank in ranks if rank.residual is not None]
    if not residuals or math.isnan(means[-2]):
        return None
    every = np.empty(sum(len(share) for share in shares if share is not None))
    end = 0
    while shares:
        share = shares.pop()
        if share is not None:
            every[end : end + len(share)] = share
            end += len(share)
    median, p99 = _quantiles(every)
    worst = max(residuals, key=lambda each: abs(each.worst))
    return replace(worst, mean=float(means[-2] / means[-1]), median=median, p99=p99)


def _quantiles(values: Floats) -> tuple[float, float]:
    """Return the median and the 99 % quantile; `values` are in another order afterwards."""
    median = float(np.median(values, overwrite_input=True))
    return median, float(np.quantile(values, 0.99, overwrite_input=True))


def _why_not(run: RecordedRun, ranks: Sequence[RankAccount], ends: Mapping[int, int], means: Floats) -> str:
    """Return why a run has no account of its parts; empty where it has one."""
    if not run.rows:
        return "no rank recorded a step"
    if not ranks:
        return f"ends at step {max(ends.values()):,}, before its timed window, which begins at step {run.first_step:,}"
    has_laps = not np.isnan(means[:-2]).all()
    if has_laps and not math.isnan(means[-2]):
        return ""
    if run.record.requested.get("timer_mode") == "off":
        return OFF
    return "its steps have laps but no residual" if has_laps else _NOT_TIMED


def _notes(
    run: RecordedRun, ranks: Sequence[RankAccount], ends: Mapping[int, int], *, incomplete: bool
) -> Iterable[str]:
    """Yield what is incomplete about a run; `ends`: rank -> last recorded step."""
    if run.state != "done" or incomplete:
        because = f" ({run.record.reason})" if run.record.reason else ""
        ends_at = [
            f"{_ranks([rank for rank in ends if ends[rank] == last])} at step {last:,}"
            for last in sorted(set(ends.values()), reverse=True)
        ]
        state = {"done": "is done", "incomplete": "ended without saying how (killed)", "running": "still runs"}
        which = [f"{_ranks([rank])} {why}" for rank, why in run.missing.items()]
        words = [*([f"its rows end: {', '.join(ends_at)}"] if ends_at else []), *which]
        yield f"the run {state.get(run.state, run.state)}{because}; {'; '.join(words)}"
    lost = rows_lost(run.record)
    if lost:
        yield f"{lost:,} rows are lost: they could not be written (disk full), and the run went on"
    holes = {rank.rank: rank.holes for rank in ranks if rank.holes}
    if holes and not lost and not run.aside:
        yield f"{_ranks(list(holes))}: up to {max(holes.values()):,} steps between the first and the last have no row"
    for lap in dict.fromkeys(lap for rank in ranks for lap in rank.partial_laps):
        count, steps = max(rank.partial_laps.get(lap, 0) for rank in ranks), max(rank.steps for rank in ranks)
        yield f"{count:,} of {steps:,} steps have no {lap}, which counts as none of it there"
    if doubt := (run.record.totals.get("steady") or {}).get("doubt"):
        yield str(doubt)


def _ranks(ranks: Sequence[int]) -> str:
    """Return `rank 1` or `ranks 0, 2 and 3`; of many, the first and how many more."""
    names = [str(rank) for rank in ranks[:8]] + ([f"{len(ranks) - 8:,} more"] if len(ranks) > 8 else [])
    return f"rank{'s' * (len(names) > 1)} {listed(names)}"


def _seen(run: RecordedRun) -> tuple[Observation | None, str]:
    """Return the run as attribution.py sees it, or None with the reason."""
    if run.workers == 1:
        return None, "one worker synchronises with nobody"
    if run.state != "done" or run.missing:
        return None, f"the run is {run.state}, and only finished runs are decomposed"
    unsaid = [name for name in _OBSERVED if run.record.effective.get(name) is None]
    if unsaid:
        return None, f"its record does not say its {unsaid[0]}"
    rows = []
    for columns in run.rows.values():
        timed = np.asarray(columns["step"]) >= run.first_step
        rows.append({name: np.asarray(values)[timed] for name, values in columns.items()})
    if len({len(each["step"]) for each in rows}) > 1:
        return None, "its ranks recorded different numbers of steps"
    unknown = {name for each in rows for name in _GRADIENTS if np.isnan(each[name]).any()}
    if "residual_s" in unknown or {"compute_s", "backward_s"} <= unknown:
        return None, _NOT_TIMED
    # What a script does not mark is in the residual, or in compute, and there is nothing of it elsewhere.
    filled = [
        {
            name: np.nan_to_num(values) if name in ("data_s", "forward_s", "backward_s", "update_s") else values
            for name, values in each.items()
        }
        for each in rows
    ]
    record, turns = run.record, run_turns(run.record)
    asked, ran = record.requested, record.effective
    try:
        return observe(run.name, asked, ran, record.repeat, filled, run.synchronisation, turns=turns), ""
    except AnalysisError as error:
        return None, str(error).partition(": ")[2]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Accounting:
    """The account of a set of runs."""

    DOCUMENT = "closes_within_s runs=of_series cells doubts"

    runs: tuple[RunAccount, ...]  # in the order of the series
    series: Mapping[str, str]  # run -> its series
    cells: pd.DataFrame  # breakdown.split of the runs' own means, one row per (series, workers, nodes, part)
    doubts: tuple[str, ...]

    closes_within_s = CLOSES_S

    @property
    def of_series(self) -> list[dict[str, Any]]:
        """The documents of the runs, each with its series."""
        return [{"series": self.series[run.run], **finite(run)} for run in self.runs]

    def run_rows(self) -> pd.DataFrame:
        """Return one row per run and rank, and one for the mean over its ranks (rank is empty).

        What waiting costs (load balance, efficiencies, skew) is known of all ranks together only.
        """
        rows = []
        for run in self.runs:
            head = {"run": run.run, "series": self.series[run.run], "state": run.state, "workers": run.workers}
            whole = {
                "gap_s": max((rank.gap_s for rank in run.ranks), default=math.nan),
                "open_steps": sum(rank.open_steps for rank in run.ranks),
                "skew_s": run.skew_s,
                "epoch_steps": run.epoch_steps,
                "epoch_samples": run.epoch_samples,
                "stalls": 0 if run.stalls is None else run.stalls.count,
                "stall_s": 0.0 if run.stalls is None else run.stalls.mean_s,
            }
            if run.outside is not None:
                whole |= {"outside_s": run.outside.seconds, "outside_share": run.outside.share}
            if run.pop is not None:
                whole |= {"load_balance": run.pop.load_balance, "communication_efficiency": run.pop.communication}
                whole["parallel_efficiency"] = run.pop.parallel
            rows.append({**head, **_row(run), **whole, "why_not": run.why_not})
            for rank in run.ranks:
                own = {name: getattr(rank, name) for name in ("rank", "last", "gap_s", "open_steps")}
                rows.append({**head, **_row(rank), **own, "why_not": run.why_not})
        table = pd.DataFrame(rows, columns=list(RUN_COLUMNS))
        kinds: dict[Any, Any] = dict.fromkeys(("rank", "last", "worst_step", "worst_rank"), "Int64")
        shares = ("residual_share", "load_balance", "communication_efficiency", "parallel_efficiency")
        numbers = (*shares, "outside", "stall", "epoch")
        kinds |= {name: "float64" for name in RUN_COLUMNS if name.startswith(numbers) or name.endswith("_s")}
        return table.astype(kinds)


def _row(each: RunAccount | RankAccount) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": None, "steps": each.steps, "excluded": each.excluded, "last": None}
    found |= {f"{part}_s": each.parts_s[part] for part in PARTS}
    if (shares := each.residual) is not None:
        found |= {f"residual_share_{name}": getattr(shares, name) for name in ("mean", "median", "p99", "worst")}
        found |= {"worst_step": shares.worst_step, "worst_rank": shares.worst_rank}
    return found


def account(table: pd.DataFrame, runs: Iterable[RunAccount]) -> Accounting:
    """Account for runs together; `table` (records.recorded_runs) has one row per run, under the same name.

    A worker count that no run finished is told from its unfinished ones, and a doubt says so.
    """
    accounts = {run.run: run for run in runs}
    named = with_series(table)
    placed = [accounts[name] for name in named["run"] if name in accounts]
    named = named[named["run"].isin(list(accounts))].reset_index(drop=True)
    for part, column in zip(PARTS, _COLUMNS, strict=True):
        values = [math.nan if run.why_not and part != "step" else run.parts_s[part] for run in placed]
        named[column] = np.array(values, dtype=np.float64)
    known = named["step_s"] > 0
    done = (named["status"] == "done") & known
    cell = [named.loc[known, name] for name in ("series", *CELL)]
    finished = done[known].groupby(cell, dropna=False).transform("any")
    counted = known & (done | ~finished.reindex(named.index, fill_value=True))
    cells = split(named[counted])
    return Accounting(
        runs=tuple(placed),
        series=dict(zip(named["run"], named["series"], strict=True)),
        cells=cells,
        doubts=tuple(_doubts(placed, named, counted)),
    )


def mean_skew(runs: pd.DataFrame, accounts: pd.DataFrame | None) -> pd.Series:
    """Return the mean over repeats of the skew of each cell of a named run table, in s; NaN where one does not know it.

    The index is series, workers, nodes and batch; `accounts` is `Accounting.run_rows`.
    """
    table = runs[measured(runs)]
    skew = pd.Series(math.nan, table.index) if accounts is None else table["run"].map(whole_runs(accounts)["skew_s"])
    keys = ["series", "workers", "nodes", "batch"]
    return skew.astype(float).groupby([table[key] for key in keys]).apply(lambda each: each.mean(skipna=False))


def row_doubts(found: Accounting) -> list[str]:
    """Return the doubts that step rows add to those that `breakdown.doubts` has from the totals of runs."""
    doubts = []
    for run in found.runs:
        if run.notes and (run.incomplete or (run.state != "done" and run.ranks)):
            doubts.append(f"{run.run}: {run.notes[0]}.")
        if run.open_rank is not None:
            doubts.append(f"{run.run}: {open_words(run)}.")
        if run.why_not and run.state == "done":
            doubts.append(f"{run.run}: the parts of its steps are not known: {run.why_not}.")
    return [*doubts, *(f"{each.text}." for each in gate(found, UNEXPLAINED).over if each.kind == "growth")]


def _doubts(runs: Sequence[RunAccount], named: pd.DataFrame, counted: "pd.Series[bool]") -> Iterable[str]:
    for run in runs:
        for note in run.notes:
            yield f"{run.run}: {note}"
        if run.why_not and run.state in ("done", "stopped", "running"):
            yield f"{run.run}: not accounted for: {run.why_not}"
        if run.open_rank is not None:
            yield f"{run.run}: {open_words(run)}"
    half = named[counted & (named["status"] != "done")]
    for series, rows in half.groupby("series", sort=False):
        yield f"{series}: no run of {worker_counts(rows['workers'])} is finished; what is shown is from unfinished ones"


def open_words(run: RunAccount) -> str:
    """Return in words where the laps of a run do not add up to its steps."""
    rank = run.open_rank
    assert rank is not None
    count = sum(each.open_steps for each in run.ranks)
    return (
        f"{count:,} step{'s' if count > 1 else ''} of {sum(each.steps for each in run.ranks):,} "
        f"do{'' if count > 1 else 'es'} not add up; the largest gap is {rank.gap_s * 1e3:.3f} ms, in step "
        f"{rank.gap_step:,} of rank {rank.rank}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Over:
    """One thing that is not accounted for well enough."""

    kind: str  # step | growth | closure | not timed
    name: str  # of the run, or the series and baseline of a growth
    workers: int
    rank: int | None = None
    share: float | None = None  # of the step, or of T(N) - T(1); 0..1
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualGate:
    """What `--max-residual` found."""

    allowed: float  # 0..1
    runs: int  # judged
    growths: int
    over: tuple[Over, ...]
    not_judged: tuple[str, ...]  # in words

    @property
    def exit_code(self) -> int:
        """Return 1 where anything is over."""
        return 1 if self.over else 0


_PerCent = Annotated[Number, Field(ge=0, le=100)]


def allowed_share(text: str) -> float:
    """Return the share, 0..1, that `--max-residual` means: per cent, with or without the sign.

    ConfigError for what is not a number from 0 to 100, and for a number below 1 without the sign: nobody knows whether
    0.05 is a share or per cent.
    """
    again = "give per cent from 0 to 100, such as 5%"
    value = accept(_PerCent, text.strip().removesuffix("%"), "explain", name="--max-residual", again=again)
    if 0 < value < 1 and "%" not in text:
        raise ConfigError(f"--max-residual {text}: may be a share or per cent; write {100 * value:g}% or {value:g}%")
    return float(value) / 100


def gate(found: Accounting, allowed: float) -> ResidualGate:
    """Judge an accounting: the residual of every run's worst rank and of every growth T(N) - T(1), as shares.

    A run whose laps do not add up, or that has steps without laps, is over at any `allowed`. A growth is judged where
    it is at least 2 % of the step and, where its interval is known, beyond chance: a share of next to nothing says
    nothing.
    """
    over: list[Over] = []
    not_judged: list[str] = []
    judged = 0
    for run in found.runs:
        if not run.ranks:
            not_judged.append(f"{run.run}: {run.why_not}")
            continue
        judged += 1
        about = partial(Over, name=run.run, workers=run.workers)
        where = f"{run.run} ({worker_counts([run.workers])})"
        if run.why_not:
            text = f"{where}: not timed ({run.why_not}), so nothing is accounted for"
            over.append(about(kind="not timed", text=text))
            continue
        if run.open_rank is not None:
            over.append(about(kind="closure", rank=run.open_rank.rank, text=f"{where}: {open_words(run)}"))
        timed = [(rank, rank.residual.mean) for rank in run.ranks if rank.residual is not None]
        worst, share = max(timed, key=lambda each: abs(each[1]), default=(None, 0.0))
        if worst is not None and abs(share) > allowed:
            text = (
                f"{where}: rank {worst.rank}: {_percent(share)} of the step is unexplained "
                f"({worst.parts_s['residual'] * 1e3:.3f} of {worst.parts_s['step'] * 1e3:.3f} ms), "
                f"allowed {_percent(allowed)}"
            )
            over.append(about(kind="step", rank=worst.rank, share=share, text=text))
    growths = 0
    for row in _growths(found.cells):
        name = f"{row['series']}, {worker_counts([row['workers']])} over one {row['kind']} worker"
        if row["why_not"]:
            not_judged.append(f"{name}: {row['why_not']}")
            continue
        growths += 1
        if abs(row["share"]) > allowed:
            text = (
                f"{name}: {_percent(row['share'])} of T(N) - T(1) is unexplained "
                f"({row['residual_s'] * 1e3:.3f} of {row['step_s'] * 1e3:.3f} ms), allowed {_percent(allowed)}"
            )
            over.append(Over(kind="growth", name=name, workers=int(row["workers"]), share=row["share"], text=text))
    return ResidualGate(allowed=allowed, over=tuple(over), runs=judged, growths=growths, not_judged=tuple(not_judged))


def _growths(cells: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """Yield the growth of each cell of several workers over each baseline that it has, and its unexplained share."""
    several = cells[cells["workers"] > 1]
    for (series, workers, _), rows in several.groupby(["series", "workers", "nodes"], sort=False, dropna=False):
        by_lap = {row["lap"]: row for row in rows.to_dict("records")}
        for kind in BASES:
            step_s, residual_s = by_lap["step"][f"minus_{kind}_s"], by_lap["residual"][f"minus_{kind}_s"]
            if math.isnan(step_s):
                continue
            low, high = by_lap["step"][f"minus_{kind}_low_s"], by_lap["step"][f"minus_{kind}_high_s"]
            share, why_not = by_lap["residual"][f"growth_{kind}"], ""
            if math.isnan(residual_s):
                why_not = "one side has no residual"
            elif math.isnan(share):
                why_not = "T(N) - T(1) is below 2 % of the step"
            elif low <= 0 <= high:
                why_not = f"T(N) - T(1) is not beyond chance ({low * 1e3:.3f} to {high * 1e3:.3f} ms)"
            names = {"series": series, "workers": workers, "kind": kind, "why_not": why_not}
            yield {**names, "step_s": step_s, "residual_s": residual_s, "share": share}


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"
