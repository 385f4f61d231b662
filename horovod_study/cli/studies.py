"""`horovod-study plan`, `run`, `status`, `cancel` and `doctor`: a study file, and the machines it runs on."""

import argparse
import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from horovod_study.cli.report import write_analysis, write_page
from horovod_study.cli.verbs import COUNT, DIR, FLAG, YES, Result, Verb, given, runs_of, until_share
from horovod_study.errors import ConfigError
from horovod_study.options import OPTIONS, SET_BY_COMPARE, Parser, add_run_options, run_values


def _plan_arguments(parser: Parser) -> None:
    add = parser.add_argument
    _study_arguments(parser)
    add("--retry", **YES, help="try failed cells again (default: yes)")
    narrow = "the runs that narrow the forecast at N workers most per GPU hour (default: of the question, else 4 times)"
    add("--next", **COUNT, nargs="?", const=0, help=narrow)
    add("--json", **FLAG, help="print one line of JSON")


def plan(options: argparse.Namespace) -> Result:
    """Show what a study would run and what it would cost; nothing is run."""
    from horovod_study.studies.ledger import past_durations
    from horovod_study.studies.plan import plan_study

    study = _study(options)
    ledger = _ledger(options, study)
    if getattr(options, "next", None) is not None:
        if options.next < 0:
            raise ConfigError(f"--next {options.next}: give a worker count above 0, or none")
        return _next_runs(options, study, ledger)
    planned = plan_study(ledger, past=past_durations(ledger.directory), retry=options.retry)
    return Result(document=planned.to_dict(), lines=planned.lines())


def _next_runs(options: argparse.Namespace, study: Any, ledger: Any) -> Result:
    """Say which further runs narrow the study's forecast most per GPU hour."""
    from horovod_study import records
    from horovod_study.analysis.forecast import next_runs
    from horovod_study.analysis.series.exchange import points_of
    from horovod_study.analysis.series.points import with_series
    from horovod_study.studies.estimate import Estimate
    from horovod_study.studies.ledger import past_durations

    cells = [cell for cell in study.cells() if cell.runtime != "serial"] or study.cells()
    counts = {cell.placement.workers for cell in cells}
    doubled = {2**power for power in range(20) if min(counts) <= 2**power <= max(counts)}
    target = options.next or study.asked_workers or 4 * max(counts)
    # A new run takes what those like it took; of other counts the usual time is the best guess.
    times = [Estimate(past_durations(ledger.directory)).expected(cell, at_most_s=study.timeout_s)[0] for cell in cells]
    table = records.run_table(ledger.directory, only=ledger.current_directories())
    points = points_of(with_series(table))
    found = next_runs.next_runs(points, target, candidates=counts | doubled, seconds=sorted(times)[len(times) // 2])
    text = [f"what narrows the forecast at {target:,} workers most, the most per GPU hour first:"]
    for step in found.values():
        text += ["", *next_runs.lines(step)]
    return Result(document={"series": {name: step.to_dict() for name, step in found.items()}}, lines=text)


def _run_arguments(parser: Parser) -> None:
    add = parser.add_argument
    cells = "B of a comparison; with --retry keys or names of cells (default: all)"
    study = "the study file; or `-- COMMAND` with {workers} in it; or A of a comparison A B (docs/compare.md)"
    _study_arguments(parser, study=study, cells=cells)
    add("--rate", metavar="REGEX", help="of a command: where its output says a rate; the first group is the number")
    retry = "only cells that failed, timed out, were cancelled or pre-empted (--no-retry: all but these)"
    add("--retry", action=argparse.BooleanOptionalAction, help=retry)
    add("--plan", **FLAG, help="only print the plan, as the verb plan does")
    add("--dry-run", **FLAG, help="print job scripts and launch lines, and start nothing")
    until = "cells alternate until each speedup's 95 %% interval is so narrow to either side (study file: precision)"
    add("--until", metavar="2%", help=until)
    add("--here", **FLAG, help="Slurm: run in the allocation this is typed in (salloc)")
    add("--wait", **FLAG, help="Slurm: wait until all jobs have ended, then report")
    add("--yes", **FLAG, help="do not ask before a study that is large")
    add("--oversubscribe", **FLAG, help="allow workers to share cores or GPUs; times then mean little")
    add("--smoke", **YES, help="try each runtime with two workers for a few seconds first (default: yes)")
    add("--pin", **YES, help="keep each cell on the same cores in every repeat (default: yes)")
    group = parser.add_argument_group("two sides A B, each RUNTIME[,option=value...] or a YAML file of options")
    add = group.add_argument
    add("--workers", **COUNT, nargs="+", help="worker counts to compare at (default: one per core)")
    add("--blocks", **COUNT, help="launches of both per worker count (default 5; with --until or not in turns 10)")
    add("--no-turns", action="store_const", const=True, help="A and B of a block one after the other in any case")
    add("--out", **DIR, help="receives runs and result (default compare, in --runs)")
    add("--json", action="store_const", const=True, help="end with one line of JSON")
    add("--workload", metavar="FILE.py", help="another training than the package's own (docs/studies.md)")
    add_run_options(parser, hidden=OPTIONS, without=SET_BY_COMPARE)


_OF_PAIRS, _NOT_OF_PAIRS = (
    ("workers", "blocks", "no_turns", "out", "json", "workload"),
    ("hosts", "here", "wait", "rate"),
)


def run(options: argparse.Namespace) -> int | Result:
    """Run what is missing of a study, or a command with 1, 2, 4, ... {workers}; then analyse and report it."""
    from horovod_study.studies.pairs import sides_of

    words = [str(options.study), *options.cells] if options.study and options.command is None else []
    if sides := sides_of(words):
        return _run_pairs(options, sides)
    for name in (*(name for name in _OF_PAIRS if getattr(options, name) is not None), *_run_values(options)):
        raise ConfigError(f"run: --{name.replace('_', '-')} is for two sides A B; a study file says it by itself")
    _take_command(options)
    if options.cells and not options.retry:
        raise ConfigError(f"run: behind a study file, {options.cells[0]!r} can only be a cell; give --retry too")
    options.retry, again = options.retry is not False, options.retry
    if options.plan:
        return plan(options)
    study, command = _study(options), _command(options)
    if options.until is not None:
        study = study.until(until_share(options.until))
    if options.here:
        from rich.console import Console

        from horovod_study.studies.job import Inside, run_here

        inside = Inside(console=Console())
        result = run_here(study, options.runs, inside, command=command + " --here", retry=options.retry)
    else:
        from horovod_study.studies.runner import RunOptions, retry_cells, run_study, show_plan
        from horovod_study.studies.study_file import sweep_of

        told = given(options, "retry", "yes", "oversubscribe", "smoke", "pin", "wait")
        how = RunOptions(command=command, **told)
        if options.dry_run:
            result = show_plan(sweep_of(study, options.runs), how)
        elif again:
            result = retry_cells(study, options.runs, how, which=options.cells)
        else:
            result = run_study(study, options.runs, how)
    return _conclude(options, study, command, result)


def _run_values(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in run_values(options).items() if name not in SET_BY_COMPARE}


def _run_pairs(options: argparse.Namespace, sides: tuple[str, ...]) -> int | Result:
    """Compare two configurations: in blocks, equal work proven, with an interval and a verdict."""
    from rich.console import Console

    from horovod_study.analysis.compare.comparison import compare, lines, too_few
    from horovod_study.progress import say
    from horovod_study.report.figures.comparison import write_comparison
    from horovod_study.studies.interruption import exit_code
    from horovod_study.studies.pairs import follow, pairs_of, told
    from horovod_study.studies.runner import RunOptions, show_plan
    from horovod_study.workloads import find_workload

    for name in (name for name in _NOT_OF_PAIRS if getattr(options, name)):
        raise ConfigError(f"run: --{name} is for a study file; two sides A B are compared on this machine")
    out = options.out or (options.runs or Path("runs")) / "compare"
    aim = None if options.until is None else until_share(options.until)
    how: dict[str, Any] = {"turns": not options.no_turns, "precision": aim}
    how |= given(options, "workers", "blocks", "oversubscribe")
    pairs = pairs_of(sides, _run_values(options), find_workload(options.workload), out, **how)
    if pairs.alone and (doubt := too_few(pairs.blocks, len(pairs.workers))):
        say(f"warning: {doubt}")
    command = shlex.join(["horovod-study", *options.words])
    run_options = RunOptions(
        command=command, policy=pairs.policy, **given(options, "yes", "oversubscribe", "smoke", "pin")
    )
    console, design = Console(stderr=bool(options.json)), pairs.design()
    if (options.plan or options.dry_run) and (sweep := next(design, None)) is not None:
        return show_plan(sweep, run_options, console=console).exit_code
    result = follow(design, run_options, console)
    if not (document := pairs.document(result))["blocks"]:
        return exit_code()
    document |= compare(document["blocks"], aim=aim)
    return Result(
        document=document,
        lines=["", *told(document), "", *lines(document), f"figure: {out / 'comparison.png'}"],
        files=write_comparison(document, out),
        exit_code=0 if result is None else result.exit_code,
    )


def _take_command(options: argparse.Namespace) -> None:
    """Have `run -- COMMAND` run the study file of that command, and say what to type the next time."""
    if options.command is None:
        if options.study is None:
            raise ConfigError("run: no study; name its file, or write `run -- COMMAND` with {workers} in it")
        if options.rate is not None:
            raise ConfigError("--rate: a study file says it by itself, as `rate: REGEX` beside command")
        return
    from horovod_study.cluster.launch import require_program
    from horovod_study.studies.command_file import command_study

    if options.study is not None:
        raise ConfigError(f"run: {options.study} and a command are both given; name a study file or write a command")
    for program in options.command[:1]:
        require_program(program, Path.cwd(), os.environ.get("PATH", ""))
    options.study = command_study(options.command, rate=options.rate, hosts=_hosts(options))
    # The user has typed what is to be run, and nobody knows how long it is.
    options.yes = True


def _command(options: argparse.Namespace) -> str:
    """Return what to type to go on."""
    elsewhere = [] if options.runs == Path("runs") else ["--runs", str(options.runs)]
    hosts = ["--hosts", options.hosts] if options.hosts else []
    until = [] if options.until is None else ["--until", options.until]
    typed = options.words[: options.words.index("--") if "--" in options.words else None]
    flags = [word for word in ("--oversubscribe", "--no-smoke", "--no-pin") if word in typed]
    return shlex.join(["horovod-study", "run", str(options.study), *elsewhere, *hosts, *until, *flags])


def _conclude(options: argparse.Namespace, study: Any, command: str, result: Any) -> int:
    """Report the study if any of it is done, print what it came to, and return the exit code."""
    from horovod_study import api
    from horovod_study.report.page.answer import answer_lines

    if result.planned_only or result.interrupted or not result.ledger.count("done"):
        return int(result.exit_code)
    directory = options.runs / study.name
    current = result.ledger.current_directories()
    # Launches that a study with an aim did not need are no gap.
    planned = sorted(each.key for each in result.ledger.entries if not study.precision or each.state != "missing")
    how: dict[str, Any] = {"targets": study.targets, "only": current, "planned": planned, "precision": study.precision}
    write_analysis(directory, directory / "analysis", commands=[command], doubts=False, **how)
    write_page(directory / "analysis")
    print("", *answer_lines(api.read_analysis(directory / "analysis")), sep="\n")
    print(f"report: {directory / 'analysis' / 'report.html'}")
    if options.command is not None:
        print(f"study file: {options.study}; again, or with more in it: {command}")
    return int(result.exit_code)


def _status_arguments(parser: Parser) -> None:
    add = parser.add_argument
    _study_arguments(parser, study="the study file, or the folder of a run: its steps/s, waits and slowest rank")
    add("--watch", **FLAG, help="keep running and show the progress of the cells, or of the run")
    add("--json", **FLAG, help="print one line of JSON")


def status(options: argparse.Namespace) -> int | Result:
    """Show the state of a study, or of one run while it goes on."""
    from horovod_study.recording.command import before_the_first_step
    from horovod_study.studies.study_file import sweep_of
    from horovod_study.studies.watch import run_view, study_view, watch

    one = options.study.is_dir() or before_the_first_step(options.study)
    study: Any = None if one else _study(options)
    if options.watch and not options.json:
        from rich.console import Console

        looked = partial(run_view, options.study) if one else partial(study_view, sweep_of(study, options.runs))
        return watch(looked, Console())
    if one:
        view = run_view(options.study)
        return Result(document=view.document, lines=view.lines)
    ledger = _ledger(options, study)
    return Result(document=ledger.to_dict(), lines=[*ledger.lines(), "", ledger.summary(), f"runs: {ledger.directory}"])


def cancel(options: argparse.Namespace) -> int:
    """End cells that are running or queued; a running one writes a checkpoint first."""
    from horovod_study.studies.runner import cancel_cells

    cancel_cells(_study(options), options.runs, which=options.cells)  # the first says which runs
    return 0


def _doctor_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--partition", metavar="NAME|FILE.yaml", help="a partition, compared with its file")
    add("--quick", **FLAG, help="only what takes a moment")
    _place_arguments(parser)
    add("--json", **FLAG, help="print one line of JSON")


def doctor(options: argparse.Namespace) -> int:
    """Examine this machine, other hosts or a partition: what is installed, what fits, what to do about the rest."""
    from rich.console import Console

    from horovod_study.cluster.doctor import examine, exit_code, to_dict
    from horovod_study.cluster.partitions import find_partition
    from horovod_study.report.doctor import show

    partition = find_partition(options.partition) if options.partition else None
    found = examine(hosts=_hosts(options), partition=partition, runs=options.runs or Path("runs"), quick=options.quick)
    if options.json:
        print(json.dumps(to_dict(found)))
    else:
        show(found, Console())
    return exit_code(found)


def _study(options: argparse.Namespace) -> Any:
    from horovod_study.studies.runner import on_hosts
    from horovod_study.studies.study_file import load_study

    study = load_study(options.study)
    options.runs = options.runs or runs_of(options.study, study.name)
    return on_hosts(study, _hosts(options)) if options.hosts else study


def _ledger(options: argparse.Namespace, study: Any) -> Any:
    from horovod_study.studies.ledger import read_ledger
    from horovod_study.studies.study_file import sweep_of

    return read_ledger(sweep_of(study, options.runs))


def _hosts(options: argparse.Namespace) -> tuple[Any, ...]:
    from horovod_study.studies.runner import parse_hosts

    return parse_hosts(options.hosts) if options.hosts else ()


def _study_arguments(parser: Parser, *, study: str = "the study file", cells: str = "") -> None:
    optional: dict[str, Any] = {"nargs": "?"} if "COMMAND" in study else {}
    parser.add_argument("study", type=Path, metavar="STUDY.yaml", help=study, **optional)
    if cells:
        parser.add_argument("cells", nargs="*", metavar="CELL", help=cells)
    _place_arguments(parser)


def _place_arguments(parser: Parser) -> None:
    parser.add_argument("--runs", **DIR, help="where runs are kept (default runs, here or else beside the study file)")
    parser.add_argument("--hosts", metavar="HOST:N,...", help="machines over ssh, and how many workers each takes")


VERBS = (
    Verb("plan", plan, _plan_arguments),
    Verb("run", run, _run_arguments),
    Verb("status", status, _status_arguments),
    Verb("cancel", cancel, partial(_study_arguments, cells="keys or names of cells (default: all there are)")),
    Verb("doctor", doctor, _doctor_arguments),
)
