"""The figure of a comparison: the ratio of every block, its mean with the interval, and the line at 1."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.compare.comparison import Comparison, CountResult
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import label_ticks, note_at
from horovod_study.report.kit.style import INK, QUIET
from horovod_study.text.words import plural

NAME = "comparison"
_FASTER, _SLOWER = "#009e73", "#d55e00"
_HALF = 0.32  # of the width of a worker count that the blocks take


def write_comparison(comparison: Comparison, runs: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt) and everything as comparison.json; return the paths.

    `runs`: what was compared, as `CompareResult.to_dict` of the run wing gives it.
    """
    names = (str(runs["A"]["text"]), str(runs["B"]["text"]))
    content = {**comparison.to_dict(), **{name: value for name, value in runs.items() if name != "workers"}}
    texts = {f"{NAME}.txt": caption(comparison, names), f"{NAME}.json": content}
    return write_result(directory, texts, {NAME: partial(draw, comparison, names)})


def caption(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return what a reader of the figure must know."""
    blocks = sorted({each.speed.ratio.n for each in comparison.counts})
    count = f"{blocks[0]}" if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}"
    found = " ".join(f"With {plural(each.workers, 'worker')}: {each.verdict}." for each in comparison.counts)
    apart = any(each.odd for each in comparison.counts)
    line = "median where blocks are outliers, else geometric mean," if apart else "geometric mean"
    how = "one run of A and one of B right after the other"
    if any(each.turns for each in comparison.counts):
        how = "one run of A and one of B that trained in turns; small: single rounds"
        line = line.replace("geometric mean", "mean of the rounds' ratios")
    return (
        f"Throughput of B ({names[1]}) as a multiple of that of A ({names[0]}). Dots: the {count} blocks in the order "
        f"in which they ran, each {how}. Line and bar: {line} and its 95 % interval. {found}"
    )


def draw(comparison: Comparison, names: tuple[str, str], width_in: float) -> Figure:
    """Return the figure; call it inside style()."""
    counts = comparison.counts
    figure = Figure(figsize=(width_in, 0.5 * width_in), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color=QUIET, linewidth=1.0, zorder=1)
    for place, each in enumerate(counts):
        _count(axes, place, each)
    low, high, hidden = _range(counts)
    axes.set_ylim(low, high)
    for place, ratio, x in hidden:
        edge, sign = (high, -1) if ratio > high else (low, 1)
        color = _color(counts[place])
        axes.plot(x, edge, marker="^" if ratio > high else "v", markersize=5, color=color, clip_on=False, zorder=4)
        text, offset = f"{(ratio - 1) * 100:+,.0f} %", (6, 5 * sign)
        note_at(axes, text, (x, edge), offset, ha="left", va="center", size=7.5, color=color, zorder=4)
    axes.set_xlim(-0.6, len(counts) - 0.4)
    axes.set_xticks(range(len(counts)), [_label(each) for each in counts])
    axes.tick_params(axis="x", size=0)
    steps = MaxNLocator(7, steps=[1, 2, 2.5, 5, 10])
    label_ticks(axes.yaxis, steps, lambda value: f"{(value - 1) * 100:+.4g} %" if value != 1 else "equal")
    axes.set_ylabel("B's throughput against A's")
    axes.set_title(f"A: {names[0]}\nB: {names[1]}", color=INK)
    return figure


def _count(axes: Axes, place: int, each: CountResult) -> None:
    color, n = _color(each), len(each.ratios)
    width = 2 * _HALF / max(n, 1)
    for x, ratios in zip(_places(place, n), [rounds for rounds in each.rounds if rounds], strict=False):
        across = np.linspace(x - 0.35 * width, x + 0.35 * width, len(ratios))
        axes.plot(across, ratios, linestyle="none", marker=".", markersize=2, color=QUIET, alpha=0.5, zorder=1)
    axes.plot(
        _places(place, n), each.ratios, linestyle="none", marker="o", markersize=3.6, color=color, alpha=0.55, zorder=2
    )
    edges = (place - _HALF - 0.06, place + _HALF + 0.06)
    shown = each.shown
    axes.plot(edges, (shown.value, shown.value), color=color, linewidth=1.8, zorder=3, solid_capstyle="butt")
    if shown.known:
        axes.fill_between(edges, shown.low, shown.high, color=color, alpha=0.18, linewidth=0, zorder=1)


def _places(place: int, n: int) -> Any:
    return np.linspace(place - _HALF, place + _HALF, n) if n > 1 else np.array([float(place)])


def _range(counts: tuple[CountResult, ...]) -> tuple[float, float, list[tuple[int, float, float]]]:
    """Return the ends of the scale, and the blocks (place, ratio, x) that are so far out that they are only named."""
    kept = [1 - 0.01, 1 + 0.01]
    for each in counts:
        middle = float(np.median(each.ratios))
        reach = 6 * float(np.median(np.abs(np.array(each.ratios) - middle))) + 0.05
        kept += [ratio for ratio in each.ratios if abs(ratio - middle) <= reach]
        if inside := sorted(ratio for rounds in each.rounds for ratio in rounds):  # nine of ten rounds are shown
            kept += [inside[len(inside) // 20], inside[-1 - len(inside) // 20]]
        ends = (each.shown.low, each.shown.high) if each.shown.known else ()
        kept += [each.shown.value, *(min(max(end, middle - reach), middle + reach) for end in ends)]
    room = 0.08 * (max(kept) - min(kept))
    low, high = min(kept) - room, max(kept) + room
    hidden = [
        (place, ratio, float(x))
        for place, each in enumerate(counts)
        for x, ratio in zip(_places(place, len(each.ratios)), each.ratios, strict=True)
        if not low <= ratio <= high
    ]
    return low, high, hidden


def _color(each: CountResult) -> str:
    if not each.resolved:
        return QUIET
    return _FASTER if each.shown.value > 1 else _SLOWER


def _label(each: CountResult) -> str:
    word = "not resolved" if not each.resolved else "B faster" if each.shown.value > 1 else "B slower"
    if each.resolved:
        word += f" by {abs(each.shown.value - 1) * 100:.1f} %"
    return f"{plural(each.workers, 'worker')}\n{word}"
