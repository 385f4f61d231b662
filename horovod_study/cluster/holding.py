"""Processes of this machine that are stopped while they wait, and go on whatever happens to whoever has stopped them.

A training that waits between two steps is blocked, but the libraries in it are not: the threads of Horovod and of MPI
look for work all the time. SIGSTOP ends that, and SIGCONT takes a few microseconds. A process that is stopped does not
even notice that its runner was killed, so a guard, a process of its own that does nothing but wait for the end of this
one, continues then what is stopped.

Where the kernel puts threads that all wake at once is a matter of luck, and with threads that poll the luck lasts:
those of Horovod may share the core of one rank for tenths of a second, which costs a quarter of the rate. So what goes
on can do so on the cores where it was when it made its last step.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from horovod_study.config.variables import without_working_directory

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
        self._kept: dict[int, set[int]] = {}  # threads that are kept on one core -> the cores they may use
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

    def go_on(self, numbers: Iterable[int], places: Mapping[int, int] = MappingProxyType({})) -> None:
        """Continue processes; threads that `places` names are kept on the core that it names, until `spread`."""
        found = list(numbers)
        for number in {int(each.name) for each in _threads(found)} & places.keys() if places else ():
            with suppress(OSError):
                own = os.sched_getaffinity(number)
                if len(own) > 1 and places[number] in own:
                    os.sched_setaffinity(number, {places[number]})
                    self._kept[number] = own
        _signal_all(found, signal.SIGCONT)

    def spread(self) -> None:
        """Let threads that go on use all their cores again."""
        for number, own in self._kept.items():
            with suppress(OSError):
                os.sched_setaffinity(number, own)
        self._kept = {}

    def close(self) -> None:
        """Continue all that were ever stopped, and end the guard."""
        self.spread()
        _signal_all(self._told, signal.SIGCONT)
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()

    def with_children(self, numbers: Iterable[int]) -> list[int]:
        """Return the processes with all that they have started and that still run, where the system shows them."""
        found, ahead = dict[int, None](), list(numbers)
        while ahead:
            if (number := ahead.pop()) not in found:
                found[number] = None
                for thread in _threads([number]):
                    with suppress(OSError):
                        ahead += map(int, (thread / "children").read_text().split())
        return list(found)


def _threads(numbers: Iterable[int]) -> list[Path]:
    """Return what the system shows of the threads of processes; nothing of those that have ended."""
    return [thread for number in numbers for thread in Path(f"/proc/{number}/task").glob("*")]


def used_s(numbers: Iterable[int]) -> float | None:
    """Return the processor seconds that the threads of processes have used so far; None where one cannot be looked at.

    To the nanosecond where the kernel tells (schedstat), of threads that have not ended; else in hundredths.
    """
    used = 0.0
    for number in numbers:
        times = []
        with suppress(OSError):
            times = [(thread / "schedstat").read_text() for thread in _threads([number])]
        try:
            used += sum(int(each.split()[0]) / 1e9 for each in times) or sum(psutil.Process(number).cpu_times()[:2])
        except psutil.Error:
            return None
    return used


def _signal_all(numbers: Iterable[int], number: int) -> None:
    for each in numbers:
        with suppress(OSError):
            os.kill(each, number)
