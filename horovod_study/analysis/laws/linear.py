"""The regression line, S = slope N + intercept: what each worker adds."""

import math

import numpy as np

from horovod_study.analysis.laws.law import EVERY_MODE, UNLIKELY, Law, Trend, with_quantity

LAW = with_quantity(
    Law(
        name="linear",
        label="linear",
        place=1,
        formula="S = slope N + intercept",
        parameters=("slope", "intercept"),
        bounds=((-math.inf, math.inf), (-math.inf, math.inf)),
        modes=EVERY_MODE,
        curve=lambda n, slope, intercept: slope * n + intercept,
        slopes=lambda n, slope, intercept: (n, 1.0),
        starts=lambda where, s: [(float(np.mean(s / where.workers)), 0.0)],
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
