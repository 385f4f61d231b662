"""Figures of what the sensors of a host said over the time of a run, and of power and energy against workers."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from horovod_study.analysis.machine.system import PHASES, UsagePanel, panels, phases, summary
from horovod_study.records import SystemSamples
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import legend

NAME = "system"

_SHADES = {
    "start-up": (style.SHADE, ""),
    "warm-up": (style.GRID, ""),
    "timed steps": ("none", ""),
    "evaluation": ("#f4e4bf", ""),
    "break": ("#e9cdd8", ""),
    "end": (style.SHADE, "////"),
}
_LEGEND_ROWS = 5


def figure(samples: SystemSamples, table: pd.DataFrame, width_in: float) -> Figure:
    """Return the figure of one host over time, phases of the run (`analysis.system.phases`) shaded; inside style()."""
    drawn = panels(samples)
    narrow = width_in < style.NARROW_IN
    # On a narrow figure name and legend of a panel are above it.
    lines = [1 + math.ceil(len(panel.traces) / _columns(panel, width_in)) for panel in drawn if narrow]
    height_in = max(1, len(drawn)) * 0.78 + sum(1.4 * style.small() / 72 * each for each in lines) + 0.5
    canvas = Figure(figsize=(width_in, height_in), layout="constrained")
    rows = canvas.subplots(max(1, len(drawn)), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(rows, drawn, strict=False):
        _draw(axes, panel, table, width_in)
    times = [samples.rows["at_s"].min(), samples.rows["at_s"].max(), table["begin_s"].min(), table["end_s"].max()]
    seen = [float(each) for each in times if np.isfinite(each)] or [0.0]
    rows[-1].set_xlim(min(seen), max(seen) if max(seen) > min(seen) else min(seen) + 1.0)
    rows[-1].set_xlabel("Seconds since the first step")
    present = [phase for phase in PHASES if (table["phase"] == phase).any()]
    if present:
        edge: dict[str, Any] = {"edgecolor": style.QUIET, "linewidth": 0.5}
        shades = [(phase, *_SHADES[phase]) for phase in present]
        legend(
            canvas,
            [Patch(facecolor=color, hatch=hatch, **edge, label=phase) for phase, color, hatch in shades],
            width_in,
        )
    canvas.align_ylabels(list(rows))
    return canvas


def _draw(axes: Axes, panel: UsagePanel, table: pd.DataFrame, width_in: float) -> None:
    for each in table.to_dict("records"):
        color, hatch = _SHADES[each["phase"]]
        if color != "none":
            how: dict[str, Any] = {"facecolor": color, "edgecolor": style.GRID, "linewidth": 0, "hatch": hatch}
            axes.axvspan(each["begin_s"], each["end_s"], **how, zorder=0)
    loud = [trace for trace in panel.traces if not trace.quiet]
    looks = {look.label: look for look in style.looks_in_order([trace.label for trace in loud])}
    for trace in panel.traces:
        look = looks.get(trace.label)
        single = int(np.isfinite(trace.values).sum()) == 1
        axes.plot(
            trace.at_s,
            trace.values,
            drawstyle="steps-pre" if trace.over_interval else "default",
            color=style.QUIET if look is None else look.color,
            linestyle=(0, (1.2, 1.2)) if look is None else look.dash,
            linewidth=1.0 if look is None else 1.3,
            marker="." if single else None,
            label=trace.label,
            zorder=2 if look is None else 3,
        )
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", nbins=3)
    if width_in < style.NARROW_IN:  # names and legend above the panel, or they would leave it no room
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.1}
        how = {"title": panel.label.replace("\n", " "), "alignment": "left", "handlelength": 1.2}
        axes.legend(**place, **how, ncols=_columns(panel, width_in), columnspacing=0.8, labelcolor=style.INK)
        return
    axes.set_ylabel(panel.label, rotation=0, ha="right", va="center")
    crowd = len(panel.traces) > _LEGEND_ROWS
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        handlelength=1.2 if crowd else 1.6,
        ncols=1 + (len(panel.traces) - 1) // _LEGEND_ROWS,
        columnspacing=0.8,
        labelcolor=style.INK,
    )


def _columns(panel: UsagePanel, width_in: float) -> int:
    wide_in = max((style.text_in(trace.label) for trace in panel.traces), default=0.0) + 0.32
    return max(1, min(len(panel.traces), int(0.8 * width_in / wide_in)))


def caption(samples: SystemSamples) -> str:
    """Return what a reader of the figure must know: where from, how often, and which sensors are missing and why."""
    meta = samples.meta
    ranks, interval_s = len(meta["ranks"]), float(meta["interval_s"])
    reasons: dict[str, list[str]] = {}
    for name, reason in meta["missing"].items():
        reasons.setdefault(str(reason), []).append(_WORDS.get(name, name))
    missing = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    devices = ", ".join(f"{part}: {name}" for part, name in meta["devices"].items())
    return " ".join(
        [
            f"Host {samples.host} during the run, sampled every {interval_s:g} s: the process trees of {ranks} "
            f"rank{'s' * (ranks != 1)} and the host as a whole. CPU is in per cent of one core, MB are 1e6 bytes. "
            "Stepped lines are means since the sample before, straight ones readings of a moment.",
            *([f"Devices: {devices}."] if devices else []),
            *([f"Not shown, for lack of a sensor: {missing}."] if missing else []),
        ]
    )


_WORDS = {
    "rdma": "InfiniBand traffic",
    "gpu": "GPU use, memory, power and clocks",
    "package": "energy and power of the processors",
    "pss_mb": "proportional memory",
    "disk": "disk bytes",
    "children": "child processes",
}


def write_system(
    directory: Path,
    samples: Mapping[str, SystemSamples],
    steps: pd.DataFrame,
    evaluations: Sequence[Mapping[str, float]],
    *,
    first_timed: int,
    look: style.FigureFormat = style.TEXT,
) -> list[Path]:
    """Write one figure per host (system-HOST.pdf, .svg, .png), its caption (.txt) and the table of all (system.csv)."""
    paths = []
    for host, each in samples.items():
        at_s = each.rows["at_s"]
        table = phases(steps, evaluations, first_timed=first_timed, first_s=float(at_s.min()), last_s=float(at_s.max()))
        name = f"{NAME}-{host}"
        texts = {f"{name}.txt": caption(each), f"{name}.csv": summary({host: each}, table)}
        paths += write_result(directory, texts, {name: partial(figure, each, table)}, look=look)
    return paths
