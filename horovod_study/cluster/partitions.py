"""Partitions as data: what a node of one is, how jobs get there, and what its runs need around them.

A partition is a YAML file, `jobs/partitions/NAME.yaml` or any path; `jobs/README.md` explains every key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from horovod_study.cluster.site import Host

SCHEDULERS = ("local", "ssh", "slurm")
LAUNCHERS = ("auto", "horovodrun", "mpirun", "srun", "torchrun")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A kind of node and how to get to it. A slot is what one worker takes: a GPU, or cores where there are none."""

    name: str
    description: str = ""
    scheduler: str = "local"  # one of SCHEDULERS
    nodes: int | None = 1  # how many there are; None: unknown
    gpus_per_node: int = 0
    cores_per_node: int = 1
    cores_per_worker: int = 1  # cpus per task: cores / GPUs unless said
    memory_per_core_mb: int | None = None  # MB (2**20 bytes) as Slurm counts them
    exclusive: bool = True  # nodes are not shared with other jobs
    interconnect: str = ""  # for the report, such as "InfiniBand HDR"
    interface: str | None = None  # network interface for Gloo, NCCL's bootstrap and MPI over TCP
    hosts: tuple[Host, ...] = ()  # of scheduler ssh: where workers go, in this order
    launcher: str = "auto"  # one of LAUNCHERS
    modules: tuple[str, ...] = ()  # loaded in this order in a job script
    environment: Mapping[str, str] = field(default_factory=dict)  # set for all workers
    because: Mapping[str, str] = field(default_factory=dict)  # variable -> why it is set
    # Slurm
    slurm_partition: str | None = None  # its name there; None: the default one
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None  # how GPUs are asked for, "gpu:{gpus}" or "gpu:a100:{gpus}"; None: no GPUs are
    time_limit_s: float | None = None  # longest job allowed there
    requeue: bool = True
    srun_mpi: str | None = None  # `srun --mpi=...` for MPI programs; None: MPI is started by mpirun

    @property
    def slots_per_node(self) -> int:
        """Workers that a node takes without sharing."""
        return self.gpus_per_node or max(1, self.cores_per_node // self.cores_per_worker)
