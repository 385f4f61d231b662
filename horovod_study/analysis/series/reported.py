"""Somebody's table of points as a run table, so that a report can be made of numbers of which no run was recorded.

Every row is a finished run of which workers and throughput are known, and of nodes, batch and synchronisation what the
table says. How its workers communicated is not: the library is `REPORTED`. Of nodes, 1 stands where all workers of the
row fit on one; it is unknown elsewhere.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.series.baselines import base_of
from horovod_study.analysis.series.culprits import of_kind
from horovod_study.analysis.series.points import GIVEN_BASE, REPORTED, REQUIRED, numbers

_TEXTS = {"reason": "", "transport": "none", "precision": "auto", "reduction": "auto", "horovod_defaults": False}


def run_rows(points: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one row per row of `points` (`importers.parse_points`), with the columns of `records.run_table`.

    Runs are named by their place, `row-0001`; a partition is a series of the table, `name` where it has none.
    """
    count = len(points)
    known = {
        column: numbers(points, column) for column in ("nodes", "workers_per_node", "batch_size", "repeat", "sync_s")
    }
    nodes = known["nodes"].fillna(np.ceil(points["workers"] / known["workers_per_node"]))
    series = points["series"].astype(str) if "series" in points else pd.Series(name, points.index)
    point = [series, points["workers"], nodes.fillna(0), known["batch_size"].fillna(0)]
    counted = points.groupby(point).cumcount().astype(float)
    # What speedups are over, where that is none of the rows.
    bases = {name: base_of(rows) for name, rows in points.groupby(series)}
    given = {name: math.nan if base.workers else base.samples_per_s for name, base in bases.items()}
    found: dict[str, Any] = {**dict.fromkeys(REQUIRED, math.nan), **_TEXTS, "study": name, "status": "done"}
    found |= {"run": [f"row-{place + 1:04}" for place in range(count)], "model": REPORTED, "backend": REPORTED}
    found |= {"partition": series.where(series != "", name), GIVEN_BASE: series.map(given).astype(float)}
    found["repeat"] = known["repeat"].where(known["repeat"].notna(), counted).astype(int)
    found |= {name: points[name] for name in ("workers", "samples_per_s")} | {"nodes": nodes, "sync_s": known["sync_s"]}
    found |= {"batch": known["batch_size"], "global_batch": known["batch_size"] * points["workers"]}
    return pd.DataFrame(found, index=range(count))


def doubts(points: pd.DataFrame) -> list[str]:
    """Return what a reader of a report must know of the table: how it was read, and what is odd in it."""
    read = points.attrs.get("read", "")
    told = [f"no run was recorded: the numbers are those of a table{', read as: ' if read else ''}{read}."]
    return of_kind("table", [*told, *(f"{each}." for each in points.attrs.get("doubts", ()))])
