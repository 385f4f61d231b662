"""Horovod's DistributedOptimizer, with parameters and the optimizer's state broadcast from rank 0.

horovod-study record --out runs/horovod/2w -- horovodrun --gloo -np 2 python examples/unchanged/horovod_loop.py
"""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(hvd.size() * options.steps * options.batch, 64)
data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
criterion = nn.MSELoss()

for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
if hvd.rank() == 0:
    print(f"loss {loss.item():.3f}")
