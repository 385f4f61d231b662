"""What takes the time of a step, what the machine could do and did, and what training costs against workers.

Nothing is shown of runs on processors without an energy counter: their worker hours say what the efficiency says.
"""

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.analysis.machine import resources as machine
from horovod_study.analysis.machine.network import restored
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.steps.breakdown import HOLDS_SYNC, IDEAL, MEASURED, hiding
from horovod_study.analysis.study import Analysis
from horovod_study.records import RunSideFiles
from horovod_study.report import grammar as kit
from horovod_study.report.figures.bench import drawings_of
from horovod_study.report.figures.scaling import Side, against_workers, law_words
from horovod_study.report.grammar import Curve, Figure, Panel, Points, of_bars, spread, write_files
from horovod_study.report.kit import style
from horovod_study.report.kit.style import INK, LAPS, LapStyle, series_styles
from horovod_study.text.numbers import MINUS
from horovod_study.text.words import plural

_HIDDEN = {"hatch": "\\\\\\\\\\\\", "ink": LAPS["sync"].color, "edge": LAPS["sync"].color}
_LAPS = {
    name: each
    for lap, look in LAPS.items()
    for name, each in (
        (lap, look),
        (f"{lap} and sync", replace(look, label=f"{lap} with hidden sync", **_HIDDEN)),
    )
}
GROWTH = {
    "computing": LapStyle(label="slower computing", color="#d4ba6e", ink=INK),
    "hidden": LapStyle(label="computing with hidden sync", color="#c9a3b4", ink=INK),
    "skew": LapStyle(label="skew (last worker)", color="#e69f00", ink=INK),
    "transfer": LapStyle(label="transfer", color="#56b4e9", ink=INK),
    "packing": LapStyle(label="packing, norm", color="#e3a6be", ink=INK),
    "runtime": LapStyle(label="cycle, negotiation", color="#b3305f", ink="#ffffff"),
    "exchange": LapStyle(label="transfer and runtime", color="#b3305f", ink="#ffffff"),
    "waiting": LapStyle(label="waiting", color="#b3305f", ink="#ffffff"),
    "other": LapStyle(label="rest of sync", color="#ffffff", ink=INK, hatch="\\\\\\\\"),
    "unexplained": LapStyle(label="unexplained", color="#ffffff", ink=INK, hatch="//////"),
}  # what more workers add to a step, from the bottom of a bar to its top


def breakdown(analysis: Analysis) -> Figure | None:
    parts, styles = analysis.breakdown, series_styles(analysis.points)
    if parts.empty:
        return None
    settings = analysis.points.drop_duplicates("series").set_index("series")["setting"]
    rows = parts[parts["lap"] != "step"].assign(setting=parts["series"].map(settings))
    if (analysis.points["backend"] == "serial").all() and settings.is_unique:  # then settings stand side by side
        rows = rows.assign(series=rows["setting"], setting="")
    several = parts[(parts["lap"] == "sync") & (parts["workers"] > 1)].set_index(["series", "workers", "nodes"])
    holders = several["note"].map(HOLDS_SYNC)
    held = holders.reindex(rows.set_index(["series", "workers", "nodes"]).index).to_numpy() == rows["lap"]
    rows = rows.assign(part=rows["lap"].where(~held, rows["lap"] + " and sync"))
    caption = (
        "Mean ms per step over the timed window, all workers and all repeats. Waiting: from the end of a worker's own "
        "backward pass to the averaged gradients; unexplained: what no part covers."
    )
    for lap in hiding(parts):
        names = ", ".join(styles[series].label for series in holders[holders == lap].index.unique("series"))
        caption += f" {names}: communication runs inside {lap} and cannot be separated (hatched)."
    return Figure(
        name="breakdown",
        title="Where the time of a step goes",
        caption=f"{caption} What has no room is in the CSV file.",
        data=parts[["series", "workers", "nodes", "repeats", "lap", "mean_s", "share", "note"]],
        looks=styles,
        **of_bars(rows, "mean_s", "Mean ms per step", parts=_LAPS, loud="sync", scale=1e3, unit="ms"),
    )


def losses(analysis: Analysis) -> Figure | None:
    table, kind = analysis.losses, analysis.provenance["baseline"]
    if table.empty:
        return None
    step = analysis.breakdown[analysis.breakdown["lap"] == "step"].set_index(["series", "workers", "nodes"])
    ends: dict[str, Any] = {"low": f"minus_{kind}_low_s", "high": f"minus_{kind}_high_s"}
    rows = table[~table["part"].isin([IDEAL, MEASURED])].join(step[[*ends.values()]], on=["series", "workers", "nodes"])
    parts, base = set(rows["part"]), baseline_words(analysis.points, kind, plain="one plain PyTorch worker")
    apart = " Transfer and runtime were not measured separately in these runs." * bool(parts - {"hidden"})
    if "runtime" in parts:
        apart = (
            " Skew: waiting for the last worker. Transfer: one raw all-reduce of the gradients in the same job (10 % "
            "quantile); runtime: the same through the library with aligned ranks, less it."
        )
    return Figure(
        name="losses",
        title="What more workers add to a step",
        caption=f"T(N) {MINUS} T(1) by part, means per step over the timed window, ranks and repeats; T(1): the step "
        f"of {base} (for a fixed global batch divided by the workers). Numbers: sums of all parts; strokes: their "
        f"95 % intervals, where there are three repeats.{apart}",
        data=table,
        looks=series_styles(analysis.points),
        **of_bars(rows, "seconds", f"T(N) {MINUS} T(1) / ms", parts=GROWTH, scale=1e3, unit="ms", **ends),
    )


def machines(analysis: Analysis) -> list[Figure]:
    """Return roofline and network of each machine whose bench.json the analysis was given."""
    found = [drawings_of(restored(each, source="network.json")) for each in analysis.network["machines"]]
    return [
        replace(each, name=f"{each.name}-{place}") if len(found) > 1 else each
        for place, own in enumerate(found, 1)
        for each in own
    ]


Quantity = namedtuple("Quantity", "name label unit words scale", defaults=(1.0,))
"""What a panel shows: its columns are NAME_median, _min and _max; its unit, and the words of the caption."""


def resources(analysis: Analysis) -> Figure | None:
    """Return the figure of energy and worker hours; None where no energy was recorded and no run used a GPU."""
    rows, word, looks = analysis.resources, hours_word(analysis), style.series_styles(analysis.points)
    wanted = [
        Quantity("energy_per_sample_j", "Energy per sample / mJ", "mJ", "", 1e3),
        Quantity("worker_hours_per_epoch", f"{word} minutes per epoch", "minutes", "", 60.0),
    ]
    known = [each for each in wanted if rows[f"{each.name}_max"].notna().any()]
    if not known or (known[0] is not wanted[0] and word != "GPU") or not (rows["workers"] > 1).any():
        return None
    shown = rows[rows["setting"].isin(rows.loc[rows["workers"] > 1, "setting"])]
    curves = analysis.quantity_curves[analysis.quantity_curves["series"].isin(shown["series"])]
    curves = curves[curves["target_mse"].isna()]

    def layers(own: pd.DataFrame, panel: Quantity) -> Iterator[Any]:
        how: dict[str, Any] = {"scale": panel.scale, "unit": panel.unit}
        law = curves[(curves["quantity"] == panel.name) & curves["series"].isin(own["series"])]
        yield Curve(rows=law, y="value", low="low", high="high", how={"linewidth": 1.5}, **how)
        yield Points(rows=own, ends=("", ""), **spread(panel.name), **how)

    laws = [(curves[curves["quantity"] == panel.name], f"{panel.label}, ") for panel in known]
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
    sides: list[Side] = [(partial(layers, panel=panel), panel.label, {}) for panel in known]
    return against_workers(analysis, "resources", words, sides, title="What training costs", **how)


def hours_word(analysis: Analysis) -> str:
    """Return what a worker's hours are: `GPU` where all runs trained on GPUs, else `Worker`."""
    devices = set(analysis.resources["device"])
    return "GPU" if devices and not devices & {"", "cpu"} else "Worker"


def devices(kinds: str) -> str:
    """Return `GPUs and processors` for the kinds of devices `gpu and package`."""
    return kinds.replace("gpu", "GPUs").replace("package", "processors") or "the devices that were read"


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
        caption=f"The machine over the timed window, {setting}, at the largest worker count of each series: "
        f"{'; '.join(panel.words for panel in panels)}. The window is cut into {machine.SLICES} stretches of equal "
        "steps. Lines: medians over repeats; bands: lowest to highest repeat. The other cells are in the CSV file.",
        data=known,
        panels=[drawn(each) for each in panels],
        looks=looks,
        shape=(2, 0.6, 0.5),
    )


def write_system_of(beside: RunSideFiles, directory: Path, *, look: style.FigureFormat = style.TEXT) -> list[Path]:
    """Write the figure of each host of a run that was sampled: system-HOST.pdf, .svg, .png, .txt, .csv."""
    made = [each for samples in beside.system.values() if (each := host_over_time(samples)).panels]
    return write_files(made, directory, look=look) if made else []


def host_over_time(samples: Any) -> Figure:
    """Return one host over the run, from its first sample on; `samples`: of `records.read_system`."""
    rows, begin_s = machine.over_time(samples), float(samples.rows["at_s"].min())
    rows["at_s"] -= begin_s
    looks, panels = style.looks_in_order(list(rows["line"].unique())), []
    for label, own in list(rows.groupby("panel", sort=False))[: kit.MAX_PANELS]:
        how = {"marker": ".", "markersize": 2, "drawstyle": "steps-pre"}  # of the time since the sample before
        line = Curve(rows=own, y="value", x="at_s", by="line", how=how, marked=True)
        panels.append(Panel(layers=[line], y=f"{label}", x="Seconds since the first sample"))
    missing = "; ".join(f"{name}: {reason}" for name, reason in samples.meta["missing"].items())
    return Figure(
        name=f"system-{samples.host}",
        title=f"Host {samples.host} over time",
        caption=f"Host {samples.host} during the run, sampled every {float(samples.meta['interval_s']):g} s: the "
        f"process trees of {plural(len(samples.meta['ranks']), 'rank')} and the host as a whole. The first step of the "
        f"run began at {0.0 - begin_s:.3g} s. MB are 1e6 bytes." + f" Without a sensor: {missing}." * bool(missing),
        data=rows,
        panels=panels,
        looks={look.label: look for look in looks},
        shape=(2, 0.5, 0.4),
    )
