"""`make bench BENCH=ledger`: how long a study of 10,000 cells takes to plan, and to see where it stands.

    plan           `run --plan` before anything was run: the file is read, the cells are made, the order and the
                   time are worked out
    status         `horovod-study status` when all cells are done, everything read for the first time
    status again   the same command after that: what was read of finished cells is in .ledger.json

Whole commands are timed, the start of Python included; each round does the three in this order. Nothing is trained: the
run directories hold records of a usual size, as a run would leave them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from horovod_study import records
from horovod_study.config.run import Cell
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.report.kit.files import write_result
from horovod_study.studies import lease
from horovod_study.studies.study_file import load_study
from horovod_study.text.progress import say

HERE = Path(__file__).parent
LIMITS_S = {"plan": 5.0, "status": 2.0}
RUNTIMES, WORKERS = ("horovod/mpi", "horovod/gloo"), (1, 2)


def study_text(cells: int) -> str:
    """Return a study file of about so many cells: two runtimes on one and two workers over many learning rates."""
    repeats = 10
    rates = max(1, cells // (repeats * len(RUNTIMES) * len(WORKERS)))
    values = ", ".join(f"{(each + 1) / 1e6:g}" for each in range(rates))
    return (
        f"study: many\nrepeats: {repeats}\nbaselines: []\nrun: {{seconds: 10}}\nsweep:\n"
        f"  workers: {list(WORKERS)}\n  runtime: [{', '.join(RUNTIMES)}]\n  lr: [{values}]\n"
    )


def record_of(cell: Cell, **changes: Any) -> records.RunRecord:
    """Return the record that a finished run of `cell` leaves, of about the usual size."""
    workers = cell.placement.workers
    values: dict[str, Any] = {
        "study": cell.config.study,
        "key": cell.key,
        "repeat": cell.config.repeat,
        "partition": cell.placement.partition,
        "status": "done",
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:00:13+00:00",
        "host": "node1",
        "pid": 4711,
        "requested": vars(cell.config),
        "effective": {
            "workers": workers,
            "ranks": [{"rank": rank, "host": "node1", "affinity": list(range(8))} for rank in range(workers)],
            "settings": {f"setting_{number}": {"value": number, "source": "default"} for number in range(30)},
        },
        "environment": {f"version_{number}": "2.13.0+cpu" for number in range(20)},
        "totals": {
            "samples_per_s": 31415.9,
            **{f"total_{number}": [number * 1.2345678901] * workers for number in range(40)},
        },
    }
    return records.RunRecord(**{**values, **changes})


def fake_runs(
    cells: Iterable[Cell], directory: Path, changes: Callable[[int], dict[str, Any]] = lambda number: {}
) -> None:
    """Make what finished runs of `cells` leave: records and claims; `changes(n)` are made to the n-th record."""
    claims = directory / lease.CLAIMS
    claims.mkdir(parents=True)
    claim = {"holder": asdict(lease.this_process()), "what": "a cell", "since": "2026-01-01T00:00:00+00:00"}
    for number, cell in enumerate(cells):
        path = directory / cell.key
        path.mkdir()
        record = asdict(record_of(cell, **changes(number)))
        # Not create_run: it waits until each of them is on the disk.
        (path / records.MANIFEST).write_text(json.dumps(record, indent=1) + "\n")
        end = {"released": "2026-01-01T00:00:13+00:00", "state": record["status"], "reason": ""}
        (claims / f"{cell.key}.1").write_text(json.dumps({**claim, **end}) + "\n")


def timed(command: Sequence[str], folder: Path) -> float:
    """Return the seconds that a command takes; an error says what it printed."""
    began = now()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"})
    seconds = now() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return seconds


def measure(cells: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return how many cells there are and the seconds of each command, one per round."""
    file = folder / "many.yaml"
    file.write_text(study_text(cells))
    study = load_study(file)
    program = [sys.executable, "-m", "horovod_study.cli"]
    plan = [*program, "run", "--plan", str(file), "--runs", str(folder / "empty")]
    status = [*program, "status", str(file), "--runs", str(folder / "runs")]
    say(f"making {len(study.cells())} run directories")
    fake_runs(study.cells(), folder / "runs" / study.name)
    found: dict[str, list[float]] = {"plan": [], "status": [], "status again": []}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        (folder / "runs" / study.name / ".ledger.json").unlink(missing_ok=True)
        for name, command in (("plan", plan), ("status", status), ("status again", status)):
            found[name].append(timed(command, folder))
    size = (folder / "runs" / study.name / study.cells()[0].key / records.MANIFEST).stat().st_size
    return {"cells": len(study.cells()), "record_bytes": size, "rounds": rounds, "seconds": found}


def lines(result: dict[str, Any]) -> list[str]:
    """Return the page."""
    machine = result["machine"]
    found = [
        "# The ledger",
        "",
        f"Measured by `make bench BENCH=ledger` on {result['measured'][:10]}: {machine['cpu_model']}, "
        f"{machine['cores']} cores, Python {machine['python']}; {result['rounds']} rounds, load at the end "
        f"{machine['load_1min']}. Median (smallest - largest).",
        "",
        f"A study of {result['cells']:,} cells, records of {result['record_bytes']:,} bytes, on the local disk with "
        "everything in the page cache. Seconds of whole commands, from the shell to their end.",
        "",
        "| command | s | may take, s |",
        "|---|--:|--:|",
    ]
    for name, times in result["seconds"].items():
        limit = LIMITS_S[name.removesuffix(" again")]
        found.append(f"| {name} | {statistics.median(times):.2f} ({min(times):.2f} - {max(times):.2f}) | {limit:g} |")
    return found


def main() -> int:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000, help="of the study (default 10000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each command is timed (default 5)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the page goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        result = measure(options.cells, options.rounds, Path(folder))
    kept = all(
        statistics.median(times) < LIMITS_S[name.removesuffix(" again")] for name, times in result["seconds"].items()
    )
    machine = {name: value for name, value in environment.describe().items() if name != "command"}
    result = {"measured": utc_now(), "machine": machine, **result, "kept": kept}
    page = "\n".join(lines(result)) + "\n"
    print(page)
    write_result(options.out, {"ledger.md": page, "ledger.json": result})
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
