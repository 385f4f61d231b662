"""What of a run counts: all of it, but for steps that it made in turns while other programs used the machine.

Speedups of cells that alternate leave disturbed rounds out (analysis.paired). So does every other number then: the
slices that turns.csv has a load for are taken out of the rows and of the totals of their run here, where runs are read,
so that throughput, step, parts, waiting and resources are those of the same machine. run.json itself stays as it was.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study import energy
from horovod_study.config import LAPS
from horovod_study.errors import RecordError
from horovod_study.records.format import RunRecord, step_totals, timed_from
from horovod_study.records.turns import TURNS_FILE, TurnSlice, read_turns, turn_places

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Aside = Sequence[tuple[TurnSlice, tuple[int, int]]]
"""Slices, and of each its first step and the one after its last."""


def slices_aside(directory: Path, record: RunRecord) -> Aside:
    """Return the slices of a run that are set aside, and their steps; none of a run that did not alternate.

    A slice is set aside where other programs used more than `paired.OTHER_LOAD` cores meanwhile. None of a block is
    where less than `paired.QUIET_SHARE` of its slices are quiet, and none of a run without a quiet slice: what is known
    of these is how they are on a shared machine.
    """
    path = directory.resolve().parent / TURNS_FILE
    if not record.totals.get("turns") or not path.is_file():
        return []
    about, name = path.stat(), directory.resolve().name
    loud = _loud(path.parent, about.st_mtime_ns, about.st_size).get(name, {})
    own = turn_places(record, name, loud)
    return [(each, steps) for each, steps in own if loud[each]] if not all(loud[each] for each, _ in own) else []


@lru_cache(maxsize=64)
def _loud(folder: Path, *_: int) -> Mapping[str, Mapping[TurnSlice, bool]]:
    """Return {run: {slice: whether it does not count}} of a study, in their order; `_`: when turns.csv has changed."""
    # With NumPy and SciPy: only for those who alternated.
    from horovod_study.analysis.paired import OTHER_LOAD, quiet_rounds

    blocks: dict[str, list[TurnSlice]] = {}
    for each in read_turns(folder):
        blocks.setdefault(each.block, []).append(each)
    found: dict[str, dict[TurnSlice, bool]] = {}
    for slices in blocks.values():
        last = {(each.launch, each.round, each.run): each for each in slices}  # of a slice that was made again
        shared = quiet_rounds([_load(each) for each in last.values()])[1]
        for each in slices:
            found.setdefault(each.run, {})[each] = not shared and _load(each) > OTHER_LOAD
    return found


def _load(each: TurnSlice) -> float:
    return math.nan if each.other_load is None else each.other_load


def without(table: "pa.Table", aside: Aside) -> "pa.Table":
    """Return the step rows of a rank without those that are set aside."""
    import numpy as np

    if not aside:
        return table
    step = table.column("step").to_numpy()
    counted = [(step < first) | (step >= end) for _, (first, end) in aside]
    return table.filter(np.logical_and.reduce(counted))


def recounted(
    record: RunRecord,
    aside: Aside,
    rows: "Mapping[int, Mapping[str, np.ndarray]]",
    samples_of: "Callable[[str], tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]",
) -> RunRecord:
    """Return the record of a finished run with the totals of the steps that count; as it is where all of them do.

    `rows`: rank -> columns without what is set `aside`; `samples_of` a host returns its system samples as columns and
    what they say of its sensors. Means and quantiles are made from the rows again, the window loses the seconds and
    samples of what is set aside, and readings of sensors are those of the time that is left. Rows or samples that
    cannot be read (RecordError) leave all as it was.
    """
    first = timed_from(record)[0]
    aside = [(each, steps) for each, steps in aside if steps[0] >= first]
    window_s = record.totals.get("window_s", 0.0) - math.fsum(each.end_s - each.begin_s for each, _ in aside)
    if not aside or window_s <= 0:
        return record
    samples = record.totals["samples_per_s"] * record.totals["window_s"] - sum(each.samples for each, _ in aside)
    names = ("step", "begin_s", *(f"{lap}_s" for lap in (*LAPS, "residual", "step")))
    try:
        ranks = [{name: columns[name][columns["step"] >= first] for name in names} for columns in rows.values()]
        stretches = _stretches(ranks[0], record.totals["turns"]["before"])
        sensed = _sensed(record.totals, samples_of, stretches, round(samples))
    except (RecordError, LookupError):
        return record
    rates = {"samples_per_s": samples / window_s, "window_s": window_s}
    steps = min(len(rank["step"]) for rank in ranks)
    again = step_totals([_summary(rank) for rank in ranks])
    return replace(record, totals={**record.totals, **rates, "steps": steps, **again, **sensed})


def _summary(columns: Mapping[str, "np.ndarray"]) -> dict[str, Any]:
    """Return what `step_totals` takes of one rank, as the recorder says it: None where a row does not know a lap."""
    import numpy as np

    found = {name: columns[name] for name in (*(f"{lap}_s" for lap in (*LAPS, "residual")), "step_s")}
    known = {name: values if len(values) and not np.isnan(values).any() else None for name, values in found.items()}

    def each(of: Any) -> dict[str, float | None]:
        return {name: None if values is None else float(of(values)) for name, values in known.items()}

    return {
        "mean": each(np.mean),
        "median": each(np.median),
        "step_s_p90": each(lambda values: np.quantile(values, 0.9))["step_s"],
    }


def _stretches(rank: Mapping[str, "np.ndarray"], waits: Iterable[int]) -> list[tuple[float, float]]:
    """Return begin and end of each row of steps that counts and is not interrupted, in s on the axis of the samples."""
    import numpy as np

    step, begin_s = rank["step"], rank["begin_s"]
    end_s = begin_s + np.nan_to_num(rank["step_s"])
    opens = np.flatnonzero((np.diff(step) != 1) | np.isin(step[1:], list(waits))) + 1
    edges = pairwise([0, *opens.tolist(), len(step)])
    return [(float(begin_s[first]), float(end_s[end - 1])) for first, end in edges]


def _sensed(
    totals: Mapping[str, Any],
    samples_of: "Callable[[str], tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]",
    stretches: energy.Stretches,
    samples: int,
) -> dict[str, Any]:
    """Return `system` and `energy` of the totals over some stretches; nothing of a run without a sampler."""
    hosts = dict((totals.get("system") or {}).get("hosts") or {})
    devices = []
    for host, told in hosts.items():
        columns, meta = samples_of(host)
        hosts[host] = {**told, **energy.host_summary(columns, stretches)}
        where = {"host": host, "interval_s": float(meta["interval_s"])}
        devices += energy.host_energy(columns, meta["devices"], stretches, **where)
    if not hosts:
        return {}
    joules = energy.total_energy(devices, [], samples=samples)
    why = {"reason": (totals.get("energy") or {}).get("reason", "")}
    return {"system": {**totals["system"], "hosts": hosts}, "energy": {**joules, **why}}
