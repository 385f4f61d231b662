"""One cell as a group of processes: started, waited for without polling, and ended to the last descendant.

A launcher's workers do not all stay in its process group, so every process of a cell carries the environment variable
`launch.MARKER`: whatever carries it is found and ended.

Libraries in a training that waits between two steps look for work all the time, and are stopped meanwhile. A guard, a
process of its own that waits for the end of this one, continues then what is stopped. Threads that all wake at once may
share a core for tenths of a second, so what goes on can do so on the cores where it was when it made its last step.

The same cell always gets the same cores, its workers together. They are not tied to single cores within the set,
because the threads that communicate need one now and then; those with a GPU keep to the cores near it (comm/gpus.py).
"""

import errno
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from horovod_study.cluster.alive import runs
from horovod_study.cluster.launch import MARKER, LaunchLine
from horovod_study.config.run import Cell
from horovod_study.config.variables import without_working_directory
from horovod_study.errors import StudyError
from horovod_study.files import open_log
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
    before = os.sched_getaffinity(0) if cores is not None and hasattr(os, "sched_setaffinity") else None
    if before is not None and cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


class OtherPrograms(OtherLoad):
    """Which other programs used cores of this machine since it was made.

    What this process and the children it waited for used is not counted.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        super().__init__(cores)
        self._used = _by_process()

    def told(self, *, after_s: float = 0.0) -> str | None:
        """Say how many cores they use and which three use most, the greediest first; None: too little to matter.

        It waits for `after_s` first. None too when too little time has passed to tell.
        """
        sleep(after_s)
        sample = self.sample(at_least_s=0.0)
        if sample is None or (seconds := sample["seconds"]) < _SHORTEST_S:
            return None
        used_cores = (sample["busy_s"] - sample["own_s"]) / seconds
        if used_cores < BUSY_CORES:
            return None
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        by_name: dict[str, float] = defaultdict(float)
        for (pid, name), used_s in _by_process().items():
            by_name[name] += 0.0 if pid in ours else (used_s - self._used.get((pid, name), 0.0)) / seconds
        most = sorted(by_name.items(), key=lambda each: (-each[1], each[0]))[:3]
        names = ", ".join(f"{name} {cores:.1f}" for name, cores in most if cores >= 0.05)
        told = f"other programs use {used_cores:.1f} of {plural(len(self.cores), 'core')}"
        return told + (f" ({names})" if names else "")


def _by_process() -> Mapping[tuple[int, str], float]:
    """Return the processor seconds of every process that may be looked at, by number and name."""
    used = {}
    for process in psutil.process_iter(["name", "ppid", "cpu_times"]):
        times = process.info["cpu_times"]
        # 2 is the parent of the threads of Linux itself, which are nobody's program.
        if times is not None and process.info["ppid"] != 2:
            used[process.pid, process.info["name"] or "?"] = times.user + times.system
    return used


GRACE_S = 5.0  # How long launchers and workers get to end by themselves after SIGTERM


class CellProcess:
    """A running cell whose output goes to a log, until `end` ends whatever is left of it."""

    def __init__(
        self, line: LaunchLine, log: Path, grace_s: float = GRACE_S, *, cores: Sequence[int] | None = None
    ) -> None:
        """Start it. StudyError: the launcher cannot be executed. OSError: the log cannot be written.

        `cores`: those of this machine that its processes may use; None: any.
        """
        self._marker, self._grace_s = line.environment[MARKER], grace_s
        with open_log(log) as output:
            output.write(f"$ {shlex.join(line.argv)}\n")
            output.flush()
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            how["start_new_session"] = True  # Ctrl-C reaches this program only, which ends the cell
            try:
                with pinned(cores):
                    self._process = subprocess.Popen(line.argv, env=dict(line.environment), **how)
            except OSError as error:
                broken = error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
                again = "check it, or run `make setup` again" if broken else "see `ulimit -a`, and allow more"
                raise StudyError(f"{line.argv[0]} cannot be started ({error.strerror}); {again}") from None
        # A thread waiting in the kernel costs the measured workers next to nothing.
        self._waiter = threading.Thread(target=self._process.wait, daemon=True)
        try:
            self._waiter.start()
        except RuntimeError:  # no room for a thread: nobody else would end it
            stop_marked(self._marker, group=self._process.pid, grace_s=0.0)
            self._process.wait()
            raise

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code (negative: the signal that ended it), or None when it still runs after `timeout_s`."""
        self._waiter.join(timeout_s)
        return None if self._waiter.is_alive() else self._process.returncode

    def ask_to_stop(self, pid: int) -> None:
        """Send SIGUSR1 to a trainer's process, and return when the cell has ended or its grace is over.

        That makes the workers agree to write a checkpoint and end together. A launcher is not asked first: horovodrun
        passes no signal on, and mpirun kills its workers soon after.
        """
        if _signal(pid, signal.SIGUSR1):
            self.give_grace()

    def give_grace(self) -> None:
        """Return when the cell has ended, or its grace is over, or a second Ctrl-C takes that away."""
        try:
            self._waiter.join(self._grace_s)
        except KeyboardInterrupt:
            self._grace_s = 0.0

    def end(self, grace_s: float) -> None:
        """End whatever is left of it; without grace after a second Ctrl-C."""
        self._grace_s = min(grace_s, self._grace_s)
        group = self._process.pid if self._waiter.is_alive() else None
        with suppress(KeyboardInterrupt):
            stop_marked(self._marker, group=group, grace_s=self._grace_s)
        self._waiter.join(self._grace_s)


def stop_marked(marker: str, *, group: int | None = None, grace_s: float = GRACE_S) -> int:
    """End the processes marked with the run directory `marker` or one below it; return how many there were.

    `group`: the launcher's process group. It is asked first, because launchers end their workers in an order in which
    none complains about a lost peer. Whatever is left after `grace_s` is killed.
    """
    found = marked_processes(marker)
    for pid in [-group] if group is not None else found:
        _signal(pid, signal.SIGTERM)
    deadline = now() + grace_s
    try:
        while marked_processes(marker) and now() < deadline:
            sleep(0.05)
    finally:  # also when a second Ctrl-C cuts the wait short
        for _ in range(100):
            if not (left := marked_processes(marker)):
                break
            for pid in left:
                _signal(pid, signal.SIGKILL)
            sleep(0.02)
    # Whoever ends has no environment any more before it is gone, and a record calls it running until then.
    for _ in range(100):
        if not any(map(runs, found)):
            break
        sleep(0.02)
    return len(found)


def marked_processes(marker: str) -> list[int]:
    """Return the processes marked with `marker` or with a path below it."""
    return [pid for pid, mark in _marks() if mark == marker or mark.startswith(f"{marker.rstrip('/')}/")]


def marked_below(folder: Path) -> set[str]:
    """Return the names of the run directories directly below `folder` (absolute) that processes are marked with."""
    below = f"{folder}/"
    return {mark[len(below) :].partition("/")[0] for _, mark in _marks() if mark.startswith(below)}


def _marks() -> Iterator[tuple[int, str]]:
    """Yield the number and the mark of every marked process but this one.

    Between cells of a measurement: psutil takes five times as long, and ends at an empty entry of an environment.
    """
    name = f"{MARKER}=".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            variables = (entry / "environ").read_bytes().split(b"\0")
            mark = next((each[len(name) :] for each in variables if each.startswith(name)), None)
            if mark is not None and int(entry.name) != os.getpid():
                yield int(entry.name), os.fsdecode(mark)


def _signal(pid: int, number: int) -> bool:
    """Send a signal to a process or (negative) a group; False when it is gone or not ours."""
    with suppress(OSError):
        os.kill(pid, number)
        return True
    return False


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
        for number in found:
            _signal(number, signal.SIGSTOP)

    def go_on(self, numbers: Iterable[int], places: Mapping[int, int] = MappingProxyType({})) -> None:
        """Continue processes; threads that `places` names are kept on the core that it names, until `spread`."""
        found = list(numbers)
        for number in {int(each.name) for each in _threads(found)} & places.keys() if places else ():
            with suppress(OSError):
                own = os.sched_getaffinity(number)
                if len(own) > 1 and places[number] in own:
                    os.sched_setaffinity(number, {places[number]})
                    self._kept[number] = own
        for number in found:
            _signal(number, signal.SIGCONT)

    def spread(self) -> None:
        """Let threads that go on use all their cores again."""
        for number, own in self._kept.items():
            with suppress(OSError):
                os.sched_setaffinity(number, own)
        self._kept = {}

    def close(self) -> None:
        """Continue all that were ever stopped, and end the guard."""
        self.spread()
        for number in self._told:
            _signal(number, signal.SIGCONT)
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
        precise = 0.0
        with suppress(OSError):
            precise = sum(int((each / "schedstat").read_text().split()[0]) / 1e9 for each in _threads([number]))
        try:
            used += precise or sum(psutil.Process(number).cpu_times()[:2])
        except psutil.Error:
            return None
    return used
