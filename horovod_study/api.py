"""The analysis wing from Python: what notebooks and scripts call. Every name here is also one of `horovod_study`.

    import horovod_study as hs

    study = hs.analyze("runs/laptop")                  # tables and fitted laws of recorded runs
    study.points                                       # a pandas table, one row per cell
    hs.figures(study)["speedup"]                       # shows itself in a notebook; `.save("speedup.pdf")`
    hs.predict(hs.read_points("points.csv"), workers=[16, 32])

Needs neither PyTorch nor Horovod nor MPI.
"""

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study import foreign_files, records
from horovod_study.analysis.fit.fitting import SeriesFit, fit_series
from horovod_study.analysis.forecast.prediction import Prediction
from horovod_study.analysis.forecast.prediction import predict as predict_points
from horovod_study.analysis.importers import (
    BENCH_FILE,
    SAMPLES,
    benches_of,
    placed_name,
    points_from,
)
from horovod_study.analysis.machine.network import restored
from horovod_study.analysis.series import exchange, reported
from horovod_study.analysis.series.points import cores_of_one_machine, with_series
from horovod_study.analysis.series.turns import study_turns
from horovod_study.analysis.simulate.calibration import Given, calibrate, largest_of_each_kind, run_times
from horovod_study.analysis.simulate.scaling import simulate as simulate_scenarios
from horovod_study.analysis.simulate.what_if import what_if as scenarios
from horovod_study.analysis.steps.accounting import Accounting, account, account_runs
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis
from horovod_study.analysis.study import analyze as analyze_tables
from horovod_study.documents import parse_json, read_text
from horovod_study.errors import DataError
from horovod_study.text.words import plural

if TYPE_CHECKING:
    import pandas as pd

    from horovod_study.report.kit.drawing import Drawing

__all__ = ["analyze", "figures", "fit", "points_of", "predict", "read_analysis", "read_points", "simulate"]


def analyze(runs: str | os.PathLike[str], *, targets: Sequence[float] = (), threads: int = 1) -> Analysis:
    """Return what the recorded runs below a folder say: tables of points, laps, laws, forecasts ... (docs/metrics.md).

    `targets`: test MSEs to which times are compared. `threads`: runs read at a time. What `horovod-study bench` left
    beside the runs is read, too. Raises RecordError or AnalysisError where there is no run, or one that cannot be read.
    """
    root = Path(runs)
    wanted = "the bench.json that `horovod-study bench` wrote"
    networks = [(_text(path, wanted), str(path)) for path in records.benches_beside(root)]
    return analysed(root, targets=targets, threads=threads, networks=networks)[3]


def analysed(
    root: Path,
    *,
    commands: list[str] | None = None,
    targets: Sequence[float] = (),
    only: Collection[str] | None = None,
    threads: int = 1,
    networks: Sequence[tuple[str, str]] = (),
    precision: float | None = None,
    columns: Mapping[str, str] | None = None,
    counted: Collection[str] | None = None,
    beside: Callable[[Any], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> "tuple[pd.DataFrame, pd.DataFrame, Accounting, Analysis]":
    """Return run table, evaluations, accounting and Analysis of the runs below `root`.

    `only`: names of the runs to read, `counted`: of those that count. `networks`: contents of bench.json files and what
    the analysis calls them, `precision`: the aim of a study. `beside` is called with each run while its rows are at
    hand, `on_progress` with how many are done. `root` may also be a table of points, or logs of trainings, as for
    `read_points`, `columns` too: then no rows of steps are known, and nothing is accounted for.
    """
    again = "measure again with horovod-study bench"
    measured = [
        restored(parse_json(text, source=named, error=DataError, again=again), source=named).to_dict()
        for text, named in networks
    ]
    known: dict[str, Any] = {"targets": targets, "networks": measured, "precision": precision}
    if is_table(root):
        points = read_points(root, columns=columns)
        table = reported.run_rows(points, root.resolve().stem)
        commands = commands or [f"horovod-study report {shlex.quote(root.resolve().name)}"]
        found = analyze_tables(table, None, commands=commands, unit=points.attrs.get("unit", SAMPLES), **known)
        return table, records.evaluation_table(()), account(table, ()), found.with_doubts(reported.doubts(points))
    left_out: dict[str, str] = {}
    table, recorded = records.recorded_runs([root], only=only, left_out=left_out)
    evaluations = records.epoch_table(root, only=only)
    if counted is not None:
        table = table[table["run"].isin(list(counted))].reset_index(drop=True)
        evaluations = evaluations[evaluations["run"].isin(list(counted))].reset_index(drop=True)
        recorded = (run for run in recorded if run.name in counted)

    def with_steps() -> Iterator[records.RecordedRun]:
        for run in recorded:
            if not records.is_command(run.record):
                yield run
            elif beside is not None:
                beside(run)

    def counted_up(done: int) -> None:
        if on_progress is not None:
            on_progress(done, len(table))

    accounts = account_runs(with_steps(), threads=threads, on_progress=counted_up, beside=beside)
    accounting = account(table, accounts)
    known |= {"accounting": accounting, "turns": study_turns(root)}
    found = analyze_tables(table, evaluations, commands=commands, unit=_unit_of(table), **known)
    return table, evaluations, accounting, found.with_left_out(left_out)


def _unit_of(table: "pd.DataFrame") -> str:
    """Return the unit of the rates of a run table: another than samples/s where all of them are said in one."""
    units = set(table["rate_from"].map(records.rate_unit)) if (table["backend"] == records.COMMAND).all() else set()
    return str(*units) if len(units) == 1 else SAMPLES


def is_table(place: Path) -> bool:
    """Return whether a path is one of points without runs: a table, a log (also LOG@8), or a folder with logs."""
    if not place.is_dir():
        return place.is_file() or Path(placed_name(str(place))[0]).is_file()
    with suppress(DataError):  # there are no logs
        no_runs = not records.holds_tables(place) and next(records.run_directories(place), None) is None
        return no_runs and next(foreign_files.logs(place), None) is not None
    return False


def read_analysis(directory: str | os.PathLike[str]) -> Analysis:
    """Return the analysis that `horovod-study report RUNS --out DIR` left in DIR.

    RecordError where there is none, or where its files are not those that source.json has the digests of.
    """
    tables, documents = records.load_tables(Path(directory), TABLES, DOCUMENTS)
    records.read_source(Path(directory))
    return Analysis(**{**tables, **documents})


def figures(analysis: Analysis) -> "Mapping[str, Drawing]":
    """Return the figures that an analysis has data for, by name; a notebook shows one that is a cell's last value."""
    from horovod_study.report.figures.catalogue import drawings

    return {each.name: each for each in drawings(analysis)}


def read_points(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    left_out: dict[str, str] | None = None,
    data: bytes | None = None,
) -> "pd.DataFrame":
    """Return the points of a CSV file with columns workers, samples_per_s and perhaps more (docs/fit.md).

    A folder holds runs, such as that of a study, or logs of trainings, of which the same page says how they are read; a
    log alone is one point, LOG@8 says that it had 8 workers. `data` is the content, where `path` is only its name.
    Other names are read where they say what they are, which `attrs["read"]` tells; `columns` says it for the others,
    {"workers": "GPUs"}. Into `left_out` comes {run: why not} of what is among runs and cannot be read.
    Raises DataError for a file or a value that cannot be used, with the line it is in.
    """
    name, placed = (str(path), None) if os.path.exists(path) else placed_name(str(path))
    folder = Path(name)
    if folder.is_dir() and columns:
        raise DataError(f"{path}: is a folder, which has no columns to name; leave columns out")
    if not folder.is_dir() or next(records.run_directories(folder), None) is None:
        given = foreign_files.logs(folder) if data is None else [(name, data, {}, (name,))]
        return points_from(given, placed=placed, columns=columns, alone=not folder.is_dir())
    table = with_series(records.run_table(folder, left_out=left_out))
    points = exchange.points_of(table, left_out)
    # A machine of one's own is a node: where all its cores have a worker, more workers need another one.
    filled = points["series"].map(cores_of_one_machine(table))
    most = points.groupby("series")["workers"].transform("max")
    points["workers_per_node"] = filled.where(filled.isna() | (filled > most), most)
    commands = bool((table["backend"] == records.COMMAND).all())
    of = "a command" if commands else "a communication library"
    points.attrs["read"] = f"{plural(len(points), 'finished run')} of {of}"
    if commands:
        points.attrs["unit"] = _unit_of(table)
    return points


def points_of(analysis: Analysis) -> "pd.DataFrame":
    """Return the finished runs of an analysis as such points, one row per run: what `fit` and `predict` take."""
    return exchange.points_of(analysis.runs)


def fit(points: "pd.DataFrame", *, baseline_samples_per_s: float | None = None) -> dict[str, SeriesFit]:
    """Return the fitted laws of each series of a points table; the name is "" where there is one series only."""
    return fit_series(points, baseline_samples_per_s=baseline_samples_per_s)


def predict(
    points: "pd.DataFrame",
    *,
    workers: Iterable[int],
    workers_per_node: int | None = None,
    batch: float | Sequence[float] | None = None,
    global_batch: float | None = None,
) -> dict[str, list[Prediction]]:
    """Return the forecast of each series at `workers`, with 95 % intervals (docs/predict.md).

    `batch` is the number of samples per worker and step there, one or one for each count; `global_batch` that of all
    workers together.
    """
    return predict_points(
        points, workers=list(workers), workers_per_node=workers_per_node, batch=batch, global_batch=global_batch
    )


def simulate(
    workers: Iterable[int],
    *,
    runs: Iterable[str | os.PathLike[str]] = (),
    benches: Iterable[str | os.PathLike[str]] = (),
    what_if: Sequence[str] = (),
    global_batch: int | None = None,
    seed: int = 1,
    **constants: Any,
) -> "pd.DataFrame":
    """Return simulated steps: one row per scenario and worker count (docs/simulate.md).

    `runs` are run directories (computing), `benches` are files of `horovod-study bench`
    or what nccl-tests, rccl-tests or osu_allreduce printed (the network); `what_if` and
    `constants` have the names and units of the verb's options: `compute_ms=5`, `alpha_us=10`, `gb_per_s=1`, ...
    Raises ConfigError for contradictions and for what nobody said.
    """
    given, recorded = Given(**constants), [run_times(records.recorded_run(Path(each))) for each in runs]
    size = recorded[0].gradient_bytes if recorded and given.gradient_mb is None else (given.gradient_mb or 0.0) * 1e6
    networks = [
        (content, str(each))
        for each in benches
        for content in benches_of(
            _text(placed_name(str(each))[0], BENCH_FILE), source=str(each), gradient_bytes=size or None
        )
    ]
    kept = largest_of_each_kind(networks)[0]
    known = calibrate(given, runs=recorded, benches=kept, further=[each for each in networks if each not in kept])
    return simulate_scenarios(scenarios(known.scenario, what_if), list(workers), global_batch=global_batch, seed=seed)


def _text(path: str | os.PathLike[str], wanted: str) -> str:
    return read_text(Path(path), error=DataError, again=f"give {wanted}")
