"""How many workers? Answers from a forecast curve, each with a 95 % interval and with what makes it doubtful.

docs/metrics.md defines the questions (knee, peak of USL, cheapest, deadline, budget, time to a target) and the curves
that are drawn for the intervals: log-normal at every count as the forecast says, and correlated between counts as
exp(-d^2 / (2 TOGETHER^2)) at a distance of d doublings, because a forecast that is too high at N is too high at 2 N,
too. Every drawn curve answers; the 2.5 and 97.5 % quantiles are the interval, open (None) beyond the largest count.

Letters: B drawn curves, C candidate worker counts, K knots at which the forecast is asked.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field, model_validator
from scipy import interpolate, optimize

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import SeriesFit, fit
from horovod_study.analysis.fit.least_squares import MAX_WORKERS
from horovod_study.analysis.fit.rows import by_series, check_points
from horovod_study.analysis.forecast.prediction import (
    COMBINED,
    Prediction,
    Scores,
    no_forecast,
    over_all,
    planned_per_node,
    predict,
    score,
    summarise,
)
from horovod_study.analysis.laws import LAWS, Law
from horovod_study.analysis.series.culprits import Base, base_of, impossibilities
from horovod_study.analysis.stats import Floats
from horovod_study.config.doors import Number, Options, Whole, wrong
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural, wrapped

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


Answer: TypeAlias = SimpleNamespace
"""One recommended count: question (in words), workers, low, high (None: none, or no end was seen), searched_to, each of
_VALUES at `workers` with _low and _high, doubts, and why_not: why there is none, where it is not the search."""
_VALUES = ("samples_per_s", "duration_s", "gpu_hours", "gpu_hours_per_million_samples", "cost")
_ENDS = ("", "_low", "_high")
Recommendation: TypeAlias = SimpleNamespace
"""Of one series: measured (smallest and largest count), answers (in the order of _NAMES), why_not (there are none)."""


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
) -> dict[str, Recommendation]:
    """Answer `questions` (default: the knee, the peak and the cheapest count) for every series of `points`.

    Columns as for `prediction.predict`, to which `workers_per_node`, `bench` and the batch at the recommended
    counts are handed on. `fits` of `fitting.fit_series` spare a second fit of USL.
    A series with one distinct worker count has no answers and says why.
    Raises AnalysisError for rows that are not positive numbers.
    """
    check_points(points)
    known: dict[str, Any]
    known = {"workers_per_node": workers_per_node, "bench": bench, "batch": batch, "global_batch": global_batch}
    found = {}
    for name, rows in by_series(points):
        rows = rows.sort_values(["workers", "samples_per_s"], kind="stable")
        measured = [int(count) for count in np.unique(rows["workers"])]
        least, most, top = measured[0], measured[-1], min(REACH * measured[-1], MAX_WORKERS)
        if least == most:
            found[name] = Recommendation(measured=(least, most), answers={}, why_not=no_forecast(least))
            continue
        places = knots(least, top, measured, workers_per_node)
        forecasts = predict(rows.assign(series=name), workers=places, **known)[name]
        counts = np.arange(least, top + 1, dtype=np.float64)
        if len(counts) > _MAX_CANDIDATES:
            counts = np.unique(np.geomspace(least, top, _MAX_CANDIDATES).round())
        case = _Case(questions=questions or Questions(), largest=most, forecasts=forecasts, counts=counts)
        case.curves = _draw(forecasts, draws, seed)
        answers = _answers(case, seed)
        base = base_of(rows)
        odd = impossibilities(rows, base.samples_per_s)
        for one in answers.values():
            one.doubts = tuple(dict.fromkeys((*odd, *one.doubts)))
        known_laws = fits[name].fits if fits and name in fits else {}
        answers["usl_peak"] = _peak(case, rows, base, known_laws.get("usl"))
        ordered = {each: answers[each] for each in _NAMES if each in answers}
        found[name] = Recommendation(measured=(least, most), answers=ordered, why_not=None)
    return found


_Case: TypeAlias = SimpleNamespace
"""One series, ready to be asked: questions, largest (measured count), forecasts, curves (of _draw), counts (C,)."""


def _draw(forecasts: Sequence[Prediction], draws: int, seed: int) -> interpolate.PchipInterpolator:
    """Return curves of log samples/s per worker over log2 N, monotone between knots, because straight lines would put
    every knee on one: the forecast, the ends of its interval, and B curves that are consistent with it, (3 + B,).
    """
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
    return interpolate.PchipInterpolator(knots, np.vstack([centre, low, high, centre + deviation]), axis=1)


def knots(smallest: int, largest: int, measured: Sequence[int], per_node: int | None) -> list[int]:
    """Worker counts at which the forecast is asked: even in log2 N, measured ones, and both sides of a node's end."""
    doublings = math.log2(largest / smallest) if largest > smallest else 0.0
    steps = max(2, math.ceil(6 * doublings) + 1)
    found = {round(each) for each in np.geomspace(smallest, largest, steps)} | set(measured) | {smallest, largest}
    if per_node is not None:
        edges = [per_node * 2**i for i in range(40) if per_node * 2**i < largest]
        found |= {edge + after for edge in edges for after in (0, 1)}
    return sorted(each for each in found if smallest <= each <= largest)


_NAMES = {
    "knee": "knee",
    "usl_peak": "peak (USL)",
    "cheapest": "cheapest",
    "deadline": "deadline",
    "budget": "budget",
    "fastest_to_target": "to target",
    "target_knee": "knee to target",
}


def _answers(case: _Case, seed: int) -> dict[str, Answer]:
    """Return the answers to what is asked, each the count where something is highest; but the peak of USL."""
    asked, share, samples = case.questions, case.questions.marginal, case.questions.samples
    counts, n = case.counts, np.log(case.counts)
    # (1 + B, C) log of samples/s per worker, and of all workers: the forecast, and B curves
    rate: Floats = np.delete(case.curves(np.log2(counts)), (1, 2), axis=0)
    speed = rate + n
    less = f"where one more worker gains less than {100 * share:.4g} % of the mean worker"
    found = {"knee": _answer(case, less, _highest(speed - share * n, counts), samples)}
    found["cheapest"] = _answer(case, "the fewest GPU hours per sample", _highest(rate, counts), samples)

    def nobody(logs: Floats, words: Callable[[float], str], possible: Any) -> str:
        best = int(np.argmax(logs))
        least = f"the best, {counts[best]:,.0f}, takes {words(samples / math.exp(logs[best]))}"
        return "" if possible else f"no count up to {int(counts[-1]):,} is within it; {least}"

    if samples and asked.deadline is not None:
        question = f"the fewest workers that finish {_plain(samples)} samples within {duration(asked.deadline)}"
        in_time = _first(speed >= math.log(samples / asked.deadline) - _ROUNDING, counts)
        why_not = nobody(speed[0], duration, np.isfinite(in_time[0]))
        found["deadline"] = _answer(case, question, in_time, samples, why_not=why_not)
    if samples and asked.gpu_hours is not None:
        question = f"the fastest within {_plain(asked.gpu_hours)} GPU hours for {_plain(samples)} samples"
        within = np.asarray(rate >= math.log(samples / (3600 * asked.gpu_hours)) - _ROUNDING)
        fastest = _highest(np.where(within, speed, speed.min() - 1), counts)
        fastest[~within.any(axis=1)] = counts[0]  # the dearest curves allow the least
        why_not = nobody(rate[0], lambda seconds: f"{seconds / 3600:,.3g} GPU hours", within[0].any())
        found["budget"] = _answer(case, question, fastest, samples, why_not=why_not)
    if asked.target_samples:
        needed, doubts = _samples_needed(asked.target_samples, counts, len(rate) - 1, seed)  # (1 + B, C)
        for name, question, worth in (
            ("fastest_to_target", "the shortest time to the target", speed - np.log(needed)),
            ("target_knee", f"{less}, to the target", speed - np.log(needed) - share * n),
        ):
            best_counts = _highest(worth, counts)
            at = np.flatnonzero(counts == best_counts[0])
            found[name] = _answer(case, question, best_counts, float(needed[0][at[0]]) if len(at) else None, doubts)
    return found


def _peak(case: _Case, rows: pd.DataFrame, base: Base, usl: Law | None) -> Answer:
    """Where USL has its highest throughput; its interval from those of alpha and beta, the outer corners of both."""
    ends, why_not = np.full(3, math.inf), ""  # peak, low, high
    try:
        speedup = rows["samples_per_s"] / base.samples_per_s
        usl = usl or fit(LAWS["usl"], rows["workers"], speedup, scaled_by=base.workers)
    except AnalysisError as error:
        why_not = f"{error}"
    else:
        alpha, beta, peak_of = usl.intervals_["alpha"], usl.intervals_["beta"], usl.form_.peak_of
        if usl.identifiable and math.isfinite(usl.peak()) and math.isfinite(beta[1]) and beta[0] > 0:
            high, low = (peak_of(alpha=each, beta=other) for each, other in zip(alpha, beta, strict=True))
            ends = np.array([round(usl.peak()), max(1, math.floor(low)), math.ceil(high)], dtype=np.float64)
        else:
            refuted = next((doubt for doubt in usl.doubts_ if "has its peak" in doubt), "")
            why_not = refuted or "the points do not tell beta from 0, so a peak is not identified"
    question = "where Gunther's law (USL) has its highest throughput"
    return _answer(case, question, ends, case.questions.samples, why_not=why_not)


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
    freedom, spread, doubts = len(n) - 2, 0.0, []
    if freedom < 1:
        doubts.append("samples to the target are known at two counts: their own uncertainty is not in the interval")
    else:
        spread = float(np.linalg.norm(np.log(samples / fitted))) / math.sqrt(freedom) * stats.stretch(float(freedom))
    noise = np.random.default_rng([seed, 1]).standard_normal((draws, len(n))) * spread
    every = np.vstack([best, *(solved(fitted * np.exp(each)) for each in noise)])
    if counts[-1] > n[-1]:
        doubts.append(f"samples to the target beyond {n[-1]:g} workers follow E_min (1 + N / N_crit)")
    return every[:, :1] + every[:, 1:] * counts, doubts


def _first(yes: Any, counts: Floats) -> Floats:
    """The first of `counts` (C,) at which each row of `yes` (1 + B, C) is true, as (1 + B,); inf where none is."""
    return np.where(yes.any(axis=1), counts[np.argmax(yes, axis=1)], np.inf)


def _highest(worth: Floats, counts: Floats) -> Floats:
    """The first of `counts` (C,) with the highest `worth` (1 + B, C) of each row, as (1 + B,).

    inf where that is the last count: what still rises at the end of the search has its highest beyond it.
    """
    found = _first(worth >= worth.max(axis=1, keepdims=True) - _ROUNDING, counts)
    return np.where(found >= counts[-1], np.inf, found)


def _answer(
    case: _Case, question: str, found: Floats, samples: float | None, doubts: Sequence[str] = (), why_not: str = ""
) -> Answer:
    """Make an answer of the counts that the forecast (first) and the drawn curves give, (1 + B,).

    With speed, time, GPU hours and cost at its count, and what is doubtful about that: that it was not measured, and
    the forecast's own doubts there.
    """
    top, centre, told = int(case.counts[-1]), float(found[0]), [*doubts]
    low, high = (float(each) for each in np.quantile(found[1:], [0.025, 0.975], method="inverted_cdf"))
    low, high = min(low, centre), max(high, centre)  # of skewed curves, the forecast is not always among the middle
    workers = None if why_not or not math.isfinite(centre) else int(centre)
    if workers is not None and workers > case.largest:
        nearest = min(case.forecasts, key=lambda one: abs(math.log(one.workers / workers)))
        told += [f"{workers:,} workers are beyond the {case.largest:,} that were measured", *nearest.doubts]
    if not math.isfinite(high) and not why_not:
        told.append(f"no upper bound found: counts up to {top:,} workers were searched")
    values: dict[str, tuple[Any, ...]] = dict.fromkeys(_VALUES, (None,) * 3)
    if workers is not None and case.counts[0] <= workers <= top:
        speed, slow, quick = (float(each) for each in workers * np.exp(case.curves(math.log2(workers))[:3]))
        price, hours = case.questions.price_per_gpu_hour, workers / 3600
        over = {"gpu_hours_per_million_samples": 1e6 * hours}
        if samples is not None:
            over |= {"duration_s": samples, "gpu_hours": samples * hours}
            over |= {} if price is None else {"cost": price * samples * hours}
        values |= {"samples_per_s": (speed, slow, quick)}
        values |= {name: (each / speed, each / quick, each / slow) for name, each in over.items()}
    answer = Answer(question=question, workers=workers, searched_to=top, why_not=why_not or None)
    answer.low = int(low) if math.isfinite(low) else (None if why_not else top)
    answer.high, answer.doubts = int(high) if math.isfinite(high) else None, tuple(dict.fromkeys(told))
    for name, each in values.items():
        vars(answer).update({f"{name}{end}": each[place] for place, end in enumerate(_ENDS)})
    return answer


def in_words(one: Answer) -> str:
    """The recommended count with its interval: `8 [6, 11]`, `8 [6, ...]`, `above 64 [9, ...]`, `at least 64`."""
    if one.why_not:
        return "none"
    if one.workers is None:
        below = (one.low or 0) < one.searched_to
        return f"above {one.searched_to:,} [{one.low:,}, ...]" if below else f"at least {one.low:,}"
    return f"{one.workers:,} [{one.low:,}, {'...' if one.high is None else f'{one.high:,}'}]"


def lines(
    series: str, found: Recommendation, *, only: Sequence[str] | None = None, unit: str = "samples/s"
) -> list[str]:
    """The answers of one series for a terminal of 100 columns, with doubts; `only` some; `unit` is of throughputs."""
    series, (low, high) = series or "all points", found.measured
    if found.why_not:
        return [f"{series}: no worker count is recommended: {found.why_not}"]
    text = [f"{series}: recommended workers with 95 % interval, measured {low:,} to {high:,}"]
    words = {"samples_per_s": f" {unit}", "duration_s": "", "gpu_hours": " GPU hours", "cost": " to pay"}
    answers = {_NAMES[answer]: found.answers[answer] for answer in only or found.answers}
    rows = [(answer, in_words(one)) for answer, one in answers.items()]
    heads = to_lines(table_of(("", ""), rows, texts=(0, 1)), indent=2)
    for head, one in zip(heads, answers.values(), strict=True):
        values: list[str] = []
        for name, word in words.items():
            if vars(one)[name] is not None:
                ends = (vars(one)[f"{name}{end}"] for end in _ENDS)
                told, *interval = map(duration if name == "duration_s" else _plain, ends)
                values.append(f"{told}{word} [{', '.join(interval)}]")
        text.append(head)
        for each in (one.question, one.why_not, ", ".join(values), *(f"doubt: {doubt}" for doubt in one.doubts)):
            text += wrapped(each, 100, " " * 4, " " * 6) if each else []
    return text


def _plain(value: float) -> str:
    """Four digits, and no power of ten below a million millions."""
    return f"{value:,.0f}" if 1000 <= value < 1e12 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as a person writes them: `45 s`, `12.5 min`, `3.2 h`, `2.1 d`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size or (unit == "h" and seconds >= size):
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.3g} s"


# -------------------------------------------------------------------------------------------- the next best measurement

_NODES = ((0.0, 2 / 3), (math.sqrt(3), 1 / 6), (-math.sqrt(3), 1 / 6))  # of a normal variable, with their weights


NextStep: TypeAlias = SimpleNamespace
"""Of one series: target, its forecast there as it is (samples_per_s, low, high, doubts), and choices: further runs, the
best per GPU hour first."""


def next_runs(points: pd.DataFrame, target: int, *, candidates: Iterable[int], seconds: float) -> dict[str, NextStep]:
    """Return for each series of `points` what further runs are expected to narrow its forecast at `target` workers.

    Columns as for `prediction.predict`, one row a run. `candidates` are the worker counts that can be run, `seconds`
    what one run takes. Runs that are not expected to narrow the interval are left out. Series of a single worker count
    have no forecast and are left out. Raises AnalysisError where no series has one.
    """
    check_points(points)
    wanted = sorted(set(candidates))
    found = {
        name: _next_step(name, rows, target, wanted, seconds)
        for name, rows in by_series(points)
        if wanted and rows["workers"].nunique() > 1
    }
    if not found:
        raise AnalysisError("no worker count can be run, or every series has one: run a second one, then forecast")
    return found


def _next_step(name: str, rows: pd.DataFrame, target: int, candidates: Sequence[int], seconds: float) -> NextStep:
    rows = rows.assign(series=name)
    per_node = planned_per_node(rows)
    now, *at = predict(rows, workers=[target, *candidates], workers_per_node=per_node)[name]
    width = math.log(now.high / now.low)
    logs = rows["samples_per_s"].astype(float).map(math.log)
    groups = logs.groupby(rows["workers"])
    freedom = len(logs) - groups.ngroups
    away = logs - groups.transform("mean")
    noise = math.sqrt(float((away**2).sum()) / freedom) if freedom else 0.02  # of runs of one worker count, pooled
    choices = []
    for known, many in itertools.product(at, (1, 3)):  # three have an interval of their own
        down, up = _expected(rows, target, known, many, noise, per_node)
        narrower = 1 - (down + up) / width if width > 0 else 0.0
        hours = many * seconds * known.workers / 3600  # workers x seconds, whatever a worker runs on
        low, high = (now.samples_per_s * math.exp(each) for each in (-down, up))
        choice = {"workers": known.workers, "runs": many, "seconds": many * seconds, "gpu_hours": hours, "low": low}
        # narrower: share of the width, as logarithms, that is expected to go; the forecast is no more exact than 1 %.
        if narrower >= 0.01:
            choices.append({**choice, "high": high, "narrower": narrower, "per_gpu_hour": narrower / hours})
    choices.sort(key=lambda each: (-each["per_gpu_hour"], each["workers"], each["runs"]))
    forecast = {part: getattr(now, part) for part in ("samples_per_s", "low", "high", "doubts")}
    return NextStep(target=target, **forecast, choices=choices)


def _expected(
    rows: pd.DataFrame, target: int, known: Prediction, many: int, noise: float, per_node: int | None
) -> tuple[float, float]:
    """Return how far the interval at the target is expected to reach down and up after `many` runs."""
    down = up = 0.0
    template = rows.iloc[[int(np.argmin(np.abs(rows["workers"].to_numpy() - known.workers)))] * many]
    new = {"workers": known.workers, "nodes": math.nan if known.nodes is None else known.nodes, "sync_s": math.nan}
    template = template.assign(**{name: value for name, value in new.items() if name in rows})
    # As far apart as runs are, about the value: their mean is what is tried, their scatter is that of the others.
    apart = noise * (np.linspace(-1, 1, many) if many > 1 else np.zeros(1))
    for place, weight in _NODES:
        side = math.log(known.high / known.samples_per_s if place > 0 else known.samples_per_s / known.low)
        centre = known.samples_per_s * math.exp(place * side / stats.Z95)
        tried = pd.concat([rows, template.assign(samples_per_s=centre * np.exp(apart))], ignore_index=True)
        ((then,),) = predict(tried, workers=[target], workers_per_node=per_node).values()
        down += weight * math.log(then.samples_per_s / then.low)
        up += weight * math.log(then.high / then.samples_per_s)
    return down, up


def next_lines(series: str, step: NextStep, *, most: int = 6) -> list[str]:
    """Return what to measure next as a person reads it."""
    now = f"{step.samples_per_s:,.4g} samples/s [{step.low:,.4g}, {step.high:,.4g}]"
    text = [f"{series or 'all points'}: at {step.target:,} workers {now}"]
    if not step.choices:
        text.append("  no further run of these worker counts is expected to narrow that")
    for each in step.choices[:most]:
        cost = f"{plural(each['runs'], 'run')}, {each['seconds']:.0f} s, {each['gpu_hours']:.3g} GPU hours"
        then = f"[{each['low']:,.4g}, {each['high']:,.4g}] expected, {100 * each['narrower']:.0f} % narrower"
        text.append(f"  {each['workers']:,} workers, {cost}: {then}")
    return text


# ----------------------------------------------------------------------------------------------- what a study forecasts

_MULTIPLES = (2, 4, 8)  # times the largest measured worker count
MEASURED, FORECAST, CURVE = "measured", "forecast", "curve"  # kinds of rows; the last one only draws the line
FEWEST_COUNTS = 3  # of a forecast or a law of a study: through two points every law passes, and none is tested

FORECAST_COLUMNS = (
    *("series", "setting", "kind", "workers", "nodes", "samples_per_s", "low", "high"),
    *("samples_per_s_min", "samples_per_s_max", "ideal_samples_per_s", "efficiency", "law", "doubts"),
)
"""`low`, `high`: 95 % interval of a forecast; `_min`, `_max`: repeats of a measured count; `efficiency`: of ideal."""


Outlook: TypeAlias = SimpleNamespace
"""table (FORECAST_COLUMNS), and document: scores and recommendations, {"series": ..., "summary": ...}."""


def no_outlook() -> Outlook:
    """An outlook without series."""
    return Outlook(table=pd.DataFrame(columns=list(FORECAST_COLUMNS)), document={"series": {}, "summary": {}})


def outlook(
    rows: pd.DataFrame,
    *,
    settings: Mapping[str, str],
    bases: Mapping[str, float],
    fits: Mapping[str, SeriesFit],
    room: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Outlook:
    """Return the outlook of runs: columns series, workers, nodes, samples_per_s; optional sync_s, batch_size.

    In the order of `settings`, which names the setting of each series; `bases` gives throughputs of one worker that
    ideal scaling multiplies (default: per worker at the smallest measured count), `fits` the laws that were fitted,
    `room` the most workers that the one machine of a series has cores for: beyond it no_outlook is forecast. A document
    says as `no_forecast` why a series has none.
    """
    rows_of_study: list[dict[str, Any]] = []
    scores: dict[str, Scores] = {}
    documents: dict[str, Any] = {}
    for name, setting in settings.items():
        own = rows[rows["series"] == name].sort_values(["workers", "samples_per_s"], kind="stable")
        if own.empty:
            continue
        law = (name in fits and fits[name].selected) or ""
        scores[name] = score(own, laws=(law,) if law in LAWS else ())[name]
        document = {**finite(scores[name]), "rolling": None, "recommendation": None, "no_forecast": ""}
        if not scores[name].why_not:
            fewer = len(scores[name].hidden) - 1
            nearer = score(own, hide=fewer, rolling=True, laws=()) if fewer else {}
            document["rolling"] = over_all([scores[name], *nearer.values()], COMBINED)
        counts, most = own["workers"].nunique(), (room or {}).get(name)
        if counts < FEWEST_COUNTS:
            document["no_forecast"] = f"{counts} worker count{'s' * (counts > 1)}, and a law is tested by three or more"
        elif odd := [why for why in impossibilities(own, base_of(own).samples_per_s) if "is a part of" not in why]:
            document["no_forecast"] = odd[0]
        else:
            per_node = planned_per_node(own)
            found = recommend(own, workers_per_node=per_node, fits=fits, draws=400, seed=seed)
            document["recommendation"] = finite(found[name])
            if most is None or most >= _MULTIPLES[0] * own["workers"].max():
                own_lines = _study_rows(own, name, bases.get(name), per_node, most)
                rows_of_study += [{"series": name, "setting": setting, **line} for line in own_lines]
            else:
                document["no_forecast"] = (
                    f"its machine has {most} cores, which further workers would share: a forecast takes more nodes"
                )
        documents[name] = document
    if not documents:
        return no_outlook()
    table = pd.DataFrame(rows_of_study, columns=list(FORECAST_COLUMNS))
    texts = ("series", "setting", "kind", "law", "doubts")
    numbers = {column: "float64" for column in FORECAST_COLUMNS if column not in texts}
    table = table.assign(doubts=table["doubts"].astype(object).fillna("")).astype({**numbers, "workers": "int64"})
    return Outlook(table=table, document={"series": documents, "summary": summarise(scores)})


def _study_rows(
    own: pd.DataFrame, name: str, base: float | None, per_node: int | None, most: int | None
) -> list[dict[str, Any]]:
    largest = int(own["workers"].max())
    base = base_of(own).samples_per_s if base is None else base
    told = {largest * multiple for multiple in _MULTIPLES}
    if per_node is not None:
        told |= {per_node * 2**i for i in range(40) if largest < per_node * 2**i < largest * _MULTIPLES[-1]}
    told = {count for count in told if most is None or count <= most}
    between = set(knots(largest, max(told), (), per_node)) - told
    rows_of_study: list[dict[str, Any]] = []
    for count, runs in own.groupby("workers", sort=True):
        x, nodes = runs["samples_per_s"].to_numpy(dtype=np.float64), runs["nodes"].to_numpy(dtype=np.float64)
        ends = {"samples_per_s_min": float(x.min()), "samples_per_s_max": float(x.max())}
        head = {"kind": MEASURED, "workers": count, "nodes": nodes[0], "law": MEASURED}
        rows_of_study.append({**head, "samples_per_s": float(np.median(x)), **ends})
    for one in predict(own, workers=sorted(told | between), workers_per_node=per_node)[name]:
        line = {each: getattr(one, each) for each in ("workers", "samples_per_s", "low", "high", "law")}
        line |= {"kind": FORECAST if one.workers in told else CURVE, "doubts": "; ".join(one.doubts)}
        rows_of_study.append({**line, "nodes": math.nan if one.nodes is None else one.nodes})
    for line in rows_of_study:
        line["ideal_samples_per_s"] = base * line["workers"]
        line["efficiency"] = line["samples_per_s"] / line["ideal_samples_per_s"]
    return rows_of_study
