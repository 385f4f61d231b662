"""The experiment of `horovod-study explain --measure`: runs with --measure-sync, arms in turn within each round.

Arms of a runtime: the shipped settings, the libraries' defaults, and for Horovod two cycle times, one ten times the
other, with everything else alike. In these two the thread's idle sleep is off: with it new gradients end the sleep at
once, and the cycle would not count. Beside them one worker alone, which says what an efficiency of 1 is.

Below the folder of the experiment: `runs/ROUND-ARM` are run directories, `logs` holds what the trainers printed,
`cells` their configurations. What is done is not run again, so that an interrupted experiment goes on.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from horovod_study.cluster.process import GRACE_S
from horovod_study.config import COMMUNICATION, Cell, available_cores, local_cell
from horovod_study.errors import ConfigError, RecordError, StudyError, require_known
from horovod_study.measure.clock import now
from horovod_study.options import BY_RUNTIME, SET_BY_ATTRIBUTION, refuse_set, require_workers
from horovod_study.progress import Line, say
from horovod_study.records import MANIFEST, read_run
from horovod_study.roles import Role, named
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.attempt import Attempt, CellRun, Launcher, local_launch
from horovod_study.studies.engine import Lane, set_aside_unless_done, sweep, working_in
from horovod_study.studies.interruption import Interruption
from horovod_study.workloads import Configuration, packaged

OPTIONS, QUIET = packaged().options, packaged().quiet

DEFAULT_RUNTIMES = ("horovod/mpi", "horovod/gloo", "mpi/mpi")
STEPS = 1000
ROUNDS = 5
CYCLE_MS = (1.0, 10.0)
"""The two cycle times of the experiment: Horovod's default, and ten times that."""

_TIMEOUT_S = 900.0


def arms_of(runtime: str) -> list[dict[str, Any]]:
    """Return what the arms of a runtime set, beside the options of all."""
    arms: list[dict[str, Any]] = [{}]
    if OPTIONS["horovod_defaults"].matters(runtime):
        arms.append({"horovod_defaults": True})
    if runtime.startswith("horovod/"):
        arms += [{"cycle_time_ms": cycle_ms, "idle_cycle_time_ms": 0.0} for cycle_ms in CYCLE_MS]
    return arms


def plan(
    given: Mapping[str, Any], *, runtimes: Sequence[str], workers: int, rounds: int, cores: int
) -> list[list[tuple[str, Cell]]]:
    """Return the rounds of the experiment: for each its cells with their names, in a random but fixed order.

    `given`: the run options of the command line. Raises ConfigError for what cannot be run.
    """
    budgets = dict.fromkeys(named(OPTIONS, Role.BUDGET), "use --steps")
    refuse_set("explain --measure", given, SET_BY_ATTRIBUTION, {**budgets, **BY_RUNTIME})
    for runtime in runtimes:
        require_known("explain --measure: --runtime", runtime, [name for name in RUNTIMES if name != "serial"])
    require_workers("explain --measure", workers, cores, least=2)
    if rounds < 1:
        raise ConfigError(f"explain --measure: --rounds is {rounds}; it must be at least 1")
    base = packaged().configure(
        {
            **({} if "steps" in given else {"steps": STEPS}),
            **given,
            **QUIET,
            "study": "attribution",
            "measure_sync": True,
        },
        source="explain --measure",
    )
    cells = [("one-worker", _cell(base, "serial", 1, {}))]
    for runtime in dict.fromkeys(runtimes):
        for arm in arms_of(runtime):
            words = ["defaults" if name == "horovod_defaults" else f"{name}-{v:g}" for name, v in arm.items()]
            name = re.sub(r"[^a-z0-9.]+", "-", "-".join([runtime, *(words or ["shipped"])]))
            cells.append((name, _cell(base, runtime, workers, arm)))
    dice = random.Random(base.seed)
    return [
        [
            (f"{number}-{name}", replace(cell, config=cell.config.changed(repeat=number)))
            for name, cell in dice.sample(cells, len(cells))
        ]
        for number in range(rounds)
    ]


def _cell(base: Configuration, runtime: str, workers: int, arm: Mapping[str, Any]) -> Cell:
    if runtime == "serial":  # alone, what says how workers communicate means nothing, and would be refused
        arm = {name: OPTIONS[name].default for name in COMMUNICATION}
    return local_cell(runtime, {**base.to_dict(), **arm}, workers=workers, source="explain --measure")


def run_experiment(
    given: Mapping[str, Any],
    out: Path,
    *,
    runtimes: Sequence[str] = DEFAULT_RUNTIMES,
    workers: int | None = None,
    rounds: int = ROUNDS,
    cores: int | None = None,
    launch: Launcher = local_launch,
    grace_s: float = GRACE_S,
) -> list[Path]:
    """Run the experiment below `out` and return its run directories: the worker alone, then arm by arm.

    Raises StudyError with the reason of a run that fails, and KeyboardInterrupt after Ctrl-C; no process is left.
    """
    cores = available_cores() if cores is None else cores
    order = plan(given, runtimes=runtimes, workers=workers or cores, rounds=rounds, cores=cores)
    cells = [each for turn in order for each in turn]
    say(f"attribution: {len(cells)} runs of {cells[0][1].config.steps} steps, {rounds} rounds; records in {out}")
    with working_in(out, "attribution", grace_s=grace_s) as stop:
        sweep([_lane(cells, out, launch, grace_s, stop)], stop)
        if stop.requested:
            raise KeyboardInterrupt
    in_order = sorted(
        cells,
        key=lambda each: (
            -1 if each[1].runtime == "serial" else list(runtimes).index(each[1].runtime),
            *(value or 0.0 for name, value in each[1].config.to_dict().items() if OPTIONS[name].attributed),
            each[1].config.repeat,
        ),
    )
    return [out / "runs" / name for name, _ in in_order]


def _lane(cells: Sequence[tuple[str, Cell]], out: Path, launch: Launcher, grace_s: float, stop: Interruption) -> Lane:
    line, began, ran = Line(), now(), 0
    for place, (name, cell) in enumerate(cells):
        directory = out / "runs" / name
        _require_same(directory, cell)
        if set_aside_unless_done(directory):
            continue
        left = f", about {(now() - began) / ran * (len(cells) - place) / 60:.0f} min left" if ran else ""
        line.show(f"  {place + 1} of {len(cells)}: {name}{left}")
        try:
            attempt: Attempt = yield CellRun(
                cell=cell,
                out=directory,
                config=out / "cells" / f"{name}.yaml",
                log=out / "logs" / f"{name}.log",
                launch=launch,
                timeout_s=_TIMEOUT_S,
                grace_s=grace_s,
            )
        finally:
            line.close()
        if stop.requested:
            return
        if not attempt.done:
            raise StudyError(f"{name} failed: {attempt.reason}; see {attempt.log}")
        ran += 1


def _require_same(directory: Path, cell: Cell) -> None:
    """Raise RecordError when a run directory holds another run than that of `cell`."""
    if not (directory / MANIFEST).exists():
        return
    requested = read_run(directory).requested
    wanted = {**cell.config.to_dict(), "workers": cell.placement.workers}
    if other := next((name for name, value in wanted.items() if requested.get(name) != value), ""):
        raise RecordError(
            f"{directory}: was run with another {other.replace('_', ' ')}; choose another --out, or move it away"
        )
