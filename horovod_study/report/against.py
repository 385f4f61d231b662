"""A study against another one, for readers: headline, the table, and the lines of a gate.

Everything shown is a column of the comparison (analysis/against.py); nothing is computed.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from horovod_study.analysis.against import ALIKE, BETTER, FAILED, METRICS, TOO_FEW, WORSE, StudyComparison
from horovod_study.records import facts, finite
from horovod_study.report.kit import style
from horovod_study.report.kit.files import FORMS, write_result
from horovod_study.text.numbers import THIN, known, quoted, rounded, scientific, signed
from horovod_study.text.tables import NOTHING, Cell, Column, Row, Table, grouped, to_lines
from horovod_study.text.words import one_line, plural, printable


def write_against(found: StudyComparison, directory: Path, gate: Mapping[str, Any] | None = None) -> list[Path]:
    """Write tables/against.* and against.json to the directory of a report; return the paths.

    Raises RecordError where they cannot be written.
    """
    noted = replace(table(found), notes=found.doubts)
    forms = {f"against.{form}": write(noted) for form, write in FORMS.items()}
    return [
        *write_result(directory / "tables", forms, choose="DIR"),
        *write_result(directory, {"against.json": document(found, gate)}, choose="DIR"),
    ]


def document(found: StudyComparison, gate: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return everything in plain values, with the headline and what the gate said."""
    told = facts(found, "matching", "matched_by_all_but", "differences", "unmatched", "changes", "doubts")
    names = dict(zip(("after", "before"), found.names, strict=True))
    return {**names, "headline": headline(found), "gate": finite(gate), **told}


def names_of(after: Path, before: Path) -> tuple[str, str]:
    """Return the shortest names that distinguish two directories: of `new/analysis` and `old/analysis`, new and old."""
    ends = zip(reversed(after.parts), reversed(before.parts), strict=False)
    names = next((pair for pair in ends if pair[0] != pair[1]), (after.name, f"{before.name} (before)"))
    # Bytes of a name that are no text become their numbers.
    one, two = (one_line(name.encode("utf-8", errors="backslashreplace").decode("utf-8")) for name in names)
    return one, two


def headline(found: StudyComparison) -> str:
    """Return the one sentence that the comparison comes to: how many cells are slower or faster, and the most."""
    rows = found.of("throughput")
    of = {verdict: rows[rows["verdict"] == verdict].to_dict("records") for verdict in (WORSE, BETTER, ALIKE)}
    alike, changed = of[ALIKE], [*of[WORSE], *of[BETTER]]
    told = f"Of {plural(len(rows), 'cell')} {len(of[WORSE])} slower, {len(of[BETTER])} faster, "
    told += f"{len(alike)} without a resolved difference, {len(rows) - len(changed) - len(alike)} not judged"
    if changed:
        most = max(changed, key=lambda row: (abs(math.log(row["ratio"])), row["series"], row["workers"]))
        return f"{told}; the most: {_percent(most)} ({_place(found, most)})"
    return told + (f"; none differs by more than {_up(max(row['no_more_than'] for row in alike))}" if alike else "")


def texts(found: StudyComparison) -> list[str]:
    """Return the cells that one study alone has, and what else is not the same in both."""
    return [f"only in {_alone(found, row)}" for row in found.unmatched.to_dict("records")] + [
        f"differs: {each['what']}: {each['before'] or 'not recorded'} before, {each['after'] or 'not recorded'} after"
        for each in found.changes
    ]


def _alone(found: StudyComparison, row: Row) -> str:
    return f"{found.names[row['study'] == 'before']}: {_place(found, row)} ({row['reason']})"


def _place(found: StudyComparison, row: Row) -> str:
    """Return `Horovod/MPI, batch 75, 8 workers`, of a target with its test MSE."""
    label = style.series_labels(found.points[row.get("study") == "before"])[row["series"]]
    nodes, before = (row[name] if known(row.get(name)) else 1.0 for name in ("nodes", "before_nodes"))
    where = f" on {plural(nodes, 'node')}" if nodes > 1 or before > 1 else ""
    where += f" (before {before:.0f})" if "before_nodes" in row and nodes != before else ""
    goal = f"test MSE {scientific(row['target_mse'])}" if known(row.get("target_mse")) else ""
    setting = f"{row['setting']}" * (f"{row['setting']}" not in label)
    return ", ".join(filter(None, (label, setting, plural(row["workers"], "worker") + where, goal)))


def _change(row: Row) -> str:
    """Return the change of a row in per cent with its sign, and its interval; a dash where it is unknown."""
    ends = (100 * (row[name] - 1) for name in ("ratio", "ratio_low", "ratio_high"))
    number, _, interval = quoted(*ends).partition(" ")
    return f"{signed(number) or NOTHING} {interval}".rstrip()


def _percent(row: Row) -> str:
    value, _, interval = _change(row).partition(" ")
    return f"{value}{THIN}% {interval}".rstrip()


def _up(share: float) -> str:
    """Return an upper bound in per cent, rounded up to two digits."""
    step = 10 ** (math.floor(math.log10(100 * share)) - 1) if share else 1
    return f"{rounded(math.ceil(100 * share / step - 1e-9) * step, 2)}{THIN}%"


def _verdict(row: Row) -> str:
    """Return the verdict of a row for readers."""
    if row["verdict"] == TOO_FEW:
        return f"not resolved (too few repeats: {row['before_repeats']} and {row['after_repeats']})"
    if row["verdict"] == ALIKE:
        within = row["ratio_low"] <= 1 <= row["ratio_high"]
        limit = f"no difference larger than {_up(row['no_more_than'])}"
        return limit if within else f"not resolved among {row['tests']} cells"
    return row["word"] or f"not known: {row['note']}"


def table(found: StudyComparison) -> Table:
    """Return the table of the comparison: a group for each metric, with a row for each cell (and target)."""

    def number(row: Row, when: str) -> str:
        return rounded(row[when] * METRICS[row["metric"]].scale) if known(row[when]) else NOTHING

    def p(row: Row) -> str:
        return NOTHING if not known(row["p_holm"]) else "< 0.0001" if row["p_holm"] < 1e-4 else f"{row['p_holm']:.4f}"

    columns = (
        Column("Cell", "text", partial(_place, found), names=True, wrap=0.3),
        Column("Before", "number", partial(number, when="before"), "geom. mean"),
        Column("After", "number", partial(number, when="after"), "geom. mean"),
        Column("Change", "change", _change, "%"),
        Column("p (Holm)", "number", p),
        Column("Verdict", "text", lambda row: Cell(_verdict(row), warning=row["verdict"] == WORSE), wrap=0.25),
    )
    titles = {name: f"{how.title}{how.unit and f', {how.unit}'}" for name, how in METRICS.items()}
    return Table(
        name="against",
        title=" against ".join(found.names),
        caption=f"{found.matching} Geometric means over repeats, changes of {found.names[0]} over {found.names[1]} "
        "with 95 % intervals (Welch t on logarithms). A verdict is given where p after Holm is below 0.05",
        columns=columns,
        groups=grouped(columns, ((title, found.of(name).to_dict("records")) for name, title in titles.items())),
        data=found.differences,
    )


def lines(found: StudyComparison) -> list[str]:
    """Return the comparison for a terminal: headline, table, what else is to be said, doubts."""
    told = [f"{' against '.join(found.names)}: {headline(found)}.", found.matching, "", *to_lines(table(found)), ""]
    return [printable(line).rstrip() for line in (*told, *texts(found), *(f"doubt: {each}" for each in found.doubts))]


def gate_lines(found: StudyComparison, gate: Mapping[str, Any]) -> list[str]:
    """Return one line per cell that is slower by the limit, or missing, and the verdict of the gate last."""
    told = [f"FAILED: only in {_alone(found, row)}" for row in gate["missing"]]
    slower = [row for row in gate["checks"] if row["outcome"] == FAILED]
    told += [f"FAILED: {_place(found, row)}: throughput {_percent(row)}" for row in slower]
    counts = {word: sum(row["outcome"] == word for row in gate["checks"]) for word in ("failed", "undecided", "passed")}
    said = ", ".join(f"{count} {word}" for word, count in {**counts, "missing": len(gate["missing"])}.items())
    verdict = f"limit {100 * gate['limit']:g}{THIN}%: {'passed' if gate['passed'] else 'FAILED'}: {said}"
    return [printable(line) for line in (*told, verdict)]
