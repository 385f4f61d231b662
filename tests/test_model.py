"""The network and the learning rate."""

import pytest
import torch
from torch import nn

from horovod_study.config import RunConfig
from horovod_study.workload.model import StressCNN, parameter_count, parameter_sha256
from horovod_study.workload.schedule import lr_factor, scaled_lr


def plain_network() -> nn.Module:
    """The network as anybody would write it: one-dimensional layers, ReLU before the pooling."""
    return nn.Sequential(
        nn.Conv1d(3, 15, 5), nn.ReLU(), nn.MaxPool1d(3), nn.Conv1d(15, 38, 5), nn.ReLU(), nn.MaxPool1d(3),
        nn.Flatten(), nn.Linear(760, 197), nn.ReLU(), nn.Linear(197, 2),
    )  # fmt: skip


def test_size() -> None:
    assert parameter_count(StressCNN()) == 153_441


def test_it_is_the_plain_network() -> None:
    """The same initial parameters, the same forward pass, the same losses over ten steps."""
    torch.manual_seed(3)
    ours = StressCNN()
    torch.manual_seed(3)
    plain = plain_network()
    curves, targets = torch.randn(10, 75, 3, 201), torch.rand(10, 75, 2)

    assert (ours(curves[0]) - plain(curves[0])).abs().max() <= 1e-6
    losses = []
    for model, fused in ((ours, True), (plain, False)):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
        trace = []
        for x, y in zip(curves, targets, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            trace.append(loss.item())
        losses.append(trace)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_parameters_are_contiguous_as_horovod_wants_them() -> None:
    assert all(parameter.is_contiguous() for parameter in StressCNN().parameters())


def test_the_hash_sees_one_bit() -> None:
    torch.manual_seed(1)
    model = StressCNN()
    before = parameter_sha256(model)
    with torch.no_grad():
        model.fc2.bias[1] = torch.nextafter(model.fc2.bias[1], torch.tensor(9.0))

    assert parameter_sha256(model) != before


@pytest.mark.parametrize(("rule", "lr"), [("none", 1e-3), ("sqrt", 2e-3), ("linear", 4e-3)])
def test_learning_rate_scaling(rule: str, lr: float) -> None:
    assert scaled_lr(RunConfig(lr=1e-3, lr_scaling=rule), workers=4) == pytest.approx(lr)


def test_schedules() -> None:
    constant, cosine, step = (RunConfig(schedule=name) for name in ("constant", "cosine", "step"))

    assert [lr_factor(constant, 5, p) for p in (0, 0.5, 1)] == [1, 1, 1]
    assert [lr_factor(cosine, 5, p) for p in (0, 0.5, 1, 2)] == pytest.approx([1, 0.5, 0, 0])
    assert [lr_factor(step, 5, p) for p in (0, 0.3, 1 / 3, 0.5, 0.7)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_warm_up_rises_to_one() -> None:
    config = RunConfig(lr_warmup_steps=4)

    assert [lr_factor(config, step, 0) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
