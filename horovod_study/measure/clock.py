"""The only reader of time.

`LapClock` splits a training step into laps that tile it: what is between two stamps belongs to exactly one lap,
so the laps and the residual always add up to the step. Reading the clock costs about 0.1 us a lap on a CPU and one
event record on a GPU; nothing is printed, written or synchronised between the first and the last lap of a step.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from horovod_study.config.run import LAPS

if TYPE_CHECKING:
    import torch

now: Callable[[], float] = time.perf_counter
"""Seconds on a monotonic clock with an arbitrary origin; steps of the system's clock do not disturb it."""

sleep: Callable[[float], None] = time.sleep


def utc_now() -> str:
    """Return the date and time as ISO 8601 text in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def utc_stamp() -> str:
    """Return the date and time as a sortable text that fits into a file name."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


class _DeviceEvent(Protocol):
    """What is used of torch.cuda.Event."""

    def record(self) -> None:
        """Let the event complete when the work given to the current stream before it is done."""

    def synchronize(self) -> None:
        """Wait for it."""

    def query(self) -> bool:
        """Return whether it has completed, without waiting for it."""

    def elapsed_time(self, other: Any) -> float:
        """Return the milliseconds from this event to `other`; both have completed."""


def _cuda_event(*, timing: bool = True) -> _DeviceEvent:
    import torch

    event: _DeviceEvent = torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]
    return event


class DeviceStamps:
    """Events on the current CUDA stream: each completes when the kernels before it do, however early Python was.

    Events are used again once they were read: making one costs more than recording it. Autograd's own threads have
    the stream current on which the gradient is made, so a stamp taken in a hook is one of that stream.
    """

    def __init__(self, make: Callable[[], _DeviceEvent] = _cuda_event) -> None:
        self._make = make
        self._free: list[_DeviceEvent] = []
        self._given: list[_DeviceEvent] = []

    def stamp(self) -> _DeviceEvent:
        """Record an event on the current stream and return at once."""
        event = self._free.pop() if self._free else self._make()
        event.record()
        self._given.append(event)
        return event

    def differences_s(self, stamps: Sequence[_DeviceEvent]) -> np.ndarray:
        """Wait for the last event, then return the seconds between consecutive ones, shape (len(stamps) - 1,)."""
        stamps[-1].synchronize()
        return np.fromiter((a.elapsed_time(b) for a, b in pairwise(stamps)), np.float64, len(stamps) - 1) / 1e3

    def take_back(self, keep: Sequence[_DeviceEvent]) -> None:
        """Use all events again that were given out, but for those of `keep` and what was given out after its first."""
        kept = {id(event) for event in keep}
        place = next(place for place, event in enumerate(self._given) if event is keep[0])
        self._free.extend(event for event in self._given[:place] if id(event) not in kept)
        self._given = [event for event in self._given[:place] if id(event) in kept] + self._given[place:]


class KernelStamps:
    """Moments that kernels of captured steps write down themselves, in nanoseconds of the device's own clock.

    An event between two graphs keeps the device from running one right after the other: with two of them a step of
    33 us took 35.5 us on an H100. A kernel that also writes the time costs nothing, and 32 ns is how finely it is told.

    `times` (2 slots + 1 + notes,) int64 on the device: begins of steps, ends of steps, the slot of the step in hand,
    and moments outside of steps. Step k has slot k % slots. A stamp is a place in it.
    """

    def __init__(self, times: "torch.Tensor", *, slots: int, note: Callable[[int], None]) -> None:
        """`note(place)` writes the time of the current stream to `times[place]`."""
        import torch

        self.times, self._slots, self._note = times, slots, note
        self._notes = len(times) - 2 * slots - 1
        self._noted = 0
        on_gpu = times.device.type == "cuda"
        self._reader = torch.cuda.Stream(times.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._read = torch.zeros(len(times), dtype=torch.int64, pin_memory=on_gpu)
        self._newest = 0

    def begin_of(self, step: int) -> int:
        """Return the stamp of the begin of a step, whether it was made already or not."""
        return step % self._slots

    def end_of(self, step: int) -> int:
        """Return the stamp of the end of a step."""
        return self._slots + step % self._slots

    def stamp(self) -> int:
        """Let the device write down this moment of the current stream, by a launch of its own, and return at once."""
        place = 2 * self._slots + 1 + self._noted % self._notes
        self._noted += 1
        self._note(place)
        return place

    def differences_s(self, stamps: Sequence[int]) -> np.ndarray:
        """Wait for the last stamp, then return the seconds between consecutive ones, shape (len(stamps) - 1,)."""
        while (newest := int(self._copied()[stamps[-1]])) <= self._newest:  # what is there is of an earlier round
            sleep(1e-4)
        self._newest = newest
        seconds: np.ndarray = np.diff(self._read.numpy()[np.asarray(stamps)]) / 1e9
        return seconds

    def take_back(self, keep: Sequence[int]) -> None:
        """Do nothing: places are used again by themselves."""

    def _copied(self) -> np.ndarray:
        """Read all that is written, beside the stream of the steps and without waiting for it."""
        import torch

        if self._reader is None:
            self._read.copy_(self.times)
        else:
            with torch.cuda.stream(self._reader):
                self._read.copy_(self.times, non_blocking=True)
            self._reader.synchronize()
        copied: np.ndarray = self._read.numpy()
        return copied


class Milestones:
    """How far the device is with the work it was given, asked without waiting for it.

    Every `every` steps an event follows the work of the step; when it has completed, so has all before it.
    """

    def __init__(self, every: int = 32, make: Callable[[], _DeviceEvent] = lambda: _cuda_event(timing=False)) -> None:
        self._every, self._make = every, make
        self._free: list[_DeviceEvent] = []
        self._ahead: deque[tuple[int, _DeviceEvent]] = deque()  # steps given so far, and the event after them
        self._done = 0

    def given(self, steps: int) -> None:
        """Note that the device has been given the work of `steps` steps in all, one more than the last time."""
        if steps % self._every == 0:
            event = self._free.pop() if self._free else self._make()
            event.record()
            self._ahead.append((steps, event))

    def done(self, *, at_least: int = 0) -> int:
        """Return how many steps the device has made for certain; waits only until there are `at_least`.

        At most `every` fewer than there are. Steps after the last milestone are not waited for.
        """
        while self._ahead and (self._ahead[0][1].query() or self._done < at_least):
            self._done, event = self._ahead.popleft()
            event.synchronize()
            self._free.append(event)
        return self._done


class LapClock:
    """Laps of training steps, kept as raw stamps and turned into columns in bulk by `drain`.

    A stretch of steps begins with `start`. Each step is a `begin` and any number of laps in any order: `lap(name)`
    gives the time since the stamp before it to `name`, one of LAPS or "residual". The time from the last lap of a step
    to the `begin` of the next is residual of the next one. With device stamps there are two clocks: laps are what the
    device saw, and `sync_host_s` is how long the host waited in sync.
    """

    takes_stamps = True
    device: DeviceStamps | KernelStamps | None = None
    """Who takes the stamps of a device."""
    span_s = 0.0
    """Seconds of the host that the latest `drain` covered."""

    def __init__(
        self,
        host: Callable[[], float] = now,
        *,
        device: DeviceStamps | KernelStamps | None = None,
        settle: Callable[[], None] | None = None,
        zero: float = 0.0,
    ) -> None:
        """`host` is the clock of the host; `settle` is called before each stamp (timer mode strict).

        `zero` is what `begin_s` counts from.
        """
        self._now = host
        self.device = self._device = device
        self._settle, self._zero = settle, zero
        self._plain = device is None and settle is None
        self._hosts: array[float] = array("d")  # the first is where the stretch, or what was not drained, begins
        self._events: list[Any] = []  # as many, with a device: what its stamps are
        self._names: list[str] = []  # one fewer: the name of what ended there
        self._seen: set[str] = set()

    def start(self) -> None:
        """Open a stretch: the first step's residual counts from here. What was not drained is an error."""
        if self._names:
            raise RuntimeError(f"{len(self._names)} laps were not drained before a new stretch")
        del self._hosts[:], self._events[:]
        self._add(self.mark())

    def begin(self, at: Any = None) -> None:
        """Mark the begin of a step, now or at a stamp taken by `mark`; closes the residual after the step before."""
        self._names.append("begin")
        if self._plain:
            self._hosts.append(self._now() if at is None else at)
        else:
            self._add(self.mark() if at is None else at)

    def lap(self, name: str, at: Any = None) -> None:
        """Close the phase `name`, opened by the stamp before it; it ended now, or at a stamp taken by `mark`."""
        self._names.append(name)
        if self._plain:
            self._hosts.append(self._now() if at is None else at)
        else:
            self._add(self.mark() if at is None else at)

    def mark(self) -> Any:
        """Return a stamp of this moment for a later `lap`, such as the moment that a hook saw the last gradient.

        It is good until the next `drain`.
        """
        if self._settle is not None:
            self._settle()
        return self._now() if self._device is None else (self._now(), self._device.stamp())

    def _add(self, stamp: Any) -> None:
        if self._device is None:
            self._hosts.append(stamp)
        else:
            self._hosts.append(stamp[0])
            self._events.append(stamp[1])

    def drain(self, keep: int = 0) -> dict[str, np.ndarray]:
        """Return and forget the steps so far but for the newest `keep`, as columns of shape (steps,).

        A later drain returns those. With a device, the host waits for the last step that is returned: what it was given
        after that, the steps that are kept, is what it has to do meanwhile.

        `begin_s` on the host's clock since zero, `residual_s`, `step_s`, and with a device `sync_host_s`. A lap has a
        column from the first drain on in which it occurred, 0 in steps without it; before, it is not known.
        Raises RuntimeError for a lap before the first begin, or of an unknown name.
        """
        names = self._names
        if keep:  # up to where the newest begin, or nothing where there are no more
            begins = [place for place, name in enumerate(names) if name == "begin"]
            names = names[: begins[-keep] if keep < len(begins) else 0]
        if not names:
            self.span_s = 0.0
            return {}
        if names[0] != "begin":
            raise RuntimeError(f"lap {names[0]!r} comes before the begin of its step")
        count = len(names)
        hosts = np.array(self._hosts[: count + 1])
        host_s = np.diff(hosts)
        lap_s = host_s if self._device is None else self._device.differences_s(self._events[: count + 1])
        split = _Split(names)
        self._seen.update(split.names)
        found = {f"{lap}_s": split.of(lap, lap_s) for lap in LAPS if lap in self._seen}
        found["residual_s"] = split.of("begin", lap_s) + split.of("residual", lap_s)
        found["step_s"] = split.whole(lap_s)
        found["begin_s"] = split.begins(hosts[1:]) - self._zero
        if self._device is not None:
            if "sync" in self._seen:
                found["sync_host_s"] = split.of("sync", host_s)
            self._device.take_back(keep=self._events[count:])
        self.span_s = float(hosts[-1] - hosts[0])
        del self._hosts[:count], self._events[:count], self._names[:count]
        return found


class Unstamped(LapClock):
    """Timer mode off: no stamp in a step; only what all steps between two drains took together is known."""

    takes_stamps = False

    def start(self) -> None:
        """Open a stretch."""
        self._opened = now()

    def begin(self, at: Any = None) -> None:
        """Do nothing."""

    def lap(self, name: str, at: Any = None) -> None:
        """Do nothing."""

    def mark(self) -> Any:
        """Return no stamp."""

    def drain(self, keep: int = 0) -> dict[str, np.ndarray]:
        """Return no columns."""
        closed = now()
        self.span_s, self._opened = closed - self._opened, closed
        return {}


def open_clock(
    timer_mode: str, device: "torch.device", *, zero: float = 0.0, stamps: KernelStamps | None = None
) -> LapClock:
    """Return what times the steps that `device` makes, as `timer_mode` says; times count from `zero`.

    `stamps`: where kernels of the steps write their times themselves; events are recorded otherwise.
    """
    if timer_mode == "off":
        return Unstamped()
    if device.type != "cuda":
        return LapClock(zero=zero)
    import torch

    def settle() -> None:
        # Not the whole device: what the library sends from streams of its own is waited for where training waits.
        torch.cuda.current_stream(device).synchronize()

    return LapClock(device=stamps or DeviceStamps(), settle=settle if timer_mode == "strict" else None, zero=zero)


class _Split:
    """Which of the stamps belong to which lap of which step."""

    def __init__(self, names: list[str]) -> None:
        try:
            length = names.index("begin", 1)
        except ValueError:
            length = len(names)
        self._cycle = names[:length]
        self._repeats = len(names) % length == 0 and names == self._cycle * (len(names) // length)
        self._steps = len(names) // length
        self.names = set(names if not self._repeats else self._cycle)
        unknown = self.names - _CODES.keys()
        if unknown:
            raise RuntimeError(f"unknown lap {min(unknown)!r}; a lap is one of {', '.join(LAPS)}, residual")
        if not self._repeats:  # steps of different laps
            self._codes = np.fromiter((_CODES[name] for name in names), np.intp, len(names))
            self._begins = self._codes == _CODES["begin"]
            self._step = np.cumsum(self._begins) - 1
            self._steps = int(self._step[-1]) + 1

    def of(self, name: str, seconds: np.ndarray) -> np.ndarray:
        """Return the seconds of a lap in each step, shape (steps,)."""
        if self._repeats:
            table = seconds.reshape(self._steps, len(self._cycle))
            places = [place for place, each in enumerate(self._cycle) if each == name]
            return table[:, places[0]] if len(places) == 1 else table[:, places].sum(axis=1)
        own = self._codes == _CODES[name]
        return np.bincount(self._step[own], weights=seconds[own], minlength=self._steps)

    def whole(self, seconds: np.ndarray) -> np.ndarray:
        """Return the seconds of each step."""
        if self._repeats:
            total: np.ndarray = seconds.reshape(self._steps, len(self._cycle)).sum(axis=1)
            return total
        return np.bincount(self._step, weights=seconds, minlength=self._steps)

    def begins(self, moments: np.ndarray) -> np.ndarray:
        """Return the moment at which each step began."""
        return moments[:: len(self._cycle)] if self._repeats else moments[self._begins]


_CODES = {name: code for code, name in enumerate(("begin", *LAPS, "residual"))}
