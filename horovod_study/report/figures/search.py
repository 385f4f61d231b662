"""The figure of a hyper-parameter search: every trial's test MSE, in order and against each option that was varied."""

import io
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from horovod_study.documents import read_bytes
from horovod_study.errors import RecordError
from horovod_study.files import unguarded
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import label_decades
from horovod_study.report.kit.style import PAPER, QUIET

NAME = "search"
_DONE, _BEST = "#0072b2", "#d55e00"
_KINDS = ("categories", "linear", "log")


def read_table(path: Path) -> pd.DataFrame:
    """Read trials.csv."""
    # Only empty cells are missing: an option may well have the value "none".
    content = io.BytesIO(read_bytes(path, again="run the search again"))
    try:
        table = pd.read_csv(content, keep_default_na=False, na_values=[""])
    except ValueError as error:
        raise RecordError(f"{path}: is not a table ({error}); run the search again") from None
    texts = {name: table[name].map(unguarded) for name in table.columns if table[name].dtype.kind not in "biufM"}
    return table.assign(**texts).rename(columns=unguarded)


def write_search(trials: pd.DataFrame, options: Mapping[str, str], directory: Path) -> list[Path]:
    """Write the figure (.pdf, .svg, .png) and its caption (.txt); return the paths, none when no trial has a test MSE.

    `trials`: columns trial, state, test_mse, floor_mse and one per option, as in trials.csv. `options`: how each varied
    option is drawn, "categories", "linear" or "log".
    """
    for name, kind in options.items():
        if kind not in _KINDS:
            raise ValueError(f"option {name} cannot be drawn as {kind!r}; allowed: {', '.join(_KINDS)}")
    shown = trials[trials["state"].isin(["done", "pruned"]) & (trials["test_mse"] > 0)]
    if shown.empty:
        return []
    figures = {NAME: partial(draw, shown, options)}
    return write_result(directory, {f"{NAME}.txt": caption(shown)}, figures, choose="folder")


def caption(shown: pd.DataFrame) -> str:
    """Return what a reader of the figure must know."""
    done, pruned = ((shown["state"] == state).sum() for state in ("done", "pruned"))
    parts = [f"Test MSE (mean over both normalised targets) of {done} finished trials, in order and by their values."]
    if pruned:
        parts.append(f"Hollow: {pruned} trials ended early, at their last evaluation.")
    parts.append("Line: the best so far; ringed: the best of all.")
    if _near_floor(shown) is not None:
        parts.append("Thin grey: what the noise of the test curves allows at best.")
    parts.append("Values were not spread evenly: later trials are where earlier ones did well.")
    return " ".join(parts)


def _near_floor(shown: pd.DataFrame) -> float | None:
    """Return the floor of the test MSE; None when unknown, or so far below all trials that they would be squeezed."""
    known = shown["floor_mse"].dropna()
    return float(known.iloc[0]) if len(known) and known.iloc[0] > shown["test_mse"].min() / 50.0 else None


def draw(shown: pd.DataFrame, options: Mapping[str, str], width_in: float) -> Figure:
    """Return the figure; call it inside style()."""
    columns = min(len(options), 3)
    rows = math.ceil(len(options) / columns)
    figure = Figure(figsize=(width_in, 1.9 + 1.75 * rows + 0.3), layout="constrained")
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[1.1, *[1.0] * rows])
    top = figure.add_subplot(grid[0, :])
    done = shown[shown["state"] == "done"]
    top.step(done["trial"], done["test_mse"].cummin(), where="post", color=_DONE, linewidth=1.3, zorder=2)
    _points(top, shown, shown["trial"].to_numpy(dtype=float))
    top.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    top.set_xlabel("Trial")
    panels = [top]
    for position, (name, kind) in enumerate(options.items()):
        axes = figure.add_subplot(grid[1 + position // columns, position % columns], sharey=top)
        known = shown[shown[name].notna()]
        if kind == "categories":
            _categories(axes, known, name, width_in / columns)
        else:
            _points(axes, known, known[name].to_numpy(dtype=float))
            if kind == "log":
                axes.set_xscale("log")
                label_decades(axes.xaxis, 6)
            else:
                axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.set_xlabel(name)
        if position % columns:
            axes.tick_params(labelleft=False)
        panels.append(axes)
    top.set_yscale("log")
    top.margins(y=0.12)  # room for the ring
    ratio = shown["test_mse"].max() / shown["test_mse"].min()
    if ratio < 20:  # decades alone would give one label or none
        subs = (1.0, 2.0, 5.0) if ratio > 4 else (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
        top.yaxis.set_major_locator(LogLocator(base=10, subs=subs))
    top.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    top.yaxis.set_minor_formatter(NullFormatter())
    floor = _near_floor(shown)
    for axes in panels:
        axes.tick_params(axis="y", which="minor", size=0)
        if floor is not None:
            axes.axhline(floor, color=QUIET, linewidth=0.7, zorder=1)
    figure.supylabel("Test MSE", size=8.5)
    handles = [
        Line2D([], [], color=_DONE, **_DOT, linewidth=1.3, label="finished"),
        Line2D([], [], linestyle="none", markeredgecolor=_BEST, **_RING, label="best"),
    ]
    if (shown["state"] == "pruned").any():
        handles.insert(1, Line2D([], [], linestyle="none", **_HOLLOW, label="ended early"))
    if floor is not None:
        handles.append(Line2D([], [], color=QUIET, linewidth=0.7, label="allowed by the noise"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


_DOT: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markeredgecolor": PAPER}
_RING: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.2}
_FILL: dict[str, Any] = {"markerfacecolor": PAPER, "markeredgecolor": QUIET, "markeredgewidth": 0.9}
_HOLLOW: dict[str, Any] = {"marker": "o", "markersize": 4, **_FILL}


def _points(axes: Axes, rows: pd.DataFrame, places: np.ndarray) -> None:
    """Draw a point per trial at `places`, (trials,)."""
    done = (rows["state"] == "done").to_numpy()
    values = rows["test_mse"].to_numpy(dtype=float)
    axes.plot(places[~done], values[~done], linestyle="none", **_HOLLOW, zorder=3)
    axes.plot(
        places[done], values[done], linestyle="none", markerfacecolor=_DONE, markeredgewidth=0.5, zorder=4, **_DOT
    )
    if done.any():
        best = int(np.argmin(np.where(done, values, np.inf)))
        axes.plot(places[best], values[best], linestyle="none", markeredgecolor=_BEST, **_RING, zorder=5)


def _categories(axes: Axes, rows: pd.DataFrame, name: str, panel_in: float) -> None:
    """Draw a column of points per value, a little apart in the order of the trials so that none hides another."""
    values = sorted(rows[name].unique(), key=lambda value: (isinstance(value, str), value))
    places = rows[name].map({value: place for place, value in enumerate(values)}).to_numpy(dtype=float)
    spread = np.zeros(len(rows))
    for place in range(len(values)):
        here = places == place
        spread[here] = np.linspace(-0.22, 0.22, here.sum()) if here.sum() > 1 else 0.0
    _points(axes, rows, places + spread)
    axes.set_xlim(-0.6, len(values) - 0.4)
    labels = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    room_in = 0.75 * panel_in / len(values)
    tilted = max(0.062 * len(label) for label in labels) > room_in
    axes.set_xticks(range(len(values)), labels, rotation=30 if tilted else 0, ha="right" if tilted else "center")
