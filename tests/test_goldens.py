"""Answers of the package are those of tests/golden/results, which `python scripts/goldens.py` compares and writes."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

import goldens


@pytest.mark.parametrize("part", [part.__name__ for part in goldens.FAST])
def test_answers_are_those_that_are_kept(part: str) -> None:
    if part == "launch" and not (Path(sys.executable).parent / "horovodrun").exists():
        pytest.skip(f"horovodrun is not installed beside {sys.executable}")
    assert goldens.compared(part) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", [part.__name__ for part in goldens.SLOW])
def test_slower_answers_are_those_that_are_kept(part: str) -> None:
    assert goldens.compared(part) == []


def test_every_part_is_kept_and_small() -> None:
    sizes = {path.stem: path.stat().st_size for path in goldens.RESULTS.glob("*.json")}

    assert set(sizes) == set(goldens.PARTS)
    assert max(sizes.values()) < 200_000
    assert sum(sizes.values()) < 600_000


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"a": {"b": [1.0, 2.0]}, "c": "x"}, []),
        ({"a": {"b": [1.0, 2.0 * (1 + 5e-7)]}, "c": "x"}, []),
        ({"a": {"b": [1.0, 2.00001]}, "c": "x"}, ["/a/b[1]: 2.0, now 2.00001 (+5.00e-06)"]),
        ({"a": {"b": [1.0, 2.0, 3.0]}, "c": "x"}, ["/a/b: [1.0, 2.0], now [1.0, 2.0, 3.0]"]),
        ({"a": {"b": [True, 2.0]}, "c": "x"}, ["/a/b[0]: 1.0, now true"]),
        ({"a": {"b": [1.0, 2.0]}, "d": "x"}, ["/c: is gone", "/d: is new"]),
        ({"a": {"b": [1.0, 2.0]}, "c": "y"}, ['/c: "x", now "y"']),
    ],
)
def test_what_differs_is_named_with_its_place(now: Any, told: list[str]) -> None:
    assert list(goldens.differences({"a": {"b": [1.0, 2.0]}, "c": "x"}, now)) == told


def test_a_column_is_kept_whole_or_as_a_summary() -> None:
    many = [float(each) for each in range(goldens.ROWS + 1)]

    assert goldens.column([2.0, 2.0]) == 2.0
    assert goldens.column([2.0, None, 3.0]) == [2.0, None, 3.0]
    assert goldens.column(["a", "a", "b"]) == ["2 x a", "1 x b"]
    assert goldens.column(many) != goldens.column(many[::-1]), "the order of rows is seen"
    assert goldens.table("a,b,c\n1,,x\n2,,x\n") == {"rows": 2, "empty": "b", "a": [1.0, 2.0], "c": "x"}


def test_what_is_written_is_json_with_short_numbers() -> None:
    value = {"a": {"b": [1 / 3, 2.0, math.nan], "empty": None}, "commands": ["x"]}

    assert json.loads(goldens.lines(goldens.kept(value))) == {"a": {"b": [0.33333333, 2, None]}}
