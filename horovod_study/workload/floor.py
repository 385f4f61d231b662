"""The statistical floor: what no unbiased estimator of G0 and a can beat on given curves (Cramer-Rao bound).

With the strain known and independent Gaussian noise of level sigma on the stress, the Fisher information of one curve
is F = sum_j s_j s_j^T / sigma^2 with the sensitivities of the law tau = G0/a (1 - e), e = exp(-a gamma), to the
normalised targets (span = high - low of their bounds):

    s_G0 = span_G0 (1 - e) / a        s_a = span_a G0 (gamma e / a - (1 - e) / a^2)

and the bound of each target is the diagonal of F^-1. That sigma is unknown to the estimator costs nothing: its
information is separate. A trained network may pass the mean bound by a few percent, for it knows the range of the
targets; well below it something leaks. Letters: N curves, L = 201 points, P = 2 targets.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from horovod_study.workload import material

_CHUNK = 64  # curves at a time: the intermediate arrays stay in the processor's cache


def bounds(
    strain: NDArray[Any],
    targets: NDArray[Any],
    sigma_mpa: ArrayLike,
    *,
    target_bounds: NDArray[np.float64] = material.TARGET_BOUNDS,
) -> NDArray[np.float64]:
    """Return the smallest variance of an unbiased estimate of each normalised target, shape (N, P).

    `strain` (N, L) is zero on the padding, where the stress says nothing about the targets; `targets` (N, P) are the
    true ones, normalised with `target_bounds` (P, 2); `sigma_mpa` is the noise level, (N,) or one for all. A curve
    that cannot distinguish the two targets has the bound infinity.
    """
    low, span = target_bounds[:, 0], target_bounds[:, 1] - target_bounds[:, 0]
    sigmas = np.broadcast_to(np.asarray(sigma_mpa, dtype=np.float64), len(strain))
    found = np.empty((len(strain), material.TARGETS))
    for first in range(0, len(strain), _CHUNK):
        part = slice(first, first + _CHUNK)
        found[part] = _chunk(strain[part], low + span * targets[part], sigmas[part], span)
    return found


def _chunk(
    strain: NDArray[Any], physical: NDArray[np.float64], sigma_mpa: NDArray[np.float64], span: NDArray[np.float64]
) -> NDArray[np.float64]:
    gamma = strain.astype(np.float64)
    g0_mpa, a = physical[:, 0], physical[:, 1]
    e = np.exp(gamma * -a[:, None])
    rise = 1.0 - e
    # s_G0 = per_g0 * rise and s_a = per_a * bend: the factors of a curve are taken out of the sums over its points.
    bend = gamma
    bend *= e
    bend -= rise / a[:, None]
    per_g0, per_a = span[0] / a, span[1] * g0_mpa / a
    rise_rise, rise_bend, bend_bend = (
        np.einsum("nl,nl->n", left, right) for left, right in ((rise, rise), (rise, bend), (bend, bend))
    )
    determinant = rise_rise * bend_bend - rise_bend**2
    tells = determinant > 1e-14 * rise_rise * bend_bend  # else the rounding of the sums decides
    determinant = np.where(tells, determinant, 1.0)
    both = np.stack([bend_bend / per_g0**2, rise_rise / per_a**2], axis=1) * (sigma_mpa**2 / determinant)[:, None]
    return np.where(tells[:, None], both, np.inf)


def summary(
    sums: NDArray[np.float64],
    count: int,
    *,
    target_bounds: NDArray[np.float64] = material.TARGET_BOUNDS,
    estimated: bool = False,
) -> dict[str, Any] | None:
    """Return the mean bound over `count` curves as the side-car keeps it, None without curves or if it is infinite.

    `sums` (P,) are the sums of `bounds` over the curves. "mse" is what an ideal network's loss would be, the mean of
    "g0_mse" and "a_mse" (normalised); the root mean square errors are in MPa and in units of a. `estimated` marks a
    floor whose noise level is an estimate.
    """
    if count == 0 or not np.isfinite(sums).all():
        return None
    g0_mse, a_mse = (float(total) / count for total in sums)
    g0_span, a_span = (float(high - low) for low, high in target_bounds)
    found: dict[str, Any] = {
        "mse": (g0_mse + a_mse) / 2,
        "g0_mse": g0_mse,
        "a_mse": a_mse,
        "g0_rmse_mpa": g0_mse**0.5 * g0_span,
        "a_rmse": a_mse**0.5 * a_span,
    }
    return {**found, "estimated": True} if estimated else found
