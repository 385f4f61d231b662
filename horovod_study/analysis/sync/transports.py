"""Two runtimes, run side by side: NCCL against MPI, and any two series that are equal in all but that.

A pair is one run of each at the same worker count, in the same repeat of the same study: what disturbed one disturbed
both. The log ratios of the pairs are analysed: the effect is the geometric mean of B/A with Student's 95 % interval; p
is of a sign-flip permutation test, or of a paired t test where n pairs cannot reach stats.ALPHA after Holm over the
worker counts. Which test is taken depends on the numbers of pairs and counts alone. A difference is resolved when p
after Holm is below ALPHA and the interval leaves out 1. Where both series trained in turns, the ratio of throughputs is
that of rounds (analysis/paired.py).
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
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
        # What is unknown comes last.
        order = sorted(a, key=lambda key: [(value is None, 0 if value is None else value) for value in key])
        shared = [(key, a[key], b[key]) for key in order if key in b]
        for quantity in ("samples_per_s", "sync_s"):
            own = [_row(quantity, *pair) for key, *pair in shared if quantity != "sync_s" or key[0] > 1]
            if turns and quantity == "samples_per_s":
                for row, (_, one, other) in zip(own, shared, strict=True):
                    found = turns.estimate(set(other["run"]), set(one["run"]))
                    if found is None or found.ratio is None or not (found.ratio.known and row["pairs"]):
                        continue
                    ends = found.ratio.named("ratio", "ratio_low", "ratio_high")
                    row |= ends | {"pairs": found.launches, "p": found.ratio.p, "test": ROUNDS}
                    for name, end in ends.items():
                        row[name.replace("ratio", "difference")] = row.get("a_value", math.nan) * (end - 1)
                    # As if each launch were a pair: the scatter of pairs that would give this interval.
                    quantile = stats.t_quantile((1 + found.ratio.level) / 2, found.launches - 1.0)
                    row["_log_sd"] = found.half_width * math.sqrt(found.launches) / quantile
            rows += _judged([row for row in own if row["pairs"] or row["note"]])
    whole = dict.fromkeys(("workers", "pairs", "unpaired"), "int64")
    return pd.DataFrame(rows, columns=list(TRANSPORT_COLUMNS)).astype(whole)


def _rivals(table: pd.DataFrame) -> Iterator[tuple[dict[Any, pd.DataFrame], dict[Any, pd.DataFrame]]]:
    """Yield the cells of every two series of equal settings but for backend and transport, by _CELL."""
    camps: dict[tuple[Any, ...], list[dict[Any, pd.DataFrame]]] = {}
    for _, own in table.groupby("series", sort=False):
        first = own.iloc[0]
        # What is not known is equal to itself: None, and not NaN.
        alike = tuple(None if first[name] != first[name] else first[name] for name in (*_ALIKE, "setting"))
        by_cell = own.groupby(list(_CELL), sort=False, dropna=False)
        cells = {tuple(None if e != e else e for e in key): cell for key, cell in by_cell}
        camps.setdefault(alike, []).append(cells)
    for camp in camps.values():
        for a, b in combinations(camp, 2):
            ways = [next(iter(each.values())).iloc[0][["backend", "transport"]].tolist() for each in (a, b)]
            if ways[0] != ways[1]:
                yield a, b


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


def _judged(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
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
    return rows
