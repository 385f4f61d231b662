"""`make bench BENCH=analysis`: how long `horovod-study report --tables` takes over many step rows, and how much memory.

    study    --runs runs of 1, 2, 4 and 8 workers that hold --rows step rows together, and a third and a tenth of them:
             whether time grows as the rows do
    long     one run of 8 workers with as many rows: whether a run may be longer than memory

Whole commands are timed, from the shell to their end. Nothing is trained: the run directories hold records of the usual
size and step rows in the batches that training leaves, of laps that were drawn. The full size, 100 million rows, takes
9 GB of disk and of page cache: `benchmarks/analysis.py --rows 1e8`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from horovod_study import records
from horovod_study.config.run import ORDINARY_LAPS
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.report.kit.files import write_result
from horovod_study.text.progress import say

HERE = Path(__file__).parent
LIMITS = {"s_per_100_million_rows": 60.0, "memory_gb": 4.0}
"""What the project has promised, on two cores."""
PARTS = (1 / 10, 1 / 3, 1.0)
WAYS = (("horovod", "mpi", 2e-4), ("horovod", "gloo", 5e-4))
WORKERS = (1, 2, 4, 8)
WARMUP = 50
EPOCH_STEPS = 1_000
POOL = 1_000_003
BYTES_PER_ROW = 92
"""In a file: 88 of the row, and its part of the head of a batch."""
LAP_MS = {"data": 0.1, "forward": 1.0, "backward": 1.5, "update": 0.2, "residual": 0.02}


def step_columns(rng: np.random.Generator, steps: int, ranks: int, transfer_s: float) -> Iterable[pa.Table]:
    """Yield the step rows of each rank: laps with a tail, and a synchronisation that ends on all ranks at once.

    Every rank draws its laps again when they are needed again, so that of a long run one rank is in memory.
    """
    seeds = rng.integers(2**32, size=ranks)
    last = np.zeros(steps)
    for seed in seeds:
        laps = _laps(int(seed), steps)
        np.maximum(last, _own(laps), out=last)
    ends = np.cumsum(last + (transfer_s if ranks > 1 else 0.0))
    number = np.arange(steps, dtype=np.int32)
    for seed in seeds:
        laps = _laps(int(seed), steps)
        own = _own(laps)
        sync = last - own + transfer_s if ranks > 1 else np.zeros(steps)
        before = np.concatenate([[0.0], laps["update"][:-1]])
        values = {
            "step": number,
            "epoch": number // EPOCH_STEPS,
            "begin_s": np.concatenate([[0.0], ends[:-1]]) + before + laps["residual"],
            **{f"{lap}_s": laps[lap] for lap in (*ORDINARY_LAPS, "residual") if lap != "sync"},
            "sync_s": sync,
            "step_s": sum(laps.values()) + sync,
            "samples": np.full(steps, 75, dtype=np.int32),
            "loss": (0.1 / (1 + number)).astype(np.float32),
        }
        schema = records.step_schema()
        columns = [
            pa.array(values[each.name], each.type) if each.name in values else pa.nulls(steps, each.type)
            for each in schema
        ]
        yield pa.Table.from_arrays(columns, schema=schema)


def _laps(seed: int, steps: int) -> dict[str, np.ndarray]:
    """Return laps in s; cut from one pool of numbers, because drawing them takes longer than to analyse them."""
    rng = np.random.default_rng(seed)
    laps = {}
    for lap, ms in LAP_MS.items():
        pool = _pool()
        first = int(rng.integers(len(pool)))
        laps[lap] = (
            np.resize(np.concatenate([pool[first:], pool[:first]]), steps)
            if steps > POOL - first
            else (pool[first : first + steps])
        )
        laps[lap] = laps[lap] * (ms / 1e3 * rng.uniform(0.98, 1.02))
    return laps


def _own(laps: dict[str, np.ndarray]) -> np.ndarray:
    before = np.concatenate([[0.0], laps["update"][:-1]])
    own: np.ndarray = before + laps["residual"] + laps["data"] + laps["forward"] + laps["backward"]
    return own


_POOL: list[np.ndarray] = []


def _pool() -> np.ndarray:
    if not _POOL:
        rng = np.random.default_rng(1)
        _POOL.append(0.9 + rng.gamma(4, 0.025, POOL))
    return _POOL[0]


def write_run(directory: Path, *, workers: int, steps: int, repeat: int, way: tuple[str, str, float]) -> None:
    """Write what a finished run leaves behind."""
    backend, transport, transfer_s = ("serial", "none", 0.0) if way[0] == "serial" else way
    directory.mkdir(parents=True)
    rng = np.random.default_rng([workers, repeat, len(transport)])
    sums = np.zeros(len(LAP_MS) + 2)
    columns = [f"{lap}_s" for lap in (*ORDINARY_LAPS, "residual", "step")]
    for rank, table in enumerate(step_columns(rng, steps, workers, transfer_s * workers)):
        with pa.OSFile(str(directory / f"steps-{rank:05d}.arrows"), "wb") as file:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=records.ROWS_JOINED)
        sums += [float(table.column(name).to_numpy()[WARMUP:].mean()) for name in columns]
    means = dict(zip(columns, (sums / workers).tolist(), strict=True))
    effective = {
        "backend": backend,
        "transport": transport,
        "reduction": "none" if workers == 1 else "flat",
        "workers": workers,
        "nodes": 1,
        "batch": 75,
        "global_batch": 75 * workers,
        "train_samples": 75_000,
        "precision": "fp32",
        "warmup_steps": WARMUP,
        "steps_per_epoch": EPOCH_STEPS,
        "parameters": 153_441,
        "ranks": [
            {"host": "node1", "local_rank": rank, "pid": 4711 + rank, "cores": [rank], "device": "cpu"}
            for rank in range(workers)
        ],
        "settings": {f"setting_{number}": {"value": number, "source": "library default"} for number in range(12)},
    }
    record = records.RunRecord(
        study="many",
        key=directory.name,
        repeat=repeat,
        partition="local",
        status="done",
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T01:00:00+00:00",
        host="node1",
        pid=4711,
        requested={"batch": 75, "steps": steps, "seed": repeat, "horovod_defaults": False},
        effective=effective,
        environment={"cpu_model": "Imaginary EPYC", "cores": 16, "torch": "2.13.0", "python": "3.11.9"},
        totals={
            "samples_per_s": 75 * workers / means["step_s"],
            "window_s": (steps - WARMUP) * means["step_s"],
            "steps": steps,
            "excluded_steps": WARMUP,
            **means,
            "lap_medians_s": {name.removesuffix("_s"): value for name, value in means.items()},
            "rss_mb_max": 400.0,
        },
    )
    # Not create_run: it waits until each of them is on the disk.
    (directory / records.MANIFEST).write_text(json.dumps(asdict(record), indent=1) + "\n")
    epochs = [
        dict.fromkeys(records.EPOCH_COLUMNS, 0.0)
        | {"epoch": epoch, "steps": epoch * EPOCH_STEPS, "train_s": epoch * EPOCH_STEPS * means["step_s"]}
        | {"samples": epoch * EPOCH_STEPS * 75 * workers, "wall_s": epoch * EPOCH_STEPS * means["step_s"]}
        | {"train_mse": 1e-3 / epoch, "test_mse": 1e-3 / epoch, "lr": 4.7e-4}
        for epoch in range(1, min(20, steps // EPOCH_STEPS) + 1)
    ]
    lines = [",".join(records.EPOCH_COLUMNS), *(",".join(map(str, row.values())) for row in epochs)]
    (directory / "epochs.csv").write_text("\n".join(lines) + "\n")


def write_runs(folder: Path, *, runs: int, rows: int, workers: Sequence[int] = WORKERS) -> list[tuple[Path, int]]:
    """Write `runs` runs that hold `rows` step rows together; return each with its number of rows."""
    cells = [(way, count) for count in workers for way in (WAYS if max(workers) > 1 else WAYS[:1])]
    if runs > len(cells):
        cells.append((("serial", "none", 0.0), 1))
    written = []
    for number in range(runs):
        way, count = cells[number % len(cells)]
        repeat = number // len(cells)
        steps = max(WARMUP + 50, rows // runs // count)
        path = folder / f"{way[0]}-{way[1]}-{count}-{repeat}"
        write_run(path, workers=count, steps=steps, repeat=repeat, way=way)
        written.append((path, steps * count))
    return written


class Peak:
    """The most memory that a process and its children hold at a time, in GB, looked at 20 times a second.

    `resident` counts what they map of files too, which is page cache that the system takes back when it needs to;
    `own` does not.
    """

    def __init__(self, pid: int) -> None:
        self.resident = self.own = 0.0
        self._process, self._ended = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            found = []
            with suppress(psutil.Error):
                for process in (self._process, *self._process.children(recursive=True)):
                    with suppress(psutil.Error):
                        found.append(process.memory_info())
            self.resident = max(self.resident, sum(each.rss for each in found) / 1e9)
            self.own = max(self.own, sum(each.rss - each.shared for each in found) / 1e9)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def timed(command: Sequence[str]) -> dict[str, float]:
    """Return what a command takes; an error says what it printed."""
    began, cpu = now(), os.times()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        peak = Peak(process.pid)
        try:
            code = process.wait()
        finally:
            process.kill()
            peak.stop()
        seconds, cpu_after = now() - began, os.times()
        if code:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {said.read()[-2000:]}")
    cpu_s = cpu_after.children_user + cpu_after.children_system - cpu.children_user - cpu.children_system
    return {"s": seconds, "cpu_s": cpu_s, "resident_gb": peak.resident, "own_gb": peak.own}


def forget(paths: Iterable[Path]) -> None:
    """Ask the system to drop the step rows from its page cache."""
    for path in paths:
        for file in path.glob("steps-*.arrows"):
            descriptor = os.open(file, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def analyzed(runs: Path, folder: Path, threads: int | None) -> dict[str, float]:
    """Return what `horovod-study report --tables` takes for the runs of a folder."""
    few = [] if threads is None else ["--threads", str(threads)]
    out = folder / "analysis"
    found = timed([sys.executable, "-m", "horovod_study.cli", "report", "--tables", str(runs), "--out", str(out), *few])
    shutil.rmtree(out)
    return found


def measure_study(folder: Path, *, runs: int, rows: int, rounds: int, threads: int | None) -> list[dict[str, Any]]:
    """Return the figures of the study and of its parts, warm, and of all of it read from the disk."""
    say(f"writing {runs:,} runs with {rows:,} step rows")
    written = write_runs(folder / "runs", runs=runs, rows=rows)
    found = []
    for part in PARTS:
        chosen = written[: max(1, round(part * len(written)))]
        some = folder / f"part-{len(chosen)}"
        some.mkdir()
        for path, _ in chosen:
            path.rename(some / path.name)
        size = {"runs": len(chosen), "rows": sum(count for _, count in chosen)}
        for number in range(rounds):
            say(f"analyze {size['runs']:,} runs, round {number + 1} of {rounds}")
            found.append({"what": "study", "cache": "warm", **size, **analyzed(some, folder, threads)})
        if part == PARTS[-1]:
            forget(some / path.name for path, _ in chosen)
            found.append({"what": "study", "cache": "cold", **size, **analyzed(some, folder, threads)})
        for path, _ in chosen:
            (some / path.name).rename(path)
    shutil.rmtree(folder / "runs")
    return found


def measure_long(folder: Path, *, rows: int, rounds: int, threads: int | None) -> list[dict[str, Any]]:
    """Return the figures of one run of 8 workers with all rows."""
    say(f"writing one run with {rows:,} step rows")
    written = write_runs(folder / "long", runs=1, rows=rows, workers=(8,))
    size = {"runs": 1, "rows": sum(count for _, count in written)}
    found = [
        {"what": "long", "cache": "warm", **size, **analyzed(folder / "long", folder, threads)} for _ in range(rounds)
    ]
    shutil.rmtree(folder / "long")
    return found


def lines(result: dict[str, Any]) -> list[str]:
    """Return the page."""
    machine = result["machine"]
    found = [
        "# Analysis of many step rows",
        "",
        f"Measured by `{result['command']}` on {result['measured'][:10]}: {machine['cpu_model']}, "
        f"{machine['cores']} cores, Python {machine['python']}; load at the end {machine['load_1min']}.",
        "",
        "Whole commands (`horovod-study report --tables RUNS --out DIR`), from the shell to their end. Memory: the "
        "most at a time of the process and its children, without and with what they map of step rows (page cache).",
        "",
        "| what | step rows | runs | rows cached | s | CPU s | µs CPU per row | memory, GB | with page cache, GB |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for each in result["measurements"]:
        found.append(
            f"| {each['what']} | {each['rows']:,} | {each['runs']:,} | {each['cache']} | {each['s']:.1f} | "
            f"{each['cpu_s']:.1f} | {each['cpu_s'] / each['rows'] * 1e6:.3f} | {each['own_gb']:.2f} | "
            f"{each['resident_gb']:.2f} |"
        )
    return found


def main() -> int:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=float, default=5e6, help="step rows together (default 5e6; the promise: 1e8)")
    parser.add_argument("--runs", type=int, help="runs that hold them (default: one per 100,000 rows)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each command is timed (default 1)")
    parser.add_argument("--only", choices=("study", "long"), help="one of both")
    parser.add_argument("--threads", type=int, help="of analyze (default: its own choice)")
    parser.add_argument("--folder", type=Path, help="where the runs are written for a while (default: TMPDIR)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the page goes")
    options = parser.parse_args()
    rows = int(options.rows)
    runs = options.runs or max(10, rows // 100_000)
    # Interrupted or told to end, what was written is removed like at the end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="analysis-", dir=options.folder) as name:
        folder = Path(name)
        free = shutil.disk_usage(folder).free
        if free < 1.2 * rows * BYTES_PER_ROW:
            say(f"{folder}: {free / 1e9:.1f} GB free, {1.2 * rows * BYTES_PER_ROW / 1e9:.1f} GB are needed; --folder")
            return 2
        if options.only != "long":
            found += measure_study(folder, runs=runs, rows=rows, rounds=options.rounds, threads=options.threads)
        if options.only != "study":
            found += measure_long(folder, rows=rows, rounds=options.rounds, threads=options.threads)
    allowed_s = max(10.0, LIMITS["s_per_100_million_rows"] * rows / 1e8)
    kept = all(
        each["s"] <= allowed_s and each["own_gb"] <= LIMITS["memory_gb"] for each in found if each["cache"] == "warm"
    )
    machine = {name: value for name, value in environment.describe().items() if name != "command"}
    command = f"benchmarks/analysis.py --rows {options.rows:g}" if rows != 5_000_000 else "make bench BENCH=analysis"
    result = {
        "measured": utc_now(),
        "command": command,
        "machine": machine,
        "measurements": found,
        "limits": LIMITS,
        "kept": kept,
    }
    page = "\n".join(lines(result)) + "\n"
    print(page)
    write_result(options.out, {"analysis.md": page, "analysis.json": result})
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
