"""Where the time of a step goes: stacked bars of its parts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from horovod_study.analysis.steps.breakdown import HOLDS_SYNC, hiding, shown
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Figure as Drawing
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.interactive import mark
from horovod_study.report.kit.style import LAPS, LapStyle, folded, series_styles, small, text_in
from horovod_study.text.numbers import THIN, milliseconds, percent
from horovod_study.text.words import plural

Bar: TypeAlias = dict[str, Any]  # the rows of one cell of the breakdown, by lap
_HIDDEN_HATCH = "\\\\\\\\\\\\"
MAX_LINES = 5
"""Of panels with bars: below each other on a page."""


def breakdown(analysis: Analysis) -> Drawing | None:
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
        ][:MAX_LINES]
        line_in = min(2.3 if len(lines) == 1 else 1.95, kit.MAX_HEIGHT_IN / len(lines))
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
        looks = [*(LAPS[lap] for lap in shown(parts, tuple(LAPS))), *map(_hidden, hiding(parts))]
        kit.legend(figure, [kit.swatch(look) for look in looks], width_in)
        return figure

    sync = parts[(parts["lap"] == "sync") & (parts["workers"] > 1)]
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
    if len(order) > MAX_LINES:
        caption += " Where a page has no room for all of them, the last series are in the data only."
    for lap in hiding(parts):
        those = sync.loc[sync["note"].map(HOLDS_SYNC) == lap, "series"].drop_duplicates()
        names = ", ".join(styles[series].label for series in those)
        place = "the backward pass" if lap == "backward" else "the graph"
        caption += f" {names}: communication runs inside {place} and cannot be separated (hatched)."
    return Drawing(
        name="breakdown",
        title="Where the time of a step goes",
        alt="Stacked bars of the mean time per step by part and number of workers; the values are in the table below.",
        caption=caption,
        data=parts[["series", "workers", "nodes", "repeats", "lap", "mean_s", "share", "note"]],
        paint=draw,
    )


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
        values = {lap: bar[lap]["mean_s"] * 1000 for lap in LAPS if lap in bar and bar[lap]["mean_s"] > 0}
        hides = HOLDS_SYNC.get(bar["sync"]["note"]) if bar["step"]["workers"] > 1 else None  # it is hatched
        looks = [_hidden(lap) if lap == hides else LAPS[lap] for lap in values]
        for lap, part in zip(
            values, kit.stacked(axes, place, zip(looks, values.values(), strict=True), 0.7), strict=True
        ):
            value, look, row = values[lap], LAPS[lap], bar[lap]
            time = f"{milliseconds(row['mean_s'])}{THIN}ms, {percent(row['share'])} of the step"
            where = f"{title}, {plural(row['workers'], 'worker')}"
            mark(part, series=look.label, tips=[f"{where}: {time}, {plural(row['repeats'], 'repeat')}"])
            if lap == "sync" and value / top * tall_in > (text_in("88%") if narrow else small() / 72):
                how: dict[str, Any] = {"ha": "center", "va": "center", "size": small(), "color": look.ink}
                text, middle = f"{bar[lap]['share'] * 100:.0f}%", part[0].get_y() + value / 2
                axes.text(place, middle, text, rotation=90 if narrow else 0, zorder=3, **how)
        how = {"ha": "center", "va": "bottom", "size": small()}
        axes.text(place, sum(values.values()) + 0.015 * top, _height(bar), rotation=90 if upright else 0, **how)
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


def _hidden(lap: str) -> LapStyle:
    loud = LAPS["sync"].color
    return replace(LAPS[lap], label=f"{lap} with hidden sync", hatch=_HIDDEN_HATCH, ink=loud, edge=loud)
