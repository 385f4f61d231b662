"""How everything looks: the same series has the same colour and marker in every figure.

Colours are those of Okabe and Ito (2008), which remain distinct to colour-blind readers; markers and dashes keep
series apart in grey. For dark pages each colour has a lighter twin, used through CSS variables.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

PRINT_WIDTH_IN = 5.9
"""Text width of a thesis page."""

SCREEN_WIDTH_IN = 4.6
"""Width at which figures for the page are drawn: the same type, so larger after scaling to a column."""

INK = "#1b1d22"
QUIET = "#6f747d"
GRID = "#dfe1e5"
SHADE = "#f3f4f6"
PAPER = "#ffffff"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesStyle:
    """How one series is drawn."""

    label: str
    color: str
    marker: str
    filled: bool
    dash: Any  # a matplotlib line style
    ring: bool = False  # the baseline: a ring around whatever lies on it


@dataclass(frozen=True, kw_only=True, slots=True)
class LapStyle:
    """How one part of a step is drawn."""

    label: str
    color: str
    ink: str  # of a number written on it
    hatch: str = ""


_SLOTS = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
    ("#e69f00", "v"),
    ("#56b4e9", "P"),
    ("#8a6d3b", "X"),
    ("#7a5ccc", "p"),
)
_USUAL_SLOT = {
    ("horovod", "mpi"): 0,
    ("horovod", "gloo"): 1,
    ("horovod", "nccl"): 2,
    ("ddp", "gloo"): 3,
    ("ddp", "nccl"): 4,
    ("mpi", "mpi"): 5,
}
_SERIAL = ("#4d5159", "o")
_VARIANTS: tuple[tuple[bool, Any], ...] = (
    (True, "-"),
    (False, (0, (6, 2))),
    (True, (0, (6, 2, 1, 2))),
    (False, (0, (3, 1.5))),
)

BACKENDS = {"serial": "plain PyTorch", "horovod": "Horovod", "ddp": "PyTorch DDP", "mpi": "direct"}
TRANSPORTS = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}

LAW_NAMES = {
    "constant": "constant",
    "linear": "linear",
    "amdahl": "Amdahl",
    "gustafson": "Gustafson",
    "usl": "USL",
    "power": "power",
    "log2": "log2",
    "ring": "ring",
    "tree": "tree",
    "overlap": "overlap",
}
THIN_LAWS: dict[str, Any] = {"amdahl": (0, (5, 1.5, 1, 1.5)), "gustafson": (0, (1.2, 1.2))}
"""Laws drawn thinly beside the selected one, with their dashes."""

EXTRAPOLATED_DASH: Any = (0, (2.5, 2))

LAPS = {
    "data": LapStyle(label="data", color="#6e8b74", ink="#ffffff"),
    "forward": LapStyle(label="forward", color="#d0d9e2", ink=INK),
    "backward": LapStyle(label="backward", color="#8fa5b8", ink=INK),
    "sync": LapStyle(label="waiting for gradients (sync)", color="#b3305f", ink="#ffffff"),
    "update": LapStyle(label="update", color="#d4ba6e", ink=INK),
    "residual": LapStyle(label="unexplained", color="#ffffff", ink=INK, hatch="//////"),
}
"""The parts of a step from the bottom of a bar to its top; only the waiting has a loud colour."""

DARK = {
    INK: "#e8e9ec",
    QUIET: "#a4a9b3",
    GRID: "#34383f",
    SHADE: "#22252b",
    PAPER: "#16181c",
    "#0072b2": "#4fb0ee",
    "#d55e00": "#ff8d4d",
    "#009e73": "#3fcb9f",
    "#cc79a7": "#e9a3c9",
    "#e69f00": "#f4bd4f",
    "#56b4e9": "#8fd0f6",
    "#8a6d3b": "#c9a768",
    "#7a5ccc": "#ab94ee",
    "#4d5159": "#bcc0c8",
    "#b3305f": "#d9507f",
}
"""The twin of each colour on a dark page; colours of bars that carry dark numbers stay as they are."""

_RC: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same letters, hence the same bytes, everywhere
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # whole TrueType letters: editable, and accepted by printers
    "svg.hashsalt": "horovod_study",  # or the names inside an SVG would be random
    "svg.fonttype": "path",
}


@contextmanager
def style(**changes: Any) -> Iterator[None]:
    """Draw and save inside this context; the user's own matplotlib settings have no say in it."""
    with mpl.rc_context():
        mpl.rcdefaults()
        settings: dict[Any, Any] = {**_RC, **{name.replace("__", "."): value for name, value in changes.items()}}
        mpl.rcParams.update(settings)
        yield


_NO_DATE: Mapping[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def settled(figure: Figure) -> Figure:
    """Return the figure with its layout made and rounded to a millionth of its size.

    The solver behind the layout works in an order that differs from run to run, and so do the last bits of its result:
    enough for other bytes in the file.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(value, 6) for value in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    return figure


def to_bytes(figure: Figure, form: str) -> bytes:
    """Return the figure as pdf, svg or png; equal figures give equal bytes. Call it inside `style()`."""
    stream = io.BytesIO()
    # A picture for a slide or a mail needs its paper; vector figures take the colour of the page they stand on.
    paper: dict[str, Any] = {"facecolor": PAPER} if form == "png" else {}
    figure.savefig(stream, format=form, dpi=300, metadata=_NO_DATE[form], **paper)
    return stream.getvalue()


def series_styles(points: pd.DataFrame) -> dict[str, SeriesStyle]:
    """Return the style of every series of a points table.

    The colour belongs to (partition, backend, transport); usual pairs have a fixed one, a second partition takes
    the next that is free. Series that share it (other batches, other settings) differ by marker fill and dash.
    """
    columns = ["series", "partition", "backend", "transport", "setting", "horovod_defaults", "reduction"]
    series = points[columns].drop_duplicates("series")
    slots = _slots(series)
    seen: dict[tuple[Any, ...], list[tuple[bool, str]]] = {}
    styles = {}
    labels = series_labels(points)
    for row in series.to_dict("records"):
        key = (row["partition"], row["backend"], row["transport"])
        color, marker = _SERIAL if row["backend"] == "serial" else _SLOTS[slots[key]]
        variant = (bool(row["horovod_defaults"]), f"{row['reduction']}")
        kinds = seen.setdefault((*key, row["setting"]), [])
        kinds.append(variant)
        filled, dash = _VARIANTS[(len(kinds) - 1) % len(_VARIANTS)]
        styles[row["series"]] = SeriesStyle(
            label=labels[row["series"]],
            color=color,
            marker=marker,
            filled=filled,
            dash=dash,
            ring=row["backend"] == "serial",
        )
    return styles


def looks_in_order(labels: Sequence[str]) -> list[SeriesStyle]:
    """Return the style of lines that share one way of talking, such as worker counts or learning rates."""
    looks = []
    for place, label in enumerate(labels):
        color, marker = _SLOTS[place % len(_SLOTS)]
        filled, dash = _VARIANTS[(place + place // len(_SLOTS)) % len(_VARIANTS)]
        looks.append(SeriesStyle(label=label, color=color, marker=marker, filled=filled, dash=dash))
    return looks


def _slots(series: pd.DataFrame) -> dict[tuple[str, str, str], int]:
    keys = sorted({(r["partition"], r["backend"], r["transport"]) for r in series.to_dict("records")})
    keys = [key for key in keys if key[1] != "serial"]
    slots: dict[tuple[str, str, str], int] = {}
    for key in sorted(keys, key=lambda key: (key[1:] not in _USUAL_SLOT, key)):
        wanted = _USUAL_SLOT.get(key[1:], 6)
        taken = set(slots.values())
        order = [(wanted + shift) % len(_SLOTS) for shift in range(len(_SLOTS))]
        reserved = {_USUAL_SLOT[other[1:]] for other in keys if other[1:] in _USUAL_SLOT} - {wanted}
        free = [slot for slot in order if slot not in taken and slot not in reserved]
        slots[key] = (free or [slot for slot in order if slot not in taken] or [wanted])[0]
    return slots


def series_labels(points: pd.DataFrame) -> dict[str, str]:
    """Return the shortest label of each series that says how it differs from the others of its setting."""
    columns = ["series", "partition", "backend", "transport", "horovod_defaults", "reduction", "setting"]
    rows = points[columns].drop_duplicates("series").to_dict("records")
    several = len({row["partition"] for row in rows}) > 1

    def words(row: Mapping[Any, Any], *, reduction: bool) -> str:
        text = way(row["backend"], row["transport"])
        text = f"{row['partition']}: {text}" if several else text
        extra = (["stock settings"] if row["horovod_defaults"] else []) + ([row["reduction"]] if reduction else [])
        return f"{text} ({', '.join(extra)})" if extra else text

    labels = {}
    for row in rows:
        peers = [other for other in rows if other["setting"] == row["setting"]]
        same = [other for other in peers if words(other, reduction=False) == words(row, reduction=False)]
        label = words(row, reduction=len({other["reduction"] for other in same}) > 1)
        clash = [other for other in same if other["reduction"] == row["reduction"]]
        labels[row["series"]] = label if len(clash) == 1 else row["series"]
    return labels


def way(backend: str, transport: str) -> str:
    """Return how workers talk, for readers: `Horovod/MPI`, `plain PyTorch`."""
    name = BACKENDS.get(backend, backend)
    if transport in ("none", "auto", ""):
        return name
    over = TRANSPORTS.get(transport, transport)
    return f"{name} {over}" if backend == "mpi" else f"{name}/{over}"
