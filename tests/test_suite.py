"""What all tests keep to."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from make.waiting import PATIENCE_S

import mutants

TESTS = Path(__file__).parent
FILES = sorted(TESTS.glob("test_*.py"))


def settings_of_properties(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name and value of whatever a property sets for itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "settings":
            for keyword in node.keywords:
                yield node.lineno, keyword.arg or "", ast.unparse(keyword.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_profile_decides_how_often_a_property_is_tried_and_nothing_binds_it_to_a_time(path: Path) -> None:
    for line, name, value in settings_of_properties(ast.parse(path.read_text(encoding="utf-8"))):
        assert name != "deadline", f"{path.name}:{line}: the profiles in conftest.py set none"
        assert name != "max_examples" or value.startswith("examples("), f"{path.name}:{line}: {value}"


def limits(tree: ast.Module) -> Iterator[tuple[int, float]]:
    """Line and seconds of whatever ends a wait for a process or thread; less than a second is a pause, no limit."""
    waits = {"run", "check_output", "communicate", "wait", "join", "get", "wait_procs"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in waits:
            told = [each.value for each in node.keywords if each.arg in ("timeout", "timeout_s")]
            for value in told + (node.args[:1] if node.func.attr in ("wait", "join") else []):
                if isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value >= 1:
                    yield node.lineno, value.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_fails_because_the_machine_is_busy(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for line, seconds in limits(tree):
        assert seconds >= 120, f"{path.name}:{line}: {seconds:g} s; make.waiting has {PATIENCE_S:g} s for everybody"
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            assert "time.monotonic()" not in ast.unparse(node), f"{path.name}:{node.lineno}: make.waiting has the loop"


def test_every_fault_that_the_mutants_plant_has_its_line() -> None:
    """A change may move or reword a line in which scripts/mutants.py plants a fault; it is to be named again then."""
    package = TESTS.parent / "horovod_study"
    held = {(file, old): (package / file).read_text(encoding="utf-8").count(old) for file, old, _ in mutants.FAULTS}

    assert len(held) == len(mutants.FAULTS) == 40
    assert [fault for fault, count in held.items() if count != 1] == []
