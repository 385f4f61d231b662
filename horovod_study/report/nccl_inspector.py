"""What NCCL Inspector's records say, for a terminal, and as a table that `--bench` takes."""

from pathlib import Path

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.nccl_inspector import KERNEL, Inspected, SecondClock
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, alone, amount, milliseconds, percent, quoted
from horovod_study.text.tables import NOTHING, table_of, to_lines
from horovod_study.text.words import listed

SHOWN = 20
_HEADS = ("collective", "bytes", "ranks", "nodes", "groups", "calls", "time", "shortest", "busbw", "of all")


def lines(found: Inspected) -> list[str]:
    """Return the table of collectives, those that take most time first, then what it says."""
    whole = sum(each["total_s"] for each in found.sizes)
    rows = [
        (
            each["kind"],
            f"{each['bytes']:,}",
            *(str(number) for number in (each["ranks"], each["nodes"], each["communicators"])),
            f"{each['calls']:,}",
            *(_micros(time) for time in (each["time"], each["shortest"])),
            NOTHING if each["busbw_gb_per_s"] is None else alone(each["busbw_gb_per_s"]),
            percent(each["total_s"] / whole),
        )
        for each in found.sizes
    ]
    said = []
    if len(rows) > SHOWN:
        said.append(f"and {len(rows) - SHOWN} sizes more, all in nccl_inspector.json (--out)")
    said += [
        "us of the mean rank and of the one that came last, medians; busbw in GB/s of the latter; of all: of the time",
        "",
    ]
    if found.late is not None:
        late = found.late
        on = f" on {late['host']}" if late["host"] else ""
        said.append(
            f"Rank {late['rank']}{on} of communicator {late['communicator']} comes {_micros(late['late'])} us after "
            f"the first one, and is the last one to {percent(late['last'])} of its collectives."
        )
    elif found.timing == KERNEL:
        said.append("No rank comes later than the others beyond doubt.")
    if found.beside is not None:
        said += ["", *_clocks(found.beside)]
    table = to_lines(table_of(_HEADS, rows[:SHOWN], texts=(0,)))
    return [line.replace(THIN, " ") for line in (*table, *said)]


def _clocks(both: SecondClock) -> list[str]:
    calls = listed([f"{alone(count)} {kind}" for kind, count in both.calls.items()])
    said = [
        f"Beside {both.run}: {_ms(both.collectives)} ms of a step of {_ms(both.step)} ms are in collectives "
        f"({percent(both.collectives.value / both.step.value)}; {calls} a step with {amount(both.bytes)}; "
        f"{both.steps:,} steps)."
    ]
    if both.sync is None or both.difference is None:
        said.append("Its laps do not see sync, so that there is nothing to compare.")
        return said
    more = both.difference
    said.append(f"Its sync by laps is {_ms(both.sync)} ms.")
    if not more.excludes(0.0):
        said.append(f"The clocks agree: they differ by {_ms(more)} ms.")
    elif more.value > 0:
        said.append(f"{_ms(more)} ms more are in collectives than in sync: they ran beside computing.")
    else:
        said.append(
            f"{_ms(more.negated())} ms of sync are in no collective: copies, what the runtime does, and messages too "
            "small to be recorded."
        )
    if len(both.ranks) > 1:
        cells = [(str(rank), milliseconds(sync), milliseconds(nccl)) for rank, (sync, nccl) in both.ranks.items()]
        said += ["", *to_lines(table_of(("rank", "sync", "collectives"), cells[:SHOWN], texts=()))]
    return said


def _micros(seconds: Interval) -> str:
    return quoted(1e6 * seconds.value, 1e6 * seconds.low, 1e6 * seconds.high) or alone(1e6 * seconds.value)


def _ms(seconds: Interval) -> str:
    return quoted(1e3 * seconds.value, 1e3 * seconds.low, 1e3 * seconds.high) or milliseconds(seconds.value)


def all_reduces(found: Inspected) -> str:
    """Return the shortest times of all-reduces in the layout of nccl-tests, which `--bench` takes; "" without any.

    A table for each number of ranks and nodes. It is given in place: training reduces in place.
    """
    placed = sorted({(each["nodes"], each["ranks"]) for each in found.sizes if each["kind"] == "AllReduce"})
    text = []
    for nodes, ranks in placed:
        text.append("# NCCL Inspector. Collective test starting: all_reduce")
        per_node = -(-ranks // max(nodes, 1))
        text += [f"#  Rank {rank} Group 0 Pid {rank} on node{rank // per_node} device 0" for rank in range(ranks)]
        text.append("# size count type redop root | out of place: time algbw busbw #wrong | in place: the same")
        own = (
            each for each in found.sizes if (each["kind"], each["nodes"], each["ranks"]) == ("AllReduce", nodes, ranks)
        )
        for each in sorted(own, key=lambda row: row["bytes"]):
            micros = 1e6 * each["shortest"].value
            text.append(
                f"{each['bytes']} {each['bytes']} bytes sum -1 N/A N/A N/A N/A "
                f"{micros:.2f} {each['bytes'] / micros / 1e3:.3f} {each['busbw_gb_per_s']:.3f} N/A"
            )
    return "\n".join([*text, ""]) if text else ""


def write(found: Inspected, directory: Path) -> list[Path]:
    """Write nccl_inspector.txt and .json, and all_reduce.txt where the times are of kernels; return the paths."""
    contents = {"nccl_inspector.txt": lines(found), "nccl_inspector.json": found.to_dict()}
    if found.timing == KERNEL and (table := all_reduces(found)):
        contents["all_reduce.txt"] = table
    return write_result(directory, contents)
