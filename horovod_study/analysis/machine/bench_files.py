"""Files that say what a network does: bench.json, and what nccl-tests, rccl-tests and OSU's osu_allreduce print.

Text goes in, documents with the form of `horovod-study bench` come out, so that whatever takes the one takes the other.
Read are lines that look like rows, wherever they are in a job's log, with or without what a launcher puts before them:

    nccl-tests, rccl-tests   size count type redop [root]  time algbw busbw #wrong  [the same of the reduction in place]
    osu_allreduce            size  average latency  [least, largest, iterations, validation]

Times are microseconds. In-place times are used where they were measured, as training reduces in place. Tables of the
same workers and hosts are repeats of each other. Two checks say that a table of nccl-tests is what it seems to be:
algbw must be size / time, and busbw / algbw must be the 2 (n - 1) / n of an all-reduce (doc/PERFORMANCE.md there).
From the latter n follows where the lines that name the devices are missing. OSU never prints how many ranks there were.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod_study.analysis.costs import moved_share, rounds
from horovod_study.analysis.machine.network import analyze
from horovod_study.documents import parse_json
from horovod_study.errors import AnalysisError

ROUNDED = 0.0051
"""GB/s: both bandwidths are printed with two decimals."""
BENCH_FILE = "a bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed"
_FITS = 3
"""Sizes that a line needs."""

_LAUNCHER = re.compile(r"^(?:\[[\d,]+\]<std\w+>:|\d+:)\s?")
_ROW = re.compile(r"(?:^|[\s:>\]|])(\d+)\s+(\d+)\s+([a-z]\w*)\s+(sum|prod|min|max|avg|mulsum|none)\s+(\S.*)$")
_RANK = re.compile(r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\b")
_OSU = re.compile(r"# OSU (\S+) (Non-blocking |Persistent )?Allreduce .*Latency Test")
_OSU_ROW = re.compile(r"^\s*(\d+)\s+(\d+\.?\d*)((?:\s+[\w.]+)*)\s*$")
_BOUNDS = re.compile(r"# Out of bounds values : (\d+)")
_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
_PLACED = re.compile(r"^(.+)@(?:(\d{1,7})x)?(\d{1,7})$")


def placed_name(name: str) -> tuple[str, tuple[int, int] | None]:
    """Split `FILE@NODESxPER_NODE` or `FILE@WORKERS` (on one node) into the file, and nodes and workers on each."""
    found = _PLACED.match(name)
    return (name, None) if found is None else (found[1], (int(found[2] or 1), int(found[3])))


@dataclass(slots=True)
class _Table:
    """One table of an output: what was printed above its rows, and the rows."""

    program: str
    way: str
    ranks: list[tuple[str, str, str]] = field(default_factory=list)  # group, rank, host
    seconds: dict[int, list[float]] = field(default_factory=dict)
    rates: list[tuple[int, float, float]] = field(default_factory=list)  # line, algbw, busbw in GB/s
    dtypes: Counter[str] = field(default_factory=Counter)
    in_place: bool = False
    wrong: int = 0
    cpu_time: bool = False
    aggregated: int = 1
    how: str = ""  # the workers were found


def benches_of(text: str, *, source: str, gradient_bytes: float | None = None) -> list[dict[str, Any]]:
    """Return the documents of a bench.json (one) or of what another benchmark printed; AnalysisError for neither.

    `source` is the name of the file, with `@NODESxPER_NODE` behind it where an output does not say where its ranks
    were. `gradient_bytes`: the size that counts for an output, which knows of no model.
    """
    if not text.lstrip().startswith("{") and (_OSU.search(text) or any(map(_ROW.search, text.splitlines()))):
        name, placed = placed_name(source)
        return documents(text, source=name, placed=placed, gradient_bytes=gradient_bytes)
    again = f"give {BENCH_FILE}"
    content = parse_json(text, source=source, error=AnalysisError, again=again)
    if not isinstance(content, dict):
        raise AnalysisError(f"{source}: holds no object; {again}")
    for key in ("fits", "model"):
        if key not in content:
            raise AnalysisError(f"{source}: has no {key!r}; {again}")
    return [content]


def documents(
    text: str, *, source: str, placed: tuple[int, int] | None = None, gradient_bytes: float | None = None
) -> list[dict[str, Any]]:
    """Return one document as of bench.json for each placement of workers in an output, the fewest workers first.

    `placed`: nodes and ranks on each, where the output does not say it. `gradient_bytes` becomes the size that counts,
    since no model was measured. Key "read" says in one line what was read. Raises AnalysisError, with the line, for
    what is no all-reduce of several workers, and where nobody says how many there were.
    """
    found: dict[tuple[str, tuple[str, ...]], list[_Table]] = {}
    for table in _tables(text, source):
        found.setdefault((table.way, _hosts(table, source, placed)), []).append(table)
    if not found:
        raise AnalysisError(
            f"{source}: holds no all-reduce of nccl-tests, rccl-tests or OSU; give what all_reduce_perf or "
            "osu_allreduce printed, or the bench.json of `horovod-study bench`"
        )
    ordered = sorted(found.items(), key=lambda each: (len(each[0][1]), len(set(each[0][1]))))
    return [_document(tables, hosts, source, gradient_bytes) for (_, hosts), tables in ordered]


def largest_of_each_kind(
    benches: Sequence[tuple[dict[str, Any], str]],
) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """Return the file with most workers on one node and that with most across nodes, and what the others say.

    Constants hold best near the workers they were measured with. What is set aside is compared with them: its measured
    times over those of the alpha-beta model (costs.py) with the constants kept, at the largest size of both.
    """
    kept: dict[bool, tuple[dict[str, Any], str]] = {}
    for content, source in benches:
        spans = len(set(_hosts_of(content))) > 1
        if spans not in kept or content.get("workers", 0) >= kept[spans][0].get("workers", 0):
            kept[spans] = (content, source)
    chosen, doubts = [], []
    for content, source in benches:
        best, name = kept[len(set(_hosts_of(content))) > 1]
        if content is best:
            chosen.append((content, source))
        else:
            doubts.append(
                f"{source}: {content['workers']} workers, set aside for the {best['workers']} of {name}"
                + _compared(content, best)
            )
    return chosen, doubts


def _tables(text: str, source: str) -> Iterator[_Table]:
    """Yield the tables of all-reduces that have rows, in the order of the text."""
    rccl = "rccl" in text.lower() or re.search(r"device\s+\d+ \[[^\]]+\] AMD ", text) is not None
    fresh = ("rccl-tests" if rccl else "nccl-tests", "nccl")
    if text.startswith("# NCCL Inspector"):  # as `explain --out` leaves it
        fresh = ("NCCL Inspector", "nccl")
    table, osu, other = _Table(*fresh), False, False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _LAUNCHER.sub("", raw)
        title = _OSU.search(line)
        if "Collective test starting" in line:
            other = "all_reduce" not in line
        if any(words in line for words in ("# OSU ", "nThread ", "Collective test starting")):
            if table.seconds:
                yield table
                table = _Table(*fresh)
            osu = title is not None and title[2] is None
            if title is not None:
                table = _Table("osu_allreduce", title[1].split("-")[0].lower())
        if osu:
            _osu_line(table, line)
        elif not other:
            _nccl_line(table, line, f"{source} line {number}", number)
    if table.seconds:
        yield table


def _nccl_line(table: _Table, line: str, where: str, number: int) -> None:
    if rank := _RANK.search(line):
        table.ranks.append((rank[2] or "0", rank[1], rank[4]))
    elif bounds := _BOUNDS.search(line):
        table.wrong = max(table.wrong, int(bounds[1]))
    elif aggregated := re.search(r"\bagg iters: (\d+)", line):
        table.aggregated = int(aggregated[1])
    elif "cputime" in line:
        table.cpu_time = True
    elif row := _ROW.search(line):
        size, count, dtype, operation = int(row[1]), int(row[2]), row[3], row[4]
        words = row[5].split()
        words = words[len(words) % 4 == 1 :]  # without the root, which is -1
        if operation == "none" or size == 0 or len(words) not in (4, 8):
            return
        if table.cpu_time:
            raise AnalysisError(f"{where}: has times of the host's calls (-C 1), not of the collective; measure again")
        if size != count * _BYTES.get(dtype, size / max(count, 1)):
            raise AnalysisError(f"{where}: {count:,} elements of {dtype} are not {size:,} bytes; no all-reduce?")
        for inside, group in ((True, words[4:]), (False, words[:4])):
            if not group or not re.fullmatch(r"\d+\.?\d*(?:e[+-]?\d+)?", group[0]) or float(group[0]) <= 0:
                continue
            micros, rate, bus = (float(word) for word in group[:3])
            expected = size / micros / 1e3
            if abs(rate - expected) > ROUNDED + 0.01 * expected:
                raise AnalysisError(
                    f"{where}: {size:,} bytes in {micros:g} us are {expected:.4g} GB/s, and the line says {rate:g}; "
                    "give the output as all_reduce_perf printed it"
                )
            table.seconds.setdefault(size, []).append(micros / 1e6)
            table.rates.append((number, rate, bus))
            table.dtypes[dtype] += 1
            table.in_place |= inside
            table.wrong += sum(int(each[3]) for each in (words[:4], words[4:]) if each and each[3].isdecimal())
            return


def _osu_line(table: _Table, line: str) -> None:
    if kind := re.search(r"# Datatype: (\w+)", line):
        table.dtypes[kind[1]] += 1
    elif (row := _OSU_ROW.match(line)) and int(row[1]) > 0 and float(row[2]) > 0:
        table.seconds.setdefault(int(row[1]), []).append(float(row[2]) / 1e6)
        table.wrong += row[3].split()[-1:] == ["Fail"]


def _hosts(table: _Table, source: str, placed: tuple[int, int] | None) -> tuple[str, ...]:
    """Return the host of each rank, and note how that is known."""
    if len(set(table.ranks)) < len(table.ranks) or len({each[:2] for each in table.ranks}) < len(table.ranks):
        raise AnalysisError(
            f"{source}: rank {table.ranks[0][1]} is there {sum(each[1] == '0' for each in table.ranks)} times: each "
            "process measured alone; build the tests with MPI=1, and give the output of one job"
        )
    groups = Counter(group for group, _, _ in table.ranks)
    first = min(groups, key=int, default="0")
    hosts = tuple(host for group, _, host in table.ranks if group == first)
    table.how = "of the devices listed"
    if placed is not None:
        nodes, per_node = placed
        if hosts and len(hosts) != nodes * per_node:
            raise AnalysisError(
                f"{source}: lists {len(hosts)} devices, and {nodes * per_node} workers were said; leave the number out"
            )
        hosts, table.how = tuple(f"node{node}" for node in range(nodes) for _ in range(per_node)), "as said"
    elif not hosts:
        hosts = ("node0",) * _inferred(table, source)
        table.how = f"from busbw/algbw; all on one node is assumed, else say {source}@NODESxN"
    if len(hosts) < 2:
        raise AnalysisError(f"{source}: is of one worker, who sends nothing; measure two or more")
    n, factor = len(hosts), float(moved_share(len(hosts)))
    for number, rate, bus in table.rates:  # beyond rounding
        if rate > 0 and abs(bus - factor * rate) > (1 + factor) * ROUNDED + 0.002 * bus:
            raise AnalysisError(
                f"{source} line {number}: busbw / algbw is {bus / rate:.4g}, and an all-reduce of {n} workers has "
                f"{factor:.4g}: another collective, or another number of workers"
            )
    return hosts


def _inferred(table: _Table, source: str) -> int:
    """Return the workers that busbw / algbw = 2 (n - 1) / n of all rows says; AnalysisError where several fit."""
    low, high = 0.0, 2.0
    for _, rate, bus in table.rates:
        if rate > 10 * ROUNDED:
            low = max(low, (bus - ROUNDED) / (rate + ROUNDED))
            high = min(high, (bus + ROUNDED) / (rate - ROUNDED))
    fitting = range(math.ceil(2 / (2 - low)), math.floor(2 / (2 - high)) + 1) if low < 2 > high >= low else range(0)
    if len(fitting) != 1 or fitting[0] < 3:  # a ratio of 1 is also that of a broadcast
        several = len(fitting) > 1
        what = f"{fitting[0]} to {fitting[-1]} workers fit its bandwidths" if several else "nothing in it tells"
        raise AnalysisError(
            f"{source}: how many workers there were is unknown ({what}); say it behind the name: {source}@8 for 8 on "
            f"one node, {source}@4x8 for 4 nodes with 8 each"
        )
    return fitting[0]


def _document(
    tables: Sequence[_Table], hosts: Sequence[str], source: str, gradient_bytes: float | None
) -> dict[str, Any]:
    first, n = tables[0], len(hosts)
    seconds: dict[int, list[float]] = {}
    for table in tables:
        for size, times in table.seconds.items():
            seconds.setdefault(size, []).extend(times)
    if len(seconds) < _FITS:
        raise AnalysisError(
            f"{source}: {n} workers were measured with {len(seconds)} size{'s' * (len(seconds) > 1)}; a line needs "
            f"{_FITS}: all_reduce_perf -b 8 -e 256M -f 2"
        )
    wrong = sum(table.wrong for table in tables)
    place = {"operation": "allreduce", "place": "in", "iterations": 1, "seconds_median_op": None}
    points = [
        {"way": first.way, **place, "bytes": size, "seconds": times, "wrong": wrong if size == max(seconds) else 0}
        for size, times in sorted(seconds.items())
    ]
    job = {
        "ways": [{"name": first.way, "raw": True}],
        "points": points,
        "barriers": [],
        "conditions": {"ranks": [{"host": host} for host in hosts], "settings": {}, "load_before": 0.0},
    }
    if gradient_bytes is None:
        raise AnalysisError(f"{source}: knows no model; say how many bytes the gradients have: --gradient-mb")
    model = {"gradients": {}, "flat_bytes": gradient_bytes, "batch": 1}
    found = analyze({"workers": n, "model": {**model, "flat_bytes": 0}, "jobs": [job]})
    read = _read(tables, hosts, seconds)
    return {**found.to_dict(), "model": model, "unavailable": {}, "measured": [job], "read": read}


def _read(tables: Sequence[_Table], hosts: Sequence[str], seconds: Mapping[int, Sequence[float]]) -> str:
    first, n, nodes = tables[0], len(hosts), len(set(hosts))
    repeats = f", {len(tables)} repeats" if len(tables) > 1 else ""
    where = "as osu_allreduce does" if first.program.startswith("osu") else "out of place"
    where = "in place" if first.in_place else where
    dtypes = ", ".join(sorted({name for table in tables for name in table.dtypes})) or "type unknown"
    parts = [
        f"{first.program}, all-reduce of {n} workers on {nodes} node{'s' * (nodes > 1)} ({first.how})",
        f"{len(seconds)} sizes from {min(seconds):,} to {max(seconds):,} bytes{repeats}, {dtypes}, {where}",
    ]
    if any(table.wrong for table in tables):
        parts.append("with wrong results")
    if (aggregated := max(table.aggregated for table in tables)) > 1:
        parts.append(f"{aggregated} aggregated in a group: their latency is not that of one alone")
    return "; ".join(parts)


def _hosts_of(content: Mapping[str, Any]) -> list[str]:
    jobs = content.get("measured") or [{}]
    return [str(rank.get("host")) for rank in (jobs[0].get("conditions") or {}).get("ranks", [])]


def _compared(content: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return how the times of `content` compare with the alpha-beta model of `best`, where both have an all-reduce."""
    way = next((name for name in best.get("fits") or {} if name in (content.get("fits") or {})), None)
    if way is None:
        return ""
    n, m = content["workers"], best["workers"]
    own, theirs = (
        {row["bytes"]: row["seconds_median"] for row in each["points"] if (row["way"], row["place"]) == (way, "in")}
        for each in (content, best)
    )
    common = set(own) & set(theirs)
    if not common:
        return ""
    size = max(common)
    # As in simulation: bytes from the time at this size, latency by the rounds.
    alpha_s = min(best["fits"][way]["alpha_s"], theirs[size])
    latency_s = alpha_s * float(rounds(n) / rounds(m))
    model_s = latency_s + (theirs[size] - alpha_s) * float(moved_share(n) / moved_share(m))
    return f": of {size:,} bytes they took {own[size] / model_s:.2f} of what the constants kept say"
