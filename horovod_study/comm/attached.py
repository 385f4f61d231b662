"""Attaches to the communication that somebody's own script has started; opens and closes nothing.

Which library it is tells the training itself first: a DistributedDataParallel model averages over torch.distributed, a
Horovod optimizer over Horovod. Where neither is given, the library that was started does: Horovod, torch.distributed,
MPI through mpi4py. A library that the script has not loaded is not loaded here.
"""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from horovod_study.comm.launch import detect
from horovod_study.errors import BackendError
from horovod_study.progress import say
from horovod_study.runtimes import TRANSPORTS

PATIENCE_S = 30.0
"""After so long somebody who waits for other ranks to enter is told what for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """The workers of somebody's script as they are, seen from this rank."""

    backend: str  # serial | horovod | ddp | mpi, or distributed: torch.distributed without DistributedDataParallel
    transport: str  # none | nccl | mpi | gloo
    reduction: str  # none | hooks | own: the script averages by itself, at a place that is not seen
    launcher: str
    rank: int
    workers: int
    gather: Callable[[Any], list[Any]]
    """Returns the (small, plain) values of all ranks, in the order of ranks, on every rank."""
    waits_seen: bool = False  # whether the calls are seen in which the script waits, although it averages by itself

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.gather(None)

    @property
    def sync_seen(self) -> bool:
        """Whether the wait for other workers has a place that is seen from here; one worker waits for nobody."""
        return self.reduction != "own" or self.waits_seen


class WaitNotice:
    """Says after a while that this rank waits for others, who may never come, and ends nothing."""

    def __init__(self, what: str) -> None:
        self._timer = threading.Timer(PATIENCE_S, say, [f"still waiting for the other ranks: {what}"])
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def averages_in_backward(model: nn.Module) -> bool:
    """Return whether the next backward of this model averages gradients before it returns, as DDP's does.

    Not inside `no_sync()`, where a DDP model leaves its gradients alone.
    """
    return isinstance(model, DistributedDataParallel) and bool(model.require_backward_grad_sync)


def averages_in_synchronize(optimizer: object) -> bool:
    """Return whether this is Horovod's DistributedOptimizer, whose `synchronize` waits for the averages."""
    return callable(getattr(optimizer, "synchronize", None)) and hasattr(optimizer, "skip_synchronize")


def averaging(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DDP model that `model` is, or that holds all of its parameters inside a wrapper, as Fabric's does."""
    if isinstance(model, DistributedDataParallel):
        return model
    found = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
    same = len(found) == 1 and set(map(id, found[0].parameters())) == set(map(id, model.parameters()))
    return found[0] if same else None


def bare(model: nn.Module) -> nn.Module:
    """Return the model inside PyTorch's wrappers for data parallelism, and in wrappers around those."""
    while True:
        inner = model if isinstance(model, nn.DataParallel) else averaging(model)
        if inner is None:
            return model
        model = inner.module


def attach(model: nn.Module, optimizer: object, *, on_gpu: bool) -> "Attached":
    """Return the workers that `model` and `optimizer` train with.

    Raises BackendError where a launcher started several processes and the script has not connected them yet.
    """
    launcher = detect(os.environ)
    # Each only where the script has started it.
    horovod, mpi4py, distributed = sys.modules.get("horovod.torch"), sys.modules.get("mpi4py.MPI"), torch.distributed
    horovod = horovod if horovod is not None and horovod.is_initialized() else None
    mpi = mpi4py.COMM_WORLD if mpi4py is not None and mpi4py.Is_initialized() and not mpi4py.Is_finalized() else None
    connected = distributed.is_available() and distributed.is_initialized()
    if averaging(model) is not None:
        return _over_distributed(model, launcher.launcher, on_gpu=on_gpu)
    if horovod is not None and (averages_in_synchronize(optimizer) or not connected):
        return _over_horovod(horovod, optimizer, launcher.launcher, on_gpu=on_gpu)
    if connected:
        return _over_distributed(model, launcher.launcher, on_gpu=on_gpu)
    if mpi is not None and mpi.Get_size() > 1:
        return Attached(
            backend="mpi",
            transport="mpi",
            reduction="own",
            launcher=launcher.launcher,
            rank=int(mpi.Get_rank()),
            workers=int(mpi.Get_size()),
            gather=mpi.allgather,
        )
    if launcher.workers > 1:
        raise BackendError(
            f"{launcher.launcher} started {launcher.workers} processes, but this script has not connected them; call "
            "hvd.init() or torch.distributed.init_process_group() before the first step"
        )
    return Attached(
        backend="serial",
        transport="none",
        reduction="none",
        launcher=launcher.launcher,
        rank=0,
        workers=1,
        gather=lambda value: [value],
    )


def _over_horovod(hvd: Any, optimizer: object, launcher: str, *, on_gpu: bool) -> Attached:
    def gather(value: Any) -> list[Any]:
        # Named, or it would bear the name of its type: a text here and None there would wait for ever.
        return list(hvd.allgather_object(value, name="horovod_study.recorder"))

    workers = int(hvd.size())
    controller = "mpi" if hvd.mpi_enabled() else "gloo"
    return Attached(
        backend="horovod",
        transport="nccl" if on_gpu and hvd.nccl_built() else controller,
        reduction="none" if workers == 1 else "hooks" if averages_in_synchronize(optimizer) else "own",
        launcher=launcher,
        rank=int(hvd.rank()),
        workers=workers,
        gather=gather,
    )


def _over_distributed(model: nn.Module, launcher: str, *, on_gpu: bool) -> Attached:
    dist = torch.distributed
    wrapped = averaging(model)
    group = None if wrapped is None else wrapped.process_group
    workers = int(dist.get_world_size(group))

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * workers
        dist.all_gather_object(values, value, group=group)
        return values

    named = str(dist.get_backend(group))
    return Attached(
        backend="distributed" if wrapped is None else "ddp",
        # Started without a name it has one library for each kind of device.
        transport=named if named in TRANSPORTS else "nccl" if on_gpu else "gloo",
        reduction="none" if workers == 1 else "own" if wrapped is None else "hooks",
        launcher=launcher,
        rank=int(dist.get_rank(group)),
        workers=workers,
        gather=gather,
    )
