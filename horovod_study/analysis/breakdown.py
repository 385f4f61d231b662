"""Where the time of a step goes, and what more workers add to it.

Laps tile the step: data, forward, backward, sync, update and the residual ("unexplained") add up to the step, so
differences of laps add up to the difference of steps. docs/metrics.md defines each lap and its limits.
"""

import math
from typing import Any

import pandas as pd

from horovod_study.analysis.points import CELL, LAP_COLUMNS, baseline_place, measured, with_series, worker_counts

NOTES = {
    "hidden": "inside backward",
    "alone": "one worker has nobody to wait for",
}
"""Why a sync lap is empty: the backend cannot see it, or there is no communication."""

PARTS = ("data", "forward", "backward", "sync", "update", "residual", "step")
"""The rows of one cell, in the order of a step; `step` is the whole."""

TILING = 0.01
UNEXPLAINED = 0.05
GROWTH_WORTH_SPLITTING = 0.02


def breakdown(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (series, workers, nodes, lap): its mean seconds per step, its share, its part of the growth.

    mean_s is the mean over repeats of the recorded means per step: unlike medians, means of laps that tile still
    tile. minus_plain_s and minus_wrapped_s are mean_s less the same lap of the one-worker baseline (for a strong
    series less that lap / workers, the step of an ideal machine); growth_plain and growth_wrapped are their shares of
    the growth of the whole step, left out where that is below 2 % of the step. NaN where unknown; `note` says why a
    sync is empty or trivial.
    """
    table = with_series(runs)
    cells: list[dict[str, Any]] = []
    for _, cell in table[measured(table)].groupby(["series", *CELL], dropna=False, sort=False):
        timed = cell[cell["step_s"].astype(float) > 0]
        if not timed.empty:
            first = {f"{name}": value for name, value in cell.iloc[0].items()}
            cells.append({**first, "repeats": len(timed), "means": _means(timed)})
    rows = [row for cell in cells for row in _rows(cell, cells)]
    columns = [
        *("series", "partition", "backend", "transport", "batch", "workers", "nodes", "mode", "repeats", "lap"),
        *("mean_s", "share", "minus_plain_s", "growth_plain", "minus_wrapped_s", "growth_wrapped", "note"),
    ]
    frame = pd.DataFrame(rows, columns=columns)
    for column in ("batch", "workers", "nodes"):
        if len(frame) and (frame[column] % 1 == 0).all():
            frame[column] = frame[column].astype("int64")
    return frame


def _means(runs: pd.DataFrame) -> dict[str, float]:
    """Return the mean over repeats of each lap in s; a lap that any repeat does not know is NaN."""
    columns = {**{column[: -len("_s")]: column for column in LAP_COLUMNS}, "step": "step_s"}
    return {part: float(runs[columns[part]].astype(float).mean(skipna=False)) for part in PARTS}


def _rows(cell: dict[str, Any], cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    means = cell["means"]
    note = ""
    if math.isnan(means["sync"]):
        note = NOTES["hidden"]
    elif cell["workers"] == 1:
        note = NOTES["alone"]
    bases = {kind: _base(cell, cells, kind) for kind in ("plain", "wrapped")}
    scale = cell["batch"] / cell["ref_batch"]
    rows = []
    for part in PARTS:
        row = {
            name: cell[name] for name in ("series", "partition", "backend", "transport", "batch", "workers", "nodes")
        }
        row |= {"mode": cell["mode"], "repeats": cell["repeats"], "lap": part}
        row |= {"mean_s": means[part], "share": means[part] / means["step"]}
        for kind, base in bases.items():
            minus = math.nan if base is None else means[part] - scale * base[part]
            whole = math.nan if base is None else means["step"] - scale * base["step"]
            split = abs(whole) >= GROWTH_WORTH_SPLITTING * means["step"]
            row |= {f"minus_{kind}_s": minus, f"growth_{kind}": minus / whole if split else math.nan}
        row["note"] = note if part == "sync" else ""
        rows.append(row)
    return rows


def _base(cell: dict[str, Any], cells: list[dict[str, Any]], kind: str) -> dict[str, float] | None:
    """Return the lap means of the one-worker cell of the same work, by the rule that speedups use."""
    place = baseline_place(cells, cell, kind)
    return None if place is None else dict(cells[place]["means"])


def doubts(runs: pd.DataFrame) -> list[str]:
    """Return what a reader must know before believing the laps: steps that do not close, and unexplained time."""
    table = with_series(runs)
    good = table[measured(table) & (table["step_s"].astype(float) > 0)]
    laps = good[list(LAP_COLUMNS)].astype(float)
    step = good["step_s"].astype(float)
    known = laps.notna().any(axis=1)
    gap = (laps.sum(axis=1) - step).abs() / step
    residual = laps["residual_s"].abs() / step
    found = []
    for series, rows in good[known & (gap > TILING)].groupby("series", sort=False):
        found.append(
            f"{series}: the laps of {len(rows)} run{'s' if len(rows) > 1 else ''} at "
            f"{worker_counts(rows['workers'])} do not add up to the step (off by up to "
            f"{100 * gap[rows.index].max():.1f} %); do not quote their shares."
        )
    for series, rows in good[residual > UNEXPLAINED].groupby("series", sort=False):
        found.append(
            f"{series}: up to {100 * residual[rows.index].max():.1f} % of the step at "
            f"{worker_counts(rows['workers'])} is unexplained (outside every lap)."
        )
    return found
