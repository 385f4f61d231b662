"""The laptop study again and again: in turns, beside launches one after the other, and beside a program that disturbs.

    python benchmarks/turns_studies.py [--repetitions 5] [--aims 4% 2%] [--disturbed 20] [--at-most 240] [--out DIR]

launches    experiments/laptop.yaml with `turns: no` and without, in random order, so many runs each
aims        `run --until 4%` and so on: seconds until all intervals are that narrow, start-up included
disturbed   `run --until 8%` while a program takes 0.3 or 1.0 core in bursts, two thirds of the time: how often
            its intervals hold the ratio of the quiet machine, the median over all quiet studies in turns

Half widths are those of 95 % intervals of the speedups of two workers over plain PyTorch, seconds are of the wall
clock, from typing `run` to the report. Every study is printed as it ends, and kept in DIR/turns_studies.json.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study.config.run import available_cores
from horovod_study.measure import environment
from horovod_study.measure.clock import now, utc_now
from horovod_study.text.progress import say

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
STUDY = HERE.parent / "experiments" / "laptop.yaml"
DISTURBING = """
import random, time
pick = random.Random()
while True:
    until, share = time.monotonic() + pick.uniform(1, 5), pick.choice((0.0, 0.3, 1.0))
    while time.monotonic() < until:
        stop = time.monotonic() + 0.02 * share
        while time.monotonic() < stop:
            pass
        time.sleep(0.02 * (1 - share) if share < 1 else 0)
"""


@contextmanager
def disturbed(really: bool) -> Iterator[None]:
    """Have another program take a core now and then."""
    program = subprocess.Popen([sys.executable, "-c", DISTURBING]) if really else None
    try:
        yield
    finally:
        if program is not None:
            program.kill()
            program.wait()


def study(way: str, *, aim: str = "", at_most_s: float = math.inf, beside: bool = False) -> dict[str, Any]:
    """Run the laptop study once; return its seconds and, for each transport, the speedup of most workers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "laptop.yaml"
        text = STUDY.read_text(encoding="utf-8")
        text = text.replace("turns: yes", "turns: no") if way == "launches" else text
        file.write_text(text + (f"budget: {{hours: {at_most_s / 3600}}}\n" if at_most_s < math.inf else ""))
        line = [str(BIN / "horovod-study"), "run", str(file), "--yes", *(["--until", aim] if aim else [])]
        with disturbed(beside):
            began = now()
            done = subprocess.run(line, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            took_s = now() - began
        points = Path(folder) / "runs" / "laptop" / "analysis" / "points.csv"
        if not points.exists():
            raise SystemExit(f"{' '.join(line)} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        table = pd.read_csv(points)
    most = table[(table.workers == table.workers.max()) & table.speedup_plain.notna()]
    ratios = {
        str(row.transport): [float(row.speedup_plain), float(row.speedup_plain_low), float(row.speedup_plain_high)]
        for row in most.itertuples()
    }
    found = {"way": way, "aim": aim, "beside": beside, "seconds": took_s, "ratios": ratios}
    say(f"{way} {aim} {'disturbed' if beside else ''}: {took_s:.0f} s, " + ", ".join(map(shown, ratios.items())))
    return found


def shown(ratio: tuple[str, list[float]]) -> str:
    """Return a ratio with its interval and half width."""
    name, (value, low, high) = ratio
    return f"{name} {value:.3f} [{low:.3f}, {high:.3f}] +- {100 * half_width((value, low, high)):.1f} %"


def half_width(interval: tuple[float, ...] | list[float]) -> float:
    """Return half the width of an interval of a ratio, on the logarithmic scale on which it was made."""
    _, low, high = interval
    return (math.log(high) - math.log(low)) / 2 if low > 0 else math.inf


def tables(studies: list[dict[str, Any]]) -> list[str]:
    """Return the lines for people."""
    lines = [
        "| study | transport | studies | seconds, median | half width, median, % | smallest - largest "
        "| hold the quiet ratio |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    kinds = list(dict.fromkeys((each["way"], each["aim"], each["beside"]) for each in studies))
    for transport in studies[0]["ratios"]:
        quiet = [each["ratios"][transport][0] for each in studies if each["way"] == "turns" and not each["beside"]]
        for way, aim, beside in kinds:
            some = [each for each in studies if (each["way"], each["aim"], each["beside"]) == (way, aim, beside)]
            intervals = [each["ratios"][transport] for each in some if transport in each["ratios"]]
            widths = [100 * half_width(each) for each in intervals]
            held = sum(low <= statistics.median(quiet) <= high for _, low, high in intervals) if quiet else None
            name = " ".join(filter(None, (way, aim and f"until {aim}", "disturbed" if beside else "")))
            lines.append(
                f"| {name} | {transport} | {len(some)} | {statistics.median(each['seconds'] for each in some):.0f} "
                f"| {statistics.median(widths):.1f} | {min(widths):.1f} - {max(widths):.1f} "
                f"| {'' if held is None else f'{held} of {len(some)}'} |"
            )
    return lines


def main() -> int:
    """Run the studies, print as they end, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5, help="of both ways and of each aim (default 5)")
    parser.add_argument("--aims", nargs="*", default=["4%", "2%"], metavar="N%%", help="(default 4%% 2%%)")
    parser.add_argument("--disturbed", type=int, default=20, metavar="N", help="studies beside a program (default 20)")
    parser.add_argument("--at-most", type=float, default=240.0, metavar="S", help="of a disturbed one (default 240)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the table goes")
    options = parser.parse_args()
    pick = random.Random(1)
    studies: list[dict[str, Any]] = []
    plan = [
        *({"way": way} for way in ("turns", "launches")),
        *({"way": "turns", "aim": aim} for aim in options.aims),
    ]
    for _ in range(options.repetitions):
        studies += [study(**each) for each in pick.sample(plan, len(plan))]
    for _ in range(options.disturbed):
        studies.append(study("turns", aim="8%", at_most_s=options.at_most, beside=True))
    machine = environment.describe()
    lines = [
        "# Studies of a laptop",
        "",
        f"Measured by `python benchmarks/turns_studies.py` on {utc_now()[:10]}: {machine['cpu_model']}, "
        f"{available_cores()} cores, PyTorch {machine['torch']}, Horovod {machine['horovod']}, {machine['mpi']}.",
        "",
        *tables(studies),
    ]
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "turns_studies.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    document = {"measured": utc_now(), "studies": studies}
    (options.out / "turns_studies.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
