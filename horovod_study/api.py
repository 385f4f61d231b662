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
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study import records
from horovod_study.analysis.audit import Study, recount, versions
from horovod_study.analysis.fit.fitting import fit_series as fit
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.importers import (
    BENCH_FILE,
    SAMPLES,
    benches_of,
    parse_columns,
    placed_name,
    points_from,
)
from horovod_study.analysis.machine.network import restored
from horovod_study.analysis.series import exchange
from horovod_study.analysis.series.points import cores_of_one_machine, study_turns, with_series
from horovod_study.analysis.simulate.calibration import Given, calibrate, largest_of_each_kind, run_times
from horovod_study.analysis.simulate.scaling import simulate as simulate_scenarios
from horovod_study.analysis.simulate.scaling import what_if as scenarios
from horovod_study.analysis.steps.accounting import Accounting, account, account_runs
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis
from horovod_study.analysis.study import analyze as analyze_tables
from horovod_study.config.documents import logs, parse_json, read_text
from horovod_study.config.doors import asked
from horovod_study.config.run import available_cores
from horovod_study.errors import AnalysisError, DataError, refuse
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
    networks = [(path, f"{path}") for path in _benches_beside(Path(runs))]
    return _analysed(Path(runs), targets=targets, threads=threads, networks=networks)[3]


def _analysed(
    root: Path,
    *,
    networks: Sequence[tuple[Path, str]],
    threads: int | None = None,
    columns: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    counted: Collection[str] | None = None,
    beside: Callable[[Any], None] | None = None,
    verb: str = "",
    **known: Any,
) -> "tuple[pd.DataFrame, pd.DataFrame, Accounting, Analysis]":
    """Return run table, evaluations, accounting and Analysis of the runs below `root`, or of a table of points or logs.

    `networks`: bench.json files and what the analysis calls them. `only`: names of the runs to read, `counted`: of
    those that count. `beside` is called with each run while its rows are at hand, `verb` shows how far it is. `known`:
    targets, commands and precision, as the analysis takes them.
    """
    how: dict[str, Any] = {"error": DataError, "again": "measure again with horovod-study bench"}
    contents = ((parse_json(_text(path), source=named, **how), named) for path, named in networks)
    known["networks"] = [records.finite(restored(content, source=named)) for content, named in contents]
    if is_table(root):
        points = read_points(root, columns=columns)
        table = exchange.run_rows(points, root.resolve().stem)
        known["commands"] = known.get("commands") or [f"horovod-study report {shlex.quote(root.resolve().name)}"]
        found = analyze_tables(table, None, unit=points.attrs.get("unit", SAMPLES), **known)
        return table, records.epoch_table(), account(table, ()), found.with_doubts(exchange.doubts(points))
    left_out: dict[str, str] = {}
    table, recorded = records.recorded_runs([root], only=only, left_out=left_out)
    evaluations = records.epoch_table(root, only=only)
    if counted is not None:
        table, evaluations = (
            each[each["run"].isin([*counted])].reset_index(drop=True) for each in (table, evaluations)
        )

    def with_steps() -> Iterator[records.RecordedRun]:
        for run in recorded:
            if counted is not None and run.name not in counted:
                continue
            if not records.is_command(run.record):
                yield run
            elif beside is not None:
                beside(run)

    with closing(Line(enabled=bool(verb))) as line:
        accounts = account_runs(
            with_steps(),
            threads=threads or min(available_cores(), _MAX_THREADS),
            on_progress=lambda done: line.now_and_then(f"{verb}: run {done:,} of {len(table):,}"),
            beside=beside,
        )
    known |= {"accounting": (accounting := account(table, accounts)), "turns": study_turns(root)}
    found = analyze_tables(table, evaluations, unit=_unit_of(table), **known)
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
    """Return the points of a CSV file with columns workers, samples_per_s and perhaps more (docs/predict.md).

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
    """Return simulated steps: one row per scenario and worker count (docs/predict.md).

    `runs` are run directories (computing), `benches` are files of `horovod-study bench`
    or what nccl-tests, rccl-tests or osu_allreduce printed (the network); `what_if` and
    `constants` have the names and units of the verb's options: `compute_ms=5`, `alpha_us=10`, `gb_per_s=1`, ...
    Raises ConfigError for contradictions and for what nobody said.
    """
    given = asked(Given, constants, "simulate")
    recorded = [run_times(records.recorded_run(Path(each))) for each in runs]
    size = recorded[0].gradient_bytes if recorded and given.gradient_mb is None else (given.gradient_mb or 0.0) * 1e6
    texts = {str(each): _text(Path(placed_name(str(each))[0]), BENCH_FILE) for each in benches}
    networks = [
        (content, name)
        for name, text in texts.items()
        for content in benches_of(text, source=name, gradient_bytes=size or None)
    ]
    kept = largest_of_each_kind(networks)[0]
    known = calibrate(given, runs=recorded, benches=kept, further=[each for each in networks if each not in kept])
    return simulate_scenarios(scenarios(known, what_if), list(workers), global_batch=global_batch, seed=seed)


def _text(path: Path, wanted: str = "the bench.json that `horovod-study bench` wrote") -> str:
    return read_text(path, error=DataError, again=f"give {wanted}")


# ------------------------------------------------------------------------------------------- a study as files

Told = dict[str, Any]
"""What there is to say: document, lines, files, doubts, exit_code, of which some may be left out."""

_MAX_THREADS = 4
"""More do not read step rows any faster: what is left to Python goes one at a time."""


def report(directory: Path, **options: Any) -> Told:
    """Write page, figures and tables of a study, or check all of them, and return what there is to say.

    `directory` holds runs or the tables of an analysis, or is a table of points; `options` are those of
    `horovod-study report`, None or False where they are not given. Raises ConfigError where they contradict each other.
    """
    asked = {name: value for name, value in options.items() if value not in (None, False)}
    _refuse_idle(directory, asked)
    place = _tables_place(directory, asked)
    if "check" in asked:
        return _check(place, asked.get("runs"), asked.get("allow", ()))
    if "tables" in asked:
        paths, doubts = write_analysis(directory, place, **_of_runs(asked))
        said = [f"tables: {place} ({plural(len(paths), 'file')})"]
        return {"document": {}, "lines": said, "files": paths, "doubts": doubts}
    from horovod_study.report.export import write_paper
    from horovod_study.report.kit.style import FigureFormat
    from horovod_study.report.page.tables import answer_lines, told_doubts

    place, analysis, made, _ = _opened(directory, asked)
    doubts = [each.text for each in told_doubts(analysis)]
    look: dict[str, Any] = {"look": FigureFormat.of(asked.get("width", "text"), asked.get("font", "sans"))}
    if "against" in asked:
        return _report_against(place, analysis, asked, look, doubts)
    page, *others = write_page(place, analysis, **look)
    files = [
        page,
        *made,
        *others,
        *(write_paper(analysis, place, records.read_source(place)) if "paper" in asked else ()),
    ]
    answer = answer_lines(analysis)
    where = f"report: {page} (and {plural(len(files) - 1, 'file')} of tables and figures)"
    return {"document": {"answer": answer}, "lines": [*answer, where], "files": files, "doubts": doubts}


def _refuse_idle(directory: Path, asked: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that would do nothing."""
    chosen = sorted({*asked} & {"check", "against", "paper", "tables", *(("files",) if "check" in asked else ())})
    needed = {"runs": "check", "allow": "check", "fail_on": "against"}
    table, tables = is_table(directory), records.holds_tables(directory)
    of_runs = ["target", "threads", "bench", *(["paper"] if table else ["out"] if tables else [])]
    idle = [name for name in of_runs if name in asked and (table or tables)]
    alone = [(name, other) for name, other in needed.items() if name in asked and other not in asked]
    refuse(
        "",
        (chosen[1:], f"{' and '.join(f'--{name}' for name in chosen[:2])} ask for different things; give one of them"),
        *((True, f"--{name.replace('_', '-')}: goes with --{other}; give that too") for name, other in alone),
        (asked.get("columns") and not table, f"--columns: is about a table of points, and {directory} is none"),
        *((True, f"--{name}: is about runs, and {directory} holds none; name the folder of its runs") for name in idle),
    )


def _benches_beside(root: Path) -> list[Path]:
    """Return the bench.json that `horovod-study bench --out ROOT/bench` wrote beside the runs, if it is there."""
    return [path for path in (root / "bench" / records.BENCH,) if path.is_file()]


def _of_runs(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the options say of how to analyse."""
    names = {"targets": "target", "threads": "threads", "benches": "bench"}
    columns = parse_columns(asked.get("columns") or ())
    told = {name: asked[option] for name, option in names.items() if option in asked}
    return told | ({"columns": columns} if columns else {})


def _tables_place(place: Path, asked: Mapping[str, Any]) -> Path:
    """Return the directory of the tables of `place`: itself, or --out, or beside runs or a table."""
    if records.holds_tables(place):
        return place
    beside = place / "analysis" if place.is_dir() or not is_table(place) else place.with_name(f"{place.stem}-report")
    return Path(asked.get("out") or beside)


def _opened(place: Path, asked: Mapping[str, Any] | None = None) -> tuple[Path, Analysis, list[Path], list[str]]:
    """Return where the tables of a study are, what they say, which of them were written, and its doubts.

    They are written where they are missing, older than the runs, or of another version, which has other columns.
    """
    directory, written, doubts = _tables_place(place, asked or {}), list[Path](), list[str]()
    for again in (False, True):
        if directory != place and (again or records.is_older(directory, place)):
            kept = records.analysis_options(directory, place)
            written, doubts = write_analysis(place, directory, **{**kept, **_of_runs(asked or {})})
        try:
            analysis = read_analysis(directory)
            break
        except AnalysisError:
            if again or directory == place:
                raise
    return directory, analysis, written, doubts or _left_out(analysis)


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
    """Analyse runs and write the tables; return their paths and the doubts. `how`: targets, commands, precision ..."""
    networks = [(path, str(path)) for path in (_benches_beside(runs) if benches is None else benches)]
    _, evaluations, _, result = _analysed(runs, networks=networks, only=only, verb="analysing", **how)
    written = records.save_tables(out, {"evaluations": evaluations, **result.tables()}, result.documents())
    found = () if is_table(runs) else records.found_runs(runs, only=only)
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
        run_files={name: records.run_files(directory) for directory, name, _ in found},
        turns_files=records.turns_files(runs),
        precision=how.get("precision"),
        **({"columns": dict(how.get("columns") or {})} if is_table(runs) else {}),
    )
    return written, result.provenance["doubts"]


def write_page(
    directory: Path,
    analysis: Analysis,
    *,
    look: Any = None,
    others: Sequence[Path] = (),
    against: tuple[Any, Mapping[str, Any]] = (None, {}),
) -> list[Path]:
    """Write page, figures and tables for print of the analysis in `directory`; return the paths, the page first.

    What they were drawn with is kept for `report --check`, and of files that an earlier report wrote and this one did
    not nothing stays, so that nobody quotes them. `others` were written for this page; `against` is a comparison, and
    of which directory and match it is.
    """
    from horovod_study.report.kit.style import TEXT
    from horovod_study.report.page.check import drawn_by
    from horovod_study.report.page.html import write_report

    how: dict[str, Any] = {"look": look or TEXT, "against": against[0]}
    paths = [*write_report(analysis, directory, second_process=available_cores() > 1, **how), *others]
    written = [Path(os.path.relpath(path, directory)).as_posix() for path in paths]
    for name in set(records.earlier_report(directory)).difference(written):
        with suppress(OSError):  # it is gone, or it stays and --check names it
            (directory / name).unlink()
    drawn = {**drawn_by(directory, paths, look, others), "files": written}
    records.write_source(directory, report=drawn | ({"against": against[1]} if against[1] else {}), left=[])
    return paths


def _check(directory: Path, runs: Path | None, allow: Sequence[str]) -> Told:
    """Make every number of an analysis again from the raw rows, and compare; `runs`: where these are now."""
    from horovod_study.report.page.check import allowed, check, document, kept_runs, lines, runs_of

    known, counted = allowed(allow), kept_runs(directory)
    source = runs_of(directory, runs)
    place, only = source["runs"], source.get("only")
    there = {} if is_table(place) else {name: record for _, name, record in records.found_runs(place, only=only)}
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
        recounts=[] if is_table(place) else [recounts[name] for name in table["run"]],
        records=there,
        planned=source.get("planned") or (),
        set_aside=dict(records.set_aside(place)),
    )
    earlier = ((source.get("report") or {}).get("against") or {}).get("directory")

    def compared_again(analysis: Analysis) -> Any:
        """Return the comparison that the page of a study shows, or None where it shows none."""
        before = directory / (earlier or "")
        return earlier and _compared(analysis, directory, read_analysis(before), before)

    with closing(Line()) as line:
        found = check(
            directory,
            study,
            evaluations,
            source,
            runs={name: record.state() for name, record in there.items()},
            against=compared_again,
            allow=known,
            on_progress=lambda text: line.show(f"check: {text}"),
        )
    told = {"document": document(found), "lines": lines(found), "exit_code": int(bool(found.findings))}
    return {**told, "doubts": _left_out(result)}


def _compared(after: Analysis, directory: Path, before: Analysis, earlier: Path) -> Any:
    """Return how a study differs from an earlier one."""
    from horovod_study.analysis.against import compare_studies
    from horovod_study.report.against import names_of

    return compare_studies(after, before, names=names_of(directory.resolve(), earlier.resolve()))


def _report_against(
    directory: Path, after: Analysis, asked: Mapping[str, Any], look: Mapping[str, Any], doubts: Sequence[str]
) -> Told:
    """Write the page of a study that begins with the differences to an earlier one."""
    from horovod_study.analysis.against import gate, limit_of
    from horovod_study.report.against import document, gate_lines, lines, write_against

    limit = limit_of(asked["fail_on"]) if "fail_on" in asked else None
    earlier, before, _, more = _opened(asked["against"])
    found = _compared(after, directory, before, earlier)
    judged = None if limit is None else gate(found, limit)
    against = {"directory": Path(os.path.relpath(earlier, directory)).as_posix()}
    others = write_against(found, directory, judged)
    paths = write_page(directory, after, others=others, against=(found, against), **look)
    where = f"report: {paths[0]}  (against.json and tables/against.* beside it)"
    return {
        "document": document(found, judged),
        "lines": [*lines(found), *([] if judged is None else gate_lines(found, judged)), where],
        "files": paths,
        "doubts": [*doubts, *more],
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
    from horovod_study.report import export as files

    refuse("", (steps is not None and to != "trace", "--steps is for --export trace; leave it out"))
    if to == "zip":
        runs_at = place / (records.read_source(place)["runs"] if records.holds_tables(place) else "")
        why = f"--export zip: is about runs, and {runs_at} holds none; name the folder of its runs"
        refuse("", (is_table(runs_at), why))
        directory, analysis, written, doubts = _opened(place)
        if written or not (directory / "report.html").is_file():
            write_page(directory, analysis)
        path, kept_out, lines = files.write_archive(directory, analysis, out, study_file=study_file)
        total = analysis.provenance["runs"]["total"]
        document = {"archive": str(path), "runs": total, "left_out": kept_out}
        return {"document": document, "lines": [f"{path}", *lines], "files": [path], "doubts": doubts}
    if to == "extra-p":
        if place.is_dir() and not is_table(place):
            points = exchange.points_of(records.load_tables(place, ("runs",), ())[0]["runs"])
        else:
            points = read_points(place, data=data)
        found = exchange.extra_p(points)
        few = (each for each in found if len(each) < exchange.MIN_COUNTS)
        told = (f"{len(each)} worker counts ({', '.join(map(str, each))})" for each in few)
        doubts = [f"{each}; Extra-P asks for at least {exchange.MIN_COUNTS}" for each in told]
        paths = files.write_extra_p(found, out or (place if place.is_dir() else place.parent) / "extra-p")
        document = {"to": to, "series": len({name for each in found.values() for name in each["measurements"]})}
        return {"document": document, "lines": map(str, paths), "files": paths, "doubts": doubts}
    left_out: dict[str, str] = {}
    runs = records.found_runs(place, left_out=left_out)
    several = to == "trace" and runs[1:]
    refuse("", (several, f"{place}: holds {len(runs)} runs, and a trace shows one; name its folder"))
    if to == "trace":
        paths = [files.write_trace(runs[0][0], out, steps)]
    else:
        paths = files.write_tracker(to, runs, out or Path("runs") / to)
    doubts = [f"left out: {name}: {why}" for name, why in left_out.items()]
    return {"document": {"to": to, "runs": len(runs)}, "lines": map(str, paths), "files": paths, "doubts": doubts}
