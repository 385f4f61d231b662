"""The cells of a study as everybody below its file gets them: they are run, counted and shown without the file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the file of a study says of all of its cells."""

    name: str
    partitions: Mapping[str, Partition] = field(default_factory=dict)  # by name; those of the cells at least
    seed: int = 1  # of the order within a repeat
    timeout_s: float = 900.0  # of a cell
    turns: bool = False  # the cells of a repeat alternate, where they fit together
    precision: float | None = None  # the half width of each wanted ratio's interval that ends it, relative
    budget: Mapping[str, float] = field(default_factory=dict)  # hours, gpu_hours, core_hours; more is asked about
    left_out: tuple[str, ...] = ()  # pairs of backend and transport that do not exist
    source: Path | None = None  # the file
    text: str = ""  # that file as it was read

    @property
    def here(self) -> str:
        """What messages about it begin with."""
        return str(self.source or f"study {self.name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCells(Asked):
    """Cells in the folder of a study, and what is the same for all of them.

    `study_file.sweep_of` makes it of a study's file, the program inside a job of the job's folder.
    """

    directory: Path  # RUNS/<name>
    cells: tuple[Cell, ...]
    part: bool = False  # of a design: they are run in their order, and other runs in the folder are its, too
    equal_steps: bool = False  # cells that alternate make as many steps as that of them which makes most, in one go
    least_steps: int = 1  # of a slice, however long they take
    wanted: tuple[tuple[str, str], ...] = ()  # ratios: labels of cell and base
    varied: tuple[str, ...] = ()  # options in which cells differ
    scaling: str = "weak"  # strong: the batch of all workers together is given

    def partition_of(self, cell: Cell) -> Partition:
        """Return where a cell of it goes."""
        return self.partitions[cell.placement.partition]
