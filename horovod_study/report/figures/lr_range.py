"""The figure of a learning-rate range test: loss against rate, with the rates that were read off it."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from horovod_study.analysis.learning.lr_range import UNSTEADY, RangeTest
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import label_decades, note_at
from horovod_study.report.kit.style import GRID, INK, LAPS, QUIET

NAME = "lr_range"
_LINE, _GOOD, _BAD = "#0072b2", "#009e73", LAPS["sync"].color


def write_lr_range(test: RangeTest, directory: Path, *, batch: int) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt), the curve (.csv) and the result (.json).

    `batch`: curves per step of all workers, for the caption. Returns the paths.
    """
    curve = pd.DataFrame({"lr": test.rates, "loss": test.losses, "smoothed_loss": test.smooth})
    texts = {f"{NAME}.txt": caption(test, batch=batch), f"{NAME}.csv": curve, f"{NAME}.json": finite(test)}
    return write_result(directory, texts, {NAME: partial(draw, test)})


def caption(test: RangeTest, *, batch: int) -> str:
    """Return what a reader of the figure must know."""
    found = []
    if test.steepest_rate is not None:
        found.append(f"The loss falls fastest at {test.steepest_rate:.2g}.")
    if test.diverged_rate is not None:
        found.append(
            f"It diverges at {test.diverged_rate:.2g}: from there on it stays above {UNSTEADY:g} times its smallest "
            "value."
        )
    return " ".join(
        [
            "Learning-rate range test: training loss (mean square error of the normalised targets) of each of "
            f"{len(test.rates):,} steps with {batch} curves while the rate rises exponentially from "
            f"{test.rates[0]:.2g} to {test.rates[-1]:.2g}. Line: running median over {test.window} steps.",
            *found,
            f"Suggested: {test.reason}.",
        ]
    )


def draw(test: RangeTest, width_in: float) -> Figure:
    """Return the figure; call it inside style()."""
    figure = Figure(figsize=(width_in, 0.52 * width_in + 0.2), layout="constrained")
    axes = figure.subplots()
    # Far beyond the divergence there is nothing to see.
    last = float(test.rates[-1]) if test.diverged_rate is None else min(float(test.rates[-1]), 20 * test.diverged_rate)
    before = test.smooth if test.diverged_rate is None else test.smooth[test.rates < test.diverged_rate]
    seen = np.isfinite(test.losses) & (test.losses > 0)
    top = float(np.max(before)) * 6.0  # what is higher is not drawn
    bottom = float(min(np.min(before), np.min(test.losses[seen]))) / 1.3
    dots: dict[str, Any] = {"linestyle": "none", "marker": ".", "markersize": 2, "color": QUIET, "alpha": 0.35}
    axes.plot(test.rates[seen], test.losses[seen], **dots, zorder=1)
    line = np.where(np.isfinite(test.smooth), test.smooth, np.nan)
    axes.plot(test.rates, line, color=_LINE, linewidth=1.7, zorder=3)
    axes.set(xscale="log", yscale="log", xlim=(test.rates[0], last), ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):
        label_decades(axis, 12)
    axes.tick_params(axis="x", which="minor", size=1.5, color=GRID)
    axes.tick_params(axis="y", which="minor", size=0)
    axes.set(xlabel="Learning rate", ylabel="Training loss (MSE)")
    marks: list[tuple[float, str, str, Any]] = []
    if test.steepest_rate is not None:
        marks.append((test.steepest_rate, f"steepest descent\n{test.steepest_rate:.2g}", INK, (0, (1.2, 1.2))))
    if test.diverged_rate is not None:
        marks.append((test.diverged_rate, f"divergence\n{test.diverged_rate:.2g}", _BAD, "-"))
    if test.suggested is not None and test.suggested != test.steepest_rate:
        marks.append((test.suggested, f"suggested\n{test.suggested:.2g}", _GOOD, "-"))
    _marks(axes, sorted(marks), (float(test.rates[0]), last), width_in)
    return figure


def _marks(axes: Axes, marks: list[tuple[float, str, str, Any]], shown: tuple[float, float], width_in: float) -> None:
    """Draw a line per rate with its words at the top, one row lower where the words before it are too near."""
    per_inch = np.log10(shown[1] / shown[0]) / (0.85 * width_in)
    free: list[float] = []  # where the words of each row end, in decades
    for rate, text, color, dash in marks:
        axes.axvline(rate, color=color, linewidth=1.0, linestyle=dash, zorder=2)
        words_in = 0.062 * max(len(part) for part in text.split("\n")) + 0.12
        left = bool(np.log10(shown[1] / rate) < words_in * per_inch)
        start = float(np.log10(rate)) - (words_in * per_inch if left else 0.0)
        row = next((row for row, end in enumerate(free) if end <= start), len(free))
        free[row : row + 1] = [start + words_in * per_inch]
        offset, where = (-4 if left else 4, -2 - 24 * row), ("data", "axes fraction")
        side = "right" if left else "left"
        note_at(axes, text, (rate, 1.0), offset, xycoords=where, ha=side, va="top", size=8, color=color, zorder=4)
