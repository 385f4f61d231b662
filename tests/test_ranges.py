"""Laps as ranges of outside profilers."""

import itertools

import pytest
import torch
from make.scratch_job import job

from horovod_study.comm import detect
from horovod_study.comm.base import SerialBackend
from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.errors import BackendError
from horovod_study.measure.clock import LapClock, Unstamped
from horovod_study.measure.ranges import Ranged, ranged, recorded, why_not
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.profiling import require_possible


class Told:
    """What a profiler sees: ranges by the names of those around them."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.closed: list[str] = []
        self.marker = self.push, self.pop

    def push(self, name: str) -> None:
        self.open.append(name)

    def pop(self) -> None:
        self.closed.append("/".join(self.open))
        self.open.pop()


def test_every_lap_of_a_step_is_a_range_within_it() -> None:
    told, scratch = Told(), job()
    clock = Ranged(LapClock(), told.marker)
    clock.start()
    scratch.steps(2, clock)
    assert told.open == []
    assert told.closed == [
        *(f"step 0/{lap}" for lap in ORDINARY_LAPS),
        "step 0",
        *(f"step 1/{lap}" for lap in ORDINARY_LAPS),
        "step 1",
    ]


def test_times_are_those_of_the_clock_inside() -> None:
    def steps(clock: LapClock) -> dict[str, list[float]]:
        clock.start()
        for _ in range(3):
            clock.begin()
            for lap in ORDINARY_LAPS[:-1]:
                clock.lap(lap)
            middle = clock.mark()
            clock.lap("update", at=middle)
            clock.lap("residual")
        return {name: column.tolist() for name, column in clock.drain().items()}

    def fresh() -> LapClock:
        return LapClock(map(float, itertools.count()).__next__)

    told = Told()
    assert steps(Ranged(fresh(), told.marker)) == steps(fresh())
    assert told.open == []


def test_a_step_that_was_left_in_the_middle_is_closed_by_the_next() -> None:
    told = Told()
    clock = Ranged(LapClock(), told.marker)
    clock.start()
    clock.begin()
    clock.lap("data")
    clock.begin()
    assert told.closed == ["step 0/data", "step 0/forward", "step 0"]
    assert told.open == ["step 1", "data"]


def test_timer_mode_off_has_ranges_too() -> None:
    told = Told()
    clock = Ranged(Unstamped(), told.marker)
    assert not clock.takes_stamps
    clock.start()
    job().steps(1, clock)
    assert told.closed[-1] == "step 0"
    assert clock.drain() == {}


def test_off_is_the_clock_itself() -> None:
    clock = LapClock()
    assert ranged(clock, "off") is clock


def test_itt_opens_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not("itt") == ""
    seen: list[str] = []
    monkeypatch.setattr(torch.profiler.itt, "range_push", seen.append)
    monkeypatch.setattr(torch.profiler.itt, "range_pop", lambda: seen.append("pop"))
    clock = ranged(LapClock(), "itt")
    clock.start()
    job().steps(1, clock)
    assert seen[:3] == ["step 0", "data", "pop"]
    assert seen[-2:] == ["pop", "pop"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nvtx_without_a_gpu_is_refused_in_one_line() -> None:
    with pytest.raises(BackendError, match=r"^ranges nvtx cannot be made: NVTX ranges need a GPU and a CUDA build"):
        _asked("nvtx")


def test_a_build_without_itt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler.itt, "is_available", lambda: False)
    with pytest.raises(BackendError, match=r"^ranges itt cannot be made: this PyTorch \(.*\) was built without ITT; "):
        _asked("itt")


def _asked(kind: str) -> None:
    require_possible(StrainConfig(ranges=kind), SerialBackend(StrainConfig(), detect({})), torch.device("cpu"))


def test_records_show_in_the_trace_of_torch() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        clock = Ranged(LapClock(), recorded())
        clock.start()
        job().steps(2, clock)
    names = {each.key: each.count for each in profiler.key_averages()}
    assert {lap: names[lap] for lap in ORDINARY_LAPS} == dict.fromkeys(ORDINARY_LAPS, 2)
    assert names["step 1"] == 1
