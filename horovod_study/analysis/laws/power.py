"""The power law, S = scale N^exponent: a straight line on doubly logarithmic paper."""

import math
from typing import Any

import numpy as np

from horovod_study.analysis.laws.law import EVERY_MODE, Law, Places, Trend, with_quantity
from horovod_study.analysis.stats import Floats

TREND = Trend(name="power", place=5, of="log")


def _slopes(n: Any, scale: Any, exponent: Any) -> tuple[Any, ...]:
    rise = np.exp(exponent * np.log(n))
    return rise, scale * rise * np.log(n)


def _starts(where: Places, s: Floats) -> list[tuple[float, ...]]:
    x, y = np.log(where.workers), np.log(np.maximum(s, 1e-300))
    spread = float(np.sum((x - x.mean()) ** 2))
    exponent = float(np.clip(np.sum((x - x.mean()) * (y - y.mean())) / spread if spread > 0 else 0.0, -9.9, 9.9))
    at_largest = float(np.exp(y[-1] - exponent * x[-1]))
    return [(float(np.exp(y.mean() - exponent * x.mean())), exponent), (at_largest, exponent), (float(s.mean()), 0.0)]


LAW = with_quantity(
    Law(
        name="power",
        label="power",
        place=5,
        formula="S = scale N^exponent",
        parameters=("scale", "exponent"),
        bounds=((0.0, math.inf), (-10.0, 10.0)),
        modes=EVERY_MODE,
        curve=lambda n, scale, exponent: scale * np.exp(exponent * np.log(n)),
        slopes=_slopes,
        starts=_starts,
        peak=lambda scale, exponent: math.inf if exponent > 0 else 1.0,
        limit=lambda scale, exponent: math.inf if exponent > 0 else scale,
        trends=(TREND,),
    )
)
