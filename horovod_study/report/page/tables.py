"""The tables of a study, each defined once: on the page, and for a thesis as LaTeX, Markdown and CSV.

Every number is a cell of a table or document of the analysis; here it is rounded to what its interval is worth
(text/numbers.py) and gets its unit. CSV has the unrounded numbers. A table without data is left out, and so is a column
without any value. Columns and rows marked `page_only`, and what a cell has under its text, are not printed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pandas as pd

from horovod_study.analysis.forecast.holdout import COMBINED
from horovod_study.analysis.forecast.study_forecast import FORECAST
from horovod_study.analysis.laws import law_label
from horovod_study.analysis.series.points import FLAGS, baseline_words
from horovod_study.analysis.series.turns import ratios_are
from horovod_study.analysis.steps.breakdown import shown
from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.boundary import INDIRECT
from horovod_study.analysis.sync.transports import ROUNDS
from horovod_study.records import COMMAND
from horovod_study.report.figures import resources
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.style import LAPS, series_labels
from horovod_study.report.kit.typeset import FORMS, document
from horovod_study.report.page.sentences import ENVIRONMENT
from horovod_study.report.page.waits import place
from horovod_study.text.numbers import (
    DIGITS,
    MINUS,
    THIN,
    alone,
    fixed,
    known,
    percent,
    places,
    quoted,
    signed,
    significant,
)
from horovod_study.text.tables import NOTHING, Cell, Column, Group, Row, Table, row_of, text_column, with_columns
from horovod_study.text.words import listed, plural

__all__ = ["Table", "tables", "write_tables"]

BASES = ("plain", "wrapped")

_INTERVALS = "Brackets: 95 % intervals"

_GREEK = {"alpha": "\u03b1", "beta": "\u03b2", "gamma": "\u03b3"}
_MILLI = 1000.0
_PERCENT = 100.0
_SCALES = {"ms": _MILLI, "%": _PERCENT, "\u00b5s": 1e6, "10\u207b\u2074": 1e4}
"""What turns seconds, shares and errors into the unit of a column."""


def tables(analysis: Analysis) -> list[Table]:
    """Return the tables that the study has data for, in the order of the report."""
    found = [make(analysis) for make in _TABLES]
    return [table for table in found if table is not None]


def write_tables(analysis: Analysis, directory: Path) -> list[Path]:
    """Write NAME.tex, NAME.csv and NAME.md of each table, and tables.tex, which shows them all; return the paths.

    Raises RecordError when the directory cannot be written.
    """
    made = tables(analysis)
    texts = {f"{table.name}.{form}": write(table) for table in made for form, write in FORMS.items()}
    if made:
        texts["tables.tex"] = document([table.name for table in made])
    return write_result(directory, texts, choose="folder")


# ---------------------------------------------------------------------------------------------------- columns


def _counts(head: str, name: str, **how: Any) -> Column:
    return Column(head=head, cell=lambda row: _count(row[name]), **how)


def _numbers(
    head: str, name: str, *, unit: str = "", scale: float | None = None, digits: int = DIGITS, **how: Any
) -> Column:
    factor = _SCALES.get(unit, 1.0) if scale is None else scale
    return Column(head=head, unit=unit, cell=lambda row: _plain(row[name], factor, digits), **how)


def _intervals(
    head: str,
    names: tuple[str, str, str],
    *,
    unit: str = "",
    scale: float | None = None,
    exact: bool = False,
    **how: Any,
) -> Column:
    """Return a column of values with the ends of their intervals; `exact`: ends that are equal are no interval."""
    make = _ratio if exact else _interval
    factor = _SCALES.get(unit, 1.0) if scale is None else scale
    return Column(head=head, unit=unit, interval=True, cell=lambda row: make(row, *names, factor), **how)


def _medians(head: str, name: str, **how: Any) -> Column:
    return _intervals(head, (f"{name}_median", f"{name}_low", f"{name}_high"), **how)


def _noted(column: Column) -> Column:
    """Return the column with the note of the row as a warning below its cells."""
    assert column.cell is not None
    made = column.cell
    return replace(column, cell=lambda row: Cell(made(row), doubts=[f"{row['note']}"]))


_PLACE = (_counts("Workers", "workers", names=True), _counts("Nodes", "nodes"))

# ---------------------------------------------------------------------------------------------------- scaling


def _base(analysis: Analysis, kind: str) -> str:
    return baseline_words(analysis.points, kind, plain="one plain worker without a communication library")


def _points(analysis: Analysis) -> Table | None:
    base = analysis.provenance["baseline"]
    points = analysis.points
    if points.empty:
        return None
    laps = analysis.breakdown.set_index(["series", "workers", "nodes"])
    share, mean_s = laps[laps["lap"] == "sync"]["share"], laps[laps["lap"] == "step"]["mean_s"]
    places = list(zip(points["series"], points["workers"], points["nodes"], strict=True))
    points = points.assign(
        waiting_share=[share.get(place, math.nan) for place in places],
        # The step that sentences and breakdown speak of: the parts of means add up, those of medians do not.
        mean_step_s=[mean_s.get(place, math.nan) for place in places],
    )
    found = {flag for each in points["flags"] for flag in _flags(each)}
    ordered = [*(flag for flag in FLAGS if flag in found), *sorted(found - set(FLAGS))]
    marks = dict(zip(ordered, ascii_lowercase, strict=False))  # a missing point says so itself
    scale, unit = _rates(analysis, points["samples_per_s_median"])
    other = next(kind for kind in BASES if kind != base)

    def throughput(row: Row) -> str:
        spread = _spread("samples_per_s_min", "samples_per_s_max", scale, row) if row["repeats"] > 1 else ""
        names = ("samples_per_s_median", "samples_per_s_ci95_low", "samples_per_s_ci95_high")
        ends = _interval(row, *names, scale).partition(" ")  # the digits of the rate are those of the rate with outside
        return Cell("".join([_plain(row[names[0]], scale, 4), *ends[1:]]), spread)

    def notes(row: Row) -> str:
        missing = [f"no result: {row['reasons']}"] if row["missing"] else []
        return Cell(", ".join(marks[flag] for flag in _flags(row["flags"])), doubts=missing)

    return _table(
        name="points",
        title="Throughput, speedup and efficiency",
        caption=f"Medians over repeats. Speedup: throughput over that of {_base(analysis, base)}, of the same batch "
        f"and data set, {ratios_are(analysis.points)}; efficiency: speedup over workers. Step: mean. Waiting for "
        f"gradients: share of it. Outside: share of the training's time that is in no step (evaluation, checkpoints). "
        f"{_INTERVALS}; none from fewer than three repeats, and none for the baseline itself.",
        columns=(
            *_PLACE,
            Column(head="Repeats", cell=lambda row: _of(row["repeats"], row["repeats"] + row["failed"])),
            Column(head="Throughput", unit=unit, interval=True, strong=True, cell=throughput),
            _numbers("Step", "mean_step_s", unit="ms"),
            _speedups("Speedup", base, strong=True),
            _speedups(f"Speedup\nover {other}", other, page_only=True),
            _numbers("Efficiency", f"efficiency_{base}", unit="%"),
            _numbers(f"Efficiency\nover {other}", f"efficiency_{other}", unit="%", page_only=True),
            _numbers("Waiting", "waiting_share", unit="%", digits=2),
            Column(head="Outside", unit="%", cell=lambda row: _whole_percent(row["outside_share_median"])),
            _numbers("Rate\nwith it", "whole_samples_per_s_median", unit=unit, scale=scale, digits=4, page_only=True),
            _numbers("Karp-Flatt\nfraction", "karp_flatt", page_only=True),
            text_column("Notes", notes),
        ),
        cells=points,
        labels=series_labels(analysis.points),
        mode=True,
        notes=tuple(f"{mark}: {FLAGS.get(flag, flag)}." for flag, mark in marks.items()),
        keep=(
            *("series", "setting", "mode", "partition", "backend", "transport", "workers", "nodes", "batch", "repeats"),
            *("failed", "samples_per_s_median", "samples_per_s_ci95_low", "samples_per_s_ci95_high"),
            *("samples_per_s_min", "samples_per_s_max", "mean_step_s", "step_s_median"),
            *(
                f"{name}_{kind}{end}"
                for kind in BASES
                for name in ("speedup", "efficiency")
                for end in ("", "_low", "_high")
            ),
            *("karp_flatt", "waiting_share", "outside_share_median", "whole_samples_per_s_median", "flags", "reasons"),
        ),
    )


def _speedups(head: str, kind: str, **how: Any) -> Column:
    return _intervals(head, (f"speedup_{kind}", f"speedup_{kind}_low", f"speedup_{kind}_high"), exact=True, **how)


def _laws(analysis: Analysis) -> Table | None:
    fits = analysis.fits["series"]
    columns = ["series", "law", "formula", "parameter", "value", "low", "high", "rmse", "aicc", "selected"]
    columns += ["identifiable", "baseline"]
    rows = [
        (
            *(series, name, law["formula"], parameter, value, *(law["ci95"].get(parameter) or (None, None))),
            *(law["rmse"], law["aicc"], name == fit["selected"], law["identifiable"], fit["baseline"]),
            *(place == 0, _setting(analysis, series)),
        )
        for series, fit in fits.items()
        for name, law in fit["laws"].items()
        for place, (parameter, value) in enumerate(law["params"].items())
    ]
    cells = pd.DataFrame(rows, columns=[*columns, "first", "setting"])

    def law_of(row: Row) -> Cell:
        formula = row["formula"].replace(" - ", f" {MINUS} ")
        for name, letter in _GREEK.items():
            formula = formula.replace(name, letter)
        texts = (law_label(row["law"]), formula) if row["first"] else ("", "")
        return Cell(*texts, page_only=not (row["law"] in ("linear", "amdahl", "gustafson", "usl") or row["selected"]))

    return _table(
        name="laws",
        title="Fitted scaling laws",
        caption="Least squares on the median speedups over "
        f"{_base(analysis, analysis.provenance['baseline'])}. RMSE: in speedup. AICc: corrected Akaike "
        f"criterion, of which only differences within one series mean something. {_INTERVALS}. "
        "Linear: S = slope N + intercept; Amdahl: S = 1/(s + (1 \u2212 s)/N); Gustafson: S = s + (1 \u2212 s)N; "
        "USL: S = \u03b3N/(1 + \u03b1(N \u2212 1) + \u03b2N(N \u2212 1)).",
        columns=(
            text_column("Law", law_of, names=True),
            text_column("Parameter", lambda row: f"{_GREEK.get(row['parameter'], row['parameter'])}"),
            _intervals("Value", ("value", "low", "high")),
            Column(head="RMSE", cell=lambda row: _plain(row["rmse"], digits=2) if row["first"] else ""),
            Column(head="AICc", cell=lambda row: _fixed(row["aicc"], 1) if row["first"] else ""),
            text_column("Selection", lambda row: "selected" * (row["first"] and row["selected"])),
        ),
        cells=cells,
        labels=series_labels(analysis.points),
        under=lambda series: f"{fits[series]['baseline']}",
        keep=columns,
    )


# ---------------------------------------------------------------------------------------------------- a step


def _breakdown(analysis: Analysis) -> Table | None:
    return _laps(
        analysis,
        name="breakdown",
        title="Parts of a training step",
        caption="Means over steps, workers and repeats, with lowest and highest repeat of the step in brackets; the "
        "parts add up to the step. Waiting: from the end of a worker's own backward pass until the averaged gradients "
        "are there. A dash: inside the part before it, or not recorded.",
        whole=("mean_s", "min_s", "max_s"),
        part="mean_s",
        share="share",
        head="Step",
        least=1,
    )


def _lost_to(kind: str, analysis: Analysis) -> Table | None:
    """Return the growth of the step over that of one worker: of the baseline, or for `other` of the other kind."""
    baseline = analysis.provenance["baseline"]
    base = next(each for each in BASES if (each == baseline) == (kind == "baseline"))
    return _laps(
        analysis,
        name="losttime" if base == baseline else f"losttime-{base}",
        title=f"What more workers add to a step, over one {base} worker",
        caption=f"T(N) \u2212 T(1), over the step of {_base(analysis, base)} (with a fixed global batch: over that "
        f"step / N), and the part of each lap in it. {_INTERVALS}.",
        whole=(f"minus_{base}_s", f"minus_{base}_low_s", f"minus_{base}_high_s"),
        part=f"minus_{base}_s",
        share=f"growth_{base}",
        head="Together",
        least=2,
    )


def _laps(
    analysis: Analysis, *, whole: Sequence[str], part: str, share: str, head: str, least: int, **words: Any
) -> Table | None:
    """Return a table of the laps in ms; all numbers of a row end at the same digit, so that they add up.

    `words`: its name, title and caption.
    """
    parts = analysis.breakdown
    parts = parts[parts["workers"] >= least]
    order = shown(parts, tuple(LAPS))
    if "compute" in order:
        words["caption"] += (
            " Compute: one CUDA graph of forward and backward, of a worker alone with the update; then the growth of "
            "compute holds that of the update."
        )
    cells = []
    for series, own in parts.groupby("series", sort=False):
        for _, cell in own.groupby(["workers", "nodes"], sort=True):
            laps = {row["lap"]: row for row in cell.to_dict("records")}
            value, low, high = (_MILLI * float(laps["step"].get(each, math.nan)) for each in whole)
            if known(value):
                ends = known(low) and known(high) and low != high
                decimals = min(3, max(1, places(value, low, high) if ends else significant(value)))
                brackets = f" [{fixed(low, decimals)}, {fixed(high, decimals)}]" if ends else ""
                told = {"setting": _setting(analysis, f"{series}"), "whole": f"{fixed(value, decimals)}{brackets}"}
                cells.append(laps["step"] | told | {"decimals": decimals, "laps": laps})
    return _table(
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            Column(head=head, unit="ms", interval=True, cell=lambda row: row["whole"]),
            *(
                Column(
                    head={"sync": "Waiting", "residual": "Unex-\nplained"}.get(lap, lap.capitalize()),
                    unit="ms",
                    cell=partial(_lap, lap, part, share),
                )
                for lap in order
            ),
        ),
        cells=pd.DataFrame(cells),
        labels=series_labels(analysis.points),
        data=parts[["series", "workers", "nodes", "repeats", "lap", *dict.fromkeys((*whole, part)), "share", "note"]],
        **words,
    )


def _lap(lap: str, part: str, share: str, cell: Row) -> str:
    """Return the time of a lap in ms; below it its share of the step or of the growth, or why it is unknown."""
    row, decimals = cell["laps"][lap], cell["decimals"]
    text = _fixed(_MILLI * row[part], decimals)
    if text == NOTHING:
        return Cell(text, f"{row['note']}" if not known(row["mean_s"]) else "")
    return Cell(text, percent(row[share], decimals=0) if known(row.get(share)) else "")


def _parallel(analysis: Analysis) -> Table | None:
    points = analysis.points
    names = ("load_balance", "communication_efficiency", "parallel_efficiency")
    if not {f"{name}_median" for name in names} <= set(points.columns):
        return None
    points = points[points["parallel_efficiency_median"].notna()]
    return _table(
        name="balance",
        title="Balance between the workers",
        caption="Medians over repeats. Parallel efficiency = load balance (mean over largest useful time of a worker) "
        "times communication efficiency (largest useful time over run time), after POP. Skew: from the mean to the "
        "last worker's gradients, per step; among the losses of a step stands its mean over repeats.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            _numbers("Load\nbalance", "load_balance_median", unit="%"),
            _numbers("Communication\nefficiency", "communication_efficiency_median", unit="%"),
            _numbers("Parallel\nefficiency", "parallel_efficiency_median", unit="%"),
            _numbers("Skew", "skew_s_median", unit="ms", digits=2),
        ),
        cells=points,
        labels=series_labels(analysis.points),
        keep=("series", "workers", "nodes", "repeats", *(f"{name}_median" for name in names), "skew_s_median"),
    )


# ---------------------------------------------------------------------------------------------------- synchronisation


def _synchronisation(analysis: Analysis) -> Table | None:
    cells = analysis.synchronisation
    cells = cells[(cells["workers"] > 1) & (cells["sync_s_median"].notna() | (cells["note"] != ""))]
    if cells["sync_s_median"].notna().sum() == 0:
        return None

    def law_of(series: str) -> str:
        fit = analysis.sync_fits["series"].get(series)
        name = fit and fit["selected"]
        return f"{law_label(name)}: {fit['laws'][name]['formula']}" if name else ""

    return _table(
        name="synchronisation",
        title="Waiting for gradients",
        caption="Medians over repeats of the mean over steps; per epoch: times the batches of an epoch. A dash: hidden "
        f"inside the backward pass. {_INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            _noted(_medians("Median\nper step", "sync_s", unit="ms", strong=True)),
            _medians("Median\nof the step", "share", unit="%"),
            _counts("Batches\nper epoch", "batches_per_epoch"),
            _medians("Median\nper epoch", "sync_per_epoch_s", unit="s"),
        ),
        cells=cells,
        labels=series_labels(cells),
        under=law_of,
        keep=tuple(name for name in cells.columns if name not in ("reduction", "horovod_defaults")),
    )


def _boundary(analysis: Analysis) -> Table | None:
    return _table(
        name="boundary",
        title="What another node adds",
        caption="Waiting for gradients per step on fewer and on more nodes, means over repeats. Direct: equal workers; "
        "indirect: the next worker count needs another node, so that part of it is due to the further workers. "
        f"{_INTERVALS}.",
        columns=(
            text_column("From", partial(_side, "fewer"), wrap=True),
            text_column("To", partial(_side, "more"), wrap=True),
            text_column("Kind", lambda row: Cell(f"{row['kind']}", f"{row['note']}")),
            Column(head="Repeats", cell=lambda row: _of(row["fewer_repeats"], row["more_repeats"], ", ")),
            _numbers("Before", "fewer_sync_s", unit="ms"),
            _numbers("After", "more_sync_s", unit="ms"),
            Column(head="Jump", unit="ms", interval=True, strong=True, cell=_jump),
            _intervals("Jump of\nthe step", ("step_jump_s", "step_low_s", "step_high_s"), unit="ms", page_only=True),
            text_column(
                "Verdict", lambda row: {True: "resolved", False: "not resolved"}.get(row["resolved"], "unknown")
            ),
        ),
        cells=analysis.boundary,
        labels=series_labels(analysis.nodes),
    )


def _turns(analysis: Analysis) -> Table | None:
    """Return both components of the speedups that are ratios within rounds; None of a study without turns."""
    points = analysis.points
    if "turns_launches" not in points.columns:
        return None
    base = "plain" if points["speedup_plain"].notna().any() else "wrapped"
    return _table(
        name="turns",
        title="Speedups from turns",
        caption=f"Ratios to {_base(analysis, base)} within rounds of cells that alternate. Error of rounds: the "
        "standard error that rounds alone leave, their memory of each other included; launches: the standard deviation "
        "of what new processes change; cancelled: the share of both cells' scatter that is not in their ratio. Rounds "
        f"that other programs loaded are set aside. {_INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Launches", "turns_launches"),
            _counts("Rounds", "turns_rounds"),
            _counts("Set\naside", "turns_set_aside"),
            _speedups("Speedup", base, strong=True),
            _numbers("Scatter\nof a round", "turns_round_sd", unit="%", digits=2),
            _numbers("Memory", "turns_memory", unit="rounds", digits=2),
            _numbers("Error\nof rounds", "turns_round_error", unit="%", digits=2),
            _numbers("Launches\ndiffer by", "turns_launch_sd", unit="%", digits=2),
            _numbers("Cancelled", "turns_cancelled", unit="%", digits=2),
        ),
        cells=points[points["turns_launches"].notna()],
        labels=series_labels(points),
    )


def _side(side: str, row: Row) -> str:
    """Return where the workers of one side were, and below it the network path that the runs recorded."""
    where = place(row[f"{side}_workers"], row[f"{side}_nodes"], row[f"{side}_per_node"])
    return Cell(where, f"{row[f'{side}_path']}")


def _jump(row: Row) -> str:
    """Return the jump of the waiting, and of an indirect one what exceeds the growth with the workers."""
    text = _interval(row, "jump_s", "low_s", "high_s", _MILLI)
    beyond = ("beyond_s", "beyond_low_s", "beyond_high_s")
    told = row["kind"] == INDIRECT and known(row["beyond_s"])
    return Cell(signed(text), f"beyond growth: {signed(_interval(row, *beyond, _MILLI))}" if told else "")


def _transports(analysis: Analysis) -> Table | None:
    pairs = analysis.transports
    labels = series_labels(analysis.synchronisation)

    def value(name: str, row: Row) -> str:
        return _plain(row[name], 1.0 if row["quantity"] == "samples_per_s" else _MILLI)

    def verdict(row: Row) -> Cell:
        text = f"{row['better'].upper()} is better" if row["better"] else f"{row['verdict']}"
        return Cell(text, doubts=[f"{row['note']}"])

    return _table(
        name="transports",
        title="Backends compared, pair by pair",
        caption="Geometric means over pairs of runs of the same repeat, their ratio"
        + (" (of throughputs within rounds of turns)" if (pairs["test"] == ROUNDS).any() else "")
        + f", and p after Holm over the worker counts. {_INTERVALS}. Pairs needed: how many would resolve a difference "
        "of 1 %.",
        columns=(
            text_column(
                "Quantity", lambda row: {"samples_per_s": "samples/s", "sync_s": "waiting, ms"}[row["quantity"]]
            ),
            _PLACE[0],
            _counts("Pairs", "pairs"),
            Column(head="A", cell=partial(value, "a_value")),
            Column(head="B", cell=partial(value, "b_value")),
            _intervals("B/A", ("ratio", "ratio_low", "ratio_high"), strong=True),
            Column(head="p", cell=lambda row: Cell(_chance(row["p_holm"]), f"{row['test']}")),
            text_column("Verdict", verdict),
            _counts("Pairs\nneeded", "pairs_needed", page_only=True),
        ),
        cells=pairs,
        by=["a", "b"],
        labels={
            (a, b): f"{labels.get(b, b)} (B) against {labels.get(a, a)} (A)"
            for a, b in set(zip(pairs["a"], pairs["b"], strict=True))
        },
    )


def _cycle(analysis: Analysis) -> Table | None:
    cells = analysis.cycle
    return _table(
        name="cycle",
        title="Waiting against Horovod's cycle time",
        caption="What a longer cycle adds to the waiting of a step, what is left without one, and the share of the "
        f"cycle at Horovod's default. {_INTERVALS}.",
        columns=(
            _counts("Workers", "workers"),
            Column(head="Cycles", unit="ms", cell=partial(_spread, "shortest_cycle_s", "longest_cycle_s", _MILLI)),
            _counts("Runs", "runs"),
            _intervals("Slope", ("slope", "slope_low", "slope_high"), unit="ms/ms"),
            _spans("Expected\nslope", ("expected_low", "expected_high"), page_only=True),
            _intervals("Rest", ("rest_s", "rest_low_s", "rest_high_s"), unit="ms"),
            _intervals("Share", ("share_at_default", "share_low", "share_high"), unit="%"),
            _noted(text_column("Verdict", "verdict", wrap=True)),
        ),
        cells=cells,
        labels=series_labels(cells),
    )


# ---------------------------------------------------------------------------------------------------- batch sizes


def _batches(analysis: Analysis) -> Table | None:
    cells = analysis.batches
    scale, unit = _rates(analysis, cells["samples_per_s_median"])
    return _table(
        name="batches",
        title="Batch sizes",
        caption="Medians over repeats. Waiting: share of the step. Epoch: its whole batches times the step. "
        f"{_INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Batch", "batch"),
            _counts("Repeats", "repeats"),
            _medians("Throughput", "samples_per_s", unit=unit, scale=scale),
            _numbers("Step", "step_s_median", unit="ms"),
            _numbers("Waiting", "overhead_median", unit="%"),
            _medians("Epoch", "epoch_s", unit="s"),
        ),
        cells=cells,
        labels=series_labels(cells),
    )


def _knees(analysis: Analysis) -> Table | None:
    knees = analysis.knees
    knees = knees[knees["form"] != ""]
    scale, unit = _rates(analysis, knees["most_samples_per_s"])

    return _table(
        name="knees",
        title="Where a larger batch stops paying",
        caption="Knee: the batch of one worker at which the fixed costs of a step equal those of its samples; largest "
        f"throughput: the limit of large batches. {_INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Batches", "batches", page_only=True),
            _noted(text_column("Form", "form", page_only=True)),
            Column(head="Knee", unit="samples", interval=True, strong=True, cell=_knee),
            _intervals("Fixed", ("fixed_s", "fixed_low_s", "fixed_high_s"), unit="ms"),
            _intervals("Per sample", ("per_sample_s", "per_sample_low_s", "per_sample_high_s"), unit="\u00b5s"),
            _intervals("Largest\nthroughput", ("most_samples_per_s", "most_low", "most_high"), unit=unit, scale=scale),
            _numbers("Batch\nfor 90 %", "batch_for_90_percent", page_only=True),
        ),
        cells=knees,
        labels=series_labels(knees),
    )


def _knee(row: Row) -> str:
    if known(row["knee"]):
        return _interval(row, "knee", "knee_low", "knee_high")
    return _bound(row, "knee", digits=2) or NOTHING


def _bound(row: Row, name: str, **how: int) -> str:
    """Return the upper or the lower bound of a value that is not known itself; empty where there is none."""
    for bound, sign in ((f"{name}_at_most", "<"), (f"{name}_at_least", ">")):
        if known(row[bound]):
            return f"{sign}{THIN}{_plain(row[bound], **how)}"
    return ""


# ---------------------------------------------------------------------------------------------------- forecasts


def _forecast(analysis: Analysis) -> Table | None:
    rows = analysis.forecast
    rows = rows[rows["kind"] == FORECAST]
    scale, unit = _rates(analysis, rows["samples_per_s"])

    return _table(
        name="forecast",
        title="Forecast throughput",
        caption="Not measured: throughput on more workers than were run, with the 95 % interval for a single "
        "run in brackets, and its share of ideal scaling. The hold-out error of this method is in the table of hidden "
        "counts.",
        columns=(
            *_PLACE,
            _intervals("Throughput", ("samples_per_s", "low", "high"), unit=unit, scale=scale, strong=True),
            _numbers("Of ideal", "efficiency", unit="%", digits=2),
        ),
        cells=rows,
        labels=series_labels(analysis.points),
        doubts=partial(_forecast_doubts, analysis, rows),
        keep=(
            *("series", "setting", "workers", "nodes", "samples_per_s", "low", "high", "ideal_samples_per_s"),
            *("efficiency", "law", "doubts"),
        ),
    )


def _forecast_doubts(analysis: Analysis, rows: pd.DataFrame, series: str) -> list[str]:
    """Return each doubt about the forecasts of one series once, with the worker counts that it is about."""
    counts: dict[str, list[str]] = {}
    for row in rows[rows["series"] == series].to_dict("records"):
        for doubt in filter(None, row["doubts"].split("; ")):
            counts.setdefault(doubt, []).append(f"{row['workers']}")
    why_not = analysis.holdout["series"][series]["why_not"]
    unscored = [f"not scored: {why_not}"] if why_not else []
    return [*unscored, *(f"{listed(of)} workers: {doubt}" for doubt, of in counts.items())]


def _holdout(analysis: Analysis) -> Table | None:
    labels = series_labels(analysis.points)
    groups, data = [], []
    for series, scored in analysis.holdout["series"].items():
        own: list[tuple[str, ...]] = []
        title = ", ".join(filter(None, (labels.get(series, series), _setting(analysis, series))))
        if scored["why_not"]:
            own.append((Cell(f"not scored: {scored['why_not']}", columns=6, warning=True, page_only=True),))
        for law, one in scored["laws"].items():
            of_law = [each for each in scored["forecasts"] if each["law"] == law]
            covered = [each["covered"] for each in of_law if each["covered"] is not None]
            errors = [f"{each['workers']} by {signed(percent(each['error']))}" for each in of_law]
            name = "combined forecast" if law == COMBINED else law_label(law)
            scores = {name: one[name] for name in ("targets", "median_ape", "worst_ape", "bias", "coverage", "fails")}
            data.append({"series": series, "law": law, "known_to": scored["known"][-1], **scores})
            own.append(
                (
                    Cell(name, ", ".join(errors), doubts=[f"fails: {one['fails']}"] if one["fails"] else ()),
                    f"{scored['known'][-1]}",
                    ", ".join(f"{count}" for count in scored["hidden"]),
                    _plain(one["median_ape"], _PERCENT, 2),
                    _plain(one["worst_ape"], _PERCENT, 2),
                    _of(sum(covered), len(covered)) if covered else NOTHING,
                )
            )
        if own:
            groups.append(Group(title=Cell(title, _rolling(scored), doubts=scored["doubts"]), rows=tuple(own)))
    if not data:
        return None
    return Table(
        name="holdout",
        title="Hold-out error: forecasts of hidden worker counts",
        caption="The same forecasts, made without the largest worker counts and compared with what was measured there. "
        "Errors: |forecast / measured \u2212 1|. Covered: measured values inside the 95 % interval. A law is here "
        "if it is the one selected for all points.",
        columns=(
            Column(head="Method", number=False, names=True),
            Column(head="Known\nup to"),
            Column(head="Hidden"),
            Column(head="Median\nerror", unit="%"),
            Column(head="Worst\nerror", unit="%"),
            Column(head="Covered"),
        ),
        groups=tuple(groups),
        data=pd.DataFrame(data),
    )


def _rolling(scored: Mapping[str, Any]) -> str:
    """Return what hiding one count, then two, and so on gave, where that are more forecasts."""
    rolling, own = scored["rolling"], [each for each in scored["forecasts"] if each["law"] == COMBINED]
    if rolling is None or rolling["targets"] <= len(own):
        return ""
    return (
        f"hiding one count, then two, and so on: {plural(rolling['targets'], 'forecast')}, median error "
        f"{percent(rolling['median_ape'])}, {percent(rolling['coverage'])} in the interval"
    )


_QUESTIONS = {"knee": "knee", "usl_peak": "highest throughput (USL)", "cheapest": "lowest cost per sample"}


def _recommended(analysis: Analysis) -> Table | None:
    rows = []
    for series, scored in analysis.holdout["series"].items():
        answers = (scored["recommendation"] or {"answers": {}})["answers"]
        for name in _QUESTIONS:
            one = answers.get(name)
            if one is not None and not one["why_not"]:
                kept = ("workers", "low", "high", "searched_to", "samples_per_s", "doubts")
                own = {"series": series, "question": name, **{column: one[column] for column in kept}}
                rows.append({**own, "setting": _setting(analysis, series)})

    def count(row: Row) -> str:
        if not known(row["workers"]):
            return f"\u2265{THIN}{row['low']:.0f}"
        high = f"{row['high']:.0f}" if known(row["high"]) else f"beyond {row['searched_to']:.0f}"
        return f"{row['workers']:.0f} [{row['low']:.0f}, {high}]"

    return _table(
        name="workers",
        title="Recommended worker counts",
        caption="Knee: where one more worker gains less than half of what a worker brings on average. Highest "
        f"throughput: the peak of the USL. {_INTERVALS}; beyond: no upper bound up to that count.",
        columns=(
            text_column("Question", lambda row: Cell(_QUESTIONS[row["question"]], doubts=row["doubts"]), names=True),
            Column(head="Workers", interval=True, strong=True, cell=count),
            _numbers("Throughput", "samples_per_s", unit=analysis.rate_unit),
        ),
        cells=pd.DataFrame(rows),
        labels=series_labels(analysis.points),
        keep=("series", "question", "workers", "low", "high", "searched_to", "samples_per_s"),
    )


# ---------------------------------------------------------------------------------------------------- learning


def _learning(analysis: Analysis) -> Table | None:
    cells = analysis.learning
    cells = cells[cells["best_mse_median"].notna()]
    return _table(
        name="learning",
        title="Best test errors",
        caption="The median run, with lowest and highest repeat in brackets. Efficiency: statistical floor over test "
        "MSE. Rate r: the test MSE falls as samples to the power \u2212r, with its 95 % interval.",
        columns=(
            *_PLACE,
            Column(head="Repeats", cell=_learned_repeats),
            Column(head="Best test MSE", unit="10\u207b\u2074", interval=True, strong=True, cell=_best_mse),
            _numbers("Efficiency", "efficiency", unit="%", digits=2),
            _counts("Epochs", "best_epoch"),
            _numbers("Training", "best_train_s", unit="s"),
            _intervals("Rate", ("rate", "rate_low", "rate_high")),
        ),
        cells=cells,
        labels=series_labels(analysis.points),
        keep=(
            *("series", "setting", "workers", "nodes", "repeats", "diverged", "best_mse_median", "best_mse_min"),
            *("best_mse_max", "best_epoch", "best_samples", "best_train_s", "best_wall_s", "final_mse_median"),
            *("floor_mse", "efficiency", "rate", "rate_low", "rate_high", "rate_interval"),
        ),
    )


def _learned_repeats(row: Row) -> Cell:
    return Cell(_count(row["repeats"]), doubts=[f"{row['diverged']:.0f} diverged"] if row["diverged"] else ())


def _targets(analysis: Analysis) -> Table | None:
    cells = analysis.targets.sort_values(["target_mse", "workers"], ascending=[False, True], kind="stable")
    base = analysis.provenance["baseline"]
    return _table(
        name="targets",
        title="Time to target",
        caption="The median run. Speedup to the target over "
        f"{_base(analysis, base)} = throughput ratio \u00d7 statistical efficiency. {_INTERVALS}; < and > are "
        "before bounds from targets that were not met.",
        columns=(
            _numbers("Target\ntest MSE", "target_mse", unit="10\u207b\u2074", digits=2),
            *_PLACE,
            Column(head="Met by", cell=lambda row: _of(row["reached"], row["repeats"])),
            Column(head="Training", unit="s", strong=True, cell=_training),
            Column(head="With\nevaluation", unit="s", page_only=True, cell=lambda row: _bounded(row, "wall_s")),
            Column(head="Samples", unit="10\u2076", cell=lambda row: _bounded(row, "samples", 1e-6)),
            Column(
                head="Speedup\nto target",
                interval=True,
                strong=True,
                cell=lambda row: _bound(row, "speedup") or _ratio(row, "speedup", "speedup_low", "speedup_high"),
            ),
            _numbers("Throughput\nratio", "throughput_ratio"),
            _numbers("Statistical\nefficiency", "statistical_efficiency"),
            _numbers("Speedup with\nevaluation", "speedup_wall", page_only=True),
        ),
        cells=cells,
        labels=series_labels(analysis.points),
    )


def _training(row: Row) -> str:
    spread = _spread("train_s_min", "train_s_max", 1.0, row) if row["repeats"] > 1 else ""
    return Cell(_bounded(row, "train_s"), "at the first evaluation or before" if row["note"] else spread)


def _bounded(row: Row, name: str, scale: float = 1.0) -> str:
    if row["censored"]:
        return f">{THIN}{_plain(row[f'{name}_at_least'], scale)}"
    return _plain(row[name], scale)


# ---------------------------------------------------------------------------------------------------- resources


def _resources(analysis: Analysis) -> Table | None:
    cells = analysis.resources
    on_gpu = ~cells["device"].isin(["", "cpu"])
    if cells.empty or not (cells["energy_per_sample_j_median"].notna().any() or on_gpu.any()):
        return None
    scales = resources.scales(analysis)
    word = resources.hours_word(analysis)
    (energy, joules), (hours, hour) = scales["energy_per_sample_j"], scales["worker_hours_per_epoch"]
    read = cells.drop_duplicates("series").set_index("series")["energy_of"]

    return _table(
        name="resources",
        title=f"Energy and {word} hours",
        caption="Medians over repeats, of the timed window. Energy ratio: per sample, over one plain worker. Speedup "
        f"per joule: speedup over energy ratio. {_INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            _numbers("Power", "power_w_median", unit="W"),
            _medians("Energy\nper sample", "energy_per_sample_j", unit=joules, scale=1 / energy, strong=True),
            _intervals("Energy\nratio", ("energy_ratio", "energy_ratio_low", "energy_ratio_high"), exact=True),
            _numbers("Speedup\nper joule", "speedup_per_joule", page_only=True),
            _medians(f"{word} time\nper epoch", "worker_hours_per_epoch", unit=hour, scale=1 / hours, strong=True),
            _numbers(
                f"{word} time\nof a run", "worker_hours_of_run_median", unit=hour, scale=1 / hours, page_only=True
            ),
        ),
        cells=cells,
        labels=series_labels(analysis.points),
        under=lambda series: f"energy of {resources.devices(read[series])}" if read[series] else "",
    )


# ---------------------------------------------------------------------------------------------------- provenance


def _environment(analysis: Analysis) -> Table | None:
    environments = analysis.provenance["environment"]
    if not environments:
        return None
    groups = [
        Group(
            title=f"{plural(each['runs'], 'run')} on partition {each.get('partition') or NOTHING}",
            rows=tuple(
                (word, f"{each[key]}")
                for key, word in ENVIRONMENT.items()
                if key != "partition" and each.get(key) not in (None, "")
            ),
        )
        for each in environments
    ]
    return Table(
        name="environment",
        title="Machines and software",
        caption="As the runs recorded them.",
        columns=(Column(head="What", number=False), Column(head="Recorded", number=False, wrap=True)),
        groups=tuple(group for group in groups if group.rows),
        data=pd.DataFrame(environments),
    )


def _measurement(analysis: Analysis) -> Table | None:
    measured = analysis.provenance["measurement"]
    if not measured:
        return None
    labels = series_labels(analysis.points)
    return _table(
        name="measurement",
        title="How it was measured",
        caption="Per series, smallest to largest value over its finished runs. Settings: those of the communication "
        "library. Left out: steps before the timed window.",
        columns=(
            text_column("Setting", lambda row: _setting(analysis, row["series"]), wrap=True),
            *(() if analysis.points["backend"].eq(COMMAND).all() else _OF_TRAINING),
            _spans("Training\nset", "train_samples", unit="samples"),
            _spans("Repeats\nper point", "repeats"),
            _spans("Timed\nwindow", "window_s", unit="s"),
            _spans("Timed\nsteps", "steps"),
            _spans("Left\nout", "excluded_steps"),
        ),
        cells=pd.DataFrame([{**each, "label": labels.get(each["series"], each["series"])} for each in measured]),
        labels=series_labels(analysis.points),
        by="label",
        data=pd.DataFrame(
            {
                **{key: value for key, value in each.items() if not isinstance(value, list)},
                **{f"{name}_{end}": value for name in _MEASURED for end, value in _ends(each.get(name))},
            }
            for each in measured
        ),
    )


_OF_TRAINING = (
    text_column("Precision", "precision"),
    text_column("Gradients", "reduction"),
    text_column("Settings", lambda row: "stock" if row["stock_settings"] else "shipped"),
)
_MEASURED = ("train_samples", "repeats", "window_s", "steps", "excluded_steps")


def _spans(head: str, ends: str | tuple[str, str], **how: Any) -> Column:
    """Return a column of ranges: `ends` is the column that holds both ends, or the two that hold one each."""
    return Column(
        head=head,
        cell=lambda row: _range(row.get(ends) if isinstance(ends, str) else [row[end] for end in ends]),
        **how,
    )


def _ends(ends: Sequence[float | None] | None) -> list[tuple[str, float | None]]:
    return list(zip(("min", "max"), ends or (None, None), strict=True))


def _range(ends: Sequence[float | None] | None) -> str:
    texts = [_count(end) if known(end) and float(end or 0).is_integer() else _plain(end) for _, end in _ends(ends)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _doubts(analysis: Analysis) -> Table | None:
    doubts = [f"{each}" for each in analysis.provenance["doubts"]]
    return _table(
        name="doubts",
        title="Doubts",
        caption="What the analysis found that a reader must know before quoting a number.",
        columns=(_counts("No.", "place"), text_column("Doubt", "doubt", wrap=True)),
        cells=pd.DataFrame({"doubt": doubts, "place": range(1, len(doubts) + 1)}),
        by=[],
        keep=("doubt",),
    )


def _failed(analysis: Analysis) -> Table | None:
    labels = series_labels(analysis.points)
    return _table(
        name="failed",
        title="Runs without a result",
        caption="No values were substituted.",
        columns=(
            text_column("Run", lambda row: Cell(f"{row['run']}", code=True), wrap=True, names=True),
            text_column("Series", lambda row: labels.get(row["series"], f"{row['series']}"), wrap=True),
            _counts("Workers", "workers"),
            Column(head="Repeat", page_only=True, cell=lambda row: f"{row['repeat']}"),
            text_column("Status", "status"),
            text_column("Reason", "reason", wrap=True),
        ),
        cells=pd.DataFrame(analysis.provenance["failed"]),
        by=[],
    )


_TABLES: tuple[Callable[[Analysis], Table | None], ...] = (
    *(_points, _turns, _laws, _breakdown, partial(_lost_to, "baseline"), partial(_lost_to, "other"), _parallel),
    *(_synchronisation, _boundary, _transports, _cycle),
    *(_batches, _knees, _forecast, _holdout, _recommended, _learning, _targets, _resources),
    *(_measurement, _environment, _doubts, _failed),
)


# ---------------------------------------------------------------------------------------------------- cells


def _count(value: Any) -> str:
    return _fixed(value, 0)


def _of(part: Any, whole: Any, between: str = " of ") -> str:
    """Return `2 of 3`, and the number alone where it is the whole."""
    texts = (_count(part), _count(whole))
    return texts[0] if texts[0] == texts[1] else between.join(texts)


def _rates(analysis: Analysis, rates: pd.Series) -> tuple[float, str]:
    """Return the scale and the unit of a column of throughputs: thousands where there are millions."""
    unit = analysis.rate_unit
    return (1e-3, f"10\u00b3 {unit}") if rates.max() >= 1e6 else (1.0, unit)


def _plain(value: Any, scale: float = 1.0, digits: int = DIGITS) -> str:
    return alone(scale * float(value), digits) if known(value) else NOTHING


def _whole_percent(share: Any) -> str:
    return percent(share).removesuffix(f"{THIN}%") if known(share) else NOTHING


def _fixed(value: Any, decimals: int) -> str:
    return fixed(float(value), decimals) if known(value) else NOTHING


def _interval(row: Row, middle: str, low: str, high: str, scale: float = 1.0) -> str:
    values = [row[name] for name in (middle, low, high)]
    return quoted(*(scale * value for value in values)) if all(map(known, values)) else _plain(values[0], scale)


def _ratio(row: Row, middle: str, low: str, high: str, scale: float = 1.0) -> str:
    """Return a ratio to the baseline; that of the baseline to itself is exact and has no interval."""
    if known(row[middle]) and row[low] == row[high]:
        return fixed(scale * row[middle], 0)
    return _interval(row, middle, low, high, scale)


def _best_mse(row: Row) -> str:
    """Return the best test MSE in 1e-4 with its lowest and highest repeat."""
    names = ("best_mse_median", "best_mse_min", "best_mse_max")
    return _plain(row[names[0]], 1e4) if row[names[1]] == row[names[2]] else _interval(row, *names, 1e4)


def _spread(low: str, high: str, scale: float, row: Row) -> str:
    """Return `95.1 to 102`, from two columns of a row; empty where they are not known."""
    ends = [_plain(row[end], scale) for end in (low, high)]
    return "" if NOTHING in ends else " to ".join(ends)


def _chance(p: Any) -> str:
    if not known(p):
        return NOTHING
    return f"<{THIN}0.001" if p < 0.001 else fixed(p, min(3, max(2, significant(p, 1))))


def _flags(text: Any) -> list[str]:
    return f"{text}".split() if isinstance(text, str) else []


# ---------------------------------------------------------------------------------------------------- rows


def _setting(analysis: Analysis, series: str) -> str:
    own = analysis.points.loc[analysis.points["series"] == series, "setting"]
    return f"{own.iloc[0]}" if len(own) else ""


def _table(
    *,
    cells: pd.DataFrame,
    columns: Sequence[Column],
    labels: Mapping[Any, str] | None = None,
    by: str | list[str] = "series",
    mode: bool = False,
    keep: Sequence[str] = (),
    data: pd.DataFrame | None = None,
    under: Callable[[str], str] = lambda series: "",
    doubts: Callable[[str], Sequence[str]] = lambda series: (),
    **values: Any,
) -> Table | None:
    """Return a table with one group per series, in their order, titled with label and setting; None of no cells.

    `by`: columns that groups share instead; none of them, and there is one group without a title. `keep`: columns of
    `cells` that become its CSV, all of them by default, or `data` instead. `mode`: titles say the scaling, too.
    `under` and `doubts` make what a page shows below the title of a series.
    """
    if cells.empty:
        return None
    groups = []
    parts: Iterable[tuple[Any, pd.DataFrame]] = cells.groupby(by, sort=False) if by else [("", cells)]
    for group, own in parts:
        first = own.iloc[0]
        more = [first["setting"]] if by and "setting" in own.columns else []
        more += [f"{first['mode']} scaling"] if mode and first["mode"] not in ("single", COMMAND) else []
        rows = tuple(row_of(columns, each) for each in own.to_dict("records"))
        title = ", ".join(filter(None, ((labels or {}).get(group, f"{group}"), *more)))
        groups.append(Group(title=Cell(title, under(f"{group}"), doubts=doubts(f"{group}")), rows=rows))
    kept = [name for name in keep if name in cells.columns] or list(cells.columns)
    data = cells[kept].reset_index(drop=True) if data is None else data
    # A column without any value says nothing, nor does one node everywhere.
    empty = {place: {NOTHING, "1" if column.head == "Nodes" else ""} for place, column in enumerate(columns)}
    told = [place for place in empty if not {row[place] for group in groups for row in group.rows} <= empty[place]]
    return with_columns(Table(columns=tuple(columns), groups=tuple(groups), data=data, **values), told)
