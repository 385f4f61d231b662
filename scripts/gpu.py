"""What a build of Horovod for GPUs needs beside a compiler: a PyTorch for CUDA, the CUDA toolkit, and NCCL.

Horovod reduces tensors on a GPU with NCCL or with MPI, as it was compiled. Builds of both kinds can stand side by side
(`make setup BUILDS="nccl mpi"`), and `cpu` is the ordinary build once more.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from console import Failure, output

BUILDS = ("cpu", "mpi", "nccl")
WITHOUT_BUILDS = "or go on without: make setup BUILDS=none"


def chosen_builds(text: str) -> str:
    """Return the builds that BUILDS names, sorted, separated by blanks; "none" is none."""
    names = set(text.replace(",", " ").split())
    if names == {"none"}:
        return ""
    if unknown := sorted(names - set(BUILDS)):
        raise Failure(f"BUILDS={text!r}: there is no build {unknown[0]!r}; allowed: {', '.join(BUILDS)}, or none")
    return " ".join(sorted(names))


def flags(build: str, *, torch_cuda: str, packages: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of Horovod's build `build`; one Failure names all that is missing here.

    `torch_cuda` is the CUDA version of the PyTorch in use ("none" for one without), `packages` its site-packages: there
    lies the NCCL that PyTorch itself loads.
    """
    if build == "cpu":
        return {}
    missing = []
    if torch_cuda == "none":
        missing.append("a PyTorch for CUDA (the installed one is for CPUs)")
    home = cuda_home(env)
    found = {"HOROVOD_GPU_OPERATIONS": build.upper()}
    if home is None:
        missing.append("the CUDA toolkit (no nvcc on PATH or below CUDA_HOME)")
    else:
        said = re.search(r"release (\d+)\.", output([home / "bin" / "nvcc", "--version"]) or "")
        if said and torch_cuda != "none" and said[1] != torch_cuda.split(".")[0]:
            missing.append(f"a CUDA toolkit {torch_cuda.split('.')[0]}, as PyTorch has it ({home} has {said[1]})")
        found |= {"HOROVOD_CUDA_HOME": str(home), "CUDA_HOME": str(home)}
    if build == "nccl":
        nccl = nccl_folders(packages, home, env)
        if nccl is None:
            missing.append("NCCL (no nccl.h with libnccl.so below HOROVOD_NCCL_HOME)")
        else:
            found |= {
                "HOROVOD_NCCL_INCLUDE": str(nccl[0]),
                "HOROVOD_NCCL_LIB": str(nccl[1]),
                "HOROVOD_NCCL_LINK": "SHARED",
            }
    if missing:
        raise Failure(f"BUILDS={build} needs {' and '.join(missing)}: install what is missing, {WITHOUT_BUILDS}")
    if capabilities := env.get("HOROVOD_BUILD_CUDA_CC_LIST") or gpus():
        found["HOROVOD_BUILD_CUDA_CC_LIST"] = capabilities
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


def gpus() -> str:
    """Return the compute capabilities of this machine's GPUs, such as 80,90; empty where there are none to ask."""
    if shutil.which("nvidia-smi") is None:
        return ""
    said = output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]) or ""
    return ",".join(sorted({f"{major}{minor}" for major, minor in re.findall(r"^(\d+)\.(\d+)$", said, re.MULTILINE)}))
