"""`horovod-study export`: what was recorded, for other programs, and a study as one file to publish."""

import argparse
import sys
from pathlib import Path

from horovod_study.cli.report import up_to_date
from horovod_study.cli.verbs import FLAG, Result, Verb, read_data, readable_runs, runs_folder, say_left_out
from horovod_study.errors import ConfigError, RecordError
from horovod_study.options import Parser


def _export_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "runs",
        type=Path,
        metavar="PLACE",
        help="a run directory, or (not for a trace) a folder of them; for extra-p the tables of an analysis or "
        "a points file; for --archive a study's file, its folder of runs, or its tables",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--to",
        "--format",
        choices=("trace", "tensorboard", "wandb", "mlflow", "extra-p"),
        help="what to write",
    )
    what.add_argument(
        "--archive",
        **FLAG,
        help="one ZIP file to publish: runs, tables, page, how it was made, digests",
    )
    add(
        "--steps",
        type=_steps,
        default=(0, sys.maxsize),
        metavar="A:B",
        help="of a trace: steps from A to before B (default all; 1,000 steps of one rank take 0.8 MB)",
    )
    add(
        "--out",
        type=Path,
        metavar="PATH",
        help="the trace (default RUN_DIR/trace.json), the archive (RUNS.zip), or a new folder (default "
        "runs/tensorboard, ..., PLACE/extra-p)",
    )
    add("--json", **FLAG, help="print the paths as one line of JSON")


def export(options: argparse.Namespace) -> Result:
    """Write what was recorded for other programs (traces, trackers, Extra-P), or a study as one file."""
    if options.steps != (0, sys.maxsize) and options.to != "trace":
        raise ConfigError("export: --steps is for --to trace; leave it out")
    if options.archive:
        return _export_archive(options)
    if options.to == "extra-p":
        return _export_extra_p(options)
    from horovod_study import records
    from horovod_study.analysis.series.history import history
    from horovod_study.report.export import Recorded, write_tracker

    directories = readable_runs(options.runs)
    if not directories:
        raise RecordError(f"{options.runs}: holds no runs; name a run directory, or a folder of them")
    if options.to == "trace":
        if len(directories) > 1:
            raise ConfigError(f"{options.runs}: holds {len(directories)} runs, and a trace shows one; name its folder")
        paths = [_export_trace(options, directories[0])]
    else:
        runs = [
            Recorded(
                name=records.run_name(directory, options.runs),
                record=records.read_run(directory),
                history=history(records.rows_between(directory), records.epoch_rows(directory)),
            )
            for directory in directories
        ]
        paths = write_tracker(options.to, runs, options.out or Path("runs") / options.to)
    return Result(document={"to": options.to, "runs": len(directories)}, lines=map(str, paths), files=paths)


def _export_trace(options: argparse.Namespace, directory: Path) -> Path:
    from horovod_study import records
    from horovod_study.analysis.steps.trace import events
    from horovod_study.report.export import write_trace

    record, rows = records.read_run(directory), records.rows_between(directory, options.steps)
    marks, first = records.epoch_rows(directory), records.timed_from(record)[0]
    found = events(rows, records.hosts_of(record, rows), evaluations=marks, warmup_steps=first)
    about = {"run": str(directory), "study": record.study, "steps": f"{options.steps[0]}:{options.steps[1]}"}
    about["clock"] = "time since the first step of the run; there the ranks of all hosts waited at a barrier"
    return write_trace(found, options.out or directory / "trace.json", about=about)


def _export_archive(options: argparse.Namespace) -> Result:
    from horovod_study import api, records
    from horovod_study.report.archive import gather, summary, write_archive

    if api.is_table(options.runs) and not options.runs.name.endswith((".yaml", ".yml")):
        raise ConfigError(f"export --archive: archives the runs of a study, and {options.runs} is a table of points")
    directory = up_to_date(runs_folder(options.runs))
    source = records.read_source(directory)
    if api.is_table(directory / source["runs"]):
        raise ConfigError(f"export --archive: archives the runs of a study; {directory} is of a table of points")
    of_file = options.runs if options.runs.suffix in (".yaml", ".yml") else None
    archived = gather(directory / source["runs"], directory, source, study_file=of_file)
    runs = (directory / source["runs"]).resolve()
    analysis = api.read_analysis(directory)
    say_left_out(analysis.provenance.get("left_out", {}))
    path = write_archive(archived, options.out or runs.with_name(f"{runs.name}.zip"), analysis, source)
    return Result(
        document={
            "archive": str(path),
            "runs": analysis.provenance["runs"]["total"],
            "left_out": len(archived.left_out),
        },
        lines=[f"{path}", *summary(archived, analysis)],
        files=[path],
    )


def _export_extra_p(options: argparse.Namespace) -> Result:
    from horovod_study import api, records
    from horovod_study.analysis.series import exchange
    from horovod_study.report.export import write_extra_p

    if options.runs.is_dir() and not api.is_table(options.runs):
        points = exchange.points_of(records.load_tables(options.runs, ("runs",), ())[0]["runs"])
    else:
        points = api.read_points(options.runs, data=read_data(options.runs) if str(options.runs) == "-" else None)
    found = exchange.extra_p(points)
    for counts in map(exchange.counts_of, found):
        if len(counts) < exchange.MIN_COUNTS:
            told = f"{len(counts)} worker counts ({', '.join(map(str, counts))})"
            print(f"doubt: {told}; Extra-P asks for at least {exchange.MIN_COUNTS}", file=sys.stderr)
    paths = write_extra_p(
        found, options.out or (options.runs if options.runs.is_dir() else options.runs.parent) / "extra-p"
    )
    return Result(
        document={"to": options.to, "series": len({name for each in found for name in each["measurements"]})},
        lines=map(str, paths),
        files=paths,
    )


def _steps(text: str) -> tuple[int, int]:
    """Return (100, 300) for "100:300"; either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        bounds = int(first or 0), int(last or sys.maxsize)
    except ValueError:
        bounds = (0, 0)
    if not colon or not 0 <= bounds[0] < bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:LAST with 0 <= FIRST < LAST, such as 100:300")
    return bounds


VERBS = (Verb("export", export, _export_arguments),)
