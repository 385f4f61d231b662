"""The network."""

import pytest
import torch
from torch import nn

from horovod_study.recording.rank import facts
from horovod_study.strain import material
from horovod_study.strain.model import INPUT_SCALINGS, StressCNN


def plain_network() -> nn.Module:
    """The network as anybody would write it: one-dimensional layers, ReLU before the pooling."""
    return nn.Sequential(
        nn.Conv1d(3, 15, 5), nn.ReLU(), nn.MaxPool1d(3), nn.Conv1d(15, 38, 5), nn.ReLU(), nn.MaxPool1d(3),
        nn.Flatten(), nn.Linear(760, 197), nn.ReLU(), nn.Linear(197, 2),
    )  # fmt: skip


def test_size() -> None:
    assert facts.count([StressCNN()]) == 153_441


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


def test_both_memory_formats_are_the_same_network() -> None:
    models = []
    for memory_format in ("channels-last", "contiguous"):
        torch.manual_seed(3)
        models.append(StressCNN(memory_format=memory_format))
    curves = torch.randn(75, 3, 201)
    losses = [model(curves).square().mean() for model in models]
    for loss in losses:
        loss.backward()

    assert (models[0](curves) - models[1](curves)).abs().max() <= 1e-6
    for name, parameter in models[0].named_parameters():
        other = models[1].get_parameter(name)
        assert torch.allclose(parameter.grad, other.grad, rtol=1e-4, atol=1e-6), name


def test_fixed_scaling_brings_generated_curves_between_0_and_1() -> None:
    """The constants are those of the generator: largest strain, and plateau G0/a of the stiffest curve."""
    curves, _ = material.generate(11, 0, 20_000, noise_max_mpa=0)
    offsets, scales = INPUT_SCALINGS["fixed"]

    assert offsets == (0, 0, 0)
    assert scales == (material.LAST_STRAIN[1], material.G0_MPA[1] / material.A[0], 1)
    assert list(curves.max(axis=(0, 2)) / scales) == pytest.approx([1, 1, 1], abs=0.05)
    assert curves.min() == 0


def test_standard_scaling_standardises_generated_curves() -> None:
    curves, _ = material.generate(11, 0, 20_000)
    channels = [curves[:, channel].astype("f8") for channel in range(3)]
    offsets, scales = INPUT_SCALINGS["standard"]

    assert [channel.mean() for channel in channels] == pytest.approx(offsets, rel=0.01)
    assert [channel.std() for channel in channels[:2]] == pytest.approx(scales[:2], rel=0.01)


@pytest.mark.parametrize("name", ["fixed", "standard"])
def test_input_scaling_is_applied_to_each_channel(name: str) -> None:
    torch.manual_seed(3)
    scaled = StressCNN(input_scaling=name)
    plain = StressCNN()
    plain.load_state_dict(scaled.state_dict())
    curves = torch.from_numpy(material.generate(11, 0, 50)[0])
    offsets, scales = (torch.tensor(each)[:, None] for each in INPUT_SCALINGS[name])

    assert torch.allclose(scaled(curves), plain((curves - offsets) / scales), atol=1e-5)
    assert set(scaled.state_dict()) == set(plain.state_dict()), "the constants are no part of the state"


def test_widths_make_other_sizes() -> None:
    first, second, hidden = 4, 6, 10
    expected = (
        (3 * 5 * first + first) + (first * 5 * second + second) + (second * 20 * hidden + hidden) + 2 * hidden + 2
    )

    assert facts.count([StressCNN(widths=(first, second, hidden))]) == expected


def test_parameters_are_contiguous_as_horovod_wants_them() -> None:
    assert all(parameter.is_contiguous() for parameter in StressCNN().parameters())


def test_the_hash_sees_one_bit() -> None:
    torch.manual_seed(1)
    model = StressCNN()
    before = facts.digest([model])
    with torch.no_grad():
        model.fc2.bias[1] = torch.nextafter(model.fc2.bias[1], torch.tensor(9.0))

    assert facts.digest([model]) != before
