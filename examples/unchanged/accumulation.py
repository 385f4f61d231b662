"""Gradients of four batches make one update; `no_sync` spares the averaging of all but the last.

horovod-study record --out runs/accumulation/2w -- torchrun --nproc-per-node 2 examples/unchanged/accumulation.py
"""

import argparse
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=100, help="updates")
parser.add_argument("--batch", type=int, default=8, help="samples of a turn on one worker")
parser.add_argument("--turns", type=int, default=4, help="of an update")
options = parser.parse_args()

torch.set_num_threads(1)
distributed.init_process_group("gloo")
torch.manual_seed(distributed.get_rank())
inputs = torch.randn(options.steps * options.turns * options.batch, 64)
loader = DataLoader(TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True)), batch_size=options.batch)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.MSELoss()

for turn, (x, y) in enumerate(loader, start=1):
    last = turn % options.turns == 0
    with nullcontext() if last else model.no_sync():
        loss = criterion(model(x), y) / options.turns
        loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
if distributed.get_rank() == 0:
    print(f"loss {options.turns * loss.item():.3f}")
distributed.destroy_process_group()
