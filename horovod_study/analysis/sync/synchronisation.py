"""Synchronisation against workers: per step, per epoch, its share of the step, and the law it follows.

A run says how long it waited for gradients in the mean step of its window; an epoch has floor(training samples /
(batch x workers)) steps. Both, and their share of the step, are of one run, then the median over repeats, with
Student's t on logarithms around it. Unknown is NaN. docs/metrics.md defines all of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import QuantityFit, fit_quantity
from horovod_study.analysis.fit.least_squares import REACH
from horovod_study.analysis.series.culprits import of_kind
from horovod_study.analysis.series.points import (
    CAPTURED,
    CHOICES,
    KNOBS,
    REPORTED,
    SETTINGS,
    StudyTurns,
    measured,
    numbers,
    texts,
    with_series,
    worker_counts,
)
from horovod_study.analysis.stats import MIN_REPEATS, Floats, Interval
from horovod_study.analysis.steps import breakdown
from horovod_study.analysis.steps.breakdown import difference_interval
from horovod_study.config.roles import Role
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.text.words import plural

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
        hidden = hidden_note(cell)
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
    table = table[fewest_nodes(table)]
    found = {}
    for series, own in table.groupby("series", sort=False):
        if own["workers"].nunique() < 2:
            continue
        workers, waits, nodes = (own[name].to_numpy(dtype=np.float64) for name in ("workers", "sync_s", "nodes"))
        known = nodes if np.isfinite(nodes).all() else None
        found[str(series)] = fit_quantity(workers, waits, nodes=known, seed=seed)
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

    Every function here can be given what it returned instead of a run table.
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


# ------------------------------------------------------------------------------------------ how much is Horovod's cycle

_DEFAULT_CYCLE_S = 1e-3  # of Horovod 0.28 (horovod/common/operations.cc, HOROVOD_CYCLE_TIME)

CYCLE_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch", "cycles", "runs"),
    *("shortest_cycle_s", "longest_cycle_s", "rest_of_step_s", "slope", "slope_low", "slope_high"),
    *("expected_low", "expected_high", "rest_s", "rest_low_s", "rest_high_s", "default_cycle_s"),
    *("share_at_default", "share_low", "share_high", "verdict", "interval", "note"),
    *("reduction", "horovod_defaults"),
)
"""One row per cell and range of cycles. slope: s of sync per s of cycle; rest: sync at a cycle of 0;
share_at_default: what part of sync is cycle when the cycle is _DEFAULT_CYCLE_S."""

AS_EXPECTED, _NO_EFFECT, OTHERWISE, OPEN = "as the cycle explains", "no effect", "otherwise", "not resolved"


def cycle_shares(runs: pd.DataFrame) -> pd.DataFrame:
    """Return CYCLE_COLUMNS of the finished runs over Horovod whose cycle time was chosen; empty without two of them.

    Series here are those of runs that may differ in the cycle time. Horovod's thread looks for gradients once per cycle
    c: they wait c/2 on average, up to c more where the threads of the workers look at different times, and a cycle
    longer than everything else in the step sets the pace. So sync = rest + slope c, with a slope of 1/2 to 3/2 for
    cycles shorter than the rest of the step and 1 to 2 for longer ones, is fitted by least squares to the runs of cells
    that are equal in all but `cycle_time_ms`, shorter and longer cycles apart where both have two. With this project's
    idle sleep on, new gradients wake the thread, and the slope should be 0.
    """
    chosen = numbers(runs, "cycle_time_ms")
    if chosen.nunique() < 2:
        return pd.DataFrame(columns=list(CYCLE_COLUMNS))
    # What nobody chose is on as shipped and off in Horovod as it comes.
    idle = numbers(runs, "idle_cycle_time_ms").fillna(
        runs["horovod_defaults"].astype(bool).map({True: 0.0, False: math.inf})
    )
    table = runs.drop(columns="cycle_time_ms").assign(_cycle_s=chosen / 1e3, idle=idle)
    table = parallel(table)
    table = table[table["_cycle_s"].notna() & (table["workers"] > 1) & (table["backend"] == "horovod")]
    rows = []
    for _, cell in table.groupby([*_KEYS, "idle"], sort=False, dropna=False):
        known = cell[cell["sync_s"].astype(float).notna()]
        if known["_cycle_s"].nunique() < 2:
            continue
        # Cycles shorter and longer than the rest of a step are ranges of their own, or all are one.
        rest = float((known["step_s"] - known["sync_s"]).median())
        parts = [known[known["_cycle_s"] <= rest], known[known["_cycle_s"] > rest]]
        apart = [part for part in parts if part["_cycle_s"].nunique() >= 2]
        rows += [_cycle_row(part, rest) for part in apart or [known]]
    whole = {"workers": "int64", "cycles": "int64", "runs": "int64"}
    return pd.DataFrame(rows, columns=list(CYCLE_COLUMNS)).astype(whole)


def _cycle_row(cell: pd.DataFrame, rest_of_step_s: float) -> dict[str, Any]:
    first = cell.iloc[0]
    cycle, sync = (cell[name].to_numpy(dtype=np.float64) for name in ("_cycle_s", "sync_s"))
    distinct = np.unique(cycle)
    wait = np.where(distinct <= rest_of_step_s, distinct / 2, distinct - rest_of_step_s)
    woken = bool(first["idle"] > 0)
    expected = 0.0 if woken else float(np.polyfit(distinct, wait, 1)[0])
    most = expected if woken else expected + 1.0
    (slope, rest, share), how = _estimates(cell, cycle, sync)
    # Whether the means per cycle miss the line by more than the runs scatter (F test, 1 %).
    groups = [sync[cycle == each] for each in distinct]
    within = float(sum(np.sum((each - each.mean()) ** 2) for each in groups))
    misfit = float(np.sum((sync - np.polyval(np.polyfit(cycle, sync, 1), cycle)) ** 2)) - within
    freedom = (len(groups) - 2, len(cycle) - len(groups))
    bent = min(freedom) >= 1 and misfit > 1e-18 * float(sync @ sync)
    outside, longer = not distinct[0] <= _DEFAULT_CYCLE_S <= distinct[-1], cycle > rest_of_step_s
    notes = {
        "new gradients wake the thread, whose cycle then hardly counts": woken,
        "cycles shorter and longer than the rest of the step in one line": longer.any() and not longer.all(),
        "cycles longer than the rest of the step: they set its pace": longer.all(),
        "the times are not on a straight line, so the rest is an extrapolation": bent
        and stats.lack_of_fit_p(misfit, within, freedom) < 0.01,
        "Horovod's default cycle is outside the cycles run": outside,
    }
    share = Interval(value=math.nan) if outside else share
    verdict = OPEN  # else: the interval meets the expected range and leaves out 0
    if slope.known and slope.excludes(0):
        verdict = AS_EXPECTED if slope.low <= most and slope.high >= expected else OTHERWISE
    elif slope.known and slope.high < 0.5:
        verdict = _NO_EFFECT
    row = {name: first[name] for name in ("series", "workers", "nodes", "batch", *KEPT)}
    row |= {"cycles": len(distinct), "runs": len(cell), "rest_of_step_s": rest_of_step_s}
    row |= {"shortest_cycle_s": float(distinct[0]), "longest_cycle_s": float(distinct[-1])}
    row |= {"expected_low": expected, "expected_high": most, "default_cycle_s": _DEFAULT_CYCLE_S}
    row |= slope.named("slope", "slope_low", "slope_high") | rest.named("rest_s", "rest_low_s", "rest_high_s")
    row |= share.named("share_at_default", "share_low", "share_high")
    return row | {
        "interval": how,
        "verdict": verdict,
        "note": "; ".join(note for note, holds in notes.items() if holds),
    }


def _share_at_default(slope: float, rest: float) -> float:
    at = rest + slope * _DEFAULT_CYCLE_S
    return slope * _DEFAULT_CYCLE_S / at if at else math.nan


def _estimates(cell: pd.DataFrame, cycle: Floats, sync: Floats) -> tuple[list[Interval], str]:
    """Return slope, rest and share at the default cycle with their intervals, and in words how those were made.

    Of the lines of the repeats, where every repeat has every cycle once.
    """
    repeats = [own for _, own in cell.groupby(["study", "repeat"], sort=True)]
    distinct = len(set(cycle))
    if len(repeats) >= MIN_REPEATS and all(len(own) == own["_cycle_s"].nunique() == distinct for own in repeats):
        lines = [np.polyfit(own["_cycle_s"], own["sync_s"].astype(float), 1) for own in repeats]
        values = np.array([(*line, _share_at_default(*line)) for line in lines])  # (R, 3)
        means, errors = values.mean(axis=0), stats.standard_error(values, axis=0)
        freedom, how = len(values) - 1, f"95 %, Student's t of the lines of {len(values)} repeats"
    elif len(cycle) < 3:
        line = np.polyfit(cycle, sync, 1)
        return [Interval(value=float(each)) for each in (*line, _share_at_default(*line))], "two runs: no interval"
    else:
        (slope, rest), covariance = np.polyfit(cycle, sync, 1, cov=True)
        means = np.array([slope, rest, _share_at_default(slope, rest)])
        at = rest + slope * _DEFAULT_CYCLE_S
        toward = np.array([rest, -slope]) * _DEFAULT_CYCLE_S / at**2 if at else np.full(2, math.nan)
        errors = np.sqrt([*np.diag(covariance), toward @ covariance @ toward])
        freedom, how = len(cycle) - 2, f"95 %, Student's t of one line through {len(cycle)} runs"
    return [stats.around(*each, freedom) for each in zip(means.tolist(), errors.tolist(), strict=True)], how


# --------------------------------------------------------------------------------------- two runtimes, run side by side

TRANSPORT_COLUMNS = (
    *("a", "b", "setting", "partition", "a_backend", "a_transport", "b_backend", "b_transport", "quantity"),
    *("workers", "nodes", "batch", "pairs", "unpaired", "a_value", "b_value", "ratio", "ratio_low", "ratio_high"),
    *("difference", "difference_low", "difference_high", "p", "p_holm", "test", "tests", "verdict", "better"),
    *("pairs_needed", "note"),
)
"""One row per two series, quantity and worker count; `ratio` is B over A, `difference` B less A in the quantity's unit.

`a_value`, `b_value`: geometric means over the pairs. `unpaired`: runs without a partner, left out.
`verdict`: RESOLVED, NOT_RESOLVED or UNKNOWN, and `better` is `a` or `b` where it is resolved.
"""

RESOLVED, NOT_RESOLVED, UNKNOWN = "resolved", "not resolved", "not known"
SIGN_FLIP, STUDENT, ROUNDS = "sign-flip permutation", "paired t", "t of rounds in turns"
_FREE = ("backend", "transport", "reduction")
_ALIKE = tuple(name for name in SETTINGS if name not in _FREE)
_CELL = ("workers", "nodes", "batch", "train_samples", "per_node")


def transports(runs: pd.DataFrame, turns: StudyTurns | None = None) -> pd.DataFrame:
    """Return TRANSPORT_COLUMNS of the finished parallel runs of a run table, for every two series that differ in
    nothing but how the workers communicate; empty where there are no such two.

    A pair is one run of each at the same worker count, in the same repeat of the same study. The effect is the
    geometric mean of B/A with Student's 95 % interval on logarithms; p is of a sign-flip permutation test, or of a
    paired t test where n pairs cannot reach stats.ALPHA after Holm over the worker counts. A difference is resolved
    when p after Holm is below ALPHA and the interval leaves out 1. `turns`: the slices of runs that alternated, by the
    column `run`: the ratio of throughputs is then that of rounds. `sync_s` (means per step) is compared from two
    workers on, and is UNKNOWN where a backend hides it.
    """
    rows: list[dict[str, Any]] = []
    table = parallel(runs)
    table = table.assign(_way=table["backend"] + "/" + table["transport"])
    for _, camp in table.groupby([*_ALIKE, "setting"], sort=False, dropna=False):
        for one, other in combinations(camp["series"].unique(), 2):
            both = camp[camp["series"].isin([one, other])]
            if both["_way"].nunique() < 2:
                continue
            # What is unknown comes last.
            cells = (own.groupby("series") for _, own in both.groupby(list(_CELL), dropna=False))
            shared = [tuple(own.get_group(name) for name in (one, other)) for own in cells if len(own) > 1]
            for quantity in ("samples_per_s", "sync_s"):
                pairs = [pair for pair in shared if quantity != "sync_s" or pair[0]["workers"].iloc[0] > 1]
                own = [_transport_row(quantity, *pair) for pair in pairs]
                if turns and quantity == "samples_per_s":
                    own = [row | _within_rounds(row, turns, *pair) for row, pair in zip(own, pairs, strict=True)]
                rows += _judged([row for row in own if row["pairs"] or row["note"]])
    whole = dict.fromkeys(("workers", "pairs", "unpaired"), "int64")
    return pd.DataFrame(rows, columns=list(TRANSPORT_COLUMNS)).astype(whole)


def _within_rounds(row: Mapping[str, Any], turns: StudyTurns, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, Any]:
    """Return what the rounds of two cells that alternated say in place of their pairs."""
    found = turns.estimate(set(b["run"]), set(a["run"]))
    if found is None or found.ratio is None or not (found.ratio.known and row["pairs"]):
        return {}
    ends = found.ratio.named("ratio", "ratio_low", "ratio_high")
    differ = {name.replace("ratio", "difference"): row.get("a_value", math.nan) * (e - 1) for name, e in ends.items()}
    # As if each launch were a pair: the scatter of pairs that would give this interval.
    quantile = stats.t_quantile((1 + found.ratio.level) / 2, found.launches - 1.0)
    told = {"pairs": found.launches, "p": found.ratio.p, "test": ROUNDS}
    return ends | differ | told | {"_log_sd": found.half_width * math.sqrt(found.launches) / quantile}


def _transport_row(quantity: str, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, Any]:
    """Return one comparison before its p is corrected."""
    # Two runs of one repeat in one cell: nobody can say which of them is the partner.
    name = ["study", "repeat"]
    sides = [cell.drop_duplicates(name, keep=False).set_index(name)[quantity].astype(float) for cell in (a, b)]
    ones, others = pd.concat(sides, axis=1, join="inner").sort_index().to_numpy().T  # (n,) each
    unpaired = len(a) + len(b) - 2 * len(ones)
    first, second = a.iloc[0], b.iloc[0]
    row: dict[str, Any] = {
        **{name: first[name] for name in ("setting", "partition", "workers", "nodes", "batch")},
        **{f"{side}_{name}": cell[name] for side, cell in (("a", first), ("b", second)) for name in _FREE[:2]},
    }
    row |= {"a": first["series"], "b": second["series"], "quantity": quantity, "test": ""}
    row |= {"pairs": len(ones), "unpaired": unpaired, "p": math.nan, "_log_sd": math.nan}
    notes = []
    if not len(ones):
        notes.append("no repeat of one study was run with both, so nothing is paired")
    elif not (np.isfinite(ones).all() and np.isfinite(others).all()):
        hidden = [str(cell["series"]) for cell, values in ((first, ones), (second, others)) if np.isnan(values).any()]
        held = "the rest of its CUDA graph" if pd.concat([a, b])[CAPTURED].notna().any() else "its backward pass"
        notes.append(f"the synchronisation of {' and '.join(hidden)} cannot be separated from {held}")
    elif not ((ones > 0).all() and (others > 0).all()):
        notes.append("a pair holds a time of 0, which has no ratio")
    else:
        found, logs = stats.paired_ratio(ones, others), np.log(others / ones)
        row |= {"a_value": stats.geometric_mean(ones), "b_value": stats.geometric_mean(others)}
        row |= found.ratio.named("ratio", "ratio_low", "ratio_high")
        row |= stats.student(others - ones).named("difference", "difference_low", "difference_high")
        row |= {"p": found.ratio.p, "_log_sd": math.nan if found.log_sd is None else found.log_sd}
        row["_student_p"] = stats.t_p(float(logs.mean()), float(stats.standard_error(logs)), len(logs) - 1.0)
    if first["reduction"] != second["reduction"] and first["workers"] > 1:
        notes.append(f"they also differ in when gradients are reduced ({first['reduction']}, {second['reduction']})")
    if unpaired:
        notes.append(f"{plural(unpaired, 'run')} without a partner left out")
    row["note"] = "; ".join(notes)
    return row


def _judged(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Add test, p after Holm and verdict to the comparisons of one quantity of two series."""
    tested = [row for row in rows if row["pairs"] > 1 and math.isfinite(row["p"])]
    least = stats.fewest_blocks(len(tested)) if tested else 0
    for row in rows:
        row |= {"p_holm": math.nan, "tests": len(tested), "verdict": UNKNOWN, "better": "", "pairs_needed": math.nan}
    for row in (row for row in tested if row["test"] != ROUNDS):
        row["test"] = SIGN_FLIP if row["pairs"] >= least else STUDENT
        row["p"] = row["p"] if row["test"] == SIGN_FLIP else row["_student_p"]
    for row, p in zip(tested, stats.holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
        outside = not row["ratio_low"] <= 1 <= row["ratio_high"]
        row["verdict"] = RESOLVED if p < stats.ALPHA and outside else NOT_RESOLVED
        if row["verdict"] == RESOLVED:
            row["better"] = "b" if (row["ratio"] > 1) == (row["quantity"] == "samples_per_s") else "a"
        else:
            row["pairs_needed"] = float(stats.needed_blocks(row["_log_sd"], tests=len(tested)))
    for row in rows:
        if row["pairs"] == 1 and math.isfinite(row["p"]):
            row["p"], row["verdict"] = math.nan, NOT_RESOLVED
            row["note"] = "; ".join(filter(None, ["one pair, and nothing says how far it can be trusted", row["note"]]))
    return rows


# -------------------------------------------------------------------------------------------- what a larger batch gives

OPTIONS = packaged().options

BATCH_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch", "train_samples"),
    *("repeats", "samples_per_s_median", "samples_per_s_low", "samples_per_s_high"),
    *("step_s_median", "sync_s_median", "overhead_median", "overhead_low", "overhead_high"),
    *("lost", "lost_low", "lost_high", "lost_base", "batches_per_epoch"),
    *("epoch_s_median", "epoch_s_low", "epoch_s_high", "times_faster", "note", "reduction", "horovod_defaults"),
)
"""One row per series, workers, nodes and batch; a series is what differs in workers and batch only.

overhead: sync / step of a run. times_faster: the throughput over that of the smallest batch.
lost: 1 - X / (N X of one worker of the same batch), over `lost_base`.
"""

_KNEE_PARTS = (
    *("knee", "knee_low", "knee_high", "fixed_s", "fixed_low_s", "fixed_high_s"),
    *("per_sample_s", "per_sample_low_s", "per_sample_high_s", "most_samples_per_s", "most_low", "most_high"),
)
KNEE_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batches", "runs", "form"),
    *(*_KNEE_PARTS[:3], "knee_at_most", "knee_at_least", "identified", *_KNEE_PARTS[3:]),
    *("batch_for_90_percent", "other_form", "other_knee", "aicc_gain"),
    *("interval", "note", "reduction", "horovod_defaults"),
)
"""One row per series, workers and nodes with several batches. aicc_gain: AICc of the other form less that of this."""

BATCH_CURVE_COLUMNS = ("series", "workers", "nodes", "form", "batch", "samples_per_s", "step_s", "epoch_s")
SATURATION, PIECEWISE = "saturation", "piecewise"
DRAWS = 1000
MIN_BATCHES = 3
_EQUAL_SUPPORT = 2.0  # in AICc
_EXACT = 1e-12  # relative residuals below this are rounding
_NOT_TIMED = tuple(name for name in CHOICES if OPTIONS[name].roles & Role.RATE)
"""What a step takes does not depend on these, and a larger batch often comes with another learning rate."""


def knee(batch: ArrayLike, step_s: ArrayLike, *, workers: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """Return KNEE_COLUMNS from `form` to `note`: the better of both forms of step(B), and where it has its knee.

        saturation   step = fixed + B per_sample          X = Xmax B / (B + knee)       they follow one another
        piecewise    step = max(fixed, B per_sample)      X = Xmax min(B / knee, 1)     the dearer one hides the other

    With Xmax = N / per_sample and, in both, **knee = fixed / per_sample**. Both are fitted by least squares of relative
    residuals of the step in closed form, and the one with the lower AICc is taken. Intervals: bootstrap over runs
    within each batch, m - 1 of m, percentiles on logarithms stretched by t/z; where a batch has fewer than three runs,
    or the forms miss the means by more than the runs scatter, Student's t of the residuals. Letters: R runs, K distinct
    batches, P parameters, D draws.

    For the batches (R,) and mean steps (R,) in s of independent runs of so many workers. The knee is identified where
    it is among the batches measured, with an interval that is narrower than they are.
    Raises AnalysisError for fewer than three distinct batches and for values that are not above 0.
    """
    sizes, steps = np.asarray(batch, dtype=np.float64).ravel(), np.asarray(step_s, dtype=np.float64).ravel()
    if not all(np.isfinite(each).all() and (each > 0).all() for each in (sizes, steps)):
        raise AnalysisError("batches and steps must be finite and above 0; leave out runs without a value")
    distinct, group = np.unique(sizes, return_inverse=True)  # (K,), (R,)
    if len(distinct) < MIN_BATCHES:
        raise AnalysisError(f"{len(distinct)} distinct batch sizes: a knee needs at least {MIN_BATCHES}")
    runs = [np.sort(steps[group == place]) for place in range(len(distinct))]
    means = np.array([each.mean() for each in runs])
    weight = np.array([len(each) for each in runs]) / means**2  # of the squared miss of a mean
    fitted = {form: _solve(form, means[None], distinct, weight)[0] for form in (SATURATION, PIECEWISE)}
    within = float(sum(np.sum((each / each.mean() - 1) ** 2) for each in runs))
    misses = {form: float(weight @ (means - step_at(form, a, b, distinct)) ** 2) for form, (a, b) in fitted.items()}
    form, other = sorted(misses, key=lambda each: misses[each])
    gain = _aicc(within + misses[other], len(steps)) - _aicc(within + misses[form], len(steps))
    knees = {each: float(a / b) if b > 0 else math.inf for each, (a, b) in fitted.items()}
    ends, how, doubts = _intervals(form, fitted[form], runs, distinct, weight, within, misses[form], seed)
    apart = knees[other] / knees[form] if knees[form] else math.inf if knees[other] else 1.0
    apart = min(max(apart, 1e-9), 1e9) if apart == apart else 1.0
    if gain < _EQUAL_SUPPORT and abs(math.log(apart)) > 0.1:
        doubts.append(
            f"the {other} form fits as well (AICc within {_EQUAL_SUPPORT:g}) with its knee at {knees[other]:.3g}"
        )
    values = (*fitted[form].tolist(), knees[form])
    fixed, per_sample, (value, low, high) = (_with_ends(*each) for each in zip(values, *ends, strict=True))
    smallest, largest = float(distinct[0]), float(distinct[-1])
    as_wide = not (low > 0 and math.isfinite(high)) or (low <= smallest and high >= largest)
    identified = smallest <= value <= largest and not as_wide
    at_most = high if not identified and value < largest and math.isfinite(high) else math.nan
    at_least = low if not identified and value > smallest and low > 0 else math.nan
    if not identified:
        why = "its interval is as wide as the batches measured; add repeats or batches further apart"
        if not smallest <= value <= largest:
            side, end = ("below", smallest) if value < smallest else ("above", largest)
            where = f"at {value:.3g}, {side} the batches measured (interval {low:.3g} to {high:.3g})"
            why = f"its estimate is {where}; add batches {side} {end:g}, or repeats"
            if value == 0 or not np.isfinite([value, low, high]).all():
                other_side = "above" if side == "below" else "below"
                why = f"every batch measured is {other_side} the knee; add batches {side} {end:g}"
        doubts.insert(0, f"not identifiable: {why}")
    most = [workers / each if each > 0 else math.nan for each in (per_sample[0], per_sample[2], per_sample[1])]
    known = (value, low, high) if identified else [math.nan] * 3
    row: dict[str, Any] = {"form": form, "identified": identified, "knee_at_most": at_most, "knee_at_least": at_least}
    row |= zip(_KNEE_PARTS, (*known, *fixed, *per_sample, *most), strict=True)
    row["batch_for_90_percent"] = value * (9.0 if form == SATURATION else 0.9) if identified else math.nan
    row["other_knee"] = knees[other] if math.isfinite(knees[other]) else math.nan
    return row | {"other_form": other, "aicc_gain": gain, "interval": how, "note": "; ".join(doubts)}


def step_at(form: str, fixed: Any, per_sample: Any, batch: Floats) -> Floats:
    """Return the step at batches (K,), in s; fixed and per-sample costs are numbers or (D, 1)."""
    samples = per_sample * batch
    return np.asarray(fixed + samples if form == SATURATION else np.maximum(fixed, samples))


def _solve(form: str, means: Floats, batch: Floats, weight: Floats) -> Floats:
    """Return fixed and per-sample costs (D, 2), neither below 0, for means (D, K) of the steps at batches (K,)."""
    alone = means @ weight / weight.sum(), means @ (weight * batch) / (weight @ batch**2)  # (D,), (D,)
    nothing = np.zeros(len(means))
    if form == SATURATION:
        s0, s1, s2 = weight.sum(), weight @ batch, weight @ batch**2
        t0, t1 = means @ weight, means @ (weight * batch)
        b = (s0 * t1 - s1 * t0) / (s0 * s2 - s1**2)
        a = (t0 - b * s1) / s0
        found = np.column_stack([a, b])
        found = np.where((b < 0)[:, None], np.column_stack([alone[0], nothing]), found)
        return np.asarray(np.where((a < 0)[:, None], np.column_stack([nothing, alone[1]]), found))
    best, least = np.column_stack([nothing, alone[1]]), np.full(len(means), np.inf)
    for flat in range(len(batch) + 1):  # the first so many batches cost the fixed part
        left, right = weight[:flat], weight[flat:]
        a = means[:, :flat] @ left / left.sum() if flat else nothing
        b = means[:, flat:] @ (right * batch[flat:]) / (right @ batch[flat:] ** 2) if flat < len(batch) else nothing
        tried = np.column_stack([a, b])
        miss = (means - step_at(PIECEWISE, tried[:, :1], tried[:, 1:], batch)) ** 2 @ weight
        better = miss < least * (1 - 1e-12)
        best, least = np.where(better[:, None], tried, best), np.where(better, miss, least)
    return np.asarray(best)


def _aicc(error: float, rows: int) -> float:
    """Return AICc of a form with two parameters for the sum of squared relative residuals; infinite with few rows."""
    if rows <= 4:  # the scatter is a third parameter
        return math.inf
    return rows * math.log(max(error, rows * _EXACT**2) / rows) + 6 + 24 / (rows - 4)


def _logs(values: Floats) -> Floats:
    """Return the logarithms of fixed, per sample and knee (..., 3) for parameters (..., 2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = np.log(values[..., 0]), np.log(values[..., 1])
    return np.stack([a, b, np.where(np.isneginf(b), np.inf, a - b)], axis=-1)


def _intervals(
    form: str, values: Floats, runs: list[Floats], batch: Floats, weight: Floats, within: float, miss: float, seed: int
) -> tuple[Floats, str, list[str]]:
    """Return the logarithms of the ends for fixed, per sample and knee (2, 3), how they were made, and doubts."""
    means, counts = np.array([each.mean() for each in runs]), np.array([len(each) for each in runs])
    rows, k = int(counts.sum()), len(batch)
    missed = rows > k and miss > k * _EXACT**2 and stats.lack_of_fit_p(miss, within, (k - 2, rows - k)) < 0.01
    odd = f"neither form follows the steps within the scatter of the runs; the {form} form is the closer one"
    centre, slopes = _logs(values), _slopes(form, means, batch, weight)  # (3,), (3, K): per relative change of a mean
    if counts.min() >= stats.MIN_REPEATS and not missed:
        relative = np.array([each.var(ddof=1) for each in runs]) / means**2 / counts
        with np.errstate(invalid="ignore"):  # a knee that is nowhere has infinite slopes
            parts = slopes**2 * relative  # (3, K)
            below = np.sum(parts**2 / (counts - 1), axis=1)
            freedom = np.divide(parts.sum(axis=1) ** 2, below, out=np.full_like(below, np.inf), where=below > 0)
        freedom = np.maximum(np.nan_to_num(freedom, nan=1.0, posinf=np.inf), 1.0)
        generator = np.random.default_rng(seed)
        drawn = np.column_stack(
            [each[generator.integers(len(each), size=(DRAWS, len(each) - 1))].mean(axis=1) for each in runs]
        )
        found = _logs(_solve(form, drawn, batch, weight))  # (D, 3)
        ends = np.quantile(found, (0.025, 0.975), axis=0, method="inverted_cdf")  # (2, 3)
        with np.errstate(invalid="ignore"):
            wider = centre + stats.t_quantile(0.975, freedom) / stats.Z95 * (ends - centre)
        ends = np.where(np.isfinite(centre), wider, ends)
        how = f"bootstrap over runs ({counts.min()} or more per batch)"
    else:
        freedom_, what, variances = rows - 2, f"{rows} runs", (within + miss) / (rows - 2) / counts
        if missed:
            freedom_, what = k - 2, f"the means of {k} batches"
            variances = np.full(k, miss / freedom_ / counts.mean())
        with np.errstate(invalid="ignore"):  # of a parameter that is 0 or infinite
            half = stats.half_width(np.sqrt(slopes**2 @ variances), float(freedom_))
        half = np.where(np.isfinite(half), half, np.nan)
        ends = np.clip([centre - half, centre + half], -700.0, 700.0)
        how = f"Student's t of the residuals of {what}"
    return np.asarray(ends), f"95 %, {how}", [odd] * bool(missed)


def _with_ends(value: float, low: float, high: float) -> tuple[float, float, float]:
    """Return a parameter with its ends, given as logarithms; of one that is 0 or infinite draws say the other end."""
    below, above = math.exp(low), math.exp(high)
    if value == 0:
        below, above = 0.0, above if math.isfinite(high) else math.nan
    elif math.isinf(value):
        below, above = below if math.isfinite(low) else math.nan, math.inf
    elif math.isnan(above):
        above = math.inf
    # rounding must not put both on one side
    return value, float(np.minimum(below, value)), float(np.maximum(above, value))


def _slopes(form: str, means: Floats, batch: Floats, weight: Floats) -> Floats:
    """Return how the logarithms of fixed, per sample and knee change with each mean, (3, K), per relative change."""
    h = 1e-5
    moved = means * (1 + h * np.vstack([np.eye(len(means)), -np.eye(len(means))]))  # (2K, K)
    found = _logs(_solve(form, moved, batch, weight))  # (2K, 3)
    with np.errstate(invalid="ignore"):
        return np.asarray((found[: len(means)] - found[len(means) :]).T / (2 * h))


def batch_sizes(runs: pd.DataFrame, *, seed: int = 0) -> SimpleNamespace:
    """Return the tables of the finished runs of a run table, where one worker count has several batches.

    cells (BATCH_COLUMNS), knees (KNEE_COLUMNS), curves (BATCH_CURVE_COLUMNS); empty where there is none. One plain
    worker is a series too. Runs may differ in the learning rate.
    """
    rows, found, frames, table = [], [], [], _batched(runs)
    # Throughputs of one worker, by the kind of baseline that it is and what it has in common with others.
    alone: dict[tuple[str, str], Floats] = {}
    for (kind, key), of in table[table["workers"] == 1].groupby(["_kind", "_alike"]):
        alone[f"{kind}", f"{key}"] = of["samples_per_s"].to_numpy(dtype=np.float64)
    keys = ["series", "train_samples", "workers", "nodes", "per_node"]
    for _, alike in table.groupby(keys, sort=False, dropna=False):
        cells = [cell for _, cell in alike.groupby("batch", sort=True)]
        if len(cells) < 2:
            continue
        own = [_batch_row(cell, alone) for cell in cells]
        rows += [{**row, "times_faster": row["samples_per_s_median"] / own[0]["samples_per_s_median"]} for row in own]
        group = pd.concat(cells, ignore_index=True)
        first = group.iloc[0]
        name = {column: first[column] for column in ("series", "workers", "nodes")}
        row = {**name, **{column: first[column] for column in KEPT}, "batches": len(cells), "runs": len(group)}
        if len(cells) < MIN_BATCHES:
            note = f"a knee needs {MIN_BATCHES} batch sizes"
            found.append(row | {"form": "", "identified": False, "note": note})
            continue
        # The step of the slowest rank of each run, N B / X, needs no laps.
        steps = group["workers"] * group["batch"] / group["samples_per_s"].astype(float)
        fitted = knee(group["batch"], steps, workers=float(first["workers"]), seed=seed)
        found.append(row | fitted)
        sizes = group["batch"].astype(float)
        grid = np.unique(np.geomspace(sizes.min(), sizes.max(), 60).round(3))
        step = step_at(fitted["form"], fitted["fixed_s"], fitted["per_sample_s"], grid)
        rate = first["workers"] * grid / step
        name["workers"] = int(first["workers"])
        line = {"batch": grid, "samples_per_s": rate, "step_s": step, "epoch_s": first["train_samples"] / rate}
        frames.append(pd.DataFrame({**name, "form": fitted["form"], **line}))
    return SimpleNamespace(
        cells=pd.DataFrame(rows, columns=list(BATCH_COLUMNS)).astype({"workers": "int64", "repeats": "int64"}),
        knees=pd.DataFrame(found, columns=list(KNEE_COLUMNS)).astype({"workers": "int64", "batches": "int64"}),
        curves=pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(BATCH_CURVE_COLUMNS)),
    )


_TIMED_ALIKE = ("partition", "precision", "model", *CHOICES)


def _batched(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs with series that are distinguished as if all had one batch, and named without it.

    _kind: of which baseline one worker is; _alike and _plain: what it, and a plain one, has in common with others.
    """
    good = runs[measured(runs) & pd.to_numeric(runs["batch"]).notna()]
    sizes = pd.to_numeric(good["batch"]).astype("float64")
    if sizes.nunique() < 2:
        return good.iloc[:0].assign(**dict.fromkeys(("series", "per_node", "_kind", "_alike"), ""))
    bare = good.drop(columns=[name for name in _NOT_TIMED if name in good.columns])
    table = with_series(bare.assign(_batch=sizes, batch=1.0, global_batch=good["workers"].astype(float)))
    setting = table["setting"].str.removeprefix("global batch 1").str.removeprefix("batch 1").str.strip()
    texts_of = zip(table["series"], table["setting"], setting, strict=True)
    names = [" ".join(series.replace(old, rest, 1).split()) for series, old, rest in texts_of]
    table = table.assign(series=names, setting=setting, batch=table["_batch"], per_node=texts(table, "per_node"))
    way = ["backend", "transport", "horovod_defaults"]
    told = table[[*way, *_TIMED_ALIKE, "batch", "train_samples"]]
    told = told.apply(lambda column: column.factorize(use_na_sentinel=False)[0]).astype(str)  # 0 is 0.0, NaN is NaN
    whole, plain = (each.agg(" | ".join, axis=1) for each in (told, told.drop(columns=[*way, *KNOBS])))
    kind = np.where(table["backend"] == "serial", "plain", "wrapped")
    return table.assign(_kind=kind, _plain=plain, _alike=whole.where(kind == "wrapped", plain))


def _batch_row(cell: pd.DataFrame, alone: Mapping[tuple[str, str], Floats]) -> dict[str, Any]:
    first = cell.iloc[0]
    rates = cell["samples_per_s"].to_numpy(dtype=np.float64)
    sync, recorded = (cell[name].to_numpy(dtype=np.float64) for name in ("sync_s", "step_s"))
    step = (cell["workers"] * cell["batch"] / rates).to_numpy(dtype=np.float64)
    batches = batches_per_epoch(first["train_samples"], first["batch"], first["workers"])
    serial = first["backend"] == "serial"
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.full(len(cell), math.nan) if serial else np.where(recorded > 0, sync / recorded, math.nan)
    bases = {"plain": first["_plain"]} | ({} if serial else {"wrapped": first["_alike"]})
    base = next((kind for kind, key in bases.items() if (kind, key) in alone), "")
    lost = lost_low = lost_high = math.nan
    if base and not (serial and first["workers"] == 1):
        one = alone[base, bases[base]]
        gained = stats.median_ratio(rates, one)
        lost = 1 - stats.of_all(rates) / stats.of_all(one) / float(first["workers"])
        lost_low, lost_high = (1 - end / float(first["workers"]) for end in (gained.high, gained.low))
    row = {name: first[name] for name in ("series", "workers", "nodes", "batch", "train_samples", *KEPT)}
    row |= {"repeats": len(cell), "batches_per_epoch": batches, "step_s_median": stats.of_all(step)}
    row |= over_repeats("samples_per_s", rates) | over_repeats("overhead", share)
    row |= over_repeats("epoch_s", (batches if batches > 0 else math.nan) * step)
    row |= {"lost": lost, "lost_low": lost_low, "lost_high": lost_high, "lost_base": "" if math.isnan(lost) else base}
    row["sync_s_median"] = math.nan if serial else stats.of_all(sync)
    return row | {"note": "" if serial else hidden_note(cell)}


# -------------------------------------------------------------------------------------------- what another node costs

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

NODE_NOTES = {
    "alone": "one worker synchronises with nobody, so this is all that synchronising costs there, not the node alone",
    "workers": "further workers and another node at once",
    "hidden": "synchronisation runs inside backward and cannot be separated; the step as a whole can",
    "captured": "synchronisation runs inside a CUDA graph and cannot be separated; the step as a whole can",
    "partly": "the nodes are not equally full",
}

_GROWTHS: tuple[Callable[[Any], Any], ...] = (np.log2, lambda workers: workers)
"""How waiting may go on to grow with the workers on equal nodes: as in a tree, as in a ring."""

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
            within = [
                path for path in paths if path and {"shared memory", "memory", "tcp:lo"}.issuperset(path.split(" and "))
            ]
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
        return NODE_NOTES["captured"] if _int(cell, "workers") > 1 else ""
    return NODE_NOTES["hidden"]


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
        NODE_NOTES["alone" if row["fewer_workers"] == 1 else "workers"] if kind == INDIRECT else "",
        NODE_NOTES["partly"] if partly else "",
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
