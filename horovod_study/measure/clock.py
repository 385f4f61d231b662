"""The only reader of time.

`LapClock` splits a training step into laps that tile it: what lies between two stamps belongs to exactly one lap,
so the laps and the residual always add up to the step. Reading the clock costs about 0.1 us a lap on a CPU and one
event record on a GPU; nothing is printed, written or synchronised between the first and the last lap of a step.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from horovod_study.config import LAPS

now: Callable[[], float] = time.perf_counter
"""Seconds on a monotonic clock with an arbitrary origin; steps of the system's clock do not disturb it."""

sleep: Callable[[float], None] = time.sleep


def utc_now() -> str:
    """Return the date and time as ISO 8601 text in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def utc_stamp() -> str:
    """Return the date and time as a sortable text that fits into a file name."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


class HostStamps:
    """Stamps of the host's clock: right where work is finished when the call returns (a CPU)."""

    def __init__(self, source: Callable[[], float] = now) -> None:
        self.stamp: Callable[[], Any] = source

    def differences_s(self, stamps: list[Any]) -> np.ndarray:
        """Return the seconds between consecutive stamps, shape (len(stamps) - 1,)."""
        return np.diff(np.asarray(stamps, dtype=np.float64))


class DeviceStamps:
    """Events on the current CUDA stream: each completes when the kernels before it do, however early Python was."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def stamp(self) -> Any:
        """Record an event on the current stream and return at once."""
        event: Any = self._cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def differences_s(self, stamps: list[Any]) -> np.ndarray:
        """Wait for the last event, then return the seconds between consecutive ones, shape (len(stamps) - 1,)."""
        stamps[-1].synchronize()
        return np.array([a.elapsed_time(b) / 1e3 for a, b in pairwise(stamps)])


class LapClock:
    """Laps of training steps, kept as raw stamps and turned into columns in bulk by `drain`.

    A stretch of steps begins with `start`. Each step is `begin`, then `lap(name)` for every name in LAPS, in order.
    The time from the end of one step to the `begin` of the next is the residual of the next one.
    """

    def __init__(self, stamps: HostStamps | DeviceStamps | None = None) -> None:
        self._source = stamps or HostStamps()
        self._stamp = self._source.stamp
        self._stamps: list[Any] = []
        self._names: list[str] = []

    def start(self) -> None:
        """Open a stretch: the first step's residual counts from here. What was not drained is an error."""
        if self._names:
            raise RuntimeError(f"{len(self._names)} laps were not drained before a new stretch")
        self._stamps = [self._stamp()]

    def begin(self) -> None:
        """Mark the begin of a step; closes the residual that follows the step before."""
        self._stamps.append(self._stamp())
        self._names.append("begin")

    def lap(self, name: str) -> None:
        """Close the phase `name`, opened by the mark before it."""
        self._stamps.append(self._stamp())
        self._names.append(name)

    def drain(self) -> dict[str, np.ndarray]:
        """Return and forget the steps so far: columns `data_s` ... `residual_s`, `step_s`, each of shape (steps,).

        Raises RuntimeError if laps are missing or out of order.
        """
        marks = ("begin", *LAPS)
        steps, rest = divmod(len(self._names), len(marks))
        if rest or tuple(self._names) != marks * steps:
            raise RuntimeError(f"the laps of a step must be {', '.join(marks)}; got {self._names[-len(marks) - 1 :]}")
        if steps == 0:
            return {name: np.empty(0) for name in (*(f"{lap}_s" for lap in LAPS), "residual_s", "step_s")}
        laps = self._source.differences_s(self._stamps).reshape(steps, len(marks))
        self._stamps, self._names = self._stamps[-1:], []
        columns = {f"{lap}_s": laps[:, 1 + k] for k, lap in enumerate(LAPS)}
        return {**columns, "residual_s": laps[:, 0], "step_s": laps.sum(axis=1)}
