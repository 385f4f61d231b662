"""For other programs: what a run did over time, as curves of an experiment tracker, and points for Extra-P.

Extra-P (https://github.com/extra-p/extrap) models one curve per call path and metric against parameters; here a call
path is a series, the parameter is the number of workers, and the values of a point are the repeats.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.series.culprits import base_of, of_kind, withheld
from horovod_study.analysis.series.points import (
    GIVEN_BASE,
    REPORTED,
    REQUIRED,
    measured,
    numbers,
    scaling_points,
    with_series,
)
from horovod_study.analysis.sync.synchronisation import fewest_nodes
from horovod_study.config.run import LAPS
from horovod_study.errors import AnalysisError

POINT_COLUMNS = ("series", "workers", "nodes", "batch_size", "repeat", "samples_per_s", "sync_s")
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
        for metric in ("step_s", "s_per_sample", "sync_s"):
            known = rows[np.isfinite(rows[metric])].groupby(rows["workers"].astype(int), sort=True)[metric]
            curve = {int(f"{count}"): values.tolist() for count, values in known}
            if len(curve) > 1:
                told = [{"point": [count], "values": values} for count, values in curve.items()]
                found.setdefault(tuple(curve), {}).setdefault(f"{series}", {})[metric] = told
    if not found:
        raise AnalysisError("no series has two worker counts; a model of one point says nothing")
    ordered = sorted(found.items(), key=lambda each: (-sum(map(len, each[1].values())), each[0]))
    return {counts: {"parameters": ["workers"], "measurements": curves} for counts, curves in ordered}


CURVE_POINTS = 1000
"""At most so many points of a curve are made from steps: each is the median, or the rate, of equally many of them."""

_TIMED = [*(f"{lap}_s" for lap in (*LAPS, "residual", "step")), "sync_host_s"]


def history(rows: Mapping[int, pd.DataFrame], evaluations: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """Return the curves of a run in long form, sorted by tag and step; `at_s` counts from its begin.

    `rows`: {rank: step rows}. Laps in ms are medians over the steps of a point, then means over ranks; the loss is the
    mean over steps and ranks; samples/s are those of all ranks divided by the time of the slowest. Where a rank has
    fewer rows than another (it was killed), the curves end with the shortest. Unknown laps have no curve.
    """
    found = [
        (f"evaluation/{name}", int(each["steps"]), float(each["wall_s"]), float(each[name]))
        for each in evaluations
        for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "lr")
    ]
    if length := min((len(frame) for frame in rows.values()), default=0):
        part = np.arange(length) // -(-length // CURVE_POINTS)
        ranks = [frame[:length].assign(rank=rank, part=part) for rank, frame in sorted(rows.items())]
        ends = ranks[0].groupby("part").last()
        if ranks[0]["begin_s"].isna().any():  # rows of an older program: pauses between the steps are not known
            ends["begin_s"] = ranks[0]["step_s"].cumsum().groupby(part).last()
        of_ranks = pd.concat(ranks).astype(dict.fromkeys((*_TIMED, "loss"), float)).groupby(["part", "rank"])
        medians, sums = 1e3 * of_ranks[_TIMED].median(), of_ranks[["samples", "step_s"]].sum()
        curves = {f"steps/{name.removesuffix('_s')}_ms": medians[name].unstack() for name in _TIMED}
        curves["steps/loss"] = of_ranks["loss"].mean().unstack()
        values = {tag: each.mean(axis=1, skipna=False) for tag, each in curves.items()}
        values["steps/samples_per_s"] = sums["samples"].groupby("part").sum() / sums["step_s"].groupby("part").max()
        for tag, curve in values.items():
            found += [
                (tag, int(a), float(b), float(c)) for a, b, c in zip(ends["step"], ends["begin_s"], curve, strict=True)
            ]
    table = pd.DataFrame(found, columns=["tag", "step", "at_s", "value"]).sort_values(["tag", "step"], kind="stable")
    return pd.DataFrame(table[np.isfinite(table["value"])].reset_index(drop=True))


# -------------------------------------------------------------------------------------- somebody's table as a run table

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
