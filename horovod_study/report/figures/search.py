"""The figures of a hyper-parameter search: Optuna's own, of the test MSE in order and against each varied option."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from optuna import Study
from optuna.trial import TrialState
from optuna.visualization import matplotlib as plots

from horovod_study.report.kit.files import write_result

CAPTION = (
    "Test MSE (mean over both normalised targets) of {done} finished trials, in order with the best so far (search), "
    "and against the values of the varied options (search_values). Trials that ended early are left out. Later trials "
    "are where earlier ones did well."
)


def write_search(study: Study, directory: Path) -> list[Path]:
    """Write the figures (.pdf, .svg, .png) and their caption (.txt); return the paths, none when none has finished."""
    done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if not done:
        return []
    drawn: dict[str, Any] = {"search": plots.plot_optimization_history, "search_values": plots.plot_slice}
    figures = {name: partial(_draw, plot, study) for name, plot in drawn.items()}
    # Optuna would set its own look, and tells programmers that its figures are an experiment.
    with warnings.catch_warnings(), patch.dict(plt.style.library, {"ggplot": {}}):
        warnings.simplefilter("ignore")
        return write_result(directory, {"search.txt": CAPTION.format(done=done)}, figures, choose="folder")


def _draw(plot: Callable[..., Any], study: Study, width_in: float) -> Figure:
    panels = np.ravel(plot(study, target_name="Test MSE"))
    figure: Figure = panels[0].get_figure()
    plt.close(figure)
    figure.suptitle("")
    figure.set_size_inches(max(width_in, 1.8 * len(panels)), 0.5 * width_in)
    figure.set_layout_engine("constrained")
    for axes in panels:
        axes.set(title="", yscale="log")
    return figure
