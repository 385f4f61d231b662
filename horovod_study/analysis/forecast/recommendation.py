"""How many workers? Answers from a forecast curve, each with a 95 % interval and with what makes it doubtful.

docs/metrics.md defines the questions (knee, peak of USL, cheapest, deadline, budget, time to a target) and the curves
that are drawn for the intervals: log-normal at every count as the forecast says, and correlated between counts as
exp(-d^2 / (2 TOGETHER^2)) at a distance of d doublings, because a forecast that is too high at N is too high at 2 N,
too. Every drawn curve answers; the 2.5 and 97.5 % quantiles are the interval, open (None) beyond the largest count.

Letters: B drawn curves, C candidate worker counts, K knots at which the forecast is asked.
"""

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field, model_validator
from scipy import interpolate, optimize

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitted import fit
from horovod_study.analysis.fit.fitting import SeriesFit
from horovod_study.analysis.fit.form import MAX_WORKERS
from horovod_study.analysis.fit.rows import by_series, check_points
from horovod_study.analysis.forecast.prediction import Prediction, no_forecast, predict
from horovod_study.analysis.laws import LAWS
from horovod_study.analysis.series.baselines import base_of, impossibilities
from horovod_study.analysis.stats import Floats
from horovod_study.config.doors import Number, Options, Whole, wrong
from horovod_study.errors import AnalysisError

REACH = 8  # times the largest measured worker count: as far as answers are looked for

TOGETHER = 2.0  # doublings within which a forecast errs to the same side

MOST = 1e24  # samples, seconds, GPU hours, prices: beyond it, or below its inverse, a number is a mistake

DRAWS = 1000
_MAX_CANDIDATES = 1024
_ROUNDING = 1e-9


_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: Any) -> Any:
    """Return the seconds of `90s`, `45m`, `1h30m`, `2.5h`, `1d`; numbers are seconds already."""
    if not isinstance(value, str):
        return value
    form = r"(\d+(?:\.\d*)?|\.\d+)\s*(s|min|m|h|d)\s*"
    if not re.fullmatch(f"(?:{form})+", text := value.strip().lower()):
        raise ValueError("it must be a number and a unit (s, m, h or d), such as 90m, 1h30m or 2d")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(form, text))


def _by_count(value: Any) -> Any:
    """Return samples to a target by worker count, of `2e6` alone or `1:2e6 8:2.6e6`."""
    if isinstance(value, Mapping):
        return value
    told = [word.rpartition(":") for word in value]
    found = {count: samples for count, _, samples in told}
    if len(found) < len(told) or (len(told) > 1 and "" in found):
        raise ValueError("it must be one number, or WORKERS:SAMPLES for each worker count, each of them once")
    return {count or 1: samples for count, samples in found.items()}


_Amount = Annotated[Number, Field(ge=1 / MOST, le=MOST)]
_Samples = dict[Annotated[Whole, Field(ge=1, le=MAX_WORKERS)], _Amount]


class Questions(Options):
    """What a user wants to know beside the knee, as options say it; None is not asked."""

    marginal: Annotated[Number, Field(gt=0, lt=1)] = 0.5  # share of the mean worker's that a further one must bring
    samples: _Amount | None = None  # of the whole training
    deadline: Annotated[_Amount, BeforeValidator(_seconds)] | None = None  # in s
    gpu_hours: _Amount | None = None
    price_per_gpu_hour: _Amount | None = None  # in any currency
    target_samples: Annotated[_Samples, BeforeValidator(_by_count)] | None = None  # worker count -> samples

    @model_validator(mode="after")
    def _of_samples(self) -> "Questions":
        asked = {"--deadline": self.deadline, "--gpu-hours": self.gpu_hours}
        if not self.target_samples:
            asked["--price-per-gpu-hour"] = self.price_per_gpu_hour
        for name, value in asked.items():
            if self.samples is None and value is not None:
                raise wrong(f"{name} says nothing without samples: give --samples of the whole training, too")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecommendedCount:
    """One recommended worker count with its 95 % interval; None where there is none, or no end was seen."""

    DOCUMENT = "question workers low high searched_to *numbers doubts why_not?"

    question: str  # in words
    workers: int | None = None
    low: int | None = None
    high: int | None = None  # None: open, no end up to `searched_to`
    searched_to: int
    values: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)  # (value, low, high) at `workers`
    doubts: tuple[str, ...] = ()
    why_not: str = ""  # why there is no count, where it is not that the end was not seen

    @property
    def open(self) -> bool:
        """Whether the answer is beyond the largest count that was looked at."""
        return self.workers is None and not self.why_not

    @property
    def numbers(self) -> dict[str, float | None]:
        values: dict[str, float | None] = {}
        for name in ("samples_per_s", "duration_s", "gpu_hours", "gpu_hours_per_million_samples", "cost"):
            value, low, high = self.values.get(name, (None, None, None))
            values |= {name: value, f"{name}_low": low, f"{name}_high": high}
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recommendation:
    """The answers for one series, in the order of the module's table."""

    DOCUMENT = "measured answers why_not?"

    series: str
    measured: tuple[int, int]  # smallest and largest worker count
    answers: Mapping[str, _RecommendedCount]
    why_not: str = ""  # why there are no answers


def recommend(
    points: pd.DataFrame,
    questions: Questions | None = None,
    *,
    workers_per_node: int | None = None,
    bench: Mapping[str, Any] | None = None,
    batch: float | None = None,
    global_batch: float | None = None,
    fits: Mapping[str, SeriesFit] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, _Recommendation]:
    """Answer `questions` (default: the knee, the peak and the cheapest count) for every series of `points`.

    Columns as for `prediction.predict`, to which `workers_per_node`, `bench` and the batch at the recommended
    counts are handed on. `fits` of `fitting.fit_series` spare a second fit of USL.
    A series with one distinct worker count has no answers and says why.
    Raises AnalysisError for rows that are not positive numbers.
    """
    # Nine arguments: what a user may say about the points, given by name.
    check_points(points)
    questions = questions or Questions()
    forecast = partial(predict, workers_per_node=workers_per_node, bench=bench, batch=batch, global_batch=global_batch)
    return {
        name: _series(name, rows, questions, workers_per_node, forecast, (fits or {}).get(name), draws, seed)
        for name, rows in by_series(points)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curves:
    """The forecast and B curves that are consistent with it, as logarithms of samples/s per worker at any count."""

    knots: Floats  # (K,) log2 of worker counts
    rate: Floats  # (1 + B, K); the first row is the forecast itself
    low: Floats  # (K,) end of the 95 % interval
    high: Floats  # (K,)

    def at(self, counts: Floats) -> Floats:
        """Log of samples/s per worker at `counts` (C,), as (1 + B, C); monotone between knots, over log2 N."""
        return _between(self.knots, self.rate, counts)

    def interval(self, count: float) -> tuple[float, float, float]:
        """Samples/s of all workers at one count: forecast, low, high."""
        ends = np.stack([self.rate[0], self.low, self.high])
        value, low, high = count * np.exp(_between(self.knots, ends, np.array([float(count)]))[:, 0])
        return float(value), float(low), float(high)


def _between(knots: Floats, values: Floats, counts: Floats) -> Floats:
    """Rows of `values` (R, K) at `counts` (C,), as (R, C); straight lines would put every knee on a knot."""
    return np.asarray(interpolate.PchipInterpolator(knots, values, axis=1)(np.log2(counts)), dtype=np.float64)


def _draw(forecasts: Sequence[Prediction], draws: int, seed: int) -> _Curves:
    counts = np.array([one.workers for one in forecasts], dtype=np.float64)
    rates = [np.array([getattr(one, name) for one in forecasts]) for name in ("samples_per_s", "low", "high")]
    centre, low, high = (np.log(rate / counts) for rate in rates)
    knots = np.log2(counts)
    together = np.exp(-0.5 * ((knots[:, np.newaxis] - knots) / TOGETHER) ** 2)
    # The matrix is singular to rounding: eigenvectors, not Cholesky, and no jitter that would depend on its size.
    strength, modes = np.linalg.eigh(together)
    root = modes * np.sqrt(np.maximum(strength, 0.0))
    z = np.random.default_rng(seed).standard_normal((draws, len(knots))) @ root.T
    deviation = np.where(z > 0, z * (high - centre), z * (centre - low)) / stats.Z95
    return _Curves(knots=knots, rate=np.vstack([centre, centre + deviation]), low=low, high=high)


def knots(smallest: int, largest: int, measured: Sequence[int], per_node: int | None) -> list[int]:
    """Worker counts at which the forecast is asked: even in log2 N, measured ones, and both sides of a node's end."""
    doublings = math.log2(largest / smallest) if largest > smallest else 0.0
    steps = max(2, math.ceil(6 * doublings) + 1)
    found = {round(each) for each in np.geomspace(smallest, largest, steps)} | set(measured) | {smallest, largest}
    if per_node is not None:
        edges = [per_node * 2**i for i in range(40) if per_node * 2**i < largest]
        found |= {edge + after for edge in edges for after in (0, 1)}
    return sorted(each for each in found if smallest <= each <= largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One series, ready to be asked."""

    measured: tuple[int, int]
    curves: _Curves
    counts: Floats  # (C,) candidates
    rate: Floats  # (1 + B, C) log of samples/s per worker
    odd: Sequence[str]  # what cannot be among the points
    doubts: Mapping[int, tuple[str, ...]]  # of the forecast, by worker count
    questions: Questions

    @property
    def speed(self) -> Floats:
        """Log of samples/s of all workers, (1 + B, C)."""
        return self.rate + np.log(self.counts)


def _series(
    name: str,
    rows: pd.DataFrame,
    questions: Questions,
    workers_per_node: int | None,
    forecast: Callable[..., dict[str, list[Prediction]]],
    fits: SeriesFit | None,
    draws: int,
    seed: int,
) -> _Recommendation:
    rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
    measured = [int(count) for count in np.unique(rows["workers"])]
    smallest, largest = measured[0], measured[-1]
    if smallest == largest:
        return _Recommendation(series=name, measured=(smallest, largest), answers={}, why_not=no_forecast(smallest))
    top = min(REACH * largest, MAX_WORKERS)
    asked = knots(smallest, top, measured, workers_per_node)
    forecasts = forecast(rows.assign(series=name), workers=asked)[name]
    curves = _draw(forecasts, draws, seed)
    counts = np.arange(smallest, top + 1, dtype=np.float64)
    if len(counts) > _MAX_CANDIDATES:
        counts = np.unique(np.geomspace(smallest, top, _MAX_CANDIDATES).round())
    case = _Case(
        measured=(smallest, largest),
        curves=curves,
        counts=counts,
        rate=curves.at(counts),
        odd=impossibilities(rows, base_of(rows).samples_per_s),
        doubts={one.workers: one.doubts for one in forecasts},
        questions=questions,
    )
    share, samples = questions.marginal, questions.samples
    question = f"where one more worker gains less than {100 * share:.4g} % of the mean worker"
    found = _highest(case.speed - share * np.log(counts), counts)
    answers = {"knee": _answer(case, question, found, samples=samples), "usl_peak": _peak(case, rows, fits)}
    cheapest = _highest(case.rate, counts)
    answers["cheapest"] = _answer(case, "the fewest GPU hours per sample", cheapest, samples=samples)
    if questions.deadline is not None:
        answers["deadline"] = _deadline(case)
    if questions.gpu_hours is not None:
        answers["budget"] = _budget(case)
    if questions.target_samples:
        answers |= _to_target(case, seed)
    return _Recommendation(series=name, measured=case.measured, answers=answers)


def _peak(case: _Case, rows: pd.DataFrame, fits: SeriesFit | None) -> _RecommendedCount:
    """Where USL has its highest throughput; its interval from those of alpha and beta, the outer corners of both."""
    question = "where Gunther's law (USL) has its highest throughput"
    top = int(case.counts[-1])
    try:
        base, known = base_of(rows), {} if fits is None else fits.fits
        speedup = rows["samples_per_s"] / base.samples_per_s
        usl = known.get("usl") or fit(LAWS["usl"], rows["workers"], speedup, scaled_by=base.workers)
    except AnalysisError as error:
        return _RecommendedCount(question=question, searched_to=top, why_not=f"{error}")
    (alpha_low, alpha_high), (beta_low, beta_high) = usl.ci95["alpha"], usl.ci95["beta"]
    if not (usl.identifiable and math.isfinite(usl.peak) and math.isfinite(beta_high) and beta_low > 0):
        refuted = next((doubt for doubt in usl.doubts if "has its peak" in doubt), "")
        why_not = refuted or "the points do not tell beta from 0, so a peak is not identified"
        return _RecommendedCount(question=question, searched_to=top, why_not=why_not)
    low, high = (float(usl.law.peak(alpha=a, beta=b)) for a, b in ((alpha_high, beta_high), (alpha_low, beta_low)))
    peak = round(usl.peak)
    inside = case.counts[0] <= peak <= top
    return _RecommendedCount(
        question=question,
        workers=peak,
        low=max(1, math.floor(low)),
        high=math.ceil(high),
        searched_to=top,
        values=_values(case, peak, case.questions.samples) if inside else {},
        doubts=tuple(_beyond(case, peak)),
    )


def _deadline(case: _Case) -> _RecommendedCount:
    samples, deadline_s = case.questions.samples, case.questions.deadline
    assert samples is not None and deadline_s is not None
    found = _first(case.speed >= math.log(samples / deadline_s) - _ROUNDING, case.counts)
    why_not = ""
    if not math.isfinite(found[0]):
        fastest = int(np.argmax(case.speed[0]))
        takes = duration(samples / math.exp(float(case.speed[0][fastest])))
        why_not = (
            f"no count up to {case.counts[-1]:,.0f} meets it: the fastest, {case.counts[fastest]:,.0f}, takes {takes}"
        )
    question = f"the fewest workers that finish {_plain(samples)} samples within {duration(deadline_s)}"
    return _answer(case, question, found, samples=samples, why_not=why_not)


def _budget(case: _Case) -> _RecommendedCount:
    samples, hours = case.questions.samples, case.questions.gpu_hours
    assert samples is not None and hours is not None
    within = np.asarray(case.rate >= math.log(samples / (3600 * hours)) - _ROUNDING)
    affordable = np.any(within, axis=1)
    found = _highest(np.where(within, case.speed, case.speed.min() - 1), case.counts)
    why_not = ""
    if not affordable[0]:
        cheapest = int(np.argmax(case.rate[0]))
        least = samples / math.exp(float(case.rate[0][cheapest])) / 3600
        why_not = (
            f"no count up to {case.counts[-1]:,.0f} is within it: the cheapest, {case.counts[cheapest]:,.0f}, takes "
            f"{least:,.3g} GPU hours"
        )
    found[~affordable] = case.counts[0]  # the dearest curves allow the least
    question = f"the fastest within {_plain(hours)} GPU hours for {_plain(samples)} samples"
    return _answer(case, question, found, samples=samples, why_not=why_not)


def _to_target(case: _Case, seed: int) -> dict[str, _RecommendedCount]:
    given = case.questions.target_samples
    assert given is not None
    needed, doubts = _samples_needed(given, case.counts, len(case.rate) - 1, seed)  # (1 + B, C)
    speed = case.speed - np.log(needed)
    share = case.questions.marginal
    found = {}
    for name, question, counts in (
        ("fastest_to_target", "the shortest time to the target", _highest(speed, case.counts)),
        (
            "target_knee",
            f"where one more worker gains less than {100 * share:.4g} % of the mean one, to the target",
            _highest(speed - share * np.log(case.counts), case.counts),
        ),
    ):
        at = np.flatnonzero(case.counts == counts[0])
        samples = float(needed[0][at[0]]) if len(at) else None
        found[name] = _answer(case, question, counts, samples=samples, doubts=doubts)
    return found


def _samples_needed(given: Mapping[int, float], counts: Floats, draws: int, seed: int) -> tuple[Floats, list[str]]:
    """Samples to the target at `counts` (C,), as (1 + B, C), and doubts: E_min (1 + N / N_crit), relative residuals."""
    n = np.array(sorted(given), dtype=np.float64)
    samples = np.array([given[int(count)] for count in n])
    if len(n) == 1:
        level = np.full((1 + draws, len(counts)), samples[0])
        return level, ["samples to the target are taken as the same at every count; with larger batches they grow"]

    def solved(values: Floats) -> Floats:
        return np.asarray(optimize.nnls(np.stack([1 / values, n / values], axis=1), np.ones_like(n))[0])

    best = solved(samples)
    fitted = best[0] + best[1] * n
    freedom = len(n) - 2
    doubts = []
    if freedom < 1:
        doubts.append("samples to the target are known at two counts: their own uncertainty is not in the interval")
        spread = 0.0
    else:
        spread = math.sqrt(float(np.sum(np.log(samples / fitted) ** 2)) / freedom)
        spread *= stats.stretch(float(freedom))
    noise = np.random.default_rng([seed, 1]).standard_normal((draws, len(n))) * spread
    every = np.vstack([best, *(solved(fitted * np.exp(each)) for each in noise)])
    if counts[-1] > n[-1]:
        doubts.append(f"samples to the target beyond {n[-1]:g} workers follow E_min (1 + N / N_crit)")
    return every[:, :1] + every[:, 1:] * counts, doubts


def _first(yes: np.ndarray[Any, np.dtype[np.bool_]], counts: Floats) -> Floats:
    """The first of `counts` (C,) at which each row of `yes` (1 + B, C) is true, as (1 + B,); inf where none is."""
    return np.where(yes.any(axis=1), counts[np.argmax(yes, axis=1)], np.inf)


def _highest(worth: Floats, counts: Floats) -> Floats:
    """The first of `counts` (C,) with the highest `worth` (1 + B, C) of each row, as (1 + B,).

    inf where that is the last count: what still rises at the end of the search has its highest beyond it.
    """
    best = worth.max(axis=1, keepdims=True)
    found = _first(worth >= best - _ROUNDING, counts)
    return np.where(found >= counts[-1], np.inf, found)


def _answer(
    case: _Case,
    question: str,
    found: Floats,
    *,
    samples: float | None = None,
    doubts: Sequence[str] = (),
    why_not: str = "",
) -> _RecommendedCount:
    """Make an answer of the counts that the forecast (first) and the drawn curves give, (1 + B,)."""
    top = int(case.counts[-1])
    low, high = (float(each) for each in np.quantile(found[1:], [0.025, 0.975], method="inverted_cdf"))
    centre = float(found[0])
    low, high = min(low, centre), max(high, centre)  # of skewed curves, the forecast is not always among the middle
    workers = None if why_not or not math.isfinite(centre) else int(centre)
    told = [*case.odd, *doubts]
    if workers is not None:
        told += _beyond(case, workers)
    if not math.isfinite(high) and not why_not:
        told.append(f"no upper bound found: counts up to {top:,} workers were searched")
    return _RecommendedCount(
        question=question,
        workers=workers,
        low=int(low) if math.isfinite(low) else (None if why_not else top),
        high=int(high) if math.isfinite(high) else None,
        searched_to=top,
        values={} if workers is None else _values(case, workers, samples),
        doubts=tuple(dict.fromkeys(told)),
        why_not=why_not,
    )


def _beyond(case: _Case, workers: int) -> list[str]:
    """What is doubtful about a recommended count: that it was not measured, and the forecast's own doubts there."""
    largest = case.measured[1]
    if workers <= largest:
        return []
    nearest = min(case.doubts, key=lambda count: abs(math.log(count / workers)))
    return [f"{workers:,} workers are beyond the {largest:,} that were measured", *case.doubts[nearest]]


def _values(case: _Case, workers: int, samples: float | None) -> dict[str, tuple[float, float, float]]:
    """Speed, time, GPU hours and cost at one worker count, each as (value, low, high)."""
    speed, slow, quick = case.curves.interval(workers)
    values = {"samples_per_s": (speed, slow, quick)}

    def over(amount: float) -> tuple[float, float, float]:
        return amount / speed, amount / quick, amount / slow

    values["gpu_hours_per_million_samples"] = over(workers * 1e6 / 3600)
    if samples is not None:
        values["duration_s"] = over(samples)
        values["gpu_hours"] = over(workers * samples / 3600)
    price = case.questions.price_per_gpu_hour
    if price is not None and samples is not None:
        value, low, high = values["gpu_hours"]
        values["cost"] = (price * value, price * low, price * high)
    return values


_NAMES = {
    "knee": "knee",
    "usl_peak": "peak (USL)",
    "cheapest": "cheapest",
    "deadline": "deadline",
    "budget": "budget",
    "fastest_to_target": "to target",
    "target_knee": "knee to target",
}


def in_words(one: _RecommendedCount) -> str:
    """The recommended count with its interval: `8 [6, 11]`, `8 [6, ...]`, `above 64 [9, ...]`, `at least 64`."""
    if one.why_not:
        return "none"
    if one.workers is None:
        below = (one.low or 0) < one.searched_to
        return f"above {one.searched_to:,} [{one.low:,}, ...]" if below else f"at least {one.low:,}"
    return f"{one.workers:,} [{one.low:,}, {'...' if one.high is None else f'{one.high:,}'}]"


def lines(found: _Recommendation, *, only: Sequence[str] | None = None, unit: str = "samples/s") -> list[str]:
    """The answers of one series for a terminal of 100 columns, with doubts; `only` some; `unit` is of throughputs."""
    series = found.series or "all points"
    if found.why_not:
        return [f"{series}: no worker count is recommended: {found.why_not}"]
    chosen = {name: one for name, one in found.answers.items() if only is None or name in only}
    low, high = found.measured
    text = [f"{series}: recommended workers with 95 % interval, measured {low:,} to {high:,}"]
    for name, one in chosen.items():
        text += textwrap.wrap(
            f"  {_NAMES[name]:<15} {in_words(one):<20} {one.question}", 100, subsequent_indent=" " * 39
        )
        below = [one.why_not] if one.why_not else [", ".join(_told(one, unit))] if one.values else []
        for told in [*below, *(f"doubt: {doubt}" for doubt in one.doubts)]:
            text += textwrap.wrap(told, 100, initial_indent=" " * 18, subsequent_indent=" " * 20)
    return text


def _plain(value: float) -> str:
    """Four digits, and no power of ten below a million millions."""
    return f"{value:,.0f}" if 1000 <= value < 1e12 else f"{value:.4g}"


def _told(one: _RecommendedCount, unit: str) -> Iterator[str]:
    for name, form, words in (
        ("samples_per_s", _plain, f" {unit}"),
        ("duration_s", duration, ""),
        ("gpu_hours", _plain, " GPU hours"),
        ("cost", _plain, " to pay"),
    ):
        if name in one.values:
            value, low, high = one.values[name]
            yield f"{form(value)}{words} [{form(low)}, {form(high)}]"


def duration(seconds: float) -> str:
    """Seconds as a person writes them: `45 s`, `12.5 min`, `3.2 h`, `2.1 d`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size or (unit == "h" and seconds >= size):
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.3g} s"
