"""What a larger batch gives: communication overhead, epoch time, and the knee beyond which it gives little more.

A step of one worker on B samples costs something fixed (launching kernels, the exchange of gradients, the update)
and something for each sample. Two forms with the same two parameters say how they join:

    saturation   step = fixed + B per_sample          X = Xmax B / (B + knee)       they follow one another
    piecewise    step = max(fixed, B per_sample)      X = Xmax min(B / knee, 1)     the dearer one hides the other

with Xmax = N / per_sample and, in both, **knee = fixed / per_sample**: the batch at which the fixed costs equal those
of the samples. Up to the knee the throughput grows with the batch; at the knee it is half of Xmax in the first form
and all of it in the second. The form with the lower AICc is taken.

Both are fitted by least squares of relative residuals of the step, N B / X, in closed form. Letters: R runs, K distinct
batches, P parameters, D draws. Intervals: bootstrap over runs within each batch, m - 1 of m, percentiles on logarithms
stretched by t/z as in fit/; where a batch has fewer than three runs, or the forms miss the means by more than the
runs scatter, Student's t of the residuals instead, and `interval` says so.

A knee is given where it is among the batches measured and its interval is narrower than they are; else what bounds
it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Knee:
    """One form of step(B), fitted: parameters as (value, low, high), NaN where there is no interval."""

    form: str
    fixed_s: tuple[float, float, float]
    per_sample_s: tuple[float, float, float]  # of one worker
    at: tuple[float, float, float]  # fixed / per sample: in samples per worker; infinite where per_sample_s is 0
    batches: tuple[float, float]  # smallest and largest measured
    aicc: Mapping[str, float]  # of both forms; empty with too few runs
    others: Mapping[str, float]  # the knees of both forms
    interval: str
    doubts: tuple[str, ...]

    def step_s(self, batch: ArrayLike) -> Floats:
        """Return the fitted step at batches (N,), in s."""
        sizes = np.asarray(batch, dtype=np.float64)
        return _step(self.form, np.array([self.fixed_s[0], self.per_sample_s[0]]), sizes)

    @property
    def identified(self) -> bool:
        """Whether the knee is among the batches measured, with an interval that is narrower than they are."""
        value, low, high = self.at
        smallest, largest = self.batches
        inside = smallest <= value <= largest
        return bool(inside and low > 0 and math.isfinite(high) and not (low <= smallest and high >= largest))

    @property
    def bounds(self) -> tuple[float, float]:
        """What the knee is at most and at least where it is not identified, NaN where nothing bounds it."""
        value, low, high = self.at
        if self.identified:
            return math.nan, math.nan
        at_most = high if value < self.batches[1] and math.isfinite(high) else math.nan
        at_least = low if value > self.batches[0] and low > 0 else math.nan
        return at_most, at_least

    def batch_for(self, share: float) -> float:
        """Return the batch at which the throughput is this share of the most it can be."""
        return self.at[0] * (share / (1 - share) if self.form == SATURATION else share)


def knee(batch: ArrayLike, step_s: ArrayLike, *, seed: int = 0) -> Knee:
    """Return the better of both forms of step(B) for the batches (R,) and mean steps (R,) of independent runs, in s.

    Raises AnalysisError for fewer than three distinct batches and for values that are not above 0.
    """
    sizes, steps = np.asarray(batch, dtype=np.float64).ravel(), np.asarray(step_s, dtype=np.float64).ravel()
    known = all(np.isfinite(each).all() and (each > 0).all() for each in (sizes, steps))
    distinct, group = np.unique(sizes, return_inverse=True)  # (K,), (R,)
    for broken, text in (
        (not known, "batches and steps must be finite and above 0; leave out runs without a value"),
        (len(distinct) < MIN_BATCHES, f"{len(distinct)} distinct batch sizes: a knee needs at least {MIN_BATCHES}"),
    ):
        if broken:
            raise AnalysisError(text)
    order = np.lexsort((steps, sizes))
    sizes, steps, group = sizes[order], steps[order], group[order]
    runs = [steps[group == place] for place in range(len(distinct))]
    means = np.array([each.mean() for each in runs])
    counts = np.array([len(each) for each in runs], dtype=np.float64)
    weight = counts / means**2  # of the squared miss of a mean
    fitted = {form: _solve(form, means[None], distinct, weight)[0] for form in (SATURATION, PIECEWISE)}
    within = float(sum(np.sum((each / each.mean() - 1) ** 2) for each in runs))
    misses = {form: float(weight @ (means - _step(form, values, distinct)) ** 2) for form, values in fitted.items()}
    aicc = {form: _aicc(within + miss, len(steps)) for form, miss in misses.items()}
    form = min(misses, key=lambda each: misses[each])
    other = PIECEWISE if form == SATURATION else SATURATION
    ends, how, doubts = _intervals(form, fitted[form], runs, distinct, weight, within, misses[form], seed)
    knees = {each: float(a / b) if b > 0 else math.inf for each, (a, b) in fitted.items()}
    apart = knees[other] / knees[form] if knees[form] else math.inf if knees[other] else 1.0
    apart = min(max(apart, 1e-9), 1e9) if apart == apart else 1.0
    if aicc and aicc[other] - aicc[form] < _EQUAL_SUPPORT and abs(math.log(apart)) > 0.1:
        doubts.append(
            f"the {other} form fits as well (AICc within {_EQUAL_SUPPORT:g}) with its knee at {knees[other]:.3g}"
        )
    a, b = (float(each) for each in fitted[form])
    return Knee(
        form=form,
        fixed_s=_around(a, ends[0]),
        per_sample_s=_around(b, ends[1]),
        at=_around(knees[form], ends[2]),
        batches=(float(distinct[0]), float(distinct[-1])),
        aicc=aicc if all(math.isfinite(each) for each in aicc.values()) else {},
        others=knees,
        interval=how,
        doubts=tuple(doubts),
    )


def _around(value: float, ends: tuple[float, float]) -> tuple[float, float, float]:
    """Return a value with its ends, which rounding must not put on one side of it."""
    low, high = ends
    return value, low if math.isnan(low) else min(low, value), high if math.isnan(high) else max(high, value)


def _step(form: str, values: Floats, batch: Floats) -> Floats:
    """Return the step at batches (K,) for parameters (..., 2)."""
    fixed, samples = values[..., :1], values[..., 1:] * batch
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
        miss = (means - _step(PIECEWISE, tried, batch)) ** 2 @ weight
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
) -> tuple[list[tuple[float, float]], str, list[str]]:
    """Return the ends for fixed, per sample and knee, in words how they were made, and doubts."""
    means = np.array([each.mean() for each in runs])
    counts = np.array([len(each) for each in runs])
    rows, k = int(counts.sum()), len(batch)
    repeated = bool(counts.min() >= stats.MIN_REPEATS)
    spare = rows - k
    missed = bool(spare > 0 and miss > k * _EXACT**2 and stats.lack_of_fit_p(miss, within, (k - 2, spare)) < 0.01)
    doubts = (
        [f"neither form follows the steps within the scatter of the runs; the {form} form is the closer one"]
        if missed
        else []
    )
    centre, slopes = _logs(values), _slopes(form, means, batch, weight)  # (3,), (3, K): per relative change of a mean
    if repeated and not missed:
        relative = np.array([each.var(ddof=1) for each in runs]) / means**2 / counts
        parts = slopes**2 * relative  # (3, K)
        below = np.sum(parts**2 / (counts - 1), axis=1)
        with np.errstate(invalid="ignore"):  # one where both are infinite
            freedom = np.divide(parts.sum(axis=1) ** 2, below, out=np.full_like(below, np.inf), where=below > 0)
        freedom[np.isnan(freedom)] = 1.0
        generator = np.random.default_rng(seed)
        drawn = np.column_stack(
            [each[generator.integers(len(each), size=(DRAWS, len(each) - 1))].mean(axis=1) for each in runs]
        )
        found = _logs(_solve(form, drawn, batch, weight))  # (D, 3)
        ends = []
        for place in range(3):
            stretch = stats.stretch(max(float(freedom[place]), 1.0))
            low, high = np.quantile(found[:, place], (0.025, 0.975), method="inverted_cdf")
            middle = centre[place]
            if not math.isfinite(middle):
                ends.append(_beyond(middle, float(low), float(high)))
                continue
            ends.append((math.exp(middle + stretch * (low - middle)), math.exp(middle + stretch * (high - middle))))
        return ends, f"95 %, bootstrap over runs ({counts.min()} or more per batch)", doubts
    if missed:
        spread, freedom_, what = miss / (k - 2) / counts.mean(), k - 2, f"the means of {k} batches"
        variances = np.full(k, spread)
    else:
        freedom_, what = rows - 2, f"{rows} runs"
        variances = (within + miss) / freedom_ / counts
    with np.errstate(invalid="ignore"):  # of a parameter that is 0 or infinite
        half = stats.half_width(np.sqrt(slopes**2 @ variances), float(freedom_))
    ends = []
    for middle, width in zip(centre, half, strict=True):
        if not (math.isfinite(middle) and math.isfinite(width)):
            ends.append(_beyond(float(middle), math.nan, math.nan))
        else:
            ends.append((math.exp(max(middle - width, -700.0)), math.exp(min(middle + width, 700.0))))
    return ends, f"95 %, Student's t of the residuals of {what}", doubts


def _beyond(middle: float, low: float, high: float) -> tuple[float, float]:
    """Return the ends of a parameter that is 0 or infinite: what draws say of the other side, if they do."""
    if middle == -math.inf:
        return 0.0, math.exp(high) if math.isfinite(high) else math.nan
    return (math.exp(low) if math.isfinite(low) else math.nan), math.inf


def _slopes(form: str, means: Floats, batch: Floats, weight: Floats) -> Floats:
    """Return how the logarithms of fixed, per sample and knee change with each mean, (3, K), per relative change."""
    h = 1e-5
    moved = means * (1 + h * np.vstack([np.eye(len(means)), -np.eye(len(means))]))  # (2K, K)
    found = _logs(_solve(form, moved, batch, weight))  # (2K, 3)
    with np.errstate(invalid="ignore"):
        return np.asarray((found[: len(means)] - found[len(means) :]).T / (2 * h))


@dataclass(frozen=True, kw_only=True)
class _BatchSizes:
    """What the batch sizes of a study say."""

    cells: pd.DataFrame  # BATCH_COLUMNS
    knees: pd.DataFrame  # KNEE_COLUMNS
    curves: pd.DataFrame  # CURVE_COLUMNS


def batch_sizes(runs: pd.DataFrame, *, seed: int = 0) -> _BatchSizes:
    """Return the tables of the finished runs of a run table, where one worker count has several batches.

    Empty where there is none. One plain worker is a series too. Runs may differ in the learning rate.
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
        fitted = knee(group["batch"], _run_steps(group), seed=seed)
        found.append(row | _knee_row(fitted, float(first["workers"])))
        grid = np.unique(np.geomspace(*fitted.batches, 60).round(3))
        step = fitted.step_s(grid)
        rate = first["workers"] * grid / step
        name["workers"] = int(first["workers"])
        line = {"batch": grid, "samples_per_s": rate, "step_s": step, "epoch_s": first["train_samples"] / rate}
        frames.append(pd.DataFrame({**name, "form": fitted.form, **line}))
    return _BatchSizes(
        cells=pd.DataFrame(rows, columns=list(BATCH_COLUMNS)).astype({"workers": "int64", "repeats": "int64"}),
        knees=pd.DataFrame(found, columns=list(KNEE_COLUMNS)).astype({"workers": "int64", "batches": "int64"}),
        curves=pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(CURVE_COLUMNS)),
    )


def _knee_row(found: Knee, workers: float) -> dict[str, Any]:
    other = PIECEWISE if found.form == SATURATION else SATURATION
    per_sample, low, high = found.per_sample_s
    numbers = {
        ("knee", "knee_low", "knee_high"): found.at if found.identified else [math.nan] * 3,
        ("knee_at_most", "knee_at_least"): found.bounds,
        ("fixed_s", "fixed_low_s", "fixed_high_s"): found.fixed_s,
        ("per_sample_s", "per_sample_low_s", "per_sample_high_s"): found.per_sample_s,
        ("most_samples_per_s", "most_low", "most_high"): [
            workers / each if each > 0 else math.nan for each in (per_sample, high, low)
        ],
    }
    notes = found.doubts if found.identified else (f"not identifiable: {_why_not(found)}", *found.doubts)
    return {
        "form": found.form,
        "identified": found.identified,
        **{name: each for names, values in numbers.items() for name, each in zip(names, values, strict=True)},
        "batch_for_90_percent": found.batch_for(0.9) if found.identified else math.nan,
        "other_form": other,
        "other_knee": found.others[other] if math.isfinite(found.others[other]) else math.nan,
        "aicc_gain": found.aicc[other] - found.aicc[found.form] if found.aicc else math.nan,
        "interval": found.interval,
        "note": "; ".join(notes),
    }


def _why_not(found: Knee) -> str:
    """Return why there is no knee, in words."""
    value, low, high = found.at
    smallest, largest = found.batches
    if value < smallest < high:
        return (
            f"its estimate is below the batches measured, its interval reaches up to {high:.3g}; add batches below "
            f"{smallest:g}, or repeats"
        )
    if low < largest < value:
        return (
            f"its estimate is above the batches measured, its interval reaches down to {low:.3g}; add batches above "
            f"{largest:g}, or repeats"
        )
    if value < smallest:
        return f"every batch measured is above the knee; add batches below {smallest:g}"
    if value > largest:
        return f"every batch measured is below the knee; add batches above {largest:g}"
    return "its interval is as wide as the batches measured; add repeats or batches further apart"


_Alone: TypeAlias = dict[tuple[Any, ...], Floats]  # throughputs of one worker, by `_base_name`


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


_ALIKE = ("partition", "precision", "model", *CHOICES)


def _base_name(row: Any, kind: str) -> tuple[Any, ...]:
    free = KNOBS if kind == "plain" else ()
    way = () if kind == "plain" else (row["backend"], row["transport"], bool(row["horovod_defaults"]))
    alike = tuple(str(row[name]) for name in _ALIKE if name not in free)
    return (kind, *way, *alike, float(row["batch"]), str(row["train_samples"]))


def _run_steps(cell: pd.DataFrame) -> Floats:
    """Return the step of the slowest rank in s of each run: N B / X, which needs no laps."""
    return np.asarray(cell["workers"] * cell["batch"] / cell["samples_per_s"].astype(float), dtype=np.float64)


def _batch_row(cell: pd.DataFrame, alone: _Alone) -> dict[str, Any]:
    first = cell.iloc[0]
    rates = cell["samples_per_s"].to_numpy(dtype=np.float64)
    sync, recorded = (cell[name].to_numpy(dtype=np.float64) for name in ("sync_s", "step_s"))
    step = _run_steps(cell)
    batches = batches_per_epoch(first["train_samples"], first["batch"], first["workers"])
    serial = first["backend"] == "serial"
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.full(len(cell), math.nan) if serial else np.where(recorded > 0, sync / recorded, math.nan)
    kinds = ("plain",) if serial else ("plain", "wrapped")
    base = next((kind for kind in kinds if _base_name(first, kind) in alone), "")
    lost, lost_low, lost_high = math.nan, math.nan, math.nan
    if base and not (serial and first["workers"] == 1):
        one = alone[_base_name(first, base)]
        gained = stats.median_ratio(rates, one)
        lost = 1 - stats.of_all(rates) / stats.of_all(one) / float(first["workers"])
        lost_low, lost_high = (1 - end / float(first["workers"]) for end in (gained.high, gained.low))
    return {
        **{name: first[name] for name in ("series", "workers", "nodes", "batch", "train_samples", *KEPT)},
        "repeats": len(cell),
        **over_repeats("samples_per_s", rates),
        "step_s_median": stats.of_all(step),
        "sync_s_median": math.nan if serial else stats.of_all(sync),
        **over_repeats("overhead", share),
        "lost": lost,
        "lost_low": lost_low,
        "lost_high": lost_high,
        "lost_base": "" if math.isnan(lost) else base,
        "batches_per_epoch": batches,
        **over_repeats("epoch_s", (batches if batches > 0 else math.nan) * step),
        "note": hidden_note(cell) if not serial and np.isnan(sync).any() else "",
    }


def doubts(table: pd.DataFrame) -> list[str]:
    """Return what a reader must know of the knees (KNEE_COLUMNS), one sentence per row that has one."""
    found = []
    for row in table.to_dict("records"):
        if row["note"] and row["form"]:
            place = worker_counts([row["workers"]])
            found.append(f"{row['series']} at {place}, batch-size knee: {row['note']}.")
    return found
