"""`make bench BENCH=turns`: what it costs a cell that it trains in turns, and what a cell costs that waits.

Two cells of one runtime are started and given turns. A round has two halves, in random order: one undivided stretch of
the first cell, and as many of its steps in slices between which the other cell trains. Both halves have the same
processes, and are a few seconds apart, so the ratio of their rates is what the division costs; the machine's drift and
the level of a launch are in neither. The interval is that of Student over rounds.

rate        samples/s in slices over samples/s undivided, minus 1
processor   seconds of the processor for each sample, in slices over undivided, minus 1: what caches cost that another
            cell has filled, also beside programs that scatter the rate
change      from the end of a slice to the begin of the other cell's, in which nobody trains
waiting     cores that the processes of a cell use while it waits, stopped as they are by `run`, and where they are
            only blocked
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from horovod_study.analysis.stats import student
from horovod_study.cluster.process import used_s
from horovod_study.config.run import Cell, available_cores, local_cell
from horovod_study.measure import environment
from horovod_study.measure.clock import now, sleep, utc_now
from horovod_study.records import TurnSlice
from horovod_study.strain import dataset
from horovod_study.studies.attempt import Attempt, Interruption, Lane, RankRun, sweep
from horovod_study.studies.turns import Conductor
from horovod_study.text.progress import say

HERE = Path(__file__).parent
RUNTIMES = ("serial", "horovod/mpi", "horovod/gloo", "ddp/gloo", "mpi/mpi")
LIMITS = {"rate": 0.01, "waiting": 0.01}
"""What turns may cost at most: part of the rate, and cores while waiting."""
WATCHED_S = 4.0


def alternate(conductor: Conductor, runs: Mapping[str, RankRun], stop: Interruption) -> dict[str, Attempt]:
    """Run cells in turns and return how each has ended, by the names that `conductor` knows them by."""
    ended: dict[str, Attempt] = {}

    def lane(name: str, run: RankRun) -> Lane:
        try:
            while not stop.requested and not conductor.may_start(name):
                yield None
            if not stop.requested:
                ended[name] = yield conductor.with_turns(run, name, stop)
        finally:
            conductor.ended(name)

    with conductor:
        sweep([lane(name, run) for name, run in runs.items()], stop)
    if conductor.failure is not None:
        raise RuntimeError(f"turns have ended: {conductor.failure!r}")
    return ended


class Halves(Conductor):
    """Gives the first of two cells undivided stretches and slices by turns."""

    def __init__(self, runs: Sequence[str], *, rounds: int, undivided_s: float) -> None:
        super().__init__(runs, block="bench", cores=range(available_cores()))
        self._rounds, self._undivided_s = rounds, undivided_s
        self.undivided: list[list[TurnSlice]] = []
        self.divided: list[list[TurnSlice]] = []
        self.changes_s: list[float] = []
        self.used: dict[str, list[float]] = {"divided": [], "undivided": []}
        self.waiting: dict[str, float] = {}

    def give_turns(self) -> None:
        """Make the rounds, and look at a cell that waits."""
        first, second = self._cells.values()
        for number in range(self._rounds):
            for half in self._random.sample(("undivided", "divided"), 2):
                begin, before_s = len(self.slices), used_s(first.held) or 0.0
                if half == "undivided":
                    self._give(first, number, 0, slice_s=self._undivided_s)
                    self.undivided.append([each for each in self.slices[begin:] if each.run == first.run])
                else:
                    trained_s = 0.0
                    before = len(self.slices)
                    while trained_s < self._undivided_s and first.state == second.state == "turns":
                        self._give(second, number, 0)
                        self._give(first, number, 1)
                        trained_s += self.slices[-1].end_s - self.slices[-1].begin_s
                    both = pairwise(self.slices[before:])
                    self.changes_s += [after.begin_s - one.end_s for one, after in both]
                    self.divided.append([each for each in self.slices[begin:] if each.run == first.run])
                own = [each for each in self.slices[begin:] if each.run == first.run]
                self.used[half].append(((used_s(first.held) or 0.0) - before_s) / sum(each.samples for each in own))
        self.waiting["stopped"] = self._watched(first.held)
        self._holding.go_on(first.held)
        self.waiting["blocked"] = self._watched(first.held)

    def _watched(self, numbers: Sequence[int]) -> float:
        sleep(0.2)
        before, began = used_s(numbers), now()
        sleep(WATCHED_S)
        after = used_s(numbers)
        return math.nan if before is None or after is None else (after - before) / (now() - began)


def cell(runtime: str, workers: int, data: str, repeat: int) -> Cell:
    """Return a cell that trains until it is told to end."""
    values = {"study": "turns", "dataset": data, "steps": 1, "repeat": repeat, "evaluate_every": 1e6}
    values |= {"system_interval_s": 0.0}
    return local_cell(runtime, values, workers=1 if runtime == "serial" else workers, source="benchmark")


def measure(runtime: str, *, workers: int, data: str, rounds: int, undivided_s: float, folder: Path) -> dict[str, Any]:
    """Return what is measured of one runtime."""
    cells = {f"{runtime.replace('/', '-')}-{repeat}": cell(runtime, workers, data, repeat) for repeat in (0, 1)}
    turns = Halves(list(cells), rounds=rounds, undivided_s=undivided_s)
    runs = {
        name: RankRun(cell=each, out=folder / name, config=folder / f"{name}.yaml", log=folder / f"{name}.log")
        for name, each in cells.items()
    }
    with Interruption() as stop:
        for name, ended in alternate(turns, runs, stop).items():
            if not ended.done:
                say(f"{name}: {ended.state}: {ended.reason}")
    slice_s = statistics.median(one.end_s - one.begin_s for each in turns.divided for one in each)
    return {
        "runtime": runtime,
        "workers": cells[next(iter(cells))].placement.workers,
        "ratios": [rate(cut) / rate(one) for cut, one in zip(turns.divided, turns.undivided, strict=True)],
        "changes_s": turns.changes_s,
        "slice_s": slice_s,
        "processor": [cut / one for cut, one in zip(turns.used["divided"], turns.used["undivided"], strict=True)],
        "other_load": statistics.median([one.other_load for one in turns.slices if one.other_load is not None] or [0]),
        "waiting": turns.waiting,
    }


def rate(slices: Sequence[TurnSlice]) -> float:
    """Return the samples/s of slices together."""
    return sum(each.samples for each in slices) / sum(each.end_s - each.begin_s for each in slices)


def row(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the table says of one runtime."""
    told = {"change_s": statistics.median(found["changes_s"])}
    for name, ratios in (("rate", found["ratios"]), ("processor", found["processor"])):
        logs = student([math.log(each) for each in ratios])
        told[name], told[f"{name}_low"], told[f"{name}_high"] = map(math.expm1, (logs.value, logs.low, logs.high))
    return {**found, **told}


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| runtime | workers | rate in slices, % | 95 % interval | processor time per sample, % | 95 % interval "
        "| slice, s | change, ms | waiting, % of a core | only blocked, % of a core | other programs, cores |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {each['runtime']} | {each['workers']} | {100 * each['rate']:+.2f} "
        f"| {100 * each['rate_low']:+.2f} to {100 * each['rate_high']:+.2f} "
        f"| {100 * each['processor']:+.2f} "
        f"| {100 * each['processor_low']:+.2f} to {100 * each['processor_high']:+.2f} | {each['slice_s']:.2f} "
        f"| {1e3 * each['change_s']:.1f} | {100 * each['waiting']['stopped']:.2f} "
        f"| {100 * each['waiting']['blocked']:.2f} | {each['other_load']:.2f} |"
        for each in rows
    ]
    return lines


def main() -> int:
    """Measure, write the table; exit code 1 if turns cost more than LIMITS by their whole interval."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), help="which (default all of this machine)")
    parser.add_argument("--rounds", type=int, default=10, help="of each (default 10)")
    parser.add_argument("--undivided", type=float, default=2.0, help="seconds of an undivided stretch (default 2)")
    parser.add_argument("--workers", type=int, default=min(2, available_cores()), help="workers (default 2)")
    parser.add_argument("--curves", default="100000", help="size of the data set (default 100000)")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where the table goes")
    options = parser.parse_args()
    data = str(dataset.ensure(options.curves, seed=1))
    rows = []
    for runtime in options.runtimes:
        with tempfile.TemporaryDirectory() as folder:
            request = {"rounds": options.rounds, "undivided_s": options.undivided, "folder": Path(folder)}
            rows.append(row(measure(runtime, workers=options.workers, data=data, **request)))
        say(f"{runtime}: {100 * rows[-1]['rate']:+.2f} % in slices; {table(rows[-1:])[-1]}")
    machine = environment.describe()
    lines = [
        "# Turns",
        "",
        f"Measured by `make bench BENCH=turns` on {utc_now()[:10]}: {machine['cpu_model']}, {available_cores()} cores, "
        f"PyTorch {machine['torch']}, Horovod {machine['horovod']}, {machine['mpi']}; batch 75, {options.rounds} "
        f"rounds of {options.undivided:g} s undivided and as much in slices.",
        "",
        *table(rows),
    ]
    print("\n".join(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "turns.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    machine = {name: value for name, value in machine.items() if name != "command"}
    document = {"measured": utc_now(), "machine": machine, "rows": rows}
    (options.out / "turns.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    slower = [each for each in rows if each["rate_high"] < -LIMITS["rate"] or each["rate_low"] > LIMITS["rate"]]
    return 1 if slower or any(each["waiting"]["stopped"] > LIMITS["waiting"] for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
