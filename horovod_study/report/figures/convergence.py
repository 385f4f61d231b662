"""Figures of convergence: learning curves with the floor, the time to a target and what it is made of, sensitivity."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.series.points import CHOICES, baseline_words
from horovod_study.analysis.study import Analysis
from horovod_study.config.roles import Role
from horovod_study.config.workload import packaged
from horovod_study.errors import RecordError
from horovod_study.report.grammar import Curve, Figure, Guide, Panel, Points, of_bars, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.text.numbers import THIN, prefixed, rounded, scientific
from horovod_study.text.words import plural

OPTIONS = packaged().options

MAX_LINES = 8
"""Lines of one panel that can be distinguished; with more, every setting gets a row of its own."""

MAX_ROWS = 4

CHOICE_TITLES = {name: each.title for name, each in OPTIONS.items() if each.title}
"""Options that a sensitivity is drawn against, with the names of their axes."""

PARTS = {
    "same_samples_s": style.LapStyle(label="as many samples as one worker needs", color="#8fa5b8", ink=style.INK),
    "more_samples_s": style.LapStyle(label="further samples (statistical efficiency)", color="#b3305f", ink=style.INK),
    "outside_s": style.LapStyle(
        label="outside the timed window (evaluation, warm-up)", color=style.PAPER, ink=style.INK, hatch="//////"
    ),
    "wall_s_at_least": style.LapStyle(label="target not met", color=style.PAPER, ink=style.INK, hatch="...."),
}
"""The parts of a time to target from the bottom of a bar to its top, by their columns."""

_FLOOR: dict[str, Any] = {"color": style.QUIET, "linewidth": 1.0, "linestyle": (0, (4, 2))}

_CELL = ["series", "workers", "nodes"]


def learning(analysis: Analysis) -> Figure | None:
    """Return the learning curves; None where they are flat."""
    return None if is_flat(analysis.convergence) else learning_curves(analysis.points, analysis.convergence)


_FALL = 1.5
"""By so much the test error of some cell must fall from its first evaluation, for its curve to say anything."""


def is_flat(curves: pd.DataFrame) -> bool:
    """Return whether there are evaluations, and in no cell the test error falls by a factor of _FALL."""
    known = _usual(curves)
    cells = known.groupby(_CELL, sort=False, dropna=False)["test_mse_median"]
    return not known.empty and bool((cells.first() < _FALL * cells.min()).all())


def _usual(curves: pd.DataFrame) -> pd.DataFrame:
    """The evaluations that most repeats of a cell have: a median over the few longest runs is another cell's."""
    return curves[curves["test_mse_median"].notna() & (2 * curves["evaluations"] > curves["repeats"])]


def write_learning_curves(points: pd.DataFrame, curves: pd.DataFrame, path: Path) -> None:
    """Write the learning curves of some runs to one picture; the ending of `path` says in which form.

    Raises RecordError for runs without evaluations, and what `Figure.save` raises.
    """
    drawing = learning_curves(points, curves)
    if drawing is None:
        raise RecordError("these runs have no evaluation yet; a run is evaluated after its first epoch")
    drawing.save(path)


def learning_curves(points: pd.DataFrame, curves: pd.DataFrame) -> Figure | None:
    """Return the test MSE against samples (epochs) and against seconds, one line per cell; None without evaluations."""
    shown = _usual(curves)
    if shown.empty:
        return None
    rows = _rows(shown)
    left_out = _panelled(shown)["setting"].nunique() - len(rows) if len(rows) > 1 else 0
    drawn = pd.concat(rows)
    thinned = len(drawn[_CELL].drop_duplicates()) < len(
        shown.loc[shown["setting"].isin(set(drawn["setting"])), _CELL].drop_duplicates()
    )
    looks = _looks(points, rows)
    per_epoch = sorted({round(each) for each in shown["samples"] / shown["epoch"]})
    # A rest of the training set that fills no batch is left out of an epoch: batches differ by a little.
    alike = per_epoch[-1] < 1.03 * per_epoch[0]
    across_words = (
        f"Epochs of {'' if len(per_epoch) == 1 else 'about '}{prefixed(float(f'{per_epoch[-1]:.3g}'))} samples"
    )
    across = ("epoch", across_words) if alike else ("samples", "Training samples")
    logarithmic = {
        name: shown[name].max() > 8 * shown.loc[shown[name] > 0, name].min() for name in (across[0], "train_s_median")
    }

    known = shown["floor_mse"].dropna().unique()
    label = f"statistical floor {scientific(known[0])}" if len(known) == 1 else "statistical floor"
    panels, named = [], dict[str, style.SeriesStyle]()
    for place, (row, look) in enumerate(zip(rows, looks, strict=True)):
        keys = list(row[_CELL].itertuples(index=False, name=None))
        named |= {f"{place} {key}": look[key] for key in keys}
        lines = row.assign(line=[f"{place} {key}" for key in keys], said=list(map(_said, row.to_dict("records"))))
        floors = [Guide(label=label, level=each, how=_FLOOR, held=True) for each in row["floor_mse"].dropna().unique()]
        for x, words in (across, ("train_s_median", "Training time / s")):
            own = lines[lines[x] > 0] if logarithmic[x] else lines
            how: dict[str, Any] = {"by": "line", "marked": True, "said": "said", "how": {"linewidth": 1.5, "zorder": 3}}
            line = Curve(rows=own, x=x, **spread("test_mse"), **how)
            axes: dict[str, Any] = {"y": "Test MSE", "x": words, "log": "y", "decades": bool(logarithmic[x])}
            title = row["setting"].iloc[0] if len(rows) > 1 else ""
            panels.append(Panel(layers=[*floors, line], title=title, **axes))

    caption = " ".join(
        [
            "Test MSE (mean over both normalised targets) against what all workers together were trained on and "
            "against the seconds of the timed window, which leave out warm-up and evaluation. Lines: medians over "
            "repeats after equally many samples; bands: lowest to highest repeat; marks: evaluations.",
            *(
                [
                    "Dashed grey: the statistical floor, the mean Cramer-Rao bound of the test curves; no unbiased "
                    "estimator has a smaller error. Efficiency = floor / MSE."
                ]
                if len(known)
                else ["The floor of this data set is not known."]
            ),
            *([f"Not drawn for lack of room: {left_out} settings with higher errors."] if left_out > 0 else []),
            *(["Some worker counts are left out; they are in the data of the figure."] if thinned else []),
        ]
    )
    return Figure(
        name="learning",
        title="Learning curve",
        alt="Test MSE against training samples and training time; the values are in the table of what was learned.",
        caption=caption,
        data=shown,
        panels=panels,
        looks=named,
        shape=(2, 0.84, 0.52),
    )


def _said(row: Mapping[Any, Any]) -> str:
    """Return what pointing at an evaluation says."""
    samples, seconds = prefixed(float(f"{row['samples']:.3g}")), rounded(row["train_s_median"], 3)
    return f"{samples} samples, {seconds}{THIN}s: test MSE {scientific(row['test_mse_median'], 3)}"


def _rows(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the cells of each row of panels: all together where they can be distinguished, else a row per setting."""
    if len(cells[_CELL].drop_duplicates()) <= MAX_LINES:
        return [cells]
    cells = _panelled(cells)
    best = (
        cells.groupby("setting", sort=False)["test_mse_median"]
        .min()
        .sort_values(kind="stable")
        .index[: kit.MAX_PANELS // 2]
    )
    return [_thinned(rows) for setting, rows in cells.groupby("setting", sort=False) if setting in set(best)]


def _panelled(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of the settings that get a row: with several workers if there are any such."""
    parallel = set(cells.loc[cells["workers"] > 1, "setting"])
    return cells[cells["setting"].isin(parallel)] if parallel else cells


def _thinned(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a setting whose worker counts leave few enough lines: first, last and those between."""
    runtimes = max(1, cells["series"].nunique())
    counts = sorted(cells["workers"].unique())
    room = max(2, MAX_LINES // runtimes)
    kept = {counts[int(place)] for place in np.linspace(0, len(counts) - 1, min(room, len(counts))).round()}
    return cells[cells["workers"].isin(kept)]


def _looks(points: pd.DataFrame, rows: Sequence[pd.DataFrame]) -> list[dict[Any, style.SeriesStyle]]:
    """Return the style of every cell of every row; what has one label has one style in all of them.

    The label says what differs inside a row: runtime, workers, setting. The colour is that of the runtime where several
    are compared; where there is one beside the plain worker, it follows the order of the labels.
    """
    styles = style.series_styles(points)
    labels = [_labels(points, row) for row in rows]
    first: dict[str, Any] = {}
    for row in labels:
        for key, label in row.items():
            first.setdefault(label, key)
    plain = [label for label, key in first.items() if styles[key[0]].ring]
    runtimes = {styles[key[0]].color for label, key in first.items() if label not in plain}
    if len(plain) > 1 and not runtimes:
        plain = []  # the plain worker alone under several settings: nothing to stand back behind
    others = [label for label in first if label not in plain]
    if len(runtimes) > 1:
        looks = _by_runtime([(label, styles[first[label][0]]) for label in others])
    else:
        looks = dict(zip(others, style.looks_in_order(others), strict=True))
    for label in plain:
        look = styles[first[label][0]]
        looks[label] = replace(look, label=label, ring=False, filled=False, dash=(0, (1.5, 1.5)))
    return [{key: looks[label] for key, label in row.items()} for row in labels]


def _labels(points: pd.DataFrame, cells: pd.DataFrame) -> dict[Any, str]:
    known = cells.drop_duplicates(_CELL)
    names = style.series_labels(points)
    several_runtimes = len(known[["partition", "backend", "transport"]].drop_duplicates()) > 1
    alone = len(known) == 1
    settings = _told(list(known["setting"]))
    labels = {}
    for row in known.to_dict("records"):
        serial = row["backend"] == "serial"
        words = [
            names[row["series"]] if several_runtimes or alone else "",
            plural(row["workers"], "worker") if (known["workers"].nunique() > 1 or alone) and not serial else "",
            settings[row["setting"]],
        ]
        labels[tuple(row[name] for name in _CELL)] = ", ".join(word for word in words if word) or row["setting"]
    return labels


def _by_runtime(looks: Sequence[tuple[str, style.SeriesStyle]]) -> dict[str, style.SeriesStyle]:
    """Return the looks with a dash of its own for every line of one colour."""
    dashes: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2.5, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 1.2)))
    seen: dict[str, int] = {}
    styles = {}
    for label, look in looks:
        place = seen[look.color] = seen.get(look.color, -1) + 1
        styles[label] = replace(look, label=label, filled=place % 2 == 0, dash=dashes[place % len(dashes)])
    return styles


def _told(settings: Sequence[str]) -> dict[str, str]:
    """Return each setting without the words at its front that all of them share."""
    split = {setting: setting.split(" ") for setting in settings}
    shared = 0
    while len(split) > 1 and len({tuple(words[: shared + 1]) for words in split.values()}) == 1:
        shared += 1
    if len(split) == 1:
        return dict.fromkeys(split, "")
    # A word that opens a pair such as `lr 0.001` stays with its number.
    texts = {setting: " ".join(words[shared:]) for setting, words in split.items()}
    if shared and any(text[:1].isdigit() for text in texts.values()):
        texts = {setting: " ".join(words[shared - 1 :]) for setting, words in split.items()}
    return texts


def targets(analysis: Analysis) -> Figure | None:
    """Return stacked bars of the seconds to each target by worker count; None where only single workers trained."""
    table = analysis.targets
    parallel = table[table["setting"].isin(set(table.loc[table["workers"] > 1, "setting"]))]
    if parallel.empty:
        return None
    settings = list(parallel["setting"].drop_duplicates())[:MAX_ROWS]
    levels = sorted(parallel["target_mse"].unique(), reverse=True)
    picked = [levels[int(place)] for place in np.linspace(0, len(levels) - 1, min(3, len(levels))).round()]
    picked = picked[-max(1, 5 // len(settings)) :]
    bases = {setting: set(parallel.loc[parallel["setting"] == setting, "base_series"]) for setting in settings}
    shown = table["setting"].isin(settings) | table["series"].isin(set().union(*bases.values()))
    bars, words = list[pd.DataFrame](), _told(settings)
    for setting, target in itertools.product(settings, picked):  # with the one-worker baseline, of whatever setting
        own = (table["setting"] == setting) | (table["series"].isin(bases[setting]) & (table["workers"] == 1))
        title = ", ".join(filter(None, (words[setting], f"MSE {scientific(target)}")))
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
        alt="Stacked bars of the seconds to reach each target error by number of workers; the values are in the table.",
        caption="Time until the test MSE is at most the target: the median run. A bar is the time that the samples "
        f"needed by {baseline_words(analysis.points, analysis.provenance['baseline'])} take at this throughput, that "
        "of the further samples that these workers need (below zero: fewer), and what is outside the timed window "
        "(evaluation, warm-up). Speedup to target = throughput ratio x statistical efficiency, statistical efficiency "
        "= samples to target of the baseline / samples to target. Dotted with >: not met in that time by enough "
        "repeats (censored). Targets, settings and series that have no room are in the table.",
        data=table[shown & table["target_mse"].isin(picked)],
        looks=style.series_styles(analysis.points),
        **of_bars(rows, "seconds", "Seconds to target", parts=PARTS, unit="s", before="before"),
    )


def sensitivity(analysis: Analysis) -> Figure | None:
    """Return the best test MSE against every option of learning that the study varies; None where it varies none."""
    table = analysis.learning[analysis.learning["best_mse_median"].notna()]
    looks: dict[str, style.SeriesStyle] = {}
    panels, varied = [], []
    known = table["floor_mse"].dropna().unique()
    floors = [Guide(label="statistical floor", level=each, how=_FLOOR, held=True) for each in known]
    for name in CHOICE_TITLES:
        lines = _groups(analysis.points, table, name) if table[name].nunique() > 1 else []
        if not any(len(rows) > 1 for _, rows in lines):
            continue
        values = list(dict.fromkeys(table[name]))
        numeric = all(isinstance(value, int | float | np.number) and float(value) > 0 for value in values)
        named = [rows.assign(line=f"{name} {look.label}") for look, rows in lines]
        looks |= {rows["line"].iloc[0]: look for (look, _), rows in zip(lines, named, strict=True)}
        rows = pd.concat(named)
        rows = rows.assign(value=rows[name].map(float if numeric else values.index))
        made = Points(rows=rows, x="value", by="line", line=True, **spread("best_mse"))
        names = () if numeric else [f"{value}" for value in values]
        panels.append(Panel(layers=[*floors, made], y="Best test MSE", x=CHOICE_TITLES[name], log="xy", names=names))
        varied.append(CHOICE_TITLES[name].lower())
    if not panels:
        return None
    return Figure(
        name="sensitivity",
        title="Sensitivity",
        alt="Best test MSE against the options of training that the study varies; the values are in the table.",
        caption=f"Best test MSE of a run (the smallest over its evaluations) against {', '.join(varied)}: the median "
        "run, bars from the lowest to the highest repeat. Everything else is equal along a line. "
        + (
            "Dashed grey: the statistical floor, the mean Cramer-Rao bound of the test curves."
            if floors
            else "The floor of this data set is not known."
        ),
        data=table,
        panels=panels,
        looks=looks,
    )


def _groups(points: pd.DataFrame, table: pd.DataFrame, name: str) -> list[tuple[style.SeriesStyle, pd.DataFrame]]:
    """Return the lines of one panel: the cells that differ in the option `name` only."""
    others = [*("partition", "backend", "transport", "workers", "nodes", "train_samples", "precision"), *CHOICES]
    keys = [each for each in [*others, "batch"] if each != name and table[each].nunique(dropna=False) > 1]
    if name in OPTIONS and OPTIONS[name].roles & Role.SEVERAL:  # it changes nothing for one plain worker
        table = table[table["backend"] != "serial"]
    groups = [rows for _, rows in table.groupby(keys, sort=False, dropna=False)] if keys else [table]
    groups = [rows for rows in groups if len(rows) > 1] or groups
    best = sorted(groups, key=lambda rows: float(rows["best_mse_median"].min()))[:MAX_LINES]
    groups = [rows for rows in groups if any(rows is each for each in best)]
    labels = [_group_label(points, rows, keys) for rows in groups]
    return list(zip(style.looks_in_order(labels), groups, strict=True))


def _group_label(points: pd.DataFrame, rows: pd.DataFrame, keys: Sequence[str]) -> str:
    row = rows.iloc[0]
    names = style.series_labels(points)
    words = {
        "workers": plural(row["workers"], "worker"),
        **{key: OPTIONS[key].say(row[key]) for key in CHOICES if key in keys},
        "batch": f"batch {row['batch']:g}",
        "train_samples": f"{row['train_samples']:g} samples",
        "precision": f"{row['precision']}",
    }
    runtime = [names[row["series"]]] if {"backend", "transport", "partition"} & set(keys) else []
    return ", ".join([*runtime, *(words[key] for key in keys if key in words)])
