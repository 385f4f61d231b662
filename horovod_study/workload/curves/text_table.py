"""One delimited text file: encoding, delimiter, decimal mark and preamble found from the rows, cells as numbers.

The delimiter and the decimal mark are those under which the rows are numbers. Where two readings give different
numbers the file is ambiguous, which is an error and not a guess.
"""

import codecs
import csv
import io
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from horovod_study.documents import open_file
from horovod_study.errors import DataError
from horovod_study.workload import room
from horovod_study.workload.curves import units
from horovod_study.workload.curves.values import DELIMITERS, OnProgress, ReadOptions

_NOT_A_NUMBER = frozenset(("nan", "na", "n/a", "#n/a", "null", "none", "inf", "+inf", "-inf", "infinity", "-infinity"))
_NUMBER = {
    mark: re.compile(
        rf"[+-]?(?:(?:[0-9]+|[1-9][0-9]{{0,2}}(?:{thousands}[0-9]{{3}})+)(?:{re.escape(mark)}{fraction})?"
        rf"|{re.escape(mark)}[0-9]+)(?:[eE][+-]?[0-9]+)?"
    )
    for mark, thousands, fraction in (
        (".", "[,'\u2019 \u00a0\u202f]", "[0-9]*"),
        (",", r"[.'\u2019 \u00a0\u202f]", "[0-9]+"),
    )
}
"""A number under each decimal mark; a thousands separator needs groups of three behind a first digit that is not 0."""

_GROUPS = {".": re.compile("[,'\u2019 \u00a0\u202f]"), ",": re.compile("[.'\u2019 \u00a0\u202f]")}
_JOINED = re.compile(r"[0-9][,;|\t][+-]?[0-9.]|^[0-9.,eE+-]+( +[0-9.,eE+-]+)+$")
"""A cell that another delimiter would cut into numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextLayout:
    """The frame of a text file: how its lines are cut and what its columns are called."""

    path: Path
    encoding: str
    delimiter: str
    decimal: str
    names: tuple[str, ...]
    unit_row: tuple[str, ...] | None  # the row of units below the names
    names_line: int  # 0 where no line names the columns
    first_line: int  # the first line that can hold data

    @property
    def preamble_lines(self) -> int:
        """Lines above the names."""
        return max(self.names_line - 1, 0)

    def unit_of(self, column: int) -> str | None:
        """Return the text of the unit of a column, None where there is none."""
        below = self.unit_row[column] if self.unit_row and column < len(self.unit_row) else ""
        return below.strip().strip("()[]").strip() or units.split(self.names[column])[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The rows of a table: numbers and texts by column, the line of each row."""

    numbers: dict[int, NDArray[np.float64]]  # (rows,), NaN for a blank cell
    blank: dict[int, NDArray[np.bool_]]  # (rows,)
    texts: dict[int, list[str]]
    lines: NDArray[np.int64]  # (rows,)
    grouped: int  # cells with thousands separators


# -------------------------------------------------------------------------------------------------------- the frame


def open_table(path: Path, options: ReadOptions, *, required: Sequence[str] = ("strain", "stress")) -> TextLayout:
    """Find out how a text file is written; raise DataError where it is empty, no table, or ambiguous.

    `required` are the kinds of columns (keys of units.NAMES) by which the line of the names is known.
    """
    encoding = _encoding(path)
    with _opened(path, encoding) as stream:
        # Lines from which delimiter and decimal mark are found; preamble and names must be among them.
        sample = list(itertools.islice(stream, 2000))
    if not any(line.strip() for line in sample):
        raise DataError(f"{path}: is empty; a line with the names of the columns and rows of numbers were expected")
    found: list[tuple[str, str, list[tuple[int, list[str]]]]] = []
    for delimiter in [options.delimiter] if options.delimiter else [",", ";", "\t", "|"]:
        found += _readings(path, sample, delimiter, options.decimal)
    if not found and options.delimiter is None:
        found = _readings(path, sample, " ", options.decimal)
    if not found:
        raise _no_table(path, sample, options, required)
    if len({delimiter for delimiter, _, _ in found}) > 1:
        words = {mark: word for word, mark in DELIMITERS.items() if word != "\\t"}
        raise DataError(
            f"{path}: the rows are numbers with {' and with '.join(words[each[0]] for each in found)} between the "
            "columns; say which with --delimiter"
        )
    delimiter, decimal, rows = found[0]
    # The line of the names is the first that names the required columns, else the one above the numbers.
    first = next(k for k, (_, cells) in enumerate(rows) if _is_data(cells, decimal, delimiter))
    names_at = next((k for k, (_, cells) in enumerate(rows) if _names(cells, options, required)), None)
    if names_at is None:
        texts = [k for k in range(first) if len(rows[k][1]) > 1 and not _is_units(rows[k][1])]
        names_at = texts[-1] if texts else None
    unit_row = None
    if names_at is None:
        names, names_line, first_line = [str(k + 1) for k in range(len(rows[first][1]))], 0, rows[first][0]
    else:
        names_line, names = rows[names_at]
        line, below = rows[names_at + 1] if names_at + 1 < len(rows) else (names_line, [])
        unit_row = tuple(below) if _is_units(below) else None
        first_line = (line if unit_row else names_line) + 1
    return TextLayout(
        path=path,
        encoding=encoding,
        delimiter=delimiter,
        decimal=decimal,
        names=tuple(names),
        unit_row=unit_row,
        names_line=names_line,
        first_line=first_line,
    )


def _encoding(path: Path) -> str:
    try:
        with open_file(path) as stream:
            start = stream.read(4)
            if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                return "utf-16"
            stream.seek(0)
            decoder = codecs.getincrementaldecoder("utf-8-sig")()
            while block := stream.read(1 << 20):
                if b"\0" in block:
                    raise DataError(f"{path}: is not a text file; save the table as CSV, or name its --layout")
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "cp1252"  # what older machine software writes; every byte but five is a character there
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name an existing file") from None
    return "utf-8-sig"


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[IO[str]]:
    try:
        with io.TextIOWrapper(open_file(path), encoding=encoding, newline="") as stream:
            yield stream
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name an existing file") from None
    except UnicodeError:
        raise DataError(f"{path}: is not a text file in UTF-8; save the table as CSV in UTF-8") from None


def _cut(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, stripped cells) of every line that is not blank."""
    for rows, numbers in _chunks(path, lines, delimiter, 1):
        yield from zip(numbers.tolist(), rows, strict=True)


def _chunks(
    path: Path, lines: Iterable[str], delimiter: str, first_line: int
) -> Iterator[tuple[list[list[str]], NDArray[np.int64]]]:
    """Yield (rows of stripped cells, their line numbers) from `first_line` on in large pieces, without blank rows."""
    spaced = delimiter == " "
    text = (" ".join(line.split()) for line in lines) if spaced else lines
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
    try:
        done = 0
        while done < first_line - 1 and next(reader, None) is not None:
            done = reader.line_num
        while rows := list(itertools.islice(reader, 50_000)):
            numbers = np.arange(done + 1, done + 1 + len(rows))
            if reader.line_num != numbers[-1]:  # a quoted cell goes over several lines
                numbers += np.cumsum([sum(cell.count("\n") for cell in row) for row in rows])
            done = reader.line_num
            # Most files have no blanks around cells and no blank lines: one look at all of them together.
            together = "".join(itertools.chain.from_iterable(rows))
            if any(blank in together for blank in (" ", "\t", "\n", "\r", "\u00a0")):
                rows = [[cell.strip() for cell in row] for row in rows]
            filled = [any(row) for row in rows]
            if not all(filled):
                rows, numbers = list(itertools.compress(rows, filled)), numbers[filled]
            if rows:
                yield rows, numbers
    except csv.Error as error:
        raise DataError(f"{path} line {reader.line_num}: is not CSV text ({error}); save the table as CSV") from None


def is_number(cell: str, decimal: str) -> bool:
    """Return whether a cell is a number under a decimal mark."""
    return _NUMBER[decimal].fullmatch(cell) is not None


def to_number(cell: str, decimal: str) -> float:
    """Return the number in a cell that `is_number`."""
    return float(_GROUPS[decimal].sub("", cell).replace(",", "."))


def _readings(
    path: Path, sample: list[str], delimiter: str, decimal: str | None
) -> list[tuple[str, str, list[tuple[int, list[str]]]]]:
    """Return [(delimiter, decimal mark, rows)] if the sample is a table of numbers with this delimiter, else []."""
    rows = list(_cut(path, sample, delimiter))
    marks = [decimal] if decimal else [".", ","]
    numeric = {mark: [_is_data(cells, mark, delimiter) for _, cells in rows] for mark in marks}
    good = [mark for mark in marks if any(numeric[mark])]
    # Most rows after the first row of numbers are rows of numbers; a preamble alone has one now and then.
    good = [mark for mark in good if 2 * sum(numeric[mark]) >= len(rows) - numeric[mark].index(True)]
    if not good:
        return []
    if len(good) == 1:
        return [(delimiter, good[0], rows)]
    return [(delimiter, _mark(path, rows, numeric), rows)]


def _is_data(cells: list[str], decimal: str, delimiter: str) -> bool:
    """Return whether a row holds two numbers, and no cell that another delimiter would cut into numbers."""
    numbers = 0
    for cell in cells:
        if is_number(cell, decimal):
            numbers += 1
        elif cell and delimiter != " " and _JOINED.search(cell) and not is_number(cell, "," if decimal == "." else "."):
            return False
    return numbers >= 2


def _mark(path: Path, rows: list[tuple[int, list[str]]], numeric: dict[str, list[bool]]) -> str:
    """Decide between point and comma where the rows are numbers under both."""
    of_numbers = [row for row, *data in zip(rows, numeric["."], numeric[","], strict=True) if any(data)]
    cells = [(line, cell, is_number(cell, "."), is_number(cell, ",")) for line, row in of_numbers for cell in row]
    by_point = next(((line, cell) for line, cell, point, comma in cells if point and not comma), None)
    by_comma = next(((line, cell) for line, cell, point, comma in cells if comma and not point), None)
    if by_point and by_comma:
        raise DataError(
            f"{path}: {by_point[1]!r} (line {by_point[0]}) is a number with a decimal point only and "
            f"{by_comma[1]!r} (line {by_comma[0]}) with a decimal comma only; say which with --decimal, and correct "
            "the other cells"
        )
    if by_point or by_comma:
        return "." if by_point else ","
    both = ((line, cell) for line, cell, point, comma in cells if point and comma)
    if differ := next((each for each in both if to_number(each[1], ".") != to_number(each[1], ",")), None):
        raise DataError(
            f"{path} line {differ[0]}: {differ[1]!r} is {to_number(differ[1], '.'):g} with a decimal point and "
            f"{to_number(differ[1], ','):g} with a decimal comma, and no other cell decides; say which with --decimal"
        )
    return "."


def _names(cells: list[str], options: ReadOptions, required: Sequence[str]) -> bool:
    """Return whether a row names all required columns, by the accepted names or by those of the options."""
    chosen = {"strain": options.strain_column, "stress": options.stress_column}
    plain = [(cell, units.split(cell)[0]) for cell in cells]
    matches = []
    for kind in required:
        wanted = chosen.get(kind)
        if wanted is not None:
            matches.append({k for k, (cell, _) in enumerate(plain) if same_column(wanted, cell)})
        else:
            known = units.NAMES[kind]
            matches.append({k for k, (_, name) in enumerate(plain) if name in known or ends(name, kind)})
    return all(matches) and len(set().union(*matches)) >= len(required)


def same_column(wanted: str, column: str) -> bool:
    """Return whether an option names this column, with or without its unit, in any case."""
    return wanted.strip().lower() == column.strip().lower() or units.plain(wanted) == units.split(column)[0]


def ends(name: str, kind: str) -> str | None:
    """Return what is left of a plain name beside an accepted name of `kind` at its end or beginning, None if nothing.

    's1 strain' and 'strain s1' both give 's1': the columns of a wide table.
    """
    if kind not in ("strain", "stress"):
        return None
    for accepted in sorted(units.NAMES[kind], key=len, reverse=True):
        if name.endswith(f" {accepted}"):
            return name[: -len(accepted)].strip()
        if name.startswith(f"{accepted} "):
            return name[len(accepted) :].strip()
    return None


def _is_units(cells: list[str]) -> bool:
    """Return whether a row holds units only, as (%),(MPa), at least one of them of strain or stress."""
    words = [cell.strip().strip("()[]").strip() for cell in cells if cell.strip()]
    known = [word for word in words if units.find(word)]
    short = all(len(word) <= 12 and not is_number(word, ".") for word in words if word not in known)
    return len(known) >= 1 and short and any(units.find(word) != "1" for word in known)


def _no_table(path: Path, sample: list[str], options: ReadOptions, required: Sequence[str]) -> DataError:
    for delimiter in [options.delimiter] if options.delimiter else [",", ";", "\t", "|", " "]:
        rows = list(_cut(path, sample, delimiter))
        for k, (line, cells) in enumerate(rows):
            if not _names(cells, options, required):
                continue
            after = [row for row in rows[k + 1 :] if not _is_units(row[1])]
            if not after:
                return DataError(
                    f"{path} line {line}: no rows follow the names of the columns; one row per point was expected"
                )
            bad = next((cell for cell in after[0][1] if re.search(r"[0-9]", cell)), after[0][1][0])
            hint = "set --decimal , --delimiter ;" if re.search(r"[0-9],[0-9]", bad) else "--decimal and --delimiter"
            return DataError(
                f"{path} line {after[0][0]}: {bad!r} is not a number"
                + (f" with --decimal {options.decimal}" if options.decimal else "")
                + f"; correct the cell, or say how the table is written ({hint})"
            )
    shown = next(line.strip() for line in sample if line.strip())[:60]
    return DataError(
        f"{path}: no row holds two numbers in columns (the first line is {shown!r}); a table with the columns strain "
        "and stress was expected, see --delimiter and --decimal"
    )


# -------------------------------------------------------------------------------------------------------- the cells


def read_cells(
    table: TextLayout, numbers: Sequence[int], texts: Sequence[int] = (), *, on_progress: OnProgress | None = None
) -> Cells:
    """Read the rows of a table; a cell of `numbers` that is not a number is a DataError with its line (case 3).

    A blank cell, NaN and infinities are read as they are. A row longer than the line of the names is refused unless
    the cells beyond it are blank.
    """
    total = table.path.stat().st_size
    # a number is 8 bytes and seldom has fewer than 6 characters
    room.need_memory(table.path, 2 * total, "reading it", "cut it into files of fewer specimens")
    columns: dict[int, list[NDArray[np.float64]]] = {k: [] for k in numbers}
    blanks: dict[int, list[NDArray[np.bool_]]] = {k: [] for k in numbers}
    words: dict[int, list[str]] = {k: [] for k in texts}
    lines: list[NDArray[np.int64]] = []
    grouped = 0
    with _opened(table.path, table.encoding) as stream:
        for rows, places in _chunks(table.path, stream, table.delimiter, table.first_line):
            cut = _columns(table, rows, places)
            for k in numbers:
                values, blank, count = _convert(table, k, cut[k], places)
                columns[k].append(values)
                blanks[k].append(blank)
                grouped += count
            for k in texts:
                words[k] += map(sys.intern, cut[k])  # most are equal
            lines.append(places)
            if on_progress:
                done = stream.buffer.tell()  # type: ignore[attr-defined]  # the text layer's own is off in a loop
                on_progress(f"reading {table.path.name}", min(done, total), total)
    if not lines:
        raise DataError(
            f"{table.path} line {table.names_line}: no rows follow the names of the columns; one row per point was "
            "expected"
        )
    return Cells(
        numbers={k: np.concatenate(parts) for k, parts in columns.items()},
        blank={k: np.concatenate(parts) for k, parts in blanks.items()},
        texts=words,
        lines=np.concatenate(lines),
        grouped=grouped,
    )


def _columns(table: TextLayout, rows: list[list[str]], places: NDArray[np.int64]) -> list[tuple[str, ...]]:
    """Return the cells by columns, blank where a row is shorter; refuse rows with cells beyond the last column."""
    width = len(table.names)
    if any(len(row) != width for row in rows):
        for row, line in zip(rows, places, strict=True):
            if len(row) > width and any(row[width:]):
                place = f"line {table.names_line} names" if table.names_line else "the first row has"
                raise DataError(
                    f"{table.path} line {line}: {len(row)} cells where {place} {width} columns; decimal "
                    "commas between commas? save the table with semicolons, then set --decimal , --delimiter ;"
                )
        rows = [row[:width] + [""] * (width - len(row)) for row in rows]
    return list(zip(*rows, strict=True))


def _convert(
    table: TextLayout, column: int, cells: tuple[str, ...], places: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], int]:
    """Return a column's numbers, which cells are blank (NaN), and how many had thousands separators."""
    try:
        # Quick for the usual: float() takes neither blanks nor separators nor text; underscores it would take.
        together = "|".join(cells)
        if "_" not in together and (table.decimal == "." or "." not in together):
            quick = cells if table.decimal == "." else together.replace(",", ".").split("|")
            return np.array(list(map(float, quick))), np.zeros(len(cells), bool), 0
    except ValueError:
        pass
    values, grouped = [], 0
    for cell, line in zip(cells, places, strict=True):
        if not cell or cell.lower() in _NOT_A_NUMBER:
            values.append(float(cell) if "inf" in cell.lower() else math.nan)
        elif is_number(cell, table.decimal):
            grouped += _GROUPS[table.decimal].search(cell) is not None
            values.append(to_number(cell, table.decimal))
        else:
            raise _no_number(table, column, cell, int(line))
    return np.array(values), np.array([not cell for cell in cells]), grouped


def _no_number(table: TextLayout, column: int, cell: str, line: int) -> DataError:
    shown = repr(cell if len(cell) <= 40 else cell[:37] + "...")
    other = "," if table.decimal == "." else "."
    if is_number(cell, other):
        fix = "set --decimal , --delimiter ;" if other == "," else "set --decimal ."
        fix += " (whichever the file has between its columns)" if other == "," else ""
    else:
        fix = "correct the cell or remove the line"
    return DataError(
        f"{table.path} line {line}: {table.names[column]!r} is {shown}, not a number with decimal "
        f"{'point' if table.decimal == '.' else 'comma'}; {fix}"
    )
