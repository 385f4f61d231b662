"""The checkpoint file: whole or absent, checked before it is read, nothing executed, the newest two kept."""

import errno
import hashlib
import io
import os
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden
from torch.nn.functional import mse_loss

from horovod_study.config.doors import conform
from horovod_study.errors import RecordError
from horovod_study.recording.rank import facts
from horovod_study.records import CHECKPOINTS, checkpoint_paths
from horovod_study.strain import checkpoint
from horovod_study.strain.checkpoint import Checkpoint, LoopState, decode, encode, load_model, read_newest, save
from horovod_study.strain.model import StressCNN

BOUNDS = ((1000.0, 3000.0), (5.0, 25.0))


def trained(steps: int = 3, **changes: Any) -> tuple[StressCNN, Checkpoint]:
    """A small network after some steps of Adam, and its checkpoint."""
    torch.manual_seed(7)
    model = StressCNN(widths=(2, 3, 5), input_scaling="fixed")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        mse_loss(model(torch.randn(4, 3, 201)), torch.rand(4, 2)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    values = {
        "step": steps, "epoch": 1, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "progress": {"window_s": 1.5, "evaluation": {}, "budget": [1, 2.0], "scaler": {}, "nan": float("inf")},
        "config": {"batch": 4, "seconds": None, "compile": False, "study": "s"},
        "target_bounds": BOUNDS, "input_scaling": "fixed", "widths": "2-3-5",
    }  # fmt: skip
    return model, Checkpoint(**{**values, **changes})


@pytest.fixture(scope="module")
def data() -> bytes:
    return encode(trained()[1])


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def test_everything_comes_back_bit_for_bit(data: bytes) -> None:
    _, written = trained()
    read = decode(data, "x")

    for name in ("optimizer", "progress", "config", "target_bounds", "step", "epoch", "widths", "input_scaling"):
        assert equal(getattr(written, name), getattr(read, name)), name
    assert equal(dict(written.model), dict(read.model))


def test_equal_states_give_equal_bytes(data: bytes) -> None:
    assert encode(trained()[1]) == data
    assert encode(trained(4)[1]) != data


def test_the_file_is_what_pytorch_and_unzip_read(data: bytes) -> None:
    content = torch.load(io.BytesIO(data), weights_only=True)

    assert content["schema"] == 1 and content["step"] == 3
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert re.fullmatch(rb"horovod_study sha256 [0-9a-f]{64}", archive.comment)


def test_what_is_not_plain_is_refused_when_it_is_written(golden: Golden) -> None:
    _, written = trained(progress={"evaluation": {"lr": np.float64(1e-3)}})

    with golden.raises(TypeError, match="float64"):
        encode(written)


# ---------------------------------------------------------------------------------------------------- damage


@given(where=st.integers(0, 2**31), bit=st.integers(0, 7))
def test_every_flipped_bit_is_noticed(data: bytes, where: int, bit: int) -> None:
    damaged = bytearray(data)
    damaged[where % len(data)] ^= 1 << bit

    with pytest.raises(RecordError, match=r"^f: (is damaged: its content does not fit|has no digest)"):
        decode(bytes(damaged), "f")


@given(length=st.integers(0, 2**31))
def test_every_truncation_is_noticed(data: bytes, length: int) -> None:
    with pytest.raises(RecordError, match=r"^f: has no digest at its end: it was cut short"):
        decode(data[: length % len(data)], "f")


def signed(archive: bytes) -> bytes:
    """A file with a right digest, as somebody who knows the format could make it."""
    body = archive[:-2] + (85).to_bytes(2, "little") + b"horovod_study sha256 "
    return body + hashlib.sha256(body).hexdigest().encode()


def archive_of(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_file_is_executed(tmp_path: Path, golden: Golden) -> None:
    harmful = archive_of({"schema": 1, "model": Payload(tmp_path / "executed")})
    torch.load(io.BytesIO(harmful), weights_only=False)
    assert (tmp_path / "executed").exists(), "the payload works where it is let"
    os.rmdir(tmp_path / "executed")

    with golden.raises(RecordError):
        decode(harmful, "f")
    with golden.raises(RecordError):
        decode(signed(harmful), "f")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "f: the document is [1, 2]; it must be `key: value` lines; update horovod_study if"),
        ({"model": {}}, "f: step is missing (and 7 more); update horovod_study if a newer one wrote it; else it is no"),
        ({"schema": 2}, "f: schema is 2; it must be at most 1 (and 9 more); update horovod_study if a newer one"),
        ({"schema": 1, "step": 3, "epoch": 0, "model": {}}, "f: optimizer is missing (and 5 more); update horovod"),
    ],
)
def test_a_foreign_file_is_named(content: Any, message: str) -> None:
    with pytest.raises(RecordError, match=f"^{re.escape(message)}"):
        decode(signed(archive_of(content)), "f")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": torch.zeros(3, 3)}, "step is tensor([[0., 0., 0.],"),
        ({"epoch": True}, "epoch is True; it must be a whole number"),
        ({"config": {1: 2}}, "config is 1; it must be a text"),
        ({"other": 1}, "unknown key 'other'; allowed: schema, step"),
    ],
)
def test_a_field_of_another_kind_is_named(changes: Any, message: str) -> None:
    written = trained()[1]
    content = {"schema": 1} | {name: getattr(written, name) for name in Checkpoint.model_fields if name != "form"}

    assert decode(signed(archive_of(content)), "f").step == 3
    with pytest.raises(RecordError, match=f"^f: {re.escape(message)}[^\n]*$"):
        decode(signed(archive_of(content | changes)), "f")


# ---------------------------------------------------------------------------------------------------- the folder


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    sizes = [save(tmp_path, trained(1, step=step)[1]) for step in (5, 10, 999_999_999, 1_000_000_000)]

    names = ["step-1000000000.pt", "step-999999999.pt"]
    assert [path.name for path in checkpoint_paths(tmp_path)] == names
    assert sorted(path.name for path in (tmp_path / CHECKPOINTS).iterdir()) == sorted(names), "no temporary file stays"
    assert checkpoint_paths(tmp_path)[0].stat().st_size == sizes[-1]
    assert decode(read_newest(tmp_path), "").step == 1_000_000_000


def test_what_a_killed_process_was_writing_does_not_count_and_goes(tmp_path: Path) -> None:
    save(tmp_path, trained(1)[1])
    torn = tmp_path / CHECKPOINTS / ".step-000000009.pt.abc"
    torn.write_bytes(b"PK\x03\x04")

    assert decode(read_newest(tmp_path), "").step == 1
    save(tmp_path, trained(2)[1])
    assert not torn.exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:1000], "has no digest at its end: it was cut short, or not written by this program"),
        (lambda data: b"", "has no digest at its end"),
        (
            lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:],
            "is damaged: its content does not fit its SHA-256 digest",
        ),
        (lambda data: b"\0" * len(data), "has no digest at its end"),
    ],
)
def test_a_damaged_one_is_passed_over_with_a_warning(
    tmp_path: Path, damage: Any, reason: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    for steps in (1, 2):
        save(tmp_path, trained(steps)[1])
    newest = checkpoint_paths(tmp_path)[0]
    newest.write_bytes(damage(newest.read_bytes()))

    assert decode(read_newest(tmp_path), "").step == 1
    golden(capsys.readouterr().err.splitlines(), newest, reason)
    checkpoint.set_aside_newer(tmp_path, 1)
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-000000001.pt"]
    assert newest.with_suffix(".pt.damaged").exists(), "kept for a look at it"


def test_none_left_says_what_to_do(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(RecordError, match="/none"):
        read_newest(tmp_path / "none")
    with golden.raises(RecordError, match="--checkpoint-every STEPS"):
        read_newest(tmp_path)
    save(tmp_path, trained(1)[1])
    checkpoint_paths(tmp_path)[0].write_bytes(b"")
    with golden.raises(RecordError):
        read_newest(tmp_path)


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for steps in (1, 2):
        save(tmp_path, trained(steps)[1])
    before = {path: path.read_bytes() for path in checkpoint_paths(tmp_path)}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = (
        r"step-000000003\.pt: cannot be written \(No space left on device\); step-000000002\.pt and "
        r"step-000000001\.pt are intact; free space and continue with --resume$"
    )
    with pytest.raises(RecordError, match=message):
        save(tmp_path, trained(3)[1])
    assert {path: path.read_bytes() for path in (tmp_path / CHECKPOINTS).iterdir()} == before


# ---------------------------------------------------------------------------------------------------- the network


def test_the_network_comes_back_from_a_run_or_a_file(tmp_path: Path) -> None:
    model, written = trained()
    save(tmp_path, written)
    curves = torch.randn(5, 3, 201)

    for source in (tmp_path, checkpoint_paths(tmp_path)[0]):
        loaded, bounds = load_model(source)
        assert facts.digest([loaded]) == facts.digest([model])
        assert not loaded.training
        assert bounds.tolist() == [list(pair) for pair in BOUNDS] and bounds.dtype == np.float64
        with torch.inference_mode():
            assert torch.equal(loaded(curves), model.eval()(curves)), "input scaling included"


def test_another_network_than_named_is_an_error(tmp_path: Path, golden: Golden) -> None:
    save(tmp_path, trained(1, widths="2-3-6")[1])

    with golden.raises(RecordError, match="state_dict"):
        load_model(tmp_path)
    with golden.raises(RecordError, match=r"/no\.pt"):
        load_model(tmp_path / "no.pt")


def test_random_files_are_refused_not_crashed_on(tmp_path: Path, golden: Golden) -> None:
    random.seed(1)
    for size in (1, 100, 10_000):
        (tmp_path / "f.pt").write_bytes(b"PK\x03\x04" + random.randbytes(size))
        with golden.raises(RecordError):
            load_model(tmp_path / "f.pt")


def test_what_the_loop_needs_of_a_checkpoint_is_named() -> None:
    state = {"window_s": 1.0, "wall_s": 2, "evaluated": 3, "evaluation": {}, "budget": [1, 2.0, 3.0]}
    assert conform({**state, "target_reached": False, "scaler": {}}, LoopState, "d")
    for content, message in (
        (state, "d: target_reached is missing"),
        ({**state, "target_reached": False, "budget": ["x"]}, "d: budget.0 is 'x'"),
    ):
        with pytest.raises(RecordError, match=f"^{message}"):
            conform(content, LoopState, "d")
