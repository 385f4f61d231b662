"""Doubts for a reader of the page: the worst first, each with what to do and what to type."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SHARED = 3
"""A doubt that so many series share is said once."""

_OF_TABLE = "those of a table"
_STUDY, _RUN, _TABLE = "horovod-study run STUDY.yaml", "horovod-study explain RUN_DIR", "horovod-study report TABLE"

_SUBJECTS: tuple[tuple[str, str, str], ...] = (
    (
        "look whether the table was read as it is meant; --columns says what a column is (docs/fit.md)",
        f"{_TABLE} --columns NAME=COLUMN",
        f"{_OF_TABLE}|the table has no row| not used",
    ),
    (
        "end the cause that is named, and record again",
        _RUN,
        "no speedup is given|goes through all of the data|go through the data|not compared alike|"
        "baseline is not steady|times the median one",
    ),
    ("evaluate and save more rarely, or quote the rate with it", _RUN, "is outside of steps"),
    ("measure steps without communication, too", f"{_RUN} --measure", "cannot be separated"),
    ("give every run more steps", _STUDY, "steps in the timed window"),
    ("add repeats, and see whether it stays", _STUDY, "efficiency above 100"),
    (
        "run the study again: it runs only what is missing or failed",
        _STUDY,
        "gave no result|left out: |no run of |are lost|lacks its points|not accounted for",
    ),
    (
        "name the baseline that you quote, and record the one that is missing",
        _STUDY,
        "baseline|no speedup|speedups are over|is no scaling|slower than one plain|faster than one plain|"
        "mixed scaling|the data set has",
    ),
    (
        "end other programs, or let the cells alternate until the intervals are narrow",
        f"{_STUDY} --until 2%",
        "not resolved|repeats spread|fewer than 3 repeats|other programs|two launches|not steady|time drifts|"
        "the repeats do not agree",
    ),
    (
        "run the older ones again, on the same kind of machine with the same versions",
        _STUDY,
        "differ|several numbers of nodes|more than one",
    ),
    (
        "do not quote these parts, and look at the steps of a run",
        _RUN,
        "unexplained|add up|laps|parts of its steps|of the step",
    ),
    ("add worker counts on both sides of the node boundary", _STUDY, "node|waiting"),
    ("give every node the same sensors", "horovod-study doctor", "energy"),
    ("see docs/reading.md", _RUN, ""),
)
"""What to do, what to type, and the words that such doubts have; a doubt belongs to the first whose words it has."""


class Doubt(NamedTuple):
    """A doubt; `names`: the series that share it, where they are many."""

    text: str
    names: tuple[str, ...]
    remedy: str
    command: str


def doubts_of(doubts: Sequence[str], labels: Mapping[str, str]) -> list[Doubt]:
    """Return the doubts of an analysis, the worst first; `labels`: series -> its name for readers.

    A doubt that SHARED series have in common stands at the place of the first, with their names.
    """
    of_table, one_each = any(_OF_TABLE in doubt for doubt in doubts), len(set(labels.values())) == len(labels)
    sharing: dict[str, list[str]] = {}
    for doubt in doubts:
        series, _, text = doubt.partition(": ")
        sharing.setdefault(text if series in labels else doubt, []).append(series)
    found: dict[str, tuple[int, Doubt]] = {}
    for doubt in doubts:
        series, _, text = doubt.partition(": ")
        names = tuple(sharing[text]) if series in labels and len(sharing[text]) >= SHARED else ()
        whole = max((each for each in labels if doubt.startswith((f"{each}: ", f"{each}, "))), key=len, default="")
        told = f"{labels[whole]}{doubt[len(whole) :]}" if whole and one_each else doubt
        told = f"{len(names)} series: {text}" if names else told
        rank = next(place for place, (_, _, words) in enumerate(_SUBJECTS) if any(w in doubt for w in words.split("|")))
        remedy, command, _ = _SUBJECTS[rank]
        if of_table and rank:  # which no study can measure again
            remedy, command = "add what is missing to the table, each as a row of its own", _TABLE
        found.setdefault(told, (rank, Doubt(told, names, remedy, command)))
    return [doubt for _, doubt in sorted(found.values(), key=lambda each: each[0])]
