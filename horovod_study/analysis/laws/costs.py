"""Laws whose step is computing plus what more workers cost, S = gamma W / (own + sum of p_i f_i).

They give the time of a step in units of the step of one worker. Where the work of a worker is fixed (weak scaling) own
is 1 and W = N; where the work of all is fixed (strong scaling) own is 1/N and W = 1. gamma, the speedup at one worker,
makes the other parameters independent of which baseline the speedup was divided by, and of the luck of a single run.

**Nodes.** Where places span several nodes, an all-reduce has constants of its own across nodes: gradients are reduced
inside each node and between nodes, so that f_i counts the F workers of the fullest node, and, times another parameter,
the M nodes. With few distinct places there is nothing left to determine another number: `reduced` is the next smaller.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from horovod_study.analysis.costs import moved_share, ring_messages, rounds
from horovod_study.analysis.fit.least_squares import no_less_than_zero
from horovod_study.analysis.laws.law import STEPS, UNLIKELY, Law, Trend
from horovod_study.analysis.stats import Floats


def karp_flatt(speedup: ArrayLike, workers: ArrayLike) -> Floats:
    """Experimentally determined serial fraction e = (1/S - 1/N) / (1 - 1/N) (Karp and Flatt 1990); NaN at N = 1.

    It needs no fit: e that stays level speaks for serial work, e that rises with N for overhead that grows with N.
    """
    s, n = np.broadcast_arrays(np.asarray(speedup, dtype=np.float64), np.asarray(workers, dtype=np.float64))
    fraction = np.full(s.shape, np.nan)
    several = n > 1
    fraction[several] = (1 / s[several] - 1 / n[several]) / (1 - 1 / n[several])
    return fraction


class CostLaw(Law):
    """The form of all of them: `terms` is what each parameter costs at a count, and `text` their sum."""

    cause = "communication"
    terms: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    of_steps = of_nodes = True
    modes = STEPS

    @property
    def by_nodes(self) -> bool:  # type: ignore[override]
        return self.multi_node

    @property
    def costs(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self._per_unit(1.0, 1.0, 1.0))

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return self.quantity

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:  # type: ignore[override]
        names = ("base", *self.costs) if self.quantity else (*self.costs, *(["gamma"] if self.scaled else []))
        return dict.fromkeys(names, (0.0, math.inf))

    @property
    def formula(self) -> str:  # type: ignore[override]
        text = self.text
        if self.multi_node:
            over = {name: f"{name}_across" for name in self.terms}
            across = " ".join(over.get(word, word) for word in text.replace("N", "M").split())
            text = f"{text.replace('N', 'F')} + {across}"
        if self.quantity:
            return f"y = base + {text}"
        top = " ".join(["gamma"] * self.scaled + ["N"] * (not self._strong)) or "1"
        return f"S = {top} / ({'1/N' if self._strong else '1'} + {text})"

    @property
    def _strong(self) -> bool:
        return self.mode == "strong" and self.of_steps

    def across(self) -> Any:
        return self.form(multi_node=True) if self.of_nodes and not self.multi_node else None

    def reduced(self) -> Any:
        if "gamma" in self.bounds:
            return self.form(scaled=False)
        return self.form(multi_node=False, scaled=True) if self.multi_node else None

    def _per_unit(self, n: Any, nodes: Any, fullest: Any) -> dict[str, Any]:
        """What one unit of each parameter costs."""
        if not self.multi_node:
            return {name: term(n) for name, term in self.terms.items()}
        inside = {name: term(fullest) for name, term in self.terms.items()}
        return inside | {f"{name}_across": term(nodes) for name, term in self.terms.items()}

    def _parts(self, n: Any, *values: Any, **named: Any) -> tuple[Any, Any, list[Any], tuple[Any, ...]]:
        """Work, its own time, what a unit of each parameter costs, and the parameters."""
        nodes, fullest = values[:2] if self.multi_node else (1.0, n)
        values = (*(values[2:] if self.multi_node else values), *(named[name] for name in self.bounds if name in named))
        own, work = (1 / n, 1.0) if self._strong else (1.0, n)
        return work, own, [*self._per_unit(n, nodes, fullest).values()], values

    def curve(self, n: Any, *values: Any, **named: Any) -> Any:
        work, own, units, values = self._parts(n, *values, **named)
        if self.quantity:
            return values[0] + sum(value * each for value, each in zip(values[1:], units, strict=True))
        own = sum((value * each for value, each in zip(values, units, strict=False)), own)
        return work / own * (values[len(units)] if len(values) > len(units) else 1.0)

    def slopes(self, n: Any, *values: Any) -> tuple[Any, ...]:
        work, own, units, values = self._parts(n, *values)
        if self.quantity:
            return (1.0, *units)
        own = sum((value * each for value, each in zip(values, units, strict=False)), own)
        rate, scaled = work / own, len(values) > len(units)
        fall = -(values[len(units)] if scaled else 1.0) * rate / own
        return (*(fall * each for each in units), *([rate] if scaled else []))

    def starts(self, where: Floats, s: Floats) -> list[tuple[float, ...]]:
        """1/S is linear in 1/gamma and p_i/gamma, all of them zero or more; residuals are relative, or the largest N
        would drown the rest."""
        if self.quantity:
            return [(0.0,) * len(self.bounds)]
        n = where[0]
        work, own, units, _ = self._parts(n, *where[1:]) if self.multi_node else self._parts(n)
        scale, own = s / work, own * np.ones_like(n)
        rows = np.stack(np.broadcast_arrays(*units), axis=1) * scale[:, np.newaxis]
        scaled, guesses = "gamma" in self.bounds, [((1e-6,) * len(units), float(np.max(scale)))]
        if scaled:
            inverse, *found = no_less_than_zero(np.column_stack([own * scale, rows]), np.ones_like(n))
            guesses += [(tuple(each / inverse for each in found), 1 / inverse)] if inverse > 0 else []
        if not scaled or not self.of_steps:
            guesses += [(tuple(no_less_than_zero(rows, 1 - own * scale)), 1.0)]
        return [(*costs, *([gamma] if scaled else [])) for costs, gamma in guesses[::-1]]

    def peak_of(self, **values: float) -> float:
        costs = {name: values[name] for name in self.costs}
        if self.quantity or (self.multi_node and any(costs.values()) and self._strong):
            return math.nan  # on several nodes it depends on how they are filled
        return self.quickest(**costs) if any(costs.values()) and (self._strong or not self.of_steps) else math.inf

    def limit_of(self, **values: float) -> float:
        if self.quantity or self.multi_node:
            return math.nan if self.quantity or any(values[name] for name in self.costs) else math.inf
        return super().limit_of(**values)

    def quickest(self, **costs: float) -> float:
        """Return the worker count of the highest speedup for costs that are not all zero."""
        return super().peak_of(**costs)


class Amdahl(CostLaw):
    """Amdahl's law, S = 1 / (s + (1 - s) / N) (G. Amdahl 1967); s is the serial fraction of fixed work."""

    name, label, place, cause = "amdahl", "Amdahl", 2, "contention"
    formula = "S = 1 / (s + (1 - s) / N)"
    bounds = {"s": (0.0, 1.0)}
    fitted_names = {"s": "serial_"}
    terms = {"s": lambda n: n - 1}
    of_steps, of_nodes, costs = False, False, ()
    modes = frozenset({"strong"})
    misread = "; read its s as a share of an epoch over a fixed data set only"
    trends = (
        # Of a fixed batch per worker this takes everything that is lost for a cost that grows with N.
        Trend(name="amdahl", place=7, of="time", prior=UNLIKELY, costs=(ring_messages,)),
        Trend(name="sync linear", place=12, of="sync", strong_prior=0.0, costs=(ring_messages,)),
    )

    def peak_of(self, **values: float) -> float:
        return math.inf if values["s"] < 1 else 1.0


class USL(CostLaw):
    """The universal scalability law, S = gamma N / (1 + alpha (N - 1) + beta N (N - 1)) (N. Gunther).

    alpha is contention (queueing for something shared), beta coherency (everybody to everybody). gamma belongs to the
    published form, X(N) = X1 N / (...), which has the free one-worker throughput X1.
    """

    name, label, place = "usl", "USL", 4
    text = "alpha (N - 1) + beta N (N - 1)"
    terms = {"alpha": lambda n: n - 1, "beta": lambda n: n * (n - 1)}
    of_steps = of_nodes = False
    modes = Law.modes
    range_at = {"alpha": lambda n: 1.0, "beta": lambda n: 1.0 / n}
    trends = (
        # Unlikely for the reason that Amdahl's law is.
        Trend(name="usl", place=8, of="time", prior=UNLIKELY, costs=(ring_messages, lambda n: n * (n - 1))),
    )

    def quickest(self, alpha: float, beta: float) -> float:  # type: ignore[override]
        """Return sqrt((1 - alpha) / beta); 1 when alpha >= 1, inf when beta is 0."""
        if alpha >= 1:
            return 1.0
        return math.inf if beta <= 0 else max(1.0, math.sqrt((1 - alpha) / beta))

    def bottleneck_of(self, n: float, **values: float) -> str:
        """Return what costs more: "contention", alpha (N - 1), or "coherency", beta N (N - 1)."""
        if values["alpha"] <= 0 and values["beta"] <= 0:
            return "none"
        return "coherency" if values["beta"] * n > values["alpha"] else "contention"


class Ring(CostLaw):
    """Ring all-reduce, step = 1 + 2 (N - 1) alpha + 2 (N - 1)/N beta (R. Thakur, R. Rabenseifner and W. Gropp 2005).

    2 (N - 1) messages, of which each carries 1/N of the gradients: alpha is the latency of one message, beta the time
    of all gradients through one link, both in steps of one worker.
    """

    name, label, place = "ring", "ring", 7
    text = "2(N-1) alpha + 2(N-1)/N beta"
    terms = {"alpha": ring_messages, "beta": moved_share}
    place_of_quantity = 7
    trends = (
        # With a fixed global batch N/X is N times the step: what a step spends on a ring is then Amdahl's cost.
        Trend(name="ring", place=1, of="time", strong_prior=UNLIKELY, costs=(moved_share,)),
        Trend(
            name="ring with latency",
            place=2,
            of="time",
            prior=UNLIKELY,
            strong_prior=UNLIKELY,
            costs=(moved_share, ring_messages),
        ),
        Trend(name="sync ring", place=10, of="sync", strong_prior=0.0, costs=(moved_share,)),
    )

    def quickest(self, alpha: float, beta: float) -> float:  # type: ignore[override]
        """Return where 1/N + 2 (N - 1) alpha + 2 beta - 2 beta/N is least: N^2 = (1 - 2 beta) / (2 alpha)."""
        if 2 * beta >= 1:
            return 1.0
        return math.inf if alpha <= 0 else max(1.0, math.sqrt((1 - 2 * beta) / (2 * alpha)))


class Tree(CostLaw):
    """Tree all-reduce, step = 1 + 2 ceil(log2 N) hop: reduce and broadcast along a binomial tree.

    hop = alpha + beta of one whole message, in steps of one worker. A tree has whole levels: its curve is a staircase,
    as the algorithm is, and not a smooth logarithm, which would call five workers cheaper than eight.
    """

    name, label, place, staircase = "tree", "tree", 8, True
    text = "2 ceil(log2 N) hop"
    terms = {"hop": lambda n: 2 * rounds(n)}
    place_of_quantity = 8
    trends = (
        Trend(name="tree", place=3, of="time", strong_prior=UNLIKELY, costs=(np.log2,)),
        Trend(name="tree of fixed work", place=9, of="time", prior=0.0, costs=(lambda n: n * np.log2(n),)),
        Trend(name="sync tree", place=11, of="sync", strong_prior=0.0, costs=(np.log2,)),
    )

    def quickest(self, hop: float) -> float:  # type: ignore[override]
        """Return the full levels of which one more does not pay: 1/N - 1/(2 N) > 2 hop."""
        levels = np.arange(0, 64)
        return float(2.0 ** levels[int(np.argmin(0.5**levels + 2 * hop * levels))])


class Overlap(CostLaw):
    """A ring all-reduce that hides behind computing, step = (own^g + c^g)^(1/g), c as in Ring.

    g = 1 puts communication after computing, g = inf hides all of the shorter one.
    """

    name, label, place, hiding, needs_profile = "overlap", "overlap", 9, "g", True
    of_nodes = False
    text = Ring.text
    terms = Ring.terms

    @property
    def bounds(self) -> Mapping[str, tuple[float, float]]:  # type: ignore[override]
        ends = {"alpha": (0.0, math.inf), "beta": (0.0, math.inf), "g": (1.0, 64.0)}
        return ends | ({"gamma": (0.0, math.inf)} if self.scaled else {})

    @property
    def formula(self) -> str:  # type: ignore[override]
        top = " ".join(["gamma"] * self.scaled + ["N"] * (not self._strong)) or "1"
        return f"S = {top} / ({'N^-g' if self._strong else '1'} + c^g)^(1/g), c = {self.text}"

    def _step(self, n: Any, *values: Any, **named: Any) -> tuple[Any, ...]:
        """Work and time of a step, its slopes by the exchange and by g, the units of the exchange, and gamma."""
        work, own, units, (alpha, beta, g, *gamma) = self._parts(n, *values, **named)
        exchange = alpha * units[0] + beta * units[1]
        own = own * np.ones_like(exchange)
        larger = np.maximum(own, exchange)
        logs = [np.log(np.maximum(each / larger, 1e-300)) for each in (own, exchange)]  # g may be large
        powers = [np.exp(g * log) for log in logs]
        total = powers[0] + powers[1]
        log_total = np.log(total)
        step = larger * np.exp(log_total / g)
        by_g = step * ((powers[0] * logs[0] + powers[1] * logs[1]) / (g * total) - log_total / g**2)
        return work, step, np.exp((g - 1) * (logs[1] - log_total / g)), by_g, units, gamma[0] if gamma else 1.0

    def curve(self, n: Any, *values: Any, **named: Any) -> Any:
        work, step, _, _, _, gamma = self._step(np.asarray(n, dtype=np.float64), *values, **named)
        return gamma * work / step

    def slopes(self, n: Any, *values: Any) -> tuple[Any, ...]:
        work, step, by_exchange, by_g, units, gamma = self._step(n, *values)
        rate = work / step
        fall = -gamma * rate / step
        found = (*(fall * by_exchange * each for each in units), fall * by_g)
        return (*found, rate) if self.scaled else found

    def starts(self, where: Floats, s: Floats) -> list[tuple[float, ...]]:
        n, serial = where[0], Ring(mode=self.mode, scaled=self.scaled)
        work, own, units, _ = self._parts(n)
        scale = float(np.max(s / n)) if self.scaled else 1.0
        # g = 1 is the ring; starting there, overlap never ends up worse.
        guesses = [(*guess[:2], 1.0, *guess[2:]) for guess in serial.starts(where, s)]
        # What the step has beyond computing, if computing to the power g goes off it, is the exchange to the power g.
        step = scale * work / s
        for g in (2.0, 4.0):
            exchange = np.maximum(step**g - (own * np.ones_like(n)) ** g, 0.0) ** (1 / g)
            late = exchange > 0
            if np.count_nonzero(late) >= 2:
                rows = np.stack(units, axis=1)[late] / step[late, np.newaxis]
                alpha, beta = no_less_than_zero(rows, exchange[late] / step[late])
                guesses.append((max(alpha, 1e-6), max(beta, 1e-6), g, *([scale] if self.scaled else [])))
        bare = serial.form(scaled=False).starts(where, s)[0]
        return [*guesses, (*np.maximum(bare, 1e-6), 1.5, *([scale] if self.scaled else []))]

    def peak_of(self, **values: float) -> float:
        costs = values["alpha"] > 0 or values["beta"] > 0
        return Law.peak_of(self, **values) if costs and self._strong else math.inf
