"""The same training as a user would write it without this package: the other side of `make bench`.

TensorDataset and DataLoader, one-dimensional layers, Adam, and Horovod's DistributedOptimizer or torch's
DistributedDataParallel with their default settings, as in the two projects' own examples. One compute thread, as on
the other side. On a GPU (--device cuda) batches come from the DataLoader and are copied, or, with --resident, all data
is in the memory of the GPU and batches are taken from it. Prints one line of JSON: {"samples_per_s": ...}.
"""

import argparse
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WARMUP_STEPS = 30


def network() -> nn.Module:
    """The strain-stress CNN in the order of the textbook."""
    return nn.Sequential(
        nn.Conv1d(3, 15, 5),
        nn.ReLU(),
        nn.MaxPool1d(3),
        nn.Conv1d(15, 38, 5),
        nn.ReLU(),
        nn.MaxPool1d(3),
        nn.Flatten(),
        nn.Linear(760, 197),
        nn.ReLU(),
        nn.Linear(197, 2),
    )


def resident_batches(
    curves: torch.Tensor, targets: torch.Tensor, batch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch of data that is where it is computed on, curves (S, C, L), targets (S, P): shuffled there."""
    for rows in torch.randperm(len(curves), device=curves.device).split(batch):  # type: ignore[no-untyped-call]
        if len(rows) == batch:
            yield curves[rows], targets[rows]


def step(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One update from one batch, as every tutorial has it."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def main() -> None:
    """Train for a time, count the samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("plain", "horovod", "ddp"), required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--loader-processes", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the way plain")
    parser.add_argument("--resident", action="store_true", help="all data on the device, no DataLoader; way plain")
    options = parser.parse_args()
    if options.way != "plain" and (options.device != "cpu" or options.resident):
        parser.error("--device and --resident are for --way plain")
    device = torch.device(options.device)
    torch.set_num_threads(1)

    rank, workers = 0, 1
    hvd: Any = None
    if options.way == "horovod":
        hvd = importlib.import_module("horovod.torch")
        hvd.init()
        rank, workers = hvd.rank(), hvd.size()
    elif options.way == "ddp":
        torch.distributed.init_process_group("gloo")
        rank, workers = torch.distributed.get_rank(), torch.distributed.get_world_size()

    curves = np.load(options.dataset / "curves.npy")
    targets = np.load(options.dataset / "targets.npy")
    training = np.arange(len(curves)) % 4 != 3
    data = TensorDataset(torch.from_numpy(curves[training]), torch.from_numpy(targets[training]))
    sampler: Any = DistributedSampler(data, workers, rank) if workers > 1 else None
    loader = DataLoader(
        data,
        batch_size=options.batch,
        sampler=sampler,
        shuffle=sampler is None,
        num_workers=options.loader_processes,
        drop_last=True,
    )
    resident = [part.to(device) for part in data.tensors] if options.resident else None
    torch.manual_seed(1)
    model = network().to(device)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=4.7331e-4)
    if hvd is not None:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    elif options.way == "ddp":
        model = nn.parallel.DistributedDataParallel(model)

    def agreed_end(seconds: float) -> bool:
        """Whether rank 0's time is up; asked rarely, so that all ranks stop at the same step at no cost."""
        flag = torch.tensor([float(seconds >= options.seconds)])
        if hvd is not None:
            hvd.broadcast_(flag, root_rank=0)
        elif options.way == "ddp":
            torch.distributed.broadcast(flag, src=0)
        return bool(flag.item())

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    done = epoch = 0
    opened = time.perf_counter()
    ended = False
    while not ended:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader if resident is None else resident_batches(resident[0], resident[1], options.batch):
            if done == WARMUP_STEPS:
                settle()
                opened = time.perf_counter()
            step(model, optimizer, x.to(device), y.to(device))
            done += 1
            if done % 20 == 0 and done > WARMUP_STEPS and agreed_end(time.perf_counter() - opened):
                ended = True
                break
        epoch += 1
    settle()
    seconds = time.perf_counter() - opened
    if rank == 0:
        print(json.dumps({"samples_per_s": (done - WARMUP_STEPS) * options.batch * workers / seconds}), flush=True)
    if hvd is not None:
        hvd.shutdown()
    elif options.way == "ddp":
        torch.distributed.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
