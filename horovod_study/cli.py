"""`horovod-study VERB`: parse, call, print. No logic lives here.

What needs PyTorch, pandas or matplotlib is imported by the verb that uses it, so that help is quick and every verb
works where only its own extra is installed.
"""

import argparse
import errno
import json
import math
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from horovod_study import __version__, low_memory
from horovod_study.config import available_cores
from horovod_study.documents import read_text
from horovod_study.errors import AnalysisError, ConfigError, DataError, RecordError, StudyError
from horovod_study.options import (
    SET_BY_ATTRIBUTION,
    SET_BY_COMPARE,
    SET_BY_RANGE_TEST,
    SET_BY_TUNE,
    Parser,
    add_read_options,
    add_run_options,
    read_values,
    run_values,
)

EXTRAS = {"analysis": ("pandas", "scipy", "matplotlib", "jinja2"), "train": ("torch", "psutil"), "search": ("optuna",)}
"""Which extra of setup.cfg brings a package that a verb may miss."""

MOST_THREADS = 4
BENCH_JSON = "the bench.json that `horovod-study bench` wrote"
"""More do not read step rows any faster: what is left to Python goes one at a time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 1 a check failed or cells are missing, 2 wrong use."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    low_memory.install()
    if arguments is None:
        signal.signal(signal.SIGTERM, _end_in_order)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name from a file that the terminal cannot show
    try:
        if words[:1] == ["train"] and not {"-h", "--help"} & set(words):
            return _train(words[1:])
        options = _parser().parse_strictly(words)
        options.words = words
        code: int = options.verb(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that left or a full disk can still be told
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
    except OSError as error:
        if error.errno not in _OF_THE_SYSTEM:
            raise
        print(f"error: {error.filename or 'the output'}: {error.strerror}; mend that, and try again", file=sys.stderr)
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


_OF_THE_SYSTEM = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE),
)
"""What a disk, its permissions and its limits refuse is no bug of this program."""


def _end_in_order(number: int, _: Any) -> None:
    """End on SIGTERM as on Ctrl-C: what was begun is taken away. Verbs with handlers of their own replace this one."""
    for again in (signal.SIGTERM, signal.SIGINT):  # what is taken away now is not to be left half
        signal.signal(again, signal.SIG_IGN)
    print("terminated", file=sys.stderr)
    raise SystemExit(128 + number)


# ------------------------------------------------------------------------------------------------------- data


def data_generate(options: argparse.Namespace) -> int:
    """Generate a labelled data set."""
    from horovod_study.measure.clock import now
    from horovod_study.progress import say
    from horovod_study.workload import dataset

    size = dataset.parse_size(options.size)
    if size is None:
        raise DataError(f"--size {options.size}: must be a whole number of curves, for instance 1000000")
    noise_max_mpa = _noise_max_mpa(options)
    if options.processes < 1:
        raise DataError(f"--processes {options.processes}: must be 1 or greater")
    path = options.out or dataset.cached_path(size, options.seed, noise_max_mpa)
    noise = f"noise up to {noise_max_mpa:g} MPa" if noise_max_mpa else "clean"
    say(f"generating {size:,} curves (seed {options.seed}), {noise}, into {path}")
    doubt = dataset.page_cache_doubt(size)
    if doubt:
        say(f"warning: {doubt}")
    began = now()
    with _curves_told() as tell:
        dataset.generate(
            path, size, seed=options.seed, noise_max_mpa=noise_max_mpa, processes=options.processes, tell=tell
        )
    say(f"generated in {now() - began:.1f} s")
    print(path)
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Read a whole data set, verify it against its side-car and print its statistical floor."""
    from horovod_study.workload import dataset
    from horovod_study.workload.room import amount

    path = dataset.path_of(options.dataset, seed=options.seed, noise_max_mpa=_noise_max_mpa(options))
    with _curves_told() as tell:
        facts = dataset.check(path, tell=tell)
    if options.json:
        print(json.dumps(facts))
        return 0
    (g0_low, g0_high), (a_low, a_high) = facts["target_bounds"]
    if facts["kind"] == "generated":
        made = f"{facts['spec']}, seed {facts['seed']}, noise up to {facts['noise_max_mpa']:g} MPa"
        inside = "all inside"
    else:
        known = {name: value for name, value in facts["provenance"].items() if name not in ("ids", "files", "warnings")}
        made, inside = f"import of {json.dumps(known)}", "all finite"
    rows = [
        ("made by", made),
        (
            "split",
            f"{facts['size']:,} curves: {facts['train']:,} for training, {facts['test']:,} for testing (every fourth)",
        ),
        ("files", f"{amount(facts['bytes'])}; SHA-256 of all {facts['blocks']} blocks agree"),
        ("layout", "flags, padding and increasing strain agree with the specification"),
        ("targets", f"G0 {g0_low:g} to {g0_high:g} MPa, a {a_low:g} to {a_high:g}; {inside}"),
    ]
    floor = facts["floor"]
    if floor is None:
        why = "nothing says how noisy the curves are" if facts["test"] else "there are no test curves"
        rows.append(("floor", f"not known: {why}"))
    else:
        source = "from the test curves on disk" if facts["floor_recomputed"] else "estimated at the import"
        agrees = ", as in the side-car" if facts["floor_recomputed"] and facts["floor_in_sidecar"] else ""
        rows += [
            ("floor", f"test MSE {floor['mse']:.3e} (Cramer-Rao bound {source}{agrees})"),
            ("", f"  G0 {floor['g0_mse']:.3e}, root {floor['g0_rmse_mpa']:.2f} MPa"),
            ("", f"  a  {floor['a_mse']:.3e}, root {floor['a_rmse']:.3f}"),
        ]
    rows.append(("digest", facts["digest"]))
    print("\n".join([f"{facts['path']}: good", *(f"  {name:<8} {text}" for name, text in rows)]))
    return 0


def data_import(options: argparse.Namespace) -> int:
    """Make a data set of your own curves."""
    import numpy as np

    from horovod_study.measure.clock import now
    from horovod_study.progress import Line, say
    from horovod_study.workload.curves import ReadOptions
    from horovod_study.workload.curves.importing import import_curves, lines

    line, began = Line(), now()

    def tell(what: str, done: int, total: int) -> None:
        if line.due():
            line.show(f"  {what}  {done / total if total else 1.0:4.0%}  {now() - began:.0f} s")

    bounds = None if options.target_bounds is None else np.array(options.target_bounds).reshape(2, 2)
    try:
        provenance = import_curves(
            options.path,
            options.out,
            ReadOptions(**read_values(options)),
            label=options.label,
            target_bounds=bounds,
            tell=tell,
        )
    finally:
        line.close()
    for warning in provenance["warnings"]:
        say(f"warning: {warning}")
    if options.json:
        print(json.dumps({"path": str(options.out), **provenance}, allow_nan=False))
        return 0
    print(f"{options.out}: imported in {now() - began:.1f} s")
    print(*(f"  {text}" for text in lines(provenance)), sep="\n")
    print(f"train on it: python -m horovod_study.train --dataset {shlex.quote(str(options.out))}")
    return 0


def identify(options: argparse.Namespace) -> int:
    """Find G0 and a of measured curves with a trained network and by a fit of the law."""
    from horovod_study.progress import Line, say
    from horovod_study.report import identified
    from horovod_study.workload import identify as identifying
    from horovod_study.workload.curves import ReadOptions, read_curves

    identified.check_outputs(options.curves, csv_path=options.csv, plot=options.plot)
    reading = ReadOptions(**read_values(options))
    model, target_bounds = identifying.open_model(options.model)
    line = Line()

    def tell(what: str, done: int, total: int) -> None:
        if line.due():
            line.show(f"  {what}  {done / total if total else 1.0:4.0%}")

    try:
        curves = read_curves(options.curves, reading, tell=tell)
    finally:
        line.close()
    for warning in curves.warnings:
        say(f"warning: {warning}")
    found = identifying.identify(curves, model, target_bounds, disagree_se=options.disagree, reduce=reading.reduce)
    rows = [one.row() for one in found]
    errors, trained = identifying.errors(found), identifying.trained_on(target_bounds)
    if options.csv:
        identified.write_csv(rows, options.csv)
    if options.plot:
        identified.write_plot(found, options.plot)
    if options.json:
        head = {"model": {"source": str(options.model), "trained_on": trained.to_dict()}, "curves": str(options.curves)}
        body = {"warnings": curves.warnings, "errors": errors, "specimens": [one.to_dict() for one in found]}
        print(json.dumps({**head, **body}, allow_nan=False))
        return 0
    print(identified.table(rows))
    print(*identified.notes(trained.to_dict(), errors), sep="\n", flush=True)
    doubts = [(one.name, doubt.kind, doubt.text) for one in found for doubt in one.doubts]
    for text in identified.doubt_lines(doubts, identifying.HEADLINES, len(found)):
        say(f"doubt: {text}")
    for path in (options.csv, options.plot):
        if path:
            left_out = identified.left_out(len(found)) if path == options.plot else ""
            say(f"wrote {path}{f' ({left_out})' if left_out else ''}")
    return 0


def _noise_max_mpa(options: argparse.Namespace) -> float:
    """Return the largest noise level that --noise-max and --clean mean together."""
    if options.clean and options.noise_max:
        raise DataError(
            f"--clean means --noise-max 0, but --noise-max {options.noise_max} is given; keep one of the two"
        )
    value = 0.0 if options.clean else 1.0 if options.noise_max is None else options.noise_max
    if not 0 <= value < math.inf:
        raise DataError(f"--noise-max {value}: must be 0 (clean curves, as --clean) or greater, in MPa")
    return value


@contextmanager
def _curves_told() -> Iterator[Callable[[int, int], None]]:
    """Give a function of (curves done, curves in all) that shows a bar, the rate and the time left."""
    from horovod_study.measure.clock import now
    from horovod_study.progress import Line

    line, began = Line(), now()

    def tell(done: int, total: int) -> None:
        if line.due() and done:
            rate = done / (now() - began)
            bar = "#" * (20 * done // total)
            line.show(
                f"  [{bar:<20}] {done / total:4.0%}  {done:,} of {total:,} curves  {rate:,.0f}/s"
                f"  {(total - done) / rate:.0f} s left"
            )

    try:
        yield tell
    finally:
        line.close()


# ------------------------------------------------------------------------------------------------------ studies


def _train(words: list[str]) -> int:
    from horovod_study import train

    return train.main(words)


def plan(options: argparse.Namespace) -> int:
    """Say what a study would run, and what it would cost; nothing is run."""
    from horovod_study.cluster.ledger import past_durations
    from horovod_study.cluster.plan import plan_study

    study = _study(options)
    ledger = _ledger(options, study)
    planned = plan_study(study, ledger, past=past_durations(ledger.directory), retry=options.retry)
    if options.json:
        print(json.dumps(planned.to_dict()))
    else:
        print(*planned.lines(), sep="\n")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run what is missing of a study, then analyse and report it."""
    if options.plan:
        options.json = False
        return plan(options)
    study, command = _study(options), _command(options)
    if options.here:
        from horovod_study.cluster.job import run_here

        result = run_here(study, options.runs, command=command + " --here", retry=options.retry)
    else:
        from horovod_study.cluster.runner import run_study

        how = _how_to_run(options)
        result = run_study(study, options.runs, command=command, retry=options.retry, dry_run=options.dry_run, **how)
    return _conclude(options, study, command, result)


def retry(options: argparse.Namespace) -> int:
    """Run those cells again that failed, timed out, were cancelled or pre-empted."""
    from horovod_study.cluster.runner import retry_cells

    study, command = _study(options), _command(options)
    result = retry_cells(study, options.runs, command=command, which=options.cells, **_how_to_run(options))
    return _conclude(options, study, command, result)


def _command(options: argparse.Namespace) -> str:
    """Return what to type to go on."""
    elsewhere = [] if options.runs == Path("runs") else ["--runs", str(options.runs)]
    hosts = ["--hosts", options.hosts] if options.hosts else []
    return shlex.join(["horovod-study", "run", str(options.study), *elsewhere, *hosts])


def _how_to_run(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("yes", "oversubscribe", "smoke", "pin", "wait")}


def _conclude(options: argparse.Namespace, study: Any, command: str, result: Any) -> int:
    """Report the study if any of it is done, and return the exit code."""
    if result.planned_only or result.interrupted or not result.ledger.count("done"):
        return int(result.exit_code)
    directory = options.runs / study.name
    current = result.ledger.current_directories()
    planned = sorted(entry.key for entry in result.ledger.entries)
    how: dict[str, Any] = {"targets": study.targets, "only": current, "planned": planned}
    written = _analyze(directory, directory / "analysis", commands=[command], **how)
    _report(directory / "analysis")
    print(f"report: {directory / 'analysis' / 'report.html'}  (tables: {', '.join(path.name for path in written)})")
    return int(result.exit_code)


def status(options: argparse.Namespace) -> int:
    """Say where a study stands."""
    study = _study(options)
    if options.watch:
        from horovod_study.cluster.watch import watch

        return watch(study, options.runs)
    ledger = _ledger(options, study)
    if options.json:
        print(json.dumps(ledger.to_dict()))
    else:
        print(*ledger.lines(), "", ledger.summary(), sep="\n")
    return 0


def cancel(options: argparse.Namespace) -> int:
    """End cells that are running or queued; a running one writes a checkpoint first."""
    from horovod_study.cluster.runner import cancel_cells

    cancel_cells(_study(options), options.runs, which=options.cells)
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Examine this machine, other hosts or a partition: what is installed, what fits, what to do about the rest."""
    from rich.console import Console

    from horovod_study.cluster.doctor import examine, exit_code, to_dict
    from horovod_study.cluster.partitions import find_partition
    from horovod_study.report.doctor import show

    partition = find_partition(options.partition) if options.partition else None
    found = examine(hosts=_hosts(options), partition=partition, runs=options.runs, quick=options.quick)
    if options.json:
        print(json.dumps(to_dict(found)))
    else:
        show(found, Console())
    return exit_code(found)


def _study(options: argparse.Namespace) -> Any:
    from horovod_study.cluster.runner import on_hosts
    from horovod_study.cluster.study_file import load_study

    study = load_study(options.study)
    return on_hosts(study, _hosts(options)) if options.hosts else study


def _ledger(options: argparse.Namespace, study: Any) -> Any:
    from horovod_study.cluster.jobs import JobBook
    from horovod_study.cluster.ledger import read_ledger

    return read_ledger(study, options.runs, jobs=JobBook(options.runs / study.name))


def _hosts(options: argparse.Namespace) -> tuple[Any, ...]:
    from horovod_study.cluster.runner import parse_hosts

    return parse_hosts(options.hosts) if options.hosts else ()


def search(options: argparse.Namespace) -> int:
    """Search for good hyper-parameters: trials proposed by Optuna, several at a time if wanted, resumable."""
    from horovod_study.cluster.search import result_lines, run_search
    from horovod_study.cluster.search_file import load_search, with_trials
    from horovod_study.report.search import read_table, write_search

    command = shlex.join(["horovod-study", *options.words])
    wanted = with_trials(load_search(options.search), options.trials)
    result = run_search(wanted, options.runs, command=command, jobs=options.jobs, storage=options.storage)
    figure = write_search(read_table(result.directory / "trials.csv"), wanted.kinds(), result.directory)
    if options.json:
        print(json.dumps({**result.to_dict(), "figure": [str(path) for path in figure]}, allow_nan=False))
    else:
        print(*result_lines(result), *(f"  figure: {path}" for path in figure if path.suffix == ".png"), sep="\n")
    return result.exit_code


def lr_range(options: argparse.Namespace) -> int:
    """Find a learning rate: train once while it rises, and look where the loss falls fastest and where it diverges."""
    from horovod_study.analysis.lr_range import find_rate
    from horovod_study.cluster.range_run import range_config, run_range
    from horovod_study.report.lr_range import write_lr_range

    config = range_config(options.config, run_values(options), low=options.low, high=options.high)
    rates, losses, record = run_range(config, options.out, workers=options.workers, runtime=options.runtime)
    found = find_rate(rates, losses)
    paths = write_lr_range(found, options.out, batch=record.effective["global_batch"])
    if options.json:
        print(json.dumps({**found.to_dict(), "run_dir": str(options.out / "run"), "files": [str(p) for p in paths]}))
    else:
        print(*found.lines(), f"figure: {options.out / 'lr_range.png'}", sep="\n")
    return 0


def tune(options: argparse.Namespace) -> int:
    """Tune how workers talk: race settings on this model and this machine, and write a file for train --settings."""
    from horovod_study.cluster.tune import run_tune, tune_request
    from horovod_study.report.tune import table, write_tune

    request = tune_request(
        options.config,
        run_values(options),
        runtimes=options.runtime,
        workers=options.workers,
        minutes=options.minutes,
        rounds=options.rounds,
        knobs=options.knobs,
        values=options.knob,
    )
    command = shlex.join(["horovod-study", *options.words])
    result = run_tune(request, options.out, command=command)
    if result.interrupted:
        return result.exit_code
    figure = write_tune(result.document, options.out)
    if options.json:
        print(json.dumps({**result.document, "figure": [str(path) for path in figure]}, allow_nan=False))
    else:
        print(*table(result.document), f"figure: {options.out / 'tune.png'}", sep="\n")
        print(f"use it: ... train --settings {shlex.quote(result.document['settings_file'])}")
    return result.exit_code


def compare(options: argparse.Namespace) -> int:
    """Compare two configurations fairly: interleaved in blocks, equal work proven, with an interval and a verdict."""
    from horovod_study.analysis.comparison import compare as compare_blocks
    from horovod_study.analysis.comparison import too_few
    from horovod_study.cluster.compare import read_arms, run_compare, worker_counts
    from horovod_study.progress import say
    from horovod_study.report.comparison import write_comparison

    arms, seconds = read_arms(options.a, options.b, run_values(options))
    workers = worker_counts(arms, options.workers)
    doubt = too_few(options.blocks, len(workers))
    if doubt:
        say(f"warning: {doubt}")
    command = shlex.join(["horovod-study", *options.words])
    result = run_compare(arms, options.out, command=command, workers=workers, blocks=options.blocks, seconds=seconds)
    found = compare_blocks(result.blocks)
    paths = write_comparison(found, result.to_dict(), options.out)
    if options.json:
        files = [str(path) for path in paths]
        print(json.dumps({**result.to_dict(), **found.to_dict(), "files": files}, allow_nan=False))
    else:
        print(*result.lines(), "", *found.lines(), f"figure: {options.out / 'comparison.png'}", sep="\n")
    return result.exit_code


def verify(options: argparse.Namespace) -> int:
    """Prove that parallel training equals sequential training: the relative error of every weight and bias."""
    from horovod_study import records
    from horovod_study.cluster.verify import Question
    from horovod_study.cluster.verify import verify as prove
    from horovod_study.progress import say
    from horovod_study.report.equality import text, write

    question = Question(
        runtimes=options.runtime and tuple(options.runtime),
        workers=tuple(options.workers),
        reductions=tuple(options.reduction),
        dtypes=tuple(options.dtype),
        optimizers=tuple(options.optimizer),
        steps=options.steps,
        batch=options.batch,
        dataset=options.dataset,
        lr_scaling=options.lr_scaling,
        input_scaling=options.input_scaling,
        seed=options.seed,
        broken=options.wrong,
    )
    result = records.finite(prove(question, options.out).to_dict())
    paths = write(result, options.out) if options.out else []
    print(json.dumps(result, allow_nan=False) if options.json else text(result))
    for path in paths:
        say(f"wrote {path}")
    return 0 if result["passed"] else 1


# --------------------------------------------------------------------------------------------------- benchmarks


def bench(options: argparse.Namespace) -> int:
    """Measure the network between workers and what a worker can do: all-reduce, copies, matrix peak, roofline."""
    from horovod_study.analysis.network import analyze as analyze_network
    from horovod_study.cluster.bench import bench_document, finish
    from horovod_study.report.bench import content, text, write_bench

    document = bench_document(
        workers=options.workers,
        transports=options.transport,
        runtimes=options.runtime,
        sizes=options.sizes,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        factor=options.factor,
        batch=options.batch,
        widths=options.widths,
        seconds=options.seconds,
        rounds=options.rounds,
        out=options.out,
    )
    network = analyze_network(document)
    paths = write_bench(network, document, options.out)
    if options.json:
        print(json.dumps({**content(network, document), "files": [str(path) for path in paths]}, allow_nan=False))
    else:
        print(text(network, document), "", f"written: {', '.join(str(path) for path in paths)}", sep="\n")
    for doubt in network.doubts:
        print(f"doubt: {doubt}", file=sys.stderr)
    return finish(1 if network.wrong else 0)


def bench_loading(options: argparse.Namespace) -> int:
    """Compare the loaders: loading alone, training on one cached batch, both together, and what bounds a run."""
    from horovod_study.config import RunConfig
    from horovod_study.measure.loading import compare_loaders, save
    from horovod_study.progress import Line
    from horovod_study.workload import dataset

    configs = [
        RunConfig(batch=batch, device=options.device, threads=options.threads, pin_memory=options.pin_memory)
        for batch in options.batch
    ]
    with _curves_told() as tell:
        path = dataset.ensure(options.dataset, seed=options.data_seed, processes=available_cores(), tell=tell)
    opened, line, found = dataset.open_dataset(path), Line(), []

    def told(text: str) -> None:
        if line.due():
            line.show(f"  {text}")

    for config in configs:
        found.append(
            compare_loaders(config, opened, options.loader, rounds=options.rounds, seconds=options.seconds, tell=told)
        )
        line.close()
        if not options.json:
            print(*found[-1].lines(), "", sep="\n")
    if options.json:
        print(json.dumps({"comparisons": [each.to_dict() for each in found]}))
    if options.out:
        print(f"written to {save(found, options.out)}", file=sys.stderr)
    return 0


def bench_timers(options: argparse.Namespace) -> int:
    """Measure what measuring costs: blocks of steps with the timers off, light and strict take turns."""
    from horovod_study.analysis.timers import timer_cost
    from horovod_study.cluster.timers import measure_timers
    from horovod_study.progress import Line
    from horovod_study.report.timers import content, text, write_timers
    from horovod_study.workload import dataset

    with _curves_told() as tell:
        path = dataset.ensure(options.dataset, seed=options.data_seed, processes=available_cores(), tell=tell)
    line = Line()

    def told(text: str) -> None:
        if line.due():
            line.show(f"  {text}")

    cases = measure_timers(
        dataset=path,
        batches=options.batch,
        workers=options.workers,
        over=options.over,
        widths=options.widths,
        computing={name: getattr(options, name) for name in ("precision", "loader", "cuda_graphs", "kernels")},
        device=options.device,
        threads=options.threads,
        seconds=options.seconds,
        rounds=options.rounds,
        steps_per_block=options.steps_per_block,
        beside=options.beside,
        seed=options.seed,
        out=options.out,
        tell=told,
    )
    line.close()
    limit = 0.5 if options.fail_above is None else options.fail_above
    costs = [timer_cost(case, limit_percent=limit) for case in cases]
    paths = write_timers(costs, cases, options.out)
    if options.json:
        print(json.dumps({**content(costs, cases), "files": [str(path) for path in paths]}, allow_nan=False))
    else:
        print(text(costs, cases), "", f"written: {', '.join(str(path) for path in paths)}", sep="\n")
    for doubt in dict.fromkeys(doubt for cost in costs for doubt in cost.doubts):
        print(f"doubt: {doubt}", file=sys.stderr)
    return 1 if options.fail_above is not None and any(cost.exceeds(limit) for cost in costs) else 0


# ----------------------------------------------------------------------------------------------------- analysis


def analyze(options: argparse.Namespace) -> int:
    """Turn recorded runs into tables of points and fitted laws."""
    how: dict[str, Any] = {"targets": options.target or (), "threads": options.threads, "benches": options.bench}
    for path in _analyze(options.runs, options.out, commands=None, **how):
        print(path)
    return 0


def _analyze(
    runs: Path,
    out: Path,
    *,
    commands: list[str] | None,
    targets: Sequence[float],
    only: Collection[str] | None = None,
    threads: int | None = None,
    benches: Sequence[Path] | None = None,
    planned: Sequence[str] = (),
) -> list[Path]:
    from horovod_study import records
    from horovod_study.analysis.audit import versions

    found = records.benches_beside(runs) if benches is None else benches
    networks = [(path, str(path)) for path in found]
    _, evaluations, _, result = _analysed(
        runs, commands=commands, targets=targets, only=only, threads=threads, networks=networks
    )
    for doubt in result.provenance["doubts"]:
        print(f"doubt: {doubt}", file=sys.stderr)
    written = records.save_tables(out, {"evaluations": evaluations, **result.tables()}, result.documents())
    how = {"targets": list(targets), "commands": commands, "only": None if only is None else sorted(only)}
    kept = [{"path": Path(os.path.relpath(path, out)).as_posix(), "named": named} for path, named in networks]
    digests = {
        records.run_name(directory, runs): records.run_files(directory)
        for directory, _ in records.readable_runs(runs, only)
    }
    more = {"planned": list(planned), "benches": kept, "versions": versions(), "run_files": digests}
    records.write_source(out, runs, files=written, **how, **more)
    return written


def _analysed(
    runs: Path,
    *,
    commands: list[str] | None,
    targets: Sequence[float],
    only: Collection[str] | None,
    threads: int | None,
    networks: Sequence[tuple[Path, str]],
    verb: str = "analyze",
    counted: Collection[str] | None = None,
    beside: Callable[[Any], None] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Return run table, evaluations, accounting and Analysis of recorded runs.

    `networks`: files of `horovod-study bench`, and what the analysis calls them. `counted`: names of the runs in the
    run table that count. `beside` is called with each run, for what else is to be known of its rows.
    """
    from horovod_study.api import analysed
    from horovod_study.progress import Line

    line = Line()

    def tell(done: int, of: int) -> None:
        if line.due():
            line.show(f"{verb}: run {done:,} of {of:,}")

    found = analysed(
        runs,
        commands=commands,
        targets=targets,
        only=only,
        threads=threads or min(available_cores(), MOST_THREADS),
        networks=[(_read(path, BENCH_JSON), named) for path, named in networks],
        counted=counted,
        beside=beside,
        told=tell,
    )
    line.close()
    return found


def report(options: argparse.Namespace) -> int:
    """Draw the figures and write the page of an analysed study, or check all of it against the raw rows (--check)."""
    if options.check and options.against is not None:
        raise ConfigError("--against: draws a report, and --check looks at the one that is there; give one of them")
    if options.check:
        return _check(options)
    for name in ("runs", "allow"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name}: is about what --check looks at; give --check too")
    if options.against is not None:
        return _report_against(options)
    for name in ("fail_on", "match"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: is about another study; name its directory with --against")
    if options.json:
        raise ConfigError("--json: prints what --against or --check finds; give one of them too")
    for path in _report(options.directory, look=_look(options), pgf=options.pgf):
        print(path)
    return 0


def _report(directory: Path, **how: Any) -> list[Path]:
    from horovod_study.report.html import write_report

    paths = write_report(_read_analysis(directory), directory, second_process=available_cores() > 1, **how)
    _keep_drawn(directory, paths, how.get("look"))
    return paths


def _keep_drawn(
    directory: Path, paths: Sequence[Path], look: Any = None, others: Sequence[Path] = (), **more: Any
) -> None:
    """Keep what the report was drawn with, for `report --check`; without `look` it is that of a text."""
    from horovod_study import records
    from horovod_study.report.check import drawn_by
    from horovod_study.report.style import TEXT

    records.write_source(directory, report={**drawn_by(directory, paths, look or TEXT, others), **more})


def _check(options: argparse.Namespace) -> int:
    from horovod_study import records
    from horovod_study.analysis.audit import Study, recount
    from horovod_study.analysis.points import with_series
    from horovod_study.progress import Line
    from horovod_study.report.check import allowed, check, kept_runs, lines, runs_of

    directory, allow = options.directory, allowed(options.allow or ())
    counted = kept_runs(directory)
    source = runs_of(directory, options.runs)
    only = source.get("only")
    records_there = dict(records.named_records(source["runs"], only=only))
    recounts: dict[str, Any] = {}

    def beside(run: Any) -> None:
        recounts[run.name] = recount(run, records.recorded_beside(run.directory))

    table, evaluations, accounting, result = _analysed(
        source["runs"],
        commands=source.get("commands"),
        targets=source.get("targets") or (),
        only=only,
        threads=None,
        networks=source["networks"],
        verb="check",
        counted=None if counted is None or not set(counted) & set(records_there) else counted,
        beside=beside,
    )
    study = Study(
        runs=with_series(table),
        analysis=result,
        accounting=accounting,
        recounts=[recounts[name] for name in table["run"]],
        records=records_there,
        planned=source.get("planned") or (),
        set_aside=dict(records.set_aside(source["runs"])),
    )
    line = Line()
    found = check(
        directory,
        study,
        evaluations,
        source,
        runs={name: record.state() for name, record in records_there.items()},
        against=lambda analysis: _compared_again(directory, analysis, source),
        allow=allow,
        told=lambda text: line.show(f"check: {text}"),
    )
    line.close()
    if options.json:
        print(json.dumps(found.to_dict(), allow_nan=False))
    else:
        print(*lines(found), sep="\n")
    return found.exit_code


def _compared_again(directory: Path, analysis: Any, source: Mapping[str, Any]) -> Any:
    """Return the comparison that the page of a study shows, or None where it shows none."""
    from horovod_study.analysis.study_comparison import compare_studies, read_match
    from horovod_study.report.against import names_of

    told = (source.get("report") or {}).get("against")
    if told is None:
        return None
    before = directory / told["directory"]
    names = names_of(directory.resolve(), before.resolve())
    return compare_studies(analysis, _read_analysis(before), across=read_match(told.get("match")), names=names)


def _read_analysis(directory: Path) -> Any:
    """Return the Analysis that `analyze` wrote to a directory."""
    from horovod_study import records
    from horovod_study.analysis.study import DOCUMENTS, TABLES, loaded

    return loaded(*records.load_tables(directory, TABLES, DOCUMENTS), source=str(directory))


def _report_against(options: argparse.Namespace) -> int:
    from horovod_study.analysis.study_comparison import compare_studies, gate, read_limits, read_match
    from horovod_study.report.against import document, gate_lines, lines, names_of, write_against
    from horovod_study.report.html import write_report

    limits, across = read_limits(options.fail_on or ()), read_match(options.match)
    after, before = (_read_analysis(directory) for directory in (options.directory, options.against))
    names = names_of(options.directory.resolve(), options.against.resolve())
    found = compare_studies(after, before, across=across, names=names)
    judged = gate(found, limits) if limits else None
    how: dict[str, Any] = {"look": _look(options), "pgf": options.pgf}
    paths = write_report(after, options.directory, against=found, second_process=available_cores() > 1, **how)
    others = write_against(found, options.directory, gate=judged, **how)
    paths += others
    beside = Path(os.path.relpath(options.against, options.directory)).as_posix()
    written = [Path(os.path.relpath(path, options.directory)).as_posix() for path in paths]
    told = {"directory": beside, "match": options.match}
    _keep_drawn(options.directory, paths, how["look"], others, against=told, files=written)
    if options.json:
        print(json.dumps({**document(found, judged), "files": [str(path) for path in paths]}, allow_nan=False))
    else:
        print(*lines(found), *([] if judged is None else ["", *gate_lines(found, judged)]), sep="\n")
        print(f"report: {paths[0]}  (against.json, tables and figures beside it)")
    return 0 if judged is None or judged.passed else 1


def _look(options: argparse.Namespace) -> Any:
    """Return the look of figures that --width and --font ask for."""
    from horovod_study.report.style import Look

    return Look.of(options.width, options.font)


def attribute(options: argparse.Namespace) -> int:
    """Say where the time of the synchronisation goes: transfer, skew, runtime, and what none of them explains."""
    from horovod_study import records
    from horovod_study.analysis.attribution import attribute as take_apart
    from horovod_study.analysis.attribution import observe
    from horovod_study.cluster.attribute import refuse_options, run_experiment
    from horovod_study.report.attribution import result_lines, write_attribution

    if options.runs:
        refuse_options(run_values(options), recorded=True)
        directories = [directory for root in options.runs for directory in _readable(root)]
    else:
        directories = run_experiment(
            run_values(options), options.out, runtimes=options.runtime, workers=options.workers, rounds=options.rounds
        )
    seen = []
    for directory in directories:
        record, rows, bench = records.synchronised_run(directory)
        seen.append(observe(str(directory), record.requested, record.effective, record.repeat, rows, bench))
    found = take_apart(seen)
    paths = write_attribution(found, options.out)
    for doubt in found.doubts:
        print(f"doubt: {doubt}", file=sys.stderr)
    if options.json:
        print(json.dumps({**found.to_dict(), "files": [str(path) for path in paths]}, allow_nan=False))
    else:
        print(*result_lines(found, paths), sep="\n")
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Look at one run in detail: whether its laps close, which rank is slow, what paused, and what else it recorded."""
    from horovod_study import records
    from horovod_study.analysis.inspection import inspect as inspect_run
    from horovod_study.report.inspection import result_lines, write_inspection

    run, beside = records.recorded_run(options.run), records.recorded_beside(options.run)
    found = inspect_run(run, beside)
    look = _look(options)
    paths = write_inspection(found, run, beside, options.out, look=look) if options.out else []
    if options.json:
        print(json.dumps({**found.to_dict(), "files": [str(path) for path in paths]}, allow_nan=False))
    else:
        print(*result_lines(found), *(f"figure: {path}" for path in paths if path.suffix == ".png"), sep="\n")
    return 0


def _readable(root: Path) -> list[Path]:
    """Return the run directories at or below `root`, and say on standard error what is left out and why."""
    from horovod_study import records

    left_out: dict[str, str] = {}
    found = [directory for directory, _ in records.readable_runs(root, left_out=left_out)]
    for name, why in left_out.items():
        print(f"doubt: left out: {name}: {why}", file=sys.stderr)
    return found


def export(options: argparse.Namespace) -> int:
    """Write what was recorded for other programs: Perfetto, TensorBoard, W&B, MLflow, Extra-P, or a points file."""
    if options.to in ("points", "extra-p"):
        return _export_points(options)
    from horovod_study import records
    from horovod_study.analysis.history import history
    from horovod_study.analysis.trace import events
    from horovod_study.report.export import Recorded, write_trace, write_tracker

    directories = _readable(options.runs)
    if not directories:
        raise RecordError(f"{options.runs}: holds no runs; name a run directory, or a folder of them")
    if options.to == "trace":
        if len(directories) > 1:
            raise ConfigError(f"{options.runs}: holds {len(directories)} runs, and a trace shows one; name its folder")
        directory = directories[0]
        record = records.read_run(directory)
        rows = records.rows_between(directory, options.steps)
        found = events(
            rows,
            records.hosts_of(record, rows),
            evaluations=records.epoch_rows(directory),
            warmup_steps=records.timed_from(record)[0],
        )
        about = {"run": str(directory), "study": record.study, "steps": f"{options.steps[0]}:{options.steps[1]}"}
        about["clock"] = "time since the first step of the run; there the ranks of all hosts stood at a barrier"
        paths = [write_trace(found, options.out or directory / "trace.json", about=about)]
    else:
        if options.steps != records.ALL_STEPS:
            raise ConfigError(f"export --to {options.to}: --steps is for --to trace; leave it out")
        runs = [
            Recorded(
                name=records.run_name(directory, options.runs),
                record=records.read_run(directory),
                history=history(records.rows_between(directory), records.epoch_rows(directory)),
            )
            for directory in directories
        ]
        paths = write_tracker(options.to, runs, options.out or Path("runs") / options.to)
    if options.json:
        print(json.dumps({"to": options.to, "runs": len(directories), "files": [str(path) for path in paths]}))
    else:
        print(*paths, sep="\n")
    return 0


def _export_points(options: argparse.Namespace) -> int:
    from horovod_study import records
    from horovod_study.analysis import exchange
    from horovod_study.analysis.points_file import parse_points
    from horovod_study.report.export import write_extra_p, write_text

    if options.steps != records.ALL_STEPS:
        raise ConfigError(f"export --to {options.to}: --steps is for --to trace; leave it out")
    notes = []
    if options.runs.is_dir():
        tables, documents = records.load_tables(options.runs, ("runs",), ("fits",))
        points = exchange.points_of(tables["runs"])
        bases = {name: each["base_samples_per_s"] for name, each in documents["fits"]["series"].items()}
        notes = [f"{name}: its laws there are those of fit --baseline {base!r}" for name, base in bases.items()]
    else:
        points = parse_points(_read(options.runs, "an analysis directory or a points file"), source=str(options.runs))
    names = list(dict.fromkeys(points["series"])) if "series" in points else [""]
    if options.series is not None:
        if options.series not in names:
            raise ConfigError(f"--series {options.series}: is not there; allowed: {', '.join(names)}")
        points = points[points["series"] == options.series]
        notes = [note for note in notes if note.startswith(f"{options.series}: ")]
    if options.to == "points":
        text = exchange.points_text(points, notes)
        paths = [write_text(text, options.out)] if options.out else []
        if not paths:
            print(text, end="")
            return 0
    else:
        found = exchange.extra_p(points)
        for counts in map(exchange.counts_of, found):
            if len(counts) < exchange.FEWEST_COUNTS:
                told = f"{len(counts)} worker counts ({', '.join(map(str, counts))})"
                print(f"doubt: {told}; Extra-P asks for at least {exchange.FEWEST_COUNTS}", file=sys.stderr)
        beside = options.runs if options.runs.is_dir() else options.runs.parent
        paths = write_extra_p(found, options.out or beside / "extra-p")
    if options.json:
        print(json.dumps({"to": options.to, "series": len(names), "files": [str(path) for path in paths]}))
    else:
        print(*paths, sep="\n")
    return 0


def _count(text: str) -> int:
    """Return a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


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


def account(options: argparse.Namespace) -> int:
    """Account for every step: parts that add up, what none of them covers, and what more workers add to a step."""
    from horovod_study import records
    from horovod_study.analysis.accounting import account as account_all
    from horovod_study.analysis.accounting import account_run, allowed_share, gate
    from horovod_study.report.accounting import result_lines, write_accounting

    allowed = None if options.max_residual is None else allowed_share(options.max_residual)
    table, runs = records.recorded_runs(options.runs)
    found = account_all(table, [account_run(run) for run in runs])
    judged = None if allowed is None else gate(found, allowed)
    look = _look(options)
    paths = write_accounting(found, judged, options.out, look=look) if options.out else []
    if options.json:
        verdict = None if judged is None else judged.to_dict()
        document = {**found.to_dict(), "gate": verdict, "files": [str(path) for path in paths]}
        print(json.dumps(document, allow_nan=False))
    else:
        print(*result_lines(found, judged, paths), sep="\n")
    return 0 if judged is None else judged.exit_code


def timeline(options: argparse.Namespace) -> int:
    """Say where the time of Horovod's collectives goes: negotiation, queue, copies, transfer, from its timeline."""
    from horovod_study import records
    from horovod_study.analysis.timeline import parse_events, take_apart
    from horovod_study.report.timeline import result_lines, write_timeline

    path, text = records.read_timeline(options.place)
    events, doubts = parse_events(text, source=str(path))
    found = take_apart(events, source=str(path), doubts=doubts)
    paths = write_timeline(found, options.out or path.parent / "timeline", source=str(path), look=_look(options))
    for doubt in found.doubts:
        print(f"doubt: {doubt}", file=sys.stderr)
    if options.json:
        document = {"source": str(path), **found.to_dict(), "files": [str(each) for each in paths]}
        print(json.dumps(document, allow_nan=False))
    else:
        print(*result_lines(found, paths, source=str(path)), sep="\n")
    return 0


def learning_curve(options: argparse.Namespace) -> int:
    """Draw the learning curves of one or several runs, finished or not."""
    from horovod_study import records
    from horovod_study.analysis.convergence import convergence
    from horovod_study.analysis.points import scaling_points
    from horovod_study.report.convergence import write_learning_curves

    runs, evaluations = records.joined_tables(options.runs)
    found = convergence(runs, evaluations, finished=False)
    write_learning_curves(scaling_points(runs), found.curves, options.out)
    for doubt in found.doubts:
        print(f"doubt: {doubt}", file=sys.stderr)
    print(options.out)
    return 0


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
    print("(intervals are 95 %; * is the simplest law within 2 units of the best AICc; loo: median error of a worker")
    print(" count that is left out of the fit; step times are relative to one worker; details: --json)")
    return 0


def _fit_text(name: str, one: dict[str, Any]) -> str:
    """One series for the eye: the laws that fit, then the names of those that do not, then the doubts."""
    lines = [f"{_one_line(name) or 'all points'}: speedup relative to {one['baseline']}"]
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


def _one_line(name: str) -> str:
    """A name from a file, safe to print: no control characters, at most 60 of the others."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name[:61])
    return text if len(text) <= 60 else text[:57] + "..."


def predict(options: argparse.Namespace) -> int:
    """Forecast the throughput of larger worker counts from anybody's points, score that, recommend worker counts."""
    from horovod_study.analysis import holdout, recommendation
    from horovod_study.analysis.advice import bench_of
    from horovod_study.analysis.points_file import parse_points
    from horovod_study.analysis.prediction import predict as predict_points

    points = parse_points(_read(options.points), source=str(options.points))
    bench = bench_of(_read(options.bench, BENCH_JSON), source=str(options.bench)) if options.bench else None
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
        print(f"{_one_line(name) or 'all points'}: samples/s with 95 % interval")
        for one in each:
            interval = f"[{one.low:,.6g}, {one.high:,.6g}]"
            print(f"  {one.workers:>8,} workers  {one.samples_per_s:>14,.6g}  {interval}  {one.law}")
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


def advise(options: argparse.Namespace) -> int:
    """Say whether data or model parallel fits a model, with the arithmetic of memory, messages and time."""
    from dataclasses import asdict

    from horovod_study.analysis.advice import advise as advise_on
    from horovod_study.analysis.advice import bench_of, case_of, layered_model
    from horovod_study.documents import load_yaml
    from horovod_study.measure.memory import worker_memory
    from horovod_study.records import read_run

    source = str(options.model or "")
    model = layered_model(load_yaml(options.model), source=source) if options.model else None
    wanted, network = "the bench.json that `horovod-study bench` wrote", options.network
    bench = network and (bench_of(_read(network, wanted), source=str(network)), str(network))
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    memory = None if options.memory_gb is None else (options.memory_gb * 1e9, "--memory-gb")
    names = ("widths", "batch", "workers", "workers_per_node", "optimizer", "precision", "way")
    values = {name: getattr(options, name) for name in (*names, "alpha_us", "gb_per_s", "step_ms", "flops_per_s")}
    case = case_of(**values, model=model, bench=bench, run=recorded, memory=memory, memory_of=worker_memory)
    advice = advise_on(case)
    if options.json:
        print(json.dumps(advice.to_dict(), allow_nan=False))
    else:
        print(*advice.lines(), sep="\n")
    return 0


def simulate(options: argparse.Namespace) -> int:
    """Simulate a data-parallel step on up to 100,000 workers, from measured or given constants, and what-ifs."""
    from horovod_study.analysis.advice import bench_of
    from horovod_study.analysis.simulation import scaling
    from horovod_study.analysis.simulation.calibration import calibrate, run_times
    from horovod_study.analysis.simulation.network import network_from
    from horovod_study.analysis.simulation.what_if import what_if
    from horovod_study.documents import load_yaml
    from horovod_study.records import recorded_run
    from horovod_study.report.simulation import content, text, write_simulation

    wanted = BENCH_JSON
    network = options.network and network_from(load_yaml(options.network), source=str(options.network))
    names = ("way", "alpha_us", "gb_per_s", "workers_per_node", "compute_ms", "compute_cv", "batch", "gradient_mb")
    more = ("overhead_us", "cycle_ms", "fusion_mb", "buckets", "algorithm", "scaling")
    calibration = calibrate(
        **{name: getattr(options, name) for name in (*names, *more)},
        network=network,
        runs=[run_times(recorded_run(each)) for each in options.run],
        beside=[run_times(recorded_run(each)) for each in options.beside],
        benches=[(bench_of(_read(each, wanted), source=str(each)), str(each)) for each in options.bench],
    )
    scenarios = what_if(calibration.scenario, options.what_if)
    table = scaling.simulate(scenarios, options.workers, global_batch=options.global_batch, seed=options.seed)
    doubts = scaling.all_doubts(scenarios, options.workers, global_batch=options.global_batch)
    look = _look(options)
    paths = write_simulation(table, calibration, doubts, options.out, look=look) if options.out else []
    if options.json:
        files = {"files": [str(path) for path in paths]} if paths else {}
        print(json.dumps({**content(table, calibration, doubts), **files}, allow_nan=False))
    else:
        print(text(table, calibration))
        if paths:
            print("", f"written: {', '.join(str(path) for path in paths)}", sep="\n")
    for doubt in doubts:
        print(f"doubt: {doubt}", file=sys.stderr)
    return 0


def _read(path: Path, wanted: str = "a CSV file with workers,samples_per_s") -> str:
    """Return the text of a file that should be `wanted`; `-` is standard input."""
    if str(path) != "-":
        return read_text(path, error=DataError, again=f"name {wanted}")
    try:
        with open(0, encoding="utf-8-sig", closefd=False) as stream:
            return stream.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name {wanted}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not a text file in UTF-8; name {wanted}") from None


# ------------------------------------------------------------------------------------------------------- parser


def _parser() -> Parser:
    parser = Parser(prog="horovod-study", description="Measure, explain and predict how data-parallel training scales.")
    parser.add_argument("--version", action="version", version=f"horovod-study {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    data = _verb(verbs, "data", "Generate, import or check a data set", None)
    data_verbs = data.add_subparsers(title="verbs", metavar="VERB", required=True)
    make = _verb(data_verbs, "generate", data_generate.__doc__, data_generate)
    make.add_argument("--size", default="100000", metavar="N", help="number of curves (default 100000)")
    make.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default 1)")
    make.add_argument("--out", type=Path, metavar="DIR", help="directory to make (default: in the cache)")
    make.add_argument(
        "--processes", type=int, default=available_cores(), metavar="N", help="processes that fill the file"
    )
    check = _verb(data_verbs, "check", data_check.__doc__, data_check)
    check.add_argument("dataset", metavar="PATH|SIZE", help="a data set's directory, or the size of a cached one")
    check.add_argument("--seed", type=int, default=1, metavar="N", help="seed of a cached one (default 1)")
    check.add_argument("--json", action="store_true", help="print one line of JSON")
    for each in (make, check):
        each.add_argument("--noise-max", type=float, metavar="MPA", help="largest noise level in MPa (default 1)")
        each.add_argument("--clean", action="store_true", help="curves without noise, the same as --noise-max 0")

    own = _verb(data_verbs, "import", data_import.__doc__, data_import)
    own.add_argument("path", type=Path, metavar="PATH", help="a file with curves, or a folder of files")
    own.add_argument("--out", type=Path, required=True, metavar="DIR", help="the data set's directory to make")
    own.add_argument("--label", metavar="lsq", help="take G0 and a from a least-squares fit, where no file gives them")
    own.add_argument(
        "--target-bounds",
        type=float,
        nargs=4,
        metavar=("G0_LOW", "G0_HIGH", "A_LOW", "A_HIGH"),
        help="what is 0 and what is 1 for G0 in MPa and for a (default: minimum and maximum of the training set)",
    )
    add_read_options(own)
    own.add_argument("--json", action="store_true", help="print one line of JSON")

    train = _verb(verbs, "train", "Train one run; the same as python -m horovod_study.train", None)
    add_run_options(train)
    train.add_argument("--config", type=Path, metavar="FILE.yaml", help="read options from a YAML file first")
    train.add_argument("--settings", type=Path, metavar="FILE.yaml", help="talk as tune found best; options go before")
    train.add_argument("--out", type=Path, metavar="DIR", help="the run directory (default: a new one below runs/)")
    train.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in DIR from its newest checkpoint")
    train.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")

    find = _verb(verbs, "identify", identify.__doc__, identify)
    find.add_argument("curves", type=Path, metavar="CURVES", help="a curve file or folder, as for data import")
    find.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="RUN_DIR|CHECKPOINT",
        help="a training run, or one of its checkpoints",
    )
    find.add_argument("--csv", type=Path, metavar="FILE", help="write one row per specimen with every number")
    find.add_argument(
        "--plot", type=Path, metavar="FILE.png|pdf|svg", help="draw measured points, both laws and the residuals"
    )
    find.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    find.add_argument(
        "--disagree",
        type=float,
        default=3.0,
        metavar="N",
        help="standard errors from which on network and fit disagree (default 3)",
    )
    add_read_options(find.add_argument_group("reading the curves"))

    _study_verbs(verbs)

    best = _verb(verbs, "search", search.__doc__, search)
    best.add_argument(
        "search", type=Path, metavar="SEARCH.yaml", help="the search file; experiments/search.yaml is one"
    )
    best.add_argument("--trials", type=int, metavar="N", help="trials wanted in all (default: as the file says)")
    best.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time in this command (default 1)")
    best.add_argument(
        "--storage", metavar="URL", help="where trials are kept: an SQLAlchemy URL (default: search.db of the search)"
    )
    best.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (default runs)"
    )
    best.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")
    rate = _verb(verbs, "lr-range", lr_range.__doc__, lr_range)
    rate.add_argument("--config", type=Path, metavar="FILE.yaml", help="read options of the run from a YAML file first")
    rate.add_argument("--low", type=float, default=1e-6, metavar="LR", help="first learning rate (default 1e-6)")
    rate.add_argument("--high", type=float, default=1.0, metavar="LR", help="last learning rate (default 1)")
    rate.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="receives the run, the curve and the figure"
    )
    rate.add_argument("--workers", type=int, default=1, metavar="N", help="workers that train (default 1)")
    rate.add_argument(
        "--runtime", metavar="NAME", help="how workers talk: ddp/gloo, ... (default: serial; horovod/mpi for several)"
    )
    rate.add_argument("--json", action="store_true", help="print one line of JSON")
    add_run_options(rate, hidden=SET_BY_RANGE_TEST)

    race = _verb(verbs, "tune", tune.__doc__, tune)
    race.add_argument(
        "--runtime",
        action="append",
        default=[],
        metavar="NAME",
        help="horovod/mpi, horovod/gloo, ddp/gloo, mpi/mpi, ...; may be given several times (default horovod/mpi)",
    )
    race.add_argument("--workers", type=int, metavar="N", help="workers that train (default: as many as cores allow)")
    race.add_argument("--minutes", type=float, default=10.0, metavar="X", help="for all launches (default 10)")
    race.add_argument("--rounds", type=int, default=6, metavar="N", help="most rounds of the race (default 6)")
    race.add_argument(
        "--knobs", nargs="+", default=[], metavar="NAME", help="settings to vary (default: all that matter)"
    )
    race.add_argument(
        "--knob",
        action="append",
        default=[],
        metavar="NAME=V1,V2",
        help="try these values of a setting instead of the usual ones; may be given several times",
    )
    race.add_argument("--config", type=Path, metavar="FILE.yaml", help="read options of the run from a YAML file first")
    race.add_argument(
        "--out", type=Path, default=Path("tune"), metavar="DIR", help="receives settings.yaml and all launches"
    )
    race.add_argument("--json", action="store_true", help="end with one line of JSON on standard output")
    add_run_options(race, hidden=SET_BY_TUNE)

    fair = _verb(verbs, "compare", compare.__doc__, compare)
    for name in ("a", "b"):
        fair.add_argument(
            name,
            metavar=name.upper(),
            help="RUNTIME[,option=value...] such as horovod/gloo,thread_priority=off; a settings file written by tune; "
            "or a YAML file of train options with its runtime",
        )
    fair.add_argument(
        "--workers", type=int, nargs="+", metavar="N", help="worker counts to compare at (default: one per core)"
    )
    fair.add_argument("--blocks", type=int, default=10, metavar="N", help="blocks per worker count (default 10)")
    fair.add_argument(
        "--out", type=Path, default=Path("compare"), metavar="DIR", help="receives runs and result (default compare)"
    )
    fair.add_argument("--json", action="store_true", help="print one line of JSON")
    add_run_options(fair, hidden=SET_BY_COMPARE)
    fair.epilog = (
        "All runs make the same number of steps: --steps, or as many as take about --seconds (default 2) according to "
        "a short run of each side. The same command goes on after Ctrl-C. See docs/compare.md."
    )

    proof = _verb(verbs, "verify", verify.__doc__, verify)
    proof.add_argument("--workers", type=int, nargs="+", default=[2], metavar="N", help="worker counts (default 2)")
    proof.add_argument(
        "--runtime", nargs="+", metavar="NAME", help="horovod/mpi, ddp/gloo, ... (default: all that are available)"
    )
    for name, usual, text in (
        ("reduction", ["flat", "hooks"], "how gradients are averaged"),
        ("dtype", ["float32", "float64"], "precision"),
        ("optimizer", ["adam", "sgd"], "update rule"),
    ):
        proof.add_argument(
            f"--{name}", nargs="+", default=usual, metavar="NAME", help=f"{text}: {', '.join(usual)} (default: both)"
        )
    proof.add_argument("--steps", type=int, default=10, metavar="N", help="steps of each training run (default 10)")
    proof.add_argument(
        "--batch", type=int, default=300, metavar="N", help="curves of a step, of all workers together (default 300)"
    )
    proof.add_argument("--dataset", default="4000", metavar="PATH|SIZE", help="as for train (default 4000)")
    proof.add_argument("--seed", type=int, default=1, metavar="N", help="of parameters and data order (default 1)")
    proof.add_argument(
        "--lr-scaling", default="none", metavar="NAME", help="none, linear or sqrt, as for train (default none)"
    )
    proof.add_argument(
        "--input-scaling",
        default="standard",
        metavar="NAME",
        help="none, fixed or standard, as for train (default standard: rounding is amplified least)",
    )
    proof.add_argument(
        "--break",
        dest="wrong",
        metavar="HOW",
        help="do it wrong on purpose, and fail: sum (of the gradients), shard (shifted by a curve), lr (scaled "
        "otherwise), start (of one rank)",
    )
    proof.add_argument("--out", type=Path, metavar="DIR", help="receives verify.txt, verify.json, verify.csv and logs")
    proof.add_argument("--json", action="store_true", help="print one line of JSON instead of the tables")

    speeds = _verb(verbs, "bench", bench.__doc__, bench)
    speeds.add_argument(
        "--workers", type=int, metavar="N", help="workers to start here (default: one for each core); not in a launch"
    )
    speeds.add_argument(
        "--transport", nargs="*", metavar="NAME", help="raw transports: mpi, gloo, nccl (default: all that are there)"
    )
    speeds.add_argument(
        "--runtime",
        nargs="*",
        metavar="NAME",
        help="all-reduce as a runtime does it: horovod/mpi, horovod/gloo, ddp/gloo, mpi/mpi, ... "
        "(default: horovod/mpi, horovod/gloo, ddp/gloo)",
    )
    speeds.add_argument("--min-bytes", default="4", metavar="SIZE", help="smallest message (default 4)")
    speeds.add_argument("--max-bytes", metavar="SIZE", help="largest message, as 64K or 1G (default 256M)")
    speeds.add_argument("--factor", type=int, default=4, metavar="N", help="from a size to the next (default 4)")
    speeds.add_argument(
        "--sizes", nargs="+", metavar="SIZE", help="these sizes instead; the model's own are always measured"
    )
    speeds.add_argument("--batch", type=int, default=75, metavar="N", help="curves per worker and step (default 75)")
    speeds.add_argument("--widths", default="15-38-197", metavar="C-C-H", help="of the model (default 15-38-197)")
    speeds.add_argument(
        "--seconds", type=float, default=30.0, metavar="X", help="to spend on messages, about (default 30)"
    )
    speeds.add_argument("--rounds", type=int, default=5, metavar="N", help="how often all is measured (default 5)")
    speeds.add_argument(
        "--out", type=Path, default=Path("bench"), metavar="DIR", help="receives tables and figures (default bench)"
    )
    speeds.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")
    bench_verbs = speeds.add_subparsers(title="verbs", metavar="VERB")
    loading = _verb(bench_verbs, "loading", bench_loading.__doc__, bench_loading)
    loading.add_argument("--dataset", default="100000", metavar="PATH|SIZE", help="as for train (default 100000)")
    loading.add_argument("--data-seed", type=int, default=1, metavar="N", help="seed of a generated one (default 1)")
    loading.add_argument("--batch", type=int, nargs="+", default=[75], metavar="N", help="curves per step (default 75)")
    loading.add_argument(
        "--loader",
        nargs="+",
        default=["memory", "prefetch", "device", "dataloader", "dataloader:2"],
        metavar="NAME",
        help="memory, prefetch, device, dataloader, or dataloader:N with N loader processes (default: all, N = 2)",
    )
    loading.add_argument("--rounds", type=int, default=5, metavar="N", help="how often all is measured (default 5)")
    loading.add_argument("--seconds", type=float, default=1.0, metavar="X", help="of each measurement (default 1)")
    loading.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads (default 1)")
    loading.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="where to compute (default auto)")
    loading.add_argument("--pin-memory", action="store_true", help="copy to the GPU from page-locked memory")
    loading.add_argument("--out", type=Path, metavar="DIR", help="receives loading.json")
    loading.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")

    cost = _verb(bench_verbs, "timers", bench_timers.__doc__, bench_timers)
    cost.add_argument("--dataset", default="100000", metavar="PATH|SIZE", help="as for train (default 100000)")
    cost.add_argument("--data-seed", type=int, default=1, metavar="N", help="seed of a generated one (default 1)")
    cost.add_argument("--batch", type=int, nargs="+", default=[75], metavar="N", help="curves per step (default 75)")
    cost.add_argument("--workers", type=int, nargs="+", default=[1], metavar="N", help="on this machine (default 1)")
    cost.add_argument(
        "--over", default="horovod/mpi", metavar="NAME", help="how several talk, as ddp/gloo (default horovod/mpi)"
    )
    cost.add_argument("--widths", default="15-38-197", metavar="C-C-H", help="of the model (default 15-38-197)")
    cost.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="where to compute (default auto)")
    cost.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads (default 1)")
    cost.add_argument("--precision", default="fp32", metavar="NAME", help="as for train (default fp32)")
    cost.add_argument("--loader", default="memory", metavar="NAME", help="as for train (default memory)")
    cost.add_argument("--cuda-graphs", action="store_true", help="replay whole steps, as for train; needs a GPU")
    cost.add_argument("--kernels", default="torch", metavar="NAME", help="as for train (default torch)")
    cost.add_argument(
        "--seconds", type=float, default=60.0, metavar="X", help="for each batch and number of workers (default 60)"
    )
    cost.add_argument("--rounds", type=int, metavar="N", help="so many rounds instead, however long they take")
    cost.add_argument(
        "--steps-per-block", type=int, metavar="N", help="of one mode in a row (default: about 12 ms of them)"
    )
    cost.add_argument(
        "--beside",
        action="store_true",
        help="let torch.profiler, cProfile and hooks on all layers take turns too, and a loop that keeps nothing",
    )
    cost.add_argument("--seed", type=int, default=1, metavar="N", help="of the order in the rounds (default 1)")
    cost.add_argument(
        "--fail-above",
        type=float,
        metavar="PERCENT",
        help="end with 1 if light surely costs more: if its whole 95 %% interval lies above",
    )
    cost.add_argument(
        "--out",
        type=Path,
        default=Path("bench") / "timers",
        metavar="DIR",
        help="receives table, figure and logs (default bench/timers)",
    )
    cost.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")

    tables = _verb(verbs, "analyze", analyze.__doc__, analyze)
    tables.add_argument("runs", type=Path, metavar="RUNS", help="directory that holds run directories")
    tables.add_argument("--out", type=Path, required=True, metavar="DIR", help="receives the tables")
    tables.add_argument(
        "--target", type=float, nargs="+", metavar="MSE", help="test MSEs to which the times are compared"
    )
    tables.add_argument(
        "--threads", type=_count, metavar="N", help="runs read at a time (default: one per core, at most 4)"
    )
    tables.add_argument(
        "--bench",
        type=Path,
        nargs="+",
        metavar="bench.json",
        help="what `horovod-study bench` measured of the machines (default: RUNS/bench/bench.json, where it is)",
    )
    page = _verb(verbs, "report", report.__doc__, report)
    page.add_argument("directory", type=Path, metavar="DIR", help="directory written by analyze")
    _add_look(page)
    page.add_argument("--pgf", action="store_true", help="write the figures as PGF too, for \\input; needs LaTeX")
    page.add_argument(
        "--against",
        type=Path,
        metavar="BEFORE_DIR",
        help="another analysed study, such as the one before a change: the page begins with the differences to it",
    )
    page.add_argument(
        "--fail-on",
        nargs="+",
        action="extend",
        metavar="WORD[=PERCENT]",
        help="with --against: end with 1 if a cell is surely worse, by so much or more: slower=5%%, step=, sync=, "
        "speedup=, efficiency=, target=, energy=; missing: if a cell has vanished; unresolved: if it cannot be told",
    )
    page.add_argument(
        "--match",
        metavar="HOW",
        help="with --against, which cells are compared: auto (by all that defines them but the partition or a way of "
        "running that was changed as a whole), exact, or except:SETTING,SETTING (default auto)",
    )
    page.add_argument(
        "--check",
        action="store_true",
        help="make every number again from the raw rows, compare, and look for faults; ends with 1 if there are any",
    )
    page.add_argument("--runs", type=Path, metavar="RUNS", help="with --check: where the run directories are now")
    page.add_argument(
        "--allow", nargs="+", metavar="NAME", help="with --check: doubts that are known and do not end it with 1"
    )
    page.add_argument(
        "--json", action="store_true", help="with --against or --check: print everything as one line of JSON"
    )

    detail = _verb(verbs, "inspect", inspect.__doc__, inspect)
    _add_look(detail)
    detail.add_argument("run", type=Path, metavar="RUN_DIR", help="the directory of one run, finished or not")
    detail.add_argument("--out", type=Path, metavar="DIR", help="receives figures, inspect.txt and inspect.json")
    detail.add_argument("--json", action="store_true", help="print everything as one line of JSON")

    elsewhere = _verb(verbs, "export", export.__doc__, export)
    elsewhere.add_argument(
        "runs",
        type=Path,
        metavar="PLACE",
        help="a run directory, or (not for a trace) a folder of them; for extra-p and points a directory written by "
        "analyze, or a points file",
    )
    elsewhere.add_argument(
        "--to",
        "--format",
        required=True,
        choices=("trace", "tensorboard", "wandb", "mlflow", "extra-p", "points"),
        help="what to write",
    )
    elsewhere.add_argument("--series", metavar="NAME", help="of extra-p and points: one series (default all)")
    elsewhere.add_argument(
        "--steps",
        type=_steps,
        default=(0, sys.maxsize),
        metavar="A:B",
        help="of a trace: steps from A to before B (default all; 1,000 steps of one rank take 0.8 MB)",
    )
    elsewhere.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="the trace (default RUN_DIR/trace.json), the points (default: printed), or a new folder (default "
        "runs/tensorboard, ..., PLACE/extra-p)",
    )
    elsewhere.add_argument("--json", action="store_true", help="print the paths as one line of JSON")

    why = _verb(verbs, "attribute", attribute.__doc__, attribute)
    why.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUN_DIR",
        help="runs recorded with --measure-sync, or folders of them (default: make the experiment)",
    )
    why.add_argument(
        "--out",
        type=Path,
        default=Path("runs/attribution"),
        metavar="DIR",
        help="receives the figure, the table and the experiment's runs (default runs/attribution)",
    )
    why.add_argument(
        "--runtime",
        nargs="+",
        default=["horovod/mpi", "horovod/gloo", "mpi/mpi"],
        metavar="NAME",
        help="of the experiment: how workers talk (default horovod/mpi horovod/gloo mpi/mpi)",
    )
    why.add_argument("--workers", type=int, metavar="N", help="of the experiment: workers (default: one per core)")
    why.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="of the experiment: how often all is run (default 5)"
    )
    why.add_argument("--json", action="store_true", help="print one line of JSON")
    add_run_options(why, hidden=SET_BY_ATTRIBUTION)

    closed = _verb(verbs, "account", account.__doc__, account)
    _add_look(closed)
    closed.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="run directories, or folders of them")
    closed.add_argument(
        "--max-residual",
        metavar="PERCENT",
        help="end with exit code 1 where more than so much is unexplained, such as 5%%: of a rank's step, or of what "
        "more workers add to it",
    )
    closed.add_argument("--out", type=Path, metavar="DIR", help="receives the figure, the tables and all as JSON")
    closed.add_argument("--json", action="store_true", help="print one line of JSON instead of the tables")

    line = _verb(verbs, "timeline", timeline.__doc__, timeline)
    _add_look(line)
    line.add_argument(
        "place",
        type=Path,
        metavar="RUN_DIR|FILE",
        help="a run recorded with --timeline-steps, or any timeline that Horovod wrote",
    )
    line.add_argument(
        "--out", type=Path, metavar="DIR", help="receives tables and figure (default: timeline beside the file)"
    )
    line.add_argument("--json", action="store_true", help="print one line of JSON")

    curve = _verb(verbs, "learning-curve", learning_curve.__doc__, learning_curve)
    curve.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR", help="run directories, or folders of them")
    curve.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .pdf or .svg file to write")

    laws = _verb(verbs, "fit", fit.__doc__, fit)
    laws.add_argument(
        "--baseline",
        type=float,
        metavar="SAMPLES_PER_S",
        help="throughput that counts as speedup 1 (default: per worker at the smallest worker count)",
    )
    laws.epilog = "Laws, points files and what the doubts mean: docs/fit.md"
    forecast = _verb(verbs, "predict", predict.__doc__, predict)
    forecast.add_argument("--workers", type=int, nargs="+", metavar="N", help="worker counts to forecast")
    forecast.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node")
    forecast.add_argument("--bench", type=Path, metavar="bench.json", help="what `horovod-study bench` measured")
    forecast.add_argument(
        "--holdout",
        type=int,
        nargs="?",
        const=True,
        metavar="K",
        help="score the forecasts: hide the K largest worker counts (default: the upper half) and foretell them",
    )
    forecast.add_argument("--rolling", action="store_true", help="with --holdout: hide one count, two, ... up to K")
    forecast.add_argument("--recommend", action="store_true", help="how many workers: knee, peak, cheapest")
    forecast.add_argument("--samples", type=float, metavar="X", help="samples of the whole training, for ...")
    forecast.add_argument("--deadline", metavar="TIME", help="... the fewest workers that finish in time (90m, 1h30m)")
    forecast.add_argument("--gpu-hours", type=float, metavar="X", help="... the fastest count within so many GPU hours")
    forecast.add_argument("--price-per-gpu-hour", type=float, metavar="X", help="... and what it costs")
    forecast.add_argument(
        "--target-samples",
        nargs="+",
        metavar="X|N:X",
        help="the shortest time to a target that takes X samples, or X samples with N workers",
    )
    forecast.add_argument(
        "--marginal",
        type=float,
        default=0.5,
        metavar="X",
        help="the knee: least gain of one more worker, of the mean one's (default 0.5)",
    )
    for each in (laws, forecast):
        each.add_argument("points", type=Path, metavar="POINTS.csv", help="columns workers, samples_per_s; - is stdin")
        each.add_argument("--json", action="store_true", help="print one line of JSON")

    model = _verb(verbs, "simulate", simulate.__doc__, simulate)
    _add_look(model)
    model.add_argument("--workers", type=int, nargs="+", required=True, metavar="N", help="up to 10 million each")
    model.add_argument("--scaling", default="weak", metavar="weak|strong", help="batch per worker or per step fixed")
    model.add_argument(
        "--global-batch", type=int, metavar="N", help="of strong scaling (default: of the smallest worker count)"
    )
    model.add_argument("--run", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="recorded runs: computing")
    model.add_argument(
        "--beside", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="runs of one worker made at the same time"
    )
    model.add_argument("--bench", type=Path, nargs="+", default=[], metavar="bench.json", help="measured networks")
    model.add_argument("--way", metavar="NAME", help="which of their ways (default: of the run, else the quickest)")
    model.add_argument("--network", type=Path, metavar="FILE.yaml", help="or a described one, see experiments/networks")
    model.add_argument("--alpha-us", type=float, metavar="X", help="or by hand: microseconds of an empty message, ...")
    model.add_argument("--gb-per-s", type=float, metavar="X", help="... and GB (1e9 bytes) per second")
    model.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node")
    model.add_argument("--compute-ms", type=float, metavar="X", help="instead of runs: computing of a step, and ...")
    model.add_argument("--compute-cv", type=float, metavar="X", help="... its standard deviation / mean (default 0)")
    model.add_argument("--batch", type=int, metavar="N", help="samples per worker and step (default: of the run)")
    model.add_argument("--gradient-mb", type=float, metavar="X", help="1e6 bytes of gradients (default: of the run)")
    model.add_argument("--buckets", type=int, metavar="N", help="sent during backward (default 1: after backward)")
    model.add_argument("--algorithm", metavar="NAME", help="auto, ring, tree, doubling, halving, hierarchical or ps")
    model.add_argument("--overhead-us", type=float, metavar="X", help="of the runtime, for each message")
    model.add_argument("--cycle-ms", type=float, metavar="X", help="Horovod's cycle; 0: new gradients end it")
    model.add_argument("--fusion-mb", type=float, metavar="X", help="MiB that go into one message at most")
    model.add_argument(
        "--what-if", nargs="+", default=[], metavar="KEY=VALUE", help="as bandwidth=2x cycle=0,batch=8x algorithm=ps"
    )
    model.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulated steps (default 1)")
    model.add_argument("--out", type=Path, metavar="DIR", help="receives figure, CSV, JSON and table")
    model.add_argument("--json", action="store_true", help="print one line of JSON")

    way = _verb(verbs, "advise", advise.__doc__, advise)
    way.add_argument("--widths", metavar="C-C-H", help="the worked example with these widths (default 15-38-197)")
    way.add_argument("--model", type=Path, metavar="FILE.yaml", help="or any model in layers, see docs/advise.md")
    way.add_argument("--batch", type=int, metavar="N", help="samples per worker and step (default 75)")
    way.add_argument("--workers", type=int, metavar="N", help="workers (default 2)")
    way.add_argument("--workers-per-node", type=int, metavar="N", help="workers that fill a node (default: all)")
    way.add_argument("--memory-gb", type=float, metavar="X", help="memory of a worker (default: as on this machine)")
    way.add_argument("--optimizer", metavar="adam|adamw|sgd", help="whose state is kept (default adam)")
    way.add_argument("--precision", metavar="fp32|tf32|bf16|fp16", help="of the activations (default fp32)")
    way.add_argument("--network", type=Path, metavar="bench.json", help="what `horovod-study bench` measured")
    way.add_argument("--way", metavar="NAME", help="which of its ways (default: the quickest for the gradients)")
    way.add_argument("--alpha-us", type=float, metavar="X", help="or by hand: microseconds of an empty message, ...")
    way.add_argument("--gb-per-s", type=float, metavar="X", help="... and GB (1e9 bytes) per second")
    way.add_argument("--run", type=Path, metavar="RUN_DIR", help="a run: batch, workers, model, computing per step")
    way.add_argument("--step-ms", type=float, metavar="X", help="or: a step of one worker alone at this batch")
    way.add_argument("--flops-per-s", type=float, metavar="X", help="or: training FLOP per second of a worker")
    way.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def _study_verbs(verbs: Any) -> None:
    look = _verb(verbs, "plan", plan.__doc__, plan)
    start = _verb(verbs, "run", run.__doc__, run)
    state = _verb(verbs, "status", status.__doc__, status)
    again = _verb(verbs, "retry", retry.__doc__, retry)
    end = _verb(verbs, "cancel", cancel.__doc__, cancel)
    for each in (look, start, state, again, end):
        each.add_argument("study", type=Path, metavar="STUDY.yaml", help="the study file")
    for each in (again, end):
        each.add_argument("cells", nargs="*", metavar="CELL", help="keys or names of cells (default: all there are)")
    examined = _verb(verbs, "doctor", doctor.__doc__, doctor)
    examined.add_argument("--partition", metavar="NAME|FILE.yaml", help="a partition, held against its file")
    examined.add_argument("--quick", action="store_true", help="only what takes a moment")
    for each in (look, start, state, again, end, examined):
        each.add_argument(
            "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (default runs)"
        )
    for each in (look, start, state, again, end, examined):
        each.add_argument("--hosts", metavar="HOST:N,...", help="machines over ssh, and how many workers each takes")
    for each in (look, start):
        each.add_argument(
            "--retry", action=argparse.BooleanOptionalAction, default=True, help="try failed cells again (default: yes)"
        )
    start.add_argument("--plan", action="store_true", help="only print the plan, as the verb plan does")
    start.add_argument("--dry-run", action="store_true", help="print job scripts and launch lines, and start nothing")
    start.add_argument("--here", action="store_true", help="Slurm: run in the allocation this is typed in (salloc)")
    for each in (start, again):
        each.add_argument("--wait", action="store_true", help="Slurm: stay until all jobs have ended, then report")
        each.add_argument("--yes", action="store_true", help="do not ask before a study that is large")
        each.add_argument(
            "--oversubscribe", action="store_true", help="allow workers to share cores or GPUs; times then mean little"
        )
        each.add_argument(
            "--smoke",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="try each runtime with two workers for a few seconds first (default: yes)",
        )
        each.add_argument(
            "--pin",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="keep each cell on the same cores in every repeat (default: yes)",
        )
    state.add_argument("--watch", action="store_true", help="stay, and show how the cells get on")
    for each in (look, state, examined):
        each.add_argument("--json", action="store_true", help="print one line of JSON")


def _add_look(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--width",
        default="text",
        metavar="text|column|MM",
        help="width of the figures on paper: text is 150 mm, column 71 mm (default text)",
    )
    parser.add_argument("--font", default="sans", metavar="sans|serif", help="letters of the figures (default sans)")


def _verb(verbs: Any, name: str, text: str | None, call: Any) -> Parser:
    summary = (text or name).splitlines()[0].rstrip(".")  # no docstrings under python -OO
    parser: Parser = verbs.add_parser(name, help=summary[:1].lower() + summary[1:], description=summary + ".")
    parser.set_defaults(verb=call, parser=parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
