"""A training is known to studies as a workload; another one than the package's own needs one file."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from horovod_study.config.roles import Role
from horovod_study.config.run import Cell, Placement, local_cell
from horovod_study.config.workload import SHARED, Configuration, find_workload
from horovod_study.errors import ConfigError
from horovod_study.records import run_table
from horovod_study.strain.options import STRAIN, StrainConfig
from horovod_study.studies.study_file import load_study

TOY = Path(__file__).parent / "workloads" / "toy.py"
STUDY = {
    "study": "toy",
    "workload": "toy.py",
    "repeats": 1,
    "run": {"steps": 60, "warmup_steps": 10, "batch": 8},
    "sweep": {"workers": [1, 2], "runtime": "ddp/gloo", "units": [4, 8]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(TOY.read_text())
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(STUDY))
    return tmp_path


def said(words: str, folder: Path) -> str:
    """Return what a command says that ends well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "horovod_study.cli", *shlex.split(words)]
    ended = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_another_workload_takes_one_small_file() -> None:
    assert len(TOY.read_text().splitlines()) <= 60


def test_its_own_options_are_swept_and_its_cells_are_started_by_its_own_command(folder: Path) -> None:
    study = load_study(folder / "toy.yaml")
    cells = study.cells()

    assert {(vars(cell.config)["units"], cell.placement.workers) for cell in cells} == {
        (units, workers) for units in (4, 8) for workers in (1, 2)
    }
    assert study.workload.samples == "pairs"
    command = study.workload.command(Path("/c.yaml"), Path("/out"), False)
    assert command == (str(folder / "toy.py"), "--config", "/c.yaml", "--out", "/out")


def test_cells_of_another_file_are_other_cells(folder: Path, tmp_path: Path) -> None:
    """A key names the file that trains; those of the package's own are as they were."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "toy.py").write_text(TOY.read_text() + "\n# changed\n")
    one, other = (find_workload("toy.py", beside=each) for each in (folder, tmp_path / "other"))
    keys = {local_cell("serial", {"batch": 8}, workers=1, source="test", workload=each).key for each in (one, other)}
    own = Cell(config=StrainConfig(backend="serial"), runtime="serial", placement=Placement())

    assert len(keys) == 2
    assert own.key == "serial-1w-b75-r0-9a8a446dafa9"
    assert replace(own, config=StrainConfig(backend="serial", epsilon=1e-5)).key != own.key


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("WORKLOAD = 1", "WORKLOAD"),
        ("raise ValueError('broken')", "ValueError: broken"),
        (None, "no Python file"),
    ],
)
def test_a_file_that_declares_none_is_refused(content: str | None, what: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "mine.py").write_text(content)

    with pytest.raises(ConfigError, match=what):
        find_workload("mine.py", beside=tmp_path)


def test_an_option_of_the_packages_own_is_none_of_another(folder: Path) -> None:
    (folder / "toy.yaml").write_text(yaml.safe_dump({**STUDY, "sweep": {"workers": [1], "widths": ["1-2-3"]}}))

    with pytest.raises(ConfigError, match="widths"):
        load_study(folder / "toy.yaml")


def test_every_workload_has_the_shared_options(folder: Path) -> None:
    toy = find_workload("toy.py", beside=folder)
    names = {name for name in Configuration.__annotations__ if name != "workload"}

    assert set(SHARED) == names
    for each in (STRAIN, toy):
        assert names <= set(each.options)
    assert {name for name in SHARED if SHARED[name] != replace(STRAIN.options[name], name="")} == {"batch"}


def test_roles_make_the_lists_of_a_workload(folder: Path) -> None:
    toy = find_workload("toy.py", beside=folder)

    assert {"units", "parts", "batch", "threads"} == set(toy.sweepable)
    assert {"parts": (2,), "threads": (1, 2, 4, 8)} == toy.tuned
    assert "parts" in toy.named(Role.MAY_DIFFER)
    assert "units" not in toy.named(Role.MAY_DIFFER)


@pytest.mark.slow
def test_a_study_of_another_workload_goes_the_whole_way(folder: Path) -> None:
    """Nothing but the file was added: it is planned, run, judged, and reported by its own options."""
    plan = json.loads(said("run toy.yaml --plan --json", folder))
    assert (plan["to_do"], len(plan["cells"])) == (6, 6)
    said("run toy.yaml --yes", folder)
    status = json.loads(said("status toy.yaml --json", folder))
    assert status["counts"]["done"] == 6
    runs = run_table(folder / "runs" / "toy")
    assert set(runs["model"]) == {"Sequential-25 units 4 parts 1", "Sequential-49 units 8 parts 1"}
    assert (runs["samples_per_s"] > 0).all()
    page = (folder / "runs" / "toy" / "analysis" / "report.html").read_text()
    assert "units 8" in page


@pytest.mark.slow
def test_two_settings_of_another_workload_are_compared(folder: Path) -> None:
    words = "run serial serial,parts=2 --workload toy.py --workers 1 --blocks 1 --steps 60 --warmup-steps 10 --no-turns"
    found = json.loads(said(f"{words} --json", folder).splitlines()[-1])

    assert found["differs"] == {"parts": [1, 2]}
    assert len(found["blocks"]) == 1 and found["blocks"][0]["A"]["samples_per_s"] > 0


@pytest.mark.slow
def test_what_another_workload_lets_tune_is_tuned(folder: Path) -> None:
    study = "study: tuned\nworkload: toy.py\nsweep: {runtime: ddp/gloo, workers: [2]}\nbudget: {hours: 0.1}\n"
    (folder / "tuned.yaml").write_text(f"{study}run: {{seconds: 1, warmup_steps: 10, batch: 8}}\n")
    found = said("run tuned.yaml --tune parts", folder).splitlines()

    assert any(line.split()[:1] == ["parts=2"] for line in found), found
    assert any(line.startswith("# for a study file with runtime: ddp/gloo") for line in found), found
