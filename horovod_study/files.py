"""Writing result files: the one function that does it, and the one that appends.

A file appears whole or not at all. It is made under another name in the same folder, flushed to the disk, and renamed;
a full disk, a limit on file sizes or the end of the process leaves what was there before. Neither function follows a
symbolic link: `write_file` puts a file in its place, `append_text` refuses, so a link in a result folder never makes
this package write to a file outside of it.

A process that is killed with SIGKILL between the two steps leaves a hidden `.NAME.*.part`, which nothing reads.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FILE_MODE = 0o644
PART = ".part"
"""Ending of a file that is not whole yet; its name begins with a dot."""


def write_file(path: Path, content: str | bytes, *, sync_folder: bool = False) -> Path:
    """Replace `path` by a file with `content` (text is UTF-8, newlines as they are) and return it; raises OSError.

    `sync_folder`: also wait until the new name is on the disk, so that it survives a loss of power.
    """
    with new_file(path, sync_folder=sync_folder) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)
    return path


@contextmanager
def new_file(path: Path, *, sync_folder: bool = False) -> Iterator[IO[bytes]]:
    """Give a stream whose content takes the place of `path` when the block ends well; otherwise nothing changes."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.", suffix=PART)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, FILE_MODE)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync_folder:
        flush_folder(path.parent)


def append_text(path: Path, text: str, *, head: str = "") -> None:
    """Append `text` to a file, after `head` where the file is new or empty: all of it or nothing.

    Raises OSError: also where `path` is a symbolic link (ELOOP) or no regular file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        rest = memoryview(((head if facts.st_size == 0 else "") + text).encode("utf-8"))
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, facts.st_size)
            raise
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Make new names in a folder survive a loss of power, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse to flush a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def result_folder(parent: Path, name: str) -> Path:
    """Make the folder `name` in a result folder and return it; OSError where it is a symbolic link to elsewhere."""
    folder = parent / name
    if folder.is_symlink() and not folder.resolve().is_relative_to(parent.resolve()):
        raise OSError(errno.ELOOP, "is a symbolic link to a folder outside; nothing was written there", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
