"""The regression line, S = slope N + intercept: what each worker adds."""

import math
from typing import Any

import numpy as np

from horovod_study.analysis.laws.law import EVERY_MODE, UNLIKELY, Law, Places, Trend, with_quantity
from horovod_study.analysis.stats import Floats


def _curve(n: Any, slope: Any, intercept: Any) -> Any:
    return slope * n + intercept


def _slopes(n: Any, slope: Any, intercept: Any) -> tuple[Any, ...]:
    return n, 1.0


def _starts(where: Places, s: Floats) -> list[tuple[float, ...]]:
    return [(float(np.mean(s / where.workers)), 0.0)]


LAW = with_quantity(
    Law(
        name="linear",
        label="linear",
        place=1,
        formula="S = slope N + intercept",
        parameters=("slope", "intercept"),
        bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
        modes=EVERY_MODE,
        curve=_curve,
        slopes=_slopes,
        starts=_starts,
        peak=lambda slope, intercept: math.inf if slope > 0 else 1.0,
        limit=lambda slope, intercept: math.inf if slope > 0 else slope + intercept,
        linear=True,
        trends=(
            Trend(name="linear", place=4, of="rate", strong_prior=UNLIKELY, costs=(lambda n: 1 / n,)),
            # The line through the origin and the last point.
            Trend(name="constant efficiency", place=6, of="last", strong_prior=UNLIKELY),
        ),
    )
)
