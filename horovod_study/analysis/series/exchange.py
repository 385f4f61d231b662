"""Measured points as JSON for Extra-P (https://github.com/extra-p/extrap), which models one curve per call path and
metric against parameters; here a call path is a series, the parameter is the number of workers, and the values of a
point are the repeats:

    step_s         seconds per step: workers x batch_size / samples_per_s
    s_per_sample   seconds per sample of all workers together: 1 / samples_per_s
    sync_s         exposed synchronisation, seconds per step
"""

from collections.abc import Mapping
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


def extra_p(points: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows of a points file (workers, samples_per_s, others where known) as documents of Extra-P's JSON form.

    Extra-P wants every curve of a file at all of the file's points: there is one document for each set of worker
    counts, that with the most curves first. A metric is known at a point where any repeat knows it; a curve of one
    worker count is left out. Raises AnalysisError where nothing is left.
    """
    curves: dict[tuple[int, ...], dict[str, dict[str, list[dict[str, Any]]]]] = {}
    series = points["series"].astype(str) if "series" in points.columns else pd.Series("", points.index)
    for name, rows in points.groupby(series, sort=True):
        per_s = numbers(rows, "samples_per_s")
        step_s = numbers(rows, "workers") * numbers(rows, "batch_size") / per_s
        for metric, values in zip(_METRICS, (step_s, 1 / per_s, numbers(rows, "sync_s")), strict=True):
            known = values[np.isfinite(values)]
            found = known.groupby(rows.loc[known.index, "workers"].astype(int), sort=True)
            curve = [{"point": [int(str(count))], "values": each.tolist()} for count, each in found]
            if len(curve) > 1:
                counts = tuple(each["point"][0] for each in curve)
                curves.setdefault(counts, {}).setdefault(str(name) or "all points", {})[metric] = curve
    if not curves:
        raise AnalysisError("no series has two worker counts; a model of one point says nothing")
    ordered = sorted(curves.items(), key=lambda item: (-sum(map(len, item[1].values())), item[0]))
    return [{"parameters": ["workers"], "measurements": measurements} for _, measurements in ordered]


def counts_of(document: Mapping[str, Any]) -> list[int]:
    """Return the worker counts of a document of `extra_p`."""
    first = next(iter(next(iter(document["measurements"].values())).values()))
    return [each["point"][0] for each in first]
