"""Gustafson's law, S = s + (1 - s) N (J. Gustafson 1988); s is the serial fraction of work that grows with N."""

import math

from horovod_study.analysis.laws.law import Law

LAW = Law(
    name="gustafson",
    label="Gustafson",
    place=3,
    formula="S = s + (1 - s) N",
    parameters=("s",),
    bounds=((0.0, 1.0),),
    modes=frozenset({"weak"}),
    misread=", so its s is not a fraction of anything",
    curve=lambda n, s: s + (1 - s) * n,
    slopes=lambda n, s: (1 - n,),
    starts=lambda where, s: [(0.5,)],
    peak=lambda s: math.inf if s < 1 else 1.0,
    limit=lambda s: math.inf if s < 1 else 1.0,
    bottleneck=lambda n, s: "contention" if s > 0 else "none",
    linear=True,
)
