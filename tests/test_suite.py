"""What all tests keep to."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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
