"""A plain PyTorch loop, and nothing else: one process.

horovod-study record --out runs/plain/1w -- python examples/unchanged/plain_loop.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step")
options = parser.parse_args()

torch.manual_seed(0)
inputs = torch.randn(options.steps * options.batch, 64)
loader = DataLoader(TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True)), batch_size=options.batch)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.MSELoss()

for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
