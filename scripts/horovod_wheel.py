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
from dataclasses import dataclass
from pathlib import Path

from console import Failure, Program, Step, locked
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


@dataclass(frozen=True, kw_only=True)
class Order:
    """A wheel that is wanted: what it depends on, and the flags for GPUs of its build."""

    parts: Mapping[str, str]
    gpu: Mapping[str, str]

    @property
    def key(self) -> str:
        return key(self.parts)


def wheels(
    orders: Mapping[str, Order], *, cache: Path, python: Path, patches: Path, shelf: Path | None, step: Step
) -> dict[str, Path]:
    """Return the wheel of each order, {name: file}; those that the cache has not are built first, all at once.

    `shelf` is a folder that may have the source package.
    """
    found: dict[str, Path] = {}
    programs: dict[str, Program] = {}
    with contextlib.ExitStack() as stack:
        for name, order in sorted(orders.items(), key=lambda item: item[1].key):  # one order of locks for everybody
            folder = cache / "wheels" / order.key
            stack.enter_context(locked(folder.with_name(f"{folder.name}.lock"), "another build of the same wheel"))
            if file := cached(folder):
                found[name] = file
                continue
            workshop = folder.with_name(f"{folder.name}.building")
            shutil.rmtree(workshop, ignore_errors=True)  # what a killed build has left
            workshop.mkdir()
            stack.callback(shutil.rmtree, workshop, ignore_errors=True)
            source = unpack(source_package(cache, python, workshop, step, shelf), workshop)
            for patch in sorted(patches.glob("*.patch")):
                apply(patch, source)
            options = ("--verbose", "--no-build-isolation", "--no-deps", "--wheel-dir", workshop / "shelf")
            programs[name] = Program(
                command=(python, "-m", "pip", "wheel", *options, source),
                env={**building_environment(step.env, workshop), **with_plain_nccl(order.gpu, workshop)},
                log=step.log.with_name(f"{step.log.stem}-{name}.log"),
            )
        waiting, together = list(programs.values()), jobs()
        try:
            while waiting:
                batch, waiting = waiting[:together], waiting[together:]
                step.run_together([program.with_jobs(together // len(batch)) for program in batch])
        finally:  # what was finished before another one failed, or before Ctrl-C, is not built again
            found |= {name: wheel for name in programs if (wheel := keep(orders[name], cache))}
        for name in programs.keys() - found.keys():
            raise Failure(f"the build of Horovod ended without a usable wheel; log: {programs[name].log}")
    step.note("from the cache" if not programs else f"built: {len(programs)}; kept in the cache")
    return found


def keep(order: Order, cache: Path) -> Path | None:
    """Move the wheel that was just built, if there is one, into the cache, with a note of what it depends on."""
    folder = cache / "wheels" / order.key
    shelf = folder.with_name(f"{folder.name}.building") / "shelf"
    built = cached(shelf)
    if built is None:
        return None
    (shelf / "ingredients.json").write_text(json.dumps(order.parts, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    shelf.rename(folder)
    return folder / built.name


def source_package(cache: Path, python: Path, workshop: Path, step: Step, shelf: Path | None) -> Path:
    """Return Horovod's source package, downloaded once; it must be the one that the patches were made for."""
    kept = cache / "sources" / SDIST
    for file in (kept, *([shelf / SDIST] if shelf else [])):
        if file.is_file() and digest_of_file(file) == SDIST_SHA256:
            return file
    download(python, workshop, step)
    kept.parent.mkdir(parents=True, exist_ok=True)
    (workshop / SDIST).replace(kept)
    return kept


def download(python: Path, folder: Path, step: Step) -> None:
    """Put the source package into a folder."""
    options = ("--no-deps", "--no-build-isolation", "--no-binary", "horovod", "--dest", folder)
    step.run(python, "-m", "pip", "download", *options, f"horovod=={VERSION}")
    fresh = folder / SDIST
    if not fresh.is_file() or digest_of_file(fresh) != SDIST_SHA256:
        raise Failure(
            f"pip's download is not the source package of Horovod {VERSION} (another SHA-256):"
            f" check where pip looks (PIP_FIND_LINKS, pip.conf); log: {step.log}"
        )


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


def apply(patch: Path, source: Path) -> None:
    """Apply a patch: the lines that a hunk shows must stand in the file once, at whatever line number.

    Not by git, which machines without developers lack, and which inside somebody's work tree leaves out files that it
    takes for another folder's, and succeeds.
    """
    parts = re.split(r"^--- a/.*\n\+\+\+ b/(\S+)\n", patch.read_text(), flags=re.MULTILINE)[1:]
    if not parts:
        raise Failure(f"the patch {patch.name} names no file")
    for name, hunks in zip(parts[::2], parts[1::2], strict=True):
        file = source / name
        text = "\n" + file.read_text() if file.is_file() else ""
        for hunk in re.split(r"^@@ .*\n", hunks, flags=re.MULTILINE)[1:]:
            lines = [line if line.strip("\n") else " \n" for line in hunk.splitlines(keepends=True)]
            old, new = ("\n" + "".join(line[1:] for line in lines if line[0] in kind) for kind in (" -", " +"))
            if len(re.findall(f"(?={re.escape(old)})", text)) != 1:  # they may overlap
                raise Failure(f"the patch {patch.name} does not fit {name}: it is for another release of Horovod")
            text = text.replace(old, new)
        file.write_text(text[1:])


def building_environment(env: Mapping[str, str], workshop: Path) -> dict[str, str]:
    """Return the environment of the compilation: our flags only, and Ninja where there is no make."""
    foreign = (
        "HOROVOD_",
        "OMPI_",
        "OPAL_",
        "MAKE",
        "MFLAGS",
        "GNUMAKEFLAGS",
    )  # outer make's flags would stop the parallel build
    kept = {name: value for name, value in env.items() if not name.startswith(foreign)}
    ninja = {} if shutil.which("make", path=env.get("PATH")) else {"CMAKE_GENERATOR": "Ninja"}
    return {**kept, **FLAGS, **ninja, "TMPDIR": str(workshop)}


def jobs() -> int:
    """Return how many compilers may run at once: JOBS when set, else the cores, fewer when memory is short."""
    if asked := os.environ.get("JOBS"):
        if not asked.isdecimal() or int(asked) < 1:
            raise Failure(f"JOBS={asked}: a number of compilers to run at once is wanted, from 1")
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = memory_gib()
    return cores if memory is None else max(1, min(cores, int(memory / GIB_PER_JOB)))


def memory_gib(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the memory that compilers may fill: all there is but what programs hold, within the job's limit.

    Not what Linux calls available: virtual machines that are given their memory as they use it show little at first.
    None where the system does not tell.
    """
    try:
        kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE))
        found = [(int(kib["MemTotal"]) - int(kib["AnonPages"]) - int(kib["Shmem"])) * 1024]
    except (OSError, KeyError):
        return None
    for line in (proc / "self" / "cgroup").read_text().splitlines() if (proc / "self" / "cgroup").exists() else ():
        _, kinds, group = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root, limit = groups / kinds, "memory.limit_in_bytes" if kinds else "memory.max"
        inner = root / group.strip("/")
        for folder in (inner, *inner.parents):
            text = (folder / limit).read_text().strip() if (folder / limit).is_file() else "max"
            found += [int(text)] if text.isdecimal() else []
    return min(found) / 2**30
