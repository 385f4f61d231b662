"""Rows of points, checked and gathered: one series as the least squares want it, and doubts about the rows alone.

Letters: R rows (observations), N workers, M nodes, K distinct places (a worker count on a number of nodes), B bootstrap
replicates.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.importers import SAMPLES
from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError, refuse
from horovod_study.text.words import listed

_REPLICATES = 1000
_EXACT_NOISE = 1e-9  # relative noise below which runs are the same up to rounding
_LONG = 1000  # runs from which on nothing is asked about drift, which takes the square of that in memory
_MEDIAN_OVER_MEAN = {1: 1.0, 2: 1.0, 3: 1.346, 4: 1.193, 5: 1.434, 6: 1.288, 7: 1.473}
"""Variance of the median of normal runs over that of their mean; from order statistics (Sarhan, Greenberg 1962)."""
_CORRELATIONS = {0.0: 0.5, 0.3: 0.1, 0.6: 0.1, 0.8: 0.1, 0.9: 0.1, 0.95: 0.1}  # of a run with the next, and priors


def places(workers: ArrayLike, nodes: ArrayLike | None = None, *, per_node: ArrayLike | None = None) -> Floats:
    """Places of `workers` (K,): workers, nodes and workers on the fullest node, (3, K).

    Nodes are filled one after another with `per_node` workers where that is known.

    With `nodes` alone the fullest node has N/M workers, rounded up; without either all workers share one node.
    Raises AnalysisError where there are more nodes than workers, or workers than places on the nodes.
    """
    n = np.atleast_1d(np.asarray(workers, dtype=np.float64))
    if nodes is None:
        m = np.ones_like(n) if per_node is None else np.ceil(n / np.asarray(per_node, dtype=np.float64))
    else:
        m = np.broadcast_to(np.asarray(nodes, dtype=np.float64), n.shape)
    wrong = ~((m >= 1) & (m <= np.ceil(n)))
    if wrong.any():
        raise AnalysisError(
            f"{m[wrong][0]:g} nodes for {n[wrong][0]:g} workers: every node has at least one worker, so correct either"
        )
    evenly = np.where(m > 1, np.ceil(n / m), n)
    fullest = evenly
    if per_node is not None:
        full = np.broadcast_to(np.asarray(per_node, dtype=np.float64), n.shape)
        # A node cannot be fuller than full, nor leave another one empty.
        fullest = np.where(m > 1, np.clip(np.minimum(full, n - m + 1), evenly, None), n)
    return np.stack([n, m, fullest])


Sample: TypeAlias = SimpleNamespace
"""Rows of one series in the form that all laws share: per place and per run.

Laws are fitted to the medians over the runs of a place, which are what a report shows and what speedups are over.

speedup (R,), place (R,)   rows, and the index of their place
where (3, K)               distinct places: workers, nodes and workers on the fullest node
rows, medians (K,)         rows per place, each of a run, and their median speedup
run_variance (K,)          variance of that median; NaN with one run
base                       place that the speedups were divided by; None where it is none
own, shared, repeats       what runs that follow each other share (`_drift`)
drawn (B, K)               bootstrap medians, rescaled by their own baseline; None with too few runs
"""


def sample_of(
    workers: ArrayLike,
    speedup: ArrayLike,
    nodes: ArrayLike | None = None,
    per_node: ArrayLike | None = None,
    scaled_by: int | None = None,
    seed: int = 0,
    kind: str = "no throughput: leave out runs without a value above 0",
    repeat: ArrayLike | None = None,
    ordered: bool = False,
) -> Sample:
    """`ordered`: rows of a place stay in their order, which drawn runs depend on; else they go by their values."""
    n, s = np.asarray(workers, dtype=np.float64).ravel(), np.asarray(speedup, dtype=np.float64).ravel()
    refuse(
        "",
        (n.shape != s.shape or n.size == 0, f"{n.size} worker counts and {s.size} speedups: give one per worker count"),
        (scaled_by and scaled_by not in n, f"speedups cannot be scaled by {scaled_by} workers: no row has that count"),
        error=AnalysisError,
    )
    _check_numbers(n, s, kind)
    where = places(n, nodes, per_node=per_node)
    own, shared, repeats = (1.0, None, 0) if repeat is None else _drift(where.T, np.log(s), np.asarray(repeat))
    order = np.lexsort(where[::-1] if ordered else (s, *where[::-1]))
    s, where = s[order], where[:, order]

    new = np.concatenate([[True], np.any(where[:, 1:] != where[:, :-1], axis=0)])
    first = np.flatnonzero(new)
    per_run = np.split(s, first[1:])
    rows = np.array([len(each) for each in per_run])
    over_mean = np.array([over_variance_of_mean(number) for number in rows])
    variance = [stats.variance_of_mean(each) if len(each) > 1 else np.nan for each in per_run]
    medians = np.array([np.median(each) for each in per_run])
    where = where[:, first]
    base = None if scaled_by is None else int(np.flatnonzero(where[0] == scaled_by)[0])
    enough = rows.min() >= 3 and len(first) > 1
    return Sample(
        speedup=s,
        place=np.cumsum(new) - 1,
        where=where,
        rows=rows.astype(np.float64),
        medians=medians,
        run_variance=over_mean * np.array(variance),
        base=base,
        own=own,
        shared=shared,
        repeats=repeats,
        drawn=_draw(per_run, medians, np.sqrt(over_mean), base, seed, own, shared) if enough else None,
    )


def over_variance_of_mean(runs: int) -> float:
    """Return how much larger the variance of the median of so many runs is than that of their mean."""
    return _MEDIAN_OVER_MEAN.get(runs, stats.MEDIAN_VARIANCE)


def _drift(place: Floats, log: Floats, repeat: NDArray[Any]) -> tuple[float, Floats | None, int]:
    """Estimate what places (R, 3), workers first, share in the logarithms (R,) of their runs; `repeat` (R,) labels.

    Return the probability that they share nothing; (K, sources) relative deviations of the medians where they do, times
    the square root of its probability, or None; and the number of repeats that say so.

    Runs are taken to follow each other repeat by repeat, from the fewest to the most workers. If their noise has
    correlation r with that of the next, r^2 with the one after, then the places have more in common within a repeat
    than chance explains: the mean square between repeats over the rest is F-distributed around a ratio that r
    determines. Its likelihood weighs a grid of r, half of whose prior is at 0.
    """
    nothing = 1.0, None, 0
    if len(np.unique(repeat)) < 3:
        return nothing
    table = pd.DataFrame({"repeat": repeat, "place": np.unique(place, axis=0, return_inverse=True)[1].ravel()})
    table = table.assign(log=log).pivot_table(index="place", columns="repeat", values="log").dropna(axis=1)
    counts, runs = table.shape
    if counts < 3 or runs < 3 or counts * runs > _LONG:
        return nothing
    rest = table.to_numpy() - table.to_numpy().mean(axis=1, keepdims=True)
    shared = rest.mean(axis=0)
    within = float(np.sum(rest**2)) / (counts * (runs - 1))
    between = counts * float(shared @ shared) / (runs - 1)
    alone = float(np.sum((rest - shared) ** 2)) / ((runs - 1) * (counts - 1))
    if within <= _EXACT_NOISE**2:
        return nothing
    found = max(between, _EXACT_NOISE**2) / max(alone, _EXACT_NOISE**2)
    first, second = runs - 1, (runs - 1) * (counts - 1)
    number = np.arange(runs * counts).reshape(runs, counts)
    apart = np.abs(np.subtract.outer(number, number)).transpose(0, 2, 1, 3)  # (runs, runs, counts, counts)
    scores, covariances = [], []
    for r, prior in _CORRELATIONS.items():
        alike = r**apart if r else (apart == 0).astype(np.float64)
        same = np.trace(alike, axis1=2, axis2=3) / counts
        mean = alike.mean(axis=(2, 3))
        seen = _seen(same)  # of the variance of a run, in the spread over the repeats of a place
        expected = counts * _seen(mean) / ((counts * seen - counts * _seen(mean)) / (counts - 1))
        ratio = found / expected
        density = (first / 2 - 1) * math.log(ratio) - (first + second) / 2 * math.log1p(first / second * ratio)
        scores.append(math.log(prior / expected) + density)
        covariances.append(within / seen * alike.mean(axis=(0, 1)))
    share = np.exp(np.array(scores) - max(scores))
    share /= share.sum()
    size, along = np.linalg.eigh(np.einsum("i,ikl->kl", share[1:], np.array(covariances[1:])))
    shared = along * np.sqrt(np.maximum(size, 0.0) * over_variance_of_mean(runs))
    return float(share[0]), shared, runs


def _seen(alike: Floats) -> float:
    """The share of a variance that shows in the spread over runs with these correlations (runs, runs)."""
    return float((np.trace(alike) - alike.sum() / len(alike)) / (len(alike) - 1))


def _draw(
    per_run: list[Floats],
    medians: Floats,
    wider: Floats,
    base: int | None,
    seed: int,
    own: float,
    shared: Floats | None,
) -> Floats:
    """Bootstrap medians (B, K) of the runs of each place, and what places share, over their own baseline.

    m - 1 of the m runs are drawn with replacement. Medians of so few are few different numbers: it is their mean that
    is drawn, and its share of the mean is stretched by `wider` (K,), as medians of normal runs scatter more.
    """
    generator = np.random.default_rng(seed)
    drawn = np.empty((_REPLICATES, len(per_run)))
    for i, runs in enumerate(per_run):
        pick = generator.integers(len(runs), size=(_REPLICATES, len(runs) - 1))
        drawn[:, i] = medians[i] * (runs[pick].mean(axis=1) / runs.mean()) ** wider[i]
    if shared is not None:
        moved = np.exp(generator.standard_normal((_REPLICATES, len(medians))) @ shared.T)
        drawn = (medians + math.sqrt(own) * (drawn - medians)) * moved
    return drawn if base is None else drawn * (medians[base] / drawn[:, [base]])


def by_series(points: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the name and the rows of every series, in the order of names; "" without a `series` column."""
    names = points["series"].astype(str) if "series" in points else pd.Series("", index=points.index)
    found = [(str(name), rows) for name, rows in points.groupby(names.to_numpy(), sort=True)]
    for _, rows in found:  # what is odd in the table is told once; what its numbers are, is needed by each
        rows.attrs = {"unit": points.attrs.get("unit", SAMPLES)}
    return found


def check_points(points: pd.DataFrame) -> None:
    """Raise AnalysisError unless there are rows with worker counts of at least 1 and throughputs above 0."""
    missing = [column for column in ("workers", "samples_per_s") if column not in points]
    if missing or points.empty:
        what = f"without column {missing[0]!r}" if missing else "without rows"
        raise AnalysisError(f"points {what}: needed are workers and samples_per_s of 2 distinct worker counts")
    _check_numbers(points["workers"].to_numpy(dtype=np.float64), points["samples_per_s"].to_numpy(dtype=np.float64))


def _check_numbers(
    n: Floats, value: Floats, kind: str = "no throughput: leave out runs without a value above 0"
) -> None:
    counted, usable = np.isfinite(n) & (n >= 1), np.isfinite(value) & (value > 0)
    if not (counted & usable).all():
        at = int(np.argmin(counted if not counted.all() else usable))
        few = f"{n[at]:g} workers: every point needs a worker count of at least 1"
        raise AnalysisError(f"{value[at]:g} at {n[at]:g} workers is {kind}" if counted.all() else few)


def medians_at(workers: Floats, values: Floats) -> tuple[Floats, NDArray[np.intp], Floats]:
    """Return the K distinct counts, ascending, the place of each row among them, (R,), and the median at each, (K,)."""
    counts, group = np.unique(workers, return_inverse=True)
    return counts, group, np.array([np.median(values[group == i]) for i in range(len(counts))])


def one_count(count: float) -> str:
    return f"all points have {count:g} workers: measure at least 2 distinct worker counts (4 to distinguish laws)"


def point_doubts(workers: ArrayLike, samples_per_s: ArrayLike, base_samples_per_s: float) -> list[str]:
    """Reasons, in words, to doubt the points of one series before any law is fitted to them; shapes (R,), (R,)."""
    n, x = np.asarray(workers, dtype=np.float64), np.asarray(samples_per_s, dtype=np.float64)
    doubts = []
    counts, group, medians = medians_at(n, x)
    repeats = np.bincount(group)

    if len(few := counts[repeats < 3]):
        which = "every worker count" if len(few) == len(counts) else f"{shortened(few)} workers"
        doubts.append(f"fewer than 3 repeats at {which}: the spread between runs is not known there")
    if len(counts) < 4:
        doubts.append(f"only {len(counts)} distinct worker counts ({shortened(counts)}): laws cannot be separated")

    doubts += off_doubts(off := off_counts(n, x))
    known = [i for i, count in enumerate(counts) if count not in off]
    spread = {counts[i]: x[group == i].std(ddof=1) / x[group == i].mean() for i in known if repeats[i] > 1}
    if wide := [count for count, share in spread.items() if share > 0.10]:
        doubts.append(
            f"runs at {shortened(wide)} workers differ by up to {100 * max(spread.values()):.0f} % "
            "(standard deviation over mean): add repeats or look for a disturbance"
        )
    # One per cent of grace: a run that ties with the ideal line is not a finding.
    if above := [counts[i] for i in known if medians[i] > 1.01 * counts[i] * base_samples_per_s]:
        doubts.append(
            f"super-linear: more than N times the baseline at {shortened(above)} workers "
            "(a slow baseline, a cache effect, or less work per step)"
        )
    return doubts


def off_counts(workers: ArrayLike, samples_per_s: ArrayLike) -> list[float]:
    """Worker counts with a throughput that contradicts the other points 30-fold or more; shapes (R,), (R,).

    30 times super-linear, a fall to a thirtieth, or runs that far from their median. The count in most contradictions
    is named first, and the rest judged without it; of two in equally many, both.
    """
    n, x = np.asarray(workers, dtype=np.float64), np.asarray(samples_per_s, dtype=np.float64)
    counts, group, medians = medians_at(n, x)
    off = set(n[(x > 30 * medians[group]) | (x < medians[group] / 30)].tolist())
    while len(counts) > 1:
        ratio = medians[:, np.newaxis] / medians  # [i, j]: i over j
        more = counts[:, np.newaxis] > counts
        clash = more & ((ratio > 30 * counts[:, np.newaxis] / counts) | (ratio < 1 / 30))
        conflicts = clash.sum(axis=0) + clash.sum(axis=1)
        if not conflicts.any():
            break
        worst = conflicts == conflicts.max()
        off |= set(counts[worst].tolist())
        counts, medians = counts[~worst], medians[~worst]
    return sorted(off)


def off_doubts(off: Sequence[float]) -> list[str]:
    """Doubt the counts of `off_counts`."""
    text = "throughput at {} workers is more than 30 times off the other points: mixed units?"
    return [text.format(shortened(off))] if off else []


def shortened(values: Sequence[float] | Floats) -> str:
    """'1, 2 and 4': at most six, then how many more."""
    texts = [f"{value:g}" for value in values]
    if len(texts) > 6:
        texts = [*texts[:5], f"{len(texts) - 5} more"]
    return listed(texts)
