"""`make bench BENCH=allreduce`: all-reduces of published machines, simulated from their two smallest counts only.

benchmarks/published/allreduce/ has times of all-reduces that others measured: GPUs of several makes, NCCL and MPI,
InfiniBand, Slingshot, Ethernet and TCP. Of each series the two smallest node counts calibrate a network as
`predict --simulate --bench` does; all larger ones are simulated and compared, and nothing is fitted to them. Beside it

    left out      the constants of analysis/simulate/scaling.py chosen from GRID with all other machines, and this one
                  simulated with them: what a machine that nobody has seen would get
    two constants the closed forms with latency and bandwidth of the larger calibrated count, as simulate had it before
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.costs import link_of_line
from horovod_study.analysis.machine.network import fit_line
from horovod_study.analysis.simulate.scaling import (
    CLOSED_FORM_ERROR,
    GROWTH,
    Curves,
    Extended,
    GrowthConstants,
    Network,
    Sweep,
    allreduce_s,
    costs,
)
from horovod_study.report.kit.files import write_result

HERE = Path(__file__).parent
TABLE = HERE / "published" / "allreduce" / "allreduce.csv"
CALIBRATED = 2
WITHIN = 0.15
GRID = tuple(
    GrowthConstants(congestion=congestion, trust=trust, small=small, large=large)
    for congestion, trust, small, large in itertools.product(
        (0.0, 0.02, 0.04), (0.0, 0.5, 1.0), (0.0, 0.3, 0.6), (0.5, 1.0, 2.0)
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """All-reduces of one machine with one library: sweeps of ascending node counts."""

    machine: str
    name: str
    sweeps: tuple[Sweep, ...]
    calibrated: int = CALIBRATED

    @property
    def network(self) -> Network:
        """The network as it is known from the calibrated counts."""
        known = self.sweeps[: self.calibrated]
        last = known[-1]
        if len(last.sizes) >= 3:
            line = fit_line(self.name, list(last.sizes), list(last.seconds))
            link = link_of_line(line["alpha_s"], line["beta_bytes_per_s"], last.workers)
        else:
            link = link_of_line(0.0, 1 / last.s_per_byte / 2, last.workers)
        return Network(
            intra=link,
            inter=link,
            workers_per_node=last.workers // last.nodes,
            measured=Curves(sweeps=known, intra=link, inter=link, alone=True),
        )


def read(path: Path = TABLE, calibrated: int = CALIBRATED) -> list[Series]:
    """Return the series of the table, of which the smallest node counts are known."""
    found = []
    for (machine, name), rows in pd.read_csv(path).groupby(["machine", "series"], sort=False):
        sweeps = [
            Sweep(
                workers=int(at["workers"].iloc[0]),
                nodes=int(at["nodes"].iloc[0]),
                sizes=at["bytes"].to_numpy(dtype=np.float64),
                seconds=at["us"].to_numpy(dtype=np.float64) / 1e6,
                algorithm=str(at["algorithm"].iloc[0]),
            )
            for (nodes, workers), at in rows.groupby(["nodes", "workers"], sort=True)
        ]
        found.append(Series(machine=str(machine), name=str(name), sweeps=tuple(sweeps), calibrated=calibrated))
    return found


def simulated(series: Sequence[Series], growth: GrowthConstants = GROWTH) -> pd.DataFrame:
    """Return one row per time beyond the calibrated counts: measured, simulated with interval, and the closed form."""
    rows = []
    for one in series:
        network = one.network
        closed = replace(network, measured=None)
        for sweep in one.sweeps[one.calibrated :]:
            (choice,) = costs(network, "auto", sweep.workers)
            assert isinstance(choice, Extended)
            latency, transfer = replace(choice, growth=growth).parts(sweep.sizes)
            seconds = np.asarray(latency + transfer)
            width = math.exp(stats.Z95 * choice.error)
            name = sweep.algorithm
            rows.append(
                pd.DataFrame(
                    {
                        "machine": one.machine,
                        "series": one.name,
                        "workers": sweep.workers,
                        "nodes": sweep.nodes,
                        "bytes": sweep.sizes.astype(np.int64),
                        "measured_s": sweep.seconds,
                        "simulated_s": seconds,
                        "low_s": seconds / width,
                        "high_s": seconds * width,
                        "closed_s": [float(allreduce_s(closed, name, sweep.workers, size)) for size in sweep.sizes],
                    }
                )
            )
    table = pd.concat(rows, ignore_index=True)
    for name in ("simulated", "closed"):
        table[f"{name}_error"] = (table[f"{name}_s"] / table["measured_s"] - 1).abs()
    table["covered"] = table["measured_s"].between(table["low_s"], table["high_s"])
    return table


def left_out(series: Sequence[Series]) -> pd.DataFrame:
    """Return `simulated` of each machine with the constants of GRID that are best for all others.

    Best: least mean over machines of the mean logarithm of the error + 2 %, so that each machine counts once.
    """
    tables = [simulated(series, growth) for growth in GRID]
    scores = pd.DataFrame(
        [np.log(each["simulated_error"] + 0.02).groupby(each["machine"]).mean().to_dict() for each in tables]
    )
    found = []
    for machine in scores.columns:
        best = int(scores.drop(columns=machine).mean(axis=1).to_numpy().argmin())
        found.append(tables[best][tables[best]["machine"] == machine].assign(chosen=str(GRID[best])))
    return pd.concat(found, ignore_index=True)


def lines(table: pd.DataFrame, others: pd.DataFrame) -> list[str]:
    """Return the table by machine, then over all points, then the mean over machines."""
    head = (
        "machine",
        "workers",
        "points",
        "median error",
        "within 15 %",
        "in the interval",
        "left out",
        "two constants",
    )
    found = [f"| {' | '.join(head)} |", f"|---|--:|{'--:|' * (len(head) - 2)}"]
    groups = [(str(machine), table["machine"] == machine) for machine in dict.fromkeys(table["machine"])]
    groups.append(("all points", table["machine"].notna()))
    values = []
    for name, chosen in groups:
        own, out = table[chosen], others if name == "all points" else others[others["machine"] == name]
        values.append(
            [
                own["simulated_error"].median(),
                (own["simulated_error"] <= WITHIN).mean(),
                own["covered"].mean(),
                out["simulated_error"].median(),
                own["closed_error"].median(),
            ]
        )
        counts = f"{own['workers'].min():,} to {own['workers'].max():,}"
        found.append(f"| {name} | {counts} | {len(own)} | {' | '.join(f'{each:.1%}' for each in values[-1])} |")
    mean = np.mean(values[:-1], axis=0)
    found.append(f"| mean of machines | | | {' | '.join(f'{each:.1%}' for each in mean)} |")
    return [each.replace("%", " %").replace("15  %", "15 %") for each in found]


def main() -> int:
    """Simulate, print, write the table and every point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path, default=TABLE, help="all-reduces to score (default: the project's)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulation", help="where the results go")
    parser.add_argument("--counts", type=int, default=CALIBRATED, metavar="N", help="known node counts (default 2)")
    options = parser.parse_args()
    series = read(options.table, options.counts)
    table, others = simulated(series), left_out(series)
    closed = np.log(table["closed_s"] / table["measured_s"])
    width = table["high_s"].div(table["simulated_s"]).median()
    text = "\n".join(
        [
            "# Simulated all-reduces beyond the calibrated counts",
            "",
            f"Made by `make bench BENCH=allreduce`: the {options.counts} smallest node counts of each series known, "
            "nothing fitted to the others. No timing is in it.",
            "",
            *lines(table, others),
            "",
            f"Interval: up to {width:.2f} times the simulated time, in the median. "
            f"Two constants: standard deviation of the logarithm {math.sqrt(float((closed**2).mean())):.2f} "
            f"(CLOSED_FORM_ERROR is {CLOSED_FORM_ERROR}).",
            *(
                f"{machine} left out: {chosen}"
                for machine, chosen in others.groupby("machine")["chosen"].first().items()
            ),
        ]
    )
    print(text)
    points = table.to_csv(index=False, float_format="%.4g", lineterminator="\n")
    write_result(options.out, {"allreduce.md": text, "allreduce.csv": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
