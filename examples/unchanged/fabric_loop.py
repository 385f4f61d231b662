"""Lightning Fabric around a plain loop.

horovod-study record --out runs/fabric/2w -- torchrun --nproc-per-node 2 examples/unchanged/fabric_loop.py
"""

import argparse
import os

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
workers = int(os.environ.get("WORLD_SIZE", 1))
fabric = Fabric(accelerator="cpu", devices=workers, strategy="ddp")
fabric.launch()
inputs = torch.randn(fabric.world_size * options.steps * options.batch, 64)
data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=options.batch))
criterion = nn.MSELoss()

for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
fabric.print(f"loss {loss.item():.3f}")
