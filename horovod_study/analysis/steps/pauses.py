"""Steps that took far longer than their neighbours: on which rank, in which lap, and after how many steps again.

A step is taken from the end of one synchronisation to the end of the next, which all ranks reach together (the update
of the step before is in it). Its level is the running median of 101 steps; what it exceeds it by is its excess. The
scatter is the median of the positive excesses, scaled to the standard deviation of a normal law: the long side alone,
because step times have a long tail. A pause exceeds 10 scatters and 10 % of the level. Several in a
row are one pause with the time of all, named after the longest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps.rank_steps import BEFORE_SYNC, RankSteps

MIN_STEPS = 50
WINDOW = 101
_THRESHOLD = 10.0  # scatters above the level

MOST = 20  # so many pauses are listed, the longest ones; all are counted

_FEWEST_TIMES, _SHORTEST, _REGULAR = 4, 10, 0.6
"""Pauses are regular where so many are at least so many steps apart, and such a share of their distances is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """One pause. `step` is the number of the step in whose lap it is, as in the rows."""

    step: int
    at_s: float | None  # begin of the step, see records.step_schema
    size_s: float  # above the level
    steps: int  # in a row
    lap: str  # that took most of it
    ranks: tuple[int, ...]  # that were paused; the others waited for them
    everywhere: bool  # on all ranks at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """What was found in S steps, in s."""

    steps: int
    why_not: str = ""  # why nothing could be looked for, in words
    level_s: float = math.nan  # median of a step
    scatter_s: float = math.nan
    threshold_s: float = math.nan  # above the local level; the median of it
    total_s: float = 0.0  # of all pauses
    share: float = 0.0  # of the time of all steps
    count: int = 0
    longest: tuple[Pause, ...] = ()  # at most MOST, the longest first
    every_steps: int | None = None  # None where they are not regular


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Events:
    """E moments at which a step was long, each the first of a row of long steps."""

    place: NDArray[np.int64]  # (E,), of the first step
    peak: NDArray[np.int64]  # (E,), of the longest step
    steps: NDArray[np.int64]  # (E,), in a row
    size_s: Floats  # (E,)


def find_pauses(rows: RankSteps) -> Pauses:
    """Find the pauses of a run, and whether they are regular."""
    total = len(rows.step)
    if total < MIN_STEPS:
        return Pauses(steps=total, why_not=f"{total} steps are recorded; at least {MIN_STEPS} are needed")
    laps = _periods_of_laps(rows)
    length = np.sum(list(laps.values()), axis=0).max(axis=1)  # (S,)
    level = ndimage.median_filter(length, size=min(WINDOW, total - 1 + total % 2), mode="mirror")
    excess = length - level
    above = excess[excess > 0]
    scatter = stats.normal_deviation(above) if len(above) else 0.0
    threshold = np.maximum(_THRESHOLD * scatter, 0.1 * level)
    pauses = _events(excess, threshold)
    listed = [_pause(rows, laps, pauses, index) for index in np.argsort(-pauses.size_s, kind="stable")[:MOST]]
    whole = float(length.sum())
    apart = np.diff(rows.step[pauses.place])
    usual = float(np.median(apart)) if len(pauses.place) >= _FEWEST_TIMES else 0.0
    regular = usual >= _SHORTEST and (np.abs(apart - usual) <= 1).mean() >= _REGULAR
    return Pauses(
        steps=total,
        level_s=float(np.median(length)),
        scatter_s=scatter,
        threshold_s=float(np.median(threshold)),
        count=len(pauses.size_s),
        total_s=float(pauses.size_s.sum()),
        share=float(pauses.size_s.sum()) / whole if whole > 0 else 0.0,
        longest=tuple(listed),
        every_steps=round(usual) if regular else None,
    )


def _periods_of_laps(rows: RankSteps) -> dict[str, Floats]:
    """Return the known laps from the end of one synchronisation to the end of the next, lap -> (S, R).

    The update is that of the step before; there is none at the first step of a stretch. Where no lap is known, the
    whole step is called `step`.
    """
    laps = {lap: rows.laps[lap] for lap in (*BEFORE_SYNC, "sync") if lap in rows.laps}
    if "residual" not in laps:
        return {"step": rows.step_s}
    if "update" in laps:
        before = np.concatenate([laps["update"][:1], laps["update"][:-1]])
        laps["update"] = np.where(rows.follows[:, np.newaxis], before, 0.0)
    return laps


def _events(excess: Floats, threshold: Floats) -> _Events:
    over = excess > threshold
    number, count = ndimage.label(over)
    each = np.arange(1, count + 1)
    first = np.flatnonzero(over & ~np.concatenate([[False], over[:-1]]))
    peaks = np.array([place for (place,) in ndimage.maximum_position(excess, number, each)], dtype=np.int64)
    return _Events(
        place=first,
        peak=peaks,
        steps=np.asarray(ndimage.sum_labels(over, number, each), dtype=np.int64),
        size_s=np.asarray(ndimage.sum_labels(excess, number, each), dtype=np.float64),
    )


def _describe(rows: RankSteps, laps: Mapping[str, Floats], place: int) -> tuple[str, tuple[int, ...]]:
    """Return the lap that took most of a pause, and the ranks that were paused in it rather than waiting for others."""
    begin, end = max(0, place - WINDOW // 2), place + WINDOW // 2 + 1
    excess = {lap: values[place] - np.median(values[begin:end], axis=0) for lap, values in laps.items()}  # (R,) each
    own = {lap: value for lap, value in excess.items() if lap != "sync"}
    if rows.workers > 1 and rows.sync_s is None:
        told = [lap for lap in rows.own_laps() if lap in own]
        elsewhere = {lap: value for lap, value in own.items() if lap not in told}
        own = {lap: own[lap] for lap in told}
    else:
        elsewhere = {"sync": excess["sync"]} if "sync" in excess else {}
    whole = np.sum(list(excess.values()), axis=0)  # (R,)
    mine = np.sum(list(own.values()), axis=0) if own else np.zeros_like(whole)
    paused = np.flatnonzero(mine > 0.5 * float(whole.max()))
    if len(paused):
        lap = max(own, key=lambda each: float(own[each][paused].mean()))
        return lap, tuple(rows.ranks[each] for each in paused)
    # Nobody was late: the synchronisation itself took long, or what holds it.
    lap = max(elsewhere or own, key=lambda each: float({**own, **elsewhere}[each].mean()))
    return lap, rows.ranks


def _pause(rows: RankSteps, laps: Mapping[str, Floats], events: _Events, index: int) -> Pause:
    place = int(events.peak[index])
    lap, ranks = _describe(rows, laps, place)
    return Pause(
        step=int(rows.step[place]) - int(lap == "update"),  # which is in the row of the step before
        at_s=None if rows.begin_s is None else float(rows.begin_s[place]),
        size_s=float(events.size_s[index]),
        steps=int(events.steps[index]),
        lap=lap,
        ranks=ranks,
        everywhere=len(ranks) == len(rows.ranks),
    )
