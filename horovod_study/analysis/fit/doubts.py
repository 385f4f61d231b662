"""What speaks against a fitted law: parameters that points do not determine, peaks and limits that they refute."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from horovod_study.analysis.fit.form import LawForm
from horovod_study.analysis.fit.least_squares import Solved, distinct_places
from horovod_study.analysis.fit.rows import Sample
from horovod_study.analysis.series.culprits import impossible
from horovod_study.analysis.stats import Floats
from horovod_study.text.words import listed

NOT_IDENTIFIABLE = "not identifiable"
_GRACE, _MOST_NOISE = 0.03, 0.25  # least and largest share of a speedup that two points differ by for nothing


def spread_of_medians(sample: Sample) -> float:
    """Return the relative standard deviation of the median at a place, over all with repeats; 0 where none has."""
    known = np.isfinite(sample.run_variance)
    return float(np.sqrt(np.mean(sample.run_variance[known] / sample.medians[known] ** 2))) if known.any() else 0.0


def slack_of(noise: float) -> float:
    """Return the share of a speedup by which two medians of this relative standard deviation differ for nothing."""
    return min(max(2 * noise, _GRACE), _MOST_NOISE)


def peak_and_limit(law: LawForm, params: Mapping[str, float], sample: Sample) -> tuple[float, float, list[str]]:
    """Return the peak and the limit of a law, NaN where a run refutes them, and why."""
    peak, limit = float(law.peak_of(**params)), float(law.limit_of(**params))
    highest = float(sample.speedup.max())
    limit = highest if limit < highest < limit * (1 + 1e-6) else limit  # below it by rounding
    no_limit = impossible("limit", law=law.name, limit=limit, measured=highest)
    slack = slack_of(spread_of_medians(sample))
    told = [
        impossible("peak", law=law.name, peak=peak, limit=limit, workers=float(n), measured=float(median))
        for n, median in zip(sample.where[0], sample.medians, strict=True)
        if limit * (1 + slack) < median
    ]
    no_peak = next(filter(None, reversed(told)), "")
    if no_limit and limit * (1 + slack) >= sample.medians.max():
        no_limit += ", by less than noise"
    refuted = [no_peak or no_limit] if no_peak or no_limit else []
    return math.nan if no_peak else peak, math.nan if no_limit else limit, refuted


def parameter_doubts(solved: Solved, ci95: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Yield why the points do not determine the parameters, whose 95 % intervals are `ci95`."""
    law, where, values = solved.law, solved.sample.where, solved.values
    distinct = distinct_places(law, where)
    if distinct <= len(values) + 1:
        what = "places" if law.by_nodes else "worker counts"
        yield (
            f"{NOT_IDENTIFIABLE}: {distinct} distinct {what} for {len(values)} parameter{'s' * (len(values) > 1)} "
            f"({listed(law.parameters)}); measure at least {len(values) + 2}"
        )
    if not law.by_nodes and law.across() is not None and np.any(where[1] > 1):
        yield "one pair of constants for links inside and across nodes: too few places for two"
    blind = [name for name in law.parameters if not math.isfinite(ci95[name][1] - ci95[name][0])]
    if len(blind) == len(values):
        yield "nothing is known about its uncertainty: no point is left over to see the noise in"
        return
    for i, (name, (lowest, highest)) in enumerate(law.bounds.items()):
        low, high = ci95[name]
        if name in blind:
            yield f"{NOT_IDENTIFIABLE}: {name} has no effect at these worker counts"
        elif values[i] in (lowest, highest) and high > low:
            bound, end = f"{name} is at its bound {values[i]:g}", high if values[i] == lowest else low
            yield f"{NOT_IDENTIFIABLE}: {bound}; the other end of its interval is {end:.3g}"
        elif _spans(law, where, values, i, low, high):
            yield f"{NOT_IDENTIFIABLE}: the interval of {name} ({low:.3g} to {high:.3g}) spans its range"
        elif math.isfinite(lowest) and low <= lowest and high > low:
            yield f"{name} cannot be distinguished from {lowest:g} (interval {low:.3g} to {high:.3g})"


def _spans(law: LawForm, where: Floats, values: Floats, i: int, low: float, high: float) -> bool:
    """Whether the interval of parameter `i` holds nearly all that it could be.

    That is its range; for a cost without an upper bound, all between nothing and as much as the work itself.
    """
    name, (lowest, highest) = law.parameters[i], law.ranges[i]
    if name == law.hiding:
        # 1/g, between all after each other and all at once, is what an exponent is about.
        return 1 / low - 1 / high >= 0.9 * (1 / lowest - 1 / highest)
    if math.isfinite(highest - lowest):
        return high - low >= 0.9 * (highest - lowest)
    if name not in law.costs:
        return False
    if name in law.range_at:
        return high - low >= 0.9 * law.range_at[name](float(where[0, -1]))
    if low > lowest:
        return False
    # A cost that hides would look like none: what counts is how much it could be.
    fixed = {**dict.fromkeys(law.costs, 0.0), law.hiding: 1.0}
    nothing = np.array([fixed.get(other, value) for other, value in zip(law.parameters, values, strict=True)])
    only = np.where(np.arange(len(values)) == i, high, nothing)
    without, alone = law.at(where, nothing), law.at(where, only)
    if law.linear:
        return bool(np.max(alone - without) >= 0.9 * np.max(law.at(where, values)))
    return bool(np.any(without >= 1.9 * alone))
