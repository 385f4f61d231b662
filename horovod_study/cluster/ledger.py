"""The ledger of a study: what is done, running, failed, incomplete or missing, read from the run directories alone.

A cell's run directory is RUNS/<study>/<key>/, where the key holds everything the cell was asked to do: an edited study
file gives other keys, and a cell that was run once is never run again. The states are

    done         the run finished and its record says so
    running      its process is alive (or it runs on another host, of which this one cannot know)
    failed       it ended with a reason: an error, a lost worker, the time limit
    stopped      a signal ended it, and it wrote a checkpoint first
    incomplete   it was interrupted or killed: its record says running, but its process is gone
    missing      there is no run directory

A stopped or incomplete cell that has a checkpoint goes on from there, in its directory. Before any other stopped,
incomplete or failed cell is tried again its directory moves to RUNS/<study>/.attempts/<key>-<n>/, together
with its log. Folders whose names begin with a dot hold no current runs, and `records.run_directories` passes over
them: an analysis counts the latest attempt only, so a failure that was made good is no failure, and one that was not
is shown. Nothing is ever overwritten or deleted.

`attempts.csv` remembers how long every attempt took. Only the estimate of the time left reads it.
"""

import csv
import errno
import fcntl
import json
import os
import platform
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.cluster.study_file import StudyConfig
from horovod_study.config import COMMUNICATION, Cell, matters
from horovod_study.errors import StudyError
from horovod_study.records import MANIFEST, RunRecord, checkpoint_paths, read_run

STATES = ("done", "running", "failed", "stopped", "incomplete", "missing")
ATTEMPTS = ".attempts"
ATTEMPT_COLUMNS = ("started", "cell", "runtime", "workers", "state", "seconds", "exit_code", "reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One cell and where it stands."""

    cell: Cell
    name: str  # for people, e.g. "horovod/mpi, 2 workers, repeat 1"
    state: str
    reason: str = ""
    samples_per_s: float | None = None
    earlier_attempts: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, in a stable order."""
        return {
            "cell": self.cell.key,
            "name": self.name,
            "runtime": self.cell.runtime,
            "workers": self.cell.placement.workers,
            "batch": self.cell.config.batch,
            "repeat": self.cell.config.repeat,
            "state": self.state,
            "samples_per_s": self.samples_per_s,
            "reason": self.reason,
            "earlier_attempts": self.earlier_attempts,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Where every cell of a study stands."""

    study: str
    directory: Path
    entries: tuple[Entry, ...]
    foreign: tuple[str, ...] = ()  # run directories in the study's folder that belong to no cell of the study file

    def count(self, state: str) -> int:
        """Return how many cells are in `state`."""
        return sum(entry.state == state for entry in self.entries)

    def to_do(self, *, retry: bool) -> list[Cell]:
        """Return the cells to run: missing, stopped and incomplete ones, with `retry` also those that failed."""
        wanted = ("missing", "stopped", "incomplete", *(("failed",) if retry else ()))
        return [entry.cell for entry in self.entries if entry.state in wanted]

    def summary(self) -> str:
        """Say in one sentence where the study stands."""
        counts = [f"{self.count(state)} {state}" for state in STATES[1:] if self.count(state)]
        text = f"study {self.study}: {self.count('done')} of {len(self.entries)} cells done"
        text += f" ({', '.join(counts)})" if counts else ""
        if self.foreign:
            plural = "run is" if len(self.foreign) == 1 else "runs are"
            text += f"; {len(self.foreign)} recorded {plural} no cell of this study file (it was edited since?)"
        return text

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (state, cell, samples/s, reason) per cell as text, in the order of the study file."""
        rows = []
        for entry in self.entries:
            rate = "" if entry.samples_per_s is None else f"{entry.samples_per_s:,.0f}"
            again = f"attempt {entry.earlier_attempts + 1}" if entry.earlier_attempts else ""
            rows.append((entry.state, entry.name, rate, "; ".join(part for part in (entry.reason, again) if part)))
        return rows

    def lines(self) -> list[str]:
        """Return `rows` as aligned lines under a header; the last column is not cut."""
        rows = [("state", "cell", "samples/s", "reason"), *self.rows()]
        state, cell, rate = (max(len(row[column]) for row in rows) for column in range(3))
        return [f"{row[0]:<{state}}  {row[1]:<{cell}}  {row[2]:>{rate}}  {row[3]}".rstrip() for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "study": self.study,
            "directory": str(self.directory),
            "cells": len(self.entries),
            "counts": {state: self.count(state) for state in STATES},
            "summary": self.summary(),
            "rows": [entry.to_dict() for entry in self.entries],
            "foreign": list(self.foreign),
        }


def cell_name(study: StudyConfig, cell: Cell) -> str:
    """Name a cell for people: runtime, workers, whatever else the study varies, repeat (counted from 1)."""
    workers, config = cell.placement.workers, cell.config
    parts = [cell.runtime, f"{workers} worker{'' if workers == 1 else 's'}"]
    for name in study.varied:
        if name not in COMMUNICATION or matters(name, cell.runtime):
            value = getattr(config, name)
            parts.append(f"{name} {str(value).lower() if isinstance(value, bool) else value}")
    return ", ".join([*parts, f"repeat {config.repeat + 1}"])


def blocks(cells: Sequence[Cell], seed: int) -> list[list[Cell]]:
    """Return the cells in the order to run them: one block per repeat, each shuffled with the study's seed.

    A slow drift of the machine then falls on all cells alike, and the first block alone already gives a whole picture.
    """
    ordered = []
    for repeat in sorted({cell.config.repeat for cell in cells}):
        block = [cell for cell in cells if cell.config.repeat == repeat]
        random.Random(f"{seed}/{repeat}").shuffle(block)
        ordered.append(block)
    return ordered


# ---------------------------------------------------------------------------------------------------- taking stock


def judge(study: StudyConfig, cell: Cell, *, exists: bool, record: RunRecord | None, earlier: int = 0) -> Entry:
    """Return where `cell` stands, given whether its run directory exists and the record in it, if any."""
    state, reason, rate = "missing", "", None
    if record is not None:
        state, reason = record.state(), " ".join(record.reason.split())
        rate = record.totals.get("samples_per_s") if state == "done" else None
        if state == "incomplete" and not reason:
            reason = "its process is gone"
        elif state == "running":
            reason = f"process {record.pid} on {record.host}"
        elif state == "done" and len(record.attempts) > 1:
            reason = f"resumed after step {record.attempts[-1]['from_step']}"
    elif exists:
        state, reason = "incomplete", "ended before it wrote its record"
    return Entry(
        cell=cell,
        name=cell_name(study, cell),
        state=state,
        reason=reason,
        samples_per_s=rate,
        earlier_attempts=earlier,
    )


def read_entry(study: StudyConfig, directory: Path, cell: Cell) -> Entry:
    """Read where one cell stands below the study's folder `directory`."""
    path = directory / cell.key
    record = read_run(path) if (path / MANIFEST).exists() else None
    exists = record is not None or (path.is_dir() and any(path.iterdir()))
    earlier = sum(1 for _ in (directory / ATTEMPTS).glob(f"{cell.key}-*"))
    return judge(study, cell, exists=exists, record=record, earlier=earlier)


def read_ledger(study: StudyConfig, runs_dir: Path) -> Ledger:
    """Read where every cell stands; a damaged record is a RecordError that names its file."""
    directory = runs_dir / study.name
    cells = study.cells()
    try:
        entries = [read_entry(study, directory, cell) for cell in cells]
        recorded = {path.parent.name for path in directory.glob(f"[!.]*/{MANIFEST}")}
    except OSError as error:
        raise StudyError(f"{directory}: cannot be read ({error.strerror}); choose another folder with --runs") from None
    foreign = sorted(recorded - {cell.key for cell in cells})
    return Ledger(study=study.name, directory=directory, entries=tuple(entries), foreign=tuple(foreign))


# ---------------------------------------------------------------------------------------------------- keeping


def log_path(directory: Path, cell: Cell) -> Path:
    """Return where the output of the latest attempt at `cell` goes."""
    return directory / "logs" / f"{cell.key}.log"


def can_resume(entry: Entry, directory: Path) -> bool:
    """Return whether the cell goes on from a checkpoint instead of starting anew; damage is found when it is read."""
    return entry.state in ("stopped", "incomplete") and bool(checkpoint_paths(directory / entry.cell.key))


def keep_log(directory: Path, cell: Cell) -> None:
    """Move the log of the attempt before into the run directory, where a cell is about to be resumed."""
    log, current = log_path(directory, cell), directory / cell.key
    if log.exists():
        number = 1
        while (kept := current / f"output-{number}.log").exists():
            number += 1
        os.replace(log, kept)


def set_aside(directory: Path, cell: Cell) -> Path | None:
    """Move what an earlier attempt at `cell` left, log included, out of the way; return where to, or None."""
    current = directory / cell.key
    if not current.exists() or not any(current.iterdir()):
        return None
    # The log goes first: were this interrupted in between, the next call would still find the directory to move.
    log = log_path(directory, cell)
    if log.exists():
        os.replace(log, current / "output.log")
    attempts = directory / ATTEMPTS
    attempts.mkdir(exist_ok=True)
    number = 1
    while (kept := attempts / f"{cell.key}-{number}").exists():
        number += 1
    os.rename(current, kept)
    return kept


def note_attempt(
    directory: Path, cell: Cell, *, started: str, state: str, seconds: float, exit_code: int | None, reason: str
) -> None:
    """Append one line to attempts.csv."""
    path = directory / "attempts.csv"
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if new:
            writer.writerow(ATTEMPT_COLUMNS)
        workers = cell.placement.workers
        writer.writerow([started, cell.key, cell.runtime, workers, state, round(seconds, 3), exit_code, reason])


def past_durations(directory: Path) -> list[tuple[str, int, float]]:
    """Return (runtime, workers, seconds) of every attempt that ended done; lines damaged by a crash are passed over."""
    path = directory / "attempts.csv"
    durations = []
    if path.exists():
        with path.open(newline="", encoding="utf-8", errors="replace") as stream:
            for row in csv.DictReader(stream):
                try:
                    if row["state"] == "done":
                        durations.append((row["runtime"], int(row["workers"]), float(row["seconds"])))
                except (KeyError, TypeError, ValueError):
                    continue
    return durations


@contextmanager
def study_lock(directory: Path) -> Iterator[None]:
    """Hold the study: a second command on it gets a StudyError naming the first; the lock of a dead one is free.

    The lock belongs to the process and ends with it, however it ends. It is taken with fcntl, which file servers
    understand, and the file stays: removing it would let two commands hold locks on two files of the same name.
    """
    path = directory / ".lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise StudyError(
            f"{directory}: cannot be written ({error.strerror}); choose a writable folder with --runs"
        ) from None
    with stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise StudyError(
                    f"{path}: cannot be locked ({error.strerror}); choose a folder on another file system with --runs"
                ) from None
            raise StudyError(
                f"{directory}: the study is being run by {_holder(stream.name)}; wait for it, or stop it and run again"
            ) from None
        stream.truncate(0)
        stream.write(json.dumps({"pid": os.getpid(), "host": platform.node()}) + "\n")
        stream.flush()
        try:
            yield
        finally:
            stream.truncate(0)


def _holder(path: str) -> str:
    try:
        holder = json.loads(Path(path).read_text(encoding="utf-8"))
        return f"process {int(holder['pid'])} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has locked the file but not signed it yet
        return "another process"
