"""Laws as a forecast combines them: per-worker throughput against workers and nodes, weighted by what they predicted.

A law declares how forecasts continue it (`laws.law.Trend`); what needs more than worker counts is added here. Solver
and costs are those of the laws. A fitted law is a speedup with parameters that mean something and have intervals; a
trend is one sum of columns without a baseline, solved some hundred times per series, in forms (rate, sync, bench,
last) that no speedup has: fitted to speedups, the same laws would forecast other numbers.

Each is asked to forecast the largest known counts from the smaller ones, and weighs as its prior times the likelihood
of these errors. docs/metrics.md, "Forecast", has the formulas; `prediction` adds boundaries, limits and intervals.

Letters: K distinct worker counts known, M counts to forecast, P trends, E hold-out errors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from horovod_study.analysis.fit.form import no_less_than_zero
from horovod_study.analysis.laws import all_trends
from horovod_study.analysis.laws.law import Trend
from horovod_study.analysis.stats import Floats

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
