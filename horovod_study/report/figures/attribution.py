"""Where the synchronisation time goes, as a table and as a figure."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure

from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.attribution import Arm, Attribution
from horovod_study.records import finite
from horovod_study.report.kit import style
from horovod_study.report.kit.files import figure_lines, write_result
from horovod_study.report.kit.interactive import mark
from horovod_study.report.kit.panels import legend, lying_grid, note_at, rimmed, stacked, swatch
from horovod_study.report.kit.style import TEXT, FigureFormat
from horovod_study.text.numbers import THIN, milliseconds, percent
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import plural

NAME = "attribution"

LOOKS = {
    "floor": style.LapStyle(label="transfer (floor)", color="#8fa5b8", ink=style.INK),
    "skew": style.LapStyle(label="skew: waiting for the last worker", color="#e69f00", ink=style.INK),
    "pack": style.LapStyle(label="runtime: packing, norm", color="#e3a6be", ink=style.INK),
    "rest": style.LapStyle(label="runtime: cycle, negotiation, other", color="#b3305f", ink="#ffffff"),
    "unexplained": style.LapStyle(label="unexplained", color="#ffffff", ink=style.INK, hatch="//////"),
}
"""The parts of a synchronisation in the order of a bar."""

_ROWS = (
    ("step", "step"),
    ("sync", "synchronisation"),
    ("floor", "  transfer floor"),
    ("skew", "  skew"),
    ("runtime", "  runtime"),
    ("least", "    where nothing disturbs"),
    ("pack", "    packing, norm"),
    ("rest", "    the rest"),
    ("unexplained", "  unexplained"),
)


def write_attribution(found: Attribution, directory: Path, *, look: FigureFormat = TEXT) -> list[Path]:
    """Write attribution.json, attribution.txt (the table) and the figure; return the paths."""
    lines = [*table(found), "", *(f"Doubt: {text}." for text in found.doubts)]
    figures = {NAME: partial(draw, found)} if any(_drawn(arm) for arm in found.arms) else {}
    return write_result(directory, {f"{NAME}.json": finite(found), f"{NAME}.txt": lines}, figures, look=look)


def title(arm: Arm) -> str:
    """Return how an arm is called: `Horovod/MPI, shipped settings`."""
    hooks = ", hooks" if arm.reduction == "hooks" else ""
    return f"{style.runtime_label(arm.backend, arm.transport)}{hooks}, {arm.arm}"


def table(found: Attribution) -> list[str]:
    """Return the parts of every arm: ms per step with 95 % intervals, share of the synchronisation and of the step."""
    lines = []
    for arm in found.arms:
        runs = plural(len(arm.runs), "run") + (f", {plural(arm.rounds, 'round')}" if arm.rounds else "")
        lines += [f"{title(arm)} ({plural(arm.workers, 'worker')}, batch {arm.batch}, {runs})"]
        rows = []
        for name, words in _ROWS:
            if name in arm.seconds:
                of_sync = _share(arm, name, "sync") if name != "step" else ""
                label = "    cycle, negotiation" if name == "rest" and arm.backend == "horovod" else words
                rows.append((label, _ms(arm.seconds[name]), of_sync, _share(arm, name, "step")))
        lines += to_lines(table_of(("", "ms", "of sync", "of step"), rows), indent=2)
        for each in _beside(arm):
            lines += textwrap.wrap(each, 100, initial_indent="  ", subsequent_indent="    ")
        lines.append("")
    return lines[:-1]


def _beside(arm: Arm) -> list[str]:
    """Return what an arm says beside its parts: efficiencies, and which rank is slow."""
    told = [f"{name} {_percents(each)}" for name, each in arm.efficiency.items()]
    words = [f"efficiency (100 %: {arm.baseline}): {', '.join(told)}"] if told else []
    if arm.over_shipped is not None:
        words.append(f"step over that with shipped settings: {_percents(arm.over_shipped)}")
    if arm.slow_rank is not None:
        host = f" on {arm.hosts[arm.slow_rank]}" if arm.slow_rank < len(arm.hosts) and arm.hosts[arm.slow_rank] else ""
        late = _ms(arm.seconds[f"lag {arm.slow_rank}"])
        words.append(f"rank {arm.slow_rank}{host} is slow: its gradients come {late} ms after the mean worker's")
    left = arm.seconds.get("exposed")
    rest = f"{_ms(left)} ms are transfer and runtime that backward did not hide; " if left else ""
    return words + ([f"not decomposed: {rest}{arm.why_not}"] if arm.why_not else [])


def _ms(estimate: Interval) -> str:
    """Return `0.31 [0.28, 0.34]` in ms: as many decimals as the interval is worth, at most microseconds."""
    decimals = _decimals(estimate)
    value, low, high = (_fixed(each * 1e3, decimals) for each in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def _decimals(estimate: Interval) -> int:
    half_ms = estimate.width / 2 * 1e3 if estimate.known else 0.05
    return 3 if half_ms < 1e-3 else min(3, max(1, 1 - math.floor(math.log10(half_ms))))


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.replace("-", "\u2212" if float(text) else "")


def _percents(estimate: Interval) -> str:
    value, low, high = (_fixed(100 * each, 1) for each in (estimate.value, estimate.low, estimate.high))
    return f"{value} % [{low}, {high}]"


def _share(arm: Arm, name: str, whole: str) -> str:
    if whole not in arm.seconds or arm.seconds[whole].value <= 0:
        return ""
    return f"{_fixed(100 * arm.seconds[name].value / arm.seconds[whole].value, 1)} %"


Bar: TypeAlias = tuple[str, Mapping[str, float], Interval]
"""Its name, the seconds of each part of LOOKS, and the whole synchronisation, all per step."""


def draw(found: Attribution, width_in: float) -> Figure:
    """Return the figure of the arms that are decomposed; call it inside style()."""
    arms = [arm for arm in found.arms if _drawn(arm)]
    parts = [{part: arm.seconds[part].value for part in LOOKS} for arm in arms]
    return draw_bars([(title(arm), own, arm.seconds["sync"]) for arm, own in zip(arms, parts, strict=True)], width_in)


def draw_bars(bars: Sequence[Bar], width_in: float) -> Figure:
    """Return ms per step on the left, shares of the synchronisation on the right; call it inside style().

    Beside a hundredfold synchronisation the others are thin lines in ms; their make-up is on the right.
    """
    narrow = width_in < style.NARROW_IN
    names = [style.folded(name, (0.34 if narrow else 0.3) * width_in) for name, _, _ in bars]
    each_in = max(0.4, 1.3 * style.small() / 72 * max(name.count("\n") + 1 for name in names))
    height_in = (2 if narrow else 1) * (each_in * len(bars) + 0.55) + 0.5
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    if narrow:
        left, right = figure.subplots(2, 1, sharey=True)
    else:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
    ends, words = [], [_fixed(1e3 * sync.value, _decimals(sync)) for _, _, sync in bars]
    for place, (name, parts, sync) in enumerate(bars):
        for axes, scale in ((left, 1e3), (right, 100 / sync.value)):
            own = [(look, scale * parts[part]) for part, look in LOOKS.items()]
            drawn = stacked(axes, place, own, 0.62, lying=True)
            for each, (part, look) in zip(drawn, LOOKS.items(), strict=True):
                share = f"{percent(parts[part] / sync.value)} of the synchronisation"
                text = f"{name}: {look.label} {milliseconds(parts[part])}{THIN}ms per step, {share}"
                mark(each, series=look.label, tips=[text])
        rimmed(left, (1e3 * sync.low, 1e3 * sync.high), place)
        right_end = math.fsum(max(0.0, each) for each in parts.values())
        ends.append(1e3 * max(right_end, sync.high if sync.known else sync.value))
        note_at(left, words[place], (ends[-1], place), (4, 0), va="center")
    left.set_yticks(range(len(bars)), names)
    left.set(ylim=(len(bars) - 0.5, -0.5), xlabel="ms per step")
    right.set_xlabel("% of the synchronisation")
    for axes in (left, right):
        axes.axvline(0, color=style.QUIET, linewidth=0.7, zorder=4)
        axes.spines["left"].set_visible(False)
        lying_grid(axes)
    written_in = 0.1 + max(style.text_in(each) for each in words)
    spare = written_in / (0.6 * width_in if narrow else 0.33 * width_in)  # of the axis
    low = min(math.fsum(min(0.0, each) for each in parts.values()) for _, parts, _ in bars)
    left.set_xlim(min(0.0, 1.05e3 * low), max(ends) / max(0.4, 1 - spare))
    legend(figure, [swatch(look) for look in LOOKS.values()], width_in)
    return figure


def _drawn(arm: Arm) -> bool:
    return "unexplained" in arm.seconds and arm.seconds["sync"].value > 0


def result_lines(found: Attribution, paths: list[Path]) -> list[str]:
    """Return what the command prints: the table, and where the figure is."""
    return [*table(found), *(line for each in figure_lines(paths) for line in ("", each))]
