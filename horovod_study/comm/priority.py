"""Who gets the core when gradients arrive: the thread that computes, or the threads that carry them.

Gloo's threads sleep until data arrive, and Linux lets them wait for a core on which a thread computes, while the other
workers wait for their answer (docs/bench.md). Two ways to let them in at once:

    realtime   the real-time class SCHED_RR, which goes before everything ordinary; needs CAP_SYS_NICE (root)
    slice      a time slice of 0.1 ms instead of about 3 ms (sched_setattr, Linux 6.12 and later): a thread that asks
               for less time goes before one that asks for more; needs no permission

Threads that poll must not have either: MPI's would keep the core from the thread they wait for.
"""

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from horovod_study.errors import BackendError
from horovod_study.measure.clock import sleep


class NewThreads:
    """Remembers the threads of this process, so that those that a library starts later can be recognised."""

    def __init__(self) -> None:
        self._before = threads()

    def prioritise(self, asked: str, *, polling: bool = False, spare: Collection[int] = ()) -> dict[str, Any]:
        """Give the threads started since a priority; return {"value", "source", "threads"} for the record.

        `asked`: realtime | slice | off, or auto for the first of these that the system permits. `polling`: they never
        sleep while there is work, so real time would shut out everything else. `spare`: threads that get no priority.
        BackendError: what was asked for is not permitted.
        """
        source = "shipped" if asked == "auto" else "asked"
        started = sorted(threads() - self._before - set(spare))
        wanted = {"auto": ("slice",) if polling else ("realtime", "slice"), "off": ()}.get(asked, (asked,))
        problem, for_ever = "", asked == "realtime" and polling
        for way in () if for_ever else wanted:
            problem = _set(way, started)
            if not problem:
                return {"value": way, "source": source, "threads": len(started)}
        why = f"was asked for, but the system does not permit it ({problem}); use thread_priority auto, or off"
        if for_ever:
            why = "with a cycle time of 0 would let Horovod's thread keep its core for ever; use thread_priority "
            why += "slice, or a cycle time above 0"
        if asked in ("realtime", "slice"):
            raise BackendError(f"thread_priority {asked} {why}")
        return {"value": "off", "source": f"not permitted ({problem})" if problem else source, "threads": len(started)}


def _set(way: str, threads: list[int]) -> str:
    """Give all `threads` the priority, or none of them; return what stood in the way, empty if nothing did."""
    done: list[int] = []
    try:
        for thread in threads:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                _realtime(thread) if way == "realtime" else _slice(thread, 100_000)
                done.append(thread)
    except (OSError, AttributeError) as error:
        for other in done:
            with suppress(OSError):  # it has ended meanwhile, which is as good
                os.sched_setscheduler(other, os.SCHED_OTHER, os.sched_param(0))
        return getattr(error, "strerror", None) or "no real-time class on this system"
    return "" if done or not threads else "no such thread any more"


def _realtime(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def _slice(thread: int, nanoseconds: int) -> None:
    # number of the system call, which Python and glibc have no function for
    number = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
    if number is None or platform.system() != "Linux":
        raise OSError(errno.ENOSYS, f"unknown on {platform.system()} {platform.machine()}")
    # Before 6.12 the call succeeds and the slice is ignored.
    major, minor = (int(part) for part in platform.release().split(".")[:2])
    if (major, minor) < (6, 12):
        raise OSError(errno.ENOSYS, f"needs Linux 6.12, this is {major}.{minor}")
    # struct sched_attr: size, policy 0 (ordinary), flags, nice, priority, runtime (the slice), deadline, period
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, nanoseconds, 0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(number, thread, ctypes.create_string_buffer(attributes), 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def threads() -> set[int]:
    """Return the threads of this process by number; none where the system does not show them."""
    folder = Path("/proc/self/task")
    return {int(entry.name) for entry in folder.iterdir()} if folder.is_dir() else set()


def busiest_thread() -> int | None:
    """Return the other thread of this process that computes most in the next 0.2 s; None if none computes."""
    process, own = psutil.Process(), threading.get_native_id()
    before = {each.id: each.user_time + each.system_time for each in process.threads()}
    sleep(0.2)
    after = {each.id: each.user_time + each.system_time for each in process.threads()}
    used = {thread: used_s - before.get(thread, 0.0) for thread, used_s in after.items() if thread != own}
    busiest = max(used, key=lambda thread: used[thread], default=None)
    return busiest if busiest is not None and used[busiest] > 0.015 else None  # two ticks of the system
