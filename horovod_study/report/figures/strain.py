"""Figures of the worked example: a learning-rate range test, and Optuna's own of a hyper-parameter search."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import figure as mpl

from horovod_study.analysis.learning.lr_range import UNSTEADY, RangeTest
from horovod_study.records import finite
from horovod_study.report.grammar import Curve, Figure, Guide, Panel
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.style import COLORS, QUIET, SeriesStyle

if TYPE_CHECKING:  # Optuna takes a second to load
    from optuna import Study

NAME = "lr_range"
_LINE = SeriesStyle(label="running median", color=COLORS[0], marker=".", filled=True, dash="-")
_STEP = replace(_LINE, label="loss of a step", color=QUIET)
_RATES = {"steepest_rate": "steepest descent", "diverged_rate": "diverges", "suggested": "suggested"}


def write_lr_range(test: RangeTest, directory: Path, *, batch: int) -> list[Path]:
    """Write the figure (.pdf, .svg, .png), its caption (.txt), the curve (.csv) and the result (.json).

    `batch`: curves per step of all workers, for the caption. Returns the paths.
    """
    made = drawing(test, batch=batch)
    texts = {f"{NAME}.txt": made.caption, f"{NAME}.csv": made.data, f"{NAME}.json": finite(test)}
    return write_result(directory, texts, {NAME: made.draw})


def drawing(test: RangeTest, *, batch: int) -> Figure:
    """Return the figure; far beyond the divergence there is nothing to see."""
    curve = pd.DataFrame({"lr": test.rates, "loss": test.losses, "smoothed_loss": test.smooth})
    last = np.inf if test.diverged_rate is None else test.diverged_rate
    top = 6.0 * float(test.smooth[test.rates < last].max())
    shown = curve[(curve["lr"] <= 20 * last) & (curve["loss"] > 0)]
    shown = shown.assign(**{name: shown[name].where(shown[name] < top) for name in ("loss", "smoothed_loss")})
    guides = [
        Guide(label=f"{label}: {rate:.2g}", x=(rate, rate), y=(1e-30, 1e30), how={"linestyle": (0, (1 + 3 * place, 2))})
        for place, (name, label) in enumerate(_RATES.items())
        if (rate := getattr(test, name)) is not None
    ]
    thin, wide = {"linewidth": 0.6, "alpha": 0.5}, {"linewidth": 1.7}
    layers = [
        Curve(rows=shown.assign(series="step"), y="loss", x="lr", how=thin, marked=True),
        Curve(rows=shown.assign(series="line"), y="smoothed_loss", x="lr", how=wide, marked=True),
    ]
    return Figure(
        name=NAME,
        title="Learning-rate range test",
        alt="Training loss against a rising learning rate.",
        caption="Learning-rate range test: training loss (mean square error of the normalised targets) of each of "
        f"{len(test.rates):,} steps with {batch} curves while the rate rises exponentially from {test.rates[0]:.2g} to "
        f"{test.rates[-1]:.2g}. Line: running median over {test.window} steps; what is far above is not drawn. "
        f"It diverges where it stays above {UNSTEADY:g} times its smallest value. Suggested: {test.reason}.",
        data=curve,
        panels=[Panel(layers=[*guides, *layers], y="Training loss (MSE)", x="Learning rate", log="y", decades=True)],
        looks={"line": _LINE, "step": _STEP},
    )


CAPTION = (
    "Test MSE (mean over both normalised targets) of {done} finished trials, in order with the best so far (search), "
    "and against the values of the varied options (search_values). Trials that ended early are left out. Later trials "
    "are where earlier ones did well."
)


def write_search(study: "Study", directory: Path) -> list[Path]:
    """Write the figures (.pdf, .svg, .png) and their caption (.txt); return the paths, none when none has finished."""
    from optuna.trial import TrialState
    from optuna.visualization import matplotlib as plots

    done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if not done:
        return []
    drawn: dict[str, Any] = {"search": plots.plot_optimization_history, "search_values": plots.plot_slice}
    figures = {name: partial(_draw, plot, study) for name, plot in drawn.items()}
    # Optuna would set its own look, and tells programmers that its figures are an experiment.
    with warnings.catch_warnings(), patch.dict(plt.style.library, {"ggplot": {}}):
        warnings.simplefilter("ignore")
        return write_result(directory, {"search.txt": CAPTION.format(done=done)}, figures, choose="folder")


def _draw(plot: Callable[..., Any], study: "Study", width_in: float) -> mpl.Figure:
    panels = np.ravel(plot(study, target_name="Test MSE"))
    figure: mpl.Figure = panels[0].get_figure()
    plt.close(figure)
    figure.suptitle("")
    figure.set_size_inches(max(width_in, 1.8 * len(panels)), 0.5 * width_in)
    figure.set_layout_engine("constrained")
    for axes in panels:
        axes.set(title="", yscale="log")
    return figure
