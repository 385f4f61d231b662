"""The design of `explain --part sync --measure`: arms with --measure-sync in turns, again and again.

Arms of a runtime: the shipped settings, the libraries' defaults, and for Horovod two cycle times, one ten times the
other, with everything else alike. In these two the thread's idle sleep is off: with it new gradients end the sleep at
once, and the cycle would not count. Beside them one worker alone, which says what an efficiency of 1 is.

They are cells of a study in the folder of the experiment: each measures what its synchronisation is made of when it has
trained, while the others wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from horovod_study.config.doors import Options, at_least, one_of
from horovod_study.config.options import BY_RUNTIME, SET_BY_ATTRIBUTION, refuse_set, require_workers
from horovod_study.config.partitions import this_machine
from horovod_study.config.roles import Role, named, plain
from horovod_study.config.run import COMMUNICATION, Cell, available_cores, local_cell
from horovod_study.config.workload import packaged
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.runner import RunOptions, run_all
from horovod_study.studies.sweep import StudyCells

DEFAULT_RUNTIMES = ("horovod/mpi", "horovod/gloo", "mpi/mpi")
STEPS = 1000
ROUNDS = 5
_LEAST_STEPS = 5
"""Steps of a slice: the first one, which workers do not begin together, says nothing of their synchronisation."""


class _ArmOptions(Options):
    runtime: list[Annotated[str, one_of(name for name in RUNTIMES if name != "serial")]]
    rounds: Annotated[int, at_least(1)]


def arms_of(runtime: str) -> list[dict[str, Any]]:
    """Return what the arms of a runtime set, beside the options of all."""
    defaults = [{"horovod_defaults": True}] if packaged().options["horovod_defaults"].matters(runtime) else []
    cycles_ms = (1.0, 10.0) if runtime.startswith("horovod/") else ()  # Horovod's default, and ten times that
    return [{}, *defaults, *({"cycle_time_ms": each, "idle_cycle_time_ms": 0.0} for each in cycles_ms)]


def cells_of(
    given: Mapping[str, Any], name: str, *, runtimes: Sequence[str], workers: int, rounds: int, cores: int
) -> list[Cell]:
    """Return the cells of the experiment: the worker alone, then arm by arm, `rounds` of each.

    `given`: the run options of the command line. Raises ConfigError for what cannot be run.
    """
    options = packaged().options
    budgets = dict.fromkeys(named(options, Role.BUDGET), "use --steps")
    refuse_set("explain --measure", given, SET_BY_ATTRIBUTION, {**budgets, **BY_RUNTIME})
    _ArmOptions.of("explain --measure", {"runtime": list(runtimes), "rounds": rounds})
    require_workers("explain --measure", workers, cores, least=2)
    values = {"steps": STEPS, **given, **packaged().quiet, "study": name, "measure_sync": True}
    # Alone, what says how workers communicate means nothing, and would be refused.
    means_nothing = {each: options[each].default for each in COMMUNICATION}
    arms = [("serial", 1, means_nothing, "1 worker alone")]
    for runtime in dict.fromkeys(runtimes):
        for arm in arms_of(runtime):
            told = ", ".join(f"{each} {plain(value)}" for each, value in arm.items())
            arms.append((runtime, workers, arm, f"{runtime}, {told or 'shipped settings'}"))
    cells = []
    for runtime, count, arm, label in arms:
        cell = local_cell(runtime, {**values, **arm}, workers=count, source="explain --measure")
        cells += [replace(cell, label=label).repeated(number) for number in range(rounds)]
    return cells


def run_experiment(
    given: Mapping[str, Any],
    out: Path,
    *,
    runtimes: Sequence[str] = DEFAULT_RUNTIMES,
    workers: int | None = None,
    rounds: int | None = None,
    turns: bool = True,
    command: str = "",
) -> list[Path]:
    """Run what is missing of the experiment in the folder `out`; return its run directories, arm by arm.

    Raises StudyError with the reason of a run that fails, and KeyboardInterrupt after Ctrl-C.
    """
    cores, rounds = available_cores(), ROUNDS if rounds is None else rounds
    how: dict[str, Any] = {"runtimes": runtimes, "workers": workers or cores, "rounds": rounds, "cores": cores}
    cells = tuple(cells_of(given, out.name, **how))
    of_turns: dict[str, Any] = {"turns": turns, "equal_steps": True, "least_steps": _LEAST_STEPS}
    of_turns["partitions"] = {"local": this_machine("local")}
    sweep = StudyCells(name=out.name, directory=out, cells=cells, **of_turns)
    return run_all(sweep, RunOptions(command=command, smoke=False, yes=True))
