"""S = level: workers do not matter."""

import math

from horovod_study.analysis.laws.law import EVERY_MODE, Law, with_quantity

LAW = with_quantity(
    Law(
        name="constant",
        label="constant",
        place=10,
        formula="S = level",
        parameters=("level",),
        bounds=((0.0, math.inf),),
        modes=EVERY_MODE,
        curve=lambda n, level: level + 0.0 * n,
        slopes=lambda n, level: (1.0,),
        starts=lambda where, s: [(float(s.mean()),)],
        peak=lambda level: 1.0,
        limit=lambda level: level,
        linear=True,
    ),
    place=0,
)
