"""The data set on disk and its batches."""

import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod_study.errors import DataError
from horovod_study.workload import dataset, material


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    dataset.generate(path, 1000, seed=7)
    return path


def test_what_is_on_disk_is_what_the_generator_makes(small: Path) -> None:
    opened = dataset.open_dataset(small)
    curves, targets = material.generate(7, 0, 1000)

    assert np.array_equal(opened.curves, curves)
    assert np.array_equal(opened.targets, targets)
    assert (opened.size, opened.train_size, opened.test_size) == (1000, 750, 250)
    assert isinstance(opened.curves, np.memmap)
    assert opened.sidecar["spec"] == "shear-exp v1"


def test_several_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * dataset.BLOCK_ROWS + 17
    seen: list[tuple[int, int]] = []
    dataset.generate(tmp_path / "one", size, seed=2)
    dataset.generate(tmp_path / "two", size, seed=2, processes=2, tell=lambda done, total: seen.append((done, total)))

    for name in (dataset.CURVES, dataset.TARGETS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert dataset.open_dataset(tmp_path / "one").digest() == dataset.open_dataset(tmp_path / "two").digest()
    assert seen[-1] == (size, size) and len(seen) == 3


def test_check_accepts_a_good_one(small: Path) -> None:
    facts = dataset.check(small)

    assert (facts["size"], facts["train"], facts["test"], facts["seed"]) == (1000, 750, 250, 7)


def test_check_finds_one_changed_value(small: Path) -> None:
    with (small / dataset.CURVES).open("r+b") as stream:
        stream.seek(-201 * 4 - 40, 2)  # a stress of the last curve
        stream.write(b"\x00\x00\x80\x3f")

    with pytest.raises(DataError, match=r"curves\.npy: curves 0\.\.999 are not what was generated .*generate it again"):
        dataset.check(small)


def test_a_truncated_file_is_named_with_both_sizes(small: Path) -> None:
    path = small / dataset.CURVES
    whole = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(whole - 1000)

    with pytest.raises(DataError, match=f"is {whole - 1000:,} bytes long, its header promises {whole:,}; it was cut"):
        dataset.open_dataset(small)


def test_another_version_is_refused(small: Path) -> None:
    sidecar = json.loads((small / dataset.SIDECAR).read_text())
    (small / dataset.SIDECAR).write_text(json.dumps({**sidecar, "spec": "shear-exp v2"}))

    with pytest.raises(DataError, match="version 'shear-exp v2', this program reads 'shear-exp v1' and 'impor"):
        dataset.open_dataset(small)


def test_a_header_that_contradicts_the_sidecar_is_refused(small: Path) -> None:
    np.save(small / dataset.TARGETS, np.zeros((1000, 2), np.float64)[:500])

    with pytest.raises(DataError, match=r"targets\.npy: holds float64 \(500, 2\), the side-car says float32"):
        dataset.open_dataset(small)


def test_missing_and_foreign_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data set; make it with `horovod-study data generate`"):
        dataset.open_dataset(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"is not a data set \(no dataset\.json\)"):
        dataset.open_dataset(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is a file; name the directory"):
        dataset.open_dataset(tmp_path / "file")


def test_nothing_is_overwritten(small: Path) -> None:
    before = (small / dataset.CURVES).read_bytes()

    with pytest.raises(DataError, match="exists already; choose another --out"):
        dataset.generate(small, 10, seed=1)
    assert (small / dataset.CURVES).read_bytes() == before


def test_a_small_disk_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**6))

    with pytest.raises(DataError, match=r"1,000,000 curves need 2\.47 GB of disk, 1 MB are free; choose a smaller size"):
        dataset.generate(tmp_path / "big", 10**6, seed=1)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dataset, "_fill_block", full)
    with pytest.raises(DataError, match="No space left on device"):
        dataset.generate(tmp_path / "x", 100, seed=1)
    assert list(tmp_path.iterdir()) == []


def test_ensure_generates_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOROVOD_STUDY_DATA", str(tmp_path))
    assert not dataset.is_cached("300", seed=4)
    path = dataset.ensure("300", seed=4)
    made = (path / dataset.CURVES).stat().st_mtime_ns

    assert dataset.is_cached("300", seed=4)
    assert dataset.ensure("300", seed=4) == path
    assert (path / dataset.CURVES).stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("text", "size"), [("100000", 100000), ("1e6", 10**6), ("100_000", 100000), ("data/x", None), ("/a", None)]
)
def test_parse_size(text: str, size: int | None) -> None:
    assert dataset.parse_size(text) == size


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "1e30"])
def test_absurd_sizes(text: str) -> None:
    with pytest.raises(DataError, match="must be a whole number of curves from 1 to"):
        dataset.parse_size(text)


@given(size=st.integers(1, 5000))
def test_the_split_covers_everything_once(size: int) -> None:
    test = dataset.test_rows(np.arange(size // 4))
    train = dataset.train_rows(np.arange(size - size // 4))

    assert sorted([*test, *train]) == list(range(size))
    assert (test % 4 == 3).all() and (train % 4 != 3).all()


@given(
    batch=st.integers(1, 40),
    workers=st.integers(1, 6),
    train_size=st.integers(300, 1200),
    epoch=st.integers(0, 5),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=60, deadline=None)
def test_workers_share_the_global_batches_of_one(
    batch: int, workers: int, train_size: int, epoch: int, seed: int
) -> None:
    """Split among workers, each step visits the same curves as one worker with the global batch."""
    one = dataset.Batches(train_size, batch=batch * workers, rank=0, workers=1, seed=seed)
    many = [dataset.Batches(train_size, batch=batch, rank=rank, workers=workers, seed=seed) for rank in range(workers)]

    joined = np.concatenate([each.epoch(epoch) for each in many], axis=1)
    assert {each.steps_per_epoch for each in many} == {one.steps_per_epoch}
    assert np.array_equal(joined, one.epoch(epoch))
    assert len(np.unique(joined)) == joined.size, "no curve twice in an epoch"
    assert (joined % 4 != 3).all(), "no test curve in training"


def test_epochs_differ_and_seeds_differ() -> None:
    batches = dataset.Batches(300, batch=10, rank=0, workers=1, seed=1)
    other = dataset.Batches(300, batch=10, rank=0, workers=1, seed=2)

    assert not np.array_equal(batches.epoch(0), batches.epoch(1))
    assert not np.array_equal(batches.epoch(0), other.epoch(0))
    assert np.array_equal(batches.epoch(3), batches.epoch(3))


def test_a_batch_larger_than_the_training_set() -> None:
    with pytest.raises(DataError, match="batch 75 x 4 workers = 300 curves per step, but the training set has 299"):
        dataset.Batches(299, batch=75, rank=0, workers=4, seed=1)
