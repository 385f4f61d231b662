"""This machine: cores, memory, load, limits, clock, shared memory, and what earlier runs left behind."""

import ctypes
import os
import platform
import re
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from horovod_study.cluster.doctor.finding import Area, Check, Finding, Here, guarded
from horovod_study.cluster.pinning import other_load
from horovod_study.cluster.process import mark_of
from horovod_study.config import available_cores
from horovod_study.text.numbers import amount
from horovod_study.text.words import plural
from horovod_study.workload import dataset, room

_LEAST_MEMORY = 500 * 10**6


class Load:
    """Who computes on this machine in the last moments; made before the other checks, which compute themselves."""

    def __init__(self) -> None:
        self.problem, self.told = "", None
        try:
            self.told = other_load(sorted(os.sched_getaffinity(0)), seconds=0.3)
        except (OSError, ValueError, psutil.Error) as error:
            self.problem = str(error)

    def check(self, area: Area, *, elsewhere: bool = False) -> None:
        """Is the machine free for measurements; `elsewhere`: they are made on other machines."""
        average = f"load average {os.getloadavg()[0]:.1f}"
        if self.problem:
            area.unchecked("load", self.problem)
        elif elsewhere:
            area.ok("load", f"{average}; jobs run on other nodes than this one")
        elif self.told:
            area.warning(
                "load",
                f"{self.told}; {average}",
                "wait until they have ended, or ask for exclusive nodes: measurements would be of the crowd",
            )
        else:
            area.ok("load", f"nobody computes ({average})")


def cores(area: Area, here: Here, workers: int = 0) -> None:
    """How many cores this process may use, and how that compares with the machine and with `workers` asked for."""
    offered, machine = available_cores(), os.cpu_count() or 1
    text = f"{plural(offered, 'core')}" + (f" of {machine} of this machine" if offered < machine else "")
    quota = quota_cores(here)
    if workers > offered:
        area.warning(
            "cores",
            f"{workers} workers are asked for on {text}: they would share, which is slower and measures the sharing",
            "lower the slots of this host to its cores, or ask the batch system for more cores per node",
        )
    elif offered == 1 and machine > 1:
        area.warning(
            "cores",
            f"only {text} may be used: all workers would run on it",
            "in a job, ask for more (--cpus-per-task); under mpirun, --bind-to none",
        )
    else:
        area.ok("cores", text)
    if quota is not None and quota < offered - 0.01:
        area.warning(
            "processor quota",
            f"the control group allows the time of {quota:g} cores, though {plural(offered, 'core')} may be used: "
            "workers are stopped in the middle of steps",
            f"run no more than {max(1, int(quota))} workers, or raise the limit (docker run --cpus; Kubernetes limits)",
        )


def quota_cores(here: Here) -> float | None:
    """Return how many cores' worth of time the control group gives, None where it sets no limit."""
    groups = [line.split(":", 2) for line in (here.text(here.proc / "self" / "cgroup") or "").splitlines()]
    found = []
    for parts in groups:
        if len(parts) != 3:
            continue
        _, controllers, group = parts
        if controllers == "":
            root, names = here.system / "fs" / "cgroup", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, names = here.system / "fs" / "cgroup" / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        inner = root / group.strip("/")
        for folder in (inner, *(each for each in inner.parents if each.is_relative_to(root))):
            words = " ".join(here.text(folder / name) or "" for name in names).split()
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
                found.append(int(words[0]) / int(words[1]))
    return min(found) if found else None


def memory(area: Area) -> None:
    """How much memory is free, with the limits of a job."""
    free = room.available_bytes()
    if free is None:
        area.ok("memory", "this system does not report how much is free")
    elif free < _LEAST_MEMORY:
        area.warning(
            "memory",
            f"{amount(free)} are free for this process, a worker takes about {amount(_LEAST_MEMORY)}",
            "end other programs, or ask the batch system for more memory (--mem)",
        )
    else:
        area.ok("memory", f"{amount(free)} free for this process")


def shared_memory(area: Area, here: Here) -> None:
    """Is /dev/shm there and large enough for the ranks of one node."""
    place = here.shared_memory
    if not place.is_dir():
        if platform.system() == "Linux":
            area.warning(
                "shared memory", f"there is no {place}", "mount a tmpfs there: MPI and NCCL exchange through it"
            )
        return
    size, _, free = shutil.disk_usage(place)
    text = f"{place}: {amount(free)} of {amount(size)} free"
    if not os.access(place, os.W_OK):
        area.fail(
            "shared memory", f"{place} cannot be written", f"chmod 1777 {place}: MPI and NCCL exchange through it"
        )
    elif free <= 64 * 2**20:  # a container gets as much; Open MPI's segments alone are 4 MiB per rank, NCCL's larger
        area.warning(
            "shared memory",
            f"{text}: MPI and NCCL exchange through it and fail, or take a slower way, when it is full",
            "docker run --shm-size=1g (or --ipc=host); remove what broken runs left there",
        )
    else:
        area.ok("shared memory", text)


def limits(area: Area, here: Here) -> None:
    """Open files, and locked memory where InfiniBand needs it."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < 1024:
        area.warning("open files", f"at most {files} per process", "ulimit -n 4096")
    else:
        area.ok("open files", "unlimited" if files == resource.RLIM_INFINITY else f"at most {files} per process")
    devices = infiniband(here)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if devices and locked != resource.RLIM_INFINITY:
        area.warning(
            "locked memory",
            f"at most {amount(locked)} per process, and there is InfiniBand ({', '.join(devices)}): MPI and NCCL "
            "cannot register buffers and fall back to TCP, or fail",
            "ulimit -l unlimited; on a cluster ask the administrator (LimitMEMLOCK of sshd and slurmd)",
        )
    elif devices:
        area.ok("locked memory", "unlimited, as InfiniBand needs it")
    else:
        area.ok("locked memory", "no InfiniBand here that needs it")


def infiniband(here: Here) -> list[str]:
    """Return the InfiniBand and RoCE ports that are active, such as mlx5_0:1."""
    states = sorted((here.system / "class" / "infiniband").glob("*/ports/*/state"))
    return [f"{path.parts[-4]}:{path.parts[-2]}" for path in states if "ACTIVE" in (here.text(path) or "")]


def clock(area: Area, here: Here, *, several_hosts: bool) -> None:
    """Is time read quickly, and is the clock kept right."""
    source = here.text(here.system / "devices/system/clocksource/clocksource0/current_clocksource")
    if source in ("acpi_pm", "hpet", "jiffies", "refined-jiffies"):
        area.warning(
            "clock source",
            f"the kernel reads time from {source}, which takes microseconds: laps become less certain",
            "boot with clocksource=tsc if the processor's counter is stable, or measure on another node",
        )
    else:
        area.ok("clock source", f"{source or 'not reported by this system'}; monotonic")
    state = synchronised()
    if state is None:
        area.ok("time server", "whether a time server keeps it right is not told here")
    elif state:
        area.ok("time server", "kept right by a time server")
    elif several_hosts:
        area.warning(
            "time server",
            "no time server keeps it right: times of several hosts drift apart",
            "start chronyd or systemd-timesyncd on all hosts",
        )
    else:
        area.ok("time server", "no time server keeps it right, which does not matter on one machine")


def synchronised() -> bool | None:
    """Return whether the kernel's clock is disciplined (adjtimex), None where that cannot be asked."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if function is None:
        return None
    state = int(function(ctypes.create_string_buffer(1024)))  # modes 0: only asked, nothing is set
    return None if state < 0 else state != 5  # 5: TIME_ERROR, not synchronised


def priority(area: Area, here: Here) -> None:
    """What thread_priority auto may use here."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    real_time = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    if here.call([here.python, "-S", "-c", real_time], timeout_s=5.0).worked:
        area.ok("real-time priority", "permitted: thread_priority auto uses it for Gloo's threads")
    elif version and (int(version[1]), int(version[2])) >= (6, 12):
        area.ok("real-time priority", "not permitted: thread_priority auto uses short time slices instead")
    else:
        area.ok("real-time priority", "not permitted, and no short time slices before Linux 6.12: Gloo goes without")


def data_cache(area: Area) -> None:
    """Can generated data sets be kept."""
    folder = dataset.cache_directory()
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK):
        area.fail(
            "data cache",
            f"{folder} cannot be written: generated data sets find no place",
            "set HOROVOD_STUDY_DATA to a writable folder that all hosts see",
        )
        return
    free = shutil.disk_usage(there).free
    text = f"{folder}: {amount(free)} free"
    if free < 3 * 10**9:
        area.warning(
            "data cache",
            f"{text}; a million curves take 2.42 GB",
            "make room, or set HOROVOD_STUDY_DATA to a folder on another disk",
        )
    else:
        area.ok("data cache", text)


def leftovers(area: Area, here: Here) -> None:
    """Are there processes of earlier runs whose launcher is gone."""
    found = _left_over(here.proc)
    if not found:
        area.ok("earlier runs", "left no processes behind")
        return
    folders = sorted({folder for _, folder in found})
    pids = " ".join(str(pid) for pid, _ in found)
    one = len(found) == 1
    which = ", ".join(folders[:3]) + (", ..." if len(folders) > 3 else "")
    area.warning(
        "earlier runs",
        f"{len(found)} process{'' if one else 'es'} of {which} still run{'s' if one else ''}, though "
        f"{'its' if one else 'their'} launcher is gone",
        f"kill {pids} (`horovod-study run` of the same study ends {'it' if one else 'them'} itself)",
    )


def _left_over(proc: Path) -> list[tuple[int, str]]:
    """Return (pid, run directory) of marked processes that init has adopted, and of what they started."""
    marked: dict[int, str] = {}
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in proc.glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            head, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
            pid, folder = int(entry.name), mark_of(entry)
            parents[pid], names[pid] = int(rest.split()[1]), head.partition("(")[2]
            if folder is not None:
                marked[pid] = os.fsencode(folder).decode(errors="replace")
    # mpirun's daemon on another host leaves its parent by itself.
    tops = [pid for pid in marked if parents[pid] == 1 and names[pid] not in ("orted", "prted")]
    return sorted((pid, folder) for pid, folder in marked.items() if _descends(pid, tops, parents))


def _descends(pid: int, tops: Sequence[int], parents: dict[int, int]) -> bool:
    while pid > 1 and pid not in tops:
        pid = parents.get(pid, 0)
    return pid in tops


def checks(
    here: Here, load: Load, *, several: bool, workers: int = 0, elsewhere: bool = False
) -> list[tuple[str, str, Check]]:
    """Return what is looked at on a machine: area, name and check."""
    return [
        ("machine", "cores", lambda area: cores(area, here, workers)),
        ("machine", "memory", memory),
        ("machine", "shared memory", lambda area: shared_memory(area, here)),
        ("machine", "load", lambda area: load.check(area, elsewhere=elsewhere)),
        ("machine", "limits", lambda area: limits(area, here)),
        ("machine", "clock", lambda area: clock(area, here, several_hosts=several)),
        ("machine", "real-time priority", lambda area: priority(area, here)),
        ("machine", "data cache", data_cache),
        ("machine", "earlier runs", lambda area: leftovers(area, here)),
    ]


def worries() -> list[Finding]:
    """Return what is not well with this machine itself; a host that is looked at from another one tells this."""
    here = Here()
    found = guarded(checks(here, Load(), several=True), 10.0)()
    return [finding for finding in found if finding.verdict != "ok"]
