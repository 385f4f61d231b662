"""What a library that averages gradients declares of itself; its code is below comm/, and loads it."""

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
    """A library, with its transports in the order in which they are listed."""

    name: str
    label: str  # for readers
    place: int  # in lists of libraries
    implementation: str  # module and class of its Backend, `package.module:Class`
    transports: tuple[Transport, ...]
    start_up_s: float  # guessed seconds of a run outside its timed window, until one has been seen
    hooks: bool = False  # whether `auto` reduces gradients from hooks, as far as nothing is known of the model

    def runtime(self, transport: Transport) -> str:
        """Return the name of the pair; a library without messages has its own."""
        return self.name if transport.name == "none" else f"{self.name}/{transport.name}"
