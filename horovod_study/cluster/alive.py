"""Who is alive: the one rule, for the holders of claims, for the process of a run, for the ranks of a host.

A number alone names no process: it is given to another one after a restart of the machine or of a container, and after
enough starts. A process is its number, the time at which it began, the boot since which that time counts, the namespace
in which the number counts, and the host.
"""

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_CLOCK_S = 60.0  # The clock of a host may have been set by so much since a process wrote down when it began


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process that no other can be taken for, also after its number was given to the next."""

    pid: int
    began: int | None  # clock ticks from the boot to its start; None where the system does not say
    boot: str  # id of that boot, "" where there is none
    space: str  # the namespace in which `pid` counts, "" where there are none
    host: str

    @property
    def is_of_here(self) -> bool:
        """Whether its number means something to this process: the host, its boot and its namespace are the same."""
        here = this_process()
        return (self.host, self.boot, self.space) == (here.host, here.boot, here.space)

    def has_ended(self) -> bool:
        """Return whether a process that `is_of_here` has ended."""
        return not runs(self.pid, self.began)


def this_process() -> Process:
    """Describe the process that asks."""
    boot = space = ""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        space = os.readlink(_PROC / "self/ns/pid")
    return Process(pid=os.getpid(), began=began(os.getpid()), boot=boot, space=space, host=platform.node())


def identity() -> dict[str, Any]:
    """Return `this_process` as plain values, for a record."""
    return asdict(this_process())


def began(pid: int) -> int | None:
    """Return when a process of this host began, in clock ticks from the boot.

    None when it has ended, also where its parent has not taken notice yet, or when the system does not say.
    """
    fields = stat_fields(pid)
    return None if not fields or fields[0] in ("Z", "X") else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Return whether a process of this host was stopped (SIGSTOP) and not continued since."""
    return stat_fields(pid)[:1] == ["T"]


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third (state) on; empty where there is no such process or file."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def runs(pid: int, at: int | None = None) -> bool:
    """Return whether the process of that number on this host runs and, where `at` is known, began then."""
    if pid < 1:  # signals to these go to groups
        return False
    if fields := stat_fields(pid):
        return fields[0] not in ("Z", "X") and (at is None or int(fields[19]) == at)
    try:  # a system without /proc, or one that hides the processes of others
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def is_running(process: Mapping[str, Any] | None, *, pid: int, host: str, started: str) -> bool:
    """Return whether the process of a record runs, as far as can be seen from here; one of another host is believed.

    `process`: what `identity` gave, None in older records. Of these `pid` and `started` (ISO 8601) are known: a process
    that began after `started` is another one.
    """
    if host != platform.node():
        return True
    if process is not None:
        with suppress(TypeError):
            known = Process(**process)
            return known.is_of_here and not known.has_ended()
    if not runs(pid):
        return False
    with suppress(OSError, ValueError, TypeError, OverflowError):  # what is not known tells it from no other
        booted = re.search(r"^btime (\d+)$", (_PROC / "stat").read_text(), re.MULTILINE)
        began_s = int(booted[1]) + began(pid) / os.sysconf("SC_CLK_TCK")  # type: ignore[index,operator]
        return began_s <= datetime.fromisoformat(started).timestamp() + _CLOCK_S
    return True


def until(at_s: float) -> str:
    """Say until when (seconds since 1970) a process that cannot be asked from here is taken for alive."""
    return f"taken for alive until {datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
