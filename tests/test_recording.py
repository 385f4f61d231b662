"""Somebody's own loop: what each phase is counted as, and that the loop stays what it was."""

import errno
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make.wording import Golden
from torch import nn

import horovod_study
from horovod_study import records
from horovod_study.errors import ConfigError, StudyError
from horovod_study.recording import command, recorder
from horovod_study.recording.rank import events, facts

LAPS = ("data", "forward", "backward", "sync", "update", "residual")


class Time:
    """A clock that stands still until somebody spends time."""

    now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


class _Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Callable[[], None], backward: Callable[[], None]) -> torch.Tensor:
        forward()
        ctx.backward_spends = backward
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.backward_spends()
        return gradient, None, None


class Model(nn.Module):
    """(B, 2) -> (B, 1); its forward and its backward take known times."""

    def __init__(self, forward: Callable[[], None] = lambda: None, backward: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self._forward, self._backward = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Behind the layer, so that the layer's gradients are made after it.
        return _Spend.apply(self.layer(x), self._forward, self._backward)


class Optimizer(torch.optim.SGD):
    """SGD whose step takes a known time."""

    def __init__(self, parameters: Any, spend: Callable[[], None] = lambda: None) -> None:
        super().__init__(parameters, lr=0.1)
        self._spend = spend

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self._spend()
        return loss


class HorovodLike(Optimizer):
    """What Horovod's DistributedOptimizer is from outside: `step` waits in `synchronize`, unless told not to."""

    def __init__(self, parameters: Any, spend: Callable[[], None], wait: Callable[[], None]) -> None:
        super().__init__(parameters, spend)
        self._wait, self._skip = wait, False

    def synchronize(self) -> None:
        self._wait()

    def skip_synchronize(self) -> "HorovodLike":
        self._skip = True
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._skip = False

    def step(self, closure: Any = None) -> Any:
        if not self._skip:
            self.synchronize()
        return super().step(closure)


X = torch.ones(3, 2)


def batches(count: int, spend: Callable[[], None] = lambda: None) -> Iterator[torch.Tensor]:
    for _ in range(count):
        spend()
        yield X


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """All laps are measured on a clock of the test's own."""
    fake = Time()
    monkeypatch.setattr(events, "now", lambda: fake.now)
    return fake


def open_recorder(model: nn.Module, optimizer: Any, out: Path, **options: Any) -> recorder.Recording:
    return horovod_study.recorder(model, optimizer, out=out, **{"warmup_steps": 0, "system_interval_s": 0.0, **options})


def laps(directory: Path) -> list[dict[str, float]]:
    """Return the laps of each row that are not zero."""
    rows = records.read_steps(directory, 0).to_pylist()
    for row in rows:
        assert sum(row[f"{lap}_s"] or 0.0 for lap in LAPS) == pytest.approx(row["step_s"])
    return [{lap: row[f"{lap}_s"] for lap in LAPS if row[f"{lap}_s"]} for row in rows]


def manifest(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "run.json").read_text()))


# ------------------------------------------------------------------------------------------------ what is what


def test_every_phase_is_counted_where_it_belongs(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters(), lambda: clock.spend(128))
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(3, lambda: clock.spend(1))):
            clock.spend(2)  # nobody says what this is
            loss = model(x).sum()
            clock.spend(8)  # the loss
            record.lap("forward")
            loss.backward()
            clock.spend(64)  # nor this
            optimizer.step()
            clock.spend(256)  # nor this: it is before the next step, or the end
    usual = {"data": 1, "forward": 12, "backward": 32, "update": 128}

    assert laps(tmp_path / "run") == [{**usual, "residual": 66 + 256}] * 3
    assert [row["begin_s"] for row in records.read_steps(tmp_path / "run", 0).to_pylist()] == [0, 495, 990]


def test_without_laps_of_its_own_the_loss_is_part_of_backward(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters(), lambda: clock.spend(128))
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(1, lambda: clock.spend(1))):
            loss = model(x).sum()
            clock.spend(8)
            loss.backward()
            optimizer.step()

    assert laps(tmp_path / "run") == [{"data": 1, "forward": 4, "backward": 40, "update": 128}]


def test_one_worker_waits_for_nobody_and_that_is_known(tmp_path: Path) -> None:
    _train(tmp_path / "run", steps=2)

    assert [row["sync_s"] for row in records.read_steps(tmp_path / "run", 0).to_pylist()] == [0.0, 0.0]


def test_the_wait_in_horovods_synchronize_is_sync(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = HorovodLike(model.parameters(), lambda: clock.spend(128), lambda: clock.spend(1024))
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(1)):
            model(x).sum().backward()
            clock.spend(64)
            optimizer.step()
        for x in record.steps(batches(1)):  # as scripts do that clip the averaged gradients
            model(x).sum().backward()
            optimizer.synchronize()
            clock.spend(64)
            with optimizer.skip_synchronize():
                optimizer.step()

    expected = {"forward": 4, "backward": 32, "sync": 1024, "residual": 64, "update": 128}
    assert laps(tmp_path / "run") == [expected, expected]


def test_a_wait_inside_backward_is_sync(clock: Time, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As DistributedDataParallel waits: from the last own gradient until autograd is done."""
    monkeypatch.setattr(facts, "averaging", lambda model: model)
    engine = torch.autograd.Variable._execution_engine
    made = []

    def gradient(_: torch.Tensor) -> None:
        made.append(1)
        if len(made) % 2 == 0:  # weight and bias
            engine.queue_callback(lambda: clock.spend(512))

    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters(), lambda: clock.spend(128))
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(gradient)
        for x in record.steps(batches(5)):
            model(x).sum().backward()
            clock.spend(64)
            optimizer.step()

    step = {"forward": 4, "backward": 32, "sync": 512, "residual": 64, "update": 128}
    assert laps(tmp_path / "run") == [step] * 5


def test_laps_can_be_marked_by_hand_where_nothing_is_seen(clock: Time, tmp_path: Path) -> None:
    """A model that is called through another object, gradients averaged manually."""
    model = Model()
    optimizer = Optimizer(model.parameters(), lambda: clock.spend(128))
    with open_recorder(model, optimizer, tmp_path / "run", forward_hooks=False) as record:
        for x in record.steps(batches(1)):
            clock.spend(2)
            record.lap("data")
            clock.spend(4)
            loss = model.forward(x).sum()
            record.lap("forward")
            clock.spend(8)
            loss.backward()
            clock.spend(16)
            record.lap("backward")
            clock.spend(32)
            record.lap("sync")
            optimizer.step()
            clock.spend(64)
            record.lap("update")

    expected = {"data": 2, "forward": 4, "backward": 24, "sync": 32, "update": 192}
    assert laps(tmp_path / "run") == [expected]


def test_several_turns_can_make_one_step(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters(), lambda: clock.spend(128))
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for turn, x in enumerate(record.steps(batches(6, lambda: clock.spend(1)), accumulate=3)):
            model(x).sum().backward()
            clock.spend(2)
            if turn % 3 == 2:
                optimizer.step()

    step = {"data": 3, "forward": 12, "backward": 96, "residual": 6, "update": 128}
    assert laps(tmp_path / "run") == [step, step]
    assert [row["samples"] for row in records.read_steps(tmp_path / "run", 0).to_pylist()] == [9, 9]


def test_several_backwards_in_one_turn_add_up(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(1)):
            for half in (x, x):
                model(half).sum().backward()
                clock.spend(1)
            optimizer.step()

    assert laps(tmp_path / "run") == [{"forward": 8, "backward": 64, "residual": 2}]


def test_a_closure_is_split_into_its_phases(clock: Time, tmp_path: Path) -> None:
    """An optimizer that calls forward and backward from inside its step."""
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters(), lambda: clock.spend(128))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(X).sum()
        loss.backward()
        return loss

    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for _ in record.steps(batches(1)):
            optimizer.step(closure)

    assert laps(tmp_path / "run") == [{"forward": 4, "backward": 32, "update": 128}]


def test_skipped_time_belongs_to_no_step(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4), lambda: clock.spend(32))
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for step, x in enumerate(record.steps(batches(3))):
            model(x).sum().backward()
            optimizer.step()
            clock.spend(1)
            if step == 0:
                with record.skip(), torch.no_grad():
                    model(x)
                    clock.spend(1000)
                clock.spend(2)
        clock.spend(1000)  # between epochs
        for x in record.steps(batches(1)):
            model(x).sum().backward()
            optimizer.step()
    usual = {"forward": 4, "backward": 32}

    assert laps(tmp_path / "run") == [
        {**usual, "residual": 1 + 2},  # before and after what was skipped
        {**usual, "residual": 1},
        {**usual, "residual": 1},
        usual,
    ]
    totals = manifest(tmp_path / "run")["totals"]
    assert (totals["window_s"], totals["outside"]["seconds"], totals["outside"]["gaps"]) == (149, 2004, 2)
    assert [row["epoch"] for row in records.read_steps(tmp_path / "run", 0).to_pylist()] == [0, 0, 0, 1]


def test_an_evaluation_that_is_not_skipped_is_unexplained_time(clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4))
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(2)):
            model(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(x)

    assert laps(tmp_path / "run") == [{"forward": 4, "residual": 4}] * 2


@pytest.mark.parametrize("updated", [True, False])
def test_a_step_that_is_left_by_break_counts_if_it_was_made(updated: bool, clock: Time, tmp_path: Path) -> None:
    model = Model(lambda: clock.spend(4))
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for step, x in enumerate(record.steps(batches(9))):
            model(x).sum().backward()
            if step == 2 and not updated:
                break
            optimizer.step()
            if step == 2:
                break
        model(X)  # no step is open any more
        for x in itertools.islice(record.steps(batches(9)), 2):
            model(x).sum().backward()
            optimizer.step()

    assert laps(tmp_path / "run") == [{"forward": 4}] * (5 if updated else 4)


def test_a_backward_that_failed_spoils_nothing(clock: Time, tmp_path: Path) -> None:
    """Such as one that is out of memory, which the script survives with a smaller batch."""
    fail = [True]

    def backward() -> None:
        clock.spend(32)
        if fail.pop():
            raise MemoryError("too large")

    class Deep(Model):
        """A second layer, whose gradients are made before the failure."""

        def __init__(self) -> None:
            super().__init__(lambda: clock.spend(4), backward)
            self.last = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(super().forward(x))

    model = Deep()
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(2)):
            with pytest.raises(MemoryError, match="too large") if fail == [True] else nullcontext():
                model(x).sum().backward()
            fail.append(False)
            optimizer.step()

    assert laps(tmp_path / "run") == [{"forward": 4, "backward": 32}] * 2


# ------------------------------------------------------------------------------------------------ the record


def _train(out: Path, *, steps: int, loss: bool = False, **options: Any) -> None:
    model = Model()
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, out, **options) as record:
        for x in record.steps(batches(steps)):
            value = model(x).square().mean()
            if loss:
                record.loss(value)
            value.backward()
            optimizer.step()


def test_the_run_directory_says_what_ran(tmp_path: Path) -> None:
    model = Model()
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run", warmup_steps=3, study="mine", repeat=2) as record:
        assert record.directory == tmp_path / "run"
        assert manifest(tmp_path / "run")["status"] == "running"  # before the first step
        for x in record.steps([X] * 10):
            model(x).sum().backward()
            optimizer.step()
    found = records.read_run(tmp_path / "run")
    totals, effective = found.totals, found.effective

    assert (found.study, found.repeat, found.status, found.key) == ("mine", 2, "done", "run")
    assert {name: effective[name] for name in ("model", "backend", "transport", "reduction", "optimizer")} == {
        "model": "Model",
        "backend": "serial",
        "transport": "none",
        "reduction": "none",
        "optimizer": "Optimizer",
    }
    assert (effective["batch"], effective["global_batch"], effective["parameters"], effective["lr"]) == (3, 3, 3, 0.1)
    assert (totals["steps"], totals["excluded_steps"], totals["rows_lost"]) == (7, 3, [0])
    assert totals["samples_per_s"] == pytest.approx(21 / totals["window_s"])
    assert totals["steady"]["found_by"] == "declared" and "too few" in totals["steady"]["doubt"]
    assert totals["test_mse"] is None
    rows = records.read_steps(tmp_path / "run", 0)
    assert totals["window_s"] == pytest.approx(sum(rows["step_s"].to_pylist()[3:]))
    assert rows["loss"].null_count == 10


def test_losses_are_kept_where_they_are_told(tmp_path: Path) -> None:
    model = Model()
    optimizer = Optimizer(model.parameters())
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for step, x in enumerate(record.steps(batches(3))):
            loss = model(x).sum()
            if step != 1:
                record.loss(torch.tensor(0.5 + step))
            loss.backward()
            optimizer.step()

    assert records.read_steps(tmp_path / "run", 0)["loss"].to_pylist() == [0.5, None, 2.5]


def test_without_laps_only_the_window_is_known(tmp_path: Path) -> None:
    _train(tmp_path / "run", steps=6, warmup_steps=2, timer_mode="off", loss=True)
    totals = manifest(tmp_path / "run")["totals"]
    rows = records.read_steps(tmp_path / "run", 0)

    assert rows["step_s"].null_count == rows["forward_s"].null_count == 6
    assert totals["window_s"] > 0 and totals["samples_per_s"] == pytest.approx(12 / totals["window_s"])
    assert totals["step_s_median"] is None and totals["steady"]["found_by"] == "declared"


def test_a_full_disk_ends_the_record_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    grow, parts = events.Log._grow, []

    def full(log: events.Log) -> None:
        parts.append(log)
        if len(parts) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        grow(log)

    monkeypatch.setattr(events, "_PART", 3 * mmap.ALLOCATIONGRANULARITY)
    monkeypatch.setattr(events.Log, "_grow", full)
    steps = 3 * mmap.ALLOCATIONGRANULARITY // 64
    _train(tmp_path / "run", steps=steps, warmup_steps=5)
    found = records.read_run(tmp_path / "run")

    assert found.status == "failed" and 5 < len(records.read_steps(tmp_path / "run", 0)) < steps
    golden(found.reason, "No space left")
    golden.line(capsys.readouterr().err, "the training goes on")


@pytest.mark.parametrize("error", [ValueError("my own fault"), KeyboardInterrupt()])
def test_errors_of_the_training_pass_through_unchanged(error: BaseException, tmp_path: Path) -> None:
    model = Model()
    optimizer = Optimizer(model.parameters())
    with (
        pytest.raises(type(error)) as caught,
        open_recorder(model, optimizer, tmp_path / "run") as record,
    ):
        for step, x in enumerate(record.steps(batches(5))):
            model(x).sum().backward()
            if step == 3:
                raise error
            optimizer.step()
    found = records.read_run(tmp_path / "run")

    assert caught.value is error
    assert (found.status, found.reason) == ("failed", ": ".join(filter(None, (type(error).__name__, str(error)))))
    assert len(records.read_steps(tmp_path / "run", 0)) == 3  # the one that failed was not made


def test_model_and_optimizer_are_as_they_were_afterwards(tmp_path: Path) -> None:
    model, plain = Model(), Model()
    optimizer = HorovodLike(model.parameters(), lambda: None, lambda: None)
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for x in record.steps(batches(1)):
            model(x).sum().backward()
            optimizer.step()
    weight = model.layer.weight

    assert "synchronize" not in vars(optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 0
    assert len(model._forward_hooks) == len(model._forward_pre_hooks) == 0
    assert not weight._post_accumulate_grad_hooks and not plain.layer.weight._post_accumulate_grad_hooks


def test_recording_changes_nothing_about_the_training(tmp_path: Path) -> None:
    ends = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        optimizer = torch.optim.Adam(model.parameters())
        with open_recorder(model, optimizer, tmp_path / "run") if recorded else nullcontext() as record:
            for x in batches(20) if record is None else record.steps(batches(20)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        ends.append(torch.cat([each.detach().reshape(-1) for each in model.parameters()]))

    assert torch.equal(*ends)


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_wrong_use_is_told_in_one_line(tmp_path: Path) -> None:
    model = Model()
    optimizer = Optimizer(model.parameters())

    def expect(kind: type[StudyError], text: str, use: Callable[[], Any]) -> None:
        with pytest.raises(kind) as caught:
            use()
        assert text in str(caught.value) and "\n" not in str(caught.value)

    expect(ConfigError, "give the torch.nn.Module", lambda: horovod_study.recorder("model", optimizer))
    expect(ConfigError, "give the torch.optim.Optimizer", lambda: horovod_study.recorder(model, "sgd"))
    expect(ConfigError, "recorder: batch", lambda: horovod_study.recorder(model, optimizer, batch=0))
    expect(ConfigError, "recorder: timer_mode", lambda: horovod_study.recorder(model, optimizer, timer_mode="exact"))
    record = open_recorder(model, optimizer, tmp_path / "run")
    expect(StudyError, "record.steps: the recorder is not open", lambda: record.steps([X]))
    with record:
        expect(StudyError, "was used already", record.__enter__)
        expect(StudyError, "record.lap('forward'): outside a step", lambda: record.lap("forward"))
        expect(StudyError, "record.loss: outside a step", lambda: record.loss(torch.tensor(0.0)))
        expect(ConfigError, "accumulate is 0", lambda: record.steps([X], accumulate=0))
        for x in record.steps([X]):
            expect(ConfigError, "unknown lap 'foward' (did you mean 'forward'?)", lambda: record.lap("foward"))
            model(x).sum().backward()
            optimizer.step()
    expect(StudyError, "was used already", record.__enter__)
    expect(StudyError, "the recorder is not open", lambda: record.lap("forward"))
    other = open_recorder(model, optimizer, tmp_path / "run")
    expect(StudyError, "already holds a run (done); nothing was overwritten, choose another out=", other.__enter__)


def test_a_batch_whose_size_cannot_be_seen_is_told(tmp_path: Path, golden: Golden) -> None:
    model = Model()
    with (
        golden.raises(ConfigError, match="batch="),
        open_recorder(model, Optimizer(model.parameters()), tmp_path / "run") as record,
    ):
        for _ in record.steps(["a", "b"]):
            pass

    assert manifest(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [(X, 3), ([X, torch.ones(5)], 3), ({"id": "a", "image": X}, 3), (("a", [np.zeros((4, 2))]), 4)],
)
def test_samples_are_counted_along_the_first_dimension(batch: Any, samples: int) -> None:
    assert facts.samples_of(batch) == samples


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (0, "record.steps"),
        (4, "4 steps"),
    ],
)
def test_a_run_with_nothing_to_measure_has_failed(steps: int, message: str, tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(StudyError) as caught:
        _train(tmp_path / "run", steps=steps, warmup_steps=4)

    golden(str(caught.value), message)
    assert manifest(tmp_path / "run")["status"] == "failed"
    golden(manifest(tmp_path / "run")["reason"], message)


def _io_error(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


def _bug(*_: Any, **__: Any) -> Any:
    raise TypeError("a bug of ours")


@pytest.mark.slow
@pytest.mark.parametrize("disk_full", ["go-on", "end"])
@pytest.mark.parametrize(
    "fault",
    [
        "folder removed",
        "folder replaced by a file",
        "rows",
        "end of the rows",
        "record",
        "digest of the parameters",
        "steady window",
    ],
)
def test_a_record_that_cannot_be_kept_ends_no_training(
    fault: str, disk_full: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever trains for a day and saves the model after the `with` statement has it in any case."""
    run, model = tmp_path / "run", Model()
    optimizer, made = Optimizer(model.parameters()), 0

    def bring_about() -> None:
        if fault.startswith("folder"):
            shutil.rmtree(run)
            if fault.endswith("file"):
                run.write_text("")
        where: dict[str, tuple[Any, str, Any]] = {
            "rows": (records.StepWriter, "_write", _io_error),
            "end of the rows": (records.StepWriter, "_join", _io_error),
            "record": (records, "finish_run", _io_error),
            "digest of the parameters": (facts, "digest", _bug),
            "steady window": (command.steady, "find_steady", _bug),
        }
        if fault in where:
            monkeypatch.setattr(*where[fault])

    def train() -> None:
        nonlocal made
        with open_recorder(model, optimizer, run, warmup_steps=2, disk_full=disk_full) as record:
            for x in record.steps(batches(12)):
                model(x).sum().backward()
                optimizer.step()
                made += 1
                if made == 6:
                    bring_about()

    if disk_full == "go-on":
        train()
        assert made == 12
        assert [line for line in capsys.readouterr().err.splitlines() if "training goes on" in line] != []
    else:
        with pytest.raises((StudyError, OSError, TypeError)):
            train()


@pytest.mark.parametrize("goes_on", [False, True], ids=["leaves at once", "goes on with the loop"])
def test_a_fork_of_the_script_leaves_the_record_alone(goes_on: bool, tmp_path: Path) -> None:
    model = Model()
    optimizer, pid = Optimizer(model.parameters()), -1
    try:
        with open_recorder(model, optimizer, tmp_path / "run", warmup_steps=2) as record:
            for number, x in enumerate(record.steps(batches(12))):
                model(x).sum().backward()
                optimizer.step()
                if number == 5:
                    pid = os.fork()
                    if pid == 0 and not goes_on:
                        raise SystemExit
                    if pid:
                        os.waitpid(pid, 0) if not goes_on else None
    finally:
        if pid == 0:
            os._exit(0)
    if goes_on:
        os.waitpid(pid, 0)

    assert records.read_run(tmp_path / "run").status == "done"
    assert records.read_steps(tmp_path / "run", 0)["step"].to_pylist() == list(range(12))


# ------------------------------------------------------------------------------------------------ for real


def test_sleeps_of_known_length_appear_in_their_laps(tmp_path: Path) -> None:
    """On the real clock. The shortest of the steps is looked at: other load only makes laps longer."""
    model = Model(lambda: time.sleep(0.004), lambda: time.sleep(0.006))
    optimizer = HorovodLike(model.parameters(), lambda: time.sleep(0.008), lambda: time.sleep(0.010))
    for attempt in range(5):
        out = tmp_path / f"run-{attempt}"
        with open_recorder(model, optimizer, out) as record:
            for x in record.steps(batches(10, lambda: time.sleep(0.002))):
                model(x).sum().backward()
                time.sleep(0.012)
                optimizer.step()
        rows = records.read_steps(out, 0)
        shortest = {lap: min(rows[f"{lap}_s"].to_pylist()) for lap in LAPS}
        slept = {"data": 0.002, "forward": 0.004, "backward": 0.006, "update": 0.008, "sync": 0.010, "residual": 0.012}
        assert all(shortest[lap] >= slept[lap] for lap in LAPS)
        if all(shortest[lap] < slept[lap] + 0.0015 for lap in LAPS):
            return
    pytest.fail(f"laps {shortest} of sleeps {slept}")


PROGRAM = """
import gc, sys, time
import torch
from torch import distributed, nn
import horovod_study

def train():
    rank = distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with horovod_study.recorder(model, optimizer, out=sys.argv[1], warmup_steps=5, system_interval_s=0.2) as record:
        for x in record.steps([torch.ones(4, 20)] * 25):
            loss = model(x).sum()
            record.lap("forward")
            if rank == 1:
                time.sleep(0.020)
            loss.backward()
            time.sleep(0.003)
            optimizer.step()
        if sys.argv[2] == "fail" and rank == 1:
            raise ValueError("rank 1 is wrong")

distributed.init_process_group("gloo")
torch.set_num_threads(1)
train()
gc.collect()
distributed.destroy_process_group()
"""


def _torchrun(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "script.py"
    program.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*torchrun, str(program), *words], env=environment, capture_output=True, text=True, timeout=180
    )


@pytest.mark.slow
def test_the_wait_for_a_slow_rank_is_the_others_sync(tmp_path: Path) -> None:
    for attempt in range(4):  # other load on the machine delays a rank, and with it the other one
        out = tmp_path / f"run-{attempt}"
        done = _torchrun(tmp_path, str(out), "well")
        if "terminate called without an active exception" in done.stderr:
            continue  # PyTorch itself does so now and then, when it takes a group down
        assert done.returncode == 0, done.stderr
        rows = [records.read_steps(out, rank) for rank in (0, 1)]
        usual = [{lap: float(np.median(each[f"{lap}_s"].to_numpy()[5:])) for lap in LAPS} for each in rows]
        waits = usual[0]["sync"] > 4 * usual[1]["sync"] and usual[1]["backward"] > 4 * usual[0]["backward"]
        slept = usual[1]["backward"] >= 0.020
        if waits and slept and abs(usual[0]["sync"] / usual[1]["backward"] - 1) < 0.3:
            break
    else:
        pytest.fail(f"one rank sleeps 20 ms before backward, and the laps are {usual}")
    found = records.read_run(out)

    assert all(each["residual"] >= 0.003 for each in usual)  # the sleep before the optimizer's step
    assert (found.status, found.effective["backend"], found.effective["reduction"]) == ("done", "ddp", "hooks")
    assert (found.effective["transport"], found.effective["workers"]) == ("gloo", 2)
    assert found.totals["parameter_sha256"] is not None
    assert (out / f"system-{found.host}.arrows").exists()


@pytest.mark.slow
def test_any_rank_that_fails_says_so_in_the_record(tmp_path: Path) -> None:
    done = _torchrun(tmp_path, str(tmp_path / "run"), "fail")
    found = records.read_run(tmp_path / "run")

    assert done.returncode != 0 and "ValueError: rank 1 is wrong" in done.stderr
    assert (found.status, found.reason) == ("failed", "rank 1: ValueError: rank 1 is wrong")
    assert [len(records.read_steps(tmp_path / "run", rank)) for rank in (0, 1)] == [25, 25]


@pytest.mark.slow
def test_the_package_alone_needs_no_pytorch() -> None:
    program = """
import sys
import horovod_study
assert "torch" not in sys.modules
assert horovod_study.StudyError.__name__ == "StudyError"
assert callable(horovod_study.recorder) and "torch" in sys.modules
try:
    horovod_study.recoder
except AttributeError as error:
    assert "recoder" in str(error)
else:
    raise SystemExit("an unknown name was found")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
