"""`run A B`: two configurations side by side, as a study of two arms, and the proof that both did the same work.

A block is one run of A and one of B at one worker count, which share the number of a repeat: they train in turns
(turns.py), or, where they cannot, one right after the other. `Pairs.design` yields the cells that are to be run and is
told what came of them; the engine runs them as those of any study (`follow`), below RUNS/NAME/.

A block counts when both its runs are done and, in turns, have alternated. One of which a single side is done (the
other one has failed, or was broken off) is left as it is, and a further block takes its place: a partner from another
time is none. What `analysis/compare/comparison.py` says about the blocks is written beside them by the command line.
"""

import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from horovod_study.analysis.paired import MOST_LAUNCHES
from horovod_study.cluster.identity import identify
from horovod_study.cluster.partitions import this_machine
from horovod_study.config import Cell, Placement, available_cores
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, StudyError, require_known
from horovod_study.options import SET_BY_COMPARE, require_workers
from horovod_study.records import RunRecord, TurnSlice, read_steps, read_turns, step_ranks
from horovod_study.roles import TRUTH, Role, check_field
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.attempt import record_in
from horovod_study.studies.ledger import Ledger
from horovod_study.studies.runner import AGAIN, RunOptions, StudyResult, run_study
from horovod_study.studies.study_file import StudyConfig
from horovod_study.studies.turns import apart_because, worker_mb
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, plural
from horovod_study.workloads import SHARED, Configuration, Workload

ARMS = ("A", "B")
_SECONDS, _BLOCKS = {True: 5.0, False: 2.0}, {True: 5, False: 10}
"""Defaults, in turns or not: in turns a block says as much as it has rounds."""
_SAME_FOR_BOTH = (*SET_BY_COMPARE, "seconds", "steps", "workers")

Design = Generator[StudyConfig, Ledger, None]
"""Yields a study with the cells that are to be run next, and receives where these stand then."""


def follow(design: Design, runs_dir: Path, how: RunOptions, console: Console) -> StudyResult | None:
    """Run what a design yields until it is at its end or a run is interrupted; None: there was nothing to run."""
    result: StudyResult | None = None
    with suppress(StopIteration):
        study = next(design)
        while not (result := run_study(study, runs_dir, how, console=console)).interrupted:
            study = design.send(result.ledger)
    return result


# ------------------------------------------------------------------------------------------------------------ the arms


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison."""

    text: str  # as the user wrote it
    runtime: str
    config: Configuration  # all but the length, the workers and the number of the block


def sides_of(words: Sequence[str], *, cells: bool = False) -> tuple[str, ...]:
    """Return the two sides where `run` was given these, () where a study file, after which `cells` may follow.

    ConfigError: one side alone, or a study file among sides.
    """
    sides = [_is_side(word) for word in words[: 1 if cells else None]]
    if any(sides) and not all(sides):
        study, side = words[sides.index(False)], words[sides.index(True)]
        raise ConfigError(
            f"run: {side} is a side of a comparison, and {study} is none; name a study file alone, or two sides A B"
        )
    if any(sides) and len(words) != 2:
        raise ConfigError(f"run: a comparison has two sides, such as `run horovod/mpi mpi/mpi`, not {len(words)}")
    return tuple(words) if any(sides) else ()


def _is_side(word: str) -> bool:
    """Return whether this is RUNTIME[,option=value...] or a file of options, which a study file is not."""
    path = Path(word)
    if path.suffix.lower() in (".yaml", ".yml") or path.is_file():
        content = load_yaml(path)
        return "sweep" not in content and ("study" not in content or not {"runtime", "backend"}.isdisjoint(content))
    return bool(set("/,=") & set(word)) or word in RUNTIMES


def read_side(letter: str, text: str, common: Mapping[str, Any], workload: Workload) -> Side:
    """Return one side: a YAML file of options, or RUNTIME[,option=value...].

    `common`: options of the command line. They replace those of a file, and are replaced by those of a short text.
    Raises ConfigError naming the side.
    """
    source, path = f"run: {letter}", Path(text)
    if path.suffix.lower() in (".yaml", ".yml") or path.is_file():
        source += f" ({text})"
        content = load_yaml(path)
        runtime = content.get("runtime") or _runtime_of(content)
        own = {name: value for name, value in content.items() if name not in (*_SAME_FOR_BOTH, "runtime")}
        values = {**own, **common}
    else:
        runtime, *rest = (part.strip() for part in text.split(","))
        values = {**common, **_options_of(source, runtime, rest, workload)}
    if not runtime or "=" in runtime:
        raise ConfigError(f"{source} names no runtime, as in horovod/gloo,thread_priority=off or a file's `runtime:`")
    require_known(f"{source}: runtime", runtime, RUNTIMES, also=", or a YAML file")
    backend, _, transport = str(runtime).partition("/")
    try:
        config = workload.configure({**values, "backend": backend, "transport": transport or "none"}, source=source)
    except ConfigError as error:
        # The text of a side is not YAML: an unknown name in it is an option.
        raise ConfigError(str(error).replace("unknown key", "unknown option", 1)) from None
    return Side(text=text, runtime=runtime, config=config)


def _options_of(source: str, runtime: str, words: Sequence[str], workload: Workload) -> dict[str, Any]:
    """Return what `option=value` texts say; the configuration makes numbers of them and refuses what does not fit."""
    values: dict[str, Any] = {}
    for part in words:
        name, _, word = (piece.strip() for piece in part.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        option = workload.options.get(name)
        if not word:
            raise ConfigError(f"{source}: {part!r} is not option=value, as in thread_priority=off")
        if name in values:
            raise ConfigError(f"{source}: {name} is given twice; give it once")
        if name in _SAME_FOR_BOTH:
            raise ConfigError(f"{source}: {name} has no place here; it is the same for both sides and every run")
        if option is not None and runtime in RUNTIMES and not option.matters(runtime):
            raise ConfigError(f"{source}: {name} has no effect on {runtime}; leave it out")
        values[name] = word
        if option is not None:
            shipped = option.default if word == "shipped" else word
            values[name] = TRUTH.get(word.lower(), shipped) if option.kind is bool else shipped
    return values


def _runtime_of(values: Mapping[str, Any]) -> str:
    """Return the runtime that backend and transport name together, or "" when they do not name one."""
    backend, transport = values.get("backend"), values.get("transport")
    known = [each for each in RUNTIMES if each.partition("/")[0] == backend]
    if len(known) == 1:
        return known[0]
    return f"{backend}/{transport}" if known and transport not in (None, "auto", "none") else ""


def check_configs(a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    """Return the options in which A and B differ by intent; ConfigError when they are not to do the same work."""
    one, other, options = a.config.to_dict(), b.config.to_dict(), a.config.workload.options
    differing = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
    unfair = [
        f"{name} is {x} for A and {y} for B"
        for name, (x, y) in differing.items()
        if not options[name].roles & Role.MAY_DIFFER
    ]
    if unfair:
        raise ConfigError(f"run: A and B are not to do the same work: {'; '.join(unfair)}; give both the same")
    return differing


# ------------------------------------------------------------------------------------------------------------- parity


def _parity_facts(record: RunRecord, workload: Workload) -> dict[str, Any]:
    """Return what two runs of one worker count must have in common, from the record of what really happened."""
    effective, requested = record.effective, record.requested
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
        "steps": _steps_made(record),
        "warm-up steps": effective.get("warmup_steps"),
        "device": effective.get("device"),
        "host": record.host,
        "torch": record.environment.get("torch"),
        "package": record.environment.get("package"),
        "revision": record.environment.get("revision"),
    }


def _steps_made(record: RunRecord) -> int | None:
    """Return all steps of a run: where the timed window begins in them is found for each run by itself."""
    timed: int | None = record.totals.get("steps")
    return None if timed is None else timed + int(record.totals.get("excluded_steps", 0))


def _require_same_work(
    workload: Workload, one: tuple[str, RunRecord], other: tuple[str, RunRecord], *, but: Sequence[str] = ()
) -> None:
    """Raise StudyError naming the first fact, not in `but`, in which two named runs of one worker count differ."""
    facts, others = (_parity_facts(record, workload) for _, record in (one, other))
    for name, value in facts.items():
        if name not in but and value != others[name]:
            raise StudyError(
                f"run: {one[0]} and {other[0]} did not do the same work: {name} is {cut(str(value), 24)} there and "
                f"{cut(str(others[name]), 24)} here; nothing can be concluded, compare again with another --out"
            )


def _effective_differences(a: RunRecord, b: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return how the runtimes differed in effect: reduction, and settings that the libraries of both know."""
    found = {"reduction (in effect)": (a.effective.get("reduction"), b.effective.get("reduction"))}
    one, other = (record.effective.get("settings") or {} for record in (a, b))
    found |= {name: (one[name]["value"], other[name]["value"]) for name in one if name in other}
    return {name: values for name, values in found.items() if values[0] != values[1]}


# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(kw_only=True)
class Pairs:
    """A comparison: both sides, at which worker counts, in how many blocks, and how."""

    sides: Mapping[str, Side]  # A, B
    asked: Mapping[str, tuple[Any, Any]]  # what differs by intent
    workers: tuple[int, ...]
    runs_dir: Path
    name: str
    blocks: int  # per worker count; at most, where a precision is the aim
    seconds: float  # about how long a run trains where the options name no number of steps
    alone: str = ""  # why A and B of a block run one after the other; "": they train in turns
    precision: float | None = None  # half width of the interval at which a worker count needs no more blocks, relative

    def __post_init__(self) -> None:
        config = self.sides["A"].config
        self.workload, self._partition = config.workload, this_machine(config.partition)
        self._identity = identify(self._partition)
        self.directory = self.runs_dir / self.name

    def design(self) -> Design:
        """Yield the first block of each worker count, then all; what fails is repeated once.

        Where neither the options nor turns say how many steps a run makes, the first run of A does before all others.
        StudyError: runs did not do the same work, or no block has both its runs.
        """
        ledger = None
        for stage in (self._givers, partial(self._cells, 1), partial(self._cells, self.blocks)):
            for _ in range(2):
                cells = stage()
                if all(self._done(cell) for cell in cells):
                    break
                ledger = yield self._study(cells)
                if stage() == cells and not self.failed(ledger):
                    break
            if ledger is not None and (self._givers() or (stage != self._givers and not self.whole())):
                why = next(iter(self.failed(ledger)), "no slice of one of them was whole; give more --steps")
                raise StudyError(f"run: no block has both its runs: {why}; fix that, and type the same again")

    def _givers(self) -> list[Cell]:
        """Return the runs of A that are to say how many steps all others make."""
        return [self._cell("A", count, 0) for count in self.workers if self.alone and self._steps(count) is None]

    def failed(self, ledger: Ledger) -> list[str]:
        """Return which cells have failed and why, one line each."""
        return [f"{each.name}: {each.reason}" for each in ledger.entries if each.state in AGAIN]

    def whole(self) -> list[dict[str, Any]]:
        """Return the blocks that count, for `analysis.compare.comparison`; StudyError: runs did not do the same work."""
        slices, found = read_turns(self.directory), []
        blocks = dict.fromkeys((cell.placement.workers, cell.config.repeat) for cell in self._cells(self.blocks))
        first: dict[int, tuple[str, RunRecord]] = {}  # per worker count, what the others must agree with
        self.differs = dict(self.asked)
        for workers, repeat in sorted(blocks):
            cells = self._block(workers, repeat)
            if not self._counts(cells, slices):
                continue
            where = f"in block {repeat + 1} ({plural(workers, 'worker')})"
            named = {cell.arm: (f"{cell.arm} {where}", self._done(cell)) for cell in cells}
            records = {arm: (text, record) for arm, (text, record) in sorted(named.items()) if record is not None}
            # In turns a block lasts as long as it is to be precise, so that its steps are its own.
            own = ("steps",) if not self.alone and cells[0].config.steps is None else ()
            for each in records.values():
                _require_same_work(self.workload, first.setdefault(workers, each), each, but=own)
            _require_same_work(self.workload, records["A"], records["B"])
            self.differs |= _effective_differences(records["A"][1], records["B"][1])
            keys = {cell.key: cell.arm for cell in cells}
            block = {"workers": workers, "block": repeat + 1, "first": cells[0].arm}
            block |= {arm: _figures(self.directory / key, records[arm][1]) for key, arm in sorted(keys.items())}
            found.append(block if self.alone else {**block, "rounds": _rounds(slices, keys)})
        return found

    def document(self, result: StudyResult | None) -> dict[str, Any]:
        """Return what was compared and all blocks, as plain values; `result`: how the last runs ended."""
        blocks = self.whole()
        made = {count: [each["A"]["steps"] for each in blocks if each["workers"] == count] for count in self.workers}
        steps = {str(n): self._steps(n) or round(median(each)) for n, each in made.items() if each}
        return {
            **{letter: {"text": side.text, "runtime": side.runtime} for letter, side in self.sides.items()},
            "differs": {name: list(values) for name, values in self.differs.items()},
            "a_against_a": not self.differs,
            "steps": steps,
            "batch": self.sides["A"].config.batch,
            "blocks_wanted": self.blocks,
            "dropped": [] if result is None else self.failed(result.ledger),
            "interrupted": result is not None and result.interrupted,
            "in_turns": not self.alone,
            "not_in_turns_because": self.alone or None,
            "blocks": blocks,
            "directory": str(self.directory),
        }

    # ------------------------------------------------------------------------------------------------ cells and blocks

    def _study(self, cells: Sequence[Cell]) -> StudyConfig:
        config = self.sides["A"].config.changed(study=self.name)
        partitions, turns = {self._partition.name: self._partition}, not self.alone
        aim = self.precision
        return StudyConfig(
            name=self.name, run=config, designed=tuple(cells), turns=turns, precision=aim, partitions=partitions
        )

    def _cell(self, letter: str, workers: int, repeat: int, steps: int | None = None) -> Cell:
        side = self.sides[letter]
        length = {"steps": steps, "seconds": self.seconds if steps is None else None}
        config = side.config.changed(
            **{**dict.fromkeys(self.workload.budgets), **length, **self.workload.quiet},
            study=self.name,
            repeat=repeat,
        )
        placement = Placement(partition=config.partition, workers=workers, workers_per_node=workers)
        return Cell(config=config, runtime=side.runtime, placement=placement, identity=self._identity, arm=letter)

    def _steps(self, workers: int) -> int | None:
        """Return how many timed steps each run makes; None: as many as take the seconds, or nobody has said yet."""
        config = self.sides["A"].config
        if config.steps is not None or not self.alone:
            return config.steps
        giver = self._done(self._cell("A", workers, 0))
        made = None if giver is None else _steps_made(giver)
        return None if made is None else max(made - config.warmup_steps, 1)

    def _block(self, workers: int, repeat: int) -> list[Cell]:
        """Return both cells of a block, in the order in which they start.

        Of two consecutive blocks of a worker count one begins with A and one with B, at random which.
        """
        steps, config = self._steps(workers), self.sides["A"].config
        gives = bool(self.alone) and config.steps is None  # A of the first block says how many steps, and is the first
        order = list(ARMS)
        if not gives or repeat > 1:
            random.Random(f"pair {repeat // 2} of {workers} workers of {config.seed}").shuffle(order)
        order = order[::-1] if repeat % 2 else order
        return [
            self._cell(arm, workers, repeat, None if gives and arm == "A" and not repeat else steps) for arm in order
        ]

    def _cells(self, blocks: int) -> list[Cell]:
        """Return the cells of so many blocks of each worker count that count or can: without those of half ones.

        The worker counts are shuffled in each round. More blocks later only continue the list.
        """
        slices = read_turns(self.directory)
        good = {count: self._open(count, slices) for count in self.workers}
        cells = []
        for number in range(blocks):
            counts = list(self.workers)
            random.Random(f"round {number + 1} of {self.sides['A'].config.seed}").shuffle(counts)
            for count in counts:
                cells += next(good[count])
        return cells

    def _open(self, workers: int, slices: Sequence[TurnSlice]) -> Iterator[list[Cell]]:
        repeat = 0
        while True:
            cells = self._block(workers, repeat)
            done = [cell for cell in cells if self._done(cell)]
            gave = [cell.config.steps for cell in done] == [None] and bool(self.alone)  # B comes after A has said
            if not done or gave or self._counts(cells, slices):
                yield cells
            repeat += 1

    def _counts(self, cells: Sequence[Cell], slices: Sequence[TurnSlice]) -> bool:
        """Return whether both runs of a block are done and, in turns, have alternated."""
        if not all(self._done(cell) for cell in cells):
            return False
        one, other = ({(each.block, each.launch) for each in slices if each.run == cell.key} for cell in cells)
        return bool(self.alone) or bool(one & other)

    def _done(self, cell: Cell) -> RunRecord | None:
        record = record_in(self.directory / cell.key)
        done = record is not None and record.status == "done" and bool(record.totals.get("samples_per_s"))
        return record if done else None


def pairs_of(
    words: Sequence[str],
    given: Mapping[str, Any],
    workload: Workload,
    *,
    runs_dir: Path,
    name: str,
    workers: Sequence[int] | None = None,
    blocks: int | None = None,
    turns: bool = True,
    precision: float | None = None,
    oversubscribe: bool = False,
) -> Pairs:
    """Return the comparison of two sides, with what was not given by default; `given`: options of a run, for both.

    ConfigError: what was given does not go together, or A and B are not to do the same work.
    """
    common = dict(given)
    seconds = check_field("run", "--seconds", common.pop("seconds", None), SHARED["seconds"], optional=True)
    a, b = (read_side(letter, text, common, workload) for letter, text in zip(ARMS, words, strict=True))
    asked, serial = check_configs(a, b), [side.text for side in (a, b) if side.runtime == "serial"]
    counts = tuple(sorted(set(workers or ((1,) if serial else (available_cores(),)))))
    for count in counts:
        require_workers("run", count, count if oversubscribe else available_cores())
    if serial and counts[-1] > 1:
        raise ConfigError(
            f"run: {serial[0]} has one worker, but --workers is {counts[-1]}; use --workers 1, or another runtime"
        )
    if blocks is not None and blocks < 1:
        raise ConfigError(f"run: --blocks is {blocks}; it must be at least 1")
    make = partial(Pairs, sides={"A": a, "B": b}, asked=asked, workers=counts, runs_dir=runs_dir, name=name)
    pair = make(blocks=1, seconds=seconds or 1.0)._block(counts[-1], 0)
    why = apart_because(pair, worker_mb=worker_mb(runs_dir / name)) if turns else "as asked for"
    if not why and a.config.steps is None and a.config.to_dict().get("schedule", "constant") != "constant":
        why = "the schedule of the learning rate needs a number of steps; give --steps"
    if precision is not None and (why or a.config.steps is not None):
        raise ConfigError(
            f"run: --until needs A and B to train in turns, but they run one after the other: {why}"
            if why
            else "run: --until goes on until an interval is narrow enough, and --steps ends before; leave one out"
        )
    usual = _BLOCKS[not why] if precision is None else MOST_LAUNCHES
    return make(blocks=blocks or usual, seconds=seconds or _SECONDS[not why], alone=why, precision=precision)


def _rounds(slices: Sequence[TurnSlice], arms: Mapping[str, str]) -> dict[str, list[float | None]]:
    """Return samples/s of A and B in each round that has both, and the larger load of other programs in it."""
    table: dict[int, dict[str, TurnSlice]] = {}
    for each in slices:
        if each.run in arms:
            table.setdefault(each.round, {})[arms[each.run]] = each
    both = [each for _, each in sorted(table.items()) if len(each) == 2]
    found: dict[str, list[float | None]] = {
        arm: [each[arm].samples / (each[arm].end_s - each[arm].begin_s) for each in both] for arm in ARMS
    }
    loads = [[one.other_load for one in each.values() if one.other_load is not None] for each in both]
    return {**found, "other_load": [max(each) if each else None for each in loads]}


def _figures(directory: Path, record: RunRecord) -> dict[str, Any]:
    """Return what the analysis needs of one run."""
    names = ("samples_per_s", "window_s", "step_s_median", "step_s_p90", "train_mse", "test_mse", "parameter_sha256")
    # Of the first steps, to see whether both arms learn the same: later ones differ by grown rounding.
    losses = [
        read_steps(directory, rank).column("loss").to_numpy()[:20].astype(np.float64) for rank in step_ranks(directory)
    ]
    rows = min((len(each) for each in losses), default=0)
    mean = np.mean([each[:rows] for each in losses], axis=0) if rows else np.empty(0)
    return {
        **{name: record.totals.get(name) for name in names},
        "steps": _steps_made(record),
        "first_losses": [float(loss) for loss in mean] if np.isfinite(mean).all() else [],
        "run": directory.as_posix(),
    }


def told(found: Mapping[str, Any]) -> list[str]:
    """Return what a document says was compared, in words."""
    about = "about " if found["in_turns"] and len({each["A"]["steps"] for each in found["blocks"]}) > 1 else ""
    runs = " and ".join(
        f"{about}{steps:,} steps with {plural(int(n), 'worker')}" for n, steps in found["steps"].items()
    )
    lines = [*(f"{arm}  {found[arm]['text']}" for arm in ARMS), f"{runs} per run, batch {found['batch']} per worker"]
    how = f"one after the other: {found['not_in_turns_because']}"
    lines.append("A and B of a block trained in turns" if found["in_turns"] else how)
    return [*lines, *differs_lines(found["differs"]), *(f"left out: {text}" for text in found["dropped"])]


def differs_lines(differs: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return what differs between A and B, one line each; that nothing does is a finding too."""
    if not differs:
        return ["nothing differs: an A/A comparison, which shows what this machine and this method call a difference"]

    def word(value: Any) -> str:
        return "shipped" if value is None else {"True": "on", "False": "off"}.get(str(value), str(value))

    rows = [(name, f"{word(a)} | {word(b)}") for name, (a, b) in differs.items()]
    return ["what differs (A | B):", *to_lines(table_of(("", ""), rows, texts=(0, 1)), indent=2)]
