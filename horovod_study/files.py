"""Writing result files: the one function that does it, and the one that appends.

A file appears completely or not at all: it is made under another name in the same folder, flushed to the disk, and
renamed. Neither function follows a symbolic link: `write_file` puts a file in its place, `append_text` refuses, so a
link in a result folder never makes this package write to a file outside of it.

What is not complete yet, a file or a folder, is hidden, and its name says who makes it (`unfinished`). A maker that is
killed with SIGKILL leaves it; the next process that writes in that folder takes it away.
"""

import csv
import errno
import io
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from horovod_study.cluster import alive
from horovod_study.errors import RecordError, StudyError

if TYPE_CHECKING:
    import pandas as pd

_FILE_MODE, _FLAGS = 0o644, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PART = ".part"
"""Ending of a file or folder that is not complete yet; its name begins with a dot."""
SEVERAL = "00000000-0-0"
"""Stands for the maker in the name of what processes of several hosts make together."""
FORGOTTEN_S = 86_400.0
"""After so long without a change it counts as left where its maker cannot be asked: of another host or container."""
_MAKER = re.compile(r"\..*\.([0-9a-f]{8})-([0-9]{1,10})-([0-9]{1,20})\.\w+\.part", re.DOTALL)
_cleared: set[Path] = set()


def write_file(path: Path, content: str | bytes, *, sync_folder: bool = False) -> Path:
    """Replace `path` by a file with `content` (text is UTF-8, newlines as they are) and return it; raises OSError.

    `sync_folder`: also wait until the new name is on the disk, so that it survives a loss of power.
    """
    with new_file(path, sync_folder=sync_folder) as stream:
        stream.write(_encoded(content) if isinstance(content, str) else content)
    return path


def _encoded(text: str) -> bytes:
    """Return a text in UTF-8; what is no valid Unicode, such as a file name in another encoding, as escapes."""
    return text.encode("utf-8", "backslashreplace")


@contextmanager
def new_file(path: Path, *, sync_folder: bool = False) -> Iterator[IO[bytes]]:
    """Give a stream whose content takes the place of `path` when the block ends well; otherwise nothing changes."""
    try:
        with unfinished(path) as made:
            with open(made, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(made, path)
    except OSError as error:
        error.filename = str(path)  # whoever reads of the failure knows no temporary name
        raise
    if sync_folder:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems refuse to flush a folder
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def unfinished(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Give a new hidden file or folder beside `path`, which is removed when the block ends unless it was renamed.

    What killed makers left beside it is taken away first: before a folder always, else once in a process. Raises
    OSError.
    """
    me = alive.this_process()
    here = f"{zlib.crc32(f'{me.host} {me.boot} {me.space}'.encode()):08x}"
    beginning = os.fsdecode(os.fsencode(path.name)[:180])  # a name may have 255 bytes, and letters have several
    name = f".{beginning}.{here}-{me.pid}-{me.began or 0}."
    if folder:
        made = Path(tempfile.mkdtemp(PART, name, path.parent))
    else:
        descriptor, there = tempfile.mkstemp(PART, name, path.parent)
        os.close(descriptor)
        made = Path(there)
    try:
        os.chmod(made, 0o755 if folder else _FILE_MODE)
        if folder or path.parent not in _cleared:
            _cleared.add(path.parent)
            _take_away_left(path.parent, here, os.stat(made).st_mtime)
        yield made
    finally:
        if os.getpid() == me.pid:  # a fork of the maker, in which this is forgotten, ends without it
            _remove(made)


def _take_away_left(folder: Path, here: str, present_s: float) -> None:
    """Remove what makers that are gone left in a folder; `present_s`: the time by the clock of its file system."""
    for left in folder.glob(f".*{PART}"):
        if maker := _MAKER.fullmatch(left.name):
            with suppress(OSError):  # others may remove it at this moment, or it is another user's
                if maker[1] == here:
                    gone = not alive.runs(int(maker[2]), int(maker[3]) or None)
                else:
                    changed_s = max(os.lstat(each).st_mtime for each in (left, *left.rglob("*")))
                    gone = present_s - changed_s > FORGOTTEN_S
                if gone:
                    _remove(left)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def not_written(place: Path | str, error: OSError, again: str) -> str:
    """Return the line of an error that says which file below `place` could not be written, why, and what to do."""
    below = isinstance(error.filename, str) and Path(error.filename).is_relative_to(place)
    return f"{error.filename if below else place}: cannot be written ({error.strerror or error}); {again}"


@contextmanager
def writing(place: Path | str, again: str, *, error: type[StudyError] = RecordError) -> Iterator[None]:
    """Raise `error` where what is done in it below `place` ends in an OSError; `again`: what to do about that."""
    try:
        yield
    except OSError as problem:
        reader_left = isinstance(problem, BrokenPipeError)  # of the output, which is no matter of a folder
        raise problem if reader_left else error(not_written(place, problem, again)) from None


def append_text(path: Path, text: str, *, head: str = "") -> None:
    """Append `text` to a file, after `head` where the file is new or empty: all of it or nothing.

    Raises OSError: also where `path` is a symbolic link (ELOOP) or no regular file.
    """
    descriptor = os.open(path, _FLAGS | os.O_APPEND, _FILE_MODE)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        rest = memoryview(_encoded((head if facts.st_size == 0 else "") + text))
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, facts.st_size)
            raise
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_log(path: Path) -> IO[str]:
    """Return a new text stream in the place of `path`, for the output of a process; OSError for a symbolic link."""
    descriptor = os.open(path, _FLAGS | os.O_TRUNC, _FILE_MODE)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")


def result_folder(folder: Path) -> Path:
    """Make a folder of result files and return it; OSError where it is a symbolic link out of the folder above it."""
    if folder.is_symlink() and not folder.resolve().is_relative_to(folder.parent.resolve()):
        raise OSError(errno.ELOOP, "is a symbolic link to a folder outside; nothing was written there", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_GUARDED = re.compile(r"'+[=+\-@\t\r\n]")


def csv_of(table: "pd.DataFrame") -> str:
    """Return a table as CSV, numbers with all digits; names that a spreadsheet would take for formulas are guarded."""
    texts = {name: table[name].map(guarded) for name in table.columns if table[name].dtype.kind not in "biufM"}
    return table.assign(**texts).rename(columns=guarded).to_csv(index=False, lineterminator="\n")


def csv_rows(names: Sequence[str], rows: Iterable[Mapping[str, Any]], *, head: bool = True) -> str:
    """Return rows as CSV, for programs without pandas, guarded as in `csv_of`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    if head:
        writer.writerow([guarded(name) for name in names])
    writer.writerows([guarded(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue()


def guarded(value: Any) -> Any:
    """Return a text with an apostrophe before what spreadsheets take for a formula; all else as it is."""
    armed = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if armed else value


def unguarded(value: Any) -> Any:
    """Return the text that `guarded` was given."""
    return value[1:] if isinstance(value, str) and _GUARDED.match(value) else value
