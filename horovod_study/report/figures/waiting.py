"""Waiting for gradients against workers: with its law and per epoch, and what another node adds to it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.laws import law_label
from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.boundary import DIRECT, INDIRECT, MEDIAN
from horovod_study.report.figures.workers import INTERVAL, against_workers
from horovod_study.report.grammar import Curve, Figure, Looks, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.text.numbers import with_unit
from horovod_study.text.words import listed, plural


def synchronisation(analysis: Analysis) -> Figure | None:
    """Return the waiting per step and per epoch of the series that know it at several counts of several workers."""
    cells, looks = (
        analysis.synchronisation[analysis.synchronisation["workers"] > 1],
        style.series_styles(analysis.points),
    )
    known = cells[cells["sync_s_median"].notna()]
    known = known[known.groupby("series")["workers"].transform("nunique") > 1]
    settings = list(known["setting"].drop_duplicates())[:4]
    if not settings:
        return None
    shown = known[known["setting"].isin(settings)]
    lines = analysis.sync_curves[analysis.sync_curves["series"].isin(shown["series"])]

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

    sides = [(lambda own: layers(own, "sync_s", 1000.0, "ms"), "Waiting / ms per step", {"beyond": ""})]
    epochs = bool(shown["sync_per_epoch_s_median"].notna().any())
    sides += [(of_epoch, "Waiting / s per epoch", {})] if epochs else []
    laws = [f"{looks[series].label}: {law_label(law)}"
            for series, law in lines[["series", "law"]].drop_duplicates().itertuples(index=False)]  # fmt: skip
    words = [
        "Waiting for gradients against workers, per step and, times the batches of an epoch (pale bars), per epoch.",
        INTERVAL,
        f"Lines: the law selected by AICc ({'; '.join(dict.fromkeys(laws))}) with its 95 % band, on grey "
        "extrapolated; without a law, lines join the points on equal nodes." * bool(laws),
        _hidden(cells, style.series_labels(analysis.synchronisation)),
    ]
    data = pd.concat([shown.assign(kind="point"), lines.assign(kind="line")], ignore_index=True)
    legend = [Patch(facecolor=style.GRID, linewidth=0, label="batches per epoch")] * epochs
    how: dict[str, Any] = {"rows": known, "settings": settings, "data": data, "looks": looks, "legend": legend}
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
            twin.axvspan(measured, last + 1, color=style.SHADE, linewidth=0, zorder=0)
        width = 0.3 * float(own["workers"].diff().min()) if len(own) > 1 else 0.6
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
        yield _Jumps(cells=own, rows=jumps[jumps["series"].isin(own["series"])])

    words = [
        "Waiting for gradients per step against workers, on one and on more nodes: of each run "
        f"{'medians' if (shown['per_step'] == MEDIAN).all() else 'means'} over steps.",
        "lowest to highest repeat",
        "Arrows: the jump between equal workers on fewer and on more nodes (mean over repeats, 95 % interval in "
        "brackets); dotted: the next worker count already needs another node: not the jump of the node alone.",
        _hidden(analysis.nodes, {series: look.label for series, look in looks.items()}),
    ]
    sides = [(layers, "Waiting for gradients / ms per step", {"beyond": None, "room": 0.3 * bool(len(jumps))})]
    data = pd.concat([shown.assign(kind="point"), jumps.rename(columns={"kind": "jump"}).assign(kind="jump")])
    settings = list(shown["setting"].drop_duplicates())[: kit.MAX_PANELS]
    how: dict[str, Any] = {"rows": shown, "settings": settings, "data": data, "looks": looks}
    return against_workers(analysis, "boundary", words, sides, base=False, **how)


@dataclass(frozen=True, kw_only=True)
class _Jumps:
    """Arrows from equal workers on fewer nodes to those on more, with their sizes beside them while they are few."""

    cells: pd.DataFrame
    rows: pd.DataFrame

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the arrows, and write their sizes right of them, moved up where they would be on one another."""
        names = ["workers", "nodes", "per_node"]
        of = self.cells[["series", *names, "at", "sync_s_median"]].itertuples(index=False)
        places = {(series, *key): (at, 1000 * y) for series, *key, at, y in of}
        known, texts = self.rows[self.rows["jump_s"].notna()], []
        # An indirect jump is left out where its boundary has a direct one; of others the first is written.
        direct = set(map(tuple, known.loc[known["kind"] == DIRECT, ["series", "fewer_nodes"]].to_numpy()))
        for row in known.to_dict("records"):
            keys = [(row["series"], *(row[f"{side}_{name}"] for name in names)) for side in ("fewer", "more")]
            indirect = row["kind"] == INDIRECT
            if not set(keys) <= set(places) or (indirect and (row["series"], row["fewer_nodes"]) in direct):
                continue
            (x0, y0), (x1, y1) = (places[key] for key in keys)
            color = looks[row["series"]].color
            if indirect:
                axes.plot([x0, x1], [y0, y1], color=color, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1.8)
            else:
                axes.plot([x0, x1], [y0, y0], color=color, linewidth=0.8, zorder=1.8)
                arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 4}
                axes.annotate("", xy=(x1, y1), xytext=(x1, y0), arrowprops=arrow, zorder=1.9)
            first = known.loc[known["series"] == row["series"], "fewer_nodes"].min()
            if not indirect or row["fewer_nodes"] == first:  # right of all that ran on equal workers
                aside = self.cells.loc[self.cells["workers"] == row["more_workers"], "at"].max()
                value = with_unit(*(1000 * row[f"{each}_s"] for each in ("jump", "low", "high")), unit="ms")
                text = value if row["jump_s"] < 0 else f"+{value}"
                if indirect:
                    text += f"\nwith {plural(row['more_workers'] - row['fewer_workers'], 'worker')} more"
                if not pd.isna(row["resolved"]) and not row["resolved"]:
                    text += "\nnot resolved"
                texts.append((float(aside), (y0 + y1) / 2, text))
        floor, top = 0.0, 1120 * float(self.cells["sync_s_max"].max())
        if len(texts) > (4 if panel_in >= style.NARROW_IN else 1):  # with more, the table says them better
            return
        for x, y, text in sorted(texts, key=lambda each: each[1]):
            tall = 1.4 * style.small() / 72 / (0.4 * panel_in) * top * (1 + text.count("\n"))
            middle = max(y, floor + tall / 2)
            floor = middle + tall / 2
            how: dict[str, Any] = {"va": "center", "color": style.INK, "zorder": 2.8, "bbox": kit.paper_behind()}
            kit.note_at(axes, text, (x, middle), (8, 0), **how)
