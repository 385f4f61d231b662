"""HuggingFace Accelerate around a plain loop.

    horovod-study record --out runs/accelerate/2w -- torchrun --nproc-per-node 2 examples/unchanged/accelerate_loop.py

On GPUs `accelerate launch --num_processes 2` starts the ranks; without one it starts a single process.
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
inputs = torch.randn(accelerator.num_processes * options.steps * options.batch, 64)
data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=options.batch))
criterion = nn.MSELoss()

for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
accelerator.print(f"loss {loss.item():.3f}")
accelerator.end_training()
