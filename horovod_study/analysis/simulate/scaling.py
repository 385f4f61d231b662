"""A described network, what an all-reduce of S bytes among N workers costs on it, and a scenario over worker counts.

Workers fill one node after the other: N workers, g on a node, M = ceil(N / g) nodes, k servers. On one kind of link
costs are those of analysis/costs.py, latency + S * seconds per byte. Switch levels add their latency to every message
that crosses them; oversubscription divides the bandwidth of messages with which all nodes below a switch leave it at
once. `auto` is what follows from all-reduces that were measured at several sizes on few workers, else the quickest of
three closed forms: the curve of the nearest measured count is kept, and its two parts, the bytes on their way over the
slowest link and all else, grow each in its own way. docs/metrics.md ("Simulated step") has the equations,
docs/predict.md what they rest on; the constants were chosen by leaving out one machine after the other (`make bench
BENCH=allreduce`).

Letters of a scenario: b samples per worker, G = N b samples per step, t step. Speedup is over one worker that computes
alone. With strong scaling G is fixed and b is ceil(G / N). Intervals are 95 %: constants that carry one are drawn
together from lognormal distributions, the same numbers for every worker count and scenario, so that ratios have
narrower intervals. One of them is the model's error of an all-reduce on more workers than were measured (`error_of`);
the model of computing and waiting has none. What-ifs, such as `bandwidth=2x`, change a scenario.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from pydantic import Field
from scipy import special

from horovod_study.analysis.costs import Floats, Link, Value, moved_share, ring_messages, rounds, time_at
from horovod_study.config.doors import Form, Number, Options, Whole, accept, asked
from horovod_study.errors import AnalysisError, ConfigError, nearest

MAX_WORKERS = 10_000_000  # of a job; on a node, servers, nodes below a switch too
CLOSED_FORM_ERROR = 0.7
"""Standard deviation of the logarithm of measured / closed form, from twice the workers on of which its two constants
are (`make bench BENCH=allreduce`)."""
LARGEST = 1e15  # of the numbers in a file; products of larger ones would be infinite


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthConstants:
    """The constants of the growth; others are tried in benchmarks/allreduce.py only."""

    congestion: float = 0.02  # of one doubling of the nodes, where nothing else is known
    trust: float = 0.5  # in the congestion that two counts show
    small: float = 0.3
    large: float = 1.0


GROWTH = GrowthConstants()
ERROR, ERROR_OF_DOUBLING = 0.2, 0.15  # of the logarithm of measured / simulated: beyond the counts, of each doubling


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sweep:
    """Curves all-reduces of one worker count: times in s at sizes in bytes, both (k,), sizes ascending."""

    workers: int
    nodes: int
    sizes: Floats
    seconds: Floats
    algorithm: str = "auto"

    def __post_init__(self) -> None:
        positive = all((np.isfinite(each) & (each > 0)).all() for each in (self.sizes, self.seconds))
        ascending = len(self.sizes) == len(self.seconds) > 0 and (np.diff(self.sizes) > 0).all()
        if not (positive and ascending and 1 <= self.nodes <= self.workers and self.workers > 1):
            raise AnalysisError(
                "all-reduces: sizes must ascend, each with a time, all positive numbers, of two workers at least on as "
                "many nodes or fewer"
            )

    @property
    def carried(self) -> float:
        """Bytes over the slowest link per byte that is reduced."""
        return carried(self.algorithm, self.workers, self.nodes)

    @property
    def s_per_byte(self) -> float:
        """The least that was measured, over the slowest link."""
        return float(np.min(self.seconds / self.sizes)) / self.carried

    @property
    def latency_s(self) -> float:
        """What a small message takes."""
        small = self.sizes <= max(1024, self.sizes[0])  # up to here a message is all latency
        return float(np.median(self.seconds[small]))

    def parts(self, size: Value) -> tuple[Floats, Floats]:
        """Return (rest, bytes) in s of `size` bytes: their way over the slowest link, and what else they take.

        Beyond the largest size the slope of the curve may be below the least time per byte that was measured.
        """
        seconds, least = time_at(self.sizes, self.seconds, size), self.s_per_byte * self.carried * size
        moved = np.where(np.asarray(size) > self.sizes[-1], np.minimum(least, seconds), least)
        return np.asarray(np.maximum(seconds - moved, 0.0)), np.asarray(moved)


def carried(algorithm: str, workers: int, nodes: int) -> float:
    """Return bytes over the slowest link per byte that is reduced.

    A tree sends everything up and everything down; between two nodes both are one exchange.
    """
    if algorithm == "tree" and nodes > 1:
        return 2.0 if nodes > 2 else 1.0
    return float(moved_share(workers))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curves:
    """Sweeps of a network, and its links as they were when these were measured."""

    sweeps: tuple[Sweep, ...]
    intra: Link
    inter: Link
    alone: bool = False  # no other source says what links between nodes do


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Extended:
    """Seconds of an all-reduce of n workers, from sweeps; factors are what a changed network makes of both parts."""

    sweeps: tuple[Sweep, ...]  # the smallest first
    workers: int
    nodes: int
    latency_factor: Value = 1.0
    transfer_factor: Value = 1.0
    growth: GrowthConstants = GROWTH

    def _place(self, of: Any) -> float:
        """Return the doublings of the nodes of a sweep, or of what is asked; of the workers where all are on one."""
        return math.log2(of.nodes if self.sweeps[-1].nodes > 1 else of.workers)

    @property
    def error(self) -> float:
        """The standard deviation of the logarithm of measured / simulated; 0 where it was measured.

        It grows with the doublings of nodes, or of workers on one node, from the nearest measured count.
        """
        far = min(abs(self._place(self) - self._place(each)) for each in self.sweeps)
        return math.sqrt(ERROR**2 * min(1.0, far) + ERROR_OF_DOUBLING**2 * far)

    def parts(self, size: Value) -> tuple[Value, Value]:
        """Return (latency, transfer) in s of `size` bytes: their way over the slowest link, and all else."""
        here, places = self._place(self), [self._place(each) for each in self.sweeps]
        above = next((i for i, place in enumerate(places) if place >= here), len(places))
        rest, moved = self._from(self.sweeps[min(above, len(places) - 1)], size)
        if 0 < above < len(places) and places[above] > here:
            # Between two counts: from both sides, in logarithms.
            share = (here - places[above - 1]) / (places[above] - places[above - 1])
            low_rest, low_moved = self._from(self.sweeps[above - 1], size)
            total = np.exp(share * np.log(rest + moved) + (1 - share) * np.log(low_rest + low_moved))
            moved = np.minimum(moved**share * low_moved ** (1 - share), total)
            rest = total - moved
        return self.latency_factor * rest, self.transfer_factor * moved

    def _from(self, sweep: Sweep, size: Value) -> tuple[Floats, Floats]:
        """Return (rest, bytes) in s as they follow from one sweep."""
        here, known = self._place(self), self._place(sweep)
        rest, moved = sweep.parts(size)
        now = carried(sweep.algorithm, self.workers, self.nodes)
        if sweep.algorithm == "ring":
            grown: Value = 2.0 ** (here - known)
        elif self.sweeps[-1].nodes == 1:
            grown = here / known
        else:
            bytes_s = sweep.s_per_byte * sweep.carried * size
            share = bytes_s**2 / (bytes_s**2 + sweep.latency_s**2)
            before = self.growth.small + share * (self.growth.large - self.growth.small)
            grown = (here + before) / (known + before)
        moved = moved / sweep.carried * now * (1 + self._congestion()) ** (here - known)
        return np.asarray(rest * grown), np.asarray(moved)

    def _congestion(self) -> float:
        seen, first, last = self.growth.congestion, self.sweeps[0], self.sweeps[-1]
        far = self._place(last) - self._place(first)
        if far > 0 and min(len(each.sizes) for each in self.sweeps) > 1:
            found = (last.s_per_byte / first.s_per_byte) ** (1 / far) - 1
            seen = self.growth.trust * found + (1 - self.growth.trust) * seen
        return min(max(seen, 0.0), 0.2) if last.nodes > 1 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One level of switches: what messages between groups of so many nodes cross."""

    nodes: int  # below one switch of this level
    latency_s: float = 0.0
    oversubscription: float = 1.0  # bandwidth of the nodes together / bandwidth out of the switch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Network:
    """Links within a node and between nodes, how many workers share a node and its card, and switches."""

    intra: Link
    inter: Link
    workers_per_node: int = 1
    levels: tuple[Level, ...] = ()
    servers: int = 1  # of a parameter server
    source: str = "as given"
    measured: Curves | None = None

    def nodes(self, n: int) -> int:
        """Return on how many nodes `n` workers sit."""
        return math.ceil(n / self.workers_per_node)

    def crossed(self, distance: int) -> tuple[Value, float]:
        """Return alpha between nodes `distance` apart and the largest oversubscription on the way."""
        there = [level for level in self.levels if level.nodes <= distance]
        alpha = self.inter.alpha_s + sum(level.latency_s for level in there)
        return alpha, max((level.oversubscription for level in there), default=1.0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cost:
    """Seconds of an all-reduce of S bytes: latency_s + S * s_per_byte."""

    latency_s: Value
    s_per_byte: Value

    def parts(self, size: Value) -> tuple[Value, Value]:
        """Return (latency, transfer) in s of `size` bytes."""
        return self.latency_s, size * self.s_per_byte


Choice: TypeAlias = Cost | Extended  # A closed form, or what follows from measured all-reduces
NOTHING = Cost(latency_s=0.0, s_per_byte=0.0)


def _ring_of_nodes(network: Network, nodes: int, hops: int) -> tuple[Value, Value]:
    """Return latency of `hops` hops on a ring of one member per node, and s/byte of its slowest link."""
    used = [level for level in network.levels if level.nodes < nodes]
    # Twice round the ring, and each group of nodes is left once in a round.
    switches = sum(min(hops, 2 * math.ceil(nodes / level.nodes)) * level.latency_s for level in used)
    slowest = max((max(1.0, level.oversubscription / level.nodes) for level in used), default=1.0)
    return hops * network.inter.alpha_s + switches, network.inter.s_per_byte * slowest


def ring(network: Network, n: int) -> Cost:
    """Return the cost of a ring through all workers, node after node.

    A message crosses each link twice less one hop, so latencies add up along the ring; bytes flow at the pace of the
    slowest link. A node's network card carries one stream in each direction.
    """
    nodes, hops = network.nodes(n), ring_messages(n)
    if nodes == 1:
        return Cost(latency_s=hops * network.intra.alpha_s, s_per_byte=moved_share(n) * network.intra.s_per_byte)
    between = min(hops, 2 * nodes)
    latency, slowest = _ring_of_nodes(network, nodes, between)
    if network.workers_per_node > 1:
        slowest = np.maximum(slowest, network.intra.s_per_byte)
    return Cost(latency_s=latency + (hops - between) * network.intra.alpha_s, s_per_byte=moved_share(n) * slowest)


def doubling(network: Network, n: int) -> Cost:
    """Return the cost of recursive doubling: everybody exchanges everything with partners 1, 2, 4, ... apart.

    Once these sit on different nodes, the g workers of a node send through its card at the same time.
    """
    g = min(n, network.workers_per_node)
    inside, every = int(rounds(g)), int(rounds(n))
    latency: Value = inside * network.intra.alpha_s
    per_byte: Value = inside * network.intra.s_per_byte
    for round_ in range(every - inside):
        alpha, over = network.crossed(2**round_)
        latency = latency + alpha
        per_byte = per_byte + g * over * network.inter.s_per_byte
    return Cost(latency_s=latency, s_per_byte=per_byte)


def halving(network: Network, n: int) -> Cost:
    """Return the cost of a reduce-scatter by recursive halving and an all-gather by recursive doubling.

    Nearest partners come first, so that only S/g per worker, S per node, is left to cross nodes.
    """
    g, nodes = min(n, network.workers_per_node), network.nodes(n)
    inside, between = int(rounds(g)), int(rounds(nodes))
    latency: Value = 2 * inside * network.intra.alpha_s
    # Of the bytes, (g-1)/g stay in the node; the rest, S/g per worker and S per node, crosses in halves.
    per_byte: Value = moved_share(g) * network.intra.s_per_byte
    # For a number of nodes that is no power of two the rounds are scaled so that they carry the (M-1)/M that must move.
    scale = ((nodes - 1) / nodes) / (1 - 0.5**between) if between else 1.0
    for round_ in range(between):
        alpha, over = network.crossed(2**round_)
        latency = latency + 2 * alpha
        per_byte = per_byte + 2 * scale * 0.5 ** (round_ + 1) * over * network.inter.s_per_byte
    return Cost(latency_s=latency, s_per_byte=per_byte)


def hierarchical(network: Network, n: int) -> Cost:
    """Return the cost of reducing inside nodes, then between them, then handing out inside; one node is a ring."""
    g, nodes = min(n, network.workers_per_node), network.nodes(n)
    latency: Value = ring_messages(g) * network.intra.alpha_s
    per_byte: Value = moved_share(g) * network.intra.s_per_byte
    if nodes > 1:
        # Each of the g workers of a node moves its shard of S/g around a ring of nodes; together they share the card.
        between, slowest = _ring_of_nodes(network, nodes, ring_messages(nodes))
        latency = latency + between
        per_byte = per_byte + moved_share(nodes) * slowest
    return Cost(latency_s=latency, s_per_byte=per_byte)


def _parameter_server(network: Network, n: int) -> Cost:
    """Return the cost of sending everything to servers, ranks 0, 1, ..., of which those of a node share its card."""
    g, nodes, k = min(n, network.workers_per_node), network.nodes(n), min(n, network.servers)
    inside = 2 * (g - 1) / k * network.intra.s_per_byte
    if nodes == 1:
        return Cost(latency_s=2 * network.intra.alpha_s, s_per_byte=inside)
    alpha, over = network.crossed(nodes)
    through = 2 * min(k, g) * (n - g) / k * network.inter.s_per_byte  # the card of the first node
    across = 2 * g * over * network.inter.s_per_byte  # what a node of workers sends and gets past the switches
    # Servers fill the nodes from the first, so unless all are servers the last node has none: everything leaves it.
    leaves = (n - g) / n if k == n else 1.0
    return Cost(latency_s=2 * alpha, s_per_byte=np.maximum(inside, np.maximum(through, across * leaves)))


_ALGORITHMS: Mapping[str, Callable[[Network, int], Cost]] = {
    "ring": ring,
    "doubling": doubling,
    "halving": halving,
    "hierarchical": hierarchical,
    "ps": _parameter_server,
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in _ALGORITHMS},
    "tree": ("doubling", "halving"),
    "auto": ("ring", "doubling", "halving"),
}
"""What can be asked for. Of several the quickest at the size of the message is taken, as libraries do."""


def costs(network: Network, algorithm: str, n: int) -> tuple[Choice, ...]:
    """Return the costs of the algorithms among which `algorithm` lets the size choose; one worker costs nothing.

    `auto` on a network of which all-reduces were measured is what follows from these, since they show what the library
    chooses.
    """
    if n == 1:
        return (NOTHING,)
    nodes, known = network.nodes(n), network.measured if algorithm == "auto" else None
    sweeps = [each for each in known.sweeps if (each.nodes > 1) == (nodes > 1)] if known else []
    if known and known.alone and nodes > 1:
        sweeps = sweeps or [*known.sweeps]
    if known is None or not sweeps:
        return tuple(_ALGORITHMS[name](network, n) for name in CHOICES[algorithm])
    # What was changed since (links that are twice as fast, switches) counts by what it does to recursive halving.
    before, now = halving(replace(network, intra=known.intra, inter=known.inter, levels=()), n), halving(network, n)
    latency, transfer = _factor(now.latency_s, before.latency_s), _factor(now.s_per_byte, before.s_per_byte)
    ordered = tuple(sorted(sweeps, key=lambda each: (each.workers, each.nodes)))
    return (Extended(sweeps=ordered, workers=n, nodes=nodes, latency_factor=latency, transfer_factor=transfer),)


def _factor(now: Value, before: Value) -> Value:
    return now / before if np.all(np.asarray(before) > 0) else np.ones_like(np.asarray(now, dtype=np.float64))


def error_of(network: Network, algorithm: str, n: int) -> float:
    """Return the standard deviation of the logarithm of measured / simulated all-reduces of `n` workers.

    That of closed forms where nothing was measured, or another algorithm is asked for than the library chose; constants
    of which nobody says with how many workers they were measured are those of two.
    """
    if n == 1:
        return 0.0
    first = costs(network, algorithm, n)[0]
    if isinstance(first, Extended):
        return first.error
    known = (network.intra if network.nodes(n) == 1 else network.inter).workers or 2
    return CLOSED_FORM_ERROR * math.sqrt(min(1.0, abs(math.log2(n / known))))


def allreduce_s(network: Network, algorithm: str, n: int, size: Value) -> Value:
    """Return the seconds of an all-reduce of `size` bytes among `n` workers."""
    latency, transfer = split(costs(network, algorithm, n), size)
    return latency + transfer


def split(choices: tuple[Choice, ...], size: Value) -> tuple[Value, Value]:
    """Return (latency, transfer) in s of the quickest of `choices` for `size` bytes."""
    latency, transfer = choices[0].parts(size)
    for each in choices[1:]:
        other, moved = each.parts(size)
        quicker = other + moved < latency + transfer
        latency, transfer = np.where(quicker, other, latency), np.where(quicker, moved, transfer)
    return latency, transfer


def small_allreduce_s(network: Network, n: int) -> Value:
    """Return the latency of agreeing on a few bytes among all: recursive doubling without its bytes."""
    return 0.0 if n == 1 else doubling(network, n).latency_s


_Amount = Annotated[Number, Field(ge=0, le=LARGEST)]
_Count = Annotated[Whole, Field(ge=1, le=MAX_WORKERS)]


class _LinkForm(Form):
    alpha_us: _Amount
    gb_per_s: Annotated[Number, Field(ge=1 / LARGEST, le=LARGEST)]

    def link(self) -> Link:
        return Link(alpha_s=self.alpha_us / 1e6, bytes_per_s=self.gb_per_s * 1e9)


class _LevelForm(Form):
    nodes: _Count
    latency_us: _Amount = 0.0
    oversubscription: Annotated[Number, Field(ge=1, le=LARGEST)] = 1.0


class _NetworkForm(Form):
    description: Any = None
    source: Any = None
    workers_per_node: _Count
    intra: _LinkForm | None = None
    inter: _LinkForm
    levels: list[_LevelForm] | None = None
    servers: _Count = 1


def network_from(content: Mapping[str, Any], *, source: str) -> Network:
    """Return the network that a YAML file describes, see docs/predict.md; ConfigError names the key that is wrong."""
    again = "a network needs inter: {alpha_us, gb_per_s} and workers_per_node"
    told = accept(_NetworkForm, content, source, again=again)
    inter = told.inter.link()
    levels = tuple(
        Level(nodes=each.nodes, latency_s=each.latency_us / 1e6, oversubscription=each.oversubscription)
        for each in told.levels or ()
    )
    links: dict[str, Any] = {"intra": told.intra.link() if told.intra else inter, "inter": inter, "levels": levels}
    return Network(**links, workers_per_node=told.workers_per_node, servers=told.servers, source=source)


# -------------------------------------------------------------------------- a step, and a scenario over worker counts

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


class Chance:
    """The stratified uniform numbers of D steps, each (D,): for the slowest worker, a slow node, and the phases of
    threads; their strata are shuffled against each other."""

    def __init__(self, steps: int, *, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.slowest, self.slow_node, self.phases = (
            rng.permutation((np.arange(steps) + rng.uniform(0.0, 1.0, steps)) / steps) for _ in range(3)
        )

    def apart(self, n: int) -> Floats:
        """Return how far apart the earliest and the latest of `n` threads look, as a share of a cycle: Beta(n-1, 2)."""
        return np.zeros_like(self.phases) if n == 1 else np.asarray(special.betaincinv(n - 1, 2, self.phases))


# ---------------------------------------------------------------------------------------- a scenario over worker counts

STEPS = 2000  # simulated steps per worker count
DRAWS = 200  # draws of the constants for an interval

COLUMNS = (
    *("scenario", "workers", "nodes", "batch", "step_s", "step_low_s", "step_high_s", "step_p90_s"),
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "speedup", "efficiency"),
    *("efficiency_low", "efficiency_high"),
    *(f"{name}_s" for name in PARTS),
    *("allreduce_s", "allreduce_low_s", "allreduce_high_s"),
    *("hidden_s", "messages", "of_baseline", "of_baseline_low", "of_baseline_high"),
)


class _SimulateOptions(Options):
    workers: list[Annotated[Whole, Field(ge=1, le=MAX_WORKERS)]]
    global_batch: Annotated[Whole, Field(ge=1, le=10**12)] | None = None
    seed: Annotated[Whole, Field(ge=0)] = 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scenario:
    """Everything a simulated step follows from."""

    compute: Compute  # of a worker with `batch` samples, beside `beside` workers of its node, itself included
    batch: int
    gradient_bytes: float
    network: Network
    algorithm: str = "auto"
    runtime: Runtime = field(default_factory=Runtime)
    scaling: str = "weak"
    buckets: int = 1  # more than one: sent during backward
    backward_share: float = 0.5  # of computing; half of it where no run says
    beside: int = 1
    crowding: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({1: 1.0}))
    """Workers that compute on one node -> how much longer each takes than alone."""
    fixed_share: float = 0.0  # of computing at `batch` that does not depend on the batch
    batch_measured: bool = False  # whether that share comes from two batch sizes
    batch_known: int | None = None  # of which computing is known, where that is another batch
    slow_node: float = 1.0  # how much longer the workers of one node compute
    spread: Mapping[str, float | None] = field(default_factory=dict)
    """How well compute, alpha and bandwidth are known: standard deviations of their logarithms; None is not known."""
    doubts: tuple[str, ...] = ()  # about the constants, where they were found
    sources: Mapping[str, str] = field(default_factory=dict)  # where they come from: constant -> in words

    def longer(self, workers_on_node: int) -> float:
        """Return computing beside so many workers of a node / computing as `compute` was measured.

        Between measured numbers of workers it is interpolated, beyond the most it grows by the slope of the last two.
        """
        known = sorted(self.crowding)
        factors = [self.crowding[each] for each in known]
        here, there = np.interp([workers_on_node, self.beside], known, factors)
        if workers_on_node > known[-1] and len(known) > 1:
            slope = max(0.0, (factors[-1] - factors[-2]) / (known[-1] - known[-2]))
            here += slope * (workers_on_node - known[-1])
        return float(here / there)

    def crowding_error(self, workers_on_node: int) -> float:
        """Return the standard deviation of the logarithm of `longer` there: half of what is extrapolated of it."""
        most = max(self.crowding)
        return math.log(self.longer(max(workers_on_node, most)) / self.longer(most)) / 2

    def local_batch(self, n: int, global_batch: int) -> int:
        """Return the samples of the worker with the largest share of `n`."""
        return self.batch if self.scaling == "weak" else math.ceil(global_batch / n)

    def batch_factor(self, batch: int) -> float:
        """Return computing with `batch` samples / computing with `self.batch`: a + b batch, by `fixed_share`."""
        return self.fixed_share + (1 - self.fixed_share) * batch / self.batch


def simulate(
    scenarios: Mapping[str, Scenario], workers: Sequence[int], *, global_batch: int | None = None, seed: int = 1
) -> pd.DataFrame:
    """Return COLUMNS for each scenario and worker count, in this order; the first scenario is the baseline of ratios.

    `global_batch`: of strong scaling; by default the batch of one worker times the smallest worker count. Raises
    ConfigError for worker counts that are not from 1 to 10,000,000, for a global batch below 1 or with weak scaling,
    and for a negative seed.
    """
    counts = list(dict.fromkeys(workers))
    asked(_SimulateOptions, {"workers": counts, "global_batch": global_batch, "seed": seed}, "simulate")
    if not counts or (global_batch is not None and all(each.scaling == "weak" for each in scenarios.values())):
        fixed = "--global-batch is for a fixed batch per step; add --scaling strong, or leave it out"
        raise ConfigError(f"simulate: {fixed if counts else 'no worker count was given; name some with --workers'}")
    fine, coarse = Chance(STEPS, seed=seed), Chance(100, seed=seed + 1)
    normal = np.random.default_rng(seed + 2).standard_normal((5, DRAWS, 1))
    rows: list[dict[str, Any]] = []
    baseline: dict[int, tuple[float, tuple[Floats, Floats, Floats] | None]] = {}
    for name, scenario in scenarios.items():
        total, weak = global_batch or scenario.batch * min(counts), scenario.scaling == "weak"
        # One worker that is given the whole work of a step: N times the batch when it is fixed, and with it N steps.
        one = scenario.batch if weak else total
        alone_s = scenario.compute.mean_s * scenario.longer(1) * scenario.batch_factor(one)
        products = (  # of what files and options say
            ("computing takes", alone_s, 1e-18, 1e18, "s"),
            ("gradients have", scenario.gradient_bytes, 1e-12, 1e24, "bytes"),
            ("a cycle takes", scenario.runtime.cycle_s, 0, 3600, "s"),
            ("the runtime takes", scenario.runtime.overhead_s, 0, 1e18, "s"),
        )
        for what, value, least, most, unit in products:
            if not least <= value <= most:
                allowed = f"allowed: {least:g} to {most:g}"
                raise ConfigError(f"simulate: {name}: {what} {value:g} {unit} by its constants; {allowed}")
        alone_rate = one / alone_s
        for n in counts:  # from the constants as they are
            parts, steps = _steps(scenario, n, total, fine, scenario.network, scenario.runtime)
            step_s = float(steps.mean())
            rate = (n * scenario.batch if weak else total) / step_s
            row: dict[str, Any] = {"workers": n, "nodes": scenario.network.nodes(n)}
            row |= {"batch": scenario.local_batch(n, total), "speedup": rate / alone_rate, "samples_per_s": rate}
            row |= {"step_s": step_s, "step_p90_s": float(np.quantile(steps, 0.9))}
            row |= {f"{part}_s": float(np.mean(parts[part])) for part in (*PARTS, "hidden")}
            row |= {"efficiency": rate / alone_rate / n, "messages": float(np.mean(parts["messages"]))}
            reduced_s = allreduce_s(scenario.network, scenario.algorithm, n, scenario.gradient_bytes)
            row["allreduce_s"] = float(reduced_s)
            relative = _relative(scenario, n, total, coarse, normal)
            base_rate, base_relative = baseline.setdefault(n, (row["samples_per_s"], relative))
            row |= {"scenario": name, "of_baseline": row["samples_per_s"] / base_rate}
            if relative is not None:
                step, efficiency, reduced = relative
                drawn = {"step{}_s": step, "samples_per_s{}": 1 / step, "efficiency{}": efficiency}
                drawn["allreduce{}_s"] = reduced
                if base_relative is not None:
                    drawn["of_baseline{}"] = base_relative[0] / step
                for column, each in drawn.items():
                    value = row[column.format("")]
                    low, high = np.quantile(value * each, [0.025, 0.975])
                    row[column.format("_low")] = float(min(low, value))
                    row[column.format("_high")] = float(max(high, value))
            rows.append(row)
    ends = {name: "float64" for name in COLUMNS if "_low" in name or "_high" in name}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(ends)


def _steps(
    scenario: Scenario, n: int, global_batch: int, luck: Chance, network: Network, runtime: Runtime, slower: Value = 1.0
) -> tuple[dict[str, Floats], Floats]:
    """Return the parts of simulated steps, each broadcastable to (K, D), and the steps, (K, D)."""
    on_node = min(n, scenario.network.workers_per_node)
    factor = scenario.longer(on_node) * scenario.batch_factor(scenario.local_batch(n, global_batch)) * slower
    slow = min(n, on_node) if scenario.slow_node > 1 else 0
    mean_s = scenario.compute.mean_s * (n - slow + slow * scenario.slow_node) / n
    slowest_s = scenario.slow_node * scenario.compute.drawn_slowest_s(slow, luck.slow_node) if slow else np.zeros(1)
    if n > slow:
        slowest_s = np.maximum(slowest_s, scenario.compute.drawn_slowest_s(n - slow, luck.slowest))
    compute_s, last_s = np.atleast_2d(mean_s * factor), np.atleast_2d(slowest_s * factor)
    zero = np.zeros((1, 1))
    parts: dict[str, Floats] = {"compute": compute_s, "slowest": last_s - compute_s}
    if n == 1:
        parts |= dict.fromkeys(("cycle", "runtime", "latency", "transfer", "hidden", "messages"), zero)
        return parts, np.asarray(last_s)
    exposed = communicate(
        last_s + np.zeros_like(np.atleast_2d(np.asarray(network.inter.alpha_s))),
        backward_s=last_s * scenario.backward_share,
        gradient_bytes=scenario.gradient_bytes,
        buckets=scenario.buckets,
        choices=costs(network, scenario.algorithm, n),
        runtime=runtime,
        negotiation_s=NEGOTIATIONS[runtime.negotiation] * small_allreduce_s(network, n),
        apart=luck.apart(n),
    )
    added_s = exposed["cycle"] + exposed["runtime"] + exposed["latency"] + exposed["transfer"]
    return parts | exposed, np.asarray(last_s + added_s)


def _relative(
    scenario: Scenario, n: int, global_batch: int, luck: Chance, normal: Floats
) -> tuple[Floats, Floats, Floats] | None:
    """Return draws of the step, the efficiency and the all-reduce over these, each (DRAWS,), from the constants.

    None where nothing has an interval. Slower computing slows the worker alone as well, so efficiency has less of it.
    """
    error = error_of(scenario.network, scenario.algorithm, n)
    known = [scenario.spread.get(name) for name in ("compute", "alpha", "bandwidth")]
    if known == [None] * 3 and error == 0:
        return None
    widths = [each or 0.0 for each in known] + [error]
    widths.append(scenario.crowding_error(min(n, scenario.network.workers_per_node)))
    # The constants as they are come first: only ratios to them are used, so that few steps per draw are enough.
    compute, alpha, bandwidth, model, crowd = (
        np.concatenate([np.ones((1, 1)), np.exp(width * each)]) for width, each in zip(widths, normal, strict=True)
    )
    there, changes = scenario.network, {"alpha": alpha * model, "bandwidth": bandwidth / model}
    network = replace(there, intra=there.intra.times(**changes), inter=there.inter.times(**changes))
    _, steps = _steps(scenario, n, global_batch, luck, network, scenario.runtime, compute * crowd)
    mean = np.broadcast_to(steps, (DRAWS + 1, steps.shape[1])).mean(axis=1)
    step = mean[1:] / mean[0]
    reduced = allreduce_s(network, scenario.algorithm, n, scenario.gradient_bytes)
    reduced = np.broadcast_to(reduced, (DRAWS + 1, 1))[:, 0]
    return step, compute[1:, 0] / step, reduced[1:] / reduced[0] if n > 1 else np.ones(DRAWS)


def doubts(scenario: Scenario, workers: Sequence[int], *, global_batch: int | None = None) -> tuple[str, ...]:
    """Return what to doubt about a scenario at these worker counts, in words."""
    most, total, compute = max(workers), global_batch or scenario.batch * min(workers), scenario.compute
    steps, batches = compute.steps or math.inf, {scenario.local_batch(n, total) for n in workers}
    strong, beside = scenario.scaling == "strong", scenario.crowding
    known = scenario.batch_known or scenario.batch
    on_node, cycle_ms = min(most, scenario.network.workers_per_node), scenario.runtime.cycle_s * 1e3
    found = {
        "computing has no scatter: nobody waits for a slow worker, a lower bound of the step": most > 1
        and compute.steps is None
        and compute.cv == 0,
        f"the slowest of {most:,} workers comes from {steps:,} measured steps: what is rarer than that is not in it, a "
        "lower bound of waiting": most > steps,
        f"computing is taken as proportional to the batch (known for {known}, used for {min(batches)} to "
        f"{max(batches)}): give runs with two batch sizes": batches != {known} and not scenario.batch_measured,
        f"beyond {total:,} workers there are fewer samples per step than workers": strong and most > total,
        f"computing is known with {scenario.beside} at a time on a node and is used for {on_node}: give --beside runs "
        "made at the same time": len(beside) == 1 and on_node != scenario.beside,
        f"{on_node} workers on a node, and {max(beside)} at most were measured together: how they slow each other down "
        "is extrapolated": len(beside) > 1 and on_node > max(beside),
        f"no worker was measured alone on a node: speedup and efficiency are over one beside {min(beside) - 1}, and "
        "too high": min(beside) > 1,
        f"waiting for a cycle of {cycle_ms:g} ms supposes that the workers' threads look at independent moments; those "
        "that look together wait up to a cycle less": cycle_ms > 0 and most > 1,
        "work is split evenly, also for the slow node": strong and scenario.slow_node > 1,
    }
    return tuple(dict.fromkeys([*scenario.doubts, *(text for text, holds in found.items() if holds)]))


def all_doubts(
    scenarios: Mapping[str, Scenario], workers: Sequence[int], *, global_batch: int | None = None
) -> tuple[str, ...]:
    """Return the doubts of all scenarios, each once; those that the baseline has not are said with their scenario."""
    told = {name: doubts(scenario, workers, global_batch=global_batch) for name, scenario in scenarios.items()}
    common = next(iter(told.values()))
    further = [f"{name}: {each}" for name, texts in told.items() for each in texts if each not in common]
    return tuple(dict.fromkeys([*common, *further]))


# ------------------------------------------------------------------------------------------------------- what-ifs


class _Values(NamedTuple):
    """What a value may be: a factor, a whole number, a number with a unit, one of some words."""

    wanted: str
    least: float = math.inf  # of factors; none are allowed
    most: int = 0  # of whole numbers from 1 on
    unit: str = ""  # of a number up to `most`, which may be left out
    words: Mapping[str, Any] = {}

    def read(self, value: str) -> Any:
        """Return the value of a word, None where it is not allowed; a factor is a float."""
        if value in self.words:
            return self.words[value]
        if self.unit and (match := re.fullmatch(rf"([0-9]*\.?[0-9]+)({self.unit})?", value.lower())):
            return float(match[1]) if float(match[1]) <= self.most else None
        if re.fullmatch(r"[0-9]{1,12}", value) and 1 <= int(value) <= self.most:
            return int(value)
        match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)x", value.lower())
        return float(match[1]) if match and self.least <= float(match[1]) <= 1e9 else None


def what_if(baseline: Scenario, texts: Sequence[str]) -> dict[str, Scenario]:
    """Return the baseline and what each text makes of it, by their texts.

    Raises ConfigError, naming the text, what is allowed and the nearest known word.
    """
    found = {"baseline": baseline}
    for text in texts:
        scenario, words = baseline, [word.strip() for word in text.split(",")]
        for word in words:
            key, _, given = word.partition("=")
            if not given or key not in CHANGES:
                asked = f"KEY=VALUE, for instance bandwidth=2x or cycle=0; KEY is one of {', '.join(CHANGES)}"
                raise ConfigError(f"--what-if {word}: must be {asked}{nearest(key, CHANGES)}")
            values, change = CHANGES[key]
            if (value := values.read(given)) is None:
                raise ConfigError(f"--what-if {word}: must be {values.wanted}{nearest(given, values.words)}")
            scenario = change(scenario, value)
        found[",".join(words)] = scenario
    return found


def _with(scenario: Scenario, part: str, **changes: Any) -> Scenario:
    return replace(scenario, **{part: replace(getattr(scenario, part), **changes)})


def _links(scenario: Scenario, *which: str, **factors: float) -> Scenario:
    return _with(scenario, "network", **{name: getattr(scenario.network, name).times(**factors) for name in which})


def _latency(scenario: Scenario, factor: float) -> Scenario:
    levels = tuple(replace(level, latency_s=level.latency_s * factor) for level in scenario.network.levels)
    return _links(_with(scenario, "network", levels=levels), "intra", "inter", alpha=factor)


def _overhead(scenario: Scenario, factor: float) -> Scenario:
    changed = {"negotiation": "none"} if factor == 0 else {}
    return _with(scenario, "runtime", overhead_s=scenario.runtime.overhead_s * factor, **changed)


def _batch(scenario: Scenario, value: float) -> Scenario:
    batch = round(scenario.batch * value) if isinstance(value, float) else value
    if not 1 <= batch <= 1e12:
        wrong = "less than one sample" if batch < 1 else "more than 1e+12 samples"
        raise ConfigError(f"simulate: {value:g} times a batch of {scenario.batch} is {wrong}")
    times, known = scenario.batch_factor(batch), scenario.batch_known or scenario.batch
    changed = replace(scenario, batch=batch, batch_known=known, fixed_share=scenario.fixed_share / times)
    return _computing(changed, times)


def _computing(scenario: Scenario, factor: float) -> Scenario:
    known = scenario.compute
    times_s = None if known.times_s is None else known.times_s * factor
    return _with(scenario, "compute", mean_s=known.mean_s * factor, times_s=times_s)


def _gradients(scenario: Scenario, factor: float) -> Scenario:
    note = "fewer bytes of gradients: the time to convert or compress them is not in it"
    return replace(scenario, gradient_bytes=scenario.gradient_bytes * factor, doubts=(note, *scenario.doubts))


_TIMES = "a factor greater than 0 with an x, for instance 2x or 0.5x; allowed: 1e-09x to 1e+09x"
_FACTOR, _OR_ZERO = _Values(_TIMES, least=1e-9), _Values(f"0, or {_TIMES}", least=1e-9, words={"0": 0.0})
_COUNT = _Values(f"a whole number from 1 to {MAX_WORKERS:,}", most=MAX_WORKERS)
_SHARES = {"fp32": 1.0, "tf32": 1.0, "fp16": 0.5, "bf16": 0.5, "fp8": 0.25}  # of a gradient; scenarios are of float32
_BYTES = _Values(f"one of {', '.join(_SHARES)}, or a factor such as 0.1x", least=1e-9, words=_SHARES)
_SAMPLES = _Values("a whole number of at least 1, or a factor such as 8x", least=1e-9, most=10**12)
_EVEN = _Values("none (all workers always take the mean time)", words={"none": "none"})
_SLOWER = _Values("a factor from 1x on, for instance 1.5x: a slow node takes at least 1x as long", least=1.0)
_FUSED = _Values("MiB of a fused message, for instance 0 (nothing is fused) or 64", most=10**9, unit="mb")
_CYCLE = _Values(
    "milliseconds, for instance 0 (new gradients wake it), 1 or 5ms; at most 3,600,000", most=3_600_000, unit="ms"
)
_CACHE = _Values(
    "on (negotiation from the response cache), off, or none (no negotiation)",
    words={"on": "cached", "off": "full", "none": "none"},
)

CHANGES: Mapping[str, tuple[_Values, Callable[[Scenario, Any], Scenario]]] = {
    "bandwidth": (_FACTOR, lambda it, factor: _links(it, "intra", "inter", bandwidth=factor)),
    "intra-bandwidth": (_FACTOR, lambda it, factor: _links(it, "intra", bandwidth=factor)),
    "inter-bandwidth": (_FACTOR, lambda it, factor: _links(it, "inter", bandwidth=factor)),
    "latency": (_OR_ZERO, _latency),
    "algorithm": (
        _Values(f"one of {', '.join(CHOICES)}", words={name: name for name in CHOICES}),
        lambda it, name: replace(it, algorithm=name),
    ),
    "servers": (_COUNT, lambda it, count: replace(_with(it, "network", servers=count), algorithm="ps")),
    "workers-per-node": (_COUNT, lambda it, count: _with(it, "network", workers_per_node=count)),
    "gradients": (_BYTES, _gradients),
    "batch": (_SAMPLES, _batch),
    "compute": (_FACTOR, _computing),
    "stragglers": (_EVEN, lambda it, _: replace(it, compute=Compute(mean_s=it.compute.mean_s))),
    "slow-node": (_SLOWER, lambda it, factor: replace(it, slow_node=factor)),
    "buckets": (_Values("a whole number from 1 to 10,000", most=10_000), lambda it, count: replace(it, buckets=count)),
    "fusion": (_FUSED, lambda it, mib: _with(it, "runtime", fusion_bytes=mib * 2**20)),
    "cycle": (_CYCLE, lambda it, ms: _with(it, "runtime", cycle_s=ms / 1e3)),
    "cache": (_CACHE, lambda it, kind: _with(it, "runtime", negotiation=kind)),
    "overhead": (_OR_ZERO, _overhead),
}
"""What can be asked: what its values may be, and what it does to a scenario."""
