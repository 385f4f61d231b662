"""The figures of a study: values that can be drawn at any width, and the files they become.

Everything drawn is a column of the analysis; the rows used are written next to the figure as CSV, and what the reader
must know to read it (baseline, formula, what the bars mean) as a caption in a text file.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from horovod_study.analysis.breakdown import HOLDS_SYNC, hiding, shown
from horovod_study.analysis.study import Analysis
from horovod_study.errors import ConfigError, RecordError
from horovod_study.files import csv_of, not_written, result_folder, write_file
from horovod_study.report.interactive import mark
from horovod_study.report.pgf import need_latex, to_pgf
from horovod_study.report.style import (
    EXTRAPOLATED_DASH,
    LAPS,
    LAW_NAMES,
    NARROW_IN,
    PAPER,
    QUIET,
    SHADE,
    TEXT,
    THIN_LAWS,
    LapStyle,
    Look,
    SeriesStyle,
    folded,
    series_styles,
    settled,
    small,
    style,
    text_in,
    to_bytes,
)
from horovod_study.report.wording import THIN, milliseconds, percent, plural, tips

FORMATS = ("pdf", "svg", "png")
MOST_COLUMNS = 2
MOST_LINES = 5
"""Of panels with bars: below each other on a page."""
PAGE_IN = 9.6
"""No figure is taller: its panels make room for a long legend."""
MOST_PANELS = 6
"""Settings in one figure."""
MOST_THIN = 4
"""Series of a panel that have the lines of Amdahl and Gustafson beside their own."""
MOST_HEIGHT_IN = 8.4
"""Of all panels together: a page has room for them, their legend and a caption."""

Bar: TypeAlias = dict[str, Any]  # the rows of one cell of the breakdown, by lap


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One figure before it is drawn."""

    name: str  # of its files
    title: str
    alt: str  # one sentence for a reader who cannot see it
    caption: str
    data: pd.DataFrame  # the rows it is drawn from
    draw: Callable[[float], Figure]  # width in inches -> figure; call it inside style()

    def save(self, path: str | os.PathLike[str], *, look: Look = TEXT) -> None:
        """Write the figure as .pdf, .svg or .png; ConfigError for another ending."""
        form = Path(path).suffix.removeprefix(".").lower()
        if form not in FORMATS:
            raise ConfigError(
                f"{path}: a figure becomes {', '.join(f'.{each}' for each in FORMATS)}; choose one of them"
            )
        write_file(Path(path), self._bytes(form, look))

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self._bytes("png", TEXT)

    def _bytes(self, form: str, look: Look) -> bytes:
        with style(look):
            return to_bytes(settled(self.draw(look.width_in)), form)


def drawings(analysis: Analysis) -> list[Drawing]:
    """Return the figures that this analysis has data for, in the order in which a report shows them."""
    # These draw with the marks of this module.
    from horovod_study.report import (
        batches,
        boundary,
        causes,
        convergence,
        epochs,
        forecast,
        pairs,
        regression,
        resources,
        synchronisation,
        usage,
    )

    made = [_speedup(analysis), _efficiency(analysis), _breakdown(analysis), _throughput(analysis)]
    known = [each for each in made if each is not None]
    waits = synchronisation.drawings(analysis)
    learned = [*forecast.drawings(analysis), *convergence.drawings(analysis), *resources.drawings(analysis)]
    further = [
        each for module in (epochs, regression, pairs, batches, causes, usage) for each in module.drawings(analysis)
    ]
    return [*known, *boundary.drawings(analysis), *waits, *learned, *further]


def write_figures(analysis: Analysis, directory: Path, *, look: Look = TEXT, pgf: bool = False) -> list[Path]:
    """Write NAME.pdf, .svg, .png, .txt (caption) and .csv (data) of every figure; return the paths.

    With `pgf` also NAME.pgf, which LaTeX sets in the letters of the document. Raises ConfigError for `pgf` without
    LaTeX, and RecordError where `directory` cannot be written.
    """
    return write_drawings(drawings(analysis), directory, look=look, pgf=pgf)


def write_drawings(made: Sequence[Drawing], directory: Path, *, look: Look = TEXT, pgf: bool = False) -> list[Path]:
    """Write the files of some figures as `write_figures` does, with the same errors; return the paths."""
    if pgf:
        need_latex()
    paths = []
    try:
        result_folder(directory)
        for each in made:
            with style(look):
                figure = settled(each.draw(look.width_in))
                for form in FORMATS:
                    paths.append(directory / f"{each.name}.{form}")
                    write_file(paths[-1], to_bytes(figure, form))
                if pgf:
                    paths.append(directory / f"{each.name}.pgf")
                    write_file(paths[-1], to_pgf(figure))
            paths.append(directory / f"{each.name}.txt")
            write_file(paths[-1], each.caption + "\n")
            paths.append(directory / f"{each.name}.csv")
            write_file(paths[-1], csv_of(each.data))
    except OSError as error:
        raise RecordError(not_written(directory, error, "choose a writable folder")) from None
    return paths


# ---------------------------------------------------------------------------------------------------- against workers


def _baseline_words(analysis: Analysis) -> str:
    return {
        "plain": "one plain PyTorch worker without a communication library",
        "wrapped": "one worker inside the same communication library",
    }[analysis.provenance["baseline"]]


def _drawn(analysis: Analysis) -> pd.DataFrame:
    """Return the points that a speedup can be drawn of, and the cells without a result beside them."""
    points = analysis.points
    shown = points[points["mode"] != "mixed"]
    known = shown[f"speedup_{analysis.provenance['baseline']}"].notna()
    series = shown.loc[known, "series"].unique()
    return shown[known | (shown["missing"] & shown["series"].isin(series))]


def _speedup(analysis: Analysis) -> Drawing | None:
    kind = analysis.provenance["baseline"]
    return _against_workers(
        analysis,
        name="speedup",
        title="Speedup",
        columns=(f"speedup_{kind}", f"speedup_{kind}_min", f"speedup_{kind}_max"),
        curves=("speedup", "low", "high"),
        scale=1.0,
        ylabel="Speedup",
        ideal="speedup",
        formula="S(N) = X(N) / X(base), X = samples/s of all workers, medians over repeats",
    )


def _efficiency(analysis: Analysis) -> Drawing | None:
    kind = analysis.provenance["baseline"]
    return _against_workers(
        analysis,
        name="efficiency",
        title="Efficiency",
        columns=(f"efficiency_{kind}", f"efficiency_{kind}_min", f"efficiency_{kind}_max"),
        curves=("efficiency", "efficiency_low", "efficiency_high"),
        scale=100.0,
        ylabel="Efficiency / %",
        ideal="efficiency",
        formula="E(N) = S(N) / N = X(N) / (N X(base)), X = samples/s of all workers, medians over repeats",
    )


def _throughput(analysis: Analysis) -> Drawing | None:
    points = analysis.points
    shown = points[points["mode"] != "mixed"]
    if shown[~shown["missing"]].empty:
        return None
    if (shown["mode"] == "single").all() and shown["setting"].nunique() > MOST_COLUMNS:
        return None  # a panel for every dot: the table says it better
    styles = series_styles(points)
    data = shown[
        [
            *("series", "setting", "partition", "workers", "nodes", "repeats", "missing"),
            *(f"samples_per_s_{name}" for name in ("median", "min", "max")),
            "base_plain_samples_per_s",
        ]
    ]

    def draw(width_in: float) -> Figure:
        figure, panels = _panels(shown, width_in)
        for axes, setting in panels:
            rows = shown[shown["setting"] == setting]
            for series, own in rows.groupby("series", sort=False):
                look = styles[str(series)]
                guide = axes.plot(
                    own["workers"],
                    own["samples_per_s_median"] / 1000,  # a cell without a result is NaN and breaks the line
                    color=look.color,
                    linestyle=look.dash,
                    linewidth=1.2,
                    zorder=2,
                )
                mark(guide, series=look.label)
                texts = tips(
                    own,
                    "samples_per_s_median",
                    low="samples_per_s_ci95_low",
                    high="samples_per_s_ci95_high",
                    unit="samples/s",
                )
                _dots(axes, own, [f"samples_per_s_{n}" for n in ("median", "min", "max")], look, 1 / 1000, texts)
            bases = rows["base_plain_samples_per_s"].dropna().unique()
            for base in bases:
                axes.axline((0, 0), slope=base / 1000, color=QUIET, linewidth=0.7, zorder=1)
            worker_axis(axes, rows["workers"], rows["workers"].max(), panel_in(width_in, len(panels)))
            axes.set_ylim(0, rows["samples_per_s_max"].max() / 1000 * 1.12)
            node_boundaries(axes, rows, panel_in(width_in, len(panels)))
            axes.set_ylabel(folded("Throughput / 1000 samples/s", 0.5 * figure.get_figheight() / len(panels)))
        handles = _series_handles(shown, styles)
        if shown["base_plain_samples_per_s"].notna().any():
            handles.append(Line2D([], [], color=QUIET, linewidth=0.7, label="N times the plain worker"))
        legend(figure, [*handles, *_missing_handle(shown)], width_in)
        return figure

    caption = (
        "Throughput of all workers together against the number of workers. Points: medians over repeats; bars: slowest "
        "to fastest repeat; lines only guide the eye. Thin grey: the throughput of one plain worker times N. "
        f"{_work_words(shown)}{boundary_words(shown)}{in_table_only(_settings(shown))}"
    )
    return Drawing(
        name="throughput",
        title="Throughput",
        alt=f"Throughput against workers for {_names(shown, styles)}.",
        caption=caption,
        data=data,
        draw=draw,
    )


def _against_workers(
    analysis: Analysis,
    *,
    name: str,
    title: str,
    columns: tuple[str, str, str],
    curves: tuple[str, str, str],
    scale: float,
    ylabel: str,
    ideal: str,
    formula: str,
) -> Drawing | None:
    shown = _drawn(analysis)
    if shown[~shown["missing"] & (shown["backend"] != "serial")].empty:
        return None
    styles = series_styles(analysis.points)
    lines = analysis.curves[analysis.curves["series"].isin(shown["series"])]
    lines = lines[lines["selected"].astype(bool) | lines["law"].isin(list(THIN_LAWS))]
    laws = {str(row["series"]): str(row["law"]) for row in lines[lines["selected"].astype(bool)].to_dict("records")}

    def draw(width_in: float) -> Figure:
        figure, panels = _panels(shown, width_in)
        last = max(lines["workers"].max() if len(lines) else 1, shown["workers"].max())
        inside = lines.loc[~lines["extrapolated"].astype(bool), curves[0]].max()
        top = np.nanmax([shown[columns[2]].max(), inside, 1.0])
        for axes, setting in panels:
            rows = shown[shown["setting"] == setting]
            own = lines[lines["series"].isin(rows["series"])]
            measured = rows.loc[~rows["missing"], "workers"].max()
            _ideal(axes, ideal, last, scale)
            crowded = rows.loc[rows["backend"] != "serial", "series"].nunique() > MOST_THIN
            for (series, law), curve in own.groupby(["series", "law"], sort=False):
                look = styles[str(series)]
                if law == laws.get(str(series)):
                    _line(axes, curve, curves, scale, look)
                elif law in THIN_LAWS and not crowded:
                    _thin_line(axes, curve, curves[0], scale, look, THIN_LAWS[str(law)])
            for series, points in rows.groupby("series", sort=False):
                unit = "\u00d7" if ideal == "speedup" else "%"
                texts = tips(
                    points, columns[0], low=f"{columns[0]}_low", high=f"{columns[0]}_high", unit=unit, scale=scale
                )
                _dots(axes, points, columns, styles[str(series)], scale, texts)
            if last > measured:
                axes.axvspan(measured, last + 1, color=SHADE, linewidth=0, zorder=0)
                axes.text(
                    0.99,
                    0.015,
                    "extrapolated",
                    transform=axes.transAxes,
                    ha="right",
                    va="bottom",
                    color=QUIET,
                    size=small(),
                )
            worker_axis(axes, rows["workers"], last, panel_in(width_in, len(panels)))
            if ideal == "speedup":
                axes.set_ylim(0, np.nanmin([1.05 * last, np.nanmax([1.25 * top, lines[curves[0]].max() * 1.12])]))
                axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
            else:
                axes.set_ylim(0, scale * max(1.12, 1.05 * top))
            node_boundaries(axes, rows, panel_in(width_in, len(panels)))
            axes.set_ylabel(ylabel)
        legend(figure, _handles(shown, styles, lines, laws), width_in)
        return figure

    kept = ["series", "setting", "partition", "workers", "nodes", "repeats", "missing", *columns]
    data = pd.concat(
        [
            shown[kept].assign(kind="point"),
            lines[["series", "law", "workers", *curves, "extrapolated"]].assign(kind="line"),
        ],
        ignore_index=True,
    )
    absent = sorted(set(analysis.points.loc[analysis.points["backend"] != "serial", "series"]) - set(shown["series"]))
    fitted = "; ".join(f"{styles[series].label}: {LAW_NAMES[law]}" for series, law in laws.items())
    caption = " ".join(
        [
            f"{title} against the number of workers. Baseline ({analysis.provenance['baseline']}): "
            f"{_baseline_words(analysis)}.",
            f"{formula}.",
            "Points: medians over repeats; bars: slowest to fastest repeat over the median baseline.",
            *(
                [
                    f"Thick lines: the law selected by AICc ({fitted}) with its 95 % band (the baseline taken as "
                    "exact); thin lines: Amdahl and Gustafson, in panels with few series; lighter and dashed on grey: "
                    "extrapolated beyond the measured worker counts."
                ]
                if fitted
                else []
            ),
            "Thin grey: ideal.",
            f"{_work_words(shown)}{boundary_words(shown)}{in_table_only(_settings(shown))}".strip(),
            *([f"Not drawn for want of this baseline or of a fixed batch: {', '.join(absent)}."] if absent else []),
        ]
    )
    return Drawing(
        name=name,
        title=title,
        alt=f"{title} against workers for {_names(shown, styles)}; the values are in the table of points.",
        caption=caption,
        data=data,
        draw=draw,
    )


def _names(points: pd.DataFrame, styles: dict[str, SeriesStyle]) -> str:
    return ", ".join(styles[series].label for series in points["series"].unique())


def _work_words(points: pd.DataFrame) -> str:
    texts = points.loc[points["mode"].isin(["weak", "strong"]), ["setting", "work"]].drop_duplicates()
    return " ".join(f"Scaling, {row['setting']}: {row['work']}." for row in texts.to_dict("records"))


def _panels(points: pd.DataFrame, width_in: float) -> tuple[Figure, list[tuple[Axes, str]]]:
    """Return an empty figure with one panel per setting, in which only worker count and series change."""
    settings = _settings(points)[:MOST_PANELS]
    rows, columns, height_in = grid_of(width_in, len(settings))
    figure = Figure(figsize=(width_in, height_in + 0.45), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for spare in grid.flat[len(settings) :]:
        spare.remove()
    panels = list(zip(grid.flat[: len(settings)], settings, strict=True))
    if len(settings) > 1:
        for axes, setting in panels:
            axes.set_title(folded(setting, 0.8 * panel_in(width_in, len(settings))))
    return figure, panels


def _settings(points: pd.DataFrame) -> list[str]:
    """Return the settings that panels are for: with several workers if there are any such."""
    parallel = points.loc[(points["mode"] != "single") | (points["workers"] > 1), "setting"].drop_duplicates()
    return list(parallel) if len(parallel) else list(points["setting"].drop_duplicates())


def in_table_only(settings: Sequence[str]) -> str:
    """Return the sentence of a caption that names the settings without a panel, with a blank before it."""
    left_out = settings[MOST_PANELS:]
    return f" In the data only, for want of room: {', '.join(left_out)}." if left_out else ""


def _ideal(axes: Axes, kind: str, last: float, scale: float) -> None:
    xy = ([0, 2 * last], [0, 2 * last]) if kind == "speedup" else ([0, 2 * last], [scale, scale])
    axes.plot(*xy, color=QUIET, linewidth=0.7, zorder=1)


def _pieces(curve: pd.DataFrame) -> list[tuple[bool, pd.DataFrame]]:
    """Split a curve into measured and extrapolated stretches that share their end points."""
    beyond = curve["extrapolated"].to_numpy(dtype=bool)
    inside = np.flatnonzero(~beyond)
    first, last = inside[0], inside[-1]
    pieces = [(True, curve.iloc[: first + 1]), (False, curve.iloc[first : last + 1]), (True, curve.iloc[last:])]
    return [(extrapolated, piece) for extrapolated, piece in pieces if len(piece) > 1]


def _line(axes: Axes, curve: pd.DataFrame, names: tuple[str, str, str], scale: float, look: SeriesStyle) -> None:
    middle, low, high = names
    for extrapolated, piece in _pieces(curve):
        band = axes.fill_between(
            piece["workers"],
            piece[low] * scale,
            piece[high] * scale,
            color=look.color,
            alpha=0.09 if extrapolated else 0.18,
            linewidth=0,
            zorder=1.5,
        )
        line = axes.plot(
            piece["workers"],
            piece[middle] * scale,
            color=look.color,
            linewidth=1.2 if extrapolated else 1.7,
            alpha=0.65 if extrapolated else 1,
            linestyle=EXTRAPOLATED_DASH if extrapolated else look.dash,
            dash_capstyle="butt",
            zorder=2.5,
        )
        mark([band, *line], series=look.label)


def _thin_line(axes: Axes, curve: pd.DataFrame, name: str, scale: float, look: SeriesStyle, dash: Any) -> None:
    for extrapolated, piece in _pieces(curve):
        line = axes.plot(
            piece["workers"],
            piece[name] * scale,
            color=look.color,
            linewidth=0.8,
            alpha=0.5 if extrapolated else 0.9,
            linestyle=dash,
            dash_capstyle="butt",
            zorder=2,
        )
        mark(line, series=look.label)


def _dots(
    axes: Axes, points: pd.DataFrame, columns: Sequence[str], look: SeriesStyle, scale: float, texts: Sequence[str]
) -> None:
    there = ~points["missing"] & points[columns[0]].notna()
    known = points[there]
    spread = axes.vlines(
        known["workers"],
        known[columns[1]] * scale,
        known[columns[2]] * scale,
        color=look.color,
        linewidth=1.1,
        zorder=3,
    )
    dots = axes.plot(
        known["workers"],
        known[columns[0]] * scale,
        linestyle="none",
        **marker(look),
        zorder=4,
    )
    mark(spread, series=look.label)
    mark(dots, series=look.label, tips=[text for text, here in zip(texts, there, strict=True) if here])
    lost = points[points["missing"]]
    if lost.empty:
        return
    # A cell without a result leaves a mark at the foot of the plot instead of a gap that nobody notices.
    crosses = axes.plot(
        lost["workers"],
        [0.03] * len(lost),
        linestyle="none",
        marker="x",
        markersize=5,
        markeredgewidth=1.2,
        color=look.color,
        transform=axes.get_xaxis_transform(),
        clip_on=False,
        zorder=4,
    )
    mark(crosses, series=look.label, tips=[_lost(row) for row in lost.to_dict("records")])


def _lost(row: Mapping[Any, Any]) -> str:
    return f"{plural(row['workers'], 'worker')}: no result"


def marker(look: SeriesStyle) -> dict[str, Any]:
    """Return how the points of a series look: filled, hollow, or a ring that leaves what lies inside it visible."""
    if look.ring:
        return {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": look.color}
    if look.filled:
        face, edge, width = look.color, PAPER, 0.6
    else:
        face, edge, width = PAPER, look.color, 1.1
    size = {"marker": look.marker, "markersize": 5}
    return {**size, "markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": width}


def worker_axis(axes: Axes, workers: pd.Series, last: float, wide_in: float) -> None:
    """Label whole worker counts only: all of them where they fit in a panel of `wide_in` inches, else measured ones."""
    right = float(last) + 0.03 * float(last) + 0.1
    left = 0.0 if last > 8 else 0.6
    axes.set_xlim(left, right)
    counts = sorted({int(each) for each in workers})
    gap = (text_in(f"{counts[-1]}") + 0.07) / (0.85 * wide_in) * (right - left)
    if last <= 12 and gap <= 1:
        ticks = list(range(1, int(last) + 1))
    else:
        ends = [counts[-1], counts[0], *([] if counts[-1] > 0.8 * last else [int(last)])]
        ticks = []
        for count in [*ends, *counts[::-1]]:
            if all(abs(count - other) >= gap for other in ticks):
                ticks.append(count)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.set_xlabel("Workers")


def _series_handles(points: pd.DataFrame, styles: dict[str, SeriesStyle]) -> list[Any]:
    """Return one legend entry per look, with the label of its series."""
    handles: dict[tuple[Any, ...], Any] = {}
    for series in points["series"].unique():
        look = styles[series]
        key = (look.label, look.color, look.marker, look.filled, look.ring)
        handles[key] = Line2D(
            [],
            [],
            color=look.color,
            linestyle="none" if look.ring else look.dash,
            linewidth=1.5,
            **marker(look),
            label=look.label,
        )
    return list(handles.values())


def _missing_handle(points: pd.DataFrame) -> list[Any]:
    if not points["missing"].any():
        return []
    return [Line2D([], [], color=QUIET, linestyle="none", marker="x", markersize=5, label="no result")]


def _handles(
    points: pd.DataFrame, styles: dict[str, SeriesStyle], lines: pd.DataFrame, laws: dict[str, str]
) -> list[Any]:
    handles = _series_handles(points, styles)
    for law, dash in THIN_LAWS.items():
        thin = [series for series in lines.loc[lines["law"] == law, "series"].unique() if laws.get(series) != law]
        if thin:
            handles.append(Line2D([], [], color=QUIET, linewidth=0.9, linestyle=dash, label=LAW_NAMES[law]))
    handles.append(Line2D([], [], color=QUIET, linewidth=0.7, label="ideal"))
    return [*handles, *_missing_handle(points)]


def grid_of(width_in: float, panels: int, *, alone: float = 0.52, beside: float = 0.42) -> tuple[int, int, float]:
    """Return rows, columns and height of panels: beside each other where the figure is wide, never taller than a page.

    `alone` and `beside`: height of a panel over the width of the figure.
    """
    columns = 1 if width_in < NARROW_IN else min(panels, MOST_COLUMNS)
    rows = math.ceil(panels / columns)
    each_in = width_in * (0.64 if width_in < NARROW_IN else alone if columns == 1 else beside)
    return rows, columns, rows * min(each_in, MOST_HEIGHT_IN / rows)


def panel_in(width_in: float, panels: int) -> float:
    """Return the width of one panel of `grid_of`."""
    return width_in if width_in < NARROW_IN else width_in / min(panels, MOST_COLUMNS)


def legend(figure: Figure, handles: Sequence[Any], width_in: float, **more: Any) -> None:
    """Put a legend below the whole figure, in as many columns as fit; what is too long for a line is broken.

    The figure grows by the lines that the legend has beyond two.
    """
    size = small()
    em_in = size / 72
    lead_in = (mpl.rcParams["legend.handlelength"] + mpl.rcParams["legend.handletextpad"]) * em_in
    gap_in = mpl.rcParams["legend.columnspacing"] * em_in
    room_in = width_in - 2 * em_in
    labels = [folded(str(handle.get_label()), room_in - lead_in) for handle in handles]
    for columns in range(len(handles), 0, -1):
        parts = [part for part in np.array_split(np.arange(len(handles)), columns) if len(part)]
        wide_in = sum(max(text_in(labels[place]) for place in part) + lead_in for part in parts)
        if wide_in + gap_in * (columns - 1) <= room_in:
            break
    lines = max(sum(labels[place].count("\n") + 1 for place in part) for part in parts)
    tall_in = figure.get_figheight()
    figure.set_figheight(min(tall_in + max(0, lines - 2) * 1.35 * em_in, max(tall_in, PAGE_IN)))
    figure.legend(handles=list(handles), labels=labels, loc="outside lower center", ncols=columns, **more)


def node_boundaries(axes: Axes, rows: pd.DataFrame, wide_in: float, *, first: bool = False) -> None:
    """Mark where further workers need another node: a thin line between the last count before and the first after.

    `rows`: columns workers, nodes and partition, if there are several. `wide_in`: of the panel. Call it when the limits
    of the axes are set. A partition whose full nodes are seen has its line right after the last full one. `first`: no
    more than the second node of each partition.
    """
    several = "partition" in rows.columns and rows["partition"].nunique() > 1
    groups = rows.groupby("partition", sort=True) if several else [("", rows)]
    places: dict[float, list[str]] = {}
    for partition, own in groups:
        known = own[own["nodes"].notna() & own["workers"].notna()]
        found = _boundaries(known, logarithmic=axes.get_xscale() == "log")
        for x, nodes in found[:1] if first else found:
            places.setdefault(round(x, 9), []).append(f"{partition}: {nodes}" if several else f"{nodes} nodes")
    letter = 1.25 * small() / 72 / (0.85 * wide_in)  # of the width of the panel
    written = -math.inf
    for x, words in sorted(places.items()):
        axes.axvline(x, color=QUIET, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
        (at, _) = axes.transLimits.transform(axes.transScale.transform((x, 1.0)))
        if at - written < letter:
            continue
        written = at + letter * (len(words) - 1)
        axes.annotate(
            "\n".join(words), (x, 0), xycoords=("data", "axes fraction"), xytext=(2, 3), textcoords="offset points",
            rotation=90, ha="left", va="bottom", color=QUIET, size=small(), zorder=1.2,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.75},
        )  # fmt: skip


def boundary_words(rows: pd.DataFrame) -> str:
    """Return the sentence of a caption that says what `node_boundaries` draws, with a blank before it."""
    known = rows[rows["nodes"].notna()]
    if known["nodes"].nunique() < 2:
        return ""
    several = known["partition"].nunique() > 1 if "partition" in known.columns else False
    return f" Dashed vertical lines: further workers need another node{' (partition: nodes)' if several else ''}."


def _boundaries(rows: pd.DataFrame, *, logarithmic: bool) -> list[tuple[float, int]]:
    """Return the place of each boundary with the nodes behind it; none where counts before and after overlap."""
    found = []
    full = (rows["workers"] / rows["nodes"]).max()
    for fewer, more in pairwise(sorted(set(rows["nodes"]))):
        last = float(rows.loc[rows["nodes"] <= fewer, "workers"].max())
        first = float(rows.loc[rows["nodes"] >= more, "workers"].min())
        if first < last:
            continue
        if first > last and last == full * fewer:
            first, more = last + 1, fewer + 1
        found.append((math.sqrt(last * first) if logarithmic else (last + first) / 2, int(more)))
    return found


# ---------------------------------------------------------------------------------------------------- breakdown


def _breakdown(analysis: Analysis) -> Drawing | None:
    parts = analysis.breakdown
    if parts.empty:
        return None
    styles = series_styles(analysis.points)
    order = [series for series in analysis.points["series"].unique() if series in set(parts["series"])]
    setting = analysis.points.drop_duplicates("series").set_index("series")["setting"]
    titles = {series: styles[series].label for series in order}
    if (analysis.points["backend"] == "serial").all():  # then settings are what is compared, side by side
        titles = {series: f"{setting[series]}" for series in order}
        setting = setting.map(lambda _: "")

    def draw(width_in: float) -> Figure:
        bars = {series: _bars(parts[parts["series"] == series]) for series in order}
        pitch_in = max(text_in(_height(bar)) for each in bars.values() for bar in each) / 0.86
        lines = [
            line
            for name in dict.fromkeys(setting[series] for series in order)
            for line in _wrapped([series for series in order if setting[series] == name], bars, width_in / pitch_in)
        ][:MOST_LINES]
        line_in = min(2.3 if len(lines) == 1 else 1.95, MOST_HEIGHT_IN / len(lines))
        figure = Figure(figsize=(width_in, 0.55 + len(lines) * line_in), layout="constrained")
        whole = figure.add_gridspec(len(lines), 1)
        room = max(_bars_of(line, bars) for line in lines)
        for place, line in enumerate(lines):
            same = [series for series in order if setting[series] == setting[line[0]]]
            top = max(bar["step"]["mean_s"] for series in same for bar in bars[series]) * 1000 * 1.1
            spare = room - _bars_of(line, bars)
            ratios = [*(_wide(bars[series]) for series in line), *([spare] if spare > 0.5 else [])]
            cells = whole[place].subgridspec(1, len(ratios), width_ratios=ratios)
            for column, series in enumerate(line):
                axes = figure.add_subplot(cells[column])
                title = folded(titles[series], 0.8 * ratios[column] / sum(ratios) * width_in)
                _stack(
                    axes,
                    titles[series],
                    bars[series],
                    top,
                    first=column == 0,
                    bar_in=width_in * 0.9 / room,
                    tall_in=max(0.3, line_in - 0.85 - 0.14 * (title.count("\n") + 1)),
                )
                axes.set_title(title, size=small())
                if column == 0 and len(set(setting)) > 1:
                    words = (setting[series], axes.get_ylabel())
                    axes.set_ylabel("\n".join(folded(each, line_in - 0.6) for each in words))
        legend(figure, _lap_handles(parts), width_in)
        return figure

    hidden = {lap: _series_hiding(parts, lap) for lap in hiding(parts)}
    caption = (
        "Where the time of a step goes: mean seconds per step over the timed window, all workers and all repeats, "
        "shown in ms for each number of workers. The parts add up to the step; 'unexplained' is what no part covers. "
        "'Waiting' is exposed: from the end of a worker's own backward pass to the averaged gradients."
    )
    if "compute" in shown(parts, tuple(LAPS)):
        caption += (
            " 'Compute' is one CUDA graph of forward and backward; that of a worker alone holds the update too. It is "
            "not comparable with forward or backward alone."
        )
    if len(order) > MOST_LINES:
        caption += " Where a page has no room for all of them, the last series stand in the data only."
    for lap, those in hidden.items():
        names = ", ".join(styles[series].label for series in those)
        place = "the backward pass" if lap == "backward" else "the graph"
        caption += f" {names}: communication runs inside {place} and cannot be told apart (hatched)."
    return Drawing(
        name="breakdown",
        title="Where the time of a step goes",
        alt="Stacked bars of the mean time per step by part and number of workers; the values are in the table below.",
        caption=caption,
        data=parts[["series", "workers", "nodes", "repeats", "lap", "mean_s", "share", "note"]],
        draw=draw,
    )


def _series_hiding(parts: pd.DataFrame, lap: str) -> list[str]:
    """Return the series of several workers whose `lap` holds the synchronisation."""
    sync = parts[(parts["lap"] == "sync") & (parts["workers"] > 1)]
    return [str(each) for each in sync.loc[sync["note"].map(HOLDS_SYNC) == lap, "series"].drop_duplicates()]


def _bars(parts: pd.DataFrame) -> list[Bar]:
    cells = parts.groupby(["workers", "nodes"], sort=True)
    return [{str(row["lap"]): row for row in rows.to_dict("records")} for _, rows in cells]


def _bars_of(line: Sequence[str], bars: dict[str, list[Bar]]) -> float:
    """Return the width of a line of panels in bars; each panel has a margin of its own."""
    return sum(_wide(bars[series]) for series in line)


def _wide(bars: Sequence[Bar]) -> float:
    """Return the width of a panel in bars; one with a single bar needs room for its title."""
    return max(len(bars), 1.8) + 0.9


def _wrapped(order: Sequence[str], bars: dict[str, list[Bar]], most_bars: float) -> list[list[str]]:
    """Distribute the panels of one setting over lines that leave every bar enough room."""
    lines: list[list[str]] = [[]]
    for series in order:
        if lines[-1] and _bars_of([*lines[-1], series], bars) > most_bars:
            lines.append([])
        lines[-1].append(series)
    return lines


def _stack(
    axes: Axes, title: str, bars: Sequence[Bar], top: float, *, first: bool, bar_in: float, tall_in: float
) -> None:
    narrow = text_in("88%") > 0.66 * bar_in
    upright = max(text_in(_height(bar)) for bar in bars) > 0.96 * bar_in
    for place, bar in enumerate(bars):
        foot = 0.0
        for lap, look in LAPS.items():
            if lap not in bar or not bar[lap]["mean_s"] > 0:
                continue
            value = bar[lap]["mean_s"] * 1000
            hidden = HOLDS_SYNC.get(bar["sync"]["note"]) == lap and bar["step"]["workers"] > 1
            part = axes.bar(
                place,
                value,
                bottom=foot,
                width=0.7,
                color=look.color,
                hatch="\\\\\\\\\\\\" if hidden else look.hatch,
                edgecolor=LAPS["sync"].color if hidden else QUIET if look.hatch else PAPER,
                linewidth=0.5,
                zorder=2,
            )
            mark(part, series=look.label, tips=[_part_words(title, bar[lap])])
            if lap == "sync" and value / top * tall_in > (text_in("88%") if narrow else small() / 72):
                axes.text(
                    place,
                    foot + value / 2,
                    f"{bar[lap]['share'] * 100:.0f}%",
                    ha="center",
                    va="center",
                    size=small(),
                    rotation=90 if narrow else 0,
                    color=look.ink,
                    zorder=3,
                )
            foot += value
        axes.text(
            place,
            foot + 0.015 * top,
            _height(bar),
            ha="center",
            va="bottom",
            size=small(),
            rotation=90 if upright else 0,
        )
    nodes = [int(bar["step"]["nodes"]) for bar in bars]
    labels = [f"{int(bar['step']['workers'])}" for bar in bars]
    if len(set(nodes)) > 1:
        labels = [f"{label}\n({count})" for label, count in zip(labels, nodes, strict=True)]
    axes.set_xticks(range(len(bars)), labels)
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_ylim(0, top * (1 + (max(text_in(_height(bar)) for bar in bars) if upright else 0.05) / tall_in))
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("Workers" if len(set(nodes)) == 1 else "Workers (nodes)")
    if first:
        axes.set_ylabel("Mean time per step / ms")
    else:
        axes.tick_params(axis="y", labelleft=False)


def _height(bar: Bar) -> str:
    return f"{bar['step']['mean_s'] * 1000:#.3g}"


def _part_words(title: str, row: Mapping[Any, Any]) -> str:
    """Return what pointing at one part of a bar says."""
    time = f"{milliseconds(row['mean_s'])}{THIN}ms, {percent(row['share'])} of the step"
    return f"{title}, {plural(row['workers'], 'worker')}: {time}, {plural(row['repeats'], 'repeat')}"


def swatch(look: LapStyle) -> Patch:
    """Return the entry of a legend that stands for a part of a bar."""
    edge = QUIET if look.hatch else PAPER
    return Patch(facecolor=look.color, edgecolor=edge, hatch=look.hatch, linewidth=0.5, label=look.label)


def _lap_handles(parts: pd.DataFrame) -> list[Any]:
    handles: list[Any] = [swatch(LAPS[lap]) for lap in shown(parts, tuple(LAPS))]
    for lap in hiding(parts):
        color, edge = LAPS[lap].color, LAPS["sync"].color
        handles.append(
            Patch(facecolor=color, edgecolor=edge, hatch="\\\\\\\\\\\\", linewidth=0.5, label=f"{lap} with hidden sync")
        )
    return handles
