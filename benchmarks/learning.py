"""`make bench BENCH=learning`: how far the shipped training configurations learn, and in what time.

Each configuration is trained once per seed with one worker per core over Horovod/MPI, as a user would, on a million
curves. Printed and written to benchmarks/results/: the test MSE at the end beside the Cramer-Rao bound of the same test
set, the seconds at which each level was first seen at an evaluation, and the learning curves as a figure. Seconds are
of the timed window (training alone) and of the wall clock (evaluations included, start of the program excluded).
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from recipe import dead

from horovod_study import records
from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import utc_now
from horovod_study.strain import checkpoint, dataset
from horovod_study.strain.model import StressCNN
from horovod_study.strain.options import parse_widths
from horovod_study.text.progress import say

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
CONFIGURATIONS = HERE.parent / "experiments" / "training"
LEVELS = (4.5e-4, 1.0e-4, 8.5e-5, 7.9e-5)
"""Test MSE: the best of the original study, and three steps towards the statistical floor."""


def train(configuration: Path, *, workers: int, data: Path, seed: int, out: Path, options: list[str]) -> None:
    """Train one configuration into the run directory `out`, unless that is done already."""
    if (out / records.MANIFEST).exists() and records.read_run(out).state() == "done":
        say(f"{out}: done already; move it away to train again")
        return
    launcher = [str(BIN / "horovodrun"), "--mpi", "-np", str(workers)] if workers > 1 else []
    line = [*launcher, sys.executable, "-m", "horovod_study.train", "--config", str(configuration)]
    line += ["--dataset", str(data), "--seed", str(seed), "--out", str(out), *options]
    say(" ".join(line))
    code = subprocess.run(line, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    if code:
        raise SystemExit(f"{configuration.name}: the trainer ended with exit code {code}, see above")


def result(out: Path) -> dict[str, Any]:
    """Return what a finished run reached, with all its evaluations, from its record."""
    record = records.read_run(out)
    with (out / "epochs.csv").open() as stream:
        evaluations = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]
    names = ("samples_per_s", "test_mse", "g0_rmse_mpa", "a_rmse", "epochs", "train_s", "wall_s")
    return {
        "started": record.started,
        "seed": record.requested["seed"],
        "dead_units": _dead_units(record, out),
        **{name: record.effective[name] for name in ("workers", "batch", "floor_mse")},
        **{name: record.totals[name] for name in names},
        "evaluations": evaluations,
    }


def _dead_units(record: records.RunRecord, out: Path) -> int:
    scaling = record.requested["input_scaling"]
    model = StressCNN(widths=parse_widths(record.requested["widths"]), input_scaling=scaling)
    model.load_state_dict(checkpoint.decode(checkpoint.read_newest(out), str(out)).model)
    return dead(model, dataset.open_dataset(Path(record.requested["dataset"])), scaling != "none")


def reached(run: dict[str, Any], level: float) -> dict[str, float] | None:
    """Return the first evaluation at which the test MSE was at most `level`."""
    return next((row for row in run["evaluations"] if row["test_mse"] <= level), None)


def _seconds(runs: list[dict[str, Any]], level: float, column: str) -> str:
    found = [row[column] for run in runs if (row := reached(run, level))]
    missed = len(runs) - len(found)
    if not found:
        return "not reached"
    return f"{statistics.median(found):,.0f} s" + (f" ({missed} of {len(runs)} not)" if missed else "")


def markdown(table: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables for people."""
    lines = ["| configuration | workers x batch | test MSE | floor / MSE | G0, a (root mean square error) | samples/s "
             "| training | wall clock | dead units |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for name, runs in table.items():
        for run in runs:
            lines.append(
                f"| {name} | {run['workers']} x {run['batch']} | {run['test_mse']:.2e} "
                f"| {run['floor_mse'] / run['test_mse']:.2f} | {run['g0_rmse_mpa']:.1f} MPa, {run['a_rmse']:.3f} "
                f"| {run['samples_per_s']:,.0f} | {run['train_s']:,.0f} s | {run['wall_s']:,.0f} s "
                f"| {run['dead_units']} |"
            )
    lines += ["", "Dead: units of the hidden layer, of 197, that are 0 for 25,000 test curves at the end.", ""]
    lines += ["Seconds on the wall clock until an evaluation showed a test MSE of at most:", ""]
    lines += [
        "| configuration | " + " | ".join(f"{level:.1e}" for level in LEVELS) + " |",
        "|---|" + "--:|" * len(LEVELS),
    ]
    for name, runs in table.items():
        lines.append(f"| {name} | " + " | ".join(_seconds(runs, level, "wall_s") for level in LEVELS) + " |")
    return "\n".join(lines)


def main() -> int:
    """Train everything, print as it comes, write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configurations", nargs="*", type=Path, metavar="FILE.yaml", help="(default: all shipped ones)")
    parser.add_argument("--curves", default="1000000", help="size of the data set (default 1000000)")
    parser.add_argument("--workers", type=int, default=min(2, available_cores()), help="workers (default 2)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds (default 1)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where table and figure go")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="where the runs are kept")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="last: further options of the trainer")
    options = parser.parse_args()

    data = dataset.ensure(options.curves, seed=1, threads=available_cores())
    table: dict[str, list[dict[str, Any]]] = {}
    directories = []
    for file in options.configurations or sorted(CONFIGURATIONS.glob("*.yaml")):
        for seed in options.seeds:
            directories.append(options.runs / f"{file.stem}-seed{seed}")
            train(file, workers=options.workers, data=data, seed=seed, out=directories[-1], options=options.options)
            table.setdefault(file.stem, []).append(result(directories[-1]))
    options.out.mkdir(parents=True, exist_ok=True)
    figure = [str(BIN / "horovod-study"), "strain", "learning-curve", *map(str, directories)]
    subprocess.run([*figure, "--out", str(options.out / "learning.png")], check=True)

    machine = environment.describe()
    text = "\n".join(
        [
            "# Learning",
            "",
            f"Measured by `make bench BENCH=learning` on {utc_now()[:10]}: {machine['cpu_model']}, "
            f"{available_cores()} cores, Python {machine['python']}, PyTorch {machine['torch']}, "
            f"Horovod {machine['horovod']}, {machine['mpi']}; {options.curves} curves, one thread per worker.",
            "",
            markdown(table),
            "",
            "![Test MSE against the seconds of training, with the statistical floor](learning.png)",
            "",
        ]
    )
    print(text)
    (options.out / "learning.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "curves": options.curves,
        "runs": {
            name: [{k: v for k, v in run.items() if k != "run_dir"} for run in runs] for name, runs in table.items()
        },
    }
    (options.out / "learning.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'learning.md'}, .json and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
