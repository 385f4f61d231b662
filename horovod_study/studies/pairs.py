"""`run A B`: two configurations side by side, as a study of two arms, and the proof that both did the same work.

A block is one run of A and one of B at one worker count, with the number of a repeat in common: they train in turns
(turns.py), or, where they cannot, one right after the other. `Comparison.design` yields which cells are to be run and
is told what came of them; the engine runs them as those of any study, below RUNS/NAME/.

A block counts when both its runs are done and, in turns, have alternated. Of one of which a single side is done (the
other one has failed, or was broken off) both are run again: a partner from another time is none. What
`analysis/compare/comparison.py` says about the blocks is written beside them by the command line.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np

from horovod_study.analysis.paired import MOST_LAUNCHES
from horovod_study.cluster.identity import identify
from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import Form, Number, Options, Text, Whole, above, accept, at_least, one_of
from horovod_study.config.options import SET_BY_COMPARE, require_workers
from horovod_study.config.partitions import this_machine
from horovod_study.config.roles import TRUTH, Role
from horovod_study.config.run import Cell, Placement, available_cores
from horovod_study.config.workload import Configuration, Workload
from horovod_study.errors import StudyError, nearest, refuse
from horovod_study.records import RunRecord, TurnSlice, read_steps, read_turns, step_ranks
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.attempt import record_in
from horovod_study.studies.ledger import Ledger, read_ledger, set_aside_part_blocks
from horovod_study.studies.runner import AGAIN, Design, StudyResult
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import Policy, apart_because, until_all_have, until_asked_for, worker_mb
from horovod_study.text.tables import table_of, to_lines
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
    if _is_file(text):
        source += f" ({text})"
        content = load_yaml(Path(text))
        runtime = content.pop("runtime", None)
        values = {**{name: value for name, value in content.items() if name not in _SAME_FOR_BOTH}, **common}
    else:
        runtime, *words = (part.strip() for part in text.split(","))
        values = {**common, **_options_of(source, runtime, words, workload)}
    begin = "begin with one, such as horovod/mpi, or give a YAML file `runtime:`"
    accept(_Named, {"runtime": runtime} if runtime else {}, source, again=begin)
    backend, _, transport = runtime.partition("/")
    config = workload.configure({**values, "backend": backend, "transport": transport or "none"}, source=source)
    return Side(text, runtime, config)


def _options_of(source: str, runtime: str, words: Sequence[str], workload: Workload) -> dict[str, Any]:
    """Return what `option=value` texts say; the configuration makes numbers of them and refuses what does not fit."""
    values: dict[str, Any] = {}
    for part in words:
        name, _, word = (piece.strip() for piece in part.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        option = workload.options.get(name)
        idle = option is not None and runtime in RUNTIMES and not option.matters(runtime)
        refuse(
            source,
            (not word, f"{part!r} is not option=value, as in thread_priority=off"),
            (name in values, f"{name} is given twice; give it once"),
            (name in _SAME_FOR_BOTH, f"{name} has no place here; it is the same for both sides and every run"),
            (idle, f"{name} has no effect on {runtime}; leave it out"),
            (option is None, f"unknown option {name!r}{nearest(name, workload.options)}; see `run --help-all`"),
        )
        shipped = option.default if option is not None and word == "shipped" else word
        values[name] = TRUTH.get(word.lower(), shipped) if option is not None and option.kind is bool else shipped
    return values


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
        for cells in (self._cells(1), self._cells(self.blocks)):
            for _ in range(2):
                if all(self._done(cell) for cell in cells):
                    break
                sweep = self._sweep(cells)
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
        return until_all_have if self._run.steps is None else until_asked_for

    def _sweep(self, cells: Sequence[Cell]) -> StudyCells:
        labels = {(cell.arm, cell.placement.workers): cell.label for cell in cells}
        wanted = tuple((label, labels["A", count]) for (arm, count), label in labels.items() if arm == "B")
        how: dict[str, Any] = {"part": True, "seed": self._run.seed, "turns": not self.alone, "equal_steps": True}
        how |= {"precision": self.precision, "wanted": wanted, "partitions": {self._partition.name: self._partition}}
        return StudyCells(name=self.directory.name, directory=self.directory, cells=tuple(cells), **how)

    def _cell(self, arm: str, workers: int, repeat: int) -> Cell:
        config, workload, steps = self.sides[arm].config, self._run.workload, self._run.steps
        length = {"steps": steps, "seconds": self.seconds if steps is None else None}
        values = {**dict.fromkeys(workload.budgets), **length, **workload.quiet}
        runtime, own = self.sides[arm].runtime, config.changed(**values, study=self.directory.name, repeat=repeat)
        place = Placement(partition=config.partition, workers=workers, workers_per_node=workers)
        how: dict[str, Any] = {"arm": arm, "label": f"{arm}: {runtime}, {plural(workers, 'worker')}"}
        return Cell(config=own, runtime=runtime, placement=place, identity=self._identity, **how)

    def _block(self, workers: int, repeat: int) -> list[Cell]:
        """Return both cells of a block, in the order in which they start.

        Of two consecutive blocks of a worker count one begins with A and one with B, at random which.
        """
        order = list(ARMS)
        random.Random(f"pair {repeat // 2} of {workers} workers of {self._run.seed}").shuffle(order)
        return [self._cell(arm, workers, repeat) for arm in (order[::-1] if repeat % 2 else order)]

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
