"""Why a step is longer than the ideal one, for readers: the way from ideal to measured, stragglers, what the
synchronisation is made of, and what the machine could do."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.machine.network import restored
from horovod_study.analysis.series.points import baseline_words
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.breakdown import NOTES
from horovod_study.analysis.steps.losses import IDEAL, MEASURED
from horovod_study.analysis.study import Analysis
from horovod_study.report.figures import attribution
from horovod_study.report.figures.bench import drawings_of
from horovod_study.report.grammar import Figure as Drawing
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.interactive import mark
from horovod_study.text.numbers import MINUS, THIN, milliseconds, percent, signed
from horovod_study.text.words import plural, span

_MAX_BARS = 10
"""Of the figure of what synchronisation is made of: each series has its share of them, its largest counts."""

LOOKS = {
    IDEAL: style.LapStyle(label="ideal step", color="#8fa5b8", ink=style.INK),
    "computing": style.LapStyle(label="slower computing", color="#d4ba6e", ink=style.INK),
    "hidden": style.LapStyle(label="hidden in backward", color="#c9a3b4", ink=style.INK),
    "skew": style.LapStyle(label="skew (last worker)", color="#e69f00", ink=style.INK),
    "transfer": style.LapStyle(label="transfer", color="#56b4e9", ink=style.INK),
    "packing": style.LapStyle(label="packing, norm", color="#e3a6be", ink=style.INK),
    "runtime": style.LapStyle(label="cycle, negotiation", color="#b3305f", ink="#ffffff"),
    "exchange": style.LapStyle(label="transfer and runtime", color="#b3305f", ink="#ffffff"),
    "waiting": style.LapStyle(label="waiting", color="#b3305f", ink="#ffffff"),
    "other": style.LapStyle(label="rest of sync", color="#ffffff", ink=style.INK, hatch="\\\\\\\\"),
    "unexplained": style.LapStyle(label="unexplained", color="#ffffff", ink=style.INK, hatch="//////"),
    MEASURED: style.LapStyle(label="measured step", color="#4d5159", ink="#ffffff"),
}
"""What a way from ideal to measured is made of, from top to bottom."""


def losses(analysis: Analysis) -> Drawing | None:
    table = analysis.losses
    if table.empty:
        return None
    top = table[table["workers"] == table.groupby("series")["workers"].transform("max")]
    top = top[top["nodes"] == top.groupby("series")["nodes"].transform("max")]
    cells = top[top["part"] == MEASURED]
    main = cells[cells["setting"].isin(kit.settings_of(table, most=1))]
    chosen = main.sort_values("workers", ascending=False, kind="stable").head(4).sort_index()
    order = [part for part in LOOKS if part in set(top.loc[top["series"].isin(chosen["series"]), "part"])]
    hidden = top[top["series"].isin(chosen["series"]) & (top["part"] == "hidden")]
    inside = sorted({"compute" if note == NOTES["captured"] else "backward" for note in hidden["note"]})
    names = [f"hidden in {' or '.join(inside)}" if part == "hidden" else LOOKS[part].label for part in order]
    labels = style.series_labels(analysis.points)
    kind = analysis.provenance["baseline"]

    def draw(width_in: float) -> Figure:
        columns = 1 if width_in < style.NARROW_IN else min(2, len(chosen))
        rows = math.ceil(len(chosen) / columns)
        height_in = rows * (0.72 + 0.19 * len(order)) + 0.1
        panel_in = (width_in - 1.25) / columns - 0.15  # beside the names of the parts
        figure, axes_of = kit.panels_of(width_in, height_in, rows, columns, len(chosen), sharey=True)
        for place, (axes, cell) in enumerate(zip(axes_of, chosen.to_dict("records"), strict=False)):
            own = top[(top["series"] == cell["series"]) & (top["batch"] == cell["batch"])]
            _way(
                axes, {str(row["part"]): row for row in own.to_dict("records")}, order, labels[cell["series"]], panel_in
            )
            axes.set_yticks(range(len(order)), names)
            axes.tick_params(axis="y", length=0, labelleft=place % columns == 0)
            axes.set_ylim(len(order) - 0.45, -0.55)
            kit.lying_grid(axes)
            axes.set_xlabel("ms per step")
            title = f"{labels[cell['series']]}, {plural(cell['workers'], 'worker')}, {cell['setting']}"
            axes.set_title(style.folded(title, panel_in))
        return figure

    base = baseline_words(analysis.points, kind, plain="one plain PyTorch worker")
    apart = set(top.loc[top["series"].isin(chosen["series"]), "part"])
    caption = (
        "From the ideal step to the measured one, means per step over the timed window, ranks and repeats, at the "
        f"largest worker count of each series. Ideal: the step of {base} (for a fixed global batch divided by "
        "the workers). Each bar is what T(N) - T(1) of one part adds, and begins where the one above ends; what is "
        "below zero became shorter. In brackets: share of all that is lost. "
        + ("Waiting for the last worker (skew): from the step rows of all ranks. " if "skew" in apart else "")
        + (
            "Transfer: one raw all-reduce of the gradients in the same job (10 % quantile); runtime: the same through "
            "the library with aligned ranks, less that; rest: of the synchronisation, what these do not explain. "
            if "runtime" in apart
            else "Transfer and runtime were not measured separately in these runs. "
            if apart & {"exchange", "waiting"}
            else ""
        )
        + "The stroke on the last bar: 95 % interval of T(N) - T(1), where there are three repeats."
    )
    rest = cells["series"].nunique() - len(chosen)
    if rest > 0:
        caption += f" In the CSV file only: {rest} further series, and smaller counts."
    return Drawing(
        name="losses",
        title="From the ideal step to the measured one",
        alt="Bars from the ideal step to the measured one, one for each part that makes it longer; the values are in "
        "its CSV file.",
        caption=caption,
        data=table,
        paint=draw,
    )


def _way(axes: Axes, parts: Mapping[str, Mapping[Any, Any]], order: list[str], label: str, panel_in: float) -> None:
    right = max(float(row["to_s"]) for row in parts.values()) * 1000
    before: float | None = None
    for place, part in enumerate(order):
        row = parts.get(part)
        if row is None:
            continue
        look, begin, end = LOOKS[part], float(row["from_s"]) * 1000, float(row["to_s"]) * 1000
        bars = axes.barh(place, end - begin, left=begin, height=0.66, **kit.face(look), zorder=2)
        value = float(row["seconds"])
        whole = part in (IDEAL, MEASURED)
        text = milliseconds(value) if whole else signed(milliseconds(value))
        share = f" ({percent(row['of_loss'], decimals=0)})" if not whole and math.isfinite(row["of_loss"]) else ""
        mark(bars, series=label, tips=[f"{look.label}: {text}{THIN}ms per step{share}"])
        if before is not None and part != MEASURED:
            axes.plot([begin, begin], [before + 0.33, place - 0.33], color=style.QUIET, linewidth=0.6, zorder=1.5)
        if part == MEASURED and math.isfinite(row["low_s"]):
            kit.rimmed(axes, (row["low_s"] * 1000, row["high_s"] * 1000), place)
            right = max(right, float(row["high_s"]) * 1000)
        at = max(begin, end, float(row["high_s"]) * 1000 if part == MEASURED and math.isfinite(row["high_s"]) else 0.0)
        kit.note_at(axes, f"{text}{share}", (at, place), (3, 0), va="center", size=style.small() - 0.5, zorder=6)
        before = place
    spare = min(0.6, (style.text_in(f"{MINUS}0.00 (100{THIN}%)") + 0.05) / panel_in)
    axes.set_xlim(min(0.0, 1.05e3 * min(float(row["to_s"]) for row in parts.values())), right / (1 - spare))
    kit.label_ticks(axes.xaxis, MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))


_CELL = ["series", "workers", "nodes", "batch", "arm"]


def parts(analysis: Analysis) -> Drawing | None:
    table = analysis.attribution
    if table.empty:
        return None
    whole = table.groupby(_CELL, dropna=False)["part"].transform(lambda parts: set(attribution.LOOKS) <= set(parts))
    known = table[whole.astype(bool)]
    if known.empty:
        return None
    cells = known[_CELL].drop_duplicates()
    main = cells[cells["series"].isin(known.loc[known["setting"].isin(kit.settings_of(known, most=1)), "series"])]
    share = max(1, _MAX_BARS // main["series"].nunique())
    largest = main.sort_values("workers", ascending=False, kind="stable").groupby("series", sort=False).head(share)
    chosen = largest.head(_MAX_BARS).sort_index()
    labels = style.series_labels(analysis.points)
    arms = chosen["arm"].nunique() > 1

    def draw(width_in: float) -> Figure:
        bars = []
        for cell in chosen.to_dict("records"):
            own = known[(known[_CELL].astype(object) == pd.Series(cell, dtype=object)).all(axis=1)]
            parts = {str(row["part"]): row for row in own.to_dict("records")}
            words = [labels[cell["series"]], plural(cell["workers"], "worker"), *([cell["arm"]] if arms else [])]
            value, low, high = (float(parts["sync"][name]) for name in ("seconds", "low_s", "high_s"))
            seconds = {part: float(parts[part]["seconds"]) for part in attribution.LOOKS}
            bars.append((", ".join(words), seconds, Interval(value=value, low=low, high=high)))
        return attribution.draw_bars(bars, width_in)

    rest = len(cells) - len(chosen)
    caption = (
        f"What the synchronisation of a step is made of, {kit.settings_of(known, most=1)[0]}, means over steps, ranks "
        "and repeats. Transfer: one raw all-reduce of the gradients in the same job, without a runtime and undisturbed "
        "(10 % quantile). Skew: waiting "
        "for the last worker, from the workers' own laps. Runtime: the same synchronisation with aligned workers, less "
        "the transfer. Unexplained: what is left; left of zero where the parts exceed the whole. Stroke: 95 % interval "
        "of the whole synchronisation (over repeats; of a single run over its steps). Runs per bar: "
        f"{span(known['runs'].min(), known['runs'].max())}."
        + (f" In the CSV file only: {plural(rest, 'further bar')}." if rest else "")
    )
    return Drawing(
        name="attribution",
        title="What synchronisation is made of",
        alt="Stacked bars of transfer, skew, runtime and what is unexplained; the values are in its CSV file.",
        caption=caption,
        data=table,
        paint=draw,
    )


def machines(analysis: Analysis) -> list[Drawing]:
    """Return roofline and network of each machine whose bench.json the analysis was given."""
    found = [drawings_of(restored(each, source="network.json")) for each in analysis.network["machines"]]
    return [
        replace(each, name=f"{each.name}-{place}") if len(found) > 1 else each
        for place, own in enumerate(found, 1)
        for each in own
    ]
