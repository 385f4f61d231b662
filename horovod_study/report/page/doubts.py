"""Doubts for a reader of the page: by what they are about, what matters most first, each group with what to do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

SHARED = 3
"""A doubt that so many series share is said once."""


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What doubts can be about; `marks`: words by which a doubt is known to be one of them."""

    title: str
    remedy: str
    command: str = ""
    of_table: str = ""  # the remedy where the numbers are those of a table, which no command can measure again
    marks: tuple[str, ...] = ()


_OF_TABLE = "those of a table"

_SUBJECTS = (
    _Subject(
        title="The table",
        remedy="look whether it was read as it is meant; --columns says what a column is (docs/fit.md)",
        marks=(_OF_TABLE, "the table has no row", " not used"),
    ),
    _Subject(
        title="What the numbers are of",
        remedy="end the cause that is named, and record again",
        command="horovod-study explain RUN_DIR",
        marks=(
            *("no speedup is given", "goes through all of the data", "go through the data", "not compared alike"),
            *("baseline is not steady", "is outside of steps", "times the median one"),
        ),
    ),
    _Subject(
        title="What is missing",
        remedy="run the study again: it runs only what is missing or failed",
        marks=("gave no result", "left out: ", "no run of ", "are lost", "lacks its points", "not accounted for"),
    ),
    _Subject(
        title="What speedups are over",
        remedy="name the baseline that you quote, and record the one that is missing",
        marks=(
            "baseline",
            "no speedup",
            "speedups are over",
            "is no scaling",
            "slower than one plain",
            "faster than one plain",
            "mixed scaling",
            "the data set has",
        ),
    ),
    _Subject(
        title="How precise it is",
        remedy="end other programs, or let the cells alternate until the intervals are narrow",
        command="horovod-study run STUDY.yaml --until 2%",
        of_table="add further runs of these worker counts to the table, each as a row of its own",
        marks=(
            *("not resolved", "repeats spread", "fewer than 3 repeats", "other programs", "two launches", "not steady"),
            *("time drifts", "steps in the timed window", "the repeats do not agree", "efficiency above 100"),
        ),
    ),
    _Subject(
        title="Unlike runs",
        remedy="run the older ones again, on the same kind of machine with the same versions",
        marks=("differ", "several numbers of nodes", "more than one"),
    ),
    _Subject(
        title="Parts of a step",
        remedy="do not quote these parts, and look at the steps of a run",
        command="horovod-study explain RUN_DIR",
        marks=("unexplained", "add up", "laps", "parts of its steps", "of the step"),
    ),
    _Subject(title="Nodes and waiting", remedy="add the worker counts that are named", marks=("node", "waiting")),
    _Subject(title="Energy", remedy="give every node the same sensors", marks=("energy",)),
)
"""In the order of the page; a doubt belongs to the first subject one of whose marks it has."""

OTHER = _Subject(title="Other", remedy="see docs/reading.md")


@dataclass(frozen=True, kw_only=True)
class _DoubtGroup:
    """Doubts about one subject: texts, each with the names of the series that share it."""

    subject: _Subject
    doubts: list[tuple[str, list[str]]] = field(default_factory=list)


def doubt_groups(doubts: Sequence[str], labels: Mapping[str, str]) -> list[_DoubtGroup]:
    """Return the doubts of an analysis by subject; `labels`: series -> its name for readers.

    A doubt that SHARED series have in common stands at the place of the first, with their names.
    """
    found = {subject.title: _DoubtGroup(subject=subject) for subject in (*_SUBJECTS, OTHER)}
    if any(_OF_TABLE in doubt for doubt in doubts):
        for title, group in found.items():
            if remedy := group.subject.of_table:
                found[title] = _DoubtGroup(subject=replace(group.subject, remedy=remedy, command=""))
    for text, names in _gathered(doubts, labels):
        subject = next((each for each in _SUBJECTS if any(mark in text for mark in each.marks)), OTHER)
        found[subject.title].doubts.append((text, names))
    return [group for group in found.values() if group.doubts]


def _gathered(doubts: Sequence[str], labels: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    """Return each doubt and the series that share it, at the place of the first; no series where it stands alone."""
    several = len(set(labels.values())) < len(labels)
    parts = [_parted(doubt, {} if several else labels, labels) for doubt in doubts]
    names: dict[str, list[str]] = {}
    for name, text in parts:
        names.setdefault(text, []).extend([name] if name else [])
    found: dict[str, tuple[str, list[str]]] = {}
    for doubt, (name, text) in zip(doubts, parts, strict=True):
        if len(names[text]) >= SHARED:
            found.setdefault(text, (text, names[text]))
        elif name and several:
            found[doubt] = (doubt, [])
        else:
            found[doubt] = (f"{labels[name]}: {text}" if name else text, [])
    return found.values()


def _parted(doubt: str, labels: Mapping[str, str], series: Mapping[str, str]) -> tuple[str, str]:
    """Return the series that a doubt begins with and the rest; a part of one, "SERIES, 2 workers", with its label."""
    name, _, text = doubt.partition(": ")
    if name in series:
        return name, text
    whole = max((each for each in labels if name.startswith(f"{each}, ")), key=len, default="")
    return "", f"{labels[whole]}{doubt[len(whole) :]}" if whole else doubt
