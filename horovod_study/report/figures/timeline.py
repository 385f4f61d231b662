"""Where the time of Horovod's collectives goes: as tables, in a sentence, and as a figure."""

from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from horovod_study.analysis.steps.timeline import PHASES, Timeline
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import legend, lying_grid, stacked, swatch
from horovod_study.report.kit.style import INK, TEXT, FigureFormat, LapStyle, folded, text_in
from horovod_study.text.numbers import percent
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, listed, plural

NAME = "timeline"
SHOWN = 15
"""So many tensors are drawn and printed, those that take longest; the CSV file has all."""

LOOKS = {
    "negotiation": LapStyle(label="negotiation: until all ranks are ready", color="#e69f00", ink=INK),
    "queue": LapStyle(label="queue", color="#d0d9e2", ink=INK),
    "copy": LapStyle(label="copy", color="#8fa5b8", ink=INK),
    "operation": LapStyle(label="operation: the transfer", color="#b3305f", ink="#ffffff"),
    "other": LapStyle(label="other activities", color="#d4ba6e", ink=INK),
    "rest": LapStyle(label="rest of the runtime", color="#ffffff", ink=INK, hatch="//////"),
}
_THOUGHT = {
    "negotiation": "negotiation (waiting until every rank has announced the tensor)",
    "queue": "waiting for the operation to begin",
    "copy": "copying into and out of the fusion buffer",
    "operation": "the transfer",
    "other": "other activities",
    "rest": "the runtime's own work",
}


def write_timeline(found: Timeline, directory: Path, *, source: str, look: FigureFormat = TEXT) -> list[Path]:
    """Write timeline.json, .csv (every tensor and activity), .txt and the figure; return the paths."""
    texts = {
        f"{NAME}.json": {"source": source, **finite(found)},
        f"{NAME}.csv": found.table,
        f"{NAME}.txt": [
            *lines(found, source=source),
            "",
            *(f"Doubt: {doubt}." for doubt in found.doubts),
            caption(found),
        ],
    }
    return write_result(directory, texts, {NAME: partial(draw, found)} if found.busy_s > 0 else {}, look=look)


def sentence(found: Timeline) -> str:
    """Return in words where the time of a collective goes."""
    if found.busy_s <= 0:
        return "The file holds barriers only: nothing was transferred."
    shares = ((value / found.busy_s, name) for name, value in found.together.items())
    parts = sorted(shares, key=lambda each: -round(each[0], 9))
    said = [f"{percent(share)} {_named(found, name)}" for share, name in parts if share >= 0.01]
    others = sum(share for share, _ in parts if share < 0.01)
    if others >= 0.0005:
        said.append(f"{percent(others, decimals=1)} everything else")
    text = f"In each step a tensor is under way for {found.busy_s * 1e3:.3g} ms: {listed(said)}."
    return f"{text} {_joined(found)} {_last(found)}".replace("  ", " ").strip()


def _named(found: Timeline, phase: str) -> str:
    names = found.table.loc[found.table["phase"] == phase, "activity"].unique()
    return f"{_THOUGHT[phase]} ({', '.join(names)})" if phase in ("operation", "other") else _THOUGHT[phase]


def _joined(found: Timeline) -> str:
    operations = sum(found.operations.values())
    if not operations:
        return ""
    if operations == found.collectives:
        return f"Each of the {found.collectives} collectives was an operation of its own."
    return f"{found.collectives} collectives went in {plural(operations, 'operation')}: Horovod joined tensors."


def _last(found: Timeline) -> str:
    if found.last is None:
        return (
            "Horovod remembers what it has negotiated, and then notes neither which rank came last nor the time in "
            "which it waits for the thread of another rank; with --cache-capacity 0 it notes both, but negotiates more."
        )
    total = sum(found.last.values())
    rank, count = max(found.last.items(), key=lambda each: (each[1], -each[0]))
    return f"Rank {rank} announced its tensor last in {count} of {plural(total, 'negotiation')}."


def lines(found: Timeline, *, source: str) -> list[str]:
    """Return what the command prints: what was read, the phases together, the tensors, and the sentence."""
    tensors = found.tensors
    every_s = found.cycles["median_s"]
    cycles = f", {plural(found.cycles['count'] or 0, 'cycle')}" + (
        "" if every_s is None else f" ({every_s * 1e3:.3g} ms from one to the next, median)"
    )
    head = [
        f"{source}",
        f"{plural(found.steps, 'step')}, {plural(found.collectives, 'collective')} of "
        f"{plural(len(tensors), 'tensor')}{cycles}",
        "",
        "all tensors together, each moment counted once",
    ]
    together = [
        (name, f"{value * 1e3:.3f}", percent(value / found.busy_s, decimals=1) if found.busy_s else "")
        for name, value in found.together.items()
    ]
    together.append(("together", f"{found.busy_s * 1e3:.3f}", ""))
    head += [*to_lines(table_of(("phase", "ms per step", "share"), together)), "", "ms per collective (mean)"]
    apart = [
        (cut(row["tensor"], 40, first=18), *(f"{row[f'{phase}_s'] * 1e3:.3f}" for phase in PHASES))
        for row in tensors.head(SHOWN).to_dict("records")
    ]
    head += to_lines(table_of(("tensor", *PHASES), apart))
    if len(tensors) > SHOWN:
        head.append(f"and {plural(len(tensors) - SHOWN, 'other tensor')}, see {NAME}.csv")
    return [*head, "", sentence(found)]


def caption(found: Timeline) -> str:
    """Return what the figure shows."""
    return (
        "Where the time of Horovod's collectives goes, as rank 0 sees it. The upper bar counts each moment once, for "
        "the phase that is furthest on; the others are one tensor each, and tensors that are reduced together share "
        f"their time. Mean of {plural(found.steps, 'step')}; the steps are not timed ones."
    )


def draw(found: Timeline, width_in: float) -> Figure:
    """Return the figure; call it inside style()."""
    room_in = 0.42 * width_in
    bars = [(folded("all tensors, each moment once", room_in), found.together)]
    for row in found.tensors.head(SHOWN).to_dict("records"):
        bars.append((_cut_to(row["tensor"], room_in), {phase: row[f"{phase}_s"] for phase in PHASES}))
    figure = Figure(figsize=(width_in, 0.95 + 0.24 * len(bars) + 0.35), layout="constrained")
    axes = figure.subplots()
    for place, (_, values) in enumerate(bars):
        at = place + 0.5 * (place > 0)  # the first bar is of another kind
        stacked(axes, at, [(look, 1e3 * values[phase]) for phase, look in LOOKS.items()], 0.62, lying=True)
    places = [place + 0.5 * (place > 0) for place in range(len(bars))]
    axes.set_yticks(places, [name for name, _ in bars])
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.set_xlabel(folded("ms per step (upper bar), ms per collective (others)", 0.55 * width_in))
    axes.spines["left"].set_visible(False)
    lying_grid(axes)
    legend(figure, [swatch(look) for look in LOOKS.values()], width_in)
    return figure


def _cut_to(name: str, room_in: float) -> str:
    """Return the name with its middle left out where it is wider than `room_in`."""
    text, kept = cut(name, 40, first=18), len(name)
    while text_in(text) > room_in and kept > 8:
        kept -= 1
        text = f"{name[: kept // 2]}...{name[-(kept - kept // 2) :]}"
    return text
