"""`make bench BENCH=mlperf`: simulated steps of published trainings, from the two smallest counts of each series only.

benchmarks/published/mlperf.csv has 43 data-parallel trainings on 3 to 6 counts, to 4,320 accelerators; the batch per
accelerator changes along a series and is told. What the simulator must know of a training, and two counts leave open:

    fixed     share of computing that does not depend on the batch: a + b x batch
    scatter   standard deviation of the computing of one sample; of a batch of B samples it is 1 / sqrt(B) of that
    exposed   share of the step that is all-reduce, half of it latency, at the larger known count

Each of the three has a prior (PRIOR), the two known steps weigh its values, and it is run at DRAWS of what is
left. The interval is that of these runs together with ERROR. The prior is one for all; left out: its middle is chosen
from MIDDLES with all other submitters, so that no series is simulated with constants that its own submitter chose.
Beside it, the straight line through the two steps against the batch. A batch below one is a sample that several
accelerators share, which is no data-parallel training; they count as one each.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.costs import Floats, Link
from horovod_study.analysis.simulate.scaling import Compute, Curves, Network, Scenario, Sweep, allreduce_s, simulate
from horovod_study.report.kit.files import write_result

HERE = Path(__file__).parent
TABLE = HERE / "published" / "mlperf.csv"
WITHIN = 0.15
FIXED = np.linspace(0.0, 0.95, 20)
EXPOSED = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.3])
SCATTER = np.array([0.0, 0.05, 0.1, 0.2, 0.4, 0.8])
PRIOR = (0.1, 0.03, 0.1)
"""The middle of fixed, exposed and scatter; logarithms are normal with 0.5, 0.5 and 0.7."""
MIDDLES = tuple(itertools.product((0.05, 0.1, 0.2), (0.01, 0.03, 0.08), (0.03, 0.1, 0.3)))
OFFSETS, WIDTHS = (0.02, 0.005, 0.02), (0.5, 0.5, 0.7)
REPEATS = 0.02
"""Standard deviation of the logarithm of a known step."""
ERROR, ERROR_OF_DOUBLING = 0.03, 0.06
"""Of measured / simulated beyond what the constants leave open, and what each doubling of the accelerators adds."""
DRAWS = 15
PARAMETERS = {
    "resnet": 25.6e6,
    "ssd": 36e6,
    "maskrcnn": 44e6,
    "gnmt": 160e6,
    "transformer": 210e6,
    "rnnt": 49e6,
    "deepcam": 56e6,
    "bert": 335e6,
}
"""Of the models, as their reference implementations have them; they say where bytes end and latency begins only."""
OTHER = 100e6
"""Parameters of a model that is not in PARAMETERS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What is known of one count of a series."""

    workers: int
    nodes: int
    batch: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A series: its two known counts and those to simulate."""

    name: str
    submitter: str
    benchmark: str
    known: tuple[Count, Count]
    targets: tuple[Count, ...]

    @property
    def gradient_bytes(self) -> float:
        """Bytes that each step reduces, in single precision."""
        return 4 * PARAMETERS.get(self.benchmark, OTHER)


def read(path: Path = TABLE) -> list[Training]:
    """Return the series of a table with columns as in benchmarks/published/mlperf.csv."""
    found = []
    rows = pd.read_csv(path)
    rows["series"] = rows["task"].str.split("/").str[1]
    for name, own in rows.groupby("series", sort=True):
        counts = []
        for workers, at in own.groupby("workers"):
            batch, rate = float(at["batch_size"].iloc[0]), float(at["samples_per_s"].median())
            nodes = int(at["nodes"].iloc[0])
            step_s = int(str(workers)) * batch / rate
            counts.append(Count(workers=int(str(workers)), nodes=nodes, batch=max(batch, 1.0), step_s=step_s))
        _, submitter, benchmark = str(name).split()[:3]
        training = Training(
            name=str(name),
            submitter=submitter,
            benchmark=benchmark,
            known=(counts[0], counts[1]),
            targets=tuple(counts[2:]),
        )
        found.append(training)
    return found


@cache
def slowest(n: int, batch: float, scatter: float) -> float:
    """Return the mean of the slowest of `n` workers over the mean of one."""
    return Compute(mean_s=1.0, cv=scatter / math.sqrt(batch)).expected_slowest_s(n)


def network(training: Training, exposed_s: float) -> Network:
    """Return a network on which the all-reduce of the larger known count takes `exposed_s`, half of it latency."""
    at, size = training.known[1], training.gradient_bytes
    sizes = np.array([1.0, size, 1e6 * size])
    sweep = Sweep(workers=max(at.workers, 2), nodes=at.nodes, sizes=sizes, seconds=exposed_s / 2 * (1 + sizes / size))
    link = Link(alpha_s=1e-6, bytes_per_s=1e9)
    curves = Curves(sweeps=(sweep,), intra=link, inter=link, alone=True)
    return Network(intra=link, inter=link, workers_per_node=math.ceil(at.workers / at.nodes), measured=curves)


def _waits(one: Count, other: Count, scatter: Floats) -> Floats:
    """Return how much longer the slowest of `one` takes than that of `other`, both over the mean, by scatter."""
    of = {each: slowest(one.workers, one.batch, each) / slowest(other.workers, other.batch, each) for each in SCATTER}
    return np.array([of[each] for each in scatter])


@cache
def likelihood(training: Training) -> tuple[Floats, Floats]:
    """Return values of (fixed, exposed, scatter), (V, 3), and the logarithm of how well they fit both known steps."""
    first, second = training.known
    size = training.gradient_bytes
    there = float(allreduce_s(network(training, 1.0), "auto", first.workers, size)) if first.workers > 1 else 0.0
    values = np.array(list(itertools.product(FIXED, EXPOSED, SCATTER)))
    fixed, exposed, scatter = values.T
    computing = (fixed + (1 - fixed) * first.batch / second.batch) * _waits(first, second, scatter)
    times = (1 - exposed) * computing + exposed * there
    return values, -0.5 * ((np.log(first.step_s / second.step_s) - np.log(times)) / REPEATS) ** 2


def weights(training: Training, middle: Sequence[float]) -> tuple[Floats, Floats]:
    """Return the values of `likelihood`, (V, 3), and their weights with a prior of this middle, (V,)."""
    values, known = likelihood(training)
    log = known.copy()
    for value, center, offset, width in zip(values.T, middle, OFFSETS, WIDTHS, strict=True):
        log -= 0.5 * (np.log((value + offset) / center) / width) ** 2
    weight = np.exp(log - log.max())
    return values, weight / weight.sum()


def steps(training: Training, target: Count, middle: Sequence[float]) -> Floats:
    """Return the simulated step of a target in s, (DRAWS,), for constants drawn by their weights."""
    values, weight = weights(training, middle)
    at = training.known[1]
    # One of each of DRAWS equal parts of the weights, so that equal input gives equal output.
    drawn = values[np.searchsorted(np.cumsum(weight), (np.arange(DRAWS) + 0.5) / DRAWS)]
    found = []
    for fixed, exposed, scatter in drawn:
        alone_s = (1 - exposed) * at.step_s / slowest(at.workers, at.batch, scatter)
        scenario = Scenario(
            compute=Compute(
                mean_s=alone_s * (fixed + (1 - fixed) * target.batch / at.batch), cv=scatter / math.sqrt(target.batch)
            ),
            batch=math.ceil(target.batch),
            gradient_bytes=training.gradient_bytes,
            network=network(training, max(exposed * at.step_s, 1e-12)),
        )
        found.append(float(simulate({"": scenario}, [target.workers])["step_s"].iloc[0]))
    return np.array(found)


def simulated(trainings: Sequence[Training], middle: Sequence[float] = PRIOR) -> pd.DataFrame:
    """Return one row per target: measured, simulated with interval, and the line through the known steps."""
    rows = []
    for one in trainings:
        first, second = one.known
        slope = (first.step_s - second.step_s) / (first.batch - second.batch) if first.batch != second.batch else 0.0
        for target in one.targets:
            logs = np.log(steps(one, target, middle))
            error = ERROR + ERROR_OF_DOUBLING * math.log2(target.workers / second.workers)
            half = stats.Z95 * math.hypot(float(logs.std()), error)
            step_s = math.exp(logs.mean())
            line_s = second.step_s + slope * (target.batch - second.batch)
            if first.batch == second.batch:
                line_s = second.step_s * target.batch / second.batch
            rows.append(
                {
                    "series": one.name,
                    "submitter": one.submitter,
                    "benchmark": one.benchmark,
                    "workers": target.workers,
                    "batch": target.batch,
                    "measured_s": target.step_s,
                    "simulated_s": step_s,
                    "low_s": step_s * math.exp(-half),
                    "high_s": step_s * math.exp(half),
                    "line_s": line_s,
                    "doublings": math.log2(target.workers / second.workers),
                }
            )
    table = pd.DataFrame(rows)
    for name in ("simulated", "line"):
        table[f"{name}_error"] = (table[f"{name}_s"] / table["measured_s"] - 1).abs()
    table["covered"] = table["measured_s"].between(table["low_s"], table["high_s"])
    return table


def expected(training: Training, target: Count, middle: Sequence[float]) -> float:
    """Return the step of a target in s as `steps` has it in the mean, without simulating it: to choose with."""
    values, weight = weights(training, middle)
    at = training.known[1]
    fixed, exposed, scatter = values.T
    wait = _waits(target, at, scatter)
    reduced = float(allreduce_s(network(training, 1.0), "auto", target.workers, training.gradient_bytes))
    times = (1 - exposed) * (fixed + (1 - fixed) * target.batch / at.batch) * wait + exposed * reduced
    return at.step_s * math.exp(float(weight @ np.log(times)))


def left_out(trainings: Sequence[Training]) -> pd.DataFrame:
    """Return `simulated` of each submitter with the middle of MIDDLES that is best for all others."""
    scores = pd.DataFrame(
        {
            "submitter": one.submitter,
            "middle": place,
            "score": math.log(abs(expected(one, target, middle) / target.step_s - 1) + 0.01),
        }
        for place, middle in enumerate(MIDDLES)
        for one in trainings
        for target in one.targets
    )
    found = []
    for name in sorted({one.submitter for one in trainings}):
        means = scores[scores["submitter"] != name].groupby(["middle", "submitter"])["score"].mean()
        best = MIDDLES[int(str(means.groupby("middle").mean().idxmin()))]
        found.append(simulated([one for one in trainings if one.submitter == name], best))
    return pd.concat(found, ignore_index=True)


def lines(table: pd.DataFrame, others: pd.DataFrame) -> list[str]:
    """Return the table by distance from the larger known count, by benchmark, then over all."""
    head = ("targets", "steps", "median error", "within 15 %", "in the interval", "left out", "a + b x batch")
    found = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    spans = (("up to 2 doublings", 0.0, 2.0), ("2 to 4", 2.0, 4.0), ("4 and more", 4.0, 99.0))
    both = (table, others)
    groups = [
        (name, [each["doublings"].between(low, high, inclusive="right") for each in both]) for name, low, high in spans
    ]
    groups += [(name, [each["benchmark"] == name for each in both]) for name in sorted(set(table["benchmark"]))]
    groups.append(("all", [each["benchmark"].notna() for each in both]))
    for name, (own, other) in groups:
        rows = table[own]
        cells = [
            rows["simulated_error"].median(),
            (rows["simulated_error"] <= WITHIN).mean(),
            rows["covered"].mean(),
            others[other]["simulated_error"].median(),
            rows["line_error"].median(),
        ]
        found.append(f"| {name} | {len(rows)} | {' | '.join(f'{100 * each:.1f} %' for each in cells)} |")
    return found


def main() -> int:
    """Simulate, print, write the table and every step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path, default=TABLE, help="trainings to score (default: the project's)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulation", help="where the results go")
    options = parser.parse_args()
    trainings = read(options.table)
    table, others = simulated(trainings), left_out(trainings)
    width = (table["high_s"] / table["simulated_s"]).median()
    text = "\n".join(
        [
            "# Simulated steps of published trainings",
            "",
            f"Made by `make bench BENCH=mlperf`: {len(trainings)} series, {len(table) + 2 * len(trainings)} "
            "configurations, the two smallest of each series known. No timing is in it.",
            "",
            *lines(table, others),
            "",
            f"Interval: up to {width:.2f} times the simulated step, in the median.",
        ]
    )
    print(text)
    points = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    write_result(options.out, {"mlperf.md": text, "mlperf.csv": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
