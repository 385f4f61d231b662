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
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from horovod_study.config.documents import open_file, parse_csv, parse_json, read_json, read_text, shown
from horovod_study.config.doors import accept
from horovod_study.errors import RecordError, refuse
from horovod_study.records import model
from horovod_study.records.model import BENCH, EPOCH_COLUMNS, EPOCHS, MANIFEST, RunRecord, run_name
from horovod_study.records.turns import Aside, recounted, slices_aside, without

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

    return (pa.ArrowException, OSError, MemoryError, ValueError)


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
        return _columns(without(read_steps(directory, rank, mapped=True), aside))

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
    """Return the record of a run with the totals of the steps that count, see turns.py."""
    if record.status != "done" or not (aside := slices_aside(directory, record)):
        return record
    rows = _step_rows(directory, model.step_ranks(directory), aside)
    return recounted(record, aside, rows, partial(system_columns, directory))


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """A run as far as it was recorded, finished or not: its record and the step rows of each rank that has some."""

    name: str  # as in `run_table`
    directory: Path
    record: RunRecord
    state: str  # see RunRecord.state
    workers: int
    rows: "Mapping[int, Mapping[str, np.ndarray]]"  # rank -> columns, (steps of this rank,); null is NaN
    aside: Aside  # steps that do not count, and are in neither `rows` nor the totals of `record`, see turns.py
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
