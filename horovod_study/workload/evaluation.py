"""The error of a network on the test set."""

import numpy as np
import torch

from horovod_study.comm import Backend
from horovod_study.workload.dataset import Dataset, test_rows
from horovod_study.workload.model import StressCNN

BATCH = 2048


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
        for part in torch.split(rows, BATCH):
            errors = model(curves.index_select(0, part).to(device)).cpu() - targets.index_select(0, part)
            squares += errors.double().square().sum(dim=0).numpy()
    model.train(training)
    mean_squares = backend.sum(squares) / dataset.test_size
    g0_rmse_mpa, a_rmse = np.sqrt(mean_squares) * dataset.target_span
    return {"test_mse": float(mean_squares.mean()), "g0_rmse_mpa": float(g0_rmse_mpa), "a_rmse": float(a_rmse)}
