"""The designs of single verbs: `explain --part sync --measure`, and the range test of a learning rate.

Arms of a runtime: the shipped settings, the libraries' defaults, and for Horovod two cycle times, one ten times the
other, with everything else alike. In these two the thread's idle sleep is off: with it new gradients end the sleep at
once, and the cycle would not count. Beside them one worker alone, which says what an efficiency of 1 is. They are cells
of a study in the folder of the experiment, and each measures its synchronisation when it has trained.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import Options, at_least, one_of
from horovod_study.config.options import BY_RUNTIME, SET_BY_ATTRIBUTION, SET_BY_RANGE_TEST, refuse_set, require_workers
from horovod_study.config.partitions import this_machine
from horovod_study.config.roles import Role, named, plain
from horovod_study.config.run import COMMUNICATION, Cell, available_cores, local_cell
from horovod_study.config.workload import packaged
from horovod_study.errors import StudyError, refuse
from horovod_study.records import RunRecord, read_steps, step_ranks
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.attempt import record_in
from horovod_study.studies.runner import RunOptions, run_all
from horovod_study.studies.study_file import StudyCells
from horovod_study.text.progress import say
from horovod_study.workload.options import STRAIN, StrainConfig, strain_config
from horovod_study.workload.schedule import lr_factor

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


class _RangeOptions(Options):
    runtime: Annotated[str, one_of(RUNTIMES)]


_ENDS = dict.fromkeys(("lr", "lr_end"), "use --low and --high")


def range_config(path: Path | None, given: Mapping[str, Any], *, low: float, high: float) -> StrainConfig:
    """Return the run of a range test from `low` to `high`: the options of a file, then those of the command line.

    Of a file for a long run its length, its rate and its schedule are left out; a length on the command line (steps or
    epochs) holds, else it is 1000 steps.
    """
    refuse_set("lr-range", given, SET_BY_RANGE_TEST, {**BY_RUNTIME, **_ENDS, "seconds": "use --steps or --epochs"})
    file = load_yaml(path) if path else {}
    kept = {name: value for name, value in file.items() if name not in (*STRAIN.budgets, *SET_BY_RANGE_TEST)}
    length = {} if {"steps", "epochs"} & set(given) else {"steps": 1000}
    values = {"study": "lr-range", **kept, **length, **given, **STRAIN.quiet}
    config = strain_config(values, source=str(path) if path else "lr-range")
    between = f"--low is {low:g} and --high is {high:g}; it must be 0 < low < high"
    few = f"--steps is {config.steps}; a range test needs at least 50"  # what the analysis can read
    short = config.steps is not None and config.steps < 50
    refuse("lr-range", (not 0 < low < high < math.inf, between), (short, few))
    return config.changed(schedule="range", lr=low, lr_end=high, warmup_steps=0)


def run_range(
    config: StrainConfig, out: Path, *, workers: int = 1, runtime: str | None = None, command: str = ""
) -> tuple[NDArray[np.float64], NDArray[np.float64], RunRecord]:
    """Train as `config` says below `out`; return rate and loss of every step, both (S,), and the run's record.

    The rate is the option `lr`, before it is scaled by the number of workers; the loss is the mean over the workers.
    A run that ended because its loss was no number any more is a result and not a failure. One that has ended is read
    again. StudyError: the run failed; `command` is what the user typed.
    """
    runtime = runtime or ("serial" if workers == 1 else "horovod/mpi")
    _RangeOptions.of("lr-range", {"runtime": runtime})
    require_workers("lr-range", workers, available_cores())
    one = f"--workers is {workers}, but --runtime serial has one worker; name another runtime"
    refuse("lr-range", (workers > 1 and runtime == "serial", one))
    cell = replace(local_cell(runtime, vars(config), workers=workers, source="lr-range"), label="range test")
    if (curve := _curve(out / cell.key)) is None:
        length = f"{config.steps} steps" if config.steps else f"{config.epochs} epochs"
        say(f"range test: {length} while the rate rises from {config.lr:g} to {config.lr_end:g}")
        here = {config.partition: this_machine(config.partition)}
        a_week = 7 * 86400.0  # whoever watches ends it before
        how: dict[str, Any] = {"part": True, "equal_steps": True, "timeout_s": a_week}
        sweep = StudyCells(name=out.name, directory=out, cells=(cell,), partitions=here, **how)
        try:
            run_all(sweep, RunOptions(command=command, smoke=False, yes=True))
        except StudyError:
            if _curve(out / cell.key) is None:
                raise
        curve = _curve(out / cell.key)
    assert curve is not None, "a run that is done has steps"
    steps, losses, record = curve
    total = config.steps or (config.epochs or 1) * int(record.effective["steps_per_epoch"])
    return np.array([config.lr * lr_factor(config, int(step), step / total) for step in steps]), losses, record


def _curve(run: Path) -> tuple[NDArray[Any], NDArray[np.float64], RunRecord] | None:
    """Return steps, losses and record of a run that is done or has diverged, None of any other."""
    if (record := record_in(run)) is None or record.status not in ("done", "failed"):
        return None
    tables = [read_steps(run, rank) for rank in step_ranks(run)]
    if not tables:
        return None
    rows = min(table.num_rows for table in tables)  # a rank that was ended first has fewer
    losses = np.array([table.column("loss").to_numpy()[:rows].astype(np.float64) for table in tables]).mean(axis=0)
    if record.status == "failed" and (not rows or np.isfinite(losses[-1])):
        return None
    return tables[0].column("step").to_numpy()[:rows], losses, record
