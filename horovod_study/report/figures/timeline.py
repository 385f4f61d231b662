"""Where the time of Horovod's collectives goes: as tables."""

from pathlib import Path

from horovod_study.analysis.steps.timeline import PHASES, Timeline
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import percent
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, plural

NAME = "timeline"
_SHOWN = 15  # so many tensors are printed, those that take longest; the CSV file has all

_THOUGHT = {
    "negotiation": "waiting until every rank has announced the tensor",
    "queue": "waiting for the operation to begin",
    "copy": "into and out of the fusion buffer",
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


def lines(found: Timeline, *, source: str) -> list[str]:
    """Return what the command prints: what was read, the phases together, the tensors, and which rank came last."""
    every_s = found.cycles["median_s"]
    between = "" if every_s is None else f" ({every_s * 1e3:.3g} ms from one to the next, median)"
    together = []
    for name, own in found.together.items():
        activities = found.table.loc[found.table["phase"] == name, "activity"].unique()
        named = f" ({', '.join(activities)})" if name in ("operation", "other") and len(activities) else ""
        share = "" if own["share"] is None else percent(own["share"], decimals=1)
        together.append((name, f"{own['per_step_s'] * 1e3:.3f}", share, f"{_THOUGHT[name]}{named}"))
    apart = [
        (cut(row["tensor"], 40, first=18), *(f"{row[f'{phase}_s'] * 1e3:.3f}" for phase in PHASES))
        for row in found.tensors.head(_SHOWN).to_dict("records")
    ]
    more = len(found.tensors) - _SHOWN
    last = "Which rank came last is not in the file; --cache-capacity 0 notes it, but negotiates more."
    if found.last_rank is not None:
        rank, count = max(found.last_rank.items(), key=lambda each: (each[1], -each[0]))
        of = plural(sum(found.last_rank.values()), "negotiation")
        last = f"Rank {rank} announced its tensor last in {count} of {of}."
    return [
        source,
        f"{plural(found.steps, 'step')}, {plural(found.collectives, 'collective')} of "
        f"{plural(len(found.tensors), 'tensor')} in {plural(sum(found.operations.values()), 'operation')}, "
        f"{plural(found.cycles['count'] or 0, 'cycle')}{between}",
        "",
        f"all tensors together, each moment counted once: under way for {found.busy_s * 1e3:.3f} ms per step",
        *to_lines(table_of(("phase", "ms per step", "share", ""), together, texts=(0, 3))),
        "",
        "ms per collective (mean)",
        *to_lines(table_of(("tensor", *PHASES), apart)),
        *([f"and {plural(more, 'other tensor')}, see {NAME}.csv"] if more > 0 else []),
        "",
        last,
    ]
