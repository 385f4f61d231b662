"""What training costs, for readers: energy per sample and worker hours against workers, with their laws, and a table.

Nothing is shown of runs on processors without an energy
counter: their worker hours say what the efficiency says.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from horovod_study.analysis.laws import law_label
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Curve, Figure, Panel, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.text.numbers import number, scientific, with_interval
from horovod_study.text.words import plural

NAME = "resources"

_SIZES = {
    "J": ((1.0, "J"), (1e-3, "mJ"), (1e-6, "\u00b5J")),
    "hours": ((1.0, "hours"), (1 / 60, "minutes"), (1 / 3600, "seconds")),
}


def resources(analysis: Analysis) -> Figure | None:
    """Return the figure of energy and worker hours; None where no energy was recorded and no run used a GPU."""
    wanted, rows, looks = _panels(analysis), analysis.resources, style.series_styles(analysis.points)
    if not wanted:
        return None
    parallel = set(rows.loc[rows["workers"] > 1, "setting"])
    settings = [setting for setting in rows["setting"].drop_duplicates() if setting in parallel][:3]
    shown = rows[rows["setting"].isin(settings)]
    curves = analysis.quantity_curves[analysis.quantity_curves["series"].isin(shown["series"])]
    met = analysis.crossings[analysis.crossings["series"].isin(shown["series"])]

    def layers(own: pd.DataFrame, panel: dict[str, Any]) -> Iterator[Any]:
        scale, unit, name = 1 / panel["unit"], panel["unit_name"], panel["quantity"]
        law = _of(curves[curves["series"].isin(own["series"])], panel)
        yield Curve(rows=law, y="value", low="low", high="high", scale=scale, how={"linewidth": 1.5})
        if math.isnan(panel["target_mse"]):
            yield Points(rows=own, scale=scale, unit=unit, ends=("", ""), **spread(name))
            return
        runs = met[met["series"].isin(own["series"]) & (met["target_mse"] == panel["target_mse"])]
        reached = runs["reached"].astype(bool)
        yield Points(rows=runs[reached], y=name, scale=scale, unit=unit)
        missed = runs[~reached].assign(said="target not met")
        yield Points(rows=missed, y=name, scale=scale, unit=unit, note="said", marker="^", hollow=True)

    panels = []
    for setting in settings:
        own = shown[shown["setting"] == setting]
        for panel in wanted:
            words = [setting] * (len(settings) > 1)
            if not math.isnan(panel["target_mse"]):
                words.append(f"test MSE {scientific(panel['target_mse'])}")
            title, made = ", ".join(words), list(layers(own, panel))
            panels.append(Panel(layers=made, y=panel["label"], title=title, nodes=own, beyond=""))
    missed: dict[str, Any] = {"linestyle": "none", "marker": "^", "markersize": 5, "markerfacecolor": style.PAPER}
    lower = [Line2D([], [], **missed, markeredgecolor=style.QUIET, label="target not met: at least")]
    frames = [shown.assign(kind="point"), curves.assign(kind="line"), met.assign(kind="run")]
    return Figure(
        name=NAME,
        title="What training costs",
        alt="Energy per sample and worker hours against the number of workers; the values are in the table.",
        caption=_caption(analysis, wanted, curves, looks),
        data=pd.concat([each for each in frames if len(each)], ignore_index=True),
        panels=panels,
        looks=looks,
        legend=lower * bool(len(wanted) == 3 and not met["reached"].astype(bool).all()),
        shape=(len(wanted), 0.8, 0.5),
    )


def sentences(analysis: Analysis) -> list[str]:
    """Return what more workers cost, one sentence per series with energy: energy ratio and speedup per joule."""
    found = []
    labels = style.series_labels(analysis.points)
    several = analysis.resources["setting"].nunique() > 1
    for series, rows in analysis.resources.groupby("series", sort=False):
        known = rows[(rows["workers"] > 1) & rows["energy_ratio"].notna()]
        if known.empty:
            continue
        row = known.sort_values("workers", kind="stable").to_dict("records")[-1]
        name = labels[str(series)] + (f", {row['setting']}" if several else "")
        ratio = with_interval(row["energy_ratio"], row["energy_ratio_low"], row["energy_ratio_high"])
        found.append(
            f"{name}: {plural(row['workers'], 'worker')} use {ratio} times the energy per sample of one plain worker "
            f"({devices(row['energy_of'])}), a speedup per joule of "
            f"{number(row['speedup_per_joule'])}."
        )
    return found


def hours_word(analysis: Analysis) -> str:
    """Return what a worker's hours are: `GPU` where all runs trained on GPUs, else `Worker`."""
    devices = set(analysis.resources["device"])
    return "GPU" if devices and not devices & {"", "cpu"} else "Worker"


def scales(analysis: Analysis) -> dict[str, tuple[float, str]]:
    """Return size and name of the units in which energy per sample and worker hours per epoch have readable numbers."""
    found = {"energy_per_sample_j": (1.0, "J"), "worker_hours_per_epoch": (1.0, "hours")}
    return found | {panel["quantity"]: (panel["unit"], panel["unit_name"]) for panel in _panels(analysis)}


def devices(kinds: str) -> str:
    """Return `GPUs and processors` for the kinds of devices `gpu and package`."""
    return kinds.replace("gpu", "GPUs").replace("package", "processors") or "the devices that were read"


def _panels(analysis: Analysis) -> list[dict[str, Any]]:
    rows, crossings = analysis.resources, analysis.crossings
    energy = rows["energy_per_sample_j_median"].notna()
    if not energy.any() and hours_word(analysis) != "GPU":
        return []
    if not (rows["workers"] > 1).any():
        return []
    word = hours_word(analysis)
    found = []
    if energy.any():
        found.append(_panel("energy_per_sample_j", math.nan, "Energy per sample", "J", rows["energy_per_sample_j_max"]))
    hours = rows["worker_hours_per_epoch_max"]
    if hours.notna().any():
        found.append(_panel("worker_hours_per_epoch", math.nan, f"{word} {{}} per epoch", "hours", hours))
    met = crossings[crossings["reached"].astype(bool) & (crossings["workers"] > 1)]
    if len(met):
        target = float(met["target_mse"].min())
        own = crossings.loc[crossings["target_mse"] == target, "worker_hours"]
        found.append(_panel("worker_hours", target, f"{word} {{}} to target", "hours", own))
    return found


def _panel(quantity: str, target: float, words: str, kind: str, values: pd.Series) -> dict[str, Any]:
    largest = float(values.max())
    size, name = next((each for each in _SIZES[kind] if largest >= 2 * each[0]), _SIZES[kind][-1])
    label = words.format(name) if kind == "hours" else f"{words} / {name}"
    return {"quantity": quantity, "target_mse": target, "label": label, "unit": size, "unit_name": name}


def _caption(
    analysis: Analysis, panels: Sequence[dict[str, Any]], curves: pd.DataFrame, styles: Mapping[str, style.SeriesStyle]
) -> str:
    kinds = [devices(kind) for kind in analysis.resources["energy_of"].drop_duplicates() if kind]
    laws = []
    for panel in panels:
        own = _of(curves, panel).drop_duplicates("series")
        named = [f"{styles[row['series']].label} {law_label(row['law'])}" for row in own.to_dict("records")]
        if named:
            laws.append(f"{panel['label']}: {', '.join(named)}")
    texts = ["What training costs, against the number of workers."]
    if any(panel["quantity"] == "energy_per_sample_j" for panel in panels):
        read = f" of {' or '.join(kinds)}" if kinds else ""
        texts.append(
            f"Energy{read} in the timed window over its samples; devices count whole, without memory modules, fans, "
            "power supplies and network."
        )
    texts.append("Hours per epoch: workers x training samples / throughput, the timed window only.")
    texts.append("Points: medians over repeats; bars: lowest to highest repeat.")
    if any(panel["quantity"] == "worker_hours" for panel in panels):
        texts.append(
            "Hours to a target: workers x wall time, with evaluation; a dot is a run, a hollow triangle one that did "
            "not meet it (a lower bound)."
        )
    if laws:
        texts.append(
            f"Lines: the law selected by AICc with its 95 % band, dashed where extrapolated ({'; '.join(laws)})."
        )
    texts.append(kit.boundary_words(analysis.resources).strip())
    return " ".join(text for text in texts if text)


def _of(curves: pd.DataFrame, panel: dict[str, Any]) -> pd.DataFrame:
    target = curves["target_mse"].astype(float)
    same = target.isna() if math.isnan(panel["target_mse"]) else target == panel["target_mse"]
    found: pd.DataFrame = curves[(curves["quantity"] == panel["quantity"]) & same]
    return found
