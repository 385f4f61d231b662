"""What a simulation found: a table for the terminal, CSV, JSON, and speedup, efficiency and parts against workers.

It computes nothing: everything shown is a column of the table that analysis/simulate/scaling.py made.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator

from horovod_study.analysis.simulate.calibration import Calibration
from horovod_study.analysis.simulate.step import PARTS
from horovod_study.records import facts, finite
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import amount, milliseconds, prefixed
from horovod_study.text.tables import NOTHING, table_of, to_lines

NAME = "simulation"
LOOKS = {
    "compute": style.LapStyle(label="computing", color="#8fa5b8", ink=style.INK),
    "slowest": style.LapStyle(label="waiting for the slowest", color="#6e8b74", ink=style.INK),
    "cycle": style.LapStyle(label="waiting for the cycle", color="#e69f00", ink=style.INK),
    "runtime": style.LapStyle(label="runtime and negotiation", color="#d4ba6e", ink=style.INK),
    "latency": style.LapStyle(label="latency of the all-reduce", color="#cc79a7", ink=style.INK),
    "transfer": style.LapStyle(label="transfer of the gradients", color="#b3305f", ink=style.INK),
}


def content(table: pd.DataFrame, calibration: Calibration, doubts: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values, None for what is not known: constants, scenarios -> rows, doubts."""
    scenarios: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        scenarios.setdefault(str(row["scenario"]), []).append(
            {str(key): finite(value) for key, value in row.items() if key != "scenario"}
        )
    return {
        "constants": constants(calibration),
        "sources": dict(calibration.sources),
        "scenarios": scenarios,
        "doubts": list(doubts),
    }


def constants(calibration: Calibration) -> dict[str, Any]:
    """Return the constants of the baseline as plain values."""
    it = calibration.scenario
    return {
        **facts(it, "scaling", "batch"),
        "compute_s": it.compute.mean_s,
        "compute_steps": it.compute.steps,
        "compute_cv": it.compute.cv
        if it.compute.times_s is None
        else float(np.std(it.compute.times_s) / it.compute.mean_s),
        "beside": it.beside,
        "crowding": {str(k): factor for k, factor in it.crowding.items()},
        "compute_fixed_share": it.fixed_share if it.batch_measured else None,
        **facts(it, "gradient_bytes", "buckets", "backward_share", "algorithm"),
        "workers_per_node": it.network.workers_per_node,
        **{
            kind: {"alpha_s": float(link.alpha_s), "bytes_per_s": float(link.bytes_per_s)}
            for kind, link in (("intra", it.network.intra), ("inter", it.network.inter))
        },
        "levels": finite(it.network.levels),
        "overhead_s": float(it.runtime.overhead_s),
        **facts(it.runtime, "cycle_s", "negotiation", "fusion_bytes"),
        "relative_standard_errors": facts(it.spread, "compute", "alpha", "bandwidth"),
    }


def text(table: pd.DataFrame, calibration: Calibration) -> str:
    """Return the constants and a table per scenario for a terminal."""
    blocks = ["\n".join(_constant_lines(calibration))]
    names = list(dict.fromkeys(table["scenario"]))
    known = bool(table["step_low_s"].notna().any())
    for name in names:
        own = table[table["scenario"] == name]
        blocks.append("\n".join(_table_lines(str(name), own, baseline=name == names[0], interval=known)))
    notes = ["ms of a step: parts add up to it; " + "; ".join(f"{part}: {LOOKS[part].label}" for part in PARTS[1:])]
    notes.append("efficiency: of one worker that computes alone" + ("; [95 % interval]" if known else ""))
    if bool((table["hidden_s"] > 0).any()):
        notes.append("hidden: communication behind backward, not part of the step")
    blocks.append("\n".join(notes))
    return "\n\n".join(blocks)


def _constant_lines(calibration: Calibration) -> list[str]:
    it, sources = calibration.scenario, calibration.sources
    scatter = (
        "no scatter"
        if it.compute.times_s is None and it.compute.cv == 0
        else (f"{it.compute.steps:,} times" if it.compute.steps else f"cv {it.compute.cv:g}")
    )
    lines = [
        f"{it.scaling} scaling, batch {it.batch} per worker"
        + (" of the smallest count" if it.scaling == "strong" else "")
        + f", {it.network.workers_per_node} worker{'s' * (it.network.workers_per_node > 1)} per node",
        f"  computing    {_ms(it.compute.mean_s)} ms ({scatter}); {sources.get('computing', 'as given')}",
    ]
    if "crowding" in sources:
        lines.append(f"  on one node  {sources['crowding']}")
    if "batch" in sources:
        lines.append(f"  batch        {sources['batch']}")
    lines.append(
        f"  gradients    {amount(it.gradient_bytes)} "
        + ("after backward" if it.buckets == 1 else f"in {it.buckets} buckets during backward")
        + f", {it.algorithm}; {sources.get('gradients', '')}"
    )
    network = it.network
    same = (network.intra.alpha_s, network.intra.bytes_per_s) == (network.inter.alpha_s, network.inter.bytes_per_s)
    shown = (("alpha, beta", network.inter),) if same else (("in a node", network.intra), ("between", network.inter))
    for label, link in shown:
        lines.append(f"  {label:<12} {float(link.alpha_s) * 1e6:.3g} us, {float(link.bytes_per_s) / 1e9:.3g} GB/s")
    lines[-1] += f"; {sources.get('network', '')}"
    runtime = it.runtime
    if float(runtime.overhead_s) or runtime.cycle_s or runtime.negotiation != "none":
        lines.append(
            f"  runtime      {_ms(float(runtime.overhead_s))} ms a message, cycle {runtime.cycle_s * 1e3:g} ms, "
            f"negotiation {runtime.negotiation}; {sources.get('overhead', 'as given')}"
        )
    return lines


def _table_lines(name: str, own: pd.DataFrame, *, baseline: bool, interval: bool) -> list[str]:
    parts = [part for part in PARTS if part in ("compute", "slowest") or bool((own[f"{part}_s"] > 0).any())]
    hidden = bool((own["hidden_s"] > 0).any())
    head = ["workers", "nodes", "batch", "step ms", *(["95 %"] if interval else []), "samples/s", "efficiency"]
    head += [*parts, *(["all-reduce 95 %"] if interval else []), *(["hidden"] if hidden else [])]
    head += [] if baseline else ["x baseline", *(["95 %"] if interval else [])]
    rows = []
    for row in own.to_dict("records"):
        cells = [f"{row['workers']:,}", f"{row['nodes']:,}", f"{row['batch']:,}", _ms(row["step_s"])]
        cells += [_range(row["step_low_s"], row["step_high_s"], _ms)] if interval else []
        rate, share = row["samples_per_s"], 100 * row["efficiency"]
        cells += [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}", f"{share:{'.1f' if share >= 9.95 else '.2g'}} %"]
        cells += [_ms(row[f"{part}_s"]) for part in parts]
        cells += [_range(row["allreduce_low_s"], row["allreduce_high_s"], _ms)] if interval else []
        cells += [_ms(row["hidden_s"])] if hidden else []
        if not baseline:
            cells.append(_times(row["of_baseline"]))
            cells += [_range(row["of_baseline_low"], row["of_baseline_high"], _times)] if interval else []
        rows.append(cells)
    return [name, *to_lines(table_of(head, rows, texts=()))]


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    if abs(value) < 1e-6:
        return "0"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _range(low: float, high: float, write: Any) -> str:
    return f"[{write(low)}, {write(high)}]" if math.isfinite(low) and math.isfinite(high) else NOTHING


def _times(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def write_simulation(
    table: pd.DataFrame, calibration: Calibration, doubts: Sequence[str], directory: Path, *, look: style.FigureFormat
) -> list[Path]:
    """Write simulation.csv, .json, .txt and the figure (.pdf, .svg, .png) with its caption; return the paths."""
    texts = {
        f"{NAME}.csv": table,
        f"{NAME}.json": content(table, calibration, doubts),
        f"{NAME}_table.txt": [text(table, calibration), *(f"doubt: {each}" for each in doubts)],
        f"{NAME}.txt": caption(table, calibration),
    }
    return write_result(directory, texts, {NAME: partial(draw, table)}, look=look)


def caption(table: pd.DataFrame, calibration: Calibration) -> str:
    """Return what a reader of the figure must know."""
    it = calibration.scenario
    several = table["scenario"].nunique() > 1
    known = bool(table["step_low_s"].notna().any())
    fixed = f"{it.batch} samples per worker" if it.scaling == "weak" else "a fixed global batch"
    words = [
        f"Simulated, not measured: {it.scaling} scaling with {fixed}, {it.network.workers_per_node} workers per node, "
        f"gradients of {it.gradient_bytes:,.0f} bytes.",
        "Speedup is over one worker that computes alone; dotted: N workers, N times as fast. Efficiency is speedup / N"
        + (
            ", with the 95 % interval of the first line: of its constants, and of all-reduces beyond what was measured."
            if known
            else "."
        ),
        "Bars: what the mean step is made of" + (", of the first scenario" if several else "") + ".",
        f"Computing from {calibration.sources.get('computing', 'given constants')}; network from "
        f"{calibration.sources.get('network', 'given constants')}.",
    ]
    return " ".join(words)


def draw(table: pd.DataFrame, width_in: float) -> Figure:
    """Return speedup, efficiency and the parts of the step against workers; call it inside style()."""
    names = [str(name) for name in dict.fromkeys(table["scenario"])]
    looks = [
        replace(
            look,
            label=style.folded(look.label, width_in - 0.6),
            dash="-" if place == 0 else style.EXTRAPOLATED_DASH if look.dash == "-" else look.dash,
        )
        for place, look in enumerate(style.looks_in_order(names))
    ]
    narrow = width_in < style.NARROW_IN
    few = names if len(names) > 1 else []
    entry_in = 1.4 * style.small() / 72
    broken = sum(style.folded(name, width_in - 0.6).count("\n") + 1 for name in few)
    heights = [(2 if narrow else 1) * (0.62 if narrow else 0.45) * width_in + entry_in * broken, 0.48 * width_in + 0.6]
    figure = Figure(figsize=(width_in, sum(heights)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=heights)
    upper, lower = halves
    left, right = upper.subplots(*((2, 1) if narrow else (1, 2)))
    counts = sorted(set(table["workers"]))
    left.plot(counts, counts, color=style.QUIET, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=1)
    for place, (name, look) in enumerate(zip(names, looks, strict=True)):
        own = table[table["scenario"] == name].sort_values("workers")
        how = {**kit.marker(look), "markersize": 3.2, "linewidth": 1.0 if place else 1.3, "zorder": 3}
        for axes, column in ((left, "speedup"), (right, "efficiency")):
            kit.line_of(axes, own["workers"], own[column], look, **how)
        if place == 0 and bool(own["efficiency_low"].notna().all()):
            kit.band_of(right, own["workers"], (own["efficiency_low"], own["efficiency_high"]), look, alpha=0.18)
    left.set(yscale="log", title="Speedup")
    right.set(title="Efficiency", ylim=(0, max(1.02, 1.05 * float(table["efficiency"].max()))))
    kit.label_ticks(right.yaxis, right.yaxis.get_major_locator(), lambda value: f"{100 * value:.0f} %")
    kit.label_ticks(left.yaxis, LogLocator(base=10, numticks=6), partial(prefixed, gap=""))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="Workers")
        places = FixedLocator(list(counts)) if len(counts) <= 6 else LogLocator(base=10, numticks=7)
        kit.label_ticks(axes.xaxis, places, partial(prefixed, gap=""))
    if len(names) > 1:
        handles = [kit.entry(look, markersize=3.6, linewidth=1.0) for look in looks]
        widest_in = max(style.text_in(str(handle.get_label())) for handle in handles) + 0.5
        upper.legend(handles=handles, loc="outside lower center", ncols=max(1, min(2, int(width_in / widest_in))))
    _bars(lower, table[table["scenario"] == names[0]].sort_values("workers"), width_in)
    return figure


def _bars(figure: Any, own: pd.DataFrame, width_in: float) -> None:
    axes: Axes = figure.subplots()
    widest_in = max(style.text_in(milliseconds(each)) for each in own["step_s"]) + 0.06
    most = max(2, min(16, int(0.85 * width_in / widest_in)))
    if len(own) > most:  # the first, the last and those between at equal distances
        own = own.iloc[np.unique(np.linspace(0, len(own) - 1, most).round().astype(int))]
    places, bottom = np.arange(len(own)), np.zeros(len(own))
    shown = [part for part in PARTS if part == "compute" or bool((own[f"{part}_s"] > 0).any())]
    for part in shown:
        height = 1e3 * own[f"{part}_s"].to_numpy()
        face = LOOKS[part].color
        axes.bar(places, height, bottom=bottom, width=0.72, color=face, edgecolor=style.PAPER, linewidth=0.4, zorder=2)
        bottom = bottom + height
    for place, row, top in zip(places, own.to_dict("records"), bottom, strict=True):
        kit.note_at(axes, milliseconds(row["step_s"]), (place, top), (0, 2), ha="center", color=style.INK)
    axes.set_xticks(places, [prefixed(each, gap="") for each in own["workers"]])
    axes.set(title="Parts of the mean step (ms)", xlabel="Workers", ylim=(0, 1.1 * float(bottom.max())))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    handles = [kit.swatch(LOOKS[part]) for part in shown]
    widest_in = max(style.text_in(str(handle.get_label())) for handle in handles) + 0.5
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, min(4, int(width_in / widest_in))))
