"""What training costs, for readers: energy per sample and worker hours against workers, with their laws.

Nothing is shown of runs on processors without an energy counter: their worker hours say what the efficiency says.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from horovod_study.analysis.study import Analysis
from horovod_study.report.figures.scaling import Side, against_workers, law_words
from horovod_study.report.grammar import Curve, Figure, Points, spread
from horovod_study.report.kit import style

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
    shown = rows[rows["setting"].isin(rows.loc[rows["workers"] > 1, "setting"])]
    curves = analysis.quantity_curves[analysis.quantity_curves["series"].isin(shown["series"])]
    curves = curves[curves["target_mse"].isna()]

    def layers(own: pd.DataFrame, panel: dict[str, Any]) -> Iterator[Any]:
        how: dict[str, Any] = {"scale": 1 / panel["unit"], "unit": panel["unit_name"]}
        law = curves[(curves["quantity"] == panel["quantity"]) & curves["series"].isin(own["series"])]
        yield Curve(rows=law, y="value", low="low", high="high", how={"linewidth": 1.5}, **how)
        yield Points(rows=own, ends=("", ""), **spread(panel["quantity"]), **how)

    laws = [(curves[curves["quantity"] == panel["quantity"]], f"{panel['label']}, ") for panel in wanted]
    told = [law_words(rows, looks, analysis.points, before) for rows, before in laws if len(rows)]
    read = " and ".join(devices(kind) for kind in rows["energy_of"].drop_duplicates() if kind)
    words = [
        "What training costs against the number of workers: energy of whole devices in the timed window, and hours, "
        "workers x training samples / throughput.",
        "lowest to highest repeat",
        f"Energy of {read}." * bool(read),
        f"Lines: the selected law with its 95 % band, dashed where extrapolated ({'; '.join(told)})." * bool(told),
    ]
    frames = [shown.assign(kind="point"), curves.assign(kind="line")]
    data = pd.concat([each for each in frames if len(each)], ignore_index=True)
    how: dict[str, Any] = {"rows": shown, "data": data, "looks": looks, "base": False}
    sides: list[Side] = [(partial(layers, panel=panel), panel["label"], {}) for panel in wanted]
    return against_workers(analysis, NAME, words, sides, title="What training costs", **how)


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


def readable(kind: str, largest: float) -> tuple[float, str]:
    """Return size and name of the unit of `J` or `hours` in which values up to `largest` are two or more."""
    return next((each for each in _SIZES[kind] if largest >= 2 * each[0]), _SIZES[kind][-1])


def _panels(analysis: Analysis) -> list[dict[str, Any]]:
    """Return what is drawn: column, label of the axis, and the unit in which it can be read."""
    rows, word = analysis.resources, hours_word(analysis)
    nothing = rows["energy_per_sample_j_median"].isna().all() and word != "GPU"
    if nothing or not (rows["workers"] > 1).any():
        return []
    columns = {"energy_per_sample_j": ("Energy per sample / {}", "J"),
               "worker_hours_per_epoch": (f"{word} {{}} per epoch", "hours")}  # fmt: skip
    panels = []
    for quantity, (label, kind) in columns.items():
        if not math.isnan(largest := float(rows[f"{quantity}_max"].max())):
            size, name = readable(kind, largest)
            panels.append({"quantity": quantity, "label": label.format(name), "unit": size, "unit_name": name})
    return panels
