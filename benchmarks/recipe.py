"""`python benchmarks/recipe.py`: which recipe learns most from the same number of curves, and which units die.

The network, the data and the number of curves are the same for all; the native step trains one worker. Varied is what
the recipes of experiments/training could be made of: scaling of the inputs, initialisation, batch, rate, its warm-up
and schedule, decay of the weights, the memory of Adam's second moment, and the mean of the weights over the last part.
A hidden unit is dead when it is 0 for every test curve: no curve gives it a gradient. Several trainings may run at a
time, because nothing here is a time.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from horovod_study.comm.base import SerialBackend
from horovod_study.comm.launch import detect
from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import utc_now
from horovod_study.strain import dataset
from horovod_study.strain.model import StressCNN
from horovod_study.strain.native import open_native
from horovod_study.strain.optimizer import make_optimizer, set_learning_rate
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.trainer import evaluate
from horovod_study.text.progress import say

HERE = Path(__file__).parent
CPU = torch.device("cpu")
AVERAGED = 0.1
"""The part of a training, its last, over whose steps weights are averaged."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to train; the defaults are what the others are compared with."""

    name: str
    scaling: str = "standard"
    start: str = "torch"  # torch | he | centred
    batch: int = 256
    lr: float = 0.002
    warmup: int = 1000
    schedule: str = "cosine"  # cosine | linear | trapezoid
    decay: float = 0.0
    beta2: float = 0.999
    epsilon: float = 1e-8
    averaged: bool = False
    seed: int = 0


BASE = "standard inputs, Adam 0.002, batch 256, cosine"
RECIPES = (
    Recipe(name=BASE),
    Recipe(name="the same, another seed", seed=1),
    Recipe(name="fixed inputs", scaling="fixed"),
    Recipe(name="raw inputs, rate 0.0005", scaling="none", lr=0.0005),
    Recipe(name="He's initialisation", start="he"),
    Recipe(name="last bias at the mean target", start="centred"),
    Recipe(name="batch 64", batch=64),
    Recipe(name="batch 128", batch=128),
    Recipe(name="batch 128, rate 0.001", batch=128, lr=0.001),
    Recipe(name="batch 512", batch=512),
    Recipe(name="rate 0.001", lr=0.001),
    Recipe(name="rate 0.004", lr=0.004),
    Recipe(name="no warm-up", warmup=0),
    Recipe(name="warm-up of 5,000 steps", warmup=5000),
    Recipe(name="linear schedule", schedule="linear"),
    Recipe(name="constant rate, then linear to 0", schedule="trapezoid"),
    Recipe(name="constant rate, mean of the weights", schedule="constant", averaged=True),
    Recipe(name="AdamW, decay 0.1", decay=0.1),
    Recipe(name="second moment over 100 steps", beta2=0.99),
    Recipe(name="epsilon 1e-5", epsilon=1e-5),
    Recipe(name="epsilon 1e-4", epsilon=1e-4),
)


def factor(recipe: Recipe, step: int, steps: int) -> float:
    """Return the share of the rate at `step` of `steps`."""
    done = step / steps
    rest = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "trapezoid": min(1, 2 - 2 * done)}
    return min(1.0, (step + 1) / max(1, recipe.warmup)) * rest.get(recipe.schedule, 1.0)


def start(model: StressCNN, kind: str) -> None:
    """Change what PyTorch has drawn: weights of He's deviation and biases of 0, or outputs that begin at 0.5."""
    if kind == "he":
        for layer in (model.conv1, model.conv2, model.fc1, model.fc2):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if layer is model.fc2 else "relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    elif kind == "centred":
        nn.init.constant_(model.fc2.bias, 0.5)


@torch.inference_mode()
def dead(model: StressCNN, data: dataset.Dataset, scaled: bool) -> int:
    """Return how many units of the hidden layer are 0 for each of up to 25,000 test curves."""
    rows = torch.from_numpy(dataset.test_rows(np.arange(min(25_000, data.test_size))))
    alive = torch.zeros(model.fc1.out_features, dtype=torch.bool)
    for part in torch.split(rows, 1000):
        x = torch.from_numpy(data.curves).index_select(0, part)
        x = torch.addcmul(model.get_buffer("_shift"), x, model.get_buffer("_factor")) if scaled else x
        for layer in (model.conv1, model.conv2):
            x = F.relu(F.max_pool1d(F.conv1d(x, layer.weight[:, :, 0], layer.bias), 3))
        alive |= (model.fc1(x.flatten(1)) > 0).any(dim=0)
    return int((~alive).sum())


def train(recipe: Recipe, data: dataset.Dataset, samples: int) -> dict[str, Any]:
    """Train on `samples` curves; return the error at the end, dead units on the way, and seconds of the processor."""
    config = StrainConfig(
        kernels="native",
        batch=recipe.batch,
        lr=recipe.lr,
        steps=1,
        device="cpu",
        optimizer="adamw" if recipe.decay else "adam",
        weight_decay=recipe.decay,
        epsilon=recipe.epsilon,
    )
    torch.manual_seed(recipe.seed)
    torch.set_flush_denormal(True)
    model, backend = StressCNN(input_scaling=recipe.scaling), SerialBackend(config, detect({}))
    start(model, recipe.start)
    optimizer, _ = make_optimizer(config, model.parameters(), workers=1)
    optimizer.param_groups[0]["betas"] = (0.9, recipe.beta2)
    native = open_native(config, model, optimizer, backend)
    if native is None:
        raise SystemExit("recipe: needs the native step; run `make setup` where there is a C++ compiler")
    curves, targets = torch.from_numpy(data.curves), torch.from_numpy(data.targets)
    batches = dataset.Batches(data.train_size, batch=recipe.batch, rank=0, workers=1, seed=recipe.seed)
    steps, parameters = samples // recipe.batch, [each.detach() for each in model.parameters()]
    mean = [torch.zeros_like(each) for each in parameters]
    looked = {0: "at the start", min(steps, max(recipe.warmup, 1000)): "after the warm-up", steps // 2: "half way"}
    found: dict[str, Any] = {}
    began, step = time.process_time(), 0
    while step < steps:
        for rows in torch.from_numpy(batches.epoch(step // batches.steps_per_epoch))[: steps - step]:
            if step in looked:
                found[looked[step]] = dead(model, data, recipe.scaling != "none")
            set_learning_rate(optimizer, recipe.lr * factor(recipe, step, steps))
            native.forward(curves.index_select(0, rows), targets.index_select(0, rows))
            native.backward()
            native.update()
            step += 1
            if recipe.averaged and step > (1 - AVERAGED) * steps:
                torch._foreach_lerp_(mean, parameters, 1 / (step - (1 - AVERAGED) * steps))
    seconds = time.process_time() - began
    if recipe.averaged:
        torch._foreach_copy_(parameters, mean)
    found["at the end"] = dead(model, data, recipe.scaling != "none")
    return {**asdict(recipe), **evaluate(model, data, backend, CPU), "dead": found, "cpu_s": seconds}


def markdown(found: list[dict[str, Any]], floor: float, samples: int, curves: str) -> str:
    """Return the table for people, best first."""
    machine = environment.describe()
    lines = [
        "# Recipes of training",
        "",
        f"Measured by `python benchmarks/recipe.py` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} "
        f"cores, PyTorch {machine['torch']}; {samples:,} curves out of {curves}, one worker, native step.",
        "",
        f"All but what is named is as in `{BASE}`, with 1,000 steps of warm-up. Dead: of the 197 units of the hidden "
        "layer, those that are 0 for 25,000 test curves.",
        "",
        "| recipe | test MSE | floor / MSE | dead at the start | after the warm-up | half way | at the end |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in sorted(found, key=lambda each: float(each["test_mse"])):
        counts = " | ".join(
            str(each["dead"].get(when, "")) for when in ("at the start", "after the warm-up", "half way", "at the end")
        )
        lines.append(f"| {each['name']} | {each['test_mse']:.3e} | {floor / each['test_mse']:.2f} | {counts} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Train all recipes, each in a process of its own, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=6_000_000, help="curves that each trains on (default 6000000)")
    parser.add_argument("--curves", default="1000000", help="size of the data set (default 1000000)")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="trainings at a time (default: the cores)")
    parser.add_argument("--match", default="", help="train those whose name matches this; the table keeps the others")
    parser.add_argument("--only", help="train the recipe of this name alone, and print what came of it")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the table goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = dataset.ensure(options.curves, seed=1)
    data = dataset.open_dataset(path)
    if options.only:
        recipe = next(each for each in RECIPES if each.name == options.only)
        print(json.dumps(train(recipe, data, options.samples)))
        return 0

    def one(recipe: Recipe) -> dict[str, Any]:
        line = [sys.executable, __file__, "--only", recipe.name, "--samples", str(options.samples)]
        output = subprocess.run([*line, "--curves", options.curves], stdout=subprocess.PIPE, text=True, check=True)
        result: dict[str, Any] = json.loads(output.stdout)
        say(f"{recipe.name}: {result['test_mse']:.3e}, dead {result['dead']}, {result['cpu_s']:.0f} s of the processor")
        return result

    chosen = [each for each in RECIPES if re.search(options.match, each.name)]
    store = options.out / "recipe.json"
    before = json.loads(store.read_text(encoding="utf-8")) if options.match and store.exists() else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(one, chosen))
    if before and (before["samples"], before["curves"]) == (options.samples, options.curves):
        names = {each.name for each in chosen}
        found += [each for each in before["recipes"] if each["name"] not in names]
    text = markdown(found, data.floor["mse"] if data.floor else math.nan, options.samples, options.curves)
    print(text)
    (options.out / "recipe.md").write_text(text, encoding="utf-8")
    document = {"measured": utc_now(), "samples": options.samples, "curves": options.curves, "recipes": found}
    store.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
