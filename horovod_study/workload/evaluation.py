"""The error of a network on the test set."""

import numpy as np
import torch

from horovod_study.comm import Backend
from horovod_study.workload.dataset import Dataset, test_rows
from horovod_study.workload.model import StressCNN


def evaluate(model: StressCNN, dataset: Dataset, backend: Backend, device: torch.device) -> dict[str, float]:
    """Return the test MSE (mean over both normalised targets) and the root mean square errors of G0 (MPa) and a.

    Each worker takes every workers-th test curve; the sums of squares are added up in float64, over all workers.
    """
    rows = torch.from_numpy(test_rows(np.arange(backend.rank, dataset.test_size, backend.workers)))
    curves, targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
    squares = np.zeros(2)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for part in torch.split(rows, 512):
            errors = model(curves.index_select(0, part).to(device)).cpu() - targets.index_select(0, part)
            squares += errors.double().square().sum(dim=0).numpy()
    model.train(training)
    mean_squares = backend.sum(squares) / dataset.test_size
    g0_rmse_mpa, a_rmse = np.sqrt(mean_squares) * dataset.target_span
    return {"test_mse": float(mean_squares.mean()), "g0_rmse_mpa": float(g0_rmse_mpa), "a_rmse": float(a_rmse)}


def is_below_floor(test_mse: float, floor_mse: float | None, test_size: int) -> bool:
    """Return whether a test MSE over `test_size` curves is lower than can be, with room for the luck of small sets.

    The squared errors of curves scatter by about twice their mean, so three standard errors are 6/sqrt(test_size).
    The posterior mean, the best that any network can do on this data, has 0.93 of the Cramer-Rao bound (the known range
    of the targets helps a little); less than 0.9 is not skill but an error somewhere.
    """
    return floor_mse is not None and bool(test_mse < 0.9 * floor_mse * (1 - 6 / np.sqrt(test_size)))


def compared_to_floor(test_mse: float, floor_mse: float | None, test_size: int) -> str:
    """Return one line on where a test MSE is between the statistical floor and the rest; empty without a floor."""
    if not np.isfinite(test_mse):
        return "the test MSE is not a number: the training diverged; lower --lr, or raise --lr-warmup-steps"
    if not floor_mse:
        return ""
    if is_below_floor(test_mse, floor_mse, test_size):
        return (
            f"the test MSE is below what the noise of the test curves allows ({floor_mse:.2e}): a bug, for instance "
            "test curves among the training curves, or targets scaled otherwise; do not use this number, and report it"
        )
    return (
        f"efficiency {floor_mse / test_mse:.2f}: the noise of the test curves allows {floor_mse:.2e} (Cramer-Rao bound)"
    )
