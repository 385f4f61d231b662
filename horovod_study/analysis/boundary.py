"""What another node costs: synchronisation against workers and nodes, and the jump at each node boundary.

A jump is the time per step on more nodes less that on fewer, means over repeats of what each run says of its steps.
Two kinds are told apart, because only the first compares like with like:

    direct      equal workers, once on fewer and once on more nodes (placement fill against spread): another node and
                nothing else
    indirect    along one curve, from the largest worker count on fewer nodes to the smallest on more: another node
                *and* further workers

Along a series of these tables also the placement may differ: what elsewhere are two series, one filling the nodes and
one sharing them evenly, are one here, because their difference is what is asked for.

Intervals are those of breakdown.py: Student's t of the differences of pairs of repeats, else Welch's, 95 %, from three
repeats on. A jump is resolved when its interval leaves out 0. docs/metrics.md defines it.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from horovod_study.analysis.breakdown import difference_interval
from horovod_study.analysis.points import FEWEST_REPEATS, measured, with_series, worker_counts

Floats = NDArray[np.float64]

NODE_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "per_node", "path", "repeats"),
    *("per_step", "sync_s_median", "sync_s_min", "sync_s_max", "step_s_median", "note"),
    *("reduction", "horovod_defaults"),
)
"""One row per series, workers, nodes and workers on each node; the times are of the repeats."""

_SIDE = ("workers", "nodes", "per_node", "path", "repeats", "sync_s", "step_s")
BOUNDARY_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "kind", "per_step"),
    *(f"fewer_{name}" for name in _SIDE),
    *(f"more_{name}" for name in _SIDE),
    *("jump_s", "low_s", "high_s", "resolved", "interval"),
    *("step_jump_s", "step_low_s", "step_high_s", "step_resolved", "note"),
)
"""One row per comparison. `fewer_` and `more_` are the sides, by their nodes."""

DIRECT, INDIRECT = "direct", "indirect"

MEDIAN, MEAN = "median", "mean"

NOTES = {
    "alone": "one worker synchronises with nobody, so this is all that synchronising costs there, not the node alone",
    "workers": "further workers and another node at once",
    "hidden": "synchronisation runs inside backward and cannot be told apart; the step as a whole can",
}

_PLACING = ("placement", "workers_per_node")
_WITHIN = ("shared memory", "memory", "tcp:lo")
"""Ways that end at the edge of a machine."""


def by_nodes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return NODE_COLUMNS of the finished parallel runs of a run table (records.run_table), one row per cell.

    A cell is a series at one number of workers, on one number of nodes, with one number of workers on each of them.
    `per_step` says what a run gives: the median over its steps, or their mean where some run of the series knows no
    median. NaN where a repeat does not know its synchronisation; `note` says why.
    """
    rows = []
    for _, cell in _cells(runs):
        rows.append(
            {
                **_name(cell),
                **_side(cell),
                "per_step": cell["per_step"].iloc[0],
                "sync_s_median": _over(np.median, cell["sync_value_s"]),
                "sync_s_min": _over(np.min, cell["sync_value_s"]),
                "sync_s_max": _over(np.max, cell["sync_value_s"]),
                "step_s_median": _over(np.median, cell["step_value_s"]),
                "note": NOTES["hidden"] if _hidden(cell) else "",
                **{name: cell[name].iloc[0] for name in ("reduction", "horovod_defaults")},
            }
        )
    return _frame(rows, NODE_COLUMNS, whole=("workers", "nodes", "repeats"))


def boundaries(runs: pd.DataFrame) -> pd.DataFrame:
    """Return BOUNDARY_COLUMNS of the finished parallel runs of a run table: the jump at every node boundary.

    Direct comparisons are made at every number of workers that was run on several numbers of nodes, each with the next
    larger one; indirect ones at every boundary of a series, and named so. An indirect one from one worker is the whole
    cost of synchronising there, and its `note` says so. No row without a series on several nodes.
    """
    rows: list[dict[str, Any]] = []
    cells: dict[str, list[pd.DataFrame]] = {}
    for series, cell in _cells(runs):
        cells.setdefault(series, []).append(cell)
    for own in cells.values():
        counts = sorted({_int(cell, "nodes") for cell in own})
        for fewer, more in pairwise(counts):
            left, right = ([cell for cell in own if _int(cell, "nodes") == count] for count in (fewer, more))
            for a in left:
                rows += [_row(a, b, DIRECT) for b in right if _int(a, "workers") == _int(b, "workers")]
            a = max(left, key=lambda cell: (_int(cell, "workers"), len(cell)))
            beyond = [cell for cell in right if _int(cell, "workers") > _int(a, "workers")]
            if beyond:
                rows.append(_row(a, min(beyond, key=lambda cell: (_int(cell, "workers"), -len(cell))), INDIRECT))
    whole = [f"{side}_{name}" for side in ("fewer", "more") for name in ("workers", "nodes", "repeats")]
    return _frame(rows, BOUNDARY_COLUMNS, whole=whole)


def fewest_nodes(points: pd.DataFrame) -> pd.Series:
    """Return which rows with series, workers and nodes are on the fewest nodes of their worker count, as booleans.

    A law against workers is fitted to these: equal workers on more nodes are another curve.
    """
    least = points.groupby(["series", "workers"], dropna=False)["nodes"].transform("min")
    return points["nodes"].isna() | (points["nodes"] == least)


def doubts(runs: pd.DataFrame) -> list[str]:
    """Return what a reader must know before believing the jumps, one sentence or two each, in a stable order."""
    found = []
    cells: dict[str, list[pd.DataFrame]] = {}
    for series, cell in _cells(runs):
        cells.setdefault(series, []).append(cell)
    for series, own in cells.items():
        counts = sorted({_int(cell, "nodes") for cell in own})
        if counts[-1] == 1:
            continue
        found += _doubt_paths(series, own)
        if len(counts) == 1:
            found.append(
                f"{series}: all of its runs are on {counts[0]} nodes, so there is no node boundary to compare across; "
                "add a worker count that fits on one node."
            )
        if any(_hidden(cell) for cell in own if _int(cell, "workers") > 1):
            found.append(f"{series}: {NOTES['hidden']}, so only that is given at the node boundary.")
    return [*found, *_doubt_fits(runs)]


# ---------------------------------------------------------------------------------------------------- cells


def _cells(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the finished runs of each cell with their series: in the order of series, nodes and workers."""
    table = with_series(runs.drop(columns=list(_PLACING), errors="ignore"))
    table = table[measured(table) & (table["backend"] != "serial") & table["nodes"].notna()]
    for name in ("per_node", "path"):
        texts = table[name].astype(object) if name in table.columns else pd.Series("", table.index, object)
        table = table.assign(**{name: texts.fillna("").astype(str)})
    table = table.assign(per_step=MEAN, sync_value_s=table["sync_s"].astype(float), step_value_s=table["step_s"])
    if "sync_s_median" in table.columns:
        medians = pd.to_numeric(table["sync_s_median"])
        lacking = (medians.isna() & table["sync_s"].notna()).groupby(table["series"]).transform("any")
        table = table.assign(
            per_step=np.where(lacking, MEAN, MEDIAN),
            sync_value_s=table["sync_value_s"].where(lacking, medians),
            step_value_s=table["step_value_s"].where(lacking, table["step_s_median"]),
        )
    keys = ["workers", "nodes", "per_node"]
    return [
        (str(series), cell)
        for series, own in table.groupby("series", sort=False)
        for _, cell in own.groupby(keys, sort=True, dropna=False)
    ]


def _int(cell: pd.DataFrame, name: str) -> int:
    return int(cell[name].iloc[0])


def _hidden(cell: pd.DataFrame) -> bool:
    return bool(cell["sync_value_s"].isna().any())


def _name(cell: pd.DataFrame) -> dict[str, Any]:
    return {name: cell[name].iloc[0] for name in ("series", "setting", "partition", "backend", "transport")}


def _side(cell: pd.DataFrame) -> dict[str, Any]:
    return {
        **{name: cell[name].iloc[0] for name in ("workers", "nodes", "per_node")},
        "path": " or ".join(sorted(set(cell["path"]) - {""})),
        "repeats": len(cell),
    }


def _over(what: Any, values: pd.Series) -> float:
    """Return `what` of the repeats, NaN where one of them does not know its value."""
    numbers = values.to_numpy(dtype=np.float64)
    return float(what(numbers)) if np.isfinite(numbers).all() else math.nan


# ---------------------------------------------------------------------------------------------------- jumps


def _row(fewer: pd.DataFrame, more: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return one comparison of two cells."""
    row: dict[str, Any] = {**_name(more), "kind": kind, "per_step": more["per_step"].iloc[0]}
    values = []
    for side, cell in (("fewer", fewer), ("more", more)):
        both = cell[["sync_value_s", "step_value_s"]].to_numpy(dtype=np.float64)  # (R, 2)
        values.append(both)
        row |= {f"{side}_{name}": value for name, value in _side(cell).items()}
        row |= {f"{side}_sync_s": float(both[:, 0].mean()), f"{side}_step_s": float(both[:, 1].mean())}
    names = [tuple(zip(cell["study"], cell["repeat"], strict=True)) for cell in (more, fewer)]
    low, high, how = difference_interval(values[1], values[0], *names)
    row["interval"] = how
    for place, (name, start) in enumerate((("sync_s", ""), ("step_s", "step_"))):
        row[f"{start}jump_s"] = row[f"more_{name}"] - row[f"fewer_{name}"]
        row[f"{start}low_s"], row[f"{start}high_s"] = float(low[place]), float(high[place])
        known = math.isfinite(low[place]) and math.isfinite(high[place])
        row[f"{start}resolved"] = bool(low[place] > 0 or high[place] < 0) if known else None
    notes = []
    if _hidden(fewer) or _hidden(more):
        notes.append(NOTES["hidden"])
    if kind == INDIRECT:
        notes.append(NOTES["alone" if row["fewer_workers"] == 1 else "workers"])
    if len(fewer) < FEWEST_REPEATS or len(more) < FEWEST_REPEATS:
        notes.append(f"fewer than {FEWEST_REPEATS} repeats, so chance cannot be told from a difference")
    row["note"] = "; ".join(notes)
    return row


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, whole: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=list(columns))
    return frame.astype(dict.fromkeys(whole, "int64"))


# ---------------------------------------------------------------------------------------------------- doubts


def _doubt_paths(series: str, own: Sequence[pd.DataFrame]) -> list[str]:
    """Return what is odd about what carried the gradients."""
    found = []
    for cell in own:
        where = f"{worker_counts(cell['workers'])} on {_int(cell, 'nodes')} node{'s' * (_int(cell, 'nodes') > 1)}"
        paths = sorted(set(cell["path"]))
        if len(paths) > 1:
            told = ", ".join(path or "not known" for path in paths)
            found.append(
                f"{series} at {where}: its repeats were carried by different paths ({told}); they are not repeats of "
                "one another."
            )
        within = [path for path in paths if path and all(way in _WITHIN for way in path.split(" and "))]
        if _int(cell, "nodes") > 1 and within:
            found.append(
                f"{series} at {where}: the recorded path ({within[0]}) does not leave a machine; the nodes may be two "
                "names of one."
            )
        unknown = _int(cell, "nodes") > 1 and paths == [""]
        if unknown:
            found.append(f"{series} at {where}: what carried its gradients is not recorded.")
    return found


def _doubt_fits(runs: pd.DataFrame) -> list[str]:
    """Return for which series some worker counts are left out of the laws, being on more nodes than others."""
    table = with_series(runs)
    table = table[measured(table) & (table["backend"] != "serial")]
    return [
        f"{series}: {worker_counts(rows['workers'])} ran on several numbers of nodes; laws are fitted to the fewest."
        for series, rows in table[~fewest_nodes(table)].groupby("series", sort=False)
    ]
