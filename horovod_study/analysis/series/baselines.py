"""What a speedup is over: one rule, which laws, forecasts, hold-outs and pages of a table go by; and what cannot be.

A column that is called a speedup (`attrs["unit"]` of the points) has the base 1 and is not divided again, unless the
smallest count of it has exactly 1: then that count is what it is over. All else is over the median throughput at the
smallest worker count, on the fewest nodes, divided by that count.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.impossible import impossible
from horovod_study.errors import AnalysisError
from horovod_study.text.words import cut

SPEEDUP = "speedup"  # the unit of a column that is a speedup, or an efficiency times the workers
OWN = "the table's own base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What counts as speedup 1."""

    samples_per_s: float  # of one worker
    words: str
    workers: int | None = None  # count of the rows that it is the median of; None where it is none of them
    doubt: str = ""


def base_of(rows: pd.DataFrame, name: str = "", given: float | Mapping[str, float] | None = None) -> Base:
    """Return the base of the speedups of one series: columns workers, samples_per_s, optional nodes.

    `given` takes its place: one number, or one for each name of a series. AnalysisError where it is none.
    """
    if given is not None:
        given = given.get(name, math.nan) if isinstance(given, Mapping) else given
        if not 1e-9 <= given <= 1e15:
            of = f" of series {cut(name, 60)!r}" if name else ""
            raise AnalysisError(
                f"baseline{of} is {given!r}: give samples/s of one worker for each series, above 0 and at most 1e15"
            )
        return Base(samples_per_s=float(given), words=f"{given:g} samples/s (given)")
    workers, rates = rows["workers"].to_numpy(), rows["samples_per_s"].to_numpy(dtype=np.float64)
    smallest = int(workers.min())
    rates = rates[workers == smallest]
    if "nodes" in rows:
        nodes = rows["nodes"].to_numpy(dtype=np.float64, na_value=np.nan)[workers == smallest]
        rates = rates if np.isnan(nodes).any() else rates[nodes == nodes.min()]
    median = float(np.nanmedian(rates))
    if rows.attrs.get("unit") == SPEEDUP and abs(median - 1) >= 0.02:
        return Base(samples_per_s=1.0, words=OWN)
    text = f"median of {smallest} worker{'s' * (smallest > 1)} of this series"
    if smallest == 1:
        return Base(samples_per_s=median, words=text, workers=1)
    doubt = f"no 1-worker point: amdahl and gustafson take {smallest} workers as perfectly scaled; give the baseline"
    words = f"{text}, divided by {smallest}"
    return Base(samples_per_s=median / smallest, words=words, workers=smallest, doubt=f"{doubt} to have their s")


def impossibilities(rows: pd.DataFrame, base_samples_per_s: float) -> list[str]:
    """Return what cannot be among the points of one series: rates, speedups, and synchronisation longer than its step.

    Columns workers, samples_per_s; optional sync_s, batch_size. A series has one sentence of each rule, of the worst.
    """
    medians = rows.groupby("workers")["samples_per_s"].median()
    found: dict[str, tuple[float, str]] = {}
    for workers, rate in medians.items():
        values: dict[str, Any] = {"rate": rate, "workers": workers, "speedup": rate / base_samples_per_s}
        unit = rows.attrs.get("unit", "samples/s")
        for rule in ("rate", "speedup"):
            size = values[rule] / float(workers)  # type: ignore[arg-type]
            if (why := impossible(rule, **values, unit=unit)) and size > found.get(rule, (0.0, ""))[0]:
                found[rule] = (size, why)
    said = [why for _, why in found.values()]
    if {"sync_s", "batch_size"} <= set(rows.columns):
        steps = rows["workers"] * rows["batch_size"] / rows["samples_per_s"]
        for part, whole, workers in zip(rows["sync_s"], steps, rows["workers"], strict=True):
            of = f"a step of {workers} workers"
            why = impossible("part", what="synchronisation", part=part, whole=whole, of=of)
            if why and not math.isnan(part * whole):
                return [*said, why]
    return said
