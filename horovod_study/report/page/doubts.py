"""Doubts for a reader of the page: the worst first, each with what to do and what to type."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from horovod_study.analysis.study import Analysis
from horovod_study.report.kit.style import series_labels

SHARED = 3  # a doubt that so many series share is said once

_STUDY, _RUN, _TABLE = "horovod-study run STUDY.yaml", "horovod-study explain RUN_DIR", "horovod-study report TABLE"

REMEDIES = {
    "table": ("say what a column is, where it was read otherwise (docs/fit.md)", f"{_TABLE} --columns NAME=COLUMN"),
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
    "other": ("see docs/reading.md", _RUN),
}
"""What to do and what to type about each kind of doubt (analysis.series.culprits.Kind), the worst first."""


class ToldDoubt(NamedTuple):
    """A doubt; `names`: the series that share it, where they are many."""

    text: str
    names: tuple[str, ...]
    remedy: str
    command: str


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
    return doubts_of(analysis.provenance, names_of(analysis), _runs(analysis.runs))


def doubts_of(
    provenance: Mapping[str, Any], labels: Mapping[str, str], runs: Mapping[str, str] = MappingProxyType({})
) -> list[ToldDoubt]:
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


def _runs(runs: pd.DataFrame) -> dict[str, str]:
    """Return the directory of the run with most workers of each series, and of all of them by an empty name."""
    found: dict[str, str] = {}
    if {"series", "run", "study", "status"} <= set(runs.columns):
        done = runs[(runs["status"] == "done") & (runs["study"] != "train")].sort_values("workers", kind="stable")
        for series, study, run in done[["series", "study", "run"]].itertuples(index=False):
            within = run if run.startswith(f"{study}/") else f"{study}/{run}"
            found[series] = found[""] = shlex.quote(f"runs/{within}")
    return found


def _files(commands: Sequence[str]) -> dict[str, str]:
    """Return what stands for STUDY.yaml and TABLE in `commands`, where it is one file."""
    found = {}
    for unknown, start in (("STUDY.yaml", r"run (?=\S+\.ya?ml|'[^']+\.ya?ml')"), ("TABLE", "report ")):
        paths = {path[1] for each in commands if (path := re.match(rf"horovod-study {start}('[^']+'|\S+)", each))}
        if len(paths) == 1:
            found[unknown] = paths.pop()
    return found
