"""What a number cannot be: each rule at its edge, and that each is asked by somebody."""

import ast
import math
from pathlib import Path

import pytest

import horovod_study
from horovod_study.analysis.series.culprits import RULES, impossible

PACKAGE = Path(horovod_study.__file__).parent

EDGES = {  # rule: values that can just be, values that cannot
    "rate": ({"rate": 1e9, "workers": 1, "unit": "samples/s"}, {"rate": 2.1e9, "workers": 2, "unit": "samples/s"}),
    "speedup": ({"speedup": 16.0, "workers": 8}, {"speedup": 24.0, "workers": 8}),
    "epochs": ({"epochs": 5000.0}, {"epochs": 26_214_400.0}),
    "step": ({"step": 300.0}, {"step": 3600.0}),
    "part": (
        {"part": 1.0, "whole": 1.0, "what": "exposed communication", "of": "communication"},
        {"part": 97.0, "whole": 0.04, "what": "exposed communication", "of": "communication", "unit": "ms"},
    ),
    "device step": ({"step": 10.0, "busy": 20.0}, {"step": 10.0, "busy": 100.0, "unit": "ms"}),
    "behind": ({"step": 10.0, "behind": 10.0}, {"step": 10.0, "behind": 90.0, "unit": "ms"}),
    "limit": (
        {"law": "constant", "limit": 60.0, "measured": 60.0},
        {"law": "constant", "limit": 22.7, "measured": 60.0},
    ),
    "peak": (
        {"law": "usl", "peak": 64.0, "limit": 20.0, "workers": 64, "measured": 21.0},
        {"law": "usl", "peak": 32.0, "limit": 20.0, "workers": 64, "measured": 21.0},
    ),
    "bandwidth": ({"bandwidth": 2e13}, {"bandwidth": 3e13}),
}


def test_each_rule_has_an_edge() -> None:
    assert set(EDGES) == set(RULES)


@pytest.mark.parametrize("rule", EDGES)
def test_a_value_that_can_be_passes_and_one_beyond_is_named(rule: str) -> None:
    can, cannot = EDGES[rule]
    assert impossible(rule, **can) == ""
    said = impossible(rule, **cannot)
    assert said
    assert "\n" not in said
    assert all(f"{value:.4g}" in said for name, value in cannot.items() if isinstance(value, float) and name != "rate")


@pytest.mark.parametrize("rule", EDGES)
def test_what_is_not_known_is_not_impossible(rule: str) -> None:
    _, cannot = EDGES[rule]
    unknown = {name: value if isinstance(value, str) else math.nan for name, value in cannot.items()}
    assert impossible(rule, **unknown) == ""


def test_values_that_differ_read_differently() -> None:
    assert "20.001," in impossible("limit", law="usl", limit=20.001, measured=20.002)


def test_every_rule_is_asked_in_the_package() -> None:
    asked = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "impossible":
                asked |= {each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)}
                asked |= {"rate", "speedup"} if isinstance(node.args[0], ast.Name) else set()  # by the unit of a table
    assert set(RULES) <= asked
