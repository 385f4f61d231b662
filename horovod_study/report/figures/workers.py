"""What the figures against workers share: a panel for each setting, and captions that are built in one way."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from horovod_study.analysis.laws import law_label
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.study import Analysis
from horovod_study.report.grammar import Figure, Looks, Panel
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.style import series_styles

RANGE = "slowest to fastest repeat"
INTERVAL = "95 % intervals, where there are three repeats"
_PLAIN = "one plain PyTorch worker without a communication library"

Side = tuple[Callable[[pd.DataFrame], Iterable[Any]], str, dict[str, Any]]
"""The layers for the rows of a setting, the label of their axis of y, and other axes as `Panel` takes them."""


def law_words(curves: pd.DataFrame, looks: Looks, points: pd.DataFrame, before: str = "") -> str:
    """Return the law of each series of `curves`, once a name; with its setting where a name has several laws."""
    rows = curves.drop_duplicates("series")
    rows = rows.assign(name=[before + looks[series].label for series in rows["series"]])
    rows["setting"] = rows["series"].map(points.drop_duplicates("series").set_index("series")["setting"])
    rows.loc[rows.groupby("name")["law"].transform("nunique") > 1, "name"] += ", " + rows["setting"]
    told = rows[["name", "law"]].drop_duplicates().itertuples(index=False)
    return "; ".join(f"{name}: {law_label(law)}" for name, law in told)


def against_workers(
    analysis: Analysis,
    name: str,
    words: Sequence[str],
    sides: Sequence[Side],
    *,
    rows: pd.DataFrame,
    data: pd.DataFrame,
    base: bool = True,
    **how: Any,
) -> Figure:
    """Return a figure with a panel for each setting that has one and each of the `sides`; `rows`: all to be drawn.

    `words`: what is drawn, what the bars are, and more; the caption adds what its rows have, and the baseline (`base`).
    """
    settings, panels = kit.settings_of(rows, most=kit.MAX_PANELS // len(sides)), []
    for setting in settings:
        own = rows[rows["setting"] == setting]
        axes = {"title": setting if len(settings) > 1 else "", "nodes": own, "beyond": "extrapolated"}
        axes |= {"lost": own[own["missing"]]} if "missing" in own else {}
        panels += [Panel(layers=list(layers(own)), y=y, **{**axes, **more}) for layers, y, more in sides]
    shown, kind, (what, bars, *rest) = rows[rows["setting"].isin(settings)], analysis.provenance["baseline"], words
    told = [what, f"Points: medians over repeats; bars: {bars}.", *rest]
    if base:
        baseline = baseline_words(analysis.points, kind, plain=_PLAIN)
        told += [f"Baseline ({kind}): {baseline}.", kit.work_words(shown), kit.repeats_words(shown)]
    told += [kit.boundary_words(shown).strip(), kit.left_out(rows, settings).strip()]
    title, shape = name.replace("_", " ").capitalize(), (2, 0.84, 0.52)
    how = {"title": title, "alt": what, "looks": series_styles(analysis.points), "shape": shape, **how}
    return Figure(name=name, caption=" ".join(filter(None, told)), data=data, panels=panels, **how)
