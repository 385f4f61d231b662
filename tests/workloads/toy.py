"""A workload of the tests: a few numbers fitted by a few others, declared and trained in one file."""

import argparse
from pathlib import Path
from typing import Any

from horovod_study.config.roles import Option, Role
from horovod_study.config.workload import workload

OWN = Role.SWEEPABLE | Role.CELL
UNITS = Option(default=8, help="neurons", kind=int, low=1, roles=Role.MODEL | Role.LEARNING | OWN)
PARTS = Option(default=1, help="pieces of a batch", kind=int, low=1, roles=Role.COMPUTING | OWN, tries=(2,))
WORKLOAD = workload("toy", __file__, {"units": UNITS, "parts": PARTS}, samples="pairs")


def train(values: dict[str, Any], out: Path) -> None:
    """Train as the cell says, and leave its run directory in `out`."""
    import torch
    from torch import distributed, nn

    import horovod_study

    torch.manual_seed(values["seed"])
    model = nn.Sequential(nn.Linear(4, values["units"]), nn.ReLU(), nn.Linear(values["units"], 1))
    trained: nn.Module = model
    if values["backend"] == "ddp":
        distributed.init_process_group("gloo")
        trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wanted = {name: values[name] for name in ("batch", "warmup_steps", "study", "partition", "repeat")}
    own = {name: values[name] for name in ("units", "parts")}
    steps = values["warmup_steps"] + (values["steps"] or 300)
    with horovod_study.recorder(trained, optimizer, out=out, steady="declared", options=own, **wanted) as record:
        for x in record.steps(torch.randn(steps, values["batch"], 4)):
            optimizer.zero_grad()
            for part in x.chunk(values["parts"]):
                (trained(part) - part.sum(dim=1, keepdim=True)).square().mean().backward()
            optimizer.step()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    import yaml

    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    train(yaml.safe_load(options.config.read_text()), options.out)
