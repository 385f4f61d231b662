"""What makes a number mean something else than it seems, what a speedup is over, and what a number cannot be.

A rule over the points of a study has a name, which is a flag of the point too, and what a reader must know; what to do
is said by `analysis.steps.explanation`. What a number cannot be, whoever gave it, is one table that files of others,
fits, forecasts and pages go through: the caller stops the number, and hands the sentence of the rule on. A rule is
broken beyond doubt only: its bounds are far outside of what good measurements reach.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from horovod_study.errors import AnalysisError
from horovod_study.text.numbers import THIN, fixed, milliseconds, percent, rounded
from horovod_study.text.words import cut, plural

WORTH = 0.03  # a share of the training's time outside of steps below this is no doubt
STALLED = 0.05  # the same of the mean step in stalls
UNSTEADY = "the run is not steady"  # in the recorder's doubt about such a run

Row = Mapping[str, Any]
Kind = Literal[
    "table", "cause", "outside", "hidden", "steps", "superlinear", "missing", "baseline", "unsteady", "versions",
    "parts", "nodes", "energy", "other",
]  # fmt: skip
"""What a doubt is about, the worst first; report/page/tables.py says of each what to do."""


class Doubt(str):
    """A doubt in words, and what it is about."""

    kind: Kind = "other"


def of_kind(kind: Kind, texts: Iterable[str]) -> list[str]:
    """Return `texts` as doubts of one kind; one that has a kind keeps it."""
    found = []
    for text in texts:
        found.append(Doubt(text))
        found[-1].kind = getattr(text, "kind", kind)
    return list[str](found)


APART = {
    "processes": "{workers} processes without a library between them train at the same time, a model each: this is one "
    "measurement of the machine that they share",
    "none": "the {workers} workers never average their gradients or parameters, so that each trains a model of its own",
    "parted": "the {workers} workers end with different parameters, so that they have not trained one model",
}
"""Why the workers of a run did not train together, by the column `apart` of the run table; format of a point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """One rule; `holds` and `words` take a point, a row of points.scaling_points."""

    name: str
    flag: str  # what it says of any point, for the notes of a table
    holds: Callable[[Row], bool]
    words: Callable[[Row], str]
    kind: Kind = "cause"
    brief: Callable[[Row], str] = lambda row: ""  # of this one, behind the headline; empty where that says it


def passes(row: Row) -> float:
    """Return how many times an epoch of all workers goes through the data set; 1 where it is divided or not known."""
    times = float(row.get("data_passes", 1.0))
    several = row["workers"] > 1 and row["apart"] != "processes"
    return times if several and times >= 1.5 and abs(times / round(times) - 1) <= 0.1 else 1.0


def unsteady(row: Row) -> bool:
    """Return whether half of the runs of a point, or more, were disturbed: what is made of them says nothing."""
    return bool(row["repeats"]) and 2 * int(row["unsteady"]) >= int(row["repeats"])


def incredible(speedup: float, workers: int, *, disturbed: bool) -> str:
    """Return why a speedup is not given: it cannot be, or is more than the workers over a disturbed baseline."""
    if disturbed and 1 < workers < speedup:
        return f"the baseline is not steady, and the ratio of {speedup:.4g} with {workers:.0f} workers cannot be one"
    return impossible("speedup", speedup=speedup, workers=workers)


def withheld(row: Row) -> str:
    """Return why a point that has a baseline has no speedup; "" where it has one, or there is nothing to withhold."""
    if row["apart"]:
        return "they train models of their own"
    bases = ("plain", "wrapped")[: 1 if row["workers"] == 1 else 2]
    kinds = [kind for kind in bases if row[f"base_{kind}_samples_per_s"] > 0]
    if row["missing"] or not kinds or any(row[f"speedup_{kind}"] > 0 for kind in kinds):
        return ""
    speedup = float(row["samples_per_s_median"] / row[f"base_{kinds[0]}_samples_per_s"])
    why = incredible(speedup, row["workers"], disturbed=bool(row["base_unsteady"]))
    return why if row["backend"] == "reported" else why.replace("a speedup of", "a ratio of")  # a table says speedup


def _wrong(row: Row) -> str:
    return "the run" if unsteady(row) and not row["base_unsteady"] else "the baseline"


def whose_data(row: Row) -> str:
    """Return in words how the workers of a point go through data that are not divided among them."""
    workers = f"{row['workers']:.0f} workers"
    if round(passes(row)) == row["workers"]:
        return f"each of the {workers} goes through all of the data"
    return f"the {workers} go through the data {passes(row):.0f} times in an epoch"


def _undivided(row: Row) -> str:
    samples = row["data_passes"] * row["train_samples"]
    whole = "" if samples != samples else f", {fixed(samples, 0)} samples of {fixed(row['train_samples'], 0)}"
    epoch = f"an epoch is {fixed(row['epoch_steps'], 0)} steps on each{whole}"
    return f"{whose_data(row)} ({epoch}): {passes(row):.0f} times the work, which a speedup in samples/s hides"


def threads(row: Row) -> str:
    """Return in words with how many threads the workers of a point and its baseline compute."""
    own = plural(round(row["rank_threads"]), "thread")
    return f"a worker computes with {own}, the baseline with {row['base_threads']:.0f}"


def same_threads(row: Row) -> str:
    """Return what makes a baseline with as many threads as the workers of a point."""
    count = f"{row['rank_threads']:.0f}"
    typed = f"OMP_NUM_THREADS={count}, also before torchrun --nproc-per-node 1"
    return f"{typed}, makes a baseline with {count}, in a study file run: {{threads: {count}}}"


def _outside(row: Row) -> str:
    whole = row["speedup_whole"]
    job = "" if whole != whole else f", {rounded(whole, 3)} times the baseline's"
    rate = f"the rate of the job is {rounded(row['whole_samples_per_s_median'])} samples/s{job}"
    share = percent(row["outside_share_median"])
    return f"{share} of the training's time is outside of steps: {rate}; speedups are those of steps"


CULPRITS = (
    Culprit(
        name="apart",
        flag="its workers train models of their own: no speedup",
        holds=lambda row: row["apart"] != "",
        words=lambda row: f"{APART[row['apart']].format(workers=int(row['workers']))}; no speedup is given",
    ),
    Culprit(
        name="withheld",
        flag="its speedup cannot be, or is that of a run that is not steady, and is not given",
        holds=lambda row: not row["apart"] and withheld(row) != "",
        words=lambda row: f"{withheld(row)}; no speedup is given: record {_wrong(row)} again on a quiet machine",
    ),
    Culprit(
        name="undivided",
        flag="its data are not divided among the workers",
        brief=lambda row: f"{whose_data(row)}, {passes(row):.0f} times the work",
        holds=lambda row: passes(row) > 1,
        words=_undivided,
    ),
    Culprit(
        name="threads",
        flag="its workers compute with another number of threads than the baseline",
        brief=threads,
        holds=lambda row: row["workers"] > 1 and 0 < row["base_threads"] != row["rank_threads"] > 0,
        words=lambda row: f"{threads(row)}: they are not compared alike; {same_threads(row)}",
    ),
    Culprit(
        name="unsteady",
        kind="unsteady",
        flag="it or its baseline was disturbed",
        brief=lambda row: f"{_wrong(row)} was disturbed",
        holds=lambda row: row["workers"] > 1 and (unsteady(row) or bool(row["base_unsteady"])) and not withheld(row),
        words=lambda row: (
            f"{_wrong(row)} is not steady: do not quote this speedup and efficiency, and record it again on a quiet "
            "machine"
        ),
    ),
    Culprit(
        name="tensors",
        flag="its workers average tensor by tensor",
        brief=lambda row: f"the script makes {row['calls']}",
        holds=lambda row: row["workers"] > 1 and row["apart"] in ("", "parted") and row["calls"] != "",
        words=lambda row: f"the script makes {row['calls']}",
    ),
    Culprit(
        name="outside",
        kind="outside",
        flag="more than 3 % of the training's time is outside of steps",
        holds=lambda row: row["outside_share_median"] >= WORTH,
        words=_outside,
    ),
    Culprit(
        name="stalls",
        flag="some steps take more than 10 times the median one",
        holds=lambda row: row["stall_s_median"] >= STALLED * row["step_mean_s_median"],
        words=lambda row: (
            f"some steps take more than 10 times the median one, and cost {milliseconds(row['stall_s_median'])} ms of "
            f"the mean step of {milliseconds(row['step_mean_s_median'])} ms"
        ),
    ),
)
"""What matters most first."""


def told(row: Row) -> list[str]:
    """Return the words of each rule that holds of a point."""
    return [_said(each, row) for each in CULPRITS if each.holds(row)]


def _said(rule: Culprit, row: Row) -> str:
    return rule.words(row).replace(f"{THIN}%", " %").replace(THIN, ",")


def culprits(points: pd.DataFrame) -> Iterator[str]:
    """Yield a doubt for each rule that holds of some point, with the numbers of the most workers."""
    rows = [{f"{name}": value for name, value in row.items()} for row in points.to_dict("records")]
    for each in CULPRITS:
        if held := [row for row in rows if each.holds(row)]:
            row = max(held, key=lambda row: (row["workers"], row["samples_per_s_median"]))
            more = f" (and {plural(len(held) - 1, 'point')} more)" if len(held) > 1 else ""
            place = f"{row['series']}, {plural(int(row['workers']), 'worker')}{more}"
            yield from of_kind(each.kind, [f"{place}: {_said(each, row)}."])


def briefly(row: Row) -> list[str]:
    """Return in a few words each what a reader of the point's speedup must know at once."""
    return [each.brief(row) for each in CULPRITS if each.name in str(row["flags"]).split() and each.brief(row)]


# ------------------------------------------------------------------------- what a speedup is over, and what cannot be

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

    A column that is called a speedup (`attrs["unit"]`) has the base 1, unless its smallest count has exactly 1: then
    that count is it. All else is over the median at the smallest count, on the fewest nodes, divided by that count.
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


MOST_EPOCHS = 5000.0

RULES: dict[str, tuple[Callable[..., bool], str]] = {  # when it is broken, and the sentence, both of values by name
    "rate": (
        lambda rate, workers, **_: rate > 1e9 * workers,  # samples or tokens; the fastest small models reach some 1e8
        "{rate} {unit} with {workers} workers: no worker does more than 1e9 a second",
    ),
    "speedup": (
        lambda speedup, workers, **_: speedup > 2.0 * workers,  # caches and slow baselines explain less
        "a speedup of {speedup} with {workers} workers: more than twice the workers is no scaling",
    ),
    "epochs": (
        lambda epochs, **_: epochs > MOST_EPOCHS,
        "{epochs} epochs: no training has as many; samples or tokens?",
    ),
    "step": (lambda step, **_: step > 300.0, "{step} {unit} of a step: no training waits so long"),
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
        lambda bandwidth, **_: bandwidth > 2e13,  # of a reduction; links of a GPU have some 1e12
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
