"""The notebooks run from the first cell to the last on recorded runs, show figures, and are kept without outputs."""

import ast
import json
import os
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from make.synthetic_study import write_study
from nbclient import NotebookClient

from horovod_study.strain import material

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
FIGURES_SHOWN = {"identify.ipynb": 1, "laws.ipynb": 1, "prediction.ipynb": 2, "thesis.ipynb": 13, "tour.ipynb": 3}


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


def test_there_are_five() -> None:
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
    """No class but a law, no import of the run wing, no function but `law` and what shows a figure over its caption."""
    book = nbformat.read(NOTEBOOKS / name, as_version=4)
    tree = ast.parse("\n".join(cell.source for cell in book.cells if cell.cell_type == "code"))
    laws = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and ast.unparse(node.bases[0]) == "Law"]
    inside = [each for law in laws for each in ast.walk(law)]
    kinds = (ast.ClassDef, ast.FunctionDef)
    made = [node.name for node in ast.walk(tree) if isinstance(node, kinds) and node not in inside]
    imported = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }

    assert set(made) <= {"show", "law"}
    ours = {each for each in imported if each.startswith("horovod_study")}
    doors = ("horovod_study", "horovod_study.records", "horovod_study.laws")
    assert all(each in doors or each.rpartition(".")[0] == "horovod_study.laws" for each in ours)


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


def test_the_parameters_of_curves_are_those_that_they_were_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """95 of 100 intervals hold the truth, and curves that the law does not describe are doubted."""
    count = 200
    curves, targets = material.generate(5, 0, count)
    truth = material.TARGET_BOUNDS[:, 0] + targets * material.TARGET_SPAN
    real = curves[:, 2] > 0
    names = np.repeat([f"S{k:03d}" for k in range(count)], real.sum(axis=1))
    table = pd.DataFrame({"specimen": names, "strain": curves[:, 0][real], "stress_mpa": curves[:, 1][real]})
    strain = np.linspace(0.0, 0.15, 120)
    steps = pd.DataFrame({"specimen": "steps", "strain": strain, "stress_mpa": np.where(strain < 0.1, 60.0, 10.0)})
    bent = pd.DataFrame({"specimen": "bent", "strain": strain, "stress_mpa": 1500 * np.minimum(strain, 0.03)})
    pd.concat([table, steps, bent]).to_csv(tmp_path / "curves.csv", index=False)
    monkeypatch.setenv("HOROVOD_STUDY_CURVES", str(tmp_path / "curves.csv"))
    book = nbformat.read(NOTEBOOKS / "identify.ipynb", as_version=4)
    names_of: dict[str, Any] = {}
    exec("\n".join(cell.source for cell in book.cells if cell.cell_type == "code"), names_of)
    found, doubts = names_of["found"], names_of["doubts"]

    for column, values in zip(("g0_mpa", "a"), truth.T, strict=True):
        fitted = found.iloc[:count]
        held = (fitted[f"{column}_low"] <= values) & (values <= fitted[f"{column}_high"])
        assert 0.91 <= held.mean() <= 0.99
    assert doubts.loc["steps", "misfit"] and doubts.loc["bent", "pattern"]
    assert not doubts.iloc[:count][["misfit", "pattern"]].any(axis=None)
