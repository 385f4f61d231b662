"""What a larger batch gives: communication overhead, epoch time, and the knee beyond which it gives little more.

A step of one worker on B samples costs something fixed and something for each sample, joined in one of two forms:

    saturation   step = fixed + B per_sample          X = Xmax B / (B + knee)       they follow one another
    piecewise    step = max(fixed, B per_sample)      X = Xmax min(B / knee, 1)     the dearer one hides the other

with Xmax = N / per_sample and, in both, **knee = fixed / per_sample**. Both are fitted by least squares of relative
residuals of the step, N B / X, in closed form, and the one with the lower AICc is taken. Letters: R runs, K distinct
batches, P parameters, D draws. Intervals: bootstrap over runs within each batch, m - 1 of m, percentiles on logarithms
stretched by t/z; where a batch has fewer than three runs, or the forms miss the means by more than the runs scatter,
Student's t of the residuals. A knee is given where it is among the batches measured and its interval is narrower than
they are; else what bounds it.
"""

import math
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from horovod_study.analysis import stats
from horovod_study.analysis.series.points import CHOICES, KNOBS, measured, texts, with_series, worker_counts
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.sync.boundary import hidden_note
from horovod_study.analysis.sync.synchronisation import KEPT, batches_per_epoch, over_repeats
from horovod_study.config.roles import Role
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError

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

KNEE_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batches", "runs", "form"),
    *("knee", "knee_low", "knee_high", "knee_at_most", "knee_at_least", "identified"),
    *("fixed_s", "fixed_low_s", "fixed_high_s", "per_sample_s", "per_sample_low_s", "per_sample_high_s"),
    *("most_samples_per_s", "most_low", "most_high", "batch_for_90_percent", "other_form", "other_knee", "aicc_gain"),
    *("interval", "note", "reduction", "horovod_defaults"),
)
"""One row per series, workers and nodes with several batches. aicc_gain: AICc of the other form less that of this."""

CURVE_COLUMNS = ("series", "workers", "nodes", "form", "batch", "samples_per_s", "step_s", "epoch_s")
SATURATION, PIECEWISE = "saturation", "piecewise"
DRAWS = 1000
MIN_BATCHES = 3
_EQUAL_SUPPORT = 2.0  # in AICc
_EXACT = 1e-12  # relative residuals below this are rounding
_NOT_TIMED = tuple(name for name in CHOICES if OPTIONS[name].roles & Role.RATE)
"""What a step takes does not depend on these, and a larger batch often comes with another learning rate."""


def knee(batch: ArrayLike, step_s: ArrayLike, *, workers: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """Return KNEE_COLUMNS from `form` to `note`: the better of both forms of step(B), and where it has its knee.

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
        doubts.insert(0, f"not identifiable: {_why_not(value, low, high, smallest, largest)}")
    most = [workers / each if each > 0 else math.nan for each in (per_sample[0], per_sample[2], per_sample[1])]
    known = (value, low, high) if identified else [math.nan] * 3
    row: dict[str, Any] = {"form": form, "identified": identified, "knee_at_most": at_most, "knee_at_least": at_least}
    for names, triple in (
        (("knee", "knee_low", "knee_high"), known),
        (("fixed_s", "fixed_low_s", "fixed_high_s"), fixed),
        (("per_sample_s", "per_sample_low_s", "per_sample_high_s"), per_sample),
        (("most_samples_per_s", "most_low", "most_high"), most),
    ):
        row |= zip(names, triple, strict=True)
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
        parts = slopes**2 * relative  # (3, K)
        below = np.sum(parts**2 / (counts - 1), axis=1)
        with np.errstate(invalid="ignore"):  # one where both are infinite
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

    cells (BATCH_COLUMNS), knees (KNEE_COLUMNS), curves (CURVE_COLUMNS); empty where there is none. One plain worker is
    a series too. Runs may differ in the learning rate.
    """
    rows, found, frames = [], [], []
    groups, alone = _groups(runs)
    for cells in groups:
        own = [_batch_row(cell, alone) for cell in cells]
        smallest = min(own, key=lambda row: float(row["batch"]))["samples_per_s_median"]
        rows += [{**row, "times_faster": row["samples_per_s_median"] / smallest} for row in own]
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
        curves=pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(CURVE_COLUMNS)),
    )


def _why_not(value: float, low: float, high: float, smallest: float, largest: float) -> str:
    """Return why there is no knee among the batches measured, in words."""
    if value < smallest < high:
        side, reached, words, end = "below", "up", f"{high:.3g}", smallest
    elif low < largest < value:
        side, reached, words, end = "above", "down", f"{low:.3g}", largest
    elif value < smallest:
        return f"every batch measured is above the knee; add batches below {smallest:g}"
    elif value > largest:
        return f"every batch measured is below the knee; add batches above {largest:g}"
    else:
        return "its interval is as wide as the batches measured; add repeats or batches further apart"
    where = f"its estimate is {side} the batches measured, its interval reaches {reached} to {words}"
    return f"{where}; add batches {side} {end:g}, or repeats"


_Alone: TypeAlias = dict[tuple[Any, ...], Floats]  # throughputs of one worker, by `_base_name`
_ALIKE = ("partition", "precision", "model", *CHOICES)


def _groups(runs: pd.DataFrame) -> tuple[list[list[pd.DataFrame]], _Alone]:
    """Return, for each series, worker count and nodes with several batches, the runs of each batch in their order.

    Beside them the throughputs of one worker.
    """
    good = runs[measured(runs) & pd.to_numeric(runs["batch"]).notna()]
    if good["batch"].nunique() < 2:
        return [], {}
    sizes = pd.to_numeric(good["batch"]).astype("float64")
    # Series are distinguished as if all had one batch, and named without it.
    table = with_series(
        good.drop(columns=[name for name in _NOT_TIMED if name in good.columns]).assign(
            _batch=sizes, batch=1.0, global_batch=good["workers"].astype(float)
        )
    )
    bare = table["setting"].str.removeprefix("global batch 1").str.removeprefix("batch 1").str.strip()
    names = [
        " ".join(series.replace(setting, rest, 1).split())
        for series, setting, rest in zip(table["series"], table["setting"], bare, strict=True)
    ]
    table = table.assign(series=names, setting=bare, batch=table["_batch"]).drop(columns="_batch")
    table = table.assign(per_node=texts(table, "per_node"))
    alone: _Alone = {}
    keys = ["backend", "transport", *_ALIKE, "batch", "train_samples"]
    for _, cell in table[table["workers"] == 1].groupby(keys, sort=False, dropna=False):
        first = cell.iloc[0]
        name = _base_name(first, "plain" if first["backend"] == "serial" else "wrapped")
        alone.setdefault(name, cell["samples_per_s"].to_numpy(dtype=np.float64))
    keys = ["series", "train_samples", "workers", "nodes", "per_node"]
    groups = [group.groupby("batch", sort=True) for _, group in table.groupby(keys, sort=False, dropna=False)]
    return [[cell for _, cell in group] for group in groups if len(group) > 1], alone


def _base_name(row: Any, kind: str) -> tuple[Any, ...]:
    free = KNOBS if kind == "plain" else ()
    way = () if kind == "plain" else (row["backend"], row["transport"], bool(row["horovod_defaults"]))
    alike = tuple(str(row[name]) for name in _ALIKE if name not in free)
    return (kind, *way, *alike, float(row["batch"]), str(row["train_samples"]))


def _batch_row(cell: pd.DataFrame, alone: _Alone) -> dict[str, Any]:
    first = cell.iloc[0]
    rates = cell["samples_per_s"].to_numpy(dtype=np.float64)
    sync, recorded = (cell[name].to_numpy(dtype=np.float64) for name in ("sync_s", "step_s"))
    step = (cell["workers"] * cell["batch"] / rates).to_numpy(dtype=np.float64)
    batches = batches_per_epoch(first["train_samples"], first["batch"], first["workers"])
    serial = first["backend"] == "serial"
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.full(len(cell), math.nan) if serial else np.where(recorded > 0, sync / recorded, math.nan)
    kinds = ("plain",) if serial else ("plain", "wrapped")
    base = next((kind for kind in kinds if _base_name(first, kind) in alone), "")
    lost = lost_low = lost_high = math.nan
    if base and not (serial and first["workers"] == 1):
        one = alone[_base_name(first, base)]
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


def doubts(table: pd.DataFrame) -> list[str]:
    """Return what a reader must know of the knees (KNEE_COLUMNS), one sentence per row that has one."""
    return [
        f"{row['series']} at {worker_counts([row['workers']])}, batch-size knee: {row['note']}."
        for row in table.to_dict("records")
        if row["note"] and row["form"]
    ]
