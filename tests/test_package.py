"""The source package, the wheel, and the wheel in environments that have nothing but its extra `analysis`.

One is of the Python that runs the tests, the others are of those of other Debian releases (scripts/pythons.py).
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml
from make.synthetic_study import write_study
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import pythons
import wheels
from console import Failure, Step
from horovod_study import __version__
from state import Places, cache_folder, read_pins, tool_environment

ROOT = Path(__file__).resolve().parent.parent
FOR_DEVELOPERS = (".ci/", ".editorconfig", ".gitignore", ".pre-commit-config.yaml")
BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"

pytestmark = pytest.mark.slow


def tracked() -> set[str]:
    """Return the files of the project, which are those that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


def build(what: str, source: Path, into: Path) -> Path:
    """Build a source package or a wheel as pip does, and return its file."""
    command = [sys.executable, "-W", "ignore", "-c", BUILD, f"build_{what}", str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source package of a copy of the project, where nothing else lies about."""
    copy, into = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("sdist")
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(build("sdist", copy, into)) as archive:
        archive.extractall(into, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4
    return into / f"horovod_study-{__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that the source package makes."""
    return build("wheel", sdist, tmp_path_factory.mktemp("wheel"))


def test_the_source_package_has_every_file_of_the_project(sdist: Path) -> None:
    packed = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    expected = {name for name in tracked() if not name.startswith(FOR_DEVELOPERS)}
    assert sorted(expected - packed) == []
    made = {name for name in packed - expected if not re.match(r"horovod_study\.egg-info/", name)}
    assert made == {"PKG-INFO"}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith(f"horovod_study-{__version__}.dist-info/")}
    assert packed == {name for name in tracked() if name.startswith("horovod_study/")}


def test_the_metadata_names_the_versions_of_python_that_are_allowed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"horovod_study-{__version__}.dist-info/METADATA").decode()
    metadata = HeaderParser().parsestr(text)
    named = re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", text, re.MULTILINE)
    allowed = SpecifierSet(metadata["Requires-Python"])
    assert named and all(allowed.contains(version) for version in named)
    assert set(pythons.RELEASES) <= set(named)
    assert f"3.{min(int(version[2:]) for version in named) - 1}" not in allowed
    assert metadata["Version"] == __version__
    assert metadata["Keywords"] and metadata["Summary"]


def test_the_citation_is_that_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == "MIT"


OWN = "{}.{}".format(*sys.version_info)
VERSIONS = tuple(dict.fromkeys((OWN, *pythons.RELEASES)))


def needed(extra: str, python: str) -> set[str]:
    """Return the names of the packages that an extra of this project takes for a version of Python, with all that
    these take in turn."""
    found: set[str] = set()
    waiting = [("horovod_study", extra)]
    while waiting:
        name, extra = waiting.pop()
        there = {"extra": extra, "python_version": python, "python_full_version": f"{python}.0"}
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate(there):
                continue
            if requirement.name not in found:
                found.add(requirement.name)
                waiting.append((requirement.name, ""))
    return found


@dataclass(frozen=True)
class Bare:
    """An environment with the wheel, and of other packages those that `analysis` takes: no PyTorch, no MPI."""

    python: tuple[str, ...]  # the command that starts its Python
    folder: Path  # where the files of a test are
    home: str  # the name that this folder has for that Python

    def run(self, *arguments: str) -> str:
        """Run its Python in the folder and return what it prints."""
        environment = {"PATH": os.defpath, "HOME": self.home, "MPLCONFIGDIR": self.home}
        command = [*self.python, "-I", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout


def linked(wheel: Path, home: Path) -> Bare:
    """Return an environment of the Python that runs this, with links to packages that it has already."""
    venv.create(home / "venv", symlinks=True, with_pip=False)
    packages = next(home.glob("venv/lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in needed("analysis", OWN):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            target, link = Path(str(distribution.locate_file(top))), packages / top
            if top != "__pycache__" and not link.exists():
                link.symlink_to(target)
    folder = home / "work"
    folder.mkdir()
    return Bare(python=(str(home / "venv" / "bin" / "python"),), folder=folder, home=str(folder))


def installed(wheel: Path, version: str, home: Path) -> Bare:
    """Return an environment of another Python, into which its own pip installed the wheel with the extra.

    The packages are those of the lock file. They are downloaded from outside, where pip is set up to find the registry.
    """
    places = Places(root=ROOT, cache=cache_folder(os.environ))
    root = home / "root"
    pythons.copied(version, places, root)
    (root / "work").mkdir()
    pins = {canonicalize_name(name): pin for name, pin in read_pins(ROOT / "requirements.lock").items()}
    packages = [f"{name}=={pins[canonicalize_name(name)]}" for name in sorted(needed("analysis", version))]
    with Step("", f"wheels for Python {version}", log=home / "pip.log", env=tool_environment(places)) as step:
        wheels.download(step, version, root / "wheels", "--no-deps", *packages)
    shutil.copy(wheel, root / "wheels")
    system = Bare(python=tuple(pythons.inside(root, "/work", f"/usr/bin/python{version}")), folder=root, home="/work")
    system.run("-m", "venv", "/venv")
    bare = Bare(python=tuple(pythons.inside(root, "/work", "/venv/bin/python")), folder=root / "work", home="/work")
    from_there = ("--no-index", "--find-links", "/wheels", "--no-compile", "--quiet", "--root-user-action=ignore")
    bare.run("-m", "pip", "install", *from_there, f"horovod_study[analysis]=={__version__}")
    return bare


@pytest.fixture(scope="module", params=VERSIONS)
def bare(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Return an environment of each version of Python; where one cannot be had, what asks for it is skipped."""
    version = request.param
    home = tmp_path_factory.mktemp("bare")
    try:
        if version == OWN:
            yield linked(wheel, home)
            return
        if reason := pythons.obstacle(os.environ):
            pytest.skip(f"Python {version}: {reason}")
        try:
            other = installed(wheel, version, home)
        except Failure as failure:
            pytest.skip(f"Python {version}: {failure.args[0]}")
        yield other
    finally:
        shutil.rmtree(home)  # half a gigabyte


POINTS = "workers,samples_per_s\n1,100\n2,190\n4,350\n8,600\n"
NETWORK = "--alpha-us 5 --gb-per-s 10 --compute-ms 5 --batch 32 --gradient-mb 1".split()


def test_a_wheel_with_its_extra_fits_reports_checks_and_simulates(bare: Bare) -> None:
    def horovod_study(*arguments: str) -> str:
        return bare.run("-m", "horovod_study.cli", *arguments)

    (bare.folder / "points.csv").write_text(POINTS)
    fitted = json.loads(horovod_study("fit", "points.csv", "--json"))
    assert fitted
    forecast = json.loads(horovod_study("predict", "points.csv", "--workers", "16", "--json"))
    assert forecast
    study = bare.folder / "study"
    write_study(study, workers=(1, 2), ways=(("serial", "none"), ("horovod", "mpi")), steps=60)
    horovod_study("report", "study", "--out", "out")
    assert (bare.folder / "out" / "report.html").is_file()
    horovod_study("report", "out", "--check", "--runs", "study")
    simulated = json.loads(horovod_study("predict", "--simulate", *NETWORK, "--workers", "2", "64", "--json"))
    assert simulated
