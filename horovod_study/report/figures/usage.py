"""What the machine did while it trained: use and power of GPUs and cores against workers and over time."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from horovod_study.analysis.machine.resources import SLICES
from horovod_study.analysis.study import Analysis
from horovod_study.report.figures.scaling import against_workers
from horovod_study.report.grammar import Curve, Figure, Panel, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.style import series_styles
from horovod_study.text.words import plural


class Quantity(NamedTuple):
    """What a panel shows: its columns are NAME_median, _min and _max; its unit, and the words of the caption."""

    name: str
    label: str
    unit: str
    words: str
    scale: float = 1.0


_CPU = Quantity("cpu_percent_per_rank", "CPU of a rank / %", "% of a core", "CPU: of a rank and all it started")
_RSS = Quantity("rss_mb_per_rank", "Memory of a rank / MB", "MB", "memory: resident, largest of the window")
_GPU = Quantity("gpu_percent", "GPU use / %", "% GPU use", "GPU use: share of time in which any kernel ran")
_ON_GPUS = (
    *(_GPU, Quantity("gpu_power_w_per_gpu", "Power of a GPU / W", "W", "power: the GPUs' own reading"), _CPU),
    Quantity("gpu_memory_mb", "GPU memory / MB", "MB", "memory: largest of the window"),
)
_ON_CORES = (*(_CPU, _RSS), Quantity("package_power_w", "Power of processors / W", "W", "power: by their counters"))
OVER_TIME = (
    *(Quantity("step_s", "Mean step / ms", "ms", "mean step of each stretch", 1000.0), _GPU),
    *(Quantity("gpu_power_w", "Power of all GPUs / W", "W", "power: sum over the GPUs"), _CPU, _RSS),
)


def usage(analysis: Analysis) -> Figure | None:
    """Return use and power against workers; None where no run of several workers was sampled."""
    table = analysis.usage
    gpus = bool(table[["gpu_percent_median", "gpu_power_w_per_gpu_median"]].notna().any().any())
    panels = [each for each in (_ON_GPUS if gpus else _ON_CORES) if table[f"{each.name}_median"].notna().any()]
    known = table[(table["mode"] != "mixed") & table[[f"{each.name}_median" for each in panels]].notna().any(axis=1)]
    if not panels or not (known["workers"] > 1).any():
        return None

    def layers(own: pd.DataFrame, each: Quantity) -> Iterator[Any]:
        rows = own.assign(repeats=own[f"{each.name}_repeats"])
        yield Points(rows=rows, **spread(each.name), ends=("", ""), scale=each.scale, unit=each.unit, line=True)

    words = [
        "Use of the machine against workers, means over the timed window and over ranks or GPUs. "
        f"{'; '.join(panel.words for panel in panels)}.",
        "lowest to highest repeat; the ring is one worker without a communication library",
        kit.repeats_words(known),
    ]
    kept = [f"{panel.name}_{end}" for panel in panels for end in ("repeats", "median", "min", "max", "low", "high")]
    data = known[["series", "setting", "partition", "device", "workers", "nodes", "repeats", *kept]]
    title = "Use and power" if any("power" in panel.name for panel in panels) else "Use of the machine"
    sides = [(partial(layers, each=each), each.label, {"beyond": None}) for each in panels]
    return against_workers(analysis, "usage", words, sides, rows=known, data=data, base=False, title=title)


def load(analysis: Analysis) -> Figure | None:
    """Return the machine over the timed window at the largest count of each series; None where it was not sampled."""
    table = analysis.load
    panels = [each for each in OVER_TIME if table[f"{each.name}_median"].notna().any()][:4]
    known = table[(table["mode"] != "mixed") & (table["workers"] > 1)]
    if known.empty or not any(each.name != "step_s" for each in panels):
        return None
    (setting,) = kit.settings_of(known, most=1)
    top = known[known["setting"] == setting]
    for name in ("workers", "nodes"):
        top = top[top[name].fillna(0) == top[name].fillna(0).groupby(top["series"]).transform("max")]
    names = list(top.sort_values("workers", ascending=False, kind="stable")["series"].drop_duplicates()[:8])
    shown = top[top["series"].isin(names)]
    looks = series_styles(analysis.points)
    for series, workers in shown[["series", "workers"]].drop_duplicates().itertuples(index=False):
        looks[series] = replace(looks[series], label=f"{looks[series].label}, {plural(workers, 'worker')}")

    def drawn(each: Quantity) -> Panel:
        line = Curve(rows=shown, x="at_s", scale=each.scale, unit=each.unit, marked=True, **spread(each.name))
        return Panel(layers=[line], y=each.label, x="Seconds since the timed window began")

    return Figure(
        name="load",
        title="The machine over time",
        alt=f"{'; '.join(panel.label for panel in panels)}: over the timed window; the values are in its CSV file.",
        caption=f"The machine over the timed window, {setting}, at the largest worker count of each series: "
        f"{'; '.join(panel.words for panel in panels)}. The window is cut into {SLICES} stretches of equal steps. "
        "Lines: medians over repeats; bands: lowest to highest repeat. The other cells are in the CSV file.",
        data=known,
        panels=[drawn(each) for each in panels],
        looks=looks,
        shape=(2, 0.6, 0.5),
    )
