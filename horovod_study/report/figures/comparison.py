"""The figure of a comparison: the ratio of every block, its mean with the interval, and the line at 1."""

from collections.abc import Mapping, Sequence
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

NAME = "comparison"
_HALF = 0.32  # of the width of a worker count that the blocks take


def write_comparison(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt) and the whole document (.json); return the paths.

    `document`: what was compared with its blocks (`studies.pairs`), and what `compare` says of them.
    """
    texts = {f"{NAME}.txt": caption(document), f"{NAME}.json": document}
    return write_result(directory, texts, {NAME: partial(draw, document)})


def caption(document: Mapping[str, Any]) -> str:
    """Return what a reader of the figure must know."""
    counts = document["workers"]
    blocks = sorted({each["blocks"] for each in counts})
    found = " ".join(f"With {plural(each['workers'], 'worker')}: {each['verdict']}." for each in counts)
    how, line = "one run of A and one of B right after the other", "geometric mean"
    if any(each["turns"] for each in counts):
        how, line = (
            "one run of A and one of B that trained in turns; small: single rounds",
            "mean of the rounds' ratios",
        )
    if any(each["odd_blocks"] for each in counts):
        line = f"median where blocks are outliers, else {line},"
    return (
        f"Throughput of B ({document['B']['text']}) as a multiple of that of A ({document['A']['text']}). Dots: the "
        f"{' to '.join(map(str, dict.fromkeys((blocks[0], blocks[-1]))))} blocks in the order in which they ran, each "
        f"{how}. Line and bar: {line} and its 95 % interval. {found}"
    )


def draw(document: Mapping[str, Any], width_in: float) -> Figure:
    """Return the figure; call it inside style()."""
    counts = document["workers"]
    figure = Figure(figsize=(width_in, 0.5 * width_in), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color=QUIET, linewidth=1.0, zorder=1)
    low, high = _range(counts)
    for place, each in enumerate(counts):
        color, ratios = _color(each), each["ratios"]
        across = np.linspace(place - _HALF, place + _HALF, len(ratios)) if len(ratios) > 1 else np.array([place])
        for x, rounds in zip(across, _rounds(document, each), strict=False):
            wide = 0.7 * _HALF / len(ratios)
            around = np.linspace(x - wide, x + wide, len(rounds))
            axes.plot(around, rounds, ls="none", marker=".", markersize=2, color=QUIET, alpha=0.5, zorder=1)
        axes.plot(across, ratios, ls="none", marker="o", markersize=3.6, color=color, alpha=0.55, zorder=2)
        for x, ratio in zip(across, ratios, strict=True):
            if not low <= ratio <= high:  # so far out that it is only named
                edge, sign = (high, -1) if ratio > high else (low, 1)
                axes.plot(x, edge, marker="v^"[ratio > high], markersize=5, color=color, clip_on=False, zorder=4)
                how: dict[str, Any] = {"ha": "left", "va": "center", "size": 7.5, "color": color, "zorder": 4}
                note_at(axes, f"{(ratio - 1) * 100:+,.0f} %", (x, edge), (6, 5 * sign), **how)
        middle, *ends = _shown(each)
        edges = (place - _HALF - 0.06, place + _HALF + 0.06)
        axes.plot(edges, (middle, middle), color=color, linewidth=1.8, zorder=3, solid_capstyle="butt")
        if None not in ends:
            axes.fill_between(edges, *ends, color=color, alpha=0.18, linewidth=0, zorder=1)
    axes.set(ylim=(low, high), xlim=(-0.6, len(counts) - 0.4), ylabel="B's throughput against A's")
    axes.set_xticks(range(len(counts)), [_label(each) for each in counts])
    axes.tick_params(axis="x", size=0)
    steps = MaxNLocator(7, steps=[1, 2, 2.5, 5, 10])
    label_ticks(axes.yaxis, steps, lambda value: f"{(value - 1) * 100:+.4g} %" if value != 1 else "equal")
    axes.set_title(f"A: {document['A']['text']}\nB: {document['B']['text']}", color=INK)
    return figure


def _shown(each: Mapping[str, Any]) -> list[Any]:
    """Return the ratio with the ends of its interval: the mean, or what is typical where blocks are outliers."""
    return [each[f"typical_{name}" if each["odd_blocks"] else name] for name in ("ratio", "low", "high")]


def _rounds(document: Mapping[str, Any], each: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the ratios of the rounds of each block of a worker count; none where they were not made in turns."""
    blocks = [block.get("rounds") for block in document["blocks"] if block["workers"] == each["workers"]]
    return [np.divide(rounds["B"], rounds["A"]) for rounds in blocks if rounds and rounds["A"]]


def _range(counts: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the ends of the scale: they hold what is near the median of its worker count, and the interval there."""
    kept = [1 - 0.01, 1 + 0.01]
    for each in counts:
        ratios = np.array(each["ratios"])
        middle = float(np.median(ratios))
        reach = 6 * float(np.median(np.abs(ratios - middle))) + 0.05
        kept += ratios[np.abs(ratios - middle) <= reach].tolist()
        kept += [min(max(end, middle - reach), middle + reach) for end in _shown(each) if end is not None]
    room = 0.08 * (max(kept) - min(kept))
    return min(kept) - room, max(kept) + room


def _color(each: Mapping[str, Any]) -> str:
    return QUIET if not each["resolved"] else "#009e73" if _shown(each)[0] > 1 else "#d55e00"


def _label(each: Mapping[str, Any]) -> str:
    ratio = _shown(each)[0]
    word = f"B {'faster' if ratio > 1 else 'slower'} by {abs(ratio - 1) * 100:.1f} %"
    return f"{plural(each['workers'], 'worker')}\n{word if each['resolved'] else 'not resolved'}"
