"""Two runtimes, run side by side: NCCL against MPI, and any two series that are equal in all but that.

A pair is one run of each at the same worker count, in the same repeat of the same study: they ran within one block,
and what disturbed the block disturbed both. The log ratios of the pairs are what is analysed, as in comparison.py:

    effect      geometric mean of B/A over the pairs, with Student's 95 % interval
    p           sign-flip permutation test on the log ratios. n pairs cannot reach a p below 2/2^n: where that is not
                below stats.ALPHA after Holm, paired t test instead; `test` names the one taken
    Holm        over the worker counts of two series, for each quantity on its own

Which test is taken depends on the numbers of pairs and counts alone, never on what they say. A difference is resolved
when p after Holm is below ALPHA and the interval leaves out 1.

Where both series trained in turns (studies/turns.py), the ratio of their throughputs, its interval and p are those of
rounds (analysis/paired.py), and `test` says so; pairs are launches then. What they wait has no slices: it is paired as
ever.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.paired import RatioEstimate
from horovod_study.analysis.series.points import CAPTURED, SETTINGS
from horovod_study.analysis.series.turns import StudyTurns
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.sync import synchronisation
from horovod_study.text.words import plural

TRANSPORT_COLUMNS = (
    *("a", "b", "setting", "partition", "a_backend", "a_transport", "b_backend", "b_transport", "quantity"),
    *("workers", "nodes", "batch", "pairs", "unpaired", "a_value", "b_value", "ratio", "ratio_low", "ratio_high"),
    *("difference", "difference_low", "difference_high", "p", "p_holm", "test", "tests", "verdict", "better"),
    *("pairs_needed", "note"),
)
"""One row per two series, quantity and worker count; `ratio` is B over A, `difference` B less A in the quantity's unit.

`a_value`, `b_value`: geometric means over the pairs. `unpaired`: runs without a partner, left out.
`verdict`: RESOLVED, NOT_RESOLVED or UNKNOWN, and `better` is `a` or `b` where it is resolved.
"""

RESOLVED, NOT_RESOLVED, UNKNOWN = "resolved", "not resolved", "not known"
SIGN_FLIP, STUDENT, ROUNDS = "sign-flip permutation", "paired t", "t of rounds in turns"

_FREE = ("backend", "transport", "reduction")
_ALIKE = tuple(name for name in SETTINGS if name not in _FREE)
_CELL = ("workers", "nodes", "batch", "train_samples", "per_node")


def transports(runs: pd.DataFrame, turns: StudyTurns | None = None) -> pd.DataFrame:
    """Return TRANSPORT_COLUMNS of the finished parallel runs of a run table, for every two series that differ in
    nothing but how the workers communicate; empty where there are no such two.

    `turns`: the slices of runs that alternated, by the column `run`. `sync_s` (means per step) is compared from two
    workers on, and is UNKNOWN where a backend hides it.
    """
    rows: list[dict[str, Any]] = []
    table = synchronisation.parallel(runs)
    if len(table[["backend", "transport"]].drop_duplicates()) < 2:
        return pd.DataFrame(columns=list(TRANSPORT_COLUMNS))
    for a, b in _rivals(table):
        # NaN, which is unknown, comes last.
        order = sorted(a, key=lambda key: [(value != value, 0 if value != value else value) for value in key])
        shared = [(key, a[key], b[key]) for key in order if key in b]
        for quantity in ("samples_per_s", "sync_s"):
            own = [_row(quantity, *pair) for key, *pair in shared if quantity != "sync_s" or key[0] > 1]
            if turns and quantity == "samples_per_s":
                for row, (_, one, other) in zip(own, shared, strict=True):
                    row |= _of_rounds(row, turns.estimate(set(other["run"]), set(one["run"])))
            rows += _judged([row for row in own if row["pairs"] or row["note"]])
    whole = dict.fromkeys(("workers", "pairs", "unpaired"), "int64")
    return pd.DataFrame(rows, columns=list(TRANSPORT_COLUMNS)).astype(whole)


def _rivals(table: pd.DataFrame) -> Iterator[tuple[dict[Any, pd.DataFrame], dict[Any, pd.DataFrame]]]:
    """Yield the cells of every two series of equal settings but for backend and transport, by _CELL."""
    camps: dict[tuple[Any, ...], list[dict[Any, pd.DataFrame]]] = {}
    for _, own in table.groupby("series", sort=False):
        first = own.iloc[0]
        alike = (*(_plain(first[name]) for name in _ALIKE), first["setting"])
        # A filling of nodes that is not known is a text like others: equal to itself.
        cells = {
            tuple(_plain(value) for value in key): cell
            for key, cell in own.groupby(list(_CELL), sort=False, dropna=False)
        }
        camps.setdefault(alike, []).append(cells)
    for camp in camps.values():
        for a, b in combinations(camp, 2):
            ways = [next(iter(each.values())).iloc[0][["backend", "transport"]].tolist() for each in (a, b)]
            if ways[0] != ways[1]:
                yield a, b


def _plain(value: Any) -> Any:
    """Return a value that equals itself: NaN as None."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _row(quantity: str, a: pd.DataFrame, b: pd.DataFrame) -> dict[str, Any]:
    """Return one comparison before its p is corrected."""
    ones, others, unpaired = _pairs(quantity, a, b)
    first, second = a.iloc[0], b.iloc[0]
    row: dict[str, Any] = {
        **{name: first[name] for name in ("setting", "partition", "workers", "nodes", "batch")},
        **{f"{side}_{name}": cell[name] for side, cell in (("a", first), ("b", second)) for name in _FREE[:2]},
    }
    row |= {"a": first["series"], "b": second["series"], "quantity": quantity, "test": ""}
    row |= {"pairs": len(ones), "unpaired": unpaired, "p": math.nan, "_log_sd": math.nan}
    notes = []
    if not len(ones):
        notes.append("no repeat of one study was run with both, so nothing is paired")
    elif not (np.isfinite(ones).all() and np.isfinite(others).all()):
        hidden = [str(cell["series"]) for cell, values in ((first, ones), (second, others)) if np.isnan(values).any()]
        held = "the rest of its CUDA graph" if pd.concat([a, b])[CAPTURED].notna().any() else "its backward pass"
        notes.append(f"the synchronisation of {' and '.join(hidden)} cannot be separated from {held}")
    elif not ((ones > 0).all() and (others > 0).all()):
        notes.append("a pair holds a time of 0, which has no ratio")
    else:
        found, logs = stats.paired_ratio(ones, others), np.log(others / ones)
        row |= {"a_value": stats.geometric_mean(ones), "b_value": stats.geometric_mean(others)}
        row |= found.ratio.named("ratio", "ratio_low", "ratio_high")
        row |= stats.student(others - ones).named("difference", "difference_low", "difference_high")
        row |= {"p": found.ratio.p, "_log_sd": math.nan if found.log_sd is None else found.log_sd}
        row["_student_p"] = stats.t_p(float(logs.mean()), float(stats.standard_error(logs)), len(logs) - 1.0)
    if first["reduction"] != second["reduction"] and first["workers"] > 1:
        notes.append(f"they also differ in when gradients are reduced ({first['reduction']}, {second['reduction']})")
    if unpaired:
        notes.append(f"{plural(unpaired, 'run')} without a partner left out")
    row["note"] = "; ".join(notes)
    return row


def _of_rounds(row: Mapping[str, Any], found: RatioEstimate | None) -> dict[str, Any]:
    """Return what an estimate from rounds puts in the place of the paired repeats of a comparison; nothing without."""
    ratio = None if found is None else found.ratio
    if found is None or ratio is None or not (ratio.known and row["pairs"]):
        return {}
    # As if each launch were a pair: the scatter of pairs that would give this interval.
    quantile = stats.t_quantile((1 + ratio.level) / 2, found.launches - 1.0)
    log_sd = found.half_width * math.sqrt(found.launches) / quantile
    ends = ratio.named("ratio", "ratio_low", "ratio_high")
    differences = {
        name.replace("ratio", "difference"): row.get("a_value", math.nan) * (end - 1) for name, end in ends.items()
    }
    return {**ends, **differences, "pairs": found.launches, "p": ratio.p, "_log_sd": log_sd, "test": ROUNDS}


def _pairs(quantity: str, a: pd.DataFrame, b: pd.DataFrame) -> tuple[Floats, Floats, int]:
    """Return the values of A and B of the pairs, (n,) each, in the order of study and repeat, and the runs left out."""
    sides = []
    for cell in (a, b):
        names = list(zip(cell["study"], cell["repeat"], strict=True))
        values = cell[quantity].to_numpy(dtype=np.float64)
        # Two runs of one repeat in one cell: nobody can say which of them is the partner.
        sides.append({name: value for name, value in zip(names, values, strict=True) if names.count(name) == 1})
    common = sorted((name for name in sides[0] if name in sides[1]), key=lambda name: (str(name[0]), name[1]))
    ones, others = (np.array([side[name] for name in common], dtype=np.float64) for side in sides)
    return ones, others, len(a) + len(b) - 2 * len(common)


def _judged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add test, p after Holm and verdict to the comparisons of one quantity of two series."""
    tested = [row for row in rows if row["pairs"] > 1 and math.isfinite(row["p"])]
    least = stats.fewest_blocks(len(tested)) if tested else 0
    for row in rows:
        row |= {"p_holm": math.nan, "tests": len(tested), "verdict": UNKNOWN, "better": "", "pairs_needed": math.nan}
    for row in (row for row in tested if row["test"] != ROUNDS):
        row["test"] = SIGN_FLIP if row["pairs"] >= least else STUDENT
        row["p"] = row["p"] if row["test"] == SIGN_FLIP else row["_student_p"]
    for row, p in zip(tested, stats.holm([row["p"] for row in tested]), strict=True):
        row["p_holm"] = p
        outside = not row["ratio_low"] <= 1 <= row["ratio_high"]
        row["verdict"] = RESOLVED if p < stats.ALPHA and outside else NOT_RESOLVED
        if row["verdict"] == RESOLVED:
            row["better"] = "b" if (row["ratio"] > 1) == (row["quantity"] == "samples_per_s") else "a"
        else:
            row["pairs_needed"] = float(stats.needed_blocks(row["_log_sd"], tests=len(tested)))
    for row in rows:
        if row["pairs"] == 1 and math.isfinite(row["p"]):
            row["p"], row["verdict"] = math.nan, NOT_RESOLVED
            row["note"] = "; ".join(filter(None, ["one pair, and nothing says how far it can be trusted", row["note"]]))
    return list(rows)
