"""Horovod's own timeline of some steps after the timed window.

Horovod writes it from a thread of rank 0 that never sleeps, from the moment it is told at its start that there may be a
timeline. So that no timed step knows of it, Horovod is not told: it is stopped after the timed window and started once
more. What follows are scratch steps, the first of them before the recording, because they negotiate again. Nothing is
to be measured after it: the thread stays until the end.
"""

import shlex
import statistics
from pathlib import Path

from horovod_study import records
from horovod_study.comm.base import fail_together
from horovod_study.comm.horovod import HorovodBackend
from horovod_study.errors import RecordError
from horovod_study.files import writing
from horovod_study.measure.clock import open_clock
from horovod_study.text.numbers import amount
from horovod_study.workload.probes.scratch import Scratch

_LIMIT_BYTES = 64_000_000
"""Recording ends early when the file has so many bytes."""


def record(scratch: Scratch, *, steps: int, directory: Path, timed_step_s: float) -> list[str]:
    """Write the timeline of `steps` scratch steps into the run directory; return what there is to say. Collective.

    `timed_step_s` is the median timed step of this rank. Raises RecordError, on all ranks, if Horovod wrote no file.
    """
    backend = scratch.backend
    assert isinstance(backend, HorovodBackend)
    path = directory.absolute() / records.TIMELINE
    writes = backend.rank == 0
    ended_at: list[int] = []

    def watch_size(step: int) -> None:
        if writes and not ended_at and path.exists() and path.stat().st_size > _LIMIT_BYTES:
            backend.stop_timeline()
            ended_at.append(step)

    with fail_together(backend):
        if writes:  # that of an earlier attempt would be taken for this one's
            with writing(path, "move it away"):
                path.unlink(missing_ok=True)
    with scratch.kept():
        backend.restart_with_timeline()
        clock = open_clock("light", scratch.device)
        scratch.timed(10, clock)  # Horovod remembers what it negotiated
        backend.barrier()
        if writes:
            backend.start_timeline(path)
        backend.barrier()
        step_s = statistics.median(scratch.timed(steps, clock, watch_size)["step_s"].tolist())
        if writes and not ended_at:
            backend.stop_timeline()
    with fail_together(backend):
        if writes and not path.exists():
            raise RecordError(f"{path}: Horovod wrote no timeline; make the run directory writable for rank 0")
    everybody = backend.gather((step_s, timed_step_s))
    slow_s, timed_s = max(everybody)
    size = path.stat().st_size if writes else 0
    made = ended_at[0] if ended_at else steps
    return [
        f"timeline: {made} scratch steps after the timed window, {slow_s * 1e3:.2f} ms (median of the slowest rank), "
        f"{slow_s / timed_s:.2f} times the {timed_s * 1e3:.2f} ms of timed ones; these steps are not the timed ones",
        *([f"warning: the timeline ends after {made} of {steps} steps, at {amount(_LIMIT_BYTES)}"] if ended_at else []),
        f"  wrote {path} ({amount(size)}); read it with horovod-study explain --part timeline "
        f"{shlex.quote(str(directory))}",
    ]
