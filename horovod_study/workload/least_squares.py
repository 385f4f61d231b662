"""The law tau = G0/a (1 - exp(-a gamma)) fitted to many curves at once by least squares.

Variable projection: for a given a the best G0 is known, G0 = <phi, tau> / <phi, phi> with phi = (1 - exp(-a gamma))/a,
so that one parameter is left per curve. It starts from the best of a few values and goes on by Gauss-Newton (with
Kaufman's derivative of the projected residual), halving a step that does not help. Letters: N curves, L points.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MISFIT_OF_PEAK = 0.05
"""A fit whose rms exceeds this part of the largest stress does not describe the curve."""

_CHUNK = 256  # curves at a time: the intermediate arrays stay in the processor's cache
_START = (-1.0, 0.3, 2.0, 5.0, 12.0, 40.0)  # a times the largest strain, from a curve bent upwards to a plateau
_LARGEST = 500.0  # of |a| times the largest strain; beyond it only the plateau is left to see
_Array = NDArray[np.float64]


class LawFit(NamedTuple):
    """Parameters of the law for each curve, and the root mean square of its residual."""

    g0_mpa: _Array  # (N,)
    a: _Array  # (N,)
    rms_mpa: _Array  # (N,)


def fit_law(strain: NDArray[Any], stress: NDArray[Any], weight: NDArray[Any]) -> LawFit:
    """Fit every curve: `strain` and `stress` in MPa (N, L), `weight` (N, L) 1 on data and 0 on padding.

    All values must be finite. A curve without strain gets nan.
    """
    found = np.full((3, len(strain)), np.nan)
    for low in range(0, len(strain), _CHUNK):
        x, y, w = (np.asarray(each[low : low + _CHUNK], np.float64) for each in (strain, stress, weight))
        reach = np.abs(x * w).max(axis=1)
        able = np.flatnonzero(reach)
        # in units of the largest strain, so that z = a * reach is of order one
        z, g0, squares = _fit((x * w)[able] / reach[able, None], (y * w)[able])
        rms = np.sqrt(squares / w[able].sum(axis=1))
        found[:, low + able] = g0 / reach[able], z / reach[able], rms
    return LawFit(*found)


def _fit(x: _Array, y: _Array) -> tuple[_Array, _Array, _Array]:
    """Return z, G0 and the sum of squares that is left of each curve; those that have arrived are left alone."""
    tried = np.stack([_project(np.full(len(x), z), x, y)[2] for z in _START])
    z = np.array(_START)[tried.argmin(axis=0)]
    _, g0, squares = _project(z, x, y)
    going = np.arange(len(x))
    for _ in range(60):
        step, moved = _step(z[going], x[going], y[going]), np.zeros(len(going), bool)
        for halving in range(6):
            rest = going[~moved]
            if not len(rest):
                break
            new = np.clip(z[rest] + step[~moved] * 0.5**halving, -_LARGEST, _LARGEST)
            _, new_g0, new_squares = _project(new, x[rest], y[rest])
            better = new_squares <= squares[rest]
            at = rest[better]
            z[at], g0[at], squares[at] = new[better], new_g0[better], new_squares[better]
            moved[~moved] = better
        going = going[moved & (np.abs(step) > 1e-11 * (1.0 + np.abs(z[going])))]
    return z, g0, squares


def _project(z: _Array, x: _Array, y: _Array) -> tuple[_Array, _Array, _Array]:
    """Return phi = (1 - exp(-z x)) / z, which is x where z is 0, the best G0, and the sum of squares that is left."""
    straight = np.abs(z) < 1e-9
    safe = np.where(straight, 1.0, z)[:, None]
    phi = -np.expm1(-safe * x) / safe
    phi[straight] = x[straight]
    norm = np.einsum("nl,nl->n", phi, phi)
    g0 = np.einsum("nl,nl->n", phi, y) / np.where(norm > 0, norm, 1.0)
    left = g0[:, None] * phi - y
    return phi, g0, np.einsum("nl,nl->n", left, left)


def _step(z: _Array, x: _Array, y: _Array) -> _Array:
    """Return the Gauss-Newton step of z."""
    phi, g0, _ = _project(z, x, y)
    straight = np.abs(z) < 1e-4
    safe = np.where(straight, 1.0, z)[:, None]
    slope = (x * np.exp(-safe * x) - phi) / safe  # d phi / d z
    slope[straight] = -0.5 * x[straight] ** 2 + z[straight, None] * x[straight] ** 3 / 3
    norm = np.einsum("nl,nl->n", phi, phi)
    slope -= (np.einsum("nl,nl->n", phi, slope) / np.where(norm > 0, norm, 1.0))[:, None] * phi  # what G0 cannot follow
    slope *= g0[:, None]
    size = np.einsum("nl,nl->n", slope, slope)
    return np.asarray(np.einsum("nl,nl->n", slope, y - g0[:, None] * phi) / np.where(size > 0, size, np.inf))
