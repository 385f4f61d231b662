"""`horovod-study bench timers`: one launch of ranks after the other, each with the timer modes alternating in it."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod_study.config import available_cores
from horovod_study.errors import ConfigError, require_known, require_within
from horovod_study.options import require_workers
from horovod_study.programs.answer import ROWS
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.ranks import run_ranks
from horovod_study.text.words import plural
from horovod_study.workload.options import strain_config


def measure_timers(
    out: Path,
    plan: Mapping[str, Any],
    *,
    batches: Sequence[int],
    workers: Sequence[int],
    over: str,
    options: Mapping[str, Any],
    on_progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return what `programs.timers.measure` found in each launch, with its `runtime`.

    There is one for each number of workers and each batch size; one worker trains without a library, several over the
    runtime `over`. `plan`: see there; `options`: of the runs, such as widths and device. What the ranks print is kept
    below `out`. Raises ConfigError for what cannot be measured here, before anything is started.
    """
    from horovod_study.comm import detect  # loads PyTorch

    launch = detect(os.environ)
    if launch.workers > 1:
        raise ConfigError(
            f"bench timers: {launch.named} started {launch.workers} ranks of it, but it starts its own; start it "
            "alone, with --workers"
        )
    for name, low, high in (("rounds", 3, 20_000), ("steps_per_block", 1, 20_000), ("seconds", 1e-3, 1e6)):
        if plan.get(name) is not None:
            require_within(f"bench timers: --{name.replace('_', '-')}", plan[name], low, high)
    require_known("bench timers: --over", over, [name for name in RUNTIMES if name != "serial"])
    for count in workers:
        require_workers("bench timers", count, available_cores())
    launches = []
    for count in workers:
        backend, _, transport = (runtime := over if count > 1 else "serial").partition("/")
        for batch in batches:
            values = {**options, "backend": backend, "transport": transport or "auto", "batch": batch}
            launches.append((runtime, count, strain_config(values, source="bench timers")))
    found = []
    for runtime, count, config in launches:
        folder = out / "jobs" / f"{count}w-b{config.batch}"
        shutil.rmtree(folder / ROWS, ignore_errors=True)
        told = f"batch {config.batch}, {plural(count, 'worker')}: {{}}".format
        variables = {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(config.threads)),
            "KINETO_LOG_LEVEL": "99",  # else torch.profiler says that it starts and stops
        }
        answered = run_ranks(
            "horovod_study.programs.timers",
            runtime,
            count,
            folder,
            {"plan": plan, "config": config.to_dict()},
            timeout_s=600.0 + 10 * plan["seconds"],
            variables=variables,
            on_progress=lambda last, told=told: on_progress(told(last)),  # type: ignore[misc]
        )
        shutil.rmtree(folder / ROWS, ignore_errors=True)  # they were written to see what that takes
        found.append({"runtime": runtime, **answered})
    return found
