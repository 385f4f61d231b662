"""The grid: the missing cells of a study one after the other, each under its claim, wherever its site is.

Who runs a cell holds its claim (lease.py), so that no cell ever runs twice, and releases the claim with how the cell
ended. What is killed together with the runner is found by the next one: its claim is stale, what is left of its
processes is ended, and it is run again unless it has finished meanwhile.

With `turns` the cells of a repeat that fit together are started one after the other and then alternate (turns.py); each
of them is a lane of its own.
"""

import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from horovod_study.cluster.identity import identify, remember
from horovod_study.cluster.jobs import JobBook
from horovod_study.cluster.pinning import OtherPrograms, disturbance
from horovod_study.cluster.process import GRACE_S, stop_marked
from horovod_study.cluster.site import HERE, Site
from horovod_study.config import Cell
from horovod_study.errors import StudyError
from horovod_study.files import writing
from horovod_study.lease import CLAIMS, Claim, Held, Lease, acquire, latest, require_free
from horovod_study.measure.clock import now
from horovod_study.measure.environment import BUSY_CORES
from horovod_study.progress import duration
from horovod_study.records import append_turns, read_turns
from horovod_study.studies.aim import Aim
from horovod_study.studies.attempt import (
    CANCELLED,
    TAKEN_OVER,
    Attempt,
    CellRun,
    Launcher,
    Running,
    Verdict,
    Watch,
    local_launch,
    record_in,
)
from horovod_study.studies.engine import Lane, sweep
from horovod_study.studies.estimate import Estimate
from horovod_study.studies.interruption import INTERRUPTED, Interruption
from horovod_study.studies.ledger import (
    foreign,
    goes_on,
    keep_log,
    log_path,
    note_attempt,
    past_durations,
    read_entry,
    set_aside,
)
from horovod_study.studies.progress import Display, say
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import BlockLaunch, Conductor, Policy, groups, sees_steps, until_asked_for, worker_mb

_CHECK_S = 10.0  # how soon it is noticed that somebody else has taken the claim over


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlaces:
    """Where the cells of a study are started, and how."""

    launch: Launcher = local_launch
    site_of: Callable[[Cell], Site] = lambda cell: HERE
    cores_of: Callable[[Cell], Sequence[int] | None] = lambda cell: None
    grace_s: float = GRACE_S
    notice_load: bool = True  # warn once when other programs used the cores while a cell ran


class _End(NamedTuple):
    """How a cell's turn ended: what its claim is released with."""

    state: str
    reason: str = ""
    attempt: Attempt | None = None  # None: it was done by then
    resumed: bool = False


@dataclass(kw_only=True)
class Grid:
    """Runs cells of `sweep`, and says on `console` how they fare."""

    sweep: StudyCells
    console: Console
    stop: Interruption
    places: CellPlaces = field(default_factory=CellPlaces)
    policy: Policy = until_asked_for  # of cells that alternate, where no precision is the aim
    planned: Mapping[str, str] = field(default_factory=dict)  # key -> state when it was chosen
    held: Sequence[Lease] = ()  # of the caller: a request to end that reaches one of them ends all
    lasts_s: float = math.inf  # no cell is begun that would probably not end by then, where its time is known
    begin_one: bool = False  # the first is begun all the same: it goes on from its checkpoint in the next job
    after: Callable[[Cell], None] = lambda cell: None  # is told of each that has ended
    left_out: list[str] = field(default_factory=list)  # keys of cells for which too little time was left
    broken_off: str = ""  # name of the cell that a request to stop has broken off

    def __post_init__(self) -> None:
        self.directory = self.sweep.directory
        self._until = now() + self.lasts_s
        self._claims = self.directory / CLAIMS
        self._estimate = Estimate(past_durations(self.directory))
        self._began = now()
        self._warned = False
        self._source = identify()
        self._aim = None if self.sweep.precision is None else Aim(self.sweep)
        self._look()

    def run(self, cells: Sequence[Cell], *, total: int | None = None, ended: int = 0) -> str:
        """Run `cells` in their order until all have ended or a stop is requested; return the one broken off, or "".

        A cell that somebody else holds is left alone, one that is done by now is not run again, one that was cancelled
        since it was `planned` is left out. `total` and `ended` count the cells of the whole study, for the display.
        StudyError: there is no room for the records.
        """
        if any(cell.identity for cell in cells):
            remember(self.directory, self.sweep.partitions.values())
        try:
            (self.directory / "logs").mkdir(parents=True, exist_ok=True)
            self._display = Display(self.console, total=len(cells) if total is None else total, ended=ended)
            with closing(self._display):
                each_mb = worker_mb(self.directory) if self.sweep.turns else None
                parts = groups(self.sweep, cells, lambda cell: self.places.site_of(cell).alone, each_mb=each_mb)
                for part in parts:
                    needed = part.cells if self._aim is None else self._aim.needed(part.cells)
                    if needed and not self.stop.requested:
                        turns = part.block and sees_steps(self.sweep)
                        order = needed if turns else sorted(needed, key=cells.index)
                        self._run_part(order, part.block if turns else "")
                for line in () if self._aim is None or self.stop.requested else self._aim.lines():
                    say(self.console, line)
        except BrokenPipeError:  # the reader of the output left; that is no matter of the run folder
            raise
        except OSError as error:
            raise StudyError(
                f"{error.filename or self.directory}: {error.strerror or error}; make room there or choose another "
                "folder with --runs, and run the study again"
            ) from error
        return self.broken_off

    def _run_part(self, cells: Sequence[Cell], block: str) -> None:
        """Run cells one after the other, or in turns where they have the name of a `block`."""
        if not block:
            sweep([self._lane(cells)], self.stop)
            self._look()
            return
        earlier = [each.launch for each in read_turns(self.directory) if each.block == block]
        launch = max(earlier, default=-1) + 1
        how = BlockLaunch(
            block=block,
            launch=launch,
            seed=self.sweep.seed,
            policy=self._aim or self.policy,
            equal_steps=self.sweep.equal_steps,
            least_steps=self.sweep.least_steps,
        )
        with how.conductor({cell.key: cell for cell in cells}) as conductor:
            sweep([self._lane([cell], conductor) for cell in cells], self.stop)
            loads = [each.other_load for each in conductor.slices if each.other_load is not None]
        if conductor.failure is not None:
            raise StudyError(f"turns of block {block}, launch {launch + 1}, have ended: {conductor.failure!r}")
        self._look()
        if loads and self.places.notice_load and (used := median(loads)) >= BUSY_CORES and not self._warned:
            self._warned = True
            say(self.console, f"warning: other programs used {used:.1f} cores in half of the slices, or more")

    def _look(self) -> None:
        """Tell the aim of all runs that have ended."""
        if self._aim is not None:
            self._aim.look(self.sweep)

    def _lane(self, cells: Sequence[Cell], conductor: Conductor | None = None) -> Lane:
        for position, cell in enumerate(cells):
            while conductor is not None and not self.stop.requested and not conductor.may_start(cell.key):
                yield None
            if self.stop.requested:
                return
            if cell.identity and identify() != self._source:
                raise StudyError(
                    "the source of horovod_study, or what is installed, was changed while the study ran; run it "
                    "again: what is done with the old one stays as it is, and the cells ahead are new ones"
                )
            expected_s = self._estimate.of(cell).seconds or 0.0
            if now() + expected_s > self._until and (position or not self.begin_one):
                self.left_out.append(cell.key)
                say(self.console, f"not begun: {cell.name} takes {duration(expected_s)}, which is more than is left")
                continue
            try:
                end = yield from self._turn(cell, cells[position:], conductor)
            finally:
                if conductor is not None:
                    conductor.ended(cell.key)
            if end is None:
                continue
            if conductor is not None and end.state == "done" and end.attempt is not None:
                append_turns(self.directory, conductor.slices_of(cell.key))
            seconds = end.attempt.seconds if end.attempt is not None else 0.0
            if end.state == "done" and end.attempt is not None and not end.resumed:  # a part says nothing about a whole
                self._estimate.add(cell.runtime, cell.placement.workers, seconds)
            if self.stop.requested and end.state in (self.stop.state, "stopped", CANCELLED):
                self.broken_off = cell.name
                return
            ahead = cells[position + 1 :]
            left = self._estimate.left(ahead) if ahead else None
            self.after(cell)
            entry = read_entry(self.directory, cell)
            self._display.ended(entry, seconds=seconds, left=left, log=str(log_path(self.directory, cell)))

    def _turn(
        self, cell: Cell, ahead: Sequence[Cell], conductor: Conductor | None
    ) -> Generator[CellRun, Any, _End | None]:
        """Run one cell under its claim and release it with how it ended; None when it was not for us to run."""
        name, before = cell.name, latest(self._claims, cell.key)
        if before is not None and before.state == CANCELLED != self.planned.get(cell.key, CANCELLED):
            say(self.console, f"left out: {name} was cancelled")
            return None
        end = _End(INTERRUPTED)
        try:
            # A job that was killed could not give it back; Slurm is asked only where there is such a holder.
            ended = lambda number: JobBook(self.directory).has_ended(number)  # noqa: E731
            lease = acquire(self._claims, cell.key, what=name, ended=ended)
            try:
                end = yield from self._under_claim(cell, self._watch(name, lease, ahead, conductor), conductor)
            except Held as held:  # somebody trains in its directory who is no runner
                end = _End(INTERRUPTED, f"left to {held.claim}")
                raise
            finally:
                lease.release(end.state, end.reason)
        except Held as held:
            say(self.console, f"left alone: {name} is being run by {held.claim}")
            return None
        return end

    def _under_claim(self, cell: Cell, watch: Watch, conductor: Conductor | None) -> Generator[CellRun, Any, _End]:
        """Run a cell whose claim is held, unless it has finished meanwhile, and write down how it ended."""
        out, site = self.directory.resolve() / cell.key, self.places.site_of(cell)
        stop_marked(str(out), grace_s=self.places.grace_s)  # of an attempt whose runner was killed
        require_free(out)
        record = record_in(out)
        wrong = record is not None and foreign(record, cell) != ""
        if record is not None and record.status == "done" and not wrong:
            return _End("done")
        # What is to make as many steps as its partners is run whole, beside them.
        resume = not wrong and not self.sweep.equal_steps and record is not None and goes_on(record, out)
        if resume:
            keep_log(self.directory, cell)
        else:
            set_aside(self.directory, cell)
        noticed = self.places.notice_load and site.alone and conductor is None  # else each slice tells of it
        cores = len(os.sched_getaffinity(0))
        others = OtherPrograms(sorted(os.sched_getaffinity(0))) if noticed else None
        run = CellRun(
            cell=cell,
            out=out,
            config=self.directory / "cells" / f"{cell.key}.yaml",
            log=log_path(self.directory, cell),
            launch=self.places.launch,
            site=site,
            cores=self.places.cores_of(cell),
            resume=resume,
            checkpoint=not self.sweep.equal_steps,
            timeout_s=self.sweep.timeout_s,
            grace_s=self.places.grace_s,
            watch=watch,
        )
        attempt: Attempt = yield run if conductor is None else conductor.with_turns(run, cell.key, self.stop)
        if attempt.unreached:
            say(self.console, f"warning: {attempt.unreached}")
        if attempt.state == TAKEN_OVER:  # the run directory is another's now
            return _End(INTERRUPTED, attempt.reason, attempt)
        note_attempt(
            self.directory,
            cell,
            started=attempt.started,
            state=f"{attempt.state}, resumed" if resume else attempt.state,
            seconds=attempt.seconds,
            exit_code=attempt.exit_code,
            reason=attempt.reason,
        )
        told = disturbance(others, cores) if attempt.done and others is not None and not self._warned else None
        if told:
            self._warned = True
            say(self.console, f"warning: {told} while that cell ran; its times are not those of a quiet machine")
        return _End(attempt.state, attempt.reason, attempt, resume)

    def _watch(self, name: str, lease: Lease, ahead: Sequence[Cell], conductor: Conductor | None) -> Watch:
        """Return what looks at a running cell: it redraws the display, and ends what was cancelled or taken over."""
        checked, asked, drawn = now(), -math.inf, -math.inf

        def watch(running: Running) -> Verdict | None:
            nonlocal checked, asked, drawn
            shown = conductor is None or conductor.left()[:1] == [running.run.out.name]  # one line for all of them
            if shown and now() - drawn >= 1.0:
                drawn = now()
                left = self._estimate.left(ahead, running_s=running.seconds)
                what = name if conductor is None else f"{len(conductor.left())} in turns, round {conductor.rounds}"
                what += "" if self._aim is None else f", {self._aim.progress()}"
                self._display.running(what, elapsed_s=now() - self._began, left=left)
            if self.stop.requested or now() - asked >= 1.0:  # so soon a request to cancel is noticed
                asked = now()
                if any(request(self.directory, each.claim).exists() for each in self.held):
                    self.stop.requested, self.stop.state = True, CANCELLED
                    return Verdict(CANCELLED, CANCELLED)
                if request(self.directory, lease.claim).exists():
                    return Verdict(CANCELLED, CANCELLED)
            if now() - checked >= _CHECK_S:
                checked = now()
                if not lease.refresh():
                    return Verdict(TAKEN_OVER, "another runner took it over, because nothing was heard from this one")
            return None

        return watch


def request(directory: Path, claim: Claim) -> Path:
    """Return the file that asks the holder of `claim`, and nobody after him, to end."""
    return directory / ".requests" / claim.path.name


def ask_to_end(directory: Path, claim: Claim) -> None:
    """Ask the holder of `claim` to end what he runs."""
    path = request(directory, claim)
    with writing(path, "make room there", error=StudyError):
        path.parent.mkdir(exist_ok=True)
        path.touch()
