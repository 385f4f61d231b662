"""What a network can do, from measured collectives: bandwidths, latency and bandwidth as two numbers, the roofline.

A document of `horovod-study bench` goes in, tables and fits come out. GB are 1e9 bytes, seconds are floats. Sources:
the bandwidth conventions of nccl-tests (doc/PERFORMANCE.md there), the straight line of Hockney (Parallel Computing 20
(1994) 389), the roofline of Williams, Waterman and Patterson (Comm. ACM 52 (2009) 65).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy import optimize

from horovod_study.analysis import stats
from horovod_study.analysis.costs import ERROR_BEYOND, moved_share, time_at
from horovod_study.config.doors import conform
from horovod_study.errors import AnalysisError, nearest

WHOLE_GRADIENT = "all gradients"
RESOLVED = 2.0  # an interval whose ends differ by more than this factor does not resolve its parameter
UNSTEADY = 2.0

POINT_COLUMNS = (
    *("way", "raw", "operation", "place", "bytes", "count", "workers", "of_model"),
    *("rounds", "iterations", "seconds_median", "seconds_min", "seconds_max", "seconds_median_op"),
    *("algbw_gb_per_s", "busbw_gb_per_s", "busbw_min_gb_per_s", "busbw_max_gb_per_s", "wrong"),
)

_TABLES: Mapping[str, tuple[str, ...]] = {
    "points": POINT_COLUMNS,
    "barriers": ("way", "seconds_median", "seconds_min", "seconds_max"),
    "copies": ("name", "bytes", "gb_per_s_median", "gb_per_s_min", "gb_per_s_max", "reason"),
}


def bus_factor(operation: str, workers: int) -> float:
    """Return busbw / algbw: 2 (n - 1) / n for an all-reduce, 1 for a broadcast.

    An all-reduce of S bytes must move at least 2 (n - 1) / n * S over the slowest link of each of n ranks, a broadcast
    S; so busbw can be compared with the link, whatever n is.
    """
    return moved_share(workers) if operation == "allreduce" else 1.0


Fit = Mapping[str, Any]
"""t(S) = alpha + S / beta of one way's all-reduces in place: `alpha_s`, `beta_bytes_per_s` (algbw of very large
messages) with their `_ci95_`, `half_bytes` (the size at which half of that bandwidth is reached), `sizes`, `low_bytes`,
`high_bytes`, `rms_relative` (of the measured times from the line, as a factor minus 1), `worst_bytes`,
`worst_relative` (measured / line - 1 there)."""


def fit_line(way: str, sizes: Sequence[float], seconds: Sequence[float]) -> dict[str, Any]:
    """Fit t(S) = alpha + S / beta to times (k,) of sizes (k,) in bytes, minimising squared logarithmic errors.

    Times from microseconds to seconds count alike, because it is the ratio of measured to fitted time that is made
    small; alpha and beta stay positive. The 95 % intervals are Student's, of the logarithms, from the scatter about
    the line: where the truth is no straight line, they widen with what is left over. Raises AnalysisError for fewer
    than three sizes, or times that are not positive.
    """
    x, t = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if len(np.unique(x)) < 3 or not (np.isfinite(t).all() and (t > 0).all()):
        few = f"a line through {len(np.unique(x))} sizes says nothing about its own error; measure at least 3"
        times = "times must be positive numbers of seconds; measure again"
        raise AnalysisError(f"{way}: {few if len(np.unique(x)) < 3 else times}")

    def errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.exp(logs[0]) + x * np.exp(logs[1])) - np.log(t))

    def slopes(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        alpha, per_byte = np.exp(logs[0]), x * np.exp(logs[1])
        return np.asarray(np.stack([np.full_like(x, alpha), per_byte], axis=1) / (alpha + per_byte)[:, None])

    small, *_, large = np.argsort(x, kind="stable")
    start = np.log([t[small], t[large] / x[large]])
    found = optimize.least_squares(errors, start, jac=slopes, method="lm", xtol=1e-14, ftol=1e-14, gtol=1e-14)
    left = errors(found.x)
    free = len(x) - 2
    variance = float(left @ left) / free
    curvature = slopes(found.x).T @ slopes(found.x)
    covariance = variance * np.linalg.pinv(curvature)
    half = stats.half_width(np.sqrt(np.maximum(np.diag(covariance), 0.0)), float(free))
    # Where one of the two hardly shows in any size, its logarithm is free: an interval without end, not a number.
    spread = np.where(np.diag(curvature) < 1e-6, np.inf, half)
    with np.errstate(over="ignore"):
        (a_low, a_high), (b_low, b_high) = (
            (math.exp(value - width), float(np.exp(value + width)))
            for value, width in zip(found.x, spread, strict=True)
        )
    worst = int(np.argmax(np.abs(left)))
    alpha, beta = math.exp(found.x[0]), math.exp(-found.x[1])
    line = {"way": way, "alpha_s": alpha, "alpha_ci95_s": (a_low, a_high), "beta_bytes_per_s": beta}
    line |= {"beta_ci95_bytes_per_s": (1 / b_high, 1 / b_low if b_low > 0 else math.inf), "sizes": len(x)}
    line |= {"low_bytes": int(x.min()), "high_bytes": int(x.max())}
    line |= {"rms_relative": math.expm1(math.sqrt(float(np.mean(left**2)))), "worst_bytes": int(x[worst])}
    return line | {"worst_relative": math.expm1(-left[worst]), "half_bytes": alpha * beta}


class _Loose(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _FitForm(_Loose):
    alpha_s: Annotated[float, Field(ge=0)]
    beta_bytes_per_s: Annotated[float, Field(gt=0)]


class _Rank(_Loose):
    host: str


class _Conditions(_Loose):
    ranks: list[_Rank]


class _Job(_Loose):
    conditions: _Conditions


class _Model(_Loose):
    flat_bytes: Annotated[float, Field(gt=0)]


class _Fitted(_Loose):
    """What of a bench.json other analyses take: lines of all-reduces, and of which model and where."""

    fits: Annotated[dict[str, _FitForm], Field(min_length=1)]
    workers: Annotated[int, Field(ge=2)]


class FittedModel(_Fitted):
    """A bench.json that says of how many bytes the gradients of its model are, and on which hosts its ranks were."""

    model: _Model
    measured: list[_Job] = []


def fitted(content: Mapping[str, Any], *, source: str, form: type[_Fitted] = _Fitted) -> Any:
    """Return what `form` has of a bench.json; AnalysisError where it holds no fit of an all-reduce of two workers."""
    again = "give a bench.json with a fitted all-reduce of two or more workers, as `horovod-study bench` makes it"
    return conform(content, form, source, AnalysisError, again)


def fits_of(content: Mapping[str, Any], *, source: str, way: str | None) -> tuple[Mapping[str, Any], int]:
    """Return the fitted lines of a bench.json, one per way, and its workers.

    Raises AnalysisError where it holds no fit of an all-reduce of several workers, or none of the `way` that is asked.
    """
    told, fits = fitted(content, source=source), content["fits"]
    if way is not None and way not in fits:
        raise AnalysisError(f"{source}: way {way!r} was not measured{nearest(way, fits)}; there are {', '.join(fits)}")
    return fits, told.workers


class TimeAt(NamedTuple):
    """The time of an all-reduce of some size: median, least and most in s, and what is not known of it."""

    seconds: float
    low: float
    high: float
    error: float  # standard deviation of its logarithm, rounds and extrapolation together
    doubt: str  # "" where the size is between those measured


def all_reduce_at(points: Sequence[Mapping[str, Any]], way: str, size: float, *, source: str) -> TimeAt:
    """Return what an all-reduce of `size` bytes in place takes by the points of a bench.json: costs.time_at."""
    own = all_reduces(points, way)
    sizes = np.array([float(each["bytes"]) for each in own])
    median, low, high = (
        float(time_at(sizes, np.array([each[name] for each in own]), size))
        for name in ("seconds_median", "seconds_min", "seconds_max")
    )
    error = math.log(high / low) / 2 / stats.Z95 if high > low > 0 else 0.0
    if sizes[0] <= size <= sizes[-1]:
        return TimeAt(median, low, high, error, "")
    end, which = (sizes[-1], "largest") if size > sizes[-1] else (sizes[0], "smallest")
    doubt = (
        f"{source}: the {which} size measured is {end:,.0f} bytes: what {size:,.0f} bytes take is extrapolated by the "
        "slope there, with an interval that grows with the distance; measure this size"
    )
    return TimeAt(median, low, high, math.hypot(error, ERROR_BEYOND * abs(math.log2(size / end))), doubt)


def all_reduces(points: Sequence[Mapping[str, Any]], way: str) -> list[Mapping[str, Any]]:
    """Return the points of a bench.json that are all-reduces in place of a way, by their size."""
    own = (each for each in points if (each["way"], each["operation"], each["place"]) == (way, "allreduce", "in"))
    return sorted(own, key=lambda each: each["bytes"])


def attainable(intensity: float, *, peak: float, bandwidth: float) -> float:
    """Return the roofline min(peak, intensity * bandwidth): operations per second at operations per byte.

    `peak` in operations per second, `bandwidth` in bytes per second (Williams et al., 2009). It supposes that moving
    bytes and computing overlap wholly, so it is what cannot be exceeded, not what will be reached.
    """
    return min(peak, intensity * bandwidth)


def memory_bytes(*, parameters: int, activations_per_curve: int, batch: int) -> float:
    """Return the memory traffic of a step when nothing stays in a cache from one operation to the next, in bytes.

    4 (10 P + 3 A B) for P parameters, B curves and A numbers per curve going into and out of the layers. Of each
    parameter: read forward, read backward, gradient written; Adam reads parameter, gradient and two moments and writes
    parameter and moments: 10. Of each number between layers: read or written forward, read or written as gradient, and
    read once more for the gradient of the weights: 3. Caches spare part of this, which is why it cannot be measured
    without counters; the true intensity is to the right of this one.
    """
    return 4.0 * (10 * parameters + 3 * activations_per_curve * batch)


Network = Mapping[str, Any]
"""All that follows from one document of the benchmark: bench.json holds it, the three frames of `_TABLES` as rows.

`points`: a row per way, operation, place and size; `fits`: way -> Fit; `roofline`, see `_roofline`, None where the
machine was not measured; `wrong` elements; `doubts`; `launch` and `step_roofline` of a GPU, see programs/microbench.py.
"""


def analyze(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return bandwidths, fits and the roofline of a document of the benchmark.

    `document`: "workers", "model" and "jobs", each job as programs/microbench.py made it; one of them has "copies",
    "step" and "matrices".
    """
    workers, model = int(document["workers"]), document["model"]
    points = _points(document, workers, model)
    told = [each for job in document["jobs"] for each in job["barriers"]]
    doubts: list[str] = []
    fits = {}
    reduced = points[(points["operation"] == "allreduce") & (points["place"] == "in")]
    for way in dict.fromkeys(points["way"]):
        own = reduced[reduced["way"] == way]
        try:
            fits[way] = fit_line(way, own["bytes"].to_list(), own["seconds_median"].to_list())
        except AnalysisError as error:
            doubts.append(str(error))
    machine: Mapping[str, Any] = next((job for job in document["jobs"] if "step" in job), {})
    copied = []
    for each in machine.get("copies", ()):
        rates = [each["bytes"] / seconds / 1e9 for seconds in each["seconds"] or ()]
        spread = _spread("gb_per_s", rates) if rates else dict.fromkeys(_spread("gb_per_s", [1.0]))
        copied.append({"name": each["name"], "bytes": each["bytes"], **spread, "reason": each["reason"]})
    copies = _table("copies", copied)
    barriers = ({"way": each["way"], **_spread("seconds", each["seconds"])} for each in told)
    found = {"workers": workers, "model": model, "points": points, "barriers": _table("barriers", barriers)}
    found |= {"copies": copies.astype({"reason": object}), "fits": fits}
    found["roofline"] = _roofline(machine, found, reduced) if machine else None
    found |= {"wrong": int(points["wrong"].sum()), "doubts": [*_doubts(document, points, reduced, fits), *doubts]}
    return {**found, **{name: machine.get(name) for name in ("launch", "step_roofline")}}


def restored(document: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the Network that bench.json holds: tables are frames, and ends of intervals that are null NaN again.

    Raises AnalysisError, naming `source`, for what is no such document.
    """
    try:
        known = {name: document.get(name) for name in ("launch", "step_roofline")}
        known |= {name: document[name] for name in ("roofline", "model", "doubts")}
        known |= {name: int(document[name]) for name in ("workers", "wrong")}
        known |= {name: _table(name, document[name]) for name in _TABLES}
        ends = "alpha_ci95_s", "beta_ci95_bytes_per_s"
        known["fits"] = {
            way: {**fit, **{name: tuple(math.nan if end is None else float(end) for end in fit[name]) for name in ends}}
            for way, fit in document["fits"].items()
        }
        return known
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AnalysisError(
            f"{source}: is not what `horovod-study bench` writes ({type(error).__name__}: {error}); name its bench.json"
        ) from None


def _table(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(_TABLES[name]))


def _points(document: Mapping[str, Any], workers: int, model: Mapping[str, Any]) -> pd.DataFrame:
    names: dict[int, list[str]] = {}
    for name, size in {**model["gradients"], WHOLE_GRADIENT: model["flat_bytes"]}.items():
        names.setdefault(int(size), []).append(name)
    rows: list[dict[str, Any]] = []
    for job in document["jobs"]:
        raw = {each["name"]: each["raw"] for each in job["ways"]}
        for each in job["points"]:
            size, spread, alone = int(each["bytes"]), _spread("seconds", each["seconds"]), each["seconds_median_op"]
            moved = bus_factor(each["operation"], workers) * size / 1e9
            rates = {end: moved / spread[f"seconds_{end}"] for end in ("median", "min", "max")}
            row = {**{name: each[name] for name in ("way", "operation", "place", "iterations")}, **spread}
            row |= {"raw": raw[each["way"]], "bytes": size, "count": size // 4, "workers": workers}
            row["wrong"] = int(each["wrong"])
            row |= {"of_model": ", ".join(names.get(size, [])), "rounds": len(each["seconds"])}
            row["seconds_median_op"] = None if alone is None else float(np.median(alone))
            row |= {"algbw_gb_per_s": size / spread["seconds_median"] / 1e9, "busbw_gb_per_s": rates["median"]}
            row |= {"busbw_min_gb_per_s": rates["max"], "busbw_max_gb_per_s": rates["min"]}
            rows.append(row)
    return _table("points", rows)


def _roofline(machine: Mapping[str, Any], found: Mapping[str, Any], reduced: pd.DataFrame) -> dict[str, Any]:
    """Return what bounds a training step of one worker, all workers computing: arithmetic, memory, a network.

    `peaks_flop_per_s`: type -> matrix peak of one worker, `peak_flop_per_s` in float32; `memory_bytes_per_s` of one
    worker, read plus written; `step_flop`, `step_s` of one worker without communication. `networks`: per way the busbw
    of very large messages by the fit (`final_bytes_per_s`) and measured at the size of all gradients (`bytes_per_s`),
    the ridge from which on computing is the limit, and `share_without_overlap`, step / (step + all-reduce). One worker
    alone puts nothing on a network: `network_flop_per_byte` is None.
    """
    copies, fits, workers, model = (found[name] for name in ("copies", "fits", "workers", "model"))
    peaks: dict[str, float] = {}
    for rate in machine["matrices"]:
        peaks[rate["dtype"]] = max(peaks.get(rate["dtype"], 0.0), rate["gflops_median"] * 1e9)
    peak = peaks["float32"]
    where = "GPU memory" if (copies["name"] == "GPU memory").any() else "host memory, all workers"
    copied = float(copies.loc[copies["name"] == where, "gb_per_s_median"].iloc[0])
    memory = 2e9 * copied  # a copy reads and writes each byte
    flop, step_s = float(model["step_flops"]), float(np.median(machine["step"]["seconds"]))
    in_network = flop / (moved_share(workers) * model["flat_bytes"]) if workers > 1 else None
    in_memory = flop / memory_bytes(
        parameters=model["parameters"], activations_per_curve=model["activations_per_curve"], batch=model["batch"]
    )
    networks = []
    for row in reduced[reduced["bytes"] == model["flat_bytes"]].to_dict("records") if in_network else ():
        way, seconds, bandwidth = row["way"], row["seconds_median"], row["busbw_gb_per_s"] * 1e9
        final = fits[way]["beta_bytes_per_s"] * bus_factor("allreduce", workers) if way in fits else None
        bound = attainable(in_network or 0.0, peak=peak, bandwidth=bandwidth)
        network = {"way": way, "final_bytes_per_s": final, "bytes_per_s": bandwidth, "allreduce_s": seconds}
        network |= {"ridge_flop_per_byte": peak / bandwidth, "attainable_flop_per_s": bound}
        networks.append({**network, "share_without_overlap": step_s / (step_s + seconds)})
    roof = {"peaks_flop_per_s": peaks, "peak_flop_per_s": peak, "memory_bytes_per_s": memory}
    roof |= {"step_flop": flop, "step_s": step_s, "flop_per_s": flop / step_s, "memory_flop_per_byte": in_memory}
    roof["memory_attainable_flop_per_s"] = attainable(in_memory, peak=peak, bandwidth=memory)
    return roof | {"network_flop_per_byte": in_network, "networks": networks}


def _doubts(
    document: Mapping[str, Any], points: pd.DataFrame, reduced: pd.DataFrame, fits: Mapping[str, Fit]
) -> Iterator[str]:
    for row in points[points["wrong"] > 0].to_dict("records"):
        place = {"in": " in place", "out": " out of place"}[row["place"]] if row["operation"] == "allreduce" else ""
        wrong = f"{row['wrong']} wrong elements in {row['operation']}{place} of {row['bytes']:,} bytes"
        yield f"{row['way']}: {wrong}; do not train over it"
    for way, fit in fits.items():
        worst, intervals = fit["worst_relative"], {"alpha": fit["alpha_ci95_s"], "beta": fit["beta_ci95_bytes_per_s"]}
        if abs(worst) > 0.25:
            takes = f"{fit['worst_bytes']:,} bytes take {100 * abs(worst):.0f} % {'more' if worst > 0 else 'less'}"
            why = "(other algorithms and caches at other sizes): read single sizes off the table"
            yield f"{way}: no straight line; {takes} than alpha + S/beta says {why}"
        if loose := [each for each, (low, high) in intervals.items() if not low > 0 or high / low > RESOLVED]:
            yield f"{way}: {' and '.join(loose)} not resolved, the interval spans more than a factor of {RESOLVED:g}"
    for name, own in reduced.groupby("way", sort=False):
        if unsteady := int((own["seconds_max"] > UNSTEADY * own["seconds_min"]).sum()):
            differ = f"{unsteady} of {len(own)} sizes differ by more than a factor of {UNSTEADY:g} between rounds"
            yield f"{name}: {differ}; other programs may be running"
    rounds = int(points["rounds"].max()) if len(points) else 0
    if rounds < 3:
        yield f"{rounds} round{'s' * (rounds > 1)}: the spread says little; use --rounds 5"
    load = document["jobs"][0]["conditions"]["load_before"] if document["jobs"] else 0.0
    if load > 1.0:
        yield f"the machine was busy before (load {load:g}): every number here may be too slow"


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_median": float(np.median(values)), f"{name}_min": min(values), f"{name}_max": max(values)}
