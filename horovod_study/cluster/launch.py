"""LaunchLine lines: the command that starts the workers of one cell, as a pure function, and its environment.

    serial          python -m horovod_study.train
    horovod/mpi     horovodrun --mpi -np N python -m horovod_study.train
    horovod/gloo    horovodrun --gloo -np N python -m horovod_study.train
    horovod/nccl    horovodrun -np N python -m horovod_study.train
    ddp/gloo, nccl  python -m torch.distributed.run --standalone --nproc-per-node N -m horovod_study.train
    others/mpi      mpirun --host localhost:N --bind-to none -np N python -m horovod_study.train

Each is followed by `--config CELL.yaml --out DIR`, or `--resume DIR` for a cell that goes on from its checkpoint.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod_study.config import Cell
from horovod_study.errors import StudyError

TRAINER = "horovod_study.train"
MARKER = "HOROVOD_STUDY_CELL"
"""Environment variable with the absolute run directory: every process of a cell inherits it and is found by it."""

_HOROVODRUN = {"mpi": ("--mpi",), "gloo": ("--gloo",), "nccl": ()}  # NCCL starts over whichever controller was built

# What an enclosing mpirun, horovodrun, torchrun or srun tells its workers about themselves. A cell that inherited it
# would take itself for a worker of that job. Settings a user chooses (OMPI_MCA_btl, HOROVOD_CYCLE_TIME, ...) stay.
_SCRUBBED_PREFIXES = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "TORCHELASTIC_",
    "HOROVOD_GLOO_RENDEZVOUS_",
    "SLURM_STEP",
)
_SCRUBBED_NAMES = frozenset(
    """
    HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE
    HOROVOD_HOSTNAME HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_ELASTIC
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME
    MASTER_ADDR MASTER_PORT
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_GTIDS SLURM_TASK_PID
    """.split()
)
_KEPT_PREFIXES = ("OMPI_MCA_", "PMIX_MCA_", "PMIX_INSTALL_PREFIX")
_JOB_PARAMETERS = (  # written by mpirun itself, though they look like a user's settings
    "OMPI_MCA_ess",
    "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_mpi_oversubscribe",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint",
    *(
        f"OMPI_MCA_orte_{name}"
        for name in (
            "app_num",
            "bound_at_launch",
            "ess_",
            "hnp_uri",
            "jobfam_session_dir",
            "launch",
            "local_daemon_uri",
            "num_nodes",
            "precondition_transports",
            "tag_output",
            "top_session_dir",
        )
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchLine:
    """What to execute, and the whole environment to execute it in."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def launch_line(
    cell: Cell,
    *,
    python: Path,
    config: Path,
    out: Path,
    environ: Mapping[str, str],
    root: bool = False,
    resume: bool = False,
    which: Callable[[str, str], str | None] | None = None,
) -> LaunchLine:
    """Return how to start `cell` with the interpreter `python`, its configuration file and its run directory.

    Launchers are taken from the folder of `python`, else from PATH; `which(name, search_path)` looks them up.
    A missing one is a StudyError saying how to get it. `root`: Open MPI starts for root only when told to.
    """
    where = ("--resume" if resume else "--out", str(out.absolute()))
    job = ("-m", TRAINER, "--config", str(config.absolute()), *where)
    return program_line(
        cell.runtime, cell.placement.workers, job, python=python, out=out, environ=environ, root=root, which=which
    )


def program_line(
    runtime: str,
    workers: int,
    job: Sequence[str],
    *,
    python: Path,
    out: Path,
    environ: Mapping[str, str],
    root: bool = False,
    which: Callable[[str, str], str | None] | None = None,
) -> LaunchLine:
    """Return how to start `workers` ranks of `python *job` over `runtime`, marked as the job in the folder `out`."""
    folder = str(python.parent)
    search = os.pathsep.join(part for part in (folder, environ.get("PATH", "")) if part)
    count = str(workers)
    backend, _, transport = runtime.partition("/")
    if backend == "serial":
        argv: tuple[str, ...] = (str(python), *job)
    elif backend == "horovod":
        launcher = _launcher("horovodrun", runtime, folder, search, which)
        argv = (launcher, *_HOROVODRUN[transport], "-np", count, str(python), *job)
    elif backend == "ddp" and transport != "mpi":
        argv = (str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, *job)
    else:
        launcher = _launcher("mpirun", runtime, folder, search, which)
        # Without a host list Open MPI counts physical cores and refuses the second hardware thread of each.
        placed = ("--host", f"localhost:{count}", "--bind-to", "none")
        argv = (launcher, *(("--allow-run-as-root",) if root else ()), *placed, "-np", count, str(python), *job)
    return LaunchLine(argv=argv, environment=cell_environment(environ, path=search, out=out))


def _launcher(name: str, runtime: str, folder: str, search: str, which: Callable[[str, str], str | None] | None) -> str:
    found = which(name, search) if which else shutil.which(name, path=search)
    if found is None:
        raise StudyError(
            f"runtime {runtime} needs the program {name}, which is neither in {folder} nor on PATH; "
            f"run `make setup`, or leave {runtime} out of sweep.runtime"
        )
    return found


def cell_environment(environ: Mapping[str, str], *, path: str, out: Path) -> dict[str, str]:
    """Return `environ` without the ranks of an enclosing job, with `path` as PATH and marked as the cell in `out`."""
    kept = {name: value for name, value in environ.items() if not _describes_enclosing_job(name)}
    # Unbuffered, so that the log of a killed cell holds all that was printed.
    return {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", MARKER: str(out.absolute())}


def _describes_enclosing_job(name: str) -> bool:
    if name.startswith(_JOB_PARAMETERS):
        return True
    return name in _SCRUBBED_NAMES or (name.startswith(_SCRUBBED_PREFIXES) and not name.startswith(_KEPT_PREFIXES))


def refuse_oversubscription(cells: Iterable[Cell], cores: int) -> None:
    """Raise a StudyError when a cell has more workers than there are cores: they would measure how cores are shared."""
    largest = max((cell.placement.workers for cell in cells), default=0)
    if largest > cores:
        raise StudyError(
            f"the study asks for {largest} workers, but this machine offers {cores} core{'' if cores == 1 else 's'}; "
            "lower sweep.workers, or write `workers: cores` to use what is there"
        )
