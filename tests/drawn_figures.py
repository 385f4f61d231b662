"""Drawn figures for tests: one of a module by its name, drawn as for print, and what does not fit on it.

Pages and reports whose figures are not what is tested are made inside `figures_only()`: to draw takes longest.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from horovod_study.analysis.machine.resources import usage
from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.steps.breakdown import breakdown, losses
from horovod_study.report.figures import catalogue
from horovod_study.report.grammar import Figure as Drawing
from horovod_study.report.kit.style import PRINT_WIDTH_IN, FigureFormat, settled, style
from horovod_study.report.page import html


@contextmanager
def figures_only(*names: str) -> Iterator[None]:
    """Pages and reports hold the figures of these names and no others (test_report.py draws all of them)."""
    whole = catalogue.drawings
    with pytest.MonkeyPatch.context() as patch:
        for module in (catalogue, html):
            patch.setattr(module, "drawings", lambda analysis: [each for each in whole(analysis) if each.name in names])
        yield


def one(module, analysis, name):
    """Return the drawing of a module that has this name."""
    return {each.name: each for each in figures_of(module, analysis)}[name]


def figures_of(module, analysis):
    """Return the drawings of a module in the order of the catalogue."""
    made = [make(analysis) or () for make in catalogue.FIGURES if make.__module__ == module.__name__]
    return [each for found in made for each in ([found] if isinstance(found, Drawing) else found)]


def light(analysis, runs):
    """Return an analysis with the points, the breakdown, the losses and the usage of other runs, and without laws."""
    points, parts = scaling_points(runs), breakdown(runs)
    lost = losses(parts, points, analysis.attribution.iloc[:0], baseline="plain", skew_s=pd.Series(dtype=float))
    tables = {"points": points, "breakdown": parts, "losses": lost, "usage": usage(runs)}
    return replace(analysis, **tables, curves=analysis.curves.iloc[:0])


def drawn(drawing, width_in=PRINT_WIDTH_IN):
    """Return the figure of a drawing, laid out as for print."""
    with style(FigureFormat(width_in=width_in)):
        return settled(drawing.draw(width_in))


def shown_texts(figure: Figure) -> list[Text]:
    """Return the texts that are printed: those with letters, without ticks beyond the ends of their axis."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not (low - slack <= tick.get_loc() <= high + slack and axes.get_visible() and axis.get_visible()):
                    hidden |= {tick.label1, tick.label2}
        if not axes.get_visible():
            hidden |= set(axes.findobj(Text))
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in found if text not in hidden]


def box(text: Text):
    return text.get_window_extent()


def overlaps(one, other, slack: float = 0.7) -> bool:
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    tall = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > slack and tall > slack


def complaints(figure: Figure, name: str) -> list[str]:
    figure.draw_without_rendering()
    texts = [(text.get_text(), box(text)) for text in shown_texts(figure)]
    found = []
    for words, where in texts:
        if where.x0 < -1 or where.y0 < -1 or where.x1 > figure.bbox.x1 + 1 or where.y1 > figure.bbox.y1 + 1:
            found.append(f"{name}: {words!r} leaves the figure")
    for (one, here), (other, there) in itertools.combinations(texts, 2):
        if overlaps(here, there):
            found.append(f"{name}: {one!r} is on {other!r}")
    legends = [legend.get_window_extent() for legend in figure.legends]
    for axes in figure.axes:
        if axes.get_visible() and any(overlaps(axes.get_window_extent(), each) for each in legends):
            found.append(f"{name}: a legend is on a panel")
        if axes.get_visible() and min(axes.bbox.width, axes.bbox.height) < 0.3 * figure.dpi:
            found.append(f"{name}: a panel has {axes.bbox.width:.0f} x {axes.bbox.height:.0f} px")
    return found
