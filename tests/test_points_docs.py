"""The pages about fitting, forecasting, simulating and exporting show commands that work and what they print."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from horovod_study import cli

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("fit", "predict", "simulate", "export")))
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
CLOSE = 0.1
"""Numbers of a page may differ so much from those printed: last digits depend on the machine."""


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> list[list[str]]:
    """Words after `horovod-study` of every command of a page; comments stand behind # or three spaces."""
    inside = re.findall(r"^```(?:sh|bash)\n(.*?)^```$", text(page), flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(inside).splitlines() + re.findall(r"^    (horovod-study .*)$", text(page), flags=re.MULTILINE)
    found = []
    for line in lines:
        for part in re.split(r" & | ; |&&", re.split(r"#|   +| > | \| ", line)[0]):
            if "horovod-study " in part:
                found.append(shlex.split(part.rpartition("horovod-study ")[2]))
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the points of docs/fit.md and the described networks."""
    points = next(each for each in re.findall(r"^```\n(.*?)^```$", text("docs/fit.md"), re.MULTILINE | re.DOTALL))
    (tmp_path / "points.csv").write_text(points)
    shutil.copytree(ROOT / "experiments" / "networks", tmp_path / "experiments" / "networks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_the_program_takes(page: str) -> None:
    found = commands(page)

    assert found
    for words in found:
        if "--help" not in words and words[0] != "train":
            cli._parser().parse_strictly(words)


CHEAP = [
    (page, words)
    for page in PAGES
    for words in commands(page)
    if words[0] in ("fit", "predict", "simulate") and not {"--bench", "--run", "--help"} & set(words)
]


@pytest.mark.parametrize(("page", "words"), CHEAP, ids=[f"{page} {' '.join(words)}" for page, words in CHEAP])
def test_commands_that_need_no_run_work(
    here: Path, capsys: pytest.CaptureFixture[str], page: str, words: list[str]
) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("all points: samples/s with 95 % interval", ["--workers", "64", "128"]),
        ("all points: known 1, 2, 4 workers, hidden 8, 16, 32", ["--holdout"]),
        ("all points: recommended workers with 95 % interval", ["--samples", "5e8", "--deadline", "24h"]),
    ],
)
def test_shown_output_is_what_is_printed(
    here: Path, capsys: pytest.CaptureFixture[str], first: str, words: list[str]
) -> None:
    block = text("docs/predict.md").split(f"    {first}")[1].split("\n\n")[0]
    shown = [f"{first}{block}".splitlines()[0], *(line[4:] for line in block.splitlines()[1:])]
    assert cli.main(["predict", "points.csv", *words]) == 0
    printed = iter(capsys.readouterr().out.splitlines())

    for line in shown:
        if line.strip() != "...":
            same = (each for each in printed if shape(each) == shape(line))
            found = next(same, None)
            assert found is not None, f"not printed, or not in this order: {line}"
            assert numbers(found) == pytest.approx(numbers(line), rel=CLOSE, abs=1.0)


def shape(line: str) -> str:
    return " ".join(NUMBER.sub("1", line).split())


def numbers(line: str) -> list[float]:
    return [float(each.replace(",", "").rstrip(".")) for each in NUMBER.findall(line)]
