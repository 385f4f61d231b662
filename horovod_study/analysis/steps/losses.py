"""From the ideal step to the measured one: what each part of the way costs, one after the other.

The ideal step is that of the one-worker baseline (for a strong series divided by the workers: the step of an ideal
machine), the measured one the mean over repeats of `breakdown`. Between them, T(N) - T(1) of each part of a step:

    computing     data, compute or forward and backward, and update, as far as they are longer than on one worker alone
    skew          waiting for the last worker, from the step rows of all ranks
    transfer      the floor: one raw all-reduce of the gradients, undisturbed
    packing       into and out of the buffers of the runtime; on a processor the norm of gradients that backward has
                  copied there already
    runtime       what else the runtime takes: cycle, negotiation, and the time its threads take from the transfer
    exchange      transfer, packing and runtime together, where the run did not measure them apart
    waiting       all of the synchronisation, where not even the skew is known
    other         of the synchronisation, what skew, transfer, packing and runtime do not explain
    hidden        backward or compute, with a synchronisation that cannot be separated from it
    unexplained   what no part of a step covers

They add up to the measured step, and any of them may be negative.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from horovod_study.analysis.steps.breakdown import GROWTH_WORTH_SPLITTING, HOLDS_SYNC

IDEAL, MEASURED = "ideal", "measured"
PARTS = (
    *("computing", "hidden", "skew", "transfer", "packing", "runtime", "exchange", "waiting", "other"),
    "unexplained",
)
"""Of a way from IDEAL to MEASURED, in their order; a cell has those that it knows."""

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
    for key, cell in parts[parts["workers"] > 1].groupby(keys, sort=False, dropna=False):
        laps = {str(row["lap"]): row for row in cell.to_dict("records")}
        if not math.isfinite(laps["step"][f"minus_{baseline}_s"]):
            continue
        name = dict(zip(keys, key, strict=True))
        own = attribution
        for column, value in name.items():
            own = own[own[column] == value]
        known = {str(row["part"]): row for row in own.to_dict("records")} if own["arm"].nunique() == 1 else {}
        skew = float(skew_s.get(tuple(name.values()), math.nan))
        told = about.loc[str(name["series"])]
        head = {column: told[column] for column in ("setting", "reduction", "horovod_defaults")}
        rows += _way(laps, known, skew, baseline, head)
    return pd.DataFrame(rows, columns=list(LOSS_COLUMNS))


def _way(
    laps: Mapping[str, Mapping[Any, Any]],
    known: Mapping[str, Mapping[Any, Any]],
    skew_s: float,
    baseline: str,
    head: Mapping[str, Any],
) -> list[dict[str, Any]]:
    step = laps["step"]
    measured, lost = float(step["mean_s"]), float(step[f"minus_{baseline}_s"])
    worth = abs(lost) >= GROWTH_WORTH_SPLITTING * measured
    same = ("series", "partition", "backend", "transport", "workers", "nodes", "batch", "mode", "repeats")
    common = {column: step[column] for column in same} | dict(head)
    common |= {"baseline": baseline, "base": step.get(f"base_{baseline}", "")}
    low, high = _interval(step, baseline)
    rows = [{"part": IDEAL, "seconds": measured - lost, "from_s": 0.0, "to_s": measured - lost}]
    place = measured - lost
    for part, seconds, (low_s, high_s), note in _grown(laps, known, skew_s, baseline):
        way = {"from_s": place, "to_s": place + seconds, "low_s": low_s, "high_s": high_s}
        shares = {"of_loss": seconds / lost if worth else math.nan, "of_step": seconds / measured}
        rows.append({"part": part, "seconds": seconds, **way, **shares, "note": note})
        place += seconds
    # The interval of the last row is that of the whole loss, set upon the ideal step.
    whole = {"low_s": measured - lost + low, "high_s": measured - lost + high}
    rows.append({"part": MEASURED, "seconds": measured, "from_s": 0.0, "to_s": measured, **whole})
    return [
        {**dict.fromkeys(("low_s", "high_s", "of_loss", "of_step"), math.nan), "note": "", **common, **row}
        for row in rows
    ]


_Grown = tuple[str, float, tuple[float, float], str]


def _grown(
    laps: Mapping[str, Mapping[Any, Any]], known: Mapping[str, Mapping[Any, Any]], skew_s: float, baseline: str
) -> Iterator[_Grown]:
    """Yield part, seconds, interval and note of what the step grew by; together they are all of it."""
    grown = {lap: each for lap, row in laps.items() if math.isfinite(each := float(row[f"minus_{baseline}_s"]))}
    hidden = HOLDS_SYNC.get(laps["sync"]["note"])
    computing = [grown[lap] for lap in _COMPUTING if lap in grown and lap != hidden]
    if computing:
        yield "computing", math.fsum(computing), (math.nan, math.nan), ""
    if hidden in grown:
        note = laps["sync"]["note"] if hidden == "compute" else ""
        yield "hidden", grown[hidden], _interval(laps[hidden], baseline), note
    if "sync" in grown:
        yield from _waited(grown["sync"], known, skew_s, _interval(laps["sync"], baseline))
    told = math.fsum(grown[lap] for lap in (*_COMPUTING, "sync") if lap in grown)
    yield "unexplained", grown["step"] - told, (math.nan, math.nan), ""


def _waited(
    sync_s: float, known: Mapping[str, Mapping[Any, Any]], skew_s: float, ends: tuple[float, float]
) -> Iterator[_Grown]:
    """Yield what the growth of the synchronisation is made of, as far as the runs know it."""
    nothing = (math.nan, math.nan)
    if all(name in known for name in _APART.values()):
        found = {part: known[name] for part, name in _APART.items()}
        for part, row in found.items():
            yield part, float(row["seconds"]), (float(row["low_s"]), float(row["high_s"])), ""
        yield "other", sync_s - math.fsum(float(row["seconds"]) for row in found.values()), nothing, ""
    elif math.isfinite(skew_s):
        yield "skew", skew_s, nothing, ""
        yield "exchange", sync_s - skew_s, nothing, "not measured separately: record with --measure-sync"
    else:
        yield "waiting", sync_s, ends, "not measured separately: record with --measure-sync"


def _interval(row: Mapping[Any, Any], baseline: str) -> tuple[float, float]:
    low, high = (float(row.get(f"minus_{baseline}_{end}_s", math.nan)) for end in ("low", "high"))
    return low, high
