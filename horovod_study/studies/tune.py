"""`run STUDY --tune`: which settings of communication make the training of a study fastest, at its most workers.

Settings are arms of a race by halving (docs/studies.md). Libraries read theirs when they start, so each
arm is launched: it is a cell of the study RUNS/<study>-tune, in turns where that is possible. What is typed again goes
on: a launch that is whole is only read. Machines drift, so settings are only ever compared within rounds, by the
estimate of `analysis.paired`: a launch in turns has many, one after the other all runs of a launch are one round.

After each stage the slower half is out (Z. Karnin, T. Koren and O. Somekh, "Almost optimal exploration in multi-armed
bandits", 2013).
"""

import math
import os
import random
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import yaml
from rich.console import Console

from horovod_study.analysis.paired import MIN_ROUNDS, Slice, estimate, pairs
from horovod_study.analysis.stats import Interval, moderated_ratio
from horovod_study.cluster.process import GRACE_S
from horovod_study.config.roles import TRUTH, Option, plain
from horovod_study.config.run import Cell, available_cores
from horovod_study.config.workload import Configuration, Workload
from horovod_study.errors import ConfigError, StudyError, nearest, refuse
from horovod_study.measure.clock import now
from horovod_study.records import TurnSlice, read_turns
from horovod_study.studies.attempt import INTERRUPTED, record_in
from horovod_study.studies.ledger import Ledger, read_ledger, set_aside
from horovod_study.studies.runner import Design, RunOptions, end_unattended, follow
from horovod_study.studies.study_file import StudyConfig, sweep_of
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import apart_because, rates, worker_mb, workers_that_fit
from horovod_study.text.numbers import quoted
from horovod_study.text.progress import duration, show
from horovod_study.text.tables import NOTHING, table_of, to_lines

SECONDS = 2.0  # of a launch that does not alternate
_START_UP_S = 90.0  # a launch that has not ended after this and ten times its seconds hangs
_RESERVED = 0.4  # of the time, at most, is kept for confirming
EQUAL = 0.01
"""Settings whose speeds differ by at most this share are taken for equal: the one with fewer changes is better."""
LEAST_ROUNDS = 4  # before two settings are said to differ
SHIPPED, LIBRARY = "shipped settings", "library defaults"


class Candidate(NamedTuple):
    """Settings to be tried: what is changed from the shipped ones; `knob` is that of a single setting."""

    name: str
    values: Mapping[str, Any] = MappingProxyType({})
    knob: str = ""


Way: TypeAlias = Mapping[str, tuple[int, int]]
ALONE: Way = {"stage": (3, 1), "confirm": (5, 1)}
IN_TURNS: Way = {"stage": (1, 16), "confirm": (3, MIN_ROUNDS)}
"""How settings are measured in a stage, and for confirming: launches, and rounds of each."""


class Heat(NamedTuple):
    """One launch of some settings: in turns with at most so many rounds, or one after the other."""

    what: str  # stage | confirm
    number: int  # from 1
    arms: tuple[Candidate, ...]
    rounds: int


Made: TypeAlias = tuple[Sequence[Slice], Mapping[str, str]] | None
"""What came of a heat: the slices of all arms, and why an arm failed. None: there was no time for it."""
Launch: TypeAlias = Callable[[Heat], Generator[StudyCells, Ledger, Made]]


def ratio_of(slices: Sequence[Slice], one: str, other: str) -> Interval:
    """Return speed of `one` over that of `other` within rounds; without ends where they share less than two.

    Launches of a single round are independent of each other: Student's t of their differences.
    """
    found = pairs(slices, one, other)
    if (known := estimate(found)) is not None:
        return known.ratio
    return moderated_ratio(np.concatenate([*found.differences, np.empty(0)]), math.nan, 0.0)


def words(ratio: Interval) -> str:
    """Return e.g. 1.052 [1.031, 1.074]."""
    return quoted(ratio.value, ratio.low, ratio.high) or NOTHING


class Race:
    """Where a race stands: who is left, all slices, and in the end who is chosen."""

    def __init__(self, arms: Sequence[Candidate]) -> None:
        """`arms`: the first is what is to be beaten, and is in every heat."""
        self.arms, self.chosen = list(arms), arms[0]
        self.slower: set[str] = set()  # arms of the slower half of a stage
        self.failed: dict[str, str] = {}  # arm -> why it failed
        self.slices: list[Slice] = []
        self.confirming: list[Slice] = []  # those of the launches that confirm
        self.text = ""  # the verdict in words

    def gain(self, arm: Candidate, slices: Sequence[Slice] | None = None) -> Interval:
        """Return the speed of an arm over that of the shipped settings, by all slices or by these."""
        return ratio_of(self.slices if slices is None else slices, arm.name, self.arms[0].name)

    def left(self) -> list[Candidate]:
        """Return who else is in the race, the fastest first."""
        left = [each for each in self.arms[1:] if each.name not in self.slower and each.name not in self.failed]
        return sorted(left, key=lambda each: -np.nan_to_num(self.gain(each).value))

    def leader(self) -> Candidate:
        """Return who leads: of those within EQUAL of the fastest, also of slower halves, the one with least changes."""
        known = [(self.gain(each).value, each) for each in self.arms[1:] if each.name not in self.failed]
        best = max([1.0, *(value for value, _ in known if value > 1 + EQUAL)])
        close = [each for value, each in known if value * (1 + EQUAL) >= best]
        return self.arms[0] if best == 1.0 else min(close, key=lambda each: len(each.values))

    def combine(self) -> None:
        """Add combinations of the best value of each knob that seems to help by EQUAL: the best two, three, ..."""
        values: dict[str, Any] = {}
        knobs: list[str] = []
        for each in self.left():
            clash = any(values.get(name, value) != value for name, value in each.values.items())  # hooks, and flat
            if clash or not each.knob or each.knob in knobs or len(knobs) == 5 or not self.gain(each).value > 1 + EQUAL:
                continue
            knobs, values = [*knobs, each.knob], {**values, **each.values}
            if len(knobs) > 1:
                name = " ".join(f"{knob}={plain(value)}" for knob, value in values.items())
                self.arms.append(Candidate(name=name, values=values))

    def choose(self, leader: Candidate, late: bool) -> None:
        """Choose the leader where the launches of its own resolve that it gains, else the shipped settings."""
        name, gain = leader.name, self.gain(leader, self.confirming)
        spent = "the time was used up; " if late else ""
        if leader is self.arms[0]:
            why = f"{spent}nothing that was tried gains more than {100 * EQUAL:.0f} %"
        elif not gain.n:
            why = f"{name} led, and there was no time to launch it again"
        elif name in self.failed or gain.n < LEAST_ROUNDS or not gain.low > 1:
            why = f"{name} led, but launched again its gain ({words(gain)}) is not resolved"
        else:
            self.chosen = leader
            told = f"not resolved: {spent}others may be faster than {name}"
            told = told if late else f"resolved: the fastest tried is {name}"
            self.text = f"{told}, which gains over the shipped settings"
            return
        self.text = f"not resolved: {why}; the shipped settings are kept"


def halving(race: Race, way: Way, launch: Launch, *, seed: int, room: float = math.inf) -> Design:
    """Launch heats until one arm of the `race` is left, and choose; `room`: so many fit into memory together.

    StudyError: the first arm failed.
    """
    numbers, size = count(1), int(min(max(room, 2), 1000)) - 1

    def measure(what: str) -> Generator[StudyCells, Ledger, bool]:
        """Launch all or the leader with the first arm, in parts that fit; return False when time was up before."""
        launches, rounds = way[what]
        for _ in range(launches):
            others = race.left() if what == "stage" else [leader]
            for place in range(0, len(others), size):
                part, number = [race.arms[0], *others[place : place + size]], next(numbers)
                random.Random(f"{seed} {what} {number}").shuffle(part)
                if (
                    made := (yield from launch(Heat(what=what, number=number, arms=tuple(part), rounds=rounds)))
                ) is None:
                    return False
                slices, failed = made
                race.slices += slices
                race.confirming += slices if what == "confirm" else ()
                shipped = failed.get(race.arms[0].name)
                told = f"the shipped settings do not run: {shipped}"
                refuse("run: --tune", (shipped, told), error=StudyError)
                race.failed |= failed
        return True

    stage, late = 0, False
    while not late and (len(race.left()) > 1 or not stage):
        late, stage = not (yield from measure("stage")), stage + 1
        left = race.left()
        race.slower |= set() if late else {each.name for each in left[(len(left) + 1) // 2 :]}
        if stage == 1:
            race.combine()
    if (leader := race.leader()) is not race.arms[0]:
        yield from measure("confirm")
    race.choose(leader, late)


def knobs_of(texts: Sequence[str], workload: Workload, runtime: str) -> dict[str, tuple[Any, ...]]:
    """Return knob -> the values to try, none for the usual ones, from NAME or NAME=VALUE,...; none: all that matter.

    ConfigError for what is no knob, or has no effect over the runtime.
    """
    found: dict[str, tuple[Any, ...]] = {}
    why = {knob: why_not(workload.options[knob], runtime) for knob in workload.tuned}
    for text in texts:
        name, equals, list_ = text.partition("=")
        name, told = name.strip().replace("-", "_"), [word.strip() for word in list_.split(",")]
        useful = ", ".join(knob for knob, reason in why.items() if not reason)
        refuse(
            "run",
            (name not in why, f"--tune {name!r} is not known{nearest(name, why)}; allowed: {', '.join(why)}"),
            (why.get(name), f"--tune {name} {why.get(name)}; knobs that do something over {runtime}: {useful}"),
            (equals and not all(told), f"--tune {text!r}; write NAME=VALUE,VALUE,... such as cycle_time_ms=0.1,1"),
        )
        option = workload.options[name]
        values = [TRUTH.get(word.lower(), word) if option.kind is bool else word for word in told if equals]
        found[name] = tuple(dict.fromkeys(option.check("run: --tune", each) for each in values))
    return found or dict.fromkeys(workload.tuned, ())


def why_not(knob: Option, runtime: str) -> str:
    """Return why a knob is not worth trying over a runtime, "" when it is."""
    if not knob.matters(runtime):
        return f"has no effect over {runtime}"
    return "means something on several hosts only, and this is one" if knob.several_hosts else ""


def arms_of(base: Cell, knobs: Mapping[str, Sequence[Any]], cores: int) -> tuple[list[Candidate], dict[str, str]]:
    """Return the arms, shipped settings and library defaults first, and why which knob is not varied."""
    options, workers = base.config.workload.options, base.placement.workers
    library, most = library_values(base.runtime, base.config), {"ps_servers": workers, "threads": cores // workers}
    arms = [Candidate(SHIPPED), *([Candidate(LIBRARY, library)] if library else [])]
    left_out: dict[str, str] = {}
    for knob, own in knobs.items():
        option, why = options[knob], why_not(options[knob], base.runtime)
        if why.startswith("has no effect"):
            continue  # what belongs to another library goes without saying
        same = (base.config.threads,) if knob == "threads" else (option.default,)
        tries = [each for each in own or option.tries if each not in same and not each > most.get(knob, each)]
        if why or not tries:
            left_out[knob] = why or f"has no other value {'that fits the cores' if knob == 'threads' else 'to try'}"
            continue
        hooks = {"reduction": "hooks"} if option.hooks else {}
        for value in tries:
            values = {**hooks, knob: value}
            try:
                base.config.changed(**values)
            except ConfigError as error:
                left_out[knob] = f"would be refused: {str(error).partition('; ')[0]}"
            else:
                arms.append(Candidate(f"{knob}={plain(value)}{' with hooks' if hooks else ''}", values, knob))
    return arms, left_out


def library_values(runtime: str, config: Configuration) -> dict[str, Any]:
    """Return the options that make a run communicate as its library does when nobody sets anything.

    Captured steps average one flat buffer whatever the library would do: a CUDA graph holds no hooks.
    """
    options = config.workload.options
    hooks = runtime.startswith(("horovod/", "ddp/")) and config.no_hooks is None
    of_hooks = {"reduction": "hooks", "broadcast_buffers": True, "bucket_view": False} if hooks else {}
    values: dict[str, Any] = {"horovod_defaults": True, "thread_priority": "off", **of_hooks}
    return {name: value for name, value in values.items() if name in options and options[name].matters(runtime)}


def tune(study: StudyConfig, runs_dir: Path, texts: Sequence[str], options: RunOptions, console: Console) -> bool:
    """Race the settings that `texts` name (knobs_of) and print table and lines for the study file; False: interrupted.

    StudyError: there is nothing to vary, or the shipped settings do not run.
    """
    base, name = base_of(study), f"{study.name}-tune"
    workload, workers = base.config.workload, base.placement.workers
    knobs = knobs_of(texts, workload, base.runtime)
    alone = apart_because([base, base])  # that two fit is the least
    if study.partitions[base.placement.partition].scheduler != "local":
        alone = "it runs on other hosts than this machine"
    lasts_s = 3600 * study.budget.get("hours", 10 / 60 if alone else 3 / 60)
    own: dict[str, Any] = {"part": True, "precision": None, "wanted": (), "budget": {}, "turns": not alone}
    sweep = replace(sweep_of(study, runs_dir), name=name, directory=runs_dir / name, **own)
    way = "one launch after the other: " + alone if alone else "in turns"
    what = f"{base.runtime} with {workers} workers, batch {base.config.batch}"
    show(console, f"tuning {what}, {way}, at most {duration(lasts_s)}")
    for each in workload.options.values():
        if each.variable in os.environ and each.matters(base.runtime):
            told = f"{each.variable} is set in the environment, and holds for the shipped settings; unset it"
            show(console, f"warning: {told}")
    arms, left_out = arms_of(base, knobs, available_cores())
    why = "; ".join(f"{knob} {why}" for knob, why in left_out.items())
    nothing = f"there is nothing to vary: {why}; name other knobs, or values as KNOB=V1,V2"
    refuse("run: --tune", (not any(each.knob for each in arms), nothing), error=StudyError)
    room = math.inf if alone else int(workers_that_fit(worker_mb(runs_dir / study.name)) / workers)
    race = Race(arms)
    heats = _Heats(sweep, base, bool(alone), lasts_s, console)
    design = halving(race, ALONE if alone else IN_TURNS, heats.launch, seed=study.seed, room=room)
    ended = follow(design, replace(options, policy=heats.policy, watch_load_s=0.0), Console(quiet=True))
    if ended is not None and ended.interrupted:
        show(console, f"interrupted; continue with: {options.command}")
        return False
    for line in (*_table(race, left_out), "", *run_lines(base, race.chosen)):
        show(console, line)
    return True


def base_of(study: StudyConfig) -> Cell:
    """Return the run whose settings are raced: of the first runtime, with most workers, communicating as shipped."""
    several = [cell for cell in study.cells() if cell.runtime != "serial" and cell.placement.workers > 1]
    alone = "--tune needs a run with several workers; add some to sweep.workers"
    refuse(str(study.source or study.name), (not several, alone))
    alike = [each for each in several if each.runtime == several[0].runtime]
    cell = max(alike, key=lambda each: each.placement.workers)
    config, workload = cell.config, cell.config.workload
    plain_ones = [each for each in workload.tuned if each in workload.communication]
    values = {each: workload.options[each].default for each in plain_ones}
    values |= {**dict.fromkeys(workload.budgets), "seconds": SECONDS, **workload.quiet}
    return replace(cell, config=config.changed(**values, study=f"{study.name}-tune"))


@dataclass
class _Heats:
    """Launches heats as cells of a sweep, within the time that there is."""

    sweep: StudyCells
    base: Cell
    alone: bool
    lasts_s: float
    console: Console
    used_s: float = 0.0
    launches: int = 0

    def policy(self, slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
        """Return who of the present heat needs more turns; nobody when its time is up."""
        late = now() - self._began > self._until_s and slices and slices[-1].round + 1 >= LEAST_ROUNDS
        return [] if late or (slices and slices[-1].round + 1 >= self._rounds) else list(left)

    def launch(self, heat: Heat) -> Generator[StudyCells, Ledger, Made]:
        """Launch a heat that is not there yet, and return what it has made; None: there is no time for it."""
        configs = {arm.name: self.base.config.changed(**arm.values) for arm in heat.arms}
        cells = [replace(self.base, config=each, label=n).repeated(heat.number) for n, each in configs.items()]
        sweep = replace(self.sweep, cells=tuple(cells), timeout_s=_START_UP_S + 10 * SECONDS)
        self._names, self._rounds = {cell.key: cell.label for cell in cells}, heat.rounds
        self._until_s = self.lasts_s * (1.0 if heat.what == "confirm" else 1 - _RESERVED) - self.used_s
        ledger, self._began = read_ledger(sweep), now()
        first = next(each for each in ledger.entries if each.cell.label == SHIPPED)
        if first.state != "done" or ledger.count("done", "failed", "timed out") < len(cells):
            if len(cells) * self.used_s / max(1, self.launches) > self._until_s:
                return None
            for each in ledger.entries:  # those that an interrupted heat has finished share no round with the others
                out, why = self.sweep.directory.resolve() / each.key, "its runner was killed"
                if each.state == "running":
                    end_unattended(out, INTERRUPTED, why, what=each.name, grace_s=GRACE_S)
                set_aside(self.sweep.directory, each.cell)
            ledger = yield sweep
            self.used_s, self.launches = self.used_s + now() - self._began, self.launches + len(cells)
        failed = {self._names[each.key]: each.reason for each in ledger.entries if each.state != "done"}
        found = self._slices([cell for cell in cells if cell.label not in failed])
        slices = [replace(each, launch=f"{heat.what}/{heat.number:03d}/{each.launch}") for each in found]
        for arm in {each.label for each in cells} - {each.cell for each in slices} - set(failed):
            failed[arm] = "it trained too little to be measured; give the study more seconds"
        left = duration(max(0.0, self.lasts_s - self.used_s))
        show(self.console, f"  {heat.what} {heat.number}: {len(heat.arms)} settings; at most {left} left")
        return slices, failed

    def _slices(self, cells: Sequence[Cell]) -> list[Slice]:
        found = [] if self.alone else rates(read_turns(self.sweep.directory), self._names)
        if found and {each.cell for each in found} >= {cell.label for cell in cells}:
            return found
        # One after the other, or so short that one was over before its first turn: a launch is a round.
        records = {cell.label: record_in(self.sweep.directory / cell.key) for cell in cells}
        speeds = {arm: record.totals.get("samples_per_s") for arm, record in records.items() if record is not None}
        return [Slice(launch="", round=0, cell=arm, rate=speed) for arm, speed in speeds.items() if speed]


def _table(race: Race, left_out: Mapping[str, str]) -> list[str]:
    """Return the lines of the table: setting, ratio to shipped with its interval, verdict; and who is chosen, why."""
    rows = []
    for arm in race.arms:
        gain, why = race.gain(arm), race.failed.get(arm.name, "")
        speeds = [each.rate for each in race.slices if each.cell == arm.name]
        verdict = "faster" if gain.low > 1 else "slower" if gain.high < 1 else "no difference resolved"
        verdict = f"failed: {why}" if why else verdict if gain.known else "too few rounds"
        ratio, verdict = ("1", "what the others are compared with") if arm.name == SHIPPED else (words(gain), verdict)
        name = f"{'*' if arm is race.chosen else ' '} {arm.name}"
        rows.append((name, ratio, f"{median(speeds):,.0f}" if speeds else "-", verdict))
    lines = to_lines(table_of(("setting", "of shipped", "samples/s", ""), rows, texts=(0, 3)), indent=2)
    lines += [f"    {knob} was not varied: it {why}" for knob, why in left_out.items()]
    lines += ["", f"{race.text[:1].upper()}{race.text[1:]}."]
    if race.chosen is not race.arms[0]:
        lines.append(f"  over the shipped settings: {words(race.gain(race.chosen, race.confirming))}, launched again")
    return lines


def run_lines(base: Cell, chosen: Candidate) -> list[str]:
    """Return the chosen settings as lines of a study file whose sweep has the runtime."""
    own = {name: value for name, value in vars(base.config).items() if name == "horovod_build" and value}
    text = yaml.safe_dump({"run": {"threads": base.config.threads, **own, **chosen.values}}, sort_keys=False)
    return [f"# for a study file with runtime: {base.runtime} in its sweep", *text.splitlines()]
