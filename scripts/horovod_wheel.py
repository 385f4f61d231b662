"""The Horovod wheel: taken from the cache, or built from the source package with this project's patches.

Horovod's last release does not compile against today's PyTorch as it is, and building takes minutes. So the built
wheel is kept in a cache, in a folder whose name says what the wheel was made for and ends in a digest of everything
it depends on (`ingredients`).
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from console import Failure, Step, locked, output
from gpu import with_plain_nccl

VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
FLAGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # its third-party parts ask for a CMake older than CMake 4 knows
}
COMPILER_VARIABLES = ("CXX", "CC", "CXXFLAGS", "CFLAGS", "LDFLAGS")
GIB_PER_JOB = 1.5  # a source file that includes PyTorch's headers


def ingredients(
    *,
    torch: str,
    cuda: str,
    python: str,
    mpi: str,
    compiler: str,
    patches: Iterable[Path],
    gpu: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return everything a built wheel depends on, each as readable text; `gpu` are the flags of a build for GPUs."""
    return {
        "horovod": VERSION,
        "torch": torch,
        "python": python,
        "platform": " ".join([sysconfig.get_platform(), *platform.libc_ver()]).strip(),
        "processor": vector_extensions(),
        "mpi": mpi,
        "compiler": compiler,
        "cuda": cuda,
        "patches": digest(path.read_bytes() for path in sorted(patches)),
        "flags": " ".join(f"{name}={value}" for name, value in FLAGS.items()),
        "compiler_flags": " ".join(f"{name}={os.environ[name]}" for name in COMPILER_VARIABLES if name in os.environ),
        **({"gpu": " ".join(f"{name}={value}" for name, value in gpu.items())} if gpu else {}),
    }


def key(parts: Mapping[str, str]) -> str:
    """Return the name of the cache folder for these ingredients."""
    readable = f"horovod-{parts['horovod']}-torch-{parts['torch']}-{parts['python']}-{parts['mpi']}".lower().replace(
        " ", "-"
    )
    operations = re.search(r"GPU_OPERATIONS=(\w+)", parts.get("gpu", ""))
    readable += f"-{operations[1].lower()}" if operations else ""
    return f"{re.sub(r'[^a-z0-9.+_-]', '', readable)}-{digest([json.dumps(parts, sort_keys=True).encode()])[:12]}"


def digest(parts: Iterable[bytes]) -> str:
    """Return one SHA-256 of several byte strings, in which their borders count."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8) + part)
    return whole.hexdigest()


def vector_extensions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return which of the instructions that Horovod's build looks for this processor has; the wheel uses them."""
    try:
        flags = set(
            re.findall(
                r"\w+", next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
            )
        )
    except OSError:
        return platform.machine()
    return " ".join([platform.machine(), *sorted({"avx", "f16c", "fma"} & flags)])


def cached(folder: Path) -> Path | None:
    """Return the wheel in a cache folder, None when there is none, or a damaged one, or one without its extension."""
    for wheel in folder.glob("horovod-*.whl"):
        with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(wheel) as archive:
            extension = any(name.startswith("horovod/torch/mpi_lib_v2.") for name in archive.namelist())
            if extension and archive.testzip() is None:
                return wheel
    return None


def wheel(
    parts: Mapping[str, str],
    *,
    cache: Path,
    python: Path,
    patches: Path,
    step: Step,
    gpu: Mapping[str, str] | None = None,
) -> Path:
    """Return a wheel made of these ingredients, built first, with the flags `gpu`, when the cache has none."""
    folder = cache / "wheels" / key(parts)
    with locked(cache / "wheels" / f"{folder.name}.lock", "another build of the same wheel"):
        if found := cached(folder):
            step.note("from the cache")
            return found
        workshop = folder.with_name(f"{folder.name}.building")
        shutil.rmtree(workshop, ignore_errors=True)  # what a killed build has left
        workshop.mkdir()
        try:
            source = unpack(source_package(cache, python, workshop, step), workshop)
            for patch in sorted(patches.glob("*.patch")):
                apply(patch, source, step)
            shelf = workshop / "shelf"
            env = {**building_environment(step.env, workshop), **with_plain_nccl(gpu or {}, workshop)}
            options = ("--verbose", "--no-build-isolation", "--no-deps", "--wheel-dir", shelf)
            step.run(python, "-m", "pip", "wheel", *options, source, env=env)
            built = cached(shelf)
            if built is None:
                raise Failure(f"the build of Horovod ended without a usable wheel; log: {step.log}")
            (shelf / "ingredients.json").write_text(json.dumps(parts, indent=1) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            shelf.rename(folder)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
    step.note("built; kept in the cache")
    return folder / built.name


def source_package(cache: Path, python: Path, workshop: Path, step: Step) -> Path:
    """Return Horovod's source package, downloaded once; it must be the one that the patches were made for."""
    kept = cache / "sources" / SDIST
    if kept.is_file() and digest_of_file(kept) == SDIST_SHA256:
        return kept
    options = ("--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--dest", workshop)
    step.run(python, "-m", "pip", "download", *options, f"horovod=={VERSION}")
    fresh = workshop / SDIST
    if not fresh.is_file() or digest_of_file(fresh) != SDIST_SHA256:
        raise Failure(
            f"pip's download is not the source package of Horovod {VERSION} (another SHA-256):"
            f" check where pip looks (PIP_FIND_LINKS, pip.conf); log: {step.log}"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh.replace(kept)
    return kept


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file as published for packages."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def unpack(package: Path, into: Path) -> Path:
    """Unpack the source package, whose digest is known; return its top folder."""
    with tarfile.open(package) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4
            archive.extractall(into, filter="data")
        else:
            archive.extractall(into)
    return into / SDIST.removesuffix(".tar.gz")


def apply(patch: Path, source: Path, step: Step) -> None:
    """Apply a patch and see that each file it names has changed.

    Inside somebody's git work tree `git apply` leaves out files that it takes for another folder's, and succeeds. The
    ceiling keeps it from finding such a tree above the sources; the look at the files is for all other surprises.
    """
    names = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), flags=re.MULTILINE)
    before = {name: digest_of_file(source / name) for name in names if (source / name).is_file()}
    env = {**step.env, "GIT_CEILING_DIRECTORIES": str(source.resolve().parent)}
    step.run("git", "apply", "--verbose", patch, cwd=source, env=env)
    same = [n for n in names if not (source / n).is_file() or before.get(n) == digest_of_file(source / n)]
    if same or not names:
        raise Failure(f"the patch {patch.name} has not changed {', '.join(same) or 'any file'}; log: {step.log}")


def building_environment(env: Mapping[str, str], workshop: Path) -> dict[str, str]:
    """Return the environment of the compilation: our flags only, one job per core as far as memory goes."""
    foreign = (
        "HOROVOD_",
        "OMPI_",
        "OPAL_",
        "MAKE",
        "MFLAGS",
        "GNUMAKEFLAGS",
    )  # outer make's flags would stop the parallel build
    kept = {name: value for name, value in env.items() if not name.startswith(foreign)}
    return {**kept, **FLAGS, "MAKEFLAGS": f"-j{jobs()}", "TMPDIR": str(workshop)}


def jobs() -> int:
    """Return how many compilers may run at once: JOBS when set, else the cores, fewer when memory is short."""
    if asked := os.environ.get("JOBS"):
        if not asked.isdecimal() or int(asked) < 1:
            raise Failure(f"JOBS={asked}: a number of compilers to run at once is wanted, from 1")
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = (
        re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if Path("/proc/meminfo").exists()
        else None
    )
    return max(1, min(cores, int(int(free[1]) / 1024**2 / GIB_PER_JOB))) if free else cores


def torch_in(python: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """Return (version with local tag, CUDA version or "none") of the PyTorch in an environment."""
    said = output([python, "-c", "import torch; print(torch.__version__, torch.version.cuda or 'none')"], env=env)
    if said is None:
        raise Failure(
            f"{python} cannot import torch: the environment is damaged, remove it (make clean) and run make setup again"
        )
    version, cuda = said.splitlines()[-1].split()
    return version, cuda
