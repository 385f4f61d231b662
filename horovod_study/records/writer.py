"""Writing a run directory: its record when it begins, goes on and ends, and the rows of its steps in between.

Room for the end of a run is reserved while it goes on, and set free on a disk that is full by then.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.config.documents import read_text
from horovod_study.errors import RecordError
from horovod_study.files import append_text, csv_rows, new_file, unfinished, write_file, writing
from horovod_study.records import model, reader
from horovod_study.records.model import BENCH, EPOCH_COLUMNS, EPOCHS, MANIFEST, NoRoom, RunRecord, record_text

if TYPE_CHECKING:  # the run wing records without pandas
    import pyarrow as pa

ROWS_JOINED = 512
"""So many step rows share one head in their file, about 1.4 kB."""
RESERVE_BYTES = 262_144
SILENT_S = 600.0
"""A run on another host that has written nothing for so long is taken for dead; evaluations may take minutes."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def _with_reserve(
    write: Callable[..., Any], path: Path, text: str, again: str = "free space and run again", **options: Any
) -> None:
    """Call `write`, again after each part of the reserve is set free on a full disk; RecordError when none is left.

    By halves, because the other ranks' rows may fill what was set free before the next one needs it.
    """
    reserve = path.parent / model.RESERVE
    with writing(path, again):
        while True:
            try:
                write(path, text, **options)
                return
            except OSError as error:
                if error.errno not in _NO_ROOM or not reserve.exists():
                    raise
                size = reserve.stat().st_size
                if size > RESERVE_BYTES // 4:
                    os.truncate(reserve, size // 2)
                else:
                    reserve.unlink()


def _write_record(directory: Path, record: RunRecord, again: str) -> None:
    """Write run.json, and keep room for the end of the run, or give it back when it ends."""
    reserve = directory / model.RESERVE
    _with_reserve(write_file, directory / MANIFEST, record_text(record), again)
    with suppress(OSError):
        if record.finished is not None:
            reserve.unlink(missing_ok=True)
        else:
            with new_file(reserve) as stream:
                os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)


def create_run(directory: Path, record: RunRecord, *, again: str = "") -> None:
    """Make the run directory and write its first run.json; an existing run is never overwritten.

    `again` as in `require_no_run`.
    """
    require_no_run(directory, again=again)
    with writing(directory, "choose a writable --out"):
        directory.mkdir(parents=True, exist_ok=True)
    _write_record(directory, record, "choose a writable --out")


def require_no_run(directory: Path, *, again: str = "") -> None:
    """Raise RecordError where a directory holds a run.

    `again`: the option that moves one which has ended aside, for the message where there is nothing to go on with.
    """
    if (directory / MANIFEST).exists():
        state, way = reader.read_run(directory).state(), "choose another --out or move it away"
        if again and state in ("failed", "incomplete") and not model.checkpoint_paths(directory):
            way = f"give {again} to keep it aside and start over, or choose another --out"
        raise RecordError(f"{directory}: already holds a run ({state}); nothing was overwritten, {way}")


def resume_run(directory: Path, record: RunRecord, *, from_step: int, began: str) -> RunRecord:
    """Replace run.json by that of a run that goes on from `from_step` and return it.

    `record` describes the new attempt (its host, processes and environment) and holds the `started` and `attempts` of
    the run; of the attempt before, what its own record could not say is filled in: it was killed.
    """
    *before, last = record.attempts
    if last["status"] == "running":
        last = {**last, "status": "incomplete", "reason": last["reason"] or "its process was gone"}
    begun = replace(record, status="running", finished=None, totals={}, reason="", files={}, digest="")
    going_on = replace(begun, attempts=(*before, last, begun.attempt(began, from_step=from_step)))
    _write_record(directory, going_on, "make it writable")
    return going_on


def silent_s(directory: Path) -> float:
    """Return for how long nothing was written into a run directory, by the clock of its file system.

    A run writes at least every few seconds, except during a long evaluation or while its first batch is made.
    """
    with writing(directory, "make it writable"):
        with unfinished(directory / "now") as probe:
            present = probe.stat().st_mtime
            written = [path.stat().st_mtime for path in directory.iterdir() if not path.name.startswith(".")]
    return present - max(written, default=present)


def finish_run(
    directory: Path, record: RunRecord, *, status: str, finished: str, totals: Mapping[str, Any], reason: str = ""
) -> RunRecord:
    """Replace run.json by its final form and return it; all files of a run that is done must be closed on all ranks."""
    *before, last = record.attempts
    end: dict[str, Any] = {"finished": finished, "status": status, "reason": reason}
    final = replace(record, **end, totals=totals, attempts=(*before, {**last, **end}), files={}, digest="")
    if status == "done":
        others = {name: digest for name, digest in model.run_files(directory).items() if name != MANIFEST}
        final = replace(final, files=others)
        final = replace(final, digest=model.digest_of_record(final))
    _write_record(directory, final, "free space and run again")
    return final


class StepWriter:
    """Appends step rows of one rank to its Arrow stream; what was appended survives a crash of the process.

    Each append is one write to the system, because a killed process keeps nothing. Where rows come slowly that makes
    many small batches, whose heads cost more than their rows: they are replaced by one batch, in their place, when
    ROWS_JOINED rows have come together. A process that dies in between leaves a torn batch behind the joined one.
    """

    def __init__(self, directory: Path, rank: int, *, resume_at: int | None = None) -> None:
        """Begin the stream of `rank`; with `resume_at`, keep the rows of the steps before that one and go on after.

        The kept rows are written to a new file that takes the place of the old one whole, so that a crash in between
        leaves the old one. RecordError when a row before `resume_at` is missing.
        """
        self._schema = model.step_schema()
        self.path = model.step_path(directory, rank)
        self.kept: pa.Table | None = None  # rows of earlier attempts
        self._small: list[pa.RecordBatch] = []  # the batches at the end of the file that will be joined
        self._small_at = self._end = 0
        self._pid = os.getpid()
        if resume_at is None:
            with writing(self.path, "choose a writable --out"), self._begun(self.path, "xb"):
                return
        rows = reader.read_steps(directory, rank)
        self.kept = rows.slice(0, resume_at)
        steps = self.kept.column("step").to_numpy()
        if len(steps) < resume_at or steps[-1:].tolist() not in ([], [resume_at - 1]):
            raise RecordError(
                f"{self.path}: holds rows up to step {rows.num_rows}, but the checkpoint is at step {resume_at}; "
                "rows were lost, start the run again with another --out"
            )
        again = f"free space, resume again from step {resume_at}"
        with writing(self.path, again), unfinished(self.path) as made, self._begun(made, "wb"):
            for batch in self.kept.combine_chunks().to_batches(max_chunksize=8 * ROWS_JOINED):
                self._write(batch.serialize(), at=self._end)
            self.sync()
            os.replace(made, self.path)

    @contextmanager
    def _begun(self, path: Path, mode: str) -> Iterator[None]:
        self._file: Any = open(path, mode, buffering=0)
        with ExitStack() as begun:
            begun.callback(self._file.close)
            self._write(self._schema.serialize(), at=0)
            yield
            begun.pop_all()

    def _write(self, content: "pa.Buffer", at: int) -> None:
        """Write the whole of `content` at an offset and end the file there, or leave the file as it was."""
        view = memoryview(content)
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._file.fileno(), view[done:], at + done)
        except OSError:
            if at >= self._end:
                with suppress(OSError):
                    os.ftruncate(self._file.fileno(), self._end)
            raise
        if at + done < self._end:
            os.ftruncate(self._file.fileno(), at + done)
        self._end = at + done

    def sync(self) -> None:
        """Return when what was appended is on the disk, not only on its way there."""
        with self._writing("step rows"):
            os.fsync(self._file.fileno())

    def append(self, columns: Mapping[str, Any]) -> None:
        """Append rows given as columns of equal length; a column that is not there is stored as null.

        Raises NoRoom where the disk is full, RecordError where it fails otherwise; earlier rows stay readable.
        """
        import pyarrow as pa

        if os.getpid() != self._pid:  # a fork of the script went on with the loop: these rows are none of the run's
            return
        rows = len(columns["step"])
        arrays = [
            reader.arrow_array(columns[each.name], each.type) if each.name in columns else pa.nulls(rows, each.type)
            for each in self._schema
        ]
        batch = pa.record_batch(arrays, schema=self._schema)
        with self._writing("step rows"):
            if sum(map(len, self._small)) + rows > ROWS_JOINED:
                self._join()
            if not self._small:
                self._small_at = self._end
            self._write(batch.serialize(), at=self._end)
            self._small.append(batch)

    def _join(self) -> None:
        import pyarrow as pa

        if len(self._small) > 1:
            (joined,) = pa.Table.from_batches(self._small).combine_chunks().to_batches()
            self._write(joined.serialize(), at=self._small_at)
        self._small = []

    def close(self) -> None:
        """End the stream and close the file. A full disk takes nothing from rows that were appended before."""
        if self._file.closed or os.getpid() != self._pid:
            return
        with suppress(NoRoom), self._writing("the end of the step rows"), closing(self._file):
            self._join()
            self._write(_END_OF_STREAM, at=self._end)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = NoRoom if error.errno in _NO_ROOM else RecordError
            raise kind(f"{self.path}: {what} cannot be written ({error.strerror}); free space and run again") from None


def append_epoch(directory: Path, row: Mapping[str, Any]) -> None:
    """Append one row to epochs.csv, with the header when it is the first."""
    text, head = csv_rows(EPOCH_COLUMNS, [row], head=False), csv_rows(EPOCH_COLUMNS, [])
    _with_reserve(append_text, directory / EPOCHS, text, head=head)


def append_turns(directory: Path, slices: Iterable[reader.TurnSlice]) -> None:
    """Append the slices of one run, which is done, to the turns.csv of a study's folder: all of them or none.

    Rows of a run are there once and complete, and whoever appends them holds the claim on its cell.
    """
    rows = [  # in CSV nothing is written for None
        {name: f"{value:.6f}" if isinstance(value, float) else value for name, value in asdict(each).items()}
        for each in slices
    ]
    if rows:
        with writing(directory / reader.TURNS_FILE, "free space and run again"):
            text, head = csv_rows(reader.TURN_COLUMNS, rows, head=False), csv_rows(reader.TURN_COLUMNS, [])
            append_text(directory / reader.TURNS_FILE, text, head=head)


def write_bench(directory: Path, section: str, found: Mapping[str, Any]) -> None:
    """Write what a probe found in this job into bench.json, and keep the other sections there.

    `section`: "synchronisation" or "ablation", as in strain/; a file that cannot be read has none.
    """
    path = directory / BENCH
    others: dict[str, Any] = {}
    with suppress(RecordError):
        others = reader.read_document(path, model.BENCH_SCHEMA, again="")
    text = json.dumps({**others, "schema": model.BENCH_SCHEMA, section: found}, allow_nan=False)
    _with_reserve(write_file, path, text + "\n")


def truncate_epochs(directory: Path, steps: int) -> None:
    """Remove the rows of epochs.csv after step `steps`, as if the run had been there when it was stopped."""
    path, column = directory / EPOCHS, EPOCH_COLUMNS.index("steps")
    try:
        lines = read_text(path, again="start the run again").splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines[1:] if line.endswith("\n")]  # a torn last row is dropped
        kept = [row for row in whole if int(row.split(",")[column]) <= steps]
        if lines:
            write_file(path, "".join([lines[0], *kept]))
    except (OSError, ValueError, IndexError) as error:
        text = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: cannot be cut to step {steps} ({text}); start the run again") from None


class SystemWriter:
    """Appends the system samples of one host to its Arrow stream; what was appended survives a crash."""

    def __init__(self, directory: Path, host: str, meta: Mapping[str, Any], *, keep_before_s: float | None) -> None:
        """Begin the stream. `meta` says what the sensors are and which are missing, and why.

        With `keep_before_s` the samples of earlier attempts before that time are kept, in a new file that takes the
        place of the old one whole; `attempt` is the number of this one. RecordError if it cannot be written.
        """
        import pyarrow as pa

        self._path = model.system_path(directory, host)
        self.attempt = 0
        kept = None
        if keep_before_s is not None and self._path.exists():
            kept, _ = reader.read_system_rows(directory, host)
            # Rows are in the order of time.
            before = sum(
                int((reader.numpy_column(chunk) < keep_before_s).sum()) for chunk in kept.column("at_s").chunks
            )
            kept = kept.slice(0, before)
            if before:
                self.attempt = int(reader.numpy_column(kept.column("attempt").chunks[-1])[-1]) + 1
        told = json.dumps(
            {**meta, "schema": model.SYSTEM_SCHEMA, "host": host, "attempt": self.attempt}, allow_nan=False
        )
        self._schema = model.system_schema().with_metadata({model.SYSTEM_META: told.encode()})
        with writing(self._path, "free space"), unfinished(self._path) as made:
            self._file = open(made, "wb")
            self._writer = pa.ipc.new_stream(self._file, self._schema)
            if kept is not None and len(kept):
                self._writer.write_table(kept.replace_schema_metadata(self._schema.metadata))
            self._file.flush()
            os.replace(made, self._path)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append samples; RecordError when there is no room for them beside what the end of the run needs."""
        import pyarrow as pa

        with suppress(OSError):
            free = os.statvfs(self._path.parent)
            # So much is left to step rows and run.json, which are worth more than samples.
            if free.f_bavail * free.f_frsize < 2**20:
                raise RecordError(
                    f"{self._path}: the disk is nearly full, and what is left is for the end of the run; free space"
                )
        numbered = [{**row, "attempt": self.attempt} for row in rows]
        columns = [reader.arrow_array([row.get(each.name) for row in numbered], each.type) for each in self._schema]
        with writing(self._path, "free space"):
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
            self._file.flush()

    def close(self) -> None:
        """End the stream; a reader does without its end."""
        for each in (self._writer, self._file):
            with suppress(OSError):
                each.close()
