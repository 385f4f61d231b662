"""Where the time of Horovod's collectives goes: as tables, and in a sentence."""

from pathlib import Path

from horovod_study.analysis.steps.timeline import PHASES, Timeline
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import percent
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, listed, plural

NAME = "timeline"
_SHOWN = 15  # so many tensors are printed, those that take longest; the CSV file has all

_THOUGHT = {
    "negotiation": "negotiation (waiting until every rank has announced the tensor)",
    "queue": "waiting for the operation to begin",
    "copy": "copying into and out of the fusion buffer",
    "operation": "the transfer",
    "other": "other activities",
    "rest": "the runtime's own work",
}


def write_timeline(found: Timeline, directory: Path, *, source: str) -> list[Path]:
    """Write timeline.json, .csv (every tensor and activity) and .txt; return the paths."""
    texts = {
        f"{NAME}.json": {"source": source, **finite(found)},
        f"{NAME}.csv": found.table,
        f"{NAME}.txt": [*lines(found, source=source), "", *(f"Doubt: {doubt}." for doubt in found.doubts)],
    }
    return write_result(directory, texts)


def sentence(found: Timeline) -> str:
    """Return in words where the time of a collective goes."""
    if found.busy_s <= 0:
        return "The file holds barriers only: nothing was transferred."
    said = []
    for name, value in sorted(found.together.items(), key=lambda each: -round(each[1] / found.busy_s, 9)):
        names = found.table.loc[found.table["phase"] == name, "activity"].unique()
        which = f" ({', '.join(names)})" if name in ("operation", "other") else ""
        said += [f"{percent(value / found.busy_s)} {_THOUGHT[name]}{which}"] if value >= 0.01 * found.busy_s else []
    went = (
        f"{plural(found.collectives, 'collective')} in {plural(sum(found.operations.values()), 'operation')} (fewer: "
        "Horovod joined tensors)"
    )
    last = "which rank came last is not in the file (--cache-capacity 0 notes it, but negotiates more)"
    if found.last is not None:
        rank, count = max(found.last.items(), key=lambda each: (each[1], -each[0]))
        last = f"rank {rank} announced its tensor last in {count} of {plural(sum(found.last.values()), 'negotiation')}"
    return f"In each step a tensor is under way for {found.busy_s * 1e3:.3g} ms: {listed(said)}. {went}; {last}."


def lines(found: Timeline, *, source: str) -> list[str]:
    """Return what the command prints: what was read, the phases together, the tensors, and the sentence."""
    every_s = found.cycles["median_s"]
    between = "" if every_s is None else f" ({every_s * 1e3:.3g} ms from one to the next, median)"
    together = [
        (name, f"{value * 1e3:.3f}", percent(value / found.busy_s, decimals=1) if found.busy_s else "")
        for name, value in found.together.items()
    ]
    apart = [
        (cut(row["tensor"], 40, first=18), *(f"{row[f'{phase}_s'] * 1e3:.3f}" for phase in PHASES))
        for row in found.tensors.head(_SHOWN).to_dict("records")
    ]
    more = len(found.tensors) - _SHOWN
    return [
        source,
        f"{plural(found.steps, 'step')}, {plural(found.collectives, 'collective')} of "
        f"{plural(len(found.tensors), 'tensor')}, {plural(found.cycles['count'] or 0, 'cycle')}{between}",
        "",
        "all tensors together, each moment counted once",
        *to_lines(
            table_of(("phase", "ms per step", "share"), [*together, ("together", f"{found.busy_s * 1e3:.3f}", "")])
        ),
        "",
        "ms per collective (mean)",
        *to_lines(table_of(("tensor", *PHASES), apart)),
        *([f"and {plural(more, 'other tensor')}, see {NAME}.csv"] if more > 0 else []),
        "",
        sentence(found),
    ]
