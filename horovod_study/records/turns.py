"""Cells that alternate: the slices of a study in turns.csv, which steps of a run were its slices, and which count.

Speedups of cells that alternate leave disturbed rounds out (analysis.paired). So does every other number then: the
slices that turns.csv has a load for are taken out of the rows and of the totals of their run here, where runs are read,
so that throughput, step, parts, waiting and resources are those of the same machine. run.json itself stays as it was.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from horovod_study.config.documents import parse_csv, read_bytes, read_text, shown
from horovod_study.config.doors import Number, Text, Whole, accept, at_least
from horovod_study.errors import RecordError
from horovod_study.files import append_text, csv_rows, writing
from horovod_study.records.model import LAP_COLUMNS, RunRecord, digest_of, lap_summary, step_totals, timed_from

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

TURNS_FILE = "turns.csv"
_Count = Annotated[Whole, at_least(0)]
_Load = Annotated[Annotated[Number, at_least(0)] | None, BeforeValidator(lambda cell: None if cell == "" else cell)]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSlice:
    """One slice of training of a cell that alternates with others: a row of turns.csv in the folder of a study.

    samples / (end_s - begin_s) is its rate. Slices of one block, launch and round were made one right after the other.
    """

    block: Text  # the cells that alternate
    launch: _Count  # 0, 1, ...: how often the cells of this block were started before
    round: _Count  # 0, 1, ... in its launch
    position: _Count  # 0, 1, ... in its round, which is shuffled
    run: Text  # name of the run directory
    begin_s: Number  # seconds since the first round of the launch began; of the slowest rank
    end_s: Number
    steps: _Count  # of each rank
    samples: _Count  # of all ranks together
    other_load: _Load  # cores in use by programs other than this cell; None where unknown


_COLUMNS = tuple(each.name for each in fields(TurnSlice))
Aside = Sequence[tuple[TurnSlice, tuple[int, int]]]
"""Slices, and of each its first step and the one after its last."""


def append_turns(directory: Path, slices: Iterable[TurnSlice]) -> None:
    """Append the slices of one run, which is done, to the turns.csv of a study's folder: all of them or none.

    Rows of a run are there once and complete, and whoever appends them holds the claim on its cell.
    """
    rows = [  # in CSV nothing is written for None
        {name: f"{value:.6f}" if isinstance(value, float) else value for name, value in asdict(each).items()}
        for each in slices
    ]
    if rows:
        with writing(directory / TURNS_FILE, "free space and run again"):
            text, head = csv_rows(_COLUMNS, rows, head=False), csv_rows(_COLUMNS, [])
            append_text(directory / TURNS_FILE, text, head=head)


def read_turns(directory: Path) -> list[TurnSlice]:
    """Return the slices in a study's folder, none where nothing was run in turns; RecordError names a damaged line."""
    path = directory / TURNS_FILE
    if not os.path.lexists(path):
        return []
    again = "move the file away; what was run in turns is then compared run by run"
    found = []
    rows = parse_csv(read_text(path, again=again), source=shown(path), columns=_COLUMNS, again=again)
    for number, row in enumerate(rows, 2):
        source = f"{shown(path)} line {number}"
        found.append(accept(TurnSlice, {name: row[name] for name in _COLUMNS}, source, error=RecordError, again=again))
        if found[-1].end_s <= found[-1].begin_s:
            raise RecordError(f"{source}: end_s is not after begin_s; {again}")
    return found


def turns_folders(root: Path) -> dict[str, Path]:
    """Return the folders at and right below `root` in which cells may have alternated, by their path below it."""
    folders = [root, *sorted(path for path in root.iterdir() if path.is_dir())] if root.is_dir() else []
    return {folder.relative_to(root).as_posix(): folder for folder in folders}


def turns_files(root: Path) -> dict[str, str]:
    """Return {folder: digest} of each turns.csv at and right below `root`, by the path of its folder."""
    paths = {name: folder / TURNS_FILE for name, folder in turns_folders(root).items()}
    again = "move the file away"
    return {name: digest_of(read_bytes(path, again=again)) for name, path in paths.items() if path.is_file()}


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
    own = _turn_places(record, name, slices)
    return RunTurns(
        before=_waits(record),
        launch=f"{own[0][0].block}/{own[0][0].launch:03d}" if own else "",
        rounds={each.round: steps for each, steps in own},
        other_load={each.round: _load(each) for each, _ in own},
    )


def _waits(record: RunRecord) -> tuple[int, ...]:
    return tuple(sorted({int(each) for each in (record.totals.get("turns") or {}).get("before", ())}))


def _load(each: TurnSlice) -> float:
    return math.nan if each.other_load is None else each.other_load


def _turn_places(record: RunRecord, name: str, slices: Iterable[TurnSlice]) -> list[tuple[TurnSlice, tuple[int, int]]]:
    """Return the slices of the last launch of a run with their steps, see `run_turns`; one made again is there twice.

    From the last wait backwards: the end of the slices is looked for first, then each has the steps before the next
    one's, or, where those are not as many as it says, the steps before these, which lead in.
    """
    own = [each for each in slices if each.run == name]
    own = [each for each in own if (each.block, each.launch) == (own[-1].block, own[-1].launch)]
    resumed = int(record.attempts[-1].get("from_step") or 0)
    steps = list(pairwise(each for each in _waits(record) if each >= resumed))
    for last in range(len(steps) if own else 0, 0, -1):
        found, left = [], steps[:last]
        for each in reversed(own):
            if found and left and left[-1][1] - left[-1][0] != each.steps:
                left.pop()
            if not left or left[-1][1] - left[-1][0] != each.steps:
                break
            found.append((each, left.pop()))
        else:
            return found[::-1]
    return []


def slices_aside(directory: Path, record: RunRecord) -> Aside:
    """Return the slices of a run that are set aside, and their steps; none of a run that did not alternate.

    A slice is set aside where other programs used more than `paired.OTHER_LOAD` cores meanwhile. None of a block is
    where less than `paired.QUIET_SHARE` of its slices are quiet, and none of a run without a quiet slice: what is known
    of these is how they are on a shared machine.
    """
    path = directory.resolve().parent / TURNS_FILE
    if not record.totals.get("turns") or not path.is_file():
        return []
    about, name = path.stat(), directory.resolve().name
    loud = _loud(path.parent, about.st_mtime_ns, about.st_size).get(name, {})
    own = _turn_places(record, name, loud)
    return [(each, steps) for each, steps in own if loud[each]] if not all(loud[each] for each, _ in own) else []


@lru_cache(maxsize=64)
def _loud(folder: Path, *_: int) -> Mapping[str, Mapping[TurnSlice, bool]]:
    """Return {run: {slice: whether it does not count}} of a study, in their order; `_`: when turns.csv has changed."""
    # With NumPy and SciPy: only for those who alternated.
    from horovod_study.analysis.paired import OTHER_LOAD, quiet_rounds

    slices, found = read_turns(folder), dict[str, dict[TurnSlice, bool]]()
    for block in {each.block: None for each in slices}:
        of_block = [each for each in slices if each.block == block]
        last = {(each.launch, each.round, each.run): each for each in of_block}  # of a slice that was made again
        shared = quiet_rounds([_load(each) for each in last.values()])[1]
        for each in of_block:
            found.setdefault(each.run, {})[each] = not shared and _load(each) > OTHER_LOAD
    return found


def without(table: "pa.Table", aside: Aside) -> "pa.Table":
    """Return the step rows of a rank without those that are set aside."""
    import numpy as np

    if not aside:
        return table
    step = table.column("step").to_numpy()
    return table.filter(np.logical_and.reduce([(step < first) | (step >= end) for _, (first, end) in aside]))


def recounted(
    record: RunRecord,
    aside: Aside,
    rows: "Mapping[int, Mapping[str, np.ndarray]]",
    samples_of: "Callable[[str], tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]",
) -> RunRecord:
    """Return the record of a finished run with the totals of the steps that count; as it is where all of them do.

    `rows`: rank -> columns without what is set `aside`; `samples_of` a host returns its system samples as columns and
    what they say of its sensors. Means and quantiles are made from the rows again, the window loses the seconds and
    samples of what is set aside, and readings of sensors are those of the time that is left. Rows or samples that
    cannot be read (RecordError) leave all as it was.
    """
    import numpy as np

    from horovod_study.measure import energy

    first, totals = timed_from(record)[0], record.totals
    aside = [(each, steps) for each, steps in aside if steps[0] >= first]
    window_s = totals.get("window_s", 0.0) - math.fsum(each.end_s - each.begin_s for each, _ in aside)
    if not aside or window_s <= 0:
        return record
    samples = totals["samples_per_s"] * totals["window_s"] - sum(each.samples for each, _ in aside)
    names = ("step", "begin_s", *LAP_COLUMNS, "sync_host_s")
    hosts, devices = dict((totals.get("system") or {}).get("hosts") or {}), []
    try:
        ranks = [{name: columns[name][columns["step"] >= first] for name in names} for columns in rows.values()]
        # Of the steps that follow each other without a wait, begin and end on the axis of the samples.
        step, begin_s = ranks[0]["step"], ranks[0]["begin_s"]
        end_s = begin_s + np.nan_to_num(ranks[0]["step_s"])
        opens = np.flatnonzero((np.diff(step) != 1) | np.isin(step[1:], list(totals["turns"]["before"]))) + 1
        edges = pairwise([0, *opens.tolist(), len(step)])
        stretches = [(float(begin_s[begin]), float(end_s[end - 1])) for begin, end in edges]
        for host, told in hosts.items():
            columns, meta = samples_of(host)
            hosts[host] = {**told, **energy.host_summary(columns, stretches)}
            where = {"host": host, "interval_s": float(meta["interval_s"])}
            devices += energy.host_energy(columns, meta["devices"], stretches, **where)
    except (RecordError, LookupError):
        return record
    again = {
        "samples_per_s": samples / window_s,
        "window_s": window_s,
        "steps": min(len(rank["step"]) for rank in ranks),
    }
    again |= step_totals([lap_summary(rank.__getitem__) for rank in ranks])
    if hosts:
        joules = energy.total_energy(devices, [], samples=round(samples))
        again["energy"] = {**joules, "reason": (totals.get("energy") or {}).get("reason", "")}
        again["system"] = {**totals["system"], "hosts": hosts}
    return replace(record, totals={**totals, **again})
