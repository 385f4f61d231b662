"""Designs of `run`: `run A B`, two configurations side by side, and `run STUDY --tune`, a race of settings.

A design yields the cells that are to be run next and is told what came of them; the engine runs them as those of any
study, so that what is typed again goes on. Machines drift: cells are compared within rounds or blocks only.

`run A B`: a block is one run of A and one of B at one worker count, with the number of a repeat in common. They train
in turns (turns.py), or, where they cannot, one right after the other. A block counts when both its runs are done and,
in turns, have alternated. Of one of which a single side is done (the other one has failed, or was broken off) both are
run again: a partner from another time is none. What `analysis/compare/comparison.py` says about the blocks is written
beside them by the command line.

`--tune`: settings are arms of a race by halving at the most workers of the study (docs/studies.md), each launched,
because libraries read theirs when they start: a cell of the study RUNS/<study>-tune. After each stage the slower half
is out (Z. Karnin, T. Koren and O. Somekh, "Almost optimal exploration in multi-armed bandits", 2013).
"""

import itertools
import math
import os
import random
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import yaml
from rich.console import Console

from horovod_study.analysis.paired import MIN_ROUNDS, MOST_LAUNCHES, Slice, estimate, pairs
from horovod_study.analysis.stats import Interval, moderated_ratio
from horovod_study.cluster.identity import identify
from horovod_study.cluster.process import GRACE_S
from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import Form, Number, Options, Text, Whole, above, accept, at_least, one_of
from horovod_study.config.options import SET_BY_COMPARE, require_workers
from horovod_study.config.partitions import this_machine
from horovod_study.config.roles import TRUTH, Option, Role, plain
from horovod_study.config.run import Cell, Placement, available_cores
from horovod_study.config.workload import Configuration, Workload
from horovod_study.errors import ConfigError, StudyError, nearest, refuse
from horovod_study.measure.clock import now
from horovod_study.records import RunRecord, TurnSlice, read_steps, read_turns, step_ranks
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies import turns
from horovod_study.studies.attempt import INTERRUPTED, record_in
from horovod_study.studies.ledger import Ledger, read_ledger, set_aside, set_aside_part_blocks
from horovod_study.studies.runner import AGAIN, Design, RunOptions, StudyResult, end_unattended, follow
from horovod_study.studies.study_file import StudyCells, StudyConfig, sweep_of
from horovod_study.studies.turns import Policy, apart_because, rates, worker_mb
from horovod_study.text.numbers import quoted
from horovod_study.text.progress import duration, show
from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import cut, plural

ARMS = ("A", "B")
_BLOCKS = {True: 5, False: 10}
"""Default, in turns or not: in turns a block says as much as it has rounds."""
_SAME_FOR_BOTH = (*SET_BY_COMPARE, "seconds", "steps", "workers")


class _Named(Form):
    runtime: Annotated[Text, one_of(RUNTIMES)]


class _PairOptions(Options):
    seconds: Annotated[Number, above(0)] | None
    blocks: Annotated[Whole, at_least(1)] | None


class Side(NamedTuple):
    """One side of a comparison."""

    text: str  # as the user wrote it
    runtime: str
    config: Configuration  # all but the length, the workers and the number of the block


def sides_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the two sides where `run` was given these, () where a study file comes first.

    ConfigError: not two sides, or a study file behind one.
    """
    if not words or not _is_side(words[0]):
        return ()
    number = f"a comparison has two sides, such as `run horovod/mpi mpi/mpi`, not {len(words)}"
    lone = f"{words[0]} is a side of a comparison, {words[-1]} is none; give two sides A B"
    refuse("run", (len(words) != 2, number), (not _is_side(words[-1]), lone))
    return tuple(words)


def _is_side(word: str) -> bool:
    """Return whether this is RUNTIME[,option=value...], or a file of options with a runtime; a study file has none."""
    if not _is_file(word):
        return bool(set("/,=") & set(word)) or word in RUNTIMES
    return Path(word).is_file() and "runtime" in load_yaml(Path(word))


def _is_file(word: str) -> bool:
    return word.lower().endswith((".yaml", ".yml")) or Path(word).is_file()


def read_side(letter: str, text: str, common: Mapping[str, Any], workload: Workload) -> Side:
    """Return one side: a YAML file of options, or RUNTIME[,option=value...].

    `common`: options of the command line. They replace those of a file, and are replaced by those of a short text.
    Raises ConfigError naming the side.
    """
    source = f"run: {letter}"
    values, words = dict(common), list[str]()
    if _is_file(text):
        source += f" ({text})"
        content = load_yaml(Path(text))
        runtime = content.pop("runtime", None)
        values = {**{name: value for name, value in content.items() if name not in _SAME_FOR_BOTH}, **common}
    else:
        runtime, *words = (part.strip() for part in text.split(","))
    given = set[str]()
    for part in words:  # the configuration makes numbers of them and refuses what does not fit
        name, _, word = (piece.strip() for piece in part.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        option = workload.options.get(name)
        idle = option is not None and runtime in RUNTIMES and not option.matters(runtime)
        refuse(
            source,
            (not word, f"{part!r} is not option=value, as in thread_priority=off"),
            (name in given, f"{name} is given twice; give it once"),
            (name in _SAME_FOR_BOTH, f"{name} has no place here; it is the same for both sides and every run"),
            (idle, f"{name} has no effect on {runtime}; leave it out"),
            (option is None, f"unknown option {name!r}{nearest(name, workload.options)}; see `run --help-all`"),
        )
        given.add(name)
        shipped = option.default if option is not None and word == "shipped" else word
        values[name] = TRUTH.get(word.lower(), shipped) if option is not None and option.kind is bool else shipped
    begin = "begin with one, such as horovod/mpi, or give a YAML file `runtime:`"
    accept(_Named, {"runtime": runtime} if runtime else {}, source, again=begin)
    backend, _, transport = runtime.partition("/")
    config = workload.configure({**values, "backend": backend, "transport": transport or "none"}, source=source)
    return Side(text, runtime, config)


def check_configs(a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    """Return the options in which A and B differ by intent; ConfigError when they are not to do the same work."""
    one, other, options = vars(a.config), vars(b.config), a.config.workload.options
    differing = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
    unfair = [name for name in differing if not options[name].roles & Role.MAY_DIFFER]
    texts = "; ".join(f"{name} is {one[name]} for A and {other[name]} for B" for name in unfair)
    refuse("run", (unfair, f"A and B are not to do the same work: {texts}; give both the same"))
    return differing


_EFFECTIVE = "initial_parameter_sha256 dataset_digest global_batch workers nodes precision".split()
_EFFECTIVE += ["train_samples", "warmup_steps", "device"]


def _steps_made(record: RunRecord) -> int | None:
    """Return all steps of a run: where the timed window begins in them is found for each run by itself."""
    timed: int | None = record.totals.get("steps")
    return None if timed is None else timed + int(record.totals.get("excluded_steps", 0))


def _require_same_work(
    workload: Workload, one: tuple[str, RunRecord], other: tuple[str, RunRecord], *, but: Sequence[str] = ()
) -> None:
    """Raise StudyError naming the first fact, not in `but`, in which two named runs of one worker count differ."""
    learned = workload.named(Role.LEARNING)
    applied = ("lr", *(name for name in learned if workload.options[name].roles & Role.APPLIED))

    def facts(record: RunRecord) -> dict[str, Any]:  # of what really happened
        found = {name: record.effective.get(name) for name in _EFFECTIVE}
        found |= {name: record.requested.get(name) for name in ("seed", *learned, *workload.named(Role.DATA))}
        found |= {name: record.effective.get(name) for name in applied}
        found |= {name: record.environment.get(name) for name in ("torch", "package", "revision")}
        return {**found, "steps": _steps_made(record), "host": record.host}

    others = facts(other[1])
    for name, value in facts(one[1]).items():
        if name not in but and value != others[name]:
            raise StudyError(
                f"run: {one[0]} and {other[0]} did not do the same work: {name} is {cut(str(value), 24)} there and "
                f"{cut(str(others[name]), 24)} here; nothing can be concluded, compare again with another --out"
            )


@dataclass(kw_only=True)
class Comparison:
    """A comparison: both sides, at which worker counts, in how many blocks, and how."""

    sides: Mapping[str, Side]  # A, B
    workers: tuple[int, ...]
    directory: Path
    blocks: int = 1  # per worker count; at most, where a precision is the aim
    seconds: float = 5.0  # about how long a run trains in turns where the options name no number of steps
    alone: str = ""  # why A and B of a block run one after the other; "": they train in turns
    precision: float | None = None  # half width of the interval at which a worker count needs no more blocks, relative
    differs: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # by intent, and in effect

    def __post_init__(self) -> None:
        self._run = self.sides["A"].config.changed(study=self.directory.name)
        self._partition = this_machine(self._run.partition)
        self._identity = identify(self._partition)

    def design(self) -> Design:
        """Yield the first block of each worker count, then all; what fails is repeated once.

        StudyError: runs did not do the same work, or no block has both its runs.
        """
        ledger = None
        how: dict[str, Any] = {"part": True, "seed": self._run.seed, "turns": not self.alone, "equal_steps": True}
        how |= {"precision": self.precision, "partitions": {self._partition.name: self._partition}}
        how["directory"] = self.directory
        for cells in (self._cells(1), self._cells(self.blocks)):
            for _ in range(2):
                if all(self._done(cell) for cell in cells):
                    break
                labels = {(cell.arm, cell.placement.workers): cell.label for cell in cells}
                wanted = tuple((label, labels["A", count]) for (arm, count), label in labels.items() if arm == "B")
                sweep = StudyCells(name=self.directory.name, cells=tuple(cells), wanted=wanted, **how)
                set_aside_part_blocks(read_ledger(sweep))
                ledger = yield sweep
                if not self.failed(ledger):
                    break
            if ledger is not None and not self.whole():
                why = next(iter(self.failed(ledger)), "no slice of one of them was whole; give more --steps")
                raise StudyError(f"run: no block has both its runs: {why}; fix that, and type the same again")

    def failed(self, ledger: Ledger) -> list[str]:
        """Return which cells have failed and why, one line each."""
        return [f"{each.name}: {each.reason}" for each in ledger.entries if each.state in AGAIN]

    def whole(self) -> list[dict[str, Any]]:
        """Return the blocks that count, as `compare` takes them; StudyError: runs did not do the same work."""
        slices, found = read_turns(self.directory), []
        first: dict[int, tuple[str, RunRecord]] = {}  # per worker count, what the others must agree with
        # In turns a block lasts as long as it is to be precise, so that its steps are its own.
        own = ("steps",) if self._run.steps is None else ()
        for workers, repeat in sorted((count, number) for count in self.workers for number in range(self.blocks)):
            cells, named = self._block(workers, repeat), {}
            launches = [{(each.block, each.launch) for each in slices if each.run == cell.key} for cell in cells]
            for cell in sorted(cells, key=lambda cell: cell.arm):
                if (record := self._done(cell)) is not None:
                    named[cell.arm] = f"{cell.arm} in block {repeat + 1} ({plural(workers, 'worker')})", record
            if len(named) < 2 or not (self.alone or launches[0] & launches[1]):
                continue
            for each in named.values():
                _require_same_work(self._run.workload, first.setdefault(workers, each), each, but=own)
            _require_same_work(self._run.workload, named["A"], named["B"])
            one, other = (named[arm][1].effective for arm in ARMS)
            both = {"reduction (in effect)": (one.get("reduction"), other.get("reduction"))}  # and what both know
            a, b = (each.get("settings") or {} for each in (one, other))
            both |= {name: (a[name]["value"], b[name]["value"]) for name in a if name in b}
            self.differs |= {name: values for name, values in both.items() if values[0] != values[1]}
            keys = {cell.arm: cell.key for cell in cells}
            block: dict[str, Any] = {"workers": workers, "block": repeat + 1, "first": cells[0].arm}
            block |= {arm: _figures(self.directory / keys[arm], named[arm][1]) for arm in ARMS}
            found.append(block if self.alone else {**block, "rounds": _rounds(slices, keys)})
        return found

    def document(self, result: StudyResult | None) -> dict[str, Any]:
        """Return what was compared and all blocks, as plain values; `result`: how the last runs ended."""
        blocks = self.whole()
        made = {count: [each["A"]["steps"] for each in blocks if each["workers"] == count] for count in self.workers}
        found: dict[str, Any] = {arm: {"text": each.text, "runtime": each.runtime} for arm, each in self.sides.items()}
        found |= {"differs": {name: list(values) for name, values in self.differs.items()}}
        found |= {"a_against_a": not self.differs, "batch": self._run.batch, "blocks_wanted": self.blocks}
        found["steps"] = {str(n): self._run.steps or round(median(each)) for n, each in made.items() if each}
        found["dropped"] = [] if result is None else self.failed(result.ledger)
        found["interrupted"] = result is not None and result.interrupted
        found |= {"in_turns": not self.alone, "not_in_turns_because": self.alone or None}
        return {**found, "blocks": blocks, "directory": str(self.directory)}

    @property
    def policy(self) -> Policy:
        """Which side of a block needs more turns, where no precision is the aim."""
        return turns.until_all_have if self._run.steps is None else turns.until_asked_for

    def _block(self, workers: int, repeat: int) -> list[Cell]:
        """Return both cells of a block, in the order in which they start.

        Of two consecutive blocks of a worker count one begins with A and one with B, at random which.
        """
        order, workload, steps = list(ARMS), self._run.workload, self._run.steps
        random.Random(f"pair {repeat // 2} of {workers} workers of {self._run.seed}").shuffle(order)
        length = {"steps": steps, "seconds": self.seconds if steps is None else None}
        values = {**dict.fromkeys(workload.budgets), **length, **workload.quiet}
        values |= {"study": self.directory.name, "repeat": repeat}
        place = Placement(partition=self._run.partition, workers=workers, workers_per_node=workers)
        cells = []
        for arm in order[::-1] if repeat % 2 else order:
            side = self.sides[arm]
            label, config = f"{arm}: {side.runtime}, {plural(workers, 'worker')}", side.config.changed(**values)
            cell = Cell(config=config, runtime=side.runtime, placement=place, identity=self._identity)
            cells.append(replace(cell, arm=arm, label=label))
        return cells

    def _cells(self, blocks: int) -> list[Cell]:
        """Return the cells of so many blocks of each worker count, the counts shuffled in each round.

        More blocks later only continue the list.
        """
        cells = []
        for number in range(blocks):
            counts = list(self.workers)
            random.Random(f"round {number + 1} of {self._run.seed}").shuffle(counts)
            cells += [cell for count in counts for cell in self._block(count, number)]
        return cells

    def _done(self, cell: Cell) -> RunRecord | None:
        record = record_in(self.directory / cell.key)
        done = record is not None and record.status == "done" and record.totals.get("samples_per_s")
        return record if done else None


def pairs_of(
    words: Sequence[str],
    given: Mapping[str, Any],
    workload: Workload,
    directory: Path,
    *,
    workers: Sequence[int] | None = None,
    blocks: int | None = None,
    turns: bool = True,
    precision: float | None = None,
    oversubscribe: bool = False,
) -> Comparison:
    """Return the comparison of two sides, with what was not given by default; `given`: options of a run, for both.

    ConfigError: what was given does not go together, or A and B are not to do the same work.
    """
    common = dict(given)
    seconds = _PairOptions.of("run", {"seconds": common.pop("seconds", None), "blocks": blocks}).seconds
    a, b = sides = [read_side(arm, text, common, workload) for arm, text in zip(ARMS, words, strict=True)]
    differs, serial = check_configs(a, b), [side.text for side in sides if side.runtime == "serial"]
    cores = available_cores()
    counts = tuple(sorted(set(workers or ((1,) if serial else (cores,)))))
    for count in counts:
        require_workers("run", count, max(count, cores) if oversubscribe else cores)
    one = f"{(*serial, '')[0]} has one worker, but --workers is {counts[-1]}; use 1, or another runtime"
    refuse("run", (serial and counts[-1] > 1, one))
    found = Comparison(sides=dict(zip(ARMS, sides, strict=True)), workers=counts, directory=directory, differs=differs)
    why = "as asked for"
    if turns:
        why = apart_because(found._block(counts[-1], 0), worker_mb=worker_mb(directory))
    if not why and a.config.steps is None and vars(a.config).get("schedule", "constant") != "constant":
        why = "the schedule of the learning rate needs a number of steps"
    apart = f"--until needs A and B to train in turns, but they run one after the other: {why}"
    ends = "--until goes on until an interval is narrow enough, and --steps ends before; leave one out"
    length = f"A and B run one after the other: {why}; give --steps, so that all runs make as many"
    wanted = why and a.config.steps is None
    refuse("run", (precision and why, apart), (precision and a.config.steps, ends), (wanted, length))
    found.blocks = blocks or (_BLOCKS[not why] if precision is None else MOST_LAUNCHES)
    found.seconds, found.alone, found.precision = seconds or found.seconds, why, precision
    return found


def _rounds(slices: Sequence[TurnSlice], keys: Mapping[str, str]) -> dict[str, list[float | None]]:
    """Return samples/s of A and B in each round that has both, and the larger load of other programs in it."""
    of = {arm: {each.round: each for each in slices if each.run == key} for arm, key in keys.items()}
    both = [(of["A"][number], of["B"][number]) for number in sorted(of["A"].keys() & of["B"].keys())]
    loads = [[each.other_load for each in pair if each.other_load is not None] for pair in both]
    rates = zip(*([each.samples / (each.end_s - each.begin_s) for each in pair] for pair in both), strict=True)
    found: dict[str, list[float | None]] = {arm: list(each) for arm, each in zip(ARMS, rates, strict=False)}
    return {"A": [], "B": [], **found, "other_load": [max(each) if each else None for each in loads]}


def _figures(directory: Path, record: RunRecord) -> dict[str, Any]:
    names = ("samples_per_s", "window_s", "step_s_median", "step_s_p90", "train_mse", "test_mse", "parameter_sha256")
    # Of the first steps, to see whether both arms learn the same: later ones differ by grown rounding.
    losses = [read_steps(directory, rank).column("loss").to_numpy()[:20] for rank in step_ranks(directory)]
    rows = min((len(each) for each in losses), default=0)
    mean = np.mean([each[:rows] for each in losses], axis=0, dtype=np.float64) if rows else np.empty(0)
    found = {name: record.totals.get(name) for name in names} | {"steps": _steps_made(record)}
    return {**found, "first_losses": mean.tolist() if np.isfinite(mean).all() else [], "run": directory.as_posix()}


def told(found: Mapping[str, Any]) -> list[str]:
    """Return what a document says was compared, in words; that nothing differs is a finding too."""

    def word(value: Any) -> str:
        return "shipped" if value is None else {"True": "on", "False": "off"}.get(str(value), str(value))

    steps = " and ".join(f"{made:,} steps with {plural(int(n), 'worker')}" for n, made in found["steps"].items())
    how = f"one after the other: {found['not_in_turns_because']}"
    rows = [(name, f"{word(a)} | {word(b)}") for name, (a, b) in found["differs"].items()]
    table = ["what differs (A | B):", *to_lines(table_of(("", ""), rows, texts=(0, 1)), indent=2)]
    same = "nothing differs: an A/A comparison, which shows what this machine and this method call a difference"
    return [
        *(f"{arm}  {found[arm]['text']}" for arm in ARMS),
        f"about {steps} per run, batch {found['batch']} per worker",
        "A and B of a block trained in turns" if found["in_turns"] else how,
        *(table if rows else [same]),
        *(f"left out: {text}" for text in found["dropped"]),
    ]


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
    numbers, size = itertools.count(1), int(min(max(room, 2), 1000)) - 1

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
    room = math.inf if alone else int(turns.workers_that_fit(worker_mb(runs_dir / study.name)) / workers)
    race = Race(arms)
    heats = _Heats(sweep, base, bool(alone), lasts_s, console)
    design = halving(race, ALONE if alone else IN_TURNS, heats.launch, seed=study.seed, room=room)
    ended = follow(design, replace(options, policy=heats.policy, watch_load_s=0.0), Console(quiet=True))
    if ended is not None and ended.interrupted:
        show(console, f"interrupted; continue with: {options.command}")
        return False
    given = {name: value for name, value in vars(base.config).items() if name == "horovod_build" and value}
    given = {"threads": base.config.threads, **given, **race.chosen.values}
    head = f"# for a study file with runtime: {base.runtime} in its sweep"
    for line in (*_table(race, left_out), "", head, *yaml.safe_dump({"run": given}, sort_keys=False).splitlines()):
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
        found = [] if self.alone else rates(read_turns(self.sweep.directory), self._names)
        if not found or {cell.label for cell in cells} - failed.keys() - {each.cell for each in found}:
            # One after the other, or so short that one was over before its first turn: a launch is a round.
            records = {cell.label: record_in(self.sweep.directory / cell.key) for cell in cells}
            speeds = {arm: record.totals.get("samples_per_s") for arm, record in records.items() if record is not None}
            named = {arm: speed for arm, speed in speeds.items() if speed and arm not in failed}
            found = [Slice(launch="", round=0, cell=arm, rate=speed) for arm, speed in named.items()]
        slices = [replace(each, launch=f"{heat.what}/{heat.number:03d}/{each.launch}") for each in found]
        for arm in {each.label for each in cells} - {each.cell for each in slices} - set(failed):
            failed[arm] = "it trained too little to be measured; give the study more seconds"
        left = duration(max(0.0, self.lasts_s - self.used_s))
        show(self.console, f"  {heat.what} {heat.number}: {len(heat.arms)} settings; at most {left} left")
        return slices, failed


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
