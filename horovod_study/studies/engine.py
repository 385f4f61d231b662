"""The sweep engine: runs what the lanes of a policy ask for, and sends each of them how its run ended.

A policy says what is to be run and in which order; it is a generator that yields a `Run` and receives an `Attempt`:

    def lane():
        for name, cell in cells:
            attempt = yield CellRun(cell=cell, out=..., ...)
            if not attempt.done: ...

One lane runs one attempt at a time, several lanes run several. What a start or an end raises (a full disk, a directory
that somebody else trains in) is raised in the lane, at its `yield`. A lane that has nothing to run now, but may have
when another one has ended, yields None.

After a request to stop every running attempt is ended and told to its lane, and nothing more is started.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from horovod_study.cluster.process import stop_marked
from horovod_study.errors import RecordError, StudyError
from horovod_study.files import writing
from horovod_study.lease import ATTEMPTS, hold_study, move_run
from horovod_study.progress import say
from horovod_study.records import MANIFEST, read_run, require_ended
from horovod_study.studies.attempt import Attempt, RankRun, Running
from horovod_study.studies.interruption import Interruption
from horovod_study.text.words import cut

Lane = Generator[RankRun | None, Any, None]
"""Yields what is to be run next, None for nothing now; receives the Attempt."""

_WAKE_S = 0.25  # how soon Ctrl-C and a time limit are noticed


def sweep(lanes: Iterable[Lane], stop: Interruption) -> None:
    """Run until every lane is at its end, or none has anything to run, or `stop` is requested."""
    places = [_Place(lane) for lane in lanes]
    try:
        while True:
            for place in places:
                place.fill(stop)
            busy = [place for place in places if place.running is not None]
            if not busy:
                return
            for place in busy:
                place.poll(_WAKE_S / len(busy), stop)
    finally:
        for place in places:
            place.close(stop)


def attempt(run: RankRun, stop: Interruption) -> Attempt:
    """Run one thing alone and return how it ended; KeyboardInterrupt: after a request to stop."""
    ended: list[Attempt] = []

    def lane() -> Lane:
        ended.append((yield run))

    sweep([lane()], stop)
    if stop.requested:
        raise KeyboardInterrupt
    return ended[0]


class _Place:
    """One lane, and the attempt of it that is under way."""

    def __init__(self, lane: Lane) -> None:
        self._lane: Lane | None = lane
        self.running: Running | None = None

    def fill(self, stop: Interruption) -> None:
        """Start what the lane asks for, if it is free; nothing after a request to stop."""
        if self.running is None:
            if stop.requested:
                self._leave()
            self._go_on(stop)

    def poll(self, wait_s: float, stop: Interruption) -> None:
        """Wait a moment for the attempt, and tell the lane when it has ended."""
        running = self.running
        if running is None:
            return
        try:
            ended = running.poll(wait_s, stop)
        except KeyboardInterrupt:  # a second Ctrl-C
            stop.requested = True
            ended = running.end(stop.state, stop.state, grace_s=0.0)
        except Exception as failure:
            running.abandon()
            self.running = None
            self._go_on(stop, failure=failure)
            return
        if ended is not None:
            self.running = None
            self._go_on(stop, ended=ended)

    def close(self, stop: Interruption) -> None:
        """End what still runs, because something else went wrong, and tell the lane."""
        if self.running is not None:
            running, self.running = self.running, None
            ended = running.end(stop.state, stop.state)
            if self._lane is not None:
                with suppress(StopIteration):
                    self._lane.send(ended)
        self._leave()

    def _leave(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None

    def _go_on(self, stop: Interruption, *, ended: Attempt | None = None, failure: Exception | None = None) -> None:
        """Let the lane go on until it wants something to be run, and start that."""
        while self._lane is not None:
            try:
                run = self._lane.send(ended) if failure is None else self._lane.throw(failure)
            except StopIteration:
                self._lane = None
                return
            if run is None:
                return
            if stop.requested:
                self._leave()
                return
            try:
                self.running = Running(run)
                return
            except Exception as error:
                failure = error


@contextmanager
def working_in(out: Path, what: str, *, command: str = "") -> Iterator[Interruption]:
    """Hold the folder `out` against other commands, and end what one that was killed has left running there.

    `what` it was, such as "comparison"; `command` is what continues. StudyError: the folder cannot be written.
    """
    with writing(out, "choose a writable --out", error=StudyError):
        out.mkdir(parents=True, exist_ok=True)
    with Interruption() as stop, hold_study(out, option="out"):
        if left := stop_marked(str(out.resolve())):
            say(f"stopped what an interrupted {what} left behind ({left} processes)")
        try:
            yield stop
        except BrokenPipeError:  # the reader of the output left; that is no matter of the folder
            raise
        except OSError as error:
            again = f", and continue with: {command}" if command else ""
            raise StudyError(
                f"{error.filename or out}: {error.strerror or error}; make room there or choose another --out{again}"
            ) from error


def difference(known: Mapping[str, Any], wanted: Mapping[str, Any], *, whole: bool = True) -> str:
    """Return in words the first thing in which a folder was begun otherwise than is wanted now; "" for none."""
    for part, new in wanted.items():
        old = known.get(part)
        if isinstance(old, dict) and isinstance(new, dict):
            if told := difference({**dict.fromkeys(new), **old}, {**dict.fromkeys(old), **new}, whole=False):
                return told if whole else f"{part} {told}"
        elif old != new:
            return f"{part} was {cut(str(old), 60)}, now {cut(str(new), 60)}"
    return ""


def set_aside_unless_done(directory: Path) -> bool:
    """Return whether a run directory holds a finished run; what is left of another one moves to `.attempts` beside it.

    RecordError: it is running, or cannot be moved.
    """
    if (directory / MANIFEST).exists():
        record = read_run(directory)
        if record.state() == "done":
            return True
        require_ended(directory, record)
    set_aside(directory)
    return False


def set_aside(directory: Path) -> None:
    """Move a run directory, if there is one, to `.attempts` beside it: kept, not counted."""
    try:
        if directory.exists():
            move_run(directory, directory.parent / ATTEMPTS)
    except OSError as error:
        raise RecordError(f"{directory}: cannot be set aside ({error.strerror}); move it away") from None
