"""`make bench BENCH=checkpoint`: what a checkpoint costs, and what part of a run that is.

One and two workers train in turn with and without checkpoints, in an order shuffled again in each round. A run writes
one every so many steps and reports their seconds, which are beside its timed window; the throughput inside the window
is compared as well, because a checkpoint could leave caches cold. Printed and written to benchmarks/results/.
"""

import argparse
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.strain import dataset
from horovod_study.text.progress import say

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
INTERVALS_S = (10.0, 60.0, 300.0)
FAILURE_EVERY_S = 24 * 3600.0
"""Assumed mean time between failures, for the interval that loses least time."""


def command(workers: int, *, data: Path, steps: int, every: int | None, out: Path) -> list[str]:
    """Return the line of one run."""
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    mpirun = (str(BIN / "mpirun"), *root, "--bind-to", "none", "-np", str(workers))
    line = [*(mpirun if workers > 1 else ()), sys.executable, "-m", "horovod_study.train", "--dataset", str(data)]
    line += ["--steps", str(steps), "--evaluate-every", "1000", "--no-checkpoint-at-end", "--json", "--out", str(out)]
    return [*line, *(("--checkpoint-every", str(every)) if every else ())]


def measure(workers: int, *, data: Path, steps: int, every: int | None, folder: Path) -> dict[str, Any]:
    """Run once; return samples/s in the window, and seconds and bytes per checkpoint (None without)."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        line = command(workers, data=data, steps=steps, every=every, out=Path(out) / "run")
        done = subprocess.run(line, capture_output=True, text=True, timeout=600)
    found = re.search(r"\{.*\}", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"a run of {workers} workers failed:\n{done.stderr[-2000:]}")
    result = json.loads(found[0])
    count = result["checkpoints"]
    return {
        "samples_per_s": result["samples_per_s"],
        "checkpoints": count,
        "seconds_each": result["checkpoint_s"] / count if count else None,
        "bytes_each": result["checkpoint_bytes"] / count if count else None,
    }


def row(workers: int, runs: dict[bool, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of one number of workers: medians with the smallest and largest over rounds."""
    seconds = [run["seconds_each"] for run in runs[True]]
    ratios = [a["samples_per_s"] / b["samples_per_s"] for a, b in zip(runs[True], runs[False], strict=True)]
    median = statistics.median(seconds)
    return {
        "workers": workers,
        "bytes": statistics.median(run["bytes_each"] for run in runs[True]),
        "seconds_median": median,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "share": {f"{interval:g}": median / (median + interval) for interval in INTERVALS_S},
        "best_interval_s": math.sqrt(2 * median * FAILURE_EVERY_S),  # Young, Comm. ACM 17 (1974) 530
        "throughput_ratio_median": statistics.median(ratios),
        "throughput_ratio_min": min(ratios),
        "throughput_ratio_max": max(ratios),
        "runs": {"with": runs[True], "without": runs[False]},
    }


def markdown(table: list[dict[str, Any]]) -> str:
    """Return the table for people."""
    shares = [f"one every {interval:g} s" for interval in INTERVALS_S]
    lines = [
        f"| workers | size, MB | seconds each | spread | {' | '.join(shares)} | best interval "
        "| samples/s in the window, with / without | spread |",
        "|--:|--:|--:|--:|" + "--:|" * (len(shares) + 3),
    ]
    for each in table:
        share = " | ".join(f"{each['share'][f'{interval:g}']:.3%}" for interval in INTERVALS_S)
        lines.append(
            f"| {each['workers']} | {each['bytes'] / 1e6:.2f} | {each['seconds_median']:.4f} "
            f"| {each['seconds_min']:.4f} - {each['seconds_max']:.4f} | {share} | {each['best_interval_s']:.0f} s "
            f"| {each['throughput_ratio_median']:.2f} "
            f"| {each['throughput_ratio_min']:.2f} - {each['throughput_ratio_max']:.2f} |"
        )
    return "\n".join(lines)


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds `folder`: what flushing costs depends on it."""
    mounts = [each for each in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(each.mountpoint)]
    return max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else "unknown"


def main() -> int:
    """Measure everything, print as it comes, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="times every way is run (default 5)")
    parser.add_argument("--steps", type=int, default=600, help="timed steps of each run (default 600)")
    parser.add_argument("--every", type=int, default=30, help="steps from one checkpoint to the next (default 30)")
    parser.add_argument("--workers", type=int, default=min(2, available_cores()), help="workers (default 2)")
    parser.add_argument("--curves", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--folder", type=Path, default=Path(), help="where runs are recorded meanwhile (default .)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the tables go")
    options = parser.parse_args()

    data = dataset.ensure(options.curves, seed=1)
    counts = sorted({1, options.workers})
    ways = [(workers, with_them) for workers in counts for with_them in (True, False)]
    measured: dict[int, dict[bool, list[dict[str, Any]]]] = {count: {True: [], False: []} for count in counts}
    shuffle, began, machine = random.Random(1), now(), environment.describe()
    for number in range(options.rounds):
        for workers, with_them in shuffle.sample(ways, len(ways)):
            every = options.every if with_them else None
            run = measure(workers, data=data, steps=options.steps, every=every, folder=options.folder)
            measured[workers][with_them].append(run)
            text = f"{run['seconds_each']:.4f} s per checkpoint" if with_them else "no checkpoints"
            say(f"round {number + 1}, {workers} workers: {text}, {run['samples_per_s']:,.0f} samples/s")
    table = [row(workers, measured[workers]) for workers in counts]

    kind = file_system(options.folder)
    text = "\n".join(
        [
            "# The cost of checkpoints",
            "",
            f"Measured by `make bench BENCH=checkpoint` on {utc_now()[:10]}: {machine['cpu_model']}, "
            f"{available_cores()} cores, file system {kind}, Python {machine['python']}, PyTorch {machine['torch']}, "
            f"Horovod {machine['horovod']}, {machine['mpi']}, load {machine['load_1min']} before; {options.rounds} "
            f"rounds of {options.steps} steps at batch 75, a checkpoint every {options.every} steps, one thread per "
            "worker, two workers over Horovod/MPI.",
            "",
            "Seconds are means of a run, their median and spread over the rounds; they hold the flushing of the step "
            "rows on all workers, the state's copy, digest and file, and two flushes. The shares are what a run loses "
            "to one checkpoint per interval. The best interval loses least to checkpoints and repeated work together, "
            f"at one failure in {FAILURE_EVERY_S / 3600:g} h (Young's formula).",
            "",
            markdown(table),
            "",
        ]
    )
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "checkpoint.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "seconds": round(now() - began, 1),
        "host": platform.node(),
        "file_system": kind,
        "machine": {name: value for name, value in machine.items() if name != "command"},
        **{name: getattr(options, name) for name in ("rounds", "steps", "every")},
        "rows": table,
    }
    (options.out / "checkpoint.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'checkpoint.md'} and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
