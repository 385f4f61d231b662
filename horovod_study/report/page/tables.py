"""The tables of a study, for a thesis: LaTeX, Markdown, and CSV with the unrounded numbers.

Every number is a cell of a table or document of the analysis; here it is rounded to what its interval
is worth (digits.py) and gets its unit. A table without data is left out, and so is a column that nothing is known of.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.analysis.breakdown import shown
from horovod_study.analysis.forecast import FORECAST
from horovod_study.analysis.holdout import COMBINED
from horovod_study.analysis.laws import law_label
from horovod_study.analysis.points import FLAGS
from horovod_study.analysis.study import Analysis
from horovod_study.errors import RecordError
from horovod_study.files import not_written, result_folder, write_file
from horovod_study.report.figures import boundary
from horovod_study.report.kit.style import LAPS, series_labels
from horovod_study.report.kit.typeset import document, to_csv, to_latex, to_markdown
from horovod_study.report.page.sentences import ENVIRONMENT
from horovod_study.text.numbers import DIGITS, THIN, alone, fixed, known, places, quoted, significant
from horovod_study.text.tables import NOTHING, Column, Group, Table, row_of
from horovod_study.text.words import plural

__all__ = ["Table", "tables", "write_tables"]

CLASSIC = ("linear", "amdahl", "gustafson", "usl")
"""Laws in the table of every series; another one where it is the selected one, and all of them in its CSV."""

BASES = {"plain": "one plain worker without a communication library", "wrapped": "one worker of the same library"}

INTERVALS = "Brackets: 95 % intervals"

_GREEK = {"alpha": "\u03b1", "beta": "\u03b2", "gamma": "\u03b3"}
_MILLI = 1000.0
_PERCENT = 100.0

Rows = Sequence[Mapping[Any, Any]]


def tables(analysis: Analysis) -> list[Table]:
    """Return the tables that the study has data for, in the order of the report."""
    found = [make(analysis) for make in _TABLES]
    return [table for table in found if table is not None]


def write_tables(analysis: Analysis, directory: Path) -> list[Path]:
    """Write NAME.tex, NAME.csv and NAME.md of each table, and tables.tex, which shows them all; return the paths.

    Raises RecordError when the directory cannot be written.
    """
    made = tables(analysis)
    texts = {
        f"{table.name}.{form}": write(table)
        for table in made
        for form, write in (("tex", to_latex), ("csv", to_csv), ("md", to_markdown))
    }
    if made:
        texts["tables.tex"] = document([table.name for table in made])
    paths = [directory / name for name in texts]
    try:
        result_folder(directory)
        for path, text in zip(paths, texts.values(), strict=True):
            write_file(path, text)
    except OSError as error:
        raise RecordError(not_written(directory, error, "choose a writable folder")) from None
    return paths


# ---------------------------------------------------------------------------------------------------- columns


def _counts(head: str, name: str) -> Column:
    return Column(head=head, cell=lambda row: _count(row[name]))


def _numbers(head: str, name: str, *, unit: str = "", scale: float = 1.0, digits: int = DIGITS) -> Column:
    """Return a column of numbers without an interval."""
    return Column(head=head, unit=unit, cell=lambda row: _plain(row[name], scale, digits))


def _intervals(
    head: str, names: tuple[str, str, str], *, unit: str = "", scale: float = 1.0, exact: bool = False
) -> Column:
    """Return a column of values with the ends of their intervals; `exact`: ends that are equal are no interval."""
    make = _ratio if exact else _interval
    return Column(head=head, unit=unit, interval=True, cell=lambda row: make(row, *names, scale))


def _medians(head: str, name: str, *, unit: str = "", scale: float = 1.0) -> Column:
    """Return a column of medians over repeats with their intervals."""
    return _intervals(head, (f"{name}_median", f"{name}_low", f"{name}_high"), unit=unit, scale=scale)


def _words(head: str, name: str, *, wrap: bool = False) -> Column:
    return Column(head=head, number=False, wrap=wrap, cell=lambda row: f"{row[name]}")


_PLACE = (_counts("Workers", "workers"), _counts("Nodes", "nodes"))

# ---------------------------------------------------------------------------------------------------- scaling


def _points(analysis: Analysis) -> Table | None:
    base = analysis.provenance["baseline"]
    points = analysis.points
    if points.empty:
        return None
    share = analysis.breakdown[analysis.breakdown["lap"] == "sync"].set_index(["series", "workers", "nodes"])["share"]
    waiting = [
        share.get(key, math.nan) for key in zip(points["series"], points["workers"], points["nodes"], strict=True)
    ]
    points = points.assign(waiting_share=waiting)
    marks = _marks(points["flags"])
    scale, unit = _rates(points["samples_per_s_median"])

    return _table(
        name="points",
        title="Throughput, speedup and efficiency",
        caption=f"Medians over repeats. Speedup: throughput over that of {BASES[base]}, of the same batch and data "
        f"set; efficiency: speedup over workers. Waiting for gradients: share of the mean step. {INTERVALS}; none from "
        "fewer than three repeats, and none for the baseline itself.",
        columns=(
            *_PLACE,
            Column(head="Repeats", cell=lambda row: _of(row["repeats"], row["repeats"] + row["failed"])),
            _intervals(
                "Throughput",
                ("samples_per_s_median", "samples_per_s_ci95_low", "samples_per_s_ci95_high"),
                unit=unit,
                scale=scale,
            ),
            _numbers("Step", "step_s_median", unit="ms", scale=_MILLI),
            _intervals("Speedup", (f"speedup_{base}", f"speedup_{base}_low", f"speedup_{base}_high"), exact=True),
            _numbers("Efficiency", f"efficiency_{base}", unit="%", scale=_PERCENT),
            _numbers("Waiting", "waiting_share", unit="%", scale=_PERCENT, digits=2),
            Column(
                head="Notes",
                number=False,
                cell=lambda row: ", ".join(marks[flag] for flag in _flags(row["flags"])) or "",
            ),
        ),
        cells=points,
        labels=_labels(analysis),
        mode=True,
        notes=tuple(f"{mark}: {FLAGS.get(flag, flag)}." for flag, mark in marks.items()),
        keep=(
            *("series", "setting", "mode", "partition", "backend", "transport", "workers", "nodes", "batch", "repeats"),
            *("failed", "samples_per_s_median", "samples_per_s_ci95_low", "samples_per_s_ci95_high"),
            *("samples_per_s_min", "samples_per_s_max", "step_s_median"),
            *(f"{name}_{kind}{end}" for kind in BASES for name in _RATIOS for end in ("", "_low", "_high")),
            *("karp_flatt", "waiting_share", "flags", "reasons"),
        ),
    )


_RATIOS = ("speedup", "efficiency")


def _laws(analysis: Analysis) -> Table | None:
    fits = analysis.fits["series"]
    labels = _labels(analysis)
    groups, data = [], []
    for series, fit in fits.items():
        rows = []
        for name, law in fit["laws"].items():
            selected = name == fit["selected"]
            for place, (parameter, value) in enumerate(law["params"].items()):
                low, high = law["ci95"].get(parameter) or (None, None)
                data.append(
                    {
                        "series": series,
                        "law": name,
                        "formula": law["formula"],
                        "parameter": parameter,
                        "value": value,
                        "low": low,
                        "high": high,
                        "rmse": law["rmse"],
                        "aicc": law["aicc"],
                        "selected": selected,
                        "identifiable": law["identifiable"],
                        "baseline": fit["baseline"],
                    }
                )
                if name in CLASSIC or selected:
                    first = place == 0
                    rows.append(
                        (
                            law_label(name) if first else "",
                            _GREEK.get(parameter, parameter),
                            _text(quoted(value, low, high)),
                            _plain(law["rmse"], digits=2) if first else "",
                            _fixed(law["aicc"], 1) if first else "",
                            "selected" if first and selected else "",
                        )
                    )
        if rows:
            groups.append(Group(title=_title(labels.get(series, series), _setting(analysis, series)), rows=tuple(rows)))
    if not groups:
        return None
    return Table(
        name="laws",
        title="Fitted scaling laws",
        caption="Least squares on the speedup of every run over that of "
        f"{BASES[analysis.provenance['baseline']]}. RMSE: in speedup. AICc: corrected Akaike criterion, of which only "
        f"differences within one series mean something. {INTERVALS}. Linear: S = slope N + intercept; Amdahl: "
        "S = 1/(s + (1 \u2212 s)/N); Gustafson: S = s + (1 \u2212 s)N; USL: S = \u03b3N/(1 + \u03b1(N \u2212 1) + "
        "\u03b2N(N \u2212 1)).",
        columns=(
            Column(head="Law", number=False),
            Column(head="Parameter", number=False),
            Column(head="Value", interval=True),
            Column(head="RMSE"),
            Column(head="AICc"),
            Column(head="", number=False),
        ),
        groups=tuple(groups),
        data=pd.DataFrame(data),
    )


# ---------------------------------------------------------------------------------------------------- a step

_LAP_HEADS = {"sync": "Waiting", "residual": "Unex-\nplained"}


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
        head="Step",
        least=1,
    )


def _lost(analysis: Analysis) -> Table | None:
    base = analysis.provenance["baseline"]
    return _laps(
        analysis,
        name="losttime",
        title="What more workers add to a step",
        caption=f"T(N) \u2212 T(1), over the step of {BASES[base]} (with a fixed global batch: over that step / N), "
        f"and the part of each lap in it. {INTERVALS}.",
        whole=(f"minus_{base}_s", f"minus_{base}_low_s", f"minus_{base}_high_s"),
        part=f"minus_{base}_s",
        head="Together",
        least=2,
    )


def _laps(
    analysis: Analysis, *, name: str, title: str, caption: str, whole: Sequence[str], part: str, head: str, least: int
) -> Table | None:
    """Return a table of the laps in ms; all numbers of a row end at the same digit, so that they add up."""
    parts = analysis.breakdown
    parts = parts[parts["workers"] >= least]
    labels = _labels(analysis)
    groups = []
    order = shown(parts, tuple(LAPS))
    if "compute" in order:
        caption += (
            " Compute: one CUDA graph of forward and backward, of a worker alone with the update; then the growth of "
            "compute holds that of the update."
        )
    for series, own in parts.groupby("series", sort=False):
        rows = []
        for _, cell in own.groupby(["workers", "nodes"], sort=True):
            laps = {row["lap"]: row for row in cell.to_dict("records")}
            value, low, high = (_MILLI * float(laps["step"].get(each, math.nan)) for each in whole)
            if not known(value):
                continue
            ends = known(low) and known(high) and low != high
            decimals = min(3, max(1, places(value, low, high) if ends else significant(value)))
            brackets = f" [{fixed(low, decimals)}, {fixed(high, decimals)}]" if ends else ""
            rows.append(
                (
                    *(_count(laps["step"]["workers"]), _count(laps["step"]["nodes"]), _count(laps["step"]["repeats"])),
                    f"{fixed(value, decimals)}{brackets}",
                    *(_fixed(_MILLI * laps[lap][part], decimals) for lap in order),
                )
            )
        if rows:
            groups.append(
                Group(
                    title=_title(labels.get(f"{series}", f"{series}"), _setting(analysis, f"{series}")),
                    rows=tuple(rows),
                )
            )
    if not groups:
        return None
    return _narrowed(
        Table(
            name=name,
            title=title,
            caption=caption,
            columns=(
                *_PLACE,
                Column(head="Repeats"),
                Column(head=head, unit="ms", interval=True),
                *(Column(head=_LAP_HEADS.get(lap, lap.capitalize()), unit="ms") for lap in order),
            ),
            groups=tuple(groups),
            data=parts[
                ["series", "workers", "nodes", "repeats", "lap", *dict.fromkeys((*whole, part)), "share", "note"]
            ],
        )
    )


def _parallel(analysis: Analysis) -> Table | None:
    points = analysis.points
    names = ("load_balance", "communication_efficiency", "parallel_efficiency")
    if not {f"{name}_median" for name in names} <= set(points.columns):
        return None
    points = points[points["parallel_efficiency_median"].notna()]
    if points.empty:
        return None

    return _table(
        name="balance",
        title="Balance between the workers",
        caption="Medians over repeats. Parallel efficiency = load balance (mean over largest useful time of a worker) "
        "times communication efficiency (largest useful time over run time), after POP. Skew: from the mean to the "
        "last worker's gradients, per step.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            _numbers("Load\nbalance", "load_balance_median", unit="%", scale=_PERCENT),
            _numbers("Communication\nefficiency", "communication_efficiency_median", unit="%", scale=_PERCENT),
            _numbers("Parallel\nefficiency", "parallel_efficiency_median", unit="%", scale=_PERCENT),
            _numbers("Skew", "skew_s_median", unit="ms", scale=_MILLI, digits=2),
        ),
        cells=points,
        labels=_labels(analysis),
        keep=("series", "workers", "nodes", "repeats", *(f"{name}_median" for name in names), "skew_s_median"),
    )


# ---------------------------------------------------------------------------------------------------- synchronisation


def _synchronisation(analysis: Analysis) -> Table | None:
    cells = analysis.synchronisation
    cells = cells[(cells["workers"] > 1) & (cells["sync_s_median"].notna() | (cells["note"] != ""))]
    if cells["sync_s_median"].notna().sum() == 0:
        return None

    return _table(
        name="synchronisation",
        title="Waiting for gradients",
        caption="Medians over repeats of the mean over steps; per epoch: times the batches of an epoch. A dash: hidden "
        f"inside the backward pass. {INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            _medians("Per step", "sync_s", unit="ms", scale=_MILLI),
            _medians("Of the step", "share", unit="%", scale=_PERCENT),
            _counts("Batches\nper epoch", "batches_per_epoch"),
            _medians("Per epoch", "sync_per_epoch_s", unit="s"),
        ),
        cells=cells,
        labels=_labels(analysis, cells),
        keep=tuple(name for name in cells.columns if name not in ("reduction", "horovod_defaults")),
    )


def _boundary(analysis: Analysis) -> Table | None:
    jumps = analysis.boundary
    if jumps.empty:
        return None

    return _table(
        name="boundary",
        title="What another node adds",
        caption="Waiting for gradients per step on fewer and on more nodes, means over repeats. Direct: equal workers; "
        "indirect: the next worker count needs another node, so that part of it is due to the further workers. "
        f"{INTERVALS}.",
        columns=(
            Column(
                head="From",
                number=False,
                wrap=True,
                cell=lambda row: boundary.place(row["fewer_workers"], row["fewer_nodes"], row["fewer_per_node"]),
            ),
            Column(
                head="To",
                number=False,
                wrap=True,
                cell=lambda row: boundary.place(row["more_workers"], row["more_nodes"], row["more_per_node"]),
            ),
            _words("Kind", "kind"),
            Column(head="Repeats", cell=lambda row: _of(row["fewer_repeats"], row["more_repeats"], ", ")),
            _numbers("Before", "fewer_sync_s", unit="ms", scale=_MILLI),
            _numbers("After", "more_sync_s", unit="ms", scale=_MILLI),
            _intervals("Jump", ("jump_s", "low_s", "high_s"), unit="ms", scale=_MILLI),
            Column(head="Verdict", number=False, cell=lambda row: _resolved(row["resolved"])),
        ),
        cells=jumps,
        labels=_labels(analysis, analysis.nodes),
    )


def _transports(analysis: Analysis) -> Table | None:
    pairs = analysis.transports
    if pairs.empty:
        return None
    labels = _labels(analysis, analysis.synchronisation)
    groups = []
    for (a, b), own in pairs.groupby(["a", "b"], sort=False):
        rows = []
        for each in own.to_dict("records"):
            scale, name = (1.0, "samples/s") if each["quantity"] == "samples_per_s" else (_MILLI, "waiting, ms")
            rows.append(
                (
                    name,
                    _count(each["workers"]),
                    _count(each["pairs"]),
                    _plain(each["a_value"], scale),
                    _plain(each["b_value"], scale),
                    _interval(each, "ratio", "ratio_low", "ratio_high"),
                    _chance(each["p_holm"]),
                    f"{each['better'].upper()} is better" if each["better"] else f"{each['verdict']}",
                )
            )
        names = f"{labels.get(f'{b}', f'{b}')} (B) against {labels.get(f'{a}', f'{a}')} (A)"
        groups.append(Group(title=_title(names, own["setting"].iloc[0]), rows=tuple(rows)))
    return Table(
        name="transports",
        title="Backends compared, pair by pair",
        caption="Geometric means over pairs of runs of the same repeat, their ratio, and p after Holm over the worker "
        f"counts. {INTERVALS}.",
        columns=(
            Column(head="Quantity", number=False),
            Column(head="Workers"),
            Column(head="Pairs"),
            Column(head="A"),
            Column(head="B"),
            Column(head="B/A", interval=True),
            Column(head="p"),
            Column(head="Verdict", number=False),
        ),
        groups=tuple(groups),
        data=pairs,
    )


def _cycle(analysis: Analysis) -> Table | None:
    cells = analysis.cycle
    if cells.empty:
        return None

    return _table(
        name="cycle",
        title="Waiting against Horovod's cycle time",
        caption="What a longer cycle adds to the waiting of a step, what is left without one, and the share of the "
        f"cycle at Horovod's default. {INTERVALS}.",
        columns=(
            _counts("Workers", "workers"),
            Column(
                head="Cycles",
                unit="ms",
                cell=lambda row: (
                    f"{_plain(row['shortest_cycle_s'], _MILLI)} to {_plain(row['longest_cycle_s'], _MILLI)}"
                ),
            ),
            _counts("Runs", "runs"),
            _intervals("Slope", ("slope", "slope_low", "slope_high"), unit="ms/ms"),
            _intervals("Rest", ("rest_s", "rest_low_s", "rest_high_s"), unit="ms", scale=_MILLI),
            _intervals("Share", ("share_at_default", "share_low", "share_high"), unit="%", scale=_PERCENT),
            _words("Verdict", "verdict", wrap=True),
        ),
        cells=cells,
        labels=_labels(analysis, cells),
    )


# ---------------------------------------------------------------------------------------------------- batch sizes


def _batches(analysis: Analysis) -> Table | None:
    cells = analysis.batches
    if cells.empty:
        return None
    scale, unit = _rates(cells["samples_per_s_median"])

    return _table(
        name="batches",
        title="Batch sizes",
        caption="Medians over repeats. Waiting: share of the step. Epoch: its whole batches times the step. "
        f"{INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Batch", "batch"),
            _counts("Repeats", "repeats"),
            _medians("Throughput", "samples_per_s", unit=unit, scale=scale),
            _numbers("Step", "step_s_median", unit="ms", scale=_MILLI),
            _numbers("Waiting", "overhead_median", unit="%", scale=_PERCENT),
            _medians("Epoch", "epoch_s", unit="s"),
        ),
        cells=cells,
        labels=_labels(analysis, cells),
    )


def _knees(analysis: Analysis) -> Table | None:
    knees = analysis.knees
    knees = knees[knees["form"] != ""]
    if knees.empty:
        return None
    scale, unit = _rates(knees["most_samples_per_s"])

    return _table(
        name="knees",
        title="Where a larger batch stops paying",
        caption="Knee: the batch of one worker at which the fixed costs of a step equal those of its samples; largest "
        f"throughput: the limit of large batches. {INTERVALS}.",
        columns=(
            *_PLACE,
            Column(head="Knee", unit="samples", interval=True, cell=lambda row: _knee(row)),
            _intervals("Fixed", ("fixed_s", "fixed_low_s", "fixed_high_s"), unit="ms", scale=_MILLI),
            _intervals(
                "Per sample", ("per_sample_s", "per_sample_low_s", "per_sample_high_s"), unit="\u00b5s", scale=1e6
            ),
            _intervals("Largest\nthroughput", ("most_samples_per_s", "most_low", "most_high"), unit=unit, scale=scale),
        ),
        cells=knees,
        labels=_labels(analysis, knees),
    )


def _knee(row: Mapping[Any, Any]) -> str:
    if known(row["knee"]):
        return _interval(row, "knee", "knee_low", "knee_high")
    for bound, sign in (("knee_at_most", "<"), ("knee_at_least", ">")):
        if known(row[bound]):
            return f"{sign}{THIN}{_plain(row[bound], digits=2)}"
    return NOTHING


# ---------------------------------------------------------------------------------------------------- forecasts


def _forecast(analysis: Analysis) -> Table | None:
    told = analysis.forecast
    told = told[told["kind"] == FORECAST]
    if told.empty:
        return None
    scale, unit = _rates(told["samples_per_s"])

    return _table(
        name="forecast",
        title="Forecast throughput",
        caption="Forecast, not measured: throughput on more workers than were run, with the 95 % interval for a single "
        "run in brackets, and its share of ideal scaling. How such forecasts came out before is in the table of hidden "
        "counts.",
        columns=(
            *_PLACE,
            _intervals("Throughput", ("samples_per_s", "low", "high"), unit=unit, scale=scale),
            _numbers("Of ideal", "efficiency", unit="%", scale=_PERCENT, digits=2),
        ),
        cells=told,
        labels=_labels(analysis),
        keep=(
            "series",
            "setting",
            "workers",
            "nodes",
            "samples_per_s",
            "low",
            "high",
            "ideal_samples_per_s",
            "efficiency",
            "law",
            "doubts",
        ),
    )


def _holdout(analysis: Analysis) -> Table | None:
    labels = _labels(analysis)
    groups, data = [], []
    for series, scored in analysis.holdout["series"].items():
        own = []
        for law, one in scored["laws"].items():
            of_law = [each for each in scored["forecasts"] if each["law"] == law]
            covered = [each["covered"] for each in of_law if each["covered"] is not None]
            name = "combined forecast" if law == COMBINED else law_label(law)
            data.append(
                {
                    "series": series,
                    "law": law,
                    "known_to": scored["known"][-1],
                    "targets": one["targets"],
                    "median_ape": one["median_ape"],
                    "worst_ape": one["worst_ape"],
                    "bias": one["bias"],
                    "coverage": one["coverage"],
                    "fails": one["fails"],
                }
            )
            own.append(
                (
                    name,
                    f"{scored['known'][-1]}",
                    ", ".join(f"{count}" for count in scored["hidden"]),
                    _plain(one["median_ape"], _PERCENT, 2),
                    _plain(one["worst_ape"], _PERCENT, 2),
                    _of(sum(covered), len(covered)) if covered else NOTHING,
                )
            )
        if own:
            groups.append(Group(title=_title(labels.get(series, series), _setting(analysis, series)), rows=tuple(own)))
    if not groups:
        return None
    return Table(
        name="holdout",
        title="Forecasts of hidden worker counts",
        caption="The same forecasts, made without the largest worker counts and compared with what was measured there. "
        "Errors: |forecast / measured \u2212 1|. Covered: measured values inside the 95 % interval. A law is here "
        "if it is the one selected for all points.",
        columns=(
            Column(head="Method", number=False),
            Column(head="Known\nup to"),
            Column(head="Hidden"),
            Column(head="Median\nerror", unit="%"),
            Column(head="Worst\nerror", unit="%"),
            Column(head="Covered"),
        ),
        groups=tuple(groups),
        data=pd.DataFrame(data),
    )


_QUESTIONS = {"knee": "knee", "usl_peak": "highest throughput (USL)", "cheapest": "lowest cost per sample"}


def _recommended(analysis: Analysis) -> Table | None:
    labels = _labels(analysis)
    groups, data = [], []
    for series, scored in analysis.holdout["series"].items():
        answers = (scored["recommendation"] or {"answers": {}})["answers"]
        rows = []
        for name, title in _QUESTIONS.items():
            one = answers.get(name)
            if one is None or one["why_not"]:
                continue
            data.append(
                {
                    "series": series,
                    "question": name,
                    "workers": one["workers"],
                    "low": one["low"],
                    "high": one["high"],
                    "searched_to": one["searched_to"],
                    "samples_per_s": one["samples_per_s"],
                }
            )
            high = f"beyond {one['searched_to']}" if one["high"] is None else f"{one['high']}"
            count = (
                f"\u2265{THIN}{one['low']}" if one["workers"] is None else f"{one['workers']} [{one['low']}, {high}]"
            )
            rows.append((title, count, _plain(one["samples_per_s"])))
        if rows:
            groups.append(Group(title=_title(labels.get(series, series), _setting(analysis, series)), rows=tuple(rows)))
    if not groups:
        return None
    return Table(
        name="workers",
        title="Recommended worker counts",
        caption="Knee: where one more worker gains less than half of what a worker brings on average. Highest "
        f"throughput: the peak of the USL. {INTERVALS}; beyond: no upper bound up to that count.",
        columns=(
            Column(head="Question", number=False),
            Column(head="Workers", interval=True),
            Column(head="Throughput", unit="samples/s"),
        ),
        groups=tuple(groups),
        data=pd.DataFrame(data),
    )


# ---------------------------------------------------------------------------------------------------- learning


def _learning(analysis: Analysis) -> Table | None:
    cells = analysis.learning
    cells = cells[cells["best_mse_median"].notna()]
    if cells.empty:
        return None

    return _table(
        name="learning",
        title="Best test errors",
        caption="The median run, with lowest and highest repeat in brackets. Efficiency: statistical floor over test "
        "MSE. Rate r: the test MSE falls as samples to the power \u2212r, with its 95 % interval.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            Column(
                head="Best test MSE", unit="10\u207b\u2074", interval=True, cell=lambda row: _spread(row, "best_mse")
            ),
            _numbers("Efficiency", "efficiency", unit="%", scale=_PERCENT, digits=2),
            _numbers("Epochs", "best_epoch"),
            _numbers("Training", "best_train_s", unit="s"),
            _intervals("Rate", ("rate", "rate_low", "rate_high")),
        ),
        cells=cells,
        labels=_labels(analysis),
        keep=(
            *("series", "setting", "workers", "nodes", "repeats", "diverged", "best_mse_median", "best_mse_min"),
            *("best_mse_max", "best_epoch", "best_samples", "best_train_s", "best_wall_s", "final_mse_median"),
            *("floor_mse", "efficiency", "rate", "rate_low", "rate_high", "rate_interval"),
        ),
    )


def _targets(analysis: Analysis) -> Table | None:
    cells = analysis.targets.sort_values(["target_mse", "workers"], ascending=[False, True], kind="stable")
    if cells.empty:
        return None

    base = analysis.provenance["baseline"]
    return _table(
        name="targets",
        title="Time to target",
        caption="The median run. Speedup to the target over "
        f"{BASES[base]} = throughput ratio \u00d7 statistical efficiency. {INTERVALS}; < and > are before bounds "
        "from targets that were not met.",
        columns=(
            _numbers("Target\ntest MSE", "target_mse", unit="10\u207b\u2074", scale=1e4, digits=2),
            *_PLACE,
            Column(head="Met by", cell=lambda row: _of(row["reached"], row["repeats"])),
            Column(head="Training", unit="s", cell=lambda row: _bounded(row, "train_s")),
            Column(head="Samples", unit="10\u2076", cell=lambda row: _bounded(row, "samples", 1e-6)),
            Column(head="Speedup\nto target", interval=True, cell=lambda row: _speedup_to_target(row)),
            _numbers("Throughput\nratio", "throughput_ratio"),
            _numbers("Statistical\nefficiency", "statistical_efficiency"),
        ),
        cells=cells,
        labels=_labels(analysis),
    )


def _bounded(row: Mapping[Any, Any], name: str, scale: float = 1.0) -> str:
    if row["censored"]:
        return f">{THIN}{_plain(row[f'{name}_at_least'], scale)}"
    return _plain(row[name], scale)


def _speedup_to_target(row: Mapping[Any, Any]) -> str:
    for bound, sign in (("speedup_at_most", "<"), ("speedup_at_least", ">")):
        if known(row[bound]):
            return f"{sign}{THIN}{_plain(row[bound])}"
    return _ratio(row, "speedup", "speedup_low", "speedup_high")


# ---------------------------------------------------------------------------------------------------- resources


def _resources(analysis: Analysis) -> Table | None:
    cells = analysis.resources
    on_gpu = ~cells["device"].isin(["", "cpu"])
    if cells.empty or not (cells["energy_per_sample_j_median"].notna().any() or on_gpu.any()):
        return None
    hours = "GPU hours" if on_gpu.all() else "Worker hours"

    return _table(
        name="resources",
        title=f"Energy and {hours}",
        caption="Medians over repeats, of the timed window. Energy ratio: per sample, over one plain worker. "
        f"{INTERVALS}.",
        columns=(
            *_PLACE,
            _counts("Repeats", "repeats"),
            _numbers("Power", "power_w_median", unit="W"),
            _medians("Energy\nper sample", "energy_per_sample_j", unit="mJ", scale=_MILLI),
            _intervals("Energy\nratio", ("energy_ratio", "energy_ratio_low", "energy_ratio_high"), exact=True),
            _medians(f"{hours}\nper epoch", "worker_hours_per_epoch", unit="10\u207b\u00b3 h", scale=_MILLI),
        ),
        cells=cells,
        labels=_labels(analysis),
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
    labels = _labels(analysis)
    rows: dict[str, list[tuple[str, ...]]] = {}
    for each in measured:
        series = each["series"]
        words = (_setting(analysis, series), f"{each['precision']}", f"{each['reduction']}")
        settings = "stock" if each["stock_settings"] else "shipped"
        spans = (_range(each.get(name)) for name in _MEASURED)
        rows.setdefault(labels.get(series, series), []).append((*words, settings, *spans))
    return Table(
        name="measurement",
        title="How it was measured",
        caption="Per series, smallest to largest value over its finished runs. Settings: those of the communication "
        "library. Left out: steps before the timed window.",
        columns=(
            Column(head="Setting", number=False, wrap=True),
            Column(head="Precision", number=False),
            Column(head="Gradients", number=False),
            Column(head="Settings", number=False),
            Column(head="Training\nset", unit="samples"),
            Column(head="Repeats\nper point"),
            Column(head="Timed\nwindow", unit="s"),
            Column(head="Timed\nsteps"),
            Column(head="Left\nout"),
        ),
        groups=tuple(Group(title=label, rows=tuple(own)) for label, own in rows.items()),
        data=pd.DataFrame(
            {
                **{key: value for key, value in each.items() if not isinstance(value, list)},
                **{f"{name}_{end}": value for name in _MEASURED for end, value in _ends(each.get(name))},
            }
            for each in measured
        ),
    )


_MEASURED = ("train_samples", "repeats", "window_s", "steps", "excluded_steps")


def _ends(ends: Sequence[float | None] | None) -> list[tuple[str, float | None]]:
    return list(zip(("min", "max"), ends or (None, None), strict=True))


def _range(ends: Sequence[float | None] | None) -> str:
    texts = [_count(end) if _float(end).is_integer() else _plain(end) for _, end in _ends(ends)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _doubts(analysis: Analysis) -> Table | None:
    doubts = [f"{each}" for each in analysis.provenance["doubts"]]
    if not doubts:
        return None
    return Table(
        name="doubts",
        title="Doubts",
        caption="What the analysis found that a reader must know before quoting a number.",
        columns=(Column(head="No."), Column(head="Doubt", number=False, wrap=True)),
        groups=(Group(title="", rows=tuple((f"{place}", text) for place, text in enumerate(doubts, start=1))),),
        data=pd.DataFrame({"doubt": doubts}),
    )


def _failed(analysis: Analysis) -> Table | None:
    failed = analysis.provenance["failed"]
    if not failed:
        return None
    labels = _labels(analysis)
    rows = tuple(
        (
            f"{each['run']}",
            labels.get(each["series"], f"{each['series']}"),
            _count(each["workers"]),
            f"{each['status']}",
            f"{each['reason']}",
        )
        for each in failed
    )
    return Table(
        name="failed",
        title="Runs without a result",
        caption="No values were substituted.",
        columns=(
            Column(head="Run", number=False, wrap=True),
            Column(head="Series", number=False, wrap=True),
            Column(head="Workers"),
            Column(head="Status", number=False),
            Column(head="Reason", number=False, wrap=True),
        ),
        groups=(Group(title="", rows=rows),),
        data=pd.DataFrame(failed),
    )


_TABLES: tuple[Callable[[Analysis], Table | None], ...] = (
    *(_points, _laws, _breakdown, _lost, _parallel, _synchronisation, _boundary, _transports, _cycle),
    *(_batches, _knees, _forecast, _holdout, _recommended, _learning, _targets, _resources),
    *(_measurement, _environment, _doubts, _failed),
)


# ---------------------------------------------------------------------------------------------------- cells


def _count(value: Any) -> str:
    return fixed(float(value), 0) if known(_float(value)) else NOTHING


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _of(part: Any, whole: Any, between: str = " of ") -> str:
    """Return `2 of 3`, and the number alone where it is the whole."""
    texts = (_count(part), _count(whole))
    return texts[0] if texts[0] == texts[1] else between.join(texts)


def _text(text: str) -> str:
    return text or NOTHING


def _rates(samples_per_s: pd.Series) -> tuple[float, str]:
    """Return the scale and the unit of a column of throughputs: thousands where there are millions."""
    return (1e-3, "10\u00b3 samples/s") if samples_per_s.max() >= 1e6 else (1.0, "samples/s")


def _plain(value: Any, scale: float = 1.0, digits: int = DIGITS) -> str:
    """Return a number without an interval."""
    number = scale * _float(value)
    return alone(number, digits) if known(number) else NOTHING


def _fixed(value: Any, decimals: int) -> str:
    number = _float(value)
    return fixed(number, decimals) if known(number) else NOTHING


def _interval(row: Mapping[Any, Any], middle: str, low: str, high: str, scale: float = 1.0) -> str:
    value, *ends = (scale * _float(row[name]) for name in (middle, low, high))
    if not all(known(end) for end in ends):
        return _plain(value)
    return _text(quoted(value, *ends))


def _ratio(row: Mapping[Any, Any], middle: str, low: str, high: str, scale: float = 1.0) -> str:
    """Return a ratio to the baseline; that of the baseline to itself is exact and has no interval."""
    if known(_float(row[middle])) and _float(row[low]) == _float(row[high]):
        return fixed(scale * row[middle], 0)
    return _interval(row, middle, low, high, scale)


def _spread(row: Mapping[Any, Any], name: str) -> str:
    """Return a test MSE in 1e-4 with its lowest and highest repeat."""
    value, low, high = (1e4 * _float(row[f"{name}_{end}"]) for end in ("median", "min", "max"))
    return _plain(value) if low == high else _text(quoted(value, low, high))


def _chance(p: Any) -> str:
    value = _float(p)
    if not known(value):
        return NOTHING
    return f"<{THIN}0.001" if value < 0.001 else fixed(value, min(3, max(2, significant(value, 1))))


def _resolved(value: Any) -> str:
    return "unknown" if pd.isna(value) else "resolved" if value else "not resolved"


def _marks(flags: Iterable[Any]) -> dict[str, str]:
    """Return the letter of each flag that occurs, in the order of FLAGS; a missing point says so itself."""
    found = {flag for each in flags for flag in _flags(each)}
    ordered = [*(flag for flag in FLAGS if flag in found), *sorted(found - set(FLAGS))]
    return {flag: chr(ord("a") + place) for place, flag in enumerate(ordered)}


def _flags(text: Any) -> list[str]:
    return f"{text}".split() if isinstance(text, str) else []


# ---------------------------------------------------------------------------------------------------- rows


def _labels(analysis: Analysis, cells: pd.DataFrame | None = None) -> dict[str, str]:
    chosen = analysis.points if cells is None else cells
    return series_labels(chosen) if len(chosen) else {}


def _setting(analysis: Analysis, series: str) -> str:
    own = analysis.points.loc[analysis.points["series"] == series, "setting"]
    return f"{own.iloc[0]}" if len(own) else ""


def _title(label: str, *more: str) -> str:
    return ", ".join(text for text in (label, *more) if text)


def _table(
    *,
    cells: pd.DataFrame,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    mode: bool = False,
    keep: Sequence[str] = (),
    **values: Any,
) -> Table:
    """Return a table with one group per series, in their order, titled with its label and its setting.

    `keep`: columns of `cells` that become its CSV, all of them by default. `mode`: titles say the scaling, too.
    """
    groups = []
    for series, own in cells.groupby("series", sort=False):
        first = own.iloc[0]
        more = [first["setting"]] if "setting" in own.columns else []
        more += [f"{first['mode']} scaling"] if mode and first["mode"] != "single" else []
        rows = tuple(row_of(columns, each) for each in own.to_dict("records"))
        groups.append(Group(title=_title(labels.get(f"{series}", f"{series}"), *more), rows=rows))
    kept = [name for name in keep if name in cells.columns] or list(cells.columns)
    data = cells[kept].reset_index(drop=True)
    return _narrowed(Table(columns=tuple(columns), groups=tuple(groups), data=data, **values))


def _narrowed(table: Table) -> Table:
    """Return the table without the columns that say nothing: no value at all, or one node everywhere."""
    kept = [
        place
        for place, column in enumerate(table.columns)
        if not {row[place] for group in table.groups for row in group.rows} <= _SAYS_NOTHING.get(column.head, _EMPTY)
    ]
    if len(kept) == len(table.columns):
        return table
    groups = tuple(
        Group(title=group.title, rows=tuple(tuple(row[place] for place in kept) for row in group.rows))
        for group in table.groups
    )
    return replace(table, columns=tuple(table.columns[place] for place in kept), groups=groups)


_EMPTY = frozenset({NOTHING, ""})
_SAYS_NOTHING = {"Nodes": frozenset({NOTHING, "1"})}
