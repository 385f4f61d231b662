"""`make bench BENCH=native`: the native step beside PyTorch's, by the processor's time of the one thread that computes.

Processor time, because it changes little when other programs use the machine, too. In one process blocks of steps
alternate, in an order shuffled in every turn: plain PyTorch with its DataLoader (plain_training.py), and this package
with `--kernels torch` and `--kernels native`. A step includes its batch. Ratios are of the same turn. Beside them are
the core's multiply-adds in registers and the library's matrix products, in processor time as well.

Then whether training ends alike: short trainings with both kernels, every one from a seed of its own, and a two-sample
test of Kolmogorov and Smirnov on their test errors.
"""

import argparse
import contextlib
import io
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from plain_training import network, step
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

from horovod_study import records, train
from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.programs.loading import LoneStep
from horovod_study.programs.microbench import step_flops
from horovod_study.strain import dataset, native
from horovod_study.strain.loaders import open_loader
from horovod_study.strain.model import WIDTHS
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.room import keep_freed_memory
from horovod_study.text.progress import say

HERE = Path(__file__).parent
PLAIN, TORCH, NATIVE = "plain PyTorch + DataLoader", "--kernels torch", "--kernels native"
CPU = torch.device("cpu")
BLOCK_SAMPLES = 450
"""Samples of a block of steps: a few milliseconds of processor time, so that all ways meet the same moments."""


def plain_way(data: dataset.Dataset, batch: int) -> Callable[[], Any]:
    """Return what makes one step as a user would write it, its batch from the DataLoader included."""
    curves, targets = torch.tensor(data.curves[: data.train_size]), torch.tensor(data.targets[: data.train_size])
    loader = DataLoader(TensorDataset(curves, targets), batch_size=batch, shuffle=True, drop_last=True)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=4.7331e-4)
    batches = _endless(lambda _: loader)
    return lambda: step(model, optimizer, *next(batches))


def own_way(data: dataset.Dataset, batch: int, kernels: str) -> Callable[[], Any]:
    """Return what makes one step of the trainer, its batch from the default loader included."""
    config = StrainConfig(kernels=kernels, batch=batch, steps=1, device="cpu")
    lone = LoneStep(config, CPU)
    rows = dataset.Batches(data.train_size, batch=batch, rank=0, workers=1, seed=1)
    batches = _endless(open_loader(config, data, rows, CPU).epoch)
    lone.clock.start()

    def make() -> None:
        lone.clock.begin()
        curves, targets = next(batches)
        lone.clock.lap("data")
        lone(curves, targets)

    return make


def _endless(epoch: Callable[[int], Any]) -> Iterator[Any]:
    number = 0
    while True:
        yield from epoch(number)
        number += 1


def compare(data: dataset.Dataset, batch: int, seconds: float) -> list[dict[str, Any]]:
    """Return one row per way: ms of processor time of a step, and plain PyTorch's over it, of the same turn."""
    ways = {
        PLAIN: plain_way(data, batch),
        TORCH: own_way(data, batch, "torch"),
        NATIVE: own_way(data, batch, "native"),
    }
    steps = max(1, BLOCK_SAMPLES // batch)
    for make in ways.values():
        for _ in range(10):
            make()
    shuffle, times_ms, began = random.Random(1), {way: list[float]() for way in ways}, now()
    while now() - began < seconds or len(times_ms[PLAIN]) < 20:
        for way in shuffle.sample(list(ways), len(ways)):
            ways[way]()  # what the way before has left in the caches
            before = time.thread_time_ns()
            for _ in range(steps):
                ways[way]()
            times_ms[way].append((time.thread_time_ns() - before) / steps / 1e6)
    rows = []
    for way, own in times_ms.items():
        ratios = sorted(plain / mine for plain, mine in zip(times_ms[PLAIN], own, strict=True))
        quarter = statistics.quantiles(own, n=4)[0]
        rows.append(
            {
                "way": way,
                "blocks": len(own),
                "ms_smallest": min(own),
                "ms_quarter": quarter,
                "samples_per_s": batch / quarter * 1e3,
                "gflops": step_flops(WIDTHS) * batch / quarter / 1e6,
                "ratio_median": statistics.median(ratios),
                "ratio_p10": ratios[len(ratios) // 10],
                "ratio_p90": ratios[-1 - len(ratios) // 10],
            }
        )
    return rows


def peaks(seconds: float) -> dict[str, tuple[float, float]]:
    """Return GFLOP/s of processor time, median and largest: in registers with the widest vectors, and in products."""
    matrix = torch.randn(512, 512)
    kinds: dict[str, Callable[[], float]] = {
        f"multiply-adds in registers, {name}": lambda name=name: native.multiply_add(name, 40_000)  # type: ignore[misc]
        for name in native.usable()[0]
    }
    kinds["library, products of 512 x 512"] = lambda: float(2 * 512**3 + 0 * torch.mm(matrix, matrix)[0, 0])
    rates, began = {kind: list[float]() for kind in kinds}, now()
    while now() - began < seconds:
        for kind, call in kinds.items():
            before = time.thread_time_ns()
            rates[kind].append(call() / (time.thread_time_ns() - before))
    return {kind: (statistics.median(found), max(found)) for kind, found in rates.items()}


def faded_updates() -> list[dict[str, Any]]:
    """Return us of processor time of an update of Adam whose moments are, for half of the weights, denormal numbers.

    That is where those of units that get no gradient end. Trainings flush such numbers to 0.
    """
    curves, targets, found = torch.randn(75, 3, 201), torch.rand(75, 2), []
    for kernels in ("torch", "native"):
        torch.set_flush_denormal(False)  # or the moments would be 0 where they are written
        times_us = {(faded, flush): list[float]() for faded in (False, True) for flush in (False, True)}
        steps = {faded: LoneStep(StrainConfig(kernels=kernels, steps=1, device="cpu"), CPU) for faded in (False, True)}
        for faded, lone in steps.items():
            lone.clock.start()
            lone.clock.begin()
            lone(curves, targets)
            for parameter in lone.model.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
                for name, value in (("exp_avg", 3e-45), ("exp_avg_sq", 1e-42)) if faded else ():
                    lone.optimizer.state[parameter][name].view(-1)[::2] = value
        for _ in range(100):
            for (faded, flush), times in times_us.items():
                lone = steps[faded]
                torch.set_flush_denormal(flush)
                kept = [{name: each.clone() for name, each in state.items()} for state in lone.optimizer.state.values()]
                before = time.thread_time_ns()
                lone.arithmetic.step(lone.optimizer, lone.backend)
                times.append((time.thread_time_ns() - before) / 1e3)
                for state, old in zip(lone.optimizer.state.values(), kept, strict=True):
                    for name, each in old.items():
                        state[name].copy_(each)
        found.append({"kernels": kernels, "us": [statistics.median(each) for each in times_us.values()]})
    return found


def end_errors(kernels: str, seeds: range, steps: int) -> list[float]:
    """Return the test MSE at the end of one short training per seed."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            line = ["--dataset", "2000", "--batch", "30", "--lr", "1e-3", "--input-scaling", "standard"]
            line += ["--device", "cpu", "--no-checkpoint-at-end", "--evaluate-every", "1000", "--steps", str(steps)]
            line += ["--kernels", kernels, "--seed", str(seed), "--out", str(Path(folder) / "run")]
            with contextlib.redirect_stderr(io.StringIO()) as err:
                code = train.main(line)
            if code:
                raise SystemExit(
                    f"seed {seed}: the trainer ended with exit code {code}\n{out.getvalue()}{err.getvalue()}"
                )
            found.append(float(records.read_run(Path(folder) / "run").totals["test_mse"]))
    return found


def markdown(
    tables: dict[int, list[dict[str, Any]]],
    reached: dict[str, tuple[float, float]],
    faded: list[dict[str, Any]],
    ends: dict[str, Any],
) -> str:
    """Return the tables for people."""
    lines = []
    for batch, rows in tables.items():
        lines += [
            f"### batch {batch}",
            "",
            f"{rows[0]['blocks']} blocks of each.",
            "",
            "| step | ms, lower quartile | smallest | plain PyTorch over it | middle 80 % | samples/s | GFLOP/s |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {row['way']} | {row['ms_quarter']:.3f} | {row['ms_smallest']:.3f} | {row['ratio_median']:.2f} "
            f"| {row['ratio_p10']:.2f} - {row['ratio_p90']:.2f} | {row['samples_per_s']:,.0f} | {row['gflops']:.0f} |"
            for row in rows
        ]
        lines.append("")
    lines += ["### What the core reaches", "", "| | GFLOP/s, median | largest |", "|---|--:|--:|"]
    lines += [f"| {kind} | {median:.0f} | {most:.0f} |" for kind, (median, most) in reached.items()]
    lines += [
        "",
        "### Updates whose moments have faded",
        "",
        "Half of the moments are denormal numbers. Microseconds of the processor, medians of 100.",
        "",
        "| kernels | ordinary moments | flushed to 0 | denormal moments | flushed to 0 |",
        "|---|--:|--:|--:|--:|",
    ]
    lines += [f"| {each['kernels']} | {' | '.join(f'{us:,.0f}' for us in each['us'])} |" for each in faded]
    if ends:
        lines += [
            "",
            "### Test errors of short trainings",
            "",
            f"{ends['trainings']} trainings with each kernels, of {ends['steps']} steps of 30 curves, every one from a "
            f"seed of its own. Kolmogorov and Smirnov: D = {ends['ks']:.3f}, p = {ends['p']:.2f}.",
            "",
            "| kernels | test MSE, median | 10 % | 90 % | smallest | largest |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for name, errors in ends["test_mse"].items():
            tenths = statistics.quantiles(errors, n=10)
            lines.append(
                f"| {name} | {statistics.median(errors):.3e} | {tenths[0]:.3e} | {tenths[-1]:.3e} | {min(errors):.3e} "
                f"| {max(errors):.3e} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[75, 1024], help="curves per step (default 75 1024)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of blocks in turn, for each batch (default 20)")
    parser.add_argument("--trainings", type=int, default=100, help="short trainings with each kernels (default 100)")
    parser.add_argument("--steps", type=int, default=300, help="of a short training (default 300)")
    parser.add_argument("--curves", default="20000", help="size of the data set (default 20000)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the tables go")
    options = parser.parse_args()
    if not native.usable()[0]:
        raise SystemExit(f"no native step: {native.usable()[1]}")

    machine = environment.describe()
    keep_freed_memory()
    torch.set_num_threads(1)
    faded = faded_updates()
    torch.set_flush_denormal(True)  # as in a training
    data = dataset.open_dataset(dataset.ensure(options.curves, seed=1))
    tables = {batch: compare(data, batch, options.seconds) for batch in options.batches}
    reached = peaks(min(3.0, options.seconds))
    ends: dict[str, Any] = {}
    if options.trainings:
        count = options.trainings
        say(f"{2 * count} trainings of {options.steps} steps")
        errors = {
            "native": end_errors("native", range(1, count + 1), options.steps),
            "torch": end_errors("torch", range(count + 1, 2 * count + 1), options.steps),
        }
        test = stats.ks_2samp(errors["native"], errors["torch"])
        ends = {"trainings": count, "steps": options.steps, "ks": float(test.statistic), "p": float(test.pvalue)}
        ends["test_mse"] = errors
    head = [
        "# The native step",
        "",
        f"Measured by `make bench BENCH=native` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} "
        f"cores, PyTorch {machine['torch']}, one thread, {native.usable()[0][0]}; load of the machine before "
        f"{machine['load_1min']:.1f}, after {environment.describe()['load_1min']:.1f}. All times are the processor's, "
        "of the thread that computes; samples/s and GFLOP/s are of the lower quartile, ratios of the same turn.",
        "",
    ]
    text = "\n".join([*head, markdown(tables, reached, faded, ends), ""])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "native.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "batches": {str(batch): rows for batch, rows in tables.items()},
        "gflops": reached,
        "faded_updates_us": {each["kernels"]: each["us"] for each in faded},
        "trainings": ends,
    }
    (options.out / "native.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'native.md'} and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
