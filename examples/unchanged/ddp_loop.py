"""DistributedDataParallel over Gloo, with a sampler that shares out the data.

horovod-study record --out runs/ddp/2w -- torchrun --nproc-per-node 2 examples/unchanged/ddp_loop.py
"""

import argparse

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
inputs = torch.randn(distributed.get_world_size() * options.steps * options.batch, 64)
data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.MSELoss()

for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if distributed.get_rank() == 0:
    print(f"loss {loss.item():.3f}")
distributed.destroy_process_group()
