"""What `horovod-study bench timers` found: a table for a terminal, the figure of the overheads, and all numbers."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from horovod_study.analysis.steps.timers import Overhead, TimerCost, summary
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import label_ticks, lying_grid
from horovod_study.report.kit.style import INK, QUIET
from horovod_study.text.tables import table_of, to_lines

NAME = "timers"
_NAMES = {"control": "off again (control)", "nothing": "nothing kept, not even losses"}
_OWN, _BESIDE, _CONTROL = "#0072b2", "#d55e00", QUIET
_LINEAR = 1.0  # per cent, up to which the axis of the figure is linear


def write_timers(costs: Sequence[TimerCost], cases: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Write timers.json, timers.txt and the figure (.pdf, .svg, .png, its caption .caption.txt); return the paths.

    `cases`: what was measured; timers.json holds it whole beside what follows from it.
    """
    texts = {
        f"{NAME}.json": content(costs, cases),
        f"{NAME}.txt": text(costs, cases),
        f"{NAME}.caption.txt": caption(costs),
    }
    return write_result(directory, texts, {NAME: partial(draw, costs)})


def content(costs: Sequence[TimerCost], cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what follows from the measurements, and the measurements themselves."""
    return {"cases": [each.to_dict() for each in costs], "measured": list(cases)}


def text(costs: Sequence[TimerCost], cases: Sequence[Mapping[str, Any]]) -> str:
    """Return everything as tables for a terminal, and the verdicts."""
    machine = cases[0]["environment"]
    blocks = [
        f"# {machine['cpu_model']}, {machine['cores']} cores, PyTorch {machine['torch']}; {cases[0]['measured']}\n"
        "# overhead: against mode off in blocks of steps that alternated, trimmed mean over the rounds with its 95 % "
        "interval;\n"
        "# writing: the part of it that rows take; calls: what they take alone, everything in the cache"
    ]
    blocks += ["\n".join(_table(each)) for each in costs]
    blocks.append("\n".join(summary(costs)))
    return "\n\n".join(blocks)


def _table(cost: TimerCost) -> list[str]:
    lines = [
        f"batch {cost.batch}, {cost.workers} worker{'s' * (cost.workers > 1)} ({cost.runtime}), {cost.device}: "
        f"{cost.rounds} rounds of {cost.steps_per_block} steps each, {cost.seconds:.0f} s"
    ]
    rows = [("off", f"{cost.off_step_s * 1e3:.3f}", "", "", "", "", "")]
    for each in (cost.control, *cost.variants):
        percent = each.percent
        low_high = f"[{percent.low:+.2f}, {percent.high:+.2f}]" if percent.known else ""
        calls = "" if each.calls_us is None else f"{each.calls_us:.1f}"
        times = (
            f"{each.step_s * 1e3:.3f}",
            f"{percent.value:+.2f} %",
            low_high,
            f"{each.writing_percent:+.2f} %",
            calls,
        )
        rows.append((_NAMES.get(each.variant, each.variant), *times, ""))
        if each.edges_percent is not None and each.edges_percent - each.percent.value > 0.5:
            every = f"every {each.edges_steps} steps"
            rows.append(("  with start and stop", "", f"{each.edges_percent:+.2f} %", "", "", "", every))
    return [*lines, *to_lines(table_of(_HEADS, rows, texts=(0, 6)))]


_HEADS = ("", "step, ms", "overhead", "95 % interval", "writing", "calls, us", "")


def caption(costs: Sequence[TimerCost]) -> str:
    """Return what a reader of the figure must know."""
    rounds = sorted({each.rounds for each in costs})
    many = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    return (
        f"What measuring adds to a training step, in per cent of the step with the timers off; trimmed mean of {many} "
        "rounds with its 95 % interval. In every round a block of steps of each kind ran in one process on the same "
        "model, in random order; above each panel the step with the timers off. The control is mode off against "
        "itself. Open circles: with starting and stopping. The dashed line is what measuring may cost "
        f"({costs[0].limit_percent:g} %); the axis is linear up to {_LINEAR:g} % and logarithmic beyond. "
        + " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in summary(costs))
    )


def draw(costs: Sequence[TimerCost], width_in: float) -> Figure:
    """Return the figure, one panel per case; call it inside style()."""
    names = list(dict.fromkeys(each.variant for cost in costs for each in (cost.control, *cost.variants)))
    shown = [
        value
        for cost in costs
        for each in (cost.control, *cost.variants)
        for value in (each.percent.value, each.percent.low, each.percent.high, each.edges_percent)
        if value is not None and math.isfinite(value)
    ]
    reach = 1.15 * max(_LINEAR, -min(shown)), 1.3 * max(_LINEAR, *shown)
    columns = min(2, len(costs))
    rows = -(-len(costs) // columns)
    figure = Figure(figsize=(width_in, rows * (0.62 + 0.2 * len(names))), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, cost in zip(panels, costs, strict=False):
        _panel(axes, cost, names, reach)
    for axes in panels[len(costs) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(costs) - columns) : len(costs)]:
        axes.set_xlabel("added to the step, %")
        axes.xaxis.set_tick_params(labelbottom=True)
    return figure


def _panel(axes: Axes, cost: TimerCost, names: Sequence[str], reach: tuple[float, float]) -> None:
    axes.set_title(
        f"batch {cost.batch}, {cost.workers} worker{'s' * (cost.workers > 1)}: {cost.off_step_s * 1e3:.3g} ms"
    )
    axes.axvline(0.0, color=QUIET, linewidth=0.8, zorder=1)
    axes.axvline(cost.limit_percent, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    every = {each.variant: each for each in (cost.control, *cost.variants)}
    for place, name in enumerate(names):
        if name in every:
            _line(axes, place, every[name], own=every[name].calls_us is not None)
    axes.set_yticks(range(len(names)), [_NAMES.get(name, name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    least, most = reach
    axes.set_xlim(-least, most)
    ticks = [-10, -1, -0.5, 0, 0.5, 1, 3, 10, 30, 100]
    axes.set_xticks([tick for tick in ticks if -least <= tick <= most])
    label_ticks(axes.xaxis, axes.xaxis.get_major_locator())
    lying_grid(axes)


def _line(axes: Axes, place: int, each: Overhead, *, own: bool) -> None:
    color = _CONTROL if each.variant == "control" else _OWN if own else _BESIDE
    if each.percent.known:
        axes.plot([each.percent.low, each.percent.high], [place, place], color=color, linewidth=1.6, zorder=3)
    axes.plot(each.percent.value, place, marker="o", markersize=4.5, color=color, linestyle="none", zorder=4)
    if each.edges_percent is not None and each.edges_percent - each.percent.value > 0.5:
        axes.plot(
            each.edges_percent, place, marker="o", markersize=4.5, color=color, markerfacecolor="none",
            linestyle="none", zorder=4,
        )  # fmt: skip
