"""A data set that comes as a stream and has no length, of which each rank takes its share, under DDP.

horovod-study record --out runs/streaming/2w -- torchrun --nproc-per-node 2 examples/unchanged/streaming.py
"""

import argparse
from collections.abc import Iterator

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()


class Stream(IterableDataset):
    """Samples without end; rank r takes each one whose number leaves r."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        number, made = distributed.get_rank(), torch.Generator()
        while True:
            x = torch.randn(64, generator=made.manual_seed(number))
            yield x, x.square().sum(dim=0, keepdim=True)
            number += distributed.get_world_size()


torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.MSELoss()

for number, (x, y) in enumerate(DataLoader(Stream(), batch_size=options.batch), start=1):
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number == options.steps:
        break
if distributed.get_rank() == 0:
    print(f"loss {loss.item():.3f}")
distributed.destroy_process_group()
