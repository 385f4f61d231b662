"""Synchronisation against workers: per step, per epoch, its share of the step, and the law it follows.

A run says how long it waited for gradients in the mean step of its window; an epoch has floor(training samples /
(batch x workers)) steps. Both, and their share of the step, are of one run, then the median over repeats, with
Student's t on logarithms around it. Unknown is NaN. docs/metrics.md defines all of it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import QuantityFit, fit_quantity
from horovod_study.analysis.fit.form import REACH
from horovod_study.analysis.series.culprits import of_kind
from horovod_study.analysis.series.points import measured, texts, with_series, worker_counts
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps import breakdown
from horovod_study.analysis.sync import boundary
from horovod_study.records import finite

SYNC_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "batch", "train_samples", "workers", "nodes"),
    *("per_node", "repeats", "step_s_median"),
    *("sync_s_median", "sync_s_min", "sync_s_max", "sync_s_low", "sync_s_high"),
    *("share_median", "share_low", "share_high", "batches_per_epoch"),
    *("sync_per_epoch_s_median", "sync_per_epoch_s_low", "sync_per_epoch_s_high", "epoch_s_median", "note"),
    *("reduction", "horovod_defaults"),
)
"""One row per cell of the parallel runs. `step_s` is the mean step of a run."""

CURVE_COLUMNS = (
    *("series", "law", "workers", "nodes", "sync_s", "sync_low_s", "sync_high_s", "extrapolated"),
    *("batches_per_epoch", "sync_per_epoch_s", "sync_per_epoch_low_s", "sync_per_epoch_high_s"),
)
"""The selected law of each series at whole worker counts."""

MIN_COUNTS = 3  # a curve through fewer worker counts says nothing that they do not say
_MAX_COUNTS = 60  # worker counts of one curve; with more, some between are left out
_KEYS = ("series", "batch", "train_samples", "workers", "nodes", "per_node")
KEPT = ("setting", "partition", "backend", "transport", "reduction", "horovod_defaults")
"""What tables of cells say of the settings of their series."""
NO_EPOCH = "how many samples an epoch has is not recorded"
NO_BATCH = "the training set is smaller than one batch of all workers"


def batches_per_epoch(train_samples: float, batch: float, workers: float) -> float:
    """Return how many whole steps an epoch has: what is left over makes no batch. NaN where something is unknown."""
    samples = batch * workers
    if not (math.isfinite(train_samples) and math.isfinite(samples) and samples > 0):
        return math.nan
    return float(train_samples // samples)


def synchronisation(runs: pd.DataFrame) -> pd.DataFrame:
    """Return SYNC_COLUMNS of the finished parallel runs of a run table (records.run_table), one row per cell.

    A cell is a series at one number of workers on one number of nodes, and one filling of them. Raises AnalysisError
    for a table without runs or without a needed column.
    """
    rows = []
    for _, cell in parallel(runs).groupby(list(_KEYS), sort=False, dropna=False):
        first = cell.iloc[0]
        sync, step = (cell[name].to_numpy(dtype=np.float64) for name in ("sync_s", "step_s"))
        batches = batches_per_epoch(first["train_samples"], first["batch"], first["workers"])
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(step > 0, sync / step, math.nan)
        usable = batches if batches > 0 else math.nan
        hidden = boundary.hidden_note(cell)
        if np.isnan(sync).any() and not np.isfinite(step).all():
            hidden = breakdown.NOTES["off"]
        alone = breakdown.NOTES["alone"] if int(first["workers"]) == 1 else ""
        no_epoch = "" if batches > 0 else NO_EPOCH if math.isnan(batches) else NO_BATCH
        row = {name: first[name] for name in (*_KEYS, *KEPT)}
        row |= {"repeats": len(cell), "step_s_median": stats.of_all(step), "batches_per_epoch": batches}
        row |= over_repeats("sync_s", sync) | {"sync_s_min": float(sync.min()), "sync_s_max": float(sync.max())}
        row |= over_repeats("share", share) | over_repeats("sync_per_epoch_s", usable * sync)
        row |= {"epoch_s_median": usable * stats.of_all(step)}
        rows.append(row | {"note": "; ".join(filter(None, (hidden or alone, no_epoch)))})
    frame = pd.DataFrame(rows, columns=list(SYNC_COLUMNS))
    return frame.astype({"workers": "int64", "nodes": "float64", "repeats": "int64"})


def fits(runs: pd.DataFrame, *, seed: int = 0) -> dict[str, QuantityFit]:
    """Return the laws of synchronisation per step against workers of every series with two known counts above one.

    One worker waits for nobody and is not fitted; neither are equal workers on more nodes than they need, which are
    another curve. Nodes count where they are known.
    """
    table = parallel(runs)
    table = table[(table["workers"] > 1) & (table["sync_s"].astype(float) > 0)]
    if table.empty:
        return {}
    table = table[boundary.fewest_nodes(table)]
    found = {}
    for series, own in table.groupby("series", sort=False):
        if own["workers"].nunique() < 2:
            continue
        workers, waits, nodes = (own[name].to_numpy(dtype=np.float64) for name in ("workers", "sync_s", "nodes"))
        known = nodes if np.isfinite(nodes).all() else None
        found[str(series)] = fit_quantity(workers, waits, nodes=known, runs=np.arange(len(own)), seed=seed)
    return found


def curves(fitted: Mapping[str, QuantityFit], cells: pd.DataFrame) -> pd.DataFrame:
    """Return CURVE_COLUMNS: the selected law of each fitted series, per step and, where batches are known, per epoch.

    `cells` is the table of `synchronisation`. Worker counts are whole and go on to REACH times the largest one; how
    many nodes those take is read off the fullest node measured. A series that crosses a node boundary has no curve
    where its law knows nothing of nodes: a smooth line through a jump would claim what was not seen.
    """
    frames = []
    for series, fit in fitted.items():
        if fit.selected is None:
            continue
        law = fit.fits[fit.selected]
        own = cells[(cells["series"] == series) & (cells["workers"] > 1)]
        if own["workers"].nunique() < MIN_COUNTS or (own["nodes"].nunique() > 1 and not law.form_.by_nodes):
            continue
        first, last = int(own["workers"].min()), int(own["workers"].max())
        most = max(last + 1, math.ceil(REACH * last))
        workers = np.arange(first, most + 1, dtype=np.float64)
        if most - first >= _MAX_COUNTS:  # evenly apart on a logarithmic scale
            workers = np.unique(np.geomspace(first, most, _MAX_COUNTS).round())
        nodes = np.ones_like(workers)  # on one node nobody knows where it ends
        if own["nodes"].max() != 1:  # each node as full as the fullest measured one
            nodes = np.ceil(workers / np.ceil(own["workers"] / own["nodes"]).max())
        known = nodes if np.isfinite(nodes).all() else None
        sync = law(workers, known)
        low, high = law.interval(workers, known)
        sync, low = (np.maximum(each, 0.0) for each in (sync, low))
        batches = _batches(own, workers)
        names = {"series": series, "law": fit.selected, "workers": workers.astype("int64"), "nodes": nodes}
        waits = {"sync_s": sync, "sync_low_s": low, "sync_high_s": high}
        epochs = {name.replace("sync", "sync_per_epoch"): batches * each for name, each in waits.items()}
        more = {"extrapolated": workers > last, "batches_per_epoch": batches}
        frames.append(pd.DataFrame({**names, **waits, **more, **epochs}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(CURVE_COLUMNS))


def doubts(cells: pd.DataFrame, fitted: Mapping[str, QuantityFit]) -> list[str]:
    """Return what a reader must know of the waiting and its laws, one sentence or two per series, in a stable order."""
    found = []
    for series, fit in fitted.items():
        own = cells[(cells["series"] == series) & (cells["workers"] > 1)]
        if fit.selected is not None and own["nodes"].nunique() > 1 and not fit.fits[fit.selected].form_.by_nodes:
            crosses = "its waiting for gradients crosses a node boundary, and its worker counts are too few for a law"
            found.append(f"{series}: {crosses} that knows of nodes; {fit.selected}, the closest other, is not drawn.")
    several = cells[cells["workers"] > 1]
    wide = several[(several["sync_s_high"] - several["sync_s_low"]) > several["sync_s_median"]]
    for name, own in wide.groupby("series", sort=False):
        told = f"{name}: the repeats do not agree on the waiting for gradients at {worker_counts(own['workers'])}"
        found += of_kind("unsteady", [f"{told} (95 % interval wider than the value); its law is poorly supported."])
    return found


def parallel(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs that have somebody to communicate with or could have, with their series; per_node as
    text.

    Every function here, and transports.py, can be given what it returned instead of a run table.
    """
    table = with_series(runs)
    table = table[measured(table) & (table["backend"] != "serial")]
    return table.assign(per_node=texts(table, "per_node"))


def over_repeats(name: str, values: Floats) -> dict[str, float]:
    """Return NAME_median, _low and _high over repeats (R,); NaN where a repeat is unknown, or the interval is."""
    found = stats.spread(values if np.isfinite(values).all() else ())
    return {f"{name}_{end}": found[end] for end in ("median", "low", "high")}


def _batches(own: pd.DataFrame, workers: Floats) -> Floats:
    """Return the batches per epoch at each worker count, under the rule that the measured cells follow; (N,).

    Fixed local batch or fixed global batch, and a fixed or a growing training set; NaN where neither is the case.
    """
    batch, n, samples = (own[name].to_numpy(dtype=np.float64) for name in ("batch", "workers", "train_samples"))
    grown = [(batch, batch * n, 1 / workers), (samples, samples / n, workers)]  # what is fixed, else what is, and how
    local, data = (
        one[0] if np.ptp(one) == 0 else (other[0] if np.ptp(other) == 0 else math.nan) * how
        for one, other, how in grown
    )
    with np.errstate(invalid="ignore"):
        found = data // (local * workers)
    return np.where(found > 0, found, math.nan)


def document(fitted: Mapping[str, QuantityFit]) -> dict[str, Any]:
    """Return the laws of every series in plain values."""
    return {"quantity": "sync_s", "unit": "s per step", "series": {name: finite(fit) for name, fit in fitted.items()}}
