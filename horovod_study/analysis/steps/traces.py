"""What torch.profiler (Kineto) and NCCL Inspector wrote, one file of each rank: found, read, and put side by side.

A trace: laps and steps are of the host (docs/explain.md says between what), but a device works behind it: its kernels
are of the step that launched them, by correlation or else by order, and its step is from the first kernel of one step
to that of the next. Communication are kernels of NCCL, RCCL and alike, without a device ranges gloo:all_reduce and
alike; ranges nccl:... only launch. Exposed is what of it no other kernel, or operator, covers. A collective of all
ranks ends on all at about the same time, so the median difference of ends is that of two clocks; with it begins are
compared: a rank is late by its begin less the first one's, the mean over the collectives of a step.

Inspector, a profiler plugin of NCCL and RCCL, writes a line of JSON for each collective. A kernel begins when its rank
is there and ends on all ranks at about the same time. So the shortest time of a collective is that of the rank that
came last, which waits for nobody: the transfer. The longest time less its own is how late a rank came.
"""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series.culprits import impossible
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.config.documents import MAX_JSON_BYTES, open_file, parse_json, shown
from horovod_study.errors import AnalysisError, DataError

LAPS = ("data", "forward", "backward", "update", "rest")
COLUMNS = ("step", *LAPS, "communication", "exposed", "late")
FEW_STEPS = 10
_UNKNOWN = Interval(value=np.nan)

_KINDS = {"cpu_op": "host", "operator": "host", "user_annotation": "range", "kernel": "kernel", "runtime": "launch"}
_KINDS |= {f"{of}_{what}": "launch" for of in ("cuda", "hip", "xpu", "privateuse1") for what in ("runtime", "driver")}
_ROLES = {
    "step": r"ProfilerStep#\d+$",
    "update": r"Optimizer\.step#",
    "waits": r"(gloo|mpi|ucc):",  # lasts as long as the collective
    "calls": r"[nrhx]ccl:|record_param_comms|c10d::",  # only launches it
    "backward": r"autograd::engine::evaluate_function|\w*Backward\d*$",
    "forward": r".*\.forward$",
}
_KERNELS = {"collective": r"(?i)[^(<]*?([nrhx]ccl|msccl|oneccl|(one|two)_shot_all|multimem_all|cross_device_reduce)"}
_COLLECTIVES = "all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|barrier|send_?recv|send|recv|reduce"
_TOGETHER = ("allreduce", "allgather", "reducescatter", "barrier")  # end on all ranks; a broadcast lets its root go
_ON_DEVICE = "[nrhx]ccl"  # libraries of a device, in a backend or before a colon
_US, _MAX_US = 1e-6, 1e17  # ts and dur are in us
_RANK = r"(?i)(?<!local[_-])(?<!node[_-])(?<![tpdec]p[_-])(?<![a-z])rank[ _=.-]?\[?(\d+)"
_HANDLER = r"_\d+\.\d+(\.\d+)?\.pt\.trace\.json"  # HOST_PID.TIME, of tensorboard_trace_handler
_TRACES, _RECORDS = (".json", ".json.gz"), (".log", ".jsonl", ".log.gz", ".jsonl.gz")


@contextmanager
def _opened(path: Path, again: str = "") -> Iterator[BinaryIO]:
    """Open a file, also a compressed one; DataError, which ends with what to do, where it cannot be read."""
    try:
        with open_file(path) as stream:
            yield cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if path.name.endswith(".gz") else stream
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{shown(path)}: cannot be read ({problem}); {again}") from None


def _files(place: Path, ends: tuple[str, ...], mark: bytes) -> list[Path]:
    """Return the files of a place, or itself, whose first bytes have the mark."""
    found = []
    for path in sorted(place.iterdir()) if place.is_dir() else [place]:
        if path.name.endswith(ends) and path.is_file():
            with suppress(DataError), _opened(path) as stream:
                found += [path] if re.search(mark, stream.read(4096)) else []
    return found


def trace_paths(place: Path) -> list[Path]:
    """Return the traces that a place names: itself, or the files *.json and *.json.gz in a folder that begin as one.

    Empty for anything else: a study file, a run directory, a folder of them with a ledger beside them.
    """
    if place.name.endswith(_TRACES) and not place.is_dir():
        return [place]
    return _files(place, _TRACES, rb'"(traceEvents|schemaVersion)"|\A\s*\[[^\0]*"(cpu_op|kernel)"')


def inspector_paths(place: Path) -> list[Path]:
    """Return the files of NCCL Inspector that a place names: itself, or those in a folder; empty for anything else.

    They are told by their first record; a process without one leaves an empty file HOST-pidNUMBER.log.
    """
    found = _files(place, _RECORDS, rb'"(inspector_output_format_version|coll_perf|p2p_perf)"')
    return found + [path for path in _files(place, _RECORDS, rb"\A\Z") if re.search(r"-pid\d+\.", path.name)]


def inspector_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of such a file, an open bracket where a compressed one breaks off; DataError: unreadable."""
    with _opened(path, "name a file that NCCL Inspector wrote") as stream:
        try:
            while line := stream.readline(4_000_000):  # a record with all its events has some kB
                yield line
        except EOFError:
            yield b"{"


def trace_document(path: Path) -> Any:
    """Return the document of a trace, also of a compressed one; DataError where it is none, or too large."""
    again = "name a trace that torch.profiler exported; profile fewer steps where it is too large"
    with _opened(path, again) as stream:
        content = stream.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise DataError(f"{shown(path)}: holds more than {MAX_JSON_BYTES:,} bytes; {again}")
    return parse_json(content, source=shown(path), error=DataError, again=again)


def read_trace(document: Any, *, source: str) -> SimpleNamespace:
    """Return what is needed of the trace of one rank, times in s.

    Raises AnalysisError where it holds no step with operators or kernels.
    """
    events, categories, doubts = _events(document)
    about: Mapping[str, Any] = document if isinstance(document, dict) else {}
    told = about.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    rank, world = (int(each) if each >= 0 else None for each in _floats([told.get("rank"), told.get("world_size")]))
    labels, steps = _steps(events, doubts)
    kernels = events[events["kind"] == "kernel"]
    own = kernels if len(kernels) else events[(events["kind"] == "host") & events["role"].isin(("", "backward"))]
    if not len(steps) or not len(own):
        raise AnalysisError(
            f"{source}: holds no operators or kernels in a step (categories of its events: {categories}); give what "
            "torch.profiler's export_chrome_trace wrote of several steps of training"
        )
    parts: dict[str, Any] = {"step": np.diff(steps)[:, 0], **_laps(events, steps)}
    parts |= dict.fromkeys(("communication", "exposed"), np.full(len(steps), np.nan))
    trace = SimpleNamespace(
        source=source,
        rank=rank,  # as the document says
        world=world,
        host=str(about.get("host_name") or ""),
        on_gpu=len(kernels) > 0,
        labels=labels,  # numbers of the steps
        steps=steps,  # (S, 2), of the host
        parts=parts,  # COLUMNS but late -> (S,); NaN for what is not known
        doubts=doubts,
    )
    kernels = kernels.assign(launched=_launched(events, kernels))
    kernels["step"] = _places(trace, kernels) if len(kernels) else -1
    trace.collectives = _collectives(trace, events, kernels, str(told.get("backend")))
    counted = trace.collectives[trace.collectives["step"] >= 0]
    if len(counted):
        spans = {place: merged(rows[["begin", "end"]]) for place, rows in counted.groupby("step")}
        places, every = np.repeat(list(spans), [*map(len, spans.values())]), np.concatenate([*spans.values()])
        bare = np.diff(every)[:, 0] - covered(merged(own.loc[own["role"] != "collective", ["begin", "end"]]), every)
        parts["communication"] = np.bincount(places, np.diff(every)[:, 0], len(steps))
        parts["exposed"] = np.bincount(places, bare, len(steps))
    return trace


def _events(document: Any) -> tuple[pd.DataFrame, str, list[str]]:
    """Return the events of known kinds by begin: kind, name, begin, end, args, role, word; all categories; doubts."""
    about: Mapping[str, Any] = document if isinstance(document, dict) else {"traceEvents": document}
    events = about.get("traceEvents")
    listed = events if isinstance(events, list) else []
    events = [*_with_ends(event for event in listed if isinstance(event, dict))]
    categories = Counter([str(event.get("cat")) for event in events])
    kinds = {category: _KINDS.get(category.lower(), "") for category in categories}
    events = [event for event in events if event.get("ph") == "X" and kinds[str(event.get("cat"))]]
    at, took = (_floats([event.get(name) for event in events]) for name in ("ts", "dur"))
    base = _floats([about.get("baseTimeNanoseconds")])[0] / 1e9
    begin = (base if abs(base) < 1e11 else 0.0) + at * _US
    name, kind = (pd.Categorical([str(event.get(what)) for event in events]) for what in ("name", "cat"))
    kind = np.array([kinds[str(each)] for each in kind.categories], dtype=object)[kind.codes]
    told = np.array(
        [[_told(str(each), roles) for roles in (_ROLES, _KERNELS)] for each in name.categories], dtype=object
    )
    told = told.reshape(-1, 2, 2)[name.codes, (kind == "kernel").astype(int)]  # (K, 2)
    args = pd.Series([own if isinstance(own := event.get("args"), dict) else {} for event in events], dtype=object)
    frame = pd.DataFrame({"kind": kind, "name": name, "begin": begin, "end": begin + took * _US, "args": args})
    frame["role"], frame["word"] = told.T
    good = (took >= 0) & (took < _MAX_US) & (np.abs(at) < _MAX_US)
    bad = int((~good).sum())
    doubts = [f"left out: {bad:,} event{'s' * (bad > 1)} without a time"] if bad else []
    said = ", ".join(each for each, _ in categories.most_common(8) if each != "None") or "none"
    return frame[good].sort_values("begin", kind="stable", ignore_index=True), said, doubts


def _with_ends(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events, those with a begin and an end (ph B, E: the last begin of its name on its thread) as spans (X)."""
    begun: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        if (phase := event.get("ph")) not in ("B", "E"):
            yield event
            continue
        thread = begun.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        own = [place for place, each in enumerate(thread) if event.get("name") in (None, each.get("name"))]
        if phase == "B":
            thread.append(event)
        elif own:
            begin = thread.pop(own[-1])
            at, end = _floats([begin.get("ts"), event.get("ts")])
            yield {**begin, "ph": "X", "dur": end - at}


def _floats(values: Iterable[Any]) -> Floats:
    """Return numbers, also such as are texts, as floats; NaN for anything else."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        plain = pd.Series([each if isinstance(each, int | float | str) else None for each in values], dtype=object)
        return pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)


def _told(name: str, roles: Mapping[str, str]) -> tuple[str, str]:
    """Return what a name says: the role of an event, and the word of its collective, "" where it says none."""
    role = next((role for role, form in roles.items() if re.match(form, name)), "")
    return role, _word(re.split("[(<]", name)[0]) if role in ("waits", "calls", "collective") else ""


def _word(name: Any) -> str:
    found = re.search(_COLLECTIVES, str(name), re.IGNORECASE)
    return found[0].replace("_", "").lower() if found else ""


def _argument(rows: pd.DataFrame, name: str) -> list[Any]:
    return [told.get(name) for told in rows["args"]]


def _steps(events: pd.DataFrame, doubts: list[str]) -> tuple[Sequence[int], Floats]:
    """Return numbers, and begin and end, (S, 2), of the steps in order; each ends where the next one begins."""
    marked = events[events["role"] == "step"].drop_duplicates("name")
    if len(marked):
        begins = marked["begin"].to_numpy()
        ends = np.minimum(marked["end"].to_numpy(), np.append(begins[1:], np.inf))
        return [int(name.rpartition("#")[2]) for name in marked["name"]], np.stack([begins, ends], axis=1)
    spans = events[events["kind"].isin(("host", "kernel"))]
    ends = np.sort(events.loc[events["role"] == "update", "end"].to_numpy())
    if len(spans) and not len(ends):
        doubts.append("no ProfilerStep# and no Optimizer.step in it: the whole trace counts as one step")
        ends = np.array([spans["end"].max()])
    return range(len(ends)), np.stack([np.append(spans["begin"].min(), ends[:-1])[: len(ends)], ends], axis=1)


def _laps(events: pd.DataFrame, steps: Floats) -> dict[str, Floats]:
    """Return the laps of every step on the host, (S,)."""
    begin, end = steps.T
    host = events[events["kind"] == "host"]
    noted = (host["role"] == "") & np.array(["Sequence number" in told for told in host["args"]], dtype=bool)
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
    launch = events["kind"] == "launch"
    for of, name in ((launch, "correlation"), (~launch, "External id"), (~launch, "external id")):
        if np.isnan(found).any():
            others = events[of & (events["kind"] != "kernel")]
            at = pd.Series(others["begin"].to_numpy(), index=_floats(_argument(others, name)))
            at = at[(at.index > 0) & ~at.index.duplicated()]
            found = np.where(np.isnan(found), at.reindex(_floats(_argument(kernels, name))), found)
    return found


def _within(moments: Any, steps: Floats) -> Any:
    """Return the place of the step that holds each moment, -1 where none does."""
    at = np.asarray(moments, dtype=np.float64)
    place = np.searchsorted(steps[:, 0], at, "right") - 1
    return np.where((place >= 0) & (at < steps[place, 1]), place, -1)


def _places(trace: SimpleNamespace, kernels: pd.DataFrame) -> Any:
    """Return the place of the step that launched each kernel, -1 for none; the step becomes that of the device.

    By order: where every step has as many kernels of each name. Where nothing tells it, the steps are the host's and
    hold what ran in their time, unless that cannot be.
    """
    count, host = len(trace.steps), 1e3 * float(trace.parts["step"].mean())
    alike = kernels.groupby("name", observed=True)["begin"]
    of_name, by_launch = alike.transform("size"), kernels["launched"].isna().mean() < 0.5
    known = by_launch or not (of_name % count).any()
    place = _within(kernels["launched"], trace.steps) if by_launch else (alike.cumcount() * count // of_name).to_numpy()
    first = kernels["begin"].groupby(place).min().reindex(range(count)).to_numpy()
    apart = np.append(np.where(np.diff(trace.labels) == 1, np.diff(first), np.nan), np.nan)
    if known and np.isfinite(apart).any():
        trace.parts["step"] = apart
    elif not known:
        place = _within(kernels["begin"], trace.steps)
    device = 1e3 * float(pd.Series(trace.parts["step"]).mean())
    busy = 1e3 * float(np.diff(merged(kernels[["begin", "end"]])).sum()) / count
    behind = 1e3 * float(kernels["end"].max() - trace.steps[-1, 1])
    why = impossible("device step", step=device, busy=busy, unit="ms")
    if not why and trace.parts["step"] is not apart:
        why = impossible("behind", step=host, behind=behind, unit="ms")
    if why:
        trace.parts["step"] = np.full(count, np.nan)
        trace.doubts.append(f"the step is not known: {why}{'' if known else ', and nothing says which did'}")
        return place if known else np.full(len(kernels), -1)
    if abs(device / host - 1) > 0.25:
        trace.doubts.append(
            f"laps are of the host, which runs ahead: its steps take {host:.4g} ms, those of the device {device:.4g} "
            "ms, by which step, communication and exposed are"
        )
    return place


def _collectives(trace: SimpleNamespace, events: pd.DataFrame, kernels: pd.DataFrame, backend: str) -> pd.DataFrame:
    """Return the collectives of a rank: begin, end, word, step, all; none where they were only launched."""
    found = kernels[kernels["role"] == "collective"]
    waits, calls = (events[events["role"] == role] for role in ("waits", "calls"))
    if len(found):
        found = _named(found, calls)
        if not found["word"].all():
            trace.doubts.append("kernels of collectives do not say which ones, and no range of the host does")
    elif calls["name"].str.match(_ON_DEVICE).any() or (not len(waits) and re.search(_ON_DEVICE, backend)):
        no_kernels = "this job on GPUs has no kernels in its trace; profile with ProfilerActivity.CUDA too"
        why = "no kernel has the name of one" if trace.on_gpu else no_kernels
        trace.doubts.append(f"communication, exposed and late are not known: collectives are launched, and {why}")
    else:
        found = waits.assign(step=_within(waits["begin"], trace.steps))
        if not len(found):
            trace.doubts.append("no communication was found: Horovod's and MPI's own is not in a trace of a processor")
    part = _floats(_argument(found, "Group size")) < (trace.world or 0)
    return found.assign(all=found["word"].isin(_TOGETHER) & ~part)


def _named(found: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return kernels of collectives with the word and arguments of the call on the host that launched each.

    It is the last one that began before the launch; where a launch is not known the one at the same place in order.
    """
    words = [_word(each) for each in _argument(calls, "Collective name")]
    calls = calls.assign(word=calls["word"].where(calls["word"] != "", words))
    calls = calls[calls["word"] != ""]
    place = np.searchsorted(calls["begin"], found["launched"], "right") - 1
    if found["launched"].isna().any():
        forms = calls.groupby(calls["name"].str.extract(r"(\w+)", expand=False), sort=False)
        calls = next((rows for _, rows in forms if len(rows) == len(found)), calls[:0])
        place = np.arange(len(found)) if len(calls) else np.full(len(found), -1)
    of_call = [{"word": word, **args} for word, args in zip(calls["word"], calls["args"], strict=True)]
    args = [{**(of_call[at] if at >= 0 else {}), **own} for at, own in zip(place, found["args"], strict=True)]
    words = [_word(each.get("Collective name")) or each.get("word", "") for each in args]
    told = pd.Series(args, index=found.index, dtype=object)
    return found.assign(args=told, word=found["word"].where(found["word"] != "", words))


def merged(spans: Any) -> Floats:
    """Return the union of spans (K, 2) as disjoint spans in order, (M, 2)."""
    table = np.asarray(spans, dtype=np.float64).reshape(-1, 2)
    table = table[np.argsort(table[:, 0], kind="stable")]
    reached = np.maximum.accumulate(table[:, 1])
    fresh = np.append(np.ones(min(1, len(table)), dtype=bool), table[1:, 0] > reached[:-1])
    return np.stack([table[fresh, 0], reached[np.append(fresh[1:], fresh[:1])]], axis=1)


def covered(cover: Floats, spans: Floats) -> Floats:
    """Return how much of each of `spans`, (K, 2), the disjoint `cover`, (C, 2) in order, covers: (K,)."""
    lengths = np.diff(cover)[:, 0]
    until = np.cumsum(lengths)
    edges = np.stack([until - lengths, until], axis=1).ravel()
    return np.diff(np.interp(spans, cover.ravel(), edges))[:, 0] if len(edges) else np.zeros(len(spans))


def compare(traces: Sequence[SimpleNamespace]) -> dict[str, Any]:
    """Return what traces of the ranks of one job say, in s of a step: means over steps with 95 % intervals.

    {"ranks": [{rank, source, host, steps, last, offset_s, seconds: {COLUMNS: Interval}}], "named": whether documents
    or names tell the ranks, "late": the rank that is later than the others beyond doubt, None where none is or they are
    not told, "late_file": its file, "cause": the lap of it that is longest compared with the others', "on_gpu",
    "doubts"}; NaN for what is not known or cannot be. Raises AnalysisError for two of one rank, and where some files
    say their rank and some do not.
    """
    numbers, named = _ranks(traces)
    order = np.argsort(numbers, kind="stable")
    ordered, rows = [traces[place] for place in order], []
    late, offsets, doubts = _lateness(ordered)
    for place, each in enumerate(ordered):
        row: dict[str, Any] = {"rank": numbers[order[place]], "source": each.source, "host": each.host}
        row |= {"steps": len(each.steps), "last": None, "offset_s": None}
        columns = {**each.parts, "late": np.empty(0)}
        if len(late):
            columns["late"] = late[:, place]
            row |= {"last": float(np.mean(late.argmax(axis=1) == place)), "offset_s": float(offsets[place])}
        known = {name: columns[name][np.isfinite(columns[name])] for name in COLUMNS}
        row["seconds"] = {name: stats.student(own) if len(own) else _UNKNOWN for name, own in known.items()}
        for part, whole, *also in (
            ("communication", "step", "exposed"),
            ("exposed", "communication"),
            ("late", "step"),
        ):
            size, of = (1e3 * row["seconds"][name].value for name in (part, whole))
            if why := impossible("part", what=part, part=size, of=whole.replace("step", "a step"), whole=of, unit="ms"):
                row["seconds"] |= dict.fromkeys((part, *also), _UNKNOWN)  # what cannot be is unknown
                doubts.append(f"rank {row['rank']}: {why}")
        rows.append(row)
    slow, cause, latest = None, "", _latest(late)
    if latest is not None and np.isfinite(rows[latest]["seconds"]["late"].value):
        slow = rows[latest]  # its cause is the lap that is longest compared with the others'
        means = pd.DataFrame([{name: each.value for name, each in row["seconds"].items()} for row in rows])
        means["backward"] -= means["exposed"].fillna(0.0)  # what a rank waits in backward is not its own time
        laps = means[[*LAPS]]
        cause = str((laps.iloc[latest] - laps.drop(index=latest).median()).idxmax())
    steps, worlds = min(len(each.steps) for each in ordered), {each.world for each in ordered} - {None}
    worlds = worlds if len(worlds) == 1 else {0}
    told = {
        f"{steps} steps are few: profile {FEW_STEPS} or more, after a warm-up": 1 < steps < FEW_STEPS,
        "names of files tell no rank: they are numbered by their order, and the numbers are no ranks": not named
        and len(ordered) > 1,
        f"{len(ordered)} of {max(worlds)} ranks are here: the late one may be another": len(ordered) < max(worlds),
        "some traces have kernels of a GPU and some have none; profile all ranks alike": (
            len({each.on_gpu for each in ordered}) > 1
        ),
    }
    doubts += [text for text, holds in told.items() if holds]
    doubts += [say for each in ordered for say in each.doubts]
    late_one = {"late": slow["rank"] if slow and named else None, "late_file": slow["source"] if slow else ""}
    about = {"named": named, **late_one, "cause": cause, "on_gpu": ordered[0].on_gpu}
    return {"ranks": rows, **about, "doubts": list(dict.fromkeys(doubts))}


def _ranks(traces: Sequence[SimpleNamespace]) -> tuple[list[int], bool]:
    """Return the rank of each trace, and whether documents or names tell it, or the order of the files numbers them.

    A name tells it by the word rank, in the file or its folder, or where the numbers at one place in the names are
    0 ... n - 1; of HOST_PID.TIME none is a rank.
    """
    paths = [Path(each.source) for each in traces]
    words = [set(re.findall(_RANK, path.name) or re.findall(_RANK, path.parent.name)) for path in paths]
    told = [
        int(min(found)) if each.rank is None and len(found) == 1 else each.rank
        for each, found in zip(traces, words, strict=True)
    ]
    if told == [None] * len(traces):
        stems = [[] if re.search(_HANDLER, path.name) else path.name.partition(".json")[0] for path in paths]
        digits = [[int(each) for each in re.findall(r"\d+", str(stem))] for stem in stems]
        columns = zip(*digits, strict=True) if len({len(each) for each in digits}) == 1 else ()
        fitting = [list(column) for column in columns if sorted(column) == list(range(len(traces)))]
        if len(fitting) != 1:
            return [sorted(paths).index(path) for path in paths], False
        told = [*fitting[0]]
    for place, (rank, each) in enumerate(zip(told, traces, strict=True)):
        if rank is None or rank in told[:place]:
            if rank is None:
                raise AnalysisError(
                    f"{each.source}: neither it nor its name says which rank it is of; name it rank0.json"
                )
            both = f"{traces[told.index(rank)].source} and {each.source}: are both of rank {rank}"
            raise AnalysisError(f"{both}; give one job's traces")
    return [rank for rank in told if rank is not None], True


def _lateness(traces: Sequence[SimpleNamespace]) -> tuple[Floats, Floats, list[str]]:
    """Return lateness (S, R) in the steps with common collectives, offsets of clocks (R,), and what is to be said."""
    nobody = np.empty((0, len(traces))), np.empty(0)
    if len(traces) < 2:
        return *nobody, ["one rank only: who is late is unknown; give the traces of all ranks"]
    frames = []
    for place, each in enumerate(traces):
        own = each.collectives[each.collectives["all"] & (each.collectives["step"] >= 0)]
        own = own.assign(rank=place, label=[each.labels[step] for step in own["step"]])
        frames.append(own.assign(k=own.groupby("label").cumcount()))
    table = pd.concat(frames)
    labels = set.intersection(*(set(each.labels) for each in traces))
    table = table[table["label"].isin(labels)].set_index(["label", "k", "rank"])[["begin", "end", "word"]]
    begin, end, word = (table[name].unstack("rank").reindex(columns=range(len(traces))) for name in table)
    there = begin.notna().all(axis=1)
    alike = there & word.eq(word[0], axis=0).all(axis=1)
    uneven = int((~alike).groupby(level="label").any().sum())
    fitting = there & (alike | ~there).groupby(level="label").transform("all")  # none of a step with another order
    notes = [f"{uneven} of {len(labels)} steps have other collectives on one rank than on another"] if uneven else []
    if not fitting.any():
        return *nobody, [*notes, "no collective that all ranks took part in was found: who is late is unknown"]
    offsets = end[fitting].sub(end.loc[fitting, 0], axis=0).median()
    begin = begin[fitting] - offsets
    return begin.sub(begin.min(axis=1), axis=0).groupby(level="label").mean().to_numpy(), offsets.to_numpy(), notes


def _latest(late: Floats) -> int | None:
    """Return the column of (C, R) that is later than each of the others beyond doubt, None where none is."""
    means = [stats.student(column) for column in late.T] if len(late) and late.shape[1] > 1 else []
    order = sorted(range(len(means)), key=lambda place: means[place].value)
    return order[-1] if means and means[order[-1]].low > max(means[order[-2]].value, 0.0) else None


_NUMBERS = {"rank": "rank", "ranks": "n_ranks", "number": "coll_sn", "bytes": "coll_msg_size_bytes"}
_NUMBERS |= {"seconds": "coll_exec_time_us"}
_FIELDS = _NUMBERS | {"kind": "coll", "group": "id", "host": "hostname", "timing": "coll_timing_source"}


def inspect(files: Mapping[str, Iterable[bytes]]) -> dict[str, Any]:
    """Return what the lines of the files of a job say, by times of the GPU's kernels.

    {"files", "sizes": a row for each collective and size, those that take most time first, "late": the rank that comes
    last, None where none does, "doubts"}; times in s. Raises AnalysisError where no collective of several ranks was
    recorded by all ranks that are here, for fields that are missing, and for what two files hold.
    """
    table, doubts = _records(files)
    sizes, late = [], []
    for name, own in table.groupby("group", sort=False):
        for rank, sources in own.groupby("rank")["source"].unique().items():
            if len(sources) > 1:
                both = f"{sources[0]} and {sources[1]}: both hold rank {rank:g} of communicator {name}"
                raise AnalysisError(f"{both}; give each process's file once")
        index = ["kind", "bytes", "number"]
        calls = own.pivot_table(index=index, columns="rank", values="seconds", aggfunc="last").dropna()
        ranks = int(own["ranks"].iloc[0])
        if calls.shape[1] < ranks:
            doubts.append(f"{calls.shape[1]} of {ranks} ranks of communicator {name} are here: another may be the last")
        times = pd.DataFrame({"ranks": ranks, "mean": calls.mean(axis=1), "shortest": calls.min(axis=1)})
        sizes.append(times.reset_index())
        together = calls[calls.index.get_level_values("kind").map(_word).isin(_TOGETHER)].to_numpy()
        waits = together.max(axis=1, initial=0.0, keepdims=True) - together
        if (last := _latest(waits)) is not None:
            found = {"communicator": str(name), "rank": int(calls.columns[last])}
            found["host"] = str(own.loc[own["rank"] == found["rank"], "host"].iloc[0])
            found |= {"last": float(np.mean(waits.argmax(axis=1) == last)), "late": stats.student(waits[:, last])}
            late.append((float(waits[:, last].sum()), found))
    rows: list[dict[str, Any]] = []
    key: Any
    for key, own in pd.concat(sizes).astype({"bytes": int}).groupby(["kind", "bytes", "ranks"]):
        row: dict[str, Any] = {**dict(zip(("kind", "bytes", "ranks"), key, strict=True)), "calls": len(own)}
        row |= {"time": stats.order_interval(own["mean"]), "shortest": stats.order_interval(own["shortest"])}
        rows.append({**row, "total_s": float(own["mean"].sum())})
    if not rows:
        raise AnalysisError("no collective was recorded by all ranks whose files are here; give files of one job")
    rows.sort(key=lambda row: (-row["total_s"], row["kind"], row["bytes"]))
    worst = max(late, key=lambda found: found[0])[1] if late else None
    return {"files": len(files), "sizes": rows, "late": worst, "doubts": doubts}


def _records(files: Mapping[str, Iterable[bytes]]) -> tuple[pd.DataFrame, list[str]]:
    """Return the records of collectives of several ranks that the GPU timed, and what is to be said of others.

    Without an id of the communicator those of as many ranks are of one.
    """
    kept: list[dict[str, Any]] = []
    other = 0
    for source, lines in files.items():
        for line in lines:
            try:
                record = parse_json(line, source=source, error=AnalysisError, again="")
                told = {**record.get("header", {}), **record.get("metadata", {}), **record["coll_perf"]}
                kept.append({name: told.get(field) for name, field in _FIELDS.items()} | {"source": source})
            except (AnalysisError, AttributeError, KeyError, TypeError):  # cut off, or of no collective
                other += 1
    table = pd.DataFrame(kept, columns=[*_FIELDS, "source"], dtype=object)
    missing = [_FIELDS[name] for name in (*_NUMBERS, "kind") if kept and table[name].isna().all()]
    table = table.assign(**{name: _floats(table[name]) for name in _NUMBERS})
    table["seconds"] *= _US
    timed = table["seconds"].between(0, 1e4, inclusive="neither")  # what ends before it begins wraps around
    good = (table[[*_NUMBERS]] >= 0).all(axis=1) & timed & (table["ranks"] > 1) & (table["timing"] == "kernel_gpu")
    other += int((~good).sum())
    table = table[good & table["kind"].notna()].reset_index(drop=True)
    nameless = table["group"].isna()
    unclear = table.loc[nameless & table.duplicated(["source", "rank", "ranks", "kind", "number"]), "source"].tolist()
    if table.empty or unclear:
        why = f"its records have no {', '.join(missing)}" if missing else "no collective of several ranks with a time"
        again = "give what NCCL Inspector wrote with NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=1"
        mixed = "of which communicator each is is not known; give records with an id"
        source = [*unclear, *files, "no file"][0]
        raise AnalysisError(f"{source}: {mixed if unclear else f'{why}; {again}'}")
    doubts = [f"left out: {other:,} records: cut off, of one rank, or not timed by the GPU"] if other else []
    if nameless.any():
        doubts.append("headers have no id: records of as many ranks are taken for those of one communicator")
    named = table["group"].where(~nameless, "of " + table["ranks"].map("{:g}".format) + " ranks")
    of_name = table["source"].str.extract(r"([^/]*)-pid\d+\.[^/]*$", expand=False)
    return table.assign(group=named.astype(str), host=table["host"].fillna(of_name).fillna("")), doubts
