"""Traces of torch.profiler (Kineto), one of each rank: laps and communication of a step, what is exposed, who is late.

Steps are the ranges ProfilerStep#N (profiler.step() makes them); without them those between ends of Optimizer.step;
else the whole trace is one. In a step of a rank, on the thread that ran the operators:

    data         from its begin to the first range X.forward, or the first operator that autograd notes
    forward      to the first node of the backward graph
    backward     to the first Optimizer.step
    update       to the end of the last Optimizer.step
    rest         to the end of the step

Communication are the kernels of NCCL or RCCL where a trace has kernels, else the ranges gloo:all_reduce and alike.
Exposed is what of it no computing covers: no other kernel; on a processor no operator, up to the next operator, which
the end of the collective lets run. A collective that every rank takes part in ends on all at about the same time, so
the median difference of ends is the difference of two clocks; with it, begins are compared: the lateness of a rank is
its begin less the first one's, the mean over the collectives of a step.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.errors import AnalysisError
from horovod_study.records import facts, finite

LAPS = ("data", "forward", "backward", "update", "rest")
FEW_STEPS = 10
_MAX_US = 1e17

_STEP = re.compile(r"ProfilerStep#(\d+)")
_RANGE = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):(\w+)")
_KINDS = re.compile("AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll")
_TOGETHER = frozenset({"allreduce", "allgather", "reducescatter", "barrier"})
"""Collectives that end on all ranks together; a broadcast lets its root go first."""


@dataclass(slots=True)
class _RankTrace:
    """What is kept of the trace of one rank; times in s."""

    source: str
    rank: int
    world: int | None
    host: str
    on_gpu: bool
    steps: list[tuple[float, float]]
    marks: dict[str, Floats]  # name of a mark -> its moments, sorted: forward, backward, update, updated
    computing: Floats  # (K, 2), merged
    collectives: list[tuple[float, float, str, bool]]  # begin, end, kind, whether all ranks end it together
    one_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankView:
    """One rank, in s per step: means over its steps with 95 % intervals."""

    rank: int
    host: str
    steps: int
    last: float | None  # share of the steps in which it was the last one
    offset_s: float | None  # of its clock, by the ends of collectives
    seconds: Mapping[str, Interval]  # step, LAPS, communication, exposed, late


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraces:
    """What the traces of all ranks say together."""

    ranks: tuple[_RankView, ...]
    on_gpu: bool
    late: _RankView | None  # the rank that is later than the others, beyond doubt
    cause: str  # the lap of it that is longest compared with the others'
    doubts: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        late = None if self.late is None else self.late.rank
        return {"ranks": finite(self.ranks), "late": late, **facts(self, "on_gpu", "cause", "doubts")}


# ----------------------------------------------------------------------------------------------------------- reading


def read_trace(document: Mapping[str, Any], *, source: str) -> _RankTrace:
    """Return what is needed of a trace. Raises AnalysisError where it holds no step with operators or kernels."""
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise AnalysisError(f"{source}: has no list traceEvents; give what torch.profiler's export_chrome_trace wrote")
    told = document.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    base = document.get("baseTimeNanoseconds")
    base_s = base / 1e9 if isinstance(base, int | float) and abs(base) < 1e20 else 0.0
    found = _TraceEvents()
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X":
            found.add(event, base_s)
    on_gpu = bool(found.kernels)
    computing = merged(found.kernels if on_gpu else found.operators)
    steps = found.steps()
    if not steps or not len(computing):
        raise AnalysisError(f"{source}: holds no operators or kernels in a step; profile several steps of training")
    rank = told.get("rank")
    return _RankTrace(
        source=source,
        rank=rank if type(rank) is int else _rank_of(source),
        world=told.get("world_size") if type(told.get("world_size")) is int else None,
        host=str(document.get("host_name") or ""),
        on_gpu=on_gpu,
        steps=steps,
        marks={name: np.sort(np.asarray(each, dtype=np.float64)) for name, each in found.marks.items()},
        computing=computing,
        collectives=sorted(found.nccl if found.nccl else found.ranges),
        one_step=not found.profiled and not len(found.marks["updated"]),
    )


class _TraceEvents:
    """Sorts the events of a trace by what they are."""

    def __init__(self) -> None:
        self.profiled: list[tuple[float, float]] = []
        self.operators: list[tuple[float, float]] = []
        self.kernels: list[tuple[float, float]] = []
        self.nccl: list[tuple[float, float, str, bool]] = []
        self.ranges: list[tuple[float, float, str, bool]] = []
        self.marks: dict[str, list[float]] = {"forward": [], "backward": [], "update": [], "updated": []}

    def add(self, event: Mapping[str, Any], base_s: float) -> None:
        """Take an event with a begin and a duration."""
        name, kind = str(event.get("name")), event.get("cat")
        at, took = event.get("ts"), event.get("dur")
        if not (isinstance(at, int | float) and isinstance(took, int | float) and 0 <= took < _MAX_US > abs(at)):
            return
        begin = base_s + at / 1e6
        span = (begin, begin + took / 1e6)
        told = event.get("args")
        told = told if isinstance(told, dict) else {}
        if kind == "kernel":
            if name.startswith(("nccl", "rccl")):
                match = _KINDS.search(name)
                self.nccl.append((*span, *_kind(match[0] if match else str(told.get("Collective name")), told)))
            else:
                self.kernels.append(span)
        elif kind == "user_annotation":
            self._range(name, span, told)
        elif kind == "cpu_op" and not (name.startswith("c10d::") or _RANGE.match(name)):
            self.operators.append(span)
            if name.startswith("autograd::engine::evaluate_function"):
                self.marks["backward"].append(span[0])
            elif "Sequence number" in told and "Backward" not in name:
                self.marks["forward"].append(span[0])

    def _range(self, name: str, span: tuple[float, float], told: Mapping[str, Any]) -> None:
        if _STEP.fullmatch(name):
            self.profiled.append(span)
        elif match := _RANGE.match(name):
            self.ranges.append((*span, *_kind(match[1], told)))
        elif name.startswith("Optimizer.step#"):
            self.marks["update"].append(span[0])
            self.marks["updated"].append(span[1])
        elif name.endswith(".forward"):
            self.marks["forward"].append(span[0])

    def steps(self) -> list[tuple[float, float]]:
        """Return begin and end of the steps, in order; each ends where the next one begins."""
        begins = sorted(self.profiled)
        if begins:
            return [
                (one[0], min(one[1], after[0]))
                for one, after in zip(begins, [*begins[1:], begins[-1][1:]], strict=True)
            ]
        spans = self.operators + self.kernels
        if not spans:
            return []
        first, last = min(span[0] for span in spans), max(span[1] for span in spans)
        ends = sorted(self.marks["updated"])
        return list(zip([first, *ends[:-1]], ends, strict=True)) if ends else [(first, last)]


def _kind(name: str, told: Mapping[str, Any]) -> tuple[str, bool]:
    plain = name.replace("_", "").lower().removesuffix("base")
    group, world = told.get("Group size"), told.get("Process Group Ranks")
    everybody = not (isinstance(group, int) and isinstance(world, str) and world.count(",") + 1 < group)
    return plain, plain in _TOGETHER and everybody


def _rank_of(source: str) -> int:
    found = re.findall(r"\d+", re.sub(r"\.json.*$|\.pt\.trace.*$", "", source.rpartition("/")[2]))
    if not found:
        raise AnalysisError(f"{source}: neither it nor its name says which rank it is of; name it rank0.json")
    return int(found[0])


# ----------------------------------------------------------------------------------------------------------- spans


def merged(spans: Iterable[tuple[float, float]]) -> Floats:
    """Return the union of spans as disjoint spans in order, (K, 2)."""
    table = np.array(sorted(spans), dtype=np.float64).reshape(-1, 2)
    if not len(table):
        return table
    reached = np.maximum.accumulate(table[:, 1])
    fresh = np.concatenate([[True], table[1:, 0] > reached[:-1]])
    places = np.flatnonzero(fresh)
    return np.stack([table[places, 0], reached[np.append(places[1:] - 1, len(table) - 1)]], axis=1)


def covered(spans: Floats, begin: float, end: float) -> float:
    """Return how much of [begin, end] the disjoint `spans`, (K, 2), cover."""
    return float(np.clip(np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin), 0.0, None).sum())


def uncovered(spans: Floats, cover: Floats) -> Floats:
    """Return what of the disjoint `spans`, (K, 2), no span of the disjoint `cover`, (C, 2), covers."""
    edges = [(at, place) for span in spans for at, place in ((span[0], 1), (span[1], -1))]
    edges += [(at, place) for span in cover for at, place in ((span[0], 2), (span[1], -2))]
    edges.sort()
    inside = outside = 0
    found, since = [], 0.0
    for at, what in edges:
        if inside and not outside and at > since:
            found.append((since, at))
        inside, outside = inside + (what if abs(what) == 1 else 0), outside + (what // 2 if abs(what) == 2 else 0)
        since = at
    return np.array(found, dtype=np.float64).reshape(-1, 2)


# ----------------------------------------------------------------------------------------------------------- ranks


def compare(traces: Sequence[_RankTrace]) -> RankTraces:
    """Return what traces of the ranks of one job say. Raises AnalysisError for two of one rank."""
    ordered = sorted(traces, key=lambda each: each.rank)
    for one, other in pairwise(ordered):
        if one.rank == other.rank:
            raise AnalysisError(f"{one.source} and {other.source}: are both of rank {one.rank}; give one job's traces")
    late, offsets, notes = _lateness(ordered)
    latest = np.stack(list(late.values())).argmax(axis=0) if late else np.empty(0)  # by their places in `late`
    views = []
    for place, each in enumerate(ordered):
        columns = _per_step(each) | ({"late": late[each.rank]} if late else {})
        view = _RankView(
            rank=each.rank,
            host=each.host,
            steps=len(each.steps),
            seconds={name: stats.student(values) for name, values in columns.items() if len(values)},
            last=float(np.mean(latest == place)) if late else None,
            offset_s=offsets.get(each.rank),
        )
        views.append(view)
    slow, cause = _slowest(views)
    doubts = (*notes, *_doubts(ordered))
    return RankTraces(ranks=tuple(views), on_gpu=ordered[0].on_gpu, late=slow, cause=cause, doubts=doubts)


def _per_step(trace: _RankTrace) -> dict[str, Floats]:
    """Return the parts of every step of a rank, (S,)."""
    spans = merged((begin, end) for begin, end, _, _ in trace.collectives)
    bare = spans
    if not trace.on_gpu and len(spans):
        # What waits for a collective goes on a little after its end: up to the next operator it is waiting.
        after = np.searchsorted(trace.computing[:, 0], spans[:, 1])
        next_s = np.append(trace.computing[:, 0], np.inf)[after]
        ends = [next((end for begin, end in trace.steps if begin <= at < end), at) for at in spans[:, 1]]
        bare = merged(zip(spans[:, 0], np.maximum(spans[:, 1], np.minimum(next_s, ends)), strict=True))
    bare = uncovered(bare, trace.computing)
    rows: dict[str, list[float]] = {name: [] for name in ("step", *LAPS, "communication", "exposed")}
    for begin, end in trace.steps:
        rows["step"].append(end - begin)
        rows["communication"].append(covered(spans, begin, end))
        rows["exposed"].append(covered(bare, begin, end))
        at = begin
        for lap, until in zip(LAPS, (*_marks(trace, begin, end), end), strict=True):
            rows[lap].append(max(0.0, until - at))
            at = max(at, until)
    return {name: np.asarray(values) for name, values in rows.items()}


def _marks(trace: _RankTrace, begin: float, end: float) -> tuple[float, float, float, float]:
    """Return the moments in a step at which forward, backward and update begin, and the update ends."""

    def within(name: str) -> NDArray[np.float64]:
        moments = trace.marks[name]
        return moments[(moments >= begin) & (moments <= end)]

    backward, updates, updated = within("backward"), within("update"), within("updated")
    to_update = float(updates[0]) if len(updates) else float(end)
    to_backward = float(backward[0]) if len(backward) else to_update
    forward = within("forward")
    to_forward = min(float(forward[0]) if len(forward) else begin, to_backward)
    return to_forward, to_backward, to_update, float(updated[-1]) if len(updated) else to_update


def _lateness(traces: Sequence[_RankTrace]) -> tuple[dict[int, Floats], dict[int, float], list[str]]:
    """Return the lateness of each rank in each common step, (S,), offsets of clocks, and what is to be said."""
    if len(traces) < 2:
        return {}, {}, ["one rank only: who is late is unknown; give the traces of all ranks"]
    steps = min(len(each.steps) for each in traces)
    matched: list[tuple[int, Floats, Floats]] = []  # step, begins (R,), ends (R,)
    uneven = 0
    for place in range(steps):
        rows = []
        for each in traces:
            begin, end = each.steps[place]
            rows.append([one for one in each.collectives if begin <= one[0] < end and one[3]])
        count = min(len(row) for row in rows)
        alike = len({tuple(one[2] for one in row[:count]) for row in rows}) == 1
        uneven += not alike or len({len(row) for row in rows}) > 1
        for k in range(count if alike else 0):
            matched.append((place, np.array([row[k][0] for row in rows]), np.array([row[k][1] for row in rows])))
    notes = [f"{uneven} of {steps} steps have other collectives on one rank than on another"] if uneven else []
    if not matched:
        return {}, {}, [*notes, "no collective that all ranks took part in was found: who is late is unknown"]
    offsets = np.median(np.stack([ends - ends[0] for _, _, ends in matched]), axis=0)  # (R,)
    found: dict[int, list[Floats]] = {}
    for place, begins, _ in matched:
        own = begins - offsets
        found.setdefault(place, []).append(own - own.min())
    table = np.stack([np.mean(found[place], axis=0) for place in sorted(found)])  # (S, R)
    ranks = [each.rank for each in traces]
    return dict(zip(ranks, table.T, strict=True)), dict(zip(ranks, offsets.tolist(), strict=True)), notes


def _slowest(views: Sequence[_RankView]) -> tuple[_RankView | None, str]:
    """Return the rank that is later than each of the others beyond doubt, and which of its laps is the longer one."""
    known = [each for each in views if "late" in each.seconds]
    if len(known) < 2:
        return None, ""
    first, second, *_ = sorted(known, key=lambda each: -each.seconds["late"].value)
    if not first.seconds["late"].low > second.seconds["late"].value or first.seconds["late"].value <= 0:
        return None, ""
    others = [each for each in known if each is not first]

    def longer(lap: str) -> float:
        # What a rank waits in backward is not its own time.
        own, theirs = (
            [each.seconds[lap].value - (each.seconds["exposed"].value if lap == "backward" else 0.0) for each in some]
            for some in ((first,), others)
        )
        return own[0] - float(np.median(theirs))

    return first, max(LAPS, key=longer)


def _doubts(traces: Sequence[_RankTrace]) -> Iterator[str]:
    steps = min(len(each.steps) for each in traces)
    if any(each.one_step for each in traces):
        yield "no ProfilerStep# and no Optimizer.step in it: the whole trace counts as one step"
    elif steps < FEW_STEPS:
        yield f"{steps} steps are few: profile {FEW_STEPS} or more, after a warm-up"
    worlds = {each.world for each in traces} - {None}
    if len(worlds) == 1 and len(traces) < (world := worlds.pop() or 0):
        yield f"{len(traces)} of {world} ranks are here: the late one may be another"
    if len({each.on_gpu for each in traces}) > 1:
        yield "some traces have kernels of a GPU and some have none; profile all ranks alike"
    if traces[0].on_gpu:
        yield (
            "laps are of the host, which runs ahead of the GPU; communication and exposed are of the GPU, in the step "
            "in whose time they ran"
        )
    if not any(each.collectives for each in traces):
        yield "no communication was found: Horovod's and MPI's own is not in a trace of a processor"
