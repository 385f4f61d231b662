"""Loaders: the same batches in the same order from all of them, and nothing left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from make.wording import Golden

from horovod_study.errors import ConfigError, DataError
from horovod_study.measure.clock import now, sleep
from horovod_study.strain import dataset as data
from horovod_study.strain import loaders
from horovod_study.strain.loaders import Loader, open_loader
from horovod_study.strain.options import StrainConfig

CPU = torch.device("cpu")
IN_PROCESS = ("memory", "prefetch", "device", "dataloader")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> data.Dataset:
    path = tmp_path_factory.mktemp("loaders") / "data"
    data.generate(path, 400, seed=3)
    return data.open_dataset(path)


def batches(dataset: data.Dataset, *, batch: int = 7, rank: int = 0, workers: int = 1) -> data.Batches:
    return data.Batches(dataset.train_size, batch=batch, rank=rank, workers=workers, seed=5)


def opened(dataset: data.Dataset, loader: str, *, rank: int = 0, workers: int = 1, **options: object) -> Loader:
    config = StrainConfig(loader=loader, batch=7, **options)
    return open_loader(config, dataset, batches(dataset, rank=rank, workers=workers), CPU)


def copies(parts: Iterator[loaders.Batch]) -> list[tuple[np.ndarray, np.ndarray]]:
    """A batch is valid until the next one is asked for, so what is kept is a copy."""
    return [(curves.numpy().copy(), targets.numpy().copy()) for curves, targets in parts]


def expected(
    dataset: data.Dataset, epoch: int, first: int = 0, *, rank: int = 0, workers: int = 1
) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = batches(dataset, rank=rank, workers=workers).epoch(epoch)[first:]
    return [(dataset.curves[each], dataset.targets[each]) for each in rows]


def assert_same(actual: list[tuple[np.ndarray, np.ndarray]], wanted: list[tuple[np.ndarray, np.ndarray]]) -> None:
    assert len(actual) == len(wanted)
    for (curves, targets), (wanted_curves, wanted_targets) in zip(actual, wanted, strict=True):
        np.testing.assert_array_equal(curves, wanted_curves)
        np.testing.assert_array_equal(targets, wanted_targets)


@pytest.mark.parametrize("loader", IN_PROCESS)
def test_batches_are_those_of_the_order(dataset: data.Dataset, loader: str) -> None:
    one = opened(dataset, loader)

    for epoch, first in ((0, 0), (1, 0), (1, 5), (0, 41), (4, 42)):
        assert_same(copies(one.epoch(epoch, first)), expected(dataset, epoch, first))
    one.close()


@pytest.mark.parametrize("loader", IN_PROCESS)
def test_each_worker_reads_its_own_share(dataset: data.Dataset, loader: str) -> None:
    one = opened(dataset, loader, rank=1, workers=3)

    assert_same(copies(one.epoch(2)), expected(dataset, 2, rank=1, workers=3))
    one.close()


@pytest.mark.parametrize("loader", IN_PROCESS)
def test_an_epoch_may_be_given_up_in_the_middle(dataset: data.Dataset, loader: str) -> None:
    threads = threading.active_count()
    one = opened(dataset, loader)

    for taken in (0, 1, 2, 3, 4, 20):
        given_up = one.epoch(0)
        for _ in range(taken):
            next(given_up)
    assert_same(copies(one.epoch(1)), expected(dataset, 1))
    unfinished = one.epoch(2)
    next(unfinished)
    one.close()

    assert threading.active_count() == threads


@pytest.mark.parametrize("loader", IN_PROCESS)
def test_loading_leaves_the_random_numbers_of_torch_alone(dataset: data.Dataset, loader: str) -> None:
    torch.manual_seed(1)
    wanted = torch.rand(3)

    torch.manual_seed(1)
    one = opened(dataset, loader)
    copies(one.epoch(0))
    one.close()

    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("loader", IN_PROCESS)
def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(dataset: data.Dataset, loader: str) -> None:
    one = opened(dataset, loader)
    wanted = expected(dataset, 0)
    for step, (curves, targets) in enumerate(one.epoch(0)):
        sleep(0.002)  # time enough for a thread to fill the whole ring
        np.testing.assert_array_equal(curves.numpy(), wanted[step][0])
        np.testing.assert_array_equal(targets.numpy(), wanted[step][1])
    one.close()


def test_an_error_in_the_thread_is_raised_where_the_batch_is_awaited(dataset: data.Dataset) -> None:
    one = opened(dataset, "prefetch")
    one._batches = _Beyond()  # type: ignore[attr-defined]

    with pytest.raises(IndexError, match="out of range"):
        next(one.epoch(0))
    one.close()


class _Beyond:
    def epoch(self, epoch: int) -> np.ndarray:
        return np.full((1, 7), 400)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("Caught it\nunable to resize file </torch_1>: File too large (27)"), EOFError(), OSError(24, "full")],
    ids=repr,
)
def test_a_loader_process_that_fails_is_one_line_and_ends_though_the_error_is_kept(
    error: Exception, dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    class Parts:
        def __iter__(self) -> "Parts":
            return self

        def __next__(self) -> loaders.Batch:
            raise error

        def _shutdown_workers(self) -> None:
            ended.append(True)

    monkeypatch.setattr(loaders.DataLoader, "__iter__", lambda _: Parts())
    loader = opened(dataset, "dataloader", loader_processes=2)
    with pytest.raises(DataError) as told:
        next(loader.epoch(0))
    loader.close()

    assert ended == [True] and "\n" not in str(told.value)


def test_page_locked_memory_without_a_gpu_is_refused(dataset: data.Dataset, golden: Golden) -> None:
    for loader in IN_PROCESS:
        with pytest.raises(ConfigError) as error:
            opened(dataset, loader, pin_memory=True)

        golden(str(error.value), "pin_memory", "GPU", "CPU")


def test_device_on_a_cpu_says_that_it_is_a_private_copy(dataset: data.Dataset, golden: Golden) -> None:
    one = opened(dataset, "device")

    golden(one.note, "RAM", "0.00 GB")
    assert [opened(dataset, loader).note for loader in ("memory", "prefetch", "dataloader")] == ["", "", ""]


@pytest.mark.parametrize("free", [[0], [10**12, 10**8]], ids=["before", "while copying"])
def test_a_training_set_too_large_for_the_device_is_refused(
    dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch, free: list[int], golden: Golden
) -> None:
    left = list(free)
    monkeypatch.setattr(loaders, "_free_bytes", lambda device: left.pop(0) if len(left) > 1 else left[0])

    with pytest.raises(DataError) as error:
        opened(dataset, "device")

    golden(str(error.value), dataset.path, "300 training", "0.00 GB", f"{free[-1] / 1e9:.2f}", "RAM", "--dataset")


def test_what_travels_to_a_loader_process_is_the_path(dataset: data.Dataset) -> None:
    assert loaders._OneByOne(dataset).__getstate__() == str(dataset.path)


# ------------------------------------------------------------------------------------------------ loader processes


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "new each epoch"])
def test_processes_yield_the_same_and_end_with_close(dataset: data.Dataset, persistent: bool) -> None:
    one = opened(dataset, "dataloader", loader_processes=2, persistent_processes=persistent)

    assert_same(copies(one.epoch(0)), expected(dataset, 0))
    first = {process.pid for process in multiprocessing.active_children()}
    given_up = one.epoch(1)
    next(given_up)
    another = one.epoch(2, 3)  # while somebody still holds the one before
    second = {process.pid for process in multiprocessing.active_children()}
    assert list(given_up) == []
    assert_same(copies(another), expected(dataset, 2, 3))
    unfinished = one.epoch(3)
    next(unfinished)
    one.close()

    assert multiprocessing.active_children() == []
    assert len(second) == 2
    assert (first == second) == persistent


PROGRAM = """
import os, sys
from pathlib import Path
import torch
from horovod_study.strain.options import StrainConfig
from horovod_study.strain import dataset as data
from horovod_study.strain.loaders import open_loader

if __name__ == "__main__":
    dataset = data.open_dataset(Path(sys.argv[1]))
    batches = data.Batches(dataset.train_size, batch=7, rank=0, workers=1, seed=5)
    config = StrainConfig(loader="dataloader", loader_processes=2, batch=7)
    loader = open_loader(config, dataset, batches, torch.device("cpu"))
    count = 0
    for curves, targets in loader.epoch(0):
        count += 1
        if count == 3:
            print("running", flush=True)
            if sys.stdin.readline() == "fail\\n":
                raise SystemExit(1)  # nothing is closed, and both names are still bound
    print(count, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def trainer(dataset: data.Dataset, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program with two loader processes that waits for a line in the middle of an epoch, and at its end."""
    script = tmp_path / "trainer.py"
    script.write_text(PROGRAM)
    root = str(Path(loaders.__file__).parents[2])
    with (tmp_path / "stderr").open("w") as complaints:  # of a killed trainer, about what it could not clean up
        process = subprocess.Popen(
            [sys.executable, str(script), str(dataset.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n", (tmp_path / "stderr").read_text()
        yield process
        process.kill()


def loader_processes(trainer: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that map the data set: the trainer's own descendants without the server and the tracker."""
    below = psutil.Process(trainer.pid).children(recursive=True)
    return [each for each in below if any("curves.npy" in part.path for part in each.memory_maps())]


@pytest.mark.slow
def test_a_trainer_that_fails_in_the_middle_ends_with_its_processes(trainer: subprocess.Popen[str]) -> None:
    found = loader_processes(trainer)
    assert trainer.stdin is not None
    trainer.stdin.write("fail\n")
    trainer.stdin.flush()

    assert trainer.wait(timeout=120) == 1
    assert [each for each in found if each.is_running()] == []


@pytest.mark.slow
def test_processes_map_the_file_and_copy_nothing(trainer: subprocess.Popen[str]) -> None:
    found = loader_processes(trainer)

    assert len(found) == 2
    for each in found:
        private = [part.private_dirty for part in each.memory_maps() if "curves.npy" in part.path]
        assert private == [0]


@pytest.mark.slow
def test_processes_end_when_the_trainer_is_killed(trainer: subprocess.Popen[str]) -> None:
    found = loader_processes(trainer)
    trainer.kill()
    trainer.wait()

    deadline = now() + 120
    while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in found) and now() < deadline:
        sleep(0.05)
    assert [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_a_signal_to_the_whole_job_leaves_loading_to_the_trainer(trainer: subprocess.Popen[str]) -> None:
    for each in loader_processes(trainer):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            each.send_signal(number)
    assert trainer.stdin is not None and trainer.stdout is not None
    trainer.stdin.write("\n")
    trainer.stdin.flush()

    assert trainer.stdout.readline() == "42\n"
