"""What traces of torch.profiler say, for a terminal: a row for each rank, and sentences."""

from pathlib import Path

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.rank_traces import LAPS, RankTraces
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, milliseconds, percent, quoted
from horovod_study.text.tables import NOTHING, table_of, to_lines

_COLUMNS = ("step", *LAPS, "communication", "exposed", "late")


def lines(found: RankTraces) -> list[str]:
    """Return the table of ranks (ms of a step, means over steps), then what it says."""
    heads = ("rank", "host", "steps", *("comm." if name == "communication" else name for name in _COLUMNS), "last in")
    rows = [
        (
            str(each.rank),
            each.host or NOTHING,
            str(each.steps),
            *(milliseconds(each.seconds[name].value) if name in each.seconds else NOTHING for name in _COLUMNS),
            NOTHING if each.last is None else percent(each.last),
        )
        for each in found.ranks
    ]
    said = ["ms of a step; comm.: communication; exposed: what of it no computing covers", ""]
    worst = max(found.ranks, key=lambda each: each.seconds["exposed"].value)
    exposed, step = worst.seconds["exposed"], worst.seconds["step"]
    said.append(
        f"Exposed communication is largest on rank {worst.rank}: {_ms(exposed)} ms, "
        f"{percent(exposed.value / step.value)} of its step."
    )
    if found.late is None:
        said.append("No rank is later than the others beyond doubt." if len(found.ranks) > 1 else "")
    else:
        late, on = found.late, f" on {found.late.host}" if found.late.host else ""
        said.append(
            f"Rank {late.rank}{on} comes {_ms(late.seconds['late'])} ms after the first one to its collectives, and is "
            f"the last one in {percent(late.last or 0.0)} of the steps; the lap that is longer than the others' is "
            f"{found.cause}."
        )
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(heads, rows, texts=(1,))), *said)]


def _ms(seconds: Interval) -> str:
    return quoted(1e3 * seconds.value, 1e3 * seconds.low, 1e3 * seconds.high)


def write(found: RankTraces, directory: Path) -> list[Path]:
    """Write rank_traces.txt and rank_traces.json; return the paths."""
    return write_result(directory, {"rank_traces.txt": lines(found), "rank_traces.json": found.to_dict()})
