"""What synchronisation costs, for readers: against workers; in sentences between transports, and Horovod's cycle.

The colour of a series is that of every other figure;
lines over NCCL are solid and over MPI dashed here, because the transport is what these figures are about.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.laws import law_label
from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.transports import NOT_RESOLVED, RESOLVED
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.drawing import Drawing
from horovod_study.text.numbers import THIN, milliseconds, percent, rounded, with_interval, with_unit
from horovod_study.text.words import listed, plural

NAME = "synchronisation"

MAX_LINES = 3
"""Sentences of each kind; the tables have all of it."""
MAX_PANELS = 4
"""Settings in one figure, each with two panels."""


def synchronisation(analysis: Analysis) -> Drawing | None:
    """Return the figure of the series that know their synchronisation at several counts of several workers."""
    cells = analysis.synchronisation
    cells = cells[cells["workers"] > 1]
    known = cells[cells["sync_s_median"].notna()]
    known = known[known.groupby("series")["workers"].transform("nunique") > 1]
    settings = list(known["setting"].drop_duplicates())[:MAX_PANELS]
    if not settings:
        return None
    shown = known[known["setting"].isin(settings)]
    styles = style.series_styles(analysis.points)
    lines = analysis.sync_curves[analysis.sync_curves["series"].isin(shown["series"])]
    epochs = bool(shown["sync_per_epoch_s_median"].notna().any())

    def draw(width_in: float) -> Figure:
        how: dict[str, Any] = {"each": 2 if epochs else 1, "aspect": 0.84, "alone": 0.52}
        figure, panels, (wide_in, _) = kit.by_setting(shown, settings, width_in, **how)
        for axes, own in panels:
            curves = lines[lines["series"].isin(own["series"])]
            _panel(axes[0], own, curves, styles, ("sync_s", "ms", 1000.0), wide_in)
            axes[0].set_ylabel("Waiting / ms per step")
            if epochs:
                _panel(axes[1], own, curves, styles, ("sync_per_epoch_s", "s", 1.0), wide_in)
                axes[1].set_ylabel("Waiting / s per epoch")
                _batches(axes[1], own, extrapolated=bool(curves["extrapolated"].any()))
        looks = {styles[str(series)].label: styles[str(series)] for series in shown["series"].drop_duplicates()}
        handles: list[Any] = [kit.entry(look) for look in looks.values()]
        if epochs:
            handles.append(Patch(facecolor=style.GRID, linewidth=0, label="batches per epoch"))
        kit.legend(figure, handles, width_in)
        return figure

    fitted = lines.drop_duplicates("series")
    laws = [f"{styles[row['series']].label}: {law_label(row['law'])}" for row in fitted.to_dict("records")]
    caption = (
        "Waiting for gradients against workers: per step (left) and, times the batches of an epoch (bars, right "
        "scale), per epoch. "
        if epochs
        else "Waiting for gradients per step against workers. "
    ) + "Points: medians over repeats of the mean over steps; bars: 95 % intervals, where there are three repeats."
    if laws:
        caption += (
            f" Lines: the law selected by AICc ({'; '.join(dict.fromkeys(laws))}) with its 95 % band; on grey: "
            "extrapolated."
        )
    if len(laws) < shown["series"].nunique():
        caption += " Where no law is drawn, lines join the points on equal nodes."
    caption += f" Solid: NCCL, dashed: MPI, dash-dotted: Gloo.{kit.boundary_words(shown)}"
    caption += kit.left_out(known, settings)
    names = cells.loc[cells["sync_s_median"].isna(), "series"].drop_duplicates()
    if len(names):
        hidden = [style.series_labels(analysis.synchronisation)[series] for series in names]
        caption += f" Not drawn, because synchronisation is hidden inside their backward pass: {listed(hidden)}."
    return Drawing(
        name=NAME,
        title="Synchronisation against workers",
        alt="Waiting for gradients per step and per epoch against workers; the values are in the table.",
        caption=caption,
        data=pd.concat([shown.assign(kind="point"), lines.assign(kind="line")], ignore_index=True),
        draw=draw,
    )


def _panel(
    axes: Axes,
    cells: pd.DataFrame,
    curves: pd.DataFrame,
    styles: Mapping[str, style.SeriesStyle],
    what: tuple[str, str, float],
    wide_in: float,
) -> None:
    column, unit, scale = what
    measured = float(cells["workers"].max())
    last = max(measured, float(curves["workers"].max()) if len(curves) else measured)
    low, high = (f"{column.removesuffix('_s')}_{end}_s" for end in ("low", "high"))
    for series, curve in curves.groupby("series", sort=False):
        kit.law_line(axes, curve, (column, low, high), styles[str(series)], scale=scale, width=1.2)
    for series, own in cells.groupby("series", sort=False):
        look = styles[str(series)]
        own = own.sort_values("workers", kind="stable")
        if str(series) not in set(curves["series"]):
            for _, part in own.groupby("nodes", sort=True, dropna=False):
                kit.line_of(axes, part["workers"], part[f"{column}_median"] * scale, look)
        names = (f"{column}_median", f"{column}_low", f"{column}_high")
        kit.spread(axes, own, names, look, scale=scale, line=False, unit=unit, low=names[1], high=names[2])
    kit.worker_axis(axes, cells["workers"], last, wide_in)
    highest = cells[[f"{column}_median", f"{column}_high"]].max().max()
    # A wide band must not press the points to the floor.
    beyond = [curves[column].max(), min(float(curves[high].max()), 1.5 * highest)]
    top = np.nanmax([highest, *(beyond if len(curves) else [])]) * scale * 1.1
    axes.set_ylim(0, top if top > 0 else 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    if last > measured and column == "sync_s":
        axes.axvspan(measured, last + 1, color=style.SHADE, linewidth=0, zorder=0)
    kit.node_boundaries(axes, cells, wide_in)


def _batches(axes: Axes, cells: pd.DataFrame, *, extrapolated: bool) -> None:
    """Draw the batches per epoch as pale bars on a second scale, and the extrapolated part's grey below them."""
    own = cells.drop_duplicates("workers").sort_values("workers", kind="stable")
    twin = axes.twinx()
    width = 0.3 * float(own["workers"].diff().min()) if len(own) > 1 else 0.6
    first, last = axes.get_xlim()
    measured = float(own["workers"].max())
    if extrapolated:
        twin.axvspan(measured, last, color=style.SHADE, linewidth=0, zorder=0)
        axes.set_xlim(first, last)
    twin.bar(own["workers"], own["batches_per_epoch"], width=width, color=style.GRID, linewidth=0, zorder=1)
    twin.set_ylim(0, own["batches_per_epoch"].max() * 1.1)
    twin.set_ylabel("Batches per epoch", color=style.QUIET)
    twin.tick_params(axis="y", labelcolor=style.QUIET)
    twin.grid(False)
    twin.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    axes.set_zorder(twin.get_zorder() + 1)
    axes.patch.set_visible(False)
    twin.spines["right"].set_visible(True)


def sentences(analysis: Analysis) -> list[str]:
    return [
        *_sync_sentences(analysis),
        *_transport_sentences(analysis),
        *_knee_sentences(analysis),
        *_cycle_sentences(analysis),
    ]


_ENDS = ("median", "low", "high")


def _sync_sentences(analysis: Analysis) -> list[str]:
    """Return one sentence for the largest worker count of each series, the largest share of the step first."""
    cells = analysis.synchronisation
    known = cells[cells["sync_s_median"].notna() & (cells["workers"] > 1)]
    labels, several = style.series_labels(analysis.synchronisation), bool(cells["setting"].nunique() > 1)
    largest = known.sort_values("workers", kind="stable").drop_duplicates("series", keep="last").sort_index()
    found = []
    for row in largest.sort_values("share_median", ascending=False, kind="stable").to_dict("records"):
        name = labels[row["series"]] + (f" ({row['setting']})" if several else "")
        text = (
            f"{name}, {plural(row['workers'], 'worker')}: in the median repeat waiting for gradients takes "
            f"{with_unit(*(1000 * row[f'sync_s_{end}'] for end in _ENDS), unit='ms')} of a step, "
            f"{percent(row['share_median'])}"
        )
        if math.isfinite(row["sync_per_epoch_s_median"]):
            epoch = with_unit(*(row[f"sync_per_epoch_s_{end}"] for end in _ENDS), unit="s")
            batches = f"{row['batches_per_epoch']:.0f} batch{'' if row['batches_per_epoch'] == 1 else 'es'}"
            text += f", and {epoch} of an epoch of {batches}"
        found.append(f"{text}.")
    return found[:MAX_LINES]


def _transport_sentences(analysis: Analysis) -> list[str]:
    """Return one sentence for each two runtimes: where they differ in throughput, and where not."""
    table = analysis.transports
    table = table[(table["quantity"] == "samples_per_s") & (table["workers"] > 1)]
    labels, several = style.series_labels(analysis.synchronisation), bool(table["setting"].nunique() > 1)
    found = []
    for (a, b), own in table.groupby(["a", "b"], sort=False):
        told = own[own["verdict"] == RESOLVED].to_dict("records")
        words = [f"{_change(row)} with {plural(row['workers'], 'worker')}" for row in told]
        open_ = own[own["verdict"] == NOT_RESOLVED]
        if len(open_):
            counts = listed([f"{each:.0f}" for each in sorted(set(open_["workers"]))])
            words.append(f"not resolved with {counts} worker{'' if counts == '1' else 's'}")
        if words:
            setting = f" ({own['setting'].iloc[0]})" if several else ""
            found.append(f"{labels[str(b)]} against {labels[str(a)]}{setting}: {'; '.join(words)}.")
    return found[:MAX_LINES]


def _change(row: Mapping[Any, Any]) -> str:
    """Return `3.0 % more samples/s [2.6, 3.4]`."""
    sign = 1 if row["ratio"] >= 1 else -1
    value, *ends = (100.0 * sign * (float(row[name]) - 1) for name in ("ratio", "ratio_low", "ratio_high"))
    text, _, interval = with_interval(value, min(ends), max(ends)).partition(" ")
    return f"{text}{THIN}% {'more' if sign > 0 else 'fewer'} samples/s {interval}"


def _knee_sentences(analysis: Analysis) -> list[str]:
    table = analysis.knees
    several = bool(table["setting"].nunique() > 1)
    labels = style.series_labels(table)
    found = []
    for row in table[table["identified"].astype(bool)].to_dict("records"):
        name = labels[row["series"]] + (f" ({row['setting']})" if several else "")
        most = with_interval(row["most_samples_per_s"] / 1e3, row["most_low"] / 1e3, row["most_high"] / 1e3)
        found.append(
            f"{name}, {plural(row['workers'], 'worker')}: the knee is at a batch of "
            f"{with_interval(row['knee'], row['knee_low'], row['knee_high'])} per worker; 90{THIN}% of the most that "
            f"ever larger batches give ({most} thousand {analysis.rate_unit}) need "
            f"{rounded(row['batch_for_90_percent'], 3)}."
        )
    return found[:MAX_LINES]


def _cycle_sentences(analysis: Analysis) -> list[str]:
    labels = style.series_labels(analysis.cycle)
    found = []
    for row in analysis.cycle.to_dict("records"):
        text = (
            f"{labels[row['series']]}, {plural(row['workers'], 'worker')}, cycles from "
            f"{milliseconds(row['shortest_cycle_s'])} to {milliseconds(row['longest_cycle_s'])}{THIN}ms: each ms of "
            f"Horovod's cycle adds {with_interval(row['slope'], row['slope_low'], row['slope_high'])}{THIN}ms of "
            f"waiting ({_CYCLE_WORDS[row['verdict']]})"
        )
        if math.isfinite(row["share_at_default"]):
            share = with_interval(*(100 * row[name] for name in ("share_at_default", "share_low", "share_high")))
            text += f"; at Horovod's default of {milliseconds(row['default_cycle_s'])}{THIN}ms that is {share}{THIN}%"
        found.append(f"{text}.")
    return found[:MAX_LINES]


_CYCLE_WORDS = {
    "as the cycle explains": "as polling explains",
    "no effect": "no effect",
    "otherwise": "not what polling would give",
    "not resolved": "not resolved",
}
