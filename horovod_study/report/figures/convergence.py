"""Figures of learning: curves with the floor, the time to a target and what it is made of; of the worked example a
learning-rate range test, and Optuna's own figures of a hyper-parameter search.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import figure as mpl

from horovod_study.analysis.learning.convergence import UNSTEADY, RangeTest
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.study import Analysis
from horovod_study.records import finite
from horovod_study.report import grammar as kit
from horovod_study.report.grammar import Curve, Figure, Guide, Panel, of_bars, spread
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, prefixed, rounded, scientific
from horovod_study.text.words import plural

MAX_LINES = 8  # of one panel; with more, every setting gets a row of its own
MAX_ROWS = 4

PARTS = {
    "same_samples_s": style.LapStyle(label="as many samples as one worker needs", color="#8fa5b8", ink=style.INK),
    "more_samples_s": style.LapStyle(label="further samples (statistical efficiency)", color="#b3305f", ink=style.INK),
    "outside_s": style.LapStyle(label="outside the timed window", color=style.PAPER, ink=style.INK, hatch="//////"),
    "wall_s_at_least": style.LapStyle(label="target not met", color=style.PAPER, ink=style.INK, hatch="...."),
}  # the parts of a time to target from the bottom of a bar to its top, by their columns

_FLOOR: dict[str, Any] = {"color": style.QUIET, "linewidth": 1.0, "linestyle": (0, (4, 2))}

_CELL = ["series", "workers", "nodes"]


def learning(analysis: Analysis) -> Figure | None:
    """Return the learning curves; None where they are flat."""
    return None if is_flat(analysis.convergence) else learning_curves(analysis.points, analysis.convergence)


_FALL = 1.5  # so much some test error must fall from its first evaluation


def is_flat(curves: pd.DataFrame) -> bool:
    """Return whether there are evaluations, and in no cell the test error falls by a factor of _FALL."""
    known = _usual(curves)
    cells = known.groupby(_CELL, sort=False, dropna=False)["test_mse_median"]
    return not known.empty and bool((cells.first() < _FALL * cells.min()).all())


def _usual(curves: pd.DataFrame) -> pd.DataFrame:
    """The evaluations that most repeats of a cell have: a median over the few longest runs is another cell's."""
    return curves[curves["test_mse_median"].notna() & (2 * curves["evaluations"] > curves["repeats"])]


def learning_curves(points: pd.DataFrame, curves: pd.DataFrame) -> Figure | None:
    """Return the test MSE against samples (epochs) and against seconds, one line per cell; None without evaluations."""
    shown = _usual(curves)
    if shown.empty:
        return None
    labels, rows = style.series_labels(points), list[pd.DataFrame]()
    for row in _rows(shown):  # with the names of their lines: runtime, workers, nodes, and settings if several
        names = [
            labels[each["series"]]
            + f", {plural(each['workers'], 'worker')}" * (each["backend"] != "serial")
            + f" on {plural(each['nodes'], 'node')}" * (each["nodes"] > 1)
            + f", {each['setting']}" * (row["setting"].nunique() > 1)
            for each in row.to_dict("records")
        ]
        rows.append(row.assign(line=names))
    per_epoch = shown["samples"] / shown["epoch"]
    # A rest of the training set that fills no batch is left out of an epoch: batches differ by a little.
    alike = per_epoch.max() < 1.03 * per_epoch.min()
    epochs = f"Epochs of about {prefixed(float(f'{per_epoch.max():.3g}'))} samples"
    across = {"epoch": epochs} if alike else {"samples": "Training samples"}
    across |= {"train_s_median": "Training time / s"}
    known, looks, panels = shown["floor_mse"].dropna().unique(), _looks(points, rows), []
    label = f"statistical floor {scientific(known[0])}" if len(known) == 1 else "statistical floor"
    for row in rows:
        told = [
            f"{prefixed(float(format(each['samples'], '.3g')))} samples, {rounded(each['train_s_median'], 3)}{THIN}s: "
            f"test MSE {scientific(each['test_mse_median'], 3)}"
            for each in row.to_dict("records")
        ]
        floors = [Guide(label=label, level=each, how=_FLOOR, held=True) for each in row["floor_mse"].dropna().unique()]
        for x, words in across.items():
            decades = bool(shown[x].max() > 8 * shown.loc[shown[x] > 0, x].min())
            own = row.assign(said=told)[(row[x] > 0) | (not decades)]
            how: dict[str, Any] = {"by": "line", "marked": True, "said": "said", "how": {"linewidth": 1.5, "zorder": 3}}
            layers = [*floors, Curve(rows=own, x=x, **spread("test_mse"), **how)]
            title = row["setting"].iloc[0] if len(rows) > 1 else ""
            panels.append(Panel(layers=layers, title=title, y="Test MSE", x=words, log="y", decades=decades))
    floor = "Dashed grey: the statistical floor, the mean Cramer-Rao bound of the test curves."
    what = "Test MSE against what all workers together were trained on, and against the seconds of the timed window."
    rest = "Further settings and worker counts are in the CSV file." * (sum(map(len, rows)) < len(shown))
    return Figure(
        name="learning",
        title="Learning curve",
        caption=f"{what} Lines: medians over repeats after equally many samples; bands: lowest to highest repeat. "
        f"{f'{floor} ' * bool(len(known))}{rest}".strip(),
        data=shown,
        panels=panels,
        looks=looks,
        shape=(2, 0.84, 0.52),
    )


def _rows(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the cells of each row of panels.

    All are together where they can be distinguished; else a row has a setting, those with several workers and the least
    errors first, and as many of its worker counts as leave few enough lines.
    """
    if len(cells[_CELL].drop_duplicates()) <= MAX_LINES:
        return [cells]
    parallel = cells[cells["setting"].isin(cells.loc[cells["workers"] > 1, "setting"])]
    cells, rows = cells if parallel.empty else parallel, []
    best = cells.groupby("setting")["test_mse_median"].min().sort_values(kind="stable").index[: kit.MAX_PANELS // 2]
    for _, own in cells[cells["setting"].isin(best)].groupby("setting", sort=False):
        counts = sorted(own["workers"].unique())
        room = max(2, MAX_LINES // own["series"].nunique())
        kept = {counts[int(at)] for at in np.linspace(0, len(counts) - 1, min(room, len(counts))).round()}
        rows.append(own[own["workers"].isin(kept)])
    return rows


def _looks(points: pd.DataFrame, rows: Sequence[pd.DataFrame]) -> dict[str, style.SeriesStyle]:
    """Return the look of every line: the colour of its runtime where several are compared, else one of its own."""
    styles = style.series_styles(points)
    of = {line: styles[series] for row in rows for line, series in zip(row["line"], row["series"], strict=True)}
    plain = [line for line in of if of[line].ring]
    others = [line for line in of if line not in plain] or plain
    looks = dict(zip(others, style.looks_in_order(others), strict=True))
    if len({of[line].color for line in others}) > 1:
        for line in others:
            place = [each for each in others if of[each].color == of[line].color].index(line)
            filled, dash = style.VARIANTS[place % len(style.VARIANTS)]
            looks[line] = replace(of[line], label=line, filled=filled, dash=dash)
    dotted: dict[str, Any] = {"ring": False, "filled": False, "dash": (0, (1.5, 1.5))}
    return {line: replace(of[line], label=line, **dotted) for line in plain if line not in looks} | looks


def targets(analysis: Analysis) -> Figure | None:
    """Return stacked bars of the seconds to each target by worker count; None where only single workers trained."""
    table = analysis.targets
    parallel = table[table["setting"].isin(set(table.loc[table["workers"] > 1, "setting"]))]
    if parallel.empty:
        return None
    settings = list(parallel["setting"].drop_duplicates())[:MAX_ROWS]
    levels = sorted(parallel["target_mse"].unique(), reverse=True)
    picked = [levels[int(place)] for place in np.linspace(0, len(levels) - 1, min(3, len(levels))).round()]
    picked = picked[-max(1, 4 // len(settings)) :]
    bases = {setting: set(parallel.loc[parallel["setting"] == setting, "base_series"]) for setting in settings}
    shown = table["setting"].isin(settings) | table["series"].isin(set().union(*bases.values()))
    bars = list[pd.DataFrame]()
    for setting, target in itertools.product(settings, picked):  # with the one-worker baseline, of whatever setting
        own = (table["setting"] == setting) | (table["series"].isin(bases[setting]) & (table["workers"] == 1))
        title = f"{setting}, " * (len(settings) > 1) + f"MSE {scientific(target)}"
        bars.append(table[own & (table["target_mse"] == target)].assign(setting=title))
    drawn = pd.concat(bars)
    drawn = drawn.assign(
        same_samples_s=drawn["same_samples_s"].fillna(drawn["train_s"]),
        before=drawn["censored"].astype(bool).map({True: ">", False: ""}),
    )
    rows = pd.concat([drawn.assign(part=name, seconds=drawn[name]) for name in PARTS])
    return Figure(
        name="targets",
        title="Time to target",
        caption="Time until the test MSE is at most the target, median run: as many samples as "
        f"{baseline_words(analysis.points, analysis.provenance['baseline'])} needs, at this throughput; further "
        "samples (below zero: fewer); and what is outside the timed window. Speedup to target = throughput ratio x "
        "statistical efficiency. Dotted with >: not met in that time (censored). What has no room is in the table.",
        data=table[shown & table["target_mse"].isin(picked)],
        looks=style.series_styles(analysis.points),
        **of_bars(rows, "seconds", "Seconds to target", parts=PARTS, unit="s", before="before"),
    )


if TYPE_CHECKING:  # Optuna takes a second to load
    from optuna import Study

NAME = "lr_range"
_LINE = style.SeriesStyle(label="running median", color=style.COLORS[0], marker=".", filled=True, dash="-")
_STEP = replace(_LINE, label="loss of a step", color=style.QUIET)
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
    from unittest.mock import patch  # takes long to load, as Matplotlib's pyplot and Optuna do

    import matplotlib.pyplot as plt
    from optuna.trial import TrialState
    from optuna.visualization import matplotlib as plots

    done = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if not done:
        return []

    def draw(width_in: float, plot: Callable[..., Any]) -> mpl.Figure:
        panels = np.ravel(plot(study, target_name="Test MSE"))
        figure: mpl.Figure = panels[0].get_figure()
        plt.close(figure)
        figure.suptitle("")
        figure.set_size_inches(max(width_in, 1.8 * len(panels)), 0.5 * width_in)
        figure.set_layout_engine("constrained")
        for axes in panels:
            axes.set(title="", yscale="log")
        return figure

    drawn: dict[str, Any] = {"search": plots.plot_optimization_history, "search_values": plots.plot_slice}
    figures = {name: partial(draw, plot=plot) for name, plot in drawn.items()}
    # Optuna would set its own look, and tells programmers that its figures are an experiment.
    with warnings.catch_warnings(), patch.dict(plt.style.library, {"ggplot": {}}):
        warnings.simplefilter("ignore")
        return write_result(directory, {"search.txt": CAPTION.format(done=done)}, figures, choose="folder")
