"""A user's own points: the text of a CSV file in, a validated frame out.

    workers          whole number of workers, 1 to 10,000,000           required
    samples_per_s    throughput of all workers together, above 0        required
    nodes            whole number of nodes, at most one per worker
    sync_s           exposed synchronisation, seconds per step
    batch_size       samples per worker and step
    series           name of the curve, where a file holds several
    repeat           number of the run among runs of the same point
    workers_per_node workers that fill a node

The first line names the columns, commas separate them, a point marks decimals; the order of rows and columns does not
matter. A cell of an optional column may be empty. Rows of the same worker count are repeats of each other.

Every mistake is a DataError of one line: file, line, value, what is allowed, what to do.
What is odd but readable becomes a doubt in `frame.attrs["doubts"]`, which `fitting.fit_series` passes on.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from horovod_study.errors import DataError, nearest
from horovod_study.files import unguarded

REQUIRED = ("workers", "samples_per_s")
OPTIONAL = ("nodes", "sync_s", "batch_size", "series", "repeat", "workers_per_node")
COLUMNS = REQUIRED + OPTIONAL

MAX_WORKERS = 10_000_000
MAX_POINTS = 1_000_000
_THROUGHPUT = (1e-9, 1e15)  # samples/s; outside, a number is a mistake


def parse_points(text: str, source: str) -> pd.DataFrame:
    """Read the text of a points file; `source` is its name in messages.

    Returns the columns that the file has, in the order of `COLUMNS`: workers (int), series (str), the others as
    floats with NaN for empty cells; rows in the order of the file.
    """
    rows = _rows(text, source)
    if not rows:
        raise DataError(f"{source}: is empty; give a first line 'workers,samples_per_s' and one line per point")
    (header_line, header), body = rows[0], rows[1:]
    columns, doubts = _columns(header, source, header_line)
    if not body:
        raise DataError(
            f"{source} line {header_line}: no points follow the names of the columns; add one line per point"
        )

    records: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, cells in body:
        if len(cells) != len(header):
            raise DataError(
                f"{source} line {line}: {len(cells)} cells where the first line names {len(header)} columns; "
                f"separate cells by commas, write decimals with a point, leave unknown cells empty ({_shown(cells)})"
            )
        record = {name: _PARSERS[name](cells[i].strip(), f"{source} line {line}", name) for i, name in columns}
        if record.get("nodes", math.nan) > record["workers"]:
            raise DataError(
                f"{source} line {line}: {record['nodes']:g} nodes for {record['workers']} workers; "
                "every node has at least one worker, so correct either"
            )
        records.append(record)
        lines.append(line)

    frame = pd.DataFrame.from_records(records)
    frame = frame[[name for name in COLUMNS if name in frame]]
    doubts += [*_overfull(frame, lines, source), *_duplicates(frame, lines, source)]
    frame.attrs["doubts"] = tuple(doubts)
    return frame


def _rows(text: str, source: str) -> list[tuple[int, list[str]]]:
    """Cells of every line that is neither blank nor a # comment, with its number."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), skipinitialspace=True)
    rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                rows.append((reader.line_num, cells))
            if len(rows) > MAX_POINTS + 1:
                raise DataError(
                    f"{source}: has more than {MAX_POINTS:,} points; a points file has one line per run, so give "
                    "throughputs of runs instead of steps, or split it by series"
                )
    except csv.Error as error:
        raise DataError(f"{source} line {reader.line_num}: is not CSV text ({error}); save the table as CSV") from None
    return rows


def _columns(header: list[str], source: str, line: int) -> tuple[list[tuple[int, str]], list[str]]:
    """(position, name) of the columns that are known, and a doubt about those that are not."""
    where = f"{source} line {line}"
    names = [name.strip().lower() for name in header]
    for separator, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            raise DataError(
                f"{where}: columns are separated by {word}; separate by commas, write decimals with a point"
            )
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    for name in unknown:
        # Something close to a column that is there already (workers_total next to workers) is not a typing error.
        suggestion = nearest(name, missing)
        if suggestion:
            raise DataError(f"{where}: unknown column {_shown(name)}{suggestion}; columns are {', '.join(COLUMNS)}")
    for name in REQUIRED:
        if name in missing:
            raise DataError(
                f"{where}: column {name!r} is missing in {_shown(names)}; the first line names the columns, "
                f"of which {' and '.join(REQUIRED)} are needed and {', '.join(OPTIONAL)} may follow"
            )
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if twice:
        raise DataError(f"{where}: column {twice[0]!r} appears {names.count(twice[0])} times; keep one of them")
    some = [*map(_shown, unknown[:5]), *([f"{len(unknown) - 5} more"] if len(unknown) > 5 else [])]
    doubts = [f"column{'s' * (len(unknown) > 1)} {', '.join(some)} not used"] if unknown else []
    return [(i, name) for i, name in enumerate(names) if name in COLUMNS], doubts


def _overfull(frame: pd.DataFrame, lines: list[int], source: str) -> list[str]:
    """Doubt workers that do not fit on their nodes."""
    if "nodes" not in frame or "workers_per_node" not in frame:
        return []
    over = frame.index[frame["workers"] > frame["nodes"] * frame["workers_per_node"]]
    if not len(over):
        return []
    first = frame.loc[over[0]]
    return [
        f"line {lines[over[0]]} of {source}: {first['workers']:g} workers do not fit on {first['nodes']:g} "
        f"node{'s' if first['nodes'] > 1 else ''} with {first['workers_per_node']:g} workers per node"
        + (f" (and {len(over) - 1} more lines)" if len(over) > 1 else "")
    ]


def _duplicates(frame: pd.DataFrame, lines: list[int], source: str) -> list[str]:
    """Refuse two rows with the same repeat number; doubt rows that are equal in everything."""
    if "repeat" in frame:
        key = [name for name in ("series", "workers", "nodes", "batch_size", "repeat") if name in frame]
        numbered = frame[frame["repeat"].notna()]
        again = numbered.index[numbered.duplicated(key)]
        if len(again):
            second = again[0]
            same = numbered.fillna(-1).loc[:, key]
            first = same.index[(same == same.loc[second]).all(axis=1)][0]
            raise DataError(
                f"{source} line {lines[second]}: repeat {frame['repeat'][second]:g} of {frame['workers'][second]} "
                f"workers is already on line {lines[first]}; number the repeats of a point 0, 1, 2, ..."
            )
        return []
    copies = frame.index[frame.duplicated()]
    if not len(copies):
        return []
    which = ", ".join(str(lines[i]) for i in copies[:5]) + (", ..." if len(copies) > 5 else "")
    lines_repeat = "lines {} of {} repeat" if len(copies) > 1 else "line {} of {} repeats"
    return [f"{lines_repeat.format(which, source)} earlier lines exactly: copied, or truly repeats?"]


# --- cells ------------------------------------------------------------------------------------------------------------


def _number(cell: str, where: str, name: str, allowed: str) -> float:
    try:
        if "_" in cell or not cell.isascii():
            raise ValueError
        return float(cell)
    except ValueError:
        comma = " (write decimals with a point)" if "," in cell else ""
        raise DataError(
            f"{where}: {name} is {_shown(cell)}; allowed is {allowed}{comma}; correct it or drop the line"
        ) from None


def _whole(cell: str, where: str, name: str, lowest: int, highest: int) -> int:
    allowed = f"a whole number from {lowest} to {highest}"
    value = _number(cell, where, name, allowed)
    if not (math.isfinite(value) and value == math.floor(value) and lowest <= value <= highest):
        raise DataError(f"{where}: {name} is {_shown(cell)}; allowed is {allowed}; correct it or drop the line")
    return int(value)


def _real(cell: str, where: str, name: str, lowest: float, highest: float, allowed: str) -> float:
    value = _number(cell, where, name, allowed)
    if not lowest <= value <= highest:  # also false for NaN
        raise DataError(f"{where}: {name} is {_shown(cell)}; allowed is {allowed}; correct it or drop the line")
    return value


def _maybe(parse: Callable[[str, str, str], float]) -> Callable[[str, str, str], float]:
    return lambda cell, where, name: float(parse(cell, where, name)) if cell else math.nan


def _workers(cell: str, where: str, name: str) -> int:
    return _whole(cell, where, name, 1, MAX_WORKERS)


def _samples_per_s(cell: str, where: str, name: str) -> float:
    return _real(cell, where, name, *_THROUGHPUT, "a finite number above 0, in samples/s of all workers")


_PARSERS: Mapping[str, Callable[[str, str, str], Any]] = MappingProxyType(
    {
        "workers": _workers,
        "samples_per_s": _samples_per_s,
        "nodes": _maybe(_workers),
        "sync_s": _maybe(lambda cell, where, name: _real(cell, where, name, 0.0, 1e6, "seconds per step, 0 or more")),
        "batch_size": _maybe(lambda cell, where, name: _real(cell, where, name, 1e-9, 1e12, "samples, above 0")),
        "series": lambda cell, where, name: unguarded(cell),
        "repeat": _maybe(lambda cell, where, name: _whole(cell, where, name, 0, 10**9)),
        "workers_per_node": _maybe(_workers),
    }
)


def _shown(value: str | list[str]) -> str:
    """What the file says, short enough for one line."""
    text = value if isinstance(value, str) else ",".join(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")
