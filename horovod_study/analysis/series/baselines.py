"""What a speedup is over: one rule, which laws, forecasts, hold-outs and pages of a table go by; and what cannot be.

A column that is called a speedup (`attrs["unit"]` of the points) has the base 1 and is not divided again, unless the
smallest count of it has exactly 1: then that count is what it is over. All else is over the median throughput at the
smallest worker count, on the fewest nodes, divided by that count.

What a number cannot be, whoever gave it, is one table, which files of others, fits, forecasts and pages go through.
Each rule says in one sentence what was found and why it cannot be. The caller stops the number: it leaves the row or
the file out, puts nothing in its place, or selects no law, and hands the sentence on. A rule is broken beyond doubt
only: its bounds are far outside of what good measurements reach.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

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


MOST_PER_WORKER = 1e9  # samples or tokens per second; the fastest small models reach some 1e8
MOST_EPOCHS = 5000.0
MOST_STEP_S = 300.0  # of one update
MOST_BYTES_PER_S = 2e13  # of a reduction; links of a GPU have some 1e12
FAR_ABOVE = 2.0  # times the workers; caches and slow baselines explain less

RULES: dict[str, tuple[Callable[..., bool], str]] = {  # when it is broken, and the sentence, both of values by name
    "rate": (
        lambda rate, workers, **_: rate > MOST_PER_WORKER * workers,
        "{rate} {unit} with {workers} workers: no worker does more than 1e9 a second",
    ),
    "speedup": (
        lambda speedup, workers, **_: speedup > FAR_ABOVE * workers,
        "a speedup of {speedup} with {workers} workers: more than twice the workers is no scaling",
    ),
    "epochs": (
        lambda epochs, **_: epochs > MOST_EPOCHS,
        "{epochs} epochs: no training has as many; samples or tokens?",
    ),
    "step": (lambda step, **_: step > MOST_STEP_S, "{step} {unit} of a step: no training waits so long"),
    "part": (
        lambda part, whole, **_: part > 1.05 * whole,
        "{what} of {part} {unit} is a part of {of}, of which there are {whole} {unit}: one of the two is unknown",
    ),
    "device step": (
        lambda step, busy, **_: busy > 2.0 * step,
        "a step of {step} {unit} with {busy} {unit} of kernels: the step is not that of the device",
    ),
    "behind": (
        lambda step, behind, **_: behind > step,
        "kernels end {behind} {unit} after the host's last step of {step} {unit}: they ran later than what launched "
        "them",
    ),
    "limit": (
        lambda limit, measured, **_: limit < measured,
        "{law} never exceeds {limit}, and {measured} was measured",
    ),
    "peak": (
        lambda peak, limit, workers, measured, **_: peak < workers and limit < measured,
        "{law} has its peak, {limit}, at {peak} workers, and {measured} was measured at {workers}",
    ),
    "bandwidth": (
        lambda bandwidth, **_: bandwidth > MOST_BYTES_PER_S,
        "{bandwidth} bytes/s: no network or memory moves as much",
    ),
}


def impossible(rule: str, **values: Any) -> str:
    """Return why values cannot be, by the rule of this name; "" where they can, and where one of them is NaN.

    Numbers are in the unit that the text `unit` says, `what` and `of` are the words for a part and its whole.
    """
    broken, says = RULES[rule]
    if not broken(**values):
        return ""
    numbers = {value for value in values.values() if not isinstance(value, str)}
    apart = (digits for digits in (4, 6, 9) if len({f"{each:.{digits}g}" for each in numbers}) == len(numbers))
    form = f".{next(apart, 12)}g"
    texts = {name: value if isinstance(value, str) else format(value, form) for name, value in values.items()}
    return says.format_map({"unit": "s", **texts}).replace(" 1 workers", " 1 worker")
