"""The ledger of a study: the state of every cell, read from run directories, claims and submitted jobs.

A cell's run directory is RUNS/<study>/<key>/, where the key holds everything the cell was asked to do, with which code
and in which environment: a cell that was run once is never run again. docs/studies.md says what each state means. Only
`done`, `failed`, `stopped` and `running` are words of a run's own record; what else happened is known to whoever ran
the cell, who says so when giving back the claim on it (lease.py), or to the scheduler (cluster/slurm.py).

A cell that was broken off and has a checkpoint goes on from there, in its directory. Before any other one is tried
again its directory moves to RUNS/<study>/.attempts/<key>-<n>/, with its log: an analysis counts the latest attempt
only. Nothing is ever overwritten or deleted. `attempts.csv` remembers how long every attempt took. `.ledger.json` keeps
what was read of finished cells: thousands are then looked at only, not read. It may be removed at any time.
"""

import json
import math
import os
import platform
import stat
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from horovod_study.analysis.paired import MOST_LAUNCHES
from horovod_study.cluster import alive, identity
from horovod_study.cluster.slurm import JobBook, JobState
from horovod_study.config.documents import parse_csv, read_bytes, read_json, shown
from horovod_study.config.run import Cell
from horovod_study.errors import RecordError, StudyError, nearest, refuse
from horovod_study.files import append_text, csv_rows, write_file
from horovod_study.records import MANIFEST, SILENT_S, RunRecord, checkpoint_paths, facts, is_command, read_run, silent_s
from horovod_study.studies import lease
from horovod_study.studies.attempt import told_to_end
from horovod_study.studies.study_file import StudyCells
from horovod_study.studies.turns import Aim
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

STATES: tuple[str, ...] = ("done", "running", "queued", "failed", "timed out", "pre-empted", "cancelled")
STATES += ("stopped", "incomplete", "missing")
_LISTED = 100  # cells of a study that `status` lists all; of a larger one, it lists those that want attention,
_SHOWN = 40  # and so many of them
BY_ITSELF = ("missing", "stopped", "incomplete", "pre-empted")  # States of cells that any `run` takes up
ON_RETRY = ("failed", "timed out", "cancelled")  # States of cells that are run again only when that is wanted
ATTEMPT_COLUMNS = ("started", "cell", "runtime", "workers", "state", "seconds", "exit_code", "reason")

_TOLD = ("timed out", "pre-empted", "cancelled")  # states that no record knows
_CACHE = ".ledger.json"
_ALIVE = ("pending", "running")  # states of jobs that may still come to a cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One cell and where it stands."""

    cell: Cell
    state: str
    reason: str = ""
    samples_per_s: float | None = None
    earlier_attempts: int = 0
    recorded: bool = False  # there is a record in its run directory
    host: str = ""  # where it runs, while it does
    job: str = ""  # the Slurm job that it is or was in

    @property
    def key(self) -> str:
        """The key of the cell."""
        return self.cell.key

    @property
    def name(self) -> str:
        """The name of the cell for people, e.g. "horovod/mpi, 2 workers, repeat 1"."""
        return self.cell.name


class _OtherCode(NamedTuple):
    """Runs of cells of this study that were made with other code, or in another environment."""

    identity: str
    runs: tuple[str, ...]  # names of their directories
    why: str  # "other code (train.py changed since)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """Where every cell of a study stands."""

    sweep: StudyCells
    entries: tuple[Entry, ...]
    other_code: tuple[_OtherCode, ...] = ()
    reached: str = ""  # the precision that was the aim of the study, where no ratio needs a further run
    further: tuple[str, ...] = ()  # run directories of repeats beyond those of the file, as `run --until` makes them
    foreign: tuple[str, ...] = ()  # other run directories in the study's folder, which no cell of the file explains
    unreadable: Mapping[str, str] = field(default_factory=dict)  # entry of that folder -> why it cannot be read

    @property
    def directory(self) -> Path:
        """The folder of the study."""
        return self.sweep.directory

    def count(self, *states: str) -> int:
        """Return how many cells are in one of `states`."""
        return sum(entry.state in states for entry in self.entries)

    def counts(self) -> dict[str, int]:
        """Return how many cells are in each state."""
        found = Counter(entry.state for entry in self.entries)
        return {state: found[state] for state in STATES}

    def to_do(self, *, retry: bool) -> list[Cell]:
        """Return the cells to run: BY_ITSELF, with `retry` also those that failed or were ended (ON_RETRY)."""
        wanted, enough = (*BY_ITSELF, *(ON_RETRY if retry else ())), "missing" if self.reached else ""
        return [entry.cell for entry in self.entries if entry.state in wanted and entry.state != enough]

    def current_directories(self) -> frozenset[str]:
        """Return the names of the run directories of this study's cells, without those of other code or other files."""
        return frozenset(entry.key for entry in self.entries if entry.recorded)

    def select(self, states: Collection[str], wanted: Sequence[str] = ()) -> tuple[Entry, ...]:
        """Return the cells in one of `states`; of these the `wanted` ones, where any are named.

        A cell is named by its key, by its name, or with others by how their names begin ("horovod/mpi, 2 workers").
        ConfigError for a name that is not one of the study's, and for cells that are in another state.
        """
        if not wanted:
            return tuple(entry for entry in self.entries if entry.state in states)
        found: set[str] = set()
        for each in wanted:
            text = each.strip().rstrip(",")
            named = [it for it in self.entries if text in (it.key, it.name) or it.name.startswith(f"{text}, ")]
            known = [] if named else [name for entry in self.entries for name in (entry.key, entry.name)]
            fitting = {entry.key for entry in named if entry.state in states}
            unknown = f"{each!r} is not a cell of study {self.sweep.name}{nearest(text, known)}"
            how = "`horovod-study status` lists its cells; name one by its key, or by how its name begins"
            found_as = " or ".join(sorted({entry.state for entry in named}))
            wanted_as = ", ".join(state for state in STATES if state in states)
            refuse(
                "",
                (known, f"{unknown}; {how}"),
                (not fitting, f"{each!r}: is {found_as}, but only cells that are {wanted_as} can be chosen here"),
            )
            found |= fitting
        return tuple(entry for entry in self.entries if entry.key in found)

    def summary(self) -> str:
        """Return the state of the study in one sentence."""
        found, every, said = self.counts(), len(self.entries), ("done", "missing" if self.reached else "")
        counts = [f"{found[state]} {state}" for state in STATES if found[state] and state not in said]
        text = f"study {self.sweep.name}: {found['done']} of {every} cells done"
        if self.reached:
            text = f"study {self.sweep.name}: {self.reached} is reached with {found['done']} of at most {every} runs"
        text += f" ({', '.join(counts)})" if counts else ""
        told = [(each.runs, "was", "were", f"made with {each.why}") for each in self.other_code]
        told.append((self.further, "is a further repeat", "are further repeats", "(run --until)"))
        told.append((self.foreign, "is", "are", "no cell of this study file (it was edited since?)"))
        for runs, one, more, what in told:
            text += f"; {plural(len(runs), 'recorded run')} {one if len(runs) == 1 else more} {what}" if runs else ""
        return text + "".join(f"; {name} {why}" for name, why in self.unreadable.items())

    def lines(self, progress: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """Return state, samples/s and reason of each cell as aligned lines under a header; the last column is not cut.

        `progress` says how far cells are, by their keys. Of a large study only the cells that something happens to, or
        that went wrong, are listed; the rest is counted.
        """
        listed, rest = [], Counter[str]()
        for entry in self.entries:
            rate = "" if entry.samples_per_s is None else f"{entry.samples_per_s:,.0f}"
            again = f"attempt {entry.earlier_attempts + 1}" if entry.earlier_attempts else ""
            why = "; ".join(filter(None, (progress.get(entry.key), entry.reason, again)))
            listed.append((entry.state, entry.name, rate, why))
        if len(listed) > _LISTED:
            worth = [row for row in listed if row[0] not in ("done", "queued", "missing") or row[3]][:_SHOWN]
            rest = Counter(row[0] for row in listed)
            rest.subtract(row[0] for row in worth)
            listed = worth
        lines = to_lines(table_of(("state", "cell", "samples/s", "reason"), listed, texts=(0, 1, 3))) if listed else []
        counts = ", ".join(f"{rest[each]} {each}" for each in STATES if rest[each])
        return [*lines, f"not listed: {counts}; `status --json` has every cell"] if counts else lines

    def document(self) -> dict[str, Any]:
        """Return what `status --json` prints."""
        found: dict[str, Any] = {"study": self.sweep.name, "directory": str(self.directory), "cells": len(self.entries)}
        found |= {"counts": self.counts(), "summary": self.summary(), "rows": []}
        for each in self.entries:
            row: dict[str, Any] = {"cell": each.key, "name": each.name, "runtime": each.cell.runtime}
            row |= facts(each.cell.placement, "workers", "partition") | facts(each.cell.config, "batch", "repeat")
            row |= facts(each, "state", "samples_per_s", "reason")
            row |= {"host": each.host or None, "job": each.job or None, "earlier_attempts": each.earlier_attempts}
            found["rows"].append(row)
        found["other_code"] = [{**facts(each, "identity", "why"), "runs": [*each.runs]} for each in self.other_code]
        return {**found, **facts(self, "further", "foreign", "unreadable")}


def foreign(record: RunRecord, cell: Cell) -> str:
    """Say in one line why a record is not that of `cell`, whatever its directory is called; "" when it is."""
    key = cell.key
    if record.key != key:
        return f"holds the run of another cell: run.json says key {record.key}, the directory {key}"
    asked = vars(cell.config) | {"workers": cell.placement.workers}
    asked |= {**facts(cell.config, "study", "repeat"), "partition": cell.placement.partition}
    told = dict(record.requested) | {"study": record.study, "repeat": record.repeat, "partition": record.partition}
    told.setdefault("workers", record.effective.get("workers", cell.placement.workers))
    if name := min((name for name, value in told.items() if name in asked and value != asked[name]), default=""):
        if name == "workers" and cell.config.workload.starts_ranks:
            started = f"the command started {plural(told[name], 'worker')}, not {asked[name]}"
            return f"{started}; look at how it is told the count (accelerate launch starts one on CPUs; use torchrun)"
        return f"holds the run of another cell than {key}: {name} is {told[name]!r} in run.json, not {asked[name]!r}"
    return ""


def judge(
    record: RunRecord | None,
    *,
    exists: bool,
    claim: lease.Claim | None = None,
    stale: bool = False,
    job: JobState | None = None,
    silence_s: Callable[[], float | None] = lambda: None,
    wrong: str = "",
) -> tuple[str, str]:
    """Return (state, reason) of a cell.

    `exists`: there is something in its run directory. `claim`: the latest one on it; `stale`: its holder is gone.
    `job`: the latest job it was submitted in. `silence_s`: for how long nothing was written there, None where unknown.
    `wrong`: why the record is that of another cell.
    """
    if wrong and (claim is None or claim.released is not None or stale):
        return "failed", wrong
    if record is not None and record.status == "done" and not wrong:
        resumed = len(record.attempts) > 1
        return "done", f"resumed after step {record.attempts[-1]['from_step']}" if resumed else ""
    if claim is not None and claim.released is None and not stale:
        who = f"{claim.holder or claim}, starting"
        if record is not None and record.status == "running" and record.finished is None:
            who = _where(record, claim)
        return "running", f"{who}; {claim.believed}" if claim.believed else who
    holder = None if claim is None else claim.holder
    its_job = job is not None and holder is not None and _same(holder.job, job)
    # A job that is still alive has had its turn at the cell; one that was requeued gets another.
    had = job is not None and job.state == "running" and holder is not None and holder.restarts >= job.restarts
    over = its_job and had and claim is not None and claim.state != "pre-empted"
    if job is not None and job.state in _ALIVE and not job.left_out and not over:
        why = f"job {job.job_id} pending" + (f" ({job.reason})" if job.reason else "")
        return "queued", why if job.state == "pending" else f"job {job.job_id} runs, waiting for its turn"
    state, reason = ("incomplete", "ended before it wrote its record") if exists else ("missing", "")
    if record is not None:  # what the run directory says by itself
        state, reason = record.state(), " ".join(record.reason.split())
        if state == "running" and record.host == platform.node():
            reason = _where(record)
        elif state == "running":
            reason, gone = _where(record), "who ran it" if claim is None else str(holder or "who ran it")
            if job is not None and job.state not in _ALIVE and (its_job or claim is None):
                state, reason = "incomplete", "its job has ended"  # `_after` says how
            elif claim is not None and claim.released is not None:
                state, reason = "incomplete", claim.reason or f"{gone} gave it back unfinished"
            elif claim is not None and stale and ((silent := silence_s()) or 0.0) > SILENT_S:
                state, reason = "incomplete", f"{gone} is gone, and nothing was written since"
            elif claim is not None and stale:
                reason += f"; {gone}, who looked after it, is gone"
                until_s = None if silent is None else datetime.now(UTC).timestamp() + SILENT_S - silent
                reason += "" if until_s is None else f"; {alive.until(until_s)}"
        elif state == "incomplete":
            reason = reason or "its process is gone"
    if state in ("done", "running"):
        return state, reason
    if claim is not None and claim.state in _TOLD:
        return claim.state, claim.reason or reason
    if claim is not None and claim.state == state == "stopped" and job is not None and job.state == "timed out":
        return state, reason  # in good order before the time limit, as it is told while squeue still knows the job
    if job is not None and (job.state not in _ALIVE or job.left_out) and (its_job or claim is None):
        return _after(job, state, reason)
    if state == "missing" and claim is not None and stale and claim.released is None:
        return state, f"{claim.holder or 'who began it'} is gone"
    return state, reason


def _where(record: RunRecord, claim: lease.Claim | None = None) -> str:
    job = f" in job {claim.holder.job}" if claim is not None and claim.holder is not None and claim.holder.job else ""
    here = record.host == platform.node()
    waits = "; waits for its turn" if here and alive.is_stopped(record.pid) else ""
    return f"process {record.pid} on {record.host}{job}{waits}"


def _same(number: str, job: JobState) -> bool:
    """Return whether a claim was made in this job; a cell is in one task of an array only."""
    return number != "" and number.partition("_")[0] == job.job_id.partition("_")[0]


def _after(job: JobState, state: str, reason: str) -> tuple[str, str]:
    """Return what the end of a job made of a cell that did not end in it."""
    ended = f"job {job.job_id} ended: {job.state}" + (f" ({job.reason})" if job.reason else "")
    if job.state == "unknown":
        ended = f"job {job.job_id} ended: {job.reason or 'nobody knows how'}"
    if job.left_out and state == "missing":
        return state, f"job {job.job_id} left it out: too little of its time was left"
    if state == "missing":
        return ("cancelled", ended) if job.state == "cancelled" else (state, f"{ended} before its turn")
    if job.state in _TOLD and state in ("incomplete", "stopped"):
        return job.state, ended
    if job.state == "out of memory" and state == "incomplete":
        return "failed", ended  # again and again, if it were run by itself
    return (state, ended) if state == "incomplete" else (state, reason)


def _entry(
    directory: Path, cell: Cell, there: "_There", jobs: JobBook | None, generation: int, present: Callable[[], float]
) -> Entry:
    """Judge one cell; `generation`: of the latest claim on it, 0 without one; `present`: the file server's time."""
    key, path = cell.key, directory / cell.key
    record = None if there.status is None else read_run(path)
    wrong = there.unreadable or ("" if record is None else foreign(record, cell))
    done = record is not None and record.status == "done"
    job = None if jobs is None or done else jobs.of(key)
    claim, stale = None, False
    # Whoever ran a cell that is done says nothing more, and there may be thousands; nor does this very process.
    if generation and (wrong or not done):
        found = lease.read_claim(directory / lease.CLAIMS, key, generation)
        claim = None if found is None or found.mine else found
    if claim is not None and claim.released is None:
        over = job is not None and job.state not in _ALIVE
        ended = lambda number: over and job is not None and _same(number, job)  # noqa: E731
        stale = lease.is_stale(claim, present=present(), ended=ended)

    def silence_s() -> float | None:
        try:
            return silent_s(path)
        except RecordError:
            return None

    exists = record is not None or there.holds_files
    state, reason = judge(record, exists=exists, claim=claim, stale=stale, job=job, silence_s=silence_s, wrong=wrong)
    holder = claim.holder if claim is not None else None
    timed = None if record is None or is_command(record) else record  # the rate of a command is one of anything
    rate = timed.totals.get("samples_per_s") if timed and state == "done" else None
    host = (record.host if record is not None else holder.host if holder else "") if state == "running" else ""
    number, recorded = job.job_id if job is not None else holder.job if holder else "", record is not None
    return Entry(cell=cell, state=state, reason=reason, samples_per_s=rate, recorded=recorded, host=host, job=number)


def server_time(directory: Path) -> float:
    """Return the time by which claims are judged; of a reader that may not write, nobody is dead because of silence."""
    try:
        return lease.server_time(directory / lease.CLAIMS)
    except OSError:
        return -math.inf


def read_entry(directory: Path, cell: Cell, *, jobs: JobBook | None = None) -> Entry:
    """Read where one cell is below the study's folder `directory`, claims of this very process aside."""
    claim, present = lease.latest(directory / lease.CLAIMS, cell.key), partial(server_time, directory)
    entry = _entry(directory, cell, _look(directory / cell.key), jobs, claim.generation if claim else 0, present)
    return replace(entry, earlier_attempts=len([*(directory / lease.ATTEMPTS).glob(f"{cell.key}-*")]))


def read_ledger(sweep: StudyCells, *, jobs: JobBook | None = None) -> Ledger:
    """Read the state of every cell; a damaged record is a RecordError that names its file."""
    jobs = jobs or JobBook(sweep.directory)
    directory, keys = sweep.directory, {cell.key: cell for cell in sweep.cells}
    present = cache(partial(server_time, directory))
    try:
        names = _names(directory)
        earlier = Counter(name.rpartition("-")[0] for name in _names(directory / lease.ATTEMPTS))
        claims = lease.generations(directory / lease.CLAIMS)
        finished, fresh, entries = _Finished(), 0, []
        with suppress(RecordError):  # there is none, or it is damaged: everything is read
            kept = read_json(directory / _CACHE, _Finished, again="")
            finished = kept if kept.schema == finished.schema else finished
        for key, cell in keys.items():
            there = _look(directory / key) if key in names else _There()
            stamp = () if there.status is None else (there.status.st_mtime_ns, there.status.st_size)
            if stamp and (known := finished.runs.get(key, (0, 0, None, "")))[:2] == stamp:
                entry = Entry(cell=cell, state="done", samples_per_s=known[2], reason=known[3], recorded=True)
            else:
                entry = _entry(directory, cell, there, jobs, claims.get(key, 0), present)
                if stamp and entry.state == "done":
                    finished.runs[key] = (*stamp, entry.samples_per_s, entry.reason)
                    fresh += 1
            entries.append(replace(entry, earlier_attempts=earlier[key]) if earlier[key] else entry)
        if fresh >= 100:  # fewer are read again in no time
            with suppress(OSError):  # a reader that may not write, or a full disk
                write_file(directory / _CACHE, json.dumps(asdict(finished)))
        others = {name: _look(directory / name) for name in sorted(names.difference(keys)) if name[0] != "."}
        unknown = [name for name, there in others.items() if there.status is not None]
    except OSError as error:
        raise StudyError(f"{directory}: cannot be read ({error.strerror}); choose another folder with --runs") from None
    other = _other_code(sweep, unknown) if unknown else ()
    first = [cell for cell in keys.values() if unknown and cell.config.repeat == 0]
    precise = {cell.repeated(repeat).key for cell in first for repeat in range(MOST_LAUNCHES)}
    further = tuple(name for name in unknown if name in precise)
    explained = {*further, *(name for each in other for name in each.runs)}
    unreadable = {name: there.unreadable for name, there in others.items() if there.unreadable}
    for name in unknown:
        try:
            if name not in explained:
                read_run(directory / name)
        except RecordError as error:
            said = str(error).removeprefix(f"{shown(directory / name)}/")
            unreadable[name] = f"holds no run that can be read: {said}"
    missing, reached = [each.cell for each in entries if each.state == "missing"], ""
    if sweep.precision is not None and missing and directory.is_dir():
        aim = Aim(sweep).look(sweep)
        reached = "" if aim.open() or aim.needed(missing) else f"+- {100 * sweep.precision:.3g} %"
    strange = () if sweep.part else tuple(name for name in unknown if name not in explained and name not in unreadable)
    found: dict[str, Any] = {"entries": tuple(entries), "other_code": other, "further": further, "foreign": strange}
    return Ledger(sweep=sweep, **found, reached=reached, unreadable=unreadable)


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:
        return set()


class _There(NamedTuple):
    """What an entry of a study's folder is."""

    status: os.stat_result | None = None  # of its run.json
    holds_files: bool = False
    unreadable: str = ""  # why it cannot be looked into: a link that leads nowhere, no permission


def _look(path: Path) -> _There:
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            return _There(status=os.stat(path / MANIFEST), holds_files=True)
        exists = os.path.lexists(path)
        return _There(holds_files=exists and stat.S_ISDIR(os.stat(path).st_mode) and bool(os.listdir(path)))
    except OSError as error:
        return _There(unreadable=f"cannot be read ({error.strerror or error})")


@dataclass(frozen=True, slots=True)
class _Finished:
    """What was read of finished cells, which do not change; a file that did change is read again."""

    schema: int = 1
    # By key: date and size of the record, samples/s, reason.
    runs: dict[str, tuple[int, int, float | None, str]] = field(default_factory=dict)


def _other_code(sweep: StudyCells, names: Sequence[str]) -> tuple[_OtherCode, ...]:
    """Return which of the run directories `names` are those of cells with other code or in another environment."""
    left = {name: name.rpartition("-")[0] for name in names}
    known = identity.remembered(sweep.directory)
    present: dict[str, identity.Known] = {}
    alike = [(cell, cell.key.rpartition("-")[0]) for cell in sweep.cells]
    found: list[_OtherCode] = []
    for each in (*known, ""):  # "": recorded before code and environment were part of a key
        wanted = set(left.values())
        others = [cell for cell, begin in alike if begin in wanted and cell.identity != each]
        by_name = {replace(cell, identity=each).key: cell for cell in others}
        for partition in sorted({cell.placement.partition for cell in by_name.values()}):
            runs = tuple(name for name in left if name in by_name and by_name[name].placement.partition == partition)
            if not runs:
                continue
            if partition not in present:
                there = identity.environment(sweep.partitions.get(partition))
                present[partition] = identity.Known(files=identity.code_files(), environment=there)
            why = identity.changes(known[each], present[partition]) if each else ""
            found.append(_OtherCode(identity=each, runs=runs, why=why or "code of which nothing is remembered"))
            for name in runs:
                del left[name]
    return tuple(found)


def log_path(directory: Path, cell: Cell) -> Path:
    """Return where the output of the latest attempt at `cell` goes."""
    return directory / "logs" / f"{cell.key}.log"


def goes_on(record: RunRecord, directory: Path) -> bool:
    """Return whether the next attempt at a run continues from a checkpoint; damage is found when it is read.

    One that failed by itself would fail again where it did; one that was killed goes on.
    """
    killed = record.status == "failed" and told_to_end(record.reason, None, begun=False)
    return (killed or record.status in ("running", "stopped")) and bool(checkpoint_paths(directory))


def keep_log(directory: Path, cell: Cell) -> None:
    """Move the log of the attempt before into the run directory, where a cell is about to be resumed."""
    log, current = log_path(directory, cell), directory / cell.key
    if log.exists():
        names = (current / f"output-{number}.log" for number in count(1))
        os.replace(log, next(each for each in names if not each.exists()))


def set_aside(directory: Path, cell: Cell) -> Path | None:
    """Move what an earlier attempt at `cell` left, log included, out of the way; return where to, or None."""
    current = directory / cell.key
    if not current.exists() or not any(current.iterdir()):
        return None
    lease.require_free(current)
    # The log goes first: were this interrupted in between, the next call would still find the directory to move.
    log = log_path(directory, cell)
    if log.exists():
        os.replace(log, current / "output.log")
    return lease.move_run(current, directory / lease.ATTEMPTS)


def set_aside_part_blocks(ledger: Ledger) -> bool:
    """Set aside finished runs of blocks in which others are missing: a partner from another time is none."""
    blocks: dict[tuple[int, int], list[Entry]] = {}
    for each in ledger.entries:
        blocks.setdefault((each.cell.config.repeat, each.cell.placement.workers * bool(each.cell.arm)), []).append(each)
    parts = [each for block in blocks.values() if {each.state for each in block} > {"done"} for each in block]
    done = [set_aside(ledger.directory, each.cell) for each in parts if each.state == "done"]
    return bool(done)


def note_attempt(
    directory: Path, cell: Cell, *, started: str, state: str, seconds: float, exit_code: int | None, reason: str
) -> None:
    """Append one line to attempts.csv."""
    path = directory / "attempts.csv"
    values = (started, cell.key, cell.runtime, cell.placement.workers, state, round(seconds, 3), exit_code, reason)
    row = dict(zip(ATTEMPT_COLUMNS, values, strict=True))
    append_text(path, csv_rows(ATTEMPT_COLUMNS, [row], head=False), head=csv_rows(ATTEMPT_COLUMNS, []))


def past_durations(directory: Path) -> list[tuple[str, int, float]]:
    """Return (runtime, workers, seconds) of every attempt that ended done; lines damaged by a crash are passed over."""
    durations = []
    with suppress(RecordError):
        content = read_bytes(directory / "attempts.csv", again="")
        for row in parse_csv(content.decode("utf-8", "replace"), source="", again="", lenient=True):
            with suppress(KeyError, ValueError, OverflowError):
                if row["state"] == "done":
                    durations.append((row["runtime"], int(row["workers"]), float(row["seconds"])))
    return durations
