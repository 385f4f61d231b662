"""MPI and Horovod: is the mpirun that will be used that of the library they load, and do they start.

Whatever may crash or hang is asked in a process of its own.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod_study.cluster.doctor.finding import Area, Here, shortened
from horovod_study.cluster.doctor.software import LOAD_S, Software
from horovod_study.cluster.identity import installed
from horovod_study.cluster.launch import cell_environment
from horovod_study.comm import builds

_ABOUT_HOROVOD = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
import horovod
import horovod.torch as hvd
from horovod_study.comm.builds import gpu_allreduce
from horovod_study.comm.libmpi import loaded_library
print(json.dumps({
    "version": horovod.__version__, "folder": list(horovod.__path__)[0], "mpi": hvd.mpi_built(),
    "gloo": hvd.gloo_built(), "nccl": int(hvd.nccl_built()), "cuda": hvd.cuda_built(), "library": loaded_library(),
    "gpu_allreduce": gpu_allreduce(Path(list(horovod.__path__)[0])),
}))
"""
_START_HOROVOD = """
import json, sys
sys.path[:0] = sys.argv[1:]
from horovod_study.comm.horovod import find_open_mpi
find_open_mpi()
import horovod.torch as hvd
hvd.init()
print(json.dumps({"size": hvd.size()}))
hvd.shutdown()
"""
# What builds.gpu_allreduce says of a build -> words; nothing is said of one for CPUs.
_GPU_TENSORS: dict[str | None, str] = {
    "NCCL": "; GPU tensors go over NCCL",
    "MPI": "; GPU tensors are handed to MPI, which must be CUDA-aware",
    "host": "; GPU tensors go through the host's memory",
}
_ABOUT_MPI4PY = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from horovod_study.comm.libmpi import loaded_library
print(json.dumps({"version": mpi4py.__version__, "says": MPI.Get_library_version(), "library": loaded_library()}))
"""
_TWO_RANKS = "import sys; from mpi4py import MPI; sys.exit(0 if MPI.COMM_WORLD.allreduce(1) == 2 else 3)"
_START_S = 30.0
_REINSTALL = "run `make setup` again: it builds Horovod for the PyTorch and the MPI that are installed"


class Mpi:
    """The checks of MPI, and of Horovod, which needs it."""

    def __init__(self, here: Here, software: Software, *, quick: bool) -> None:
        self._here, self._software, self._quick = here, software, quick
        self._said: dict[str, str] = {}
        self._mpi4py: dict[str, Any] | None = None

    def mpi(self, area: Area) -> None:
        """Which mpirun would be used, and is it the one of the library that mpi4py and Horovod load."""
        here = self._here
        used = here.which("mpirun", here.search_path)
        first = here.which("mpirun")
        if used is None:
            area.warning(
                "mpirun",
                "neither beside Python nor on PATH: horovod/mpi and mpi runs cannot start",
                "load the site's module (module load openmpi) and make setup MPI=site, or make setup MPI=wheel",
            )
        else:
            self._launcher(area, used, first)
        mpicc = here.which("mpicc", here.search_path)
        area.ok("mpicc", mpicc or "none beside Python or on PATH: only needed to build Horovod and mpi4py")
        if self._quick:
            return
        self._library(area, used)
        if used is not None and self._mpi4py is not None:
            self._two_ranks(area, used)

    def _launcher(self, area: Area, used: str, first: str | None) -> None:
        kind, version, said = mpi_of(self._says(used))
        where = "beside Python" if Path(used).parent == self._here.python.parent else "on PATH"
        if kind is None:
            area.warning("mpirun", f"{used} does not say what it is: {said}", "make setup MPI=wheel, or load a module")
        elif kind == "Open MPI" and version.split(".")[0].isdigit() and int(version.split(".")[0]) >= 5:
            text = (
                f"{used} is Open MPI {version}: its launcher refuses the options of horovodrun 0.28.1 (-bind-to none, "
                "single dash)"
            )
            remedy = "load an Open MPI 4 module and make setup MPI=site, or take the wheel: make setup MPI=wheel"
            (area.fail if installed("horovod") else area.warning)("mpirun", text, remedy)
        else:
            area.ok("mpirun", f"{kind} {version} ({used}, {where})")
        if first is not None and os.path.realpath(first) != os.path.realpath(used):
            other, its_version, _ = mpi_of(self._says(first))
            if (other, its_version) != (kind, version):
                area.warning(
                    "mpirun on PATH",
                    f"typed manually, `mpirun` is {first} ({other or 'an unknown MPI'} {its_version}), another one "
                    "than the studies use",
                    f"export PATH={self._here.python.parent}:$PATH, or unload the module it comes from",
                )

    def _says(self, program: str) -> str:
        if program not in self._said:
            answer = self._here.call([program, "--version"], timeout_s=2.0 if self._quick else 15.0)
            self._said[program] = answer.output if answer.worked else answer.reason()
        return self._said[program]

    def _library(self, area: Area, used: str | None) -> None:
        if installed("mpi4py") is None:
            area.warning("mpi4py", "not installed: runs of backend mpi cannot start", "run `make setup`")
            return
        found, answer = self._here.ask_python(_ABOUT_MPI4PY, timeout_s=_START_S)
        if found is None:
            area.fail(
                "mpi4py",
                f"it does not load: {answer.reason()}",
                "the MPI it was built with is not to be found: load that module, or run `make setup` again",
            )
            return
        self._mpi4py = found
        kind, version, said = mpi_of(found["says"])
        area.ok("mpi4py", f"{found['version']} with {kind or said} {version} ({found['library'] or 'library unknown'})")
        if used is None or kind is None:
            return
        other, its_version, _ = mpi_of(self._says(used))
        if other is not None and (other, its_version) != (kind, version):
            area.fail(
                "mpirun and mpi4py",
                f"mpi4py loads {kind} {version}, but {used} is {other} {its_version}: every rank would take itself for "
                "the only one",
                f"put the mpirun of {kind} {version} first on PATH, or install for this one: make setup MPI=site",
            )
        elif other is not None:
            area.ok("mpirun and mpi4py", f"both {kind} {version}")

    def _two_ranks(self, area: Area, used: str) -> None:
        here = self._here
        root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        placed = ["--host", "localhost:2", "--bind-to", "none"]
        open_mpi = mpi_of(self._says(used))[0] == "Open MPI"
        line = [used, *(root + placed if open_mpi else []), "-np", "2", str(here.python), "-c", _TWO_RANKS]
        answer = here.call(line, timeout_s=_START_S, environ=self._alone())
        if answer.worked:
            area.ok("two ranks", "mpirun started two, and they found each other")
        elif answer.code == 3:
            area.fail(
                "two ranks",
                "mpirun started two, but each takes itself for the only one: it belongs to another MPI than mpi4py",
                "put the mpirun of mpi4py's MPI first on PATH, or install for this one: make setup MPI=site",
            )
        else:
            area.fail(
                "two ranks",
                f"mpirun -np 2 did not work: {answer.reason()}",
                f'try it yourself: {used} -np 2 {here.python} -c "{_TWO_RANKS}"',
            )

    def _alone(self) -> dict[str, str]:
        """The environment of a cell, without the ranks of an enclosing job."""
        environ = cell_environment(self._here.environ, path=self._here.search_path, out=Path(os.devnull))
        return {**environ, "OMP_NUM_THREADS": "1"}

    def horovod(self, area: Area) -> None:
        """The installed Horovod and the builds beside it: do they load, for which transports, with which MPI."""
        here = self._here
        version = installed("horovod")
        prefix = here.python.parent.parent
        named = builds.available(prefix / "lib" / "horovod-builds")
        if version is None and not named:
            area.warning(
                "version",
                "Horovod is not installed: only runs of serial, ddp, mpi and ps can start",
                "make setup (it builds Horovod), or leave the horovod runtimes out of sweep.runtime",
            )
            return
        if self._quick:
            area.ok("version", f"Horovod {version} is installed (not loaded in a quick examination)")
            self._recorded_torch(area)
            if named:
                area.ok("builds", ", ".join(named))
            return
        self._recorded_torch(area)
        for name in ([] if version is None else [""]) + named:
            self._build(area, name, prefix / "lib" / "horovod-builds" / name if name else None)
        if here.which("horovodrun", here.search_path) is None:
            area.fail(
                "horovodrun", "neither beside Python nor on PATH: runs of backend horovod cannot start", _REINSTALL
            )

    def _recorded_torch(self, area: Area) -> None:
        """Compare the PyTorch that Horovod says it was built with, before anything is loaded."""
        for place in _folders("horovod"):
            text = self._here.text(place / "metadata.json")
            said = re.search(r'"pytorch":\s*"([^"]+)"', text or "")
            present = installed("torch")
            if said and present and said[1].partition("+")[0] != present.partition("+")[0]:
                area.fail(
                    "PyTorch",
                    f"Horovod was built for PyTorch {said[1]}, but {present} is installed: it cannot load",
                    _REINSTALL,
                )

    def _build(self, area: Area, name: str, folder: Path | None) -> None:
        here, label = self._here, f"build {name}" if name else "installed"
        arguments = [str(folder)] if folder else []
        found, answer = here.ask_python(_ABOUT_HOROVOD, *arguments, timeout_s=LOAD_S)
        if found is None:
            text, remedy = answer.reason(), _REINSTALL
            if "undefined symbol" in text:
                text = f"{text} (it was compiled for another PyTorch)"
            elif "libmpi" in text and "open shared object" in text:
                text = f"{text} (the MPI it was built with is not to be found)"
                remedy = "load the module of that MPI, or run `make setup` again"
            area.fail(label, f"it does not load: {text}", remedy)
            return
        lacking = [word for word in ("MPI", "Gloo") if not found[word.lower()]]
        inside = [word for word in ("MPI", "Gloo") if word not in lacking]
        if found["nccl"]:
            inside.append(f"NCCL {nccl_version(found['nccl'])}")
        by = found.get("gpu_allreduce")
        text = f"Horovod {found['version']} with {', '.join(inside) or 'no transport at all'}{_GPU_TENSORS.get(by, '')}"
        if lacking:
            area.warning(label, f"{text}, without {' and '.join(lacking)}", _REINSTALL)
        elif name == "nccl" and not found["nccl"]:
            area.fail(label, f"{text}: the build called nccl has no NCCL", 'make setup BUILDS="nccl mpi"')
        elif name == "mpi" and by not in (None, "MPI"):
            area.fail(
                label, f"{text}: the build called mpi hands no GPU tensors to MPI", 'make setup BUILDS="nccl mpi"'
            )
        else:
            area.ok(label, text)
        self._same_nccl(area, label, found)
        self._same_mpi(area, label, found)
        started, answer = here.ask_python(_START_HOROVOD, *arguments, timeout_s=_START_S, environ=self._alone())
        if started is None:
            area.fail(
                f"{label} starts",
                f"hvd.init() of one worker does not work: {answer.reason()}",
                "MPI_Init fails or hangs: is the MPI the one it was built with (see MPI above), and do limits and "
                "/dev/shm allow it (see machine below)",
            )
        elif started.get("size") != 1:
            area.fail(
                f"{label} starts",
                f"hvd.init() outside of a job sees {started.get('size')} workers",
                "variables of an enclosing job are set: start the doctor from a fresh shell",
            )
        else:
            area.ok(f"{label} starts", "hvd.init() of one worker works")

    def _same_nccl(self, area: Area, label: str, found: Mapping[str, Any]) -> None:
        own = self._software.about_torch and self._software.about_torch["nccl"]
        if found["nccl"] and own and nccl_version(found["nccl"]) != ".".join(map(str, own)):
            area.warning(
                f"{label} NCCL",
                f"it was built with NCCL {nccl_version(found['nccl'])}, PyTorch loads {'.'.join(map(str, own))}: "
                "comparisons of Horovod with DDP compare two NCCLs",
                'make setup BUILDS="nccl mpi" again: it takes the NCCL of PyTorch',
            )

    def _same_mpi(self, area: Area, label: str, found: Mapping[str, Any]) -> None:
        other = self._mpi4py and self._mpi4py["library"]
        mine = found["library"]
        if mine and other and os.path.realpath(mine) != os.path.realpath(other):
            area.fail(
                f"{label} and mpi4py",
                f"Horovod loads {mine}, mpi4py loads {other}: one mpirun cannot serve both",
                _REINSTALL,
            )
        elif mine and other:
            area.ok(f"{label} and mpi4py", "both load the same MPI library")


def mpi_of(said: str) -> tuple[str | None, str, str]:
    """Return kind and version of an MPI from what its launcher or library says of itself, and its first line."""
    first = shortened(said.splitlines()[0], 80) if said.strip() else "nothing"
    patterns = (
        ("Open MPI", r"(?:Open MPI|OpenRTE)\)?,? v?(\d+\.\d+[^\s,]*)"),
        ("Open MPI", r"(?:PRTE|prterun)\b.*?(\d+\.\d+[^\s,]*)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?(?:Version\s+)?(\d{4}[\d.]*|\d+\.\d+[\d.]*)"),
        ("MVAPICH", r"MVAPICH2?\D*?(\d+\.\d+[^\s,]*)"),
        ("Cray MPICH", r"CRAY MPICH\s+(?:v|version\s*:?\s*)?(\d+\.\d+[^\s,]*)"),
        ("MPICH", r"(?:HYDRA build details:\s*Version:|MPICH Version\s*:|MPICH)\s*v?(\d+\.\d+[^\s,]*)"),
    )
    for kind, pattern in patterns:
        found = re.search(pattern, said, re.DOTALL)
        if found:
            return kind, found[1].rstrip(".,;"), first
    return None, "", first


def nccl_version(code: int) -> str:
    """Return NCCL's version from its number: 22809 is 2.28.9, and before 2.9, 2804 was 2.8.4."""
    if code < 10_000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def _folders(package: str) -> list[Path]:
    """Return the folders of an installed package without importing it."""
    return [Path(entry) / package for entry in sys.path if entry and (Path(entry) / package / "__init__.py").is_file()]
