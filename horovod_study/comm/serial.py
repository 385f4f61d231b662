"""One worker and no communication library: the `plain` baseline."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from horovod_study.comm.base import Averaging, Optimizer
from horovod_study.comm.launch import Launch
from horovod_study.config.run import RunConfig
from horovod_study.errors import BackendError


class SerialBackend(Averaging):
    """Every collective of one rank is the identity."""

    name = "serial"
    transport = "none"
    reduction = "none"
    rank = 0
    workers = 1
    local_norm2 = None

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        if launch.workers > 1:
            raise BackendError(
                f"backend serial is one worker, but {launch.named} started {launch.workers}; "
                "use --backend auto, or start one process"
            )
        self.settings: dict[str, Any] = {}

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return model, optimizer

    def synchronize(self, optimizer: Optimizer) -> None:
        pass

    def exchange(self) -> None:
        pass

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
