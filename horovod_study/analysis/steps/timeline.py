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
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.errors import AnalysisError
from horovod_study.text.words import plural

PHASES = ("negotiation", "queue", "copy", "operation", "other", "rest")
"""In the order of a collective; `rest` is scattered in it."""

_FURTHEST = ("operation", "copy", "other", "rest", "queue", "negotiation")
"""Which phase a moment counts for when tensors are in several."""

_NEGOTIATE = "NEGOTIATE_"
_UNTIMED = ("BARRIER", "JOIN")  # collectives that move nothing: listed, but no part of `together`

_COLUMNS = (
    *("tensor", "collective", "phase", "activity", "count", "mean_s", "median_s", "p90_s"),
    *("total_s", "per_step_s", "share"),
)

_OPERATION = re.compile(
    r"(MPI|GLOO|NCCL|CCL|DDL|ADASUM|HIERARCHICAL|XLA)[A-Z_]*_?(ALLREDUCE|ALLGATHERV?|BROADCAST|BCAST|ALLTOALLV?|REDUCESCATTER|REDUCE|ADASUM)"
)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One timeline file, decomposed. Times in s."""

    DOCUMENT = "steps collectives busy_s together=shares operations cycles last_rank=last tensors table doubts"

    table: pd.DataFrame  # one row per (tensor, collective, phase, activity); share is of the tensor's collective
    tensors: pd.DataFrame  # tensor, collectives, and the mean of a collective's phases in s; the longest first
    together: dict[str, float]  # phase -> s per step, each moment counted once; they add up to `busy_s`
    steps: int  # the largest count of collectives of one tensor
    collectives: int  # of all tensors, without barriers
    operations: dict[str, int]  # activity -> how many of them, tensors reduced together counted once
    cycles: dict[str, float | int | None]  # count, median_s between two
    last: dict[int, int] | None  # rank -> how many negotiations (no barriers) it was the last in; None: not recorded
    doubts: tuple[str, ...] = field(default=())

    @property
    def busy_s(self) -> float:
        """Seconds per step in which at least one tensor is under way."""
        return math.fsum(self.together.values())

    @property
    def shares(self) -> dict[str, Any]:
        """Each phase per step, and its share of the time in which a tensor is under way."""
        return {
            name: {"per_step_s": value, "share": value / self.busy_s if self.busy_s else None}
            for name, value in self.together.items()
        }


@dataclass(kw_only=True)
class _Collective:
    tensor: str
    kind: str
    negotiated: tuple[float, float] | None
    begin: float
    end: float = math.nan
    activities: list[tuple[str, float, float]] = field(default_factory=list)


def parse_events(text: str, *, source: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the events of a timeline file, and what is to be doubted about it.

    Horovod adds the closing bracket again with each event, and a process that is killed leaves a file without one, or
    with half an event: what comes before is read. Raises AnalysisError, which names `source`, where nothing is.
    """
    again = "record it again with train --timeline-steps 50, over Horovod"
    doubts, why = [], "is JSON, but no list of events, as a timeline is"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content, place = _whole_events(text)
        empty = "is empty: Horovod recorded no event"
        why = f"is not JSON (from character {place + 1} on)" if text.strip() else empty
        doubts.append(
            f"the file breaks off or is damaged at character {place + 1:,} of {len(text):,}; the {len(content):,} "
            "events before it are used"
        )
    if isinstance(content, dict):  # Chrome's other form, which some tools write
        content = content.get("traceEvents")
    if not isinstance(content, list) or (doubts and not content) or not all(isinstance(each, dict) for each in content):
        raise AnalysisError(f"{source}: {why}; {again}")
    return content, doubts


def _whole_events(text: str) -> tuple[list[Mapping[str, Any]], int]:
    """Return the events before the first place that is no event, and that place."""
    decoder = json.JSONDecoder()
    separator = re.compile(r"[\s,\[]*")
    events: list[Mapping[str, Any]] = []
    place = 0
    while True:
        match = separator.match(text, place)
        assert match is not None
        place = match.end()
        try:
            event, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return events, place
        if not isinstance(event, dict):
            return events, place
        events.append(event)


def decompose(events: Sequence[Mapping[str, Any]], *, source: str, doubts: Iterable[str] = ()) -> Timeline:
    """Return what the events of a timeline say. Raises AnalysisError where they hold no collective."""
    reader = _EventReader()
    for event in events:
        reader.read(event)
    found = reader.collectives
    if not found:
        raise AnalysisError(
            f"{source}: holds {plural(len(events), 'event', ',')}, but no complete collective; record more "
            "steps, with two workers or more over Horovod"
        )
    counts = Counter((each.tensor, each.kind) for each in found if each.kind not in _UNTIMED)
    steps = max(counts.values(), default=max(Counter(each.tensor for each in found).values()))
    pieces = [(each, *piece) for each in found for piece in _pieces(each)]
    moved = [piece for piece in pieces if piece[0].kind not in _UNTIMED]
    return Timeline(
        table=_table(pieces, steps),
        tensors=_tensors(moved),
        together=_together([(phase, begin, end) for _, phase, _, begin, end in moved], steps),
        steps=steps,
        collectives=sum(counts.values()),
        operations=_operations(moved),
        cycles={
            "count": len(reader.cycles),
            "median_s": float(np.median(np.diff(reader.cycles))) if len(reader.cycles) > 1 else None,
        },
        last=dict(sorted(reader.last.items())) or None,
        doubts=(*doubts, *reader.doubts(len(found))),
    )


class _EventReader:
    """Turns events, in the order of the file, into collectives."""

    def __init__(self) -> None:
        self.collectives: list[_Collective] = []
        self.cycles: list[float] = []
        self.last: Counter[int] = Counter()
        self._names: dict[Any, str] = {}
        self._open: dict[Any, list[tuple[str, float]]] = defaultdict(list)
        self._current: dict[Any, _Collective] = {}
        self._negotiated: dict[Any, tuple[str, float, float]] = {}
        self._ready: dict[Any, list[tuple[float, int]]] = defaultdict(list)
        self._stray = self._unknown = 0

    def read(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, pid, name = event.get("ph"), event.get("pid"), str(event.get("name", ""))
        if isinstance(pid, dict | list):
            self._unknown += 1
            return
        if kind == "M":
            if name == "process_name" and isinstance(event.get("args"), dict):
                self._names[pid] = str(event["args"].get("name", pid))
            return
        at = event.get("ts")
        if not isinstance(at, int | float) or isinstance(at, bool) or not abs(at) < 1e16:  # us: three hundred years
            self._unknown += 1
            return
        at_s = at / 1e6
        if kind == "B":
            self._begin(pid, name, at_s)
        elif kind == "E":
            self._end(pid, at_s)
        elif kind in ("i", "I") and name == "CYCLE_START":
            self.cycles.append(at_s)
        elif kind == "X" and name.isdecimal() and len(name) < 10:
            if self._open[pid]:
                self._ready[pid].append((at_s, int(name)))
            else:
                self._stray += 1
        else:
            self._unknown += 1

    def _begin(self, pid: Any, name: str, at_s: float) -> None:
        open_here = self._open[pid]
        if not open_here and not name.startswith(_NEGOTIATE):
            negotiated = self._negotiated.pop(pid, None)
            span = negotiated[1:] if negotiated and negotiated[0] == name else None
            tensor = self._names.get(pid, f"process {pid}")
            self._current[pid] = _Collective(tensor=tensor, kind=name, negotiated=span, begin=at_s)
        open_here.append((name, at_s))

    def _end(self, pid: Any, at_s: float) -> None:
        open_here = self._open[pid]
        if not open_here:
            # A barrier ends without a begin of its own; any other collective began before the recording.
            kind, *span = self._negotiated.pop(pid, ("", 0.0, 0.0))
            if kind not in _UNTIMED:
                self._stray += 1
                return
            tensor, times = self._names.get(pid, f"process {pid}"), (span[0], span[1])
            self.collectives.append(_Collective(tensor=tensor, kind=kind, negotiated=times, begin=span[1], end=at_s))
            return
        name, began_s = open_here.pop()
        if open_here:
            current = self._current.get(pid)
            if current is not None and len(open_here) == 1:
                current.activities.append((name, began_s, at_s))
        elif name.startswith(_NEGOTIATE):
            self._negotiated[pid] = (name.removeprefix(_NEGOTIATE), began_s, at_s)
            ready = self._ready.pop(pid, [])
            if len({rank for _, rank in ready}) > 1 and self._negotiated[pid][0] not in _UNTIMED:
                self.last[max(ready)[1]] += 1
        else:
            current = self._current.pop(pid)
            current.end = at_s
            self.collectives.append(current)

    def doubts(self, whole: int) -> list[str]:
        """Return what of the file is not in the collectives."""
        cut = sum(1 for stack in self._open.values() if stack)
        left_out = (
            (cut, "collective or negotiation", "that the end of the file cuts"),
            (self._stray, "event", "of what began before the file"),
            (self._unknown, "event", "of a kind that Horovod 0.28 does not write"),
        )
        found = [f"left out: {plural(count, what, ',')} {of}" for count, what, of in left_out if count]
        if alone := sum(1 for each in self.collectives if each.negotiated is None):
            known = plural(whole, "collective", ",")
            found.append(f"without a negotiation in the file, which counts as 0: {alone} of {known}")
        return found


def _phase_of(activity: str) -> str:
    if activity.startswith(("MEMCPY_", "COPY_")):
        return "copy"
    if activity in ("QUEUE", "WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA"):
        return "queue"
    return "operation" if _OPERATION.fullmatch(activity) else "other"


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
        pieces.append((_phase_of(activity), activity, begin, end))
        at = end
    if each.kind not in _UNTIMED or each.end > at:
        pieces.append(("rest", "in no activity", at, each.end))
    return pieces


def _table(pieces: Sequence[tuple[_Collective, str, str, float, float]], steps: int) -> pd.DataFrame:
    """Return one row per (tensor, collective, phase, activity), tensors in the order of the file, barriers last.

    A piece that comes in several parts of a collective, such as the rest, is one time: count is of collectives.
    """
    times: dict[tuple[str, str], dict[tuple[str, str], dict[int, float]]] = {}
    for each, phase, activity, begin, end in pieces:
        of_tensor = times.setdefault((each.tensor, each.kind), {})
        of_piece = of_tensor.setdefault((phase, activity), {})
        of_piece[id(each)] = of_piece.get(id(each), 0.0) + (end - begin)
    rows = []
    for (tensor, kind), of_tensor in sorted(times.items(), key=lambda item: item[0][1] in _UNTIMED):
        whole = math.fsum(value for values in of_tensor.values() for value in values.values())
        for phase, activity in sorted(of_tensor, key=lambda key: PHASES.index(key[0])):
            values = np.array(list(of_tensor[phase, activity].values()))
            total = float(values.sum())
            typical = float(values.mean()), float(np.median(values)), float(np.quantile(values, 0.9))
            sums = total, total / steps, total / whole if whole > 0 else 0.0
            rows.append((tensor, kind, phase, activity, len(values), *typical, *sums))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _tensors(pieces: Sequence[tuple[_Collective, str, str, float, float]]) -> pd.DataFrame:
    sums: dict[str, dict[str, float]] = {}
    collectives: dict[str, set[int]] = defaultdict(set)
    for each, phase, _, begin, end in pieces:
        of_tensor = sums.setdefault(each.tensor, dict.fromkeys(PHASES, 0.0))
        of_tensor[phase] += end - begin
        collectives[each.tensor].add(id(each))
    rows: list[dict[str, Any]] = [
        {"tensor": tensor, "collectives": len(collectives[tensor])}
        | {f"{phase}_s": value / len(collectives[tensor]) for phase, value in of_tensor.items()}
        for tensor, of_tensor in sums.items()
    ]
    rows.sort(key=lambda row: -math.fsum(float(row[f"{phase}_s"]) for phase in PHASES))
    return pd.DataFrame(rows, columns=["tensor", "collectives", *(f"{phase}_s" for phase in PHASES)])


def _together(pieces: Sequence[tuple[str, float, float]], steps: int) -> dict[str, float]:
    """Return the seconds per step of each phase, each moment counted once for the phase that is furthest on."""
    edges = sorted(
        edge for phase, begin, end in pieces if end > begin for edge in ((begin, 1, phase), (end, -1, phase))
    )
    active = dict.fromkeys(_FURTHEST, 0)
    totals = dict.fromkeys(PHASES, 0.0)
    before = math.nan
    for at, change, phase in edges:
        furthest = next((name for name in _FURTHEST if active[name]), None)
        if furthest is not None:
            totals[furthest] += at - before
        active[phase] += change
        before = at
    return {name: total / steps for name, total in totals.items()}


def _operations(pieces: Sequence[tuple[_Collective, str, str, float, float]]) -> dict[str, int]:
    """Return how many operations of each name there were: of tensors reduced together, one.

    Their times in the file differ by the microseconds that writing them takes, so they overlap.
    """
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _, phase, activity, begin, end in pieces:
        if phase == "operation":
            spans[activity].append((begin, end))
    counts = {}
    for activity, times in sorted(spans.items()):
        count, reached = 0, -math.inf
        for begin, end in sorted(times):
            count += begin >= reached
            reached = max(reached, end)
        counts[activity] = count
    return counts
