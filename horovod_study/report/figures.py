"""The figures of a study: values that can be drawn at any width, and the files they become.

Everything drawn is a column of the analysis; the rows used are written next to the figure as CSV, and what the reader
must know to read it (baseline, formula, what the bars mean) as a caption in a text file.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from horovod_study.analysis.study import Analysis
from horovod_study.errors import RecordError
from horovod_study.report.style import (
    DARK,
    EXTRAPOLATED_DASH,
    LAPS,
    LAW_NAMES,
    PAPER,
    PRINT_WIDTH_IN,
    QUIET,
    SCREEN_WIDTH_IN,
    SHADE,
    THIN_LAWS,
    SeriesStyle,
    series_styles,
    settled,
    style,
    to_bytes,
)

FORMATS = ("pdf", "svg", "png")
MOST_COLUMNS = 2

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


def drawings(analysis: Analysis) -> list[Drawing]:
    """Return the figures that this analysis has data for, in the order in which a report shows them."""
    # These draw with the marks of this module.
    from horovod_study.report import boundary, convergence, forecast, resources, synchronisation

    made = [_speedup(analysis), _efficiency(analysis), _breakdown(analysis), _throughput(analysis)]
    known = [each for each in made if each is not None]
    waits = synchronisation.drawings(analysis)
    learned = [*forecast.drawings(analysis), *convergence.drawings(analysis), *resources.drawings(analysis)]
    return [*known, *boundary.drawings(analysis), *waits, *learned]


def write_figures(analysis: Analysis, directory: Path) -> list[Path]:
    """Write NAME.pdf, .svg, .png, .txt (caption) and .csv (data) of every figure; return the paths."""
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for each in drawings(analysis):
            with style():
                figure = settled(each.draw(PRINT_WIDTH_IN))
                for form in FORMATS:
                    paths.append(directory / f"{each.name}.{form}")
                    paths[-1].write_bytes(to_bytes(figure, form))
            paths.append(directory / f"{each.name}.txt")
            paths[-1].write_text(each.caption + "\n", encoding="utf-8")
            paths.append(directory / f"{each.name}.csv")
            each.data.to_csv(paths[-1], index=False, lineterminator="\n")
    except OSError as error:
        raise RecordError(
            f"{directory}: figures cannot be written ({error.strerror or error}); choose a writable folder"
        ) from None
    return paths


def inline_svg(drawing: Drawing, *, width_in: float = SCREEN_WIDTH_IN) -> str:
    """Return the figure as an <svg> element for a page: its text as text, its colours as variables of the page."""
    with style(svg__fonttype="none"):
        svg = to_bytes(settled(drawing.draw(width_in)), "svg").decode("utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Names are unique in one SVG, but not among several on one page.
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{drawing.name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{drawing.name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{drawing.name}-\1)", svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--sans)", svg)
    for color in DARK:
        svg = re.sub(rf"(?<=: ){color}\b", f"var({css_name(color)})", svg)
        svg = svg.replace(f'fill="{color}"', f'style="fill: var({css_name(color)})"')  # in patterns of hatches
    head = re.match(r"<svg [^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="[^"]+"', head.group())
    assert box is not None
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box.group()}>'
    return opening + svg[head.end() :].strip()


def css_name(color: str) -> str:
    """Return the CSS variable that stands for a colour of the figures."""
    return f"--c-{color.removeprefix('#')}"


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
            *("series", "setting", "workers", "nodes", "repeats", "missing"),
            *(f"samples_per_s_{name}" for name in ("median", "min", "max")),
        ]
    ]

    def draw(width_in: float) -> Figure:
        figure, panels = _panels(shown, width_in)
        for axes, setting in panels:
            rows = shown[shown["setting"] == setting]
            for series, own in rows.groupby("series", sort=False):
                look = styles[str(series)]
                axes.plot(
                    own["workers"],
                    own["samples_per_s_median"] / 1000,  # a cell without a result is NaN and breaks the line
                    color=look.color,
                    linestyle=look.dash,
                    linewidth=1.2,
                    zorder=2,
                )
                _dots(axes, own, [f"samples_per_s_{n}" for n in ("median", "min", "max")], look, 1 / 1000)
            bases = rows["base_plain_samples_per_s"].dropna().unique()
            for base in bases:
                axes.axline((0, 0), slope=base / 1000, color=QUIET, linewidth=0.7, zorder=1)
            worker_axis(axes, rows["workers"], rows["workers"].max(), width_in / min(len(panels), MOST_COLUMNS))
            axes.set_ylim(0, rows["samples_per_s_max"].max() / 1000 * 1.12)
            axes.set_ylabel("Throughput / 1000 samples/s")
        handles = _series_handles(shown, styles)
        if shown["base_plain_samples_per_s"].notna().any():
            handles.append(Line2D([], [], color=QUIET, linewidth=0.7, label="N times the plain worker"))
        legend(figure, [*handles, *_missing_handle(shown)], width_in)
        return figure

    caption = (
        "Throughput of all workers together against the number of workers. Points: medians over repeats; bars: slowest "
        "to fastest repeat; lines only guide the eye. Thin grey: the throughput of one plain worker times N. "
        f"{_work_words(shown)}"
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
            for (series, law), curve in own.groupby(["series", "law"], sort=False):
                look = styles[str(series)]
                if law == laws.get(str(series)):
                    _line(axes, curve, curves, scale, look)
                elif law in THIN_LAWS:
                    _thin_line(axes, curve, curves[0], scale, look.color, THIN_LAWS[str(law)])
            for series, points in rows.groupby("series", sort=False):
                _dots(axes, points, columns, styles[str(series)], scale)
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
                    size=7.5,
                )
            worker_axis(axes, rows["workers"], last, width_in / min(len(panels), MOST_COLUMNS))
            if ideal == "speedup":
                axes.set_ylim(0, np.nanmin([1.05 * last, np.nanmax([1.25 * top, lines[curves[0]].max() * 1.12])]))
                axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
            else:
                axes.set_ylim(0, scale * max(1.12, 1.05 * top))
            axes.set_ylabel(ylabel)
        legend(figure, _handles(shown, styles, lines, laws), width_in)
        return figure

    kept = ["series", "setting", "workers", "nodes", "repeats", "missing", *columns]
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
                    "exact); thin lines: Amdahl and Gustafson; lighter and dashed on grey: extrapolated beyond the "
                    "measured worker counts."
                ]
                if fitted
                else []
            ),
            "Thin grey: ideal.",
            _work_words(shown),
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
    parallel = points.loc[(points["mode"] != "single") | (points["workers"] > 1), "setting"].drop_duplicates()
    settings = list(parallel) if len(parallel) else list(points["setting"].drop_duplicates())
    columns = min(len(settings), MOST_COLUMNS)
    rows = math.ceil(len(settings) / columns)
    height_in = rows * width_in * (0.52 if columns == 1 else 0.42) + 0.65
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for spare in grid.flat[len(settings) :]:
        spare.remove()
    panels = list(zip(grid.flat[: len(settings)], settings, strict=True))
    if len(settings) > 1:
        for axes, setting in panels:
            axes.set_title(setting)
    return figure, panels


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
        axes.fill_between(
            piece["workers"],
            piece[low] * scale,
            piece[high] * scale,
            color=look.color,
            alpha=0.09 if extrapolated else 0.18,
            linewidth=0,
            zorder=1.5,
        )
        axes.plot(
            piece["workers"],
            piece[middle] * scale,
            color=look.color,
            linewidth=1.2 if extrapolated else 1.7,
            alpha=0.65 if extrapolated else 1,
            linestyle=EXTRAPOLATED_DASH if extrapolated else look.dash,
            dash_capstyle="butt",
            zorder=2.5,
        )


def _thin_line(axes: Axes, curve: pd.DataFrame, name: str, scale: float, color: str, dash: Any) -> None:
    for extrapolated, piece in _pieces(curve):
        axes.plot(
            piece["workers"],
            piece[name] * scale,
            color=color,
            linewidth=0.8,
            alpha=0.5 if extrapolated else 0.9,
            linestyle=dash,
            dash_capstyle="butt",
            zorder=2,
        )


def _dots(axes: Axes, points: pd.DataFrame, columns: Sequence[str], look: SeriesStyle, scale: float) -> None:
    known = points[~points["missing"] & points[columns[0]].notna()]
    axes.vlines(
        known["workers"],
        known[columns[1]] * scale,
        known[columns[2]] * scale,
        color=look.color,
        linewidth=1.1,
        zorder=3,
    )
    axes.plot(
        known["workers"],
        known[columns[0]] * scale,
        linestyle="none",
        **marker(look),
        zorder=4,
    )
    lost = points[points["missing"]]
    if lost.empty:
        return
    # A cell without a result leaves a mark at the foot of the plot instead of a gap that nobody notices.
    axes.plot(
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


def worker_axis(axes: Axes, workers: pd.Series, last: float, panel_in: float) -> None:
    """Label whole worker counts only: all of them where they fit, otherwise those that were measured."""
    right = float(last) + 0.03 * float(last) + 0.1
    left = 0.0 if last > 8 else 0.6
    axes.set_xlim(left, right)
    counts = sorted({int(each) for each in workers})
    gap = 0.19 / (0.85 * panel_in) * (right - left)
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


def legend(figure: Figure, handles: list[Any], width_in: float) -> None:
    """Put a legend below the whole figure, in as many columns as fit."""
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(len(handles), int(width_in / (0.062 * longest + 0.55))))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


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
        lines = [
            line
            for name in dict.fromkeys(setting[series] for series in order)
            for line in _wrapped([series for series in order if setting[series] == name], bars, width_in)
        ]
        height_in = 0.75 + len(lines) * (2.3 if len(lines) == 1 else 1.95)
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        whole = figure.add_gridspec(len(lines), 1)
        room = max(_bars_of(line, bars) for line in lines)
        for place, line in enumerate(lines):
            same = [series for series in order if setting[series] == setting[line[0]]]
            top = max(bar["step"]["mean_s"] for series in same for bar in bars[series]) * 1000 * 1.1
            spare = room - _bars_of(line, bars)
            ratios = [*(len(bars[series]) + 0.9 for series in line), *([spare] if spare > 0.5 else [])]
            cells = whole[place].subgridspec(1, len(ratios), width_ratios=ratios)
            for column, series in enumerate(line):
                axes = figure.add_subplot(cells[column])
                _stack(axes, bars[series], top, first=column == 0, bar_in=width_in * 0.9 / room)
                axes.set_title(_folded(titles[series], ratios[column] / sum(ratios) * width_in), size=8)
                if column == 0 and len(set(setting)) > 1:
                    axes.set_ylabel(f"{setting[series]}\n{axes.get_ylabel()}")
        figure.legend(handles=_lap_handles(parts), loc="outside lower center", ncols=3)
        return figure

    hidden = parts.loc[parts["note"] == "inside backward", "series"].drop_duplicates()
    caption = (
        "Where the time of a step goes: mean seconds per step over the timed window, all workers and all repeats, "
        "shown in ms for each number of workers. The parts add up to the step; 'unexplained' is what no part covers. "
        "'Waiting' is exposed: from the end of a worker's own backward pass to the averaged gradients."
    )
    if len(hidden):
        names = ", ".join(styles[series].label for series in hidden)
        caption += f" {names}: communication runs inside the backward pass and cannot be told apart (hatched)."
    return Drawing(
        name="breakdown",
        title="Where the time of a step goes",
        alt="Stacked bars of the mean time per step by part and number of workers; the values are in the table below.",
        caption=caption,
        data=parts[["series", "workers", "nodes", "repeats", "lap", "mean_s", "share", "note"]],
        draw=draw,
    )


def _bars(parts: pd.DataFrame) -> list[Bar]:
    cells = parts.groupby(["workers", "nodes"], sort=True)
    return [{str(row["lap"]): row for row in rows.to_dict("records")} for _, rows in cells]


def _bars_of(line: Sequence[str], bars: dict[str, list[Bar]]) -> float:
    """Return the width of a line of panels in bars; each panel has a margin of its own."""
    return sum(len(bars[series]) + 0.9 for series in line)


def _wrapped(order: Sequence[str], bars: dict[str, list[Bar]], width_in: float) -> list[list[str]]:
    """Distribute the panels of one setting over lines that leave every bar enough room."""
    lines: list[list[str]] = [[]]
    for series in order:
        if lines[-1] and _bars_of([*lines[-1], series], bars) > width_in / 0.27:
            lines.append([])
        lines[-1].append(series)
    return lines


def _folded(title: str, width_in: float) -> str:
    """Break a panel title where its panel is too narrow for it."""
    room = max(8, int(width_in / 0.068))
    words, lines = re.split(r"(?<=[/ ])", title), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > room:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.strip() for line in lines)


def _stack(axes: Axes, bars: Sequence[Bar], top: float, *, first: bool, bar_in: float) -> None:
    narrow = bar_in < 0.25
    for place, bar in enumerate(bars):
        foot = 0.0
        for lap, look in LAPS.items():
            value = bar[lap]["mean_s"] * 1000
            if not value > 0:
                continue
            hidden = lap == "backward" and bar["sync"]["note"] == "inside backward" and bar["step"]["workers"] > 1
            axes.bar(
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
            if lap == "sync" and value > (0.14 if narrow else 0.07) * top:
                axes.text(
                    place,
                    foot + value / 2,
                    f"{bar[lap]['share'] * 100:.0f}%",
                    ha="center",
                    va="center",
                    size=6.5,
                    rotation=90 if narrow else 0,
                    color=look.ink,
                    zorder=3,
                )
            foot += value
        axes.text(place, foot + 0.015 * top, f"{bar['step']['mean_s'] * 1000:#.3g}", ha="center", va="bottom", size=7)
    nodes = [int(bar["step"]["nodes"]) for bar in bars]
    labels = [f"{int(bar['step']['workers'])}" for bar in bars]
    if len(set(nodes)) > 1:
        labels = [f"{label}\n({count})" for label, count in zip(labels, nodes, strict=True)]
    axes.set_xticks(range(len(bars)), labels)
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_ylim(0, top)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("Workers" if len(set(nodes)) == 1 else "Workers (nodes)")
    if first:
        axes.set_ylabel("Mean time per step / ms")
    else:
        axes.tick_params(axis="y", labelleft=False)


def _lap_handles(parts: pd.DataFrame) -> list[Any]:
    handles: list[Any] = [
        Patch(
            facecolor=look.color,
            edgecolor=QUIET if look.hatch else PAPER,
            hatch=look.hatch,
            linewidth=0.5,
            label=look.label,
        )
        for lap, look in LAPS.items()
    ]
    if (parts["note"] == "inside backward").any():
        color, edge = LAPS["backward"].color, LAPS["sync"].color
        handles.append(
            Patch(
                facecolor=color, edgecolor=edge, hatch="\\\\\\\\\\\\", linewidth=0.5, label="backward with hidden sync"
            )
        )
    return handles
