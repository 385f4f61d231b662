"""Figures of convergence: learning curves with the floor, the time to a target and what it is made of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch

from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Curve, Figure, Guide, Panel, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.text.numbers import THIN, prefixed, rounded, scientific
from horovod_study.text.words import plural

MAX_LINES = 8  # of one panel; with more, every setting gets a row of its own

MAX_ROWS = 4

PARTS = {
    "same_samples_s": style.LapStyle(label="as many samples as one worker needs", color="#8fa5b8", ink=style.INK),
    "more_samples_s": style.LapStyle(label="further samples (statistical efficiency)", color="#b3305f", ink=style.INK),
    "outside_s": style.LapStyle(
        label="outside the timed window (evaluation, warm-up)", color=style.PAPER, ink=style.INK, hatch="//////"
    ),
}
"""The parts of a time to target from the bottom of a bar to its top, by their columns."""

_FLOOR: dict[str, Any] = {"color": style.QUIET, "linewidth": 1.0, "linestyle": (0, (4, 2))}
_MISSED: dict[str, Any] = {"edgecolor": style.QUIET, "linestyle": (0, (2, 1.5)), "linewidth": 0.9}

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
    rows = [_lined(points, row) for row in _rows(shown)]
    per_epoch = shown["samples"] / shown["epoch"]
    # A rest of the training set that fills no batch is left out of an epoch: batches differ by a little.
    alike = per_epoch.max() < 1.03 * per_epoch.min()
    epochs = f"Epochs of about {prefixed(float(f'{per_epoch.max():.3g}'))} samples"
    across = {"epoch": epochs} if alike else {"samples": "Training samples"}
    across |= {"train_s_median": "Training time / s"}
    known, looks, panels = shown["floor_mse"].dropna().unique(), _looks(points, rows), []
    label = f"statistical floor {scientific(known[0])}" if len(known) == 1 else "statistical floor"
    for row in rows:
        said = [
            f"{prefixed(float(format(each['samples'], '.3g')))} samples, {rounded(each['train_s_median'], 3)}{THIN}s: "
            f"test MSE {scientific(each['test_mse_median'], 3)}"
            for each in row.to_dict("records")
        ]
        floors = [Guide(label=label, level=each, how=_FLOOR, held=True) for each in row["floor_mse"].dropna().unique()]
        for x, words in across.items():
            decades = bool(shown[x].max() > 8 * shown.loc[shown[x] > 0, x].min())
            own = row.assign(said=said)[(row[x] > 0) | (not decades)]
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
        alt=what,
        caption=f"{what} Lines: medians over repeats after equally many samples; bands: lowest to highest repeat. "
        f"{floor if len(known) else 'The floor of this data set is not known.'} {rest}".strip(),
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


def _lined(points: pd.DataFrame, row: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a row with the names of their lines: what differs in it of runtime, workers and setting."""
    known, names = row.drop_duplicates(_CELL), style.series_labels(points)
    settings, alone = _told(list(known["setting"])), len(known) == 1
    runtimes = alone or len(known[["partition", "backend", "transport"]].drop_duplicates()) > 1
    counts, lines = alone or known["workers"].nunique() > 1, dict[Any, str]()
    for each in known.to_dict("records"):
        words = [names[each["series"]]] * runtimes + [settings[each["setting"]]]
        words[-1:-1] = [plural(each["workers"], "worker")] * (counts and each["backend"] != "serial")
        line = ", ".join(filter(None, words)) or each["setting"]
        full = f"{each['series']}, {plural(each['workers'], 'worker')} on {plural(each['nodes'], 'node')}"
        lines[each["series"], each["workers"], each["nodes"]] = full if line in lines.values() else line
    return row.assign(line=[lines[key] for key in row[_CELL].itertuples(index=False, name=None)])


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


def _told(settings: Sequence[str]) -> dict[str, str]:
    """Return each setting without the words at its front that all of them share."""
    split = {setting: setting.split(" ") for setting in settings}
    shared = len(list(takewhile(lambda words: len(set(words)) == 1, zip(*split.values(), strict=False))))
    # A word that opens a pair such as `lr 0.001` stays with its number.
    pairs = len(split) > 1 and any("".join(words[shared : shared + 1])[:1].isdigit() for words in split.values())
    shared -= pairs and shared > 0
    return {setting: " ".join(words[shared:]) for setting, words in split.items()}


def targets(analysis: Analysis) -> Figure | None:
    """Return stacked bars of the seconds to each target by worker count; None where only single workers trained."""
    table = analysis.targets
    parallel = set(table.loc[table["workers"] > 1, "setting"])
    shown = table[table["setting"].isin(parallel)]
    if shown.empty:
        return None
    settings = list(shown["setting"].drop_duplicates())[:MAX_ROWS]
    levels = sorted(shown["target_mse"].unique(), reverse=True)
    picked = [levels[int(place)] for place in np.linspace(0, len(levels) - 1, min(3, len(levels))).round()]
    bases = set(shown.loc[shown["setting"].isin(settings), "base_series"])
    shown = table[(table["setting"].isin(settings) | table["series"].isin(bases)) & table["target_mse"].isin(picked)]
    names, words = style.series_labels(analysis.points), _told(settings)

    def draw(width_in: float) -> Canvas:
        most = max(6, int(0.78 * width_in / 0.17))
        blocks = [(setting, part) for setting in settings for part in _parted(_with_base(shown, setting), most)]
        bars = max(shown[shown["series"].isin(part)].groupby("target_mse").size().max() for _, part in blocks)
        columns = max(1, min(len(picked), int(width_in / max(1.3, 0.36 * bars))))
        drawn = picked[-max(1, 6 // len(blocks) * columns) :]  # a page has no room for more
        lines = math.ceil(len(drawn) / columns)
        line_in = min(2.15, kit.MAX_HEIGHT_IN / (len(blocks) * lines))
        figure = Canvas(figsize=(width_in, 0.5 + len(blocks) * lines * line_in), layout="constrained")
        grid = figure.subplots(len(blocks) * lines, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for block, (setting, part) in enumerate(blocks):
            for place, target in enumerate(drawn):
                axes = grid[block * lines + place // columns][place % columns]
                axes.set_visible(True)
                rows = _with_base(shown[shown["target_mse"] == target], setting)
                _bars(axes, rows[rows["series"].isin(part)], names, width_in / columns, line_in - 0.95)
                axes.set_title(f"MSE {scientific(target)}")
                if place % columns == 0:
                    label = style.folded("Time to target / s", line_in - 0.7)
                    named = style.folded(words[setting] or setting, 1.6)
                    axes.set_ylabel(f"{named}\n{label}" if len(settings) > 1 else label)
        handles: list[Any] = [kit.swatch(look) for name, look in PARTS.items() if (shown[name] > 0).any()]
        if shown["censored"].astype(bool).any():
            handles.append(Patch(facecolor="none", **_MISSED, label="target not met"))
        kit.legend(figure, handles, width_in)
        return figure

    base = baseline_words(analysis.points, analysis.provenance["baseline"])
    caption = (
        "Time until the test MSE is at most the target, by number of workers: the median run. A bar is made of the "
        f"time that the samples needed by {base} take at this throughput, the time of the further samples that these "
        "workers need, and what is outside the timed window (evaluation, warm-up). Speedup to target = throughput "
        "ratio x statistical efficiency, statistical efficiency = samples to target of the baseline / samples to "
        "target. Numbers: seconds in the timed window. Hollow with >: the target was not met in that time by enough "
        "repeats (censored)."
    )
    if len(levels) > len(picked) or len(parallel) > len(settings):
        caption += " Further targets and settings are in the table."
    caption += " A narrow figure may have room for the lowest targets only."
    return Figure(
        name="targets",
        title="Time to target",
        alt="Stacked bars of the seconds to reach each target error by number of workers; the values are in the table.",
        caption=caption,
        data=shown,
        paint=draw,
    )


def _parted(rows: pd.DataFrame, most: int) -> list[list[str]]:
    """Distribute series over lines of at most `most` bars each, in their order."""
    parts: list[list[str]] = [[]]
    used = 0
    for series, own in rows.groupby("series", sort=False):
        bars = own["workers"].nunique()
        if parts[-1] and used + bars > most:
            parts.append([])
            used = 0
        parts[-1].append(str(series))
        used += bars
    return parts


def _with_base(rows: pd.DataFrame, setting: str) -> pd.DataFrame:
    """Return the rows of one setting and those of its one-worker baseline, which may be of another."""
    own = rows["setting"] == setting
    return rows[own | (rows["series"].isin(set(rows.loc[own, "base_series"])) & (rows["workers"] == 1))]


def _bars(axes: Axes, rows: pd.DataFrame, names: dict[str, str], wide_in: float, tall_in: float) -> None:
    ordered = rows.sort_values(["workers"], kind="stable")
    ordered = pd.concat([own for _, own in ordered.groupby("series", sort=False)]) if len(ordered) else ordered
    heights = ordered[["wall_s", "train_s", "train_s_at_least"]].max(axis=1)
    bar_in = 0.78 * wide_in / (len(ordered) + 0.35 * ordered["series"].nunique() + 0.2)
    numbers = [_seconds(row) for row in ordered.to_dict("records")]
    longest_in = max((style.text_in(text) for text in numbers), default=0.0)
    upright = longest_in > 0.98 * bar_in
    room = 1.06 + (longest_in if upright else 1.3 * style.small() / 72) / tall_in
    top = float(heights.max()) * room if len(heights) and heights.notna().any() else 1.0
    previous, place, ticks, labels = None, 0.0, [], []
    for row, number in zip(ordered.to_dict("records"), numbers, strict=True):
        place += 1.0 if previous in (None, row["series"]) else 1.35
        previous = row["series"]
        ticks.append(place)
        labels.append(f"{row['workers']:.0f}")
        if row["censored"]:
            foot = row["train_s_at_least"]
            axes.bar(place, foot, width=0.68, color="none", **_MISSED)
        else:
            foot = _bar(axes, place, row)
        written: dict[str, Any] = {"ha": "center", "va": "bottom", "size": style.small()}
        axes.text(place, foot + 0.015 * top, number, rotation=90 if upright else 0, **written)
    axes.set_xticks(ticks, labels)
    axes.set(xlim=(0.4, place + 0.6), ylim=(0, top))
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("Workers")
    if ordered["series"].nunique() > 1:
        deepest = 1
        for series in ordered["series"].unique():
            own_ticks = [tick for tick, name in zip(ticks, ordered["series"], strict=True) if name == series]
            middle, word = float(np.mean(own_ticks)), names[str(series)].replace("plain ", "")
            room_in = bar_in * (max(own_ticks) - min(own_ticks) + 0.9)
            text = style.folded(word, room_in)
            deepest = max(deepest, text.count("\n") + 1)
            how: dict[str, Any] = {"ha": "center", "va": "top", "color": style.QUIET, "annotation_clip": False}
            below = (0, -2.0 * style.small())
            kit.note_at(axes, text, (middle, 0), below, xycoords=("data", "axes fraction"), **how)
        axes.set_xlabel("Workers", labelpad=1.3 * style.small() * deepest + 8)


def _seconds(row: Mapping[Any, Any]) -> str:
    """Return the seconds that are over a bar; a lower bound says so."""
    return f">{row['train_s_at_least']:#.3g}" if row["censored"] else f"{row['train_s']:#.3g}"


def _bar(axes: Axes, place: float, row: Mapping[Any, Any]) -> float:
    """Draw the parts of one bar; return its height."""
    values: dict[str, Any] = {name: row[name] for name in PARTS}
    # Fewer samples than one worker: the bar is shorter, and nothing is added.
    if not math.isfinite(values["same_samples_s"]) or values["more_samples_s"] < 0:
        values |= {"same_samples_s": row["train_s"], "more_samples_s": 0.0}
    drawn = [(look, float(values[name])) for name, look in PARTS.items() if values[name] > 0]
    kit.stacked(axes, place, drawn, 0.68)
    return sum(value for _, value in drawn)
