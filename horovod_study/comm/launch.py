"""How this process was started, read from the environment variables that launchers set."""

import importlib.util
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from horovod_study.errors import BackendError


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launcher, rank and number of workers as the environment tells them, before any library is asked."""

    launcher: str  # horovodrun --gloo | mpirun | torchrun | srun | none
    rank: int
    workers: int
    backend: str  # what `--backend auto` becomes


_LAUNCHERS = (
    # launcher, rank, number of workers, and what else it sets; the innermost one first: mpirun runs under srun,
    # torchrun under either, and a rank inherits what all of them have set
    ("horovodrun --gloo", "HOROVOD_RANK", "HOROVOD_SIZE", None),
    ("torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    ("torchrun", "RANK", "WORLD_SIZE", None),
    ("mpirun", "PMI_RANK", "PMI_SIZE", None),
    # A batch script and an interactive shell have SLURM_PROCID and SLURM_NTASKS too; only a step tells of its tasks.
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", None),
)


def detect(environ: Mapping[str, str]) -> Launch:
    """Return who launched this process; a process started by hand is rank 0 of 1.

    `horovodrun` over MPI is `mpirun` here: it leaves no trace of its own. Under mpirun and srun the backend is Horovod
    where it is installed, mpi4py otherwise. One task of srun may be a shell: it is nobody's rank.
    """
    for launcher, rank, workers, mark in _LAUNCHERS:
        if rank in environ and workers in environ and (mark is None or mark in environ):
            if launcher == "srun" and environ[workers] == "1":
                continue
            backend = {"horovodrun --gloo": "horovod", "torchrun": "ddp"}.get(launcher)
            if backend is None:
                backend = "horovod" if importlib.util.find_spec("horovod") else "mpi"
            return Launch(launcher=launcher, rank=int(environ[rank]), workers=int(environ[workers]), backend=backend)
    return Launch(launcher="none", rank=0, workers=1, backend="serial")


def meeting_point(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and port of rank 0 at which ranks meet that mpirun or srun started, None where none is given.

    Raises BackendError for a port that is none.
    """
    if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
        return None
    host, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise BackendError(f"MASTER_PORT is {port!r}; allowed: a number from 1 to 65535, the same for all ranks")
    return host, int(port)


def require_interfaces(environ: Mapping[str, str], variable: str) -> None:
    """Raise BackendError where `variable` names a network interface that this host does not have; Gloo would abort."""
    there = [name for _, name in socket.if_nameindex()]
    for name in environ.get(variable, "").split(","):
        if name and name not in there:
            raise BackendError(
                f"{variable} is {environ[variable]!r}, but {os.uname().nodename} has no network interface {name}; it "
                f"has {', '.join(there)}"
            )


def foreign_port(host: str, port: int, rank: int, error: Exception) -> BackendError:
    """Return what to say of a failure to meet at `host`:`port`."""
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    if rank == 0 and "EADDRINUSE" in str(error):
        return BackendError(
            f"port {port} of {host} is taken by another program, so the ranks cannot meet there; start again, or set "
            "MASTER_PORT to a free port"
        )
    return BackendError(
        f"rank {rank} cannot meet the others at {host}:{port} ({why}); check that the host of rank 0 is {host}, and "
        "that the other hosts reach it"
    )
