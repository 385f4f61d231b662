"""Curves as the network takes them: 201 points, padded at the left, with a flag."""

import numpy as np
from numpy.typing import NDArray

from horovod_study.workload import material
from horovod_study.workload.curves.values import CurveSet


def to_channels(curves: CurveSet, *, reduce: str = "pick") -> NDArray[np.float32]:
    """Return strain, stress in MPa and flag of every curve, float32 (N, 3, 201).

    A longer curve is reduced to 201 points: `pick` takes evenly spaced rows, first and last included, and keeps their
    noise; `mean` averages 201 blocks of rows, which makes the noise smaller. A shorter one is at the right, with
    zeros and flag 0 before it.
    """
    channels = np.zeros((len(curves.ids), material.CHANNELS, material.POINTS), np.float32)
    for k, (strain, stress) in enumerate(zip(curves.strain, curves.stress, strict=True)):
        fill_row(channels[k], strain, stress, reduce=reduce)
    return channels


def fill_row(
    row: NDArray[np.float32], strain: NDArray[np.float64], stress: NDArray[np.float64], *, reduce: str = "pick"
) -> None:
    """Write one curve into `row` (3, 201), which is zero."""
    points = material.POINTS
    if len(strain) > points and reduce == "mean":
        edges = np.linspace(0, len(strain), points + 1).round().astype(np.int64)
        strain, stress = (np.add.reduceat(values, edges[:-1]) / np.diff(edges) for values in (strain, stress))
    elif len(strain) > points:
        rows = np.linspace(0, len(strain) - 1, points).round().astype(np.int64)
        strain, stress = strain[rows], stress[rows]
    row[0, points - len(strain) :] = strain
    row[1, points - len(strain) :] = stress
    row[2, points - len(strain) :] = 1.0
