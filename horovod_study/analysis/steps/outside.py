"""Time that no mean of parts shows: between the steps of the timed window, and in a few steps that take far longer."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis.stats import Floats

FAR = 10.0  # a step that takes more than so many times the median one has stalled
_ROUNDED_S = 1e-6  # what sums of stamps are off by
_MOST = 0.9  # the longest gaps that make up so much of the time say where it is
_RARE = 1 / 3  # more steps than that are no stalls: a run of two kinds of steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """Time from the first step of the window on that is in no step, of the first rank; with what is behind the last."""

    seconds: float
    share: float  # of the time of steps and of what is outside of them
    gaps: int  # the longest, with most of it
    gap_s: float  # mean of these
    where: str  # after each epoch | every 8 steps | ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalls:
    """Steps that took more than FAR times the median one: what is above it, as a mean over all steps and ranks."""

    count: int
    of: int  # steps
    mean_s: float  # in the mean step
    longest_s: float
    lap: str  # that most of it is in, of the rank that lost it itself; sync where no rank did; several
    opening: bool  # whether most of them open an epoch


def outside_of(
    step: NDArray[np.int64],
    epoch: Floats,
    begin_s: Floats,
    step_s: Floats,
    residual_s: Floats,
    *,
    waits: Collection[int] = (),
    after_s: float = 0.0,
) -> Outside | None:
    """Return what is between timed steps, (S,) each, and `after_s` behind the last; None where it is not known.

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
    return Outside(
        seconds=seconds,
        share=seconds / (seconds + float(step_s.sum())) if seconds else 0.0,
        gaps=most,
        gap_s=float(gaps[longest].mean()),
        where=where,
    )


def stalls_of(step_s: Floats, column: Callable[[str], Floats], laps: Sequence[str]) -> Stalls | None:
    """Return the stalls of one rank with step times `step_s`, (S,); None without any.

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
    return Stalls(
        count=len(places),
        of=len(step_s),
        mean_s=excess / len(step_s),
        longest_s=float(step_s[places].max()),
        lap=cause.removesuffix("_s"),
        opening=bool(first[places].mean() > 1 / 2),
    )


def stalls_over(ranks: Sequence[Stalls | None]) -> Stalls | None:
    """Return the stalls of a run: means over its ranks, and the lap of the rank that lost the time itself."""
    found = [each for each in ranks if each is not None]
    told = next((each for each in found if each.lap != "sync"), found[0] if found else None)
    if told is None:
        return None
    most = {name: max(getattr(each, name) for each in found) for name in ("count", "of", "longest_s")}
    return replace(told, mean_s=sum(each.mean_s for each in found) / len(ranks), **most)


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
