"""`horovod-study bench timers`: one launch of ranks after the other, each with the timer modes taking turns in it."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.config import RUNTIMES, available_cores, run_config
from horovod_study.errors import ConfigError, RecordError, nearest
from horovod_study.files import not_written, write_file
from horovod_study.programs.answer import ROWS
from horovod_study.studies.attempt import ProgramRun
from horovod_study.studies.ranks import run_ranks

RANK_PROGRAM = "horovod_study.programs.timers"
_SILENT_PROFILER = {"KINETO_LOG_LEVEL": "99"}
"""torch.profiler says at every start and stop that it starts and stops."""


def measure_timers(
    *,
    dataset: Path,
    batches: Sequence[int],
    workers: Sequence[int],
    over: str,
    widths: str,
    device: str,
    threads: int,
    seconds: float,
    rounds: int | None,
    steps_per_block: int | None,
    beside: bool,
    seed: int,
    out: Path,
    tell: Callable[[str], None],
    computing: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return what `measure.timers.measure` found for each number of workers at each batch size, with its `runtime`.

    `computing`: further options of a run, such as {"cuda_graphs": True}.
    One worker trains without a communication library, several over the runtime `over`. What the ranks print is kept
    below `out`. Raises ConfigError for what cannot be measured here, before anything is started.
    """
    from horovod_study.comm import detect  # loads PyTorch

    launch = detect(os.environ)
    if launch.workers > 1:
        raise ConfigError(
            f"bench timers: {launch.launcher} started {launch.workers} ranks of it, but it starts its own; start it "
            "alone, with --workers"
        )
    cores = available_cores()
    for count in workers:
        if not 1 <= count <= cores:
            raise ConfigError(
                f"bench timers: --workers {count} on {cores} core{'s' * (cores > 1)} would measure how cores are "
                f"shared; use 1 to {cores}"
            )
    if over not in RUNTIMES or over == "serial":
        raise ConfigError(
            f"bench timers: --over {over!r} is not known{nearest(over, RUNTIMES)}; allowed: "
            f"{', '.join(name for name in RUNTIMES if name != 'serial')}"
        )
    plan = {
        "dataset": str(dataset.absolute()),
        "seconds": seconds,
        "rounds": rounds,
        "steps_per_block": steps_per_block,
        "beside": beside,
        "seed": seed,
    }
    jobs = []
    for count in workers:
        runtime = over if count > 1 else "serial"
        backend, _, transport = runtime.partition("/")
        for batch in batches:
            values = {"backend": backend, "transport": transport or "auto", "batch": batch, "widths": widths}
            values |= {"device": device, "threads": threads, **(computing or {})}
            config = run_config(values, source="bench timers")
            jobs.append((runtime, count, config))
    found = []
    for runtime, count, config in jobs:
        name = f"{count}w-b{config.batch}"
        folder = out / "jobs" / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / ROWS, ignore_errors=True)
            write_file(folder / "plan.json", json.dumps({"plan": plan, "config": config.to_dict()}, indent=1))
        except OSError as error:
            raise RecordError(not_written(folder, error, "choose a writable --out")) from None
        text = f"batch {config.batch}, {count} worker{'s' * (count > 1)}"
        answered = run_ranks(
            ProgramRun(
                runtime=runtime,
                workers=count,
                module=RANK_PROGRAM,
                arguments=(str((folder / "plan.json").absolute()),),
                out=folder,
                log=folder / "output.log",
                environment={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)), **_SILENT_PROFILER},
                timeout_s=600.0 + 10 * seconds,
            ),
            on_progress=lambda last, text=text: tell(f"{text}: {last}"),  # type: ignore[misc]
        )
        shutil.rmtree(folder / ROWS, ignore_errors=True)  # they were written to see what that takes
        found.append({"runtime": runtime, **answered})
    return found
