"""A share of the tests for a GPU, told line by line; benchmarks/gpu.py starts several at a time.

    python benchmarks/gpu_tests.py PLAN.json        {"what": [files, or names of tests], "share": [0, 4]}

Of pytest's plugins only its own and pytest-timeout are loaded, whatever the site has, and warnings are no failures:
those of versions that nobody has tried here say nothing about the code. Prints one line of JSON with the names of its
tests, and one as each ends, so that a process that crashes or is ended leaves what it found.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest


class Teller:
    """A plugin that keeps every n-th test, from the i-th on, and tells of each."""

    def __init__(self, share: tuple[int, int], out: TextIO) -> None:
        self._share, self._out = share, out
        self._outcome, self._why, self._seconds = "passed", "", 0.0

    def _say(self, says: str, **more: Any) -> None:
        print(json.dumps({"says": says, **more}), file=self._out, flush=True)

    @pytest.hookimpl(trylast=True)  # behind the selection by marks
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep this share."""
        first, step = self._share
        items[:] = items[first::step]
        self._say("tests", names=[each.nodeid for each in items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported is a failure."""
        if report.failed:
            self._say("test", name=report.nodeid, outcome="failed", seconds=0.0, why=str(report.longrepr)[-1000:])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._outcome, self._why, self._seconds = "passed", "", 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test has ended: set-up, call or tear-down; the first that is no pass counts."""
        self._seconds += report.duration
        if report.outcome != "passed" and self._outcome == "passed":
            self._outcome = report.outcome
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self._why = str(crash.message if crash else reason)[:1000]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It has ended."""
        self._say("test", name=nodeid, outcome=self._outcome, seconds=self._seconds, why=self._why)


def main(arguments: list[str]) -> int:
    """Run what a plan says; return pytest's exit code, 0 also where a share is empty."""
    plan = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    line = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        line += ["-p", "pytest_timeout"]
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what pytest and the tests print is for people
        code = pytest.main([*line, *plan["what"]], plugins=[Teller(tuple(plan["share"]), out)])
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
