"""Too little memory as one line instead of a traceback; for the programs that people start.

Where memory ends, anything fails: a library cannot be mapped while it is imported, a thread cannot be started, an array
not be made. What is uncaught then is told in one line, with the limits that hold here, and the program ends with code 2
at once, because libraries that lacked memory often crash while the interpreter takes them down.
"""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn

EXIT_CODE = 2
_SIGNS = (
    *("failed to map segment", "cannot allocate memory", "can't allocate memory", "std::bad_alloc"),
    *("can't start new thread", "cannot create thread", "not enough memory", "resource temporarily unavailable"),
)
"""What PyTorch, the dynamic loader and Python say in errors that are no MemoryError, in small letters."""


def is_lack(error: BaseException) -> bool:
    """Return whether an error, or one that led to it, says that memory (or room for a thread) was not to be had."""
    return any(_says_so(each) for each in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # Errors of ours quote file names, which may say anything.
    return isinstance(error, ImportError | RuntimeError | OSError) and any(
        sign in str(error).lower() for sign in _SIGNS
    )


def line() -> str:
    """Return what is told, with the limits that hold for this process."""
    limits = [
        f"{name} is {limit // 2**20:,} MiB"
        for name, kind in (("ulimit -v", resource.RLIMIT_AS), ("ulimit -d", resource.RLIMIT_DATA))
        for limit in (resource.getrlimit(kind)[0],)
        if limit != resource.RLIM_INFINITY
    ]
    why = f" ({', '.join(limits)})" if limits else ""
    return f"error: not enough memory{why}; allow more, or end other programs, and try again"


def install() -> None:
    """Tell lack of memory in one line where it would be a traceback, in this process only."""
    usual = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_lack(error):
            end()
        usual(kind, error, trace)

    sys.excepthook = tell


def end() -> NoReturn:
    """Say the line and end this process without taking libraries down."""
    os.write(2, f"{line()}\n".encode())
    os._exit(EXIT_CODE)
