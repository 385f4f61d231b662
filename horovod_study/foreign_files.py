"""Result logs of MLPerf Training, found and read; what they mean is worked out in `analysis.series.mlperf_logs`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from horovod_study.documents import read_bytes, read_json
from horovod_study.errors import DataError

_MAX_LOGS = 10_000


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
