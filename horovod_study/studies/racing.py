"""A race of settings by halving: what to measure next, what the measurements say, and who wins. It launches nothing.

Machines drift; settings are therefore only ever compared within rounds, by the estimate of `analysis.paired`. One after
the other, a round is a block: one launch of every candidate in random order. In turns (turns.py) a heat, one launch of
all candidates together, has many rounds of slices. Everything else is the same for both:

A stage measures all candidates that are left, with the shipped settings and the library defaults. Then whoever is
resolved to be slower than the fastest is out (O. Maron and A. Moore, Hoeffding races, 1994), and the slower half of the
rest (Z. Karnin, T. Koren and O. Somekh, "Almost optimal exploration in multi-armed bandits", 2013). After the first one
the best values of single settings that help are combined. Whoever wins a race was also lucky in it: the leader is
launched again, against both baselines, and is chosen where these launches alone resolve its gain.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, TypeAlias

import numpy as np

from horovod_study.analysis.paired import MIN_ROUNDS, Slice, estimate, pairs
from horovod_study.analysis.stats import LEVEL, Interval, moderated_ratio
from horovod_study.errors import StudyError
from horovod_study.roles import plain

EQUAL = 0.01
"""Settings whose speeds differ by at most this share are taken for equal: the one with fewer changes is better."""
_LOOK_LEVEL = 0.99
"""Level at which somebody is said to be slower: that is looked at again and again, and at 0.95 each look would find
something that is not there once in twenty."""
LEAST_ROUNDS = 4  # before two candidates are said to differ
_LOOKS_AT = (LEAST_ROUNDS, 5, 7, 9, 12, 15, 19)  # rounds of a heat, each about a quarter more than before


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Settings to be tried: what is changed from the shipped ones."""

    name: str
    kind: str  # shipped | library | effect | combination
    values: Mapping[str, Any] = field(default_factory=dict)  # options of the workload
    knob: str = ""  # of an effect
    value: str = ""

    @property
    def baseline(self) -> bool:
        """Whether it stays in the race whatever it does."""
        return self.kind in ("shipped", "library")


Way: TypeAlias = Mapping[str, tuple[int, int]]
ALONE: Way = {"first": (2, 1), "race": (3, 1), "confirm": (5, 1)}
IN_TURNS: Way = {"first": (1, 8), "race": (1, 20), "confirm": (3, MIN_ROUNDS)}
"""How candidates are measured in the first stage, in the others, and for confirming: launches of each of them, and
rounds of a launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What to measure next: one launch of each candidate, one round in all, or in turns as many as `rounds`."""

    what: str  # race | confirm
    number: int  # from 1
    candidates: tuple[Candidate, ...]
    rounds: int

    @property
    def launch(self) -> str:
        """What the rounds that are compared with each other have in common."""
        return f"{self.what}/{self.number:03d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What came of one launch; it has no rounds where it failed, with the `reason`."""

    launch: str  # of its stage
    candidate: str  # its name
    rounds: tuple[tuple[int, float, float | None], ...] = ()
    """Number, samples/s, and cores that other programs used."""
    step_spread: float | None = None  # p90 / median of its steps
    seconds: float = 0.0
    reason: str = ""

    @property
    def samples_per_s(self) -> float:
        """Its mean over all rounds; NaN where it failed."""
        return fmean(rate for _, rate, _ in self.rounds) if self.rounds else math.nan


def ratio_of(slices: Sequence[Slice], one: str, other: str, level: float = LEVEL) -> Interval:
    """Return speed of `one` over that of `other` within rounds; without ends where they share less than two.

    Launches of a single round, blocks, are independent of each other: Student's t of their differences.
    """
    found = pairs(slices, one, other)
    if (known := estimate(found, level=level)) is not None:
        return known.ratio
    return moderated_ratio(np.concatenate([*found.differences, np.empty(0)]), math.nan, 0.0, level)


def words(ratio: Interval) -> str:
    """Return e.g. 1.052 [1.031, 1.074]."""
    ends = f" [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.known else ""
    return f"{ratio.value:.3f}{ends}" if math.isfinite(ratio.value) else "-"


def slower(slices: Sequence[Slice]) -> set[str]:
    """Return who is resolved to be slower than the fastest."""
    counts = Counter(each.cell for each in slices)
    most = max(counts, key=lambda cell: counts[cell], default="")
    known = {cell: ratio_of(slices, cell, most) for cell in counts if cell != most}
    gains = {most: 1.0, **{cell: ratio.value for cell, ratio in known.items() if ratio.n >= LEAST_ROUNDS}}
    best = max(gains, key=lambda cell: gains[cell])
    compared = {cell: ratio_of(slices, best, cell, _LOOK_LEVEL) for cell in counts if cell != best}
    return {cell for cell, ratio in compared.items() if ratio.n >= LEAST_ROUNDS and ratio.low > 1}


def wanted(stage: Stage, slices: Sequence[Slice]) -> Collection[str]:
    """Return who needs more rounds of a heat: all, but for the baselines those that are resolved to be slower."""
    made = 1 + max(each.round for each in slices)
    if made >= stage.rounds:
        return ()
    last = {each.cell for each in slices if each.round == made - 1}
    if stage.what == "confirm" or made not in _LOOKS_AT:
        return last
    return last - slower(slices) | {each.name for each in stage.candidates if each.baseline and each.name in last}


def slow_launches(trials: Sequence[Trial]) -> list[Trial]:
    """Return the launches that ran at less than half the speed of their candidate's best one: its slow mode.

    The speed counts relative to that of the others at that time, each as a share of its own median, so that a machine
    that gets slower as a whole makes nobody slow.
    """
    done = [each for each in trials if each.rounds]
    speeds = {(each.launch, each.candidate): each.samples_per_s for each in done}
    usual = {cell: median(speeds[each] for each in speeds if each[1] == cell) for _, cell in speeds}
    level = {now: median(speeds[each] / usual[each[1]] for each in speeds if each[0] == now) for now, _ in speeds}
    relative = {each: speed / level[each[0]] for each, speed in speeds.items()}
    best = {cell: max(relative[each] for each in relative if each[1] == cell) for _, cell in speeds}
    return [each for each in done if relative[each.launch, each.candidate] < best[each.candidate] / 2]


class Race:
    """Candidates that are raced: `run` says what to measure, `add` is told what came of each launch.

    The first candidate is what the race is about to beat, the shipped settings.
    """

    stop = "rounds"  # resolved | kept | budget | rounds
    text = ""  # the verdict in words
    confirmed = False  # whether launches of its own say what the chosen one gains

    def __init__(
        self, candidates: Sequence[Candidate], way: Way, *, seed: int, rounds: int, room: float = math.inf
    ) -> None:
        """`rounds`: most stages; `room`: so many candidates fit into memory together."""
        self.candidates, self.chosen = list(candidates), candidates[0]
        self.states = {each.name: "" for each in candidates}  # "" while in the race, else why it is out
        self.failed: dict[str, str] = {}  # candidate -> reason of its last failed launch
        self.trials: list[Trial] = []
        self._reference, self._way, self._seed = candidates[0], way, seed
        self._stages, self._room, self._number = rounds, room, 0

    def run(self) -> Iterator[Stage]:
        """Yield what to measure next; whoever asks for more without having added all launches has no more time."""
        for number in range(1, self._stages + 1):
            if not (yield from self._measure("race", self._left(baselines=True), "race" if number > 1 else "first")):
                self.stop = "budget"
                break
            self._halve(number)
            if number == 1:
                self._combine()
            if len(self._left()) <= 1:
                self.stop = "resolved"
                break
        if (leader := self.leader()) is not self._reference:
            near = [each for each in self._left(baselines=True) if each.baseline and each is not leader]
            yield from self._measure("confirm", [leader, *near], "confirm")
        self._choose(leader)

    def _of(self, key: str) -> Candidate:
        return next(each for each in self.candidates if each.name == key)

    def _left(self, *, baselines: bool = False) -> list[Candidate]:
        return [each for each in self.candidates if not self.states[each.name] and (baselines or not each.baseline)]

    def _measure(self, what: str, group: Sequence[Candidate], effort: str) -> Generator[Stage, None, bool]:
        """Yield launches of a group with the reference, in parts that fit; return False when time was up before."""
        launches, rounds = self._way[effort]
        for _ in range(launches):
            others = [each for each in group if each is not self._reference and not self.states[each.name]]
            size = int(min(max(self._room, 2) - 1, max(len(others), 1)))
            for place in range(0, len(others), size):
                self._number += 1
                part = [self._reference, *others[place : place + size]]
                random.Random(f"{self._seed} {what} {self._number}").shuffle(part)
                stage = Stage(what=what, number=self._number, candidates=tuple(part), rounds=rounds)
                yield stage
                if sum(trial.launch == stage.launch for trial in self.trials) < len(part):
                    return False
        return True

    def add(self, trial: Trial) -> None:
        """Take note of a launch; StudyError when shipped settings keep failing."""
        self.trials.append(trial)
        if trial.rounds:
            return
        candidate, reason = self._of(trial.candidate), trial.reason or "no samples were trained"
        self.failed[candidate.name] = reason
        failures = sum(each.candidate == candidate.name and not each.rounds for each in self.trials)
        if candidate.kind != "shipped":
            self.states[candidate.name] = f"failed: {reason}"
        elif failures == 3:
            raise StudyError(
                f"the shipped settings failed {failures} times, so that there is nothing to compare with: {reason}"
            )

    def launches(self, candidate: Candidate) -> list[Trial]:
        """Return the launches of a candidate that ran to their end."""
        return [each for each in self.trials if each.candidate == candidate.name and each.rounds]

    def slow(self) -> Counter[str]:
        """Return how many launches of a candidate fell into a slow mode."""
        return Counter(each.candidate for each in slow_launches(self.trials))

    def slices(self, what: str = "") -> list[Slice]:
        """Return all rounds, or those of the launches that confirm, slow launches left out."""
        slow = slow_launches(self.trials)
        return [
            Slice(launch=each.launch, round=number, cell=each.candidate, rate=rate, other_load=load or 0.0)
            for each in self.trials
            if each not in slow and each.launch.startswith(what)
            for number, rate, load in each.rounds
        ]

    def _gains(self) -> dict[str, float]:
        """Return the ratio of each candidate that was measured, is not out, and never was slow, to the reference."""
        slices, slow = self.slices(), self.slow()
        found = {
            each.name: ratio_of(slices, each.name, self._reference.name).value for each in self._left(baselines=True)
        }
        return {key: value for key, value in found.items() if not math.isnan(value) and key not in slow}

    def leader(self) -> Candidate:
        """Return who leads: of those that seem as fast the one with the fewest changes, the reference where none gains.

        What was slow once does not lead, however fast it is otherwise.
        """
        gains = self._gains()
        best = max(gains.values(), default=1.0)
        if best <= 1 + EQUAL:
            return self._reference
        close = [self._of(key) for key, value in gains.items() if value * (1 + EQUAL) >= best]
        return min(close, key=lambda each: (len(each.values), -gains[each.name]))

    def _halve(self, number: int) -> None:
        """Take out what fell into a slow mode, what is resolved to be slower, and the slower half of the rest."""
        slow, gains = self.slow(), self._gains()
        slices = [each for each in self.slices() if each.cell in gains]
        worse = slower(slices)  # over all launches, and within a heat, whose rounds are many
        for launch in {each.launch for each in slices}:
            worse |= slower([each for each in slices if each.launch == launch])
        alive = sorted(self._left(), key=lambda each: -gains.get(each.name, 0.0))
        for place, each in enumerate(alive):
            if each.name in slow:
                why = f"unstable: {slow[each.name]} of {len(self.launches(each))} launches at less than half its speed"
            elif each.name in worse:
                why = f"slower than the fastest, after stage {number}"
            else:
                why = f"in the slower half after stage {number}" if 2 * place >= len(alive) > 1 else ""
            self.states[each.name] = why

    def _combine(self) -> None:
        """Add combinations of the best value of each knob that seems to help by EQUAL: the best two, three, ..."""
        slices, base, out = self.slices(), self._reference.name, {*self.failed, *self.slow()}
        tried = [each for each in self.candidates if each.kind == "effect" and each.name not in out]
        gains = {each.name: ratio_of(slices, each.name, base).value for each in tried}
        helping = [each for each in tried if gains[each.name] > 1 + EQUAL]
        knobs: list[str] = []
        values: dict[str, Any] = {}
        for each in sorted(helping, key=lambda each: -gains[each.name]):
            clash = any(values.get(name, value) != value for name, value in each.values.items())  # hooks, and flat
            if clash or each.knob in knobs or len(knobs) == 5:
                continue
            knobs, values = [*knobs, each.knob], {**values, **each.values}
            if len(knobs) > 1:
                name = " ".join(f"{knob}={plain(value)}" for knob, value in values.items())
                self.candidates.append(Candidate(name=name, kind="combination", values=values))
                self.states[name] = ""

    def _choose(self, leader: Candidate) -> None:
        """Choose the leader where the launches of its own resolve that it gains, else the shipped settings."""
        gain, name, why = ratio_of(self.slices("confirm"), leader.name, self._reference.name), leader.name, ""
        if leader is not self._reference:
            if name in self.failed:
                why = f"{name} failed when it was launched again ({self.failed[name]})"
            elif name in self.slow():
                why = f"{name} fell into a slow mode when it was launched again"
            elif not (gain.n >= LEAST_ROUNDS and gain.low > 1):
                why = f"{name} led, but launched again its gain ({words(gain)}) is not resolved"
        self.chosen = self._reference if why else leader
        self.confirmed = self.chosen is not self._reference
        spent = {"budget": "the time was used up; ", "rounds": "the rounds were used up; "}.get(self.stop, "")
        if self.stop == "resolved" and (why or not self.confirmed):
            self.stop = "kept"
        if self.stop == "resolved":
            self.text = f"resolved: the fastest tried is {name}, which gains over the shipped settings"
        elif self.confirmed:
            self.text = f"not resolved: {spent}others may be faster than {name}, which gains over the shipped settings"
        else:
            why = why or f"{spent}nothing that was tried gains more than {100 * EQUAL:.0f} %"
            self.text = f"not resolved: {why}; the shipped settings are kept"
