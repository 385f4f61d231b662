"""What training costs: energy per sample and worker hours of every cell, and how these grow with the workers.

A cell is what its repeats say together, as in `points`. Besides, laws of every quantity that changes with the workers,
fitted to runs, one value each. docs/metrics.md defines them. Worker hours are GPU hours where the runs were on GPUs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import QuantityFit, fit_quantity
from horovod_study.analysis.series import points
from horovod_study.analysis.series.points import cells_of, measured, numbers, texts, whole_numbers, with_series
from horovod_study.analysis.sync.synchronisation import fewest_nodes
from horovod_study.errors import AnalysisError
from horovod_study.records import SystemSamples, facts, finite
from horovod_study.text.words import plural

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
    (NaN without one), `fit` (None where the runs allow none), `censored` (runs that did not meet the target),
    `most_workers` and `doubts`. `crossings` has what each run took to each target. A worker count at which some run did
    not meet the target is left out, for those that did are the quick ones: a doubt says which way this bends the law.
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

QUANTITIES = (
    *("gpu_percent", "gpu_power_w", "gpu_power_w_per_gpu", "gpu_memory_mb"),
    *("cpu_percent_per_rank", "rss_mb_per_rank", "package_power_w"),
)
"""Columns of the run table; docs/metrics.md says what each is of the devices of a run."""

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
    if table.empty:
        return pd.DataFrame(columns=list(LOAD_COLUMNS))
    ordered = profiles.sort_values(["run", "part"], kind="stable").astype(dict.fromkeys(OVER_TIME, "float64"))
    of_run, middles = ordered.groupby("run", sort=False), (np.arange(SLICES) + 0.5) / SLICES
    since = of_run["begin_s"].transform(lambda begins: begins.iloc[0])
    places = [rows[(middles * len(rows)).astype(np.int64)] for rows in of_run.indices.values()]
    slices = ordered.assign(at_s=(ordered["begin_s"] + ordered["end_s"]) / 2 - since).iloc[np.concatenate(places)]
    slices["slice"] = np.tile(np.arange(SLICES), len(places))
    cell = table.groupby(["series", *points.CELL], dropna=False, sort=False).ngroup()
    each = table[["run"]].assign(cell=cell).merge(slices, on="run").groupby(["cell", "slice"])
    found = each[["at_s", *OVER_TIME]].agg(["median", "min", "max"])
    found.columns = ["_".join(names) for names in found.columns]
    heads = pd.DataFrame([_head(rows) for rows in cells_of(table)])
    found = found.reset_index("slice").join(heads).reset_index(drop=True)
    return found.rename(columns={"at_s_median": "at_s"})[list(LOAD_COLUMNS)]


# ------------------------------------------------------------------------- what the sensors of the hosts of a run say

PHASES = ("start-up", "warm-up", "timed steps", "evaluation", "break", "end")
"""A break is a checkpoint, or whatever else kept the steps waiting; the end has the last evaluation in it."""

SENSED = (
    *("cpu_percent", "rss_mb", "own_mb", "pss_mb", "voluntary_per_s", "involuntary_per_s", "read_mb_per_s"),
    *("written_mb_per_s", "available_mb", "load1", "received_mb_per_s", "sent_mb_per_s", "loopback_mb_per_s"),
    *("rdma_received_mb_per_s", "rdma_sent_mb_per_s", "gpu_percent", "gpu_memory_mb", "sm_mhz", "memory_mhz"),
    *("temperature_c", "power_w", "sampler_cpu_percent"),
)
"""The quantities of `quantities`, in the order of tables; docs/metrics.md says what they are."""

_RATES = {f"{name}_per_s": (f"{name}_switches", 1.0) for name in ("voluntary", "involuntary")}
_RATES |= {
    f"{name}_mb_per_s": (f"{name}_bytes", 1e6)
    for name in ("read", "written", "received", "sent", "loopback", "rdma_received", "rdma_sent")
}

BREAK_S = 0.05  # a shorter pause between two steps is not drawn as a phase
_GAP_INTERVALS = 2.0
OTHERS_PERCENT = 25.0
_ENOUGH = 8  # with fewer samples in the timed steps, means are too uncertain for a doubt


def quantities(rows: pd.DataFrame, interval_s: float) -> pd.DataFrame:
    """Return at_s, attempt, part, interval_s and the columns of SENSED: counts became rates, per second.

    interval_s: the usual one. What was counted over less than a quarter of it (the extra samples at the run's zero and
    at its end) is too coarse for a rate or a share of a core, and NaN.
    """
    found = rows[["at_s", "attempt", "part", "interval_s"]].copy()
    for name in SENSED:
        column, unit = _RATES.get(name, (name, 0.0))
        over_s = rows["switches_over_s" if column.endswith("switches") else "interval_s"].astype("float64")
        values = rows[column].astype("float64")
        values = values / unit / over_s if unit else values
        instant = not unit and not name.endswith("cpu_percent")
        found[name] = values.where((over_s >= interval_s / 4) | instant)
    return found


def phases(
    steps: pd.DataFrame, evaluations: Sequence[Mapping[str, float]], *, first_timed: int, first_s: float, last_s: float
) -> pd.DataFrame:
    """Return the phases of a run: `phase` (one of PHASES), `begin_s`, `end_s`, in order, without overlap.

    `steps` are the step rows of one rank, `evaluations` the rows of epochs.csv, `first_timed` is the first step of the
    timed window, first_s and last_s are the times of the first and last sample. A pause between two steps is known
    where one clock times the steps (a CPU); on an accelerator only evaluations are. Empty where steps were not timed.
    """
    found: list[tuple[str, float, float]] = []
    rows = steps[steps["begin_s"].notna()]
    if rows.empty:  # with steps, but none with a time, nothing is known of the phases
        return _table([] if len(steps) else [("start-up", first_s, last_s)])
    residual = rows["residual_s"].fillna(0.0).to_numpy(dtype=float)
    begins = rows["begin_s"].to_numpy(dtype=float) - residual
    following = np.append(begins[1:], np.nan)
    lengths = rows["step_s"].to_numpy(dtype=float)
    one_clock = bool(rows["sync_host_s"].isna().all() and np.isfinite(lengths).all())
    ends = begins + lengths if one_clock else np.where(np.isfinite(following), following, begins)
    number = rows["step"].to_numpy()
    evaluated = {int(each["steps"]): float(each["wall_s"]) for each in evaluations}
    cuts = {0, len(rows), *np.flatnonzero(number == first_timed).tolist()}
    cuts |= set(np.flatnonzero(np.isin(number, list(evaluated))).tolist())
    if one_clock:
        cuts |= set((np.flatnonzero(following - ends > BREAK_S) + 1).tolist())
    places = sorted(cuts)
    found.append(("start-up", first_s, float(begins[0])))
    for first, after in pairwise(places):
        until, next_step = float(ends[after - 1]), int(number[after - 1]) + 1
        what, next_s = "end", last_s
        if after < len(rows):
            what, next_s = "evaluation" if next_step in evaluated else "break", float(begins[after])
        if next_step in evaluated:
            until = max(evaluated[next_step], float(begins[first]))
            until = until if what == "end" else min(until, next_s)
        found.append(("timed steps" if number[first] >= first_timed else "warm-up", float(begins[first]), until))
        found.append((what, until, next_s))
    return _table(found)


def _table(found: list[tuple[str, float, float]]) -> pd.DataFrame:
    kept: list[list[Any]] = []
    for phase, begin_s, end_s in found:
        if end_s <= begin_s or (phase == "break" and end_s - begin_s <= BREAK_S):
            continue
        if kept and kept[-1][0] == phase and begin_s - kept[-1][2] <= BREAK_S:
            kept[-1][2] = end_s  # the same phase, cut in two for no reason
        else:
            kept.append([phase, begin_s, end_s])
    table = pd.DataFrame(kept, columns=["phase", "begin_s", "end_s"])
    return table.astype({"begin_s": "float64", "end_s": "float64"})


def summary(samples: Mapping[str, SystemSamples], table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per host, part and quantity: `mean`, `median`, `max` over the timed steps, `samples` behind them.

    A sample stands for the time since the one before it and counts where the middle of that is in the timed steps;
    the mean weighs by that time. Without timed steps in `table` (see `phases`) all samples count. What a part does not
    have is left out.
    """
    found = []
    for host, each in samples.items():
        for part, kept in _timed_parts(each, table).items():
            device = each.meta["devices"].get(part, "")
            for name in SENSED:
                values = kept[name].dropna()
                if values.empty:
                    continue
                weights = kept.loc[values.index, "interval_s"].fillna(0.0)
                mean = float((values * weights).sum() / weights.sum()) if weights.sum() > 0 else float(values.mean())
                typical = (mean, float(values.median()), float(values.max()), len(values))
                found.append((host, part, device, name, *typical))
    columns = ["host", "part", "device", "quantity", "mean", "median", "max", "samples"]
    return pd.DataFrame(found, columns=columns)


def other_cores(
    samples: Mapping[str, SystemSamples], table: pd.DataFrame, totals: Mapping[str, Any]
) -> dict[str, float]:
    """Return host -> cores that programs which are not of the run used during the timed steps, where that is known."""
    found = {host: _others_percent(each, _timed_parts(each, table), totals) for host, each in samples.items()}
    return {host: others / 100 for host, others in found.items() if others is not None}


def _timed_parts(samples: SystemSamples, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the samples of each part during the timed steps; those of the host may be none."""
    rows, parts = quantities(samples.rows, float(samples.meta["interval_s"])), {}
    stretches = table[table["phase"] == "timed steps"]
    for part, frame in rows.groupby("part", sort=False):
        middle = frame["at_s"] - frame["interval_s"].fillna(frame["at_s"].diff()).fillna(0.0) / 2
        inside = pd.Series(stretches.empty, index=middle.index)
        for each in stretches.to_dict("records"):
            inside |= (middle >= each["begin_s"]) & (middle <= each["end_s"])
        parts[str(part)] = frame[inside]
    parts.setdefault("host", rows.iloc[:0])
    return parts


def _others_percent(
    samples: SystemSamples, parts: Mapping[str, pd.DataFrame], totals: Mapping[str, Any]
) -> float | None:
    """Return the use of processors by other programs, % of a core; None where too few samples or sensors tell.

    Of a run that trained in turns neither does: a sample spans the turns of other cells. Its slices tell.
    """
    ranks = [frame for part, frame in parts.items() if part.startswith("rank ")]
    if totals.get("turns"):
        return None
    if len(parts["host"]) < _ENOUGH or not ranks or any("rank" in name for name in samples.meta["missing"]):
        return None
    own = sum(float(frame["cpu_percent"].mean()) for frame in ranks)
    others = float(parts["host"]["cpu_percent"].mean()) - own - float(parts["host"]["sampler_cpu_percent"].mean())
    return others if math.isfinite(others) else None


def sensor_doubts(samples: Mapping[str, SystemSamples], table: pd.DataFrame, totals: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of samples: other load, growing memory, a costly sampler, missed samples.

    `totals` are those of run.json; a run that has not ended has none.
    """
    found = []
    for host, each in samples.items():
        parts, interval_s = _timed_parts(each, table), float(each.meta["interval_s"])
        others, told = _others_percent(each, parts, totals), []
        if others is not None and others > OTHERS_PERCENT:
            used = f"programs that are not of this run used {others / 100:.1f} cores during the timed steps"
            told.append(f"{used}; do not compare its times with those of a quiet machine")
        for part, frame in parts.items():
            if not part.startswith("rank ") or len(frame) < _ENOUGH:
                continue
            quarters = [float(np.median(part)) for part in np.array_split(frame["own_mb"].to_numpy(float), 4)]
            before, after = quarters[0], quarters[-1]
            # Growth that goes on, and not one step of it: the first evaluation takes memory and keeps it.
            goes_on = min(np.diff(quarters)) > 0.1 * (after - before)  # in each quarter of the run
            if goes_on and after - before > max(20.0, 0.05 * before):
                grew = f"grew from {before:,.0f} to {after:,.0f} MB during the timed steps; a longer run may not fit"
                told.append(f"the own memory of {part} {grew}")
        host_rows = parts["host"]
        cost = float(host_rows["sampler_cpu_percent"].mean()) if len(host_rows) >= _ENOUGH else math.nan
        if cost > 1.0:
            told.append(f"the sampler itself used {cost:.1f} % of a core; use a longer --system-interval-s")
        gaps = each.rows.loc[each.rows["part"] == "host", ["at_s", "attempt"]].diff()
        gaps = gaps[(gaps["attempt"] == 0) & (gaps["at_s"] > _GAP_INTERVALS * interval_s)]
        if len(gaps):
            seconds = f"{gaps['at_s'].sum():.1f} s in all"
            told.append(f"{plural(len(gaps), 'gap')} of more than two intervals between samples, {seconds}")
        found += [f"{host}: {text}." for text in told]
    return found


def told_doubts(totals: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know by the totals of run.json: samplers that have ended early, unsure energy."""
    hosts, energy = (totals.get("system") or {}).get("hosts") or {}, totals.get("energy") or {}
    ends = {host: told.get("ended") or told.get("reason") for host, told in hosts.items()}
    found = [f"{host}: system samples are not complete: {reason}." for host, reason in ends.items() if reason]
    return [*found, f"energy: {energy['doubt']}."] if energy.get("doubt") else found


DRAWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "CPU / % of a core": ("rank|other", ("cpu_percent",)),
    "Memory / MB": ("rank", ("rss_mb",)),
    "GPU use / %": ("gpu", ("gpu_percent",)),
    "GPU memory / MB": ("gpu", ("gpu_memory_mb",)),
    "Power / W": ("gpu|package", ("power_w",)),
    "Network / (MB/s)": ("host", tuple(name for name in _RATES if "received" in name or "sent" in name)),
    "Disk / (MB/s)": ("rank", ("read_mb_per_s", "written_mb_per_s")),
    "Context switches / (1/s)": ("rank", ("voluntary_per_s", "involuntary_per_s")),
    "GPU clock / MHz": ("gpu", ("sm_mhz",)),
}
"""Panels of the figure over time: parts, and quantities. Of one quantity each part has a line, of several their sum."""


def over_time(samples: SystemSamples) -> pd.DataFrame:
    """Return panel, line, at_s and value of what there is to draw of one host; what is zero all the time is left out.

    Readings of a moment have a NaN where samples were missed: nothing is known there. Counts are means over the gap.
    """
    interval_s = float(samples.meta["interval_s"])
    rows = quantities(samples.rows, interval_s)
    ranks, host = rows[rows["part"].str.startswith("rank")], rows[rows["part"] == "host"]
    own = host["at_s"].map(ranks.groupby("at_s")["cpu_percent"].sum(min_count=1))
    others = (host["cpu_percent"] - own - host["sampler_cpu_percent"]).clip(lower=0.0)
    rows = pd.concat([rows, host[["at_s"]].assign(part="other programs", cpu_percent=others)])
    found = []
    for panel, (parts, names) in DRAWN.items():
        here = rows[rows["part"].str.match(parts)]
        lines = {name.removesuffix("_mb_per_s").removesuffix("_per_s").replace("_", " "): name for name in names}
        each = here.groupby("part", sort=False) if len(names) == 1 else ((line, here) for line in lines)
        for line, frame in each:
            name = lines.get(f"{line}", names[0])
            values = frame.groupby("at_s")[name].sum(min_count=1).dropna().rename("value").reset_index()
            if name not in _RATES and not name.endswith("percent"):
                wide = values[values["at_s"].diff() > _GAP_INTERVALS * interval_s]
                missed_s = wide.assign(at_s=wide["at_s"] - interval_s, value=math.nan)
                values = pd.concat([values, missed_s]).sort_values("at_s", kind="stable")
            if values["value"].max() > 0:
                found.append(values.assign(panel=panel, line=line))
    columns = ["panel", "line", "at_s", "value"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)
