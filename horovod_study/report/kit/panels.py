"""What figures share that draw one quantity against workers: a grid that fits the width, points with their spread,
worker counts on a logarithmic axis, node boundaries. And figures inside a page, in which pointing at a mark says its
value: who draws says what a mark stands for with `mark`; that is kept beside the artists, so that the files of a figure
are the same with and without, and in the page each point has an invisible spot with a `<title>`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from horovod_study.report.kit import style
from horovod_study.text.numbers import THIN, known, prefixed, with_interval
from horovod_study.text.words import cut, listed, plural, span

MAX_PANELS = 6  # of one figure; further settings are in its CSV file and in the tables of the page
MAX_HEIGHT_IN = 8.4  # of all panels together: a page has room for them, their legend and a caption


def grid(
    count: int, width_in: float, *, most: int = 2, aspect: float = 0.66, alone: float = 0.5
) -> tuple[Figure, list[Axes], tuple[float, float]]:
    """Return a figure with so many panels, row by row, and width and height of one of them.

    They are beside each other where the figure is wide, never taller than a page. `aspect` and `alone`: height of a
    panel over its width, beside others, at most `most`, and alone in its row.
    """
    columns = 1 if width_in < style.NARROW_IN else min(count, most)
    rows = math.ceil(count / columns)
    ratio = 0.66 if width_in < style.NARROW_IN else alone if columns == 1 else aspect
    height_in = min(max(1.75, ratio * width_in / columns), MAX_HEIGHT_IN / rows)
    figure = Figure(figsize=(width_in, rows * height_in + 0.45), layout="constrained")
    made = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in made[count:]:
        spare.remove()
    return figure, made[:count], (width_in / columns, height_in)


def settings_of(rows: pd.DataFrame, *, most: int) -> list[str]:
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
    drawn = f" Drawn: {shown[0]}." if len(shown) == 1 else ""  # which has no title
    return f"{drawn} In the CSV file only: {', '.join(rest)}." if rest else ""


def line_of(axes: Axes, x: Any, y: Any, look: style.SeriesStyle, *, tips: Sequence[str] = (), **changes: Any) -> None:
    """Draw a line of a series through `x` and `y`, each (N,); `changes` of how it looks, as `Axes.plot` takes them."""
    how: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.2, "zorder": 2, **changes}
    drawn = axes.plot(x, y, color=look.color, **how)
    belongs(drawn, look.label)
    if tips:
        mark(drawn, series=look.label, tips=tips)


def point_bars(
    axes: Axes,
    x: Sequence[float] | pd.Series,
    values: Sequence[pd.Series],
    look: style.SeriesStyle,
    *,
    tips: Sequence[str] = (),
    resolved: pd.Series | None = None,
) -> None:
    """Draw points and their bars: `values` are middle, low and high, each (N,); hollow where not `resolved`."""
    middle, low, high = values
    belongs(axes.vlines(x, low, high, color=look.color, linewidth=1.1, zorder=3), look.label)
    shown = [(look, np.full(len(middle), True))]
    if resolved is not None:
        shown = [(replace(look, filled=filled, ring=False), resolved.to_numpy() == filled) for filled in (True, False)]
    for each, which in shown:
        if which.any():
            texts = [text for text, kept in zip(tips, which, strict=False) if kept]
            how: dict[str, Any] = {"tips": texts, "linestyle": "none", **marker(each), "zorder": 4}
            line_of(axes, np.asarray(x)[which], middle.to_numpy()[which], each, **how)


def judged_handles() -> list[Line2D]:
    """Return the entries of a legend that say what filled and hollow points are."""
    grey = style.SeriesStyle(label="", color=style.QUIET, marker="o", filled=True, dash="none")
    return [
        Line2D([], [], linestyle="none", **marker(replace(grey, filled=filled)), label=label)
        for filled, label in ((True, "resolved"), (False, "not resolved"))
    ]


def side_by_side(rows: pd.DataFrame, middle: str, last: float, wide_in: float) -> pd.Series:
    """Return where on the axis of workers up to `last` points of several series stand: apart where marks would hide.

    `rows`: columns workers and `middle`, drawn upwards from 0, one row per series and count. A panel is `wide_in`
    inches wide. Marks hide each other when they differ by less than 5 % of the largest value.
    """
    left, right = _worker_span(last)
    step = 7 / 72 / (0.85 * wide_in) * (right - left)  # seven points: a mark and its edge
    near = 0.05 * rows[middle].max()
    at = rows["workers"].astype(float)
    gap = at.drop_duplicates().sort_values().diff().min()  # a mark stays nearer to its count than to the next
    most = rows.groupby("workers")[middle].count().max()
    step = min(step, 0.6 * gap / max(most - 1, 1)) if gap > 0 else step
    for _, same in rows[rows[middle].notna()].sort_values(middle, kind="stable").groupby("workers"):
        group = (same[middle].diff() > near).cumsum()
        for _, close in same.groupby(group):
            ranks = close.index.argsort().argsort()  # in the order of the series, not of their values
            at[close.index] += (ranks - (len(close) - 1) / 2) * step
    return at


def law_pieces(curve: pd.DataFrame) -> list[tuple[bool, pd.DataFrame]]:
    """Split a curve at the first and the last fitted count: whether a piece is extrapolated, and the piece."""
    inside = np.flatnonzero(~curve["extrapolated"].to_numpy(dtype=bool))
    if not len(inside):
        return []
    first, last = inside[0], inside[-1]
    parts = [(True, curve.iloc[: first + 1]), (False, curve.iloc[first : last + 1]), (True, curve.iloc[last:])]
    return [(extrapolated, piece) for extrapolated, piece in parts if len(piece) > 1]


def entry(look: style.SeriesStyle, label: str = "", **changes: Any) -> Line2D:
    """Return the entry of a legend that stands for a series: its line and its points."""
    how: dict[str, Any] = {"linestyle": look.dash, "linewidth": 1.2, **marker(look), **changes}
    return Line2D([], [], color=look.color, label=label or look.label, **how)


def handles(styles: Mapping[str, style.SeriesStyle], series: Iterable[str], **changes: Any) -> list[Any]:
    """Return one legend entry per look of these series; the ring of a baseline has no line."""
    found: dict[tuple[Any, ...], Any] = {}
    for look in (styles[str(name)] for name in series):
        key = (look.label, look.color, look.marker, look.filled)
        found.setdefault(key, entry(look, **{**({"linestyle": "none"} if look.ring else {}), **changes}))
    return list(found.values())


def label_ticks(axis: Axis, locator: Locator, write: Callable[[float], str] = "{:g}".format) -> None:
    """Label an axis where `locator` says, with what `write` makes of a value, and nowhere else."""
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def note_at(axes: Axes, text: str, at: tuple[Any, Any], offset: tuple[float, float], **how: Any) -> None:
    """Write small letters beside a point of the data; `offset` in points of a letter."""
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **{"size": style.small(), **how})


def apart(values: Iterable[float], far: Callable[[float, float], bool]) -> list[float]:
    """Return the values to label, in their order: the first ones, and of the others those `far` from all before."""
    kept: list[float] = []
    for value in values:
        if all(far(value, other) for other in kept):
            kept.append(value)
    return sorted(kept)


def marker(look: style.SeriesStyle) -> dict[str, Any]:
    """Return how the points of a series look: filled, hollow, or a ring that leaves what is inside it visible."""
    if look.ring:
        return {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": look.color}
    if look.filled:
        face, edge, width = look.color, style.PAPER, 0.6
    else:
        face, edge, width = style.PAPER, look.color, 1.1
    size = {"marker": look.marker, "markersize": 5}
    return {**size, "markerfacecolor": face, "markeredgecolor": edge, "markeredgewidth": width}


def face(look: style.LapStyle) -> dict[str, Any]:
    """Return how a part of a bar looks."""
    edge = look.edge or (style.QUIET if look.hatch else style.PAPER)
    return {"facecolor": look.color, "edgecolor": edge, "hatch": look.hatch, "linewidth": 0.5}


def legend(figure: Figure, handles: Sequence[Any], width_in: float, **more: Any) -> None:
    """Put a legend below the whole figure, in as many columns as fit; what is too long for a line is broken,
    and of a very long name the middle is left out.

    The figure grows by the lines that the legend has beyond two.
    """
    if not handles:
        return
    size = style.small()
    em_in = size / 72
    lead_in = (mpl.rcParams["legend.handlelength"] + mpl.rcParams["legend.handletextpad"]) * em_in
    gap_in = mpl.rcParams["legend.columnspacing"] * em_in
    room_in = width_in - 2 * em_in
    whole = [str(handle.get_label()) for handle in handles]
    labels = [style.folded(cut(label, 200, first=100, dots="\u2026"), room_in - lead_in) for label in whole]
    for columns in range(len(handles), 0, -1):
        parts = [part for part in np.array_split(np.arange(len(handles)), columns) if len(part)]
        wide_in = sum(max(style.text_in(labels[place]) for place in part) + lead_in for part in parts)
        if wide_in + gap_in * (columns - 1) <= room_in:
            break
    lines = max(sum(labels[place].count("\n") + 1 for place in part) for part in parts)
    tall_in = figure.get_figheight()
    figure.set_figheight(min(tall_in + max(0, lines - 2) * 1.35 * em_in, max(tall_in, 9.6)))
    figure.legend(handles=list(handles), labels=labels, loc="outside lower center", ncols=columns, **more)


def count_axis(
    axes: Axes, counts: Sequence[float], last: float, wide_in: float, *, logarithmic: bool, at: Sequence[float] = ()
) -> None:
    """Name counts on the axis of x of a panel of `wide_in` inches that ends at `last`: all whole ones where they fit,
    else those that were measured; of many near each other, round numbers or, on a logarithmic axis, powers of two.
    A linear axis has room for marks that stand `at` other places.
    """
    kinds = sorted({float(count) for count in counts})
    if logarithmic:
        axes.set_xscale("log")
        margin = math.exp(0.05 * max(math.log(kinds[-1] / kinds[0]), math.log(2)))
        axes.set_xlim(kinds[0] / margin, kinds[-1] * margin)
    else:
        left, right = _worker_span(last)
        axes.set_xlim(min([left, *(each - 0.04 * last for each in at)]), max([right, *(1.03 * each for each in at)]))

    whole = [float(count) for count in range(1, int(last) + 1)] if not logarithmic and last <= 12 else []
    shown = _fitting(axes, whole, wide_in)
    if not shown or shown != whole:
        beyond = [float(int(last))] * (not logarithmic and kinds[-1] <= 0.8 * last)
        shown = _fitting(axes, [kinds[-1], kinds[0], *beyond, *kinds[1:-1][::-1]], wide_in)
        if len(shown) < len(kinds) and np.median(np.divide(kinds[1:], kinds[:-1])) < 1.5:
            locator = LogLocator(2) if logarithmic else MaxNLocator(int(wide_in / 0.35), steps=(1, 2, 5, 10))
            ends = (kinds[0], kinds[-1] if logarithmic else last)
            round_ones = [each for each in locator.tick_values(*ends) if ends[0] <= each <= ends[1]]
            shown = _fitting(axes, [kinds[0], *round_ones], wide_in)
    label_ticks(axes.xaxis, FixedLocator(shown))


def decade_axis(axes: Axes, wide_in: float) -> None:
    """Name round numbers on the logarithmic axis of x of a panel of `wide_in` inches: powers of ten before others."""
    low, high = axes.get_xlim()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    places = [sub * 10.0**decade for sub in (1, 3, 2, 5) for decade in decades]
    shown = _fitting(axes, [each for each in places if low <= each <= high], wide_in)
    label_ticks(axes.xaxis, FixedLocator(shown), prefixed)


def _fitting(axes: Axes, places: Iterable[float], wide_in: float) -> list[float]:
    """Return those places of x whose names fit beside those of the places before them, in a panel of `wide_in`."""
    at = {place: (_inches(axes, place, wide_in), style.text_in(prefixed(place)) / 2 + 0.05) for place in places}
    return apart(at, lambda one, other: abs(at[one][0] - at[other][0]) >= at[one][1] + at[other][1])


def _inches(axes: Axes, x: float, wide_in: float) -> float:
    """Return how far a place of x is from the left end of a panel of `wide_in` inches with its labels."""
    (at, _) = axes.transLimits.transform(axes.transScale.transform((x, 1.0)))
    return float(at) * 0.85 * wide_in


def _worker_span(last: float) -> tuple[float, float]:
    return 0.7 - 0.055 * float(last), 1.03 * float(last) + 0.1  # with room for the ring of one worker


def node_boundaries(axes: Axes, rows: pd.DataFrame, *, first: bool = False) -> list[tuple[float, str]]:
    """Mark where further workers need another node, a thin line between the last count before and the first after, and
    return the places with the words for them, those of few nodes first.

    `rows`: columns workers, nodes and partition, if there are several. Call it when the limits of the axes are set. A
    partition whose full nodes are seen has its line right after the last full one. `first`: no more than the second
    node of each partition.
    """
    groups = rows.groupby("partition", sort=True, dropna=False) if "partition" in rows else [("", rows)]
    told, words = _names_fit(rows), dict[tuple[int, float, str], None]()
    for partition, own in groups:
        known = own[own["nodes"].notna() & own["workers"].notna()]
        found = _boundaries(known, logarithmic=axes.get_xscale() == "log")
        for x, nodes in found[:1] if first else found:
            words[nodes, round(x, 9), f"{partition}: {nodes}" if told else f"{nodes} nodes"] = None
    for x in {x for _, x, _ in words}:
        axes.axvline(x, color=style.QUIET, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    return [(x, word) for _, x, word in sorted(words)]


def words_above(axes: Axes, words: Sequence[tuple[float, str]], wide_in: float) -> int:
    """Write words over their places of x above a panel of `wide_in` inches; return in how many rows, at most three.

    Each is in the lowest row in which it is on no other; what has no room is left out.
    """
    taken: dict[int, list[tuple[float, float]]] = {}
    for x, word in words:
        wide, room = style.text_in(word), 0.85 * wide_in
        left = max(0.0, min(_inches(axes, x, wide_in) - wide / 2, room - wide))
        rows = range(3 if ":" in word else 1)
        free = (row for row in rows if all(left > end or left + wide < begin for begin, end in taken.get(row, ())))
        if (row := next(free, None)) is not None:
            taken.setdefault(row, []).append((left - 0.08, left + wide + 0.08))
            at = ((left + wide / 2) / room, 1.0)
            above = (0, 3 + 1.3 * style.small() * row)
            note_at(axes, word, at, above, xycoords="axes fraction", ha="center", color=style.QUIET)
    return max(taken, default=-1) + 1


def boundary_words(rows: pd.DataFrame) -> str:
    """Return the sentence of a caption that says what `node_boundaries` draws, with a blank before it."""
    known = rows[rows["nodes"].notna()]
    if known["nodes"].nunique() < 2:
        return ""
    named = " (partition: nodes)" if _names_fit(known) else ""
    return f" Dashed vertical lines: further workers need another node{named}."


def _names_fit(rows: pd.DataFrame) -> bool:
    """Return whether node boundaries name their partition: two or three, with short names."""
    names = rows["partition"].unique() if "partition" in rows else ()
    return 1 < len(names) <= 3 and all(len(f"{name}") <= 16 for name in names)


def _boundaries(rows: pd.DataFrame, *, logarithmic: bool) -> list[tuple[float, int]]:
    """Return the place of each boundary with the nodes behind it; none where counts before and after overlap."""
    found = []
    full = (rows["workers"] / rows["nodes"]).max()
    for fewer, more in pairwise(sorted(set(rows["nodes"]))):
        last = float(rows.loc[rows["nodes"] <= fewer, "workers"].max())
        first = float(rows.loc[rows["nodes"] >= more, "workers"].min())
        if first < last:
            continue
        if first > last and last == full * fewer:
            first, more = last + 1, fewer + 1
        found.append((math.sqrt(last * first) if logarithmic else (last + first) / 2, int(more)))
    return found


def work_words(points: pd.DataFrame) -> str:
    """Return the sentences of a caption that say what each way of scaling keeps fixed."""
    texts = points.loc[points["mode"].isin(["weak", "strong"]), ["setting", "work"]].drop_duplicates()
    alike = texts.groupby("work", sort=False)["setting"]
    return " ".join(f"Scaling, {listed(list(settings))}: {work}." for work, settings in alike)


def repeats_words(rows: pd.DataFrame, what: str = "repeats") -> str:
    """Return the sentence of a caption that says how many repeats each point has; a cell without any is not drawn."""
    counts = rows.loc[rows[what] > 0, what]
    return f"{what.capitalize()} per point: {span(counts.min(), counts.max())}."


_TIPS: WeakKeyDictionary[Artist, tuple[str, ...]] = WeakKeyDictionary()
_SERIES: WeakKeyDictionary[Artist, str] = WeakKeyDictionary()  # what an entry of the legend hides


def mark(artist: Iterable[Any], *, series: str, tips: Sequence[str]) -> None:
    """Tell the page what pointing at the points of `series` says: `tips`, one text for each.

    `artist`: what Axes.plot or Axes.bar returns: a line with one point, or one bar, for each text.
    """
    texts = [f"{series}: {tip}" for tip in tips]
    for part in artist:
        own = texts if isinstance(part, Line2D) else [texts.pop(0)]
        _TIPS[part] = tuple(own)


def belongs(artist: Any, series: str) -> None:
    """Tell the page that these artists are of `series`, by the name that the legend has for it."""
    _SERIES.update(dict.fromkeys(artist if isinstance(artist, Iterable) else [artist], series))


def tips(
    rows: pd.DataFrame, value: str, *, low: str = "", high: str = "", unit: str = "", scale: float = 1.0
) -> list[str]:
    """Return what pointing at each row's point says: `8 workers on 2 nodes: 3.91\u00d7 [3.82, 4.00], 3 repeats`.

    `value`, `low` and `high` are columns, multiplied by `scale` into `unit`; workers, nodes and repeats are said where
    the rows have such a column.
    """
    used = [name for name in dict.fromkeys((value, low, high, "workers", "nodes", "repeats")) if name in rows.columns]
    unit, texts = unit if unit in ("", "\u00d7") else f"{THIN}{unit}", []
    for row in rows[used].to_dict("records"):
        ends = [scale * row.get(name, math.nan) for name in (low, high)]
        text, bracket, interval = with_interval(scale * row[value], *ends).partition(" [")
        repeats = f", {plural(row['repeats'], 'repeat')}" if known(row.get("repeats")) else ""
        where = f"{plural(row['workers'], 'worker')}: " if known(row.get("workers")) else ""
        if known(row.get("nodes")) and row["nodes"] > 1:
            where = f"{where.removesuffix(': ')} on {plural(row['nodes'], 'node')}: ".lstrip()
        texts.append(f"{where}{text}{unit}{bracket}{interval}{repeats}")
    return texts


def inline(drawing: Any, *, width_in: float = style.SCREEN_WIDTH_IN) -> str:
    """Return a figure of the grammar as an `<svg>`; equal ones give equal texts."""
    with style.style(svg__fonttype="none"):
        figure = style.settled(drawing.draw(width_in))
        _number(figure)
        svg = style.to_bytes(figure, "svg").decode("utf-8")
        spots = "".join(_spots(figure))  # bars have their places when they were drawn once
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Names are unique in one SVG, but not among several on one page.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{drawing.name}-", svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--sans)", svg)
    svg = re.sub(rf'id="{drawing.name}-(series|legend)-(\d+)"', r'data-\1="\2"', svg)
    for color in style.DARK:
        svg = re.sub(rf"(?<=: ){color}\b", f"var({css_name(color)})", svg)
        svg = svg.replace(f'fill="{color}"', f'style="fill: var({css_name(color)})"')  # in patterns of hatches
    head, _, body = svg.partition(">")
    (box,) = re.findall(r'viewBox="[^"]+"', head)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box}>'
    return _compact(opening, body.strip(), drawing.name).replace("</svg>", f"{spots}</svg>")


def _number(figure: Figure) -> None:
    """Name the entries of the legend that belong to a series, and all that is drawn of it, by one number."""
    for legend in figure.legends:
        for number, (text, handle) in enumerate(zip(legend.get_texts(), legend.legend_handles, strict=True)):
            series = text.get_text().replace("\n", "")
            own = [artist for axes in figure.axes for artist in axes.get_children() if _SERIES.get(artist) == series]
            for artist in (text, handle) if own and handle is not None else ():
                artist.set_gid(f"legend-{number}")
            for artist in own:
                artist.set_gid(f"series-{number}")


def _spots(figure: Figure) -> Iterator[str]:
    """Yield an element for each point that has a text: what is pointed at, in units of the SVG, and its title."""
    scale, height = 72 / figure.dpi, float(figure.bbox.height)
    for axes in figure.axes:
        for artist in axes.get_children() if axes.get_visible() else ():
            gid = artist.get_gid()
            series = Markup(f' data-series="{gid.removeprefix("series-")}"' if gid else "")
            for place, text in enumerate(_TIPS.get(artist, ())):
                if isinstance(artist, Line2D):
                    x, y = artist.get_transform().transform(np.asarray(artist.get_xydata())[place])
                    if not (math.isfinite(x) and math.isfinite(y)):
                        continue
                    shape = f'circle cx="{x * scale:.1f}" cy="{(height - y) * scale:.1f}" r="5"'
                else:
                    box = artist.get_window_extent()
                    shape = f'rect x="{box.x0 * scale:.1f}" y="{(height - box.y1) * scale:.1f}" '
                    shape += f'width="{box.width * scale:.1f}" height="{box.height * scale:.1f}"'
                yield Markup('<{0} class="spot" fill="none" pointer-events="all"{3}><title>{1}</title></{2}>').format(
                    Markup(shape), text, shape.partition(" ")[0], series
                )


def _compact(opening: str, svg: str, name: str) -> str:
    """Return the same drawing in fewer letters: a hundredth of a point is finer than any screen or printer.

    Looks that come often become classes with the figure's name in front, as the styles of one figure hold for the page.
    """
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(
        rf' id="{name}-(?:line2d|text|patch|xtick|ytick|axes|figure|matplotlib\.axis|[A-Za-z]+Collection)_\d+"', "", svg
    )
    svg = re.sub(r' transform="rotate\(-0 [^")]*\)"', "", svg)

    def fewer_digits(found: re.Match[str]) -> str:
        text = re.sub(r"-?\d+\.\d{3,}(?![\de])", lambda each: f"{float(each[0]):.2f}", found[2])
        return f'{found[1]}="{" ".join(text.split())}"'

    svg = re.sub(r'\b(d|x|y|transform)="([^"<]*)"', fewer_digits, svg)
    looks = Counter(re.findall(r' style="([^"]+)"', svg))
    often = [look for look, count in looks.items() if count > 3]
    classes = {look: f"{name}-s{place}" for place, look in enumerate(often)}
    for look, short in classes.items():
        svg = svg.replace(f' style="{look}"', f' class="{short}"')
    rules = "".join(f".{short}{{{look}}}" for look, short in classes.items())
    return f"{opening}<style>{rules}</style>{svg}"


def css_name(color: str) -> str:
    """Return the CSS variable that stands for a colour of the figures."""
    return f"--c-{color.removeprefix('#')}"


def script_json(value: Any) -> Markup:
    """Return JSON that can be in a `<script>` element: nothing in it ends the element or starts a tag."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
