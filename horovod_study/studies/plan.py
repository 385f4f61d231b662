"""What a study will do and take, its jobs (given to Slurm, shown, taken back), and how it gets on.

`status` only reads: the ledger, and the rows that the ranks have written so far, of a study or one training, by
whomever and wherever it is run. Nothing is asked of the runs, and the reading takes a small share of one core: the
cores may be those that are being measured.
"""

import glob
import math
import os
import re
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shutil import which
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import yaml
from rich.console import Console
from rich.live import Live
from rich.text import Text

from horovod_study import records
from horovod_study.analysis.paired import LAUNCHES
from horovod_study.analysis.stats import finite_or_none
from horovod_study.cluster import slurm
from horovod_study.cluster.identity import environment, remember, snapshot
from horovod_study.cluster.launch import Starting, common_site, launch_line
from horovod_study.cluster.remote import run_on
from horovod_study.cluster.slurm import JOBS, Allocation, Ask, Job, JobBook, allocate, ask, blocks
from horovod_study.config.partitions import Host, Partition
from horovod_study.config.run import Cell, Placement
from horovod_study.errors import RecordError, StudyError, refuse
from horovod_study.files import PART, write_file, writing
from horovod_study.measure.clock import now, sleep, utc_now, utc_stamp
from horovod_study.recording.command import before_the_first_step, noted_steps
from horovod_study.records import facts
from horovod_study.runtimes import CARRIED, RUNTIMES
from horovod_study.studies import lease
from horovod_study.studies.lease import Held, hold_study
from horovod_study.studies.ledger import BY_ITSELF, Entry, Ledger, past_durations, read_ledger, server_time
from horovod_study.studies.study_file import StudyCells
from horovod_study.studies.turns import alternating
from horovod_study.text.progress import duration, show
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

SAMPLES_GUESS_PER_S = 10_000.0
"""Guessed samples per second and worker, a cautious figure for one core, where a budget counts steps or epochs."""


class TimeLeft(NamedTuple):
    """An estimate of seconds, None when nothing is known; a guess where no cell of some runtime has ended yet."""

    seconds: float | None
    guess: bool

    def __str__(self) -> str:
        if self.seconds is None:
            return "time left unknown until a cell is done"
        return f"about {duration(self.seconds)} left" + (" (a guess)" if self.guess else "")


class Estimate:
    """Estimates durations of cells from those that are done: same runtime and workers, else runtime, else a guess."""

    def __init__(self, past: Iterable[tuple[str, int, float]] = ()) -> None:
        """`past`: (runtime, workers, seconds) of finished cells."""
        self._past = [*past]
        self._known: dict[tuple[str, int, float | None], TimeLeft] = {}  # a study has many cells of few kinds

    def add(self, runtime: str, workers: int, seconds: float) -> None:
        """Learn from a finished cell."""
        self._past.append((runtime, workers, seconds))
        self._known.clear()

    def of(self, cell: Cell) -> TimeLeft:
        """Return how long `cell` will take."""
        workers, asked_s = cell.placement.workers, cell.config.seconds
        if (kind := (cell.runtime, workers, asked_s)) not in self._known:
            alike = [each for each in self._past if each[0] == cell.runtime]
            if seen := [each for each in alike if each[1] == workers] or alike:
                found = TimeLeft(median(seconds for *_, seconds in seen), guess=False)
            elif asked_s is not None:
                found = TimeLeft(asked_s + CARRIED[cell.runtime][0].start_up_s, guess=True)
            else:
                found = TimeLeft(median(seconds for *_, seconds in self._past) if self._past else None, guess=True)
            self._known[kind] = found
        return self._known[kind]

    def expected(self, cell: Cell, *, at_most_s: float) -> tuple[float, str]:
        """Return the seconds to count `cell` with, and whether they are "" (learned), "guess" or "unknown".

        `at_most_s` is the time limit of a cell: no guess exceeds it, and it stands for what cannot even be guessed.
        """
        one = self.of(cell)
        if one.seconds is not None:
            return one.seconds, "guess" if one.guess else ""
        rough = rough_s(cell)
        return (at_most_s, "unknown") if rough is None else (min(rough, at_most_s), "guess")

    def left(self, cells: Sequence[Cell], *, running_s: float = 0.0) -> TimeLeft:
        """Return the time left for `cells`, the first of which has been running for `running_s`."""
        first, *rest = [*map(self.of, cells)] or [TimeLeft(0.0, guess=False)]
        known = None if first.seconds is None else max(0.0, first.seconds - running_s)
        return together([TimeLeft(known, first.guess), *rest])


def together(parts: Sequence[TimeLeft], *, lanes: int = 1) -> TimeLeft:
    """Return the time left for all of `parts`, of which `lanes` go on at a time; unknown where one is."""
    known = [each.seconds for each in parts if each.seconds is not None]
    if len(known) < len(parts):
        return TimeLeft(None, guess=True)
    return TimeLeft(max([*known, sum(known) / lanes], default=0.0), guess=any(each.guess for each in parts))


def rough_s(cell: Cell) -> float | None:
    """Guess the seconds of a cell whose budget counts steps or epochs; None where the size of its data is not known."""
    config = cell.config
    samples: float | None
    if config.seconds is not None:
        samples = config.seconds * SAMPLES_GUESS_PER_S
    elif config.steps is not None:
        samples = float(config.steps + config.warmup_steps) * config.batch
    elif (samples := config.workload.samples_of_epoch(config)) is not None:
        samples *= (config.epochs or 1) / cell.placement.workers
    return None if samples is None else CARRIED[cell.runtime][0].start_up_s + samples / SAMPLES_GUESS_PER_S


_MOST_ROWS = 40  # of a table; the rest is counted
_SCHEDULERS = {"local": "here", "ssh": "over ssh", "slurm": "by Slurm"}
_UNITS = {"gpu_hours": "GPU hours", "core_hours": "core hours", "hours": "hours"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The cells of a study that are to be run, and what they are expected to take."""

    ledger: Ledger
    cells: tuple[Cell, ...]  # to do: those of this program in their order, then those of jobs
    allocations: tuple[Allocation, ...]  # of partitions with Slurm
    seconds: float  # of all of them, one after the other; of the launches that a precision takes at least
    gpu_hours: float | None  # None: no partition with GPUs has cells to do
    core_hours: float | None  # of partitions without GPUs
    guessed: tuple[str, ...]  # runtimes of which no cell has been run yet
    unknown: int  # cells of unknown length, counted with the study's time limit
    too_long: int = 0  # cells that are expected to take longer than their partition lets a job run
    over: tuple[str, ...]  # what exceeds the budget

    def lines(self) -> list[str]:
        """Return the plan as a person reads it; thousands of cells are counted, not listed."""
        sweep = self.ledger.sweep
        lines = [self.ledger.summary()]
        for name, partition in sweep.partitions.items():
            lines += ["", *self._table(name, partition)]
        blocks, alone = alternating(sweep, self.cells)
        lines += [""] if blocks or alone else []
        if blocks:
            sizes = sorted({len(part.cells) for part in blocks})
            each = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
            many = plural(len(blocks), "block")
            lines.append(f"in turns: {many} of {each} cells that are started together and alternate")
        for reason, count in Counter(alone.values()).most_common():
            lines.append(f"alone: {plural(count, 'cell')}: {reason}")
        if not self.cells:
            return [*lines, "", "nothing to do"]
        return [*lines, *(["", *self._jobs()] if self.allocations else []), "", *self._totals()]

    def document(self) -> dict[str, Any]:
        """Return what `run --plan --json` prints."""
        sweep, counts = self.ledger.sweep, dict(Counter(entry.state for entry in self.ledger.entries))
        place = {cell.key: number for number, cell in enumerate(self.cells)}
        blocks, alone = alternating(sweep, self.cells)
        cells, jobs, nodes = [], [], {}
        for name, each in sweep.partitions.items():
            nodes[name] = facts(each, "scheduler", "gpus_per_node", "cores_per_node")
            nodes[name]["workers_per_node"] = each.slots_per_node
        for entry in self.ledger.entries:
            where = entry.cell.placement
            row = {"cell": entry.key, **facts(entry, "name", "state"), "runtime": entry.cell.runtime}
            row |= {"placement": {**where.meaning(), "per_node": where.per_node}}
            cells.append({**row, **facts(entry.cell.config, "batch", "repeat"), "place": place.get(entry.key)})
        for job in self.allocations:
            tasks = [[cell.key for cell in task] for task in job.tasks]
            row = facts(job, "partition", "nodes") | facts(job.placement, "workers", "per_node") | {"tasks": tasks}
            jobs.append(row | facts(job, "seconds", "time_limit_s"))
        found: dict[str, Any] = {"study": sweep.name, "file": str(sweep.source) if sweep.source else None}
        found |= {"directory": str(sweep.directory), "scaling": sweep.scaling, "partitions": nodes, "counts": counts}
        found |= {"to_do": len(self.cells), "cells": cells, "jobs": jobs}
        found |= facts(self, "seconds", "gpu_hours", "core_hours", "guessed", "unknown", "too_long")
        found |= {"budget": {name: sweep.budget.get(name) for name in _UNITS}, "over_budget": self.over}
        return {**found, "turns": {"blocks": [[cell.key for cell in each.cells] for each in blocks], "alone": alone}}

    def _table(self, name: str, partition: Partition) -> list[str]:
        """Return what is run on one partition: a row per placement, a column per runtime, done and all cells."""
        entries = [entry for entry in self.ledger.entries if entry.cell.placement.partition == name]
        shapes: dict[str, tuple[tuple[int, ...], Counter[str], Counter[str]]] = {}
        for entry in entries:
            where = entry.cell.placement
            _, every, done = shapes.setdefault(_place(where), (where.per_node, Counter(), Counter()))
            every[entry.cell.runtime] += 1
            done[entry.cell.runtime] += entry.state == "done"
        runtimes = list(dict.fromkeys(entry.cell.runtime for entry in entries))
        rows = [
            (text, *(f"{done[each]}/{every[each]}" if every[each] else "" for each in runtimes))
            for text, (_, every, done) in sorted(shapes.items(), key=lambda shape: (sum(shape[1][0]), len(shape[1][0])))
        ]
        more = len(rows) - _MOST_ROWS
        head = f"partition {name}, {_SCHEDULERS[partition.scheduler]}: {partition.node()} per node, "
        head += f"{plural(partition.cores_per_worker, 'core')} per worker; cells done/all:"
        shown = to_lines(table_of(("workers", *runtimes), rows[:_MOST_ROWS]), indent=2)
        return [head, *shown, *([f"  and {more} more placements"] if more > 0 else [])]

    def _jobs(self) -> list[str]:
        rows = []
        for each in self.allocations:
            tasks, apiece = (f", {len(each.tasks)} tasks", " each") if len(each.tasks) > 1 else ("", "")
            where = _place(each.placement).partition(" on ")[2] or plural(each.nodes, "node")
            there = f"{each.partition}: " if len(self.ledger.sweep.partitions) > 1 else ""
            text = f"{there}{plural(each.placement.workers, 'worker')} on {where}{tasks}"
            rows.append((text, str(len(each.cells)), duration(each.seconds), duration(each.time_limit_s) + apiece))
        head = f"{plural(len(rows), 'job')}, one per placement; all runtimes and repeats alternate in it:"
        return [head, *to_lines(table_of(("job", "cells", "expected", "time limit"), rows), indent=2)]

    def _totals(self) -> list[str]:
        sweep, count = self.ledger.sweep, len(self.cells)
        least = len(_least(sweep, self.cells))
        text = f"{plural(count, 'cell')} to run"
        if least < count:
            text = f"{least} to {count} cells to run, until all speedups are precise enough; the {least}"
            text += f" of the first {LAUNCHES} launches take"
        text += f"{',' if least == count else ''} {duration(self.seconds)} one after the other"
        text += " (without waiting in the queue)" if self.allocations else ""
        here = all(each.scheduler == "local" for each in sweep.partitions.values())  # where nobody counts hours
        for name in ("gpu_hours", "core_hours"):
            value = getattr(self, name)
            if value is not None and (not here or name in sweep.budget):
                text += f", {_hours(value)} {_UNITS[name]}"
        lines = [text]
        if self.guessed:
            lines.append(f"a guess for {', '.join(self.guessed)}, of which no cell has been run in this study")
        if self.unknown:
            lines.append(
                f"{self.unknown} of them of unknown length are counted with their time limit, "
                f"{duration(sweep.timeout_s)} (timeout_s), until one like them is done"
            )
        if self.too_long:
            lines.append(
                f"{self.too_long} of them {'takes' if self.too_long == 1 else 'take'} longer than a job may run there: "
                "each job ends with a checkpoint, and the next run goes on from it, if the training can resume"
            )
        if self.over:
            lines.append(f"over the budget: {'; '.join(self.over)}; `run` asks before it starts")
        elif sweep.budget:
            limits = [f"{_hours(sweep.budget[name])} {unit}" for name, unit in _UNITS.items() if name in sweep.budget]
            lines.append(f"within the budget of {' and '.join(limits)}")
        return lines


def plan_study(ledger: Ledger, *, past: Iterable[tuple[str, int, float]] = (), retry: bool) -> Plan:
    """Return what `run` would do; `past` are (runtime, workers, seconds) of cells that were done."""
    sweep, estimate = ledger.sweep, Estimate(past)
    to_do = ledger.to_do(retry=retry)
    # The seconds of each cell, and whether they are learned, guessed or unknown.
    looked = {cell.key: estimate.expected(cell, at_most_s=sweep.timeout_s) for cell in to_do}

    def seconds_of(cell: Cell) -> float:
        return looked[cell.key][0]

    jobs = [cell for cell in to_do if sweep.partition_of(cell).scheduler == "slurm"]
    others = [cell for cell in to_do if sweep.partition_of(cell).scheduler != "slurm"]
    here = others if sweep.part else [cell for block in blocks(others, sweep.seed) for cell in block]
    allocations = allocate(jobs, sweep.partitions, seconds_of, seed=sweep.seed)
    least_s = sum(map(seconds_of, _least(sweep, to_do)))
    totals = {"hours": least_s / 3600}
    taken = [(cell.placement, seconds_of(cell)) for cell in _least(sweep, here)]
    for placement, seconds in (*taken, *((each.placement, each.seconds) for each in allocations)):
        partition = sweep.partitions[placement.partition]
        unit, of_node, of_worker = "core_hours", partition.cores_per_node, partition.cores_per_worker
        if partition.gpus_per_node:
            unit, of_node, of_worker = "gpu_hours", partition.gpus_per_node, 1
        # Whole nodes are charged where nobody else may use them.
        count = placement.nodes * of_node if partition.exclusive else placement.workers * of_worker
        totals[unit] = totals.get(unit, 0.0) + count * seconds / 3600
    guessed = {cell.runtime for cell in to_do if looked[cell.key][1] == "guess"}
    told: dict[str, Any] = {"unknown": sum(what == "unknown" for _, what in looked.values()), "seconds": least_s}
    told |= {name: totals.get(name) for name in ("gpu_hours", "core_hours")}
    told["guessed"] = tuple(runtime for runtime in RUNTIMES if runtime in guessed)
    told["too_long"] = sum(seconds_of(cell) > (sweep.partition_of(cell).time_limit_s or math.inf) for cell in jobs)
    above = [name for name in _UNITS if totals.get(name, 0.0) > sweep.budget.get(name, math.inf)]
    told["over"] = tuple(f"{_hours(totals[x])} {_UNITS[x]} of {_hours(sweep.budget[x])}" for x in above)
    every = (*here, *(cell for each in allocations for cell in each.cells))
    return Plan(ledger=ledger, cells=every, allocations=allocations, **told)


def _least(sweep: StudyCells, cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells that are run at least: where a precision is the aim, those of as many launches as it takes."""
    return [cell for cell in cells if sweep.precision is None or cell.config.repeat < LAUNCHES]


@cache  # the thousands of a study are of few kinds
def _place(placement: Placement) -> str:
    """Return such as `8`, `10 on 2 nodes (8+2)` or `4 on node1 and node2 (2+2)`."""
    text, counts = str(placement.workers), [(count, 1) for count in placement.per_node]
    if placement.hosts:
        text += f" on {' and '.join(placement.hosts)}"
    elif placement.nodes > 1:
        text += f" on {placement.nodes} nodes"
    if placement.nodes == 1:
        return text
    if placement.nodes > 4:  # such as 8x100+2
        counts = list(Counter(placement.per_node).items())
    return f"{text} ({'+'.join(f'{count}x{times}' if times > 1 else str(count) for count, times in counts)})"


def _hours(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


_TRIES = 3
_BETWEEN_TRIES_S = 5.0


def submit_cells(
    sweep: StudyCells,
    cells: Sequence[Cell],
    *,
    console: Console,
    dry_run: bool = False,
    planned: Mapping[str, str] = MappingProxyType({}),
) -> list[Job]:
    """Submit `cells`, all of Slurm partitions, as few jobs; return these. Cells of live jobs are left out, and said so.

    `planned` says in which state each cell was when it was chosen. With `dry_run` the scripts and launch lines are
    printed, and nothing is written. Raises StudyError when Slurm does not answer or refuses a job (those submitted
    before stay), or another command submits.
    """
    directory = sweep.directory
    check_folder(directory)
    if dry_run:
        for job, allocation, text in _drafts(sweep, cells, planned, code=directory.resolve() / ".code" / "DIGEST"):
            show(console, text)
            _show(allocation, sweep.partitions[job.partition], directory.resolve(), console)
        return []
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_study(directory))
        except Held as held:
            if not held.claim.mine:
                raise
        book = JobBook(directory)
        if ask(("squeue", "--noheader", "--me", "--format=%i")) is None:
            raise StudyError(
                "squeue does not answer here, so it is not known what is submitted already; "
                "run this where squeue works (a login node), or see `horovod-study doctor`"
            )
        for job in (each for each in book.jobs if not each.job_id and not each.refused):
            # Of a command that died before it noted the number. What Slurm knows nothing of was never submitted.
            if number := book.job_id(job.name):
                slurm.write_job(directory, replace(job, job_id=number, submitted=job.written))
                show(console, f"found job {number} ({job.name}), submitted by a command that was broken off")
            elif all((job.name, task) not in book.states for task in range(len(job.tasks))):
                why = "the command that made it was broken off before it submitted it"
                slurm.write_job(directory, replace(job, refused=why))
        live = {key: state.job_id for job, task, state in book.live() for key in job.tasks[task]}
        for cell in (each for each in cells if each.key in live):
            show(console, f"not submitted again: {cell.name} is in job {live[cell.key]}")
        wanted = [cell for cell in cells if cell.key not in live]
        if not wanted:
            return []
        used = {cell.placement.partition for cell in wanted}
        remember(directory, [sweep.partitions[name] for name in sorted(used)])
        return [_submit(*draft, sweep, console) for draft in _drafts(sweep, wanted, planned, code=snapshot(directory))]


def check_folder(directory: Path) -> None:
    """Raise StudyError where jobs could not write their output below a folder of this name."""
    path = str(directory.resolve())
    if bad := set(path) & set("%\\\n"):
        told = f"Slurm takes {', '.join(sorted(map(repr, bad)))} in a path for a pattern"
        raise StudyError(f"{path!r}: {told}; choose another folder with --runs")


def _drafts(
    sweep: StudyCells, cells: Sequence[Cell], planned: Mapping[str, str], *, code: Path
) -> list[tuple[Job, Allocation, str]]:
    """Return the jobs that are ready to be submitted, what each allocates, and its script."""
    past, drafts = Estimate(past_durations(sweep.directory)), []

    def seconds_of(cell: Cell) -> float:  # as the plan does: what was learned, a guess, or its time limit
        return past.expected(cell, at_most_s=sweep.timeout_s)[0]

    for number, allocation in enumerate(allocate(cells, sweep.partitions, seconds_of, seed=sweep.seed), start=1):
        partition = sweep.partitions[allocation.partition]
        # It is unique, sorts by time, and says nothing to a shell, to sbatch or to a file system.
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{sweep.name}-{partition.name}").strip("-.")[:40]
        name = f"{slug or 'study'}-{utc_stamp()}-{number:03}-{secrets.token_hex(3)}"
        own = {each: value for each, value in sorted(os.environ.items()) if each.startswith("HOROVOD_STUDY_")}
        where: dict[str, Any] = {"folder": slurm.job_folder(sweep.directory.resolve(), name), "name": name}
        text = slurm.script(allocation, partition, **where, python=Path(sys.executable), code=code, variables=own)
        inside: dict[str, Any] = {"study": facts(sweep, "name", "seed", "timeout_s")}
        inside |= {"partition": partition.model_dump(), "environment": environment(partition)}
        inside["cells"] = [slurm.cell_values(cell) for cell in allocation.cells]
        inside["planned"] = {cell.key: planned.get(cell.key, "missing") for cell in allocation.cells}
        named: dict[str, Any] = {"name": name, "study": sweep.name, "partition": partition.name, "inside": inside}
        named |= {"written": utc_now(), "user": os.environ.get("USER", ""), "requeue": partition.requeue}
        tasks = tuple(tuple(cell.key for cell in task) for task in allocation.tasks)
        job = Job(**named, tasks=tasks, nodes=allocation.nodes, time_limit_s=allocation.time_limit_s)
        drafts.append((job, allocation, text))
    return drafts


def _submit(job: Job, allocation: Allocation, text: str, sweep: StudyCells, console: Console) -> Job:
    """Write the folder of a job completely, give it to sbatch, and note the number that it gives.

    When the answer of sbatch was lost on the way, Slurm is asked for the job's name.
    """
    directory, absent = sweep.directory, "sbatch is not on PATH; submit from a login node of the cluster, or choose a "
    folder = slurm.job_folder(directory.resolve(), job.name)
    with writing(folder, "make room there or choose another folder with --runs", error=StudyError):
        folder.mkdir(parents=True)
        write_file(folder / "script.sh", os.fsencode(text))
        write_file(folder / "study.yaml", sweep.text)
        write_file(folder / "partition.yaml", yaml.safe_dump(job.inside["partition"], sort_keys=False))
        slurm.write_job(directory, job)
    refuse("", (which("sbatch") is None, f"{absent}partition that is not of scheduler slurm"), error=StudyError)
    environ = slurm.submit_environment(os.environ, as_typed=allocation.cells[0].config.workload.folder is not None)
    how: dict[str, Any] = {"timeout_s": 120.0, "environ": environ, "folder": folder}
    told, lost, number = "", True, ""
    for attempt in range(_TRIES):
        if attempt:
            sleep(_BETWEEN_TRIES_S)
        answer = run_on("", ("sbatch", "--parsable", "script.sh"), **how)
        # `123;cluster` where there are several clusters.
        number = (answer.output.strip().splitlines() or [""])[-1].partition(";")[0]
        if answer.exit_code == 0 and number.isdigit():
            break
        said = [line.strip() for line in answer.errors.splitlines() if line.strip()]
        told = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said[-2:])
        told = told or answer.problem or "it gave no number"
        signs = ("timed out", "Unable to contact", "temporarily", "Connection")
        lost = answer.exit_code is None or any(word in told for word in signs)
        number = JobBook(directory).job_id(job.name) if lost else ""
        if number or not lost:
            break
    if not number:
        slurm.write_job(directory, replace(job, refused=f"sbatch: {told}"))
        what = f"sbatch refused the job ({told}); correct the partition's file or the study, and run it again; "
        what += f"the script is {folder / 'script.sh'}"
        if lost:
            what = f"Slurm does not take jobs now ({told}, {_TRIES} times); nothing is wrong with the study, "
            what += "run it again later"
        raise StudyError(f"partition {job.partition}: {what}")
    job = replace(job, job_id=number, submitted=utc_now())
    slurm.write_job(directory, job)
    many, each = (f", {len(job.tasks)} tasks", " each") if len(job.tasks) > 1 else ("", "")
    text = f"submitted job {job.job_id}{many}: {plural(len(allocation.cells), 'cell')}, {plural(job.nodes, 'node')}"
    show(console, f"{text} of {job.partition}, at most {duration(job.time_limit_s)}{each}; {folder}")
    return job


def _show(allocation: Allocation, partition: Partition, directory: Path, console: Console) -> None:
    """Print how the cells of a job will be launched, the nodes called node1, node2, ..."""
    show(console, "# The program in it will start its cells like this:")
    shown: dict[Any, Cell] = {}
    for cell in allocation.cells:
        shown.setdefault((cell.runtime, cell.placement), cell)
    for cell in shown.values():
        many = cell.placement.nodes
        hosts = cell.placement.hosts or tuple(f"node{number + 1}" for number in range(many))
        slots = zip(hosts, cell.placement.per_node, strict=False)
        there = tuple(Host(name=name, slots=count) for name, count in slots)
        site = replace(common_site(partition), hosts=there, allocation=True, port=20000, here=many == 1)
        path = {name: value for name, value in os.environ.items() if name == "PATH"}
        start = Starting(python=Path(sys.executable), environ=path, which=lambda name, path: name, site=site)
        config = directory / "cells" / f"{cell.key}.yaml"
        line = launch_line(cell, start, config=config, out=directory / cell.key)
        show(console, f"# {cell.name}\n{shlex.join(line.argv)}\n")


def cancel_jobs(directory: Path, *, keys: Collection[str] | None = None, console: Console, ask: Ask = ask) -> list[str]:
    """Take back the jobs, or tasks of jobs, all of whose cells are in `keys` (None: all of the study's that live).

    Returns their numbers in Slurm. Jobs that also have other cells go on; which of their cells are not wanted any more
    they see from the claims. StudyError: scancel refused one, it is another user's, or squeue does not answer and one
    may wait or run still.
    """
    book, user, ended = JobBook(directory, ask=ask), os.environ.get("USER", ""), []

    def meant(job: Job, task: int) -> bool:
        return keys is None or set(job.tasks[task]) <= set(keys)

    if silent := [job.job_id or job.name for job, task in book.unheard() if meant(job, task)]:
        raise StudyError(
            f"squeue does not answer here, so no job was taken back, and {', '.join(dict.fromkeys(silent))} may wait "
            "or run still; cancel again where squeue works (a login node)"
        )
    for job, task, state in [each for each in book.live() if each[2].job_id and meant(each[0], each[1])]:
        number = f"{state.job_id}_{task}" if len(job.tasks) > 1 else state.job_id
        foreign = bool(job.user and user and job.user != user)
        # By number alone: with a filter such as --name, scancel ends the whole array instead of a task that waits.
        failed = not foreign and ask(("scancel", number)) is None
        refuse(
            "",
            (foreign, f"job {number} was submitted by {job.user}; only {job.user} can cancel it"),
            (failed, f"scancel {number} failed; try it manually to see why"),
            error=StudyError,
        )
        ended.append(number)
        show(console, f"cancelled job {number} ({plural(len(job.tasks[task]), 'cell')})")
    return ended


TROUBLE = ("failed", "timed out", "pre-empted", "cancelled", "stopped", "incomplete")
RECENT_STEPS = 200  # So many steps, the last that all ranks have, are what is shown as now


class View(NamedTuple):
    """What one look at a study or a run shows."""

    lines: Sequence[str]
    news: Sequence[str]  # what a log is told, each when it is new
    over: bool  # nothing of it runs, or is going to
    every_s: float = 2.0  # it is worth another look after so long
    document: Mapping[str, Any] = MappingProxyType({})  # what `--json` prints


def how_far(record: records.RunRecord, at: tuple[int, int, float] | None) -> tuple[float | None, str]:
    """Return how far a run is whose last row is `at` (`records.last_step`): the share of its budget, and words."""
    if at is None:
        return (None, "no steps seen") if records.is_command(record) else (0.0, "starting")
    (steps, epoch, seconds), asked = at, record.requested
    warmup = asked.get("warmup_steps") or 0
    if total := asked.get("steps"):
        return min(1.0, steps / (total + warmup)), f"{steps:,} of {total + warmup:,} steps"
    if total := asked.get("seconds"):
        return min(1.0, seconds / total), f"{duration(min(seconds, total))} of {duration(total)}"
    if total := asked.get("epochs"):
        samples, batch = record.effective.get("train_samples"), record.effective.get("global_batch")
        done = max(0, steps - warmup) * batch / samples if samples and batch else float(epoch)
        return min(1.0, done / total), f"epoch {min(int(done) + 1, math.ceil(total))} of {total:g}"
    return None, f"{steps:,} steps"


def study_view(sweep: StudyCells) -> View:
    """Return what there is to see of a study now: its cells, how far the running ones are, and the time left."""
    ledger = read_ledger(sweep)
    estimate, summary = Estimate(past_durations(ledger.directory)), ledger.summary()
    state = {each: [entry for entry in ledger.entries if entry.state == each] for each in ledger.counts()}
    going = {entry.key: _going(ledger.directory, entry, estimate) for entry in state["running"]}
    # A live process that holds anything of the study beside its cells goes on to the next one.
    claims = ledger.directory / lease.CLAIMS
    names = lease.generations(claims).keys() - {entry.key for entry in ledger.entries}
    held = [claim for name in names if (claim := lease.latest(claims, name)) is not None and claim.released is None]
    at_work = any(not lease.is_stale(each, present=server_time(ledger.directory)) for each in held)
    ahead = state["queued"] + [entry for each in BY_ITSELF if at_work for entry in state[each]]
    parts = [*(rest for _, rest in going.values()), *(estimate.of(entry.cell) for entry in ahead)]
    busy = bool(parts or at_work)
    left = str(together(parts, lanes=max(1, len(going)))) if busy else "nothing runs and nothing is queued"
    ended = ledger.count("done", "failed", "timed out", "cancelled")
    told = f"{ended} of {'at most ' * bool(ledger.reached)}{len(ledger.entries)} ended; {left}"
    lines = [*ledger.lines({key: text for key, (text, _) in going.items()}), "", summary, told]
    wrong = [f"{each.state}: {each.name}: {each.reason}" for each in ledger.entries if each.state in TROUBLE]
    news = [*wrong, summary if busy else f"{summary}; {left}"]
    every_s = 15.0 if (sweep.directory / JOBS).is_dir() else 2.0  # sites do not like their scheduler to be asked often
    return View([*lines, f"runs: {ledger.directory}"], news, not busy, every_s, ledger.document())


def _going(directory: Path, entry: Entry, estimate: Estimate) -> tuple[str, TimeLeft]:
    """Return how far a running cell is, and how long it goes on."""
    record, at, share, text = None, None, None, ""
    with suppress(RecordError):  # moved away since
        record = records.read_run(directory / entry.key) if entry.recorded else None
    if record is not None and record.status == "running":  # else it is that of the attempt before
        at = _last_step(directory / entry.key)
        share, text = how_far(record, at)
    elif entry.cell.config.workload.small is None:  # its record begins with its second step
        text = "no steps seen yet"
    text = text if share is None else f"{100 * share:.0f} %, {text}"
    if at is not None and share is not None and share > 0.05:
        return text, TimeLeft(seconds=at[2] * (1 / share - 1), guess=False)
    return text, estimate.left([entry.cell], running_s=at[2] if at else 0.0)


def run_now(directory: Path) -> dict[str, Any]:
    """Return what a run did in its recent steps, as `status RUN --json` prints it: seconds per step, None is unknown.

    Any run directory will do: of the package's trainer, of the recorder in a script, of `record -- COMMAND`. Raises
    RecordError where there is none, and StudyError with how far a command is that has made no step yet.
    """
    if not (directory / records.MANIFEST).exists() and (waiting := before_the_first_step(directory)):
        raise StudyError(f"{directory}: {waiting}")
    record, at = records.read_run(directory), _last_step(directory)
    written = [directory, *directory.absolute().parent.glob(f".{glob.escape(directory.name)}.*{PART}")]
    found: dict[str, Any] = {"status": record.status, "silent_s": min(map(records.silent_s, written))}
    found |= {"steps": at[0] if at else 0, "ranks": []}
    found |= dict.fromkeys(("steps_per_s", "samples_per_s", "wait_share", "slowest_rank"))
    ranks = records.step_ranks(directory)
    rows = {rank: records.read_steps(directory, rank) for rank in ranks} or noted_steps(directory)
    common = min((len(each["step_s"]) for each in rows.values()), default=0)
    if not common or len(rows) != record.effective.get("workers"):
        return found
    first = max(0, common - RECENT_STEPS)
    step, sync, begin, samples = (
        np.array([np.asarray(each[name])[first:common] for each in rows.values()], dtype=float)  # ranks x steps
        for name in ("step_s", "sync_s", "begin_s", "samples")
    )
    seconds = float(begin[0, -1] + step[0, -1] - begin[0, 0]) or math.nan
    own = np.median(step - sync, axis=1)  # all but the wait for other ranks
    late = [own[k] - np.median(np.delete(own, k)) if len(own) > 1 else math.nan for k in range(len(own))]
    for k, (rank, host) in enumerate(records.hosts_of(record, rows).items()):
        times = {"step_s": step[k].mean(), "wait_s": sync[k].mean(), "late_s": late[k]}
        found["ranks"].append({"rank": rank, "host": host} | {n: finite_or_none(each) for n, each in times.items()})
    rates = {"steps_per_s": (common - first) / seconds, "samples_per_s": samples.sum() / seconds}
    found |= {name: finite_or_none(each) for name, each in {**rates, "wait_share": sync.sum() / step.sum()}.items()}
    return found | {"slowest_rank": list(rows)[int(np.nanargmax(late))] if np.isfinite(late).any() else None}


def _last_step(directory: Path) -> tuple[int, int, float] | None:
    """Return what `records.last_step` does, also of a command whose steps are noted and no rows yet."""
    at = records.last_step(directory)
    if at is None and (rows := noted_steps(directory).get(0)) and (steps := len(rows["step_s"])):
        at = steps, int(rows["epoch"][-1]), float(rows["begin_s"][-1] + rows["step_s"][-1] - rows["begin_s"][0])
    return at


def run_view(directory: Path) -> View:
    """Return what there is to see of a run now."""
    seen, record = run_now(directory), records.read_run(directory)
    ranks = sorted(seen["ranks"], key=lambda each: -(each["late_s"] or 0.0))
    share, text = how_far(record, _last_step(directory))
    facts = [text if share is None else f"{text}, {100 * share:.0f} %"]
    if seen["steps_per_s"] is not None:
        rate = "" if seen["samples_per_s"] is None else f", {seen['samples_per_s']:,.0f} samples/s"
        waits = "unknown" if seen["wait_share"] is None else f"{100 * seen['wait_share']:.1f} % of the ranks' time"
        facts += [f"speed {seen['steps_per_s']:,.1f} steps/s{rate}", f"waiting for gradients {waits}"]
    rows = []
    for each in ranks:
        times = (each[name] for name in ("step_s", "wait_s", "late_s"))
        milliseconds = ("" if time is None else f"{round(1e3 * time, 2) + 0.0:.2f}" for time in times)  # no -0.00
        rows.append((f"{each['rank']}", *milliseconds, each["host"]))
    if seen["slowest_rank"] is not None:
        facts += [f"slowest rank {rows[0][0]} on {rows[0][4]}, {rows[0][3]} ms over the others"]
    heads = ("rank", "step ms", "wait ms", "over others ms", "host")
    table = ["", *to_lines(table_of(heads, rows, texts=(4,)))] if len(rows) > 1 else []
    silent = seen["status"] == "running" and seen["silent_s"] > 60.0
    head = f"{directory.name}: {seen['status']}" + f", nothing was written for {seen['silent_s']:.0f} s" * silent
    return View([head, *facts, *table], ["; ".join([head, *facts])], seen["status"] != "running", document=seen)


def watch(look: Callable[[], View], console: Console) -> int:
    """Show what `look` finds until it is over or Ctrl-C; return the exit code, 0.

    A terminal shows the lines, which are cut and not wrapped. Elsewhere a line is printed when something changes.
    """
    terminal, told = console.is_terminal and not console.is_dumb_terminal, list[str]()
    live = Live(console=console, auto_refresh=False, redirect_stderr=False) if terminal else None
    with suppress(KeyboardInterrupt), live or nullcontext():  # whoever watches leaves; what is watched goes on
        while True:
            began, view = now(), look()
            if live:
                live.update(Text("\n".join(view.lines), no_wrap=True, overflow="ellipsis"), refresh=True)
            for line in [] if live else [each for each in view.news if each not in told]:
                show(console, line)
            told = [*view.news]
            if view.over:
                break
            sleep(max(view.every_s, 20 * (now() - began)))  # reading takes 5 % of one core at most
    return 0
