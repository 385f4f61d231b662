"""NCCL Inspector's records: what each collective took by NCCL's own clock, who comes last, and a run's sync beside it.

Inspector is a profiler plugin of NCCL (plugins/profiler/inspector there, in releases before it ext-profiler/inspector;
RCCL has it too). Each process writes a file with one JSON object in a line for each of its collectives:

    header     id (of the communicator), rank and n_ranks (in it), nnodes
    metadata   hostname, pid, dump_timestamp_us (when it was written, not when it ran)
    coll_perf  coll, coll_sn (how many of this kind the communicator began before), coll_msg_size_bytes (of one rank),
               coll_exec_time_us, coll_timing_source

A kernel begins when its rank is there and ends on all ranks at about the same time. So the shortest time of a
collective is that of the rank that came last, which waits for nobody: the transfer. What another rank takes beyond it
is waiting, and the longest time less its own is how late a rank came. No clocks are compared.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from horovod_study.analysis import stats
from horovod_study.analysis.costs import moved_share
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.documents import conform, parse_json
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun, finite
from horovod_study.records.forms import Count, Number, Text, Workers

KERNEL = "kernel_gpu"
KEPT = 500_000
"""Records of all files together that are in memory at once; beyond, the newest of each file count."""


class _Header(TypedDict):
    id: Text
    rank: Count
    n_ranks: Workers
    nnodes: Count


class _Perf(TypedDict):
    coll: Text
    coll_sn: Count
    coll_msg_size_bytes: Count
    coll_exec_time_us: Number
    coll_timing_source: NotRequired[Text]


class _InspectorRecord(TypedDict):
    """One record, as far as it is read."""

    header: _Header
    metadata: NotRequired[dict[str, Any]]
    coll_perf: _Perf


class _NoRecordError(AnalysisError):
    """A line is no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondClock:
    """Sync of a recorded run by its laps, and the time in collectives by NCCL, s of a step, mean over the ranks."""

    run: str
    ranks: Mapping[int, tuple[float | None, float]]  # rank -> sync, collectives
    steps: int  # those that the collectives are of
    step: Interval
    sync: Interval | None
    collectives: Interval
    difference: Interval | None  # collectives - sync
    calls: Mapping[str, float]  # kind -> how many a step
    bytes: float  # a step, of those that were recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What the files of one job say."""

    files: int
    timing: str  # how the times were taken
    sizes: tuple[dict[str, Any], ...]  # those that take most time first
    late: dict[str, Any] | None
    beside: SecondClock | None
    doubts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {name: finite(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class Records:
    """The records of a job, taken file by file and line by line."""

    tables: list[pd.DataFrame] = field(default_factory=list)  # of each file with collectives of several ranks
    taken: int = 0  # with those that `tables` no longer has
    left_out: Counter[str] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)

    def read(self, source: str, lines: Iterable[bytes], files: int = 1) -> None:
        """Take the lines of one of `files` files."""
        rows: deque[tuple[Any, ...]] = deque(maxlen=max(KEPT // files, 1000))
        for line in lines:
            try:
                record = parse_json(line, source=source, error=_NoRecordError, again="")
                if isinstance(record, dict) and "coll_perf" in record:
                    record = conform(record, _InspectorRecord, source, _NoRecordError)
                elif isinstance(record, dict) and "p2p_perf" in record:
                    self.left_out["of messages from one rank to another"] += 1
                    continue
                else:
                    continue
            except _NoRecordError:
                self.left_out["cut off, or without what is needed"] += 1
                continue
            header, told, about = record["header"], record["coll_perf"], record.get("metadata", {})
            if not 0 < told["coll_exec_time_us"] < 1e10:  # what ends before it begins wraps around
                self.left_out["without a time"] += 1
            elif header["n_ranks"] > 1:
                self.taken += 1
                rows.append(
                    (
                        *(header[name] for name in ("id", "rank", "n_ranks", "nnodes")),
                        str(about.get("hostname") or ""),
                        *(told[name] for name in ("coll", "coll_sn", "coll_msg_size_bytes")),
                        told["coll_exec_time_us"] / 1e6,
                        told.get("coll_timing_source", "not said"),
                    )
                )
        if rows:
            names = ["group", "rank", "ranks", "nodes", "host", "kind", "number", "bytes", "seconds", "timing"]
            self.tables.append(pd.DataFrame(rows, columns=names).assign(source=source))
        else:
            self.empty.append(source)


@dataclass(frozen=True, slots=True)
class _Group:
    """Collectives of a communicator that all of its ranks that are here recorded."""

    name: str
    ranks: int
    nodes: int
    hosts: Mapping[int, str]  # of the ranks that are here, in order
    seconds: pd.DataFrame  # index: kind, number; a column for each rank
    bytes: Any  # (C,)
    begun: Mapping[str, int]  # kind -> how many there were, with those without a record


def _groups(table: pd.DataFrame, timing: str) -> list[_Group]:
    found = []
    for name, every in table.groupby("group", sort=False):
        files = every.groupby("rank")["source"].unique()
        for rank, sources in files.items():
            if len(sources) > 1:
                raise AnalysisError(
                    f"{sources[0]} and {sources[1]}: both hold rank {rank} of communicator {name}; give each "
                    "process's file once"
                )
        own = every[every["timing"] == timing]
        wide = own.pivot_table(index=["kind", "number"], columns="rank", values="seconds", aggfunc="last")
        wide = wide.reindex(columns=files.index).dropna()
        first, last = every.iloc[0], every.groupby("kind")["number"].max()
        found.append(
            _Group(
                name=str(name),
                ranks=int(first["ranks"]),
                nodes=int(first["nodes"]),
                hosts=dict(zip(files.index, every.groupby("rank")["host"].first(), strict=True)),
                seconds=wide,
                bytes=own.groupby(["kind", "number"])["bytes"].last().reindex(wide.index).to_numpy(),
                begun=dict(zip(last.index, last + 1, strict=True)),
            )
        )
    return found


def inspect(records: Records, run: RecordedRun | None = None) -> Inspected:
    """Return what the files of a job say, and beside the sync of a recorded run the time in collectives.

    Times of kernels count where there are any, else those of the host. Raises AnalysisError where no collective of
    several ranks was recorded by all ranks that are here, and for what two files hold.
    """
    if not records.tables:
        raise AnalysisError(
            f"{records.empty[0] if records.empty else 'no file'}: no collective of several ranks with a time; by "
            "default Inspector keeps those of 8,192 bytes or more that it timed on the GPU "
            "(NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING)"
        )
    table = pd.concat(records.tables, ignore_index=True)
    timings = table["timing"].value_counts()
    timing = KERNEL if KERNEL in timings else str(timings.index[0])
    groups = _groups(table, timing)
    sizes: dict[tuple[str, int, int, int], list[Floats]] = {}
    late = []
    for each in groups:
        kinds = each.seconds.index.get_level_values("kind")
        seconds = each.seconds.to_numpy()
        for kind, size in sorted(set(zip(kinds, each.bytes, strict=True))):
            own = seconds[(kinds == kind) & (each.bytes == size)]
            sizes.setdefault((kind, int(size), each.ranks, each.nodes), []).append(own)
        together = seconds[kinds.isin(("AllReduce", "AllGather", "ReduceScatter"))]  # these end on all ranks together
        if timing == KERNEL and len(together) > 1 and together.shape[1] > 1:
            late += _late(each, together.max(axis=1, keepdims=True) - together)
    if not sizes:
        raise AnalysisError(
            "no collective was recorded by all ranks whose files are here; give files of one job, which Inspector "
            "wrote now and then (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000), not only at its end"
        )
    rows = [_size(*key, group) for key, group in sizes.items()]
    beside, doubts = (None, []) if run is None else _beside(groups, run)
    return Inspected(
        files=len(records.tables) + len(records.empty),
        timing=timing,
        sizes=tuple(sorted(rows, key=lambda row: (-row["total_s"], row["kind"], row["bytes"]))),
        late=max(late, key=lambda found: found[0])[1] if late else None,
        beside=beside,
        doubts=(*_doubts(records, table, timing, groups), *doubts),
    )


def _size(kind: str, size: int, ranks: int, nodes: int, groups: Sequence[Floats]) -> dict[str, Any]:
    """Return the row of collectives of a size, groups of (C, R) s."""
    mean = np.concatenate([seconds.mean(axis=1) for seconds in groups])
    shortest = stats.order_interval(np.concatenate([seconds.min(axis=1) for seconds in groups]))
    share = float(moved_share(ranks))  # 2 (n - 1) / n
    moved = {"AllReduce": share, "Broadcast": 1.0, "Reduce": 1.0}
    moved |= dict.fromkeys(("AllGather", "ReduceScatter"), share / 2 * ranks)
    return {
        "kind": kind,
        "bytes": size,
        "ranks": ranks,
        "nodes": nodes,
        "communicators": len(groups),
        "calls": len(mean),
        "time": stats.order_interval(mean),
        "shortest": shortest,
        "busbw_gb_per_s": moved[kind] * size / shortest.value / 1e9 if kind in moved else None,
        "total_s": float(mean.sum()),
    }


def _late(own: _Group, late: Floats) -> list[tuple[float, dict[str, Any]]]:
    """Return the rank that is later than each of the others beyond doubt, and how long all waited; `late` is (C, R)."""
    means = [stats.student(column) for column in late.T]
    second, first = np.argsort([each.value for each in means])[-2:]
    if not means[first].low > max(means[second].value, 0.0):
        return []
    rank, host = list(own.hosts.items())[first]
    last = float(np.mean(late.argmax(axis=1) == first))
    found = {"communicator": own.name, "rank": int(rank), "host": host, "late": means[first], "last": last}
    return [(float(late[:, first].sum()), found)]


def _doubts(records: Records, table: pd.DataFrame, timing: str, groups: Sequence[_Group]) -> Iterator[str]:
    others = table.loc[table["timing"] != timing, "timing"]
    if timing != KERNEL:
        yield (
            f"times are not of the GPU's kernels ({timing}): they hold what the host does before and after, bandwidths "
            "are too low, and who comes last is not seen"
        )
    elif len(others):
        yield f"left out: {len(others):,} records that the host timed ({', '.join(sorted(set(others)))})"
    for what, count in records.left_out.items():
        yield f"left out: {count:,} record{'s' * (count > 1)} {what}"
    if records.empty:
        yield f"no collective of several ranks in {len(records.empty)} of the files, such as {records.empty[0]}"
    if len(table) < records.taken:
        yield f"of {records.taken:,} records the newest {len(table):,} count"
    few = min(groups, key=lambda each: len(each.hosts) / each.ranks)
    if len(few.hosts) < few.ranks:
        yield (
            f"{len(few.hosts)} of {few.ranks} ranks of communicator {few.name} are here: the last one may be another, "
            "and the shortest time may hold waiting"
        )
    begun = int((table.groupby(["group", "rank", "kind"])["number"].max() + 1).sum())
    if records.taken < begun:
        yield (
            f"{records.taken:,} of {begun:,} collectives have a record; the others are smaller than "
            "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8,192), or were overwritten, of which NCCL_INSPECTOR_DUMP_COLL_RING_"
            "SIZE (1,024) are kept from one dump to the next, or to the end"
        )
    parts: list[set[str]] = []
    for own in table.groupby("source")["group"].unique().map(set):
        touched = [part for part in parts if part & own]
        parts = [*(part for part in parts if not part & own), own.union(*touched)]
    if len(parts) > 1:
        yield f"{len(parts)} sets of processes share no communicator: if these are several jobs, give the files of one"


def _beside(groups: Sequence[_Group], run: RecordedRun) -> tuple[SecondClock | None, list[str]]:
    """Return both clocks of a run's steps, and what is to be doubted.

    Every step makes as many collectives of a kind as the next, c: all that there were over the steps, rounded where it
    is nearly whole. Collective k is of step k / c. Timed steps count, and of these such as have records before and
    after them, too: a step at the edge of what was overwritten is incomplete.
    """
    fitting = [each for each in groups if each.ranks == run.workers]
    if not fitting:
        known = sorted({each.ranks for each in groups})
        raise AnalysisError(
            f"{run.name}: has {run.workers} workers, and the communicators {', '.join(map(str, known))} ranks; give "
            "the run that Inspector looked at"
        )
    own = max(fitting, key=lambda each: len(each.seconds))
    laps = {rank: run.rows[rank] for rank in own.hosts if rank in run.rows}
    if not laps:
        raise AnalysisError(f"{run.name}: none of its ranks with steps has a file of Inspector")
    steps = min(int(rows["step"][-1]) + 1 for rows in laps.values())
    calls = {kind: count / steps for kind, count in own.begun.items() if count >= steps}  # not broadcasts at the begin
    kinds, numbers = (own.seconds.index.get_level_values(name) for name in ("kind", "number"))
    each = kinds.map({kind: round(count) if _even(count) else count for kind, count in calls.items()})
    step = np.floor(numbers.to_numpy() / each.to_numpy(dtype=np.float64))  # NaN of what is not of every step
    of_step = own.seconds[list(laps)].assign(bytes=own.bytes).groupby(step).sum()
    there = of_step.index.to_numpy()
    timed = (there >= run.first_step) & (there < steps) & np.isin(there - 1, there) & np.isin(there + 1, there)
    if timed.sum() < 2:
        return None, [
            f"{run.name}: fewer than two of its timed steps have records of all ranks that are here; let Inspector "
            "dump now and then (NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=1000000)"
        ]
    whole = of_step[timed]
    collectives = stats.student(whole[list(laps)].mean(axis=1))
    waits, lengths = (
        pd.DataFrame({rank: pd.Series(rows[name], index=rows["step"]) for rank, rows in laps.items()})
        .loc[run.first_step :]
        .dropna()
        for name in ("sync_s", "step_s")
    )
    sync = stats.student(waits.mean(axis=1)) if len(waits) else None
    found = SecondClock(
        run=run.name,
        ranks={rank: (stats.finite_or_none(waits[rank].mean()), float(whole[rank].mean())) for rank in laps},
        steps=len(whole),
        step=stats.student(lengths.mean(axis=1)),
        sync=sync,
        collectives=collectives,
        difference=None if sync is None else stats.difference(collectives, sync),
        calls=calls,
        bytes=float(whole["bytes"].mean()),
    )
    return found, list(_clock_doubts(groups, found, run, own))


def _even(calls: float) -> bool:
    """Return whether each step may well make as many collectives, and a few more belong to none."""
    return abs(calls - round(calls)) <= 0.05 * calls


def _clock_doubts(groups: Sequence[_Group], found: SecondClock, run: RecordedRun, own: _Group) -> Iterator[str]:
    if len(found.ranks) < run.workers:
        yield f"{run.name}: both clocks are there for {len(found.ranks)} of {run.workers} ranks"
    if run.synchronisation is not None or run.ablation is not None:
        yield f"{run.name}: measured more after its steps, and its collectives are taken for some of the steps'"
    if len(run.record.attempts) > 1:
        yield f"{run.name}: was resumed; the steps before that are not in the files of its last processes"
    for kind, each in found.calls.items():
        if not _even(each):
            yield f"{run.name}: {each:.2f} {kind} a step: not every step makes as many, and which are whose is a guess"
    if len(groups) > 1:
        yield f"{run.name}: of {len(groups)} communicators that of all workers ({own.name}) counts"
