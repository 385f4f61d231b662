"""Laws whose step is computing plus what an all-reduce costs: their forms, from the terms of the costs.

They give the time of a step in units of the step of one worker, and S = gamma N / step: the work of a worker is fixed
(weak scaling). Where the work of all is fixed (strong scaling), computing takes 1/N of it and S = gamma / step. gamma
is there for the reason that `usl` gives.

**Nodes.** Where places span several nodes, such a law has constants of its own across nodes (`Law.multi_node`):
gradients are then reduced inside each node and between nodes, and the fullest node and the number of nodes count. With
few distinct places there is nothing left to determine another number: `Law.reduced` is the next smaller form.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from horovod_study.analysis.laws.law import EVERY_MODE, STEPS, Law, Places, Trend, no_less_than_zero
from horovod_study.analysis.stats import Floats

Term: TypeAlias = Callable[[Any, Any, Any], Any]
"""What one parameter costs per unit, at N workers on M nodes with F on the fullest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What is added to computing: the terms of its parameters, and their sum as text."""

    terms: Mapping[str, Term]
    text: str


def cost_starts(terms: Mapping[str, Term], *, strong: bool, scaled: bool) -> Callable[..., list[tuple[float, ...]]]:
    """Guesses of laws S = gamma / (own + sum of p_i f_i), own being 1/N (strong) or with all of it times N (weak).

    1/S is linear in 1/gamma and p_i/gamma, all of them zero or more; residuals are relative, as for `usl`.
    """

    def starts(where: Places, s: Floats) -> list[tuple[float, ...]]:
        n = where.workers
        own = 1 / n if strong else np.ones_like(n)
        scale = s if strong else s / n
        rows = np.stack([term(n, where.nodes, where.fullest) for term in terms.values()], axis=1) * scale[:, np.newaxis]
        none = (1e-6,) * len(terms)
        if not scaled:
            return [tuple(no_less_than_zero(rows, 1 - own * scale)), none]
        found = no_less_than_zero(np.column_stack([own * scale, rows]), np.ones_like(n))
        if found[0] <= 0:
            return [(*none, float(np.max(scale)))]
        return [(*(found[1:] / found[0]), 1 / found[0]), (*none, float(np.max(scale)))]

    return starts


def _curve_and_slopes(
    terms: Mapping[str, Term], *, strong: bool, by_nodes: bool
) -> tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]:
    """Curve and slopes of gamma times work over step, gamma being 1 where it is not among the parameters."""
    number = len(terms)

    def parts(n: Any, *values: Any) -> tuple[Any, list[Any], Any]:
        (nodes, fullest), values = (values[:2], values[2:]) if by_nodes else ((1.0, n), values)
        per_unit = [term(n, nodes, fullest) for term in terms.values()]
        step = 1 / n if strong else 1.0
        for value, each in zip(values[:number], per_unit, strict=True):
            step = step + value * each
        return step, per_unit, values[number] if len(values) > number else None

    def curve(n: Any, *values: Any, **named: Any) -> Any:
        step, _, gamma = parts(n, *values, *(named[name] for name in (*terms, "gamma") if name in named))
        rate = (1.0 if strong else n) / step
        return rate if gamma is None else gamma * rate

    def slopes(n: Any, *values: Any) -> tuple[Any, ...]:
        step, per_unit, gamma = parts(n, *values)
        rate = (1.0 if strong else n) / step
        fall = -rate / step if gamma is None else -gamma * rate / step
        return (*(fall * each for each in per_unit), *(() if gamma is None else (rate,)))

    return curve, slopes


def cost_law(
    *,
    name: str,
    place: int,
    inside: Costs,
    multi_node: Costs,
    peak: Callable[..., float],
    limit: Callable[..., float],
    strong_limit: Callable[..., float],
    staircase: bool = False,
    trends: tuple[Trend, ...] = (),
) -> Law:
    """Return the form for fixed work per worker, with those for fixed work of all, several nodes and few places.

    `inside` is on one node, `multi_node` on several. Of costs on one node that are not all zero `peak` is the worker
    count with the quickest step of fixed work, `strong_limit` the speedup there without the scale, and `limit` the one
    of fixed work per worker, which only saturates.
    """
    # Nine arguments: the parts of a law, which are its declaration and are given by name.

    def form(costs: Costs, *, strong: bool, scaled: bool, reduced: Law | None) -> Law:
        over = f"(1/N + {costs.text})" if strong else f"(1 + {costs.text})"
        top = " ".join((["gamma"] if scaled else []) + ([] if strong else ["N"])) or "1"
        by_nodes = costs is multi_node
        curve, slopes = _curve_and_slopes(costs.terms, strong=strong, by_nodes=by_nodes)

        def own_peak(gamma: float = 1.0, **values: float) -> float:
            if not strong or not any(values.values()):
                return math.inf
            # On several nodes it depends on how they are filled.
            return math.nan if by_nodes else peak(**values)

        def own_limit(gamma: float = 1.0, **values: float) -> float:
            if not any(values.values()):
                return math.inf
            return math.nan if by_nodes else gamma * (strong_limit if strong else limit)(**values)

        return Law(
            name=name,
            label=name,
            place=place,
            formula=f"S = {top} / {over}",
            parameters=(*costs.terms, "gamma") if scaled else tuple(costs.terms),
            bounds=((0.0, math.inf),) * (len(costs.terms) + scaled),
            modes=STEPS,
            curve=curve,
            slopes=slopes,
            starts=cost_starts(costs.terms, strong=strong, scaled=scaled),
            peak=own_peak,
            limit=own_limit,
            bottleneck=communication,
            costs=tuple(costs.terms),
            by_nodes=by_nodes,
            staircase=staircase,
            reduced=reduced,
        )

    laws = {}
    for strong in (True, False):
        anchored = form(inside, strong=strong, scaled=False, reduced=None)
        flat = form(inside, strong=strong, scaled=True, reduced=anchored)
        tied = form(multi_node, strong=strong, scaled=False, reduced=flat)
        several = form(multi_node, strong=strong, scaled=True, reduced=tied)
        laws[strong] = replace(flat, multi_node=several)
    return replace(laws[False], strong=laws[True], quantity=_quantity(laws[False], inside, multi_node), trends=trends)


def communication(n: float, *, base: float = 0.0, gamma: float = 1.0, g: float = 1.0, **costs: float) -> str:
    """Return what costs most of all that such a law knows."""
    return "communication" if any(cost > 0 for cost in costs.values()) else "none"


def _quantity(law: Law, inside: Costs, multi_node: Costs) -> Law:
    """Return y = base + costs, in the unit of y: linear in its parameters, none of them below zero."""

    def form(costs: Costs, *, multi_node: Law | None = None, reduced: Law | None = None) -> Law:
        terms, by_nodes = costs.terms, costs is not inside

        def slopes(n: Any, *values: Any) -> tuple[Any, ...]:
            nodes, fullest = values[:2] if by_nodes else (1.0, n)
            return (1.0, *(term(n, nodes, fullest) for term in terms.values()))

        def curve(n: Any, *values: Any) -> Any:
            y = 0.0
            for value, slope in zip(values[2 * by_nodes :], slopes(n, *values), strict=True):
                y = y + value * slope
            return y

        return replace(
            law,
            formula=f"y = base + {costs.text}",
            parameters=("base", *terms),
            bounds=((0.0, math.inf),) * (1 + len(terms)),
            modes=EVERY_MODE,
            curve=curve,
            slopes=slopes,
            starts=lambda where, y: [(float(y.mean()), *(0.0 for _ in terms))],
            peak=lambda **_: math.nan,
            limit=lambda **_: math.nan,
            costs=tuple(terms),
            linear=True,
            by_nodes=by_nodes,
            multi_node=multi_node,
            reduced=reduced,
        )

    return form(inside, multi_node=form(multi_node, reduced=form(inside)))
