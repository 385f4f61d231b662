"""One data-parallel step: computing, waiting for the slowest of N, and averaging gradients, with or without overlap.

Semi-analytic: nothing is drawn that can be computed, and what is drawn is stratified. docs/metrics.md ("Simulated
step") has the equations. Shapes: K draws of the constants, D steps; arrays are (K, D) or broadcast to it. With several
buckets the worker that ends last is taken as the last one for all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy import special

from horovod_study.analysis.costs import Floats, Value
from horovod_study.analysis.simulate.network import Choice, split
from horovod_study.errors import AnalysisError

PARTS = ("compute", "slowest", "cycle", "runtime", "latency", "transfer")
"""They add up to the step: mean computing of a worker, waiting for the slowest, for the runtime's look, its overhead
and negotiation, then what is exposed of the all-reduce's latency and of its bytes."""

NEGOTIATIONS: Mapping[str, int] = MappingProxyType({"none": 0, "cached": 1, "full": 5})
"""How many collectives of a few bytes a message takes beforehand."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Compute:
    """The distribution over steps of one worker's computing: measured times, or a mean with a scatter."""

    mean_s: float
    times_s: Floats | None = None  # (m,), ascending; their mean is mean_s
    cv: float = 0.0  # standard deviation / mean of a lognormal distribution, where there are no times

    @property
    def steps(self) -> int | None:
        """How many steps were measured; None without any."""
        return None if self.times_s is None else len(self.times_s)

    def slowest_s(self, n: int, u: Floats) -> Floats:
        """Return the slowest of `n` independent workers for uniform numbers `u`, each in (0, 1), in their shape."""
        if self.times_s is not None:
            m = len(self.times_s)
            place = np.ceil(m * np.exp(np.log(u) / n)).astype(np.int64) - 1
            return np.asarray(self.times_s[np.clip(place, 0, m - 1)])
        # Through the upper tail: U^(1/N) is too near to 1 for large N to say how near.
        spread = math.sqrt(math.log1p(self.cv**2))
        deviate = -special.ndtri(-np.expm1(np.log(u) / n))
        return np.asarray(self.mean_s * np.exp(spread * deviate - spread**2 / 2))

    def drawn_slowest_s(self, n: int, u: Floats) -> Floats:
        """Return `slowest_s` moved by the little that its mean over `u`, (D,), misses the exact mean by."""
        drawn = self.slowest_s(n, u)
        if self.times_s is None and self.cv == 0:
            return drawn
        return drawn + (self.expected_slowest_s(n) - float(drawn.mean()))

    def expected_slowest_s(self, n: int) -> float:
        """Return the exact mean of the slowest of `n` workers.

        For measured times x_1 <= ... <= x_m it is the sum of x_i ((i/m)^n - ((i-1)/m)^n).
        """
        if n == 1 or (self.times_s is None and self.cv == 0):
            return self.mean_s
        if self.times_s is None:
            # of the integral over a distribution that was not measured
            return float(self.slowest_s(n, (np.arange(20_000) + 0.5) / 20_000).mean())
        m = len(self.times_s)
        below = np.exp(n * np.log(np.arange(1, m + 1) / m))
        return float(self.times_s @ np.diff(below, prepend=0.0))


def measured(times_s: Floats) -> Compute:
    """Return the distribution of measured times, (m,), in s; AnalysisError for none, or one that is not positive."""
    times = np.sort(np.asarray(times_s, dtype=np.float64).ravel())
    if not len(times) or not (np.isfinite(times).all() and times[0] > 0):
        raise AnalysisError("simulate: times of computing must be positive numbers of seconds; record the run again")
    return Compute(mean_s=float(times.mean()), times_s=times)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runtime:
    """What is between backward and the all-reduce: Horovod's cycle, negotiation and fusion, or nothing."""

    overhead_s: float = 0.0  # of each message: packing, calls, threads
    cycle_s: float = 0.0
    negotiation: str = "none"  # one of NEGOTIATIONS
    fusion_bytes: float = math.inf


def communicate(
    slowest_s: Floats,
    *,
    backward_s: Floats,
    gradient_bytes: float,
    buckets: int,
    choices: tuple[Choice, ...],
    runtime: Runtime,
    negotiation_s: Value,
    apart: Floats,
) -> dict[str, Floats]:
    """Return what averaging gradients adds to steps whose slowest worker computes for `slowest_s`, (K, D).

    Those of PARTS that are exposed, what backward has `hidden`, in s, and the `messages` of a step, each (K, D).
    `backward_s`, (K, D): the last part of that, during which buckets become ready. `negotiation_s`: of one message.
    `apart`, (D,): how much earlier the earliest thread looks, as a share of the cycle.
    """
    shape, cycle = np.broadcast_shapes(np.shape(slowest_s), np.shape(backward_s)), runtime.cycle_s
    before_s, slowest_s = np.asarray(runtime.overhead_s + negotiation_s), np.broadcast_to(slowest_s, shape)
    fused = max(1, math.floor(min(float(buckets), runtime.fusion_bytes * buckets / gradient_bytes) + 1e-9))
    # The look that ended the step before was its last message ago; how long that took is known after a first round.
    last_op = np.broadcast_to(before_s + sum(split(choices, gradient_bytes)), shape)
    for _ in range(2 if buckets > 1 and cycle > 0 else 1):
        sent, messages, free, anchor = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape), -last_op
        sums = {name: np.zeros(shape) for name in PARTS[2:]}
        while (active := sent < buckets).any():
            # Bucket j is ready at j / buckets of backward.
            ready = slowest_s - backward_s * (1 - np.minimum(sent + 1, buckets) / buckets)
            look = start = np.maximum(ready, free)
            if cycle > 0:
                soonest = anchor + np.maximum(cycle, last_op)
                # A grain of rounding below a whole number of cycles is that number.
                steps = np.ceil((start + apart * cycle - soonest) / cycle - 1e-9)
                look = np.maximum(soonest + np.maximum(steps, 0) * cycle, start)
            with np.errstate(divide="ignore", invalid="ignore"):
                there = np.floor(buckets * (1 - (slowest_s - (look - apart * cycle)) / backward_s) + 1e-9)
            there = np.where(np.isfinite(there), there, buckets).astype(np.int64)
            until = np.clip(there, sent + 1, np.minimum(sent + fused, buckets))
            latency, transfer = split(choices, gradient_bytes * (until - sent) / buckets)
            for name, each in zip(PARTS[2:], (look - start, before_s, latency, transfer), strict=True):
                sums[name] += np.where(active, each, 0.0)
            op = np.broadcast_to(before_s + latency + transfer, shape)
            free, last_op = np.where(active, look + op, free), np.where(active, op, last_op)
            anchor, sent = np.where(active, look, anchor), np.where(active, until, sent)
            messages += active
    if buckets == 1:
        return {**sums, "hidden": np.zeros(shape), "messages": messages}
    # Which part of a chain of messages is hidden is not defined: all parts alike.
    total, exposed = sum(sums.values()), free - slowest_s
    scale = np.divide(exposed, total, out=np.zeros(shape), where=total > 0)
    shown = {name: each * scale for name, each in sums.items()}
    return {**shown, "hidden": np.maximum(total - exposed, 0.0), "messages": messages}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Chance:
    """The uniform numbers of D steps, each (D,): for the slowest worker, a slow node, and the phases of threads."""

    slowest: Floats
    slow_node: Floats
    phases: Floats

    def apart(self, n: int) -> Floats:
        """Return how far apart the earliest and the latest of `n` threads look, as a share of a cycle: Beta(n-1, 2)."""
        if n == 1:
            return np.zeros_like(self.phases)
        return np.asarray(special.betaincinv(n - 1, 2, self.phases))


def chance(steps: int, *, seed: int) -> Chance:
    """Return stratified numbers for `steps` steps; the strata of the three are shuffled against each other."""
    rng = np.random.default_rng(seed)

    def strata() -> Floats:
        return np.asarray(rng.permutation((np.arange(steps) + rng.uniform(0.0, 1.0, steps)) / steps))

    return Chance(slowest=strata(), slow_node=strata(), phases=strata())
