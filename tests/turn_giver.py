"""A runner that gives turns to the ranks of one run, as a test tells it: what they report and are granted."""

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from horovod_study.measure.clock import now
from horovod_study.recording.rank.turns import TURNS, Channel

WAIT_S = 60.0  # far beyond any test


class TurnGiver:
    """Accepts `workers` ranks, and answers all of them when the last has reported.

    `answer` is given their reports and returns what all are told; None closes every connection.
    """

    def __init__(self, answer: Callable[[Sequence[dict[str, Any]]], dict[str, Any] | None], workers: int = 1) -> None:
        self._answer, self._workers = answer, workers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self._port = self._listener.getsockname()[1]
        self.token = secrets.token_hex(8)
        self.hellos: list[dict[str, Any]] = []
        self.rounds: list[list[dict[str, Any]]] = []
        self.granting_s = 0.0  # from the first report to the last
        self.left = threading.Event()  # all ranks have closed
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        return {TURNS: f"127.0.0.1:{self._port}:{self.token}"}

    def _serve(self) -> None:
        channels: list[Channel] = []
        early: list[list[dict[str, Any]]] = []
        for _ in range(self._workers):
            stream, _ = self._listener.accept()
            stream.settimeout(WAIT_S)
            channels.append(Channel(stream))
            first, *more = channels[-1].receive()
            self.hellos.append(first)
            early.append(more)
        self._listener.close()
        began = now()
        while True:
            try:
                reports = [(there or channel.receive())[0] for channel, there in zip(channels, early, strict=True)]
            except (EOFError, OSError):
                break
            early = [[] for _ in channels]
            self.rounds.append(reports)
            self.granting_s = now() - began
            message = self._answer(reports)
            if message is None:
                break
            for channel in channels:
                channel.send(message)
        for channel in channels:
            channel.close()
        self.left.set()
