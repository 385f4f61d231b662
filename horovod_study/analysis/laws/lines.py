"""Laws that are sums, y = sum of p_i f_i(N), or rise and fall throughout: what each worker or doubling adds."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from horovod_study.analysis.fit.least_squares import Solved
from horovod_study.analysis.laws.law import UNLIKELY, Law, Trend
from horovod_study.analysis.stats import Floats

POWER = Trend(name="power", place=5, of="log")


class Monotone(Law):
    """A law that rises with the workers for ever, or never; `terms` are the f_i where it is a sum, else it has a curve.

    Any positive quantity y(N) has the same forms, in its unit, and neither peak nor limit.
    """

    terms: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @property
    def formula(self) -> str:  # type: ignore[override]
        return self.text.replace("S = ", "y = ") if self.quantity else self.text

    def curve(self, n: Any, *values: Any, **named: Any) -> Any:
        values = (*values, *(named[name] for name in self.terms if name in named))
        return sum(value * term(n) for value, term in zip(values, self.terms.values(), strict=True))

    def slopes(self, n: Any, *values: Any) -> tuple[Any, ...]:
        return tuple(term(n) for term in self.terms.values()) if self.terms else super().slopes(n, *values)

    def starts(self, where: Floats, s: Floats) -> list[tuple[float, ...]]:
        return [(0.0,) * len(self.bounds)]  # of a closed form

    def peak_of(self, **values: float) -> float:
        rises = self.curve(2.0, **values) > self.curve(1.0, **values)
        return math.nan if self.quantity else math.inf if rises else 1.0

    def limit_of(self, **values: float) -> float:
        peak = self.peak_of(**values)
        return float(self.curve(peak, **values)) if peak == 1 else peak


class Linear(Monotone):
    """The regression line, S = slope N + intercept: what each worker adds."""

    name, label, place, linear = "linear", "linear", 1, True
    text = "S = slope N + intercept"
    bounds = {"slope": (-math.inf, math.inf), "intercept": (-math.inf, math.inf)}
    terms = {"slope": lambda n: n, "intercept": np.ones_like}
    place_of_quantity = 1
    trends = (
        Trend(name="linear", place=4, of="rate", strong_prior=UNLIKELY, costs=(lambda n: 1 / n,)),
        # The line through the origin and the last point.
        Trend(name="constant efficiency", place=6, of="last", strong_prior=UNLIKELY),
    )

    def learn(self, solved: Solved | str, **how: Any) -> Self:
        """Doubt, besides, a slope that one worker count decides.

        A robust line (H. Theil 1950, P. Sen 1968) then has a slope outside the 95 % interval, and without this count
        both slopes are alike: they differ by less than half of that interval, or a quarter of what it changes.
        """
        super().learn(solved, **how)
        sample, (low, high) = self.solved_.sample, self.intervals_["slope"]
        n, y, weight = sample.where[0], sample.medians, np.sqrt(sample.rows)
        more, less = np.nonzero(np.subtract.outer(n, n) > 0)
        robust = float(np.median((y[more] - y[less]) / (n[more] - n[less])))
        if low <= robust <= high or len(np.unique(n)) < 4:
            return self
        without = {at: float(np.polyfit(n[n != at], y[n != at], 1, w=weight[n != at])[0]) for at in np.unique(n)}
        at = min(without, key=lambda at: abs(without[at] - robust))
        if abs(without[at] - robust) < max((high - low) / 2, abs(self.values_[0] - robust) / 4):
            self.doubts_ += (
                f"one point decides the slope: it is {self.values_[0]:.3g} with {at:g} workers, {without[at]:.3g} "
                f"without, and {robust:.3g} of a robust line (Theil and Sen)",
            )
        return self


class Gustafson(Monotone):
    """Gustafson's law, S = s + (1 - s) N (J. Gustafson 1988); s is the serial fraction of work that grows with N."""

    name, label, place, linear, cause = "gustafson", "Gustafson", 3, True, "contention"
    text = "S = s + (1 - s) N"
    bounds = {"s": (0.0, 1.0)}
    fitted_names = {"s": "serial_"}
    modes = frozenset({"weak"})
    misread = ", so its s is not a fraction of anything"

    def curve(self, n: Any, s: Any) -> Any:
        return s + (1 - s) * n

    def slopes(self, n: Any, *values: Any) -> tuple[Any, ...]:
        return (1 - n,)


class Power(Monotone):
    """The power law, S = scale N^exponent: a straight line on doubly logarithmic paper."""

    name, label, place = "power", "power", 5
    text = "S = scale N^exponent"
    bounds = {"scale": (0.0, math.inf), "exponent": (-10.0, 10.0)}
    place_of_quantity = 5
    trends = (POWER,)

    def curve(self, n: Any, scale: Any, exponent: Any) -> Any:
        return scale * np.exp(exponent * np.log(n))

    def slopes(self, n: Any, scale: Any, exponent: Any) -> tuple[Any, ...]:
        rise = np.exp(exponent * np.log(n))
        return rise, scale * rise * np.log(n)

    def starts(self, where: Floats, s: Floats) -> list[tuple[float, ...]]:
        x, y = np.log(where[0]), np.log(np.maximum(s, 1e-300))
        spread = float(np.sum((x - x.mean()) ** 2))
        exponent = float(np.clip(np.sum((x - x.mean()) * (y - y.mean())) / spread if spread > 0 else 0.0, -9.9, 9.9))
        at_largest = float(np.exp(y[-1] - exponent * x[-1]))
        return [(float(np.exp(y.mean() - exponent * x.mean())), exponent), (at_largest, exponent), (float(s.mean()), 0)]


class Log2(Monotone):
    """S = intercept + slope log2 N: what every doubling adds."""

    name, label, place, linear = "log2", "log2", 6, True
    text = "S = intercept + slope log2 N"
    bounds = {"intercept": (-math.inf, math.inf), "slope": (-math.inf, math.inf)}
    terms = {"intercept": np.ones_like, "slope": np.log2}
    place_of_quantity = 6


class Constant(Monotone):
    """S = level: workers do not matter."""

    name, label, place, linear = "constant", "constant", 10, True
    text = "S = level"
    bounds = {"level": (0.0, math.inf)}
    terms = {"level": np.ones_like}
    place_of_quantity = 0
