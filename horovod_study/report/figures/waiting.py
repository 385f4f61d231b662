"""Waiting for gradients against workers: with its law and per epoch, and what another node adds to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.boundary import DIRECT, INDIRECT, MEDIAN
from horovod_study.report.figures.scaling import INTERVAL, Side, against_workers, law_words
from horovod_study.report.grammar import Curve, Figure, Looks, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.text.numbers import with_unit
from horovod_study.text.words import listed, plural

_MOST_JUMPS = 6  # whose sizes the legend has


def synchronisation(analysis: Analysis) -> Figure | None:
    """Return the waiting per step and per epoch of the series that know it at several counts of several workers."""
    cells, looks = (
        analysis.synchronisation[analysis.synchronisation["workers"] > 1],
        style.series_styles(analysis.points),
    )
    known = cells[cells["sync_s_median"].notna()]
    known = known[known.groupby("series")["workers"].transform("nunique") > 1]
    if known.empty:
        return None
    lines = analysis.sync_curves[analysis.sync_curves["series"].isin(known["series"])]

    def layers(own: pd.DataFrame, column: str, scale: float, unit: str) -> Iterator[Any]:
        ends: dict[str, Any] = {end: f"{column.removesuffix('_s')}_{end}_s" for end in ("low", "high")}
        rows = lines[lines["series"].isin(own["series"])]
        yield Curve(rows=rows, y=column, **ends, scale=scale, how={"linewidth": 1.2})
        points = spread(column, "_median", "_low", "_high")
        fitted = own["series"].isin(lines["series"])
        for rows, line in ((own[fitted], False), (own[~fitted], True)):
            yield Points(rows=rows, **points, scale=scale, unit=unit, line=line, within="nodes")

    def of_epoch(own: pd.DataFrame) -> Iterator[Any]:
        return iter([_Batches(rows=own), *layers(own, "sync_per_epoch_s", 1.0, "s")])

    sides: list[Side] = [(lambda own: layers(own, "sync_s", 1000.0, "ms"), "Waiting / ms per step", {})]
    epochs = bool(known["sync_per_epoch_s_median"].notna().any())
    sides += [(of_epoch, "Waiting / s per epoch", {})] if epochs else []
    laws = law_words(lines, looks, analysis.points)
    words = [
        "Waiting for gradients against workers, per step and, times the batches of an epoch (pale bars), per epoch.",
        INTERVAL,
        f"Lines: the selected law ({laws}) with its 95 % band, on grey extrapolated." * bool(laws),
        "Lines without a band join the points on equal nodes." * (not known["series"].isin(lines["series"]).all()),
        _hidden(cells, style.series_labels(analysis.synchronisation)),
    ]
    data = pd.concat([known.assign(kind="point"), lines.assign(kind="line")], ignore_index=True)
    legend = [Patch(facecolor=style.GRID, linewidth=0, label="batches per epoch")] * epochs
    how: dict[str, Any] = {"rows": known, "data": data, "looks": looks, "legend": legend}
    return against_workers(analysis, "synchronisation", words, sides, base=False, **how)


def _hidden(cells: pd.DataFrame, labels: Mapping[str, str]) -> str:
    """Return the sentence that names the series whose waiting nobody sees; empty where there are none."""
    names = [labels[series] for series in cells.loc[cells["sync_s_median"].isna(), "series"].drop_duplicates()]
    words = "Not drawn, because synchronisation is hidden inside their backward pass"
    return f"{words}: {listed(names)}." if names else ""


@dataclass(frozen=True, kw_only=True)
class _Batches:
    """The batches of an epoch as pale bars on a second scale; where the lines go on, grey is behind them."""

    rows: pd.DataFrame

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the bars behind `axes`."""
        own = self.rows.drop_duplicates("workers").sort_values("workers", kind="stable")
        twin, measured = axes.twinx(), float(own["workers"].max())
        if last > measured:
            twin.axvspan(measured, 1.3 * last, color=style.SHADE, linewidth=0, zorder=0)
        width = min(0.06 * measured + 0.2, 0.3 * float(own["workers"].diff().min()))  # whole at the last count
        twin.bar(own["workers"], own["batches_per_epoch"], width=width, color=style.GRID, linewidth=0, zorder=1)
        twin.set_ylim(0, own["batches_per_epoch"].max() * 1.1)
        twin.set_ylabel("Batches per epoch", color=style.QUIET)
        twin.tick_params(axis="y", labelcolor=style.QUIET)
        twin.grid(False)
        twin.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
        axes.set_zorder(twin.get_zorder() + 1)
        axes.patch.set_visible(False)
        twin.spines["right"].set_visible(True)


def boundary(analysis: Analysis) -> Figure | None:
    """Return the waiting on one and on more nodes with the jumps; None where no series ran on several nodes."""
    cells, jumps = analysis.nodes[analysis.nodes["sync_s_median"].notna()], analysis.boundary
    several = cells.groupby("setting")["nodes"].transform("max") > 1
    shown = cells[several & cells["series"].isin(set(cells.loc[cells["nodes"] > 1, "series"]))]
    if shown.empty:
        return None
    # Placements may be series of their own.
    looks = style.series_styles(analysis.nodes) | style.series_styles(analysis.points)
    labels = {series: looks[series].label for series in shown["series"].unique()}
    for label, own in shown.groupby(shown["series"].map(labels), sort=False):
        paths = own[(own["workers"] > 1) & (own["path"] != "")].sort_values("nodes", kind="stable")
        ways = ", then ".join(dict.fromkeys(" or ".join(sorted(set(on["path"]))) for _, on in paths.groupby("nodes")))
        for series in own["series"].unique():
            looks[series] = replace(looks[series], label=f"{label}: {ways}" if ways else f"{label}")

    def layers(own: pd.DataFrame) -> Iterator[Any]:
        # Side by side where equal workers ran on several nodes.
        apart = 0.035 * (float(own["workers"].max()) - min(float(own["workers"].min()), 1.0) + 1.0)
        nodes, order = own.groupby("workers")["nodes"], list(own["series"].drop_duplicates())
        counts, rank = nodes.transform("nunique"), nodes.rank(method="dense") - 1
        aside = (own["series"].map(order.index) - (len(order) - 1) / 2) / len(order) * (counts > 1)
        own = own.assign(at=own["workers"] + apart * (2 * (rank - (counts - 1) / 2) + aside))
        yield Points(
            rows=own, **spread("sync_s"), scale=1000, unit="ms", ends=("", ""), at="at", line=True, within="nodes"
        )
        yield _Jumps(cells=own, rows=known[known["series"].isin(own["series"])])

    known = jumps[jumps["jump_s"].notna() & jumps["series"].isin(shown["series"])]
    # An indirect jump is left out where its boundary has a direct one; of others the legend has the first.
    boundaries = pd.Series(list(zip(known["series"], known["fewer_nodes"], strict=True)), index=known.index)
    direct = known["kind"] == DIRECT
    known = known[direct | ~boundaries.isin(set(boundaries[direct]))]
    told = known[(known["kind"] == DIRECT) | ~known.duplicated("series")].to_dict("records")
    words = [
        "Waiting for gradients per step against workers, on one and on more nodes: of each run "
        f"{'medians' if (shown['per_step'] == MEDIAN).all() else 'means'} over steps.",
        "lowest to highest repeat",
        "Arrows: the jump between equal workers on fewer and on more nodes." * (DIRECT in set(known["kind"])),
        "Dotted: the next worker count already needs another node: not the jump of the node alone."
        * (INDIRECT in set(known["kind"])),
        "Sizes of the jumps: means over repeats, 95 % intervals in brackets." * (0 < len(told) <= _MOST_JUMPS),
        "The sizes of the jumps are in the CSV file." * (len(told) > _MOST_JUMPS),
        _hidden(analysis.nodes, {series: look.label for series, look in looks.items()}),
    ]
    sides = [(layers, "Waiting for gradients / ms per step", {"beyond": None})]
    data = pd.concat([shown.assign(kind="point"), jumps.rename(columns={"kind": "jump"}).assign(kind="jump")])
    settings = shown.drop_duplicates("series").set_index("series")["setting"]
    named = {series: labels[series] + f", {settings[series]}" * (settings.nunique() > 1) for series in settings.index}
    legend = [_jump_entry(row, looks[row["series"]], named[row["series"]]) for row in told[:_MOST_JUMPS]]
    legend *= len(told) <= _MOST_JUMPS
    how: dict[str, Any] = {"rows": shown, "data": data, "looks": looks, "legend": legend}
    return against_workers(analysis, "boundary", words, sides, base=False, **how)


@dataclass(frozen=True, kw_only=True)
class _Jumps:
    """An arrow up from equal workers on fewer nodes to those on more; a dotted line where further workers are there."""

    cells: pd.DataFrame
    rows: pd.DataFrame

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the arrows and lines."""
        names = ["workers", "nodes", "per_node"]
        of = self.cells[["series", *names, "at", "sync_s_median"]].itertuples(index=False)
        places = {(series, *key): (at, 1000 * y) for series, *key, at, y in of}
        for row in self.rows.to_dict("records"):
            keys = [(row["series"], *(row[f"{side}_{name}"] for name in names)) for side in ("fewer", "more")]
            if set(keys) <= set(places):
                (x0, y0), (x1, y1) = (places[key] for key in keys)
                how: dict[str, Any] = {"color": looks[row["series"]].color, "linewidth": 0.9, "zorder": 1.8}
                if row["kind"] == INDIRECT:
                    axes.plot([x0, x1], [y0, y1], linestyle=(0, (1, 2)), **how)
                    continue
                axes.plot([x0, x1], [y0, y0], **how)
                arrow = {"arrowstyle": "-|>", "color": how["color"], "linewidth": 0.9, "shrinkA": 0, "shrinkB": 4}
                axes.annotate("", xy=(x1, y1), xytext=(x1, y0), arrowprops=arrow, zorder=1.9)


def _jump_entry(row: Mapping[Any, Any], look: style.SeriesStyle, label: str) -> Line2D:
    """Return the entry of a legend that says the size of a jump."""
    value = with_unit(*(1000 * row[f"{each}_s"] for each in ("jump", "low", "high")), unit="ms")
    more = row["more_workers"] - row["fewer_workers"]
    at = f"with {plural(more, 'worker')} more" if more else f"at {plural(row['more_workers'], 'worker')}"
    text = (
        f"{label}, {row['fewer_nodes']:.0f} to {row['more_nodes']:.0f} nodes: {'+' * (row['jump_s'] >= 0)}{value} {at}"
    )
    text += ", not resolved" * (not pd.isna(row["resolved"]) and not row["resolved"])
    return kit.entry(look, text, linestyle=(0, (1, 2)) if row["kind"] == INDIRECT else "-", linewidth=0.9)
