"""Files that say what a network does: bench.json, and what nccl-tests, rccl-tests and OSU's osu_allreduce print.

Text goes in, documents with the form of `horovod-study bench` come out, so that whatever takes the one takes the other.
Rows are read wherever they are in a job's log, whatever a launcher puts before them. The line of heads says what a
column is, the line below it in which unit; else size / algbw tells the unit, and columns are those of nccl-tests since
2019. Before (NCCL 1 to 2.4) they were bytes, N, type, op, and times in ms. Where devices are not listed, busbw / algbw
of an all-reduce, 2 (n - 1) / n, says how many there were (doc/PERFORMANCE.md of nccl-tests); OSU never prints it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

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
_GROUP = ("time", "algbw", "busbw", "#wrong")
_OPERATIONS = ("sum", "prod", "min", "max", "avg", "mulsum", "none")
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_RATES = {"MB/s": 1e6, "GB/s": 1e9, "MiB/s": 2.0**20, "GiB/s": 2.0**30}
_WIDTHS = {1: "int8 uint8 char f8e4m3 f8e5m2 fp8_e4m3 fp8_e5m2", 2: "half bfloat16", 4: "float int32 uint32 int"}
_BYTES = {name: width for width, names in {**_WIDTHS, 8: "double int64 uint64"}.items() for name in names.split()}

_LAUNCHER = re.compile(r"^(?:\[[\d,]+\]<std\w+>:|\d+:)\s?")
_TESTS = "all_reduce|all_?gather|reduce_scatter|all_?to_?allv?|sendrecv|broadcast|reduce|gather|scatter|hypercube"
_TEST = re.compile(rf"(?<![a-z_])({_TESTS})_(?:perf|test)")
_OSU = re.compile(r"# OSU (\S+) (.+?) Test\b")
_HEADS = re.compile(r"(?:^|\s)((?:size|bytes)\s+(?:count|N)\s+type\s[^:]*\balgbw\s[^:]*|Size\s+(?:Avg )?Lat.*)$")
_OSU_TIME = re.compile(r"(?:(\w+)\s)?(?:Tail\s)?Lat(?:ency)?\s?\(us\)")
_ROW = re.compile(r"(?:^|[\s:>\]|#])(\d+\s+\d+\s+[a-z]\w*\s+\S.*)$")
_OSU_ROW = re.compile(r"^\s*(\d+\s+\d+\.\d+(?:\s+[\w.]+)*)\s*$")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?(?:on\s+(\S+)|uses)\s+device\b"
    r"|\bDevice\s+(\d+)\s+->\s+\d+\s+\[0x"  # of NCCL 1
)
_FACTS = {"wrong": r"\bOut of bounds values : (\d+)", "type": r"# Datatype: (\w+)", "aggregated": r"\bagg iters: (\d+)"}
_PLACED = re.compile(r"^(.+)@(?:(\d{1,7})x)?(\d{1,7})$")


def placed_name(name: str) -> tuple[str, tuple[int, int] | None]:
    """Split `FILE@NODESxPER_NODE` or `FILE@WORKERS` (on one node) into the file, and nodes and workers on each."""
    found = _PLACED.match(name)
    return (name, None) if found is None else (found[1], (int(found[2] or 1), int(found[3])))


@dataclass(slots=True)
class _Table:
    """One table of an output: what was printed above its rows, and the rows."""

    program: str
    way: str = "nccl"
    test: str = ""  # of another collective, with its line, as a title or a command says
    heads: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    ranks: list[tuple[str, str, str]] = field(default_factory=list)  # group, rank, host
    rows: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # rows that are not taken
    facts: dict[str, str] = field(default_factory=dict)


def benches_of(text: str, *, source: str, gradient_bytes: float | None = None) -> list[dict[str, Any]]:
    """Return the document of a bench.json, or those of another benchmark's output, the fewest workers first.

    `source` is the name of the file, with `@NODESxPER_NODE` behind it where an output does not say where its ranks
    were. `gradient_bytes`: the size that counts for an output, which knows of no model. Key "read" says in one line
    what was read, and what was left out: other collectives, tables of one worker. Raises AnalysisError, with the line,
    where nothing is left, for two configurations of the same workers, and where nobody says how many there were.
    """
    name, placed = placed_name(source)
    tables = [] if text.lstrip().startswith("{") else list(_tables(text))
    if not tables:
        content = parse_json(text, source=source, error=AnalysisError, again=f"give {BENCH_FILE}")
        for key in ("fits", "model"):
            if not isinstance(content, dict) or key not in content:
                raise AnalysisError(f"{source}: has no {key!r}; give {BENCH_FILE}")
        return [content]
    if gradient_bytes is None:
        raise AnalysisError(f"{name}: knows no model; say how many bytes the gradients have: --gradient-mb")
    found: dict[tuple[str, tuple[str, ...], str], list[tuple[_Table, pd.DataFrame]]] = {}
    made, left = [], list[str]()
    for table in tables:
        try:
            rows = _checked(table, name)
            found.setdefault((table.way, *_hosts(table, rows, name, placed)), []).append((table, rows))
            left += [f"{name} {each}" for each in table.left]
        except AnalysisError as error:
            left.append(str(error))
    for (_, hosts, how), own in sorted(found.items(), key=lambda each: (len(each[0][1]), len(set(each[0][1])))):
        if (sizes := pd.concat([rows for _, rows in own])["size"].nunique()) >= _FITS:
            made.append(_document(own, hosts, how, name, gradient_bytes))
        else:
            told = f"{len(hosts)} workers were measured with {sizes} size{'s' * (sizes > 1)}; a line needs {_FITS}"
            left.append(f"{name}: {own[0][0].program}: {told}: all_reduce_perf -b 8 -e 256M -f 2")
    told = "; ".join([*left[:3], *([f"and {len(left) - 3} more"] if len(left) > 3 else [])])
    if not made:
        raise AnalysisError(told)
    made[0]["read"] += f"; left out: {told}" if told else ""
    return made


def _tables(text: str) -> Iterator[_Table]:
    """Yield the tables that have rows, of whatever collective, in the order of the text."""
    rccl = "rccl" in text.lower() or re.search(r"device\s+\d+ \[[^\]]+\] AMD ", text) is not None
    program = "NCCL Inspector" if text.startswith("# NCCL Inspector") else "rccl-tests" if rccl else "nccl-tests"
    table = _Table(program)
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _LAUNCHER.sub("", raw)
        title, heads, tests = _OSU.search(line), _HEADS.search(line), set(_TEST.findall(line))
        if (table.rows or table.left) and (title or heads or tests or "nThread " in line or "Using devices" in line):
            yield table
            table = _Table(program, test=table.test, ranks=table.ranks if heads else [])
        if title:
            whole = title[2].startswith("Allreduce") and title[2].endswith("Latency")
            test = "" if whole else f"OSU's {title[2]} Test (line {number})"
            table = _Table("osu_allreduce", title[1].split("-")[0].lower(), test, ["Size", "Avg"], ["us"])
        elif tests:  # where a line names several, the rows have to tell
            table.test = "" if len(tests) > 1 or "all_reduce" in tests else f"{tests.pop()}_perf (line {number})"
        elif heads:
            table.program = "NCCL 1's tests or nccl-tests before 2019" if "bytes" in heads[1] else table.program
            table.heads = _OSU_TIME.sub(lambda found: found[1] or "Avg", heads[1]).split()
        elif units := re.findall(r"\((\w+(?:/s)?)\)", line) if table.heads and not table.rows else []:
            table.units = units
        else:
            _take(table, line, number)
    if table.rows or table.left:
        yield table


def _take(table: _Table, line: str, number: int) -> None:
    """Take what one line says of the devices, of the results, or of a row: time and rates once, or also in place.

    In-place times count where there are some, as training reduces in place.
    """
    table.facts |= {name: found[1] for name, pattern in _FACTS.items() if (found := re.search(pattern, line))}
    osu = table.program == "osu_allreduce"
    if rank := _RANK.search(line):
        table.ranks.append((rank[2] or "0", rank[1] or rank[4], rank[3] or "node0"))
    words = row[1].split() if (row := (_OSU_ROW if osu else _ROW).search(line)) else []
    heads = [_COLUMNS.get(word, word) for word in table.heads]
    if not heads and len(words) in (8, 9, 12, 13) and words[3] in _OPERATIONS:
        heads = ["size", "count", "type", "redop", "root"][: 4 + len(words) % 4] + [*_GROUP] * (len(words) // 4 - 1)
    if not words or not heads:
        return
    starts = [place for place, name in enumerate(heads) if name == "time"]
    whole = len(heads) + (heads[-1] == "timestamp")  # of two words
    if len(words) not in (whole, *starts[1:]) or not starts:  # where one group is blank, the other is there alone
        table.left.append(f"line {number}: has {len(words)} words under {len(heads)} heads")
        return
    ends = pairwise([*(start for start in starts if start < len(words)), len(words)])
    parts = [dict(zip(heads[start:end], words[start:end], strict=False)) for start, end in ends]
    part = next((part for part in reversed(parts) if _number(part["time"])[0] > 0), None)
    if part is None or int(words[0]) == 0:
        return
    cells: dict[str, Any] = {
        "redop": "sum" if osu else "none",
        "root": "-1",
        "type": table.facts.get("type", "type unknown"),
    }
    cells |= {"count": words[0], **dict(zip(heads[: starts[0]], words, strict=False)), "line": number}
    cells |= {"cpu": "cputime" in table.heads, "in_place": len(starts) > 1 and part is parts[-1]}
    wrong = [_number(part.get("#wrong", ""))[0] for part in parts]
    cells["wrong"] = words.count("Fail") + sum(int(each) for each in wrong if each > 0)
    for name in _GROUP[:3]:
        cells[name], cells[f"{name}_half"] = _number(part.get(name, ""))
    table.rows.append(cells)


def _number(word: str) -> tuple[float, float]:
    """Return a number, and half of the last digit that was printed; NaN for what is none."""
    if not re.fullmatch(r"\d+\.?\d*(?:e[+-]?\d+)?", word):
        return math.nan, math.nan
    digits, _, power = word.partition("e")
    return float(word), 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def _checked(table: _Table, source: str) -> pd.DataFrame:
    """Return the rows of a table with their `seconds`; AnalysisError, with the line, where one is of no all-reduce."""
    again = "give the output of all_reduce_perf or osu_allreduce as it was printed"
    if not table.rows:
        told = f"{table.test} is no all-reduce" if table.test else table.left[0]
        raise AnalysisError(f"{source}: {told}; {again}")
    rows = pd.DataFrame(table.rows).astype({"size": "int64", "count": "int64"})
    kinds = rows.groupby(["type", "redop"], sort=False)["size"].nunique()
    kind = max(kinds.index, key=lambda each: (kinds[each], each[1] == "sum", each[0] == "float"))
    other = (rows["type"] != kind[0]) | (rows["redop"] != kind[1])
    if other.any():
        table.left.append(f"line {rows['line'][other.idxmax()]}: {other.sum()} rows are not of {kind[0]} {kind[1]}")
    rows, per_s = pd.DataFrame(rows[~other]), next((unit for unit in table.units if unit in _RATES), "GB/s")
    known = rows[rows["algbw"] > 10 * rows["algbw_half"]]
    unit = "ms" if "bytes" in table.heads else "us"
    if len(known):
        power = float(np.median(np.log10(known["size"] / _RATES[per_s] / known["algbw"] / known["time"])))
        unit = min(_UNITS, key=lambda each: abs(math.log10(_UNITS[each]) - power))
    unit = next((each for each in table.units if each in _UNITS), unit)
    width = rows["type"].map(_BYTES).fillna(rows["size"] / rows["count"])
    rough, rate_rough = rows["time_half"] / rows["time"], rows["algbw_half"] / rows["algbw"]
    rows = rows.assign(rate=rows["size"] / rows["time"] / _UNITS[unit] / _RATES[per_s], unit=unit, per_s=per_s)
    changed = (rows["algbw"] - rows["rate"]).abs() > 1.02 * rows["algbw_half"] + (0.01 + rough) * rows["rate"]
    for says, wrong in {
        "column root is {root}, and an all-reduce has none (-1): a reduce?": rows["root"] != "-1",
        f"{table.test} is no all-reduce": rows["line"] * bool(table.test) > 0,
        "nothing is added up (no redop): an all-gather, a broadcast?": rows["redop"] == "none",
        "has times of the host's calls (-C 1), not of the collective": rows["cpu"],
        "{count:,} elements of {type} are not {size:,} bytes; no all-reduce?": rows["count"] * width != rows["size"],
        "{size:,} bytes in {time:g} {unit} are {rate:.4g} {per_s}, and the line says {algbw:g}": changed,
    }.items():
        if wrong.any():
            told = says.format_map(rows[wrong].iloc[0])
            raise AnalysisError(f"{source} line {rows['line'][wrong].iloc[0]}: {told}; {again}")
    by_rate = rows["size"] / rows["algbw"] / _RATES[per_s]  # where that has more digits
    rows["seconds"] = by_rate.where(rate_rough < rough, rows["time"] * _UNITS[unit])
    return rows


def _hosts(
    table: _Table, rows: pd.DataFrame, source: str, placed: tuple[int, int] | None
) -> tuple[tuple[str, ...], str]:
    """Return the host of each rank, and how that is known."""
    rate, bus, rate_half, bus_half = (rows[name].to_numpy() for name in ("algbw", "busbw", "algbw_half", "busbw_half"))

    def off(workers: Any, slack: float) -> Any:
        """Whether busbw / algbw of rows (k,) is not that of an all-reduce of each of `workers` (n,), as (n, k)."""
        share = moved_share(np.atleast_1d(workers))[:, None]
        return (rate > 0) & (np.abs(bus - share * rate) > 1.02 * (bus_half + share * rate_half) + slack * bus)

    if len({each[:2] for each in table.ranks}) < len(table.ranks):
        raise AnalysisError(
            f"{source}: rank {table.ranks[0][1]} is there {sum(each[1] == '0' for each in table.ranks)} times: each "
            "process measured alone; build the tests with MPI=1, and give the output of one job"
        )
    first = min((group for group, _, _ in table.ranks), key=int, default="0")
    hosts, how = tuple(host for group, _, host in table.ranks if group == first), "of the devices listed"
    if placed is not None:
        if hosts and len(hosts) != math.prod(placed):
            told = f"{math.prod(placed)} workers were said; leave the number out"
            raise AnalysisError(f"{source}: lists {len(hosts)} devices, and {told}")
        hosts, how = tuple(f"node{node}" for node in range(placed[0]) for _ in range(placed[1])), "as said"
    elif not hosts:
        counts = np.arange(2, 4097)
        fitting = counts[~off(counts, 0.0).any(axis=1)]
        if len(fitting) != 1 or fitting[0] < 3:  # a ratio of 1 is also that of a broadcast
            several = 1 < len(fitting) < len(counts)
            what = f"{fitting[0]} to {fitting[-1]} workers fit its bandwidths" if several else "nothing in it tells"
            raise AnalysisError(
                f"{source}: how many workers there were is unknown ({what}); say it behind the name: {source}@8 for 8 "
                f"on one node, {source}@4x8 for 4 nodes with 8 each"
            )
        how = f"from busbw/algbw; all on one node is assumed, else say {source}@NODESxN"
        hosts = ("node0",) * int(fitting[0])
    if (n := len(hosts)) < 2:
        raise AnalysisError(f"{source}: is of one worker, who sends nothing; measure two or more")
    if why := impossible("bandwidth", bandwidth=float((rows["size"] / rows["seconds"]).max())):
        raise AnalysisError(f"{source}: has {why}; give sizes and times as they were printed")
    if (wrong := off(n, 0.002)[0]).any():
        line, ratio = rows["line"][wrong].iloc[0], (bus[wrong] / rate[wrong])[0]
        raise AnalysisError(
            f"{source} line {line}: busbw / algbw is {ratio:.4g}, and an all-reduce of {n} workers has "
            f"{moved_share(n):.4g}: another collective, or another number of workers"
        )
    return hosts, how


def _document(
    tables: Sequence[tuple[_Table, pd.DataFrame]], hosts: Sequence[str], how: str, source: str, gradient_bytes: float
) -> dict[str, Any]:
    (first, _), rows, n = tables[0], pd.concat([rows for _, rows in tables]), len(hosts)
    times: dict[int, list[tuple[float, int]]] = {}
    for size, second, line in sorted(zip(rows["size"], rows["seconds"], rows["line"], strict=True)):
        times.setdefault(size, []).append((second, line))
    apart = {size: own[-1][0] / own[0][0] for size, own in times.items() if len(own) > 1}
    worst = max(apart, key=lambda size: (size >= _LARGE, apart[size]), default=0)
    if apart and (np.median([*apart.values()]) > _ALL_APART or (worst >= _LARGE and apart[worst] > _APART)):
        (least, first_line), *_, (most, other) = times[worst]
        raise AnalysisError(
            f"{source}: {n} workers took {1e6 * least:,.1f} us for {worst:,} bytes in line {first_line} and "
            f"{1e6 * most:,.1f} us in line {other}: two configurations, no repeats; give the rows of one in a file"
        )
    wrong = int(sum(max(own["wrong"].sum(), int(table.facts.get("wrong", 0))) for table, own in tables))
    place = {"way": first.way, "operation": "allreduce", "place": "in", "iterations": 1, "seconds_median_op": None}
    points = [
        {**place, "bytes": size, "seconds": [each for each, _ in own], "wrong": wrong * (size == max(times))}
        for size, own in times.items()
    ]
    conditions = {"ranks": [{"host": host} for host in hosts], "settings": {}, "load_before": 0.0}
    job = {"ways": [{"name": first.way, "raw": True}], "points": points, "barriers": [], "conditions": conditions}
    model = {"gradients": {}, "flat_bytes": gradient_bytes, "batch": 1}
    found = analyze({"workers": n, "model": {**model, "flat_bytes": 0}, "jobs": [job]}).to_dict()
    nodes, aggregated = len(set(hosts)), max(int(table.facts.get("aggregated", 1)) for table, _ in tables)
    where = "in place" if rows["in_place"].any() else "out of place"
    read = (
        f"{first.program}, all-reduce of {n} workers on {nodes} node{'s' * (nodes > 1)} ({how}); {len(times)} sizes "
        f"from {min(times):,} to {max(times):,} bytes"
        + f", {len(tables)} repeats" * (len(tables) > 1)
        + f", {', '.join(sorted(set(rows['type'])))}, {where}"
        + "; with wrong results" * (wrong > 0)
        + f"; {aggregated} aggregated in a group: their latency is not that of one alone" * (aggregated > 1)
    )
    return {**found, "model": model, "unavailable": {}, "measured": [job], "read": read}


def largest_of_each_kind(
    benches: Sequence[tuple[dict[str, Any], str]],
) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """Return the file with most workers on one node and that with most across nodes, and what the others say.

    Constants hold best near the workers they were measured with. What is set aside is compared with them: its measured
    times over those of the alpha-beta model (costs.py) with the constants kept, at the largest size of both.
    """
    kept: dict[bool, tuple[dict[str, Any], str]] = {}
    for each in sorted(benches, key=lambda each: each[0].get("workers", 0)):
        kept[_spans(each[0])] = each
    doubts = [
        f"{source}: {content['workers']} workers, set aside for the {best['workers']} of {name}"
        + _compared(content, best)
        for content, source, (best, name) in ((*each, kept[_spans(each[0])]) for each in benches)
        if content is not best
    ]
    return [each for each in benches if each[0] is kept[_spans(each[0])][0]], doubts


def _spans(content: Mapping[str, Any]) -> bool:
    jobs = content.get("measured") or [{}]
    return len({str(rank.get("host")) for rank in (jobs[0].get("conditions") or {}).get("ranks", [])}) > 1


def _compared(content: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """Return how the times of `content` compare with the alpha-beta model of `best`, where both have an all-reduce."""
    way = next((name for name in best.get("fits") or {} if name in (content.get("fits") or {})), "")
    own, theirs = (
        {row["bytes"]: row["seconds_median"] for row in all_reduces(each["points"], way)} for each in (content, best)
    )
    if not (common := set(own) & set(theirs)):
        return ""
    n, m, size = content["workers"], best["workers"], max(common)
    # As in simulation: bytes from the time at this size, latency by the rounds.
    alpha_s = min(best["fits"][way]["alpha_s"], theirs[size])
    model_s = alpha_s * rounds(n) / rounds(m) + (theirs[size] - alpha_s) * moved_share(n) / moved_share(m)
    return f": of {size:,} bytes they took {own[size] / model_s:.2f} of what the constants kept say"
