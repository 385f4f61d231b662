"""The sweep engine: runs what lanes ask for, and sends each of them how its run ended.

A lane is a generator that yields a `RankRun` and receives an `Attempt`:

    def lane():
        for name, cell in cells:
            attempt = yield CellRun(cell=cell, out=..., ...)
            if not attempt.done: ...

One lane runs one attempt at a time, several lanes run several. What a start or an end raises (a full disk, a directory
that somebody else trains in) is raised in the lane, at its `yield`. A lane that has nothing to run now, but may have
when another one has ended, yields None.

After a request to stop every running attempt is ended and told to its lane, and nothing more is started.
"""

from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Any

from horovod_study.studies.attempt import Attempt, Interruption, RankRun, Running

Lane = Generator[RankRun | None, Any, None]  # Yields what is to be run next, None for nothing now; receives the Attempt

_WAKE_S = 0.25  # how soon Ctrl-C and a time limit are noticed


def sweep(lanes: Iterable[Lane], stop: Interruption) -> None:
    """Run until every lane is at its end, or none has anything to run, or `stop` is requested."""
    places: dict[Lane, Running | None] = dict.fromkeys(lanes)

    def go_on(lane: Lane, ended: Attempt | None = None, failure: Exception | None = None) -> None:
        places[lane] = None
        try:
            places[lane] = _next(lane, stop, ended, failure)
        except StopIteration:
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


def _next(lane: Lane, stop: Interruption, ended: Attempt | None, failure: Exception | None) -> Running | None:
    """Let a lane go on until it wants something to be run, and start that; StopIteration: it is at its end."""
    if stop.requested and ended is None and failure is None:
        lane.close()
        raise StopIteration
    while True:
        run = lane.send(ended) if failure is None else lane.throw(failure)
        if run is None:
            return None
        if stop.requested:
            lane.close()
            raise StopIteration
        try:
            return Running(run)
        except Exception as error:
            failure = error


def attempt(run: RankRun, stop: Interruption) -> Attempt:
    """Run one thing alone and return how it ended; KeyboardInterrupt: after a request to stop."""
    ended: list[Attempt] = []

    def lane() -> Lane:
        ended.append((yield run))

    sweep([lane()], stop)
    if stop.requested:
        raise KeyboardInterrupt
    return ended[0]
