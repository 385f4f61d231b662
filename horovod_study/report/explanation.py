"""The page of `horovod-study explain` for a terminal, the most important first: tables, and what they cannot say."""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study import records
from horovod_study.analysis.series.points import command_words, scaling_points, study_turns
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps.breakdown import PARTS
from horovod_study.analysis.steps.explanation import Explanation, Row, explain
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE
from horovod_study.errors import RecordError
from horovod_study.records import finite
from horovod_study.report.figures.inspection import balance_words, late_words
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import THIN, known, milliseconds, percent, quoted, rounded, signed
from horovod_study.text.tables import NOTHING, Group, Table, table_of, to_lines
from horovod_study.text.words import listed, plural, wrapped

WIDE = 100
_MAX_ROWS, _MAX_SERIES, _MAX_HELP, _MAX_DOUBTS = 10, 4, 5, 4  # lines that each part of the page has room for
_MOST_BESIDE = 200


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
        rows, lines = _of_commands(table)
        document, files = {"commands": rows}, {}
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
    same = ("model", "parameters", "device", "precision")
    for path in sorted(own.parent.glob(f"*/{records.MANIFEST}"))[:_MOST_BESIDE]:
        with suppress(RecordError):
            other = record if path.parent == own else records.read_run(path.parent)
            one, two = ([e.study, e.partition, *map(e.effective.get, same)] for e in (record, other))
            more = other.effective.get("workers") != record.effective.get("workers")
            found.setdefault(path.parent.name, more and one == two)
    return found


def page(found: Explanation, *, width: int = WIDE) -> list[str]:
    """Return the explanation as lines of at most `width` characters, but for tables and commands."""
    what, *first = _first(found)
    lines = [*wrapped(what, width), *(line for each in first for line in wrapped(each, width, "  ", "    "))]
    for title, said in (
        ("Where the time of a step goes", _time(found)),
        ("Who is slow", _slow(found)),
        ("What more workers add to a step", _growth(found)),
        ("What would help next", _help(found)),
        ("What this rests on", _rests(found)),
    ):
        lines += ["", title]
        for each in said:  # a text, or lines that stay as they are: of a table, or a command
            deeper = "  " + " " * len("".join(re.findall(r"^(?:- |\d\. )", "".join(each))))
            lines += wrapped(each, width, "  ", deeper) if isinstance(each, str) else [f"  {line}" for line in each]
    # Narrow spaces kept numbers whole while lines were wrapped; not every terminal shows them.
    return [line.replace(f"{THIN}%", " %").replace(THIN, ",").rstrip() for line in lines]


def _first(found: Explanation) -> Iterable[str]:
    """Yield what is told of, and what a reader must know before any number."""
    states = listed([f"{count} {state}" for state, count in found.states.items()])
    hosts = found.hosts[0] if len(found.hosts) == 1 else f"{len(found.hosts)} hosts"
    what = f"{found.names[0]}: {next(iter(found.states))}; {found.cells[0].series}"
    what = what if len(found.names) == 1 else f"{len(found.names)} runs ({states}), {len(found.last)} series"
    yield f"{what} on {hosts}" if found.hosts else what
    yield from (f"- {_where(found.top, found)}{each}." for each in found.top.first)
    if disturbed := [run for each in found.cells if each is not found.top for run in each.unsteady]:
        yield f"- disturbed, so that nothing is compared with them: {', '.join(disturbed[:3])}."


def _where(each: Row, found: Explanation) -> str:
    """Return what a sentence is about, where there are several series."""
    return f"{each.series}, {plural(each.workers, 'worker')}: " if len(found.last) > 1 else ""


def _table(
    found: Sequence[Row], heads: Mapping[str, Callable[[Row], str]], part: Callable[[Row, str], str], last: str = ""
) -> Iterable[str | list[str]]:
    """Yield a table with a row for each cell or growth, in a group for each series: `heads`, parts, and `last`."""
    names = [name for name in PARTS[:-1] if any(each.parts_s[name] is not None for each in found)]
    names += [last] if last else []
    series = list(dict.fromkeys(each.series for each in found))
    columns = table_of([*heads, *(name.replace("residual", "unexpl.") for name in names)], (), texts=()).columns
    groups = []
    for title in series[: _MAX_ROWS // 2]:
        own = [each for each in found if each.series == title]
        rows = ((*(make(each) for make in heads.values()), *(part(each, name) for name in names)) for each in own)
        groups.append(Group(title=title, rows=tuple(rows)))
    yield to_lines(Table(columns=columns, groups=tuple(groups)))
    if len(series) > len(groups):
        yield f"and {len(series) - len(groups)} series more: --part account"


def _time(found: Explanation) -> Iterable[str | list[str]]:
    """Yield shares of the step at each worker count, of many at the fewest and the most of a series; what is beside."""
    cells = found.cells
    if len(cells) > _MAX_ROWS:
        first = {cell.series: cell for cell in reversed(cells)}
        cells = tuple(cell for cell in cells if cell in (*first.values(), *found.last))

    def share(value: float | None, whole: float = 1.0) -> str:
        return NOTHING if value is None else percent(value / whole)

    heads: dict[str, Callable[[Row], str]] = {
        "workers": lambda cell: f"{cell.workers}",
        "samples/s": lambda cell: NOTHING if cell.samples_per_s is None else rounded(cell.samples_per_s),
        "efficiency": lambda cell: share(cell.efficiency),
        "step, ms": lambda cell: milliseconds(cell.step_s),
    }
    yield from _table(
        cells,
        heads,
        lambda cell, name: share(cell.outside_share) if name == "outside" else share(cell.parts_s[name], cell.step_s),
        "outside",
    )
    top, outside, whole = found.top, found.top.outside, found.top.outside_share
    if whole is None or outside is None:
        yield f"{_where(top, found)}Outside of steps: unknown."
    else:
        place = f", {rounded(outside.gap_s, 3)} s {outside.where}" if outside.where and whole >= 0.01 else ""
        if place and top.workers > 1 and top.outside_alone_s is not None:
            place += f" (1 worker: {rounded(top.outside_alone_s, 3)} s)"
        lost = f"{rounded(outside.seconds, 3)} s, {share(whole)} of all time"
        yield f"{_where(top, found)}Outside of steps: {lost}{place}."
    unseen = (top.parts_s["residual"] or 0.0) / top.step_s * (1 - (whole or 0.0))
    for kind, words, least in (("outside", "outside of steps", whole or 0.0), ("residual", "outside all laps", unseen)):
        if own := [each for each in top.stacks if each["where"] == kind]:
            parts = ", ".join(f"{100 * each['share']:.0f} in {each['name']}" for each in own[:3])
            yield f"Of all time {words} {percent(max(least, own[0]['share']))}, of it {parts}."
    several = [cell for cell in found.last if cell.workers > 1]
    yield from (_where(cell, found) + _communication(cell) for cell in several[:_MAX_SERIES])


def _communication(cell: Row) -> str:
    """Return what communication costs a step, what of it is waiting, and both by leaving it out."""
    costs = {"exposed": cell.exposed_s, "waiting for the last rank": cell.waiting_s}
    told = [f"{words}: {_part(cost, cell.step_s)}" for words, cost in costs.items() if cost is not None]
    told += ["no gradients are averaged"] * (cell.apart == "none" and bool(told))
    if not told:
        told = [f"that no computing hides: {'none' if cell.why_not == NO_EXCHANGE else 'unknown'}, {cell.why_not}"]
    if cell.left_out_s is not None:
        told.append(f"together, by leaving it out: {_part(cell.left_out_s, cell.step_s)}")
    return f"Communication {'; '.join(told)}."


def _part(seconds: Interval, step_s: float) -> str:
    return f"{_ms(seconds)} ms, {percent(seconds.value / step_s)} of the step"


def _ms(seconds: Interval) -> str:
    """Return ms with their interval."""
    ends = (1e3 * each for each in (seconds.value, seconds.low, seconds.high))
    return quoted(*ends) if seconds.known else milliseconds(seconds.value)


def _slow(found: Explanation) -> Iterable[str]:
    if not found.slow:
        yield "One worker has nobody to wait for."
    for slow in sorted(found.slow, key=lambda each: -each.delay_s)[:_MAX_SERIES]:
        words = [balance_words(slow.balanced, slow.chance), "No rank is late beyond chance."]
        if slow.why_not:
            words = [f"{'Nobody' if slow.why_not == NO_EXCHANGE else 'Unknown'}: {slow.why_not}."]
        elif slow.ranks:
            low, high = (float("nan") if each is None else each for each in (slow.delay_low_s, slow.delay_high_s))
            delay = _part(Interval(value=slow.delay_s, low=low, high=high), slow.period_s)
            words = [late_words(each, slow.chance) for each in slow.ranks[:3]]
            words.append(
                f"So in {slow.named_in} of {slow.looked_at} runs. What the other ranks wait for that: {delay}."
            )
        elif slow.resolution_s:
            words.append(f"({milliseconds(slow.resolution_s)} ms would be seen.)")
        yield _where(slow, found) + " ".join(filter(None, words))


def _growth(found: Explanation) -> Iterable[str | list[str]]:
    """Yield what the most workers of each series have more than its baseline, in ms per step."""
    heads: dict[str, Callable[[Row], str]] = {
        "workers": lambda each: f"{each.workers}",
        "against": lambda each: str(each.base),
        "step, ms": lambda each: signed(_ms(each.step_s)),
    }
    if found.why_no_growth:
        yield f"Unknown: {found.why_no_growth}."
    else:
        yield from _table(
            found.growth, heads, lambda e, name: NOTHING if (s := e.parts_s[name]) is None else signed(milliseconds(s))
        )


def _help(found: Explanation) -> Iterable[str | list[str]]:
    if not found.help:
        yield "Nothing stands out: no part but computing takes more than a few per cent of a step."
    for place, each in enumerate(found.help[:_MAX_HELP], 1):
        gain = ""
        if each.gain is not None:
            ends = [percent(end) for end in (each.gain.low, each.gain.high) if known(end)]
            interval = f" [{', '.join(ends)}]" if len(ends) > 1 else ""
            gain = f": {each.kind} {signed(percent(each.gain.value))}{interval} {each.of}"
        yield f"{place}. {each.what}{gain}"
        yield [f"   {each.command}"] if each.command else []


def _rests(found: Explanation) -> Iterable[str]:
    steps = " to ".join(f"{each:,}" for each in sorted({found.steps, found.steps_most}))
    one = all(len(cell.runs) == 1 for cell in found.cells)
    what = "the steps of one run each, so that what differs from run to run is not in them" if one else "the repeats"
    yield f"{steps} steps of each rank after the warm-up; brackets: 95 % intervals from {what}."
    doubts = [each for each in found.doubts if not any(each.endswith(f"{said}.") for said in found.top.first)]
    yield from (f"- {textwrap.shorten(each, 3 * WIDE - 60, placeholder=' ...')}" for each in doubts[:_MAX_DOUBTS])
    if len(doubts) > _MAX_DOUBTS:
        yield f"- and {plural(len(doubts) - _MAX_DOUBTS, 'doubt')} more: --part account"


_SENSORS = {
    "rss_mb_max": "memory, MB",
    "gpu_percent": "GPUs, %",
    "gpu_memory_mb": "GPU memory, MB",
    "gpu_power_w": "GPUs, W",
    "package_power_w": "processors, W",
}
_COLUMNS = ("command", "workers", "repeats", "wall_s", "cpu_s", "cores", "rate", "speedup", *_SENSORS)


def _of_commands(runs: pd.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row of _COLUMNS, and the unit of the rate, for each point of a run table's finished commands; and lines
    for a terminal. Medians over repeats; None is unknown.
    """
    commands, rows = runs[runs["backend"] == records.COMMAND], []
    done = commands[commands["status"] == "done"]
    for point in scaling_points(done).to_dict("records") if len(done) else ():
        own = done[(done["workers"] == point["workers"]) & (done["model"] == point["model"])]
        row = {"command": point["model"], "workers": point["workers"], "repeats": point["repeats"]}
        row |= {name: float(own[name].astype(float).median()) for name in ("wall_s", "cpu_s", *_SENSORS)}
        row |= {"cores": row["cpu_s"] / row["wall_s"] if row["wall_s"] else None, "speedup": point["speedup_wrapped"]}
        row |= {"rate": point["samples_per_s_median"], "unit": records.rate_unit(own["rate_from"].iloc[0])}
        rows.append({name: finite(value) for name, value in row.items()})
    heads = {**_SENSORS, "wall_s": "s", "cpu_s": "CPU s", "cores": "cores used"}
    heads["rate"] = " or ".join(dict.fromkeys(str(row["unit"]) for row in rows))
    shown = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return rounded(value, 3).replace(THIN, ",")
        return NOTHING if value is None else f"{value:,}" if isinstance(value, int) else f"{value}"

    cells = [tuple(cell(row[name]) for name in shown) for row in rows]
    table = to_lines(table_of([heads.get(name, name) for name in shown], cells, texts=(0,))) if rows else []
    states = ", ".join(f"{count} {state}" for state, count in commands["status"].value_counts().items())
    what, words = plural(commands["model"].nunique(), "command"), command_words(commands["rate_from"])
    return rows, [
        *(f"{plural(len(commands), 'run')} ({states}) of {what}: no steps seen", "", *table, ""),
        f"{words[0].upper()}{words[1:]}.",
        "Where the time goes inside is not known: steps are seen of PyTorch, and three lines in the loop mark them in "
        "any Python (docs/your_script.md).",
    ]
