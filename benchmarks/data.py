"""`make bench`: making, opening and sharing the data set, beside what a user would do otherwise, in one run.

Rounds are interleaved: each one makes the data set in both ways, opens it in both ways, and starts one and two workers
in both ways, so that a slow minute of the machine hits all alike. Printed and written to benchmarks/results/: the
median over rounds with the smallest and largest. Everything is made in a folder of its own in the data cache, removed
at the end. At the end of a round the trainer itself runs for some seconds on all workers and its memory is watched.

The usual way: one numpy program holds all curves and saves them; every worker loads all of them into its own memory
as a TensorDataset.
"""

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, sleep, utc_now
from horovod_study.strain import dataset, material
from horovod_study.text.numbers import amount
from horovod_study.text.progress import say

HERE = Path(__file__).parent
OURS, USUAL = "this package", "usual way"
TRAINER_BATCHES = (75, 1024)
GATHERED = 1024  # rows of a batch in which workers visit the training curves
MAX_OWN_MB = 300.0
"""What an extra worker may hold beside the shared pages."""


# ------------------------------------------------------------------------------------------------ the usual way


def make_usually(folder: Path, size: int) -> None:
    """Make curves of the same distributions with numpy alone and save them."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    curves = np.zeros((size, 3, 201), np.float32)
    targets = rng.random((size, 2), dtype=np.float32)
    for low in range(0, size, 10_000):
        rows = curves[low : low + 10_000]
        count = len(rows)
        g0_mpa, a = (material.TARGET_BOUNDS[:, 0] + material.TARGET_SPAN * targets[low : low + count]).T[:, :, None]
        missing = np.where(rng.random(count) < 0.5, 0, rng.integers(0, 41, count))[:, None]
        increments = rng.integers(4096, 69632, (count, 201)).astype(np.float64)
        increments[np.arange(201) <= missing] = 0
        strain = np.cumsum(increments, axis=1)
        strain *= rng.uniform(0.1, 0.25, (count, 1)) / strain[:, -1:]
        noise = rng.normal(size=(count, 201)) * rng.uniform(0, 1, (count, 1))
        noise[np.arange(201) <= missing] = 0
        rows[:, 0], rows[:, 1] = strain, g0_mpa / a * (1 - np.exp(-a * strain)) + noise
        rows[:, 2] = np.arange(201) >= missing
    np.save(folder / dataset.CURVES, curves)
    np.save(folder / dataset.TARGETS, targets)


# ------------------------------------------------------------------------------------------------ one worker


def worker(who: str, path: Path, rank: int, workers: int) -> None:
    """Open the set, visit every training curve once in batches, evaluate, then tell the memory when asked to."""
    import torch
    from torch.utils.data import TensorDataset

    from horovod_study.strain.model import StressCNN
    from horovod_study.strain.trainer import evaluate

    torch.set_num_threads(1)
    opened = dataset.open_dataset(path)
    if who == OURS:
        curves, targets = torch.from_numpy(opened.curves), torch.from_numpy(opened.targets)
    else:
        loaded = TensorDataset(*(torch.from_numpy(np.load(path / name)) for name in (dataset.CURVES, dataset.TARGETS)))
        curves, targets = loaded.tensors
        opened = replace(opened, curves=curves.numpy(), targets=targets.numpy())
    order = torch.from_numpy(dataset.train_rows(np.random.default_rng(rank).permutation(opened.train_size)))
    began = now()
    for rows in torch.split(order, GATHERED):
        curves.index_select(0, rows)
        targets.index_select(0, rows)
    visit_s = now() - began
    backend: Any = SimpleNamespace(rank=rank, workers=workers, sum=lambda values: values)
    evaluate(StressCNN(), opened, backend, torch.device("cpu"))  # the trainer's own, on this rank's test curves
    print(json.dumps({"visit_s": visit_s}), flush=True)
    sys.stdin.readline()
    print(json.dumps(memory_mb(path / dataset.CURVES)), flush=True)
    sys.stdin.readline()


def memory_mb(curves: Path) -> dict[str, float]:
    """Return this process's memory in MB (1e6 bytes), and that of its map of `curves`.

    own is what no file backs and no other process can share; copied counts pages of the map that became own ones.
    """
    whole = _kilobytes(Path("/proc/self/smaps_rollup").read_text())
    maps = re.findall(
        rf"^\S+-\S+ \S+ \S+ \S+ \S+ +{re.escape(str(curves))}\n(.*?)VmFlags",
        Path("/proc/self/smaps").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    mapped = [_kilobytes(text) for text in maps]
    found = {
        "rss_mb": whole["Rss"],
        "pss_mb": whole["Pss"],
        "own_mb": whole["Anonymous"],
        "mapped_mb": sum(each["Rss"] for each in mapped),
        "copied_mb": sum(each["Anonymous"] for each in mapped),
        "mapped_private_dirty_mb": sum(each["Private_Dirty"] for each in mapped),
    }
    return {name: value * 1024 / 1e6 for name, value in found.items()}


def _kilobytes(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}


# ------------------------------------------------------------------------------------------------ measuring


def timed_command(words: list[str]) -> float:
    """Return the seconds that a command takes, its start included."""
    began = now()
    subprocess.run(words, check=True, capture_output=True, text=True)
    return now() - began


def time_making(who: str, folder: Path, size: int) -> float:
    """Make the data set with the way of `who` and return the seconds of the command."""
    os.sync()  # what the other way left for the disk must not be waited for here
    if who == OURS:
        generate = ["data", "generate", "--size", str(size), "--out", str(folder)]
        return timed_command([sys.executable, "-m", "horovod_study.cli", *generate])
    return timed_command([sys.executable, __file__, "--make-usually", str(folder), "--curves", str(size)])


def time_opening(who: str, path: Path) -> float:
    """Return the seconds in which a fresh process has the curves at hand, imports not counted."""
    load = (
        "dataset.open_dataset(path)"
        if who == OURS
        else "arrays = [np.load(path / name) for name in (dataset.CURVES, dataset.TARGETS)]"
    )
    program = (
        "import sys; from pathlib import Path; import numpy as np; from horovod_study.measure.clock import now;"
        f"from horovod_study.strain import dataset; path = Path(sys.argv[1]); began = now(); {load}; "
        "print(now() - began)"
    )
    return float(subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True).stdout)


def measure_workers(who: str, path: Path, workers: int) -> list[dict[str, float]]:
    """Start `workers` at once; return the memory of each while all of them are there and have visited all curves."""
    running = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", who, str(path), str(rank), str(workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(workers)
    ]
    try:
        visits = [json.loads(each.stdout.readline()) for each in running]  # type: ignore[union-attr]
        found = []
        for each, visit in zip(running, visits, strict=True):
            each.stdin.write("\n")  # type: ignore[union-attr]
            each.stdin.flush()  # type: ignore[union-attr]
            found.append({**visit, **json.loads(each.stdout.readline())})  # type: ignore[union-attr]
    finally:
        for each in running:
            each.communicate()
    return found


def watch_trainer(path: Path, workers: int, batch: int, seconds: float, out: Path) -> dict[str, float]:
    """Train for some seconds under Horovod/MPI; return the most memory that a worker showed, its evaluation included.

    The curves a worker has met until then are in its PSS, so only its own pages are told.
    """
    shutil.rmtree(out, ignore_errors=True)
    launcher = [str(Path(sys.executable).parent / "horovodrun"), "--mpi", "-np", str(workers), sys.executable]
    trainer = ["-m", "horovod_study.train", "--dataset", str(path), "--batch", str(batch), "--seconds", str(seconds)]
    process = subprocess.Popen(
        [*launcher, *trainer, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    most = 0
    pids: list[int] = []
    while process.poll() is None:
        sleep(0.1)
        if not pids and (out / "run.json").exists():
            pids = [each["pid"] for each in json.loads((out / "run.json").read_text())["effective"]["ranks"]]
        for pid in pids:
            with suppress(OSError):  # gone already
                most = max(most, _kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text()).get("Anonymous", 0))
    _, errors = process.communicate()
    if process.returncode or not most:
        raise SystemExit(f"the trainer failed (exit code {process.returncode}):\n{errors[-2000:]}")
    return {"own_mb": most * 1024 / 1e6}


# ------------------------------------------------------------------------------------------------ the tables


def spread(values: list[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def memory_rows(measured: dict[tuple[str, int], list[list[dict[str, float]]]]) -> list[dict[str, Any]]:
    """Return one row per way and number of workers: the largest worker of each round, then the spread over rounds."""
    rows = []
    for (who, workers), rounds in measured.items():
        row: dict[str, Any] = {"who": who, "workers": workers}
        for name in rounds[0][0]:
            row[name] = spread([max(each[name] for each in one) for one in rounds])
        row["pss_all_mb"] = spread([sum(each["pss_mb"] for each in one) for one in rounds])
        if workers > 1:
            alone = measured[who, 1]
            row["extra_worker_mb"] = spread(
                [
                    (sum(each["pss_mb"] for each in one) - single[0]["pss_mb"]) / (workers - 1)
                    for one, single in zip(rounds, alone, strict=True)
                ]
            )
        rows.append({**row, "rounds": rounds})
    return rows


def _of(value: dict[str, float], form: str) -> str:
    return f"{value['median']:{form}} ({value['min']:{form}} - {value['max']:{form}})"


def markdown(
    size: int,
    times: dict[str, dict[str, dict[str, float]]],
    memory: list[dict[str, Any]],
    trainer: list[dict[str, Any]],
) -> str:
    """Return the tables for people."""
    lines = [
        f"## Making and opening {size:,} curves ({amount(size * 603 * 4)})",
        "",
        "| what | this package, s | usual way, s | ratio |",
        "|---|--:|--:|--:|",
    ]
    for what, by_who in times.items():
        form = ".1f" if what == "making" else ".4f" if by_who[OURS]["median"] < 0.1 else ".2f"
        ratio = by_who[USUAL]["median"] / by_who[OURS]["median"]
        usual = _of(by_who[USUAL], form if what == "making" else ".2f")
        lines.append(f"| {what} | {_of(by_who[OURS], form)} | {usual} | {ratio:,.1f} |")
    lines += [
        "",
        "## Memory of workers that have visited every training curve",
        "",
        "| who | workers | all, PSS MB | largest worker: PSS MB | RSS MB | own MB | copied curve pages MB "
        "| one more worker costs, PSS MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in memory:
        extra = f"{row['extra_worker_mb']['median']:,.0f}" if "extra_worker_mb" in row else ""
        copied = f"{row['copied_mb']['median']:.1f}" if row["who"] == OURS else "everything"
        lines.append(
            f"| {row['who']} | {row['workers']} | {_of(row['pss_all_mb'], ',.0f')} | {row['pss_mb']['median']:,.0f} "
            f"| {row['rss_mb']['median']:,.0f} | {row['own_mb']['median']:,.0f} | {copied} | {extra} |"
        )
    for row in trainer:
        lines.append(
            f"| {OURS}, training at batch {row['batch']} under Horovod/MPI | {row['workers']} | | | "
            f"| {_of(row['own_mb'], ',.0f')} | | |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure everything, print as it comes, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="times everything is measured (default 3)")
    parser.add_argument("--curves", default="1000000", help="size of the data set (default 1000000)")
    parser.add_argument("--workers", type=int, default=2, help="workers beside one (default 2)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the trainer is watched (default 5)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the tables go")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--make-usually", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = dataset.parse_size(options.curves)
    if size is None or size < 4:
        parser.error(f"--curves {options.curves}: must be a number of curves, at least 4")
    if options.rounds < 1 or options.workers < 2:
        parser.error("--rounds must be at least 1, --workers at least 2")
    if options.worker:
        who, path, rank, workers = options.worker
        worker(who, Path(path), int(rank), int(workers))
        return 0
    if options.make_usually:
        make_usually(options.make_usually, size)
        return 0

    times: dict[str, dict[str, list[float]]] = {
        what: {OURS: [], USUAL: []} for what in ("making", "opening", "first visit of all training curves, 1 worker")
    }
    making, opening, visiting = times.values()
    memory: dict[tuple[str, int], list[list[dict[str, float]]]] = {
        (who, workers): [] for who in (OURS, USUAL) for workers in (1, options.workers)
    }
    watched: dict[int, list[float]] = {batch: [] for batch in TRAINER_BATCHES}
    shuffle = random.Random(1)
    dataset.cache_directory().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=dataset.cache_directory(), prefix=".bench-"))
    try:
        for number in range(options.rounds):
            told = f"[{number + 1}/{options.rounds}]"
            for name in ("set", "usual"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for who in shuffle.sample([OURS, USUAL], 2):
                making[who].append(time_making(who, folder / ("set" if who == OURS else "usual"), size))
                say(f"{told} {who}: made in {making[who][-1]:.1f} s")
            shutil.rmtree(folder / "usual")  # from here on both read the same files
            for who in shuffle.sample([OURS, USUAL], 2):
                opening[who].append(time_opening(who, folder / "set"))
                say(f"{told} {who}: opened in {opening[who][-1]:.4f} s")
            for who, workers in shuffle.sample(list(memory), len(memory)):
                found = measure_workers(who, folder / "set", workers)
                memory[who, workers].append(found)
                if workers == 1:
                    visiting[who].append(found[0]["visit_s"])
                say(
                    f"{told} {who}: {workers} worker{'s' * (workers > 1)}, PSS "
                    + " + ".join(f"{each['pss_mb']:,.0f}" for each in found)
                    + " MB, own "
                    + ", ".join(f"{each['own_mb']:,.0f}" for each in found)
                    + " MB"
                )
            for batch in shuffle.sample(TRAINER_BATCHES, len(TRAINER_BATCHES)):
                own = watch_trainer(folder / "set", options.workers, batch, options.seconds, folder / "run")["own_mb"]
                watched[batch].append(own)
                say(f"{told} {OURS}, training: {options.workers} workers, batch {batch}, own {own:,.0f} MB at most")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    machine = environment.describe()
    tables = {what: {who: spread(values) for who, values in by_who.items()} for what, by_who in times.items()}
    rows = memory_rows(memory)
    ours = next(row for row in rows if row["who"] == OURS and row["workers"] == options.workers)
    trainer = [{"batch": b, "workers": options.workers, "own_mb": spread(own)} for b, own in watched.items()]
    fits = ours["own_mb"]["max"] <= MAX_OWN_MB and ours["copied_mb"]["max"] == 0
    head = [
        "# The data set",
        "",
        f"Measured by `make bench` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"{machine['memory_gb']} GB, Python {machine['python']}, PyTorch {machine['torch']}, numpy {machine['numpy']}; "
        f"{options.rounds} rounds, load at the end {machine['load_1min']}. Median (smallest - largest).",
        "",
        "Usual way: one numpy program makes all curves in memory and saves them (not flushed to the disk; this package "
        "hashes and flushes them); every worker loads all of them as a TensorDataset. Opening: a fresh process, "
        "files in the page cache. PSS divides shared pages by their users; own pages are those that no file backs, "
        "PyTorch's included (importing it takes about 145 MB of them). Copied curve pages: own pages in the map of "
        "curves.npy after the visit of all training curves and an evaluation. The trainer's rows tell the most own "
        "memory of a worker over the whole run: optimiser, communication library and activations included.",
        "",
    ]
    verdict = (
        f"\nA worker holds {ours['own_mb']['max']:,.0f} MB beside the shared pages "
        f"({'within' if fits else 'NOT within'} the {MAX_OWN_MB:.0f} MB it may hold) "
        f"and {ours['copied_mb']['max']:.1f} MB of curve pages of its own."
    )
    text = "\n".join([*head, markdown(size, tables, rows, trainer), verdict, ""])
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "data.md").write_text(text, encoding="utf-8")
    document = {
        "measured": utc_now(),
        "host": platform.node(),
        "machine": {name: value for name, value in machine.items() if name != "command"},
        "rounds": options.rounds,
        "curves": size,
        "times_s": {
            what: {who: {**tables[what][who], "rounds": values} for who, values in by_who.items()}
            for what, by_who in times.items()
        },
        "memory": rows,
        "trainer": trainer,
        "own_mb_allowed": MAX_OWN_MB,
        "within": fits,
    }
    (options.out / "data.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    say(f"written to {options.out / 'data.md'} and .json")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
