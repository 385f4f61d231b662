"""The analysis as tables, each declared once, on the page and for a thesis as LaTeX and CSV; doubts; sentences.

Here a number is rounded to what its interval is worth (text/numbers.py) and gets its unit; CSV has it unrounded. What
has no value is left out: a table, a column.
"""

import math
import re
import shlex
from collections import Counter, namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

import pandas as pd

from horovod_study.analysis.forecast.prediction import COMBINED
from horovod_study.analysis.forecast.recommendation import FORECAST
from horovod_study.analysis.laws import law_label
from horovod_study.analysis.series.culprits import WORTH
from horovod_study.analysis.series.points import FLAGS, REPORTED, baseline_words, ratios_are
from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.synchronisation import RESOLVED
from horovod_study.records import COMMAND
from horovod_study.report.figures import causes
from horovod_study.report.kit.files import FORMS, document, write_result
from horovod_study.report.kit.style import LAPS, series_labels
from horovod_study.text import numbers
from horovod_study.text.numbers import MINUS, THIN, fixed, known, percent, rounded, signed, with_interval
from horovod_study.text.tables import NOTHING, SCALES, Cell, Column, Row, Table, filled, grouped, to_lines, with_columns
from horovod_study.text.words import cut, listed, plural


def _declared(title: str, caption: str, *columns: Column, **how: Any) -> SimpleNamespace:
    """Return a table: title, caption and columns, in which `_words` fills in what is in braces, and where its rows are
    from.

    They are those of `frame` of the analysis, by default that of the table's name, for which `need` is known, or what
    `rows` makes. Columns of theirs that begin with an underscore are for the table alone: `_group` or the series and
    `_mode` is over some rows, with `_under` and `_doubts` below it. The others, or those of `keep`, are the CSV.
    """
    told: dict[str, Any] = {"title": title, "caption": caption, "columns": columns}
    return SimpleNamespace(**told, **{"frame": "", "need": "", "rows": None, "keep": "", **how})


def tables(analysis: Analysis, *only: str) -> list[Table]:
    """Return the tables that the study has data for, in the order of the report; those of the names `only`, if any."""
    words = _words(analysis)
    # Labels as in the figures; some frames have series of their own.
    names = ("cycle", "knees", "batches", "synchronisation", "nodes", "points")
    labels = {series: label for name in names for series, label in series_labels(getattr(analysis, name)).items()}
    found = [_made(name, told, analysis, words, labels) for name, told in _TABLES.items() if not only or name in only]
    return [table for table in found if table is not None]


def write_tables(made: Sequence[Table], directory: Path) -> list[Path]:
    """Write NAME.tex and NAME.csv of each table, and tables.tex, which shows them all; return the paths.

    Raises RecordError when the directory cannot be written.
    """
    texts = {f"{table.name}.{form}": write(table) for table in made for form, write in FORMS.items()}
    if made:
        texts["tables.tex"] = document([table.name for table in made])
    return write_result(directory, texts, choose="folder")


def _words(analysis: Analysis) -> dict[str, str]:
    """Return what stands for the names in braces of titles, captions, heads, sources and units."""
    base = analysis.provenance["baseline"]
    return {
        "base": base,
        "other": {"plain": "wrapped", "wrapped": "plain"}[base],
        "over_base": baseline_words(analysis.points, base, plain="one plain worker without a communication library"),
        "ratios": ratios_are(analysis.points),
        "rate": analysis.rate_unit,
        "worker": causes.hours_word(analysis),
    }


def _made(
    name: str, told: SimpleNamespace, analysis: Analysis, words: Mapping[str, str], labels: Mapping[str, str]
) -> Table | None:
    if told.rows is not None:
        rows = told.rows(analysis)
    else:
        rows = getattr(analysis, told.frame or name)
        if told.need:
            rows = rows[rows[told.need].notna() & (rows[told.need] != "")] if told.need in rows.columns else rows[:0]
    if rows.empty:
        return None
    # The rows of a table are not always those of its CSV.
    data, notes = rows.attrs.pop("data", None), rows.attrs.pop("notes", ())
    columns = [
        replace(
            each,
            head=each.head.format(**words),
            source=each.source if callable(each.source) else each.source.format(**words),
            unit=each.unit.format(**words),
        )
        for each in told.columns
    ]
    settings = dict(zip(analysis.points["series"], analysis.points["setting"], strict=True))
    by = next((column for column in ("_group", "series") if column in rows.columns), None)

    def title(group: str, first: Row) -> Cell:
        more = (first.get("setting", settings.get(group)), first.get("_mode")) if by == "series" else ()
        text = ", ".join(filter(None, (labels.get(group, group), *more)))
        return Cell(text, first.get("_under", ""), doubts=first.get("_doubts", ()))

    parts: dict[str, list[Row]] = {}
    for row in rows.to_dict("records"):  # of all at once: for a group of a few rows it takes as long
        parts.setdefault(f"{row[by]}" if by else "", []).append(row)
    kept = [column for column in told.keep.split() or rows.columns if column in rows and not column.startswith("_")]
    return filled(Table(
        name=name,
        title=told.title.format(**words),
        caption=told.caption.format(**words),
        columns=tuple(columns),
        groups=grouped(columns, ((title(group, own[0]) if by else "", own) for group, own in parts.items())),
        data=rows[kept].reset_index(drop=True) if data is None else data,
        notes=notes,
    ))  # fmt: skip


def _points(analysis: Analysis) -> pd.DataFrame:
    points, laps, keys = analysis.points, analysis.breakdown, ["series", "workers", "nodes"]
    flags = [each.split() if isinstance(each, str) else [] for each in points["flags"]]
    found = {flag for each in flags for flag in each}
    marks = dict(
        zip([*(flag for flag in FLAGS if flag in found), *sorted(found - set(FLAGS))], ascii_lowercase, strict=False)
    )
    rows = points.assign(
        _tried=points["repeats"] + points["failed"],
        _mode=[f"{mode} scaling" if mode not in ("single", COMMAND) else "" for mode in points["mode"]],
        _notes=[", ".join(marks[flag] for flag in each) for each in flags],
        _no_result=("no result: " + points["reasons"].astype(str)).where(points["missing"].astype(bool), ""),
    )
    # The step that sentences and breakdown speak of: the parts of means add up, those of medians do not.
    for lap, column, name in (("sync", "share", "waiting_share"), ("step", "mean_s", "mean_step_s")):
        known_of = laps[laps["lap"] == lap].set_index(keys)[column]
        rows[name] = [known_of.get(cell, math.nan) for cell in points[keys].itertuples(index=False, name=None)]
    rows.attrs["notes"] = tuple(f"{mark}: {FLAGS.get(flag, flag)}." for flag, mark in marks.items())
    return rows


def _greek(text: str) -> str:
    for name, letter in (("alpha", "\u03b1"), ("beta", "\u03b2"), ("gamma", "\u03b3"), (" - ", f" {MINUS} ")):
        text = text.replace(name, letter)
    return text


def _laws(analysis: Analysis) -> pd.DataFrame:
    rows = []
    for series, fit in analysis.fits["series"].items():
        for name, law in fit["laws"].items():
            of_law = {"series": series, "law": name, "selected": name == fit["selected"], "baseline": fit["baseline"]}
            of_law |= {key: law[key] for key in ("formula", "rmse", "aicc", "identifiable")}
            printed = of_law["selected"] or name in ("linear", "amdahl", "gustafson", "usl")
            quality = [numbers.alone(law["rmse"], 2) if known(law["rmse"]) else NOTHING]
            quality += [fixed(law["aicc"], 1) if known(law["aicc"]) else NOTHING]
            # What holds for all parameters is said once.
            once = [(law_label(name), _greek(law["formula"])), *quality, "selected" * of_law["selected"]]
            for parameter, value in law["params"].items():
                low, high = law["ci95"].get(parameter) or (None, None)
                told = dict(zip(("_rmse", "_aicc", "_selected"), once[1:], strict=True))
                told |= {"_law": Cell(*once[0], page_only=not printed), "_under": fit["baseline"]}
                told |= {"parameter": parameter, "_parameter": _greek(parameter)}
                rows.append({**of_law, **told, "value": value, "low": low, "high": high})
                once = [("",), "", "", ""]
    return pd.DataFrame(rows, dtype=object)  # cells stay cells


def _laps(analysis: Analysis, *, grown: bool = False) -> pd.DataFrame:
    """Return the laps of each cell in ms, or their growth over the baseline, with their shares below, or why unknown.

    All numbers of a row end at the same digit, so that they add up.
    """
    names, share = ["mean_s", "min_s", "max_s"], "share"
    if grown:
        base = analysis.provenance["baseline"]
        names, share = [f"minus_{base}_{end}" for end in ("s", "low_s", "high_s")], f"growth_{base}"
    parts = analysis.breakdown[analysis.breakdown["workers"] > grown]
    rows, cells = [], dict[Any, dict[str, dict[Any, Any]]]()
    for row in parts.to_dict("records"):
        cells.setdefault((row["series"], row["workers"], row["nodes"]), {})[row["lap"]] = row
    for laps in cells.values():
        value, low, high = (SCALES["ms"] * float(laps["step"].get(name, math.nan)) for name in names)
        if not known(value):
            continue
        ends = known(low) and known(high) and low != high
        decimals = min(3, max(1, numbers.places(value, low, high) if ends else numbers.significant(value)))
        interval = f" [{fixed(low, decimals)}, {fixed(high, decimals)}]" if ends else ""
        rows.append(laps["step"] | {"whole": f"{fixed(value, decimals)}{interval}"} | dict.fromkeys(LAPS, NOTHING))
        for lap in set(LAPS) & set(laps):
            own, seconds = laps[lap], laps[lap][names[0]]
            if known(seconds):
                under = percent(own[share], decimals=0) if known(own[share]) else ""
                rows[-1][lap] = Cell(fixed(SCALES["ms"] * seconds, decimals), under)
            elif not known(own["mean_s"]):
                rows[-1][lap] = Cell(NOTHING, f"{own['note']}")
    found = pd.DataFrame(rows, dtype=object)
    found.attrs["data"] = parts[["series", "workers", "nodes", "repeats", "lap", *names, "share", "note"]]
    return found


def _synchronisation(analysis: Analysis) -> pd.DataFrame:
    cells, fits = analysis.synchronisation, analysis.sync_fits["series"]
    cells = cells[(cells["workers"] > 1) & (cells["sync_s_median"].notna() | (cells["note"] != ""))]
    laws = {series: (fit["selected"], fit["laws"].get(fit["selected"])) for series, fit in fits.items()}
    told = {series: f"{law_label(name)}: {law['formula']}" for series, (name, law) in laws.items() if law}
    under = [told.get(series, "") for series in cells["series"]]
    cells = cells.drop(columns=["reduction", "horovod_defaults"]).assign(_under=under)
    return cells if cells["sync_s_median"].notna().any() else cells[:0]


def place(workers: float, nodes: float, per_node: str) -> str:
    """Return where workers sat, in words: `2 workers on 1 node`, `5 workers on 2 nodes (4 + 1)`."""
    text = f"{plural(workers, 'worker')} on {plural(nodes, 'node')}"
    parts = [part.partition("x") for part in per_node.split()]
    if nodes == 1 or not parts:
        return text
    if sum(int(times) for times, _, _ in parts) <= 4:
        shares = " + ".join(share for times, _, share in parts for _ in range(int(times)))
    else:
        shares = ", ".join(f"{share} on {times}" for times, _, share in parts)
    return f"{text} ({shares})"


def _side(side: str, row: Row) -> str:
    """Return where the workers of one side were, and below it the network path that the runs recorded."""
    return Cell(place(*(row[f"{side}_{name}"] for name in ("workers", "nodes", "per_node"))), f"{row[f'{side}_path']}")


def _resolved(row: Row) -> str:
    """Return whether a jump is resolved; where waiting is hidden inside the step, that of the step."""
    resolved = row["resolved" if known(row["jump_s"]) else "step_resolved"]
    return {True: "resolved", False: "not resolved"}.get(resolved, NOTHING)


def _transports(analysis: Analysis) -> pd.DataFrame:
    pairs, labels = analysis.transports, series_labels(analysis.synchronisation)
    names, rates = pairs[["a", "b"]].replace(labels), pairs["quantity"] == "samples_per_s"
    return pairs.assign(
        _group=names["b"] + " (B) against " + names["a"] + " (A)" + (", " + pairs["setting"]).replace(", ", ""),
        _quantity=rates.map({True: "samples/s", False: "waiting, ms"}),
        **{f"_{side}": pairs[f"{side}_value"] * rates.map({True: 1.0, False: SCALES["ms"]}) for side in "ab"},
        _verdict=(pairs["better"].str.upper() + " is better").where(pairs["better"] != "", pairs["verdict"]),
    )


def _forecast(analysis: Analysis) -> pd.DataFrame:
    rows, doubts = analysis.forecast[analysis.forecast["kind"] == FORECAST], {}
    for series, own in rows.groupby("series", sort=False):
        counts: dict[str, list[str]] = {}  # each doubt once, with the worker counts that it is about
        for workers, told in zip(own["workers"], own["doubts"], strict=True):
            for doubt in filter(None, told.split("; ")):
                counts.setdefault(doubt, []).append(f"{workers}")
        why_not = analysis.holdout["series"][series]["why_not"]
        doubts[series] = [f"not scored: {why_not}"] if why_not else []
        doubts[series] += [f"{listed(of)} workers: {doubt}" for doubt, of in counts.items()]
    return rows.assign(_doubts=rows["series"].map(doubts))


def _holdout(analysis: Analysis) -> pd.DataFrame:
    rows, data = [], []
    for series, scored in analysis.holdout["series"].items():
        rolling, under = scored["rolling"], ""
        if rolling is not None and rolling["targets"] > sum(each["law"] == COMBINED for each in scored["forecasts"]):
            under = (
                f"hiding one count, then two, and so on: {plural(rolling['targets'], 'forecast')}, median error "
                f"{percent(rolling['median_ape'])}, {percent(rolling['coverage'])} in the interval"
            )
        shared = {"series": series, "_under": under, "_doubts": scored["doubts"]}
        if scored["why_not"]:
            told = Cell(f"not scored: {scored['why_not']}", warning=True, page_only=True)
            rows.append({**shared, "_method": told})
        for law, one in scored["laws"].items():
            forecasts = [each for each in scored["forecasts"] if each["law"] == law]
            covered = [each["covered"] for each in forecasts if each["covered"] is not None]
            errors = ", ".join(f"{each['workers']} by {signed(percent(each['error']))}" for each in forecasts)
            name = "combined forecast" if law == COMBINED else law_label(law)
            data.append({"series": series, "law": law, "known_to": scored["known"][-1]})
            data[-1] |= {key: one[key] for key in ("targets", "median_ape", "worst_ape", "bias", "coverage", "fails")}
            told = Cell(name, errors, doubts=[f"fails: {one['fails']}"] if one["fails"] else ())
            inside = {"_covered": sum(covered), "_scored": len(covered)} if covered else {}
            hidden = ", ".join(f"{count}" for count in scored["hidden"])
            rows.append({**shared, **data[-1], **inside, "_method": told, "_hidden": hidden})
    found = pd.DataFrame(rows if data else [], dtype=object)
    found.attrs["data"] = pd.DataFrame(data)
    return found


_QUESTIONS = {"knee": "knee", "usl_peak": "highest throughput (USL)", "cheapest": "lowest cost per sample"}


def _recommended(analysis: Analysis) -> pd.DataFrame:
    rows = []
    for series, scored in analysis.holdout["series"].items():
        answers = (scored["recommendation"] or {"answers": {}})["answers"]
        for question, words in _QUESTIONS.items():
            one = answers.get(question)
            if one is not None and not one["why_not"]:
                kept = {key: one[key] for key in ("workers", "low", "high", "searched_to", "samples_per_s")}
                told = Cell(words, doubts=one["doubts"])
                rows.append({"series": series, "question": question, **kept, "_question": told})
    return pd.DataFrame(rows, dtype=object)  # cells stay cells


def _counted(row: Row) -> str:
    high = f"{row['high']:.0f}" if known(row["high"]) else f"beyond {row['searched_to']:.0f}"
    return (
        f"{row['workers']:.0f} [{row['low']:.0f}, {high}]" if known(row["workers"]) else f"\u2265{THIN}{row['low']:.0f}"
    )


def _resources(analysis: Analysis) -> pd.DataFrame:
    cells = analysis.resources
    read = cells["energy_per_sample_j_median"].notna() | ~cells["device"].isin(["", "cpu"])
    under = [f"energy of {causes.devices(kinds)}" if kinds else "" for kinds in cells["energy_of"]]
    return cells.assign(_under=under) if read.any() else cells[:0]


def _measurement(analysis: Analysis) -> pd.DataFrame:
    rows, reported = [], analysis.points["backend"].eq(REPORTED).all()
    unknown = reported or analysis.points["backend"].eq(COMMAND).all()  # of tables and of scripts
    for each in analysis.provenance["measurement"]:
        rows.append({key: value for key, value in each.items() if not isinstance(value, list)})
        for name in ("train_samples", "repeats", "window_s", "steps", "excluded_steps"):
            rows[-1][f"{name}_min"], rows[-1][f"{name}_max"] = each.get(name) or (None, None)
        rows[-1]["_settings"] = "" if unknown else "stock" if each["stock_settings"] else "shipped"
        rows[-1] |= dict.fromkeys(("precision", "reduction"), "") if reported else {}
    return pd.DataFrame(rows)


_ENVIRONMENT = (
    *(("host", "Host"), ("cpu_model", "Processor"), ("cores", "Cores"), ("os", "Operating system")),
    *(("python", "Python"), ("torch", "PyTorch"), ("horovod", "Horovod"), ("mpi", "MPI"), ("package", "horovod_study")),
)


def _environment(analysis: Analysis) -> pd.DataFrame:
    found = analysis.provenance["environment"]
    table = pd.DataFrame(
        [
            {
                "_group": f"{number}: {plural(each['runs'], 'run')} on partition {each.get('partition') or NOTHING}",
                "_what": word,
                "_is": f"{each[key]}",
            }
            for number, each in enumerate(found, start=1)
            for key, word in _ENVIRONMENT
            if each.get(key) not in (None, "")
        ]
    )
    if len(found) > 1 and len(table):  # what all of them share is said once
        shared = table.groupby(["_what", "_is"])["_group"].transform("size") == len(found)
        common = table[shared].drop_duplicates("_what").assign(_group="all runs")
        table = pd.concat([common, table[~shared]], ignore_index=True)
    table.attrs["data"] = pd.DataFrame(found)
    return table


def _doubts(analysis: Analysis) -> pd.DataFrame:
    rows = []
    for place, (text, names, remedy, command) in enumerate(told_doubts(analysis), 1):
        # A terminal has a comma between thousands, the page a narrow space everywhere.
        shown = Cell(re.sub(r"(?<=\d),(?=\d{3}(?!\d))", THIN, text), cut("; ".join(names), 600))
        rows.append({"_number": place, "doubt": text, "_doubt": shown, "_type": Cell(command, remedy)})
    return pd.DataFrame(rows, dtype=object)  # cells stay cells


_PLACE = (Column("Workers", "count", "workers", names=True), Column("Nodes", "count", "nodes", usual="1"))
_REPEATS = Column("Repeats", "count", "repeats")
_95 = "Brackets: 95 % intervals"
_RATES = "samples_per_s_median samples_per_s_ci95_low samples_per_s_ci95_high"
_HEADS = {"sync": "Waiting", "residual": "Unex-\nplained"}
_LAPS = [Column(_HEADS.get(lap, lap.capitalize()), "number", itemgetter(lap), "ms") for lap in LAPS]

_TABLES: Mapping[str, SimpleNamespace] = {
    "points": _declared(
        "Throughput, speedup and efficiency",
        "Medians over repeats; speedup and efficiency over {over_base}, of the same batch and data set, {ratios}. "
        "Step: mean; waiting for gradients: share of it. Outside: share of the training that is in no step "
        f"(evaluation, checkpoints). {_95}; none from fewer than three repeats.",
        *_PLACE,
        Column("Repeats", "of", "repeats _tried"),
        Column("Throughput", "rate", _RATES, "{rate}", under="samples_per_s_min samples_per_s_max", strong=True),
        Column("Step", "number", "mean_step_s", "ms"),
        Column("Speedup", "interval", "speedup_{base}", strong=True),
        Column("Speedup\nover {other}", "interval", "speedup_{other}", page_only=True),
        Column("Efficiency", "number", "efficiency_{base}", "%"),
        Column("Efficiency\nover {other}", "number", "efficiency_{other}", "%", page_only=True),
        Column("Waiting", "number", "waiting_share", "%", digits=2),
        Column("Outside", "share", "outside_share_median", "%"),
        Column("Rate\nwith it", "number", "whole_samples_per_s_median", "{rate}", digits=4, page_only=True),
        Column("Karp-Flatt\nfraction", "number", "karp_flatt", page_only=True),
        Column("Notes", "text", "_notes", doubt="_no_result"),
        rows=_points,
        keep=f"series setting mode partition backend transport workers nodes batch repeats failed {_RATES} "
        "samples_per_s_min samples_per_s_max mean_step_s step_s_median "
        "speedup_plain speedup_plain_low speedup_plain_high efficiency_plain efficiency_plain_low "
        "efficiency_plain_high speedup_wrapped speedup_wrapped_low speedup_wrapped_high efficiency_wrapped "
        "efficiency_wrapped_low efficiency_wrapped_high karp_flatt waiting_share outside_share_median "
        "whole_samples_per_s_median flags reasons",
    ),
    "laws": _declared(
        "Fitted scaling laws",
        f"Least squares on the median speedups over {{over_base}}; AICc compares laws of one series. {_95}. Linear: "
        "S = slope N + intercept; Amdahl: S = 1/(s + (1 \u2212 s)/N); Gustafson: S = s + (1 \u2212 s)N; USL: "
        " S = \u03b3N/(1 + \u03b1(N \u2212 1) + \u03b2N(N \u2212 1)).",
        Column("Law", "text", "_law", names=True),
        Column("Parameter", "text", "_parameter"),
        Column("Value", "interval", "value low high"),
        Column("RMSE", "number", itemgetter("_rmse")),
        Column("AICc", "number", itemgetter("_aicc")),
        Column("Selection", "text", "_selected"),
        rows=_laws,
        keep="series law formula parameter value low high rmse aicc selected identifiable baseline",
    ),
    "breakdown": _declared(
        "Parts of a training step",
        "Means over steps, workers and repeats, with lowest and highest repeat of the step in brackets. Waiting: from "
        "the end of a worker's own backward pass until the averaged gradients are there. A dash: inside the part "
        "before, or not recorded. Compute: one CUDA graph of forward and backward, of a worker alone with the update.",
        *(*_PLACE, _REPEATS, Column("Step", "interval", itemgetter("whole"), "ms"), *_LAPS),
        rows=_laps,
    ),
    "losttime": _declared(
        "What more workers add to a step",
        "T(N) \u2212 T(1), over the step of {over_base} (with a fixed global batch: over that step / N), and the part "
        f"of each lap in it. {_95}.",
        *(*_PLACE, _REPEATS, Column("Together", "interval", itemgetter("whole"), "ms"), *_LAPS),
        rows=partial(_laps, grown=True),
    ),
    "synchronisation": _declared(
        "Waiting for gradients",
        "Medians over repeats of the mean over steps; per epoch: times the batches of an epoch. A dash: hidden "
        f"inside the backward pass. {_95}.",
        *_PLACE,
        _REPEATS,
        Column("Median\nper step", "interval", "sync_s", "ms", doubt="note", strong=True),
        Column("Median\nof the step", "interval", "share", "%"),
        Column("Batches\nper epoch", "count", "batches_per_epoch"),
        Column("Median\nper epoch", "interval", "sync_per_epoch_s", "s"),
        rows=_synchronisation,
    ),
    "boundary": _declared(
        "What another node adds",
        "Waiting for gradients per step on fewer and on more nodes: medians over steps (means where a run has no "
        "median), then means over repeats. Direct: equal workers; "
        f"indirect: part of it is due to the further workers, of which the next count needs another node. {_95}.",
        Column("From", "text", partial(_side, "fewer"), wrap=0.2),
        Column("To", "text", partial(_side, "more"), wrap=0.2),
        Column("Kind", "text", "kind", under="note"),
        Column("Repeats", "span", "fewer_repeats more_repeats"),
        Column("Before", "number", "fewer_sync_s", "ms"),
        Column("After", "number", "more_sync_s", "ms"),
        Column("Jump", "change", "jump_s low_s high_s", "ms", strong=True),
        Column("Beyond\ngrowth", "change", "beyond_s beyond_low_s beyond_high_s", "ms", page_only=True),
        Column("Jump of\nthe step", "interval", "step_jump_s step_low_s step_high_s", "ms"),
        Column("Verdict", "text", _resolved),
    ),
    "transports": _declared(
        "Backends compared, pair by pair",
        "Geometric means over pairs of runs of the same repeat (of turns: of throughputs within rounds), their ratio, "
        f"and p after Holm over the worker counts. {_95}. Pairs needed: to resolve a difference of 1 %.",
        Column("Quantity", "text", "_quantity"),
        _PLACE[0],
        Column("Pairs", "count", "pairs"),
        Column("A", "number", "_a"),
        Column("B", "number", "_b"),
        Column("B/A", "interval", "ratio", strong=True),
        Column("p", "chance", "p_holm", under="test"),
        Column("Verdict", "text", "_verdict", doubt="note"),
        Column("Pairs\nneeded", "count", "pairs_needed", page_only=True),
        rows=_transports,
    ),
    "cycle": _declared(
        "Waiting against Horovod's cycle time",
        "What a longer cycle adds to the waiting of a step, what is left without one, and the share of the "
        f"cycle at Horovod's default. {_95}.",
        Column("Workers", "count", "workers"),
        Column("Cycles", "span", "shortest_cycle_s longest_cycle_s", "ms"),
        Column("Runs", "count", "runs"),
        Column("Slope", "interval", "slope", "ms/ms"),
        Column("Expected\nslope", "span", "expected_low expected_high", page_only=True),
        Column("Rest", "interval", "rest_s rest_low_s rest_high_s", "ms"),
        Column("Share", "interval", "share_at_default share_low share_high", "%"),
        Column("Verdict", "text", "verdict", doubt="note", wrap=0.2),
    ),
    "batches": _declared(
        "Batch sizes",
        f"Medians over repeats. Waiting: share of the step. Epoch: its whole batches times the step. {_95}.",
        *_PLACE,
        Column("Batch", "count", "batch"),
        _REPEATS,
        Column("Throughput", "interval", "samples_per_s", "{rate}"),
        Column("Step", "number", "step_s_median", "ms"),
        Column("Waiting", "number", "overhead_median", "%"),
        Column("Epoch", "interval", "epoch_s", "s"),
    ),
    "knees": _declared(
        "Where a larger batch stops paying",
        "Knee: the batch of one worker at which the fixed costs of a step equal those of its samples; largest "
        f"throughput: the limit of large batches. {_95}.",
        *_PLACE,
        Column("Batches", "count", "batches", page_only=True),
        Column("Form", "text", "form", doubt="note", page_only=True),
        Column("Knee", "interval", "knee", "samples", digits=2, strong=True),
        Column("Fixed", "interval", "fixed_s fixed_low_s fixed_high_s", "ms"),
        Column("Per sample", "interval", "per_sample_s per_sample_low_s per_sample_high_s", "\u00b5s"),
        Column("Largest\nthroughput", "interval", "most_samples_per_s most_low most_high", "{rate}"),
        Column("Batch\nfor 90 %", "number", "batch_for_90_percent", page_only=True),
        need="form",
    ),
    "forecast": _declared(
        "Forecast throughput",
        "Not measured: throughput on more workers than were run, with the 95 % interval for a single run in "
        "brackets, and its share of ideal scaling. The hold-out error of this method is in the table of hidden counts.",
        *_PLACE,
        Column("Throughput", "interval", "samples_per_s low high", "{rate}", strong=True),
        Column("Of ideal", "number", "efficiency", "%", digits=2),
        rows=_forecast,
        keep="series setting workers nodes samples_per_s low high ideal_samples_per_s efficiency law doubts",
    ),
    "holdout": _declared(
        "Hold-out error: forecasts of hidden worker counts",
        "The same forecasts without the largest worker counts, compared with what was measured there. Errors: "
        "|forecast / measured \u2212 1|. Covered: measured values inside the 95 % interval. A law is here if selected.",
        Column("Method", "text", "_method", names=True),
        Column("Known\nup to", "count", "known_to"),
        Column("Hidden", "number", itemgetter("_hidden")),
        Column("Median\nerror", "number", "median_ape", "%", digits=2),
        Column("Worst\nerror", "number", "worst_ape", "%", digits=2),
        Column("Covered", "of", "_covered _scored"),
        rows=_holdout,
    ),
    "workers": _declared(
        "Recommended worker counts",
        "Knee: where one more worker gains less than half of what a worker brings on average. Highest "
        f"throughput: the peak of the USL. {_95}; beyond: no upper bound up to that count.",
        Column("Question", "text", "_question", names=True),
        Column("Workers", "interval", _counted, strong=True),
        Column("Throughput", "number", "samples_per_s", "{rate}"),
        rows=_recommended,
    ),
    "learning": _declared(
        "Best test errors",
        "The median run, with lowest and highest repeat in brackets. Efficiency: statistical floor over test "
        "MSE. Rate r: the test MSE falls as samples to the power \u2212r, with its 95 % interval.",
        *_PLACE,
        _REPEATS,
        Column("Diverged", "count", "diverged", usual="0"),
        Column("Best test MSE", "interval", "best_mse_median best_mse_min best_mse_max", "10\u207b\u2074", strong=True),
        Column("Efficiency", "number", "efficiency", "%", digits=2),
        Column("Epochs", "number", "best_epoch"),
        Column("Training", "number", "best_train_s", "s"),
        Column("Rate", "interval", "rate"),
        need="best_mse_median",
        keep="series setting workers nodes repeats diverged best_mse_median best_mse_min best_mse_max best_epoch "
        "best_samples best_train_s best_wall_s final_mse_median floor_mse efficiency rate rate_low rate_high "
        "rate_interval",
    ),
    "targets": _declared(
        "Time to target",
        "The median run. Speedup to the target over {over_base} = throughput ratio \u00d7 statistical efficiency. "
        f"{_95}; < and > are before bounds from targets that were not met.",
        Column("Target\ntest MSE", "number", "target_mse", "10\u207b\u2074", digits=2),
        *_PLACE,
        Column("Met by", "of", "reached repeats"),
        Column("Training", "number", "train_s", "s", under="train_s_min train_s_max", doubt="note", strong=True),
        Column("With\nevaluation", "number", "wall_s", "s", page_only=True),
        Column("Samples", "number", "samples", "10\u2076"),
        Column("Speedup\nto target", "interval", "speedup", strong=True),
        Column("Throughput\nratio", "number", "throughput_ratio"),
        Column("Statistical\nefficiency", "number", "statistical_efficiency"),
        Column("Speedup with\nevaluation", "number", "speedup_wall", page_only=True),
        rows=lambda analysis: analysis.targets.sort_values(
            ["target_mse", "workers"], ascending=[False, True], kind="stable"
        ),
    ),
    "resources": _declared(
        "Energy and {worker} hours",
        "Medians over repeats, of the timed window. Energy ratio: per sample, over one plain worker. Speedup "
        f"per joule: speedup over energy ratio. {_95}.",
        *_PLACE,
        _REPEATS,
        Column("Power", "number", "power_w_median", "W"),
        Column("Energy\nper sample", "interval", "energy_per_sample_j", "mJ", strong=True),
        Column("Energy\nratio", "interval", "energy_ratio"),
        Column("Speedup\nper joule", "number", "speedup_per_joule", page_only=True),
        Column("{worker} time\nper epoch", "interval", "worker_hours_per_epoch", "minutes", strong=True),
        Column("{worker} time\nof a run", source="worker_hours_of_run_median", unit="minutes", page_only=True),
        rows=_resources,
    ),
    "measurement": _declared(
        "How it was measured",
        "Per series, smallest to largest value over its finished runs. Settings: those of the communication "
        "library. Left out: steps before the timed window.",
        Column("Precision", "text", "precision"),
        Column("Gradients", "text", "reduction"),
        Column("Settings", "text", "_settings"),
        Column("Training\nset", "span", "train_samples_min train_samples_max", "samples"),
        Column("Repeats\nper point", "span", "repeats_min repeats_max"),
        Column("Timed\nwindow", "span", "window_s_min window_s_max", "s"),
        Column("Timed\nsteps", "span", "steps_min steps_max"),
        Column("Left\nout", "span", "excluded_steps_min excluded_steps_max"),
        rows=_measurement,
    ),
    "environment": _declared(
        "Machines and software",
        "As the runs recorded them.",
        Column("What", "text", "_what"),
        Column("Recorded", "text", "_is", wrap=0.7),
        rows=_environment,
    ),
    "doubts": _declared(
        "Doubts",
        "What the analysis found that a reader must know before quoting a number, the worst first.",
        Column("No.", "count", "_number"),
        Column("Doubt", "text", "_doubt", wrap=0.9),
        Column("What to type", "text", "_type", code=True, page_only=True),
        rows=_doubts,
    ),
    "failed": _declared(
        "Runs without a result",
        "No values were substituted.",
        Column("Run", "text", "run", wrap=0.3, names=True, code=True),
        Column("Workers", "count", "workers"),
        Column("Repeat", "count", "repeat", page_only=True),
        Column("Status", "text", "status"),
        Column("Reason", "text", "reason", wrap=0.35),
        rows=lambda analysis: pd.DataFrame(analysis.provenance["failed"]),
    ),
}


SHARED = 3  # a doubt that so many series share is said once

_STUDY, _RUN, _TABLE = "horovod-study run STUDY.yaml", "horovod-study explain RUN_DIR", "horovod-study report TABLE"

REMEDIES = {
    "table": ("say what a column is, where it was read otherwise (docs/predict.md)", f"{_TABLE} --columns NAME=COLUMN"),
    "cause": ("end the cause that is named, and record again", _STUDY),
    "outside": ("evaluate and save more rarely, or quote the rate with it", _RUN),
    "hidden": ("measure steps without communication, too", f"{_RUN} --measure"),
    "steps": ("set more steps: in the study file, and run it again", _STUDY),
    "superlinear": ("add repeats, and see whether it stays", _STUDY),
    "missing": ("run the study again: it runs only what is missing or failed", _STUDY),
    "baseline": ("name the baseline that you quote, and record the one that is missing", _STUDY),
    "unsteady": ("end other programs, or alternate until the intervals are narrow", f"{_STUDY} --until 2%"),
    "versions": ("run the older ones again, on the same kind of machine with the same versions", _STUDY),
    "parts": ("do not quote these parts, and look at the steps of a run", _RUN),
    "nodes": ("add worker counts on both sides of the node boundary", _STUDY),
    "energy": ("give every node the same sensors", "horovod-study doctor"),
    "other": ("see docs/report.md", _RUN),
}  # what to do and what to type about each kind of doubt (analysis.series.culprits.Kind), the worst first


ToldDoubt = namedtuple("ToldDoubt", "text names remedy command")  # `names`: the series that share it, if many


def names_of(analysis: Analysis) -> dict[str, str]:
    """Return the name of each series for readers, with its setting where another has the same label."""
    found: dict[str, str] = {}
    for table in (analysis.knees, analysis.points):  # a series of the first has several batches
        labels = series_labels(table)
        settings, several = dict(zip(table["series"], table["setting"], strict=True)), Counter(labels.values())
        found |= {name: f"{label}, {settings[name]}" if several[label] > 1 else label for name, label in labels.items()}
    return found


def told_doubts(analysis: Analysis) -> list[ToldDoubt]:
    """Return the doubts of a study as the page tells them, the worst first."""
    runs, found = analysis.runs, dict[str, str]()  # the run with most workers of each series, and by "" of all
    if {"series", "run", "study", "status"} <= set(runs.columns):
        done = runs[(runs["status"] == "done") & (runs["study"] != "train")].sort_values("workers", kind="stable")
        for series, study, run in done[["series", "study", "run"]].itertuples(index=False):
            within = run if run.startswith(f"{study}/") else f"{study}/{run}"
            found[series] = found[""] = shlex.quote(f"runs/{within}")
    return doubts_of(analysis.provenance, names_of(analysis), found)


def doubts_of(provenance: Mapping[str, Any], labels: Mapping[str, str], runs: Mapping[str, str]) -> list[ToldDoubt]:
    """Return the doubts of Analysis.provenance, the worst first; `labels`: names_of, `runs`: a run of each series.

    A doubt that SHARED series have in common stands at the place of the first, with their names. Commands name the
    files of the study or of the table where those that made it name one, and the run with most workers.
    """
    doubts, kinds = provenance["doubts"], provenance.get("doubt_kinds") or ()
    ranks, files = list(REMEDIES), _files(provenance.get("commands") or ())
    series = re.compile("|".join(rf"(?<!\w){re.escape(each)}(?!\w)" for each in sorted(labels, key=len)[::-1]) or "$^")
    sharing: dict[str, list[str]] = {}
    for doubt in doubts:
        name, _, text = doubt.partition(": ")
        sharing.setdefault(text if name in labels else doubt, []).append(name)
    found: dict[str, tuple[int, ToldDoubt]] = {}
    for doubt, told_kind in zip(doubts, chain(kinds, repeat("other")), strict=False):
        kind = f"{told_kind}" if told_kind in ranks else "other"
        name, _, text = doubt.partition(": ")
        shared = sharing[text] if name in labels else []
        names = tuple(labels[each] for each in shared) if len(shared) >= SHARED else ()
        told = f"{len(names)} series: {text}" if names else doubt
        remedy, command = REMEDIES[kind]
        if "table" in kinds and kind != "table":  # which no study can measure again
            remedy, command = "add what is missing to the table, each as a row of its own", _TABLE
        of = series.search(doubt)
        run = runs.get(of[0] if of else "", runs.get("", "RUN_DIR"))
        for unknown, path in (files | {"RUN_DIR": run}).items():
            command = command.replace(unknown, path)
        told = series.sub(lambda hit: labels[hit[0]], told)
        found.setdefault(told, (ranks.index(kind), ToldDoubt(told, names, remedy, command)))
    return [doubt for _, doubt in sorted(found.values(), key=lambda each: each[0])]


def _files(commands: Sequence[str]) -> dict[str, str]:
    """Return what stands for STUDY.yaml and TABLE in `commands`, where it is one file."""
    found = {}
    for unknown, start in (("STUDY.yaml", r"run (?=\S+\.ya?ml|'[^']+\.ya?ml')"), ("TABLE", "report ")):
        paths = {path[1] for each in commands if (path := re.match(rf"horovod-study {start}('[^']+'|\S+)", each))}
        if len(paths) == 1:
            found[unknown] = paths.pop()
    return found


_BASES = {"plain": "one plain worker", "wrapped": "one worker of the same library"}


def base_of(found: Mapping[str, Any]) -> str:
    """Return what the speedups of a finding are over, in words."""
    return f"{found.get('base') or _BASES[found['baseline']]}"


def headline(analysis: Analysis) -> str:
    """Return the one sentence that the whole study comes to."""
    findings = analysis.provenance["findings"]
    if not findings:
        best = _best(analysis)
        if best is None:
            return "No run with several workers has finished yet"
        return f"The smallest test MSE is {numbers.scientific(best['best_mse_median'], 3)}, with {best['setting']}"
    found = _largest(analysis)
    best = found["series"][0]
    labels, low, high = series_labels(analysis.points), best["low"], best["high"]
    start = _start(found, findings, labels)
    if found.get("apart"):
        return f"{start} train models of their own: no speedup"
    if best["speedup"] is None:
        why = f"; no speedup: {found['withheld']}" if found.get("withheld") else ""
        return f"{start}: {rounded(best['samples_per_s'])} {analysis.rate_unit}{why}"
    if found["workers"] == 1:
        return f"{start}: no run with several workers has finished yet"
    start += _way(found, best, labels)
    one = base_of(found) if base_of(found) == _BASES["plain"] else "one"
    if low is not None and low <= 1 <= high:
        times = with_interval(best["speedup"], low, high)
        return f"{start} are not measurably faster than {one}: {times} times as fast"
    slower = ", which is slower" if best["speedup"] < 1 else ""
    return f"{start} run {numbers.number(best['speedup'], low, high)} times as fast as {one}{slower}"


def _way(found: Mapping[str, Any], best: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return over which library and transport a series of a finding ran; of a table, and of a command, nothing."""
    label = labels[best["series"]]
    return f" over {label}" if label != found["partition"] and found["mode"] != COMMAND else ""


def _start(found: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str:
    """Return what distinguishes this finding from the others, and its workers, as the start of a sentence."""
    workers, place = plural(found["workers"], "worker"), found["partition"]
    words = [f"on {place}"] if {each["partition"] for each in findings} != {"local"} else []
    if labels[found["series"][0]["series"]] == place:  # of a table, which names series and no place
        words, workers = [], f"{workers} of {place}"
    if len({each["setting"] for each in findings}) > 1:
        words.append(f"with {found['setting']}")
    text = ", ".join(filter(None, (" ".join(words), workers)))
    return f"{text[0].upper()}{text[1:]}"


def subheadline(analysis: Analysis) -> str:
    """Return what follows the headline: where the time is lost, and how many workers are worth it; empty if unknown."""
    findings = analysis.provenance["findings"]
    if not findings:
        return ""
    found = _largest(analysis)
    clauses = [*found.get("culprits", ()), *filter(None, (_loss(found), _worth(analysis, found)))]
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}" if text else ""


def outside(analysis: Analysis) -> str:
    """Return how much time is outside of steps where the headline is about, and the rate with it; empty if unknown, and
    where it rounds to nothing."""
    told = (_largest(analysis) if analysis.provenance["findings"] else {}).get("outside") or {}
    if (told.get("share") or 0.0) < 5e-4:
        return ""
    text = f"{percent(told['share'])} of the training's time is outside of steps (evaluation, checkpoints, waiting)"
    if told["share"] < WORTH or told["samples_per_s"] is None:
        return text
    job = "" if told["speedup"] is None else f", {rounded(told['speedup'], 3)} times as many as one worker"
    return f"{text}: the whole job makes {rounded(told['samples_per_s'])} {analysis.rate_unit}{job}"


def answer(analysis: Analysis) -> list[str]:
    """Return headline, subheadline and the time outside of steps as sentences, those that there are."""
    return [f"{text.rstrip('.')}." for make in (headline, subheadline, outside) if (text := make(analysis))]


def _largest(analysis: Analysis) -> Mapping[str, Any]:
    """Return the finding that the headline is about: the most workers, and there the highest speedup.

    What was run at one count says nothing of scaling, and leads only where all was.
    """
    counts = analysis.points.groupby(["partition", "setting"])["workers"].nunique()

    def size(found: Mapping[str, Any]) -> tuple[bool, int, float]:
        several = bool(counts.get((found["partition"], found["setting"]), 0) > 1)
        return several, found["workers"], found["series"][0]["speedup"] or 0

    return max(analysis.provenance["findings"], key=size)


def _loss(found: Mapping[str, Any]) -> str:
    """Return the largest part of the time that a step lost against ideal scaling.

    Only where a loss is resolved from noise, all parts of the growth are known and none of them hides another's.
    """
    best, step = found["series"][0], found["step"]
    if found["workers"] < 2 or best["speedup"] is None or best["high"] is None or best["high"] >= found["workers"]:
        return ""
    if step is None or not known(step["grown_s"]) or step["grown_s"] <= 0 or found["mode"] not in ("weak", "strong"):
        return ""
    growth = step["growth"]
    if not all(known(part) for part in growth.values()):
        return ""
    lap, part = max(growth.items(), key=lambda each: each[1])
    if not 0.005 <= part <= 1.05:  # all of it, where the others shrank by no more than noise
        return ""
    return f"{percent(min(part, 1.0))} of the loss is {LAPS[lap].label.removesuffix(' (sync)')}"


def _worth(analysis: Analysis, found: Mapping[str, Any]) -> str:
    """Return the knee, from which on one more worker gains little, with its interval; empty if open."""
    document = analysis.holdout["series"].get(found["series"][0]["series"])
    if document is None or document["recommendation"] is None:
        return ""
    knee = document["recommendation"]["answers"].get("knee")
    if knee is None or knee["why_not"] or not all(known(knee[name]) for name in ("workers", "low", "high")):
        return ""
    beyond = f"{knee['workers']} workers are beyond the"  # said as "by forecast"
    if any(not doubt.startswith(beyond) for doubt in knee["doubts"]):
        return ""
    told = "by forecast, " if knee["workers"] > found["workers"] else ""
    count = plural(knee["workers"], "worker")
    ends = f"[{knee['low']:.0f}, {knee['high']:.0f}]"
    return f"{told}from {count} on {ends} one more gains less than half of the mean worker"


def learned(analysis: Analysis) -> list[str]:
    """Return in a sentence the best that was learned; none where nothing was."""
    best, labels = _best(analysis), series_labels(analysis.points)
    if best is None:
        return []
    floor = f"; the statistical floor of the test curves is {numbers.scientific(best['floor_mse'])}, an efficiency of "
    floor = f"{floor}{percent(best['efficiency'])}" * known(best["floor_mse"])
    return [
        f"The smallest test MSE is {numbers.scientific(best['best_mse_median'], 3)}, reached by "
        f"{labels[best['series']]}, {plural(best['workers'], 'worker')} ({best['setting']}) "
        f"after {best['best_epoch']:.3g} epochs and {rounded(best['best_train_s'], 3)}{THIN}s of training{floor}."
    ]


def _best(analysis: Analysis) -> Any:
    """Return the row of the smallest test MSE, or None."""
    known = analysis.learning[analysis.learning["best_mse_median"].notna()]
    return known.sort_values(["best_mse_median", "best_train_s"], kind="stable").iloc[0] if len(known) else None


def sentences(analysis: Analysis) -> list[list[str]]:
    """Return what was found, per partition and setting, in plain sentences; the first one says the most."""
    labels, findings = series_labels(analysis.points), analysis.provenance["findings"]
    first = _largest(analysis) if findings else {}
    made = []
    for found in sorted(findings, key=lambda each: each is not first):
        text = [] if found is first and found.get("withheld") and not found.get("apart") else [_fast(analysis, found)]
        text += [_difference(each, found["workers"], analysis.transports, labels) for each in found["comparisons"]]
        text += _step(found, labels)
        alone = [
            f"inside {labels[each['series']]} {_times(each)}"
            + " (not measurably different)" * (each["low"] <= 1 <= each["high"])
            for each in found["overheads"]
            if each["low"] is not None
        ]
        if alone:
            text.append(f"One worker alone runs {listed(alone)} times as fast as without a library.")
        made.append(text)
    return [each for each in made if each]  # the headline has said all of some


def _fast(analysis: Analysis, found: Mapping[str, Any]) -> str:
    """Return how fast the series of a finding are."""
    best, *others = found["series"]
    labels = series_labels(analysis.points)
    start = _start(found, analysis.provenance["findings"], labels) + _way(found, best, labels)
    run = "runs" if found["workers"] == 1 else "run"
    if best["speedup"] is None:
        why = f"no speedup: {found['withheld']}" if found.get("withheld") else "there is no baseline"
        return f"{start}: {rounded(best['samples_per_s'])} {analysis.rate_unit}; {why}."
    rest = [f"over {labels[each['series']]} {_times(each)} times" for each in others if each["speedup"] is not None]
    return (
        f"{start} {run} {_times(best)} times as fast as {base_of(found)}, an efficiency of "
        f"{percent(best['efficiency'])}, at {rounded(best['samples_per_s'])} {analysis.rate_unit}"
        f"{'; ' * bool(rest)}{listed(rest) if rest else ''}."
    )


def _times(result: Mapping[str, Any]) -> str:
    if result["low"] is None or result.get("repeats") == 1:  # of one run over itself, whose ends are both 1
        return f"{numbers.number(result['speedup'])} [{plural(result['repeats'], 'repeat')}, no interval]"
    return with_interval(result["speedup"], result["low"], result["high"])


def _difference(found: Mapping[str, Any], workers: int, pairs: pd.DataFrame, labels: Mapping[str, str]) -> str:
    """Return how two series differ, by the ratio of the table of pairs where repeats make pairs: one ratio, one value.

    `pairs`: analysis.transports. Pairs leave out what disturbed both, so their ratio need not be that of the medians.
    """
    fast, slow, resolved = found["faster"], found["slower"], found["resolved"]
    ratio, low, high = found["ratio"], found["low"], found["high"]
    same = (pairs["quantity"] == "samples_per_s") & (pairs["workers"] == workers) & pairs["ratio_low"].notna()
    same &= (pairs["pairs"] >= 3) & pairs["a"].isin([fast, slow]) & pairs["b"].isin([fast, slow])
    for row in pairs[same].to_dict("records"):
        ratio, low, high = (float(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        fast, slow, resolved = row["b"], row["a"], row["verdict"] == RESOLVED
        if ratio < 1:
            fast, slow, ratio, low, high = slow, fast, 1 / ratio, 1 / high, 1 / low
    fast, slow, told = labels[fast], labels[slow], with_interval(ratio, low, high)
    if resolved:
        return f"{fast} is {told} times as fast as {slow}."
    if resolved is None:
        return f"Whether {fast} is faster than {slow} is open: too few repeats (ratio {told})."
    return f"{fast} and {slow} are not measurably different (ratio {told})."


def _step(found: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    step = found["step"]
    if step is None or found["workers"] == 1:
        return []
    share = step["share"]["sync"]
    wait = (
        "the wait for gradients cannot be separated" if share is None else f"{percent(share)} of it waits for gradients"
    )
    return [
        f"A step with {plural(found['workers'], 'worker')} over {labels[found['series'][0]['series']]} takes "
        f"{numbers.milliseconds(step['step_s'])}{THIN}ms; {wait}."
    ]


def answer_lines(analysis: Analysis) -> list[str]:
    """Return headline, points, doubts and cost, with the numbers of the page."""
    lines = answer(analysis)
    for points in tables(analysis, "points"):
        shown = ("Workers", "Nodes", "Throughput", "Speedup", "Efficiency", "Outside")
        kept = [place for place, column in enumerate(points.columns) if column.head in shown]
        lines += ["", *to_lines(with_columns(points, kept)), ""]
    if doubts := told_doubts(analysis):
        lines.append(f"{plural(len(doubts), 'doubt')}: see the page")
    # Rows of a table do not say how long they took.
    if "wall_s" in analysis.runs and analysis.runs["wall_s"].notna().any():
        runs = analysis.runs[analysis.runs["wall_s"].notna()]
        hours = float((runs["wall_s"] * runs["workers"]).sum()) / 3600
        unit = "GPU hours" if (runs["device"] == "cuda").all() else "worker hours"
        minutes = float(runs["wall_s"].sum()) / 60
        lines.append(f"cost: {plural(len(runs), 'run')}, {minutes:,.1f} min of training, {hours:,.3g} {unit}")
    return [line.replace(THIN, " ") for line in lines]
