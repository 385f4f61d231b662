"""What figures share that draw one quantity against workers: a grid that fits the width, points with their spread,
worker counts on a logarithmic axis, node boundaries.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from horovod_study.report.figures import marker, worker_axis
from horovod_study.report.interactive import mark
from horovod_study.report.style import NARROW_IN, PAPER, QUIET, SeriesStyle, folded, small, text_in

MOST_SETTINGS = 4
"""Settings of one figure, each with a panel; the others stand in its CSV file and in the tables of the page."""


def grid(count: int, width_in: float, *, most: int = 2, aspect: float = 0.66) -> tuple[Figure, list[Axes], float]:
    """Return a figure with so many panels, and the width of one of them; below one another in a narrow figure."""
    columns = 1 if width_in < NARROW_IN else min(count, most)
    rows = math.ceil(count / columns)
    panel_in = width_in / columns
    height_in = rows * max(1.75, (aspect if columns > 1 or width_in < NARROW_IN else 0.5) * panel_in) + 0.45
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    made = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in made[count:]:
        spare.remove()
    return figure, made[:count], panel_in


def settings_of(rows: pd.DataFrame, *, most: int = MOST_SETTINGS) -> list[str]:
    """Return the settings that a figure shows, in their order: those with most worker counts, at most `most`.

    A setting with half as many counts or fewer has no panel: a sweep of batches at a few counts is another figure.
    """
    counts = rows.groupby("setting", sort=False)["workers"].nunique()
    counts = counts[2 * counts > counts.max()].sort_values(ascending=False, kind="stable")
    kept = set(counts.index[:most])
    return [setting for setting in rows["setting"].drop_duplicates() if setting in kept]


def left_out(rows: pd.DataFrame, shown: Sequence[str]) -> str:
    """Return the sentence that names the settings which have no panel; empty where all have one."""
    rest = [setting for setting in rows["setting"].drop_duplicates() if setting not in set(shown)]
    return f" In the CSV file only: {', '.join(rest)}." if rest else ""


def heading(axes: Axes, text: str, panel_in: float) -> None:
    """Write a title above a panel, broken where the panel is too narrow for it."""
    axes.set_title(folded(text, 0.95 * panel_in))


def spread(
    axes: Axes,
    rows: pd.DataFrame,
    columns: tuple[str, str, str],
    look: SeriesStyle,
    *,
    scale: float = 1.0,
    x: str = "workers",
    line: bool = True,
    tip: Callable[[Mapping[Any, Any]], str] | None = None,
) -> float:
    """Draw medians, their spread and a line through them on equal nodes; return how high they reach.

    `columns`: middle, low and high. `tip` makes the text of a point of its row.
    """
    known = rows[rows[columns[0]].notna()].sort_values(x, kind="stable")
    if known.empty:
        return 0.0
    middle, low, high = (known[column] * scale for column in columns)
    bars = axes.vlines(known[x], low, high, color=look.color, linewidth=1.1, zorder=3)
    mark(bars, series=look.label)
    if line and not look.ring:
        joined = axes.plot(known[x], middle, color=look.color, linestyle=look.dash, linewidth=1.2, zorder=2)
        mark(joined, series=look.label)
    dots = axes.plot(known[x], middle, linestyle="none", **marker(look), zorder=4)
    mark(dots, series=look.label, tips=[] if tip is None else [tip(row) for row in known.to_dict("records")])
    return float(pd.concat([middle, high]).max())


def handles(styles: Mapping[str, SeriesStyle], series: Iterable[str], *, line: bool = True) -> list[Any]:
    """Return one legend entry per look of these series."""
    found: dict[tuple[Any, ...], Any] = {}
    for name in series:
        look = styles[str(name)]
        dash: Any = "none" if look.ring or not line else look.dash
        found.setdefault(
            (look.label, look.color, look.marker, look.filled),
            Line2D([], [], color=look.color, linestyle=dash, linewidth=1.2, **marker(look), label=look.label),
        )
    return list(found.values())


def workers_below(axes: Axes, rows: pd.DataFrame, panel_in: float, *, log: bool = False) -> None:
    """Label the worker counts, on a logarithmic axis with `log`, and mark where further ones need another node."""
    if log:
        log_counts(axes, [float(count) for count in rows["workers"]], panel_in)
        axes.set_xlabel("Workers")
    else:
        worker_axis(axes, rows["workers"], float(rows["workers"].max()), panel_in)
    boundaries(axes, rows, panel_in)


def log_counts(axes: Axes, counts: Sequence[float], panel_in: float) -> None:
    """Make a logarithmic axis that names these counts, as far as they fit, the largest and the smallest first."""
    kinds = sorted(set(counts))
    axes.set_xscale("log")
    span = max(math.log(kinds[-1] / kinds[0]), math.log(2))
    margin = 0.05 * span
    axes.set_xlim(kinds[0] * math.exp(-margin), kinds[-1] * math.exp(margin))
    kept: list[float] = []
    for count in [kinds[-1], kinds[0], *kinds[1:-1][::-1]]:
        room = (text_in(f"{count:g}") + 0.07) / (0.8 * panel_in) * (span + 2 * margin)
        if all(abs(math.log(count / other)) >= room for other in kept):
            kept.append(count)
    axes.xaxis.set_major_locator(FixedLocator(sorted(kept)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_values(axes: Axes, low: float, high: float) -> None:
    """Make a logarithmic axis of values from `low` to `high`, with round numbers that a reader can use."""
    axes.set_yscale("log")
    axes.set_ylim(low / 1.25, high * 1.25)
    steps = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def boundaries(axes: Axes, rows: pd.DataFrame, panel_in: float) -> None:
    """Draw a thin line where further workers need another node; of several partitions, where each of them does.

    Nothing is drawn where equal workers stand on both sides, or partitions would need more than six lines.
    """
    places: dict[float, set[int]] = {}
    for _, own in rows.dropna(subset=["nodes"]).groupby("partition", sort=False):
        for fewer, more in pairwise(sorted(set(own["nodes"]))):
            last = float(own.loc[own["nodes"] <= fewer, "workers"].max())
            first = float(own.loc[own["nodes"] >= more, "workers"].min())
            if last < first:
                places.setdefault(
                    math.sqrt(last * first) if axes.get_xscale() == "log" else (last + first) / 2, set()
                ).add(int(more))
    if len(places) > MOST_BOUNDARIES:
        return
    left, right = axes.get_xlim()
    logarithmic = axes.get_xscale() == "log"
    free = -math.inf
    for x, nodes in sorted(places.items()):
        axes.axvline(x, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        at = math.log(x / left) / math.log(right / left) if logarithmic else (x - left) / (right - left)
        text = f"{'/'.join(str(each) for each in sorted(nodes))} nodes"
        room = (text_in(text) + 0.05) / (0.8 * panel_in)
        side = "left" if at + room <= 1 else "right"
        begin = at if side == "left" else at - room
        if begin >= free:
            axes.text(
                at + (0.012 if side == "left" else -0.012),
                0.985,
                text,
                transform=axes.transAxes,
                color=QUIET,
                size=small(),
                va="top",
                ha=side,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
                zorder=1.5,
            )
            free = begin + room


MOST_BOUNDARIES = 6
