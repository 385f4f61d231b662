"""What torch.profiler (Kineto) and NCCL Inspector wrote, one file of each rank: found, read, and put side by side.

**Traces.** Steps are the ranges ProfilerStep#N; without them those between ends of Optimizer.step; else the whole trace
is one. The laps of a step are of the host:

    data         from its begin to the first range X.forward, or the first operator that autograd notes
    forward      to the first node of the backward graph
    backward     to the first Optimizer.step
    update       to the end of the last Optimizer.step
    rest         to the end of the step

A device works behind the host: its kernels are of the step that launched them, by their correlation or else by their
order, and its step is from the first kernel of one step to that of the next. Communication are the kernels of NCCL,
RCCL and alike; without a device the ranges gloo:all_reduce and alike; ranges nccl:... only launch. Exposed is what of
it no other kernel, without a device no operator, covers. A collective that every rank takes part in ends on all at
about the same time, so the median difference of ends is the difference of two clocks; with it, begins are compared:
the lateness of a rank is its begin less the first one's, the mean over the collectives of a step.

**Inspector** is a profiler plugin of NCCL and RCCL. Each process writes a line of JSON for each of its collectives. A
kernel begins when its rank is there and ends on all ranks at about the same time. So the shortest time of a collective
is that of the rank that came last, which waits for nobody: the transfer. What another rank takes beyond it is waiting,
and the longest time less its own is how late a rank came. No clocks are compared.
"""

import gzip
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.costs import moved_share
from horovod_study.analysis.impossible import impossible
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.documents import MAX_JSON_BYTES, open_file, parse_json, shown
from horovod_study.errors import AnalysisError, DataError
from horovod_study.records import RecordedRun

LAPS = ("data", "forward", "backward", "update", "rest")
COLUMNS = ("step", *LAPS, "communication", "exposed", "late")
FEW_STEPS = 10

# ---- the forms of a trace: categories in small letters, names of events, fields of `args`; times are in us

_CATEGORIES = {"cpu_op": "host", "operator": "host", "user_annotation": "range", "kernel": "kernel"}
_CATEGORIES |= dict.fromkeys(("runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime"), "launch")
_CATEGORIES |= dict.fromkeys(("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"), "launch")
_ROLES = {  # of operators and ranges, the first that fits
    "step": re.compile(r"ProfilerStep#(\d+)$"),
    "update": re.compile(r"Optimizer\.step#"),
    "waits": re.compile(r"(?:gloo|mpi|ucc):(\w+)"),  # the range lasts as long as the collective
    "calls": re.compile(r"(?:[nrhx]ccl):(\w+)|record_param_comms|c10d::"),  # it only launches kernels
    "backward": re.compile(r"autograd::engine::evaluate_function|\w*Backward\d*$"),
    "forward": re.compile(r".*\.forward$"),
}
_COLLECTIVE = re.compile(r"[^(<]*?(?:[nrhx]ccl|msccl|oneccl|(?:one|two)_shot_all|multimem_all|cross_device_red)", re.I)
_WORDS = (
    "all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|barrier|send_?recv|send|recv|reduce|gather|scatter"
)
_WORD = re.compile(_WORDS, re.I)
_TOGETHER = ("allreduce", "allgather", "reducescatter", "barrier")  # a broadcast lets its root go first
_DEVICE_BACKEND = re.compile("[nrhx]ccl")
_US, _MAX_US = 1e-6, 1e17

_RANK = re.compile(r"(?<!local[_-])(?<!node[_-])(?<![tpdec]p[_-])(?<![a-z])rank[ _=.-]?\[?(\d+)", re.I)
_HANDLER = re.compile(r"_\d+\.\d+(?:\.\d+)?\.pt\.trace\.json")  # HOST_PID.TIME of tensorboard_trace_handler

_ENDS = {"trace": (".json", ".json.gz"), "inspector": (".log", ".jsonl", ".log.gz", ".jsonl.gz")}
_MARKS = {
    "trace": (b'"traceEvents"', b'"schemaVersion"'),
    "inspector": (b'"inspector_output_format_version"', b'"coll_perf"', b'"p2p_perf"'),
}
_BROKEN = (OSError, EOFError, zlib.error)

# ----------------------------------------------------------------------------------------------------------- files


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with open_file(path) as stream:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if path.name.endswith(".gz") else stream


def _begins(path: Path, kind: str) -> bool:
    try:
        with _opened(path) as stream:
            head = stream.read(4096)
    except _BROKEN:
        return False
    return any(mark in head for mark in _MARKS[kind])


def trace_paths(place: Path) -> list[Path]:
    """Return the traces that a place names: itself, or the files *.json and *.json.gz in a folder that begin as one.

    Empty for anything else: a study file, a run directory, a folder of them with a ledger beside them.
    """
    if place.is_dir():
        return sorted(path for path in place.iterdir() if path.name.endswith(_ENDS["trace"]) and _begins(path, "trace"))
    return [place] if place.name.endswith(_ENDS["trace"]) else []


def inspector_paths(place: Path) -> list[Path]:
    """Return the files of NCCL Inspector that a place names: itself, or those in a folder; empty for anything else.

    They are told by their first record; a process without one leaves an empty file HOST-pidNUMBER.log.
    """
    named = sorted(place.iterdir()) if place.is_dir() else [place]
    own = [path for path in named if path.name.endswith(_ENDS["inspector"]) and path.is_file()]
    empty = {path for path in own if re.search(r"-pid\d+\.", path.name) and path.stat().st_size == 0}
    return [path for path in own if path in empty or _begins(path, "inspector")]


def inspector_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of such a file, one after the other; an open bracket where a compressed one breaks off.

    Raises DataError where it is unreadable.
    """
    try:
        with _opened(path) as stream:
            while line := stream.readline(4_000_000):  # a record with all its events has some kB
                yield line
    except EOFError:
        yield b"{"
    except _BROKEN as problem:
        raise DataError(f"{shown(path)}: cannot be read ({problem}); name a file that NCCL Inspector wrote") from None


def trace_document(path: Path) -> Any:
    """Return the document of a trace, also of a compressed one; DataError where it is none, or too large."""
    again = "name a trace that torch.profiler exported; profile fewer steps where it is too large"
    try:
        with _opened(path) as stream:
            content = stream.read(MAX_JSON_BYTES + 1)
    except _BROKEN as problem:
        raise DataError(f"{shown(path)}: cannot be read ({problem}); {again}") from None
    if len(content) > MAX_JSON_BYTES:
        raise DataError(f"{shown(path)}: holds more than {MAX_JSON_BYTES:,} bytes; {again}")
    return parse_json(content, source=shown(path), error=DataError, again=again)


# ------------------------------------------------------------------------------------------------- a trace is read


@dataclass(slots=True)
class _Trace:
    """What is kept of the trace of one rank; times in s."""

    source: str
    rank: int | None  # as the document says
    world: int | None
    host: str
    on_gpu: bool
    labels: Sequence[int]  # numbers of the steps
    steps: Floats  # (S, 2), of the host
    parts: dict[str, Floats]  # (S,) each: COLUMNS but late; NaN for what is not known
    doubts: list[str]
    collectives: pd.DataFrame = field(default_factory=pd.DataFrame)  # begin, end, word, step, all


def read_trace(document: Any, *, source: str) -> _Trace:
    """Return what is needed of a trace. Raises AnalysisError where it holds no step with operators or kernels."""
    events, categories, doubts = _events(document, source)
    about = document if isinstance(document, Mapping) else {}
    told = about.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    rank, world = (int(each) if each >= 0 else None for each in _floats([told.get("rank"), told.get("world_size")]))
    labels, steps = _steps(events, doubts)
    kernels = events[events["kind"] == "kernel"]
    own = kernels if len(kernels) else events[(events["kind"] == "host") & events["role"].isin(("", "backward"))]
    if not len(steps) or not len(own):
        raise AnalysisError(
            f"{source}: holds no operators or kernels in a step (categories of its events: {categories}); profile "
            "several steps of training with torch.profiler"
        )
    parts = {"step": steps[:, 1] - steps[:, 0], **_laps(events, steps)}
    host = str(about.get("host_name") or "")
    trace = _Trace(source, rank, world, host, len(kernels) > 0, labels, steps, parts, doubts)
    launched = _launched(events, kernels)
    kernels = kernels.assign(step=_places(trace, kernels, launched), launched=launched)
    trace.collectives = _collectives(trace, events, kernels, str(told.get("backend")))
    parts["communication"], parts["exposed"] = np.full((2, len(steps)), np.nan)
    computing = merged(own.loc[own["role"] != "collective", ["begin", "end"]])
    counted = trace.collectives[trace.collectives["step"] >= 0]
    for place, rows in counted.groupby("step")[["begin", "end"]]:
        spans = merged(rows)
        parts["communication"][place] = length = float(np.diff(spans).sum())
        parts["exposed"][place] = length - covered(computing, spans)
    if len(counted):
        parts |= {name: np.nan_to_num(parts[name]) for name in ("communication", "exposed")}
    return trace


def _events(document: Any, source: str) -> tuple[pd.DataFrame, str, list[str]]:
    """Return the events of known categories by begin (kind, name, begin, end, args, role, word); all categories."""
    events = document.get("traceEvents") if isinstance(document, Mapping) else document
    if not isinstance(events, list):
        raise AnalysisError(f"{source}: has no list traceEvents; give what torch.profiler's export_chrome_trace wrote")
    events = [event for event in events if isinstance(event, dict)]
    categories = Counter(str(event["cat"]) for event in events if "cat" in event)
    kinds = {category: _CATEGORIES.get(category.lower()) for category in categories}
    rows = [
        (kind, str(event.get("name")), event.get("ts"), event.get("dur"), event.get("args"))
        for event in events
        if event.get("ph") == "X" and (kind := kinds.get(str(event.get("cat"))))
    ]
    kind, name, ts, dur, args = zip(*rows, strict=True) if rows else ((),) * 5
    at, took = _floats(ts), _floats(dur)
    base = _floats([document.get("baseTimeNanoseconds") if isinstance(document, Mapping) else None])[0] / 1e9
    begin = (base if abs(base) < 1e11 else 0.0) + at * _US
    frame = pd.DataFrame({"kind": kind, "name": name, "begin": begin, "end": begin + took * _US, "args": args})
    good = (took >= 0) & (took < _MAX_US) & (np.abs(at) < _MAX_US)
    frame = frame[good].sort_values("begin", kind="stable", ignore_index=True)
    frame["args"] = [each if isinstance(each, dict) else {} for each in frame["args"]]
    frame["role"], frame["word"] = "", ""
    device = frame["kind"] == "kernel"
    for own, roles in ((device, {"collective": _COLLECTIVE}), (~device, _ROLES)):
        codes, names = pd.factorize(frame.loc[own, "name"])
        told = np.array([_told(each, roles) for each in names], dtype=object).reshape(-1, 2)
        frame.loc[own, ["role", "word"]] = told[codes]
    bad = int((~good).sum())
    doubts = [f"left out: {bad:,} events without a time"] if bad else []
    return frame, ", ".join(each for each, _ in categories.most_common(8)) or "none", doubts


def _floats(values: Sequence[Any]) -> Floats:
    """Return numbers, also such as are texts, as floats; NaN for anything else."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        plain = pd.Series([each if isinstance(each, int | float | str) else None for each in values], dtype=object)
        return pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)


def _told(name: str, roles: Mapping[str, re.Pattern[str]]) -> tuple[str, str]:
    """Return what a name says: the role of an event, and the word of its collective, "" where it says none."""
    role = next((role for role, form in roles.items() if form.match(name)), "")
    return role, _word(re.split("[(<]", name)[0]) if role in ("waits", "calls", "collective") else ""


def _word(name: Any) -> str:
    found = _WORD.search(str(name))
    return found[0].replace("_", "").lower() if found else ""


def _argument(rows: pd.DataFrame, *names: str) -> list[Any]:
    """Return of each event the first of these arguments that it has, None where it has none."""
    return [next((told[name] for name in names if name in told), None) for told in rows["args"]]


def _steps(events: pd.DataFrame, doubts: list[str]) -> tuple[Sequence[int], Floats]:
    """Return numbers, and begin and end, (S, 2), of the steps in order; each ends where the next one begins."""
    marked = events[events["role"] == "step"]
    if len(marked):
        begins = marked["begin"].to_numpy()
        ends = np.minimum(marked["end"].to_numpy(), np.append(begins[1:], np.inf))
        return [int(name.rpartition("#")[2]) for name in marked["name"]], np.stack([begins, ends], axis=1)
    spans = events[events["kind"].isin(("host", "kernel"))]
    if not len(spans):
        return [], np.empty((0, 2))
    ends = np.sort(events.loc[events["role"] == "update", "end"].to_numpy())
    if not len(ends):
        doubts.append("no ProfilerStep# and no Optimizer.step in it: the whole trace counts as one step")
        ends = np.array([spans["end"].max()])
    return range(len(ends)), np.stack([np.append(spans["begin"].min(), ends[:-1]), ends], axis=1)


def _laps(events: pd.DataFrame, steps: Floats) -> dict[str, Floats]:
    """Return the laps of every step on the host, (S,)."""
    begin, end = steps.T
    host = events[events["kind"] == "host"]
    noted = pd.Series(_argument(host, "Sequence number"), index=host.index, dtype=object).notna()
    noted &= ~host["name"].str.contains("Backward")
    update, forward = (events[events["role"] == role] for role in ("update", "forward"))

    def first(moments: pd.Series, default: Floats) -> Floats:
        known = np.append(np.sort(moments), np.inf)
        found = known[np.searchsorted(known, begin)]
        return np.where(found <= end, found, default)

    to_update = first(update["begin"], end)
    to_backward = first(host.loc[host["role"] == "backward", "begin"], to_update)
    to_forward = np.minimum(first(pd.concat([forward["begin"], host.loc[noted, "begin"]]), begin), to_backward)
    ends = np.append(-np.inf, np.sort(update["end"]))
    last = ends[np.searchsorted(ends, end, "right") - 1]
    edges = [begin, to_forward, to_backward, to_update, np.where(last >= begin, last, to_update), end]
    return dict(zip(LAPS, np.diff(np.maximum.accumulate(edges, axis=0), axis=0), strict=True))


def _launched(events: pd.DataFrame, kernels: pd.DataFrame) -> Floats:
    """Return when the host launched each kernel, by its correlation or its operator; NaN where neither says it."""
    found = np.full(len(kernels), np.nan)
    for kinds, names in ((("launch",), ("correlation",)), (("host", "range"), ("External id", "external id"))):
        others = events[events["kind"].isin(kinds)]
        at = pd.Series(others["begin"].to_numpy(), index=_floats(_argument(others, *names)))
        at = at[(at.index > 0) & ~at.index.duplicated()]
        found = np.where(np.isnan(found), at.reindex(_floats(_argument(kernels, *names))), found)
    return found


def _within(moments: Any, steps: Floats) -> Any:
    """Return the place of the step that holds each moment, -1 where none does."""
    at = np.asarray(moments, dtype=np.float64)
    place = np.searchsorted(steps[:, 0], at, "right") - 1
    return np.where((place >= 0) & (at < steps[place, 1]), place, -1)


def _places(trace: _Trace, kernels: pd.DataFrame, launched: Floats) -> Any:
    """Return the place of the step that launched each kernel, -1 for none; the step becomes that of the device."""
    if not len(kernels):
        return np.empty(0, dtype=int)
    steps, count, host = trace.steps, len(trace.steps), float(trace.parts["step"].mean())
    alike = kernels.groupby("name")["begin"]
    of_name = alike.transform("size")
    by_launch, by_order = np.isnan(launched).mean() < 0.1, not (of_name % count).any()
    place = _within(launched, steps) if by_launch else (alike.cumcount() * count // of_name).to_numpy()
    if count > 1 and (by_launch or by_order):
        first = kernels["begin"].groupby(place).min().reindex(range(count)).to_numpy()
        trace.parts["step"] = np.append(np.diff(first), np.nan)
        device = float(trace.parts["step"][np.isfinite(trace.parts["step"])].mean()) if count > 1 else host
        if not 0.8 < device / host < 1.25:
            trace.doubts.append(
                f"laps are of the host, which runs ahead: its steps take {1e3 * host:.4g} ms, those of the device "
                f"{1e3 * device:.4g} ms, by which step, communication and exposed are"
            )
        return place
    busy = float(np.diff(merged(kernels[["begin", "end"]])).sum()) / count
    why = impossible("kernels", step=host, kernels=busy)
    why = why or impossible("behind", step=host, behind=float(kernels["end"].max() - steps[-1, 1]))
    if not why:
        return _within(kernels["begin"], steps)
    trace.parts["step"] = np.full(count, np.nan)
    trace.doubts.append(f"the step is not known: {why}; nothing says which step launched them")
    return place if count == 1 else np.full(len(kernels), -1)


def _collectives(trace: _Trace, events: pd.DataFrame, kernels: pd.DataFrame, backend: str) -> pd.DataFrame:
    """Return the collectives of a rank: begin, end, word, step, all; none where they were only launched."""
    found = kernels[kernels["role"] == "collective"]
    waits, calls = (events[events["role"] == role] for role in ("waits", "calls"))
    if len(found):
        found = _named(found, calls)
        if not found["word"].all():
            trace.doubts.append("kernels of collectives do not say which ones, and no range of the host does")
    elif calls["name"].str.match(_DEVICE_BACKEND).any() or (not len(waits) and _DEVICE_BACKEND.search(backend)):
        trace.doubts.append(
            "collectives are launched, and no kernel has the name of one: communication, exposed and late are not known"
            if trace.on_gpu
            else "a job on GPUs without kernels in its trace: communication, exposed and late are not known; profile "
            "with ProfilerActivity.CUDA too"
        )
    else:
        found = waits.assign(step=_within(waits["begin"], trace.steps))
    part = _floats(_argument(found, "Group size")) < (trace.world or 0)
    return found.assign(all=found["word"].isin(_TOGETHER) & ~part)


def _named(found: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return kernels of collectives with the word and arguments of the call on the host that launched each.

    It is the last one that began before the launch; where no launch is known the one at the same place in the order.
    """
    calls = calls.assign(
        word=[own or _word(told) for own, told in zip(calls["word"], _argument(calls, "Collective name"), strict=True)]
    )
    calls = calls[calls["word"] != ""]
    at = found["launched"].to_numpy()
    place = np.searchsorted(calls["begin"], at, "right") - 1
    if np.isnan(at).any():
        forms = calls.groupby(calls["name"].str.extract(r"(\w+)", expand=False), sort=False)
        fitting = [rows for _, rows in forms if len(rows) == len(found)]
        calls, place = (fitting[0], np.arange(len(found))) if fitting else (calls, np.full(len(found), -1))
    told = [calls["args"].iloc[each] | {"word": calls["word"].iloc[each]} if each >= 0 else {} for each in place]
    told = [theirs | own for theirs, own in zip(told, found["args"], strict=True)]
    word = [
        own or _word(each.get("Collective name")) or each.get("word", "")
        for own, each in zip(found["word"], told, strict=True)
    ]
    return found.assign(args=told, word=word)


# ----------------------------------------------------------------------------------------------------------- spans


def merged(spans: Any) -> Floats:
    """Return the union of spans (K, 2) as disjoint spans in order, (M, 2)."""
    table = np.asarray(spans, dtype=np.float64).reshape(-1, 2)
    table = table[np.argsort(table[:, 0], kind="stable")]
    if not len(table):
        return table
    reached = np.maximum.accumulate(table[:, 1])
    places = np.flatnonzero(np.append(True, table[1:, 0] > reached[:-1]))
    return np.stack([table[places, 0], reached[np.append(places[1:] - 1, len(table) - 1)]], axis=1)


def covered(cover: Floats, spans: Floats) -> float:
    """Return how much of the disjoint `spans`, (K, 2), the disjoint `cover`, (C, 2), covers; both are in order."""
    lengths = np.diff(cover)[:, 0]
    if not len(lengths):
        return 0.0
    until = np.cumsum(lengths)
    return float(np.diff(np.interp(spans, cover.ravel(), np.stack([until - lengths, until], axis=1).ravel())).sum())


# ----------------------------------------------------------------------------------------------------------- ranks


def compare(traces: Sequence[_Trace]) -> dict[str, Any]:
    """Return what traces of the ranks of one job say, in s of a step: means over steps with 95 % intervals.

    {"ranks": [{rank, source, host, steps, last, offset_s, seconds: {COLUMNS: Interval}}], "late": the rank that is
    later than the others beyond doubt, None where there is none or names tell no ranks, "late_file": its file, "cause":
    the lap of it that is longest compared with the others', "on_gpu", "doubts"}. NaN for what is not known or cannot
    be. Raises AnalysisError for two of one rank, and where some files say their rank and some do not.
    """
    numbers, named = _ranks(traces)
    order = np.argsort(numbers, kind="stable")
    ordered, numbers = [traces[place] for place in order], sorted(numbers)
    late, offsets, notes = _lateness(ordered)
    rows = []
    for place, each in enumerate(ordered):
        columns = {**each.parts, "late": late[:, place] if len(late) else np.array([np.nan])}
        known = {name: columns[name][np.isfinite(columns[name])] for name in COLUMNS}
        row = {
            "rank": numbers[place],
            "source": each.source,
            "host": each.host,
            "steps": len(each.steps),
            "last": float(np.mean(late.argmax(axis=1) == place)) if len(late) else None,
            "offset_s": float(offsets[place]) if len(late) else None,
            "seconds": {
                name: stats.student(own) if len(own) else Interval(value=np.nan) for name, own in known.items()
            },
        }
        notes += _impossible(row)
        rows.append(row)
    slow, cause = _slowest(rows)
    return {
        "ranks": rows,
        "late": slow["rank"] if slow and named else None,
        "late_file": slow["source"] if slow else "",
        "on_gpu": ordered[0].on_gpu,
        "cause": cause,
        "doubts": list(
            dict.fromkeys([*notes, *_doubts(ordered, named), *(say for each in ordered for say in each.doubts)])
        ),
    }


def _ranks(traces: Sequence[_Trace]) -> tuple[list[int], bool]:
    """Return the rank of each trace, and whether documents or names tell it, or the order of the files numbers them.

    A name tells it by the word rank, in the file or its folder, or where one of the numbers in each of all names is
    one of 0 ... n - 1; of HOST_PID.TIME none is a rank.
    """
    told = [each.rank for each in traces]
    sources = [Path(each.source) for each in traces]
    if None in told:
        words = [_RANK.findall(path.name) or _RANK.findall(path.parent.name) for path in sources]
        of_name = [int(found[0]) if len(set(found)) == 1 else None for found in words]
        told = [name if own is None else own for own, name in zip(told, of_name, strict=True)]
    if not any(rank is not None for rank in told):
        digits = [re.findall(r"\d+", path.name.partition(".json")[0]) for path in sources]
        alike = len({len(found) for found in digits}) == 1 and not any(_HANDLER.search(path.name) for path in sources)
        columns = [[int(each) for each in column] for column in zip(*digits, strict=True)] if alike else []
        fitting = [column for column in columns if sorted(column) == list(range(len(traces)))]
        if len(fitting) != 1:
            return list(np.argsort(np.argsort([str(path) for path in sources])).tolist()), False
        told = list(fitting[0])
    for place, (rank, each) in enumerate(zip(told, traces, strict=True)):
        if rank is None:
            raise AnalysisError(f"{each.source}: neither it nor its name says which rank it is of; name it rank0.json")
        if rank in told[:place]:
            first = traces[told.index(rank)].source
            raise AnalysisError(f"{first} and {each.source}: are both of rank {rank}; give one job's traces")
    return [rank for rank in told if rank is not None], True


def _lateness(traces: Sequence[_Trace]) -> tuple[Floats, Floats, list[str]]:
    """Return lateness (S, R) in the steps with common collectives, offsets of clocks (R,), and what is to be said."""
    nobody = np.empty((0, len(traces))), np.empty(0)
    if len(traces) < 2:
        return *nobody, ["one rank only: who is late is unknown; give the traces of all ranks"]
    own: list[dict[int, pd.DataFrame]] = []
    for each in traces:
        together = each.collectives[each.collectives["all"] & (each.collectives["step"] >= 0)].sort_values("begin")
        own.append({each.labels[place]: rows for place, rows in together.groupby("step")})
    common = [label for label in traces[0].labels if all(label in each.labels for each in traces)]
    matched, uneven = [], 0  # (step, begins (R,), ends (R,))
    for label in common:
        words = [list(rows[label]["word"]) if label in rows else [] for rows in own]
        count = min(map(len, words))
        alike = len({tuple(each[:count]) for each in words}) == 1
        uneven += not alike or len(set(map(len, words))) > 1
        if alike and count:
            spans = np.stack([rows[label][["begin", "end"]].to_numpy()[:count] for rows in own])  # (R, C, 2)
            matched += [(label, *spans[:, k].T) for k in range(count)]
    notes = [f"{uneven} of {len(common)} steps have other collectives on one rank than on another"] if uneven else []
    if not matched:
        return *nobody, [*notes, "no collective that all ranks took part in was found: who is late is unknown"]
    offsets = np.median([ends - ends[0] for _, _, ends in matched], axis=0)
    begins = pd.DataFrame([begins - offsets for _, begins, _ in matched], index=[label for label, _, _ in matched])
    return begins.sub(begins.min(axis=1), axis=0).groupby(level=0).mean().to_numpy(), offsets, notes


_PARTS = (  # a part, its whole, and what is not known where the part is larger
    ("communication", "step", ("communication", "exposed")),
    ("exposed", "communication", ("exposed",)),
    ("late", "step", ("late",)),
)


def _impossible(row: dict[str, Any]) -> Iterator[str]:
    """Yield what cannot be in the row of a rank, and leave it unknown there."""
    seconds = row["seconds"]
    for part, whole, unknown in _PARTS:
        size = {"part": 1e3 * seconds[part].value, "whole": 1e3 * seconds[whole].value, "unit": "ms"}
        if why := impossible("part", what=part, of=f"a {whole}" if whole == "step" else whole, **size):
            seconds |= dict.fromkeys(unknown, Interval(value=np.nan))
            yield f"rank {row['rank']}: {why}"


def _slowest(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    """Return the rank that is later than each of the others beyond doubt, and which of its laps is the longer one."""
    known = sorted((row for row in rows if np.isfinite(row["seconds"]["late"].value)), key=_late_s)
    if len(known) < 2 or not known[-1]["seconds"]["late"].low > max(_late_s(known[-2]), 0.0):
        return None, ""

    def longer(lap: str) -> float:
        # What a rank waits in backward is not its own time.
        waits = "exposed" if lap == "backward" else ""
        own = [
            row["seconds"][lap].value - (np.nan_to_num(row["seconds"][waits].value) if waits else 0.0) for row in known
        ]
        return float(own[-1] - np.median(own[:-1]))

    return known[-1], max(LAPS, key=longer)


def _late_s(row: Mapping[str, Any]) -> float:
    return float(row["seconds"]["late"].value)


def _doubts(traces: Sequence[_Trace], named: bool) -> Iterator[str]:
    steps = min(len(each.steps) for each in traces)
    if 1 < steps < FEW_STEPS:
        yield f"{steps} steps are few: profile {FEW_STEPS} or more, after a warm-up"
    if not named and len(traces) > 1:
        yield "names of files tell no rank: they are numbered by their order, and the numbers are no ranks"
    worlds = {each.world for each in traces} - {None}
    if len(worlds) == 1 and len(traces) < (world := worlds.pop() or 0):
        yield f"{len(traces)} of {world} ranks are here: the late one may be another"
    if len({each.on_gpu for each in traces}) > 1:
        yield "some traces have kernels of a GPU and some have none; profile all ranks alike"
    if not any(len(each.collectives) or each.doubts for each in traces):
        yield "no communication was found: Horovod's and MPI's own is not in a trace of a processor"


# --------------------------------------------------------------------------------------------------- NCCL Inspector

KERNEL = "kernel_gpu"
KEPT = 500_000
"""Records of all files together that are in memory at once; beyond, the newest of each file count."""
_FIELDS = {"group": "id", "nodes": "nnodes", "host": "hostname", "timing": "coll_timing_source"}
_NEEDED = {"rank": "rank", "ranks": "n_ranks", "kind": "coll", "number": "coll_sn", "bytes": "coll_msg_size_bytes"}
_NEEDED |= {"seconds": "coll_exec_time_us"}
_CUT = "cut off, or without what is needed"


class _Group(NamedTuple):
    """Collectives of a communicator that all of its ranks that are here recorded."""

    name: str
    ranks: int
    nodes: int
    hosts: Mapping[int, str]  # of the ranks that are here, in order
    begun: Mapping[str, int]  # kind -> how many there were, with those without a record
    seconds: pd.DataFrame  # index: kind, bytes, number; a column for each rank


def inspect(files: Mapping[str, Iterable[bytes]], run: RecordedRun | None = None) -> dict[str, Any]:
    """Return what the lines of the files of a job say, and beside the sync of a recorded run the time in collectives.

    {"files", "timing": how times were taken, "sizes": a row for each collective and size, those that take most time
    first, "late": the rank that comes last, "beside": see `_beside`, "doubts"}; times in s. Times of kernels count
    where there are any, else those of the host. Raises AnalysisError where no collective of several ranks was recorded
    by all ranks that are here, and for what two files hold.
    """
    table, doubts = _records(files)
    timings = table["timing"].value_counts()
    timing = KERNEL if KERNEL in timings else str(timings.index[0])
    groups = [_group(str(name), every, timing) for name, every in table.groupby("group", sort=False)]
    sizes: dict[tuple[Any, ...], list[Floats]] = {}
    late = []
    for each in groups:
        for (kind, size), rows in each.seconds.groupby(level=["kind", "bytes"]):
            sizes.setdefault((kind, int(size), each.ranks, each.nodes), []).append(rows.to_numpy())
        words = each.seconds.index.get_level_values("kind").map(_word)
        together = each.seconds.to_numpy()[words.isin(_TOGETHER)]
        if timing == KERNEL and len(together) > 1 and together.shape[1] > 1:
            late += _last(each, together.max(axis=1, keepdims=True) - together)
    if not sizes:
        raise AnalysisError(
            "no collective was recorded by all ranks whose files are here; give files of one job, which Inspector "
            "wrote now and then (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000), not only at its end"
        )
    rows = [_size(*key, group, doubts) for key, group in sizes.items()]
    doubts += _inspector_doubts(table, timing, groups)
    return {
        "files": len(files),
        "timing": timing,
        "sizes": sorted(rows, key=lambda row: (-row["total_s"], row["kind"], row["bytes"])),
        "late": max(late, key=lambda found: found[0])[1] if late else None,
        "beside": None if run is None else _beside(groups, run, doubts),
        "doubts": doubts,
    }


def _records(files: Mapping[str, Iterable[bytes]]) -> tuple[pd.DataFrame, list[str]]:
    """Return the records of collectives of several ranks, and what is to be said of others.

    A header counts also for records after it that have none. Without id all of as many ranks are one communicator.
    """
    wanted = {**_NEEDED, **_FIELDS}
    kept: list[tuple[Any, ...]] = []
    left_out, taken = Counter[str](), 0
    for source, lines in files.items():
        rows: deque[tuple[Any, ...]] = deque(maxlen=max(KEPT // len(files), 1000))
        above: dict[str, Any] = {}
        for line in lines:
            try:
                record = parse_json(line, source=source, error=AnalysisError, again="")
            except AnalysisError:
                left_out[_CUT] += 1
                continue
            record = record if isinstance(record, dict) else {}
            for told in (record.get("header"), record.get("metadata")):
                above |= told if isinstance(told, dict) else {}
            if isinstance(perf := record.get("coll_perf"), dict):
                told = above | perf
                rows.append((*(told.get(name) for name in wanted.values()), source))
                taken += 1
            left_out["of messages from one rank to another"] += "p2p_perf" in record
        kept += rows
    table = pd.DataFrame(kept, columns=[*wanted, "source"], dtype=object)
    missing = [wanted[name] for name in _NEEDED if table[name].isna().all()]
    numbers = ["rank", "ranks", "number", "bytes", "seconds", "nodes"]
    table[numbers] = table[numbers].apply(lambda column: _floats(column.tolist()))
    whole = (table[numbers[:-1]] >= 0).all(axis=1) & table["kind"].notna()
    timed = table["seconds"].between(0, 1e10, inclusive="neither")  # what ends before it begins wraps around
    left_out[_CUT] += int((~whole).sum())
    left_out["without a time"] += int((whole & ~timed).sum())
    over = taken - len(table)
    table = table[whole & timed & (table["ranks"] > 1)].reset_index(drop=True)
    if not len(table):
        why = (
            f"records have no {', '.join(missing)}; give what NCCL Inspector wrote, with {'these fields' if len(missing) > 1 else 'this field'}"
            if taken and missing
            else "no collective of several ranks with a time; by default Inspector keeps those of 8,192 bytes or more "
            "that it timed on the GPU (NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING)"
        )
        raise AnalysisError(f"{next(iter(files), 'no file')}: {why}")
    doubts = [f"left out: {count:,} record{'s' * (count > 1)} {what}" for what, count in left_out.items() if count]
    if over:
        doubts.append(f"of {len(table) + over:,} records the newest {len(table):,} count")
    if empty := [source for source in files if source not in set(table["source"])]:
        doubts.append(f"no collective of several ranks in {len(empty)} of the files, such as {empty[0]}")
    return _completed(table, doubts), doubts


def _completed(table: pd.DataFrame, doubts: list[str]) -> pd.DataFrame:
    """Return records with what their headers may lack: communicator, nodes, host."""
    table = table.astype(dict.fromkeys(("rank", "ranks", "number", "bytes"), int))
    table["seconds"] *= _US
    table["timing"] = table["timing"].fillna("not said").astype(str)
    of_name = table["source"].str.extract(r"([^/]*)-pid\d+\.[^/]*$", expand=False)
    table["host"] = table["host"].fillna(of_name).fillna("").astype(str)
    nameless = table["group"].isna()
    table["group"] = table["group"].where(~nameless, "of " + table["ranks"].astype(str) + " ranks").astype(str)
    if nameless.any():
        doubts.append("headers have no id: records of as many ranks are taken for those of one communicator")
        twice = table[nameless & table.duplicated(["source", "group", "rank", "kind", "number"])]
        if len(twice):
            raise AnalysisError(
                f"{twice['source'].iloc[0]}: headers have no id, and collective {twice['number'].iloc[0]} of "
                f"{twice['kind'].iloc[0]} is there twice: its communicators cannot be told apart; give records with id"
            )
    if (nodeless := table["nodes"].isna()).any():
        doubts.append("headers have no nnodes: nodes are the hosts of the files that are here")
        table["nodes"] = table["nodes"].mask(nodeless, table.groupby("group")["host"].transform("nunique"))
    return table


def _group(name: str, every: pd.DataFrame, timing: str) -> _Group:
    files = every.groupby("rank")["source"].unique()
    for rank, sources in files.items():
        if len(sources) > 1:
            raise AnalysisError(
                f"{sources[0]} and {sources[1]}: both hold rank {rank} of communicator {name}; give each process's "
                "file once"
            )
    own = every[every["timing"] == timing]
    wide = own.pivot_table(index=["kind", "bytes", "number"], columns="rank", values="seconds", aggfunc="last")
    first, last = every.iloc[0], every.groupby("kind")["number"].max() + 1
    hosts = every.groupby("rank")["host"].first().to_dict()
    wide = wide.reindex(columns=list(hosts)).dropna()
    return _Group(name, int(first["ranks"]), int(first["nodes"]), hosts, last.to_dict(), wide)


def _size(kind: str, size: int, ranks: int, nodes: int, groups: Sequence[Floats], doubts: list[str]) -> dict[str, Any]:
    """Return the row of collectives of a size, groups of (C, R) s."""
    mean = np.concatenate([seconds.mean(axis=1) for seconds in groups])
    shortest = stats.order_interval(np.concatenate([seconds.min(axis=1) for seconds in groups]))
    share = float(moved_share(ranks))  # 2 (n - 1) / n
    moved = {"AllReduce": share, "Broadcast": 1.0, "Reduce": 1.0}
    moved |= dict.fromkeys(("AllGather", "ReduceScatter"), share / 2 * ranks)
    rate = moved[kind] * size / shortest.value if kind in moved else np.nan
    if why := impossible("bandwidth", bandwidth=rate):
        doubts.append(f"{kind} of {size:,} bytes: {why}")
        rate = np.nan
    return {
        "kind": kind,
        "bytes": size,
        "ranks": ranks,
        "nodes": nodes,
        "communicators": len(groups),
        "calls": len(mean),
        "time": stats.order_interval(mean),
        "shortest": shortest,
        "busbw_gb_per_s": stats.finite_or_none(rate / 1e9),
        "total_s": float(mean.sum()),
    }


def _last(own: _Group, late: Floats) -> list[tuple[float, dict[str, Any]]]:
    """Return the rank that is later than each of the others beyond doubt, and how long all waited; `late` is (C, R)."""
    means = [stats.student(column) for column in late.T]
    second, first = np.argsort([each.value for each in means])[-2:]
    if not means[first].low > max(means[second].value, 0.0):
        return []
    rank, host = list(own.hosts.items())[first]
    last = float(np.mean(late.argmax(axis=1) == first))
    found = {"communicator": own.name, "rank": rank, "host": host, "late": means[first], "last": last}
    return [(float(late[:, first].sum()), found)]


def _inspector_doubts(table: pd.DataFrame, timing: str, groups: Sequence[_Group]) -> Iterator[str]:
    others = table.loc[table["timing"] != timing, "timing"]
    if timing != KERNEL:
        yield (
            f"times are not of the GPU's kernels ({timing}): they hold what the host does before and after, bandwidths "
            "are too low, and who comes last is not seen"
        )
    elif len(others):
        yield f"left out: {len(others):,} records that the host timed ({', '.join(sorted(set(others)))})"
    few = min(groups, key=lambda each: len(each.hosts) / each.ranks)
    if len(few.hosts) < few.ranks:
        yield (
            f"{len(few.hosts)} of {few.ranks} ranks of communicator {few.name} are here: the last one may be another, "
            "and the shortest time may hold waiting"
        )
    begun = int((table.groupby(["group", "rank", "kind"])["number"].max() + 1).sum())
    if len(table) < begun:
        yield (
            f"{len(table):,} of {begun:,} collectives have a record; the others are smaller than "
            "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8,192), or were overwritten, of which NCCL_INSPECTOR_DUMP_COLL_RING_"
            "SIZE (1,024) are kept from one dump to the next, or to the end"
        )
    parts: list[set[str]] = []
    for own in table.groupby("source")["group"].unique().map(set):
        touched = [part for part in parts if part & own]
        parts = [*(part for part in parts if not part & own), own.union(*touched)]
    if len(parts) > 1:
        yield f"{len(parts)} sets of processes share no communicator: if these are several jobs, give the files of one"


def _beside(groups: Sequence[_Group], run: RecordedRun, doubts: list[str]) -> dict[str, Any] | None:
    """Return both clocks of a run's steps, s of a step, mean over the ranks; None where too few are in both.

    {"run", "ranks": {rank: (sync, collectives)}, "steps", "step", "sync", "collectives", "difference", "calls": {kind:
    how many a step}, "bytes"}. Every step makes as many collectives of a kind as the next, c: all that there were over
    the steps, rounded where it is nearly whole. Collective k is of step k / c. Timed steps count, and of these such as
    have records before and after them, too: a step at the edge of what was overwritten is incomplete.
    """
    fitting = [each for each in groups if each.ranks == run.workers]
    if not fitting:
        known = ", ".join(map(str, sorted({each.ranks for each in groups})))
        raise AnalysisError(
            f"{run.name}: has {run.workers} workers, and the communicators {known} ranks; give the run that Inspector "
            "looked at"
        )
    own = max(fitting, key=lambda each: len(each.seconds))
    laps = {rank: run.rows[rank] for rank in own.hosts if rank in run.rows}
    if not laps:
        raise AnalysisError(f"{run.name}: none of its ranks with steps has a file of Inspector")
    steps = min(int(rows["step"][-1]) + 1 for rows in laps.values())
    calls = {kind: count / steps for kind, count in own.begun.items() if count >= steps}  # not broadcasts at the begin
    uneven = {kind: each for kind, each in calls.items() if abs(each - round(each)) > 0.05 * each}
    table = own.seconds[list(laps)].reset_index()
    each = table["kind"].map({kind: uneven.get(kind, round(count)) for kind, count in calls.items()})
    of_step = table.drop(columns=["kind", "number"]).groupby(table["number"] // each.astype(float)).sum()
    there = of_step.index.to_numpy()  # without what is not of every step
    timed = (there >= run.first_step) & (there < steps) & np.isin(there - 1, there) & np.isin(there + 1, there)
    whole = of_step[timed]
    if len(whole) < 2:
        doubts.append(
            f"{run.name}: fewer than two of its timed steps have records of all ranks that are here; let Inspector "
            "dump now and then (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000)"
        )
        return None
    waits, lengths = (
        pd.DataFrame({rank: pd.Series(rows[name], index=rows["step"]) for rank, rows in laps.items()})
        .loc[run.first_step :]
        .dropna()
        for name in ("sync_s", "step_s")
    )
    collectives, step = stats.student(whole[list(laps)].mean(axis=1)), stats.student(lengths.mean(axis=1))
    if why := impossible("part", part=collectives.value, whole=step.value, what="time in collectives", of="a step"):
        doubts.append(f"{run.name}: {why}; collectives in several streams are counted one after the other")
        return None
    sync = stats.student(waits.mean(axis=1)) if len(waits) else None
    if len(laps) < run.workers:
        doubts.append(f"{run.name}: both clocks are there for {len(laps)} of {run.workers} ranks")
    if run.synchronisation is not None or run.ablation is not None:
        doubts.append(
            f"{run.name}: measured more after its steps, and its collectives are taken for some of the steps'"
        )
    if len(run.record.attempts) > 1:
        doubts.append(f"{run.name}: was resumed; the steps before that are not in the files of its last processes")
    for kind, count in uneven.items():
        doubts.append(
            f"{run.name}: {count:.2f} {kind} a step: not every step makes as many, and which are whose is a guess"
        )
    if len(groups) > 1:
        doubts.append(f"{run.name}: of {len(groups)} communicators that of all workers ({own.name}) counts")
    return {
        "run": run.name,
        "ranks": {rank: (stats.finite_or_none(waits[rank].mean()), float(whole[rank].mean())) for rank in laps},
        "steps": len(whole),
        "step": step,
        "sync": sync,
        "collectives": collectives,
        "difference": None if sync is None else stats.difference(collectives, sync),
        "calls": calls,
        "bytes": float(whole["bytes"].mean()),
    }
