"""A plain DistributedDataParallel script, as they are found everywhere, with the three lines that record it.

    torchrun --nproc-per-node 2 examples/ddp_plain.py --out runs/plain/2w
    horovod-study report runs/plain

The three lines are marked 1, 2 and 3; examples/README.md shows them as a diff. Everything else knows nothing of them.
"""

import argparse
import gc
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod_study


def train(options: argparse.Namespace) -> None:
    """Fit a small network to made-up numbers: inputs (B, 64) to targets (B, 1)."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    inputs = torch.randn(options.steps * options.batch, 64)
    data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, drop_last=True)

    model = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 1)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()

    with horovod_study.recorder(model, optimizer, out=options.out, warmup_steps=options.warmup_steps) as record:  # 1
        for epoch in range(distributed.get_world_size()):  # each rank has its share of the steps in an epoch
            sampler.set_epoch(epoch)
            for x, y in record.steps(loader):  # 2
                optimizer.zero_grad()
                loss = criterion(model(x.to(device)), y.to(device))
                record.lap("forward")  # 3
                loss.backward()
                optimizer.step()
        if distributed.get_rank() == 0:
            print(f"loss {loss.item():.3f}")


def main() -> None:
    """Read the options, connect the workers, train, and part again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="run directory (default: a new one below runs/)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup-steps", type=int, default=50, help="how many of them are not measured")
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--width", type=int, default=512, help="neurons of the hidden layer")
    options = parser.parse_args()
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if not torch.cuda.is_available():
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // distributed.get_world_size()))
    train(options)
    gc.collect()  # cycles hold the model, and it the group: PyTorch may abort at the end if the group is gone before it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
