"""Speedup, efficiency and throughput against workers, with the fitted laws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.laws import law_label
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.series.turns import alternated, ratios_are
from horovod_study.analysis.study import Analysis
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import mark, tips
from horovod_study.report.kit.style import QUIET, THIN_LAWS, SeriesStyle, folded, series_styles
from horovod_study.text.words import plural


def _drawn(analysis: Analysis) -> pd.DataFrame:
    """Return the points that a speedup can be drawn of, and the cells without a result beside them."""
    points = analysis.points
    shown = points[points["mode"] != "mixed"]
    known = shown[f"speedup_{analysis.provenance['baseline']}"].notna()
    series = shown.loc[known, "series"].unique()
    return shown[known | (shown["missing"] & shown["series"].isin(series))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ratio:
    """A ratio to the baseline, as it is drawn against workers."""

    title: str
    curves: tuple[str, str, str]  # columns of the fitted curves: middle, low and high
    scale: float
    unit: str
    label: str
    formula: str

    def columns(self, baseline: str, alternated: bool) -> tuple[str, str, str]:
        """Return the columns of the points: median, slowest and fastest repeat; from turns the ends of the interval."""
        column, ends = f"{self.title.lower()}_{baseline}", ("low", "high") if alternated else ("min", "max")
        return column, f"{column}_{ends[0]}", f"{column}_{ends[1]}"


_SPEEDUP = _Ratio(
    title="Speedup",
    curves=("speedup", "low", "high"),
    scale=1.0,
    unit="\u00d7",
    label="Speedup",
    formula="S(N) = X(N) / X(base), X = {unit} of all workers",
)
_EFFICIENCY = _Ratio(
    title="Efficiency",
    curves=("efficiency", "efficiency_low", "efficiency_high"),
    scale=100.0,
    unit="%",
    label="Efficiency / %",
    formula="E(N) = S(N) / N = X(N) / (N X(base)), X = {unit} of all workers",
)


def speedup(analysis: Analysis) -> Drawing | None:
    """Return the speedup against workers with its fitted laws; None without a point of several workers."""
    return _against_workers(analysis, _SPEEDUP)


def efficiency(analysis: Analysis) -> Drawing | None:
    """Return the efficiency against workers with its fitted laws; None without a point of several workers."""
    return _against_workers(analysis, _EFFICIENCY)


def throughput(analysis: Analysis) -> Drawing | None:
    points = analysis.points
    shown = points[points["mode"] != "mixed"]
    if shown[~shown["missing"]].empty:
        return None
    if (shown["mode"] == "single").all() and shown["setting"].nunique() > 2:
        return None  # a panel for every dot: the table says it better
    styles, settings = series_styles(points), _settings(shown)
    data = shown[
        [
            *("series", "setting", "partition", "workers", "nodes", "repeats", "missing"),
            *(f"samples_per_s_{name}" for name in ("median", "min", "max")),
            "base_plain_samples_per_s",
        ]
    ]

    def draw(width_in: float) -> Figure:
        figure, panels, (wide_in, _) = kit.by_setting(shown, settings, width_in, aspect=0.84, alone=0.52)
        for (axes,), rows in panels:
            rows = rows.assign(at=kit.side_by_side(rows, "samples_per_s_median", rows["workers"].max(), wide_in))
            for series, own in rows.groupby("series", sort=False):
                look = styles[str(series)]
                # A cell without a result is NaN and breaks the line.
                kit.line_of(axes, own["workers"], own["samples_per_s_median"] / 1000, look)
                ends: dict[str, Any] = {"low": "samples_per_s_ci95_low", "high": "samples_per_s_ci95_high"}
                texts = tips(own, "samples_per_s_median", unit=analysis.rate_unit, **ends)
                _dots(axes, own, [f"samples_per_s_{n}" for n in ("median", "min", "max")], look, 1 / 1000, texts)
            for base in rows["base_plain_samples_per_s"].dropna().unique():
                axes.axline((0, 0), slope=base / 1000, color=QUIET, linewidth=0.7, zorder=1)
            kit.worker_axis(axes, rows["workers"], rows["workers"].max(), wide_in)
            axes.set_ylim(0, rows["samples_per_s_max"].max() / 1000 * 1.12)
            kit.node_boundaries(axes, rows, wide_in)
            label = f"Throughput / 1000 {analysis.rate_unit}"
            axes.set_ylabel(folded(label, 0.5 * figure.get_figheight() / len(panels)))
        entries = kit.handles(styles, shown["series"].unique(), linewidth=1.5)
        if shown["base_plain_samples_per_s"].notna().any():
            entries.append(Line2D([], [], color=QUIET, linewidth=0.7, label="N times the plain worker"))
        kit.legend(figure, [*entries, *_missing_handle(shown)], width_in)
        return figure

    caption = (
        "Throughput of all workers together against the number of workers. Points: medians over repeats; bars: slowest "
        "to fastest repeat; lines only guide the eye. Thin grey: the throughput of one plain worker times N. "
        f"{kit.work_words(shown)}{kit.boundary_words(shown)}{kit.left_out(shown, settings)}"
    )
    return Drawing(
        name="throughput",
        title="Throughput",
        alt=f"Throughput against workers for {_names(shown, styles)}.",
        caption=caption,
        data=data,
        draw=draw,
    )


def _against_workers(analysis: Analysis, ratio: _Ratio) -> Drawing | None:
    shown = _drawn(analysis)
    if shown[~shown["missing"] & (shown["backend"] != "serial")].empty:
        return None
    columns = ratio.columns(analysis.provenance["baseline"], alternated(analysis.points))
    styles, settings = series_styles(analysis.points), _settings(shown)
    lines = analysis.curves[analysis.curves["series"].isin(shown["series"])]
    lines = lines[lines["selected"].astype(bool) | lines["law"].isin(list(THIN_LAWS))]
    laws = {str(row["series"]): str(row["law"]) for row in lines[lines["selected"].astype(bool)].to_dict("records")}

    def draw(width_in: float) -> Figure:
        figure, panels, (wide_in, _) = kit.by_setting(shown, settings, width_in, aspect=0.84, alone=0.52)
        last = max(lines["workers"].max() if len(lines) else 1, shown["workers"].max())
        inside = lines.loc[~lines["extrapolated"].astype(bool), ratio.curves[0]].max()
        top = np.nanmax([shown[columns[2]].max(), inside, 1.0])
        for (axes,), rows in panels:
            measured = rows.loc[~rows["missing"], "workers"].max()
            rows = rows.assign(at=kit.side_by_side(rows, columns[0], last, wide_in))
            ideal = [0, 2 * last] if ratio is _SPEEDUP else [ratio.scale] * 2
            axes.plot([0, 2 * last], ideal, color=QUIET, linewidth=0.7, zorder=1)
            _curves(axes, rows, lines[lines["series"].isin(rows["series"])], laws, styles, ratio)
            for series, points in rows.groupby("series", sort=False):
                ends = {end: f"{columns[0]}_{end}" for end in ("low", "high")}
                texts = tips(points, columns[0], **ends, unit=ratio.unit, scale=ratio.scale)
                _dots(axes, points, columns, styles[str(series)], ratio.scale, texts)
            if last > measured:
                kit.beyond(axes, measured, last + 1, "extrapolated")
            kit.worker_axis(axes, rows["workers"], last, wide_in)
            if ratio is _SPEEDUP:
                most = np.nanmax([1.25 * top, lines[ratio.curves[0]].max() * 1.12])
                axes.set_ylim(0, 1.05 * last if last < 2 * top else np.nanmin([1.05 * last, most]))
                axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
            else:
                axes.set_ylim(0, ratio.scale * max(1.12, 1.05 * top))
            kit.node_boundaries(axes, rows, wide_in)
            axes.set_ylabel(ratio.label)
        kit.legend(figure, _handles(shown, styles, lines, laws), width_in)
        return figure

    kept = ["series", "setting", "partition", "workers", "nodes", "repeats", "missing", *columns]
    curves = lines[["series", "law", "workers", *ratio.curves, "extrapolated"]]
    fitted = "; ".join(f"{styles[series].label}: {law_label(law)}" for series, law in laws.items())
    return Drawing(
        name=ratio.title.lower(),
        title=ratio.title,
        alt=f"{ratio.title} against workers for {_names(shown, styles)}; the values are in the table of points.",
        caption=_caption(analysis, ratio, shown, fitted),
        data=pd.concat([shown[kept].assign(kind="point"), curves.assign(kind="line")], ignore_index=True),
        draw=draw,
    )


def _curves(
    axes: Axes,
    rows: pd.DataFrame,
    lines: pd.DataFrame,
    laws: Mapping[str, str],
    styles: Mapping[str, SeriesStyle],
    ratio: _Ratio,
) -> None:
    """Draw the selected law of each series, and thin ones beside it where there are few series."""
    # only so many have these lines beside their own
    oversubscribed = rows.loc[rows["backend"] != "serial", "series"].nunique() > 4
    for (series, law), curve in lines.groupby(["series", "law"], sort=False):
        look = styles[str(series)]
        if law == laws.get(str(series)):
            kit.law_line(axes, curve, ratio.curves, look, scale=ratio.scale, width=1.7)
        elif law in THIN_LAWS and not oversubscribed:
            for extrapolated, piece in kit.law_pieces(curve):
                how = {"linewidth": 0.8, "alpha": 0.5 if extrapolated else 0.9, "linestyle": THIN_LAWS[str(law)]}
                values = piece[ratio.curves[0]] * ratio.scale
                kit.line_of(axes, piece["workers"], values, look, dash_capstyle="butt", **how)


def _caption(analysis: Analysis, ratio: _Ratio, shown: pd.DataFrame, fitted: str) -> str:
    """Return what a reader must know; `fitted` names the selected law of each series."""
    absent = sorted(set(analysis.points.loc[analysis.points["backend"] != "serial", "series"]) - set(shown["series"]))
    turned, kind = alternated(analysis.points), analysis.provenance["baseline"]
    base = baseline_words(analysis.points, kind, plain="one plain PyTorch worker without a communication library")
    texts = [
        f"{ratio.title} against the number of workers. Baseline ({kind}): {base}.",
        f"{ratio.formula.format(unit=analysis.rate_unit)}.",
        f"Points: {ratios_are(analysis.points)}; bars: "
        + ("95 % intervals." if turned else "slowest to fastest repeat over the median baseline."),
    ]
    if fitted:
        texts.append(
            f"Thick lines: the law selected by AICc ({fitted}) with its 95 % band (the baseline taken as exact); thin "
            "lines: Amdahl and Gustafson, in panels with few series; lighter and dashed on grey: extrapolated beyond "
            "the measured worker counts."
        )
    texts.append("Thin grey: ideal.")
    texts.append(f"{kit.work_words(shown)}{kit.boundary_words(shown)}{kit.left_out(shown, _settings(shown))}".strip())
    if absent:
        texts.append(f"Not drawn for lack of this baseline or of a fixed batch: {', '.join(absent)}.")
    return " ".join(texts)


def _names(points: pd.DataFrame, styles: dict[str, SeriesStyle]) -> str:
    return ", ".join(styles[series].label for series in points["series"].unique())


def _settings(points: pd.DataFrame) -> list[str]:
    """Return the settings that have panels, not too many: with several workers if there are any such."""
    parallel = points.loc[(points["mode"] != "single") | (points["workers"] > 1), "setting"].drop_duplicates()
    return list(parallel if len(parallel) else points["setting"].drop_duplicates())[: kit.MAX_PANELS]


def _dots(
    axes: Axes, points: pd.DataFrame, columns: Sequence[str], look: SeriesStyle, scale: float, texts: Sequence[str]
) -> None:
    """Draw points at their column `at` of the axis of workers, and crosses for cells without a result."""
    there = ~points["missing"] & points[columns[0]].notna()
    known = points[there]
    texts = [text for text, here in zip(texts, there, strict=True) if here]
    kit.point_bars(axes, known["at"], [known[column] * scale for column in columns], look, tips=texts)
    lost = points[points["missing"]]
    if lost.empty:
        return
    # A cell without a result leaves a mark at the foot of the plot instead of a gap that nobody notices.
    how: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 5, "markeredgewidth": 1.2, "zorder": 4}
    foot: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    crosses = axes.plot(lost["workers"], [0.03] * len(lost), color=look.color, **how, **foot)
    mark(crosses, series=look.label, tips=[f"{plural(count, 'worker')}: no result" for count in lost["workers"]])


def _missing_handle(points: pd.DataFrame) -> list[Any]:
    if not points["missing"].any():
        return []
    return [Line2D([], [], color=QUIET, linestyle="none", marker="x", markersize=5, label="no result")]


def _handles(
    points: pd.DataFrame, styles: dict[str, SeriesStyle], lines: pd.DataFrame, laws: dict[str, str]
) -> list[Any]:
    entries = kit.handles(styles, points["series"].unique(), linewidth=1.5)
    chosen = dict.fromkeys(laws.values())
    for law in chosen:
        own = dict.fromkeys(styles[series].label for series, name in laws.items() if name == law)
        of = f" ({', '.join(own)})" if len(chosen) > 1 else ""
        entries.append(Line2D([], [], color=QUIET, linewidth=1.7, label=f"selected law: {law_label(law)}{of}"))
    for law, dash in THIN_LAWS.items():
        thin = [series for series in lines.loc[lines["law"] == law, "series"].unique() if laws.get(series) != law]
        if thin:
            entries.append(Line2D([], [], color=QUIET, linewidth=0.9, linestyle=dash, label=law_label(law)))
    entries.append(Line2D([], [], color=QUIET, linewidth=0.7, label="ideal"))
    return [*entries, *_missing_handle(points)]
