"""From the ideal step to the measured one: what each part of the way costs, one after the other.

The ideal step is that of the one-worker baseline (for a strong series divided by the workers), the measured one the
mean over repeats of `breakdown`. Between them, T(N) - T(1) of each part of a step (docs/metrics.md). They add up to the
measured step, and any of them may be negative.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pandas as pd

from horovod_study.analysis.steps.breakdown import GROWTH_WORTH_SPLITTING, HOLDS_SYNC

IDEAL, MEASURED = "ideal", "measured"

LOSS_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "reduction", "horovod_defaults"),
    *("workers", "nodes", "batch", "mode", "repeats", "baseline", "base", "part", "seconds", "low_s", "high_s"),
    *("from_s", "to_s", "of_loss", "of_step", "note"),
)
"""One row per cell and part, with the ideal and the measured step as its ends.

seconds: what the part adds, per step; of the ends the whole step. low_s, high_s: 95 %, where there is an interval.
from_s, to_s: where the part begins and ends on the way. of_loss: of measured less ideal, of_step: of measured.
"""

_COMPUTING = ("data", "compute", "forward", "backward", "update")
_APART = {"skew": "skew", "transfer": "floor", "packing": "pack", "runtime": "rest"}
"""Parts of the synchronisation, with their names in attribution.py."""
_Laps: TypeAlias = Mapping[str, Mapping[Any, Any]]
_NOTHING = (math.nan, math.nan)


def losses(
    parts: pd.DataFrame, points: pd.DataFrame, attribution: pd.DataFrame, *, baseline: str, skew_s: pd.Series
) -> pd.DataFrame:
    """Return LOSS_COLUMNS of every cell of several workers whose step has a baseline.

    `parts`: table of breakdown.py; `attribution`: that of attribution.arm_rows. `skew_s`: mean over repeats of each
    cell, indexed by series, workers, nodes, batch.
    """
    about = points.drop_duplicates("series").set_index("series")
    rows: list[dict[str, Any]] = []
    keys = ["series", "workers", "nodes", "batch"]
    same = (*keys, "partition", "backend", "transport", "mode", "repeats")
    for key, cell in parts[parts["workers"] > 1].groupby(keys, sort=False, dropna=False):
        laps = {str(row["lap"]): row for row in cell.to_dict("records")}
        step = laps["step"]
        measured, lost = float(step["mean_s"]), float(step[f"minus_{baseline}_s"])
        if not math.isfinite(lost):
            continue
        own = attribution[(attribution[keys] == list(key)).all(axis=1)]
        known = {str(row["part"]): row for row in own.to_dict("records")} if own["arm"].nunique() == 1 else {}
        common = {column: about.loc[str(key[0]), column] for column in ("setting", "reduction", "horovod_defaults")}
        common |= {column: step[column] for column in same} | {"baseline": baseline, "note": ""}
        common["base"], place = step.get(f"base_{baseline}", ""), measured - lost
        rows.append({**common, "part": IDEAL, "seconds": place, "from_s": 0.0, "to_s": place})
        worth = abs(lost) >= GROWTH_WORTH_SPLITTING * measured
        for part, seconds, (low_s, high_s), note in _grown(laps, known, float(skew_s.get(key, math.nan)), baseline):
            way = {"seconds": seconds, "from_s": place, "to_s": place + seconds, "low_s": low_s, "high_s": high_s}
            shares = {"of_loss": seconds / lost if worth else math.nan, "of_step": seconds / measured}
            rows.append({**common, "part": part, **way, **shares, "note": note})
            place += seconds
        # The interval of the last row is that of the whole loss, set upon the ideal step.
        low_s, high_s = (measured - lost + end for end in _interval(step, baseline))
        whole = {"seconds": measured, "from_s": 0.0, "to_s": measured, "low_s": low_s, "high_s": high_s}
        rows.append({**common, "part": MEASURED, **whole})
    return pd.DataFrame(rows, columns=list(LOSS_COLUMNS))


def _grown(
    laps: _Laps, known: _Laps, skew_s: float, baseline: str
) -> Iterator[tuple[str, float, tuple[float, float], str]]:
    """Yield part, seconds, interval and note of what the step grew by; together they are all of it."""
    grown = {lap: each for lap, row in laps.items() if math.isfinite(each := float(row[f"minus_{baseline}_s"]))}
    hidden = HOLDS_SYNC.get(laps["sync"]["note"])
    computing = [grown[lap] for lap in _COMPUTING if lap in grown and lap != hidden]
    if computing:
        yield "computing", math.fsum(computing), _NOTHING, ""
    if hidden in grown:
        note = laps["sync"]["note"] if hidden == "compute" else ""
        yield "hidden", grown[hidden], _interval(laps[hidden], baseline), note
    unmeasured, sync_s = "not measured separately: record with --measure-sync", grown.get("sync")
    if sync_s is not None and all(name in known for name in _APART.values()):
        found = {part: known[name] for part, name in _APART.items()}
        for part, row in found.items():
            yield part, float(row["seconds"]), (float(row["low_s"]), float(row["high_s"])), ""
        yield "other", sync_s - math.fsum(float(row["seconds"]) for row in found.values()), _NOTHING, ""
    elif sync_s is not None and math.isfinite(skew_s):
        yield "skew", skew_s, _NOTHING, ""
        yield "exchange", sync_s - skew_s, _NOTHING, unmeasured
    elif sync_s is not None:
        yield "waiting", sync_s, _interval(laps["sync"], baseline), unmeasured
    told = math.fsum(grown[lap] for lap in (*_COMPUTING, "sync") if lap in grown)
    yield "unexplained", grown["step"] - told, _NOTHING, ""


def _interval(row: Mapping[Any, Any], baseline: str) -> tuple[float, float]:
    low, high = (float(row.get(f"minus_{baseline}_{end}_s", math.nan)) for end in ("low", "high"))
    return low, high
