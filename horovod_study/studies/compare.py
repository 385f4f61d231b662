"""Runs two configurations A and B in blocks, side by side in one allocation, and proves that they did the same work.

A block is one run of A and one of B at one worker count: they are started together and train in turns (turns.py), or,
where they cannot, one right after the other in random order. Blocks of different worker counts are interleaved. A
comparison lives in a folder OUT:

    plan.json               A, B and the number of steps per worker count: what the folder is a comparison of
    pilot/2w/A/             short runs from which the number of steps follows, where they did not
    blocks/2w-03/A/         the run directory of A in block 3 with 2 workers (records/ knows its format)
    blocks/2w-03/turns.csv  the slices of both, where they trained in turns
    blocks/2w-03/A.yaml     what it was asked to do
    blocks/2w-03/A.log      what it printed
    blocks/2w-03/.attempts/A-1/     a run that failed, or whose block was broken off: kept, not counted

What `analysis/compare/comparison.py` says about the blocks is written beside them by the command line.
"""

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from horovod_study.analysis.paired import MOST_LAUNCHES, estimate, pairs
from horovod_study.config import Cell, Placement, available_cores
from horovod_study.documents import load_yaml, read_json
from horovod_study.errors import ConfigError, RecordError, StudyError, require_known
from horovod_study.files import write_file
from horovod_study.measure.clock import now
from horovod_study.options import BY_RUNTIME, SET_BY_COMPARE, refuse_set, require_workers
from horovod_study.progress import Line, duration, say
from horovod_study.records import TURNS_FILE, RunRecord, TurnSlice, append_turns, read_steps, read_turns, step_ranks
from horovod_study.roles import TRUTH, Role, check_field
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.aim import Aim
from horovod_study.studies.attempt import Attempt, CellRun, Running, local_launch, record_in, require_launchers
from horovod_study.studies.engine import attempt, set_aside, working_in
from horovod_study.studies.interruption import Interruption, exit_code
from horovod_study.studies.turns import BlockLaunch, Policy, apart_because, rates, until_asked_for
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, plural
from horovod_study.workloads import SHARED, Configuration, Workload

_LETTERS = ("A", "B")
SECONDS, _TURNS_SECONDS = 2.0, 5.0
BLOCKS, _TURNS_BLOCKS = 10, 5
"""Defaults one after the other, and in turns, where a block says as much as it has rounds."""
PLAN = "plan.json"
MIN_STEPS = 50
"""Fewer steps have no steady tenth."""

_LONGEST_S = 240.0  # after so long no block in turns is made longer for its precision: another one says more
_SELF = {letter: letter for letter in _LETTERS}
_HOPELESS = 2  # so many blocks of a worker count dropped and none good end the comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison."""

    letter: str
    text: str  # as the user wrote it
    runtime: str
    config: Configuration  # all but the steps, the workers and the number of the block


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One block: a worker count, its number from 1, and who comes first."""

    workers: int
    block: int
    order: tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareResult:
    """What the runs gave: the blocks for `analysis.comparison.compare`, and what must be told beside them."""

    arms: tuple[Side, Side]
    directory: Path
    steps: Mapping[int, int]  # per run, by worker count
    wanted: int  # blocks per worker count
    blocks: tuple[Mapping[str, Any], ...]
    differs: Mapping[str, tuple[Any, Any]]  # by intent, asked for and in effect
    dropped: tuple[str, ...]
    interrupted: bool
    turns: bool = False  # whether A and B of a block alternated
    alone: str = ""  # why they did not

    @property
    def exit_code(self) -> int:
        """0 when every block has both its runs, 130 after Ctrl-C, 143 after SIGTERM, else 1."""
        return exit_code() if self.interrupted else 1 if self.dropped else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **{arm.letter: {"text": arm.text, "runtime": arm.runtime} for arm in self.arms},
            "differs": {name: list(values) for name, values in self.differs.items()},
            "a_against_a": not self.differs,
            "steps": {str(count): steps for count, steps in self.steps.items()},
            "batch": self.arms[0].config.batch,
            "blocks_wanted": self.wanted,
            "dropped": list(self.dropped),
            "interrupted": self.interrupted,
            "in_turns": self.turns,
            "not_in_turns_because": self.alone or None,
            "blocks": [dict(block) for block in self.blocks],
            "directory": str(self.directory),
        }

    def lines(self) -> list[str]:
        """Return what was compared, in words."""
        a, b = self.arms
        about = "about " if self.turns and a.config.steps is None else ""
        runs = " and ".join(
            f"{about}{steps:,} steps with {plural(count, 'worker')}" for count, steps in sorted(self.steps.items())
        )
        lines = [
            f"A  {a.text}",
            f"B  {b.text}",
            f"{runs} per run, {a.config.batch} {a.config.workload.samples} per worker and step",
            "A and B of a block trained in turns" if self.turns else f"one after the other: {self.alone}",
        ]
        lines += differs_lines(self.differs)
        return [*lines, *(f"left out: {text}" for text in self.dropped)]


def differs_lines(differs: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return what differs between A and B, one line each; that nothing does is a finding too."""
    if not differs:
        return ["nothing differs: an A/A comparison, which shows what this machine and this method call a difference"]
    rows = [(name, f"{_word(a)} | {_word(b)}") for name, (a, b) in differs.items()]
    return ["what differs (A | B):", *to_lines(table_of(("", ""), rows, texts=(0, 1)), indent=2)]


def _word(value: Any) -> str:
    return "shipped" if value is None else {"True": "on", "False": "off"}.get(str(value), str(value))


# ------------------------------------------------------------------------------------------------------------ the arms


def read_arms(a: str, b: str, given: Mapping[str, Any], workload: Workload) -> tuple[tuple[Side, Side], float | None]:
    """Return both sides from their texts and the options of the command line, and the seconds of a run if given."""
    common = dict(given)
    seconds = common.pop("seconds", None)
    if seconds is not None:
        seconds = float(check_field("compare", "--seconds", seconds, SHARED["seconds"], optional=False))
    return (read_arm("A", a, common, workload), read_arm("B", b, common, workload)), seconds


def read_arm(letter: str, text: str, common: Mapping[str, Any], workload: Workload) -> Side:
    """Return one side: a YAML file of options, or RUNTIME[,option=value...].

    `common`: options of the command line. They replace those of a file, and are replaced by those of a short text.
    Raises ConfigError naming the side.
    """
    source = f"compare: {letter}"
    is_file = text.lower().endswith((".yaml", ".yml")) or Path(text).is_file()
    instead = dict.fromkeys(BY_RUNTIME, "A and B each name a runtime such as horovod/mpi")
    instead["epochs"] = "give --steps, or --seconds per run"
    refuse_set("compare", common, SET_BY_COMPARE, instead)
    if is_file:
        runtime, own = _from_file(source, Path(text))
        values = {**own, **common}
    else:
        runtime, own = _from_text(source, text, workload)
        values = {**common, **own}
    backend, _, transport = runtime.partition("/")
    try:
        config = workload.configure({**values, "backend": backend, "transport": transport or "none"}, source=source)
    except ConfigError as error:
        # The text of a side is not YAML: an unknown name in it is an option.
        raise ConfigError(str(error).replace("unknown key", "unknown option", 1)) from None
    return Side(letter=letter, text=text, runtime=runtime, config=config)


def _from_text(source: str, text: str, workload: Workload) -> tuple[str, dict[str, Any]]:
    first, *rest = (part.strip() for part in text.split(","))
    if "=" in first or not first:
        raise ConfigError(
            f"{source} is {text!r}, which names no runtime; begin with one of {', '.join(RUNTIMES)}, "
            "as in horovod/gloo,thread_priority=off"
        )
    runtime = _runtime(source, first)
    values: dict[str, Any] = {}
    for part in rest:
        name, equals, word = (piece.strip() for piece in part.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        if not equals or not word:
            raise ConfigError(f"{source}: {part!r} is not option=value, as in thread_priority=off")
        if name in values:
            raise ConfigError(f"{source}: {name} is given twice; give it once")
        if name in (*SET_BY_COMPARE, "seconds", "steps"):
            raise ConfigError(f"{source}: {name} has no place here; it is the same for both sides and every run")
        if name in workload.options and not workload.options[name].matters(runtime):
            raise ConfigError(f"{source}: {name} has no effect on {runtime}; leave it out")
        values[name] = _value(workload, name, word)
    return runtime, values


def _value(workload: Workload, name: str, word: str) -> Any:
    """Return the value meant by `word`; the configuration turns texts into numbers and refuses what does not fit."""
    if word == "shipped":
        return workload.options[name].default if name in workload.options else word
    if name in workload.options and workload.options[name].kind is bool:
        return TRUTH.get(word.lower(), word)
    return word


def _from_file(source: str, path: Path) -> tuple[str, dict[str, Any]]:
    content = load_yaml(path)
    source = f"{source} ({path})"
    runtime, values = content.get("runtime") or _pair(content), dict(content)
    if not runtime:
        raise ConfigError(
            f"{source}: names no runtime; give it `runtime:` (one of {', '.join(RUNTIMES)}), or backend and transport"
        )
    # A file for a whole training says how long; here that is said once for both.
    left_out = (*SET_BY_COMPARE, "seconds", "steps", "runtime", "workers")
    return _runtime(source, runtime), {name: value for name, value in values.items() if name not in left_out}


def _pair(values: Mapping[str, Any]) -> str:
    """Return the runtime that backend and transport name together, or "" when they do not name one."""
    backend, transport = values.get("backend"), values.get("transport")
    if backend in (None, "auto"):
        return ""
    known = [each for each in RUNTIMES if each.partition("/")[0] == backend]
    if len(known) == 1:
        return known[0]
    return f"{backend}/{transport}" if transport not in (None, "auto", "none") else ""


def _runtime(source: str, runtime: Any) -> str:
    require_known(f"{source}: runtime", runtime, RUNTIMES, also=", or a YAML file")
    return str(runtime)


def check_configs(a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    """Return the options in which A and B differ by intent; ConfigError when they are not to do the same work."""
    one, other = a.config.to_dict(), b.config.to_dict()
    differing = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
    options = a.config.workload.options
    unfair = {name: values for name, values in differing.items() if not options[name].roles & Role.MAY_DIFFER}
    if unfair:
        texts = [f"{name} is {x} for A and {y} for B" for name, (x, y) in unfair.items()]
        raise ConfigError(f"compare: A and B are not to do the same work: {'; '.join(texts)}; give both the same")
    return differing


# ------------------------------------------------------------------------------------------------------------ the order


def worker_counts(arms: Sequence[Side], given: Sequence[int] | None) -> tuple[int, ...]:
    """Return the worker counts, each once: as given, else one for serial arms and all cores for others."""
    if given:
        return tuple(sorted(set(given)))
    return (1,) if any(arm.runtime == "serial" for arm in arms) else (available_cores(),)


def schedule(workers: Sequence[int], blocks: int, seed: int) -> list[Turn]:
    """Return all blocks in the order in which they run.

    Of two consecutive blocks of a worker count one begins with A and one with B, at random which; the worker counts of
    a round are shuffled. More blocks later only continue the list.
    """
    turns = []
    for block in range(1, blocks + 1):
        counts = sorted(set(workers))
        random.Random(f"round {block} of {seed}").shuffle(counts)
        for count in counts:
            pair = ["A", "B"]
            random.Random(f"pair {(block - 1) // 2} of {count} workers of {seed}").shuffle(pair)
            first, second = pair if block % 2 else pair[::-1]
            turns.append(Turn(workers=count, block=block, order=(first, second)))
    return turns


# ------------------------------------------------------------------------------------------------------------- parity


def _parity_facts(record: RunRecord, workload: Workload) -> dict[str, Any]:
    """Return what two runs of one worker count must have in common, from the record of what really happened."""
    effective, requested, totals = record.effective, record.requested, record.totals
    learned = workload.named(Role.LEARNING)
    applied = ("lr", *(name for name in learned if workload.options[name].roles & Role.APPLIED))
    return {
        "initial parameters": effective.get("initial_parameter_sha256"),
        "data set digest": effective.get("dataset_digest"),
        "seed of the data order": requested.get("seed"),
        **{name: effective.get(name) for name in applied},
        "global batch": effective.get("global_batch"),
        "workers": effective.get("workers"),
        "nodes": effective.get("nodes"),
        "precision": effective.get("precision"),
        **{name: requested.get(name) for name in (*learned, *workload.named(Role.DATA)) if name not in applied},
        "training curves": effective.get("train_samples"),
        # All that were made: where the timed window begins in them is found for each run by itself.
        "steps": None if totals.get("steps") is None else totals["steps"] + totals.get("excluded_steps", 0),
        "warm-up steps": effective.get("warmup_steps"),
        "device": effective.get("device"),
        "host": record.host,
        "torch": record.environment.get("torch"),
        "package": record.environment.get("package"),
        "revision": record.environment.get("revision"),
    }


def _require_same_work(
    workload: Workload, one: tuple[str, RunRecord], other: tuple[str, RunRecord], *, but: Sequence[str] = ()
) -> None:
    """Raise StudyError naming the first fact, not in `but`, in which two named runs of one worker count differ."""
    facts, others = (_parity_facts(record, workload) for _, record in (one, other))
    for name, value in facts.items():
        if name not in but and value != others[name]:
            raise StudyError(
                f"compare: {one[0]} and {other[0]} did not do the same work: {name} is {cut(str(value), 24)} there and "
                f"{cut(str(others[name]), 24)} here; nothing can be concluded, compare again with another --out"
            )


def _effective_differences(a: RunRecord, b: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return how the runtimes differed in effect: reduction, and settings that the libraries of both know."""
    found = {"reduction (in effect)": (a.effective.get("reduction"), b.effective.get("reduction"))}
    one, other = (record.effective.get("settings") or {} for record in (a, b))
    for name in one:
        if name in other:
            found[name] = (one[name]["value"], other[name]["value"])
    return {name: values for name, values in found.items() if values[0] != values[1]}


# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How much is run, and how."""

    blocks: int  # per worker count; at most, where a precision is the aim
    seconds: float  # about how long a run is to train where the options name no number of steps
    alone: str = ""  # why A and B of a block run one after the other; "": they train in turns
    precision: float | None = None  # half width of the interval at which a worker count needs no more blocks, relative

    @property
    def turns(self) -> bool:
        """Whether A and B of a block train in turns."""
        return not self.alone


def plan_effort(
    arms: tuple[Side, Side],
    workers: Sequence[int],
    *,
    blocks: int | None = None,
    seconds: float | None = None,
    turns: bool = True,
    precision: float | None = None,
) -> Effort:
    """Return how the sides are run: in turns where that is wanted and they can, with what was not given by default.

    ConfigError: what was given does not go together.
    """
    check_configs(*arms)
    config = arms[0].config
    why = "as asked for" if not turns else apart_because([_cell(arm, max(workers), 1, None, seconds=1) for arm in arms])
    if not why and config.steps is None and config.to_dict().get("schedule", "constant") != "constant":
        why = "the schedule of the learning rate needs a number of steps; give --steps"
    if precision is not None and (why or config.steps is not None):
        raise ConfigError(
            "compare: --until goes on until an interval is narrow enough, and --steps ends before; leave one out"
            if not why
            else f"compare: --until needs A and B to train in turns, but they run one after the other: {why}"
        )
    usual = BLOCKS if why else _TURNS_BLOCKS if precision is None else MOST_LAUNCHES
    return Effort(
        blocks=usual if blocks is None else blocks,
        seconds=(SECONDS if why else _TURNS_SECONDS) if seconds is None else seconds,
        alone=why,
        precision=precision,
    )


def run_compare(
    arms: tuple[Side, Side], out: Path, *, command: str, workers: Sequence[int], effort: Effort
) -> CompareResult:
    """Run what is missing of the comparison in the folder `out` and return all its blocks.

    A run that fails is repeated once, in turns with its partner; then its block is dropped. Raises StudyError before a
    run starts when A and B are not to do the same work, or cannot be started, or `out` holds another comparison; and
    at any time when the records say that they did not do the same work. Ctrl-C ends the runs at hand and keeps the
    finished blocks.
    """
    cores = available_cores()
    asked = check_configs(*arms)
    _check_numbers(arms, workers, effort.blocks, cores)
    require_launchers([_cell(arm, count, 1, MIN_STEPS) for arm in arms for count in workers], local_launch)
    load = os.getloadavg()[0]
    if load > cores / 2:
        say(
            f"warning: the load of this machine is {load:.1f} on {cores} cores before the first run; what both sides "
            "of a block suffer alike cancels, but intervals will be wide"
        )
    counts = sorted(set(workers))
    with working_in(out, "comparison", command=command) as stop:
        sides = _Pairs(arms, out, stop, effort, counts)
        try:
            sides.run()
        except KeyboardInterrupt:
            if not stop.requested:
                raise
        finally:
            sides.line.close()
        interrupted = stop.requested
    if interrupted:
        say(f"interrupted after {len(sides.finished)} complete blocks; continue with: {command}")
        if not sides.finished:
            raise KeyboardInterrupt
    if not sides.finished:
        raise StudyError(f"compare: no block has both its runs: {sides.dropped[0]}; fix that and run again: {command}")
    return CompareResult(
        arms=arms,
        directory=out,
        steps={count: sides.steps[count] for count in counts if count in sides.steps},
        wanted=effort.blocks,
        blocks=tuple(sides.finished),
        differs={**asked, **sides.differs},
        dropped=tuple(sides.dropped),
        interrupted=interrupted,
        turns=effort.turns,
        alone=effort.alone,
    )


def _check_numbers(arms: Sequence[Side], workers: Sequence[int], blocks: int, cores: int) -> None:
    if blocks < 1:
        raise ConfigError(f"compare: --blocks is {blocks}; it must be at least 1")
    for count in workers:
        require_workers("compare", count, cores)
    most = max(workers)
    for arm in arms:
        if arm.runtime == "serial" and most > 1:
            raise ConfigError(
                f"compare: {arm.letter} is serial, which has one worker, but --workers is {most}; use --workers 1, or "
                "another runtime"
            )
        if arm.config.threads * most > cores:
            say(
                f"warning: {arm.letter} computes with {most * arm.config.threads} threads on {cores} cores, which "
                "measures how cores are shared"
            )


def _cell(arm: Side, workers: int, block: int, steps: int | None, *, seconds: float | None = None) -> Cell:
    length = {**dict.fromkeys(arm.config.workload.budgets), "steps": steps, "seconds": seconds}
    config = arm.config.changed(**length, **arm.config.workload.quiet, study="compare", repeat=block - 1)
    placement = Placement(partition=config.partition, workers=workers, workers_per_node=workers)
    return Cell(config=config, runtime=arm.runtime, placement=placement)


class _Pairs:
    """The runs of one comparison, with what they need at hand."""

    def __init__(
        self, arms: tuple[Side, Side], out: Path, stop: Interruption, effort: Effort, counts: Sequence[int]
    ) -> None:
        self._arms = {arm.letter: arm for arm in arms}
        self._out, self._stop, self._effort = out, stop, effort
        self.line = Line()
        self._counts = counts
        self._total, self._ended = len(counts) * effort.blocks, 0
        self._took: list[float] = []
        self._first: dict[int, tuple[str, RunRecord]] = {}  # per worker count, what the others must agree with
        self._new_steps, self._workload = arms[0].config.steps, arms[0].config.workload
        aimed = counts if effort.precision is not None else ()
        self._aims = {count: Aim(effort.precision or 0.0, _SELF, [("B", "A")]) for count in aimed}
        self.steps: dict[int, int] = {}
        self.finished: list[dict[str, Any]] = []
        self.differs: dict[str, tuple[Any, Any]] = {}
        self.dropped: list[str] = []

    def run(self) -> None:
        """Run the blocks that are missing, until the intervals are narrow enough; KeyboardInterrupt: a stop."""
        self.take_up_plan()
        for count in self._counts if not self._effort.turns else ():
            if count not in self.steps:
                self.steps[count] = self._new_steps or self._pilot(count)
                self._keep_plan()
        for turn in schedule(self._counts, self._effort.blocks, self._arms["A"].config.seed):
            if (aim := self._aims.get(turn.workers)) is not None:
                known = estimate(pairs(rates(aim.before, _SELF), "B", "A"))
                wanted = aim.precision
                if known is not None and known.launches >= wanted.launches and known.half_width <= wanted.half_width:
                    continue
            self._block(turn)
        for count in self._counts if self._effort.turns and self._new_steps is None else ():
            if made := [block["A"]["steps"] for block in self.finished if block["workers"] == count]:
                self.steps[count] = round(median(made))

    # ------------------------------------------------------------------------------------------------ the plan

    def _meaning(self) -> dict[str, Any]:
        # The length is said apart, and so is the naming.
        told = (*self._workload.named(Role.BUDGET | Role.NAMING), "require", "start_timeout_s")
        return {
            letter: {
                "runtime": arm.runtime,
                **{name: value for name, value in arm.config.meaning().items() if name not in told},
            }
            for letter, arm in self._arms.items()
        }

    def take_up_plan(self) -> None:
        """Read what the folder is a comparison of, or write it down; StudyError when it is of something else."""
        path = self._out / PLAN
        meaning = self._meaning()
        if not path.exists():
            self._keep_plan()
            return
        again = f"move {self._out} away"
        options = self._workload.options
        known: dict[str, dict[str, Any]] = read_json(path, dict[str, dict[str, Any]], again=again)
        if (turns := bool(known.get("how", {}).get("turns"))) != self._effort.turns:
            raise StudyError(
                f"{self._out}: holds a comparison {'in turns' if turns else 'one run after the other'}, and this one "
                f"is not ({self._effort.alone or 'it can be in turns; --no-turns goes on with the old one'}); choose "
                "another --out, or move it away"
            )
        try:
            steps = {int(count): int(number) for count, number in known["steps"].items()}
            for letter, values in meaning.items():
                for name, value in values.items():
                    # An option that did not exist when the folder was begun was as its default is.
                    default = options[name].default if name in options else None
                    before = known[letter].get(name, default)
                    if before != value:
                        raise StudyError(
                            f"{self._out}: holds a comparison in which {name} of {letter} is {before}, not {value}; "
                            "choose another --out, or move it away"
                        )
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}: is damaged ({error}); {again}") from None
        for count, number in steps.items():
            if self._new_steps is not None and number != self._new_steps:
                raise StudyError(
                    f"{self._out}: holds a comparison with {number} steps per run ({plural(count, 'worker')}), not "
                    f"{self._new_steps}; choose another --out, or leave --steps out"
                )
        self.steps = steps

    def _keep_plan(self) -> None:
        if self._effort.turns and self._new_steps is not None:
            self.steps = dict.fromkeys(self._counts, self._new_steps)
        steps = {str(count): number for count, number in self.steps.items()}
        content = {**self._meaning(), "how": {"turns": self._effort.turns}, "steps": steps}
        write_file(self._out / PLAN, json.dumps(content, indent=1) + "\n")

    def _pilot(self, workers: int) -> int:
        """Return how many steps a run of `workers` is to make, from a short run of each arm."""
        seconds, told = min(self._effort.seconds, max(0.3, self._effort.seconds / 3)), plural(workers, "worker")
        cells = {letter: _cell(arm, workers, 1, None, seconds=seconds) for letter, arm in self._arms.items()}
        records, _, failed = self._pair(self._out / "pilot" / f"{workers}w", cells, f"pilot, {told}", None)
        if failed:
            arm = self._arms[failed[0]]
            raise StudyError(f"compare: {arm.letter} ({arm.text}) fails with {told}: {failed[1]}")
        pair = ((f"{letter} ({told})", records[letter]) for letter in _LETTERS)
        _require_same_work(self._workload, *pair, but=("steps",))  # before hours are spent
        a, b = (
            records[letter].totals["samples_per_s"] / (arm.config.batch * workers) for letter, arm in self._arms.items()
        )
        steps = max(MIN_STEPS, 10 * round(self._effort.seconds * math.sqrt(a * b) / 10))
        say(f"{told}: {steps:,} steps per run, from {a:,.0f} (A) and {b:,.0f} (B) steps/s in a short run of each")
        return steps

    # ---------------------------------------------------------------------------------------------- the blocks

    def _block(self, turn: Turn) -> None:
        """Run both sides of a block, or read it when it is whole; a block that fails twice is dropped."""
        folder = self._out / "blocks" / f"{turn.workers}w-{turn.block:02d}"
        what = f"block {turn.block}, {plural(turn.workers, 'worker')}"
        steps = self._new_steps if self._effort.turns else self.steps[turn.workers]
        seconds = self._effort.seconds if steps is None else None
        cells = {
            letter: _cell(self._arms[letter], turn.workers, turn.block, steps, seconds=seconds) for letter in turn.order
        }
        launch = BlockLaunch(
            block=f"{turn.workers}w",
            launch=turn.block - 1,
            seed=self._arms["A"].config.seed,
            policy=self._policy(turn),
            equal_steps=True,
        )
        began = now()
        records, fresh, failed = self._pair(folder, cells, what, launch if self._effort.turns else None)
        self._ended += 1
        if failed:
            with_ = f"with {plural(turn.workers, 'worker')}"
            self.dropped.append(f"block {turn.block} {with_}: {failed[0]} failed twice: {failed[1]}")
            self.line.keep(f"  {self.dropped[-1]}; block dropped")
            good = any(block["workers"] == turn.workers for block in self.finished)
            if not good and sum(f"{with_}:" in text for text in self.dropped) >= _HOPELESS:
                raise StudyError(f"compare: the first {_HOPELESS} blocks {with_} failed: {self.dropped[-1]}")
            return
        slices = read_turns(folder) if self._effort.turns else ()
        aim = self._aims.get(turn.workers)
        if aim is not None:
            aim.take([*aim.before, *slices])
        if fresh:
            self._took.append(now() - began)
            if self._effort.turns:
                known = estimate(pairs(rates(slices, _SELF), "B", "A"))
                ratio = math.nan if known is None else known.ratio.value
                said = f"B/A {ratio:.3f} in {plural(len(_rounds(slices)['A']), 'round')}{self._reached(turn.workers)}"
            else:
                speeds = (f"{letter} {records[letter].totals['samples_per_s']:,.0f}" for letter in _LETTERS)
                said = f"{', '.join(speeds)} samples/s"
            count = f"[{self._ended:>{len(str(self._total))}}/{self._total}]"
            self.line.keep(f"  {count} {what}: {said}{self._left()}")
        self._finish(turn, folder, records, _rounds(slices) if self._effort.turns else None)

    def _pair(
        self, folder: Path, cells: Mapping[str, Cell], what: str, launch: BlockLaunch | None
    ) -> tuple[dict[str, RunRecord], bool, tuple[str, str] | None]:
        """Run both sides in `folder`, in the order of `cells` or in turns, and once more when one of them fails.

        Returns the records, whether anything was run for them, and which side failed why. What is whole is only read.
        """
        found = {letter: record_in(folder / letter) for letter in _LETTERS}
        records = {
            letter: record
            for letter, record in found.items()
            if record is not None and record.status == "done" and record.totals.get("samples_per_s")
        }
        failed: tuple[str, str] | None = None
        for tries in range(3):
            turns = {each.run for each in read_turns(folder)} if launch is not None else set(_LETTERS)
            if len(records) == 2 and turns == set(_LETTERS):
                return records, tries > 0, None
            if tries < 2:
                records, failed = self._train(folder, cells, what, launch)
        return {}, True, failed or ("A", "no slice of one of them was whole; give more --steps, or --no-turns")

    def _train(
        self, folder: Path, cells: Mapping[str, Cell], what: str, launch: BlockLaunch | None
    ) -> tuple[dict[str, RunRecord], tuple[str, str] | None]:
        """Train both sides; return their records, or which side failed why. KeyboardInterrupt: after a stop."""
        for letter in _LETTERS:  # a partner from another time is none
            set_aside(folder / letter)
        runs = {letter: self._cell_run(cell, folder / letter, f"{what}, {letter}") for letter, cell in cells.items()}
        ended: dict[str, Attempt] = {}
        made: Sequence[TurnSlice] = ()
        if launch is not None:
            (folder / TURNS_FILE).unlink(missing_ok=True)
            beside = f"{self._reached(cells['A'].placement.workers)}{self._left()}"
            ended, made = launch.run(
                runs, self._stop, self.line, lambda it: f"{what}, in turns, round {it.rounds}{beside}"
            )
            if self._stop.requested:
                raise KeyboardInterrupt
        for letter, run in runs.items() if launch is None else ():
            ended[letter] = attempt(run, self._stop)
            if not ended[letter].done:
                break
        records = {}
        for letter, end in ended.items():
            if not end.done or end.record is None or not end.record.totals.get("samples_per_s"):
                reason = end.reason or "it ended without a finished record"
                say(f"  {what}, {letter} failed: {reason}; see {end.log}")
                return {}, (letter, reason)
            records[letter] = end.record
        if launch is not None:
            append_turns(folder, made)
        return records, None

    def _policy(self, turn: Turn) -> Policy:
        """Return who needs more of a block: both, until they have what was asked for and the block is long enough."""
        if self._new_steps is not None:
            return until_asked_for
        aim = self._aims.get(turn.workers)

        def policy(slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Sequence[str]:
            if len(left) < 2:  # the other one has failed
                return ()
            more = not all(left.values()) or slices[-1].round < 2
            if aim is not None and not more and slices[-1].end_s < _LONGEST_S:
                more = bool(aim(slices, left))
            return list(left) if more else ()

        return policy

    def _reached(self, workers: int) -> str:
        """Return how wide the interval of all blocks of a worker count is against the aim; "" without one."""
        return f"; {self._aims[workers].progress()}" if workers in self._aims else ""

    def _finish(
        self, turn: Turn, folder: Path, records: Mapping[str, RunRecord], rounds: dict[str, list[float | None]] | None
    ) -> None:
        """Note a whole block; StudyError: its runs did not do the same work as each other and those before."""
        where = f"in block {turn.block} ({plural(turn.workers, 'worker')})"
        named = [(f"{letter} {where}", records[letter]) for letter in _LETTERS]
        reference = self._first.setdefault(turn.workers, named[0])
        # In turns a block lasts as long as it is to be precise, so that its steps are its own.
        free = ("steps",) if rounds is not None and self._new_steps is None else ()
        for each in named:
            _require_same_work(self._workload, reference, each, but=free)
        _require_same_work(self._workload, *named)
        self.differs.update(_effective_differences(records["A"], records["B"]))
        self.finished.append(
            {
                "workers": turn.workers,
                "block": turn.block,
                "first": turn.order[0],
                **{letter: figures(folder / letter, records[letter]) for letter in _LETTERS},
                **({} if rounds is None else {"rounds": rounds}),
            }
        )

    def _cell_run(self, cell: Cell, out: Path, what: str) -> CellRun:
        def watch(running: Running) -> None:
            self.line.now_and_then(f"  {what}: running for {running.seconds:.0f} s{self._left(running.seconds)}")

        return CellRun(
            cell=cell,
            out=out,
            config=out.with_name(f"{out.name}.yaml"),
            log=out.with_name(f"{out.name}.log"),
            launch=local_launch,
            timeout_s=900.0,
            watch=watch,
        )

    def _left(self, running_s: float = 0.0) -> str:
        left, took = self._total - self._ended, self._took
        if not took or not left:
            return ""
        each = sum(took) / len(took)
        return f"; about {duration(left * each - min(running_s, each))} left"


def _rounds(slices: Sequence[TurnSlice]) -> dict[str, list[float | None]]:
    """Return samples/s of A and B in each round that has both, and the larger load of other programs in it."""
    table: dict[int, dict[str, TurnSlice]] = {}
    for each in slices:
        table.setdefault(each.round, {})[each.run] = each
    both = [each for _, each in sorted(table.items()) if len(each) == 2]
    found: dict[str, list[float | None]] = {
        letter: [each[letter].samples / (each[letter].end_s - each[letter].begin_s) for each in both]
        for letter in _LETTERS
    }
    loads = [[one.other_load for one in each.values() if one.other_load is not None] for each in both]
    return {**found, "other_load": [max(each) if each else None for each in loads]}


def figures(directory: Path, record: RunRecord) -> dict[str, Any]:
    """Return what the analysis needs of one run."""
    totals = record.totals
    names = ("samples_per_s", "window_s", "step_s_median", "step_s_p90", "train_mse", "test_mse", "parameter_sha256")
    # Of the first steps, to see whether both arms learn the same: later ones differ by grown rounding.
    losses = [
        read_steps(directory, rank).column("loss").to_numpy()[:20].astype(np.float64) for rank in step_ranks(directory)
    ]
    rows = min((len(each) for each in losses), default=0)
    mean = np.mean([each[:rows] for each in losses], axis=0) if rows else np.empty(0)
    return {
        **{name: totals.get(name) for name in names},
        "steps": None if totals.get("steps") is None else totals["steps"] + totals.get("excluded_steps", 0),
        "first_losses": [float(loss) for loss in mean] if np.isfinite(mean).all() else [],
        "run": directory.as_posix(),
    }
