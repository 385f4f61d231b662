"""What a build of Horovod for GPUs needs beside a compiler: a PyTorch for CUDA, the CUDA toolkit, and NCCL.

Horovod reduces tensors on a GPU with NCCL or with MPI, as it was compiled. Builds of both kinds can stand side by side
(`make setup BUILDS="nccl mpi"`), and `cpu` is the ordinary build once more. Where nothing was said, both are made on a
machine with all that they need and a GPU to use them on.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from console import Failure, output

BUILDS = ("cpu", "mpi", "nccl")
FOR_GPUS = ("mpi", "nccl")
AUTOMATIC = "auto"
NONE = "none"
WITHOUT_BUILDS = "or go on without: make setup BUILDS=none"

CPU_SIZE = "0.2 GB to download, 0.8 GB installed"
CUDA_SIZE = "3 GB to download, 5 GB installed"
"""Of PyTorch with what it depends on, on Linux with an x86-64 processor."""

QUESTION = """
import json, pathlib, torch
try:
    gpus = ["%d%d" % torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
except Exception:
    gpus = []
print(json.dumps([torch.__version__, torch.version.cuda or "none", str(pathlib.Path(torch.__file__).parents[1]), gpus]))
"""


class Torch(NamedTuple):
    """A PyTorch: version with local tag, CUDA version or "none", its site-packages, compute capabilities of its GPUs.

    There is one capability for each GPU, such as "90".
    """

    version: str
    cuda: str
    packages: Path
    gpus: tuple[str, ...] = ()


def torch_in(python: Path, env: Mapping[str, str]) -> Torch:
    """Return the PyTorch of an environment."""
    said = output([python, "-W", "ignore", "-c", QUESTION], env=env)
    if said is None:
        raise Failure(
            f"{python} cannot import torch: the environment is damaged, remove it (make clean) and run make setup again"
        )
    version, cuda, packages, gpus = json.loads(said.splitlines()[-1])
    return Torch(version, cuda, Path(packages), tuple(gpus))


def wants_cuda(choice: str, builds: str) -> bool:
    """Return whether TORCH or BUILDS asks for a PyTorch for CUDA, whatever this machine has."""
    return choice == "cuda" or (choice == AUTOMATIC and bool(set(builds.split()) & set(FOR_GPUS)))


def torch_requirement(
    pin: str, choice: str, offered: Sequence[str], *, gpus: int, builds: str = AUTOMATIC
) -> tuple[str, str]:
    """Return (requirement, note) for the PyTorch to install: the build for CPUs, or the one for CUDA.

    `pin` is the version without a local part, `choice` "auto", "cpu" or "cuda", `offered` the versions that pip finds,
    `gpus` how many NVIDIA GPUs this machine has, `builds` what BUILDS says: builds of Horovod for GPUs need a PyTorch
    for CUDA. pip prefers a version with a local part, so where both builds are found the other one is excluded.
    Failure where the build that was asked for is not offered.
    """
    asked = f"TORCH={choice}"
    if wants_cuda(choice, builds) and choice == AUTOMATIC:
        choice, asked = "cuda", f'BUILDS="{builds}"'
    cpu = f"{pin}+cpu"
    others = [version for version in offered if version.split("+")[0] == pin and version != cpu]
    if platform.machine() not in ("x86_64", "AMD64"):  # elsewhere the one without a local part is for CPUs
        return f"torch=={pin}", f"PyTorch {pin}"
    if choice == "cpu" and cpu not in offered:
        raise Failure(
            f"TORCH=cpu: pip finds no torch {cpu}: name the folder or the index that has it in PIP_FIND_LINKS or"
            " PIP_EXTRA_INDEX_URL, or take the build for CUDA: make setup TORCH=cuda"
        )
    if choice == "cuda" and offered and not others:
        remedy = "make setup TORCH=cpu BUILDS=none takes that"
        raise Failure(f"{asked}: pip finds torch {pin} for CPUs only: {remedy}")
    seen = f"{gpus} NVIDIA GPU{'s' * (gpus > 1)} here" if gpus else "no NVIDIA GPU here"
    why = seen if choice == AUTOMATIC else asked
    if cpu in offered and (choice == "cpu" or (choice == AUTOMATIC and not (gpus and others))):
        more = "; TORCH=cuda for nodes with GPUs" if choice == AUTOMATIC and others else ""
        return f"torch=={cpu}", f"PyTorch {cpu}, {CPU_SIZE} ({why}{more})"
    advice = (
        ""
        if gpus or choice == "cuda"
        else "; PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL with a build for CPUs saves most of it"
    )
    excluded = f",!={cpu}" if cpu in offered else ""
    return f"torch=={pin}{excluded}", f"PyTorch {pin} for CUDA, {CUDA_SIZE} ({why}{advice})"


def chosen_builds(text: str) -> str:
    """Return the builds that BUILDS names, sorted, separated by blanks; or "none", or "auto"."""
    names = set(text.replace(",", " ").split())
    if names in ({NONE}, {AUTOMATIC}):
        return min(names)
    if unknown := sorted(names - set(BUILDS)):
        allowed = ", ".join((*BUILDS, NONE))
        raise Failure(f"BUILDS={text!r}: there is no build {unknown[0]!r}; allowed: {allowed} or {AUTOMATIC}")
    return " ".join(sorted(names)) or NONE


def automatic(torch: Torch, env: Mapping[str, str] = os.environ) -> tuple[list[str], str]:
    """Return (builds, why) where nothing was said: those for GPUs, where there is a GPU, as far as nothing lacks."""
    if torch.cuda == "none":
        return [], "none for GPUs: this PyTorch is for CPUs"
    obstacles = {name: " and ".join(lacking(name, torch, env)) for name in FOR_GPUS}
    builds = [name for name, obstacle in obstacles.items() if not obstacle]
    if not builds:
        return [], f"none for GPUs, they need {obstacles['nccl']}"
    if not torch.gpus:
        return [], f'none for GPUs: PyTorch sees no GPU here; BUILDS="{" ".join(builds)}" makes them all the same'
    without = [f"not {name}, it needs {obstacle}" for name, obstacle in obstacles.items() if obstacle]
    found = f"CUDA {torch.cuda} in {cuda_home(env)}, {len(torch.gpus)} GPU{'s' if len(torch.gpus) > 1 else ''}"
    return builds, "; ".join([f"{' '.join(builds)} (found {found})", *without])


def traces(env: Mapping[str, str] = os.environ) -> str:
    """Return in a few words what the automatic choice depends on, as far as a glance shows it."""
    return f"toolkit {cuda_home(env)}, {gpus_here()} GPUs"


def gpus_here() -> int:
    """Return how many NVIDIA GPUs this machine has, as far as a glance shows it."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def lacking(build: str, torch: Torch, env: Mapping[str, str] = os.environ) -> list[str]:
    """Return what the build `build` needs and this machine has not, each in a few words."""
    if build == "cpu":
        return []
    missing = []
    if torch.cuda == "none":
        missing.append("a PyTorch for CUDA (the installed one is for CPUs; TORCH=cuda takes the other)")
    home = cuda_home(env)
    if home is None:
        missing.append("the CUDA toolkit (no nvcc on PATH or below CUDA_HOME)")
    elif other := other_cuda(home, torch):
        missing.append(other)
    if build == "nccl" and nccl_folders(torch.packages, home, env) is None:
        missing.append("NCCL (no nccl.h with libnccl.so below HOROVOD_NCCL_HOME)")
    return missing


def other_cuda(home: Path, torch: Torch) -> str:
    """Return which toolkit is needed instead of the one in `home`; "" where PyTorch is for the same CUDA, or none."""
    said = re.search(r"release (\d+)\.", output([home / "bin" / "nvcc", "--version"]) or "")
    major = torch.cuda.split(".")[0]
    if said is None or major in ("none", said[1]):
        return ""
    return f"a CUDA toolkit {major}, as PyTorch has it ({home} has {said[1]})"


def flags(build: str, torch: Torch, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of Horovod's build `build`; one Failure names all that is missing here.

    The build `cpu`, the ordinary one, takes tensors on a GPU by way of the host where PyTorch is for CUDA and its
    toolkit is here; elsewhere it is made without CUDA, which Horovod's build would look for by itself.
    """
    if missing := lacking(build, torch, env):
        raise Failure(f"BUILDS={build} needs {' and '.join(missing)}: install what is missing, {WITHOUT_BUILDS}")
    home = cuda_home(env)
    if home is None or torch.cuda == "none" or other_cuda(home, torch):
        return {"HOROVOD_WITHOUT_CUDA": "1"}
    found = {"HOROVOD_CUDA_HOME": str(home), "CUDA_HOME": str(home)}
    if capabilities := env.get("HOROVOD_BUILD_CUDA_CC_LIST") or ",".join(sorted(set(torch.gpus))):
        found["HOROVOD_BUILD_CUDA_CC_LIST"] = capabilities
    if build in FOR_GPUS:
        found["HOROVOD_GPU_OPERATIONS"] = build.upper()
    if build == "nccl" and (folders := nccl_folders(torch.packages, home, env)):
        include, library = map(str, folders)
        found |= {"HOROVOD_NCCL_INCLUDE": include, "HOROVOD_NCCL_LIB": library, "HOROVOD_NCCL_LINK": "SHARED"}
    return found


def cuda_home(env: Mapping[str, str]) -> Path | None:
    """Return the folder of the CUDA toolkit: the one named by CUDA_HOME, else that of nvcc on PATH, else the usual."""
    named = [Path(env[name]) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME") if env.get(name)]
    found = []
    if nvcc := shutil.which("nvcc", path=env.get("PATH", os.defpath)):
        # What is on PATH may be a script that starts the real one, which knows where it stands.
        said = re.search(r"TOP=(\S+)", output([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull]) or "")
        found.append(Path(said[1]).resolve() if said else Path(nvcc).resolve().parent.parent)
    candidates = named or [*found, Path("/usr/local/cuda")]
    return next((folder for folder in candidates if os.access(folder / "bin" / "nvcc", os.X_OK)), None)


def nccl_folders(packages: Path, cuda: Path | None, env: Mapping[str, str]) -> tuple[Path, Path] | None:
    """Return the folders of nccl.h and of the NCCL library: the named one, else PyTorch's, else the system's."""
    named = [Path(env[name]) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME") if env.get(name)]
    for home in named or [packages / "nvidia" / "nccl", *([cuda] if cuda else []), Path("/usr")]:
        if (home / "include" / "nccl.h").is_file():
            for library in (home / "lib", home / "lib64", *sorted((home / "lib").glob("*-linux-gnu"))):
                if any(library.glob("libnccl.so*")):
                    return home / "include", library
    return None


def with_plain_nccl(flags: Mapping[str, str], workshop: Path) -> dict[str, str]:
    """Return `flags` with an NCCL that has a libnccl.so: its wheel has libnccl.so.2 only, which no linker looks for."""
    library = Path(flags.get("HOROVOD_NCCL_LIB", ""))
    if "HOROVOD_NCCL_LIB" not in flags or (library / "libnccl.so").exists():
        return dict(flags)
    folder = workshop / "nccl"
    folder.mkdir()
    (folder / "libnccl.so").symlink_to(min(library.glob("libnccl.so.*")))
    return {**flags, "HOROVOD_NCCL_LIB": str(folder)}
