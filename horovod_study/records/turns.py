"""Cells that alternate: the slices of a study in turns.csv, and which steps of a run were its slices."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from horovod_study.documents import parse_csv, read_bytes, read_text, shown
from horovod_study.errors import RecordError
from horovod_study.files import append_text, csv_rows, writing
from horovod_study.records.format import RunRecord, digest_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSlice:
    """One slice of training of a cell that alternates with others: a row of turns.csv in the folder of a study.

    samples / (end_s - begin_s) is its rate. Slices of one block, launch and round were made one right after the other.
    """

    block: str  # the cells that alternate
    launch: int  # 0, 1, ...: how often the cells of this block were started before
    round: int  # 0, 1, ... in its launch
    position: int  # 0, 1, ... in its round, which is shuffled
    run: str  # name of the run directory
    begin_s: float  # seconds since the first round of the launch began; of the slowest rank
    end_s: float
    steps: int  # of each rank
    samples: int  # of all ranks together
    other_load: float | None  # cores in use by programs other than this cell; None where unknown


TURNS_FILE = "turns.csv"
_TURN_COLUMNS = tuple(each.name for each in fields(TurnSlice))


def append_turns(directory: Path, slices: Iterable[TurnSlice]) -> None:
    """Append the slices of one run, which is done, to the turns.csv of a study's folder: all of them or none.

    Rows of a run are there once and complete, and whoever appends them holds the claim on its cell.
    """
    rows = [  # in CSV nothing is written for None
        {name: f"{value:.6f}" if isinstance(value, float) else value for name, value in asdict(each).items()}
        for each in slices
    ]
    if rows:
        text, head = csv_rows(_TURN_COLUMNS, rows, head=False), csv_rows(_TURN_COLUMNS, [])
        with writing(directory / TURNS_FILE, "free space and run again"):
            append_text(directory / TURNS_FILE, text, head=head)


def read_turns(directory: Path) -> list[TurnSlice]:
    """Return the slices in a study's folder, none where nothing was run in turns; RecordError names a damaged line."""
    path = directory / TURNS_FILE
    if not os.path.lexists(path):
        return []
    again = "move the file away; what was run in turns is then compared run by run"
    found = []
    rows = parse_csv(read_text(path, again=again), source=shown(path), columns=_TURN_COLUMNS, again=again)
    for number, row in enumerate(rows, 2):
        try:
            found.append(_turn_slice(row))
        except ValueError:
            raise RecordError(f"{shown(path)} line {number}: holds a number that no slice has; {again}") from None
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTurns:
    """When a run that alternated has waited, and which of its steps were its slice of which round."""

    before: tuple[int, ...] = ()  # steps before which it waited
    launch: str = ""  # block and launch, the same for the runs of a round; "" where its slices are not known
    rounds: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # -> the first step, and the one after the last
    other_load: Mapping[int, float] = field(default_factory=dict)  # of a round; NaN where unknown


def run_turns(record: RunRecord, name: str = "", slices: Iterable[TurnSlice] = ()) -> RunTurns:
    """Return the turns of a run from its record and, by the name of its directory, the slices of its study.

    A slice says how many steps it has, and the record where the run waited: the last places at which both agree are
    theirs, one after the other or with steps that lead in between them. Slices of an attempt that ended are not looked
    for: some of its steps may have been made again.
    """
    before = _waits(record)
    own = turn_places(record, name, slices)
    if not own:
        return RunTurns(before=before)
    one = own[0][0]
    return RunTurns(
        before=before,
        launch=f"{one.block}/{one.launch:03d}",
        rounds={each.round: steps for each, steps in own},
        other_load={each.round: math.nan if each.other_load is None else each.other_load for each, _ in own},
    )


def _waits(record: RunRecord) -> tuple[int, ...]:
    return tuple(sorted({int(each) for each in (record.totals.get("turns") or {}).get("before", ())}))


def turn_places(record: RunRecord, name: str, slices: Iterable[TurnSlice]) -> list[tuple[TurnSlice, tuple[int, int]]]:
    """Return the slices of the last launch of a run, and of each its first step and the one after its last.

    Arguments as for `run_turns`, which says how they are found. A slice that was made again is there each time.
    """
    own = [each for each in slices if each.run == name]
    own = [each for each in own if (each.block, each.launch) == (own[-1].block, own[-1].launch)]
    resumed = int(record.attempts[-1].get("from_step") or 0)
    waits = [each for each in _waits(record) if each >= resumed]
    lengths = [end - first for first, end in pairwise(waits)]
    ends = (_places([each.steps for each in own], lengths[:end]) for end in range(len(lengths), 0, -1))
    places = next((found for found in ends if found), [])
    return [(each, (waits[at], waits[at + 1])) for each, at in zip(own, places, strict=True)] if places else []


def _places(slices: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Return where slices of so many steps are among the lengths between waits, the last one at their end; or []."""
    found: list[int] = []
    at = len(lengths) - 1
    for steps in reversed(slices):
        if found and lengths[at : at + 1] != [steps]:
            at -= 1  # what is between them leads in
        if at < 0 or lengths[at] != steps:
            return []
        found.append(at)
        at -= 1
    return found[::-1]


def _turn_slice(row: Mapping[str, str]) -> TurnSlice:
    """Return the slice of a row; ValueError: there is no such slice."""
    read: dict[Any, Callable[[str], Any]] = {str: str, int: int, float: float}
    read[float | None] = lambda text: float(text) if text else None
    made = TurnSlice(**{each.name: read[each.type](row[each.name]) for each in fields(TurnSlice)})
    counts = (made.launch, made.round, made.position, made.steps, made.samples)
    if min(counts) < 0 or not 0 < made.end_s - made.begin_s < math.inf or not 0 <= (made.other_load or 0.0) < math.inf:
        raise ValueError
    return made


def turns_folders(root: Path) -> dict[str, Path]:
    """Return the folders at and right below `root` in which cells may have alternated, by their path below it."""
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())] if root.is_dir() else []
    return {folder.relative_to(root).as_posix(): folder for folder in folders}


def turns_files(root: Path) -> dict[str, str]:
    """Return {folder: digest} of each turns.csv at and right below `root`, by the path of its folder."""
    found = {}
    for name, folder in turns_folders(root).items():
        path = folder / TURNS_FILE
        if path.is_file():
            found[name] = digest_of(read_bytes(path, again="move the file away"))
    return found
