"""Processes of this machine that are stopped while they wait, and go on whatever happens to whoever has stopped them.

A training that waits between two steps is blocked, but the libraries in it are not: the threads of Horovod and of MPI
look for work all the time. SIGSTOP ends that, and SIGCONT takes a few microseconds. A process that is stopped does not
even notice that its runner was killed, so a guard, a process of its own that does nothing but wait for the end of this
one, continues then what is stopped.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from horovod_study.variables import without_working_directory

_GUARD = """
import os, signal, sys
numbers = set()
for line in sys.stdin:
    numbers |= {int(each) for each in line.split()}
for number in numbers:
    try:
        os.kill(number, signal.SIGCONT)
    except OSError:
        pass
"""


class Holding:
    """Stops processes and continues them; at its end, or that of this process, all of them go on."""

    def __init__(self) -> None:
        """Start the guard. OSError: it cannot be started."""
        self._told: set[int] = set()
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            env=without_working_directory(os.environ),
            start_new_session=True,  # Ctrl-C is for this program only
        )

    def stop(self, numbers: Iterable[int]) -> None:
        """Stop processes; what has ended meanwhile, or is another user's, is passed over."""
        found = set(numbers)
        if new := found - self._told:
            assert self._guard.stdin is not None
            self._guard.stdin.write(" ".join(map(str, sorted(new))).encode() + b"\n")
            self._guard.stdin.flush()
            self._told |= new
        _signal_all(found, signal.SIGSTOP)

    def go_on(self, numbers: Iterable[int]) -> None:
        """Continue processes."""
        _signal_all(numbers, signal.SIGCONT)

    def close(self) -> None:
        """Continue all that were ever stopped, and end the guard."""
        _signal_all(self._told, signal.SIGCONT)
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()

    def with_children(self, numbers: Iterable[int]) -> list[int]:
        """Return the processes with all that they have started and that still run, where the system shows them."""
        found: list[int] = []
        ahead = list(numbers)
        while ahead:
            number = ahead.pop()
            if number in found:
                continue
            found.append(number)
            with suppress(OSError):
                for thread in Path("/proc", str(number), "task").iterdir():
                    ahead += map(int, (thread / "children").read_text().split())
        return found


def used_s(numbers: Iterable[int]) -> float | None:
    """Return the processor seconds that processes have used so far; None where one of them cannot be looked at."""
    total = 0.0
    for number in numbers:
        try:
            times = psutil.Process(number).cpu_times()
        except psutil.Error:
            return None
        total += times.user + times.system
    return total


def _signal_all(numbers: Iterable[int], number: int) -> None:
    for each in numbers:
        with suppress(OSError):
            os.kill(each, number)
