"""What the batch of a worker decides, for readers: time per epoch with the knee, and the overhead of communication.

Everything drawn is a column of the analysis.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from horovod_study.analysis.study import Analysis
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.interactive import mark
from horovod_study.report.kit.panels import entry, grid, legend, log_counts, log_values, round_values, spread
from horovod_study.report.kit.style import MARKERS, QUIET, SeriesStyle, series_styles
from horovod_study.text.numbers import THIN, number, percent, rounded, with_interval
from horovod_study.text.words import plural

NAMES = ("batch_epochs", "overhead")

MIN_BATCHES = 3
MAX_LINES = 8
"""Lines of one figure that can be distinguished: with more, one worker and the largest worker counts are kept."""
_BAND = 0.12

_Key = tuple[str, int, float]


def drawings(analysis: Analysis) -> list[Drawing]:
    """Return the figures that this analysis has data for."""
    return [each for each in (_epochs(analysis), _overhead(analysis)) if each is not None]


# ---------------------------------------------------------------------------------------------------- which lines


def _lines(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows of the lines that are drawn, and how many lines are left out.

    A line is a series, worker count and number of nodes with several batches. Where there are too many, those of the
    fewest and of the most workers of each series are kept, then others from the largest count down.
    """
    keys = ["series", "workers", "nodes"]
    counts = rows.groupby(keys, dropna=False)["batch"].transform("nunique")
    rows = rows[counts >= MIN_BATCHES]
    lines = rows[keys].drop_duplicates()
    if len(lines) <= MAX_LINES:
        return rows, 0
    own = lines.groupby("series")["workers"]
    ends = (lines["workers"] == own.transform("min")) | (lines["workers"] == own.transform("max"))
    order = lines.assign(_inner=~ends).sort_values(["_inner", "workers"], ascending=[True, False], kind="stable")
    kept = rows.merge(order[keys].head(MAX_LINES), on=keys, how="inner")
    return kept, len(lines) - MAX_LINES


def _looks(rows: pd.DataFrame) -> dict[_Key, SeriesStyle]:
    """Return the look of each line: colour and dash of its series, the marker of its worker count."""
    base = series_styles(rows)
    counts = sorted(set(rows["workers"]))
    several = rows["setting"].nunique() > 1
    looks: dict[_Key, SeriesStyle] = {}
    for row in rows.drop_duplicates(["series", "workers", "nodes"]).to_dict("records"):
        look = base[row["series"]]
        words = f"{look.label}, {plural(row['workers'], 'worker')}" + (f", {row['setting']}" if several else "")
        shape = MARKERS[counts.index(row["workers"]) % len(MARKERS)]
        looks[_key(row)] = replace(look, marker=shape, filled=row["workers"] > 1, label=words, ring=False)
    return looks


def _key(row: Mapping[Any, Any]) -> _Key:
    nodes = float(row["nodes"])
    return str(row["series"]), int(row["workers"]), -1.0 if math.isnan(nodes) else nodes


def _of(table: pd.DataFrame, key: _Key) -> pd.DataFrame:
    same = table["nodes"].isna() if key[2] < 0 else table["nodes"] == key[2]
    return table[(table["series"] == key[0]) & (table["workers"] == key[1]) & same]


def _handles(looks: Mapping[_Key, SeriesStyle]) -> list[Any]:
    first: dict[str, SeriesStyle] = {}
    for look in looks.values():
        first.setdefault(look.label, look)
    return [entry(look) for look in first.values()]


def _batch_axis(axes: Axes, rows: pd.DataFrame, panel_in: float) -> None:
    log_counts(axes, [float(each) for each in rows["batch"]], panel_in)
    axes.set_xlabel("Batch of one worker")


# ---------------------------------------------------------------------------------------------------- epoch time


def _epochs(analysis: Analysis) -> Drawing | None:
    known = analysis.batches[analysis.batches["epoch_s_median"].notna()]
    shown, dropped = _lines(known)
    if shown.empty:
        return None
    looks = _looks(shown)
    knees = {key: _of(analysis.knees, key).to_dict("records") for key in looks}
    curves = pd.concat([_of(analysis.batch_curves, key) for key in looks], ignore_index=True)

    def draw(width_in: float) -> Figure:
        figure, (axes,), panel_in = grid(1, width_in, aspect=0.8)
        low, high = (
            float(getattr(shown[["epoch_s_median", "epoch_s_low", "epoch_s_high"]].stack(), end)())
            for end in ("min", "max")
        )
        for key, look in looks.items():
            line = _of(curves, key)
            if len(line):
                mark(
                    axes.plot(
                        line["batch"], line["epoch_s"], color=look.color, linestyle=look.dash, linewidth=1.2, zorder=2
                    ),
                    series=look.label,
                )
            columns = ("epoch_s_median", "epoch_s_low", "epoch_s_high")
            spread(axes, _of(shown, key), columns, look, x="batch", line=line.empty, tip=_epoch_tip)
        for place, (key, look) in enumerate(looks.items()):
            for knee in knees[key]:
                _knee(axes, knee, look, place, line=_of(curves, key))
        _batch_axis(axes, shown, panel_in)
        log_values(axes, low, high)
        axes.set_ylabel("Time per epoch / s")
        entries = _handles(looks)
        if any(knee["identified"] for each in knees.values() for knee in each):
            stroke: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": QUIET}
            entries.append(Line2D([], [], linewidth=3, alpha=0.5, **stroke, label="knee, 95 % interval"))
        legend(figure, entries, width_in)
        return figure

    words = [_gain(_of(shown, key), looks[key].label, knees[key]) for key in looks]
    caption = (
        "Time per epoch against the batch of one worker, both axes logarithmic: batches per epoch times the mean step, "
        "so without evaluation and checkpoints. Points: medians over repeats; bars: 95 % intervals, where there are "
        "three repeats. Lines: the fitted step, fixed + B per_sample or max(fixed, B per_sample), the form selected by "
        "AICc. The vertical stroke on a line is its knee, the batch at which fixed and per-sample costs are equal, the "
        "thick piece below it the 95 % interval of the knee; where there is none, it is not identifiable. "
        f"{' '.join(words)}"
    )
    if dropped:
        caption += f" In the CSV file only: {plural(dropped, 'further line')}."
    return Drawing(
        name=NAMES[0],
        title="Epoch time against the batch",
        alt="Time per epoch against the batch of one worker on logarithmic axes, with the knees; the values are in the "
        "tables of batches and knees.",
        caption=caption,
        data=pd.concat([known.assign(kind="point"), curves.assign(kind="line")], ignore_index=True),
        draw=draw,
    )


def _knee(axes: Axes, knee: Mapping[Any, Any], look: SeriesStyle, place: int, *, line: pd.DataFrame) -> None:
    """Mark the knee on the line of its series, with its interval as a thick piece of that line."""
    if not knee["identified"] or line.empty:
        return
    near = line.iloc[(line["batch"] - knee["knee"]).abs().argmin()]
    inside = line[(line["batch"] >= knee["knee_low"]) & (line["batch"] <= knee["knee_high"])]
    band = axes.plot(
        inside["batch"], inside["epoch_s"], color=look.color, linewidth=5, alpha=0.35, solid_capstyle="butt", zorder=1.5
    )
    mark(band, series=look.label)
    stroke = axes.plot(
        [knee["knee"]], [near["epoch_s"]], linestyle="none", marker="|", markersize=13, markeredgewidth=1.8,
        color=look.color, zorder=5 + 0.01 * place,
    )  # fmt: skip
    text = with_interval(knee["knee"], knee["knee_low"], knee["knee_high"])
    mark(stroke, series=look.label, tips=[f"knee at a batch of {text}"])


def _gain(rows: pd.DataFrame, label: str, knees: list[dict[Any, Any]]) -> str:
    """Return what the largest batch gives over the smallest, and where the knee is, as a sentence."""
    ends = rows.sort_values("batch", kind="stable").to_dict("records")
    text = (
        f"{label}: an epoch with batch {ends[-1]['batch']:g} is {number(ends[-1]['times_faster'])} times as fast as "
        f"with batch {ends[0]['batch']:g}"
    )
    found = [knee for knee in knees if knee["identified"]]
    if found:
        knee = found[0]
        text += f"; knee at {with_interval(knee['knee'], knee['knee_low'], knee['knee_high'])} ({knee['form']})"
    return f"{text}."


def _epoch_tip(row: Mapping[Any, Any]) -> str:
    ends = (
        f" [{rounded(row['epoch_s_low'], 3)}, {rounded(row['epoch_s_high'], 3)}]"
        if math.isfinite(row["epoch_s_low"])
        else ""
    )
    value = f"{rounded(row['epoch_s_median'], 3)}{THIN}s per epoch{ends}"
    return f"batch {row['batch']:g}: {value}, {plural(row['repeats'], 'repeat')}"


# ---------------------------------------------------------------------------------------------------- overhead


_PANELS = (
    ("overhead", ("overhead_median", "overhead_low", "overhead_high"), "Waiting / % of the step"),
    ("lost", ("lost", "lost_low", "lost_high"), "Lost to one worker / %"),
)


def _overhead(analysis: Analysis) -> Drawing | None:
    table = analysis.batches[analysis.batches["workers"] > 1]
    known = table[table["overhead_median"].notna() | table["lost"].notna()]
    shown, dropped = _lines(known)
    panels = [panel for panel in _PANELS if shown[panel[1][0]].notna().any()]
    if shown.empty or not panels:
        return None
    looks = _looks(shown)

    def draw(width_in: float) -> Figure:
        figure, axes_of, panel_in = grid(len(panels), width_in)
        for axes, (name, columns, label) in zip(axes_of, panels, strict=True):
            low = min(0.0, 100 * float(shown[list(columns)].min().min()))
            for key, look in looks.items():
                spread(axes, _of(shown, key), columns, look, x="batch", scale=100, tip=_overhead_tips[name])
            _batch_axis(axes, shown, panel_in)
            axes.axhline(0, color=QUIET, linewidth=0.7, zorder=1)
            axes.set_ylim(1.05 * low, None)
            round_values(axes)
            axes.set_ylabel(label)
        legend(figure, _handles(looks), width_in)
        return figure

    both = len(panels) > 1
    caption = "What communication costs against the batch of one worker."
    if any(name == "overhead" for name, _, _ in panels):
        caption += (
            f"{' Left:' if both else ''} Exposed waiting for gradients over the step (sync_s / step_s, of each run)."
        )
    if any(name == "lost" for name, _, _ in panels):
        bases = sorted({base for base in shown["lost_base"] if base})
        caption += (
            f"{' Right:' if both else ''} 1 - X(N) / (N X(1)) at the same batch, over the {' or '.join(bases)} worker: "
            "all that more workers cost, slower computing included."
        )
    caption += (
        " Points: medians over repeats; bars: 95 % intervals, where there are three repeats; lines guide the eye."
    )
    if dropped:
        caption += f" In the CSV file only: {plural(dropped, 'further line')}."
    return Drawing(
        name=NAMES[1],
        title="Communication overhead against the batch",
        alt="Share of a step that is waiting for gradients, and what is lost to one worker alone, against the batch; "
        "the values are in the table of batches.",
        caption=caption,
        data=known,
        draw=draw,
    )


def _share_tip(row: Mapping[Any, Any], name: str, words: str) -> str:
    middle = row.get(f"{name}_median", row.get(name))
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = f" [{percent(low)}, {percent(high)}]" if math.isfinite(low) else ""
    return f"batch {row['batch']:g}: {percent(middle, decimals=1)} {words}{ends}, {plural(row['repeats'], 'repeat')}"


_overhead_tips = {
    "overhead": lambda row: _share_tip(row, "overhead", "of the step is waiting"),
    "lost": lambda row: _share_tip(row, "lost", "lost to one worker alone"),
}
