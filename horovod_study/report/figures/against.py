"""A study against another one, for readers: headline, table, figure, and the lines of a gate.

Everything shown is a column of the comparison (analysis/compare/study_comparison.py); nothing is computed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from horovod_study.analysis.compare.study_comparison import (
    ALIKE,
    BETTER,
    FAILED,
    METRICS,
    TOO_FEW,
    UNDECIDED,
    UNKNOWN,
    WORSE,
    Gate,
    GateCheck,
    StudyComparison,
)
from horovod_study.analysis.laws import law_label
from horovod_study.records import facts
from horovod_study.report.kit import panels as kit
from horovod_study.report.kit import style
from horovod_study.report.kit.drawing import Drawing, write_drawings
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.markup import by_series
from horovod_study.report.kit.typeset import FORMS
from horovod_study.text.numbers import THIN, fixed, known, quoted, rounded, scientific
from horovod_study.text.tables import (
    NOTHING,
    Cell,
    Column,
    Group,
    Row,
    Table,
    row_of,
    table_of,
    text_column,
    to_lines,
    with_columns,
)
from horovod_study.text.words import listed, one_line, plural, printable

NAME = "against"
MAX_PANELS = 6
"""Settings that are drawn; the table has all of them."""

_BESIDE = ("step", "sync", "speedup", "energy")
"""Metrics beside the throughput in the table; the efficiency has the ratio of the speedup."""

_HEADS = {
    "step": "Median\nstep",
    "sync": "Exposed\nsync",
    "speedup": "Speedup and\nefficiency",
    "energy": "Energy per\nsample",
}


def write_against(
    found: StudyComparison,
    directory: Path,
    *,
    gate: Gate | None = None,
    look: style.FigureFormat = style.TEXT,
    pgf: bool = False,
) -> list[Path]:
    """Write figures/against.*, tables/against.* and against.json to the directory of a report; return the paths.

    Raises RecordError when the directory cannot be written.
    """
    printed = table(found)
    texts = {f"{NAME}.{form}": write(printed) for form, write in FORMS.items()}
    return [
        *write_drawings([drawing(found)], directory / "figures", look=look, pgf=pgf),
        *write_result(directory / "tables", texts, choose="DIR"),
        *write_result(directory, {f"{NAME}.json": document(found, gate)}, choose="DIR"),
    ]


def document(found: StudyComparison, gate: Gate | None = None) -> dict[str, Any]:
    """Return everything in plain values, with the headline and what the gate said."""
    return {**found.to_dict(), "headline": headline(found), "gate": None if gate is None else gate.to_dict()}


def names_of(after: Path, before: Path) -> tuple[str, str]:
    """Return the shortest names that distinguish two directories: of `new/analysis` and `old/analysis`, new and old."""
    ends = list(zip(reversed(after.parts), reversed(before.parts), strict=False))
    own, other = next(((one, two) for one, two in ends if one != two), (after.name, f"{before.name} (before)"))
    return one_line(_visible(own)), one_line(_visible(other))


def _visible(name: str) -> str:
    """Return a name of a folder as it can be written: bytes that are no text become their numbers."""
    return name.encode("utf-8", errors="backslashreplace").decode("utf-8")


def headline(found: StudyComparison) -> str:
    """Return the one sentence that the comparison comes to: how many cells are slower or faster, and the most."""
    rows = _rows(found, "throughput")
    of = {verdict: [row for row in rows if row["verdict"] == verdict] for verdict in (WORSE, BETTER, ALIKE, TOO_FEW)}
    total = plural(len(rows), "cell")
    told: list[str] = []
    for verdict in (WORSE, BETTER):
        if own := of[verdict]:
            count = f"{len(own)}" if told else f"{len(own)} of {total}"
            told.append(f"{count} {'is' if len(own) == 1 else 'are'} {own[0]['word']}, {_most(found, own, rows)}")
    if told:
        return "; ".join(told)
    if alike := of[ALIKE]:
        rest = f"; {plural(len(rows) - len(alike), 'cell')} cannot be judged" if len(alike) < len(rows) else ""
        most = _percent(max(row["no_more_than"] for row in alike))
        return f"No difference is resolved in {plural(len(alike), 'cell')}, and none is larger than {most}{rest}"
    return f"{total} {'has' if len(rows) == 1 else 'have'} too few repeats to tell a difference"


def _most(found: StudyComparison, own: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return `the most by 12 % [9, 15] at 8 workers` for rows of one verdict among all of a metric."""
    row = max(own, key=lambda row: (abs(math.log(row["ratio"])), row["series"], row["workers"]))
    sign = 1 if row["ratio"] > 1 else -1
    value, *ends = (100 * sign * (row[name] - 1) for name in ("ratio", "ratio_low", "ratio_high"))
    number, _, interval = quoted(value, *sorted(ends)).partition(" ")
    by = f"{number}{THIN}% {interval}".rstrip()
    return f"{'the most by' if len(own) > 1 else 'by'} {by} {_where(found, row, rows)}"


def _where(found: StudyComparison, row: Row, rows: Sequence[Row]) -> str:
    """Return where a cell is: its workers, and its series and setting where there are several."""
    words = [f"at {plural(row['workers'], 'worker')}"]
    label = style.series_labels(found.after.points)[row["series"]]
    if len({each["series"] for each in rows}) > 1:
        words.append(f"over {label}" if row["backend"] != "serial" else f"of {label}")
    if len({each["setting"] for each in rows}) > 1 and f"{row['setting']}" not in label:
        words.append(f"with {row['setting']}")
    return " ".join(words)


def sentences(found: StudyComparison) -> list[str]:
    """Return what the other metrics say, one sentence each, for those that some cell knows."""
    told = []
    for name, metric in METRICS.items():
        rows = [row for row in _rows(found, name) if row["verdict"] != UNKNOWN]
        if name in ("throughput", "efficiency"):
            continue
        parts = []
        for verdict in (WORSE, BETTER):
            if own := [row for row in rows if row["verdict"] == verdict]:
                cells = plural(len(rows), "cell")
                parts.append(f"{own[0]['word']} in {len(own)} of {cells}, {_most(found, own, rows)}")
        alike = [row for row in rows if row["verdict"] == ALIKE]
        if alike and not parts:
            most = _percent(max(row["no_more_than"] for row in alike))
            parts.append(f"no difference resolved in {plural(len(alike), 'cell')}, and none larger than {most}")
        if parts:
            told.append(f"{metric.title[0].upper()}{metric.title[1:]}: {'; '.join(parts)}.")
    return told


def _verdict_words(row: Row) -> str:
    """Return the verdict of a row for readers."""
    if row["verdict"] == ALIKE and not row["ratio_low"] <= 1 <= row["ratio_high"]:
        return f"not resolved among {row['tests']} cells (p = {row['p_holm']:.2g} after Holm)"
    if row["verdict"] == ALIKE:
        return f"no difference larger than {_percent(row['no_more_than'])}"
    if row["verdict"] == TOO_FEW:
        return f"not resolved (too few repeats: {row['before_repeats']} and {row['after_repeats']})"
    return f"{row['word']}" or f"not known: {row['note']}"


def _percent(share: float) -> str:
    """Return an upper bound in per cent, rounded up to two digits."""
    value = 100 * share
    if value == 0:
        return f"0{THIN}%"
    decimals = max(0, 1 - math.floor(math.log10(value)))
    return f"{fixed(math.ceil(value * 10**decimals - 1e-9) / 10**decimals, decimals)}{THIN}%"


def _change(row: Row) -> tuple[str, str]:
    """Return the change of a row in per cent with its sign, and its interval; a dash where it is unknown."""
    if not known(row["ratio"]):
        return NOTHING, ""
    ends = [100 * (row[name] - 1) for name in ("ratio", "ratio_low", "ratio_high")]
    value, _, interval = quoted(ends[0], *(each if known(each) else None for each in ends[1:])).partition(" ")
    plus = "+" if ends[0] > 0 and any(letter in value for letter in "123456789") else ""
    return f"{plus}{value}", interval


def _rows(found: StudyComparison, metric: str) -> list[dict[Any, Any]]:
    return found.of(metric).to_dict("records")


def section(found: StudyComparison) -> dict[str, Any]:
    """Return what the template against.html.j2 shows."""
    after, before = found.names
    return {
        "after": after,
        "before": before,
        "headline": headline(found),
        "sentences": sentences(found),
        "matching": found.matching,
        "cells": _cells(found),
        "targets": _targets(found),
        "laws": _laws(found),
        "unmatched": _alone(found),
        "changes": _changes(found),
        "doubts": list(found.doubts),
    }


def _key(row: Row) -> tuple[Any, ...]:
    return row["series"], row["workers"], f"{row['nodes']}", f"{row['batch']}"


def _cells(found: StudyComparison) -> Table:
    """Return the differences cell by cell, as the page shows them."""
    rows, before = _rows(found, "throughput"), found.names[1]
    counts = {row[name] for row in rows for name in ("before_repeats", "after_repeats")}
    repeats = plural(counts.pop(), "repeat") if len(counts) == 1 else ""
    beside = [name for name in _BESIDE if found.of(name)["ratio"].notna().any()]
    others = {name: {_key(row): row for row in _rows(found, name)} for name in beside}
    columns = [
        Column(head="Workers", names=True, cell=_workers),
        Column(head="Repeats\nbefore, after", cell=lambda row: f"{row['before_repeats']}, {row['after_repeats']}"),
        Column(head="Before", unit="samples/s", cell=lambda row: rounded(row["before"])),
        Column(head="After", unit="samples/s", cell=lambda row: rounded(row["after"])),
        Column(head="Change", unit="%", cell=_changed),
        text_column("Verdict", lambda row: Cell(_verdict_words(row), warning=row["verdict"] == WORSE)),
        *(Column(head=_HEADS[name], unit="%", cell=partial(_beside, own)) for name, own in others.items()),
    ]
    if repeats:
        del columns[1]
    how = "paired: the runs alternated" if found.interleaved else "Welch's t on logarithms"
    labels = style.series_labels(found.after.points)

    def title(series: str, own: pd.DataFrame) -> Cell:
        first = own.iloc[0]
        was = first["before_series"]
        return Cell(labels[series], first["setting"], "" if was == series else f"before: {was}")

    return Table(
        name="against",
        caption=f"Geometric means over {repeats or 'repeats'}. Changes in per cent of {before}, with 95 % intervals "
        f"({how}). The verdict is that on the throughput; differences of the other columns that are resolved are set "
        "in bold",
        columns=tuple(columns),
        groups=by_series(found.of("throughput"), partial(row_of, columns), title),
    )


def _changed(row: Row) -> Cell:
    return Cell(*_change(row), strong=row["verdict"] in (WORSE, BETTER))


def _beside(others: Mapping[tuple[Any, ...], Row], row: Row) -> Cell:
    """Return the change of another metric of the same cell."""
    own = others.get(_key(row))
    if own is None:
        return Cell(NOTHING)
    value, interval = _change(own)
    return Cell(value, interval or f"{own['note']}", strong=own["verdict"] in (WORSE, BETTER))


def _workers(row: Row) -> Cell:
    """Return the workers of a cell, and its nodes where there are several or where BEFORE had others."""
    nodes, before = (row[name] if known(row[name]) else None for name in ("nodes", "before_nodes"))
    changed = nodes != before and nodes is not None and before is not None
    below = f"on {plural(nodes or 1, 'node')}, before {before:.0f}" if changed else f"on {nodes or 1:.0f} nodes"
    return Cell(f"{row['workers']:.0f}", below if changed or (nodes or 1) != 1 else "")


def _targets(found: StudyComparison) -> Table:
    def seconds(value: float) -> str:
        return rounded(value, 3) if known(value) else NOTHING

    columns = (
        _series(found),
        Column(head="Workers", cell=_workers),
        Column(head="Target\ntest MSE", cell=lambda row: scientific(row["target_mse"])),
        Column(head="Before", unit="s", cell=lambda row: seconds(row["before"])),
        Column(head="After", unit="s", cell=lambda row: seconds(row["after"])),
        Column(head="Change", unit="%", cell=_changed),
        text_column("Verdict", _verdict_words),
    )
    caption = "Seconds of training until the test MSE is at most the target"
    return _flat("against-targets", caption, columns, _rows(found, "target"))


def _series(found: StudyComparison) -> Column:
    labels = style.series_labels(found.after.points)
    return text_column("Series", lambda row: Cell(labels[row["series"]], f"{row.get('setting', '')}"), names=True)


def _flat(name: str, caption: str, columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    group = Group(title="", rows=tuple(row_of(columns, row) for row in rows))
    return Table(name=name, caption=caption, columns=tuple(columns), groups=(group,) if rows else ())


def _laws(found: StudyComparison) -> Table:
    def law(row: Row) -> Cell:
        chosen = [name for name in ("before", "after") if row[f"{name}_selected"]]
        return Cell(law_label(row["law"]), f"selected {listed(chosen)}" if chosen else "")

    columns = (
        _series(found),
        text_column("Law", law),
        text_column("Parameter", "parameter"),
        Column(head="Before", cell=lambda row: quoted(row["before"], row["before_low"], row["before_high"])),
        Column(head="After", cell=lambda row: quoted(row["after"], row["after_low"], row["after_high"])),
        Column(head="Difference", cell=lambda row: quoted(row["difference"], row["low"], row["high"])),
        text_column("Verdict", "verdict"),
    )
    laws = found.laws.to_dict("records")
    shown = [
        row for row in laws if row["law"] in ("linear", "amdahl") or row["before_selected"] or row["after_selected"]
    ]
    caption = (
        "Parameters with 95 % intervals, and AFTER less BEFORE with the interval of the difference; not corrected for "
        "their number"
    )
    return _flat("against-laws", caption, columns, [{**row, "setting": ""} for row in shown])


def _alone(found: StudyComparison) -> Table:
    labels = {"after": style.series_labels(found.after.points), "before": style.series_labels(found.before.points)}
    names = dict(zip(("after", "before"), found.names, strict=True))
    columns = (
        text_column("Only in", lambda row: names[row["study"]], names=True),
        text_column("Series", lambda row: Cell(labels[row["study"]][row["series"]], f"{row['setting']}")),
        Column(head="Workers", cell=lambda row: f"{row['workers']:.0f}"),
        text_column("Why", "reason"),
    )
    caption = "Cells that only one of the studies has a result for; they are not compared"
    return _flat("against-alone", caption, columns, found.unmatched.to_dict("records"))


def _changes(found: StudyComparison) -> Table:
    columns = (
        text_column("What", "what", names=True),
        text_column("Before", lambda row: row["before"] or NOTHING),
        text_column("After", lambda row: row["after"] or NOTHING),
    )
    caption = "Other differences between the studies; each may be a cause"
    return _flat("against-else", caption, columns, [facts(each, "what", "before", "after") for each in found.changes])


def table(found: StudyComparison) -> Table:
    """Return the table of the comparison as it is printed: that of the page, with what is under its cells in them."""
    page = _cells(found)
    page = with_columns(page, [at for at, each in enumerate(page.columns) if not each.head.startswith("Repeats")])
    columns = [replace(each, wrap=each.head == "Verdict", interval=each.unit == "%") for each in page.columns]

    def in_one_line(cell: str) -> str:
        return NOTHING if cell == NOTHING else " ".join([cell, *getattr(cell, "under", ())])

    groups = [
        Group(
            title=", ".join([group.title, *getattr(group.title, "under", ())[:1]]),
            rows=tuple(tuple(map(in_one_line, row)) for row in group.rows),
        )
        for group in page.groups
    ]
    after, before = found.names
    return Table(
        name=NAME,
        title=f"{after} against {before}",
        caption=(
            f"{found.matching} Geometric means over repeats, changes of {after} over {before} with 95 % intervals "
            f"({_how(found)}). A verdict is given where p after Holm is below 0.05."
        ),
        columns=tuple(columns),
        groups=tuple(groups),
        data=found.differences,
        notes=(*found.doubts,),
    )


def _how(found: StudyComparison) -> str:
    tests = [f"{test}" for test in found.differences["test"].drop_duplicates() if test]
    return listed(sorted(tests)) if tests else "none: too few repeats"


def lines(found: StudyComparison) -> list[str]:
    """Return the comparison for a terminal: headline, one line per cell, what differs besides, doubts."""
    after, before = found.names
    heads = ("cell", "before", "after", "change", "95 % interval", "p (Holm)", "verdict")
    rows = []
    for row in _rows(found, "throughput"):
        value, interval = _change(row)
        p = NOTHING if not known(row["p_holm"]) else "< 0.0001" if row["p_holm"] < 1e-4 else f"{row['p_holm']:.4f}"
        rates = (rounded(row["before"]), rounded(row["after"]))
        rows.append((_cell(found, row), *rates, f"{value}{THIN}%", interval or NOTHING, p, _verdict_words(row)))
    told = [f"{after} against {before}: {headline(found)}.", found.matching, ""]
    told += [*to_lines(table_of(heads, rows, texts=(0, 6))), "", *sentences(found)]
    told += [_left_out(found, row) for row in found.unmatched.to_dict("records")]
    told += [f"differs: {each.text}" for each in found.changes]
    return (
        [one_line(line) if line.strip() else "" for line in told[:3]]
        + [printable(line).rstrip() for line in told[3:]]
        + [one_line(f"doubt: {doubt}") for doubt in found.doubts]
    )


def _left_out(found: StudyComparison, row: Row) -> str:
    points = found.after.points if row["study"] == "after" else found.before.points
    label = style.series_labels(points)[row["series"]]
    name = found.names[0] if row["study"] == "after" else found.names[1]
    return f"only in {name}: {_place(label, row)} ({row['reason']})"


def _cell(found: StudyComparison, row: Row) -> str:
    return _place(style.series_labels(found.after.points)[row["series"]], row)


def _place(label: str, row: Row) -> str:
    """Return `Horovod/MPI, batch 75, 8 workers`."""
    setting = [] if f"{row['setting']}" in label else [f"{row['setting']}"]
    nodes = [f"on {row['nodes']:.0f} nodes"] if known(row["nodes"]) and row["nodes"] > 1 else []
    return ", ".join([label, *setting, " ".join([plural(row["workers"], "worker"), *nodes])])


def gate_lines(found: StudyComparison, gate: Gate) -> list[str]:
    """Return one line per cell that failed or is undecided or missing, and the verdict of the gate last."""
    told = [_check_line(found, each) for each in gate.checks if each.outcome == FAILED]
    told += [f"FAILED missing: {_left_out(found, row)}" for row in gate.missing or ()]
    told += [_check_line(found, each) for each in gate.checks if each.outcome == UNDECIDED]
    counts = {outcome: sum(each.outcome == outcome for each in gate.checks) for outcome in (FAILED, UNDECIDED)}
    passed = len(gate.checks) - sum(counts.values())
    words = [f"{counts[FAILED]} failed", f"{counts[UNDECIDED]} undecided", f"{passed} passed"]
    if gate.missing is not None:
        words.append(f"{len(gate.missing)} missing")
    unresolved = " (undecided counts as failed)" if gate.unresolved_fails and counts[UNDECIDED] else ""
    told.append(f"gate {'passed' if gate.passed else 'FAILED'}: {', '.join(words)}{unresolved}")
    return [printable(line).rstrip() for line in told]


def _check_line(found: StudyComparison, check: GateCheck) -> str:
    limit = f"limit {100 * check.limit:g}{THIN}%"
    head = f"{'FAILED' if check.outcome == FAILED else 'undecided'} {check.word}"
    row = check.row
    if "series" not in row:
        return f"{head}: {METRICS[row['metric']].title} is {row['note']}; {limit}"
    metric = METRICS[row["metric"]]
    place = _cell(found, row)
    if known(row["target_mse"]):
        place += f", test MSE {scientific(row['target_mse'])}"
    if not known(row["ratio"]):
        return f"{head}: {place}: {metric.title} not known ({row['note']}); {limit}"
    value, interval = _change(row)
    scale, unit = {"step": (1e3, "ms"), "sync": (1e3, "ms per step"), "energy": (1e3, "mJ")}.get(
        row["metric"], (1.0, metric.unit)
    )
    before, after = (rounded(row[name] * scale) for name in ("before", "after"))
    why = "" if check.outcome == FAILED else f", {_verdict_words(row)}" if not interval else ""
    return (
        f"{head}: {place}: {metric.title} {before} before, {after}{' ' if unit else ''}{unit} after, "
        f"{value}{THIN}% {interval or '(no interval)'}{why}; {limit}"
    )


def drawing(found: StudyComparison) -> Drawing:
    """Return the figure: the change of throughput of every cell with its interval, and the line of no change."""
    rows = found.of("throughput")
    styles = {name: replace(look, ring=False) for name, look in style.series_styles(found.after.points).items()}
    settings = list(rows["setting"].drop_duplicates())
    shown = rows[rows["setting"].isin(settings[:MAX_PANELS])]
    after, before = found.names

    def draw(width_in: float) -> Figure:
        names = list(shown["setting"].drop_duplicates())
        columns = 1 if width_in < style.NARROW_IN or len(names) == 1 else 2
        lines_of = math.ceil(len(names) / columns)
        panel_in = width_in / columns
        height_in = lines_of * max(1.7, (0.45 if columns == 1 else 0.62) * panel_in) + 0.6
        figure, made = kit.panels_of(width_in, height_in, lines_of, columns, len(names), sharey=True)
        low, high = _range(shown)
        for place, (axes, setting) in enumerate(zip(made, names, strict=True)):
            _panel(axes, shown[shown["setting"] == setting], styles, panel_in)
            axes.set_ylim(low, high)
            if len(names) > 1:
                axes.set_title(style.folded(f"{setting}", 0.85 * panel_in))
            if place % columns == 0:
                axes.set_ylabel("Change of throughput")
        entries = [*kit.handles(styles, shown["series"].unique()), *kit.judged_handles()]
        kit.legend(figure, entries, width_in)
        return figure

    hidden = len(settings) - len(shown["setting"].drop_duplicates())
    caption = " ".join(
        [
            f"Throughput of {after} over that of {before}, less one, at each number of workers. {found.matching}",
            f"Points: ratios of geometric means over repeats; bars: 95 % intervals ({_how(found)}).",
            "Filled: the difference is resolved (p after Holm over all cells below 0.05); hollow: it is not. A bar "
            "that ends at the edge goes on beyond it. Grey line: no change.",
            *([f"{hidden} more settings are in the table."] if hidden else []),
            *found.doubts,
        ]
    )
    return Drawing(
        name=NAME,
        title=f"{after} against {before}",
        alt=f"Change of throughput of every cell, {after} against {before}; the values are in the table.",
        caption=one_line(caption),
        data=shown[
            [
                *("series", "before_series", "setting", "workers", "nodes", "before", "after"),
                *("ratio", "ratio_low", "ratio_high", "p_holm", "verdict", "word", "test"),
            ]
        ],
        draw=draw,
    )


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the axis: all points, and intervals up to a few times the largest change."""
    points = rows["ratio"].dropna() - 1
    ends = pd.concat([rows["ratio_low"] - 1, rows["ratio_high"] - 1]).dropna()
    reach = max(0.01, float(points.abs().max() if len(points) else 0.0))
    near = ends[ends.abs() <= 4 * reach + 0.02]
    low = min(-0.005, float(points.min()), float(near.min()) if len(near) else 0.0)
    high = max(0.005, float(points.max()), float(near.max()) if len(near) else 0.0)
    room = 0.08 * (high - low)
    return low - room, high + room


def _panel(axes: Axes, rows: pd.DataFrame, styles: Mapping[str, style.SeriesStyle], panel_in: float) -> None:
    """Draw one setting: worker counts side by side at equal distances, series beside each other at each."""
    counts = sorted({(int(n), nodes) for n, nodes in zip(rows["workers"], rows["nodes"].fillna(1.0), strict=True)})
    several = len({count for count, _ in counts}) < len(counts)
    series = list(rows["series"].drop_duplicates())
    axes.axhline(0.0, color=style.QUIET, linewidth=0.9, zorder=1)
    for number, name in enumerate(series):
        look = styles[name]
        own = rows[(rows["series"] == name) & rows["ratio"].notna()]
        if own.empty:
            continue
        shift = 0.6 * ((number + 0.5) / len(series) - 0.5)
        places = zip(own["workers"], own["nodes"].fillna(1.0), strict=True)
        x = [counts.index((int(workers), nodes)) + shift for workers, nodes in places]
        values = [own[column] - 1 for column in ("ratio", "ratio_low", "ratio_high")]
        tips = [_tip(row, look.label) for row in own.to_dict("records")]
        kit.judged_points(axes, x, values, look, own["verdict"].isin([BETTER, WORSE]), tips)
    axes.set_xlim(-0.6, len(counts) - 0.4)
    labels = [f"{count}" + (f"\n({nodes:.0f})" if several else "") for count, nodes in counts]
    step = max(1, math.ceil(len(counts) * 0.2 / (0.8 * panel_in)))
    axes.set_xticks(range(0, len(counts), step), labels[::step])
    axes.set_xlabel("Workers (nodes)" if several else "Workers")
    kit.label_ticks(
        axes.yaxis,
        MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]),
        lambda value: "equal" if abs(value) < 1e-9 else f"{100 * value:+.4g} %".replace("-", "\u2212"),
    )


def _tip(row: Row, label: str) -> str:
    value, interval = _change(row)
    return one_line(f"{label}, {plural(row['workers'], 'worker')}: {value} % {interval}, {_verdict_words(row)}")
