"""Ranks that exchange small values through a folder, where the training's own communication must not be touched.

A recorder that nobody has put into the script may come to its collective calls when the library of the script is busy,
has been shut down already, or is one that is not known here. Files need none of it: every rank writes its value and
waits for those of the others. A rank that waits goes on while the others live, which a thread of each shows by a file
that it touches; it never waits for one that is gone.
"""

import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from horovod_study.errors import BackendError
from horovod_study.files import write_file
from horovod_study.measure.clock import now, sleep

GONE_S = 60.0
"""A rank that has not shown itself for so long is gone; a file server may show its files some seconds late."""
FIRST_S = 60.0
"""So long the ranks wait for each other at first: whoever trains comes to its first steps at about the same time."""


class Meeting:
    """The ranks of one run at one folder, which `folder` names for all of them."""

    def __init__(self, folder: Path, rank: int, workers: int):
        self._folder, self._rank, self._workers = folder, rank, workers
        self._round = 0
        self._over = threading.Event()
        if workers > 1:
            folder.mkdir(parents=True, exist_ok=True)
            threading.Thread(target=self._beat, name="horovod-study-beat", daemon=True).start()

    def all_values(self, value: Any) -> list[Any]:
        """Return the values of all ranks, which are what JSON knows, in the order of ranks, on every rank.

        Raises BackendError where a rank does not come.
        """
        text = json.dumps(value)
        if self._workers == 1:
            return [json.loads(text)]
        self._round += 1
        write_file(self._file(self._rank), text)
        return [self._value(rank) for rank in range(self._workers)]

    def close(self, *, remove: bool = False) -> None:
        """Show no longer that this rank lives; `remove`: rank 0 removes the folder once all have read their last."""
        self._over.set()
        if self._workers == 1:
            return
        with suppress(OSError):
            self._closed(self._rank).touch()
        if not remove or self._rank:
            return
        # for the others to have read its last value
        deadline = now() + 10.0
        while now() < deadline and not all(self._closed(rank).exists() for rank in range(self._workers)):
            sleep(0.02)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _closed(self, rank: int) -> Path:
        return self._folder / f"closed-{rank}"

    def _file(self, rank: int) -> Path:
        return self._folder / f"{self._round:03d}-{rank}.json"

    def _value(self, rank: int) -> Any:
        began, pause_s = now(), 0.0005
        while True:
            with suppress(FileNotFoundError):
                return json.loads(self._file(rank).read_text())
            waited_s = now() - began
            if waited_s > self._patience_s(rank):
                raise BackendError(
                    f"rank {rank} did not come to exchange {self._round} with rank {self._rank} within {waited_s:.0f} "
                    f"s; do all ranks train, and see the folder {self._folder}?"
                )
            sleep(pause_s)
            if waited_s > 1:
                pause_s = 0.05

    def _patience_s(self, rank: int) -> float:
        if self._round == 1:
            return FIRST_S
        try:  # by the clock of the file server, both times
            age_s = os.stat(self._pulse(self._rank)).st_mtime - os.stat(self._pulse(rank)).st_mtime
        except FileNotFoundError:
            return GONE_S
        return GONE_S if age_s > GONE_S else float("inf")

    def _pulse(self, rank: int) -> Path:
        return self._folder / f"alive-{rank}"

    def _beat(self) -> None:
        while True:
            with suppress(OSError):
                self._pulse(self._rank).touch()
            if self._over.wait(2.0):
                return
