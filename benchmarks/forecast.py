"""`make bench BENCH=forecast`: forecasts of published scaling data, from the small worker counts only.

benchmarks/published/ holds tables of facts with their sources: throughput against worker counts, cut into tasks of a
few known counts and larger ones to forecast. Every task is given to

    forecast       horovod_study.analysis.forecast.prediction, with everything that the known rows say
    LAW            each law of horovod_study.analysis.laws, fitted to the known rows, whether it applies or not;
                   "LAW, fixed work" is its form for strong scaling, where it has one
    selected       the law that `horovod-study fit` selects
    proportional   the throughput at the largest known count, times the ratio of the counts
    step = a + b x batch
                   a line through the steps of the known batches, where that of the target is told
    Extra-P        its default single-parameter modeler, asked in the way that serves it best

With `--series FILE` the tables are long ones that anybody has, one row a run, and are cut here: the two smallest counts
of each series are known, and the batch of each target is told.

A forecast that is no positive number counts as an error of 100 %. Submitters are kept apart in two halves: with one
the constants of the forecast were chosen, the other is unseen.
"""

import argparse
import hashlib
import importlib.metadata
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from horovod_study.analysis.fit.fitting import fit_series
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.laws import LAWS
from horovod_study.errors import AnalysisError
from horovod_study.measure import environment
from horovod_study.measure.clock import utc_now
from horovod_study.report.kit.files import write_result

HERE = Path(__file__).parent
PUBLISHED = HERE / "published"
SOURCES = "sources.csv"
COLUMNS = (
    "task",
    "role",
    "workers",
    "samples_per_s",
    "nodes",
    "workers_per_node",
    "sync_s",
    "batch_size",
    "repeat",
)
GIVEN = "given"
HALVES = ("unseen", "constants", GIVEN)
"""What a submitter was used for; see published/README.md. "given": in a table named on the command line."""
EACH = "each its own"
"""The submitter of a table that many submitted to: the second word of each series names it."""
BATCH_TOLD = "training, batch told"
KINDS = ("training", "simulation code", BATCH_TOLD)
"""What scaled: deep learning, for which the forecast is made, or a code of another kind. Trainings whose batch per
worker changes with the scale, and is told for the targets, are in no other group: no law knows a batch."""

OURS = "forecast"
STRAIGHT = "step = a + b x batch"
FIXED = ", fixed work"
NO_FORECAST = 1.0
"""The error of an answer that is no positive number: that of answering zero."""

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Some known worker counts of one published series, and the larger ones to forecast."""

    name: str
    source: str
    known: pd.DataFrame
    targets: pd.DataFrame  # one row per worker count

    @property
    def series(self) -> str:
        """What the tasks of one series share: the name without where it was cut."""
        return self.name.rpartition("/")[0]

    @property
    def per_node(self) -> int | None:
        """Workers of a full node, where the source says so."""
        given = self.known["workers_per_node"].dropna()
        return int(given.max()) if len(given) else None


@dataclass(frozen=True, slots=True)
class Guess:
    """What one method says about one target, samples/s; NaN where it gives no interval."""

    task: str
    series: str
    source: str
    method: str
    workers: int
    measured: float
    forecast: float
    low: float = math.nan
    high: float = math.nan


# --- tables -----------------------------------------------------------------------------------------------------------


def read_sources(folder: Path) -> dict[str, dict[str, str]]:
    """Return what sources.csv says of each table: {table: {column: text}}."""
    rows = pd.read_csv(folder / SOURCES, dtype=str, keep_default_na=False).to_dict("records")
    return {str(row["table"]): {str(key): str(value) for key, value in row.items()} for row in rows}


def half(submitter: str) -> str:
    """The half that a submitter is in, with all of its systems: SHA-256 of the name in small letters, even or odd."""
    return HALVES[hashlib.sha256(submitter.lower().encode()).digest()[-1] % 2]


def read_tasks(path: Path) -> list[Task]:
    """Return the tasks of one table, in the order of their names."""
    table = pd.read_csv(path)
    tasks = []
    for name, rows in table.groupby("task", sort=True):
        known = rows[rows["role"] == "known"].drop(columns=["task", "role", "repeat"])
        targets = rows[rows["role"] == "target"].drop(columns=["task", "role", "repeat"])
        tasks.append(
            Task(
                name=str(name),
                source=path.stem,
                known=known.sort_values(["workers", "samples_per_s"], kind="stable", ignore_index=True),
                targets=targets.sort_values("workers", kind="stable", ignore_index=True),
            )
        )
    return tasks


def read_series(path: Path) -> list[Task]:
    """Return the tasks of a long table: one row a run, and a series for each set of values of the other columns.

    Each series of three counts or more is a task that knows the two smallest ones. Runs of one count that differ in
    nodes or batch from most of it are left out. The source is the column `submitter` or `source`, else the file.
    """
    table = pd.read_csv(path)
    missing = [column for column in ("workers", "samples_per_s", "batch_size") if column not in table]
    if missing:
        raise AnalysisError(f"{path}: there is no column {missing[0]!r}, which a table of series needs")
    names = [column for column in table if column not in COLUMNS]
    source = next((column for column in ("submitter", "source") if column in names), None)
    tasks = []
    for name, series in table.groupby(names, sort=True) if names else [((path.stem,), table)]:
        rows = series.reindex(columns=COLUMNS[2:-1])
        rows = pd.concat([_alike(of_count) for _, of_count in rows.groupby("workers", sort=True)])
        counts = sorted(set(rows["workers"]))
        if len(counts) < 3:
            continue
        known = rows["workers"] <= counts[1]
        tasks.append(
            Task(
                name=f"{' '.join(str(part) for part in name)}/N<={counts[1]}",
                source=path.stem if source is None else str(series[source].iloc[0]),
                known=rows[known].sort_values(["workers", "samples_per_s"], kind="stable", ignore_index=True),
                targets=rows[~known].groupby("workers", as_index=False).median(),
            )
        )
    return tasks


def _alike(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one worker count whose nodes and batch are those of most of them."""
    place = rows[["nodes", "batch_size"]].astype(str).agg(" ".join, axis=1)
    return cast(pd.DataFrame, rows[place == place.mode().iloc[0]])


# --- methods ----------------------------------------------------------------------------------------------------------


def forecasts(task: Task) -> Iterator[Guess]:
    """The package's own forecast, and the proportional one."""
    counts = [int(count) for count in task.targets["workers"]]
    told = task.targets["batch_size"]
    batch = None if told.isna().any() else [float(each) for each in told]
    found = predict(task.known, workers=counts, workers_per_node=task.per_node, batch=batch)[""]
    for one, measured in zip(found, task.targets["samples_per_s"], strict=True):
        yield guess(task, OURS, one.workers, float(measured), one.samples_per_s, one.low, one.high)
    largest = task.known["workers"].max()
    last = float(task.known.loc[task.known["workers"] == largest, "samples_per_s"].median())
    for count, measured in zip(counts, task.targets["samples_per_s"], strict=True):
        yield guess(task, "proportional", count, float(measured), last * count / float(largest))
    if batch is not None:
        for count, each, measured in zip(counts, batch, task.targets["samples_per_s"], strict=True):
            yield guess(task, STRAIGHT, count, float(measured), count * each / straight(task.known, each))


def straight(known: pd.DataFrame, batch: float) -> float:
    """The step, in seconds, of `batch` samples on each worker: a line through the steps of the known batches."""
    steps = (known["workers"] * known["batch_size"] / known["samples_per_s"]).groupby(known["batch_size"]).median()
    if len(steps) == 1:
        return float(steps.iloc[0] * batch / steps.index[0])
    slope, start = np.polyfit(steps.index, steps, 1)
    return float(max(start, 0.0) + slope * batch)


def laws(tasks: Sequence[Task]) -> Iterator[Guess]:
    """Every law for every task, in the forms for fixed work per worker and for fixed work in total."""
    for strong in (False, True):
        # The batch per worker is how fit_series knows the mode; most sources state it in words only.
        points = pd.concat(
            [task.known.assign(series=task.name, batch_size=batches(task.known, strong=strong)) for task in tasks],
            ignore_index=True,
        )
        fitted = fit_series(points)
        for task in tasks:
            yield from law_guesses(task, fitted[task.name], strong=strong)


def batches(known: pd.DataFrame, *, strong: bool) -> pd.Series:
    """Batches per worker that say "strong" or "weak": a constant total, or a constant share."""
    total = float(np.lcm.reduce(known["workers"].to_numpy(dtype=np.int64)))
    return total / known["workers"] if strong else pd.Series(1.0, index=known.index)


def law_guesses(task: Task, fitted: Any, *, strong: bool) -> Iterator[Guess]:
    """The forecasts of the laws of one series; of those with a form for fixed work, both forms."""
    counts = task.targets["workers"].to_numpy(dtype=np.float64)
    given = task.targets["nodes"].to_numpy(dtype=np.float64)
    nodes = None if np.isnan(given).any() else given
    names = {law: law for law in fitted.fits if not strong}
    if strong:
        names = {law: law + FIXED for law in fitted.fits if LAWS[law].of_steps}
    elif fitted.selected is not None:
        names = {**names, "selected": "selected"}
    for law, method in names.items():
        one = fitted.fits[fitted.selected if law == "selected" else law]
        values = one(counts, nodes) * fitted.base_samples_per_s
        low, high = (side * fitted.base_samples_per_s for side in one.interval(counts, nodes))
        for i, measured in enumerate(task.targets["samples_per_s"]):
            yield guess(task, method, int(counts[i]), float(measured), float(values[i]), float(low[i]), float(high[i]))


def guess(task: Task, method: str, *values: Any) -> Guess:
    """One forecast: workers, what was measured, what is forecast and, of some methods, the ends of its interval."""
    return Guess(task.name, task.series, task.source, method, *values)


# --- Extra-P ----------------------------------------------------------------------------------------------------------

EXTRA_P = "Extra-P"
QUESTIONS: Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], bool]] = {
    "time per step": (lambda n, x: n / x, lambda n, y: n / y, False),
    "time per sample": (lambda n, x: 1 / x, lambda n, y: 1 / y, False),
    "time per sample, negative exponents": (lambda n, x: 1 / x, lambda n, y: 1 / y, True),
    "throughput": (lambda n, x: x, lambda n, y: y, False),
}
"""What Extra-P is given at N workers and throughput X, and how its answer becomes a throughput; whether exponents below
zero are allowed, which is off by default. "time per step" is that of a fixed batch per worker, up to a factor."""


def extra_p(tasks: Sequence[Task]) -> list[Guess] | None:
    """Every way to ask Extra-P, for every task; None where it is not installed.

    All repeats of a point are given. It asks for five worker counts; with fewer it warns and models all the same.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it uses what its own packages have deprecated
            from extrap.entities.coordinate import Coordinate  # type: ignore[import-untyped]
            from extrap.entities.measurement import Measurement  # type: ignore[import-untyped]
            from extrap.modelers.single_parameter import Default  # type: ignore[import-untyped]
    except ImportError:
        return None
    found = []
    for question, (put, back, negative) in QUESTIONS.items():
        modeler = Default()
        modeler.allow_negative_exponents = negative
        for task in tasks:
            workers, rates = (task.known[name].to_numpy(dtype=float) for name in ("workers", "samples_per_s"))
            points = [Measurement(Coordinate(n), None, None, put(n, rates[workers == n])) for n in sorted(set(workers))]
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                function = modeler.create_model(points).hypothesis.function
                for n, rate in task.targets[["workers", "samples_per_s"]].to_numpy(dtype=float):
                    answer = float(back(n, float(function.evaluate(n))))
                    found.append(guess(task, f"{EXTRA_P}: {question}", int(n), rate, answer))
    return found


def best_question(guesses: Sequence[Guess]) -> str:
    """The way to ask Extra-P with the smallest median error over all targets."""
    asked = frame([one for one in guesses if one.method.startswith(EXTRA_P)])
    medians = asked.groupby("method")["error"].median()
    return str(medians.sort_values(kind="stable").index[0])


# --- scores -----------------------------------------------------------------------------------------------------------


def frame(guesses: Iterable[Guess]) -> pd.DataFrame:
    """One row per forecast, with its absolute relative error, whether it was covered, and its relative width."""
    table = pd.DataFrame(
        [(g.method, g.source, g.series, g.task, g.workers, g.measured, g.forecast, g.low, g.high) for g in guesses],
        columns=["method", "source", "series", "task", "workers", "measured", "forecast", "low", "high"],
    )
    whole = np.isfinite(table[["low", "high"]]).all(axis=1)  # half an interval is none
    table.loc[~whole, ["low", "high"]] = math.nan
    usable = np.isfinite(table["forecast"]) & (table["forecast"] > 0)
    error = (table["forecast"] / table["measured"] - 1).abs()
    table["error"] = error.where(usable, NO_FORECAST)
    slack = 1e-9 * table["measured"]
    inside = (table["low"] - slack <= table["measured"]) & (table["measured"] <= table["high"] + slack)
    table["covered"] = inside.astype(float).where(table["low"].notna())
    table["width"] = (table["high"] - table["low"]) / table["forecast"]
    return table


def scores(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The scores of every method, the forecast first and then by median error."""
    found = {}
    for method, rows in table.groupby("method", sort=True):
        by_source = rows.groupby("source")["error"].median()
        found[str(method)] = {
            "targets": len(rows),
            "median_ape": float(rows["error"].median()),
            "source_median_ape": float(by_source.median()),
            "worst_decile_ape": float(rows["error"].quantile(0.9)),
            "coverage": number(rows["covered"].mean()),
            "median_width": number(rows["width"].median()),
        }
    return dict(sorted(found.items(), key=lambda item: (item[0] != OURS, item[1]["median_ape"], item[0])))


def paired(table: pd.DataFrame, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The forecast against each other method, on the targets that both answered.

    `difference` is the median error of the forecast less that of the other; its 95 % interval is the percentile
    bootstrap over series, since the tasks of one series share points. `closer` is the share of targets where the
    forecast is the closer one, ties counted half.
    """
    keys = ["series", "task", "workers"]
    ours = table[table["method"] == OURS][[*keys, "error"]]
    found = {}
    for method in sorted(set(table["method"]) - {OURS}):
        other = table[table["method"] == method][[*keys, "error"]]
        both = ours.merge(other, on=keys, suffixes=("", "_other")).sort_values(keys, kind="stable", ignore_index=True)
        if both.empty:
            continue
        low, high = interval(both, np.random.default_rng(seed))
        wins = (both["error"] < both["error_other"]) + 0.5 * (both["error"] == both["error_other"])
        found[method] = {
            "targets": len(both),
            "difference": float(both["error"].median() - both["error_other"].median()),
            "ci95": [low, high],
            "closer": float(wins.mean()),
        }
    return found


def interval(both: pd.DataFrame, rng: np.random.Generator) -> tuple[float, float]:
    """Percentile interval of the difference of the median errors, whole series drawn again."""
    parts = [rows[["error", "error_other"]].to_numpy() for _, rows in both.groupby("series", sort=True)]
    drawn = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        sample = np.concatenate([parts[k] for k in rng.integers(len(parts), size=len(parts))])
        ours, other = np.median(sample, axis=0)
        drawn[i] = ours - other
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


# --- the page ---------------------------------------------------------------------------------------------------------


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def score_lines(found: Mapping[str, Mapping[str, Any]], against: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The table of one group of sources."""
    lines = [
        "| method | targets | median APE | median of the sources' | worst decile from | coverage | width "
        "| ours minus this [95 %] | ours is closer |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for method, one in found.items():
        pair = against.get(method)
        difference, closer = "", ""
        if pair is not None:
            low, high = pair["ci95"]
            difference = f"{100 * pair['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            closer = f"{100 * pair['closer']:.0f} %"
        cells = [
            f"**{method}**" if method == OURS else method,
            f"{one['targets']:,}",
            share(one["median_ape"]),
            share(one["source_median_ape"]),
            share(one["worst_decile_ape"]),
            share(one["coverage"]),
            share(one["median_width"]),
            difference,
            closer,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def source_lines(table: pd.DataFrame, methods: Sequence[str], groups: Mapping[str, str]) -> list[str]:
    """One row per source: median error of each method; worst decile, coverage and median width of the forecast."""
    lines = [
        f"| source | used for | tasks | targets | {' | '.join(methods)} | a tenth of ours from | coverage | width |",
        f"|---|---|--:|--:|{'--:|' * len(methods)}--:|--:|--:|",
    ]
    for source in sorted(set(table["source"]), key=lambda name: (HALVES.index(groups[name]), name)):
        rows = table[table["source"] == source]
        ours = rows[rows["method"] == OURS]
        medians = rows.groupby("method")["error"].median()
        cells = [source, groups[source], f"{ours['task'].nunique():,}", f"{len(ours):,}"]
        cells += [share(number(medians.get(method, math.nan))) for method in methods]
        own = (ours["error"].quantile(0.9), ours["covered"].mean(), ours["width"].median())
        lines.append(f"| {' | '.join([*cells, *(share(number(each)) for each in own)])} |")
    return lines


def page(result: Mapping[str, Any], table: pd.DataFrame, groups: Mapping[str, str]) -> list[str]:
    """Return the page."""
    machine = result["machine"]
    lines = [
        "# Forecasts of published scaling data",
        "",
        f"Made by `make bench BENCH=forecast` on {result['measured'][:10]}: revision {machine['revision']}, numpy "
        f"{machine['numpy']}, scipy {result['scipy']}, {result['extra_p']['version'] or 'without Extra-P'}. "
        "No timing is in it: the same tables and versions give the same numbers.",
        "",
        f"{result['sources']} sources, {result['series']:,} series, {result['tasks']:,} tasks, {result['targets']:,} "
        "targets. A target is a published throughput at a worker count above all known ones; APE is "
        "|forecast / published - 1|. *median of the sources'*: each source counts once. *worst decile from*: a tenth "
        "of the targets are worse. *width*: of the 95 % interval over the forecast. *ours minus this*: difference of "
        "the median APE in percentage points on the targets that both answered, with a bootstrap interval over series.",
    ]
    if result["extra_p"]["version"]:
        asked = ", ".join(f"{name} {share(value)}" for name, value in result["extra_p"]["median_ape"].items())
        lines += ["", f"Ways to ask Extra-P, median APE over all targets: {asked}. The first one is in the tables."]
    for group, one in result["groups"].items():
        lines += ["", f"## Sources: {group}", "", *score_lines(one["scores"], one["paired"])]
    best = [OURS, "proportional", STRAIGHT, *LAWS]
    best = [method for method in best if method in set(table["method"])]
    best += [method for method in sorted(set(table["method"])) if method.startswith(EXTRA_P)]
    return [*lines, "", "## Each source: median APE", "", *source_lines(table, best, groups)]


def listed(table: pd.DataFrame) -> str:
    """Every forecast of the package as CSV, worst first, to see where it fails."""
    ours = table[table["method"] == OURS].sort_values(["error", "task", "workers"], ascending=[False, True, True])
    columns = ["task", "workers", "measured", "forecast", "low", "high", "error"]
    return ours[columns].to_csv(index=False, float_format="%.5g", lineterminator="\n")


def published(folder: Path, only: Sequence[str]) -> tuple[list[Task], dict[str, dict[str, str]]]:
    """Return the tasks of the tables of `folder`, and the half and kind of each source."""
    sources = read_sources(folder)
    unknown = sorted(set(only) - set(sources))
    if unknown:
        raise AnalysisError(f"there is no table {unknown[0]!r} in {folder / SOURCES}; there are {', '.join(sources)}")
    tasks, chosen = [], {}
    for name in (name for name in sources if not only or name in only):
        for task in read_tasks(folder / f"{name}.csv"):
            submitter = sources[name]["submitter"]
            source = name
            if submitter == EACH:
                submitter = task.series.split()[1]
                source = f"{name} {submitter}"
            tasks.append(replace(task, source=source))
            chosen[source] = {"used_for": half(submitter), "kind": sources[name]["kind"]}
    return tasks, chosen


def given(paths: Sequence[Path]) -> tuple[list[Task], dict[str, dict[str, str]]]:
    """Return the tasks of long tables, and each source among them as one that the command line gave."""
    tasks = [task for path in paths for task in read_series(path)]
    if not tasks:
        raise AnalysisError(f"no series of {', '.join(map(str, paths))} has three worker counts")
    return tasks, {task.source: {"used_for": GIVEN, "kind": BATCH_TOLD} for task in tasks}


def measure(
    tasks: Sequence[Task], sources: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], pd.DataFrame, dict[str, str]]:
    """Run every method on `tasks`; return the result, all forecasts, and the group of each source."""
    groups = {name: row["used_for"] for name, row in sources.items()}
    guesses = [one for task in tasks for one in forecasts(task)]
    guesses += laws(tasks)
    asked = extra_p(tasks)
    extra: dict[str, Any] = {"version": None, "median_ape": {}}
    if asked:
        chosen = best_question(asked)
        every = frame(asked).groupby("method")["error"].median().sort_values(kind="stable")
        extra = {
            "version": f"Extra-P {importlib.metadata.version('extrap')}",
            "median_ape": {str(name).removeprefix(f"{EXTRA_P}: "): float(value) for name, value in every.items()},
        }
        guesses += [one for one in asked if one.method == chosen]
    table = frame(guesses)
    found = {}
    for used_for, kind in itertools.product(HALVES, (None, *KINDS)):
        kinds = (kind,) if kind else KINDS[:-1]
        of_group = [name for name in groups if groups[name] == used_for and sources[name]["kind"] in kinds]
        rows = table[table["source"].isin(of_group)]
        if len(rows):
            found[f"{used_for}: {kind}" if kind else used_for] = {"scores": scores(rows), "paired": paired(rows)}
    result = {
        "sources": len(groups),
        "series": len({task.series for task in tasks}),
        "tasks": len(tasks),
        "targets": sum(len(task.targets) for task in tasks),
        "extra_p": extra,
        "groups": found,
    }
    return result, table, groups


def main() -> int:
    """Measure, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=Path, default=PUBLISHED, help="folder of the tables (default: the project's)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TABLE", help="some of the tables")
    parser.add_argument("--series", nargs="+", type=Path, metavar="FILE", help="long tables, one row a run, instead")
    parser.add_argument("--out", type=Path, help="where the page goes (default: results/forecast; none with --series)")
    options = parser.parse_args()
    try:
        asked = given(options.series) if options.series else published(options.tables, options.only)
        result, table, groups = measure(*asked)
    except AnalysisError as error:
        print(f"forecast: {error}", file=sys.stderr)
        return 2
    if not result["extra_p"]["version"]:
        print("forecast: Extra-P is not installed and stays out of the tables: make extras", file=sys.stderr)
    machine = {name: value for name, value in environment.describe().items() if name != "command"}
    scipy = importlib.metadata.version("scipy")
    result = {"measured": utc_now(), "machine": machine, "scipy": scipy, **result}
    text = "\n".join(page(result, table, groups)) + "\n"
    print(text)
    if options.series and options.out is None:
        return 0
    write_result(
        options.out or HERE / "results" / "forecast",
        {"forecast.md": text, "forecast.json": result, "forecasts.csv": listed(table)},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
