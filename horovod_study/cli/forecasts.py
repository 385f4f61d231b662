"""`horovod-study fit`, `predict`, `simulate` and `advise`: what points, constants and a model say of more workers."""

import argparse
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from horovod_study.cli.verbs import BENCH_JSON, Result, Verb, add_figure_arguments, figure_look, read_input
from horovod_study.errors import AnalysisError
from horovod_study.options import Parser
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, printable


def fit_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--baseline",
        type=float,
        metavar="SAMPLES_PER_S",
        help="throughput that counts as speedup 1 (default: per worker at the smallest worker count)",
    )
    parser.epilog = "Laws, points files and what the doubts mean: docs/fit.md"
    _points_arguments(parser)


def fit(options: argparse.Namespace) -> int:
    """Fit scaling laws to anybody's points."""
    from horovod_study.analysis.fitting import fit_series
    from horovod_study.analysis.points_file import parse_points

    points = parse_points(read_input(options.points), source=str(options.points))
    fits = fit_series(points, baseline_samples_per_s=options.baseline)
    series = {name: one.to_dict() for name, one in fits.items()}
    if options.json:
        print(json.dumps({"series": series}, allow_nan=False))
        return 0
    for name, one in series.items():
        print(_fit_text(name, one))
    print("(intervals are 95 %; * is the simplest law within 2 units of the best AICc; loo: median error of a worker")
    print(" count that is left out of the fit; step times are relative to one worker; details: --json)")
    return 0


def _fit_text(name: str, one: dict[str, Any]) -> str:
    """One series for the eye: the laws that fit, then the names of those that do not, then the doubts."""
    lines = [f"{cut(printable(name), 60) or 'all points'}: speedup relative to {one['baseline']}"]
    if one["assumed"]:
        lines.append(f"  assumed: {one['assumed']}")
    unknown, refused, told = [], [], set()
    for law, fitted in one["laws"].items():
        if not fitted["applies"]:
            refused.append(law)
            continue
        if not fitted["identifiable"] and law != one["selected"]:
            unknown.append(law)
            told |= {f"{law}: {doubt}" for doubt in fitted["doubts"]}
        lines += _law_text(law, fitted, selected=law == one["selected"])
    if unknown:
        lines.append(f"  ? not identifiable from these points: {', '.join(unknown)}")
    reasons: dict[str, list[str]] = {}
    for law in refused:
        reasons.setdefault(one["laws"][law]["why_not"], []).append(law)
        told.add(f"{law} does not apply to {one['mode']} scaling: {one['laws'][law]['why_not']}")
    lines += [f"  - {', '.join(laws)}: not for {one['mode']} scaling ({why})" for why, laws in reasons.items()]
    lines += [f"  doubt: {doubt}" for doubt in one["doubts"] if doubt not in told]
    return "\n".join(
        part for line in lines for part in textwrap.wrap(line, 100, subsequent_indent="      ", break_long_words=False)
    )


def _law_text(law: str, fitted: dict[str, Any], *, selected: bool) -> list[str]:
    parts = []
    for parameter, value in fitted["params"].items():
        low, high = fitted["ci95"].get(parameter) or (None, None)
        interval = "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"
        parts.append(f"{parameter} {value:.5g}{interval}")
    mark = "*" if selected else " " if fitted["identifiable"] else "?"
    quality = [f"rmse {fitted['rmse']:.3g}"]
    quality += [] if fitted["aicc"] is None else [f"AICc {fitted['aicc']:.1f}"]
    quality += [] if fitted["loo_error"] is None else [f"loo {fitted['loo_error']:.1%}"]
    for what in ("knee", "peak") if selected else ():
        if (fitted[what] or 0) > 1:
            low, high = fitted[f"{what}_ci95"] or (None, None)
            interval = "" if low is None else f" [{low:.3g}, {'no end' if high is None else format(high, '.3g')}]"
            quality.append(f"{what} at {fitted[what]:.4g}{interval} workers")
    quality += [] if fitted["limit"] is None or not selected else [f"never above {fitted['limit']:.4g}"]
    return [f"{mark} {law:<10} {'  '.join(parts)}; {', '.join(quality)}"]


def predict_arguments(parser: Parser) -> None:
    parser.add_argument("--workers", type=int, nargs="+", metavar="N", help="worker counts to forecast")
    parser.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node")
    parser.add_argument("--bench", type=Path, metavar="bench.json", help="what `horovod-study bench` measured")
    parser.add_argument(
        "--holdout",
        type=int,
        nargs="?",
        const=True,
        metavar="K",
        help="score the forecasts: hide the K largest worker counts (default: the upper half) and foretell them",
    )
    parser.add_argument("--rolling", action="store_true", help="with --holdout: hide one count, two, ... up to K")
    parser.add_argument("--recommend", action="store_true", help="how many workers: knee, peak, cheapest")
    parser.add_argument("--samples", type=float, metavar="X", help="samples of the whole training, for ...")
    parser.add_argument("--deadline", metavar="TIME", help="... the fewest workers that finish in time (90m, 1h30m)")
    parser.add_argument("--gpu-hours", type=float, metavar="X", help="... the fastest count within so many GPU hours")
    parser.add_argument("--price-per-gpu-hour", type=float, metavar="X", help="... and what it costs")
    parser.add_argument(
        "--target-samples",
        nargs="+",
        metavar="X|N:X",
        help="the shortest time to a target that takes X samples, or X samples with N workers",
    )
    parser.add_argument(
        "--marginal",
        type=float,
        default=0.5,
        metavar="X",
        help="the knee: least gain of one more worker, of the mean one's (default 0.5)",
    )
    _points_arguments(parser)


def predict(options: argparse.Namespace) -> int:
    """Forecast the throughput of larger worker counts from anybody's points, score that, recommend worker counts."""
    from horovod_study.analysis import holdout, recommendation
    from horovod_study.analysis.advice import bench_of
    from horovod_study.analysis.points_file import parse_points
    from horovod_study.analysis.prediction import predict as predict_points

    points = parse_points(read_input(options.points), source=str(options.points))
    bench = bench_of(read_input(options.bench, BENCH_JSON), source=str(options.bench)) if options.bench else None
    known: dict[str, Any] = {"workers_per_node": options.workers_per_node, "bench": bench}
    questions = _questions(options)
    recommended = options.recommend or questions != recommendation.Questions()
    if not (options.workers or options.holdout is not None or recommended):
        raise AnalysisError("nothing is asked for: give --workers to forecast, --holdout or --recommend")
    if options.rolling and options.holdout is None:
        raise AnalysisError("--rolling says how to hide worker counts: give --holdout, too, or leave it out")
    forecasts = predict_points(points, workers=options.workers, **known) if options.workers else {}
    scores = {}
    if options.holdout is not None:
        hide = None if options.holdout is True else options.holdout
        scores = holdout.score(points, hide=hide, rolling=options.rolling, **known)
        _refuse(options, "no forecast can be scored", {name: one.why_not for name, one in scores.items()})
    answers = recommendation.recommend(points, questions, **known) if recommended or not options.json else {}
    if recommended:
        _refuse(options, "no worker count can be recommended", {name: one.why_not for name, one in answers.items()})
    if options.json:
        parts: dict[str, dict[str, Any]] = {}
        if forecasts:
            series = {name: [one.to_dict() for one in each] for name, each in forecasts.items()}
            parts["forecast"] = {"series": series}
        if scores:
            parts["holdout"] = holdout.to_dict(scores)
        if answers:
            parts["recommendation"] = {"series": {name: one.to_dict() for name, one in answers.items()}}
        # One thing asked for is the document; of several, the first is, and the others are keys of it.
        first, *others = parts
        print(json.dumps({**parts[first], **{name: parts[name] for name in others}}, allow_nan=False))
        return 0
    for name, each in forecasts.items():
        print(f"{cut(printable(name), 60) or 'all points'}: samples/s with 95 % interval")
        rows = [
            (
                f"{one.workers:,} workers",
                f"{one.samples_per_s:,.6g}",
                f"[{one.low:,.6g}, {one.high:,.6g}]",
                one.law,
            )
            for one in each
        ]
        print(*to_lines(table_of(("",) * 4, rows, texts=(2, 3)), indent=2), sep="\n")
        for doubt in dict.fromkeys(doubt for one in each for doubt in one.doubts):
            print(f"  doubt: {doubt}")
    for scored in scores.values():
        print(*holdout.lines(scored), sep="\n")
    if len(scores) > 1:
        print(*holdout.summary_lines(scores), sep="\n")
    for answer in answers.values():
        print(*recommendation.lines(answer, only=None if recommended else ("knee",)), sep="\n")
    return 0


def _refuse(options: argparse.Namespace, what: str, why_not: Mapping[str, str]) -> None:
    """Raise AnalysisError where every series has a reason against `what` was asked for; the first one is told."""
    if all(why_not.values()):
        name, first = next(iter(why_not.items()))
        where = f"{options.points}, series {name!r}" if name else str(options.points)
        raise AnalysisError(f"{where}: {what}: {first}")


def _questions(options: argparse.Namespace) -> Any:
    """The questions about worker counts that were asked on the command line."""
    from horovod_study.analysis.recommendation import Questions, samples_of, seconds_of

    return Questions(
        marginal=options.marginal,
        samples=options.samples,
        deadline_s=None if options.deadline is None else seconds_of(options.deadline),
        gpu_hours=options.gpu_hours,
        price_per_gpu_hour=options.price_per_gpu_hour,
        samples_to_target=None if options.target_samples is None else samples_of(options.target_samples),
    )


def _points_arguments(parser: Parser) -> None:
    parser.add_argument("points", type=Path, metavar="POINTS.csv", help="columns workers, samples_per_s; - is stdin")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def simulate_arguments(parser: Parser) -> None:
    add_figure_arguments(parser)
    parser.add_argument("--workers", type=int, nargs="+", required=True, metavar="N", help="up to 10 million each")
    parser.add_argument("--scaling", default="weak", metavar="weak|strong", help="batch per worker or per step fixed")
    parser.add_argument(
        "--global-batch", type=int, metavar="N", help="of strong scaling (default: of the smallest worker count)"
    )
    parser.add_argument("--run", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="recorded runs: computing")
    parser.add_argument(
        "--beside", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="runs of one worker made at the same time"
    )
    parser.add_argument("--bench", type=Path, nargs="+", default=[], metavar="bench.json", help="measured networks")
    parser.add_argument("--way", metavar="NAME", help="which of their ways (default: of the run, else the quickest)")
    parser.add_argument(
        "--network", type=Path, metavar="FILE.yaml", help="or a described one, see experiments/networks"
    )
    parser.add_argument("--alpha-us", type=float, metavar="X", help="or by hand: microseconds of an empty message, ...")
    parser.add_argument("--gb-per-s", type=float, metavar="X", help="... and GB (1e9 bytes) per second")
    parser.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node")
    parser.add_argument("--compute-ms", type=float, metavar="X", help="instead of runs: computing of a step, and ...")
    parser.add_argument("--compute-cv", type=float, metavar="X", help="... its standard deviation / mean (default 0)")
    parser.add_argument("--batch", type=int, metavar="N", help="samples per worker and step (default: of the run)")
    parser.add_argument("--gradient-mb", type=float, metavar="X", help="1e6 bytes of gradients (default: of the run)")
    parser.add_argument("--buckets", type=int, metavar="N", help="sent during backward (default 1: after backward)")
    parser.add_argument("--algorithm", metavar="NAME", help="auto, ring, tree, doubling, halving, hierarchical or ps")
    parser.add_argument("--overhead-us", type=float, metavar="X", help="of the runtime, for each message")
    parser.add_argument("--cycle-ms", type=float, metavar="X", help="Horovod's cycle; 0: new gradients end it")
    parser.add_argument("--fusion-mb", type=float, metavar="X", help="MiB that go into one message at most")
    parser.add_argument(
        "--what-if", nargs="+", default=[], metavar="KEY=VALUE", help="as bandwidth=2x cycle=0,batch=8x algorithm=ps"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulated steps (default 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="receives figure, CSV, JSON and table")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def simulate(options: argparse.Namespace) -> Result:
    """Simulate a data-parallel step on up to 100,000 workers, from measured or given constants, and what-ifs."""
    from dataclasses import fields

    from horovod_study.analysis.advice import bench_of
    from horovod_study.analysis.simulation import scaling
    from horovod_study.analysis.simulation.calibration import Given, calibrate, run_times
    from horovod_study.analysis.simulation.network import network_from
    from horovod_study.analysis.simulation.what_if import what_if
    from horovod_study.documents import load_yaml
    from horovod_study.records import recorded_run
    from horovod_study.report.figures.simulation import content, text, write_simulation

    wanted = BENCH_JSON
    network = options.network and network_from(load_yaml(options.network), source=str(options.network))
    calibration = calibrate(
        Given(**{each.name: getattr(options, each.name) for each in fields(Given)}),
        network=network,
        runs=[run_times(recorded_run(each)) for each in options.run],
        beside=[run_times(recorded_run(each)) for each in options.beside],
        benches=[(bench_of(read_input(each, wanted), source=str(each)), str(each)) for each in options.bench],
    )
    scenarios = what_if(calibration.scenario, options.what_if)
    table = scaling.simulate(scenarios, options.workers, global_batch=options.global_batch, seed=options.seed)
    doubts = scaling.all_doubts(scenarios, options.workers, global_batch=options.global_batch)
    look = figure_look(options)
    paths = write_simulation(table, calibration, doubts, options.out, look=look) if options.out else []
    written = ["", f"written: {', '.join(str(path) for path in paths)}"] if paths else []
    return Result(
        document=content(table, calibration, doubts),
        lines=[text(table, calibration), *written],
        files=paths or None,
        doubts=doubts,
    )


def advise_arguments(parser: Parser) -> None:
    parser.add_argument("--widths", metavar="C-C-H", help="the worked example with these widths (default 15-38-197)")
    parser.add_argument("--model", type=Path, metavar="FILE.yaml", help="or any model in layers, see docs/advise.md")
    parser.add_argument("--batch", type=int, metavar="N", help="samples per worker and step (default 75)")
    parser.add_argument("--workers", type=int, metavar="N", help="workers (default 2)")
    parser.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node (default: all)")
    parser.add_argument("--memory-gb", type=float, metavar="X", help="memory of a worker (default: as on this machine)")
    parser.add_argument("--optimizer", metavar="adam|adamw|sgd", help="whose state is kept (default adam)")
    parser.add_argument("--precision", metavar="fp32|tf32|bf16|fp16", help="of the activations (default fp32)")
    parser.add_argument("--network", type=Path, metavar="bench.json", help="what `horovod-study bench` measured")
    parser.add_argument("--way", metavar="NAME", help="which of its ways (default: the quickest for the gradients)")
    parser.add_argument("--alpha-us", type=float, metavar="X", help="or by hand: microseconds of an empty message, ...")
    parser.add_argument("--gb-per-s", type=float, metavar="X", help="... and GB (1e9 bytes) per second")
    parser.add_argument("--run", type=Path, metavar="RUN_DIR", help="a run: batch, workers, model, computing per step")
    parser.add_argument("--step-ms", type=float, metavar="X", help="or: a step of one worker alone at this batch")
    parser.add_argument("--flops-per-s", type=float, metavar="X", help="or: training FLOP per second of a worker")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def advise(options: argparse.Namespace) -> Result:
    """Say whether data or model parallel fits a model, with the arithmetic of memory, messages and time."""
    from dataclasses import asdict, fields

    from horovod_study.analysis.advice import Asked, bench_of, case_of, layered_model
    from horovod_study.analysis.advice import advise as advise_on
    from horovod_study.documents import load_yaml
    from horovod_study.measure.memory import worker_memory
    from horovod_study.records import read_run

    source = str(options.model or "")
    model = layered_model(load_yaml(options.model), source=source) if options.model else None
    wanted, network = "the bench.json that `horovod-study bench` wrote", options.network
    bench = network and (bench_of(read_input(network, wanted), source=str(network)), str(network))
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    memory = None if options.memory_gb is None else (options.memory_gb * 1e9, "--memory-gb")
    names = [each.name for each in fields(Asked) if each.name != "model"]
    asked = Asked(model=model, **{name: getattr(options, name) for name in names})
    case = case_of(asked, bench=bench, run=recorded, memory=memory, memory_of=worker_memory)
    advice = advise_on(case)
    return Result(document=advice.to_dict(), lines=advice.lines())


VERBS = (
    Verb("fit", fit, fit_arguments),
    Verb("predict", predict, predict_arguments),
    Verb("simulate", simulate, simulate_arguments),
    Verb("advise", advise, advise_arguments),
)
