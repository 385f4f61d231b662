"""Files that other programs wrote, found and read: which belong together, and their text.

What they mean is worked out in analysis/: result logs of MLPerf Training in `series.mlperf_logs`, traces of
torch.profiler in `steps.rank_traces`, records of NCCL Inspector in `steps.nccl_inspector`.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from horovod_study.documents import MAX_JSON_BYTES, open_file, parse_json, read_bytes, read_json
from horovod_study.errors import DataError

_MAX_LOGS = 10_000
_TRACES = (".json", ".json.gz")


def mlperf_logs(folder: Path) -> Iterator[tuple[str, list[str], Mapping[str, Any]]]:
    """Yield path below `folder`, lines and system description (empty where there is none) of each MLPerf result log.

    Logs are result_*.txt at any depth; of .../ORG/results/SYSTEM/BENCHMARK/result_0.txt the system is described in
    .../ORG/systems/SYSTEM.json. The path begins with ORG, also where `folder` is one of the folders below it. Raises
    DataError where there is no log, or too many.
    """
    paths = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        paths += [Path(root, name) for name in sorted(names) if name.startswith("result_") and name.endswith(".txt")]
        if len(paths) > _MAX_LOGS:
            raise DataError(f"{folder}: holds more than {_MAX_LOGS:,} result logs; name a folder with fewer")
    if not paths:
        raise DataError(
            f"{folder}: is a folder without runs and without result_*.txt, as MLPerf logs are; name one or a file"
        )
    again = "leave it out of the folder"
    for path in paths:
        parts = path.absolute().parts
        at = max((place for place, name in enumerate(parts) if name == "results"), default=None)
        begin = len(folder.absolute().parts) if at is None else min(len(folder.absolute().parts), at - 1)
        described: Mapping[str, Any] = {}
        if at is not None and at + 2 < len(parts):
            system = Path(*parts[:at], "systems", f"{parts[at + 1]}.json")
            if system.is_file():
                described = read_json(system, dict[str, Any], error=DataError, again=again)
        text = read_bytes(path, error=DataError, again=again).decode("utf-8", errors="replace")
        yield "/".join(parts[begin:]), text.splitlines(), described


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
