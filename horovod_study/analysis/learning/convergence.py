"""Convergence as a result: what the test error did against epochs, samples and seconds, and how soon a target was met.

A cell is what its repeats say together, as in `points`. Where one run has to stand for a cell, that is its *median
run* - the one in the middle of the repeats ordered by the quantity in question, of an even number the slower or worse
- so that no row combines columns of runs that did not happen together. docs/metrics.md defines every quantity.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series import points
from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError
from horovod_study.text.words import plural

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


_EVALUATED = ("epoch", "steps", "samples", "train_s", "wall_s", "train_mse", "test_mse")
_NEEDED = ("train_s", "wall_s", "samples", "worker_hours", "energy_j")

_Run = Mapping[Any, Any]
"""The row of a run with its evaluations in the order they were made, each of _EVALUATED of shape (E,), E >= 1. A test
error that is no number is infinite: a run that diverged is worse than any other."""


_Cell = Mapping[str, Any]
"""What the runs of one point have in common (the columns of with_series, `repeats`, `floor_mse`), and the `runs`."""


def convergence(
    runs: pd.DataFrame,
    evaluations: pd.DataFrame | None,
    *,
    targets: Sequence[float] = (),
    baseline: str = "plain",
    finished: bool = True,
) -> SimpleNamespace:
    """Return learning curves, best errors and times to target of a run table and its evaluations (`epoch_table`).

    curves (CURVE_COLUMNS, a row per cell and place of evaluation), learning (LEARNING_COLUMNS, a row per cell), targets
    (TARGET_COLUMNS, a row per cell and target), crossings (CROSSING_COLUMNS, a row per run and target; lower bounds
    where it was not reached), doubts.
    `targets` are test MSEs; without any, three levels between the first and the best MSE common to the cells are
    taken. Speedups are over the one-worker cell that `baseline` (`plain` or `wrapped`) names. With `finished` only
    runs that ended well count. Raises AnalysisError for a target that is not greater than 0.
    """
    for target in targets:
        if not (math.isfinite(target) and target > 0):
            raise AnalysisError(f"target {target}: must be a test MSE greater than 0, for instance 1e-4")
    cells = [] if evaluations is None else list(_cells(runs, evaluations, finished=finished))
    levels = sorted({float(target) for target in targets}, reverse=True) or _default_targets(cells)
    met = [[[crossing(run, target) for run in cell["runs"]] for target in levels] for cell in cells]
    rows, crossings = [], []
    for cell, own in zip(cells, met, strict=True):
        base, identity = points.baseline_place(cells, cell, baseline), {name: cell[name] for name in _IDENTITY}
        named = {"base": "", "base_series": ""}
        if base is not None:
            named = {"base": baseline, "base_series": cells[base]["series"]}
        for place, target in enumerate(levels):
            shared = {**identity, "target_mse": target}
            row = {**shared, "repeats": cell["repeats"], **named, **_needed(own[place])}
            rows.append(row if base is None else row | _split(own[place], met[base][place]))
            crossings += [
                {"run": run["run"], **shared, **found} for run, found in zip(cell["runs"], own[place], strict=True)
            ]
    learned, curves = [], []
    for cell in cells:
        by_best = sorted(
            cell["runs"], key=lambda run: (run["test_mse"].min(), run["train_s"][run["test_mse"].argmin()])
        )
        run, bests = by_best[len(by_best) // 2], [_finite(each["test_mse"].min()) for each in by_best]
        best, place = bests[len(bests) // 2], int(run["test_mse"].argmin())
        finals = sorted(each["test_mse"][-1] for each in cell["runs"])
        ended = [each for each in by_best if math.isfinite(each["test_mse"][-1])]
        at_best = {name: float(run[name][place]) if math.isfinite(best) else math.nan for name in _EVALUATED}
        told = {**cell, "diverged": len(finals) - len(ended), "efficiency": cell["floor_mse"] / best}
        told["evaluations"] = int(np.median([len(each["samples"]) for each in cell["runs"]]))
        told |= {"best_mse_median": best, "best_mse_min": bests[0], "best_mse_max": bests[-1]}
        told |= {f"best_{name}": value for name, value in at_best.items()}
        told["final_mse_median"] = _finite(finals[len(finals) // 2])
        told |= zip(("rate", "rate_low", "rate_high", "rate_interval"), _rate(ended, run), strict=True)
        learned.append(told)
        # Medians over the repeats that were evaluated after equally many samples.
        table = pd.concat(pd.DataFrame({name: run[name] for name in _EVALUATED}) for run in cell["runs"])
        for _, there in table.groupby("samples", sort=True):
            middle = {name: _finite(np.median(there[name])) for name in _EVALUATED}
            told = {**cell, **middle, **{f"{name}_median": value for name, value in middle.items()}}
            told |= {f"test_mse_{end}": _finite(there["test_mse"].agg(end)) for end in ("min", "max")}
            told |= {"samples": int(there["samples"].iloc[0]), "evaluations": len(there)}
            curves.append({**told, "efficiency": cell["floor_mse"] / middle["test_mse"]})
    return SimpleNamespace(
        curves=_frame(curves, CURVE_COLUMNS),
        learning=_frame(learned, LEARNING_COLUMNS),
        targets=_frame(rows, TARGET_COLUMNS),
        crossings=_frame(crossings, CROSSING_COLUMNS),
        doubts=tuple(_doubts(cells, rows)),
    )


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    whole = [name for name in ("workers", "nodes", "batch", "global_batch", "train_samples") if name in columns]
    return points.whole_numbers(pd.DataFrame(list(rows), columns=list(columns)), whole)


def _cells(runs: pd.DataFrame, evaluations: pd.DataFrame, *, finished: bool) -> Iterator[_Cell]:
    """Yield the cells that have evaluations, in the order of the points."""
    table = points.with_series(runs)
    table = table[points.measured(table)] if finished else table
    numbers = ("floor_mse", "energy_per_sample_j", "seed")
    table = table.assign(**{name: points.numbers(table, name) for name in numbers})
    # The seconds of an evaluation count from the declared warm-up, wherever the steady state begins.
    excluded = next((name for name in ("warmup_steps", "excluded_steps") if name in table), "")
    table = table.assign(warmup_samples=points.numbers(table, excluded) * points.numbers(table, "global_batch"))
    by_run = dict(list(evaluations.sort_values("samples", kind="stable").groupby("run", sort=False)))
    for rows in points.rows_by(table):
        known = [row for row in rows if row["run"] in by_run]
        if not known:
            continue
        floors = {row["floor_mse"] for row in known if math.isfinite(row["floor_mse"])}
        # Repeats have one test set; where they do not, no floor holds for all of them.
        floor = floors.pop() if len(floors) == 1 else math.nan
        own = [row | {name: by_run[row["run"]][name].to_numpy(dtype=float) for name in _EVALUATED} for row in known]
        for run in own:
            run["test_mse"] = np.where(np.isfinite(run["test_mse"]), run["test_mse"], np.inf)
        facts = {f"{name}": value for name, value in known[0].items()}
        yield {**facts, "repeats": len(known), "floor_mse": floor, "runs": own}


def _rate(runs: Sequence[_Run], median_run: _Run) -> tuple[float, float, float, str]:
    """Return the rate of convergence, its 95 % interval and where that comes from (repeats, regression, nowhere)."""
    rates = [convergence_rate(run["samples"], run["test_mse"])[0] for run in runs]
    slopes = [rate for rate in rates if not math.isnan(rate)]
    if len(slopes) >= stats.MIN_REPEATS:
        error = math.sqrt(stats.MEDIAN_VARIANCE * float(np.var(slopes, ddof=1)) / len(slopes))
        found = stats.around(float(np.median(slopes)), error, len(slopes) - 1.0)
        return found.value, found.low, found.high, "repeats"
    rate, half = convergence_rate(median_run["samples"], median_run["test_mse"])
    return rate, rate - half, rate + half, "" if math.isnan(half) else "regression"


def convergence_rate(samples: Floats, test_mse: Floats) -> tuple[float, float]:
    """Return r of `test_mse ~ samples^-r` by least squares on logarithms, and the half-width of its 95 % interval.

    NaN with fewer than three evaluations. The interval takes scatter around the line as independent.
    """
    good = np.isfinite(test_mse) & (test_mse > 0) & (samples > 0)
    x, y = np.log(samples[good]), np.log(test_mse[good])
    if len(x) < 3 or np.ptp(x) == 0.0:
        return math.nan, math.nan
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    return -float(slope), stats.half_width(math.sqrt(covariance[0, 0]), float(len(x) - 2))


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.nan


def crossing(run: _Run, target: float) -> dict[str, Any]:
    """Return what a run had needed where its test MSE first is at most `target`: samples, seconds, hours, joules.

    Between the evaluation that meets the target and the one before, ln MSE is taken as linear in the samples, and
    seconds as linear in them too. Without an evaluation before, or with one that was not a number, the evaluation
    itself counts. A target that was not met (`reached` false) leaves what was trained until the last evaluation, as a
    lower bound; one met at the first evaluation (`at_first`) was met then or before.
    """
    test_mse = run["test_mse"]
    met = np.flatnonzero(test_mse <= target)
    place, part = (int(met[0]) if len(met) else -1), 1.0
    if place > 0 and math.isfinite(test_mse[place - 1]) and test_mse[place] > 0:
        high, low = math.log(test_mse[place - 1]), math.log(test_mse[place])
        part = (high - math.log(target)) / (high - low)
    found: dict[str, Any] = {"reached": place >= 0, "at_first": place == 0}
    for name in ("samples", "train_s", "wall_s"):
        start, end = float(run[name][place - 1 if part < 1.0 else place]), float(run[name][place])
        found[name] = end if part == 1.0 else start + part * (end - start)
    hours, energy_j = run["workers"] * found["wall_s"] / 3600, found["samples"] * run["energy_per_sample_j"]
    return found | {"worker_hours": hours, "energy_j": energy_j}


def _default_targets(cells: Sequence[_Cell]) -> list[float]:
    """Return three test MSEs, equally far apart in logarithm, from below the first of every cell to the best common.

    Where that range is narrow or empty, as with a learning rate at which hardly anything is learned, the best of the
    middle cell ends it and some cells do not reach all targets. Rounded up to two digits; empty where there is no
    range, as with one evaluation per run.
    """
    firsts = sorted(_middle(run["test_mse"][0] for run in cell["runs"]) for cell in cells)
    bests = sorted(_middle(run["test_mse"].min() for run in cell["runs"]) for cell in cells)
    bests = [best for best in bests if 0 < best < math.inf]
    middle = bests[len(bests) // 2 :][:1]
    # by a factor of three where it can be
    for narrowest in (1 / 3, 0.9):
        for low in (*bests[-1:], *middle):
            if low < narrowest * firsts[0]:
                top = min(firsts[0], 1e3 * low) if math.isfinite(firsts[0]) else 10 * low
                levels = set()
                for value in (low * (top / low) ** (step / 3) for step in range(3)):
                    place = math.floor(math.log10(value)) - 1
                    levels.add(float(f"{math.ceil(value / 10**place - 1e-9)}e{place}"))
                return sorted((level for level in levels if level < firsts[0]), reverse=True)
    return []


def _middle(values: Any) -> float:
    """Return the middle of some values, of an even number the larger; NaN where one is unknown."""
    ordered = sorted(float(value) for value in values)
    return math.nan if any(map(math.isnan, ordered)) else ordered[len(ordered) // 2]


def _median_run(met: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the run in the middle of the times to target; None where unreached repeats leave it open.

    An unreached repeat would have met the target at some time after its bound: the middle is known only if it is the
    same run, and one that met the target, wherever those times lie.
    """
    soonest = sorted(met, key=lambda run: (run["train_s"], run["samples"]))[len(met) // 2]
    latest = sorted(met, key=lambda run: (not run["reached"], run["train_s"], run["samples"]))[len(met) // 2]
    return latest if soonest is latest and latest["reached"] else None


def _needed(met: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the median run needed to a target; `_at_least` what it cannot be below where that is not known."""
    own, times = _median_run(met), [run["train_s"] for run in met if run["reached"]]
    row = {name: math.nan if own is None else own[name] for name in _NEEDED}
    bounds = {f"{name}_at_least": _middle(run[name] for run in met) for name in _NEEDED} if own is None else {}
    first = own is not None and own["at_first"]
    told = {**row, **bounds, "reached": len(times), "censored": own is None}
    told |= {"outside_s": row["wall_s"] - row["train_s"], "train_s_min": min(times, default=math.nan)}
    told["train_s_max"] = max(times) if len(times) == len(met) else math.nan
    told |= {"samples_per_s": _over(row["samples"], row["train_s"]), "overhead": _over(row["wall_s"], row["train_s"])}
    return told | {"note": "met at the first evaluation: reached at this time or earlier" if first else ""}


def _split(met: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what is known relative to the baseline: speedup = throughput ratio x statistical efficiency."""
    own, first = _median_run(met), _median_run(base)
    if first is None:
        bound = _middle(run["train_s"] for run in base)
        return {} if own is None else {"speedup_at_least": _over(bound, own["train_s"])}
    row = {"base_train_s": first["train_s"], "base_samples": first["samples"]}
    if own is None:
        return row | {"speedup_at_most": _over(first["train_s"], _middle(run["train_s"] for run in met))}
    rate = _over(own["samples"], own["train_s"])
    same = _over(first["samples"], rate)
    ratios = {"statistical_efficiency": "samples", "speedup": "train_s", "speedup_wall": "wall_s"}
    row |= {name: _over(first[of], own[of]) for name, of in ratios.items()}
    row["throughput_ratio"] = _over(rate, _over(first["samples"], first["train_s"]))
    row["overhead_ratio"] = _over(_over(first["wall_s"], first["train_s"]), _over(own["wall_s"], own["train_s"]))
    row |= {"same_samples_s": same, "more_samples_s": own["train_s"] - same}
    ends = (math.nan, math.nan)
    if base is met:
        ends = (1.0, 1.0)
    elif all(run["reached"] and run["train_s"] > 0 for run in (*met, *base)):
        speedup = stats.median_ratio([run["train_s"] for run in base], [run["train_s"] for run in met])
        ends = (speedup.low, speedup.high)
    return row | {"speedup_low": ends[0], "speedup_high": ends[1]}


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def _doubts(cells: Sequence[_Cell], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the limitations of the convergence, cell by cell, as `rows`, of the targets, are; then those of several."""
    alike, blurred, largest = list[_Cell](), list[_Cell](), 0.0
    levels = len(rows) // max(1, len(cells))
    for at, cell in enumerate(cells):
        place, seeds = _places([cell]), {run["seed"] for run in cell["runs"]}
        budgets = sorted({f"{run.get('budget', '')}" for run in cell["runs"]})
        lowest, floor = min(float(run["test_mse"].min()) for run in cell["runs"]), cell["floor_mse"]
        lost = sum(not math.isfinite(run["test_mse"][-1]) for run in cell["runs"])
        needed = [row["samples"] for row in rows[at * levels : (at + 1) * levels] if row["samples"] > 0]
        share = max(run["warmup_samples"] for run in cell["runs"]) / max(needed, default=math.inf)
        if lowest < _BELOW_FLOOR * floor:
            yield (
                f"{place}: a test MSE of {lowest:.3g} is below {_BELOW_FLOOR:g} of the statistical floor of the test "
                f"set, {floor:.3g}: test curves have been trained on, or one of both is wrong; do not use these runs."
            )
        if lost:
            yield (
                f"{place}: {lost} of {plural(len(cell['runs']), 'run')} ended with a test MSE that is not a number: "
                "the training diverged, and meets no target; a lower learning rate or a warm-up is the usual remedy."
            )
        if len(budgets) > 1 and cell["schedule"] != "constant":
            yield (
                f"{place}: runs of {' and '.join(budgets)} count as repeats, but the learning rate of a "
                f"{cell['schedule']} schedule depends on the length of the run; analyse them separately."
            )
        alike += [cell] * (len(cell["runs"]) > 1 and len(seeds) == 1 and not math.isnan(min(seeds)))
        if share > 0.05:
            blurred, largest = [*blurred, cell], max(largest, share)
    if alike:  # which no interval over repeats would show
        yield (
            "All repeats have one seed, so they learn the same and do not show how much the test MSE scatters: "
            f"{_places(alike)}. Give each repeat a seed of its own."
        )
    if blurred:
        yield (
            f"Up to {100 * largest:.0f} % of the samples to the hardest target met were trained in the warm-up, which "
            f"the seconds of the timed window leave out: {_places(blurred)}. Set warmup_steps: 0 to compare times to "
            "target."
        )


def _places(cells: Sequence[_Cell]) -> str:
    """Return 'SERIES at 1 and 2 workers; SERIES at 4 workers'."""
    workers: dict[str, list[float]] = {}
    for cell in cells:
        workers.setdefault(cell["series"], []).append(float(cell["workers"]))
    return "; ".join(f"{series} at {points.worker_counts(counts)}" for series, counts in workers.items())


# ----------------------------------------------------------------------------------- the range test of learning rates

RANGE_STEPS = 50
UNSTEADY = 2.0  # unsteady: more than this many times; and a loss that comes back below that has not diverged yet
_DESCENDED = 0.9  # descended: the smoothed loss has come below this part of the first
_MARGIN = 10.0


class RangeTest(SimpleNamespace):
    """What a range test says; rates are values of the option `lr`, None where there is none.

    course: low, high and the number of steps between. rates, losses, smooth (S,): smooth is a running median over
    `window` steps, inf where the loss was no number. lowest_rate, lowest_loss: at the smallest smoothed loss.
    steepest_rate, and slope, d ln(loss) / d ln(rate) there. diverged_rate, careful_rate: a tenth of it. suggested, with
    its reason; doubts.
    """

    DOCUMENT = (
        "suggested reason steepest_rate slope diverged_rate tenth_of_diverged_rate=careful_rate lowest_rate "
        "lowest_loss *course window doubts"
    )

    def lines(self) -> list[str]:
        """Return the result in words."""
        lines = [f"smallest loss {self.lowest_loss:.3g} at lr {self.lowest_rate:.2g}"]
        if self.slope is not None:
            fall = f"{100 * (1 - 10.0 ** (self.slope * 0.1)):.0f} % for every 26 % that the rate rises"
            lines.insert(0, f"steepest descent at lr {self.steepest_rate:.2g}: there the loss falls by {fall}")
        if self.diverged_rate is not None:
            words = "beyond which the loss stays above twice its smallest value; a tenth of it is"
            lines.append(f"divergence at lr {self.diverged_rate:.2g}, {words} {self.careful_rate:.2g}")
        return [*lines, f"suggested: {self.reason}", *(f"doubt: {doubt}" for doubt in self.doubts)]


def smoothed(losses: Floats, window: int) -> Floats:
    """Return the running median of the losses (S,) over `window` steps, an odd number.

        smooth[k] = median(losses[k-h : k+h+1]),  h = min(window // 2, k, S-1-k)

    Centred, so that it lags nowhere, and deaf to single outliers; a loss that is no number is infinitely large.
    """
    known = np.where(np.isfinite(losses), losses, np.inf)
    halves = [min(window // 2, k, len(known) - 1 - k) for k in range(len(known))]
    return np.array([float(np.median(known[k - h : k + h + 1])) for k, h in enumerate(halves)])


def find_rate(rates: Floats, losses: Floats) -> RangeTest:
    """Read learning rates off a range test: rates (S,), rising, and the training loss (S,) of each step.

    With s = smoothed(losses), over an odd window of about S/50 steps:

        smallest loss     m = min(s)
        divergence        if s is more than 4 m, or no number, at some rate beyond that of m: the first step after
                          which s never comes back below 2 m, because a single upset that is overcome says little
        steepest descent  before the smallest loss, the rate in the middle of the half decade in which the
                          least-squares line through (ln rate, ln s) falls most

    A tenth of the divergence is suggested, or the rate of the smallest loss where that is lower; without a divergence
    the steepest descent. AnalysisError: fewer than 50 steps, or rates that do not rise.
    """
    rates, losses = np.asarray(rates, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    window, why = max(5, len(rates) // 50 | 1), ""
    if rates.shape != losses.shape or rates.ndim != 1 or len(rates) < RANGE_STEPS:
        why = f"{len(losses)} losses at {len(rates)} rates; at least {RANGE_STEPS} steps are needed, give more --steps"
    elif not (rates[0] > 0 and np.all(np.diff(rates) > 0)):
        why = "the rates do not rise from step to step; record it with schedule range"
    elif not np.isfinite((smooth := smoothed(losses, window))[0]):
        why = f"the loss is not a number from the start, at rate {rates[0]:.2g}; lower --low, or check the data"
    if why:
        raise AnalysisError(f"range test: {why}")
    lowest, diverged_rate = int(np.argmin(smooth)), None
    if smooth[lowest:].max() > 4.0 * smooth[lowest]:  # the limit of fastai's range test
        after = int(np.flatnonzero(smooth <= UNSTEADY * smooth[lowest])[-1]) + 1
        diverged_rate = float(rates[after]) if after < len(smooth) else None
    descended = bool(smooth[lowest] < _DESCENDED * smooth[window // 2])
    steepest, slope = _steepest(rates[: lowest + 1], smooth[: lowest + 1]) if descended else (None, None)
    careful = None if diverged_rate is None else diverged_rate / _MARGIN
    lowest_rate = float(rates[lowest])
    suggested, reason = None, "none; the loss never fell, so there is nothing to read"
    if descended and careful is not None:
        suggested, reason = careful, "a tenth of the rate at which the loss diverges"
        if careful > lowest_rate:
            suggested, reason = lowest_rate, "the rate of the smallest loss, as a tenth of the divergence is beyond it"
    elif descended:
        suggested, reason = steepest, "the steepest descent, as the loss never diverged"
        if steepest is None:
            reason = "none; the loss fell too briefly to say where"
    found = RangeTest(rates=rates, losses=losses, smooth=smooth, window=window, slope=slope, careful_rate=careful)
    found.course = {"low": float(rates[0]), "high": float(rates[-1]), "steps": len(rates)}
    found.lowest_rate, found.lowest_loss = lowest_rate, float(smooth[lowest])
    found.steepest_rate, found.diverged_rate, found.suggested = steepest, diverged_rate, suggested
    found.reason = reason if suggested is None else f"lr {suggested:.2g}, {reason}"
    found.doubts = tuple(_range_doubts(rates, smooth, (steepest, diverged_rate, suggested), descended))
    return found


def _steepest(rates: Floats, smooth: Floats) -> tuple[float | None, float | None]:
    """Return the rate of steepest descent and the slope d ln(loss) / d ln(rate) there; None where there is none."""
    x, y = np.log(rates), np.log(smooth)
    per_step = (x[-1] - x[0]) / max(1, len(x) - 1)
    half = min(int(0.5 / 2 * np.log(10) / per_step) if per_step else 0, (len(x) - 1) // 2)
    if half < 1:
        return None, None
    stretches = (np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1) for values in (x, y))  # (centres, W)
    dx, dy = (each - each.mean(axis=1, keepdims=True) for each in stretches)
    slopes = (dx * dy).sum(axis=1) / (dx * dx).sum(axis=1)
    best = int(np.argmin(slopes))
    return (float(rates[half + best]), float(slopes[best])) if slopes[best] < 0 else (None, None)


def _range_doubts(rates: Floats, smooth: Floats, read: Sequence[float | None], descended: bool) -> Iterator[str]:
    """Yield the doubts about the steepest rate, that of the divergence and the suggested one, which are `read`."""
    steepest, diverged, suggested = read
    early = diverged is not None and diverged < rates[math.ceil(len(rates) / 4)]
    if diverged is None:
        yield f"the loss never diverged up to rate {rates[-1]:.2g}: rates beyond may be better; raise --high to see"
    if not descended:
        few = "the steps are too few or the rates too small; give more --steps or raise --high"
        why = "the first rate is too large already; lower --low" if early else few
        yield f"the loss never fell below {100 * _DESCENDED:.0f} % of its start: {why}"
    elif early:
        yield "the loss diverged in the first quarter of the test, before it could fall far; lower --low"
    if steepest is not None and steepest < rates[len(rates) // 5]:
        yield "the steepest descent is in the first fifth of the test, where only the mean is learned; do not trust it"
    elif steepest is not None and diverged is not None:
        fold = max(_MARGIN * steepest / diverged, diverged / _MARGIN / steepest)
        if fold > _MARGIN:
            yield f"the two rules differ {fold:.0f}-fold; try rates between them, as horovod-study strain search does"
    # The steps after the first whose smoothed loss is more than twice the smallest before them.
    unsteady = rates[1:][smooth[1:] > UNSTEADY * np.minimum.accumulate(smooth)[:-1]]
    if suggested is not None and len(unsteady) and unsteady[0] < suggested:
        rose = f"the loss rose to more than {UNSTEADY:g} times its smallest value already at rate {unsteady[0]:.2g}"
        yield f"{rose}, below the suggested one; smaller rates are safer"
    decades = float(np.log10(rates[-1] / rates[0]))
    if len(rates) < 50 * decades:
        few = f"{len(rates)} steps for {decades:.1f} decades are few: the loss has no time to fall at any rate"
        yield f"{few}; give at least {math.ceil(decades) * 100} --steps"
