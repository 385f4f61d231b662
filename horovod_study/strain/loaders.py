"""How batches come from the data set to the device that computes: four ways, the same batches in the same order.

memory       gather whole batches from the map that all workers of a host share, then copy them to a GPU if there is one
prefetch     the same in a thread, a few batches ahead of the step
device       copy all training curves to the device once, gather there
dataloader   torch's DataLoader: one curve at a time, collated, in the trainer or in processes of its own

A batch is valid until the next one is asked for: prefetch fills its buffers again. `horovod-study bench loading`
compares the ways on the machine at hand. Letters: B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from horovod_study.errors import ConfigError, DataError
from horovod_study.strain import dataset as data
from horovod_study.strain import room
from horovod_study.strain.material import CHANNELS, POINTS, TARGETS
from horovod_study.strain.options import StrainConfig

Batch = tuple[torch.Tensor, torch.Tensor]
"""Curves (B, C, L) and targets (B, P), float32, on the device of the loader."""

RING = 3
"""Buffers of prefetch: one in use by the step, one ready, one being filled."""


class Resident(NamedTuple):
    """The training set in the memory of the device."""

    curves: torch.Tensor  # (S, C, L), S training curves
    targets: torch.Tensor  # (S, P)


class Loader(Protocol):
    """What the training loop knows of a loader; one epoch is read at a time, a new one ends the one before."""

    note: str
    """What a user should know about this loader here, or ''."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of this worker in `epoch`, from step `first` of the epoch on."""
        ...

    def close(self) -> None:
        """End what the loader started. An epoch may be given up in the middle."""
        ...


def open_loader(config: StrainConfig, dataset: data.Dataset, batches: data.Batches, device: torch.device) -> Loader:
    """Return the loader that `config` names.

    Raises ConfigError for page-locked memory without a GPU, DataError if the training set does not fit the device.
    """
    if config.pin_memory and device.type != "cuda":
        raise ConfigError(
            f"run: pin_memory needs a GPU, this run computes on the {device.type.upper()} "
            "(page-locked memory speeds up copies to a GPU); leave it out"
        )
    if config.loader == "prefetch":
        return _Prefetch(dataset, batches, device, batch=config.batch, pin=config.pin_memory)
    if config.loader == "device":
        return _Device(dataset, batches, device)
    if config.loader == "dataloader":
        return _Items(config, dataset, batches, device)
    return _Memory(dataset, batches, device, pin=config.pin_memory)


def resident(loader: Loader) -> Resident | None:
    """Return the training set where the loader keeps it on the device, None where batches come through the host."""
    return Resident(loader.curves, loader.targets) if isinstance(loader, _Device) else None


def feed(loader: Loader, captured: Any, epoch: int, first: int = 0) -> Iterator[Batch | None]:
    """Return what the steps of `epoch` are given, from step `first` on: batches, or None for each.

    None where the step `captured` gathers its batches itself, whose places it is told here, before the first one.
    """
    if captured is None or not isinstance(loader, _Device):
        return loader.epoch(epoch, first)
    places = loader.places(epoch, first)
    captured.begin_epoch(places)
    return repeat(None, len(places))


class _Memory:
    """Gathers in the thread of the step: nothing runs beside it, nothing is kept."""

    note = ""

    def __init__(self, dataset: data.Dataset, batches: data.Batches, device: torch.device, *, pin: bool) -> None:
        self._curves, self._targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
        self._batches, self._device, self._pin = batches, device, pin

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        rows = torch.from_numpy(self._batches.epoch(epoch)[first:])
        return ((self._gather(self._curves, each), self._gather(self._targets, each)) for each in rows)

    def _gather(self, source: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if not self._pin:
            return source.index_select(0, rows).to(self._device, non_blocking=True)
        # PyTorch hands page-locked memory out again only after the copies from it have ended.
        buffer = torch.empty((len(rows), *source.shape[1:]), pin_memory=True)
        return torch.index_select(source, 0, rows, out=buffer).to(self._device, non_blocking=True)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Slot:
    """One buffer of the ring, in the memory of the host."""

    curves: torch.Tensor  # (B, C, L)
    targets: torch.Tensor  # (B, P)
    copied: Any = None  # the CUDA event after which the buffer may be filled again


class _Prefetch:
    """A thread gathers the next batches into a ring of buffers; gathering runs without Python's lock.

    To a GPU the thread copies on a stream of its own, and the stream of the step waits for the copy of its batch.
    """

    note = ""

    def __init__(
        self, dataset: data.Dataset, batches: data.Batches, device: torch.device, *, batch: int, pin: bool
    ) -> None:
        self._curves, self._targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)
        self._batches, self._device = batches, device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ring = [
            _Slot(torch.empty(batch, CHANNELS, POINTS, pin_memory=pin), torch.empty(batch, TARGETS, pin_memory=pin))
            for _ in range(RING)
        ]
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._free: SimpleQueue[_Slot | None] = SimpleQueue()

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        self.close()
        rows = torch.from_numpy(self._batches.epoch(epoch)[first:])
        self._free, ready = SimpleQueue(), SimpleQueue()  # type: ignore[var-annotated]
        for slot in self._ring:
            self._free.put(slot)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(rows, self._free, ready, self._stop), name="prefetch", daemon=True
        )
        self._thread.start()
        return self._read(len(rows), self._free, ready)

    def _fill(self, rows: torch.Tensor, free: Any, ready: Any, stop: threading.Event) -> None:
        try:
            for each in rows:
                slot = free.get()
                if slot is None or stop.is_set():
                    return
                if slot.copied is not None:
                    slot.copied.synchronize()
                torch.index_select(self._curves, 0, each, out=slot.curves)
                torch.index_select(self._targets, 0, each, out=slot.targets)
                batch = slot.curves, slot.targets
                if self._stream is not None:
                    with torch.cuda.stream(self._stream):
                        batch = tuple(part.to(self._device, non_blocking=True) for part in batch)
                        slot.copied = self._stream.record_event()
                ready.put((slot, batch))
        except BaseException as error:  # raised where the step waits for the batch
            ready.put(error)

    def _read(self, count: int, free: Any, ready: Any) -> Iterator[Batch]:
        for _ in range(count):
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            slot, batch = item
            if self._stream is not None:
                step_stream = torch.cuda.current_stream(self._device)
                step_stream.wait_event(slot.copied)
                for part in batch:
                    part.record_stream(step_stream)  # its memory was taken on the other stream
            yield batch
            free.put(slot)

    def close(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._free.put(None)
            self._thread.join()
            self._thread = None


class _Device:
    """A copy of all training curves on the device. On a CPU that is memory of this worker alone: nothing is shared."""

    def __init__(self, dataset: data.Dataset, batches: data.Batches, device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="order")  # has no thread until it is given work
        self._drawn: Future[torch.Tensor] | None = None
        self._drawn_epoch = -1
        needed = dataset.train_size * 4 * (CHANNELS * POINTS + TARGETS)
        size, where = f"{needed / 1e9:.2f} GB", "RAM" if device.type == "cpu" else f"the memory of {device}"
        self.note = f"{size} of the training set in {where}"
        if device.type == "cpu":
            self.note = f"a private copy of the training set in RAM, {size} for each worker"
        text = f"{dataset.path}: {dataset.train_size:,} training curves need {size} for each worker with"

        def need(room_bytes: float) -> None:
            free = _free_bytes(device)
            if room_bytes > free:
                self.curves = self.targets = torch.empty(0)
                found = f"{text} loader device, {free / 1e9:.2f} GB of {where} are free"
                raise DataError(f"{found}; use loader memory, or a smaller --dataset")

        need(needed / 0.9)  # a tenth of the free memory is left to the step
        self.curves = torch.empty(dataset.train_size, CHANNELS, POINTS, device=device)
        self.targets = torch.empty(dataset.train_size, TARGETS, device=device)
        # Block by block with a look at the memory before each: several workers of a host may be doing the same.
        for low in range(0, dataset.train_size, data.BLOCK_ROWS):
            part = slice(low, min(low + data.BLOCK_ROWS, dataset.train_size))
            if device.type == "cpu":
                need(2 * data.BLOCK_ROWS * 4 * CHANNELS * POINTS)
            rows = data.train_rows(torch.arange(part.start, part.stop).numpy())
            self.curves[part] = torch.from_numpy(dataset.curves[rows])
            self.targets[part] = torch.from_numpy(dataset.targets[rows])

    def places(self, epoch: int, first: int = 0) -> torch.Tensor:
        """Return the places of this worker's batches among the resident curves, (steps, B) int64, on the device.

        On a GPU those of the epoch that follows are drawn meanwhile, by a thread beside the host's launching.
        """
        drawn = self._drawn.result() if self._drawn is not None and self._drawn_epoch == epoch else self._draw(epoch)
        if self._device.type == "cuda":
            self._drawn, self._drawn_epoch = self._drawing.submit(self._draw, epoch + 1), epoch + 1
        return drawn[first:].to(self._device, non_blocking=True)

    def _draw(self, epoch: int) -> torch.Tensor:
        rows = torch.from_numpy(self._batches.epoch(epoch))
        places = rows - rows // 4  # curve number -> place among the training curves
        # From page-locked memory the copy is waited for by the next step alone.
        return places.pin_memory() if self._device.type == "cuda" else places

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        places = self.places(epoch, first)
        return ((self.curves.index_select(0, each), self.targets.index_select(0, each)) for each in places)

    def close(self) -> None:
        self._drawing.shutdown(cancel_futures=True)
        self.curves = self.targets = torch.empty(0)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = room.available_bytes()
    return sys.maxsize if available is None else available


class _OneByOne(TorchDataset[Batch]):
    """A map-style data set as users write it: one curve (C, L) and its targets (P,) per item.

    What travels to a process is the path: the process maps the same file and shares its pages.
    """

    def __init__(self, dataset: data.Dataset) -> None:
        self._path = dataset.path
        self._curves, self._targets = torch.from_numpy(dataset.curves), torch.from_numpy(dataset.targets)

    def __getitem__(self, row: int) -> Batch:
        return self._curves[row], self._targets[row]

    def __getstate__(self) -> str:
        return str(self._path)

    def __setstate__(self, path: str) -> None:
        _OneByOne.__init__(self, data.open_dataset(Path(path)))


class _Items:
    """torch's DataLoader as it is usually used: item by item, default_collate, whole batches back to the trainer.

    A batch-wise variant - a data set whose `__getitems__` gathers the batch at once - would leave out the collating,
    most of the cost, but still hand every batch from process to process; loaders memory and prefetch do neither.

    Processes are forked from a server (`forkserver`), never from the trainer: a fork of a process in which MPI or
    CUDA runs copies locks and registered memory in an unknown state, Horovod's manual warns of it. Starting each from
    nothing (`spawn`) would be as safe, but imports PyTorch once per process and, without persistent processes, per
    epoch. The server is idle between starts and ends with the trainer.
    """

    note = ""

    def __init__(
        self, config: StrainConfig, dataset: data.Dataset, batches: data.Batches, device: torch.device
    ) -> None:
        self._batches, self._device = batches, device
        self._order: list[list[int]] = []  # the batches of the epoch that is read
        several: dict[str, Any] = {}
        if config.loader_processes:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            several = {
                "multiprocessing_context": context,
                "persistent_workers": config.persistent_processes,
                "worker_init_fn": _belong_to_trainer,
            }
        self._loader: DataLoader[Batch] | None = DataLoader(
            _OneByOne(dataset),
            batch_sampler=self._order,
            num_workers=config.loader_processes,
            pin_memory=config.pin_memory,
            generator=torch.Generator(),  # it seeds the processes; torch's global one would move on with every epoch
            **several,
        )
        self._running: Any = None
        self._parts: Any = None
        # At exit multiprocessing sends its processes SIGTERM, which ours ignore, and waits for them. This comes first.
        atexit.register(self.close)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        assert self._loader is not None, "closed"
        self._end()
        self._order[:] = self._batches.epoch(epoch)[first:].tolist()
        with _telling():
            self._parts = iter(self._loader)
        self._running = self._read(self._parts)
        return self._running  # type: ignore[no-any-return]

    def _read(self, parts: Iterator[Any]) -> Iterator[Batch]:
        with _telling():
            for curves, targets in parts:
                yield curves.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)

    def _end(self) -> None:
        """Let go of the epoch that is being read: with it go processes that are not to be kept."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def close(self) -> None:
        atexit.unregister(self.close)
        self._end()
        # Its processes end when nobody refers to it, but an error that it raised does until it has been told.
        if (shut_down := getattr(self._parts, "_shutdown_workers", None)) is not None:
            shut_down()
        self._parts = self._loader = None


@contextmanager
def _telling() -> Iterator[None]:
    """Say what comes of a loader process that ends or cannot be started, or of memory that cannot be shared with it."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        said = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        remedy = "use loader memory, --loader-processes 0, or allow more (`ulimit -a`)"
        raise DataError(f"a process of loader dataloader failed: {said[0]}; {remedy}") from error


def _belong_to_trainer(number: int) -> None:
    """Let this loader process end with the trainer, and not before it.

    Signals to the whole job (Ctrl-C, a batch system's warning) are the trainer's to handle: it may still want to make
    its last steps and a checkpoint. When it is gone, killed without a chance to clean up, this process goes at once.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)
    trainer = multiprocessing.parent_process()
    assert trainer is not None

    def follow() -> None:
        wait([trainer.sentinel])
        os._exit(0)

    threading.Thread(target=follow, name="follow trainer", daemon=True).start()
