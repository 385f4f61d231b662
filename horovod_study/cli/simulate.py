"""`horovod-study predict --simulate`, `predict --model-parallel`: from constants, measured or given."""

import argparse
import math
from pathlib import Path

from horovod_study.cli.verbs import (
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
)
from horovod_study.config.options import Parser

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
    from horovod_study.analysis.simulate.what_if import what_if
    from horovod_study.config.documents import load_yaml
    from horovod_study.config.doors import asked
    from horovod_study.records import recorded_run
    from horovod_study.report.figures.simulation import content, text, write_simulation

    given = asked(Given, {name: getattr(options, name) for name in Given.model_fields}, "simulate")
    runs = [run_times(recorded_run(each)) for each in options.run]
    size = (
        runs[0].gradient_bytes if runs and options.gradient_mb is None else (options.gradient_mb or 0.0) * 1e6 or None
    )
    read = read_benches(options.bench, gradient_bytes=size)
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
    scenarios = what_if(calibration.scenario, options.what_if)
    table = scaling.simulate(scenarios, options.workers, global_batch=options.global_batch, seed=options.seed)
    doubts = [*set_aside, *scaling.all_doubts(scenarios, options.workers, global_batch=options.global_batch)]
    look = figure_look(options)
    paths = write_simulation(table, calibration, doubts, options.out, look=look) if options.out else []
    written = ["", f"written: {', '.join(str(path) for path in paths)}"] if paths else []
    return Result(
        document=content(table, calibration, doubts),
        lines=[text(table, calibration), *written],
        files=paths or None,
        doubts=doubts,
    )


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

    from horovod_study.analysis.machine.advice import advise as advise_on
    from horovod_study.analysis.machine.advice import case_of, layered_model
    from horovod_study.config.documents import load_yaml
    from horovod_study.records import finite, read_run
    from horovod_study.workload.room import worker_memory

    source = str(options.model or "")
    model = layered_model(load_yaml(options.model), source=source) if options.model else None
    bench = read_benches([options.bench], gradient_bytes=math.nan)[-1] if options.bench else None
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    case = case_of(vars(options), model=model, bench=bench, run=recorded, memory_of=worker_memory)
    advice = advise_on(case)
    return Result(document=finite(advice), lines=advice.lines())


VERBS = (
    Verb("predict --simulate", simulate, _simulate_arguments),
    Verb("predict --model-parallel", model_parallel, _model_parallel_arguments),
)
