"""Runs the missing cells of a study on this machine, one after the other, and records what went wrong.

A cell is one `python -m horovod_study.train` under its launcher. Whatever happens to it, its run directory tells: where
the trainer could not finish the record (killed, launcher error, never started) the runner writes the reason into it.
What is killed together with the runner is found by the next one: `ledger.py` sees it, and it is run again.
"""

import math
import os
import platform
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import yaml
from rich.console import Console

from horovod_study.cluster.launch import LaunchLine, launch_line, refuse_oversubscription
from horovod_study.cluster.ledger import (
    Ledger,
    blocks,
    can_resume,
    cell_name,
    keep_log,
    log_path,
    note_attempt,
    past_durations,
    read_entry,
    read_ledger,
    set_aside,
    study_lock,
)
from horovod_study.cluster.process import GRACE_S, CellProcess, stop_marked
from horovod_study.cluster.progress import Display, Estimate, TimeLeft, say
from horovod_study.cluster.reason import failure_reason, is_follow_on
from horovod_study.cluster.study_file import StudyConfig
from horovod_study.config import Cell, available_cores
from horovod_study.errors import StudyError
from horovod_study.measure.clock import now, utc_now
from horovod_study.records import (
    MANIFEST,
    RunRecord,
    atomic_write,
    checkpoint_paths,
    checkpoint_step,
    create_run,
    finish_run,
    read_run,
    resume_run,
)


class Launcher(Protocol):
    """Says how to start a cell."""

    def __call__(self, cell: Cell, config: Path, out: Path, *, resume: bool = False) -> LaunchLine:
        """Return how to start `cell`, given its configuration file and run directory, or how to resume it there."""


INTERRUPTED = "interrupted"
_WAKE_S = 0.25  # how soon Ctrl-C and the time limit are noticed
_REDRAW_S = 1.0
_LOG_TAIL_BYTES = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """How `run_study` ended."""

    ledger: Ledger
    interrupted: bool = False
    planned_only: bool = False

    @property
    def exit_code(self) -> int:
        """0 when all cells are done (or only the plan was wanted), 1 when some are not, 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        return 0 if self.planned_only or self.ledger.count("done") == len(self.ledger.entries) else 1


def local_launch(cell: Cell, config: Path, out: Path, *, resume: bool = False) -> LaunchLine:
    """Return how to start `cell` on this machine with the Python that runs this program."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    python = Path(sys.executable)
    return launch_line(cell, python=python, config=config, out=out, environ=os.environ, root=root, resume=resume)


def run_study(
    study: StudyConfig,
    runs_dir: Path,
    *,
    command: str,
    only_plan: bool = False,
    retry: bool = True,
    console: Console | None = None,
    launch: Launcher = local_launch,
    cores: int | None = None,
    grace_s: float = GRACE_S,
) -> StudyResult:
    """Run the cells of `study` that are not done, in randomised blocks, and say on `console` how they fare.

    `command` is what the user typed; it is repeated where typing it again continues. With `only_plan` the order is
    printed and nothing runs; without `retry` failed cells are left alone. Raises StudyError, before a cell starts, when
    a launcher is missing, when workers would have to share cores, or when the study is already being run.
    """
    console = console or Console()
    cores = available_cores() if cores is None else cores
    directory = runs_dir / study.name
    if only_plan:
        ledger = read_ledger(study, runs_dir)
        _plan(study, ledger, retry, launch, cores, console)
        return StudyResult(ledger=ledger, planned_only=True)
    with StopRequest() as stop, study_lock(directory):
        left_behind = stop_marked(str(directory.resolve()), grace_s=grace_s)
        if left_behind:
            say(console, f"stopped what an interrupted run of this study left behind ({left_behind} processes)")
        ledger = read_ledger(study, runs_dir)
        cells = _plan(study, ledger, retry, launch, cores, console)
        work = _Work(study, directory, launch, stop, grace_s, console)
        try:
            broken_off = work.run(cells, total=len(ledger.entries))
        except BrokenPipeError:  # the reader of the output left; that is no matter of the run folder
            raise
        except OSError as error:
            raise StudyError(
                f"{error.filename or directory}: {error.strerror or error}; "
                f"make room there or choose another folder with --runs, and continue with: {command}"
            ) from error
        result = StudyResult(ledger=read_ledger(study, runs_dir), interrupted=stop.requested)
    _conclude(result, broken_off, command, retry, console)
    return result


def _plan(
    study: StudyConfig, ledger: Ledger, retry: bool, launch: Launcher, cores: int, console: Console
) -> list[Cell]:
    """Return what is to be run, in its order, after saying so; refuse what would fail in every cell."""
    order = blocks(ledger.to_do(retry=retry), study.seed)
    cells = [cell for block in order for cell in block]
    refuse_oversubscription(cells, cores)
    for cell in cells:
        launch(cell, ledger.directory, ledger.directory)  # for its complaint about a missing launcher
    say(console, ledger.summary())
    if not cells:
        return cells
    say(console, f"order: one block per repeat, each shuffled with seed {study.seed}")
    for block in order:
        names = "; ".join(cell_name(study, cell).rpartition(", ")[0] for cell in block)
        say(console, f"  repeat {block[0].config.repeat + 1}: {names}")
    resumable = {entry.cell.key: entry.name for entry in ledger.entries if can_resume(entry, ledger.directory)}
    resumed = [resumable[cell.key] for cell in cells if cell.key in resumable]
    if resumed:
        say(console, f"  resumed from a checkpoint: {'; '.join(resumed)}")
    left = Estimate(past_durations(ledger.directory)).left(cells)
    say(console, f"{len(cells)} to run, {left}; records in {ledger.directory}, output in {ledger.directory / 'logs'}")
    return cells


def _conclude(result: StudyResult, broken_off: str, command: str, retry: bool, console: Console) -> None:
    """Say where the study stands, what did not work, which cell was broken off, and what to do next."""
    ledger = result.ledger
    say(console, ledger.summary())
    for entry in ledger.entries:
        if entry.state == "failed":
            say(console, f"  failed: {entry.name}: {entry.reason}; see {log_path(ledger.directory, entry.cell)}")
        elif entry.state == "stopped":
            say(console, f"  stopped: {entry.name}: {entry.reason}")
        elif entry.state == "running":
            folder = ledger.directory / entry.cell.key
            say(
                console, f"  left alone: {entry.name} runs already ({entry.reason}); if it does not, move {folder} away"
            )
    if result.interrupted:
        say(console, f"interrupted{broken_off and f' in {broken_off}'}; continue with: {command}")
    elif ledger.count("failed"):
        say(console, f"try the failed ones again with: {command}" if retry else "failed cells were left alone")
    elif ledger.count("stopped"):
        say(console, f"continue with: {command}")


class StopRequest:
    """Remembers the first Ctrl-C, SIGTERM or lost terminal, for a good moment to act on; a second one breaks off."""

    def __init__(self) -> None:
        self.requested = False

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


class _Work:
    """The loop over the cells, with what it needs at hand."""

    def __init__(
        self,
        study: StudyConfig,
        directory: Path,
        launch: Launcher,
        stop: StopRequest,
        grace_s: float,
        console: Console,
    ) -> None:
        self._study, self._directory, self._launch = study, directory, launch
        self._stop, self._grace_s, self._console = stop, grace_s, console
        self._estimate = Estimate(past_durations(directory))
        self._began = now()

    def run(self, cells: Sequence[Cell], *, total: int) -> str:
        """Run `cells` in their order until all have ended or a stop is requested; `total` counts the whole study.

        Returns the name of the cell that the request broke off, or "".
        """
        (self._directory / "logs").mkdir(exist_ok=True)
        (self._directory / "cells").mkdir(exist_ok=True)
        with Display(self._console, total=total, ended=total - len(cells)) as display:
            for position, cell in enumerate(cells):
                if self._stop.requested:
                    break
                started, began = utc_now(), now()
                resume = can_resume(read_entry(self._study, self._directory, cell), self._directory)
                attempts = 0
                if resume:
                    attempts = len(read_run(self._directory / cell.key).attempts)
                    keep_log(self._directory, cell)
                else:
                    set_aside(self._directory, cell)
                exit_code, problem = self._attempt(cell, cells[position:], display, resume=resume)
                self._settle(cell, started, exit_code, problem, attempts=attempts)
                seconds = now() - began
                entry = read_entry(self._study, self._directory, cell)
                note_attempt(
                    self._directory,
                    cell,
                    started=started,
                    state=f"{entry.state}, resumed" if resume else entry.state,
                    seconds=seconds,
                    exit_code=exit_code,
                    reason=entry.reason,
                )
                if problem == INTERRUPTED:
                    return entry.name
                if entry.state == "done" and not resume:  # what is left of a cell says nothing about a whole one
                    self._estimate.add(cell, seconds)
                left: TimeLeft | None = self._estimate.left(cells[position + 1 :]) if cells[position + 1 :] else None
                log = str(log_path(self._directory, cell))
                display.ended(entry, seconds=seconds, left=left, log=log)
        return ""

    def _attempt(self, cell: Cell, ahead: Sequence[Cell], display: Display, *, resume: bool) -> tuple[int | None, str]:
        """Start a cell and wait for its end; return its exit code, or None and why it was not left to end by itself."""
        config = self._directory / "cells" / f"{cell.key}.yaml"
        atomic_write(config, yaml.safe_dump(cell.config.to_dict(), sort_keys=False))
        out = self._directory.resolve() / cell.key
        name, began = cell_name(self._study, cell), now()
        drawn = -math.inf
        try:
            line = self._launch(cell, config, out, resume=True) if resume else self._launch(cell, config, out)
            with CellProcess(line, log_path(self._directory, cell), self._grace_s) as process:
                while True:
                    elapsed_s = now() - began
                    if elapsed_s - drawn >= _REDRAW_S:
                        drawn = elapsed_s
                        left = self._estimate.left(ahead, running_s=elapsed_s)
                        display.running(name, elapsed_s=now() - self._began, left=left)
                    if (exit_code := process.wait(_WAKE_S)) is not None:
                        return exit_code, ""
                    if self._stop.requested:
                        record = read_run(out) if (out / MANIFEST).exists() else None
                        if record is not None and record.host == platform.node() and record.state() == "running":
                            process.ask_to_stop(record.pid)
                        return None, INTERRUPTED
                    if elapsed_s > self._study.timeout_s:
                        return None, f"timed out after {self._study.timeout_s:g} s"
        except StudyError as error:  # the launcher cannot be executed
            return None, str(error)

    def _settle(self, cell: Cell, started: str, exit_code: int | None, problem: str, *, attempts: int) -> None:
        """Write into the record how a cell ended whose trainer could not do so itself.

        `attempts`: how many its record told of before; with no more now, the trainer ended before it got that far.
        """
        out = self._directory / cell.key
        record = read_run(out) if (out / MANIFEST).exists() else None
        begun = record is not None and len(record.attempts) > attempts
        if record is not None and (record.status == "done" or (begun and record.status == "stopped" and not problem)):
            return
        if problem == INTERRUPTED:
            # Neither done nor failed: still "running" in the record, of a process that is gone, reads as incomplete.
            if record is not None and begun and record.status != "stopped":
                finish_run(
                    out, record, status="running", finished=utc_now(), totals=record.totals, reason="interrupted"
                )
            return
        told = begun and record is not None and record.status == "failed" and not is_follow_on(record.reason)
        if told and not problem:
            return
        reason = problem or failure_reason(log_tail(log_path(self._directory, cell)), exit_code)
        if record is None:
            record = record_of(cell, started, reason)
            create_run(out, record)
        elif not begun:
            newest = checkpoint_paths(out)
            record = resume_run(out, record, from_step=checkpoint_step(newest[0]) if newest else 0, began=started)
        finish_run(out, record, status="failed", finished=utc_now(), totals=record.totals, reason=reason)


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
