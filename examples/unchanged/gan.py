"""Two networks against each other, each with its optimizer, under DDP; a turn of the loop updates both.

horovod-study record --out runs/gan/2w -- torchrun --nproc-per-node 2 examples/unchanged/gan.py
"""

import argparse

import torch
from torch import distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=32, help="samples of a step on one worker")
options = parser.parse_args()

torch.set_num_threads(1)
distributed.init_process_group("gloo")
torch.manual_seed(distributed.get_rank())
real = TensorDataset(torch.randn(options.steps * options.batch, 8) + 2)
maker = DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 8)))
judge = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)), broadcast_buffers=False)
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
yes, no = torch.ones(options.batch, 1), torch.zeros(options.batch, 1)

for (x,) in DataLoader(real, batch_size=options.batch):
    made = maker(torch.randn(options.batch, 4))
    of_judge.zero_grad()
    (cross_entropy(judge(x), yes) + cross_entropy(judge.module(made.detach()), no)).backward()
    of_judge.step()
    of_maker.zero_grad()
    cross_entropy(judge.module(made), yes).backward()
    of_maker.step()
if distributed.get_rank() == 0:
    print(f"made {made.mean().item():.2f}, real 2")
distributed.destroy_process_group()
