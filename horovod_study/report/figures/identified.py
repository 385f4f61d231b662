"""Identified parameters as a table for a terminal, as CSV and as a figure.

The numbers come as rows (mappings of column to value, None for unknown) and the curves as objects with the attributes
of `Specimen`; nothing is computed here. matplotlib is imported when a figure is drawn, so that the table works without.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from horovod_study.errors import ConfigError
from horovod_study.files import csv_rows, write_file, writing
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, printable

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

FORMATS = ("png", "pdf", "svg")
MAX_PANELS = 12
"""Specimens drawn in one figure; more would be too small to see a residual."""

MAX_ROWS = 50
"""Specimens listed in a terminal; the others are in the CSV and JSON."""

MAX_NAMED = 4
"""Specimens named in full for one kind of doubt; more share a line."""

NAME_WIDTH = 24
NETWORK_COLOR, FIT_COLOR = "#0072b2", "#d55e00"  # of the house palette; solid and dashed keep them apart in grey
NETWORK_DASH: Any = (0, (4, 2))

Row = Mapping[str, Any]


class Found(Protocol):
    """G0 and a of one curve by one way."""

    @property
    def g0_mpa(self) -> float: ...
    @property
    def a(self) -> float: ...
    @property
    def rms_mpa(self) -> float: ...


class Specimen(Protocol):
    """One specimen: what was measured, and what was found."""

    @property
    def name(self) -> str: ...
    @property
    def strain(self) -> "NDArray[np.float64]": ...
    @property
    def stress_mpa(self) -> "NDArray[np.float64]": ...
    @property
    def network(self) -> Found: ...
    @property
    def fit(self) -> Found: ...
    def line(self, method: str) -> tuple["NDArray[np.float64]", "NDArray[np.float64]"]:
        """Return strain and stress of the law with the parameters of `network` or `fit`."""

    def residual_mpa(self, method: str) -> "NDArray[np.float64]":
        """Return measured stress minus that law, at the measured points."""


# -------------------------------------------------------------------------------------------------------------- text


_HEADS = (
    *("  specimen", "G0 / MPa\nnetwork", "G0 / MPa\nfit ± s.e.", "a\nnetwork", "a\nfit ± s.e."),
    *("rms / MPa\nnetwork", "rms / MPa\nfit"),
)


def table(rows: Sequence[Row], *, most: int = MAX_ROWS) -> str:
    """Return an aligned table, 80 characters wide for names of up to 12; `!` marks the specimens with doubts."""
    shown = rows[:most]
    marks = ["! " if row["doubts"] else "  " for row in shown]
    cells = [(mark + _short(str(row["specimen"])), *_cells(row)) for mark, row in zip(marks, shown, strict=True)]
    lines = to_lines(table_of(_HEADS, cells))
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown):,} more specimens; --csv FILE and --json list all {len(rows):,}")
    return "\n".join(lines)


def _short(name: str) -> str:
    return cut(printable(name), NAME_WIDTH, first=NAME_WIDTH // 2 - 1, dots="..")


def _cells(row: Row) -> tuple[str, ...]:
    cells: list[str] = []
    for name, digits in (("g0", 1), ("a", 2)):
        unit = "_mpa" if name == "g0" else ""
        error = row[f"fit_{name}_se{unit}"]
        doubt = "unknown" if error is None else f"{error:.{digits}f}"
        cells += [f"{row[f'network_{name}{unit}']:.{digits}f}", f"{row[f'fit_{name}{unit}']:.{digits}f} ± {doubt:>4}"]
    return (*cells, f"{row['network_rms_mpa']:.3f}", f"{row['fit_rms_mpa']:.3f}")


def notes(trained: Row, errors: Mapping[str, Mapping[str, float]] | None) -> list[str]:
    """Return what a reader of the table must know: the law, the trained range, errors against known parameters."""
    (g0_low, g0_high), (a_low, a_high) = trained["g0_mpa"], trained["a"]
    lines = [
        "",
        "  fit: least squares of tau = G0/a (1 - exp(-a gamma)); s.e.: its standard error",
        f"  network: trained on G0 {g0_low:g} to {g0_high:g} MPa, a {a_low:g} to {a_high:g}",
    ]
    if errors is not None:
        parts = (f"{method} {one['g0_rmse_mpa']:.1f} MPa and {one['a_rmse']:.2f}" for method, one in errors.items())
        lines.append(f"  rms error against the given G0 and a: {', '.join(parts)}")
    return lines


def doubt_lines(doubts: Sequence[tuple[str, str, str]], headlines: Mapping[str, str], total: int) -> list[str]:
    """Return one line per doubt (specimen, kind, text); a kind that many specimens share takes one line for all."""
    lines = []
    for kind, headline in headlines.items():
        own = [(name, text) for name, of, text in doubts if of == kind]
        if len(own) <= MAX_NAMED:
            lines += [f"{_short(name)}: {text}" for name, text in own]
            continue
        named = ", ".join(_short(name) for name, _ in own[:MAX_NAMED])
        lines.append(f"{len(own):,} of {total:,} specimens ({named}, ...): {headline}")
    return lines


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write all rows; unknown values are empty cells."""
    text = csv_rows(list(rows[0]), [{key: _plain(value) for key, value in row.items()} for row in rows])
    with writing(path, "choose a writable --csv"):
        write_file(path, text)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.8g}" if math.isfinite(value) else ""
    return "" if value is None else value


# ------------------------------------------------------------------------------------------------------------ figure


def check_outputs(curves: Path, *, csv_path: Path | None, plot: Path | None) -> None:
    """Refuse outputs that cannot be meant, before any work is done: the curve file itself, an unknown format."""
    for option, path in (("--csv", csv_path), ("--plot", plot)):
        if path is not None and path.exists() and curves.exists() and path.samefile(curves):
            raise ConfigError(f"{option} {path}: is the file of the curves, which would be lost; choose another name")
    if plot is not None:
        plot_format(plot)


def plot_format(path: Path) -> str:
    """Return the format that the name of a figure asks for."""
    form = path.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise ConfigError(
            f"--plot {path}: the format is taken from the ending, which must be one of "
            f"{', '.join('.' + each for each in FORMATS)}; name it {path.stem or 'curves'}.png"
        )
    return form


def left_out(count: int) -> str:
    """Return the line that says how many of `count` specimens are not drawn, or ''."""
    if count <= MAX_PANELS:
        return ""
    return f"the first {MAX_PANELS} of {count:,} specimens; {count - MAX_PANELS:,} are left out"


def write_plot(curves: Sequence[Specimen], path: Path) -> None:
    """Draw measured points, both laws and the residuals of the first specimens; the format is that of the ending."""
    from horovod_study.report.kit.style import PRINT_WIDTH_IN, settled, style, to_bytes

    form = plot_format(path)
    with style():
        picture = to_bytes(settled(draw(curves, PRINT_WIDTH_IN)), form)
    with writing(path, "choose a writable --plot"):
        write_file(path, picture)


def draw(curves: Sequence[Specimen], width_in: float) -> "Figure":
    """Return the figure: small multiples, each with scales of its own, since specimens differ; call it inside style().

    Axes are in MPa and percent of strain.
    """
    from matplotlib.figure import Figure

    from horovod_study.report.kit.style import QUIET

    shown = curves[:MAX_PANELS]
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 4 else 3
    rows = math.ceil(len(shown) / columns)
    panel_in = width_in / columns * (0.72 if columns == 1 else 0.98)
    figure = Figure(figsize=(width_in, rows * panel_in + 0.55), layout="constrained")
    grid = figure.subplots(2 * rows, columns, squeeze=False, sharex=False, height_ratios=[3.0, 1.25] * rows)
    for k in range(rows * columns):
        row, column = divmod(k, columns)
        above, below = grid[2 * row, column], grid[2 * row + 1, column]
        if k >= len(shown):
            above.remove()
            below.remove()
            continue
        lowest = k + columns >= len(shown)
        _specimen(above, below, shown[k], first=column == 0, lowest=lowest)
    figure.legend(handles=_handles(), loc="outside upper left", ncols=3, borderaxespad=0.2)
    figure.align_ylabels()
    note = left_out(len(curves))
    if note:
        figure.supxlabel(note, x=0.99, ha="right", color=QUIET, size=7.5)
    return figure


def _specimen(above: "Axes", below: "Axes", curve: Specimen, *, first: bool, lowest: bool) -> None:
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import MaxNLocator

    from horovod_study.report.kit.style import PAPER, QUIET

    percent = 100 * curve.strain
    above.plot(percent, curve.stress_mpa, **_dots(QUIET, 2.6), zorder=2)
    looks = {"fit": (FIT_COLOR, "-", 1.2), "network": (NETWORK_COLOR, NETWORK_DASH, 1.1)}
    for method, (color, dash, width) in looks.items():
        strain, stress = curve.line(method)
        above.plot(100 * strain, stress, color=color, linestyle=dash, linewidth=width, zorder=3)
        mark = _dots(color) if method == "fit" else _crosses(color)
        below.plot(percent, curve.residual_mpa(method), **mark, zorder=2)
    # A saturating curve leaves its lower right corner free.
    for height, method, found in ((13, "network", curve.network), (4, "fit", curve.fit)):
        above.annotate(
            f"{method} {found.g0_mpa:,.0f} MPa, {found.a:.1f}",
            (1, 0),
            (-3, height),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            color=looks[method][0],
            size=6.8,
            path_effects=[withStroke(linewidth=2.5, foreground=PAPER)],  # grid lines pass behind
            zorder=4,
        )
    above.set_title(_short(curve.name))
    above.set_ylim(bottom=min(0.0, float(curve.stress_mpa.min())))
    below.axhline(0.0, color=QUIET, linewidth=0.7, zorder=1)
    for axes in (above, below):
        axes.set_xlim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    above.tick_params(labelbottom=False)
    above.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    below.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    if first:
        above.set_ylabel("Stress / MPa")
        below.set_ylabel("Residual")
    if lowest:
        below.set_xlabel("Shear strain / %")


def _dots(color: str, size: float = 1.5) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "o", "markersize": size, "markeredgewidth": 0, "color": color}


def _crosses(color: str) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "+", "markersize": 2.4, "markeredgewidth": 0.4, "color": color}


def _handles() -> list[Any]:
    from matplotlib.lines import Line2D

    from horovod_study.report.kit.style import QUIET

    return [
        Line2D([], [], **_dots(QUIET, 3.5), label="measured"),
        Line2D([], [], color=NETWORK_COLOR, linestyle=NETWORK_DASH, linewidth=1.4, label="law, network's G0 and a"),
        Line2D([], [], color=FIT_COLOR, linewidth=1.4, label="law, fitted G0 and a"),
    ]
