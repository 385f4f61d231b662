"""torch.distributed over NCCL or Gloo, launched by torchrun, or by mpirun or srun with MASTER_ADDR and MASTER_PORT set;
over MPI, where PyTorch was built with it, launched by mpirun.

flat     one all-reduce of one flat buffer after backward
hooks    DistributedDataParallel: backward returns when all buckets are averaged; a hook sees this rank's last gradient
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from horovod_study.comm import gpus, settings
from horovod_study.comm.base import Averaging, FlatGradients, LastGradient, Optimizer
from horovod_study.comm.launch import (
    Launch,
    find_open_mpi,
    meeting_at,
    meeting_point,
    require_connection,
    require_interfaces,
    require_launchers_mpi,
)
from horovod_study.comm.liveness import PATIENCE
from horovod_study.comm.priority import NewThreads
from horovod_study.config.run import COMMUNICATION, OPTIONS, RunConfig
from horovod_study.config.variables import whole_number
from horovod_study.errors import BackendError

_HOOKS_ONLY = tuple(name for name in COMMUNICATION if OPTIONS[name].hooks and OPTIONS[name].matters("ddp/gloo"))
"""Options of DistributedDataParallel."""


_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Where launchers say which of the ranks of its host this one is: torchrun first, it may run under the others."""


def local_rank(environ: Mapping[str, str]) -> int:
    """Return which of the ranks of its host this process is, 0 where nobody says."""
    told = (whole_number(name, environ) for name in _LOCAL_RANKS)
    return next((number for number in told if number is not None), 0)


class DistributedBackend(Averaging):
    """PyTorch's own data parallelism."""

    name = "ddp"

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        on_gpu = config.device != "cpu" and torch.cuda.is_available()
        self.transport = ("nccl" if on_gpu else "gloo") if config.transport == "auto" else config.transport
        have = [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]
        have = [name for name in have if name != "nccl" or on_gpu]
        if self.transport not in have:
            raise BackendError(
                f"torch.distributed cannot use {self.transport} here (it can use {', '.join(have)}); "
                f"use --transport {have[0]}"
            )
        met = None if self.transport == "mpi" else meeting_point(os.environ)
        if launch.launcher == "torchrun":
            met = None  # torch reads it itself
        own = () if launch.launcher in ("mpirun", "srun") else ("RANK", "WORLD_SIZE")
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", *own) if name not in os.environ]
        if missing and not met and self.transport != "mpi":  # MPI connects its ranks itself
            raise BackendError(
                f"backend ddp needs {', '.join(missing)} in the environment; launch with "
                "`torchrun --nproc-per-node N -m horovod_study.train --backend ddp`, or with mpirun or srun and "
                "MASTER_ADDR and MASTER_PORT set to the host of rank 0 and a free port there"
            )
        if self.transport == "mpi":
            require_connection(launch)
            find_open_mpi()
        else:
            require_interfaces(os.environ, "GLOO_SOCKET_IFNAME")
        self.settings: dict[str, Any] = settings.apply(f"ddp/{self.transport}", config=config)
        before = NewThreads()
        # Longer than a rank may take between two steps: who is late is named before this is over, see liveness.py.
        patient_s = max(config.start_timeout_s, 60, 2 * PATIENCE * config.stall_timeout_s)
        patience, how = timedelta(seconds=patient_s), dict[str, Any]()
        if met is not None:  # torchrun tells the ranks in the way that torch knows, mpirun and srun do not
            with meeting_at(*met, launch.rank):
                store = dist.TCPStore(*met, launch.workers, is_master=launch.rank == 0, timeout=patience)  # type: ignore[attr-defined]
            how = {"store": store, "rank": launch.rank, "world_size": launch.workers}
        dist.init_process_group(self.transport, timeout=patience, **how)
        self.capturable = self.transport == "nccl"
        self.rank, self.workers = dist.get_rank(), dist.get_world_size()
        self._aside: Any = None
        if self.transport == "nccl":
            # What the ranks tell each other goes through Gloo, as it does in PyTorch where no backend is named: over
            # NCCL it would wait for all steps that the GPU still has to make, and NCCL connects on the GPU of a rank,
            # which they have to agree on first.
            self._aside = dist.new_group(backend="gloo", timeout=patience)
            gpus.require_own(self, instead="--transport gloo")
            dist.barrier(device_ids=[gpus.take("cuda", self).index])  # NCCL connects here, while the start is watched
        require_launchers_mpi(launch, self.workers, "torch.distributed")
        self._asked = dist.new_group(backend="gloo") if self.transport != "mpi" else None  # while others wait
        self._config = config
        self.reduction = config.reduction if self.workers > 1 else "none"
        self._hooked: DistributedDataParallel | None = None
        if self.transport == "gloo":
            self.barrier()  # Gloo's threads are there when the first message has passed
            self.settings["thread_priority"] = before.prioritise(config.thread_priority)

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        config = self._config
        asked = [name for name in _HOOKS_ONLY if getattr(config, name) != OPTIONS[name].default]
        # Its buckets are packed without Python, also where all gradients fit into one: docs/bench.md.
        self.choose(model, hooks_asked=bool(asked), hooks_because="torch's own buckets cost less than a flat buffer")
        if self.reduction == "hooks":
            self.last_gradient = LastGradient(model.parameters())
            for name in _HOOKS_ONLY[1:]:
                value = getattr(config, name)
                self.settings[name] = {"value": value, "source": "asked" if name in asked else "shipped"}
            # torch counts in MiB. Left to itself, it makes the first bucket 1 MiB, so that communication begins early.
            size_mb, own = config.bucket_mb, {"value": 25 * 2**20 / 1e6, "source": "library default"}
            self.settings["bucket_mb"] = own if size_mb is None else {"value": size_mb, "source": "asked"}
            self._hooked = DistributedDataParallel(
                model,
                bucket_cap_mb=None if size_mb is None else size_mb * 1e6 / 2**20,
                gradient_as_bucket_view=config.bucket_view,
                # Off as shipped: the network's buffers are constants, and to send them with every step is for nothing.
                broadcast_buffers=config.broadcast_buffers,
                static_graph=config.static_graph,
            )
            return self._hooked, optimizer
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        if self.reduction == "flat":
            self.flat = FlatGradients(model.parameters(), workers=self.workers)
        return model, optimizer

    def exchange(self) -> None:
        if self.flat is not None and not self.silent:
            dist.all_reduce(self.flat.buffer)  # of shares: the mean

    def _silence(self, silent: bool) -> None:
        super()._silence(silent)
        if self._hooked is not None:
            self._hooked.require_backward_grad_sync = not silent  # as its own no_sync does

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.workers
        dist.all_gather_object(values, value, group=self._aside)
        return values

    def barrier(self) -> None:
        dist.barrier(group=self._aside)

    def maximum(self, value: float) -> float:
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._aside)
        return float(tensor.item())

    def find_missing(self, timeout_s: float) -> str:
        said: list[str] = []

        def ask() -> None:
            try:
                dist.monitored_barrier(self._asked, timedelta(seconds=timeout_s), wait_all_ranks=True)
            except RuntimeError as error:
                said.append(str(error))

        if self._asked is not None:
            asking = Thread(target=ask, daemon=True)
            asking.start()
            asking.join(timeout_s + 1.0 if self.rank == 0 else 1.0)  # rank 0 knows; its answer comes late or never
        return "".join(said)

    def close(self) -> None:
        dist.destroy_process_group()
