"""What measuring costs, from blocks of steps that alternated: overheads with intervals, and what they resolve.

Only blocks of one round are compared: the logarithm of the ratio of a way's seconds to those of mode off, in which what
the machine does for longer than a round cancels. The typical ratio is the mean without the smallest and the largest
fifth, with Tukey and McLaughlin's 95 % interval (`stats.trimmed_mean`): disturbances are as long as a block. Writing
rows is rare and timed by itself; what it takes per step is added, for mode off as well as for the others.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from horovod_study.analysis.stats import half_width, trimmed_mean
from horovod_study.text.words import plural


def timer_cost(case: Mapping[str, Any], *, limit_percent: float = 0.5) -> dict[str, Any]:
    """Return what `programs.timers.measure` found in one launch as overheads of mode off's step, as plain values.

    `control` is mode off again, `variants` the other ways. Each has its `step_s`, the median over the rounds with
    writing; `percent` of the step with mode off and the ends `low` and `high` of its interval, None with fewer than 5
    rounds; `writing_percent` of it; `calls_us`, microseconds a step that the calls take alone.
    """
    steps = case["steps"]
    blocks = {name: np.asarray(values, dtype=np.float64) / steps[name] for name, values in case["block_s"].items()}
    off, nothing = blocks["off"], (0.0, 0.0, 0.0)
    base_s = math.exp(trimmed_mean(np.log(off))[0])
    writing = {name: trimmed_mean([s / rows for rows, s in found]) for name, found in case["drains"].items()}

    def overhead(name: str) -> dict[str, Any]:
        logs = np.log(blocks[name] / off)
        mean, error, freedom = trimmed_mean(logs)
        written, ours = writing.get(name, nothing), writing.get("off", nothing)
        more = (written[0] - ours[0]) / base_s
        center = math.expm1(mean) + more
        # The writing's own scatter is added in square: it is timed apart from the blocks.
        spread = math.hypot(math.exp(mean) * error, written[1] / base_s, ours[1] / base_s)
        half = half_width(spread, freedom) if len(logs) >= 5 else None
        low, high = (None if half is None else 100 * (center + side * half) for side in (-1, 1))
        calls_us = 1e6 * case["calls_s"][name] if name in case["calls_s"] else None
        told = {"way": name, "step_s": float(np.median(blocks[name])) + written[0], "percent": 100 * center}
        return {**told, "low": low, "high": high, "writing_percent": 100 * more, "calls_us": calls_us}

    control = overhead("control")
    half = None if control["low"] is None else (control["high"] - control["low"]) / 2
    cost = {name: case[name] for name in ("runtime", "workers", "batch", "device", "seconds")}
    cost |= {"rounds": len(off), "steps_per_block": steps["off"], "limit_percent": limit_percent, "control": control}
    cost |= {"off_step_s": float(np.median(off)) + writing.get("off", nothing)[0], "resolution_percent": half}
    cost["variants"] = [overhead(name) for name in case["ways"] if name not in ("off", "control")]
    return {**cost, "doubts": list(_doubts(case, cost)), "verdict": _verdict(cost)}


def way(cost: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what was found of the way of this name."""
    return next(each for each in cost["variants"] if each["way"] == name)


def exceeds(cost: Mapping[str, Any], percent: float) -> bool:
    """Return whether mode light certainly costs more than `percent`: its whole interval is above."""
    light = way(cost, "light")
    return bool((light["percent"] if light["low"] is None else light["low"]) > percent)


def interval(found: Mapping[str, Any]) -> str:
    """Return `0.05 % [-0.10, 0.20]`."""
    ends = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['percent']:.2f} %{ends}"


def _verdict(cost: Mapping[str, Any]) -> str:
    light, limit = way(cost, "light"), cost["limit_percent"]
    answer, more = "not resolved", ""
    if light["low"] is not None:
        answer = "yes" if light["high"] < limit else "no" if light["low"] > limit else answer
        share = (light["high"] - light["low"]) / limit  # half the limit is wanted as half the interval
        seconds = cost["seconds"] * max(1.5, share**2)
        more = f" (with this noise it takes about {seconds:,.0f} s)" if answer == "not resolved" else ""
    calls_us = light["calls_us"]
    return (
        f"light costs {interval(light)} of a step; below {limit:g} %: {answer}{more}; the calls alone take "
        f"{calls_us:.1f} us, {calls_us / cost['off_step_s'] / 1e4:.2f} %"
    )


def _doubts(case: Mapping[str, Any], cost: Mapping[str, Any]) -> Iterator[str]:
    control, half = cost["control"], cost["resolution_percent"]
    others, fewest = case["other_cores"], min(len(case["drains"].get(name, ())) for name in ("off", "light"))
    if cost["rounds"] < 20:
        yield f"only {cost['rounds']} rounds: the intervals are poorly supported; give it more --seconds"
    if half is not None and not control["low"] <= 0 <= control["high"]:
        by_chance = "by chance once in twenty times, else the machine was disturbed; measure again when it is quiet"
        yield f"the control, mode off against itself, differs by {interval(control)}: {by_chance}"
    if half is not None and half > cost["limit_percent"]:
        yield f"differences below {half:.2g} % are not seen here; give it more --seconds, or a quieter machine"
    if others is not None and others > 0.1:  # None: the system does not report
        yield f"other programs used {others:.2g} cores meanwhile: measure again when the machine is quiet"
    if fewest < 3:
        yield f"writing was timed {plural(fewest, 'time')} per mode: its share is rough"
