"""A training loop for benchmarks/recording.py, alone or under torchrun: recorded_loop.py LAYERS WIDTH BATCH.

It makes as many steps as each line of its input says, and prints the seconds of each, one JSON list for a line: those
of a clock, and those that the training's thread had a processor, which other programs change less.
"""

import json
import os
import sys
import time

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

layers, width, batch = (int(text) for text in sys.argv[1:])
torch.set_num_threads(1)
torch.manual_seed(1)
model: nn.Module = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
rank = int(os.environ.get("RANK", "0"))
if "WORLD_SIZE" in os.environ:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = TensorDataset(torch.randn(1, width).expand(10**9, width))  # more than is ever asked for
batches = iter(DataLoader(data, batch_size=batch))


def asked() -> int:
    """Return how many steps the next line asks for, 0 at the end; rank 0 tells the others."""
    count = torch.tensor(int(sys.stdin.readline() or 0) if rank == 0 else 0)
    if distributed.is_initialized():
        distributed.broadcast(count, 0)
    return int(count)


def make(steps: int) -> list[tuple[float, float]]:
    times, at = [], (time.perf_counter(), time.thread_time())
    for _ in range(steps):
        (x,) = next(batches)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        before, at = at, (time.perf_counter(), time.thread_time())
        times.append((at[0] - before[0], at[1] - before[1]))
    return times


while steps := asked():
    found = make(steps)
    if rank == 0:
        print(json.dumps(found), flush=True)
