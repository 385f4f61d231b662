"""How often the intervals of ratios from turns hold the truth, the moment at which a study stops included.

    python benchmarks/turns_coverage.py [--studies 1000] [--aim 0.02] [--rounds 2000] [--rules] [--within] [--seed 1]

Simulated studies of one ratio: launches with levels of their own (standard deviation 0, 1, 2 %), rounds with noise of
several kinds, ended by `analysis.paired.Precision` or after so many rounds. A row says how many of 100 printed
intervals hold the truth, how many studies were resolved, and what they took. Nominal intervals of 95 % cover 93 to 97.
--rules compares ways to pay for looking many times; --within compares estimates of the scatter of rounds.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from scipy import signal, special

from horovod_study.analysis import paired
from horovod_study.analysis.stats import Floats, t_quantile

LEVELS = (0.0, 0.01, 0.02)
TRUTH = math.log(1.5)
SLICE_SD = 0.06  # of one slice: a round of two scatters by 8.5 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Log rates of two cells (n,) about their levels, and the larger load of other programs in each round."""

    cell: Floats
    base: Floats
    load: Floats


def independent(generator: np.random.Generator, n: int) -> Noise:
    cell, base = SLICE_SD * generator.standard_normal((2, n))
    return Noise(cell=cell, base=base, load=np.zeros(n))


def autocorrelated(generator: np.random.Generator, n: int) -> Noise:
    """Each cell remembers nine tenths of its last slice."""
    shocks = generator.standard_normal((2, n)) * math.sqrt(1 - 0.9**2)
    shocks[:, 0] = generator.standard_normal(2)
    cell, base = SLICE_SD * signal.lfilter([1], [1, -0.9], shocks, axis=1)
    return Noise(cell=cell, base=base, load=np.zeros(n))


def drifting(generator: np.random.Generator, n: int) -> Noise:
    """A machine that walks by 2 % from slice to slice; the order within a round is random."""
    walk = np.cumsum(0.02 * generator.standard_normal((n, 2)).ravel()).reshape(n, 2)
    first = generator.random(n) < 0.5
    found = independent(generator, n)
    cell, base = (np.where(each, walk[:, 0], walk[:, 1]) for each in (first, ~first))
    return Noise(cell=found.cell + cell, base=found.base + base, load=found.load)


def bursty(generator: np.random.Generator, n: int) -> Noise:
    """Another program, on in 10 rounds and off in 20 on average, takes 15 % more from the cell than from its base.

    Its load is seen with an error of a tenth of a core; the truth is the ratio on the quiet machine.
    """
    found = independent(generator, n)
    on = switched(generator, n, 1 / 20, 1 / 10)
    load = np.where(on, generator.uniform(0.3, 1.0, n), 0.0) + np.abs(0.03 * generator.standard_normal(n))
    return Noise(cell=found.cell - 0.25 * on, base=found.base - 0.1 * on, load=load)


def unseen_bursts(generator: np.random.Generator, n: int) -> Noise:
    """The same where nobody knows the load: the truth is the mean over both states."""
    found = bursty(generator, n)
    return Noise(cell=found.cell + 0.25 / 3, base=found.base + 0.1 / 3, load=np.full(n, math.nan))


def bimodal(generator: np.random.Generator, n: int) -> Noise:
    """Each slice is 10 % slower with a probability of 0.3, and scatters by 3 %."""
    cell, base = 0.03 * generator.standard_normal((2, n)) - 0.1 * (generator.random((2, n)) < 0.3)
    return Noise(cell=cell, base=base, load=np.zeros(n))


def switched(generator: np.random.Generator, n: int, on: float, off: float) -> np.ndarray:
    """Return whether a process is on in each of n rounds; probabilities to go on and off, begun in its long run."""
    draws = generator.random(n)
    found = np.empty(n, dtype=bool)
    state = bool(generator.random() < on / (on + off))
    for place in range(n):
        state = draws[place] >= off if state else draws[place] < on
        found[place] = state
    return found


KINDS: dict[str, Callable[[np.random.Generator, int], Noise]] = {
    "independent": independent,
    "AR(0.9)": autocorrelated,
    "drifting": drifting,
    "bursty": bursty,
    "bursty, load not known": unseen_bursts,
    "bimodal": bimodal,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One study: the printed estimate and what it took."""

    estimate: paired.RatioEstimate
    resolved: bool

    @property
    def covers(self) -> bool:
        """Whether the printed interval holds the truth."""
        ratio = self.estimate.ratio
        return ratio.low <= math.exp(TRUTH) <= ratio.high


def study(
    generator: np.random.Generator, kind: str, launch_sd: float, precision: paired.Precision, most_rounds: int
) -> Outcome:
    """Simulate one study up to its end: the aim is reached, the launches or the rounds are used up."""
    made: list[Noise] = []
    rounds = 0
    while True:
        level = TRUTH + launch_sd * generator.standard_normal()
        whole = KINDS[kind](generator, most_rounds)
        whole = replace(whole, cell=whole.cell + level)
        for length in lengths(most_rounds):
            kept = [*made, Noise(cell=whole.cell[:length], base=whole.base[:length], load=whole.load[:length])]
            verdict = precision.verdict("2", "1", counted(kept, precision.other_load))
            if verdict.launch_done or rounds + length >= most_rounds:
                break
        made = kept
        rounds += length
        ended = rounds >= most_rounds or len(made) >= precision.most_launches
        if verdict.resolved or ended:
            assert verdict.estimate is not None
            return Outcome(estimate=replace(verdict.estimate, rounds=rounds), resolved=verdict.resolved)


def lengths(most: int) -> Iterator[int]:
    """Lengths at which a launch is judged: one more would change nothing in between."""
    length = paired.MIN_ROUNDS
    while length < most:
        yield length
        length = math.ceil(length * paired.LOOKS)
    yield most


def counted(launches: Sequence[Noise], other_load: float) -> paired.Pairs:
    """Return the rounds that count, as `paired.pairs` does from slices."""
    quiet, shared = paired.quiet_rounds(np.concatenate([each.load for each in launches]), other_load)
    masks = np.split(quiet, np.cumsum([len(each.load) for each in launches])[:-1])
    return paired.Pairs(
        cell=[each.cell[mask] for each, mask in zip(launches, masks, strict=True)],
        base=[each.base[mask] for each, mask in zip(launches, masks, strict=True)],
        set_aside=int((~quiet).sum()),
        shared=shared,
        made=[np.flatnonzero(mask) + 1 for mask in masks],
    )


def studies(job: tuple[str, float, paired.Precision, int, int, int]) -> list[Outcome]:
    """Simulate the studies of one row."""
    kind, launch_sd, precision, most_rounds, count, seed = job
    generator = np.random.default_rng([seed, *kind.encode(), round(1000 * launch_sd)])
    return [study(generator, kind, launch_sd, precision, most_rounds) for _ in range(count)]


def row(name: str, outcomes: Sequence[Outcome]) -> str:
    covered = 100 * np.mean([each.covers for each in outcomes])
    resolved = 100 * np.mean([each.resolved for each in outcomes])
    rounds = np.median([each.estimate.rounds for each in outcomes])
    launches = np.mean([each.estimate.launches for each in outcomes])
    half = 100 * np.median([each.estimate.half_width for each in outcomes])
    return f"| {name} | {covered:.1f} | {resolved:.0f} | {rounds:.0f} | {launches:.1f} | {half:.1f} |"


def confidence_sequence() -> float:
    """Return the level that the narrowest moment of an asymptotic confidence sequence of 95 % has.

    Half width over standard error sqrt(2 (x + 1) / x ln(sqrt(x + 1) / 0.05)), x the time on its scale: I. Waudby-Smith
    et al., Time-uniform central limit theory and asymptotic confidence sequences, Ann. Stat. 52, 2024, theorem 2.2.
    """
    x = np.geomspace(0.1, 1000, 10_000)
    narrowest = np.sqrt(2 * (x + 1) / x * np.log(np.sqrt(x + 1) / 0.05)).min()
    return float(2 * special.ndtr(narrowest) - 1)


def within(job: tuple[str, float, int, int]) -> Floats:
    """Return of 100 intervals from three launches of 100 rounds those that hold the truth, per estimate (6,)."""
    kind, launch_sd, count, seed = job
    generator = np.random.default_rng([seed, *kind.encode()])
    hits = np.zeros(6)
    for _ in range(count):
        noise = [KINDS[kind](generator, 100) for _ in range(3)]
        values = [each.cell - each.base + launch_sd * generator.standard_normal() for each in noise]
        mean, total = float(np.mean(values)), sum(map(len, values))
        found = paired.memory(values)
        block = min(math.ceil(3 * found.rounds), 25)
        batches = np.array([each[-(100 // block) * block :].reshape(-1, block).mean(axis=1) for each in values])
        freedom = batches.size - 3.0
        scatter = float(batches.var(axis=1, ddof=1).mean())
        drawn = bootstrap(generator, values, 2 * found.rounds)
        # Satterthwaite's degrees of freedom of the sum of both components, each by moments.
        level = max(float(np.var([each.mean() for each in values], ddof=1)) - found.variance / 100, 0.0) / 3
        rounds = found.variance / total
        joined = (level + rounds) ** 2 / (level**2 / 2 + rounds**2 / found.freedom)
        half = (
            t_quantile(0.975, total - 1.0) * float(np.std(values, ddof=1)) / math.sqrt(total),
            t_quantile(0.975, freedom) * math.sqrt(scatter / batches.size),
            1.96 * float(np.std(drawn)),
            t_quantile(0.975, found.freedom) * math.sqrt(rounds),
            t_quantile(0.975, joined) * math.sqrt(level + rounds),
        )
        printed = paired.estimate(paired.Pairs(cell=values, base=[np.zeros(100)] * 3))
        assert printed is not None
        hits += [*(np.abs(mean) <= np.array(half)), printed.ratio.low <= 1 <= printed.ratio.high]
    return 100 * hits / count


def bootstrap(generator: np.random.Generator, launches: Sequence[Floats], block: float, draws: int = 200) -> Floats:
    """Return means of stationary bootstrap samples: D. Politis and J. Romano, JASA 89, 1994, 1303-1313."""
    means = np.zeros(draws)
    for values in launches:
        n = len(values)
        place = generator.integers(n, size=draws)
        for _ in range(n):
            means += values[place] / n / len(launches)
            jump = generator.random(draws) < 1 / max(block, 1.0)
            place = np.where(jump, generator.integers(n, size=draws), (place + 1) % n)
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, metavar="N")
    parser.add_argument("--aim", type=float, default=0.02, metavar="SHARE")
    parser.add_argument("--rounds", type=int, default=2000, metavar="N", help="budget of a study")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--rules", action="store_true", help="compare rules for looking many times")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--within", action="store_true", help="compare estimates of the scatter of rounds")
    given = parser.parse_args()
    if given.within:
        print(
            "| noise, launches | rounds taken as independent | batch means | stationary bootstrap | initial sequence "
            "| both, Satterthwaite | both, as printed |"
        )
        print("|---|---|---|---|---|---|---|")
        kinds = [kind for kind in given.kinds if kind != "bursty"]  # what it sets aside is no matter of scatter
        asked = [(kind, sd, given.studies, given.seed) for kind in kinds for sd in LEVELS[:2]]
        with ProcessPoolExecutor(given.processes) as pool:
            for (kind, sd, *_), shares in zip(asked, pool.map(within, asked), strict=True):
                print(f"| {kind}, {100 * sd:g} % | " + " | ".join(f"{each:.1f}" for each in shares) + " |", flush=True)
        return
    usual = paired.Precision(half_width=given.aim)
    rules = {"": usual}
    if given.rules:
        rules = {
            f"fixed width, {100 * usual.look_level:g} % at each look: ": usual,
            "fixed width, 95 % at each look: ": replace(usual, look_level=0.95),
            "Pocock, 8 looks: ": replace(usual, look_level=1 - 0.0120),
            "confidence sequence: ": replace(usual, look_level=confidence_sequence()),
        }
    print("| noise, launches | covered of 100 | resolved of 100 | rounds (median) | launches (mean) | +- % (median) |")
    print("|---|---|---|---|---|---|")
    cases = [(name, kind, sd) for name in rules for kind in given.kinds for sd in LEVELS]
    jobs = [(kind, sd, rules[name], given.rounds, given.studies, given.seed) for name, kind, sd in cases]
    with ProcessPoolExecutor(given.processes) as pool:
        for (name, kind, sd), outcomes in zip(cases, pool.map(studies, jobs), strict=True):
            print(row(f"{name}{kind}, {100 * sd:g} %", outcomes), flush=True)


if __name__ == "__main__":
    main()
