"""`horovod-study simulate`: steps of many workers from measured or given constants, and data against model parallel."""

import argparse
import math
from pathlib import Path

from horovod_study.cli.verbs import Result, Verb, add_figure_arguments, figure_look, read_benches
from horovod_study.options import Parser


def simulate_arguments(parser: Parser) -> None:
    add_figure_arguments(parser)
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[2**power for power in range(11)],
        metavar="N",
        help="up to 10 million each (default 1 2 4 8 ... 1024)",
    )
    parser.add_argument("--scaling", default="weak", metavar="weak|strong", help="batch per worker or per step fixed")
    parser.add_argument(
        "--global-batch", type=int, metavar="N", help="of strong scaling (default: of the smallest worker count)"
    )
    parser.add_argument("--run", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="recorded runs: computing")
    parser.add_argument(
        "--beside", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="runs of one worker made at the same time"
    )
    parser.add_argument(
        "--bench",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="measured networks: bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed; OUT.txt@4x8 says "
        "4 nodes with 8 workers each",
    )
    parser.add_argument("--way", metavar="NAME", help="which of their ways (default: of the run, else the quickest)")
    parser.add_argument(
        "--network", type=Path, metavar="FILE.yaml", help="or a described one, see experiments/networks"
    )
    parser.add_argument(
        "--alpha-us", type=float, metavar="X", help="or directly: microseconds of an empty message, ..."
    )
    parser.add_argument("--gb-per-s", type=float, metavar="X", help="... and GB (1e9 bytes) per second")
    parser.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node")
    parser.add_argument("--compute-ms", type=float, metavar="X", help="instead of runs: computing of a step, and ...")
    parser.add_argument(
        "--compute-fixed-ms", type=float, metavar="X", help="... the part of it that does not depend on the batch, ..."
    )
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

    from horovod_study.analysis.machine.bench_files import largest_of_each_kind
    from horovod_study.analysis.simulate import scaling
    from horovod_study.analysis.simulate.calibration import Given, calibrate, run_times
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


def model_parallel_arguments(parser: Parser) -> None:
    parser.add_argument("--widths", metavar="C-C-H", help="the worked example with these widths (default 15-38-197)")
    parser.add_argument(
        "--model", type=Path, metavar="FILE.yaml", help="or any model in layers, see docs/model_parallel.md"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="samples per worker and step (default 75)")
    parser.add_argument("--workers", type=int, metavar="N", help="workers (default 2)")
    parser.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node (default: all)")
    parser.add_argument("--memory-gb", type=float, metavar="X", help="memory of a worker (default: as on this machine)")
    parser.add_argument("--optimizer", metavar="adam|adamw|sgd", help="whose state is kept (default adam)")
    parser.add_argument("--precision", metavar="fp32|tf32|bf16|fp16", help="of the activations (default fp32)")
    parser.add_argument("--bench", type=Path, metavar="FILE", help="a measured network: bench.json, or as in simulate")
    parser.add_argument("--way", metavar="NAME", help="which of its ways (default: the quickest for the gradients)")
    parser.add_argument(
        "--alpha-us", type=float, metavar="X", help="or directly: microseconds of an empty message, ..."
    )
    parser.add_argument("--gb-per-s", type=float, metavar="X", help="... and GB (1e9 bytes) per second")
    parser.add_argument("--run", type=Path, metavar="RUN_DIR", help="a run: batch, workers, model, computing per step")
    parser.add_argument("--step-ms", type=float, metavar="X", help="or: a step of one worker alone at this batch")
    parser.add_argument("--flops-per-s", type=float, metavar="X", help="or: training FLOP per second of a worker")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def model_parallel(options: argparse.Namespace) -> Result:
    """Compute whether data or model parallelism fits a model, from memory, messages and time."""
    from dataclasses import asdict, fields

    from horovod_study.analysis.machine.advice import Asked, case_of, layered_model
    from horovod_study.analysis.machine.advice import advise as advise_on
    from horovod_study.documents import load_yaml
    from horovod_study.records import read_run
    from horovod_study.workload.room import worker_memory

    source = str(options.model or "")
    model = layered_model(load_yaml(options.model), source=source) if options.model else None
    bench = read_benches([options.bench], gradient_bytes=math.nan)[-1] if options.bench else None
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    memory = None if options.memory_gb is None else (options.memory_gb * 1e9, "--memory-gb")
    names = [each.name for each in fields(Asked) if each.name != "model"]
    asked = Asked(model=model, **{name: getattr(options, name) for name in names})
    case = case_of(asked, bench=bench, run=recorded, memory=memory, memory_of=worker_memory)
    advice = advise_on(case)
    return Result(document=advice.to_dict(), lines=advice.lines())


VERBS = (
    Verb(
        "simulate",
        simulate,
        simulate_arguments,
        verbs=(Verb("model-parallel", model_parallel, model_parallel_arguments),),
    ),
)
