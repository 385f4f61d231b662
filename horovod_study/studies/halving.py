"""The design of `run STUDY --tune`: settings race each other by halving. It says what is launched next, and who wins.

Machines drift, so settings are only ever compared within rounds, by the estimate of `analysis.paired`. In turns
(turns.py) one launch of all settings together has many rounds of slices; where they cannot alternate a launch is one
round of runs one after the other. Everything else is the same for both:

A stage measures all settings that are left, with the shipped ones and the library's defaults. Then whoever is resolved
to be slower than the fastest is out (O. Maron and A. Moore, Hoeffding races, 1994), and the slower half of the rest
(Z. Karnin, T. Koren and O. Somekh, "Almost optimal exploration in multi-armed bandits", 2013). After the first one the
best values of single settings that help are combined. Whoever wins was also lucky: the leader is launched again,
against both baselines, and is chosen where these launches alone resolve its gain.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

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
LEAST_ROUNDS = 4  # before two settings are said to differ
_LOOKS_AT = (LEAST_ROUNDS, 5, 7, 9, 12, 15, 19)  # rounds of a launch, each about a quarter more than before
SHIPPED, LIBRARY = "shipped settings", "library defaults"


class Candidate(NamedTuple):
    """Settings to be tried: what is changed from the shipped ones; `knob` is that of a single setting."""

    name: str
    values: Mapping[str, Any] = MappingProxyType({})
    knob: str = ""

    @property
    def baseline(self) -> bool:
        """Whether it stays in the race whatever it does."""
        return self.name in (SHIPPED, LIBRARY)


Way: TypeAlias = Mapping[str, tuple[int, int]]
ALONE: Way = {"first": (2, 1), "stage": (3, 1), "confirm": (5, 1)}
IN_TURNS: Way = {"first": (1, 8), "stage": (1, 20), "confirm": (3, MIN_ROUNDS)}
"""How settings are measured in the first stage, in the others, and for confirming: launches, and rounds of each."""


class Heat(NamedTuple):
    """One launch of some settings: in turns with at most so many rounds, or one after the other."""

    what: str  # stage | confirm
    number: int  # from 1
    arms: tuple[Candidate, ...]
    rounds: int

    def wanted(self, slices: Sequence[Slice]) -> Collection[str]:
        """Return who needs more rounds: all, but for the baselines those that are resolved to be slower."""
        made = 1 + max(each.round for each in slices)
        if made >= self.rounds:
            return ()
        last = {each.cell for each in slices if each.round == made - 1}
        if self.what == "confirm" or made not in _LOOKS_AT:
            return last
        return last - _slower(slices) | {each.name for each in self.arms if each.baseline and each.name in last}


Made: TypeAlias = tuple[Sequence[Slice], Mapping[str, str]] | None
"""What came of a heat: the slices of all arms, and why an arm failed. None: there was no time for it."""


def ratio_of(slices: Sequence[Slice], one: str, other: str, level: float = LEVEL) -> Interval:
    """Return speed of `one` over that of `other` within rounds; without ends where they share less than two.

    Launches of a single round are independent of each other: Student's t of their differences.
    """
    found = pairs(slices, one, other)
    if (known := estimate(found, level=level)) is not None:
        return known.ratio
    return moderated_ratio(np.concatenate([*found.differences, np.empty(0)]), math.nan, 0.0, level)


def words(ratio: Interval) -> str:
    """Return e.g. 1.052 [1.031, 1.074]."""
    ends = f" [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.known else ""
    return f"{ratio.value:.3f}{ends}" if math.isfinite(ratio.value) else "-"


def _slower(slices: Sequence[Slice]) -> set[str]:
    """Return who is resolved to be slower than the fastest."""
    counts = Counter(each.cell for each in slices)
    most = max(counts, key=lambda cell: counts[cell], default="")
    known = {cell: ratio_of(slices, cell, most) for cell in counts if cell != most}
    gains = {most: 1.0, **{cell: ratio.value for cell, ratio in known.items() if ratio.n >= LEAST_ROUNDS}}
    best = max(gains, key=lambda cell: gains[cell])
    compared = {cell: ratio_of(slices, best, cell, _LOOK_LEVEL) for cell in counts if cell != best}
    return {cell for cell, ratio in compared.items() if ratio.n >= LEAST_ROUNDS and ratio.low > 1}


class Race:
    """Where a race stands: who is left, all slices, and in the end who is chosen."""

    def __init__(self, arms: Sequence[Candidate]) -> None:
        """`arms`: the first is what is to be beaten."""
        self.arms, self.chosen = list(arms), arms[0]
        self.out: dict[str, str] = {}  # arm -> why it is not in the race any more
        self.slices: list[Slice] = []
        self.confirming: list[Slice] = []  # those of the launches that confirm
        self.stop = "stages"  # resolved | kept | time | stages
        self.text = ""  # the verdict in words

    def gain(self, arm: Candidate, slices: Sequence[Slice] | None = None) -> Interval:
        """Return the speed of an arm over that of the shipped settings, by all slices or by these."""
        return ratio_of(self.slices if slices is None else slices, arm.name, self.arms[0].name)

    def left(self, *, baselines: bool = False) -> list[Candidate]:
        """Return who is in the race."""
        return [each for each in self.arms if each.name not in self.out and (baselines or not each.baseline)]

    def leader(self) -> Candidate:
        """Return who leads: of those that seem as fast the one with the fewest changes, the first where none gains."""
        gains = {each.name: self.gain(each).value for each in self.left(baselines=True)}
        best = max((value for value in gains.values() if not math.isnan(value)), default=1.0)
        close = [each for each in self.left(baselines=True) if gains[each.name] * (1 + EQUAL) >= best]
        return min(close, key=lambda each: (len(each.values), -gains[each.name])) if best > 1 + EQUAL else self.arms[0]

    def take(self, heat: Heat, made: Made) -> bool:
        """Take what came of a heat; return whether there was time for it. StudyError: the first arm failed."""
        if made is None:
            return False
        slices, failed = made
        self.slices += slices
        self.confirming += slices if heat.what == "confirm" else ()
        if (why := failed.get(self.arms[0].name)) is not None:
            raise StudyError(f"run: --tune: the shipped settings do not run: {why}")
        self.out |= {name: f"failed: {why}" for name, why in failed.items()}
        return True

    def halve(self, stage: int) -> None:
        """Take out what is resolved to be slower, and the slower half of the rest."""
        left = {each.name for each in self.left(baselines=True)}
        slices = [each for each in self.slices if each.cell in left]
        worse = _slower(slices)  # over all launches, and within one, whose rounds are many
        for launch in {each.launch for each in slices}:
            worse |= _slower([each for each in slices if each.launch == launch])
        gains = {each.name: np.nan_to_num(self.gain(each).value) for each in self.left()}
        for place, name in enumerate(sorted(gains, key=lambda name: -gains[name])):
            if name in worse:
                self.out[name] = f"slower than the fastest, after stage {stage}"
            elif 2 * place >= len(gains) > 1:
                self.out[name] = f"in the slower half after stage {stage}"

    def combine(self) -> None:
        """Add combinations of the best value of each knob that seems to help by EQUAL: the best two, three, ..."""
        tried = [each for each in self.arms if each.knob and not self.out.get(each.name, "").startswith("failed")]
        single = [(value, each) for each in tried if (value := self.gain(each).value) > 1 + EQUAL]
        values: dict[str, Any] = {}
        knobs: list[str] = []
        for _, each in sorted(single, key=lambda known: -known[0]):
            clash = any(values.get(name, value) != value for name, value in each.values.items())  # hooks, and flat
            if clash or each.knob in knobs or len(knobs) == 5:
                continue
            knobs, values = [*knobs, each.knob], {**values, **each.values}
            if len(knobs) > 1:
                name = " ".join(f"{knob}={plain(value)}" for knob, value in values.items())
                self.arms.append(Candidate(name=name, values=values))

    def choose(self, leader: Candidate) -> None:
        """Choose the leader where the launches of its own resolve that it gains, else the shipped settings."""
        spent = {"time": "the time was used up; ", "stages": "the stages were used up; "}.get(self.stop, "")
        gain = self.gain(leader, self.confirming)
        if leader is self.arms[0]:
            why = f"{spent}nothing that was tried gains more than {100 * EQUAL:.0f} %"
        elif leader.name in self.out:
            why = f"{leader.name} {self.out[leader.name]} when it was launched again"
        elif not gain.n:
            why = f"{leader.name} led, and there was no time to launch it again"
        elif not (gain.n >= LEAST_ROUNDS and gain.low > 1):
            why = f"{leader.name} led, but launched again its gain ({words(gain)}) is not resolved"
        else:
            self.chosen, why = leader, ""
        if why:
            self.stop = "kept" if self.stop == "resolved" else self.stop
            self.text = f"not resolved: {why}; the shipped settings are kept"
        else:
            best, others = f"the fastest tried is {leader.name}", f"{spent}others may be faster than {leader.name}"
            told = f"resolved: {best}" if self.stop == "resolved" else f"not resolved: {others}"
            self.text = f"{told}, which gains over the shipped settings"


def halving(race: Race, way: Way, *, seed: int, room: float = math.inf) -> Generator[Heat, Made, None]:
    """Yield what is launched next until one arm of the `race` is left; `room`: so many fit into memory together."""
    numbers = count(1)

    def measure(what: str, effort: str, group: Sequence[Candidate]) -> Generator[Heat, Made, bool]:
        """Launch a group with the first arm, in parts that fit; return False when time was up before."""
        first, (launches, rounds) = race.arms[0], way[effort]
        for _ in range(launches):
            others = [each for each in group if each is not first and each.name not in race.out]
            size = int(min(max(room, 2) - 1, max(len(others), 1)))
            for place in range(0, len(others), size):
                part, number = [first, *others[place : place + size]], next(numbers)
                random.Random(f"{seed} {what} {number}").shuffle(part)
                heat = Heat(what=what, number=number, arms=tuple(part), rounds=rounds)
                if not race.take(heat, (yield heat)):
                    return False
        return True

    for stage in range(1, 7):
        if not (yield from measure("stage", "stage" if stage > 1 else "first", race.left(baselines=True))):
            race.stop = "time"
            break
        race.halve(stage)
        if stage == 1:
            race.combine()
        if len(race.left()) <= 1:
            race.stop = "resolved"
            break
    if (leader := race.leader()) is not race.arms[0]:
        near = [each for each in race.left(baselines=True) if each.baseline and each is not leader]
        yield from measure("confirm", "confirm", [leader, *near])
    race.choose(leader)
