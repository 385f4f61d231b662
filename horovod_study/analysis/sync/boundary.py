"""What another node costs: synchronisation against workers and nodes, and the jump at each node boundary.

A jump is the time per step on more nodes less that on fewer, means over repeats of what each run says of its steps:

    direct      equal workers, once on fewer and once on more nodes: another node and nothing else
    indirect    along one curve, from the largest worker count on fewer nodes to the smallest on more: another node
                *and* further workers

Series that differ only in the placement are one here. Intervals are those of breakdown.py; a jump is resolved when its
interval leaves out 0. Where two worker counts or more (above one) are known on the fewer nodes, `beyond_s` is what is
left of an indirect jump when the growth with workers goes on as it was there: along log2 of the workers (a tree) and
along the workers (a ring), the mean of both; its interval spans both. docs/metrics.md defines all of it.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.culprits import of_kind
from horovod_study.analysis.series.points import CAPTURED, REPORTED, measured, texts, with_series, worker_counts
from horovod_study.analysis.steps.breakdown import difference_interval
from horovod_study.text.words import plural

NODE_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "per_node", "path", "repeats"),
    *("per_step", "sync_s_median", "sync_s_min", "sync_s_max", "step_s_median", "note"),
    *("reduction", "horovod_defaults"),
)
"""One row per series, workers, nodes and workers on each node; the times are of the repeats."""

_SIDE = ("workers", "nodes", "per_node", "partly", "path", "repeats", "sync_s", "step_s")
BOUNDARY_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "kind", "per_step"),
    *(f"fewer_{name}" for name in _SIDE),
    *(f"more_{name}" for name in _SIDE),
    *("jump_s", "low_s", "high_s", "resolved", "interval"),
    *("step_jump_s", "step_low_s", "step_high_s", "step_resolved", "note"),
    *("beyond_s", "beyond_low_s", "beyond_high_s", "beyond_resolved"),
)
"""One row per comparison. `fewer_` and `more_` are the sides, by their nodes; `partly`: some node of that side holds
fewer workers than another, None where that is not known."""

DIRECT, INDIRECT = "direct", "indirect"
MEDIAN, MEAN = "median", "mean"

NOTES = {
    "alone": "one worker synchronises with nobody, so this is all that synchronising costs there, not the node alone",
    "workers": "further workers and another node at once",
    "hidden": "synchronisation runs inside backward and cannot be separated; the step as a whole can",
    "captured": "synchronisation runs inside a CUDA graph and cannot be separated; the step as a whole can",
    "partly": "the nodes are not equally full",
}

_GROWTHS: tuple[Callable[[Any], Any], ...] = (np.log2, lambda workers: workers)
"""How waiting may go on to grow with the workers on equal nodes: as in a tree, as in a ring."""

_ENDS_AT_A_MACHINE = frozenset(("shared memory", "memory", "tcp:lo"))
_PLACING = ("placement", "workers_per_node")
_NAME = ("series", "setting", "partition", "backend", "transport")


def by_nodes(runs: pd.DataFrame) -> pd.DataFrame:
    """Return NODE_COLUMNS of the finished parallel runs of a run table (records.run_table), one row per cell.

    A cell is a series at one number of workers, on one number of nodes, with one number of workers on each of them.
    `per_step` says what a run gives: the median over its steps, or their mean where some run of the series knows no
    median. NaN where a repeat does not know its synchronisation; `note` says why.
    """
    rows = []
    for own in _cells(over_placements(runs)).values():
        for cell in own:
            kept = {name: cell[name].iloc[0] for name in (*_NAME, "per_step", "reduction", "horovod_defaults")}
            ends: dict[str, Any] = {"median": np.median, "min": np.min, "max": np.max}
            sync = {f"sync_s_{end}": stats.of_all(cell["sync_value_s"], what) for end, what in ends.items()}
            step = {"step_s_median": stats.of_all(cell["step_value_s"])}
            rows.append({**kept, **_side(cell), **sync, **step, "note": hidden_note(cell, "sync_value_s")})
    whole = dict.fromkeys(("workers", "nodes", "repeats"), "int64")
    return pd.DataFrame(rows, columns=list(NODE_COLUMNS)).astype(whole)


def boundaries(runs: pd.DataFrame) -> pd.DataFrame:
    """Return BOUNDARY_COLUMNS of the finished parallel runs of a run table: the jump at every node boundary.

    Direct comparisons are made at every number of workers that was run on several numbers of nodes, each with the next
    larger one; indirect ones at every boundary of a series, and named so. An indirect one from one worker is the whole
    cost of synchronising there, and its `note` says so. No row without a series on several nodes.
    """
    rows: list[dict[str, Any]] = []
    for own in _cells(over_placements(runs)).values():
        counts = sorted({_int(cell, "nodes") for cell in own})
        for fewer, more in pairwise(counts):
            left, right = ([cell for cell in own if _int(cell, "nodes") == count] for count in (fewer, more))
            for a in left:
                rows += [_row(a, b, DIRECT) for b in right if _int(a, "workers") == _int(b, "workers")]
            a = max(left, key=lambda cell: (_int(cell, "workers"), len(cell)))
            beyond = [cell for cell in right if _int(cell, "workers") > _int(a, "workers")]
            if beyond:
                b = min(beyond, key=lambda cell: (_int(cell, "workers"), -len(cell)))
                rows.append(_row(a, b, INDIRECT) | _beyond(left, b))
    whole = [f"{side}_{name}" for side in ("fewer", "more") for name in ("workers", "nodes", "repeats")]
    return pd.DataFrame(rows, columns=list(BOUNDARY_COLUMNS)).astype(dict.fromkeys(whole, "int64"))


def fewest_nodes(points: pd.DataFrame) -> pd.Series:
    """Return which rows with series, workers and nodes are on the fewest nodes of their worker count, as booleans.

    A law against workers is fitted to these: equal workers on more nodes are another curve.
    """
    least = points.groupby(["series", "workers"], dropna=False)["nodes"].transform("min")
    return points["nodes"].isna() | (points["nodes"] == least)


def jump_doubts(runs: pd.DataFrame) -> list[str]:
    """Return the doubts about the jumps themselves."""
    found: list[str] = []
    for series, own in _cells(over_placements(runs)).items():
        counts = sorted({_int(cell, "nodes") for cell in own})
        if counts[-1] == 1:
            continue
        for cell in own:
            where = f"{series} at {worker_counts(cell['workers'])} on {plural(_int(cell, 'nodes'), 'node')}"
            paths = sorted(set(cell["path"]))
            within = [path for path in paths if path and _ENDS_AT_A_MACHINE.issuperset(path.split(" and "))]
            told = {
                f"its repeats were carried by different paths ({', '.join(path or 'not known' for path in paths)}); "
                "they are not repeats of one another": len(paths) > 1,
                f"the recorded path ({''.join(within[:1])}) does not leave a machine; the nodes may be two names of "
                "one": within and _int(cell, "nodes") > 1,
                "what carried its gradients is not recorded": paths == [""] and _int(cell, "nodes") > 1,
            }
            found += [f"{where}: {text}." for text, holds in told.items() if holds]
        if len(counts) == 1:
            found.append(f"{series}: all of its runs are on {counts[0]} nodes; add a worker count that fits on one.")
        notes = [note for cell in own if _int(cell, "workers") > 1 and (note := hidden_note(cell, "sync_value_s"))]
        hidden = [f"{series}: {note}, so only that is given at the node boundary." for note in notes[:1]]
        found += of_kind("hidden", hidden)
    return found


def over_placements(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished parallel runs with series along which the placement may differ, and what each run waited.

    What it returned is taken as it is: every function here can be given it instead of a run table, but `fit_doubts`.
    """
    if "sync_value_s" in runs.columns:
        return runs
    table = with_series(runs)
    if any(table[name].nunique() > 1 for name in _PLACING):
        table = with_series(table.drop(columns=[*_PLACING, "ref_batch"]))
    table = table[measured(table) & ~table["backend"].isin(["serial", REPORTED]) & table["nodes"].notna()]
    table = table.assign(per_node=texts(table, "per_node"), path=texts(table, "path"))
    table = table.assign(per_step=MEAN, sync_value_s=table["sync_s"].astype(float), step_value_s=table["step_s"])
    if "sync_s_median" in table.columns:
        medians = pd.to_numeric(table["sync_s_median"])
        lacking = (medians.isna() & table["sync_s"].notna()).groupby(table["series"]).transform("any")
        table = table.assign(
            per_step=np.where(lacking, MEAN, MEDIAN),
            sync_value_s=table["sync_value_s"].where(lacking, medians),
            step_value_s=table["step_value_s"].where(lacking, table["step_s_median"]),
        )
    return table


def _cells(table: pd.DataFrame) -> dict[str, list[pd.DataFrame]]:
    """Return the rows of each cell of every series, in the order of workers and nodes."""
    return {
        str(series): [cell for _, cell in own.groupby(["workers", "nodes", "per_node"], sort=True, dropna=False)]
        for series, own in table.groupby("series", sort=False)
    }


def _int(cell: pd.DataFrame, name: str) -> int:
    return int(cell[name].iloc[0])


def hidden_note(cell: pd.DataFrame, column: str = "sync_s") -> str:
    """Return why some synchronisation of a cell is not known; empty where all is, or one worker's graph holds none."""
    if not cell[column].isna().any():
        return ""
    if CAPTURED in cell.columns and cell[CAPTURED].notna().any():
        return NOTES["captured"] if _int(cell, "workers") > 1 else ""
    return NOTES["hidden"]


def _side(cell: pd.DataFrame) -> dict[str, Any]:
    """Return what one side of a comparison is; `partly` is None where the record leaves it open."""
    uneven = True if _int(cell, "workers") % _int(cell, "nodes") else None
    return {
        **{name: cell[name].iloc[0] for name in ("workers", "nodes", "per_node")},
        "partly": " " in cell["per_node"].iloc[0] if cell["per_node"].iloc[0] else uneven,
        "path": " or ".join(sorted(set(cell["path"]) - {""})),
        "repeats": len(cell),
    }


def _row(fewer: pd.DataFrame, more: pd.DataFrame, kind: str) -> dict[str, Any]:
    """Return one comparison of two cells."""
    row: dict[str, Any] = {name: more[name].iloc[0] for name in (*_NAME, "per_step")} | {"kind": kind}
    values = []
    for side, cell in (("fewer", fewer), ("more", more)):
        both = cell[["sync_value_s", "step_value_s"]].to_numpy(dtype=np.float64)  # (R, 2)
        values.append(both)
        row |= {f"{side}_{name}": value for name, value in _side(cell).items()}
        row |= {f"{side}_sync_s": float(both[:, 0].mean()), f"{side}_step_s": float(both[:, 1].mean())}
    names = [tuple(zip(cell["study"], cell["repeat"], strict=True)) for cell in (more, fewer)]
    lows, highs, row["interval"] = difference_interval(values[1], values[0], *names)
    for name, start, low, high in zip(("sync_s", "step_s"), ("", "step_"), lows.tolist(), highs.tolist(), strict=True):
        row[f"{start}jump_s"] = row[f"more_{name}"] - row[f"fewer_{name}"]
        row |= {f"{start}low_s": low, f"{start}high_s": high}
        row[f"{start}resolved"] = low > 0 or high < 0 if math.isfinite(low) and math.isfinite(high) else None
    partly, few = row["fewer_partly"] or row["more_partly"], min(len(fewer), len(more)) < stats.MIN_REPEATS
    notes = (
        hidden_note(fewer, "sync_value_s") or hidden_note(more, "sync_value_s"),
        NOTES["alone" if row["fewer_workers"] == 1 else "workers"] if kind == INDIRECT else "",
        NOTES["partly"] if partly else "",
        f"fewer than {stats.MIN_REPEATS} repeats, so chance cannot be distinguished from a difference" if few else "",
    )
    row["note"] = "; ".join(filter(None, notes))
    return row | dict.fromkeys(("beyond_s", "beyond_low_s", "beyond_high_s"), math.nan) | {"beyond_resolved": None}


def _beyond(left: Sequence[pd.DataFrame], more: pd.DataFrame) -> dict[str, Any]:
    """Return what `more` waits longer than the growth within the cells on fewer nodes leads to, with its interval.

    The growth is the straight line of least squares through the means of the cells with several workers, against each
    of _GROWTHS; what it says of more workers is a sum of those means with fixed weights, so that variances add
    (Welch's degrees of freedom).
    """
    inside = [cell for cell in left if _int(cell, "workers") > 1]
    counts = np.array([_int(cell, "workers") for cell in inside], dtype=np.float64)
    samples = [cell["sync_value_s"].to_numpy(dtype=np.float64) for cell in (more, *inside)]
    if len(set(counts)) < 2 or any(np.isnan(each).any() for each in samples):
        return {}
    means = np.array([each.mean() for each in samples])
    sizes = np.array([len(each) for each in samples])
    repeated = bool(sizes.min() >= stats.MIN_REPEATS)
    squares = np.array([each.var(ddof=1) if repeated else math.nan for each in samples]) / sizes
    weights = []
    for growth in _GROWTHS:
        line = np.column_stack([np.ones_like(counts), growth(counts)])
        there = np.array([1.0, growth(float(_int(more, "workers")))])
        weights.append(np.append(1.0, -there @ np.linalg.pinv(line)))
    values = np.array([each @ means for each in weights])
    variances, freedom = stats.welch(np.stack([each**2 * squares for each in weights], axis=1), sizes)
    half = stats.half_width(np.sqrt(variances), freedom)
    low, high = float((values - half).min()), float((values + half).max())
    resolved = bool(low > 0 or high < 0) if repeated else None
    ends = {"beyond_s": sum(values.tolist()) / len(values), "beyond_low_s": low, "beyond_high_s": high}
    return {**ends, "beyond_resolved": resolved}


def fit_doubts(runs: pd.DataFrame) -> list[str]:
    """Return for which series some worker counts are left out of the laws, being on more nodes than others."""
    table = with_series(runs)
    table = table[measured(table) & (table["backend"] != "serial")]
    return [
        f"{series}: {worker_counts(rows['workers'])} ran on several numbers of nodes; laws are fitted to the fewest."
        for series, rows in table[~fewest_nodes(table)].groupby("series", sort=False)
    ]
