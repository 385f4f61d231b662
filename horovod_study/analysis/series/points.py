"""Run table in, scaling points out: throughput, speedup and efficiency of every cell with its spread over repeats.

A point is what the repeats of one cell say together; a series is the points that differ in the worker count only.
Every quantity is defined in docs/metrics.md. Nothing is filled in: a cell without a finished run has a row full of
NaN, a point without its baseline has no speedup, and `doubts` says so in words.
"""

import argparse
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from horovod_study import records
from horovod_study.analysis import paired, stats
from horovod_study.analysis.laws.costs import karp_flatt
from horovod_study.analysis.series.culprits import (
    CULPRITS,
    OWN,
    UNSTEADY,
    culprits,
    impossibilities,
    incredible,
    of_kind,
    passes,
    unsteady,
    withheld,
)
from horovod_study.config.roles import AS_SHIPPED, Role, named
from horovod_study.config.run import LAPS
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError, refuse
from horovod_study.records import COMMAND, COMMANDS, TurnSlice, rate_unit
from horovod_study.runtimes import BACKENDS, CARRIED, LIBRARIES, TRANSPORTS
from horovod_study.text.numbers import percent
from horovod_study.text.words import listed, plural

DISTINGUISHING, OPTIONS, _OWN_MODEL = packaged().distinguishing, packaged().options, packaged().model

_NAMED = ("partition", "backend", "transport", "precision", "reduction", "horovod_defaults", "model")

CHOICES = tuple(name for name in DISTINGUISHING if name not in (*_NAMED, "batch"))
"""Options of training that separate series; a name mentions those that differ between the runs of the table."""

KNOBS = tuple(name for name in CHOICES if OPTIONS[name].roles & (Role.COMMUNICATION | Role.PLACEMENT))
"""Choices of how workers communicate and where they sit, as texts in the table ("shipped" where nobody chose).

They mean nothing to one worker alone.
"""

_OF_SEVERAL = tuple(name for name in CHOICES if OPTIONS[name].roles & Role.SEVERAL)
"""Choices that mean nothing to a plain worker."""
_FREE_OF_ONE = tuple(name for name in _OF_SEVERAL if OPTIONS[name].roles & (Role.RATE | Role.PLACEMENT))
"""Those that mean nothing to one worker inside a library either."""

REPORTED = "reported"
"""The library, and the model, of rows of somebody's table (`series.points`), of which neither is known."""
GIVEN_BASE = "base_samples_per_s"
"""Column of such rows: what their speedups are over, samples/s of a worker, where that is none of the rows."""
UNKNOWN = ""  # an option of training that was not recorded, as of another script's runs
UNSEEN = "unknown"  # as a precision: that of a finished run of another script in which it could not be seen

_NO_SIZE = -1.0

_TEXTS = tuple(name for name in CHOICES if name in KNOBS or OPTIONS[name].default is None)
"""Choices that may be nobody's: they are texts in the table."""

SETTINGS = (*_NAMED, *CHOICES)  # what stays the same along a series, whatever its scaling mode


CELL = (*SETTINGS, "batch", "train_samples", "workers", "nodes")  # what the repeats of one point share

LAP_COLUMNS = tuple(f"{lap}_s" for lap in (*LAPS, "residual"))
"""Mean seconds per step of each part of a step; with the residual they add up to `step_s`."""

CAPTURED = "compute_s"
"""Known of runs whose steps were captured in CUDA graphs; run tables of older programs do not have it."""

ENVIRONMENT = ("cpu_model", "cores", "os", "python", "torch", "horovod", "mpi", "package")

REQUIRED = (
    *("run", "study", "status", "reason", "repeat", "global_batch"),
    *(name for name in CELL if name not in (*CHOICES, "model")),  # those have defaults
    *("samples_per_s", "window_s", "steps", "step_s_median"),
    *(name for name in LAP_COLUMNS if name != CAPTURED),
    *("step_s", "test_mse"),
)

_WORK = {
    "weak": "fixed local batch and fixed data set: per-step weak, per-epoch strong",
    "strong": "fixed global batch and fixed data set: strong per step and per epoch",
    "weak, unknown data": "fixed local batch, size of the data set not recorded: weak per step",
    "strong, unknown data": "fixed global batch, size of the data set not recorded: strong per step",
    "weak, growing data": "fixed local batch, data set growing with the workers: weak per step and per epoch",
    "weak, other data": "fixed local batch, data sets of different sizes: weak per step",
    "strong, other data": "fixed global batch, data sets of different sizes: strong per step",
    "mixed": "neither the local nor the global batch is fixed: worker counts are not comparable",
    COMMAND: "one command with several worker counts, in which no step was seen: what is fixed is not known",
    "single": "one worker count only",
}
"""What each way of scaling keeps fixed, in words for captions."""

FLAGS = {
    "missing": "no run of this cell gave a result",
    "failed": "some of its runs gave no result",
    "mixed": "neither the local nor the global batch is fixed: not comparable with the other worker counts",
    "no_plain_baseline": "one plain worker with the same work was not measured",
    "no_wrapped_baseline": "one worker inside the same library with the same work was not measured",
    "few_repeats": "fewer than three repeats: no interval",
    "wide_spread": "the repeats spread by more than 10 % of their median",
    "superlinear": "an efficiency above 100 %, and its interval too",
    "superlinear_unresolved": "an efficiency above 100 %, within the scatter of the repeats or without an interval",
    "few_steps": "fewer than 100 steps in the timed window of some run",
    **{each.name: each.flag for each in CULPRITS},
}
"""Words of the column `flags`, in their order there, and what each says of a point."""

OF_RANKS = ("load_balance", "communication_efficiency", "parallel_efficiency", "skew_s")
"""What the step rows say of the ranks of each run (`accounting.Accounting.run_rows`), as medians over repeats here."""

FEW_STEPS = 100


def cores_of_one_machine(table: pd.DataFrame) -> dict[str, int]:
    """Return the cores of the one machine of each series that ran on the processors of a single host of no cluster."""
    if not {"device", "cores", "host"} <= set(table.columns):
        return {}
    own = table[(table["partition"] == "local") & (table["device"] == "cpu") & table["cores"].notna()]
    one = own.groupby("series").filter(lambda rows: rows["host"].nunique() == 1 and (rows["nodes"] == 1).all())
    return {str(series): int(cores) for series, cores in one.groupby("series")["cores"].max().items()}


def with_series(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a sorted copy of the run table with series, setting, mode, work, ref_batch and ref_train_samples added.

    setting is what series must share to be drawn in one plot ("batch 75"). mode is derived from the recorded batches,
    never from a flag: `weak` where one local batch was run with several worker counts, `strong` where one global
    batch was, `mixed` where neither was, `single` for one worker count. ref_batch and ref_train_samples are the local
    batch and the training set size that its one-worker baseline must have.

    A table that it returned is taken as it is, so that a study names its runs once. Texts are objects, whatever they
    were.
    """
    if "ref_batch" in runs.columns:
        return runs
    missing = [column for column in REQUIRED if column not in runs.columns]
    why = f"column {', '.join(missing)} missing; make it with horovod-study report RUNS --out DIR"
    none = "holds no runs; run a study first (horovod-study run experiments/laptop.yaml)"
    refuse("run table", (missing, why), (runs.empty, none), error=AnalysisError)
    table = _completed(runs)
    references = {f"ref_{name}": table[name].astype(float) for name in ("batch", "train_samples")}
    table = table.assign(series="", setting="", mode="single", work=_WORK["single"], **references)
    families = _families(table)
    # Choices in which the runs of a table differ. A learning rate that grows with the workers grows nothing for a plain
    # worker, and how workers communicate means nothing to it: these tell nothing there. Other models have other options
    # anyway: differences within a model count.
    parallel, every = (each.groupby("model") for each in (table[table["backend"] != "serial"], table))
    of = {name: (parallel if name in _OF_SEVERAL else every)[name].nunique(dropna=False) for name in CHOICES}
    told = [name for name, counts in of.items() if (counts > 1).any()]
    for name, family in _names(families, told).items():
        index = list(family.rows)
        texts = [name, family.setting, family.kind.split(",")[0], _WORK[family.kind]]
        table.loc[index, ["series", "setting", "mode", "work"]] = texts
        if family.kind.startswith("strong"):
            table.loc[index, "ref_batch"] = table.loc[index, "global_batch"]
        if family.kind in _ANY_DATA:
            table.loc[index, "ref_train_samples"] = family.train_samples
        if family.kind == "weak, growing data":
            table.loc[index, "ref_train_samples"] = table.loc[index, "train_samples"] / table.loc[index, "workers"]
    return _sorted(table)


_RULES = ("weak", "strong", "weak, growing data")
_ANY_DATA = ("weak, other data", "strong, other data")
"""What is left of the runs of another script: how many samples its data set holds need not be that of its work."""


def _families(table: pd.DataFrame) -> list[SimpleNamespace]:
    """Split the runs of equal settings into series before these have names.

    Of each: settings; kind, a key of _WORK; rows, labels in the run table; batch, local, or global where that one is
    fixed; train_samples, of one worker where the data set grows with the workers, of the fewest where sizes differ;
    threads of a worker, where its runs differ in nothing else. A run belongs to one series: of the rules that may claim
    it that is tried first which makes series as long as possible. `_doubt_shared` names the one that lacks a point.
    """
    families = []
    sizes = ["workers", "batch", "global_batch", "train_samples", "rank_threads"]
    told = table.assign(rank_threads=table["rank_threads"].mask(texts(table, "device") == "cuda"))
    for settings, alike in told.groupby(list(SETTINGS), dropna=False, sort=True)[sizes]:
        common = dict(zip(SETTINGS, settings, strict=True))
        parts = alike.groupby("rank_threads", dropna=False)  # unless they follow from workers and batch
        one = (alike.groupby(["workers", "batch"], dropna=False)["rank_threads"].nunique() < 2).all()
        for threads, group in [(math.nan, alike)] if one else parts:
            counts = group["workers"]
            ways = [_claimed(group, common, _RULES)]
            if len(ways[0]) > 1 and counts.nunique() > 1:
                orders = ((first, *(rule for rule in _RULES if rule != first)) for first in _RULES[1:])
                ways += [_claimed(group, common, order) for order in orders]
            best = max(ways, key=lambda way: sum(counts.loc[list(each.rows)].nunique() ** 2 for each in way))
            families += [SimpleNamespace(**vars(each), threads=float(f"{threads}")) for each in best]
    return families


def _claimed(group: pd.DataFrame, common: Mapping[str, Any], rules: Sequence[str]) -> list[SimpleNamespace]:
    """Return the series of the runs of equal settings; what two rules could claim goes to the earlier one."""
    found, rest, kinds = list[SimpleNamespace](), group, (*rules, *_ANY_DATA, "single")
    if common["backend"] == COMMAND and group["workers"].nunique() > 1:
        kinds = (COMMAND,)
    for kind in kinds if common["model"] != _OWN_MODEL else (each for each in kinds if each not in _ANY_DATA):
        if kind == COMMAND or (kind == "single" and not found and rest["workers"].nunique() > 1):
            told = {"kind": kind.replace("single", "mixed"), "batch": math.nan, "train_samples": math.nan}
            return [SimpleNamespace(settings=common, rows=tuple(rest.index), **told)]
        data = rest["train_samples"]
        if kind == "weak, growing data":
            data = (data / rest["workers"]).where(data.notna(), -rest["workers"])  # unknown data grow with nothing
        if kind in _ANY_DATA:
            data = pd.Series(math.nan, rest.index)
        kept = "global_batch" if kind.startswith("strong") else "batch"
        for key, same in rest[[kept, "workers"]].assign(data=data).groupby([kept, "data"], dropna=False, sort=True):
            batch, train_samples = (float(f"{part}") for part in key)
            one_size = rest.loc[same.index].groupby("workers")["train_samples"].nunique(dropna=False).max() == 1
            if kind == "single" or (same["workers"].nunique() > 1 and (kind not in _ANY_DATA or one_size)):
                rows = tuple(same.index)
                if kind in _ANY_DATA:
                    train_samples = float(rest["train_samples"].loc[same.sort_values("workers").index[0]])
                scaling = f"{kind}, unknown data" if kind in ("weak", "strong") and math.isnan(train_samples) else kind
                own = {"kind": scaling, "batch": batch, "train_samples": train_samples}
                found.append(SimpleNamespace(settings=common, rows=rows, **own))
                rest = rest.drop(index=list(rows))
    return found


def _completed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a copy in which settings that a run could not record are taken from the one cell that fits.

    A run that died early knows only what was asked for (`auto`, no training set size); one worker reduces nothing,
    so its reduction is `none`. Where the other runs leave exactly one possibility the run belongs there, otherwise
    it stays as it is. Measured values are never touched. Options that a run of another script did not record are
    UNKNOWN, those of our own that are older than the option have its default.
    """
    table = _with_plain_texts(runs.reset_index(drop=True))
    table["horovod_defaults"] = table["horovod_defaults"].astype(bool)
    models = table["model"].astype(object) if "model" in table.columns else pd.Series(_OWN_MODEL, table.index, object)
    table["model"] = models.where(models.notna(), _OWN_MODEL)
    foreign = table["model"] != _OWN_MODEL
    for column in CHOICES:
        default = OPTIONS[column].default
        given = table[column].astype(object) if column in table.columns else pd.Series(None, table.index, object)
        not_told = foreign & given.isna()
        given = given.where(given.notna(), default)
        table[column] = given.map(_knob_text).astype(object) if column in _TEXTS else given
        if column in _OF_SEVERAL:  # whatever it was given: plain workers of equal settings are repeats of each other
            plain = table["backend"] == "serial"
            table[column] = table[column].mask(plain, _knob_text(default) if column in _TEXTS else default)
        if not_told.any():  # how another script trains is not what ours would have done by default
            table[column] = table[column].astype(object).mask(not_told, UNKNOWN)
    if CAPTURED not in table.columns:
        table[CAPTURED] = math.nan
    for column in ("batch", "global_batch", "train_samples", "workers", "nodes", CAPTURED):
        table[column] = pd.to_numeric(table[column]).astype(float)
    threads = numbers(table, "rank_threads")
    table["rank_threads"] = threads.mask(numbers(table, "cores") == 1, threads.clip(upper=1))
    # Nor is a finished run of another script whose precision was not seen a repeat of those whose precision was.
    table["precision"] = table["precision"].astype(object)
    table.loc[foreign & table["precision"].isna() & measured(table), "precision"] = UNSEEN
    for column in ("partition", "backend", "transport", "precision", "reduction"):
        table[column] = table[column].astype(object).where(table[column].notna(), "auto")
    # A finished run of another script may have a data set without a size, which is no gap to be filled.
    sizeless = foreign & table["train_samples"].isna() & measured(table)
    table.loc[sizeless, "train_samples"] = _NO_SIZE
    family = [*SETTINGS, "batch", "train_samples"]
    unknown = pd.DataFrame(
        {column: table[column].isna() | ((table[column] == "auto") & (column not in _TEXTS)) for column in family}
    )
    unknown["reduction"] |= (table["reduction"] == "none") & (table["backend"] != "serial") & (table["workers"] == 1)
    complete = table.loc[~unknown.any(axis=1), family].drop_duplicates()
    # Runs that know the same of themselves are told the same; a large study has many of them.
    partial = table.loc[unknown.any(axis=1), family].astype(object).mask(unknown)
    for _, alike in partial.groupby(family, dropna=False, sort=False):
        labels, label = alike.index, alike.index[0]
        # Runs of the same work first; where there are none (the batch may change with the workers), of any work.
        for columns in (family, list(SETTINGS)):
            known = [column for column in columns if not unknown.at[label, column]]
            same = (complete[known] == table.loc[label, known]).all(axis=1)
            fits = complete.loc[same, columns].drop_duplicates()
            if len(fits) == 1:
                for column in (each for each in columns if each not in known):
                    table.loc[labels, column] = fits.iloc[0][column]
            if len(fits):
                break
    # Runs of one worker, which average nothing, have the reduction of their settings' runs of several workers where
    # there is exactly one: what `complete` runs left open, because all of several workers died early.
    parallel, other = table["backend"] != "serial", [column for column in SETTINGS if column != "reduction"]
    alone = table.index[parallel & (table["workers"] == 1) & (table["reduction"] == "none")]
    several = table.loc[parallel & (table["workers"] > 1), list(SETTINGS)].drop_duplicates()
    single = several[~several.duplicated(other, keep=False)].set_index(other)["reduction"].to_dict()
    keys = table.loc[alone, other].itertuples(index=False, name=None)
    table.loc[alone, "reduction"] = [single.get(key, "none") for key in keys]
    table["train_samples"] = table["train_samples"].where(table["train_samples"] != _NO_SIZE)
    batches = table["batch"] * table["workers"]
    table["global_batch"] = table["global_batch"].where(table["global_batch"].notna(), batches)
    table["nodes"] = table["nodes"].where(table["nodes"].notna() | (table["workers"] != 1), 1.0)
    return table


def _knob_text(value: Any) -> str:
    if value is None or value != value:  # NaN stands for None in a column of numbers
        return AS_SHIPPED
    if isinstance(value, bool | np.bool_):
        return "on" if value else "off"
    return value if isinstance(value, str) else f"{value:g}"


def _names(families: Sequence[SimpleNamespace], told: Sequence[str]) -> dict[str, SimpleNamespace]:
    """Return a readable, unique name for each series, which gets its `setting` too; settings that distinguish nothing
    are left out."""
    alike: dict[str, list[SimpleNamespace]] = {}
    for family in families:
        own, size = family.settings, "unknown" if math.isnan(family.batch) else f"{family.batch:.0f}"
        serial, kind = own["backend"] == "serial", family.kind.split(",")[0]
        batch = {"mixed": "mixed batches", "strong": f"global batch {size}"}.get(kind, f"batch {size}")
        batch = "no steps seen" if own["backend"] == COMMAND else batch
        precision = {"fp32": "", "auto": "", UNSEEN: f"{UNSEEN} precision"}.get(own["precision"], own["precision"])
        choices = [each for each in told if f"{own[each]}" != UNKNOWN and not (serial and each in _OF_SEVERAL)]
        words = [batch, precision, *(OPTIONS[each].say(own[each]) for each in choices)]
        family.setting = " ".join(filter(None, words))
        way = own["backend"] if own["transport"] in ("none", "auto") else f"{own['backend']}/{own['transport']}"
        model = "" if own["model"] in (_OWN_MODEL, REPORTED) else f" {own['model']}"
        stock = " stock settings" if own["horovod_defaults"] else ""
        family.name = f"{own['partition']} {way}{model} {family.setting}{stock}"
        alike.setdefault(family.name, []).append(family)
    names: dict[str, SimpleNamespace] = {}
    for family in families:
        twins, words = alike[family.name], [family.name]
        if len({twin.settings["reduction"] for twin in twins}) > 1:
            own, alone = f"{family.settings['reduction']}", {"own": "several processes", "none": "one process"}
            words.append(alone.get(own, own) if family.settings["backend"] == "serial" else own)
        if len({f"{twin.train_samples}" for twin in twins}) > 1:
            size = "unknown" if math.isnan(family.train_samples) else f"{family.train_samples:.0f}"
            words.append(f"{size} samples{' per worker' if family.kind == 'weak, growing data' else ''}")
        if len({f"{twin.threads}" for twin in twins}) > 1:
            words.append("unknown threads" if math.isnan(family.threads) else plural(round(family.threads), "thread"))
        whole = " ".join(words)
        more = (f"{whole} #{number}" for number in count(2))
        names[whole if whole not in names else next(each for each in more if each not in names)] = family
    return names


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    """Order rows by what they are, so that the order of the run table does not matter."""
    orders = {"backend": BACKENDS, "transport": TRANSPORTS}
    orders |= {name: tuple(choices) for name in CHOICES if (choices := OPTIONS[name].choices)}
    columns = (
        *("partition", "backend", "transport", "precision", "ref_batch", *CHOICES, "horovod_defaults", "model"),
        *("reduction", "ref_train_samples", "series", "workers", "nodes", "batch", "train_samples"),
        *(column for column in ("repeat", "run") if column in table.columns),
    )

    def key(column: Any) -> Any:
        if (order := orders.get(name := column.name)) is not None:
            return column.map({each: place for place, each in enumerate(order)}).fillna(99)
        if name in OPTIONS and (parse := OPTIONS[name].parse):
            return column.map(lambda text: parse(text) if text != UNKNOWN else (math.inf,))
        numeric = name in _TEXTS or (name in CHOICES and (column.astype(object) == UNKNOWN).any())
        return pd.to_numeric(column, errors="coerce") if numeric else column

    return _with_plain_texts(table.infer_objects().sort_values(list(columns), key=key, ignore_index=True))


def _with_plain_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose texts are objects: thousands of small groups are cut out of it, slowly from Arrow arrays."""
    texts = {name: object for name, kind in table.dtypes.items() if isinstance(kind, pd.StringDtype)}
    return table.astype(texts).copy()  # one block per type


def measured(runs: pd.DataFrame) -> pd.Series:
    """Return which rows of a run table are finished runs with a throughput, as booleans."""
    return (runs["status"] == "done") & np.isfinite(runs["samples_per_s"].astype(float))


def scaling_points(
    runs: pd.DataFrame, accounting: pd.DataFrame | None = None, turns: "StudyTurns | None" = None
) -> pd.DataFrame:
    """Return one row per cell of the run table: medians over repeats, spread, speedup and efficiency.

    Speedups are given against two baselines of the same partition, precision, batch and training set size: `plain`
    (one worker without a communication library) and `wrapped` (one worker inside the same one). Columns are NaN
    where a cell has no finished run, where its baseline has none, and for intervals from fewer than three repeats.
    `flags` are those of FLAGS that hold, a blank between them. `accounting` (`Accounting.run_rows`) brings what the
    step rows say of the ranks, OF_RANKS; without it, and where a repeat does not know it, these are NaN. `turns` are
    the slices of runs that alternated: the ratios of their points are those within rounds, and further columns
    `turns_...` have both components of variance (`series.turns`).
    """
    table = levelled(runs, turns).copy()
    for name in (*OF_RANKS, "outside_share", "stall_s", "epoch_steps", "epoch_samples"):
        table[name] = math.nan
        if accounting is not None and name in accounting.columns:
            table[name] = table["run"].map(whole_runs(accounting)[name]).astype(float)
    table["whole_samples_per_s"] = table["samples_per_s"].astype(float) * (1 - table["outside_share"])
    cells = cells_of(table)
    rows = [_point(cell) for cell in cells]
    names = [cell.loc[measured(cell), "run"].tolist() for cell in cells]
    values = [row["_samples_per_s"] for row in rows]
    for place, row in enumerate(rows):
        for kind in ("plain", "wrapped"):
            base = baseline_place(rows, row, kind)
            share = 1 if base is None else rows[base]["workers"]  # of a table that does not begin with one worker
            over = None if base is None else values[base] / share
            moved = base not in (None, place) and unsteady(rows[base])
            row.update(_against(row, values[place], kind, over, itself=base == place, disturbed=moved))
            # What its baseline differs in; of the plain one, where that is known.
            if base not in (None, place) and (kind == "plain" or math.isnan(row["base_threads"])):
                other = rows[base]
                row["base_threads"] = other["rank_threads"] if row["device"] == "cpu" else math.nan
                row["base_unsteady"] = row["base_unsteady"] or unsteady(other)
                whole = row["whole_samples_per_s_median"] / other["whole_samples_per_s_median"]
                row["speedup_whole"] = math.nan if row["base_unsteady"] else whole
                if math.isnan(row["data_passes"]):  # the data set has no size: one worker's epoch is once through it
                    row["data_passes"] = row["epoch_samples_median"] / other["epoch_samples_median"]
            found = turns.estimate(names[place], names[base]) if turns and base not in (None, place) else None
            row |= against(found, kind, row["workers"], row[f"speedup_{kind}"]) if found is not None else {}
            if turns and not row.get("turns_launches", 0.0) > 0:
                row |= components(found)
                if found is None and base not in (None, place):
                    row["turns_shared"] = turns.shared(names[place], names[base])
        for end, of in _EPOCH_ENDS.items():  # of the one that was made, where each worker went through all of the data
            row[f"epoch_s_{end}"] = passes(row) * row["train_samples"] / (row[f"samples_per_s_{of}"] or math.nan)
        for end, of in {"": "", "_low": "_high", "_high": "_low"}.items():  # it falls as the speedup grows
            fraction = float(karp_flatt(row[f"speedup_plain{of}"], row["workers"]))
            fraction = math.nan if row["speedup_plain"] < 1 else fraction  # of a slowdown it is no fraction
            row[f"karp_flatt{end}"] = fraction
        # POP's: useful seconds per sample of the plain baseline over those here. One plain worker waits for nobody; the
        # ranks of a point spend N PE / X useful seconds on a sample, whatever is fixed: the quotient is E / PE.
        row["computation_scalability"] = row["efficiency_plain"] / row["parallel_efficiency_median"]
        row["speedup_whole"] = math.nan if withheld(row) else row["speedup_whole"]
        row["flags"] = " ".join(_flags(row))
    for row in rows:
        del row["_samples_per_s"], row["_steps"], row[GIVEN_BASE], row["epoch_samples_median"]
    points = pd.DataFrame(rows)
    foreign = points["model"] != _OWN_MODEL
    if foreign.any():
        points["horovod_defaults"] = points["horovod_defaults"].astype(object).mask(foreign, UNKNOWN)
    counts = ("batch", "train_samples", "global_batch", "workers", "nodes", "repeats", "failed")
    # One block of memory again: a frame of many columns that were set one by one is slow, and pandas warns of it.
    return whole_numbers(points, (*counts, "ref_batch", "ref_train_samples")).copy()


def levelled(runs: pd.DataFrame, turns: "StudyTurns | None") -> pd.DataFrame:
    """Return the run table with series, in which cells that alternated are as fast as their ratio within rounds says.

    Their throughputs are scaled to that ratio times the median of their baseline, the plain one where it is known: the
    speedup of a point is the ratio of its throughput to that of its baseline, and drift between launches is in neither.
    """
    table = with_series(runs)
    if not turns:
        return table
    table = table.copy()
    cells = cells_of(table.assign(**dict.fromkeys(OF_RANKS, math.nan)))
    rows = [_point(cell) for cell in cells]
    names = [cell.loc[measured(cell), "run"].tolist() for cell in cells]
    factors: dict[int, float] = {}

    def level(place: int) -> float:
        """Return the samples/s of a cell; its baseline, a single worker, comes first."""
        own = float(rows[place]["samples_per_s_median"])
        for kind in ("plain", "wrapped") if place not in factors else ():
            base = baseline_place(rows, rows[place], kind)
            if base not in (None, place) and (found := turns.estimate(names[place], names[base])) is not None:
                factors[place] = found.ratio.value * level(base) / own
                break
        return own * factors.setdefault(place, 1.0)

    for place, cell in enumerate(cells):
        level(place)
        table.loc[cell.index, "samples_per_s"] = cell["samples_per_s"].astype(float) * factors[place]
    return table


def numbers(table: pd.DataFrame, name: str) -> "pd.Series[float]":
    """Return a column as floats; NaN for what is no number, and where the table does not have it."""
    if name not in table.columns:
        return pd.Series(math.nan, table.index)
    return pd.to_numeric(table[name], errors="coerce").astype(float)


def texts(table: pd.DataFrame, name: str) -> "pd.Series[str]":
    """Return a column as texts, "" for what is not known, and where the table does not have it."""
    known = table[name].astype(object) if name in table.columns else pd.Series("", table.index, dtype=object)
    return known.fillna("").astype(str)


def disturbed_runs(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return of which rows of a run table the recorder says that steps became 1.25 times as long, or short."""
    told = texts(rows, "steady_doubt").str.extract(rf"{UNSTEADY}.* ([\d.,]+) (% longer|% less|times)")
    size = told[0].str.replace(",", "").astype(float)
    times = size.where(told[1] == "times", (1 + size / 100).where(told[1] == "% longer", 1 / (1 - size / 100)))
    return times >= 1.25


def whole_runs(accounting: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `Accounting.run_rows` that are of all ranks of a run, by the run."""
    return accounting[accounting["rank"].isna()].drop_duplicates("run").set_index("run")


def whole_numbers(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Return the table with those of `columns` as integers that hold nothing else."""
    whole = [name for name in columns if len(table) and (table[name] % 1 == 0).all()]
    return table.astype(dict.fromkeys(whole, "int64"))


def cells_of(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of each cell of a run table with series, in the order in which they come."""
    return [rows for _, rows in table.groupby(["series", *CELL], dropna=False, sort=False)]


def rows_by(table: pd.DataFrame, keys: Sequence[str] = ("series", *CELL)) -> list[list[dict[Any, Any]]]:
    """Return the rows of each cell as plain values; all are converted at once, for pandas takes as long for one."""
    found: dict[int, list[dict[Any, Any]]] = {}
    places = table.groupby(list(keys), dropna=False, sort=False).ngroup()
    for place, row in zip(places, table.to_dict("records"), strict=True):
        found.setdefault(place, []).append(row)
    return list(found.values())


def _flags(row: Mapping[str, Any]) -> list[str]:
    kinds = ["plain"] if row["backend"] == "serial" else ["plain", "wrapped"]
    mixed, several = row["mode"] == "mixed", row["workers"] > 1
    known = mixed or row["backend"] == COMMAND  # of which another sentence says what is missing
    above = [kind for kind in kinds if several and row[f"efficiency_{kind}"] > 1]
    resolved = any(row[f"efficiency_{kind}_low"] > 1 for kind in above)
    spread = (row["samples_per_s_max"] - row["samples_per_s_min"]) / row["samples_per_s_median"]
    holds = {
        "missing": row["missing"],
        "failed": row["failed"] > 0,
        "mixed": mixed,
        **{f"no_{kind}_baseline": not known and math.isnan(row[f"base_{kind}_samples_per_s"]) for kind in kinds},
        "few_repeats": 0 < row["repeats"] < stats.MIN_REPEATS,
        "wide_spread": spread > 0.10,
        "superlinear": resolved,
        "superlinear_unresolved": bool(above) and not resolved,
        "few_steps": row["_steps"] < FEW_STEPS and row["backend"] != COMMAND,
        **{each.name: each.holds(row) for each in CULPRITS},
    }
    return [name for name in FLAGS if holds.get(name, False)]


def _point(cell: pd.DataFrame) -> dict[str, Any]:
    first, good, bad = cell.iloc[0], cell[measured(cell)], cell[~measured(cell)]
    of_series = ("setting", "global_batch", "mode", "work", "ref_batch", "ref_train_samples")
    row: dict[str, Any] = {
        **{column: first[column] for column in ("series", *CELL, *of_series)},
        "device": first.get("device"),
        "repeats": len(good),
        "failed": len(bad),
        "missing": good.empty,
        "reasons": "; ".join(dict.fromkeys(_why(each) for _, each in bad.iterrows())),
        GIVEN_BASE: float(first.get(GIVEN_BASE, math.nan)),
        "_samples_per_s": np.sort(good["samples_per_s"].to_numpy(dtype=float)),
        "_steps": float(good["steps"].astype(float).min()) if len(good) else math.nan,
    }
    names = {"median": "median", "min": "min", "max": "max", "low": "ci95_low", "high": "ci95_high"}
    row |= {f"samples_per_s_{names[end]}": value for end, value in stats.spread(row["_samples_per_s"]).items()}
    row |= dict.fromkeys((f"epoch_s_{end}" for end in _EPOCH_ENDS), math.nan)  # known below, and has its place here
    row |= {"step_s_median": stats.of_all(good["step_s_median"]), "step_mean_s_median": stats.of_all(good["step_s"])}
    row |= {f"{column}_median": stats.of_all(good[column]) for column in (*LAP_COLUMNS, "test_mse", *OF_RANKS)}
    named = ("outside_share", "stall_s", "whole_samples_per_s", "epoch_samples")
    row |= {f"{column}_median": stats.of_all(numbers(good, column)) for column in named}
    row["epoch_steps"], row["rank_threads"] = (
        stats.of_all(numbers(good, name), np.max) for name in ("epoch_steps", "rank_threads")
    )
    row["data_passes"] = row["epoch_samples_median"] / (row["train_samples"] or math.nan)
    whole = row["train_samples"] / row["batch"]  # the last batch of a short epoch may be much of it
    if math.isfinite(whole) and row["epoch_steps"] <= math.ceil(whole / row["workers"]):
        row["data_passes"] = min(1.0, row["data_passes"])
    elif math.isfinite(whole) and row["epoch_steps"] in (int(whole), math.ceil(whole)):
        row["data_passes"] = float(row["workers"])
    row["apart"], row["calls"] = (max(texts(good, name), default="") for name in ("apart", "calls"))
    row["unsteady"] = int(disturbed_runs(good).sum())
    row |= {"base_threads": math.nan, "base_unsteady": False, "speedup_whole": math.nan}
    for column in OF_RANKS:
        row[f"{column}_min"], row[f"{column}_max"] = (stats.of_all(good[column], of) for of in (np.min, np.max))
    return row


_EPOCH_ENDS = {"median": "median", "min": "max", "max": "min", "low": "ci95_high", "high": "ci95_low"}
"""An epoch takes training samples / X: the fastest repeat is the shortest."""


def _why(run: Any, *, status: bool = True) -> str:
    """Return why a run gives no number, in one line, with or without its status in front."""
    reason = "" if pd.isna(run["reason"]) else " ".join(str(run["reason"]).split())
    if run["status"] == "done":
        return reason or "finished without a timed window"
    if run["status"] == "running":
        return "still running"
    reason = reason or "no reason recorded"
    return f"{run['status']}: {reason}" if status else reason


def baseline_place(cells: Sequence[Mapping[str, Any]], cell: Mapping[str, Any], kind: str) -> int | None:
    """Return the place in `cells` of the one-worker cell that `cell` is compared with, or None where there is none.

    kind is `plain` or `wrapped`. docs/metrics.md, "Baselines", says which runs may be one. Of a table that somebody has
    reported it is the smallest count of the series: one of its workers is what others are compared with; none where
    its numbers are speedups already, or where several workers are the only count.
    """
    if cell["mode"] == "mixed" or (kind == "wrapped" and cell["backend"] == "serial"):
        return None
    if not math.isnan(cell.get(GIVEN_BASE, math.nan)):
        return None
    if cell["backend"] == COMMAND and kind == "plain":
        return None
    if cell["backend"] in (COMMAND, REPORTED) and kind == "wrapped":  # which have no batch that could differ
        own = [place for place, other in enumerate(cells) if other["series"] == cell["series"] and other["repeats"] > 0]
        counts = {cells[place]["workers"] for place in own}
        if counts == {1} or (len(counts) > 1 and (cell["backend"] == REPORTED or 1 in counts)):
            return min(own, key=lambda place: cells[place]["workers"])
        return None
    way = ("serial", "none") if kind == "plain" else (cell["backend"], cell["transport"])
    free = _OF_SEVERAL if kind == "plain" else _FREE_OF_ONE
    places = [
        place
        for place, other in enumerate(cells)
        if other["repeats"] > 0
        and other["workers"] == 1
        and (other["backend"], other["transport"]) == way
        and all(other[name] == cell[name] for name in ("partition", "precision", "model", *CHOICES) if name not in free)
        and other["batch"] == cell["ref_batch"]
        and (cell["model"] != _OWN_MODEL or _same(other["train_samples"], cell["ref_train_samples"]))
        and (kind == "plain" or other["horovod_defaults"] == cell["horovod_defaults"])
        and (kind == "plain" or other["reduction"] in (cell["reduction"], "none"))
    ]
    placed = named(OPTIONS, Role.PLACEMENT)
    threads = math.nan if cell.get("device") == "cuda" else cell.get("rank_threads", math.nan)
    others = {place for place in places if 0 < cells[place].get("rank_threads", 0) != threads}
    if not math.isnan(threads) and kind == "plain" and places and others.issuperset(places):
        inside = baseline_place(cells, cell, "wrapped")
        if inside is not None and cells[inside].get("rank_threads") == threads:
            return None  # which of the two compares alike
    # Where there is a choice: as many threads and the same settings first, then one that had nothing to reduce.
    places.sort(
        key=lambda place: (
            place in others,
            not _same(cells[place]["train_samples"], cell["ref_train_samples"]),
            *(cells[place][name] != cell[name] for name in placed),
            cells[place]["horovod_defaults"] != cell["horovod_defaults"],
            *(cells[place][name] != cell[name] for name in _FREE_OF_ONE if name not in placed),
            cells[place]["reduction"] != cell["reduction"],
        )
    )
    return places[0] if places else None


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _against(row: dict[str, Any], x: Any, kind: str, base: Any, *, itself: bool, disturbed: bool) -> dict[str, float]:
    """Return the columns of `row` relative to one baseline; only the baseline's own of a speedup that is withheld.

    _min and _max are the slowest and the fastest repeat over the baseline's median, _low and _high the 95 % interval
    of the ratio of medians, in which the scatter of the baseline's repeats counts too.
    """
    n, given = row["workers"], row[GIVEN_BASE] if kind == "wrapped" and row["mode"] != "mixed" else math.nan
    base_median = given if base is None else float(np.median(base))
    ratio = stats.median_ratio(x, () if base is None else base)
    if not math.isnan(given):  # known without a scatter of its own
        ratio = stats.median_ratio(x / given)
    columns = {f"base_{kind}_samples_per_s": base_median, f"base_{kind}_repeats": 0 if base is None else len(base)}
    ends = {"": "median", "_min": "min", "_max": "max"}
    values = {end: row[f"samples_per_s_{name}"] / base_median for end, name in ends.items()}
    values |= dict.fromkeys(("_low", "_high"), values[""]) if itself else {"_low": ratio.low, "_high": ratio.high}
    no = bool(row["apart"] or incredible(values[""], n, disturbed=disturbed))  # culprits.withheld says it
    values = dict.fromkeys(values, math.nan) if no else values
    columns |= {f"speedup_{kind}{name}": value for name, value in values.items()}
    columns |= {f"efficiency_{kind}{name}": value / n for name, value in values.items()}
    columns[f"ideal_epoch_{kind}_s"] = math.nan if no else row["train_samples"] / (n * base_median)
    return columns


def failed_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that gave no number, one row each: run, series, workers, nodes, repeat, status, reason."""
    table = with_series(runs)
    bad = table[~measured(table)]
    reasons = [_why(each, status=False) for _, each in bad.iterrows()]
    columns = ["run", "series", "workers", "nodes", "repeat", "status"]
    return bad[columns].assign(reason=reasons).reset_index(drop=True)


def doubts(runs: pd.DataFrame, points: pd.DataFrame, precision: float | None = None) -> list[str]:
    """Return the limitations of the points, one sentence or two each, in a stable order.

    `precision`: half width that the study had as its aim, a share; None without one.
    """
    named, known = with_series(runs), points[~points["missing"]]
    bad = failed_runs(named)
    left_out = f"{len(bad)} of {len(named)} runs gave no result and are left out, not filled in"
    places = "; ".join(
        f"{series} at {worker_counts(rows['workers'])} ({plural(len(rows), 'run')})"
        for series, rows in bad.groupby("series", sort=False)
    )
    unseen = named[(named["backend"] == COMMAND) & measured(named)].groupby("series", sort=False)
    unequal = []
    for _, row in points[(points["workers"] == 1) & (points["backend"] != "serial")].iterrows():
        off, slower = row["speedup_plain"] - 1, "slower" if row["speedup_plain"] < 1 else "faster"
        noise = row["speedup_plain_low"] <= 1 <= row["speedup_plain_high"]
        unsure = " (their repeats scatter too much to be sure)" if noise else ""
        if abs(off) > 0.05:
            than = f"one worker inside the library runs {100 * abs(off):.0f} % {slower} than one plain worker{unsure}"
            unequal.append(f"{row['series']}: {than}: say which of the two a speedup is over.")
    turns = turn_doubts(points.to_dict("records"), precision) if "turns_launches" in points or precision else ()
    return [
        *of_kind("other", (f"{series}: {command_words(rows['rate_from'])}." for series, rows in unseen)),
        *culprits(known),
        *of_kind("missing", [f"{left_out}: {places}. Running the study again repeats only these."] * bool(places)),
        *of_kind("other", _doubt_impossible(known)),
        *of_kind("baseline", (*_doubt_baselines(named, known), *_doubt_data(points), *_flagged(points, "mixed"))),
        *of_kind("missing", _doubt_shared(points)),
        *of_kind("unsteady", (*_flagged(known, "few_repeats"), *_flagged(known, "wide_spread"))),
        *of_kind("superlinear", (*_flagged(known, "superlinear"), *_flagged(known, "superlinear_unresolved"))),
        *of_kind("baseline", unequal),
        *of_kind("versions", _doubt_settings(named)),
        *of_kind("unsteady", turns),
    ]


_OF_FLAGS = {
    "mixed": "both the local and the global batch change with the workers, so no speedup is given; keep one fixed",
    "few_repeats": f"fewer than {stats.MIN_REPEATS} repeats, so no interval is given and differences cannot be judged",
    "wide_spread": "repeats spread by up to {spread:.0f} %, slowest to fastest over the median; other load or an "
    "unstable transport is the usual cause",
    "superlinear": "efficiency above 100 % (up to {most:.1f} %). Likely causes: a baseline slowed down by other load, "
    "other threads or settings than the workers had, or a working set that fits the caches only when it is shared out",
    "superlinear_unresolved": "efficiency above 100 % (up to {most:.1f} %); the spread of the repeats does not "
    "separate it from 100 %",
}


def _flagged(points: pd.DataFrame, flag: str) -> Iterator[str]:
    """Yield for each series at which worker counts a flag holds, with what a reader must know of it."""
    held = points["flags"].map(lambda flags: flag in flags.split()).astype(bool)  # also where there are no points
    for series, rows in points[held].groupby("series", sort=False):
        fastest, slowest, median = (rows[f"samples_per_s_{end}"] for end in ("max", "min", "median"))
        spread = 100 * (fastest - slowest) / median
        most = 100 * float(rows[["efficiency_plain", "efficiency_wrapped"]].astype(float).max().max())
        told = _OF_FLAGS[flag].format(spread=spread.max(), most=most)
        yield f"{series}: at {worker_counts(rows['workers'])} {told}."  # series of the same rest are told together


def command_words(rate_from: Iterable[str]) -> str:
    """Return what the speedups of commands are of in which no step was seen, by where their rates are from."""
    units, unseen = sorted(set(map(rate_unit, rate_from))), "steps were not seen: speedups are of"
    if units == [COMMANDS]:
        same = "hold where the command does the same work with every worker count"
        return f"{unseen} whole times, with start and end, and {same}"
    told = f"{unseen} the rate that the output says ({', '.join(units)})"
    if any(re.match(r"it\b|its\b|steps?\b|batch|updates?|global_step|iter", unit) for unit in units):
        told += "; they hold where a step has the same number of samples with every worker count"
    return told


def efficiency_doubts(points: pd.DataFrame) -> list[str]:
    """Return those of `doubts` that say why an efficiency is not what it seems."""
    known = points[~points["missing"]]
    above = (_flagged(known, flag) for flag in ("superlinear", "superlinear_unresolved"))
    return [*culprits(known), *_doubt_impossible(known), *(each for told in above for each in told)]


def _doubt_impossible(known: pd.DataFrame) -> Iterator[str]:
    """Say which throughputs and waits cannot be, by the one table of `analysis.series.culprits`."""
    names = {"samples_per_s_median": "samples_per_s", "sync_s_median": "sync_s", "batch": "batch_size"}
    for series, rows in known[known["apart"] == ""].groupby("series", sort=False):
        table = rows[["workers", *names]].rename(columns=names)
        yield from (f"{series}: {why}." for why in impossibilities(table, math.nan))


def _doubt_baselines(named: pd.DataFrame, known: pd.DataFrame) -> Iterator[str]:
    for series, rows in known[known["mode"] != "mixed"].groupby("series", sort=False):
        first = rows.iloc[0]
        if first["model"] != _OWN_MODEL:
            yield from (f"{series}: {each}" for each in _doubt_other_script(f"{series}", rows, named))
            continue
        for kind in ("plain", "wrapped")[: 1 if first["backend"] == "serial" else 2]:
            lacking = rows[rows[f"base_{kind}_samples_per_s"].isna()]
            for needed in lacking[:1].to_dict("records"):
                way = "serial" if kind == "plain" else f"{first['backend']}/{first['transport']}"
                size = f"{needed['ref_train_samples']:.0f}".replace("nan", "as many")
                empty = f"no {kind} baseline for {worker_counts(lacking['workers'])}, so speedup_{kind} is left empty"
                where = f"one {way} worker on {first['partition']} with batch {needed['ref_batch']:.0f}"
                yield f"{series}: {empty}; it needs {where}, {first['precision']}, {size} training samples."


def _doubt_other_script(series: str, rows: pd.DataFrame, runs: pd.DataFrame) -> Iterator[str]:
    """Say what the speedups of another script are over; without any, what to type for one."""
    first, several = rows.iloc[0], rows[rows["workers"] > 1]
    if first["backend"] == REPORTED:
        fewest, base = f"{rows['workers'].min():.0f}", rows["base_wrapped_samples_per_s"]
        if fewest != "1" and not (base.notna().all() and rows["base_wrapped_repeats"].eq(0).all()):
            taken = f"so {fewest} workers are taken as {fewest} times as fast"
            if base.isna().all():
                taken = f"and no other count than {fewest}, so no speedup is given"
            yield f"the table has no row of one worker, {taken}."
        return
    plain, wrapped = (several[f"base_{kind}_repeats"].eq(0) for kind in ("plain", "wrapped"))
    if first["backend"] == COMMAND:
        if wrapped.any():
            why = "the same command with one worker was not recorded"
            yield f"no speedup for {worker_counts(several['workers'])}, because {why}."
        return
    lacking = several[plain & wrapped]
    for needed in lacking[:1].to_dict("records"):
        same = (runs["series"] == series) & (runs["workers"] == needed["workers"])
        run = {f"{name}": value for name, value in runs[same & measured(runs)].iloc[0].items()}
        how = remedy(run, batch=float(needed["ref_batch"]), taken=list(runs["run"]))
        why = f"because one worker with batch {needed['ref_batch']:.0f} was not recorded"
        yield f"no speedup for {worker_counts(lacking['workers'])}, {why}; {how}"
    if lacking.empty and plain.any():
        alone = runs[(runs["workers"] == 1) & (runs["backend"] == "serial") & (runs["model"] == first["model"])]
        why = f"because none without the library{'' if alone.empty else ' with as many threads'} was recorded"
        over = inside(first["backend"], first["transport"])
        yield f"speedups are over {over}, {why}; what the library costs one worker is not in them."


def _doubt_data(points: pd.DataFrame) -> Iterator[str]:
    """Say where a speedup is over a worker whose data set has another size, as that of another script may have."""
    rows: list[Any] = points.to_dict("records")
    for row in rows:
        if row["model"] == _OWN_MODEL or row["workers"] == 1:
            continue
        bases = {place for kind in ("plain", "wrapped") if (place := baseline_place(rows, row, kind)) is not None}
        sizes = [rows[place]["train_samples"] for place in sorted(bases)]
        wanted = row["train_samples" if row["work"] in map(_WORK.get, _ANY_DATA) else "ref_train_samples"]
        for other in [size for size in sizes if not _same(size, wanted)][:1]:
            here, there = (
                "a size that was not recorded" if math.isnan(size) else f"{size:.0f} samples"
                for size in (wanted, other)
            )
            differ = f"the data set has {here}, that of the baseline {there}"
            holds = "a speedup in samples/s holds only if a sample costs as much in either"
            yield f"{row['series']} at {worker_counts([row['workers']])}: {differ}; {holds}."


def inside(backend: str, transport: str) -> str:
    """Return what a wrapped baseline is, in words: one worker inside PyTorch DDP (ddp/gloo)."""
    if backend == COMMAND:
        return "the same command with one worker"
    library = LIBRARIES.get(backend)
    return f"one worker inside {backend if library is None else library.label} ({backend}/{transport})"


def baseline_words(points: pd.DataFrame, kind: str, *, plain: str = "one plain worker") -> str:
    """Return what the speedups of some points are over: `plain`, or the library whose one worker it is, if it is one.

    kind is `plain` or `wrapped`.
    """
    parallel = points.loc[points["backend"] != "serial", ["backend", "transport"]].drop_duplicates()
    if set(parallel["backend"]) == {REPORTED}:
        if points["base_wrapped_repeats"].eq(0).all():
            return "one worker, which was not measured" if points["base_wrapped_samples_per_s"].isna().all() else OWN
        fewest = sorted(set(points.loc[points["backend"] == REPORTED].groupby("series")["workers"].min()))
        return "one worker" if fewest == [1] else f"one of {' or '.join(f'{count:.0f}' for count in fewest)} workers"
    if kind == "plain":
        return plain
    ways = [inside(backend, transport) for backend, transport in parallel.itertuples(index=False, name=None)]
    return ways[0] if len(ways) == 1 else "one worker inside the same library"


def _doubt_shared(points: pd.DataFrame) -> Iterator[str]:
    """A run counts in one series; where it fits another as well, that one lacks a point."""
    for _, alike in points.groupby(list(SETTINGS), dropna=False, sort=False):
        for series, rows in alike.groupby("series", sort=False) if alike["series"].nunique() > 1 else ():
            batch = {"strong": "global_batch", "weak": "batch"}.get(rows["mode"].iloc[0])
            if batch is None:
                continue
            same = (alike[batch] == rows[batch].iloc[0]) & alike["train_samples"].isin(rows["train_samples"])
            others = alike[same & ~alike["workers"].isin(rows["workers"])]
            if len(others):
                names = ", ".join(others["series"].drop_duplicates())
                why = f"because these runs are in {names}, which they fit as well"
                lacks = f"lacks its points of {worker_counts(others['workers'])}"
                yield f"{series}: {lacks}, {why}; analyse the two studies separately to have both."


def _doubt_settings(named: pd.DataFrame) -> Iterator[str]:
    good = named[measured(named)]
    for partition, rows in good.groupby("partition", sort=True):
        for column in (name for name in ENVIRONMENT if name in rows.columns):
            values = sorted({f"{value}" for value in rows[column].dropna()} - {""})
            if len(values) > 1:
                differs = f"partition {partition}: {column} differs between runs ({', '.join(values)})"
                yield f"{differs}; points made of different ones are not comparable."
        parallel = rows[rows["backend"] != "serial"]
        if parallel["horovod_defaults"].nunique() > 1:
            stock = ", ".join(parallel.loc[parallel["horovod_defaults"], "series"].drop_duplicates())
            some = f"some series run with the stock communication settings ({stock}) and others with the shipped ones"
            yield f"partition {partition}: {some}; a difference between them is not one between transports."
        cores = numbers(rows, "cores")
        dense = rows[rows["workers"] / rows["nodes"] > cores]
        if not dense.empty:
            cramped = f"more workers than cores on a node at {worker_counts(dense['workers'])}"
            few = f"({cores.min():.0f} cores); such points measure the sharing of cores"
            yield f"partition {partition}: {cramped} {few}."
    short = (good["steps"] < FEW_STEPS) & (good["backend"] != COMMAND)
    told = (
        f"{series}: as few as {rows['steps'].min():.0f} steps in the timed window at "
        f"{worker_counts(rows['workers'])}; at least {FEW_STEPS} make a mean worth quoting."
        for series, rows in good[short].groupby("series", sort=False)
    )
    yield from of_kind("steps", told)
    if (good.groupby(["series", *CELL], dropna=False)["study"].nunique() > 1).any():
        studies = ", ".join(sorted(set(good["study"])))
        several = f"some points combine runs of several studies ({studies}) as if they were repeats"
        yield f"{several}; analyse the studies separately if anything changed between them."


def worker_counts(workers: Any) -> str:
    """Return '2 workers' or '1, 2 and 4 workers'; an unknown count is said so."""
    numbers = sorted({float(each) for each in workers})
    words = ["?" if math.isnan(each) else f"{each:.0f}" for each in numbers]
    return f"{listed(words)} worker{'' if words == ['1'] else 's'}"


# ------------------------------------------ cells that alternated: ratios within rounds in place of ratios of medians


class StudyTurns:
    """The slices of a study by the run that made them, under the names of the run table."""

    def __init__(self, slices: Iterable[paired.Slice]) -> None:
        """`slices`: their `cell` is the name of the run."""
        self._of_run: dict[str, list[paired.Slice]] = {}
        for each in slices:
            self._of_run.setdefault(each.cell, []).append(each)
        self._found: dict[tuple[frozenset[str], frozenset[str]], paired.RatioEstimate | None] = {}

    def __bool__(self) -> bool:
        return bool(self._of_run)

    def estimate(self, runs: Collection[str], bases: Collection[str]) -> paired.RatioEstimate | None:
        """Return the ratio of the rates of `runs` to those of `bases`; None where too few launches have both."""
        asked = frozenset(runs), frozenset(bases)
        if asked not in self._found:  # several tables ask
            found = paired.estimate(self._pairs(runs, bases))
            self._found[asked] = found if found is not None and found.launches > 1 else None
        return self._found[asked]

    def shared(self, runs: Collection[str], bases: Collection[str]) -> float:
        """Return 1 where other programs used the machine in most rounds of both, 0 where not, NaN without any round."""
        both = self._pairs(runs, bases)
        return float(both.shared) if both.cell else math.nan

    def _pairs(self, runs: Collection[str], bases: Collection[str]) -> paired.Pairs:
        named = [
            replace(each, cell=name)
            for name, group in (("run", runs), ("base", bases))
            for run in sorted(group)
            for each in self._of_run.get(run, ())
        ]
        return paired.pairs(named, "run", "base")


def study_turns(root: Path) -> StudyTurns:
    """Return the slices of the studies at and below `root`, by the names that runs have in the run table of `root`."""
    below = records.turns_folders(root)
    return StudyTurns(made for name, folder in below.items() for made in slices_of(records.read_turns(folder), name))


def against(found: paired.RatioEstimate, kind: str, workers: float, value: float) -> dict[str, float]:
    """Return the columns of a point relative to one baseline (`plain`, `wrapped`) that its estimate decides.

    `value` is the ratio of the throughputs that are shown: that of the estimate where these were scaled to it
    (`points.levelled`), else by way of the other baseline; then the interval is as wide as that of the estimate.
    """
    ratio, by = found.ratio, value / found.ratio.value
    values = {"": value, "_low": by * ratio.low, "_high": by * ratio.high}
    return {
        **{f"speedup_{kind}{end}": value for end, value in values.items()},
        **{f"efficiency_{kind}{end}": value / workers for end, value in values.items()},
    }


def components(found: paired.RatioEstimate | None) -> dict[str, float]:
    """Return the columns `turns_...` of a point, of the plain baseline, if any; NaN where it has no estimate."""
    names = ("launches", "rounds", "set_aside", "shared", "round_sd", "memory", "round_error", "launch_sd", "cancelled")
    return {f"turns_{name}": math.nan if found is None else float(getattr(found, name)) for name in names}


def alternated(points: pd.DataFrame) -> bool:
    """Return whether some speedup of a table of points is a ratio within rounds."""
    return "turns_launches" in points.columns and bool(points["turns_launches"].notna().any())


def ratios_are(points: pd.DataFrame) -> str:
    """Return what the speedups of a table of points are, for captions and the page."""
    if not alternated(points):
        return "ratios of median throughputs over repeats"
    alone = points["turns_launches"].isna() & (points["workers"] > 1) & ~points["missing"].astype(bool)
    medians = ", of median throughputs where a cell did not" if alone.any() else ""
    return f"ratios within rounds of cells that alternate{medians}"


def turn_doubts(points: Iterable[Mapping[Any, Any]], precision: float | None = None) -> list[str]:
    """Return what is doubtful about ratios from turns, by series; first what is wider than `precision`, if any.

    `precision`: half width of the intervals that the study had as its aim, a share (docs/studies.md).
    """
    points = list(points)
    found = [] if precision is None else _unresolved(points, precision)
    if (most := max(map(_set_aside, points), default=0.0)) >= 0.1:
        where = next(f"{row['series']}, {_counts([row])} workers" for row in points if _set_aside(row) == most)
        aside = f"up to {percent(most)} of the rounds ran beside other programs ({where}) and are set aside"
        found.append(f"{aside}, in throughputs, steps and their parts as in speedups.")
    for series in dict.fromkeys(row["series"] for row in points):
        own = [row for row in points if row["series"] == series]
        if loud := _counts(row for row in own if row.get("turns_shared") == 1):
            used = f"other programs used more than {paired.OTHER_LOAD:g} cores in most rounds at {loud} workers"
            found.append(f"{series}: {used}; these speedups are those of a shared machine, not of a quiet one.")
        if few := _counts(row for row in own if row.get("turns_launches", math.nan) < paired.LAUNCHES):
            why = "how much launches differ rests on one difference, so that the intervals are wide"
            found.append(f"{series}: two launches at {few} workers; {why}; three launches or more narrow them.")
    return found


def _set_aside(row: Mapping[Any, Any]) -> float:
    """Return which share of the rounds of a point was left out beside other programs.

    It is 0 where none was or that is unknown, and on a machine that is shared in most rounds, which are all counted.
    """
    aside = 0.0 if row.get("turns_shared") == 1 else float(row.get("turns_set_aside", math.nan))
    return aside / (aside + float(row["turns_rounds"])) if aside > 0 else 0.0


def _unresolved(points: Iterable[Mapping[Any, Any]], precision: float) -> list[str]:
    """Return for each series at which worker counts the speedup is not as precise as the study wanted it."""
    wide: dict[str, list[str]] = {}
    for row in points:
        ends = [(row[f"speedup_{kind}_low"], row[f"speedup_{kind}_high"]) for kind in ("plain", "wrapped")]
        # A baseline has the speedup 1 over itself, without a width.
        low, high = next((each for each in ends if each[0] < each[1] < math.inf), (math.nan, math.nan))
        how, half = "", math.log(high / low) / 2
        if row.get("turns_launches", math.nan) > 0 or low < high:
            how = "" if half <= precision else f"+- {100 * half:.2g} %"
        elif row["workers"] > 1 and not row["missing"]:
            how = "not measured in turns"
        if how:
            wide.setdefault(row["series"], []).append(f"{row['workers']:.0f} ({how})")
    asked = f"not resolved to the +- {100 * precision:.3g} % asked for"
    further = "workers; the same command goes on with further launches."
    return [f"{series}: {asked} at {', '.join(counts)} {further}" for series, counts in wide.items()]


def _counts(rows: Iterable[Mapping[Any, Any]]) -> str:
    return ", ".join(f"{row['workers']:.0f}" for row in sorted(rows, key=lambda row: float(row["workers"])))


def slices_of(rows: Iterable[TurnSlice], folder: str = ".") -> list[paired.Slice]:
    """Return the rows of a study's turns.csv as slices by run; `folder`: of the study, below that of the run table."""
    prefix = "" if folder in ("", ".") else f"{folder}/"
    return [
        paired.Slice(
            launch=f"{prefix}{each.block}/{each.launch:03d}",  # in the order of their numbers
            round=each.round,
            cell=f"{prefix}{each.run}",
            rate=each.samples / (each.end_s - each.begin_s),
            other_load=math.nan if each.other_load is None else each.other_load,
        )
        for each in rows
        if each.samples > 0
    ]


# ------------------------------------------------------------------------ what to type for a baseline that is missing

# How launchers are told of ranks and nodes, and how many; where the words of the script begin.
_RANKS = re.compile(
    r"(\s(?:-np?|--np|-N|--ntasks(?:-per-node)?|--n?nodes|--nproc[-_]per[-_]node|"
    r"--num[-_](?:proc|processes|gpus|nodes|machines))(?:[ =]|(?<=-[nN])))(?:\d+|gpu|auto)(?= |$)"
)
_SCRIPT = re.compile(r"\S+\.py\b| (?:-m|--module|--no[-_]python) (?!torch\.distributed)")


def one_worker(line: str) -> str:
    """Return the command of several ranks with one rank; "" where its launcher is not told how many it starts.

    >>> one_worker("torchrun --nproc-per-node 2 train.py --batch 2")
    'torchrun --nproc-per-node 1 train.py --batch 2'
    """
    script = _SCRIPT.search(line)
    end = script.start() if script else len(line)
    head, told = _RANKS.subn(r"\g<1>1", line[:end])
    return head + line[end:] if told else ""


def remedy(run: Mapping[str, Any], *, batch: float, taken: Collection[str]) -> str:
    """Return how to come by the one-worker run of local batch `batch` that `run`, a row of a run table, lacks.

    `taken` are names of runs that there are: another run directory is named.
    """
    if run.get("declared"):
        return "the line `baselines: [wrapped]` in the study file makes it"
    notes, line = baseline_command(run, batch=batch, taken=taken)
    if not line:
        typed = run.get("typed") or run.get("command") or "unknown"
        return f"the same command with one worker makes it; it was: {typed}"
    return f"this makes it{''.join(f', {each}' for each in notes)}: {line}"


def baseline_command(run: Mapping[str, Any], *, batch: float, taken: Collection[str]) -> tuple[list[str], str]:
    """Return the line for the one-worker run that `remedy` speaks of, and notes on it; "" where it is not known."""
    recorded, words = again(run, taken, "1w"), shlex.split(str(run.get("command") or ""))
    head, mark, command = recorded.partition(" -- ")
    line, way = one_worker(command), CARRIED.get(f"{run['backend']}/{run['transport']}") if not recorded else None
    if way is not None and len(words) > 1:  # a script that records itself: the command of one of its ranks is known
        start = way[1].start.split()
        line = shlex.join([*start, "1", *([] if start[0] == "torchrun" else ["python"]), *words[1:]])
    if not line:
        return [], ""
    notes = [f"in {run['typed_in']}"] if run.get("typed_in") else []
    if batch != run["batch"] and math.isfinite(batch):
        changed = re.sub(rf"(--batch(?:[-_]size)?[ =]){run['batch']:.0f}(?= |$)", rf"\g<1>{batch:.0f}", line)
        notes += [f"told to take a batch of {batch:.0f}"] if changed == line else []
        if changed != line or "--batch" not in line:  # else `record` would say what the script does not do
            head = re.sub(r"(--batch[ =])\d+", rf"\g<1>{batch:.0f}", head)
        line = changed
    return [*notes, *([] if recorded else ["with a run directory of its own"])], head + mark + line


_RECORD = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
for _name in ("--out", "--repeat"):
    _RECORD.add_argument(_name)


def again(run: Mapping[str, Any], taken: Collection[str], name: str = "") -> str:
    """Return the line that recorded `run`, a row of a run table, for a run directory called `name` (default: as its
    own), with a number where that is `taken`; "" where it is not known."""
    words = shlex.split(str(run.get("typed") or ""))
    if "--" not in words:
        return ""
    end = words.index("--")
    told, rest = _RECORD.parse_known_args(words[:end])
    if told.out:
        own, names = PurePath(told.out), {each.rpartition("/")[2] for each in taken}
        name = name or own.name
        free = next(each for each in chain((name,), (f"{name}-{number}" for number in count(2))) if each not in names)
        rest += ["--out", str(own.with_name(free))]
    return shlex.join([*rest, *words[end:]])
