"""The straight line through the speedups of each partition, and the Karp-Flatt fraction, for readers."""

import math
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.study import Analysis
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import mark
from horovod_study.report.kit.style import EXTRAPOLATED_DASH, QUIET, series_styles
from horovod_study.text.numbers import with_interval

NAMES = ("regression", "karp_flatt")

LAW = "linear"


def regression(analysis: Analysis) -> Drawing | None:
    kind = analysis.provenance["baseline"]
    lines = analysis.curves[(analysis.curves["law"] == LAW) & ~analysis.curves["extrapolated"].astype(bool)]
    points = analysis.points[analysis.points["series"].isin(lines["series"])]
    points = points[points[f"speedup_{kind}"].notna()]
    counts = points.groupby("series")["workers"].nunique()
    points = points[points["series"].isin(counts.index[counts > 2])]  # a line through two points is not a finding
    if points.empty:
        return None
    settings = kit.settings_of(points)
    shown = points[points["setting"].isin(settings)]
    styles = series_styles(analysis.points)
    columns = (f"speedup_{kind}", f"speedup_{kind}_min", f"speedup_{kind}_max")
    slopes = {}
    for series in shown["series"].drop_duplicates():
        law = analysis.fits["series"][series]["laws"][LAW]
        slopes[str(series)] = with_interval(law["params"]["slope"], *law["ci95"]["slope"])
    of = shown.drop_duplicates("series").set_index("series")["setting"]
    several = {series: f", {of[series]}" if len(settings) > 1 else "" for series in slopes}
    looks = {
        each: replace(styles[each], label=f"{styles[each].label}{several[each]}: {slope} per worker")
        for each, slope in slopes.items()
    }

    def draw(width_in: float) -> Figure:
        figure, panels, (panel_in, _) = kit.by_setting(shown, settings, width_in, aspect=0.75)
        for (axes,), own in panels:
            last = float(own["workers"].max())
            mark(axes.plot([0, 2 * last], [0, 2 * last], color=QUIET, linewidth=0.7, zorder=1), series="ideal")
            top = 1.0
            for series in own["series"].unique():
                line = lines[lines["series"] == series]
                kit.band_of(axes, line["workers"], (line["low"], line["high"]), looks[series], alpha=0.14)
                kit.line_of(axes, line["workers"], line["speedup"], looks[series], linewidth=1.4)
                top = max(top, float(line["speedup"].max()))
            ends: dict[str, Any] = {"low": f"speedup_{kind}_low", "high": f"speedup_{kind}_high"}
            top = max(top, kit.against_workers(axes, own, columns, looks, panel_in, line=False, unit="\u00d7", **ends))
            axes.set_ylim(0, 1.12 * top)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
            axes.set_ylabel("Speedup")
        entries = [kit.entry(look, linewidth=1.4) for look in looks.values()]
        kit.legend(figure, [*entries, Line2D([], [], color=QUIET, linewidth=0.7, label="ideal")], width_in)
        return figure

    caption = (
        "Regression lines of the speedup, S(N) = slope N + intercept, fitted by least squares to the runs of each "
        "series; in the legend the slope with its 95 % interval, the speedup that a further worker brings; bands: 95 % "
        f"of the line, the baseline taken as exact. Baseline ({kind}): S(N) = X(N) / X(base), X = {analysis.rate_unit} "
        "of all workers. Points: medians over repeats; bars: slowest to fastest repeat. Thin grey: ideal, slope 1. A "
        "straight line describes the measured counts; whether another law describes them better is said with the "
        "speedups. "
        f"{kit.repeats_words(shown)}{kit.left_out(points, settings)}"
    )
    return Drawing(
        name=NAMES[0],
        title="Regression lines of the speedup",
        alt="Speedup against workers with a straight line per series; slopes and intervals are in the legend.",
        caption=caption,
        data=pd.concat(
            [
                points[["series", "setting", "partition", "workers", "nodes", "repeats", *columns]].assign(
                    kind="point"
                ),
                lines[["series", "law", "workers", "speedup", "low", "high"]].assign(kind="line"),
            ],
            ignore_index=True,
        ),
        draw=draw,
    )


def karp_flatt(analysis: Analysis) -> Drawing | None:
    points = analysis.points[analysis.points["karp_flatt"].notna() & (analysis.points["workers"] > 1)]
    if points.empty or points.groupby("series")["workers"].nunique().max() < 2:
        return None
    settings = kit.settings_of(points)
    shown = points[points["setting"].isin(settings)]
    styles = series_styles(analysis.points)
    columns = ("karp_flatt", "karp_flatt_low", "karp_flatt_high")
    serial = {str(series): _serial(analysis, str(series)) for series in shown["series"].drop_duplicates()}

    def draw(width_in: float) -> Figure:
        figure, panels, (panel_in, _) = kit.by_setting(shown, settings, width_in)
        for (axes,), own in panels:
            for series, each in own.groupby("series", sort=False):
                if (found := serial[str(series)]) is not None:
                    ends = [float(each["workers"].min()), float(each["workers"].max())]
                    dashed = {"linewidth": 1.0, "linestyle": EXTRAPOLATED_DASH, "alpha": 0.8, "zorder": 1.8}
                    kit.line_of(axes, ends, [100 * found[0]] * 2, styles[str(series)], **dashed)
            low = min(0.0, 100 * float(own[list(columns)].min().min()))
            how: dict[str, Any] = {"scale": 100, "unit": "%", "low": columns[1], "high": columns[2]}
            top = kit.against_workers(axes, own, columns, styles, panel_in, **how)
            axes.axhline(0, color=QUIET, linewidth=0.7, zorder=1)
            axes.set_ylim(1.08 * low, 1.12 * top if top > 0 else 1)
            kit.round_values(axes)
            axes.set_ylabel("Karp-Flatt fraction / %")
        looks = {styles[series].label: styles[series] for series in serial}
        entries = [kit.entry(look, label) for label, look in looks.items()]
        if any(value is not None for value in serial.values()):
            entries.append(
                Line2D([], [], color=QUIET, linewidth=1.0, linestyle=EXTRAPOLATED_DASH, label="Amdahl's s, fitted")
            )
        kit.legend(figure, entries, width_in)
        return figure

    known = {series: with_interval(*each) for series, each in serial.items() if each is not None}
    fitted = [f"{styles[series].label}: s = {text}" for series, text in known.items()]
    caption = (
        "Karp-Flatt fraction e = (1/S - 1/N) / (1 - 1/N) against the number of workers, over the plain baseline: the "
        "serial fraction that Amdahl's law would need for the speedup measured at N (Karp and Flatt 1990). Level: "
        "serial work; rising with N: overhead that grows with N; below zero: superlinear. Points: from medians over "
        "repeats; bars: 95 % intervals, where there are three repeats; lines only guide the eye."
        + (f" Dashed horizontal lines: Amdahl's s of the fit to all counts ({'; '.join(fitted)})." if fitted else "")
        + f" {kit.repeats_words(shown)}{kit.left_out(points, settings)}"
    )
    return Drawing(
        name=NAMES[1],
        title="Karp-Flatt fraction",
        alt="Karp-Flatt fraction against workers; the values are in the table of points.",
        caption=caption,
        data=points[["series", "setting", "partition", "workers", "nodes", "repeats", *columns]],
        draw=draw,
    )


def _serial(analysis: Analysis, series: str) -> tuple[float, float, float] | None:
    """Return Amdahl's s of the fit of a series with its interval, or None where it has no such fit that applies."""
    fit = analysis.fits["series"].get(series)
    law = None if fit is None else fit["laws"].get("amdahl")
    if law is None or analysis.fits["baseline"] != "plain" or law.get("applies") is False:
        return None
    low, high = law["ci95"]["s"]
    return law["params"]["s"], math.nan if low is None else low, math.nan if high is None else high
