"""Golden files: what messages say stands in golden/, one file for each test module, and not in the tests."""

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from horovod_study import __version__

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write golden files from several processes: of modules run in part, texts would be lost."""
    if config.getoption("update_snapshots", False) and config.getoption("numprocesses", None):
        raise pytest.UsageError("--snapshot-update writes golden files from one process; leave -n out")


class Golden:
    """Compares whole messages with the golden file of the test's module.

    `pytest --snapshot-update` writes the files again, and a text that no test asks for any more is an error. Without
    syrupy (a machine may have only what running needs) texts are not compared.
    """

    def __init__(self, snapshot: Any, temporary: Path) -> None:
        self.snapshot = snapshot
        self.temporary = temporary

    def __call__(self, words: object, *parts: object) -> None:
        """Compare a text, or several in their order; `parts` are the names and numbers that a test wants in it, too."""
        __tracebackhide__ = True
        text = lines(words) or "(nothing)"
        for part in map(str, parts):
            assert part in text
        if self.snapshot is not None:
            assert self.neutral(text) == self.snapshot

    def line(self, words: object, *parts: object) -> None:
        """Compare those lines of a text that hold all `parts`: for a text with others that are not always the same."""
        __tracebackhide__ = True
        self([each for each in lines(words).splitlines() if all(str(part) in each for part in parts)], *parts)

    @contextmanager
    def raises(self, *kinds: type[Exception], match: str | None = None) -> Iterator[pytest.ExceptionInfo[Exception]]:
        """Expect an exception of one of these kinds whose whole text is golden; `match` finds its place and numbers."""
        __tracebackhide__ = True
        with pytest.raises(kinds, match=match) as error:
            yield error
        self(str(error.value))

    def neutral(self, text: str) -> str:
        """Return a text without what differs between runs: folders, times in file names, and this package's version."""
        text = re.sub(rf"{re.escape(str(self.temporary))}/(\w+?)\d+(?=\W|$)", r"TMP/\1", text)
        for place, name in (str(self.temporary), "TMP"), (sys.prefix, "VENV"), (str(ROOT), "PROJECT"):
            text = text.replace(place, name)
        text = re.sub(r"(?<!\d)(20\d{6}-\d{6}(?!\d)|[\d-]{10} [\d:]{8}(?= UTC))", "TIME", text)
        return re.sub(rf"(?<![\w.]){re.escape(__version__)}(?![\w.])", "VERSION", text)


def lines(words: object) -> str:
    """Return a text, or texts in lists, tuples and dicts as lines."""
    if isinstance(words, Mapping):
        return "\n".join(f"{key}: {lines(value)}" for key, value in words.items())
    if isinstance(words, (list, tuple)):
        return "\n".join(map(lines, words))
    return str(words)


@cache
def one_file() -> Any:
    """Return how syrupy writes here: texts as they are, in golden/test_module.txt."""
    from syrupy.extensions.amber import AmberSnapshotExtension

    class OneFile(AmberSnapshotExtension):
        snapshot_dirname = "golden"
        file_extension = "txt"

        def serialize(self, data: str, **_: object) -> str:
            return data

    return OneFile


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """The golden file of the test's module."""
    known = importlib.util.find_spec("syrupy") is not None
    snapshot = request.getfixturevalue("snapshot").use_extension(one_file()) if known else None
    return Golden(snapshot, tmp_path_factory.getbasetemp())
