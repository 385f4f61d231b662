"""Which cores of this machine a cell gets, and who else uses them.

Repeats compare only when they run on the same cores: the same cell always gets the same set, its workers together.
Workers are not tied to single cores within the set, because the threads that communicate need one now and then; those
with a GPU keep to the cores near it (comm/gpus.py).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from horovod_study.config.run import Cell
from horovod_study.measure.clock import now, sleep
from horovod_study.measure.environment import BUSY_CORES, CORES_OF_GPU, PCI, cores_near, numbers_of
from horovod_study.measure.evidence import OtherLoad
from horovod_study.measure.sensors import Gpus, visible_uuids
from horovod_study.text.words import plural

_SHORTEST_S = 0.3  # the system counts processor time in hundredths of a second


def cores_in_order(available: Sequence[int], *, system: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Return `available` in the order to take them: physical cores first, then their second hardware threads.

    Where the system does not show which hardware threads share a core, by number.
    """
    allowed = set(available)

    def rank(core: int) -> tuple[int, int]:
        try:
            text = (system / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
            siblings = [each for each in numbers_of(text) if each in allowed]
            return siblings.index(core), core
        except (OSError, ValueError):
            return 0, core

    return sorted(available, key=rank)


def cell_cores(
    cell: Cell, *, cores_per_worker: int, available: Sequence[int], near: Sequence[Sequence[int]] = ()
) -> tuple[int, ...] | None:
    """Return the cores for `cell`, in ascending order; None when it needs all there are, or more.

    `available`: the cores in the order to take them. A worker gets what the partition says, at least one for each of
    its compute threads and processes. `near`: the cores near each GPU, where the workers use GPUs; worker r, which
    takes GPU r, then gets those first, and enough for all that drives a GPU.
    """
    config, workers = cell.config, cell.placement.workers
    each = max(cores_per_worker, config.workload.threads_of(config), CORES_OF_GPU if near else 0)
    if workers * each >= len(available):
        return None
    taken: list[int] = []
    for worker in range(workers):
        close = near[worker % len(near)] if near else ()
        left = [core for core in available if core not in taken]
        taken += sorted(left, key=lambda core: core not in close)[:each]
    return tuple(sorted(taken))


def cores_near_gpus(*, library: Any = None, pci: Path = PCI) -> list[list[int]]:
    """Return the cores near each GPU that is visible here, in CUDA's order; [] for one of which that is unknown.

    `library` stands in for pynvml, which is asked.
    """
    gpus = Gpus(visible_uuids(os.environ, library=library), library=library)
    return [cores_near(bus_id, pci=pci) for bus_id in gpus.bus_ids().values()]


@contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """Let what this thread starts within the block run on `cores` only; None changes nothing.

    The system keeps the set of cores per thread and gives it to the processes that the thread starts.
    """
    if cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class OtherPrograms:
    """How many cores of this machine other programs used since it was made, and which programs those were.

    What this process and the children it waited for used is not counted.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._began, self._load, self._used = now(), OtherLoad(cores), _by_process()

    def cores_used(self) -> float | None:
        """Return the cores in use by others, on average; None when too little time has passed to tell."""
        told = self._load.sample(at_least_s=0.0)
        if told is None or told["seconds"] < _SHORTEST_S:
            return None
        return max(0.0, (told["busy_s"] - told["own_s"]) / told["seconds"])

    def programs(self) -> list[str]:
        """Return the names of the programs that used most, each with its cores, the greediest first."""
        seconds, used = max(now() - self._began, _SHORTEST_S), _by_process()
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        by_name: dict[str, float] = {}
        for (pid, name), used_s in used.items():
            if pid not in ours:
                by_name[name] = by_name.get(name, 0.0) + used_s - self._used.get((pid, name), 0.0)
        most = sorted(by_name.items(), key=lambda each: (-each[1], each[0]))[:3]
        return [f"{name} {used_s / seconds:.1f}" for name, used_s in most if used_s / seconds >= 0.05]


def other_load(cores: Sequence[int], *, seconds: float) -> str | None:
    """Watch for `seconds` what other programs do on `cores`; return a sentence when they use enough to disturb."""
    others = OtherPrograms(cores)
    sleep(seconds)
    return disturbance(others, len(cores))


def disturbance(others: OtherPrograms, cores: int) -> str | None:
    """Say how much of `cores` other programs used and which, or None when it is too little to matter."""
    used = others.cores_used()
    if used is None or used < BUSY_CORES:
        return None
    names = ", ".join(others.programs())
    return f"other programs use {used:.1f} of {plural(cores, 'core')}" + (f" ({names})" if names else "")


def _by_process() -> Mapping[tuple[int, str], float]:
    """Return the processor seconds of every process that may be looked at, by number and name."""
    used = {}
    for process in psutil.process_iter(["name", "ppid", "cpu_times"]):
        times = process.info["cpu_times"]
        # 2 is the parent of the threads of Linux itself, which are nobody's program.
        if times is not None and process.info["ppid"] != 2:
            used[process.pid, process.info["name"] or "?"] = times.user + times.system
    return used
