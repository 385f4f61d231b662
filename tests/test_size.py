"""The package only gets smaller: lines and functions of each folder against a budget.

A number of the table is lowered in the commit that makes its folder smaller: `python scripts/size.py --write`. One may
rise only where another one falls by more in the same commit; the sum only falls.
"""

from collections.abc import Mapping

import pytest

import size

BUDGET = {
    "(root)": (1137, 54),
    "analysis": (4394, 215),
    "analysis/compare": (324, 17),
    "analysis/fit": (1558, 76),
    "analysis/forecast": (1479, 69),
    "analysis/laws": (808, 67),
    "analysis/learning": (489, 20),
    "analysis/machine": (1383, 60),
    "analysis/series": (1685, 83),
    "analysis/simulate": (1391, 65),
    "analysis/steps": (3580, 147),
    "analysis/sync": (1015, 40),
    "cli": (1615, 85),
    "cluster": (2365, 144),
    "comm": (2723, 201),
    "config": (2699, 168),
    "measure": (1962, 142),
    "programs": (1654, 75),
    "recording": (2415, 143),
    "recording/inject": (101, 7),
    "recording/rank": (1663, 127),
    "records": (2095, 129),
    "report": (2267, 135),
    "report/figures": (1624, 82),
    "report/kit": (628, 30),
    "report/page": (1669, 74),
    "runtimes": (108, 3),
    "strain": (6203, 333),
    "studies": (6428, 368),
    "text": (532, 51),
    "total": (57994, 3210),
}
"""Of each folder with Python files, those of folders below it left out: lines and functions."""

SLACK_LINES = 150
"""A folder that is farther below its number has not had it lowered."""
RULE = (
    "A folder's number is lowered in the commit that makes it smaller (`python scripts/size.py --write`); one may rise "
    "only where another one falls by more in the same commit, and the sum only falls."
)


def faults(sizes: Mapping[str, size.Size], budget: Mapping[str, size.Size]) -> list[str]:
    """Return what is wrong between the sizes of folders and their budget."""
    rows = [row for folder, row in budget.items() if folder != size.TOTAL]
    sums = sum(lines for lines, _ in rows), sum(functions for _, functions in rows)
    found = []
    if budget.get(size.TOTAL) != sums or list(budget)[-1] != size.TOTAL:
        found.append(f"the last row is not the sum of the others, ({size.TOTAL!r}: {sums})")
    found += [f"{folder}: a folder without a row" for folder in sizes if folder not in budget]
    found += [f"{folder}: a row without a folder" for folder in budget if folder not in sizes]
    for folder in sizes.keys() & budget.keys():
        for unit, now, allowed in zip(("lines", "functions"), sizes[folder], budget[folder], strict=True):
            if now > allowed:
                found.append(f"{folder}: {now:,} {unit}, {now - allowed:,} above its {allowed:,}")
        if folder != size.TOTAL and (below := budget[folder][0] - sizes[folder][0]) > SLACK_LINES:
            found.append(f"{folder}: {sizes[folder][0]:,} lines, {below:,} below its number, which is not lowered yet")
    return sorted(found)


def test_no_folder_is_above_its_number() -> None:
    found = faults(size.folders(), BUDGET)

    assert not found, "\n".join([*found, RULE])


SIZES = {"(root)": (10, 1), "text": (500, 20), "total": (510, 21)}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, ""),
        ({"text": (499, 20), "total": (509, 21)}, "text: 500 lines, 1 above its 499"),
        ({"text": (500, 18), "total": (510, 19)}, "text: 20 functions, 2 above its 18"),
        ({"text": (651, 20), "total": (661, 21)}, "text: 500 lines, 151 below its number, which is not lowered yet"),
        ({"text": (650, 20), "total": (660, 21)}, ""),
        ({"total": (511, 21)}, "the last row is not the sum of the others, ('total': (510, 21))"),
    ],
)
def test_what_is_above_below_or_no_sum_is_named(changed: dict[str, size.Size], fault: str) -> None:
    found = faults(SIZES, {**SIZES, **changed})

    assert found == [] if not fault else fault in found


def test_a_new_folder_and_one_that_is_gone_are_named() -> None:
    budget = {"(root)": (10, 1), "words": (500, 20), "total": (510, 21)}

    assert faults(SIZES, budget) == ["text: a folder without a row", "words: a row without a folder"]


def test_the_table_is_written_as_it_is_read() -> None:
    text = size.TABLE.read_text(encoding="utf-8")

    assert size.budget(text) == BUDGET
    assert size.budget(size.with_budget(text, SIZES)) == SIZES
    assert size.with_budget(text, BUDGET) == text


def test_a_folder_is_counted_without_those_below_it(tmp_path) -> None:
    for name, text in {"a.py": "x = 1\n", "b/c.py": "def f():\n    def g(): ...\n", "b/d/e.py": "\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert size.folders(tmp_path) == {"(root)": (1, 0), "b": (2, 2), "b/d": (1, 0), "total": (4, 2)}
