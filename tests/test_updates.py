"""Steps are updates of the parameters: gradient accumulation is seen, declared or not."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from make.wording import Golden
from test_recording import X, batches, clock, laps, manifest, open_recorder  # noqa: F401
from torch import nn

from horovod_study import records
from horovod_study.errors import ConfigError, StudyError
from horovod_study.recording import recorder
from horovod_study.recording.steps import MOST_TURNS


def train(out: Path, *, turns: int, every: int, steps: Any = None, **options: Any) -> recorder.Recording:
    """Make so many turns of a loop with an update in every so-many-th of them, or in those that `steps` holds."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate = options.pop("accumulate", 1)
    with open_recorder(model, optimizer, out, steady="declared", **options) as record:
        for turn, x in enumerate(record.steps(batches(turns), accumulate=accumulate)):
            model(x).sum().backward()
            if turn % every == every - 1 if steps is None else turn in steps:
                optimizer.step()
                optimizer.zero_grad()
    return record


def samples(out: Path) -> list[int]:
    return [row["samples"] for row in records.read_steps(out, 0).to_pylist()]


@pytest.mark.parametrize("timer_mode", ["light", "off"])
@pytest.mark.parametrize("every, accumulate", [(1, 1), (4, 1), (4, 4), (2, 4)])
def test_a_step_is_an_update_whatever_was_declared(
    every: int, accumulate: int, timer_mode: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(out, turns=24, every=every, accumulate=accumulate, timer_mode=timer_mode)

    assert manifest(out)["totals"]["steps"] == 24 // every
    assert manifest(out)["effective"]["turns_per_update"] == every
    assert manifest(out)["effective"]["batch"] == every * len(X)
    assert manifest(out)["totals"]["steady"]["doubt"] == ""
    if timer_mode == "light":
        assert samples(out) == [every * len(X)] * (24 // every)


def test_a_batch_that_was_given_is_that_of_the_declared_turns(tmp_path: Path) -> None:
    train(tmp_path / "a", turns=8, every=4, batch=10)
    train(tmp_path / "b", turns=8, every=4, batch=40, accumulate=4)

    assert samples(tmp_path / "a") == samples(tmp_path / "b") == [40, 40]
    assert manifest(tmp_path / "a")["effective"]["batch"] == manifest(tmp_path / "b")["effective"]["batch"] == 40


def test_throughput_counts_the_samples_of_all_turns(clock: Any, tmp_path: Path) -> None:  # noqa: F811
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for turn, x in enumerate(record.steps(batches(12, lambda: clock.spend(1)))):
            model(x).sum().backward()
            if turn % 3 == 2:
                optimizer.step()

    assert laps(tmp_path / "run") == [{"data": 3}] * 4
    assert manifest(tmp_path / "run")["totals"]["samples_per_s"] == pytest.approx(len(X))


def test_an_update_that_a_loss_scaler_skips_is_no_accumulation(tmp_path: Path) -> None:
    train(tmp_path / "run", turns=100, every=1, steps=set(range(100)) - {50})

    assert manifest(tmp_path / "run")["effective"]["turns_per_update"] == 1
    assert manifest(tmp_path / "run")["totals"]["steps"] == 99
    assert manifest(tmp_path / "run")["totals"]["steady"]["doubt"] == ""


def test_irregular_updates_are_a_doubt(tmp_path: Path) -> None:
    train(tmp_path / "run", turns=60, every=1, steps={turn for turn in range(60) if turn % 7 in (0, 1, 4)})

    assert "irregularly" in manifest(tmp_path / "run")["totals"]["steady"]["doubt"]


def test_an_optimizer_that_never_steps_makes_no_step(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(StudyError, match="optimizer that is stepped"):
        train(tmp_path / "run", turns=20, every=math.inf)  # type: ignore[arg-type]

    assert manifest(tmp_path / "run")["status"] == "failed"
    assert samples(tmp_path / "run") == []


def test_a_long_loop_without_updates_is_recorded_by_its_turns_with_a_doubt(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(out, turns=MOST_TURNS + 30, every=10**9)

    assert manifest(out)["totals"]["steps"] == MOST_TURNS + 30
    assert manifest(out)["effective"]["turns_per_update"] is None
    assert "130 of 130 steps" in manifest(out)["totals"]["steady"]["doubt"]


def test_updates_of_one_s_own_are_marked_as_a_lap(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(5)):
            model(x).sum().backward()
            record.lap("update")

    assert manifest(tmp_path / "run")["totals"]["steps"] == 5
    assert manifest(tmp_path / "run")["effective"]["turns_per_update"] == 1


class Prepared(torch.optim.Optimizer):
    """As Accelerate wraps an optimizer: one by name, without hooks of its own, which steps every fourth time."""

    def __init__(self, optimizer: Any, every: int = 4) -> None:
        self.optimizer, self.every, self.calls = optimizer, every, 0

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        if self.calls % self.every == 0:
            self.optimizer.step(closure)
            self.optimizer.zero_grad()


def test_the_updates_of_a_wrapped_optimizer_are_seen(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = Prepared(torch.optim.SGD(model.parameters(), lr=0.1))
    with open_recorder(model, optimizer, tmp_path / "run", steady="declared") as record:
        for x in record.steps(batches(24)):
            model(x).sum().backward()
            optimizer.step()

    assert manifest(tmp_path / "run")["totals"]["steps"] == 6
    assert manifest(tmp_path / "run")["effective"]["turns_per_update"] == 4
    assert manifest(tmp_path / "run")["effective"]["optimizer"] == "SGD"


def test_an_optimizer_that_takes_no_hooks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Prepared"):
        open_recorder(nn.Linear(2, 1), Prepared(None), tmp_path / "run")
