"""`horovod-study report`: tables, laws, figures and the page of a study, and whether they hold."""

import argparse
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from horovod_study.cli.verbs import (
    BENCH_JSON,
    COLUMNS,
    DIR,
    FLAG,
    Result,
    Verb,
    add_figure_arguments,
    figure_look,
    progress,
    read_input,
    runs_folder,
    say_left_out,
)
from horovod_study.config import available_cores
from horovod_study.errors import ConfigError
from horovod_study.options import Parser
from horovod_study.text.words import plural

_MAX_THREADS = 4
"""More do not read step rows any faster: what is left to Python goes one at a time."""


def write_analysis(
    runs: Path,
    out: Path,
    *,
    commands: list[str] | None = None,
    targets: Sequence[float] = (),
    only: Collection[str] | None = None,
    threads: int | None = None,
    benches: Sequence[Path] | None = None,
    planned: Sequence[str] = (),
    precision: float | None = None,
    columns: Mapping[str, str] | None = None,
    doubts: bool = True,
) -> list[Path]:
    """Analyse runs and write the tables; `doubts` says whether each doubt is printed."""
    from horovod_study import records
    from horovod_study.analysis.audit import versions
    from horovod_study.api import is_table

    found = records.benches_beside(runs) if benches is None else benches
    networks = [(path, str(path)) for path in found]
    how: dict[str, Any] = {"targets": targets, "only": only, "precision": precision, "columns": columns}
    _, evaluations, _, result = _analysed(runs, commands=commands, threads=threads, networks=networks, **how)
    for doubt in result.provenance["doubts"] if doubts else ():
        print(f"doubt: {doubt}", file=sys.stderr)
    written = records.save_tables(out, {"evaluations": evaluations, **result.tables()}, result.documents())
    how = {"targets": list(targets), "commands": commands, "only": None if only is None else sorted(only)}
    kept = [{"path": Path(os.path.relpath(path, out)).as_posix(), "named": named} for path, named in networks]
    digests = {
        records.run_name(directory, runs): records.run_files(directory)
        for directory, _ in (() if is_table(runs) else records.readable_runs(runs, only))
    }
    more = {"planned": list(planned), "benches": kept, "versions": versions(), "run_files": digests}
    more |= {"turns_files": records.turns_files(runs), "precision": precision}
    more |= {"columns": dict(columns or {})} if is_table(runs) else {}
    records.write_source(out, runs, files=written, **how, **more)
    return written


def _analysed(
    runs: Path, *, threads: int | None, networks: Sequence[tuple[Path, str]], verb: str = "analysing", **how: Any
) -> tuple[Any, Any, Any, Any]:
    """Return run table, evaluations, accounting and Analysis of recorded runs; `how`: what api.analysed takes.

    `networks`: files of `horovod-study bench`, and what the analysis calls them.
    """
    from horovod_study.api import analysed

    with progress(lambda done, of: f"{verb}: run {done:,} of {of:,}") as on_progress:
        return analysed(
            runs,
            threads=threads or min(available_cores(), _MAX_THREADS),
            networks=[(read_input(path, BENCH_JSON), named) for path, named in networks],
            on_progress=on_progress,
            **how,
        )


def _report_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "directory",
        **DIR,
        help="a folder of runs (or a study file), which are analysed first where the tables are missing or older; "
        "or such tables; or anybody's numbers: a table, a log of a training, or a folder of them, as for fit",
    )
    add("--columns", **COLUMNS)
    add("--tables", **FLAG, help="analyse the runs of DIR, and write only the tables: no figures, no page")
    add("--out", **DIR, help="of runs: receives everything (default DIR/analysis, of a table NAME-report)")
    add("--target", type=float, nargs="+", metavar="MSE", help="of runs: test MSEs to which the times are compared")
    add(
        "--threads",
        type=_count,
        metavar="N",
        help="of runs: how many are read at a time (default: one per core, at most 4)",
    )
    add(
        "--bench",
        type=Path,
        nargs="+",
        metavar="bench.json",
        help="of runs: what `horovod-study bench` measured of the machines (default: that of DIR/bench, if any)",
    )
    add_figure_arguments(parser)
    add("--pgf", **FLAG, help="write the figures as PGF too, for \\input; needs LaTeX")
    add(
        "--paper",
        **FLAG,
        help="write DIR/paper too: a LaTeX section for a thesis with figures, tables, method, threats to validity, "
        "references and a reproducibility appendix",
    )
    add(
        "--against",
        type=Path,
        metavar="BEFORE_DIR",
        help="another analysed study, such as the one before a change: the page begins with the differences to it",
    )
    add(
        "--fail-on",
        nargs="+",
        action="extend",
        metavar="WORD[=PERCENT]",
        help="with --against: end with 1 if a cell is certainly worse, by so much or more: slower=5%%, step=, sync=, "
        "speedup=, efficiency=, target=, energy=; missing: if a cell has vanished; unresolved: if it cannot be "
        "determined",
    )
    add(
        "--match",
        metavar="HOW",
        help="with --against, which cells are compared: auto (by all that defines them but the partition or a way of "
        "running that was changed as a whole), exact, or except:SETTING,SETTING (default auto)",
    )
    add(
        "--check",
        **FLAG,
        help="make every number again from the raw rows, compare, and look for faults; ends with 1 if there are any",
    )
    add("--runs", type=Path, metavar="RUNS", help="with --check: where the run directories are now")
    add("--allow", nargs="+", metavar="NAME", help="with --check: doubts that are known and do not end it with 1")
    add("--files", **FLAG, help="print the path of every file that was written, and nothing else")
    add("--json", **FLAG, help="print the answer, or all that --against or --check finds, as one line of JSON")


def report(options: argparse.Namespace) -> Result:
    """Draw the figures and write the page of a study, or check all of it against the raw rows (--check)."""
    options.directory = runs_folder(options.directory)
    _refuse_idle_options(options)
    if options.check:
        return _check(options)
    if options.tables:
        directory = options.out or _tables_of(options.directory)
        paths = write_analysis(options.directory, directory, **_asked(options))
        return Result(document={}, lines=[f"tables: {directory} ({plural(len(paths), 'file')})"], files=paths)
    directory, paths = _analysis_of(options, options.directory)
    if options.against is not None:
        return _report_against(options, directory, _analysis_of(options, options.against, before=True)[0])
    from horovod_study.api import read_analysis
    from horovod_study.report.page.answer import answer_lines

    analysis = read_analysis(directory)
    if not paths:
        say_left_out(analysis.provenance.get("left_out", {}))
    page, *others = write_page(directory, look=figure_look(options), pgf=options.pgf)
    paths = [page, *paths, *others]
    if options.paper:
        from horovod_study import records
        from horovod_study.report.page.paper import write_paper

        paths += write_paper(analysis, directory, records.read_source(directory))
    answer = answer_lines(analysis)
    where = f"report: {page} (and {plural(len(paths) - 1, 'file')} of tables and figures)"
    return Result(document={"answer": answer}, lines=[*answer, where], files=paths)


_NEEDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "runs": (("check",), "is about what --check looks at; give --check too"),
    "allow": (("check",), "is about what --check looks at; give --check too"),
    "fail_on": (("against",), "is about another study; name its directory with --against"),
    "match": (("against",), "is about another study; name its directory with --against"),
}
"""Options that mean something only with one of others, and what to say without."""


def _refuse_idle_options(options: argparse.Namespace) -> None:
    """Raise ConfigError for an option that would do nothing."""
    from horovod_study.api import is_table

    given = {name for name, value in vars(options).items() if value not in (None, False)}
    chosen = sorted(given & {"check", "against", "paper", "tables", *(("files",) if options.check else ())})
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} ask for different things; give one of them")
    for name in (each for each in _NEEDS if each in given):
        needed, words = _NEEDS[name]
        if not given & set(needed):
            raise ConfigError(f"--{name.replace('_', '-')}: {words}")
    if is_table(options.directory):
        for name in ("target", "threads", "bench", "paper"):
            if getattr(options, name):
                raise ConfigError(f"--{name}: is about runs, and {options.directory} is a table of points")
    elif options.columns:
        raise ConfigError(f"--columns: says what the columns of a table of points are; {options.directory} is none")


def _analysis_of(options: argparse.Namespace, place: Path, *, before: bool = False) -> tuple[Path, list[Path]]:
    """Return where the tables of a study are, made of its runs where they are missing or older, and what was written.

    `before`: it is the other study of --against, for which --out and the options of an analysis do not count.
    """
    from horovod_study import records

    directory = _tables_place(options, place, before=before)
    if directory == place or not records.is_older(directory, place):
        return directory, []
    kept = records.analysis_options(directory, place)
    return directory, write_analysis(place, directory, **{**kept, **({} if before else _asked(options))})


def _tables_place(options: argparse.Namespace, place: Path, *, before: bool = False) -> Path:
    """Return the directory of the tables of `place`: itself, or for a folder of runs --out or analysis in it."""
    from horovod_study import records

    if not records.holds_tables(place):
        return (None if before else options.out) or _tables_of(place)
    for name in () if before else ("out", "target", "threads", "bench"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name}: is about runs, and {place} holds tables; name the folder of their runs")
    return place


def _tables_of(place: Path) -> Path:
    """Return where the tables of a folder of runs, or of a table of points, usually are."""
    from horovod_study.api import is_table

    return place / "analysis" if place.is_dir() or not is_table(place) else place.with_name(f"{place.stem}-report")


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the command line says of how to analyse."""
    from horovod_study.analysis.importers import parse_columns

    asked = {"targets": options.target, "threads": options.threads, "benches": options.bench}
    asked["columns"] = parse_columns(options.columns) or None
    return {name: value for name, value in asked.items() if value is not None}


def write_page(directory: Path, **how: Any) -> list[Path]:
    from horovod_study.api import read_analysis
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
    from horovod_study import records
    from horovod_study.report.page.check import drawn_by

    written = [Path(os.path.relpath(path, directory)).as_posix() for path in paths]
    for name in set(records.earlier_report(directory)).difference(written):
        with suppress(OSError):  # it is gone, or it stays and --check names it
            (directory / name).unlink()
    report = {**drawn_by(directory, paths, look, others), "files": written, **more}
    records.write_source(directory, report=report, left=[])


def up_to_date(place: Path) -> Path:
    """Return where the tables of `place` are, with a page; both are made where they are missing or older."""
    from horovod_study import records

    directory = place if records.holds_tables(place) else _tables_of(place)
    older = directory != place and records.is_older(directory, place)
    if older:
        write_analysis(place, directory, doubts=False, **records.analysis_options(directory, place))
    if older or not (directory / "report.html").is_file():
        write_page(directory)
    return directory


def _check(options: argparse.Namespace) -> Result:
    from horovod_study.report.page.check import allowed, lines

    allow = allowed(options.allow or ())
    found = _checked(_tables_place(options, options.directory), options.runs, allow)
    return Result(document=found.to_dict(), lines=lines(found), exit_code=found.exit_code)


def _checked(directory: Path, runs: Path | None, allow: Collection[str]) -> Any:
    """Return what `report --check` finds (report.page.check.PageCheck); `runs`: where these are now."""
    from horovod_study import records
    from horovod_study.analysis.audit import Study, recount
    from horovod_study.analysis.series.points import with_series
    from horovod_study.api import is_table
    from horovod_study.progress import Line
    from horovod_study.report.page.check import check, kept_runs, runs_of

    counted = kept_runs(directory)
    source = runs_of(directory, runs)
    only = source.get("only")
    reported = is_table(source["runs"])
    records_there = {} if reported else dict(records.named_records(source["runs"], only=only))
    recounts: dict[str, Any] = {}

    def beside(run: Any) -> None:
        recounts[run.name] = recount(run, records.run_side_files(run.directory))

    table, evaluations, accounting, result = _analysed(
        source["runs"],
        commands=source.get("commands"),
        targets=source.get("targets") or (),
        only=only,
        threads=None,
        networks=source["networks"],
        precision=source.get("precision"),
        columns=source.get("columns"),
        verb="checking",
        counted=None if counted is None or not set(counted) & set(records_there) else counted,
        beside=beside,
    )
    study = Study(
        runs=with_series(table),
        analysis=result,
        accounting=accounting,
        recounts=[] if reported else [recounts[name] for name in table["run"]],
        records=records_there,
        planned=source.get("planned") or (),
        set_aside=dict(records.set_aside(source["runs"])),
    )
    say_left_out(result.provenance.get("left_out", {}))
    line = Line()
    found = check(
        directory,
        study,
        evaluations,
        source,
        runs={name: record.state() for name, record in records_there.items()},
        against=lambda analysis: _compared_again(directory, analysis, source),
        allow=allow,
        on_progress=lambda text: line.show(f"check: {text}"),
    )
    line.close()
    return found


def _compared_again(directory: Path, analysis: Any, source: Mapping[str, Any]) -> Any:
    """Return the comparison that the page of a study shows, or None where it shows none."""
    from horovod_study.analysis.against import compare_studies
    from horovod_study.api import read_analysis
    from horovod_study.report.against import names_of

    told = (source.get("report") or {}).get("against")
    if told is None:
        return None
    before = directory / told["directory"]
    names = names_of(directory.resolve(), before.resolve())
    return compare_studies(analysis, read_analysis(before), match=told.get("match"), names=names)


def _report_against(options: argparse.Namespace, directory: Path, earlier: Path) -> Result:
    from horovod_study.analysis.against import compare_studies, gate, read_limits
    from horovod_study.api import read_analysis
    from horovod_study.report.against import document, gate_lines, lines, names_of, write_against
    from horovod_study.report.page.html import write_report

    limits = read_limits(options.fail_on or ())
    after, before = (read_analysis(each) for each in (directory, earlier))
    for analysis in (after, before):
        say_left_out(analysis.provenance.get("left_out", {}))
    names = names_of(directory.resolve(), earlier.resolve())
    found = compare_studies(after, before, match=options.match, names=names)
    judged = gate(found, limits) if limits else None
    look, two = figure_look(options), available_cores() > 1
    paths = write_report(after, directory, look=look, pgf=options.pgf, against=found, second_process=two)
    others = write_against(found, directory, judged)
    against = {"directory": Path(os.path.relpath(earlier, directory)).as_posix(), "match": options.match}
    _keep_drawn(directory, [*paths, *others], look, others, against=against)
    gated = [] if judged is None else ["", *gate_lines(found, judged)]
    where = f"report: {paths[0]}  (against.json and tables/against.* beside it)"
    return Result(
        document=document(found, judged),
        lines=[*lines(found), *gated, where],
        files=[*paths, *others],
        exit_code=0 if judged is None or judged["passed"] else 1,
    )


def _count(text: str) -> int:
    """Return a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


VERBS = (Verb("report", report, _report_arguments),)
