"""`horovod-study bench timers`: one launch of ranks after the other, each with the timer modes alternating in it."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.config import available_cores
from horovod_study.errors import ConfigError, require_known
from horovod_study.options import require_workers
from horovod_study.programs.answer import ROWS
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.ranks import run_planned
from horovod_study.text.words import plural
from horovod_study.workload.options import StrainConfig, strain_config

RANK_PROGRAM = "horovod_study.programs.timers"
_SILENT_PROFILER = {"KINETO_LOG_LEVEL": "99"}
"""torch.profiler says at every start and stop that it starts and stops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimersRequest:
    """What is to be measured: each number of workers at each batch size. One worker trains without a library."""

    dataset: Path
    batches: Sequence[int]
    workers: Sequence[int]
    over: str  # the runtime of several workers
    options: Mapping[str, Any]  # of the runs: widths, device, threads, ...
    seconds: float
    rounds: int | None = None
    steps_per_block: int | None = None
    beside: bool = False
    seed: int = 1

    def plan(self) -> dict[str, Any]:
        """Return the fields of programs.timers.TimerPlan."""
        names = ("seconds", "rounds", "steps_per_block", "beside", "seed")
        return {"dataset": str(self.dataset.absolute()), **{name: getattr(self, name) for name in names}}

    def configs(self) -> list[tuple[str, int, StrainConfig]]:
        """Return runtime, workers and configuration of each launch; ConfigError for what cannot be measured here."""
        cores = available_cores()
        for count in self.workers:
            require_workers("bench timers", count, cores)
        require_known("bench timers: --over", self.over, [name for name in RUNTIMES if name != "serial"])
        found = []
        for count in self.workers:
            runtime = self.over if count > 1 else "serial"
            backend, _, transport = runtime.partition("/")
            for batch in self.batches:
                values = {**self.options, "backend": backend, "transport": transport or "auto", "batch": batch}
                found.append((runtime, count, strain_config(values, source="bench timers")))
        return found


def measure_timers(
    request: TimersRequest, out: Path, *, on_progress: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Return what `programs.timers.measure` found in each launch, with its `runtime`.

    What the ranks print is kept below `out`. Raises ConfigError for what cannot be measured here, before anything is
    started.
    """
    from horovod_study.comm import detect  # loads PyTorch

    launch = detect(os.environ)
    if launch.workers > 1:
        raise ConfigError(
            f"bench timers: {launch.named} started {launch.workers} ranks of it, but it starts its own; start it "
            "alone, with --workers"
        )
    found = []
    for runtime, count, config in request.configs():
        name = f"{count}w-b{config.batch}"
        folder = out / "jobs" / name
        shutil.rmtree(folder / ROWS, ignore_errors=True)
        text = f"batch {config.batch}, {plural(count, 'worker')}"
        answered = run_planned(
            RANK_PROGRAM,
            runtime,
            count,
            folder,
            {"plan": request.plan(), "config": config.to_dict()},
            threads=config.threads,
            variables=_SILENT_PROFILER,
            on_progress=lambda last, text=text: on_progress(f"{text}: {last}"),  # type: ignore[misc]
        )
        shutil.rmtree(folder / ROWS, ignore_errors=True)  # they were written to see what that takes
        found.append({"runtime": runtime, **answered})
    return found
