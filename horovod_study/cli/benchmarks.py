"""`horovod-study bench`: the network, the processors, the loaders, the timers, and equality of trainings."""

import argparse
from pathlib import Path

from horovod_study.cli.verbs import COUNT, CURVES, DIR, FLAG, NUMBER, Result, Verb, given, progress, written
from horovod_study.config.options import Parser
from horovod_study.config.run import available_cores
from horovod_study.runtimes import RUNTIMES

_LOADERS = ["memory", "prefetch", "device", "dataloader", "dataloader:2"]


def _bench_arguments(add: Parser) -> None:
    add("--workers", **COUNT, help="workers to start here (default: one for each core)")
    add("--transport", nargs="*", metavar="NAME", help="raw: mpi, gloo, nccl (default: all there are)")
    add("--runtime", nargs="*", metavar="NAME", help="as horovod/mpi horovod/gloo ddp/gloo (default: these)")
    add("--sizes", nargs="+", metavar="SIZE", help="of messages, as 64K or 1G (default: 4 to 256M)")
    add("--seconds", **NUMBER, default=30.0, help="to spend on messages, about (default 30)")
    add("--rounds", **COUNT, default=5, help="how often all is measured (default 5)")
    add("--out", **DIR, default=Path("bench"), help="receives tables and figures (default bench)")
    add("--min-bytes", default="4", metavar="SIZE", help="smallest message (default 4)", more=True)
    add("--max-bytes", metavar="SIZE", help="largest message (default 256M)", more=True)
    add("--factor", **COUNT, default=4, help="from a size to the next (default 4)", more=True)
    add("--batch", **COUNT, default=75, help="curves per worker and step (default 75)", more=True)
    add("--widths", default="15-38-197", metavar="C-C-H", help="of the model (default 15-38-197)", more=True)


def bench(options: argparse.Namespace) -> int:
    """Measure the network between workers and what a worker can do."""
    from horovod_study.analysis.machine.network import analyze as analyze_network
    from horovod_study.report.figures.bench import content, text, write_bench
    from horovod_study.studies.bench import bench_document, finish

    document = bench_document(
        sizes=given(options, "sizes", "min_bytes", "max_bytes", "factor"),
        plan=given(options, "seconds", "rounds", "batch", "widths"),
        **given(options, "workers", "transport", "runtime", "out"),
    )
    network = analyze_network(document)
    paths = write_bench(network, document, options.out)
    found = Result(
        document=content(network, document),
        lines=[text(network, document), *written(paths)],
        files=paths,
        doubts=network["doubts"],
        exit_code=1 if network["wrong"] else 0,
    )
    return finish(found.show(as_json=options.json))


def _data_arguments(add: Parser) -> None:
    add("--dataset", default="100000", metavar="PATH|SIZE", help="as for train (default 100000)")
    add("--data-seed", **COUNT, default=1, help="seed of a generated one (default 1)", more=True)
    add("--batch", **COUNT, nargs="+", default=[75], help="curves per step (default 75)")
    add("--device", default="auto", metavar="auto|cpu|cuda", help="where to compute (default auto)")
    add("--threads", **COUNT, default=1, help="compute threads (default 1)")


def _loading_arguments(add: Parser) -> None:
    _data_arguments(add)
    text = "memory, prefetch, device, dataloader, or dataloader:N with N loader processes (default: all, N = 2)"
    add("--loader", nargs="+", default=_LOADERS, metavar="NAME", help=text)
    add("--rounds", **COUNT, default=5, help="how often all is measured (default 5)")
    add("--seconds", **NUMBER, default=1.0, help="of each measurement (default 1)")
    add("--pin-memory", **FLAG, help="copy to the GPU from page-locked memory")
    add("--out", **DIR, help="receives loading.json")


def _dataset(options: argparse.Namespace) -> Path:
    """Return the data set that --dataset and --data-seed name; it is made where it is not there."""
    from horovod_study.strain.dataset import ensure

    with progress(CURVES) as on_progress:
        return ensure(options.dataset, seed=options.data_seed, threads=available_cores(), on_progress=on_progress)


def loading(options: argparse.Namespace) -> Result:
    """Compare the loaders: loading alone, training alone, and both together."""
    from horovod_study.measure import environment
    from horovod_study.measure.clock import utc_now
    from horovod_study.programs.loading import compare_loaders, to_text
    from horovod_study.report.kit.files import write_result
    from horovod_study.strain.dataset import open_dataset
    from horovod_study.strain.options import StrainConfig

    configs = [StrainConfig(batch=each, **given(options, "device", "threads", "pin_memory")) for each in options.batch]
    opened, how = open_dataset(_dataset(options)), given(options, "rounds", "seconds")
    with progress("  {}".format) as told:
        found = [compare_loaders(each, opened, options.loader, on_progress=told, **how) for each in configs]
    kept = {"measured": utc_now(), "machine": environment.describe(), "comparisons": found}
    paths = write_result(options.out, {"loading.json": kept}) if options.out else []
    lines = [line for each in found for line in (*to_text(each), "")][:-1]
    return Result(document={"comparisons": found}, lines=[*lines, *written(paths)])


def _timers_arguments(add: Parser) -> None:
    _data_arguments(add)
    add("--workers", **COUNT, nargs="+", default=[1], help="on this machine (default 1)")
    add("--over", default="horovod/mpi", metavar="NAME", help="how several communicate (default horovod/mpi)")
    add("--seconds", **NUMBER, default=60.0, help="for each batch and number of workers (default 60)")
    above = "end with 1 if light certainly costs more: if its whole 95 %% interval is above"
    add("--fail-above", type=float, metavar="PERCENT", help=above)
    add("--out", **DIR, default=Path("bench") / "timers", help="receives table and logs (default bench/timers)")
    add("--widths", default="15-38-197", metavar="C-C-H", help="of the model (default 15-38-197)", more=True)
    for name, usual in (("precision", "fp32"), ("loader", "memory"), ("kernels", "torch")):
        add(f"--{name}", default=usual, metavar="NAME", help=f"as for train (default {usual})", more=True)
    add("--cuda-graphs", **FLAG, help="replay whole steps, as for train; needs a GPU", more=True)
    add("--rounds", **COUNT, help="so many rounds instead, however long they take", more=True)
    block = "of one mode in a row (default: about 12 ms of them)"
    add("--steps-per-block", **COUNT, help=block, more=True)
    add("--seed", **COUNT, default=1, help="of the order in the rounds (default 1)", more=True)


def timers(options: argparse.Namespace) -> Result:
    """Measure what measuring costs: timers off, light and strict alternate."""
    from horovod_study.analysis.compare.comparison import exceeds, timer_cost
    from horovod_study.report.kit.files import write_result
    from horovod_study.report.terminal import timers_text
    from horovod_study.studies.bench import measure_timers

    plan = given(options, "seconds", "rounds", "steps_per_block", "seed")
    plan = {"dataset": str(_dataset(options).absolute()), **plan}
    of_runs = given(options, "widths", "device", "threads", "precision", "loader", "cuda_graphs", "kernels")
    where = given(options, "batch", "workers", "over")
    with progress("  {}".format) as told:
        cases = measure_timers(options.out, plan, **where, options=of_runs, told=told)
    limit = 0.5 if options.fail_above is None else options.fail_above
    costs = [timer_cost(case, limit_percent=limit) for case in cases]
    document = {"cases": costs, "measured": cases}
    paths = write_result(options.out, {"timers.json": document, "timers.txt": timers_text(costs, cases)})
    return Result(
        document=document,
        lines=[timers_text(costs, cases), *written(paths)],
        files=paths,
        doubts=dict.fromkeys(doubt for cost in costs for doubt in cost["doubts"]),
        exit_code=1 if options.fail_above is not None and any(exceeds(cost, limit) for cost in costs) else 0,
    )


def _equality_arguments(add: Parser) -> None:
    add("--workers", **COUNT, nargs="+", default=[2], help="worker counts (default 2)")
    runtimes = [name for name in RUNTIMES if name != "serial"]
    text = "horovod/mpi, ddp/gloo, ... (default: all there are)"
    add("--runtime", nargs="+", choices=runtimes, metavar="NAME", help=text)
    for name, usual, text in (
        ("reduction", ["flat", "hooks"], "how gradients are averaged"),
        ("dtype", ["float32", "float64"], "precision"),
        ("optimizer", ["adam", "sgd"], "update rule"),
    ):
        text = f"{text} (default {' '.join(usual)})"
        add(f"--{name}", nargs="+", choices=usual, default=usual, metavar="NAME", help=text)
    add("--steps", **COUNT, default=10, help="steps of each training run (default 10)")
    add("--dataset", default="4000", metavar="PATH|SIZE", help="as for train (default 4000)")
    broken = "do it wrong on purpose, and fail: sum of gradients, shard shifted by a curve, lr, start of one rank"
    add("--break", dest="broken", choices=("sum", "shard", "lr", "start"), metavar="HOW", help=broken)
    add("--out", **DIR, help="receives verify.txt, verify.json, verify.csv and logs")
    batch = "curves of a step, of all workers together (default 300)"
    add("--batch", **COUNT, default=300, help=batch, more=True)
    add("--seed", **COUNT, default=1, help="of parameters and data order (default 1)", more=True)
    for name, allowed, default, text in (
        ("lr-scaling", ("none", "linear", "sqrt"), "none", "as for train"),
        ("input-scaling", ("none", "fixed", "standard"), "standard", "with standard rounding is amplified least"),
        ("kernels", ("torch", "native"), "torch", "of parallel runs; native: --dtype float32 --reduction flat"),
    ):
        text = f"{', '.join(allowed)}: {text} (default {default})"
        add(f"--{name}", choices=allowed, default=default, metavar="NAME", help=text, more=True)


def equality(options: argparse.Namespace) -> Result:
    """Prove that parallel training equals sequential training, weight by weight."""
    from horovod_study.records import finite
    from horovod_study.report.terminal import equality_text, write_equality
    from horovod_study.studies.bench import Question
    from horovod_study.studies.bench import verify as prove

    result = finite(prove(Question(**given(options, *Question._fields)), options.out))
    paths = write_equality(result, options.out) if options.out else []
    lines = [equality_text(result), *written(paths)]
    return Result(document=result, lines=lines, exit_code=0 if result["passed"] else 1)


_BELOW = (
    Verb("loading", loading, _loading_arguments),
    Verb("equality", equality, _equality_arguments),
    Verb("timers", timers, _timers_arguments),
)
VERBS = (Verb("bench", bench, _bench_arguments, verbs=_BELOW),)
