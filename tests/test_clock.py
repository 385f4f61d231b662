"""Laps tile the step."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_study.config import LAPS
from horovod_study.measure.clock import HostStamps, LapClock


def clock_of(times: list[float]) -> LapClock:
    source: Iterator[float] = iter(times)
    return LapClock(HostStamps(lambda: next(source)))


def make_steps(clock: LapClock, steps: int) -> None:
    for _ in range(steps):
        clock.begin()
        for lap in LAPS:
            clock.lap(lap)


@given(st.lists(st.floats(0, 1), min_size=1 + 6 * 3, max_size=1 + 6 * 3), st.floats(0, 1e6))
def test_laps_and_residual_add_up_to_the_window(gaps: list[float], origin: float) -> None:
    times = list(origin + np.cumsum(gaps))
    clock = clock_of(times)
    clock.start()
    make_steps(clock, 3)
    columns = clock.drain()

    parts = sum(columns[f"{lap}_s"] for lap in (*LAPS, "residual"))
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
        "residual_s": [2], "step_s": [33],
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
    assert all(difference[f"{lap}_s"] == pytest.approx([0, 0]) for lap in LAPS)


def test_laps_out_of_order_are_an_error_and_not_a_wrong_number() -> None:
    clock = LapClock()
    clock.start()
    clock.begin()
    clock.lap("forward")
    with pytest.raises(RuntimeError, match="the laps of a step must be begin, data, forward, backward, sync, update"):
        clock.drain()


def test_a_new_stretch_needs_a_drain() -> None:
    clock = LapClock()
    clock.start()
    make_steps(clock, 1)
    with pytest.raises(RuntimeError, match="6 laps were not drained"):
        clock.start()


def test_nothing_to_drain() -> None:
    clock = LapClock()
    clock.start()
    assert all(len(values) == 0 for values in clock.drain().values())
