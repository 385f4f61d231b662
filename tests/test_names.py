"""A name says one thing: no two classes of the package share one."""

import ast
from collections import defaultdict
from pathlib import Path

import horovod_study

ROOT = Path(horovod_study.__file__).parent
SHARED = {"Cell"}
"""The cell of a study and that of a table, both by the name that everybody uses."""


def classes(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return {name: where} of the classes that are declared more than once, in functions and classes too."""
    found = defaultdict(list)
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{name}:{node.lineno}")
    return {name: where for name, where in found.items() if len(where) > 1}


def test_no_two_classes_share_a_name() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}

    assert {} == {name: where for name, where in classes(sources).items() if name not in SHARED}


def test_a_name_that_is_used_twice_is_found() -> None:
    inner = "def f():\n    class Plan:\n        pass\n"

    assert {"Plan": ["a:1", "b:2"]} == classes(
        {"a": "class Plan:\n    pass\n", "b": inner, "c": "class Other:\n  x = 1"}
    )
