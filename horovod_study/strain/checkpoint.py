"""Checkpoints.

    runs/<study>/<key>/checkpoints/step-000001234.pt

A file is what `torch.save` makes of a `Checkpoint` and `torch.load(path, weights_only=True)` reads: a dict of tensors
and plain values. Its digest is the comment of the ZIP archive, `horovod_study sha256 <64 digits>`, over all bytes
before the digits: a file that was cut short or has one bit flipped is known before anything in it is interpreted, and
what is interpreted is data, never code. It is written completely or not at all. The newest two are kept; a damaged one
is passed over for the older one, with a warning.
"""

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from horovod_study.config.documents import open_file
from horovod_study.config.doors import Form, conform
from horovod_study.errors import ConfigError, RecordError
from horovod_study.files import result_folder, write_file, writing
from horovod_study.records import CHECKPOINTS, checkpoint_paths, checkpoint_step
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import parse_widths
from horovod_study.text.progress import say

SCHEMA = 1
_MARK = b"horovod_study sha256 "
_DIGITS = 64


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


class LoopState(BaseModel):
    """What the loop of trainer.py needs of `progress` to go on."""

    window_s: float
    wall_s: float
    evaluated: int
    evaluation: dict[str, Any]
    budget: list[float] | tuple[float, ...]
    target_reached: bool


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
    if not _is_whole(data[-len(_MARK) - _DIGITS :]):
        raise RecordError(f"{source}: has no digest at its end: it was cut short, or not written by this program")
    if hashlib.sha256(memoryview(data)[:-_DIGITS]).hexdigest().encode() != data[-_DIGITS:]:
        raise RecordError(f"{source}: is damaged: its content does not fit its SHA-256 digest")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            promised = sum(each.file_size for each in archive.infolist())
        if promised > len(data):  # torch.save packs nothing
            raise RecordError(f"{source}: promises {promised:,} bytes in {len(data):,}; it is not of this program")
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except RecordError:
        raise
    except Exception as error:  # PyTorch's own words end with how to load what can execute code, which nobody should
        executes = type(error).__name__ == "UnpicklingError"
        what = "objects that loading would execute" if executes else "a damaged archive"
        problem = f"holds {what}, not plain tensors and values alone; it is not read"
        raise RecordError(f"{source}: {problem}") from None
    again = "update horovod_study if a newer one wrote it; else it is no checkpoint of this program"
    found: Checkpoint = conform(content, Checkpoint, source, again=again)
    return found


def _is_whole(end: bytes) -> bool:
    """Return whether these are the last bytes of a checkpoint."""
    return end[:-_DIGITS] == _MARK


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
    """Return the content of a file, or its end where that is none of a checkpoint, before gigabytes are read."""
    try:
        with open_file(path) as stream:
            stream.seek(-min(len(_MARK) + _DIGITS, os.fstat(stream.fileno()).st_size), os.SEEK_END)
            end = stream.read()
            stream.seek(0)
            return stream.read() if _is_whole(end) else end
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from None


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
