"""Time per epoch and per step, for readers: epoch time against workers, weak scaling with its ideal line."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.steps.losses import IDEAL
from horovod_study.analysis.study import Analysis
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import mark
from horovod_study.report.kit.style import QUIET, series_styles

NAMES = ("epoch_time", "weak_scaling")

_IDEAL = "ideal: base / N"
_PLAIN = "one plain PyTorch worker without a communication library"


def epoch_time(analysis: Analysis) -> Drawing | None:
    kind = analysis.provenance["baseline"]
    base_words = baseline_words(analysis.points, kind, plain=_PLAIN)
    points = analysis.points
    # A data set of another size at each worker count has another epoch there.
    rows = points[
        points["mode"].isin(["weak", "strong", "single"]) & ~points["work"].str.contains("growing|different sizes")
    ]
    parallel = rows[(rows["workers"] > 1) & rows["epoch_s_median"].notna()]
    rows = rows[rows["setting"].isin(parallel["setting"])]
    settings = kit.settings_of(parallel)
    if not settings:
        return None
    shown = rows[rows["setting"].isin(settings)]
    styles = series_styles(points)
    columns = ("epoch_s_median", "epoch_s_min", "epoch_s_max")
    ideal = f"ideal_epoch_{kind}_s"

    def draw(width_in: float) -> Figure:
        figure, panels, (panel_in, _) = kit.by_setting(shown, settings, width_in)
        for (axes,), own in panels:
            for _, of in own[own[ideal].notna()].groupby(["partition", "ref_train_samples"], sort=False, dropna=False):
                line = of.drop_duplicates("workers").sort_values("workers", kind="stable")
                mark(axes.plot(line["workers"], line[ideal], color=QUIET, linewidth=0.8, zorder=1), series=_IDEAL)
            known = own[own["epoch_s_median"].notna()]
            ends = {"low": "epoch_s_low", "high": "epoch_s_high"}
            kit.against_workers(axes, known, columns, styles, panel_in, log=True, unit="s per epoch", **ends)
            values = own[[*columns, ideal]]
            kit.log_values(axes, float(values.min().min()), float(values.max().max()))
            axes.set_ylabel("Time per epoch / s")
        entries = kit.handles(styles, shown["series"].drop_duplicates())
        if shown[ideal].notna().any():
            entries.append(Line2D([], [], color=QUIET, linewidth=0.8, label=_IDEAL))
        kit.legend(figure, entries, width_in)
        return figure

    caption = (
        f"Time per epoch against the number of workers, both axes logarithmic. Baseline ({kind}): {base_words}. Time "
        "per epoch = training samples / X, X = samples/s of all workers in the timed window, so without evaluation and "
        "checkpoints. Points: medians over repeats; bars: fastest to slowest repeat; lines only guide the eye. Thin "
        "grey: the baseline's epoch / N, of each partition its own. Dashed vertical lines: further workers need "
        "another node. "
        f"{kit.work_words(shown)} {kit.repeats_words(shown)}" + kit.left_out(parallel, settings)
    )
    kept = ["series", "setting", "partition", "workers", "nodes", "repeats", "missing", *columns]
    return Drawing(
        name=NAMES[0],
        title="Epoch time",
        alt="Time per epoch against workers on logarithmic axes, with the ideal line; the values are in its CSV file.",
        caption=caption,
        data=rows[[*kept, "epoch_s_low", "epoch_s_high", ideal]],
        draw=draw,
    )


def weak_scaling(analysis: Analysis) -> Drawing | None:
    kind = analysis.provenance["baseline"]
    base_words = baseline_words(analysis.points, kind, plain=_PLAIN)
    points = analysis.points[analysis.points["mode"] == "weak"]
    points = points[points["series"].isin(points.loc[points["workers"] > 1, "series"])]
    known = points[points["samples_per_s_median"].notna() & (points["workers"] > 1)]
    if known.groupby("series")["workers"].nunique().max() < 2 if len(known) else True:
        return None
    settings = kit.settings_of(known, most=2)
    shown = points[points["setting"].isin(settings)]
    styles = series_styles(analysis.points)
    steps = analysis.breakdown[
        (analysis.breakdown["lap"] == "step") & analysis.breakdown["series"].isin(shown["series"])
    ]
    ideal = analysis.losses[(analysis.losses["part"] == IDEAL) & analysis.losses["series"].isin(shown["series"])]
    base = f"base_{kind}_samples_per_s"
    timed = len(steps) > 0

    def draw(width_in: float) -> Figure:
        figure, panels, (panel_in, _) = kit.by_setting(shown, settings, width_in, each=1 + timed, most=1 + timed)
        for (axes, *beside), own in panels:
            top, low = own["samples_per_s_max"].max() / 1000, own["samples_per_s_min"].min() / 1000
            for rate in own[base].dropna().unique():
                mark(
                    axes.axline((1, rate / 1000), (2, 2 * rate / 1000), color=QUIET, linewidth=0.8, zorder=1),
                    series="ideal",
                )
                low = min(low, rate / 1000)
            columns = ("samples_per_s_median", "samples_per_s_min", "samples_per_s_max")
            rates = own[own[columns[0]].notna()]
            how = {"scale": 1 / 1000, "unit": f"thousand {analysis.rate_unit}"}
            kit.against_workers(axes, rates, columns, styles, panel_in, log=True, **how)
            kit.log_values(axes, low, 1.3 * top)
            axes.set_ylabel(f"1000 {analysis.rate_unit}")
            for right in beside:
                _steps(right, steps, ideal, own, styles, panel_in)
        entries = kit.handles(styles, shown["series"].drop_duplicates())
        if shown[base].notna().any():
            entries.append(Line2D([], [], color=QUIET, linewidth=0.8, label="ideal"))
        kit.legend(figure, entries, width_in)
        return figure

    caption = (
        "Weak scaling: every worker keeps its batch, so a step processes N times the samples of one worker's. "
        "Throughput of all workers against N, both axes logarithmic"
        + (", and mean time per step" if timed else "")
        + f". Baseline ({kind}): {base_words}. Thin grey: ideal, N times the throughput of the baseline"
        + (" and its step, unchanged" if timed else "")
        + ". Points: medians over repeats"
        + (" (of the step the mean)" if timed else "")
        + "; bars: lowest to highest repeat; lines only guide the eye. Efficiency = X(N) / (N X(base)). Dashed, "
        f"upright: further workers need another node. {kit.repeats_words(shown)}" + kit.left_out(known, settings)
    )
    throughput = shown[
        ["series", "setting", "partition", "workers", "nodes", "repeats", "missing", "samples_per_s_median",
         "samples_per_s_min", "samples_per_s_max", base, f"efficiency_{kind}"]
    ].assign(kind="throughput")  # fmt: skip
    step = steps[["series", "workers", "nodes", "repeats", "mean_s", "min_s", "max_s"]].assign(kind="step")
    level = (
        ideal[["series", "workers", "nodes", "seconds"]].rename(columns={"seconds": "mean_s"}).assign(kind="ideal step")
    )
    return Drawing(
        name=NAMES[1],
        title="Weak scaling",
        alt="Throughput and time per step against workers at a fixed batch per worker, with ideal lines; the values "
        "are in its CSV file.",
        caption=caption,
        data=pd.concat([throughput, step, level], ignore_index=True),
        draw=draw,
    )


def _steps(
    axes: Any, steps: pd.DataFrame, ideal: pd.DataFrame, own: pd.DataFrame, styles: Any, panel_in: float
) -> None:
    """Draw the mean step of each series, and the level of the baseline's."""
    mine = steps[steps["series"].isin(own["series"])]
    level = ideal[ideal["series"].isin(own["series"])]
    for value in sorted(set(level["seconds"])):
        mark(axes.axhline(value * 1000, color=QUIET, linewidth=0.8, zorder=1), series="ideal")
    top = 1000 * float(level["seconds"].max()) if len(level) else 0.0
    how = {"scale": 1000.0, "unit": "ms per step"}
    top = max(top, kit.against_workers(axes, mine, ("mean_s", "min_s", "max_s"), styles, panel_in, log=True, **how))
    axes.set_ylim(0, 1.15 * top if top > 0 else 1)
    kit.round_values(axes)
    axes.set_ylabel("Mean step / ms")
