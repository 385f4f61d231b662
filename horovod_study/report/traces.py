"""What traces of torch.profiler and records of NCCL Inspector say, for a terminal, and as a table for `--bench`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps import traces
from horovod_study.analysis.steps.traces import COLUMNS, KERNEL
from horovod_study.errors import ConfigError
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, alone, known, milliseconds, percent, quoted
from horovod_study.text.tables import NOTHING, table_of, to_lines

_SHOWN = 20
_RANKS = ("rank", "host", "steps", *("comm." if name == "communication" else name for name in COLUMNS), "last in")
_SIZES = ("collective", "bytes", "ranks", "nodes", "groups", "calls", "time", "shortest", "busbw", "of all")


def foreign(places: Sequence[Path], out: Path | None) -> dict[str, Any] | None:
    """Return what files of other tools among `places` say: document, lines, files, doubts; None where there are none.

    Traces of torch.profiler, one of each rank: laps, communication that computing does not cover, who is late. Records
    of NCCL Inspector: collectives by size, and who comes last. ConfigError: places of several kinds.
    """
    for find in (traces.trace_paths, traces.inspector_paths):
        paths = {place: find(place) for place in places}
        if not any(paths.values()):
            continue
        if other := [str(place) for place, own in paths.items() if not own]:
            raise ConfigError(f"explain: {other[0]} is of another kind than the others; name one kind")
        every, more = [path for own in paths.values() for path in own], {}
        if find is traces.trace_paths:
            name = "rank_traces"
            found = traces.compare([traces.read_trace(traces.trace_document(path), source=str(path)) for path in every])
            lines = rank_lines(found)
        else:
            name = "nccl_inspector"
            found = traces.inspect({str(path.resolve()): traces.inspector_lines(path) for path in every})
            lines, table = inspector_lines(found), all_reduces(found["sizes"]) if found["timing"] == KERNEL else ""
            more = {"all_reduce.txt": table} if table else {}
        document = finite(found)
        files = write_result(out, {f"{name}.txt": lines, f"{name}.json": document, **more}) if out else None
        return {"document": document, "lines": lines, "files": files, "doubts": found["doubts"]}
    return None


def rank_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of ranks that `compare` made (ms of a step, means over steps), then what it says."""
    rows = [
        [str(each["rank"]), each["host"] or NOTHING, str(each["steps"])]
        + [_or_nothing(each["seconds"][name].value, milliseconds) for name in COLUMNS]
        + [_or_nothing(each["last"], percent)]
        for each in found["ranks"]
    ]
    said = ["ms of a step; comm.: communication; exposed: what of it no computing covers", ""]
    who = "rank {rank}" if found["named"] else "the process of {source}"
    bare = [each for each in found["ranks"] if known(each["seconds"]["exposed"].value)]
    if bare:
        worst = max(bare, key=lambda each: each["seconds"]["exposed"].value)
        exposed, step = worst["seconds"]["exposed"], worst["seconds"]["step"].value
        share = f", {percent(exposed.value / step)} of its step" if known(step) else ""
        said.append(f"Exposed communication is largest on {who.format_map(worst)}: {_ms(exposed)} ms{share}.")
    if found["late_file"]:
        late = next(each for each in found["ranks"] if each["source"] == found["late_file"])
        name = who.format_map(late)
        said.append(
            f"{name[0].upper()}{name[1:]}{_on(late)} comes {_ms(late['seconds']['late'])} ms after the first one to "
            f"its collectives, and is the last one in {percent(late['last'])} of the steps; the lap that is longer "
            f"than the others' is {found['cause']}."
        )
    elif known(found["ranks"][0]["last"]):
        said.append("No rank is later than the others beyond doubt.")
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(_RANKS, rows, texts=(1,))), *said)]


def _or_nothing(value: float | None, text: Callable[[float], str]) -> str:
    return text(value) if known(value) else NOTHING


def _on(row: Mapping[str, Any]) -> str:
    return f" on {row['host']}" if row["host"] else ""


def _ms(seconds: Interval, factor: float = 1e3) -> str:
    return quoted(*(factor * each for each in (seconds.value, seconds.low, seconds.high)))


def _us(seconds: Interval) -> str:
    return _ms(seconds, 1e6)


def inspector_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of collectives that `inspect` made, those that take most time first, then what it says."""
    whole = sum(each["total_s"] for each in found["sizes"])
    rows = [
        (
            each["kind"],
            *(f"{each[name]:,}" for name in ("bytes", "ranks", "nodes", "communicators", "calls")),
            *(_us(each[name]) for name in ("time", "shortest")),
            _or_nothing(each["busbw_gb_per_s"], alone),
            percent(each["total_s"] / whole),
        )
        for each in found["sizes"]
    ]
    said = [
        *[f"and {len(rows) - _SHOWN} sizes more, all in nccl_inspector.json (--out)"] * (len(rows) > _SHOWN),
        "us of the mean rank and of the one that came last, medians; busbw in GB/s of the latter; of all: of the time",
        "",
    ]
    if late := found["late"]:
        said.append(
            f"Rank {late['rank']}{_on(late)} of communicator {late['communicator']} comes {_us(late['late'])} us after "
            f"the first one, and is the last one to {percent(late['last'])} of its collectives."
        )
    elif found["timing"] == KERNEL:
        said.append("No rank comes later than the others beyond doubt.")
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(_SIZES, rows[:_SHOWN])), *said)]


def all_reduces(sizes: Sequence[Mapping[str, Any]]) -> str:
    """Return the shortest times of all-reduces in the layout of nccl-tests, which `--bench` takes; "" without any.

    A table for each number of ranks and nodes. It is given in place: training reduces in place.
    """
    own = [each for each in sizes if each["kind"] == "AllReduce" and known(each["busbw_gb_per_s"])]
    text = []
    for nodes, ranks in sorted({(each["nodes"], each["ranks"]) for each in own}):
        text.append("# NCCL Inspector. Collective test starting: all_reduce")
        per_node = -(-ranks // max(nodes, 1))
        text += [f"#  Rank {rank} Group 0 Pid {rank} on node{rank // per_node} device 0" for rank in range(ranks)]
        text.append("# size count type redop root | out of place: time algbw busbw #wrong | in place: the same")
        for each in sorted(own, key=lambda row: row["bytes"]):
            if (each["nodes"], each["ranks"]) == (nodes, ranks):
                size, micros = each["bytes"], 1e6 * each["shortest"].value
                rates = f"{micros:.2f} {size / micros / 1e3:.3f} {each['busbw_gb_per_s']:.3f} N/A"
                text.append(f"{size} {size} bytes sum -1 N/A N/A N/A N/A {rates}")
    return "\n".join([*text, ""]) if text else ""
