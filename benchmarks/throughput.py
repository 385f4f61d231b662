"""`make bench`: training throughput of this package beside what a user would do otherwise, in one run.

Every way is run once per round, in an order shuffled again in each round, so that a slow minute of the machine hits
all alike. Printed and written to benchmarks/results/: the median over rounds with the smallest and largest, and the
ratio to the ceiling: as many independent single workers as the way has, running at once and never communicating. The
ceiling is measured again and again, and a way is compared with the mean of the two measurements around it: this machine
changes its speed within minutes.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.strain import dataset
from horovod_study.text.progress import say

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
OURS, NATIVE, PLAIN = "this package", "this package, native step", "plain PyTorch"
CEILING = "independent workers"
BETWEEN_CEILINGS = 3
"""Ways between two measurements of the ceiling."""
USUAL = {1: f"{PLAIN} | alone, 2 loader processes | 1"}
"""By number of workers, what counts as the usual way; for several it is Horovod/MPI with its defaults."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One line of the table: who trains, through what, with how many workers."""

    who: str
    through: str
    workers: int
    launcher: tuple[str, ...]
    options: tuple[str, ...] = ()
    copies: int = 1  # how many of it run at once

    @property
    def name(self) -> str:
        """What identifies the way in the results."""
        return f"{self.who} | {self.through} | {self.workers}"

    @property
    def ceiling(self) -> str:
        """The name of what it is compared with: single workers of the same kernels; plain PyTorch with ours."""
        return f"{NATIVE if self.who == NATIVE else OURS} | {CEILING} | {self.workers}"


def ways(workers: int) -> list[Way]:
    """Return everything that is compared, for one worker and for `workers`."""
    python, count = sys.executable, str(workers)
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    mpi = (str(BIN / "horovodrun"), "--mpi", "-np", count, python)
    gloo = (str(BIN / "horovodrun"), "--gloo", "-np", count, python)
    mpirun = (str(BIN / "mpirun"), *root, "--bind-to", "none", "-np", count, python)
    torchrun = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count)
    one_inside = (str(BIN / "horovodrun"), "--mpi", "-np", "1", python)
    found = [
        Way(who=OURS, through=CEILING, workers=1, launcher=(python,)),
        Way(who=OURS, through="Horovod/MPI", workers=1, launcher=one_inside),
        Way(who=NATIVE, through=CEILING, workers=1, launcher=(python,)),
        Way(who=PLAIN, through="alone", workers=1, launcher=(python,), options=("plain", "0")),
        Way(who=PLAIN, through="alone, 2 loader processes", workers=1, launcher=(python,), options=("plain", "2")),
    ]
    if workers > 1:
        found += [
            Way(who=OURS, through=CEILING, workers=workers, launcher=(python,), copies=workers),
            Way(who=OURS, through="Horovod/MPI", workers=workers, launcher=mpi),
            Way(who=OURS, through="Horovod/MPI, library defaults", workers=workers, launcher=mpi,
                options=("--horovod-defaults",)),
            Way(who=OURS, through="Horovod/Gloo", workers=workers, launcher=gloo),
            Way(who=OURS, through="Horovod/MPI, hooks", workers=workers, launcher=mpi,
                options=("--reduction", "hooks")),
            Way(who=OURS, through="Horovod/Gloo, no thread priority", workers=workers, launcher=gloo,
                options=("--thread-priority", "off")),
            Way(who=OURS, through="Horovod/Gloo, short slices", workers=workers, launcher=gloo,
                options=("--thread-priority", "slice")),
            Way(who=OURS, through="mpi4py", workers=workers, launcher=mpirun, options=("--backend", "mpi")),
            Way(who=OURS, through="mpi4py, hooks", workers=workers, launcher=mpirun,
                options=("--backend", "mpi", "--reduction", "hooks")),
            Way(who=OURS, through="parameter server", workers=workers, launcher=mpirun, options=("--backend", "ps")),
            Way(who=OURS, through="torch DDP/Gloo", workers=workers, launcher=torchrun),
            Way(who=OURS, through="torch DDP/Gloo, flat", workers=workers, launcher=torchrun,
                options=("--reduction", "flat")),
            Way(who=OURS, through="torch DDP/Gloo, no thread priority", workers=workers, launcher=torchrun,
                options=("--thread-priority", "off")),
            Way(who=NATIVE, through=CEILING, workers=workers, launcher=(python,), copies=workers),
            Way(who=NATIVE, through="Horovod/MPI", workers=workers, launcher=mpi),
            Way(who=NATIVE, through="Horovod/Gloo", workers=workers, launcher=gloo),
            Way(who=NATIVE, through="mpi4py", workers=workers, launcher=mpirun, options=("--backend", "mpi")),
            Way(who=NATIVE, through="torch DDP/Gloo", workers=workers, launcher=torchrun),
            Way(who=PLAIN, through="Horovod/MPI", workers=workers, launcher=mpi, options=("horovod", "0")),
            Way(who=PLAIN, through="Horovod/MPI, 2 loader processes", workers=workers, launcher=mpi,
                options=("horovod", "2")),
            Way(who=PLAIN, through="Horovod/Gloo", workers=workers, launcher=gloo, options=("horovod", "0")),
            Way(who=PLAIN, through="torch DDP/Gloo", workers=workers, launcher=torchrun, options=("ddp", "0")),
        ]  # fmt: skip
    return found


def command(way: Way, *, data: Path, batch: int, seconds: float, out: Path) -> list[str]:
    """Return the line that runs one copy of `way`."""
    common = ["--dataset", str(data), "--batch", str(batch), "--seconds", str(seconds)]
    if way.who == PLAIN:
        kind, processes = way.options
        script = [str(HERE / "plain_training.py"), "--way", kind, "--loader-processes", processes]
        return [*way.launcher, *script, *common]
    kernels = ("--kernels", "native") if way.who == NATIVE else ()
    return [*way.launcher, "-m", "horovod_study.train", *common, "--json", "--out", str(out), *kernels, *way.options]


def measure(way: Way, *, data: Path, batch: int, seconds: float, timeout_s: float) -> dict[str, Any]:
    """Run `way` once; return samples/s (None with a reason if it failed) and, from this package, the step's spread."""
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                command(way, data=data, batch=batch, seconds=seconds, out=Path(folder) / str(copy)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for copy in range(way.copies)
        ]
        results = []
        for process in running:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                for each in running:
                    os.killpg(each.pid, 9)
                    each.wait()
                return {"samples_per_s": None, "reason": f"no result within {timeout_s:g} s"}
            found = re.search(r"\{.*\}", out)
            if process.returncode or not found:
                return {"samples_per_s": None, "reason": err.strip()[-2000:] or "no output"}
            results.append(json.loads(found[0]))
    total: dict[str, Any] = {"samples_per_s": sum(result["samples_per_s"] for result in results)}
    if "step_ms_median" in results[0]:
        total["p90_over_median"] = max(r["step_ms_p90"] / r["step_ms_median"] for r in results)
        total["sync_ms_median"] = results[0]["sync_ms_median"]
    return total


def rows(measured: dict[str, list[dict[str, Any]]], compared: list[Way]) -> list[dict[str, Any]]:
    """Return one row per way: median, smallest and largest over rounds, and the ratio to the ceiling per round."""
    table = []
    for way in compared:
        runs = measured[way.name]
        good = [run["samples_per_s"] for run in runs if run["samples_per_s"] is not None]
        ratios = [run["of_ceiling"] for run in runs if run.get("of_ceiling") is not None]
        usual = USUAL.get(way.workers, f"{PLAIN} | Horovod/MPI, 2 loader processes | {way.workers}")
        times = _ratios(runs, measured.get(usual, []))
        spread = [run["p90_over_median"] for run in runs if "p90_over_median" in run]
        table.append(
            {
                "who": way.who,
                "through": way.through,
                "workers": way.workers,
                "samples_per_s_median": statistics.median(good) if good else None,
                "samples_per_s_min": min(good, default=None),
                "samples_per_s_max": max(good, default=None),
                "of_ceiling_median": statistics.median(ratios) if ratios else None,
                "of_ceiling_min": min(ratios, default=None),
                "of_ceiling_max": max(ratios, default=None),
                "times_usual_median": statistics.median(times) if times else None,
                "times_usual_min": min(times, default=None),
                "times_usual_max": max(times, default=None),
                "step_p90_over_median": statistics.median(spread) if spread else None,
                "failed": len(runs) - len(good),
                "runs": runs,
            }
        )
    return table


def _spread(runs: list[dict[str, Any]]) -> dict[str, Any]:
    found = [run["p90_over_median"] for run in runs if "p90_over_median" in run]
    return {"p90_over_median": statistics.median(found)} if found else {}


def _ratios(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[float]:
    """Return the ratio of samples/s in every round in which neither failed."""
    return [
        run["samples_per_s"] / other["samples_per_s"]
        for run, other in zip(runs, others, strict=False)  # no other when it was left out by --only
        if run["samples_per_s"] is not None and other["samples_per_s"] is not None
    ]


def markdown(batch: int, table: list[dict[str, Any]]) -> str:
    """Return one table for people."""
    lines = [
        f"### batch {batch} per worker",
        "",
        "| who | through | workers | samples/s | spread | of the ceiling | spread | times the usual way "
        "| step p90/median |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in table:
        if row["samples_per_s_median"] is None:
            lines.append(f"| {row['who']} | {row['through']} | {row['workers']} | failed | | | | | |")
            continue
        times = "" if row["times_usual_median"] is None else f"{row['times_usual_median']:.2f}"
        p90 = "" if row["step_p90_over_median"] is None else f"{row['step_p90_over_median']:.2f}"
        lines.append(
            f"| {row['who']} | {row['through']} | {row['workers']} | {row['samples_per_s_median']:,.0f} "
            f"| {row['samples_per_s_min']:,.0f} - {row['samples_per_s_max']:,.0f} "
            f"| {row['of_ceiling_median']:.0%} | {row['of_ceiling_min']:.0%} - {row['of_ceiling_max']:.0%} "
            f"| {times} | {p90} |"
        )
    for row in table:
        if row["failed"]:
            count = len(row["runs"])
            lines += [
                "",
                f"{row['who']}, {row['through']}: {row['failed']} of {count} runs failed and are not in the row.",
            ]
    return "\n".join(lines)


def main() -> int:
    """Measure everything, print as it comes, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="times every way is run (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed window of each run (default 3)")
    parser.add_argument("--batches", type=int, nargs="+", default=[75, 1024], help="per worker (default 75 1024)")
    parser.add_argument("--workers", type=int, default=min(2, available_cores()), help="workers (default 2)")
    parser.add_argument("--curves", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--only", default="", help="run only ways whose name matches this regular expression")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the tables go")
    options = parser.parse_args()

    data = dataset.ensure(options.curves, seed=1)
    ceilings = [way for way in ways(options.workers) if way.through == CEILING]
    compared = [
        way for way in ways(options.workers) if way in ceilings or re.search(options.only, way.name, re.IGNORECASE)
    ]
    shuffle = random.Random(1)
    began = now()
    others = [[way for way in compared if way.ceiling == top.name and way not in ceilings] for top in ceilings]
    once = sum(1 + len(ways) + math.ceil(len(ways) / BETWEEN_CEILINGS) for ways in others)
    total = len(options.batches) * options.rounds * once
    done = 0
    tables: dict[int, list[dict[str, Any]]] = {}
    for batch in options.batches:
        measured: dict[str, list[dict[str, Any]]] = {way.name: [] for way in compared}

        def run(way: Way, number: int, batch: int = batch) -> dict[str, Any]:
            nonlocal done
            result = measure(way, data=data, batch=batch, seconds=options.seconds, timeout_s=60 + 20 * options.seconds)
            done += 1
            value = result["samples_per_s"]
            text = f"{value:,.0f} samples/s" if value else f"failed:\n{result['reason']}"
            left_min = (now() - began) / done * (total - done) / 60
            say(f"[{done}/{total}] batch {batch} round {number + 1}: {way.name}: {text}  ({left_min:.0f} min left)")
            return result

        for number in range(options.rounds):
            for ceiling in ceilings:
                its = [way for way in compared if way.ceiling == ceiling.name and way not in ceilings]
                its = shuffle.sample(its, len(its))
                before = run(ceiling, number)
                tops = [before]
                for place in range(0, len(its), BETWEEN_CEILINGS):
                    results = [(way, run(way, number)) for way in its[place : place + BETWEEN_CEILINGS]]
                    after = run(ceiling, number)
                    around = [top["samples_per_s"] for top in (before, after) if top["samples_per_s"] is not None]
                    for way, result in results:
                        if result["samples_per_s"] is not None and around:
                            result["of_ceiling"] = result["samples_per_s"] / statistics.mean(around)
                        measured[way.name].append(result)
                    before = after
                    tops.append(after)
                known = [top["samples_per_s"] for top in tops if top["samples_per_s"] is not None]
                measured[ceiling.name].append(
                    {"samples_per_s": statistics.median(known), "of_ceiling": 1.0, "all": known} | _spread(tops)
                    if known
                    else tops[0]
                )
        tables[batch] = rows(measured, compared)

    machine = environment.describe()
    head = [
        "# Training throughput",
        "",
        f"Measured by `make bench` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"Python {machine['python']}, PyTorch {machine['torch']}, Horovod {machine['horovod']}, {machine['mpi']}; "
        f"{options.rounds} rounds, {options.seconds:g} s each, ways in random order within a round, "
        "one thread per worker.",
        "",
        "`independent workers` is the ceiling: as many single workers of this package with the same kernels at once, "
        "never communicating. Shares of it are taken from the measurements just before and after, at most three ways "
        "away. Spread is smallest to largest over the rounds. The usual way is plain PyTorch with a DataLoader of 2 "
        "loader processes, alone or over Horovod/MPI with its defaults.",
        "",
    ]
    text = "\n".join([*head, *("\n" + markdown(batch, table) + "\n" for batch, table in tables.items())])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "throughput.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "host": platform.node(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "batches": {str(batch): table for batch, table in tables.items()},
    }
    (options.out / "throughput.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'throughput.md'} and .json")
    return 1 if any(row["failed"] for table in tables.values() for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
