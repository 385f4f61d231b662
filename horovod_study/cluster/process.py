"""One cell as a group of processes: started, waited for without polling, and ended to the last descendant.

A launcher's workers do not all stay in its process group (`mpirun` and `horovodrun` give theirs a group or session of
their own), so the group alone is not enough to end a cell. Every process of a cell carries the environment variable
`launch.MARKER`: whatever carries it is found and ended.
"""

import errno
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from horovod_study.cluster.alive import runs
from horovod_study.cluster.launch import MARKER, LaunchLine
from horovod_study.cluster.pinning import pinned
from horovod_study.errors import StudyError
from horovod_study.files import open_log
from horovod_study.measure.clock import now, sleep

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
            how: dict[str, Any] = {"env": dict(line.environment), "stdin": subprocess.DEVNULL}
            how |= {"stdout": output, "stderr": subprocess.STDOUT}
            try:
                with pinned(cores):  # in a session of its own: Ctrl-C reaches this program only, which ends the cell
                    self._process = subprocess.Popen(line.argv, start_new_session=True, **how)
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
    """Yield the number and the mark of every marked process but this one."""
    name = f"{MARKER}=".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            variables = (entry / "environ").read_bytes().split(b"\0")
            mark = next((each[len(name) :] for each in variables if each.startswith(name)), None)
            if mark is not None and int(entry.name) != os.getpid():
                yield int(entry.name), os.fsdecode(mark)


def _signal(pid: int, number: int) -> bool:
    """Send a signal to a process or (negative) a group; False when it is gone or not ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False
