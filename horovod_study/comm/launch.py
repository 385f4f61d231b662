"""How this process was started, as variables of launchers say it, and whether the MPI that it loads is the launcher's.

Every MPI sets variables of its own and its processes find each other in a way of its own. A worker of another MPI than
the launcher's does not fail: it takes itself for the only one, and N workers train N times the same.
"""

import ctypes
import importlib.util
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.config.limits import mpi_hindrance
from horovod_study.config.variables import is_set, whole_number
from horovod_study.errors import BackendError, first_line, refuse
from horovod_study.text.words import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launcher, rank and number of workers as the environment tells them, before any library is asked."""

    launcher: str  # horovodrun --gloo | mpirun | torchrun | srun | none
    rank: int
    workers: int
    backend: str  # what `--backend auto` becomes
    variables: tuple[str, ...] = ()  # in which it told so

    @property
    def named(self) -> str:
        """The launcher with the variables that tell of it, which may be left of an earlier program: for messages."""
        return f"{self.launcher} ({', '.join(self.variables)})" if self.variables else self.launcher


MAX_WORKERS = 10**6

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
_STARTS = (
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "HOROVOD_GLOO_RENDEZVOUS_PORT", "PMIX_NAMESPACE"),
    *("SLURM_STEP_ID", "MASTER_PORT"),
)
"""What launchers set alike for all ranks that they start together, and differently for those of another start."""
LAUNCH_VARIABLES = tuple(dict.fromkeys([name for each in _LAUNCHERS for name in each[1:] if name] + [*_STARTS]))


def detect(environ: Mapping[str, str]) -> Launch:
    """Return who launched this process; a process started manually is rank 0 of 1.

    `horovodrun` over MPI is `mpirun` here: it leaves no trace of its own. Under mpirun and srun the backend is Horovod
    where it is installed, mpi4py otherwise. One task of srun may be a shell: it is nobody's rank.
    Raises BackendError where the rank or the number of workers is no such number, or only one of both is empty.
    """
    for launcher, rank, workers, mark in _LAUNCHERS:
        if rank in environ and workers in environ and (mark is None or mark in environ):
            count = whole_number(workers, environ, low=1, high=MAX_WORKERS)
            if (count is None and not is_set(rank, environ)) or (launcher == "srun" and count == 1):
                continue
            number = whole_number(rank, environ, high=MAX_WORKERS - 1 if count is None else count - 1)
            if count is None or number is None:
                raise BackendError(
                    f"environment variables {rank} and {workers} are {environ[rank].strip()!r} and "
                    f"{environ[workers].strip()!r}; set both, as launchers do, or neither (`unset {rank} {workers}`)"
                )
            backend = {"horovodrun --gloo": "horovod", "torchrun": "ddp"}.get(launcher)
            if backend is None:
                backend = "horovod" if importlib.util.find_spec("horovod") else "mpi"
            return Launch(launcher=launcher, rank=number, workers=count, backend=backend, variables=(rank, workers))
    return Launch(launcher="none", rank=0, workers=1, backend="serial")


def meeting_point(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and port of rank 0 at which ranks meet that mpirun or srun started, None where none is given.

    Raises BackendError for a port that is none.
    """
    if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
        return None
    host, port = environ["MASTER_ADDR"], whole_number("MASTER_PORT", environ, low=1, high=65535)
    if port is None or not host.strip():
        raise BackendError("environment variable MASTER_ADDR or MASTER_PORT is empty; set both, alike on all ranks")
    return host, port


def require_controller(environ: MutableMapping[str, str], controller: str) -> None:
    """Raise BackendError where a variable of Horovod asks for another controller than this run has: it would abort.

    Variables that are empty are removed, because Horovod takes them for a name.
    """
    for name, allowed in (("HOROVOD_CONTROLLER", (controller,)), ("HOROVOD_CPU_OPERATIONS", (controller, "ccl"))):
        if name in environ and not is_set(name, environ):
            del environ[name]
        elif name in environ and environ[name].strip().lower() not in allowed:
            raise BackendError(
                f"environment variable {name} is {environ[name]!a}, but this run was launched over {controller}; "
                f"`unset {name}`, or start with horovodrun --gloo or --mpi, which set it"
            )


def require_interfaces(environ: Mapping[str, str], variable: str) -> None:
    """Raise BackendError where `variable` names a network interface that this host does not have; Gloo would abort."""
    there = [name for _, name in socket.if_nameindex()]
    missing = [name for name in environ.get(variable, "").split(",") if name and name not in there]
    here = f"{variable} is {environ.get(variable)!r}, but {os.uname().nodename} has no network interface"
    refuse("", *((True, f"{here} {name}; it has {', '.join(there)}") for name in missing), error=BackendError)


def require_limits(launch: Launch) -> None:
    """Raise BackendError where a limit of this process is below what MPI needs: it would hang."""
    if launch.launcher in ("mpirun", "srun") and (hindrance := mpi_hindrance(1)):
        raise BackendError(hindrance)


def require_rendezvous(environ: Mapping[str, str]) -> None:
    """Raise BackendError where HOROVOD_RANK is set, but no horovodrun answers: Horovod would wait, or abort in MPI."""
    address = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = whole_number("HOROVOD_GLOO_RENDEZVOUS_PORT", environ, low=1, high=65535)
    try:
        if not address or port is None:
            raise OSError("not set")
        socket.create_connection((address, port), timeout=10.0).close()
    except (OSError, UnicodeError) as error:
        raise BackendError(
            f"environment variable HOROVOD_RANK is set, but no horovodrun answers at HOROVOD_GLOO_RENDEZVOUS_ADDR and "
            f"_PORT, {address!a} and {port} ({error}); start with horovodrun, or unset the variables HOROVOD_RANK and "
            "HOROVOD_SIZE"
        ) from None


@contextmanager
def meeting_at(host: str, port: int, rank: int) -> Iterator[None]:
    """Let the ranks meet inside; BackendError says where, and what to do, if that fails."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # torch has several for this
        if rank == 0 and "EADDRINUSE" in str(error):
            taken = f"port {port} of {host} is taken by another program, so the ranks cannot meet there"
            raise BackendError(f"{taken}; start again, or set MASTER_PORT to a free port") from None
        raise BackendError(
            f"rank {rank} cannot meet the others at {host}:{port} ({first_line(error)}); check that the host of rank 0 "
            f"is {host}, and that the other hosts reach it; where hosts have several networks, set GLOO_SOCKET_IFNAME "
            "or NCCL_SOCKET_IFNAME"
        ) from None


def loaded_library(maps: Path = Path("/proc/self/maps")) -> str | None:
    """Return the path of the MPI library in this process; None before one is loaded, or where maps are not shown."""
    with suppress(OSError):  # address, permissions, offset, device, inode, path
        paths = re.findall(r"^(?:\S+ +){5}(\S.*)$", maps.read_text(), re.MULTILINE)
        return next((path for path in paths if re.match(r"libmpi(ch)?\.so", Path(path).name)), None)
    return None


def cuda_aware(library: str | Path | None = None) -> dict[str, Any]:
    """Return {"value": whether MPI takes device pointers, "source": who says so}.

    Of the MPI that is loaded; or of a `library`, which is loaded for it and not started.
    """
    source = "MPIX_Query_cuda_support"
    if (path := library or loaded_library()) and (query := getattr(ctypes.CDLL(str(path)), source, None)):
        return {"value": bool(query()), "source": source}
    asked = os.environ.get("OMPI_MCA_opal_cuda_support")
    source = "the MPI library does not say" if asked is None else "OMPI_MCA_opal_cuda_support"
    return {"value": (asked or "").lower() in ("1", "true", "yes"), "source": source}


def own_library(prefix: Path = Path(sys.prefix)) -> Path | None:
    """Return the MPI library that is in the environment itself (Open MPI's wheel), None where there is none."""
    return next(iter(sorted((prefix / "lib").glob("libmpi.so.*"))), None)


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
    if "OMPI_COMM_WORLD_RANK" in environ and (not connected or (session and not Path(session).exists())):
        raise BackendError(
            "environment variable OMPI_COMM_WORLD_RANK is left of another program: no mpirun that started this one is "
            "there any more; start with mpirun, or unset the variables OMPI_* and PMIX_*"
        )
    if launch.launcher == "srun" and not connected:
        raise BackendError(
            f"srun started {launch.workers} workers without a connection for MPI; use srun --mpi=pmix (srun_mpi in a "
            "partition; `srun --mpi=list` shows what there is), or start with mpirun inside the allocation"
        )


def require_launchers_mpi(launch: Launch, workers: int, library: str) -> None:
    """Raise BackendError where the launcher started another number of workers than `library` (e.g. Horovod) sees."""
    if launch.launcher == "none" or launch.workers == workers:
        return
    why = f"the launcher belongs to another MPI than {library}, which loaded {loaded_library() or 'no MPI library'}"
    remedy = "start with that MPI's own mpirun, or install for the launcher's MPI with `make setup MPI=site`"
    if launch.launcher == "srun":
        remedy = "use srun --mpi=pmix if that MPI supports it, or start with that MPI's mpirun"
    elif launch.launcher == "torchrun":
        why, remedy = "MPI does not know torchrun's workers", "start with mpirun or horovodrun, or use --backend ddp"
    started = plural(launch.workers, "worker")
    raise BackendError(f"{launch.named} started {started}, but {library} sees {workers}: {why}; {remedy}")
