"""How well the parameters of a solved law are known, from repeats, residuals and profiles, and what speaks against it.

`fit` says which way is gone when. Letters: R rows, K distinct places, k parameters, B replicates, C contrasts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.fit.least_squares import (
    EXACT,
    TOGETHER,
    LawForm,
    Solved,
    distinct_places,
    influence_of,
    refit,
)
from horovod_study.analysis.fit.rows import Sample, over_variance_of_mean
from horovod_study.analysis.series.culprits import impossible
from horovod_study.analysis.stats import Floats
from horovod_study.text.words import listed

NOT_IDENTIFIABLE = "not identifiable"
_GRACE, _MOST_NOISE = 0.03, 0.25  # least and largest share of a speedup that two points differ by for nothing
_DRIFTS = 0.5  # probability of independent runs, below which drift is said to be seen
_CLEARLY = 2.0  # in log likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What independent deviations do to the parameters, each of a source with its own degrees of freedom.

    It is kept as moves and not as their covariance, which squares: of costs that run away together nothing would be
    left of their sum but rounding.
    """

    moves: Floats  # (k, deviations), by one standard deviation each; inf where nothing is known
    source: NDArray[np.intp]  # (deviations,)
    freedom: Floats  # (sources,)

    def reach(self, contrasts: Floats) -> tuple[Floats, Floats]:
        """Half width of the 95 % interval of linear contrasts (C, k) of the parameters, and its t/z; shapes (C,)."""
        nothing = np.full(len(contrasts), np.inf)
        if not np.isfinite(self.moves).all():
            return nothing, np.ones(len(contrasts))
        with np.errstate(over="ignore", invalid="ignore"):
            parts = (contrasts @ self.moves) ** 2 @ (self.source[:, np.newaxis] == np.arange(len(self.freedom)))
            variance = parts.sum(axis=1)
        known = np.isfinite(variance)
        # Satterthwaite: the sum of variances that are each known with their own degrees of freedom.
        share = np.divide(
            parts, variance[:, np.newaxis], out=np.zeros_like(parts), where=known[:, np.newaxis] & (parts > 0)
        )
        blur = np.sum(share**2 / self.freedom, axis=1)
        degrees = np.divide(1.0, blur, out=np.full(len(contrasts), np.inf), where=blur > 0)
        t = stats.t_quantile(0.975, np.maximum(degrees, 1.0))
        return np.where(known, t * np.sqrt(np.where(known, variance, 0.0)), nothing), t / stats.Z95


def reach_of(solved: Solved, jacobian: Floats) -> tuple["Noise", str, Floats, Floats]:
    """Noise of the parameters, how it was found, half of their linear 95 % intervals (k,), and t/z (k,)."""
    if solved.draws is None:
        noise, method = _from_residuals(solved, jacobian)
    else:
        # from the spread of the runs at each place, one source each
        sample, influence = solved.sample, influence_of(jacobian, solved.sample.rows)
        variance, freedom = sample.own * sample.run_variance, sample.rows - 1.0
        if sample.base is not None:
            influence[:, sample.base] -= influence @ sample.medians / sample.where[0, sample.base]
        moves, source = influence * np.sqrt(variance), np.arange(len(variance))
        if sample.shared is not None:
            # How much it is, is known from as many repeats for all of it together.
            shared = influence @ (sample.medians[:, np.newaxis] * sample.shared)
            moves, source = np.hstack([moves, shared]), np.append(source, np.full(shared.shape[1], len(freedom)))
            freedom = np.append(freedom, sample.repeats - 1.0)
        noise = Noise(moves=moves, source=source, freedom=freedom)
        method = "bootstrap over runs within each worker count, stretched by Student t for few repeats"
        if sample.own < _DRIFTS:
            method += ", and widened by what runs that follow each other share"
    reach, stretch = noise.reach(np.eye(len(solved.values)))
    # Where a parameter has no effect at all the points say nothing about it.
    return noise, method, np.where(np.any(jacobian != 0, axis=0), reach, np.inf), stretch


def _from_residuals(solved: Solved, jacobian: Floats) -> tuple[Noise, str]:
    """Noise of the parameters from the residuals of the fit, and how it was found.

    The misfit of a wrong law is no noise of the baseline: `base_noise` is an upper limit for the latter.
    """
    k, sample = len(solved.values), solved.sample
    spread = _residual_spread(solved)
    if spread is None:
        nothing = Noise(moves=np.full((k, 1), np.inf), source=np.zeros(1, dtype=np.intp), freedom=np.ones(1))
        return nothing, "none: no point is left over to see the noise in"
    model, sizes, of_base, freedom = spread
    at_base = _baseline_rows(sample)
    moves = influence_of(jacobian[sample.place], np.ones(len(sample.place)))
    if at_base.any():
        # A baseline run moves its own point and, the other way, all points.
        moves = moves - np.outer(moves @ sample.speedup, at_base / (at_base.sum() * sample.speedup[at_base].mean()))
    of_median = np.sqrt([over_variance_of_mean(number) for number in sample.rows])[sample.place]
    size = np.where(at_base, np.minimum(of_base, solved.base_noise), sizes) * of_median
    told = f"Student t from the residuals, noise {model} (too few repeats for a bootstrap over runs)"
    return Noise(moves=moves * size, source=at_base.astype(np.intp), freedom=np.full(2, float(freedom))), told


def _residual_spread(solved: Solved) -> tuple[str, Floats, Floats, int] | None:
    """Noise of the rows: proportional to the speedup, unless constant noise is clearly likelier; None without a rest.

    What it is in words, standard deviations of the speedups (R,), the same as they count for the baseline, and degrees
    of freedom.
    Residuals are taken orthogonal to what the parameters and the common scale of all points can do,
    which leaves sigma^2 with as many degrees of freedom as directions remain (restricted likelihood).
    """
    sample, s = solved.sample, solved.sample.speedup
    curve = solved.law.at(sample.where, solved.values)[sample.place]
    slopes = solved.law.gradient(sample.where, solved.values)[sample.place]
    if sample.base is not None:
        slopes = np.column_stack([slopes, curve])
    size = np.linalg.norm(slopes, axis=0)
    slopes = slopes / np.where(size > 0, size, 1.0)
    fits = []
    for model, unit in (("proportional to the speedup", np.maximum(curve, 1e-3 * s)), ("constant", np.ones_like(s))):
        basis, strength, _ = np.linalg.svd(slopes / unit[:, np.newaxis], full_matrices=False)
        rank = int(np.sum(strength > 1e-7 * strength[0]))
        freedom = len(s) - rank
        if freedom == 0:
            return None
        rest = (s - curve) / unit
        rest = rest - basis[:, :rank] @ (basis[:, :rank].T @ rest)
        variance = float(rest @ rest) / freedom
        floor = (EXACT * float(s.max())) ** 2
        likelihood = -0.5 * freedom * math.log(max(variance, floor)) - float(
            np.sum(np.log(unit)) + np.sum(np.log(strength[:rank]))
        )
        fits.append((likelihood, model, unit * math.sqrt(variance), freedom))
    (proportional, model, relative, freedom), (constant, other, absolute, of_constant) = fits
    if constant > proportional + _CLEARLY:
        return other, absolute, absolute, of_constant
    if proportional > constant + _CLEARLY:
        return model, relative, relative, freedom
    # Undecided, both count. A baseline run is another matter: as noisy as the largest point it would swamp all others.
    return f"{model} or {other}", np.maximum(relative, absolute), relative, freedom


def _baseline_rows(sample: Sample) -> NDArray[np.bool_]:
    return np.asarray(sample.place == (-1 if sample.base is None else sample.base))


def baseline_noise(solved: Sequence[Solved]) -> float:
    """Noise of one baseline run in units of speedup, as the law with the best AICc leaves it; inf when none says."""
    best = min((each for each in solved if each.aicc is not None), key=lambda each: each.aicc or 0.0, default=None)
    if best is None or best.sample.base is None:
        return math.inf
    spread = _residual_spread(best)
    return math.inf if spread is None else float(spread[2][_baseline_rows(best.sample)].max())


def intervals_of(
    solved: Solved, ends: tuple[Floats, Floats] | None = None
) -> tuple[Noise, str, dict[str, tuple[float, float]], tuple[Floats, Floats]]:
    """Noise of the parameters, how it was found, their 95 % intervals by name, and the ends (k,), (k,) of these before
    the bounds of the law cut them; `ends` are those of a profiled law where they have been found before.
    """
    law, values, draws = solved.law, solved.values, solved.draws
    noise, method, reach, stretch = reach_of(solved, law.gradient(solved.sample.where, values))
    low, high = values - reach, values + reach
    if law.needs_profile:
        low, high = profiles([solved])[0] if ends is None else ends
        method = f"profile of least squares, its width by {'the spread of the runs' if draws is not None else method}"
    elif draws is not None:
        linear, (low, high) = (low, high), stretched(values, draws, stretch)
        # Percentiles do not hold where a parameter meets its bound (Andrews 2000), neither its own nor those of others
        # that make up for it: there the linear theory has a say, too.
        bounds = np.array(law.ranges)
        if np.mean(np.any((draws <= bounds[:, 0]) | (draws >= bounds[:, 1]), axis=1)) > 0.025:
            low, high = np.minimum(low, linear[0]), np.maximum(high, linear[1])
    ci95 = {
        name: (max(float(low[i]), least), min(float(high[i]), most))
        for i, (name, (least, most)) in enumerate(law.bounds.items())
    }
    return noise, method, ci95, (low, high)


def stretched(values: Floats, drawn: Floats, stretch: Floats) -> tuple[Floats, Floats]:
    """Percentile interval of replicates (B, C) around `values` (C,), widened by `stretch` (C,)."""
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return (
        np.minimum(values, values + (low - values) * stretch),
        np.maximum(values, values + (high - values) * stretch),
    )


def profiles(asked: Sequence[Solved]) -> list[tuple[Floats, Floats]]:
    """Ends (k,), (k,) of the intervals of each solved law; alike ones together."""
    found = [(np.empty(0), np.empty(0))] * len(asked)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for i, solved in enumerate(asked):
        alike.setdefault((id(solved.law), *solved.sample.where[0]), []).append(i)
    for members in alike.values():
        for begin in range(0, len(members), TOGETHER):
            some = members[begin : begin + TOGETHER]
            for i, ends in zip(some, _profiled([asked[i] for i in some]), strict=True):
                found[i] = ends
    return found


def _profiled(alike: Sequence[Solved]) -> list[tuple[Floats, Floats]]:
    """Ends of the intervals by the profile of least squares (Venzon and Moolgavkar 1988), of one law and its places.

    A parameter is moved away from its estimate, all others are fitted again, and the interval ends where the sum of
    squares has risen by what half of the linear interval costs in the linear theory. For a law that is nearly linear
    that is the linear interval; where parameters make up for each other it follows the valley.
    """
    law, where = alike[0].law, alike[0].sample.where
    k = len(law.ranges)
    columns = [_profile_columns(each) for each in alike]
    own, rise, first, along, values, medians, rows = (np.concatenate(each) for each in zip(*columns, strict=True))
    which, sign = np.tile(np.arange(k), 2 * len(alike)), np.tile(np.repeat([-1.0, 1.0], k), len(alike))
    lower, upper = (np.array(side) for side in zip(*law.ranges, strict=True))
    edge = np.where(sign < 0, lower[which], upper[which])
    least = np.sum(rows * (medians - law.at(where, values)) ** 2, axis=1)

    inner, below = own.copy(), -np.sqrt(rise)  # inside of the end, and how far the root of the rise is from its goal
    outer, above = np.clip(own + sign * first, lower[which], upper[which]), np.full(len(own), np.nan)
    # Guesses of the others: as they were at the inner point, there plus their own slopes, and at the outer point.
    at_inner, at_outer = values.copy(), values.copy()
    ends, last = np.where((own == edge) & np.isfinite(rise), edge, np.nan), np.zeros(len(own))
    ends = np.where(np.isfinite(rise), ends, sign * np.inf)
    for _ in range(60):
        todo = np.isnan(ends)
        if not todo.any():
            break
        # Outwards until the goal is passed, then the secant, slowed down where one side stays (Illinois).
        with np.errstate(invalid="ignore"):
            tried = np.where(np.isnan(above), outer, inner + (outer - inner) * below / (below - above))
        held = np.arange(k) == which[:, np.newaxis]
        bounds = (np.where(held, tried[:, np.newaxis], lower), np.where(held, tried[:, np.newaxis], upper))
        guesses = [at_inner, at_inner + along * (tried - inner)[:, np.newaxis], at_outer]
        starts = np.concatenate([np.clip(each, *bounds)[todo] for each in guesses])
        weight, targets = np.tile(rows[todo], (3, 1)), np.tile(medians[todo], (3, 1))
        held_at = (np.tile(bounds[0][todo], (3, 1)), np.tile(bounds[1][todo], (3, 1)))
        found = refit(law, where, weight, targets, starts, bounds=held_at, tolerance=1e-5)
        error = np.sum(weight * (targets - law.at(where, found)) ** 2, axis=1).reshape(3, -1)
        best, column = np.argmin(error, axis=0), np.arange(error.shape[1])
        solved, off = np.full(values.shape, np.nan), np.full(len(own), np.nan)
        solved[todo] = found.reshape(3, -1, k)[best, column]
        off[todo] = np.sqrt(np.maximum(error[best, column] - least[todo], 0.0)) - np.sqrt(rise[todo])
        passed, short = todo & (off >= 0), todo & (off < 0)
        searching = np.isnan(above)
        ends = np.where(short & searching & (tried == edge), edge, ends)
        ends = np.where(short & searching & (np.abs(tried - own) > 1e6 * first), sign * np.inf, ends)
        close = (np.abs(off) < 0.01 * np.sqrt(rise)) | (np.abs(outer - inner) < 1e-6 * np.abs(outer - own))
        ends = np.where(todo & ~searching & close, tried, ends)
        below = np.where(passed & (last > 0), below / 2, np.where(short, off, below))
        above = np.where(short & (last < 0), above / 2, np.where(passed, off, above))
        outer = np.where(passed, tried, np.where(short & searching, own + 2 * (tried - own), outer))
        outer = np.clip(outer, lower[which], upper[which])
        inner = np.where(short, tried, inner)
        at_inner = np.where(short[:, np.newaxis], solved, at_inner)
        at_outer = np.where(passed[:, np.newaxis], solved, at_outer)
        last = np.where(searching, 0.0, np.where(passed, 1.0, -1.0))
    ends = np.where(np.isnan(ends), outer, ends).reshape(-1, 2, k)
    return [(low, high) for low, high in ends]


def as_likely(solved: Solved, ends: tuple[Floats, Floats]) -> Floats | None:
    """Parameter vectors (B, k) at the edge of those that the points allow together with 95 %; None where all are.

    These have a sum of squares up to that of the estimate and _JOINTLY times what the `ends` of the profile, of one
    parameter each, cost. In a bent valley the linear theory goes straight on, where no point allows it; a function of
    the parameters, such as the curve at some worker count, is between its least and its largest value here. Chains go
    through the valley by hit and run (Smith 1984): a random direction, or that from one chain to another, is followed
    to both edges, which are kept, and the chain goes on somewhere between them.
    """
    law, sample, values = solved.law, solved.sample, solved.values
    rise, where = _profile_columns(solved)[1], sample.where
    lower, upper = (np.array(side) for side in zip(*law.ranges, strict=True))
    least = np.sum(sample.rows * (sample.medians - law.at(where, values)) ** 2)
    scale = (ends[1] - ends[0]) / 2
    if not (np.isfinite(rise).all() and np.isfinite(scale).all()):
        return None
    # A valley that has an end has it nearer than this.
    lower, upper = np.maximum(lower, values - 50 * scale), np.minimum(upper, values + 50 * scale)
    generator = np.random.default_rng(0)
    chains, edges = np.tile(values, (_CHAINS, 1)), [values[np.newaxis]]
    for turn in range(_TURNS):
        way = generator.normal(size=chains.shape) * scale
        if turn % 2 and turn > 10:
            way = chains[generator.permutation(_CHAINS)] - chains + 1e-3 * way
        found = []
        for sign in (-1.0, 1.0):
            with np.errstate(divide="ignore", invalid="ignore"):
                room = np.where(sign * way > 0, (upper - chains) / way, (lower - chains) / way)
            room = np.min(sign * np.where(way == 0, np.inf * sign, room), axis=1)
            # points that a law meets exactly leave no room in which directions have a length
            near, far = np.zeros(_CHAINS), np.minimum(np.nan_to_num(room), 1e12)
            for halving in range(_HALVINGS):
                tried = far if halving == 0 else (near + far) / 2  # the bound itself may be inside
                at = np.clip(chains + sign * tried[:, np.newaxis] * way, lower, upper)
                cost = np.sum(sample.rows * (sample.medians - law.at(where, at)) ** 2, axis=1)
                inside = cost <= least + _JOINTLY * rise.max()
                near, far = np.where(inside, tried, near), np.where(inside, far, tried)
            found.append(np.clip(chains + sign * near[:, np.newaxis] * way, lower, upper))
        edges += found
        chains = found[0] + generator.uniform(size=(_CHAINS, 1)) * (found[1] - found[0])
    return np.concatenate(edges)


_JOINTLY = 6.0
"""Twice 4 F(4, 6) / F(1, 6) at 95 % (Scheffe 1953): noise grows with the throughput, which these sums do not know."""
_CHAINS, _TURNS, _HALVINGS = 48, 60, 14


def _profile_columns(solved: Solved) -> tuple[Floats, ...]:
    """Both ends of all k parameters as 2k columns: estimates, goal of the rise, first reach, slopes of the others
    (2k, k), all values (2k, k), medians and rows (2k, K)."""
    sample, values, k = solved.sample, solved.values, len(solved.values)
    jacobian = solved.law.gradient(sample.where, values)
    reach = reach_of(solved, jacobian)[2]
    influence = influence_of(jacobian, sample.rows)
    with np.errstate(all="ignore"):  # where a parameter hardly moves the curve, its influence overflows
        spread = influence / sample.rows @ influence.T
        rise = reach**2 / np.diag(spread)
        along = spread / np.diag(spread)[:, np.newaxis]
    # Without an effect at the estimate a parameter may have one elsewhere.
    known = rise[np.isfinite(rise)]
    rise = np.where(np.isfinite(rise), rise, known.max() if len(known) else np.inf)
    first = np.where(np.isfinite(reach) & (reach > 0), reach, np.maximum(np.abs(values), 0.1))
    along = np.where(np.isfinite(along), along, 0.0)
    whole = (np.tile(each, (2 * k, 1)) for each in (values, sample.medians, sample.rows))
    return np.tile(values, 2), np.tile(rise, 2), np.tile(first, 2), np.tile(along, (2, 1)), *whole


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
