"""Scaling laws as small values: speedup S as a function of the worker count N, with names, bounds and meaning.

Letters: N worker count (at least 1), S speedup relative to one worker, B parameter sets evaluated at once.

    linear     S = slope N + intercept                        the regression line of the original study
    amdahl     S = 1 / (s + (1 - s) / N)                      Amdahl 1967; s is the serial fraction of fixed work
    gustafson  S = s + (1 - s) N                              Gustafson 1988; s is the serial fraction of scaled work
    usl        S = gamma N / (1 + alpha (N - 1) + beta N (N - 1))
                                                              Gunther's Universal Scalability Law; alpha is contention
                                                              (queueing for something shared), beta is coherency
                                                              (everybody talking to everybody)

`usl` has a scale gamma because its published form, X(N) = X1 N / (...), has the free one-worker throughput X1.
With it, alpha and beta do not depend on which baseline the speedup was divided by, nor on the luck of a single
one-worker run.
With fewer than four distinct worker counts there is nothing left to determine a third number: `USL.reduced` is the
same law with gamma = 1.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One scaling law: what it says, what its parameters may be, and the questions that its parameters answer."""

    name: str
    formula: str
    parameters: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]  # one (lowest, highest) per parameter
    modes: frozenset[str]  # scaling modes in which the parameters mean what their names say
    curve: Callable[..., Any]  # curve(n, **parameters) -> S; n and parameters broadcast
    starts: Callable[[Array, Array], list[tuple[float, ...]]]  # first guesses from points (n, s), each of shape (K,)
    peak: Callable[..., float]  # worker count with the highest speedup; inf when there is none
    limit: Callable[..., float]  # speedup that no worker count exceeds; inf when there is none
    costs: tuple[str, ...] = ()  # parameters that are zero when nothing is lost, where a law has several
    linear: bool = False  # linear in its parameters, so that least squares has a closed form
    reduced: "Law | None" = field(default=None, repr=False)  # fewer free parameters, for few distinct worker counts

    def __post_init__(self) -> None:
        if len(self.parameters) != len(self.bounds):
            raise ValueError(f"law {self.name!r}: {len(self.parameters)} parameters but {len(self.bounds)} bounds")

    def at(self, n: ArrayLike, values: NDArray[Any]) -> NDArray[Any]:
        """Speedup at worker counts `n` (K,) for parameter vectors `values` (..., k), as (..., K)."""
        columns = {name: values[..., i, np.newaxis] for i, name in enumerate(self.parameters)}
        speedup = self.curve(np.asarray(n, dtype=np.float64), **columns)
        return np.broadcast_to(speedup, (*values.shape[:-1], np.size(n)))

    def gradient(self, n: ArrayLike, values: Array) -> Array:
        """dS/dparameter at worker counts `n` (K,) for parameter vectors `values` (..., k), as (..., K, k).

        Complex-step differentiation: exact to rounding, because every curve is an analytic formula
        (Squire and Trapp 1998).
        """
        step = 1e-30
        slopes = []
        for i in range(len(self.parameters)):
            shifted = values.astype(np.complex128)
            shifted[..., i] += step * 1j
            slopes.append(self.at(n, shifted).imag / step)
        return np.stack(slopes, axis=-1)


def karp_flatt(speedup: ArrayLike, workers: ArrayLike) -> Array:
    """Experimentally determined serial fraction e = (1/S - 1/N) / (1 - 1/N) (Karp and Flatt 1990); NaN at N = 1.

    It needs no fit: e that stays level speaks for serial work, e that rises with N for overhead that grows with N.
    """
    s, n = np.broadcast_arrays(np.asarray(speedup, dtype=np.float64), np.asarray(workers, dtype=np.float64))
    fraction = np.full(s.shape, np.nan)
    several = n > 1
    fraction[several] = (1 / s[several] - 1 / n[several]) / (1 - 1 / n[several])
    return fraction


def usl_peak(alpha: float, beta: float, gamma: float = 1.0) -> float:
    """Worker count with the highest speedup, sqrt((1 - alpha) / beta); 1 when alpha >= 1, inf when beta is 0."""
    if alpha >= 1:
        return 1.0
    return math.inf if beta <= 0 else max(1.0, math.sqrt((1 - alpha) / beta))


def usl_limit(alpha: float, beta: float, gamma: float = 1.0) -> float:
    """Highest speedup of all: the one at the peak, gamma / alpha without coherency cost, inf without any cost."""
    peak = usl_peak(alpha, beta)
    if math.isfinite(peak):
        return float(_usl(peak, alpha, beta, gamma))
    return gamma / alpha if alpha > 0 else math.inf


def usl_bottleneck(workers: float, alpha: float, beta: float) -> str:
    """What costs more at `workers`: "contention" (alpha (N - 1)) or "coherency" (beta N (N - 1)); "none" if neither."""
    if alpha <= 0 and beta <= 0:
        return "none"
    return "coherency" if beta * workers > alpha else "contention"


def amdahl_limit(s: float) -> float:
    """Speedup that Amdahl's law never exceeds, 1 / s."""
    return 1 / s if s > 0 else math.inf


def _linear(n: Any, slope: Any, intercept: Any) -> Any:
    return slope * n + intercept


def _amdahl(n: Any, s: Any) -> Any:
    return n / (1 + s * (n - 1))


def _gustafson(n: Any, s: Any) -> Any:
    return s + (1 - s) * n


def _usl(n: Any, alpha: Any, beta: Any, gamma: Any = 1.0) -> Any:
    return gamma * n / (1 + alpha * (n - 1) + beta * n * (n - 1))


def _starts_linear(n: Array, s: Array) -> list[tuple[float, ...]]:
    return [(float(np.mean(s / n)), 0.0)]


def _starts_amdahl(n: Array, s: Array) -> list[tuple[float, ...]]:
    # N/S - 1 = s (N - 1) is linear in s.
    weight = np.sum((n - 1) ** 2)
    guess = np.sum((n - 1) * (n / s - 1)) / weight if weight > 0 else 0.0
    return [(float(np.clip(guess, 1e-6, 1.0)),), (0.0,), (1.0,)]


def _starts_gustafson(n: Array, s: Array) -> list[tuple[float, ...]]:
    return [(0.5,)]


def _starts_usl(n: Array, s: Array) -> list[tuple[float, ...]]:
    # N/S = (1 + alpha (N - 1) + beta N (N - 1)) / gamma is linear in 1/gamma, alpha/gamma and beta/gamma.
    # Dividing by N/S makes the residuals relative, so that the largest N does not drown the rest.
    columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], axis=1) * (s / n)[:, np.newaxis]
    inverse, contention, coherency = np.linalg.lstsq(columns, np.ones_like(n))[0]
    gamma = 1 / inverse if inverse > 0 else float(np.max(s / n))
    guess = (max(contention * gamma, 1e-6), max(coherency * gamma, 1e-9), gamma)
    return [guess, *((alpha, beta, 1.0) for alpha, beta in _starts_usl_anchored(n, s))]


def _starts_usl_anchored(n: Array, s: Array) -> list[tuple[float, ...]]:
    columns = np.stack([n - 1, n * (n - 1)], axis=1) * (s / n)[:, np.newaxis]
    contention, coherency = np.linalg.lstsq(columns, 1 - s / n)[0]
    # Amdahl's law is the case beta = 0: starting there, too, USL never ends up worse.
    return [(max(contention, 1e-6), max(coherency, 1e-9)), *((s0, 0.0) for (s0,) in _starts_amdahl(n, s))]


LINEAR = Law(
    name="linear",
    formula="S = slope N + intercept",
    parameters=("slope", "intercept"),
    bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
    modes=frozenset({"strong", "weak", "mixed"}),
    curve=_linear,
    starts=_starts_linear,
    peak=lambda slope, intercept: math.inf if slope > 0 else 1.0,
    limit=lambda slope, intercept: math.inf if slope > 0 else slope + intercept,
    linear=True,
)

AMDAHL = Law(
    name="amdahl",
    formula="S = 1 / (s + (1 - s) / N)",
    parameters=("s",),
    bounds=((0.0, 1.0),),
    modes=frozenset({"strong"}),
    curve=_amdahl,
    starts=_starts_amdahl,
    peak=lambda s: math.inf,
    limit=amdahl_limit,
)

GUSTAFSON = Law(
    name="gustafson",
    formula="S = s + (1 - s) N",
    parameters=("s",),
    bounds=((0.0, 1.0),),
    modes=frozenset({"weak"}),
    curve=_gustafson,
    starts=_starts_gustafson,
    peak=lambda s: math.inf,
    limit=lambda s: math.inf if s < 1 else 1.0,
    linear=True,
)

USL_ANCHORED = Law(
    name="usl",
    formula="S = N / (1 + alpha (N - 1) + beta N (N - 1))",
    parameters=("alpha", "beta"),
    bounds=((0.0, math.inf), (0.0, math.inf)),
    modes=frozenset({"strong", "weak", "mixed"}),
    curve=_usl,
    starts=_starts_usl_anchored,
    peak=usl_peak,
    limit=usl_limit,
    costs=("alpha", "beta"),
)

USL = Law(
    name="usl",
    formula="S = gamma N / (1 + alpha (N - 1) + beta N (N - 1))",
    parameters=("alpha", "beta", "gamma"),
    bounds=((0.0, math.inf), (0.0, math.inf), (0.0, math.inf)),
    modes=frozenset({"strong", "weak", "mixed"}),
    curve=_usl,
    starts=_starts_usl,
    peak=usl_peak,
    limit=usl_limit,
    costs=("alpha", "beta"),
    reduced=USL_ANCHORED,
)

LAWS: Mapping[str, Law] = MappingProxyType({law.name: law for law in (LINEAR, AMDAHL, GUSTAFSON, USL)})
