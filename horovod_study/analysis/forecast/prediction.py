"""Forecast the throughput of worker counts that were not measured, with intervals that widen with distance.

The forecast is a weighted mean of `trends` of the medians at each count, which weigh as they predicted the largest
known counts, and never above ideal scaling from the best per-worker throughput. The interval combines the noise of one
run, the errors about the largest known counts (growing with the doublings beyond the data), and the disagreement of the
laws. `score` hides the largest known counts and compares. docs/metrics.md, "Forecast" and "Hold-out score", have all of
it; the constants are no physics, they were chosen on published tables: benchmarks/published/README.md, "Two halves".

Letters: K distinct worker counts known, M counts to forecast, P known points, G cells of the grid of StepModel.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from horovod_study.analysis.costs import moved_share
from horovod_study.analysis.fit.fitting import fit
from horovod_study.analysis.fit.least_squares import MAX_WORKERS, no_less_than_zero
from horovod_study.analysis.fit.rows import by_series, check_points, medians_at, off_counts, off_doubts
from horovod_study.analysis.laws import LAWS, all_trends
from horovod_study.analysis.laws.law import Law, Trend
from horovod_study.analysis.laws.lines import POWER
from horovod_study.analysis.machine.advice import network_of
from horovod_study.analysis.machine.network import FittedModel, fitted
from horovod_study.analysis.series.culprits import SPEEDUP, base_of, impossibilities
from horovod_study.analysis.stats import Floats, normal_deviation
from horovod_study.config.doors import Number, Options, Text, Whole, above, asked, at_least, one_of, wrong
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import wrapped

FIXED = (-2.8, 1.1)  # mean and standard deviation of log a
GROWTH = (-5.1, 1.1)  # the same of log g, where g is not 0
_NO_GROWTH = 0.3  # prior probability that g is 0
FLOOR = 1e-4  # density of the priors far out: nothing is impossible
_POINT = 0.02  # log error of the median of a point
_PER_DOUBLING = 0.02  # log error that a doubling of the workers adds: other software, other hosts
_PER_HALVING = 0.06  # log error that a halving or doubling of the batch adds
_SHARING = 0.5  # between 0.3 and 1 in the three such results of two submitters
_SHARING_ERROR = 0.5  # standard deviation of _SHARING
_FREEDOM = 4.0  # degrees of freedom of the Student likelihood

_A = np.exp(np.linspace(np.log(0.002), np.log(8.0), 36))
_G = np.exp(np.linspace(np.log(0.001), np.log(0.6), 18))
_FIXED, _GROWN = (each.ravel() for each in np.meshgrid(_A, np.append(0.0, _G), indexing="ij"))


def _density(values: Floats, mean: float, deviation: float) -> Floats:
    density = np.exp(-0.5 * ((values - mean) / deviation) ** 2) + FLOOR
    return np.asarray(density / density.sum(), dtype=np.float64)


_PRIOR = np.outer(
    _density(np.log(_A), *FIXED), np.append(_NO_GROWTH, (1 - _NO_GROWTH) * _density(np.log(_G), *GROWTH))
).ravel()


class StepModel:
    """Steps of other batch sizes, step(N, b) = c (max(b, 1) / B + a + g log2(N / N_0)), by a grid of (a, g).

    c is the time that computing takes with the largest known batch B; `a` is what a step costs whatever its batch, `g`
    what each doubling of the workers adds, as shares of c. Two points hardly distinguish the three, so none is fitted:
    the grid is weighted by its prior, which is what MLPerf's training results have in common, times the heavy-tailed
    likelihood of the known points, each compared with the one before it (docs/metrics.md, "Another batch").

    Known points, each (P,): workers, samples per worker and step, seconds per step.

    Several batches of one worker count are points of their own; repeats of a point are to be their median.
    `batches` are the smallest and largest known batch per worker, `last` is the last known point, from which forecasts
    start: workers, batch, log step.
    """

    def __init__(self, workers: Floats, batch: Floats, step_s: Floats) -> None:
        order = np.lexsort((batch, workers))
        n, b, log_step = workers[order], batch[order], np.log(step_s[order])
        self._first, self.batches = float(n[0]), (float(b.min()), float(b.max()))
        self.last = float(n[-1]), float(b[-1]), float(log_step[-1])
        score = np.log(_PRIOR)
        for i in range(1, len(n)):
            apart = self._log_step(n[i], b[i]) - self._log_step(n[i - 1], b[i - 1])
            variance = 2 * _POINT**2 + _PER_DOUBLING**2 * np.log2(n[i] / n[i - 1])
            variance += _PER_HALVING**2 * abs(np.log2(b[i] / b[i - 1]))
            squares = (log_step[i] - log_step[i - 1] - apart) ** 2 / variance
            score -= (_FREEDOM + 1) / 2 * np.log1p(squares / _FREEDOM)
        weight = np.exp(score - score.max())
        self._weight = weight / weight.sum()  # (G,)

    def _log_step(self, workers: float, batch: float) -> Floats:
        """(G,) log step in units of c; workers relative to the fewest known, batch and one sample to the largest."""
        largest = self.batches[1]
        shared = _SHARING * max(0.0, -float(np.log(batch)))
        more = np.maximum(_FIXED + _GROWN * np.log2(workers / self._first), 0.0)  # fewer save no more than it all
        return np.asarray(np.log(max(batch, 1.0) / largest + more) + shared, dtype=np.float64)

    def _moments(self, values: Floats, batch: float) -> tuple[float, float]:
        """Mean and variance over the grid, with that of a batch outside the known ones, and of a shared sample."""
        mean, (low, high) = float(self._weight @ values), self.batches
        away = max(0.0, float(np.log2(low / batch)), float(np.log2(batch / high)))
        beyond = _PER_HALVING**2 * away + (_SHARING_ERROR * max(0.0, -float(np.log(batch)))) ** 2
        return mean, float(self._weight @ (values - mean) ** 2) + beyond

    def log_step(self, workers: float, batch: float) -> tuple[float, float]:
        """Log of the step in seconds with `batch` samples on each of `workers`, and its standard deviation."""
        n, b, log_step = self.last
        mean, variance = self._moments(self._log_step(workers, batch) - self._log_step(n, b), batch)
        variance += 2 * _POINT**2 + _PER_DOUBLING**2 * abs(np.log2(workers / n))
        return log_step + mean, float(np.sqrt(variance))

    def change(self, workers: float, before: float, after: float) -> tuple[float, float]:
        """What batch `after` instead of `before` adds to the log of the step, and its standard deviation."""
        mean, variance = self._moments(self._log_step(workers, after) - self._log_step(workers, before), after)
        return mean, float(np.sqrt(variance))


LAW_ERROR = 0.08  # log error of a usable law one doubling ahead, where three counts are all that is known
SHORT = 0.3  # doublings: a step from 15 to 16 workers tells no less than this
AGE = 0.25  # weight of an error whose origin is one doubling further back
_ORIGINS = 8  # hold-outs at most, the latest; more cost time and say nothing new
ANCHORED = 0.5  # share of the forecast that starts from the last measured point
_DRIFT_WEIGHT = 0.06  # how many observed errors the prior of the drift counts for: the first one nearly replaces it
OPEN = 0.9  # over K: weight of the priors in the spread; with few counts the law that did best may be luck
_MIN_COMPUTING = 0.1  # share of the quickest step; an all-reduce that seems to fill it is hidden behind computing
_SLACK = 0.02  # log, how much further than the worst USL a law may be off its last point

Curve = Callable[[Floats], Floats]


def trends(*, strong: bool) -> tuple[Trend, ...]:
    """The trends that need worker counts only, with the priors of a fixed global batch or of a fixed one per worker.

    With a fixed batch per worker Amdahl's law and USL take everything that is lost for a cost that grows with N. Where
    the loss levels off, as in most published curves, they fall far too fast; UNLIKELY makes them ask for evidence.
    """
    asked = [replace(each, prior=each.strong_prior) for each in all_trends()] if strong else all_trends()
    return tuple(each for each in asked if each.of != "sync" and each.prior > 0)


def sync_trends(share: Mapping[float, float]) -> tuple[Trend, ...]:
    """Laws of the synchronisation alone; what is left of the step is computing, which more workers do not change."""
    return tuple(replace(each, share=share) for each in all_trends() if each.of == "sync")


def bench_trend(seconds: Callable[[int], float], batch: float) -> Trend:
    """The step as computing plus an all-reduce of `seconds(workers)`, for `batch` samples per worker."""
    return Trend(name="bench", of="bench", costs=(lambda n: np.array([seconds(int(each)) for each in n]),), batch=batch)


def fit_trend(trend: Trend, n: Floats, rate: Floats) -> Curve:
    """Fit to per-worker throughputs `rate` (K,) at `n` (K,), relative residuals; return log r at any counts."""
    if trend.of == "last" or len(n) == 1:
        last = math.log(rate[-1])
        return lambda m: np.full(np.shape(m), last)
    if trend.of == "log":
        centre, scale = np.log(n).mean(), np.log(rate).mean()
        x = np.log(n) - centre
        slope = min(float(x @ np.log(rate) / (x @ x)), 0.0)
        return lambda m: np.asarray(scale + slope * (np.log(m) - centre), dtype=np.float64)
    if trend.of == "bench":
        left = float(np.median(trend.batch / rate - trend.costs[0](n)))
        computing = max(left, _MIN_COMPUTING * trend.batch / float(rate.max()))
        return lambda m: np.asarray(math.log(trend.batch) - np.log(computing + trend.costs[0](m)), dtype=np.float64)
    if trend.of == "sync" and trend.share is not None:
        share = np.array([trend.share[count] for count in n])
        computing = float((1 - share[-1]) / rate[-1])
        cost = no_less_than_zero(_columns(trend.costs, n) * rate[:, np.newaxis], share)
        return lambda m: np.asarray(-np.log(computing + _mean(cost, _columns(trend.costs, m).T)), dtype=np.float64)
    value, sign = (rate, 1.0) if trend.of == "rate" else (1 / rate, -1.0)
    costs: tuple[Curve, ...] = (np.ones_like, *trend.costs)
    found = no_less_than_zero(_columns(costs, n) / value[:, np.newaxis], np.ones_like(n))
    return lambda m: np.asarray(sign * np.log(np.maximum(_mean(found, _columns(costs, m).T), 1e-300)), dtype=np.float64)


def _columns(costs: Sequence[Curve], n: Floats) -> Floats:
    return np.stack([cost(n) for cost in costs], axis=1)


def forecast(trend: Trend, n: Floats, rate: Floats, asked: Floats) -> Floats:
    """Log r at `asked` (M,) from points (n, rate): half as the law says, half from the nearest end of the points."""
    law = fit_trend(trend, n, rate)
    end = np.where(asked < n[0], 0, -1)
    last = np.log(rate)[end]
    found = law(asked) + ANCHORED * (last - law(n)[end])
    # Per worker, throughput changes at most with the square of the worker count: USL at its worst.
    bound = 2 * np.abs(np.log(asked / n[end]))
    return np.asarray(np.clip(found, last - bound - _SLACK, last + bound + _SLACK), dtype=np.float64)


def _mean(weights: Floats, values: Floats) -> Floats:
    """Weighted sum over rows, the same to the last bit whatever other columns there are.

    A matrix product and `sum(axis=0)` take another order for one column than for several.
    """
    return np.array([math.fsum(column) for column in (weights[:, np.newaxis] * values).T.tolist()], dtype=np.float64)


def mix(
    candidates: Sequence[Trend],
    n: Floats,
    log_rate: Floats,
    asked: Floats,
    *,
    drift: float,
    possible: Sequence[str] = (),
) -> SimpleNamespace:
    """Weigh the trends by what they say about the largest counts from the smaller ones, and let them forecast.

    Return, in logarithms of samples/s per worker, the centre (M,), the spread (M,) of the trends, the lowest (M,) of
    those that are possible, the drift (error of the forecast one doubling ahead), the weights, and whether the largest
    counts are regular: any trend predicted them.

    `n`, `log_rate` (K,) ascending in workers; `drift` is the log error one doubling ahead before the data have a say.
    The trends named in `possible` stay possible, however badly they predicted the known counts.
    """
    rate = np.exp(log_rate)
    origins = range(max(2, len(n) - _ORIGINS), len(n))
    ahead = np.array([max(math.log2(n[j] / n[h - 1]), SHORT) for h in origins for j in range(h, len(n))])
    age = np.array([AGE ** math.log2(n[-2] / n[h - 1]) for h in origins for _ in range(h, len(n))])
    errors = np.zeros((len(candidates), len(ahead)))
    forecasts = np.zeros((len(candidates), len(asked)))
    for i, trend in enumerate(candidates):
        forecasts[i] = forecast(trend, n, rate, asked)
        if len(ahead):
            errors[i] = np.concatenate([forecast(trend, n[:h], rate[:h], n[h:]) - log_rate[h:] for h in origins])
    prior = np.array([trend.prior for trend in candidates])
    # The more counts, the sharper laws are distinguished. A Cauchy error: one bad point refutes nothing.
    scale = LAW_ERROR / max(len(n) - 2, 1) * ahead
    likelihood = (age * -np.log1p((errors / scale) ** 2)).sum(axis=1)
    score = np.log(prior) + likelihood
    weights = np.exp(score - score.max())
    weights /= weights.sum()
    centre = _mean(weights, forecasts)
    open_ended = forecasts[[trend.name in possible for trend in candidates]]  # may be none
    openness = OPEN / max(len(n), 3)
    broad = (1 - openness) * weights + openness * prior / prior.sum()
    squares = float(weights @ (age * errors**2 / ahead).sum(axis=1)) if len(ahead) else 0.0
    closest = float((age * (errors / ahead) ** 2).sum(axis=1).min() / age.sum()) if len(ahead) else math.inf
    return SimpleNamespace(
        centre=centre,
        spread=np.sqrt(_mean(broad, (forecasts - centre) ** 2)),
        lowest=np.min(np.vstack([open_ended, centre]), axis=0),
        drift=math.sqrt((_DRIFT_WEIGHT * drift**2 + squares) / (_DRIFT_WEIGHT + age.sum())),
        regular=bool(closest <= (2 * LAW_ERROR) ** 2),
        weights={trend.name: float(weight) for trend, weight in zip(candidates, weights, strict=True)},
    )


_MIN_NOISE = 0.028  # relative spread of single runs, where repeats do not say better
DRIFT = 0.22  # log error one doubling beyond the data, where two counts are all that is known
_BOUNDARY_DRIFT = 0.2  # the same, where only points beyond a node boundary are used
WIDTH = 2.1  # half width of the 95 % interval in standard deviations
_BOUNDARY = math.log(1.35)  # a fall of the per-worker throughput that only a node boundary explains
OFF = 30.0  # a run this many times off the median of its worker count is in another unit
NETWORK = 0.06  # of the step: what the network between two nodes adds to computing; to communication, twice that
_UNKNOWN_NETWORK = 1.6  # log error of NETWORK
_MEASURED_NETWORK = 0.5  # log error of the all-reduce of a micro-benchmark as a part of the step: overlap, contention
LEVEL = 0.1  # exponent of the throughput between the last two counts up to which it is level: 7 % more by a doubling
WIDER = math.log(4 / 3)  # ratio of the last two counts from which on they say so
_CERTAIN = 0.9  # weight from which on a law is named alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Forecast throughput of one worker count, samples/s of all workers, with its 95 % interval."""

    DOCUMENT = "workers *asked nodes samples_per_s low high law weights ideal doubts"

    workers: int
    nodes: int | None
    samples_per_s: float
    low: float
    high: float
    law: str  # "combined", the one law that dominates, or "interpolated" between measured counts
    weights: Mapping[str, float] = field(default_factory=dict)  # of the laws that were combined; they sum to 1
    ideal: float = math.nan  # `workers` times the best per-worker throughput measured, samples/s
    doubts: tuple[str, ...] = ()
    batch_size: float | None = None  # samples per worker and step, where that was asked for

    @property
    def asked(self) -> dict[str, float]:
        """The batch where one was asked for."""
        return {} if self.batch_size is None else {"batch_size": self.batch_size}


class _PredictOptions(Options):
    workers: list[Annotated[Whole, Field(ge=1, le=MAX_WORKERS)]]
    workers_per_node: Annotated[Whole, at_least(1)] | None = None
    batch: list[Annotated[Number, above(0)]] | None = None
    global_batch: Annotated[Number, above(0)] | None = None

    @model_validator(mode="after")
    def _one_batch(self) -> "_PredictOptions":
        given = len(self.batch or ())
        both = self.batch is not None and self.global_batch is not None
        if both or (given > 1 and given != len(self.workers)):
            counts = f"{given} values of --batch, {len(self.workers)} worker counts"
            raise wrong(f"{counts}: give --batch or --global-batch, and one value, or one for each worker count")
        return self

    @property
    def batches(self) -> list[float] | None:
        """Samples per worker and step at each of `workers`; None where nothing is said."""
        if self.global_batch is not None:
            return [self.global_batch / count for count in self.workers]
        return None if self.batch is None else self.batch * (len(self.workers) if len(self.batch) == 1 else 1)


def predict(
    points: pd.DataFrame,
    *,
    workers: Iterable[int],
    workers_per_node: int | None = None,
    bench: Mapping[str, Any] | None = None,
    batch: float | Sequence[float] | None = None,
    global_batch: float | None = None,
) -> dict[str, list[Prediction]]:
    """Forecast every series of `points` at the given worker counts, in the order given.

    With 95 % intervals (docs/predict.md). Columns: workers, samples_per_s; optional series, nodes, workers_per_node,
    sync_s (seconds per step), batch_size (per worker).
    With `workers_per_node` nodes are filled one after the other; without it, the fullest node known is the measure.
    `bench` is the content of a bench.json of `horovod-study bench`: its all-reduce of all gradients of its model is
    taken as that of the points, which need `batch_size` for it.
    `batch` is the number of samples per worker and step at the forecast counts, one or one for each; `global_batch`
    that of all workers together. Without them the batch stays what it is, and a fixed global batch is divided further.
    Raises AnalysisError for impossible worker counts, for rows that are not positive numbers, for a bench.json without
    a fitted all-reduce, and for a series with fewer than two distinct worker counts. `points.attrs["doubts"]` (see
    importers) joins the doubts.
    """
    check_points(points)
    each = None if batch is None else np.ravel(np.asarray(batch, dtype=np.float64)).tolist()
    options = {"workers": list(workers), "workers_per_node": workers_per_node, "batch": each}
    told = asked(_PredictOptions, {**options, "global_batch": global_batch}, "predict")
    network = None if bench is None else _network(bench)
    of_file = tuple(points.attrs.get("doubts", ()))
    return {
        name: [replace(one, doubts=(*of_file, *one.doubts)) for one in _predict_series(name, rows, told, network)]
        for name, rows in by_series(points)
    }


_Known: TypeAlias = SimpleNamespace
"""The medians of one series, ascending in workers, all (K,): workers, log_rate (of samples/s per worker), nodes (NaN
where not known), beyond (whether on several nodes), share (of the step that is exposed synchronisation; None where not
known); and noise (relative spread of single runs), batch (samples per worker and step; NaN where it differs or is not
known), steps (StepModel; None without batches), strong (the global batch is fixed), per_node, level (more workers bring
no more), and network: the all-reduce of a micro-benchmark, or None."""


def _network(bench: Mapping[str, Any]) -> SimpleNamespace:
    """The all-reduce of all gradients: seconds(workers), hosts, error of its logarithm as a part of the step, doubt."""
    source = "the micro-benchmark"
    told = fitted(bench, source=source, form=FittedModel)
    size = told.model.flat_bytes
    hosts = max((len({rank.host for rank in job.conditions.ranks}) for job in told.measured), default=1)
    found = network_of(bench, source=source, way=None, size=size)
    error = math.hypot(_MEASURED_NETWORK, found.error)
    return SimpleNamespace(
        seconds=lambda n: found.all_reduce_s(size, n)[0], hosts=hosts, error=error, doubt=found.doubt
    )


def _known(rows: pd.DataFrame, workers_per_node: int | None, network: SimpleNamespace | None) -> _Known:
    n = rows["workers"].to_numpy(dtype=np.float64)
    x = rows["samples_per_s"].to_numpy(dtype=np.float64)
    counts, group, log_rate = medians_at(n, np.log(x / n))
    known = _Known(workers=counts, log_rate=log_rate, network=network, steps=None, share=None, level=False)
    nodes = np.full(len(counts), np.nan)
    if "nodes" in rows and rows["nodes"].notna().any():
        given = rows["nodes"].to_numpy(dtype=np.float64)
        nodes = np.array([np.fmax.reduce(given[group == i]) for i in range(len(counts))])
    elif workers_per_node is not None:
        nodes = np.ceil(counts / workers_per_node)
    several = nodes > 1
    if workers_per_node is None and several.any():
        workers_per_node = int(np.max(np.ceil(counts[several] / nodes[several])))
    batch = rows["batch_size"].to_numpy(dtype=np.float64) if "batch_size" in rows else np.full(len(rows), np.nan)
    steady, fixed = np.ptp(batch) == 0, np.ptp(batch * n) <= 0.01 * np.max(batch * n)
    known.nodes, known.beyond, known.per_node = nodes, nodes > 1, workers_per_node
    known.batch, known.strong = float(batch[0]) if steady else math.nan, bool(fixed and not steady)
    if np.isfinite(batch).all():
        table = pd.DataFrame({"n": n, "b": batch, "s": n * batch / x}).groupby(["n", "b"], as_index=False)["s"].median()
        known.steps = StepModel(*(table[name].to_numpy() for name in "nbs"))
    if "sync_s" in rows:
        share = medians_at(n, np.clip(rows["sync_s"].to_numpy(dtype=np.float64) * x / (n * batch), 0.0, 0.99))[2]
        known.share = share if np.isfinite(share).all() else None
    # Rows that are equal in everything may be copies: they say nothing about the spread. One wild run is three sigma.
    errors = (np.log(x / n) - log_rate[group])[~rows.duplicated().to_numpy()]
    away = np.abs(errors[errors != 0])
    limit = 3 * max(normal_deviation(away), _MIN_NOISE) if len(away) else math.inf
    total_squares = 2 * _MIN_NOISE**2 + float(np.sum(np.minimum(np.abs(errors), limit) ** 2))
    # Whether the largest two counts say that more workers no longer bring more: the throughput is level or falls.
    # Neighbours such as 7 and 8 say no such thing, for curves jump with divisibility, nor does the first step to two
    # nodes.
    if len(counts) > 1:
        total = log_rate + np.log(counts)
        wider, higher = math.log(counts[-1] / counts[-2]), total[-1] - total[-2]
        known.level = bool(wider >= WIDER and higher <= LEVEL * wider and not (nodes[-2] == 1 and nodes[-1] > 1))
    known.noise = math.sqrt(total_squares / (2 + (len(errors) - len(counts))))
    return known


def _predict_series(
    name: str, rows: pd.DataFrame, asked: _PredictOptions, network: SimpleNamespace | None
) -> list[Prediction]:
    workers, batches, workers_per_node, base = asked.workers, asked.batches, asked.workers_per_node, base_of(rows)
    odd = impossibilities(rows, base.samples_per_s)
    rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
    if off := off_counts(rows["workers"], rows["samples_per_s"]):  # without what is in another unit, where that shows
        ratio = rows["samples_per_s"] / rows.groupby("workers")["samples_per_s"].transform("median")
        kept = rows[(ratio < OFF) & (ratio > 1 / OFF)]
        kept = kept[~kept["workers"].isin(off_counts(kept["workers"], kept["samples_per_s"]))]
        rows = kept if kept["workers"].nunique() > 1 else rows
    if workers_per_node is None and "workers_per_node" in rows and rows["workers_per_node"].notna().any():
        workers_per_node = int(rows["workers_per_node"].max())
    if any("is a part of" in each for each in odd):
        rows = rows.drop(columns="sync_s")
    known, where = _known(rows, workers_per_node, network), f"series {name!r}" if name else "the points"
    if len(known.workers) < 2:
        raise AnalysisError(f"{where}: {no_forecast(known.workers[0])}")
    if batches is not None and known.steps is None:
        raise AnalysisError(f"{where}: a forecast for a batch needs the column batch_size in every row")
    # Whether the points on several nodes are far below the trend (a power law) of those on one.
    inside, beyond, falls = known.nodes == 1, known.beyond, False
    if inside.any() and beyond.any():
        trend = fit_trend(POWER, known.workers[inside], np.exp(known.log_rate[inside]))
        falls = bool(np.median(trend(known.workers[beyond]) - known.log_rate[beyond]) > _BOUNDARY)
    first, last = known.workers[0], known.workers[-1]
    counts = np.array(workers, dtype=np.float64)
    outlook = _outlook(known, np.maximum(counts, last), falls)
    below = outlook
    if min(workers, default=first) < first:
        below = _outlook(known, np.minimum(counts, first), falls, downwards=True)
    least: tuple[Floats, ...] = (known.workers, known.log_rate, known.nodes)
    best = float(known.log_rate.max())
    if base.workers is None and rows.attrs.get("unit") == SPEEDUP and first > 1:
        # One worker was not measured, and has the speedup 1.
        best = max(best, 0.0)
        least = tuple(np.append(at_one, each) for at_one, each in zip((1.0, 0.0, 1.0), least, strict=True))
    ceiling = best + WIDTH * known.noise  # a single run may be lucky, an expectation is not above ideal

    forecasts = []
    for i, count in enumerate(workers):
        nodes = 1 if inside.any() and count <= known.workers[inside][-1] else None
        if known.per_node is not None:
            nodes = math.ceil(count / known.per_node)
        gap = float(np.min(np.abs(np.log2(least[0] / count))))
        weights: Mapping[str, float] = {}
        if least[0][0] <= count <= last:
            centre, law = _between(least, count, nodes, falls), "interpolated"
            down = up = WIDTH * math.sqrt(known.noise**2 + outlook["mixture"].drift ** 2 * gap)
        else:
            one = below if count < first else outlook
            centre, down, up = float(one["centre"][i]), float(one["down"][i]), float(one["up"][i])
            weights = one["mixture"].weights
            top = max(weights, key=lambda name: weights[name])
            law = top if weights[top] > _CERTAIN and not _crosses(known, count) else "combined"
        up = max(min(up, ceiling - centre), 0.0)
        told: dict[str, Any] = {
            "law": law,
            "weights": weights,
            "doubts": [*odd, *off_doubts(off), *_doubts(known, count, nodes, gap)],
        }
        ends: tuple[float, ...] = (centre, down, up, best)
        if known.steps is not None:
            ends, told = _at_batch(known, count, batches[i] if batches else None, ends, told)
        centre, down, up, ideal = ends
        logs = {"samples_per_s": centre, "low": centre - down, "high": centre + up, "ideal": ideal}
        told |= {"doubts": tuple(told["doubts"]), **{name: count * math.exp(each) for name, each in logs.items()}}
        forecasts.append(Prediction(workers=count, nodes=nodes, **told))
    return forecasts


def no_forecast(count: float) -> str:
    """Why points of one worker count are not forecast."""
    return f"all points have {count:g} workers; a forecast needs at least 2 distinct worker counts, better 4"


def _at_batch(
    known: _Known, count: int, batch: float | None, ends: tuple[float, ...], told: dict[str, Any]
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """A forecast at the batch asked for: centre, how far down and up it reaches, ideal (logs per worker), what is told.

    Points of one batch are continued by the laws, and another batch changes the step; points of several batches are
    continued by the step's dependence on both. A measured all-reduce says more than published trainings.
    Most trainings that the prior is from go from one node to several, so it has the network between nodes in it.
    """
    (centre, down, up, ideal), model, doubts = ends, known.steps, told["doubts"]
    varied, last = math.isnan(known.batch) and not known.strong, known.workers[-1]
    # Samples per worker and step where the batch, or that of all workers, stays what it is.
    implied = model.last[0] * model.last[1] / count if known.strong else known.batch
    if not varied and known.network is None and count > last and not known.level:
        # What laws say from two or three counts is hardly tested; the step model has published trainings behind it.
        # Its share, one in K or with a fixed global batch in K - 1, was taken for being simple; two counts of fixed
        # work say nothing about which of Amdahl's and all other laws they follow.
        share, high = 1 / (len(known.workers) - known.strong), centre + up
        log_step, spread = model.log_step(count, implied)
        apart = math.log(implied) - log_step - centre
        centre += share * apart
        # of two opinions, in WIDTH standard deviations
        squares = share * WIDTH**2 * (spread**2 + known.noise**2) + 4 * share * (1 - share) * apart**2
        down, up = (math.sqrt((1 - share) * side**2 + squares) for side in (down, up))
        up = min(up, max(high - centre, 0.0))
        weights = {name: (1 - share) * weight for name, weight in told["weights"].items() if share < 1 and weight}
        law = "batch" if share > _CERTAIN else told["law"] if share < 1 - _CERTAIN else "combined"
        told = {**told, "law": law, "weights": {"batch": share, **weights}}
    if batch is None and varied:
        batch = model.last[1]
        differs = f"the batch differs between the points: {batch:g} samples per worker, the last, are assumed"
        doubts.append(f"{differs}; give --batch")
    elif batch is None:
        return (centre, down, up, ideal), told
    else:
        told = {**told, "batch_size": batch}
    if math.isclose(batch, implied, rel_tol=0.01):
        return (centre, down, up, ideal), told
    if math.isnan(known.batch):  # the step model, in place of the laws, which know no batch
        log_step, spread = model.log_step(count, batch)
        centre, ideal = (math.log(batch) - each for each in (log_step, model.log_step(known.workers[0], batch)[0]))
        down = up = WIDTH * math.hypot(spread, known.noise)
        told = {**told, "batch_size": batch, "law": "batch", "weights": {"batch": 1.0}}
    else:  # what a step costs whatever its batch is a prior
        longer, spread = model.change(count, known.batch, batch)
        factor = math.log(batch / known.batch) - longer
        centre, ideal = centre + factor, ideal + factor
        down, up = (math.hypot(each, WIDTH * spread) for each in (down, up))
        doubts.append(
            f"all points have {known.batch:g} samples per worker: what {batch:g} change is taken from published "
            "trainings; one run with another batch would say it"
        )
    low, high = model.batches
    if batch < 1:
        doubts.append("fewer samples than workers: no gain is taken from sharing one sample between workers")
    if max(low / batch, batch / high) > 4 and low < high:
        doubts.append(f"a batch of {batch:g} is more than 4 times away from those measured, {low:g} to {high:g}")
    return (centre, down, up, ideal), told


def _crosses(known: _Known, counts: Floats | float) -> Any:
    """Whether `counts` workers need several nodes and no known count does."""
    inside = known.per_node is not None and bool((known.nodes == 1).all())
    return (np.asarray(counts) > max(known.per_node or 0, known.workers[-1])) & inside


def _between(known: tuple[Floats, ...], count: int, nodes: int | None, falls: bool) -> float:
    """Log rate between known counts, straight in logarithms; on the far side of a fall at the node's end, beyond it."""
    (n, log_rate, on), best = known, float(known[1].max())
    if falls and nodes is not None:
        side = on > 1 if nodes > 1 else on == 1
        n, log_rate = n[side], log_rate[side]
    if len(n) > 1 and not n[0] <= count <= n[-1]:  # as from one of the two counts at that end to the other
        end = 0 if count < n[0] else 1
        n, log_rate = (n[:2], log_rate[:2]) if end == 0 else (n[-2:], log_rate[-2:])
        slope = min(float(log_rate[1] - log_rate[0]) / math.log(n[1] / n[0]), 0.0)
        return min(float(log_rate[end]) + slope * math.log(count / n[end]), best)
    return float(np.interp(math.log(count), np.log(n), log_rate))


def _outlook(known: _Known, asked: Floats, falls: bool, *, downwards: bool = False) -> dict[str, Any]:
    beyond, network, level = known.beyond, known.network, known.level and not downwards
    chosen = np.ones(len(beyond), dtype=bool)
    if falls:
        chosen = known.nodes == 1 if downwards else beyond
    n, log_rate = known.workers[chosen], known.log_rate[chosen]
    full = _crosses(known, asked)
    inside = np.where(full, float(known.per_node or 1), asked)
    inside = np.maximum(inside, n[-1]) if not downwards else inside
    candidates = list(trends(strong=known.strong))
    if known.share is not None and not known.strong:
        candidates += sync_trends(dict(zip(known.workers.tolist(), known.share.tolist(), strict=True)))
    if network is not None and math.isfinite(known.batch) and (network.hosts > 1) == bool(beyond.any()):
        candidates.append(bench_trend(network.seconds, known.batch))
    # Without batch sizes the work may be fixed, and that shows late.
    possible = ("amdahl",) if known.strong or not math.isfinite(known.batch) else ()
    drift = _BOUNDARY_DRIFT if falls else DRIFT
    mixture = mix(candidates, n, log_rate, inside, drift=drift, possible=possible)
    centre, flat = np.minimum(mixture.centre, known.log_rate.max()), log_rate[-1] + np.log(n[-1] / inside)
    if not mixture.regular and not downwards:
        # Nothing predicted the last points: whatever happens next, more workers are not taken to be slower than fewer.
        centre = np.maximum(centre, flat)
    high = centre
    if level:
        centre = np.minimum(centre, flat)
    gap = np.min(np.abs(np.log2(n[:, np.newaxis] / asked)), axis=0)
    wander = mixture.drift**2 * gap * np.maximum(1.0, (1 + gap) / 2)
    reach = WIDTH * np.sqrt(known.noise**2 + wander + mixture.spread**2)
    down = np.maximum(reach, centre - mixture.lowest + 2 * WIDTH * known.noise)
    if level:
        # As from the peak of Gunther's law without contention, 2 q / (1 + q^2) at q times its workers, or as from the
        # last count but one to the last, whichever is more.
        far, total = np.log(inside / known.workers[-1]), known.log_rate + np.log(known.workers)
        steep = max(0.0, (total[-2] - total[-1]) / math.log(known.workers[-1] / known.workers[-2]))
        down = np.maximum(down, np.maximum(np.log(np.cosh(far)), steep * far))
    slower = np.zeros((3, len(asked)))
    for i in np.flatnonzero(full):
        slower[:, i] = _network_cost(known, int(asked[i]), float(centre[i]))
    down, up = np.hypot(down, slower[2] - slower[0]), np.hypot(reach, slower[0] - slower[1]) + high - centre
    return {"centre": centre - slower[0], "down": down, "up": up, "mixture": mixture}


def _network_cost(known: _Known, count: int, log_rate: float) -> tuple[float, float, float]:
    """What the network between nodes takes from a full node's log rate: as expected, at least and at most (95 %)."""
    network = known.network
    if network is not None and network.hosts > 1 and math.isfinite(known.batch):
        cost, error = network.seconds(count) * math.exp(log_rate) / known.batch, network.error
    else:
        share = 1 - math.exp(log_rate - float(known.log_rate.max()))
        share = min(max(share, 0.0 if known.share is None else float(known.share[-1])), 0.99)
        # Between M nodes each sends 2 (M - 1)/M times its gradients.
        cost, error = NETWORK * moved_share(math.ceil(count / (known.per_node or 1))) * (1 + share), _UNKNOWN_NETWORK
    least, most = cost * math.exp(-1.96 * error), cost * math.exp(1.96 * error)
    return math.log1p(cost), math.log1p(least), math.log1p(most)


def _doubts(known: _Known, count: int, nodes: int | None, gap: float) -> list[str]:
    doubts, network = [], known.network
    if count > known.workers[-1] and known.level:
        (n, last), (x, at_last) = known.workers[-2:], known.workers[-2:] * np.exp(known.log_rate[-2:])
        doubts.append(
            f"throughput no longer rises: {x:,.4g} at {n:g} and {at_last:,.4g} at {last:g} workers; more than that is "
            "not expected of more workers unless a full node repeats"
        )
    if _crosses(known, count):
        if network is not None and network.hosts > 1 and math.isfinite(known.batch):
            doubts.append("no measured point spans several nodes: what the network costs is the micro-benchmark's")
        else:
            doubts.append("no measured point spans several nodes: what the network costs is a guess")
            if network is not None and network.hosts == 1:
                doubts.append("the micro-benchmark ran on one host: it does not know the network between nodes")
    if network is not None and not math.isfinite(known.batch):
        doubts.append("the micro-benchmark is not used: that needs one batch_size for all points")
    elif network is not None and network.doubt:
        doubts.append(network.doubt)
    if nodes is None and count > known.workers[-1]:
        doubts.append("node size unknown: a node boundary beyond the measured points is not in the interval")
    if gap > 2:
        doubts.append(f"{count} workers is more than 4 times away from what was measured")
    return doubts


# ------------------------------------------------------------------------------------ forecasts scored like forecasts

COMBINED = "combined"  # the name of `prediction.predict` among the laws
_MIN_KNOWN = 2  # fewer worker counts say nothing about a trend; the default leaves three, where there are four

Scores: TypeAlias = SimpleNamespace
"""Of one series: hidden and known (worker counts; those that stay known when all of `hidden` are hidden), laws (name ->
scores, the combination first), forecasts, doubts, and why_not: why there are no scores, else None.

A forecast: law, known_to (largest known count), workers, nodes (None: not known), measured (median over the runs),
forecast, low and high (samples/s of all workers; NaN without an interval), error (forecast / measured - 1), covered
(whether what was measured is in the 95 % interval; None without one)."""


class _HoldoutOptions(Options):
    holdout: Annotated[Whole, at_least(1)] | None = None
    laws: list[Annotated[Text, one_of(LAWS)]] | None = None


def score(
    points: pd.DataFrame,
    *,
    hide: int | None = None,
    rolling: bool = False,
    workers_per_node: int | None = None,
    bench: Mapping[str, Any] | None = None,
    laws: Sequence[str] | None = None,
) -> dict[str, Scores]:
    """Score the forecasts of every series of `points`, in the order of their names ("" without a `series` column).

    Columns as for `prediction.predict`, to which `workers_per_node` and `bench` are handed on.
    `hide` is how many of the largest distinct worker counts are hidden; by default the upper half, of which three stay
    known where there are four. With `rolling` the largest one is hidden, then the largest two, up to `hide`: more
    targets, near ones more often than far ones. `laws` are the single laws that are scored beside the combination
    (default: all of LAWS; () for none).
    A series that is too short has no scores and says why.
    Raises AnalysisError for rows that are not positive numbers and for a `hide` below 1.
    """
    check_points(points)
    asked(_HoldoutOptions, {"holdout": hide, "laws": laws and list(laws)}, "predict")
    names = list(LAWS if laws is None else laws)
    found = {}
    for name, rows in by_series(points):
        rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
        counts = [int(count) for count in np.unique(rows["workers"])]
        hidden = hidden_counts(counts, hide)
        if hidden:
            sizes = range(1, hidden + 1) if rolling else (hidden,)
            found[name] = _scores(rows, sizes, names, workers_per_node or planned_per_node(rows), bench)
            continue
        why = f"hiding {hide} leaves fewer than {_MIN_KNOWN}; hide at most {len(counts) - _MIN_KNOWN}"
        if hide is None or len(counts) <= _MIN_KNOWN:
            why = f"one is hidden and {_MIN_KNOWN} stay known, so at least {_MIN_KNOWN + 1} are needed"
        why_not = f"{len(counts)} distinct worker count{'s' * (len(counts) > 1)}: {why}"
        found[name] = Scores(hidden=[], known=counts, laws={}, forecasts=[], doubts=[], why_not=why_not)
    return found


def summarise(scores: Mapping[str, Scores]) -> dict[str, dict[str, Any]]:
    """Score every law over the targets of all series together, the combination first, as a scores_document.

    `series`: how many have a target of this law; `failed`: those in which it fails.
    """
    found = {}
    for law in dict.fromkeys(law for one in scores.values() for law in one.laws):
        series = sum(any(each["law"] == law for each in one.forecasts) for one in scores.values())
        failed = [name for name, one in scores.items() if law in one.laws and one.laws[law]["fails"]]
        found[law] = {"series": series, **over_all(scores.values(), law), "failed": failed}
        del found[law]["fails"]
    return found


def over_all(scores: Iterable[Scores], law: str) -> dict[str, Any]:
    """Score one law over the targets of all `scores`."""
    return _law_score([each for one in scores for each in one.forecasts if each["law"] == law])


def scores_document(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """The JSON of `horovod-study predict --holdout`."""
    return {"series": finite(scores), "summary": summarise(scores)}


def hidden_counts(counts: Sequence[int], hide: int | None) -> int:
    """How many of K distinct counts are hidden; 0 when too few would stay known."""
    distinct = len(set(counts))
    if hide is None:
        hide = distinct - max(math.ceil(distinct / 2), min(3, distinct - 1))
    return hide if distinct - hide >= _MIN_KNOWN else 0


def planned_per_node(rows: pd.DataFrame) -> int | None:
    """Workers that fill a node, from all rows: whoever plans a run knows it. None where no row spans several nodes."""
    if "workers_per_node" in rows and rows["workers_per_node"].notna().any():
        return int(rows["workers_per_node"].max())
    if "nodes" not in rows:
        return None
    several = bool((rows["nodes"] > 1).any())
    return int(np.ceil(rows["workers"] / rows["nodes"]).max()) if several else None


def _scores(rows: pd.DataFrame, sizes: Sequence[int], laws: Sequence[str], per_node: int | None, bench: Any) -> Scores:
    """The scores of one series, of whose worker counts (K,) the largest are hidden, as many as each of `sizes` says."""
    from sklearn.model_selection import PredefinedSplit

    counts = [int(count) for count in np.unique(rows["workers"])]
    targets: dict[str, list[dict[str, Any]]] = {law: [] for law in (COMBINED, *laws)}
    refused: dict[str, str] = {}
    for size in sizes:
        split = PredefinedSplit(np.where(rows["workers"] > counts[-size - 1], 0, -1))
        known, hidden = (rows.iloc[places] for places in next(split.split()))
        measured = hidden.groupby("workers")["samples_per_s"].median()
        for law, own in targets.items():
            try:
                if law == COMBINED:
                    forecasts = _combined(known, hidden, per_node, bench)
                else:
                    forecasts = _single(LAWS[law], known, measured.index.to_numpy(), per_node)
            except AnalysisError as error:
                if law == COMBINED:
                    raise
                refused[law] = f"cannot be fitted: {error}"
                continue
            for count, truth, (nodes, forecast, low, high) in zip(measured.index, measured, forecasts, strict=True):
                slack = 1e-9 * truth  # an interval of exact points has no width
                inside = low - slack <= truth <= high + slack if math.isfinite(low) and math.isfinite(high) else None
                place = {"law": law, "known_to": counts[-size - 1], "workers": int(count), "nodes": nodes}
                values = {"measured": truth, "forecast": forecast, "low": low, "high": high}
                own.append({**place, **values, "error": forecast / truth - 1, "covered": inside})
    most = sizes[-1]
    every = [each for own in targets.values() for each in own]
    found = Scores(hidden=counts[-most:], known=counts[:-most], why_not=None)
    found.laws = {law: _law_score(own, refused.get(law, "")) for law, own in targets.items()}
    found.forecasts = sorted(every, key=lambda each: (each["known_to"], each["workers"]))
    found.doubts = impossibilities(rows, base_of(rows).samples_per_s)
    found.doubts += off_doubts(off_counts(rows["workers"], rows["samples_per_s"]))
    if most < 3:
        some = "one target" if most == 1 else "two targets"
        found.doubts.append(f"{some} only: an error by chance cannot be distinguished from a bad forecast")
    known_to = counts[-most - 1]
    inside, there = rows["workers"] <= known_to, rows["nodes"] if "nodes" in rows else pd.Series(1.0, rows.index)
    if (there[inside] == 1).all() and (there[~inside] > 1).any():
        every_one = f"up to {known_to} workers all are on one node"
        found.doubts.append(f"{every_one}: the network between nodes was hidden, too")
    return found


def _combined(known: pd.DataFrame, hidden: pd.DataFrame, per_node: int | None, bench: Any) -> list[tuple[Any, ...]]:
    """Nodes, samples/s and the ends of its interval at each of the hidden counts."""
    points, batch = known.drop(columns="series", errors="ignore"), None  # which whoever plans a run chooses
    if "batch_size" in known and not (known["batch_size"].isna().any() or hidden["batch_size"].isna().any()):
        batch = hidden.groupby("workers")["batch_size"].median().tolist()
    counts = hidden["workers"].astype("int64").unique().tolist()
    made = predict(points, workers=counts, workers_per_node=per_node, bench=bench, batch=batch)[""]
    return [(one.nodes, one.samples_per_s, one.low, one.high) for one in made]


def _single(law: Law, known: pd.DataFrame, counts: Any, per_node: int | None) -> list[tuple[Any, ...]]:
    """As `_combined` for one law; NaN without an interval."""
    base, nodes = base_of(known), known["nodes"] if "nodes" in known and known["nodes"].notna().all() else None
    speedup = known["samples_per_s"] / base.samples_per_s
    fitted = fit(law, known["workers"], speedup, nodes=nodes, per_node=per_node, scaled_by=base.workers)
    on = None if per_node is None else np.ceil(counts / per_node)
    forecasts: Floats = fitted(counts, on) * base.samples_per_s
    if not np.isfinite(forecasts).all():
        raise AnalysisError("its curve gives no number at the hidden worker counts")
    ends = [side * base.samples_per_s for side in fitted.interval(counts, on)]
    low, high = (np.where(np.isfinite(ends[1]), side, math.nan).tolist() for side in ends)
    places = [None] * len(counts) if on is None else [int(each) for each in on]
    return list(zip(places, forecasts.tolist(), low, high, strict=True))


def _law_score(targets: Sequence[Mapping[str, Any]], refused: str = "") -> dict[str, Any]:
    """Return how well one law forecast its targets, JSON-ready: None is what is not known, or that it does not fail."""
    names = ("median_ape", "worst_ape", "bias", "coverage", "median_width")
    if not targets:
        return {"targets": 0, **dict.fromkeys(names), "fails": refused or None}
    errors = np.array([target["error"] for target in targets])
    known = [target for target in targets if target["covered"] is not None]
    inside, median = sum(target["covered"] for target in known), float(np.median(np.abs(errors)))
    widths = [(target["high"] - target["low"]) / target["forecast"] for target in known if target["forecast"] > 0]
    coverage, width = inside / len(known) if known else None, float(np.median(widths)) if widths else None
    if not refused and median > (0.50 if not known or 2 * inside > len(known) else 0.10):
        refused = f"off by {100 * median:.0f} % in the median"
        refused += f" ({inside} of {len(known)} inside its 95 % interval)" if known else ""
        first, last = (end(targets, key=lambda each: each["workers"]) for end in (min, max))
        fell, rose = last["measured"] < first["measured"], last["forecast"] > first["forecast"]
        if last["workers"] > first["workers"] and fell and rose:
            between = f"from {first['workers']} to {last['workers']} workers"
            refused += f"; it rises where the measured throughput falls, {between}"
    values = (median, float(np.abs(errors).max()), float(np.mean(errors)), coverage, width)
    return {"targets": len(targets), **dict(zip(names, values, strict=True)), "fails": refused or None}


def score_lines(series: str, one: Scores, unit: str = "samples/s") -> list[str]:
    """The scores of one series for a terminal of 100 columns; `unit` is of throughputs."""
    name = series or "all points"
    if one.why_not:
        return wrapped(f"{name}: not scored: {one.why_not}", 100, "", " " * 23)
    text = [f"{name}: known {_listed(one.known)} workers, hidden {_listed(one.hidden)}", *_score_table(one.laws)]
    text.append(f"  forecasts of the combination, {unit} with 95 % interval:")
    rows = []
    for each in (each for each in one.forecasts if each["law"] == COMBINED):
        told = "{forecast:,.5g} [{low:,.5g}, {high:,.5g}], measured {measured:,.5g}, ".format(**each)
        rows.append(("{workers:,} workers from {known_to:,}:".format(**each), told + _signed(each["error"])))
    text += to_lines(table_of(("", ""), rows, texts=(1,)), indent=4, gap=1)
    for doubt in one.doubts:
        text += wrapped(f"doubt: {doubt}", 100, "  ", " " * 9)
    return text


def summary_lines(scores: Mapping[str, Scores]) -> list[str]:
    """The scores over all series, and how the combination compares with the best single law that covers as much."""
    found = summarise(scores)
    scored = sum(not one.why_not for one in scores.values())
    text = [f"all {scored} series that could be scored, of {len(scores)}"]
    text += _score_table({law: over_all(scores.values(), law) for law in found})
    failing = [f"{law} in {len(one['failed'])}" for law, one in found.items() if one["failed"]]
    text += [f"  fails hold-out, number of series: {', '.join(failing)}"] if failing else []
    own = found.pop(COMBINED)
    full = [(one["median_ape"], law) for law, one in found.items() if one["targets"] == own["targets"] > 0]
    if full:
        error, law = min(full)
        best = f"best single law ({law}) {_share(error)}"
        text.append(f"  median error: combination {_share(own['median_ape'])}, {best}")
    return text


def _score_table(scores: Mapping[str, dict[str, Any]]) -> list[str]:
    heads, rows = ("law", "targets", "median", "worst", "bias", "in 95 %", "width"), []
    for law, one in scores.items():
        unknown = "-" if one["targets"] else ""
        told = [_share(one[name]) for name in ("median_ape", "worst_ape")]
        told += [_signed(one["bias"]), *(_share(one[name]) or unknown for name in ("coverage", "median_width"))]
        rows.append((law, f"{one['targets']}", *told))
    head, *lines_of = to_lines(table_of(heads, rows), indent=2)
    text = [head]
    for one, line in zip(scores.values(), lines_of, strict=True):
        text += [line, *(wrapped(f"fails: {one['fails']}", 100, " " * 16) if one["fails"] else [])]
    return text


def _listed(counts: Sequence[int]) -> str:
    texts = [f"{count:,}" for count in counts]
    return ", ".join(texts if len(texts) < 9 else [*texts[:3], "...", *texts[-3:]])


def _share(value: float | None) -> str:
    """A share in per cent with three digits, but no more than one decimal; "" for None."""
    if value is None:
        return ""
    return f"{100 * value:{',.1f' if abs(value) < 10 else ',.0f' if abs(value) < 1000 else '.2g'}} %"


def _signed(value: float | None) -> str:
    return f"{'+' if value is not None and value >= 0 else ''}{_share(value)}"
