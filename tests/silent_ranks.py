"""A rank program: does a silent step average nothing, and a normal one after it as before? `BACKEND OUT WAY ...`

A way is options of StrainConfig as JSON. The ranks make different numbers of silent steps: a message would wait
for ever.
Rank 0 writes what it found, one line of JSON for each way.
"""

import copy
import json
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from horovod_study.comm import Backend, detect, open_backend
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import StrainConfig

SILENT_STEPS = {0: 2, 1: 5}


def look(backend: Backend) -> dict:
    torch.manual_seed(7)
    bare = StressCNN(widths=(4, 8, 16))
    start = copy.deepcopy(bare)
    model, optimizer = backend.bind(bare, torch.optim.Adam(bare.parameters(), lr=1e-3))
    torch.manual_seed(100 + backend.rank)
    curves, targets = torch.randn(6, 3, 201), torch.randn(6, 2)

    def gradients(called: torch.nn.Module, network: torch.nn.Module) -> list[torch.Tensor]:
        F.mse_loss(called(curves), targets).backward()
        return [each.grad for each in network.parameters()]

    def begun() -> int:
        """Return how many messages are under way."""
        buckets = getattr(backend, "_buckets", None)
        handles = getattr(optimizer, "_handles", {}).values()
        return buckets._next if buckets else sum(handle is not None for handle, _ in handles)

    def own() -> list[torch.Tensor]:
        return gradients(alone := copy.deepcopy(start), alone)

    def normal() -> list[torch.Tensor]:
        bare.load_state_dict(start.state_dict())
        backend.zero_grad(optimizer)
        gradients(model, bare)
        sent.append(begun())
        backend.synchronize(optimizer)
        averaged = [each.grad.clone() for each in bare.parameters()]
        backend.step(optimizer)
        return averaged

    sent: list[int] = []  # messages under way after the backward of each normal step
    mean = [torch.stack(each).mean(0) for each in zip(*backend.gather(own()), strict=True)]
    for _ in range(3):  # a graph that is static is learnt in the first, and DDP makes its buckets again after it
        before = normal()
    norm2 = None if backend.local_norm2 is None else backend.local_norm2.item()
    silent_is_own = True
    with backend.no_sync():
        for _ in range(SILENT_STEPS[backend.rank]):
            bare.load_state_dict(start.state_dict())
            backend.zero_grad(optimizer)
            gradients(model, bare)
            silent_is_own = silent_is_own and begun() == 0
            backend.synchronize(optimizer)
            same = [torch.equal(a.grad, b) for a, b in zip(bare.parameters(), own(), strict=True)]
            silent_is_own = silent_is_own and all(same)
            backend.step(optimizer)
    after = normal()
    try:
        with backend.no_sync():
            raise KeyError
    except KeyError:
        again = normal()
    return {
        "reduction": backend.reduction,
        "means": all(torch.allclose(a, b, atol=1e-6) for a, b in zip(before, mean, strict=True)),
        "silent is own": all(backend.gather(silent_is_own)),
        "own is not the mean": not any(torch.equal(a, b) for a, b in zip(own(), mean, strict=True)),
        "as before": all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(before, after, again, strict=True)),
        # Those that leave in backward are as many as before, or they would be sent later, and look slower.
        "sent in backward": len(set(sent)) == 1
        and (sent[0] > 0) == (backend.reduction == "hooks" and backend.name != "ddp"),
        "norm2 as before": norm2 == (None if backend.local_norm2 is None else backend.local_norm2.item()),
    }


if __name__ == "__main__":
    name, out, *ways = sys.argv[1:]
    found = []
    for text in ways:
        config = StrainConfig(backend=name, dataset="400", steps=1, device="cpu", **json.loads(text))
        backend = open_backend(config, detect(os.environ))
        found.append(look(backend))
        # What is open serves the next way too: neither MPI nor a group of torch can be ended and begun again.
        torch.distributed.init_process_group = lambda *given, **named: None
    if backend.rank == 0:
        Path(out).write_text("\n".join(map(json.dumps, found)))
    backend.close()
    sys.stdout.flush()
    os._exit(0)
