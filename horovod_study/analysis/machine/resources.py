"""What training costs: energy per sample and worker hours of every cell, and how these grow with the workers.

A cell is what its repeats say together, as in `points`. Besides, laws of every quantity that training takes more of or
less of with more workers: energy per sample, worker hours per epoch, and samples, seconds, worker hours and joules to a
target. A law is fitted to runs, one value each. docs/metrics.md defines every quantity.

A worker is a GPU where the runs trained on GPUs, and worker hours are GPU hours then.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import QuantityFit, fit_quantity
from horovod_study.analysis.series import points
from horovod_study.analysis.series.points import cells_of, measured, numbers, texts, whole_numbers, with_series
from horovod_study.analysis.sync.synchronisation import fewest_nodes
from horovod_study.errors import AnalysisError
from horovod_study.records import facts, finite

_IDENTITY = ("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch", "global_batch")

RESOURCE_COLUMNS = (
    *(*_IDENTITY, "train_samples", "mode", "device", "repeats"),
    *("energy_repeats", "energy_of", "power_w_median"),
    *(f"energy_per_sample_j_{name}" for name in ("median", "min", "max", "low", "high")),
    *("base_energy_per_sample_j", "energy_ratio", "energy_ratio_low", "energy_ratio_high", "speedup_per_joule"),
    *(f"worker_hours_per_epoch_{name}" for name in ("median", "min", "max", "low", "high")),
    "worker_hours_of_run_median",
)
QUANTITY_CURVE_COLUMNS = (
    *("series", "quantity", "target_mse", "law", "workers", "value", "low", "high", "extrapolated"),
)


def resources(runs: pd.DataFrame) -> pd.DataFrame:
    """Return RESOURCE_COLUMNS of the finished runs of a run table (records.run_table), one row per cell.

    Energy is that of the timed window, from the runs that know it; NaN where none does. Repeats whose energy is that
    of different kinds of devices have no median. Ratios are over the plain one-worker cell, where it was measured and
    its energy is of the same kinds of devices.
    """
    rows = [_row(cell) for cell in points.cells_of(_completed(runs)) if len(cell)]
    for row in rows:
        place = points.baseline_place(rows, row, "plain")
        if place is None or rows[place]["energy_of"] != row["energy_of"] or not len(row["_energy"]):
            continue
        base = rows[place]
        joules, of = base["energy_per_sample_j_median"], stats.median_ratio(row["_energy"], base["_energy"])
        ratio, speedup = row["energy_per_sample_j_median"] / joules, row["_samples_per_s"] / base["_samples_per_s"]
        low, high = (1.0, 1.0) if base is row else (of.low, of.high)
        row |= {"base_energy_per_sample_j": joules, "speedup_per_joule": speedup / ratio}
        row |= {"energy_ratio": ratio, "energy_ratio_low": low, "energy_ratio_high": high}
    whole = ("workers", "nodes", "batch", "global_batch", "train_samples")
    return points.whole_numbers(pd.DataFrame(rows, columns=list(RESOURCE_COLUMNS)), whole)


def _completed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the finished runs with their series, and what they took of each resource; NaN where it is not known."""
    table = points.with_series(runs)
    table = table[points.measured(table)].reset_index(drop=True)
    for name in ("energy_j", "energy_per_sample_j", "wall_s"):
        values = points.numbers(table, name)
        table[name] = values.where(np.isfinite(values) & (values > 0))
    for name in ("energy_of", "energy_doubt", "device"):
        table[name] = points.texts(table, name).astype(object)
    hours = table["workers"] / 3600
    growing = table["work"].str.contains("growing")
    table["power_w"] = table["energy_j"] / table["window_s"].astype(float)
    table["worker_hours_per_epoch"] = (hours * table["train_samples"] / table["samples_per_s"]).where(~growing)
    table["worker_hours_of_run"] = hours * table["wall_s"]
    return table


def _row(cell: pd.DataFrame) -> dict[str, Any]:
    first, kinds = cell.iloc[0], sorted(set(cell.loc[cell["energy_per_sample_j"].notna(), "energy_of"]))
    energy = cell["energy_per_sample_j"] if len(kinds) == 1 else cell["energy_per_sample_j"] * math.nan
    row = {name: first[name] for name in (*points.CELL, *_IDENTITY, "mode", "ref_batch", "ref_train_samples")}
    row |= {"device": " and ".join(sorted(set(cell["device"]) - {""})), "repeats": len(cell)}
    row |= {"energy_repeats": int(energy.notna().sum()), "energy_of": kinds[0] if len(kinds) == 1 else ""}
    row["power_w_median"] = float(cell["power_w"].where(energy.notna()).median())
    row["worker_hours_of_run_median"] = float(cell["worker_hours_of_run"].median())
    row["_energy"] = np.sort(energy.dropna().to_numpy(dtype=float))
    row["_samples_per_s"] = float(np.median(cell["samples_per_s"].astype(float)))
    for name, values in {
        "energy_per_sample_j": energy,
        "worker_hours_per_epoch": cell["worker_hours_per_epoch"],
    }.items():
        ends = stats.spread(values.dropna().sort_values())
        row |= {f"{name}_{end}": each for end, each in ends.items()}
    return row


def fit_quantities(runs: pd.DataFrame, crossings: pd.DataFrame, *, seed: int = 0) -> list[SimpleNamespace]:
    """Return the laws of every quantity that the parallel series of a run table know at two worker counts or more.

    Each has `series`, `quantity` (energy_per_sample_j, worker_hours_per_epoch, or what a target took), `target_mse`
    (NaN without one), `fit` (None where the runs allow none), `censored` (runs that did not meet the target: lower
    bounds), `most_workers` and `doubts`.
    `crossings` (`convergence.Convergence.crossings`) has what each run took to each target. Of equal workers on several
    numbers of nodes those on the fewest count, as for laws of throughput. A worker count at which some run did not meet
    the target is left out of the laws of that target: the runs that did are the quick ones, and the others only have
    lower bounds. A doubt names it and says which way this bends the law.
    """
    table = _completed(runs)
    found = list[SimpleNamespace]()
    table = table[(table["backend"] != "serial") & (table["mode"] != "mixed")]
    table = table[fewest_nodes(table)]
    met = crossings[crossings["run"].isin(table["run"])]
    for series, rows in table.groupby("series", sort=False):
        for quantity in ("energy_per_sample_j", "worker_hours_per_epoch"):
            known = rows[rows[quantity].notna()].assign(reached=True, value=rows[quantity])
            if quantity == "energy_per_sample_j" and known["energy_of"].nunique() > 1:
                continue  # said by `doubts`
            found += _one(f"{series}", quantity, math.nan, known, seed)
        own = met[met["series"] == series]
        for target, to_target in own.groupby("target_mse", sort=True):
            for quantity in ("samples", "train_s", "worker_hours", "energy_j"):
                known = to_target[to_target[quantity].notna()].assign(value=to_target[quantity])
                found += _one(f"{series}", quantity, float(f"{target}"), known, seed)
    return found


def _one(series: str, quantity: str, target: float, rows: pd.DataFrame, seed: int) -> Iterator[SimpleNamespace]:
    """Yield the laws of one quantity; nothing where it is known at fewer than two worker counts."""
    if rows["workers"].nunique() < 2:
        return
    rows = rows.assign(reached=rows["reached"].astype(bool)).sort_values(["workers", "value", "run"], kind="stable")
    late = rows[~rows["reached"]]
    whole = rows[~rows["workers"].isin(late["workers"]) & (rows["value"] > 0)]
    fit, doubts = None, list[str]()
    if whole["workers"].nunique() > 1:
        workers, values, nodes = (whole[name].to_numpy(dtype=float) for name in ("workers", "value", "nodes"))
        known = np.isfinite(nodes).all() and (nodes > 1).any()
        try:
            fit = fit_quantity(workers, values, nodes=nodes if known else None, seed=seed)
            doubts += fit.doubts
        except AnalysisError as error:
            doubts.append(f"not fitted: {error}")
    if len(late):
        doubts.append(_censoring(fit, rows, late))
    told = {"series": series, "quantity": quantity, "target_mse": target, "fit": fit, "censored": len(late)}
    yield SimpleNamespace(**told, most_workers=int(rows["workers"].max()), doubts=tuple(doubts))


def _censoring(fit: QuantityFit | None, rows: pd.DataFrame, late: pd.DataFrame) -> str:
    """Return what runs that did not meet the target mean for the laws."""
    where = points.worker_counts(late["workers"])
    text = f"{len(late)} of {len(rows)} runs did not meet the target, at {where}: these are lower bounds"
    if fit is None:
        return f"{text}, and too few worker counts are left for a law; train longer there"
    text += ", and the laws are fitted to the other worker counts"
    if fit.selected is None:
        return text
    bounds = late.groupby("workers")["value"].max()
    below = bounds.index[fit.fits[fit.selected](bounds.index.to_numpy(dtype=float)) < bounds.to_numpy(dtype=float)]
    if below.empty:
        return f"{text}; {fit.selected} agrees with the bounds"
    low = f"is below the bounds at {points.worker_counts(below)}, so it is too low there and beyond"
    return f"{text}; {fit.selected} {low}: train longer to have values instead of bounds"


def document(each: SimpleNamespace) -> dict[str, Any]:
    """Return one of `fit_quantities` in plain values."""
    laws = {} if each.fit is None else each.fit.fits
    told = facts(each, "series", "quantity", "target_mse", "censored")
    found = {**told, "laws": laws, "selected": each.fit and each.fit.selected, "doubts": each.doubts}
    plain: dict[str, Any] = finite(found)
    return plain


def quantity_curves(found: Sequence[SimpleNamespace]) -> pd.DataFrame:
    """Return QUANTITY_CURVE_COLUMNS: the selected law of each quantity over worker counts, with its 95 % band."""
    frames = []
    for each in found:
        if each.fit is None or each.fit.selected is None:
            continue
        fitted = each.fit.fits[each.fit.selected]
        grid = fitted.grid(each.most_workers)
        low, high = (np.where(np.isfinite(end), end, math.nan) for end in fitted.interval(grid))
        names = {"series": each.series, "quantity": each.quantity, "target_mse": each.target_mse}
        values = {"workers": grid, "value": fitted(grid), "low": low, "high": high}
        beyond = [fitted.extrapolates(n) for n in grid]
        frames.append(pd.DataFrame({**names, "law": each.fit.selected, **values, "extrapolated": beyond}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(QUANTITY_CURVE_COLUMNS))


def doubts(runs: pd.DataFrame) -> list[str]:
    """Return the limitations of the energy, in a stable order."""
    found = []
    for series, rows in _completed(runs).groupby("series", sort=False):
        told, known = rows[rows["energy_doubt"] != ""], rows[rows["energy_per_sample_j"].notna()]
        for doubt in told["energy_doubt"][:1]:
            unsure = f"the energy of {len(told)} of {len(rows)} runs is doubtful"
            found.append(f"{series}: {unsure}, at {points.worker_counts(told['workers'])}: {doubt}.")
        if 0 < len(known) < len(rows):
            without = f"{len(rows) - len(known)} of {len(rows)} runs have no energy"
            found.append(f"{series}: {without}; medians are those of the rest.")
        if len(kinds := sorted(set(known["energy_of"]))) > 1:
            words = " in some runs and of ".join(each or "unnamed devices" for each in kinds)
            apart = "worker counts are not compared and no law is fitted; give every node the same sensors"
            found.append(f"{series}: its energy is that of {words} in others, so {apart}.")
    return found


# -------------------------------------------------------------------------- use and power against workers and over time

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

_SETTINGS = ("series", "setting", "partition", "backend", "transport", "reduction", "horovod_defaults")

USAGE_COLUMNS = (
    *(*_SETTINGS, "workers", "nodes", "batch", "mode", "device", "repeats"),
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
    return {name: first[name] for name in (*_SETTINGS, "workers", "nodes", "batch", "mode")} | {"repeats": len(cell)}


SLICES = 20  # of a timed window: its course over the repeats is said of so many equal parts of its steps

OVER_TIME = ("step_s", "cpu_percent_per_rank", "rss_mb_per_rank", "gpu_percent", "gpu_memory_mb", "gpu_power_w")
"""Columns of the profiles of runs."""

LOAD_COLUMNS = (
    *(*_SETTINGS, "workers", "nodes", "batch", "mode", "repeats", "slice", "at_s"),
    *(f"{name}_{end}" for name in OVER_TIME for end in ("median", "min", "max")),
)
"""One row per cell and slice of its timed window. at_s: seconds since the window began, median over repeats."""


def load(runs: pd.DataFrame, profiles: pd.DataFrame) -> pd.DataFrame:
    """Return LOAD_COLUMNS: the course of the timed window of every cell, over the repeats that have a profile.

    `profiles` is the table of accounting.py: a run has up to 40 parts of equal numbers of steps, and a slice takes
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
