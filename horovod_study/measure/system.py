"""The sampler of a host: a program of its own beside the ranks, and how the trainer starts and stops it.

A thread inside a rank would hold that rank's interpreter while it reads; a process of its own costs the host less than
a hundredth of a core and the ranks nothing. The first rank of each host starts it:

    python -m horovod_study.measure.system

They communicate in lines over its standard input and output. "job {...}" tells the sampler what to do; it answers
"ready" after its first sample. "zero SECONDS" tells it the zero of the run's times, on the clock that all processes of
a host share, and opens the file. "stop" ends it, and it answers with one line of JSON. It also ends when its input
closes, when its parent changes or when no rank is left, but at no signal: these go to all processes of a job.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from horovod_study import records
from horovod_study.config.variables import without_working_directory
from horovod_study.errors import StudyError
from horovod_study.measure import energy
from horovod_study.measure.clock import now
from horovod_study.measure.environment import own_cpu_s
from horovod_study.measure.sensors import Gpus, HostSensor, Packages, Rows, Trees

_READY_S = 15.0
_ANSWER_S = 10.0


class Sampling:
    """Reads all sensors of a host and appends what they say to its file; the inside of the program."""

    def __init__(self, told: Mapping[str, Any], *, sensors: Sequence[Any] | None = None) -> None:
        """`told`: directory, host, ranks {rank: pid}, gpus [uuid], interval_s, resumed.

        `sensors` stand in for those of the host: each has `missing` and `read`.
        """
        self._directory, self._host = Path(told["directory"]), str(told["host"])
        self._ranks = {int(rank): int(pid) for rank, pid in told["ranks"].items()}
        self.interval_s, self._resumed = float(told["interval_s"]), bool(told["resumed"])
        self.trees = Trees(self._ranks)
        self._sensors: Sequence[Any] = sensors or [self.trees, HostSensor(), Gpus(told["gpus"]), Packages()]
        self._zero, self._rows = 0.0, list[dict[str, Any]]()
        self._writer: Any = None
        self.samples, self.ended = 0, ""  # why there are no more samples
        self._start_cpu_s = self._before_cpu_s = own_cpu_s()
        self._began = self._before = self._flushed = now()

    @property
    def missing(self) -> dict[str, str]:
        """What cannot be read, with the reasons."""
        return {name: why for sensor in self._sensors for name, why in sensor.missing.items()}

    def sample(self) -> None:
        """Read everything once."""
        if self.ended:
            return
        at = now()
        found: Rows = {part: row for sensor in self._sensors for part, row in sensor.read(at).items()}
        cpu_s = own_cpu_s()
        if "host" in found and at > self._before:
            found["host"]["sampler_cpu_percent"] = 100 * (cpu_s - self._before_cpu_s) / (at - self._before)
        self._rows += [{"at_s": at, "part": part, **columns} for part, columns in found.items()]
        self._before, self._before_cpu_s = at, cpu_s
        self.samples += 1
        if self._writer is not None and at - self._flushed >= 10.0:
            self.flush()

    def open(self, zero: float) -> None:
        """Begin the file; what was sampled before `zero` has negative times."""
        self._zero = zero
        first_s = (self._rows[0]["at_s"] if self._rows else now()) - zero
        devices = {name: each for sensor in self._sensors for name, each in getattr(sensor, "devices", {}).items()}
        meta = {"interval_s": self.interval_s, "ranks": {str(rank): pid for rank, pid in self._ranks.items()}}
        meta |= {"devices": devices, "missing": self.missing, "cores": os.cpu_count()}
        kept_s = first_s if self._resumed else None
        try:
            self._writer = records.SystemWriter(self._directory, self._host, meta, keep_before_s=kept_s)
        except StudyError as error:
            self.ended = str(error)
        self.flush()

    def flush(self) -> None:
        """Write what was sampled; a file without room ends the sampling, and nothing else."""
        if self._writer is None or not self._rows:
            return
        rows, self._rows, self._flushed = self._rows, [], now()
        try:
            if not self.ended:
                self._writer.append([{**row, "at_s": row["at_s"] - self._zero} for row in rows])
        except StudyError as error:
            self.ended = str(error)

    def close(self) -> dict[str, Any]:
        """Write the rest, end the file, and return what the trainer is to know."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
        wall_s, cpu_s = now() - self._began, own_cpu_s() - self._start_cpu_s
        cost = {"cpu_s": cpu_s, "wall_s": wall_s, "share_of_core": cpu_s / wall_s if wall_s else None}
        cost |= {"start_cpu_s": self._start_cpu_s}
        return {"samples": self.samples, "missing": self.missing, "ended": self.ended, "cost_of_sampling": cost}


def main() -> int:
    """Be the sampler; see the head of this file."""
    parent = os.getppid()  # without it nobody needs samples, and without ranks none are taken
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # not on the core of the rank that started it, where there are others
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    # Before the timed window, not when the first sample is taken or the file is opened.
    import psutil  # noqa: F401
    import pyarrow  # noqa: F401

    sampling: Sampling | None = None
    due, stopped = math.inf, False
    with open(sys.stdin.fileno(), "rb", buffering=0) as commands:
        while not stopped and os.getppid() == parent:
            if sampling is not None and now() >= due:
                sampling.sample()
                due += sampling.interval_s * max(1, math.ceil((now() - due) / sampling.interval_s))
            # at least once a second it looks whether the job is still there
            if select.select([commands], [], [], max(0.0, min(due - now(), 1.0)))[0]:
                word, _, rest = commands.readline().decode().partition(" ")
                if not word:
                    break
                if word == "job":
                    sampling = Sampling(json.loads(rest))
                    sampling.sample()
                    due = now() + sampling.interval_s
                    print("ready", flush=True)
                    os.nice(5)  # not before: on a busy host the trainer would wait for the imports
                elif sampling is not None and word == "zero":
                    sampling.open(float(rest))
                elif sampling is not None:
                    sampling.sample()
                    stopped = True
            if sampling is not None and not sampling.trees.alive:
                due = math.inf
    answer = None if sampling is None else sampling.close()
    if stopped:
        with suppress(OSError):
            print(json.dumps(answer, allow_nan=False), flush=True)
    os._exit(0)  # everything is written, and taking the interpreter down keeps the trainer waiting


def told(directory: Path, sampler: "Sampler", stretches: energy.Stretches) -> dict[str, Any]:
    """Return what the sampler, which was stopped, saw of its host in the stretches of the window, for `totals`."""
    answer = sampler.stop()
    found: dict[str, Any] = {"host": sampler.host, "energy": [], **answer}
    try:
        columns, meta = records.system_columns(directory, sampler.host)
    except StudyError as error:
        return {**found, "reason": answer.get("reason") or answer.get("ended") or str(error)}
    how: dict[str, Any] = {"host": sampler.host, "interval_s": float(meta["interval_s"])}
    found["energy"] = energy.host_energy(columns, meta["devices"], stretches, **how) if stretches else []
    summary = energy.host_summary(columns, stretches)
    return {"missing": meta["missing"], **found, "interval_s": how["interval_s"], **summary}


def totals(hosts: Sequence[Mapping[str, Any] | None], *, samples: int) -> dict[str, Any]:
    """Return `system` and `energy` of the totals from what the first rank of each host `told` (None of the others).

    `samples`: curves trained on in the window.
    """
    known = [each for each in hosts if each is not None]
    reasons = {each["host"]: each["reason"] for each in known if each.get("reason")}
    reason, without = "; ".join(f"{host}: {why}" for host, why in reasons.items()), list[str]()
    if not known:
        reason = "nothing was sampled: system_interval_s is 0"
        without = [reason]
    for each in known:
        lacking = {name: why for name, why in each.get("missing", {}).items() if name.split()[0] in ("gpu", "package")}
        texts = [*filter(None, [reasons.get(each["host"])]), *(f"{name}: {why}" for name, why in lacking.items())]
        without += [f"{each['host']}: {text}" for text in texts]
    told = {each["host"]: {k: v for k, v in each.items() if k not in ("host", "energy")} for each in known}
    devices = [device for each in known for device in each["energy"]]
    energies = energy.total_energy(devices, without, samples=samples)
    return {"system": {"hosts": told, "reason": reason}, "energy": energies}


class Sampler:
    """The sampler as seen by the rank that started it. Nothing here raises: training does not depend on it."""

    def __init__(self, host: str) -> None:
        """Start the program, which at first only imports what it needs."""
        self.host, self.reason = host, ""  # why there are no samples
        self._answer = dict[str, Any]()
        self._process: subprocess.Popen[bytes] | None = None
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        own = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        line = [sys.executable, "-m", "horovod_study.measure.system"]
        try:
            self._process = subprocess.Popen(line, bufsize=0, env=without_working_directory(own), **pipes)
        except OSError as error:
            self.reason = f"the sampler could not be started ({error.strerror or error})"

    def watch(
        self, directory: Path, ranks: Sequence[Mapping[str, Any]], *, interval_s: float, resumed: bool = False
    ) -> None:
        """Tell what to sample; `ranks`: the entries of all ranks in the record, see measure/evidence.py."""
        here = {number: rank for number, rank in enumerate(ranks) if rank["host"] == self.host}
        job = {"directory": str(directory), "host": self.host, "interval_s": interval_s, "resumed": resumed}
        job["ranks"] = {str(number): rank["pid"] for number, rank in here.items()}
        job["gpus"] = [rank["gpu"]["uuid"] for rank in here.values() if rank["gpu"] and rank["gpu"]["uuid"]]
        self._report(f"job {json.dumps(job)}\n")

    @property
    def pid(self) -> int | None:
        """The number of the sampler's process, None if there is none."""
        return None if self._process is None else self._process.pid

    def wait_ready(self) -> None:
        """Return when the sampler has imported what it needs, or will not."""
        heard, until = "", now() + _READY_S
        while self._process is not None and (line := self._line(until - now())) != "ready":
            if line is None:
                self._give_up(f"the sampler did not start ({heard or f'nothing heard within {_READY_S:g} s'})")
            heard = line or heard  # of an error, the last line says what it was

    def begin(self, zero: float) -> None:
        """Tell the zero of the run's times: what was sampled since the start goes to the file, and what follows."""
        self._report(f"zero {zero!r}\n")

    def stop(self) -> dict[str, Any]:
        """End the sampling after a last sample; return what the sampler says of itself, or {"reason": why nothing}.

        Once stopped, it gives the same answer again.
        """
        if self._process is not None:
            self._report("stop\n")
            line = self._line(_ANSWER_S)
            code = self._process.poll()
            ended = f"no answer within {_ANSWER_S:g} s" if code is None else f"exit code {code}"
            try:
                self._answer = json.loads(line or "")
                self.close()
            except ValueError:
                self._give_up("the sampler " + (f"failed ({line})" if line else f"did not live to the end ({ended})"))
        return self._answer or {"reason": self.reason}

    def close(self) -> None:
        """End the sampling if it is still there; calling it again changes nothing."""
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=_ANSWER_S)  # closes its input, and it ends
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        if self._process is not None:
            self._process.kill()
        self.close()

    def _report(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has ended; `stop` says so
                self._process.stdin.write(line.encode())

    def _line(self, timeout_s: float) -> str | None:
        """Return the next line the sampler says; None if it has ended, or the time is over."""
        assert self._process is not None and self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, timeout_s))[0]:
            return None
        if line := self._process.stdout.readline():  # not buffered: nothing is left where `select` does not see it
            return line.decode(errors="replace").strip()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return None


if __name__ == "__main__":
    sys.exit(main())
