"""What `--resume` may do: continue the run that was recorded, and no other one.

A resumed run takes its configuration from run.json. Options given beside it must agree with that, or extend the budget.
Nothing here needs PyTorch.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.errors import BackendError, ConfigError, RecordError
from horovod_study.strain.options import STRAIN, StrainConfig, strain_config


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumption:
    """A run that can be continued, as the attempt before left it, and the configuration to continue it with."""

    directory: Path
    record: records.RunRecord
    config: StrainConfig
    finished: str  # why nothing is left to do; "" when there is


def plan_resume(directory: Path, given: Mapping[str, Any], *, workers: int) -> Resumption:
    """Return how to continue the run in `directory` with the options `given` and `workers` processes.

    Raises RecordError when the run still runs or cannot be read, ConfigError when it would become another run.
    """
    record = records.read_run(directory)
    _require_ended(directory, record)
    before = record.effective.get("workers", record.requested.get("workers"))
    if before != workers:
        what = f"the run has {before} workers, this launch has {workers}: its global batches would be other ones"
        again = f"start {before} workers, or a new run with another --out"
        raise ConfigError(f"{directory}: {what}, and it would not be the same run; {again}")
    recorded = strain_config(
        {name: value for name, value in record.requested.items() if name in STRAIN.options},
        source=str(directory / records.MANIFEST),
    )
    budget = _budget(recorded)
    asked = {name: value for name, value in given.items() if name not in STRAIN.budgets or value is not None}
    for name in [name for name in STRAIN.budgets if name in asked and name != budget]:
        started = f"the run was started with {budget} {getattr(recorded, budget):g}"
        raise ConfigError(f"--resume {directory}: {name} is given, but {started}; extend that budget with --{budget}")
    config = strain_config({**vars(recorded), **asked}, source=f"--resume {directory}")
    for name in STRAIN.options:
        old, new = getattr(recorded, name), getattr(config, name)
        if old != new and not (name == budget and new > old):
            again = "leave it out to continue that run, or start a new one with --out"
            again = "a budget can only be extended" if name == budget else again
            raise ConfigError(f"--resume {directory}: {name} is {new!r}, but the run was started with {old!r}; {again}")
    finished, reached = "", getattr(config, budget)
    if record.status == "done" and record.totals.get("target_reached"):
        finished = f"it reached its target, a test MSE of {config.target_mse:g}"
    elif record.status == "done" and reached == getattr(recorded, budget):
        finished = f"its {reached:g} {budget} are trained; a larger --{budget} trains on"
    return Resumption(directory=directory, record=record, config=config, finished=finished)


def _budget(config: StrainConfig) -> str:
    return next(name for name in STRAIN.budgets if getattr(config, name) is not None)


def _require_ended(directory: Path, record: records.RunRecord) -> None:
    """Raise RecordError for a run that goes on, as far as can be seen from here."""
    if record.state() != "running":
        return
    where = f"process {record.pid} on {record.host} since {record.started}"
    if record.host == platform.node():
        raise RecordError(f"{directory}: the run is still running ({where}); wait for its end, or stop it first")
    left_s = records.SILENT_S - records.silent_s(directory)
    if left_s > 0:
        end = alive.until(datetime.now(UTC).timestamp() + left_s)
        raise RecordError(
            f"{directory}: the run seems to be running ({where}, {end}, unless more is written); stop it, or, if that "
            "host is gone or has another name now, try again then"
        )


def require_same_run(directory: Path, record: records.RunRecord, effective: Mapping[str, Any]) -> None:
    """Raise BackendError when what is in effect now differs from what the run was recorded with."""
    now, then = (
        {name: each.get(name) for name in ("backend", "transport", "reduction", "workers", "dataset_digest")}
        | {"device": "cpu" if each.get("device") == "cpu" else "a GPU"}
        for each in (effective, record.effective)
    )
    for name, value in now.items():
        if value != then[name]:
            what = f"the run has {name.replace('_', ' ')} {then[name]}, this launch has {value}"
            again = "start it as it was started, or start a new run with another --out"
            raise BackendError(f"{directory}: {what}; {again}")


def notes(resumption: Resumption, environment: Mapping[str, Any], effective: Mapping[str, Any]) -> list[str]:
    """Say why the continuation may not be the uninterrupted run bit for bit, one line each; none if it is."""
    config, record = resumption.config, resumption.record
    now = {**environment, "device": effective["device"]}
    then = {**record.environment, "device": record.effective.get("device")}
    found = [
        f"note: {name} is {now.get(name)}, was {then.get(name)}: the run continues, but perhaps not bit for bit"
        for name in ("torch", "horovod", "mpi", "cpu_model", "package", "revision", "device")
        if now.get(name) != then.get(name)
    ]
    if config.seconds is not None:
        follows = f"schedule {config.schedule} follows the clock, the run continues but not bit for bit"
        ends = "each step is that of the uninterrupted run bit for bit, but which one is the last follows the clock"
        found.append(f"note: the budget is in seconds: {follows if config.schedule != 'constant' else ends}")
    budget = _budget(config)
    if config.schedule != "constant" and getattr(config, budget) != record.requested.get(budget):
        found.append(
            f"note: schedule {config.schedule} counts from the new end, {budget} {getattr(config, budget):g}: "
            "this is not the run that such a budget would have been from its start"
        )
    return found
