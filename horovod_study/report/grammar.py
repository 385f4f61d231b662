"""The grammar of figures: what is drawn is a value, and there is one way of drawing it.

    Figure    name, title, caption and rows; panels, and what its legend says beside the series
    Panel     one pair of axes: layers, their labels and scales, where nodes end, where nothing was measured
    Points    values with their spread, a mark a row, of each series its own look
    Curve     a line a series with its band; lighter and dashed where it is extrapolated
    Guide     a thin grey line that nobody measured: the ideal, no difference
    Bars      a bar a place, of parts one upon the other; series beside each other with their names below

Rows are those of a frame; columns are named. What pointing at a mark says, legends and axes follow from them. Below it
what they share: axes of worker counts, node boundaries, legends; and figures inside a page, in which an invisible spot
with a `<title>` is at each point: what it says is kept beside the artists (`mark`), and in no other file of the figure.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from horovod_study.errors import ConfigError
from horovod_study.files import write_file, writing
from horovod_study.report.kit import style
from horovod_study.report.kit.files import FORMATS, write_result
from horovod_study.text.numbers import THIN, known, percent, prefixed, rounded, with_interval
from horovod_study.text.words import cut, listed, plural, span

Looks = Mapping[str, style.SeriesStyle]
MAX_PANELS = 6  # of one figure; further settings are in its CSV file and in the tables of the page
MAX_HEIGHT_IN = 8.4  # of all panels together: a page has room for them, their legend and a caption


def spread(name: str, *ends: str) -> dict[str, Any]:
    """Return the columns of a quantity as y, low and high: with `_median`, `_min` and `_max`, or with other `ends`."""
    return dict(zip(("y", "low", "high"), (f"{name}{end}" for end in ends or ("_median", "_min", "_max")), strict=True))


@dataclass(frozen=True, kw_only=True)
class Points:
    """Values against `x` with bars from `low` to `high`, multiplied by `scale` into `unit`."""

    rows: pd.DataFrame
    y: str
    low: str = ""
    high: str = ""
    x: str = "workers"
    by: str = "series"
    scale: float = 1.0
    unit: str = ""
    ends: tuple[str, str] | None = None  # columns of the interval that pointing at a mark says; the bars' own if None
    line: bool = False  # through the marks
    within: str = ""  # column: only marks that are equal in it are joined
    apart: bool = False  # marks that would hide each other stand side by side
    at: str = ""  # column: where on the axis of x they stand instead
    resolved: str = ""  # column: hollow marks where it is False
    note: str = ""  # column: what pointing at a mark says last
    hollow: bool = False  # what nobody measured; the legend has the filled ones

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the marks of every series on `axes`, whose x ends at `last` and which is `panel_in` inches wide."""
        rows = self.rows[self.rows[self.y].notna()]
        at = self.places(last, panel_in)
        low, high = self.ends if self.ends is not None else (self.low, self.high)
        for name, own in rows.assign(_at=at).sort_values(self.x, kind="stable").groupby(self.by, sort=False):
            look = replace(looks[f"{name}"], filled=False) if self.hollow else looks[f"{name}"]
            values = [own[column or self.y] * self.scale for column in (self.y, self.low, self.high)]
            texts = tips(own, self.y, low=low, high=high, unit=self.unit, scale=self.scale)
            if self.x != "workers":
                texts = [f"{self.x} {place:g}, {text}" for place, text in zip(own[self.x], texts, strict=True)]
            if self.note:
                texts = [f"{text}, {note}" for text, note in zip(texts, own[self.note], strict=True)]
            if self.line and not look.ring:
                for _, part in own.groupby(self.within, sort=True, dropna=False) if self.within else [("", own)]:
                    line_of(axes, part["_at"], part[self.y] * self.scale, look)
            if not self.hollow:
                ends = axes.vlines(own["_at"], values[1], values[2], color=look.color, linewidth=1.1, zorder=3)
                belongs(ends, look.label)
            drawn = [(look, np.full(len(own), True))]
            if self.resolved:
                solid = own[self.resolved].to_numpy()
                drawn = [(replace(look, filled=filled, ring=False), solid == filled) for filled in (True, False)]
            for each, which in drawn:
                said = [text for text, kept in zip(texts, which, strict=True) if kept]
                how: dict[str, Any] = {"tips": said, "linestyle": "none", **marker(each), "zorder": 4}
                if said:
                    line_of(axes, own["_at"][which], values[0][which], each, **how)

    def places(self, last: float, panel_in: float) -> pd.Series:
        """Return where on the axis of x, which ends at `last`, the marks stand in a panel of `panel_in` inches."""
        rows = self.rows[self.rows[self.y].notna()]
        return side_by_side(rows, self.y, last, panel_in) if self.apart else rows[self.at or self.x]

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value that is drawn."""
        values = self.rows[[each for each in (self.y, self.low, self.high) if each]] * self.scale
        return float(values.min().min()), float(values.max().max())


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of each series against `x`, with a band from `low` to `high`; the column `extrapolated` splits it."""

    rows: pd.DataFrame
    y: str
    low: str = ""
    high: str = ""
    x: str = "workers"
    by: str = "series"
    scale: float = 1.0
    how: Mapping[str, Any] = field(default_factory=dict)  # as Axes.plot takes it
    band: float = 0.16  # its opacity
    unit: str = ""
    marked: bool = False  # pointing at a place of the line says its value, and it has an entry in the legend
    said: str = ""  # column: what it says instead; then the line has marks, a dozen at most

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the line of every series."""
        for name, own in self.rows.groupby(self.by, sort=False):
            look = looks[f"{name}"]
            pieces = [(False, own.sort_values(self.x, kind="stable"))]
            if "extrapolated" in own:  # split at the first and the last fitted count
                inside = np.flatnonzero(~own["extrapolated"].to_numpy(dtype=bool))
                first, last = (inside[0], inside[-1]) if len(inside) else (0, -1)
                parts = [(True, own[: first + 1]), (False, own[first : last + 1]), (True, own[last:])]
                pieces = [each for each in parts if len(inside) and len(each[1]) > 1]
            for beyond, piece in pieces:
                if self.low:
                    ends = (piece[self.low] * self.scale, piece[self.high] * self.scale)
                    flat: dict[str, Any] = {"color": look.color, "linewidth": 0, "zorder": 1.5}
                    flat["alpha"] = self.band / 2 if beyond else self.band
                    belongs(axes.fill_between(piece[self.x], *ends, **flat), look.label)
                how = {"dash_capstyle": "butt", "zorder": 2.5, "alpha": 1, **self.how}
                if beyond:
                    wide = min(1.2, how.get("linewidth", 1.2))
                    how |= {"linewidth": wide, "alpha": 0.65, "linestyle": style.EXTRAPOLATED_DASH}
                values = piece[self.y] * self.scale
                texts = [
                    f"{at:.3g}: {rounded(value, 3)} {self.unit}"
                    for at, value in zip(piece[self.x], values, strict=True)
                ]
                if self.said:
                    texts, every = list(piece[self.said]), max(1, len(piece) // 12)
                    how = {**marker(look), "markersize": 4.2, "markevery": every, **how}
                line_of(axes, piece[self.x], values, look, tips=texts if self.marked else (), **how)

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest value of the lines; where they are extrapolated, at most twice that before."""
        rows = self.rows
        if "extrapolated" in rows:
            rows = rows[~rows["extrapolated"].astype(bool)]
        values = rows[[self.y, self.high] if self.marked and self.high else [self.y]] * self.scale
        top = float(values.max().max())
        return float(values.min().min()), max(top, min(2 * top, float(self.rows[self.y].max()) * self.scale))


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A thin grey line through x, y; with one y a level, with a slope a ray from the origin."""

    label: str = ""  # of its entry in the legend
    level: float | None = None
    slope: float | None = None
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    held: bool = False  # the axis of y reaches it

    @property
    def look(self) -> dict[str, Any]:
        """How it is drawn, as Axes.plot takes it."""
        return {"color": style.QUIET, "linewidth": 0.7, **self.how}

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the line."""
        if self.level is not None:
            axes.axhline(self.level, zorder=1, **self.look)
        elif self.slope is not None and axes.get_yscale() == "log":
            axes.axline((1, self.slope), (2, 2 * self.slope), zorder=1, **self.look)
        elif self.slope is not None:
            axes.plot([0, 2 * last], [0, 2 * last * self.slope], zorder=1, **self.look)
        else:
            axes.plot(self.x, self.y, zorder=1, **self.look)

    @property
    def span(self) -> tuple[float, ...]:
        """Its values where the axis of y is to reach them."""
        return () if not self.held else tuple(self.y) if self.level is None else (self.level,)


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars of `parts`, one upon the other from zero, what is negative the other way, with their sum on top.

    `rows` has one row for each part of a bar; series stand beside each other, in the order of the rows.
    """

    rows: pd.DataFrame
    y: str
    parts: Mapping[str, style.LapStyle]  # from the bottom of a bar to its top
    part: str = "part"  # column
    by: str = "series"
    scale: float = 1.0
    unit: str = ""
    before: str = ""  # column: what stands before the sum
    low: str = ""  # columns: the interval of the sum
    high: str = ""
    loud: str = ""  # the part in which its share of the bar is written
    reach: float = 0.0  # the axis of y ends there or above

    @property
    def drawn(self) -> list[style.LapStyle]:
        """The looks of the parts that some bar has."""
        seen = set(self.rows.loc[self.rows[self.y].fillna(0) != 0, self.part])
        return [look for part, look in self.parts.items() if part in seen]

    @property
    def _bars(self) -> Any:
        return self.rows.groupby([self.by, "workers", "nodes"], sort=False, dropna=False)

    @property
    def span(self) -> tuple[float, float]:
        """The lowest and the highest end of a bar or its interval."""
        low, high = (self._bars[self.y].agg(lambda own, s=s: own[s * own > 0].sum()) for s in (-1, 1))
        highest = max(high.max(), self.rows[self.high].max()) if self.high else high.max()
        return self.scale * float(low.min()), float(np.nanmax([self.reach, self.scale * highest]))

    def draw(self, axes: Axes, looks: Looks, size_in: tuple[float, float]) -> None:
        """Draw the bars, what is written at them, and the axis of x of a panel of `size_in` inches."""
        bars = [(f"{series}", nodes, own) for (series, _, nodes), own in self._bars]
        groups = Counter(series for series, _, _ in bars)
        labels = {name: looks[name].label if name in looks else name for name in groups}
        spread = self.rows["nodes"].nunique() > 1
        pitch_in = 0.85 * size_in[0] / (len(bars) + 0.6 * len(groups))
        places, middles, end = list[float](), list[tuple[float, float, str]](), 0.0
        for name, count in groups.items():  # as wide as its bars or the longest word of its name
            wide = max(count, 1.1 * style.text_in(style.folded(labels[name], 0.0)) / pitch_in)
            places += [end + (wide - count + 1) / 2 + each for each in range(count)]
            middles.append((end + wide / 2, wide, labels[name]))
            end += wide + 0.6
        pitch_in = 0.85 * size_in[0] / end
        names = [style.folded(label, wide * pitch_in) for _, wide, label in middles]
        lines = spread + max(name.count("\n") + 1 for name in names)
        tall_in = max(0.3, size_in[1] - 0.7 - 1.35 * style.small() / 72 * lines)
        texts = [f"{own[self.before].iloc[0]}" if self.before else "" for *_, own in bars]
        texts = [
            text + rounded(self.scale * own[self.y].sum(min_count=1), 3)
            for text, (*_, own) in zip(texts, bars, strict=True)
        ]
        longest_in, (low, high) = max(map(style.text_in, texts)), self.span
        upright = longest_in > 0.95 * pitch_in
        top = high * (1 + (0.06 + longest_in if upright else 1.6 * style.small() / 72) / tall_in) or 1.0
        for place, text, (name, _, own) in zip(places, texts, bars, strict=True):
            head = self._bar(axes, place, own, labels[name], (pitch_in, tall_in / top))
            note_at(axes, text, (place, head), (0, 2), ha="center", va="bottom", rotation=90 * upright)
        if low < 0:
            axes.axhline(0, color=style.QUIET, linewidth=0.7, zorder=3)
        counts = [f"{own['workers'].iloc[0]:.0f}" + (f"\n({nodes:.0f})" if spread else "") for _, nodes, own in bars]
        widest_in = max(map(style.text_in, counts)) + 0.04
        shown = apart(places[::-1], lambda one, other: abs(one - other) * pitch_in >= widest_in)
        axes.set_xticks(places, [text if place in shown else "" for place, text in zip(places, counts, strict=True)])
        axes.xaxis.remove_overlapping_locs = False
        axes.set_xticks([middle for middle, _, _ in middles], names, minor=True, color=style.QUIET)
        axes.tick_params(axis="x", which="minor", pad=3 + (1.45 + 1.75 * spread) * style.small())
        axes.tick_params(axis="x", which="both", length=0)
        axes.set(xlim=(-0.2, end - 0.4), ylim=(min(0.0, 1.08 * low), top))
        axes.set_xlabel("Workers (nodes)" if spread else "Workers")

    def _bar(self, axes: Axes, place: float, own: pd.DataFrame, label: str, per_in: tuple[float, float]) -> float:
        """Draw one bar, `per_in` inches from bar to bar and for one of y; return where its upper end is."""
        values = self.scale * own.set_index(self.part)[self.y].astype(float)
        said = dict(zip(own[self.part], tips(own, self.y, unit=self.unit, scale=self.scale), strict=True))
        ends = {True: 0.0, False: 0.0}
        for part, look in self.parts.items():
            value = values.get(part, math.nan)
            if not value or math.isnan(value):
                continue
            foot, share = ends[value > 0], percent(value / values.sum())
            drawn = axes.bar(place, value, 0.7, bottom=foot, zorder=2, **face(look))
            mark(drawn, series=look.label, tips=[f"{label}, {said[part]}, {share} of the bar"])
            ends[value > 0] += value
            narrow = style.text_in(share) > 0.66 * per_in[0]
            if part == self.loud and value * per_in[1] > (style.text_in(share) if narrow else style.small() / 72):
                how: dict[str, Any] = {"ha": "center", "va": "center", "size": style.small(), "color": look.ink}
                axes.text(place, foot + value / 2, share, rotation=90 * narrow, zorder=3, **how)
        interval = [self.scale * own[each].iloc[0] for each in (self.low, self.high) if each]
        for color, width in ((style.PAPER, 2.6), (style.INK, 1.0)) if interval else ():
            axes.plot([place, place], interval, color=color, linewidth=width, zorder=5)
        return float(np.nanmax([ends[True], *interval]))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes: its layers, from the back to the front, and its axes."""

    layers: Sequence[Any]
    y: str
    x: str = "Workers"
    title: str = ""
    log: str = ""  # "x", "y" or "xy"
    decades: bool = False  # a logarithmic x has round numbers, not those that were measured
    limits: tuple[float | None, float | None] = (0.0, None)  # of y; None: as the data is
    nodes: pd.DataFrame | None = None  # rows whose node boundaries are marked
    first: bool = False  # that of the second node alone
    lost: pd.DataFrame | None = None  # cells without a result: a cross at the foot
    beyond: str | None = None  # the word on the grey behind the last measured count; None: no grey

    @property
    def known(self) -> bool:
        """Whether there is a value to draw."""
        return any(np.isfinite(each.span).any() for each in self.layers if isinstance(each, Points | Curve | Bars))

    def draw(self, axes: Axes, looks: Looks, size_in: tuple[float, float]) -> int:
        """Draw the panel, `size_in` inches wide and tall; return how many rows of words are above it."""
        wide_in, tall_in = size_in
        if isinstance(self.layers[0], Bars):
            self.layers[0].draw(axes, looks, size_in)
            label_ticks(axes.yaxis, MaxNLocator(nbins=6 if tall_in > 1.7 else 4, steps=(1, 2, 2.5, 5, 10)))
            self._words(axes, 0.7 * wide_in, 0.42 * tall_in)
            return 0
        marks = [layer for layer in self.layers if isinstance(layer, Points)]
        seen = [layer for layer in marks if not layer.hollow]
        lines = [layer for layer in self.layers if isinstance(layer, Curve)]
        counts = pd.concat([layer.rows[layer.x] for layer in marks or lines]).dropna()
        measured = max(float(layer.rows[layer.x].max()) for layer in seen or lines)
        ahead = [each.rows[each.at or each.x] for each in marks] + [each.rows[each.x] for each in lines]
        last = max(float(each.max()) for each in ahead if len(each))
        ends = [end for each in self.layers for end in getattr(each, "span", ()) if np.isfinite(end)]
        low, high = (min(ends), max(ends)) if ends else (1.0, 1.0)  # nothing is known: an empty panel
        if "y" in self.log:
            axes.set(yscale="log", ylim=(low / 1.25, high * 1.25))
            label_ticks(axes.yaxis, LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
        for layer in self.layers:
            layer.draw(axes, looks, last, wide_in)
        for name, own in self.lost.groupby("series", sort=False) if self.lost is not None else ():  # instead of a gap
            at_foot: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
            at_foot["tips"] = [f"{plural(count, 'worker')}: no result" for count in own["workers"]]
            line_of(axes, own["workers"], [0.03] * len(own), looks[f"{name}"], **_CROSS, **at_foot)
        above = list[tuple[float, str]]()
        if last > measured and self.beyond is not None:
            axes.axvspan(measured, 1.3 * last, color=style.SHADE, linewidth=0, zorder=0)
            above.append((last, self.beyond))
        moved = pd.concat([each.places(last, wide_in) for each in marks] or [counts])
        if self.decades:
            axes.set_xscale("log")  # with round numbers: powers of ten before others
            left, right = axes.get_xlim()
            decades = range(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1)
            places = [sub * 10.0**decade for sub in (1, 3, 2, 5) for decade in decades]
            shown = _fitting(axes, [each for each in places if left <= each <= right], wide_in)
            label_ticks(axes.xaxis, FixedLocator(shown), prefixed)
        elif "x" in self.log or self.x == "Workers":
            count_axis(axes, list(counts), last, wide_in, logarithmic="x" in self.log, at=list(moved))
        else:
            axes.set_xlim(0, 1.02 * last)
        axes.set_xlabel(style.folded(self.x, 0.8 * wide_in))
        if "y" not in self.log:
            foot, top = self.limits
            if foot is not None:  # else both ends are where the data ends
                foot, top = 1.08 * min(foot, low), (1.12 * high or 1.0) if top is None else top
            axes.set_ylim(foot, top)
            label_ticks(axes.yaxis, MaxNLocator(nbins=6 if tall_in > 1.7 else 4, steps=(1, 2, 2.5, 5, 10)))
        if self.nodes is not None:
            above += node_boundaries(axes, self.nodes, first=self.first)
        rows = words_above(axes, above, wide_in)
        self._words(axes, 0.8 * wide_in, 0.7 * tall_in, rows)
        return rows

    def _words(self, axes: Axes, wide_in: float, tall_in: float, rows: int = 0) -> None:
        axes.set_ylabel(style.folded(self.y, tall_in))
        axes.set_title(style.folded(self.title, wide_in), pad=6 + 1.3 * style.small() * rows)


_CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 5, "markeredgewidth": 1.2}


def of_bars(rows: pd.DataFrame, y: str, label: str, *, most: int = 14, **how: Any) -> dict[str, Any]:
    """Return panels and shape of a figure of bars: one for each setting, several where it has more than `most` bars.

    A series stays in one panel; of a longer one, bars from the first to the last are drawn. A page has room for four.
    """
    drawn: list[pd.DataFrame] = []
    for _, own in rows.groupby("setting", sort=False):
        room = 0
        for _, series in own.groupby("series", sort=False):
            cells = series[["workers", "nodes"]].drop_duplicates()
            kept = cells.iloc[np.linspace(0, len(cells) - 1, min(most - 2, len(cells))).round().astype(int)]
            series = series.merge(kept)
            if len(kept) > room:
                drawn, room = [*drawn, series], most - len(kept)
            else:
                drawn, room = [*drawn[:-1], pd.concat([drawn[-1], series])], room - len(kept)
    whole = Bars(rows=rows, y=y, **how)
    tops = {name: replace(whole, rows=own).span[1] for name, own in rows.groupby("setting", sort=False)}
    panels = []
    for own in drawn[:4]:
        setting = own["setting"].iloc[0]
        made = replace(whole, rows=own, reach=tops[setting])
        panels.append(Panel(layers=[made], y=label, title=f"{setting}" if len(tops) > 1 else ""))
    widest = max(len(own[["series", "workers", "nodes"]].drop_duplicates()) for own in drawn[:4])
    return {"panels": panels, "shape": (max(1, min(3, most // widest)), 0.66, 0.36)}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure before it is drawn: `panels` in reading order, `data` the rows that its CSV file has."""

    name: str  # of its files
    title: str
    caption: str
    data: pd.DataFrame
    panels: Sequence[Panel] = ()
    looks: Looks = field(default_factory=dict)
    legend: Sequence[Any] = ()  # entries behind those of the series
    shape: tuple[int, float, float] = (2, 0.66, 0.5)  # panels in a row, height over width beside others and alone

    @property
    def alt(self) -> str:
        """One sentence for a reader who cannot see it: the first one of the caption."""
        return re.split(r"(?<=\.)\s", self.caption, maxsplit=1)[0]

    def draw(self, width_in: float) -> Canvas:
        """Return the figure drawn `width_in` inches wide; call it inside `style()`."""
        most, aspect, alone = self.shape
        panels = [each for each in self.panels if each.known]
        narrow = width_in < style.NARROW_IN
        columns = 1 if narrow else min(len(panels), most)
        rows, ratio = math.ceil(len(panels) / columns), 0.66 if narrow else alone if columns == 1 else aspect
        size_in = (width_in / columns, min(max(1.75, ratio * width_in / columns), MAX_HEIGHT_IN / rows))
        canvas = Canvas(figsize=(width_in, rows * size_in[1] + 0.45), layout="constrained")
        made = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for spare in made[len(panels) :]:
            spare.remove()
        above = [panel.draw(axes, self.looks, size_in) for axes, panel in zip(made, panels, strict=False)]
        more_in = max(above, default=0) * 1.3 * style.small() / 72 * rows
        canvas.set_figheight(min(canvas.get_figheight() + more_in, 9.2))
        layers = [layer for panel in panels for layer in panel.layers]
        points = [each for each in layers if isinstance(each, Points) and not each.hollow]
        lines = [each for each in layers if isinstance(each, Curve) and each.marked]
        series = [f"{name}" for layer in points or lines for name in layer.rows[layer.by].unique()]
        guides = {layer.label: layer.look for layer in layers if isinstance(layer, Guide) and layer.label}
        how: dict[str, Any] = {} if points or any(each.said for each in lines) else {"marker": "none"}
        entries = [*handles(self.looks, dict.fromkeys(series), **how), *self.legend]
        entries += [Line2D([], [], label=label, **look) for label, look in guides.items()]
        swatches = [
            Patch(**face(look), label=look.label) for layer in layers if isinstance(layer, Bars) for look in layer.drawn
        ]
        entries = [*{each.get_label(): each for each in swatches}.values(), *entries]
        if any(panel.lost is not None and len(panel.lost) for panel in panels):
            entries.append(Line2D([], [], color=style.QUIET, label="no result", **_CROSS))
        legend(canvas, entries, width_in)
        return canvas

    def save(self, path: str | os.PathLike[str], *, look: style.FigureFormat = style.TEXT) -> None:
        """Write the figure as .pdf, .svg or .png; ConfigError for another ending, RecordError where it cannot be."""
        path = Path(path)
        form = path.suffix.removeprefix(".").lower()
        if form not in FORMATS:
            raise ConfigError(f"{path}: the ending must be one of {', '.join(f'.{each}' for each in FORMATS)}")
        with writing(path, "choose a writable folder"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, self._bytes(form, look))

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self._bytes("png", style.TEXT)

    def _bytes(self, form: str, look: style.FigureFormat) -> bytes:
        with style.style(look):
            return style.to_bytes(style.settled(self.draw(look.width_in)), form)


def write_files(made: Sequence[Figure], directory: Path, **how: Any) -> list[Path]:
    """Write NAME.pdf, .svg, .png, .txt (caption) and .csv (data) of some figures; return the paths.

    `how`: `look` as `write_result` takes it. Raises RecordError where `directory` cannot be written.
    """
    contents: dict[str, Any] = {}
    for each in made:
        contents |= {f"{each.name}.txt": each.caption, f"{each.name}.csv": each.data}
    draws = {each.name: each.draw for each in made}
    return write_result(directory, contents, draws, choose="folder", **how)


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


def legend(figure: Canvas, handles: Sequence[Any], width_in: float) -> None:
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
    figure.legend(handles=list(handles), labels=labels, loc="outside lower center", ncols=columns)


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
        # What is drawn of a series, and its entries of the legend, have one number.
        drawn = [artist for axes in figure.axes for artist in axes.get_children()]
        for legend in figure.legends:
            for number, (text, handle) in enumerate(zip(legend.get_texts(), legend.legend_handles, strict=True)):
                own = [artist for artist in drawn if _SERIES.get(artist) == text.get_text().replace("\n", "")]
                for artist in (text, handle) if own and handle is not None else ():
                    artist.set_gid(f"legend-{number}")
                for artist in own:
                    artist.set_gid(f"series-{number}")
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


def _spots(figure: Canvas) -> Iterator[str]:
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
