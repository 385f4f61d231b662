"""Steps that took far longer than their neighbours, on which rank and in which lap, and whether they come regularly.

A step is taken from the end of one synchronisation to the end of the next, which all ranks reach together (the update
of the step before is in it). Its level is the running median of 101 steps; what it exceeds it by is its excess. The
scatter is the median of the positive excesses, scaled to the standard deviation of a normal law: the long side alone,
because step times have a long tail. A pause exceeds 10 scatters and 10 % of the level. Several in a
row are one pause with the time of all, named after the longest.

Regular pauses are looked for among excesses of more than 5 scatters, whose distances are compared in steps and in
seconds: a distance T counts when far more of them than by chance have another one T later, and when they span the run.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps.rank_steps import BEFORE_SYNC, RankSteps

MIN_STEPS = 50
WINDOW = 101
_THRESHOLD, _CANDIDATE = 10.0, 5.0
"""Scatters above the level: of a pause, and of what may be one of several regular ones."""

MOST = 20
"""So many pauses are listed, the longest ones; all are counted."""

_FEWEST_TIMES = 4
_SHORTEST = 10  # steps between regular pauses; what comes more often is no pause
_STEPS_OFF = 1.0
_SECONDS_OFF = (0.02, 0.05, 0.1)  # of the distance; a program that waits for a whole step comes a little late
_MOST_EVENTS = 4000


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
class Period:
    """Pauses that come regularly."""

    unit: str  # steps | seconds: in what they are regular
    every_steps: float
    every_s: float | None
    count: int
    size_s: float  # median
    lap: str  # of most of them
    ranks: tuple[int, ...]  # of most of them
    everywhere: bool
    first_step: int
    chance: float  # of so many equal distances among pauses at random
    reason: str = ""  # an innocent one that is known from the record, in words


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
    periods: tuple[Period, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStatistics:
    """What a run does regularly by itself, as far as its record says so; None where it does not."""

    steps_per_epoch: int | None = None
    checkpoint_every: int | None = None  # steps
    evaluate_every: float | None = None  # epochs
    rows_steps: int | None = None  # the recorder writes its rows after so many steps ...
    rows_s: float | None = None  # ... or seconds, at the next agreement of the ranks
    agree_s: float | None = None  # between two agreements of the ranks on the time and on stopping
    sampler_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Events:
    """E moments at which a step was long, each the first of a row of long steps."""

    place: NDArray[np.int64]  # (E,), of the first step
    peak: NDArray[np.int64]  # (E,), of the longest step
    steps: NDArray[np.int64]  # (E,), in a row
    size_s: Floats  # (E,)

    def __len__(self) -> int:
        return len(self.place)

    def some(self, chosen: Any) -> "_Events":
        return _Events(
            place=self.place[chosen], peak=self.peak[chosen], steps=self.steps[chosen], size_s=self.size_s[chosen]
        )


def find_pauses(rows: RankSteps, typical: StepStatistics | None = None) -> Pauses:
    """Find the pauses of a run, and which of them are regular."""
    total = len(rows.step)
    if total < MIN_STEPS:
        return Pauses(steps=total, why_not=f"{total} steps are recorded; at least {MIN_STEPS} are needed")
    laps = _periods_of_laps(rows)
    length = np.sum(list(laps.values()), axis=0).max(axis=1)  # (S,)
    level = ndimage.median_filter(length, size=min(WINDOW, total - 1 + total % 2), mode="mirror")
    excess = length - level
    above = excess[excess > 0]
    scatter = stats.normal_deviation(above) if len(above) else 0.0
    floor = 0.1 * level  # a smaller excess is no pause
    events = _events(excess, np.maximum(_CANDIDATE * scatter, floor))
    pauses = events.some(excess[events.peak] > np.maximum(_THRESHOLD * scatter, floor)[events.peak])
    listed = [_pause(rows, laps, pauses, index) for index in np.argsort(-pauses.size_s, kind="stable")[:MOST]]
    whole = float(length.sum())
    return Pauses(
        steps=total,
        level_s=float(np.median(length)),
        scatter_s=scatter,
        threshold_s=float(np.median(np.maximum(_THRESHOLD * scatter, floor))),
        count=len(pauses),
        total_s=float(pauses.size_s.sum()),
        share=float(pauses.size_s.sum()) / whole if whole > 0 else 0.0,
        longest=tuple(listed),
        periods=tuple(_regular(rows, laps, events, typical or StepStatistics())),
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


def _number(rows: RankSteps, place: int, lap: str) -> int:
    """Return the number of the step in whose row the pause stands: an update is in that of the step before."""
    return int(rows.step[place]) - int(lap == "update")


def _pause(rows: RankSteps, laps: Mapping[str, Floats], events: _Events, index: int) -> Pause:
    place = int(events.peak[index])
    lap, ranks = _describe(rows, laps, place)
    return Pause(
        step=_number(rows, place, lap),
        at_s=None if rows.begin_s is None else float(rows.begin_s[place]),
        size_s=float(events.size_s[index]),
        steps=int(events.steps[index]),
        lap=lap,
        ranks=ranks,
        everywhere=len(ranks) == len(rows.ranks),
    )


def _regular(rows: RankSteps, laps: Mapping[str, Floats], events: _Events, typical: StepStatistics) -> Sequence[Period]:
    if len(events) > _MOST_EVENTS:
        events = events.some(np.sort(np.argsort(-events.size_s, kind="stable")[:_MOST_EVENTS]))
    found: list[Period] = []
    while len(events) >= _FEWEST_TIMES and len(found) < 3:
        axes = {"steps": rows.step[events.place].astype(np.float64)}
        spans = {"steps": float(rows.step[-1] - rows.step[0] + 1)}
        if rows.begin_s is not None:
            axes["seconds"] = rows.begin_s[events.place]
            spans["seconds"] = float(rows.begin_s[-1] - rows.begin_s[0])
        step_s = float(np.median(rows.step_s))
        tried: list[tuple[str, tuple[float, float, NDArray[np.bool_]]]] = []
        for unit, at in axes.items():
            for off in (0.0,) if unit == "steps" else _SECONDS_OFF:
                one = _best_distance(at, spans[unit], off, least=_STEPS_OFF if unit == "steps" else step_s, unit=unit)
                if one is not None and one[0] <= 1e-3:
                    tried.append((unit, one))
        if not tried:
            break
        unit, best = min(tried, key=lambda each: each[1][0])
        # Where steps are equally long, both fit: steps are exact, seconds must explain more to be believed.
        in_steps = next((one for each, one in tried if each == "steps"), None)
        if in_steps is not None and best[2].sum() <= 1.1 * in_steps[2].sum():
            unit, best = "steps", in_steps
        chance, distance, members = best
        if members.sum() >= _FEWEST_TIMES:
            found.append(_period(rows, laps, events.some(members), unit, distance, chance, typical))
        events = events.some(~members)
    return found


def _best_distance(
    at: Floats, span: float, off: float, *, least: float, unit: str
) -> tuple[float, float, NDArray[np.bool_]] | None:
    """Return of all distances between events the least accidental: its chance, itself, and which events have it.

    If E events lay at random on `span`, one of them would have another at T +- w later with the chance
    q = 1 - exp(-2 w E / span), and the number that do would be binomial. All distances that were looked at count.
    """
    count = len(at)
    gaps = np.concatenate([at[ahead:] - at[:-ahead] for ahead in range(1, min(6, count))])
    shortest = _SHORTEST if unit == "steps" else _SHORTEST * least
    gaps = gaps[(gaps >= shortest) & (gaps <= span / (_FEWEST_TIMES - 1))]
    if len(gaps) < _FEWEST_TIMES - 1:
        return None
    ordered = np.sort(gaps)
    width = np.maximum(least, off * ordered)
    votes = np.searchsorted(ordered, ordered + width, "right") - np.searchsorted(ordered, ordered - width, "left")
    tried: list[float] = []
    for index in np.argsort(-votes, kind="stable"):
        near = ordered[np.abs(ordered - ordered[index]) <= width[index]]
        distance = float(np.median(near))
        if all(abs(distance - other) > max(least, off * other) for other in tried):
            tried.append(distance)
        if len(tried) == 16:
            break
    best: tuple[float, float, NDArray[np.bool_]] | None = None
    for distance in tried:
        allowed = max(least, off * distance)
        after = np.searchsorted(at, at + distance - allowed, "left")
        upto = np.searchsorted(at, at + distance + allowed, "right")
        has = upto > after
        hits = int(has.sum())
        room = span / distance - 1
        if hits < _FEWEST_TIMES - 1 or hits < 0.6 * room:
            continue
        q = 1 - math.exp(-(2 * allowed + (1 if unit == "steps" else 0)) * count / span)
        chance = min(1.0, stats.binomial_tail(hits, count, q) * len(gaps))
        if best is None or chance < best[0]:
            members = has.copy()
            for first, last in zip(after[has], upto[has], strict=True):
                members[first:last] = True
            best = (chance, distance, members)
    return best


def _period(
    rows: RankSteps,
    laps: Mapping[str, Floats],
    events: _Events,
    unit: str,
    distance: float,
    chance: float,
    typical: StepStatistics,
) -> Period:
    described = [_describe(rows, laps, int(place)) for place in events.peak[:200]]
    lap, ranks = Counter(described).most_common(1)[0][0]
    at = rows.step[events.place]
    between = np.diff(at)
    usual = distance if unit == "steps" else float(np.median(between))
    every_s = None
    if unit == "seconds":
        every_s = distance
    elif rows.begin_s is not None:
        near = np.abs(between - distance) <= _STEPS_OFF
        gaps_s = np.diff(rows.begin_s[events.place])
        every_s = float(np.median(gaps_s[near])) if near.any() else float(distance * np.median(rows.step_s))
    return Period(
        unit=unit,
        every_steps=usual,
        every_s=every_s,
        count=len(events),
        size_s=float(np.median(events.size_s)),
        lap=lap,
        ranks=ranks,
        everywhere=len(ranks) == len(rows.ranks),
        first_step=_number(rows, int(events.place[0]), lap),
        chance=chance,
        reason=_reason(rows, events, unit, usual, every_s, lap, typical),
    )


def _reason(
    rows: RankSteps,
    events: _Events,
    unit: str,
    steps: float,
    seconds: float | None,
    lap: str,
    typical: StepStatistics,
) -> str:
    """Return what the run does as often by itself, in words; empty where nothing in its record comes as often."""

    def every(count: float | None) -> bool:
        return count is not None and unit == "steps" and abs(steps - count) <= _STEPS_OFF

    def each(interval: float | None, late: float) -> bool:
        if interval is None or seconds is None or interval <= 0:
            return False
        return 0.97 * interval <= seconds <= (1 + late) * interval + float(np.median(rows.step_s))

    per_epoch = typical.steps_per_epoch
    begins = (~rows.follows[events.place]).mean() > 0.5
    for count, first, otherwise in (
        (per_epoch, "the first step of each epoch: the order of the data is drawn again", "as often as an epoch"),
        (typical.checkpoint_every, "the first step after each checkpoint", "as often as a checkpoint"),
        ((typical.evaluate_every or 0) * (per_epoch or 0) or None, "the first step after each evaluation", ""),
    ):
        if every(count) and (begins or otherwise):
            return first if begins else otherwise
    late = 0.0 if not typical.rows_s or not typical.agree_s else typical.agree_s / typical.rows_s
    agree_steps = (typical.agree_s or 0.0) / float(np.median(rows.step_s))
    after_rows = typical.rows_steps is not None and typical.rows_steps <= steps <= typical.rows_steps + agree_steps + 1
    if lap in ("residual", "step") and (after_rows or each(typical.rows_s, late + 0.05)):
        return f"as often as the recorder writes its rows (after {typical.rows_steps:,} steps or {typical.rows_s:g} s)"
    if lap in ("residual", "step") and each(typical.agree_s, 0.2):
        return f"as often as the ranks agree on the time (about every {typical.agree_s:g} s)"
    if each(typical.sampler_s, 0.1):
        return f"as often as the system sampler looks (every {typical.sampler_s:g} s)"
    return ""
