"""`make bench BENCH=simulation`: how near `predict --simulate` comes to measured steps, and how long it takes.

Two workers are forecast from measurements of their parts, none of which has two workers that train together:

    alone     one worker                                         what efficiency is relative to
    beside    two jobs of one worker each inside the runtime,    computing, and its scatter: the runtime's threads need
              at the same time                                   the cores, too
    bench     all-reduces, raw and through the runtime           latency, bandwidth, the runtime's overhead

and compared with two workers that were trained. All four are measured in every round, in an order shuffled again, and a
round is forecast from its own measurements, because this machine changes its speed within minutes. As root, --hosts
does the same with one worker on each of two hosts in namespaces of this machine, 1 Gbit/s between them
(tests/two_hosts.py).
Without it, what `make bench BENCH=hosts` recorded is forecast from its runs on one host and the rate of the link.
"""

import argparse
import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from horovod_study.analysis.costs import Link
from horovod_study.analysis.simulate.calibration import Given, calibrate, run_times
from horovod_study.analysis.simulate.scaling import Compute, Network, Runtime, Scenario, simulate
from horovod_study.config.doors import asked
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.records import read_run, recorded_run
from horovod_study.report.grammar import note_at
from horovod_study.report.kit.files import write_result
from horovod_study.report.kit.style import PAPER, QUIET, SHADE
from horovod_study.strain import dataset
from horovod_study.text.progress import say

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
RESULTS = HERE / "results" / "simulation"
RECORDED = HERE / "results" / "hosts" / "nodes.csv"
WITHIN = 0.15
LINK_BYTES_PER_S = 1e9 / 8
"""Of the two hosts' link, by its setting (RATE in tests/two_hosts.py)."""
GRADIENT_BYTES = 613_764

ALONE, BESIDE, BENCH, TOGETHER = "alone", "beside", "bench", "together"
Start = Callable[[Sequence[str], int], "subprocess.Popen[str]"]


def _train(out: Path, batch: int, seconds: float, data: str, *options: str) -> list[str]:
    common = ["--dataset", data, "--batch", str(batch), "--seconds", str(seconds), "--system-interval-s", "0"]
    return [sys.executable, "-m", "horovod_study.train", *common, *options, "--out", str(out)]


def _bench(out: Path, runtime: str, seconds: float) -> list[str]:
    raw = runtime.partition("/")[2]
    sizes = ["--sizes", "4", "1K", "16K", "64K", "256K", "1M"]
    return [
        *(str(BIN / "horovod-study"), "bench", "--transport", raw, "--runtime", runtime, *sizes),
        *("--seconds", str(seconds), "--rounds", "3", "--out", str(out)),
    ]


def _started(command: Sequence[str], core: int) -> "subprocess.Popen[str]":
    """Start a command on this machine; on one core if `core` is not negative."""

    def pin() -> None:
        if core >= 0:
            os.sched_setaffinity(0, {core})

    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=pin, stdin=subprocess.DEVNULL
    )


def _finished(processes: Sequence["subprocess.Popen[str]"], what: str) -> None:
    for process in processes:
        output, _ = process.communicate(timeout=600)
        if process.returncode:
            raise SystemExit(f"{what} failed with exit code {process.returncode}:\n{output[-3000:]}")


def measure_round(
    folder: Path, *, runtime: str, batch: int, seconds: float, data: str, order: random.Random, launch: Sequence[str],
    single: Sequence[str], start: Sequence[Start], per_host: bool,
) -> dict[str, Any]:  # fmt: skip
    """Measure one round in `folder`; return what was forecast and what was measured, in samples/s."""
    folder.mkdir(parents=True)
    backend, _, transport = runtime.partition("/")
    talking = ("--backend", backend, "--transport", transport, "--reduction", "flat")
    for kind in order.sample((ALONE, BESIDE, BENCH, TOGETHER), 4):
        if kind == ALONE:
            jobs = [start[0](_train(folder / ALONE, batch, seconds, data, "--backend", "serial"), 0)]
        elif kind == BESIDE:
            jobs = [
                begin([*single, *_train(folder / f"{BESIDE}{core}", batch, seconds, data, *talking)], core)
                for core, begin in enumerate(start)
            ]
        elif kind == BENCH:
            command = _bench(folder / BENCH, runtime, 2 * seconds)
            jobs = [start[0]([*launch, *command] if per_host else command, -1)]
        else:
            jobs = [start[0]([*launch, *_train(folder / TOGETHER, batch, seconds, data, *talking)], -1)]
        _finished(jobs, f"{kind} of {folder.name}")
    return foretell(folder, runtime=runtime, per_host=per_host)


def foretell(folder: Path, *, runtime: str, per_host: bool) -> dict[str, Any]:
    """Forecast two workers from the parts that were measured in `folder`, and put the measured ones beside them."""
    alone, *besides = (run_times(recorded_run(folder / name)) for name in (ALONE, f"{BESIDE}0", f"{BESIDE}1"))
    content = json.loads((folder / BENCH / "bench.json").read_text(encoding="utf-8"))
    known = content["fits"]
    way = next(name for name in (runtime, runtime.partition("/")[2]) if name in known)
    found = calibrate(
        asked(Given, {"way": way, "workers_per_node": 1 if per_host else 2}, "simulate"),
        # The hosts share one machine, so a worker on each computes beside the other although they share no node.
        runs=besides if per_host else [alone],
        beside=() if per_host else besides,
        benches=[(content, BENCH)],
    )
    row = simulate({"": found}, [2]).iloc[0]
    together = read_run(folder / TOGETHER)
    measured = run_times(recorded_run(folder / TOGETHER))
    assert measured.sync_s is not None
    return {
        "predicted_samples_per_s": float(row["samples_per_s"]),
        "low": float(row["samples_per_s_low"]),
        "high": float(row["samples_per_s_high"]),
        "measured_samples_per_s": float(together.totals["samples_per_s"]),
        "predicted_compute_ms": 1e3 * float(row["compute_s"]),
        "measured_compute_ms": 1e3 * float(measured.own_s.mean()),
        "predicted_sync_ms": 1e3 * float(row["step_s"] - row["compute_s"]),
        "measured_sync_ms": 1e3 * float(measured.sync_s.mean()),
        "alone_ms": 1e3 * float(alone.own_s.mean()),
    }


def recorded_hosts(path: Path = RECORDED) -> list[dict[str, Any]]:
    """Forecast two hosts as they were recorded: from two workers on one host, and the rate of the link by its setting.

    Computing and the wait for gradients of two workers on one host are medians of the recorded runs; all of that wait
    is taken to be there on two hosts as well, before the bytes. Latency of the link counts as nothing.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        rows = {(row["series"], int(row["workers"]), int(row["nodes"])): row for row in csv.DictReader(stream)}
    found = []
    for series in dict.fromkeys(key[0] for key in rows):
        inside, across = rows[series, 2, 1], rows[series, 2, 2]
        sync_s = float(inside["sync_s_median"])
        link = Link(alpha_s=0.0, bytes_per_s=LINK_BYTES_PER_S)
        scenario = Scenario(
            compute=Compute(mean_s=float(inside["step_s_median"]) - sync_s),
            batch=75,
            gradient_bytes=GRADIENT_BYTES,
            network=Network(intra=link, inter=link, workers_per_node=1),
            runtime=Runtime(overhead_s=sync_s),
        )
        step_s = float(simulate({"": scenario}, [2]).iloc[0]["step_s"])
        found.append(
            {
                "case": f"recorded: {inside['backend']}/{inside['transport']}, two hosts",
                "ratios": [float(across["step_s_median"]) / step_s],
                "predicted_step_ms": 1e3 * step_s,
                "measured_step_ms": 1e3 * float(across["step_s_median"]),
            }
        )
    return found


def _case(name: str, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians over rounds of a case, and each round's forecast / measured throughput."""
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    ratios = [each["predicted_samples_per_s"] / each["measured_samples_per_s"] for each in rounds]
    return {"case": name, "ratios": ratios, **medians}


def speed(repeats: int) -> list[dict[str, Any]]:
    """Return the seconds of the whole command for curves up to 100,000 workers, weak and strong, each several times."""
    counts = [str(2**power) for power in range(17)] + ["100000"]
    given = ["--compute-ms", "3", "--compute-cv", "0.1", "--gradient-mb", "0.6", "--batch", "75"]
    given += ["--network", str(HERE.parent / "experiments" / "networks" / "infiniband-hdr.yaml")]
    asked = ["bandwidth=2x", "cycle=1", "batch=8x", "slow-node=1.5x", "gradients=fp16", "algorithm=ps", "buckets=8"]
    rows = []
    for name, options in (
        ("weak, baseline", ["--scaling", "weak"]),
        ("strong, baseline", ["--scaling", "strong", "--global-batch", "1000000"]),
        ("weak, baseline and 7 what-ifs", ["--scaling", "weak", "--what-if", *asked]),
    ):
        verb = [str(BIN / "horovod-study"), "predict", "--simulate"]
        command = [*verb, *given, "--workers", *counts, *options, "--json"]
        seconds = []
        for _ in range(repeats):
            began = now()
            subprocess.run(command, check=True, capture_output=True, text=True)
            seconds.append(now() - began)
        rows.append({"curves": name, "worker_counts": len(counts), "seconds": seconds})
    return rows


def _cells(case: Mapping[str, Any], unit: str, *, both: Sequence[str]) -> str:
    words = [f"{case[name]:,.3g}" if case.get(name) is not None and math.isfinite(case[name]) else "" for name in both]
    ratios = sorted(case["ratios"])
    middle = statistics.median(ratios)
    spread = f"{ratios[0]:.3f} - {ratios[-1]:.3f}" if len(ratios) > 1 else ""
    return f"| {case['case']} | {words[0]}{unit} | {words[1]}{unit} | {middle:.3f} | {spread} | {len(ratios)} |"


def table(cases: Sequence[Mapping[str, Any]], speeds: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables as Markdown."""
    lines = [
        "| two workers | forecast | measured | forecast / measured throughput | rounds | n |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for case in cases:
        if "predicted_step_ms" in case:
            lines.append(_cells(case, " ms", both=("predicted_step_ms", "measured_step_ms")))
        else:
            lines.append(_cells(case, " /s", both=("predicted_samples_per_s", "measured_samples_per_s")))
    parts = [case for case in cases if "predicted_sync_ms" in case]
    if parts:
        lines += ["", "| two workers | computing, ms | forecast | waiting, ms | forecast |", "|---|--:|--:|--:|--:|"]
    for case in parts:
        names = ("measured_compute_ms", "predicted_compute_ms", "measured_sync_ms", "predicted_sync_ms")
        lines.append(f"| {case['case']} | " + " | ".join(f"{case[name]:.3f}" for name in names) + " |")
    if speeds:
        lines += ["", "| `predict --simulate` | worker counts | seconds, median | all |", "|---|--:|--:|--:|"]
    for each in speeds:
        every = ", ".join(f"{second:.2f}" for second in each["seconds"])
        lines.append(
            f"| {each['curves']} | {each['worker_counts']} | {statistics.median(each['seconds']):.2f} | {every} |"
        )
    return "\n".join(lines)


def _here(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    cases = []
    cores = sorted(os.sched_getaffinity(0))[:2]
    starts = [lambda command, core: _started(command, cores[core] if core >= 0 else -1)] * 2
    for runtime in options.runtimes:
        for batch in options.batches:
            order, rounds = random.Random(1), []
            for number in range(options.rounds):
                rounds.append(
                    measure_round(
                        folder / f"{runtime.replace('/', '-')}-{batch}-{number}",
                        runtime=runtime,
                        batch=batch,
                        seconds=options.seconds,
                        data=options.dataset,
                        order=order,
                        launch=_launcher(runtime, 2),
                        single=_launcher(runtime, 1),
                        start=starts,
                        per_host=False,
                    )
                )
                _tell(f"{runtime}, batch {batch}", rounds[-1])
            cases.append(_case(f"{runtime}, batch {batch}, one machine", rounds))
    return cases


def _launcher(runtime: str, workers: int) -> list[str]:
    if runtime.startswith("ddp/"):
        return [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(workers), "--no-python"]
    return [str(BIN / "horovodrun"), *(["--gloo"] if runtime.endswith("/gloo") else []), "-np", str(workers)]


def _hosts(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from two_hosts import INTERFACE, NAMES, TwoHosts

    rounds, order = [], random.Random(2)
    with TwoHosts() as hosts:
        outside: dict[str, Any] = {"cwd": str(folder), "environment": {**os.environ, "LC_ALL": "C.UTF-8"}}

        def on(name: str) -> Start:
            return lambda command, core: hosts.popen(
                name, command, **outside, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

        interface = ["--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include", INTERFACE]
        launch = [str(BIN / "mpirun"), "--allow-run-as-root", "-np", "2", "-H", ",".join(f"{name}:1" for name in NAMES)]
        launch += [*interface, "--bind-to", "none", "-x", "PATH", "-x", "LC_ALL"]
        for number in range(options.rounds):
            rounds.append(
                measure_round(
                    folder / f"hosts-{number}",
                    runtime="horovod/mpi",
                    batch=75,
                    seconds=options.seconds,
                    data=options.dataset,
                    order=order,
                    launch=launch,
                    single=[str(BIN / "mpirun"), "--allow-run-as-root", "-np", "1", "--bind-to", "none"],
                    start=[on(name) for name in NAMES],
                    per_host=True,
                )
            )
            _tell("two hosts", rounds[-1])
    return [_case("horovod/mpi, batch 75, two hosts", rounds)]


def _tell(name: str, row: Mapping[str, Any]) -> None:
    predicted, measured = row["predicted_samples_per_s"], row["measured_samples_per_s"]
    say(
        f"{name}: forecast {predicted:,.0f}, measured {measured:,.0f} samples/s, ratio {predicted / measured:.3f}; "
        f"computing {row['predicted_compute_ms']:.3f} / {row['measured_compute_ms']:.3f} ms, waiting "
        f"{row['predicted_sync_ms']:.3f} / {row['measured_sync_ms']:.3f} ms"
    )


_DOT = "#0072b2"


def draw_validation(cases: Sequence[Mapping[str, Any]], width_in: float) -> Figure:
    """Return forecast / measured of each case: single rounds, their median, and a band of +-WITHIN; inside style().

    A case: "case" (its name) and "ratios" (one per round).
    """
    figure = Figure(figsize=(width_in, 0.34 * len(cases) + 0.95), layout="constrained")
    axes = figure.subplots()
    axes.grid(visible=False, axis="y")
    axes.axvspan(1 - WITHIN, 1 + WITHIN, color=SHADE, zorder=0)
    axes.axvline(1.0, color=QUIET, linewidth=0.8, zorder=1)
    lowest, highest = 1 - 1.4 * WITHIN, 1 + 1.4 * WITHIN
    for place, case in enumerate(cases):
        ratios = sorted(case["ratios"])
        middle = float(np.median(ratios))
        lowest, highest = min(lowest, ratios[0] - 0.02), max(highest, ratios[-1] + 0.02)
        axes.plot(ratios, [place] * len(ratios), "o", markersize=3, color=_DOT, alpha=0.55, zorder=2)
        axes.plot(middle, place, "D", markersize=5.5, color=_DOT, markeredgecolor=PAPER, zorder=3)
        note_at(axes, f"{middle:.2f}", (middle, place), (0, 6), ha="center")
    axes.set_yticks(range(len(cases)), [str(case["case"]) for case in cases])
    axes.set_ylim(len(cases) - 0.4, -0.8)
    axes.set_xlim(lowest, highest)
    axes.set_xlabel("Forecast / measured throughput of two workers")
    return figure


def main() -> int:
    """Measure, compare, write the tables and the figure; 1 where a median is farther off than 15 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="(default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timed training in each run (default 3)")
    parser.add_argument(
        "--runtimes", nargs="*", default=["horovod/mpi", "horovod/gloo"], help="(default both of Horovod)"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[75, 600], help="(default 75 600)")
    parser.add_argument("--dataset", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--hosts", action="store_true", help="also two hosts in namespaces; needs root")
    parser.add_argument("--repeats", type=int, default=3, help="of each timing of the command (default 3)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    dataset.ensure(options.dataset, seed=1, threads=1)
    with tempfile.TemporaryDirectory() as name:
        cases = _here(options, Path(name)) + (_hosts(options, Path(name)) if options.hosts else [])
    cases += recorded_hosts()
    speeds = speed(options.repeats) if options.repeats else []
    machine = environment.describe()
    caption = (
        "Throughput of two workers as simulated from measurements of one, over what two workers reached. Small: single "
        "rounds, large: their median; grey: within 15 %. Computing comes from two jobs of one worker each at the same "
        "time, the network and the runtime from `bench` of the same round; recorded cases from two workers on one host "
        "and the link's rate; the link lets 128 kB through at once, which is not simulated: they are forecast too slow."
    )
    text = "\n".join(
        [
            "# Simulated against measured",
            "",
            f"Measured by `make bench BENCH=simulation` on {utc_now()[:10]}: {machine['cpu_model']}, "
            f"{machine['cores']} cores, PyTorch {machine['torch']}. {caption.partition('Small')[0].strip()} "
            "Medians over rounds; each round is forecast from its own measurements.",
            "",
            table(cases, speeds),
            "",
        ]
    )
    print(text)
    document = {
        "measured": utc_now(),
        "machine": {key: value for key, value in machine.items() if key != "command"},
        "within": WITHIN,
        "cases": cases,
        "speed": speeds,
    }
    write_result(
        options.out,
        {"validation.txt": caption, "simulation.md": text, "simulation.json": document},
        {"validation": partial(draw_validation, cases)},
    )
    say(f"written to {options.out}")
    off = [case["case"] for case in cases if abs(statistics.median(case["ratios"]) - 1) > WITHIN]
    if off:
        say(f"more than {WITHIN:.0%} off: {', '.join(off)}")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
