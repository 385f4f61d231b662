"""One flat MPI all-reduce through mpi4py: the least that averaging gradients can cost, and the floor for the others."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from horovod_study.comm import settings
from horovod_study.comm.base import FlatGradients, Optimizer
from horovod_study.comm.horovod import find_open_mpi
from horovod_study.comm.launch import Launch
from horovod_study.config import RunConfig
from horovod_study.errors import BackendError


class MpiBackend:
    """MPI without a runtime between it and the training loop."""

    name = "mpi"
    transport = "mpi"
    sync_visible = True

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        if launch.launcher in ("horovodrun --gloo", "torchrun"):
            raise BackendError(f"backend mpi needs mpirun, but {launch.launcher} started this run; launch with mpirun")
        self.settings = settings.apply("mpi/mpi", library_defaults=config.horovod_defaults)
        find_open_mpi()
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise BackendError(
                f"mpi4py cannot be loaded by {sys.executable} ({error}); run `make setup`, or use --backend ddp"
            ) from None
        self._MPI = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.workers = self._world.Get_rank(), self._world.Get_size()
        self.reduction = "flat" if self.workers > 1 else "none"

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        for parameter in model.parameters():
            start = parameter.detach().cpu().contiguous()
            self._world.Bcast(start.numpy(), root=0)
            parameter.data.copy_(start)
        if self.reduction == "flat":
            self._flat = FlatGradients(list(model.parameters()))
        return model, optimizer

    def zero_grad(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()

    def synchronize(self, optimizer: Optimizer) -> None:
        if self.reduction == "flat":
            buffer = self._flat.pack()
            staged = buffer.cpu()  # the buffer itself on a CPU, a copy of it from a GPU
            self._world.Allreduce(self._MPI.IN_PLACE, staged.numpy())
            buffer.copy_(staged.div_(self.workers))

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def gather(self, value: Any) -> list[Any]:
        return list(self._world.allgather(value))

    def barrier(self) -> None:
        self._world.Barrier()

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.empty_like(values)
        self._world.Allreduce(values, total)
        return total

    def maximum(self, value: float) -> float:
        return float(self._world.allreduce(value, op=self._MPI.MAX))

    def close(self) -> None:
        self._MPI.Finalize()
