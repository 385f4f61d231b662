"""Each run for itself: one row with all that is known of it, and its course over the timed window in equal parts.

What a point hides, a run shows: which repeat was slow, when, and what the machine did then. Step times of a part are
those of its steps; the load of its hosts is the mean of the sensors' readings over its time, where each reading stands
for the time since the one before it, as everywhere (docs/system.md). Unknown is NaN.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from horovod_study.analysis.series.points import LAP_COLUMNS, OF_RANKS, measured, whole_runs, with_series
from horovod_study.analysis.stats import Floats

Places = NDArray[np.int64]
_MAX_PARTS = 40  # of a run: as many as a small plot shows
MIN_STEPS = 8  # of a part: the 90 % quantile of fewer is nearly their maximum

LOADS: Mapping[str, tuple[str, str, bool]] = {
    "cpu_percent_per_rank": ("rank", "cpu_percent", False),
    "rss_mb_per_rank": ("rank", "rss_mb", False),
    "gpu_percent": ("gpu", "gpu_percent", False),
    "gpu_memory_mb": ("gpu", "gpu_memory_mb", False),
    "gpu_power_w": ("gpu", "power_w", True),
    "package_power_w": ("package", "power_w", True),
}
"""Column -> the parts of a host it is of, the sensors' column, and whether it is their sum; else it is their mean."""

SAMPLED = ("at_s", "cpu_percent", "rss_mb", "gpu_percent", "gpu_memory_mb", "power_w")  # columns that a course needs

PROFILE_COLUMNS = (
    *("run", "part", "first_step", "steps", "begin_s", "end_s"),
    *("step_s", "step_s_median", "step_s_p90", "sync_s", "sync_s_median"),
    *LOADS,
)
"""One row per run and part of its timed window. `step_s` and `sync_s` are means over steps and ranks; `step_s_median`
and `step_s_p90` are over steps, the largest of the ranks, `sync_s_median` over steps, the mean of the ranks: as in the
totals of a run. begin_s and end_s are seconds since the run's first step, on the clock of its first rank."""

SPEEDUPS = ("speedup_plain", "efficiency_plain", "speedup_wrapped", "efficiency_wrapped")
_FROM_ACCOUNTS = (*OF_RANKS, "residual_share_mean", "open_steps", "why_not")
_TOLD = ("hosts", "launcher", "command", "finished", "excluded_by", "steady_doubt", "energy_doubt", "energy_of")
_NUMBERS = ("step_s_p90", "sync_s_median", "excluded_steps", "rows_lost", "rss_mb_max", "pss_mb_max", "energy_j")
RUN_COLUMNS = (
    *("run", "series", "setting", "mode", "study", "partition", "backend", "transport", "batch", "workers", "nodes"),
    *("repeat", "status", "reason", "started", "host", *_TOLD),
    *("samples_per_s", *SPEEDUPS, "window_s", "steps", "step_s", "step_s_median", *LAP_COLUMNS),
    *(*_NUMBERS, "energy_per_sample_j", "test_mse", *LOADS, *_FROM_ACCOUNTS),
)
"""What the table of runs has at least; every other column of the run table follows."""

_NAMES = ("series", "setting", "mode")
_POINT = ("series", "batch", "train_samples", "workers", "nodes")


def runs_table(
    runs: pd.DataFrame, points: pd.DataFrame | None = None, accounts: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the run table in the order of its series, with RUN_COLUMNS and whatever else it has.

    Options are as they were asked for. A speedup is the throughput of this run over the median baseline of its point
    in `points` (points.scaling_points), its efficiency that over the workers. `accounts` (Accounting.run_rows) says
    what the step rows know of the ranks. What is not known is NaN or None.
    """
    named = with_series(runs.assign(_place=range(len(runs))))
    table = runs.drop(columns=list(_NAMES), errors="ignore").iloc[named["_place"]].reset_index(drop=True)
    for place, name in enumerate(_NAMES, start=list(table.columns).index("run") + 1):
        table.insert(place, name, named[name].to_numpy())
    speed = table["samples_per_s"].where(measured(table)).to_numpy(dtype=np.float64)
    kinds = dict.fromkeys(_POINT[1:], "float64")
    for kind in ("plain", "wrapped"):
        base = np.full(len(table), math.nan)
        if points is not None:
            column = f"base_{kind}_samples_per_s"
            known = points[[*_POINT, column]].drop_duplicates(list(_POINT)).astype(kinds)
            base = named[list(_POINT)].astype(kinds).merge(known, how="left", on=list(_POINT))[column].to_numpy(float)
        table[f"speedup_{kind}"] = speed / base
        table[f"efficiency_{kind}"] = speed / base / named["workers"].to_numpy(dtype=np.float64)
    for name in _FROM_ACCOUNTS:
        table[name] = math.nan if accounts is None else table["run"].map(whole_runs(accounts)[name])
    for name in RUN_COLUMNS:
        if name not in table.columns:
            table[name] = None if name in _TOLD else math.nan
    return table


def part_places(steps: int) -> Places:
    """Return where the parts of a window of `steps` steps begin, and its end, (P + 1,); larger parts come first."""
    size, more = divmod(steps, parts := max(1, min(_MAX_PARTS, steps // MIN_STEPS)))
    number: Places = np.arange(parts + 1)
    return number * size + np.minimum(number, more)


class Course:
    """Gathers the course of a run from its ranks, one after the other: no column is kept.

    The first rank says which steps make a part; a rank that lacks some of them counts with those it has.
    """

    def __init__(self) -> None:
        self._first: Places | None = None  # (P + 1,): the first step of each part, and the one after the last
        self._columns: dict[str, NDArray[Any]] = {}  # of the first rank, (P,)
        self._ranks: dict[str, list[Floats]] = {}  # column, or column and quantile -> of each rank, (P,)

    def add_rank(self, step: NDArray[np.integer], column: Callable[[str], Floats]) -> None:
        """Take a rank of timed steps `step`, (S,); `column` returns another column of these rows, NaN where unknown."""
        order: slice | Places = slice(None) if (step[1:] > step[:-1]).all() else np.argsort(step, kind="stable")
        step = step[order]
        if self._first is None:
            places = part_places(len(step))
            begin_s, last = column("begin_s")[order], places[1:] - 1
            self._first = np.append(step[places[:-1]], step[-1] + 1).astype(np.int64)
            ends = {"begin_s": begin_s[places[:-1]], "end_s": begin_s[last] + column("step_s")[order][last]}
            number = np.arange(len(places) - 1)
            self._columns = {"part": number, "first_step": self._first[:-1], "steps": np.diff(places), **ends}
        places = np.searchsorted(step, self._first)
        for name, quantiles in (("sync_s", (0.5,)), ("step_s", (0.5, 0.9))):
            means, levels = by_part(column(name)[order], places, quantiles)
            for of, found in ((name, means), *zip((f"{name} {each}" for each in quantiles), levels, strict=True)):
                self._ranks.setdefault(of, []).append(found)

    def profile(self, samples: Mapping[str, Mapping[str, Mapping[str, Floats]]]) -> pd.DataFrame | None:
        """Return PROFILE_COLUMNS but the run, with the load of the hosts from {host: {part: columns}}; None without
        timed steps."""
        if self._first is None:
            return None
        columns = {
            **self._columns,
            "step_s": self._over(np.mean, "step_s"),
            "step_s_median": self._over(np.max, "step_s 0.5"),
            "step_s_p90": self._over(np.max, "step_s 0.9"),
            "sync_s": self._over(np.mean, "sync_s"),
            "sync_s_median": self._over(np.mean, "sync_s 0.5"),
        }
        begin_s, end_s = self._columns["begin_s"], self._columns["end_s"]
        for name, (kind, column, summed) in LOADS.items():  # a sum is known where every device is
            each = [
                held(told["at_s"], told[column], begin_s, end_s)
                for parts in samples.values()
                for part, told in parts.items()
                if part.split(" ")[0] == kind and column in told and np.isfinite(told[column]).any()
            ] or [np.full(len(begin_s), math.nan)]
            columns[name] = np.sum(each, axis=0) if summed else np.mean(each, axis=0)
        return pd.DataFrame(columns)

    def _over(self, how: Callable[..., Any], name: str) -> Floats:
        """Return one value per part over the ranks that have steps there; NaN where one of them does not know it."""
        ranks = np.stack(self._ranks[name])  # (R, P); infinite where a rank has no step
        here = ~np.isinf(ranks)
        if here.all():
            return np.asarray(how(ranks, axis=0), dtype=np.float64)
        return np.array([how(ranks[here[:, part], part]) for part in range(ranks.shape[1])])


def by_part(values: Floats, places: Places, quantiles: Sequence[float]) -> tuple[Floats, Floats]:
    """Return the mean (P,) and `quantiles` (Q, P) of `values`, (S,), in the parts that begin at `places`, (P + 1,).

    NaN in a part that holds a NaN, infinite for a part without values.
    """
    sizes = np.diff(places)
    means = np.full(len(sizes), math.inf)
    levels = np.full((len(quantiles), len(sizes)), math.inf)
    cuts = np.flatnonzero(np.diff(sizes)) + 1  # parts of one size are side by side: one block of rows each
    for first, after in zip((0, *cuts), (*cuts, len(sizes)), strict=True):
        size = int(sizes[first])
        if size == 0:
            continue
        block = values[places[first] : places[first] + size * (after - first)].reshape(after - first, size)
        means[first:after] = block.mean(axis=1)
        if len(quantiles):
            levels[:, first:after] = np.quantile(block, quantiles, axis=1)
    return means, levels


def held(at_s: Floats, values: Floats, begin_s: Floats, end_s: Floats) -> Floats:
    """Return the means of readings (N,) over times (P,), where each stands for the time since the one before it.

    at_s is ascending. NaN where no reading stands for any of a time.
    """
    known = np.isfinite(values)
    spans = np.where(known, np.diff(at_s, prepend=at_s[:1]), 0.0)
    area, seen = np.cumsum(np.where(known, values, 0.0) * spans), np.cumsum(spans)
    total = np.interp(end_s, at_s, area) - np.interp(begin_s, at_s, area)
    over_s = np.interp(end_s, at_s, seen) - np.interp(begin_s, at_s, seen)
    mean: Floats = np.divide(total, over_s, out=np.full(len(begin_s), math.nan), where=over_s > 1e-9)
    return mean


def profile_rows(profiles: Iterable[tuple[str, pd.DataFrame | None]]) -> pd.DataFrame:
    """Return PROFILE_COLUMNS of runs, given with their names, in their order; a run without timed steps has no row."""
    there = [each.assign(run=run) for run, each in profiles if each is not None]
    empty = pd.DataFrame(columns=list(PROFILE_COLUMNS))
    return pd.concat(there, ignore_index=True)[list(PROFILE_COLUMNS)] if there else empty
