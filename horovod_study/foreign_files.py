"""Logs of trainings, found and read; what they mean is worked out in `analysis.importers`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.documents import read_bytes, read_json
from horovod_study.errors import DataError

_MAX_LOGS = 10_000


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
