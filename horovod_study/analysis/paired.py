"""Ratios of cells that alternate in slices: the estimate within rounds, its interval, and when enough was measured.

A kit like `stats`: it imports nothing of this package but that and the errors, and both wings use it.

In each round every cell of a block trains for one slice; a launch is the rounds of the same processes. What is compared
is the logarithm of the ratio of two rates within a round: drift and load that both cells feel drop out of it. Two
components of variance are left: rounds scatter about the level of their launch, with a memory that reaches over
neighbours, and launches have levels of their own (memory layout, ports). docs/metrics.md has the formulas.

Letters: S slices, L launches, n rounds of a launch. Rates in samples/s, loads in cores, all ratios as logarithms where
nothing else is said. NaN is what is not known.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.errors import AnalysisError

OTHER_LOAD = 0.1
"""Cores that other programs may use in a slice; above it the slice and what it would be compared with are set aside."""
QUIET_SHARE = 0.25
"""Share of the rounds that must be quiet; below it all count, and the answer is one about a shared machine."""
MIN_ROUNDS = 16
"""Rounds of a launch before anything is decided on it: fewer say nothing of the memory between neighbours. Those that
are set aside count, and slices that were made again: a launch on a busy machine would have no end, and it is several of
them that narrow an interval."""
LOOKS = 1.25  # a launch is judged when its rounds have grown by this factor, so that few looks are made
LAUNCHES = 3  # launches before an answer: with two of them, the scatter between them has one degree of freedom
MOST_LAUNCHES = 10
_PLANNED = 5
"""Launches for which the length of one is chosen: the scatter of fewer makes intervals much wider than rounds do."""
_STALL = 6.0
"""Robust standard deviations from the median of a launch to which a wilder round is moved: a stall, not noise."""
_NO_SCATTER = 1e-14


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """One slice: a row of turns.csv (records.TurnSlice) under the name of its cell."""

    launch: str  # block and launch, whatever names them
    round: int
    cell: str
    rate: float  # samples/s
    other_load: float = math.nan  # cores used by other programs; NaN where that is not known


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """The rounds in which both cells trained, launch by launch, in order of rounds."""

    cell: Sequence[Floats]  # L arrays (n,) of log rates, or of values whose difference is looked at
    base: Sequence[Floats]
    set_aside: int = 0  # rounds left out because of other programs, and slices that were made again
    unknown_load: int = 0  # rounds of which no load is known; they count as quiet
    shared: bool = False  # too few quiet rounds: all of them are here
    made: Sequence[NDArray[np.int_]] = ()  # L arrays (n,): how many the launch had made with each, what is left out too

    @property
    def differences(self) -> list[Floats]:
        """Log ratios, or differences of values, launch by launch."""
        return [one - other for one, other in zip(self.cell, self.base, strict=True)]


def quiet_rounds(loads: ArrayLike, other_load: float = OTHER_LOAD) -> tuple[NDArray[np.bool_], bool]:
    """Return which rounds count, by the larger load (n,) of their two slices, and whether the machine is shared.

    A round counts where other programs used at most `other_load` cores, or it is not known how many. Where less than
    QUIET_SHARE of the rounds are quiet all of them count: the answer is then one about a shared machine.
    """
    quiet = ~(np.asarray(loads, dtype=float) > other_load)
    shared = bool(quiet.size) and float(quiet.mean()) < QUIET_SHARE
    return np.ones_like(quiet) if shared else quiet, shared


def pairs(
    slices: Iterable[Slice], cell: str, base: str, *, other_load: float = OTHER_LOAD, ratio: bool = True
) -> Pairs:
    """Return the rounds of `cell` and `base`; those in which either had more `other_load` are set aside.

    Of a slice that was made again the last one counts.
    `ratio`: of rates, so that their logarithms are taken; else differences are looked at, of whatever `rate` is.
    The rule looks at loads alone, never at a rate. Where fewer than QUIET_SHARE of the rounds are quiet it is not
    applied, and `shared` says so.
    """
    table: dict[tuple[str, int], dict[str, Slice]] = {}
    tries: Counter[tuple[str, int]] = Counter()
    for each in slices:
        if each.cell in (cell, base):
            key = (each.launch, each.round)
            tries[key] += each.cell in table.setdefault(key, {})
            table[key][each.cell] = each
    both = {key: (each[cell], each[base]) for key, each in sorted(table.items()) if len(each) == 2}
    loads = {key: max(one.other_load, other.other_load) for key, (one, other) in both.items()}
    quiet, shared = quiet_rounds([*loads.values()], other_load)
    loud = set() if shared else {key for key, each in zip(loads, quiet, strict=True) if not each}
    kept: dict[str, list[tuple[float, float]]] = {}
    made: dict[str, list[int]] = {}
    so_far: Counter[str] = Counter()
    for key, (one, other) in both.items():
        launch, numbers = kept.setdefault(key[0], []), made.setdefault(key[0], [])  # there also without a quiet round
        so_far[key[0]] += 1 + tries[key]
        if key not in loud:
            both_rates = (one.rate, other.rate)
            launch.append((math.log(one.rate), math.log(other.rate)) if ratio else both_rates)
            numbers.append(so_far[key[0]])
    columns = [np.array(each, dtype=float).reshape(-1, 2).T for each in kept.values()]
    return Pairs(
        cell=[each[0] for each in columns],
        base=[each[1] for each in columns],
        set_aside=len(loud) + sum(tries[key] for key in both),
        unknown_load=sum(math.isnan(load) for load in loads.values()),
        shared=shared,
        made=[np.array(each, dtype=int) for each in made.values()],
    )


def memory(launches: Sequence[Floats]) -> SimpleNamespace:
    """Return the long-run variance of values (n,) of each of L launches, pooled, its degrees of freedom, and `rounds`:
    the autocorrelation time. The variance of a mean of n rounds is `variance` over n.

    Sum of autocovariances up to the first pair of lags whose sum is not positive, pairs never growing: the initial
    monotone sequence of C. Geyer (Practical Markov chain Monte Carlo, Stat. Sci. 7, 1992, 473-483, section 3.3). It is
    divided by 1 - (2k + 1)/n, k the last lag, because deviations from a mean of n rounds lose that share. Degrees of
    freedom 2N / (2k + 1) - L, as for a truncated window (M. Priestley, Spectral Analysis and Time Series, 1981,
    section 6.2.3). A variance below a quarter of that of independent rounds is not believed.
    """
    total, longest = sum(map(len, launches)), max(map(len, launches))
    mean_length = total / len(launches)
    lags = max(1, int(mean_length // 2))
    size = 1 << (2 * longest - 1).bit_length()
    covariance = np.zeros(lags)
    for values in launches:
        spectrum = np.fft.rfft(values - values.mean(), size)
        found = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[:lags]
        covariance += found / total
    if covariance[0] < _NO_SCATTER**2:
        return SimpleNamespace(variance=0.0, freedom=max(total - len(launches), 1.0), rounds=1.0)
    count = lags // 2
    both = covariance[: 2 * count : 2] + covariance[1 : 2 * count : 2]
    negative = np.flatnonzero(both <= 0)
    used = max(1, int(negative[0]) if len(negative) else count)
    last = 2 * used - 1 if count else 0
    summed = 2 * float(np.minimum.accumulate(both[:used]).sum()) - covariance[0] if count else covariance[0]
    variance = max(summed, 0.25 * covariance[0]) / max(1 - (2 * last + 1) / mean_length, 0.2)
    freedom = max(2 * total / (2 * last + 1) - len(launches), 1.0)
    return SimpleNamespace(variance=variance, freedom=freedom, rounds=max(1.0, float(variance / covariance[0])))


def without_stalls(launches: Sequence[Floats]) -> tuple[list[Floats], int]:
    """Return values with those beyond _STALL robust deviations of their launch's median moved there, and how many."""
    found, moved = [], 0
    for values in launches:
        if not len(values):
            found.append(values)
            continue
        middle = float(np.median(values))
        away = _STALL * stats.normal_deviation(np.abs(values - middle))
        bounded = np.clip(values, middle - away, middle + away) if away > 0 else values
        moved += int((bounded != values).sum())
        found.append(bounded)
    return found, moved


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioEstimate:
    """A ratio of two rates from L launches, with both components of its variance."""

    DOCUMENT = (
        "ratio=ratio.value ratio_low=ratio.low ratio_high=ratio.high launches rounds half_width round_sd "
        "memory round_error launch_sd cancelled set_aside stalls shared"
    )

    ratio: Interval  # n: rounds
    launches: int
    rounds: int
    round_sd: float  # of a single round about the level of its launch, relative
    memory: float  # autocorrelation time in rounds
    round_error: float  # standard error of the ratio from rounds alone, relative
    launch_sd: float  # of the level of a launch, by moments; 0 where rounds explain all; NaN for one launch
    cancelled: float  # share of the variance of the two rates within launches that is not in their ratio
    set_aside: int = 0
    stalls: int = 0
    shared: bool = False

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the ratio, from the logarithms; infinite where it is not known."""
        return math.log(self.ratio.high / self.ratio.low) / 2 if self.ratio.known else math.inf


def _mean(found: Pairs, level: float) -> SimpleNamespace | None:
    """Join L launches: the scatter of their means decides where it exceeds what rounds explain, and never narrows.

    Return the launches that have come far enough to count, without stalls, and the `kept` places of them, how many
    rounds were `moved`, their memory `within`; value and half, the mean and half of its interval, and p; round_error
    and launch_variance. None where there is no launch of two rounds.

    V = MS / N with MS the mean square between launches, L - 1 degrees of freedom, where the launches scatter more than
    their rounds explain, F = MS / variance of rounds > 1; the component of launches is then (F - 1)(L - 1) v /
    (N - sum n^2 / N), the method of moments, and launches weigh 1 / (component + v / n) (R. DerSimonian and N. Laird,
    Controlled Clinical Trials 7, 1986, 177-188). The half width is never below that of rounds alone. (With
    the degrees of freedom of the sum by Satterthwaite it covers less: benchmarks/turns_coverage.py --within.)
    """
    lengths = [len(each) for each in found.cell]
    least = max(2.0, 0.25 * max(lengths, default=0))
    kept = [place for place, length in enumerate(lengths) if length >= least]
    if not kept:
        return None
    launches, moved = without_stalls([found.differences[place] for place in kept])
    within = memory(launches)
    n = np.array([len(each) for each in launches], dtype=float)
    total, count = float(n.sum()), len(launches)
    means = np.array([each.mean() for each in launches])
    value = float((n * means).sum() / total)
    v = within.variance
    tail = 0.5 + level / 2
    alone = error = math.sqrt(v / total)
    told = {"launches": launches, "kept": kept, "moved": moved, "within": within, "round_error": alone}
    if count == 1:
        half = stats.t_quantile(tail, within.freedom) * alone
        p = stats.t_p(value, alone, within.freedom)
        return SimpleNamespace(**told, value=value, half=half, error=alone, p=p, launch_variance=math.nan)
    square = float((n * (means - value) ** 2).sum()) / (count - 1)
    component = max(square - v, 0.0) * (count - 1) / (total - float((n**2).sum()) / total)
    weights = 1 / (component + v / n) if v > 0 or component > 0 else n
    share = weights / weights.sum()
    value = float((share * means).sum())
    # Rounds and launches estimate the same variance where launches have no level of their own.
    pooled = (within.freedom * v + (count - 1) * min(square, v)) / (within.freedom + count - 1)
    by_rounds = stats.t_quantile(tail, within.freedom + count - 1) * math.sqrt(pooled / total)
    freedom = max(1 / float((share**2).sum()) - 1, 0.5)
    variance = 1 / float(weights.sum()) if component > 0 else square / total
    by_launches = stats.t_quantile(tail, freedom) * math.sqrt(variance)
    error = math.sqrt(variance)
    if by_launches < by_rounds:
        error, freedom = math.sqrt(pooled / total), within.freedom + count - 1
    p, half = stats.t_p(value, error, freedom), max(by_launches, by_rounds)
    return SimpleNamespace(**told, value=value, half=half, error=error, p=p, launch_variance=component)


def difference(found: Pairs, *, level: float = stats.LEVEL) -> tuple[Interval, int] | None:
    """Return the mean difference of pairs of values, in their unit, and its launches; None as in `estimate`.

    Where the values of a launch do not scatter, launches decide.
    """
    if (mean := _mean(found, level)) is None:
        return None
    ends = {"low": mean.value - mean.half, "high": mean.value + mean.half}
    interval = Interval(value=mean.value, **ends, level=level, p=mean.p, n=sum(map(len, mean.launches)))
    return interval, len(mean.launches)


def estimate(found: Pairs, *, level: float = stats.LEVEL) -> RatioEstimate | None:
    """Return the ratio cell / base of some pairs with its interval; None where no launch has two rounds.

    One launch gives the interval of rounds alone: the level of launches is then unknown, and `launches` says so.
    """
    if (mean := _mean(found, level)) is None:
        return None
    half, rounds = mean.half if mean.error >= _NO_SCATTER else 0.0, sum(map(len, mean.launches))
    ends = {"low": math.exp(mean.value - half), "high": math.exp(mean.value + half)} if math.isfinite(half) else {}

    def scatter(launches: Sequence[Floats]) -> float:  # variance about the means of the launches
        return sum(float(((each - each.mean()) ** 2).sum()) for each in launches) / (rounds - len(launches))

    spread, of_both = (
        scatter(mean.launches),
        sum(scatter([of[i] for i in mean.kept]) for of in (found.cell, found.base)),
    )
    return RatioEstimate(
        ratio=Interval(value=math.exp(mean.value), **ends, level=level, p=mean.p, n=rounds),
        launches=len(mean.launches),
        rounds=rounds,
        round_sd=math.sqrt(spread),
        memory=mean.within.rounds,
        round_error=mean.round_error,
        launch_sd=math.sqrt(mean.launch_variance),
        cancelled=1 - spread / of_both if of_both > 0 else math.nan,
        set_aside=found.set_aside,
        stalls=mean.moved,
        shared=found.shared,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioVerdict:
    """What is known of one wanted ratio after some rounds, and what it still takes."""

    cell: str
    base: str
    estimate: RatioEstimate | None
    resolved: bool  # the half width is at most the aim
    launch_done: bool  # the present launch has as many rounds as it is to have
    rounds: int | None  # further rounds that are expected, in all launches; None where that is not known or endless
    launches: int | None  # further launches that these rounds are in


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """The aim of a study: the half width of the 95 % interval of each wanted ratio, relative (0.02 for 2 %).

    Rounds go on until the width is reached, whatever the estimate is: fixed-width stopping (Y. Chow and H. Robbins,
    Ann. Math. Statist. 36, 1965, 457-462), which is paid for by launches of a length that is fixed before, by few looks
    (one at the end of each launch) and by `level`.
    """

    half_width: float = 0.02
    launches: int = LAUNCHES  # at least
    most_launches: int = MOST_LAUNCHES
    other_load: float = OTHER_LOAD
    look_level: float = stats.LEVEL  # of the interval that is compared with the aim, and printed

    def __post_init__(self) -> None:
        if not (0 < self.half_width < 1 and 1 <= self.launches <= self.most_launches):
            raise AnalysisError(
                f"a precision of {self.half_width:g} in {self.launches} launches: allowed are a share between 0 and 1, "
                f"such as 0.02, and 1 to {self.most_launches} launches"
            )

    def judge(self, slices: Sequence[Slice], wanted: Iterable[tuple[str, str]]) -> list[RatioVerdict]:
        """Return a verdict for each wanted (cell, base); the last launch of a pair is the present one."""
        return [
            self.verdict(cell, base, pairs(slices, cell, base, other_load=self.other_load)) for cell, base in wanted
        ]

    def verdict(self, cell: str, base: str, found: Pairs) -> RatioVerdict:
        """Return what is known of cell / base from `found`, and what it still takes."""
        known = estimate(found, level=self.look_level)
        done = self._launch_done(found)
        counted = 0 if known is None else known.launches
        resolved = known is not None and done and counted >= self.launches and known.half_width <= self.half_width
        rounds, launches = (0, 0) if resolved else self._further(found, known, done)
        return RatioVerdict(
            cell=cell, base=base, estimate=known, resolved=resolved, launch_done=done, rounds=rounds, launches=launches
        )

    def _launch_done(self, found: Pairs) -> bool:
        """Whether the present launch is as long as it is to be.

        The first _PLANNED launches: long enough that so many of them have the wanted width if launches have no level of
        their own. Later ones are as long as those before. Judged on a growing schedule of lengths, so that to ask more
        often changes nothing.
        """
        if not (differences := found.differences):
            return False
        made = found.made[-1] if found.made else np.arange(1, len(differences[-1]) + 1)
        length, look = 0, MIN_ROUNDS
        while look <= (made[-1] if len(made) else 0):  # the last length on the schedule of looks that was reached
            length = look
            look = math.ceil(length * LOOKS)
        present = differences[-1][: int(np.searchsorted(made, length, side="right"))]
        if length < MIN_ROUNDS or len(present) < 4:
            return False
        if len(differences) > _PLANNED:
            return len(present) >= sum(map(len, differences[:-1])) / (len(differences) - 1)
        launches, _ = without_stalls([*differences[:-1], present])
        within = memory([each for each in launches if len(each) > 1])
        wanted = self.half_width / stats.t_quantile(0.5 + self.look_level / 2, within.freedom)
        return bool(within.variance / (_PLANNED * wanted**2) <= len(present))

    def _further(self, found: Pairs, known: RatioEstimate | None, done: bool) -> tuple[int | None, int | None]:
        """Return the rounds and launches that are expected beyond those made; (None, None) where none would do."""
        if known is None or known.rounds < MIN_ROUNDS:
            return None, None
        within = known.round_error**2 * known.rounds  # variance per round, memory included
        lengths = [len(each) for each in found.cell]
        z = stats.t_quantile(0.5 + self.look_level / 2, math.inf)
        length = max(MIN_ROUNDS, within / (_PLANNED * (self.half_width / z) ** 2), max(lengths) if done else 0)
        level = 0.0 if math.isnan(known.launch_sd) else known.launch_sd**2
        for count in range(max(self.launches, len(lengths) + (1 if done else 0), 2), 10_000):
            error = math.sqrt((level + within / length) / count)
            if stats.t_quantile(0.5 + self.look_level / 2, count - 1.0) * error <= self.half_width:
                made = len(lengths) - (0 if done else 1)
                rest = 0 if done else min(lengths[-1], length)
                return math.ceil((count - made) * length - rest), count - len(lengths)
        return None, None
