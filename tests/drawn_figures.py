"""Drawn figures for tests: one of a module by its name, drawn as for print, and what does not fit on it.

Pages and reports whose figures are not what is tested are made inside `figures_only()`: to draw takes longest.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from horovod_study.analysis.machine.usage import usage
from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.steps.breakdown import breakdown
from horovod_study.analysis.steps.losses import losses
from horovod_study.report.figures import catalogue
from horovod_study.report.kit.style import PRINT_WIDTH_IN, FigureFormat, settled, style
from horovod_study.report.page import check, html


@contextmanager
def figures_only(*names: str) -> Iterator[None]:
    """Pages and reports hold the figures of these names and no others (test_report.py draws all of them)."""
    whole = catalogue.drawings
    with pytest.MonkeyPatch.context() as patch:
        for module in (catalogue, html, check):
            patch.setattr(module, "drawings", lambda analysis: [each for each in whole(analysis) if each.name in names])
        yield


def one(module, analysis, name):
    """Return the drawing of a module that has this name."""
    return {each.name: each for each in module.drawings(analysis)}[name]


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


def cut_texts(figure):
    """Return the texts that reach over an edge of the figure, and the panels that have no room."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # legends have their places when they were drawn once
    page = figure.bbox
    places = []
    for axes in figure.axes:
        texts = [*axes.texts, axes.title, axes._left_title]
        places += [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text().strip()]
        for axis in (axes.xaxis, axes.yaxis):  # its label and the labels of the ticks that are drawn
            places.append((axis.label.get_text(), axis.get_tightbbox(renderer)))
    for legend in figure.legends:
        places += [(text.get_text(), text.get_window_extent(renderer)) for text in legend.get_texts()]
    found = []
    for name, box in places:
        if box is None:
            continue
        if box.x0 < page.x0 - 2 or box.x1 > page.x1 + 2 or box.y0 < page.y0 - 2 or box.y1 > page.y1 + 2:
            found.append(name)
    return found + [axes.get_ylabel() for axes in figure.axes if axes.get_window_extent().width < 0.45 * figure.dpi]
