"""Waiting for gradients in words: what it takes, and what a new node adds."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.boundary import DIRECT, INDIRECT
from horovod_study.report.kit import style
from horovod_study.text.numbers import THIN, milliseconds, percent, signed, with_unit
from horovod_study.text.words import plural

MAX_LINES = 3
"""Sentences on waiting; the table has all of it."""


def waiting(analysis: Analysis) -> list[str]:
    """Return what waiting takes at their largest counts in the MAX_LINES series that it takes the most of."""
    cells, labels = analysis.synchronisation, style.series_labels(analysis.synchronisation)
    cells = cells[cells["sync_s_median"].notna() & (cells["workers"] > 1)]
    largest = cells.sort_values("workers", kind="stable").drop_duplicates("series", keep="last").sort_index()
    largest = largest.sort_values("share_median", ascending=False, kind="stable").head(MAX_LINES)
    return [
        f"{named(labels, row)}, {plural(row['workers'], 'worker')}: {_wait(row)}." for row in largest.to_dict("records")
    ]


def named(labels: Mapping[str, str], row: Mapping[Any, Any]) -> str:
    """Return the name of a row's series, with its setting."""
    return ", ".join(filter(None, (labels[row["series"]], row["setting"])))


def _wait(row: Mapping[Any, Any]) -> str:
    """Return what waiting takes of a step and of an epoch, where that is known."""
    wait, epoch = (
        [row[f"{name}_{end}"] for end in ("median", "low", "high")] for name in ("sync_s", "sync_per_epoch_s")
    )
    text = (
        f"in the median repeat waiting for gradients takes {with_unit(*(1000 * each for each in wait), unit='ms')} of "
        f"a mean step, {percent(row['share_median'])}"
    )
    if not math.isfinite(epoch[0]):
        return text
    return f"{text}, and {with_unit(*epoch, unit='s')} of an epoch of {row['batches_per_epoch']:.0f} batches"


def jumped(analysis: Analysis) -> list[str]:
    """Return what the first node boundary of each series adds to a step, one sentence per series."""
    labels = style.series_labels(analysis.nodes)
    found = []
    for _, rows in analysis.boundary.groupby("series", sort=False):
        first = rows[rows["fewer_nodes"] == rows["fewer_nodes"].min()]
        direct = first[first["kind"] == DIRECT]
        row = (direct if len(direct) else first).to_dict("records")[-1]
        found.append(f"{named(labels, row)}: {_jump(row)}.")
    return found


def _jump(row: Mapping[Any, Any]) -> str:
    """Return what waits longer by how much from fewer to more nodes; the whole step where its wait is hidden."""
    hidden = not math.isfinite(row["jump_s"])
    start, part = ("step_", "step") if hidden else ("", "sync")
    what = "step, in which synchronisation is hidden," if hidden else "wait for gradients per step"
    jump, low, high = (1000 * row[f"{start}{each}_s"] for each in ("jump", "low", "high"))
    fewer, more = (
        place(*(row[f"{side}_{name}"] for name in ("workers", "nodes", "per_node")))
        + (f" over {row[f'{side}_path']}" if row[f"{side}_path"] else "")
        for side in ("fewer", "more")
    )
    before, after = (milliseconds(row[f"{side}_{part}_s"]) for side in ("fewer", "more"))
    resolved = row[f"{start}resolved"]
    verdict = "too few repeats to tell" if pd.isna(resolved) else "resolved" if resolved else "not resolved"
    mixed = "; part of it is due to the further workers" if row["kind"] == INDIRECT else ""
    return (
        f"from {fewer} to {more} the {row['per_step']} {what} goes from {before}{THIN}ms to {after}{THIN}ms, by "
        f"{signed(with_unit(jump, low, high, unit='ms'))} ({verdict}){mixed}"
    )


def place(workers: float, nodes: float, per_node: str) -> str:
    """Return where workers sat, in words: `2 workers on 1 node`, `5 workers on 2 nodes (4 + 1)`."""
    text = f"{plural(workers, 'worker')} on {plural(nodes, 'node')}"
    parts = [part.partition("x") for part in per_node.split()]
    if nodes == 1 or not parts:
        return text
    if sum(int(times) for times, _, _ in parts) <= 4:
        shares = " + ".join(share for times, _, share in parts for _ in range(int(times)))
    else:
        shares = ", ".join(f"{share} on {times}" for times, _, share in parts)
    return f"{text} ({shares})"
