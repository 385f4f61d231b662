"""A race of settings: which to launch next, what the launches say, and when to stop. Pure: it launches nothing itself.

Letters: C candidates, B blocks, d = ln(speed of one) - ln(speed of another) in one block, k shared blocks.

A block is one launch of every candidate that is still in the race, in random order. Machines drift; candidates are
therefore only ever compared within blocks, by the differences d (randomised blocks, Fisher 1935, "The design of
experiments").

The interval of a ratio is exp(mean(d) +- t * sqrt(v / k)), Student's t. Two or three blocks know their own variance
badly, so v leans on what all pairs of candidates together say: v = (D s0 + (k-1) s) / (D + k-1) with D + k - 1 degrees
of freedom, s the variance of this pair, s0 the median of the variances of all pairs, each divided by the median of
chi-square over its degrees of freedom. This is the moderated t of Smyth 2004 ("Linear models and empirical Bayes
methods ..."), with D fixed to 4 instead of estimated. Where a pair scatters more than that, its own variance holds.

In turns (turns.py) all candidates of a heat are launched together and train one slice each in every round. A pair is
then compared within rounds: the mean of a launch of n rounds has the variance c + v / n, with v the long-run variance
of rounds (`paired.memory`) and c that of the level of a launch, by moments. Both are pooled over all candidates, v as
s0 is above: the median, and a pair that scatters more keeps its own. Launches weigh 1 / (c + v / n), and t has D more
degrees of freedom than launches less one. `paired.estimate` pools nothing, and would know little of two launches.

The race drops what is resolved to be worse (Maron and Moore 1994, "Hoeffding races"), and after each round half of the
rest (successive halving: Karnin, Koren and Somekh 2013), so that those in front are repeated more and more.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis.paired import LOOKS, Slice, memory, pairs, without_stalls
from horovod_study.analysis.stats import Interval, chi2_median, moderated_ratio, t_quantile
from horovod_study.errors import StudyError
from horovod_study.roles import plain

EQUAL = 0.01
"""Settings whose speeds differ by at most this share are taken for equal: the one with fewer changes is better."""
FIRST_BLOCKS = 2  # of the first round
_LOOK_LEVEL = 0.99
"""Level of the intervals that end the race: it is looked at after every block, and at 0.95 each look would find
something that is not there once in twenty."""
_MIN_BLOCKS = 3  # shared, before two candidates are said to differ, or to be equal
_FIRST_ROUNDS, _LATER_ROUNDS = 8, 20
"""Rounds of the first heat, which is for finding out what is worth a second one, and of the others at most."""
LEAST_ROUNDS = 4
"""Rounds before two candidates that train in turns are said to differ; looks are then LOOKS times as many apart."""
CONFIRM_HEATS = 2
KEPT = 3  # so many values of single settings come into the second heat beside their combinations
_PRIOR = 4.0  # D above


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Settings to be tried: what is changed from the shipped settings of a runtime."""

    name: str  # unique within its runtime
    runtime: str
    kind: str  # shipped | library | effect | combination
    values: Mapping[str, Any] = field(default_factory=dict)  # options of the workload
    knob: str = ""  # of an effect
    value: str = ""

    @property
    def key(self) -> str:
        """Unique name over all runtimes."""
        return f"{self.runtime} {self.name}"

    @property
    def baseline(self) -> bool:
        """Whether it stays in the race whatever it does."""
        return self.kind in ("shipped", "library")


@dataclass(frozen=True, kw_only=True, slots=True)
class NextLaunch:
    """What to launch next. `confirms`: were the race over now, its winner would still have to be confirmed."""

    stage: str  # race | confirm
    block: int
    candidate: Candidate
    confirms: bool = False

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells this launch from all others of the race."""
        return self.stage, self.block, self.candidate.key


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came of one launch; `samples_per_s` is None where it failed, with the `reason`."""

    stage: str
    block: int
    candidate: str  # key
    samples_per_s: float | None
    step_ms_median: float | None = None
    step_ms_p90: float | None = None
    seconds: float = 0.0
    reason: str = ""


def ratio_words(ratio: Interval) -> str:
    """Return the verdict on the speed of one candidate over that of another, rounded outwards."""
    if not ratio.known:
        return "too few launches to tell"
    if ratio.low > 1:
        return f"faster by {_span(ratio.low - 1, ratio.high - 1)}"
    if ratio.high < 1:
        return f"slower by {_span(1 - ratio.high, 1 - ratio.low)}"
    if ratio.low >= 1 - EQUAL and ratio.high <= 1 + EQUAL:
        return f"equal within {100 * EQUAL:.0f} %"
    return "no difference resolved"


def ratio_text(ratio: Interval) -> str:
    """Return e.g. 1.052 [1.031, 1.074]."""
    if not ratio.known:
        return f"{ratio.value:.3f}" if math.isfinite(ratio.value) else "-"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def ratio_record(ratio: Interval) -> dict[str, Any]:
    """Return plain values; None where a number is not known."""
    ends = ratio.to_dict()
    return {"ratio": ends["value"], "low": ends["low"], "high": ends["high"], "blocks": ratio.n}


def _span(low: float, high: float) -> str:
    digits = 1 if high < 0.1 else 0
    one, other = f"{100 * low:.{digits}f}", f"{100 * high:.{digits}f}"
    return f"{one} %" if one == other else f"{one}-{other} %"


class Book:
    """All launches so far, and what follows from them."""

    least = _MIN_BLOCKS  # of what is compared, blocks or rounds, before two candidates are said to differ
    least_launches = _MIN_BLOCKS  # of the leader, before the race is over

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        self.trials: list[Trial] = []
        self.failed: dict[str, str] = {}  # candidate -> reason of its last failed launch
        self._logs: dict[str, dict[tuple[str, int], float]] = {}
        self._known: tuple[NDArray[np.float64], dict[str, int], float] | None = None
        for trial in trials:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """Take note of a launch."""
        self.trials.append(trial)
        self._known = None
        if trial.samples_per_s is None or not trial.samples_per_s > 0:
            self.failed[trial.candidate] = trial.reason or "no samples were trained"
            return
        self._logs.setdefault(trial.candidate, {})[(trial.stage, trial.block)] = math.log(trial.samples_per_s)

    def launches(self, candidate: str) -> int:
        """Return how many launches of a candidate ran to their end."""
        return len(self._logs.get(candidate, {}))

    def slow_launches(self, candidate: str) -> int:
        """Return how many launches ran at less than half the speed of the candidate's best one, drift set aside."""
        matrix, rows, _ = self._table()
        return self.launches(candidate) - int(np.isfinite(matrix[rows[candidate]]).sum()) if candidate in rows else 0

    def unstable(self, candidate: str) -> bool:
        """Whether some launches fell into a slow mode."""
        return self.slow_launches(candidate) > 0

    def step_spread(self, candidate: str) -> float | None:
        """Return the median over launches of p90/median of the step; None when nothing is known."""
        shares = [
            trial.step_ms_p90 / trial.step_ms_median
            for trial in self.trials
            if trial.candidate == candidate and trial.step_ms_median and trial.step_ms_p90
        ]
        return float(np.median(shares)) if shares else None

    def samples_per_s(self, candidate: str) -> float | None:
        """Return the median speed of a candidate over its launches, slow ones included."""
        values = list(self._logs.get(candidate, {}).values())
        return math.exp(float(np.median(values))) if values else None

    def noise(self) -> float:
        """Return the standard deviation of d between two candidates in one block; NaN when it is not known yet."""
        return math.sqrt(self._table()[2])

    def ratio(self, one: str, other: str, level: float = 0.95) -> Interval:
        """Return speed of `one` over that of `other` from the blocks that they share, slow launches left out."""
        matrix, rows, pooled = self._table()
        if one not in rows or other not in rows:
            return Interval(value=math.nan, level=level)
        differences = matrix[rows[one]] - matrix[rows[other]]
        return moderated_ratio(differences[np.isfinite(differences)], pooled, _PRIOR, level)

    def _table(self) -> tuple[NDArray[np.float64], dict[str, int], float]:
        """Return ln(speed) as (C, B) with NaN for what is missing or slow, the row of each candidate, and s0."""
        if self._known is None:
            blocks = {
                block: place for place, block in enumerate(dict.fromkeys((t.stage, t.block) for t in self.trials))
            }
            rows = {candidate: place for place, candidate in enumerate(self._logs)}
            matrix = np.full((len(rows), len(blocks)), np.nan)
            for candidate, logs in self._logs.items():
                for block, value in logs.items():
                    matrix[rows[candidate], blocks[block]] = value
            matrix = without_slow(matrix)
            self._known = matrix, rows, pooled_variance(matrix)
        return self._known


class RoundBook(Book):
    """All launches so far, of candidates that trained in turns: compared by their slices, launch by launch."""

    least = LEAST_ROUNDS
    least_launches = 2

    def __init__(self, slices: Sequence[Slice] = ()) -> None:
        super().__init__()
        self.slices = list(slices)
        self._pooled: tuple[int, float, float] | None = None

    def take(self, trials: Sequence[Trial], slices: Sequence[Slice]) -> None:
        """Take note of a heat."""
        self.slices += slices
        for trial in trials:
            self.add(trial)

    def noise(self) -> float:
        """Return the standard deviation of d between two candidates in one round; NaN when it is not known yet."""
        return math.sqrt(self._components()[0]) if self.slices else math.nan

    def ratio(self, one: str, other: str, level: float = 0.95) -> Interval:
        """Return speed of `one` over that of `other` from the rounds that they share; n counts rounds."""
        launches = [each for each in pairs(self.slices, one, other).differences if len(each)]
        if not launches:
            return Interval(value=math.nan, level=level)
        scatter, component = self._components()
        counts = np.array([len(each) for each in launches], dtype=float)
        if more := counts.sum() - len(counts):
            own = _scatter(launches)
            scatter = max((_PRIOR * scatter + more * own) / (_PRIOR + more), own) if math.isfinite(scatter) else own
        if not math.isfinite(scatter):  # no two of them share two rounds of a launch: how far rounds scatter is unknown
            mean = float((counts * [each.mean() for each in launches]).sum() / counts.sum())
            return Interval(value=math.exp(mean), level=level, n=int(counts.sum()))
        weights = 1 / (component + scatter / counts) if component + scatter > 0 else counts
        value = float((weights * [each.mean() for each in launches]).sum() / weights.sum())
        half = t_quantile(0.5 + level / 2, _PRIOR + len(launches) - 1) / math.sqrt(float(weights.sum()))
        ends = {"low": math.exp(value - half), "high": math.exp(value + half)} if math.isfinite(half) else {}
        return Interval(value=math.exp(value), **ends, level=level, n=int(counts.sum()))

    def _components(self) -> tuple[float, float]:
        """Return the variance of a log ratio in one round, and of its level in one launch, pooled over candidates.

        Against what has most slices. Where every candidate was launched once the second is unknown, and taken for 0.
        """
        if self._pooled is not None and self._pooled[0] == len(self.slices):
            return self._pooled[1:]
        counts = Counter(each.cell for each in self.slices)
        base = max(counts, key=lambda cell: counts[cell])
        found = [pairs(self.slices, cell, base).differences for cell in counts if cell != base]
        scatters = [_scatter(launches) for launches in found if any(len(each) > 1 for each in launches)]
        scatter = float(np.median(scatters)) if scatters else math.nan
        squares = freedom = 0.0
        for launches in found:
            sizes = np.array([len(each) for each in launches if len(each)], dtype=float)
            if len(sizes) > 1:
                means = np.array([each.mean() for each in launches if len(each)])
                middle = float((sizes * means).sum() / sizes.sum())
                squares += float((sizes * (means - middle) ** 2).sum()) - (len(sizes) - 1) * scatter
                freedom += float(sizes.sum() - (sizes**2).sum() / sizes.sum())
        component = max(squares / freedom, 0.0) if freedom and scatters else 0.0
        self._pooled = len(self.slices), scatter, component
        return scatter, component


def _scatter(launches: Sequence[NDArray[np.float64]]) -> float:
    """Return the long-run variance of log ratios in a round, of launches (n,), one of two or more; stalls bounded."""
    bounded, _ = without_stalls(launches)
    return memory([each for each in bounded if len(each) > 1]).variance


def without_slow(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln(speed), (C, B), with NaN where a launch ran at less than half the speed of its candidate's best one.

    The speed counts relative to the median of its block, so that a machine slowing down as a whole makes nobody slow.
    """
    if not logs.size:
        return logs
    seen = np.isfinite(logs)
    level = np.array(
        [np.median(column[here]) if here.any() else 0.0 for column, here in zip(logs.T, seen.T, strict=True)]
    )
    relative = np.where(seen, logs - level, -np.inf)
    best = relative.max(axis=1, keepdims=True)
    return np.where(seen & (relative >= best - math.log(2.0)), logs, np.nan)


def pooled_variance(logs: NDArray[np.float64]) -> float:
    """Return s0 of the module text from ln(speed), (C, B); NaN when no two candidates share two blocks."""
    first, second = np.triu_indices(len(logs), 1)
    differences = logs[first] - logs[second]  # (pairs, B)
    counts = np.isfinite(differences).sum(axis=1)
    differences, counts = differences[counts >= 2], counts[counts >= 2]
    if not len(counts):
        return math.nan
    mean = np.nanmean(differences, axis=1, keepdims=True)
    variances = np.nansum((differences - mean) ** 2, axis=1) / (counts - 1)
    middle = np.array([chi2_median(int(count) - 1) for count in counts])
    return float(np.median(variances * (counts - 1) / middle))


# ------------------------------------------------------------------------------------------------------ the race


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a race ended."""

    chosen: Candidate
    stop: str  # resolved | equal | budget | rounds
    text: str  # in words
    resolved: bool
    candidates: tuple[Candidate, ...]  # all that took part, combinations included, in the order they came
    states: Mapping[str, str]  # key -> "" while in the race, else why it is out
    confirmed: bool  # whether blocks of its own say what the chosen one gains
    book: Book
    confirmation: Book


@dataclass(slots=True)
class _Standing:
    """Who leads, and who may still be as good."""

    best: Candidate
    worse: list[Candidate]
    equal: list[Candidate]
    open: list[Candidate]


def race(candidates: Sequence[Candidate], *, seed: int, rounds: int) -> Generator[NextLaunch, Trial | None, Outcome]:
    """Yield one launch after the other; send what came of it, or None when there is no time for it.

    The first candidate is what the race is about to beat, the shipped settings of the first runtime. The same trials
    sent again lead to the same launches, so a race can be continued. StudyError when shipped settings keep failing.
    """
    state = _Race(candidates, seed)
    first, stop = len(candidates), "rounds"
    for number in range(1, rounds + 1):
        blocks = min(6, max(1, round(FIRST_BLOCKS * first / len(state.alive))))
        for _ in range(max(FIRST_BLOCKS, blocks)):
            if not (yield from state.run_block("race", state.alive)):
                return (yield from state.finish("budget"))
            if number > 1 and (stop := state.ended()):
                return (yield from state.finish(stop))
        if stop := state.end_round(number):
            return (yield from state.finish(stop))
    return (yield from state.finish("rounds"))


class _Race:
    book: Book
    confirmation: Book

    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        self.all, self.alive = list(candidates), list(candidates)
        self.reference = candidates[0]
        self.states: dict[str, str] = {each.key: "" for each in candidates}
        self.book, self.confirmation = Book(), Book()
        self._seed, self._block = seed, 0

    # ------------------------------------------------------------------ launches

    def run_block(self, stage: str, group: Sequence[Candidate]) -> Generator[NextLaunch, Trial | None, bool]:
        """Launch every candidate of `group` once, in random order; return False when there was no time for all."""
        self._block += 1
        order = list(group)
        random.Random(f"{self._seed} {stage} {self._block}").shuffle(order)
        confirms = stage == "race" and self._block > FIRST_BLOCKS and self.tentative().kind != "shipped"
        for candidate in order:
            trial = yield NextLaunch(stage=stage, block=self._block, candidate=candidate, confirms=confirms)
            if trial is None:
                return False
            self.book.add(trial)
            if stage == "confirm":
                self.confirmation.add(trial)
            if trial.samples_per_s is None:
                self._failed(candidate, trial.reason)
        return True

    def _failed(self, candidate: Candidate, reason: str) -> None:
        if candidate.kind != "shipped":
            self._out(candidate, f"failed: {reason}")
            return
        failures = sum(t.candidate == candidate.key and t.samples_per_s is None for t in self.book.trials)
        if failures >= 3:
            raise StudyError(
                f"{candidate.runtime} with its shipped settings failed {failures} times, so that there is nothing to "
                f"compare with: {reason}"
            )

    def _out(self, candidate: Candidate, why: str) -> None:
        self.states[candidate.key] = why
        self.alive = [each for each in self.alive if each.key != candidate.key]

    # ------------------------------------------------------------------ decisions

    def gain(self, candidate: Candidate) -> float:
        """Return the ratio to the reference, -inf when it is not known."""
        if candidate.key == self.reference.key:
            return 1.0
        ratio = self.book.ratio(candidate.key, self.reference.key).value
        return -math.inf if math.isnan(ratio) else ratio

    def eligible(self) -> list[Candidate]:
        """Return the candidates that may be chosen: in the race, launched, and never slow."""
        return [each for each in self.alive if self.book.launches(each.key) and not self.book.unstable(each.key)]

    def standing(self) -> _Standing:
        """Return who leads and how the others compare with it at _LOOK_LEVEL; equality is judged at 95 %."""
        eligible = self.eligible() or [self.reference]
        best = max(eligible, key=self.gain)
        found = _Standing(best, [], [], [])
        for each in eligible:
            if each.key == best.key:
                continue
            ratio, usual = self.book.ratio(best.key, each.key, _LOOK_LEVEL), self.book.ratio(best.key, each.key)
            if ratio.n >= self.book.least and ratio.low > 1:
                found.worse.append(each)
            elif usual.n >= self.book.least and usual.low >= 1 / (1 + EQUAL) and usual.high <= 1 + EQUAL:
                found.equal.append(each)
            else:
                found.open.append(each)
        return found

    def ended(self) -> str:
        """Return "resolved" or "equal" when there is nothing left to find out, else ""."""
        found = self.standing()
        if found.open or self.book.launches(found.best.key) < self.book.least_launches:
            return ""
        return "equal" if found.equal else "resolved"

    def tentative(self) -> Candidate:
        """Return what would be chosen now, were there no more time."""
        found = self.standing()
        group = [found.best, *found.equal, *found.open]
        if not self.book.launches(self.reference.key) or self.reference.key in {each.key for each in group}:
            return self.reference
        if self.gain(found.best) == -math.inf or not self.eligible():
            return self.reference
        # Of what cannot be separated, the fewest changes among those that seem as fast.
        return self.nearest([each for each in group if self.gain(each) * (1 + EQUAL) >= self.gain(found.best)])

    def nearest(self, group: Sequence[Candidate]) -> Candidate:
        """Return the candidate with the fewest changes: shipped settings first, then the first runtime, the fastest."""
        runtimes = list(dict.fromkeys(each.runtime for each in self.all))
        return min(
            group,
            key=lambda each: (each.kind != "shipped", len(each.values), runtimes.index(each.runtime), -self.gain(each)),
        )

    def end_round(self, number: int) -> str:
        """Drop who is out, add the combinations after the first round, and return why the race is over, "" if not."""
        self.drop(number)
        if number == 1:
            self.combine()
        return self.ended() if number > 1 or all(each.baseline for each in self.alive) else ""

    def drop(self, number: int) -> None:
        """Take out what fell into a slow mode, what is resolved to be worse, and the worse half of the rest."""
        for each in [each for each in self.alive if not each.baseline and self.book.unstable(each.key)]:
            slow, all_ = self.book.slow_launches(each.key), self.book.launches(each.key)
            self._out(each, f"unstable: {slow} of {all_} launches ran at less than half its speed")
        runners = sorted((each for each in self.alive if not each.baseline), key=self.gain, reverse=True)
        found = self.standing()
        worse = {each.key for each in found.worse}
        kept = math.ceil(len(runners) / 2)
        for place, each in enumerate(runners):
            behind = self.book.ratio(found.best.key, each.key).value > 1 + EQUAL
            if each.key in worse:
                self._out(each, f"slower than {found.best.name}, after round {number}")
            elif place >= kept and behind:
                self._out(each, f"in the slower half after round {number}")

    def combine(self) -> None:
        """Add combinations of the best value of each knob that seems to help by EQUAL: the best two, three, ..."""
        for runtime in dict.fromkeys(each.runtime for each in self.all):
            shipped = next(each for each in self.all if each.runtime == runtime and each.kind == "shipped")
            helpful: dict[str, tuple[float, Candidate]] = {}
            for each in self.all:
                if each.runtime != runtime or each.kind != "effect" or each.key in self.book.failed:
                    continue
                ratio = self.book.ratio(each.key, shipped.key).value
                if self.book.unstable(each.key) or not ratio > max(1 + EQUAL, helpful.get(each.knob, (0.0, each))[0]):
                    continue
                helpful[each.knob] = ratio, each
            parts: list[Candidate] = []
            values: dict[str, Any] = {}
            for _, each in sorted(helpful.values(), key=lambda pair: -pair[0])[:5]:
                if any(values.get(name, value) != value for name, value in each.values.items()):
                    continue  # one needs hooks, the other the flat buffer
                parts.append(each)
                values.update(each.values)
                if len(parts) > 1:
                    name = " ".join(f"{knob}={plain(value)}" for knob, value in values.items())
                    combined = Candidate(name=name, runtime=runtime, kind="combination", values=dict(values))
                    if combined.key not in self.states:
                        self.all.append(combined)
                        self.alive.append(combined)
                        self.states[combined.key] = ""

    # ------------------------------------------------------------------ the end

    def rivals(self, chosen: Candidate) -> list[Candidate]:
        """Return the candidate that is chosen with the baselines that it is launched against once more."""
        found = [chosen, *(each for each in self.alive if each.baseline and each.runtime == chosen.runtime)]
        return list({each.key: each for each in found}.values())

    def confirm(self, chosen: Candidate) -> Generator[Any, Any, None]:
        """Launch what was chosen again, in blocks of its own."""
        for _ in range(5):
            if chosen.key in self.book.failed or not (yield from self.run_block("confirm", self.rivals(chosen))):
                break

    def finish(self, stop: str) -> Generator[Any, Any, Outcome]:
        """Choose, and where that is not the shipped settings, launch it against them in blocks of its own."""
        found = self.standing()
        if stop == "resolved":
            chosen = found.best
        elif stop == "equal":
            chosen = self.nearest([found.best, *found.equal])
        else:
            chosen = self.tentative()
        shipped = next(each for each in self.all if each.runtime == chosen.runtime and each.kind == "shipped")
        beaten = chosen.kind != "shipped"
        if beaten:
            yield from self.confirm(chosen)
        gain = self.book.ratio(chosen.key, shipped.key, _LOOK_LEVEL)
        why = ""
        if beaten and chosen.key in self.book.failed:
            why = f"{chosen.name} failed when it was launched again ({self.book.failed[chosen.key]})"
        elif beaten and self.book.unstable(chosen.key):
            why = f"{chosen.name} fell into a slow mode when it was launched again"
        elif beaten and not gain.low > 1 and stop != "equal":
            told = f"{ratio_text(gain)} at {100 * _LOOK_LEVEL:.0f} %"
            why = f"{chosen.name} led, but launched again its gain ({told}) is not resolved"
        if why:
            chosen, stop = shipped, "budget" if stop == "resolved" else stop
        resolved = stop in ("resolved", "equal") and not why
        return Outcome(
            chosen=chosen,
            stop=stop,
            text=self._words(chosen, stop, found, why),
            resolved=resolved,
            candidates=tuple(self.all),
            states=dict(self.states),
            confirmed=not why and self.confirmation.ratio(chosen.key, shipped.key).n >= self.book.least,
            book=self.book,
            confirmation=self.confirmation,
        )

    def _words(self, chosen: Candidate, stop: str, found: _Standing, why: str) -> str:
        name = "the shipped settings" if chosen.kind == "shipped" else chosen.name
        if chosen.runtime != self.reference.runtime:
            name += f" of {chosen.runtime}"
        if why:
            return f"not resolved: {why}; {name} are kept"
        if stop == "resolved":
            return f"resolved: {name} {'are' if chosen.kind == 'shipped' else 'is'} faster than everything else tried"
        if stop == "equal":
            others = [each.name for each in (found.best, *found.equal) if each.key != chosen.key]
            return (
                f"practically equal: {name} and {_words_of(others)} differ by less than {100 * EQUAL:.0f} %; "
                f"{'kept' if chosen.kind == 'shipped' else 'taken'} because it changes least"
            )
        spent = "the time was used up" if stop == "budget" else "the rounds were used up"
        rivals = [
            each.name
            for each in (found.best, *found.equal, *found.open)
            if each.key != chosen.key and not self.book.ratio(chosen.key, each.key).low > 1
        ]
        if chosen.kind == "shipped":
            return f"not resolved: {spent}; {name} are kept, as {_words_of(rivals)} may be better or not"
        if not rivals:
            return f"{name} is faster than everything else tried, though {spent} before that was looked at again"
        return (
            f"not resolved: {spent}; {name} is faster than the shipped settings, but {_words_of(rivals)} may be faster "
            "still"
        )


# ------------------------------------------------------------------------------------------------------ in turns


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """Candidates that are launched together and train in turns."""

    stage: str  # race | confirm
    number: int  # from 1
    candidates: tuple[Candidate, ...]
    rounds: int  # at most
    confirms: bool  # were the race over now, its winner would still have to be confirmed
    wanted: Callable[[Sequence[Slice]], Collection[str]]
    """Given the slices so far, by the keys of candidates, those that need more of them; is asked after each round."""

    @property
    def launch(self) -> str:
        """What tells this heat from all others, as the name of a launch."""
        return f"{self.stage}/{self.number:03d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatResult:
    """What came of a heat."""

    trials: Sequence[Trial]  # one for each candidate
    slices: Sequence[Slice]


def race_in_turns(
    candidates: Sequence[Candidate], *, seed: int, rounds: int, room: int
) -> Generator[Heat, HeatResult | None, Outcome]:
    """Yield one heat after the other; send what came of it, or None when there is no time for it.

    `rounds`: heats before the race is over whatever comes out; `room`: so many candidates fit into memory together.
    Else as `race`.
    """
    state = _RaceInTurns(candidates, seed, room)
    for number in range(1, rounds + 1):
        length = _FIRST_ROUNDS if number == 1 else _LATER_ROUNDS
        if not (yield from state.run_heat("race", state.alive, length)):
            return (yield from state.finish("budget"))
        if stop := state.end_round(number):
            return (yield from state.finish(stop))
    return (yield from state.finish("rounds"))


class _RaceInTurns(_Race):
    book: RoundBook
    confirmation: RoundBook

    def __init__(self, candidates: Sequence[Candidate], seed: int, room: int) -> None:
        super().__init__(candidates, seed)
        self.book, self.confirmation, self._room = RoundBook(), RoundBook(), max(room, 2)

    def run_heat(self, stage: str, group: Sequence[Candidate], rounds: int) -> Generator[Heat, HeatResult | None, bool]:
        """Let candidates train in turns, as many as fit into memory with the reference; False: there was no time."""
        others = [each for each in group if each.key != self.reference.key]
        if stage == "race" and self._block:  # the library defaults come back where the winner is confirmed
            others = [each for each in others if not each.baseline]
        confirms = stage == "race" and self._block > 0 and self.tentative().kind != "shipped"
        size = self._room - 1
        for place in range(0, len(others), size):
            part = [self.reference, *others[place : place + size]]
            self._block += 1
            result = yield Heat(
                stage=stage,
                number=self._block,
                candidates=tuple(part),
                rounds=rounds,
                confirms=confirms,
                wanted=partial(self._wanted, part, rounds),
            )
            if result is None:
                return False
            self.book.take(result.trials, result.slices)
            if stage == "confirm":
                self.confirmation.take(result.trials, result.slices)
            for each in part:
                if (trial := next(t for t in result.trials if t.candidate == each.key)).samples_per_s is None:
                    self._failed(each, trial.reason)
            # Those that have left a heat before its end are out of the race.
            last = {each.key: max((s.round for s in result.slices if s.cell == each.key), default=-1) for each in part}
            for each in part if stage == "race" else ():
                if not each.baseline and not self.states[each.key] and -1 < last[each.key] < max(last.values()):
                    self._out(each, f"slower than the best, after {last[each.key] + 1} rounds")
        return True

    def confirm(self, chosen: Candidate) -> Generator[Heat, HeatResult | None, None]:
        """Launch what was chosen again, in heats of its own."""
        for _ in range(CONFIRM_HEATS):
            if chosen.key in self.book.failed:
                break
            if not (yield from self.run_heat("confirm", self.rivals(chosen), _LATER_ROUNDS)):
                break

    def tentative(self) -> Candidate:
        """Return what leads; that it gains anything is to be shown where it is confirmed."""
        found = self.standing()
        if not self.gain(found.best) > 1 + EQUAL:
            return self.reference
        group = [found.best, *found.equal, *found.open]
        return self.nearest([each for each in group if self.gain(each) * (1 + EQUAL) >= self.gain(found.best)])

    def drop(self, number: int) -> None:
        """As without turns, and after the first heat all but KEPT: a second launch costs more than a few rounds."""
        super().drop(number)
        runners = sorted((each for each in self.alive if not each.baseline), key=self.gain, reverse=True)
        for each in runners[KEPT:] if number == 1 else ():
            self._out(each, f"not among the best {KEPT} after the first heat")

    def _wanted(self, part: Sequence[Candidate], rounds: int, slices: Sequence[Slice]) -> Collection[str]:
        """Return who needs more of a heat: all but those that are resolved to be slower than the leader."""
        made = 1 + max(each.round for each in slices)
        if made >= rounds:
            return ()
        last = {each.cell for each in slices if each.round == made - 1}
        if made not in _LOOKS_AT:
            return last
        book = RoundBook([*self.book.slices, *slices])
        here = [each for each in part if each.key in last]
        if not here:
            return ()
        best = max(here, key=lambda each: book.ratio(each.key, self.reference.key).value)
        return {
            each.key
            for each in here
            if each.baseline or each is best or not book.ratio(best.key, each.key, _LOOK_LEVEL).low > 1
        }


_LOOKS_AT = [LEAST_ROUNDS]
while _LOOKS_AT[-1] < 10_000:
    _LOOKS_AT.append(math.ceil(_LOOKS_AT[-1] * LOOKS))


def _words_of(names: Sequence[str]) -> str:
    if not names:
        return "nothing else"
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
