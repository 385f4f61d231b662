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
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study import records
from horovod_study.analysis.audit import Study, recount, versions
from horovod_study.analysis.fit.fitting import SeriesFit, fit_series
from horovod_study.analysis.forecast.prediction import Prediction
from horovod_study.analysis.forecast.prediction import predict as predict_points
from horovod_study.analysis.importers import (
    BENCH_FILE,
    SAMPLES,
    benches_of,
    parse_columns,
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
from horovod_study.config.documents import logs, parse_json, read_text
from horovod_study.config.doors import asked
from horovod_study.config.run import available_cores
from horovod_study.errors import AnalysisError, DataError, RecordError, refuse
from horovod_study.text.progress import Line
from horovod_study.text.words import plural

if TYPE_CHECKING:
    import pandas as pd

    from horovod_study.report.grammar import Figure

__all__ = ["analyze", "figures", "fit", "points_of", "predict", "read_analysis", "read_points", "simulate"]


def analyze(runs: str | os.PathLike[str], *, targets: Sequence[float] = (), threads: int = 1) -> Analysis:
    """Return what the recorded runs below a folder say: tables of points, laps, laws, forecasts ... (docs/metrics.md).

    `targets`: test MSEs to which times are compared. `threads`: runs read at a time. What `horovod-study bench` left
    beside the runs is read, too. Raises RecordError or AnalysisError where there is no run, or one that cannot be read.
    """
    root = Path(runs)
    wanted = "the bench.json that `horovod-study bench` wrote"
    networks = [(_text(path, wanted), str(path)) for path in _benches_beside(root)]
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
        records.finite(restored(parse_json(text, source=named, error=DataError, again=again), source=named))
        for text, named in networks
    ]
    known: dict[str, Any] = {"targets": targets, "networks": measured, "precision": precision}
    if is_table(root):
        points = read_points(root, columns=columns)
        table = reported.run_rows(points, root.resolve().stem)
        commands = commands or [f"horovod-study report {shlex.quote(root.resolve().name)}"]
        found = analyze_tables(table, None, commands=commands, unit=points.attrs.get("unit", SAMPLES), **known)
        return table, records.epoch_table(), account(table, ()), found.with_doubts(reported.doubts(points))
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
        return no_runs and next(logs(place), None) is not None
    return False


def read_analysis(directory: str | os.PathLike[str]) -> Analysis:
    """Return the analysis that `horovod-study report RUNS --out DIR` left in DIR.

    RecordError where there is none, or where its files are not those that source.json has the digests of.
    """
    tables, documents = records.load_tables(Path(directory), TABLES, DOCUMENTS)
    records.read_source(Path(directory))
    return Analysis(**{**tables, **documents})


def figures(analysis: Analysis) -> "Mapping[str, Figure]":
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
    what = f"{path}: is a folder, which has no columns to name; leave columns out"
    refuse("", (folder.is_dir() and columns, what), error=DataError)
    if not folder.is_dir() or next(records.run_directories(folder), None) is None:
        given = logs(folder) if data is None else [(name, data, {}, (name,))]
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
    given = asked(Given, constants, "simulate")
    recorded = [run_times(records.recorded_run(Path(each))) for each in runs]
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


# ------------------------------------------------------------------------------------------- a study as files

Told = dict[str, Any]
"""What there is to say: document, lines, files, doubts, exit_code, of which some may be left out."""

_MAX_THREADS = 4
_ALL_STEPS = (0, sys.maxsize)
"""More do not read step rows any faster: what is left to Python goes one at a time."""
_ABOUT_CHECK = "is about what --check looks at; give --check too"
_ABOUT_OTHER = "is about another study; name its directory with --against"
_NEEDS: Mapping[str, tuple[str, str]] = {
    "runs": ("check", _ABOUT_CHECK),
    "allow": ("check", _ABOUT_CHECK),
    "fail_on": ("against", _ABOUT_OTHER),
    "match": ("against", _ABOUT_OTHER),
}
"""Options of `report` that mean something only with another, and what to say without."""


def report(directory: Path, **options: Any) -> Told:
    """Write page, figures and tables of a study, or check all of them, and return what there is to say.

    `directory` holds runs or the tables of an analysis, or is a table of points; `options` are those of
    `horovod-study report`, None or False where they are not given. Raises ConfigError where they contradict each other.
    """
    asked = {name: value for name, value in options.items() if value not in (None, False)}
    _refuse_idle(directory, asked)
    if "check" in asked:
        return _check(_tables_place(directory, asked), asked.get("runs"), asked.get("allow", ()))
    if "tables" in asked:
        out = asked.get("out") or _tables_of(directory)
        paths, doubts = write_analysis(directory, out, **_of_runs(asked))
        return {
            "document": {},
            "lines": [f"tables: {out} ({plural(len(paths), 'file')})"],
            "files": paths,
            "doubts": doubts,
        }
    from horovod_study.report.kit.style import FigureFormat
    from horovod_study.report.page.answer import answer_lines
    from horovod_study.report.page.paper import write_paper

    place, paths, doubts = _analysis_of(directory, asked)
    look = {"look": FigureFormat.of(asked.get("width", "text"), asked.get("font", "sans")), "pgf": "pgf" in asked}
    if "against" in asked:
        earlier, _, more = _analysis_of(asked["against"], {})
        return _report_against(place, earlier, asked, look, [*doubts, *more])
    try:
        analysis = read_analysis(place)
    except AnalysisError:  # tables of another version, which has other columns
        if place == directory:
            raise
        place, paths, doubts = _analysis_of(directory, asked, again=True)
        analysis = read_analysis(place)
    page, *others = write_page(place, **look)
    made = [page, *paths, *others]
    if "paper" in asked:
        made += write_paper(analysis, place, records.read_source(place))
    answer = answer_lines(analysis)
    where = f"report: {page} (and {plural(len(made) - 1, 'file')} of tables and figures)"
    told = doubts if paths else _left_out(analysis)
    return {"document": {"answer": answer}, "lines": [*answer, where], "files": made, "doubts": told}


def _refuse_idle(directory: Path, asked: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that would do nothing."""
    chosen = sorted({*asked} & {"check", "against", "paper", "tables", *(("files",) if "check" in asked else ())})
    table, holds = is_table(directory), records.holds_tables(directory)
    of_runs = [name for name in ("target", "threads", "bench", "paper", "out") if name in asked]
    both = " and ".join(f"--{name}" for name in chosen[:2])
    again = f"{directory} holds tables; name the folder of their runs"
    refuse(
        "",
        (chosen[1:], f"{both} ask for different things; give one of them"),
        *(
            (name in asked and needed not in asked, f"--{name.replace('_', '-')}: {words}")
            for name, (needed, words) in _NEEDS.items()
        ),
        *(
            (table, f"--{name}: is about runs, and {directory} is a table of points")
            for name in of_runs
            if name != "out"
        ),
        (
            asked.get("columns") and not table,
            f"--columns: says what the columns of a table of points are; {directory} is none",
        ),
        *((holds, f"--{name}: is about runs, and {again}") for name in of_runs if name != "paper"),
    )


def _benches_beside(root: Path) -> list[Path]:
    """Return the bench.json that `horovod-study bench --out ROOT/bench` wrote beside the runs, if it is there."""
    return [path for path in (root / "bench" / records.BENCH,) if path.is_file()]


def _of_runs(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the options say of how to analyse."""
    names = {"targets": "target", "threads": "threads", "benches": "bench"}
    columns = parse_columns(asked.get("columns") or ())
    return {
        **{name: asked[option] for name, option in names.items() if option in asked},
        **({"columns": columns} if columns else {}),
    }


def _analysis_of(place: Path, asked: Mapping[str, Any], *, again: bool = False) -> tuple[Path, list[Path], list[str]]:
    """Return where the tables of a study are, what of them was written (missing, older, `again`), and its doubts."""
    directory = _tables_place(place, asked)
    if directory == place or not (again or records.is_older(directory, place)):
        return directory, [], []
    kept = records.analysis_options(directory, place)
    return directory, *write_analysis(place, directory, **{**kept, **_of_runs(asked)})


def _tables_place(place: Path, asked: Mapping[str, Any]) -> Path:
    """Return the directory of the tables of `place`: itself, or for a folder of runs --out or analysis in it."""
    return place if records.holds_tables(place) else asked.get("out") or _tables_of(place)


def _tables_of(place: Path) -> Path:
    """Return where the tables of a folder of runs, or of a table of points, usually are."""
    return place / "analysis" if place.is_dir() or not is_table(place) else place.with_name(f"{place.stem}-report")


def _left_out(analysis: Analysis) -> list[str]:
    return [f"left out: {name}: {why}" for name, why in analysis.provenance.get("left_out", {}).items()]


def write_analysis(
    runs: Path,
    out: Path,
    *,
    only: Collection[str] | None = None,
    benches: Sequence[Path] | None = None,
    planned: Sequence[str] = (),
    **how: Any,
) -> tuple[list[Path], list[str]]:
    """Analyse runs and write the tables; return their paths and the doubts. `how`: what `analysed` takes."""
    found = _benches_beside(runs) if benches is None else benches
    networks = [(path, str(path)) for path in found]
    _, evaluations, _, result = _analysed(runs, networks=networks, only=only, **how)
    written = records.save_tables(out, {"evaluations": evaluations, **result.tables()}, result.documents())
    digests = {
        name: records.run_files(directory)
        for directory, name, _ in (() if is_table(runs) else records.found_runs(runs, only=only))
    }
    records.write_source(
        out,
        runs,
        files=written,
        targets=list(how.get("targets", ())),
        commands=how.get("commands"),
        only=None if only is None else sorted(only),
        planned=list(planned),
        benches=[{"path": Path(os.path.relpath(path, out)).as_posix(), "named": named} for path, named in networks],
        versions=versions(),
        run_files=digests,
        turns_files=records.turns_files(runs),
        precision=how.get("precision"),
        **({"columns": dict(how.get("columns") or {})} if is_table(runs) else {}),
    )
    return written, result.provenance["doubts"]


def _analysed(
    runs: Path, *, networks: Sequence[tuple[Path, str]], threads: int | None = None, verb: str = "analysing", **how: Any
) -> "tuple[pd.DataFrame, pd.DataFrame, Accounting, Analysis]":
    """Return what `analysed` does of recorded runs, and show how far it is; `networks`: files, and their names."""
    line = Line()
    try:
        return analysed(
            runs,
            threads=threads or min(available_cores(), _MAX_THREADS),
            networks=[
                (_text(path, "the bench.json that `horovod-study bench` wrote"), named) for path, named in networks
            ],
            on_progress=lambda done, of: line.now_and_then(f"{verb}: run {done:,} of {of:,}"),
            **how,
        )
    finally:
        line.close()


def write_page(directory: Path, **how: Any) -> list[Path]:
    """Write page, figures and tables for print of the analysis in `directory`; `how`: look of the figures, pgf."""
    from horovod_study.report.page.html import write_report

    paths = write_report(read_analysis(directory), directory, second_process=available_cores() > 1, **how)
    _keep_drawn(directory, paths, how.get("look"))
    return paths


def _keep_drawn(
    directory: Path, paths: Sequence[Path], look: Any = None, others: Sequence[Path] = (), **more: Any
) -> None:
    """Keep what the report was drawn with, for `report --check`; without `look` it is that of a text.

    What an earlier report wrote and this one did not is removed, so that nobody quotes it.
    """
    from horovod_study.report.page.check import drawn_by

    written = [Path(os.path.relpath(path, directory)).as_posix() for path in paths]
    for name in set(records.earlier_report(directory)).difference(written):
        with suppress(OSError):  # it is gone, or it stays and --check names it
            (directory / name).unlink()
    drawn = {**drawn_by(directory, paths, look, others), "files": written, **more}
    records.write_source(directory, report=drawn, left=[])


def _check(directory: Path, runs: Path | None, allow: Sequence[str]) -> Told:
    """Make every number of an analysis again from the raw rows, and compare; `runs`: where these are now."""
    from horovod_study.report.page.check import allowed, check, document, kept_runs, lines, runs_of

    known, counted = allowed(allow), kept_runs(directory)
    source = runs_of(directory, runs)
    place, only = source["runs"], source.get("only")
    reported = is_table(place)
    there = {} if reported else {name: record for _, name, record in records.found_runs(place, only=only)}
    recounts: dict[str, Any] = {}

    def beside(run: Any) -> None:
        recounts[run.name] = recount(run, records.run_side_files(run.directory))

    table, evaluations, accounting, result = _analysed(
        place,
        **{name: source.get(name) for name in ("commands", "precision", "columns")},
        targets=source.get("targets") or (),
        only=only,
        networks=source["networks"],
        verb="checking",
        counted=None if counted is None or not set(counted) & set(there) else counted,
        beside=beside,
    )
    study = Study(
        runs=with_series(table),
        analysis=result,
        accounting=accounting,
        recounts=[] if reported else [recounts[name] for name in table["run"]],
        records=there,
        planned=source.get("planned") or (),
        set_aside=dict(records.set_aside(place)),
    )
    line = Line()
    found = check(
        directory,
        study,
        evaluations,
        source,
        runs={name: record.state() for name, record in there.items()},
        against=lambda analysis: _compared_again(directory, analysis, source),
        allow=known,
        on_progress=lambda text: line.show(f"check: {text}"),
    )
    line.close()
    doubts = _left_out(result)
    return {"document": document(found), "lines": lines(found), "doubts": doubts, "exit_code": found.exit_code}


def _compared_again(directory: Path, analysis: Analysis, source: Mapping[str, Any]) -> Any:
    """Return the comparison that the page of a study shows, or None where it shows none."""
    told = (source.get("report") or {}).get("against")
    return None if told is None else _compared(analysis, directory, directory / told["directory"], told.get("match"))[0]


def _compared(after: Analysis, directory: Path, earlier: Path, match: str | None) -> tuple[Any, Analysis]:
    """Return how a study differs from an earlier one, and the analysis of that."""
    from horovod_study.analysis.against import compare_studies
    from horovod_study.report.against import names_of

    before = read_analysis(earlier)
    return compare_studies(after, before, match=match, names=names_of(directory.resolve(), earlier.resolve())), before


def _report_against(
    directory: Path, earlier: Path, asked: Mapping[str, Any], look: Mapping[str, Any], doubts: Sequence[str]
) -> Told:
    """Write the page of a study that begins with the differences to an earlier one."""
    from horovod_study.analysis.against import gate, read_limits
    from horovod_study.report.against import document, gate_lines, lines, write_against
    from horovod_study.report.page.html import write_report

    limits, match = read_limits(asked.get("fail_on", ())), asked.get("match")
    after = read_analysis(directory)
    found, before = _compared(after, directory, earlier, match)
    judged = gate(found, limits) if limits else None
    paths = write_report(after, directory, against=found, second_process=available_cores() > 1, **look)
    others = write_against(found, directory, judged)
    against = {"directory": Path(os.path.relpath(earlier, directory)).as_posix(), "match": match}
    _keep_drawn(directory, [*paths, *others], look["look"], others, against=against)
    gated = [] if judged is None else ["", *gate_lines(found, judged)]
    where = f"report: {paths[0]}  (against.json and tables/against.* beside it)"
    return {
        "document": document(found, judged),
        "lines": [*lines(found), *gated, where],
        "files": [*paths, *others],
        "doubts": [*doubts, *_left_out(after), *_left_out(before)],
        "exit_code": 0 if judged is None or judged["passed"] else 1,
    }


def export(
    place: Path,
    to: str,
    *,
    out: Path | None = None,
    steps: tuple[int, int] | None = None,
    study_file: Path | None = None,
    data: bytes | None = None,
) -> Told:
    """Write recorded runs for another program, `to`, or a study as one file (`zip`); return what there is to say.

    `steps`: those of a trace, from the first to before the last; `data`: the content of a points file.
    """
    refuse("", (steps is not None and to != "trace", "--steps is for --export trace; leave it out"))
    if to == "zip":
        return _archive(place, out, study_file)
    if to == "extra-p":
        return _extra_p(place, out, data)
    from horovod_study.analysis.series.history import history
    from horovod_study.report.export import Recorded, write_tracker

    left_out: dict[str, str] = {}
    found = records.found_runs(place, left_out=left_out)
    if to == "trace":
        refuse("", (found[1:], f"{place}: holds {len(found)} runs, and a trace shows one; name its folder"))
        paths = [_trace(found[0][0], out, steps or _ALL_STEPS)]
    else:
        runs = [
            Recorded(
                name=name,
                record=record,
                history=history(_rows_between(directory), records.epoch_rows(directory)),
            )
            for directory, name, record in found
        ]
        paths = write_tracker(to, runs, out or Path("runs") / to)
    doubts = [f"left out: {name}: {why}" for name, why in left_out.items()]
    document = {"to": to, "runs": len(found)}
    return {"document": document, "lines": map(str, paths), "files": paths, "doubts": doubts}


def _trace(directory: Path, out: Path | None, steps: tuple[int, int]) -> Path:
    from horovod_study.analysis.steps.trace import events
    from horovod_study.report.export import write_trace

    record, rows = records.read_run(directory), _rows_between(directory, steps)
    marks, first = records.epoch_rows(directory), records.timed_from(record)[0]
    found = events(rows, records.hosts_of(record, rows), evaluations=marks, warmup_steps=first)
    about = {"run": str(directory), "study": record.study, "steps": f"{steps[0]}:{steps[1]}"}
    about["clock"] = "time since the first step of the run; there the ranks of all hosts waited at a barrier"
    return write_trace(found, out or directory / "trace.json", about=about)


def _rows_between(directory: Path, steps: tuple[int, int] = _ALL_STEPS) -> "dict[int, pd.DataFrame]":
    """Return the rows of the steps from steps[0] to before steps[1] as {rank: frame}, also of an unfinished run."""
    frames = {rank: records.read_steps(directory, rank).to_pandas() for rank in records.step_ranks(directory)}
    found = {
        rank: frame[frame["step"].between(*steps, inclusive="left")].reset_index(drop=True)
        for rank, frame in frames.items()
    }
    if not any(map(len, found.values())):
        last = "" if steps == _ALL_STEPS else f" from {steps[0]} to before {steps[1]}"
        raise RecordError(f"{directory}: no rank recorded steps{last}; name a run with step rows, or other steps")
    return found


def _archive(place: Path, out: Path | None, study_file: Path | None) -> Told:
    from horovod_study.report.archive import gather, summary, write_archive

    what = "--export zip: archives the runs of a study"
    refuse("", (is_table(place), f"{what}, and {place} is a table of points"))
    directory, written, _ = _analysis_of(place, {})
    source = records.read_source(directory)
    refuse("", (is_table(directory / source["runs"]), f"{what}; {directory} is of a table of points"))
    if written or not (directory / "report.html").is_file():
        write_page(directory)
        source = records.read_source(directory)
    runs, analysis = (directory / source["runs"]).resolve(), read_analysis(directory)
    archived = gather(directory / source["runs"], directory, source, study_file=study_file)
    path = write_archive(archived, out or runs.with_name(f"{runs.name}.zip"), analysis, source)
    total = analysis.provenance["runs"]["total"]
    return {
        "document": {"archive": str(path), "runs": total, "left_out": len(archived.left_out)},
        "lines": [f"{path}", *summary(archived, analysis)],
        "files": [path],
        "doubts": _left_out(analysis),
    }


def _extra_p(place: Path, out: Path | None, data: bytes | None) -> Told:
    from horovod_study.report.export import write_extra_p

    if place.is_dir() and not is_table(place):
        points = exchange.points_of(records.load_tables(place, ("runs",), ())[0]["runs"])
    else:
        points = read_points(place, data=data)
    found = exchange.extra_p(points)
    few = [counts for counts in map(exchange.counts_of, found) if len(counts) < exchange.MIN_COUNTS]
    told = [f"{len(counts)} worker counts ({', '.join(map(str, counts))})" for counts in few]
    paths = write_extra_p(found, out or (place if place.is_dir() else place.parent) / "extra-p")
    return {
        "document": {"to": "extra-p", "series": len({name for each in found for name in each["measurements"]})},
        "lines": map(str, paths),
        "files": paths,
        "doubts": [f"{each}; Extra-P asks for at least {exchange.MIN_COUNTS}" for each in told],
    }
