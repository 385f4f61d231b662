"""Whether a study's numbers are what its raw rows give, and whether they mean what they seem to mean.

Two kinds of answers. Numbers are made again and compared: the totals of a run from its step rows (`recount`), tables
and documents cell by cell (`compare_tables`, `compare_documents`). And faults are looked for that leave every number
right and the study wrong (`lint`): the best of several repeats, unequal baselines, a warm-up in the window, another
program on the cores. Each answer is a Finding that names the cell and the runs. docs/check.md explains all of them.
"""

import csv
import hashlib
import io
import json
import math
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from horovod_study import __version__
from horovod_study.analysis.machine import system
from horovod_study.analysis.paired import OTHER_LOAD
from horovod_study.analysis.series.points import ENVIRONMENT, baseline_place, measured, worker_counts
from horovod_study.analysis.stats import MIN_REPEATS, Floats, binomial_tail
from horovod_study.analysis.steps.accounting import Accounting, open_words
from horovod_study.analysis.steps.breakdown import TILING
from horovod_study.analysis.steps.rank_steps import where
from horovod_study.analysis.study import Analysis
from horovod_study.config.documents import MAX_FIELD_CHARS
from horovod_study.config.roles import Role, named
from horovod_study.config.run import COMMUNICATION, LAPS
from horovod_study.config.workload import packaged
from horovod_study.measure.energy import host_energy, host_summary, total_energy
from horovod_study.records import (
    RecordedRun,
    RunRecord,
    RunSideFiles,
    is_command,
    max_over_ranks,
    mean_over_ranks,
    rows_lost,
)
from horovod_study.text.words import cut, listed

OPTIONS = packaged().options

TEXT_TOLERANCE = 1e-12
"""What writing a number as text and reading it again may change, as a part of it."""
LIBRARY_TOLERANCE = 1e-6
"""What other versions of NumPy and SciPy may change: a fit ends where its steps become small."""
_ROWS_TOLERANCE = 1e-9
"""Totals are sums over rows, and sums may be taken in another order."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
TARGET_SPANS = (2000.0, 20.0)
"""MPa of G0 and units of a per unit of the normalised targets, of the data sets that this package makes."""
_MAX_START_S = 86_400.0
"""A run that was never interrupted and ended takes at most so much longer than the training that it recorded."""
_MAX_SKETCH = 256
_MIN_SKETCH = 32
_SAME_ORDER = 0.999
"""Rank correlation of the changes from step to step above which two runs are one: those of two runs are independent."""
_LOSS_TOLERANCE = 1e-6
_CLOCK_S = 1e-6
_MIN_SAMPLED = 8
"""Means over fewer samples in the window are not made again."""
_MEANS = {"ranks_cpu_percent": "cpu_percent", "gpu_percent": "gpu_percent", "power_w": "power_w"}
_STRETCH_S = 0.01
"""The window is longer than its steps by what each of its stretches takes to begin and end."""

_WARM_UP_SCALES = (100, 20, 10)
_WARM_UP_LEVEL = 0.03
WARM_UP_ALARM = 0.005
"""At most so many points of steady runs are said to have a warm-up in the window; see `_warm_up`."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """One kind of finding."""

    title: str
    remedy: str
    severity: str = "error"  # a number is not what it says; doubt: it is, and the study is weak there
    where: str = "points.csv"  # of its faults, where they name no other file or column
    column: str = ""


RULES: Mapping[str, _Rule] = {
    "total-differs": _Rule(
        title="a total of a run is not what its raw rows give",
        remedy="take the run directory back from where it was recorded, or run the cell again",
    ),
    "cell-differs": _Rule(
        title="a number or text of the study is not what its runs give",
        remedy="make it again: horovod-study report RUNS --out DIR",
    ),
    "best-of-n": _Rule(
        title="the best repeat stands where the median belongs",
        remedy="quote the median with its interval; report again",
    ),
    "extrapolation-unmarked": _Rule(
        title="a value beyond the measured worker counts is not marked as extrapolated",
        remedy="report again; mark it wherever it was copied to",
        column="extrapolated",
    ),
    "intervals-missing": _Rule(
        title="a number stands without the interval that its repeats give",
        remedy="report again; quote the number with its interval",
        column="samples_per_s_ci95_low",
    ),
    "file-missing": _Rule(
        title="a file of the study is not there, or cannot be read",
        remedy="make it again: horovod-study report RUNS --out DIR",
    ),
    "file-left-over": _Rule(
        title="a file is none of this analysis: it may be left from an earlier one",
        remedy="remove it, so that nobody quotes it",
    ),
    "picture-changed": _Rule(
        title="a picture is not the one that report drew",
        remedy="draw it again: horovod-study report DIR",
    ),
    "source-changed": _Rule(
        title="source.json is not what report wrote: what it says of the study may be false",
        remedy="make it again: horovod-study report RUNS --out DIR",
    ),
    "run-changed": _Rule(
        title="a file of a run is not the one that the run wrote, or that was analysed",
        remedy="take it back from where it was recorded, or run the cell again; then report again",
    ),
    "run-left-out": _Rule(
        title="a run is there and the study does not say so",
        remedy="report again, so that it counts or is told as failed",
    ),
    "run-gone": _Rule(
        title="a run of the study is not there any more, and its numbers cannot be checked",
        remedy="take it back from where it was recorded (--runs RUNS says where the runs are), or report again",
    ),
    "run-set-aside": _Rule(
        title="a finished run was set aside, and another one of the same cell counts",
        remedy="let both count, or say in the text why one does not",
        column="samples_per_s_median",
    ),
    "repeat-missing": _Rule(
        title="the repeats of a cell are not numbered through: some are not there",
        remedy="take the missing repeats back, or run them again: horovod-study run STUDY.yaml",
        column="repeats",
    ),
    "duplicated-run": _Rule(
        title="two runs are one run counted twice",
        remedy="remove the copy and report again",
        where="runs.csv",
        column="step_s",
    ),
    "logged-unlike-applied": _Rule(
        title="what was asked for is not what ran",
        remedy="run the cell again with the settings that are meant; train --require asked ends such a run at once",
        where="runs.csv",
    ),
    "unequal-baselines": _Rule(
        title="speedups are over a baseline of other work or another machine",
        remedy="run the baseline with the same data and on the same kind of host",
    ),
    "data-set-changed": _Rule(
        title="the data set changed within a series, or within a run",
        remedy="run the series again on one data set",
    ),
    "steps-do-not-tile": _Rule(
        title="step rows are missing, overlap, or do not add up to their window",
        remedy="do not quote the parts of these steps; run the cell again",
        column="step_s",
    ),
    "mixed-scaling": _Rule(
        severity="doubt",
        title="neither the local nor the global batch is the same along a series",
        remedy="keep one of them fixed and run the series again; do not compare its worker counts",
        column="mode",
    ),
    "few-repeats": _Rule(
        severity="doubt",
        title="a point with fewer than three finished repeats has no interval",
        remedy="run more repeats: repeats: 3 in the study file, then horovod-study run STUDY.yaml",
        column="repeats",
    ),
    "missing-cell": _Rule(
        severity="doubt",
        title="a cell of the study has no result",
        remedy="run what is missing: horovod-study run STUDY.yaml",
        column="samples_per_s_median",
    ),
    "missing-baseline": _Rule(
        severity="doubt",
        title="a point has no one-worker baseline, and so no speedup",
        remedy="run one worker with the same work: baselines in the study file",
    ),
    "warm-up-in-window": _Rule(
        severity="doubt",
        title="the timed window begins before the steps are steady",
        remedy="raise warmup_steps, or let the steady state be found (--steady found), and run again",
        column="samples_per_s_median",
    ),
    "oversubscribed-cores": _Rule(
        severity="doubt",
        title="workers have more threads than there are cores for them",
        remedy="use fewer workers or threads, or a host with more cores; such points measure the sharing of cores",
        column="samples_per_s_median",
    ),
    "other-load": _Rule(
        severity="doubt",
        title="other programs used the host while it was measured",
        remedy="end them and run the cell again, or ask for the whole host",
        column="samples_per_s_median",
    ),
    "versions-differ": _Rule(
        severity="doubt",
        title="the runs behind one series come from different machines or versions",
        remedy="run the older ones again: horovod-study run --retry STUDY.yaml",
        where="runs.csv",
    ),
}
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
    digest: str = ""  # of the step times; empty where there are none
    sketch: Floats = field(default_factory=lambda: np.empty(0))  # the first timed steps of rank 0, s
    begins: Mapping[int, tuple[bool, float]] = field(default_factory=dict)
    """Number of blocks -> whether the first is the slowest, and by which part it is above their median."""
    epochs: str = ""  # what is wrong with their lengths
    not_recounted: tuple[str, ...] = ()  # totals that no kept row tells, or why there are none


_LOOKED_AT = ("window_s", "steady", "rows_lost")
"""Totals that are compared with the rows otherwise than by their values."""
_EVALUATED = ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "train_s", "wall_s")


def recount(run: RecordedRun, beside: RunSideFiles) -> Recount:
    """Make the totals of a run again from its rows, and look at the rows themselves.

    Columns are read one at a time; of a run of 100 million rows on 8 ranks that is 0.1 GB. A run that has not ended
    well has no totals.
    """
    run = run.whole()
    totals = run.record.totals
    if run.state != "done" or not totals or is_command(run.record):
        why = "no step was seen" if is_command(run.record) else f"the run is {run.state}"
        return Recount(run=run.name, not_recounted=(why,))
    found = [*_asked(run.record), *_oversubscribed(run.record), *_dated(run), *_unsampled(run, beside)]
    row_gaps = list(_row_gaps(run))
    openings = _openings(run, beside)
    ranks = [_Rank.of(run, rank, openings) for rank in run.rows]
    compared: list[str] = []
    without: tuple[str, ...] = ()
    if openings is None:
        without = ("time between steps", "means of system samples in the window", "joules of each device")
    if row_gaps or not ranks or not all(rank.steps for rank in ranks):
        without += ("step rows are missing",)
    else:
        samples = sum(rank.samples for rank in ranks)
        for name, kept, again in [
            *_totals(run, ranks),
            *_evaluated(run, ranks, beside),
            *_sampled(totals, beside),
            *_joules(totals, samples),
        ]:
            compared.append(name)
            if not _agree(kept, again, _LOSS_TOLERANCE if name.endswith("train_mse") else _ROWS_TOLERANCE):
                found.append(_differs(run.name, name, kept, again))
        spans = [] if openings is None else _spans(run, openings)
        for name, kept, again, room in _in_window(totals, beside, spans):
            compared.append(name)
            if kept is not None and (again is None or not abs(kept - again) <= room):
                found.append(_differs(run.name, name, kept, again))
        row_gaps += _window(run, ranks, beside)
        if len(ends := {rank.rows for rank in ranks}) > 1:
            row_gaps.append(f"its ranks have {min(ends):,} to {max(ends):,} rows")
    row_gaps += [text for rank in ranks for text in rank.clock]
    found += [_fault("steps-do-not-tile", text, where=f"{run.name}/steps") for text in row_gaps]
    if ranks and ranks[0].steps and min(rank.excluded for rank in ranks) == 0:
        text = "no step was left out before the timed window: the very first one is in it"
        found.append(_fault("warm-up-in-window", text))
    found += _others(run, ranks, beside)
    return Recount(
        run=run.name,
        findings=tuple(replace(each, runs=(run.name,)) for each in found),
        totals=len(compared),
        rows=sum(rank.rows for rank in ranks),
        digest=ranks[0].digest if ranks else "",
        sketch=ranks[0].sketch if ranks else np.empty(0),
        begins=ranks[0].begins if ranks else {},
        epochs=_epochs(run, ranks),
        not_recounted=(*sorted(set(totals) - set(_LOOKED_AT) - {each.split(".")[0] for each in compared}), *without),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Rank:
    """What the rows of one rank give; a lap is NaN unless all timed rows know it."""

    rows: int
    steps: int  # timed
    excluded: int
    samples: float
    mean: Mapping[str, float]
    median: Mapping[str, float]
    p90_s: float
    first_s: float  # when the timed steps begin and end, in seconds of the run
    last_s: float
    declared_s: float  # time of the steps between the declared and the found begin of the window
    loss: Callable[[int], float]  # of the epoch so far, its mean after so many steps; NaN where the last has no row
    epochs: Mapping[int, int]  # epoch -> rows
    stretches: int
    digest: str
    sketch: Floats
    begins: Mapping[int, tuple[bool, float]]
    clock: tuple[str, ...]

    @classmethod
    def of(cls, run: RecordedRun, rank: int, openings: frozenset[int] | None = None) -> "_Rank":
        """Return what the rows of `rank` give; `openings` as `_openings` says."""
        columns = run.rows[rank]
        every = np.asarray(columns["step"])
        timed = where(every >= run.first_step)
        mean, median = {}, {}
        p90_s, digest, begins, sketch = math.nan, "", {}, np.empty(0)
        for name in (f"{lap}_s" for lap in (*LAPS, "residual", "step")):
            values = np.array(columns[name], dtype=np.float64)[timed]
            known = len(values) > 0 and not np.isnan(values).any()
            mean[name] = float(values.mean()) if known else math.nan
            if known and name == "step_s":
                digest = hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()
                begins, sketch = _begins(values), values[:_MAX_SKETCH].copy()
                p90_s = float(np.quantile(values, 0.9))
            median[name] = float(np.median(values)) if known else math.nan
        clock, stretches, span = _clock(rank, every, columns, run.first_step, openings)
        declared = _declared(run.record)
        between = where((every >= declared) & (every < run.first_step))
        numbers, counts = np.unique(np.asarray(columns["epoch"]), return_counts=True)
        return cls(
            rows=len(every),
            steps=len(every[timed]),
            excluded=len(every) - len(every[timed]),
            samples=float(np.asarray(columns["samples"], dtype=np.float64)[timed].sum()),
            mean=mean,
            median=median,
            p90_s=p90_s,
            first_s=span[0],
            last_s=span[1],
            declared_s=float(np.asarray(columns["step_s"], dtype=np.float64)[between].sum()),
            loss=_loss(every, np.asarray(columns["epoch"]), np.asarray(columns["loss"], dtype=np.float64)),
            epochs=dict(zip(numbers.tolist(), counts.tolist(), strict=True)),
            stretches=stretches,
            digest=digest,
            sketch=sketch,
            begins=begins,
            clock=clock,
        )


def _declared(record: RunRecord) -> int:
    return (record.totals.get("steady") or {}).get("declared") or 0


def _loss(step: NDArray[np.int64], epoch: NDArray[np.int64], loss: Floats) -> Callable[[int], float]:
    """Return what gives the mean loss of the epoch so far after any number of steps, from the losses of all steps."""
    sums = np.concatenate([[0.0], np.cumsum(loss)])

    def after(steps: int) -> float:
        end = int(np.searchsorted(step, steps))
        if end == 0 or int(step[end - 1]) != steps - 1:
            return math.nan
        begin = int(np.searchsorted(epoch, epoch[end - 1]))
        return float(sums[end] - sums[begin]) / (end - begin)

    return after


def _openings(run: RecordedRun, beside: RunSideFiles) -> frozenset[int] | None:
    """Return the steps before which the trainer of this package does something else; None where nobody knows them.

    Beside them an epoch may begin. Checkpoints are written at times that no row tells.
    """
    record = run.record
    if record.effective.get("model") is not None or record.requested.get("checkpoint_every") or record.attempts[1:]:
        return None
    told = [_declared(record), run.first_step, record.effective.get("warmup_steps") or 0]
    told += (record.totals.get("turns") or {}).get("before", ())
    return frozenset([*told, *(int(each["steps"]) for each in beside.evaluations)])


def _unexplained(
    gap: Floats, begin_s: Floats, every: NDArray[np.int64], epoch: NDArray[np.int64], openings: frozenset[int] | None
) -> NDArray[np.int64]:
    """Return the places of gaps, (S - 1,) seconds, where the run records nothing between two steps."""
    if openings is None:
        return np.empty(0, dtype=np.int64)
    following = every[1:]
    known = np.isin(following, np.fromiter(openings, dtype=np.int64)) | (np.diff(epoch) != 0)
    late = gap > _CLOCK_S + 1e-9 * np.abs(begin_s[1:])
    return np.flatnonzero(late & ~known & (np.diff(every) == 1))


def _clock(
    rank: int,
    every: NDArray[np.int64],
    columns: Mapping[str, Any],
    first_step: int,
    openings: frozenset[int] | None,
) -> tuple[tuple[str, ...], int, tuple[float, float]]:
    """Return what is wrong with the times of the steps, the number of stretches, begin and end of the timed ones.

    Where one clock times the steps, each begins where the one before has ended, or later: after an evaluation. What of
    the residual is before the begin of its step and what after it is not known in general, so none of it is counted;
    in the trainer of this package all of it is before, and then no time is left between two steps of a stretch.
    """
    begin_s = np.asarray(columns["begin_s"], dtype=np.float64)
    step_s = np.asarray(columns["step_s"], dtype=np.float64)
    timed = np.flatnonzero(every >= first_step)
    if not len(timed) or np.isnan(begin_s).any():
        return (), 1, (math.nan, math.nan)
    found = []
    wrong = np.flatnonzero(np.diff(every) != 1)
    if len(wrong):
        found.append(f"rank {rank}: after step {every[wrong[0]]:,} comes step {every[wrong[0] + 1]:,}")
    one_clock = not np.isnan(step_s).any() and bool(np.isnan(np.asarray(columns["sync_host_s"], dtype=float)).all())
    stretches = 1
    end_s = float(begin_s[timed[-1]]) + (float(step_s[timed[-1]]) if math.isfinite(step_s[timed[-1]]) else 0.0)
    if one_clock:
        residual_s = np.nan_to_num(np.asarray(columns["residual_s"], dtype=np.float64))
        gap = np.diff(begin_s) - (step_s - residual_s)[:-1]
        stretches += int((gap > system.BREAK_S).sum())
        overlap = np.flatnonzero(gap < -(_CLOCK_S + 1e-9 * np.abs(begin_s[1:])))
        what = "begins before the step before it has ended"
        lost = _unexplained(gap - residual_s[1:], begin_s, every, np.asarray(columns["epoch"]), openings)
        if len(lost):
            late_ms = 1e3 * float(gap[lost[0]] - residual_s[lost[0] + 1])
            more = f", and {len(lost) - 1:,} more" if len(lost) > 1 else ""
            found.append(
                f"rank {rank}: step {every[lost[0] + 1]:,} begins {late_ms:.3f} ms after the step before it, and "
                f"the run records nothing between them{more}"
            )
    else:
        gap = np.diff(begin_s)
        overlap = np.flatnonzero(gap <= 0)
        what = "begins before the step before it"
    if len(overlap):
        place = overlap[0]
        more = f", and {len(overlap) - 1:,} more" if len(overlap) > 1 else ""
        late_ms = 1e3 * abs(float(gap[place]))
        found.append(f"rank {rank}: step {every[place + 1]:,} {what}, by {late_ms:.3f} ms{more}")
    return tuple(found), stretches, (float(begin_s[timed[0]]), end_s)


def _begins(step_s: Floats) -> dict[int, tuple[bool, float]]:
    """Return for each number of blocks whether the first block is the slowest, and its level above the middle one."""
    found = {}
    for blocks in _WARM_UP_SCALES:
        length = len(step_s) // blocks
        if length < 2:
            continue
        levels = np.median(step_s[: blocks * length].reshape(blocks, length), axis=1)
        middle = float(np.median(levels))
        if middle > 0:
            found[blocks] = bool(levels[0] > levels[1:].max()), float(levels[0]) / middle - 1
    return found


def _totals(run: RecordedRun, ranks: Sequence[_Rank]) -> Iterable[tuple[str, Any, Any]]:
    """Yield each total of the timed window: its name, the record's value, that of the rows."""
    totals = run.record.totals

    def mean(name: str, of: str) -> float | None:
        return mean_over_ranks([getattr(rank, of)[name] for rank in ranks])

    yield "steps", totals.get("steps"), min(rank.steps for rank in ranks)
    if "excluded_steps" in totals:
        yield "excluded_steps", totals["excluded_steps"], min(rank.excluded for rank in ranks)
    window_s = totals.get("window_s") or 0
    if window_s > 0 and not run.record.effective.get("processes"):  # else each has a window of its own
        yield "samples_per_s", totals.get("samples_per_s"), sum(rank.samples for rank in ranks) / window_s
    if "step_s_median" in totals:
        yield "step_s_median", totals["step_s_median"], max_over_ranks([rank.median["step_s"] for rank in ranks])
    if "step_s_p90" in totals:
        yield "step_s_p90", totals["step_s_p90"], max_over_ranks([rank.p90_s for rank in ranks])
    for lap in (*LAPS, "residual", "step"):
        if f"{lap}_s" in totals:
            yield f"{lap}_s", totals[f"{lap}_s"], mean(f"{lap}_s", "mean")
    for lap, kept in (totals.get("lap_medians_s") or {}).items():
        if lap in (*LAPS, "residual"):
            yield f"lap_medians_s.{lap}", kept, mean(f"{lap}_s", "median")


def _evaluated(run: RecordedRun, ranks: Sequence[_Rank], beside: RunSideFiles) -> Iterable[tuple[str, Any, Any]]:
    """Yield what the evaluations say twice: in epochs.csv, in the totals, and in the losses of the steps."""
    per_epoch, batch = run.record.effective.get("steps_per_epoch"), run.record.effective.get("global_batch")
    if not beside.evaluations or not per_epoch:
        return
    for each in beside.evaluations:
        steps = int(each["steps"])
        losses = [rank.loss(steps) for rank in ranks]
        place = f"epochs.csv after {steps:,} steps: "
        if math.isfinite(math.fsum(losses)):
            yield f"{place}train_mse", each["train_mse"], math.fsum(losses) / len(losses)
        yield f"{place}samples", each["samples"], steps * batch if batch else each["samples"]
        yield f"{place}epoch", each["epoch"], steps / per_epoch
    for each, mse in zip(beside.evaluations, _test_mse(beside), strict=False):
        yield f"epochs.csv after {int(each['steps']):,} steps: test_mse", each["test_mse"], mse
    last = beside.evaluations[-1]
    for name in _EVALUATED:
        if name in run.record.totals:
            yield name, run.record.totals[name], last[name]
    if "epochs" in run.record.totals:
        yield "epochs", run.record.totals["epochs"], (min(rank.steps + rank.excluded for rank in ranks)) / per_epoch


def _test_mse(beside: RunSideFiles) -> list[float]:
    """Return the test MSE of each evaluation from the errors of the two targets; none where their spans are others."""
    again = [
        sum((float(each[name]) / span) ** 2 for name, span in zip(("g0_rmse_mpa", "a_rmse"), TARGET_SPANS, strict=True))
        / len(TARGET_SPANS)
        for each in beside.evaluations
    ]
    known = [
        _agree(each["test_mse"], mse, _ROWS_TOLERANCE) for each, mse in zip(beside.evaluations, again, strict=True)
    ]
    return again if 2 * sum(known) >= len(known) else []


def _sampled(totals: Mapping[str, Any], beside: RunSideFiles) -> Iterable[tuple[str, Any, Any]]:
    """Yield the number of the samples of each host, and the maxima over them."""
    hosts = (totals.get("system") or {}).get("hosts") or {}
    for host, told in hosts.items():
        if host not in beside.system:
            continue
        rows = beside.system[host].rows
        if told.get("samples") is not None:
            last = rows.loc[rows["attempt"] == rows["attempt"].max(), "at_s"]
            yield f"system.{host}.samples", told["samples"], int(last.nunique())
        for name, column in (("rss_mb_max", "rss_mb"), ("gpu_memory_mb_max", "gpu_memory_mb")):
            for part, kept in (told.get(name) or {}).items():
                own = rows.loc[rows["part"].isin([part, f"rank {part}"]), column].dropna()
                yield f"system.{host}.{name}.{part}", kept, float(own.max()) if len(own) else None


def _joules(totals: Mapping[str, Any], samples: float) -> Iterable[tuple[str, Any, Any]]:
    """Yield the sums of the joules of the devices, and what a sample took."""
    told = totals.get("energy") or {}
    again = total_energy(told.get("per_device") or (), (), samples=int(samples))
    for name in ("counter_j", "integral_j", "total_j", "per_sample_j"):
        if name in told:
            yield f"energy.{name}", told[name], again[name]


def _spans(run: RecordedRun, openings: frozenset[int]) -> list[list[float]]:
    """Return begin and end of the stretches of timed steps of rank 0, in seconds of the run; its laps tile them."""
    columns = run.rows[0]
    every = np.asarray(columns["step"])
    timed = every >= run.first_step
    begin_s, step_s, residual_s = (
        np.asarray(columns[name], dtype=np.float64)[timed] for name in ("begin_s", "step_s", "residual_s")
    )
    begin_s = begin_s - np.nan_to_num(residual_s)
    if not len(begin_s) or not np.isfinite([begin_s, step_s]).all():
        return []
    opens = np.isin(every[timed], np.fromiter(openings, dtype=np.int64))
    opens[0] = True
    opens[1:] |= np.diff(begin_s) - step_s[:-1] > system.BREAK_S
    edges = [*np.flatnonzero(opens), len(begin_s)]
    return [[float(begin_s[a]), float(begin_s[a] + step_s[a:b].sum())] for a, b in pairwise(edges)]


def _in_window(
    totals: Mapping[str, Any], beside: RunSideFiles, spans: Sequence[Sequence[float]]
) -> Iterable[tuple[str, Any, Any, float]]:
    """Yield the means of the samples in the window and the joules of each device: name, kept, again, and by how much
    they may differ, because a stretch of the window begins and ends some milliseconds before and after its steps."""
    window_s = sum(end - begin for begin, end in spans)
    hosts = (totals.get("system") or {}).get("hosts") or {}
    kept_joules = {each.get("name"): each for each in (totals.get("energy") or {}).get("per_device") or ()}
    for host, told in hosts.items():
        interval_s = told.get("interval_s")
        if host not in beside.system or not interval_s or window_s < _MIN_SAMPLED * interval_s:
            continue
        part = 0.01 + 2 * _STRETCH_S * len(spans) / window_s
        samples = beside.system[host]
        columns = {name: samples.rows[name].to_numpy() for name in samples.rows.columns}
        again = host_summary(columns, spans)
        for name, column in _MEANS.items():
            for place, kept in (told.get(name) or {}).items():
                mine = np.isin(columns["part"], (place, f"rank {place}"))
                most = float(np.nanmax(columns[column][mine], initial=0.0))
                yield f"system.{host}.{name}.{place}", kept, again[name].get(place), part * most
        for each in host_energy(columns, samples.meta["devices"], spans, host=host, interval_s=interval_s):
            for name in ("counter_j", "integral_j"):
                kept = kept_joules.get(each["name"], {}).get(name)
                yield f"energy.{host}.{name}.{each['part']}", kept, each[name], 3 * part * (each[name] or 0.0)


def _row_gaps(run: RecordedRun) -> Iterable[str]:
    """Yield which rows are not there."""
    for rank, why in run.missing.items():
        yield f"rank {rank} {why}"
    lost = rows_lost(run.record)
    if lost:
        yield f"{lost:,} step rows are lost: the disk was full"


def _window(run: RecordedRun, ranks: Sequence[_Rank], beside: RunSideFiles) -> Iterable[str]:
    """Yield how the window of the record differs from the time of its steps."""
    window_s = run.record.totals.get("window_s")
    steps_s = max(rank.mean["step_s"] * rank.steps for rank in ranks)
    if window_s is None or math.isnan(steps_s):
        return
    stretches = max(len(beside.evaluations), *(rank.stretches for rank in ranks)) + 1
    more_s = TILING * steps_s + _STRETCH_S * stretches
    if not -_CLOCK_S * run.workers - _ROWS_TOLERANCE * steps_s <= window_s - steps_s <= more_s:
        yield f"its window is {window_s:.6g} s long and its timed steps {steps_s:.6g} s"
        return
    if beside.evaluations and run.record.effective.get("steps_per_epoch"):
        last = beside.evaluations[-1]
        if last["steps"] == min(rank.rows for rank in ranks):
            trained_s = last["train_s"] - ranks[0].declared_s
            if window_s < trained_s * (1 - _ROWS_TOLERANCE) - _CLOCK_S:
                yield f"its window is {window_s:.6g} s long, and epochs.csv says that it trained for {trained_s:.6g} s"


def _epochs(run: RecordedRun, ranks: Sequence[_Rank]) -> str:
    """Return which epoch has not the steps that an epoch of the run's data set has; the last one may end early."""
    whole = run.record.effective.get("steps_per_epoch")
    if not whole or whole % 1 or rows_lost(run.record):
        return ""
    for rank, each in zip(run.rows, ranks, strict=True):
        last = max(each.epochs, default=0)
        for epoch, steps in each.epochs.items():
            if steps > whole or (steps < whole and epoch != last):
                return f"epoch {epoch + 1} of rank {rank} has {steps:,} steps, and an epoch of its data set {whole:,}"
    return ""


def _agree(kept: Any, again: Any, tolerance: float) -> bool:
    """Return whether two values are one, None and NaN being one as well."""
    if isinstance(kept, str) and isinstance(again, str):
        return same_text(kept, again, tolerance)
    if isinstance(kept, bool) != isinstance(again, bool):
        return False
    numbers = [math.nan if each is None else each for each in (kept, again)]
    if not all(isinstance(each, int | float) for each in numbers):
        return bool(kept == again)
    a, b = (float(each) for each in numbers)
    return (math.isnan(a) and math.isnan(b)) or _equal(a, b, tolerance)


def _equal(a: float, b: float, tolerance: float) -> bool:
    return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b))


def _differs(run: str, name: str, kept: Any, again: Any) -> Fault:
    file, _, column = name.rpartition(": ")
    path, _, row = file.partition(" ")
    values = {"kept": _told(kept), "again": _told(again)}
    text = f"{column} is {values['kept']}; the raw rows give {values['again']}"
    return _fault("total-differs", text, where=f"{run}/{path or 'run.json'}", column=column, row=row, **values)


def _told(value: Any) -> str:
    """Return a value with all its digits; unknown is said so."""
    return "nothing" if value is None or value != value else f"{value}"


# --------------------------------------------------------------------------------------------------- one record


_LIKE = (*named(OPTIONS, Role.APPLIED), "workers")
"""Options that the record shows as they were applied, under their own names; `auto` leaves the choice to the run."""


def _asked(record: RunRecord) -> list[Fault]:
    """Return where what ran is not what was asked for, of all that is read back from live objects."""
    asked, ran = record.requested, record.effective
    workers = ran.get("workers")
    pairs: list[tuple[str, Any, Any]] = []
    for name in _LIKE:
        wanted, got = asked.get(name), ran.get(name)
        if wanted in (None, "auto") or got is None or (name == "reduction" and workers == 1):
            continue  # one worker reduces nothing
        if name == "workers" and ran.get("processes"):
            continue  # processes without a library, each of which was asked for alone
        pairs.append((name, wanted, "cuda" if name == "device" and got != "cpu" else got))
    timer = ran.get("timer_mode")
    if isinstance(timer, Mapping) and not timer.get("note"):
        pairs.append(("timer_mode", asked.get("timer_mode"), timer.get("value")))
    if ran.get("optimizer") and asked.get("optimizer"):
        described = ran["optimizer"].split(",")[0].split()[0].lower()
        pairs.append(("optimizer", asked["optimizer"].lower(), described))
    if ran.get("batch") and workers and ran.get("model") is None:  # of another script: medians of what its steps had
        pairs.append(("global_batch", ran["batch"] * workers, ran.get("global_batch")))
    rate = packaged().rate_of(asked, workers or 1) if ran.get("model") is None else None
    pairs.append(("lr", rate, ran.get("lr")))
    ranks = ran.get("ranks") or ()
    if ranks:
        pairs.append(("workers", workers, len(ranks)))
    chosen = [name for name in COMMUNICATION if name in asked and asked[name] != OPTIONS[name].default]
    chosen = [name for name in chosen if name != "reduction" or workers != 1]
    for number, each in enumerate(ranks):
        told = each.get("communication") or {}
        own = [("lr", rate, each.get("lr")), ("threads", asked.get("threads"), each.get("threads"))]
        own += [(name, asked[name], told.get(name)) for name in chosen]
        pairs += [(f"{name} of rank {number}", wanted, got) for name, wanted, got in own]
    found = []
    for name, wanted, got in pairs:
        if wanted is not None and got is not None and not _agree(wanted, got, _ROWS_TOLERANCE):
            text = f"{name}: asked for {_told(wanted)}, ran with {_told(got)}"
            found.append(_fault("logged-unlike-applied", text, column=name.split(" of ")[0], again=_told(got)))
    found += _settings(ran, ranks)
    # What holds for all ranks is told once.
    return list({each.column: each for each in reversed(found)}.values())[::-1]


_SETTINGS = {
    each.variable: (name, 1e-6 if name.endswith("_mb") else 1.0)
    for name, each in OPTIONS.items()
    if each.variable.startswith("HOROVOD_") and each.kind is not bool
}
"""What a setting is called where the ranks say what the loaded library has, and how many of its units are one."""


def _settings(ran: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> Iterable[Fault]:
    """Yield settings of the library that are not what its ranks read back from it."""
    for name, (option, unit) in _SETTINGS.items():
        text = f"{((ran.get('settings') or {}).get(name) or {}).get('value')}"
        if not _NUMBER.fullmatch(text):
            continue
        told = {(one.get("communication") or {}).get(option) for one in ranks} - {None}
        for got in sorted(one for one in told if isinstance(one, int | float)):
            if not _equal(float(text) * unit, float(got), _ROWS_TOLERANCE):
                words = f"{name} is {text}, and a rank has {option} {_told(got)}"
                yield _fault("logged-unlike-applied", words, column=option, again=_told(got))


def _dated(run: RecordedRun) -> Iterable[Fault]:
    """Yield dates of a run that contradict each other, or the time that it trained."""
    record, attempts = run.record, run.record.attempts
    for name, attempt in (("started", attempts[0]), ("finished", attempts[-1])):
        kept, again = getattr(record, name), attempt.get(name)
        if kept and again and kept != again:
            yield _differs(run.name, name, kept, f"{again} (attempts)")
    dates = pd.to_datetime(pd.Series([record.started, record.finished]), utc=True, errors="coerce", format="ISO8601")
    wall_s = record.totals.get("wall_s")
    if dates.isna().any() or len(attempts) > 1 or wall_s is None:
        return
    took_s = (dates[1] - dates[0]).total_seconds()
    if not wall_s - 2 <= took_s <= wall_s + _MAX_START_S:  # dates are whole seconds
        text = f"it took {took_s:,.0f} s from started to finished, and trained for {wall_s:,.0f} s"
        yield _fault("total-differs", text, where=f"{run.name}/run.json", column="started")


def _unsampled(run: RecordedRun, beside: RunSideFiles) -> Iterable[Fault]:
    """Yield the hosts whose samples are not there, though the record tells how many there were."""
    for host, told in ((run.record.totals.get("system") or {}).get("hosts") or {}).items():
        if host not in beside.system and told.get("samples"):
            column = f"system.{host}.samples"
            yield _differs(run.name, column, told["samples"], beside.why_no_system or None)


def _oversubscribed(record: RunRecord) -> Iterable[Fault]:
    """Yield whether the workers of a host have more threads than cores to run on."""
    ran = record.effective
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for each in ran.get("ranks") or ():
        if each.get("cores") and each.get("threads") is not None:
            hosts.setdefault(f"{each.get('host')}", []).append(each)
    found = []
    for host, ranks in hosts.items():
        cores = set().union(*(each["cores"] for each in ranks))
        threads = sum(each["threads"] for each in ranks)
        if threads > len(cores) and len(ranks) > 1:
            found.append(f"{len(ranks)} workers with {threads} threads together on {len(cores)} cores of {host}")
    there, workers, nodes = record.environment.get("cores"), ran.get("workers"), ran.get("nodes") or 1
    if not hosts and there is not None and workers and workers / nodes > there:
        found.append(f"{workers / nodes:g} workers a node, which has {there} cores")
    if ran.get("shared_cores") is True:
        found.append("the run recorded that its workers share cores")
    yield from (_fault("oversubscribed-cores", text) for text in found[:1])


def _others(run: RecordedRun, ranks: Sequence[_Rank], beside: RunSideFiles) -> list[Fault]:
    """Return what other programs used of the hosts: in the window where that was sampled, else at the start."""
    begins = [rank.first_s for rank in ranks if math.isfinite(rank.first_s)]
    ends = [rank.last_s for rank in ranks if math.isfinite(rank.last_s)]
    seen: dict[str, float] = {}
    if begins and ends:
        window = pd.DataFrame({"phase": ["timed steps"], "begin_s": [min(begins)], "end_s": [max(ends)]})
        seen = system.other_cores(beside.system, window, run.record.totals)
    found = [
        f"{host}: programs that are not of this run used {cores:.1f} cores during the timed steps"
        for host, cores in seen.items()
        if 100 * cores > system.OTHERS_PERCENT
    ]
    told = run.record.effective.get("other_programs_cores") or {}
    for host, cores in told.items():
        own = [each for each in run.record.effective.get("ranks") or () if each.get("host") == host]
        there = set().union(*(each.get("cores") or () for each in own))
        threads = sum(each.get("threads") or 1 for each in own)
        busy = isinstance(cores, int | float) and 100 * cores >= system.OTHERS_PERCENT
        if host not in seen and busy and there and cores + min(threads, len(there)) > len(there):
            many = f"the {len(there)} cores" if len(there) > 1 else "the one core"
            found.append(f"{host}: other programs used {cores:g} of {many} of its workers when the run began")
    for host, held in (run.record.effective.get("other_gpu_processes") or {}).items():
        if isinstance(held, int) and held > 0:
            found.append(f"{host}: {held} process{'es' * (held > 1)} of others on its workers' GPUs when the run began")
    return [_fault("other-load", text) for text in found]


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
    found = [
        *(each for one in study.recounts for each in one.findings),
        *_unclosed(study),
        *_points(study),
        *_holes(study),
        *_repeats(study),
        *_baselines(study),
        *_twins(study),
        *_alike(study),
        *_unlike_repeats(study),
        *_machines(study),
        *_data_sets(study),
        *_warm_up(study),
        *_extrapolated(study.analysis),
    ]
    return in_order(placed(found, study.runs), study.analysis)


def placed(findings: Iterable[Fault], runs: pd.DataFrame) -> list[Fault]:
    """Return findings with series and worker count filled in where they name a run of the table only."""
    rows = runs.drop_duplicates("run").set_index("run")
    done = []
    for each in findings:
        first = next((name for name in each.runs if name in rows.index), None)
        if first is not None and not each.series:
            row = rows.loc[first]
            each = replace(each, series=str(row["series"]), workers=_whole(row["workers"]), nodes=_whole(row["nodes"]))
        done.append(each)
    return done


def in_order(findings: Iterable[Fault], analysis: Analysis) -> list[Fault]:
    """Return findings without twins, ordered by kind, then as the points are."""
    names = {name: place for place, name in enumerate(RULES)}
    series = {name: place for place, name in enumerate(dict.fromkeys(analysis.points["series"]))}
    unique = list(dict.fromkeys(findings))
    return sorted(
        unique, key=lambda each: (names[each.name], series.get(each.series, len(series)), each.workers or 0, each.runs)
    )


def _whole(value: Any) -> int | None:
    number = float(pd.to_numeric(value, errors="coerce"))
    return int(number) if number.is_integer() else None


def _cell(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return how a finding names a row of the points."""
    return {"series": str(row["series"]), "workers": _whole(row["workers"]), "nodes": _whole(row["nodes"])}


def _runs_of(study: Study, row: Mapping[Any, Any], *, finished: bool = False) -> tuple[str, ...]:
    runs = study.runs
    mine = runs["series"] == row["series"]
    for name in ("workers", "nodes", "batch", "train_samples"):
        known = runs[name].astype(float)
        wanted = float(row[name])
        mine &= known.isna() if math.isnan(wanted) else known == wanted
    if finished:
        mine &= measured(runs)
    return tuple(runs.loc[mine, "run"])


def _unclosed(study: Study) -> Iterable[Fault]:
    """Yield the runs whose laps do not add up."""
    for run in study.accounting.runs:
        if run.state == "done" and run.open_rank is not None:
            yield _fault("steps-do-not-tile", open_words(run), where="accounting.csv", column="gap_s", runs=(run.run,))


def _points(study: Study) -> Iterable[Fault]:
    """Yield what the points say of themselves: missing, mixed, few repeats, no baseline."""
    baseline = study.analysis.provenance["baseline"]
    for row in study.analysis.points.to_dict("records"):
        cell = _cell(row)
        if row["missing"]:
            text = f"no run gave a result: {row['reasons'] or 'no run was made'}"
            yield _fault("missing-cell", text, runs=_runs_of(study, row), **cell)
            continue
        runs = _runs_of(study, row, finished=True)
        if row["mode"] == "mixed":
            text = "both the local and the global batch change with the workers"
            yield _fault("mixed-scaling", text, runs=runs, **cell)
        if row["repeats"] < MIN_REPEATS:
            told = f", {row['failed']:.0f} failed" if row["failed"] else ""
            text = f"{row['repeats']:.0f} of at least {MIN_REPEATS} repeats finished{told}"
            yield _fault("few-repeats", text, runs=runs, **cell)
        elif not math.isfinite(row["samples_per_s_ci95_low"]):
            text = "three or more repeats and no interval"
            yield _fault("intervals-missing", text, runs=runs, **cell)
        if row.get("turns_shared") == 1:  # NaN where no rounds are known
            text = f"other programs used more than {OTHER_LOAD:g} cores in most of its rounds"
            yield _fault("other-load", text, runs=runs, **cell)
        base = row[f"base_{baseline}_samples_per_s"]
        if row["backend"] != "serial" and row["mode"] != "mixed" and not math.isfinite(base):
            text = f"no {baseline} baseline: one worker with batch {row['ref_batch']:.0f} on {row['partition']}"
            yield _fault("missing-baseline", text, column=f"speedup_{baseline}", runs=runs, **cell)


def _holes(study: Study) -> Iterable[Fault]:
    """Yield the worker counts that a series lacks between two of its own and that another one of its plot has, and the
    cells that were planned and never finished."""
    points = study.analysis.points
    parallel = points[points["backend"] != "serial"]
    for _, rows in parallel.groupby(["partition", "setting"], sort=False):
        counts = set(rows["workers"])
        for series, own in rows.groupby("series", sort=False):
            have = set(own["workers"])
            for count in sorted(counts - have):
                if min(have) < count < max(have):
                    text = f"other series have a point of {worker_counts([count])}, and this one has none"
                    yield _fault("missing-cell", text, series=str(series), workers=_whole(count))
    there = {name.rpartition("/")[2] for name in study.runs["run"]}
    yield from (
        _fault("missing-cell", "the cell was planned and has no run", runs=(name,))
        for name in study.planned
        if name not in there
    )


def _repeats(study: Study) -> Iterable[Fault]:
    """Yield cells whose repeats are not numbered through, and finished runs that were replaced by another one."""
    for row in study.analysis.points.to_dict("records"):
        names = _runs_of(study, row)
        own = study.runs[study.runs["run"].isin(names)]
        numbers = {int(each) for each in own["repeat"].dropna()}
        gaps = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
        if gaps:
            gone = listed([str(each) for each in gaps[:8]])
            text = f"repeat {gone} of {max(numbers) + 1} not there: the others may have been chosen"
            yield _fault("repeat-missing", text, runs=names, **_cell(row))
    for name, record in study.set_aside.items():
        twin = next((run for run, each in study.records.items() if each.key == record.key), None)
        if twin is not None:
            speed = record.totals.get("samples_per_s")
            text = f"{name} finished with {_told(speed)} samples/s and does not count"
            yield _fault("run-set-aside", text, runs=(twin,))


_KIND = ("cpu_model", "cores", "device")
_DATA = ("dataset_digest", "test_samples")


def _baselines(study: Study) -> Iterable[Fault]:
    """Yield points whose one-worker runs had other data or another kind of machine, and plots with two baselines."""
    points: list[Any] = study.analysis.points.to_dict("records")
    kind = study.analysis.provenance["baseline"]
    bases: dict[tuple[str, str], dict[int, list[int]]] = {}
    for place, row in enumerate(points):
        base = None if row["missing"] or row["mode"] == "mixed" else baseline_place(points, row, kind)
        if base is None or base == place:
            continue
        if row["backend"] != "serial" and kind == "plain":
            plot = bases.setdefault((str(row["partition"]), str(row["setting"])), {})
            plot.setdefault(base, []).append(place)
        ours, theirs = (_runs_of(study, points[each], finished=True) for each in (place, base))
        for name in (*_DATA, *_KIND):
            here, there = (_values(study, runs, name) for runs in (ours, theirs))
            if here and there and here.isdisjoint(there):
                text = f"{name} is {_several(here)}, and {_several(there)} in its baseline ({points[base]['series']})"
                yield _fault("unequal-baselines", text, column=f"speedup_{kind}", runs=(*ours, *theirs), **_cell(row))
                break
    for (_, setting), found in bases.items():
        if len(found) > 1:
            usual = max(found, key=lambda base: len(found[base]))
            for base, places in found.items():
                others = f"that of the other series of {setting} is {points[usual]['series']}"
                text = f"its baseline is {points[base]['series']}, {others}"
                for row in (points[place] for place in places if base != usual):
                    runs, column = _runs_of(study, row, finished=True), f"base_{kind}_samples_per_s"
                    yield _fault("unequal-baselines", text, column=column, runs=runs, **_cell(row))


def _values(study: Study, runs: Sequence[str], name: str) -> set[str]:
    """Return what the records of runs say of one thing, as texts; what is not known is left out."""
    found = set()
    for run in runs:
        record = study.records[run]
        value = record.effective.get(name, record.environment.get(name))
        if value not in (None, ""):
            found.add(f"{value}")
    return found


def _several(values: set[str]) -> str:
    return " and ".join(sorted(values))


def _twins(study: Study) -> Iterable[Fault]:
    """Yield runs whose steps took the very same times, to the last bit: nothing ever takes the same time twice."""
    first: dict[tuple[str, int], str] = {}
    for each in study.recounts:
        other = first.setdefault((each.digest, each.rows), each.run)
        if each.digest and each.rows > 1 and other != each.run:
            text = f"the step times of {each.run} are those of {other}, to the last digit"
            yield _fault("duplicated-run", text, runs=(each.run, other))


def _alike(study: Study) -> Iterable[Fault]:
    """Yield runs whose steps change in the very order of another one's, each by its factor: a scaled copy."""
    lengths: dict[int, list[Recount]] = {}
    for each in study.recounts:
        if len(each.sketch) > _MIN_SKETCH and (each.sketch > 0).all() and each.digest:
            lengths.setdefault(len(each.sketch), []).append(each)
    for runs in lengths.values():
        ranks = pd.DataFrame(np.diff(np.log([each.sketch for each in runs]), axis=1)).rank(axis=1).to_numpy()
        ranks = ranks - ranks.mean(axis=1, keepdims=True)
        size = np.sqrt((ranks**2).sum(axis=1, keepdims=True))
        alike = (ranks / np.where(size > 0, size, 1)) @ (ranks / np.where(size > 0, size, 1)).T
        for a, b in np.argwhere(np.triu(alike > _SAME_ORDER, 1)):
            one, other = runs[a], runs[b]
            if one.digest != other.digest:
                factor = float(np.median(other.sketch / one.sketch))
                text = f"the step times of {other.run} are those of {one.run}, times {factor:.6g}"
                yield _fault("duplicated-run", text, runs=(other.run, one.run))


_REPEATED = (
    *("parameters", "steps_per_epoch", "optimizer", "lr"),
    *(name for name in _LIKE if name in named(OPTIONS, Role.RATE, Role.WINDOW)),
)
_PLACES = ("horovod_path", "mpi_library")


def _unlike_repeats(study: Study) -> Iterable[Fault]:
    """Yield runs that were asked for with the same words as others and ran with something else; and those whose
    parameters began elsewhere than those of another run of their seed."""
    done = set(study.runs.loc[measured(study.runs), "run"])
    asked: dict[tuple[str, str], dict[str, str]] = {}
    for name, record in study.records.items():
        if name not in done:
            continue
        ran, wanted = record.effective, dict(record.requested)
        seed = wanted.pop("seed", None)
        wanted.pop("repeat", None)
        words = json.dumps([wanted, ran.get("workers"), ran.get("nodes")], sort_keys=True, default=str)
        settings = ((name, each) for name, each in (ran.get("settings") or {}).items() if name not in _PLACES)
        told = {f"settings.{setting}": f"{each.get('value')}" for setting, each in settings}
        told |= {column: f"{ran[column]}" for column in _REPEATED if ran.get(column) is not None}
        for column, text in told.items():
            asked.setdefault((column, words), {})[name] = text
        begin = ran.get("initial_parameter_sha256")
        if begin and ran.get("model") is None and seed is not None:
            shape = " ".join(f"{ran.get(each)}" for each in named(OPTIONS, Role.MODEL))
            of = f"{seed} {shape} {ran.get('parameters')} {record.environment.get('torch')}"
            asked.setdefault(("initial_parameter_sha256", of), {})[name] = f"{begin}"
    for (column, _), values in asked.items():
        usual, odd = _odd_ones(values)
        if odd:
            one, most = next(iter(odd.values())), len(values) - len(odd)
            text = f"{column} is {one}, and {usual} in {most} of the runs that were asked for alike"
            yield _fault("logged-unlike-applied", text, column=column, runs=tuple(odd))


def _odd_ones(values: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Return the most frequent text of runs, of several the first by the alphabet, and the runs that have another."""
    counts = Counter(values.values())
    usual = min(counts, key=lambda value: (-counts[value], value), default=None)
    return usual, {run: value for run, value in values.items() if value != usual}


def _machines(study: Study) -> Iterable[Fault]:
    """Yield series whose finished runs come from different machines or versions."""
    good = study.runs[measured(study.runs)]
    for series, rows in good.groupby("series", sort=False):
        for name in (*ENVIRONMENT, "device"):
            if name not in rows.columns:
                continue
            known = rows[rows[name].notna() & (rows[name].astype(str) != "")]
            usual, odd = _odd_ones(dict(zip(known["run"], known[name].astype(str), strict=True)))
            if odd:
                text = f"{name} is {usual} in most runs, and {_several(set(odd.values()))} in {len(odd)}"
                yield _fault("versions-differ", text, series=str(series), column=name, runs=tuple(odd))


def _data_sets(study: Study) -> Iterable[Fault]:
    """Yield series whose runs were trained on different data, and runs whose epochs are not equally long."""
    good = study.runs[measured(study.runs)]
    for series, rows in good.groupby("series", sort=False):
        digests = {run: _values(study, [run], "dataset_digest") for run in rows["run"]}
        usual, odd = _odd_ones({run: _several(values) for run, values in digests.items() if values})
        if odd:
            text = f"the data set of most runs is {usual}, of {len(odd)} it is {_several(set(odd.values()))}"
            place = {"where": "runs.csv", "series": str(series), "column": "train_samples"}
            yield _fault("data-set-changed", text, runs=tuple(odd), **place)
    for each in study.recounts:
        if each.epochs:
            yield _fault("data-set-changed", each.epochs, where="evaluations.csv", column="steps", runs=(each.run,))


def _warm_up(study: Study) -> Iterable[Fault]:
    """Yield points in whose runs the first steps of the window are the slowest.

    The window of each run is cut into B equal parts, and the median step of each is taken. In a steady run each part is
    as likely to be the slowest as any other, so that the first one is with probability 1/B, whatever the distribution
    of the noise and however long its spells are, up to the length of a part. Over R repeats the number k of runs in
    which it is has a binomial tail P(K >= k), multiplied by the number of scales that are tried. A point is told when
    that is at most WARM_UP_ALARM and the first part is slower than the middle one by _WARM_UP_LEVEL in these runs. One
    run alone can never be distinguished from bad luck by this.
    """
    recounts = {each.run: each for each in study.recounts}
    for row in study.analysis.points.to_dict("records"):
        runs = [recounts[name] for name in _runs_of(study, row, finished=True) if name in recounts]
        told = _slow_begin([each.begins for each in runs])
        if told is not None:
            chance, blocks, slow = told
            level = float(np.median([runs[place].begins[blocks][1] for place in slow]))
            text = (
                f"in {len(slow)} of {len(runs)} runs the first {100 / blocks:g} % of the timed steps are the slowest, "
                f"by {100 * level:.0f} %, which fewer than 1 of {1 / max(chance, 1e-6):,.0f} steady points show"
            )
            names = tuple(runs[place].run for place in slow)
            yield _fault("warm-up-in-window", text, runs=names, **_cell(row))


def _slow_begin(runs: Sequence[Mapping[int, tuple[bool, float]]]) -> tuple[float, int, list[int]] | None:
    """Return the chance of what is seen in steady runs, the number of blocks and the places of the runs in which the
    first one is the slowest; None where that is nothing special. `runs`: what `_begins` returns of each."""
    told: tuple[float, int, list[int]] | None = None
    for blocks in _WARM_UP_SCALES:
        slow = [place for place, each in enumerate(runs) if each.get(blocks, (False, 0.0))[0]]
        if not slow or not all(blocks in each for each in runs):
            continue
        chance = len(_WARM_UP_SCALES) * binomial_tail(len(slow), len(runs), 1 / blocks)
        level = min(runs[place][blocks][1] for place in slow)
        if chance <= WARM_UP_ALARM and level >= _WARM_UP_LEVEL and (told is None or chance < told[0]):
            told = (chance, blocks, slow)
    return told


def _extrapolated(analysis: Analysis) -> Iterable[Fault]:
    """Yield rows of the laws that are beyond the measured worker counts without being marked."""
    points = analysis.points[~analysis.points["missing"].astype(bool)]
    ends = points.groupby("series")["workers"].agg(["min", "max"])
    for name, table in (("curves", analysis.curves), ("quantity_curves", analysis.quantity_curves)):
        if table.empty or not {"series", "workers", "extrapolated"} <= set(table.columns):
            continue
        last = table["series"].map(ends["max"]).astype(float)
        bare = table[(table["workers"].astype(float) > last) & ~table["extrapolated"].astype(bool)]
        for row in bare.drop_duplicates("series").to_dict("records"):
            text = f"{row['workers']:g} workers are beyond the measured ones and not marked"
            yield _fault("extrapolation-unmarked", text, where=f"{name}.csv", series=str(row["series"]))


# ------------------------------------------------------------------------------------------------ tables, documents

_KEYS = (
    *("run", "series", "setting", "partition", "workers", "nodes", "batch", "rank", "lap", "law", "kind", "quantity"),
    *("epoch", "target_mse", "repeat", "transport", "bin", "part", "other_series"),
)
_MARKS, _MARKED = ("extrapolated", "kind"), ("true", "forecast", "curve")
_INTERVALS = ("_low", "_high", "_low_s", "_high_s")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of a CSV text; raises csv.Error for what is none."""
    before = csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        return list(csv.reader(io.StringIO(text), strict=True))
    finally:
        csv.field_size_limit(before)


def compare_tables(where: str, kept: str, again: str, tolerance: float = TEXT_TOLERANCE) -> tuple[list[Fault], int]:
    """Compare a table of a study with the one made again, both as CSV text: findings, and how many cells agree.

    A cell is the same where its text is, or where both are numbers that differ by at most the part `tolerance`. Rows
    stand for each other in their order; where there are more or fewer, by what names them.
    """
    if kept == again:
        rows = rows_of(again)
        return [], sum(len(row) for row in rows[1:])
    try:
        tables = [rows_of(text) for text in (kept, again)]
    except csv.Error as error:
        return [_fault("file-missing", f"is not a table ({error})", where=where)], 0
    if not all(tables):
        return ([] if tables[0] == tables[1] else [_fault("file-missing", "is empty", where=where)]), 0
    found = []
    heads = [rows[0] for rows in tables]
    for name in [name for name in heads[1] if name not in heads[0]]:
        found.append(_fault("cell-differs", "the column is not there", where=where, column=name))
    for name in [name for name in heads[0] if name not in heads[1]]:
        found.append(_fault("cell-differs", "is not a column of this table", where=where, column=name))
    shared = [name for name in heads[1] if name in heads[0]]
    old, new = ([dict(zip(rows[0], row, strict=False)) for row in rows[1:]] for rows in tables)
    compared = 0
    for ours, theirs in _paired(old, new):
        if ours is None or theirs is None:
            text = "the row is not there" if ours is None else "no run gives this row"
            found.append(_fault("cell-differs", text, where=where, **_named(ours or theirs or {})))
            continue
        for name in shared:
            one, other = ours.get(name, ""), theirs.get(name, "")
            compared += 1
            if not same_text(one, other, tolerance):
                found.append(_cell_finding(where, theirs, name, one, other, tolerance))
    return found, compared


_Row: TypeAlias = Mapping[str, str]


def _paired(old: Sequence[_Row], new: Sequence[_Row]) -> Iterable[tuple[_Row | None, _Row | None]]:
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    named: dict[tuple[str, ...], list[_Row]] = {}
    for row in old:
        named.setdefault(_key(row), []).append(row)
    for row in new:
        twins = named.get(_key(row))
        yield (twins.pop(0) if twins else None), row
    for rows in named.values():
        for row in rows:
            yield row, None


def _key(row: _Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in _KEYS)


def _named(row: _Row) -> dict[str, Any]:
    """Return how a finding names a row."""
    told = ("run", "series", "workers", "nodes", "setting", "partition")
    return {
        "series": row.get("series", ""),
        "workers": _whole(row.get("workers", "")),
        "nodes": _whole(row.get("nodes", "")),
        "row": ", ".join(f"{name} {row[name]}" for name in _KEYS if row.get(name) and name not in told),
        "runs": (row["run"],) if row.get("run") else (),
    }


def _cell_finding(where: str, row: _Row, column: str, kept: str, again: str, tolerance: float) -> Fault:
    """Return what is wrong with one cell, under the name of the fault that it looks like."""
    stem = column.removesuffix("_median")
    best = [end for end in ("_max", "_min") if not column.endswith(("_max", "_min")) and f"{stem}{end}" in row]
    name, text = "cell-differs", f"is {kept or 'empty'}; the runs give {again or 'empty'}"
    if kept and any(same_text(kept, row[f"{stem}{end}"], tolerance) for end in best):
        name, text = "best-of-n", f"is {kept}, the best repeat; the median is {again}"
    elif column in _MARKS and again.lower() in _MARKED and kept.lower() not in _MARKED:
        name, text = "extrapolation-unmarked", f"is {kept or 'empty'}; this row is beyond what was measured"
    elif not kept and again and column.endswith((*_INTERVALS, "low", "high")):
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
    return all(
        a == b
        or (not (a.lstrip("+-").isdecimal() and b.lstrip("+-").isdecimal()) and _equal(float(a), float(b), tolerance))
        for a, b in zip(ours, theirs, strict=True)
    )


def compare_documents(where: str, kept: Any, again: Any, tolerance: float = TEXT_TOLERANCE) -> tuple[list[Fault], int]:
    """Compare a JSON document of a study with the one made again: findings, and how many values were compared."""
    found: list[Fault] = []
    compared = 0

    def look(path: str, ours: Any, theirs: Any, series: str) -> None:
        nonlocal compared
        if isinstance(ours, dict) and isinstance(theirs, dict):
            if not isinstance(theirs.get("series"), dict | list):
                series = f"{theirs.get('series') or series}"
            for name in dict.fromkeys([*theirs, *ours]):
                place = f"{path}.{name}" if path else f"{name}"
                if name in ours and name in theirs:
                    look(place, ours[name], theirs[name], series)
                else:
                    text = "is not there" if name in theirs else "is nothing that the runs give"
                    found.append(_fault("cell-differs", text, where=where, column=place, series=series))
        elif isinstance(ours, list) and isinstance(theirs, list):
            for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
                look(f"{path}[{number}]", a, b, series)
            if len(ours) != len(theirs):
                text = f"has {len(ours)} entries; the runs give {len(theirs)}"
                found.append(_fault("cell-differs", text, where=where, column=path, series=series))
        else:
            compared += 1
            if not _agree(ours, theirs, tolerance):
                text = f"is {_short(ours)}; the runs give {_short(theirs)}"
                values = {"kept": _told(ours), "again": _told(theirs)}
                found.append(_fault("cell-differs", text, where=where, column=path, series=series, **values))

    look("", kept, again, "")
    return found, compared


def _short(value: Any) -> str:
    return cut(" ".join(_told(value).split()), 60)
