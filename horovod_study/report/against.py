"""A study against another one, for readers: headline, the table, and the lines of a gate.

Everything shown is a column of the comparison (analysis/against.py); nothing is computed.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from horovod_study.analysis.against import (
    ALIKE,
    BETTER,
    FAILED,
    METRICS,
    PASSED,
    TOO_FEW,
    WORSE,
    StudyComparison,
)
from horovod_study.records import facts, finite
from horovod_study.report.kit import style
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.typeset import FORMS
from horovod_study.text.numbers import THIN, fixed, known, quoted, rounded, scientific, signed
from horovod_study.text.tables import NOTHING, Cell, Column, Group, Row, Table, row_of, text_column, to_lines
from horovod_study.text.words import one_line, plural, printable

NAME = "against"


def write_against(found: StudyComparison, directory: Path, gate: Mapping[str, Any] | None = None) -> list[Path]:
    """Write tables/against.* and against.json to the directory of a report; return the paths.

    Raises RecordError when the directory cannot be written.
    """
    noted = replace(table(found), notes=(*found.doubts,))
    texts = {f"{NAME}.{form}": write(noted) for form, write in FORMS.items()}
    return [
        *write_result(directory / "tables", texts, choose="DIR"),
        *write_result(directory, {f"{NAME}.json": document(found, gate)}, choose="DIR"),
    ]


def document(found: StudyComparison, gate: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return everything in plain values, with the headline and what the gate said."""
    told = ("matching", "matched_by_all_but", "differences", "unmatched", "changes", "doubts")
    named = {"after": found.names[0], "before": found.names[1], "headline": headline(found), "gate": finite(gate)}
    return {**named, **facts(found, *told)}


def names_of(after: Path, before: Path) -> tuple[str, str]:
    """Return the shortest names that distinguish two directories: of `new/analysis` and `old/analysis`, new and old."""
    ends = list(zip(reversed(after.parts), reversed(before.parts), strict=False))
    own, other = next(((one, two) for one, two in ends if one != two), (after.name, f"{before.name} (before)"))
    # Bytes of a name that are no text become their numbers.
    one, two = (one_line(name.encode("utf-8", errors="backslashreplace").decode("utf-8")) for name in (own, other))
    return one, two


def headline(found: StudyComparison) -> str:
    """Return the one sentence that the comparison comes to: how many cells are slower or faster, and the most."""
    rows = found.of("throughput").to_dict("records")
    total, told = plural(len(rows), "cell"), list[str]()
    for verdict in (WORSE, BETTER):
        if own := [row for row in rows if row["verdict"] == verdict]:
            most = max(own, key=lambda row: (abs(math.log(row["ratio"])), row["series"], row["workers"]))
            count = f"{len(own)}{'' if told else f' of {total}'} {'is' if len(own) == 1 else 'are'} {most['word']}"
            told.append(f"{count}{', the most' if len(own) > 1 else ''} by {_percent(most)} ({_place(found, most)})")
    if told:
        return "; ".join(told)
    if alike := [row["no_more_than"] for row in rows if row["verdict"] == ALIKE]:
        rest = f"; {plural(len(rows) - len(alike), 'cell')} cannot be judged" if len(alike) < len(rows) else ""
        cells = plural(len(alike), "cell")
        return f"No difference is resolved in {cells}, and none is larger than {_up(max(alike))}{rest}"
    return f"{total} {'has' if len(rows) == 1 else 'have'} too few repeats to tell a difference"


def texts(found: StudyComparison) -> list[str]:
    """Return the cells that one study alone has, and what else is not the same in both."""
    alone = [f"only in {_alone(found, row)}" for row in found.unmatched.to_dict("records")]
    return alone + [
        f"differs: {each['what']}: {each['before'] or 'not recorded'} before, {each['after'] or 'not recorded'} after"
        for each in found.changes
    ]


def _alone(found: StudyComparison, row: Row) -> str:
    name = found.names[row["study"] == "before"]
    return f"{name}: {_place(found, row)} ({row['reason']})"


def _place(found: StudyComparison, row: Row) -> str:
    """Return `Horovod/MPI, batch 75, 8 workers`, of a target with its test MSE."""
    label = style.series_labels(found.points[row.get("study") == "before"])[row["series"]]
    words = [label, *([] if f"{row['setting']}" in label else [f"{row['setting']}"]), plural(row["workers"], "worker")]
    nodes, before = (row[name] if known(row.get(name)) else 1.0 for name in ("nodes", "before_nodes"))
    if "before_nodes" in row and nodes != before:
        words[-1] += f" on {plural(nodes, 'node')} (before {before:.0f})"
    elif nodes > 1:
        words[-1] += f" on {nodes:.0f} nodes"
    return ", ".join([*words, *([f"test MSE {scientific(row['target_mse'])}"] if known(row.get("target_mse")) else [])])


def _change(row: Row) -> str:
    """Return the change of a row in per cent with its sign, and its interval; a dash where it is unknown."""
    value, *ends = (100 * (row[name] - 1) for name in ("ratio", "ratio_low", "ratio_high"))
    number, _, interval = quoted(value, *ends).partition(" ")
    return f"{signed(number) or NOTHING} {interval}".rstrip()


def _percent(row: Row) -> str:
    value, _, interval = _change(row).partition(" ")
    return f"{value}{THIN}% {interval or '(no interval)'}"


def _up(share: float) -> str:
    """Return an upper bound in per cent, rounded up to two digits."""
    value = 100 * share
    decimals = max(0, 1 - math.floor(math.log10(value))) if value else 0
    return f"{fixed(math.ceil(value * 10**decimals - 1e-9) / 10**decimals, decimals)}{THIN}%"


def _verdict(row: Row) -> str:
    """Return the verdict of a row for readers."""
    if row["verdict"] == ALIKE and not row["ratio_low"] <= 1 <= row["ratio_high"]:
        return f"not resolved among {row['tests']} cells"
    if row["verdict"] == ALIKE:
        return f"no difference larger than {_up(row['no_more_than'])}"
    if row["verdict"] == TOO_FEW:
        return f"not resolved (too few repeats: {row['before_repeats']} and {row['after_repeats']})"
    return row["word"] or f"not known: {row['note']}"


def table(found: StudyComparison) -> Table:
    """Return the table of the comparison: a group for each metric, with a row for each cell (and target)."""

    def number(row: Row, when: str) -> str:
        return rounded(row[when] * METRICS[row["metric"]].scale) if known(row[when]) else NOTHING

    def p(row: Row) -> str:
        return NOTHING if not known(row["p_holm"]) else "< 0.0001" if row["p_holm"] < 1e-4 else f"{row['p_holm']:.4f}"

    columns = (
        text_column("Cell", partial(_place, found), names=True, wrap=True),
        Column(head="Before", cell=partial(number, when="before")),
        Column(head="After", cell=partial(number, when="after")),
        Column(head="Change", unit="%", interval=True, cell=_change),
        Column(head="p (Holm)", cell=p),
        text_column("Verdict", lambda row: Cell(_verdict(row), warning=row["verdict"] == WORSE), wrap=True),
    )
    groups = []
    for name, metric in METRICS.items():
        title = f"{metric.title}{' (and efficiency)' * (name == 'speedup')}{f', {metric.unit}' if metric.unit else ''}"
        own = tuple(row_of(columns, row) for row in found.of(name).to_dict("records"))
        groups += [Group(title=title, rows=own)] if own else []
    tests = " and ".join(sorted(set(found.differences["test"]) - {""})) or "none: too few repeats"
    after, before = found.names
    return Table(
        name=NAME,
        title=f"{after} against {before}",
        caption=f"{found.matching} Geometric means over repeats, changes of {after} over {before} with 95 % intervals "
        f"({tests}). A verdict is given where p after Holm is below 0.05",
        columns=columns,
        groups=tuple(groups),
        data=found.differences,
    )


def lines(found: StudyComparison) -> list[str]:
    """Return the comparison for a terminal: headline, table, what else is to be said, doubts."""
    told = [f"{found.names[0]} against {found.names[1]}: {headline(found)}.", found.matching, ""]
    told += [*to_lines(table(found)), "", *texts(found), *(f"doubt: {doubt}" for doubt in found.doubts)]
    return [printable(line).rstrip() for line in told]


def gate_lines(found: StudyComparison, gate: Mapping[str, Any]) -> list[str]:
    """Return one line per cell that failed or is undecided or missing, and the verdict of the gate last."""
    told = [f"FAILED missing: only in {_alone(found, row)}" for row in gate["missing"] or ()]
    for row in sorted((row for row in gate["checks"] if row["outcome"] != PASSED), key=lambda row: row["outcome"]):
        metric = METRICS[row["metric"]]
        place = f"{_place(found, row)}: " if "series" in row else ""
        said = f"not known ({row['note']})" if row["note"] else ""
        if not said:
            before, after = (rounded(row[name] * metric.scale) for name in ("before", "after"))
            unit = f" {metric.unit}" if metric.unit else ""
            said = f"{before} before, {after}{unit} after, {_percent(row)}"
        outcome, limit = row["outcome"].replace(FAILED, "FAILED"), f"limit {100 * row['limit']:g}{THIN}%"
        told.append(f"{outcome} {row['word']}: {place}{metric.title} {said}; {limit}")
    counts = {word: sum(row["outcome"] == word for row in gate["checks"]) for word in ("failed", "undecided", "passed")}
    words = [f"{count} {word}" for word, count in counts.items()]
    words += [] if gate["missing"] is None else [f"{len(gate['missing'])} missing"]
    more = " (undecided counts as failed)" if gate["unresolved_fails"] and counts["undecided"] else ""
    told.append(f"gate {'passed' if gate['passed'] else 'FAILED'}: {', '.join(words)}{more}")
    return [printable(line) for line in told]
