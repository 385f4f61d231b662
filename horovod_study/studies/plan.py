"""What a study will do and take, before anything runs: its cells, its jobs, hours, and what exceeds its budget."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from horovod_study.analysis.paired import LAUNCHES
from horovod_study.cluster.slurm import Allocation, allocate, blocks
from horovod_study.config.partitions import Partition
from horovod_study.config.roles import Role, plain
from horovod_study.config.run import Cell, Placement
from horovod_study.records import facts
from horovod_study.runtimes import CARRIED, RUNTIMES
from horovod_study.studies.ledger import Ledger
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import alternating
from horovod_study.text.progress import duration
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
_MOST_VALUES = 8  # of an option
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
        lines += ["", _varied(sweep)] if sweep.varied else []
        blocks, alone = alternating(sweep, self.cells)
        lines += [""] if blocks or alone else []
        if blocks:
            sizes = sorted({len(part.cells) for part in blocks})
            each = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
            many = plural(len(blocks), "block")
            lines.append(f"in turns: {many} of {each} cells that are started together and alternate")
        for reason, count in Counter(alone.values()).most_common():
            lines.append(f"alone: {plural(count, 'cell')}: {reason}")
        if sweep.left_out:
            lines.append(f"left out, because there is no such pair: {', '.join(sweep.left_out)}")
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


def _varied(sweep: StudyCells) -> str:
    """Return what is varied beside runtimes and placements."""
    values = {name: dict[str, None]() for name in sweep.varied}
    strong = sweep.scaling == "strong"
    for cell in (each for each in sweep.cells if each.config.repeat == 0):
        for name, found in values.items():
            option = cell.config.workload.options[name]
            if name == "batch" and strong:
                found.setdefault(str(cell.config.batch * cell.placement.workers))
            elif option.matters(cell.runtime) and not (cell.runtime == "serial" and option.roles & Role.SEVERAL):
                found.setdefault(plain(getattr(cell.config, name)))
    texts = []
    for name, found in values.items():
        more = f", ... ({len(found)} values)" if len(found) > _MOST_VALUES else ""
        named = "batch of all workers together" if name == "batch" and strong else name
        texts.append(f"{named} {', '.join([*found][:_MOST_VALUES])}{more}")
    return f"varied: {'; '.join(texts)}"


def _hours(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
