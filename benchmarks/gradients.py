"""`make bench`: four ways to lay out the gradients for one all-reduce, on one worker with one thread.

What is measured is the step with a given layout but without any communication, so that only the cost of the layout is
seen. All ways alternate, a few steps each, in one process; ratios are of the same turn.

    separate     as autograd leaves them: what a worker alone does
    packed       copied into one buffer after backward: what the backends with flat reduction do
    zero-copy    views of one buffer that autograd adds into; the buffer is set to zero before each step
    flat         zero-copy, with the parameters views of one tensor as well, which the optimiser updates as one
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from horovod_study.comm.base import FlatGradients
from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.strain.model import StressCNN
from horovod_study.strain.room import keep_freed_memory
from horovod_study.text.progress import say

HERE = Path(__file__).parent
WAYS = ("separate", "packed", "zero-copy", "flat")


def make_step(way: str, curves: torch.Tensor, targets: torch.Tensor) -> Callable[[], float]:
    """Return a function that makes one training step and returns its loss; all ways start from the same parameters."""
    torch.manual_seed(1)
    model = StressCNN()
    trained: list[nn.Parameter] = list(model.parameters())
    packing = FlatGradients(trained) if way == "packed" else None
    buffer = None
    if way in ("zero-copy", "flat"):
        sizes = [parameter.numel() for parameter in trained]
        buffer, values = torch.zeros(sum(sizes)), torch.empty(sum(sizes))
        pieces = zip(trained, torch.split(buffer, sizes), torch.split(values, sizes), strict=True)
        for parameter, gradient, value in pieces:
            if way == "flat":
                value.copy_(parameter.detach().flatten())
                parameter.data = value.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
        if way == "flat":
            whole = nn.Parameter(values)
            whole.grad = buffer
            trained = [whole]
    optimizer = torch.optim.Adam(trained, lr=4.7331e-4, fused=True)

    def step() -> float:
        if buffer is None:
            optimizer.zero_grad()
        else:
            buffer.zero_()
        loss = F.mse_loss(model(curves), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if packing is not None:
            packing.pack()
        optimizer.step()
        return loss.item()

    return step


def compare(batch: int, *, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return one row per way: milliseconds of a step (median over rounds) and its ratio to `separate` per round."""
    torch.manual_seed(2)
    curves, targets = torch.randn(batch, 3, 201), torch.rand(batch, 2)
    made = {way: make_step(way, curves, targets) for way in WAYS}
    losses = {way: [step() for _ in range(10)] for way, step in made.items()}
    if any(losses[way] != losses["separate"] for way in WAYS):
        raise SystemExit(f"batch {batch}: the ways do not train alike: {losses}")
    shuffle = random.Random(1)
    times_ms: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in shuffle.sample(WAYS, len(WAYS)):
            began = now()
            for _ in range(steps):
                made[way]()
            times_ms[way].append((now() - began) / steps * 1e3)
    rows = []
    for way in WAYS:
        ratios = sorted(own / base for own, base in zip(times_ms[way], times_ms["separate"], strict=True))
        tenth = len(ratios) // 10
        rows.append(
            {
                "way": way,
                "step_ms_median": statistics.median(times_ms[way]),
                "ratio_median": statistics.median(ratios),
                "ratio_p10": ratios[tenth],
                "ratio_p90": ratios[-1 - tenth],
            }
        )
    return rows


def main() -> int:
    """Compare, print, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[75, 1024], help="(default 75 1024)")
    parser.add_argument("--rounds", type=int, default=150, help="turns of every way at batch 75 (default 150)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the table goes")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    tables = {batch: compare(batch, rounds=max(10, options.rounds * 75 // batch), steps=3) for batch in options.batches}
    machine = environment.describe()
    lines = [
        "# Layout of the gradients",
        "",
        f"Measured by `make bench` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"PyTorch {machine['torch']}, one thread. Step without communication; ratios to `separate` of the same turn, "
        "median and the middle 80 %. All ways train bit for bit alike.",
    ]
    for batch, rows in tables.items():
        lines += ["", f"### batch {batch}", "", "| gradients | step, ms | time, of `separate` | middle 80 % |"]
        lines += ["|---|--:|--:|--:|"]
        for row in rows:
            spread = f"{row['ratio_p10']:.3f} - {row['ratio_p90']:.3f}"
            lines.append(f"| {row['way']} | {row['step_ms_median']:.3f} | {row['ratio_median']:.3f} | {spread} |")
    text = "\n".join(lines) + "\n"
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gradients.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "batches": {str(batch): rows for batch, rows in tables.items()},
    }
    (options.out / "gradients.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'gradients.md'} and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
