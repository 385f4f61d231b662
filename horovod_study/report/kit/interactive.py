"""Figures inside a page: inline SVG in the colours of the page, in which pointing at a mark says its value.

Who draws says what a mark stands for with `mark`. That is kept beside the artists, not in them: the files of a figure
are the same with and without. In the page each point has an invisible spot with a `<title>`, which any browser shows.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from horovod_study.report.kit.style import DARK, SCREEN_WIDTH_IN, settled, style, to_bytes
from horovod_study.text.numbers import THIN, known, with_interval
from horovod_study.text.words import plural

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


def inline(drawing: Any, *, width_in: float = SCREEN_WIDTH_IN) -> str:
    """Return a figure of the grammar as an `<svg>`; equal ones give equal texts."""
    with style(svg__fonttype="none"):
        figure = settled(drawing.draw(width_in))
        _number(figure)
        svg = to_bytes(figure, "svg").decode("utf-8")
        spots = "".join(_spots(figure))  # bars have their places when they were drawn once
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Names are unique in one SVG, but not among several on one page.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{drawing.name}-", svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--sans)", svg)
    svg = re.sub(rf'id="{drawing.name}-(series|legend)-(\d+)"', r'data-\1="\2"', svg)
    for color in DARK:
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
    svg = re.sub(r'\b(d|x|y|transform)="([^"<]*)"', _fewer_digits, svg)
    looks = Counter(re.findall(r' style="([^"]+)"', svg))
    often = [look for look, count in looks.items() if count > 3]
    classes = {look: f"{name}-s{place}" for place, look in enumerate(often)}
    for look, short in classes.items():
        svg = svg.replace(f' style="{look}"', f' class="{short}"')
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
