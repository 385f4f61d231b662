"""Runtimes: pairs of a library that averages gradients and what carries its messages; and where workers are put.

A library declares itself in a row of `LIBRARIES`, and its code is below comm/: two files, and nobody else has a list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """What carries a library's messages, how ranks over it are started, and what is set for them.

    Programs that start ranks, best first: on this machine, on hosts over ssh, inside a job of Slurm ("srun+mpi": srun
    with its own connection for MPI).
    """

    name: str
    here: tuple[str, ...] = ("mpirun",)
    over_ssh: tuple[str, ...] = ("mpirun",)
    in_job: tuple[str, ...] = ("srun+mpi", "mpirun")
    start: str = "mpirun -np"  # how a person starts it, before the number of workers
    shipped: Mapping[str, str] = field(default_factory=dict)  # variable -> value, where the user has set nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A library that averages gradients, with its transports in the order in which they are listed."""

    name: str
    label: str  # for readers
    implementation: str  # module and class of its Backend, `package.module:Class`; loaded by comm/
    transports: tuple[Transport, ...]
    start_up_s: float  # guessed seconds of a run outside its timed window, until one has been seen
    hooks: bool = False  # whether `auto` reduces gradients from hooks, as far as nothing is known of the model

    def runtime(self, transport: Transport) -> str:
        """Return the name of the pair; a library without messages has its own."""
        return self.name if transport.name == "none" else f"{self.name}/{transport.name}"


_MPI = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
_IDLE = {"HOROVOD_IDLE_CYCLE_TIME": "10"}  # ms, as are all of these


def _horovod(name: str, flag: str, in_job: str, **shipped: str) -> Transport:
    by, start = ("horovodrun", "mpirun"), f"horovodrun {flag} -np"
    return Transport(name=name, here=by, over_ssh=by, in_job=tuple(in_job.split()), start=start, shipped=shipped)


def _ddp(name: str) -> Transport:
    start = "torchrun --nproc-per-node"
    return Transport(name=name, here=("torchrun", "mpirun"), in_job=("srun", "mpirun"), start=start)


LIBRARIES = {
    each.name: each
    for each in (
        Library(
            name="serial",
            label="plain PyTorch",
            implementation="horovod_study.comm.base:SerialBackend",
            transports=(Transport(name="none", here=(), in_job=("srun", "mpirun")),),
            start_up_s=3.0,
        ),
        Library(
            name="horovod",
            label="Horovod",
            implementation="horovod_study.comm.horovod:HorovodBackend",
            transports=(
                _horovod("mpi", "--mpi", "srun+mpi mpirun horovodrun", **_IDLE, HOROVOD_CYCLE_TIME="0.05", **_MPI),
                _horovod("gloo", "--gloo", "srun mpirun horovodrun", **_IDLE),
                _horovod("nccl", "--mpi", "srun+mpi mpirun srun horovodrun", **_IDLE, HOROVOD_CYCLE_TIME="0.1"),
            ),
            start_up_s=6.0,
        ),
        Library(
            name="ddp",
            label="PyTorch DDP",
            implementation="horovod_study.comm.distributed:DistributedBackend",
            transports=(_ddp("gloo"), _ddp("nccl"), Transport(name="mpi", start="torchrun --nproc-per-node")),
            start_up_s=6.0,
            hooks=True,
        ),
        Library(
            name="mpi",
            label="direct",
            implementation="horovod_study.comm.mpi:MpiBackend",
            transports=(Transport(name="mpi", shipped=_MPI),),
            start_up_s=4.0,
        ),
        Library(
            name="ps",
            label="parameter server",
            implementation="horovod_study.comm.mpi:PsBackend",
            transports=(Transport(name="mpi", shipped=_MPI),),
            start_up_s=4.0,
        ),
    )
}
CARRIED = {each.runtime(carrier): (each, carrier) for each in LIBRARIES.values() for carrier in each.transports}
"""runtime -> its library and its transport."""
BACKENDS = tuple(LIBRARIES)
RUNTIMES = tuple(CARRIED)
"""backend/transport pairs that a study can sweep over."""
TRANSPORTS = tuple(dict.fromkeys(("none", "nccl", "mpi", "gloo", *(each.name for _, each in CARRIED.values()))))
PLACEMENTS = ("fill", "spread", "list")
"""How workers are put on nodes: a node is filled before the next, all nodes get alike many, or the nodes are named."""
