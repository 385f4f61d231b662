"""The source package, the wheel, and the wheel in an environment that has nothing but its extra `analysis`."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml
from make.synthetic_study import write_study
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from horovod_study import __version__

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
    assert f"3.{min(int(version[2:]) for version in named) - 1}" not in allowed
    assert metadata["Version"] == __version__
    assert metadata["Keywords"] and metadata["Summary"]


def test_the_citation_is_that_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == "MIT"


def needed(extra: str) -> set[str]:
    """Return the names of the packages that an extra of this project takes, with all that these take in turn."""
    found: set[str] = set()
    waiting = [("horovod_study", extra)]
    while waiting:
        name, extra = waiting.pop()
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            if requirement.name not in found:
                found.add(requirement.name)
                waiting.append((requirement.name, ""))
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel, and of other packages those that `analysis` takes: no PyTorch, no MPI."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(home, symlinks=True, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in needed("analysis"):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            target, link = Path(str(distribution.locate_file(top))), packages / top
            if top != "__pycache__" and not link.exists():
                link.symlink_to(target)
    return home


POINTS = "workers,samples_per_s\n1,100\n2,190\n4,350\n8,600\n"
NETWORK = "--alpha-us 5 --gb-per-s 10 --compute-ms 5 --batch 32 --gradient-mb 1".split()


def test_a_wheel_with_its_extra_fits_reports_checks_and_simulates(bare: Path, tmp_path: Path) -> None:
    def horovod_study(*arguments: str) -> str:
        environment = {"PATH": os.defpath, "HOME": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)}
        command = [str(bare / "bin" / "python"), "-I", "-m", "horovod_study.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "points.csv").write_text(POINTS)
    fitted = json.loads(horovod_study("fit", "points.csv", "--json"))
    assert fitted
    forecast = json.loads(horovod_study("predict", "points.csv", "--workers", "16", "--json"))
    assert forecast
    study = write_study(tmp_path / "study", workers=(1, 2), ways=(("serial", "none"), ("horovod", "mpi")), steps=60)
    horovod_study("report", str(study), "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "report.html").is_file()
    horovod_study("report", str(tmp_path / "out"), "--check", "--runs", str(study))
    simulated = json.loads(horovod_study("simulate", *NETWORK, "--workers", "2", "64", "--json"))
    assert simulated
