"""One attempt at a cell or a program: started, waited for, ended to its last process, and how it ended in one value.

Nobody else starts ranks, reads from what they printed why they failed, or finishes a record for a trainer that could
not do so itself (killed, launcher error, never started). Whatever happens to a cell, its run directory tells.

`sweep` is the engine. A lane is a generator that yields a `RankRun` and receives an `Attempt`:

    def lane():
        for name, cell in cells:
            attempt = yield RankRun(cell=cell, out=..., ...)
            if not attempt.done: ...

One lane runs one attempt at a time, several lanes run several. What a start or an end raises (a full disk, a directory
that somebody else trains in) is raised in the lane, at its `yield`. A lane that has nothing to run now, but may have
when another one has ended, yields None. After a request to stop every running attempt is ended and told to its lane,
and nothing more is started.
"""

import ipaddress
import math
import os
import platform
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Self, TypeAlias

import yaml

from horovod_study import records
from horovod_study.cluster.launch import HERE, MARKER, LaunchLine, Site, Starting, launch_line, program_line
from horovod_study.cluster.process import GRACE_S, CellProcess
from horovod_study.cluster.remote import run_on, stop_marked_on
from horovod_study.comm.liveness import UNNAMED, named_ranks
from horovod_study.config.run import Cell, Placement
from horovod_study.errors import StudyError
from horovod_study.files import write_file
from horovod_study.measure.clock import now, utc_now
from horovod_study.recording.command import ENDED_WITH, NO_STEPS
from horovod_study.records import RunRecord
from horovod_study.runtimes import CARRIED
from horovod_study.studies.lease import end_run_claim, require_free
from horovod_study.text.words import cut

INTERRUPTED = "interrupted"
_last: list[int] = [signal.SIGINT]


def exit_code() -> int:
    """Return what a program ends with that was told to stop: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + _last[-1]


class Interruption:
    """Remembers the first Ctrl-C, SIGTERM or lost terminal, for a good moment to act on; a second one breaks off."""

    signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, state: str = INTERRUPTED) -> None:
        """`state`: what the attempt that is broken off is called, such as "pre-empted"."""
        self.requested = False
        self.state = state

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
        # What is ignored stays so: nohup means it.
        heeded = [number for number in self.signals if main and signal.getsignal(number) != signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._remember) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        _last[:] = [number]
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


CANCELLED, FAILED, PRUNED, TIMED_OUT = "cancelled", "failed", "pruned", "timed out"
TAKEN_OVER = "taken over"  # How an attempt ended whose run directory is another one's now
Launcher = Callable[..., LaunchLine]  # Says how to start a cell, as `local_launch` does


def local_launch(cell: Cell, config: Path, out: Path, *, resume: bool = False, site: Site = HERE) -> LaunchLine:
    """Return how to start `cell` from this machine with the Python that runs this program."""
    return launch_line(cell, _starting(site), config=config, out=out, resume=resume)


def _starting(site: Site, variables: Mapping[str, str] = MappingProxyType({})) -> Starting:
    environ, python = {**os.environ, **variables}, Path(sys.executable)
    return Starting(python=python, environ=environ, root=os.geteuid() == 0, site=site)


Verdict: TypeAlias = tuple[str, str]
"""Why an attempt is not left to end by itself: what it is called then, and the reason in one line."""
Watch = Callable[["Running"], Verdict | None]
"""Looks at an attempt about four times a second while it runs; it is ended when a verdict is returned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRun:
    """What is to be started, where it writes, and for how long it may run."""

    out: Path  # the run directory of a cell, the folder of a program
    log: Path
    site: Site = HERE
    cores: Sequence[int] | None = None  # of this machine, for its processes; None: any
    timeout_s: float = math.inf
    grace_s: float = GRACE_S  # for launchers and workers, to end by themselves
    watch: Watch = lambda running: None
    resume: bool = False  # of a cell: from its newest checkpoint
    checkpoint: bool = False  # its ranks are asked to write one before they are ended
    variables: Mapping[str, str] = field(default_factory=dict)  # more of the ranks' environment
    held_s: Callable[[], float] = lambda: 0.0  # for how long it has waited for its turns, which no limit counts

    cell: Cell | None = None  # to be trained
    config: Path = Path()  # what the cell is asked to do; written when it is started
    launch: Launcher = local_launch
    program: tuple[str, ...] = ()  # of Python; what is started where it is no cell
    runtime: str = "serial"  # of that
    workers: int = 1

    def line(self) -> LaunchLine:
        """Return how to start it, after writing the configuration of a cell."""
        if self.cell is None:
            start = _starting(self.site, self.variables)
            return program_line(self.runtime, self.workers, self.program, start, out=self.out)
        for path in (self.config, self.log, self.out):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.config, yaml.safe_dump(vars(self.cell.config), sort_keys=False))
        return self.launch(self.cell, self.config, self.out, resume=self.resume, site=self.site)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """How an attempt ended."""

    state: str  # done | failed | timed out | stopped, or that of the verdict that ended it
    reason: str  # in one line; "" when it is done
    record: RunRecord | None  # None: a program, or a cell that was broken off before it began
    exit_code: int | None  # None: it did not end by itself
    log: Path
    started: str  # UTC
    seconds: float
    said: str = ""  # what its log says of the end; "" of a cell that is done
    unreached: str = ""  # hosts on which processes may be left, in one line

    @property
    def done(self) -> bool:
        """Whether it did what it was asked to do."""
        return self.state == "done"


class Running:
    """An attempt that is under way, until `poll` returns how it ended or `end` ends it."""

    def __init__(self, run: RankRun) -> None:
        """Start it. OSError: a file cannot be written. A launcher that cannot be executed ends the attempt."""
        self.run, self.started = run, utc_now()
        self.exit_code: int | None = None
        self._began = now()
        self._looked, self._failed_at = self._began, math.inf
        resumed = self._record() if run.resume else None
        self._before = 0 if resumed is None else len(resumed.attempts)
        self._process: CellProcess | None = None
        self._problem = ""
        try:
            line = run.line()
            self._line = replace(line, environment={**line.environment, **run.variables})
            self._process = CellProcess(self._line, run.log, run.grace_s, cores=run.cores)
        except StudyError as error:  # the launcher is missing, or cannot be executed
            self._problem = str(error)

    def _record(self) -> RunRecord | None:
        return None if self.run.cell is None else record_in(self.run.out)

    @property
    def seconds(self) -> float:
        """For how long it has been running, without the time in which it waited for its turns."""
        return now() - self._began - self.run.held_s()

    def last_line(self) -> str:
        """Return the last line that it printed, "" before there is one."""
        if not self.run.log.exists():
            return ""
        lines = [line for line in _log_tail(self.run.log).splitlines() if line.strip() and not line.startswith("$ ")]
        return _ANY_TAG.sub("", lines[-1]).rstrip() if lines else ""  # without what launchers write before it

    def poll(self, wait_s: float, stop: Interruption) -> Attempt | None:
        """Wait for `wait_s` at most; return how it ended, None while it runs. Held: see `end`."""
        if self._process is None:
            return self.end(FAILED, self._problem)
        verdict = self.run.watch(self)
        self.exit_code = self._process.wait(wait_s if verdict is None else 0.0)
        if self.exit_code is not None:
            # A batch system signals the launcher at the same time.
            return self.end(*((stop.state, stop.state) if self.exit_code and stop.requested else ()))
        if verdict is None and stop.requested:
            verdict = self.run.watch(self) or (stop.state, stop.state)
        if verdict is not None:
            if self.run.checkpoint and verdict[0] != TAKEN_OVER:
                self._ask_to_stop(self._process)
            return self.end(*verdict)
        if self.seconds > self.run.timeout_s:
            # Of somebody else's script: its record begins with the second step.
            foreign = self.run.cell is not None and self.run.cell.config.workload.small is None
            seen = f"; no steps seen: {NO_STEPS}" if foreign and record_in(self.run.out) is None else ""
            return self.end(TIMED_OUT, f"timed out after {self.run.timeout_s:g} s{seen}")
        # A launcher that waits for hosts it does not reach goes on although the ranks have written that the run failed.
        if now() - self._looked >= 1.0 and self._failed_at == math.inf:
            self._looked, record = now(), self._record()
            if record is not None and record.status == FAILED:
                self._failed_at = now()
        return self.end() if now() - self._failed_at > 5.0 else None

    def end(self, state: str = "", reason: str = "", *, grace_s: float | None = None) -> Attempt:
        """End what is left of it, here and on its other hosts, and return how it ended.

        `state` and `reason`: why it is broken off, "" when it has ended by itself. Held: somebody trains in its run
        directory who is not of this attempt.
        """
        seconds = self.seconds
        unreached = self.abandon(grace_s=grace_s)
        record = None
        if self.run.cell is not None and state != TAKEN_OVER:
            require_free(self.run.out)
            record = self._settle(self.run.cell, state, reason)
        state, reason = self._outcome(record, state, reason)
        ended: dict[str, Any] = {"exit_code": self.exit_code, "log": self.run.log, "started": self.started}
        ended |= {"seconds": seconds, "unreached": unreached}
        said = "" if record is not None and state == "done" else self._said()
        return Attempt(state=state, reason=reason, record=record, said=said, **ended)

    def abandon(self, *, grace_s: float | None = None) -> str:
        """End its processes and leave its record alone; return in one line what could not be reached."""
        if self._process is None:
            return ""
        process, self._process = self._process, None
        process.end(self.run.grace_s if grace_s is None else grace_s)
        if self.exit_code == 0 or not self._line.remote:
            return ""
        line, marker = self._line, self._line.environment[MARKER]
        _, problem = stop_marked_on(line.remote, marker, grace_s=self.run.grace_s, allocation=line.allocation)
        if not problem:
            end_run_claim(self.run.out)
        return problem

    def _ask_to_stop(self, process: CellProcess) -> None:
        """Ask the trainer for a checkpoint and give it time to write one."""
        record, site = record_in(self.run.out), self.run.site
        if record is None or record.status != "running":
            return
        if record.host == platform.node():
            process.ask_to_stop(record.pid)
        elif name := next((host.name for host in site.hosts if _same_name(record.host, host.name)), ""):
            run_on(name, ("kill", "-USR1", str(record.pid)), timeout_s=10.0, allocation=site.allocation)
            process.give_grace()

    def _said(self) -> str:
        return failure_reason(_log_tail(self.run.log), self.exit_code) if self.run.log.exists() else ""

    def _settle(self, cell: Cell, state: str, problem: str) -> RunRecord | None:
        """Write into the record how a cell ended whose trainer could not do so itself, and return it."""
        out, record = self.run.out, record_in(self.run.out)
        # This attempt's; else it ended before it got that far.
        own = record if record is not None and len(record.attempts) > self._before else None

        def finish(record: RunRecord, status: str, reason: str) -> RunRecord:
            ended: dict[str, Any] = {"status": status, "finished": utc_now(), "totals": record.totals, "reason": reason}
            return records.finish_run(out, record, **ended)

        if record is not None and record.status == "done":
            wrong = misplaced(record, cell, self.run.site)
            return finish(record, FAILED, wrong) if wrong else record
        if own is not None and own.status == "stopped" and state not in (TIMED_OUT, PRUNED):
            return own
        if state not in ("", FAILED, TIMED_OUT):
            # Neither done nor failed: still "running" in the record, of a process that is gone, reads as incomplete.
            return record if own is None else finish(own, "stopped" if own.status == "stopped" else "running", problem)
        if own is not None and own.status == FAILED and not problem:
            if not is_follow_on(own.reason) and not own.reason.startswith(ENDED_WITH):
                return own
        reason = problem or self._said()
        told = not problem and told_to_end(reason, self.exit_code, begun=own is not None)
        if told and record is not None and records.checkpoint_paths(out):
            # By a signal that nobody told us of: what is there goes on from its newest checkpoint.
            return record if own is None else finish(own, "running", reason)
        if record is None:
            record = record_of(cell, self.started, reason, key=out.name)
            records.create_run(out, record)
        elif own is None:
            newest = records.checkpoint_paths(out)
            from_step = records.checkpoint_step(newest[0]) if newest else 0
            record = records.resume_run(out, record, from_step=from_step, began=self.started)
        return finish(record, FAILED, reason)

    def _outcome(self, record: RunRecord | None, state: str, problem: str) -> tuple[str, str]:
        """Return state and reason, from the record and from why it was broken off, if it was."""
        if record is None:
            if self.run.cell is None and not state:
                return ("failed", self._said()) if self.exit_code else ("done", "")
            return state or FAILED, problem
        if record.status == "done":
            return "done", ""
        reason = " ".join(record.reason.split())
        if record.status == "stopped" and state in ("", INTERRUPTED):
            return "stopped", reason
        if record.status == "running" and state == "":
            return INTERRUPTED, reason
        return state or record.status, reason


def record_in(out: Path) -> RunRecord | None:
    """Return the record in a run directory, None where there is none."""
    return records.read_run(out) if (out / records.MANIFEST).exists() else None


def require_launchers(cells: Iterable[Cell], launch: Launcher, sites: Mapping[Placement, Site] | None = None) -> None:
    """Raise what the launch of any cell would: a launcher that is missing is found before anything runs."""
    nowhere = Path("/nowhere/cell/run")
    for cell in {(cell.runtime, cell.placement): cell for cell in cells}.values():
        launch(cell, nowhere, nowhere, site=HERE if sites is None else sites[cell.placement])


def _log_tail(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 200_000))
        return stream.read().decode("utf-8", errors="replace")


def misplaced(record: RunRecord, cell: Cell, site: Site) -> str:
    """Return in one line how the hosts that the ranks had differ from the placement that was asked for, or "".

    Hosts may be known to ssh by other names than their own, so what is compared is how many ranks each had; names are
    compared where at least one of them is known. Nodes of a batch system that are all one machine (for tests) cannot be
    distinguished.
    """
    ranks = record.effective.get("ranks") or []
    if not site.hosts or not ranks:
        return ""
    counts = Counter(rank["host"] for rank in ranks)
    wanted = dict(zip((host.name for host in site.hosts), cell.placement.per_node, strict=False))
    known = [name for name in counts if any(_same_name(name, each) for each in wanted)]
    if site.allocation and not known:
        return ""
    if list(counts.values()) == list(cell.placement.per_node):
        if not known or all(_same_name(had, name) for had, name in zip(counts, wanted, strict=True)):
            return ""
    had, asked = (", ".join(f"{name}: {count}" for name, count in each.items()) for each in (counts, wanted))
    return f"its workers ran on other hosts than asked for: {had} instead of {asked}; check the launcher and the hosts"


def _same_name(one: str, other: str) -> bool:
    """Return whether two names of hosts are the same, with or without the domain; a number is no name."""
    one, other = one.rpartition("@")[2], other.rpartition("@")[2]
    for name in (one, other):
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return one == other
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


def record_of(cell: Cell, started: str, reason: str, *, key: str = "") -> RunRecord:
    """Return the record of a cell whose trainer wrote none: what was asked for stands in for what was in effect.

    `key`: the name of its run directory, where that is not the cell's own.
    """
    config, workers = cell.config, cell.placement.workers
    asked = dict(vars(config))
    reduction = "none" if workers == 1 else asked.get("reduction")
    if reduction == "auto":  # as the backends in comm/ decide
        reduction = "hooks" if CARRIED[cell.runtime][0].hooks else "flat"
    effective: dict[str, Any] = records.facts(config, "backend", "transport", "batch")
    effective |= {**records.facts(cell.placement, "workers", "nodes"), "global_batch": config.batch * workers}
    effective |= {"precision": asked.get("precision"), "reduction": reduction}
    effective["source"] = "as asked for; the run ended before it could tell"
    begun: dict[str, Any] = {"status": "failed", "started": started, "host": platform.node(), "pid": os.getpid()}
    named: dict[str, Any] = {"partition": cell.placement.partition, "key": key or cell.key, "reason": reason}
    named |= {"study": config.study, "repeat": config.repeat, "requested": {**asked, "workers": workers}}
    return RunRecord(**named, **begun, effective=effective, environment={})


Lane = Generator[RankRun | None, Any, None]  # Yields what is to be run next, None for nothing now; receives the Attempt

_WAKE_S = 0.25  # how soon Ctrl-C and a time limit are noticed


def sweep(lanes: Iterable[Lane], stop: Interruption) -> None:
    """Run until every lane is at its end, or none has anything to run, or `stop` is requested."""
    places: dict[Lane, Running | None] = dict.fromkeys(lanes)

    def go_on(lane: Lane, ended: Attempt | None = None, failure: Exception | None = None) -> None:
        """Let a lane go on until it wants something to be run, and start that; one that is at its end is left out."""
        places[lane] = None
        if not stop.requested or ended is not None or failure is not None:
            try:
                while (run := lane.send(ended) if failure is None else lane.throw(failure)) is not None:
                    if stop.requested:
                        break
                    try:
                        places[lane] = Running(run)
                        return
                    except Exception as error:
                        failure = error
                else:
                    return
            except StopIteration:
                pass
        lane.close()
        del places[lane]

    try:
        while True:
            for lane in [lane for lane, running in places.items() if running is None]:
                go_on(lane)
            busy = [(lane, running) for lane, running in places.items() if running is not None]
            if not busy:
                return
            for lane, running in busy:
                try:
                    ended = running.poll(_WAKE_S / len(busy), stop)
                except KeyboardInterrupt:  # a second Ctrl-C
                    stop.requested = True
                    ended = running.end(stop.state, stop.state, grace_s=0.0)
                except Exception as failure:
                    running.abandon()
                    go_on(lane, failure=failure)
                    continue
                if ended is not None:
                    go_on(lane, ended)
    finally:  # because something else went wrong
        for lane, left in places.items():
            if left is not None:
                ended = left.end(stop.state, stop.state)
                with suppress(StopIteration):
                    lane.send(ended)
            lane.close()


def attempt(run: RankRun, stop: Interruption) -> Attempt:
    """Run one thing alone and return how it ended; KeyboardInterrupt: after a request to stop."""
    ended: list[Attempt] = []

    def lane() -> Lane:
        ended.append((yield run))

    sweep([lane()], stop)
    if stop.requested:
        raise KeyboardInterrupt
    return ended[0]


_TAG = re.compile(r"^(?:\[\d+(?:,\d+)?\]<(?:stdout|stderr)>:|\[rank\d+\]:) ?")  # mpirun, horovodrun; torchrun
_ANY_TAG = re.compile(r"\[\d+(?:,\d+)?\](?:<\w+>)?: ?")
_USER_ERROR = re.compile(r"^(?:[\w.-]+(?: \w+)?: )?error: (?P<text>.+)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FOLLOW_ON = re.compile(  # of a worker that lost its peer or was told to end, and of a launcher that lost a worker
    r"HorovodInternalError|Horovod has been shut down|Horovod detected that one or more|ChildFailedError"
    rf"|(?:closed|reset) by peer|Broken pipe|ended by signal 15|{UNNAMED}"
)
_LOST_RANK = re.compile(  # said by another rank
    rf"^rank (?P<rank>\d+) on .* (?:ha(?:s|ve) died or left during step |.*(?P<unnamed>{UNNAMED}))"
)
_RULE = re.compile(r"^[-=*]{20,}$")
_KILLED = (  # rank and signal; a shell adds 128 to the signal
    re.compile(r"process rank (?P<rank>\d+) .*exited on signal (?P<signal>\d+)"),  # mpirun
    re.compile(r"^Process (?P<rank>\d+) exit with status code (?P<shell>1[2-9]\d)\b", re.M),  # horovodrun --gloo
    re.compile(r"^ *rank +: (?P<rank>\d+) .*\n *exitcode +: -(?P<signal>\d+)", re.M),  # torchrun
    re.compile(r"^srun: error: \S+: task (?P<rank>\d+): (?P<named>Killed|Aborted|Segmentation fault|Bus error)", re.M),
)
_NAMED = {"Killed": 9, "Aborted": 6, "Segmentation fault": 11, "Bus error": 7}
_OF_SRUN = re.compile(  # how tasks ended; why, they have said themselves
    r"^(?:srun: error: \S+: tasks? \d|(?:slurmstepd\S*|srun): error: \*\*\* STEP \S+ ON \S+ CANCELLED)"
)
_FIRST = re.compile(r"^Terminating remaining workers after failure of Process (?P<rank>\d+)\.", re.M)
"""Said by horovodrun --gloo, which kills the others then."""
_OURS = ("$ ", "horovod-study record: ")  # Begins what is in a log beside the output of what was started
_OF_SSH = 255  # ssh ends with when the program over there was killed, or the connection broke
_ASKED = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)


def failure_reason(log: str, exit_code: int | None) -> str:
    """Return the one line of `log` that says most about why the run ended, with how it ended when that adds something.

    In this order: the message of a user error; the end of the first traceback that is not about a lost peer; the line
    in which another rank names the one that died, with the signal that killed it; a worker killed by a signal; the
    launcher itself (or a run without one) killed by a signal; what a launcher says between its rules; any other
    traceback; the last line.
    """
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", log) if not line.startswith(_OURS)]
    # torchrun's ranks say what they say without a tag, PyTorch in them with one.
    workers = [_TAG.sub("", line) for line in lines if _TAG.match(line) and not line.startswith("[rank")]
    lost: re.Match[str] | None = None
    for line in workers or lines:
        if (match := _USER_ERROR.match(line)) and not _OF_SRUN.match(line):
            if named := _LOST_RANK.match(match["text"]):
                lost = lost or named  # what that rank itself has said is better
            elif not is_follow_on(line):
                return _one_line(match["text"])
    ended = _ended(exit_code)
    tracebacks = list(_tracebacks(lines))
    for line in tracebacks:
        if not is_follow_on(line):
            return _one_line(f"{line} ({ended})")
    whole = "\n".join(lines)
    first = match["rank"] if (match := _FIRST.search(whole)) else None
    for pattern in _KILLED:
        if match := next((each for each in pattern.finditer(whole) if first in (None, each["rank"])), None):
            found = match.groupdict()
            number = int(found.get("signal", 0)) or _NAMED.get(found.get("named", "")) or int(found["shell"]) - 128
            if lost and lost["rank"] == found["rank"]:
                return _one_line(f"{lost.string} (it was killed by {_signal_name(number)})")
            if not lost or (lost["unnamed"] and number != signal.SIGTERM):
                return f"rank {found['rank']} was killed by {_signal_name(number)}"
    if lost and not lost["unnamed"]:
        return _one_line(lost.string)
    if first is not None and f"\nProcess {first} exit with status code {_OF_SSH}." in f"\n{whole}":
        return f"rank {first} was killed on its host, or the connection to it broke (exit code {_OF_SSH} of ssh)"
    if lost:
        ranks = named_ranks("\n".join(_TAG.sub("", line) for line in lines))
        missing = f"rank {', '.join(map(str, ranks))} is missing, as the library has printed: " if ranks else ""
        return _one_line(missing + lost.string)
    said = [line for line in workers or lines if line.strip() and not _RULE.match(line)]
    if exit_code is not None and exit_code < 0:
        return _one_line(f"{ended}; the last line was: {said[-1]}" if said else f"{ended}, having printed nothing")
    for candidate in (*list(_paragraphs(lines))[:1], *tracebacks[-1:], *said[-1:]):
        return _one_line(f"{candidate} ({ended})")
    return f"{ended}, having printed nothing"


def is_follow_on(reason: str) -> bool:
    """Return whether `reason` only says that something else had gone wrong before."""
    return _FOLLOW_ON.search(reason) is not None


def told_to_end(reason: str, exit_code: int | None, *, begun: bool) -> bool:
    """Return whether a signal ended a run from outside, which says nothing against its going on.

    `begun`: it trained, and SIGKILL, which a lack of memory also sends, counts as a failure.
    """
    code = exit_code or 0
    number = -code if code < 0 else code - 128
    numbers = _ASKED if begun else (*_ASKED, signal.SIGKILL)
    return number in numbers or any(re.search(rf"\b{signal.Signals(each).name}\b", reason) for each in numbers)


def _tracebacks(lines: list[str]) -> Iterator[str]:
    """Yield the last line of every chain of tracebacks, ranks kept apart, in the order in which they end."""
    inside: dict[str, bool] = {}
    final: dict[str, str] = {}
    for line in lines:
        match = _TAG.match(line)
        tag = match[0] if match else ""
        text = line[len(tag) :]
        if text.startswith("Traceback (most recent call last)"):
            if not inside.get(tag) and tag in final:
                yield final.pop(tag)
            inside[tag] = True
        elif text.startswith(_CHAINED):
            final.pop(tag, None)
            inside[tag] = True
        elif inside.get(tag) and text.strip() and not text[0].isspace():
            final[tag], inside[tag] = text, False
    yield from final.values()


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield the first paragraph of every message that a launcher put between rules, its own summaries left out."""
    block: list[str] | None = None
    for line in lines:
        if not _RULE.match(line):
            if block is not None and line.strip():
                block.append(line.strip())
            continue
        text = " ".join(block or ())
        if text and not re.search(r"Primary job +terminated normally|exited on signal|non-zero status", text):
            yield text
        block = [] if block is None else None


def _ended(exit_code: int | None) -> str:
    if exit_code is None or exit_code < 0:
        return "it was stopped" if exit_code is None else f"ended by {_signal_name(-exit_code)}"
    return f"exit code {exit_code}" if exit_code else "exit code 0 without a finished record"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"


def _one_line(text: str) -> str:
    return cut(" ".join(text.split()), 300)
