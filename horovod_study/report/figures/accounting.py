"""The complete account of recorded steps: tables and sentences."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.analysis.steps.accounting import CLOSES_S, Accounting, RankAccount, ResidualGate, RunAccount
from horovod_study.analysis.steps.breakdown import BASES, PARTS, shown
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import MINUS
from horovod_study.text.tables import NOTHING, Group, Table, table_of, to_lines
from horovod_study.text.words import cut, plural, wrapped

NAME = "accounting"
HEADS = {**{part: part for part in PARTS}, "residual": "unexplained"}


def write_accounting(found: Accounting, gate: ResidualGate | None, directory: Path) -> list[Path]:
    """Write accounting.json and .txt, and the numbers as .csv (cells, and runs and ranks); return the paths."""
    document = {**finite(found), "gate": finite(gate)}
    texts = {
        f"{NAME}.json": document,
        f"{NAME}.txt": text(found, gate),
        f"{NAME}.csv": found.cells,
        f"{NAME}-runs.csv": found.run_rows(),
    }
    return write_result(directory, texts)


def text(found: Accounting, gate: ResidualGate | None) -> list[str]:
    """Return the whole account as lines."""
    lines = [*_step_lines(found), "", *_residual_lines(found), *_excluded_lines(found)]
    doubts = [f"  {line}" for doubt in found.doubts for line in wrapped(doubt, 112, deeper="  ")]
    notes = ["incomplete or doubtful runs", *doubts] if doubts else []
    for part in (_growth_lines(found.cells), notes, gate_lines(gate)):
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
        several = [(name, cell) for name, cell in _cells(cells) if cell["step"]["workers"] > 1]
        grown = [each for each in several if math.isfinite(each[1]["step"][f"minus_{kind}_s"])]
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
