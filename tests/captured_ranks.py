"""A rank program: are captured steps between which gradients are averaged the plain ones? `BACKEND OUT`.

Rank 0 writes what it found, one line of JSON for each kind of step. HOROVOD_STUDY_REPLAY_ON_HOST=1 is needed.
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from horovod_study.comm import Backend, detect, open_backend
from horovod_study.measure.clock import LapClock
from horovod_study.strain.graphs import CapturedStep, Resident
from horovod_study.strain.model import StressCNN
from horovod_study.strain.optimizer import Arithmetic, make_optimizer
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.trainer import train_step

BATCH, CURVES, STEPS = 4, 40, 6


def look(backend: Backend, config: StrainConfig, *, phases: bool) -> dict[str, Any]:
    """Train the same steps plain and captured; every rank has curves of its own."""
    device = torch.device("cpu")
    torch.manual_seed(7)
    model = StressCNN(widths=(4, 8, 16))
    start = copy.deepcopy(model.state_dict())
    torch.manual_seed(100 + backend.rank)
    curves, targets = torch.randn(CURVES, 3, 201), torch.randn(CURVES, 2)
    order = torch.randint(0, CURVES, (STEPS, BATCH))
    arithmetic, clock = Arithmetic(config, device), LapClock()
    optimizer, _ = make_optimizer(config, model.parameters(), workers=backend.workers)
    called, optimizer = backend.bind(model, optimizer)
    begin = copy.deepcopy(optimizer.state_dict())
    captured = CapturedStep(
        config, model=called, bare_model=model, optimizer=optimizer, backend=backend, arithmetic=arithmetic,
        device=device, resident=Resident(curves=curves, targets=targets), phases=phases,
    )  # fmt: skip
    start_kept = all(torch.equal(value, start[name]) for name, value in model.state_dict().items())

    def plain() -> list[torch.Tensor]:
        return [
            train_step(called, optimizer, curves[rows], targets[rows], backend, clock, arithmetic) for rows in order
        ]

    def taken() -> list[torch.Tensor]:
        captured.begin_epoch(order)
        losses = []
        for _ in order:
            losses.append(captured.take(None, clock))
            norms.append(captured.norm2)
        return losses

    clock.start()
    clock.begin()
    norms: list[Any] = []
    runs = {}
    for way in (plain, taken):
        model.load_state_dict(start)
        optimizer.load_state_dict(begin)
        captured.forget()
        losses = [each.item() for each in way()]
        runs[way.__name__] = losses, torch.cat([each.detach().flatten() for each in model.parameters()])
    weights = runs["taken"][1]
    last_norm2 = backend.local_norm2
    return {
        "reduction": backend.reduction,
        "source": backend.settings["reduction"]["source"],
        "start kept": start_kept,
        "losses equal": runs["plain"][0] == runs["taken"][0],
        "weights equal": bool(torch.equal(runs["plain"][1], weights)),
        "ranks equal": len(set(backend.gather(weights.sum().item()))) == 1,
        "own losses": len(set(backend.gather(runs["taken"][0][0]))) == backend.workers,
        "norm2 kept": last_norm2 is not None and norms[-1].item() == last_norm2.item() != norms[0].item(),
    }


def main() -> None:
    """Look at both kinds of steps."""
    name, out = sys.argv[1:]
    config = StrainConfig(backend=name, cuda_graphs=True, batch=BATCH, lr=2e-3, optimizer="sgd")
    backend = open_backend(config, detect(os.environ))
    found = [look(backend, config, phases=phases) for phases in (False, True)]
    if backend.rank == 0:
        Path(out).write_text("".join(f"{json.dumps(each)}\n" for each in found))
    backend.barrier()
    backend.close()


if __name__ == "__main__":
    main()
