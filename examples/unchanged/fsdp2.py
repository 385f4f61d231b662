"""FSDP2: `fully_shard` spreads parameters, gradients and optimizer state over the ranks; no data loader.

horovod-study record --out runs/fsdp2/2w -- torchrun --nproc-per-node 2 examples/unchanged/fsdp2.py
"""

import argparse

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())

for _ in range(options.steps):
    x = torch.randn(options.batch, 64)
    loss = (model(x) - x.square().sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if distributed.get_rank() == 0:
    print(f"loss {loss.item():.3f}")
distributed.destroy_process_group()
