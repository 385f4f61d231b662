"""torch.distributed over NCCL or Gloo, launched by torchrun.

hooks    DistributedDataParallel, the default: buckets leave during backward; the wait is inside backward and
         cannot be seen from outside, so `sync_s` is null
flat     one all-reduce of one flat buffer after backward
"""

import os
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from horovod_study.comm.base import FlatGradients, Optimizer
from horovod_study.comm.launch import Launch
from horovod_study.config import RunConfig
from horovod_study.errors import BackendError


class DistributedBackend:
    """PyTorch's own data parallelism."""

    name = "ddp"

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if name not in os.environ]
        if missing:
            raise BackendError(
                f"backend ddp needs {', '.join(missing)} in the environment; launch with "
                "`torchrun --nproc-per-node N -m horovod_study.train --backend ddp`"
            )
        on_gpu = config.device != "cpu" and torch.cuda.is_available()
        self.transport = ("nccl" if on_gpu else "gloo") if config.transport == "auto" else config.transport
        available = {
            "gloo": dist.is_gloo_available(),
            "nccl": dist.is_nccl_available() and on_gpu,
            "mpi": dist.is_mpi_available(),
        }
        if not available.get(self.transport, False):
            have = [name for name, there in available.items() if there]
            raise BackendError(
                f"torch.distributed cannot use {self.transport} here (it can use {', '.join(have)}); "
                f"use --transport {have[0]}"
            )
        dist.init_process_group(self.transport, timeout=timedelta(seconds=max(config.start_timeout_s, 60)))
        self.rank, self.workers = dist.get_rank(), dist.get_world_size()
        asked = "hooks" if config.reduction == "auto" else config.reduction
        self.reduction = asked if self.workers > 1 else "none"
        self.sync_visible = self.reduction != "hooks"
        self.settings: dict[str, Any] = {}

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if self.reduction == "hooks":
            # The network's buffers are constants: sending them with every step would be for nothing.
            return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False), optimizer
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        if self.reduction == "flat":
            self._flat = FlatGradients(list(model.parameters()))
        return model, optimizer

    def zero_grad(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad()

    def synchronize(self, optimizer: Optimizer) -> None:
        if self.reduction == "flat":
            buffer = self._flat.pack()
            dist.all_reduce(buffer)
            buffer.div_(self.workers)

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.workers
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        dist.barrier()

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._reduced(values, dist.ReduceOp.SUM)

    def maximum(self, value: float) -> float:
        return float(self._reduced(np.array([value]), dist.ReduceOp.MAX)[0])

    def _reduced(self, values: NDArray[np.float64], operation: Any) -> NDArray[np.float64]:
        device = "cuda" if self.transport == "nccl" else "cpu"
        tensor = torch.from_numpy(values.copy()).to(device)
        dist.all_reduce(tensor, op=operation)
        return np.asarray(tensor.cpu().numpy())

    def close(self) -> None:
        dist.destroy_process_group()
