"""A described network, and what an all-reduce of S bytes among N workers costs on it.

Every algorithm here costs latency + S * seconds per byte, which is what `Cost` holds. Workers fill one node after the
other: N workers, g on a node, M = ceil(N / g) nodes, k servers. On one kind of link costs are those of
analysis/costs.py, which has the sources, and of a parameter server 2 a + 2 (N-1)/k S b: everybody sends to and gets
from all k servers of S/k each, a the latency of a link and b its seconds per byte. `auto` is what allreduce.py makes of
all-reduces that were measured, else the quickest of three.

Switch levels add their latency to every message that crosses them. Oversubscription divides the bandwidth of messages
with which all nodes below a switch leave it at once; a ring sends one stream out of a switch, which it slows only where
the uplinks together are narrower than one card.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Field

from horovod_study.analysis.costs import Link, Value, moved_share, ring_messages, rounds
from horovod_study.analysis.simulate.allreduce import Curves, Extended
from horovod_study.config.doors import Form, Number, Whole, accept

MAX_WORKERS = 10_000_000  # of a job; on a node, servers, nodes below a switch too
CLOSED_FORM_ERROR = 0.7
"""Standard deviation of the logarithm of measured / closed form, from twice the workers on of which its two constants
are (`make bench BENCH=allreduce`)."""
LARGEST = 1e15  # of the numbers in a file; products of larger ones would be infinite


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
    """Return the network that a YAML file describes, see docs/simulate.md; ConfigError names the key that is wrong."""
    again = "a network needs inter: {alpha_us, gb_per_s} and workers_per_node"
    told = accept(_NetworkForm, content, source, again=again)
    inter = told.inter.link()
    levels = tuple(
        Level(nodes=each.nodes, latency_s=each.latency_us / 1e6, oversubscription=each.oversubscription)
        for each in told.levels or ()
    )
    links: dict[str, Any] = {"intra": told.intra.link() if told.intra else inter, "inter": inter, "levels": levels}
    return Network(**links, workers_per_node=told.workers_per_node, servers=told.servers, source=source)
