"""Where the ranks of a cell are started, and by what: nothing but this machine, hosts over ssh, or an allocation."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine by its name, and how many workers it takes."""

    name: str
    slots: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What a launch line needs to know beside the cell."""

    hosts: tuple[Host, ...] = ()  # in the order of the ranks, slots = ranks on it; empty: this machine, not over ssh
    launcher: str = "auto"  # auto | horovodrun | mpirun | srun | torchrun
    interface: str | None = None  # network interface between the hosts
    allocation: bool = False  # inside a Slurm job, whose nodes are `hosts`: remote processes are started by srun
    srun_mpi: str | None = None  # `srun --mpi=...` for MPI programs
    cores_per_worker: int | None = None  # given to each rank by srun; None: not said
    environment: Mapping[str, str] = field(default_factory=dict)  # of the partition, for every rank
    port: int | None = None  # where rank 0 is met by the others, for launchers that do not arrange that; None: chosen
