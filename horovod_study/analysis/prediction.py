"""Forecast the throughput of worker counts that were not measured, with intervals that widen with distance.

No single law is right for everybody's data: published curves of data-parallel training mostly level off after the
first workers, as a ring all-reduce does, while fixed work runs into Amdahl's or Gunther's ceiling.
So the forecast is a weighted mean of several laws:

1. Each law is fitted to the per-worker throughput X/N of the medians, with relative residuals and no negative costs.
2. Each is asked to forecast the largest known worker counts from the smaller ones.
   Its weight is a prior times the Student t likelihood of those errors, in logarithms and per doubling ahead;
   each origin further back counts half.
   With two worker counts there is nothing to hold out, and the priors decide.
3. The mean (of logarithms) is taken half as the laws say it and half starting from the last measured point.
   It never exceeds ideal scaling from the best per-worker throughput known, and is never negative.

The interval combines the noise of one run, the errors made in step 2 (shrunk towards what published curves show, and
growing with the square root of the doublings beyond the data), and the disagreement between the laws.

A node boundary changes the regime, and the `nodes` column or `workers_per_node` tells where it is.
Where the points on several nodes lie far below what the points on one node lead to expect, only the former are
used. Where no point spans several nodes and the forecast does, the share of the step that communication took inside
the node is taken to grow several times; nothing in the data says how many, so the interval is wide and a doubt says
why. The constants below were chosen by leaving the largest worker counts out of published scaling tables
(single hosts, InfiniBand and Ethernet clusters, 2017 to 2024); they are no physics.

Letters: K distinct worker counts known, M counts to forecast, P laws.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize

from horovod_study.analysis.fitting import check_points, off_counts
from horovod_study.analysis.laws import Array
from horovod_study.errors import AnalysisError

LAW_ERROR = 0.10  # log error of a usable law one doubling ahead
MIN_NOISE = 0.02  # relative spread of single runs, where repeats do not say better
DRIFT = 0.06  # log error of a good forecast one doubling beyond the data, before the data has its say
BOUNDARY_DRIFT = 0.2  # the same, where only points beyond a node boundary are used
DRIFT_WEIGHT = 2.0  # how many observed errors that prior counts for
AGE = 0.5  # weight of an error whose origin is one worker count further back
ANCHORED = 0.5  # share of the forecast that starts from the last measured point
SPREAD = 0.5  # share of the variance between laws that counts
OPEN = 0.9  # over K: weight of the priors in that variance; with few counts the law that did best may be luck
REFUTED = 2.0  # log likelihood below the best from which on a law does not count as possible any more
WIDTH = 2.0  # half width of the 95 % interval in standard deviations
BOUNDARY = math.log(1.35)  # a fall of the per-worker throughput that only a node boundary explains
ACROSS_NODES = 5.0  # communication time across nodes over that inside one, where nothing is known
UNKNOWN_BOUNDARY = 1.0  # log error of a forecast across a boundary that no point has crossed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Forecast throughput of one worker count, samples/s of all workers, with its 95 % interval."""

    workers: int
    nodes: int | None
    samples_per_s: float
    low: float
    high: float
    law: str  # "combined", the one law that dominates, or "interpolated" between measured counts
    doubts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "nodes": self.nodes,
            "samples_per_s": self.samples_per_s,
            "low": self.low,
            "high": self.high,
            "law": self.law,
        }


def predict(
    points: pd.DataFrame, *, workers: Sequence[int], workers_per_node: int | None = None
) -> dict[str, list[Prediction]]:
    """Forecast every series of `points` at the given worker counts, in the order given.

    Columns: workers, samples_per_s; optional series, nodes, workers_per_node, sync_s (seconds per step), batch_size
    (per worker).
    With `workers_per_node` nodes are filled one after the other; without it, the fullest node known is the measure.
    Raises AnalysisError for impossible worker counts, for rows that are not positive numbers, and for a series with
    fewer than two distinct worker counts.
    """
    check_points(points)
    for count in workers:
        if count < 1 or count != int(count):
            raise AnalysisError(f"cannot forecast {count} workers: worker counts are whole numbers of at least 1")
    if workers_per_node is not None and workers_per_node < 1:
        raise AnalysisError(f"{workers_per_node} workers per node: a node has at least 1 worker")
    names = points["series"].astype(str) if "series" in points else pd.Series("", index=points.index)
    return {
        str(name): _predict_series(str(name), rows, [int(count) for count in workers], workers_per_node)
        for name, rows in points.groupby(names.to_numpy(), sort=True)
    }


# --- the laws, as they are combined -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """A law with a free scale, as costs that are added: `of` says to what, `costs` how they depend on N."""

    name: str
    prior: float
    of: str  # "time" N/X = a + costs, "rate" X/N = a + costs, "log" log(X/N) = a - costs
    costs: tuple[Callable[[Array], Array], ...] = ()


# Amdahl and USL take everything that is lost for a cost that grows with N. Where the loss levels off, as in most
# published curves, they fall far too fast; a quarter of the prior of the others makes them ask for evidence.
_TRENDS = (
    _Trend(name="ring", prior=1.0, of="time", costs=(lambda n: (n - 1) / n,)),
    _Trend(name="log2", prior=1.0, of="time", costs=(np.log2,)),
    _Trend(name="linear", prior=1.0, of="rate", costs=(lambda n: 1 / n,)),  # X = a N + b; Gustafson's law with a scale
    _Trend(name="power", prior=1.0, of="log", costs=(np.log,)),
    _Trend(name="constant", prior=1.0, of="last"),
    _Trend(name="amdahl", prior=0.25, of="time", costs=(lambda n: n - 1,)),
    _Trend(name="usl", prior=0.25, of="time", costs=(lambda n: n - 1, lambda n: n * (n - 1))),
)


_POWER = next(trend for trend in _TRENDS if trend.name == "power")


def _fit_trend(trend: _Trend, n: Array, rate: Array) -> Callable[[Array], Array]:
    """Fit to per-worker throughputs `rate` (K,); the result gives log X/N at any counts."""
    if trend.of == "last" or len(n) == 1:
        last = math.log(rate[-1])
        return lambda m: np.full(np.shape(m), last)
    if trend.of == "log":
        centre, scale = np.log(n).mean(), np.log(rate).mean()
        x = np.log(n) - centre
        slope = min(float(x @ np.log(rate) / (x @ x)), 0.0)
        return lambda m: np.asarray(scale + slope * (np.log(m) - centre), dtype=np.float64)
    value = rate if trend.of == "rate" else 1 / rate
    sign = 1.0 if trend.of == "rate" else -1.0

    def design(m: Array) -> Array:
        return np.stack([np.ones_like(m), *(cost(m) for cost in trend.costs)], axis=1)

    columns = design(n) / value[:, np.newaxis]
    size = np.linalg.norm(columns, axis=0)
    size = np.where(size > 0, size, 1.0)
    coefficients = optimize.nnls(columns / size, np.ones_like(n))[0] / size
    return lambda m: np.asarray(sign * np.log(np.maximum(design(m) @ coefficients, 1e-300)), dtype=np.float64)


# --- one series -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The medians of one series, ascending in workers."""

    workers: Array  # (K,)
    log_rate: Array  # (K,) log of samples/s per worker
    nodes: Array  # (K,) NaN where not known
    noise: float  # relative spread of single runs
    communication: float  # share of the step at the largest count that is communication


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """Forecast beyond the known counts, in logarithms of samples/s per worker."""

    centre: Array  # (M,)
    spread: Array  # (M,) disagreement of the laws
    lowest: Array  # (M,) of the laws that the known counts do not refute
    highest: Array  # (M,)
    drift: float  # error of the forecast one doubling ahead
    regular: bool  # whether any law foresaw the larger known counts
    law: str


def _predict_series(
    name: str, rows: pd.DataFrame, workers: list[int], workers_per_node: int | None
) -> list[Prediction]:
    if workers_per_node is None and "workers_per_node" in rows and rows["workers_per_node"].notna().any():
        workers_per_node = int(rows["workers_per_node"].max())
    known = _known(rows, workers_per_node)
    if len(known.workers) < 2:
        where = f"series {name!r}" if name else "the points"
        raise AnalysisError(
            f"{where}: all have {known.workers[0]:g} workers; a forecast needs at least 2 distinct worker counts, "
            "better 4"
        )
    per_node = workers_per_node or _fullest_node(known)
    beyond = known.nodes > 1
    boundary = _falls_at_boundary(known)
    chosen = beyond if boundary else np.ones(len(beyond), dtype=bool)
    n, log_rate = known.workers[chosen], known.log_rate[chosen]
    asked = np.array(workers, dtype=np.float64)
    mixture = _mix(n, log_rate, asked, BOUNDARY_DRIFT if boundary else DRIFT)
    best = float(known.log_rate.max())
    ceiling = best + WIDTH * known.noise  # a single run may be lucky, an expectation is not above ideal

    off = ", ".join(f"{count:g}" for count in off_counts(rows["workers"], rows["samples_per_s"]))
    forecasts = []
    for i, count in enumerate(workers):
        nodes = _nodes(count, per_node, known)
        doubts = [f"throughput at {off} workers contradicts the other points 30-fold: mixed units?"] if off else []
        if known.workers[0] <= count <= known.workers[-1]:
            centre = float(np.interp(math.log(count), np.log(known.workers), known.log_rate))
            gap = float(np.min(np.abs(np.log2(known.workers / count))))
            reach = WIDTH * math.sqrt(known.noise**2 + mixture.drift**2 * gap)
            low, high, law = centre - reach, centre + reach, "interpolated"
        else:
            centre = min(float(mixture.centre[i]), best)
            if count > n[-1] and not mixture.regular:
                centre = max(centre, float(log_rate[-1]) + math.log(n[-1] / count))
            gap = float(np.min(np.abs(np.log2(n / count))))
            reach = WIDTH * math.sqrt(known.noise**2 + mixture.drift**2 * gap + SPREAD * float(mixture.spread[i]) ** 2)
            low = min(centre - reach, float(mixture.lowest[i]) - 2 * WIDTH * known.noise)
            high = max(centre + reach, float(mixture.highest[i]) + 2 * WIDTH * known.noise)
            law = mixture.law
            if nodes is not None and nodes > 1 and not beyond.any() and np.isfinite(known.nodes).all():
                # Inside the node the trend says little about the network between nodes: the last rate, less what
                # the communication would cost there.
                slower = math.log1p((ACROSS_NODES - 1) * known.communication)
                centre = min(float(log_rate[-1]) - slower, best)
                low = min(low, centre - math.hypot(reach, UNKNOWN_BOUNDARY))
                high, law = max(high, centre + reach), "combined"
                doubts.append("no measured point spans several nodes: what the network costs is a guess")
            if nodes is None and count > n[-1]:
                doubts.append("nodes are not known: a node boundary beyond the measured points is not in the interval")
            if gap > 2:
                doubts.append(f"{count} workers is more than 4 times away from what was measured")
        forecasts.append(
            Prediction(
                workers=count,
                nodes=nodes,
                samples_per_s=count * math.exp(centre),
                low=count * math.exp(low),
                high=count * math.exp(max(min(high, ceiling), centre)),
                law=law,
                doubts=tuple(doubts),
            )
        )
    return forecasts


def _mix(n: Array, log_rate: Array, asked: Array, drift: float) -> _Mixture:
    """Weigh the laws by what they say about the largest counts from the smaller ones, and let them forecast."""
    rate = np.exp(log_rate)
    origins = range(2, len(n))
    ahead = np.array([max(math.log2(n[j] / n[h - 1]), 0.3) for h in origins for j in range(h, len(n))])
    age = np.array([AGE ** (len(n) - 1 - h) for h in origins for _ in range(h, len(n))])
    errors = np.zeros((len(_TRENDS), len(ahead)))
    forecasts = np.zeros((len(_TRENDS), len(asked)))
    for i, trend in enumerate(_TRENDS):
        forecasts[i] = _forecast(trend, n, rate, asked)
        if len(ahead):
            errors[i] = np.concatenate([_forecast(trend, n[:h], rate[:h], n[h:]) - log_rate[h:] for h in origins])
    misses = -2.0 * np.log1p((errors / (LAW_ERROR * ahead)) ** 2 / 3)  # Student t, 3 degrees
    score = np.log([trend.prior for trend in _TRENDS]) + (age * misses).sum(axis=1)
    weights = np.exp(score - score.max())
    weights /= weights.sum()
    centre = weights @ forecasts
    prior = np.array([trend.prior for trend in _TRENDS])
    likelihood = (age * misses).sum(axis=1)
    # A law of two costs follows any three points and thereby says nothing.
    meaningful = np.array([len(n) >= 2 * len(trend.costs) for trend in _TRENDS])
    standing = meaningful & (likelihood >= likelihood[meaningful].max() - REFUTED)
    openness = OPEN / max(len(n), 3)
    broad = (1 - openness) * weights + openness * prior / prior.sum()
    squares = weights @ (age * errors**2 / ahead).sum(axis=1)
    closest = float((age * (errors / ahead) ** 2).sum(axis=1).min() / age.sum()) if len(ahead) else math.inf
    top = int(np.argmax(weights))
    return _Mixture(
        centre=centre,
        lowest=forecasts[standing].min(axis=0),
        highest=forecasts[standing].max(axis=0),
        spread=np.sqrt(broad @ (forecasts - centre) ** 2),
        drift=math.sqrt((DRIFT_WEIGHT * drift**2 + squares) / (DRIFT_WEIGHT + age.sum())),
        regular=bool(closest <= (2 * LAW_ERROR) ** 2),
        law=_TRENDS[top].name if weights[top] > 0.9 else "combined",
    )


def _forecast(trend: _Trend, n: Array, rate: Array, asked: Array) -> Array:
    """Log X/N at `asked` (M,) from points (n, rate): half as the law says, half from the nearest end of the points."""
    law = _fit_trend(trend, n, rate)
    end = np.where(asked < n[0], 0, -1)
    last = np.log(rate)[end]
    found = law(asked) + ANCHORED * (last - law(n)[end])
    # Per worker, throughput changes at most with the square of the worker count: USL at its worst.
    bound = 2 * np.abs(np.log(asked / n[end]))
    return np.asarray(np.clip(found, last - bound - MIN_NOISE, last + bound + MIN_NOISE), dtype=np.float64)


def _known(rows: pd.DataFrame, workers_per_node: int | None) -> _Known:
    n = rows["workers"].to_numpy(dtype=np.float64)
    x = rows["samples_per_s"].to_numpy(dtype=np.float64)
    counts, group = np.unique(n, return_inverse=True)
    logs = np.log(x / n)
    medians = np.array([np.median(logs[group == i]) for i in range(len(counts))])
    means = np.bincount(group, logs) / np.bincount(group)
    freedom = len(x) - len(counts)
    variance = (2 * MIN_NOISE**2 + float(np.sum((logs - means[group]) ** 2))) / (2 + freedom)
    if "nodes" in rows and rows["nodes"].notna().any():
        given = rows["nodes"].to_numpy(dtype=np.float64)
        nodes = np.array([_largest(given[group == i]) for i in range(len(counts))])
    elif workers_per_node is not None:
        nodes = np.ceil(counts / workers_per_node)
    else:
        nodes = np.full(len(counts), np.nan)
    lost = 1 - math.exp(medians[-1] - medians.max())
    return _Known(
        workers=counts,
        log_rate=medians,
        nodes=nodes,
        noise=math.sqrt(variance),
        communication=max(lost, _sync_share(rows[n == counts[-1]])),
    )


def _largest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else math.nan


def _sync_share(rows: pd.DataFrame) -> float:
    """Share of the step that is exposed synchronisation, where seconds and batch sizes were given; else 0."""
    if "sync_s" not in rows or "batch_size" not in rows:
        return 0.0
    step_s = rows["workers"] * rows["batch_size"] / rows["samples_per_s"]
    share = (rows["sync_s"] / step_s).to_numpy(dtype=np.float64)
    share = share[np.isfinite(share)]
    return float(np.clip(np.median(share), 0.0, 1.0)) if len(share) else 0.0


def _fullest_node(known: _Known) -> int | None:
    """Workers per node, from points that span several; None where there is none."""
    several = known.nodes > 1
    return int(np.max(np.ceil(known.workers[several] / known.nodes[several]))) if several.any() else None


def _nodes(count: int, per_node: int | None, known: _Known) -> int | None:
    if per_node is not None:
        return math.ceil(count / per_node)
    inside = known.workers[known.nodes == 1]
    return 1 if len(inside) and count <= inside[-1] else None


def _falls_at_boundary(known: _Known) -> bool:
    """Whether the points on several nodes lie far below the trend (a power law) of those on one node."""
    inside, beyond = known.nodes == 1, known.nodes > 1
    if not inside.any() or not beyond.any():
        return False
    trend = _fit_trend(_POWER, known.workers[inside], np.exp(known.log_rate[inside]))
    return bool(np.median(trend(known.workers[beyond]) - known.log_rate[beyond]) > BOUNDARY)
