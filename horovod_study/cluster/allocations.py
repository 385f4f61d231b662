"""Cells of a study put into jobs: one for each way of placing workers, in which all runtimes and repeats alternate.

A job waits in the queue once and then runs many cells: all of one worker count sit on the same nodes, so that runtimes
are compared on the same hardware in the same hour, and a slow drift falls on all of them alike. Where the longest job
that a partition allows is too short for all cells of a placement, the job becomes an array of tasks.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell, Placement

MARGIN = 1.5  # A job is allowed so many times what its cells are expected to take: expectations are medians or guesses
START_S = 300.0  # And so many seconds more, for its start, loading modules, and the first reading of the data
STEP_S = 300.0


def blocks(cells: Sequence[Cell], seed: int) -> list[list[Cell]]:
    """Return the cells in the order to run them: one block per repeat, each shuffled with the study's seed.

    A slow drift of the machine then falls on all cells alike, and the first block alone already gives a whole picture.
    """
    found = {n: [cell for cell in cells if cell.config.repeat == n] for n in sorted({c.config.repeat for c in cells})}
    for repeat, block in found.items():
        random.Random(f"{seed}/{repeat}").shuffle(block)
    return list(found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Nodes asked for once, and the cells that are run on them; several tasks are a job array."""

    partition: str
    nodes: int
    tasks: tuple[tuple[Cell, ...], ...]  # in the order in which they are run
    seconds: float  # expected, of all tasks one after the other
    time_limit_s: float  # of each task

    @property
    def placement(self) -> Placement:
        """How the workers sit on the nodes, the same for all cells."""
        return self.tasks[0][0].placement

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, in the order in which they are run."""
        return tuple(cell for task in self.tasks for cell in task)


def allocate(
    cells: Sequence[Cell], partitions: Mapping[str, Partition], seconds_of: Callable[[Cell], float], *, seed: int
) -> tuple[Allocation, ...]:
    """Return the jobs that run `cells`, each cell in exactly one; few workers first, partitions in their order.

    `seconds_of` says how long a cell is expected to take; `seed` is that of the order within each repeat.
    """
    groups: dict[tuple[str, tuple[int, ...], tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        where = cell.placement
        groups.setdefault((where.partition, where.per_node, where.hosts), []).append(cell)
    order = {name: place for place, name in enumerate(partitions)}
    allocations = []
    for key in sorted(groups, key=lambda key: (order[key[0]], sum(key[1]), len(key[1]), key[1], key[2])):
        longest_s = partitions[key[0]].time_limit_s
        room_s = math.inf if longest_s is None else max(0.0, (longest_s - START_S) / MARGIN)
        tasks, expected_s = list[list[Cell]](), list[float]()
        for cell in (cell for block in blocks(groups[key], seed) for cell in block):
            if not tasks or expected_s[-1] + seconds_of(cell) > room_s:  # a cell that never fits is a task of its own
                tasks.append([])
                expected_s.append(0.0)
            tasks[-1].append(cell)
            expected_s[-1] += seconds_of(cell)
        asked = {"seconds": sum(expected_s), "time_limit_s": time_limit_s(max(expected_s), longest_s)}
        allocations.append(Allocation(partition=key[0], nodes=len(key[1]), tasks=tuple(map(tuple, tasks)), **asked))
    return tuple(allocations)


def time_limit_s(expected_s: float, longest_s: float | None) -> float:
    """Return the seconds to ask for: the expected ones with a margin in whole five minutes, at most `longest_s`."""
    wanted_s = max(900.0, STEP_S * math.ceil((MARGIN * expected_s + START_S) / STEP_S))
    return wanted_s if longest_s is None else min(wanted_s, longest_s)
