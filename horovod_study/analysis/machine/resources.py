"""What training costs: energy per sample and worker hours of every cell, and how these grow with the workers.

A cell is what its repeats say together, as in `points`. Besides, laws of every quantity that training takes more of or
less of with more workers: energy per sample, worker hours per epoch, and samples, seconds, worker hours and joules to a
target. A law is fitted to runs, one value each. docs/metrics.md defines every quantity.

A worker is a GPU where the runs trained on GPUs, and worker hours are GPU hours then.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import QuantityFit, fit_quantity
from horovod_study.analysis.laws import Law
from horovod_study.analysis.series import points
from horovod_study.analysis.sync.boundary import fewest_nodes
from horovod_study.errors import AnalysisError

_TO_TARGET = ("samples", "train_s", "worker_hours", "energy_j")

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


@dataclass(frozen=True, kw_only=True)
class _FittedQuantity:
    """One quantity of one series against workers: the laws fitted to its runs, and what to doubt."""

    DOCUMENT = "series quantity target_mse censored laws selected doubts"

    series: str
    quantity: str  # energy_per_sample_j, worker_hours_per_epoch, or one of _TO_TARGET
    target_mse: float  # NaN for quantities without a target
    fit: QuantityFit | None  # None where the runs allow none; the doubts say why
    censored: int  # runs that did not meet the target: lower bounds, which no law is fitted to
    most_workers: int  # of its runs, those with lower bounds included
    doubts: tuple[str, ...]

    @property
    def laws(self) -> Mapping[str, Law]:
        return {} if self.fit is None else self.fit.fits

    @property
    def selected(self) -> str | None:
        return None if self.fit is None else self.fit.selected


def resources(runs: pd.DataFrame) -> pd.DataFrame:
    """Return RESOURCE_COLUMNS of the finished runs of a run table (records.run_table), one row per cell.

    Energy is that of the timed window, from the runs that know it; NaN where none does. Repeats whose energy is that
    of different kinds of devices have no median. Ratios are over the plain one-worker cell, where it was measured and
    its energy is of the same kinds of devices.
    """
    rows = [_row(cell) for cell in points.cells_of(_completed(runs)) if len(cell)]
    for row in rows:
        row.update(_against(row, rows))
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


def _against(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return energy and speedup over the plain baseline, if any; speedup_per_joule is speedup / energy ratio."""
    place = points.baseline_place(rows, row, "plain")
    if place is None or rows[place]["energy_of"] != row["energy_of"] or not len(row["_energy"]):
        return {}
    base = rows[place]
    joules, of = base["energy_per_sample_j_median"], stats.median_ratio(row["_energy"], base["_energy"])
    ratio, speedup = row["energy_per_sample_j_median"] / joules, row["_samples_per_s"] / base["_samples_per_s"]
    low, high = (1.0, 1.0) if base is row else (of.low, of.high)
    found = {"base_energy_per_sample_j": joules, "speedup_per_joule": speedup / ratio}
    return found | {"energy_ratio": ratio, "energy_ratio_low": low, "energy_ratio_high": high}


def fit_quantities(runs: pd.DataFrame, crossings: pd.DataFrame, *, seed: int = 0) -> list[_FittedQuantity]:
    """Return the laws of every quantity that the parallel series of a run table know at two worker counts or more.

    `crossings` (`convergence.Convergence.crossings`) has what each run took to each target. Of equal workers on several
    numbers of nodes those on the fewest count, as for laws of throughput. A worker count at which some run did not meet
    the target is left out of the laws of that target: the runs that did are the quick ones, and the others only have
    lower bounds. A doubt names it and says which way this bends the law.
    """
    table = _completed(runs)
    found: list[_FittedQuantity] = []
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
            for quantity in _TO_TARGET:
                known = to_target[to_target[quantity].notna()].assign(value=to_target[quantity])
                found += _one(f"{series}", quantity, float(f"{target}"), known, seed)
    return found


def _one(series: str, quantity: str, target: float, rows: pd.DataFrame, seed: int) -> Iterator[_FittedQuantity]:
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
    yield _FittedQuantity(
        series=series,
        quantity=quantity,
        target_mse=target,
        fit=fit,
        censored=len(late),
        most_workers=int(rows["workers"].max()),
        doubts=tuple(doubts),
    )


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


def quantity_curves(found: Sequence[_FittedQuantity]) -> pd.DataFrame:
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
