"""The complete account of recorded steps: tables, sentences, and stacked bars in which the residual can be seen."""

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.accounting import (
    AGREE,
    CLOSES_S,
    DIFFER,
    Accounting,
    RankAccount,
    ResidualGate,
    RunAccount,
    ViewComparison,
    Views,
)
from horovod_study.analysis.steps.breakdown import BASES, PARTS, hiding, shown
from horovod_study.records import finite
from horovod_study.report.figures.breakdown import lap_bar, lap_handles
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.panels import MAX_HEIGHT_IN, legend, note_at
from horovod_study.report.kit.style import INK, LAPS, NARROW_IN, PAPER, QUIET, TEXT, FigureFormat, folded, text_in
from horovod_study.text.numbers import MINUS, rounded
from horovod_study.text.tables import NOTHING, Group, Table, table_of, to_lines
from horovod_study.text.words import cut, plural, wrapped

NAME = "accounting"
HEADS = {**{part: part for part in PARTS}, "residual": "unexplained"}

_FEWEST_BARS = 3  # a panel has room for so many: a single bar is no wall


def write_accounting(
    found: Accounting, gate: ResidualGate | None, directory: Path, *, look: FigureFormat = TEXT
) -> list[Path]:
    """Write accounting.json and .txt, the numbers as .csv (cells, and runs and ranks), and the figure; return paths."""
    document = {**found.to_dict(), "gate": finite(gate)}
    texts = {
        f"{NAME}.json": document,
        f"{NAME}.txt": [*text(found, gate), "", *textwrap.wrap(caption(found), 110)],
        f"{NAME}.csv": found.cells,
        f"{NAME}-runs.csv": found.run_rows(),
    }
    return write_result(directory, texts, {NAME: partial(draw, found.cells)} if drawn(found.cells) else {}, look=look)


def text(found: Accounting, gate: ResidualGate | None) -> list[str]:
    """Return the whole account as lines."""
    lines = [*_step_lines(found), "", *_residual_lines(found), *_excluded_lines(found)]
    doubts = [f"  {line}" for doubt in found.doubts for line in wrapped(doubt, 112, deeper="  ")]
    notes = ["incomplete or doubtful runs", *doubts] if doubts else []
    for part in (_growth_lines(found.cells), _views_lines(found.views), notes, gate_lines(gate)):
        lines += ["", *part] if part else []
    return lines


def _step_lines(found: Accounting) -> list[str]:
    """Return ms per step and shares of every run, and of every worker count."""
    parts = shown(found.cells, PARTS)
    rows: list[tuple[str, ...]] = []
    alone, before = len(found.runs) == 1, ""
    for series, cell in _cells(found.cells):
        step = cell["step"]
        if series != before:
            rows.append((series, *("" for _ in parts)))
            before = series
        over = f" on {plural(step['nodes'], 'node')}" if step["nodes"] > 1 else ""
        rows.append((f"  {plural(step['workers'], 'worker')}{over}", *("" for _ in parts)))
        runs = [run for run in found.runs if found.series[run.run] == series and run.workers == step["workers"]]
        for run in runs:
            rows += _two_lines(f"    {cut(run.run, 29, first=0, dots='…')}", run, parts)
            for rank in run.ranks if alone and len(run.ranks) > 1 else ():
                rows += _two_lines(f"      rank {rank.rank} on {rank.host}", rank, parts)
        if step["repeats"] > 1:
            rows.append((f"    mean of {step['repeats']} repeats", *(_ms(cell[part]["mean_s"]) for part in parts)))
            rows.append(("", *(_share(cell[part]["share"]) for part in parts)))
            medians = (_ms(cell[part]["median_s"]) for part in parts)
            rows.append((f"    median of {step['repeats']} (no sum)", *medians))
    lines = to_lines(table_of(("ms per step, and share of it", *(HEADS[part] for part in parts)), rows))
    for run in found.runs:
        if run.why_not:
            lines += wrapped(f"{run.run}: no account: {run.why_not}", 110, deeper="  ")
    return lines


def _cells(cells: pd.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """Return each cell as its series and its rows by part, in the order of the table."""
    grouped: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in cells.to_dict("records"):
        grouped.setdefault((row["series"], row["workers"], row["nodes"]), {})[row["lap"]] = row
    return [(str(key[0]), rows) for key, rows in grouped.items()]


def _two_lines(label: str, each: RunAccount | RankAccount, parts: Sequence[str]) -> list[tuple[str, ...]]:
    whole = each.parts_s["step"]
    return [
        (label, *(_ms(each.parts_s[part]) for part in parts)),
        ("", *(_share(each.parts_s[part] / whole if whole > 0 else math.nan) for part in parts)),
    ]


def _residual_lines(found: Accounting) -> list[str]:
    """Return the table of what no part covers, and whether the steps add up."""
    heads = ("mean", "median", "p99", "worst", "in step", "of rank", "steps", "not closed")
    rows = []
    for run in found.runs:
        shares = run.residual
        if shares is None:
            continue
        cells = [_share(each) for each in (shares.mean, shares.median, shares.p99, shares.worst)]
        cells += [f"{shares.worst_step:,}", f"{shares.worst_rank}"]
        cells += [f"{sum(rank.steps for rank in run.ranks):,}", f"{sum(rank.open_steps for rank in run.ranks):,}"]
        rows.append((f"  {cut(run.run, 29, first=0, dots='…')}", *cells))
    if not rows:
        return []
    lines = to_lines(table_of(("unexplained, share of the step", *heads), rows))
    gaps = [rank.gap_s for run in found.runs if not run.why_not for rank in run.ranks]
    if gaps:
        lines.append(
            f"the parts of a step miss it by at most {max(gaps) * 1e6:.3g} us; more than {CLOSES_S * 1e6:g} us counts "
            "as not adding up"
        )
    return lines


def _excluded_lines(found: Accounting) -> list[str]:
    """Return how many steps were left out before the timed window, and why, one line per reason."""
    reasons: dict[str, list[int]] = {}
    for run in found.runs:
        if run.ranks:
            reasons.setdefault(run.excluded_by, []).append(run.excluded)
    lines = []
    for reason, counts in reasons.items():
        low, high = min(counts), max(counts)
        if high:
            many = f"{high:,}" if low == high else f"{low:,} to {high:,}"
            lines.append(f"excluded {many} steps of each rank ({reason}), kept in the rows")
    return lines


def _growth_lines(cells: pd.DataFrame) -> list[str]:
    """Return T(N) - T(1) by part against each baseline: ms, interval, share of the whole growth."""
    lines: list[str] = []
    parts = shown(cells, PARTS)
    for kind in BASES:
        grown = [(name, cell) for name, cell in _cells(cells) if cell["step"]["workers"] > 1 and _known(cell, kind)]
        lines += [*to_lines(_growth_table(grown, parts, kind)), ""] if grown else []
    return lines[:-1]


def _growth_table(grown: Sequence[tuple[str, dict[str, Any]]], parts: Sequence[str], kind: str) -> Table:
    groups = []
    for series, cell in grown:
        step = cell["step"]
        title = f"  {series}, {plural(step['workers'], 'worker')}\n    {step[f'interval_{kind}']}"
        noted = [(part, cell[part]["note"]) for part in parts if cell[part]["note"]]
        for note in dict.fromkeys(note for _, note in noted):
            title += f"\n    {', '.join(HEADS[part] for part, each in noted if each == note)}: {note}"
        rows = [
            ("    difference", *(_ms(cell[part][f"minus_{kind}_s"], sign=True) for part in parts)),
            ("    share of it", *(_share(cell[part][f"growth_{kind}"]) for part in parts)),
        ]
        if math.isfinite(step[f"minus_{kind}_low_s"]):
            for words, end in (("    95 % from", "low"), ("    95 % to", "high")):
                rows.append((words, *(_ms(cell[part][f"minus_{kind}_{end}_s"], sign=True) for part in parts)))
        groups.append(Group(title=title, rows=tuple(rows)))
    heads = (f"T(N) {MINUS} T(1) in ms, T(1): {kind}", *(HEADS[part] for part in parts))
    return Table(columns=table_of(heads, ()).columns, groups=tuple(groups))


def _views_lines(views: Sequence[Views]) -> list[str]:
    """Return what communication costs a step, measured in three ways, and whether they agree."""
    if not views:
        return []
    lines = ["what communication costs a step, in ms"]
    unknown: dict[tuple[str, str], list[str]] = {}
    for each in views:
        where = f"{each.series}, {plural(each.workers, 'worker')}"
        lines.append(f"  {where}, {plural(each.runs, 'run')}")
        rows = []
        for view in each.views:
            if view.seconds is not None:
                rows.append((view.name, _estimate(view.seconds), view.words))
            else:
                unknown.setdefault((view.name, view.why_not), []).append(where)
        for name, estimate, words in (
            ("timer, in blocks", each.block_timer_s, "the sync lap in the blocks of the ablation, after the window"),
            ("of it, skew", each.skew_s, "waiting for the last rank, part of the timer's answer"),
            ("floor", each.floor_s, "one raw transfer of the gradients, undisturbed"),
        ):
            if estimate is not None:
                rows.append((name, _estimate(estimate), words))
        lines += to_lines(table_of(("", "", ""), rows, texts=(0, 2)), indent=4)
        lines += [f"    {line}" for line in wrapped(agreement(each), 108, deeper="  ")]
    for (name, reason), places in unknown.items():
        at = "" if len(places) == len(views) else f" ({'; '.join(places)})"
        lines += [f"  {line}" for line in wrapped(f"no answer from the {name}{at}: {reason}", 110, deeper="  ")]
    return lines


def agreement(views: Views) -> str:
    """Return in one or more sentences whether the views of the cost agree, and by how much they do not."""
    if not views.comparisons:
        told = [view.name for view in views.views if view.seconds is not None]
        if not told:
            return "None of the methods gave an answer."
        return f"There is nothing to compare: only the {told[0]} has an answer."
    return " ".join(_compared(each) for each in views.comparisons)


def _compared(each: ViewComparison) -> str:
    apart = f"the first less the second is {_estimate(each.difference_s, sign=True)} ms"
    both = f"{each.first[0].upper()}{each.first[1:]} and {each.second}"
    if each.verdict == AGREE:
        return f"{both} agree: {apart}, which contains 0."
    if each.verdict == DIFFER:
        laps = ", ".join(f"{lap} ({_ms(value, sign=True)} ms)" for lap, value in each.laps_s.items())
        return f"{both} do not agree: {apart}" + (f"; it is in {laps}." if laps else ".")
    return f"Whether {each.first} and {each.second} agree is not resolved: {apart}, an interval wider than the cost."


def gate_lines(gate: ResidualGate | None) -> list[str]:
    """Return the verdict of `--max-residual`: one line per thing that is over it."""
    if gate is None:
        return []
    allowed = f"{100 * gate.allowed:g} %"
    checked = f"{plural(gate.runs, 'run')} and {plural(gate.growths, 'growth')} T(N) {MINUS} T(1) judged"
    lines = [f"over: {each.text}" for each in gate.over]
    lines += [f"not judged: {each}" for each in gate.not_judged]
    verdict = "over it: " + plural(len(gate.over), "thing") if gate.over else "nothing is over it"
    return [*lines, f"at most {allowed} unexplained is allowed; {checked}; {verdict}"]


def _ms(seconds: float, *, sign: bool = False) -> str:
    if not math.isfinite(seconds):
        return NOTHING
    value = f"{seconds * 1e3:+.3f}" if sign else f"{seconds * 1e3:.3f}"
    return value.replace("-", MINUS) if float(value) else "0.000"


def _share(value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    return f"{100 * value:.2f} %".replace("-", MINUS)


def _estimate(each: Interval, *, sign: bool = False) -> str:
    low, high = _ms(each.low, sign=sign), _ms(each.high, sign=sign)
    return f"{_ms(each.value, sign=sign)} [{low} to {high}]"


def caption(found: Accounting) -> str:
    """Return what a reader of the figure must know."""
    cells = found.cells
    several = bool((cells["repeats"] > 1).any())
    kind = base_kind(cells)
    words = (
        "Where the time of a step goes, from the rows of every step: means over the timed window, all ranks"
        + (" and all repeats" if several else "")
        + ". The parts add up to the step; the hatched part is in none of them, its share of the step is above the "
        "bar." + (" Whiskers: the lowest to the highest repeat." if several else "")
    )
    if kind:
        words += (
            f" Right: T(N) {MINUS} T(1) over one {kind} worker in the same parts; what is below zero became shorter. "
            "The mark is the whole difference"
            + (", its whisker the 95 % interval over repeats." if cells[f"minus_{kind}_low_s"].notna().any() else ".")
        )
    if "compute" in shown(cells, PARTS):
        words += " Compute: one CUDA graph of forward and backward; that of a worker alone holds the update too."
    for lap in hiding(cells):
        words += (
            f" {lap.capitalize()} hatched in colour: it holds the synchronisation, which cannot be separated there."
        )
    return words


def drawn(cells: pd.DataFrame) -> bool:
    """Return whether there is anything to draw."""
    return bool((cells.loc[cells["lap"] != "step", "mean_s"] > 0).any())


def base_kind(cells: pd.DataFrame) -> str:
    """Return the baseline that the figure's growth is over: plain where there is one, else wrapped, else none."""
    parallel = cells[(cells["workers"] > 1) & (cells["lap"] == "step")]
    return next((kind for kind in BASES if parallel[f"minus_{kind}_s"].notna().any()), "")


def draw(cells: pd.DataFrame, width_in: float) -> Figure:
    """Return the figure, one line of panels per series; call it inside style()."""
    bases = set(cells.loc[cells["workers"] > 1, "base_plain"])
    series_of = [str(each) for each in cells["series"].unique()]
    # A plain worker is beside those that it is compared with.
    order = [each for each in series_of if each not in bases] or series_of
    kind = base_kind(cells)
    narrow = width_in < NARROW_IN
    lines = len(order) * (2 if narrow and kind else 1)
    figure = Figure(figsize=(width_in, 0.5 + min(2.25 * lines, MAX_HEIGHT_IN)), layout="constrained")
    grid = figure.add_gridspec(len(order), 1)
    for place, series in enumerate(order):
        own = _bars(cells, series)
        grown = [bar for _, bar in own if kind and bar["step"]["workers"] > 1 and _known(bar, kind)]
        ratios = [max(len(own), _FEWEST_BARS) + 0.6, len(grown) + 0.9] if grown else [1.0]
        if narrow:
            panels, shares = grid[place].subgridspec(len(ratios), 1), [1.0] * len(ratios)
        else:
            panels = grid[place].subgridspec(1, len(ratios), width_ratios=ratios)
            shares = [ratio / sum(ratios) for ratio in ratios]
        axes = figure.add_subplot(panels[0])
        _steps(axes, own, width_in * shares[0])
        axes.set_title(folded(series, 0.85 * width_in * shares[0]))
        if grown:
            _growths(figure.add_subplot(panels[1]), grown, kind)
    legend(figure, lap_handles(cells), width_in)
    return figure


def _bars(cells: pd.DataFrame, series: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the bars of one series, the plain baseline first, with their labels."""
    own = [bar for name, bar in _cells(cells) if name == series]
    bars = []
    base = next((bar["step"]["base_plain"] for bar in own if bar["step"]["base_plain"] not in ("", series)), "")
    if base:
        plain = next(bar for name, bar in _cells(cells) if name == base and bar["step"]["workers"] == 1)
        bars.append(("1\nplain", plain))
    several = len({bar["step"]["nodes"] for bar in own}) > 1
    for bar in own:
        workers, nodes = bar["step"]["workers"], bar["step"]["nodes"]
        below = f"\n({nodes:.0f})" if several else "\nwrapped" if base and workers == 1 else ""
        bars.append((f"{workers:.0f}{below}", bar))
    return bars


def _known(bar: dict[str, Any], kind: str) -> bool:
    return math.isfinite(bar["step"][f"minus_{kind}_s"])


def _steps(axes: Axes, bars: Sequence[tuple[str, dict[str, Any]]], wide_in: float) -> None:
    top = max(max(bar["step"]["mean_s"], bar["step"]["max_s"]) for _, bar in bars) * 1e3
    pitch_in = 0.82 * wide_in / (max(len(bars), _FEWEST_BARS) + 0.2)
    upright, texts = False, []
    for place, (_, bar) in enumerate(bars):
        parts = {part: bar[part]["mean_s"] * 1e3 for part in LAPS if part in bar}
        lap_bar(axes, place, bar, parts)
        step = bar["step"]
        if not any(math.isfinite(value) for value in parts.values()):
            axes.bar(place, step["mean_s"] * 1e3, width=0.66, fill=False, edgecolor=QUIET, linestyle=":", linewidth=0.8)
        if step["repeats"] > 1:
            _whisker(axes, place, step["min_s"] * 1e3, step["max_s"] * 1e3)
        share = bar["residual"]["share"]
        brief = len(bars) > 4 or wide_in < NARROW_IN
        note = f"{100 * share:.1f} %{'' if brief else ' unexpl.'}" if math.isfinite(share) else "not timed"
        height = max(step["mean_s"], step["max_s"]) * 1e3
        text = f"{rounded(step['mean_s'] * 1e3, 3)}{'' if brief else ' ms'}\n{note}"
        upright = upright or text_in(text) > 0.98 * pitch_in
        texts.append((place, height, text))
    for place, height, text in texts:
        turned = 90 if upright else 0
        note_at(axes, text, (place, height), (0, 3), ha="center", va="bottom", linespacing=1.05, rotation=turned)
    axes.set_xticks(range(len(bars)), [label for label, _ in bars])
    axes.set(xlim=(-0.6, max(len(bars), _FEWEST_BARS) - 0.4), ylim=(0, top * (1.5 if upright else 1.34)))
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="ms per step", xlabel="workers (nodes)" if any("(" in label for label, _ in bars) else "workers")


def _growths(axes: Axes, bars: Sequence[dict[str, Any]], kind: str) -> None:
    ends = [0.0]
    for place, bar in enumerate(bars):
        parts = {part: bar[part][f"minus_{kind}_s"] * 1e3 for part in LAPS if part in bar}
        lap_bar(axes, place, bar, parts)
        known = [value for value in parts.values() if math.isfinite(value)]
        ends += [sum(value for value in known if value > 0), sum(value for value in known if value < 0)]
        step = bar["step"]
        whole, low, high = (step[f"minus_{kind}{end}_s"] * 1e3 for end in ("", "_low", "_high"))
        if math.isfinite(low):
            _whisker(axes, place, low, high)
            ends += [low, high]
        axes.plot(place, whole, marker="D", markersize=3.6, color=INK, markeredgecolor=PAPER, zorder=6)
        ends.append(whole)
    axes.axhline(0, color=QUIET, linewidth=0.7, zorder=4)
    low, high = min(ends), max(ends)
    spare = 0.08 * (high - low)
    axes.set_ylim(low - (spare if low < 0 else 0), high + spare)
    axes.set_xticks(range(len(bars)), [f"{bar['step']['workers']:.0f}" for bar in bars])
    axes.set_xlim(-0.75, len(bars) - 0.25)
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="workers", title=f"T(N) {MINUS} T(1) over {kind}, ms")


def _whisker(axes: Axes, place: float, low: float, high: float) -> None:
    for color, width in ((PAPER, 2.4), (INK, 0.9)):  # a white rim, or the line is lost on a dark bar
        axes.plot([place, place], [low, high], color=color, linewidth=width, zorder=5, solid_capstyle="butt")
    for end in (low, high):
        axes.plot([place - 0.07, place + 0.07], [end, end], color=INK, linewidth=0.9, zorder=5)
