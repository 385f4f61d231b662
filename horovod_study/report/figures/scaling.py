"""What more workers give: speedup, efficiency, throughput, time per epoch, weak scaling, the straight line."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from horovod_study.analysis.forecast.study_forecast import CURVE, FORECAST, MEASURED
from horovod_study.analysis.laws import law_label
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.series.turns import alternated, ratios_are
from horovod_study.analysis.steps.losses import IDEAL
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Curve, Figure, Guide, Panel, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.style import EXTRAPOLATED_DASH, PAPER, QUIET, THIN_LAWS, series_styles
from horovod_study.text.numbers import with_interval

_CELL = ["series", "setting", "partition", "workers", "nodes", "repeats", "missing"]
_WIDE = (2, 0.84, 0.52)
_PLAIN = "one plain PyTorch worker without a communication library"
_ENDS = ("_median", "_min", "_max")
_GUIDE = "lines only guide the eye"


def speedup(analysis: Analysis) -> Figure | None:
    """Return the speedup against workers with its fitted laws; None without a point of several workers."""
    return _ratio(analysis, "speedup", ("speedup", "low", "high"), "S(N) = X(N) / X(base)")


def efficiency(analysis: Analysis) -> Figure | None:
    """Return the efficiency against workers with its fitted laws; None without a point of several workers."""
    columns = ("efficiency", "efficiency_low", "efficiency_high")
    return _ratio(analysis, "efficiency", columns, "E(N) = S(N) / N = X(N) / (N X(base))")


def _ratio(analysis: Analysis, name: str, fitted: tuple[str, str, str], formula: str) -> Figure | None:
    points = analysis.points[analysis.points["mode"] != "mixed"]
    column, turned = f"{name}_{analysis.provenance['baseline']}", alternated(points)
    known = points[column].notna()
    points = points[known | (points["missing"] & points["series"].isin(points.loc[known, "series"]))]
    if points[~points["missing"] & (points["backend"] != "serial")].empty:
        return None
    interval = (f"{column}_low", f"{column}_high")
    low, high = interval if turned else (f"{column}_min", f"{column}_max")
    looks, ratio = series_styles(analysis.points), name == "speedup"
    scale, unit, label = (1.0, "\u00d7", "Speedup") if ratio else (100.0, "%", "Efficiency / %")
    curves = analysis.curves[analysis.curves["series"].isin(points["series"])]
    chosen = curves["selected"].astype(bool)
    curves, thin = curves[chosen], curves[~chosen & curves["law"].isin(list(THIN_LAWS))]
    last = max(points["workers"].max(), curves["workers"].max() if len(curves) else 1)
    inside = curves.loc[~curves["extrapolated"].astype(bool), fitted[0]].max()
    most = np.nanmax([points[high].max(), inside, 1.0])
    ahead = np.nanmax([1.25 * most, 1.12 * pd.concat([curves, thin])[fitted[0]].max()])
    top = 1.05 * last if last < 2 * most else min(1.05 * last, ahead)

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        yield Guide(label="ideal", slope=1.0) if ratio else Guide(label="ideal", level=100.0)
        few = own.loc[own["backend"] != "serial", "series"].nunique() <= 4  # more have no lines beside their own
        for law, rows in thin[thin["series"].isin(own["series"]) & few].groupby("law", sort=False):
            yield Curve(rows=rows, y=fitted[0], scale=scale, how={"linewidth": 0.8, "linestyle": THIN_LAWS[f"{law}"]})
        rows = curves[curves["series"].isin(own["series"])]
        yield Curve(rows=rows, y=fitted[0], low=fitted[1], high=fitted[2], scale=scale, how={"linewidth": 1.7})
        ends: dict[str, Any] = {"low": low, "high": high, "ends": interval}
        yield Points(rows=own[~own["missing"]], y=column, **ends, scale=scale, unit=unit, apart=True)

    laws: dict[str, str] = dict(curves[["series", "law"]].drop_duplicates().itertuples(index=False))
    panels, rest = _by_setting(
        points, _parallel(points), layers, label, (0, top if ratio else 100 * max(1.12, 1.05 * most))
    )
    entries = [
        *(_entry(f"selected law: {law_label(law)}", 1.7) for law in dict.fromkeys(laws.values())),
        *(_entry(law_label(law), 0.9, linestyle=THIN_LAWS[law]) for law in THIN_LAWS if law in set(thin["law"])),
    ]
    told = "; ".join(f"{looks[series].label}: {law_label(law)}" for series, law in laws.items())
    absent = sorted(set(analysis.points.loc[analysis.points["backend"] != "serial", "series"]) - set(points["series"]))
    caption = [
        f"{name.capitalize()} against the number of workers. {_base(analysis)} {formula}, X = {analysis.rate_unit} of "
        f"all workers. Points: {ratios_are(analysis.points)}; bars: "
        + ("95 % intervals." if turned else "slowest to fastest repeat over the median baseline."),
        f"Thick lines: the law selected by AICc ({told}) with its 95 % band (the baseline taken as exact); thin lines: "
        "Amdahl and Gustafson, in panels with few series; lighter and dashed on grey: extrapolated beyond the measured "
        "worker counts." * bool(told),
        f"Thin grey: ideal. {kit.work_words(points)}{kit.boundary_words(points)}{rest}",
        f"Not drawn for lack of this baseline or of a fixed batch: {', '.join(absent)}." * bool(absent),
    ]
    both = pd.concat([curves, thin])[["series", "law", "workers", *fitted, "extrapolated"]]
    return Figure(
        name=name,
        title=name.capitalize(),
        alt=f"{name.capitalize()} against workers for {_names(points, looks)}; the values are in the table of points.",
        caption=" ".join(filter(None, caption)),
        data=pd.concat([points[[*_CELL, column, low, high]].assign(kind="point"), both.assign(kind="line")]),
        panels=panels,
        looks=looks,
        legend=entries,
        shape=_WIDE,
    )


def throughput(analysis: Analysis) -> Figure | None:
    """Return the throughput against workers; None where there is a panel for every dot: the table says it better."""
    points = analysis.points[analysis.points["mode"] != "mixed"]
    if points[~points["missing"]].empty or ((points["mode"] == "single").all() and points["setting"].nunique() > 2):
        return None
    rate, base = "samples_per_s", "base_plain_samples_per_s"
    interval = (f"{rate}_ci95_low", f"{rate}_ci95_high")

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for each in own[base].dropna().unique():
            yield Guide(label="N times the plain worker", slope=each / 1000)
        how: dict[str, Any] = {"ends": interval, "scale": 1 / 1000, "unit": analysis.rate_unit}
        yield Points(rows=own[~own["missing"]], apart=True, line=True, **spread(rate), **how)

    looks = series_styles(analysis.points)
    panels, rest = _by_setting(points, _parallel(points), layers, f"Throughput / 1000 {analysis.rate_unit}")
    return Figure(
        name="throughput",
        title="Throughput",
        alt=f"Throughput against workers for {_names(points, looks)}.",
        caption="Throughput of all workers together against the number of workers. Points: medians over repeats; bars: "
        f"slowest to fastest repeat; {_GUIDE}. Thin grey: the throughput of one plain worker times N. "
        f"{kit.work_words(points)}{kit.boundary_words(points)}{rest}",
        data=points[[*_CELL, *(f"{rate}{end}" for end in _ENDS), base]],
        panels=panels,
        looks=looks,
        shape=_WIDE,
    )


def epoch_time(analysis: Analysis) -> Figure | None:
    """Return the time per epoch against workers; None where no series has several workers."""
    points, ideal = analysis.points, f"ideal_epoch_{analysis.provenance['baseline']}_s"
    # A data set of another size at each worker count has another epoch there.
    growing = points["work"].str.contains("growing|different sizes")
    rows = points[points["mode"].isin(["weak", "strong", "single"]) & ~growing]
    parallel = rows[(rows["workers"] > 1) & rows["epoch_s_median"].notna()]
    rows = rows[rows["setting"].isin(parallel["setting"])]
    settings = kit.settings_of(parallel)
    if not settings:
        return None
    columns = [f"epoch_s{end}" for end in _ENDS]

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for _, of in own[own[ideal].notna()].groupby(["partition", "ref_train_samples"], sort=False, dropna=False):
            line = of.drop_duplicates("workers").sort_values("workers", kind="stable")
            yield Guide(label="ideal: base / N", x=list(line["workers"]), y=list(line[ideal]), held=True)
        ends = ("epoch_s_low", "epoch_s_high")
        yield Points(rows=own, unit="s per epoch", line=True, ends=ends, **spread("epoch_s"))

    shown = rows[rows["setting"].isin(settings)]
    panels, rest = _by_setting(parallel, settings, layers, "Time per epoch / s", log="xy", rows=rows)
    return Figure(
        name="epoch_time",
        title="Epoch time",
        alt="Time per epoch against workers on logarithmic axes, with the ideal line; the values are in its CSV file.",
        caption=f"Time per epoch against the number of workers, both axes logarithmic. {_base(analysis)} Time per "
        "epoch = training samples / X, X = samples/s of all workers in the timed window, so without evaluation and "
        f"checkpoints. Points: medians over repeats; bars: fastest to slowest repeat; {_GUIDE}. Thin grey: the "
        f"baseline's epoch / N, of each partition its own.{kit.boundary_words(shown)} {kit.work_words(shown)} "
        f"{kit.repeats_words(shown)}{rest}",
        data=rows[[*_CELL, *columns, "epoch_s_low", "epoch_s_high", ideal]],
        panels=panels,
        looks=series_styles(points),
    )


def weak_scaling(analysis: Analysis) -> Figure | None:
    """Return throughput and step against workers at a fixed batch of a worker; None with one count of several."""
    points, kind = analysis.points[analysis.points["mode"] == "weak"], analysis.provenance["baseline"]
    points = points[points["series"].isin(points.loc[points["workers"] > 1, "series"])]
    known = points[points["samples_per_s_median"].notna() & (points["workers"] > 1)]
    if not len(known) or known.groupby("series")["workers"].nunique().max() < 2:
        return None
    settings, base = kit.settings_of(known, most=2), f"base_{kind}_samples_per_s"
    shown = points[points["setting"].isin(settings)]
    steps = analysis.breakdown[analysis.breakdown["lap"].eq("step")]
    steps, ideal = (
        table[table["series"].isin(shown["series"])]
        for table in (steps, analysis.losses[analysis.losses["part"] == IDEAL])
    )
    rate, unit = "samples_per_s", f"1000 {analysis.rate_unit}"

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for each in own[base].dropna().unique():
            yield Guide(label="ideal", slope=each / 1000)
        rows, unit = own[own[f"{rate}_median"].notna()], f"thousand {analysis.rate_unit}"
        yield Points(rows=rows, unit=unit, scale=1 / 1000, line=True, **spread(rate))

    def of_step(own: pd.DataFrame) -> Iterator[Any]:
        for each in sorted(set(ideal.loc[ideal["series"].isin(own["series"]), "seconds"])):
            yield Guide(label="ideal", level=1000 * each)
        rows = steps[steps["series"].isin(own["series"])]
        yield Points(rows=rows, y="mean_s", low="min_s", high="max_s", scale=1000, unit="ms per step", line=True)

    panels, rest = _by_setting(known, settings, layers, unit, log="xy", rows=shown)
    if timed := len(steps) > 0:
        beside, _ = _by_setting(known, settings, of_step, "Mean step / ms", log="x", rows=shown)
        panels = [each for both in zip(panels, beside, strict=True) for each in both]
    level = ideal[["series", "workers", "nodes", "seconds"]].rename(columns={"seconds": "mean_s"})
    step = steps[["series", "workers", "nodes", "repeats", "mean_s", "min_s", "max_s"]]
    rates = shown[[*_CELL, *(f"{rate}{end}" for end in _ENDS), base, f"efficiency_{kind}"]]
    frames = {"throughput": rates, "step": step, "ideal step": level}
    return Figure(
        name="weak_scaling",
        title="Weak scaling",
        alt="Throughput and time per step against workers at a fixed batch per worker, with ideal lines; the values "
        "are in its CSV file.",
        caption="Weak scaling: every worker keeps its batch, so a step processes N times the samples of one worker's. "
        f"Throughput of all workers against N, both axes logarithmic{', and mean time per step' * timed}. "
        f"{_base(analysis)} Thin grey: ideal, N times the throughput of the baseline"
        f"{' and its step, unchanged' * timed}. Points: medians over repeats{' (of the step the mean)' * timed}; bars: "
        f"lowest to highest repeat; {_GUIDE}. Efficiency = X(N) / (N X(base)).{kit.boundary_words(shown)} "
        f"{kit.repeats_words(shown)}{rest}",
        data=pd.concat([frame.assign(kind=name) for name, frame in frames.items()], ignore_index=True),
        panels=panels,
        looks=series_styles(analysis.points),
        shape=(1 + timed, 0.66, 0.5),
    )


def regression(analysis: Analysis) -> Figure | None:
    """Return the straight line through the speedups of each partition; None where no series has three counts."""
    column = f"speedup_{analysis.provenance['baseline']}"
    lines = analysis.curves[(analysis.curves["law"] == "linear") & ~analysis.curves["extrapolated"].astype(bool)]
    points = analysis.points[analysis.points["series"].isin(lines["series"]) & analysis.points[column].notna()]
    counts = points.groupby("series")["workers"].nunique()
    points = points[points["series"].isin(counts.index[counts > 2])]  # a line through two points is not a finding
    if points.empty:
        return None
    settings, looks = kit.settings_of(points), series_styles(analysis.points)
    shown = points[points["setting"].isin(settings)]
    for series, setting in shown[["series", "setting"]].drop_duplicates("series").itertuples(index=False):
        law = analysis.fits["series"][series]["laws"]["linear"]
        slope = with_interval(law["params"]["slope"], *law["ci95"]["slope"])
        of = f", {setting}" * (len(settings) > 1)
        looks[series] = replace(looks[series], label=f"{looks[series].label}{of}: {slope} per worker")

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        yield Guide(label="ideal", slope=1.0)
        rows = lines[lines["series"].isin(own["series"])].drop(columns="extrapolated")
        yield Curve(rows=rows, y="speedup", low="low", high="high", how={"linewidth": 1.4}, band=0.14)
        yield Points(
            rows=own, unit="\u00d7", ends=(f"{column}_low", f"{column}_high"), **spread(column, "", "_min", "_max")
        )

    panels, rest = _by_setting(points, settings, layers, "Speedup")
    kept = [*(each for each in _CELL if each != "missing"), column, f"{column}_min", f"{column}_max"]
    line = lines[["series", "law", "workers", "speedup", "low", "high"]]
    return Figure(
        name="regression",
        title="Regression lines of the speedup",
        alt="Speedup against workers with a straight line per series; slopes and intervals are in the legend.",
        caption="Regression lines of the speedup, S(N) = slope N + intercept, fitted by least squares to the runs of "
        "each series; in the legend the slope with its 95 % interval, the speedup that a further worker brings; bands: "
        f"95 % of the line, the baseline taken as exact. {_base(analysis)} S(N) = X(N) / X(base), X = "
        f"{analysis.rate_unit} of all workers. Points: medians over repeats; bars: slowest to fastest repeat. Thin "
        "grey: ideal, slope 1. A straight line describes the measured counts; whether another law describes them "
        f"better is said with the speedups. {kit.repeats_words(shown)}{rest}",
        data=pd.concat([points[kept].assign(kind="point"), line.assign(kind="line")], ignore_index=True),
        panels=panels,
        looks=looks,
        shape=(2, 0.75, 0.5),
    )


def forecast(analysis: Analysis) -> Figure | None:
    """Return the throughput beyond the measured counts; None where no series could be forecast."""
    table = analysis.forecast
    if table.empty:
        return None
    partitions = analysis.points.drop_duplicates("series").set_index("series")["partition"]
    placed = table.assign(partition=table["series"].map(partitions), missing=False)
    settings = list(placed["setting"].drop_duplicates())[: kit.MAX_PANELS]
    rate, unit = "samples_per_s", analysis.rate_unit

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for _, ideal in own.drop_duplicates(["workers", "ideal_samples_per_s"]).groupby("series", sort=False):
            yield Guide(label="ideal", x=list(ideal["workers"]), y=list(ideal["ideal_samples_per_s"] / 1000))
        measured = own[own["kind"] == MEASURED]
        last = measured.sort_values("workers").drop_duplicates("series", keep="last")
        # The band opens at the last measurement, whose own spread is drawn as a bar.
        start = last.assign(low=last[rate], high=last[rate])
        ahead = pd.concat([start, own[own["kind"].isin([FORECAST, CURVE])]])
        band: dict[str, Any] = {"y": rate, "low": "low", "high": "high", "scale": 1 / 1000, "band": 0.13}
        yield Curve(rows=ahead, how={"linestyle": EXTRAPOLATED_DASH}, **band)
        points: dict[str, Any] = {"y": rate, "scale": 1 / 1000, "unit": unit}
        ends: dict[str, Any] = {"low": f"{rate}_min", "high": f"{rate}_max", "ends": ("", "")}
        yield Points(rows=measured.assign(said="measured"), note="said", line=True, **points, **ends)
        asked = own[own["kind"] == FORECAST].assign(said="forecast")
        yield Points(rows=asked, low="low", high="high", note="said", hollow=True, **points)

    panels, rest = _by_setting(placed, settings, layers, f"Throughput / 1000 {unit}", log="xy", beyond="forecast")
    hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": PAPER, "markersize": 5, "linestyle": EXTRAPOLATED_DASH}
    return Figure(
        name="forecast",
        title="Forecast",
        alt="Throughput against workers on logarithmic axes, measured and forecast; the values are in the table.",
        caption="Throughput of all workers against workers, both axes logarithmic. Filled marks: medians over repeats, "
        "bars: slowest to fastest repeat. On grey: forecast, with hollow marks at two, four and eight times the "
        "largest measured count and at full nodes, dashed lines between them; bands: 95 % interval of a single run "
        "there. Thin grey: ideal, the throughput of the baseline times N, or of the smallest measured count where "
        "there is no baseline. Forecasts are a weighted combination of laws; what the same method did with the "
        f"largest measured counts hidden is in the table.{kit.boundary_words(placed)}{rest}",
        data=table,
        panels=panels,
        looks=series_styles(analysis.points),
        legend=[_entry("forecast", 1.2, **hollow), Patch(facecolor=QUIET, alpha=0.2, label="95 % interval")],
        shape=(2, 0.92, 0.6),
    )


def _by_setting(
    known: pd.DataFrame,
    settings: list[str],
    layers: Any,
    label: str,
    limits: tuple[float | None, float | None] = (0, None),
    *,
    log: str = "",
    beyond: str = "extrapolated",
    rows: pd.DataFrame | None = None,
) -> tuple[list[Panel], str]:
    """Return a panel for each setting, and the sentence that names the settings of `known` without one."""
    rows = known if rows is None else rows
    own = {setting: rows[rows["setting"] == setting] for setting in settings}
    panels = [
        Panel(
            layers=list(layers(each)),
            y=label,
            title=setting if len(settings) > 1 else "",
            log=log,
            limits=limits,
            nodes=each,
            lost=each[each["missing"]],
            first=beyond == "forecast",
            beyond=beyond,
        )
        for setting, each in own.items()
    ]
    return panels, kit.left_out(known, settings)


def _base(analysis: Analysis) -> str:
    kind = analysis.provenance["baseline"]
    return f"Baseline ({kind}): {baseline_words(analysis.points, kind, plain=_PLAIN)}."


def _names(points: pd.DataFrame, looks: Any) -> str:
    return ", ".join(looks[series].label for series in points["series"].unique())


def _parallel(points: pd.DataFrame) -> list[str]:
    """Return the settings that have panels, not too many: with several workers if there are any such."""
    parallel = points.loc[(points["mode"] != "single") | (points["workers"] > 1), "setting"].drop_duplicates()
    return list(parallel if len(parallel) else points["setting"].drop_duplicates())[: kit.MAX_PANELS]


def _entry(label: str, width: float, **how: Any) -> Line2D:
    return Line2D([], [], color=QUIET, linewidth=width, label=label, **how)
