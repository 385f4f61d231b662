"""From which step on a run is steady, found in its step times.

The first steps of a run are slower than the others, or faster: memory is touched for the first time, libraries choose
their algorithms, connections are opened, a processor is still cool. How long that lasts differs between machines, and a
number of steps chosen beforehand is a guess. Here the end of it is looked for in the run itself, by change-point
detection on the level of the step time, as Barrett et al. do for virtual machines (Proc. ACM Program. Lang. 1, OOPSLA
(2017) 52): the run is cut into segments of one level each, and the segments before the steady one are its warm-up.

How the segments are found. The timed steps are cut into at most BLOCKS blocks of at least BLOCK_STEPS steps, and the
median of each is taken, so that pauses of single steps count for nothing. The logarithms of the medians, y (n,), are
divided into segments such that

    sum over the segments of sum (y - mean of the segment)^2 / sigma^2  +  6 log(n) for each change-point

is smallest. This is optimal partitioning (Jackson et al., IEEE Signal Process. Lett. 12 (2005) 105), exact, by dynamic
programming. sigma is the scatter of the blocks about their neighbours, from the median absolute second difference,
which neither a few outliers nor a few changes of level move. Yao's penalty of 2 log(n) (Statist. Probab. Lett. 6
(1988) 181) is that of independent normal noise. The noise of machines comes in spells, and such a penalty would find
levels in it; the tests simulate that noise, and 6 is chosen to be right about it too.

What is made of them, and why so little is cut, is in docs/steady.md: of the segments that begin in the first third the
steady one is that whose level most blocks are nearest to, and those before it that differ by LEVEL or more are warm-up,
unless a later segment differs as much, in the same direction and for half as long, or the run goes on to drift.

The library ruptures has this partition too (KernelCPD with its linear kernel). It would take the place of the twenty
lines of `segments`, and be one more package for every training; the rules about outliers, noise and what to cut would
be ours all the same.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCKS = 512
BLOCK_STEPS = 5
"""Of at most so many blocks with at least so many steps: 2 of 5 steps may be outliers, and the median stands."""

_FEW_BLOCKS = 12
"""With fewer there is nothing to be found."""

LEVEL = 0.02
"""Levels that differ by less than this part are one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steady:
    """The first step of the timed window, and how it was found."""

    step: int
    declared: int
    found_by: str  # change-point | no change-point | declared
    doubt: str = ""


def declared(step: int, why: str = "") -> Steady:
    """Return the window as it was declared, with the reason why nothing was looked for, if something should have."""
    return Steady(step=step, declared=step, found_by="declared", doubt=why)


def find_steady(step_s: NDArray[np.float64], declared_step: int) -> Steady:
    """Return the step from which the run with step times `step_s`, shape (S,), is steady: `declared_step` or later.

    All steps in order, those before `declared_step` included. Times must be known (no NaN) from there on.
    """
    timed = np.asarray(step_s, dtype=np.float64)[declared_step:]
    length = max(BLOCK_STEPS, -(-len(timed) // BLOCKS))
    count = len(timed) // length
    if not np.isfinite(timed).all():
        return declared(declared_step, "the times of some steps are not known: the window begins where it was declared")
    if count < _FEW_BLOCKS or timed.min() <= 0:
        return declared(
            declared_step,
            f"{len(timed):,} timed steps are too few to find out whether they are steady (at least "
            f"{_FEW_BLOCKS * BLOCK_STEPS}): the window begins where it was declared",
        )
    medians = np.median(timed[: count * length].reshape(count, length), axis=1)  # (n,)
    begins = segments(np.log(medians))
    ends = [*begins[1:], count]
    levels = [float(np.median(medians[a:b])) for a, b in zip(begins, ends, strict=True)]
    steady = _usual_of_the_first(begins, ends, levels, count)
    lengths = [b - a for a, b in zip(begins, ends, strict=True)]
    off = [level / levels[steady] - 1 for level in levels]

    def usual(place: int) -> bool:
        later = range(steady + 1, len(off))
        return any(off[k] / off[place] >= 0.8 and lengths[k] >= lengths[place] / 2 for k in later)

    cut = 0
    while cut < steady and abs(off[cut]) >= LEVEL and not usual(cut):
        cut += 1
    if cut:  # the rest goes on as the begin left off, by half of the change since then: a drift
        rest = np.log(medians[begins[cut] :])
        places = np.arange(len(rest)) - (len(rest) - 1) / 2
        change = float(places @ rest) / float(places @ places) * len(rest)
        cut = 0 if change / -math.log1p(off[0]) >= 0.5 else cut
    first = begins[cut] * length
    # A first step of half a second is one of its block, which does not show it: the very first are looked at singly.
    # of the first 10 steps those from the begin on that take 1.5 times the steady one are warm-up
    slow = timed[first : max(first, 10 - declared_step)] > 1.5 * levels[steady]
    first += len(slow) if slow.all() else int(slow.argmin())
    return Steady(
        step=declared_step + first,
        declared=declared_step,
        found_by="change-point" if first else "no change-point",
        doubt=_doubt(begins[cut:], ends[cut:], levels[cut:], length, declared_step),
    )


def segments(values: NDArray[np.float64]) -> list[int]:
    """Return where the segments of equal level in `values`, shape (n,), begin; the first begins at 0."""
    count = len(values)
    sigma2 = _noise(values) ** 2
    sums = np.concatenate([[0.0], np.cumsum(values - values[0])])
    squares = np.concatenate([[0.0], np.cumsum((values - values[0]) ** 2)])
    penalty = 6.0 * np.log(count) * sigma2
    best = np.empty(count + 1)  # the smallest cost of the first k values
    best[0] = -penalty
    before = np.zeros(count + 1, dtype=np.intp)  # where their last segment begins
    for k in range(1, count + 1):
        begins = np.arange(k)
        costs = squares[k] - squares[:k] - (sums[k] - sums[:k]) ** 2 / (k - begins)
        totals = best[:k] + costs + penalty
        before[k] = int(totals.argmin())
        best[k] = totals[before[k]]
    found, k = [], count
    while k:
        k = int(before[k])
        found.append(k)
    return found[::-1]


def _noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of `values` about their neighbours; not less than the rounding of a clock."""
    bends = values[2:] - 2 * values[1:-1] + values[:-2]  # variance 6 sigma^2 where they are independent
    return max(float(np.median(np.abs(bends))) * 1.4826 / math.sqrt(6.0), 1e-4)


def _usual_of_the_first(begins: list[int], ends: list[int], levels: list[float], count: int) -> int:
    """Return which of the segments that begin in the first third has the level that most blocks of the run are near."""
    # the warm-up may last for a third of the timed steps
    first = [place for place, begin in enumerate(begins) if begin * 3 <= count]
    blocks = dict.fromkeys(first, 0)
    for begin, end, level in zip(begins, ends, levels, strict=True):
        blocks[min(first, key=lambda place: abs(math.log(level / levels[place])))] += end - begin
    return max(first, key=lambda place: blocks[place])


def _doubt(begins: list[int], ends: list[int], levels: list[float], length: int, offset: int) -> str:
    """Return what is to be said of the largest later change of level, or ''; the first segment is the steady one."""
    whole = ends[-1] - begins[0]
    shares = [(end - begin) / whole for begin, end in zip(begins, ends, strict=True)]
    changes = [level / levels[0] - 1 for level in levels]
    # told of if it lasts for 5 % of the window and moves the window's mean by 2 %
    told = [
        place
        for place in range(1, len(begins))
        if shares[place] >= 0.05 and abs(changes[place]) >= LEVEL and shares[place] * abs(changes[place]) >= 0.02
    ]
    if not told:
        return ""
    place = max(told, key=lambda each: shares[each] * abs(changes[each]))
    until = "on" if place == len(begins) - 1 else f"to {offset + ends[place] * length:,}"
    longer = f"{100 * abs(changes[place]):.1f} % {'longer' if changes[place] > 0 else 'less'}"
    longer = longer if changes[place] < 2 else f"{1 + changes[place]:,.0f} times as long"
    return (
        f"the run is not steady: from step {offset + begins[place] * length:,} {until} a step takes "
        f"{longer} ({levels[0] * 1e3:.3g} to {levels[place] * 1e3:.3g} ms); the window holds both"
    )
