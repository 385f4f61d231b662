"""The grammar of figures: what is drawn is a value, and there is one way of drawing it.

    Figure    name, title, caption and rows; panels, and what its legend says beside the series
    Panel     one pair of axes: layers, their labels and scales, where nodes end, where nothing was measured
    Points    values with their spread, a mark a row, of each series its own look
    Curve     a line a series with its band; lighter and dashed where it is extrapolated
    Guide     a thin grey line that nobody measured: the ideal, no difference
    Bars      a bar a place, of parts one upon the other; series beside each other with their names below

Rows are those of a frame; columns are named. What pointing at a mark says, legends and axes follow from them.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from horovod_study.errors import ConfigError
from horovod_study.files import write_file, writing
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.files import FORMATS, write_result
from horovod_study.report.kit.panels import belongs, mark, tips
from horovod_study.text.numbers import percent, rounded
from horovod_study.text.words import plural

Looks = Mapping[str, style.SeriesStyle]


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
                    kit.line_of(axes, part["_at"], part[self.y] * self.scale, look)
            if self.hollow:
                how = {**kit.marker(look), "linestyle": "none", "zorder": 4}
                kit.line_of(axes, own["_at"], values[0], look, tips=texts, **how)
            else:
                resolved = own[self.resolved] if self.resolved else None
                kit.point_bars(axes, own["_at"], values, look, tips=texts, resolved=resolved)

    def places(self, last: float, panel_in: float) -> pd.Series:
        """Return where on the axis of x, which ends at `last`, the marks stand in a panel of `panel_in` inches."""
        rows = self.rows[self.rows[self.y].notna()]
        return kit.side_by_side(rows, self.y, last, panel_in) if self.apart else rows[self.at or self.x]

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
            pieces = kit.law_pieces(own) if "extrapolated" in own else [(False, own.sort_values(self.x, kind="stable"))]
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
                    how = {**kit.marker(look), "markersize": 4.2, "markevery": every, **how}
                kit.line_of(axes, piece[self.x], values, look, tips=texts if self.marked else (), **how)

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
            kit.note_at(axes, text, (place, head), (0, 2), ha="center", va="bottom", rotation=90 * upright)
        if low < 0:
            axes.axhline(0, color=style.QUIET, linewidth=0.7, zorder=3)
        counts = [f"{own['workers'].iloc[0]:.0f}" + (f"\n({nodes:.0f})" if spread else "") for _, nodes, own in bars]
        widest_in = max(map(style.text_in, counts)) + 0.04
        shown = kit.apart(places[::-1], lambda one, other: abs(one - other) * pitch_in >= widest_in)
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
            drawn = axes.bar(place, value, 0.7, bottom=foot, zorder=2, **kit.face(look))
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
            kit.label_ticks(axes.yaxis, MaxNLocator(nbins=6 if tall_in > 1.7 else 4, steps=(1, 2, 2.5, 5, 10)))
            self._words(axes, 0.7 * wide_in, 0.42 * tall_in)
            return 0
        marks = [layer for layer in self.layers if isinstance(layer, Points)]
        seen = [layer for layer in marks if not layer.hollow]
        lines = [layer for layer in self.layers if isinstance(layer, Curve)]
        counts = pd.concat([layer.rows[layer.x] for layer in marks or lines]).dropna()
        measured = max(float(layer.rows[layer.x].max()) for layer in seen or lines)
        places = [each.rows[each.at or each.x] for each in marks] + [each.rows[each.x] for each in lines]
        last = max(float(each.max()) for each in places if len(each))
        ends = [end for each in self.layers for end in getattr(each, "span", ()) if np.isfinite(end)]
        low, high = (min(ends), max(ends)) if ends else (1.0, 1.0)  # nothing is known: an empty panel
        if "y" in self.log:
            axes.set(yscale="log", ylim=(low / 1.25, high * 1.25))
            kit.label_ticks(axes.yaxis, LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
        for layer in self.layers:
            layer.draw(axes, looks, last, wide_in)
        for name, own in self.lost.groupby("series", sort=False) if self.lost is not None else ():  # instead of a gap
            at_foot: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
            at_foot["tips"] = [f"{plural(count, 'worker')}: no result" for count in own["workers"]]
            kit.line_of(axes, own["workers"], [0.03] * len(own), looks[f"{name}"], **_CROSS, **at_foot)
        above = list[tuple[float, str]]()
        if last > measured and self.beyond is not None:
            axes.axvspan(measured, 1.3 * last, color=style.SHADE, linewidth=0, zorder=0)
            above.append((last, self.beyond))
        moved = pd.concat([each.places(last, wide_in) for each in marks] or [counts])
        if self.decades:
            axes.set_xscale("log")
            kit.decade_axis(axes, wide_in)
        elif "x" in self.log or self.x == "Workers":
            kit.count_axis(axes, list(counts), last, wide_in, logarithmic="x" in self.log, at=list(moved))
        else:
            axes.set_xlim(0, 1.02 * last)
        axes.set_xlabel(style.folded(self.x, 0.8 * wide_in))
        if "y" not in self.log:
            foot, top = self.limits
            if foot is not None:  # else both ends are where the data ends
                foot, top = 1.08 * min(foot, low), (1.12 * high or 1.0) if top is None else top
            axes.set_ylim(foot, top)
            kit.label_ticks(axes.yaxis, MaxNLocator(nbins=6 if tall_in > 1.7 else 4, steps=(1, 2, 2.5, 5, 10)))
        if self.nodes is not None:
            above += kit.node_boundaries(axes, self.nodes, first=self.first)
        rows = kit.words_above(axes, above, wide_in)
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
    alt: str  # one sentence for a reader who cannot see it
    caption: str
    data: pd.DataFrame
    panels: Sequence[Panel] = ()
    looks: Looks = field(default_factory=dict)
    legend: Sequence[Any] = ()  # entries behind those of the series
    shape: tuple[int, float, float] = (2, 0.66, 0.5)  # panels in a row, height over width beside others and alone

    def draw(self, width_in: float) -> Canvas:
        """Return the figure drawn `width_in` inches wide; call it inside `style()`."""
        most, aspect, alone = self.shape
        panels = [each for each in self.panels if each.known]
        canvas, made, size_in = kit.grid(len(panels), width_in, most=most, aspect=aspect, alone=alone)
        above = [panel.draw(axes, self.looks, size_in) for axes, panel in zip(made, panels, strict=True)]
        more_in = max(above, default=0) * 1.3 * style.small() / 72 * round(len(panels) * size_in[0] / width_in + 0.49)
        canvas.set_figheight(min(canvas.get_figheight() + more_in, 9.2))
        layers = [layer for panel in panels for layer in panel.layers]
        points = [each for each in layers if isinstance(each, Points) and not each.hollow]
        lines = [each for each in layers if isinstance(each, Curve) and each.marked]
        series = [f"{name}" for layer in points or lines for name in layer.rows[layer.by].unique()]
        guides = {layer.label: layer.look for layer in layers if isinstance(layer, Guide) and layer.label}
        how: dict[str, Any] = {} if points or any(each.said for each in lines) else {"marker": "none"}
        entries = [*kit.handles(self.looks, dict.fromkeys(series), **how), *self.legend]
        entries += [Line2D([], [], label=label, **look) for label, look in guides.items()]
        swatches = [
            Patch(**kit.face(look), label=look.label)
            for layer in layers
            if isinstance(layer, Bars)
            for look in layer.drawn
        ]
        entries = [*{each.get_label(): each for each in swatches}.values(), *entries]
        if any(panel.lost is not None and len(panel.lost) for panel in panels):
            entries.append(Line2D([], [], color=style.QUIET, label="no result", **_CROSS))
        kit.legend(canvas, entries, width_in)
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

    `how`: `look` and `pgf` as `write_result` takes them. Raises ConfigError for `pgf` without LaTeX, and RecordError
    where `directory` cannot be written.
    """
    contents: dict[str, Any] = {}
    for each in made:
        contents |= {f"{each.name}.txt": each.caption, f"{each.name}.csv": each.data}
    draws = {each.name: each.draw for each in made}
    return write_result(directory, contents, draws, choose="folder", **how)
