"""`horovod-study report`: figures, tables and page of a study, whether they hold, and files for other programs."""

import argparse
import sys
from pathlib import Path
from typing import Any

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

_KINDS = ("trace", "tensorboard", "wandb", "mlflow", "extra-p", "zip")


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
    fail = "with --against: end with 1 if a throughput is certainly lower by so much or more, or a cell has vanished"
    add("--fail-on", metavar="5%", help=fail, more=True)
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
    add("place", nargs="?", type=Path, metavar="PLACE", help=place)
    kinds = f"{', '.join(_KINDS)} (one file to publish); several with commas or blanks between"
    add("--export", nargs="*", metavar="NAME", help=kinds)
    steps = "of a trace: from A to before B (default all; 1,000 of one rank take 0.8 MB)"
    add("--steps", type=_steps, metavar="A:B", help=steps)
    out = "the trace, the archive, or a new folder; of several a folder that receives each under its name"
    add("--out", type=Path, metavar="PATH", help=out)
    add("--json", **FLAG, help="print the paths as one line of JSON")


def export(options: argparse.Namespace) -> Result:
    """Write what was recorded for other programs, or a study as one file."""
    from horovod_study import api
    from horovod_study.config.doors import accept, checked

    words, place = list(options.export or ()), options.place
    place = Path(words.pop()) if place is None and words[1:] else place
    kinds = dict.fromkeys(kind for word in words for kind in word.replace(",", " ").split())
    what = "report --export: name what to write and of what, such as PLACE --export trace; see report --export --help"
    refuse("", (not kinds or place is None, what))
    for kind in kinds:
        accept(checked(str, choices=_KINDS), kind, "report", name="--export")
    several, found = len(kinds) > 1, []
    how: dict[str, Any] = {"study_file": place if place.suffix in (".yaml", ".yml") else None}
    how["data"] = read_data(place) if str(place) == "-" else None
    for kind in kinds:
        out = options.out / kind if several and options.out else options.out
        steps = None if several and kind != "trace" else options.steps
        found.append(api.export(runs_folder(place), kind, out=out, steps=steps, **how))
    joined: dict[str, Any] = {
        name: [each for told in found for each in told[name]] for name in ("lines", "files", "doubts")
    }
    documents = [told["document"] for told in found]
    return Result(document=documents[0] if len(found) == 1 else {"exports": documents}, **joined)


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
