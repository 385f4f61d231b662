"""What traces of torch.profiler and records of NCCL Inspector say, for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps import traces
from horovod_study.analysis.steps.traces import COLUMNS
from horovod_study.errors import refuse
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, known, milliseconds, percent, quoted
from horovod_study.text.tables import NOTHING, table_of, to_lines

_SHOWN = 20
_RANKS = ("rank", "host", "steps", *("comm." if name == "communication" else name for name in COLUMNS), "last in")
_SIZES = ("collective", "bytes", "ranks", "calls", "time", "shortest", "of all")


def foreign(places: Sequence[Path], out: Path | None) -> dict[str, Any] | None:
    """Return what files of other tools among `places` say: document, lines, files, doubts; None where there are none.

    Traces of torch.profiler, one of each rank: laps, communication that computing does not cover, who is late. Records
    of NCCL Inspector: collectives by size, and who comes last. ConfigError: places of several kinds.
    """
    kinds = (
        (traces.trace_paths, "rank_traces", rank_lines),
        (traces.inspector_paths, "nccl_inspector", inspector_lines),
    )
    for find, name, lines_of in kinds:
        paths = {place: find(place) for place in places}
        if any(paths.values()):
            refuse("", *((not own, f"explain: {place} is of another kind than the others; name one kind")
                         for place, own in paths.items()))  # fmt: skip
            every = [path for own in paths.values() for path in own]
            if name == "rank_traces":
                read = [traces.read_trace(traces.trace_document(path), source=f"{path}") for path in every]
                found = traces.compare(read)
            else:
                found = traces.inspect({f"{path.resolve()}": traces.inspector_lines(path) for path in every})
            document, lines = finite(found), lines_of(found)
            files = write_result(out, {f"{name}.txt": lines, f"{name}.json": document}) if out else None
            return {"document": document, "lines": lines, "files": files, "doubts": found["doubts"]}
    return None


def rank_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of ranks that `compare` made (ms of a step, means over steps), then what it says."""
    rows = [
        (str(each["rank"]), each["host"] or NOTHING, str(each["steps"]),
         *(_ms(each["seconds"][name].value) or NOTHING for name in COLUMNS),
         percent(each["last"]) if known(each["last"]) else NOTHING)
        for each in found["ranks"]
    ]  # fmt: skip
    said = ["ms of a step; comm.: communication; exposed: what of it no computing covers", ""]
    who = "rank {rank}" if found["named"] else "the process of {source}"
    bare = [each for each in found["ranks"] if known(each["seconds"]["exposed"].value)]
    if bare:
        worst = max(bare, key=lambda each: each["seconds"]["exposed"].value)
        exposed, step = worst["seconds"]["exposed"], worst["seconds"]["step"].value
        share = f", {percent(exposed.value / step)} of its step" if known(step) else ""
        said.append(f"Exposed communication is largest on {who.format_map(worst)}: {_ms(exposed)} ms{share}.")
    late = next((each for each in found["ranks"] if each["source"] == found["late_file"]), None)
    if late is not None:
        name = who.format_map(late) + (f" on {late['host']}" if late["host"] else "")
        said.append(
            f"{name[0].upper()}{name[1:]} comes {_ms(late['seconds']['late'])} ms after the first one to its "
            f"collectives, and is the last one in {percent(late['last'])} of the steps; longer: {found['cause']}."
        )
    elif known(found["ranks"][0]["last"]):
        said.append("No rank is later than the others beyond doubt.")
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(_RANKS, rows, texts=(1,))), *said)]


def _ms(seconds: Interval | float, factor: float = 1e3) -> str:
    if not isinstance(seconds, Interval):
        return milliseconds(seconds) if known(seconds) else ""
    return quoted(*(factor * each for each in (seconds.value, seconds.low, seconds.high)))


def inspector_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of collectives that `inspect` made, those that take most time first, then what it says."""
    whole = sum(each["total_s"] for each in found["sizes"])
    rows = [
        (each["kind"], *(f"{each[name]:,}" for name in ("bytes", "ranks", "calls")),
         *(_ms(each[name], 1e6) for name in ("time", "shortest")), percent(each["total_s"] / whole))
        for each in found["sizes"]
    ]  # fmt: skip
    said = [f"and {len(rows) - _SHOWN} sizes more, all in nccl_inspector.json (--out)"] * (len(rows) > _SHOWN)
    said += ["us of the mean rank and of the one that came last, medians; of all: of the time", ""]
    who = "No rank comes later than the others beyond doubt."
    if late := found["late"]:
        host = f" on {late['host']}" if late["host"] else ""
        who = (
            f"Rank {late['rank']}{host} of communicator {late['communicator']} comes {_ms(late['late'], 1e6)} us after "
            f"the first one, and is the last one to {percent(late['last'])} of its collectives."
        )
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(_SIZES, rows[:_SHOWN])), *said, who)]
