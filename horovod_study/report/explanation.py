"""The page of `horovod-study explain` for a terminal, the most important first: tables, and what they cannot say."""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from horovod_study import records
from horovod_study.analysis.series.points import command_words, scaling_points
from horovod_study.analysis.series.turns import study_turns
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.breakdown import PARTS
from horovod_study.analysis.steps.explanation import Explanation, Help, Row, explain
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE
from horovod_study.errors import RecordError
from horovod_study.records import finite
from horovod_study.report.figures.inspection import balance_words, late_words
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, known, milliseconds, percent, quoted, rounded, signed
from horovod_study.text.tables import NOTHING, Group, Table, table_of, to_lines
from horovod_study.text.words import listed, plural

WIDE = 100
MAX_ROWS, _MAX_SERIES, _MAX_HELP, _MAX_DOUBTS = 10, 4, 5, 4  # lines that each part of the page has room for
_MOST_BESIDE = 200
Said: TypeAlias = str | list[str]  # a text that is wrapped, or lines that stay as they are: of a table, or a command


def explained(places: Sequence[Path], out: Path | None) -> dict[str, Any]:
    """Explain recorded runs on one page, in `out` too; return document, lines, files and doubts."""
    one = places[0] if len(places) == 1 else None
    left_out: dict[str, str] = {}
    beside = _runs_beside(one) if one else {}
    about, *others = beside or [""]
    if one and others:
        alike = [name for name, like in beside.items() if like]
        table, runs = records.recorded_runs([one.resolve().parent], alike)
    else:
        table, runs = records.recorded_runs(places, left_out=left_out)
    commands = table["backend"] == records.COMMAND
    document: dict[str, Any]
    if len(table) and commands.all():
        document, lines, files = {"commands": command_rows(table)}, command_lines(table), {}
    else:
        left_out |= dict.fromkeys(table.loc[commands, "run"], "no step was seen")
        seen = table[~commands].reset_index(drop=True)
        trained = (run for run in runs if not records.is_command(run.record))
        turns = study_turns(one) if one else None
        found = explain(seen, trained, turns, about=about if others else "", taken=list(beside))
        document, files = finite(found), {"explanation.txt": page(found), "explanation.json": finite(found)}
        lines = page(found, width=min(WIDE, shutil.get_terminal_size((WIDE, 0)).columns))
    paths = write_result(out, files or {"explanation.txt": lines}) if out else []
    doubts = [f"left out: {name}: {why}" for name, why in left_out.items()]
    return {"document": document, "lines": lines, "files": paths, "doubts": doubts}


def _runs_beside(directory: Path) -> dict[str, bool]:
    """Return the names of a run directory and of the runs in the same folder, itself first, and whether each trained
    the same with another number of workers, as the baseline of a scaling does. Empty where it is no run.
    """
    own = directory.resolve()
    if not (own / records.MANIFEST).is_file():
        return {}
    record, found = records.read_run(own), {own.name: True}

    def what(each: records.RunRecord) -> list[Any]:
        names = ("model", "parameters", "device", "precision")
        return [each.study, each.partition, *(each.effective.get(name) for name in names)]

    for path in sorted(own.parent.glob(f"*/{records.MANIFEST}"))[:_MOST_BESIDE]:
        with suppress(RecordError):
            if path.parent != own:
                other = records.read_run(path.parent)
                more = other.effective.get("workers") != record.effective.get("workers")
                found[path.parent.name] = more and what(other) == what(record)
    return found


def page(found: Explanation, *, width: int = WIDE) -> list[str]:
    """Return the explanation as lines of at most `width` characters, but for tables and commands."""
    sections = (
        ("", _head(found)),
        (" ", _first(found)),
        ("Where the time of a step goes", _time(found)),
        ("Who is slow", _slow(found)),
        ("What more workers add to a step", _growth(found)),
        ("What would help next", _help(found)),
        ("What this rests on", _rests(found)),
    )
    lines: list[str] = []
    for title, said in sections:
        lines += ["", title] if title.strip() else []
        indent = "  " * bool(title)
        for each in said:
            if isinstance(each, list):
                lines += [f"{indent}{line}".rstrip() for line in each]
            else:
                deeper = indent + " " * len("".join(re.findall(r"^(?:- |\d\. )", each)))
                wrap = textwrap.TextWrapper(width, indent, deeper, break_long_words=False, break_on_hyphens=False)
                lines += wrap.wrap(each)
    # Narrow spaces kept numbers whole while lines were wrapped; not every terminal shows them.
    return [line.replace(f"{THIN}%", " %").replace(THIN, ",") for line in lines]


def _head(found: Explanation) -> Iterable[Said]:
    on = f" on {found.hosts[0]}" if len(found.hosts) == 1 else f" on {len(found.hosts)} hosts" if found.hosts else ""
    states = listed([f"{count} {state}" for state, count in found.states.items()])
    what = f"{found.names[0]}: {next(iter(found.states))}; {found.cells[0].series}"
    yield (what if len(found.names) == 1 else f"{len(found.names)} runs ({states}), {len(found.last)} series") + on


def _first(found: Explanation) -> Iterable[Said]:
    """Yield what a reader must know before any number."""
    where = _where(found.top, len(found.last))
    yield from (f"- {where}{each if where else each[0].upper() + each[1:]}." for each in found.top.first)
    for each in found.cells:
        if each.unsteady and each is not found.top:
            yield f"- Run {listed(each.unsteady[:3])} was disturbed: nothing is compared with it."


def _where(each: Row, count: int) -> str:
    """Return what a sentence is about, where several of its kind are told."""
    return f"{each.series}, {plural(each.workers, 'worker')}: " if count > 1 else ""


def _by_series(found: Sequence[Any], heads: Sequence[str], row: Callable[[Any], Sequence[str]]) -> Iterable[Said]:
    """Yield a table with a row for each cell or growth, in a group for each series."""
    series = list(dict.fromkeys(each.series for each in found))
    shown = series[: MAX_ROWS // 2]
    groups = (Group(title=name, rows=tuple(tuple(row(e)) for e in found if e.series == name)) for name in shown)
    yield to_lines(Table(columns=table_of(heads, (), texts=()).columns, groups=tuple(groups)))
    if len(series) > len(shown):
        yield f"and {len(series) - len(shown)} series more: --part account"


def _parts(found: Sequence[Row]) -> list[str]:
    return [part for part in PARTS[:-1] if any(each.parts_s[part] is not None for each in found)]


def _heads(*heads: str, parts: Sequence[str]) -> list[str]:
    return ["workers", *heads, *(part.replace("residual", "unexpl.") for part in parts)]


def _time(found: Explanation) -> Iterable[Said]:
    """Yield shares of the step at each worker count, of many at the fewest and the most of a series; what is beside."""
    cells = found.cells
    if len(cells) > MAX_ROWS:
        first = {cell.series: cell for cell in reversed(cells)}
        cells = tuple(cell for cell in cells if cell in (*first.values(), *found.last))
    parts = _parts(cells)

    def share(value: float | None) -> str:
        return NOTHING if value is None else percent(value)

    def row(cell: Row) -> Sequence[str]:
        rate = NOTHING if cell.samples_per_s is None else rounded(cell.samples_per_s)
        of_step = (None if (value := cell.parts_s[part]) is None else value / cell.step_s for part in parts)
        step = milliseconds(cell.step_s)
        return (f"{cell.workers}", rate, share(cell.efficiency), step, *map(share, (*of_step, cell.outside_share)))

    yield from _by_series(cells, [*_heads("samples/s", "efficiency", "step, ms", parts=parts), "outside"], row)
    yield from (f"{_where(found.top, len(found.last))}{text}" for text in _beside(found.top))
    several = [cell for cell in found.last if cell.workers > 1]
    yield from (_where(cell, len(several)) + _communication(cell) for cell in several[:_MAX_SERIES])


def _beside(cell: Row) -> Iterable[str]:
    """Yield how much of all time is in no step, and the functions in which no lap covers it."""
    share, outside, alone = cell.outside_share or 0.0, cell.outside, cell.outside_alone_s
    if cell.outside_share is None or outside is None:
        yield "Outside of steps: unknown."
    else:
        each = f", {rounded(outside.gap_s, 3)} s {outside.where}" if outside.where and share >= 0.01 else ""
        if each and cell.workers > 1:
            told = [] if alone is None else [f"1 worker: {rounded(alone, 3)} s"]
            nothing = alone is None or 0.9 < outside.gap_s / alone < 1.1
            each += f" ({'; '.join([*told, *['more workers do nothing to it'] * nothing])})"
        yield f"Outside of steps: {rounded(outside.seconds, 3)} s, {percent(share)} of all time{each}."
    unseen = (cell.parts_s["residual"] or 0.0) / cell.step_s * (1 - share)
    for kind, words, least in (("outside", "outside of steps", share), ("residual", "outside all laps", unseen)):
        if own := [each for each in cell.stacks if each["where"] == kind]:
            parts = ", ".join(f"{100 * each['share']:.0f} in {each['name']}" for each in own[:3])
            yield f"Of all time {words} {percent(max(least, own[0]['share']))}, of it {parts}."


def _communication(cell: Row) -> str:
    """Return what communication costs a step, as one number, and what of it is waiting."""
    left_out = cell.left_out_s and f"{_part(cell.left_out_s, cell.step_s)}, by leaving communication out"
    if cell.exposed_s is not None and cell.waiting_s is not None:
        exposed, waiting = (_part(each, cell.step_s) for each in (cell.exposed_s, cell.waiting_s))
        none = "; no gradients are averaged" * (cell.apart == "none")
        text = f"Communication that no computing hides: {exposed}; waiting for the last rank: {waiting}{none}."
        return f"{text} Together: {left_out}." if left_out else text
    unknown = f"Exposed communication is {'none' if cell.why_not == NO_EXCHANGE else 'unknown'}: {cell.why_not}."
    return f"Communication costs {left_out}." if left_out else unknown


def _part(seconds: Interval, step_s: float) -> str:
    return f"{_ms(seconds)} ms, {percent(seconds.value / step_s)} of the step"


def _ms(seconds: Interval) -> str:
    """Return ms with their interval."""
    ends = (1e3 * each for each in (seconds.value, seconds.low, seconds.high))
    return quoted(*ends) if seconds.known else milliseconds(seconds.value)


def _slow(found: Explanation) -> Iterable[Said]:
    if not found.slow:
        yield "One worker has nobody to wait for."
    for each in sorted(found.slow, key=lambda each: -each.delay_s)[:_MAX_SERIES]:
        yield _where(each, len(found.slow)) + _who(each)


def _who(slow: Row) -> str:
    if slow.why_not:
        return f"{'Nobody' if slow.why_not == NO_EXCHANGE else 'Unknown'}: {slow.why_not}."
    if not slow.ranks:
        seen = slow.resolution_s and f" ({milliseconds(slow.resolution_s)} ms would be seen)"
        longer = f"{balance_words(slow.balanced, slow.chance)} " if slow.balanced else ""
        return f"{longer}No rank is late beyond chance{seen or ''}."
    words = " ".join(late_words(each, slow.chance) for each in slow.ranks[:3])
    more = f" So are {len(slow.ranks) - 3} more." if len(slow.ranks) > 3 else ""
    runs = "" if slow.looked_at == 1 else f" It is so in {slow.named_in} of {slow.looked_at} runs."
    others = "The other ranks wait" if slow.chance < 0.5 else "The other rank waits"
    low, high = (float("nan") if each is None else each for each in (slow.delay_low_s, slow.delay_high_s))
    delay = _part(Interval(value=slow.delay_s, low=low, high=high), slow.period_s)
    return f"{words}{more}{runs} {others} for that: {delay}."


def _growth(found: Explanation) -> Iterable[Said]:
    """Yield what the most workers of each series have more than its baseline, in ms per step."""
    parts = _parts(found.growth)

    def row(each: Row) -> Sequence[str]:
        of_step = (NOTHING if (s := each.parts_s[part]) is None else signed(milliseconds(s)) for part in parts)
        return (f"{each.workers}", each.base, signed(_ms(each.step_s)), *of_step)

    if found.why_no_growth:
        yield f"Unknown: {found.why_no_growth}."
    else:
        yield from _by_series(found.growth, _heads("against", "step, ms", parts=parts), row)


def _help(found: Explanation) -> Iterable[Said]:
    if not found.help:
        yield "Nothing stands out: no part but computing takes more than a few per cent of a step."
    for place, each in enumerate(found.help[:_MAX_HELP], 1):
        yield f"{place}. {each.what}{_gain(each)}"
        yield from [[f"   {each.command}"]] if each.command else []


def _gain(each: Help) -> str:
    if each.gain is None:
        return ""
    low, high = each.gain.low, each.gain.high
    ends = f" [{percent(low)}, {percent(high)}]" if known(low) and known(high) else ""
    return f": {each.kind} {signed(percent(each.gain.value))}{ends} {each.of}"


def _rests(found: Explanation) -> Iterable[Said]:
    steps = " to ".join(f"{each:,}" for each in sorted({found.steps, found.steps_most}))
    one = all(len(cell.runs) == 1 for cell in found.cells)
    what = "the steps of one run each, so that what differs from run to run is not in them" if one else "the repeats"
    yield f"{steps} steps of each rank after the warm-up; brackets: 95 % intervals from {what}."
    doubts = [each for each in found.doubts if not any(each.endswith(f"{said}.") for said in found.top.first)]
    for doubt in doubts[:_MAX_DOUBTS]:
        text = textwrap.shorten(doubt.rstrip("."), 3 * WIDE - 60, placeholder=" ...")
        yield f"- {text}{'.' * (not text.endswith('...'))}"
    if len(doubts) > _MAX_DOUBTS:
        yield f"- and {plural(len(doubts) - _MAX_DOUBTS, 'doubt')} more: --part account"


# ------------------------------------------------------------------------------ commands in which no step was seen

_COLUMNS: Mapping[str, str] = {
    "command": "command",
    "workers": "workers",
    "repeats": "repeats",
    "wall_s": "s",
    "cpu_s": "CPU s",
    "cores": "cores used",
    "rate": "",  # its unit
    "speedup": "speedup",
    "rss_mb_max": "memory, MB",
    "gpu_percent": "GPUs, %",
    "gpu_memory_mb": "GPU memory, MB",
    "gpu_power_w": "GPUs, W",
    "package_power_w": "processors, W",
}
"""What is known of a command, and the head of its column; sensors only where there are any."""
_SENSORS = tuple(_COLUMNS)[8:]
_INSIDE = (
    "Where the time goes inside is not known: steps are seen of PyTorch, and three lines in the loop mark them in any "
    "Python (docs/your_script.md)."
)


def command_rows(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row of _COLUMNS, and the unit of the rate, for each point of a run table's finished commands.

    Medians over repeats; None is unknown.
    """
    done = runs[(runs["backend"] == records.COMMAND) & (runs["status"] == "done")]
    rows = []
    for point in scaling_points(done).to_dict("records") if len(done) else ():
        own = done[(done["workers"] == point["workers"]) & (done["model"] == point["model"])]
        row = {"command": point["model"], "workers": point["workers"], "repeats": point["repeats"]}
        row |= {name: float(own[name].astype(float).median()) for name in ("wall_s", "cpu_s", *_SENSORS)}
        row |= {"cores": row["cpu_s"] / row["wall_s"] if row["wall_s"] else None, "speedup": point["speedup_wrapped"]}
        row |= {"rate": point["samples_per_s_median"], "unit": records.rate_unit(own["rate_from"].iloc[0])}
        rows.append({name: finite(value) for name, value in row.items()})
    return rows


def command_lines(runs: pd.DataFrame) -> list[str]:
    """Return what is known of the commands of a run table, for a terminal."""
    commands = runs[runs["backend"] == records.COMMAND]
    states = ", ".join(f"{count} {state}" for state, count in commands["status"].value_counts().items())
    rows = command_rows(runs)
    shown = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]
    heads = [_COLUMNS[name] or " or ".join(dict.fromkeys(row["unit"] for row in rows)) for name in shown]
    words = command_words(commands["rate_from"])
    table = table_of(heads, [tuple(_cell(row[name]) for name in shown) for row in rows], texts=(0,)) if rows else None
    return [
        f"{plural(len(commands), 'run')} ({states}) of {plural(commands['model'].nunique(), 'command')}: no steps seen",
        *(["", *(line.replace(THIN, ",") for line in to_lines(table)), ""] if table else []),
        f"{words[0].upper()}{words[1:]}.",
        _INSIDE,
    ]


def _cell(value: Any) -> str:
    if isinstance(value, str | int):
        return f"{value:,}" if isinstance(value, int) else value
    return rounded(value, 3) if known(value) else NOTHING
