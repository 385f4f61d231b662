"""ResNet-18 on images of CIFAR's size, recorded: one worker, Horovod or DistributedDataParallel.

    python examples/resnet18_cifar.py --out runs/resnet/1w
    horovodrun -np 2 python examples/resnet18_cifar.py --out runs/resnet/2w-horovod
    torchrun --nproc-per-node 2 examples/resnet18_cifar.py --out runs/resnet/2w-ddp
    horovod-study report runs/resnet

The images are made up (each class has a pattern, under noise), so that nothing has to be downloaded.
The network is that of He et al. (CVPR 2016) in the form that is usual for 32 x 32 pixels: its first convolution is
3 x 3 and nothing is pooled after it. With --width 64 it has 11,173,962 parameters; a smaller width is for trying.

Letters: N images in all, B images per worker and step, K = 10 classes, W the width.
"""

import argparse
import gc
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod_study

CLASSES = 10


class Block(nn.Module):
    """Two 3 x 3 convolutions and the way around them: (B, inside, H, H) -> (B, outside, H / stride, H / stride)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet18(nn.Sequential):
    """The network (B, 3, 32, 32) -> (B, K): four stages of two blocks, of W, 2 W, 4 W and 8 W channels."""

    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        inside = width
        for stage in range(4):
            outside = width * 2**stage
            layers += [Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1)]
            inside = outside
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


def made_up_images(count: int) -> TensorDataset:
    """Return N images (N, 3, 32, 32) and their classes (N,), the same on every rank."""
    make = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (count,), generator=make)
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=make)
    return TensorDataset(patterns[labels] + torch.randn(count, 3, 32, 32, generator=make), labels)


def start_workers() -> tuple[str, int, int]:
    """Start the library that the launcher is for; return its name, this rank and the number of workers."""
    if "RANK" in os.environ:  # torchrun
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return "ddp", torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "OMPI_COMM_WORLD_RANK" in os.environ or "HOROVOD_RANK" in os.environ:  # horovodrun, mpirun
        import horovod.torch as hvd

        hvd.init()
        return "horovod", hvd.rank(), hvd.size()
    return "none", 0, 1


def train(options: argparse.Namespace, library: str, rank: int, workers: int) -> None:
    """Train for so many steps, over as many epochs as they need."""
    device = (
        torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    images = made_up_images(options.images)
    sampler = DistributedSampler(images, workers, rank) if workers > 1 else None
    loader = DataLoader(images, options.batch, sampler=sampler, shuffle=sampler is None, drop_last=True)

    torch.manual_seed(0)
    model = ResNet18(options.width).to(device)
    if library == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if library == "horovod":
        import horovod.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    step = epoch = 0
    with horovod_study.recorder(model, optimizer, out=options.out, warmup_steps=options.warmup_steps) as record:  # 1
        while step < options.steps:
            if sampler is not None:
                sampler.set_epoch(epoch)
            for x, labels in record.steps(loader):  # 2
                x, labels = x.to(device), labels.to(device)  # (B, 3, 32, 32), (B,)
                record.lap("data")  # the copy to the device is data, too
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), labels)
                record.lap("forward")  # 3
                record.loss(loss)
                loss.backward()
                optimizer.step()
                step += 1
                if step == options.steps:
                    break
            epoch += 1


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="run directory (default: a new one below runs/)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup-steps", type=int, default=50, help="how many of them are not measured")
    parser.add_argument("--batch", type=int, default=128, help="images per worker and step")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--images", type=int, default=50_000, help="size of the data set")
    options = parser.parse_args()
    library, rank, workers = start_workers()
    if workers > 1 and not torch.cuda.is_available():
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    train(options, library, rank, workers)
    if library == "ddp":
        gc.collect()  # cycles hold the model, and it the group: PyTorch may abort if the group is gone before it
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
