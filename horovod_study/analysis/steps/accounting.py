"""The complete account of recorded steps: every part of every step, what none of them covers, and what N workers add.

For each rank and step, data + forward + backward + sync + update + residual = step (with compute in place of forward
and backward where steps are captured in CUDA graphs) is checked on the rows as they were recorded. The means of a run,
over the steps of the timed window, then over ranks, go through `breakdown.split`, which compares worker counts.
docs/explain.md explains how to read all of it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from horovod_study.analysis.series.points import (
    CELL,
    LAP_COLUMNS,
    OF_RANKS,
    measured,
    whole_runs,
    with_series,
    worker_counts,
)
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps.attribution import NO_LAPS, answer_of, decompose_observation, observe_run
from horovod_study.analysis.steps.breakdown import BASES, PARTS, UNEXPLAINED, folded, split
from horovod_study.analysis.steps.rank_steps import align, rank_words, waiting, where
from horovod_study.config.doors import Number, accept
from horovod_study.errors import AnalysisError, ConfigError, RecordError, refuse
from horovod_study.records import RecordedRun, finite, rows_lost, run_turns, timed_from

Places = NDArray[np.int64]

LOADS: Mapping[str, tuple[str, str, bool]] = {
    "cpu_percent_per_rank": ("rank", "cpu_percent", False),
    "rss_mb_per_rank": ("rank", "rss_mb", False),
    "gpu_percent": ("gpu", "gpu_percent", False),
    "gpu_memory_mb": ("gpu", "gpu_memory_mb", False),
    "gpu_power_w": ("gpu", "power_w", True),
    "package_power_w": ("package", "power_w", True),
}
"""Column -> the parts of a host it is of, the sensors' column, and whether it is their sum; else it is their mean."""

SAMPLED = ("at_s", "cpu_percent", "rss_mb", "gpu_percent", "gpu_memory_mb", "power_w")  # columns that a course needs

PROFILE_COLUMNS = ("run", "part", "first_step", "steps", "begin_s", "end_s", "step_s", *LOADS)
"""One row per run and part of its timed window. `step_s`: the mean over steps and ranks; begin_s, end_s: seconds since
the run's first step, on the clock of its first rank."""

SPEEDUPS = ("speedup_plain", "efficiency_plain", "speedup_wrapped", "efficiency_wrapped")
_FROM_ACCOUNTS = (*OF_RANKS, "residual_share_mean", "open_steps", "why_not")
_TOLD = ("hosts", "launcher", "command", "finished", "excluded_by", "steady_doubt", "energy_doubt", "energy_of")
RUN_TABLE_COLUMNS = (
    *("run", "series", "setting", "mode", "study", "partition", "backend", "transport", "batch", "workers", "nodes"),
    *("repeat", "status", "reason", "started", "host", *_TOLD),
    *("samples_per_s", *SPEEDUPS, "window_s", "steps", "step_s", "step_s_median", *LAP_COLUMNS),
    *("step_s_p90", "sync_s_median", "excluded_steps", "rows_lost", "rss_mb_max", "pss_mb_max"),
    *("energy_j", "energy_per_sample_j", "test_mse", *LOADS, *_FROM_ACCOUNTS),
)
"""What the table of runs has at least; every other column of the run table follows."""

_NAMES = ("series", "setting", "mode")
_POINT = ("series", "batch", "train_samples", "workers", "nodes")


def runs_table(
    runs: pd.DataFrame, points: pd.DataFrame | None = None, accounts: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the run table in the order of its series, with RUN_TABLE_COLUMNS and whatever else it has.

    Options are as they were asked for. A speedup is the throughput of this run over the median baseline of its point
    in `points` (points.scaling_points), its efficiency that over the workers. `accounts` (Accounting.run_rows) says
    what the step rows know of the ranks. What is not known is NaN or None.
    """
    named = with_series(runs.assign(_place=range(len(runs))))
    table = runs.drop(columns=list(_NAMES), errors="ignore").iloc[named["_place"]].reset_index(drop=True)
    for place, name in enumerate(_NAMES, start=list(table.columns).index("run") + 1):
        table.insert(place, name, named[name].to_numpy())
    speed = table["samples_per_s"].where(measured(table)).to_numpy(dtype=np.float64)
    kinds = dict.fromkeys(_POINT[1:], "float64")
    for kind in ("plain", "wrapped"):
        base = np.full(len(table), math.nan)
        if points is not None:
            column = f"base_{kind}_samples_per_s"
            known = points[[*_POINT, column]].drop_duplicates(list(_POINT)).astype(kinds)
            base = named[list(_POINT)].astype(kinds).merge(known, how="left", on=list(_POINT))[column].to_numpy(float)
        table[f"speedup_{kind}"] = speed / base
        table[f"efficiency_{kind}"] = speed / base / named["workers"].to_numpy(dtype=np.float64)
    for name in _FROM_ACCOUNTS:
        table[name] = math.nan if accounts is None else table["run"].map(whole_runs(accounts)[name])
    for name in RUN_TABLE_COLUMNS:
        if name not in table.columns:
            table[name] = None if name in _TOLD else math.nan
    return table


def part_places(steps: int) -> Places:
    """Return where the parts of a window of `steps` steps begin, and its end, (P + 1,); larger parts come first."""
    # As many parts as a small plot shows; the 90 % quantile of fewer steps is nearly their maximum.
    size, more = divmod(steps, parts := max(1, min(40, steps // 8)))
    number: Places = np.arange(parts + 1)
    return number * size + np.minimum(number, more)


class Course:
    """Gathers the course of a run from its ranks, one after the other: no column is kept.

    The first rank says which steps make a part; a rank that lacks some of them counts with those it has.
    """

    def __init__(self) -> None:
        self._first: Places | None = None  # (P + 1,): the first step of each part, and the one after the last
        self._columns: dict[str, NDArray[Any]] = {}  # of the first rank, (P,)
        self._step_s: list[list[float]] = []  # of each rank, (P,), its mean step; infinite where it has no step

    def add_rank(self, step: NDArray[np.integer], column: Callable[[str], Floats]) -> None:
        """Take a rank of timed steps `step`, (S,); `column` returns another column of these rows, NaN where unknown."""
        order: slice | Places = slice(None) if (step[1:] > step[:-1]).all() else np.argsort(step, kind="stable")
        step = step[order]
        if self._first is None:
            places = part_places(len(step))
            begin_s, last = column("begin_s")[order], places[1:] - 1
            self._first = np.append(step[places[:-1]], step[-1] + 1).astype(np.int64)
            ends = {"begin_s": begin_s[places[:-1]], "end_s": begin_s[last] + column("step_s")[order][last]}
            number = np.arange(len(places) - 1)
            self._columns = {"part": number, "first_step": self._first[:-1], "steps": np.diff(places), **ends}
        step_s, places = column("step_s")[order], np.searchsorted(step, self._first)
        parts = [step_s[first:after] for first, after in pairwise(places)]
        self._step_s.append([float(part.mean()) if len(part) else math.inf for part in parts])

    def profile(self, samples: Mapping[str, Mapping[str, Mapping[str, Floats]]]) -> pd.DataFrame | None:
        """Return PROFILE_COLUMNS but the run, with the load of the hosts from {host: {part: columns}}; None without
        timed steps."""
        if self._first is None:
            return None
        means = [float(np.mean(part[~np.isinf(part)])) for part in np.array(self._step_s).T]
        columns = {**self._columns, "step_s": np.array(means)}
        begin_s, end_s = self._columns["begin_s"], self._columns["end_s"]
        for name, (kind, column, summed) in LOADS.items():  # a sum is known where every device is
            each = [
                held(told["at_s"], told[column], begin_s, end_s)
                for parts in samples.values()
                for part, told in parts.items()
                if part.split(" ")[0] == kind and column in told and np.isfinite(told[column]).any()
            ] or [np.full(len(begin_s), math.nan)]
            columns[name] = np.sum(each, axis=0) if summed else np.mean(each, axis=0)
        return pd.DataFrame(columns)


def held(at_s: Floats, values: Floats, begin_s: Floats, end_s: Floats) -> Floats:
    """Return the means of readings (N,) over times (P,), where each stands for the time since the one before it.

    at_s is ascending. NaN where no reading stands for any of a time.
    """
    known = np.isfinite(values)
    spans = np.where(known, np.diff(at_s, prepend=at_s[:1]), 0.0)
    area, seen = np.cumsum(np.where(known, values, 0.0) * spans), np.cumsum(spans)
    total = np.interp(end_s, at_s, area) - np.interp(begin_s, at_s, area)
    over_s = np.interp(end_s, at_s, seen) - np.interp(begin_s, at_s, seen)
    mean: Floats = np.divide(total, over_s, out=np.full(len(begin_s), math.nan), where=over_s > 1e-9)
    return mean


def profile_rows(profiles: Iterable[tuple[str, pd.DataFrame | None]]) -> pd.DataFrame:
    """Return PROFILE_COLUMNS of runs, given with their names, in their order; a run without timed steps has no row."""
    there = [each.assign(run=run) for run, each in profiles if each is not None]
    empty = pd.DataFrame(columns=list(PROFILE_COLUMNS))
    return pd.concat(there, ignore_index=True)[list(PROFILE_COLUMNS)] if there else empty


CLOSES_S = 1e-6  # parts that miss their step by more than a microsecond do not add up
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


class RunAccount(SimpleNamespace):
    """The account of one run, times in s per step, means over its ranks; NaN or None where something is not known.

    run (its name), state, reason, repeat, workers. why_not: why there is no account of its parts; empty where there is
    one. parts_s: PARTS -> mean. residual: of each step's share, 0..1, its mean, median, p99 and worst, with worst_step
    and worst_rank; the mean is all residual over all time. steps, excluded: in the timed window and before it, the most
    of any rank; first_step, excluded_by: where the window begins, and what says so. notes: what a reader must know, who
    ends where and which rows are missing; incomplete: whether ranks have no rows, or end before others, which the first
    note says then. ranks: of those with steps in the window, rank, host, first and last recorded step, steps, excluded,
    holes (steps between these without a row), parts_s, residual, gap_s (the largest difference between a step and the
    sum of its parts) and gap_step, open_steps (those off by more than CLOSES_S), partial_laps (laps that some steps
    lack -> how many), stalls; open_rank: the one with the largest gap that does not close. left_out: what its blocks
    without communication say. pop, skew_s: what waiting costs. outside, stalls: see `outside_of` and `stalls_of`.
    epoch_steps, epoch_samples: of a whole epoch on the first rank, on all ranks. taken: its synchronisation decomposed,
    with why_not_taken; profile: its course over the window; both where they were asked for.
    """

    DOCUMENT = (
        "run state reason repeat workers why_not parts_s residual steps first_step excluded excluded_by notes ranks "
        "ablation=left_out pop skew_s outside stalls epoch_steps epoch_samples"
    )


def account_run(run: RecordedRun, *, take: bool = False, profile: bool = False) -> RunAccount:
    """Account for the steps of one run as far as they were recorded; nothing that a run lacks is an error.

    With `take`, its synchronisation is decomposed even where only its steps say something of it; with `profile`, its
    course over the timed window is there.
    """
    course = Course() if profile else None
    ranks, values = [], []
    shares: list[Floats] = []
    ends: dict[int, int] = {}
    found = RunAccount(run=run.name, outside=None, epoch_steps=math.nan, epoch_samples=math.nan)
    for rank, columns in run.rows.items():
        every = np.asarray(columns["step"])
        if not ends:  # what the first rank says of the time outside of steps, and of a whole epoch
            timed, effective = where(every >= run.first_step), run.record.effective
            names = ("epoch", "begin_s", "step_s", "residual_s", "samples")
            *known, samples = (np.asarray(columns[name], dtype=np.float64) for name in names)
            made, seen = whole_epoch(known[0], np.nan_to_num(samples)) or (math.nan, math.nan)
            if effective.get("epoch_steps"):
                made, seen = effective["epoch_steps"], effective["epoch_steps"] * (effective.get("batch") or math.nan)
            found.epoch_steps, found.epoch_samples = made, seen * run.workers
            after = float((run.record.totals.get("outside") or {}).get("after_s") or 0.0)
            known = [each[timed] for each in (*known[:3], np.nan_to_num(known[3]))]
            found.outside = outside_of(every[timed], *known, waits=run_turns(run.record).before, after_s=after)
        ends[rank] = int(every.max())
        if not (every >= run.first_step).any():
            continue
        own, share = _rank(run, rank, columns, every, course)
        ranks.append(own)
        values.append([own.parts_s[part] for part in PARTS])
        shares += [] if share is None else [share]
        del columns  # of a long run, before those of the next rank are there
    means = folded(np.array(values)).mean(axis=0) if ranks else np.full(len(PARTS), np.nan)
    vars(found).update({name: getattr(run, name) for name in ("state", "workers", "first_step")})
    vars(found).update({name: getattr(run.record, name) for name in ("reason", "repeat")})
    for name in ("steps", "excluded"):
        setattr(found, name, max((getattr(rank, name) for rank in ranks), default=0))
    found.ranks, found.parts_s = tuple(ranks), dict(zip(PARTS, means.tolist(), strict=True))
    found.why_not = _why_not(run, ranks, ends, means)
    found.residual, residuals = None, [rank.residual for rank in ranks if rank.residual is not None]
    if residuals and not found.why_not:  # of the steps of all ranks
        worst = max(residuals, key=lambda each: abs(each.worst))
        whole = {"mean": float(means[-2] / means[-1]), **_quantiles(np.concatenate(shares))}
        found.residual = SimpleNamespace(**{**vars(worst), **whole})
    shares.clear()
    found.incomplete = bool(run.missing) or len(set(ends.values())) > 1
    found.pop, found.skew_s = None, math.nan
    if run.workers > 1 and len(ranks) == run.workers and not found.incomplete and not found.why_not:
        found.pop, found.skew_s = waiting(align(run.rows, workers=run.workers, from_step=run.first_step))
    found.taken, found.why_not_taken = None, ""
    if take or run.synchronisation is not None:
        try:
            refuse(run.name, (run.workers == 1, "one worker synchronises with nobody"), error=AnalysisError)
            found.taken = decompose_observation(observe_run(run))
        except (AnalysisError, RecordError) as error:
            found.why_not_taken = str(error).partition(": ")[2]
    found.excluded_by, found.left_out = timed_from(run.record)[1], answer_of(run)[0]
    found.notes = tuple(_notes(run, ranks, ends, incomplete=found.incomplete))
    found.open_rank = max((rank for rank in ranks if rank.open_steps), key=lambda rank: rank.gap_s, default=None)
    found.stalls = stalls_over([rank.stalls for rank in ranks])
    found.profile = None if course is None else course.profile(run.system_samples(SAMPLED))
    return found


AT_ONCE_ROWS = 20_000_000  # of the runs that are taken at a time, whatever the number of threads


def account_runs(
    runs: Iterable[RecordedRun],
    *,
    threads: int = 1,
    on_progress: Callable[[int], None] | None = None,
    beside: Callable[[RecordedRun], None] | None = None,
) -> list[RunAccount]:
    """Return `account_run` of each run with its profile, in their order, up to `threads` of them at a time.

    NumPy and Arrow compute side by side in threads, and what comes out does not depend on their number. `on_progress`
    is called with how many runs are done; `beside` with each run, in its thread, for what else reads the same rows.
    """

    def work(run: RecordedRun) -> RunAccount:
        if beside is not None:
            beside(run)
        return account_run(run, profile=True)

    every, found = list(runs), []
    most = max((run.row_count() for run in every), default=0)
    with ThreadPoolExecutor(threads if threads * most <= AT_ONCE_ROWS else 1) as pool:
        for each in pool.map(work, every):
            found.append(each)
            if on_progress is not None:
                on_progress(len(found))
    return found


def _rank(
    run: RecordedRun, rank: int, columns: Mapping[str, Any], every: NDArray[np.int64], course: Course | None
) -> tuple[SimpleNamespace, Floats | None]:
    """Return the account of one rank, and the residual share of each timed step, (S,), None where not known.

    `every`: the steps of all rows. Columns are taken one after the other, because all of a long run are many.
    """

    timed, hosts = where(every >= run.first_step), run.record.effective.get("ranks") or ()

    def column(name: str) -> Floats:
        return np.asarray(columns[name], dtype=np.float64)[timed]

    step, host = every[timed], str(hosts[rank].get("host", "")) if rank < len(hosts) else run.record.host
    if course is not None:
        course.add_rank(step, column)
    means, nulls = {}, {}
    covered = np.zeros(len(step))
    values = covered
    for part, name in zip(PARTS, _COLUMNS, strict=True):
        values = column(name)
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
    laps = [name for part, name in zip(PARTS, _COLUMNS, strict=True) if part in known and part != "step"]
    first, last = int(every.min()), int(every.max())
    own = SimpleNamespace(rank=rank, host=host, first=first, last=last, steps=len(step))
    own.excluded, own.gap_step, own.parts_s, own.residual = len(every) - len(step), int(step[worst]), means, None
    # Steps are in order nearly always, which is quicker to see than how many different ones there are.
    own.holes = last - first + 1 - len(every if (every[1:] > every[:-1]).all() else np.unique(every))
    own.gap_s, own.open_steps, own.partial_laps = math.nan, 0, {}
    own.stalls = stalls_of(values, lambda name: np.nan_to_num(column(name)), laps)
    if not has_laps:
        return own, None
    own.gap_s, own.open_steps = float(gap[worst]), int((gap > CLOSES_S).sum())
    own.partial_laps = {part: nulls[part] for part in PARTS if part in known and nulls[part]}
    share = np.divide(residual, values, out=np.zeros(len(step)), where=values > 0)
    place = int(np.argmax(np.abs(share)))
    own.residual = SimpleNamespace(mean=means["residual"] / means["step"], **_quantiles(share.copy()))
    vars(own.residual).update(worst=float(share[place]), worst_step=int(step[place]), worst_rank=rank)
    return own, share


def _quantiles(values: Floats) -> dict[str, float]:
    """Return the median and the 99 % quantile; `values` are in another order afterwards."""
    median = float(np.median(values, overwrite_input=True))
    return {"median": median, "p99": float(np.quantile(values, 0.99, overwrite_input=True))}


def _why_not(run: RecordedRun, ranks: Sequence[SimpleNamespace], ends: Mapping[int, int], means: Floats) -> str:
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
    return "its steps have laps but no residual" if has_laps else NO_LAPS


def _notes(
    run: RecordedRun, ranks: Sequence[SimpleNamespace], ends: Mapping[int, int], *, incomplete: bool
) -> Iterable[str]:
    """Yield what is incomplete about a run; `ends`: rank -> last recorded step."""
    if run.state != "done" or incomplete:
        because = f" ({run.record.reason})" if run.record.reason else ""
        words = [f"{rank_words([rank])} {why}" for rank, why in run.missing.items()]
        if ends:
            lasts = sorted(set(ends.values()), reverse=True)
            ranks_at = ((rank_words([rank for rank in ends if ends[rank] == last]), last) for last in lasts)
            words.insert(0, f"its rows end: {', '.join(f'{who} at step {last:,}' for who, last in ranks_at)}")
        state = {"done": "is done", "incomplete": "ended without saying how (killed)", "running": "still runs"}
        yield f"the run {state.get(run.state, run.state)}{because}; {'; '.join(words)}"
    lost = rows_lost(run.record)
    if lost:
        yield f"{lost:,} rows are lost: they could not be written (disk full), and the run went on"
    holes = {rank.rank: rank.holes for rank in ranks if rank.holes}
    if holes and not lost and not run.aside:
        most = f"up to {max(holes.values()):,} steps"
        yield f"{rank_words(list(holes))}: {most} between the first and the last have no row"
    for lap in dict.fromkeys(lap for rank in ranks for lap in rank.partial_laps):
        count, steps = max(rank.partial_laps.get(lap, 0) for rank in ranks), max(rank.steps for rank in ranks)
        yield f"{count:,} of {steps:,} steps have no {lap}, which counts as none of it there"
    if doubt := (run.record.totals.get("steady") or {}).get("doubt"):
        yield str(doubt)


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
            whole = {name: getattr(run, name) for name in ("skew_s", "epoch_steps", "epoch_samples")}
            whole |= {"gap_s": max((rank.gap_s for rank in run.ranks), default=math.nan)}
            whole |= {"open_steps": sum(rank.open_steps for rank in run.ranks), "stalls": 0, "stall_s": 0.0}
            if run.stalls is not None:
                whole |= {"stalls": run.stalls.count, "stall_s": run.stalls.mean_s}
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
        others = ("run", "series", "state", "workers", "steps", "excluded", "open_steps", "why_not", *kinds)
        return table.astype(kinds | {name: "float64" for name in RUN_COLUMNS if name not in others})


def _row(each: SimpleNamespace) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": None, "steps": each.steps, "excluded": each.excluded, "last": None}
    found |= {f"{part}_s": each.parts_s[part] for part in PARTS}
    if (shares := each.residual) is not None:
        found |= {f"{'' if name[:6] == 'worst_' else 'residual_share_'}{name}": e for name, e in vars(shares).items()}
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
    doubts = []
    for run in placed:
        doubts += [f"{run.run}: {note}" for note in run.notes]
        if run.why_not and run.state in ("done", "stopped", "running"):
            doubts.append(f"{run.run}: not accounted for: {run.why_not}")
        if run.open_rank is not None:
            doubts.append(f"{run.run}: {open_words(run)}")
    for name, rows in named[counted & ~done].groupby("series", sort=False):
        told = f"no run of {worker_counts(rows['workers'])} is finished; what is shown is from unfinished ones"
        doubts.append(f"{name}: {told}")
    series = dict(zip(named["run"], named["series"], strict=True))
    return Accounting(runs=tuple(placed), series=series, cells=split(named[counted]), doubts=tuple(doubts))


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


def allowed_share(text: str) -> float:
    """Return the share, 0..1, that `--max-residual` means: per cent, with or without the sign.

    ConfigError for what is not a number from 0 to 100, and for a number below 1 without the sign, which may be either.
    """
    number, per_cent = text.strip().removesuffix("%"), Annotated[Number, Field(ge=0, le=100)]
    again = "give per cent from 0 to 100, such as 5%"
    value: float = accept(per_cent, number, "explain", name="--max-residual", again=again)
    if 0 < value < 1 and "%" not in text:
        raise ConfigError(f"--max-residual {text}: may be a share or per cent; write {100 * value:g}% or {value:g}%")
    return value / 100


def gate(found: Accounting, allowed: float) -> SimpleNamespace:
    """Judge an accounting: the residual of every run's worst rank and of every growth T(N) - T(1), as shares, 0..1.

    A run whose laps do not add up, or that has steps without laps, is over at any `allowed`. A growth is judged where
    it is at least 2 % of the step and, where its interval is known, beyond chance: a share of next to nothing says
    nothing. Return allowed; runs, growths: how many were judged; over: what is not accounted for well enough, each of a
    kind (step, growth, closure, not timed), with the name of the run, or the series and baseline of a growth, its
    workers, rank, share (of the step, or of T(N) - T(1)), and a text; not_judged, in words.
    """
    over: list[SimpleNamespace] = []
    not_judged: list[str] = []
    judged = growths = 0

    def add(kind: str, text: str, rank: int | None = None, share: float | None = None, **what: Any) -> None:
        over.append(SimpleNamespace(kind=kind, **what, rank=rank, share=share, text=text))

    def judge(kind: str, who: str, of: str, part_s: float, whole_s: float, *, share: float, **what: Any) -> None:
        if abs(share) > allowed:
            sizes = f"{part_s * 1e3:.3f} of {whole_s * 1e3:.3f} ms"
            much = f"{_percent(share)} of {of} is unexplained ({sizes}), allowed {_percent(allowed)}"
            add(kind, f"{who}: {much}", share=share, **what)

    for run in found.runs:
        if not run.ranks:
            not_judged.append(f"{run.run}: {run.why_not}")
            continue
        judged += 1
        place, own = f"{run.run} ({worker_counts([run.workers])})", {"name": run.run, "workers": run.workers}
        if run.why_not:
            add("not timed", f"{place}: not timed ({run.why_not}), so nothing is accounted for", **own)
            continue
        if run.open_rank is not None:
            add("closure", f"{place}: {open_words(run)}", run.open_rank.rank, **own)
        timed = [rank for rank in run.ranks if rank.residual is not None]
        if worst := max(timed, key=lambda rank: abs(rank.residual.mean), default=None):
            sizes = worst.parts_s["residual"], worst.parts_s["step"]
            who, share = f"{place}: rank {worst.rank}", worst.residual.mean
            judge("step", who, "the step", *sizes, share=share, rank=worst.rank, **own)
    several = found.cells[found.cells["workers"] > 1]
    workers: Any
    for (series, workers, _), rows in several.groupby(["series", "workers", "nodes"], sort=False, dropna=False):
        by_lap: dict[Any, Any] = {row["lap"]: row for row in rows.to_dict("records")}
        for kind in BASES:
            step_s, low, high = (by_lap["step"][f"minus_{kind}{end}_s"] for end in ("", "_low", "_high"))
            residual_s, share = by_lap["residual"][f"minus_{kind}_s"], by_lap["residual"][f"growth_{kind}"]
            reasons = {
                "one side has no residual": math.isnan(residual_s),
                "T(N) - T(1) is below 2 % of the step": math.isnan(share),
                f"T(N) - T(1) is not beyond chance ({low * 1e3:.3f} to {high * 1e3:.3f} ms)": low <= 0 <= high,
            }
            who = f"{series}, {worker_counts([workers])} over one {kind} worker"
            if math.isnan(step_s):
                continue
            if why_not := next((why for why, holds in reasons.items() if holds), ""):
                not_judged.append(f"{who}: {why_not}")
                continue
            growths += 1
            judge("growth", who, "T(N) - T(1)", residual_s, step_s, share=share, name=who, workers=int(workers))
    return SimpleNamespace(
        allowed=allowed, runs=judged, growths=growths, over=tuple(over), not_judged=tuple(not_judged)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


# ------------------------------------------------------------ between the steps, and in some that take far longer

FAR = 10.0  # a step that takes more than so many times the median one has stalled
_MOST = 0.9  # the longest gaps that make up so much of the time say where it is


def outside_of(
    step: NDArray[np.int64],
    epoch: Floats,
    begin_s: Floats,
    step_s: Floats,
    residual_s: Floats,
    *,
    waits: Collection[int] = (),
    after_s: float = 0.0,
) -> SimpleNamespace | None:
    """Return what is between timed steps, (S,) each, and `after_s` behind the last; None where it is not known.

    Of the first rank: seconds, and their share of the time of steps and of what is outside of them; gaps: how many of
    the longest make up most of it, gap_s their mean, where: `after each epoch`, `every 8 steps`, or empty.

    A residual is before the begin of its step, or behind it: that of which fewer gaps come out negative. A gap before
    a step of `waits` is a wait for a turn; where rows are missing nothing is known of the time.
    """
    if len(step) < 2 or not np.isfinite(begin_s).all() or not np.isfinite(step_s).all():
        return None
    ways = (np.diff(begin_s - residual_s) - step_s[:-1], np.diff(begin_s) - step_s[:-1])
    gaps: Floats = min(ways, key=lambda each: float(-each[each < 0].sum()))
    next_to = (np.diff(step) == 1) & ~np.isin(step[1:], list(waits))
    gaps = np.append(np.where(next_to, gaps, 0.0), after_s)
    seconds = each if (each := float(gaps.sum())) > 1e-6 else 0.0  # which sums of stamps are off by
    order = np.argsort(-gaps, kind="stable")
    most = int(np.searchsorted(np.cumsum(gaps[order]), _MOST * seconds)) + 1
    longest = np.sort(order[:most])  # places before them
    apart = np.diff(step[longest])
    usual, where = float(np.median(apart)) if len(apart) else 0.0, ""
    if (np.append(np.diff(epoch), 1)[longest] != 0).mean() >= _MOST:
        where = "after each epoch"
    elif len(apart) > 1 and usual > 1 and (np.abs(apart - usual) <= 1).mean() >= _MOST:
        where = f"every {usual:.0f} steps"
    share = seconds / (seconds + float(step_s.sum())) if seconds else 0.0
    return SimpleNamespace(seconds=seconds, share=share, gaps=most, gap_s=float(gaps[longest].mean()), where=where)


def stalls_of(step_s: Floats, column: Callable[[str], Floats], laps: Sequence[str]) -> SimpleNamespace | None:
    """Return the stalls of one rank with step times `step_s`, (S,): steps of more than FAR times the median; None
    without any.

    count, of how many steps; mean_s: what is above the median step, as a mean over all steps; longest_s; lap: that most
    of it is in, sync where no rank lost it itself, several, "" without laps; opening: whether most open an epoch.

    `column` returns another of the same rows, which are needed where there are stalls only; `laps`: those to look at.
    """
    usual = float(np.median(step_s)) if len(step_s) else math.nan
    places = np.flatnonzero(step_s > FAR * usual) if usual > 0 else np.empty(0, dtype=np.int64)
    if not 0 < len(places) <= len(step_s) / 3:  # more are no stalls: a run of two kinds of steps
        return None
    own = {name: float((values[places] - np.median(values)).sum()) for name in laps if len(values := column(name))}
    excess = float((step_s[places] - usual).sum())
    worst = max((name for name in own if name != "sync_s"), key=lambda name: own[name], default="sync_s")
    epoch = column("epoch")
    first = np.diff(epoch, prepend=epoch[:1] - 1) != 0
    cause = next((name for name in (worst, "sync_s") if own.get(name, 0.0) >= excess / 2), "several" if own else "")
    told: dict[str, Any] = {"count": len(places), "of": len(step_s), "mean_s": excess / len(step_s)}
    told |= {"longest_s": float(step_s[places].max()), "lap": cause.removesuffix("_s")}
    return SimpleNamespace(**told, opening=bool(first[places].mean() > 1 / 2))


def stalls_over(ranks: Sequence[SimpleNamespace | None]) -> SimpleNamespace | None:
    """Return the stalls of a run: means over its ranks, and the lap of the rank that lost the time itself."""
    found = [each for each in ranks if each is not None]
    told = next((each for each in found if each.lap != "sync"), found[0] if found else None)
    if told is None:
        return None
    most = {name: max(getattr(each, name) for each in found) for name in ("count", "of", "longest_s")}
    mean_s = sum(each.mean_s for each in found) / len(ranks)
    return SimpleNamespace(**{**vars(told), **most, "mean_s": mean_s})


def whole_epoch(epoch: Floats, samples: Floats) -> tuple[int, float] | None:
    """Return how many steps the longest epoch of these rows, (S,), has, and their samples; None of fewer than two.

    The first rows of the first epoch, and the end of the last one, need not be there.
    """
    names, place = np.unique(epoch[epoch >= 0], return_inverse=True)
    if len(names) < 2:
        return None
    steps = np.bincount(place)
    longest = int(np.argmax(steps))
    return int(steps[longest]), float(np.bincount(place, weights=samples[epoch >= 0])[longest])
