"""`horovod-study compare` and `tune`: experiments with an answer of their own."""

import argparse
import shlex
from pathlib import Path

from horovod_study.cli.verbs import COUNT, DIR, FLAG, NUMBER, SEVERAL, Result, Verb, given, until_share
from horovod_study.options import SET_BY_COMPARE, SET_BY_TUNE, Parser, add_run_options, run_values
from horovod_study.workloads import find_workload


def _tune_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--runtime", default="horovod/mpi", metavar="NAME", help="such as ddp/gloo (default horovod/mpi)")
    add("--workers", **COUNT, help="workers that train (default: as many as cores allow)")
    add("--minutes", **NUMBER, help="for all launches (default 3, where settings cannot train in turns 10)")
    add("--no-turns", dest="turns", action="store_false", help="launch one setting after the other in any case")
    add("--rounds", **COUNT, default=6, help="most stages of the race (default 6)")
    add("--knobs", nargs="+", default=[], metavar="NAME", help="settings to vary (default: all that matter)")
    add("--knob", **SEVERAL, metavar="NAME=V1,V2", help="values of a setting instead of the usual; again for others")
    add("--config", type=Path, metavar="FILE.yaml", help="read options of the run from a YAML file first")
    add("--out", **DIR, default=Path("tune"), help="receives the result and all launches")
    add("--json", **FLAG, help="end with one line of JSON on standard output")
    _add_workload(parser)
    add_run_options(parser, hidden=SET_BY_TUNE)


def tune(options: argparse.Namespace) -> int | Result:
    """Find the fastest communication settings for a model and machine."""
    from horovod_study.report.tune import run_lines, table
    from horovod_study.studies.interruption import exit_code
    from horovod_study.studies.tune import run_tune, tune_request

    request = tune_request(
        options.config,
        run_values(options),
        runtime=options.runtime,
        values=options.knob,
        **given(options, "workers", "minutes", "rounds", "knobs", "turns"),
        workload=find_workload(options.workload),
    )
    found = run_tune(request, options.out, command=shlex.join(["horovod-study", *options.words]))
    return Result(document=found, lines=[*table(found), "", *run_lines(found)]) if found else exit_code()


def _add_workload(parser: Parser) -> None:
    text = "another training than the package's own: a Python file that declares it as WORKLOAD (docs/studies.md)"
    parser.add_argument("--workload", metavar="FILE.py", help=text, more=True)


def _compare_arguments(parser: Parser) -> None:
    add = parser.add_argument
    for name in ("a", "b"):
        text = "RUNTIME[,option=value...], or a YAML file of options with it"
        add(name, metavar=name.upper(), help=text)
    add("--workers", **COUNT, nargs="+", help="worker counts to compare at (default: one per core)")
    add("--blocks", **COUNT, help="blocks per worker count (default 5; with --until, and without turns, 10 at most)")
    add("--until", metavar="P%", help="add blocks until the 95 %% interval of B/A is so narrow to either side: 2%%")
    add(
        "--no-turns",
        dest="turns",
        action="store_false",
        help="run A and B of a block in any case one after the other",
        more=True,
    )
    add("--out", **DIR, default=Path("compare"), help="receives runs and result (default compare)")
    add("--json", **FLAG, help="print one line of JSON")
    _add_workload(parser)
    add_run_options(parser, hidden=SET_BY_COMPARE)
    parser.epilog = "A and B make the same number of steps: --steps, or --seconds (default 5) of them. docs/compare.md"


def compare(options: argparse.Namespace) -> Result:
    """Compare two configurations fairly, with an interval and a verdict."""
    from horovod_study.analysis.compare.comparison import compare as compare_blocks
    from horovod_study.analysis.compare.comparison import too_few
    from horovod_study.progress import say
    from horovod_study.report.figures.comparison import write_comparison
    from horovod_study.studies.compare import plan_effort, read_arms, run_compare, worker_counts

    arms, seconds = read_arms(options.a, options.b, run_values(options), find_workload(options.workload))
    workers = worker_counts(arms, options.workers)
    precision = None if options.until is None else until_share(options.until)
    effort = plan_effort(
        arms, workers, blocks=options.blocks, seconds=seconds, turns=options.turns, precision=precision
    )
    doubt = "" if effort.turns else too_few(effort.blocks, len(workers))
    if doubt:
        say(f"warning: {doubt}")
    command = shlex.join(["horovod-study", *options.words])
    result = run_compare(arms, options.out, command=command, workers=workers, effort=effort)
    found = compare_blocks(result.blocks, aim=precision)
    paths = write_comparison(found, result.to_dict(), options.out)
    return Result(
        document={**result.to_dict(), **found.to_dict()},
        lines=[*result.lines(), "", *found.lines(), f"figure: {options.out / 'comparison.png'}"],
        files=paths,
        exit_code=result.exit_code,
    )


VERBS = (Verb("compare", compare, _compare_arguments), Verb("tune", tune, _tune_arguments))
