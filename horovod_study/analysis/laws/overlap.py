"""A ring all-reduce that hides behind computing, step = (1 + c^g)^(1/g), c as in ring.

g = 1 puts communication after computing, g = inf hides all of the shorter one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from horovod_study.analysis.costs import moved_share, ring_messages
from horovod_study.analysis.laws.cost_law import communication, cost_starts
from horovod_study.analysis.laws.law import STEPS, Law, Places, best_count, no_less_than_zero
from horovod_study.analysis.laws.ring import TERMS, TEXT
from horovod_study.analysis.stats import Floats


def _blend(first: Floats, second: Floats, g: Floats) -> tuple[Floats, Floats, Floats]:
    """step = (first^g + second^g)^(1/g) with dstep/dsecond and dstep/dg, without overflow for large g; shapes alike."""
    larger = np.maximum(first, second)
    logs = [np.log(np.maximum(each / larger, 1e-300)) for each in (first, second)]
    powers = [np.exp(g * log) for log in logs]
    total = powers[0] + powers[1]
    log_total = np.log(total)
    step = larger * np.exp(log_total / g)
    by_second = np.exp((g - 1) * (logs[1] - log_total / g))
    by_g = step * ((powers[0] * logs[0] + powers[1] * logs[1]) / (g * total) - log_total / g**2)
    return step, by_second, by_g


def _curve(*, strong: bool) -> Callable[..., Any]:
    def curve(n: Any, alpha: Any, beta: Any, g: Any, gamma: Any = 1.0) -> Any:
        n = np.asarray(n, dtype=np.float64)
        exchange = alpha * ring_messages(n) + beta * moved_share(n)
        step, _, _ = _blend(1 / n if strong else np.ones_like(n), exchange, np.asarray(g))
        return gamma / step if strong else gamma * n / step

    return curve


def _slopes(*, strong: bool, scaled: bool) -> Callable[..., tuple[Any, ...]]:
    def slopes(n: Any, alpha: Any, beta: Any, g: Any, gamma: Any = 1.0) -> tuple[Any, ...]:
        exchange = alpha * ring_messages(n) + beta * moved_share(n)
        step, by_exchange, by_g = _blend(1 / n if strong else np.ones_like(n), exchange, g)
        rate = (1.0 if strong else n) / step
        fall = -gamma * rate / step
        found = (fall * by_exchange * ring_messages(n), fall * by_exchange * moved_share(n), fall * by_g)
        return (*found, rate) if scaled else found

    return slopes


def _starts(*, strong: bool, scaled: bool) -> Callable[..., list[tuple[float, ...]]]:
    serial = cost_starts(TERMS, strong=strong, scaled=scaled)
    bare = cost_starts(TERMS, strong=strong, scaled=False)

    def starts(where: Places, s: Floats) -> list[tuple[float, ...]]:
        n = where.workers
        guesses = []
        for guess in serial(where, s):
            # g = 1 is the ring; starting there, overlap never ends up worse.
            guesses.append((guess[0], guess[1], 1.0, *guess[2:]))
        scale = float(np.max(s / n)) if scaled else 1.0
        # What the step has beyond computing, if computing to the power g goes off it, is the exchange to the power g.
        step = scale / s if strong else scale * n / s
        own = 1 / n if strong else np.ones_like(n)
        for g in (2.0, 4.0):
            exchange = np.maximum(step**g - own**g, 0.0) ** (1 / g)
            late = exchange > 0
            if np.count_nonzero(late) < 2:
                continue
            rows = np.stack([ring_messages(n), moved_share(n)], axis=1)[late] / step[late, np.newaxis]
            alpha, beta = no_less_than_zero(rows, exchange[late] / step[late])
            guesses.append((max(alpha, 1e-6), max(beta, 1e-6), g, *((scale,) if scaled else ())))
        guesses.append((*np.maximum(bare(where, s)[0], 1e-6), 1.5, *((scale,) if scaled else ())))
        return guesses

    return starts


def _law() -> Law:
    def form(*, strong: bool, scaled: bool, reduced: Law | None) -> Law:
        def params(values: Mapping[str, float]) -> dict[str, float]:
            return {"gamma": 1.0, **values}

        def peak(**values: float) -> float:
            if not (values["alpha"] > 0 or values["beta"] > 0) or not strong:
                return math.inf
            return best_count(law, values, lambda n, s: s)

        def limit(**values: float) -> float:
            gamma = params(values)["gamma"]
            if not strong:
                return gamma / (2 * values["alpha"]) if values["alpha"] > 0 else math.inf
            if not (values["alpha"] > 0 or values["beta"] > 0):
                return math.inf
            best = peak(**values)
            return gamma / (2 * values["beta"]) if math.isinf(best) else float(law.curve(best, **values))

        exchange = f"c = {TEXT}"
        top = "gamma" if scaled else "1"
        law = Law(
            name="overlap",
            label="overlap",
            place=9,
            formula=f"S = {top} / (N^-g + c^g)^(1/g), {exchange}"
            if strong
            else f"S = {'gamma N' if scaled else 'N'} / (1 + c^g)^(1/g), {exchange}",
            parameters=("alpha", "beta", "g", *(("gamma",) if scaled else ())),
            bounds=((0.0, math.inf), (0.0, math.inf), (1.0, 64.0), *(((0.0, math.inf),) if scaled else ())),
            modes=STEPS,
            curve=_curve(strong=strong),
            slopes=_slopes(strong=strong, scaled=scaled),
            starts=_starts(strong=strong, scaled=scaled),
            peak=peak,
            limit=limit,
            bottleneck=communication,
            costs=("alpha", "beta"),
            hiding="g",
            needs_profile=True,
            reduced=reduced,
        )
        return law

    strong = form(strong=True, scaled=True, reduced=form(strong=True, scaled=False, reduced=None))
    weak = form(strong=False, scaled=True, reduced=form(strong=False, scaled=False, reduced=None))
    return replace(weak, strong=strong)


LAW = _law()
