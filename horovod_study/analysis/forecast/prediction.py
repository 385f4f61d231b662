"""Forecast the throughput of worker counts that were not measured, with intervals that widen with distance.

No single law is right for everybody's data: published curves of data-parallel training mostly level off after the
first workers, as a ring all-reduce does, while fixed work runs into Amdahl's or Gunther's ceiling.
So the forecast is a weighted mean of the laws in `trends` of the medians at each count, which weigh as they predicted
the largest known counts. It is never above ideal scaling from the best per-worker throughput known. The interval
combines the noise of one run, the errors about the largest known counts (growing with the doublings beyond the data),
and the disagreement of the laws. A node boundary changes the regime: `_falls_at_boundary`, `_network_cost`.
docs/metrics.md, "Forecast", has all of it; the constants here and in `trends` are no physics, they were chosen on
published tables: benchmarks/published/README.md, "Two halves".

Letters: K distinct worker counts known, M counts to forecast.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from horovod_study.analysis.costs import moved_share
from horovod_study.analysis.fit.form import MAX_WORKERS
from horovod_study.analysis.fit.rows import by_series, check_points, medians_at, off_counts, off_doubts
from horovod_study.analysis.forecast.batch_size import StepModel, step_model
from horovod_study.analysis.forecast.trends import bench_trend, fit_trend, mix, sync_trends, trends
from horovod_study.analysis.laws.lines import POWER
from horovod_study.analysis.machine.advice import network_of
from horovod_study.analysis.machine.network import FittedModel, fitted
from horovod_study.analysis.series.baselines import SPEEDUP, base_of, impossibilities
from horovod_study.analysis.stats import Floats, normal_deviation
from horovod_study.config.doors import Number, Options, Whole, above, asked, at_least, wrong
from horovod_study.errors import AnalysisError

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
    counts, batches, of_file = told.workers, told.batches, tuple(points.attrs.get("doubts", ()))
    return {
        name: [
            replace(one, doubts=(*of_file, *one.doubts))
            for one in _predict_series(name, rows, counts, batches, workers_per_node, network)
        ]
        for name, rows in by_series(points)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """The all-reduce of all gradients, from a micro-benchmark."""

    seconds: Callable[[int], float]
    hosts: int
    error: float  # of its logarithm, as a part of the step
    doubt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The medians of one series, ascending in workers."""

    workers: Floats  # (K,)
    log_rate: Floats  # (K,) log of samples/s per worker
    nodes: Floats  # (K,) NaN where not known
    noise: float  # relative spread of single runs
    share: Floats | None  # (K,) of the step that is exposed synchronisation
    batch: float  # samples per worker and step; NaN where it differs or is not known
    steps: StepModel | None  # of the batch; None where it is not known
    strong: bool  # the global batch is fixed
    per_node: int | None

    @property
    def beyond(self) -> Any:
        """(K,) whether a count spans several nodes."""
        return self.nodes > 1

    def part(self, chosen: Any) -> tuple[Floats, Floats]:
        return self.workers[chosen], self.log_rate[chosen]


def _network(bench: Mapping[str, Any]) -> _Network:
    source = "the micro-benchmark"
    told = fitted(bench, source=source, form=FittedModel)
    size = told.model.flat_bytes
    hosts = max((len({rank.host for rank in job.conditions.ranks}) for job in told.measured), default=1)
    found = network_of(bench, source=source, way=None, size=size)
    spread = math.hypot(_MEASURED_NETWORK, found.error)
    return _Network(seconds=lambda n: found.all_reduce_s(size, n)[0], hosts=hosts, error=spread, doubt=found.doubt)


def _without_other_units(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """`rows` less what is in another unit, as far as that can be determined, and a doubt about where that is."""
    off = off_counts(rows["workers"], rows["samples_per_s"])
    if not off:
        return rows, []
    median = rows.groupby("workers")["samples_per_s"].transform("median")
    ratio = rows["samples_per_s"] / median
    kept = rows[(ratio < OFF) & (ratio > 1 / OFF)]
    kept = kept[~kept["workers"].isin(off_counts(kept["workers"], kept["samples_per_s"]))]
    return (kept if kept["workers"].nunique() > 1 else rows), off_doubts(off)


def _known(rows: pd.DataFrame, workers_per_node: int | None) -> _Known:
    n = rows["workers"].to_numpy(dtype=np.float64)
    x = rows["samples_per_s"].to_numpy(dtype=np.float64)
    counts, group, log_rate = medians_at(n, np.log(x / n))
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
    steps, share = None, None
    if np.isfinite(batch).all():
        table = pd.DataFrame({"n": n, "b": batch, "s": n * batch / x}).groupby(["n", "b"], as_index=False)["s"].median()
        steps = step_model(*(table[name].to_numpy() for name in "nbs"))
    if "sync_s" in rows:
        share = medians_at(n, np.clip(rows["sync_s"].to_numpy(dtype=np.float64) * x / (n * batch), 0.0, 0.99))[2]
        share = share if np.isfinite(share).all() else None
    # Rows that are equal in everything may be copies: they say nothing about the spread. One wild run is three sigma.
    errors = (np.log(x / n) - log_rate[group])[~rows.duplicated().to_numpy()]
    away = np.abs(errors[errors != 0])
    limit = 3 * max(normal_deviation(away), _MIN_NOISE) if len(away) else math.inf
    total = 2 * _MIN_NOISE**2 + float(np.sum(np.minimum(np.abs(errors), limit) ** 2))
    return _Known(
        workers=counts,
        log_rate=log_rate,
        nodes=nodes,
        noise=math.sqrt(total / (2 + (len(errors) - len(counts)))),
        share=share,
        batch=float(batch[0]) if steady else math.nan,
        steps=steps,
        strong=bool(fixed and not steady),
        per_node=workers_per_node,
    )


def _falls_at_boundary(known: _Known) -> bool:
    """Whether the points on several nodes are far below the trend (a power law) of those on one node."""
    inside = known.nodes == 1
    if not inside.any() or not known.beyond.any():
        return False
    n, log_rate = known.part(inside)
    trend = fit_trend(POWER, n, np.exp(log_rate))
    return bool(np.median(trend(known.workers[known.beyond]) - known.log_rate[known.beyond]) > _BOUNDARY)


def _predict_series(
    name: str,
    rows: pd.DataFrame,
    workers: list[int],
    batches: list[float] | None,
    workers_per_node: int | None,
    network: _Network | None,
) -> list[Prediction]:
    base = base_of(rows)
    odd = impossibilities(rows, base.samples_per_s)
    rows, off = _without_other_units(rows.sort_values(["workers", "samples_per_s"], kind="stable"))
    if workers_per_node is None and "workers_per_node" in rows and rows["workers_per_node"].notna().any():
        workers_per_node = int(rows["workers_per_node"].max())
    if any("is a part of" in each for each in odd):
        rows = rows.drop(columns="sync_s")
    known = _known(rows, workers_per_node)
    if len(known.workers) < 2:
        raise AnalysisError(f"{f'series {name!r}' if name else 'the points'}: {no_forecast(known.workers[0])}")
    falls = _falls_at_boundary(known)
    first, last = known.workers[0], known.workers[-1]
    counts = np.array(workers, dtype=np.float64)
    outlook = _outlook(known, np.maximum(counts, last), falls, network)
    below = outlook
    if min(workers, default=first) < first:
        below = _outlook(known, np.minimum(counts, first), falls, network, downwards=True)
    best, least = float(known.log_rate.max()), known
    if base.workers is None and rows.attrs.get("unit") == SPEEDUP and first > 1:
        # One worker was not measured, and has the speedup 1.
        best, workers_too = max(best, 0.0), np.append(1.0, known.workers)
        nodes_too, rates_too = np.append(1.0, known.nodes), np.append(0.0, known.log_rate)
        least = replace(known, workers=workers_too, log_rate=rates_too, nodes=nodes_too)
    ceiling = best + WIDTH * known.noise  # a single run may be lucky, an expectation is not above ideal

    forecasts, inside = [], known.workers[known.nodes == 1]
    for i, count in enumerate(workers):
        nodes = 1 if len(inside) and count <= inside[-1] else None
        if known.per_node is not None:
            nodes = math.ceil(count / known.per_node)
        gap = float(np.min(np.abs(np.log2(least.workers / count))))
        weights: Mapping[str, float] = {}
        if least.workers[0] <= count <= last:
            centre, law = _between(least, count, nodes, falls), "interpolated"
            down = up = WIDTH * math.sqrt(known.noise**2 + outlook["mixture"].drift ** 2 * gap)
        else:
            one = below if count < first else outlook
            centre, down, up = float(one["centre"][i]), float(one["down"][i]), float(one["up"][i])
            weights = one["mixture"].weights
            top = max(weights, key=lambda name: weights[name])
            law = top if weights[top] > _CERTAIN and not _crosses(known, count) else "combined"
        forecasts.append(
            Prediction(
                workers=count,
                nodes=nodes,
                samples_per_s=count * math.exp(centre),
                low=count * math.exp(centre - down),
                high=count * math.exp(max(min(centre + up, ceiling), centre)),
                law=law,
                weights=weights,
                ideal=count * math.exp(best),
                doubts=(*odd, *off, *_doubts(known, count, nodes, gap, network)),
            )
        )
    return _with_batches(name, known, forecasts, batches, measured=network is not None)


def no_forecast(count: float) -> str:
    """Why points of one worker count are not forecast."""
    return f"all points have {count:g} workers; a forecast needs at least 2 distinct worker counts, better 4"


def _with_batches(
    name: str, known: _Known, forecasts: list[Prediction], batches: list[float] | None, *, measured: bool
) -> list[Prediction]:
    """The forecasts at the batches asked for; as they are where the points have these already.

    Points of one batch are continued by the laws, and another batch changes the step; points of several batches are
    continued by the step's dependence on both. A measured all-reduce says more than published trainings.
    """
    model, varied = known.steps, math.isnan(known.batch) and not known.strong
    if model is not None and not (varied or measured):
        forecasts = [_shared(known, model, one) for one in forecasts]
    if batches is None:
        if model is None or not varied:
            return forecasts
        last = model.last[1]
        assumed = (
            f"the batch differs between the points: {last:g} samples per worker, the last, are assumed; give --batch"
        )
        return [_at_batch(known, model, one, last, (assumed,)) for one in forecasts]
    if model is None:
        where = f"series {name!r}" if name else "the points"
        raise AnalysisError(f"{where}: a forecast for a batch needs the column batch_size in every row")
    found = []
    for one, batch in zip(forecasts, batches, strict=True):
        if math.isclose(batch, _implied(known, model, one.workers), rel_tol=0.01):
            found.append(replace(one, batch_size=batch))
        elif math.isnan(known.batch):
            found.append(_at_batch(known, model, one, batch))
        else:
            found.append(_other_batch(known, model, one, batch))
    return found


def _implied(known: _Known, model: StepModel, workers: int) -> float:
    """Samples per worker and step where the batch, or that of all workers, stays what it is."""
    return model.last[0] * model.last[1] / workers if known.strong else known.batch


def _shared(known: _Known, model: StepModel, one: Prediction) -> Prediction:
    """The forecast of the laws beyond the points, of which the step model, the more the fewer counts, has a share.

    What laws say from two or three counts is hardly tested; the step model has published trainings behind it. Its
    share, one in K or with a fixed global batch in K - 1, was taken for being simple; two counts of fixed work say
    nothing about which of Amdahl's and all other laws they follow.
    """
    share, last = 1 / (len(known.workers) - known.strong), known.workers[-1]
    if one.workers <= last or _level(known):
        return one
    batch = _implied(known, model, one.workers)
    log_step, spread = model.log_step(one.workers, batch)
    reach = WIDTH * math.hypot(spread, known.noise)
    apart = math.log(one.workers * batch / one.samples_per_s) - log_step
    centre = one.samples_per_s * math.exp(share * apart)
    between = 4 * share * (1 - share) * apart**2  # of two opinions, in WIDTH standard deviations
    down, up = (
        math.sqrt((1 - share) * side**2 + share * reach**2 + between)
        for side in (math.log(one.samples_per_s / one.low), math.log(one.high / one.samples_per_s))
    )
    weights = {name: (1 - share) * weight for name, weight in one.weights.items()}
    return replace(
        one,
        samples_per_s=centre,
        low=centre * math.exp(-down),
        high=min(centre * math.exp(up), max(one.high, centre)),
        law="batch" if share > _CERTAIN else one.law if share < 1 - _CERTAIN else "combined",
        weights={"batch": share, **{name: weight for name, weight in weights.items() if weight}},
    )


def _at_batch(
    known: _Known, model: StepModel, one: Prediction, batch: float, doubts: tuple[str, ...] = ()
) -> Prediction:
    """The forecast of the step model, in place of the one of the laws, which know no batch.

    Most trainings that its prior is from go from one node to several, so it has the network between nodes in it.
    """
    log_step, spread = model.log_step(one.workers, batch)
    centre, reach = math.log(batch) - log_step, WIDTH * math.hypot(spread, known.noise)
    ideal = math.log(batch) - model.log_step(known.workers[0], batch)[0]
    return replace(
        one,
        batch_size=batch,
        samples_per_s=one.workers * math.exp(centre),
        low=one.workers * math.exp(centre - reach),
        high=one.workers * math.exp(centre + reach),
        law="batch",
        weights={"batch": 1.0},
        ideal=one.workers * math.exp(ideal),
        doubts=(*one.doubts, *doubts, *_batch_doubts(model, batch)),
    )


def _other_batch(known: _Known, model: StepModel, one: Prediction, batch: float) -> Prediction:
    """The forecast at the one known batch, moved to another: what a step costs whatever its batch is a prior."""
    longer, spread = model.change(one.workers, known.batch, batch)
    factor = math.exp(math.log(batch / known.batch) - longer)
    centre = one.samples_per_s * factor
    reach = WIDTH * spread
    return replace(
        one,
        batch_size=batch,
        samples_per_s=centre,
        low=centre * math.exp(-math.hypot(math.log(one.samples_per_s / one.low), reach)),
        high=centre * math.exp(math.hypot(math.log(one.high / one.samples_per_s), reach)),
        ideal=one.ideal * factor,
        doubts=(
            *one.doubts,
            f"all points have {known.batch:g} samples per worker: what {batch:g} change is taken from published "
            "trainings; one run with another batch would say it",
            *_batch_doubts(model, batch),
        ),
    )


def _batch_doubts(model: StepModel, batch: float) -> Iterator[str]:
    low, high = model.batches
    if batch < 1:
        yield "fewer samples than workers: no gain is taken from sharing one sample between workers"
    if max(low / batch, batch / high) > 4 and low < high:
        yield f"a batch of {batch:g} is more than 4 times away from those measured, {low:g} to {high:g}"


def _level(known: _Known) -> bool:
    """Whether the largest two counts say that more workers no longer bring more: the throughput is level or falls.

    Neighbours such as 7 and 8 say no such thing, for curves jump with divisibility, nor does the first step from one
    node to two.
    """
    n, total = known.workers, known.log_rate + np.log(known.workers)
    wider, higher = math.log(n[-1] / n[-2]), total[-1] - total[-2]
    return bool(wider >= WIDER and higher <= LEVEL * wider and not (known.nodes[-2] == 1 and known.nodes[-1] > 1))


def _crosses(known: _Known, counts: Floats | float) -> Any:
    """Whether `counts` workers need several nodes and no known count does."""
    inside = known.per_node is not None and bool((known.nodes == 1).all())
    return (np.asarray(counts) > max(known.per_node or 0, known.workers[-1])) & inside


def _between(known: _Known, count: int, nodes: int | None, falls: bool) -> float:
    """Log rate between known counts, straight in logarithms; on the far side of a fall at the node's end, beyond it."""
    n, log_rate = known.workers, known.log_rate
    if falls and nodes is not None and nodes > 1:
        n, log_rate = known.part(known.beyond)
    elif falls and nodes == 1:
        n, log_rate = known.part(known.nodes == 1)
    if len(n) > 1 and not n[0] <= count <= n[-1]:  # as from one of the two counts at that end to the other
        n, log_rate = (n[:2], log_rate[:2]) if count < n[0] else (n[-2:], log_rate[-2:])
        slope = min(float(log_rate[1] - log_rate[0]) / math.log(n[1] / n[0]), 0.0)
        end = 0 if count < n[0] else 1
        return min(float(log_rate[end]) + slope * math.log(count / n[end]), float(known.log_rate.max()))
    return float(np.interp(math.log(count), np.log(n), log_rate))


def _outlook(
    known: _Known, asked: Floats, falls: bool, network: _Network | None, *, downwards: bool = False
) -> dict[str, Any]:
    beyond = known.beyond
    chosen = np.ones(len(beyond), dtype=bool)
    if falls:
        chosen = known.nodes == 1 if downwards else beyond
    n, log_rate = known.part(chosen)
    full = _crosses(known, asked)
    inside = np.where(full, float(known.per_node or 1), asked)
    inside = np.maximum(inside, n[-1]) if not downwards else inside
    candidates = list(trends(strong=known.strong))
    if known.share is not None and not known.strong:
        candidates += sync_trends(dict(zip(known.workers.tolist(), known.share.tolist(), strict=True)))
    if network is not None and math.isfinite(known.batch) and (network.hosts > 1) == bool(beyond.any()):
        candidates.append(bench_trend(network.seconds, known.batch))
    mixture = mix(
        candidates,
        n,
        log_rate,
        inside,
        drift=_BOUNDARY_DRIFT if falls else DRIFT,
        # Without batch sizes the work may be fixed, and that shows late.
        possible=("amdahl",) if known.strong or not math.isfinite(known.batch) else (),
    )
    centre = np.minimum(mixture.centre, known.log_rate.max())
    if not mixture.regular and not downwards:
        # Nothing predicted the last points: whatever happens next, more workers are not taken to be slower than fewer.
        centre = np.maximum(centre, log_rate[-1] + np.log(n[-1] / inside))
    high = centre
    if _level(known) and not downwards:
        centre = np.minimum(centre, log_rate[-1] + np.log(n[-1] / inside))
    gap = np.min(np.abs(np.log2(n[:, np.newaxis] / asked)), axis=0)
    wander = mixture.drift**2 * gap * np.maximum(1.0, (1 + gap) / 2)
    reach = WIDTH * np.sqrt(known.noise**2 + wander + mixture.spread**2)
    down = np.maximum(reach, centre - mixture.lowest + 2 * WIDTH * known.noise)
    if _level(known) and not downwards:
        # As from the peak of Gunther's law without contention, 2 q / (1 + q^2) at q times its workers, or as from the
        # last count but one to the last, whichever is more.
        far, total = np.log(inside / known.workers[-1]), known.log_rate + np.log(known.workers)
        steep = max(0.0, (total[-2] - total[-1]) / math.log(known.workers[-1] / known.workers[-2]))
        down = np.maximum(down, np.maximum(np.log(np.cosh(far)), steep * far))
    slower = np.zeros((3, len(asked)))
    for i in np.flatnonzero(full):
        slower[:, i] = _network_cost(known, int(asked[i]), float(centre[i]), network)
    return {
        "centre": centre - slower[0],
        "down": np.hypot(down, slower[2] - slower[0]),
        "up": np.hypot(reach, slower[0] - slower[1]) + high - centre,
        "mixture": mixture,
    }


def _network_cost(known: _Known, count: int, log_rate: float, network: _Network | None) -> tuple[float, float, float]:
    """What the network between nodes takes from a full node's log rate: as expected, at least and at most (95 %)."""
    if network is not None and network.hosts > 1 and math.isfinite(known.batch):
        cost, error = network.seconds(count) * math.exp(log_rate) / known.batch, network.error
    else:
        share = 1 - math.exp(log_rate - float(known.log_rate.max()))
        share = min(max(share, 0.0 if known.share is None else float(known.share[-1])), 0.99)
        # Between M nodes each sends 2 (M - 1)/M times its gradients.
        cost, error = NETWORK * moved_share(math.ceil(count / (known.per_node or 1))) * (1 + share), _UNKNOWN_NETWORK
    least, most = cost * math.exp(-1.96 * error), cost * math.exp(1.96 * error)
    return math.log1p(cost), math.log1p(least), math.log1p(most)


def _doubts(known: _Known, count: int, nodes: int | None, gap: float, network: _Network | None) -> list[str]:
    doubts = []
    if count > known.workers[-1] and _level(known):
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
