"""What came of a tune: the effect of each setting as a figure and as a table. It computes nothing."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import label_ticks, lying_grid
from horovod_study.report.kit.style import GRID, INK, PAPER, QUIET, SHADE, runtime_label
from horovod_study.text.tables import table_of, to_lines

NAME = "tune"
_DONE, _BEST, _BAD = "#0072b2", "#d55e00", "#b3305f"
_LOWEST, _HIGHEST = 0.7, 2.5  # of the shipped speed; what is outside is at the edge with its number
_ROW_IN = 0.19


def write_tune(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write the figure (.pdf, .svg, .png) and its caption (.txt) of a tune's result; return the paths."""
    return write_result(directory, {f"{NAME}.txt": caption(document)}, {NAME: partial(draw, document)})


def caption(document: Mapping[str, Any]) -> str:
    """Return what a reader of the figure must know."""
    tuned, rows = document["for"], document["candidates"]
    parts = [
        f"Samples/s of {len(rows)} settings of how {tuned['workers']} workers communicate (batch {tuned['batch']}, "
        f"{tuned['parameters']:,} parameters), relative to the shipped settings in the same "
        f"{'rounds, in which all train in turns' if document['in_turns'] else 'blocks of launches'}; bars are 95 % "
        "intervals.",
        "Each setting alone is one change of the shipped settings; combinations change several.",
    ]
    if document["noise"] is not None:
        parts.append(
            f"Grey: where one {_unit(document)} would be if the settings made no difference "
            f"(95 %, +-{100 * math.expm1(1.96 * document['noise']):.1f} %)."
        )
    if any(row["slow_launches"] for row in rows):
        parts.append("Crosses: settings of which some launches ran at less than half the speed; never chosen.")
    if any(row["ratio"] is not None and row["launches"] and row["ratio"] < _LOWEST for row in rows):
        parts.append(f"What is slower than {_LOWEST:g} is at the left edge with its number.")
    if any(row["failed"] for row in rows):
        parts.append("Settings without a mark failed.")
    parts.append(f"Orange: what was chosen. {document['verdict'][:1].upper()}{document['verdict'][1:]}.")
    return " ".join(parts)


def _unit(document: Mapping[str, Any]) -> str:
    return "slice" if document["in_turns"] else f"launch of {document['seconds']:g} s"


_HEADS = ("setting", "of shipped", "95 % interval", "samples/s", "p90/median", "launches", "")


def table(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table: setting, ratio to shipped with interval, spread of the step, verdict."""
    lines = []
    for runtime, rows in _by_runtime(document):
        cells = []
        for row in rows:
            known = row["ratio"] is not None and row["launches"]
            interval = f"[{row['low']:.3f}, {row['high']:.3f}]" if known and row["low"] is not None else ""
            cells.append(
                (
                    ("* " if row["chosen"] else "  ") + row["name"],
                    f"{row['ratio']:.3f}" if known else "-",
                    "" if row["kind"] == "shipped" else interval,
                    f"{row['samples_per_s']:,.0f}" if row["samples_per_s"] else "-",
                    f"{row['step_spread']:.2f}" if row["step_spread"] else "-",
                    str(row["launches"]),
                    row["verdict"],
                )
            )
        lines.append(f"{_title(runtime)}, {document['for']['workers']} workers, batch {document['for']['batch']}")
        lines += to_lines(table_of(_HEADS, cells, texts=(0, 6)), indent=2)
        for knob, why in document["left_out"].get(runtime, {}).items():
            lines.append(f"    {knob} was not varied: it {why}")
        lines.append("")
    lines.append(f"{document['verdict'][:1].upper()}{document['verdict'][1:]}.")
    where = (
        "measured again" if document["gains_confirmed"] else "in the launches it was chosen by, so a little flattering"
    )
    for key, words in (("gain_over_shipped", "shipped settings"), ("gain_over_library", "library defaults")):
        gain = document[key]
        if gain is not None and gain["ratio"] is not None:
            interval = "" if gain["low"] is None else f" [{gain['low']:.3f}, {gain['high']:.3f}]"
            lines.append(f"  over the {words}: {gain['ratio']:.3f}{interval}, {where}")
    return lines


def run_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the chosen settings as lines of a study file, whose sweep names the runtime."""
    values = {name: value for name, value in document["settings"].items() if name not in ("backend", "transport")}
    text = yaml.safe_dump({"run": values}, sort_keys=False)
    return [f"# for a study file with runtime: {document['runtime']} in its sweep", *text.splitlines()]


def draw(document: Mapping[str, Any], width_in: float) -> Figure:
    """Return the figure, one row per setting; call it inside style()."""
    panels = _by_runtime(document)
    counts = [len(rows) for _, rows in panels]
    height = 0.85 + sum(_ROW_IN * count + 0.35 for count in counts)
    figure = Figure(figsize=(width_in, height), layout="constrained")
    low, high = _reach(document["candidates"])
    together = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=[c + 1.2 for c in counts])
    for axes, (runtime, rows) in zip(together[:, 0], panels, strict=True):
        _panel(axes, rows, document["noise"], low, high)
        if len(panels) > 1:
            axes.set_title(_title(runtime))
    last = together[-1, 0]
    last.set(xscale="log", xlim=(low, high))
    log = LogLocator(base=10, subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0))
    label_ticks(last.xaxis, log if high / low > 1.6 else MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    last.set_xlabel("Samples/s relative to the shipped settings")
    handles: list[Any] = [Line2D([], [], linestyle="none", **_dot(_DONE), label="tried")]
    handles.append(Line2D([], [], linestyle="none", **_dot(_BEST), label="chosen"))
    if any(row["slow_launches"] for row in document["candidates"]):
        handles.append(Line2D([], [], linestyle="none", **_CROSS, label="unstable"))
    if document["noise"] is not None:
        label = f"one {_unit(document).split()[0]}, no difference"
        handles.append(Patch(facecolor=GRID, edgecolor=QUIET, linewidth=0.4, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _by_runtime(document: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the rows of each runtime: baselines, then knobs by their largest effect, then combinations."""
    found = []
    for runtime in dict.fromkeys(row["runtime"] for row in document["candidates"]):
        rows = [row for row in document["candidates"] if row["runtime"] == runtime]
        effect: dict[str, float] = {}
        for row in rows:
            if row["kind"] == "effect":
                effect[row["knob"]] = max(effect.get(row["knob"], 0.0), row["ratio"] or 0.0)
        kinds = ("shipped", "library", "effect", "combination")
        ordered = sorted(
            enumerate(rows),
            key=lambda pair: (
                kinds.index(pair[1]["kind"]),
                -effect.get(pair[1]["knob"], 0.0),
                pair[1]["knob"],
                -(pair[1]["ratio"] or 0.0) if pair[1]["kind"] == "combination" else 0.0,
                pair[0],
            ),
        )
        found.append((runtime, [row for _, row in ordered]))
    return found


def _title(runtime: str) -> str:
    backend, _, transport = runtime.partition("/")
    return runtime_label(backend, transport)


def _reach(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the ends of the axis: all points and intervals, as far as they are not absurdly far out."""
    values = [1.0]
    for row in rows:
        if row["ratio"] is not None and row["launches"]:
            values.append(row["ratio"])
            ends = [end for end in (row["low"], row["high"]) if end is not None]
            values += [end for end in ends if row["ratio"] / 1.5 <= end <= 1.5 * row["ratio"]]
    low, high = max(_LOWEST, min(values)), min(_HIGHEST, max(values))
    margin = max(1.02, (high / low) ** 0.06)
    return low / margin, high * margin


def _dot(color: str) -> dict[str, Any]:
    face = {"color": color, "markerfacecolor": color, "markeredgecolor": PAPER}
    return {"marker": "o", "markersize": 4.5, "markeredgewidth": 0.5, **face}


_CROSS: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgecolor": _BAD, "markeredgewidth": 1.4}


def _panel(axes: Axes, rows: Sequence[Mapping[str, Any]], noise: float | None, low: float, high: float) -> None:
    if noise is not None:
        axes.axvspan(math.exp(-1.96 * noise), math.exp(1.96 * noise), color=GRID, linewidth=0, zorder=0)
    lying_grid(axes)
    axes.axvline(1.0, color=QUIET, linewidth=0.8, zorder=1)
    for place, row in enumerate(rows):
        if row["failed"] or row["ratio"] is None or not row["launches"]:
            why = "failed" if row["failed"] else "not launched"
            axes.text(1.0, place, f"  {why}", va="center", ha="left", size=7.5, color=QUIET)
            continue
        color = _BEST if row["chosen"] else _DONE
        ratio = row["ratio"]
        if ratio < low or ratio > high:
            edge, text, side = (
                (low, f" \u25c2 {ratio:.2f}", "left") if ratio < low else (high, f"{ratio:.2f} \u25b8 ", "right")
            )
            axes.text(edge, place, text, va="center", ha=side, size=7.5, color=color)
            continue
        if row["low"] is not None and row["kind"] != "shipped":
            ends = [max(low, row["low"]), min(high, row["high"])]
            axes.plot(ends, [place, place], color=color, linewidth=1.4, zorder=2, solid_capstyle="butt")
        mark = _CROSS if row["slow_launches"] else _dot(color)
        axes.plot([ratio], [place], linestyle="none", zorder=3, **mark)
    axes.set_yticks(range(len(rows)), [_label(row["name"]) for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(_BEST if row["chosen"] else INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for before, (one, other) in enumerate(pairwise(rows)):
        if (one["kind"], one["knob"]) != (other["kind"], other["knob"]):
            axes.axhline(before + 0.5, color=SHADE, linewidth=0.8, zorder=0)


def _label(name: str) -> str:
    """Return the name, broken in two lines where it is too long for the margin."""
    if len(name) <= 34:
        return name
    return "\n".join(textwrap.wrap(name, 45, break_long_words=False, break_on_hyphens=False))
