"""Laps tile the step."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.config.run import LAPS, ORDINARY_LAPS
from horovod_study.measure.clock import (
    DeviceStamps,
    KernelStamps,
    LapClock,
    Milestones,
    Unstamped,
    now,
    utc_now,
)


def clock_of(times: list[float]) -> LapClock:
    source: Iterator[float] = iter(times)
    return LapClock(lambda: next(source))


def make_steps(clock: LapClock, steps: int) -> None:
    for _ in range(steps):
        clock.begin()
        for lap in ORDINARY_LAPS:
            clock.lap(lap)


@given(st.lists(st.floats(0, 1), min_size=1 + 6 * 3, max_size=1 + 6 * 3), st.floats(0, 1e6))
def test_laps_and_residual_add_up_to_the_window(gaps: list[float], origin: float) -> None:
    times = list(origin + np.cumsum(gaps))
    clock = clock_of(times)
    clock.start()
    make_steps(clock, 3)
    columns = clock.drain()

    parts = sum(columns[f"{lap}_s"] for lap in (*ORDINARY_LAPS, "residual"))
    assert columns["step_s"] == pytest.approx(parts, abs=1e-9)
    assert columns["step_s"].sum() == pytest.approx(times[18] - times[0], abs=1e-9)
    assert (columns["step_s"] >= 0).all()


def test_each_gap_belongs_to_its_lap() -> None:
    #  start, then per step: begin (residual), data, forward, backward, sync, update
    clock = clock_of([0, 2, 3, 5, 9, 17, 33])
    clock.start()
    make_steps(clock, 1)
    columns = {name: list(values) for name, values in clock.drain().items()}

    assert columns == {
        "data_s": [1], "forward_s": [2], "backward_s": [4], "sync_s": [8], "update_s": [16],
        "residual_s": [2], "step_s": [33], "begin_s": [2],
    }  # fmt: skip


def test_a_drain_in_the_middle_loses_nothing() -> None:
    gaps = np.arange(1, 1 + 6 * 4, dtype=float)
    times = [0.0, *np.cumsum(gaps)]
    whole, parts = clock_of(times), clock_of(times)
    for clock in (whole, parts):
        clock.start()
    make_steps(whole, 4)
    expected = whole.drain()
    make_steps(parts, 1)
    first = parts.drain()
    make_steps(parts, 3)
    second = parts.drain()

    for name, values in expected.items():
        assert np.array_equal(values, np.concatenate([first[name], second[name]]))


def test_time_outside_every_lap_is_residual() -> None:
    quiet = clock_of([0.0, *np.cumsum([1.0] * 12)])
    disturbed = clock_of([0.0, *np.cumsum([1.0] * 6 + [1.0 + 0.002] + [1.0] * 5)])
    for clock in (quiet, disturbed):
        clock.start()
        make_steps(clock, 2)
    difference = {name: disturbed_part - part for (name, part), disturbed_part in zip(
        quiet.drain().items(), disturbed.drain().values(), strict=True
    )}  # fmt: skip

    assert difference["residual_s"] == pytest.approx([0, 0.002])
    assert difference["step_s"] == pytest.approx([0, 0.002])
    assert difference["begin_s"] == pytest.approx([0, 0.002])
    assert all(difference[f"{lap}_s"] == pytest.approx([0, 0]) for lap in ORDINARY_LAPS)


def test_laps_of_any_order_and_number_still_tile() -> None:
    #  two times forward and backward, no sync; then a step that has one; then an empty one
    clock = clock_of([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    clock.start()
    clock.begin()
    for lap in ("forward", "backward", "forward", "backward", "residual"):
        clock.lap(lap)
    clock.begin()
    for lap in ("sync", "update"):
        clock.lap(lap)
    clock.begin()
    columns = {name: list(values) for name, values in clock.drain().items()}

    assert columns == {
        "forward_s": [1 + 4, 0, 0], "backward_s": [2 + 8, 0, 0], "sync_s": [0, 64, 0], "update_s": [0, 128, 0],
        "residual_s": [1 + 16, 32, 256], "step_s": [32, 224, 256], "begin_s": [1, 64, 512],
    }  # fmt: skip
    clock.begin()
    assert list(clock.drain()) == [*columns], "a lap that has occurred once is known from then on: it took no time"


@given(st.lists(st.lists(st.sampled_from([*LAPS, "residual"]), max_size=4), min_size=1, max_size=5))
def test_steps_that_repeat_are_read_as_those_that_do_not(steps: list[list[str]]) -> None:
    def read(split_at: int, steps: list[list[str]]) -> dict[str, np.ndarray]:
        clock = clock_of([0.0, *np.cumsum(np.arange(1.0, 200.0))])
        clock.start()
        parts = []
        for number, names in enumerate(steps):
            clock.begin()
            for name in names:
                clock.lap(name)
            if number == split_at:
                parts.append(clock.drain())
        parts.append(clock.drain())
        return {name: np.concatenate([part.get(name, []) for part in parts if part]) for name in parts[0] or parts[1]}

    whole, by_one = read(-1, steps), read(0, steps)
    for name, values in by_one.items():
        if len(values) == len(steps):  # the lap occurred in the first part
            assert np.array_equal(values, whole[name])
    assert whole["step_s"] == pytest.approx(sum(whole.get(f"{lap}_s", 0) for lap in (*LAPS, "residual")))


def test_a_lap_ends_where_a_mark_was_taken() -> None:
    #  start, begin, the mark in mid-backward, the end of the wait
    clock = clock_of([0, 1, 5, 7])
    clock.start()
    clock.begin()
    mark = clock.mark()
    clock.lap("backward", at=mark)
    clock.lap("sync")
    columns = clock.drain()

    assert (columns["backward_s"].tolist(), columns["sync_s"].tolist()) == ([4], [2])


def test_an_unknown_lap_or_one_before_the_first_step_is_an_error(golden: Golden) -> None:
    clock = LapClock()
    clock.start()
    clock.begin()
    clock.lap("lunch")
    with golden.raises(RuntimeError, match="lunch"):
        clock.drain()
    clock = LapClock()
    clock.start()
    clock.lap("data")
    with golden.raises(RuntimeError, match="data"):
        clock.drain()


def test_a_new_stretch_needs_a_drain(golden: Golden) -> None:
    clock = LapClock()
    clock.start()
    make_steps(clock, 1)
    with golden.raises(RuntimeError, match="6 laps"):
        clock.start()


def test_nothing_to_drain() -> None:
    clock = LapClock()
    clock.start()
    assert all(len(values) == 0 for values in clock.drain().values())


# ---------------------------------------------------------------------------------------------------- two clocks


class Device:
    """A device that works through what it was given, later than the host gives it."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.made: list[Event] = []

    def event(self) -> "Event":
        self.made.append(Event(self))
        return self.made[-1]


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_s = self.waited = -1.0

    def record(self) -> None:
        self.at_s = self.device.time_s

    def synchronize(self) -> None:
        self.waited = self.at_s

    def elapsed_time(self, other: "Event") -> float:
        assert other.at_s >= self.at_s >= 0
        return 1e3 * (other.at_s - self.at_s)


def test_two_clocks_are_both_shown() -> None:
    device, host_s = Device(), [0.0]
    clock = LapClock(lambda: host_s[0], device=DeviceStamps(device.event), zero=-100.0)
    clock.start()
    for _ in range(2):
        clock.begin()
        for lap, on_host, on_device in (("forward", 1, 20), ("backward", 2, 40), ("sync", 50, 3), ("update", 1, 5)):
            host_s[0] += on_host
            device.time_s += on_device
            clock.lap(lap)
    columns = {name: list(values) for name, values in clock.drain().items()}

    assert columns == {
        "forward_s": [20, 20], "backward_s": [40, 40], "sync_s": [3, 3], "update_s": [5, 5], "residual_s": [0, 0],
        "step_s": [68, 68], "sync_host_s": [50, 50], "begin_s": [100, 154],
    }  # fmt: skip
    assert clock.span_s == 108, "of the host"


def test_events_are_used_again() -> None:
    device = Device()
    clock = LapClock(lambda: 0.0, device=DeviceStamps(device.event))
    clock.start()
    for _ in range(5):
        for _ in range(3):
            device.time_s += 1
            clock.begin()
            clock.mark()  # one that nobody uses
            clock.lap("backward", at=clock.mark())
            device.time_s += 2
            clock.lap("sync")
        columns = clock.drain()
        assert columns["sync_s"].tolist() == [2, 2, 2]
        assert columns["residual_s"].tolist() == [1, 1, 1]

    assert len(device.made) == 1 + 3 * 4, "as many as were in use at once"
    clock.start()
    assert len(device.made) == 1 + 3 * 4


@given(st.lists(st.sampled_from(["step", *range(4)]), max_size=40), st.booleans())
def test_drains_that_keep_the_newest_steps_lose_and_double_none(turns: list[Any], on_device: bool) -> None:
    """`turns`: what happens one after the other, a step or a drain that keeps so many."""

    def made(*, drained: bool) -> dict[str, np.ndarray]:
        device, moments = Device(), iter(range(10**6))
        clock = LapClock(lambda: float(next(moments)), device=DeviceStamps(device.event) if on_device else None)
        clock.start()
        parts, steps = [], 0
        for turn in ["step", *turns]:
            if turn == "step":
                device.time_s += 1
                clock.begin()
                for lap in ("compute", "sync", *(["update"] if steps % 3 else [])):
                    device.time_s += 1 + steps % 5
                    clock.lap(lap)
                steps += 1
            elif drained:
                parts.append(clock.drain(keep=turn))
                left = steps - sum(len(part.get("step_s", ())) for part in parts[:-1])
                assert len(parts[-1].get("step_s", ())) == max(0, left - turn)
        parts.append(clock.drain())
        return {
            name: np.concatenate([part.get(name, np.zeros(len(part["step_s"]))) for part in parts if part])
            for name in ("begin_s", "compute_s", "sync_s", "update_s", "residual_s", "step_s")
        }

    whole, parts = made(drained=False), made(drained=True)

    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_drain_that_keeps_steps_waits_for_no_later_one_and_uses_their_events_again() -> None:
    device = Device()
    clock = LapClock(lambda: 0.0, device=DeviceStamps(device.event))
    clock.start()
    for _ in range(50):
        for _ in range(4):
            device.time_s += 1
            clock.begin()
            clock.mark()  # one that nobody uses
            clock.lap("compute")
        last = max((event.waited for event in device.made), default=0)
        clock.drain(keep=3)
        assert max(event.waited for event in device.made) == device.time_s - 3 > last

    assert len(device.made) <= 3 * (4 + 3) + 1, "as many as were in use at once"


class Given:
    """Events of a device that has done what it was given so far up to `done`."""

    def __init__(self) -> None:
        self.given, self.done, self.waits, self.made = 0, 0, 0, 0

    def event(self) -> Any:
        owner = self
        self.made += 1

        class Event:
            def record(self) -> None:
                self.at = owner.given

            def query(self) -> bool:
                return self.at <= owner.done

            def synchronize(self) -> None:
                owner.waits += not self.query()
                owner.done = max(owner.done, self.at)

        return Event()


def test_milestones_say_how_far_the_device_is_without_waiting_for_it() -> None:
    device = Given()
    milestones = Milestones(every=4, make=device.event)
    for step in range(1, 23):
        device.given = step
        milestones.given(step)

    assert milestones.done() == 0
    device.done = 9
    assert milestones.done() == 8 and milestones.done() == 8
    assert device.waits == 0
    assert milestones.done(at_least=10) == 12 and device.waits == 1, "only as far as it must"
    device.done = 22
    assert milestones.done() == 20, "the newest two steps are behind the last milestone"
    for step in range(23, 43):
        device.given = device.done = step
        milestones.given(step)
        milestones.done()
    assert device.made == 5, "events are used again"


def test_strict_waits_before_each_stamp() -> None:
    said: list[str] = []
    clock = LapClock(lambda: said.append("stamp") or float(len(said)), settle=lambda: said.append("wait"))
    clock.start()
    clock.begin()
    clock.lap("forward")
    clock.lap("backward", at=clock.mark())

    assert said == ["wait", "stamp"] * 4


def test_off_takes_no_stamps_but_knows_the_whole() -> None:
    clock = Unstamped()
    clock.start()
    make_steps(clock, 3)

    assert not clock.takes_stamps
    assert clock.mark() is None
    assert clock.drain() == {}
    assert 0 < clock.span_s < 60


def test_the_date_set_back_changes_no_lap(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> dict[str, np.ndarray]:
        clock = clock_of([float(at) for at in range(1 + 6 * 4)])
        clock.start()
        make_steps(clock, 4)
        return clock.drain()

    class SetBack(datetime):
        hours = 0

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            cls.hours += 5
            return datetime(2026, 1, 2, tzinfo=tz) - timedelta(hours=cls.hours)

    before = steps()
    monkeypatch.setattr("horovod_study.measure.clock.datetime", SetBack)
    assert utc_now() > utc_now(), "the date does go backwards"
    after = steps()

    assert all(np.array_equal(after[name], values) for name, values in before.items())
    moments = [now() for _ in range(100)]
    assert sorted(moments) == moments
    assert time.get_clock_info("perf_counter").monotonic
    assert not time.get_clock_info("perf_counter").adjustable, "nobody can set it"


class Writing:
    """A device whose kernels write down when steps begin and end: `at_ns` a step, beginning 2 ns after the last."""

    def __init__(self, slots: int) -> None:
        self.times = torch.zeros(2 * slots + 1 + 4, dtype=torch.int64)
        self.slots, self.now_ns = slots, 1000
        self.stamps = KernelStamps(self.times, slots=slots, note=self.note)

    def note(self, place: int) -> None:
        self.now_ns += 5
        self.times[place] = self.now_ns

    def make(self, step: int, took_ns: int) -> None:
        self.now_ns += 2
        self.times[step % self.slots] = self.now_ns
        self.now_ns += took_ns
        self.times[self.slots + step % self.slots] = self.now_ns


def test_times_that_kernels_write_down_tile_the_steps_round_and_round_their_places() -> None:
    """Twelve steps in a ring of eight places, drained in three parts, the last of which begins a new stretch."""
    device = Writing(slots=8)
    clock = LapClock(device=device.stamps)
    parts = []
    for begin, end in ((0, 3), (3, 9), (9, 12)):
        if begin != 3:
            clock.start()
        for step in range(begin, end):
            clock.begin((0.0, device.stamps.begin_of(step)))
            device.make(step, took_ns=100 + step)
            clock.lap("compute", (0.0, device.stamps.end_of(step)))
        parts.append(clock.drain())
    compute, residual, step = (
        np.concatenate([part[name] for part in parts]) for name in ("compute_s", "residual_s", "step_s")
    )

    assert compute * 1e9 == pytest.approx(np.arange(100, 112))
    assert residual * 1e9 == pytest.approx([2] * 12)
    assert step == pytest.approx(compute + residual)


def test_a_time_that_is_not_written_yet_is_waited_for_and_an_old_one_in_its_place_not_taken() -> None:
    device = Writing(slots=4)
    clock = LapClock(device=device.stamps)
    clock.start()
    for step in range(4):
        clock.begin((0.0, device.stamps.begin_of(step)))
        device.make(step, took_ns=50)
        clock.lap("compute", (0.0, device.stamps.end_of(step)))
    clock.drain()
    for step in (4, 5):  # the host is ahead: these places have the times of steps 0 and 1
        clock.begin((0.0, device.stamps.begin_of(step)))
        clock.lap("compute", (0.0, device.stamps.end_of(step)))
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(clock.drain)
        device.make(4, took_ns=70)
        assert not wait([drained], timeout=0.05).done, "what is not there was taken for read"
        device.make(5, took_ns=90)
        assert drained.result()["compute_s"] * 1e9 == pytest.approx([70, 90])
