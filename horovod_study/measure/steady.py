"""From which step on a run is steady, found in its step times (docs/explain.md has the rules).

The steps of a run are cut into at most BLOCKS blocks of at least BLOCK_STEPS steps, so that single pauses count
for nothing. The logarithms of their medians, y (n,), are divided into segments of one level such that

    sum over the segments of sum (y - mean of the segment)^2 / sigma^2  +  6 log(n) for each change-point

is smallest: optimal partitioning (Jackson et al., IEEE Signal Process. Lett. 12 (2005) 105), exact, by dynamic
programming.
sigma is the scatter of the blocks about their neighbours, from the median absolute second difference, which neither a
few outliers nor a few changes of level move. Yao's penalty of 2 log(n) (Statist. Probab. Lett. 6 (1988) 181) is that of
independent normal noise; that of machines comes in spells, and 6 is right about it too, as the tests simulate.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCKS = 512
BLOCK_STEPS = 5
"""Of at most so many blocks with at least so many steps: 2 of 5 steps may be outliers, and the median stands."""

LEVEL = 0.02  # Levels that differ by less than this part are one


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
    count, least = len(timed) // length, 12  # with fewer blocks there is nothing to be found
    if not np.isfinite(timed).all():
        return declared(declared_step, "the times of some steps are not known: the window begins where it was declared")
    if count < least or timed.min() <= 0:
        why = f"{len(timed):,} timed steps are too few to find out whether they are steady (at least"
        return declared(declared_step, f"{why} {least * BLOCK_STEPS}): the window begins where it was declared")
    medians = np.median(timed[: count * length].reshape(count, length), axis=1)  # (n,)
    begins = segments(np.log(medians))
    ends = [*begins[1:], count]
    levels = [float(np.median(medians[a:b])) for a, b in zip(begins, ends, strict=True)]
    lengths = [b - a for a, b in zip(begins, ends, strict=True)]
    # Of the segments that begin in the first third, that whose level most blocks of the run are near.
    blocks = {place: 0 for place, begin in enumerate(begins) if begin * 3 <= count}
    for blocks_here, level in zip(lengths, levels, strict=True):
        blocks[min(blocks, key=lambda place, level=level: abs(math.log(level / levels[place])))] += blocks_here  # type: ignore[misc]
    steady = max(blocks, key=lambda place: blocks[place])
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
    bends = values[2:] - 2 * values[1:-1] + values[:-2]  # variance 6 sigma^2 where they are independent
    # Not less than the rounding of a clock.
    sigma2 = max(float(np.median(np.abs(bends))) * 1.4826 / math.sqrt(6.0), 1e-4) ** 2
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
