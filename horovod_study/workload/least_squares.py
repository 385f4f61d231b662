"""The law tau = G0/a (1 - exp(-a gamma)) fitted to many curves at once by least squares.

Variable projection: for a given a the best G0 is known, G0 = <phi, tau> / <phi, phi> with phi = (1 - exp(-a gamma))/a,
so that one parameter is left per curve. It starts from the best of a few values and goes on by Gauss-Newton (with
Kaufman's derivative of the projected residual), halving a step that does not help. All curves of a chunk go together;
those that have arrived leave. Letters: N curves, L points.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISFIT_OF_PEAK = 0.05
"""A fit whose rms exceeds this part of the largest stress does not describe the curve."""

_CHUNK = 256  # curves at a time: the intermediate arrays stay in the processor's cache
_START = (-1.0, 0.3, 2.0, 5.0, 12.0, 40.0)  # a times the largest strain, from a curve bent upwards to a plateau
_LARGEST = 500.0  # of |a| times the largest strain; beyond it only the plateau is left to see


@dataclass(frozen=True, kw_only=True, slots=True)
class LawFit:
    """Parameters of the law for each curve, and the root mean square of its residual."""

    g0_mpa: NDArray[np.float64]  # (N,)
    a: NDArray[np.float64]  # (N,)
    rms_mpa: NDArray[np.float64]  # (N,)


def fit_law(strain: NDArray[Any], stress: NDArray[Any], weight: NDArray[Any]) -> LawFit:
    """Fit every curve: `strain` and `stress` in MPa (N, L), `weight` (N, L) 1 on data and 0 on padding.

    All values must be finite. A curve without strain gets nan.
    """
    count = len(strain)
    g0, a, rms = np.full((3, count), np.nan)
    for low in range(0, count, _CHUNK):
        part = slice(low, min(low + _CHUNK, count))
        g0[part], a[part], rms[part] = _fit_chunk(
            strain[part].astype(np.float64), stress[part].astype(np.float64), weight[part].astype(np.float64)
        )
    return LawFit(g0_mpa=g0, a=a, rms_mpa=rms)


def _fit_chunk(
    strain: NDArray[np.float64], stress: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    points = weight.sum(axis=1)
    reach = np.abs(strain * weight).max(axis=1)
    able = (points > 0) & (reach > 0)
    scale = np.where(able, reach, 1.0)
    x = strain * weight / scale[:, None]  # in units of the largest strain, so that z = a * scale is of order one
    y = stress * weight

    tried = np.stack([_project(np.full(len(x), z), x, y)[1] for z in _START])
    z = np.array(_START)[tried.argmin(axis=0)]
    g0, squares = _project(z, x, y)
    going = np.flatnonzero(able)
    for _ in range(60):
        if not len(going):
            break
        step = _step(z[going], x[going], y[going])
        moved = np.zeros(len(going), bool)
        for halving in range(6):
            rest = going[~moved]
            if not len(rest):
                break
            new = np.clip(z[rest] + step[~moved] * 0.5**halving, -_LARGEST, _LARGEST)
            new_g0, new_squares = _project(new, x[rest], y[rest])
            better = new_squares <= squares[rest]
            z[rest[better]], g0[rest[better]] = new[better], new_g0[better]
            squares[rest[better]] = new_squares[better]
            moved[np.flatnonzero(~moved)[better]] = True
        small = np.abs(step) <= 1e-11 * (1.0 + np.abs(z[going]))
        going = going[moved & ~small]
    bad = ~able
    g0, a, rms = g0 / scale, z / scale, np.sqrt(squares / np.maximum(points, 1))
    g0[bad], a[bad], rms[bad] = np.nan, np.nan, np.nan
    return g0, a, rms


def _shape(z: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return phi = (1 - exp(-z x)) / z, which is x where z is 0."""
    straight = np.abs(z) < 1e-9
    safe = np.where(straight, 1.0, z)[:, None]
    phi: NDArray[np.float64] = -np.expm1(-safe * x) / safe
    phi[straight] = x[straight]
    return phi


def _project(
    z: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the best G0 for z and the sum of squares that is left; padding (x = y = 0) adds nothing to either."""
    phi = _shape(z, x)
    norm = np.einsum("nl,nl->n", phi, phi)
    g0 = np.einsum("nl,nl->n", phi, y) / np.where(norm > 0, norm, 1.0)
    phi *= g0[:, None]
    phi -= y
    return g0, np.einsum("nl,nl->n", phi, phi)


def _step(z: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Gauss-Newton step of z."""
    phi = _shape(z, x)
    straight = np.abs(z) < 1e-4
    safe = np.where(straight, 1.0, z)[:, None]
    slope = (x * np.exp(-safe * x) - phi) / safe  # d phi / d z
    slope[straight] = -0.5 * x[straight] ** 2 + z[straight, None] * x[straight] ** 3 / 3
    norm = np.einsum("nl,nl->n", phi, phi)
    norm = np.where(norm > 0, norm, 1.0)
    g0 = np.einsum("nl,nl->n", phi, y) / norm
    along = np.einsum("nl,nl->n", phi, slope) / norm
    slope -= along[:, None] * phi  # the part that a change of G0 cannot follow
    slope *= g0[:, None]
    phi *= g0[:, None]
    y_left = y - phi
    size = np.einsum("nl,nl->n", slope, slope)
    step: NDArray[np.float64] = np.einsum("nl,nl->n", slope, y_left) / np.where(size > 0, size, np.inf)
    return step
