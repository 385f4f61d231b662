"""Files that say what a network does: bench.json, and what nccl-tests, rccl-tests and OSU's osu_allreduce print.

Text goes in, documents with the form of `horovod-study bench` come out, so that whatever takes the one takes the other.
Rows are read wherever they are in a job's log, with or without what a launcher puts before them. What a column is says
the line of heads, in which unit the line below it. Rows without heads count as those of nccl-tests since 2019. Older:
NCCL 1 and its successors until 2018 have bytes, N, type, op and ms. In-place times are used where they were measured,
as training reduces in place. Tables of the same workers and hosts are repeats, unless they differ by more than noise.

Two checks say that a row of nccl-tests is what it seems to be: algbw must be size / time, and busbw / algbw must be the
2 (n - 1) / n of an all-reduce (doc/PERFORMANCE.md there), both as exactly as they are printed. From the latter n
follows where the lines that name the devices are missing. OSU never prints how many ranks there were.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from horovod_study.analysis.costs import moved_share, rounds
from horovod_study.analysis.impossible import impossible
from horovod_study.analysis.machine.network import all_reduces, analyze
from horovod_study.documents import parse_json
from horovod_study.errors import AnalysisError

BENCH_FILE = "a bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed"
_FITS = 3
"""Sizes that a line needs."""
_LARGE, _APART, _ALL_APART = 2**20, 1.5, 2.0
"""Times of a size from so many bytes on that differ by this factor, or of most sizes by that, are of no repeats."""

_COLUMNS = {"bytes": "size", "N": "count", "op": "redop", "cputime": "time", "Size": "size", "Avg": "time"}
"""What other versions and OSU call a column."""
_OPERATIONS = ("sum", "prod", "min", "max", "avg", "mulsum")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_RATES = {"MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}

_LAUNCHER = re.compile(r"^(?:\[[\d,]+\]<std\w+>:|\d+:)\s?")
_TESTS = "all_reduce|all_?gather|reduce_scatter|all_?to_?allv?|sendrecv|broadcast|reduce|gather|scatter|hypercube"
_TEST = re.compile(rf"(?:(?<![a-z_])|starting: )({_TESTS})(?:_(?:perf|test)\b|$)")
_HEADS = re.compile(r"(?:^|\s)((?:size|bytes)\s+(?:count|N)\s+type\s[^:]*\balgbw\s[^:]*)$")
_ROW = re.compile(r"(?:^|[\s:>\]|#])(\d+\s+\d+\s+[a-z]\w*\s+\S.*)$")
_RANK = re.compile(r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?(?:on\s+(\S+)|uses)\s+device\b")
_RANK_1 = re.compile(r"\bDevice\s+(\d+)()()\s+->\s+\d+\s+\[0x")  # NCCL 1: one process on one host
_OSU = re.compile(r"# OSU (\S+) (.+?) Test\b")
_OSU_TIME = re.compile(r"(?:(\w+)\s)?Lat(?:ency)?\s?\((\w+)\)")
_PLACED = re.compile(r"^(.+)@(?:(\d{1,7})x)?(\d{1,7})$")


def placed_name(name: str) -> tuple[str, tuple[int, int] | None]:
    """Split `FILE@NODESxPER_NODE` or `FILE@WORKERS` (on one node) into the file, and nodes and workers on each."""
    found = _PLACED.match(name)
    return (name, None) if found is None else (found[1], (int(found[2] or 1), int(found[3])))


class _Row(NamedTuple):
    """One row, in the words that were printed: the last digit says how exact a number is."""

    line: int
    size: int
    count: int
    kind: tuple[str, str]  # type and operation, "" for none
    root: str
    time: str
    algbw: str = ""
    busbw: str = ""


@dataclass(slots=True)
class _Table:
    """One table of an output: what was printed above its rows, and the rows."""

    program: str
    way: str = "nccl"
    test: str = "all_reduce"  # as a title or a command says
    heads: list[str] = field(default_factory=list)
    unit: str = ""  # of times; where nothing says it, the rates of the rows do
    rate_unit: str = "GB"
    ranks: list[tuple[str, str, str]] = field(default_factory=list)  # group, rank, host
    rows: list[_Row] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # rows that do not fit the heads
    dtype: str = "type unknown"
    wrong: int = 0
    aggregated: int = 1
    cpu_time: bool = False
    in_place: bool = False
    seconds: dict[int, list[tuple[float, int]]] = field(default_factory=dict)  # size -> times, each with its line
    how: str = ""  # the workers were found


def benches_of(text: str, *, source: str, gradient_bytes: float | None = None) -> list[dict[str, Any]]:
    """Return the document of a bench.json, or those of another benchmark's output, the fewest workers first.

    `source` is the name of the file, with `@NODESxPER_NODE` behind it where an output does not say where its ranks
    were. `gradient_bytes`: the size that counts for an output, which knows of no model. Key "read" says in one line
    what was read, and what was left out: other collectives, tables of one worker. Raises AnalysisError, with the line,
    where nothing is left, for two configurations of the same workers, and where nobody says how many there were.
    """
    name, placed = placed_name(source)
    tables = [] if text.lstrip().startswith("{") else list(_tables(text))
    if tables:
        return _documents(tables, name, placed, gradient_bytes)
    again = f"give {BENCH_FILE}"
    content = parse_json(text, source=source, error=AnalysisError, again=again)
    if not isinstance(content, dict):
        raise AnalysisError(f"{source}: holds no object; {again}")
    for key in ("fits", "model"):
        if key not in content:
            raise AnalysisError(f"{source}: has no {key!r}; {again}")
    return [content]


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


def _documents(
    tables: Sequence[_Table], source: str, placed: tuple[int, int] | None, gradient_bytes: float | None
) -> list[dict[str, Any]]:
    """Return a document for each placement of workers; what is no all-reduce of several is said in the first."""
    if gradient_bytes is None:
        raise AnalysisError(f"{source}: knows no model; say how many bytes the gradients have: --gradient-mb")
    found: dict[tuple[str, tuple[str, ...]], list[_Table]] = {}
    left: list[str] = []
    for table in tables:
        try:
            _take(table, source)
            found.setdefault((table.way, _hosts(table, source, placed)), []).append(table)
        except AnalysisError as error:
            left.append(str(error))
        left += [f"{source} {each}" for each in table.left]
    made = []
    for (_, hosts), own in sorted(found.items(), key=lambda each: (len(each[0][1]), len(set(each[0][1])))):
        if (sizes := len({size for table in own for size in table.seconds})) >= _FITS:
            made.append(_document(own, hosts, source, gradient_bytes))
        else:
            left.append(
                f"{source}: {len(hosts)} workers were measured with {sizes} size{'s' * (sizes > 1)}; a line needs "
                f"{_FITS}: all_reduce_perf -b 8 -e 256M -f 2"
            )
    more = [f"and {len(left) - 3} more"] if len(left) > 3 else []
    if not made:
        raise AnalysisError("; ".join([*left[:3], *more]))
    if left:
        made[0]["read"] += f"; left out: {'; '.join([*left[:3], *more])}"
    return made


def _tables(text: str) -> Iterator[_Table]:
    """Yield the tables that have rows, of whatever collective, in the order of the text."""
    rccl = "rccl" in text.lower() or re.search(r"device\s+\d+ \[[^\]]+\] AMD ", text) is not None
    program = "NCCL Inspector" if text.startswith("# NCCL Inspector") else "rccl-tests" if rccl else "nccl-tests"
    table = _Table(program)
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _LAUNCHER.sub("", raw)
        title, heads, tests = _OSU.search(line), _HEADS.search(line), set(_TEST.findall(line))
        if title or heads or tests or "nThread " in line or "# Using devices" in line:
            if table.rows or table.left:
                yield table
                table = _Table(program, test=table.test, ranks=table.ranks if heads else [])
            if title:
                whole = title[2].startswith("Allreduce") and title[2].endswith("Latency")
                test = "all_reduce" if whole else f"OSU's {title[2]} Test, line {number}"
                table = _Table("osu_allreduce", title[1].split("-")[0].lower(), test, ["size", "time"], "us")
            elif tests:  # where a line names several, the rows have to tell
                table.test = (
                    "all_reduce" if len(tests) > 1 or "all_reduce" in tests else f"{tests.pop()}, line {number}"
                )
        if heads:
            table.heads = [_COLUMNS.get(word, word) for word in heads[1].split()]
            table.cpu_time = "cputime" in line
        elif table.heads and not table.rows and (units := re.findall(r"\((\w+)(/s)?\)", line)):
            table.unit = next((unit for unit, per in units if unit in _SECONDS and not per), table.unit)
            table.rate_unit = next((unit for unit, per in units if unit in _RATES and per), table.rate_unit)
        if not heads:
            _take_line(table, line, number)
    if table.rows or table.left:
        yield table


def _take_line(table: _Table, line: str, number: int) -> None:
    """Take what one line says of the devices, of a row, or of the results."""
    words = line.split()
    if rank := _RANK.search(line) or _RANK_1.search(line):
        table.ranks.append((rank[2] or "0", rank[1], rank[3] or "node0"))
    elif bounds := re.search(r"\bOut of bounds values : (\d+)", line):
        table.wrong = max(table.wrong, int(bounds[1]))
    elif aggregated := re.search(r"\bagg iters: (\d+)", line):
        table.aggregated = int(aggregated[1])
    elif kind := re.search(r"# Datatype: (\w+)", line):
        table.dtype = kind[1]
    elif not table.program.startswith("osu"):
        if row := _ROW.search(line):
            _nccl_row(table, row[1].split(), number)
    elif words[:2] == ["#", "Size"]:
        named = _OSU_TIME.sub(lambda found: found[1] or "Avg", line).split()[1:]
        table.heads = [_COLUMNS.get(word, word) for word in named]
    elif len(words) > 1 and words[0].isdecimal() and int(words[0]) > 0:
        cells = dict(zip(table.heads, words, strict=False))
        table.rows.append(_Row(number, int(words[0]), 0, (table.dtype, ""), "-1", cells.get("time", "")))
        table.wrong += words.count("Fail")


def _nccl_row(table: _Table, words: list[str], number: int) -> None:
    heads = table.heads
    if not heads:  # as since 2019, with or without root
        if words[3] not in (*_OPERATIONS, "none") or len(words) not in (8, 9, 12, 13):
            return
        heads = ["size", "count", "type", "redop", *(["root"] if len(words) % 4 == 1 else [])]
        heads += ["time", "algbw", "busbw", "#wrong"] * (len(words) // 4 - 1)
    if heads[-1] == "timestamp":  # of two words, in the last column
        heads = heads[:-1]
        words = words[: len(heads)]
    first, groups = heads.index("time") if "time" in heads else 0, heads.count("time")
    width = (len(heads) - first) // max(groups, 1)
    if not groups or len(words) not in (len(heads), first + width):
        if words[2] in _BYTES:
            table.left.append(f"line {number}: has {len(words)} words under {len(heads)} heads")
        return
    cells = dict(zip(heads[:first], words, strict=False))
    parts = [
        dict(zip(heads[first : first + width], words[at:], strict=False)) for at in range(first, len(words), width)
    ]
    table.wrong += sum(int(value) for part in parts if (value := _number(part.get("#wrong", ""))[0]) > 0)
    chosen = next((part for part in reversed(parts) if _number(part["time"])[0] > 0), None)
    if chosen is None or int(words[0]) == 0:
        return
    table.in_place |= groups > 1 and chosen is parts[-1]
    kind, root = (words[2], cells.get("redop", "none")), cells.get("root", "-1")
    told = (chosen[each] for each in ("time", "algbw", "busbw"))
    table.rows.append(_Row(number, int(words[0]), int(words[1]), kind, root, *told))


def _number(word: str) -> tuple[float, float]:
    """Return a number, and half of the last digit that was printed; NaN for what is none."""
    if not re.fullmatch(r"\d+\.?\d*(?:e[+-]?\d+)?", word):
        return math.nan, math.nan
    digits, _, power = word.partition("e")
    return float(word), 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def _take(table: _Table, source: str) -> None:
    """Take the times of a table, each row checked; AnalysisError, with the line, where it is of no all-reduce."""
    if not table.rows:
        raise AnalysisError(f"{source}: holds no rows of an all-reduce; give what all_reduce_perf printed")
    at = f"{source} line {table.rows[0].line}"
    if table.test != "all_reduce":
        raise AnalysisError(f"{at}: is of {table.test}, and no all-reduce; give all_reduce_perf or osu_allreduce")
    if any(row.root != "-1" for row in table.rows):
        raise AnalysisError(f"{at}: column root is {table.rows[0].root}, and an all-reduce has none (-1): a reduce?")
    if any(row.kind[1] == "none" for row in table.rows):
        raise AnalysisError(f"{at}: adds nothing up (no redop), so it is no all-reduce: an all-gather, a broadcast?")
    if table.cpu_time:
        raise AnalysisError(f"{at}: has times of the host's calls (-C 1), not of the collective; measure again")
    sizes: dict[tuple[str, str], set[int]] = {}
    for row in table.rows:
        sizes.setdefault(row.kind, set()).add(row.size)
    kind = max(sizes, key=lambda each: (len(sizes[each]), each[1] == "sum", each[0] == "float"))
    rows = [row for row in table.rows if row.kind == kind]
    table.dtype = kind[0]
    if len(sizes) > 1:
        table.left.append(f"line {rows[0].line}: {len(table.rows) - len(rows)} rows are not of {kind[0]} {kind[1]}")
    unit = table.unit or _unit(table, rows)
    for row in rows:
        table.seconds.setdefault(row.size, []).append((_seconds(table, row, unit, source), row.line))


def _unit(table: _Table, rows: Sequence[_Row]) -> str:
    """Return the unit of times that sizes and rates say together; without rates that of the version."""
    powers = [
        math.log10(row.size / _RATES[table.rate_unit] / rate / _number(row.time)[0])
        for row in rows
        if (rate := _number(row.algbw)[0]) > 10 * _number(row.algbw)[1]
    ]
    if not powers:
        return "us" if "#wrong" in table.heads or not table.heads else "ms"
    return min(_SECONDS, key=lambda unit: abs(math.log10(_SECONDS[unit]) - float(np.median(powers))))


def _seconds(table: _Table, row: _Row, unit: str, source: str) -> float:
    """Return the time of a row: as printed, or size / algbw where that has more digits."""
    where, (time, half) = f"{source} line {row.line}", _number(row.time)
    rate, rate_half = _number(row.algbw)
    if row.count and row.size != row.count * _BYTES.get(row.kind[0], row.size / row.count):
        raise AnalysisError(
            f"{where}: {row.count:,} elements of {row.kind[0]} are not {row.size:,} bytes; no all-reduce?"
        )
    if not time > 0:
        raise AnalysisError(f"{where}: {row.time!r} is no time; give the output as it was printed")
    seconds, scale = time * _SECONDS[unit], _RATES[table.rate_unit]
    expected = row.size / seconds / scale
    if abs(rate - expected) > 1.02 * rate_half + (0.01 + half / time) * expected:
        raise AnalysisError(
            f"{where}: {row.size:,} bytes in {time:g} {unit} are {expected:.4g} {table.rate_unit}/s, and the line says "
            f"{rate:g}; give the output as all_reduce_perf printed it"
        )
    if rate > 0 and rate_half / rate < half / time:
        seconds = row.size / rate / scale
    if reason := impossible("bandwidth", bandwidth=row.size / seconds):
        raise AnalysisError(
            f"{where}: {row.size:,} bytes in {time:g} {unit} are {reason}; in which unit are its times?"
        )
    return seconds


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
        raise AnalysisError(
            f"{source} line {table.rows[0].line}: is of one worker, who sends nothing; measure two or more"
        )
    n, factor = len(hosts), float(moved_share(len(hosts)))
    for row in table.rows:
        (rate, half), (bus, bus_half) = _number(row.algbw), _number(row.busbw)
        if rate > 0 and abs(bus - factor * rate) > 1.02 * (bus_half + factor * half) + 0.002 * bus:  # beyond rounding
            raise AnalysisError(
                f"{source} line {row.line}: busbw / algbw is {bus / rate:.4g}, and an all-reduce of {n} workers has "
                f"{factor:.4g}: another collective, or another number of workers"
            )
    return hosts


def _inferred(table: _Table, source: str) -> int:
    """Return the workers that busbw / algbw = 2 (n - 1) / n of all rows says; AnalysisError where several fit."""
    low, high = 0.0, 2.0
    for row in table.rows:
        (rate, half), (bus, bus_half) = _number(row.algbw), _number(row.busbw)
        if rate > 20 * half:
            low, high = max(low, (bus - bus_half) / (rate + half)), min(high, (bus + bus_half) / (rate - half))
    fitting = range(math.ceil(2 / (2 - low)), math.floor(2 / (2 - high)) + 1) if low < 2 > high >= low else range(0)
    if len(fitting) != 1 or fitting[0] < 3:  # a ratio of 1 is also that of a broadcast
        several = len(fitting) > 1
        what = f"{fitting[0]} to {fitting[-1]} workers fit its bandwidths" if several else "nothing in it tells"
        raise AnalysisError(
            f"{source}: how many workers there were is unknown ({what}); say it behind the name: {source}@8 for 8 on "
            f"one node, {source}@4x8 for 4 nodes with 8 each"
        )
    return fitting[0]


def _document(tables: Sequence[_Table], hosts: Sequence[str], source: str, gradient_bytes: float) -> dict[str, Any]:
    first, n = tables[0], len(hosts)
    times: dict[int, list[tuple[float, int]]] = {}
    for table in tables:
        for size, each in table.seconds.items():
            times.setdefault(size, []).extend(each)
    _require_repeats(times, n, source)
    wrong = sum(table.wrong for table in tables)
    place = {"way": first.way, "operation": "allreduce", "place": "in", "iterations": 1, "seconds_median_op": None}
    points = [
        {**place, "bytes": size, "seconds": [each for each, _ in own], "wrong": wrong if size == max(times) else 0}
        for size, own in sorted(times.items())
    ]
    job = {
        "ways": [{"name": first.way, "raw": True}],
        "points": points,
        "barriers": [],
        "conditions": {"ranks": [{"host": host} for host in hosts], "settings": {}, "load_before": 0.0},
    }
    model = {"gradients": {}, "flat_bytes": gradient_bytes, "batch": 1}
    found = analyze({"workers": n, "model": {**model, "flat_bytes": 0}, "jobs": [job]})
    nodes, repeats = len(set(hosts)), f", {len(tables)} repeats" if len(tables) > 1 else ""
    where = "as osu_allreduce does" if first.program.startswith("osu") else "out of place"
    where = "in place" if first.in_place else where
    read = (
        f"{first.program}, all-reduce of {n} workers on {nodes} node{'s' * (nodes > 1)} ({first.how}); "
        f"{len(times)} sizes from {min(times):,} to {max(times):,} bytes{repeats}, "
        f"{', '.join(sorted({table.dtype for table in tables}))}, {where}" + "; with wrong results" * (wrong > 0)
    )
    if (aggregated := max(table.aggregated for table in tables)) > 1:
        read += f"; {aggregated} aggregated in a group: their latency is not that of one alone"
    return {**found.to_dict(), "model": model, "unavailable": {}, "measured": [job], "read": read}


def _require_repeats(times: Mapping[int, Sequence[tuple[float, int]]], n: int, source: str) -> None:
    """Raise AnalysisError where times of the same workers are apart by more than noise: other settings, no repeats."""
    apart = {size: max(own)[0] / min(own)[0] for size, own in times.items() if len(own) > 1}
    worst = max(apart, key=lambda size: (size >= _LARGE, apart[size]), default=0)
    if not apart or (worst < _LARGE or apart[worst] <= _APART) and np.median([*apart.values()]) <= _ALL_APART:
        return
    (least, first), (most, second) = min(times[worst]), max(times[worst])
    raise AnalysisError(
        f"{source}: {n} workers took {1e6 * least:.5g} us for {worst:,} bytes in line {first} and {1e6 * most:.5g} us "
        f"in line {second}: two configurations, and no repeats; put the lines of one into a file of its own"
    )


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
        {row["bytes"]: row["seconds_median"] for row in all_reduces(each["points"], way)} for each in (content, best)
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
