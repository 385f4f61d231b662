"""What an all-reduce takes on more workers than were measured, from times measured at several sizes on few.

A measured curve has in it what no two constants have: a library takes another protocol for small messages than for
large ones (NCCL: LL, LL128, Simple), another algorithm from some size on, and pieces of which each waits for the one
before. So the curve of the nearest measured count is kept, and its two parts grow each in its own way. Letters: n
workers on m nodes, S bytes, t(S) measured on n' workers and m' nodes, b the least seconds per byte over the slowest
link there, c(n) bytes over that link per byte that is reduced.

    bytes     b c(n) S (1 + g)^d                   c = 2 (n-1)/n (as in costs.py), of a tree over more than two nodes 2
    rest      (t(S) - b c(n') S) (l + k)/(l' + k)  l = log2 m, levels of a tree over the nodes (P. Sanders, J. Speck,
                                                   J. Traff, Parallel Computing 35, 2009, 581-594); of a ring m/m'

d = l - l' are the doublings beyond what was measured. g is the congestion of one doubling: the mean of what two
measured counts on several nodes show and of 2 %. k stands for what a message takes before the first level: 0.3 where
latency is all there is, 1 where bytes are most of it, in between by the share of the bytes. On one node, and where
only one was measured, l = log2 n, as recursive doubling has rounds, and nothing is congested.

The constants were chosen by leaving out one machine after the other, and the interval covers the errors that were left:
`make bench BENCH=allreduce`, docs/simulate.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from horovod_study.analysis.costs import Floats, Link, Value, moved_share, time_at
from horovod_study.errors import AnalysisError


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthConstants:
    """The constants of the growth; others are tried in benchmarks/allreduce.py only."""

    congestion: float = 0.02  # of one doubling of the nodes, where nothing else is known
    trust: float = 0.5  # in the congestion that two counts show
    small: float = 0.3
    large: float = 1.0


GROWTH = GrowthConstants()
ERROR, ERROR_OF_DOUBLING = 0.2, 0.15
"""Standard deviations of the logarithm of measured / simulated: of leaving what was measured, and of each doubling."""


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
