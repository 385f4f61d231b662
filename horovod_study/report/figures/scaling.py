"""What more workers give: speedup, efficiency, throughput, epoch time, weak scaling, the straight line, forecast."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from horovod_study.analysis.forecast.recommendation import CURVE, FORECAST, MEASURED
from horovod_study.analysis.laws import law_label
from horovod_study.analysis.series.points import alternated, baseline_words, ratios_are
from horovod_study.analysis.study import Analysis
from horovod_study.report import grammar as kit
from horovod_study.report.grammar import Curve, Figure, Guide, Looks, Panel, Points, spread
from horovod_study.report.kit.style import EXTRAPOLATED_DASH, PAPER, QUIET, THIN_LAWS, series_styles
from horovod_study.text.numbers import with_interval

RANGE = "slowest to fastest repeat"
INTERVAL = "95 % intervals, where there are three repeats"

Side = tuple[Callable[[pd.DataFrame], Iterable[Any]], str, dict[str, Any]]  # layers, label of y, others of `Panel`


def law_words(curves: pd.DataFrame, looks: Looks, points: pd.DataFrame, before: str = "") -> str:
    """Return the law of each series of `curves`, once a name; with its setting where a name has several laws."""
    if (rows := curves.drop_duplicates("series")).empty:  # no law was selected
        return ""
    rows = rows.assign(name=[before + looks[series].label for series in rows["series"]])
    rows["setting"] = rows["series"].map(points.drop_duplicates("series").set_index("series")["setting"])
    rows.loc[rows.groupby("name")["law"].transform("nunique") > 1, "name"] += ", " + rows["setting"]
    told = rows[["name", "law"]].drop_duplicates().itertuples(index=False)
    return "; ".join(f"{name}: {law_label(law)}" for name, law in told)


def against_workers(
    analysis: Analysis,
    name: str,
    words: Sequence[str],
    sides: Sequence[Side],
    *,
    rows: pd.DataFrame,
    data: pd.DataFrame,
    base: bool = True,
    **how: Any,
) -> Figure:
    """Return a figure with a panel for each setting that has one and each of the `sides`; `rows`: all to be drawn.

    `words`: what is drawn, what the bars are, and more; the caption adds what its rows have, and the baseline (`base`).
    """
    settings, panels = kit.settings_of(rows, most=kit.MAX_PANELS // len(sides)), []
    for setting in settings:
        own = rows[rows["setting"] == setting]
        axes = {"title": setting if len(settings) > 1 else "", "nodes": own, "beyond": "extrapolated"}
        axes |= {"lost": own[own["missing"]]} if "missing" in own else {}
        panels += [Panel(layers=list(layers(own)), y=y, **{**axes, **more}) for layers, y, more in sides]
    shown, kind, (what, bars, *rest) = rows[rows["setting"].isin(settings)], analysis.provenance["baseline"], words
    told = [what, f"Points: medians over repeats; bars: {bars}.", *rest]
    if base:
        baseline = baseline_words(analysis.points, kind, plain="one plain PyTorch worker")
        told += [f"Baseline ({kind}): {baseline}.", kit.work_words(shown), kit.repeats_words(shown)]
    told += [kit.boundary_words(shown).strip(), kit.left_out(rows, settings).strip()]
    title, shape = name.replace("_", " ").capitalize(), (2, 0.84, 0.52)
    how = {"title": title, "looks": series_styles(analysis.points), "shape": shape, **how}
    return Figure(name=name, caption=" ".join(filter(None, told)), data=data, panels=panels, **how)


_CELL = ["series", "setting", "partition", "workers", "nodes", "repeats", "missing"]
_RATE = "samples_per_s"


def speedup(analysis: Analysis) -> Figure | None:
    """Return the speedup against workers with its fitted laws; None without a point of several workers."""
    return _ratio(analysis, "speedup", ["speedup", "low", "high"], "S(N) = X(N) / X(base)")


def efficiency(analysis: Analysis) -> Figure | None:
    """Return the efficiency against workers with its fitted laws; None without a point of several workers."""
    columns = ["efficiency", "efficiency_low", "efficiency_high"]
    return _ratio(analysis, "efficiency", columns, "E(N) = S(N) / N = X(N) / (N X(base))")


def _ratio(analysis: Analysis, name: str, fitted: list[str], formula: str) -> Figure | None:
    column, ratio, turned = f"{name}_{analysis.provenance['baseline']}", name == "speedup", alternated(analysis.points)
    points = analysis.points[analysis.points["mode"] != "mixed"]
    known = points[column].notna()
    points = points[known | (points["missing"] & points["series"].isin(points.loc[known, "series"]))]
    if points[~points["missing"] & (points["backend"] != "serial")].empty:
        return None
    interval = (f"{column}_low", f"{column}_high")
    low, high = interval if turned else (f"{column}_min", f"{column}_max")
    scale, unit, label = (1.0, "\u00d7", "Speedup") if ratio else (100.0, "%", "Efficiency / %")
    curves = analysis.curves[analysis.curves["series"].isin(points["series"])]
    chosen = curves["selected"].astype(bool)
    curves, thin = curves[chosen], curves[~chosen & curves["law"].isin(list(THIN_LAWS))]
    lines = pd.concat([curves, thin])[["series", "law", "workers", *fitted, "extrapolated"]]
    most = np.nanmax([points[high].max(), curves.loc[~curves["extrapolated"].astype(bool), fitted[0]].max(), 1.0])
    ahead = np.nanmax([1.25 * most, 1.12 * lines[fitted[0]].max()])
    top = min(ahead, 1.05 * pd.concat([points, lines])["workers"].max()) if ratio else 100 * max(1.12, 1.05 * most)

    parallel = points[points["backend"] != "serial"]
    few = bool(parallel.groupby("setting")["series"].nunique().min() <= 4)  # more have no lines beside their own

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        yield Guide(label="ideal", slope=1.0) if ratio else Guide(label="ideal", level=100.0)
        thinner = own.loc[own["backend"] != "serial", "series"].nunique() <= 4
        for law, rows in thin[thin["series"].isin(own["series"]) & thinner].groupby("law", sort=False):
            yield Curve(rows=rows, y=fitted[0], scale=scale, how={"linewidth": 0.8, "linestyle": THIN_LAWS[f"{law}"]})
        rows = curves[curves["series"].isin(own["series"])]
        yield Curve(rows=rows, y=fitted[0], low=fitted[1], high=fitted[2], scale=scale, how={"linewidth": 1.7})
        ends: dict[str, Any] = {"low": low, "high": high, "ends": interval}
        yield Points(rows=own[~own["missing"]], y=column, **ends, scale=scale, unit=unit, apart=True)

    looks = series_styles(analysis.points)
    told = law_words(curves, looks, analysis.points)
    absent = sorted(set(analysis.points.loc[analysis.points["backend"] != "serial", "series"]) - set(points["series"]))
    words = [
        f"{name.capitalize()} against the number of workers, {formula}, X = {analysis.rate_unit} of all workers.",
        "95 % intervals" if turned else f"{RANGE} over the median baseline",
        f"Values: {ratios_are(points)}.",
        f"Thick lines: the selected law ({told}) with its 95 % band (the baseline taken as exact); "
        f"{'thin lines, of up to four series: Amdahl and Gustafson; ' * few}lighter and dashed on grey: extrapolated."
        * bool(told),
        f"Not drawn for lack of this baseline or of a fixed batch: {', '.join(absent)}." * bool(absent),
    ]
    named = ", ".join(law_label(law) for law in curves["law"].unique())
    legend = [_entry(f"selected law: {named}", 1.7)] * bool(named)
    legend += [
        _entry(law_label(law), 0.9, linestyle=THIN_LAWS[law]) for law in THIN_LAWS if few and law in set(thin["law"])
    ]
    data = pd.concat([points[[*_CELL, column, low, high]].assign(kind="point"), lines.assign(kind="line")])
    sides = [(layers, label, {"limits": (0, top)})]
    return against_workers(analysis, name, words, sides, rows=points, data=data, legend=legend)


def throughput(analysis: Analysis) -> Figure | None:
    """Return the throughput against workers; None where there is a panel for every dot: the table says it better."""
    points, base = analysis.points[analysis.points["mode"] != "mixed"], "base_plain_samples_per_s"
    if points[~points["missing"]].empty or ((points["mode"] == "single").all() and points["setting"].nunique() > 2):
        return None

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for each in own[base].dropna().unique():
            yield Guide(label="N times the plain worker", slope=each / 1000)
        ends = (f"{_RATE}_ci95_low", f"{_RATE}_ci95_high")
        yield _rates(own[~own["missing"]], analysis, apart=True, ends=ends)

    words = ["Throughput of all workers together against their number.", RANGE]
    data, label = points[[*_CELL, *spread(_RATE).values(), base]], f"Throughput / 1000 {analysis.rate_unit}"
    return against_workers(analysis, "throughput", words, [(layers, label, {})], rows=points, data=data)


def epoch_time(analysis: Analysis) -> Figure | None:
    """Return the time per epoch against workers; None where no series has several workers."""
    points, ideal = analysis.points, f"ideal_epoch_{analysis.provenance['baseline']}_s"
    # A data set of another size at each worker count has another epoch there.
    growing = points["work"].str.contains("growing|different sizes")
    rows = points[points["mode"].isin(["weak", "strong", "single"]) & ~growing]
    parallel = rows[(rows["workers"] > 1) & rows["epoch_s_median"].notna()]
    rows, ends = rows[rows["setting"].isin(parallel["setting"])], ("epoch_s_low", "epoch_s_high")
    if parallel.empty:
        return None

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for _, of in own[own[ideal].notna()].groupby(["partition", "ref_train_samples"], sort=False, dropna=False):
            line = of.drop_duplicates("workers").sort_values("workers", kind="stable")
            yield Guide(label="ideal: base / N", x=list(line["workers"]), y=list(line[ideal]), held=True)
        yield Points(rows=own, unit="s per epoch", line=True, ends=ends, **spread("epoch_s"))

    words = [
        "Time per epoch against the number of workers: training samples / X, X = samples/s in the timed window; ideal: "
        "that of the baseline / N.",
        "fastest to slowest repeat",
    ]
    sides = [(layers, "Time per epoch / s", {"log": "xy"})]
    data = rows[[*_CELL, *spread("epoch_s").values(), *ends, ideal]]
    return against_workers(analysis, "epoch_time", words, sides, rows=rows, data=data)


def weak_scaling(analysis: Analysis) -> Figure | None:
    """Return the throughput against workers at a fixed batch of a worker; None with one count of several."""
    points, kind = analysis.points[analysis.points["mode"] == "weak"], analysis.provenance["baseline"]
    points = points[points["series"].isin(points.loc[points["workers"] > 1, "series"])]
    known = points[points["samples_per_s_median"].notna() & (points["workers"] > 1)]
    if not len(known) or known.groupby("series")["workers"].nunique().max() < 2:
        return None
    shown, base = points[points["setting"].isin(known["setting"])], f"base_{kind}_samples_per_s"

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for each in own[base].dropna().unique():
            yield Guide(label="ideal", slope=each / 1000)
        yield _rates(own[own[f"{_RATE}_median"].notna()], analysis)

    words = [
        "Throughput against workers, weak scaling: every worker keeps its batch. Ideal: N times that of the baseline.",
        "lowest to highest repeat",
    ]
    sides = [(layers, f"1000 {analysis.rate_unit}", {"log": "xy"})]
    data = shown[[*_CELL, *spread(_RATE).values(), base, f"efficiency_{kind}"]].assign(kind="throughput")
    return against_workers(analysis, "weak_scaling", words, sides, rows=shown, data=data)


def regression(analysis: Analysis) -> Figure | None:
    """Return the straight line through the speedups of each partition; None where no series has three counts."""
    column = f"speedup_{analysis.provenance['baseline']}"
    lines = analysis.curves[(analysis.curves["law"] == "linear") & ~analysis.curves["extrapolated"].astype(bool)]
    points = analysis.points[analysis.points["series"].isin(lines["series"]) & analysis.points[column].notna()]
    # a line through two points is not a finding
    points = points[points.groupby("series")["workers"].transform("nunique") > 2]
    several, looks = points["setting"].nunique() > 1, series_styles(analysis.points)
    if points.empty:
        return None
    for series, setting in points[["series", "setting"]].drop_duplicates("series").itertuples(index=False):
        law = analysis.fits["series"][series]["laws"]["linear"]
        slope = with_interval(law["params"]["slope"], *law["ci95"]["slope"])
        of = f", {setting}" * several
        looks[series] = replace(looks[series], label=f"{looks[series].label}{of}: {slope} per worker")

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        yield Guide(label="ideal", slope=1.0)
        rows = lines[lines["series"].isin(own["series"])].drop(columns="extrapolated")
        yield Curve(rows=rows, y="speedup", low="low", high="high", how={"linewidth": 1.4}, band=0.14)
        ends = (f"{column}_low", f"{column}_high")
        yield Points(rows=own, unit="\u00d7", ends=ends, **spread(column, "", "_min", "_max"))

    words = [
        "Regression lines of the speedup, S(N) = slope N + intercept, by least squares over the runs of each series.",
        RANGE,
        "Bands: 95 % of the line, the baseline taken as exact.",
    ]
    kept = [*(each for each in _CELL if each != "missing"), column, f"{column}_min", f"{column}_max"]
    line = lines[["series", "law", "workers", "speedup", "low", "high"]]
    data = pd.concat([points[kept].assign(kind="point"), line.assign(kind="line")], ignore_index=True)
    return against_workers(
        analysis, "regression", words, [(layers, "Speedup", {})], rows=points, data=data, looks=looks
    )


def forecast(analysis: Analysis) -> Figure | None:
    """Return the throughput beyond the measured counts; None where no series could be forecast."""
    table = analysis.forecast
    if table.empty:
        return None
    partitions = analysis.points.drop_duplicates("series").set_index("series")["partition"]

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        for _, ideal in own.drop_duplicates(["workers", "ideal_samples_per_s"]).groupby("series", sort=False):
            yield Guide(label="ideal", x=list(ideal["workers"]), y=list(ideal["ideal_samples_per_s"] / 1000))
        measured = own[own["kind"] == MEASURED]
        last = measured.sort_values("workers").drop_duplicates("series", keep="last")
        # The band opens at the last measurement, whose own spread is drawn as a bar.
        ahead = pd.concat([last.assign(low=last[_RATE], high=last[_RATE]), own[own["kind"].isin([FORECAST, CURVE])]])
        how: dict[str, Any] = {"y": _RATE, "scale": 1 / 1000}
        yield Curve(rows=ahead, low="low", high="high", band=0.13, how={"linestyle": EXTRAPOLATED_DASH}, **how)
        how |= {"unit": analysis.rate_unit, "note": "kind"}
        yield Points(rows=measured, line=True, ends=("", ""), low=f"{_RATE}_min", high=f"{_RATE}_max", **how)
        yield Points(rows=own[own["kind"] == FORECAST], low="low", high="high", hollow=True, **how)

    words = [
        "Throughput of all workers against their number, both axes logarithmic.",
        RANGE,
        "On grey, hollow: forecast by a weighted combination of laws, with the 95 % interval of a single run; ideal: N "
        "times the baseline.",
    ]
    hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": PAPER, "markersize": 5, "linestyle": EXTRAPOLATED_DASH}
    legend = [_entry("forecast", 1.2, **hollow), Patch(facecolor=QUIET, alpha=0.2, label="95 % interval")]
    sides = [(layers, f"Throughput / 1000 {analysis.rate_unit}", {"log": "xy", "beyond": "forecast", "first": True})]
    rows = table.assign(partition=table["series"].map(partitions))
    return against_workers(analysis, "forecast", words, sides, rows=rows, data=table, legend=legend, base=False)


def _rates(rows: pd.DataFrame, analysis: Analysis, **how: Any) -> Points:
    return Points(rows=rows, unit=f"thousand {analysis.rate_unit}", scale=1 / 1000, line=True, **spread(_RATE), **how)


def _entry(label: str, width: float, **how: Any) -> Line2D:
    return Line2D([], [], color=QUIET, linewidth=width, label=label, **how)
