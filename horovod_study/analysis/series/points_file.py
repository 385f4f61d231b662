"""A user's own points: the text of a table in, a validated frame out.

    workers          whole number of workers, 1 to 10,000,000           required
    samples_per_s    throughput of all workers together, above 0        required
    nodes            whole number of nodes, at most one per worker
    sync_s           exposed synchronisation, seconds per step
    batch_size       samples per worker and step
    series           name of the curve, where a file holds several
    repeat           number of the run among runs of the same point
    workers_per_node workers that fill a node

The first line names the columns; the order of rows and columns does not matter. A cell of an optional column may be
empty. Rows of the same worker count are repeats of each other.

Other names are read where they say what they are (`column_names`): `GPUs`, `img/s`, `tokens/s/GPU`, times of a step or
an epoch. A column of words that separates rows of one worker count into curves is one of `series`. Columns may be
separated by commas, semicolons, tabs or, as in Markdown, bars, or be JSON; decimals marked by a point or
a comma; thousands separated; values followed by `± spread`. What was guessed is in `frame.attrs["read"]`, one line;
`columns` says it instead.
`frame.attrs["unit"]` is "samples/s", or what stands in its place where no samples are known.

Every mistake is a DataError of one line: file, line, value, what is allowed, what to do.
What is odd but readable becomes a doubt in `frame.attrs["doubts"]`, which `fitting.fit_series` passes on.
"""

import codecs
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from horovod_study.analysis.series.column_names import (
    RATES,
    ROLES,
    SAMPLES,
    SPREAD,
    TIMES,
    Meaning,
    is_duration,
    meaning,
    seconds,
)
from horovod_study.documents import parse_json
from horovod_study.errors import DataError, nearest, require_known
from horovod_study.files import unguarded
from horovod_study.text.words import cut, plural

REQUIRED = ("workers", "samples_per_s")
OPTIONAL = ("nodes", "sync_s", "batch_size", "series", "repeat", "workers_per_node")
COLUMNS = REQUIRED + OPTIONAL

MAX_WORKERS = 10_000_000
MAX_POINTS = 1_000_000
_THROUGHPUT = (1e-9, 1e15)  # samples/s; outside, a number is a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column that is used."""

    at: int  # position
    name: str  # as the file has it
    means: Meaning
    given: bool  # named as in COLUMNS, or by the caller: what it holds must be right

    @property
    def role(self) -> str:
        return self.means.role


def parse_points(data: str | bytes, source: str, columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Read a points file, its bytes or CSV text; `source` is its name in messages.

    `columns` maps what is meant (`column_names.ROLES`) to the names that the file has, {"workers": "GPUs"}.
    Returns the columns that are known, in the order of `COLUMNS`: workers (int), series (str), the others as floats
    with NaN for empty cells; rows in the order of the file. `attrs["read"]` says what was guessed.
    """
    text, source, told = (data, source, []) if isinstance(data, str) else _table_text(data, source)
    rows, separator = _rows(text, source)
    if not rows:
        raise DataError(f"{source}: is empty; give a first line 'workers,samples_per_s' and one line per point")
    (header_line, header), body = rows[0], rows[1:]
    found, unused = _columns([name.strip() for name in header], f"{source} line {header_line}", columns or {})
    if not body:
        raise DataError(
            f"{source} line {header_line}: no points follow the names of the columns; add one line per point"
        )
    for line, cells in body:
        if len(cells) != len(header):
            raise DataError(
                f"{source} line {line}: {len(cells)} cells where the first line names {len(header)} columns; "
                "separate cells as in the first line, quote cells with a separator in them, leave unknown cells empty "
                f"({_shown(cells)})"
            )
    texts = {each.at: [_bare(cells[each.at], each.role) for _, cells in body] for each in found}
    numbers = [cell for each in found if each.role != "series" for cell in texts[each.at]]
    comma = _decimal_comma(numbers, separator)
    frame = pd.DataFrame(index=range(len(body)))
    for each in (each for each in found if each.role != "series"):
        try:
            values = [
                _value(cell, each, f"{source} line {line}", comma=comma)
                for (line, _), cell in zip(body, texts[each.at], strict=True)
            ]
        except DataError as error:
            if each.given or each.role in REQUIRED + RATES:
                raise
            unused[each.at] = f" ({error})"
            continue
        frame[each.role] = values
    read = [*told, *([f"{separator!r} separates columns"] if separator != "," else [])]
    if any("," in cell for cell in numbers):
        read.append("a comma marks decimals" if comma else "a comma separates thousands")
    read += ["what follows ± is left out"] if any(SPREAD.search(cells[at]) for _, cells in body for at in texts) else []
    roles = {each.role for each in found}
    plain = set(COLUMNS) & set(frame.columns) - ({"batch_size"} if "accumulation" in roles else set())
    read += [f"{each.role} = {each.name}" for each in found if each.role in plain and not each.given]
    made, unit = _work_out(frame, {each.role: each.name for each in found})
    read += made
    rates = (each.means.unit for each in found if each.role in RATES[:2])
    unit = next(rates, unit)
    read += _series(frame, [cells for _, cells in body], header, found, unused)
    lines = [line for line, _ in body]
    over = list(frame.index[frame["nodes"] > frame["workers"]]) if "nodes" in frame else []
    if over:
        nodes, workers = frame["nodes"][over[0]], frame["workers"][over[0]]
        raise DataError(
            f"{source} line {lines[over[0]]}: {nodes:g} nodes for {workers} workers; "
            "every node has at least one worker, so correct either"
        )
    frame = frame[[name for name in COLUMNS if name in frame]]
    rate = next((each for each in found if each.role == "samples_per_s" and not each.given), None)
    doubts = _not_used(header, unused, [name for name in COLUMNS if name not in roles])
    doubts += [] if rate is None else _per_worker(frame, rate.name)
    doubts += [*_overfull(frame, lines, source), *_duplicates(frame, lines, source)]
    frame.attrs["doubts"] = tuple(doubts)
    frame.attrs["read"] = "; ".join(read)
    frame.attrs["unit"] = unit
    return frame


def parse_columns(words: Sequence[str]) -> dict[str, str]:
    """{"workers": "GPUs"} of the words `workers=GPUs`, also joined by commas; DataError for anything else."""
    found: dict[str, str] = {}
    roles = "|".join(ROLES)
    for word in words:
        for part in re.split(rf",(?=(?:{roles})=)", word):
            role, equals, name = part.partition("=")
            if not (equals and name):
                raise DataError(f"--columns {part!r}: give WHAT=NAME, such as workers=GPUs; WHAT is {', '.join(ROLES)}")
            if role in found:
                raise DataError(f"--columns: {role} is given twice; keep one of them")
            found[role] = name
    return found


def _rows(text: str, source: str) -> tuple[list[tuple[int, list[str]]], str]:
    """Cells of every line that is neither blank nor a # comment, with its number; and what separates them."""
    text = text.removeprefix("\ufeff")
    head = next((line for line in text.splitlines() if line.strip() and not _remark(re.split("[,;\t]", line))), "")
    separator = next((mark for mark in ("\t", "|", ";") if mark in head), ",")
    if separator == "|":  # of Markdown: a bar at both ends, and a rule under the names
        text = re.sub(r"(?m)^[ \t|:-]*-{2}[ \t|:-]*$", "", text)
        text = re.sub(r"(?m)^[ \t]*\|?(.*?)\|?[ \t]*$", r"\1", text)
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=separator != "\t", delimiter=separator)
    rows: list[tuple[int, list[str]]] = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not _remark(cells, after=bool(rows)):
                rows.append((reader.line_num, cells))
            if len(rows) > MAX_POINTS + 1:
                raise DataError(
                    f"{source}: has more than {MAX_POINTS:,} points; a points file has one line per run, so give "
                    "throughputs of runs instead of steps, or split it by series"
                )
    except csv.Error as error:
        raise DataError(f"{source} line {reader.line_num}: is not CSV text ({error}); save the table as CSV") from None
    return rows, separator


def _remark(cells: list[str], *, after: bool = False) -> bool:
    """Whether a line is a remark; `#GPUs` as the first name of the first line is none."""
    return cells[0].lstrip().startswith("#") and (after or len(cells) == 1 or meaning(cells[0]) is None)


def _columns(names: list[str], where: str, columns: Mapping[str, str]) -> tuple[list[_Column], dict[int, str]]:
    """The columns that are used, and the places of those that are not, for which no reason is known yet."""
    plain = [name.lower() for name in names]
    used: dict[int, _Column] = {}
    for role, name in columns.items():
        require_known(f"{where}: --columns", role, ROLES, error=DataError)
        if name not in names and name.strip().lower() not in plain:
            raise DataError(f"{where}: --columns names {name!r}, which is none of the columns {_shown(names)}")
        at = names.index(name) if name in names else plain.index(name.strip().lower())
        guess = meaning(name)
        means = Meaning(role=role, factor=seconds(name) if role in TIMES else 1.0)
        if guess and (guess.role == role or {guess.role, role} == set(RATES[:2])):  # of whom is told, of what it says
            means = replace(guess, role=role)
        used[at] = _Column(at=at, name=names[at], means=means, given=True)
    for at, name in enumerate(plain):
        if at not in used and name in COLUMNS and name not in columns:
            used[at] = _Column(at=at, name=names[at], means=Meaning(role=name), given=True)
    twice = [each.role for each in used.values() if sum(each.role == other.role for other in used.values()) > 1]
    if twice:
        count = sum(each.role == twice[0] for each in used.values())
        raise DataError(f"{where}: column {twice[0]!r} appears {count} times; keep one of them")
    used |= _guessed(names, used, where)
    _require(names, used, where)
    return list(used.values()), dict.fromkeys(set(range(len(names))) - set(used), "")


def _series(
    frame: pd.DataFrame, body: list[list[str]], header: list[str], found: list[_Column], unused: dict[int, str]
) -> list[str]:
    """Add the names of the curves to `frame`, joined where several columns have them; say which were guessed.

    Guessed are columns that are called so, unless every value has one worker count where the table has several; and
    columns of words, `cluster` or `precision`, whose values share a worker count and have several each.
    """
    columns = {each.at: each.given for each in found if each.role == "series"}
    candidates = [*columns, *(sorted(unused) if not any(columns.values()) else [])]
    read = []
    for at in candidates:
        cells = [cells[at].strip() for cells in body]
        counts = frame["workers"].groupby(cells).nunique()
        if at in columns and not columns[at] and counts.max() == 1 < frame["workers"].nunique():
            unused[at] = ""
            continue
        if at not in columns:
            words = not any(re.search(r"^$|^[-+.\d]", cell) for cell in cells)
            if not (words and len(counts) > 1 and counts.min() > 1 and frame["workers"].duplicated().any()):
                continue
            del unused[at]
        names = [unguarded(cell) for cell in cells]
        if "series" in frame:
            names = [f"{one} {other}" for one, other in zip(frame["series"], names, strict=True)]
        frame["series"] = names
        read += [] if columns.get(at) else [f"series = {header[at].strip()}"]
    return read


def _not_used(header: list[str], unused: Mapping[int, str], missing: list[str]) -> list[str]:
    """A doubt about the columns that are not used; `missing` are names that a misspelt one may mean."""
    names = [header[at].strip() for at in sorted(unused) if not unused[at]]
    some = [_shown(name) + (nearest(name.lower(), missing) if meaning(name) is None else "") for name in names[:5]]
    some += [f"{len(names) - 5} more"] if len(names) > 5 else []
    doubts = [f"column{'s' * (len(names) > 1)} {', '.join(some)} not used"] if names else []
    return doubts + [f"column {_shown(header[at].strip())} not used{why}" for at, why in sorted(unused.items()) if why]


_BATCH = re.compile(r"(?:mini[ _-]?)?batch(?:[ _-]?size)?|bs")
"""Of one worker, or of all: nobody can tell from the name."""


_PROCESS = re.compile("core|proc|rank|np")


def _guessed(names: list[str], used: Mapping[int, _Column], where: str) -> dict[int, _Column]:
    """Columns whose name says what they are, where nothing else is that."""
    taken = {each.role for each in used.values()}
    means = {at: each for at, name in enumerate(names) if at not in used and (each := meaning(name))}
    if taken & set(RATES):
        means = {at: each for at, each in means.items() if each.role not in RATES}
    else:
        first = next((role for role in RATES if any(each.role == role for each in means.values())), None)
        means = {at: each for at, each in means.items() if each.role not in RATES or each.role == first}
    if "batch_size" in taken | {each.role for each in means.values()}:
        means = {at: each for at, each in means.items() if each.role != "global_batch"}
    found: dict[int, _Column] = {}
    for at, each in means.items():
        if each.role in taken:
            continue
        same = [names[other] for other, one in means.items() if one.role == each.role]
        if each.role == "workers":
            same = [name for name in same if not _PROCESS.search(name.lower())] or same  # GPUs beside processes
        if names[at] not in same:
            continue
        if len(same) > 1 and each.role != "series":
            raise DataError(
                f"{where}: {' and '.join(map(repr, same))} may both be {each.role}; "
                f"say which: --columns {each.role}={same[0]!r}"
            )
        found[at] = _Column(at=at, name=names[at], means=each, given=False)
    return found


def _require(names: list[str], used: Mapping[int, _Column], where: str) -> None:
    """Raise DataError where the columns do not say how many workers there were, or how fast they were."""
    roles = {each.role for each in used.values()}
    lacking = [] if roles & {"workers", "nodes"} else ["workers"]
    lacking += [] if roles & set(RATES) else ["samples_per_s"]
    for name in lacking:
        times = [other for other in names if is_duration(other)] if name == "samples_per_s" else []
        if times:
            raise DataError(
                f"{where}: {times[0]!r} may be the time of a step, or of the same work at every count, such as an "
                f"epoch or a training; say which: --columns 'step_s={times[0]}' or --columns 'epoch_s={times[0]}'"
            )
        near = [suggestion for other in names if (suggestion := nearest(other.lower(), [name]))]
        raise DataError(
            f"{where}: column {name!r} is missing in {_shown(names)}{''.join(near[:1])}; the first line names the "
            f"columns, of which {' and '.join(REQUIRED)} are needed and {', '.join(OPTIONAL)} may follow, or say what "
            f"a column is: --columns {name}=NAME"
        )
    unclear = [name for name in names if _BATCH.fullmatch(name.lower())] if "step_s" in roles else []
    if unclear and not roles & {"batch_size", "global_batch"}:
        raise DataError(
            f"{where}: {unclear[0]!r} may be samples of one worker or of all, which times of steps need; say which: "
            f"--columns batch_size={unclear[0]} or --columns global_batch={unclear[0]}"
        )


def _work_out(frame: pd.DataFrame, name: Mapping[str, str]) -> tuple[list[str], str]:
    """Add to `frame` what it can be worked out from; say how, and in what unit throughputs are.

    `name` is what the file calls a role.
    """
    read = []
    if "workers" not in frame:
        if "workers_per_node" in frame and frame["workers_per_node"].notna().all():
            frame["workers"] = (frame["nodes"] * frame["workers_per_node"]).astype("int64")
            read.append(f"workers = {name['nodes']} x {name['workers_per_node']}")
        else:
            frame["workers"] = frame["nodes"].astype("int64")
            read.append(f"workers = {name['nodes']}: nodes are what is counted")
    if "global_batch" in frame:
        frame["batch_size"] = frame["global_batch"] / frame["workers"]
        read.append(f"batch_size = {name['global_batch']} / workers")
    elif "batch_size" in frame and "accumulation" in frame:
        frame["batch_size"] *= frame["accumulation"]
        read.append(f"batch_size = {name['batch_size']} x {name['accumulation']}")
    if "samples_per_s" in frame:
        return read, SAMPLES
    unit = SAMPLES
    if "samples_per_s_per_worker" in frame:
        rate = frame["samples_per_s_per_worker"] * frame["workers"]
        how = f"{name['samples_per_s_per_worker']} x workers"
    elif "step_s" in frame and "batch_size" in frame and frame["batch_size"].notna().all():
        rate = frame["workers"] * frame["batch_size"] / frame["step_s"]
        how = f"workers x batch_size / {name['step_s']}"
    elif "step_s" in frame:
        rate, unit = frame["workers"] / frame["step_s"], "batches/s"
        how = f"workers / {name['step_s']}: one batch per worker at every count is assumed"
    elif "epoch_s" in frame:
        rate, unit = 1 / frame["epoch_s"], "epochs/s"
        how = f"1 / {name['epoch_s']}: epochs/s, of the same data at every count"
    elif "speedup" in frame:
        rate, unit = frame["speedup"], "speedup"
        how = f"{name['speedup']}: throughput relative to what has 1"
    else:
        rate, unit = frame["efficiency"] / (100 if frame["efficiency"].max() > 2 else 1) * frame["workers"], "speedup"
        how = f"{name['efficiency']} x workers: throughput relative to what has efficiency 1"
    frame["samples_per_s"] = rate
    return [*read, f"samples_per_s = {how}"], unit


def _per_worker(frame: pd.DataFrame, name: str) -> list[str]:
    """Doubt a rate that hardly grows with the workers: it may be that of one worker."""
    medians = frame.groupby("workers")["samples_per_s"].median()
    count, rate = medians.index[-1] / medians.index[0], medians.iloc[-1] / medians.iloc[0]
    if count < 2 or rate > 1.2:
        return []
    return [
        f"{_shown(name)} is {rate:.2g} times as large with {count:g} times the workers: if it is of one worker, say so "
        f"with --columns samples_per_s_per_worker={name}"
    ]


def _overfull(frame: pd.DataFrame, lines: list[int], source: str) -> list[str]:
    """Doubt workers that do not fit on their nodes."""
    if "nodes" not in frame or "workers_per_node" not in frame:
        return []
    over = frame.index[frame["workers"] > frame["nodes"] * frame["workers_per_node"]]
    return [
        f"line {lines[place]} of {source}: {frame['workers'][place]:g} workers do not fit on "
        f"{plural(frame['nodes'][place], 'node', 'g')} with {frame['workers_per_node'][place]:g} workers per node"
        + (f" (and {len(over) - 1} more lines)" if len(over) > 1 else "")
        for place in over[:1]
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
    repeat = f"lines {which} of {source} repeat" if len(copies) > 1 else f"line {which} of {source} repeats"
    return [f"{repeat} earlier lines exactly: copied, or truly repeats?"]


# --- cells ------------------------------------------------------------------------------------------------------------


_GROUPS = re.compile(r"([-+]?\d{1,3})((?:[ '\u00a0\u202f\u2009\u2019]\d{3})+)([.,]\d+)?")
_COMMAS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")


def _decimal_comma(cells: list[str], separator: str) -> bool:
    """Whether a comma marks decimals. `1,234` says nothing by itself: with semicolons it is taken for a decimal."""
    unclear = False
    for cell in cells:
        comma, point = cell.rfind(","), cell.rfind(".")
        if comma < 0 and cell.count(".") < 2:
            continue
        if point > comma and cell.count(".") == 1:
            return False
        if comma > point and (cell.count(",") == 1 and (point >= 0 or not _COMMAS.fullmatch(cell.strip()))):
            return True
        if cell.count(".") > 1:
            return True
        unclear = unclear or cell.count(",") == 1
    return unclear and separator == ";"


_CELLS: Mapping[str, tuple[float, float, str, bool]] = MappingProxyType(
    {
        "workers": (1, MAX_WORKERS, "", False),
        "samples_per_s": (*_THROUGHPUT, "a finite number above 0, in samples/s of all workers", False),
        "nodes": (1, MAX_WORKERS, "", True),
        "sync_s": (0.0, 1e6, "seconds per step, 0 or more", True),
        "batch_size": (1e-9, 1e12, "samples, above 0", True),
        "repeat": (0, 10**9, "", True),
        "workers_per_node": (1, MAX_WORKERS, "", True),
        "samples_per_s_per_worker": (*_THROUGHPUT, "a finite number above 0, in samples/s of all workers", False),
        "step_s": (1e-12, 1e12, "a time above 0", False),
        "epoch_s": (1e-12, 1e12, "a time above 0", False),
        "speedup": (1e-9, 1e9, "a number above 0", False),
        "efficiency": (1e-6, 1e3, "a share or a percentage above 0", False),
        "accumulation": (1, 10**6, "", False),
        "global_batch": (1e-9, 1e15, "samples, above 0", True),
    }
)
"""Least and largest value of each role but the series, what is allowed in words ("": whole numbers), whether it may be
empty."""


def _bare(cell: str, role: str) -> str:
    """The value of `12.5 ± 0.3`, and of `1.9x` and `96 %` where such are meant."""
    text = SPREAD.split(cell)[0].strip()
    return text.rstrip("x%\u00d7 ") if role in ("speedup", "efficiency") else text


def _value(text: str, column: _Column, where: str, *, comma: bool) -> Any:
    """The value of a cell in the unit of its role."""
    low, high, allowed, optional = _CELLS[column.role]
    if optional and not text:
        return math.nan
    grouped = _GROUPS.fullmatch(text)
    if grouped:
        text = grouped[1] + re.sub(r"\D", "", grouped[2]) + (grouped[3] or "")
    if comma:
        text = text.replace(".", "").replace(",", ".")
    elif _COMMAS.fullmatch(text):
        text = text.replace(",", "")
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not (low <= value <= high and (allowed or value == math.floor(value))):  # also for NaN
        told = allowed or f"a whole number from {low} to {high}"
        raise DataError(f"{where}: {column.name} is {_shown(text)}; allowed is {told}; correct it or drop the line")
    return value * column.means.factor if allowed or optional else int(value)


def _shown(value: str | list[str]) -> str:
    """What the file says, short enough for one line."""
    return repr(cut(value if isinstance(value, str) else ",".join(value), 60))


_NO_TABLE = 'give a list of rows such as [{"workers": 1, "samples_per_s": 520}], or a CSV file'


def _table_text(data: bytes, source: str) -> tuple[str, str, list[str]]:
    """Return the table of a file as CSV text, its name in messages, and what must be told of how it was read.

    Encodings: UTF-8, UTF-16 with a byte-order mark ("Unicode text" of spreadsheets), else Windows-1252. JSON: rows as
    objects, in a list or one a line; columns as lists or, as pandas writes them, as objects by row number. Either may
    stand alone or as the only table below a name. Raises DataError where there is no table.
    """
    text, told = _decoded(data, source)
    if text.lstrip()[:1] not in ("[", "{"):
        return text, source, told
    rows = _table(_content(text, source), source)
    names = list(dict.fromkeys(name for row in rows for name in row))
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(names)
    for number, row in enumerate(rows, 1):
        if nested := next((name for name in row if isinstance(row[name], dict | list)), None):
            raise DataError(f"{source} row {number}: {nested!r} is a table itself; {_NO_TABLE}")
        writer.writerow(["" if row.get(name) is None else row[name] for name in names])
    return written.getvalue(), f"{source}, as CSV,", [*told, f"JSON of {len(rows):,} row{'s' * (len(rows) > 1)}"]


def _decoded(data: bytes, source: str) -> tuple[str, list[str]]:
    """Return a text and in which encoding it was, if not in UTF-8."""
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    ways = {"utf-16": "text in UTF-16"} if utf16 else {"utf-8-sig": "", "cp1252": "text in Windows-1252"}
    for encoding, told in ways.items():
        with suppress(UnicodeDecodeError):
            if utf16 or b"\0" not in data:
                return data.decode(encoding), [told] * bool(told)
    raise DataError(f"{source}: is not a text file; save the table as CSV in UTF-8")


def _content(text: str, source: str) -> Any:
    """Return what JSON text holds; of several objects, one a line, their list."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if len(lines) > 1 and all(line[0] == "{" and line[-1] == "}" for _, line in lines):
        places = {number: f"{source} line {number}" for number, _ in lines}
        return [parse_json(line, source=places[at], error=DataError, again=_NO_TABLE) for at, line in lines]
    return parse_json(text, source=source, error=DataError, again=_NO_TABLE)


def _table(content: Any, source: str) -> list[Mapping[str, Any]]:
    """Return the rows of a table in any of its forms."""
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        return content
    if isinstance(content, dict) and content:
        columns = list(content.values())
        tables = [each for each in columns if isinstance(each, dict) or _is_rows(each)]
        if all(isinstance(each, list) and not _is_rows(each) for each in columns) and len({*map(len, columns)}) == 1:
            return [dict(zip(content, row, strict=True)) for row in zip(*columns, strict=True)]
        if len(columns) > 1 and all(isinstance(each, dict) for each in columns):  # by row number
            rows = dict.fromkeys(row for each in columns for row in each)
            return [{name: column.get(row) for name, column in content.items()} for row in rows]
        if len(tables) == 1:
            return _table(tables[0], source)
        if not tables:  # one line of several
            return [content]
    raise DataError(f"{source}: holds no table; {_NO_TABLE}")


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)
