"""`horovod-study predict`, also `fit`: what measured points say of more workers, simulated steps, model parallelism."""

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.cli.verbs import (
    COLUMNS,
    COUNT,
    DIR,
    FILE,
    FLAG,
    NUMBER,
    Result,
    Verb,
    add_figure_arguments,
    figure_look,
    read_benches,
    read_data,
    say_left_out,
    written,
)
from horovod_study.config.options import Parser
from horovod_study.errors import AnalysisError, refuse
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, printable

if TYPE_CHECKING:
    import pandas as pd

_FORM = "see predict {} --help"


def _predict_arguments(parser: Parser) -> None:
    add = parser.add_argument
    points = "a table with workers, samples_per_s (- is stdin); a log of a training (LOG@8: of 8 workers); runs"
    add("points", type=Path, metavar="POINTS.csv", help=points)
    add("--workers", **COUNT, nargs="+", help="worker counts to forecast (without: laws)")
    add("--holdout", type=int, nargs="?", const=True, metavar="K", help="score forecasts of the K largest counts")
    add("--recommend", **FLAG, help="how many workers: knee, peak, cheapest")
    add("--samples", **NUMBER, help="samples of the whole training, for --deadline")
    add("--deadline", metavar="TIME", help="the fewest workers that finish in time: 1h30m")
    add("--next", **FLAG, help="which runs of a study to make next; " + _FORM.format("--next"))
    add("--simulate", **FLAG, help="steps of many workers; " + _FORM.format("--simulate"))
    add("--model-parallel", **FLAG, help="or split the model? " + _FORM.format("--model-parallel"))
    add("--json", **FLAG, help="print one line of JSON")
    add("--columns", **COLUMNS, more=True)
    baseline = "of laws: throughput that counts as speedup 1 (default: per worker at the smallest worker count)"
    add("--baseline", type=float, metavar="SAMPLES_PER_S", help=baseline, more=True)
    add("--rolling", **FLAG, help="with --holdout: hide one count, two, ... up to K", more=True)
    add("--workers-per-node", **COUNT, help="workers that fill a node", more=True)
    batch = "samples per worker and step there: one, or one per count"
    add("--batch", type=float, nargs="+", metavar="B", help=batch, more=True)
    add("--global-batch", type=float, metavar="B", help="... or of all workers together", more=True)
    add("--bench", **FILE, help="a measured network: bench.json, or as in --simulate", more=True)
    add("--gradient-mb", **NUMBER, help="1e6 bytes of gradients, where FILE has no model", more=True)
    add("--gpu-hours", **NUMBER, help="the fastest count within so many GPU hours", more=True)
    add("--price-per-gpu-hour", **NUMBER, help="... and what it costs", more=True)
    target = "the shortest time to a target that takes X samples, or X samples with N workers"
    add("--target-samples", nargs="+", metavar="X|N:X", help=target, more=True)
    marginal = "the knee: least gain of one more worker, of the mean one's (default 0.5)"
    add("--marginal", **NUMBER, default=0.5, help=marginal, more=True)
    parser.epilog = "Laws, points files and what the doubts mean: docs/fit.md"


def predict(options: argparse.Namespace) -> Result:
    """Fit laws to anybody's points; forecast, score, recommend worker counts."""
    from horovod_study.analysis.forecast import holdout, recommendation
    from horovod_study.analysis.forecast.prediction import predict as predict_points
    from horovod_study.config.doors import asked
    from horovod_study.records import finite

    points = _points(options)
    size = None if options.gradient_mb is None else options.gradient_mb * 1e6
    bench = read_benches([options.bench], gradient_bytes=size)[-1][0] if options.bench else None
    known: dict[str, Any] = {"workers_per_node": options.workers_per_node, "bench": bench}
    batch = {"batch": options.batch, "global_batch": options.global_batch}
    asked_for = {name: getattr(options, name) for name in recommendation.Questions.model_fields}
    questions: Any = asked(recommendation.Questions, asked_for, "predict")
    recommended = options.recommend or questions != recommendation.Questions()
    scored = options.holdout is not None
    laws = not (options.workers or scored or recommended)
    idle = laws and any(each is not None for each in (*known.values(), *batch.values(), size))
    several = recommended and len(options.batch or ()) > 1
    refuse(
        "",
        (options.rolling and not scored, "--rolling: goes with --holdout; give that too"),
        (idle, "nothing is asked for: give --workers to forecast, --holdout or --recommend"),
        (options.baseline is not None and not laws, "--baseline: is of the laws alone; leave it out"),
        (several, "--recommend looks at every worker count: give --batch with one value, or --global-batch"),
    )
    if laws:
        return _laws(points, options.baseline)
    forecasts = predict_points(points, workers=options.workers, **known, **batch) if options.workers else {}
    scores = {}
    if scored:
        hide = None if options.holdout is True else options.holdout
        scores = holdout.score(points, hide=hide, rolling=options.rolling, **known)
        _refuse(options, "no forecast can be scored", scores)
    answers = {}
    if recommended or not (options.json or len(options.batch or ()) > 1):
        (each,) = options.batch or [None]  # the batch at every worker count that may be recommended
        answers = recommendation.recommend(points, questions, **known, **{**batch, "batch": each})
    if recommended:
        _refuse(options, "no worker count can be recommended", answers)
    parts = {
        "forecast": {"series": finite(forecasts)},
        "holdout": holdout.document(scores) if scores else {},
        "recommendation": {"series": finite(answers)},
    }
    # One thing asked for is the document; of several, the first is, and the others are keys of it.
    first, *others = [name for name, known in zip(parts, (forecasts, scores, answers), strict=True) if known]
    unit = points.attrs.get("unit", "samples/s")
    lines = []
    for name, made in forecasts.items():
        rows = [
            (f"{one.workers:,} workers", f"{one.samples_per_s:,.6g}", f"[{one.low:,.6g}, {one.high:,.6g}]", one.law)
            for one in made
        ]
        lines.append(f"{cut(printable(name), 60) or 'all points'}: {unit} with 95 % interval")
        lines += to_lines(table_of(("",) * 4, rows, texts=(2, 3)), indent=2)
        lines += [f"  doubt: {doubt}" for doubt in dict.fromkeys(doubt for one in made for doubt in one.doubts)]
    lines += [line for name, one in scores.items() for line in holdout.lines(name, one, unit)]
    lines += holdout.summary_lines(scores) if len(scores) > 1 else []
    only = None if recommended else ("knee",)
    told = (recommendation.lines(name, one, only=only, unit=unit) for name, one in answers.items())
    lines += [line for each in told for line in each]
    return Result(document={**parts[first], **{name: parts[name] for name in others}}, lines=lines)


def _refuse(options: argparse.Namespace, what: str, series: Mapping[str, Any]) -> None:
    """Raise AnalysisError where every series has a reason against `what` was asked for; the first one is told."""
    name, first = next(iter(series.items()))
    where = f"{options.points}, series {name!r}" if name else str(options.points)
    every = all(one.why_not for one in series.values())
    refuse("", (every, f"{where}: {what}: {first.why_not}"), error=AnalysisError)


def _laws(points: "pd.DataFrame", baseline: float | None) -> Result:
    """The scaling laws of each series."""
    from horovod_study.analysis.fit.fitting import fit_series
    from horovod_study.records import finite
    from horovod_study.report.terminal import laws_text

    series = finite(fit_series(points, baseline_samples_per_s=baseline))
    notes = (
        "(intervals are 95 %; * is the simplest law that none clearly beats at counts left out; ? is not identifiable;",
        " loo: median error of a count left out; step times are relative to one worker; details: --json)",
    )
    return Result(document={"series": series}, lines=[*(laws_text(name, one) for name, one in series.items()), *notes])


def _points(options: argparse.Namespace) -> "pd.DataFrame":
    """The table of the command line; what was guessed about it is said on standard error."""
    from horovod_study.analysis.importers import parse_columns
    from horovod_study.api import read_points

    left_out: dict[str, str] = {}
    source = str(options.points)
    data = read_data(options.points) if source == "-" else None
    points = read_points(source, columns=parse_columns(options.columns), left_out=left_out, data=data)
    say_left_out(left_out)
    if points.attrs["read"]:
        print(printable(f"{source} read as: {points.attrs['read']}"), file=sys.stderr)
    return points


_TYPICAL_COUNTS = [2**power for power in range(11)]


def _simulate_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--simulate", **FLAG, help=argparse.SUPPRESS)
    add("--workers", **COUNT, nargs="+", default=_TYPICAL_COUNTS, help="(default 1 2 4 8 ... 1024)")
    add("--scaling", default="weak", metavar="weak|strong", help="batch per worker or per step fixed")
    add("--run", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="recorded runs: computing")
    bench = "measured networks: bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed; OUT.txt@4x8 says "
    add("--bench", **FILE, nargs="+", default=[], help=bench + "4 nodes with 8 workers each")
    add("--alpha-us", **NUMBER, help="or directly: microseconds of an empty message, ...")
    add("--gb-per-s", **NUMBER, help="... and GB (1e9 bytes) per second")
    add("--compute-ms", **NUMBER, help="instead of runs: computing of a step, and ...")
    add("--gradient-mb", **NUMBER, help="... 1e6 bytes of gradients (default: of the run)")
    what_if = "as bandwidth=2x cycle=0,batch=8x algorithm=ps"
    add("--what-if", nargs="+", default=[], metavar="KEY=VALUE", help=what_if)
    add("--out", **DIR, help="receives figure, CSV, JSON and table")
    add("--json", **FLAG, help="print one line of JSON")
    for name, kind, text in (
        ("global-batch", COUNT, "of strong scaling (default: of the smallest worker count)"),
        ("beside", {"type": Path, "nargs": "+", "default": [], "metavar": "RUN_DIR"}, "runs of one worker made then"),
        ("way", {"metavar": "NAME"}, "which way of the networks (default: of the run, else the quickest)"),
        ("network", {"type": Path, "metavar": "FILE.yaml"}, "or a described one, see experiments/networks"),
        ("workers-per-node", COUNT, "workers that fill a node"),
        ("compute-fixed-ms", NUMBER, "the part of --compute-ms that does not depend on the batch, ..."),
        ("compute-cv", NUMBER, "... its standard deviation / mean (default 0)"),
        ("batch", COUNT, "samples per worker and step (default: of the run)"),
        ("buckets", COUNT, "sent during backward (default 1: after backward)"),
        ("algorithm", {"metavar": "NAME"}, "auto, ring, tree, doubling, halving, hierarchical or ps"),
        ("overhead-us", NUMBER, "of the runtime, for each message"),
        ("cycle-ms", NUMBER, "Horovod's cycle; 0: new gradients end it"),
        ("fusion-mb", NUMBER, "MiB that go into one message at most"),
        ("seed", {**COUNT, "default": 1}, "of the simulated steps (default 1)"),
    ):
        add(f"--{name}", **kind, help=text, more=True)
    add_figure_arguments(parser)


def simulate(options: argparse.Namespace) -> Result:
    """Simulate a data-parallel step on up to 10 million workers, and what-ifs."""
    from horovod_study.analysis.simulate import scaling
    from horovod_study.analysis.simulate.calibration import Given, calibrate, largest_of_each_kind, run_times
    from horovod_study.analysis.simulate.network import network_from
    from horovod_study.config.documents import load_yaml
    from horovod_study.config.doors import asked
    from horovod_study.records import recorded_run
    from horovod_study.report.figures.simulation import content, text, write_simulation

    given = asked(Given, {name: getattr(options, name) for name in Given.model_fields}, "simulate")
    runs = [run_times(recorded_run(each)) for each in options.run]
    size = runs[0].gradient_bytes if runs and options.gradient_mb is None else (options.gradient_mb or 0.0) * 1e6
    read = read_benches(options.bench, gradient_bytes=size or None)
    benches, set_aside = largest_of_each_kind(read)
    network = options.network and network_from(load_yaml(options.network), source=str(options.network))
    calibration = calibrate(
        given,
        network=network,
        runs=runs,
        beside=[run_times(recorded_run(each)) for each in options.beside],
        benches=benches,
        further=[each for each in read if each not in benches],
    )
    scenarios = scaling.what_if(calibration, options.what_if)
    table = scaling.simulate(scenarios, options.workers, global_batch=options.global_batch, seed=options.seed)
    doubts = [*set_aside, *scaling.all_doubts(scenarios, options.workers, global_batch=options.global_batch)]
    look = figure_look(options)
    paths = write_simulation(table, calibration, doubts, options.out, look=look) if options.out else []
    lines = [text(table, calibration), *written(paths)]
    return Result(document=content(table, calibration, doubts), lines=lines, files=paths or None, doubts=doubts)


def _model_parallel_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--model-parallel", **FLAG, help=argparse.SUPPRESS)
    add("--model", type=Path, metavar="FILE.yaml", help="a model in layers, docs/model_parallel.md")
    add("--widths", metavar="C-C-H", help="or the worked example (default 15-38-197)")
    add("--batch", **COUNT, help="samples per worker and step (default 75)")
    add("--workers", **COUNT, help="workers (default 2)")
    add("--workers-per-node", **COUNT, help="workers that fill a node (default: all)")
    add("--memory-gb", **NUMBER, help="memory of a worker (default: as here)")
    add("--run", type=Path, metavar="RUN_DIR", help="a run: batch, workers, model, computing per step")
    add("--step-ms", **NUMBER, help="or: a step of one worker alone at this batch")
    add("--flops-per-s", **NUMBER, help="or: training FLOP per second of a worker")
    add("--bench", **FILE, help="a measured network: bench.json, or as in --simulate")
    add("--alpha-us", **NUMBER, help="or directly: microseconds of an empty message, ...")
    add("--gb-per-s", **NUMBER, help="... and GB (1e9 bytes) per second")
    way = "which way of --bench (default: the quickest for the gradients)"
    add("--way", metavar="NAME", help=way, more=True)
    add("--optimizer", metavar="adam|adamw|sgd", help="whose state is kept (default adam)", more=True)
    precision = "of the activations (default fp32)"
    add("--precision", metavar="fp32|tf32|bf16|fp16", help=precision, more=True)
    add("--json", **FLAG, help="print one line of JSON")


def model_parallel(options: argparse.Namespace) -> Result:
    """Compute whether data or model parallelism fits a model."""
    from dataclasses import asdict

    from horovod_study.analysis.machine import advice
    from horovod_study.config.documents import load_yaml
    from horovod_study.records import read_run
    from horovod_study.workload.room import worker_memory

    source = str(options.model or "")
    model = advice.layered_model(load_yaml(options.model), source=source) if options.model else None
    bench = read_benches([options.bench], gradient_bytes=math.nan)[-1] if options.bench else None
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    case = advice.case_of(vars(options), model=model, bench=bench, run=recorded, memory_of=worker_memory)
    found = advice.advise(case)
    return Result(document=found, lines=advice.lines(found))


VERBS = (
    Verb("predict", predict, _predict_arguments, aliases=("fit",)),
    Verb("predict --simulate", simulate, _simulate_arguments),
    Verb("predict --model-parallel", model_parallel, _model_parallel_arguments),
)
