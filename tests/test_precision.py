"""The precision of a run is what its first steps computed in, wherever somebody put the autocast, or it is unknown."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_recording import manifest, open_recorder
from torch import nn

from horovod_study.analysis.series.points import UNSEEN
from horovod_study.analysis.study import analyze
from horovod_study.recording.rank import facts
from horovod_study.recording.rank.facts import PrecisionObserver
from horovod_study.records import epoch_table, run_table

X = torch.ones(3, 8)


def plain() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))


def in_forward(model: nn.Module) -> nn.Module:
    """As Accelerate prepares a model: autocast inside its forward, and results in float32."""
    original = model.forward

    def forward(*arguments: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return original(*arguments).float()

    model.forward = forward  # type: ignore[method-assign]
    return model


class OwnProduct(nn.Module):
    """A layer of somebody's own: under autocast it multiplies in bf16 and returns float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight) * torch.ones(8)


class Words(nn.Module):
    """More weights are looked up than multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(500, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.head(self.table(x.long())))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.layer(x[:, None]))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.layer(x[:, None])[0])


def loop(model: nn.Module, out: Path, step: Callable[[nn.Module], torch.Tensor], **options: Any) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open_recorder(model, optimizer, out, **options) as record:
        for _ in record.steps([X] * 8):
            step(model).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return dict(manifest(out)["effective"])


def outside(model: nn.Module) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(X)


def usual(model: nn.Module) -> torch.Tensor:
    return model(X.to(next(model.parameters()).dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, step, expected",
    [
        (plain(), usual, "fp32"),
        (plain(), outside, "bf16"),
        (in_forward(plain()), usual, "bf16"),
        (plain().to(torch.bfloat16), usual, "bf16"),
        (plain().double(), usual, "fp64"),
        (nn.Sequential(nn.Linear(8, 16).to(torch.bfloat16), nn.Identity()), usual, "bf16"),
        (in_forward(nn.Linear(8, 1)), usual, None),  # what such a wrapper returns is converted
        (Words(), outside, "bf16"),
        (Attending(), outside, "bf16"),
        (Recurrent(), outside, "bf16"),
        (OwnProduct(), outside, None),
        (nn.Sequential(nn.Linear(8, 8), OwnProduct()), usual, None),  # of half of the weights nothing is known
    ],
    ids=[
        *("plain", "autocast around it", "autocast inside", "bf16 parameters", "fp64", "part", "wrapped layer"),
        *("embedding", "attention", "recurrent", "own layer", "half an own layer"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"timer_mode": "off"}, {"forward_hooks": False}], ids=str)
def test_the_precision_is_what_the_layers_computed_in(
    model: nn.Module, step: Any, expected: str | None, options: dict[str, Any], tmp_path: Path
) -> None:
    assert loop(model, tmp_path / "run", step, **options)["precision"] == expected
    assert not any(module._forward_hooks for module in model.modules())


def test_half_of_the_weights_in_another_type_is_no_precision() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, dtype=torch.float64))
    watched = PrecisionObserver(model)
    model[1](model[0](X).double())

    assert watched.found() is None


@pytest.mark.parametrize("asked, linear", [("highest", "fp32"), ("high", "tf32")])
@pytest.mark.parametrize("capability, rounds", [((7, 0), False), ((8, 0), True)])
def test_float32_on_a_gpu_is_what_pytorch_makes_of_it_layer_by_layer(
    asked: str, linear: str, capability: tuple[int, int], rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN rounds to TF32 unless it is told not to; matrix products do so only when they are told to."""
    result: Any = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    torch.set_float32_matmul_precision(asked)

    found = [facts._computed_in(each, result) for each in (nn.Conv1d(1, 1, 1), nn.LSTM(1, 1), nn.Linear(1, 1))]
    on_cpu = facts._computed_in(nn.Linear(1, 1), torch.ones(1))

    assert found == (["tf32", "tf32", linear] if rounds else ["fp32"] * 3)
    assert on_cpu == ("fp32" if asked == "highest" else None)


def test_a_compiled_model_is_not_watched() -> None:
    model = plain()
    model.compile(backend="eager")
    watched = PrecisionObserver(model)

    assert not watched._handles and watched.found() is None


def test_layers_are_watched_in_the_first_steps_only(tmp_path: Path) -> None:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = []
    with open_recorder(model, optimizer, tmp_path / "run") as record:
        for _ in record.steps([X] * 6):
            watched.append(bool(model[0]._forward_hooks))
            model(X).sum().backward()
            optimizer.step()

    assert watched == [True] * 3 + [False] * 3


@pytest.mark.slow
@pytest.mark.parametrize("other", [outside, None], ids=["bf16", "unknown"])
def test_runs_of_another_or_an_unknown_precision_are_no_repeats(other: Any, tmp_path: Path) -> None:
    loop(plain(), tmp_path / "runs" / "a", usual, repeat=0)
    if other is None:
        compiled = torch.compile(plain(), backend="eager")
        loop(compiled, tmp_path / "runs" / "b", usual, repeat=1, model_name="Sequential")
    else:
        loop(plain(), tmp_path / "runs" / "b", other, repeat=1)
    points = analyze(run_table(tmp_path / "runs"), epoch_table(tmp_path / "runs")).points

    assert points["repeats"].tolist() == [1, 1]
    assert sorted(points["precision"]) == sorted(["fp32", "bf16" if other else UNSEEN])
