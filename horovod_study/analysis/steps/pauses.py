"""Steps that took far longer than their neighbours: on which rank, in which lap, and after how many steps again.

A step is taken from the end of one synchronisation to the end of the next, which all ranks reach together. What exceeds
the running median of 101 steps is its excess; the scatter is the median of the positive excesses, scaled to the
standard deviation of a normal law. A pause exceeds 10 scatters and 10 % of the level. Several in a row are one pause
with the time of all, named after the longest. Beside them, time that no mean of parts shows: between the steps of the
timed window, and in stalls, a few steps that take far longer than the median one.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps.rank_steps import BEFORE_SYNC, RankSteps

MIN_STEPS, WINDOW = 50, 101
_THRESHOLD = 10.0  # scatters above the level
MOST = 20  # so many pauses are listed, the longest ones; all are counted
_FEWEST_TIMES, _SHORTEST, _REGULAR = 4, 10, 0.6  # so many, so many steps apart, such a share of one distance


class Pauses(SimpleNamespace):
    """What was found in S steps; its attributes are the keys of its document. Times in s, NaN: unknown.

    steps; why_not: why nothing could be looked for. level_s: median of a step; scatter_s; threshold_s: above the local
    level, the median of it. total_s, count: of all pauses; share: of the time of all steps. every_steps: None where
    they are not regular. longest: at most MOST, the longest first, each with its step (in whose lap it is, as in the
    rows), at_s (begin of the step, see records.step_schema), size_s above the level, steps in a row, the lap that took
    most of it, the ranks that were paused (the others waited for them), and whether that was everywhere.
    """


def find_pauses(rows: RankSteps) -> Pauses:
    """Find the pauses of a run, and whether they are regular."""
    total = len(rows.step)
    found = Pauses(steps=total, why_not="", level_s=math.nan, scatter_s=math.nan, threshold_s=math.nan, total_s=0.0)
    vars(found).update(share=0.0, count=0, longest=(), every_steps=None)
    if total < MIN_STEPS:
        found.why_not = f"{total} steps are recorded; at least {MIN_STEPS} are needed"
        return found
    # From the end of one synchronisation to the end of the next, (S, R): the update is that of the step before, and
    # there is none at the first step of a stretch. Where no lap is known, the whole step is called `step`.
    laps = {lap: rows.laps[lap] for lap in (*BEFORE_SYNC, "sync") if lap in rows.laps}
    if "residual" not in laps:
        laps = {"step": rows.step_s}
    elif "update" in laps:
        before = np.concatenate([laps["update"][:1], laps["update"][:-1]])
        laps["update"] = np.where(rows.follows[:, np.newaxis], before, 0.0)
    length = np.sum(list(laps.values()), axis=0).max(axis=1)  # (S,)
    level = ndimage.median_filter(length, size=min(WINDOW, total - 1 + total % 2), mode="mirror")
    excess = length - level
    above = excess[excess > 0]
    scatter = stats.normal_deviation(above) if len(above) else 0.0
    threshold = np.maximum(_THRESHOLD * scatter, 0.1 * level)
    over = excess > threshold
    number, count = ndimage.label(over)  # of the row of long steps that each step is in
    each = np.arange(1, count + 1)
    first = np.flatnonzero(over & ~np.concatenate([[False], over[:-1]]))
    size_s = np.asarray(ndimage.sum_labels(excess, number, each), dtype=np.float64)
    peaks, lengths = ndimage.maximum_position(excess, number, each), ndimage.sum_labels(over, number, each)
    for event in np.argsort(-size_s, kind="stable")[:MOST]:
        pause = _pause(rows, laps, int(peaks[event][0]))
        pause.size_s, pause.steps = float(size_s[event]), int(lengths[event])
        found.longest += (pause,)
    apart = np.diff(rows.step[first])
    usual = float(np.median(apart)) if count >= _FEWEST_TIMES else 0.0
    if usual >= _SHORTEST and (np.abs(apart - usual) <= 1).mean() >= _REGULAR:
        found.every_steps = round(usual)
    found.level_s, found.scatter_s, found.threshold_s = float(np.median(length)), scatter, float(np.median(threshold))
    found.count, found.total_s = count, float(size_s.sum())
    found.share = found.total_s / float(length.sum()) if length.sum() > 0 else 0.0
    return found


def _pause(rows: RankSteps, laps: Mapping[str, Floats], place: int) -> SimpleNamespace:
    """Return the pause whose longest step is at a place: the lap that took most of it, and the ranks that were paused
    in it rather than waiting for others."""
    begin, end = max(0, place - WINDOW // 2), place + WINDOW // 2 + 1
    excess = {lap: values[place] - np.median(values[begin:end], axis=0) for lap, values in laps.items()}  # (R,) each
    told = rows.told_laps() if rows.workers > 1 and rows.sync_s is None else [lap for lap in laps if lap != "sync"]
    own = {lap: value for lap, value in excess.items() if lap in told}
    whole = np.sum(list(excess.values()), axis=0)  # (R,)
    mine = np.sum(list(own.values()), axis=0) if own else np.zeros_like(whole)
    paused = np.flatnonzero(mine > 0.5 * float(whole.max()))
    if len(paused):
        lap = max(own, key=lambda each: float(own[each][paused].mean()))
    else:  # nobody was late: the synchronisation itself took long, or what holds it
        paused = np.arange(len(rows.ranks))
        lap = max([each for each in excess if each not in own] or own, key=lambda each: float(excess[each].mean()))
    return SimpleNamespace(
        step=int(rows.step[place]) - int(lap == "update"),  # which is in the row of the step before
        at_s=float(rows.columns(rows.ranks[0])("begin_s")[place]) if "begin_s" in rows.known else None,
        size_s=math.nan,
        steps=0,
        lap=lap,
        ranks=tuple(rows.ranks[each] for each in paused),
        everywhere=len(paused) == len(rows.ranks),
    )


# ------------------------------------------------------------ between the steps, and in some that take far longer

FAR = 10.0  # a step that takes more than so many times the median one has stalled
_ROUNDED_S = 1e-6  # what sums of stamps are off by
_MOST = 0.9  # the longest gaps that make up so much of the time say where it is
_RARE = 1 / 3  # more steps than that are no stalls: a run of two kinds of steps


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
    seconds = float(gaps.sum())
    seconds = seconds if seconds > _ROUNDED_S else 0.0
    order = np.argsort(-gaps, kind="stable")
    most = int(np.searchsorted(np.cumsum(gaps[order]), _MOST * seconds)) + 1
    longest = np.sort(order[:most])  # places before them
    apart = np.diff(step[longest])
    usual, where = float(np.median(apart)) if len(apart) else 0.0, ""
    if (np.append(np.diff(epoch), 1)[longest] != 0).mean() >= _MOST:
        where = "after each epoch"
    elif len(apart) > 1 and usual > 1 and (np.abs(apart - usual) <= 1).mean() >= _MOST:
        where = f"every {usual:.0f} steps"
    return SimpleNamespace(
        seconds=seconds,
        share=seconds / (seconds + float(step_s.sum())) if seconds else 0.0,
        gaps=most,
        gap_s=float(gaps[longest].mean()),
        where=where,
    )


def stalls_of(step_s: Floats, column: Callable[[str], Floats], laps: Sequence[str]) -> SimpleNamespace | None:
    """Return the stalls of one rank with step times `step_s`, (S,): steps of more than FAR times the median; None
    without any.

    count, of how many steps; mean_s: what is above the median step, as a mean over all steps; longest_s; lap: that most
    of it is in, sync where no rank lost it itself, several; opening: whether most of them open an epoch.

    `column` returns another of the same rows, which are needed where there are stalls only; `laps`: those to look at.
    """
    usual = float(np.median(step_s)) if len(step_s) else math.nan
    places = np.flatnonzero(step_s > FAR * usual) if usual > 0 else np.empty(0, dtype=np.int64)
    if not 0 < len(places) <= _RARE * len(step_s):
        return None
    own = {name: float((values[places] - np.median(values)).sum()) for name in laps if len(values := column(name))}
    excess = float((step_s[places] - usual).sum())
    worst = max((name for name in own if name != "sync_s"), key=lambda name: own[name], default="sync_s")
    epoch = column("epoch")
    first = np.diff(epoch, prepend=epoch[:1] - 1) != 0
    cause = next((name for name in (worst, "sync_s") if own.get(name, 0.0) >= excess / 2), "several")
    return SimpleNamespace(
        count=len(places),
        of=len(step_s),
        mean_s=excess / len(step_s),
        longest_s=float(step_s[places].max()),
        lap=cause.removesuffix("_s"),
        opening=bool(first[places].mean() > 1 / 2),
    )


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
