"""The notebooks run from the first cell to the last on recorded runs, show figures, and are kept without outputs."""

import ast
import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from make.synthetic_study import write_study
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
FIGURES_SHOWN = {"prediction.ipynb": 2, "thesis.ipynb": 13, "tour.ipynb": 3}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with everything that a thesis shows: several nodes, NCCL and MPI, batches, learning, GPU samples."""
    return write_study(
        tmp_path_factory.mktemp("wide") / "runs",
        partitions=("gpu2",),
        workers=(1, 2, 4, 6),
        batches=(75, 300, 1024),
        steps=60,
        seed=5,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One way of communicating on one node."""
    ways = (("serial", "none"), ("horovod", "mpi"))
    return write_study(tmp_path_factory.mktemp("small") / "runs", ways=ways, workers=(1, 2, 4), steps=60, seed=5)


def test_there_are_three() -> None:
    assert set(NAMES) == set(FIGURES_SHOWN)


@pytest.mark.parametrize("name", NAMES)
def test_no_output_is_kept(name: str) -> None:
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]

    assert [cell.outputs for cell in cells] == [[]] * len(cells)
    assert {cell.execution_count for cell in cells} == {None}


@pytest.mark.parametrize("name", NAMES)
def test_they_only_read_and_call(name: str) -> None:
    """No class, no import of the run wing, and no function but the one that shows a figure over its caption."""
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    tree = ast.parse("\n".join(cell.source for cell in book.cells if cell.cell_type == "code"))
    made = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    imported = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }

    assert set(made) <= {"show"}
    ours = {each for each in imported if each.startswith("horovod_study")}
    assert ours <= {"horovod_study", "horovod_study.records"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_they_run(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = request.getfixturevalue("wide" if name == "thesis.ipynb" else "small")
    monkeypatch.setenv("HOROVOD_STUDY_RUNS", str(runs))
    monkeypatch.setenv("HOROVOD_STUDY_TARGETS", "0.02")
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    outputs: list[Any] = [out for cell in book.cells if cell.cell_type == "code" for out in cell.outputs]
    pictures = [out for out in outputs if "image/png" in out.get("data", {})]

    if folder := os.environ.get("HOROVOD_STUDY_EXECUTED_NOTEBOOKS"):
        nbformat.write(book, Path(folder) / name)
    assert [out.text for out in outputs if out.get("name") == "stderr"] == []
    assert len(pictures) >= FIGURES_SHOWN[name]
    assert [line for line in json.dumps(outputs).split("\\n") if "No figure" in line] == []
