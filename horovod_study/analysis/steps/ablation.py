"""What communication costs, measured by leaving it out: next to the answer of the timer, and where the two differ.

In pair p of blocks (one with communication, one without), with means over the counted steps of a block and over ranks:

    cost by ablation   c[p] = step of the normal block - step of the silent block
    cost by the timer  t[p] = sync lap of the normal block
    difference         d[p] = c[p] - t[p]

Estimates are means over the pairs, with 95 % expanded percentile intervals (Hesterberg, The American Statistician 69,
2015) over resamples of whole pairs, the same for every quantity. docs/ablation.md says how to read it.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.analysis.steps.attribution import BUSY_CORES
from horovod_study.analysis.steps.rank_steps import PARTS
from horovod_study.errors import AnalysisError, RecordError
from horovod_study.records import RecordedRun, read_ablation

RESAMPLES = 4000
MIN_PAIRS = 4  # fewer pairs have no interval to speak of
AGREE, DIFFER, UNRESOLVED, _NO_TIMER = "agree", "differ", "not resolved", "no timer"
_WORDS = {
    AGREE: "they agree, the difference {difference} contains 0",
    UNRESOLVED: "not resolved, the interval of the difference {difference} is wider than the cost itself; measure on a "
    "quieter machine, or a longer run",
    DIFFER: "they differ by {difference}: {where}",
}


class CommunicationCost(SimpleNamespace):
    """What communication costs a step, in s, means over ranks, by leaving it out and by the timer; its attributes are
    the keys of its document.

    workers, reduction, pairs, and steps, the counted ones of a block. verdict: agree, differ, not resolved, no timer;
    sentence: it with its numbers. Intervals: step_s with communication and silent_step_s without it, ablation_s their
    difference; timer_s: the sync lap with communication, None where it is not seen, see why_no_timer; difference_s:
    ablation_s - timer_s; silent_sync_s: what is left of the sync lap without communication, calls that do nothing;
    laps_s: how much longer each of PARTS is with communication, None where not known; ranks_s: the cost by ablation of
    each rank. outside: laps but sync that moved, beyond doubt, the way the difference goes, the largest first. doubts.
    """


def answer_of(run: RecordedRun) -> tuple[CommunicationCost | None, str]:
    """Return what the blocks without communication of a run say, or None with the reason."""
    try:
        return answer(read_ablation(run.directory)), ""
    except RecordError as error:
        return None, str(error).removeprefix(f"{run.directory}/").removeprefix(f"{run.directory}: ")
    except AnalysisError as error:
        return None, str(error).partition(": ")[2]


def answer(found: Mapping[str, Any]) -> CommunicationCost:
    """Return what the blocks of one run say; `found` is what `records.read_ablation` returns.

    Raises AnalysisError for fewer than 4 pairs of blocks.
    """
    workers, pairs = int(found["workers"]), int(found["pairs"])
    laps: dict[str, Floats | None] = dict.fromkeys((*PARTS, "step"))  # (pairs, 2, workers): normal, silent
    blocks = found["blocks"]
    for name in laps:
        if (column := blocks.get(f"{name}_s")) is not None:
            laps[name] = table = np.full((pairs, 2, workers), np.nan)
            places = np.asarray(blocks["pair"]), np.asarray(blocks["silent"], dtype=int), np.asarray(blocks["rank"])
            table[places] = column
    step = laps["step"]
    if pairs < MIN_PAIRS or step is None:
        raise AnalysisError(
            f"ablation: {pairs} pair{'s' * (pairs != 1)} of timed blocks say nothing of their spread, at least "
            f"{MIN_PAIRS} are needed; record a run with more steps"
        )
    sync = None if found["why_no_timer"] else laps["sync"]

    # One column per quantity, one row per pair: what is resampled together stays together.
    columns: dict[str, Floats] = {
        "step": step[:, 0].mean(axis=1),
        "silent step": step[:, 1].mean(axis=1),
        "ablation": (step[:, 0] - step[:, 1]).mean(axis=1),
        **{f"rank {rank}": step[:, 0, rank] - step[:, 1, rank] for rank in range(workers)},
        **{f"lap {name}": (lap[:, 0] - lap[:, 1]).mean(axis=1) for name, lap in laps.items() if lap is not None},
    }
    if sync is not None:
        columns |= {"timer": sync[:, 0].mean(axis=1), "silent sync": sync[:, 1].mean(axis=1)}
        columns["difference"] = columns["ablation"] - columns["timer"]
    found_of = stats.bootstrap_means(np.stack(list(columns.values()), axis=1), np.random.default_rng(1), RESAMPLES)
    estimates = dict(zip(columns, found_of, strict=True))

    difference, cost = estimates.get("difference"), estimates["ablation"]
    grown = {name: estimates.get(f"lap {name}") for name in PARTS}
    # Outside of sync: the laps whose interval is on the side of zero to which the difference goes.
    sign = 1.0 if difference is None or difference.value > 0 else -1.0
    others = {name: each for name, each in grown.items() if name != "sync" and each is not None}
    moved = [name for name, each in others.items() if min(sign * each.low, sign * each.high) > 0]
    outside = tuple(sorted(moved, key=lambda name: -sign * others[name].value))
    verdict = _NO_TIMER
    if difference is not None:
        close = AGREE if difference.width <= cost.value else UNRESOLVED
        verdict = DIFFER if difference.excludes(0) else close
    why = str(found["why_no_timer"]) or ("" if sync is not None else "the sync lap was not recorded")
    change = f"{_ms(cost.negated())} longer" if cost.value < 0 else f"{_ms(cost)} shorter"
    laps_told = ", ".join(f"{name} {_ms(others[name])}" for name in outside)
    where = f"communication also costs time outside the sync lap ({laps_told or 'no single lap stands out'})"
    if sign < 0:
        shorter = f", or it makes other laps shorter ({laps_told})" if laps_told else ""
        where = f"the sync lap holds more than communication adds to the step{shorter}"
    sentence = f"without communication a step is {change}"
    if difference is None:
        sentence += f"; the timer has no answer: {why}"
    else:
        words = _WORDS[verdict].format(difference=_ms(difference), where=where)
        sentence += f", the timer says {_ms(estimates['timer'])}: {words}"
    told = {"workers": workers, "pairs": pairs, "steps": int(found["steps"]), "reduction": str(found["reduction"])}
    told |= {"verdict": verdict, "sentence": sentence, "why_no_timer": why, "laps_s": grown, "outside": outside}
    of = {"step_s": "step", "silent_step_s": "silent step", "ablation_s": "ablation", "timer_s": "timer"}
    of |= {"difference_s": "difference", "silent_sync_s": "silent sync"}
    return CommunicationCost(
        **told,
        **{name: estimates.get(column) for name, column in of.items()},
        ranks_s=tuple(estimates[f"rank {rank}"] for rank in range(workers)),
        doubts=tuple(_doubts(cost, found)),
    )


def _doubts(cost: Interval, found: Mapping[str, Any]) -> Iterator[str]:
    if cost.low <= 0:
        yield f"leaving communication out changed the step by {_ms(cost)}: no cost was resolved"
    if found["steps"] < 5:
        yield f"blocks of {found['steps']} counted steps are short; a run with more steps has longer ones"
    if (others := found.get("other_cores")) is not None and others >= BUSY_CORES:
        yield (
            f"other programs used {others:.1f} cores of a host while this was measured: a rank that waits leaves its "
            "core to them, one that only computes does not, and so the two kinds of steps were not disturbed alike"
        )


def _ms(each: Interval) -> str:
    return f"{each.value * 1e3:.3f} ms [{each.low * 1e3:.3f} to {each.high * 1e3:.3f}]"
