"""Runs the missing cells of a study, here, over ssh, or as jobs of a batch system; retries and cancels them.

What is to be done is found and said first, with what would fail in every cell; `grid.py` runs the cells then.
"""

import os
import platform
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

from rich.console import Console

from horovod_study.cluster.jobs import JOBS, JobBook
from horovod_study.cluster.partitions import Host
from horovod_study.cluster.pinning import cell_cores, cores_in_order, cores_near_gpus, other_load
from horovod_study.cluster.process import GRACE_S, marked_below, stop_marked
from horovod_study.cluster.remote import stop_marked_on
from horovod_study.cluster.site import Site, site_of
from horovod_study.config import Cell, Placement, available_cores
from horovod_study.errors import ConfigError, StudyError
from horovod_study.lease import CLAIMS, Claim, Held, Lease, acquire, generations, latest, read_claim
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
)
from horovod_study.studies.plan import Plan, plan_study
from horovod_study.studies.progress import say
from horovod_study.studies.smoke import smoke_test
from horovod_study.studies.study_file import StudyConfig
from horovod_study.studies.submit import cancel_jobs, submit_study
from horovod_study.text.words import plural

AGAIN = (*ON_RETRY, "pre-empted")
"""States of cells that `retry` runs again."""
_WAKE_S = 0.25  # how soon Ctrl-C is noticed
_ANSWER_S = 30.0  # beyond the grace: how long `cancel` waits for whoever runs the cell
_NAMED = 24  # cells of a block that are named before it is run
_HOST = "host-"  # claims of those who run cells on a host, so that no two do
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


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
    grace_s: float = GRACE_S  # for launchers and workers, to end by themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """How `run_study` ended."""

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
        counted: tuple[str, ...] = ("done", "queued", "running") if self.submitted else ("done",)
        counted += ("missing",) if self.aimed else ()
        well = sum(self.ledger.count(state) for state in counted)
        return 0 if self.planned_only or well == len(self.ledger.entries) else 1


# ---------------------------------------------------------------------------------------------------- a study


def run_study(
    study: StudyConfig, runs_dir: Path, options: RunOptions, *, console: Console | None = None
) -> StudyResult:
    """Run the cells of `study` that are not done, in randomised blocks, and say on `console` how they fare.

    Cells of Slurm partitions are submitted, those of others run from here one after the other, while the jobs wait.
    Raises StudyError, before a cell starts, when a launcher is missing, when workers would have to share cores, when
    two workers cannot communicate, or when the study is already being run from this machine.
    """
    console = console or Console()
    directory = runs_dir / study.name
    places = [each for each in study.partitions.values() if each.scheduler != "slurm"]
    names = {name for each in places for name in {host.name for host in each.hosts} or {platform.node()}}
    broken_off = ""
    with ExitStack() as stack:
        # Two runners of a study on one host would disturb each other's measurements.
        hosts = [f"{_HOST}{_UNSAFE.sub('_', name)}" for name in sorted(names)]
        held = [stack.enter_context(acquire(directory / CLAIMS, host, what="the study")) for host in hosts]
        if names:
            _end_leftovers(directory, names - {platform.node()}, options.grace_s, console)
        ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
        plan, here, there, sites = _plan(study, ledger, options, console)
        if not options.yes:
            _ask_first(plan, console)
        planned = {entry.key: entry.state for entry in ledger.entries}
        stop = stack.enter_context(Interruption())
        if there:
            submit_study(study, there, directory, console=console, planned=planned)
        if here:
            started = _places(study, sites, options)
            if options.smoke:
                smoke_test(here, directory, started, sites, study.partitions, console=console, stop=stop)
            watched = options.watch_load_s > 0 and any(site.alone for site in sites.values())
            if watched and (told := other_load(sorted(os.sched_getaffinity(0)), seconds=options.watch_load_s)):
                say(console, f"warning: {told}; times will not be those of a quiet machine")
            grid = Grid(
                study=study, directory=directory, console=console, stop=stop, places=started, planned=planned, held=held
            )
            broken_off = grid.run(here, total=len(ledger.entries), ended=len(ledger.entries) - len(here))
        waiting = any(each.scheduler == "slurm" for each in study.partitions.values())
        if waiting and options.wait:
            _wait(study, runs_dir, stop, console)
        ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
        result = StudyResult(
            ledger=ledger, interrupted=stop.requested, submitted=waiting, aimed=study.precision is not None
        )
    _conclude(result, broken_off, options, console, told=plan.ledger.summary())
    return result


def show_plan(
    study: StudyConfig, runs_dir: Path, options: RunOptions, *, console: Console | None = None
) -> StudyResult:
    """Print what `run_study` would do, with launch lines and what would be submitted. Nothing runs."""
    console = console or Console()
    directory = runs_dir / study.name
    ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
    _, here, there, sites = _plan(study, ledger, options, console, table=True)
    for cell in {study.label(cell): cell for cell in here}.values():
        out, config = directory / cell.key, directory / "cells" / f"{cell.key}.yaml"
        line = options.launch(cell, config, out, site=sites[cell.placement])
        say(console, f"# {study.label(cell)}\n{shlex.join(line.argv)}\n")
    if there:
        submit_study(study, there, directory, console=console, dry_run=True)
    return StudyResult(ledger=ledger, planned_only=True)


def on_hosts(study: StudyConfig, hosts: Sequence[Host]) -> StudyConfig:
    """Return `study` with its workers on `hosts`, over ssh, in place of where its partitions have them."""
    slots = min(host.slots for host in hosts)
    partitions = {
        name: replace(
            partition,
            scheduler="ssh",
            hosts=tuple(hosts),
            nodes=len(hosts),
            cores_per_node=max(partition.cores_per_node, slots * partition.cores_per_worker),
        )
        for name, partition in study.partitions.items()
    }
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


def retry_cells(
    study: StudyConfig,
    runs_dir: Path,
    options: RunOptions,
    *,
    which: Sequence[str] = (),
    console: Console | None = None,
) -> StudyResult:
    """Run the cells again that failed, timed out, were cancelled or pre-empted: those named in `which`, or all.

    How cells are named: `Ledger.select`.
    """
    console = console or Console()
    ledger = read_ledger(study, runs_dir, jobs=JobBook(runs_dir / study.name))
    keys = {entry.key for entry in ledger.select(AGAIN, which)}
    if not keys:
        say(console, ledger.summary())
        say(console, f"nothing to run again: no cell is {', '.join(AGAIN)}")
        return StudyResult(ledger=ledger, submitted=bool(ledger.count("queued")))
    return run_study(study, runs_dir, replace(options, only=keys, retry=True), console=console)


def cancel_cells(
    study: StudyConfig, runs_dir: Path, *, which: Sequence[str] = (), console: Console | None = None
) -> int:
    """End cells that run, with a checkpoint where they can write one, and take back those that wait for it.

    Those named (see `Ledger.select`), or all that run or wait, and then whoever runs the study on any host stops too.
    Whoever runs a cell is asked through a file, so this works from every host that sees the folder. Returns how many
    cells were cancelled.
    """
    console = console or Console()
    directory = runs_dir / study.name
    claims = directory / CLAIMS
    ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
    entries = ledger.select(("running", "queued", *(BY_ITSELF if which else ())), which)
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
            with acquire(claims, entry.key, what=entry.name) as lease:
                out = directory.resolve() / entry.key
                stop_marked(str(out), grace_s=GRACE_S)
                if not _release(lease, out, CANCELLED, "cancelled while nobody ran it"):
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


def _release(lease: Lease, out: Path, state: str, reason: str) -> bool:
    """Give back the claim on a cell that nobody runs, as `state` unless it is done; return whether it is."""
    record = record_in(out)
    done = record is not None and record.status == "done"
    lease.release("done" if done else state, "" if done else reason)
    return done


# ---------------------------------------------------------------------------------------------------- before a sweep


def _plan(
    study: StudyConfig, ledger: Ledger, options: RunOptions, console: Console, *, table: bool = False
) -> tuple[Plan, list[Cell], list[Cell], dict[Placement, Site]]:
    """Return what is to be done after saying so, with `table` at length; refuse what would fail in every cell.

    That is the plan, the cells that run from here and those for the batch system, and where the former go.
    """
    wanted = ledger
    if options.only is not None:
        wanted = replace(ledger, entries=tuple(entry for entry in ledger.entries if entry.key in options.only))
    plan = plan_study(study, wanted, past=past_durations(ledger.directory), retry=options.retry)
    there = [cell for cell in plan.cells if study.partitions[cell.placement.partition].scheduler == "slurm"]
    here = [cell for cell in plan.cells if study.partitions[cell.placement.partition].scheduler != "slurm"]
    cores = available_cores() if options.cores is None else options.cores
    shared = _refuse_sharing(study, here, cores, options.oversubscribe)
    sites = {
        cell.placement: _site(study, cell.placement, options)
        for cell in {cell.placement: cell for cell in here}.values()
    }
    if study.workload.note:
        say(console, study.workload.note)
    require_launchers(here, options.launch, sites)
    for line in plan.lines() if table else [ledger.summary()]:
        say(console, line)
    if shared:
        say(console, shared)
    _report(study, ledger, here, console)
    return plan, here, there, sites


def _site(study: StudyConfig, placement: Placement, options: RunOptions) -> Site:
    """Return where a placement goes; StudyError where there are too few hosts or slots."""
    return site_of(study.partitions[placement.partition], placement, oversubscribe=options.oversubscribe)


def _places(study: StudyConfig, sites: Mapping[Placement, Site], options: RunOptions) -> CellPlaces:
    """Return where the cells run, and how they are started."""
    available = cores_in_order(sorted(os.sched_getaffinity(0)))
    near_gpus = cache(cores_near_gpus)

    def place(cell: Cell) -> Site:
        # A port of its own where ranks of several hosts meet: that of the cell before may be in use.
        site = sites[cell.placement]
        return site if site.alone else _site(study, cell.placement, options)

    def cores(cell: Cell) -> tuple[int, ...] | None:
        if not options.pin or not sites[cell.placement].alone:
            return None
        partition = study.partitions[cell.placement.partition]
        on_gpu = partition.gpus_per_node and cell.config.to_dict().get("device") != "cpu"
        near = near_gpus() if on_gpu else ()
        return cell_cores(cell, cores_per_worker=partition.cores_per_worker, available=available, near=near)

    return CellPlaces(
        launch=options.launch,
        site_of=place,
        cores_of=cores,
        grace_s=options.grace_s,
        notice_load=options.watch_load_s > 0,
    )


def _refuse_sharing(study: StudyConfig, cells: Sequence[Cell], cores: int, oversubscribe: bool) -> str:
    """Refuse workers that would have to share cores or GPUs of this machine; when that is wanted, say so."""
    told = ""
    for cell in cells:
        partition, workers = study.partitions[cell.placement.partition], cell.placement.workers
        if partition.hosts:
            continue
        offered, what = (partition.gpus_per_node, "GPU") if partition.gpus_per_node else (cores, "core")
        if workers > offered:
            text = f"{workers} workers, but this machine offers {plural(offered, what)}"
            if not oversubscribe:
                raise StudyError(
                    f"the study asks for {text}; lower sweep.workers, write `workers: cores` to use what is there, or "
                    f"measure how {what}s are shared with --oversubscribe"
                )
            told = f"warning: up to {text}: their times measure how {what}s are shared, and the records say so"
    return told


def _report(study: StudyConfig, ledger: Ledger, here: Sequence[Cell], console: Console) -> None:
    """Say what is to be run from here, in its order."""
    if not here:
        return
    say(console, f"order: one block per repeat, each shuffled with seed {study.seed}")
    for _, block in groupby(here, key=lambda cell: cell.config.repeat):
        first, *others = block
        names = [study.name_of(cell).rpartition(", ")[0] for cell in (first, *others)]
        more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        say(console, f"  repeat {first.config.repeat + 1}: {'; '.join(names[:_NAMED])}{more}")
    todo = {cell.key for cell in here}
    resumed = [entry.name for entry in ledger.entries if entry.key in todo and can_resume(entry, ledger.directory)]
    if resumed:
        say(console, f"  resumed from a checkpoint: {'; '.join(resumed)}")
    left = Estimate(past_durations(ledger.directory)).left(here)
    say(console, f"{len(here)} to run, {left}; records in {ledger.directory}, output in {ledger.directory / 'logs'}")


def _ask_first(plan: Plan, console: Console) -> None:
    """Ask before what exceeds the budget, or takes long without one; without a terminal that is refused."""
    budget = plan.study.budget
    given = any(each is not None for each in (budget.gpu_hours, budget.core_hours, budget.hours))
    told = f"over the budget: {'; '.join(plan.over)}" if plan.over else ""
    if not told and not given and plan.seconds > 24 * 3600.0:
        told = f"{len(plan.cells)} cells take {duration(plan.seconds)}, one after the other"
    if not told:
        return
    if not (sys.stdin.isatty() and console.is_terminal):
        raise StudyError(f"{told}; give --yes to run it all the same, or shrink the study (`run --plan` shows it)")
    console.print(f"{told}\nrun it? [y/N] ", end="", markup=False, highlight=False)
    try:
        answer = console.input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise StudyError("nothing was started; shrink the study (`run --plan` shows it), or raise its budget")


def _wait(study: StudyConfig, runs_dir: Path, stop: Interruption, console: Console) -> None:
    """Come back when no cell waits or runs any more, and say when something has changed; Ctrl-C leaves the jobs be."""
    told = ""
    while not stop.requested:
        ledger = read_ledger(study, runs_dir, jobs=JobBook(runs_dir / study.name))
        if not ledger.count("queued", "running"):
            return
        if (summary := ledger.summary()) != told:
            told = summary
            say(console, summary)
        until = now() + 15.0  # not to ask the batch system too often
        while now() < until and not stop.requested:
            sleep(_WAKE_S)


def _end_leftovers(directory: Path, elsewhere: Collection[str], grace_s: float, console: Console) -> None:
    """End processes of this study whose runner was killed: they would take the cores from what is measured now."""
    count = 0
    for key in sorted(marked_below(directory.resolve())):
        marker = str(directory.resolve() / key)
        if key.startswith("."):  # a smoke test's
            count += stop_marked(marker, grace_s=grace_s)
            continue
        try:
            lease = acquire(directory / CLAIMS, key, what=key)
        except Held:  # another host's runner, or a job on this machine, looks after them
            continue
        with lease:
            count += stop_marked(marker, grace_s=grace_s)
            _release(lease, directory / key, INTERRUPTED, "its runner was killed")
    begun = any(not name.startswith(_HOST) for name in generations(directory / CLAIMS))
    if elsewhere and begun:
        found, problem = stop_marked_on(sorted(elsewhere), str(directory.resolve()), grace_s=grace_s)
        count += found
        if problem:
            say(console, f"warning: {problem}")
    if count:
        say(console, f"stopped what an interrupted run of this study left behind ({count} processes)")


# ---------------------------------------------------------------------------------------------------- after a sweep


def _conclude(result: StudyResult, broken_off: str, options: RunOptions, console: Console, *, told: str) -> None:
    """Print the state of the study, what failed, which cell was interrupted, and what to do next.

    `told`: what was said about it before; nothing is said twice.
    """
    ledger = result.ledger
    if ledger.summary() != told:
        say(console, ledger.summary())
    for entry in ledger.entries:
        if entry.state in ("failed", "timed out"):
            say(console, f"  {entry.state}: {entry.name}: {entry.reason}; see {log_path(ledger.directory, entry.cell)}")
        elif entry.state in ("stopped", "cancelled", "pre-empted"):
            say(console, f"  {entry.state}: {entry.name}: {entry.reason}")
        elif entry.state == "running" and not result.submitted:
            say(console, f"  left alone: {entry.name} runs already ({entry.reason})")
    again = sum(ledger.count(state) for state in AGAIN)
    if result.interrupted:
        say(console, f"interrupted{broken_off and f' in {broken_off}'}; continue with: {options.command}")
    elif again:
        say(
            console,
            f"try the failed ones again with: {options.command}" if options.retry else "failed cells were left alone",
        )
    elif ledger.count("stopped"):
        say(console, f"continue with: {options.command}")
