"""Turns, as a rank sees them: cells of a study that train one at a time, in slices of some tenths of a second.

The runner (studies/turns.py) listens on a TCP port. Where the variable TURNS names it, each rank connects, says who it
is, and goes on like this:

    rank -> runner      {"token", "rank", "workers", "pid", "host"}                 once
    rank -> runner      {"steps", "samples", "trained_s", "warm", "enough", "least", "threads"}
                        it has made what it was granted; "threads" says on which core each of its threads was
    runner -> rank      {"until": 1200}     make steps until there are 1200 of them, then report and wait
                        {"until": null}     go on alone: nobody waits for a report any more
                        {"end": true}       make no more steps, and end in good order

All ranks are granted the same number of steps, so they wait at the same step without a collective operation, and none
is open meanwhile. A rank that waits is blocked in the kernel. It waits between two stretches of steps: what is between
stretches is in no lap, no step and no window, so a run that had to wait tells the same numbers as one that had not.

When the connection is closed the runner is gone, or has been told to end: the cells that waited would now all train at
the same time, and measure each other. So a rank then makes no more steps.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from horovod_study.errors import BackendError

TURNS = "HOROVOD_STUDY_TURNS"
"""The variable that holds HOST:PORT:TOKEN of the runner; the token is the cell's own."""
MAX_LINE = 16384

Said = Literal["go", "end", "lost"]
"""What a wait ends with: steps were granted, no more are to be made, or nobody is there who could grant any."""


class Channel:
    """Messages over a connected socket: JSON, one a line."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = stream
        self._buffer = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; OSError: the other side is gone."""
        self.stream.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Wait for what comes, and return the messages that are complete with it.

        EOFError: the other side has closed, or sends what is no message. OSError: the connection is broken.
        """
        data = self.stream.recv(MAX_LINE)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        found: list[Any] = [None]
        if data and len(self._buffer) <= MAX_LINE:
            with suppress(ValueError, RecursionError):
                found = [json.loads(line) for line in lines]
        if not all(isinstance(each, dict) for each in found):
            raise EOFError
        return found

    def close(self) -> None:
        """Close the connection; the other side sees that."""
        with suppress(OSError):
            self.stream.close()


def cores_of_threads() -> dict[int, int]:
    """Return the core on which each thread of this process has run last, {} where the system does not tell."""
    found: dict[int, int] = {}
    # the others have hardly anything to do in a step
    for thread in sorted(Path("/proc/self/task").glob("*"))[:256]:
        with suppress(OSError, ValueError, IndexError):
            # field 39 of /proc/PID/task/TID/stat: the core it ran on last
            found[int(thread.name)] = int((thread / "stat").read_text().rpartition(")")[2].split()[36])
    return found


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this rank was started to train in turns."""
    return bool(environ.get(TURNS))


def connect(environ: Mapping[str, str] = os.environ, *, rank: int, workers: int) -> Turns | None:
    """Return this rank's side of the turns that the environment names; None where it names none, or nobody answers.

    Raises BackendError where the variable is damaged.
    """
    if not wanted(environ):
        return None
    text = environ[TURNS]
    host, _, rest = text.partition(":")
    port, _, token = rest.partition(":")
    if not (host and token and port.isdecimal() and 0 < int(port) < 65536):
        raise BackendError(f"environment variable {TURNS} is {text[:60]!a}; allowed: HOST:PORT:TOKEN; unset it")
    try:
        stream = socket.create_connection((host, int(port)), timeout=10.0)
        stream.settimeout(None)
        channel, me = Channel(stream), {"pid": os.getpid(), "host": os.uname().nodename}
        channel.send({"token": token, "rank": rank, "workers": workers, **me})
    except OSError:
        return None
    return Turns(channel)


class Turns:
    """What one rank of a run has been granted, and the wait for more."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Channel | None = channel
        self.until: float = 0  # so many steps may be made before the next wait

    def wait(
        self, steps: int, samples: int, trained_s: float, *, warm: bool, enough: bool, least: int | None = None
    ) -> Said:
        """Report what this rank has made so far, and wait for what the runner says.

        `trained_s`: seconds in stretches of steps; `warm`: the declared warm-up is over; `enough`: the run has made
        what it was asked for, and goes on for the runner only; `least`: so many steps are that, where it is known.
        """
        if self._channel is None:
            return "go" if math.isinf(self.until) else "lost"
        try:
            made: dict[str, Any] = {"steps": steps, "samples": samples, "trained_s": trained_s, "least": least}
            made |= {"warm": bool(warm), "enough": bool(enough), "threads": cores_of_threads()}
            self._channel.send(made)
            while True:
                for message in self._channel.receive():
                    until = None if message.get("end") else message["until"]
                    if until is None:
                        self.leave()
                        self.until = self.until if message.get("end") else math.inf
                        return "end" if message.get("end") else "go"
                    if int(until) > steps:
                        self.until = int(until)
                        return "go"
        except (OSError, EOFError, LookupError, TypeError, ValueError):
            self.leave()
            return "lost"

    def leave(self) -> None:
        """Close the connection: the runner knows then that this rank makes no more turns."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
