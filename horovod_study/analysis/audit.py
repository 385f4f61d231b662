"""Whether a study's numbers are what its raw rows give, and whether they mean what they seem to mean.

Totals of a run are made again from its step rows (`recount`), tables are compared (`compare_tables`), and faults are
looked for that leave every number right and the study wrong (`lint`): the best of several repeats, unequal baselines, a
warm-up in the window, another program on the cores. Each answer is a Fault of one of the RULES that names the cell and
the runs. docs/report.md explains all of them.
"""

import hashlib
import io
import json
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from horovod_study import __version__
from horovod_study.analysis.machine import resources
from horovod_study.analysis.paired import OTHER_LOAD
from horovod_study.analysis.series.points import ENVIRONMENT, baseline_place, measured, worker_counts
from horovod_study.analysis.stats import MIN_REPEATS, Floats
from horovod_study.analysis.steps.accounting import Accounting, open_words
from horovod_study.analysis.steps.breakdown import TILING
from horovod_study.analysis.study import Analysis
from horovod_study.config.roles import Role, named
from horovod_study.config.run import COMMUNICATION
from horovod_study.config.workload import packaged
from horovod_study.measure.energy import total_energy
from horovod_study.records import RecordedRun, RunRecord, RunSideFiles, is_command, lap_summary, rows_lost, step_totals

OPTIONS = packaged().options

TEXT_TOLERANCE = 1e-12  # what writing a number as text and reading it again may change, as a part of it
LIBRARY_TOLERANCE = 1e-6
"""What other versions of NumPy and SciPy may change: a fit ends where its steps become small."""
_ROWS_TOLERANCE = 1e-9  # totals are sums over rows, and sums may be taken in another order
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_CLOCK_S = 1e-6
_STRETCH_S = 0.01  # the window is longer than its steps by what each of its stretches takes to begin and end
_WARM_UP_LEVEL = 0.03


def versions() -> dict[str, str]:
    """Return the versions of what makes the numbers of an analysis.

    `processor` is one of them: linear algebra is computed by the code that suits it, and sums there in another order.
    """
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    chosen = [*extensions.get("baseline", ()), *extensions.get("found", ()), os.environ.get("OPENBLAS_CORETYPE", "")]
    return {
        "horovod_study": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pandas": pd.__version__,
        "processor": f"{platform.machine()} {hashlib.blake2b(' '.join(chosen).encode(), digest_size=4).hexdigest()}",
    }


class Rule(NamedTuple):
    """One kind of finding; `where` and `column` are those of its faults where they name no other."""

    severity: str  # error: a number is not what it says; doubt: it is, and the study is weak there
    where: str
    column: str
    title: str
    remedy: str


_RULES: Mapping[str, tuple[str, str, str, str, str]] = {
    "total-differs": ("error", "points.csv", "", "a total of a run is not what its raw rows give",
        "take it back from where it was recorded, or run the cell again"),
    "cell-differs": ("error", "points.csv", "", "a number or text of the study is not what its runs give",
        "make it again: horovod-study report RUNS --out DIR"),
    "best-of-n": ("error", "points.csv", "", "the best repeat stands where the median belongs",
        "quote the median with its interval; report again"),
    "extrapolation-unmarked": (
        "error", "points.csv", "extrapolated", "a value beyond the measured worker counts is not marked",
        "report again; mark it wherever it was copied to"),
    "intervals-missing": (
        "error", "points.csv", "samples_per_s_ci95_low", "a number stands without the interval that its repeats give",
        "report again; quote the number with its interval"),
    "file-missing": ("error", "points.csv", "", "a file of the study is not there, or cannot be read",
        "make it again: horovod-study report RUNS --out DIR"),
    "file-left-over": ("error", "points.csv", "", "a file is none of this analysis: it may be left from an earlier one",
        "remove it, so that nobody quotes it"),
    "picture-changed": ("error", "points.csv", "", "a picture is not the one that report drew",
        "draw it again: horovod-study report DIR"),
    "source-changed": (
        "error", "points.csv", "", "source.json is not what report wrote: what it says of the study may be false",
        "make it again: horovod-study report RUNS --out DIR"),
    "run-changed": (
        "error", "points.csv", "", "a file of a run is not the one that the run wrote, or that was analysed",
        "take it back from where it was recorded, or run the cell again; then report again"),
    "run-left-out": ("error", "runs.csv", "run", "a run is there and the study does not say so",
        "report again, so that it counts or is told as failed"),
    "run-gone": ("error", "runs.csv", "", "a run of the study is not there any more, and its numbers cannot be checked",
        "take it back from where it was recorded (--runs RUNS says where the runs are), or report again"),
    "run-set-aside": (
        "error", "points.csv", "samples_per_s_median", "a finished run was set aside, and another one counts",
        "let both count, or say in the text why one does not"),
    "repeat-missing": (
        "error", "points.csv", "repeats", "the repeats of a cell are not numbered through: some are not there",
        "take the missing repeats back, or run them again: horovod-study run STUDY.yaml"),
    "duplicated-run": ("error", "runs.csv", "step_s", "two runs are one run counted twice",
        "remove the copy and report again"),
    "logged-unlike-applied": ("error", "runs.csv", "", "what was asked for is not what ran",
        "run the cell again with the settings that are meant; train --require asked ends such a run at once"),
    "unequal-baselines": ("error", "points.csv", "", "speedups are over a baseline of other work or another machine",
        "run the baseline with the same data and on the same kind of host"),
    "data-set-changed": ("error", "runs.csv", "train_samples", "the data set changed within a series, or within a run",
        "run the series again on one data set"),
    "steps-do-not-tile": (
        "error", "points.csv", "step_s", "step rows are missing, overlap, or do not add up to their window",
        "do not quote the parts of these steps; run the cell again"),
    "mixed-scaling": (
        "doubt", "points.csv", "mode", "neither the local nor the global batch is the same along a series",
        "keep one of them fixed and run the series again; do not compare its worker counts"),
    "few-repeats": ("doubt", "points.csv", "repeats", "a point with fewer than three finished repeats has no interval",
        "run more repeats: repeats: 3 in the study file, then horovod-study run STUDY.yaml"),
    "missing-cell": ("doubt", "points.csv", "samples_per_s_median", "a cell of the study has no result",
        "run what is missing: horovod-study run STUDY.yaml"),
    "missing-baseline": ("doubt", "points.csv", "", "a point has no one-worker baseline, and so no speedup",
        "run one worker with the same work: baselines in the study file"),
    "warm-up-in-window": (
        "doubt", "points.csv", "samples_per_s_median", "the timed window begins before the steps are steady",
        "raise warmup_steps, or let the steady state be found (--steady found), and run again"),
    "oversubscribed-cores": (
        "doubt", "points.csv", "samples_per_s_median", "workers have more threads than there are cores for them",
        "use fewer workers or threads, or a host with more cores; such points measure the sharing of cores"),
    "other-load": ("doubt", "points.csv", "samples_per_s_median", "other programs used the host while it was measured",
        "end them and run the cell again, or ask for the whole host"),
    "versions-differ": ("doubt", "runs.csv", "", "the runs behind one series come from different machines or versions",
        "run the older ones again: horovod-study run --retry STUDY.yaml"),
}  # fmt: skip
RULES = {name: Rule(*rule) for name, rule in _RULES.items()}
"""Every kind of finding, in the order in which they are told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault, with the cell and the runs that it is in."""

    name: str  # of RULES
    text: str
    where: str = "points.csv"  # file below the directory of the study, or a file of a run
    series: str = ""
    workers: int | None = None
    nodes: int | None = None
    column: str = ""
    row: str = ""  # what else names the row, in words
    runs: tuple[str, ...] = ()
    kept: str | None = None  # what is there; None where nothing was compared
    again: str | None = None  # what the raw rows give

    @property
    def severity(self) -> str:
        """Return `error` or `doubt`."""
        return RULES[self.name].severity


def _fault(name: str, text: str, **more: Any) -> Fault:
    """Return a fault, in the file and column of its rule unless `more` says another."""
    return Fault(name=name, text=text, **{"where": RULES[name].where, "column": RULES[name].column, **more})


# ------------------------------------------------------------------------------------------------------ raw rows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recount:
    """What the raw rows of one run say of its record."""

    run: str
    findings: tuple[Fault, ...] = ()
    totals: int = 0  # compared
    rows: int = 0
    sketch: Floats = field(default_factory=lambda: np.empty(0))  # the first timed steps of rank 0, s
    slow_begin: float = 0.0  # of rank 0, see `slow_begin`
    not_recounted: tuple[str, ...] = ()  # totals that no kept row tells, or why there are none


def recount(run: RecordedRun, beside: RunSideFiles) -> Recount:
    """Make the totals of a run again from its rows, and look at the rows themselves.

    Columns are read one at a time. A run that has not ended well has no totals.
    """
    run = run.whole()
    record, totals = run.record, run.record.totals
    if run.state != "done" or not totals or is_command(record):
        why = "no step was seen" if is_command(record) else f"the run is {run.state}"
        return Recount(run=run.name, not_recounted=(why,))
    ranks = [_rank(run, rank, beside) for rank in run.rows]
    gaps = [f"rank {rank} {why}" for rank, why in run.missing.items()]
    gaps += [f"{lost:,} step rows are lost: the disk was full"] if (lost := rows_lost(record)) else []
    found = [*_asked(record), *_oversubscribed(record), *_others(run, ranks, beside)]
    told: list[tuple[str, Any, Any, float]] = []
    without: tuple[str, ...] = ()
    if gaps or not ranks or not all(rank.steps for rank in ranks):
        without = ("step rows are missing",)
    else:
        told = [*_totals(run, ranks), *_evaluated(run, ranks, beside)]
        gaps += _window(run, ranks, beside)
        if len(ends := {rank.rows for rank in ranks}) > 1:
            gaps.append(f"its ranks have {min(ends):,} to {max(ends):,} rows")
    for name, kept, again, room in told:
        near = room and kept is not None and abs(kept - again) <= room
        if not (near or _agree(kept, again, _ROWS_TOLERANCE)):
            file, _, column = name.rpartition(": ")
            path, _, row = file.partition(" ")
            values = {"column": column, "row": row, "kept": _told(kept), "again": _told(again)}
            text = f"{column} is {_told(kept)}; the raw rows give {_told(again)}"
            found.append(_fault("total-differs", text, where=f"{run.name}/{path or 'run.json'}", **values))
    gaps += [text for rank in ranks for text in rank.clock]
    found += [_fault("steps-do-not-tile", text, where=f"{run.name}/steps") for text in gaps]
    if ranks and ranks[0].steps and min(rank.rows - rank.steps for rank in ranks) == 0:
        text = "no step was left out before the timed window: the very first one is in it"
        found.append(_fault("warm-up-in-window", text))
    found += _epochs(run, ranks)
    compared = {"window_s", "steady", "rows_lost", *(name.split(".")[0] for name, *_ in told)}
    return Recount(
        run=run.name,
        findings=tuple(replace(each, runs=(run.name,)) for each in found),
        totals=len(told),
        rows=sum(rank.rows for rank in ranks),
        **({"sketch": ranks[0].sketch, "slow_begin": ranks[0].slow_begin} if ranks else {}),
        not_recounted=(*sorted(set(totals) - compared), *without),
    )


def _rank(run: RecordedRun, rank: int, beside: RunSideFiles) -> SimpleNamespace:
    """Return what the rows of one rank give: counts, `lap_summary`, mean losses at the evaluations, and `_clock`."""
    columns = run.rows[rank]
    step, epoch = np.asarray(columns["step"]), np.asarray(columns["epoch"])
    timed = step >= run.first_step

    def column(name: str) -> Floats:
        return np.array(columns[name], dtype=np.float64)[timed]

    step_s, loss = column("step_s"), np.asarray(columns["loss"], dtype=np.float64)
    known = len(step_s) > 0 and not np.isnan(step_s).any()
    losses = []
    for each in beside.evaluations:
        end = int(np.searchsorted(step, int(each["steps"])))
        whole = end > 0 and int(step[end - 1]) == int(each["steps"]) - 1  # else its last row is not there
        losses.append(float(loss[np.searchsorted(epoch, epoch[end - 1]) : end].mean()) if whole else math.nan)
    clock, span, stretches = _clock(run, rank, columns)
    return SimpleNamespace(
        rows=len(step),
        steps=len(step_s),
        samples=float(column("samples").sum()),
        laps=lap_summary(column),
        losses=losses,
        epochs=dict(zip(*(each.tolist() for each in np.unique(epoch, return_counts=True)), strict=True)),
        sketch=step_s[:256].copy() if known else np.empty(0),
        slow_begin=slow_begin(step_s) if known else 0.0,
        clock=clock,
        span=span,
        stretches=stretches,
    )


def _clock(
    run: RecordedRun, rank: int, columns: Mapping[str, Any]
) -> tuple[list[str], tuple[float, float] | None, int]:
    """Return what is wrong with the times of the steps, begin and end of the timed ones in s, and of how many stretches
    they are.

    Where one clock times the steps, each begins where the one before has ended, or later: after an evaluation. What of
    the residual is before the begin of its step and what after it is not known in general, so none of it is counted.
    """
    step = np.asarray(columns["step"])
    begin_s, step_s, residual_s = (
        np.array(columns[f"{name}_s"], dtype=float) for name in ("begin", "step", "residual")
    )
    timed = step >= run.first_step
    if not timed.any() or np.isnan(begin_s).any():
        return [], None, 0
    residual_s, gap = np.nan_to_num(residual_s), np.diff(begin_s)
    early = gap <= 0
    if not np.isnan(step_s).any() and bool(np.isnan(np.asarray(columns["sync_host_s"], dtype=float)).all()):
        gap -= (step_s - residual_s)[:-1]
        early = gap < -(_CLOCK_S + 1e-9 * np.abs(begin_s[1:]))
    found = []
    cases = (
        ("does not follow the step before it", np.diff(step) != 1),
        ("begins before the step before it has ended", early),
    )
    for what, places in cases:
        for place in np.flatnonzero(places)[:1]:
            more = f", and {places.sum() - 1:,} more" if places.sum() > 1 else ""
            found.append(f"rank {rank}: step {step[place + 1]:,} {what} ({1e3 * abs(gap[place]):.3f} ms){more}")
    ahead_s = (begin_s - residual_s)[timed]
    breaks = np.diff(ahead_s) - step_s[timed][:-1] > resources.BREAK_S
    span = float(ahead_s[0]), float(ahead_s[-1] + step_s[timed][-1])
    return found, span if np.isfinite(span).all() else None, int(breaks.sum()) + 1


def slow_begin(step_s: Floats) -> float:
    """Return by which part the mean of the first tenth of the steps is above the median of the tenths, where it is the
    slowest of them; else 0."""
    tenths = np.array([each.mean() for each in np.array_split(step_s, 10)]) if len(step_s) >= 20 else np.ones(10)
    return float(tenths[0] / np.median(tenths)) - 1 if tenths[0] > tenths[1:].max() else 0.0


_Told = Iterator[tuple[str, Any, Any, float]]
"""What the record says and what is made again: its name, both values, and by how much they may differ; 0: sums."""


def _totals(run: RecordedRun, ranks: Sequence[Any]) -> _Told:
    """Yield each total of the timed window that step rows give."""
    totals, samples = run.record.totals, sum(rank.samples for rank in ranks)
    again = {"steps": min(rank.steps for rank in ranks), **step_totals([rank.laps for rank in ranks])}
    again["excluded_steps"] = min(rank.rows - rank.steps for rank in ranks)
    if (totals.get("window_s") or 0) > 0 and not run.record.effective.get("processes"):  # else each has its own
        again["samples_per_s"] = samples / totals["window_s"]
    medians, kept = again.pop("lap_medians_s"), totals.get("lap_medians_s") or {}
    yield from ((name, totals[name], value, 0) for name, value in again.items() if name in totals)
    yield from ((f"lap_medians_s.{lap}", kept[lap], value, 0) for lap, value in medians.items() if lap in kept)
    told = totals.get("energy") or {}
    joules = total_energy(told.get("per_device") or (), (), samples=int(samples))
    names = ("counter_j", "integral_j", "total_j", "per_sample_j")
    yield from ((f"energy.{name}", told[name], joules[name], 0) for name in names if name in told)


def _evaluated(run: RecordedRun, ranks: Sequence[Any], beside: RunSideFiles) -> _Told:
    """Yield what the evaluations say twice: in epochs.csv, in the totals, and in the losses of the steps."""
    totals, per_epoch = run.record.totals, run.record.effective.get("steps_per_epoch")
    if not beside.evaluations or not per_epoch:
        return
    for number, each in enumerate(beside.evaluations):
        steps, losses = int(each["steps"]), [rank.losses[number] for rank in ranks]
        place, mse = f"epochs.csv after {steps:,} steps: ", math.fsum(losses) / len(losses)
        if math.isfinite(mse):
            yield f"{place}train_mse", each["train_mse"], mse, 1e-6 * abs(mse)
    last = {**beside.evaluations[-1], "epochs": min(rank.rows for rank in ranks) / per_epoch}
    for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "train_s", "wall_s", "epochs"):
        if name in totals:
            yield name, totals[name], last[name], 0


def _window(run: RecordedRun, ranks: Sequence[Any], beside: RunSideFiles) -> Iterator[str]:
    """Yield how the window of the record differs from the time of its steps."""
    window_s = run.record.totals.get("window_s")
    steps_s = max((rank.laps["mean"]["step_s"] or math.nan) * rank.steps for rank in ranks)
    if window_s is None or math.isnan(steps_s):
        return
    turns = len((run.record.totals.get("turns") or {}).get("before", ()))
    stretches = max(len(beside.evaluations) + turns, *(rank.stretches for rank in ranks)) + 1
    more_s = TILING * steps_s + _STRETCH_S * stretches
    if not -_CLOCK_S * run.workers - _ROWS_TOLERANCE * steps_s <= window_s - steps_s <= more_s:
        yield f"its window is {window_s:.6g} s long and its timed steps {steps_s:.6g} s"


def _epochs(run: RecordedRun, ranks: Sequence[Any]) -> Iterator[Fault]:
    """Yield the first epoch that has not the steps that one of the run's data set has; the last one may end early."""
    whole = run.record.effective.get("steps_per_epoch")
    if not whole or whole % 1 or rows_lost(run.record):
        return
    for rank, each in zip(run.rows, ranks, strict=True):
        for epoch, steps in each.epochs.items():
            if steps > whole or (steps < whole and epoch != max(each.epochs)):
                text = f"epoch {epoch + 1} of rank {rank} has {steps:,} steps, and an epoch of its data set {whole:,}"
                yield _fault("data-set-changed", text, where="evaluations.csv", column="steps")
                return


def _agree(kept: Any, again: Any, tolerance: float) -> bool:
    """Return whether two values are one, None and NaN being one as well."""
    return same_text(_told(kept), _told(again), tolerance)


def _told(value: Any) -> str:
    """Return a value with all its digits; unknown is said so."""
    return "nothing" if value is None or value != value else f"{value}"


# --------------------------------------------------------------------------------------------------- one record


_LIKE = (*named(OPTIONS, Role.APPLIED), "workers")
"""Options that the record shows as they were applied, under their own names; `auto` leaves the choice to the run."""
_SETTINGS = {
    each.variable: (name, 1e-6 if name.endswith("_mb") else 1.0)
    for name, each in OPTIONS.items()
    if each.variable.startswith("HOROVOD_") and each.kind is not bool
}
"""What a setting is called where the ranks say what the loaded library has, and how many of its units are one."""


def _asked(record: RunRecord) -> list[Fault]:
    """Return where what ran is not what was asked for, of all that is read back from live objects."""
    asked, ran = record.requested, record.effective
    workers, ranks, own = ran.get("workers"), ran.get("ranks") or (), ran.get("model") is None
    rate = packaged().rate_of(asked, workers or 1) if own else None
    # Processes without a library were each asked for alone.
    like = [name for name in _LIKE if not (name == "workers" and ran.get("processes"))]
    pairs = [(name, "", asked.get(name), ran.get(name)) for name in like]
    pairs += [("lr", "", rate, ran.get("lr")), ("workers", "", workers, len(ranks) or None)]
    timer = ran.get("timer_mode")
    if isinstance(timer, Mapping) and not timer.get("note"):
        pairs.append(("timer_mode", "", asked.get("timer_mode"), timer.get("value")))
    if ran.get("optimizer") and asked.get("optimizer"):
        described = ran["optimizer"].split(",")[0].split()[0].lower()
        pairs.append(("optimizer", "", asked["optimizer"].lower(), described))
    if ran.get("batch") and workers and own:  # of another script: medians of what its steps had
        pairs.append(("global_batch", "", ran["batch"] * workers, ran.get("global_batch")))
    settings: dict[str, float] = {}
    for name, (option, unit) in _SETTINGS.items():
        value = f"{((ran.get('settings') or {}).get(name) or {}).get('value')}"
        settings |= {option: float(value) * unit} if _NUMBER.fullmatch(value) else {}
    chosen = [name for name in COMMUNICATION if name in asked and asked[name] != OPTIONS[name].default]
    for number, each in enumerate(ranks):
        told, of = each.get("communication") or {}, f" of rank {number}"
        pairs += [("lr", of, rate, each.get("lr")), ("threads", of, asked.get("threads"), each.get("threads"))]
        pairs += [(name, of, asked[name], told.get(name)) for name in chosen]
        numbers = {name: got for name, got in told.items() if isinstance(got, int | float)}
        pairs += [(name, f"{of}, as set", settings[name], numbers[name]) for name in sorted({*settings} & {*numbers})]
    found: dict[str, Fault] = {}  # what holds for all ranks is told once
    for name, of, wanted, got in pairs:
        if wanted in (None, "auto") or got is None or (name == "reduction" and workers == 1):
            continue  # one worker reduces nothing
        got = "cuda" if name == "device" and got != "cpu" else got
        if not _agree(wanted, got, _ROWS_TOLERANCE):
            text = f"{name}{of}: asked for {_told(wanted)}, ran with {_told(got)}"
            found.setdefault(name, _fault("logged-unlike-applied", text, column=name, again=_told(got)))
    return [*found.values()]


def _oversubscribed(record: RunRecord) -> Iterator[Fault]:
    """Yield whether the workers of a host have more threads than cores to run on."""
    ran = record.effective
    found = ["the run recorded that its workers share cores"] if ran.get("shared_cores") is True else []
    known = [each for each in ran.get("ranks") or () if each.get("cores") and each.get("threads") is not None]
    for host in dict.fromkeys(each.get("host") for each in known):
        ranks = [each for each in known if each.get("host") == host]
        cores, threads = set().union(*(each["cores"] for each in ranks)), sum(each["threads"] for each in ranks)
        if threads > len(cores) and len(ranks) > 1:
            found.append(f"{len(ranks)} workers with {threads} threads together on {len(cores)} cores of {host}")
    there, on_one = record.environment.get("cores"), (ran.get("workers") or 0) / (ran.get("nodes") or 1)
    if not known and there is not None and on_one > there:
        found.append(f"{on_one:g} workers a node, which has {there} cores")
    yield from (_fault("oversubscribed-cores", text) for text in found[-1:])


def _others(run: RecordedRun, ranks: Sequence[Any], beside: RunSideFiles) -> Iterator[Fault]:
    """Yield what other programs used of the hosts: in the window where that was sampled, else at the start."""
    ran = run.record.effective
    spans = [rank.span for rank in ranks if rank.span is not None]
    seen: dict[str, float] = {}
    if spans:
        begin_s, end_s = min(begin for begin, _ in spans), max(end for _, end in spans)
        window = pd.DataFrame({"phase": ["timed steps"], "begin_s": [begin_s], "end_s": [end_s]})
        seen = resources.other_cores(beside.system, window, run.record.totals)
    for host, used in seen.items():
        if 100 * used > resources.OTHERS_PERCENT:
            text = f"{host}: programs that are not of this run used {used:.1f} cores during the timed steps"
            yield _fault("other-load", text)
    for host, used in (ran.get("other_programs_cores") or {}).items():
        own = [each for each in ran.get("ranks") or () if each.get("host") == host]
        cores = len(set().union(*(each.get("cores") or () for each in own)))
        busy = host not in seen and isinstance(used, int | float) and 100 * used >= resources.OTHERS_PERCENT
        if busy and cores and used + min(sum(each.get("threads") or 1 for each in own), cores) > cores:
            text = f"{host}: when the run began other programs used {used:g} cores of the {cores} of its workers"
            yield _fault("other-load", text)
    for host, held in (ran.get("other_gpu_processes") or {}).items():
        if isinstance(held, int) and held > 0:
            text = f"{host}: when the run began so many processes of others were on its workers' GPUs: {held}"
            yield _fault("other-load", text)


# ------------------------------------------------------------------------------------------------------- the study


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Study:
    """What `lint` looks at: one study made again from its run directories."""

    runs: pd.DataFrame  # run table with series (points.with_series)
    analysis: Analysis
    accounting: Accounting
    recounts: Sequence[Recount]
    records: Mapping[str, RunRecord]  # by the names in `runs`
    planned: Sequence[str] = ()  # names of the run directories that the study was to have
    set_aside: Mapping[str, RunRecord] = field(default_factory=dict)  # finished runs below .attempts


def lint(study: Study) -> list[Fault]:
    """Return the faults of a study that its numbers do not show, in the order of RULES and of the points.

    Somebody's table has nothing behind its numbers: there is nothing to find.
    """
    if not study.records:
        return []
    looks = (_points, _holes, _baselines, _twins, _odd)
    found = [each for one in study.recounts for each in one.findings]
    for run in study.accounting.runs:  # whose laps do not add up
        if run.state == "done" and run.open_rank is not None:
            place: dict[str, Any] = {"where": "accounting.csv", "column": "gap_s", "runs": (run.run,)}
            found.append(_fault("steps-do-not-tile", open_words(run), **place))
    return in_order([*found, *(each for look in looks for each in look(study))], study)


def in_order(findings: Iterable[Fault], study: Study) -> list[Fault]:
    """Return findings without twins, ordered by kind, then as the points are; runs tell the series and the workers."""
    rows = study.runs.drop_duplicates("run").set_index("run")
    placed = []
    for each in findings:
        first = next((name for name in each.runs if name in rows.index), None)
        placed.append(each if first is None or each.series else replace(each, **_cell(rows.loc[first])))
    names = list(RULES)
    series = [*dict.fromkeys(study.analysis.points["series"]), ""]

    def place(each: Fault) -> Any:
        known = each.series if each.series in series else ""
        return names.index(each.name), series.index(known), each.workers or 0, each.runs

    return sorted(dict.fromkeys(placed), key=place)


def _whole(value: Any) -> int | None:
    number = float(pd.to_numeric(value, errors="coerce"))
    return int(number) if number.is_integer() else None


def _cell(row: Any) -> dict[str, Any]:
    """Return how a finding names a row of the points or runs."""
    return {"series": str(row["series"]), "workers": _whole(row["workers"]), "nodes": _whole(row["nodes"])}


def _runs_of(study: Study, row: Mapping[Any, Any], *, finished: bool = False) -> tuple[str, ...]:
    runs = study.runs
    mine = (runs["series"] == row["series"]) & (measured(runs) if finished else True)
    for name in ("workers", "nodes", "batch", "train_samples"):
        mine &= runs[name].astype(float).fillna(-1.0) == (-1.0 if math.isnan(row[name]) else float(row[name]))
    return tuple(runs.loc[mine, "run"])


def _points(study: Study) -> Iterator[Fault]:
    """Yield what the points say of themselves: missing, mixed, few repeats, no baseline, a warm-up."""
    baseline = study.analysis.provenance["baseline"]
    recounts = {each.run: each for each in study.recounts}
    for row in study.analysis.points.to_dict("records"):
        every, runs = _runs_of(study, row), _runs_of(study, row, finished=True)
        numbers = {int(each) for each in study.runs.loc[study.runs["run"].isin(every), "repeat"].dropna()}
        gone = [str(each) for each in range(max(numbers, default=-1) + 1) if each not in numbers]
        alone = row["backend"] != "serial" and row["mode"] != "mixed" and not row["missing"]
        if alone and not math.isfinite(row[f"base_{baseline}_samples_per_s"]):
            text = f"no {baseline} baseline: one worker with batch {row['ref_batch']:.0f} on {row['partition']}"
            yield _fault("missing-baseline", text, column=f"speedup_{baseline}", runs=runs, **_cell(row))
        few = f"{row['repeats']:.0f} of at least {MIN_REPEATS} repeats finished, {row['failed']:.0f} failed"
        shared = row.get("turns_shared") == 1  # NaN where no rounds are known
        cases = [
            ("missing-cell", row["missing"], f"no run gave a result: {row['reasons'] or 'no run was made'}"),
            ("repeat-missing", gone, f"repeat {', '.join(gone[:8])} not there: the others may have been chosen"),
            ("mixed-scaling", row["mode"] == "mixed", "both the local and the global batch change with the workers"),
            ("few-repeats", runs and row["repeats"] < MIN_REPEATS, few),
            ("other-load", shared, f"other programs used more than {OTHER_LOAD:g} cores in most of its rounds"),
        ]
        for name, there, text in cases:
            if there and (name in ("missing-cell", "repeat-missing") or not row["missing"]):
                yield _fault(name, text, runs=runs if name in ("few-repeats", "other-load") else every, **_cell(row))
        yield from _warm_up([recounts[name] for name in runs if name in recounts], _cell(row))


def _warm_up(runs: Sequence[Recount], cell: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield whether in all runs of a point the first steps of the window are the slowest.

    In a steady run each of ten equal parts of the window is as likely to be the slowest as any other: that it is the
    first one in three runs, the fewest that are told, has a chance of 0.1 %.
    """
    levels = [each.slow_begin for each in runs]
    if len(runs) >= MIN_REPEATS and min(levels) >= _WARM_UP_LEVEL:
        share = f"by {100 * np.median(levels):.0f} %, which fewer than 1 of {10 ** len(runs):,} steady points show"
        text = f"in all {len(runs)} runs the first tenth of the timed steps is the slowest, {share}"
        yield _fault("warm-up-in-window", text, runs=tuple(each.run for each in runs), **cell)


def _holes(study: Study) -> Iterator[Fault]:
    """Yield worker counts that a series lacks between two of its own, planned cells without a run, replaced runs."""
    points = study.analysis.points
    for _, rows in points[points["backend"] != "serial"].groupby(["partition", "setting"], sort=False):
        for series, own in rows.groupby("series", sort=False):
            for count in sorted(set(rows["workers"]) - set(own["workers"])):
                if own["workers"].min() < count < own["workers"].max():
                    text = f"other series have a point of {worker_counts([count])}, and this one has none"
                    yield _fault("missing-cell", text, series=str(series), workers=_whole(count))
    there = {name.rpartition("/")[2] for name in study.runs["run"]}
    gone = [name for name in study.planned if name not in there]
    yield from (_fault("missing-cell", "the cell was planned and has no run", runs=(name,)) for name in gone)
    for name, record in study.set_aside.items():
        text = f"{name} finished with {_told(record.totals.get('samples_per_s'))} samples/s and does not count"
        twins = [run for run, each in study.records.items() if each.key == record.key]
        yield from (_fault("run-set-aside", text, runs=(run,)) for run in twins[:1])


def _baselines(study: Study) -> Iterator[Fault]:
    """Yield points whose one-worker runs had other data or another kind of machine, and plots with two baselines."""
    points: list[Any] = study.analysis.points.to_dict("records")
    kind = study.analysis.provenance["baseline"]
    plots: dict[tuple[str, str], dict[int, list[int]]] = {}
    for place, row in enumerate(points):
        base = None if row["missing"] or row["mode"] == "mixed" else baseline_place(points, row, kind)
        if base is None or base == place:
            continue
        if row["backend"] != "serial" and kind == "plain":
            plots.setdefault((row["partition"], row["setting"]), {}).setdefault(base, []).append(place)
        ours, theirs = (_runs_of(study, points[each], finished=True) for each in (place, base))
        for name in ("dataset_digest", "test_samples", "cpu_model", "cores", "device"):
            here, there = (_values(study, runs, name) for runs in (ours, theirs))
            if here and there and not set(here) & set(there):
                one, other = (" and ".join(each) for each in (here, there))
                text = f"{name} is {one}, and {other} in its baseline ({points[base]['series']})"
                yield _fault("unequal-baselines", text, column=f"speedup_{kind}", runs=(*ours, *theirs), **_cell(row))
                break
    for (_, setting), found in plots.items():
        usual = max(found, key=lambda base: len(found[base]))
        for base, places in found.items():
            others = f"that of the other series of {setting} is {points[usual]['series']}"
            text, column = f"its baseline is {points[base]['series']}, {others}", f"base_{kind}_samples_per_s"
            for row in (points[place] for place in places if base != usual):
                runs = _runs_of(study, row, finished=True)
                yield _fault("unequal-baselines", text, column=column, runs=runs, **_cell(row))


def _values(study: Study, runs: Iterable[str], name: str) -> list[str]:
    """Return what the records of runs say of one thing, as texts in order; what is not known is left out."""
    records = [study.records[run] for run in runs]
    values = (each.effective.get(name, each.environment.get(name)) for each in records)
    return sorted({f"{value}" for value in values if value not in (None, "")})


def _twins(study: Study) -> Iterator[Fault]:
    """Yield runs whose steps took the very same times, and those whose steps change in the order of another one's.

    Nothing ever takes the same time twice, to the last bit; a scaled copy keeps the order of its changes.
    """
    lengths: dict[int, list[Recount]] = {}
    for each in study.recounts:
        lengths.setdefault(len(each.sketch), []).append(each)
    for runs in lengths.values():
        sketches = np.array([each.sketch for each in runs])
        first: dict[bytes, int] = {}
        same = [first.setdefault(each.tobytes(), place) for place, each in enumerate(sketches)]
        alike = np.equal.outer(same, same) & (sketches.shape[1] > 1)
        if sketches.shape[1] > 32 and (sketches > 0).all():
            ranks = pd.DataFrame(np.diff(np.log(sketches), axis=1)).rank(axis=1)
            alike |= ranks.T.corr().to_numpy() > 0.999  # changes from step to step of two runs are independent
        for a, b in np.argwhere(np.triu(alike, 1)):
            one, other = runs[a], runs[b]
            factor = other.sketch.sum() / (one.sketch.sum() or 1.0)
            text = f"the step times of {other.run} are those of {one.run}, times {factor:.6g}"
            yield _fault("duplicated-run", text, runs=(other.run, one.run))


_REPEATED = (
    *("parameters", "steps_per_epoch", "optimizer", "lr"),
    *(name for name in _LIKE if name in named(OPTIONS, Role.RATE, Role.WINDOW)),
)


def _odd(study: Study) -> Iterator[Fault]:
    """Yield the finished runs that have another value than most of those that should have the same.

    Machine, versions and data set are one along a series. Runs that were asked for with the same words have the same
    settings, and those of one seed begin with the same parameters.
    """
    groups: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for row in study.runs[measured(study.runs)].to_dict("records"):
        run, series = row["run"], str(row["series"])
        record = study.records[run]
        ran, wanted = record.effective, dict(record.requested)
        seed, _ = wanted.pop("seed", None), wanted.pop("repeat", None)
        words = json.dumps([wanted, ran.get("workers"), ran.get("nodes")], sort_keys=True, default=str)
        told = [("versions-differ", series, "", name, row.get(name)) for name in (*ENVIRONMENT, "device")]
        digest = ran.get("dataset_digest", record.environment.get("dataset_digest"))
        told.append(("data-set-changed", series, "", "dataset_digest", digest))
        applied = {name: ran.get(name) for name in _REPEATED}
        applied |= {f"settings.{name}": f"{each.get('value')}" for name, each in (ran.get("settings") or {}).items()}
        unlike = {"settings.horovod_path", "settings.mpi_library"}
        told += [
            ("logged-unlike-applied", "", words, name, each) for name, each in applied.items() if name not in unlike
        ]
        if ran.get("model") is None and seed is not None:
            shape = [seed, *(ran.get(each) for each in (*named(OPTIONS, Role.MODEL), "parameters"))]
            begin, of = ran.get("initial_parameter_sha256"), f"{shape} {record.environment.get('torch')}"
            told.append(("logged-unlike-applied", "", of, "initial_parameter_sha256", begin or None))
        for rule, along, of, name, value in told:
            if not (value is None or value != value or value == ""):
                groups.setdefault((rule, along, of, name), {})[run] = f"{value}"
    for (rule, series, _, name), values in groups.items():
        counts = Counter(values.values())
        usual = min(counts, key=lambda value: (-counts[value], value))
        odd = {run: value for run, value in values.items() if value != usual}
        if odd:
            text = f"{name} is {usual} in most runs, and {' and '.join(sorted(set(odd.values())))} in {len(odd)}"
            column = RULES[rule].column or name
            yield _fault(rule, text, series=series, column=column, runs=tuple(odd))


# ------------------------------------------------------------------------------------------------ tables

_KEYS = (
    *("run", "series", "setting", "partition", "workers", "nodes", "batch", "rank", "lap", "law", "kind", "quantity"),
    *("epoch", "target_mse", "repeat", "transport", "bin", "part", "other_series"),
)


def table_of(text: str) -> pd.DataFrame:
    """Return the cells of a CSV text as texts; raises ValueError for what is none, or for nothing at all."""
    rows = pd.read_csv(io.StringIO(text), header=None, dtype=str, keep_default_na=False).fillna("")
    return rows[1:].set_axis(rows.iloc[0].tolist(), axis=1).reset_index(drop=True)


def compare_tables(where: str, kept: str, again: str, tolerance: float = TEXT_TOLERANCE) -> tuple[list[Fault], int]:
    """Compare a table of a study with the one made again, both as CSV text: findings, and how many cells there are.

    A cell is the same as `same_text` says. Rows stand for each other in their order; where there are more or fewer, by
    what names them.
    """
    new = table_of(again)
    if kept == again:
        return [], new.size
    try:
        old = table_of(kept)
    except ValueError as error:
        empty = isinstance(error, pd.errors.EmptyDataError)
        why = "is empty" if empty else f"is not a table ({error})".replace("\n", "")
        return [_fault("file-missing", why, where=where)], 0
    odd_columns = (
        ("the column is not there", new.columns[~new.columns.isin(old.columns)]),
        ("is not a column of this table", old.columns[~old.columns.isin(new.columns)]),
        ("there are several columns of this name", old.columns[old.columns.duplicated()].unique()),
    )
    found = [_fault("cell-differs", text, where=where, column=name) for text, names in odd_columns for name in names]
    old = old.loc[:, ~old.columns.duplicated()]
    shared = [name for name in new if name in old]
    if len(old) != len(new):
        keys = [name for name in _KEYS if name in shared] or shared
        old, new = (
            each.set_index(pd.MultiIndex.from_frame(each[keys].assign(twin=each.groupby(keys).cumcount())))
            for each in (old, new)
        )
        for text, odd in (
            ("the row is not there", new[~new.index.isin(old.index)]),
            ("no run gives this row", old[~old.index.isin(new.index)]),
        ):
            found += [_fault("cell-differs", text, where=where, **_named(row)) for row in odd.to_dict("records")]
        both = new.index.intersection(old.index)
        old, new = old.loc[both], new.loc[both]
    rows = new.to_dict("records")
    for place, column in np.argwhere(old[shared].to_numpy() != new[shared].to_numpy()):
        name, row = shared[column], rows[place]
        one = old[name].iat[place]
        if not same_text(one, row[name], tolerance):
            found.append(_cell_finding(where, row, name, one, row[name], tolerance))
    return found, len(new) * len(shared)


def _named(row: Mapping[Any, str]) -> dict[str, Any]:
    """Return how a finding names a row of a table."""
    told = ("run", "series", "workers", "nodes", "setting", "partition")
    cell = _cell({"series": "", "workers": "", "nodes": "", **row})
    rest = ", ".join(f"{name} {row[name]}" for name in _KEYS if row.get(name) and name not in told)
    return {**cell, "row": rest, "runs": (row["run"],) if row.get("run") else ()}


def _cell_finding(where: str, row: Mapping[Any, str], column: str, kept: str, again: str, tolerance: float) -> Fault:
    """Return what is wrong with one cell, under the name of the fault that it looks like."""
    stem = column.removesuffix("_median")
    best = [f"{stem}{end}" for end in ("_max", "_min") if f"{stem}{end}" in row and column[-4:] not in ("_max", "_min")]
    name, text = "cell-differs", f"is {kept or 'empty'}; the runs give {again or 'empty'}"
    marked = ("true", "forecast", "curve")
    if kept and any(same_text(kept, row[each], tolerance) for each in best):
        name, text = "best-of-n", f"is {kept}, the best repeat; the median is {again}"
    elif column in ("extrapolated", "kind") and again.lower() in marked and kept.lower() not in marked:
        name, text = "extrapolation-unmarked", f"is {kept or 'empty'}; this row is beyond what was measured"
    elif not kept and again and re.search(r"(low|high)(_s)?$", column):
        name, text = "intervals-missing", f"is empty; the repeats give {again}"
    return _fault(name, text, where=where, column=column, kept=kept, again=again, **_named(row))


def same_text(one: str, other: str, tolerance: float = TEXT_TOLERANCE) -> bool:
    """Return whether two texts say the same: their numbers differ by at most the part `tolerance`, the rest is equal.

    The one rule for cells, documents, captions, and all texts of a page. Whole numbers are counts or parts of a name,
    and must be equal, unless a cell says 5 and the other 5.0.
    """
    if one == other:
        return True
    ours, theirs = _NUMBER.findall(one), _NUMBER.findall(other)
    if len(ours) != len(theirs) or _NUMBER.split(one) != _NUMBER.split(other):
        return False
    for a, b in zip(ours, theirs, strict=True):
        x, y = float(a), float(b)
        counts = a.lstrip("+-").isdecimal() and b.lstrip("+-").isdecimal()
        if a != b and (counts or not (x == y or abs(x - y) <= tolerance * max(abs(x), abs(y)))):
            return False
    return True
