"""Horovod's timeline decomposed: where the time of a collective goes, per tensor and for all of them together.

A collective of one tensor is, from the moment that rank 0 knows of the first rank that has it to its end:

    negotiation   until every rank has announced the tensor
    queue         until its operation begins, and what it waits for in there (QUEUE, WAIT_FOR_DATA, ...)
    copy          into and out of the fusion buffer, and between host and device (MEMCPY_*, COPY_*)
    operation     the transfer (MPI_ALLREDUCE, GLOO_ALLREDUCE, NCCL_ALLREDUCE, ...)
    other         activities of any other name, each under its own
    rest          inside the operation, but in no activity: the runtime's own work

They tile the collective. Tensors that are reduced together do these things at the same time, so their times do not add
up to a time on the clock: `together` counts each moment once, for the phase furthest on.

Recorded steps as events of the same format, which Perfetto and chrome://tracing draw, are here too: one row per rank.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from horovod_study.analysis.steps.traces import merged
from horovod_study.config.run import LAPS
from horovod_study.errors import AnalysisError
from horovod_study.text.words import plural

PHASES = ("negotiation", "queue", "copy", "operation", "other", "rest")
"""In the order of a collective; `rest` is scattered in it."""

_FURTHEST = ("operation", "copy", "other", "rest", "queue", "negotiation")  # the first of them that a moment is in
_NEGOTIATE = "NEGOTIATE_"
_UNTIMED = ("BARRIER", "JOIN")  # collectives that move nothing: listed, but no part of `together`
_COLLECTIVES = "ALLREDUCE|ALLGATHERV?|BROADCAST|BCAST|ALLTOALLV?|REDUCESCATTER|REDUCE|ADASUM"
_ACTIVITIES = {
    "copy": "MEMCPY_|COPY_",
    "queue": "(QUEUE|WAIT_FOR_DATA|WAIT_FOR_OTHER_TENSOR_DATA)$",
    "operation": rf"(MPI|GLOO|NCCL|CCL|DDL|ADASUM|HIERARCHICAL|XLA)[A-Z_]*_?({_COLLECTIVES})$",
}


class Timeline(SimpleNamespace):
    """One timeline file, decomposed; its attributes are the keys of timeline.json. Times in s.

    steps: the largest count of collectives of one tensor; collectives: of all tensors, without barriers. together:
    phase -> per_step_s and share, each moment counted once; they add up to busy_s, in which a tensor is under way.
    operations: activity -> how many, tensors reduced together counted once. last_rank: rank -> how many negotiations it
    was the last in; None: not recorded. tensors: the mean of a collective's phases, the longest first. table: a row per
    (tensor, collective, phase, activity); share is of the tensor's collective.
    """


class _Collective(NamedTuple):
    tensor: str
    kind: str
    negotiated: tuple[float, float] | None
    begin: float
    end: float
    activities: Sequence[tuple[str, float, float]] = ()


def parse_events(text: str, *, source: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the events of a timeline file, and what is to be doubted about it.

    Horovod adds the closing bracket again with each event, and a process that is killed leaves a file without one, or
    with half an event: what comes before is read. Raises AnalysisError, which names `source`, where nothing is.
    """
    doubts, why = [], "is JSON, but no list of events, as a timeline is"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content, place, decoder = [], 0, json.JSONDecoder()
        with suppress(ValueError, RecursionError):
            while True:
                place = next(re.compile(r"[^\s,\[]|$").finditer(text, place)).start()
                event, place = decoder.raw_decode(text, place)
                content.append(event)
        empty = "is empty: Horovod recorded no event"
        why = f"is not JSON (from character {place + 1} on)" if text.strip() else empty
        doubts.append(
            f"the file breaks off or is damaged at character {place + 1:,} of {len(text):,}; the {len(content):,} "
            "events before it are used"
        )
    if isinstance(content, dict):  # Chrome's other form, which some tools write
        content = content.get("traceEvents")
    if not isinstance(content, list) or (doubts and not content) or not all(isinstance(each, dict) for each in content):
        raise AnalysisError(f"{source}: {why}; record it again with train --timeline-steps 50, over Horovod")
    return content, doubts


def decompose(events: Sequence[Mapping[str, Any]], *, source: str, doubts: Iterable[str] = ()) -> Timeline:
    """Return what the events of a timeline say. Raises AnalysisError where they hold no collective."""
    names: dict[Any, str] = {}
    of_process: dict[Any, list[tuple[str, str, float]]] = defaultdict(list)
    cycles, unknown = [], 0
    for event in events:
        kind, pid, name, at = event.get("ph"), event.get("pid"), str(event.get("name", "")), event.get("ts")
        hashed, args = not isinstance(pid, dict | list), event.get("args")
        if kind == "M" and hashed:
            if name == "process_name" and isinstance(args, dict):
                names[pid] = str(args.get("name", pid))
        elif not hashed or not isinstance(at, int | float) or isinstance(at, bool) or not abs(at) < 1e16:
            unknown += 1  # 1e16 us are three hundred years
        elif kind in ("B", "E") or (kind == "X" and name.isdecimal() and len(name) < 10):
            of_process[pid].append((kind, name, at / 1e6))
        elif kind in ("i", "I") and name == "CYCLE_START":
            cycles.append(at / 1e6)
        else:
            unknown += 1
    found: list[_Collective] = []
    last: Counter[int] = Counter()
    cut = stray = 0
    for pid, own in of_process.items():
        opened, lost = _collect(names.get(pid, f"process {pid}"), own, found, last)
        cut, stray = cut + opened, stray + lost
    if not found:
        raise AnalysisError(
            f"{source}: holds {plural(len(events), 'event', ',')}, but no complete collective; record more "
            "steps, with two workers or more over Horovod"
        )
    found.sort(key=lambda each: each.end)
    counts = Counter((each.tensor, each.kind) for each in found if each.kind not in _UNTIMED)
    steps = max(counts.values(), default=max(Counter(each.tensor for each in found).values()))
    rows = [(place, each.tensor, each.kind, *piece) for place, each in enumerate(found) for piece in _pieces(each)]
    columns = ["place", "tensor", "collective", "phase", "activity", "begin", "end"]
    pieces = pd.DataFrame(rows, columns=columns)
    pieces["s"] = pieces["end"] - pieces["begin"]
    moved = pieces[~pieces["collective"].isin(_UNTIMED)]
    strays = {
        ("collective or negotiation", "that the end of the file cuts"): cut,
        ("event", "of what began before the file"): stray,
        ("event", "of a kind that Horovod 0.28 does not write"): unknown,
    }
    said = [f"left out: {plural(count, what, ',')} {of}" for (what, of), count in strays.items() if count]
    if alone := sum(1 for each in found if each.negotiated is None):
        whole = plural(len(found), "collective", ",")
        said.append(f"without a negotiation in the file, which counts as 0: {alone} of {whole}")
    pieces_in_time, counted_s = moved[moved["s"] > 0], 0.0
    together = dict.fromkeys(PHASES, 0.0)  # each moment counted once, for the phase that is furthest on
    for number, phase in enumerate(_FURTHEST, 1):
        this_far = pieces_in_time.loc[pieces_in_time["phase"].isin(_FURTHEST[:number]), ["begin", "end"]]
        until_s = float(np.diff(merged(this_far)).sum())
        together[phase], counted_s = (until_s - counted_s) / steps, until_s
    busy_s = math.fsum(together.values())
    # Of tensors reduced together one operation: their times differ by the microseconds that writing them takes.
    operations = {
        f"{activity}": int((own["begin"] >= own["end"].cummax().shift(fill_value=-math.inf)).sum())
        for activity, own in moved[moved["phase"] == "operation"].sort_values(["begin", "end"]).groupby("activity")
    }
    told = Timeline(steps=steps, collectives=sum(counts.values()), busy_s=busy_s)
    told.together = {name: {"per_step_s": s, "share": s / busy_s if busy_s else None} for name, s in together.items()}
    median_s = float(np.median(np.diff(cycles))) if len(cycles) > 1 else None
    told.operations, told.cycles = operations, {"count": len(cycles), "median_s": median_s}
    told.last_rank = dict(sorted(last.items())) or None
    sums = moved.groupby(["tensor", "phase"])["s"].sum().unstack(fill_value=0)
    sums = sums.reindex(index=moved["tensor"].unique(), columns=PHASES, fill_value=0.0).rename_axis(columns=None)
    count = moved.groupby("tensor")["place"].nunique().reindex(sums.index)
    means = sums.div(count, axis=0)
    order = means.sum(axis=1).sort_values(ascending=False, kind="stable").index
    told.tensors = means.add_suffix("_s").assign(collectives=count).loc[order].reset_index(names="tensor")
    told.tensors = told.tensors[["tensor", "collectives", *(f"{phase}_s" for phase in PHASES)]]
    told.table, told.doubts = _table(pieces, steps), [*doubts, *said]
    return told


def _collect(
    tensor: str, events: Sequence[tuple[str, str, float]], found: list[_Collective], last: Counter[int]
) -> tuple[bool, int]:
    """Add the collectives of one tensor, and which rank came last to them; return what is left open, and strays."""
    stack: list[tuple[str, float]] = []
    ready: list[tuple[float, int]] = []
    activities: list[tuple[str, float, float]] = []
    negotiated, stray = None, 0
    for kind, name, at_s in events:
        if kind == "B":
            activities = activities if stack else []
            stack.append((name, at_s))
        elif kind == "X" and stack:
            ready.append((at_s, int(name)))
        elif kind == "E" and stack:
            name, began_s = stack.pop()
            if len(stack) == 1:
                activities.append((name, began_s, at_s))
            elif not stack and name.startswith(_NEGOTIATE):
                negotiated = (name.removeprefix(_NEGOTIATE), began_s, at_s)
                if len({rank for _, rank in ready}) > 1 and negotiated[0] not in _UNTIMED:
                    last[max(ready)[1]] += 1
                ready = []
            elif not stack:
                span = negotiated[1:] if negotiated and negotiated[0] == name else None
                found.append(_Collective(tensor, name, span, began_s, at_s, activities))
                negotiated = None
        elif kind == "E" and negotiated and negotiated[0] in _UNTIMED:  # a barrier has no begin of its own
            found.append(_Collective(tensor, negotiated[0], negotiated[1:], negotiated[2], at_s))
            negotiated = None
        else:
            stray += 1
    return bool(stack), stray


def _pieces(each: _Collective) -> list[tuple[str, str, float, float]]:
    """Return (phase, activity, begin, end) of a collective: they tile it from its first moment to its last."""
    pieces = []
    if each.negotiated is not None:
        begin, end = each.negotiated
        pieces.append(("negotiation", f"{_NEGOTIATE}{each.kind}", begin, end))
        pieces.append(("queue", "between negotiation and begin", end, each.begin))
    at = each.begin
    for activity, begin, end in each.activities:
        pieces.append(("rest", "in no activity", at, begin))
        phase = next((name for name, form in _ACTIVITIES.items() if re.match(form, activity)), "other")
        pieces.append((phase, activity, begin, end))
        at = end
    if each.kind not in _UNTIMED or each.end > at:
        pieces.append(("rest", "in no activity", at, each.end))
    return pieces


def _table(pieces: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return one row per (tensor, collective, phase, activity), tensors in the order of the file, barriers last.

    A piece that comes in several parts of a collective, such as the rest, is one time: count is of collectives.
    """
    by = ["tensor", "collective", "phase", "activity"]
    each = pieces.groupby([*by, "place"], sort=False)["s"].sum().groupby(level=by, sort=False)
    table = pd.DataFrame({
        "count": each.count(), "mean_s": each.mean(), "median_s": each.median(), "p90_s": each.quantile(0.9),
        "total_s": each.sum(),
    }).reset_index()  # fmt: skip
    of_tensor = table.groupby(["tensor", "collective"], sort=False)
    whole = of_tensor["total_s"].transform("sum")
    table = table.assign(per_step_s=table["total_s"] / steps, share=(table["total_s"] / whole).where(whole > 0, 0.0))
    order = (table["phase"].map(PHASES.index), of_tensor.ngroup(), table["collective"].isin(_UNTIMED))
    return table.iloc[np.lexsort(order)].reset_index(drop=True)


# ------------------------------------------------------------------------------------- recorded steps as such events


def events(
    rows: Mapping[int, pd.DataFrame],
    hosts: Mapping[int, str],
    *,
    evaluations: Sequence[Mapping[str, float]] = (),
    warmup_steps: int = 0,
) -> list[dict[str, Any]]:
    """Return the events of `rows`, {rank: step rows}, in the order of ranks and steps: complete ones "X", metadata "M",
    instants "i", in microseconds ("Trace Event Format", Google).

    A step is one event with its laps inside, placed one after the other from its begin: they tile it. Its residual is
    between the step before and its begin, where the row shows a gap. Laps that are not known are left out. A row per
    rank (thread) below a group per host (process). Evaluations, rows of epochs.csv, are instants on the row of rank 0.
    """
    places = list(dict.fromkeys(hosts[rank] for rank in sorted(rows)))
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": place, "tid": 0, "args": {"name": host}}
        for place, host in enumerate(places)
    ]
    threads = {rank: {"pid": places.index(hosts[rank]), "tid": rank} for rank in sorted(rows)}
    for rank, row in threads.items():
        found.append({"ph": "M", "name": "thread_name", **row, "args": {"name": f"rank {rank}"}})
    for rank, row in threads.items():
        known = [lap for lap in LAPS if rows[rank][f"{lap}_s"].notna().any()]
        for step in rows[rank].to_dict("records"):
            whole: dict[str, Any] = {name: int(step[name]) for name in ("step", "epoch", "samples")}
            if math.isfinite(step["loss"]):
                whole["loss"] = float(step["loss"])
            if step["step"] < warmup_steps:
                whole["excluded"] = True
            at, number = float(step["begin_s"]), {"step": int(step["step"])}
            laps = {lap: float(step[f"{lap}_s"]) for lap in known}
            spans = [("step", "step", at, sum(laps.values()), whole)]
            for lap, seconds in laps.items():
                spans.append((lap, "lap", at, seconds, number))
                at += seconds
            for name, kind, begin_s, seconds, shown in spans:
                when = {"ts": round(begin_s * 1e6, 3), "dur": round(seconds * 1e6, 3)}
                found.append({"ph": "X", "name": name, "cat": kind, **when, **row, "args": shown})
    if 0 in rows and len(rows[0]):
        first, last = rows[0]["begin_s"].iloc[0], rows[0]["begin_s"].iloc[-1]
        for each in evaluations:
            if first <= each["wall_s"] <= last:
                shown = {name: each[name] for name in ("epoch", "train_mse", "test_mse")}
                instant = {"ph": "i", "name": "evaluation", "s": "t", "ts": round(each["wall_s"] * 1e6, 3)}
                found.append({**instant, **threads[0], "args": shown})
    return found
