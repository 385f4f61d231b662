"""The golden files themselves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from make.wording import ROOT, Golden, lines

from horovod_study import __version__

TESTS = """
def test_text(golden):
    golden("{words}", "rank 3")
def test_error(golden):
    with golden.raises(ValueError):
        raise ValueError("no such thing")
"""


def test_texts_are_told_as_lines() -> None:
    assert lines({"driver": ("fail", "not there"), "note": ["a", "b"]}) == "driver: fail\nnot there\nnote: a\nb"


def test_what_differs_between_machines_is_a_placeholder(tmp_path: Path) -> None:
    neutral = Golden(None, Path("/tmp/pytest-of-me/pytest-7")).neutral

    assert neutral("/tmp/pytest-of-me/pytest-7/test_a_file0/x.csv: bad") == "TMP/test_a_file/x.csv: bad"
    assert neutral("/tmp/pytest-of-me/pytest-7: bad") == "TMP: bad"
    assert neutral("see run-20260102-030405.log") == "see run-TIME.log"
    assert neutral(f"{sys.prefix}/bin, {ROOT}/docs") == "VENV/bin, PROJECT/docs"
    assert neutral(f"version {__version__}, not 1{__version__}") == f"version VERSION, not 1{__version__}"


def test_a_number_is_wanted_whatever_the_golden_file_says() -> None:
    with pytest.raises(AssertionError):
        Golden(None, Path("/tmp"))("rank 4 is slow", "rank 3")
    with pytest.raises(AssertionError):
        Golden(None, Path("/tmp")).line("rank 4\nis slow of rank 3", "rank 4", "slow")


@pytest.mark.slow
def test_a_changed_text_fails_until_it_is_written_again_and_so_does_one_too_many(tmp_path: Path) -> None:
    """The set-up of this suite, in a folder of its own."""
    pytest.importorskip("syrupy")
    module = tmp_path / "test_one.py"

    def run(words: str, *options: str, tests: str = TESTS) -> int:
        module.write_text(tests.format(words=words))
        line = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "make.wording",
            "-c",
            ROOT / "setup.cfg",
            *options,
        ]
        folders = {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"}
        return subprocess.run([*line, "--rootdir", tmp_path, module], env=folders, check=False).returncode

    assert run("rank 3 is slow") == 1, "no golden file yet"
    assert run("rank 3 is slow", "--snapshot-update") == 0
    assert (tmp_path / "golden" / "test_one.txt").read_text().count("rank 3 is slow") == 1
    assert run("rank 3 is slow") == run("rank 3 is slow", "-n", "2", "--dist", "loadfile") == 0
    assert run("rank 3 waits") == 1
    assert run("rank 4 is slow", "--snapshot-update") == 1, "the number is wrong"
    assert run("rank 3 waits", "--snapshot-update") == run("rank 3 waits") == 0
    assert run("rank 3 waits", "--snapshot-update", "-n", "2") == pytest.ExitCode.USAGE_ERROR
    assert run("rank 3 waits", "-k", "error") == 0, "one test alone"
    assert run("rank 3 waits", tests=TESTS.split("def test_error")[0]) == 1, "a text that nobody asks for"
