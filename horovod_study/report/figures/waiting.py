"""Waiting for gradients against workers: with its law and per epoch, and what another node adds to it; and what can be
chosen: one backend against another, and the batch of a worker with its knee and its overhead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.synchronisation import DIRECT, INDIRECT, MEDIAN, RESOLVED
from horovod_study.report import grammar as kit
from horovod_study.report.figures.scaling import INTERVAL, Side, against_workers, law_words
from horovod_study.report.grammar import Curve, Figure, Guide, Looks, Panel, Points, spread
from horovod_study.report.kit import style
from horovod_study.text.numbers import with_interval
from horovod_study.text.words import listed, plural


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
    # An indirect jump is left out where its boundary has a direct one.
    boundaries = pd.Series(list(zip(known["series"], known["fewer_nodes"], strict=True)), index=known.index)
    direct = known["kind"] == DIRECT
    known = known[direct | ~boundaries.isin(set(boundaries[direct]))]
    words = [
        "Waiting for gradients per step against workers, on one and on more nodes: of each run "
        f"{'medians' if (shown['per_step'] == MEDIAN).all() else 'means'} over steps.",
        "lowest to highest repeat",
        "Arrows: the jump between equal workers on fewer and on more nodes." * (DIRECT in set(known["kind"])),
        "Dotted: the next worker count already needs another node: not the jump of the node alone."
        * (INDIRECT in set(known["kind"])),
        _hidden(analysis.nodes, {series: look.label for series, look in looks.items()}),
    ]
    sides = [(layers, "Waiting for gradients / ms per step", {"beyond": None})]
    data = pd.concat([shown.assign(kind="point"), jumps.rename(columns={"kind": "jump"}).assign(kind="jump")])
    how: dict[str, Any] = {"rows": shown, "data": data, "looks": looks}
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


MIN_BATCHES = 3
MAX_LINES = 8  # of one figure that can be distinguished


def transport_ratio(analysis: Analysis) -> Figure | None:
    """Return the ratio of two backends that ran side by side; None where no two were paired at several counts."""
    table = analysis.transports[analysis.transports["ratio"].notna() & (analysis.transports["workers"] > 1)]
    counts = table.groupby(["a", "b"], sort=False)["workers"].nunique()
    pairs = counts[counts >= 2].sort_values(ascending=False, kind="stable")  # with one the table says it better
    if pairs.empty:
        return None
    kept = [pair for pair in counts.index if pair in pairs.index[:MAX_LINES]]
    cells = analysis.synchronisation
    base, labels = style.series_styles(cells), style.series_labels(cells)
    settings = cells.drop_duplicates("series").set_index("series")["setting"]
    several = settings[[a for a, _ in kept]].nunique() > 1
    names = {(a, b): f"{labels[b]} / {labels[a]}" + f", {settings[b]}" * several for a, b in kept}
    # A pair looks as its second series does, unless several pairs would look alike; hollow marks are not resolved.
    own = [replace(base[b], label="", filled=True, ring=False) for _, b in kept]
    own = own if len(set(own)) == len(own) else style.looks_in_order(list(names.values()))
    looks = {name: replace(look, label=name, filled=True) for name, look in zip(names.values(), own, strict=True)}
    pair = pd.Series(list(zip(table["a"], table["b"], strict=True)), index=table.index).map(names)
    said = table["verdict"] + [f", {plural(count, 'pair')}" for count in table["pairs"]]
    shown = table.assign(pair=pair, resolved=table["verdict"] == RESOLVED, said=said)[pair.notna()]
    panels = []
    for quantity, words in (("samples_per_s", "Throughput: more"), ("sync_s", "Waiting: less")):
        rows = shown[shown["quantity"] == quantity].sort_values(["workers", "nodes"], kind="stable")
        if len(rows):
            how: dict[str, Any] = {"by": "pair", "line": True, "apart": True, "resolved": "resolved", "note": "said"}
            points = Points(rows=rows, y="ratio", low="ratio_low", high="ratio_high", **how)
            layers = [Guide(level=1.0, how={"linewidth": 0.9}), points]
            panels.append(Panel(layers=layers, y="Ratio", title=f"{words} is better", limits=(None, None), nodes=rows))
    ways = dict.fromkeys((row[f"{side}_backend"], row[f"{side}_transport"])
                         for side in "ba" for row in shown.to_dict("records"))  # fmt: skip
    alike, rest = len({backend for backend, _ in ways}) == 1, len(pairs) - len(kept)
    compared = [style.TRANSPORTS.get(way[1], way[1]) if alike else style.runtime_label(*way) for way in ways]
    grey = style.SeriesStyle(label="", color=style.QUIET, marker="o", filled=True, dash="none")
    what = "One backend against another, against the number of workers: the value of the first over that of the second."
    return Figure(
        name="transport_ratio",
        title=" against ".join(compared) if len(compared) == 2 else f"Ratios of {listed(compared)}",
        caption=f"{what} Points: geometric mean over pairs of runs of the same repeat; bars: 95 % intervals (Student's "
        "t on logarithms). Filled: resolved, p below 0.05 after Holm over the worker counts."
        f"{kit.boundary_words(shown)} {kit.repeats_words(shown, 'pairs')}{_left(rest, 'pair')}",
        data=table,
        panels=panels,
        looks=looks,
        legend=[
            Line2D([], [], linestyle="none", **kit.marker(replace(grey, filled=filled)), label=label)
            for filled, label in ((True, "resolved"), (False, "not resolved"))
        ],
        shape=(2, 0.84, 0.52),
    )


_KEY = ["series", "workers", "nodes"]


def _knees(lines: pd.DataFrame, knees: pd.DataFrame, y: str, scale: float) -> list[Curve]:
    """Return the knee of each fitted line (batch, `y`) as a stroke on it, its interval as a thick piece of the line."""
    strokes, pieces = list[dict[str, Any]](), [lines.iloc[:0]]
    for knee in knees[knees["identified"].astype(bool)].to_dict("records"):
        line = lines[lines["line"] == knee["line"]]
        near = line.iloc[(line["batch"] - knee["knee"]).abs().argmin()]
        text = f"knee at a batch of {with_interval(knee['knee'], knee['knee_low'], knee['knee_high'])}"
        strokes.append({"line": knee["line"], "batch": knee["knee"], y: near[y], "said": text})
        pieces.append(line[line["batch"].between(knee["knee_low"], knee["knee_high"])])
    how: dict[str, Any] = {"x": "batch", "by": "line", "y": y, "scale": scale}
    thick: dict[str, Any] = {"linestyle": "-", "linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt", "zorder": 1.5}
    stroke: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 13, "markeredgewidth": 1.8, "zorder": 5}
    stroke |= {"markeredgecolor": None}  # that of its line
    return [
        Curve(rows=pd.concat(pieces), how=thick, **how),
        Curve(rows=pd.DataFrame(strokes), how=stroke, marked=True, said="said", **how),
    ] * bool(strokes)


_QUANTITIES: dict[str, tuple[tuple[str, ...], str, str, float, str]] = {
    "samples_per_s": (("_median", "_low", "_high"), "Throughput / 1000 {rate}", "thousand {rate}", 1 / 1000, "x"),
    "epoch_s": (("_median", "_low", "_high"), "Time per epoch / s", "s per epoch", 1.0, "xy"),
    "overhead": (("_median", "_low", "_high"), "Waiting / % of the step", "% of the step is waiting", 100.0, "x"),
    "lost": (("", "_low", "_high"), "Lost to one worker / %", "% lost to one worker alone", 100.0, "x"),
}  # what is drawn against the batch: its columns, the label of its axis, unit and factor, and logarithmic axes


def batch_size(analysis: Analysis) -> Figure | None:
    """Return throughput, time per epoch, waiting and what is lost to one worker against the batch of a worker.

    None without three batches. Points without a law are joined.
    """
    shown, looks, rest = _lines(analysis, analysis.batches)
    drawn = [_named(part) for part in (analysis.batch_curves, analysis.knees)]
    curves, knees = (part[part["line"].isin(list(looks))] for part in drawn)
    panels = []
    for quantity, (ends, label, unit, scale, log) in _QUANTITIES.items():
        columns, law = spread(quantity, *ends), curves if quantity in curves else curves.iloc[:0]
        known = shown[shown[columns["y"]].notna()]
        fitted = known["line"].isin(law["line"])
        layers: list[Any] = [Guide(level=0.0)] * (scale == 100)
        if len(law):
            of_law = law[law[quantity].notna()]
            curve = Curve(rows=of_law, x="batch", by="line", y=quantity, scale=scale)
            layers = [curve, *_knees(law, knees, quantity, scale)]
        how: dict[str, Any] = {"x": "batch", "by": "line", "unit": unit.format(rate=analysis.rate_unit), "scale": scale}
        for rows, line in ((known[fitted], False), (known[~fitted], True)):
            layers += [Points(rows=rows, line=line, **how, **columns)] * bool(len(rows))
        if len(known):
            label = label.format(rate=analysis.rate_unit)
            panels.append(Panel(layers=layers, y=label, x="Batch of one worker", log=log))
    if not panels:
        return None
    what = (
        "Throughput, time per epoch (batches times the mean step), waiting, and what is lost to one worker alone at "
        "the same batch, 1 - X(N) / (N X(1)), against the batch of one worker."
    )
    parts = {"point": analysis.batches, "line": curves, "knee": knees}
    data = [part.drop(columns="line", errors="ignore").assign(kind=kind) for kind, part in parts.items() if len(part)]
    stroke: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "linewidth": 3, "alpha": 0.5}
    knee = Line2D([], [], color=style.QUIET, label="knee, 95 % interval", **stroke)
    return Figure(
        name="batch_size",
        title="What a larger batch gives",
        caption=f"{what} Points: medians over repeats; bars: {INTERVAL}. Lines: the fitted step, fixed + B per_sample "
        "or max(fixed, B per_sample), the form selected by AICc; stroke: its knee, where both costs are equal, on its "
        f"95 % interval.{_left(rest, 'line')}",
        data=pd.concat(data, ignore_index=True),
        panels=panels,
        looks=looks,
        legend=[knee] * bool(knees["identified"].any()),
    )


def _left(rest: int, what: str) -> str:
    return f" In the CSV file only: {plural(rest, f'further {what}')}." * (rest > 0)


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the name of their line: series, workers and nodes."""
    return rows.assign(line=[f"{key}" for key in rows[_KEY].itertuples(index=False, name=None)])


def _lines(analysis: Analysis, rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, style.SeriesStyle], int]:
    """Return the rows of the lines that are drawn, with their names, the looks of these, and how many are left out.

    A line is a series, worker count and number of nodes with several batches; of too many, those with most workers.
    """
    rows = _named(rows)
    rows = rows[rows.groupby("line")["batch"].transform("nunique") >= MIN_BATCHES]
    lines = rows.drop_duplicates("line")
    drawn = lines.sort_values("workers", ascending=False, kind="stable")["line"].head(MAX_LINES)
    shown = rows[rows["line"].isin(drawn)]
    # A series of this table spans batches and has a name of its own; beside those of the study it gets their colours.
    base = style.series_styles(pd.concat([analysis.points, shown], ignore_index=True))
    counts, several = sorted(set(shown["workers"])), shown["setting"].nunique() > 1
    looks = {}
    for row in shown.drop_duplicates("line").to_dict("records"):
        look, workers = base[row["series"]], row["workers"]
        words = f"{look.label}, {plural(workers, 'worker')}" + f", {row['setting']}" * several
        shape = style.MARKERS[counts.index(workers) % len(style.MARKERS)]
        looks[row["line"]] = replace(look, marker=shape, filled=workers > 1, label=words, ring=False)
    return shown, looks, len(lines) - MAX_LINES
