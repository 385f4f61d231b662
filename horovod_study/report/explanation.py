"""The page of `horovod-study explain` for a terminal, the most important first."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from horovod_study import records
from horovod_study.analysis.series.culprits import STALLED
from horovod_study.analysis.series.turns import study_turns
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.breakdown import PARTS
from horovod_study.analysis.steps.explanation import Cell, Explanation, Growth, Help, Slow, explain
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE
from horovod_study.records import finite
from horovod_study.report.commands import command_lines, command_rows
from horovod_study.report.figures.inspection import balance_words, late_words
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, known, milliseconds, percent, quoted, rounded, signed
from horovod_study.text.tables import NOTHING, Group, Table, table_of, to_lines
from horovod_study.text.words import listed, plural

WIDE = 100
MAX_ROWS, _MAX_SERIES, _MAX_HELP, _MAX_DOUBTS = 10, 4, 5, 4
"""So many lines each part of the page has room for."""

_NAMES = {"data": "loading data", "sync": "synchronising", "residual": "unexplained"}
_HEADS = {**{part: part for part in PARTS}, "residual": "unexpl.", "outside": "outside"}
_LITTLE = 0.01
"""A share of the time outside of steps below this is told as a share alone."""

Said: TypeAlias = str | list[str]
"""A text that is wrapped, or lines that stay as they are: of a table, or a command."""


def explained(places: Sequence[Path], out: Path | None) -> dict[str, Any]:
    """Explain recorded runs on one page, in `out` too; return document, lines, files and doubts."""
    one = places[0] if len(places) == 1 else None
    left_out: dict[str, str] = {}
    beside = records.runs_beside(one) if one else {}
    about, *others = beside or [""]
    if one and others:
        alike = [name for name, like in beside.items() if like]
        table, runs = records.recorded_runs([one.resolve().parent], alike)
    else:
        table, runs = records.recorded_runs(places, left_out=left_out)
    commands = table["backend"] == records.COMMAND
    told: dict[str, Any]
    if len(table) and commands.all():
        lines = command_lines(table)
        files = write_result(out, {"explanation.txt": lines}) if out else []
        told = {"document": {"commands": command_rows(table)}, "lines": lines, "files": files}
    else:
        left_out |= dict.fromkeys(table.loc[commands, "run"], "no step was seen")
        seen = table[~commands].reset_index(drop=True)
        trained = (run for run in runs if not records.is_command(run.record))
        turns = study_turns(one) if one else None
        found = explain(seen, trained, turns, about=about if others else "", taken=list(beside))
        lines = page(found, width=min(WIDE, shutil.get_terminal_size((WIDE, 0)).columns))
        told = {"document": finite(found), "lines": lines, "files": write_explanation(found, out) if out else []}
    return {**told, "doubts": [f"left out: {name}: {why}" for name, why in left_out.items()]}


def page(found: Explanation, *, width: int = WIDE) -> list[str]:
    """Return the explanation as lines of at most `width` characters, but for tables and commands."""
    sections = (
        ("", _head(found)),
        (" ", _first(found.top, len(found.last), found.cells)),
        ("Where the time of a step goes", _time(found)),
        ("Who is slow", _slow(found)),
        ("What more workers add to a step", _growth(found)),
        ("What would help next", _help(found)),
        ("What this rests on", _rests(found)),
    )
    lines: list[str] = []
    for title, said in sections:
        lines += ["", title] if title.strip() else []
        for each in said:
            lines += _lines(each, width, "  " if title else "")
    # Narrow spaces kept numbers whole while lines were wrapped; not every terminal shows them.
    return [line.replace(f"{THIN}%", " %").replace(THIN, ",") for line in lines]


def write_explanation(found: Explanation, directory: Path) -> list[Path]:
    """Write explanation.txt and explanation.json; return the paths."""
    return write_result(directory, {"explanation.txt": page(found), "explanation.json": finite(found)})


def _lines(said: Said, width: int, indent: str) -> list[str]:
    if isinstance(said, list):
        return [f"{indent}{line}".rstrip() for line in said]
    item = re.match(r"- |\d\. ", said)
    deeper = indent + " " * (item.end() if item else 0)
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(said, width, initial_indent=indent, subsequent_indent=deeper, **how)


def _head(found: Explanation) -> Iterable[Said]:
    on = f" on {found.hosts[0]}" if len(found.hosts) == 1 else f" on {len(found.hosts)} hosts" if found.hosts else ""
    if len(found.names) == 1:
        cell, state = found.cells[0], next(iter(found.states))
        rate = "" if cell.samples_per_s is None else f"; {rounded(cell.samples_per_s)} samples/s"
        if cell.workers > 1 and cell.efficiency is not None:
            rate += f", {rounded(cell.workers * cell.efficiency, 3)} times those of one worker"
        yield f"{found.names[0]}: {state}; {cell.series}, {plural(cell.workers, 'worker')}{on}{rate}"
    else:
        states = listed([f"{count} {state}" for state, count in found.states.items()])
        yield f"{len(found.names)} runs ({states}), {len(found.last)} series{on}"


def _first(cell: Cell, count: int, others: Sequence[Cell]) -> Iterable[Said]:
    """Yield what a reader must know before any number."""
    where = _where(cell, count)
    yield from (f"- {where}{each if where else each[0].upper() + each[1:]}." for each in cell.first)
    for each in others:
        if each.unsteady and each is not cell:
            yield f"- Run {listed(each.unsteady[:3])} was disturbed: nothing is compared with it."


def _time(found: Explanation) -> Iterable[Said]:
    yield from _one_cell(found.cells[0]) if len(found.cells) == 1 else _several_cells(found)
    top = found.top
    where = _where(top, len(found.last))
    yield from (f"{where}{text}" for text in (_outside(top), *_stacks(top), *_stalls(top)))
    several = [cell for cell in found.last if cell.workers > 1]
    for cell in several[:_MAX_SERIES]:
        yield _where(cell, len(several)) + _communication(cell)


def _outside(cell: Cell) -> str:
    """Return how much of the training's time is in no step, and the rate with it."""
    share, outside = cell.outside_share, cell.outside
    if share is None or outside is None:
        return "Outside of steps: unknown."
    if share < _LITTLE:
        return f"Outside of steps: {percent(share)} of the training's time."
    each = ""
    if outside.where:
        alone = cell.outside_alone_s
        nothing = alone is None or 0.9 < outside.gap_s / alone < 1.1
        told = [] if alone is None else [f"1 worker: {rounded(alone, 3)} s"]
        one = f" ({'; '.join([*told, *['more workers do nothing to it'] * nothing])})" if cell.workers > 1 else ""
        each = f", {rounded(outside.gap_s, 3)} s {outside.where}{one}"
    rate = "" if cell.whole_samples_per_s is None else f"; with it {rounded(cell.whole_samples_per_s)} samples/s"
    return f"Outside of steps: {rounded(outside.seconds, 3)} s, {percent(share)} of all time{each}{rate}."


def _stacks(cell: Cell) -> Iterable[str]:
    """Yield in which functions the time is that no lap covers, as shares of all time."""
    beside = cell.outside_share or 0.0
    shares = {"outside": beside, "residual": (cell.parts_s["residual"] or 0.0) / cell.step_s * (1 - beside)}
    for kind, words in (("outside", "outside of steps"), ("residual", "outside all laps")):
        if own := [each for each in cell.stacks if each["where"] == kind]:
            parts = ", ".join(f"{100 * each['share']:.0f} in {each['name']}" for each in own[:3])
            yield f"Of all time {words} {percent(max(shares[kind], own[0]['share']))}, of it {parts}."


def _stalls(cell: Cell) -> Iterable[str]:
    stalls = cell.stalls
    if stalls is not None and cell.stall_s >= STALLED * cell.step_s:
        yield (
            f"{stalls.count:,} of {plural(stalls.of, 'step', ',')} take more than 10 times the median one: they cost "
            f"{milliseconds(cell.stall_s)} ms of the mean step."
        )


def _one_cell(cell: Cell) -> Iterable[Said]:
    parts = [(part, value) for part, value in cell.parts_s.items() if value]  # one worker has nobody to wait for
    if not parts:
        yield f"A step takes {milliseconds(cell.step_s)} ms. Its parts are unknown: it was recorded without laps."
        return
    rows = []
    for part, value in sorted(parts, key=lambda each: -each[1]):
        share = value / cell.step_s
        rows.append((_NAMES.get(part, part), milliseconds(value), percent(share), "#" * round(24 * share)))
    rows.append(("step", milliseconds(cell.step_s), percent(1.0), ""))
    yield to_lines(table_of(("", "ms", "share", ""), rows, texts=(0, 3)))


def _several_cells(found: Explanation) -> Iterable[Said]:
    """Yield the worker counts as a table: shares of the step; of many, the fewest and the most workers of a series."""
    cells = found.cells
    if len(cells) > MAX_ROWS:
        first = {cell.series: cell for cell in reversed(cells)}
        cells = tuple(cell for cell in cells if cell in (*first.values(), *found.last))
    series = list(dict.fromkeys(cell.series for cell in cells))
    shown = [part for part in PARTS[:-1] if any(cell.parts_s[part] is not None for cell in cells)]
    heads = ("workers", "samples/s", "efficiency", "step, ms", *(_HEADS[part] for part in (*shown, "outside")))
    groups = tuple(
        Group(title=each, rows=tuple(_row(cell, shown) for cell in cells if cell.series == each))
        for each in series[: MAX_ROWS // 2]
    )
    yield to_lines(Table(columns=table_of(heads, (), texts=()).columns, groups=groups))
    if len(series) > len(groups):
        yield f"and {len(series) - len(groups)} series more: --part account"


def _row(cell: Cell, parts: Sequence[str]) -> tuple[str, ...]:
    rate = NOTHING if cell.samples_per_s is None else rounded(cell.samples_per_s)
    good = NOTHING if cell.efficiency is None else percent(cell.efficiency)
    shares = (NOTHING if (value := cell.parts_s[part]) is None else percent(value / cell.step_s) for part in parts)
    outside = NOTHING if cell.outside_share is None else percent(cell.outside_share)
    return (str(cell.workers), rate, good, milliseconds(cell.step_s), *shares, outside)


def _where(each: Cell | Slow, count: int) -> str:
    """Return what a sentence is about, where several of its kind are told."""
    return f"{each.series}, {plural(each.workers, 'worker')}: " if count > 1 else ""


def _communication(cell: Cell) -> str:
    """Return what communication costs a step, as one number, and what of it is waiting."""
    left_out = ""
    if cell.left_out_s is not None:
        left_out = f"{_part(cell.left_out_s, cell.step_s)}, by leaving communication out"
    if cell.exposed_s is None or cell.waiting_s is None:
        if left_out:
            return f"Communication costs {left_out}."
        known_why = "none" if cell.why_not == NO_EXCHANGE else "unknown"
        return f"Exposed communication is {known_why}: {cell.why_not}."
    text = (
        f"Communication that no computing hides: {_part(cell.exposed_s, cell.step_s)}; waiting for the last "
        f"rank: {_part(cell.waiting_s, cell.step_s)}{'; no gradients are averaged' * (cell.apart == 'none')}."
    )
    return f"{text} Together: {left_out}." if left_out else text


def _part(seconds: Interval, step_s: float) -> str:
    return f"{_ms(seconds)} ms, {percent(seconds.value / step_s)} of the step"


def _ms(seconds: Interval) -> str:
    """Return ms with their interval."""
    if not seconds.known:
        return milliseconds(seconds.value)
    return quoted(1e3 * seconds.value, 1e3 * seconds.low, 1e3 * seconds.high)


def _slow(found: Explanation) -> Iterable[Said]:
    if not found.slow:
        yield "One worker has nobody to wait for."
    for each in sorted(found.slow, key=lambda each: -each.delay_s)[:_MAX_SERIES]:
        yield _where(each, len(found.slow)) + _who(each)


def _who(slow: Slow) -> str:
    if slow.why_not:
        return f"{'Nobody' if slow.why_not == NO_EXCHANGE else 'Unknown'}: {slow.why_not}."
    if not slow.ranks and slow.balanced:
        return f"{balance_words(slow.balanced, slow.chance)} No rank is late beyond chance."
    if not slow.ranks:
        seen = (
            "" if slow.resolution_s is None else f" (one of {milliseconds(slow.resolution_s)} ms would have been seen)"
        )
        waits = ""
        if slow.waiting_s is not None:
            share = percent(slow.waiting_s / slow.period_s)
            waits = f" A rank waits {milliseconds(slow.waiting_s)} ms per step for the last one, {share} of the step."
        return f"No rank is late beyond chance{seen}.{waits}"
    words = " ".join(late_words(each, slow.chance) for each in slow.ranks[:3])
    more = f" So are {len(slow.ranks) - 3} more." if len(slow.ranks) > 3 else ""
    runs = "" if slow.looked_at == 1 else f" It is so in {slow.named_in} of {slow.looked_at} runs."
    others = "The other ranks wait" if slow.chance < 0.5 else "The other rank waits"
    delay = Interval(value=slow.delay_s)
    if slow.delay_low_s is not None and slow.delay_high_s is not None:
        delay = Interval(value=slow.delay_s, low=slow.delay_low_s, high=slow.delay_high_s)
    return f"{words}{more}{runs} {others} for that: {_part(delay, slow.period_s)}."


def _growth(found: Explanation) -> Iterable[Said]:
    if found.why_no_growth:
        yield f"Unknown: {found.why_no_growth}."
    for each in found.growth[:_MAX_SERIES]:
        yield (f"{each.series}: " if len(found.growth) > 1 else "") + _grown(each)
    if len(found.growth) > _MAX_SERIES:
        yield f"and {len(found.growth) - _MAX_SERIES} series more: --part account"


def _grown(growth: Growth) -> str:
    step = growth.step_s
    chance = ", which may be chance" if step.known and not step.excludes(0) else ""
    known_parts = [(part, value) for part, value in growth.parts_s.items() if value is not None]
    worth = sorted((each for each in known_parts if abs(each[1]) >= 0.05 * abs(step.value)), key=lambda each: -each[1])
    of_it = ", ".join(f"{_NAMES.get(part, part)} {signed(milliseconds(value))}" for part, value in worth)
    return (
        f"{growth.workers} workers against {growth.base}: {signed(_ms(step))} ms per step{chance}. "
        f"Of it {of_it or 'no part is known'}."
    )


def _help(found: Explanation) -> Iterable[Said]:
    if not found.help:
        yield "Nothing stands out: no part but computing takes more than a few per cent of a step."
    for place, each in enumerate(found.help[:_MAX_HELP], 1):
        yield f"{place}. {each.what}{_gain(each)}"
        if each.command:
            yield [f"   {each.command}"]


def _gain(each: Help) -> str:
    if each.gain is None:
        return ""
    low, high = each.gain.low, each.gain.high
    ends = f" [{percent(low)}, {percent(high)}]" if known(low) and known(high) else ""
    return f": {each.kind} {signed(percent(each.gain.value))}{ends} {each.of}"


def _rests(found: Explanation) -> Iterable[Said]:
    steps = f"{found.steps:,}" if found.steps == found.steps_most else f"{found.steps:,} to {found.steps_most:,}"
    what = "from the scatter of repeats"
    if all(len(cell.runs) == 1 for cell in found.cells):
        what = "from the steps of one run each, so that what differs from run to run is not in them"
    yield f"{steps} steps of each rank after the warm-up; brackets: 95 % intervals {what}."
    doubts = [each for each in found.doubts if not any(each.endswith(f"{said}.") for said in found.top.first)]
    for doubt in doubts[:_MAX_DOUBTS]:
        text = textwrap.shorten(doubt.rstrip("."), 3 * WIDE - 60, placeholder=" ...")
        yield f"- {text}{'' if text.endswith('...') else '.'}"
    if len(doubts) > _MAX_DOUBTS:
        yield f"- and {plural(len(doubts) - _MAX_DOUBTS, 'doubt')} more: --part account"
