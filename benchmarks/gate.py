"""`python benchmarks/gate.py`: how often the gate of `report --against` is wrong, counted over simulated studies.

Two studies of --cells cells each are drawn: throughputs with a log-normal scatter over repeats, the second study slower
by a given share in one cell or in all. The gate judges them as `report --against --fail-on LIMIT` does: these
are its own functions. Printed is, per line, the share of pairs in which

    fails       at least one cell fails (a false alarm where nothing is slower)
    found       of the cells that are slower, how many fail
    undecided   of all cells, how many are neither failed nor passed

With --drift the whole second study is slower or faster by a common normal amount, as when the machine has changed
between the two: no repeats within a study can see that.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from horovod_study.analysis.against import FAILED, UNDECIDED, outcome, verdicts
from horovod_study.analysis.stats import Interval, log_contrast

HEADS = ("repeats", "scatter %", "slower %", "in cells", "limit %", "fails %", "found %", "undecided %")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What came of one kind of pairs; shares, NaN where there is nothing to find."""

    repeats: int
    scatter: float
    slower: float
    slow_cells: int
    limit: float
    fails: float
    found: float
    undecided: float


def rates(
    *,
    studies: int,
    cells: int,
    repeats: int,
    scatter: float,
    slower: float,
    slow_cells: int,
    limits: Sequence[float],
    drift: float = 0.0,
    seed: int = 1,
) -> list[Rates]:
    """Return the rates of one kind of pairs of studies for each limit."""
    rng = np.random.default_rng(seed)
    counts = {limit: np.zeros(3) for limit in limits}
    for _ in range(studies):
        shift = np.zeros(cells) + drift * rng.standard_normal()
        shift[:slow_cells] += math.log(1 - slower)
        before, after = np.exp(scatter * rng.standard_normal((2, cells, repeats)))
        found = [log_contrast([(1, a * math.exp(s)), (-1, b)]) for a, b, s in zip(after, before, shift, strict=True)]
        judged = [verdict for verdict, _ in verdicts("throughput", found)]
        for limit, count in counts.items():
            outcomes = [outcome(_row(each, verdict), limit) for each, verdict in zip(found, judged, strict=True)]
            failed = np.array([each == FAILED for each in outcomes])
            undecided = sum(each == UNDECIDED for each in outcomes)
            count += np.array([failed.any(), failed[:slow_cells].sum(), undecided], dtype=float)
    slow = slow_cells if slower else 0
    return [
        Rates(
            repeats=repeats,
            scatter=scatter,
            slower=slower,
            slow_cells=slow,
            limit=limit,
            fails=fails / studies,
            found=found_ / (studies * slow) if slow else math.nan,
            undecided=open_ / (studies * cells),
        )
        for limit, (fails, found_, open_) in counts.items()
    ]


def _row(found: Interval, verdict: str) -> dict[str, object]:
    ends = {"ratio": found.value, "ratio_low": found.low, "ratio_high": found.high}
    return {"metric": "throughput", "verdict": verdict, **ends}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="pairs of studies per line")
    parser.add_argument("--cells", type=int, default=9)
    parser.add_argument("--repeats", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--scatter", type=float, nargs="+", default=[0.01, 0.03], help="of repeats, as a share")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.05, 0.10], help="true slowdowns")
    parser.add_argument("--limit", type=float, nargs="+", default=[0.0, 0.05], help="of --fail-on")
    parser.add_argument("--drift", type=float, default=0.0, help="of the machine between the studies, as a share")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: list[Rates] = []
    for repeats in options.repeats:
        for scatter in options.scatter:
            for slower in options.slower:
                for slow_cells in (options.cells,) if not slower else (1, options.cells):
                    found += rates(
                        studies=options.studies,
                        cells=options.cells,
                        repeats=repeats,
                        scatter=scatter,
                        slower=slower,
                        slow_cells=slow_cells,
                        limits=options.limit,
                        drift=options.drift,
                        seed=options.seed,
                    )
    if options.json:
        rows = [{k: None if v != v else v for k, v in asdict(each).items()} for each in found]
        print(json.dumps({"studies": options.studies, "cells": options.cells, "drift": options.drift, "rates": rows}))
        return
    table = [list(HEADS), *(_cells(each) for each in found)]
    widths = [max(len(line[place]) for line in table) for place in range(len(HEADS))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cells(each: Rates) -> list[str]:
    kind = [f"{each.repeats}", _percent(each.scatter), _percent(each.slower), f"{each.slow_cells}"]
    return [*kind, *(_percent(share) for share in (each.limit, each.fails, each.found, each.undecided))]


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.4g}"


if __name__ == "__main__":
    main()
