"""`make bench`: the loaders beside each other and beside the usual way, and what bounds a run.

For every loader and round: loading alone, training on one cached batch, and both together, with the step of the
trainer and the same model objects throughout (horovod_study/programs/loading.py). The usual way is a TensorDataset in
memory of its own and a DataLoader with its default settings. Printed and written to benchmarks/results/.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.programs.loading import compare_loaders, to_text
from horovod_study.strain import dataset
from horovod_study.strain.loaders import Batch
from horovod_study.strain.options import StrainConfig
from horovod_study.text.progress import say

HERE = Path(__file__).parent
LOADERS = ("memory", "prefetch", "device", "dataloader", "dataloader:2")
USUAL = "TensorDataset + DataLoader"


class Usual:
    """TensorDataset and DataLoader as in most tutorials, behind the door of our loaders."""

    note = "the training set copied into the trainer's memory"

    def __init__(self, data: TensorDataset, batch: int, processes: int) -> None:
        # Python 3.11's default way to start processes on Linux, fork, is part of the usual way.
        self._loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, num_workers=processes)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of another epoch, in an order of DataLoader's own."""
        return (tuple(part) for part in self._loader)

    def close(self) -> None:
        """The processes end with their epoch."""


def usual_ways(opened: dataset.Dataset, batch: int) -> dict[str, Callable[[], Usual]]:
    """Return how to open the usual way, without loader processes and with two."""
    training = np.arange(opened.size) % 4 != 3
    data = TensorDataset(torch.from_numpy(opened.curves[training]), torch.from_numpy(opened.targets[training]))
    return {
        USUAL: lambda: Usual(data, batch, 0),
        f"{USUAL}, 2 processes": lambda: Usual(data, batch, 2),
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return one table and the verdicts for people."""
    lines = [
        f"### batch {found['batch']}",
        "",
        "| loader | loading alone | spread | one cached batch | spread | both together | spread | waiting "
        "| first batch | next epoch | bound by |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for each in found["loaders"]:
        speeds = " | ".join(
            "{median:,.0f} | {min:,.0f} - {max:,.0f}".format(**each[name]) for name in ("loading", "cached", "together")
        )
        lines.append(
            f"| {each['loader']} | {speeds} | {each['waiting']['median']:.1%} "
            f"| {each['start_s']['median'] * 1e3:,.0f} ms | {each['restart_s']['median'] * 1e3:,.1f} ms "
            f"| {each['bound']} |"
        )
    lines += ["", *(f"- {each['loader']}: {each['verdict']}" for each in found["loaders"])]
    return "\n".join(lines)


def main() -> int:
    """Compare at every batch size, print as it comes, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="times everything is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default 1)")
    parser.add_argument("--batches", type=int, nargs="+", default=[75, 1024], help="curves per step (default 75 1024)")
    parser.add_argument("--curves", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--loaders", nargs="+", default=list(LOADERS), help=f"default: {' '.join(LOADERS)}")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the tables go")
    options = parser.parse_args()

    machine = environment.describe()
    opened = dataset.open_dataset(dataset.ensure(options.curves, seed=1))
    began = now()
    found = []
    for batch in options.batches:
        found.append(
            compare_loaders(
                StrainConfig(batch=batch, device="cpu"),
                opened,
                options.loaders,
                rounds=options.rounds,
                seconds=options.seconds,
                others=usual_ways(opened, batch),
                on_progress=lambda text: say(f"[{now() - began:.0f} s] {text}"),
            )
        )
        say("\n".join(to_text(found[-1])))

    head = [
        "# Loading",
        "",
        f"Measured by `make bench` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"Python {machine['python']}, PyTorch {machine['torch']}; {opened.size:,} curves, {options.rounds} rounds, "
        f"{options.seconds:g} s each, loaders and measurements in random order within a round, one compute thread. "
        f"Load of the machine before: {machine['load_1min']:.1f}.",
        "",
        "Samples/s, median and smallest to largest over the rounds. `one cached batch` trains on the same batch over "
        "and over: the ceiling of `both together`. `waiting` is the part of a step of `both together` that getting the "
        "next batch takes. `first batch` counts from opening the loader, `next epoch` from asking for another epoch; "
        "both are outside the speeds. A name with `:2` has two loader processes.",
        "",
    ]
    text = "\n".join([*head, *("\n" + markdown(each) + "\n" for each in found)])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "loading.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "host": platform.node(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "batches": {
            str(each["batch"]): {name: value for name, value in each.items() if name != "dataset"} for each in found
        },
    }
    (options.out / "loading.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'loading.md'} and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
