"""Reading a run directory: its record, its rows, its samples and what probes found, finished or not.

Rows are in Arrow streams, read up to the last batch that is complete: what comes after it was torn when its writer was
killed, or found no room. Numbers come from them and go into them without pandas.
"""

import math
import os
import stat
from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator

from horovod_study.config.documents import open_file, parse_csv, parse_json, read_bytes, read_json, read_text, shown
from horovod_study.config.doors import Number, Text, Whole, accept, at_least
from horovod_study.errors import RecordError, refuse
from horovod_study.records import model
from horovod_study.records.model import BENCH, EPOCH_COLUMNS, EPOCHS, MANIFEST, RunRecord, run_name

if TYPE_CHECKING:  # the run wing records without pandas
    import numpy as np
    import pandas as pd
    import pyarrow as pa

_MAX_RUN_BYTES = 64_000_000
_MOST_OPEN_BYTES = 500_000_000
_T = TypeVar("_T")


def epoch_rows(directory: Path, columns: Sequence[str] = ()) -> list[dict[str, float]]:
    """Return the evaluations of a run so far, also while it is running: a row that is not complete yet is left out.

    `columns` must be there. What is no number is not known, and NaN.
    """
    path, again = directory / EPOCHS, "move the run directory away"
    text = read_text(path, again=again) if os.path.lexists(path) else ""
    if not text:  # the process died before the head
        return []
    rows = parse_csv(text, source=shown(path), columns=columns, again=again)
    return [{name: _number(value) for name, value in row.items()} for row in rows]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_run(directory: Path) -> RunRecord:
    """Read run.json; a damaged or foreign one is a RecordError naming the file and the field."""
    path = directory / MANIFEST
    again = "move the directory away, or name a run directory"
    below = next(run_directories(directory), None) if directory.is_dir() and not path.exists() else None
    named = f", such as {shown(below)}; of a study its file" if below else ""
    missing = f"no such file; name a run directory{named}"
    content = read_document(path, model.SCHEMA, again=again, missing=missing, max_bytes=_MAX_RUN_BYTES)
    upgraded = model.upgraded(content)
    # The content as it is and not as pydantic gives it: names that the form does not declare are kept.
    accept(RunRecord, upgraded, shown(path), error=RecordError, again=again)
    return RunRecord(**{**upgraded, "schema": model.SCHEMA})


def read_document(path: Path, newest: int, *, again: str, **how: Any) -> dict[str, Any]:
    """Return a JSON object with a schema number that this program knows, up to `newest`; `how` as for `read_json`."""
    content: dict[str, Any] = read_json(path, again=again, **how)
    require_schema(content, newest, path, again)
    return content


def require_schema(content: Any, newest: int, path: Path, again: str) -> None:
    """Refuse a document without a schema number, or with one that is newer than this program's."""
    number: Any = content.get("schema") if isinstance(content, dict) else None
    foreign = type(number) is not int or number < 1
    refuse(
        shown(path),
        (foreign, f"has no schema number; it was not written by horovod_study, {again}"),
        (
            not foreign and number > newest,
            f"has schema {number}, newer than this program's {newest}; update horovod_study",
        ),
        error=RecordError,
    )


def run_directories(
    root: Path, only: Collection[str] | None = None, *, left_out: dict[str, str] | None = None
) -> Iterator[Path]:
    """Yield the run directories at or below `root`, in the order of their paths; with `only` those of these names.

    Symbolic links to runs are followed, each run once. Into `left_out` comes {name: why not} of every other entry
    that is or may be a run: a folder that may not be read, a link that leads nowhere, rows without run.json.
    """
    if not root.is_dir():
        what = "is no directory of runs, nor another file that is read here" if root.exists() else "no such directory"
        raise RecordError(f"{shown(root)}: {what}; name the directory that holds the runs")
    found: list[Path] = []
    passed: dict[Path, str] = {}
    seen: dict[str, Path] = {}
    folders = [root]
    links: list[Path] = []
    while folders or links:
        # Links come last, so that a run that is below `root` has its own name and not that of a link to it.
        directory = folders.pop() if folders else links.pop(0)
        place = os.path.realpath(directory)
        if place in seen:
            passed[directory] = f"is a link to {shown(place)}, which is read as {run_name(seen[place], root)}"
            continue
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            passed[directory] = f"cannot be read ({error.strerror or error})"
            continue
        seen[place] = directory
        if MANIFEST in names:
            found.append(directory)
        elif any(model.STEP_FILE.fullmatch(name) or name == EPOCHS for name in names):
            passed[directory] = f"holds rows of a run, and no {MANIFEST}"
        elif directory.is_symlink() and not any((directory / name / MANIFEST).exists() for name in names):
            passed[directory] = "is a link to a folder that holds no runs"
            continue
        # Below a folder such as .attempts is what was tried before: kept, but not counted.
        for path in (directory / name for name in names if not name.startswith(".")):
            try:
                if stat.S_ISDIR(os.stat(path).st_mode):
                    (links if path.is_symlink() else folders).append(path)
            except OSError as error:
                if MANIFEST not in names:
                    passed[path] = f"cannot be read ({error.strerror or error})"
    if left_out is not None:
        left_out.update({run_name(at, root): passed[at] for at in sorted(passed) if only is None or at.name in only})
    yield from (each for each in sorted(found) if only is None or each.name in only)


def found_runs(
    *roots: Path, only: Collection[str] | None = None, left_out: dict[str, str] | None = None
) -> list[tuple[Path, str, RunRecord]]:
    """Return directory, name and record of each run at or below `roots`; one that is below two of them is there once.

    Where there are several roots, which may hold runs of one name, names begin with theirs. `only`: the names of the
    run directories that count. Into `left_out` comes what `run_directories` says, and {name: why} of a run whose
    run.json or epochs.csv cannot be used. RecordError where a root is that run itself, or has no run left.
    """
    found: dict[Path, tuple[Path, str, RunRecord]] = {}
    for root in dict.fromkeys(roots):
        missed: dict[str, str] = {}
        some = False
        for directory in run_directories(root, only, left_out=missed):
            name = run_name(directory, root)
            try:
                record = read_run(directory)
                epoch_rows(directory, EPOCH_COLUMNS)
            except RecordError as error:
                if directory == root:
                    raise
                missed[name] = str(error).removeprefix(f"{shown(directory)}/")
            else:
                some = True
                found.setdefault(directory.resolve(), (directory, f"{root}/{name}" if roots[1:] else name, record))
        if not some:
            what = "holds no runs; run a study first (horovod-study run experiments/laptop.yaml)"
            for name, why in list(missed.items())[:1]:
                what = f"holds no run that can be read; {name}: {why}"
            raise RecordError(f"{shown(root)}: {what}")
        if left_out is not None:
            left_out.update(missed)
    return list(found.values())


def set_aside(root: Path) -> Iterator[tuple[str, RunRecord]]:
    """Yield the finished runs that are below `root` in folders of earlier attempts: kept, but not counted."""
    for manifest in sorted(root.rglob(f".attempts/*/{MANIFEST}")):
        with suppress(RecordError):
            record = read_run(manifest.parent)
            if record.state() == "done":
                yield manifest.parent.relative_to(root).as_posix(), record


# ---------------------------------------------------------------------------------------------- cells that alternate
#
# Speedups of cells that alternate leave disturbed rounds out (analysis.paired). So does every other number then: the
# slices that turns.csv has a load for are taken out of the rows and of the totals of their run here, where runs are
# read, so that throughput, step, parts, waiting and resources are those of the same machine. run.json stays as it was.

TURNS_FILE = "turns.csv"
_Count = Annotated[Whole, at_least(0)]
_Load = Annotated[Annotated[Number, at_least(0)] | None, BeforeValidator(lambda cell: None if cell == "" else cell)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSlice:
    """One slice of training of a cell that alternates with others: a row of turns.csv in the folder of a study.

    samples / (end_s - begin_s) is its rate. Slices of one block, launch and round were made one right after the other.
    """

    block: Text  # the cells that alternate
    launch: _Count  # 0, 1, ...: how often the cells of this block were started before
    round: _Count  # 0, 1, ... in its launch
    position: _Count  # 0, 1, ... in its round, which is shuffled
    run: Text  # name of the run directory
    begin_s: Number  # seconds since the first round of the launch began; of the slowest rank
    end_s: Number
    steps: _Count  # of each rank
    samples: _Count  # of all ranks together
    other_load: _Load  # cores in use by programs other than this cell; None where unknown


TURN_COLUMNS = tuple(each.name for each in fields(TurnSlice))
Aside = Sequence[tuple[TurnSlice, tuple[int, int]]]
"""Slices, and of each its first step and the one after its last."""


def read_turns(directory: Path) -> list[TurnSlice]:
    """Return the slices in a study's folder, none where nothing was run in turns; RecordError names a damaged line."""
    path = directory / TURNS_FILE
    if not os.path.lexists(path):
        return []
    again = "move the file away; what was run in turns is then compared run by run"
    found = []
    rows = parse_csv(read_text(path, again=again), source=shown(path), columns=TURN_COLUMNS, again=again)
    for number, row in enumerate(rows, 2):
        source = f"{shown(path)} line {number}"
        found.append(
            accept(TurnSlice, {name: row[name] for name in TURN_COLUMNS}, source, error=RecordError, again=again)
        )
        if found[-1].end_s <= found[-1].begin_s:
            raise RecordError(f"{source}: end_s is not after begin_s; {again}")
    return found


def turns_folders(root: Path) -> dict[str, Path]:
    """Return the folders at and right below `root` in which cells may have alternated, by their path below it."""
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())] if root.is_dir() else []
    return {folder.relative_to(root).as_posix(): folder for folder in folders}


def turns_files(root: Path) -> dict[str, str]:
    """Return {folder: digest} of each turns.csv at and right below `root`, by the path of its folder."""
    paths = {name: folder / TURNS_FILE for name, folder in turns_folders(root).items()}
    again = "move the file away"
    return {name: model.digest_of(read_bytes(path, again=again)) for name, path in paths.items() if path.is_file()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTurns:
    """When a run that alternated has waited, and which of its steps were its slice of which round."""

    before: tuple[int, ...] = ()  # steps before which it waited
    launch: str = ""  # block and launch, the same for the runs of a round; "" where its slices are not known
    rounds: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # -> the first step, and the one after the last
    other_load: Mapping[int, float] = field(default_factory=dict)  # of a round; NaN where unknown


def run_turns(record: RunRecord, name: str = "", slices: Iterable[TurnSlice] = ()) -> RunTurns:
    """Return the turns of a run from its record and, by the name of its directory, the slices of its study.

    A slice says how many steps it has, and the record where the run waited: the last places at which both agree are
    theirs, one after the other or with steps that lead in between them. Slices of an attempt that ended are not looked
    for: some of its steps may have been made again.
    """
    own = _turn_places(record, name, slices)
    return RunTurns(
        before=_waits(record),
        launch=f"{own[0][0].block}/{own[0][0].launch:03d}" if own else "",
        rounds={each.round: steps for each, steps in own},
        other_load={each.round: _load(each) for each, _ in own},
    )


def _waits(record: RunRecord) -> tuple[int, ...]:
    return tuple(sorted({int(each) for each in (record.totals.get("turns") or {}).get("before", ())}))


def _load(each: TurnSlice) -> float:
    return math.nan if each.other_load is None else each.other_load


def _turn_places(record: RunRecord, name: str, slices: Iterable[TurnSlice]) -> list[tuple[TurnSlice, tuple[int, int]]]:
    """Return the slices of the last launch of a run with their steps, see `run_turns`; one made again is there twice.

    From the last wait backwards: the end of the slices is looked for first, then each has the steps before the next
    one's, or, where those are not as many as it says, the steps before these, which lead in.
    """
    own = [each for each in slices if each.run == name]
    own = [each for each in own if (each.block, each.launch) == (own[-1].block, own[-1].launch)]
    resumed = int(record.attempts[-1].get("from_step") or 0)
    steps = list(pairwise(each for each in _waits(record) if each >= resumed))
    for last in range(len(steps) if own else 0, 0, -1):
        found, left = list[tuple[TurnSlice, tuple[int, int]]](), steps[:last]
        for each in reversed(own):
            if found and left and left[-1][1] - left[-1][0] != each.steps:
                left.pop()
            if not left or left[-1][1] - left[-1][0] != each.steps:
                break
            found.append((each, left.pop()))
        else:
            return found[::-1]
    return []


def slices_aside(directory: Path, record: RunRecord) -> Aside:
    """Return the slices of a run that are set aside, and their steps; none of a run that did not alternate.

    A slice is set aside where other programs used more than `paired.OTHER_LOAD` cores meanwhile. None of a block is
    where less than `paired.QUIET_SHARE` of its slices are quiet, and none of a run without a quiet slice: what is known
    of these is how they are on a shared machine.
    """
    path = directory.resolve().parent / TURNS_FILE
    if not record.totals.get("turns") or not path.is_file():
        return []
    about, name = path.stat(), directory.resolve().name
    loud = _loud(path.parent, about.st_mtime_ns, about.st_size).get(name, {})
    own = _turn_places(record, name, loud)
    return [(each, steps) for each, steps in own if loud[each]] if not all(loud[each] for each, _ in own) else []


@lru_cache(maxsize=64)
def _loud(folder: Path, *_: int) -> Mapping[str, Mapping[TurnSlice, bool]]:
    """Return {run: {slice: whether it does not count}} of a study, in their order; `_`: when turns.csv has changed."""
    # With NumPy and SciPy: only for those who alternated.
    from horovod_study.analysis.paired import OTHER_LOAD, quiet_rounds

    slices, found = read_turns(folder), dict[str, dict[TurnSlice, bool]]()
    for block in {each.block: None for each in slices}:
        of_block = [each for each in slices if each.block == block]
        last = {(each.launch, each.round, each.run): each for each in of_block}  # of a slice that was made again
        shared = quiet_rounds([_load(each) for each in last.values()])[1]
        for each in of_block:
            found.setdefault(each.run, {})[each] = not shared and _load(each) > OTHER_LOAD
    return found


# ------------------------------------------------------------------------------------------------------------ rows


def arrow_array(values: Any, kind: "pa.DataType") -> "pa.Array[Any]":
    """Return numbers or texts, None where unknown, as an Arrow array of type `kind`.

    `pyarrow.array` imports pandas when it is first called, which takes longer than a short training.
    """
    import numpy as np
    import pyarrow as pa

    is_text = pa.types.is_string(kind)
    if not isinstance(values, np.ndarray):
        unknown = [value is None for value in values]
        values = np.ma.array([("" if is_text else 0) if value is None else value for value in values], mask=unknown)
    if is_text:
        texts = [text.encode() for text in np.ma.getdata(values).tolist()]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        content = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    else:
        content = [pa.py_buffer(np.ascontiguousarray(np.ma.filled(values, 0), dtype=_number_type(kind)))]
    known = ~np.ma.getmaskarray(values)
    bits = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, *content])


def numpy_column(column: "pa.Array[Any]") -> "np.ndarray":
    """Return a column of numbers as NumPy array, where null is NaN, or one of texts as array of objects.

    A copy of its own. Arrow's `to_numpy` imports pandas, see `arrow_array`.
    """
    import numpy as np
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    rows, kind = slice(column.offset, column.offset + len(column)), _number_type(column.type)
    present, content = column.buffers()
    values = np.empty(0, dtype=kind) if content is None else np.frombuffer(content, dtype=kind)[rows]
    if not column.null_count:
        return values.copy()
    known = np.unpackbits(np.frombuffer(present, dtype=np.uint8), bitorder="little")[rows]
    return np.where(known == 1, values, np.nan)


def _number_type(kind: "pa.DataType") -> str:
    import pyarrow as pa

    return f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}"


@contextmanager
def _open_rows(path: Path, *, mapped: bool = False) -> "Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]":
    """Give the columns of an Arrow stream and its complete batches; raises `_stream_errors`, also for a pipe."""
    import pyarrow as pa

    open_file(path).close()
    with (pa.memory_map if mapped else pa.OSFile)(str(path)) as stream, pa.ipc.open_stream(stream) as reader:

        def batches() -> "Iterator[pa.RecordBatch]":
            with suppress(*_stream_errors()):
                yield from reader

        yield reader.schema, batches()


def _stream_errors() -> tuple[type[Exception], ...]:
    """Return what reading a torn or damaged Arrow stream raises; MemoryError is of a length that is no length."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, MemoryError, ValueError, KeyError)


def _read_rows(path: Path, schema: "pa.Schema", what: str, missing: str, *, mapped: bool = False) -> "pa.Table":
    """Return the complete batches of a file; a column of `schema` that it does not have is null.

    RecordError for a file that is damaged or has a column twice or of another type, and where there is none: `missing`,
    what that means.
    """
    import pyarrow as pa

    why = ""
    try:
        with _open_rows(path, mapped=mapped) as (columns, batches):
            table = pa.Table.from_batches(batches, schema=columns)
        # Buffers are as long as the rows need.
        table.validate(full=any(pa.types.is_string(each.type) for each in table.schema))
    except FileNotFoundError:
        why = f"no such file; {missing}"
    except _stream_errors() as error:
        why = f"holds no readable {what} ({error}); move it away, or record the run again"
    for each in () if why else schema:
        found = [of.type for of in table.schema if of.name == each.name]
        if not found:  # rows of an older program
            table = table.append_column(each, pa.nulls(len(table), each.type))
        elif found != [each.type]:
            why = f"column {each.name} is {' and '.join(map(str, found))}, not {each.type}; move the directory away"
    if why:
        raise RecordError(f"{shown(path)}: {why}")
    return table.select(schema.names)


def read_steps(directory: Path, rank: int, *, mapped: bool = False) -> "pa.Table":
    """Return the step rows of one rank, up to the last complete batch if the run was killed.

    `mapped`: leave them in the file and let the system bring in what is looked at. Not while the run goes on: its
    writer shortens the file now and then, and to look at what is no longer there ends this program.
    """
    path, schema = model.step_path(directory, rank), model.step_schema()
    if path.exists() and path.stat().st_size == 0:
        return schema.empty_table()  # the process died before the first batch
    return _read_rows(path, schema, "step rows", f"rank {rank} recorded no steps", mapped=mapped)


def last_step(directory: Path, rank: int = 0) -> tuple[int, int, float] | None:
    """Return (steps, epoch, seconds since the first step) of the last row that a rank has written; None without rows.

    For looking at a run while it goes on: of each batch only what says how long it is, and of the last its last row is
    taken from the file, which is mapped into memory and not read.
    """
    last = None
    names = ("step", "epoch", "begin_s", "step_s")
    with suppress(*_stream_errors()), _open_rows(model.step_path(directory, rank), mapped=True) as (schema, batches):
        for batch in batches:
            last = batch if batch.num_rows else last
        if last is not None and {*names} <= {*schema.names}:
            # Manually, because Arrow's own way from an array to a number imports pandas first.
            row = [float(numpy_column(last.column(name).slice(len(last) - 1))[0]) for name in names]
            return int(row[0]) + 1, int(row[1]), row[2] + (0.0 if math.isnan(row[3]) else row[3])
    return None


def read_step_column(path: Path, name: str) -> "np.ndarray":
    """Return one column of a file of step rows, shape (rows,), without ever having the others in memory.

    Null is NaN. Rows are those before a torn batch, as in `read_steps`.
    """
    import numpy as np

    try:
        with _open_rows(path) as (_, batches):
            # Copies: what is in the file's batch keeps all of it in memory.
            parts = [numpy_column(batch.column(name)) for batch in batches]
    except _stream_errors() as error:
        raise RecordError(f"{path}: holds no readable step rows ({error}); move the directory away") from None
    return np.concatenate(parts or [np.empty(0)])


class _Lazy(UserDict[_T, Any]):
    """A mapping of functions, each called when its value is asked for."""

    def __getitem__(self, name: _T) -> Any:
        return self.data[name]()


def _columns(table: "pa.Table") -> "Mapping[str, np.ndarray]":
    return _Lazy({name: table.column(name).to_numpy for name in table.column_names})


def _bytes_of(directory: Path, ranks: Iterable[int]) -> int:
    return sum(model.step_path(directory, rank).stat().st_size for rank in ranks)


def _step_rows(directory: Path, ranks: Collection[int], aside: Aside = ()) -> "_Lazy[int]":
    """Return the step rows of ranks as rank -> columns, (steps of this rank,), null is NaN; without what is `aside`.

    A column is read from its file each time it is asked for, and in a long run the file of a rank is let go with its
    columns: its rows do not fit into memory together. For runs that have ended, see `read_steps`.
    """

    def columns(rank: int) -> "Mapping[str, np.ndarray]":
        table = read_steps(directory, rank, mapped=True)
        if aside:
            step = table.column("step").to_numpy()
            inside = [(step >= first) & (step < end) for _, (first, end) in aside]
            table = table.filter(~sum(inside[1:], inside[0]))
        return _columns(table)

    read = cache(columns) if _bytes_of(directory, ranks) < _MOST_OPEN_BYTES else columns
    return _Lazy({rank: partial(read, rank) for rank in ranks})


# ---------------------------------------------------------------------------------------------------- what probes found


def read_synchronisation(directory: Path) -> dict[str, Any]:
    """Return the section "synchronisation" of bench.json; RecordError where it is missing, damaged or newer."""
    return _read_section(directory, "synchronisation", "what its synchronisation is made of", "--measure-sync")


def read_ablation(directory: Path) -> dict[str, Any]:
    """Return the section "ablation" of bench.json; RecordError where it is missing, damaged or of a newer program.

    `blocks` has one row per pair, kind (`silent`) and rank, as columns of equal length; a lap that is not known is
    None in place of its column.
    """
    return _read_section(directory, "ablation", "what communication costs by leaving it out", "--measure-ablation")


def _read_section(directory: Path, section: str, what: str, option: str) -> dict[str, Any]:
    """Return one section of bench.json; RecordError where `what` was not measured."""
    path, again = directory / BENCH, f"record the run again with {option}"
    there = os.path.lexists(path)
    found = read_document(path, model.BENCH_SCHEMA, again=again).get(section) if there else None
    if not found:
        none = f"{path}: holds no {section}" if there else f"{directory}: has no {BENCH}, so {what} was not measured"
        raise RecordError(f"{shown(none)}; {again}")
    accept(model.SECTIONS[section], found, f"{shown(path)}: {section}", error=RecordError, again=again)
    return dict(found)


# ------------------------------------------------------------------------------------------------------ a whole run


def counted_record(directory: Path, record: RunRecord) -> RunRecord:
    """Return the record of a run with the totals of the steps that count; as it is where all of them do.

    Means and quantiles are made from the rows again, the window loses the seconds and samples of the slices that are
    set aside, and readings of sensors are those of the time that is left. Rows or samples that cannot be read leave all
    as it was.
    """
    first, totals = model.timed_from(record)[0], record.totals
    every = slices_aside(directory, record) if record.status == "done" else ()
    aside = [(each, steps) for each, steps in every if steps[0] >= first]
    lost_s = math.fsum(each.end_s - each.begin_s for each, _ in aside)
    if not aside or (window_s := totals.get("window_s", 0.0) - lost_s) <= 0:
        return record
    import numpy as np

    from horovod_study.measure import energy

    samples = totals["samples_per_s"] * totals["window_s"] - sum(each.samples for each, _ in aside)
    names = ("step", "begin_s", *model.LAP_COLUMNS, "sync_host_s")
    hosts, devices = dict((totals.get("system") or {}).get("hosts") or {}), []
    rows = _step_rows(directory, model.step_ranks(directory), every)
    try:
        ranks = [{name: columns[name][columns["step"] >= first] for name in names} for columns in rows.values()]
        # Of the steps that follow each other without a wait, begin and end on the axis of the samples.
        step, begin_s = ranks[0]["step"], ranks[0]["begin_s"]
        end_s = begin_s + np.nan_to_num(ranks[0]["step_s"])
        opens = np.flatnonzero((np.diff(step) != 1) | np.isin(step[1:], list(totals["turns"]["before"]))) + 1
        edges = pairwise([0, *opens.tolist(), len(step)])
        stretches = [(float(begin_s[begin]), float(end_s[end - 1])) for begin, end in edges]
        for host, told in hosts.items():
            columns, meta = system_columns(directory, host)
            hosts[host] = {**told, **energy.host_summary(columns, stretches)}
            where = {"host": host, "interval_s": float(meta["interval_s"])}
            devices += energy.host_energy(columns, meta["devices"], stretches, **where)
    except (RecordError, LookupError):
        return record
    again = {
        "samples_per_s": samples / window_s,
        "window_s": window_s,
        "steps": min(len(rank["step"]) for rank in ranks),
    }
    again |= model.step_totals([model.lap_summary(rank.__getitem__) for rank in ranks])
    if hosts:
        joules = energy.total_energy(devices, [], samples=round(samples))
        again["energy"] = {**joules, "reason": (totals.get("energy") or {}).get("reason", "")}
        again["system"] = {**totals["system"], "hosts": hosts}
    return replace(record, totals={**totals, **again})


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """A run as far as it was recorded, finished or not: its record and the step rows of each rank that has some."""

    name: str  # as in `run_table`
    directory: Path
    record: RunRecord
    state: str  # see RunRecord.state
    workers: int
    rows: "Mapping[int, Mapping[str, np.ndarray]]"  # rank -> columns, (steps of this rank,); null is NaN
    aside: Aside  # steps that do not count, and are in neither `rows` nor the totals of `record`, see `slices_aside`
    missing: Mapping[int, str]  # ranks without a row -> why, in words

    @property
    def first_step(self) -> int:
        """Where the timed window begins: at `totals["steady"]["step"]`, else after the declared warm-up."""
        return model.timed_from(self.record)[0]

    @cached_property
    def synchronisation(self) -> Mapping[str, Any] | None:
        """What `read_synchronisation` returns; None where it raises."""
        with suppress(RecordError):
            return read_synchronisation(self.directory)
        return None

    def whole(self) -> "RecordedRun":
        """Return the run with the steps that do not count, as it wrote itself down."""
        if not self.aside:
            return self
        return replace(self, record=read_run(self.directory), rows=_step_rows(self.directory, self.rows), aside=())

    def row_count(self) -> int:
        """Return how many step rows there are; of those that stay in their files about how many."""
        if self.state != "running":
            return _bytes_of(self.directory, self.rows) // 96  # see `step_schema`
        return sum(len(columns["step"]) for columns in self.rows.values())

    def system_samples(self, names: Sequence[str]) -> "dict[str, dict[str, dict[str, np.ndarray]]]":
        """Return {host: {part: columns}} of the system samples, (samples of the part,), null is NaN, read now.

        `names`: the columns that are wanted. A file that cannot be read is left out, as in a run without a sampler.
        """
        found = {}
        for host in model.sampled_hosts(self.directory):
            with suppress(RecordError):
                columns = system_columns(self.directory, host)[0]
                parts = {f"{part}": columns["part"] == part for part in dict.fromkeys(columns["part"])}
                found[host] = {part: {name: columns[name][rows] for name in names} for part, rows in parts.items()}
        return found


def recorded_run(directory: Path, *, name: str | None = None, record: RunRecord | None = None) -> RecordedRun:
    """Return a run as far as it was recorded, also one that failed, was killed or still runs.

    Rows of a run that has ended stay in their files; those of a run that goes on are read now, all of them.
    `record`: what `read_run` has returned already.

    A rank whose file is missing, unreadable or empty is no error: `missing` says so. RecordError for what is no run.
    """
    record = read_run(directory) if record is None else record
    aside, state = slices_aside(directory, record), record.state()
    record = counted_record(directory, record)
    said = record.effective.get("workers", record.requested.get("workers")) or 0
    found, rows = set(model.step_ranks(directory)), {}
    missing = dict.fromkeys(set(range(said)) - found, "has no file of steps")
    for rank in sorted(found):
        try:
            if _has_rows(directory, rank):
                rows[rank] = dict(_columns(read_steps(directory, rank))) if state == "running" else {}
            else:
                missing[rank] = "recorded no step"
        except RecordError as error:
            missing[rank] = str(error).partition(": ")[2].partition(";")[0]
    return RecordedRun(
        name=directory.resolve().name if name is None else name,
        directory=directory,
        record=record,
        state=state,
        workers=said or len(found),
        rows=rows if state == "running" else _step_rows(directory, rows, aside),
        aside=aside,
        missing=dict(sorted(missing.items())),
    )


def _has_rows(directory: Path, rank: int) -> bool:
    """Return whether a rank has recorded a step, as far as a batch that can be read; raises what `read_steps` does."""
    with suppress(*_stream_errors()), _open_rows(model.step_path(directory, rank)) as (_, batches):
        return any(batch.num_rows for batch in batches)
    return len(read_steps(directory, rank)) > 0


# --------------------------------------------------------------------------------------------------- system samples


@dataclass(frozen=True, kw_only=True)
class SystemSamples:
    """The system samples of one host: rows as `system_schema` says, and what the sampler said of its sensors.

    `meta`: interval_s, ranks {rank: pid}, devices {part: name}, missing {quantity: reason}, cores.
    """

    host: str
    rows: "pd.DataFrame"
    meta: Mapping[str, Any]


def read_system_rows(directory: Path, host: str) -> "tuple[pa.Table, dict[str, Any]]":
    """Return the system samples of one host up to the last complete batch, and what the file says of its sensors."""
    path, again = model.system_path(directory, host), "move it away, or record the run again"
    missing = f"the run recorded no system samples of {host} (--system-interval-s 0?)"
    table = _read_rows(path, model.system_schema(), "system samples", missing)
    told = (table.schema.metadata or {}).get(model.SYSTEM_META, b"{}")
    meta = parse_json(told, source=shown(path), again=again)
    require_schema(meta, model.SYSTEM_SCHEMA, path, again)
    return table.replace_schema_metadata(None), meta


def system_columns(directory: Path, host: str) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """Return `read_system_rows` as NumPy columns, null as NaN, for a program that is to do without pandas."""
    table, meta = read_system_rows(directory, host)
    columns = {}
    for name, column in zip(table.column_names, table.combine_chunks().columns, strict=True):
        columns[name] = numpy_column(column.chunk(0) if column.num_chunks else arrow_array([], column.type))
    return columns, meta


def read_system(directory: Path) -> dict[str, SystemSamples]:
    """Return {host: samples} of a run, in the order of the hosts' names; empty for a run without a sampler."""
    found = {}
    for host in model.sampled_hosts(directory):
        table, meta = read_system_rows(directory, host)
        found[host] = SystemSamples(host=host, rows=table.to_pandas(), meta=meta)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSideFiles:
    """What is in a run directory besides its record and its step rows."""

    evaluations: Sequence[Mapping[str, float]] = ()
    system: Mapping[str, SystemSamples] = field(default_factory=dict)  # host -> samples
    why_no_system: str = ""  # in words
    damaged_system: bool = False  # it has samples that cannot be read
    timeline: Path | None = None
    profiles: Sequence[Path] = ()


def run_side_files(directory: Path) -> RunSideFiles:
    """Return what a run directory holds besides step rows; system samples that cannot be read are left out."""
    samples, why, sampled = {}, "the run recorded no system samples", bool(model.sampled_hosts(directory))
    try:
        samples, why = read_system(directory), "" if sampled else why
    except RecordError as error:
        why = str(error)
    timeline, profiles = directory / model.TIMELINE, sorted((directory / model.PROFILE).glob("*"))
    return RunSideFiles(
        evaluations=epoch_rows(directory),
        system={host: each for host, each in samples.items() if len(each.rows)},
        why_no_system=why,
        damaged_system=bool(why) and sampled,
        timeline=timeline if timeline.exists() else None,
        profiles=tuple(path for path in profiles if path.is_file()),
    )
