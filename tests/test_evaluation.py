"""The test error, and what it says beside the statistical floor."""

from pathlib import Path

import numpy as np
import pytest
import torch
from make.wording import Golden

from horovod_study.comm.base import SerialBackend
from horovod_study.comm.launch import Launch
from horovod_study.strain import dataset
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.trainer import compared_to_floor, evaluate

BACKEND = SerialBackend(StrainConfig(), Launch(rank=0, workers=1, launcher="none", backend="serial"))


def test_it_is_the_mean_over_the_test_curves(tmp_path: Path) -> None:
    """A network that always answers 1/2 has the variance of a uniform number, 1/12, as error: exactly, then nearly."""
    dataset.generate(tmp_path / "d", 4000, seed=3)
    opened = dataset.open_dataset(tmp_path / "d")
    model = StressCNN()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.fc2.bias.fill_(0.5)
    errors = opened.targets[3::4].astype("f8") - 0.5

    found = evaluate(model, opened, BACKEND, torch.device("cpu"))

    assert found["test_mse"] == pytest.approx((errors**2).mean(), rel=1e-6)
    assert found["test_mse"] == pytest.approx(1 / 12, rel=0.1)
    assert found["g0_rmse_mpa"] == pytest.approx(2000 * np.sqrt((errors[:, 0] ** 2).mean()), rel=1e-6)
    assert found["a_rmse"] == pytest.approx(20 * np.sqrt((errors[:, 1] ** 2).mean()), rel=1e-6)
    assert model.training, "the network is given back as it came"


@pytest.mark.parametrize(
    ("test_mse", "floor_mse", "size", "below"),
    [
        (6.84e-5, 7.29e-5, 250_000, False),  # the Bayes optimum
        (6.4e-5, 7.29e-5, 250_000, True),
        (5.0e-5, 7.29e-5, 500, False),  # may be luck
        (3.0e-5, 7.29e-5, 500, True),
        (1e-9, None, 500, False),  # imported curves: unknown noise
        (1e-9, 0.0, 500, False),  # clean curves have no floor
    ],
)
def test_below_the_floor_is_a_bug(test_mse: float, floor_mse: float | None, size: int, below: bool) -> None:
    text = compared_to_floor(test_mse, floor_mse, size)

    assert ("a bug" in text) is below
    if not below and floor_mse:
        assert f"efficiency {floor_mse / test_mse:.2f}" in text and "7.29e-05" in text
    if not floor_mse:
        assert text == ""


def test_a_diverged_training_is_named(golden: Golden) -> None:
    golden(compared_to_floor(float("nan"), 7.29e-5, 500), "--lr")
