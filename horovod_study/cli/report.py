"""`horovod-study report`: figures, tables and page of a study, whether they hold, and files for other programs."""

import argparse
import sys
from pathlib import Path

from horovod_study.cli.verbs import (
    COLUMNS,
    DIR,
    FLAG,
    PROGRAM,
    Result,
    Verb,
    add_figure_arguments,
    read_data,
    runs_folder,
    whole,
)
from horovod_study.config.options import Parser
from horovod_study.errors import refuse


def _report_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("directory", **DIR, help="runs, a study file, tables of an analysis; or anybody's numbers")
    add("--out", **DIR, help="receives everything (default DIR/analysis)")
    add("--check", **FLAG, help="make every number again from the raw rows, and compare")
    add("--against", type=Path, metavar="BEFORE_DIR", help="begin with the differences to this study")
    add("--paper", **FLAG, help="write DIR/paper too: a LaTeX section for a thesis")
    add("--export", metavar="NAME", help="for other programs; see report --export --help")
    add("--target", type=float, nargs="+", metavar="MSE", help="test MSEs to which the times are compared")
    add("--columns", **COLUMNS)
    add("--tables", **FLAG, help="write only the tables: no figures, no page")
    add("--json", **FLAG, help="print what was found as one line of JSON")
    threads = "of runs: how many are read at a time (default: one per core, at most 4)"
    add("--threads", type=whole(1), metavar="N", help=threads, more=True)
    bench = "of runs: what `horovod-study bench` measured of the machines (default: that of DIR/bench, if any)"
    add("--bench", type=Path, nargs="+", metavar="bench.json", help=bench, more=True)
    add_figure_arguments(parser)
    add("--pgf", **FLAG, help="write the figures as PGF too, for \\input; needs LaTeX", more=True)
    fail = "with --against: end with 1 if a cell is certainly worse, by so much or more: slower=5%%, step=, sync=, "
    fail += "speedup=, efficiency=, target=, energy=; missing: if a cell has vanished; unresolved: if it cannot be "
    fail += "determined"
    add("--fail-on", nargs="+", action="extend", metavar="WORD[=P]", help=fail, more=True)
    match = "with --against, which cells are compared: auto (by all that defines them but the partition or a way of "
    match += "running that was changed as a whole), exact, or except:SETTING,SETTING (default auto)"
    add("--match", metavar="HOW", help=match, more=True)
    add("--runs", type=Path, metavar="RUNS", help="with --check: where the run directories are now", more=True)
    allow = "with --check: doubts that are known and do not end it with 1"
    add("--allow", nargs="+", metavar="NAME", help=allow, more=True)
    add("--files", **FLAG, help="print the path of every file that was written, and nothing else", more=True)


def report(options: argparse.Namespace) -> Result:
    """Write figures, tables and page of a study; check or compare them."""
    from horovod_study import api

    asked = {name: value for name, value in vars(options).items() if name not in PROGRAM}
    return Result(**api.report(runs_folder(asked.pop("directory")), **asked))


def _export_arguments(parser: Parser) -> None:
    add = parser.add_argument
    place = "a run directory or a folder of them; extra-p: tables or points; zip: a study"
    add("place", type=Path, metavar="PLACE", help=place)
    kinds = ("trace", "tensorboard", "wandb", "mlflow", "extra-p", "zip")
    add("--export", nargs="?", choices=kinds, metavar="NAME", help=", ".join(kinds) + " (one file to publish)")
    steps = "of a trace: from A to before B (default all; 1,000 of one rank take 0.8 MB)"
    add("--steps", type=_steps, metavar="A:B", help=steps)
    add("--out", type=Path, metavar="PATH", help="the trace, the archive, or a new folder")
    add("--json", **FLAG, help="print the paths as one line of JSON")


def export(options: argparse.Namespace) -> Result:
    """Write what was recorded for other programs, or a study as one file."""
    from horovod_study import api

    place = options.place
    what = "report --export: name what to write, such as --export trace; see report --export --help"
    refuse("", (options.export is None, what))
    return Result(
        **api.export(
            runs_folder(place),
            options.export,
            out=options.out,
            steps=options.steps,
            study_file=place if place.suffix in (".yaml", ".yml") else None,
            data=read_data(place) if str(place) == "-" else None,
        )
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


VERBS = (Verb("report", report, _report_arguments), Verb("report --export", export, _export_arguments))
