"""The next best measurement: which worker counts narrow a forecast most per GPU hour, from the runs there are.

For each candidate the run is made up at three values that stand for its forecast interval, each is added to the runs
there are, and the target is forecast again. The weighted mean of these widths is the width to expect: preposterior
analysis (H. Raiffa and R. Schlaifer, Applied Statistical Decision Theory, 1961, chapter 4) by three-point Gauss-Hermite
quadrature. Letters: N workers, half widths as logarithms.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.fit.rows import by_series, check_points
from horovod_study.analysis.forecast.holdout import planned_per_node
from horovod_study.analysis.forecast.prediction import Prediction, predict
from horovod_study.errors import AnalysisError
from horovod_study.text.words import plural

_NODES = ((0.0, 2 / 3), (math.sqrt(3), 1 / 6), (-math.sqrt(3), 1 / 6))  # of a normal variable, with their weights


NextStep: TypeAlias = SimpleNamespace
"""Of one series: target, its forecast there as it is (samples_per_s, low, high, doubts), and choices: further runs, the
best per GPU hour first."""


def next_runs(points: pd.DataFrame, target: int, *, candidates: Iterable[int], seconds: float) -> dict[str, NextStep]:
    """Return for each series of `points` what further runs are expected to narrow its forecast at `target` workers.

    Columns as for `prediction.predict`, one row a run. `candidates` are the worker counts that can be run, `seconds`
    what one run takes. Runs that are not expected to narrow the interval are left out. Series of a single worker count
    have no forecast and are left out. Raises AnalysisError where no series has one.
    """
    check_points(points)
    wanted = sorted(set(candidates))
    found = {
        name: _next_step(name, rows, target, wanted, seconds)
        for name, rows in by_series(points)
        if wanted and rows["workers"].nunique() > 1
    }
    if not found:
        raise AnalysisError("no worker count can be run, or every series has one: run a second one, then forecast")
    return found


def _next_step(name: str, rows: pd.DataFrame, target: int, candidates: Sequence[int], seconds: float) -> NextStep:
    rows = rows.assign(series=name)
    per_node = planned_per_node(rows)
    now, *at = predict(rows, workers=[target, *candidates], workers_per_node=per_node)[name]
    width = math.log(now.high / now.low)
    logs = rows["samples_per_s"].astype(float).map(math.log)
    groups = logs.groupby(rows["workers"])
    freedom = len(logs) - groups.ngroups
    away = logs - groups.transform("mean")
    noise = math.sqrt(float((away**2).sum()) / freedom) if freedom else 0.02  # of runs of one worker count, pooled
    choices = []
    for known, many in itertools.product(at, (1, 3)):  # three have an interval of their own
        down, up = _expected(rows, target, known, many, noise, per_node)
        narrower = 1 - (down + up) / width if width > 0 else 0.0
        hours = many * seconds * known.workers / 3600
        if narrower >= 0.01:  # the forecast is no more exact than that
            choices.append(
                {
                    "workers": known.workers,
                    "runs": many,
                    "seconds": many * seconds,
                    "gpu_hours": hours,  # workers x seconds, whatever a worker runs on
                    "low": now.samples_per_s * math.exp(-down),
                    "high": now.samples_per_s * math.exp(up),
                    "narrower": narrower,  # share of the width, as logarithms, that is expected to go
                    "per_gpu_hour": narrower / hours,
                }
            )
    choices.sort(key=lambda each: (-each["per_gpu_hour"], each["workers"], each["runs"]))
    forecast = {part: getattr(now, part) for part in ("samples_per_s", "low", "high", "doubts")}
    return NextStep(target=target, **forecast, choices=choices)


def _expected(
    rows: pd.DataFrame, target: int, known: Prediction, many: int, noise: float, per_node: int | None
) -> tuple[float, float]:
    """Return how far the interval at the target is expected to reach down and up after `many` runs."""
    down = up = 0.0
    template = rows.iloc[[int(np.argmin(np.abs(rows["workers"].to_numpy() - known.workers)))] * many]
    new = {"workers": known.workers, "nodes": math.nan if known.nodes is None else known.nodes, "sync_s": math.nan}
    template = template.assign(**{name: value for name, value in new.items() if name in rows})
    # As far apart as runs are, about the value: their mean is what is tried, their scatter is that of the others.
    apart = noise * (np.linspace(-1, 1, many) if many > 1 else np.zeros(1))
    for place, weight in _NODES:
        side = math.log(known.high / known.samples_per_s if place > 0 else known.samples_per_s / known.low)
        centre = known.samples_per_s * math.exp(place * side / stats.Z95)
        tried = pd.concat([rows, template.assign(samples_per_s=centre * np.exp(apart))], ignore_index=True)
        ((then,),) = predict(tried, workers=[target], workers_per_node=per_node).values()
        down += weight * math.log(then.samples_per_s / then.low)
        up += weight * math.log(then.high / then.samples_per_s)
    return down, up


def lines(series: str, step: NextStep, *, most: int = 6) -> list[str]:
    """Return what to measure next as a person reads it."""
    now = f"{step.samples_per_s:,.4g} samples/s [{step.low:,.4g}, {step.high:,.4g}]"
    text = [f"{series or 'all points'}: at {step.target:,} workers {now}"]
    if not step.choices:
        text.append("  no further run of these worker counts is expected to narrow that")
    for each in step.choices[:most]:
        cost = f"{plural(each['runs'], 'run')}, {each['seconds']:.0f} s, {each['gpu_hours']:.3g} GPU hours"
        then = f"[{each['low']:,.4g}, {each['high']:,.4g}] expected, {100 * each['narrower']:.0f} % narrower"
        text.append(f"  {each['workers']:,} workers, {cost}: {then}")
    return text
