"""One worker and no communication library: the `plain` baseline."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from horovod_study.comm.base import FlatGradients, LastGradient, Optimizer
from horovod_study.comm.launch import Launch
from horovod_study.config import RunConfig
from horovod_study.errors import BackendError


class SerialBackend:
    """Every collective of one rank is the identity."""

    name = "serial"
    transport = "none"
    reduction = "none"
    rank = 0
    workers = 1
    flat: FlatGradients | None = None
    capturable = False
    local_norm2 = None
    last_gradient: LastGradient | None = None

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        if launch.workers > 1:
            raise BackendError(
                f"backend serial is one worker, but {launch.named} started {launch.workers}; "
                "use --backend auto, or start one process"
            )
        self.settings: dict[str, Any] = {}

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def zero_grad(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()

    def synchronize(self, optimizer: Optimizer) -> None:
        pass

    def pack_gradients(self) -> None:
        pass

    def exchange(self) -> None:
        pass

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values

    def maximum(self, value: float) -> float:
        return value

    def close(self) -> None:
        pass
