"""Launch lines from the values that tests give by name."""

from typing import Any

from horovod_study.cluster import launch
from horovod_study.cluster.launch import LaunchLine, Starting


def launch_line(cell: Any, *, config: Any, out: Any, resume: bool = False, **start: Any) -> LaunchLine:
    return launch.launch_line(cell, Starting(**start), config=config, out=out, resume=resume)


def program_line(*program: Any, out: Any, starts_ranks: bool = False, **start: Any) -> LaunchLine:
    return launch.program_line(*program, Starting(**start), out=out, starts_ranks=starts_ranks)
