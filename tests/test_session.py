"""One recorded run, without anything that trains: windows, totals, and what a failure leaves behind."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from make.wording import Golden

from horovod_study import records
from horovod_study.errors import StudyError
from horovod_study.measure.clock import LapClock
from horovod_study.recording import session as module
from horovod_study.recording.session import Session
from horovod_study.studies import lease

CPU = torch.device("cpu")


class Alone:
    """One worker."""

    rank, workers = 0, 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass


class Seconds:
    """A clock that stands still until somebody spends time."""

    now = 100.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    fake = Seconds()
    monkeypatch.setattr(module, "now", lambda: fake.now)
    monkeypatch.setattr(
        module, "open_clock", lambda mode, device, *, zero, stamps: LapClock(lambda: fake.now, zero=zero)
    )
    return fake


def options(**changed: Any) -> Any:
    usual = {
        "warmup_steps": 0,
        "steady": "declared",
        "timer_mode": "light",
        "system_interval_s": 0.0,
        "disk_full": "end",
        "study": "s",
        "partition": "p",
        "repeat": 0,
    }
    return SimpleNamespace(**{**usual, **changed})


def opened(out: Path, **changed: Any) -> Session:
    session = Session(Alone(), options(**changed))
    session.describe_ranks(CPU, lr=0.1, settings={})
    session.claim(out)
    session.create({"asked": 1}, {"batch": 10}, batch=10)
    session.start(CPU)
    session.open_clock()
    return session


def make_steps(session: Session, time: Seconds, steps: range, step_s: float, *, timed: bool) -> None:
    session.open_stretch(timed=timed)
    for step in steps:
        session.clock.begin()
        time.spend(step_s)
        session.clock.lap("update")
        session.rows.add(step, 0, torch.zeros(()))
    session.close_stretch()


def run_json(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "run.json").read_text())
    return content


def test_other_processes_on_its_gpu_are_recorded_and_doubted(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    gpu = {"name": "a GPU", "uuid": "12-34", "processes": [7, 4711]}
    rank = {"host": "n1", "pid": 7, "cores": [0], "threads": 1, "gpu": gpu}
    monkeypatch.setattr(module.evidence, "describe_rank", lambda *_: rank)
    with Session(Alone(), options()) as session:
        session.describe_ranks(CPU, lr=0.1, settings={})

    assert session.effective["other_gpu_processes"] == {"n1": 1}
    golden(session.doubts, "1 process", "GPUs")


def test_what_starts_beside_a_run_in_turns_is_no_other_program(time: Seconds, monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"seconds": 1.0, "busy_s": 2.0, "own_s": 0.5}
    monkeypatch.setattr(module.evidence.OtherLoad, "sample", lambda self, at_least_s: load)
    for variable, cores in (("", 1.5), ("127.0.0.1:1:t", None)):
        monkeypatch.setenv(module.turns.TURNS, variable)
        session = Session(Alone(), options())
        session.describe_ranks(CPU, lr=0.1, settings={})
        assert list(session.effective["other_programs_cores"].values()) == [cores]


def test_only_timed_stretches_are_the_window_and_what_lies_between_is_none(time: Seconds, tmp_path: Path) -> None:
    session = opened(tmp_path / "run", warmup_steps=3)
    with session:
        make_steps(session, time, range(3), 8.0, timed=False)
        time.spend(1000)
        make_steps(session, time, range(3, 7), 0.5, timed=True)
        time.spend(1000)
        make_steps(session, time, range(7, 11), 0.25, timed=True)
        first = session.find_steady(11)
        totals = session.totals(first, made=11, samples=80)
        session.finish(totals)
    found = records.read_run(tmp_path / "run")

    assert session.stretches == [[1024.0, 1026.0], [2026.0, 2027.0]]
    assert (totals["window_s"], totals["samples_per_s"]) == (3.0, 80 / 3.0)
    assert (totals["steps"], totals["excluded_steps"], totals["step_s_median"]) == (8, 3, 0.375)
    assert (found.status, found.totals["window_s"]) == ("done", 3.0)
    assert (found.requested, found.effective["batch"]) == ({"asked": 1, "workers": 1}, 10)


def test_a_run_goes_on_from_the_window_of_its_slowest_rank(
    time: Seconds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(tmp_path / "run")
    with session:
        make_steps(session, time, range(4), 0.5, timed=True)
        with monkeypatch.context() as patch:
            patch.setattr(session.workers, "gather", lambda value: [value, 2.25])
            progress = session.progress()
    going_on = opened(tmp_path / "other")
    with going_on:
        going_on.take_up(progress)

    assert (session.window_s, going_on.window_s) == (2.0, 2.25)
    assert going_on.stretches == session.stretches


def test_a_warm_up_that_was_found_is_taken_out_of_the_window(
    time: Seconds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = module.steady.Steady(step=4, declared=1, found_by="change-point")
    monkeypatch.setattr(module.steady, "find_steady", lambda step_s, first: found)
    session = opened(tmp_path / "run", warmup_steps=1, steady="found")
    with session:
        make_steps(session, time, range(1), 8.0, timed=False)
        make_steps(session, time, range(1, 11), 0.5, timed=True)
        totals = session.totals(session.find_steady(11), made=11, samples=70)

    assert (totals["window_s"], totals["steps"], totals["excluded_steps"]) == (3.5, 7, 4)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(StudyError("no such thing"), "no such thing"), (ValueError("bad\n value"), "ValueError: bad value")],
)
def test_an_error_is_told_in_the_record_and_the_claim_given_back(
    error: Exception, reason: str, time: Seconds, tmp_path: Path
) -> None:
    session = opened(tmp_path / "run")
    assert lease.holder_of_run(tmp_path / "run") is not None
    with pytest.raises(type(error)), session:
        make_steps(session, time, range(5), 0.5, timed=True)
        raise error
    found = records.read_run(tmp_path / "run")

    assert (found.status, found.reason) == ("failed", reason)
    assert len(records.read_steps(tmp_path / "run", 0)) == 5
    assert lease.holder_of_run(tmp_path / "run") is None


def test_a_run_of_somebody_else_is_left_as_it_is(time: Seconds, tmp_path: Path) -> None:
    with opened(tmp_path / "run"):
        before = run_json(tmp_path / "run")
        second = Session(Alone(), options())
        with pytest.raises(StudyError), second:
            second.describe_ranks(CPU, lr=0.1, settings={})
            second.claim(tmp_path / "run")

        assert before["status"] == "running"
        assert run_json(tmp_path / "run") == before


def test_a_total_that_one_rank_does_not_know_is_not_known(time: Seconds, tmp_path: Path) -> None:
    """The mean over some of the ranks is none over all; one rule for whatever is recorded."""
    session = opened(tmp_path / "run")
    with session:
        make_steps(session, time, range(5), 0.5, timed=True)
        first = session.find_steady(5)

        def with_one_that_has_no_laps(mine: Any) -> list[Any]:
            summary = mine["summary"]
            none = {kind: dict.fromkeys(summary[kind]) for kind in ("mean", "median")}
            return [mine, {**mine, "window_s": 5.0, "summary": {**summary, **none, "step_s_p90": None}}]

        session.workers.gather = with_one_that_has_no_laps  # type: ignore[method-assign]
        totals = session.totals(first, made=5, samples=50)

    assert (totals["update_s"], totals["step_s_median"], totals["lap_medians_s"]["update"]) == (None, None, None)
    assert (totals["window_s"], totals["samples_per_s"]) == (5.0, 20.0)
