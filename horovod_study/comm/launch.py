"""How this process was started, read from the environment variables that launchers set."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launcher, rank and number of workers as the environment tells them, before any library is asked."""

    launcher: str  # horovodrun --gloo | mpirun | torchrun | srun | none
    rank: int
    workers: int
    backend: str  # what `--backend auto` becomes


_LAUNCHERS = (
    # launcher, rank, number of workers; the first whose two variables are set wins: mpirun may run under srun
    ("horovodrun --gloo", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS"),
)


def detect(environ: Mapping[str, str]) -> Launch:
    """Return who launched this process; a process started by hand is rank 0 of 1.

    `horovodrun` over MPI is `mpirun` here: it leaves no trace of its own. Under mpirun and srun the backend is Horovod
    where it is installed, mpi4py otherwise.
    """
    for launcher, rank, workers in _LAUNCHERS:
        if rank in environ and workers in environ:
            if launcher == "srun" and environ[workers] == "1":
                continue  # a batch script's single step, or an interactive shell inside an allocation
            backend = {"horovodrun --gloo": "horovod", "torchrun": "ddp"}.get(launcher)
            if backend is None:
                backend = "horovod" if importlib.util.find_spec("horovod") else "mpi"
            return Launch(launcher=launcher, rank=int(environ[rank]), workers=int(environ[workers]), backend=backend)
    return Launch(launcher="none", rank=0, workers=1, backend="serial")
