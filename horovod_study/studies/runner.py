"""Runs the missing cells of a study, here, over ssh, or as jobs of a batch system; retries and cancels them.

What is to be done is found and said first, with what would fail in every cell; a `Grid` runs the cells then, one after
the other, each under its claim (lease.py), so that no cell ever runs twice. What is killed together with the runner is
found by the next one: its claim is stale, what is left of its processes is ended, and it is run again unless it has
finished meanwhile. With `turns` the cells of a repeat that fit together alternate (turns.py), each a lane of its own.
"""

import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from horovod_study.cluster import process
from horovod_study.cluster.identity import identify, remember
from horovod_study.cluster.launch import HERE, Site, site_of
from horovod_study.cluster.process import GRACE_S, marked_below, stop_marked
from horovod_study.cluster.remote import other_hosts, run_on, stop_marked_on
from horovod_study.cluster.slurm import JOBS, JobBook
from horovod_study.config.partitions import Host
from horovod_study.config.roles import Role
from horovod_study.config.run import Cell, Placement, available_cores
from horovod_study.config.workload import Configuration
from horovod_study.errors import StudyError, refuse
from horovod_study.files import writing
from horovod_study.measure.clock import now, sleep, utc_stamp
from horovod_study.measure.environment import BUSY_CORES
from horovod_study.records import append_turns, facts, read_turns
from horovod_study.studies import attempt as attempts
from horovod_study.studies import lease as leases
from horovod_study.studies import ledger as ledgers
from horovod_study.studies.attempt import Lane, attempt, sweep
from horovod_study.studies.lease import Held, Lease, acquire, latest, require_free
from horovod_study.studies.ledger import Entry, Ledger
from horovod_study.studies.plan import Estimate, Plan, cancel_jobs, plan_study, submit_cells
from horovod_study.studies.study_file import StudyCells
from horovod_study.studies.turns import Aim, Conductor, Policy, groups, sees_steps, until_asked_for, worker_mb
from horovod_study.text.progress import duration, show
from horovod_study.text.words import plural

AGAIN = (*ledgers.ON_RETRY, "pre-empted")  # States of cells that `retry` runs again
_OTHERS = "another runner took it over, because nothing was heard from this one"
_CHECK_S = 10.0  # how soon it is noticed that somebody else has taken the claim over
_WAKE_S = 0.25  # how soon Ctrl-C is noticed
_ANSWER_S = 30.0  # beyond the grace: how long `cancel` waits for whoever runs the cell
_HOST = "host-"  # claims of those who run cells on a host, so that no two do
_Ended = Generator[attempts.RankRun, Any, tuple[str, str, float]]  # state, reason and seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How the cells of a study are to be run."""

    command: str  # what the user typed; it is repeated where typing it again continues
    retry: bool = True  # run failed cells again
    only: Collection[str] | None = None  # keys of the cells to run
    yes: bool = False  # do not ask when the plan is large
    oversubscribe: bool = False  # let workers share cores
    smoke: bool = True  # try two workers first
    pin: bool = True  # keep each cell to its cores
    wait: bool = False  # come back when the jobs of a batch system have ended
    watch_load_s: float = 1.0  # how long other programs are watched before the first cell; 0: neither then nor later
    cores: int | None = None  # of this machine; None: those that it offers
    launch: attempts.Launcher = attempts.local_launch
    policy: Policy = until_asked_for  # of cells that alternate: which of them need more
    grace_s: float = GRACE_S  # for launchers and workers, to end by themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """How `run_sweep` ended."""

    ledger: Ledger
    interrupted: bool = False
    planned_only: bool = False
    submitted: bool = False  # some of its cells are for a batch system
    aimed: bool = False  # it ends when it is precise enough: launches that were not needed are missing

    @property
    def exit_code(self) -> int:
        """0 when all cells are done, or wait in a batch system, or only the plan was wanted; 1 when some are not.

        130 after Ctrl-C, 143 after SIGTERM.
        """
        if self.interrupted:
            return attempts.exit_code()
        counted = ["done", *(["queued", "running"] if self.submitted else []), *(["missing"] if self.aimed else [])]
        return 0 if self.planned_only or self.ledger.count(*counted) == len(self.ledger.entries) else 1


def run_sweep(sweep: StudyCells, options: RunOptions, *, console: Console | None = None) -> StudyResult:
    """Run the cells of `sweep` that are not done, in randomised blocks, and say on `console` how they fare.

    Cells of Slurm partitions are submitted, those of others run from here one after the other, while the jobs wait.
    Raises StudyError, before a cell starts, when a launcher is missing, when workers would have to share cores, when
    two workers cannot communicate, or when the study is already being run from this machine.
    """
    return _Runner(sweep, options, console).run()


def show_plan(sweep: StudyCells, options: RunOptions, *, console: Console | None = None) -> StudyResult:
    """Print what `run_sweep` would do, with launch lines and what would be submitted. Nothing runs."""
    runner, ledger = _Runner(sweep, options, console), ledgers.read_ledger(sweep)
    console, directory = console or Console(), sweep.directory
    _, here, there = runner._plan(ledger, table=True)
    for cell in {cell.label: cell for cell in here}.values():
        out, config = directory / cell.key, directory / "cells" / f"{cell.key}.yaml"
        line = options.launch(cell, config, out, site=runner._sites[cell.placement])
        show(console, f"# {cell.label}\n{shlex.join(line.argv)}\n")
    if there:
        submit_cells(sweep, there, console=console, dry_run=True)
    return StudyResult(ledger=ledger, planned_only=True)


def retry_cells(
    sweep: StudyCells, options: RunOptions, *, which: Sequence[str] = (), console: Console | None = None
) -> StudyResult:
    """Run the cells again that failed, timed out, were cancelled or pre-empted: those named in `which`, or all.

    How cells are named: `Ledger.select`.
    """
    console, ledger = console or Console(), ledgers.read_ledger(sweep)
    if keys := {entry.key for entry in ledger.select(AGAIN, which)}:
        return _Runner(sweep, replace(options, only=keys, retry=True), console).run()
    show(console, ledger.summary())
    show(console, f"nothing to run again: no cell is {', '.join(AGAIN)}")
    return StudyResult(ledger=ledger, submitted=bool(ledger.count("queued")))


def cancel_cells(sweep: StudyCells, *, which: Sequence[str] = (), console: Console | None = None) -> int:
    """End cells that run, with a checkpoint where they can write one, and take back those that wait for it.

    Those named (see `Ledger.select`), or all that run or wait, and then whoever runs the study on any host stops too.
    Whoever runs a cell is asked through a file, so this works from every host that sees the folder. Returns how many
    cells were cancelled.
    """
    console, directory, claims = console or Console(), sweep.directory, sweep.directory / leases.CLAIMS
    entries = ledgers.read_ledger(sweep).select(("running", "queued", *(ledgers.BY_ITSELF if which else ())), which)
    hosts = [] if which else [name for name in leases.generations(claims) if name.startswith(_HOST)]
    # Before its job hears of it, so that whoever runs the cell knows what it is about.
    for name in (*hosts, *(entry.key for entry in entries)):
        if (held_by := latest(claims, name)) is not None and held_by.released is None:
            held_by.ask_to_end()
    if (directory / JOBS).exists():
        cancel_jobs(directory, keys={entry.key for entry in entries} if which else None, console=console)
    asked: list[tuple[Entry, leases.Claim]] = []
    count = 0
    for entry in entries:
        try:
            out, why = directory.resolve() / entry.key, "cancelled while nobody ran it"
            if end_unattended(out, attempts.CANCELLED, why, what=entry.name, grace_s=GRACE_S)[1] == attempts.CANCELLED:
                count += 1
                show(console, f"cancelled: {entry.name}")
        except Held as held:
            held.claim.ask_to_end()
            asked.append((entry, held.claim))
    deadline = now() + GRACE_S + _ANSWER_S
    for entry, asked_of in asked:
        while (claim := leases.read_claim(claims, entry.key, asked_of.generation)) is None or claim.released is None:
            if now() >= deadline:
                show(console, f"asked to end: {entry.name}, run by {asked_of}, which has not answered yet")
                break
            sleep(_WAKE_S)
        else:
            show(console, f"{claim.state or attempts.INTERRUPTED}: {entry.name}")
            count += claim.state == attempts.CANCELLED
    return count


def end_unattended(out: Path, state: str, reason: str, *, what: str, grace_s: float) -> tuple[int, str]:
    """End what is left of a cell that nobody runs, and give back its claim; return how many processes, and as what.

    Held: somebody does run it, another host's runner or a job on this machine.
    """
    with acquire(out.parent / leases.CLAIMS, out.name, what=what) as lease:
        count, record = stop_marked(str(out), grace_s=grace_s), attempts.record_in(out)
        if record is not None and record.status == "done":
            state, reason = "done", ""
        lease.release(state, reason)
    return count, state


class _Runner:
    """Finds out what is to be done of a sweep, says so, and has it done."""

    def __init__(self, sweep: StudyCells, options: RunOptions, console: Console | None) -> None:
        self._sweep, self._options, self._console = sweep, options, console or Console()
        self._directory = sweep.directory
        self._sites: dict[Placement, Site] = {}  # where cells that run from here go

    def run(self) -> StudyResult:
        """Do it, and say at the end how all cells have fared."""
        sweep, options, console = self._sweep, self._options, self._console
        places = [each for each in sweep.partitions.values() if each.scheduler != "slurm"]
        names = {name for each in places for name in {host.name for host in each.hosts} or {platform.node()}}
        broken_off = ""
        with ExitStack() as stack:
            # Two runners of a study on one host would disturb each other's measurements.
            hosts = [f"{_HOST}{re.sub('[^A-Za-z0-9_-]', '_', name)}" for name in sorted(names)]
            claims = self._directory / leases.CLAIMS
            held = [stack.enter_context(acquire(claims, host, what="the study")) for host in hosts]
            if names:
                self._end_leftovers(names - {platform.node()})
            ledger = ledgers.read_ledger(sweep)
            if sweep.equal_steps and sweep.turns and ledgers.set_aside_part_blocks(ledger):
                ledger = ledgers.read_ledger(sweep)
            plan, here, there = self._plan(ledger)
            if not options.yes:
                self._ask_first(plan)
            planned = {entry.key: entry.state for entry in ledger.entries}
            stop = stack.enter_context(attempts.Interruption())
            if there:
                submit_cells(sweep, there, console=console, planned=planned)
            if here:
                how: dict[str, Any] = {"planned": planned, "held": held, "site_of": self._place, "options": options}
                grid, every = Grid(sweep=sweep, console=console, stop=stop, **how), len(ledger.entries)
                if options.smoke:
                    smoke_test(here, self._sites, grid)
                seconds, cores = options.watch_load_s, sorted(os.sched_getaffinity(0))
                watched = seconds > 0 and any(site.alone for site in self._sites.values())
                others = process.OtherPrograms(cores) if watched else None
                if others and (told := others.told(after_s=seconds)):
                    show(console, f"warning: {told}; times will not be those of a quiet machine")
                broken_off = grid.run(here, total=every, ended=every - len(here))
            waiting = len(places) < len(sweep.partitions)
            if waiting and options.wait:
                self._wait(stop)
            ledger, aimed = ledgers.read_ledger(sweep), sweep.precision is not None
            result = StudyResult(ledger=ledger, interrupted=stop.requested, submitted=waiting, aimed=aimed)
        _conclude(result, broken_off, options, console, told=plan.ledger.summary())
        return result

    def _plan(self, ledger: Ledger, *, table: bool = False) -> tuple[Plan, list[Cell], list[Cell]]:
        """Return what is to be done after saying so, with `table` at length; refuse what would fail in every cell.

        That is the plan, the cells that run from here and those for the batch system.
        """
        options, console, wanted = self._options, self._console, ledger
        if options.only is not None:
            wanted = replace(ledger, entries=tuple(entry for entry in ledger.entries if entry.key in options.only))
        past = ledgers.past_durations(self._directory)
        plan = plan_study(wanted, past=past, retry=options.retry)
        there = [cell for each in plan.allocations for cell in each.cells]
        here = list(plan.cells[: len(plan.cells) - len(there)])
        shared = self._refuse_sharing(here)
        self._sites = {each: self._place(cell) for each, cell in {cell.placement: cell for cell in here}.items()}
        if self._sweep.cells and (note := self._sweep.cells[0].config.workload.note):
            show(console, note)
        attempts.require_launchers(here, options.launch, self._sites)
        for line in (*(plan.lines() if table else [ledger.summary()]), *shared):
            show(console, line)
        if here and not self._sweep.part:
            show(console, f"order: one block per repeat, each shuffled with seed {self._sweep.seed}")
        if here:
            where = f"records in {self._directory}, output in {self._directory / 'logs'}"
            show(console, f"{len(here)} to run, {Estimate(past).left(here)}; {where}")
        return plan, here, there

    def _place(self, cell: Cell) -> Site:
        """Return where a cell goes; StudyError where there are too few hosts or slots."""
        # A port of its own where ranks of several hosts meet: that of the cell before may be in use.
        if (site := self._sites.get(cell.placement)) is None or not site.alone:
            partition = self._sweep.partition_of(cell)
            site = site_of(partition, cell.placement, oversubscribe=self._options.oversubscribe)
        return site

    def _refuse_sharing(self, cells: Sequence[Cell]) -> list[str]:
        """Refuse workers that would have to share cores or GPUs of this machine; when that is wanted, say so."""
        told: list[str] = []
        cores = available_cores() if self._options.cores is None else self._options.cores
        for cell in cells:
            partition, workers = self._sweep.partition_of(cell), cell.placement.workers
            offered, what = (partition.gpus_per_node, "GPU") if partition.gpus_per_node else (cores, "core")
            if partition.hosts or workers <= offered:
                continue
            text = f"{workers} workers, but this machine offers {plural(offered, what)}"
            if not self._options.oversubscribe:
                raise StudyError(
                    f"the study asks for {text}; lower sweep.workers, write `workers: cores` to use what is there, or "
                    f"measure how {what}s are shared with --oversubscribe"
                )
            told = [f"warning: up to {text}: their times measure how {what}s are shared, and the records say so"]
        return told

    def _ask_first(self, plan: Plan) -> None:
        """Ask before what exceeds the budget, or takes long without one; without a terminal that is refused."""
        console, told = self._console, f"over the budget: {'; '.join(plan.over)}" if plan.over else ""
        if not told and not self._sweep.budget and plan.seconds > 24 * 3600.0:
            told = f"{len(plan.cells)} cells take {duration(plan.seconds)}, one after the other"
        if not told:
            return
        shrink = "shrink the study (`run --plan` shows it)"
        answer, asked = "", sys.stdin.isatty() and console.is_terminal
        if asked:
            console.print(f"{told}\nrun it? [y/N] ", end="", markup=False, highlight=False)
            with suppress(EOFError):
                answer = console.input()
        refuse(
            "",
            (not asked, f"{told}; give --yes to run it all the same, or {shrink}"),
            (answer.strip().lower() not in ("y", "yes"), f"nothing was started; {shrink}, or raise its budget"),
            error=StudyError,
        )

    def _wait(self, stop: attempts.Interruption) -> None:
        """Come back when no cell waits or runs any more, and say when something has changed; Ctrl-C leaves the jobs."""
        told = ""
        while not stop.requested:
            ledger = ledgers.read_ledger(self._sweep)
            if not ledger.count("queued", "running"):
                return
            if (summary := ledger.summary()) != told:
                told = summary
                show(self._console, summary)
            until = now() + 15.0  # not to ask the batch system too often
            while now() < until and not stop.requested:
                sleep(_WAKE_S)

    def _end_leftovers(self, elsewhere: Collection[str]) -> None:
        """End processes of this study whose runner was killed: they would take the cores from what is measured now."""
        count, folder, grace_s = 0, self._directory.resolve(), self._options.grace_s
        for key in sorted(marked_below(folder)):
            if key.startswith("."):  # a smoke test's
                count += stop_marked(str(folder / key), grace_s=grace_s)
                continue
            with suppress(Held):
                out, why = folder / key, "its runner was killed"
                count += end_unattended(out, attempts.INTERRUPTED, why, what=key, grace_s=grace_s)[0]
        if elsewhere and any(not name.startswith(_HOST) for name in leases.generations(folder / leases.CLAIMS)):
            found, problem = stop_marked_on(sorted(elsewhere), str(folder), grace_s=grace_s)
            count += found
            if problem:
                show(self._console, f"warning: {problem}")
        if count:
            show(self._console, f"stopped what an interrupted run of this study left behind ({count} processes)")


def _conclude(result: StudyResult, broken_off: str, options: RunOptions, console: Console, *, told: str) -> None:
    """Print the state of the study, what failed, which cell was interrupted, and what to do next.

    `told`: what was said about it before; nothing is said twice.
    """
    ledger = result.ledger
    if ledger.summary() != told:
        show(console, ledger.summary())
    for entry in ledger.entries:
        text = f"{entry.state}: {entry.name}: {entry.reason}"
        if entry.state in ("failed", "timed out"):
            show(console, f"  {text}; see {ledgers.log_path(ledger.directory, entry.cell)}")
        elif entry.state in ("stopped", "cancelled", "pre-empted"):
            show(console, f"  {text}")
        elif entry.state == "running" and not result.submitted:
            show(console, f"  left alone: {entry.name} runs already ({entry.reason})")
    if result.interrupted:
        show(console, f"interrupted{broken_off and f' in {broken_off}'}; continue with: {options.command}")
    elif ledger.count(*AGAIN):
        retried = f"try the failed ones again with: {options.command}"
        show(console, retried if options.retry else "failed cells were left alone")
    elif ledger.count("stopped"):
        show(console, f"continue with: {options.command}")


@dataclass(kw_only=True)
class Grid:
    """Runs cells of `sweep`, and says on `console` how they fare."""

    sweep: StudyCells
    console: Console
    stop: attempts.Interruption
    options: RunOptions
    site_of: Callable[[Cell], Site] = lambda cell: HERE
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
        self._claims = self.directory / leases.CLAIMS
        self._estimate = Estimate(ledgers.past_durations(self.directory))
        self._notice_load = self.options.watch_load_s > 0  # warn once when others used the cores while a cell ran
        self._near_gpus = cache(process.cores_near_gpus)
        self._source = identify()
        self._aim = None if self.sweep.precision is None else Aim(self.sweep)

    def run(self, cells: Sequence[Cell], *, total: int | None = None, ended: int = 0) -> str:
        """Run `cells` in their order until all have ended or a stop is requested; return the one broken off, or "".

        A cell that somebody else holds is left alone, one that is done by now is not run again, one that was cancelled
        since it was `planned` is left out. `total` and `ended` count the cells of the whole study, for the display.
        StudyError: there is no room for the records.
        """
        if any(cell.identity for cell in cells):
            remember(self.directory, self.sweep.partitions.values())
        again = "make room there or choose another folder with --runs, and run the study again"
        with writing(self.directory, again, error=StudyError):
            (self.directory / "logs").mkdir(parents=True, exist_ok=True)
            self._began, self._ended, self._total = now(), ended, len(cells) if total is None else total
            # It is redrawn by no thread of its own: what it costs is taken from the cores that are measured.
            shown = self.console.is_terminal and not self.console.is_dumb_terminal
            self._live = Live(console=self.console, auto_refresh=False, transient=True) if shown else None
            with self._live or nullcontext():
                each_mb = worker_mb(self.directory) if self.sweep.turns else None
                for part in groups(self.sweep, cells, lambda cell: self.site_of(cell).alone, each_mb=each_mb):
                    needed = part.cells if self._aim is None else self._aim.look(self.sweep).needed(part.cells)
                    if needed and not self.stop.requested and part.block and sees_steps(self.sweep):
                        self._in_turns(needed, part.block)
                    elif needed and not self.stop.requested:
                        sweep([self._lane(sorted(needed, key=cells.index))], self.stop)
                if self._aim is not None and not self.stop.requested:
                    for line in self._aim.look(self.sweep).lines():
                        show(self.console, line)
        return self.broken_off

    def _in_turns(self, cells: Sequence[Cell], block: str) -> None:
        """Run cells that alternate, once more with those of an earlier launch of the same `block`."""
        launch = 1 + max((each.launch for each in read_turns(self.directory) if each.block == block), default=-1)
        asked = self.sweep
        asked_of = [(cell.config, name) for cell in cells for name in cell.config.workload.named(Role.PROBE)]
        usual = [(None, config.workload.options[name].default) for config, name in asked_of]
        probed = any(getattr(*each) not in values for each, values in zip(asked_of, usual, strict=True))
        how: dict[str, Any] = {"block": block, "launch": launch, "policy": self._aim or self.options.policy}
        how |= {"cores": sorted(os.sched_getaffinity(0)), "end_alone": probed}
        how |= facts(asked, "seed", "equal_steps", "least_steps")
        with Conductor([cell.key for cell in cells], **how) as conductor:
            sweep([self._lane([cell], conductor) for cell in cells], self.stop)
            loads = [each.other_load for each in conductor.slices if each.other_load is not None]
        if conductor.failure is not None:
            raise StudyError(f"turns of block {block}, launch {launch + 1}, have ended: {conductor.failure!r}")
        if loads and (used := median(loads)) >= BUSY_CORES:
            self._warn(f"other programs used {used:.1f} cores in half of the slices, or more")

    def _warn(self, text: str) -> None:
        if self._notice_load:
            self._notice_load = False
            show(self.console, f"warning: {text}")

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
                show(self.console, f"not begun: {cell.name} takes {duration(expected_s)}, which is more than is left")
                continue
            try:
                end = yield from self._turn(cell, cells[position:], conductor)
            finally:
                if conductor is not None:
                    conductor.ended(cell.key)
            if end is None:
                continue
            state, seconds = end
            if self.stop.requested and state in (self.stop.state, "stopped", attempts.CANCELLED):
                self.broken_off = cell.name
                return
            ahead = cells[position + 1 :]
            left = f"; {self._estimate.left(ahead)}" if ahead else ""
            self.after(cell)
            entry, self._ended = ledgers.read_entry(self.directory, cell), self._ended + 1
            told, log = duration(seconds), ledgers.log_path(self.directory, cell)
            told = told if entry.samples_per_s is None else f"{entry.samples_per_s:,.0f} samples/s, {told}"
            told = told if entry.state == "done" else f"{entry.reason} (after {told}; see {log})"
            show(self.console, f"[{self._ended}/{self._total}] {entry.state} {entry.name}: {told}{left}")

    def _turn(
        self, cell: Cell, ahead: Sequence[Cell], conductor: Conductor | None
    ) -> Generator[attempts.RankRun, Any, tuple[str, float] | None]:
        """Run one cell under its claim and release it with how it ended; return that, and how many seconds it took.

        None: it was not for us to run.
        """
        name, before = cell.name, latest(self._claims, cell.key)
        if before is not None and before.state == attempts.CANCELLED != self.planned.get(cell.key, attempts.CANCELLED):
            show(self.console, f"left out: {name} was cancelled")
            return None
        state, reason, seconds = attempts.INTERRUPTED, "", 0.0
        try:
            # A job that was killed could not give it back; Slurm is asked only where there is such a holder.
            ended = lambda number: JobBook(self.directory).has_ended(number)  # noqa: E731
            lease = acquire(self._claims, cell.key, what=name, ended=ended)
            try:
                watch = self._watch(name, lease, ahead, conductor)
                state, reason, seconds = yield from self._under_claim(cell, watch, conductor)
            except Held as held:  # somebody trains in its directory who is no runner
                reason = f"left to {held.claim}"
                raise
            finally:
                lease.release(state, reason)
        except Held as held:
            show(self.console, f"left alone: {name} is being run by {held.claim}")
            return None
        return state, seconds

    def _under_claim(self, cell: Cell, watch: attempts.Watch, conductor: Conductor | None) -> _Ended:
        """Run a cell whose claim is held, unless it has finished meanwhile, and write down how it ended."""
        out, site, options = self.directory.resolve() / cell.key, self.site_of(cell), self.options
        stop_marked(str(out), grace_s=options.grace_s)  # of an attempt whose runner was killed
        require_free(out)
        record = attempts.record_in(out)
        wrong = record is not None and ledgers.foreign(record, cell) != ""
        if record is not None and record.status == "done" and not wrong:
            return "done", "", 0.0
        # What is to make as many steps as its partners is run whole, beside them.
        resume = not wrong and not self.sweep.equal_steps and record is not None and ledgers.goes_on(record, out)
        if resume:
            ledgers.keep_log(self.directory, cell)
        else:
            ledgers.set_aside(self.directory, cell)
        own: Sequence[int] | None = None
        available, partition = sorted(os.sched_getaffinity(0)), self.sweep.partition_of(cell)
        if options.pin and site.alone:
            on_gpu = partition.gpus_per_node and vars(cell.config).get("device") != "cpu"
            place: dict[str, Any] = {
                "available": process.cores_in_order(available),
                "near": self._near_gpus() if on_gpu else (),
            }
            own = process.cell_cores(cell, cores_per_worker=partition.cores_per_worker, **place)
        noticed = self._notice_load and site.alone and conductor is None  # else each slice tells of it
        others = process.OtherPrograms(available) if noticed else None
        how: dict[str, Any] = {"config": self.directory / "cells" / f"{cell.key}.yaml", "launch": options.launch}
        how |= {"log": ledgers.log_path(self.directory, cell), "cores": own, "site": site}
        how |= {"resume": resume, "checkpoint": not self.sweep.equal_steps, "timeout_s": self.sweep.timeout_s}
        run = attempts.RankRun(cell=cell, out=out, grace_s=options.grace_s, watch=watch, **how)
        attempt: attempts.Attempt = yield run if conductor is None else conductor.with_turns(run, cell.key, self.stop)
        if attempt.unreached:
            show(self.console, f"warning: {attempt.unreached}")
        if attempt.state == attempts.TAKEN_OVER:  # the run directory is another's now
            return attempts.INTERRUPTED, attempt.reason, attempt.seconds
        state = f"{attempt.state}, resumed" if resume else attempt.state
        values = facts(attempt, "started", "seconds", "exit_code", "reason")
        ledgers.note_attempt(self.directory, cell, state=state, **values)
        if attempt.done and not resume:  # a part says nothing about a whole
            self._estimate.add(cell.runtime, cell.placement.workers, attempt.seconds)
        if attempt.done and conductor is not None:
            append_turns(self.directory, conductor.slices_of(cell.key))
        if attempt.done and others is not None and (told := others.told()):
            self._warn(f"{told} while that cell ran; its times are not those of a quiet machine")
        return attempt.state, attempt.reason, attempt.seconds

    def _watch(self, name: str, lease: Lease, ahead: Sequence[Cell], conductor: Conductor | None) -> attempts.Watch:
        """Return what looks at a running cell: it redraws the display, and ends what was cancelled or taken over."""
        checked, asked, drawn = now(), -math.inf, -math.inf

        def watch(running: attempts.Running) -> attempts.Verdict | None:
            nonlocal checked, asked, drawn
            shown = conductor is None or conductor.left()[:1] == [running.run.out.name]  # one line for all of them
            if self._live and shown and now() - drawn >= 1.0:
                drawn = now()
                what = name if conductor is None else f"{len(conductor.left())} in turns, round {conductor.rounds}"
                what += "" if self._aim is None else f", {self._aim.progress()}"
                left = self._estimate.left(ahead, running_s=running.seconds)
                text = f"{self._ended} of {self._total} ended, {duration(now() - self._began)}, {left}; running {what}"
                self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            if self.stop.requested or now() - asked >= 1.0:  # so soon a request to cancel is noticed
                asked = now()
                if any(each.claim.request.exists() for each in self.held):
                    self.stop.requested, self.stop.state = True, attempts.CANCELLED
                    return (attempts.CANCELLED, attempts.CANCELLED)
                if lease.claim.request.exists():
                    return (attempts.CANCELLED, attempts.CANCELLED)
            if now() - checked >= _CHECK_S:
                checked = now()
                if not lease.refresh():
                    return (attempts.TAKEN_OVER, _OTHERS)
            return None

        return watch


Design = Generator[StudyCells, Ledger, None]
"""Yields cells that are to be run next, and receives where these stand then."""


def follow(design: Design, how: RunOptions, console: Console) -> StudyResult | None:
    """Run what a design yields until it is at its end or a run is interrupted; None: there was nothing to run."""
    result: StudyResult | None = None
    with suppress(StopIteration):
        sweep = next(design)
        while not (result := run_sweep(sweep, how, console=console)).interrupted:
            sweep = design.send(result.ledger)
    return result


def run_all(sweep: StudyCells, how: RunOptions) -> list[Path]:
    """Run the cells of `sweep` that are not done and return all run directories; what is said goes to standard error.

    StudyError with the reason of the first run that fails, and KeyboardInterrupt after Ctrl-C.
    """
    result = run_sweep(sweep, how, console=Console(stderr=True))
    if result.interrupted:
        raise KeyboardInterrupt
    for each in result.ledger.entries:
        if each.state != "done":
            raise StudyError(f"{each.name}: {each.reason or each.state}; type the same again to go on")
    return [sweep.directory / cell.key for cell in sweep.cells]


_SMOKE = ".smoke"
LIMIT_S = 90.0
"""It takes about 10 s; a machine that is loaded or starts Python from a slow file server takes several times that."""
STEPS = 5


def smoke_test(cells: Sequence[Cell], sites: Mapping[Placement, Site], grid: Grid) -> None:
    """Train two workers for a few steps over each runtime of `cells` that has several, where they will run.

    Nothing is done for what has passed before. StudyError: they cannot.
    """
    folder, console, stop = grid.directory / _SMOKE, grid.console, grid.stop
    _refuse_unreachable(cells, sites)
    with writing(folder, "choose another folder with --runs", error=StudyError), suppress(KeyboardInterrupt):
        for cell, site in small_cells(cells, sites):
            foreign, names = cell.config.workload.starts_ranks, [host.name for host in site.hosts] or ["this machine"]
            told = f"2 workers on {names[0]}" if len(names) == 1 else f"1 worker each on {' and '.join(names)}"
            told = told if foreign else f"{cell.runtime}, {told}"
            name = "command" if foreign else cell.runtime.replace("/", "-")
            passed = folder / "-".join([name, cell.identity, *(host.name for host in site.hosts), "passed"])
            if passed.exists():
                continue
            show(console, f"smoke test: {told}")
            out = folder.resolve() / f"{name}-{utc_stamp()}"
            while out.exists():
                out = out.with_name(f"{out.name}+")
            how: dict[str, Any] = {"out": out, "config": folder / f"{out.name}.yaml", "log": folder / f"{out.name}.log"}
            how |= {"site": site, "launch": grid.options.launch, "grace_s": grid.options.grace_s}
            # Other trainings may read their data for minutes before the first step.
            limit_s = LIMIT_S if foreign or cell.config.workload.small is not None else 600.0
            ended = attempt(attempts.RankRun(cell=cell, timeout_s=limit_s, **how), stop)
            if ended.unreached:
                show(console, f"warning: {ended.unreached}")
            # A command of which no step is seen cannot be ended after some: that it does not fail so soon is enough.
            slow = foreign and ended.state == attempts.TIMED_OUT
            if not ended.done and not slow:
                reason = f"{ended.reason} ({ended.said})" if ended.state == attempts.TIMED_OUT else ended.reason
                there = f" --hosts {','.join(host.name for host in site.hosts)}" if not site.alone else ""
                there = f" --partition {cell.placement.partition}" if site.allocation else there
                told = f"smoke test of {told} failed: {reason}; see {ended.log} and `horovod-study doctor{there}`, "
                raise StudyError(f"{told}or start without this test (--no-smoke)")
            show(console, f"  {'no failure in' if slow else 'passed after'} {duration(ended.seconds)}")
            passed.touch()


def _refuse_unreachable(cells: Sequence[Cell], sites: Mapping[Placement, Site]) -> None:
    """Raise a StudyError when a host does not answer, also one that answered yesterday; launchers take long to say."""
    used = [site for cell in cells if not (site := sites[cell.placement]).allocation]
    hosts = {host.name: host for site in used for host in site.hosts}
    if not (away := other_hosts(list(hosts))):
        return
    with ThreadPoolExecutor(max_workers=min(len(away), 16)) as pool:
        answers = list(pool.map(lambda name: run_on(name, ("true",), timeout_s=15.0), away))
    if lost := {name: each.problem for name, each in zip(away, answers, strict=True) if each.problem}:
        why = "; ".join(map(": ".join, lost.items()))
        told = f"{len(lost)} of {len(hosts)} hosts cannot be used ({why}); nothing was started"
        raise StudyError(
            f"{told}: fix that (`horovod-study doctor --hosts {','.join(lost)}`), or leave them out (--hosts)"
        )


def _small_config(config: Configuration) -> Configuration:
    """Return a run of a few steps that communicates as `config` does; how well it learns does not matter here."""
    workload = config.workload
    values = dict(vars(config))
    if workload.small is None:
        values["warmup_steps"] = 0
    else:
        communication = workload.named(Role.RUNTIME | Role.COMMUNICATION)
        values = {**{name: values[name] for name in (*communication, "device")}, **workload.small}
    length = {**dict.fromkeys(workload.budgets), "steps": STEPS}
    return workload.configure({**values, **workload.quiet, **length, "study": "smoke", "partition": config.partition})


def small_cells(cells: Sequence[Cell], sites: Mapping[Placement, Site]) -> list[tuple[Cell, Site]]:
    """Return one cell of two workers for each runtime and partition among `cells` that has several, with its site.

    Where cells are spread over hosts, one worker goes to each of the first two.
    """
    found: dict[tuple[str, str, str], tuple[Cell, Site]] = {}
    # The cell with most hosts says most about whether workers can communicate with each other.
    for cell in sorted(cells, key=lambda each: -each.placement.nodes):
        placement, case = cell.placement, (cell.runtime, cell.placement.partition, cell.identity)
        if placement.workers == 1 or case in found:
            continue
        site, per_node = sites[placement], 1 if placement.nodes > 1 else 2
        hosts = tuple(Host(name=host.name, slots=per_node) for host in site.hosts[: 2 // per_node])
        small = Placement(partition=placement.partition, workers=2, workers_per_node=per_node)
        tried = replace(cell, config=_small_config(cell.config), placement=small, arm="", label="")
        found[case] = (tried, replace(site, hosts=hosts))
    return list(found.values())
