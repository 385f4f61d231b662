"""Runs the missing cells of a study and records what went wrong; here, over ssh, or inside a job of a batch system.

A cell is one `python -m horovod_study.train` under its launcher. Who runs it holds its claim (lease.py), so that no
cell ever runs twice, and releases the claim with how the cell ended. Whatever happens to it, its run directory tells:
where the trainer could not finish the record (killed, launcher error, never started) the runner writes the reason into
it. What is killed together with the runner is found by the next one: its claim is stale, what is left of its processes
is ended, and it is run again unless it has finished meanwhile.
"""

import ipaddress
import math
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import yaml
from rich.console import Console

from horovod_study.cluster.estimate import Estimate, TimeLeft, duration
from horovod_study.cluster.identity import identify, remember
from horovod_study.cluster.jobs import JOBS, JobBook
from horovod_study.cluster.launch import LaunchLine, launch_line
from horovod_study.cluster.ledger import (
    BY_ITSELF,
    ON_RETRY,
    Entry,
    Ledger,
    can_resume,
    cell_name,
    foreign,
    keep_log,
    log_path,
    note_attempt,
    past_durations,
    read_entry,
    read_ledger,
    require_free,
    set_aside,
)
from horovod_study.cluster.partitions import Partition
from horovod_study.cluster.pinning import OtherPrograms, cell_cores, cores_in_order, disturbance, other_load
from horovod_study.cluster.plan import Plan, plan_study
from horovod_study.cluster.process import GRACE_S, CellProcess, marked_below, stop_marked
from horovod_study.cluster.progress import Display, say
from horovod_study.cluster.reason import failure_reason, is_follow_on, told_to_end
from horovod_study.cluster.remote import run_on, stop_marked_on
from horovod_study.cluster.site import HERE, Host, Site, site_of
from horovod_study.cluster.slurm import cancel_jobs, submit_study
from horovod_study.cluster.study_file import StudyConfig
from horovod_study.config import Cell, Placement, available_cores
from horovod_study.errors import ConfigError, StudyError
from horovod_study.files import not_written, write_file
from horovod_study.lease import CLAIMS, Claim, Held, Lease, acquire, end_run_claim, generations, latest, read_claim
from horovod_study.measure.clock import now, sleep, utc_now
from horovod_study.records import (
    MANIFEST,
    RunRecord,
    checkpoint_paths,
    checkpoint_step,
    create_run,
    finish_run,
    read_run,
    resume_run,
)

INTERRUPTED = "interrupted"
CANCELLED = "cancelled"
AGAIN = (*ON_RETRY, "pre-empted")
"""States of cells that `retry` runs again."""
_LOST = "lost"
_REQUESTS = ".requests"
_WAKE_S = 0.25  # how soon Ctrl-C and the time limit are noticed
_REQUEST_S = 1.0  # how soon a wish to cancel is noticed
_LAUNCHER_S = 5.0  # a launcher may take to end, once the record says why the cell failed
_CHECK_S = 10.0  # how soon it is noticed that somebody else has taken the claim over
_ASK_S = 10.0  # for a command on another host
_ANSWER_S = 30.0  # beyond the grace: how long `cancel` waits for whoever runs the cell
_WAIT_S = 15.0  # between two questions to a batch system
_NAMED = 24  # cells of a block that are named before it is run
LARGE_S = 24 * 3600.0
"""A study without a budget that takes longer is asked about first."""
_HOST = "host-"  # claims of those who run cells on a host, so that no two do
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_REDRAW_S = 1.0
_LOG_TAIL_BYTES = 200_000


class Launcher(Protocol):
    """Says how to start a cell."""

    def __call__(self, cell: Cell, config: Path, out: Path, *, resume: bool = False, site: Site = HERE) -> LaunchLine:
        """Return how to start `cell` at `site`, given its configuration file and run directory, or to resume it."""


def local_launch(cell: Cell, config: Path, out: Path, *, resume: bool = False, site: Site = HERE) -> LaunchLine:
    """Return how to start `cell` from this machine with the Python that runs this program."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    python = Path(sys.executable)
    return launch_line(
        cell, python=python, config=config, out=out, environ=os.environ, root=root, resume=resume, site=site
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """How `run_study` ended."""

    ledger: Ledger
    interrupted: bool = False
    planned_only: bool = False
    submitted: bool = False  # some of its cells are for a batch system

    @property
    def exit_code(self) -> int:
        """0 when all cells are done, or wait in a batch system, or only the plan was wanted; 1 when some are not.

        130 after Ctrl-C.
        """
        if self.interrupted:
            return 130
        counted = ("done", "queued", "running") if self.submitted else ("done",)
        well = sum(self.ledger.count(state) for state in counted)
        return 0 if self.planned_only or well == len(self.ledger.entries) else 1


class StopRequest:
    """Remembers the first Ctrl-C, SIGTERM or lost terminal, for a good moment to act on; a second one breaks off."""

    def __init__(self, state: str = INTERRUPTED) -> None:
        """`state`: what the attempt that is broken off is called, such as "pre-empted"."""
        self.requested = False
        self.state = state

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
        heeded = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]  # nohup means it
        self._previous = {number: signal.signal(number, self._remember) for number in heeded}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


# ---------------------------------------------------------------------------------------------------- a study


def run_study(
    study: StudyConfig,
    runs_dir: Path,
    *,
    command: str,
    only_plan: bool = False,
    retry: bool = True,
    only: Collection[str] | None = None,
    console: Console | None = None,
    launch: Launcher = local_launch,
    cores: int | None = None,
    grace_s: float = GRACE_S,
    yes: bool = False,
    oversubscribe: bool = False,
    smoke: bool = True,
    pin: bool = True,
    wait: bool = False,
    dry_run: bool = False,
    hosts: Sequence[Host] = (),
    watch_load_s: float = 1.0,
) -> StudyResult:
    """Run the cells of `study` that are not done, in randomised blocks, and say on `console` how they fare.

    Cells of Slurm partitions are submitted, those of others run from here one after the other, while the jobs wait.
    `command` is what the user typed; it is repeated where typing it again continues. With `only_plan` the plan is
    printed and nothing runs; `dry_run` prints also what would be submitted. Without `retry` failed cells are left
    alone; `only` names the keys of the cells to run. `hosts` take the place of the partitions' own. `yes`: do not ask
    when the plan is large; `oversubscribe`: let workers share cores; `smoke`: try two workers first; `pin`: keep each
    cell to its cores; `wait`: come back when the jobs have ended. `watch_load_s`: how long other programs are watched
    before the first cell, 0 for neither then nor later.

    Raises StudyError, before a cell starts, when a launcher is missing, when workers would have
    to share cores, when two workers cannot talk, or when the study is already being run from this machine.
    """
    console = console or Console()
    cores = available_cores() if cores is None else cores
    study = on_hosts(study, hosts) if hosts else study
    directory = runs_dir / study.name
    work = _Sweep(study, directory, launch, cores, retry, only, oversubscribe, console)
    if only_plan or dry_run:
        ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
        plan = work.plan(ledger, table=True)
        if dry_run and plan.there:
            submit_study(study, plan.there, directory, console=console, dry_run=True)
        return StudyResult(ledger=ledger, planned_only=True)
    names = {name for each in study.partitions.values() for name in _hosts(each)}
    broken_off = ""
    with ExitStack() as stack:
        held = _hold_hosts(stack, directory, names)
        if names:
            _end_leftovers(directory, names - {platform.node()}, grace_s, console)
        ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
        plan = work.plan(ledger)
        if not yes:
            _ask_first(plan.plan, console)
        planned = {entry.key: entry.state for entry in ledger.entries}
        stop = stack.enter_context(StopRequest())
        if plan.there:
            submit_study(study, plan.there, directory, console=console, planned=planned)
        if plan.here:
            if smoke:
                from horovod_study.cluster.smoke import smoke_test  # it uses what is defined here

                smoke_test(
                    plan.here,
                    directory,
                    launch=launch,
                    sites=plan.sites,
                    partitions=study.partitions,
                    console=console,
                    stop=stop,
                    grace_s=grace_s,
                )
            _warn_of_load(plan.sites, watch_load_s, console)
            available = cores_in_order(sorted(os.sched_getaffinity(0)))
            broken_off = run_cells(
                study,
                plan.here,
                directory,
                console=console,
                stop=stop,
                launch=launch,
                site_of=lambda cell: _site(study, cell, plan.sites, oversubscribe),
                cores_of=lambda cell: _cores(study, cell, plan.sites, available) if pin else None,
                planned=planned,
                held=held,
                total=len(ledger.entries),
                ended=len(ledger.entries) - len(plan.here),
                grace_s=grace_s,
                notice_load=watch_load_s > 0,
            )
        waiting = any(each.scheduler == "slurm" for each in study.partitions.values())
        if waiting and wait:
            _wait(study, runs_dir, stop, console)
        ledger = read_ledger(study, runs_dir, jobs=JobBook(directory))
        result = StudyResult(ledger=ledger, interrupted=stop.requested, submitted=waiting)
    _conclude(result, broken_off, command, retry, console, told=plan.plan.ledger.summary())
    return result


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
            raise ConfigError(f"--hosts: {part.strip()!r} is no host; write NAME or NAME:WORKERS, separated by commas")
        found.append(Host(name=name, slots=int(slots) if colon else 1))
    return tuple(found)


def retry_cells(
    study: StudyConfig,
    runs_dir: Path,
    *,
    command: str,
    which: Sequence[str] = (),
    hosts: Sequence[Host] = (),
    **options: Any,
) -> StudyResult:
    """Run the cells again that failed, timed out, were cancelled or pre-empted: those named in `which`, or all.

    How cells are named: `Ledger.select`. `hosts` and `options` are those of `run_study`.
    """
    study = on_hosts(study, hosts) if hosts else study
    ledger = read_ledger(study, runs_dir, jobs=JobBook(runs_dir / study.name))
    keys = {entry.key for entry in ledger.select(AGAIN, which)}
    if not keys:
        say(options.get("console") or Console(), ledger.summary())
        say(options.get("console") or Console(), f"nothing to run again: no cell is {', '.join(AGAIN)}")
        return StudyResult(ledger=ledger, submitted=bool(ledger.count("queued")))
    return run_study(study, runs_dir, command=command, only=keys, retry=True, **options)


def cancel_cells(
    study: StudyConfig,
    runs_dir: Path,
    *,
    which: Sequence[str] = (),
    console: Console | None = None,
    grace_s: float = GRACE_S,
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
    if not which:
        for name in [name for name in generations(claims) if name.startswith(_HOST)]:
            claim = latest(claims, name)
            if claim is not None and claim.released is None:
                _ask(directory, claim)
    running = [claim for entry in entries if (claim := latest(claims, entry.key)) is not None]
    for claim in running:  # before its job hears of it, so that whoever runs the cell knows what it is about
        if claim.released is None:
            _ask(directory, claim)
    if (directory / JOBS).exists():
        cancel_jobs(directory, keys={entry.key for entry in entries} if which else None, console=console)
    asked: list[tuple[Entry, Claim]] = []
    count = 0
    for entry in entries:
        try:
            with acquire(claims, entry.key, what=entry.name) as lease:
                if _cancel_here(directory, entry, lease, grace_s):
                    count += 1
                    say(console, f"cancelled: {entry.name}")
        except Held as held:
            _ask(directory, held.claim)
            asked.append((entry, held.claim))
    deadline = now() + grace_s + _ANSWER_S
    for entry, claim in asked:
        while (state := _answer(claims, entry.key, claim)) is None and now() < deadline:
            sleep(_WAKE_S)
        if state is None:
            say(console, f"asked to end: {entry.name}, run by {claim}, which has not answered yet")
        else:
            say(console, f"{state}: {entry.name}")
            count += state == CANCELLED
    return count


def _cancel_here(directory: Path, entry: Entry, lease: Lease, grace_s: float) -> bool:
    """Cancel a cell that nobody runs, whose claim is held now; False when it turns out to be done."""
    out = directory.resolve() / entry.cell.key
    stop_marked(str(out), grace_s=grace_s)
    record = _record(out)
    done = record is not None and record.status == "done"
    lease.release("done" if done else CANCELLED, "" if done else "cancelled while nobody ran it")
    return not done


def _answer(claims: Path, key: str, asked: Claim) -> str | None:
    """Return how a cell ended whose holder was asked to end it; None while it has not."""
    claim = read_claim(claims, key, asked.generation)
    return claim.state or INTERRUPTED if claim is not None and claim.released is not None else None


def _request(directory: Path, claim: Claim) -> Path:
    """Return the file that asks the holder of `claim`, and nobody after him, to end."""
    return directory / _REQUESTS / claim.path.name


def _ask(directory: Path, claim: Claim) -> None:
    try:
        (directory / _REQUESTS).mkdir(exist_ok=True)
        _request(directory, claim).touch()
    except OSError as error:
        path = _request(directory, claim)
        raise StudyError(not_written(path, error, "make room there")) from None


# ---------------------------------------------------------------------------------------------------- before a sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planned:
    """What is to be done: the cells that run from here and those for the batch system, and where the former go."""

    plan: Plan
    here: Sequence[Cell]
    there: Sequence[Cell]
    sites: Mapping[Placement, Site]


class _Sweep:
    """What was asked for, and the plan that comes of it."""

    def __init__(
        self,
        study: StudyConfig,
        directory: Path,
        launch: Launcher,
        cores: int,
        retry: bool,
        only: Collection[str] | None,
        oversubscribe: bool,
        console: Console,
    ) -> None:
        self._study, self._directory, self._launch, self._cores = study, directory, launch, cores
        self._retry, self._only, self._oversubscribe, self._console = retry, only, oversubscribe, console

    def plan(self, ledger: Ledger, *, table: bool = False) -> _Planned:
        """Return what is to be done after saying so, with `table` at length; refuse what would fail in every cell."""
        study, only = self._study, self._only
        wanted = ledger
        if only is not None:
            wanted = replace(ledger, entries=tuple(entry for entry in ledger.entries if entry.key in only))
        plan = plan_study(study, wanted, past=past_durations(self._directory), retry=self._retry)
        there = [cell for cell in plan.cells if study.partitions[cell.placement.partition].scheduler == "slurm"]
        here = [cell for cell in plan.cells if study.partitions[cell.placement.partition].scheduler != "slurm"]
        shared = refuse_sharing(study, here, self._cores, self._oversubscribe)
        sites = _sites(study, here, self._oversubscribe)
        _complain(here, self._directory, self._launch, sites)
        for line in plan.lines() if table else [ledger.summary()]:
            say(self._console, line)
        if shared:
            say(self._console, shared)
        _tell(study, ledger, here, self._console)
        return _Planned(plan=plan, here=here, there=there, sites=sites)


def _hosts(partition: Partition) -> set[str]:
    """Return the hosts on which this program runs cells of `partition`; none where a batch system does."""
    if partition.scheduler == "slurm":
        return set()
    return {host.name for host in partition.hosts} or {platform.node()}


def _sites(study: StudyConfig, cells: Sequence[Cell], oversubscribe: bool) -> dict[Placement, Site]:
    """Return where each placement of `cells` goes; StudyError where there are too few hosts or slots."""
    placements = {cell.placement: study.partitions[cell.placement.partition] for cell in cells}
    return {
        placement: site_of(partition, placement, oversubscribe=oversubscribe)
        for placement, partition in placements.items()
    }


def _site(study: StudyConfig, cell: Cell, sites: Mapping[Placement, Site], oversubscribe: bool) -> Site:
    """Return where `cell` goes, with a port of its own where ranks of several hosts meet: that before may be in use."""
    site = sites[cell.placement]
    if site.alone:
        return site
    return site_of(study.partitions[cell.placement.partition], cell.placement, oversubscribe=oversubscribe)


def refuse_sharing(study: StudyConfig, cells: Sequence[Cell], cores: int, oversubscribe: bool) -> str:
    """Refuse workers that would have to share cores or GPUs of this machine; when that is wanted, say so."""
    told = ""
    for cell in cells:
        partition, workers = study.partitions[cell.placement.partition], cell.placement.workers
        if partition.hosts:
            continue
        offered, what = (partition.gpus_per_node, "GPU") if partition.gpus_per_node else (cores, "core")
        if workers > offered:
            text = f"{workers} workers, but this machine offers {offered} {what}{'' if offered == 1 else 's'}"
            if not oversubscribe:
                raise StudyError(
                    f"the study asks for {text}; lower sweep.workers, write `workers: cores` to use what is there, or "
                    f"measure how {what}s are shared with --oversubscribe"
                )
            told = f"warning: up to {text}: their times measure how {what}s are shared, and the records say so"
    return told


def _complain(cells: Sequence[Cell], directory: Path, launch: Launcher, sites: Mapping[Placement, Site]) -> None:
    """Raise what the launch of any cell would: a launcher that is missing is found before anything runs."""
    for cell in {(cell.runtime, cell.placement): cell for cell in cells}.values():
        launch(cell, directory, directory, site=sites[cell.placement])


def _tell(study: StudyConfig, ledger: Ledger, here: Sequence[Cell], console: Console) -> None:
    """Say what is to be run from here, in its order."""
    if not here:
        return
    say(console, f"order: one block per repeat, each shuffled with seed {study.seed}")
    for _, block in groupby(here, key=lambda cell: cell.config.repeat):
        first, *others = block
        names = [cell_name(study, cell).rpartition(", ")[0] for cell in (first, *others)]
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
    if not told and not given and plan.seconds > LARGE_S:
        told = f"{len(plan.cells)} cells take {duration(plan.seconds)}, one after the other"
    if not told:
        return
    if not (sys.stdin.isatty() and console.is_terminal):
        raise StudyError(f"{told}; give --yes to run it all the same, or shrink the study (`plan` shows it)")
    console.print(f"{told}\nrun it? [y/N] ", end="", markup=False, highlight=False)
    try:
        answer = console.input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise StudyError("nothing was started; shrink the study (`plan` shows it), or raise its budget")


def _wait(study: StudyConfig, runs_dir: Path, stop: StopRequest, console: Console) -> None:
    """Come back when no cell waits or runs any more, and say when something has changed; Ctrl-C leaves the jobs be."""
    told = ""
    while not stop.requested:
        ledger = read_ledger(study, runs_dir, jobs=JobBook(runs_dir / study.name))
        if not ledger.count("queued", "running"):
            return
        if (summary := ledger.summary()) != told:
            told = summary
            say(console, summary)
        until = now() + _WAIT_S
        while now() < until and not stop.requested:
            sleep(_WAKE_S)


def _hold_hosts(stack: ExitStack, directory: Path, names: Collection[str]) -> list[Lease]:
    """Hold the hosts on which cells will run: two runners of a study would disturb each other's measurements."""
    return [
        stack.enter_context(acquire(directory / CLAIMS, _HOST + _UNSAFE.sub("_", name), what="the study"))
        for name in sorted(names)
    ]


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
            record = _record(directory / key)
            done = record is not None and record.status == "done"
            lease.release("done" if done else INTERRUPTED, "" if done else "its runner was killed")
    begun = any(not name.startswith(_HOST) for name in generations(directory / CLAIMS))
    if elsewhere and begun:
        stopped = stop_marked_on(sorted(elsewhere), str(directory.resolve()), grace_s=grace_s)
        count += stopped.found
        if stopped.problem:
            say(console, f"warning: {stopped.problem}")
    if count:
        say(console, f"stopped what an interrupted run of this study left behind ({count} processes)")


def _warn_of_load(sites: Mapping[Placement, Site], seconds: float, console: Console) -> None:
    """Watch what other programs do on this machine, where cells will run here."""
    if seconds > 0 and any(site.alone for site in sites.values()):
        told = other_load(sorted(os.sched_getaffinity(0)), seconds=seconds)
        if told:
            say(console, f"warning: {told}; times will not be those of a quiet machine")


def _cores(
    study: StudyConfig, cell: Cell, sites: Mapping[Placement, Site], available: Sequence[int]
) -> tuple[int, ...] | None:
    if not sites[cell.placement].alone:
        return None
    return cell_cores(
        cell, cores_per_worker=study.partitions[cell.placement.partition].cores_per_worker, available=available
    )


# ---------------------------------------------------------------------------------------------------- after a sweep


def _conclude(
    result: StudyResult, broken_off: str, command: str, retry: bool, console: Console, *, told: str = ""
) -> None:
    """Say where the study stands, what did not work, which cell was broken off, and what to do next.

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
        say(console, f"interrupted{broken_off and f' in {broken_off}'}; continue with: {command}")
    elif again:
        say(console, f"try the failed ones again with: {command}" if retry else "failed cells were left alone")
    elif ledger.count("stopped"):
        say(console, f"continue with: {command}")


# ---------------------------------------------------------------------------------------------------- cells, one by one


def run_cells(
    study: StudyConfig,
    cells: Sequence[Cell],
    directory: Path,
    *,
    console: Console,
    stop: StopRequest,
    launch: Launcher = local_launch,
    site_of: Callable[[Cell], Site] = lambda cell: HERE,
    cores_of: Callable[[Cell], tuple[int, ...] | None] = lambda cell: None,
    planned: Mapping[str, str] | None = None,
    held: Sequence[Lease] = (),
    total: int | None = None,
    ended: int = 0,
    lasts_s: float = math.inf,
    grace_s: float = GRACE_S,
    notice_load: bool = True,
) -> str:
    """Run `cells` of `study` in their order, each under its claim, until all have ended or `stop` is requested.

    A cell that somebody else holds is left alone, one that is done by now is not run again. `site_of` and `cores_of`
    say where a cell runs; `planned` in which state it was when it was chosen, so that one that was cancelled since is
    left out; `held` are leases of the caller to keep fresh. `total` and `ended` count the cells of the whole study, for
    the display. No cell is begun that would probably not end within `lasts_s` from now, where its time is known.
    `notice_load`: warn once when other programs used the cores while a cell ran.
    Returns the name of the cell that the request broke off, or "". StudyError: there is no room for the records.
    """
    work = _Work(
        study,
        directory,
        launch,
        site_of,
        cores_of,
        planned or {},
        held,
        stop,
        grace_s,
        console,
        now() + lasts_s,
        notice_load,
    )
    if any(cell.identity for cell in cells):
        remember(directory, study.partitions.values())
    try:
        return work.run(cells, total=len(cells) if total is None else total, ended=ended)
    except BrokenPipeError:  # the reader of the output left; that is no matter of the run folder
        raise
    except OSError as error:
        raise StudyError(
            f"{error.filename or directory}: {error.strerror or error}; make room there or choose another folder with "
            "--runs, and run the study again"
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    """How an attempt ended: what its claim is released with."""

    state: str
    reason: str = ""
    seconds: float = 0.0
    resumed: bool = False
    begun: bool = True


class _Work:
    """The loop over the cells, with what it needs at hand."""

    def __init__(
        self,
        study: StudyConfig,
        directory: Path,
        launch: Launcher,
        site_of: Callable[[Cell], Site],
        cores_of: Callable[[Cell], tuple[int, ...] | None],
        planned: Mapping[str, str],
        held: Sequence[Lease],
        stop: StopRequest,
        grace_s: float,
        console: Console,
        until: float,
        notices: bool,
    ) -> None:
        self._study, self._directory, self._launch = study, directory, launch
        self._site_of, self._cores_of, self._planned, self._held = site_of, cores_of, planned, held
        self._stop, self._grace_s, self._console, self._until = stop, grace_s, console, until
        self._claims = directory / CLAIMS
        self._estimate = Estimate(past_durations(directory))
        self._began = now()
        self._notices, self._warned = notices, False
        self._source = identify()

    def run(self, cells: Sequence[Cell], *, total: int, ended: int) -> str:
        (self._directory / "logs").mkdir(parents=True, exist_ok=True)
        (self._directory / "cells").mkdir(exist_ok=True)
        with Display(self._console, total=total, ended=ended) as display:
            for position, cell in enumerate(cells):
                if self._stop.requested:
                    break
                if cell.identity and identify() != self._source:
                    raise StudyError(
                        "the source of horovod_study, or what is installed, was changed while the study ran; run it "
                        "again: what is done with the old one stays as it is, and the cells ahead are new ones"
                    )
                name = cell_name(self._study, cell)
                expected_s = self._estimate.of(cell).seconds
                if now() + (expected_s or 0.0) > self._until:
                    display.note(f"not begun: {name} would not end in the time that is left here")
                    continue
                site = self._site_of(cell)
                others = OtherPrograms(sorted(os.sched_getaffinity(0))) if self._notices and site.alone else None
                end = self._turn(cell, name, site, cells[position:], display)
                if end is None:
                    continue
                if end.state == "done" and end.begun and not end.resumed:  # a part says nothing about a whole
                    self._estimate.add(cell, end.seconds)
                if end.state == "done" and end.begun and others is not None:
                    self._notice(others, display)
                ahead = cells[position + 1 :]
                left: TimeLeft | None = self._estimate.left(ahead) if ahead else None
                entry = read_entry(self._study, self._directory, cell)
                if self._stop.requested and end.state in (self._stop.state, "stopped", CANCELLED):
                    return name
                log = str(log_path(self._directory, cell))
                display.ended(entry, seconds=end.seconds, left=left, log=log)
        return ""

    def _notice(self, others: OtherPrograms, display: Display) -> None:
        """Warn once when other programs have used the cores while a cell ran."""
        cores = len(os.sched_getaffinity(0))
        if not self._warned and (told := disturbance(others, cores)):
            self._warned = True
            display.note(f"warning: {told} while that cell ran; its times are not those of a quiet machine")

    def _turn(self, cell: Cell, name: str, site: Site, ahead: Sequence[Cell], display: Display) -> _End | None:
        """Run one cell under its claim and release it with how it ended; None when it was not for us to run."""
        before = latest(self._claims, cell.key)
        if before is not None and before.state == CANCELLED != self._planned.get(cell.key, CANCELLED):
            display.note(f"left out: {name} was cancelled")
            return None
        try:
            # A job that was killed could not give it back; Slurm is asked only where there is such a holder.
            lease = acquire(
                self._claims, cell.key, what=name, ended=lambda number: JobBook(self._directory).has_ended(number)
            )
        except Held as held:
            display.note(f"left alone: {name} is being run by {held.claim}")
            return None
        end = _End(state=INTERRUPTED)
        try:
            end = self._under_claim(cell, name, site, lease, ahead, display)
        except Held as held:  # somebody trains in its directory who is no runner
            end = replace(end, reason=f"left to {held.claim}")
            display.note(f"left alone: {name} is being run by {held.claim}")
            return None
        finally:
            lease.release(end.state, end.reason)
        return end

    def _under_claim(
        self, cell: Cell, name: str, site: Site, lease: Lease, ahead: Sequence[Cell], display: Display
    ) -> _End:
        """Run a cell whose claim is held, unless it has finished meanwhile, and write down how it ended."""
        out = self._directory.resolve() / cell.key
        stop_marked(str(out), grace_s=self._grace_s)  # of an attempt whose runner was killed
        require_free(out)
        record = _record(out)
        wrong = record is not None and foreign(record, self._study, cell) != ""
        if record is not None and record.status == "done" and not wrong:
            return _End(state="done", begun=False)
        started, began = utc_now(), now()
        attempts = 0
        resume = (
            not wrong and record is not None and record.status in ("running", "stopped") and bool(checkpoint_paths(out))
        )
        if resume and record is not None:
            attempts = len(record.attempts)
            keep_log(self._directory, cell)
        else:
            set_aside(self._directory, cell)
        exit_code, state, problem = self._attempt(cell, name, lease, site, ahead, display, resume=resume)
        if exit_code != 0 and not site.alone:
            self._end_elsewhere(site, out, display)
        if state == _LOST:  # the run directory is another's now
            return _End(state=INTERRUPTED, reason=problem, seconds=now() - began)
        require_free(out)
        record = self._settle(cell, site, started, exit_code, state, problem, attempts=attempts)
        end = _how(record, state, problem)
        note_attempt(
            self._directory,
            cell,
            started=started,
            state=f"{end.state}, resumed" if resume else end.state,
            seconds=now() - began,
            exit_code=exit_code,
            reason=end.reason,
        )
        return replace(end, seconds=now() - began, resumed=resume)

    def _attempt(
        self, cell: Cell, name: str, lease: Lease, site: Site, ahead: Sequence[Cell], display: Display, *, resume: bool
    ) -> tuple[int | None, str, str]:
        """Start a cell and wait for its end.

        Returns its exit code, "", "", or None and, as state and reason, why it was not left to end by itself.
        """
        config = self._directory / "cells" / f"{cell.key}.yaml"
        write_file(config, yaml.safe_dump(cell.config.to_dict(), sort_keys=False))
        out = self._directory.resolve() / cell.key
        began = now()
        drawn, checked, asked = -math.inf, began, -math.inf
        failed_at: float | None = None
        try:
            line = self._launch(cell, config, out, resume=resume, site=site)
            log = log_path(self._directory, cell)
            with CellProcess(line, log, self._grace_s, cores=self._cores_of(cell)) as process:
                while True:
                    elapsed_s = now() - began
                    if elapsed_s - drawn >= _REDRAW_S:
                        drawn = elapsed_s
                        left = self._estimate.left(ahead, running_s=elapsed_s)
                        display.running(name, elapsed_s=now() - self._began, left=left)
                    if (exit_code := process.wait(_WAKE_S)) is not None:
                        if exit_code and self._stop.requested:  # a batch system signals the launcher at the same time
                            return exit_code, self._stop.state, self._stop.state
                        return exit_code, "", ""
                    if self._stop.requested:
                        state = CANCELLED if _request(self._directory, lease.claim).exists() else self._stop.state
                        self._ask_to_stop(process, out, site)
                        return None, state, state
                    if elapsed_s > self._study.timeout_s:
                        return None, "timed out", f"timed out after {self._study.timeout_s:g} s"
                    if now() - asked >= _REQUEST_S:
                        asked = now()
                        if self._asked_to_cancel(cell, lease):
                            self._ask_to_stop(process, out, site)
                            return None, CANCELLED, CANCELLED
                        if (failed_at := failed_at or (now() if _has_failed(out) else None)) is not None:
                            if now() - failed_at > _LAUNCHER_S:  # it waits for hosts that it does not reach
                                return None, "", ""
                    if now() - checked >= _CHECK_S:
                        checked = now()
                        if not lease.refresh():
                            return None, _LOST, "another runner took it over, because nothing was heard from this one"
        except KeyboardInterrupt:  # a second Ctrl-C
            return None, self._stop.state, self._stop.state
        except StudyError as error:  # the launcher cannot be executed
            return None, "failed", str(error)

    def _asked_to_cancel(self, cell: Cell, lease: Lease) -> bool:
        """Return whether this cell shall end, and remember whether all shall."""
        if any(_request(self._directory, each.claim).exists() for each in self._held):
            self._stop.requested, self._stop.state = True, CANCELLED
        return self._stop.requested or _request(self._directory, lease.claim).exists()

    def _ask_to_stop(self, process: CellProcess, out: Path, site: Site) -> None:
        """Ask the trainer for a checkpoint and give it time to write one."""
        record = _record(out)
        if record is None or record.status != "running":
            return
        if record.host == platform.node():
            process.ask_to_stop(record.pid)
        elif any(_same_name(record.host, host.name) for host in site.hosts):
            name = next(host.name for host in site.hosts if _same_name(record.host, host.name))
            run_on(name, ("kill", "-USR1", str(record.pid)), timeout_s=_ASK_S, allocation=site.allocation)
            process.give_grace()

    def _end_elsewhere(self, site: Site, out: Path, display: Display) -> None:
        """End what is left of a cell on its other hosts, and name those that cannot be reached."""
        names = [host.name for host in site.hosts]
        stopped = stop_marked_on(names, str(out), grace_s=self._grace_s, allocation=site.allocation)
        if stopped.problem:
            display.note(f"warning: {stopped.problem}")
        else:
            end_run_claim(out)

    def _settle(
        self,
        cell: Cell,
        site: Site,
        started: str,
        exit_code: int | None,
        state: str,
        problem: str,
        *,
        attempts: int,
    ) -> RunRecord | None:
        """Write into the record how a cell ended whose trainer could not do so itself, and return it.

        `attempts`: how many its record told of before; with no more now, the trainer ended before it got that far.
        """
        out = self._directory / cell.key
        record = _record(out)
        begun = record is not None and len(record.attempts) > attempts
        if record is not None and record.status == "done":
            if not (wrong := misplaced(record, cell, site)):
                return record
            return finish_run(out, record, status="failed", finished=utc_now(), totals=record.totals, reason=wrong)
        if begun and record is not None and record.status == "stopped" and state != "timed out":
            return record
        if state in (self._stop.state, CANCELLED):
            # Neither done nor failed: still "running" in the record, of a process that is gone, reads as incomplete.
            if record is not None and begun:
                return finish_run(
                    out, record, status="running", finished=utc_now(), totals=record.totals, reason=problem
                )
            return record
        told = begun and record is not None and record.status == "failed" and not is_follow_on(record.reason)
        if told and not problem:
            return record
        reason = problem or failure_reason(log_tail(log_path(self._directory, cell)), exit_code)
        if record is not None and not problem and checkpoint_paths(out) and told_to_end(reason, exit_code, begun=begun):
            # By a signal that this runner was not told of: what is there goes on from its newest checkpoint.
            if not begun:
                return record
            return finish_run(out, record, status="running", finished=utc_now(), totals=record.totals, reason=reason)
        if record is None:
            record = record_of(cell, started, reason)
            create_run(out, record)
        elif not begun:
            newest = checkpoint_paths(out)
            record = resume_run(out, record, from_step=checkpoint_step(newest[0]) if newest else 0, began=started)
        return finish_run(out, record, status="failed", finished=utc_now(), totals=record.totals, reason=reason)


def _how(record: RunRecord | None, state: str, problem: str) -> _End:
    """Return how an attempt ended, from its record and from why it was broken off, if it was."""
    if record is not None and record.status == "done":
        return _End(state="done")
    reason = " ".join(record.reason.split()) if record is not None else problem
    if state in ("", INTERRUPTED) and record is not None and record.status == "stopped":
        return _End(state="stopped", reason=reason)
    if state == "" and record is not None and record.status == "running":
        return _End(state=INTERRUPTED, reason=reason)
    return _End(state=state or (record.status if record is not None else "failed"), reason=reason)


def _has_failed(out: Path) -> bool:
    """Return whether the ranks have written that the run failed."""
    record = _record(out)
    return record is not None and record.status == "failed"


def _record(out: Path) -> RunRecord | None:
    return read_run(out) if (out / MANIFEST).exists() else None


def misplaced(record: RunRecord, cell: Cell, site: Site) -> str:
    """Return in one line how the hosts that the ranks had differ from the placement that was asked for, or "".

    Hosts may be known to ssh by other names than their own, so what is compared is how many ranks each had; names are
    compared where at least one of them is known. Nodes of a batch system that are all one machine (for tests) cannot be
    told apart.
    """
    ranks = record.effective.get("ranks") or []
    if not site.hosts or not ranks:
        return ""
    counts: dict[str, int] = {}
    for rank in ranks:
        counts[rank["host"]] = counts.get(rank["host"], 0) + 1
    used = [host.name for host in site.hosts][: cell.placement.nodes]
    known = [name for name in counts if any(_same_name(name, each) for each in used)]
    if site.allocation and not known:
        return ""
    wanted = dict(zip(used, cell.placement.per_node, strict=False))
    same = list(counts.values()) == list(cell.placement.per_node)
    if same and known:
        same = all(_same_name(had, name) for had, name in zip(counts, used, strict=True))
    if same:
        return ""
    had = ", ".join(f"{name}: {count}" for name, count in counts.items())
    asked = ", ".join(f"{name}: {count}" for name, count in wanted.items())
    return f"its workers ran on other hosts than asked for: {had} instead of {asked}; check the launcher and the hosts"


def _same_name(one: str, other: str) -> bool:
    """Return whether two names of hosts are the same, with or without the domain; a number is no name."""
    one, other = one.rpartition("@")[2], other.rpartition("@")[2]
    for name in (one, other):
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return one == other
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


def log_tail(log: Path) -> str:
    """Return the end of what a cell printed."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return stream.read().decode("utf-8", errors="replace")


def record_of(cell: Cell, started: str, reason: str) -> RunRecord:
    """Return the record of a cell whose trainer wrote none: what was asked for stands in for what was in effect."""
    config, workers = cell.config, cell.placement.workers
    reduction = config.reduction
    if workers == 1:
        reduction = "none"
    elif reduction == "auto":  # as the backends in comm/ decide
        reduction = "hooks" if config.backend == "ddp" else "flat"
    effective: dict[str, Any] = {
        "backend": config.backend,
        "transport": config.transport,
        "workers": workers,
        "nodes": cell.placement.nodes,
        "batch": config.batch,
        "global_batch": config.batch * workers,
        "precision": config.precision,
        "reduction": reduction,
        "source": "as asked for; the run ended before it could tell",
    }
    return RunRecord(
        study=config.study,
        key=cell.key,
        repeat=config.repeat,
        partition=cell.placement.partition,
        status="failed",
        started=started,
        host=platform.node(),
        pid=os.getpid(),
        requested=config.to_dict(),
        effective=effective,
        environment={},
        reason=reason,
    )
