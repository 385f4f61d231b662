"""A training job of two ranks in one process: this one, and one that does exactly the same. Its time is made up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from horovod_study.comm.base import SerialBackend
from horovod_study.comm.launch import detect
from horovod_study.measure.clock import LapClock
from horovod_study.strain.loaders import Batch
from horovod_study.strain.optimizer import Arithmetic
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.scratch import Scratch
from horovod_study.strain.trainer import train_step

CONFIG = StrainConfig(dataset="400", steps=1, device="cpu")


class Time:
    """A clock that goes on only when it is told to: `time.passes(0.003)` is 3 ms, more or less by `noise`."""

    def __init__(self, noise: float = 0.0) -> None:
        self.at, self._noise, self._random = 0.0, noise, np.random.default_rng(11)

    def __call__(self) -> float:
        return self.at

    def passes(self, seconds: float) -> None:
        self.at += seconds * (1 + self._noise * float(self._random.standard_normal()))

    def clock(self) -> LapClock:
        return LapClock(self)


class TwinBackend(SerialBackend):
    """Two ranks that do the same: the other one's gradients are equal, and averaging them only takes its time."""

    workers = 2
    reduction = "flat"

    def __init__(self, transfer: Callable[[], None]) -> None:
        super().__init__(CONFIG, detect({}))
        self._transfer, self.silent, self.synchronised = transfer, False, 0

    def synchronize(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.silent:
            self._transfer()
            self.synchronised += 1

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.silent = True
        yield
        self.silent = False

    def gather(self, value: Any) -> list[Any]:
        if isinstance(value, list):
            return [value, [{**row, "rank": 1} for row in value]]
        return [value, value]


class Batches:
    """Endless epochs of three batches of two curves."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(epoch)
        for _ in range(start, 3):
            yield torch.randn(2, 3, 4, generator=random), torch.randn(2, 2, generator=random)


def job(
    transfer: Callable[[], None] = lambda: None,
    *,
    forward: Callable[[], None] = lambda: None,
    backward: Callable[[TwinBackend], None] = lambda backend: None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
) -> Scratch:
    """Return the job; `forward`, `backward` and `transfer` are called in these laps, and take what time they take."""

    class Network(nn.Sequential):
        def forward(self, curves: torch.Tensor) -> torch.Tensor:
            forward()
            return super().forward(curves)

    torch.manual_seed(3)
    network = Network(nn.Flatten(), nn.Linear(12, 2), nn.BatchNorm1d(2))
    backend = TwinBackend(transfer)
    network[1].bias.register_post_accumulate_grad_hook(lambda _: backward(backend))
    return Scratch(
        backend=backend,
        model=network,
        bare_model=network,
        optimizer=optimizer(network.parameters(), lr=0.01),
        arithmetic=Arithmetic(CONFIG, torch.device("cpu")),
        loader=Batches(),  # type: ignore[arg-type]
        device=torch.device("cpu"),
        train_step=train_step,
    )
