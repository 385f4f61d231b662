"""The program inside a job: `python -m horovod_study.studies.job FOLDER` runs the cells that the job was submitted for.

It runs on the first node, with the same loop, claims and records as `run` uses anywhere else, after a look whether
code, environment and nodes are those that were asked for. How it fares it writes into its note in FOLDER (slurm.py).

It ends early, with a checkpoint of the running cell, when Slurm says so: SIGUSR1 before the time limit, SIGTERM when
it is pre-empted, requeued or cancelled. Where the workers alone are told, because the partition has a grace time, the
job hands its nodes back by requeueing itself: one that merely ended would count as finished.

Exit codes: 0 all of its cells are done, 1 some are not, 2 the job cannot run, 75 it ended early.
`run_here` does the same in an allocation that a person has made with salloc.
"""

import math
import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from horovod_study.cluster import process, slurm
from horovod_study.cluster.identity import Known, changes, environment, identify
from horovod_study.cluster.launch import hosts_of_allocation, site_of
from horovod_study.cluster.slurm import blocks
from horovod_study.config.doors import accept
from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell
from horovod_study.config.variables import whole_number
from horovod_study.errors import RecordError, StudyError
from horovod_study.measure.clock import sleep, utc_now
from horovod_study.records import RunRecord, create_run
from horovod_study.studies import attempt as attempts
from horovod_study.studies.attempt import Interruption, record_in
from horovod_study.studies.lease import CLAIMS, Held, acquire, touching
from horovod_study.studies.ledger import read_ledger, set_aside
from horovod_study.studies.runner import Grid, RunOptions, StudyResult
from horovod_study.studies.study_file import StudyCells
from horovod_study.text.progress import duration, show
from horovod_study.text.words import plural

EXIT_STOPPED = 75
PRE_EMPTED = "pre-empted"
GRACE_S = 20.0
"""How long workers get to write a checkpoint and end; Slurm waits 30 s (KillWait) unless a site says otherwise."""


class JobSignals(Interruption):
    """Slurm's signals as a request to stop; `state` asks Slurm what it means when somebody wants to know."""

    signals = (*Interruption.signals, signal.SIGUSR1)

    def __init__(self, job_id: str, *, restarts: int, ends: float | None, ask: slurm.Ask) -> None:
        """`restarts`: how often the job was started before this time; `ends`: when it must end, seconds since 1970."""
        self.requested = False
        self.number = 0  # of the first signal
        self._job_id, self._restarts, self._ends, self._ask = job_id, restarts, ends, ask
        self._state = ""

    @property
    def state(self) -> str:
        """What the attempt that is broken off is called."""
        if not self.requested or self._state:
            return self._state or attempts.INTERRUPTED
        told = _told_by_slurm(self._ask, self._job_id)
        restarts = told.get("Restarts", "0")
        requeued = restarts.isdigit() and int(restarts) > self._restarts  # it is queued again by now
        # So near its end, a job is taken to be ended by its time limit.
        ending = self._ends is not None and self._ends - datetime.now(UTC).timestamp() < 90.0
        self._state = attempts.INTERRUPTED if ending else attempts.CANCELLED
        if _is_pre_empted(told):
            self._state = PRE_EMPTED
        elif self.number == signal.SIGUSR1:
            self._state = attempts.INTERRUPTED  # the time limit is near
        elif requeued or not (ending or told):
            self._state = PRE_EMPTED
        return self._state

    @state.setter
    def state(self, value: str) -> None:
        self._state = value

    def heed(self, record: RunRecord | None) -> None:
        """Stop after a cell that ended because its workers alone were told that the nodes are taken away."""
        broken_off = record is not None and record.status != "done" and not self.requested
        if broken_off and _is_pre_empted(_told_by_slurm(self._ask, self._job_id)):
            self.state, self.requested = PRE_EMPTED, True

    def _remember(self, number: int, frame: FrameType | None) -> None:
        # A second one is in the order of things: SIGUSR1 before the time limit, SIGTERM at it.
        if not self.requested:
            self.requested, self.number = True, number


def _told_by_slurm(ask: slurm.Ask, job_id: str) -> dict[str, str]:
    """Return what `scontrol show job` says, by its names; empty where it does not answer."""
    text = (ask(("scontrol", "--oneliner", "show", "job", job_id)) if job_id else None) or ""
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))


def _is_pre_empted(told: Mapping[str, str]) -> bool:
    """Return whether Slurm is about to take the nodes away from a job."""
    return told.get("PreemptTime", "None") not in ("None", "Unknown", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """What is around this process: its environment, who answers for Slurm, where things are said, what starts cells."""

    console: Console
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: slurm.Ask = slurm.ask
    launch: attempts.Launcher = attempts.local_launch

    @property
    def job_id(self) -> str:
        """The number of the job, or of the one task of it that this is."""
        return self.environ.get("SLURM_JOB_ID", "")

    def grid(self, sweep: StudyCells, stop: Interruption, *, grace_s: float = process.GRACE_S, **how: Any) -> Grid:
        """Return what runs cells here."""
        place = lambda cell: site_of(sweep.partition_of(cell), cell.placement, environ=self.environ)  # noqa: E731
        options = RunOptions(command="", launch=self.launch, pin=False, grace_s=grace_s)
        return Grid(sweep=sweep, console=self.console, stop=stop, options=options, site_of=place, **how)


def main(arguments: Sequence[str], *, environ: Mapping[str, str] = os.environ) -> int:
    """Run the job in the folder named on the command line; return the exit code."""
    inside = Inside(console=Console(file=sys.stdout, soft_wrap=True, highlight=False), environ=environ)
    if len(arguments) != 1:
        print("usage: python -m horovod_study.studies.job FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        task = whole_number("SLURM_ARRAY_TASK_ID", environ) or 0
        job = slurm.read_job(folder)
        if not 0 <= task < len(job.tasks):
            told = f"task {task} is asked for, but the job has {len(job.tasks)}; submit it as it is"
            raise StudyError(f"{folder}: {told}")
        return run_job(job, folder.resolve().parents[1], task, inside)
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_job(job: slurm.Job, directory: Path, task: int, inside: Inside, *, until_killed_s: float = 120.0) -> int:
    """Run the cells of one task of `job`, of the study in `directory`; return the exit code.

    StudyError: the job cannot run at all; its note says so too.
    """
    environ, console = inside.environ, inside.console
    restarts = whole_number("SLURM_RESTART_COUNT", environ) or 0
    number, host = environ.get("SLURM_ARRAY_JOB_ID") or inside.job_id, environ.get("SLURMD_NODENAME") or platform.node()
    note = slurm.Note(job_id=number, host=host, state="running", restarts=restarts, started=utc_now())
    lasts_s = seconds_left(environ, job.time_limit_s)
    ends = datetime.now(UTC).timestamp() + lasts_s
    slurm.write_note(directory, job.name, task, note)
    cells: tuple[Cell, ...] = ()
    with (
        JobSignals(inside.job_id, restarts=restarts, ends=ends, ask=inside.ask) as stop,
        ExitStack() as stack,
    ):
        # By this others see that it is there.
        stack.callback(touching(lambda: os.utime(slurm.note_path(directory, job.name, task)), 30.0).set)
        try:
            sweep = contents(job, directory, task)
            cells = sweep.cells
            told = f", start {restarts + 1}" if restarts else ""
            nodes = environ.get("SLURM_JOB_NODELIST", platform.node())
            begun = f"job {inside.job_id or '?'} of study {sweep.name} on {nodes}{told}"
            show(console, f"{begun}: {plural(len(cells), 'cell')}, {duration(lasts_s)} left")
            if problem := unlike(job, sweep, inside):
                raise StudyError(problem)
            how: dict[str, Any] = {"planned": job.inside["planned"], "lasts_s": lasts_s, "begin_one": True}
            how["after"] = lambda cell: stop.heed(record_in(directory / cell.key))
            grid = inside.grid(sweep, stop, grace_s=GRACE_S, **how)
            grid.run(cells)
            state, reason = _ended(directory, cells, grid.left_out, stop)
            note = replace(note, state=state, reason=reason, left_out=tuple(grid.left_out))
        except StudyError as error:
            for cell in cells:  # one that somebody else runs, or that is done, is left
                with suppress(Held), acquire(directory / CLAIMS, cell.key, what=cell.key) as lease:
                    record = record_in(directory / cell.key)
                    if record is None or record.status != "done":
                        set_aside(directory, cell)
                        create_run(directory / cell.key, attempts.record_of(cell, utc_now(), str(error)))
                        lease.release("failed", str(error))
            slurm.write_note(directory, job.name, task, replace(note, state="failed", cell="", reason=str(error)))
            raise
        early = stop.requested
        pre_empted = stop.state == PRE_EMPTED if early else False
        slurm.write_note(directory, job.name, task, note)
    show(console, f"ended: {note.state}{f' ({note.reason})' if note.reason else ''}")
    if pre_empted and stop.number == 0 and job.requeue:
        # A job that ends by itself in its grace time is not queued again: it is requeued, and waits for its end.
        if inside.ask(("scontrol", "requeue", inside.job_id)) is None:
            told = f"scontrol requeue {inside.job_id} failed; Slurm requeues the job itself when its grace time is over"
            show(console, told)
        sleep(until_killed_s)
    if early:
        return EXIT_STOPPED
    return 0 if note.state == "completed" and not note.reason else 1


def _ended(directory: Path, cells: Sequence[Cell], left_out: Collection[str], stop: JobSignals) -> tuple[str, str]:
    """Return state and reason of a job that has gone through its cells, or was told to stop."""
    if stop.requested:
        near = "its time limit is near" if stop.number == signal.SIGUSR1 else "it was stopped"
        known = {PRE_EMPTED: "Slurm takes the nodes away", attempts.CANCELLED: "it was cancelled"}
        return stop.state if stop.state in known else "timed out", known.get(stop.state, near)
    records = [record_in(directory / cell.key) for cell in cells if cell.key not in left_out]
    not_done = sum(record is None or record.status != "done" for record in records)
    told = [f"{not_done} of {plural(len(cells), 'cell')} not done"] if not_done else []
    told += [f"{len(left_out)} not begun, too little time was left"] if left_out else []
    return "completed", "; ".join(told)


def run_here(sweep: StudyCells, inside: Inside, *, command: str, retry: bool = True) -> StudyResult:
    """Run the cells of `sweep` that are not done and fit into the allocation this is called in (salloc, or a job).

    A cell fits when its partition is of scheduler slurm and the allocation has the nodes for it. Cells of jobs that
    wait or run are left to these. Raises StudyError outside of an allocation, or when no cell fits.
    """
    environ, console = inside.environ, inside.console
    hosts, there = hosts_of_allocation(environ), environ.get("SLURM_JOB_PARTITION")
    ledger = read_ledger(sweep, jobs=slurm.JobBook(sweep.directory, ask=inside.ask))
    wanted = ledger.to_do(retry=retry)

    def fits(cell: Cell) -> bool:
        partition = sweep.partition_of(cell)
        same = partition.slurm_partition in (None, there) or there is None
        return partition.scheduler == "slurm" and same and cell.placement.nodes <= len(hosts)

    cells = [cell for block in blocks(wanted, sweep.seed) for cell in block if fits(cell)]
    if wanted and not cells:
        nodes = ", ".join(str(count) for count in sorted({cell.placement.nodes for cell in wanted}))
        where = ", ".join(sorted({cell.placement.partition for cell in wanted}))
        raise StudyError(
            f"no cell fits into job {inside.job_id or '?'} with {plural(len(hosts), 'node')}: what is not done needs "
            f"{nodes} nodes of {where}; allocate these, or submit it with `run`"
        )
    show(console, ledger.summary())
    told = f"{len(cells)} to run here, on {', '.join(host.name for host in hosts)}"
    told += f"; {len(wanted) - len(cells)} do not fit" if len(wanted) > len(cells) else ""
    told += f"; {ledger.count('queued')} are left to submitted jobs" if ledger.count("queued") else ""
    show(console, told)
    left_s = seconds_left(environ, math.inf)
    if left_s == math.inf and (end := _told_by_slurm(inside.ask, inside.job_id).get("EndTime", "")):
        with suppress(ValueError):  # Unknown; Slurm tells local time
            left_s = max(0.0, datetime.fromisoformat(end).timestamp() - datetime.now(UTC).timestamp())
    with Interruption() as stop:
        planned = {entry.key: entry.state for entry in ledger.entries}
        broken_off = inside.grid(sweep, stop, planned=planned, lasts_s=left_s).run(cells)
    ledger = read_ledger(sweep, jobs=slurm.JobBook(sweep.directory, ask=inside.ask))
    show(console, ledger.summary())
    if stop.requested:
        show(console, f"interrupted{broken_off and f' in {broken_off}'}; continue with: {command}")
    return StudyResult(ledger=ledger, interrupted=stop.requested)


def contents(job: slurm.Job, directory: Path, task: int) -> StudyCells:
    """Return the cells of one task of a job, in their order, with what its folder tells of the study in `directory`."""
    partition: Partition = accept(Partition, job.inside["partition"], "partition of the job", error=RecordError)
    told = job.inside["study"]
    by_key = {values["key"]: values for values in job.inside["cells"]}
    asked: dict[str, Any] = {"name": job.study, "seed": told["seed"], "timeout_s": told["timeout_s"]}
    cells = tuple(slurm.cell_of(by_key[key]) for key in job.tasks[task])
    return StudyCells(**asked, directory=directory, cells=cells, partitions={partition.name: partition})


def unlike(job: slurm.Job, sweep: StudyCells, inside: Inside) -> str:
    """Return in one line how this place differs from what was asked for at submission, or ""."""
    hosts, (partition,) = hosts_of_allocation(inside.environ), sweep.partitions.values()
    if len(hosts) != job.nodes:
        names = ", ".join(each.name for each in hosts)
        return f"the job has {len(hosts)} nodes ({names}), but {job.nodes} were asked for; submit the study again"
    if all(cell.identity in ("", identify(partition)) for cell in sweep.cells):
        return ""
    place = f"node {inside.environ.get('SLURMD_NODENAME') or platform.node()}"
    before = Known(files={"-": ""}, environment=job.inside["environment"])
    if said := changes(before, replace(before, environment=environment(partition))):
        return f"on {place} there is {said} since it was submitted; run the study again from that environment"
    return f"the code on {place} is not that of the submission; run the study again"


def seconds_left(environ: Mapping[str, str], limit_s: float, *, present: Callable[[], float] | None = None) -> float:
    """Return how long the job may still run: Slurm's word where it has put that into the environment."""
    end = whole_number("SLURM_JOB_END_TIME", environ)
    seconds = datetime.now(UTC).timestamp() if present is None else present()
    return max(0.0, end - seconds) if end else limit_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
