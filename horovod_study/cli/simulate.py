"""`horovod-study simulate`: steps of many workers from measured or given constants, and data against model parallel."""

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
from horovod_study.options import Parser


def _simulate_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add_figure_arguments(parser)
    add(
        "--workers",
        **COUNT,
        nargs="+",
        default=[2**power for power in range(11)],
        help="up to 10 million each (default 1 2 4 8 ... 1024)",
    )
    add("--scaling", default="weak", metavar="weak|strong", help="batch per worker or per step fixed")
    add("--global-batch", **COUNT, help="of strong scaling (default: of the smallest worker count)")
    add("--run", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="recorded runs: computing")
    add(
        "--beside", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="runs of one worker made at the same time"
    )
    add(
        "--bench",
        **FILE,
        nargs="+",
        default=[],
        help="measured networks: bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed; OUT.txt@4x8 says "
        "4 nodes with 8 workers each",
    )
    add("--way", metavar="NAME", help="which of their ways (default: of the run, else the quickest)")
    add("--network", type=Path, metavar="FILE.yaml", help="or a described one, see experiments/networks")
    add("--alpha-us", **NUMBER, help="or directly: microseconds of an empty message, ...")
    add("--gb-per-s", **NUMBER, help="... and GB (1e9 bytes) per second")
    add("--workers-per-node", **COUNT, help="workers that fill a node")
    add("--compute-ms", **NUMBER, help="instead of runs: computing of a step, and ...")
    add("--compute-fixed-ms", **NUMBER, help="... the part of it that does not depend on the batch, ...")
    add("--compute-cv", **NUMBER, help="... its standard deviation / mean (default 0)")
    add("--batch", **COUNT, help="samples per worker and step (default: of the run)")
    add("--gradient-mb", **NUMBER, help="1e6 bytes of gradients (default: of the run)")
    add("--buckets", **COUNT, help="sent during backward (default 1: after backward)")
    add("--algorithm", metavar="NAME", help="auto, ring, tree, doubling, halving, hierarchical or ps")
    add("--overhead-us", **NUMBER, help="of the runtime, for each message")
    add("--cycle-ms", **NUMBER, help="Horovod's cycle; 0: new gradients end it")
    add("--fusion-mb", **NUMBER, help="MiB that go into one message at most")
    add("--what-if", nargs="+", default=[], metavar="KEY=VALUE", help="as bandwidth=2x cycle=0,batch=8x algorithm=ps")
    add("--seed", **COUNT, default=1, help="of the simulated steps (default 1)")
    add("--out", **DIR, help="receives figure, CSV, JSON and table")
    add("--json", **FLAG, help="print one line of JSON")


def simulate(options: argparse.Namespace) -> Result:
    """Simulate a data-parallel step on up to 100,000 workers, from measured or given constants, and what-ifs."""
    from dataclasses import fields

    from horovod_study.analysis.simulate import scaling
    from horovod_study.analysis.simulate.calibration import Given, calibrate, largest_of_each_kind, run_times
    from horovod_study.analysis.simulate.network import network_from
    from horovod_study.analysis.simulate.what_if import what_if
    from horovod_study.documents import load_yaml
    from horovod_study.records import recorded_run
    from horovod_study.report.figures.simulation import content, text, write_simulation

    runs = [run_times(recorded_run(each)) for each in options.run]
    size = (
        runs[0].gradient_bytes if runs and options.gradient_mb is None else (options.gradient_mb or 0.0) * 1e6 or None
    )
    read = read_benches(options.bench, gradient_bytes=size)
    benches, set_aside = largest_of_each_kind(read)
    network = options.network and network_from(load_yaml(options.network), source=str(options.network))
    calibration = calibrate(
        Given(**{each.name: getattr(options, each.name) for each in fields(Given)}),
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
    add("--widths", metavar="C-C-H", help="the worked example with these widths (default 15-38-197)")
    add("--model", type=Path, metavar="FILE.yaml", help="or any model in layers, see docs/model_parallel.md")
    add("--batch", **COUNT, help="samples per worker and step (default 75)")
    add("--workers", **COUNT, help="workers (default 2)")
    add("--workers-per-node", **COUNT, help="workers that fill a node (default: all)")
    add("--memory-gb", **NUMBER, help="memory of a worker (default: as on this machine)")
    add("--optimizer", metavar="adam|adamw|sgd", help="whose state is kept (default adam)")
    add("--precision", metavar="fp32|tf32|bf16|fp16", help="of the activations (default fp32)")
    add("--bench", **FILE, help="a measured network: bench.json, or as in simulate")
    add("--way", metavar="NAME", help="which of its ways (default: the quickest for the gradients)")
    add("--alpha-us", **NUMBER, help="or directly: microseconds of an empty message, ...")
    add("--gb-per-s", **NUMBER, help="... and GB (1e9 bytes) per second")
    add("--run", type=Path, metavar="RUN_DIR", help="a run: batch, workers, model, computing per step")
    add("--step-ms", **NUMBER, help="or: a step of one worker alone at this batch")
    add("--flops-per-s", **NUMBER, help="or: training FLOP per second of a worker")
    add("--json", **FLAG, help="print one line of JSON")


def model_parallel(options: argparse.Namespace) -> Result:
    """Compute whether data or model parallelism fits a model, from memory, messages and time."""
    from dataclasses import asdict

    from horovod_study.analysis.machine.advice import advise as advise_on
    from horovod_study.analysis.machine.advice import case_of, layered_model
    from horovod_study.documents import load_yaml
    from horovod_study.records import read_run
    from horovod_study.workload.room import worker_memory

    source = str(options.model or "")
    model = layered_model(load_yaml(options.model), source=source) if options.model else None
    bench = read_benches([options.bench], gradient_bytes=math.nan)[-1] if options.bench else None
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    case = case_of(vars(options), model=model, bench=bench, run=recorded, memory_of=worker_memory)
    advice = advise_on(case)
    return Result(document=advice.to_dict(), lines=advice.lines())


VERBS = (
    Verb(
        "simulate",
        simulate,
        _simulate_arguments,
        verbs=(Verb("model-parallel", model_parallel, _model_parallel_arguments),),
    ),
)
