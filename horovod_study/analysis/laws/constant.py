"""S = level: workers do not matter."""

import math
from typing import Any

from horovod_study.analysis.laws.law import EVERY_MODE, Law, with_quantity


def _curve(n: Any, level: Any) -> Any:
    return level + 0.0 * n


def _slopes(n: Any, level: Any) -> tuple[Any, ...]:
    return (1.0,)


LAW = with_quantity(
    Law(
        name="constant",
        label="constant",
        place=10,
        formula="S = level",
        parameters=("level",),
        bounds=((0.0, math.inf),),
        modes=EVERY_MODE,
        curve=_curve,
        slopes=_slopes,
        starts=lambda where, s: [(float(s.mean()),)],
        peak=lambda level: 1.0,
        limit=lambda level: level,
        linear=True,
    ),
    place=0,
)
