"""Commands on other hosts, over ssh or, inside a Slurm job, by srun: bounded in time, and never asking for a password.

What is sent is a list of arguments, quoted here for the shell that ssh starts; srun starts no shell. Processes of a
cell that were left on another host are found by their mark, as `process.py` finds them on this one.
"""

import functools
import json
import os
import platform
import shlex
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from horovod_study.errors import StudyError

MARKER = "HOROVOD_STUDY_CELL"
"""Environment variable with the absolute run directory: every process of a cell inherits it and is found by it."""
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
"""Fail where a password or an answer would be asked for, and soon where nobody answers."""
ALIVE_OPTIONS = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""A connection whose other end is gone ends after 15 s."""
# What Slurm tells of a job stays where it only tells; srun takes many others (SLURM_NTASKS, SLURM_CPUS_PER_TASK, ...)
# for options, and MPI takes SLURM_JOBID and SLURM_STEPID for a sign that Slurm starts its ranks.
SLURM_TELLS = frozenset(
    """
    SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_PARTITION SLURM_JOB_ACCOUNT SLURM_JOB_USER SLURM_JOB_START_TIME
    SLURM_JOB_END_TIME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_RESTART_COUNT SLURM_CLUSTER_NAME SLURM_CONF
    SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST SLURMD_NODENAME SLURM_JOB_GPUS
    """.split()
)
SLURM_STARTS = frozenset(  # for srun, and for an mpirun that reads the nodes here and starts its daemons by srun
    """
    SLURM_JOBID SLURM_JOB_NODELIST SLURM_NODELIST SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_JOB_CPUS_PER_NODE
    SLURM_JOB_UID SLURM_JOB_GID SLURM_JOB_QOS SLURM_WORKING_CLUSTER
    """.split()
)
_ANSWER_S = 15.0  # beyond the grace
SUBMIT_OPTIONS = ("SBATCH_", "SALLOC_", "SRUN_")  # beginnings of variables that Slurm's commands take for options

# Sent as it is to `python3 -` on the other host: nothing of this package need be installed there. It never ends
# itself or the shell that started it, because these do not carry the mark in their environment.
_STOP_PROGRAM = """\
import glob, json, os, signal, sys, time
exact, grace_s = sys.argv[1].encode(), float(sys.argv[2])
below = exact.rstrip(b"/") + b"/"

def marked(number=0):
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        pid = int(path.split("/")[2])
        try:
            with open(path, "rb") as stream:
                variables = stream.read().split(b"\\0")
            if pid != os.getpid() and any(each == exact or each.startswith(below) for each in variables):
                found.append(pid)
                os.kill(pid, number)
        except OSError:
            continue
    return found

found = marked(signal.SIGTERM)
end = time.monotonic() + grace_s
while marked() and time.monotonic() < end:
    time.sleep(0.05)
for _ in range(50):
    if not marked(signal.SIGKILL):
        break
    time.sleep(0.02)
print(json.dumps({"found": len(found), "left": len(marked())}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command came to."""

    exit_code: int | None  # None: it did not end in time
    output: str = ""
    problem: str = ""  # one line: why there is no answer; "" when the command ended with 0
    errors: str = ""  # all that it said on standard error


def remote_argv(host: str, argv: Sequence[str], *, allocation: bool = False) -> tuple[str, ...]:
    """Return the command of this machine that runs `argv` on `host`; every argument arrives there as it is."""
    if not host or host.startswith("-"):
        raise StudyError(f"{host!r} is not a name of a host")
    if allocation:
        # Beside whatever runs there: a step of its own would wait for the one that it is to end.
        one = ("--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--mpi=none", "--export=ALL")
        return ("srun", *one, "--quiet", *argv)
    # No connection is left open: it would hold our pipes.
    return ("ssh", "-o", "ControlMaster=no", *SSH_OPTIONS, *ALIVE_OPTIONS, host, "--", shlex.join(argv))


def run_on(
    host: str,
    argv: Sequence[str],
    *,
    timeout_s: float = 30.0,
    sent: str = "",
    allocation: bool = False,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Answer:
    """Run `argv` on `host` ("": here, in `folder`) with `sent` as its input; never raises for what fails."""
    line = remote_argv(host, argv, allocation=allocation) if host else tuple(argv)
    kept = SLURM_TELLS | SLURM_STARTS
    # Without what would change the options of a step: that of the job, or of the step we are in.
    own = {
        name: value
        for name, value in environ.items()
        if not allocation or name in kept or not name.startswith(("SLURM", *SUBMIT_OPTIONS))
    }
    how: dict[str, Any] = {"input": sent, "capture_output": True, "text": True, "errors": "replace"}
    how |= {"env": own, "cwd": folder}
    try:
        # In a session of its own: Ctrl-C is for the program that waits; and no terminal to ask a password on.
        done = subprocess.run(line, timeout=timeout_s, start_new_session=True, **how)
    except subprocess.TimeoutExpired:
        return Answer(exit_code=None, problem=f"no answer within {timeout_s:g} s")
    except OSError as error:
        return Answer(exit_code=None, problem=f"{line[0]} cannot be started ({error.strerror})")
    said = [f"{argv[0]} ended with {done.returncode}", *filter(None, map(str.strip, done.stderr.splitlines()))]
    problem = said[-1] if done.returncode else ""
    return Answer(exit_code=done.returncode, output=done.stdout, problem=problem, errors=done.stderr)


def stop_marked_on(
    hosts: Sequence[str], marker: str, *, grace_s: float = 5.0, allocation: bool = False
) -> tuple[int, str]:
    """End the processes on `hosts` that are marked with the run directory `marker` or one below it.

    SIGTERM, and SIGKILL for what is left after `grace_s`; all hosts at the same time, so that dead ones cost
    `grace_s` + 15 s once. Returns how many there were, and in one line the hosts that could not be asked, "" for none.
    """
    argv = ("python3", "-", f"{MARKER}={marker}", f"{grace_s:g}")

    def ask(host: str) -> Answer:
        return run_on(host, argv, timeout_s=grace_s + _ANSWER_S, sent=_STOP_PROGRAM, allocation=allocation)

    if not hosts:
        return 0, ""
    with ThreadPoolExecutor(max_workers=min(len(hosts), 16)) as pool:
        answers = list(pool.map(ask, hosts))
    found, unreached = 0, []
    for host, answer in zip(hosts, answers, strict=True):
        left, problem = 0, answer.problem
        try:
            told = {"left": 0} if problem else dict(json.loads(answer.output.strip().splitlines()[-1]))
            left, found = int(told["left"]), found + int(told.get("found", 0))
        except (ValueError, LookupError, TypeError, RecursionError):
            problem = "its answer is unreadable"
        unreached += [f"{host}: {problem or f'{left} processes do not end'}"] if problem or left else []
    why = f"processes may be left on hosts that could not be asked ({'; '.join(unreached)})"
    return found, why if unreached else ""


@functools.cache
def this_host(name: str) -> bool:
    """Return whether `name`, a host's name or address, is this machine; a name that nobody knows is not.

    Asked once in a process, and for a few seconds: a name server that does not answer takes its time.
    """
    own, found = platform.node().lower(), list[str]()
    known = ("localhost", own) if "." in name else ("localhost", own, own.split(".")[0])
    if name.lower() in known:
        return True

    def look_up() -> None:
        with suppress(OSError, UnicodeError):
            found.extend(str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))

    asking = threading.Thread(target=look_up, daemon=True)
    asking.start()
    asking.join(3.0)
    here = {each.address.split("%")[0] for known in psutil.net_if_addrs().values() for each in known}
    return any(each.split("%")[0] in here or each.startswith("127.") for each in list(found))


def other_hosts(hosts: Sequence[str]) -> list[str]:
    """Return those of `hosts` that are not this machine."""
    return [name for name in dict.fromkeys(hosts) if not this_host(name)]
