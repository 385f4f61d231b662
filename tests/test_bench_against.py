"""Times against another revision: the arithmetic, the order of the rounds, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from make.waiting import PATIENCE_S

import bench_against
from bench_against import ROOT, Row, Side

SIDES = tuple(Side(name=name, tree=ROOT, scratch=ROOT) for name in ("here", "there"))


def test_ratios_are_those_of_a_round_and_their_median_is_told() -> None:
    row = Row(what="plan", unit="s", here=[1.0, 2.0, 6.0], there=[2.0, 2.0, 2.0])

    assert row.cells() == ["plan, s", "less", "2 (1 - 6)", "2 (2 - 2)", "1 (0.5 - 3)"]


def test_what_may_be_nothing_is_compared_by_differences() -> None:
    row = Row(what="added", unit="us", signed=True, here=[5.0, -1.0], there=[1.0, 0.0])

    assert row.cells()[-1] == "1.5 (-1 - 4) us more"


def test_the_order_of_the_two_alternates() -> None:
    asked: list[str] = []
    row = Row(what="x", unit="s")

    def measure(side: Side) -> list[float]:
        asked.append(side.name)
        return [float(len(asked))]

    bench_against.rounds_of((SIDES[0], SIDES[1]), 3, measure, [row])

    assert asked == ["here", "there", "there", "here", "here", "there"]
    assert (row.here, row.there) == ([1, 4, 5], [2, 3, 6])


def test_the_table_has_a_row_for_each_quantity() -> None:
    rows = [Row(what="step", unit="samples/s", better="more", here=[31_415.9], there=[30_000.0])]

    assert bench_against.lines(rows, "main", ["Noted."]) == [
        "| what | better | this tree | main | this tree / main |",
        "|---|---|--:|--:|--:|",
        "| step, samples/s | more | 31,416 (31,416 - 31,416) | 30,000 (30,000 - 30,000) | 1.05 (1.05 - 1.05) |",
        "",
        "Median (least - largest); the last column is of the ratios (or differences) round by round.",
        "Noted.",
    ]


def test_a_part_that_one_side_cannot_do_is_left_out_and_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object) -> list[Row]:
        raise RuntimeError("there: no such verb")

    rows = [Row(what="x", unit="s")]
    monkeypatch.setattr(bench_against, "PARTS", {"one": fails, "other": lambda *_: rows})

    assert bench_against.measured((SIDES[0], SIDES[1]), ["one", "other"], 1, tmp_path) == rows
    assert "one: left out: there: no such verb" in capsys.readouterr().err


def test_sources_of_the_native_step_are_found_wherever_they_are(tmp_path: Path) -> None:
    for tree, folder in (("a", "workload"), ("b", "strain"), ("c", "strain")):
        path = tmp_path / tree / "horovod_study" / folder / "native.cpp"
        path.parent.mkdir(parents=True)
        path.write_text("int x;" if tree != "c" else "int y;")
    a, b, c = (bench_against.native_sources(tmp_path / tree) for tree in "abc")

    assert a == b != c


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["no-such-revision"], "there is no revision 'no-such-revision'"),
        (["--only", "start", "--", "--all"], "there is no revision '--all'"),
        (["HEAD", "--rounds", "0"], "--rounds 0: give 1 or more"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(options: list[str], why: str) -> None:
    program = [sys.executable, str(ROOT / "scripts" / "bench_against.py"), *options]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bench_against: ") and done.stderr.count("\n") == 1 and why in done.stderr
