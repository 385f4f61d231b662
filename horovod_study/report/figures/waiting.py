"""Waiting for gradients against workers: with its law and per epoch, and what another node adds to it.

Lines over NCCL are solid and over MPI dashed, as in every figure; here the transport is what they are about.
"""

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
from horovod_study.report.grammar import Curve, Figure, Looks, Panel, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.text.numbers import with_unit
from horovod_study.text.words import listed, plural

MAX_PANELS = 4
"""Settings in one figure, each with two panels."""


def synchronisation(analysis: Analysis) -> Figure | None:
    """Return the waiting per step and per epoch of the series that know it at several counts of several workers."""
    cells = analysis.synchronisation[analysis.synchronisation["workers"] > 1]
    known = cells[cells["sync_s_median"].notna()]
    known = known[known.groupby("series")["workers"].transform("nunique") > 1]
    settings = list(known["setting"].drop_duplicates())[:MAX_PANELS]
    if not settings:
        return None
    shown, looks = known[known["setting"].isin(settings)], style.series_styles(analysis.points)
    lines = analysis.sync_curves[analysis.sync_curves["series"].isin(shown["series"])]
    fitted = set(lines["series"])

    def layers(own: pd.DataFrame, column: str, scale: float, unit: str) -> Iterator[Any]:
        ends = (f"{column.removesuffix('_s')}_{end}_s" for end in ("low", "high"))
        law: dict[str, Any] = dict(zip(("y", "low", "high"), (column, *ends), strict=True))
        yield Curve(rows=lines[lines["series"].isin(own["series"])], **law, scale=scale, how={"linewidth": 1.2})
        points = spread(column, "_median", "_low", "_high")
        for rows, line in ((own[own["series"].isin(fitted)], False), (own[~own["series"].isin(fitted)], True)):
            yield Points(rows=rows, **points, scale=scale, unit=unit, line=line, within="nodes")

    panels, epochs = [], bool(shown["sync_per_epoch_s_median"].notna().any())
    for setting in settings:
        own = shown[shown["setting"] == setting]
        how: dict[str, Any] = {"title": setting if len(settings) > 1 else "", "nodes": own}
        waits = list(layers(own, "sync_s", 1000.0, "ms"))
        panels.append(Panel(layers=waits, y="Waiting / ms per step", beyond="", **how))
        if epochs:
            of_epoch = [_Batches(rows=own), *layers(own, "sync_per_epoch_s", 1.0, "s")]
            panels.append(Panel(layers=of_epoch, y="Waiting / s per epoch", **how))
    laws = [f"{looks[row['series']].label}: {law_label(row['law'])}" for row in
            lines.drop_duplicates("series").to_dict("records")]  # fmt: skip
    caption = [
        "Waiting for gradients against workers: per step (left) and, times the batches of an epoch (bars, right "
        "scale), per epoch."
        if epochs
        else "Waiting for gradients per step against workers.",
        "Points: medians over repeats of the mean over steps; bars: 95 % intervals, where there are three repeats.",
        f"Lines: the law selected by AICc ({'; '.join(dict.fromkeys(laws))}) with its 95 % band; on grey: "
        "extrapolated." * bool(laws),
        "Where no law is drawn, lines join the points on equal nodes." * (len(laws) < shown["series"].nunique()),
        f"Solid: NCCL, dashed: MPI, dash-dotted: Gloo.{kit.boundary_words(shown)}{kit.left_out(known, settings)}",
        _hidden(cells, style.series_labels(analysis.synchronisation)),
    ]
    return Figure(
        name="synchronisation",
        title="Synchronisation against workers",
        alt="Waiting for gradients per step and per epoch against workers; the values are in the table.",
        caption=" ".join(filter(None, caption)),
        data=pd.concat([shown.assign(kind="point"), lines.assign(kind="line")], ignore_index=True),
        panels=panels,
        looks=looks,
        legend=[Patch(facecolor=style.GRID, linewidth=0, label="batches per epoch")] * epochs,
        shape=(2, 0.84, 0.52),
    )


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


# ---------------------------------------------------------------------------------------------------- another node


def boundary(analysis: Analysis) -> Figure | None:
    """Return the waiting on one and on more nodes with the jumps; None where no series ran on several nodes."""
    cells = analysis.nodes[analysis.nodes["sync_s_median"].notna()]
    several = cells.groupby("setting")["nodes"].transform("max") > 1
    shown = cells[several & cells["series"].isin(set(cells.loc[cells["nodes"] > 1, "series"]))]
    if shown.empty:
        return None
    # Placements may be series of their own.
    looks = style.series_styles(analysis.nodes) | style.series_styles(analysis.points)
    for label, own in shown.groupby(shown["series"].map(lambda series: looks[series].label), sort=False):
        ways = ", then ".join(dict.fromkeys(way for _, way in _paths(own)))
        for series in own["series"].unique():
            looks[series] = replace(looks[series], label=f"{label}: {ways}" if ways else f"{label}")
    settings, jumps = list(shown["setting"].drop_duplicates())[: kit.MAX_PANELS], analysis.boundary
    panels = []
    for setting in settings:
        own = _placed(shown[shown["setting"] == setting])
        how: dict[str, Any] = {"ends": ("", ""), "at": "at", "line": True, "within": "nodes"}
        points = Points(rows=own, **spread("sync_s"), scale=1000, unit="ms", **how)
        top = 1000 * float(own["sync_s_max"].max()) * 1.22
        arrows = _Jumps(cells=own, rows=jumps[jumps["series"].isin(own["series"])], top=top)
        how = {"title": setting if len(settings) > 1 else "", "nodes": own, "limits": (0, top)}
        how["room"] = 0.3 * bool(len(arrows.rows))
        panels.append(Panel(layers=[points, arrows], y="Waiting for gradients / ms per step", **how))
    per_step = "medians over steps" if (shown["per_step"] == MEDIAN).all() else "means over steps"
    caption = [
        "Waiting for gradients per step against workers; dashed vertical lines: further workers need another node. "
        f"Points: medians over repeats of what each run says of its steps ({per_step}), bars: lowest to highest "
        "repeat. Arrows: the jump between equal workers on fewer and on more nodes (mean over repeats, 95 % interval "
        "in brackets); dotted: the next worker count already needs another node, so a jump there is not that of the "
        f"node alone.{kit.left_out(shown, settings)}",
        _carried(analysis),
        _hidden(analysis.nodes, {series: look.label for series, look in looks.items()}),
    ]
    return Figure(
        name="boundary",
        title="Synchronisation and node boundaries",
        alt="Waiting for gradients per step against workers, on one and on more nodes; the jumps are in the table.",
        caption=" ".join(filter(None, caption)),
        data=pd.concat([shown.assign(kind="point"), jumps.rename(columns={"kind": "jump"}).assign(kind="jump")]),
        panels=panels,
        looks=looks,
        shape=(2, 0.9, 0.55),
    )


def _placed(cells: pd.DataFrame) -> pd.DataFrame:
    """Return cells with their place on the axis of workers: side by side where equal workers ran on several nodes."""
    apart = 0.035 * (float(cells["workers"].max()) - min(float(cells["workers"].min()), 1.0) + 1.0)
    of = cells.groupby("workers")
    counts, rank = of["nodes"].transform("nunique"), of["nodes"].rank(method="dense") - 1
    order = list(cells["series"].drop_duplicates())
    aside = (cells["series"].map(order.index) - (len(order) - 1) / 2) / len(order) * (counts > 1)
    return cells.assign(at=cells["workers"] + apart * (2 * (rank - (counts - 1) / 2) + aside))


@dataclass(frozen=True, kw_only=True)
class _Jumps:
    """Arrows from equal workers on fewer nodes to those on more, with their sizes beside them while they are few."""

    cells: pd.DataFrame
    rows: pd.DataFrame
    top: float  # of the axis, in ms

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        """Draw the arrows, and write their sizes right of them, moved up where they would be on one another."""
        names = ["series", "workers", "nodes", "per_node"]
        places = {tuple(row[name] for name in names): (row["at"], 1000 * row["sync_s_median"])
                  for row in self.cells.to_dict("records")}  # fmt: skip
        texts = []
        for row in self._drawn():
            keys = [(row["series"], *(row[f"{side}_{name}"] for name in names[1:])) for side in ("fewer", "more")]
            if any(key not in places for key in keys):
                continue
            (x0, y0), (x1, y1) = (places[key] for key in keys)
            color = looks[row["series"]].color
            if row["kind"] == INDIRECT:
                axes.plot([x0, x1], [y0, y1], color=color, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1.8)
            else:
                axes.plot([x0, x1], [y0, y0], color=color, linewidth=0.8, zorder=1.8)
                arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 4}
                axes.annotate("", xy=(x1, y1), xytext=(x1, y0), arrowprops=arrow, zorder=1.9)
            if row["written"]:  # right of all that ran on equal workers
                aside = self.cells.loc[self.cells["workers"] == row["more_workers"], "at"].max()
                texts.append((float(aside), (y0 + y1) / 2, _written(row)))
        if len(texts) > (4 if panel_in >= style.NARROW_IN else 1):  # with more, the table says them better
            return
        floor = 0.0
        for x, y, text in sorted(texts, key=lambda each: each[1]):
            tall = 1.4 * style.small() / 72 / (0.4 * panel_in) * self.top * (1 + text.count("\n"))
            middle = max(y, floor + tall / 2)
            floor = middle + tall / 2
            how: dict[str, Any] = {"va": "center", "color": style.INK, "zorder": 5, "bbox": kit.paper_behind()}
            kit.note_at(axes, text, (x, middle), (8, 0), **how)

    def _drawn(self) -> list[dict[Any, Any]]:
        """Return the jumps to draw: no indirect one where its boundary has a direct one; the first is `written`."""
        known = self.rows[self.rows["jump_s"].notna()]
        direct = known.loc[known["kind"] == DIRECT, ["series", "fewer_nodes"]]
        compared = set(direct.itertuples(index=False, name=None))
        first = known.groupby("series")["fewer_nodes"].transform("min")
        rows = known.assign(written=(known["kind"] == DIRECT) | (known["fewer_nodes"] == first)).to_dict("records")
        return [row for row in rows if row["kind"] == DIRECT or (row["series"], row["fewer_nodes"]) not in compared]


def _written(row: Mapping[Any, Any]) -> str:
    value = with_unit(*(1000 * row[f"{each}_s"] for each in ("jump", "low", "high")), unit="ms")
    text = value if row["jump_s"] < 0 else f"+{value}"
    if row["kind"] == INDIRECT:
        text += f"\nwith {plural(row['more_workers'] - row['fewer_workers'], 'worker')} more"
    return f"{text}\nnot resolved" if not pd.isna(row["resolved"]) and not row["resolved"] else text


def _carried(analysis: Analysis) -> str:
    """Return which network carried the gradients of each drawn series, as the records of the runs say."""
    labels, texts = style.series_labels(analysis.nodes), []
    for series, rows in analysis.nodes.groupby("series", sort=False):
        if rows["nodes"].max() > 1 and (ways := _paths(rows)):
            texts.append(f"{labels[str(series)]}: " + ", ".join(f"{way} on {on}" for on, way in ways))
    return f"Network path, as the runs recorded it: {'; '.join(texts)}." if texts else ""


def _paths(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return (nodes in words, recorded paths) of one series, in the order of the nodes."""
    known = rows[(rows["workers"] > 1) & (rows["path"] != "")]
    return [
        (plural(float(f"{nodes}"), "node"), " or ".join(sorted(set(own["path"]))))
        for nodes, own in known.groupby("nodes", sort=True)
    ]
