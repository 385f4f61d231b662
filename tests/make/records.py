"""Records and step rows of runs that never ran."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod_study import alive, records

STARTED = "2026-01-01T00:00:00+00:00"
FINISHED = "2026-01-01T00:01:00+00:00"


def record(**changes: Any) -> records.RunRecord:
    """Return the record of a run that this process has begun, but for `changes`.

    With another host or process number it says no more of the process, as records of older programs do.
    """
    values: dict[str, Any] = {
        "study": "s",
        "key": "k",
        "repeat": 0,
        "partition": "local",
        "status": "running",
        "started": STARTED,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "requested": {},
        "effective": {},
        "environment": {},
    }
    if not {"pid", "host"} & changes.keys():
        values["process"] = alive.identity()
    return records.RunRecord(**{**values, **changes})


def write_rows(directory: Path, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the step rows of each rank: {rank: {column: values}}."""
    for rank, columns in rows.items():
        writer = records.StepWriter(directory, rank)
        writer.append(columns)
        writer.close()
