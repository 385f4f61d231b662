"""Checkpoints, and how a run goes on from one.

    runs/<study>/<key>/checkpoints/step-000001234.pt

A file is what `torch.save` makes of a `Checkpoint` and `torch.load(path, weights_only=True)` reads: a dict of tensors
and plain values. Its digest is the comment of the ZIP archive, `horovod_study sha256 <64 digits>`, over all bytes
before the digits: a file that was cut short or has one bit flipped is known before anything in it is interpreted, and
what is interpreted is data, never code. It is written completely or not at all. The newest two are kept; a damaged one
is passed over for the older one, with a warning.

`--resume` continues the run that was recorded, and no other one: it takes its configuration from run.json, and options
given beside it must agree with that, or extend the budget.
"""

import hashlib
import io
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.config.documents import read_bytes
from horovod_study.config.doors import Form, conform
from horovod_study.errors import BackendError, ConfigError, RecordError
from horovod_study.files import result_folder, write_file, writing
from horovod_study.records import CHECKPOINTS, checkpoint_paths, checkpoint_step
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import STRAIN, StrainConfig, parse_widths, strain_config
from horovod_study.text.progress import say

SCHEMA = 1
_MARK = b"horovod_study sha256 "
_DIGITS = 64
_MAX_BYTES = 1 << 34


class Checkpoint(Form):
    """The state of a run between two steps: everything that the steps to come depend on."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    form: Annotated[int, Field(ge=1, le=SCHEMA)] = Field(default=SCHEMA, alias="schema")
    step: Annotated[int, Field(ge=0, lt=2**53)]  # steps made
    epoch: Annotated[int, Field(ge=0, lt=2**53)]  # of the step to come, from 0; the position in it follows from `step`
    model: dict[str, torch.Tensor]  # state of the network, by parameter name
    optimizer: dict[str, Any]  # state of the optimiser, as PyTorch gives it
    progress: dict[str, Any]  # state of the loop: window so far, last evaluation, cost of checkpoints, ...
    config: dict[str, Any]  # the fields of StrainConfig, as in run.json
    target_bounds: tuple[tuple[float, float], tuple[float, float]]  # lowest and highest G0 in MPa, and a
    input_scaling: str
    widths: str


_FIELDS = Checkpoint.model_fields


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of the file; equal states give equal bytes. TypeError: something is not plain."""
    content = {field.alias or name: _plain(getattr(checkpoint, name)) for name, field in _FIELDS.items()}
    stream = io.BytesIO()
    torch.save(content, stream)
    archive = stream.getvalue()
    # The last two bytes of a ZIP archive without a comment are the length of that comment.
    body = archive[:-2] + (len(_MARK) + _DIGITS).to_bytes(2, "little") + _MARK
    return body + hashlib.sha256(body).hexdigest().encode()


def decode(data: bytes, source: str) -> Checkpoint:
    """Return the checkpoint in `data`; RecordError, naming `source`, when it is damaged, foreign or newer."""
    body, digits = data[:-_DIGITS], data[-_DIGITS:]
    if not body.endswith(_MARK):
        raise RecordError(f"{source}: has no digest at its end: it was cut short, or not written by this program")
    if hashlib.sha256(body).hexdigest().encode() != digits:
        raise RecordError(f"{source}: is damaged: its content does not fit its SHA-256 digest")
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch's own words end with how to load what can execute code, which nobody should
        executes = type(error).__name__ == "UnpicklingError"
        what = "objects that loading would execute" if executes else "a damaged archive"
        problem = f"holds {what}, not plain tensors and values alone; it is not read"
        raise RecordError(f"{source}: {problem}") from None
    again = "update horovod_study if a newer one wrote it; else it is no checkpoint of this program"
    found: Checkpoint = conform(content, Checkpoint, source, again=again)
    return found


def _plain(value: Any) -> Any:
    """Return `value` with tensors copied to the CPU; TypeError for what `weights_only` would refuse to load."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"checkpoint: holds a {type(value).__name__}; only tensors and plain values are stored")


def name_of(step: int) -> str:
    """Return the path of the checkpoint after `step` steps, below the run directory."""
    return f"{CHECKPOINTS}/step-{step:09d}.pt"


def save(run_directory: Path, checkpoint: Checkpoint) -> int:
    """Write a checkpoint into the run directory and remove all but the newest two; return its size in bytes.

    The file appears completely or not at all, and the older ones go only after it is safe on the disk. RecordError when
    it cannot be written; the older ones are then as they were.
    """
    data, path = encode(checkpoint), run_directory / name_of(checkpoint.step)
    left = [each.name for each in checkpoint_paths(run_directory)]
    intact = f"{' and '.join(left)} {'is' if len(left) == 1 else 'are'} intact" if left else "there is no older one"
    with writing(path, f"{intact}; free space and continue with --resume"):
        write_file(result_folder(path.parent) / path.name, data, sync_folder=True)
        for old in checkpoint_paths(run_directory)[2:]:
            old.unlink(missing_ok=True)
        for incomplete in path.parent.glob(".step-*"):  # of a process that was killed while it wrote
            incomplete.unlink(missing_ok=True)
    return len(data)


def read_newest(run_directory: Path) -> bytes:
    """Return the bytes of the newest intact checkpoint, as one rank reads them and hands them to the others.

    Damaged ones are passed over with a warning. RecordError when there is none.
    """
    paths = checkpoint_paths(run_directory)
    for path in paths:
        try:
            data = _read(path)
            decode(data, str(path))
        except RecordError as error:
            say(f"warning: {error}; it is passed over")
            continue
        return data
    if paths:
        what = f"none of its {len(paths)} checkpoints can be used (see the warnings above)"
        again = "start the run again with another --out"
    elif run_directory.is_dir():
        what = "holds no checkpoint; train with --checkpoint-every STEPS (and without --no-checkpoint-at-end)"
        again = "start this run again with another --out"
    else:
        what, again = "no such directory", "name the directory of a run"
    raise RecordError(f"{run_directory}: {what}; {again}")


def set_aside_newer(run_directory: Path, step: int) -> None:
    """Rename checkpoints after `step`, which were passed over as damaged, so that they do not count as the newest."""
    for path in checkpoint_paths(run_directory):
        if checkpoint_step(path) > step:
            os.replace(path, path.with_suffix(".pt.damaged"))


def _read(path: Path) -> bytes:
    return read_bytes(path, again="name a checkpoint, or the directory of a run", max_bytes=_MAX_BYTES)


@contextmanager
def fitting(source: Path) -> Iterator[None]:
    """Turn what in a checkpoint does not fit the network or the loop that takes it up into a RecordError."""
    try:
        yield
    except (ConfigError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        text = re.sub(r"\s+", " ", f"{error}")[:200]
        what = f"the state in its checkpoint does not fit what is trained ({text}); train again, with another --out"
        raise RecordError(f"{source}: {what}") from None


def load_model(source: Path) -> tuple[StressCNN, NDArray[np.float64]]:
    """Return the network of a run directory (its newest checkpoint) or of a checkpoint file, for inference on a CPU.

    With it come the bounds (P, 2) that turn its outputs, 0..1, into G0 in MPa and a: low + output * (high - low).
    """
    checkpoint = decode(_read(source) if source.is_file() else read_newest(source), str(source))
    with fitting(source):
        model = StressCNN(widths=parse_widths(checkpoint.widths), input_scaling=checkpoint.input_scaling)
        model.load_state_dict(checkpoint.model)
    return model.eval(), np.array(checkpoint.target_bounds)


# ------------------------------------------------------------------------------------------------ going on


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
