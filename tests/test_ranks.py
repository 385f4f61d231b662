"""Programs of several ranks: their answer, their failures in one line, and no process left."""

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from make.wording import Golden

from horovod_study.cluster.launch import MARKER
from horovod_study.errors import StudyError
from horovod_study.programs.answer import ANSWER
from horovod_study.studies import bench
from horovod_study.studies.attempt import attempt
from horovod_study.studies.bench import run_ranks

PROGRAM = """
import json, os, sys, time
from horovod_study.programs.answer import answer
what, *words = json.load(open(sys.argv[1]))
print("words:", *words, flush=True)
if what == "answer":
    answer({"words": words, "set": os.environ.get("RANKS_TEST")})
elif what == "fail":
    sys.exit("error: the dog ate it; feed the dog")
elif what == "bug":
    1 / 0
elif what == "sleep":
    time.sleep(60)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which the child processes can import PROGRAM."""
    (tmp_path / "rank_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path[:1]]))
    return "rank_program"


def run(module: str, *words: Any, folder: Path, timeout_s: float = 60.0, **how: Any) -> dict[str, Any]:
    return run_ranks(module, "serial", 1, folder, words, timeout_s=timeout_s, **how)


def test_the_answer_of_rank_0_comes_back(module: str, tmp_path: Path) -> None:
    told: list[str] = []
    how = {"RANKS_TEST": "7", "on_progress": told.append}
    found = run(module, "answer", "a b", "c", folder=tmp_path / "job", **how)

    assert found == {"words": ["a b", "c"], "set": "7"}
    assert set(told) <= {"starting", "words: a b c"}


def test_what_was_interrupted_goes_on_until_all_of_it_is_measured(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three programs are interrupted at the first, the second and the third; each answers once in the end."""
    started: list[str] = []
    monkeypatch.setattr(bench, "attempt", stopping := StopsAt(started))
    for stop in (1, 2, 3):
        folder, started[:] = tmp_path / f"{stop}", []
        stopping.at = stop
        with pytest.raises(KeyboardInterrupt):
            [run(module, "answer", number, folder=folder / f"{number}") for number in (1, 2, 3)]
        stopping.at = 0
        found = [run(module, "answer", number, folder=folder / f"{number}") for number in (1, 2, 3)]

        assert [each["words"] for each in found] == [[1], [2], [3]] and len(started) == 3
        bench.measured(folder)
        run(module, "answer", 1, folder=folder / "1")
        assert len(started) == 4, "what is done is measured again"


class StopsAt:
    """Stands for the engine's attempt, and is interrupted in the start numbered `at`."""

    def __init__(self, started: list[str]) -> None:
        self.started, self.at = started, 0

    def __call__(self, run: Any, stop: Any) -> Any:
        if self.at == len(self.started) + 1:
            raise KeyboardInterrupt
        self.started.append(str(run.out))
        return attempt(run, stop)


def test_the_answer_of_an_earlier_job_is_not_taken(module: str, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / ANSWER).write_text("{}")
    with golden.raises(StudyError, match="1 worker"):
        run(module, "silent", folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("fail", r"1 worker.*output\.log"),
        ("bug", "1 worker.*ZeroDivisionError.*code 1"),
        ("silent", "1 worker"),
    ],
)
def test_a_failure_is_one_line(module: str, tmp_path: Path, what: str, message: str, golden: Golden) -> None:
    with golden.raises(StudyError, match=message) as caught:
        run(module, what, folder=tmp_path / "job")

    assert "\n" not in str(caught.value)


def test_a_program_that_hangs_is_ended(module: str, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with pytest.raises(StudyError, match=r"serial with 1 worker gave no answer within 0\.5 s; see .*output\.log"):
        run(module, "sleep", folder=folder, timeout_s=0.5)

    left = [each for each in psutil.Process().children() if each.environ().get(MARKER) == str(folder)]
    assert left == []


def test_a_folder_that_cannot_be_written(module: str, golden: Golden) -> None:
    with golden.raises(StudyError, match="/proc/none"):
        run(module, "answer", folder=Path("/proc/none"))
