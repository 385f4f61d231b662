"""What training costs, for readers: energy per sample and worker hours against workers, with their laws.

Nothing is shown of runs on processors without an energy counter: their worker hours say what the efficiency says.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from horovod_study.analysis.laws import law_label
from horovod_study.analysis.study import Analysis
from horovod_study.report.figures.workers import against_workers
from horovod_study.report.grammar import Curve, Figure, Points, spread
from horovod_study.report.kit import style
from horovod_study.text.numbers import scientific

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
    settings = list(rows.loc[rows["workers"] > 1, "setting"].drop_duplicates())[:3]
    shown = rows[rows["setting"].isin(settings)]
    curves, met = (
        table[table["series"].isin(shown["series"])] for table in (analysis.quantity_curves, analysis.crossings)
    )

    def law_of(panel: dict[str, Any]) -> pd.DataFrame:
        target = curves["target_mse"].astype(float).fillna(-1.0) == panel["target_mse"]
        return curves[(curves["quantity"] == panel["quantity"]) & target]

    def layers(own: pd.DataFrame, panel: dict[str, Any]) -> Iterator[Any]:
        how: dict[str, Any] = {"scale": 1 / panel["unit"], "unit": panel["unit_name"]}
        law = law_of(panel)
        law = law[law["series"].isin(own["series"])]
        yield Curve(rows=law, y="value", low="low", high="high", how={"linewidth": 1.5}, **how)
        if panel["target_mse"] < 0:
            yield Points(rows=own, ends=("", ""), **spread(panel["quantity"]), **how)
            return
        runs = met[met["series"].isin(own["series"]) & (met["target_mse"] == panel["target_mse"])]
        reached, how["y"] = runs["reached"].astype(bool), panel["quantity"]
        yield Points(rows=runs[reached], **how)
        missed = runs[~reached].assign(said="target not met")
        yield Points(rows=missed, note="said", marker="^", hollow=True, **how)

    laws = {panel["label"]: law_of(panel).drop_duplicates("series") for panel in wanted}
    told = [f"{label}: " + ", ".join(f"{looks[series].label} {law_label(law)}" for series, law in
            zip(own["series"], own["law"], strict=True)) for label, own in laws.items() if len(own)]  # fmt: skip
    read = " and ".join(devices(kind) for kind in rows["energy_of"].drop_duplicates() if kind)
    words = [
        "What training costs against the number of workers: energy (of whole devices in the timed window, without "
        "memory modules, fans, power supplies and network) and hours, workers x training samples / throughput.",
        "lowest to highest repeat",
        f"Energy of {read}." * bool(read),
        "Hours to a target: workers x wall time, with evaluation; a dot is a run, a hollow triangle one that did not "
        "meet it (a lower bound)." * (len(wanted) == 3),
        f"Lines: the law selected by AICc with its 95 % band, dashed where extrapolated ({'; '.join(told)})."
        * bool(told),
    ]
    frames = [shown.assign(kind="point"), curves.assign(kind="line"), met.assign(kind="run")]
    data = pd.concat([each for each in frames if len(each)], ignore_index=True)
    missed: dict[str, Any] = {"linestyle": "none", "marker": "^", "markersize": 5, "markerfacecolor": style.PAPER}
    lower = [Line2D([], [], **missed, markeredgecolor=style.QUIET, label="target not met: at least")]
    how: dict[str, Any] = {"rows": shown, "settings": settings, "data": data, "looks": looks, "base": False}
    how["legend"] = lower * bool(len(wanted) == 3 and not met["reached"].astype(bool).all())
    sides = [(partial(layers, panel=panel), panel["label"], {"beyond": ""}) for panel in wanted]
    how["shape"], how["title"] = (len(wanted), 0.84, 0.52), "What training costs"
    return against_workers(analysis, NAME, words, sides, **how)


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
    """Return what is drawn: column, target (-1: none), label of the axis, and the unit in which it can be read."""
    rows, met, word = analysis.resources, analysis.crossings, hours_word(analysis)
    nothing = rows["energy_per_sample_j_median"].isna().all() and word != "GPU"
    if nothing or not (rows["workers"] > 1).any():
        return []
    target = float(met.loc[met["reached"].astype(bool) & (met["workers"] > 1), "target_mse"].min())
    to_target = met.loc[met["target_mse"] == target, "worker_hours"]
    made = [
        _panel("energy_per_sample_j", "Energy per sample / {}", "J", rows["energy_per_sample_j_max"]),
        _panel("worker_hours_per_epoch", f"{word} {{}} per epoch", "hours", rows["worker_hours_per_epoch_max"]),
        _panel("worker_hours", f"{word} {{}} to MSE {scientific(target)}", "hours", to_target, target),
    ]
    return [panel for panel in made if not math.isnan(panel["largest"])]


def _panel(quantity: str, label: str, kind: str, values: pd.Series, target: float = -1.0) -> dict[str, Any]:
    largest = float(values.max())
    size, name = next((each for each in _SIZES[kind] if largest >= 2 * each[0]), _SIZES[kind][-1])
    found = {"quantity": quantity, "target_mse": target, "label": label.format(name), "largest": largest}
    return found | {"unit": size, "unit_name": name}
