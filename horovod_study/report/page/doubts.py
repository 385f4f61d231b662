"""Doubts for a reader of the page: the worst first, each with what to do and what to type."""

from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any, NamedTuple

SHARED = 3
"""A doubt that so many series share is said once."""

_STUDY, _RUN, _TABLE = "horovod-study run STUDY.yaml", "horovod-study explain RUN_DIR", "horovod-study report TABLE"

REMEDIES = {
    "table": (
        "look whether the table was read as it is meant; --columns says what a column is (docs/fit.md)",
        f"{_TABLE} --columns NAME=COLUMN",
    ),
    "cause": ("end the cause that is named, and record again", _RUN),
    "outside": ("evaluate and save more rarely, or quote the rate with it", _RUN),
    "hidden": ("measure steps without communication, too", f"{_RUN} --measure"),
    "steps": ("give every run more steps", _STUDY),
    "superlinear": ("add repeats, and see whether it stays", _STUDY),
    "missing": ("run the study again: it runs only what is missing or failed", _STUDY),
    "baseline": ("name the baseline that you quote, and record the one that is missing", _STUDY),
    "unsteady": (
        "end other programs, or let the cells alternate until the intervals are narrow",
        f"{_STUDY} --until 2%",
    ),
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


def doubts_of(provenance: Mapping[str, Any], labels: Mapping[str, str]) -> list[ToldDoubt]:
    """Return the doubts of Analysis.provenance, the worst first; `labels`: series -> its name for readers.

    A doubt that SHARED series have in common stands at the place of the first, with their names.
    """
    doubts, kinds = provenance["doubts"], provenance.get("doubt_kinds") or ()
    one_each, ranks = len(set(labels.values())) == len(labels), list(REMEDIES)
    sharing: dict[str, list[str]] = {}
    for doubt in doubts:
        series, _, text = doubt.partition(": ")
        sharing.setdefault(text if series in labels else doubt, []).append(series)
    found: dict[str, tuple[int, ToldDoubt]] = {}
    for doubt, told_kind in zip(doubts, chain(kinds, repeat("other")), strict=False):
        kind = f"{told_kind}" if told_kind in ranks else "other"
        series, _, text = doubt.partition(": ")
        names = tuple(sharing[text]) if series in labels and len(sharing[text]) >= SHARED else ()
        whole = max((each for each in labels if doubt.startswith((f"{each}: ", f"{each}, "))), key=len, default="")
        told = f"{labels[whole]}{doubt[len(whole) :]}" if whole and one_each else doubt
        told = f"{len(names)} series: {text}" if names else told
        remedy, command = REMEDIES[kind]
        if "table" in kinds and kind != "table":  # which no study can measure again
            remedy, command = "add what is missing to the table, each as a row of its own", _TABLE
        found.setdefault(told, (ranks.index(kind), ToldDoubt(told, names, remedy, command)))
    return [doubt for _, doubt in sorted(found.values(), key=lambda each: each[0])]
