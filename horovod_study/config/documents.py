"""Reading documents: the one reader of JSON, of YAML, and of small CSV files.

Reading ends in bounded time and memory with plain values, or with one line: what is wrong, where, and what to do next.
Bounded are the size of a file (before it is read), the depth of nesting, the digits of an integer (64 bits) and the
length of a CSV field; what is no finite number, no valid Unicode or no regular file is refused. Doors hold what was
read against a form.
"""

import csv
import errno
import io
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from horovod_study.errors import ConfigError, DataError, RecordError, StudyError, short
from horovod_study.files import unguarded

MAX_JSON_BYTES = 256_000_000
_MAX_DEPTH = 64  # levels of nesting; what this package writes has fewer than ten
MAX_FIELD_CHARS = 4_000_000  # of one field of a CSV file; a longer one is not a table of numbers and names
_is_finite = math.isfinite

_Refusal = type[StudyError]


class _NotRegularError(OSError):
    """What has the name of a file is none."""


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; OSError also for a folder, a pipe, a socket or a device, without waiting for it."""
    if "\0" in os.fspath(path):
        raise _NotRegularError(errno.EINVAL, "has a NUL in its name", os.fspath(path))
    # Opening a pipe waits until somebody writes, unless asked not to. On a regular file the flag has no effect.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    mode = os.fstat(stream.fileno()).st_mode
    if stat.S_ISREG(mode):
        return stream
    stream.close()
    what = "is a folder, not a file" if stat.S_ISDIR(mode) else "is no regular file"
    raise _NotRegularError(errno.EINVAL, what, str(path))


def read_bytes(
    path: Path, *, error: _Refusal = RecordError, again: str, max_bytes: int = MAX_JSON_BYTES, missing: str = ""
) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises `error`: what is wrong with `path`, then `again`, what to do next; for a file that is not there `missing`
    takes the place of both. A pipe, socket or device is refused without waiting for it.
    """
    try:
        with open_file(path) as stream:
            # Not read(max_bytes + 1): that has so much memory set aside, for each of many small files.
            size = os.fstat(stream.fileno()).st_size
            content = stream.read(max_bytes + 1) if size > max_bytes else stream.read()
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"{shown(path)}: {missing or f'no such file; {again}'}") from None
    except OSError as problem:
        why = problem.strerror or problem
        what = why if isinstance(problem, _NotRegularError) else f"cannot be read ({why})"
        raise error(f"{shown(path)}: {what}; {again}") from None
    if len(content) > max_bytes:
        raise error(f"{shown(path)}: is larger than {max_bytes:,} bytes; {again}")
    return content


def read_text(path: Path, *, error: _Refusal = RecordError, again: str, **how: Any) -> str:
    """Return the content of a text file in UTF-8, with or without a byte-order mark; `how` as for `read_bytes`."""
    try:
        return read_bytes(path, error=error, again=again, **how).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{shown(path)}: is not a text file in UTF-8 (byte {problem.start}); {again}") from None


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path for a message: bytes that are no UTF-8 are written as escapes."""
    return os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_json(path: Path, form: Any = Any, *, error: _Refusal = RecordError, again: str, **how: Any) -> Any:
    """Return the document in a JSON file, of the given `form`; raises as `read_bytes`, `parse_json` and `conform`."""
    from horovod_study.config.doors import conform

    content = parse_json(
        read_bytes(path, error=error, again=again, **how), source=shown(path), error=error, again=again
    )
    return conform(content, form, shown(path), error, again)


def parse_json(text: str | bytes, *, source: str, error: _Refusal = RecordError, again: str) -> Any:
    """Return the plain values that a JSON text says; raises `error` naming `source`, the place in it, and `again`."""
    from pydantic_core import from_json

    try:
        if isinstance(text, str):
            text = text.encode("utf-8")  # a str from elsewhere may hold lone surrogates
        content = from_json(text, allow_inf_nan=False)
    except ValueError as problem:
        # pydantic_core: "<what> at line L column C"
        raise error(f"{source}: is not valid JSON ({problem}); {again}") from None
    _require_bounded(content, source, error, again)
    return content


def _require_bounded(content: Any, source: str, error: _Refusal, again: str, most: float = math.inf) -> None:
    """Refuse what is nested too deeply, more than `most` values, and numbers that 64 bits do not hold.

    `most` is for YAML, where a few lines of repetitions (*name) of repetitions say gigabytes.
    """
    level, values = [content], 0
    for _ in range(_MAX_DEPTH):
        values += len(level)
        if values > most:
            raise error(f"{source}: says more than {most:,} values; {again}")
        below: list[Any] = []
        for value in level:  # of which a study has millions
            kind = type(value)
            if kind is dict:
                below += value.values()
            elif kind is list:
                below += value
            elif (kind is float and not _is_finite(value)) or (kind is int and not -(2**63) <= value < 2**64):
                fault = "an integer beyond 64 bits" if kind is int else f"{value}, not a finite number"
                raise error(f"{source}: {_place(content, value) or 'the value'} is {fault}; {again}")
        if not below:
            return
        level = below
    raise error(f"{source}: is nested deeper than {_MAX_DEPTH} levels; {again}")


def _place(content: Any, wanted: Any) -> str:
    """Return where in a document a value stands, such as totals.steady.step; level by level, as it was found."""
    level: list[tuple[str, Any]] = [("", content)]
    while True:
        below: list[tuple[str, Any]] = []
        for where, value in level:
            if value is wanted:
                return where
            if isinstance(value, dict):
                below += [(f"{where}.{name}".lstrip("."), each) for name, each in value.items()]
            elif isinstance(value, list):
                below += [(where, each) for each in value]
        level = below


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; a missing, unreadable or malformed file is a ConfigError naming the line."""
    again = "name an existing YAML file of settings"
    # PyYAML takes minutes for more bytes, and nobody writes settings of this size.
    text, source = read_text(path, error=ConfigError, again=again, max_bytes=4_000_000), shown(path)
    again = "correct it"
    try:
        content = yaml.load(text, Loader=_BoundedLoader)
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply; {again}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "malformed"
        raise ConfigError(f"{source}:{where} is not valid YAML ({problem}); correct that line") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: must hold `key: value` lines, not {type(content).__name__}")
    _require_bounded(content, source, ConfigError, again, most=1_000_000)
    return content


class _BoundedLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice, a key that is no plain value, and a value that nothing holds are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            try:
                problem = f"key {key!r} is given twice" if key in seen else ""
            except TypeError:
                problem = "a key is no plain value"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, OverflowError, LookupError, TypeError, AttributeError):
            text = f"{short(getattr(node, 'value', None))} is no value that can be read"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None


def parse_csv(
    text: str,
    *,
    source: str,
    columns: Iterable[str] = (),
    error: _Refusal = RecordError,
    again: str,
    lenient: bool = False,
) -> list[dict[str, str]]:
    """Return the rows of a CSV text as {column: text}; `columns` must be there, others may be.

    Every row has as many fields as the head. A last row without its newline is of a writer that was killed and is left
    out. Raises `error` naming the line; `lenient` passes over lines that do not fit instead.
    """
    before = csv.field_size_limit(MAX_FIELD_CHARS)
    reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""), strict=True)
    rows: list[dict[str, str]] = []
    try:
        lines = filter(None, reader)
        names = [unguarded(name) for name in next(lines, ())]
        for name in [*columns, *names]:
            if (count := names.count(name)) != 1:
                what = f"column {short(name)} is there twice" if count else f"column {name} is missing"
                raise error(f"{source}: {what}; {again}")
        for row in lines:
            if len(row) == len(names):
                rows.append(dict(zip(names, map(unguarded, row), strict=True)))
            elif not lenient:
                raise error(f"{source} line {reader.line_num}: {len(row)} fields under {len(names)} names; {again}")
    except csv.Error as problem:
        raise error(f"{source} line {reader.line_num}: is not valid CSV ({problem}); {again}") from None
    finally:
        csv.field_size_limit(before)
    return rows


_MAX_LOGS = 10_000


def logs(place: Path) -> Iterator[tuple[str, bytes, Mapping[str, Any], Sequence[str]]]:
    """Yield name, content, system description (empty where there is none) and names of each training log of a place.

    A place is a log, or a folder with result_*.txt as those of MLPerf, or else *.log, *.txt and *.out at any depth. Of
    .../ORG/results/SYSTEM/BENCHMARK/result_0.txt the system is described in .../ORG/systems/SYSTEM.json, and the name
    begins with ORG. `names` are those of the file and of the folders between it and `place`. Raises DataError where
    there is none, or too many.
    """
    paths = [place] if not place.is_dir() else []
    for root, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not (Path(root, name, "source.json").exists()))
        paths += [Path(root, name) for name in sorted(names) if name.endswith((".log", ".txt", ".out"))]
        if len(paths) > _MAX_LOGS:
            raise DataError(f"{place}: holds more than {_MAX_LOGS:,} logs; name a folder with fewer")
    if not paths:
        raise DataError(
            f"{place}: is a folder without runs and without logs of trainings (*.log, *.txt, *.out; of MLPerf "
            "result_*.txt); name one or a file"
        )
    results = [path for path in paths if path.name.startswith("result_") and path.name.endswith(".txt")]
    again = "leave it out of the folder" if place.is_dir() else "name a CSV file with workers,samples_per_s"
    length = len(place.absolute().parts)
    for path in results or paths:
        parts, first, described = path.absolute().parts, length, {}
        at = max((index for index, name in enumerate(parts) if name == "results"), default=None)
        if at is not None:
            first = min(length, at - 1)
            system = Path(*parts[:at], "systems", f"{parts[min(at + 1, len(parts) - 1)]}.json")
            if at + 2 < len(parts) and system.is_file():
                described = read_json(system, dict[str, Any], error=DataError, again=again)
        name = str(path) if path == place else "/".join(parts[first:])
        yield name, read_bytes(path, error=DataError, again=again), described, parts[min(length, len(parts) - 1) :]
