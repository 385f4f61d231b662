"""What verbs print: the page of `explain`, the account of steps, synchronisation, traces, timers, equality, laws."""

import math
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from horovod_study import records
from horovod_study.analysis.series.points import command_words, scaling_points, study_turns
from horovod_study.analysis.stats import Interval
from horovod_study.analysis.steps import traces
from horovod_study.analysis.steps.accounting import CLOSES_S, FAR, Accounting
from horovod_study.analysis.steps.attribution import Attribution
from horovod_study.analysis.steps.breakdown import PARTS, shown
from horovod_study.analysis.steps.explanation import Explanation, Inspection, Row, explain, stall_words
from horovod_study.analysis.steps.rank_steps import CAUSES, NO_EXCHANGE, Lateness, Stragglers
from horovod_study.analysis.steps.timeline import Timeline
from horovod_study.analysis.steps.traces import COLUMNS
from horovod_study.errors import RecordError, refuse
from horovod_study.records import finite
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import MINUS, THIN, fixed, known, milliseconds, percent, quoted, rounded, signed
from horovod_study.text.tables import NOTHING, Column, Group, Table, filled, grouped, table_of, to_lines
from horovod_study.text.words import cut, listed, plural, printable, span, wrapped

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


def _by_series(
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
    yield from _by_series(
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
    told = [f"{words}: {_of_step(cost, cell.step_s)}" for words, cost in costs.items() if cost is not None]
    told += ["no gradients are averaged"] * (cell.apart == "none" and bool(told))
    if not told:
        told = [f"that no computing hides: {'none' if cell.why_not == NO_EXCHANGE else 'unknown'}, {cell.why_not}"]
    if cell.left_out_s is not None:
        told.append(f"together, by leaving it out: {_of_step(cell.left_out_s, cell.step_s)}")
    return f"Communication {'; '.join(told)}."


def _of_step(seconds: Interval, step_s: float) -> str:
    return f"{_ms(seconds)} ms, {percent(seconds.value / step_s)} of the step"


def _slow(found: Explanation) -> Iterable[str]:
    if not found.slow:
        yield "One worker has nobody to wait for."
    for slow in sorted(found.slow, key=lambda each: -each.delay_s)[:_MAX_SERIES]:
        words = [balance_words(slow.balanced, slow.chance), "No rank is late beyond chance."]
        if slow.why_not:
            words = [f"{'Nobody' if slow.why_not == NO_EXCHANGE else 'Unknown'}: {slow.why_not}."]
        elif slow.ranks:
            low, high = (float("nan") if each is None else each for each in (slow.delay_low_s, slow.delay_high_s))
            delay = _of_step(Interval(value=slow.delay_s, low=low, high=high), slow.period_s)
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
        yield from _by_series(
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


def _of_commands(runs: pd.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each point of a run table's finished commands, and lines for a terminal.

    Medians over repeats; None is unknown.
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
    rates = " or ".join(dict.fromkeys(str(row["unit"]) for row in rows))
    heads = {"wall_s": "s", "cpu_s": "CPU s", "cores": "cores used", "rate": rates, "speedup": "speedup", **_SENSORS}
    counts = (Column(name, "count", name) for name in ("workers", "repeats"))
    columns = (Column("command", "text", "command"), *counts, *(Column(heads[name], "number", name) for name in heads))
    made = filled(Table(columns=columns, groups=grouped(columns, [("", rows)])))
    table = [line.replace(THIN, ",") for line in to_lines(made)] if rows else []
    states = ", ".join(f"{count} {state}" for state, count in commands["status"].value_counts().items())
    what, words = plural(commands["model"].nunique(), "command"), command_words(commands["rate_from"])
    return rows, [
        *(f"{plural(len(commands), 'run')} ({states}) of {what}: no steps seen", "", *table, ""),
        f"{words[0].upper()}{words[1:]}.",
        "Where the time goes inside is not known: steps are seen of PyTorch, and three lines in the loop mark them in "
        "any Python (docs/your_script.md).",
    ]


_MOST_RANKS = 16  # so many ranks are printed; beyond that those that differ most from the others


def result_lines(found: Inspection) -> list[str]:
    """Return what the command prints."""
    window = f"{plural(found.window['steps'], 'step', ',')} from step {found.window['first_step']:,} on are looked at"
    left_out = f"{found.window['excluded']:,} before them are excluded ({found.window['by']})"
    texts = [headline(found), f"{window}; {left_out}."]
    gap, rank = max(((each.gap, each.rank) for each in found.ranks if each.gap is not None), default=(None, 0))
    if gap is not None:
        unexplained = 100 * max((each.laps_s["residual"] or 0.0) / each.step_s for each in found.ranks)
        never = f" (rank {rank}; do not quote their shares)" if gap > 1e-6 else ""
        within = f"The laps add up to the step within {100 * gap:.1f} %{never}"
        texts.append(f"{within}; {unexplained:.1f} % of it are outside all laps (unexplained).")
    texts += ["", *_rank_table(found), "", *_straggler_lines(found.stragglers)]
    if (pop := found.pop) is not None:
        texts.append(
            f"Parallel efficiency {pop.parallel:.2f} = load balance {pop.load_balance:.2f} x communication efficiency "
            f"{pop.communication:.2f} (POP; useful is all that is not sync)."
        )
    if found.stalls is not None:
        texts.append(f"Stalls, steps of more than {FAR:g} times the median: {stall_words(found.stalls)}.")
    if found.ablation is not None:
        texts.append(f"Communication by leaving it out: {found.ablation.sentence.rstrip('.')}.")
    texts += system_lines(found)
    if "timeline" in found.recorded_beside:
        command = f"horovod-study explain --part timeline {shlex.quote(found.directory)}"
        texts.append(f"Horovod timeline: {found.recorded_beside['timeline'][0]}; read it with `{command}`.")
    texts += [f"Profile: {path}" for path in found.recorded_beside.get("profile", ())]
    texts += [f"Doubt: {each}." for each in found.doubts]
    return [line for text in texts for line in ([text] if text[:1] in ("", " ") else wrapped(text, 110, deeper="  "))]


def headline(found: Inspection) -> str:
    """Return in one line what ran."""
    facts, hosts = found.facts, found.facts["hosts"]
    library = style.runtime_label(f"{facts['backend'] or ''}", f"{facts['transport'] or ''}")
    reduction = f" ({facts['reduction']})" if facts["workers"] > 1 and facts["reduction"] else ""
    words = [
        *(f"{found.name}: {found.state}", plural(facts["workers"], "worker"), f"{library}{reduction}"),
        f"on {hosts[0] if len(hosts) == 1 else plural(len(hosts), 'host')}",
        f"batch {facts['batch']} each" if facts["batch"] else "",
        f"{facts['device'] or ''}",
        f"{facts['samples_per_s']:,.0f} samples/s" if facts["samples_per_s"] else "",
        f"started {facts['started']}",
    ]
    return ", ".join(filter(None, words))


def _rank_table(found: Inspection) -> list[str]:
    """Return the mean step of each rank in ms as a table: of many, the ranks that differ most from the others."""
    late = {each.rank: abs(each.value_s) for each in found.stragglers.ranks}
    far = sorted(found.ranks, key=lambda each: (-late.get(each.rank, 0.0), each.rank))[:_MOST_RANKS]
    chosen = sorted(far, key=lambda each: each.rank)
    values = [
        {**{lap: rank.laps_s[lap] for lap in PARTS[:-1]}, "step": rank.step_s, "own": rank.own_s, "wait": rank.wait_s}
        for rank in chosen
    ]
    heads = [name for name in values[0] if name == "sync" or any(each[name] is not None for each in values)]
    rows = [
        (f"{rank.rank}", rank.host or NOTHING, *(_ms_of(each[name]) for name in heads))
        for rank, each in zip(chosen, values, strict=True)
    ]
    left_out = f"; the {len(rows)} of {len(found.ranks)} ranks that differ most" if len(rows) < len(found.ranks) else ""
    about = f"ms per step, means{left_out}; wait: for the last rank; sync {NOTHING}: inside another lap, not visible"
    named = ("unexplained" if head == "residual" else head for head in heads)
    return [about, *to_lines(table_of(("rank", "host", *named), rows, texts=(0, 1)), indent=2)]


def _straggler_lines(late: Stragglers) -> list[str]:
    """Return who is slow, by how much and where, or why that cannot be determined."""
    if late.skew_s is None:
        return [f"Stragglers: {late.why_not}."]
    chance = 1 / len(late.ranks)
    who = [late_words(each, chance) for each in late.named[:_MOST_RANKS]]
    if not who:
        who = [f"No rank is slower than the others (resolution {_ms_of(late.resolution_s)} ms)."]
        who += [balance_words(late.balanced, chance)] if late.balanced else []
    skew = ", ".join(f"{name} {_ms_of(value)} ms" for name, value in late.skew_s.items())
    return [
        f"Stragglers: {who[0]}",
        *who[1:],
        f"Skew, the wait of a rank for the last one: {skew}; {100 * late.skew_share:.1f} % of the step; that of the "
        f"first rank {_ms_of(late.spread_s)} ms ({', '.join(late.laps)}; {late.steps:,} steps; 95 % intervals from "
        f"blocks of {late.block_steps} steps).",
    ]


def balance_words(balanced: Sequence[Lateness], chance: float) -> str:
    """Return which ranks are longer in one lap and shorter in others; of data alone, only where no other lap is.

    `chance`: the share of steps in which a rank is the last one by chance, 0.5 for one of two.
    """
    words = []
    for each in ([each for each in balanced if each.cause != "data"] or balanced)[: 1 if chance == 0.5 else 3]:
        lap, less = min(each.laps_s.items(), key=lambda lap: lap[1])
        words.append(
            f"{_rank(each)} takes {_late(each)} ms longer per step {CAUSES[each.cause]}, and "
            f"{milliseconds(-less)} ms less {CAUSES[lap]}."
        )
    return " ".join(words)


def late_words(late: Lateness, chance: float) -> str:
    """Return by how much a rank is late, in which lap, and in how many steps it is the last one."""
    quick = late.quickest_s < 0.2 * late.cause_s  # of its lateness, it is as quick as the others itself
    return (
        f"{_rank(late)} is {_late(late)} ms late per step {CAUSES[late.cause]}, and is the last one in "
        f"{percent(late.last_share)} of the steps (by chance: {percent(chance)})."
        f"{' Its quickest steps are not late: at times something holds it up, such as another program.' * quick}"
    )


def _rank(late: Lateness) -> str:
    return f"Rank {late.rank}{f' on {late.host}' if late.host else ''}"


def _late(late: Lateness) -> str:
    return quoted(*(1e3 * each for each in (late.cause_s, late.cause_low_s, late.cause_high_s)))


_SYSTEM = ("cpu_percent", "rss_mb", "pss_mb", "gpu_percent", "gpu_memory_mb", "power_w")


def system_lines(found: Inspection) -> list[str]:
    """Return the use of processors, memory and power as a table."""
    rows = [
        (row["host"], row["part"], row["quantity"], f"{row['mean']:,.0f}", f"{row['max']:,.0f}")
        for row in found.system["rows"]
        if row["quantity"] in _SYSTEM
    ]
    table = table_of(("host", "part", "quantity", "mean", "largest"), rows[: 6 * _MOST_RANKS], texts=(0, 1, 2))
    return ["System, over the timed steps", *to_lines(table, indent=2)] if rows else []


def _ms_of(seconds: float | None) -> str:
    """Return a time in ms with three digits, without its unit."""
    if seconds is None:
        return NOTHING
    value = 1e3 * seconds
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


HEADS = {**{part: part for part in PARTS}, "residual": "unexplained"}
_CELL = ["series", "workers", "nodes"]


def account_lines(found: Accounting, gate: SimpleNamespace | None) -> list[str]:
    """Return the whole account as lines."""
    doubts = [f"  {line}" for doubt in found.doubts for line in wrapped(doubt, 112, deeper="  ")]
    notes = ["incomplete or doubtful runs", *doubts] if doubts else []
    blocks = (_step_lines(found), _residual_lines(found), notes, gate_lines(gate))
    return [line for block in blocks if block for line in ("", *block)][1:]


def _step_lines(found: Accounting) -> list[str]:
    """Return ms per step and shares of every run, and of every worker count."""
    parts, groups = shown(found.cells, PARTS), list[Group]()

    def row(label: str, seconds: Mapping[Any, float], *, shares: bool = True) -> tuple[str, ...]:
        told = [fixed(1e3 * seconds[part], 3) if known(seconds[part]) else NOTHING for part in parts]
        of = [seconds[part] / seconds["step"] if seconds["step"] > 0 else math.nan for part in parts]
        return label, *(f"{ms} {f'({_share(share)})' * shares}" for ms, share in zip(told, of, strict=True))

    for _, cell in found.cells.groupby(_CELL, sort=False):
        rows, laps, head = list[tuple[str, ...]](), cell.set_index("lap"), cell.iloc[0]
        for run in found.runs:
            if found.series[run.run] == head["series"] and run.workers == head["workers"]:
                rows.append(row(f"  {cut(run.run, 29, first=0, dots='…')}", run.parts_s))
                ranks = run.ranks if len(found.runs) == 1 and len(run.ranks) > 1 else ()
                rows += [row(f"    rank {rank.rank} on {rank.host}", rank.parts_s) for rank in ranks]
        if repeats := max(0, laps["repeats"].iloc[0] - 1):
            rows.append(row(f"  mean of {repeats + 1} repeats", laps["mean_s"].to_dict()))
            rows.append(row(f"  median of {repeats + 1} (no sum)", laps["median_s"].to_dict(), shares=False))
        where = f"{plural(head['workers'], 'worker')} on {plural(head['nodes'], 'node')}"
        groups.append(Group(title=f"{head['series']}, {where}", rows=tuple(rows)))
    columns = table_of(("ms per step, and share of it", *(HEADS[part] for part in parts)), ()).columns
    lines = to_lines(Table(columns=columns, groups=tuple(groups)))
    untold = [f"{run.run}: no account: {run.why_not}" for run in found.runs if run.why_not]
    return lines + [line for each in untold for line in wrapped(each, 110, deeper="  ")]


def _residual_lines(found: Accounting) -> list[str]:
    """Return the table of what no part covers, whether the steps add up, and which steps were left out."""
    heads = ("mean", "median", "p99", "worst", "in step", "of rank", "steps", "not closed")
    rows = []
    for run in found.runs:
        if (shares := run.residual) is not None:
            counts = (f"{sum(getattr(rank, name) for rank in run.ranks):,}" for name in ("steps", "open_steps"))
            told = (_share(each) for each in (shares.mean, shares.median, shares.p99, shares.worst))
            name = f"  {cut(run.run, 29, first=0, dots='…')}"
            rows.append((name, *told, f"{shares.worst_step:,}", f"{shares.worst_rank}", *counts))
    lines = to_lines(table_of(("unexplained, share of the step", *heads), rows)) if rows else []
    gaps = [rank.gap_s for run in found.runs if not run.why_not for rank in run.ranks]
    if gaps:
        lines.append(
            f"the parts of a step miss it by at most {max(gaps) * 1e6:.3g} us; more than {CLOSES_S * 1e6:g} us counts "
            "as not adding up"
        )
    for reason in dict.fromkeys(run.excluded_by for run in found.runs if run.excluded):
        left_out = [run.excluded for run in found.runs if run.excluded_by == reason]
        lines.append(f"excluded {span(min(left_out), max(left_out))} steps of each rank ({reason}), kept in the rows")
    return lines


def gate_lines(gate: SimpleNamespace | None) -> list[str]:
    """Return the verdict of `--max-residual`: one line per thing that is over it."""
    if gate is None:
        return []
    judged = f"{plural(gate.runs, 'run')} and {plural(gate.growths, 'growth')} T(N) {MINUS} T(1) judged"
    verdict = "over it: " + plural(len(gate.over), "thing") if gate.over else "nothing is over it"
    return [
        *(f"over: {each.text}" for each in gate.over),
        *(f"not judged: {each}" for each in gate.not_judged),
        f"at most {100 * gate.allowed:g} % unexplained is allowed; {judged}; {verdict}",
    ]


def _share(value: float) -> str:
    return f"{fixed(100 * value, 2)} %" if math.isfinite(value) else NOTHING


_ROWS = (
    ("step", "step"),
    ("sync", "synchronisation"),
    ("floor", "  transfer floor"),
    ("skew", "  skew"),
    ("runtime", "  runtime"),
    ("least", "    where nothing disturbs"),
    ("pack", "    packing, norm"),
    ("rest", "    cycle, negotiation, other"),
    ("unexplained", "  unexplained"),
)


def write_attribution(found: Attribution, directory: Path) -> list[Path]:
    """Write attribution.json and attribution.txt (the table); return the paths."""
    lines = [*attribution_table(found), "", *(f"Doubt: {text}." for text in found.doubts)]
    return write_result(directory, {"attribution.json": finite(found), "attribution.txt": lines})


def attribution_table(found: Attribution) -> list[str]:
    """Return the parts of every arm: ms per step with 95 % intervals, share of the synchronisation and of the step."""
    lines = []
    for arm in found.arms:
        hooks, rounds = ", hooks" * (arm.reduction == "hooks"), f", {plural(arm.rounds, 'round')}" * bool(arm.rounds)
        lines.append(
            f"{style.runtime_label(arm.backend, arm.transport)}{hooks}, {arm.arm} ({plural(arm.workers, 'worker')}, "
            f"batch {arm.batch}, {plural(len(arm.runs), 'run')}{rounds})"
        )
        rows, wholes = [], [arm.seconds[whole].value if whole in arm.seconds else 0.0 for whole in ("sync", "step")]
        for name, words in _ROWS:
            if (own := arm.seconds.get(name)) is not None:  # of the step itself no share of the synchronisation
                of = [f"{fixed(100 * own.value / whole, 1)} %" if whole > 0 else "" for whole in wholes]
                rows.append((words, _told(own, 1e3), "" if name == "step" else of[0], of[1]))
        lines += to_lines(table_of(("", "ms", "of sync", "of step"), rows), indent=2)
        told = [f"{name} {_told(each, 100, ' %')}" for name, each in arm.efficiency.items()]
        beside = [f"efficiency (100 %: {arm.baseline}): {', '.join(told)}"] if told else []
        if arm.over_shipped is not None:
            beside.append(f"step over that with shipped settings: {_told(arm.over_shipped, 100, ' %')}")
        if arm.why_not:
            left = arm.seconds.get("exposed")
            rest = f"{_told(left, 1e3)} ms are transfer and runtime that backward did not hide; " if left else ""
            beside.append(f"not decomposed: {rest}{arm.why_not}")
        lines += [line for each in beside for line in wrapped(each, 100, "  ", "    ")] + [""]
    return lines[:-1]


def _told(estimate: Interval, scale: float, unit: str = "") -> str:
    value, _, ends = quoted(*(scale * each for each in (estimate.value, estimate.low, estimate.high))).partition(" ")
    return f"{value}{unit} {ends}".rstrip()


_THOUGHT = {
    "negotiation": "waiting until every rank has announced the tensor",
    "queue": "waiting for the operation to begin",
    "copy": "into and out of the fusion buffer",
    "operation": "the transfer",
    "other": "other activities",
    "rest": "the runtime's own work",
}


def timeline_lines(found: Timeline, *, source: str) -> list[str]:
    """Return what the command prints: what was read, the phases together, and which rank came last."""
    every_s = found.cycles["median_s"]
    between = "" if every_s is None else f" ({every_s * 1e3:.3g} ms from one to the next, median)"
    together = []
    for name, own in found.together.items():
        activities = found.table.loc[found.table["phase"] == name, "activity"].unique()
        named = f" ({', '.join(activities)})" if name in ("operation", "other") and len(activities) else ""
        share = "" if own["share"] is None else percent(own["share"], decimals=1)
        together.append((name, f"{own['per_step_s'] * 1e3:.3f}", share, f"{_THOUGHT[name]}{named}"))
    last = "Which rank came last is not in the file; --cache-capacity 0 notes it, but negotiates more."
    if found.last_rank is not None:
        rank, count = max(found.last_rank.items(), key=lambda each: (each[1], -each[0]))
        of = plural(sum(found.last_rank.values()), "negotiation")
        last = f"Rank {rank} announced its tensor last in {count} of {of}."
    return [
        source,
        f"{plural(found.steps, 'step')}, {plural(found.collectives, 'collective')} of "
        f"{plural(len(found.tensors), 'tensor')} in {plural(sum(found.operations.values()), 'operation')}, "
        f"{plural(found.cycles['count'] or 0, 'cycle')}{between}",
        "",
        f"all tensors together, each moment counted once: under way for {found.busy_s * 1e3:.3f} ms per step",
        *to_lines(table_of(("phase", "ms per step", "share", ""), together, texts=(0, 3))),
        "",
        f"{last} Tensor by tensor: timeline.csv.",
    ]


_SHOWN = 20  # sizes of collectives
_RANKS = ("rank", "host", "steps", *("comm." if name == "communication" else name for name in COLUMNS), "last in")
_SIZES = ("collective", "bytes", "ranks", "calls", "time", "shortest", "of all")


def foreign(places: Sequence[Path], out: Path | None) -> dict[str, Any] | None:
    """Return what files of other tools among `places` say: document, lines, files, doubts; None where there are none.

    Traces of torch.profiler, one of each rank: laps, communication that computing does not cover, who is late. Records
    of NCCL Inspector: collectives by size, and who comes last. ConfigError: places of several kinds.
    """
    for find, name in ((traces.trace_paths, "rank_traces"), (traces.inspector_paths, "nccl_inspector")):
        paths = {place: find(place) for place in places}
        if any(paths.values()):
            refuse("", *((not own, f"explain: {place} is of another kind than the others; name one kind")
                         for place, own in paths.items()))  # fmt: skip
            every = [path for own in paths.values() for path in own]
            if name == "rank_traces":
                read = [traces.read_trace(traces.trace_document(path), source=f"{path}") for path in every]
                lines = rank_lines(found := traces.compare(read))
            else:
                found = traces.inspect({f"{path.resolve()}": traces.inspector_lines(path) for path in every})
                lines = inspector_lines(found)
            document = finite(found)
            files = write_result(out, {f"{name}.txt": lines, f"{name}.json": document}) if out else None
            return {"document": document, "lines": lines, "files": files, "doubts": found["doubts"]}
    return None


def rank_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of ranks that `compare` made (ms of a step, means over steps), then what it says."""
    rows = [
        (str(each["rank"]), each["host"] or NOTHING, str(each["steps"]),
         *(milliseconds(s) if known(s := each["seconds"][name].value) else NOTHING for name in COLUMNS),
         percent(each["last"]) if known(each["last"]) else NOTHING)
        for each in found["ranks"]
    ]  # fmt: skip
    said = ["ms of a step; comm.: communication; exposed: what of it no computing covers", ""]
    who = "rank {rank}" if found["named"] else "the process of {source}"
    bare = [each for each in found["ranks"] if known(each["seconds"]["exposed"].value)]
    if bare:
        worst = max(bare, key=lambda each: each["seconds"]["exposed"].value)
        exposed, step = worst["seconds"]["exposed"], worst["seconds"]["step"].value
        share = f", {percent(exposed.value / step)} of its step" if known(step) else ""
        said.append(f"Exposed communication is largest on {who.format_map(worst)}: {_ms(exposed, 1e3)} ms{share}.")
    late = next((each for each in found["ranks"] if each["source"] == found["late_file"]), None)
    if late is not None:
        name = who.format_map(late) + (f" on {late['host']}" if late["host"] else "")
        said.append(
            f"{name[0].upper()}{name[1:]} comes {_ms(late['seconds']['late'], 1e3)} ms after the first one to its "
            f"collectives, and is the last one in {percent(late['last'])} of the steps; longer: {found['cause']}."
        )
    elif known(found["ranks"][0]["last"]):
        said.append("No rank is later than the others beyond doubt.")
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(_RANKS, rows, texts=(1,))), *said)]


def _ms(seconds: Interval, factor: float = 0.0) -> str:
    """Return a time with its interval, in ms; by a `factor` one without an interval, too, has all its digits."""
    ends = ((factor or 1e3) * each for each in (seconds.value, seconds.low, seconds.high))
    return quoted(*ends) if seconds.known or factor else milliseconds(seconds.value)


def inspector_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of collectives that `inspect` made, those that take most time first, then what it says."""
    whole = sum(each["total_s"] for each in found["sizes"])
    rows = [
        (each["kind"], *(f"{each[name]:,}" for name in ("bytes", "ranks", "calls")),
         *(_ms(each[name], 1e6) for name in ("time", "shortest")), percent(each["total_s"] / whole))
        for each in found["sizes"]
    ]  # fmt: skip
    said = [f"and {len(rows) - _SHOWN} sizes more, all in nccl_inspector.json (--out)"] * (len(rows) > _SHOWN)
    said += ["us of the mean rank and of the one that came last, medians; of all: of the time", ""]
    who = "No rank comes later than the others beyond doubt."
    if late := found["late"]:
        host = f" on {late['host']}" if late["host"] else ""
        who = (
            f"Rank {late['rank']}{host} of communicator {late['communicator']} comes {_ms(late['late'], 1e6)} us after "
            f"the first one, and is the last one to {percent(late['last'])} of its collectives."
        )
    return [line.replace(THIN, " ") for line in (*to_lines(table_of(_SIZES, rows[:_SHOWN])), *said, who)]


def timers_text(costs: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]) -> str:
    """Return everything as tables, and the verdicts; `costs`: of `timer_cost`, `cases`: what was measured."""
    machine = cases[0]["environment"]
    head = (
        f"# {machine['cpu_model']}, {machine['cores']} cores, PyTorch {machine['torch']}; {cases[0]['measured']}\n"
        "# overhead: against mode off in blocks of steps that alternated, trimmed mean over the rounds with its 95 % "
        "interval;\n"
        "# writing: the part of it that rows take; calls: what they take alone, everything in the cache"
    )
    blocks, verdicts = [head], []
    for cost in costs:
        where, rows = plural(cost["workers"], "worker"), [("off", f"{cost['off_step_s'] * 1e3:.3f}", *[""] * 4)]
        for each in (cost["control"], *cost["variants"]):
            ends = "" if each["low"] is None else f"[{each['low']:+.2f}, {each['high']:+.2f}]"
            calls = "" if each["calls_us"] is None else f"{each['calls_us']:.1f}"
            shares = f"{each['percent']:+.2f} %", ends, f"{each['writing_percent']:+.2f} %"
            name = "off again (control)" if each["way"] == "control" else each["way"]
            rows.append((name, f"{each['step_s'] * 1e3:.3f}", *shares, calls))
        about = f"batch {cost['batch']}, {where} ({cost['runtime']}), {cost['device']}: {cost['rounds']} rounds of "
        about += f"{cost['steps_per_block']} steps each, {cost['seconds']:.0f} s"
        heads = ("", "step, ms", "overhead", "95 % interval", "writing", "calls, us")
        blocks.append("\n".join([about, *to_lines(table_of(heads, rows))]))
        verdicts.append(f"batch {cost['batch']}, {where}: {cost['verdict']}")
    return "\n\n".join([*blocks, "\n".join(verdicts)])


Case = Mapping[str, Any]
_ERRORS = ["relative_error", "max_error", "gradient_error", "gradient_error_later"]
_KEYS = ["runtime", "workers", "reduction", "dtype", "shards", "batch", "steps", "optimizer", "lr"]
_KINDS = (
    *("", "parameters\n||p-q||/||q||", "largest\nelement", "gradient\nin step 1", "gradient\nlater"),
    *("float32 rounding\nof the gradient", "moved by\nat least", ""),
)
_MOST = 8  # failures of one reason each


def _frame(cases: Sequence[Case]) -> pd.DataFrame:
    """Return a row for each case and tensor; an error that is no number is NaN."""
    about = [*_KEYS, "passed", "judged", "float32_rounding"]
    rows = [{**case, **each, "tensor": each["name"]} for case in cases for each in case["tensors"]]
    return pd.DataFrame(rows, columns=[*about, "tensor", *_ERRORS]).astype(dict.fromkeys([*_ERRORS, about[-1]], float))


def equality_text(result: Mapping[str, Any]) -> str:
    """Return the tables, what is the same in both kinds of training, what was left out, and the verdict."""
    cases = [case for case in result["cases"] if case["tensors"]]
    rows = _frame(cases)
    parts = [
        f"Parallel against sequential training, {plural(result['steps'], 'step', ',')} of at most "
        f"{plural(result['batch'], 'curve', ',')}: relative error ||p - q|| / ||q|| of every\nweight and bias p "
        "against the sequential q, the worst of all ranks, of even and uneven shards and of the optimisers."
        + (f"\nWrong on purpose: --break {result['broken']}." if result["broken"] else "")
    ]
    parts += [_tensors(rows[rows["dtype"] == dtype], bound) for dtype, bound in result["bounds"].items()]
    if cases:
        told = []  # what else was measured, the worst of all cases of a precision and an optimiser
        for (dtype, optimizer), own in rows.groupby(["dtype", "optimizer"], sort=False):
            name, rounding = f"{dtype} {optimizer}", own["float32_rounding"].max()
            errors = [*own[_ERRORS].fillna(math.inf).max(), rounding, min(result["moved"][name].values())]
            told.append([name, *map(_number, errors), "judged" if own["judged"].iloc[0] else "reported"])
        parts.append("\n".join(to_lines(table_of(_KINDS, told, texts=(0, 7)))))
        held = [sum(case[f"same_{name}"] for case in cases) for name in ("order", "lr", "start", "operation")]
        factors = [math.inf if case["gradient_factor"] is None else abs(case["gradient_factor"] - 1) for case in cases]
        rates = " and ".join(sorted({f"{case['lr']:g}" for case in cases}))
        parts.append(
            f"the same in {held[0]} of {len(cases)} cases: order of the curves; in {held[1]}: rate ({rates}); in "
            f"{held[2]}: start; in {held[3]}: average of the gradients (times 1 +- {_number(max(factors))} at worst)"
        )
    parts.append("\n".join(_failures([case for case in result["cases"] if not case["passed"]])))
    parts.append("\n".join(f"not available: {name}: {why}" for name, why in result["unavailable"].items()))
    return "\n\n".join([*filter(None, parts), equality_summary(result)])


def equality_summary(result: Mapping[str, Any]) -> str:
    """Return the verdict in a line, with the worst judged error of each precision."""
    cases = result["cases"]
    verdict = "equal" if result["passed"] else "NOT EQUAL"
    worst = [f"{verdict}: {sum(case['passed'] for case in cases)} of {len(cases)} cases passed"]
    for dtype, bound in result["bounds"].items():
        judged = [case for case in cases if case["dtype"] == dtype and case["judged"] and case["tensors"]]
        if judged:
            case = max(judged, key=_worst)
            where = f"{case['worst']}, {case['runtime']}, {plural(case['workers'], 'worker', ',')}"
            worst.append(f"worst in {dtype} {_number(_worst(case))} ({where}; bound {bound:g})")
    return "; ".join(worst)


def write_equality(result: Mapping[str, Any], out: Path) -> list[Path]:
    """Write verify.txt, verify.json and verify.csv (a row for each case and tensor) to `out`; return the paths."""
    rows = _frame(result["cases"])[[*_KEYS, "tensor", *_ERRORS, "passed"]]
    return write_result(out, {"verify.txt": equality_text(result), "verify.json": result, "verify.csv": rows})


def _tensors(here: pd.DataFrame, bound: float) -> str:
    """Return the table of one precision: a row for each runtime, number of workers and reduction."""
    if here.empty:
        return ""
    judged = bool(here["judged"].any())
    names, told = list(dict.fromkeys(here["tensor"])), []
    shown = here[here["judged"]] if judged else here
    by = ["runtime", "workers", "reduction"]
    passed = here.groupby(by)["passed"].all().to_dict()
    for key, own in shown.groupby(by, sort=False):
        worst = own.fillna(math.inf).groupby("tensor")["relative_error"].max()
        verdict = "FAILED" if not passed[key] else "equal" if judged else "reported"
        told.append([*map(str, key), *map(_number, worst[names]), verdict])
    heads = ("runtime", "workers", "reduction", *(name.replace(".", "\n", 1) for name in names), "verdict")
    about = f"{here['dtype'].iloc[0]}, {' and '.join(dict.fromkeys(shown['optimizer']))}"
    lines = to_lines(table_of(heads, told, texts=(0, 2, len(heads) - 1)))
    return "\n".join([f"{about}, {f'bound {bound:g}' if judged else 'no bound'}", *lines])


def _failures(failed: Sequence[Case]) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[Case]] = {}
    for case in failed:
        reasons.setdefault((case["why"], case["worst"]), []).append(case)
    for (why, worst), (first, *others) in [*reasons.items()][:_MOST]:
        what = [first["runtime"], plural(first["workers"], "worker", ",")]
        what += [str(first[name]) for name in ("reduction", "dtype", "optimizer", "shards") if first[name]]
        error = f"; worst is {worst}, {_number(_worst(first))}" if worst else ""
        yield f"FAILED {', '.join(what)}{f' (and {len(others)} more)' if others else ''}: {why}{error}"
    if len(reasons) > _MOST:
        yield f"{len(reasons) - _MOST} other failures are in --json"


def _worst(case: Case) -> float:
    """Return the largest error of a case, infinite where one is not a number or there is none."""
    errors = [tensor["relative_error"] for tensor in case["tensors"]]
    return max((math.inf if each is None or math.isnan(each) else each for each in errors), default=math.inf)


def _number(value: float) -> str:
    if math.isnan(value) or value == 0:
        return NOTHING if value else "0"
    return f"{value:.1e}" if math.isfinite(value) else "no number"


_LIMITS = {"knee": "workers at the knee:", "peak": "workers at the peak:", "limit": "speedup is never above"}


def laws_text(name: str, one: Mapping[str, Any]) -> str:
    """Return the laws of a series: a row for each that is about its kind of scaling, the others by name, the doubts."""
    selected, told, rows = one["selected"], [], []
    reasons: dict[str, list[str]] = {}
    lines = [f"{cut(printable(name), 60) or 'all points'}: speedup relative to {one['baseline']}"]
    for law, fitted in one["laws"].items():
        known = fitted["identifiable"]
        if law != selected and not (known and fitted["applies"]):
            told.append(f"{law}: ")
        if not fitted["applies"]:
            reasons.setdefault(fitted["why_not"], []).append(law)
            told.append(f"{law} does not apply")
        if fitted["applies"] or law == selected:
            parts = [_interval(each, value, fitted["ci95"].get(each)) for each, value in fitted["params"].items()]
            aicc = NOTHING if fitted["aicc"] is None else f"{fitted['aicc']:.1f}"
            off = NOTHING if fitted["loo_error"] is None else f"{100 * fitted['loo_error']:.1f} %"
            mark = "*" if law == selected else " " if known else "?"
            rows.append((f"{mark} {law}", f"{fitted['rmse']:.3g}", aicc, off, "  ".join(parts)))
    lines += to_lines(table_of(("  law", "rmse", "AICc", "loo", "parameters"), rows, texts=(0, 4)))
    for what, label in _LIMITS.items() if selected else ():
        value = one["laws"][selected][what]
        if value is not None and value > 1:
            lines.append(f"  {_interval(label, value, one['laws'][selected].get(f'{what}_ci95'))}")
    lines += [f"  - {', '.join(laws)}: not for {one['mode']} scaling ({why})" for why, laws in reasons.items()]
    lines += [f"  assumed: {one['assumed']}"] if one["assumed"] else []
    lines += [f"  doubt: {doubt}" for doubt in one["doubts"] if not doubt.startswith(tuple(told))]
    return "\n".join(
        part for line in lines for part in ([line] if "[" in line else wrapped(line, 100, deeper="      "))
    )


def _interval(name: str, value: float, ends: Any) -> str:
    low, high = ends or (None, None)
    return f"{name} {value:.5g}" + (
        "" if low is None else f" [{low:.3g}, {'no end' if high is None else f'{high:.3g}'}]"
    )
