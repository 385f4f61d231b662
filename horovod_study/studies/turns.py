"""Turns: the cells of a block train one at a time, in slices of some tenths of a second, and all others wait.

Cells that are run one after the other are measured minutes apart, and what the machine does meanwhile goes into every
ratio of two of them. Here they are started once and then alternate: in every round each of them trains one slice, in
random order, so that the slices of a round have the same machine. docs/studies.md says how it goes;
recording/rank/turns.py has the protocol, and says why the wait changes nothing of what a run records.
"""

import math
import os
import random
import secrets
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import psutil

from horovod_study.analysis.paired import OTHER_LOAD, Precision, RatioEstimate, RatioVerdict, Slice
from horovod_study.analysis.stats import MIN_REPEATS, median_ratio
from horovod_study.cluster.process import Holding, used_s
from horovod_study.config.partitions import gpus_here
from horovod_study.config.run import Cell
from horovod_study.config.workload import Configuration
from horovod_study.errors import RecordError
from horovod_study.measure.clock import now, sleep
from horovod_study.measure.environment import busy_s
from horovod_study.recording.rank.turns import TURNS, Channel
from horovod_study.records import TurnSlice, read_run, read_turns
from horovod_study.studies.attempt import Interruption, RankRun, Running, Verdict, record_in
from horovod_study.studies.study_file import StudyCells
from horovod_study.text.progress import duration

SLICE_S = (0.25, 0.5)
_SWITCH_SHARE = 0.05
WARM_S = 1.0
LEAD_S = 0.015
STARTS = 2  # a process that starts has one thread and waits for files, so two of them take less than one by one
_BREATH_EVERY_S = 10.0
"""After so long a wait the processes of a cell go on for _BREATH_S: what they have agreed with others to show now and
then, such as that they live, has time limits of some tens of seconds."""
_BREATH_S = 0.02
QUIET_WAIT_S, PATIENCE, _IN_VAIN = 2.0, 4.0, 0.25
"""A slice that other programs have disturbed is made again when they leave the machine alone. All cells wait for that,
in a launch for so many seconds, and so many more for each second of quiet slices and of disturbed ones: a machine that
is quiet for a fifth of the time has quiet rounds, and one that never is costs a quarter more."""
_RECENT = 5  # slices from which the next one's length is found
_LOAD_S = 0.1  # the system counts processor time in hundredths of a second

Policy = Callable[[Sequence[TurnSlice], Mapping[str, bool]], Collection[str]]
"""Is asked after every round: given all slices so far, and for each run that is left whether it has made what it was
asked for (`run: seconds` or `steps`), it returns the runs that need more; the others are ended."""


def until_asked_for(slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
    """Return the runs that have not made yet what they were asked for."""
    return [run for run, enough in left.items() if not enough]


def until_all_have(slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
    """Return all runs until each has made what it was asked for, and three rounds: then they end together."""
    enough = all(left.values()) and bool(slices) and slices[-1].round >= 2
    return () if enough or len(left) < 2 else list(left)


WORKER_MB = 800
"""What a worker is taken to need in memory before one has run: PyTorch, a library of communication, and some data."""
SPARE = 1.25  # What is kept free for each worker, as a multiple of what others like it have needed


class AlternatingCells(NamedTuple):
    """Cells of a study that are run in turns, or one after the other where `block` is ""; `why`: by key, then."""

    cells: tuple[Cell, ...]
    block: str = ""
    why: Mapping[str, str] = MappingProxyType({})


def _cannot_wait(config: Configuration, *, gpus: int) -> str:
    if gpus:
        return "all cells of a block would need the memory of the GPUs at the same time"
    return "" if config.workload.waits else f"workload {config.workload.name} cannot wait between two steps"


def apart_because(cells: Sequence[Cell], *, worker_mb: float | None = None) -> str:
    """Return why cells of this machine cannot alternate with each other, "" where they can.

    `worker_mb`: what a worker needs in memory, where it is known.
    """
    config, workers = cells[0].config, sum(cell.placement.workers for cell in cells)
    if why := _cannot_wait(config, gpus=0 if vars(config).get("device") == "cpu" else gpus_here()):
        return why
    if workers <= workers_that_fit(worker_mb):
        return ""
    needed, free = workers * (worker_mb or WORKER_MB), psutil.virtual_memory().available / 1e6
    return f"{workers} workers together need {needed:,.0f} MB of memory, and {free:,.0f} MB are free"


def worker_mb(directory: Path) -> float | None:
    """Return what a worker of a study needs in memory, from the newest runs in its folder; None where none is done.

    That of runs of the study itself, else of its smoke tests, which have less data.
    """
    for pattern in ("*/run.json", ".smoke/*/run.json"):
        found = [0.0]
        for path in sorted(directory.glob(pattern), key=lambda path: path.stat().st_mtime)[:-21:-1]:
            with suppress(RecordError, OSError):
                totals = read_run(path.parent).totals
                found.append(totals.get("pss_mb_max") or totals.get("rss_mb_max") or 0.0)
        if any(found):
            return SPARE * max(found)
    return None


def workers_that_fit(each_mb: float | None) -> float:
    """Return how many workers that need `each_mb` (None: WORKER_MB) fit into the memory that is free now."""
    return psutil.virtual_memory().available / 1e6 / (each_mb or WORKER_MB)


def groups(
    sweep: StudyCells, cells: Sequence[Cell], here: Callable[[Cell], bool], *, each_mb: float | None = None
) -> list[AlternatingCells]:
    """Return how `cells`, in their order, are run: those of a repeat in turns, as many as fit into memory together.

    `here`: whether a cell runs on this machine. `each_mb`: what a worker needs; None: WORKER_MB. The same cells come
    into the same blocks in every repeat. What cannot alternate, or is alone in its block, follows one after the other.
    Of a comparison each pair is a block.
    """
    if not sweep.turns:
        return [AlternatingCells(tuple(cells))]
    room = workers_that_fit(each_mb)
    parts: list[AlternatingCells] = []
    repeat = lambda cell: (cell.config.repeat, f"-{cell.placement.workers}w" if cell.arm else "")  # noqa: E731
    for (_, pair), block in groupby(cells, key=repeat):
        # The small cells first; one that is larger than the room has its own.
        rest: dict[Cell, str] = {}
        boxes: dict[str, list[list[Cell]]] = {}
        for cell in sorted(block, key=lambda cell: cell.placement.workers):
            partition, workers = sweep.partition_of(cell), cell.placement.workers
            elsewhere = not here(cell) or partition.scheduler != "local"
            why = "it runs on other hosts than this machine" if elsewhere else ""
            if why := why or _cannot_wait(cell.config, gpus=partition.gpus_per_node):
                rest[cell] = why
                continue
            of_partition = boxes.setdefault(partition.name, [[]])
            if of_partition[-1] and sum(each.placement.workers for each in of_partition[-1]) + workers > room:
                of_partition.append([])
            of_partition[-1].append(cell)
        for name, of_partition in boxes.items():
            for number, box in enumerate(of_partition, 1):
                if len(box) > 1:
                    parts.append(AlternatingCells(tuple(box), f"{name}{pair}" if number == 1 else f"{name}-{number}"))
                else:
                    rest[box[0]] = "no other cell of its repeat fits into memory with it, or alternates"
        if rest:
            parts.append(AlternatingCells(tuple(rest), why={cell.key: why for cell, why in rest.items()}))
    return parts


def sees_steps(sweep: StudyCells) -> bool:
    """Return whether the cells can wait between steps: of a command, whether a step was ever seen in it."""
    if not any(cell.config.workload.starts_ranks for cell in sweep.cells[:1]):
        return True
    return any(any(sweep.directory.glob(f"{each}/steps-*")) for each in ("*", ".smoke/*"))


def alternating(sweep: StudyCells, cells: Sequence[Cell]) -> tuple[list[AlternatingCells], dict[str, str]]:
    """Return the blocks of `cells` that will alternate here, and why the others do not, by key; both empty without."""
    if sweep.turns and sweep.directory.exists() and not sees_steps(sweep):
        return [], {cell.key: "no step was seen in its command" for cell in cells}
    parts = groups(sweep, cells, lambda cell: True, each_mb=worker_mb(sweep.directory) if sweep.turns else None)
    return [part for part in parts if part.block], {key: why for part in parts for key, why in part.why.items()}


@dataclass(kw_only=True)
class _Cell:
    """One cell, as far as its ranks have told."""

    run: str
    token: str
    state: str = "ahead"  # -> starting -> turns -> leaving -> over
    workers: int = 0  # 0: no rank has come yet
    local: set[int] = field(default_factory=set)  # ranks on this machine, by process
    channels: dict[int, Channel] = field(default_factory=dict)  # by rank
    reports: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # of ranks that wait now
    before: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # what these had reported last
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    granted: int = 0  # steps of the latest grant
    held: list[int] = field(default_factory=list)  # processes that are stopped
    held_since: float | None = None
    held_s: float = 0.0
    breath: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether all its ranks wait for steps."""
        return 0 < self.workers == len(self.reports)

    def all(self, name: str) -> bool:
        return all(bool(report.get(name)) for report in self.reports.values())

    def more(self, name: str) -> list[Any]:
        """Return what each of its ranks has made of something since it reported before."""
        return [report[name] - self.before[rank][name] for rank, report in self.reports.items()]

    def steps(self) -> int:
        """Return how many steps it has made."""
        return max(int(report["steps"]) for report in self.reports.values())

    def least(self) -> float:
        """Return how many steps were asked for; inf where no number was."""
        return min(report["least"] or math.inf for report in self.reports.values())


class _Closed(Exception):
    """Nobody wants turns any more."""


@dataclass(eq=False)
class Conductor:
    """Gives turns to cells that are started together, from a thread of its own that is blocked while a slice lasts.

    The thread that starts the cells asks `may_start`, gives them `environment`, and tells of each that has `ended`.
    """

    runs: Iterable[str]  # their names, in the order of their start
    _: KW_ONLY
    block: str = ""
    launch: int = 0  # how often cells of this block were started before
    seed: int = 1
    policy: Policy = until_asked_for
    equal_steps: bool = False  # cells that end together go on, in no slice, to the steps of the one that has made most
    least_steps: int = 1  # of a slice, however long they take
    cores: Sequence[int] = ()  # of this machine, on which others are looked at
    end_alone: bool = False  # what cells do after their steps is measured too, and one does it after the other
    failure: Exception | None = None  # what has ended it before its time

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.seed} {self.block} {self.launch}")
        self._cells = {run: _Cell(run=run, token=secrets.token_hex(16)) for run in self.runs}
        self.slices: list[TurnSlice] = []
        self._switches: deque[float] = deque(maxlen=4 * _RECENT)
        self._lock = threading.Lock()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(4096))
        self._holding = Holding()
        self._zero = self._since = now()
        self._waited_s = 0.0  # for other programs
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Dismiss all cells and end the thread."""
        self._closing = True
        self.dismiss()
        if self._thread.ident is not None:
            self._thread.join()
        left: list[Any] = [channel for cell in self._cells.values() for channel in cell.channels.values()]
        for each in (*left, self._selector, self._listener, self._waker, self._woken, self._holding):
            each.close()

    def may_start(self, run: str) -> bool:
        """Return whether it is time to start a cell: those before it have begun, all but STARTS - 1 at their places."""
        coming = 0
        for cell in self._cells.values():
            if cell.run == run:
                return coming < STARTS
            if cell.state == "ahead":
                return False
            coming += cell.state not in ("turns", "over")
        raise KeyError(run)

    def environment(self, run: str) -> dict[str, str]:
        """Return what the ranks of a cell that is started now are told, as variables of their environment."""
        self._cells[run].state = "starting"
        self._wake()
        return {TURNS: f"127.0.0.1:{self._listener.getsockname()[1]}:{self._cells[run].token}"}

    def with_turns(self, run: RankRun, name: str, stop: Interruption) -> RankRun:
        """Return a run whose ranks know where to ask for turns; who is to be ended is told to go on before."""

        def watch(running: Running) -> Verdict | None:
            verdict = run.watch(running)
            if stop.requested:
                self.dismiss()
            elif verdict is not None:
                self.dismiss(name)
            return verdict

        variables = {**run.variables, **self.environment(name)}
        return replace(run, variables=variables, held_s=partial(self.held_s, name), watch=watch)

    def ended(self, run: str) -> None:
        """Note that the processes of a cell are gone, or that it is not started at all."""
        self._cells[run].state = "over"
        self._wake()

    def held_s(self, run: str) -> float:
        """Return for how many seconds a cell has waited for its turns so far; no time limit counts them."""
        cell = self._cells[run]
        since = cell.held_since
        return cell.held_s + (0.0 if since is None else now() - since)

    def left(self) -> list[str]:
        """Return the runs that are started and not over."""
        return [cell.run for cell in self._cells.values() if cell.state not in ("ahead", "over")]

    @property
    def rounds(self) -> int:
        """The number of rounds that have begun."""
        return self.slices[-1].round + 1 if self.slices else 0

    def slices_of(self, run: str) -> list[TurnSlice]:
        """Return the slices of one run so far."""
        return [each for each in self.slices if each.run == run]

    def dismiss(self, *runs: str) -> None:
        """Let cells go on so that they can end: those named, or all. Their connections are closed, and they stop."""
        with self._lock:
            for cell in [self._cells[run] for run in runs] if runs else self._cells.values():
                if cell.state in ("starting", "turns"):
                    cell.state = "leaving"
                self._continue(cell)
                for channel in list(cell.channels.values()):  # which the other thread may change
                    with suppress(OSError):  # not closed: the other thread may be waiting for it
                        channel.stream.shutdown(socket.SHUT_RDWR)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b".")

    def _run(self) -> None:
        try:
            for cell in self._cells.values():
                self._bring_up(cell)
            self._zero = now()
            self.give_turns()
            self._end(self._cells.values())
        except _Closed:
            pass
        except Exception as error:
            self.failure = error
            self.dismiss()

    def give_turns(self) -> None:
        """Make rounds until no cell needs more."""
        number = 0
        # A start can be all of a short run: not a step more.
        if self.equal_steps and self.policy is until_asked_for:
            self._end([cell for cell in self._cells.values() if cell.state == "turns" and cell.all("enough")])
        while left := [cell for cell in self._cells.values() if cell.state == "turns"]:
            self._random.shuffle(left)
            for position, cell in enumerate(left):
                self._give(cell, number, position)
                while self._is_to_repeat(cell, number):
                    self._give(cell, number, position)
            number += 1
            there = {cell.run: cell.all("enough") for cell in left if cell.state == "turns"}
            wanted = self.policy(self.slices, there) if there else ()
            ending = [cell for cell in left if cell.run not in wanted]
            if self.equal_steps:
                self._level(ending)
            self._end(ending)

    def _is_to_repeat(self, cell: _Cell, number: int) -> bool:
        """Return whether a cell makes its slice of this round again, after other programs were at work in it.

        All cells wait, stopped, until no other program is. Not for too long, and not of a cell that has made the steps
        it was asked for: it makes none beyond them.
        """
        last, seconds = self.slices[-1] if self.slices else None, {True: 0.0, False: 0.0}
        if last is None or (last.run, last.round) != (cell.run, number) or cell.state != "turns":
            return False
        if (last.other_load or 0.0) <= OTHER_LOAD or cell.steps() >= cell.least():
            return False
        for each in self.slices:
            seconds[(each.other_load or 0.0) > OTHER_LOAD] += each.end_s - each.begin_s
        allowed_s = QUIET_WAIT_S + PATIENCE * seconds[False] + _IN_VAIN * seconds[True]
        while self._waited_s < allowed_s and cell.state == "turns":
            self._since, before = now(), busy_s(self.cores)
            self._wait(lambda: now() - self._since >= 2 * _LOAD_S, every_s=_LOAD_S)
            over_s, after = now() - self._since, busy_s(self.cores)
            self._waited_s += over_s
            if before is None or after is None or (after - before) / over_s <= OTHER_LOAD:
                return cell.state == "turns"
        return False

    def _level(self, cells: Sequence[_Cell]) -> None:
        """Let cells make as many steps as that of them which has made most."""
        made = {cell.run: cell.steps() for cell in cells if cell.ready}
        for cell in cells:
            if cell.state == "turns" and made.get(cell.run, math.inf) < (most := max(made.values())):
                with self._lock:
                    self._continue(cell)
                self._train(cell, until=most)
                if cell.state == "turns":
                    self._hold(cell)
                self._see_off(cell)

    def _bring_up(self, cell: _Cell) -> None:
        """Wait for the start of a cell, and let it make its warm-up."""
        self._wait(lambda: cell.state != "ahead")
        self._wait(lambda: cell.ready or cell.state != "starting")
        trained_s = 0.0
        while cell.state == "starting" and not cell.all("enough"):
            # Of a short run that is compared at most about a quarter is warm-up.
            short = self.equal_steps and cell.reports[0]["steps"] >= cell.least() / 4
            if cell.all("warm") and (short or trained_s >= WARM_S):
                break
            trained_s += self._train(cell)
        if cell.state == "starting":
            self._hold(cell)
            cell.state = "turns"
        self._see_off(cell)

    def _give(self, cell: _Cell, number: int, position: int, *, slice_s: float | None = None) -> None:
        """Give a cell one turn of about `slice_s`, if it is not to be the usual one, and write down what it made."""
        if cell.state != "turns":
            return
        numbers = cell.held
        began, before = now(), (busy_s(self.cores), used_s(numbers))
        with self._lock:
            self._continue(cell, in_place=True)
        # Its first steps, in no slice, are on caches that others have filled; not where one of them would be a large
        # part of a slice, as it then is slower by a small part only, nor where the steps that were asked for end.
        steps = round(LEAD_S / median(cell.step_s)) if cell.step_s and median(cell.step_s) > 0 else 0
        there = cell.steps()
        lead_s = self._train(cell, until=there + steps) if steps and there + steps < cell.least() else 0.0
        took_s = self._train(cell, slice_s) if cell.state == "turns" else 0.0
        ended = now()
        if cell.state == "turns":
            self._hold(cell)
            over_s = now() - began
            # Processor seconds of all programs, less those of this cell; unknown where one of them is.
            after = busy_s(self.cores), used_s(numbers)
            more = [new - old for old, new in zip(before, after, strict=True) if old is not None and new is not None]
            others_s = max(0.0, more[0] - more[1]) if len(more) == 2 else None
            self._switches.append(over_s - lead_s - took_s)
            load = None if others_s is None or over_s < _LOAD_S or not self.cores else others_s / over_s
            who: dict[str, Any] = {"block": self.block, "launch": self.launch, "run": cell.run}
            who |= {"round": number, "position": position, "steps": min(cell.more("steps"))}
            who |= {"begin_s": ended - self._zero - took_s, "end_s": ended - self._zero}
            made = TurnSlice(**who, samples=sum(cell.more("samples")), other_load=load)
            if made.steps >= cell.granted / 2 and took_s > 0:  # else the end of what was asked for has cut it short
                self.slices.append(made)
        self._see_off(cell)

    def _train(self, cell: _Cell, slice_s: float | None = None, *, until: int | None = None) -> float:
        """Grant a cell that is ready one slice and wait until all its ranks have made it; return its seconds.

        `until`: so many steps in place of a slice.
        """
        usual_s = min(max(median(self._switches or [0.0]) / _SWITCH_SHARE, SLICE_S[0]), SLICE_S[1])
        if cell.step_s:  # at first few, then twice as many at most
            steps = round((usual_s if slice_s is None else slice_s) / max(median(cell.step_s), 1e-7))
            most = math.inf if len(cell.step_s) == _RECENT else 2 * cell.granted
            cell.granted = int(max(self.least_steps, min(steps, most)))
        else:
            cell.granted = 1
        made, least = cell.steps(), cell.least()
        cell.before, cell.reports = cell.reports, {}
        # What was asked for in steps is made to the step, so that a run in turns ends where one without them does.
        if until is None:
            until = made + cell.granted if made >= least else int(min(made + cell.granted, least))
        self._say(cell, cell.before, {"until": until})
        self._holding.spread()
        state = cell.state
        self._wait(lambda: cell.ready or cell.state != state)
        if not cell.ready:
            return 0.0
        took_s: float = max(cell.more("trained_s"))
        if until - made == cell.granted:
            cell.step_s.append(took_s / cell.granted)
        return took_s

    def _end(self, cells: Collection[_Cell]) -> None:
        """Tell cells to end, and wait until they have: side by side, or one by one where more of them is measured."""
        for some in [[cell] for cell in cells] if self.end_alone else [cells]:
            for cell in some:
                if cell.state == "turns":
                    with self._lock:
                        self._continue(cell)
                    cell.state = "leaving"
                    self._say(cell, list(cell.reports), {"end": True})
            for cell in some:
                self._see_off(cell)

    def _see_off(self, cell: _Cell) -> None:
        """Wait until a cell that leaves is over: nobody trains beside it."""
        if cell.state == "leaving":
            self._wait(lambda: cell.state == "over")

    def _say(self, cell: _Cell, ranks: Iterable[int], message: Mapping[str, Any]) -> None:
        for rank in list(ranks):
            if rank in cell.channels:
                with suppress(OSError):  # that it is gone is heard from its channel, too
                    cell.channels[rank].send(message)

    def _hold(self, cell: _Cell) -> None:
        """Stop the processes of a cell whose ranks wait."""
        with self._lock:
            if cell.state in ("starting", "turns") and not self._closing:
                cell.held = self._holding.with_children(cell.local)
                cell.held_since = cell.breath = now()
                self._holding.stop(cell.held)

    def _continue(self, cell: _Cell, *, in_place: bool = False) -> None:
        told = cell.reports.values() if in_place else ()
        self._holding.go_on(cell.held, {thread: core for each in told for thread, core in each["threads"].items()})
        if cell.held_since is not None:
            cell.held_s += now() - cell.held_since
            cell.held_since = None

    def _wait(self, until: Callable[[], bool], *, every_s: float = _BREATH_EVERY_S) -> None:
        """Listen until something is so, which is asked at least `every_s`; _Closed: nobody wants to know any more."""
        while not until():
            if self._closing:
                raise _Closed
            for key, _ in self._selector.select(every_s):
                key.data()
            for cell in self._cells.values():
                if cell.held_since is None or now() - cell.breath < _BREATH_EVERY_S:
                    continue
                self._holding.go_on(cell.held)
                sleep(_BREATH_S)
                with self._lock:
                    if cell.held_since is not None:
                        self._holding.stop(cell.held)
                        cell.breath = now()

    def _accept(self) -> None:
        stream, _ = self._listener.accept()
        channel = Channel(stream)
        self._selector.register(stream, selectors.EVENT_READ, lambda: self._greet(channel))

    def _greet(self, channel: Channel) -> None:
        """Read who has connected; whoever knows no token of a cell that is being started is turned away."""
        self._selector.unregister(channel.stream)
        try:
            first, *more = channel.receive()
            cell = next(each for each in self._cells.values() if each.token == first["token"])
            rank, workers, pid, host = int(first["rank"]), int(first["workers"]), int(first["pid"]), str(first["host"])
            if cell.state != "starting" or rank in cell.channels or not 0 <= rank < workers:
                raise ValueError
        except (EOFError, OSError, LookupError, TypeError, ValueError, StopIteration):
            channel.close()
            return
        cell.workers, cell.channels[rank] = workers, channel
        if host == os.uname().nodename:
            cell.local.add(pid)
        self._selector.register(channel.stream, selectors.EVENT_READ, lambda: self._hear(cell, rank))
        self._note(cell, rank, more)

    def _hear(self, cell: _Cell, rank: int) -> None:
        channel = cell.channels[rank]
        try:
            self._note(cell, rank, channel.receive())
        except (EOFError, OSError, LookupError, TypeError, ValueError, AttributeError):
            self._selector.unregister(channel.stream)
            channel.close()
            del cell.channels[rank]
            with self._lock:
                self._continue(cell)
            if cell.state in ("starting", "turns"):  # it ends by itself, or a rank of it is gone
                cell.state = "leaving"
            self._say(cell, list(cell.reports), {"until": None})

    def _note(self, cell: _Cell, rank: int, messages: Sequence[Mapping[str, Any]]) -> None:
        """Keep what a rank reports. LookupError, TypeError, ValueError: that is no report."""
        for message in messages:
            kinds = {"steps": int, "samples": int, "trained_s": float, "warm": bool, "enough": bool}
            report: dict[str, Any] = {name: kind(message[name]) for name, kind in kinds.items()}
            report["least"] = None if message["least"] is None else int(message["least"])
            report["threads"] = {int(thread): int(core) for thread, core in message.get("threads", {}).items()}
            cell.reports[rank] = report
            if cell.state == "leaving":  # the others of its ranks make no turns any more
                self._say(cell, [rank], {"until": None})


def rates(slices: Iterable[TurnSlice], cells: Mapping[str, str]) -> list[Slice]:
    """Return slices as `analysis.paired` compares them; `cells` names the cell of each run, others are left out."""
    found = []
    for each in (each for each in slices if each.run in cells and each.samples > 0):
        rate, load = each.samples / (each.end_s - each.begin_s), each.other_load
        launch, load = f"{each.block}/{each.launch:03d}", math.nan if load is None else load
        found.append(Slice(launch=launch, round=each.round, cell=cells[each.run], rate=rate, other_load=load))
    return found


class Aim:
    """Ratios that are wanted in a sweep and how far they are; is asked as the policy of turns."""

    def __init__(self, sweep: StudyCells, slices: Iterable[TurnSlice] = ()) -> None:
        """`slices`: of launches before. Nothing more is needed after the hours of the sweep's budget, from now on."""
        self.precision = Precision(half_width=sweep.precision or 0.02)
        self.wanted = sweep.wanted
        self._labels = {cell.key: cell.label for cell in sweep.cells}  # run -> cell
        # Where seconds were asked for, the aim says how long a launch is.
        self._timed = {cell.label for cell in sweep.cells if cell.config.seconds is not None}
        self._until = now() + 3600 * sweep.budget.get("hours", math.inf)
        self._round_s = math.nan
        self.take(slices)

    def look(self, sweep: StudyCells) -> Self:
        """Take what all runs of a sweep have come to."""
        slices = read_turns(sweep.directory)
        self.take(slices, runs_alone(sweep, slices))
        return self

    def take(self, slices: Iterable[TurnSlice], alone: Mapping[str, Sequence[float]] | None = None) -> None:
        """Take the slices of all launches that have ended, and `alone`, what `runs_alone` says of the other runs."""
        self.before, self._alone = list(slices), alone or {}
        self._verdicts = self._judged(self.before)

    @property
    def over(self) -> bool:
        """Whether the hours of the budget are used up."""
        return now() >= self._until

    def __call__(self, slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
        """Return the runs of the present launch that need more turns: the policy of a conductor.

        A run needs more until the launch is long enough for each ratio that it is in, and until it has made what it was
        asked for, if that were not seconds; when the budget is used up nobody does.
        """
        if self.over:
            return ()
        self._verdicts = self._judged([*self.before, *slices])
        present = {self._labels[run] for run in left if run in self._labels}
        judged = {pair: verdict.launch_done for pair, verdict in self._verdicts.items() if present.issuperset(pair)}
        needed = {name for pair, enough in judged.items() if not enough for name in pair}
        done = {name for pair in judged for name in pair} & self._timed - needed
        of = self._labels
        return [run for run, enough in left.items() if of.get(run) in needed or not (enough or of.get(run) in done)]

    def needed(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return those of `cells`, of one launch, whose ratios are not resolved; none after the budget is used up."""
        if self.over and self.before:
            return []
        open_ones, paired_ones = ({name for pair in pairs for name in pair} for pairs in (self.open(), self.wanted))
        # A cell that is in no ratio is run as often as the aim takes launches at least.
        least, of = self.precision.launches, self._labels
        lone = {cell.key for cell in cells if of[cell.key] not in paired_ones and cell.config.repeat < least}
        return [cell for cell in cells if of[cell.key] in open_ones or cell.key in lone]

    def open(self) -> list[tuple[str, str]]:
        """Return the wanted ratios that are not resolved."""
        return [pair for pair in self.wanted if pair not in self._verdicts or not self._verdicts[pair].resolved]

    def progress(self) -> str:
        """Return the widest interval against the aim, in a few words."""
        widths = [each.estimate.half_width for each in self._verdicts.values() if each.estimate is not None]
        aim = f"aim {100 * self.precision.half_width:.3g} %"
        return f"+- {100 * max(widths):.2g} % at most, {aim}" if widths and all(map(math.isfinite, widths)) else aim

    def lines(self) -> list[str]:
        """Return a line for each wanted ratio: its interval, and what is left to do where it is not resolved."""
        aim, found = f"+- {100 * self.precision.half_width:.3g} %", []
        for cell, base in self.wanted:
            verdict = self._verdicts.get((cell, base))
            if verdict is None or (known := verdict.estimate) is None:
                found.append(f"{cell} / {base}: not measured in turns")
                continue
            ratio = f"{known.ratio.value:.3f} [{known.ratio.low:.3f}, {known.ratio.high:.3f}]"
            said = f"{cell} / {base}: {ratio}, +- {100 * known.half_width:.2g} %"
            said += ", on a shared machine" if known.shared else ""
            if verdict.rounds is None:
                said += f"; {aim} is out of reach"
            elif not verdict.resolved:
                more = duration(verdict.rounds * self._round_s) if math.isfinite(self._round_s) else "an unknown time"
                launches = f"{verdict.launches or 1} more launch{'' if verdict.launches == 1 else 'es'}"
                rounds = f"{verdict.rounds} more rounds, {more}, in {launches}"
                said += f"; {aim} takes about {rounds if verdict.rounds else launches}"
            found.append(said)
        return found

    def _judged(self, slices: Sequence[TurnSlice]) -> dict[tuple[str, str], RatioVerdict]:
        made = rates(slices, self._labels)
        if slices:
            last = [each for each in slices if each.launch == slices[-1].launch and each.block == slices[-1].block]
            span = max(each.end_s for each in last) - min(each.begin_s for each in last)
            self._round_s = span / (1 + max(each.round for each in last))
        verdicts = self.precision.judge(made, self.wanted)
        judged = [each if each.estimate is not None else self._judged_alone(each) for each in verdicts]
        return {(each.cell, each.base): each for each in judged}

    def _judged_alone(self, verdict: RatioVerdict) -> RatioVerdict:
        """Return the verdict on two cells that did not alternate: the ratio of medians over repeats, as in a report."""
        both = [self._alone.get(name, ()) for name in (verdict.cell, verdict.base)]
        repeats, aim = min(map(len, both)), self.precision
        if repeats < MIN_REPEATS:
            return verdict
        ratio = median_ratio(*both)
        names = ("round_sd", "memory", "round_error", "launch_sd", "cancelled")
        unknown: dict[str, Any] = dict.fromkeys(names, math.nan)
        estimate = RatioEstimate(ratio=ratio, launches=repeats, rounds=repeats, **unknown)
        resolved = repeats >= aim.launches and estimate.half_width <= aim.half_width
        more = 0 if resolved else math.ceil(repeats * ((estimate.half_width / aim.half_width) ** 2 - 1)) or 1
        return replace(verdict, estimate=estimate, resolved=resolved, launch_done=True, rounds=0, launches=more)


def runs_alone(sweep: StudyCells, slices: Iterable[TurnSlice]) -> dict[str, list[float]]:
    """Return {label: rate of each of its runs} of the finished runs that made no slice."""
    alternated = {each.run for each in slices}
    found: dict[str, list[float]] = {}
    for cell in sweep.cells:
        record = None if cell.key in alternated else record_in(sweep.directory / cell.key)
        if record is not None and record.status == "done" and (rate := record.totals.get("samples_per_s")):
            found.setdefault(cell.label, []).append(float(rate))
    return found
