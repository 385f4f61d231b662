"""Files that other programs wrote, found and read: which belong together, and their text.

What they mean is worked out in analysis/: logs of trainings in `series.logs`, traces of
torch.profiler in `steps.rank_traces`, records of NCCL Inspector in `steps.nccl_inspector`.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.documents import MAX_JSON_BYTES, open_file, parse_json, read_bytes, read_json
from horovod_study.errors import DataError

_MAX_LOGS = 10_000
_TRACES = (".json", ".json.gz")


def logs(place: Path) -> Iterator[tuple[str, bytes, Mapping[str, Any], Sequence[str]]]:
    """Yield name, content, system description (empty where there is none) and names of each log that a place holds.

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
    results = [path for path in paths if path.name.startswith("result_") and path.name.endswith(".txt")]
    if not paths:
        raise DataError(
            f"{place}: is a folder without runs and without logs of trainings (*.log, *.txt, *.out; of MLPerf "
            "result_*.txt); name one or a file"
        )
    again = "leave it out of the folder" if place.is_dir() else "name a CSV file with workers,samples_per_s"
    for path in results or paths:
        parts = path.absolute().parts
        at = max((index for index, name in enumerate(parts) if name == "results"), default=None)
        length = len(place.absolute().parts)
        described: Mapping[str, Any] = {}
        if at is not None and at + 2 < len(parts):
            system = Path(*parts[:at], "systems", f"{parts[at + 1]}.json")
            if system.is_file():
                described = read_json(system, dict[str, Any], error=DataError, again=again)
        name = str(path) if path == place else "/".join(parts[length if at is None else min(length, at - 1) :])
        yield name, read_bytes(path, error=DataError, again=again), described, parts[min(length, len(parts) - 1) :]


def trace_paths(place: Path) -> list[Path]:
    """Return the traces that a place names: itself, or the files *.json and *.json.gz in a folder that begin as one.

    Empty for anything else: a study file, a run directory, a folder of them with a ledger beside them.
    """
    if place.is_dir():
        marks = (b'"traceEvents"', b'"schemaVersion"')
        return sorted(path for path in place.iterdir() if path.name.endswith(_TRACES) and _begins_with(path, *marks))
    return [place] if place.name.endswith(_TRACES) else []


def inspector_paths(place: Path) -> list[Path]:
    """Return the files of NCCL Inspector that a place names: itself, or those in a folder; empty for anything else.

    They are told by their first record; a process without one leaves an empty file HOST-pidNUMBER.log.
    """
    named = [place] if not place.is_dir() else sorted(place.iterdir())
    marks = (b'"inspector_output_format_version"', b'"coll_perf"', b'"p2p_perf"')
    return [
        path
        for path in named
        if path.name.endswith((".log", ".jsonl", ".log.gz", ".jsonl.gz"))
        and path.is_file()
        and (_begins_with(path, *marks) or (re.search(r"-pid\d+\.", path.name) and path.stat().st_size == 0))
    ]


def inspector_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of such a file, also of a compressed one, one after the other; DataError where it is unreadable.

    Where a compressed file breaks off, an open bracket stands for the incomplete line.
    """
    try:
        with open_file(path) as stream:
            lines = gzip.GzipFile(fileobj=stream) if path.name.endswith(".gz") else stream
            while line := lines.readline(4_000_000):  # a record with all its events has some kB
                yield line
    except EOFError:
        yield b"{"
    except (OSError, zlib.error) as problem:
        raise DataError(f"{path}: cannot be read ({problem}); name a file that NCCL Inspector wrote") from None


def _begins_with(path: Path, *marks: bytes) -> bool:
    """Return whether one of the marks is in the first bytes of a file, unpacked."""
    try:
        with open_file(path) as stream:
            head = (gzip.GzipFile(fileobj=stream) if path.name.endswith(".gz") else stream).read(4096)
    except (OSError, EOFError, zlib.error):
        return False
    return any(mark in head for mark in marks)


def read_trace(path: Path) -> dict[str, Any]:
    """Return the document of a trace, also of a compressed one; DataError where it is none, or too large."""
    again = "name a trace that torch.profiler exported; profile fewer steps where it is too large"
    content = read_bytes(path, error=DataError, again=again)
    if path.name.endswith(".gz"):
        try:
            with open_file(path) as stream, gzip.GzipFile(fileobj=stream) as unpacked:
                content = unpacked.read(MAX_JSON_BYTES + 1)
        except (OSError, EOFError, zlib.error) as problem:
            raise DataError(f"{path}: cannot be unpacked ({problem}); {again}") from None
        if len(content) > MAX_JSON_BYTES:
            raise DataError(f"{path}: holds more than {MAX_JSON_BYTES:,} bytes; {again}")
    found = parse_json(content, source=str(path), error=DataError, again=again)
    if not isinstance(found, dict):
        raise DataError(f"{path}: holds no object; {again}")
    return found
