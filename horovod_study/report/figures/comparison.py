"""The figure of a comparison: the ratio of every block, its mean with the interval, and the line at 1."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import label_ticks, note_at
from horovod_study.report.kit.style import INK, QUIET
from horovod_study.text.words import plural

_HALF = 0.32  # of the width of a worker count that the blocks take


def write_comparison(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt) and the whole document (.json); return the paths.

    `document`: what was compared with its blocks (`studies.pairs`), and what `compare` says of them.
    """
    texts = {"comparison.txt": caption(document), "comparison.json": document}
    return write_result(directory, texts, {"comparison": partial(draw, document)})


def caption(document: Mapping[str, Any]) -> str:
    """Return what a reader of the figure must know."""
    counts = document["workers"]
    blocks = sorted({each["blocks"] for each in counts})
    count = " to ".join(map(str, dict.fromkeys((blocks[0], blocks[-1]))))
    found = " ".join(f"With {plural(each['workers'], 'worker')}: {each['verdict']}." for each in counts)
    how, line = "one run of A and one of B right after the other", "geometric mean"
    if any(each["turns"] for each in counts):
        how, line = (
            "one run of A and one of B that trained in turns; small: single rounds",
            "mean of the rounds' ratios",
        )
    line = f"median where blocks are outliers, else {line}," if any(each["odd_blocks"] for each in counts) else line
    return (
        f"Throughput of B ({document['B']['text']}) as a multiple of that of A ({document['A']['text']}). Dots: the "
        f"{count} blocks in the order in which they ran, each {how}. Line and bar: {line} and its 95 % interval. "
        + found
    )


def draw(document: Mapping[str, Any], width_in: float) -> Figure:
    """Return the figure; call it inside style()."""
    figure = Figure(figsize=(width_in, 0.5 * width_in), layout="constrained")
    axes, labels, kept = figure.subplots(), [], [0.99, 1.01]
    named: list[tuple[float, float]] = []
    axes.axhline(1.0, color=QUIET, linewidth=1.0, zorder=1)
    for place, each in enumerate(document["workers"]):
        ratios, odd = np.array(each["ratios"]), "typical_" if each["odd_blocks"] else ""
        shown, *ends = (each[f"{odd}{name}"] for name in ("ratio", "low", "high"))
        color = QUIET if not each["resolved"] else "#009e73" if shown > 1 else "#d55e00"
        across = place + np.linspace(-_HALF, _HALF, len(ratios)) * (len(ratios) > 1)
        rounds = [block.get("rounds") for block in document["blocks"] if block["workers"] == each["workers"]]
        wide = 0.7 * _HALF / len(ratios)
        for x, made in zip(across, [made for made in rounds if made and made["A"]], strict=False):
            around = np.linspace(x - wide, x + wide, len(made["A"]))
            single = np.divide(made["B"], made["A"])
            axes.plot(around, single, ls="none", marker=".", markersize=2, color=QUIET, alpha=0.5, zorder=1)
        axes.plot(across, ratios, ls="none", marker="o", markersize=3.6, color=color, alpha=0.55, zorder=2)
        edges = (place - _HALF - 0.06, place + _HALF + 0.06)
        axes.plot(edges, (shown, shown), color=color, linewidth=1.8, zorder=3, solid_capstyle="butt")
        if None not in ends:
            axes.fill_between(edges, *ends, color=color, alpha=0.18, linewidth=0, zorder=1)
        away, middle = np.abs(ratios - np.median(ratios)), float(np.median(ratios))
        near = away <= (reach := 6 * float(np.median(away)) + 0.05)
        kept += [*ratios[near], *(min(max(end, middle - reach), middle + reach) for end in (shown, *ends) if end)]
        named += zip(across[~near], ratios[~near], strict=True)
        word = f"B {'faster' if shown > 1 else 'slower'} by {abs(shown - 1) * 100:.1f} %"
        labels.append(f"{plural(each['workers'], 'worker')}\n{word if each['resolved'] else 'not resolved'}")
    low, high = min(kept) - 0.08 * np.ptp(kept), max(kept) + 0.08 * np.ptp(kept)
    for x, ratio in ((x, ratio) for x, ratio in named if not low <= ratio <= high):  # so far out that it is only named
        edge = (x, high if ratio > high else low)
        axes.plot(*edge, marker="^" if ratio > high else "v", markersize=5, color=INK, clip_on=False, zorder=4)
        note_at(axes, f"{(ratio - 1) * 100:+,.0f} %", edge, (6, -5 if ratio > high else 5), va="center", zorder=4)
    axes.set(ylim=(low, high), xlim=(-0.6, len(labels) - 0.4), ylabel="B's throughput against A's")
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", size=0)
    steps = MaxNLocator(7, steps=[1, 2, 2.5, 5, 10])
    label_ticks(axes.yaxis, steps, lambda value: f"{(value - 1) * 100:+.4g} %" if value != 1 else "equal")
    axes.set_title(f"A: {document['A']['text']}\nB: {document['B']['text']}", color=INK)
    return figure
