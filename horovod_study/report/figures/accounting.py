"""The complete account of recorded steps: tables and sentences."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.analysis.steps.accounting import CLOSES_S, Accounting, ResidualGate
from horovod_study.analysis.steps.breakdown import BASES, PARTS, shown
from horovod_study.records import finite
from horovod_study.report.kit.files import write_result
from horovod_study.text.numbers import MINUS, fixed, quoted
from horovod_study.text.tables import NOTHING, Group, Table, table_of, to_lines
from horovod_study.text.words import cut, plural, span, wrapped

HEADS = {**{part: part for part in PARTS}, "residual": "unexplained"}
_CELL = ["series", "workers", "nodes"]


def write_accounting(found: Accounting, gate: ResidualGate | None, directory: Path) -> list[Path]:
    """Write accounting.json and .txt, and the numbers as .csv (cells, and runs and ranks); return the paths."""
    texts = {
        "accounting.json": {**finite(found), "gate": finite(gate)},
        "accounting.txt": text(found, gate),
        "accounting.csv": found.cells,
        "accounting-runs.csv": found.run_rows(),
    }
    return write_result(directory, texts)


def text(found: Accounting, gate: ResidualGate | None) -> list[str]:
    """Return the whole account as lines."""
    doubts = [f"  {line}" for doubt in found.doubts for line in wrapped(doubt, 112, deeper="  ")]
    notes = ["incomplete or doubtful runs", *doubts] if doubts else []
    blocks = (_step_lines(found), _residual_lines(found), *_growth_lines(found), notes, gate_lines(gate))
    return [line for block in blocks if block for line in ("", *block)][1:]


def _step_lines(found: Accounting) -> list[str]:
    """Return ms per step and shares of every run, and of every worker count."""
    parts, groups = shown(found.cells, PARTS), list[Group]()

    def row(label: str, seconds: Mapping[Any, float], *, shares: bool = True) -> tuple[str, ...]:
        values = {part: seconds[part] / seconds["step"] if seconds["step"] > 0 else math.nan for part in parts}
        return (label, *(f"{_ms(seconds[part])} {f'({_share(values[part])})' * shares}" for part in parts))

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
    lines = _lines(("ms per step, and share of it", *(HEADS[part] for part in parts)), groups)
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


def _growth_lines(found: Accounting) -> list[list[str]]:
    """Return T(N) - T(1) by part against each baseline: ms with its interval, share of the whole growth, note."""
    blocks = []
    for kind in BASES:
        groups = []
        minus = f"minus_{kind}"
        grown = found.cells[(found.cells["workers"] > 1) & found.cells["lap"].isin(shown(found.cells, PARTS))]
        for _, cell in grown.groupby(_CELL, sort=False):
            step = cell[cell["lap"] == "step"].iloc[0]
            if math.isfinite(step[f"{minus}_s"]):
                rows = [
                    (
                        f"  {HEADS[row['lap']]}",
                        quoted(*(1e3 * row[f"{minus}{end}_s"] for end in ("", "_low", "_high"))) or NOTHING,
                        _share(row[f"growth_{kind}"]),
                        row["note"],
                    )
                    for row in cell.to_dict("records")
                ]
                title = f"{step['series']}, {plural(step['workers'], 'worker')}: {step[f'interval_{kind}']}"
                groups.append(Group(title=title, rows=tuple(rows)))
        if groups:
            heads = (f"T(N) {MINUS} T(1) in ms, T(1): {kind}", "ms [95 %]", "share", "")
            blocks.append(_lines(heads, groups, texts=(0, 3)))
    return blocks


def _lines(heads: Sequence[str], groups: Sequence[Group], texts: Sequence[int] = (0,)) -> list[str]:
    return to_lines(Table(columns=table_of(heads, (), texts=texts).columns, groups=tuple(groups)))


def gate_lines(gate: ResidualGate | None) -> list[str]:
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


def _ms(seconds: float) -> str:
    return fixed(1e3 * seconds, 3) if math.isfinite(seconds) else NOTHING


def _share(value: float) -> str:
    return f"{fixed(100 * value, 2)} %" if math.isfinite(value) else NOTHING
