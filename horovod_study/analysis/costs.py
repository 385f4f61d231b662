"""What messages cost: the alpha-beta model of an all-reduce, which laws, forecasts, advice and simulation share.

A kit: it imports nothing of this package but the errors, and both wings use it (docs/architecture.md, "The walls").
A message of S bytes takes alpha + S / beta (R. Hockney, Parallel Computing 20, 1994, 389-398). Letters: n workers,
S bytes of a buffer that all of them reduce, alpha in s per message, beta in bytes per s of a link.

    ring                2 (n-1) alpha + 2 (n-1)/n S/beta
    recursive doubling  ceil(log2 n) (alpha + S/beta)
    Rabenseifner        2 ceil(log2 n) alpha + 2 (n-1)/n S/beta: recursive halving, then recursive doubling
    tree                2 ceil(log2 n) (alpha + S/beta): reduce, then broadcast

R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19,
2005, 49-66, without the time of adding numbers up. No all-reduce moves fewer than 2 (n-1)/n S bytes over the link of
each worker (P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69, 2009, 117-124).
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
Value: TypeAlias = float | Floats
"""A constant, or draws of it, (K, 1)."""
ERROR_BEYOND = 0.25
"""Standard deviation of the logarithm of measured / extrapolated times, of each doubling beyond the sizes measured:
what the times of benchmarks/published/allreduce say whose largest sizes are hidden, each machine counted once."""


def ring_messages(n: Any) -> Any:
    """Return how many messages a ring sends one after the other, 2 (n - 1); any shape."""
    return 2 * (n - 1)


def moved_share(n: Any) -> Any:
    """Return the bytes over the slowest link of each of `n` workers per byte that is reduced, 2 (n - 1) / n."""
    return 2 * (n - 1) / n


def time_at(sizes: Floats, seconds: Floats, size: Value) -> Floats:
    """Return the time at `size` bytes from `seconds` (k,) at ascending `sizes` (k,), of the shape of `size`.

    Between sizes it is straight in logarithms. Beyond either end it grows with the slope between the last size and the
    nearest of half or twice of it: of published all-reduces with the large sizes hidden (benchmarks/published) it
    misses less than lines through more sizes, whose protocols differ. No slope is above the time per byte at the end,
    which would be a negative latency; beyond the largest size one that falls is that, below the smallest it is 0.
    """
    found = np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds)))
    for end, beyond in ((0, np.asarray(size) < sizes[0]), (-1, np.asarray(size) > sizes[-1])):
        far = np.flatnonzero(sizes >= 2 * sizes[0]) if end == 0 else np.flatnonzero(sizes <= sizes[-1] / 2)[::-1]
        rate, slope = seconds[end] / sizes[end], 0.0
        if len(far):
            slope = (seconds[far[0]] - seconds[end]) / (sizes[far[0]] - sizes[end])
        if slope <= 0:
            slope = rate if end else 0.0
        found = np.where(beyond, seconds[end] + (size - sizes[end]) * min(slope, rate), found)
    return np.asarray(found)


def rounds(n: Any) -> Any:
    """Return the rounds in which everybody can reach everybody, ceil(log2 n); any shape."""
    return np.ceil(np.log2(n) - 1e-9) + 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Link:
    """What a message between two workers takes: alpha_s + bytes / bytes_per_s. ConfigError where that is impossible."""

    DOCUMENT = "alpha_s bytes_per_s source"
    alpha_s: Value
    bytes_per_s: Value
    source: str = "as given"
    workers: int | None = None  # that were measured together, where it was
    error: float = 0.0  # standard deviation of the logarithm of the time that its bandwidth is of
    doubt: str = ""

    def __post_init__(self) -> None:
        alpha, bandwidth = np.ravel(self.alpha_s), np.ravel(self.bytes_per_s)
        if not (np.isfinite(alpha).all() and (alpha >= 0).all() and (bandwidth > 0).all()):
            raise ConfigError(
                f"network: alpha is {alpha[0]:g} s and bandwidth is {bandwidth[0]:g} bytes/s; alpha must be 0 or "
                "greater, bandwidth greater than 0"
            )

    @property
    def s_per_byte(self) -> Value:
        """The inverse of the bandwidth."""
        return 1.0 / self.bytes_per_s

    def times(self, *, alpha: Value = 1.0, bandwidth: Value = 1.0) -> "Link":
        """Return the link with its constants multiplied."""
        return replace(self, alpha_s=self.alpha_s * alpha, bytes_per_s=self.bytes_per_s * bandwidth)

    def message_s(self, size: float) -> Value:
        """Return the seconds of one message of `size` bytes between two workers."""
        return self.alpha_s + size / self.bytes_per_s

    def all_reduce_s(self, size: float, n: int) -> tuple[float, str]:
        """Return the seconds of the quickest all-reduce of `size` bytes over `n` workers, and its algorithm."""
        if n == 1:
            return 0.0, "none"
        transfer = moved_share(n) * size / self.bytes_per_s
        times = {
            "recursive doubling": float(rounds(n) * self.message_s(size)),
            "Rabenseifner": float(2 * rounds(n) * self.alpha_s + transfer),
            "ring": float(ring_messages(n) * self.alpha_s + transfer),
        }
        name = min(times, key=lambda name: times[name])
        return times[name], name

    def half_s(self, size: float, n: int) -> float:
        """Return the seconds of a reduce-scatter or an all-gather of `size` bytes in all, half of Rabenseifner's."""
        return 0.0 if n == 1 else float(rounds(n) * self.alpha_s + (n - 1) / n * size / self.bytes_per_s)


def link_of_line(alpha_s: float, bytes_per_s: float, n: int, *, source: str = "as given") -> Link:
    """Return the link between two workers from the line t = alpha + S/beta of whole all-reduces on n >= 2 workers.

    Per message alpha is that of the line divided by the rounds, and beta 2 (n-1)/n times that of the line: with two
    workers they are its own.
    """
    return Link(alpha_s=alpha_s / rounds(n), bytes_per_s=bytes_per_s * 2 * (n - 1) / n, source=source, workers=n)
