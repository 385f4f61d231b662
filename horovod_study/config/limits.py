"""What the system refuses, as one line instead of a traceback; for the programs that people start.

Where memory ends, anything fails: a library cannot be mapped while it is imported, a thread cannot be started, an array
not be made. What is uncaught then is told in one line, with the limits that hold here, and the program ends with code 2
at once, because libraries that lacked memory often crash while the interpreter takes them down.

What a program says on standard error never ends it: a disk that is full, a pipe whose reader left and a stream that was
closed take the words and nothing else. A result that standard output cannot take is an error (`refused`).
"""

import errno
import io
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from horovod_study.errors import StudyError

EXIT_CODE = 2
_ADDRESS_BYTES_PER_CORE = 64 << 20
"""OpenBLAS (NumPy's and SciPy's) maps 32 MiB for every core while it is loaded, and tries for ever where it cannot.

That cannot be interrupted, so it is not begun. What the programs need in the end is a multiple of this.
"""
_OF_THREADS = ("can't start new thread", "cannot create thread", "resource temporarily unavailable")
_SIGNS = (  # what PyTorch, the dynamic loader and Python say in errors that are no MemoryError, in small letters
    *("failed to map segment", "cannot allocate memory", "can't allocate memory", "std::bad_alloc"),
    *("not enough memory", *_OF_THREADS),
)

MIN_FILE_BYTES = 8 << 20
"""Open MPI 4.1.8 shares files of 4 MiB; seen to hang in MPI_Init at 3,000 KiB and to work at 4,200 KiB."""

FEW_COLLECTIONS = (10_000, 10, 10)
"""Thresholds of Python's garbage collector for a program of ours while it begins, in place of (700, 10, 10).

Libraries make some 200,000 objects that stay. Not to look through them again and again while they come, and not at all
when the interpreter ends (`gc.freeze`), takes a fifth off a report, and a quarter off a run of a few steps.
"""

_OF_THE_SYSTEM = (  # what a disk, its permissions and its limits refuse is no bug of this program
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE),
)


def is_lack(error: BaseException) -> bool:
    """Return whether an error, or one that led to it, says that memory (or room for a thread) was not to be had."""
    chain = list(_chain(error))
    if any(isinstance(each, OSError) and each.errno == errno.ENOMEM for each in chain):
        return True
    if isinstance(error, StudyError):  # it says what any other error behind it was about, and quotes file names
        return False
    theirs = [str(each).lower() for each in chain if isinstance(each, ImportError | RuntimeError | OSError)]
    signs = any(sign in each for each in theirs for sign in _SIGNS)
    return signs or any(isinstance(each, MemoryError) for each in chain)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def mpi_hindrance(ranks: int) -> str:
    """Return in one line which limit of this process would let MPI wait for ever with so many ranks here; "" for none.

    Limits are handed on to what a process starts.
    """
    size, files = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE))
    if size != resource.RLIM_INFINITY and size < MIN_FILE_BYTES:
        least = f"MPI waits for ever where it cannot make files of {MIN_FILE_BYTES >> 20} MiB"
        return f"ulimit -f allows files of {size / 1024:.0f} KiB, and {least}; raise it (ulimit -f unlimited)"
    # mpirun of Open MPI 4.1.8 hung with 28, 32 and 40 open files for 1, 2 and 4 ranks, and worked with 32, 36 and 48.
    if files != resource.RLIM_INFINITY and files < (needed := 32 + 6 * ranks):
        wait = f"mpirun may wait for ever with fewer than {needed} for {ranks} worker{'s' * (ranks > 1)} on a host"
        return f"ulimit -n allows {files} open files, and {wait}; raise it (ulimit -n 1024)"
    return ""


def line(error: BaseException | None = None) -> str:
    """Return what is told of a lack, which `error` is about, with the limits that hold for this process."""
    if error is not None and any(sign in str(each).lower() for each in _chain(error) for sign in _OF_THREADS):
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        most = f"ulimit -u is {limit:,}, all programs of this user together"
        why = "" if limit == resource.RLIM_INFINITY else f" ({most})"
        return f"error: no room for another thread or process{why}; allow more, or end other programs, and try again"
    kinds = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA}
    known = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    limits = [f"{name} is {most // 2**20:,} MiB" for name, most in known.items() if most != resource.RLIM_INFINITY]
    why = f" ({', '.join(limits)})" if limits else ""
    return f"error: not enough memory{why}; allow more, or end other programs, and try again"


def refused(error: OSError) -> int:
    """Say in one line what the system refused, and return the exit code; raises `error` where that is a bug."""
    if isinstance(error, BrokenPipeError):  # the reader of a pipe left early
        _leave_output()
        return 1
    if error.errno not in _OF_THE_SYSTEM:
        raise error
    print(f"error: {error.filename or 'the output'}: {error.strerror}; fix that, and try again", file=sys.stderr)
    if error.filename is None:
        _leave_output()
    return EXIT_CODE


def _leave_output() -> None:
    """Let what standard output still holds go nowhere, so that it is not tried again at the end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Words(io.RawIOBase):
    """Standard error, which takes what it can."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def write(self, words: Any) -> int:
        with suppress(OSError):
            return os.write(2, words)
        return len(words)


def _mend_streams() -> None:
    """Give the numbers 0, 1, 2 that are closed to /dev/null, or the next file that is opened would have them."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Words()), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )


def install() -> None:
    """Repair the standard streams; report lack of memory and Ctrl-C in one line where they would be a traceback."""
    _mend_streams()
    room = resource.getrlimit(resource.RLIMIT_AS)[0]
    if room != resource.RLIM_INFINITY and room < (512 << 20) + _ADDRESS_BYTES_PER_CORE * (os.cpu_count() or 1):
        end()
    # Only where few processes and threads are allowed is it tried whether there is room.
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] < 4096:
        _try_threads(os.cpu_count() or 1)
    usual = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_lack(error):
            end(error)
        if issubclass(kind, KeyboardInterrupt):  # while libraries are imported, which takes seconds
            print("interrupted", file=sys.stderr)
            return
        usual(kind, error, trace)

    sys.excepthook = report


def _try_threads(count: int) -> None:
    """Start so many threads at once, or end: OpenBLAS starts one for each core, and sends Ctrl-C where it cannot."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(count)]
    try:
        for each in threads:
            each.start()
    except RuntimeError as error:
        end(error)
    done.set()
    for each in threads:
        each.join()


def end(error: BaseException | None = None) -> NoReturn:
    """Say the line and end this process without taking libraries down."""
    os.write(2, f"{line(error)}\n".encode())
    os._exit(EXIT_CODE)
