"""How everything looks: the same series has the same colour and marker in every figure.

Colours are those of Okabe and Ito (2008), which remain distinct to colour-blind readers; markers and dashes keep
series apart in grey. For dark pages each colour has a lighter twin, used through CSS variables.
"""

import functools
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

from horovod_study.analysis.series.points import REPORTED
from horovod_study.errors import ConfigError, refuse
from horovod_study.records import COMMAND
from horovod_study.runtimes import LIBRARIES

PRINT_WIDTH_IN = 5.9  # text width of a thesis page: 150 mm, A4 with margins of 30 mm
COLUMN_WIDTH_IN = 2.8  # two figures beside each other on such a page, 8 mm apart
SCREEN_WIDTH_IN = 4.6  # of figures for the page: the same type, so larger after scaling to a column
NARROW_IN = 4.0  # below this width, letters are smaller and panels are below one another
_MM_PER_IN = 25.4

INK = "#1b1d22"
QUIET = "#6f747d"
GRID = "#dfe1e5"
SHADE = "#f3f4f6"
PAPER = "#ffffff"


FAMILIES = {
    # Both come with matplotlib: the same bytes everywhere. STIX is as wide as the text of most theses; what it has no
    # letter for, DejaVu Sans has.
    "sans": ["DejaVu Sans"],
    "serif": ["STIXGeneral", "DejaVu Sans"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureFormat:
    """For which page figures are drawn: a width in inches and "sans" or "serif".

    Letters have their size at this width: include the file unscaled. Raises ConfigError outside 40 to 400 mm.
    """

    width_in: float = PRINT_WIDTH_IN
    font: str = "sans"

    def __post_init__(self) -> None:
        wide_mm, text_mm, column_mm = (_MM_PER_IN * each for each in (self.width_in, PRINT_WIDTH_IN, COLUMN_WIDTH_IN))
        wide = f"--width: a figure is 40 to 400 mm wide, not {wide_mm:g} mm; give text ({text_mm:.0f} mm), column "
        wide += f"({column_mm:.0f} mm) or a number of mm"
        font = f"--font: {self.font!r} is not known; allowed: {', '.join(FAMILIES)}"
        refuse("", (not 40 <= round(wide_mm, 3) <= 400, wide), (self.font not in FAMILIES, font))

    @classmethod
    def of(cls, width: str, font: str = "sans") -> "FigureFormat":
        """Return the format for a width in words: `text`, `column`, or a number of millimetres."""
        named = {"text": PRINT_WIDTH_IN, "column": COLUMN_WIDTH_IN}
        try:
            return cls(width_in=named[width] if width in named else float(width) / _MM_PER_IN, font=font)
        except ValueError:
            raise ConfigError(
                f"--width: {width!r} is not a width; give text, column, or a number of mm, for example --width 120"
            ) from None


TEXT = FigureFormat()


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesStyle:
    """How one series is drawn."""

    label: str
    color: str
    marker: str
    filled: bool
    dash: Any  # a matplotlib line style
    ring: bool = False  # the baseline: a ring around whatever is on it


@dataclass(frozen=True, kw_only=True, slots=True)
class LapStyle:
    """How one part of a step is drawn."""

    label: str
    color: str
    ink: str  # of a number written on it
    hatch: str = ""
    edge: str = ""  # of the bar and its hatch, where it is not the usual one


COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a6d3b", "#7a5ccc")
"""Neighbours differ in lightness too: two or three partitions stay apart in grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", "h", ">", "*")

DASHES: Mapping[str, Any] = {"nccl": "-", "mpi": (0, (5, 2)), "gloo": (0, (5, 1.5, 1, 1.5))}
"""Lines of a transport: NCCL solid, MPI dashed, Gloo dash-dotted; whatever has no transport to tell apart is solid."""

_USUAL = {
    ("horovod", "mpi"): (0, 0),
    ("horovod", "nccl"): (0, 2),
    ("horovod", "gloo"): (0, 1),
    ("ddp", "nccl"): (3, 4),
    ("ddp", "gloo"): (3, 3),
    ("mpi", "mpi"): (2, 5),
}  # places in COLORS and MARKERS of (backend, transport); who stands first keeps them where several want one

_BASELINE = {"color": "#4d5159", "marker": "o", "ring": True}
_NAMED = ["series", "partition", "backend", "transport", "setting", "horovod_defaults", "reduction"]
_Key: TypeAlias = tuple[Any, ...]

VARIANTS: tuple[tuple[bool, Any], ...] = (
    (True, "-"),
    (False, (0, (6, 2))),
    (True, (0, (6, 2, 1, 2))),
    (False, (0, (3, 1.5))),
)

TRANSPORTS = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
THIN_LAWS: dict[str, Any] = {"amdahl": (0, (8, 1.5)), "gustafson": (0, (1.2, 1.2))}
"""Laws drawn thinly beside the selected one, with their dashes."""

EXTRAPOLATED_DASH: Any = (0, (2.5, 2))

LAPS = {
    "data": LapStyle(label="data", color="#6e8b74", ink="#ffffff"),
    "compute": LapStyle(label="compute (one CUDA graph)", color="#b3c3d1", ink=INK, hatch=".."),
    "forward": LapStyle(label="forward", color="#d0d9e2", ink=INK),
    "backward": LapStyle(label="backward", color="#8fa5b8", ink=INK),
    "sync": LapStyle(label="waiting for gradients (sync)", color="#b3305f", ink="#ffffff"),
    "update": LapStyle(label="update", color="#d4ba6e", ink=INK),
    "residual": LapStyle(label="unexplained", color="#ffffff", ink=INK, hatch="//////"),
}  # the parts of a step from the bottom of a bar to its top; only the waiting has a loud colour

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
}  # the twin of each colour on a dark page; colours of bars that carry dark numbers stay as they are

_SIZES = {
    # (font, narrow): letters of titles and axes, of ticks, legends and notes, in points.
    ("sans", False): (8.5, 8.0),
    ("sans", True): (7.5, 7.0),
    ("serif", False): (9.0, 8.5),
    ("serif", True): (8.0, 7.5),
}

_RC: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.titlelocation": "left",
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # whole TrueType letters: editable, and accepted by printers
    "svg.hashsalt": "horovod_study",  # or the names inside an SVG would be random
    "svg.fonttype": "path",
}


@contextmanager
def style(look: FigureFormat = TEXT, **changes: Any) -> Iterator[None]:
    """Draw and save inside this context; the user's own matplotlib settings have no say in it.

    `changes` are settings of matplotlib with two underscores for each dot.
    """
    body, small = _SIZES[look.font, look.width_in < NARROW_IN]
    letters = dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), body)
    letters |= dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize", "legend.title_fontsize"), small)
    own = {name.replace("__", "."): value for name, value in changes.items()}
    settings: dict[Any, Any] = {**_RC, "font.family": FAMILIES[look.font], **letters, **own}
    with mpl.rc_context(), warnings.catch_warnings():
        # A letter that the fonts lack is a box on paper, which the caption says, and itself on the page.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def small() -> float:
    """Return the size of notes in points, that of ticks and legends; call it inside style()."""
    return float(mpl.rcParams["xtick.labelsize"])


def text_in(text: str) -> float:
    """Return how wide the widest line of a text is, in inches at `small()` points; inside style()."""
    family = tuple(mpl.rcParams["font.family"])
    return max(_line_in(line, small(), family) for line in text.split("\n"))


@functools.lru_cache(4096)
def _line_in(line: str, size: float, family: tuple[str, ...]) -> float:
    if not line:
        return 0.0
    properties = FontProperties(family=list(family), size=size)
    width_pt, _, _ = TextToPath().get_text_width_height_descent(line, properties, ismath=False)
    return float(width_pt) / 72


def without_glyph(figure: Figure) -> str:
    """Return the letters in a figure that its fonts have no glyph for, each once; inside style()."""
    known = [get_font(findfont(family)).get_charmap() for family in mpl.rcParams["font.family"]]
    letters = {letter for text in figure.findobj(Text) for letter in text.get_text() if letter != "\n"}
    return "".join(sorted(letter for letter in letters if not any(ord(letter) in each for each in known)))


def folded(text: str, room_in: float) -> str:
    """Break a text after blanks, slashes and commas into lines of at most `room_in` inches; inside style().

    A longer word than 24 letters also breaks anywhere behind these. Nothing is lost: without the line breaks it is the
    same text.
    """
    lines = []
    for given in text.split("\n"):
        line = ""
        # A line may break after a blank, a comma and a colon, and after a slash before a capital: `samples/s` is one.
        for word in re.split(r"(?<=[ ,:])(?=[^ ])|(?<=/)(?=[A-Z])|(?<=[^ ,:]{24})(?=[^ ])", given):
            if line and text_in((line + word).rstrip()) > room_in:
                lines.append(line)
                line = ""
            line += word
        lines.append(line)
    return "\n".join(lines)


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
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    with mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # "none" leaves a stand-in, for which each file is drawn once more
    for axes in figure.axes:
        left, bottom, width, height = (round(value, 6) for value in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    return figure


def to_bytes(figure: Figure, form: str) -> bytes:
    """Return the figure as pdf, svg or png; equal figures give equal bytes. Call it inside `style()`."""
    stream = io.BytesIO()
    # A picture for a slide or a mail needs its paper; vector figures take the colour of the page they are on.
    paper: dict[str, Any] = {"facecolor": PAPER} if form == "png" else {}
    figure.savefig(stream, format=form, dpi=300, metadata=_NO_DATE[form], **paper)
    return stream.getvalue()


def series_styles(points: pd.DataFrame) -> dict[str, SeriesStyle]:
    """Return the style of every series of a points table; give it the points of the whole study.

    The colour belongs to (partition, backend), the dash to the transport, the marker to the three together; where all
    share partition and backend, the colour tells transports apart, too. Usual ones are fixed, those of a second
    partition are the next that are free. Series that share all of it (stock settings, other reductions) differ by fill,
    then by marker; other batches and settings have panels of their own.
    """
    rows, met = points[_NAMED].drop_duplicates("series").to_dict("records"), Counter[tuple[Any, ...]]()
    for row in rows:
        # Of equal ways in one setting the first is filled, the second not, the third has another marker, ...
        key = tuple(str(row[name]) for name in ("partition", "backend", "transport", "setting"))
        row["twin"], met[key] = met[key], met[key] + 1
    known = list(_USUAL)
    ways = list({_way(row) for row in rows if row["backend"] != "serial"})
    ways.sort(key=lambda key: (*key[:2], known.index(key[2:]) if key[2:] in known else len(known), key[2:]))
    told_by = 3 if len({key[1:3] for key in ways}) > 1 else 4
    colors_of = {backend: color for (backend, _), (color, _) in _USUAL.items()}
    colors = _places((key[1:told_by] for key in ways), lambda key: colors_of.get(key[1]), len(COLORS))
    usual = {(0, *way): marker for way, (_, marker) in _USUAL.items()}
    markers = _places(ways, lambda key: usual.get((key[0], *key[2:])), len(MARKERS))
    labels, styles = series_labels(points), {}
    for row in rows:
        key, look = _way(row), dict[str, Any](_BASELINE)
        if row["backend"] != "serial":
            look = {"color": COLORS[colors[key[1:told_by]]], "marker": MARKERS[markers[key]]}
        look = {**look, "filled": row["twin"] % 2 == 0, "dash": DASHES.get(row["transport"], "-")}
        styles[row["series"]] = SeriesStyle(label=labels[row["series"]], **look)
    return styles


def _way(row: Mapping[Any, Any]) -> _Key:
    return row["twin"] // 2, row["partition"], row["backend"], row["transport"]


def _places(keys: Iterable[_Key], usual: Callable[[_Key], int | None], room: int) -> dict[_Key, int]:
    """Return a place below `room` of each key: its usual one for the first that wants it, else the next that is free.

    Places are used twice only when there are more keys than room.
    """
    order, places = list(dict.fromkeys(keys)), dict[_Key, int]()
    for key in order:
        if (wanted := usual(key)) is not None and wanted not in places.values():
            places[key] = wanted
    for number, key in enumerate(order):
        start = usual(key) or 0
        free = (each % room for each in range(start, start + room) if each % room not in places.values())
        places.setdefault(key, next(free, number % room))
    return places


def looks_in_order(labels: Sequence[str]) -> list[SeriesStyle]:
    """Return the style of lines that share one runtime, such as worker counts or learning rates."""
    looks = []
    for place, label in enumerate(labels):
        filled, dash = VARIANTS[(place + place // len(COLORS)) % len(VARIANTS)]
        color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
        looks.append(SeriesStyle(label=label, color=color, marker=marker, filled=filled, dash=dash))
    return looks


def series_labels(points: pd.DataFrame) -> dict[str, str]:
    """Return the shortest label of each series that says how it differs from the others of its setting."""
    rows = points[_NAMED].drop_duplicates("series").to_dict("records")
    several = len({row["partition"] for row in rows}) > 1
    reductions: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        plain = row["backend"] not in (REPORTED, COMMAND)  # of others a name says it all
        text = "the command" if row["backend"] == COMMAND else runtime_label(row["backend"], row["transport"])
        if row["reduction"] == "own" and row["backend"] == "serial":
            text = "processes without a library"  # that nothing connects
        elif row["reduction"] == "own" and row["backend"] != COMMAND:
            text = f"{text.replace('PyTorch DDP', 'PyTorch')}, own calls"
        text = f"{row['partition']}" if row["backend"] == REPORTED else f"{row['partition']}: " * several + text
        row |= {"plain": plain, "label": text, "stock": bool(row["horovod_defaults"]) and plain}
        reductions.setdefault((row["setting"], row["label"], row["stock"]), []).append(row["reduction"])
    labels = dict[str, str]()
    for row in rows:
        others = reductions[row["setting"], row["label"], row["stock"]]
        extra = ["stock settings"] * row["stock"]
        if row["plain"] and len(set(others)) > 1 and row["reduction"] not in ("own", "none"):
            extra += [row["reduction"]]
        label = f"{row['label']} ({', '.join(extra)})" if extra else row["label"]
        labels[row["series"]] = row["series"] if others.count(row["reduction"]) > 1 else label
    return labels


def runtime_label(backend: str, transport: str) -> str:
    """Return how workers communicate, for readers: `Horovod/MPI`, `plain PyTorch`."""
    name = LIBRARIES[backend].label if backend in LIBRARIES else backend
    if transport in ("none", "auto", ""):
        return name
    over = TRANSPORTS.get(transport, transport)
    return f"{name} {over}" if backend == "mpi" else f"{name}/{over}"
