"""How much of synchronisation is Horovod's cycle, from runs with different cycle times.

Horovod's thread looks for gradients once per cycle c. They wait c/2 on average, and up to c more where the threads of
the workers look at different times; a cycle longer than everything else in the step sets the pace. So

    sync = rest + slope c       slope 1/2 to 3/2 for cycles shorter than the rest of the step, 1 to 2 for longer ones

is fitted by least squares to the runs of cells that are equal in all but `cycle_time_ms`, shorter and longer cycles
apart where both have two: a line of each repeat that has all the cycles, from three on, else one through all runs.
With this project's idle sleep on, new gradients wake the thread, and the slope should be 0.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import numbers
from horovod_study.analysis.stats import MIN_REPEATS, Floats, Interval
from horovod_study.analysis.sync import synchronisation

_DEFAULT_CYCLE_S = 1e-3  # of Horovod 0.28 (horovod/common/operations.cc, HOROVOD_CYCLE_TIME)

CYCLE_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch", "cycles", "runs"),
    *("shortest_cycle_s", "longest_cycle_s", "rest_of_step_s", "slope", "slope_low", "slope_high"),
    *("expected_low", "expected_high", "rest_s", "rest_low_s", "rest_high_s", "default_cycle_s"),
    *("share_at_default", "share_low", "share_high", "verdict", "interval", "note"),
    *("reduction", "horovod_defaults"),
)
"""One row per cell and range of cycles. slope: s of sync per s of cycle; rest: sync at a cycle of 0;
share_at_default: what part of sync is cycle when the cycle is _DEFAULT_CYCLE_S."""

AS_EXPECTED, _NO_EFFECT, OTHERWISE, OPEN = "as the cycle explains", "no effect", "otherwise", "not resolved"
_KEYS = ("series", "batch", "train_samples", "workers", "nodes", "per_node", "idle")


def cycle_shares(runs: pd.DataFrame) -> pd.DataFrame:
    """Return CYCLE_COLUMNS of the finished runs over Horovod whose cycle time was chosen; empty without two of them.

    Series here are those of runs that may differ in the cycle time.
    """
    chosen = numbers(runs, "cycle_time_ms")
    if chosen.nunique() < 2:
        return pd.DataFrame(columns=list(CYCLE_COLUMNS))
    # What nobody chose is on as shipped and off in Horovod as it comes.
    idle = numbers(runs, "idle_cycle_time_ms").fillna(
        runs["horovod_defaults"].astype(bool).map({True: 0.0, False: math.inf})
    )
    table = runs.drop(columns="cycle_time_ms").assign(_cycle_s=chosen / 1e3, idle=idle)
    table = synchronisation.parallel(table)
    table = table[table["_cycle_s"].notna() & (table["workers"] > 1) & (table["backend"] == "horovod")]
    rows = []
    for _, cell in table.groupby(list(_KEYS), sort=False, dropna=False):
        known = cell[cell["sync_s"].astype(float).notna()]
        if known["_cycle_s"].nunique() < 2:
            continue
        # Cycles shorter and longer than the rest of a step are ranges of their own, or all are one.
        rest = float((known["step_s"] - known["sync_s"]).median())
        parts = [known[known["_cycle_s"] <= rest], known[known["_cycle_s"] > rest]]
        apart = [part for part in parts if part["_cycle_s"].nunique() >= 2]
        rows += [_row(part, rest) for part in apart or [known]]
    whole = {"workers": "int64", "cycles": "int64", "runs": "int64"}
    return pd.DataFrame(rows, columns=list(CYCLE_COLUMNS)).astype(whole)


def _row(cell: pd.DataFrame, rest_of_step_s: float) -> dict[str, Any]:
    first = cell.iloc[0]
    cycle, sync = (cell[name].to_numpy(dtype=np.float64) for name in ("_cycle_s", "sync_s"))
    distinct = np.unique(cycle)
    wait = np.where(distinct <= rest_of_step_s, distinct / 2, distinct - rest_of_step_s)
    woken = bool(first["idle"] > 0)
    expected = 0.0 if woken else float(np.polyfit(distinct, wait, 1)[0])
    most = expected if woken else expected + 1.0
    (slope, rest, share), how = _estimates(cell, cycle, sync)
    # Whether the means per cycle miss the line by more than the runs scatter (F test, 1 %).
    groups = [sync[cycle == each] for each in distinct]
    within = float(sum(np.sum((each - each.mean()) ** 2) for each in groups))
    misfit = float(np.sum((sync - np.polyval(np.polyfit(cycle, sync, 1), cycle)) ** 2)) - within
    freedom = (len(groups) - 2, len(cycle) - len(groups))
    bent = min(freedom) >= 1 and misfit > 1e-18 * float(sync @ sync)
    outside, longer = not distinct[0] <= _DEFAULT_CYCLE_S <= distinct[-1], cycle > rest_of_step_s
    notes = {
        "new gradients wake the thread, whose cycle then hardly counts": woken,
        "cycles shorter and longer than the rest of the step in one line": longer.any() and not longer.all(),
        "cycles longer than the rest of the step: they set its pace": longer.all(),
        "the times are not on a straight line, so the rest is an extrapolation": bent
        and stats.lack_of_fit_p(misfit, within, freedom) < 0.01,
        "Horovod's default cycle is outside the cycles run": outside,
    }
    share = Interval(value=math.nan) if outside else share
    verdict = OPEN  # else: the interval meets the expected range and leaves out 0
    if slope.known and slope.excludes(0):
        verdict = AS_EXPECTED if slope.low <= most and slope.high >= expected else OTHERWISE
    elif slope.known and slope.high < 0.5:
        verdict = _NO_EFFECT
    row = {name: first[name] for name in ("series", "workers", "nodes", "batch", *synchronisation.KEPT)}
    row |= {"cycles": len(distinct), "runs": len(cell), "rest_of_step_s": rest_of_step_s}
    row |= {"shortest_cycle_s": float(distinct[0]), "longest_cycle_s": float(distinct[-1])}
    row |= {"expected_low": expected, "expected_high": most, "default_cycle_s": _DEFAULT_CYCLE_S}
    row |= slope.named("slope", "slope_low", "slope_high") | rest.named("rest_s", "rest_low_s", "rest_high_s")
    row |= share.named("share_at_default", "share_low", "share_high")
    return row | {
        "interval": how,
        "verdict": verdict,
        "note": "; ".join(note for note, holds in notes.items() if holds),
    }


def _share_at_default(slope: float, rest: float) -> float:
    at = rest + slope * _DEFAULT_CYCLE_S
    return slope * _DEFAULT_CYCLE_S / at if at else math.nan


def _estimates(cell: pd.DataFrame, cycle: Floats, sync: Floats) -> tuple[list[Interval], str]:
    """Return slope, rest and share at the default cycle with their intervals, and in words how those were made.

    Of the lines of the repeats, where every repeat has every cycle once.
    """
    repeats = [own for _, own in cell.groupby(["study", "repeat"], sort=True)]
    distinct = len(set(cycle))
    if len(repeats) >= MIN_REPEATS and all(len(own) == own["_cycle_s"].nunique() == distinct for own in repeats):
        lines = [np.polyfit(own["_cycle_s"], own["sync_s"].astype(float), 1) for own in repeats]
        values = np.array([(*line, _share_at_default(*line)) for line in lines])  # (R, 3)
        means, errors = values.mean(axis=0), stats.standard_error(values, axis=0)
        freedom, how = len(values) - 1, f"95 %, Student's t of the lines of {len(values)} repeats"
    elif len(cycle) < 3:
        line = np.polyfit(cycle, sync, 1)
        return [Interval(value=float(each)) for each in (*line, _share_at_default(*line))], "two runs: no interval"
    else:
        (slope, rest), covariance = np.polyfit(cycle, sync, 1, cov=True)
        means = np.array([slope, rest, _share_at_default(slope, rest)])
        at = rest + slope * _DEFAULT_CYCLE_S
        toward = np.array([rest, -slope]) * _DEFAULT_CYCLE_S / at**2 if at else np.full(2, math.nan)
        errors = np.sqrt([*np.diag(covariance), toward @ covariance @ toward])
        freedom, how = len(cycle) - 2, f"95 %, Student's t of one line through {len(cycle)} runs"
    return [stats.around(*each, freedom) for each in zip(means.tolist(), errors.tolist(), strict=True)], how
