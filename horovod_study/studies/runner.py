"""Runs the missing cells of a study, here, over ssh, or as jobs of a batch system; retries and cancels them.

What is to be done is found and said first, with what would fail in every cell; `grid.py` runs the cells then.
"""

import os
import platform
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from horovod_study.cluster.jobs import JOBS
from horovod_study.cluster.partitions import Host
from horovod_study.cluster.pinning import cell_cores, cores_in_order, cores_near_gpus, other_load
from horovod_study.cluster.process import GRACE_S, marked_below, stop_marked
from horovod_study.cluster.remote import stop_marked_on
from horovod_study.cluster.site import Site, site_of
from horovod_study.config import Cell, Placement, available_cores
from horovod_study.errors import ConfigError, StudyError
from horovod_study.lease import CLAIMS, Claim, Held, acquire, generations, latest, read_claim
from horovod_study.measure.clock import now, sleep
from horovod_study.progress import duration
from horovod_study.studies.attempt import CANCELLED, Launcher, local_launch, record_in, require_launchers
from horovod_study.studies.estimate import Estimate
from horovod_study.studies.grid import CellPlaces, Grid, ask_to_end
from horovod_study.studies.interruption import INTERRUPTED, Interruption, exit_code
from horovod_study.studies.ledger import (
    BY_ITSELF,
    ON_RETRY,
    Entry,
    Ledger,
    can_resume,
    log_path,
    past_durations,
    read_ledger,
    set_aside_part_blocks,
)
from horovod_study.studies.plan import Plan, plan_study
from horovod_study.studies.progress import say
from horovod_study.studies.smoke import smoke_test
from horovod_study.studies.study_file import StudyConfig
from horovod_study.studies.submit import cancel_jobs, submit_cells
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import Policy, until_asked_for
from horovod_study.text.words import plural

AGAIN = (*ON_RETRY, "pre-empted")
"""States of cells that `retry` runs again."""
_WAKE_S = 0.25  # how soon Ctrl-C is noticed
_ANSWER_S = 30.0  # beyond the grace: how long `cancel` waits for whoever runs the cell
_NAMED = 24  # cells of a block that are named before it is run
_HOST = "host-"  # claims of those who run cells on a host, so that no two do


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
    launch: Launcher = local_launch
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
            return exit_code()
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
    return _Runner(sweep, options, console).show()


def retry_cells(
    sweep: StudyCells, options: RunOptions, *, which: Sequence[str] = (), console: Console | None = None
) -> StudyResult:
    """Run the cells again that failed, timed out, were cancelled or pre-empted: those named in `which`, or all.

    How cells are named: `Ledger.select`.
    """
    console, ledger = console or Console(), read_ledger(sweep)
    if keys := {entry.key for entry in ledger.select(AGAIN, which)}:
        return _Runner(sweep, replace(options, only=keys, retry=True), console).run()
    say(console, ledger.summary())
    say(console, f"nothing to run again: no cell is {', '.join(AGAIN)}")
    return StudyResult(ledger=ledger, submitted=bool(ledger.count("queued")))


def on_hosts(study: StudyConfig, hosts: Sequence[Host]) -> StudyConfig:
    """Return `study` with its workers on `hosts`, over ssh, in place of where its partitions have them."""
    slots = min(host.slots for host in hosts)
    partitions = {}
    for name, each in study.partitions.items():
        cores = max(each.cores_per_node, slots * each.cores_per_worker)
        there: dict[str, Any] = {"scheduler": "ssh", "hosts": tuple(hosts), "nodes": len(hosts)}
        partitions[name] = replace(each, **there, cores_per_node=cores)
    return replace(study, partitions=partitions)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts meant by `node1:2,node2:2` or `node1,node2` (one worker each)."""
    found = []
    for part in text.split(","):
        name, colon, slots = part.strip().partition(":")
        if not name or (colon and not slots.isdecimal()):
            raise ConfigError(
                f"--hosts: {part.strip()!r} is not a host; write NAME or NAME:WORKERS, separated by commas"
            )
        found.append(Host(name=name, slots=int(slots) if colon else 1))
    return tuple(found)


def cancel_cells(sweep: StudyCells, *, which: Sequence[str] = (), console: Console | None = None) -> int:
    """End cells that run, with a checkpoint where they can write one, and take back those that wait for it.

    Those named (see `Ledger.select`), or all that run or wait, and then whoever runs the study on any host stops too.
    Whoever runs a cell is asked through a file, so this works from every host that sees the folder. Returns how many
    cells were cancelled.
    """
    console, directory, claims = console or Console(), sweep.directory, sweep.directory / CLAIMS
    entries = read_ledger(sweep).select(("running", "queued", *(BY_ITSELF if which else ())), which)
    hosts = [] if which else [name for name in generations(claims) if name.startswith(_HOST)]
    # Before its job hears of it, so that whoever runs the cell knows what it is about.
    for name in (*hosts, *(entry.key for entry in entries)):
        if (held_by := latest(claims, name)) is not None and held_by.released is None:
            ask_to_end(directory, held_by)
    if (directory / JOBS).exists():
        cancel_jobs(directory, keys={entry.key for entry in entries} if which else None, console=console)
    asked: list[tuple[Entry, Claim]] = []
    count = 0
    for entry in entries:
        try:
            out, why = directory.resolve() / entry.key, "cancelled while nobody ran it"
            if _end_unattended(out, CANCELLED, why, what=entry.name, grace_s=GRACE_S)[1] == CANCELLED:
                count += 1
                say(console, f"cancelled: {entry.name}")
        except Held as held:
            ask_to_end(directory, held.claim)
            asked.append((entry, held.claim))
    deadline = now() + GRACE_S + _ANSWER_S
    for entry, asked_of in asked:
        while (claim := read_claim(claims, entry.key, asked_of.generation)) is None or claim.released is None:
            if now() >= deadline:
                say(console, f"asked to end: {entry.name}, run by {asked_of}, which has not answered yet")
                break
            sleep(_WAKE_S)
        else:
            say(console, f"{claim.state or INTERRUPTED}: {entry.name}")
            count += claim.state == CANCELLED
    return count


def _end_unattended(out: Path, state: str, reason: str, *, what: str, grace_s: float) -> tuple[int, str]:
    """End what is left of a cell that nobody runs, and give back its claim; return how many processes, and as what.

    Held: somebody does run it, another host's runner or a job on this machine.
    """
    with acquire(out.parent / CLAIMS, out.name, what=what) as lease:
        count, record = stop_marked(str(out), grace_s=grace_s), record_in(out)
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
            held = [stack.enter_context(acquire(self._directory / CLAIMS, host, what="the study")) for host in hosts]
            if names:
                self._end_leftovers(names - {platform.node()})
            ledger = read_ledger(sweep)
            if sweep.equal_steps and sweep.turns and set_aside_part_blocks(ledger):
                ledger = read_ledger(sweep)
            plan, here, there = self._plan(ledger)
            if not options.yes:
                self._ask_first(plan)
            planned = {entry.key: entry.state for entry in ledger.entries}
            stop = stack.enter_context(Interruption())
            if there:
                submit_cells(sweep, there, console=console, planned=planned)
            if here:
                started = self._places()
                if options.smoke:
                    smoke_test(here, sweep, started, self._sites, console=console, stop=stop)
                watched = options.watch_load_s > 0 and any(site.alone for site in self._sites.values())
                if watched and (told := other_load(sorted(os.sched_getaffinity(0)), seconds=options.watch_load_s)):
                    say(console, f"warning: {told}; times will not be those of a quiet machine")
                grid = Grid(sweep=sweep, console=console, stop=stop, places=started, planned=planned, held=held)
                grid.policy, every = options.policy, len(ledger.entries)
                broken_off = grid.run(here, total=every, ended=every - len(here))
            waiting = len(places) < len(sweep.partitions)
            if waiting and options.wait:
                self._wait(stop)
            ledger, aimed = read_ledger(sweep), sweep.precision is not None
            result = StudyResult(ledger=ledger, interrupted=stop.requested, submitted=waiting, aimed=aimed)
        _conclude(result, broken_off, options, console, told=plan.ledger.summary())
        return result

    def show(self) -> StudyResult:
        """Print what `run` would do."""
        ledger, console = read_ledger(self._sweep), self._console
        _, here, there = self._plan(ledger, table=True)
        for cell in {cell.label: cell for cell in here}.values():
            out, config = self._directory / cell.key, self._directory / "cells" / f"{cell.key}.yaml"
            line = self._options.launch(cell, config, out, site=self._sites[cell.placement])
            say(console, f"# {cell.label}\n{shlex.join(line.argv)}\n")
        if there:
            submit_cells(self._sweep, there, console=console, dry_run=True)
        return StudyResult(ledger=ledger, planned_only=True)

    def _site(self, placement: Placement) -> Site:
        """Return where a placement goes; StudyError where there are too few hosts or slots."""
        partition = self._sweep.partitions[placement.partition]
        return site_of(partition, placement, oversubscribe=self._options.oversubscribe)

    def _plan(self, ledger: Ledger, *, table: bool = False) -> tuple[Plan, list[Cell], list[Cell]]:
        """Return what is to be done after saying so, with `table` at length; refuse what would fail in every cell.

        That is the plan, the cells that run from here and those for the batch system.
        """
        options, console, wanted = self._options, self._console, ledger
        if options.only is not None:
            wanted = replace(ledger, entries=tuple(entry for entry in ledger.entries if entry.key in options.only))
        past = past_durations(self._directory)
        plan = plan_study(wanted, past=past, retry=options.retry)
        there = [cell for each in plan.allocations for cell in each.cells]
        here = list(plan.cells[: len(plan.cells) - len(there)])
        shared = self._refuse_sharing(here)
        self._sites = {each: self._site(each) for each in dict.fromkeys(cell.placement for cell in here)}
        if self._sweep.cells and (note := self._sweep.cells[0].config.workload.note):
            say(console, note)
        require_launchers(here, options.launch, self._sites)
        for line in (*(plan.lines() if table else [ledger.summary()]), *shared):
            say(console, line)
        if here:
            self._report(ledger, here, Estimate(past))
        return plan, here, there

    def _places(self) -> CellPlaces:
        """Return where the cells run, and how they are started."""
        available, near_gpus = cores_in_order(sorted(os.sched_getaffinity(0))), cache(cores_near_gpus)

        def place(cell: Cell) -> Site:
            # A port of its own where ranks of several hosts meet: that of the cell before may be in use.
            site = self._sites[cell.placement]
            return site if site.alone else self._site(cell.placement)

        def cores(cell: Cell) -> tuple[int, ...] | None:
            if not self._options.pin or not self._sites[cell.placement].alone:
                return None
            partition = self._sweep.partition_of(cell)
            on_gpu = partition.gpus_per_node and cell.config.to_dict().get("device") != "cpu"
            near = near_gpus() if on_gpu else ()
            return cell_cores(cell, cores_per_worker=partition.cores_per_worker, available=available, near=near)

        return CellPlaces(
            launch=self._options.launch,
            site_of=place,
            cores_of=cores,
            grace_s=self._options.grace_s,
            notice_load=self._options.watch_load_s > 0,
        )

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

    def _report(self, ledger: Ledger, here: Sequence[Cell], estimate: Estimate) -> None:
        """Say what is to be run from here, in its order."""
        console, directory = self._console, self._directory
        if not self._sweep.part:
            say(console, f"order: one block per repeat, each shuffled with seed {self._sweep.seed}")
        for repeat, block in groupby(here, key=lambda cell: cell.config.repeat):
            names = [cell.label for cell in block]
            more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            say(console, f"  repeat {repeat + 1}: {'; '.join(names[:_NAMED])}{more}")
        todo = {cell.key for cell in here}
        resumed = [entry.name for entry in ledger.entries if entry.key in todo and can_resume(entry, directory)]
        if resumed and not self._sweep.equal_steps:
            say(console, f"  resumed from a checkpoint: {'; '.join(resumed)}")
        say(
            console,
            f"{len(here)} to run, {estimate.left(here)}; records in {directory}, output in {directory / 'logs'}",
        )

    def _ask_first(self, plan: Plan) -> None:
        """Ask before what exceeds the budget, or takes long without one; without a terminal that is refused."""
        console, told = self._console, f"over the budget: {'; '.join(plan.over)}" if plan.over else ""
        if not told and not self._sweep.budget and plan.seconds > 24 * 3600.0:
            told = f"{len(plan.cells)} cells take {duration(plan.seconds)}, one after the other"
        if not told:
            return
        if not (sys.stdin.isatty() and console.is_terminal):
            raise StudyError(f"{told}; give --yes to run it all the same, or shrink the study (`run --plan` shows it)")
        console.print(f"{told}\nrun it? [y/N] ", end="", markup=False, highlight=False)
        answer = ""
        with suppress(EOFError):
            answer = console.input()
        if answer.strip().lower() not in ("y", "yes"):
            raise StudyError("nothing was started; shrink the study (`run --plan` shows it), or raise its budget")

    def _wait(self, stop: Interruption) -> None:
        """Come back when no cell waits or runs any more, and say when something has changed; Ctrl-C leaves the jobs."""
        told = ""
        while not stop.requested:
            ledger = read_ledger(self._sweep)
            if not ledger.count("queued", "running"):
                return
            if (summary := ledger.summary()) != told:
                told = summary
                say(self._console, summary)
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
                count += _end_unattended(out, INTERRUPTED, why, what=key, grace_s=grace_s)[0]
        if elsewhere and any(not name.startswith(_HOST) for name in generations(folder / CLAIMS)):
            found, problem = stop_marked_on(sorted(elsewhere), str(folder), grace_s=grace_s)
            count += found
            if problem:
                say(self._console, f"warning: {problem}")
        if count:
            say(self._console, f"stopped what an interrupted run of this study left behind ({count} processes)")


def _conclude(result: StudyResult, broken_off: str, options: RunOptions, console: Console, *, told: str) -> None:
    """Print the state of the study, what failed, which cell was interrupted, and what to do next.

    `told`: what was said about it before; nothing is said twice.
    """
    ledger = result.ledger
    if ledger.summary() != told:
        say(console, ledger.summary())
    for entry in ledger.entries:
        text = f"{entry.state}: {entry.name}: {entry.reason}"
        if entry.state in ("failed", "timed out"):
            say(console, f"  {text}; see {log_path(ledger.directory, entry.cell)}")
        elif entry.state in ("stopped", "cancelled", "pre-empted"):
            say(console, f"  {text}")
        elif entry.state == "running" and not result.submitted:
            say(console, f"  left alone: {entry.name} runs already ({entry.reason})")
    if result.interrupted:
        say(console, f"interrupted{broken_off and f' in {broken_off}'}; continue with: {options.command}")
    elif ledger.count(*AGAIN):
        retried = f"try the failed ones again with: {options.command}"
        say(console, retried if options.retry else "failed cells were left alone")
    elif ledger.count("stopped"):
        say(console, f"continue with: {options.command}")
