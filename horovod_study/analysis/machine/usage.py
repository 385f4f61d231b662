"""What the machine did while it trained: use and power of GPUs, of cores, memory, against workers and over time.

A cell is what its repeats say together, as in `points`. Every value of a run is its mean over the timed window, as
its totals have it; docs/system.md says where each comes from.
"""

import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import cells_of, measured, numbers, texts, whole_numbers, with_series

QUANTITIES = {
    "gpu_percent": "mean over the GPUs",
    "gpu_power_w": "sum over the GPUs",
    "gpu_power_w_per_gpu": "mean over the GPUs",
    "gpu_memory_mb": "largest of the window, mean over the GPUs",
    "cpu_percent_per_rank": "of one core, mean over the ranks",
    "rss_mb_per_rank": "largest of the window, mean over the ranks",
    "package_power_w": "sum over the processors",
}
"""Columns of the run table, and what each is of the devices of a run."""

_IDENTITY = ("series", "setting", "partition", "backend", "transport", "reduction", "horovod_defaults")

USAGE_COLUMNS = (
    *(*_IDENTITY, "workers", "nodes", "batch", "mode", "device", "repeats"),
    *(f"{name}_{end}" for name in QUANTITIES for end in ("repeats", "median", "min", "max", "low", "high")),
)
"""One row per cell with a finished run; `NAME_repeats` is how many of its runs know the quantity."""


def usage(runs: pd.DataFrame) -> pd.DataFrame:
    """Return USAGE_COLUMNS of the finished runs of a run table (records.run_table); NaN where no run knows a value."""
    table = with_series(runs)
    table = table[measured(table)]
    rows = []
    for cell in cells_of(table):
        rows.append({**_head(cell), "device": " and ".join(sorted(set(texts(cell, "device")) - {""}))})
        for name in QUANTITIES:
            values = numbers(cell, name)
            known = np.sort(values[np.isfinite(values)].to_numpy(dtype=np.float64))
            ends = {"repeats": len(known), **stats.spread(known)}
            rows[-1] |= {f"{name}_{end}": value for end, value in ends.items()}
    frame = pd.DataFrame(rows, columns=list(USAGE_COLUMNS))
    return whole_numbers(frame, ("workers", "nodes", "batch"))


def _head(cell: pd.DataFrame) -> dict[str, Any]:
    first = cell.iloc[0]
    return {name: first[name] for name in (*_IDENTITY, "workers", "nodes", "batch", "mode")} | {"repeats": len(cell)}


SLICES = 20  # of a timed window: its course over the repeats is said of so many equal parts of its steps

OVER_TIME = ("step_s", "cpu_percent_per_rank", "rss_mb_per_rank", "gpu_percent", "gpu_memory_mb", "gpu_power_w")
"""Columns of the profiles of runs."""

LOAD_COLUMNS = (
    *(*_IDENTITY, "workers", "nodes", "batch", "mode", "repeats", "slice", "at_s"),
    *(f"{name}_{end}" for name in OVER_TIME for end in ("median", "min", "max")),
)
"""One row per cell and slice of its timed window. at_s: seconds since the window began, median over repeats."""


def load(runs: pd.DataFrame, profiles: pd.DataFrame) -> pd.DataFrame:
    """Return LOAD_COLUMNS: the course of the timed window of every cell, over the repeats that have a profile.

    `profiles` is the table of run_profiles.py: a run has up to 40 parts of equal numbers of steps, and a slice takes
    what its run says at its middle. NaN where no repeat knows a value.
    """
    table = with_series(runs)
    table = table[measured(table) & table["run"].isin(profiles["run"])]
    ordered = profiles.sort_values(["run", "part"], kind="stable")
    values = ordered[list(OVER_TIME)].to_numpy(dtype=np.float64)
    begin_s, end_s = (ordered[name].to_numpy(dtype=np.float64) for name in ("begin_s", "end_s"))
    courses: dict[str, NDArray[np.float64]] = {}  # run -> the middle of each slice, (SLICES, 1 + len(OVER_TIME))
    for run, rows in ordered.groupby("run", sort=False).indices.items():
        places = rows[((np.arange(SLICES) + 0.5) / SLICES * len(rows)).astype(np.int64)]
        at_s = (begin_s[places] + end_s[places]) / 2 - begin_s[rows[0]]
        courses[str(run)] = np.column_stack([at_s, values[places]])
    cells = cells_of(table)
    if not cells:
        return pd.DataFrame(columns=list(LOAD_COLUMNS))
    heads = pd.DataFrame([_head(cell) for cell in cells])
    found = heads.loc[heads.index.repeat(SLICES)].reset_index(drop=True)
    found["slice"] = np.tile(np.arange(SLICES), len(cells))
    repeats = [np.stack([courses[name] for name in cell["run"]]) for cell in cells]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN: no repeat knows it
        for end in ("median", "min", "max"):
            columns = np.concatenate([getattr(np, f"nan{end}")(each, axis=0) for each in repeats])
            found[[f"{name}_{end}" for name in ("at_s", *OVER_TIME)]] = columns
    return found.rename(columns={"at_s_median": "at_s"})[list(LOAD_COLUMNS)]
