"""Convergence as a result: what the test error did against epochs, samples and seconds, and how soon a target was met.

A cell is what its repeats say together, as in `points`. Where one run has to stand for a cell, that is its *median
run* - the one in the middle of the repeats ordered by the quantity in question, of an even number the slower or worse
- so that no row combines columns of runs that did not happen together. docs/metrics.md defines every quantity.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series import points
from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError

_BELOW_FLOOR = 0.9  # a test MSE below this share of the statistical floor is a bug, not a success

_IDENTITY = ("series", "setting", "partition", "backend", "transport", "workers", "nodes", "batch", "global_batch")

CURVE_COLUMNS = (
    *_IDENTITY,
    *("repeats", "samples", "evaluations", "epoch", "steps", "train_s_median", "wall_s_median", "train_mse_median"),
    *("test_mse_median", "test_mse_min", "test_mse_max", "floor_mse", "efficiency"),
)
LEARNING_COLUMNS = (
    *_IDENTITY,
    *("precision", *points.CHOICES, "train_samples", "mode", "repeats", "diverged", "evaluations"),
    *("best_mse_median", "best_mse_min", "best_mse_max", "best_epoch", "best_samples", "best_train_s", "best_wall_s"),
    *("final_mse_median", "floor_mse", "efficiency", "rate", "rate_low", "rate_high", "rate_interval"),
)
TARGET_COLUMNS = (
    *_IDENTITY,
    *("target_mse", "repeats", "reached", "censored"),
    *("train_s", "train_s_at_least", "train_s_min", "train_s_max", "wall_s", "wall_s_at_least"),
    *("samples", "samples_at_least", "samples_per_s", "overhead"),
    *("same_samples_s", "more_samples_s", "outside_s"),
    *("base", "base_series", "base_train_s", "base_samples", "speedup", "speedup_low", "speedup_high"),
    *("speedup_at_least", "speedup_at_most", "throughput_ratio", "statistical_efficiency"),
    *("speedup_wall", "overhead_ratio", "worker_hours", "worker_hours_at_least", "energy_j", "energy_j_at_least"),
    "note",
)
CROSSING_COLUMNS = (
    *("run", *_IDENTITY, "target_mse", "reached"),
    *("samples", "train_s", "wall_s", "worker_hours", "energy_j", "at_first"),
)


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Learning curves, the best that was learned, and the times to the targets, as tables; and what to doubt."""

    curves: pd.DataFrame  # CURVE_COLUMNS, a row per cell and place of evaluation
    learning: pd.DataFrame  # LEARNING_COLUMNS, a row per cell
    targets: pd.DataFrame  # TARGET_COLUMNS, a row per cell and target
    crossings: pd.DataFrame  # CROSSING_COLUMNS, a row per run and target; lower bounds where it was not reached
    doubts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """Where one run met a target, or (`reached` false) how far it came without meeting it."""

    reached: bool
    samples: float
    train_s: float
    wall_s: float
    at_first: bool = False  # already at the first evaluation: it was met then or before
    worker_hours: float = math.nan  # workers x wall_s / 3600
    energy_j: float = math.nan  # samples x joules per sample of the timed window


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The evaluations of one run in the order they were made, shape (E,) each, E >= 1."""

    name: str
    workers: float
    energy_per_sample_j: float
    seed: float
    budget: str
    warmup_samples: float
    epoch: Floats
    steps: Floats
    samples: Floats
    train_s: Floats
    wall_s: Floats
    train_mse: Floats
    test_mse: Floats  # inf where the test error was not a number: a run that diverged is worse than any other

    @property
    def best(self) -> int:
        return int(np.argmin(self.test_mse))


@dataclass(frozen=True, kw_only=True, slots=True)
class _CellRuns:
    """The runs of one point and what they have in common."""

    facts: Mapping[str, Any]  # the columns of with_series, and `repeats`
    runs: tuple[_Run, ...]

    @property
    def floor_mse(self) -> float:
        return float(self.facts["floor_mse"])


def convergence(
    runs: pd.DataFrame,
    evaluations: pd.DataFrame | None,
    *,
    targets: Sequence[float] = (),
    baseline: str = "plain",
    finished: bool = True,
) -> Convergence:
    """Return learning curves, best errors and times to target of a run table and its evaluations (`epoch_table`).

    `targets` are test MSEs; without any, three levels between the first and the best MSE common to the cells are
    taken. Speedups are over the one-worker cell that `baseline` (`plain` or `wrapped`) names. With `finished` only
    runs that ended well count. Raises AnalysisError for a target that is not greater than 0.
    """
    for target in targets:
        if not (math.isfinite(target) and target > 0):
            raise AnalysisError(f"target {target}: must be a test MSE greater than 0, for instance 1e-4")
    cells = [] if evaluations is None else _cells(runs, evaluations, finished=finished)
    levels = tuple(sorted({float(target) for target in targets}, reverse=True)) or _default_targets(cells)
    places = [points.baseline_place([each.facts for each in cells], cell.facts, baseline) for cell in cells]
    bases = [None if place is None else cells[place] for place in places]
    rows = [
        _target_row(cell, base, target, baseline) for cell, base in zip(cells, bases, strict=True) for target in levels
    ]
    crossings = [
        {"run": run.name, **_identity(cell), "target_mse": target, **asdict(_crossing(run, target))}
        for cell in cells
        for target in levels
        for run in cell.runs
    ]
    return Convergence(
        curves=_frame([row for cell in cells for row in _curve_rows(cell)], CURVE_COLUMNS),
        learning=_frame([_learning_row(cell) for cell in cells], LEARNING_COLUMNS),
        targets=_frame(rows, TARGET_COLUMNS),
        crossings=_frame(crossings, CROSSING_COLUMNS),
        doubts=tuple(_doubts(cells, rows)),
    )


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    whole = [name for name in ("workers", "nodes", "batch", "global_batch", "train_samples") if name in columns]
    return points.whole_numbers(pd.DataFrame(list(rows), columns=list(columns)), whole)


def _cells(runs: pd.DataFrame, evaluations: pd.DataFrame, *, finished: bool) -> list[_CellRuns]:
    """Return the cells that have evaluations, in the order of the points."""
    table = points.with_series(runs)
    if finished:
        table = table[points.measured(table)]
    table = table.assign(**{name: points.numbers(table, name) for name in ("floor_mse", "energy_per_sample_j")})
    by_run = dict(list(evaluations.groupby("run", sort=False)))
    cells = []
    for rows in points.cells_of(table):
        known = [(row, by_run[row["run"]]) for row in rows.to_dict("records") if row["run"] in by_run]
        if known:
            floors = {row["floor_mse"] for row, _ in known if math.isfinite(row["floor_mse"])}
            first: dict[str, Any] = {f"{name}": value for name, value in known[0][0].items()}
            # Repeats have one test set; where they do not, no floor holds for all of them.
            facts = {**first, "repeats": len(known), "floor_mse": floors.pop() if len(floors) == 1 else math.nan}
            cells.append(_CellRuns(facts=facts, runs=tuple(_run(row, own) for row, own in known)))
    return cells


def _run(row: Mapping[Any, Any], evaluations: pd.DataFrame) -> _Run:
    ordered = evaluations.sort_values("samples", kind="stable")
    values = {
        name: ordered[name].to_numpy(dtype=float)
        for name in ("epoch", "steps", "samples", "train_s", "wall_s", "train_mse", "test_mse")
    }
    values["test_mse"] = np.where(np.isfinite(values["test_mse"]), values["test_mse"], np.inf)
    # The seconds of an evaluation count from the declared warm-up, wherever the steady state begins.
    excluded = row.get("warmup_steps", row.get("excluded_steps", math.nan))
    seed = row.get("seed")
    return _Run(
        name=f"{row['run']}",
        workers=float(row["workers"]),
        energy_per_sample_j=float(row["energy_per_sample_j"]),
        seed=math.nan if seed is None else float(seed),
        budget=f"{row.get('budget', '')}",
        warmup_samples=float(excluded) * float(row["global_batch"]),
        **values,
    )


def _identity(cell: _CellRuns) -> dict[str, Any]:
    return {name: cell.facts[name] for name in _IDENTITY} | {"repeats": len(cell.runs)}


def _curve_rows(cell: _CellRuns) -> list[dict[str, Any]]:
    """Return medians over the repeats that were evaluated after equally many samples."""
    rows = []
    for count in sorted({float(each) for run in cell.runs for each in run.samples}):
        there = [(run, int(np.flatnonzero(run.samples == count)[-1])) for run in cell.runs if count in run.samples]

        middle = {
            name: float(np.median([getattr(run, name)[place] for run, place in there]))
            for name in ("epoch", "steps", "train_s", "wall_s", "train_mse", "test_mse")
        }
        tests = [float(run.test_mse[place]) for run, place in there]
        rows.append(
            {
                **_identity(cell),
                "samples": int(count),
                "evaluations": len(there),
                "epoch": middle["epoch"],
                "steps": middle["steps"],
                **{f"{name}_median": middle[name] for name in ("train_s", "wall_s")},
                **{f"{name}_median": _finite(middle[name]) for name in ("train_mse", "test_mse")},
                "test_mse_min": _finite(min(tests)),
                "test_mse_max": _finite(max(tests)),
                "floor_mse": cell.floor_mse,
                "efficiency": cell.floor_mse / _finite(middle["test_mse"]),
            }
        )
    return rows


def _learning_row(cell: _CellRuns) -> dict[str, Any]:
    by_best = sorted(cell.runs, key=lambda run: (run.test_mse[run.best], run.train_s[run.best]))
    run = by_best[len(by_best) // 2]
    bests = [each.test_mse[each.best] for each in by_best]
    finals = sorted(each.test_mse[-1] for each in cell.runs)
    best, place = _finite(run.test_mse[run.best]), run.best
    known = math.isfinite(best)
    rate, low, high, method = _rate([each for each in by_best if math.isfinite(each.test_mse[-1])], run)
    return {
        **_identity(cell),
        **{name: cell.facts[name] for name in ("precision", *points.CHOICES, "train_samples", "mode")},
        "diverged": sum(not math.isfinite(value) for value in finals),
        "evaluations": int(np.median([len(each.samples) for each in cell.runs])),
        "best_mse_median": best,
        "best_mse_min": _finite(bests[0]),
        "best_mse_max": _finite(bests[-1]),
        **{
            f"best_{name}": float(getattr(run, name)[place]) if known else math.nan
            for name in ("epoch", "samples", "train_s", "wall_s")
        },
        "final_mse_median": _finite(finals[len(finals) // 2]),
        "floor_mse": cell.floor_mse,
        "efficiency": cell.floor_mse / best,
        "rate": rate,
        "rate_low": low,
        "rate_high": high,
        "rate_interval": method,
    }


def _rate(runs: Sequence[_Run], median_run: _Run) -> tuple[float, float, float, str]:
    """Return the rate of convergence, its 95 % interval and where that comes from (repeats, regression, nowhere)."""
    slopes = [slope for slope in (convergence_rate(run.samples, run.test_mse)[0] for run in runs) if slope == slope]
    if len(slopes) >= stats.MIN_REPEATS:
        middle = float(np.median(slopes))
        error = math.sqrt(stats.MEDIAN_VARIANCE * float(np.var(slopes, ddof=1)) / len(slopes))
        found = stats.around(middle, error, len(slopes) - 1.0)
        return middle, found.low, found.high, "repeats"
    rate, half = convergence_rate(median_run.samples, median_run.test_mse)
    if math.isnan(half):
        return rate, math.nan, math.nan, ""
    return rate, rate - half, rate + half, "regression"


def convergence_rate(samples: Floats, test_mse: Floats) -> tuple[float, float]:
    """Return r of `test_mse ~ samples^-r` by least squares on logarithms, and the half-width of its 95 % interval.

    NaN with fewer than three evaluations. The interval takes scatter around the line as independent.
    """
    good = np.isfinite(test_mse) & (test_mse > 0) & (samples > 0)
    if good.sum() < 3:
        return math.nan, math.nan
    x, y = np.log(samples[good]), np.log(test_mse[good])
    x = x - x.mean()
    squares = float((x**2).sum())
    if squares == 0.0:
        return math.nan, math.nan
    slope = float((x * (y - y.mean())).sum()) / squares
    rest = y - y.mean() - slope * x
    freedom = len(x) - 2
    error = math.sqrt(float((rest**2).sum()) / freedom / squares)
    return -slope, stats.half_width(error, float(freedom))


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.nan


def crossing(samples: Floats, train_s: Floats, wall_s: Floats, test_mse: Floats, target: float) -> Crossing:
    """Return where the test MSE first is at most `target`; all arrays have shape (E,), in the order of evaluation.

    Between the evaluation that meets the target and the one before, ln MSE is taken as linear in the samples, and
    seconds as linear in them too. Without an evaluation before, or with one that was not a number, the evaluation
    itself counts. A target that was not met leaves what was trained until the last evaluation, as a lower bound.
    """
    met = np.flatnonzero(test_mse <= target)
    if not len(met):
        return Crossing(reached=False, samples=float(samples[-1]), train_s=float(train_s[-1]), wall_s=float(wall_s[-1]))
    place = int(met[0])
    before = place - 1
    part = 1.0
    if place > 0 and math.isfinite(test_mse[before]) and test_mse[place] > 0:
        high, low = math.log(test_mse[before]), math.log(test_mse[place])
        part = (high - math.log(target)) / (high - low)

    def at(values: Floats) -> float:
        if part == 1.0:
            return float(values[place])
        return float(values[before] + part * (values[place] - values[before]))

    return Crossing(reached=True, samples=at(samples), train_s=at(train_s), wall_s=at(wall_s), at_first=place == 0)


def _default_targets(cells: Sequence[_CellRuns]) -> tuple[float, ...]:
    """Return three test MSEs, equally far apart in logarithm, from below the first of every cell to the best common.

    Where that range is narrow or empty, as with a learning rate at which hardly anything is learned, the best of the
    middle cell ends it and some cells do not reach all targets. Rounded up to two digits; empty where there is no
    range, as with one evaluation per run.
    """
    firsts = sorted(_middle(run.test_mse[0] for run in cell.runs) for cell in cells)
    bests = sorted(_middle(run.test_mse[run.best] for run in cell.runs) for cell in cells)
    bests = [best for best in bests if 0 < best < math.inf]
    if not bests:
        return ()
    middle = bests[len(bests) // 2]
    # by a factor of three where it can be
    for low, narrowest in ((bests[-1], 1 / 3), (middle, 1 / 3), (bests[-1], 0.9), (middle, 0.9)):
        if low < narrowest * firsts[0]:
            top = min(firsts[0], 1e3 * low) if math.isfinite(firsts[0]) else 10 * low
            levels = {_rounded_up(low * (top / low) ** (step / 3)) for step in range(3)}
            return tuple(sorted((level for level in levels if level < firsts[0]), reverse=True))
    return ()


def _middle(values: Any) -> float:
    """Return the middle of some values, of an even number the larger."""
    ordered = sorted(float(value) for value in values)
    return ordered[len(ordered) // 2]


def _rounded_up(value: float) -> float:
    """Return the smallest number with two significant digits that is not below `value`."""
    place = math.floor(math.log10(value)) - 1
    digits = math.ceil(value / 10**place - 1e-9)
    return float(f"{digits}e{place}")


def _median_run(met: Sequence[Crossing]) -> Crossing | None:
    """Return the run in the middle of the times to target; None where unreached repeats leave it open.

    An unreached repeat would have met the target at some time after its bound: the middle is known only if it is the
    same run, and one that met the target, wherever those times lie.
    """
    soonest = sorted(met, key=lambda run: (run.train_s, run.samples))[len(met) // 2]
    latest = sorted(met, key=lambda run: (not run.reached, run.train_s, run.samples))[len(met) // 2]
    return latest if soonest is latest and latest.reached else None


def _at_least(met: Sequence[Crossing], name: str) -> float:
    """Return what the middle of a quantity over the repeats cannot be below."""
    values = [getattr(run, name) for run in met]
    return math.nan if any(math.isnan(value) for value in values) else _middle(values)


def _crossing(run: _Run, target: float) -> Crossing:
    found = crossing(run.samples, run.train_s, run.wall_s, run.test_mse, target)
    energy_j = found.samples * run.energy_per_sample_j
    return replace(found, worker_hours=run.workers * found.wall_s / 3600, energy_j=energy_j)


def _target_row(cell: _CellRuns, base: _CellRuns | None, target: float, baseline: str) -> dict[str, Any]:
    met = [_crossing(run, target) for run in cell.runs]
    of_base = None if base is None else [_crossing(run, target) for run in base.runs]
    own, reached = _median_run(met), [run for run in met if run.reached]
    row: dict[str, Any] = {
        **_identity(cell),
        "target_mse": target,
        "reached": len(reached),
        "censored": own is None,
        "train_s_min": min((run.train_s for run in reached), default=math.nan),
        "train_s_max": max(run.train_s for run in reached) if len(reached) == len(met) else math.nan,
        "base": "" if base is None else baseline,
        "base_series": "" if base is None else base.facts["series"],
        "note": "",
    }
    if own is not None and own.at_first:
        row["note"] = "met at the first evaluation: reached at this time or earlier"
    for name in ("train_s", "wall_s", "samples", "worker_hours", "energy_j"):
        row[name] = math.nan if own is None else getattr(own, name)
        row[f"{name}_at_least"] = _at_least(met, name) if own is None else math.nan
    row["samples_per_s"] = _over(row["samples"], row["train_s"])
    row["overhead"] = _over(row["wall_s"], row["train_s"])
    row["outside_s"] = row["wall_s"] - row["train_s"]
    return row | _split(met, of_base, itself=base is cell)


def _split(met: Sequence[Crossing], base: Sequence[Crossing] | None, *, itself: bool) -> dict[str, float]:
    """Return what is known relative to the baseline: speedup = throughput ratio x statistical efficiency."""
    row: dict[str, float] = {}
    if base is None:
        return row
    own, first = _median_run(met), _median_run(base)
    if first is not None:
        row |= {"base_train_s": first.train_s, "base_samples": first.samples}
    if own is not None and first is not None:
        row["statistical_efficiency"] = _over(first.samples, own.samples)
        row["throughput_ratio"] = _over(_over(own.samples, own.train_s), _over(first.samples, first.train_s))
        row["speedup"] = _over(first.train_s, own.train_s)
        row["same_samples_s"] = _over(first.samples, _over(own.samples, own.train_s))
        row["more_samples_s"] = own.train_s - row["same_samples_s"]
        row["overhead_ratio"] = _over(_over(first.wall_s, first.train_s), _over(own.wall_s, own.train_s))
        row["speedup_wall"] = _over(first.wall_s, own.wall_s)
        if itself:
            row |= {"speedup_low": 1.0, "speedup_high": 1.0}
        elif all(run.reached and run.train_s > 0 for run in (*met, *base)):
            speedup = stats.median_ratio([run.train_s for run in base], [run.train_s for run in met])
            row |= {"speedup_low": speedup.low, "speedup_high": speedup.high}
    elif first is not None:
        row["speedup_at_most"] = _over(first.train_s, _at_least(met, "train_s"))
    elif own is not None:
        row["speedup_at_least"] = _over(_at_least(base, "train_s"), own.train_s)
    return row


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def _doubts(cells: Sequence[_CellRuns], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the limitations of the convergence, in a stable order."""
    kinds = (_doubt_floor, _doubt_divergence, _doubt_budgets)
    of_cells = [text for doubt in kinds for cell in cells for text in doubt(cell)]
    return [*of_cells, *_doubt_seeds(cells), *_doubt_warmup(cells, rows)]


def _place(cell: _CellRuns) -> str:
    return f"{cell.facts['series']} at {points.worker_counts([cell.facts['workers']])}"


def _places(cells: Sequence[_CellRuns]) -> str:
    """Return 'SERIES at 1 and 2 workers; SERIES at 4 workers'."""
    workers: dict[str, list[float]] = {}
    for cell in cells:
        workers.setdefault(f"{cell.facts['series']}", []).append(float(cell.facts["workers"]))
    return "; ".join(f"{series} at {points.worker_counts(counts)}" for series, counts in workers.items())


def _doubt_floor(cell: _CellRuns) -> Iterator[str]:
    lowest = min(float(run.test_mse[run.best]) for run in cell.runs)
    if lowest < _BELOW_FLOOR * cell.floor_mse:
        yield (
            f"{_place(cell)}: a test MSE of {lowest:.3g} is below {_BELOW_FLOOR:g} of the statistical floor of the "
            f"test set, {cell.floor_mse:.3g}. No estimator gets there by learning: test curves have been trained on, "
            "or the error or the floor is computed wrongly. This is a bug; do not use these runs."
        )


def _doubt_divergence(cell: _CellRuns) -> Iterator[str]:
    lost = sum(not math.isfinite(run.test_mse[-1]) for run in cell.runs)
    if lost:
        yield (
            f"{_place(cell)}: {lost} of {len(cell.runs)} run{'s' if len(cell.runs) > 1 else ''} ended with a test MSE "
            "that is not a number: the training diverged. It counts as never meeting a target; a lower learning rate "
            "or a warm-up is the usual remedy."
        )


def _doubt_budgets(cell: _CellRuns) -> Iterator[str]:
    budgets = sorted({run.budget for run in cell.runs})
    if len(budgets) > 1 and cell.facts["schedule"] != "constant":
        yield (
            f"{_place(cell)}: runs of {' and '.join(budgets)} count as repeats, but the learning rate of a "
            f"{cell.facts['schedule']} schedule depends on the length of the run; analyse them separately."
        )


def _doubt_seeds(cells: Sequence[_CellRuns]) -> list[str]:
    """Repeats of one seed learn the same, which no interval over repeats would show."""
    same = [cell for cell in cells if len(cell.runs) > 1 and len({run.seed for run in cell.runs} - {math.nan}) == 1]
    same = [cell for cell in same if not any(math.isnan(run.seed) for run in cell.runs)]
    if not same:
        return []
    return [
        f"All repeats have one seed, so they learn the same and do not show how much the test MSE scatters: "
        f"{_places(same)}. Give each repeat a seed of its own."
    ]


def _doubt_warmup(cells: Sequence[_CellRuns], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Seconds count from the opening of the timed window, samples from the first step: a long warm-up blurs the two."""
    key = ("series", "workers", "nodes")
    needed: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["samples"] > 0:
            place = tuple(row[name] for name in key)
            needed[place] = max(needed.get(place, 0.0), row["samples"])
    found, largest = [], 0.0
    for cell in cells:
        samples = needed.get(tuple(cell.facts[name] for name in key), math.inf)
        share = max(run.warmup_samples for run in cell.runs) / samples
        if share > 0.05:
            found.append(cell)
            largest = max(largest, share)
    if not found:
        return []
    return [
        f"Up to {100 * largest:.0f} % of the samples to the hardest target met were trained in the warm-up, which the "
        f"seconds of the timed window leave out: {_places(found)}. Set warmup_steps: 0 to compare times to target."
    ]
