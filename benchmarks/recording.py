"""`make bench`: what recording costs - in time per step, in memory over a million steps, in bytes per row.

timers       the timer modes alternating in one process: the verb
             `horovod-study bench timers`, with its control
memory       a million steps without any work through the real clock, recorder and writer, on this process
rows         bytes and microseconds per row, where rows are written often and where they are written in bulk
command      what `horovod-study record --` adds to a step: a loop with and one without it alternate, block by block
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from scipy import stats

from horovod_study import records
from horovod_study.analysis.compare.comparison import timer_cost
from horovod_study.config.run import ORDINARY_LAPS, available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import LapClock, now, utc_now
from horovod_study.measure.recorder import DRAIN_STEPS, Recorder
from horovod_study.measure.steady import find_steady
from horovod_study.recording.rank import facts
from horovod_study.report.kit.files import write_result
from horovod_study.report.terminal import timers_text
from horovod_study.strain import dataset
from horovod_study.studies.bench import measure_timers
from horovod_study.text.progress import Line, say

HERE = Path(__file__).parent
CASES = ((75, 1, 2.0), (75, 2, 1.0), (1024, 1, 1.0))
"""Batch, workers, and the part of --seconds: the first is the one that was promised."""
WARMUP_STEPS = 20_000
TRACED_STEPS = 100_000
LIMITS = {"memory_mb": 50.0, "bytes_per_row": 100.0}
"""What the project has promised."""


class Steps:
    """Steps without work, recorded by the real clock, recorder and writer."""

    def __init__(self, folder: Path, *, rows_per_drain: int = DRAIN_STEPS) -> None:
        folder.mkdir(parents=True)
        self.writer = records.StepWriter(folder, 0)
        self.recorder, self.clock = Recorder(self.writer, 75), LapClock()
        self._loss, self._rows_per_drain, self.made = torch.ones(()), rows_per_drain, 0
        self.clock.start()

    def make(self, count: int) -> None:
        """Record `count` steps, each with a loss of its own as in training."""
        clock, recorder = self.clock, self.recorder
        for step in range(self.made, self.made + count):
            clock.begin()
            for lap in ORDINARY_LAPS:
                clock.lap(lap)
            recorder.add(step, 0, self._loss.clone())
            if len(recorder) >= self._rows_per_drain:
                recorder.drain(clock)
        self.made += count

    def close(self) -> int:
        """Write what is left; return the bytes of the file."""
        self.recorder.drain(self.clock)
        self.writer.close()
        return self.writer.path.stat().st_size


def memory(folder: Path, steps: int) -> dict[str, float]:
    """Return MB that this process and Python's own objects grow by over `steps` steps, and what the summary takes."""
    process = psutil.Process()
    made = Steps(folder / "million")
    made.make(WARMUP_STEPS)
    before_mb = process.memory_info().rss / 1e6
    highest_mb = before_mb
    began = now()
    for _ in range(steps // WARMUP_STEPS):
        made.make(WARMUP_STEPS)
        highest_mb = max(highest_mb, process.memory_info().rss / 1e6)
    spent_s = now() - began
    after_mb = process.memory_info().rss / 1e6
    rows = made.made
    size = made.close()
    began = now()
    made.recorder.summary(50)
    find_steady(made.recorder.timed("step_s"), 50)
    summary_s = now() - began
    summary_mb = facts.memory_mb()[0]
    traced = Steps(folder / "traced")
    traced.make(WARMUP_STEPS)
    tracemalloc.start()
    traced.make(DRAIN_STEPS)
    first = tracemalloc.get_traced_memory()[0]
    traced.make(TRACED_STEPS)
    objects_mb, peak_mb = ((value - first) / 1e6 for value in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    traced.close()
    return {
        "steps": rows,
        "rss_growth_mb": after_mb - before_mb,
        "rss_growth_highest_mb": highest_mb - before_mb,
        "objects_growth_mb": objects_mb,
        "objects_peak_mb": peak_mb,
        "traced_steps": TRACED_STEPS,
        "us_per_step_with_a_loss_of_its_own": spent_s / steps * 1e6,
        "file_mb": size / 1e6,
        "summary_s": summary_s,
        "summary_peak_growth_mb": summary_mb - before_mb,
    }


def rows(folder: Path, rounds: int = 5) -> list[dict[str, float]]:
    """Return for some numbers of rows per writing the bytes and the microseconds of a row, smallest of the rounds.

    Every row is written with the first: what a process that is killed in slow training leaves is whole all the same.
    """
    found = []
    for rows_per_drain in (1, 8, 64, DRAIN_STEPS):
        count = 20_000 if rows_per_drain > 1 else 5_000
        times, sizes = [], []
        for number in range(rounds):
            steps = Steps(folder / f"{rows_per_drain}-{number}", rows_per_drain=rows_per_drain)
            steps.make(2 * DRAIN_STEPS)
            began = now()
            steps.make(count)
            times.append((now() - began) / count)
            sizes.append(steps.close() / steps.made)
        found.append({"rows_per_writing": rows_per_drain, "bytes_per_row": min(sizes), "us_per_row": min(times) * 1e6})
    return found


def timers(folder: Path, seconds: float, workers: Sequence[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the cost of the timer modes for the cases that this machine has cores for."""
    path, line = dataset.ensure("100000", seed=1, threads=available_cores()), Line()
    cases = []
    for batch, count, share in CASES:
        if count in workers:
            cases += measure_timers(
                folder,
                {"dataset": str(path.absolute()), "seconds": share * seconds},
                batch=[batch],
                workers=[count],
                over="horovod/mpi",
                options={"widths": "15-38-197", "device": "auto", "threads": 1},
                told=lambda text: line.now_and_then(f"  {text}"),
            )
    line.close()
    return [timer_cost(case) for case in cases], cases


LOOPS = {
    "2 small layers": ("2", "16", "4"),
    "20 small layers": ("20", "64", "32"),
    "a step of some 5 ms": ("12", "256", "160"),
}
"""What benchmarks/recorded_loop.py is given: little but Python, 40 parameters, a step of the length that was asked."""
BLOCK_STEPS = 40
ROUNDS = 20
LAUNCHES = 6
"""Starts of the processes: the layout of one in memory changes a step by several microseconds."""


class Loop:
    """A process that makes steps when it is asked to."""

    def __init__(self, before: Sequence[str], workers: int, options: Sequence[str]) -> None:
        launched = [sys.executable] if workers == 1 else ["torchrun", "--nproc-per-node", str(workers)]
        self._process = subprocess.Popen(
            [*before, *launched, str(HERE / "recorded_loop.py"), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        )

    def step_s(self, steps: int) -> np.ndarray:
        """Make `steps` steps; return the medians of their seconds, of a clock and of a processor, shape (2,).

        Without the first ones, whose caches are cold.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        found: np.ndarray = np.median(json.loads(self._process.stdout.readline())[steps // 4 :], axis=0)
        return found

    def end(self) -> None:
        """End the process and wait for it."""
        self._process.communicate()


def command(folder: Path, workers: Sequence[int], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return what `record --` adds to a step of each loop: mean over the launches and its 95 % interval.

    In each launch a loop with it, one without it and another without it (the control) make a block of steps each in
    every round; what is added is the median over the rounds.
    """
    found = []
    order = np.random.default_rng(1)
    for count in workers:
        for name, options in LOOPS.items():
            times = np.empty((LAUNCHES, rounds, 3, 2))
            for launch in range(LAUNCHES):
                out = str(folder / f"{name} {count} {launch}")
                recorded = [str(Path(sys.executable).parent / "horovod-study"), "record", "--out", out, "--"]
                loops = [Loop(before, count, options) for before in ([], [], recorded)]
                for _ in range(3):
                    for loop in loops:
                        loop.step_s(BLOCK_STEPS)
                for each in range(rounds):
                    for place in order.permutation(3):
                        times[launch, each, place] = loops[place].step_s(BLOCK_STEPS)
                for loop in loops:
                    loop.end()
            found.append({"loop": name, "workers": count, "step_ms": float(np.median(times[:, :, 0, 0])) * 1e3})
            for what, place in (("control", 1), ("recorded", 2)):
                for clock, key in enumerate((f"{what}_us", f"{what}_cpu_us")):
                    added = np.median(times[:, :, place, clock] - times[:, :, 0, clock], axis=1) * 1e6
                    mean = float(added.mean())
                    error = float(stats.t.ppf(0.975, LAUNCHES - 1) * added.std(ddof=1) / LAUNCHES**0.5)
                    found[-1][key] = [mean, mean - error, mean + error]
    return found


def lines(result: dict[str, Any], table: str) -> list[str]:
    """Return the page."""
    machine, kept = result["machine"], result["memory"]
    found = [
        "# Recording",
        "",
        f"Measured by `make bench` on {result['measured'][:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"PyTorch {machine['torch']}, one thread.",
        "",
        "## Timer modes",
        "",
        "The table of `horovod-study bench timers`; docs/bench.md says how to read it.",
        "",
        "```",
        table,
        "```",
        "",
        f"## Memory over {kept['steps']:,.0f} steps",
        "",
        "| what | |",
        "|---|--:|",
        f"| growth of the process from step {WARMUP_STEPS:,} on, at the end (at most) | "
        f"{kept['rss_growth_mb']:.1f} MB ({kept['rss_growth_highest_mb']:.1f}) |",
        f"| growth of Python's objects over {kept['traced_steps']:,.0f} steps, at the end (at most) | "
        f"{kept['objects_growth_mb']:.2f} MB ({kept['objects_peak_mb']:.2f}) |",
        f"| the summary at the end, steady state included: time | {kept['summary_s']:.2f} s |",
        f"| the same: peak of the process above step {WARMUP_STEPS:,} | {kept['summary_peak_growth_mb']:.0f} MB |",
        f"| file | {kept['file_mb']:.1f} MB |",
        "",
        "## Rows",
        "",
        "| rows per writing | bytes per row | us per row |",
        "|--:|--:|--:|",
    ]
    for each in result["rows"]:
        found.append(f"| {each['rows_per_writing']} | {each['bytes_per_row']:.1f} | {each['us_per_row']:.2f} |")
    found += [
        "",
        "## `horovod-study record --`",
        "",
        "| loop | workers | step, ms | added, us | control, us | added of the processor, us | control, us |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for each in result["command"]:
        names = ("recorded_us", "control_us", "recorded_cpu_us", "control_cpu_us")
        added = " | ".join("{:+.0f} [{:+.0f}, {:+.0f}]".format(*each[name]) for name in names)
        found.append(f"| {each['loop']} | {each['workers']} | {each['step_ms']:.2f} | {added} |")
    return [
        *found,
        "",
        "Microseconds per row are those of a whole step: begin, five laps, a loss, the row's part of the writing. "
        f"Promised: below {LIMITS['memory_mb']:g} MB over a million steps and {LIMITS['bytes_per_row']:g} bytes per "
        f"row: {'kept' if result['kept'] else 'NOT KEPT'}.",
    ]


def main() -> int:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each case of the timers (default 60)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="for the memory (default 1000000)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="cases to measure (default 1 2)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the page goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = now()
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        say("memory over many steps")
        kept = memory(Path(folder), options.steps)
        say("bytes and microseconds per row")
        each_row = rows(Path(folder))
        say("timer modes")
        workers = [count for count in options.workers if count <= available_cores()]
        costs, cases = timers(Path(folder), options.seconds, workers)
        say("record --")
        commands = command(Path(folder), workers)
    promised = (
        max(kept["rss_growth_highest_mb"], kept["objects_peak_mb"]) < LIMITS["memory_mb"]
        and max(each["bytes_per_row"] for each in each_row) <= LIMITS["bytes_per_row"]
    )
    result = {
        "measured": utc_now(),
        "machine": {name: value for name, value in environment.describe().items() if name != "command"},
        "timers": costs,
        "memory": kept,
        "rows": each_row,
        "command": commands,
        "kept": bool(promised),
    }
    page = "\n".join(lines(result, timers_text(costs, cases))) + "\n"
    print(page)
    write_result(options.out, {"recording.md": page, "recording.json": result})
    for doubt in dict.fromkeys(doubt for cost in costs for doubt in cost["doubts"]):
        say(f"doubt: {doubt}")
    say(f"written to {options.out / 'recording.md'}, .json; {now() - began:.0f} s")
    return 0 if promised else 1


if __name__ == "__main__":
    sys.exit(main())
