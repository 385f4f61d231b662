"""What the batch of a worker decides: throughput, time per epoch, the knee, the overhead of communication."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from horovod_study.analysis.study import Analysis
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit.drawing import Drawing
from horovod_study.report.kit.style import MARKERS, QUIET, SeriesStyle, folded, series_styles
from horovod_study.text.numbers import number, with_interval
from horovod_study.text.words import plural

NAMES = ("batch_size", "overhead")

MIN_BATCHES = 3
MAX_LINES = 8
"""Lines of one figure that can be distinguished: with more, one worker and the largest worker counts are kept."""

_Key = tuple[str, int, float]


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


def _looks(analysis: Analysis, rows: pd.DataFrame) -> dict[_Key, SeriesStyle]:
    """Return the look of each line: colour and dash of its series, the marker of its worker count."""
    # A series of this table spans batches and has a name of its own; beside those of the study it gets their colours.
    base = series_styles(pd.concat([analysis.points, rows], ignore_index=True))
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


def _handles(looks: Mapping[_Key, SeriesStyle], *, knees: bool = False) -> list[Any]:
    first: dict[str, SeriesStyle] = {}
    for look in looks.values():
        first.setdefault(look.label, look)
    stroke: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 1.6, "color": QUIET}
    knee = [Line2D([], [], linewidth=3, alpha=0.5, **stroke, label="knee, 95 % interval")] if knees else []
    return [*(kit.entry(look) for look in first.values()), *knee]


_ENDS = ("_median", "_low", "_high")
_THROUGHPUT = kit.Quantity("samples_per_s", "Throughput / 1000 {}", "thousand {}", scale=1 / 1000, ends=_ENDS)
"""In the unit of the study."""
EPOCH = kit.Quantity("epoch_s", "Time per epoch / s", "s per epoch", ends=_ENDS)
WAITING = kit.Quantity("overhead", "Waiting / % of the step", "% of the step is waiting", scale=100.0, ends=_ENDS)
_LOST = kit.Quantity(
    "lost", "Lost to one worker / %", "% lost to one worker alone", scale=100.0, ends=("", "_low", "_high")
)
_FITTED = (_THROUGHPUT, EPOCH)
"""Quantities that have a law: a column of batch_curves."""


def _panel(axes: Axes, analysis: Analysis, of: kit.Quantity, shown: pd.DataFrame, panel_in: float) -> None:
    """Draw one quantity against the batch: points, the fitted line with its knee, or what guides the eye."""
    looks = _looks(analysis, shown)
    for place, (key, look) in enumerate(looks.items()):
        line = _of(analysis.batch_curves, key) if of in _FITTED else shown.iloc[:0]
        if len(line):
            kit.line_of(axes, line["batch"], line[of.name] * of.scale, look)
            for knee in _of(analysis.knees, key).to_dict("records"):
                _knee(axes, knee, look, place, line=line.assign(at=line[of.name] * of.scale))
        how = {"unit": of.unit.format(analysis.rate_unit), "low": of.columns[1], "high": of.columns[2]}
        kit.spread(axes, _of(shown, key), of.columns, look, x="batch", line=line.empty, scale=of.scale, **how)
    kit.log_counts(axes, [float(each) for each in shown["batch"]], panel_in)
    axes.set_xlabel("Batch of one worker")
    values = shown[list(of.columns)] * of.scale
    low, high = float(values.min().min()), float(values.max().max())
    if of is EPOCH:
        kit.log_values(axes, low, high)
    else:
        axes.set_ylim(1.05 * min(0.0, low), 1.15 * high if of is _THROUGHPUT else None)
        kit.round_values(axes)
    if of is _LOST or of is WAITING:
        axes.axhline(0, color=QUIET, linewidth=0.7, zorder=1)
    axes.set_ylabel(folded(of.label.format(analysis.rate_unit), 0.5 * panel_in))


def _drawing(
    analysis: Analysis, known: pd.DataFrame, panels: Sequence[kit.Quantity], aspect: float, **words: str
) -> Drawing | None:
    """Return the figure of the quantities that some row knows; `words`: its name, title, alt and caption."""
    shown, dropped = _lines(known)
    panels = [panel for panel in panels if shown[panel.columns[0]].notna().any()]
    if shown.empty or not panels:
        return None
    looks = _looks(analysis, shown)
    curves = pd.concat([_of(analysis.batch_curves, key) for key in looks], ignore_index=True)
    knees = pd.concat([_of(analysis.knees, key) for key in looks], ignore_index=True)
    fitted = any(panel in _FITTED for panel in panels)

    def draw(width_in: float) -> Figure:
        figure, axes_of, (panel_in, _) = kit.grid(len(panels), width_in, aspect=aspect)
        for axes, panel in zip(axes_of, panels, strict=True):
            _panel(axes, analysis, panel, shown, panel_in)
        kit.legend(figure, _handles(looks, knees=fitted and bool(knees["identified"].any())), width_in)
        return figure

    parts = [known.assign(kind="point"), curves.assign(kind="line"), knees.assign(kind="knee")]
    words["caption"] += f" In the CSV file only: {plural(dropped, 'further line')}." if dropped else ""
    data = pd.concat([each for each in parts if len(each)], ignore_index=True) if fitted else known
    return Drawing(data=data, draw=draw, **words)


def _knee(axes: Axes, knee: Mapping[Any, Any], look: SeriesStyle, place: int, *, line: pd.DataFrame) -> None:
    """Mark the knee on the line of its series (batch, at), with its interval as a thick piece of that line."""
    if not knee["identified"]:
        return
    near = line.iloc[(line["batch"] - knee["knee"]).abs().argmin()]
    inside = line[(line["batch"] >= knee["knee_low"]) & (line["batch"] <= knee["knee_high"])]
    thick: dict[str, Any] = {"linestyle": "-", "linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt", "zorder": 1.5}
    kit.line_of(axes, inside["batch"], inside["at"], look, **thick)
    stroke: dict[str, Any] = {
        "linestyle": "none",
        "marker": "|",
        "markersize": 13,
        "markeredgewidth": 1.8,
        "zorder": 5 + 0.01 * place,
    }
    text = f"knee at a batch of {with_interval(knee['knee'], knee['knee_low'], knee['knee_high'])}"
    kit.line_of(axes, [knee["knee"]], [near["at"]], look, tips=[text], **stroke)


_POINTS = " Points: medians over repeats; bars: 95 % intervals, where there are three repeats"
_KNEES = (
    " Lines: the fitted step, fixed + B per_sample (saturation) or max(fixed, B per_sample) (piecewise), the form "
    "selected by AICc. The vertical stroke on a line is its knee, the batch at which fixed and per-sample costs are "
    "equal, the thick piece below it the 95 % interval of the knee; where there is none, it is not identifiable."
)


def batch_size(analysis: Analysis) -> Drawing | None:
    known = analysis.batches[analysis.batches["epoch_s_median"].notna()]
    looks = _looks(analysis, _lines(known)[0])
    gains = [_gain(_of(known, key), look.label, _of(analysis.knees, key)) for key, look in looks.items()]
    return _drawing(
        analysis,
        analysis.batches,
        (_THROUGHPUT, EPOCH, WAITING),
        0.66,
        name=NAMES[0],
        title="What a larger batch gives",
        alt="Throughput, time per epoch and waiting against the batch of one worker; the knees are in the table.",
        caption="Throughput of all workers, time per epoch and the share of the step that is waiting for gradients, "
        "against the batch of one worker; the epoch is its batches times the mean step, without evaluation and "
        f"checkpoints, its axis logarithmic.{_POINTS}.{_KNEES} {' '.join(gains)}",
    )


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


def overhead(analysis: Analysis) -> Drawing | None:
    table = analysis.batches[analysis.batches["workers"] > 1]
    known = table[table["overhead_median"].notna() | table["lost"].notna()]
    shown, _ = _lines(known)
    bases = " or ".join(sorted({base for base in shown["lost_base"] if base}))
    texts = {
        WAITING: "Exposed waiting for gradients over the step (sync_s / step_s, of each run).",
        _LOST: f"1 - X(N) / (N X(1)) at the same batch, over the {bases} worker: all that more workers cost, slower "
        "computing included.",
    }
    panels = [each for each in texts if shown[each.columns[0]].notna().any()]
    sides = (" Left:", " Right:") if len(panels) > 1 else ("",)
    told = "".join(f"{side} {texts[panel]}" for side, panel in zip(sides, panels, strict=False))
    return _drawing(
        analysis,
        known,
        panels,
        0.66,
        name=NAMES[1],
        title="Communication overhead against the batch",
        alt="Share of a step that is waiting for gradients, and what is lost to one worker alone, against the batch; "
        "the values are in the table of batches.",
        caption=f"What communication costs against the batch of one worker.{told}{_POINTS}; lines guide the eye.",
    )
