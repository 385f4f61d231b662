"""What can be chosen: one backend against another, and the batch of a worker with its knee and its overhead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.transports import RESOLVED
from horovod_study.report.grammar import Curve, Figure, Guide, Looks, Panel, Points, spread
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.style import MARKERS, QUIET, SeriesStyle, looks_in_order, series_labels, series_styles
from horovod_study.text.numbers import number, with_interval
from horovod_study.text.words import plural

MIN_BATCHES = 3
MAX_LINES = 8
"""Lines of one figure that can be distinguished."""


def transport_ratio(analysis: Analysis) -> Figure | None:
    """Return the ratio of two backends that ran side by side; None where no two were paired at several counts."""
    table = analysis.transports[analysis.transports["ratio"].notna() & (analysis.transports["workers"] > 1)]
    pairs = table.groupby(["a", "b"], sort=False)["workers"].nunique()
    pairs = pairs[pairs >= 2]  # with one worker count the table says it better
    if pairs.empty:
        return None
    kept = set(pairs.sort_values(ascending=False, kind="stable").index[:MAX_LINES])
    chosen = [pair for pair in pairs.index if pair in kept]
    names = {pair: f"{pair[0]} {pair[1]}" for pair in chosen}
    pair_of = pd.Series(list(zip(table["a"], table["b"], strict=True)), index=table.index).map(names)
    shown = table.assign(
        pair=pair_of,
        resolved=table["verdict"] == RESOLVED,
        said=table["verdict"] + [f", {plural(count, 'pair')}" for count in table["pairs"]],
    )[pair_of.notna()]
    panels = []
    for quantity, words in (("samples_per_s", "Throughput: more"), ("sync_s", "Waiting per step: less")):
        rows = shown[shown["quantity"] == quantity].sort_values(["workers", "nodes"], kind="stable")
        if len(rows):
            how: dict[str, Any] = {"by": "pair", "line": True, "apart": True, "resolved": "resolved", "note": "said"}
            points = Points(rows=rows, y="ratio", low="ratio_low", high="ratio_high", **how)
            layers = [Guide(level=1.0, how={"linewidth": 0.9}), points]
            limits = (None, None)
            panels.append(Panel(layers=layers, y="Ratio", title=f"{words} is better", limits=limits, nodes=rows))
    rest, used = len(pairs) - len(chosen), set(shown["a_transport"]) | set(shown["b_transport"])
    return Figure(
        name="transport_ratio",
        title="NCCL against MPI" if used == {"nccl", "mpi"} else "One backend against another",
        alt="Ratios of throughput and of waiting between two runtimes, against workers; the values are in the "
        "table of transports.",
        caption="One backend against another, against the number of workers: the value of the first over that of the "
        "second. Points: geometric mean of the ratios of runs of the same repeat, which ran side by side in one block; "
        "bars: 95 % intervals (Student's t on logarithms). Filled: resolved (p below 0.05 after Holm over the worker "
        "counts, and an interval without 1), open: not resolved. Horizontal line: no difference."
        f"{kit.boundary_words(shown)} {kit.repeats_words(shown, 'pairs')}"
        + (f" In the CSV file only: {plural(rest, 'further pair')} of series." if rest else ""),
        data=table,
        panels=panels,
        looks={names[pair]: look for pair, look in _looks_of_pairs(analysis, chosen).items()},
        legend=kit.judged_handles(),
        shape=(2, 0.8, 0.5),
    )


def _looks_of_pairs(analysis: Analysis, chosen: Sequence[Any]) -> dict[Any, SeriesStyle]:
    """Return the look of each pair: that of its second series, named after both, unless several pairs have that one."""
    cells = analysis.synchronisation
    looks, labels = series_styles(cells), series_labels(cells)
    settings = cells.drop_duplicates("series").set_index("series")["setting"]
    several = settings[[pair[0] for pair in chosen]].nunique() > 1
    words = [f"{labels[b]} / {labels[a]}" + f", {settings[b]}" * several for a, b in chosen]
    if len({b for _, b in chosen}) < len(chosen):
        own = looks_in_order(words)
    else:
        own = [replace(looks[b], label=text) for (_, b), text in zip(chosen, words, strict=True)]
    return {pair: replace(look, filled=True, ring=False) for pair, look in zip(chosen, own, strict=True)}


# ------------------------------------------------------------------------------------------------ the batch of a worker

_KEY = ["series", "workers", "nodes"]
_POINTS = " Points: medians over repeats; bars: 95 % intervals, where there are three repeats"
_KNEES = (
    " Lines: the fitted step, fixed + B per_sample (saturation) or max(fixed, B per_sample) (piecewise), the form "
    "selected by AICc. The vertical stroke on a line is its knee, the batch at which fixed and per-sample costs are "
    "equal, the thick piece below it the 95 % interval of the knee; where there is none, it is not identifiable."
)


@dataclass(frozen=True, kw_only=True)
class _Knees:
    """The knee of each fitted line (batch, `y`) as a stroke on it, its interval as a thick piece of the line."""

    lines: pd.DataFrame
    knees: pd.DataFrame
    y: str
    scale: float

    def draw(self, axes: Axes, looks: Looks, last: float, panel_in: float) -> None:
        stroke: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 13, "markeredgewidth": 1.8}
        thick: dict[str, Any] = {"linestyle": "-", "linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}
        for place, knee in enumerate(self.knees[self.knees["identified"].astype(bool)].to_dict("records")):
            look, line = looks[knee["line"]], self.lines[self.lines["line"] == knee["line"]]
            near = line.iloc[(line["batch"] - knee["knee"]).abs().argmin()]
            inside = line[line["batch"].between(knee["knee_low"], knee["knee_high"])]
            kit.line_of(axes, inside["batch"], inside[self.y] * self.scale, look, zorder=1.5, **thick)
            text = f"knee at a batch of {with_interval(knee['knee'], knee['knee_low'], knee['knee_high'])}"
            at = [near[self.y] * self.scale]
            kit.line_of(axes, [knee["knee"]], at, look, tips=[text], zorder=5 + 0.01 * place, **stroke)


def batch_size(analysis: Analysis) -> Figure | None:
    """Return throughput, time per epoch and waiting against the batch of a worker; None without three batches."""
    table = analysis.batches
    shown, looks, rest = _lines(analysis, table)
    curves, knees = (_named(part) for part in (analysis.batch_curves, analysis.knees))
    curves, knees = (part[part["line"].isin(list(looks))] for part in (curves, knees))
    made = []
    for quantity, label, unit, scale, log in (
        ("samples_per_s", f"Throughput / 1000 {analysis.rate_unit}", f"thousand {analysis.rate_unit}", 1 / 1000, "x"),
        ("epoch_s", "Time per epoch / s", "s per epoch", 1.0, "xy"),
    ):
        fitted: dict[str, Any] = {"y": quantity, "scale": scale}
        layers = [
            Curve(rows=curves[curves[quantity].notna()], x="batch", by="line", **fitted),
            _Knees(lines=curves, knees=knees, **fitted),
            *_points(shown, quantity, unit, scale, fitted=set(curves["line"])),
        ]
        made.append(_panel(layers, label, log))
    panels = [panel for panel in (*made, _waiting(shown)) if panel is not None]
    if shown.empty or not panels:
        return None
    known = table[table["epoch_s_median"].notna()]
    gains = [_gain(own, looks[f"{line}"].label, knees[knees["line"] == line]) for line, own in
             _lines(analysis, known)[0].groupby("line", sort=False)]  # fmt: skip
    stroke: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": QUIET, "alpha": 0.5}
    identified = bool(knees["identified"].any())
    parts = {"point": table, "line": curves.drop(columns="line"), "knee": knees.drop(columns="line")}
    return Figure(
        name="batch_size",
        title="What a larger batch gives",
        alt="Throughput, time per epoch and waiting against the batch of one worker; the knees are in the table.",
        caption="Throughput of all workers, time per epoch and the share of the step that is waiting for gradients, "
        "against the batch of one worker; the epoch is its batches times the mean step, without evaluation and "
        f"checkpoints, its axis logarithmic.{_POINTS}.{_KNEES} {' '.join(gains)}{rest}",
        data=pd.concat([part.assign(kind=kind) for kind, part in parts.items() if len(part)], ignore_index=True),
        panels=panels,
        looks=looks,
        legend=[Line2D([], [], linewidth=3, label="knee, 95 % interval", **stroke)] * identified,
    )


def overhead(analysis: Analysis) -> Figure | None:
    """Return what communication costs against the batch of a worker; None without three batches of several workers."""
    table = analysis.batches[analysis.batches["workers"] > 1]
    known = table[table["overhead_median"].notna() | table["lost"].notna()]
    shown, looks, rest = _lines(analysis, known)
    bases = " or ".join(sorted({base for base in shown["lost_base"] if base}))
    lost = _points(shown, "lost", "% lost to one worker alone", 100.0, ends=("", "_low", "_high"))
    told = [
        (_waiting(shown), "Exposed waiting for gradients over the step (sync_s / step_s, of each run)."),
        (
            _panel([Guide(level=0.0), *lost], "Lost to one worker / %", "x"),
            f"1 - X(N) / (N X(1)) at the same batch, over the {bases} worker: all that more workers cost, slower "
            "computing included.",
        ),
    ]
    there = [(panel, text) for panel, text in told if panel is not None]
    if shown.empty or not there:
        return None
    sides = (" Left: ", " Right: ") if len(there) > 1 else (" ",)
    words = "".join(f"{side}{text}" for side, (_, text) in zip(sides, there, strict=True))
    return Figure(
        name="overhead",
        title="Communication overhead against the batch",
        alt="Share of a step that is waiting for gradients, and what is lost to one worker alone, against the batch; "
        "the values are in the table of batches.",
        caption=f"What communication costs against the batch of one worker.{words}{_POINTS}; lines guide the eye."
        f"{rest}",
        data=known,
        panels=[panel for panel, _ in there],
        looks=looks,
    )


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the name of their line: series, workers and nodes."""
    return rows.assign(line=[f"{key}" for key in rows[_KEY].itertuples(index=False, name=None)])


def _lines(analysis: Analysis, rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, SeriesStyle], str]:
    """Return the rows of the lines that are drawn, with their names, the looks of these, and what is left out.

    A line is a series, worker count and number of nodes with several batches. Where there are too many, those of the
    fewest and of the most workers of each series are kept, then others from the largest count down.
    """
    rows = _named(rows)
    rows = rows[rows.groupby("line")["batch"].transform("nunique") >= MIN_BATCHES]
    lines = rows.drop_duplicates("line")
    own = lines.groupby("series")["workers"]
    inner = (lines["workers"] != own.transform("min")) & (lines["workers"] != own.transform("max"))
    order = lines.assign(_inner=inner).sort_values(["_inner", "workers"], ascending=[True, False], kind="stable")
    kept = order["line"] if len(lines) <= MAX_LINES else order["line"].head(MAX_LINES)
    shown = rows[rows["line"].isin(kept)]
    # A series of this table spans batches and has a name of its own; beside those of the study it gets their colours.
    base = series_styles(pd.concat([analysis.points, shown], ignore_index=True))
    counts, several = sorted(set(shown["workers"])), shown["setting"].nunique() > 1
    looks = {}
    for row in shown.drop_duplicates("line").to_dict("records"):
        look, workers = base[row["series"]], row["workers"]
        words = f"{look.label}, {plural(workers, 'worker')}" + f", {row['setting']}" * several
        shape = MARKERS[counts.index(workers) % len(MARKERS)]
        looks[row["line"]] = replace(look, marker=shape, filled=workers > 1, label=words, ring=False)
    rest = len(lines) - len(kept)
    return shown, looks, f" In the CSV file only: {plural(rest, 'further line')}." * bool(rest)


def _points(
    shown: pd.DataFrame, name: str, unit: str, scale: float, ends: Any = ("_median", "_low", "_high"), fitted: Any = ()
) -> Iterator[Points]:
    """Yield the points of one quantity; those of lines without a fitted one are joined."""
    columns = spread(name, *ends)
    with_line = shown["line"].isin(fitted)
    for rows, line in ((shown[with_line], False), (shown[~with_line], True)):
        if rows[columns["y"]].notna().any():
            yield Points(rows=rows, x="batch", by="line", unit=unit, scale=scale, line=line, **columns)


def _panel(layers: Sequence[Any], label: str, log: str) -> Panel | None:
    if not any(isinstance(layer, Points) for layer in layers):
        return None
    return Panel(layers=layers, y=label, x="Batch of one worker", log=log)


def _waiting(shown: pd.DataFrame) -> Panel | None:
    layers = [Guide(level=0.0), *_points(shown, "overhead", "% of the step is waiting", 100.0)]
    return _panel(layers, "Waiting / % of the step", "x")


def _gain(rows: pd.DataFrame, label: str, knees: pd.DataFrame) -> str:
    """Return what the largest batch gives over the smallest, and where the knee is, as a sentence."""
    ends = rows.sort_values("batch", kind="stable").to_dict("records")
    text = (
        f"{label}: an epoch with batch {ends[-1]['batch']:g} is {number(ends[-1]['times_faster'])} times as fast as "
        f"with batch {ends[0]['batch']:g}"
    )
    for knee in knees[knees["identified"].astype(bool)].head(1).to_dict("records"):
        text += f"; knee at {with_interval(knee['knee'], knee['knee_low'], knee['knee_high'])} ({knee['form']})"
    return f"{text}."
