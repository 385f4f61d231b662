"""What distinguishes cells beside their configuration: which code counts, what is installed, how changes are named."""

import ast
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from fake_trainer import fake_launch
from rich.console import Console

import horovod_study
from horovod_study import records
from horovod_study.cluster import identity
from horovod_study.config.partitions import Partition
from horovod_study.errors import StudyError
from horovod_study.runtimes import LIBRARIES
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import runner
from horovod_study.studies.attempt import Interruption
from horovod_study.studies.study_file import StudyConfig, sweep_of

PACKAGE = Path(horovod_study.__file__).parent


def modules_of(path: Path) -> set[Path]:
    """Return the files of this package that a module imports anywhere, packages on the way to them included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for name in names:
        package, *parts = name.split(".")
        for end in range(len(parts) + 1) if package == PACKAGE.name else ():
            base = PACKAGE.joinpath(*parts[:end])
            found |= {file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()}
    return found


def has_code(path: Path) -> bool:
    """Return whether a file holds more than a docstring."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text(encoding="utf-8")).body)


LAZY = {PACKAGE / "api.py"}
"""Named in the package's own file, and loaded by whoever asks for one of its functions; training does not."""


def reached(start: Path) -> set[str]:
    """Return all files with code that a module imports, directly or through others."""
    seen, ahead = set(), [start]
    while ahead:
        path = ahead.pop()
        if path not in seen:
            seen.add(path)
            ahead += modules_of(path) - LAZY
    return {path.relative_to(PACKAGE).as_posix() for path in seen if has_code(path)}


@pytest.fixture
def package(tmp_path) -> Path:
    """Return a copy of the package."""
    folder = identity.snapshot(tmp_path / "copied") / "horovod_study"
    assert (folder / "train.py").exists()
    return folder


# ---------------------------------------------------------------------------------------------------- code


@pytest.mark.slow
def test_everything_that_training_imports_is_covered():
    covered = set(identity.code_files())

    leaves = [each.implementation.partition(":")[0].partition(".")[2] for each in LIBRARIES.values()]
    starts = ["train.py", *(f"{leaf.replace('.', '/')}.py" for leaf in leaves)]  # those are imported by name
    found = set().union(*(reached(PACKAGE / start) for start in starts))

    assert {"train.py", "config/run.py", "comm/launch.py", "strain/model.py", "measure/clock.py"} <= found
    assert set() == {*found, *starts} - covered


def test_what_does_not_shape_a_run_is_not_covered():
    whole = ("comm/", "config/", "measure/", "recording/", "records/", "runtimes/", "text/", "strain/")
    single = {name for name in identity.code_files() if "/" in name and not name.startswith(whole)}

    kits = {f"analysis/{name}.py" for name in ("costs", "paired", "stats")}  # what of a run counts is by their rule
    assert {*kits, "cluster/alive.py", "studies/lease.py"} == single
    assert not [name for name in identity.code_files() if name.startswith("cli")]


def test_files_are_named_below_the_package_in_order():
    files = identity.code_files()

    assert sorted(files) == list(files)
    assert all((PACKAGE / name).is_file() and len(digest) == 64 for name, digest in files.items())


@pytest.mark.parametrize(
    ("name", "changes"),
    [("strain/model.py", True), ("train.py", True), ("studies/runner.py", False), ("report/kit/style.py", False)],
)
def test_an_edit_changes_the_digest_where_it_can_change_a_run(package, name, changes):
    before = identity.code_digest(identity.code_files(package))
    with (package / name).open("a") as stream:
        stream.write("# edited\n")

    assert changes == (before != identity.code_digest(identity.code_files(package)))


def test_a_new_or_renamed_source_changes_the_digest(package):
    before = identity.code_digest(identity.code_files(package))
    (package / "comm" / "priority.py").rename(package / "comm" / "rank.py")
    renamed = identity.code_digest(identity.code_files(package))
    (package / "comm" / "__pycache__").mkdir(exist_ok=True)
    (package / "comm" / "__pycache__" / "x.py").touch()
    (package / "comm" / "notes.txt").touch()

    assert before != renamed == identity.code_digest(identity.code_files(package))


# ---------------------------------------------------------------------------------------------------- environment


def test_environment_says_what_is_installed_and_nothing_of_the_host():
    found = identity.environment()

    for name in ("torch", "horovod", "numpy", "mpi4py"):
        assert metadata.version(name) == found[name]
    assert "horovod-0.28.1-torch-" in found["horovod build"]
    assert "Open MPI" in found["MPI"]
    assert os.uname().nodename not in json.dumps(found)


def test_environment_is_the_same_whoever_asks(monkeypatch):
    """What mpirun, Slurm or the user's shell set is not part of it."""
    before = identity.identify()
    for name in ("OMPI_VERSION", "SLURM_JOB_ID", "HOROVOD_CYCLE_TIME"):
        monkeypatch.setenv(name, "7")

    assert before == identity.identify()
    program = "from horovod_study.cluster.identity import identify; print(identify())"
    other = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=True)
    assert before == other.stdout.strip()


def test_partition_counts_by_what_it_sets_for_its_runs():
    plain = Partition(name="alpha")
    told = {"name": "beta", "description": "other words", "nodes": 7, "account": "else", "time_limit_s": 60.0}
    same = plain.model_copy(update=told)
    changes = (
        {"environment": {"NCCL_P2P_DISABLE": "1"}},
        {"environment": {"NCCL_P2P_DISABLE": "0"}},
        {"modules": ("cuda/12",)},
        {"interface": "ib0"},
        {"launcher": "srun"},
        {"srun_mpi": "pmix"},
    )
    others = [plain.model_copy(update=change) for change in changes]

    assert identity.identify(same) == identity.identify(plain) == identity.identify()
    assert 1 + len(others) == len({identity.identify(each) for each in (plain, *others)})
    assert len(identity.identify(plain)) == 12 and int(identity.identify(plain), 16) >= 0


def test_horovod_wheel_from_elsewhere_is_named_by_its_hash(tmp_path):
    folder = tmp_path / "horovod-0.28.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    found = []
    for origin in (
        {"url": "file:///wheels/horovod.whl", "archive_info": {"hash": "sha256=0123456789abcdef"}},
        {"url": "file:///c/horovod-0.28.1-torch-2.13.0%2Bcpu-aa8e/horovod.whl", "archive_info": {"hash": "sha256=01"}},
        [],
        None,
    ):
        (folder / "direct_url.json").write_text("{" if origin is None else json.dumps(origin))
        found.append(identity._horovod_build(tmp_path))

    expected = ["0123456789ab", "horovod-0.28.1-torch-2.13.0+cpu-aa8e", *["0.28.1 from an index"] * 2]
    assert expected == found
    assert identity._horovod_build(tmp_path / "nothing") is None


# ---------------------------------------------------------------------------------------------------- remembering


def test_what_an_identity_stood_for_is_remembered_once(tmp_path):
    partition = Partition(name="alpha", modules=("cuda/12",))
    identity.remember(tmp_path, [partition, Partition(name="local")])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    identity.remember(tmp_path, [partition])

    known = identity.remembered(tmp_path)

    assert {identity.identify(partition), identity.identify()} == set(known)
    assert identity.code_files() == known[identity.identify(partition)].files
    assert "cuda/12" == known[identity.identify(partition)].environment["modules"]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert 3 == len(before)


def test_damaged_memory_is_passed_over(tmp_path):
    identity.remember(tmp_path)
    next((tmp_path / identity.CODE).glob("*.json")).write_text("{")
    (tmp_path / identity.ENVIRONMENTS / "feedfacefeed.json").write_text("[]")

    known = identity.remembered(tmp_path)

    assert {identity.identify()} == set(known)
    assert {} == known[identity.identify()].files
    assert {} == identity.remembered(tmp_path / "nowhere")


def test_folder_that_cannot_be_written_is_named(tmp_path, golden):
    (tmp_path / "runs").write_text("a file where the folder should be")

    with golden.raises(StudyError, match="runs/tiny/.*--runs"):
        identity.remember(tmp_path / "runs" / "tiny")
    with golden.raises(StudyError, match=r"tiny/\.code"):
        identity.snapshot(tmp_path / "runs" / "tiny")


def test_changes_are_named(golden):
    before = identity.Known(
        files={"a.py": "1", "gone.py": "1", "train.py": "1"}, environment={"torch": "2.12.0", "numpy": "2.4"}
    )
    files = identity.Known(files={"a.py": "1", "new.py": "1", "train.py": "2"}, environment=before.environment)
    versions = identity.Known(
        files=before.files,
        environment={"torch": "2.13.0", "numpy": "2.4", "environment of the partition: NCCL_P2P_DISABLE": "1"},
    )
    both = identity.Known(files={f"{n}.py": "" for n in range(9)}, environment={"torch": "2.12.0", "numpy": "2.5"})

    assert "" == identity.changes(before, before)
    golden(identity.changes(before, files), "gone.py", "new.py", "train.py")
    golden(identity.changes(before, versions), "NCCL_P2P_DISABLE", "2.12.0", "2.13.0")
    golden(identity.changes(before, both), "0.py", "1.py", "2.py", "3.py", "4.py", "7 more", "2.4", "2.5")
    golden(identity.changes(replace(before, files={}), before))


def test_a_study_stops_when_its_source_is_changed_under_it(tmp_path, monkeypatch, golden):
    """Cells begun after the change would bear the name of the old code."""
    config = StrainConfig(study="tiny", seconds=1)
    study = StudyConfig(name="tiny", run=config, workers=(1,), repeats=2, identity={"local": identity.identify()})
    identities = iter(["old", "old", "old", "new"])
    monkeypatch.setattr(runner, "identify", lambda: next(identities))
    console = Console(file=io.StringIO())

    with golden.raises(StudyError, match="horovod_study"):
        runner.Grid(
            sweep=replace(sweep_of(study, tmp_path), directory=tmp_path),
            console=console,
            stop=Interruption(),
            options=runner.RunOptions(command="", launch=fake_launch({})),
        ).run(study.cells())

    assert 2 == sum(records.read_run(path).status == "done" for path in records.run_directories(tmp_path))
    assert {identity.identify()} == set(identity.remembered(tmp_path)), "so that a later status can name the change"


# ---------------------------------------------------------------------------------------------------- snapshots


def test_snapshot_is_the_whole_package_and_runs_from_there(tmp_path):
    folder = identity.snapshot(tmp_path)
    found = {path.relative_to(folder / "horovod_study").as_posix() for path in folder.rglob("*") if path.is_file()}

    wanted = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert wanted == found
    assert folder.is_absolute()
    program = "import horovod_study; print(horovod_study.__file__); from horovod_study import cli, records"
    environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert str(folder / "horovod_study" / "__init__.py") == done.stdout.strip(), done.stderr


def test_equal_sources_give_one_snapshot_also_with_bytecode_in_it(tmp_path):
    first = identity.snapshot(tmp_path)
    (first / "horovod_study" / "__pycache__").mkdir()
    (first / "horovod_study" / "__pycache__" / "cli.cpython-311.pyc").touch()
    before = first.stat().st_ino

    assert first == identity.snapshot(tmp_path)
    assert before == first.stat().st_ino
    assert [first] == list((tmp_path / identity.CODE).iterdir())


def test_damaged_snapshot_is_replaced(tmp_path):
    folder = identity.snapshot(tmp_path)
    (folder / "horovod_study" / "train.py").write_text("")

    assert folder == identity.snapshot(tmp_path)
    assert (PACKAGE / "train.py").read_bytes() == (folder / "horovod_study" / "train.py").read_bytes()
    assert [folder] == list((tmp_path / identity.CODE).iterdir())


def test_any_edit_gives_another_snapshot_though_only_some_give_other_cells(tmp_path, package):
    before = identity.snapshot(tmp_path, package)
    (package / "studies" / "runner.py").write_text("")

    after = identity.snapshot(tmp_path, package)

    assert before != after
    assert (before / "horovod_study" / "studies" / "runner.py").read_text()


def test_snapshot_made_by_two_at_once_is_whole(tmp_path, monkeypatch):
    rename = os.rename

    def late(source, target):
        monkeypatch.setattr(os, "rename", rename)
        identity.snapshot(tmp_path)  # somebody else is faster
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)

    folder = identity.snapshot(tmp_path)

    assert (PACKAGE / "train.py").read_bytes() == (folder / "horovod_study" / "train.py").read_bytes()
    assert 1 == len(list((tmp_path / identity.CODE).iterdir()))
