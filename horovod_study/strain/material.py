"""The law of the material and the generator of labelled curves, specification "shear-exp v1".

The law is the saturating exponential tau(gamma) = G0/a (1 - exp(-a gamma)), identified from the published plots of
the original data: gamma is the engineering shear strain, tau the shear stress in MPa, G0 the initial shear modulus in
MPa and a the dimensionless rate at which the tangent stiffness decays.

Curve i depends on (seed, i) only: it owns 28 blocks of a Philox counter, so any range can be made by any process in
any order. Integers, IEEE + - * / and one table are all that is used (no libm, no Generator methods), so the bytes do
not depend on numpy's version or the processor. The words of a curve (64 bit, 112 of them):

    0..4      G0, a, last strain, missing points' chance and count (word 4), noise level (word 3): 53-bit uniforms
    8..58     201 strain increments, 16 bit each
    59..109   201 noise values, 16 bit each, an index into a table of normal quantiles

Letters: N curves, L = 201 points, C = 3 channels (strain, stress, flag), P = 2 targets (G0, a; each 0..1).
"""

from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

SPEC = "shear-exp v1"
POINTS = 201
CHANNELS = 3
TARGETS = 2
G0_MPA = (1000.0, 3000.0)
A = (25.0, 45.0)
LAST_STRAIN = (0.10, 0.25)
NOISE_MAX_MPA = 1.0
MAX_MISSING = 40
TARGET_BOUNDS = np.array([G0_MPA, A])
"""Physical values of each target's 0 and 1, shape (P, 2): MPa for G0."""
TARGET_SPAN = TARGET_BOUNDS[:, 1] - TARGET_BOUNDS[:, 0]
"""Physical units per unit of each normalised target: 2000 MPa and 20."""

_BLOCKS = 28  # Philox blocks of four words each
_WORDS = 4 * _BLOCKS
_INCREMENTS = slice(8, 59)
_NOISE = slice(59, 110)
_CHUNK = 64  # curves at a time: intermediate arrays stay in the processor's cache and below malloc's mmap threshold
_EXP_TERMS = (-1.0 / 5040, 1.0 / 720, -1.0 / 120, 1.0 / 24, -1.0 / 6, 0.5, -1.0, 1.0)


def stress_mpa(g0_mpa: NDArray[np.float64], a: NDArray[np.float64], strain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the law's stress in MPa; the arguments broadcast against each other."""
    return g0_mpa / a * -np.expm1(-a * strain)


def generate(
    seed: int, first: int, last: int, *, noise_max_mpa: float = NOISE_MAX_MPA
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return curves (N, 3, 201) and targets (N, 2) of the numbers first..last-1, N = last - first.

    Strain is a ratio, stress in MPa, the flag 1 on data and 0 on the padding at the left. Each curve carries Gaussian
    noise whose level is uniform in 0..noise_max_mpa; 0 gives clean curves.
    """
    curves = np.empty((last - first, CHANNELS, POINTS), np.float32)
    targets = np.empty((last - first, TARGETS), np.float32)
    fill(seed, first, curves, targets, noise_max_mpa=noise_max_mpa)
    return curves, targets


def fill(
    seed: int,
    first: int,
    curves: NDArray[np.float32],
    targets: NDArray[np.float32],
    *,
    noise_max_mpa: float = NOISE_MAX_MPA,
) -> NDArray[np.float64]:
    """Write the curves from number `first` on into `curves` (N, 3, 201) and `targets` (N, 2).

    Return the noise standard deviation of each curve in MPa, shape (N,).
    """
    levels_mpa = np.empty(len(curves))
    for low in range(0, len(curves), _CHUNK):
        high = min(low + _CHUNK, len(curves))
        words = _words(seed, first + low, high - low)
        levels_mpa[low:high] = noise_max_mpa * _uniform(words[:, 3])
        _fill_chunk(words, curves[low:high], targets[low:high], levels_mpa[low:high])
    return levels_mpa


def noise_levels_mpa(seed: int, first: int, last: int, *, noise_max_mpa: float = NOISE_MAX_MPA) -> NDArray[np.float64]:
    """Return the noise standard deviation of each curve, shape (N,)."""
    levels = [_uniform(_words(seed, low, min(low + _CHUNK, last) - low)[:, 3]) for low in range(first, last, _CHUNK)]
    return noise_max_mpa * np.concatenate(levels or [np.empty(0)])


def _words(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return the random words of `count` curves, shape (count, 112); `key` keeps numpy from hashing the seed."""
    stream = np.random.Philox(key=seed, counter=first * _BLOCKS)
    return np.asarray(stream.random_raw(count * _WORDS), dtype=np.uint64).reshape(count, _WORDS)


def _uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _sixteen_bits(words: NDArray[np.uint64]) -> NDArray[np.uint16]:
    return np.ascontiguousarray(words).astype("<u8", copy=False).view("<u2")[:, :POINTS]


def _fill_chunk(
    words: NDArray[np.uint64],
    curves: NDArray[np.float32],
    targets: NDArray[np.float32],
    levels_mpa: NDArray[np.float64],
) -> None:
    uniform_g0, uniform_a, uniform_end, uniform_missing = (_uniform(words[:, k]) for k in (0, 1, 2, 4))
    g0_mpa = G0_MPA[0] + (G0_MPA[1] - G0_MPA[0]) * uniform_g0
    a = A[0] + (A[1] - A[0]) * uniform_a
    end = LAST_STRAIN[0] + (LAST_STRAIN[1] - LAST_STRAIN[0]) * uniform_end
    # Half of the curves are complete, the others miss 0..40 points at the left.
    missing = np.where(uniform_missing < 0.5, 0, ((uniform_missing - 0.5) / 0.5 * (MAX_MISSING + 1)).astype(np.int64))
    position = np.arange(POINTS)
    up_to_origin = position <= missing[:, None]

    increments = _sixteen_bits(words[:, _INCREMENTS]).astype(np.int64) + 4096  # strictly increasing
    increments[up_to_origin] = 0
    strain = np.cumsum(increments, axis=1).astype(np.float64)  # exact: sums of integers
    strain *= (end / strain[:, -1])[:, None]

    stress = _one_minus_exp_of_minus(strain * a[:, None])
    stress *= (g0_mpa / a)[:, None]
    noise = normal_quantiles()[_sixteen_bits(words[:, _NOISE])].astype(np.float64)
    noise *= levels_mpa[:, None]
    noise[up_to_origin] = 0.0  # the machine is tared: the origin is exact
    stress += noise

    curves[:, 0] = strain
    curves[:, 1] = stress
    curves[:, 2] = position >= missing[:, None]
    targets[:, 0] = uniform_g0
    targets[:, 1] = uniform_a


def _one_minus_exp_of_minus(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 - exp(-x) for 0 <= x <= 12 to 4e-14, with * and + only; x is used up.

    Taylor polynomial of degree 7 of exp(-x/64), then six squarings.
    """
    x *= 1.0 / 64
    power = np.full_like(x, _EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        power *= x
        power += term
    for _ in range(6):
        power *= power
    return np.subtract(1.0, power, out=power)


@cache
def normal_quantiles() -> NDArray[np.float32]:
    """Return the standard normal quantiles at (k + 1/2)/65536, k = 0..65535, scaled to unit variance."""
    normal = NormalDist()
    lower = np.array([normal.inv_cdf((k + 0.5) / 65536) for k in range(32768)])
    both = np.concatenate([lower, -lower[::-1]])
    quantiles: NDArray[np.float32] = (both / np.sqrt((both * both).mean())).astype(np.float32)
    return quantiles


# ------------------------------------------------------------------------------------------------ the statistical floor


def bounds(
    strain: NDArray[Any],
    targets: NDArray[Any],
    sigma_mpa: ArrayLike,
    *,
    target_bounds: NDArray[np.float64] = TARGET_BOUNDS,
) -> NDArray[np.float64]:
    """Return the smallest variance of an unbiased estimate of each normalised target (Cramer-Rao bound), shape (N, P).

    With the strain known and independent Gaussian noise of level sigma on the stress, the Fisher information of a
    curve is F = sum_j s_j s_j^T / sigma^2 with the sensitivities of the law tau = G0/a (1 - e), e = exp(-a gamma), to
    the normalised targets (span = high - low of their bounds): s_G0 = span_G0 (1 - e) / a and
    s_a = span_a G0 (gamma e / a - (1 - e) / a^2). The bound of each target is on the diagonal of F^-1. That sigma is
    unknown to the estimator costs nothing: its information is separate. A trained network may pass the mean bound by a
    few percent, for it knows the range of the targets; well below it something leaks.

    `strain` (N, L) is zero on the padding, where the stress says nothing about the targets; `targets` (N, P) are the
    true ones, normalised with `target_bounds` (P, 2); `sigma_mpa` is the noise level, (N,) or one for all. A curve
    that cannot distinguish the two targets has the bound infinity.
    """
    low, span = target_bounds[:, 0], target_bounds[:, 1] - target_bounds[:, 0]
    sigmas = np.broadcast_to(np.asarray(sigma_mpa, dtype=np.float64), len(strain))
    found = np.empty((len(strain), TARGETS))
    for first in range(0, len(strain), _CHUNK):
        part = slice(first, first + _CHUNK)
        gamma, sigma = strain[part].astype(np.float64), sigmas[part]
        g0_mpa, a = (low + span * targets[part]).T
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
        scale = (sigma**2 / np.where(tells, determinant, 1.0))[:, None]
        both = np.stack([bend_bend / per_g0**2, rise_rise / per_a**2], axis=1) * scale
        found[part] = np.where(tells[:, None], both, np.inf)
    return found


def floor(
    sums: NDArray[np.float64],
    count: int,
    *,
    target_bounds: NDArray[np.float64] = TARGET_BOUNDS,
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
