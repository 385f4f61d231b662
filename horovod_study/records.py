"""The run directory: the only file that knows its format, and the only place where the two wings meet.

    runs/<study>/<key>/
      run.json               what was asked for, what ran, where, and how it ended; written before the first step
      steps-00000.arrows     one row per step and rank: an Arrow stream, readable to its last batch after a crash
      epochs.csv             one row per evaluation: losses and errors against epochs, samples and seconds
      bench.json             what the job measured after its timed window, in sections: with --measure-sync what the
                             synchronisation is made of (workload/probes/synchronisation.py), with
                             --measure-ablation what communication costs (workload/probes/ablation.py)
      system-<host>.arrows   what the sensors of a host read, one row per sample and part, see measure/system.py
      profile/               what a profiler wrote, per rank, with --profile (workload/probes/profiling.py)
      timeline.json          Horovod's own timeline of some steps, with --timeline-steps (workload/probes/timeline.py)
      checkpoints/           the newest two states of the run, see workload/checkpoint.py
      .reserve               while it runs: room for its end on a disk that is full by then

History of the schema number in run.json:
    1   first form
    2   `attempts` lists every start of the run, because a run can be stopped and resumed; new status `stopped`.
        A program that knows only 1 would count a stopped run as damaged, hence the new number; 1 is still read.
    3   step rows have `begin_s` and `sync_host_s`; every lap may be null, because runs may be recorded without laps or
        from scripts that do not mark all of them.
    4   step rows have `compute_s`: of steps captured in a CUDA graph, in place of `forward_s` and `backward_s`, which
        are null there. A program that knows only 3 would read such a run as one whose computing nobody timed.
    5   `process`, of the run and of each attempt: who rank 0 is beyond its number, see alive.py; null where that is
        not known. A program that knows only 4 would call the field unknown.
"""

import errno
import hashlib
import io
import json
import math
import os
import re
import shlex
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required

from typing_extensions import TypedDict  # pydantic does without that of Python only from 3.12 on

from horovod_study import __version__, alive
from horovod_study.config import LAPS
from horovod_study.documents import conform, parse_csv, parse_json, read_bytes, read_json, read_text, shown
from horovod_study.errors import RecordError
from horovod_study.files import append_text, csv_of, csv_rows, new_file, result_folder, unguarded, write_file, writing
from horovod_study.workloads import packaged

OWN = packaged()
"""Whose options are columns of the run table, and whose model a record needs not name."""

if TYPE_CHECKING:  # the run wing records without pandas
    import numpy as np
    import pandas as pd
    import pyarrow as pa

SCHEMA = 6
MANIFEST = "run.json"
MAX_RUN_BYTES = 64_000_000
BENCH = "bench.json"
BENCH_SCHEMA = 1
CHECKPOINTS = "checkpoints"
PROFILE = "profile"
TIMELINE = "timeline.json"
TIMELINE_READ_BYTES = 256_000_000
"""A longer timeline is refused: all of it is in memory at once, and some steps say as much as many."""
KEPT_OPEN_BYTES = 500_000_000
"""Step rows of a run that are fewer stay mapped between two looks at them."""
ROW_BYTES = 96
ROWS_JOINED = 512
"""So many step rows share one head in their file, about 1.4 kB."""
RESERVE = ".reserve"
RESERVE_BYTES = 262_144
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_ROWS = re.compile(r"steps-(\d{5,6})\.arrows", re.ASCII)
STATUSES = ("running", "done", "failed", "stopped")
EPOCH_COLUMNS = (
    "epoch",
    "steps",
    "samples",
    "train_s",
    "wall_s",
    "train_mse",
    "test_mse",
    "g0_rmse_mpa",
    "a_rmse",
    "lr",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The content of run.json: one training run, described so that it can be repeated and doubted."""

    study: str
    key: str
    repeat: int
    partition: str
    status: str  # running | done | failed | stopped (by a signal, with a checkpoint, to be resumed)
    started: str  # ISO 8601, UTC; of the first attempt
    host: str  # of rank 0, as is pid; of the latest attempt
    pid: int
    requested: Mapping[str, Any]
    effective: Mapping[str, Any]  # read back from the live objects, see recording/
    environment: Mapping[str, Any]
    reason: str = ""
    finished: str | None = None
    totals: Mapping[str, Any] = field(default_factory=dict)  # of the timed window; empty until done
    attempts: Sequence[Mapping[str, Any]] = ()  # every start of the run, in order; see _attempt
    process: Mapping[str, Any] | None = None  # alive.identity() of rank 0, of the latest attempt
    files: Mapping[str, str] = field(default_factory=dict)  # digests of what else a run wrote that is done
    digest: str = ""  # of the rest of run.json of a run that is done; empty of one of an older program, too
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"run record: status is {self.status!r}; allowed: {', '.join(STATUSES)}")
        object.__setattr__(self, "attempts", tuple(self.attempts) or (self._attempt(self.started, from_step=0),))

    def _attempt(self, began: str, *, from_step: int) -> dict[str, Any]:
        return {
            "started": began,
            "finished": self.finished,
            "status": self.status,
            "reason": self.reason,
            "from_step": from_step,
            "host": self.host,
            "pid": self.pid,
            "process": self.process,
        }

    def state(self) -> str:
        """Return the status as it is now: a run that says running but whose process is gone is incomplete.

        A run that says running on another host is believed: processes there cannot be seen from here. Who is about to
        take it up asks `silent_s` too.
        """
        if self.status != "running":
            return self.status
        if self.finished is not None:  # interrupted: ended by the study runner, neither done nor failed
            return "incomplete"
        began = str(self.attempts[-1].get("started", ""))
        running = alive.is_running(self.process, pid=self.pid, host=self.host, started=began)
        return "running" if running else "incomplete"


class NoRoom(RecordError):
    """The disk is full, or the user's share of it."""


# ---------------------------------------------------------------------------------------------------- writing


def _reserve(directory: Path) -> None:
    """Keep some room, so that the end of a run can be determined on a disk that is full by then."""
    with suppress(OSError), new_file(directory / RESERVE) as stream:
        os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)


def _spend_reserve(directory: Path, error: OSError) -> bool:
    """Set half of the reserve free, or what is left of it; False when the disk is not full or there is no reserve.

    By halves, because the other ranks' rows may fill what was set free before the next one needs it.
    """
    if error.errno not in _NO_ROOM:
        return False
    with suppress(OSError):
        size = (directory / RESERVE).stat().st_size
        if size > RESERVE_BYTES // 4:
            os.truncate(directory / RESERVE, size // 2)
        else:
            (directory / RESERVE).unlink()
        return True
    return False


def _with_reserve(directory: Path, write: Callable[..., Any], *values: Any, **options: Any) -> None:
    """Call `write`, again after each part of the reserve that is set free on a full disk; OSError when none is left."""
    while True:
        try:
            write(*values, **options)
            return
        except OSError as error:
            if not _spend_reserve(directory, error):
                raise


def is_over(directory: Path) -> bool:
    """Return whether there is a run in `directory`, and it has ended."""
    return (directory / MANIFEST).exists() and read_run(directory).state() != "running"


def create_run(directory: Path, record: RunRecord, *, again: str = "") -> None:
    """Make the run directory and write its first run.json; an existing run is never overwritten.

    `again` as in `require_no_run`.
    """
    require_no_run(directory, again=again)
    with writing(directory, "choose a writable --out"):
        directory.mkdir(parents=True, exist_ok=True)
        _with_reserve(directory, write_file, directory / MANIFEST, _to_json(record))
        _reserve(directory)


MAX_TRAININGS = 8
"""Trainings of one process that are recorded, one after the other."""


def training_directory(out: Path, training: int) -> Path:
    """Return the run directory of the training of this number, from 1, of processes that are recorded in `out`."""
    return out if training == 1 else out.with_name(f"{out.name}-training{training}")


def require_no_run(directory: Path, *, again: str = "") -> None:
    """Raise RecordError where a directory holds a run.

    `again`: the option that moves one which has ended aside, for the message where there is nothing to go on with.
    """
    if (directory / MANIFEST).exists():
        state = read_run(directory).state()
        aside = again and state in ("failed", "incomplete") and not checkpoint_paths(directory)
        way = f"give {again} to keep it aside and start over, or choose another --out" if aside else ""
        raise RecordError(
            f"{directory}: already holds a run ({state}); nothing was overwritten, "
            f"{way or 'choose another --out or move it away'}"
        )


def resume_run(directory: Path, record: RunRecord, *, from_step: int, began: str) -> RunRecord:
    """Replace run.json by that of a run that goes on from `from_step` and return it.

    `record` describes the new attempt (its host, processes and environment) and holds the `started` and `attempts` of
    the run; of the attempt before, what its own record could not say is filled in: it was killed.
    """
    *before, last = record.attempts
    if last["status"] == "running":
        last = {**last, "status": "incomplete", "reason": last["reason"] or "its process was gone"}
    begun = replace(record, status="running", finished=None, totals={}, reason="", files={}, digest="")
    going_on = replace(begun, attempts=(*before, last, begun._attempt(began, from_step=from_step)))
    with writing(directory, "make it writable"):
        _with_reserve(directory, write_file, directory / MANIFEST, _to_json(going_on))
        _reserve(directory)
    return going_on


def silent_s(directory: Path) -> float:
    """Return for how long nothing was written into a run directory, by the clock of its file system.

    A run writes at least every few seconds, except during a long evaluation or while its first batch is made.
    """
    with writing(directory, "make it writable"):
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".now.") as probe:
            present = os.fstat(probe.fileno()).st_mtime
            written = [path.stat().st_mtime for path in directory.iterdir() if not path.name.startswith(".")]
    return present - max(written, default=present)


def finish_run(
    directory: Path, record: RunRecord, *, status: str, finished: str, totals: Mapping[str, Any], reason: str = ""
) -> RunRecord:
    """Replace run.json by its final form and return it; all files of a run that is done must be closed on all ranks."""
    *before, last = record.attempts
    last = {**last, "finished": finished, "status": status, "reason": reason}
    final = replace(
        record, status=status, finished=finished, totals=totals, reason=reason, attempts=(*before, last), digest=""
    )
    others = {}
    if status == "done":
        others = {name: digest for name, digest in run_files(directory).items() if name != MANIFEST}
    final = replace(final, files=others)
    if status == "done":
        final = replace(final, digest=_digest_of_record(final))
    try:
        _with_reserve(directory, write_file, directory / MANIFEST, _to_json(final))
        (directory / RESERVE).unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(
            f"{directory}: the end of the run cannot be written ({error.strerror or error}); free space and run again"
        ) from None
    return final


def _to_json(record: RunRecord) -> str:
    # A run that diverged has totals that are no numbers; JSON has none of those, and unknown is null.
    return json.dumps(finite(asdict(record)), indent=1, allow_nan=False) + "\n"


def _digest_of_record(record: RunRecord) -> str:
    return _own_digest(json.loads(_to_json(record)))


def unlike_written(record: RunRecord, there: Mapping[str, str]) -> dict[str, str]:
    """Return {file: what is wrong} of what is not as the run itself wrote it down when it was done.

    `there`: `run_files` of its directory as it is now. Nothing can be determined of a run without `digest`, nor of a
    file that another host wrote and rank 0 did not see yet.
    """
    if not record.digest:
        return {}
    found = {MANIFEST: "its digest is that of another text"} if record.digest != _digest_of_record(record) else {}
    for name, digest in record.files.items():
        if there.get(name) != digest:
            found[name] = "is not the file that the run wrote" if name in there else "the run wrote it, and it is gone"
    return found


def mean_over_ranks(values: Sequence[float | None]) -> float | None:
    """Return the mean of one number of each rank; None unless all ranks know theirs, as for every total of a run.

    A mean over some of the ranks would look like one over all of them.
    """
    known = _of_all(values)
    return sum(known) / len(known) if known else None


def max_over_ranks(values: Sequence[float | None]) -> float | None:
    """Return the largest of one number of each rank; None unless all ranks know theirs."""
    return max(_of_all(values), default=None)


def _of_all(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return known if len(known) == len(values) else []


def step_totals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals that step rows give, in seconds, of the ranks' `Recorder.summary`; unknown is None."""

    def means(kind: str, names: Iterable[str]) -> dict[str, float | None]:
        return {name: mean_over_ranks([each[kind][f"{name}_s"] for each in summaries]) for name in names}

    return {
        "step_s_median": max_over_ranks([each["median"]["step_s"] for each in summaries]),
        "step_s_p90": max_over_ranks([each["step_s_p90"] for each in summaries]),
        **{f"{name}_s": value for name, value in means("mean", (*LAPS, "residual", "step")).items()},
        "lap_medians_s": means("median", (*LAPS, "residual")),
    }


def finite(value: Any) -> Any:
    """Return a value as JSON takes it: dataclasses by `to_dict` or their fields, tables by rows, numbers of numpy as
    Python's, None for what is no finite number."""
    if hasattr(value, "columns"):
        value = value.to_dict("records")
    elif hasattr(value, "to_dict"):
        value = value.to_dict()
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def facts(value: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, each as `finite` gives it."""
    return {name: finite(getattr(value, name)) for name in names}


def step_schema() -> "pa.Schema":
    """Return the columns of a step row, 96 bytes; docs/metrics.md defines them.

    `begin_s` counts from the first step of the run, at a barrier, on the clock of the rank's host; it is the axis of
    `wall_s` in epochs.csv and of the system samples too. `sync_host_s` is null where there is one clock only (a CPU).
    """
    import pyarrow as pa

    return pa.schema(
        [("step", pa.int32()), ("epoch", pa.int32()), ("begin_s", pa.float64())]
        + [(f"{lap}_s", pa.float64()) for lap in (*LAPS, "residual", "step")]
        + [("sync_host_s", pa.float64()), ("samples", pa.int32()), ("loss", pa.float32())]
    )


def _arrow(values: Any, kind: "pa.DataType") -> "pa.Array[Any]":
    """Return numbers or texts, None where unknown, as an Arrow array of type `kind`.

    `pyarrow.array` imports pandas when it is first called, which takes longer than a short training.
    """
    import numpy as np
    import pyarrow as pa

    known = None
    if isinstance(values, np.ma.MaskedArray):
        known, values = ~np.ma.getmaskarray(values), values.filled(0)
    elif not isinstance(values, np.ndarray):
        known = np.array([value is not None for value in values], dtype=bool)
    if pa.types.is_string(kind):
        texts = [(value or "").encode() for value in values]
        ends = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int32)
        content = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    else:
        number = np.dtype(f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}")
        plain = values if isinstance(values, np.ndarray) else [0 if value is None else value for value in values]
        content = [pa.py_buffer(np.ascontiguousarray(plain, dtype=number))]
    bits = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, *content])


def _numpy(column: "pa.Array[Any]") -> "np.ndarray":
    """Return a column of numbers as NumPy array, where null is NaN, or one of texts as array of objects.

    A copy of its own. Arrow's `to_numpy` imports pandas, see `_arrow`.
    """
    import numpy as np
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=object)
    kind = f"{'f' if pa.types.is_floating(column.type) else 'i'}{column.type.bit_width // 8}"
    present, content = column.buffers()
    if content is None:
        return np.empty(0, dtype=kind)
    values = np.frombuffer(content, dtype=kind)[column.offset : column.offset + len(column)].copy()
    if present is None or not column.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(present, dtype=np.uint8), bitorder="little")
    unknown = bits[column.offset : column.offset + len(column)] == 0
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    values[unknown] = np.nan
    return values


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
        self._schema = step_schema()
        self.path = directory / f"steps-{rank:05d}.arrows"
        self.kept: pa.Table | None = None  # rows of earlier attempts
        self._small: list[pa.RecordBatch] = []  # the batches at the end of the file that will be joined
        self._small_at = self._end = 0
        self._pid = os.getpid()
        if resume_at is not None:
            self._resume(directory, rank, resume_at)
            return
        try:
            self._file = open(self.path, "xb", buffering=0)
            self._write(self._schema.serialize(), at=0)
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be created ({error.strerror}); choose a writable --out") from None

    def _resume(self, directory: Path, rank: int, step: int) -> None:
        rows = read_steps(directory, rank)
        kept = rows.slice(0, step)
        steps = kept.column("step").to_numpy()
        if len(steps) < step or steps[-1:].tolist() not in ([], [step - 1]):
            raise RecordError(
                f"{self.path}: holds rows up to step {rows.num_rows}, but the checkpoint is at step {step}; "
                "rows were lost, start the run again with another --out"
            )
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=f".{self.path.name}.")
            self._file = os.fdopen(descriptor, "wb", buffering=0)
            self._write(self._schema.serialize(), at=0)
            for batch in kept.combine_chunks().to_batches(max_chunksize=8 * ROWS_JOINED):
                self._write(batch.serialize(), at=self._end)
            self.sync()
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.path)
            self.kept = kept
        except (OSError, RecordError) as error:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            text = getattr(error, "strerror", None) or error
            raise RecordError(f"{self.path}: cannot be cut to step {step} ({text}); free space, resume again") from None

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
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failed("step rows cannot be written", error) from None

    def append(self, columns: Mapping[str, Any]) -> None:
        """Append rows given as columns of equal length; a column that is not there is stored as null.

        Raises NoRoom where the disk is full, RecordError where it fails otherwise; earlier rows stay readable.
        """
        import pyarrow as pa

        if os.getpid() != self._pid:  # a fork of the script went on with the loop: these rows are none of the run's
            return
        rows = len(columns["step"])
        arrays = [
            _arrow(columns[each.name], each.type) if each.name in columns else pa.nulls(rows, each.type)
            for each in self._schema
        ]
        batch = pa.record_batch(arrays, schema=self._schema)
        try:
            if sum(map(len, self._small)) + rows > ROWS_JOINED:
                self._join()
            if not self._small:
                self._small_at = self._end
            self._write(batch.serialize(), at=self._end)
            self._small.append(batch)
        except OSError as error:
            raise self._failed("step rows cannot be written", error) from None

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
        try:
            self._join()
            self._write(_END_OF_STREAM, at=self._end)
        except OSError as error:
            failed = self._failed("the end of the step rows cannot be written", error)
            if not isinstance(failed, NoRoom):
                raise failed from None
        finally:
            with suppress(OSError):
                self._file.close()

    def _failed(self, what: str, error: OSError) -> RecordError:
        kind = NoRoom if error.errno in _NO_ROOM else RecordError
        return kind(f"{self.path}: {what} ({error.strerror}); free space and run again")


def append_epoch(directory: Path, row: Mapping[str, Any]) -> None:
    """Append one row to epochs.csv, with the header when it is the first."""
    path = directory / "epochs.csv"
    text, head = csv_rows(EPOCH_COLUMNS, [row], head=False), csv_rows(EPOCH_COLUMNS, [])
    with writing(path, "free space and run again"):
        _with_reserve(directory, append_text, path, text, head=head)


# ------------------------------------------------------------------------------------------------ turns


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSlice:
    """One slice of training of a cell that alternates with others: a row of turns.csv in the folder of a study.

    samples / (end_s - begin_s) is its rate. Slices of one block, launch and round were made one right after the other.
    """

    block: str  # the cells that alternate
    launch: int  # 0, 1, ...: how often the cells of this block were started before
    round: int  # 0, 1, ... in its launch
    position: int  # 0, 1, ... in its round, which is shuffled
    run: str  # name of the run directory
    begin_s: float  # seconds since the first round of the launch began; of the slowest rank
    end_s: float
    steps: int  # of each rank
    samples: int  # of all ranks together
    other_load: float | None  # cores in use by programs other than this cell; None where unknown


TURNS_FILE = "turns.csv"
TURN_COLUMNS = tuple(each.name for each in fields(TurnSlice))


def append_turns(directory: Path, slices: Iterable[TurnSlice]) -> None:
    """Append the slices of one run, which is done, to the turns.csv of a study's folder: all of them or none.

    Rows of a run are there once and complete, and whoever appends them holds the claim on its cell.
    """
    rows = [{name: _blank(getattr(each, name)) for name in TURN_COLUMNS} for each in slices]
    if rows:
        text, head = csv_rows(TURN_COLUMNS, rows, head=False), csv_rows(TURN_COLUMNS, [])
        with writing(directory / TURNS_FILE, "free space and run again"):
            append_text(directory / TURNS_FILE, text, head=head)


def _blank(value: Any) -> Any:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else value


def read_turns(directory: Path) -> list[TurnSlice]:
    """Return the slices in a study's folder, none where nothing was run in turns; RecordError names a damaged line."""
    path = directory / TURNS_FILE
    if not os.path.lexists(path):
        return []
    again = "move the file away; what was run in turns is then compared run by run"
    found = []
    rows = parse_csv(read_text(path, again=again), source=shown(path), columns=TURN_COLUMNS, again=again)
    for number, row in enumerate(rows, 2):
        try:
            found.append(_turn_slice(row))
        except ValueError:
            raise RecordError(f"{shown(path)} line {number}: holds a number that no slice has; {again}") from None
    return found


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
    before = sorted({int(each) for each in (record.totals.get("turns") or {}).get("before", ())})
    own = [each for each in slices if each.run == name]
    own = [each for each in own if (each.block, each.launch) == (own[-1].block, own[-1].launch)]
    resumed = int(record.attempts[-1].get("from_step") or 0)
    waits = [each for each in before if each >= resumed]
    lengths = [end - first for first, end in pairwise(waits)]
    ends = (_places([each.steps for each in own], lengths[:end]) for end in range(len(lengths), 0, -1))
    places = next((found for found in ends if found), [])
    if not places:
        return RunTurns(before=tuple(before))
    return RunTurns(
        before=tuple(before),
        launch=f"{own[0].block}/{own[0].launch:03d}",
        rounds={each.round: (waits[at], waits[at + 1]) for each, at in zip(own, places, strict=True)},
        other_load={each.round: math.nan if each.other_load is None else each.other_load for each in own},
    )


def _places(slices: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return where slices of so many steps are among the lengths between waits, the last one at their end; or []."""
    found: list[int] = []
    at = len(lengths) - 1
    for steps in reversed(slices):
        if found and lengths[at : at + 1] != [steps]:
            at -= 1  # what is between them leads in
        if at < 0 or lengths[at] != steps:
            return []
        found.append(at)
        at -= 1
    return found[::-1]


def _turn_slice(row: Mapping[str, str]) -> TurnSlice:
    """Return the slice of a row; ValueError: there is no such slice."""
    read: dict[Any, Callable[[str], Any]] = {str: str, int: int, float: float}
    read[float | None] = lambda text: float(text) if text else None
    made = TurnSlice(**{each.name: read[each.type](row[each.name]) for each in fields(TurnSlice)})
    counts = (made.launch, made.round, made.position, made.steps, made.samples)
    if min(counts) < 0 or not 0 < made.end_s - made.begin_s < math.inf or not 0 <= (made.other_load or 0.0) < math.inf:
        raise ValueError
    return made


def benches_beside(root: Path) -> list[Path]:
    """Return the bench.json that `horovod-study bench --out ROOT/bench` wrote beside the runs, if it is there."""
    path = root / "bench" / BENCH
    return [path] if path.is_file() else []


def write_bench(directory: Path, section: str, found: Mapping[str, Any]) -> None:
    """Write what a probe found in this job into bench.json, and keep the other sections there.

    `section`: "synchronisation" or "ablation", as in workload/probes/; a file that cannot be read has none.
    """
    path = directory / BENCH
    content: Any = None
    with suppress(RecordError):
        content = read_json(path, again="")
    others = content if isinstance(content, dict) and content.get("schema") == BENCH_SCHEMA else {}
    with writing(path, "free space and run again"):
        text = json.dumps({**others, "schema": BENCH_SCHEMA, section: found}, allow_nan=False)
        _with_reserve(directory, write_file, path, text + "\n")


def profile_path(directory: Path, profiler: str, rank: int, ending: str) -> Path:
    """Return the file of one rank's profile, and make its folder; RecordError where that cannot be made."""
    folder = directory / PROFILE
    with writing(folder, "make the run directory writable"):
        result_folder(folder)
    return folder / f"{profiler}-{rank:05d}.{ending}"


def profile_paths(directory: Path, profiler: str, rank: int) -> list[Path]:
    """Return the files that a profiler wrote of one rank."""
    return sorted((directory / PROFILE).glob(f"{profiler}-{rank:05d}.*"))


def write_profile_table(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write a table of a profile as CSV, with a head also where it has no rows; columns are those of the first row."""
    write_profile(path, csv_rows(columns or (list(rows[0]) if rows else []), rows))


def write_profile(path: Path, text: str) -> None:
    """Write a file of a profile."""
    with writing(path, "free space and run again"):
        write_file(path, text)


def read_timeline(place: Path) -> tuple[Path, str]:
    """Return the file and the text of a Horovod timeline: the file `place`, or that of the run directory `place`.

    Raises RecordError where there is none, or one that is too long.
    """
    path = place / TIMELINE if place.is_dir() else place
    what = "this run has no timeline" if place.is_dir() else "no such file"
    content = read_bytes(
        path,
        again="record fewer steps (train --timeline-steps, or hvd.start_timeline and hvd.stop_timeline)",
        max_bytes=TIMELINE_READ_BYTES,
        missing=f"{what}; record one with train --timeline-steps 50, over Horovod",
    )
    return path, content.decode("utf-8", errors="replace")


def truncate_epochs(directory: Path, steps: int) -> None:
    """Remove the rows of epochs.csv after step `steps`, as if the run had been there when it was stopped."""
    path = directory / "epochs.csv"
    if not path.exists():
        return
    try:
        lines = read_text(path, again="start the run again").splitlines(keepends=True)
        head, rows = lines[:1], [line for line in lines[1:] if line.endswith("\n")]  # a torn last row is dropped
        column = EPOCH_COLUMNS.index("steps")
        write_file(path, "".join(head + [row for row in rows if int(row.split(",")[column]) <= steps]))
    except (OSError, ValueError, IndexError) as error:
        text = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: cannot be cut to step {steps} ({text}); start the run again") from None


SYSTEM_SCHEMA = 1
SYSTEM_ROOM_BYTES = 2**20
"""So much of the disk is left to step rows and run.json, which are worth more than samples."""
_SYSTEM_META = b"horovod_study"


def system_schema() -> "pa.Schema":
    """Return the columns of a system sample; docs/system.md defines them.

    One row per sample and `part`: "rank 0" (its process tree), "host", "gpu 0", "package 0" (of the processors). What
    a part has not is null. Bytes and context switches are counts since the reading before: over `interval_s` seconds,
    switches over `switches_over_s`. `energy_j` counts up from the first sample of the `attempt` (0 is the start of the
    run, 1 the first time it was resumed). `at_s` is on the axis of `begin_s` in the step rows, and negative before the
    run's zero.
    """
    import pyarrow as pa

    numbers = (
        *("cpu_percent", "rss_mb", "own_mb", "pss_mb", "available_mb", "load1"),
        *("sampler_cpu_percent", "switches_over_s"),
    )
    counts = (
        *("processes", "threads", "voluntary_switches", "involuntary_switches", "read_bytes", "written_bytes"),
        *("received_bytes", "sent_bytes", "loopback_bytes", "rdma_received_bytes", "rdma_sent_bytes"),
    )
    sensors = ("gpu_percent", "gpu_memory_mb", "sm_mhz", "memory_mhz", "temperature_c", "power_w", "energy_j")
    return pa.schema(
        [("at_s", pa.float64()), ("attempt", pa.int16()), ("part", pa.string()), ("interval_s", pa.float64())]
        + [(name, pa.float64()) for name in numbers]
        + [(name, pa.int64()) for name in counts]
        + [(name, pa.float64()) for name in sensors]
    )


def system_path(directory: Path, host: str) -> Path:
    """Return the file of the system samples of one host."""
    return directory / f"system-{host.replace('/', '_')}.arrows"


class SystemWriter:
    """Appends the system samples of one host to its Arrow stream; what was appended survives a crash."""

    def __init__(self, directory: Path, host: str, meta: Mapping[str, Any], *, keep_before_s: float | None) -> None:
        """Begin the stream. `meta` says what the sensors are and which are missing, and why.

        With `keep_before_s` the samples of earlier attempts before that time are kept, in a new file that takes the
        place of the old one whole; `attempt` is the number of this one. RecordError if it cannot be written.
        """
        import pyarrow as pa

        self._path = system_path(directory, host)
        self.attempt = 0
        kept = None
        if keep_before_s is not None and self._path.exists():
            kept, _ = read_system_rows(directory, host)
            # Rows are in the order of time.
            before = sum(int((_numpy(chunk) < keep_before_s).sum()) for chunk in kept.column("at_s").chunks)
            kept = kept.slice(0, before)
            if before:
                self.attempt = int(_numpy(kept.column("attempt").chunks[-1])[-1]) + 1
        content = {**meta, "schema": SYSTEM_SCHEMA, "host": host, "attempt": self.attempt}
        self._schema = system_schema().with_metadata({_SYSTEM_META: json.dumps(content, allow_nan=False).encode()})
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)
            self._file = open(temporary, "xb")
            self._writer = pa.ipc.new_stream(self._file, self._schema)
            if kept is not None and len(kept):
                self._writer.write_table(kept.replace_schema_metadata(self._schema.metadata))
            self._file.flush()
            os.replace(temporary, self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RecordError(f"{self._path}: cannot be created ({error.strerror or error}); free space") from None

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append samples; RecordError when there is no room for them beside what the end of the run needs."""
        import pyarrow as pa

        with suppress(OSError):
            free = os.statvfs(self._path.parent)
            if free.f_bavail * free.f_frsize < SYSTEM_ROOM_BYTES:
                raise RecordError(
                    f"{self._path}: the disk is nearly full, and what is left is for the end of the run; free space"
                )
        numbered = [{**row, "attempt": self.attempt} for row in rows]
        columns = [_arrow([row.get(each.name) for row in numbered], each.type) for each in self._schema]
        try:
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
            self._file.flush()
        except OSError as error:
            raise RecordError(
                f"{self._path}: system samples cannot be written ({error.strerror or error}); free space"
            ) from None

    def close(self) -> None:
        """End the stream; a reader does without its end."""
        with suppress(OSError):
            self._writer.close()
        with suppress(OSError):
            self._file.close()


# ---------------------------------------------------------------------------------------------------- reading


def epoch_rows(directory: Path) -> list[dict[str, float]]:
    """Return the evaluations of a run so far, also while it is running: a row that is not complete yet is left out."""
    path = directory / "epochs.csv"
    if not os.path.lexists(path):
        return []
    again = "move the directory away"
    rows = parse_csv(read_text(path, again=again), source=shown(path), again=again)
    try:
        return [{name: float(value or "nan") for name, value in row.items()} for row in rows]
    except ValueError as error:
        raise RecordError(f"{shown(path)}: holds a damaged row ({error}); {again}") from None


def read_run(directory: Path) -> RunRecord:
    """Read run.json; a damaged or foreign one is a RecordError naming the file and the field."""
    from horovod_study.record_forms import Run

    path = directory / MANIFEST
    again = "move the directory away, or name a run directory"
    content = read_json(path, again=again, missing=_no_run(directory), max_bytes=MAX_RUN_BYTES)
    _require_schema(content, SCHEMA, path, again)
    # The content as it is and not as pydantic gives it: names that the form does not declare are kept.
    conform(content, Run, shown(path), again=again)
    # In memory every record has the newest form: one of schema 1 had one attempt, which its other fields describe.
    return RunRecord(**{**content, "schema": SCHEMA})


def _no_run(directory: Path) -> str:
    below = None
    if directory.is_dir() and not (directory / MANIFEST).exists():
        below = next(run_directories(directory), None)
    return f"no such file; name a run directory{f', such as {shown(below)}; of a study its file' if below else ''}"


def _require_schema(content: Any, newest: int, path: Path, again: str) -> None:
    """Refuse a document without a schema number, or with one that is newer than this program's."""
    if not isinstance(content, dict) or type(content.get("schema")) is not int:
        raise RecordError(f"{shown(path)}: has no schema number; it was not written by horovod_study, {again}")
    if content["schema"] > newest:
        raise RecordError(
            f"{shown(path)}: has schema {content['schema']}, newer than this program's {newest}; update horovod_study"
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
        holds_run = MANIFEST in names
        if holds_run:
            found.append(directory)
        elif any(_ROWS.fullmatch(name) or name == "epochs.csv" for name in names):
            passed[directory] = f"holds rows of a run, and no {MANIFEST}"
        elif directory.is_symlink() and not any((directory / name / MANIFEST).exists() for name in names):
            passed[directory] = "is a link to a folder that holds no runs"
            continue
        _sort_entries(directory, names, holds_run, folders, links, passed)
    if left_out is not None:
        wanted = {each: why for each, why in sorted(passed.items()) if only is None or each.name in only}
        left_out.update({run_name(each, root): why for each, why in wanted.items()})
    yield from (each for each in sorted(found) if only is None or each.name in only)


def _sort_entries(
    directory: Path,
    names: Iterable[str],
    of_run: bool,
    folders: list[Path],
    links: list[Path],
    passed: dict[Path, str],
) -> None:
    """Put the folders in a directory to `folders` or `links`, and what leads nowhere to `passed`.

    Below a folder such as .attempts is what was tried before: kept, but not counted.
    """
    for path in (directory / name for name in names if not name.startswith(".")):
        try:
            if stat.S_ISDIR(os.stat(path).st_mode):
                (links if path.is_symlink() else folders).append(path)
        except OSError as error:
            if not of_run:
                passed[path] = f"cannot be read ({error.strerror or error})"


def readable_runs(
    root: Path, only: Collection[str] | None = None, *, left_out: dict[str, str] | None = None
) -> Iterator[tuple[Path, RunRecord]]:
    """Yield each run directory at or below `root` with its record; arguments as for `run_directories`.

    A run whose run.json or epochs.csv cannot be used comes into `left_out` too. RecordError where `root` is that run
    itself, and where no run is left but some were left out.
    """
    missed: dict[str, str] = {}
    some = False
    for directory in run_directories(root, only, left_out=missed):
        try:
            record = read_run(directory)
            _evaluations(directory)
        except RecordError as error:
            if directory == root:
                raise
            missed[run_name(directory, root)] = str(error).removeprefix(f"{shown(directory)}/")
            continue
        some = True
        yield directory, record
    if missed and not some:
        name, why = next(iter(missed.items()))
        raise RecordError(f"{shown(root)}: holds no run that can be read; {name}: {why}")
    if left_out is not None:
        left_out.update(missed)


def read_steps(directory: Path, rank: int, *, mapped: bool = False) -> "pa.Table":
    """Return the step rows of one rank, up to the last complete batch if the run was killed.

    `mapped`: leave them in the file and let the system bring in what is looked at. Not while the run goes on: its
    writer shortens the file now and then, and to look at what is no longer there ends this program.
    """
    import pyarrow as pa

    path = directory / f"steps-{rank:05d}.arrows"
    if path.exists() and path.stat().st_size == 0:
        return step_schema().empty_table()  # the process died before the first batch
    try:
        table = _whole_batches(path, mapped=mapped)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; rank {rank} recorded no steps") from None
    except _stream_errors() as error:
        raise RecordError(f"{path}: holds no readable step rows ({error}); move the directory away") from None
    schema = step_schema()
    _require_types(table, schema, path)
    missing = set(schema.names).difference(table.column_names)  # rows of an older program
    for name in missing:
        table = table.append_column(schema.field(name), pa.nulls(len(table), schema.field(name).type))
    return table.select(schema.names) if missing else table


def _require_types(table: "pa.Table", schema: "pa.Schema", path: Path) -> None:
    """Refuse a table that has a column twice, or one of another type than in `schema`."""
    for each in schema:
        found = [kind for name, kind in zip(table.column_names, table.schema.types, strict=True) if name == each.name]
        if found not in ([], [each.type]):
            raise RecordError(
                f"{shown(path)}: column {each.name} is {' and '.join(map(str, found))}, not {each.type}; "
                "move the directory away"
            )


def _whole_batches(path: Path, *, mapped: bool = False) -> "pa.Table":
    """Return an Arrow stream up to its last complete batch: what comes after it was torn when its writer was killed, or
    found no room. Raises OSError and ArrowInvalid where not even its schema can be read."""
    import pyarrow as pa

    with _open_rows(path, mapped=mapped) as reader, suppress(*_stream_errors()):
        return _checked(reader.read_all())
    batches: list[pa.RecordBatch] = []
    with _open_rows(path, mapped=mapped) as reader:
        with suppress(*_stream_errors()):
            for batch in reader:
                batches.append(batch)
        return _checked(pa.Table.from_batches(batches, schema=reader.schema))


def _checked(table: "pa.Table") -> "pa.Table":
    """Return a table whose buffers are as long as its rows need; ArrowInvalid for one that is damaged."""
    import pyarrow as pa

    table.validate(full=any(pa.types.is_string(each.type) for each in table.schema))
    return table


@contextmanager
def _open_rows(path: Path, *, mapped: bool = False) -> "Iterator[pa.ipc.RecordBatchStreamReader]":
    """Give the reader of an Arrow stream; raises `_stream_errors` also where the file is a pipe."""
    import pyarrow as pa

    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is no regular file")
    with (pa.memory_map if mapped else pa.OSFile)(str(path)) as stream, pa.ipc.open_stream(stream) as reader:
        yield reader


def _stream_errors() -> tuple[type[Exception], ...]:
    """Return what reading a torn or damaged Arrow stream raises; MemoryError is of a length that is no length."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, MemoryError, ValueError)


def last_step(directory: Path, rank: int = 0) -> tuple[int, int, float] | None:
    """Return (steps, epoch, seconds since the first step) of the last row that a rank has written; None without rows.

    For looking at a run while it goes on: of each batch only what says how long it is, and of the last its last row is
    taken from the file, which is mapped into memory and not read.
    """

    path = directory / f"steps-{rank:05d}.arrows"
    last = None
    try:
        with _open_rows(path, mapped=True) as reader:
            names = [reader.schema.get_field_index(name) for name in ("step", "epoch", "begin_s", "step_s")]
            with suppress(*_stream_errors()):
                for batch in reader:
                    if batch.num_rows:
                        last = batch
            if last is None or -1 in names:
                return None
            # Manually, because Arrow's own way from an array to a number imports pandas first.
            step, epoch, begin_s, step_s = (float(_numpy(last.column(name).slice(len(last) - 1))[0]) for name in names)
    except _stream_errors():
        return None
    return int(step) + 1, int(epoch), begin_s + (0.0 if math.isnan(step_s) else step_s)


def read_step_column(path: Path, name: str) -> "np.ndarray":
    """Return one column of a file of step rows, shape (rows,), without ever having the others in memory.

    Null is NaN in a column of floats. Rows are those before a torn batch, as in `read_steps`.
    """
    import numpy as np

    parts = []
    try:
        with _open_rows(path) as reader, suppress(*_stream_errors()):
            place = reader.schema.get_field_index(name)
            kind = reader.schema.field(place).type.to_pandas_dtype()
            for batch in reader:
                # A copy: what is in the file's batch keeps all of it in memory.
                parts.append(_numpy(batch.column(place)).astype(kind, copy=False))
    except _stream_errors() as error:
        raise RecordError(f"{path}: holds no readable step rows ({error}); move the directory away") from None
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)


def read_synchronisation(directory: Path) -> dict[str, Any]:
    """Return the section "synchronisation" of bench.json; RecordError where it is missing, damaged or newer."""
    from horovod_study.record_forms import Synchronisation

    path = directory / BENCH
    again = "record the run again with --measure-sync"
    found = _read_section(directory, "synchronisation", Synchronisation, "what its synchronisation is made of", again)
    for name in ("pack_s", "through_s"):
        if found.get(name) is None and not found["why_not_through"]:
            raise RecordError(f"{shown(path)}: synchronisation: {name} is missing; {again}")
    return found


def read_ablation(directory: Path) -> dict[str, Any]:
    """Return the section "ablation" of bench.json; RecordError where it is missing, damaged or of a newer program.

    `blocks` has one row per pair, kind (`silent`) and rank, as columns of equal length; a lap that is not known is
    None in place of its column.
    """
    from horovod_study.record_forms import Ablation

    path = directory / BENCH
    again = "record the run again with --measure-ablation"
    found = _read_section(directory, "ablation", Ablation, "what communication costs by leaving it out", again)
    rows, blocks = 2 * found["pairs"] * found["workers"], found["blocks"]
    laps = [f"{lap}_s" for lap in (*LAPS, "residual", "step")]
    for name in ("pair", "silent", "rank", *laps):
        values = blocks.get(name)
        if values is None and name in laps[:-1] and (name in blocks or name == "compute_s"):  # older ones lack compute
            continue
        if values is None or len(values) != rows:
            raise RecordError(f"{shown(path)}: ablation: blocks: {name} must be a list of {rows} numbers; {again}")
    wanted = {(p, s, r) for p in range(found["pairs"]) for s in (False, True) for r in range(found["workers"])}
    if set(zip(blocks["pair"], blocks["silent"], blocks["rank"], strict=True)) != wanted:
        raise RecordError(f"{path}: ablation: blocks: must have one row per pair, kind and rank; {again}")
    return found


def _read_section(directory: Path, section: str, form: Any, what: str, again: str) -> dict[str, Any]:
    """Return one section of bench.json, of the given `form`; RecordError where `what` was not measured."""
    path = directory / BENCH
    if not os.path.lexists(path):
        raise RecordError(f"{shown(directory)}: has no {BENCH}, so {what} was not measured; {again}")
    content = read_json(path, again=again)
    _require_schema(content, BENCH_SCHEMA, path, again)
    found = content.get(section)
    if not isinstance(found, dict):
        raise RecordError(f"{shown(path)}: holds no {section}; {again}")
    conform(found, form, f"{shown(path)}: {section}", again=again)
    return found


class StepRows(Mapping[int, Mapping[str, "np.ndarray"]]):
    """The step rows of ranks as rank -> columns, (steps of this rank,), null is NaN; taken from the files when asked.

    A column is read each time it is asked for, and in a long run the file of a rank is let go with its columns: its
    rows do not fit into memory together. For runs that have ended, see `read_steps`.
    """

    def __init__(self, directory: Path, ranks: Iterable[int]) -> None:
        self._directory = directory
        self._ranks = tuple(ranks)
        self.file_bytes = sum((directory / f"steps-{rank:05d}.arrows").stat().st_size for rank in self._ranks)
        self._open: dict[int, Mapping[str, np.ndarray]] = {}

    def __getitem__(self, rank: int) -> Mapping[str, "np.ndarray"]:
        if rank not in self._ranks:
            raise KeyError(rank)
        if rank in self._open:
            return self._open[rank]
        columns = _StepColumns(read_steps(self._directory, rank, mapped=True))
        if self.file_bytes < KEPT_OPEN_BYTES:
            self._open[rank] = columns
        return columns

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


class _StepColumns(Mapping[str, "np.ndarray"]):
    """Columns of an Arrow table as NumPy arrays, each made when it is asked for."""

    def __init__(self, table: "pa.Table") -> None:
        self._table = table

    def __getitem__(self, name: str) -> "np.ndarray":
        values: np.ndarray = self._table.column(name).to_numpy()
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_columns)


def _has_rows(directory: Path, rank: int) -> bool:
    """Return whether a rank has recorded a step, as far as a batch that can be read; raises what `read_steps` does."""

    path = directory / f"steps-{rank:05d}.arrows"
    with suppress(*_stream_errors()), _open_rows(path) as reader:
        for batch in reader:
            if batch.num_rows:
                return True
    return len(read_steps(directory, rank)) > 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RecordedRun:
    """A run as far as it was recorded, finished or not: its record and the step rows of each rank that has some."""

    name: str  # as in `run_table`
    directory: Path
    record: RunRecord
    state: str  # see RunRecord.state
    workers: int
    rows: "Mapping[int, Mapping[str, np.ndarray]]"  # rank -> columns, (steps of this rank,); null is NaN
    first_step: int  # where the timed window begins
    first_step_by: str  # what says so, in words
    missing: Mapping[int, str]  # ranks without a row -> why, in words
    synchronisation: Mapping[str, Any] | None  # what `read_synchronisation` returns
    why_no_synchronisation: str
    ablation: Mapping[str, Any] | None  # what `read_ablation` returns
    why_no_ablation: str

    def row_count(self) -> int:
        """Return how many step rows there are; of those that stay in their files about how many."""
        if isinstance(self.rows, StepRows):
            return self.rows.file_bytes // ROW_BYTES
        return sum(len(columns["step"]) for columns in self.rows.values())

    def system_samples(self, names: Sequence[str]) -> "dict[str, dict[str, dict[str, np.ndarray]]]":
        """Return {host: {part: columns}} of the system samples, (samples of the part,), null is NaN, read now.

        `names`: the columns that are wanted. A file that cannot be read is left out, as in a run without a sampler.
        """
        found = {}
        for path in sorted(self.directory.glob("system-*.arrows")):
            host = path.name.removeprefix("system-").removesuffix(".arrows")
            with suppress(RecordError):
                found[host] = _parts_of(read_system_rows(self.directory, host)[0], names)
        return found


def recorded_run(directory: Path, *, name: str | None = None, record: RunRecord | None = None) -> RecordedRun:
    """Return a run as far as it was recorded, also one that failed, was killed or still runs.

    Rows of a run that has ended stay in their files (StepRows); those of a run that goes on are read now, all of them.
    `record`: what `read_run` has returned already.

    The timed window begins at `totals["steady"]["step"]`, else after the declared warm-up. A rank whose file is
    missing, unreadable or empty is no error: `missing` says so. RecordError only for what is no run.
    """
    record = read_run(directory) if record is None else record
    state = record.state()
    rows: dict[int, Mapping[str, Any]] = {}
    recorded: list[int] = []
    missing: dict[int, str] = {}
    found = set(step_ranks(directory))
    said = record.effective.get("workers", record.requested.get("workers"))
    for rank in sorted(found | set(range(said if isinstance(said, int) else 0))):
        if rank not in found:
            missing[rank] = "has no file of steps"
            continue
        try:
            if state == "running":
                rows[rank] = dict(_StepColumns(read_steps(directory, rank)))
                some = len(rows[rank]["step"]) > 0
            else:
                some = _has_rows(directory, rank)
        except RecordError as error:
            missing[rank] = str(error).partition(": ")[2].partition(";")[0]
            continue
        if some:
            recorded.append(rank)
        else:
            missing[rank] = "recorded no step"
    first, by = timed_from(record)
    synchronisation, why_no_synchronisation = _if_there(read_synchronisation, directory)
    ablation, why_no_ablation = _if_there(read_ablation, directory)
    return RecordedRun(
        name=directory.resolve().name if name is None else name,
        directory=directory,
        record=record,
        state=state,
        workers=said if isinstance(said, int) else len(found),
        rows={rank: rows[rank] for rank in recorded} if state == "running" else StepRows(directory, recorded),
        first_step=first,
        first_step_by=by,
        missing=missing,
        synchronisation=synchronisation,
        why_no_synchronisation=why_no_synchronisation,
        ablation=ablation,
        why_no_ablation=why_no_ablation,
    )


def recorded_runs(
    roots: Sequence[Path], only: Collection[str] | None = None, *, left_out: dict[str, str] | None = None
) -> "tuple[pd.DataFrame, Iterator[RecordedRun]]":
    """Return the run table of run directories, or folders of them, and each of these runs, read when its turn comes.

    A run that is below two roots is there once. Rows of a run are large, hence one at a time. `only`: the names of
    the run directories that count; `left_out` as for `readable_runs`.
    """
    import pandas as pd

    tables: list[pd.DataFrame] = []
    places: dict[Path, tuple[Path, str, RunRecord]] = {}  # resolved -> as found, name, content of run.json
    for root in dict.fromkeys(roots):
        found = list(readable_runs(root, only, left_out=left_out))
        table = _run_table(root, found)
        table = table.assign(run=[f"{root}/{name}" for name in table["run"]] if len(roots) > 1 else table["run"])
        new = []
        for (directory, record), name in zip(found, table["run"], strict=True):
            new.append(directory.resolve() not in places)
            places.setdefault(directory.resolve(), (directory, name, record))
        tables.append(table[new])
    whole: pd.DataFrame = pd.concat([each for each in tables if len(each)], ignore_index=True)
    return whole, (recorded_run(directory, name=name, record=record) for directory, name, record in places.values())


def timed_from(record: RunRecord) -> tuple[int, str]:
    """Return the first step of the timed window of a run, and in words what says so."""
    steady = record.totals.get("steady")
    if isinstance(steady, Mapping) and isinstance(steady.get("step"), int):
        by = {
            "change-point": "before the change-point at which the steady state begins",
            "no change-point": "declared as warm-up; no change-point after it",
            "declared": "declared as warm-up",
        }
        return steady["step"], by.get(steady.get("found_by", ""), "before the steady state")
    warmup = _declared(record)
    return (0, "no warm-up is recorded") if warmup is None else (warmup, "declared as warm-up")


def rows_lost(record: RunRecord) -> int:
    """Return how many steps of all ranks have no row because the disk was full; those of an older program had none."""
    lost = record.totals.get("rows_lost")
    return sum(lost) if isinstance(lost, Sequence) else int(lost or 0)


def _declared(record: RunRecord) -> int | None:
    """Return how many steps were declared as warm-up; `train_s` of epochs.csv counts from there."""
    declared = record.effective.get("warmup_steps", record.requested.get("warmup_steps"))
    return declared if isinstance(declared, int) else None


def _steady_doubt(record: RunRecord) -> str:
    steady = record.totals.get("steady")
    return str(steady.get("doubt") or "") if isinstance(steady, Mapping) else ""


def _if_there(read: Callable[[Path], dict[str, Any]], directory: Path) -> tuple[dict[str, Any] | None, str]:
    """Return what `read` returns, or None with the reason."""
    try:
        return read(directory), ""
    except RecordError as error:
        return None, str(error).removeprefix(f"{directory}/").removeprefix(f"{directory}: ")


def synchronised_run(directory: Path) -> "tuple[RunRecord, list[dict[str, Any]], dict[str, Any] | None]":
    """Return a finished run for analysis/steps/attribution.py: its record, the columns of the timed steps of each
    rank, and bench.json (None for a worker alone, who synchronises with nobody).

    Raises RecordError for a run that is not done, that has fewer step rows than ranks, or without bench.json.
    """
    record = read_run(directory)
    if record.state() != "done":
        raise RecordError(
            f"{directory}: the run is {record.state()}, and only finished runs can be decomposed; run it again"
        )
    if record.requested.get("timer_mode") == "off":
        raise RecordError(f"{directory}: its steps were not timed (--timer-mode off); record it again with light")
    workers = int(record.effective["workers"])
    bench = read_synchronisation(directory) if workers > 1 else None
    tables = [read_steps(directory, rank) for rank in range(workers)]
    columns = [{name: table.column(name).to_numpy() for name in table.column_names} for table in tables]
    timed = [rows["step"] >= timed_from(record)[0] for rows in columns]
    if len({int(each.sum()) for each in timed}) > 1:
        raise RecordError(f"{directory}: its ranks recorded different numbers of steps; run it again")
    return record, [{n: v[kept] for n, v in rows.items()} for rows, kept in zip(columns, timed, strict=True)], bench


ALL_STEPS = (0, sys.maxsize)


def rows_between(directory: Path, steps: tuple[int, int] = ALL_STEPS) -> "dict[int, pd.DataFrame]":
    """Return the rows of the steps from steps[0] to before steps[1] as {rank: frame}, also of an unfinished run.

    Raises RecordError where no rank recorded a step of these.
    """
    found = {}
    for rank in step_ranks(directory):
        frame = read_steps(directory, rank).to_pandas()
        found[rank] = frame[(frame["step"] >= steps[0]) & (frame["step"] < steps[1])].reset_index(drop=True)
    if not any(len(frame) for frame in found.values()):
        last = "" if steps == ALL_STEPS else f" from {steps[0]} to before {steps[1]}"
        raise RecordError(f"{directory}: no rank recorded steps{last}; name a run with step rows, or other steps")
    return found


def hosts_of(record: RunRecord, ranks: Iterable[int]) -> dict[int, str]:
    """Return the host of each of `ranks`; that of rank 0 where the record does not say."""
    told = record.effective.get("ranks") or []
    return {rank: str(told[rank]["host"]) if rank < len(told) else record.host for rank in ranks}


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

    path = system_path(directory, host)
    again = "move it away, or record the run again"
    try:
        table = _whole_batches(path)
    except FileNotFoundError:
        raise RecordError(
            f"{path}: no such file; the run recorded no system samples of {host} (--system-interval-s 0?)"
        ) from None
    except _stream_errors() as error:
        raise RecordError(f"{path}: holds no readable system samples ({error}); {again}") from None
    told = (table.schema.metadata or {}).get(_SYSTEM_META)
    if told is None:
        raise RecordError(f"{shown(path)}: does not say what its sensors are; {again}")
    meta = parse_json(told, source=shown(path), again=again)
    _require_schema(meta, SYSTEM_SCHEMA, path, again)
    _require_types(table, system_schema(), path)
    missing = [each.name for each in system_schema() if each.name not in table.column_names]
    if missing:
        raise RecordError(f"{path}: column {missing[0]} is missing; {again}")
    return table.replace_schema_metadata(None), meta


def system_columns(directory: Path, host: str) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """Return `read_system_rows` as NumPy columns, null as NaN, for a program that is to do without pandas."""
    table, meta = read_system_rows(directory, host)
    whole = table.combine_chunks()
    columns = {}
    for name in table.column_names:
        chunks = whole.column(name).chunks
        columns[name] = _numpy(chunks[0] if chunks else _arrow([], table.schema.field(name).type))
    return columns, meta


def _parts_of(samples: "pa.Table", names: Sequence[str]) -> "dict[str, dict[str, np.ndarray]]":
    """Return {part: columns} of system samples."""
    import numpy as np

    if not len(samples):
        return {}
    coded = samples.column("part").combine_chunks().dictionary_encode()
    place = coded.indices.to_numpy()
    columns = {name: samples.column(name).to_numpy() for name in names}
    return {
        part: {name: values[rows] for name, values in columns.items()}
        for number, part in enumerate(coded.dictionary.to_pylist())
        for rows in [np.flatnonzero(place == number)]
    }


def read_system(directory: Path) -> dict[str, SystemSamples]:
    """Return {host: samples} of a run, in the order of the hosts' names; empty for a run without a sampler."""
    found = {}
    for path in sorted(directory.glob("system-*.arrows")):
        host = path.name.removeprefix("system-").removesuffix(".arrows")
        table, meta = read_system_rows(directory, host)
        found[host] = SystemSamples(host=host, rows=table.to_pandas(), meta=meta)
    return found


def _sensors(record: RunRecord) -> dict[str, float]:
    """Return what the totals of a run say of its hosts: means over ranks or GPUs, power in all and per GPU."""
    hosts = list(((record.totals.get("system") or {}).get("hosts") or {}).values())

    def all_of(name: str, prefix: str = "") -> list[float]:
        return [
            value
            for host in hosts
            for part, value in (host.get(name) or {}).items()
            if part.startswith(prefix) and value is not None
        ]

    def mean(values: list[float]) -> float:
        return math.fsum(values) / len(values) if values else math.nan

    def total(values: list[float]) -> float:
        return math.fsum(values) if values else math.nan

    return {
        "cpu_percent_per_rank": mean(all_of("ranks_cpu_percent")),
        "rss_mb_per_rank": mean(all_of("rss_mb_max")),
        "gpu_percent": mean(all_of("gpu_percent")),
        "gpu_memory_mb": mean(all_of("gpu_memory_mb_max")),
        "gpu_power_w": total(all_of("power_w", "gpu ")),
        "gpu_power_w_per_gpu": mean(all_of("power_w", "gpu ")),
        "package_power_w": total(all_of("power_w", "package ")),
    }


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
    why = "" if any(directory.glob("system-*.arrows")) else "the run recorded no system samples"
    try:
        samples = read_system(directory)
    except RecordError as error:
        samples, why = {}, str(error)
    timeline = directory / TIMELINE
    return RunSideFiles(
        evaluations=epoch_rows(directory),
        system={host: each for host, each in samples.items() if len(each.rows)},
        why_no_system=why,
        damaged_system=bool(why) and any(directory.glob("system-*.arrows")),
        timeline=timeline if timeline.exists() else None,
        profiles=tuple(path for path in sorted((directory / PROFILE).glob("*")) if path.is_file()),
    )


def step_ranks(directory: Path) -> list[int]:
    """Return the ranks that recorded steps."""
    found = [int(known[1]) for path in directory.glob("steps-*.arrows") if (known := _ROWS.fullmatch(path.name))]
    return sorted(rank for rank in found if (directory / f"steps-{rank:05d}.arrows").exists())


def checkpoint_paths(directory: Path) -> list[Path]:
    """Return the checkpoint files of a run, newest first; whether they are intact is not looked at."""
    found = [path for path in (directory / CHECKPOINTS).glob("step-*.pt") if path.stem[5:].isdecimal()]
    return sorted(found, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """Return the number of steps that a checkpoint file says, by its name, to have been made."""
    return int(path.stem[5:])


_TOTALS = (
    "samples_per_s",
    "window_s",
    "steps",
    "excluded_steps",
    "step_s_median",
    "step_s_p90",
    *(f"{lap}_s" for lap in (*LAPS, "residual", "step")),
    "train_mse",
    "test_mse",
    "g0_rmse_mpa",
    "a_rmse",
    "epochs",
    "wall_s",
    "rss_mb_max",
    "pss_mb_max",
)
OF_EVERY_RUN = (
    "backend",
    "transport",
    "workers",
    "nodes",
    "batch",
    "global_batch",
    "train_samples",
    "precision",
    "reduction",
)
"""What the record says of every run, whatever it trained; of what was asked for where the run ended too early."""
_OPTIONS = tuple(name for name in OWN.distinguishing if name not in (*OF_EVERY_RUN, "horovod_defaults"))
_BEFORE_OPTIONS = {name: OWN.options[name].default for name in _OPTIONS}
"""How runs recorded before an option existed were done: as its default does."""

_ENVIRONMENT = ("cpu_model", "cores", "os", "python", "torch", "horovod", "mpi", "package")


def run_table(root: Path, only: Collection[str] | None = None) -> "pd.DataFrame":
    """Return one row per run at or below `root`; docs/metrics.md explains the columns. Unknown numbers are NaN.

    `only`: the names of the run directories that count, such as those of the present cells of a study.
    """
    return _run_table(root, readable_runs(root, only))


def _run_table(root: Path, found: Iterable[tuple[Path, RunRecord]]) -> "pd.DataFrame":
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for directory, record in found:
        rows.append(
            {
                "run": run_name(directory, root),
                "study": record.study,
                "partition": record.partition,
                "status": record.state(),
                "reason": record.reason,
                **{name: record.effective.get(name, record.requested.get(name)) for name in OF_EVERY_RUN},
                "horovod_defaults": bool(record.requested.get("horovod_defaults", False)),
                "model": _model(record),
                **_options(record),
                "budget": _budget(record.requested),
                "seed": record.requested.get("seed"),
                "floor_mse": record.effective.get("floor_mse"),
                "repeat": record.repeat,
                **{name: _one_number(record.totals.get(name)) for name in _TOTALS},
                "wall_s": _without_waits(record.totals),
                **_energy(record),
                **_sensors(record),
                "device": record.effective.get("device"),
                "sync_s_median": (record.totals.get("lap_medians_s") or {}).get("sync"),
                "per_node": per_node(record.effective.get("ranks") or ()),
                "path": " and ".join(record.effective.get("path") or ()),
                "rows_lost": rows_lost(record),
                "excluded_by": timed_from(record)[1],
                "warmup_steps": _declared(record),
                "steady_doubt": _steady_doubt(record),
                "host": record.host,
                **{name: record.environment.get(name) for name in _ENVIRONMENT},
                "started": record.started,
                "finished": record.finished,
                "hosts": ", ".join(_hosts(record)),
                "launcher": record.effective.get("launcher"),
                "command": _command(record.environment.get("command")),
                "typed": _command(record.requested.get("typed")),
                "typed_in": str(record.requested.get("typed_in") or ""),
                "declared": str(record.requested.get("declared") or ""),
            }
        )
    if not rows:
        raise RecordError(f"{root}: holds no runs; run a study first (horovod-study run experiments/laptop.yaml)")
    table = pd.DataFrame(rows)
    for column in (*_TOTALS, "energy_j", "energy_per_sample_j", "sync_s_median", "floor_mse", "warmup_steps"):
        table[column] = pd.to_numeric(table[column]).astype("float64")
    return table


def _without_waits(totals: Mapping[str, Any]) -> Any:
    """Return the seconds of a run without those in which it waited for its turns: others had the machine then."""
    wall_s, waited_s = totals.get("wall_s"), (totals.get("turns") or {}).get("waited_s")
    return _one_number(wall_s) if wall_s is None or waited_s is None else wall_s - waited_s


def _hosts(record: RunRecord) -> list[str]:
    """Return the hosts of a run, in the order of its ranks; that of rank 0 where the record does not say."""
    ranks = record.effective.get("ranks") or ()
    return list(dict.fromkeys(str(rank.get("host", record.host)) for rank in ranks)) or [record.host]


def _command(words: Any) -> str:
    """Return the command line of a rank as it can be typed; a text stays as it is."""
    return shlex.join(str(word) for word in words) if isinstance(words, list | tuple) else str(words or "")


def _options(record: RunRecord) -> dict[str, Any]:
    """Return the options of training of a run. Another script has options of its own, known as far as it told them."""
    if record.effective.get("model") is None:
        return {name: record.requested.get(name, before) for name, before in _BEFORE_OPTIONS.items()}
    told = {**record.requested, "optimizer": record.effective.get("optimizer")}
    return {name: told.get(name) for name in _BEFORE_OPTIONS}


def _energy(record: RunRecord) -> dict[str, Any]:
    """Return the joules of the timed window, in all and per sample, of which kinds of devices, and what to doubt.

    A kind of device (gpu, package) counts where each of them on each node has a value: half of them would look like
    half of the energy.
    """
    energy = record.totals.get("energy") or {}
    total_j, per_sample_j = energy.get("total_j"), energy.get("per_sample_j")
    devices = [each for each in energy.get("per_device") or () if "part" in each and "host" in each]
    kinds: dict[str, list[tuple[str, float | None]]] = {}
    for each in devices:
        best = each["integral_j"] if each["counter_j"] is None else each["counter_j"]
        kinds.setdefault(each["part"].split()[0], []).append((each["host"], best))
    nodes = record.effective.get("nodes") or 1
    whole, doubts = [], [energy["doubt"]] if energy.get("doubt") else []
    for kind, found in sorted(kinds.items()):
        known = {host for host, value in found if value is not None}
        if len(known) >= nodes and all(value is not None for _, value in found):
            whole.append(kind)
        elif known:
            doubts.append(f"{kind}: not all of them were read ({energy.get('reason') or 'no reason recorded'})")
    if devices and total_j:
        counted_j = math.fsum(value for kind in whole for _, value in kinds[kind] if value is not None)
        per_sample_j = None if not whole or per_sample_j is None else per_sample_j * counted_j / total_j
        total_j = counted_j if whole else None
    return {
        "energy_j": total_j,
        "energy_per_sample_j": per_sample_j,
        "energy_of": " and ".join(whole) if total_j is not None else "",
        "energy_doubt": "; ".join(doubts),
    }


def per_node(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of some recorded ranks sat on how many nodes, the fullest first: `2x8 1x3`; empty if unknown."""
    if not ranks or any("host" not in rank for rank in ranks):
        return ""
    nodes = Counter(Counter(rank["host"] for rank in ranks).values())
    return " ".join(f"{nodes[workers]}x{workers}" for workers in sorted(nodes, reverse=True))


def _model(record: RunRecord) -> str:
    """Return what was trained: of another script's model the name and size, because widths differ under one name, and
    the options of its own in which its runs may differ."""
    name = record.effective.get("model")
    if name is None:
        return OWN.model
    own = record.requested.get("options") or {}
    return " ".join([f"{name}-{record.effective['parameters']}", *(f"{each} {value}" for each, value in own.items())])


def _one_number(value: Any) -> Any:
    """Return a number of the totals for the table; what is counted for each rank is summed."""
    return sum(value) if isinstance(value, list) else value


def _budget(requested: Mapping[str, Any]) -> str:
    """Return how long a run was to train, in words such as `10 epochs`; empty when unknown."""
    given = [OWN.options[name].say(requested[name]) for name in OWN.budgets if requested.get(name) is not None]
    return " or ".join(given)


def epoch_table(root: Path, only: Collection[str] | None = None) -> "pd.DataFrame":
    """Return one row per evaluation of the runs at or below `root`: `run` (as in `run_table`) and EPOCH_COLUMNS.

    A run that was killed while it wrote keeps its complete rows; a run without evaluations has none. A loss that was
    not a number is NaN. `only`: as for `run_table`.
    """
    return evaluation_table(
        (run_name(directory, root), _evaluations(directory)) for directory, _ in readable_runs(root, only)
    )


def evaluation_table(found: Iterable[tuple[str, list[list[float]]]]) -> "pd.DataFrame":
    """Return the form of `epoch_table` with these evaluations of runs, which may be none."""
    import pandas as pd

    names: list[str] = []
    rows: list[list[float]] = []
    for name, own in found:
        names += [name] * len(own)
        rows += own
    # One table, and not one of each run: a thousand small tables take minutes.
    numbers = pd.DataFrame(rows, columns=list(EPOCH_COLUMNS), dtype="float64")
    return pd.concat([pd.Series(names, name="run", dtype=object), numbers], axis=1)


def _evaluations(directory: Path) -> list[list[float]]:
    """Return the rows of a run's epochs.csv in the order of EPOCH_COLUMNS; what is not a number is NaN."""
    path = directory / "epochs.csv"
    if not os.path.lexists(path):
        return []
    again = "move the run directory away"
    text = read_text(path, again=again)
    if not text:  # the process died before the head
        return []
    rows = parse_csv(text, source=shown(path), columns=EPOCH_COLUMNS, again=again)
    return [[_number(row[name]) for name in EPOCH_COLUMNS] for row in rows]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def joined_tables(roots: Sequence[Path]) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Return `run_table` and `epoch_table` of several run directories, or folders of them, as one pair of tables."""
    import pandas as pd

    runs: list[pd.DataFrame] = []
    evaluations: list[pd.DataFrame] = []
    for root in dict.fromkeys(roots):
        for table, kept in ((run_table(root), runs), (epoch_table(root), evaluations)):
            # Two roots may hold runs of one name.
            kept.append(table.assign(run=[f"{root}/{name}" for name in table["run"]]) if len(roots) > 1 else table)
    return pd.concat(runs, ignore_index=True), pd.concat(evaluations, ignore_index=True)


def run_name(directory: Path, root: Path) -> str:
    """Return the name of a run in the tables: its path below `root`, or its own name when it is `root`."""
    name = directory.relative_to(root).as_posix()
    return shown(directory.resolve().name if name == "." else name)


SOURCE = "source.json"
SOURCE_SCHEMA = 2
"""Of source.json in the directory of an analysis: where its runs are and how it was made, to make it again.

2: `files` and `run_files`, digests of what an analysis wrote and read, and `digest`, of the rest of source.json itself.
"""
_RUN_FILES = (MANIFEST, BENCH, "epochs.csv", "steps-*.arrows", "system-*.arrows")


class AgainstSource(TypedDict, total=False):
    """With which study the page compares its own."""

    directory: Required[str]
    match: str | None


class ReportSource(TypedDict, total=False):
    """What `report` kept of what it drew: a version, a look, digests of pictures, and the study compared with."""

    matplotlib: str
    pictures: dict[str, str]
    look: list[str]
    files: list[str]
    against: AgainstSource


class SourceForm(TypedDict, total=False):
    """The form of source.json; keys that it does not name are of other versions."""

    schema: Required[int]
    runs: Required[str]
    only: list[str] | None
    planned: list[str] | None
    targets: list[float] | None
    commands: list[str] | None
    benches: list[dict[str, str]] | None
    versions: dict[str, str] | None
    files: dict[str, dict[str, int | str]]
    run_files: dict[str, dict[str, str]]
    turns_files: dict[str, str]
    precision: float | None
    columns: dict[str, str] | None  # of somebody's table, by what they are
    report: ReportSource | None
    left: list[str]  # what a report of an earlier analysis wrote here, until the next report
    digest: str


def digest_of(content: bytes) -> str:
    """Return the digest by which a file of an analysis is known again."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def run_files(directory: Path) -> dict[str, str]:
    """Return {file: digest} of what a run directory holds of its measurement; what cannot be read is left out."""
    found = {}
    for path in sorted(each for pattern in _RUN_FILES for each in directory.glob(pattern) if each.is_file()):
        with suppress(OSError), path.open("rb") as stream:
            found[path.name] = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return found


def turns_folders(root: Path) -> dict[str, Path]:
    """Return the folders at and right below `root` in which cells may have alternated, by their path below it."""
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())] if root.is_dir() else []
    return {folder.relative_to(root).as_posix(): folder for folder in folders}


def turns_files(root: Path) -> dict[str, str]:
    """Return {folder: digest} of each turns.csv at and right below `root`, by the path of its folder."""
    found = {}
    for name, folder in turns_folders(root).items():
        path = folder / TURNS_FILE
        if path.is_file():
            found[name] = digest_of(read_bytes(path, again="move the file away"))
    return found


def _written(content: bytes, name: str) -> dict[str, int | str]:
    """Return by what a file of an analysis is known again: its digest, and for people the lines of a table."""
    rows: dict[str, int | str] = {"rows": content.count(b"\n") - 1} if name.endswith(".csv") else {}
    return {**rows, "digest": digest_of(content)}


def write_source(directory: Path, runs: Path | None = None, *, files: Iterable[Path] = (), **content: Any) -> Path:
    """Keep what an analysis was made of, or with `runs` None what was made of it, beside what is known already.

    `runs` is written relative to `directory`, so that both can move together; `files` are what the analysis consists
    of. Keys of `content`: those of `SourceForm`.
    """
    path = directory / SOURCE
    known: dict[str, Any] = {}
    with writing(path, "choose a writable folder"):
        if runs is None:
            with suppress(RecordError):
                known = read_source(directory)
        else:
            known = {"schema": SOURCE_SCHEMA, "runs": Path(os.path.relpath(runs, directory)).as_posix()}
            known["files"] = {each.name: _written(each.read_bytes(), each.name) for each in files}
            known["left"] = earlier_report(directory)
        if not known:  # nobody knows what it was made of
            return path
        kept = {**known, **content}
        kept["digest"] = _own_digest(kept)
        write_file(path, json.dumps(kept, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    return path


def earlier_report(directory: Path) -> list[str]:
    """Return the files of figures and tables that the last report of an analysis wrote, if its source.json is whole."""
    try:
        source = read_source(directory)
    except RecordError:
        return []
    written = {*(source.get("left") or ()), *((source.get("report") or {}).get("files") or ())}
    # What a file says is removed only where a report writes.
    return sorted(name for name in written if re.fullmatch(r"(?:figures|tables)/[\w-]+\.[a-z]+", name))


def _own_digest(source: Mapping[str, Any]) -> str:
    rest = {name: each for name, each in source.items() if name != "digest"}
    return digest_of(json.dumps(rest, sort_keys=True, allow_nan=False).encode())


def is_whole(source: Mapping[str, Any]) -> bool:
    """Return whether a source.json says what was written to it; of schema 1, which has no digests, nobody knows."""
    return source.get("digest") == _own_digest(source)


def read_source(directory: Path, *, edited: bool = False) -> dict[str, Any]:
    """Return what `write_source` kept, as `SourceForm` says.

    RecordError where it is missing, damaged, of a newer program, or, unless `edited` is allowed, not `is_whole`.
    """
    path = directory / SOURCE
    again = "make the analysis again with horovod-study report, or name its runs with --runs RUNS"
    missing = f"no such file, so that nobody knows where the runs are; {again}"
    content = read_json(path, again=again, missing=missing)
    _require_schema(content, SOURCE_SCHEMA, path, again)
    conform(content, SourceForm, str(path), again=again)
    if not (edited or is_whole(content)):
        raise RecordError(f"{path}: is not what report wrote; report again")
    return dict(content)


_TABLE = "runs.csv"
"""A table that every analysis has, and that nothing but an analysis writes."""


def holds_tables(directory: Path) -> bool:
    """Return whether a directory is that of an analysis."""
    return any((directory / name).is_file() for name in (_TABLE, SOURCE))


def _newer(directory: Path, root: Path) -> list[Path]:
    """Return the runs at or below `root` that were written after the analysis in `directory`; or `root`, a table."""
    made = (directory / _TABLE).stat().st_mtime_ns
    if root.is_file():
        return [root] if root.stat().st_mtime_ns > made else []
    patterns = [(run, run.glob(pattern)) for run in run_directories(root) for pattern in _RUN_FILES]
    return list(dict.fromkeys(run for run, files in patterns if any(each.stat().st_mtime_ns > made for each in files)))


def is_older(directory: Path, root: Path) -> bool:
    """Return whether an analysis of the runs at or below `root` is missing, or older than the runs or this package."""
    if not (directory / _TABLE).is_file():
        return True
    there = set() if root.is_file() else {run_name(each, root) for each in run_directories(root)}
    if not there and root.is_dir():  # other files than runs, of which nobody here knows
        return True
    try:
        source = read_source(directory)
    except RecordError:  # of an older program, damaged or edited: nobody draws it
        return True
    made_with = (source.get("versions") or {}).get("horovod_study", __version__)
    if made_with != __version__ or not there.issuperset(source.get("run_files") or ()):
        return True
    return bool(_newer(directory, root))


def named_records(root: Path, only: Collection[str] | None = None) -> Iterator[tuple[str, RunRecord]]:
    """Yield the name (as in `run_table`) and the record of each run at or below `root`; `only` as for `run_table`."""
    for directory, record in readable_runs(root, only):
        yield run_name(directory, root), record


def analysis_options(directory: Path, root: Path) -> dict[str, Any]:
    """Return how the runs at or below `root` were analysed before: targets, benches, precision, which of them (only).

    Empty where nothing says so. What was left out then stays out, what was written since comes in.
    """
    try:
        source = read_source(directory)
    except RecordError:
        return {}
    only = source.get("only")
    if only is not None:
        only = sorted({*only, *(each.name for each in _newer(directory, root))})
    benches = [Path(each["named"]) for each in source.get("benches") or ()]
    return {
        **{name: source.get(name) or () for name in ("targets", "planned")},
        "benches": benches if benches and all(path.is_file() for path in benches) else None,
        "commands": source.get("commands"),
        **{name: source.get(name) for name in ("precision", "columns")},
        "only": only,
    }


def set_aside(root: Path) -> Iterator[tuple[str, RunRecord]]:
    """Yield the finished runs that are below `root` in folders of earlier attempts: kept, but not counted."""
    for manifest in sorted(root.rglob(f".attempts/*/{MANIFEST}")):
        with suppress(RecordError):
            record = read_run(manifest.parent)
            if record.state() == "done":
                yield manifest.parent.relative_to(root).as_posix(), record


def save_tables(directory: Path, tables: Mapping[str, "pd.DataFrame"], documents: Mapping[str, Any]) -> list[Path]:
    """Write NAME.csv and NAME.json files, byte-identical for equal content; return the paths."""
    paths = []
    with writing(directory, "choose a writable folder"):
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            paths.append(write_file(directory / f"{name}.csv", csv_of(table)))
        for name, document in documents.items():
            text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
            paths.append(write_file(directory / f"{name}.json", text + "\n"))
    return paths


def load_tables(
    directory: Path, tables: Sequence[str], documents: Sequence[str]
) -> tuple[dict[str, "pd.DataFrame"], dict[str, Any]]:
    """Read back what `save_tables` wrote.

    RecordError where a file is missing, damaged, or, as far as source.json says, not the one that an analysis wrote;
    that holds for every file of the analysis, wanted or not.
    """
    import pandas as pd

    known: dict[str, Any] = {}
    if (directory / SOURCE).exists():
        known = read_source(directory).get("files") or {}
    again = f"run `horovod-study report RUNS --out {directory}` again"
    # Before pandas 3 numbers are read nearly as they were written, unless asked for.
    exact: dict[str, Any] = {"float_precision": "round_trip"} if int(pd.__version__.partition(".")[0]) < 3 else {}
    frames: dict[str, pd.DataFrame] = {}
    loaded: dict[str, Any] = {}
    wanted = [*(f"{name}.csv" for name in tables), *(f"{name}.json" for name in documents)]
    for file in dict.fromkeys([*wanted, *known]):
        path = directory / file
        missing = f"no such file; run `horovod-study report RUNS --out {directory}` first"
        content = read_bytes(path, again=again, missing=missing)
        _require_same(path, content, known.get(file), again)
        if file not in wanted:
            continue
        try:
            if path.suffix == ".csv":
                # Only empty cells are missing: a run named "NA" or "None" is a name.
                frame = pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""], **exact)
                texts = [column for column in frame.columns if frame[column].dtype.kind not in "biufM"]
                frame = frame.assign(**{column: frame[column].map(unguarded) for column in texts})
                frames[path.stem] = frame.rename(columns=unguarded)
            else:
                loaded[path.stem] = parse_json(content, source=str(path), again=again)
        except ValueError as error:
            raise RecordError(f"{path}: is damaged ({error}); {again}") from None
    return frames, loaded


def _require_same(path: Path, content: bytes, known: Mapping[str, Any] | None, again: str) -> None:
    """Refuse a file of an analysis that is not the one that was written."""
    found = _written(content, path.name)
    if known is None or known.get("digest") == found["digest"]:
        return
    counts = [each.get("rows") for each in (found, known)]
    what = f" ({counts[0]:,} rows instead of {counts[1]:,})" if counts[0] != counts[1] else ""
    raise RecordError(f"{path}: is not what report wrote{what}; {again}, or ask report {path.parent} --check why")
