"""What a command prints: passed on as it comes, and kept for the rate that it says.

A file that it writes to directly stays its own; a pipe and a terminal get another one of their kind between them, so
that the command finds what it would find without a recorder.
"""

import fcntl
import os
import pty
import select
import stat
import subprocess
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_KEPT = 1_000_000
"""So many of the last bytes are kept."""


class Output:
    """The standard output and error of a command, as `subprocess.Popen` takes them."""

    def __init__(self) -> None:
        self._kept: dict[int, bytearray] = {}  # descriptor that is read -> what came last
        self._to: dict[int, int] = {}  # descriptor that is read -> that of ours
        self._theirs: list[int] = []
        self._files: dict[Path, int] = {}  # what the command writes to by itself, and where it begins
        sys.stdout.flush()
        self.stdout = self._between(1)
        same = os.path.sameopenfile(1, 2) and self.stdout is not None
        self.stderr = self.stdout if same else self._between(2)

    def _between(self, own: int) -> int | None:
        """Return the descriptor that the command is given for one of ours, None for ours."""
        kind = os.fstat(own).st_mode
        if os.isatty(own):
            read, write = pty.openpty()
            with suppress(OSError, termios.error):
                fcntl.ioctl(write, termios.TIOCSWINSZ, fcntl.ioctl(own, termios.TIOCGWINSZ, b"\0" * 8))
                tty.setraw(write)  # the terminal itself does what is to be done with line ends
        elif stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            read, write = os.pipe()
        else:
            if stat.S_ISREG(kind):
                self._files[Path(f"/proc/{os.getpid()}/fd/{own}").resolve()] = os.fstat(own).st_size
            return None
        self._kept[read], self._to[read] = bytearray(), own
        self._theirs.append(write)
        return write

    def follow(self, process: "subprocess.Popen[bytes]", look: Callable[[], bool], *, every_s: float) -> None:
        """Pass on what the command prints until it has ended; `look` is called meanwhile until it returns False."""
        for each in self._theirs:
            os.close(each)
        self._theirs = []
        ended = os.pidfd_open(process.pid)
        looking = True
        try:
            while True:
                ready = select.select([ended, *self._to], [], [], every_s if looking else None)[0]
                for each in ready:
                    if each != ended:
                        self._pass_on(each)
                if looking:
                    looking = look()
                if ended in ready:
                    break
            while ready := select.select(list(self._to), [], [], 0.0)[0] if self._to else []:
                for each in ready:
                    self._pass_on(each)
        finally:
            os.close(ended)

    def _pass_on(self, read: int) -> None:
        try:
            data = os.read(read, 65536)
        except OSError:  # how a terminal ends
            data = b""
        if not data:
            os.close(read)
            del self._to[read]
            return
        kept = self._kept[read]
        kept += data
        if len(kept) > 2 * _KEPT:
            del kept[:-_KEPT]
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._to[read], view) :]
        except OSError:  # nobody reads it any more: the command is to learn that, too
            os.close(read)
            del self._to[read]

    def text(self) -> str:
        """Return the last of what the command has printed."""
        parts = [bytes(each) for each in self._kept.values()]
        for path, begin in self._files.items():
            with suppress(OSError), path.open("rb") as stream:
                stream.seek(max(begin, path.stat().st_size - _KEPT))
                parts.append(stream.read())
        return b"\n".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Read no more; where processes that the command has left print on, a process of its own passes that on."""
        if self._to and not self._theirs and os.fork() == 0:
            with suppress(BaseException):
                os.setsid()
                while self._to:
                    for each in select.select(list(self._to), [], [])[0]:
                        self._pass_on(each)
            os._exit(0)
        for each in (*self._to, *self._theirs):
            with suppress(OSError):
                os.close(each)
        self._to, self._theirs = {}, []
