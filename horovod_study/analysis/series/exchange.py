"""Measured points as JSON for Extra-P (https://github.com/extra-p/extrap), which models one curve per call path and
metric against parameters; here a call path is a series, the parameter is the number of workers, and the values of a
point are the repeats:

    step_s         seconds per step: workers x batch_size / samples_per_s
    s_per_sample   seconds per sample of all workers together: 1 / samples_per_s
    sync_s         exposed synchronisation, seconds per step
"""

from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.series.culprits import withheld
from horovod_study.analysis.series.points import measured, numbers, scaling_points, with_series
from horovod_study.analysis.sync.boundary import fewest_nodes
from horovod_study.errors import AnalysisError

POINT_COLUMNS = ("series", "workers", "nodes", "batch_size", "repeat", "samples_per_s", "sync_s")
_METRICS = ("step_s", "s_per_sample", "sync_s")
MIN_COUNTS = 5
"""Extra-P asks for so many values of each parameter; with fewer it models, and its authors warn of the result."""


def points_of(runs: pd.DataFrame, left_out: dict[str, str] | None = None) -> pd.DataFrame:
    """Return the finished runs of several workers' series of an analysis (its table `runs`) as points.

    Columns POINT_COLUMNS; of a worker count those on the fewest nodes, which are what the laws of the analysis were
    fitted to, and none whose speedup is withheld: into `left_out` comes {run: why}. Repeats are numbered again in a
    point whose numbers are not different. Raises AnalysisError where there are none.
    """
    place = ["series", "workers", "nodes"]
    points = scaling_points(runs)
    points["why"] = [withheld({f"{name}": value for name, value in row.items()}) for row in points.to_dict("records")]
    known = with_series(runs)
    known = known[measured(known)].merge(points[[*place, "why"]].drop_duplicates(place), how="left", on=place)
    why = {run: f"no speedup: {why}" for run, why in zip(known["run"], known["why"], strict=True) if why}
    rows = known[(known["backend"] != "serial") & (known["why"] == "")]
    parted = set(known.loc[known["why"] != "", "series"]) - set(rows.loc[rows["workers"] > 1, "series"])
    rows = rows[~rows["series"].isin(parted)]  # what is left of them is a baseline
    if rows.empty:
        reason = next((f"{run}: {each}" for run, each in why.items()), "no run of a communication library is finished")
        raise AnalysisError(f"{reason}; there is nothing to fit, to forecast or to export")
    if left_out is not None:
        left_out |= why
    rows = rows[fewest_nodes(rows)].rename(columns={"batch": "batch_size"})
    table = rows[[*POINT_COLUMNS, "run"]].sort_values(
        ["series", "workers", "nodes", "batch_size", "repeat", "run"], kind="stable", ignore_index=True
    )
    point = ["series", "workers", "nodes", "batch_size"]
    twice = table.duplicated([*point, "repeat"], keep=False)
    again = twice.groupby([table[name] for name in point], dropna=False).transform("any")
    counted = table.groupby(point, dropna=False).cumcount()
    return table.assign(repeat=table["repeat"].where(~again, counted))[list(POINT_COLUMNS)]


def extra_p(points: pd.DataFrame) -> dict[tuple[int, ...], dict[str, Any]]:
    """Return rows of a points file (workers, samples_per_s, others where known) as documents of Extra-P's JSON form.

    Extra-P wants every curve of a file at all of the file's points: there is one document for each set of worker
    counts, that with the most curves first. A metric is known at a point where any repeat knows it; a curve of one
    worker count is left out. Raises AnalysisError where nothing is left.
    """
    table = points.assign(
        series=points.get("series", pd.Series("", points.index)).astype(str).replace("", "all points")
    )
    table["s_per_sample"] = 1 / numbers(table, "samples_per_s")
    table["step_s"] = numbers(table, "workers") * numbers(table, "batch_size") * table["s_per_sample"]
    table["sync_s"] = numbers(table, "sync_s")
    found: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
    for series, rows in table.groupby("series", sort=True):
        for metric in _METRICS:
            known = rows[np.isfinite(rows[metric])].groupby(rows["workers"].astype(int), sort=True)[metric]
            curve = {int(f"{count}"): values.tolist() for count, values in known}
            if len(curve) > 1:
                told = [{"point": [count], "values": values} for count, values in curve.items()]
                found.setdefault(tuple(curve), {}).setdefault(f"{series}", {})[metric] = told
    if not found:
        raise AnalysisError("no series has two worker counts; a model of one point says nothing")
    ordered = sorted(found.items(), key=lambda each: (-sum(map(len, each[1].values())), each[0]))
    return {counts: {"parameters": ["workers"], "measurements": curves} for counts, curves in ordered}
