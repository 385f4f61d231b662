"""Records and step rows of runs that never ran."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod_study import records
from horovod_study.cluster import alive

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


def write_command_run(
    directory: Path, *, workers: int, wall_s: float, repeat: int = 0, said: float | None = None, **told: Any
) -> None:
    """Write the run of a command in which no step was seen; `said`: the rate that its output says."""
    rate = 1 / wall_s if said is None else said
    begun = record(
        **told,
        repeat=repeat,
        pid=1,
        requested={"typed": ["horovod-study", "record", "--", "./train.sh"], "declared": "command", "batch": 1},
        effective={
            "measured": "command",
            "workers": workers,
            "nodes": 1,
            "backend": "serial" if workers == 1 else "command",
            "transport": "none",
            "model": "train",
            "batch": None,
            "ranks": [],
        },
        environment={"command": ["./train.sh"], "cores": 8},
    )
    records.create_run(directory, begun)
    records.finish_run(
        directory,
        begun,
        status="done",
        finished=FINISHED,
        totals={
            "wall_s": wall_s,
            "cpu_s": 0.9 * workers * wall_s,
            "window_s": wall_s,
            "steps": 0,
            "samples_per_s": rate,
            "rate_from": "whole command: 1 / seconds" if said is None else f"{said:g} images/sec",
            "system": None,
            "energy": None,
        },
    )
