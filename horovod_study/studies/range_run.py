"""The run of a learning-rate range test: one training run during which the rate rises, started as a child process.

Below the folder DIR of the test: `config.yaml` is what was asked for, `run` the run directory, `output.log` what the
trainer printed.
"""

import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.config import available_cores, local_cell
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, RecordError, StudyError, require_known
from horovod_study.options import BY_RUNTIME, SET_BY_RANGE_TEST, refuse_set, require_workers
from horovod_study.progress import Line, say
from horovod_study.records import RunRecord, read_steps, step_ranks
from horovod_study.runtimes import RUNTIMES
from horovod_study.studies.attempt import CellRun, local_launch
from horovod_study.studies.engine import attempt, set_aside_unless_done, working_in
from horovod_study.workload.options import STRAIN, StrainConfig, strain_config
from horovod_study.workload.schedule import lr_factor

STEPS = 1000
_FEWEST_STEPS = 50  # what the analysis can read


def range_config(path: Path | None, given: Mapping[str, Any], *, low: float, high: float) -> StrainConfig:
    """Return the run of a range test from `low` to `high`: the options of a file, then those of the command line.

    Of a file for a long run its length, its rate and its schedule are left out; a length on the command line (steps or
    epochs) holds, else it is 1000 steps.
    """
    ends = dict.fromkeys(("lr", "lr_end"), "use --low and --high")
    refuse_set("lr-range", given, SET_BY_RANGE_TEST, {**BY_RUNTIME, **ends, "seconds": "use --steps or --epochs"})
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low < high):
        raise ConfigError(f"lr-range: --low is {low:g} and --high is {high:g}; it must be 0 < low < high")
    file = load_yaml(path) if path else {}
    kept = {name: value for name, value in file.items() if name not in (*SET_BY_RANGE_TEST, *STRAIN.budgets)}
    values = {
        "study": "lr-range",
        **kept,
        **({} if {"steps", "epochs"} & set(given) else {"steps": STEPS}),
        **given,
        **STRAIN.quiet,
    }
    config = strain_config(values, source=str(path) if path else "lr-range")
    config = config.changed(schedule="range", lr=low, lr_end=high, warmup_steps=0)
    if config.steps is not None and config.steps < _FEWEST_STEPS:
        raise ConfigError(f"lr-range: --steps is {config.steps}; a range test needs at least {_FEWEST_STEPS}")
    return config


def run_range(
    config: StrainConfig, out: Path, *, workers: int = 1, runtime: str | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], RunRecord]:
    """Train as `config` says below `out`; return rate and loss of every step, both (S,), and the run's record.

    The rate is the option `lr`, before it is scaled by the number of workers; the loss is the mean over the workers.
    A run that ended because its loss was no number any more is a result and not a failure.
    """
    runtime = runtime or ("serial" if workers == 1 else "horovod/mpi")
    require_known("lr-range: --runtime", runtime, RUNTIMES)
    if workers < 1 or (workers > 1 and runtime == "serial"):
        raise ConfigError(
            f"lr-range: --workers is {workers} and --runtime {runtime}; serial has one worker, the others at least one"
        )
    cell = local_cell(runtime, config.to_dict(), workers=workers, source="lr-range")
    require_workers("lr-range", workers, available_cores())
    run = out / "run"
    length = f"{config.steps} steps" if config.steps else f"{config.epochs} epochs"
    with working_in(out, "range test") as stop:
        if set_aside_unless_done(run):
            raise RecordError(
                f"{run}: already holds a run; nothing was overwritten, choose another --out or move it away"
            )
        say(f"range test: {length} while the rate rises from {config.lr:g} to {config.lr_end:g}; records in {out}")
        config_path, log = out / "config.yaml", out / "output.log"
        with closing(Line()) as line:
            how: dict[str, Any] = {"watch": lambda running: line.now_and_then(running.last_line() or "  starting")}
            ended = attempt(CellRun(cell=cell, out=run, config=config_path, log=log, launch=local_launch, **how), stop)
    if ended.record is None or not step_ranks(run):
        raise StudyError(f"the range test failed: {ended.reason}; see {ended.log}")
    record = ended.record
    tables = [read_steps(run, rank) for rank in step_ranks(run)]
    rows = min(table.num_rows for table in tables)  # a rank that was ended first has fewer
    losses = np.mean([table.column("loss").to_numpy()[:rows].astype(np.float64) for table in tables], axis=0)
    if not ended.done and (not rows or np.isfinite(losses[-1])):
        raise StudyError(f"the range test failed: {ended.reason}; see {ended.log}")
    total = config.steps or (config.epochs or 1) * int(record.effective["steps_per_epoch"])
    steps = tables[0].column("step").to_numpy()[:rows]
    rates = np.array([config.lr * lr_factor(config, int(step), step / total) for step in steps])
    return rates, losses, record
