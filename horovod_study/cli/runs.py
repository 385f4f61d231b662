"""`horovod-study inspect`, `export`, `attribute`, `account`, `timeline`, `learning-curve`: recorded runs in detail."""

import argparse
import sys
from pathlib import Path

from horovod_study.cli.verbs import Result, Verb, add_figure_arguments, figure_look, read_input, readable_runs
from horovod_study.errors import ConfigError, RecordError
from horovod_study.options import SET_BY_ATTRIBUTION, Parser, add_run_options, run_values


def inspect_arguments(parser: Parser) -> None:
    add_figure_arguments(parser)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="the directory of one run, finished or not")
    parser.add_argument("--out", type=Path, metavar="DIR", help="receives figures, inspect.txt and inspect.json")
    parser.add_argument("--json", action="store_true", help="print everything as one line of JSON")


def inspect(options: argparse.Namespace) -> Result:
    """Look at one run in detail: whether its laps close, which rank is slow, what paused, and what else it recorded."""
    from horovod_study import records
    from horovod_study.analysis.inspection import inspect as inspect_run
    from horovod_study.report.figures.inspection import result_lines, write_inspection

    run, beside = records.recorded_run(options.run), records.run_side_files(options.run)
    found = inspect_run(run, beside)
    look = figure_look(options)
    paths = write_inspection(found, run, beside, options.out, look=look) if options.out else []
    pictures = (f"figure: {path}" for path in paths if path.suffix == ".png")
    return Result(document=found.to_dict(), lines=[*result_lines(found), *pictures], files=paths)


def export_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        metavar="PLACE",
        help="a run directory, or (not for a trace) a folder of them; for extra-p and points a directory written by "
        "analyze, or a points file",
    )
    parser.add_argument(
        "--to",
        "--format",
        required=True,
        choices=("trace", "tensorboard", "wandb", "mlflow", "extra-p", "points"),
        help="what to write",
    )
    parser.add_argument("--series", metavar="NAME", help="of extra-p and points: one series (default all)")
    parser.add_argument(
        "--steps",
        type=_steps,
        default=(0, sys.maxsize),
        metavar="A:B",
        help="of a trace: steps from A to before B (default all; 1,000 steps of one rank take 0.8 MB)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="the trace (default RUN_DIR/trace.json), the points (default: printed), or a new folder (default "
        "runs/tensorboard, ..., PLACE/extra-p)",
    )
    parser.add_argument("--json", action="store_true", help="print the paths as one line of JSON")


def export(options: argparse.Namespace) -> int | Result:
    """Write what was recorded for other programs: Perfetto, TensorBoard, W&B, MLflow, Extra-P, or a points file."""
    if options.to in ("points", "extra-p"):
        return _export_points(options)
    from horovod_study import records
    from horovod_study.analysis.history import history
    from horovod_study.analysis.trace import events
    from horovod_study.report.export import Recorded, write_trace, write_tracker

    directories = readable_runs(options.runs)
    if not directories:
        raise RecordError(f"{options.runs}: holds no runs; name a run directory, or a folder of them")
    if options.to == "trace":
        if len(directories) > 1:
            raise ConfigError(f"{options.runs}: holds {len(directories)} runs, and a trace shows one; name its folder")
        directory = directories[0]
        record = records.read_run(directory)
        rows = records.rows_between(directory, options.steps)
        found = events(
            rows,
            records.hosts_of(record, rows),
            evaluations=records.epoch_rows(directory),
            warmup_steps=records.timed_from(record)[0],
        )
        about = {"run": str(directory), "study": record.study, "steps": f"{options.steps[0]}:{options.steps[1]}"}
        about["clock"] = "time since the first step of the run; there the ranks of all hosts stood at a barrier"
        paths = [write_trace(found, options.out or directory / "trace.json", about=about)]
    else:
        if options.steps != records.ALL_STEPS:
            raise ConfigError(f"export --to {options.to}: --steps is for --to trace; leave it out")
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


def _export_points(options: argparse.Namespace) -> int | Result:
    from horovod_study import records
    from horovod_study.analysis import exchange
    from horovod_study.analysis.points_file import parse_points
    from horovod_study.report.export import write_extra_p, write_text

    if options.steps != records.ALL_STEPS:
        raise ConfigError(f"export --to {options.to}: --steps is for --to trace; leave it out")
    notes = []
    if options.runs.is_dir():
        tables, documents = records.load_tables(options.runs, ("runs",), ("fits",))
        points = exchange.points_of(tables["runs"])
        bases = {name: each["base_samples_per_s"] for name, each in documents["fits"]["series"].items()}
        notes = [f"{name}: its laws there are those of fit --baseline {base!r}" for name, base in bases.items()]
    else:
        points = parse_points(
            read_input(options.runs, "an analysis directory or a points file"), source=str(options.runs)
        )
    names = list(dict.fromkeys(points["series"])) if "series" in points else [""]
    if options.series is not None:
        if options.series not in names:
            raise ConfigError(f"--series {options.series}: is not there; allowed: {', '.join(names)}")
        points = points[points["series"] == options.series]
        notes = [note for note in notes if note.startswith(f"{options.series}: ")]
    if options.to == "points":
        text = exchange.points_text(points, notes)
        paths = [write_text(text, options.out)] if options.out else []
        if not paths:
            print(text, end="")
            return 0
    else:
        found = exchange.extra_p(points)
        for counts in map(exchange.counts_of, found):
            if len(counts) < exchange.MIN_COUNTS:
                told = f"{len(counts)} worker counts ({', '.join(map(str, counts))})"
                print(f"doubt: {told}; Extra-P asks for at least {exchange.MIN_COUNTS}", file=sys.stderr)
        beside = options.runs if options.runs.is_dir() else options.runs.parent
        paths = write_extra_p(found, options.out or beside / "extra-p")
    return Result(document={"to": options.to, "series": len(names)}, lines=map(str, paths), files=paths)


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


def attribute_arguments(parser: Parser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUN_DIR",
        help="runs recorded with --measure-sync, or folders of them (default: make the experiment)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/attribution"),
        metavar="DIR",
        help="receives the figure, the table and the experiment's runs (default runs/attribution)",
    )
    parser.add_argument(
        "--runtime",
        nargs="+",
        default=["horovod/mpi", "horovod/gloo", "mpi/mpi"],
        metavar="NAME",
        help="of the experiment: how workers talk (default horovod/mpi horovod/gloo mpi/mpi)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="of the experiment: workers (default: one per core)")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="of the experiment: how often all is run (default 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    add_run_options(parser, hidden=SET_BY_ATTRIBUTION)


def attribute(options: argparse.Namespace) -> Result:
    """Say where the time of the synchronisation goes: transfer, skew, runtime, and what none of them explains."""
    from horovod_study import records
    from horovod_study.analysis.attribution import attribute as decompose_run
    from horovod_study.analysis.attribution import observe
    from horovod_study.report.figures.attribution import result_lines, write_attribution
    from horovod_study.studies.attribute import refuse_options, run_experiment

    if options.runs:
        refuse_options(run_values(options), recorded=True)
        directories = [directory for root in options.runs for directory in readable_runs(root)]
    else:
        directories = run_experiment(
            run_values(options), options.out, runtimes=options.runtime, workers=options.workers, rounds=options.rounds
        )
    seen = []
    for directory in directories:
        record, rows, bench = records.synchronised_run(directory)
        seen.append(observe(str(directory), record.requested, record.effective, record.repeat, rows, bench))
    found = decompose_run(seen)
    paths = write_attribution(found, options.out)
    return Result(document=records.finite(found), lines=result_lines(found, paths), files=paths, doubts=found.doubts)


def account_arguments(parser: Parser) -> None:
    add_figure_arguments(parser)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="run directories, or folders of them")
    parser.add_argument(
        "--max-residual",
        metavar="PERCENT",
        help="end with exit code 1 where more than so much is unexplained, such as 5%%: of a rank's step, or of what "
        "more workers add to it",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="receives the figure, the tables and all as JSON")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the tables")


def account(options: argparse.Namespace) -> Result:
    """Account for every step: parts that add up, what none of them covers, and what more workers add to a step."""
    from horovod_study import records
    from horovod_study.analysis.accounting import account as account_all
    from horovod_study.analysis.accounting import account_run, allowed_share, gate
    from horovod_study.report.figures.accounting import result_lines, write_accounting

    allowed = None if options.max_residual is None else allowed_share(options.max_residual)
    table, runs = records.recorded_runs(options.runs)
    found = account_all(table, [account_run(run) for run in runs])
    judged = None if allowed is None else gate(found, allowed)
    look = figure_look(options)
    paths = write_accounting(found, judged, options.out, look=look) if options.out else []
    return Result(
        document={**found.to_dict(), "gate": judged},
        lines=result_lines(found, judged, paths),
        files=paths,
        exit_code=0 if judged is None else judged.exit_code,
    )


def timeline_arguments(parser: Parser) -> None:
    add_figure_arguments(parser)
    parser.add_argument(
        "place",
        type=Path,
        metavar="RUN_DIR|FILE",
        help="a run recorded with --timeline-steps, or any timeline that Horovod wrote",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="receives tables and figure (default: timeline beside the file)"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def timeline(options: argparse.Namespace) -> Result:
    """Say where the time of Horovod's collectives goes: negotiation, queue, copies, transfer, from its timeline."""
    from horovod_study import records
    from horovod_study.analysis.timeline import decompose, parse_events
    from horovod_study.report.figures.timeline import result_lines, write_timeline

    path, text = records.read_timeline(options.place)
    events, doubts = parse_events(text, source=str(path))
    found = decompose(events, source=str(path), doubts=doubts)
    paths = write_timeline(found, options.out or path.parent / "timeline", source=str(path), look=figure_look(options))
    return Result(
        document={"source": str(path), **found.to_dict()},
        lines=result_lines(found, paths, source=str(path)),
        files=paths,
        doubts=found.doubts,
    )


def learning_curve_arguments(parser: Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR", help="run directories, or folders of them")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .pdf or .svg file to write")


def learning_curve(options: argparse.Namespace) -> int:
    """Draw the learning curves of one or several runs, finished or not."""
    from horovod_study import records
    from horovod_study.analysis.convergence import convergence
    from horovod_study.analysis.points import scaling_points
    from horovod_study.report.figures.convergence import write_learning_curves

    runs, evaluations = records.joined_tables(options.runs)
    found = convergence(runs, evaluations, finished=False)
    write_learning_curves(scaling_points(runs), found.curves, options.out)
    for doubt in found.doubts:
        print(f"doubt: {doubt}", file=sys.stderr)
    print(options.out)
    return 0


VERBS = (
    Verb("inspect", inspect, inspect_arguments),
    Verb("export", export, export_arguments),
    Verb("attribute", attribute, attribute_arguments),
    Verb("account", account, account_arguments),
    Verb("timeline", timeline, timeline_arguments),
    Verb("learning-curve", learning_curve, learning_curve_arguments),
)
