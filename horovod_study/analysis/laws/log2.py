"""S = intercept + slope log2 N: what every doubling adds."""

import math
from typing import Any

import numpy as np

from horovod_study.analysis.laws.law import EVERY_MODE, Law, with_quantity


def _curve(n: Any, intercept: Any, slope: Any) -> Any:
    return intercept + slope * np.log2(n)


def _slopes(n: Any, intercept: Any, slope: Any) -> tuple[Any, ...]:
    return 1.0, np.log2(n)


LAW = with_quantity(
    Law(
        name="log2",
        label="log2",
        place=6,
        formula="S = intercept + slope log2 N",
        parameters=("intercept", "slope"),
        bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
        modes=EVERY_MODE,
        curve=_curve,
        slopes=_slopes,
        starts=lambda where, s: [(float(s[0]), 1.0)],
        peak=lambda intercept, slope: math.inf if slope > 0 else 1.0,
        limit=lambda intercept, slope: math.inf if slope > 0 else intercept,
        linear=True,
    )
)
