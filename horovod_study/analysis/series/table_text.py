"""The text of somebody's table, whatever program wrote it.

Encodings: UTF-8, UTF-16 with a byte-order mark ("Unicode text" of spreadsheets), else Windows-1252. JSON: rows as
objects, in a list or one a line; columns as lists or, as pandas writes them, as objects by row number. Either may stand
alone or as the only table below a name. Everything else is taken for CSV, and read by `points_file`.
"""

import codecs
import csv
import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from horovod_study.documents import parse_json
from horovod_study.errors import DataError

_NO_TABLE = 'give a list of rows such as [{"workers": 1, "samples_per_s": 520}], or a CSV file'


def table_text(data: bytes, source: str) -> tuple[str, str, list[str]]:
    """Return the table as CSV text, its name in messages, and what must be told of how it was read.

    `source` is the name of the file. Raises DataError where there is no table.
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
