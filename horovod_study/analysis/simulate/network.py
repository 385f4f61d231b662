"""A described network, and what an all-reduce of S bytes among N workers costs on it.

Workers fill one node after the other: N workers, g on a node, M = ceil(N / g) nodes, k servers. On one kind of link
costs are those of analysis/costs.py, latency + S * seconds per byte. Switch levels add their latency to every message
that crosses them; oversubscription divides the bandwidth of messages with which all nodes below a switch leave it at
once. `auto` is what follows from all-reduces that were measured at several sizes on few workers, else the quickest of
three closed forms: the curve of the nearest measured count is kept, and its two parts, the bytes on their way over the
slowest link and all else, grow each in its own way. docs/metrics.md ("Simulated step") has the equations,
docs/predict.md what they rest on; the constants were chosen by leaving out one machine after the other (`make bench
BENCH=allreduce`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field

from horovod_study.analysis.costs import Floats, Link, Value, moved_share, ring_messages, rounds, time_at
from horovod_study.config.doors import Form, Number, Whole, accept
from horovod_study.errors import AnalysisError

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

    def for_nodes(self, nodes: int) -> tuple[Sweep, ...]:
        """Return the sweeps that say something about so many nodes, the smallest first."""
        found = [each for each in self.sweeps if (each.nodes > 1) == (nodes > 1)]
        if not found and nodes > 1 and self.alone:
            found = list(self.sweeps)
        return tuple(sorted(found, key=lambda each: (each.workers, each.nodes)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Extended:
    """Seconds of an all-reduce of n workers, from sweeps; factors are what a changed network makes of both parts."""

    sweeps: tuple[Sweep, ...]  # the smallest first
    workers: int
    nodes: int
    latency_factor: Value = 1.0
    transfer_factor: Value = 1.0
    growth: GrowthConstants = GROWTH

    @property
    def _across(self) -> bool:
        return self.sweeps[-1].nodes > 1

    def _place(self, workers: int, nodes: int) -> float:
        return math.log2(nodes if self._across else workers)

    @property
    def error(self) -> float:
        """The standard deviation of the logarithm of measured / simulated; 0 where it was measured.

        It grows with the doublings of nodes, or of workers on one node, from the nearest measured count.
        """
        here = self._place(self.workers, self.nodes)
        far = min(abs(here - self._place(each.workers, each.nodes)) for each in self.sweeps)
        return math.sqrt(ERROR**2 * min(1.0, far) + ERROR_OF_DOUBLING**2 * far)

    def parts(self, size: Value) -> tuple[Value, Value]:
        """Return (latency, transfer) in s of `size` bytes: their way over the slowest link, and all else."""
        here = self._place(self.workers, self.nodes)
        places = [self._place(each.workers, each.nodes) for each in self.sweeps]
        above = next((i for i, place in enumerate(places) if place >= here), len(places))
        near = self.sweeps[min(above, len(places) - 1)]
        rest, moved = self._from(near, size)
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
        far = self._place(self.workers, self.nodes) - self._place(sweep.workers, sweep.nodes)
        now = carried(sweep.algorithm, self.workers, self.nodes)
        rest, moved = sweep.parts(size)
        moved = moved / sweep.carried * now * (1 + self._congestion()) ** far
        return np.asarray(rest * self._growth(sweep, size)), np.asarray(moved)

    def _growth(self, sweep: Sweep, size: Value) -> Value:
        level, known = self._place(self.workers, self.nodes), self._place(sweep.workers, sweep.nodes)
        if sweep.algorithm == "ring":
            return float(2.0 ** (level - known))
        if not self._across:
            return level / known
        bytes_s = sweep.s_per_byte * sweep.carried * size
        share = bytes_s**2 / (bytes_s**2 + sweep.latency_s**2)
        before = self.growth.small + share * (self.growth.large - self.growth.small)
        return (level + before) / (known + before)

    def _congestion(self) -> float:
        if not self._across:
            return 0.0
        seen = self.growth.congestion
        if len(self.sweeps) > 1 and min(len(each.sizes) for each in self.sweeps) > 1:
            first, last = self.sweeps[0], self.sweeps[-1]
            far = self._place(last.workers, last.nodes) - self._place(first.workers, first.nodes)
            if far > 0:
                found = (last.s_per_byte / first.s_per_byte) ** (1 / far) - 1
                seen = self.growth.trust * found + (1 - self.growth.trust) * seen
        return min(max(seen, 0.0), 0.2)


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
    nodes, known = network.nodes(n), network.measured
    if algorithm != "auto" or known is None or not (sweeps := known.for_nodes(nodes)):
        return tuple(_ALGORITHMS[name](network, n) for name in CHOICES[algorithm])
    # What was changed since (links that are twice as fast, switches) counts by what it does to recursive halving.
    before, now = halving(replace(network, intra=known.intra, inter=known.inter, levels=()), n), halving(network, n)
    latency, transfer = _factor(now.latency_s, before.latency_s), _factor(now.s_per_byte, before.s_per_byte)
    return (Extended(sweeps=sweeps, workers=n, nodes=nodes, latency_factor=latency, transfer_factor=transfer),)


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
