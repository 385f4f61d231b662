"""`horovod-study VERB`: parse, call, print. No logic lives here.

What needs PyTorch, pandas or matplotlib is imported by the verb that uses it, so that help is quick and every verb
works where only its own extra is installed.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horovod_study import __version__
from horovod_study.config import available_cores, load_study
from horovod_study.errors import DataError, StudyError
from horovod_study.options import Parser, add_run_options

EXTRAS = {"analysis": ("pandas", "scipy", "matplotlib", "jinja2"), "train": ("torch", "psutil")}
"""Which extra of setup.cfg brings a package that a verb may miss."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 1 a check failed or cells are missing, 2 wrong use."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["train"] and not {"-h", "--help"} & set(words):
            return _train(words[1:])
        options = _parser().parse_strictly(words)
        code: int = options.verb(options)
        return code
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = next(
            (extra for extra, packages in EXTRAS.items() if (error.name or "").split(".")[0] in packages), None
        )
        if extra is None:
            raise
        print(
            f"error: this verb needs {error.name}, which is not installed; run `make setup`, "
            f"or pip install 'horovod_study[{extra}]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of a pipe left early
        return 1


# ------------------------------------------------------------------------------------------------------- data


def data_generate(options: argparse.Namespace) -> int:
    """Generate a labelled data set."""
    from horovod_study.measure.clock import now
    from horovod_study.progress import Line, say
    from horovod_study.workload import dataset

    size = dataset.parse_size(options.size)
    if size is None:
        raise DataError(f"--size {options.size}: must be a whole number of curves, for instance 1000000")
    if options.seed < 0:
        raise DataError(f"--seed {options.seed}: must be 0 or greater")
    if options.noise_max < 0:
        raise DataError(f"--noise-max {options.noise_max}: must be 0 (clean curves) or greater, in MPa")
    path = options.out or dataset.cached_path(size, options.seed, options.noise_max)
    if options.processes < 1:
        raise DataError(f"--processes {options.processes}: must be 1 or greater")
    line, began = Line(), now()

    def tell(done: int, total: int) -> None:
        if line.due():
            line.show(f"  {done:,} of {total:,} curves  {done / total:4.0%}  {now() - began:.0f} s")

    say(f"generating {size:,} curves (seed {options.seed}) into {path}")
    dataset.generate(
        path, size, seed=options.seed, noise_max_mpa=options.noise_max, processes=options.processes, tell=tell
    )
    line.close()
    say(f"generated in {now() - began:.1f} s")
    print(path)
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Read a whole data set and verify it against its side-car."""
    from horovod_study.progress import Line
    from horovod_study.workload import dataset

    line = Line()

    def tell(done: int, total: int) -> None:
        if line.due():
            line.show(f"  {done:,} of {total:,} curves read")

    path = dataset.path_of(options.dataset, seed=options.seed)
    facts = dataset.check(path, tell=tell)
    line.close()
    if options.json:
        print(json.dumps(facts))
        return 0
    print(
        f"{facts['path']}: good\n"
        f"  {facts['spec']}, seed {facts['seed']}, noise up to {facts['noise_max_mpa']:g} MPa,"
        f" digest {facts['digest']}\n"
        f"  {facts['size']:,} curves: {facts['train']:,} for training, {facts['test']:,} for testing"
        f" ({facts['bytes'] / 1e9:.3f} GB)\n"
        "  every block's SHA-256, the targets' bounds, flags, padding and strain agree with the specification"
    )
    return 0


# ------------------------------------------------------------------------------------------------------ studies


def _train(words: list[str]) -> int:
    from horovod_study import train

    return train.main(words)


def run(options: argparse.Namespace) -> int:
    """Run what is missing of a study, then analyse and report it."""
    from horovod_study.cluster.runner import run_study

    study = load_study(options.study)
    elsewhere = [] if options.runs == Path("runs") else ["--runs", str(options.runs)]
    command = shlex.join(["horovod-study", "run", str(options.study), *elsewhere])
    result = run_study(study, options.runs, command=command, only_plan=options.plan, retry=options.retry)
    if result.planned_only or result.interrupted or not result.ledger.count("done"):
        return result.exit_code
    directory = options.runs / study.name
    written = _analyze(directory, directory / "analysis", commands=[command])
    _report(directory / "analysis")
    print(f"report: {directory / 'analysis' / 'report.html'}  (tables: {', '.join(path.name for path in written)})")
    return result.exit_code


def status(options: argparse.Namespace) -> int:
    """Say where a study stands."""
    from horovod_study.cluster.ledger import read_ledger

    ledger = read_ledger(load_study(options.study), options.runs)
    if options.json:
        print(json.dumps(ledger.to_dict()))
    else:
        print(*ledger.lines(), "", ledger.summary(), sep="\n")
    return 0


# ----------------------------------------------------------------------------------------------------- analysis


def analyze(options: argparse.Namespace) -> int:
    """Turn recorded runs into tables of points and fitted laws."""
    for path in _analyze(options.runs, options.out, commands=None):
        print(path)
    return 0


def _analyze(runs: Path, out: Path, *, commands: list[str] | None) -> list[Path]:
    from horovod_study import records
    from horovod_study.analysis.study import analyze as analyze_runs

    table = records.run_table(runs)
    result = analyze_runs(table, commands=commands)
    for doubt in result.provenance["doubts"]:
        print(f"doubt: {doubt}", file=sys.stderr)
    return records.save_tables(out, {"runs": table, **result.tables()}, result.documents())


def report(options: argparse.Namespace) -> int:
    """Draw the figures and write the page of an analysed study."""
    for path in _report(options.directory):
        print(path)
    return 0


def _report(directory: Path) -> list[Path]:
    from horovod_study import records
    from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis
    from horovod_study.report.html import write_report

    tables, documents = records.load_tables(directory, TABLES, DOCUMENTS)
    values: dict[str, Any] = {**tables, **documents}
    return write_report(Analysis(**values), directory)


def fit(options: argparse.Namespace) -> int:
    """Fit scaling laws to anybody's points."""
    from horovod_study.analysis.fitting import fit_series
    from horovod_study.analysis.points_file import parse_points

    points = parse_points(_read(options.points), source=str(options.points))
    fits = fit_series(points, baseline_samples_per_s=options.baseline)
    series = {name: one.to_dict() for name, one in fits.items()}
    if options.json:
        print(json.dumps({"series": series}, allow_nan=False))
        return 0
    for name, one in series.items():
        print(_fit_text(name, one))
    return 0


def _fit_text(name: str, one: dict[str, Any]) -> str:
    lines = [f"{name or 'all points'}: speedup relative to {one['baseline']}"]
    for law, fitted in one["laws"].items():
        parts = []
        for parameter, value in fitted["params"].items():
            low, high = fitted["ci95"].get(parameter) or (None, None)
            interval = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
            parts.append(f"{parameter} {value:.6g}{interval}")
        mark = "*" if law == one["selected"] else " "
        aicc = "" if fitted["aicc"] is None else f"  AICc {fitted['aicc']:.1f}"
        lines.append(f"{mark} {law:<10} {'  '.join(parts)}  rmse {fitted['rmse']:.3g}{aicc}")
    lines += [f"  doubt: {doubt}" for doubt in one["doubts"]]
    return "\n".join([*lines, "  (intervals are 95 %; * is the simplest law within 2 units of the best AICc)"])


def predict(options: argparse.Namespace) -> int:
    """Forecast the throughput of larger worker counts from anybody's points."""
    from horovod_study.analysis.points_file import parse_points
    from horovod_study.analysis.prediction import predict as predict_points

    points = parse_points(_read(options.points), source=str(options.points))
    forecasts = predict_points(points, workers=options.workers, workers_per_node=options.workers_per_node)
    if options.json:
        series = {name: [one.to_dict() for one in each] for name, each in forecasts.items()}
        print(json.dumps({"series": series}, allow_nan=False))
        return 0
    for name, each in forecasts.items():
        print(f"{name or 'all points'}: samples/s with 95 % interval")
        for one in each:
            interval = f"[{one.low:,.6g}, {one.high:,.6g}]"
            print(f"  {one.workers:>8,} workers  {one.samples_per_s:>14,.6g}  {interval}  {one.law}")
        for doubt in dict.fromkeys(doubt for one in each for doubt in one.doubts):
            print(f"  doubt: {doubt}")
    return 0


def _read(path: Path) -> str:
    """Return the text of a points file; `-` is standard input."""
    try:
        if str(path) == "-":
            return sys.stdin.read()
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); name a CSV file with workers,samples_per_s"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not a text file in UTF-8; save it as CSV again") from None


# ------------------------------------------------------------------------------------------------------- parser


def _parser() -> Parser:
    parser = Parser(prog="horovod-study", description="Measure, explain and predict how data-parallel training scales.")
    parser.add_argument("--version", action="version", version=f"horovod-study {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    data = _verb(verbs, "data", "make or check a data set", None)
    data_verbs = data.add_subparsers(title="verbs", metavar="VERB", required=True)
    make = _verb(data_verbs, "generate", data_generate.__doc__, data_generate)
    make.add_argument("--size", default="100000", metavar="N", help="number of curves (default 100000)")
    make.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default 1)")
    make.add_argument(
        "--noise-max", type=float, default=1.0, metavar="MPA", help="largest noise level in MPa; 0 is clean (default 1)"
    )
    make.add_argument("--out", type=Path, metavar="DIR", help="directory to make (default: in the cache)")
    make.add_argument(
        "--processes", type=int, default=available_cores(), metavar="N", help="processes that fill the file"
    )
    check = _verb(data_verbs, "check", data_check.__doc__, data_check)
    check.add_argument("dataset", metavar="PATH|SIZE", help="a data set's directory, or the size of a cached one")
    check.add_argument("--seed", type=int, default=1, metavar="N", help="seed of a cached one (default 1)")
    check.add_argument("--json", action="store_true", help="print one line of JSON")

    train = _verb(verbs, "train", "train one run; the same as python -m horovod_study.train", None)
    add_run_options(train)
    train.add_argument("--config", type=Path, metavar="FILE.yaml", help="read options from a YAML file first")
    train.add_argument("--out", type=Path, metavar="DIR", help="the run directory (default: a new one below runs/)")
    train.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")

    start = _verb(verbs, "run", run.__doc__, run)
    state = _verb(verbs, "status", status.__doc__, status)
    for each in (start, state):
        each.add_argument("study", type=Path, metavar="STUDY.yaml", help="the study file")
        each.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (runs)")
    start.add_argument("--plan", action="store_true", help="only print what would run, in which order")
    start.add_argument(
        "--retry", action=argparse.BooleanOptionalAction, default=True, help="try failed cells again (default: yes)"
    )
    state.add_argument("--json", action="store_true", help="print one line of JSON")

    tables = _verb(verbs, "analyze", analyze.__doc__, analyze)
    tables.add_argument("runs", type=Path, metavar="RUNS", help="directory that holds run directories")
    tables.add_argument("--out", type=Path, required=True, metavar="DIR", help="receives the tables")
    page = _verb(verbs, "report", report.__doc__, report)
    page.add_argument("directory", type=Path, metavar="DIR", help="directory written by analyze")

    laws = _verb(verbs, "fit", fit.__doc__, fit)
    laws.add_argument(
        "--baseline",
        type=float,
        metavar="SAMPLES_PER_S",
        help="throughput that counts as speedup 1 (default: per worker at the smallest worker count)",
    )
    forecast = _verb(verbs, "predict", predict.__doc__, predict)
    forecast.add_argument(
        "--workers", type=int, nargs="+", required=True, metavar="N", help="worker counts to forecast"
    )
    forecast.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node")
    for each in (laws, forecast):
        each.add_argument("points", type=Path, metavar="POINTS.csv", help="columns workers, samples_per_s; - is stdin")
        each.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def _verb(verbs: Any, name: str, text: str | None, call: Any) -> Parser:
    summary = (text or "").splitlines()[0].rstrip(".")
    parser: Parser = verbs.add_parser(name, help=summary[:1].lower() + summary[1:], description=summary + ".")
    parser.set_defaults(verb=call, parser=parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
