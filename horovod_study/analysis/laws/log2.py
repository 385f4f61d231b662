"""S = intercept + slope log2 N: what every doubling adds."""

import math

import numpy as np

from horovod_study.analysis.laws.law import EVERY_MODE, Law, with_quantity

LAW = with_quantity(
    Law(
        name="log2",
        label="log2",
        place=6,
        formula="S = intercept + slope log2 N",
        parameters=("intercept", "slope"),
        bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
        modes=EVERY_MODE,
        curve=lambda n, intercept, slope: intercept + slope * np.log2(n),
        slopes=lambda n, intercept, slope: (1.0, np.log2(n)),
        starts=lambda where, s: [(float(s[0]), 1.0)],
        peak=lambda intercept, slope: math.inf if slope > 0 else 1.0,
        limit=lambda intercept, slope: math.inf if slope > 0 else intercept,
        linear=True,
    )
)
