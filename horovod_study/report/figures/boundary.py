"""What another node costs: sentences, a table, and synchronisation against workers with node boundaries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.boundary import DIRECT, INDIRECT, MEDIAN
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import tips
from horovod_study.text.numbers import THIN, milliseconds, with_unit
from horovod_study.text.words import listed, plural

NAME = "boundary"

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def boundary(analysis: Analysis) -> Drawing | None:
    """Return the figure of node boundaries; None where no series ran on several nodes."""
    shown = _shown(analysis)
    if shown.empty:
        return None
    # Placements may be series of their own.
    styles = style.series_styles(analysis.nodes) | style.series_styles(analysis.points)
    settings = list(shown["setting"].drop_duplicates())[: kit.MAX_PANELS]
    jumps = analysis.boundary
    named = _named(shown, styles)
    looks = {label: next(styles[series] for series in named if named[series] == label) for label in named.values()}

    def draw(width_in: float) -> Figure:
        figure, panels, (wide_in, tall_in) = kit.by_setting(shown, settings, width_in, aspect=0.9, alone=0.55)
        for (axes,), own in panels:
            _panel(axes, own, jumps[jumps["series"].isin(own["series"])], styles, named, wide_in, 0.8 * tall_in)
        kit.legend(figure, [kit.entry(look, label) for label, look in looks.items()], width_in)
        return figure

    per_step = "medians over steps" if (shown["per_step"] == MEDIAN).all() else "means over steps"
    hidden = sorted(set(analysis.nodes.loc[analysis.nodes["sync_s_median"].isna(), "series"]))
    caption = (
        "Waiting for gradients per step against workers; dashed vertical lines: further workers need another node. "
        f"Points: medians over repeats of what each run says of its steps ({per_step}), bars: lowest to highest "
        "repeat. Arrows: the jump between equal workers on fewer and on more nodes (mean over repeats, 95 % interval "
        "in brackets); dotted: the next worker count already needs another node, so a jump there is not that of the "
        f"node alone.{kit.left_out(shown, settings)} {_carried(analysis)}"
    )
    if hidden:
        names = listed([styles[series].label for series in hidden])
        caption += f" Not drawn, because synchronisation is hidden inside their backward pass: {names}."
    return Drawing(
        name=NAME,
        title="Synchronisation and node boundaries",
        alt="Waiting for gradients per step against workers, on one and on more nodes; the jumps are in the table.",
        caption=caption.strip(),
        data=pd.concat([shown.assign(kind="point"), jumps.rename(columns={"kind": "jump"}).assign(kind="jump")]),
        draw=draw,
    )


def sentences(analysis: Analysis) -> list[str]:
    """Return what the first node boundary of each series adds to a step, one sentence per series."""
    labels = style.series_labels(analysis.nodes)
    several = analysis.boundary["setting"].nunique() > 1
    found = []
    for series, rows in analysis.boundary.groupby("series", sort=False):
        first = rows[rows["fewer_nodes"] == rows["fewer_nodes"].min()]
        direct = first[first["kind"] == DIRECT]
        chosen = (direct if len(direct) else first).to_dict("records")[-1]
        name = labels[str(series)] + (f", {chosen['setting']}" if several else "")
        found.append(_sentence(chosen, name))
    return found


def place(workers: float, nodes: float, per_node: str) -> str:
    """Return where workers sat, in words: `2 workers on 1 node`, `5 workers on 2 nodes (4 + 1)`."""
    text = f"{plural(workers, 'worker')} on {plural(nodes, 'node')}"
    parts = [part.partition("x") for part in per_node.split()]
    if nodes == 1 or not parts:
        return text
    if sum(int(times) for times, _, _ in parts) <= 4:
        shares = " + ".join(share for times, _, share in parts for _ in range(int(times)))
    else:
        shares = ", ".join(f"{share} on {times}" for times, _, share in parts)
    return f"{text} ({shares})"


def _sentence(row: Mapping[Any, Any], name: str) -> str:
    hidden = not math.isfinite(row["jump_s"])
    start = "step_" if hidden else ""
    what = "the whole step, in which synchronisation is hidden," if hidden else "waiting for gradients"
    jump, low, high = (1000 * row[f"{start}{each}_s"] for each in ("jump", "low", "high"))
    size = with_unit(abs(jump), *((-high, -low) if jump < 0 else (low, high)), unit="ms")
    fewer, more = (_word(row[f"{side}_nodes"]) for side in ("fewer", "more"))
    resolved = row[f"{start}resolved"]
    open_end = "" if not pd.isna(resolved) else "; with fewer than three repeats on either side this may be chance"
    before, after = (milliseconds(row[f"{side}_{'step' if hidden else 'sync'}_s"]) for side in ("fewer", "more"))
    paths = [f" ({row[f'{side}_path']})" if row[f"{side}_path"] else "" for side in ("fewer", "more")]
    levels = f"from {before}{THIN}ms{paths[0]} to {after}{THIN}ms{paths[1]}"
    here, there = (
        place(row[f"{side}_workers"], row[f"{side}_nodes"], row[f"{side}_per_node"]) for side in ("fewer", "more")
    )
    if row["kind"] == INDIRECT and row["fewer_workers"] == 1:
        return (
            f"{name}: {there}{paths[1]} need {size} per step for {what} compared with one worker, which does not "
            f"wait; what the other node alone adds was not measured{open_end}."
        )
    if not pd.isna(resolved) and not resolved:
        value = with_unit(jump, low, high, unit="ms")
        both = f"with {plural(row['more_workers'], 'worker')}" if row["kind"] == DIRECT else f"{here} against {there}"
        return (
            f"{name}: {fewer} and {more} nodes are not measurably different ({both}): {value} per step, {levels}."
        ).replace("one and", "one node and")
    adds = "adds" if jump >= 0 else "takes"
    off = "" if jump >= 0 else "off "
    if row["kind"] == DIRECT:
        of = "" if hidden else " of waiting for gradients"
        return (
            f"Going from {fewer} node{'s' * (row['fewer_nodes'] > 1)} to {more} {adds} {size}{of} {off}"
            f"{'to ' if jump >= 0 else ''}each step over {name}: {levels}, with "
            f"{plural(row['more_workers'], 'worker')} both times{open_end}."
        )
    return (
        f"{name}: going from {here} to {there} {adds} {size} {'to' if jump >= 0 else 'off'} {what} of each step, "
        f"{levels}; part of it is due to the further workers{open_end}."
    )


def _word(count: float) -> str:
    return _WORDS[int(count)] if count < len(_WORDS) else f"{count:.0f}"


def _carried(analysis: Analysis) -> str:
    """Return which network carried the gradients of each drawn series, as the records of the runs say."""
    labels = style.series_labels(analysis.nodes)
    texts = []
    for series, rows in analysis.nodes.groupby("series", sort=False):
        if rows["nodes"].max() > 1:
            ways = _paths(rows)
            if ways:
                texts.append(f"{labels[str(series)]}: " + ", ".join(f"{way} on {on}" for on, way in ways))
    return f"Network path, as the runs recorded it: {'; '.join(texts)}." if texts else ""


def _paths(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return (nodes in words, recorded paths) of one series, in the order of the nodes."""
    known = rows[(rows["workers"] > 1) & (rows["path"] != "")]
    return [
        (plural(float(f"{nodes}"), "node"), " or ".join(sorted(set(own["path"]))))
        for nodes, own in known.groupby("nodes", sort=True)
    ]


def _shown(analysis: Analysis) -> pd.DataFrame:
    """Return the cells with a known time of the settings in which some series ran on several nodes."""
    cells = analysis.nodes[analysis.nodes["sync_s_median"].notna()]
    several = cells.groupby("setting")["nodes"].transform("max") > 1
    return cells[several & cells["series"].isin(set(cells.loc[cells["nodes"] > 1, "series"]))]


def _panel(
    axes: Axes,
    cells: pd.DataFrame,
    jumps: pd.DataFrame,
    styles: dict[str, style.SeriesStyle],
    named: Mapping[str, str],
    wide_in: float,
    tall_in: float,
) -> None:
    last, first = float(cells["workers"].max()), float(cells["workers"].min())
    places = _places(cells, apart=0.035 * (last - min(first, 1.0) + 1.0))
    for series, own in cells.groupby("series", sort=False):
        look = styles[str(series)]
        for _, part in own.groupby("nodes", sort=True):
            _points(axes, part, places, replace(look, label=named[str(series)]))
    top = 1000 * cells["sync_s_max"].max() * 1.22
    kit.worker_axis(axes, cells["workers"], last, wide_in)
    left, right = axes.get_xlim()
    axes.set(xlim=(left, right + _room(jumps, places, left, right, 0.85 * wide_in)), ylim=(0, top))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.set_ylabel(style.folded("Waiting for gradients / ms per step", 0.8 * tall_in))
    texts = _arrows(axes, cells, jumps, places, styles)
    _write_apart(axes, texts if len(texts) <= _most_texts(wide_in) else [], top, tall_in)
    kit.node_boundaries(axes, cells, wide_in)


def _places(cells: pd.DataFrame, *, apart: float) -> dict[tuple[str, int, int], float]:
    """Return the x of each (series, workers, nodes): side by side where equal workers ran on several counts of nodes.

    There the series are side by side as well, or their arrows would be on one another.
    """
    found = {}
    order = list(cells["series"].drop_duplicates())
    for workers, own in cells.groupby("workers"):
        counts = sorted(set(own["nodes"]))
        for rank, nodes in enumerate(counts):
            middle = float(f"{workers}") + (rank - (len(counts) - 1) / 2) * 2 * apart
            for place, series in enumerate(order):
                aside = (place - (len(order) - 1) / 2) / len(order) * apart if len(counts) > 1 else 0.0
                found[str(series), int(f"{workers}"), int(nodes)] = middle + aside
    return found


def _room(
    jumps: pd.DataFrame, places: Mapping[tuple[str, int, int], float], left: float, right: float, drawn_in: float
) -> float:
    """Return by how much an axis must go on to the right for what is written beside the last arrows."""
    most = 0.0
    written = [row for row in _drawn(jumps) if row["written"]]
    if len(written) > _most_texts(drawn_in / 0.85):
        return most
    for row in written:
        x = places.get((row["series"], row["more_workers"], row["more_nodes"]), left)
        words_in = 0.15 + style.text_in(_written(row))
        share = min(0.65, words_in / drawn_in)
        most = max(most, (x - left) / (1 - share) + left - right)  # so that the part beyond x is that share
    return most


def _points(
    axes: Axes, part: pd.DataFrame, places: Mapping[tuple[str, int, int], float], look: style.SeriesStyle
) -> None:
    x = [places[row["series"], row["workers"], row["nodes"]] for row in part.to_dict("records")]
    values = [1000 * part[f"sync_s_{name}"] for name in ("median", "min", "max")]
    kit.point_bars(axes, x, values, look, tips=tips(part, "sync_s_median", unit="ms", scale=1000), line=True)


def _drawn(jumps: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the jumps to draw, `written` where their size is beside them.

    An indirect jump is left out where the same boundary has a direct one, and written only at a series' first boundary.
    """
    known = jumps[jumps["jump_s"].notna()]
    compared = set(known.loc[known["kind"] == DIRECT, ["series", "fewer_nodes"]].itertuples(index=False, name=None))
    first = known.groupby("series")["fewer_nodes"].transform("min")
    rows = known.assign(written=(known["kind"] == DIRECT) | (known["fewer_nodes"] == first)).to_dict("records")
    return [row for row in rows if row["kind"] == DIRECT or (row["series"], row["fewer_nodes"]) not in compared]


def _arrows(
    axes: Axes,
    cells: pd.DataFrame,
    jumps: pd.DataFrame,
    places: Mapping[tuple[str, int, int], float],
    styles: dict[str, style.SeriesStyle],
) -> list[tuple[float, float, str]]:
    """Draw the jumps; return what is to be written beside them: x, y, text."""
    height = {
        (row["series"], row["workers"], row["nodes"], row["per_node"]): 1000 * row["sync_s_median"]
        for row in cells.to_dict("records")
    }
    texts = []
    ends = {key[1:]: max(x for other, x in places.items() if other[1:] == key[1:]) for key in places}
    for row in _drawn(jumps):
        keys = [
            (row["series"], *(row[f"{side}_{name}"] for name in ("workers", "nodes", "per_node")))
            for side in ("fewer", "more")
        ]
        if any(key not in height for key in keys):
            continue
        (x0, x1), (y0, y1) = ([places[key[0], key[1], key[2]] for key in keys], [height[key] for key in keys])
        color = styles[row["series"]].color
        if row["kind"] == INDIRECT:
            axes.plot([x0, x1], [y0, y1], color=color, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1.8)
        else:
            axes.plot([x0, x1], [y0, y0], color=color, linewidth=0.8, zorder=1.8)
            arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 4}
            axes.annotate("", xy=(x1, y1), xytext=(x1, y0), arrowprops=arrow, zorder=1.9)
        if row["written"]:
            texts.append((ends[keys[1][1], keys[1][2]], (y0 + y1) / 2, _written(row)))
    return texts


def _most_texts(wide_in: float) -> int:
    return 4 if wide_in >= style.NARROW_IN else 1  # with more, the table says them better


def _written(row: Mapping[Any, Any]) -> str:
    value = with_unit(*(1000 * row[f"{each}_s"] for each in ("jump", "low", "high")), unit="ms")
    text = value if row["jump_s"] < 0 else f"+{value}"
    if row["kind"] == INDIRECT:
        text += f"\nwith {plural(row['more_workers'] - row['fewer_workers'], 'worker')} more"
    return f"{text}\nnot resolved" if not pd.isna(row["resolved"]) and not row["resolved"] else text


def _write_apart(axes: Axes, texts: Sequence[tuple[float, float, str]], top: float, tall_in: float) -> None:
    """Write texts right of their arrows, moved up where they would be on one another."""
    floor = 0.0
    left, right = axes.get_xlim()
    for x, y, text in sorted(texts, key=lambda each: each[1]):
        tall = 1.35 * style.small() / 72 / tall_in * top * (1 + text.count("\n"))
        middle = max(y, floor + tall / 2)
        floor = middle + tall / 2
        how: dict[str, Any] = {"color": style.INK, "size": style.small(), "va": "center", "ha": "left"}
        axes.text(x + 0.02 * (right - left), middle, text, **how, zorder=5, bbox=kit.paper_behind())


def _named(cells: pd.DataFrame, styles: Mapping[str, style.SeriesStyle]) -> dict[str, str]:
    """Return the legend entry of every series: how it communicates, and what carried its gradients in any setting."""
    labels = cells["series"].map(lambda series: styles[series].label)
    named: dict[str, str] = {}
    for label, own in cells.groupby(labels, sort=False):
        ways = ", then ".join(dict.fromkeys(way for _, way in _paths(own)))
        named |= dict.fromkeys(own["series"], f"{label}: {ways}" if ways else f"{label}")
    return named
