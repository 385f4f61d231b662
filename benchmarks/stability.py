"""`make bench BENCH=stability`: does a launch ever fall into a slow mode, and how much do launches differ?

Horovod over MPI with the settings of the libraries falls now and then into steps of 30 - 40 ms for the whole of a run.
The shipped settings must never. Launches of both alternate; a launch is slow when its median step is more than twice
the median of all launches with the same settings, or one in ten of its steps takes more than five times its median.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.strain import dataset
from horovod_study.text.progress import say

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
WAYS = {
    "horovodrun, shipped settings": (),
    "horovodrun, library defaults": ("--horovod-defaults",),
}


def launch(options: tuple[str, ...], *, data: Path, workers: int, seconds: float, timeout_s: float) -> dict[str, Any]:
    """Train once under horovodrun; return samples/s and the step's median and p90 in ms, or the reason of a failure."""
    with tempfile.TemporaryDirectory() as folder:
        line = [str(BIN / "horovodrun"), "-np", str(workers), sys.executable, "-m", "horovod_study.train"]
        line += ["--dataset", str(data), "--seconds", str(seconds), "--no-checkpoint-at-end", "--json"]
        with subprocess.Popen(
            [*line, "--out", f"{folder}/run", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return {"reason": f"no result within {timeout_s:g} s"}
        found = re.search(r"\{.*\}", out)
        if process.returncode or not found:
            return {"reason": err.strip()[-1000:] or "no output"}
        result = json.loads(found[0])
    return {name: result[name] for name in ("samples_per_s", "step_ms_median", "step_ms_p90")}


def row(name: str, launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all launches of one way say together."""
    good = [each for each in launches if "reason" not in each]
    medians = [each["step_ms_median"] for each in good]
    middle = statistics.median(medians) if medians else float("nan")
    slow = [m for m, each in zip(medians, good, strict=True) if m > 2 * middle or each["step_ms_p90"] > 5 * m]
    speeds = sorted(each["samples_per_s"] for each in good)
    return {
        "way": name,
        "launches": len(launches),
        "failed": len(launches) - len(good),
        "slow": len(slow),
        "samples_per_s_median": statistics.median(speeds) if speeds else None,
        "samples_per_s_min": min(speeds, default=None),
        "samples_per_s_max": max(speeds, default=None),
        "step_ms_median": middle if medians else None,
        "step_ms_median_max": max(medians, default=None),
        "p90_over_median": statistics.median(each["step_ms_p90"] / each["step_ms_median"] for each in good)
        if good
        else None,
        "runs": launches,
    }


def main() -> int:
    """Launch again and again, count, write the table; exit code 1 if the shipped settings were ever slow or failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=30, help="of each way (default 30)")
    parser.add_argument("--seconds", type=float, default=1.5, help="timed window of each (default 1.5)")
    parser.add_argument("--workers", type=int, default=min(2, available_cores()), help="workers (default 2)")
    parser.add_argument("--curves", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the table goes")
    options = parser.parse_args()
    data = dataset.ensure(options.curves, seed=1)
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    began = now()
    for number in range(options.launches):
        for name in sorted(WAYS, reverse=bool(number % 2)):
            found = launch(WAYS[name], data=data, workers=options.workers, seconds=options.seconds, timeout_s=90)
            measured[name].append(found)
            text = (
                found.get("reason") or f"{found['samples_per_s']:,.0f} samples/s, step {found['step_ms_median']:.2f} ms"
            )
            left_min = (now() - began) / (number + 1) * (options.launches - number - 1) / 60
            say(f"[{number + 1}/{options.launches}] {name}: {text}  ({left_min:.0f} min left)")
    rows = [row(name, launches) for name, launches in measured.items()]
    machine = environment.describe()
    lines = [
        "# Stability of launches",
        "",
        f"Measured by `make bench BENCH=stability` on {utc_now()[:10]}: {machine['cpu_model']}, "
        f"{available_cores()} cores, PyTorch {machine['torch']}, Horovod {machine['horovod']}, {machine['mpi']}; "
        f"{options.workers} workers, batch 75, {options.seconds:g} s each, in turns.",
        "",
        "Slow: the median step is over twice that of the other launches, or one step in ten takes over five times the "
        "median.",
        "",
        "| way | launches | failed | slow | samples/s | smallest - largest | step, ms | slowest launch "
        "| step p90/median |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in rows:
        if each["samples_per_s_median"] is None:
            lines.append(f"| {each['way']} | {each['launches']} | {each['failed']} | | | | | | |")
            continue
        lines.append(
            f"| {each['way']} | {each['launches']} | {each['failed']} | {each['slow']} "
            f"| {each['samples_per_s_median']:,.0f} "
            f"| {each['samples_per_s_min']:,.0f} - {each['samples_per_s_max']:,.0f} "
            f"| {each['step_ms_median']:.2f} | {each['step_ms_median_max']:.2f} | {each['p90_over_median']:.2f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "stability.md").write_text(text, encoding="utf-8")
    machine = {name: value for name, value in machine.items() if name != "command"}
    document = {"measured": utc_now(), "machine": machine, "seconds": options.seconds, "rows": rows}
    (options.out / "stability.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    shipped = rows[0]
    return 1 if shipped["slow"] or shipped["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
