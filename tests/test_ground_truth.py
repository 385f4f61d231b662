"""What is recorded against what is known: operations whose begin and duration the test itself has made."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import LAUNCHERS
from torch import nn

from horovod_study import records
from horovod_study.comm.base import LastGradient
from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.measure.clock import LapClock, now, sleep
from horovod_study.measure.recorder import Recorder
from horovod_study.strain.optimizer import Arithmetic
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.trainer import train_step
from horovod_study.train import main

MS = 1e-3
OPERATION_S, LEFT_S = 5 * MS, 3 * MS
"""How long the collective takes, and how much of backward is left when it begins: 2 ms of it are exposed."""
STEPS = 15
ATTEMPTS = 40
"""So often a quiet moment of a loaded machine is waited for; what is recorded must be right once, in the median."""


def spin(seconds: float) -> None:
    """Return after a time, without giving the processor away: on a loaded machine it comes back late."""
    end_s = now() + seconds
    while now() < end_s:
        pass


@pytest.fixture(autouse=True)
def _threads_take_turns_quickly() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(50e-6)
    yield
    sys.setswitchinterval(before)


class Slow(torch.autograd.Function):
    """The identity, whose backward takes a known time."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:  # type: ignore[override]
        ctx.seconds = seconds
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        spin(ctx.seconds)
        return gradient, None


class Network(nn.Module):
    """Backward: 1 ms, the gradient of `second`, 3 ms, the gradient of `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        early: torch.Tensor = Slow.apply(curves * self.first, LEFT_S)
        late: torch.Tensor = Slow.apply(early * self.second, 1 * MS)
        return late


class Collective:
    """An operation that runs beside training for a known time, in a thread, from `begin` on."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.launches_s: list[float] = []
        self._begun, self._done = threading.Event(), threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start it and return at once."""
        began = now()
        self._began = began
        self._done.clear()
        self._begun.set()
        self.launches_s.append(now() - began)

    def wait(self) -> None:
        """Return when it is done."""
        self._done.wait()

    def close(self) -> None:
        """End the thread."""
        self._over = True
        self._begun.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._begun.wait()
            self._begun.clear()
            if self._over:
                return
            sleep(max(0.0, self._began + OPERATION_S - now()))  # beside training, as a network is
            self.spans.append((self._began, now()))
            self._done.set()


@dataclass
class Backend:
    """Two ways in which libraries average from hooks; the second one waits before backward returns, as DDP does."""

    network: Network
    collective: Collective
    waits_in_backward: bool
    last_gradient: LastGradient | None = None
    backward_ends: list[float] = field(default_factory=list)  # of each step, as the test itself sees it
    flat: ClassVar[None] = None

    def __post_init__(self) -> None:
        self._accumulators = []  # kept, or their hooks are lost
        for parameter, react in ((self.network.second, self.collective.begin), (self.network.first, self._last)):
            node: Any = parameter.view_as(parameter).grad_fn
            accumulator = node.next_functions[0][0]
            accumulator.register_hook(lambda *_, react=react: react())
            self._accumulators.append(accumulator)
        if self.waits_in_backward:
            self.last_gradient = LastGradient(self.network.parameters())

    def _last(self) -> None:
        self.backward_ends.append(now())
        if self.waits_in_backward:
            self.collective.wait()

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()

    def synchronize(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.waits_in_backward:
            self.collective.wait()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()


def within(value_s: float, expected_s: float, tolerance_s: float = 0.5 * MS) -> bool:
    return abs(value_s - expected_s) <= tolerance_s  # False for NaN


def until_right(measure: Callable[[], dict[str, float]], expected_s: dict[str, float]) -> dict[str, float]:
    """Return what was measured, in the first attempt in which all is as expected, or in the last."""
    for _ in range(ATTEMPTS):
        found = measure()
        if all(within(found[name], value) for name, value in expected_s.items()):
            break
    return found


@pytest.mark.parametrize("waits_in_backward", [False, True])
def test_the_exposed_part_of_a_collective_is_what_is_recorded_as_sync(waits_in_backward: bool, tmp_path: Path) -> None:
    network, collective = Network(), Collective()
    backend = Backend(network, collective, waits_in_backward)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    arithmetic = Arithmetic(StrainConfig(dataset="2000", epochs=1), torch.device("cpu"))
    writers = []
    seen: list[np.ndarray] = []  # rows of good steps: sync, backward, the whole operation, a naive timer

    def measure() -> dict[str, float]:
        writers.append(records.StepWriter(tmp_path, len(writers)))
        recorder, clock = Recorder(writers[-1], batch=1), LapClock()
        collective.spans.clear()
        collective.launches_s.clear()
        backend.backward_ends.clear()
        clock.start()
        for step in range(STEPS):
            clock.begin()
            clock.lap("data")
            loss = train_step(
                network, optimizer, torch.ones(2), torch.zeros(2), backend, clock, arithmetic  # type: ignore[arg-type]
            )  # fmt: skip
            recorder.add(step, 0, loss)
        recorder.drain(clock)
        parts = np.sum([recorder.timed(f"{lap}_s") for lap in (*ORDINARY_LAPS, "residual")], axis=0)
        assert parts == pytest.approx(recorder.timed("step_s"), abs=1e-9), "laps tile"
        begins, ends = np.array(collective.spans).T
        # Steps that another program has disturbed were not what they were to be, and say nothing.
        whole, left = ends - begins, np.array(backend.backward_ends) - begins
        good = (np.abs(whole - OPERATION_S) < 0.3 * MS) & (np.abs(left - LEFT_S) < 0.3 * MS)

        columns = (recorder.timed("sync_s"), recorder.timed("backward_s"), whole, collective.launches_s)
        seen.append(np.stack([np.asarray(column)[good] for column in columns], axis=1))
        steps = np.concatenate(seen)
        medians = np.median(steps, axis=0) if len(steps) > 7 else np.full(4, math.nan)
        return dict(zip(("exposed", "backward", "whole", "naive"), medians.tolist(), strict=True))

    expected_s = {"exposed": OPERATION_S - LEFT_S, "whole": OPERATION_S, "backward": 1 * MS + LEFT_S}
    found = until_right(measure, expected_s)
    collective.close()
    for writer in writers:
        writer.close()

    assert found == {**found, **{name: pytest.approx(value, abs=0.5 * MS) for name, value in expected_s.items()}}
    # Timers around the operation itself: one around its call sees nothing of it, one from its call to its end it all.
    assert not within(found["naive"], expected_s["exposed"])
    assert not within(found["whole"], expected_s["exposed"])


def test_time_outside_every_lap_is_the_residual_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = Recorder.add

    took_s: dict[int, float] = {}

    def slow_add(recorder: Recorder, step: int, *arguments: Any) -> None:
        began = now()
        if step % 2:
            spin(2 * MS)
        add(recorder, step, *arguments)
        took_s[step + 1] = now() - began  # what is after the last lap of a step belongs to the next one

    monkeypatch.setattr(Recorder, "add", slow_add)  # called after the last lap of a step
    runs: list[Path] = []

    def measure() -> dict[str, float]:
        runs.append(tmp_path / str(len(runs)))
        options = ["--dataset", "2000", "--batch", "25", "--warmup-steps", "5", "--steps", "50"]
        beside = ["--no-checkpoint-at-end", "--system-interval-s", "0"]
        assert main([*options, *beside, "--out", str(runs[-1])]) == 0
        rows = records.read_steps(runs[-1], 0).to_pandas()[5:]
        laps = rows[[f"{lap}_s" for lap in (*ORDINARY_LAPS, "residual")]].sum(axis=1)
        assert laps.to_numpy() == pytest.approx(rows["step_s"].to_numpy(), abs=1e-9)
        took = rows["step"].map(took_s)
        disturbed = rows.loc[(took - 2 * MS).abs() < 0.2 * MS, "residual_s"]  # and by no other program
        quiet = rows.loc[took < 0.2 * MS, "residual_s"]
        return {"disturbed": float(disturbed.median()), "quiet": float(quiet.median())}

    found = until_right(measure, {"disturbed": 2 * MS, "quiet": 0.0})

    assert found["disturbed"] == pytest.approx(2 * MS, abs=0.5 * MS)
    assert found["quiet"] == pytest.approx(0, abs=0.5 * MS)


@pytest.mark.slow
@pytest.mark.horovod
def test_the_wait_for_a_slow_rank_is_sync_where_the_library_waits_inside_backward(tmp_path: Path) -> None:
    """DistributedDataParallel returns from backward when the slow rank's gradients have come."""
    slow = str(Path(__file__).parent / "slow_rank.py")
    line = [part.format(workers=2) if isinstance(part, str) else str(part) for part in LAUNCHERS["torchrun"]]
    options = ("--dataset", "4000", "--warmup-steps", "5", "--steps", "30", "--no-checkpoint-at-end", "--out")
    done = subprocess.run(
        [
            *line,
            slow,
            "1",
            "0.060",
            str(tmp_path / "slept.json"),
            *options,
            str(tmp_path / "r"),
            "--system-interval-s",
            "0",
        ],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = records.read_run(tmp_path / "r")
    fast, slow_rows = (records.read_steps(tmp_path / "r", rank).to_pandas()[10:] for rank in (0, 1))

    assert (record.effective["backend"], record.effective["reduction"]) == ("ddp", "hooks")
    assert slow_rows["data_s"].median() >= 60 * MS
    late_s = slow_rows["data_s"] - fast["data_s"]
    waited_s = fast["sync_s"] - slow_rows["sync_s"]
    assert 0.5 < (waited_s / late_s).median() < 1.5, "and half of it is more than another program takes from a step"
    assert fast["backward_s"].median() < 0.5 * late_s.median(), "no part of the wait is taken for backward"
    assert record.totals["sync_s"] > 0.25 * late_s.median()


# ---------------------------------------------------------------------------------------------- the last gradient


class Changing(nn.Module):
    """Whose parameters come in another order, or not at all, as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ParameterList([torch.ones(1) for _ in range(3)])
        self.order = [0, 1, 2]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for number in self.order:
            values = values * self.each[number]
        return values


def last_seen(watch: LastGradient, model: Changing) -> Any:
    seen: list[list[bool]] = []

    def stamp() -> int:
        seen.append([parameter.grad is not None for parameter in model.each])
        return len(seen)

    model.zero_grad()
    watch.arm(stamp)
    model(torch.ones(1)).sum().backward()
    taken = watch.taken()
    if taken is not None:
        assert taken == len(seen), "the last of the stamps"
    return taken, len(seen)


def test_only_the_last_gradient_is_watched_once_it_is_known() -> None:
    model = Changing()
    watch = LastGradient(model.parameters())
    stamps = [last_seen(watch, model) for _ in range(LastGradient.CERTAIN + 3)]

    assert stamps == [(3, 3)] * LastGradient.CERTAIN + [(1, 1)] * 3
    model(torch.ones(1)).sum().backward()  # not armed: an evaluation, or an untimed step
    assert last_seen(watch, model) == (1, 1)


def test_a_model_that_changes_is_looked_at_again() -> None:
    """Once one parameter alone is watched, another may become the last without being seen, but not for long."""
    model = Changing()
    watch = LastGradient(model.parameters())
    for _ in range(LastGradient.CERTAIN):
        last_seen(watch, model)
    model.order = [2, 1, 0]
    stamps = [last_seen(watch, model) for _ in range(LastGradient.AGAIN)]

    assert stamps[: -LastGradient.CERTAIN] == [(1, 1)] * (LastGradient.AGAIN - LastGradient.CERTAIN)
    assert stamps[-LastGradient.CERTAIN :] == [(3, 3)] * LastGradient.CERTAIN
    assert last_seen(watch, model) == (1, 1)
    model.each[0].requires_grad_(False)
    assert last_seen(watch, model)[1] <= 1


def test_all_gradients_stay_watched_where_their_order_changes() -> None:
    model = Changing()
    watch = LastGradient(model.parameters())
    for step in range(3 * LastGradient.CERTAIN):
        model.order = [0, 1, 2] if step % 7 else [2, 0, 1]
        assert last_seen(watch, model) == (3, 3)


def test_a_last_gradient_that_does_not_come_is_looked_for_again() -> None:
    model = Changing()
    watch = LastGradient(model.parameters())
    for _ in range(LastGradient.CERTAIN):
        last_seen(watch, model)
    model.order = [1, 2]

    assert last_seen(watch, model) == (None, 0), "that of parameter 0 was always the last"
    assert last_seen(watch, model) == (2, 2)
