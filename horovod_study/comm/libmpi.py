"""Which MPI this process really loaded, whether it takes pointers to GPU memory, and whether it is the launcher's.

Every MPI sets variables of its own and its processes find each other in a way of its own. A worker of another MPI than
the launcher's does not fail: it takes itself for the only one, and N workers train N times the same.
"""

import ctypes
import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod_study.comm.launch import Launch
from horovod_study.errors import BackendError
from horovod_study.text.words import plural

_MAPS = Path("/proc/self/maps")


def loaded_library(maps: Path = _MAPS) -> str | None:
    """Return the path of the MPI library in this process; None before one is loaded, or where maps are not shown."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return None
    # address, permissions, offset, device, inode, path
    paths = [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]
    return next((path for path in paths if re.match(r"libmpi(ch)?\.so", Path(path).name)), None)


def cuda_aware() -> dict[str, Any]:
    """Return {"value": whether MPI takes device pointers, "source": who says so}; asked once MPI is loaded."""
    path = loaded_library()
    if path is not None:
        query = getattr(ctypes.CDLL(path), "MPIX_Query_cuda_support", None)
        if query is not None:
            return {"value": bool(query()), "source": "MPIX_Query_cuda_support"}
    asked = os.environ.get("OMPI_MCA_opal_cuda_support")
    if asked is not None:
        return {"value": asked.lower() in ("1", "true", "yes"), "source": "OMPI_MCA_opal_cuda_support"}
    return {"value": False, "source": "the MPI library does not say"}


def own_library(prefix: Path = Path(sys.prefix)) -> Path | None:
    """Return the MPI library that is in the environment itself (Open MPI's wheel), None where there is none."""
    return next(iter(sorted((prefix / "lib").glob("libmpi.so.*"))), None)


def own_takes_gpu_memory() -> bool | None:
    """Return whether the environment's own MPI takes pointers to GPU memory; None where it has none to ask.

    To be asked before anything else has loaded MPI: this loads it, and does not start it.
    """
    path = own_library()
    if path is None:
        return None
    query = getattr(ctypes.CDLL(str(path)), "MPIX_Query_cuda_support", None)
    return query is not None and bool(query())


def find_open_mpi() -> None:
    """Let Open MPI find its own files when a process is started without mpirun from the environment's own wheel."""
    if (Path(sys.prefix) / "bin" / "mpirun").exists() and "OMPI_COMM_WORLD_RANK" not in os.environ:
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)


def load_mpi(instead: str) -> Any:
    """Return MPI, started by mpi4py; BackendError, which says what to do `instead`, where that cannot be loaded."""
    find_open_mpi()
    try:
        with warnings.catch_warnings():
            # Said better, and as an error, by require_launchers_mpi.
            warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendError(
            f"mpi4py cannot be loaded by {sys.executable} ({error}); run `make setup`, or {instead}"
        ) from None
    return MPI


def require_connection(launch: Launch, environ: Mapping[str, str] = os.environ) -> None:
    """Raise BackendError where MPI is not told how the ranks find each other, or their launcher is gone.

    Open MPI would end the process, in many lines. A shell that was started below mpirun, or a script that copies its
    variables, leaves them to programs that mpirun knows nothing of.
    """
    connected = any(name.startswith(("PMIX_", "PMI_", "PMI2_")) for name in environ)
    session = environ.get("PMIX_SERVER_TMPDIR", "")  # removed when mpirun, or its daemon on this host, has ended
    problem = ""
    if "OMPI_COMM_WORLD_RANK" in environ and (not connected or (session and not Path(session).exists())):
        problem = (
            "environment variable OMPI_COMM_WORLD_RANK is left of another program: no mpirun that started this one is "
            "there any more; start with mpirun, or unset the variables OMPI_* and PMIX_*"
        )
    elif launch.launcher == "srun" and not connected:
        problem = (
            f"srun started {launch.workers} workers without a connection for MPI; use srun --mpi=pmix (srun_mpi in a "
            "partition; `srun --mpi=list` shows what there is), or start with mpirun inside the allocation"
        )
    if problem:
        raise BackendError(problem)


def require_launchers_mpi(launch: Launch, workers: int, library: str) -> None:
    """Raise BackendError where the launcher started another number of workers than `library` (e.g. Horovod) sees."""
    if launch.launcher == "none" or launch.workers == workers:
        return
    counts = f"{launch.named} started {plural(launch.workers, 'worker')}, but {library} sees {workers}"
    why = f"the launcher belongs to another MPI than {library}, which loaded {loaded_library() or 'no MPI library'}"
    remedy = "start with that MPI's own mpirun, or install for the launcher's MPI with `make setup MPI=site`"
    if launch.launcher == "srun":
        remedy = "use srun --mpi=pmix if that MPI supports it, or start with that MPI's mpirun"
    elif launch.launcher == "torchrun":
        why = "MPI does not know torchrun's workers"
        remedy = "start with mpirun or horovodrun, or use --backend ddp over gloo or nccl"
    raise BackendError(f"{counts}: {why}; {remedy}")
