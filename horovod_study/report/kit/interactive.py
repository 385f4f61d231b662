"""Figures inside a page: inline SVG, and what the page's script has to know of it.

A script that hides a series, shows the values of a point or zooms a panel must know what each element of the SVG is.
Who draws says it with `mark`; panels, ticks and legends are read off the finished figure. Marks are kept beside the
artists, not in them: the files of a figure are the same with and without.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, PathCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import Transform

from horovod_study.report.kit.style import DARK, SCREEN_WIDTH_IN, settled, style, to_bytes
from horovod_study.text.numbers import THIN, known, with_interval
from horovod_study.text.words import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What an artist stands for: a series, and what pointing at each of its points says."""

    series: str
    tips: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inline:
    """A figure for a page: its `<svg>` element, and the JSON that the page's script reads about it."""

    svg: str
    data: Mapping[str, Any]


_MARKS: WeakKeyDictionary[Artist, Mark] = WeakKeyDictionary()


def mark(artist: Artist | Iterable[Any], *, series: str, tips: Sequence[str] = ()) -> None:
    """Tell the page that `artist` belongs to `series`, the label of its legend entry: one entry switches all of them.

    `tips` are the texts of its points, one for each: of a line or scatter one per point, of bars (what Axes.bar
    returns) one per bar, of a patch one. Without tips there is nothing to point at: bands, error bars, fitted lines.
    """
    parts = _parts(artist)
    if tips and len(parts) > 1 and len(tips) == len(parts):
        for part, tip in zip(parts, tips, strict=True):
            mark(part, series=series, tips=[tip])
        return
    for place, part in enumerate(parts):
        _MARKS[part] = Mark(series=series, tips=tuple(tips) if place == 0 else ())


def _parts(artist: Artist | Iterable[Any] | None) -> list[Artist]:
    """Return the artists of a container one by one."""
    if artist is None:
        return []
    return [artist] if isinstance(artist, Artist) else [part for each in artist for part in _parts(each)]


def tips(
    rows: pd.DataFrame, value: str, *, low: str = "", high: str = "", unit: str = "", scale: float = 1.0, note: str = ""
) -> list[str]:
    """Return what pointing at each row's point says: `8 workers on 2 nodes: 3.91\u00d7 [3.82, 4.00], 3 repeats`.

    `value`, `low` and `high` are columns, multiplied by `scale` into `unit`; workers, nodes and repeats are said where
    the rows have such a column, `note` last.
    """
    after = f", {note}" if note else ""
    used = [name for name in dict.fromkeys((value, low, high, "workers", "nodes", "repeats")) if name in rows.columns]
    return [f"{_tip(row, value, low, high, unit, scale)}{after}" for row in rows[used].to_dict("records")]


def _tip(row: Mapping[Any, Any], value: str, low: str, high: str, unit: str, scale: float) -> str:
    ends = [scale * row.get(name, math.nan) for name in (low, high)]
    text, bracket, interval = with_interval(scale * row[value], *ends).partition(" [")
    unit = unit if unit in ("", "\u00d7") else f"{THIN}{unit}"
    words = [f"{text}{unit}{bracket}{interval}"]
    if known(row.get("repeats")):
        words.append(plural(row["repeats"], "repeat"))
    where = [plural(row["workers"], "worker")] if known(row.get("workers")) else []
    if known(row.get("nodes")) and row["nodes"] > 1:
        where.append(f"on {plural(row['nodes'], 'node')}")
    return f"{' '.join(where)}: {', '.join(words)}" if where else ", ".join(words)


def inline(drawing: Any, *, width_in: float = SCREEN_WIDTH_IN) -> _Inline:
    """Return a figure of the grammar as an `<svg>` with what the page's script needs; equal ones give equal values."""
    with style(svg__fonttype="none"):
        figure = settled(drawing.draw(width_in))
        figure.draw_without_rendering()  # legends and ticks have their places when they were drawn once
        data = _data(figure)
        svg = to_bytes(figure, "svg").decode("utf-8")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Names are unique in one SVG, but not among several on one page.
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{drawing.name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{drawing.name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{drawing.name}-\1)", svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--sans)", svg)
    for color in DARK:
        svg = re.sub(rf"(?<=: ){color}\b", f"var({css_name(color)})", svg)
        svg = svg.replace(f'fill="{color}"', f'style="fill: var({css_name(color)})"')  # in patterns of hatches
    head = re.match(r"<svg [^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="[^"]+"', head.group())
    assert box is not None
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box.group()}>'
    return _Inline(svg=_compact(opening, svg[head.end() :].strip(), drawing.name), data=data)


def _compact(opening: str, svg: str, name: str) -> str:
    """Return the same drawing in fewer letters: a hundredth of a point is finer than any screen or printer.

    Looks that come often become classes with the figure's name in front, as the styles of one figure hold for the page.
    """
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(
        rf' id="{name}-(?:line2d|text|patch|xtick|ytick|axes|figure|matplotlib\.axis|[A-Za-z]+Collection)_\d+"', "", svg
    )
    svg = re.sub(r' transform="rotate\(-0 [^")]*\)"', "", svg)
    svg = re.sub(r'\b(d|x|y|transform)="([^"<]*)"', _fewer_digits, svg)
    looks = Counter(re.findall(r' style="([^"]+)"', svg))
    classes = {look: f"{name}-s{place}" for place, look in enumerate(look for look in looks if looks[look] > 3)}
    svg = re.sub(
        r' style="([^"]+)"', lambda each: f' class="{classes[each[1]]}"' if each[1] in classes else each[0], svg
    )
    rules = "".join(f".{short}{{{look}}}" for look, short in classes.items())
    return f"{opening}<style>{rules}</style>{svg}"


def _fewer_digits(found: re.Match[str]) -> str:
    text = re.sub(r"-?\d+\.\d{3,}(?![\de])", lambda each: f"{float(each[0]):.2f}", found[2])
    return f'{found[1]}="{" ".join(text.split())}"'


def css_name(color: str) -> str:
    """Return the CSS variable that stands for a colour of the figures."""
    return f"--c-{color.removeprefix('#')}"


def script_json(value: Any) -> Markup:
    """Return JSON that can be in a `<script>` element: nothing in it ends the element or starts a tag."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


class _Sheet:
    """The figure's geometry in units of its SVG: points, from the upper left corner."""

    def __init__(self, figure: Figure) -> None:
        self.scale = 72 / figure.dpi  # the SVG's own unit
        self.height = float(figure.bbox.height) * self.scale

    def point(self, xy: Any) -> list[float]:
        return [round(float(xy[0]) * self.scale, 2), round(self.height - float(xy[1]) * self.scale, 2)]

    def box(self, box: Any) -> list[float]:
        return [*self.point((box.x0, box.y1)), *self.point((box.x1, box.y0))]


def _data(figure: Figure) -> dict[str, Any]:
    """Name the artists of a laid-out figure and return what the script needs: see `_Reader`."""
    sheet = _Sheet(figure)
    panels: list[dict[str, Any]] = []
    parts: list[list[Any]] = []
    tips: list[list[Any]] = []
    # Series that have an entry in a legend, numbered in its order.
    drawn = {each.series for axes in figure.axes for artist in axes.get_children() if (each := _MARKS.get(artist))}
    labels = dict.fromkeys(_entry(text) for legend in _all_legends(figure) for text in legend.get_texts())
    series = {label: place for place, label in enumerate(label for label in labels if label in drawn)}
    marked: list[list[Any]] = []
    places: dict[tuple[float, ...], int] = {}
    for axes in figure.axes:
        if axes.name != "rectilinear" or not axes.get_visible():
            continue
        box = sheet.box(axes.bbox)
        panel = places.setdefault(tuple(box), len(panels))  # axes with two scales share one panel
        if panel == len(panels):
            panels.append({"box": box, "axes": []})
        panels[panel]["axes"].append(
            {
                way: _axis(axis, axes, sheet, way, f"t{panel}-{len(panels[panel]['axes'])}{way}")
                for way, axis in (("x", axes.xaxis), ("y", axes.yaxis))
            }
        )
        for artist in axes.get_children():
            if not _drawn(artist, axes):
                continue
            name = f"m{len(parts)}"
            artist.set_gid(name)
            parts.append([name, panel, *_moves(artist, axes, sheet)])
            arrow = getattr(artist, "arrow_patch", None)
            if arrow is not None:
                arrow.set_gid(f"m{len(parts)}")
                parts.append([f"m{len(parts)}", panel, *parts[-1][2:]])
            known = _MARKS.get(artist)
            if known is not None:
                index = series.setdefault(known.series, len(series))
                marked.append([name, index])
                tips += [[index, panel, *xy, text] for xy, text in _tips(artist, known.tips, sheet)]
    return {
        "width": round(float(figure.bbox.width) * sheet.scale, 2),
        "height": round(sheet.height, 2),
        "panels": panels,
        "parts": parts,
        "series": list(series),
        "marked": marked,
        "tips": tips,
        **_legends(figure, series, sheet),
    }


def _drawn(artist: Artist, axes: Axes) -> bool:
    """Return whether an artist is content of the axes: neither frame nor scale nor title."""
    frame = (axes.patch, axes.title, *axes.spines.values())
    kinds = (Line2D, Collection, Patch, Text)
    titles = (axes._left_title, axes._right_title) if hasattr(axes, "_left_title") else ()  # type: ignore[attr-defined]
    return isinstance(artist, kinds) and artist.get_visible() and artist not in (*frame, *titles)


def _moves(artist: Artist, axes: Axes, sheet: _Sheet) -> list[Any]:
    """Return which coordinates of an artist are data, how it moves when they do, and the anchor of what moves whole."""
    if isinstance(artist, Text):
        if isinstance(artist, Annotation):
            follows = _follows(artist.xycoords, axes)
            anchor = axes.transData.transform(artist.xy) if follows == "xy" else _anchor(artist)
            return [follows, "whole", *sheet.point(anchor)]
        return [_follows(artist.get_transform(), axes), "whole", *sheet.point(_anchor(artist))]
    if isinstance(artist, PathCollection):
        return [_follows(artist.get_offset_transform(), axes), "marks"]
    return [_follows(artist.get_transform(), axes), "shapes" if isinstance(artist, Collection) else "lines"]


def _anchor(text: Text) -> Any:
    return text.get_transform().transform(text.get_unitless_position())


def _follows(place: Any, axes: Axes) -> str:
    """Return which of x and y follow the data in a coordinate system of matplotlib: xy, x, y or nothing."""
    if isinstance(place, Transform):
        x, y = place.contains_branch_seperately(axes.transData)
    else:
        names = place if isinstance(place, tuple) else (place, place)
        x, y = (name == "data" for name in names)
    return ("x" if x else "") + ("y" if y else "")


def _axis(axis: Axis, axes: Axes, sheet: _Sheet, way: str, prefix: str) -> dict[str, Any]:
    """Return the scale of an axis: its ends, its ticks, and whether the script may label further places of it."""
    low, high = (float(end) for end in axis.get_view_interval())
    ticks = []
    plain = axis.get_scale() in ("linear", "log")
    if axis.get_visible():
        for number, tick in enumerate([*axis.get_major_ticks(), *axis.get_minor_ticks()]):
            place = float(tick.get_loc())
            if not min(low, high) <= place <= max(low, high):
                continue
            tick.set_gid(f"{prefix}{number}")
            row, at = (
                (axes.get_xaxis_transform(), (place, 0)) if way == "x" else (axes.get_yaxis_transform(), (0, place))
            )
            spot = sheet.point(row.transform(at))
            text = tick.label1.get_text() or tick.label2.get_text()
            plain = plain and _says(text, place)
            ticks.append([f"{prefix}{number}", spot[0 if way == "x" else 1]])
    return {
        "scale": axis.get_scale(),
        "ends": [low, high],
        "plain": plain,
        "whole": isinstance(axis.get_major_locator(), FixedLocator),
        "ticks": ticks,
    }


def _says(label: str, place: float) -> bool:
    """Return whether a tick's label is its own number, so that other places can be labelled in the same way."""
    if not label:
        return True
    try:
        value = float(label.replace("\u2212", "-").replace("\u202f", ""))
    except ValueError:
        return False
    return abs(value - place) <= 1e-6 * max(abs(value), abs(place)) + 1e-12


def _tips(artist: Artist, texts: Sequence[str], sheet: _Sheet) -> list[tuple[list[float], str]]:
    """Return where in the SVG each text belongs; a point that is not drawn has none."""
    if not texts:
        return []
    places: Any
    if isinstance(artist, Line2D):
        places = artist.get_transform().transform(artist.get_xydata())
    elif isinstance(artist, PathCollection):
        places = artist.get_offset_transform().transform(artist.get_offsets())
    else:
        box = artist.get_window_extent()
        places = [((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)]
    return [
        (sheet.point(xy), text) for xy, text in zip(places, texts, strict=True) if xy[0] == xy[0] and xy[1] == xy[1]
    ]


def _all_legends(figure: Figure) -> list[Legend]:
    return [*figure.legends, *(each for axes in figure.axes if (each := axes.get_legend()) is not None)]


def _entry(text: Text) -> str:
    """Return what a legend entry says in one line: long ones are broken without losing a letter."""
    return text.get_text().replace("\n", "")


def _legends(figure: Figure, series: Mapping[str, int], sheet: _Sheet) -> dict[str, Any]:
    """Return the entries of all legends with a name for the swatch of each, and where the figure ends without them.

    `crop` is null where the legends do not stand alone at the foot of the figure.
    """
    legends = _all_legends(figure)
    entries: list[list[Any]] = []
    for number, legend in enumerate(legends):
        legend.set_gid(f"legend{number}")
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
            if handle is None:
                continue
            name = f"l{len(entries)}"
            handle.set_gid(name)
            box = sheet.box(handle.get_window_extent())
            entries.append([name, _entry(text), series.get(_entry(text), -1), box])
    top = max((float(legend.get_window_extent().y1) for legend in legends), default=math.inf)
    alone = all(legend in figure.legends for legend in legends) and all(top < axes.bbox.y0 for axes in figure.axes)
    return {"legend": entries, "crop": sheet.point((0, top))[1] if legends and figure.axes and alone else None}
