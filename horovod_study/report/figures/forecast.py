"""What is beyond the measured worker counts, for readers: a figure, a table with the errors of the method, sentences.

Forecasts look unlike measurements: dashed, with hollow marks, on grey, in a band.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator

from horovod_study.analysis.forecast.study_forecast import CURVE, FORECAST, MEASURED
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Figure as Drawing
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.interactive import mark, tips
from horovod_study.report.kit.style import EXTRAPOLATED_DASH, PAPER, QUIET, SeriesStyle, folded, series_styles, text_in

NAME = "forecast"


def forecast(analysis: Analysis) -> Drawing | None:
    """Return the figure of forecasts; None where no series could be forecast."""
    shown = analysis.forecast
    if shown.empty:
        return None
    styles = series_styles(analysis.points)
    settings = list(shown["setting"].drop_duplicates())[: kit.MAX_PANELS]
    partitions = analysis.points.drop_duplicates("series").set_index("series")["partition"]
    placed = shown.assign(partition=shown["series"].map(partitions))

    def draw(width_in: float) -> Figure:
        figure, panels, (wide_in, tall_in) = kit.by_setting(placed, settings, width_in, aspect=0.92, alone=0.6)
        for (axes,), own in panels:
            _panel(axes, own, styles, (wide_in, 0.75 * tall_in), analysis.rate_unit)
        kit.legend(figure, _handles(shown, styles), width_in)
        return figure

    return Drawing(
        name=NAME,
        title="Forecast",
        alt="Throughput against workers on logarithmic axes, measured and forecast; the values are in the table.",
        caption=(
            "Throughput of all workers against workers, both axes logarithmic. Filled marks: medians over repeats, "
            "bars: slowest to fastest repeat. On grey: forecast, with hollow marks at two, four and eight times "
            "the largest measured count and at full nodes, dashed lines between them; bands: 95 % interval of a "
            "single run there. Thin grey: ideal, the throughput of the baseline times N, or of the smallest "
            "measured count where there is no baseline. Forecasts are a weighted combination of laws; what the "
            "same method did with the largest measured counts hidden is in the table."
            + kit.boundary_words(placed)
            + kit.left_out(placed, settings)
        ),
        data=shown,
        paint=draw,
    )


def _panel(
    axes: Axes, rows: pd.DataFrame, styles: Mapping[str, SeriesStyle], size_in: tuple[float, float], unit: str
) -> None:
    wide_in, tall_in = size_in
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    first, last = float(rows["workers"].min()), float(rows["workers"].max())
    begin = float(rows.loc[rows["kind"] == MEASURED, "workers"].max())
    kit.beyond(axes, begin, last * 1.12, "forecast")
    for _, own in rows.drop_duplicates(["workers", "ideal_samples_per_s"]).groupby("series", sort=False):
        axes.plot(own["workers"], own["ideal_samples_per_s"] / 1000, color=QUIET, linewidth=0.7, zorder=1)
    for series, own in rows.groupby("series", sort=False):
        _series(axes, own, styles[str(series)], unit)
    told = rows.loc[rows["kind"].isin([MEASURED, FORECAST]), ["workers", "kind"]]
    kit.label_ticks(axes.xaxis, FixedLocator(_ticks(told, wide_in, first, last)), "{:.0f}".format)
    kit.label_ticks(axes.yaxis, LogLocator(base=10, subs=(1.0, 2.0, 5.0) if tall_in > 1.1 else (1.0,)))
    axes.set_xlim(first / 1.12, last * 1.12)
    kit.node_boundaries(axes, rows, wide_in, first=True)
    axes.set(xlabel="Workers", ylabel=folded(f"Throughput / 1000 {unit}", 0.8 * tall_in))


def _series(axes: Axes, own: pd.DataFrame, look: SeriesStyle, unit: str) -> None:
    measured, told = own[own["kind"] == MEASURED], own[own["kind"].isin([FORECAST, CURVE])].sort_values("workers")
    last = measured.sort_values("workers").iloc[-1:]
    # The band opens at the last measurement, whose own spread is drawn as a bar.
    start = last.assign(low=last["samples_per_s"], high=last["samples_per_s"])
    band = pd.concat([start, told])
    kit.band_of(axes, band["workers"], (band["low"] / 1000, band["high"] / 1000), look, alpha=0.13)
    ahead = {"linestyle": EXTRAPOLATED_DASH, "dash_capstyle": "butt", "zorder": 2.5}
    kit.line_of(axes, band["workers"], band["samples_per_s"] / 1000, look, **ahead)
    kit.line_of(axes, measured["workers"], measured["samples_per_s"] / 1000, look, zorder=2.5)
    values = [measured[f"samples_per_s{end}"] / 1000 for end in ("", "_min", "_max")]
    texts = tips(measured, "samples_per_s", unit=unit, note="measured")
    kit.point_bars(axes, measured["workers"], values, look, tips=texts)
    asked = told[told["kind"] == FORECAST]
    how = {**kit.marker(look), "markerfacecolor": PAPER, "markeredgecolor": look.color, "markeredgewidth": 1.1}
    hollow = axes.plot(asked["workers"], asked["samples_per_s"] / 1000, linestyle="none", **how, zorder=4)
    told_words = tips(asked, "samples_per_s", low="low", high="high", unit=unit, note="forecast")
    mark(hollow, series=look.label, tips=told_words)


def _ticks(told: pd.DataFrame, wide_in: float, first: float, last: float) -> list[float]:
    """Return the counts to label, as many as fit: the measured ends, then what is forecast, then the rest."""
    gap = (text_in(f"{last:.0f}") + 0.08) / (0.82 * wide_in) * math.log2(1.25 * last / first)
    measured = sorted({float(each) for each in told.loc[told["kind"] == MEASURED, "workers"]})
    asked = sorted({float(each) for each in told.loc[told["kind"] == FORECAST, "workers"]}, reverse=True)
    counts = [measured[-1], measured[0], *asked, *measured[::-1]]
    return kit.apart(counts, lambda count, other: abs(math.log2(count / other)) >= gap)


def _handles(shown: pd.DataFrame, styles: Mapping[str, SeriesStyle]) -> list[Any]:
    grey = SeriesStyle(label="forecast", color=QUIET, marker="o", filled=False, dash=EXTRAPOLATED_DASH)
    return [
        *kit.handles(styles, shown["series"].drop_duplicates()),
        kit.entry(grey, markeredgewidth=1.0),
        Patch(facecolor=QUIET, alpha=0.2, linewidth=0, label="95 % interval"),
        Line2D([], [], color=QUIET, linewidth=0.7, label="ideal"),
    ]
