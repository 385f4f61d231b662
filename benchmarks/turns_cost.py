"""What a study costs: seconds of one allocation until a speedup is known to +- 2 %, by five rules, simulated.

    python benchmarks/turns_cost.py [--studies 200] [--aim 0.02] [--seed 1]

Two cells on one machine whose rate drifts (standard deviation 3 %, forgotten within a minute), launches with levels of
0.5 %, slices of 0.35 s that scatter by 6 %; a start takes 5 s and the warm-up 1 s. The rules, on the same machine:

    turns           cells alternate, and `analysis.paired.Precision` ends the study
    five repeats    five launches of each cell, of 6 s, or as long as half of the studies take for the aim; Student's t
    repeats         launches of 6 s until Student's interval is narrow enough, three at least and 200 at most
    pyperf          20 processes of each cell, one warm-up value and three values (its default; a value is a slice)
    hyperfine       ten runs of each cell, of 6 s (its default is ten runs, three seconds at least)

All intervals are of the ratio, with Welch's degrees of freedom over launches, which the last two rules do not print.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from horovod_study.analysis import paired
from horovod_study.analysis.stats import log_contrast

TRUTH = math.log(1.5)
START_S, WARM_S, SLICE_S, SWITCH = 5.0, 1.0, 0.35, 0.05
DRIFT_SD, DRIFT_S, LAUNCH_SD, SLICE_SD = 0.03, 60.0, 0.005, 0.06
MOST_ROUNDS, MOST_REPEATS = 2000, 200


class Machine:
    """A clock and a drift that whoever runs at the time feels: an Ornstein-Uhlenbeck process."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.seconds = 0.0
        self.generator = generator
        self._drift = DRIFT_SD * generator.standard_normal()

    def wait(self, seconds: float) -> None:
        kept = math.exp(-seconds / DRIFT_S)
        self._drift = kept * self._drift + DRIFT_SD * math.sqrt(1 - kept**2) * self.generator.standard_normal()
        self.seconds += seconds

    def slice(self, level: float) -> float:
        """Train for one slice; return the logarithm of its rate."""
        self.wait(SLICE_S)
        return level + self._drift + SLICE_SD * self.generator.standard_normal()

    def launch(self, level: float) -> float:
        """Start a cell; return the level of this launch."""
        self.wait(START_S + WARM_S)
        return level + LAUNCH_SD * self.generator.standard_normal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One study by one rule."""

    seconds: float
    half_width: float
    covers: bool


def ended(machine: Machine, low: float, high: float) -> Cost:
    half = math.log(high / low) / 2
    return Cost(seconds=machine.seconds, half_width=half, covers=low <= math.exp(TRUTH) <= high)


def turns(generator: np.random.Generator, aim: float) -> Cost:
    machine, precision = Machine(generator), paired.Precision(half_width=aim)
    cells: list[np.ndarray] = []
    bases: list[np.ndarray] = []
    while True:
        levels = machine.launch(TRUTH), machine.launch(0.0)
        made: list[tuple[float, float]] = []
        while True:
            first = bool(generator.random() < 0.5)
            found = {}
            for which in (0, 1) if first else (1, 0):
                found[which] = machine.slice(levels[which])
                machine.wait(SWITCH * SLICE_S)
            made.append((found[0], found[1]))
            columns = np.array(made).T
            pairs = paired.Pairs(cell=[*cells, columns[0]], base=[*bases, columns[1]])
            if len(made) < paired.MIN_ROUNDS:
                continue
            verdict = precision.verdict("2", "1", pairs)
            if verdict.launch_done or len(made) >= MOST_ROUNDS:
                break
        cells, bases = [*pairs.cell], [*pairs.base]
        if verdict.resolved or len(cells) >= precision.most_launches:
            assert verdict.estimate is not None
            return ended(machine, verdict.estimate.ratio.low, verdict.estimate.ratio.high)


def launches(machine: Machine, level: float, slices: int, warm: int = 0) -> float:
    """Run one launch alone; return its rate, samples over seconds."""
    own = machine.launch(level)
    for _ in range(warm):
        machine.slice(own)
    return float(np.mean([math.exp(machine.slice(own)) for _ in range(slices)]))


def fixed(repeats: int, slices: int, warm: int = 0) -> Callable[[np.random.Generator, float], Cost]:
    """A rule that runs so many launches of each cell, in turn, of so many slices."""

    def rule(generator: np.random.Generator, aim: float) -> Cost:
        machine = Machine(generator)
        rates = [[launches(machine, level, slices, warm) for level in (TRUTH, 0.0)] for _ in range(repeats)]
        ratio = log_contrast([(1, [each[0] for each in rates]), (-1, [each[1] for each in rates])])
        return ended(machine, ratio.low, ratio.high)

    return rule


def repeated(generator: np.random.Generator, aim: float) -> Cost:
    machine = Machine(generator)
    rates: list[list[float]] = []
    while True:
        rates.append([launches(machine, level, round(6 / SLICE_S)) for level in (TRUTH, 0.0)])
        if len(rates) < 3:
            continue
        ratio = log_contrast([(1, [each[0] for each in rates]), (-1, [each[1] for each in rates])])
        if math.log(ratio.high / ratio.low) / 2 <= aim or len(rates) >= MOST_REPEATS:
            return ended(machine, ratio.low, ratio.high)


def row(name: str, rule: Callable[[np.random.Generator, float], Cost], given: argparse.Namespace) -> str:
    """Simulate the studies of one rule."""
    costs = costs_of(rule, given.aim, given.studies, given.seed)
    seconds, half = (float(np.median([getattr(each, what) for each in costs])) for what in ("seconds", "half_width"))
    reached = 100 * np.mean([each.half_width <= given.aim for each in costs])
    covered = 100 * np.mean([each.covers for each in costs])
    hours = 8 * seconds / 3600
    return f"| {name} | {seconds:.0f} | {hours:.2f} | {100 * half:.1f} | {reached:.0f} | {covered:.1f} |"


def costs_of(rule: Callable[[np.random.Generator, float], Cost], aim: float, studies: int, seed: int) -> list[Cost]:
    return [rule(np.random.default_rng([seed, number]), aim) for number in range(studies)]


def long_enough(given: argparse.Namespace) -> int:
    """Slices of a launch with which half of the studies of five reach the aim; 0 where an hour does not."""
    slices = round(6 / SLICE_S)
    while slices * SLICE_S < 3600:
        costs = costs_of(fixed(5, slices), given.aim, 20, given.seed)
        if np.median([each.half_width for each in costs]) <= given.aim:
            return slices
        slices = round(1.5 * slices)
    return 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=200, metavar="N")
    parser.add_argument("--aim", type=float, default=0.02, metavar="SHARE")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    print("| rule | seconds | GPU hours of 8 GPUs | +- % | reached of 100 | covered of 100 |")
    print("|---|---|---|---|---|---|")
    print(row("turns, until the aim", turns, given), flush=True)
    print(row("five repeats of 6 s", fixed(5, round(6 / SLICE_S)), given), flush=True)
    print(row("repeats of 6 s, until the aim", repeated, given), flush=True)
    print(row("pyperf: 20 processes, three values", fixed(20, 3, 1), given), flush=True)
    print(row("hyperfine: ten runs of 6 s", fixed(10, round(6 / SLICE_S)), given), flush=True)
    if slices := long_enough(given):
        print(row(f"five repeats of {slices * SLICE_S:.0f} s", fixed(5, slices), given), flush=True)


if __name__ == "__main__":
    main()
