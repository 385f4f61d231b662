"""`horovod-study tune` and `verify`: experiments with an answer of their own."""

import argparse
import json
import shlex
from pathlib import Path

from horovod_study.cli.verbs import COUNT, DIR, FLAG, NUMBER, SEVERAL, Result, Verb, given
from horovod_study.options import SET_BY_TUNE, Parser, add_run_options, run_values
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
    """Find the fastest communication settings for this model and machine; print them for a study file."""
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
    parser.add_argument("--workload", metavar="FILE.py", help=text)


def _verify_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--workers", **COUNT, nargs="+", default=[2], help="worker counts (default 2)")
    add("--runtime", nargs="+", metavar="NAME", help="horovod/mpi, ddp/gloo, ... (default: all that are available)")
    for name, usual, text in (
        ("reduction", ["flat", "hooks"], "how gradients are averaged"),
        ("dtype", ["float32", "float64"], "precision"),
        ("optimizer", ["adam", "sgd"], "update rule"),
    ):
        add(f"--{name}", nargs="+", default=usual, metavar="NAME", help=f"{text}: {', '.join(usual)} (default: both)")
    add("--steps", **COUNT, default=10, help="steps of each training run (default 10)")
    add("--batch", **COUNT, default=300, help="curves of a step, of all workers together (default 300)")
    add("--dataset", default="4000", metavar="PATH|SIZE", help="as for train (default 4000)")
    add("--seed", **COUNT, default=1, help="of parameters and data order (default 1)")
    add("--lr-scaling", default="none", metavar="NAME", help="none, linear or sqrt, as for train (default none)")
    scaling = "none, fixed or standard, as for train (default standard: rounding is amplified least)"
    add("--input-scaling", default="standard", metavar="NAME", help=scaling)
    kernels = "of the parallel runs: torch, or native with --dtype float32 --reduction flat (default torch)"
    add("--kernels", default="torch", metavar="NAME", help=kernels)
    broken = "do it wrong on purpose, and fail: sum of gradients, shard shifted by a curve, lr, start of one rank"
    add("--break", dest="broken", metavar="HOW", help=broken)
    add("--out", **DIR, help="receives verify.txt, verify.json, verify.csv and logs")
    add("--json", **FLAG, help="print one line of JSON instead of the tables")


def verify(options: argparse.Namespace) -> int:
    """Prove that parallel training equals sequential training: the relative error of every weight and bias."""
    from horovod_study.progress import say
    from horovod_study.records import finite
    from horovod_study.report.equality import text, write
    from horovod_study.studies.verify import Question
    from horovod_study.studies.verify import verify as prove

    question = Question(
        runtimes=options.runtime and tuple(options.runtime),
        workers=tuple(options.workers),
        reductions=tuple(options.reduction),
        dtypes=tuple(options.dtype),
        optimizers=tuple(options.optimizer),
        dataset=options.dataset,
        lr_scaling=options.lr_scaling,
        input_scaling=options.input_scaling,
        kernels=options.kernels,
        **given(options, "steps", "batch", "seed", "broken"),
    )
    result = finite(prove(question, options.out))
    paths = write(result, options.out) if options.out else []
    print(json.dumps(result, allow_nan=False) if options.json else text(result))
    for path in paths:
        say(f"wrote {path}")
    return 0 if result["passed"] else 1


VERBS = (
    Verb("tune", tune, _tune_arguments),
    Verb("verify", verify, _verify_arguments),
)
