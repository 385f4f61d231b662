"""`horovod-study run`, `status`, `doctor`, `predict --next` and `record`: a study or a command, and where it runs."""

import argparse
import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from horovod_study.cli.verbs import (
    COUNT,
    DIR,
    FLAG,
    SEVERAL,
    YES,
    Result,
    Verb,
    few_need,
    given,
    option_name,
    runs_of,
    until_share,
    whole,
)
from horovod_study.config.options import SET_BY_COMPARE, Parser, add_run_options, run_values
from horovod_study.config.roles import Role, named
from horovod_study.config.scripted import WARMUP_STEPS, check_rate
from horovod_study.config.workload import packaged
from horovod_study.errors import refuse


def _next_arguments(parser: Parser) -> None:
    _study_arguments(parser)
    narrow = "the worker count whose forecast is to be narrow (default: of the study's question, else 4 times the most)"
    parser.add_argument("--next", type=whole(1), metavar="N", nargs="?", const=0, help=narrow)


def next_runs(options: argparse.Namespace) -> Result:
    """Say which further runs of a study narrow its forecast most per GPU hour."""
    from horovod_study import records
    from horovod_study.analysis.forecast import recommendation as forecast
    from horovod_study.analysis.series.exchange import points_of
    from horovod_study.analysis.series.points import with_series
    from horovod_study.studies.ledger import past_durations, read_ledger
    from horovod_study.studies.plan import Estimate

    study = _study(options)
    ledger = read_ledger(_sweep(options, study))
    cells = [cell for cell in study.cells() if cell.runtime != "serial"] or study.cells()
    counts = {cell.placement.workers for cell in cells}
    doubled = {2**power for power in range(20) if min(counts) <= 2**power <= max(counts)}
    target = options.next or int(f"{study.question or 0}".split()[-1]) or 4 * max(counts)
    # A new run takes what those like it took; of other counts the usual time is the best guess.
    times = [Estimate(past_durations(ledger.directory)).expected(cell, at_most_s=study.timeout_s)[0] for cell in cells]
    points = points_of(with_series(records.run_table(ledger.directory, only=ledger.current_directories())))
    found = forecast.next_runs(points, target, candidates=counts | doubled, seconds=sorted(times)[len(times) // 2])
    text = [f"what narrows the forecast at {target:,} workers most, the most per GPU hour first:"]
    text += [line for name, step in found.items() for line in ("", *forecast.next_lines(name, step))]
    return Result(document={"series": {name: records.finite(step) for name, step in found.items()}}, lines=text)


def _run_arguments(add: Parser) -> None:
    study = "the study file; or `-- COMMAND`; or A of two sides A B"
    _study_arguments(add, study=study, cells="B; with --retry: which (default: all)")
    add("--plan", **FLAG, help="only show what would run and what it would cost")
    add("--retry", action=argparse.BooleanOptionalAction, help="only what failed (--no-retry: all but this)")
    add("--until", metavar="2%", help="go on until each speedup's interval is so narrow")
    add("--tune", nargs="*", metavar="KNOB", help="race settings of communication, or KNOB=V1,V2")
    add("--wait", **FLAG, help="Slurm: wait until all jobs have ended, then report")
    add("--here", **FLAG, help="Slurm: run in this allocation (salloc)")
    add("--dry-run", **FLAG, help="print job scripts and launch lines, start nothing")
    add("--yes", **FLAG, help="do not ask before a study that is large")
    few_need(
        add,
        ("rate", {"metavar": "REGEX"}, "of a command: where its output says a rate; the first group is the number"),
        ("oversubscribe", FLAG, "allow workers to share cores or GPUs; times then mean little"),
        ("smoke", YES, "try each runtime with two workers for a few seconds first (default: yes)"),
        ("pin", YES, "keep each cell on the same cores in every repeat (default: yes)"),
        ("json", FLAG, "with --plan, and of A B: print one line of JSON"),
        ("workers", {**COUNT, "nargs": "+"}, "of A B: worker counts (default: one per core)"),
        ("blocks", COUNT, "of A B: launches of both per worker count (default 5; with --until or not in turns 10)"),
        ("no-turns", {"action": "store_const", "const": True}, "of A B: one after the other in any case"),
        ("out", DIR, "of A B: receives runs and result (default compare, in --runs)"),
        ("workload", {"metavar": "FILE.py"}, "of A B: another training than the package's own (docs/studies.md)"),
    )
    add_run_options(add, without=SET_BY_COMPARE)


_OF_PAIRS, _NOT_OF_PAIRS = (
    ("workers", "blocks", "no_turns", "out", "workload"),
    ("hosts", "here", "wait", "rate", "tune"),
)


def run(options: argparse.Namespace) -> int | Result:
    """Run what is missing of a study, or a command; report it."""
    from horovod_study.studies.designs import sides_of

    words = [str(options.study), *options.cells] if options.study and options.command is None else []
    if sides := sides_of(words):
        return _run_pairs(options, sides)
    _refuse_idle(options)
    if options.command is not None:  # its study file is run, and what to type the next time is said at the end
        from horovod_study.cluster.launch import require_program
        from horovod_study.studies.study_file import command_study

        for program in options.command[:1]:
            require_program(program, Path.cwd(), os.environ.get("PATH", ""))
        options.study = command_study(options.command, rate=options.rate, hosts=_hosts(options))
        options.yes = True  # the user has typed what is to be run, and nobody knows how long it is
    options.retry, again = options.retry is not False, options.retry
    study, command = _study(options), _command(options)
    aim = None if options.until is None else until_share(options.until)
    if options.plan:
        from horovod_study.studies.ledger import past_durations, read_ledger
        from horovod_study.studies.plan import plan_study

        ledger = read_ledger(_sweep(options, study))
        planned = plan_study(ledger, past=past_durations(ledger.directory), retry=options.retry)
        return Result(document=planned.document(), lines=planned.lines())
    from rich.console import Console

    from horovod_study.studies.runner import RunOptions, retry_cells, run_sweep, show_plan

    study = study if aim is None else study.until(aim)
    sweep = _sweep(options, study)
    how = RunOptions(command=command, **given(options, "retry", "yes", "oversubscribe", "smoke", "pin", "wait"))
    if options.here:
        from horovod_study.studies.job import Inside, run_here

        result = run_here(sweep, Inside(console=Console()), command=command + " --here", retry=options.retry)
    elif options.tune is not None:
        from horovod_study.studies.attempt import exit_code
        from horovod_study.studies.designs import tune

        how = replace(how, command=shlex.join(["horovod-study", *options.words]))
        return 0 if tune(study, options.runs, options.tune, how, Console()) else exit_code()
    elif options.dry_run:
        result = show_plan(sweep, how)
    else:
        result = retry_cells(sweep, how, which=options.cells) if again else run_sweep(sweep, how)
    return _conclude(options, study, command, result)


def _refuse_idle(options: argparse.Namespace) -> None:
    """Raise ConfigError for what cannot be asked of a study or a command."""
    study, command = options.study, options.command is not None
    of_pairs = [*(name for name in _OF_PAIRS if getattr(options, name) is not None), *_run_values(options)]
    lone = f"behind a study file, {next(iter(options.cells), '')!r} can only be a cell; give --retry too"
    rate = "--rate: a study file says it by itself, as `rate: REGEX` beside command"
    told = "--json is for --plan; what a study came to: horovod-study report RUNS --json"
    refuse(
        "run",
        *((True, f"{option_name(name)} is for two sides A B; a study file says it by itself") for name in of_pairs),
        (command and study, f"{study} and a command are both given; name a study file or write a command"),
        (not command and not study, "no study; name its file, or write `run -- COMMAND` with {workers} in it"),
        (options.rate is not None and not command, rate),
        (options.cells and not options.retry, lone),
        (options.json and not options.plan, told),
    )


def _run_values(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in run_values(options).items() if name not in SET_BY_COMPARE}


def _run_pairs(options: argparse.Namespace, sides: tuple[str, ...]) -> int | Result:
    """Compare two configurations: in blocks, equal work proven, with an interval and a verdict."""
    from rich.console import Console

    from horovod_study.analysis.compare.comparison import compare, lines, too_few
    from horovod_study.config.workload import find_workload
    from horovod_study.report.kit.files import write_result
    from horovod_study.studies.attempt import exit_code
    from horovod_study.studies.designs import pairs_of, told
    from horovod_study.studies.runner import RunOptions, follow, show_plan
    from horovod_study.text.progress import say

    what = "is for a study file; two sides A B are compared on this machine"
    refuse("", *((getattr(options, name), f"run: --{name} {what}") for name in _NOT_OF_PAIRS))
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
    found = ["", *told(document), "", *lines(document)]
    return Result(
        document=document,
        lines=found,
        files=write_result(out, {"comparison.txt": found[1:], "comparison.json": document}),
        exit_code=0 if result is None else result.exit_code,
    )


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
    from horovod_study.report.page.tables import answer_lines

    if result.planned_only or result.interrupted or not result.ledger.count("done"):
        return int(result.exit_code)
    directory = options.runs / study.name
    current = result.ledger.current_directories()
    # Launches that a study with an aim did not need are no gap.
    planned = sorted(each.key for each in result.ledger.entries if not study.precision or each.state != "missing")
    how: dict[str, Any] = {"targets": study.targets, "only": current, "planned": planned, "precision": study.precision}
    api.write_analysis(directory, directory / "analysis", commands=[command], **how)
    analysis = api.read_analysis(directory / "analysis")
    api.write_page(directory / "analysis", analysis)
    print("", *answer_lines(analysis), sep="\n")
    print(f"report: {directory / 'analysis' / 'report.html'}")
    if options.command is not None:
        print(f"study file: {options.study}; again, or with more in it: {command}")
    return int(result.exit_code)


def _status_arguments(add: Parser) -> None:
    _study_arguments(add, study="the study file, or the folder of a run")
    add("--watch", **FLAG, help="keep running and show the progress")
    add("--cancel", nargs="*", metavar="CELL", help="end cells, all or these; running ones write a checkpoint")


def status(options: argparse.Namespace) -> int | Result:
    """Show the state of a study or of a run; end it."""
    from horovod_study.recording.command import before_the_first_step
    from horovod_study.studies.plan import run_view, study_view, watch

    one = options.study.is_dir() or before_the_first_step(options.study)
    study: Any = None if one else _study(options)
    if options.cancel is not None:
        from horovod_study.studies.runner import cancel_cells

        refuse("", (one, f"--cancel: ends cells of a study, and {options.study} is a run; name the study file"))
        cancel_cells(_sweep(options, study), which=options.cancel)  # the first says which runs
        return 0
    looked = partial(run_view, options.study) if one else partial(study_view, _sweep(options, study))
    if options.watch and not options.json:
        from rich.console import Console

        return watch(looked, Console())
    view = looked()
    return Result(document=view.document, lines=view.lines)


def _doctor_arguments(add: Parser) -> None:
    add("--partition", metavar="NAME|FILE.yaml", help="a partition, compared with its file")
    add("--quick", **FLAG, help="only what takes a moment")
    _place_arguments(add)


def doctor(options: argparse.Namespace) -> Result:
    """Examine this machine, other hosts or a partition."""
    from horovod_study.cluster.doctor import document, examine, exit_code, lines
    from horovod_study.config.partitions import find_partition

    partition = find_partition(options.partition) if options.partition else None
    found = examine(hosts=_hosts(options), partition=partition, runs=options.runs or Path("runs"), quick=options.quick)
    return Result(document=document(found), lines=lines(found), exit_code=exit_code(found))


def _study(options: argparse.Namespace) -> Any:
    from horovod_study.studies.study_file import load_study, on_hosts

    study = load_study(options.study)
    options.runs = options.runs or runs_of(options.study, study.name)
    return on_hosts(study, _hosts(options)) if options.hosts else study


def _sweep(options: argparse.Namespace, study: Any) -> Any:
    from horovod_study.studies.study_file import sweep_of

    return sweep_of(study, options.runs)


def _hosts(options: argparse.Namespace) -> tuple[Any, ...]:
    from horovod_study.config.partitions import parse_hosts

    return parse_hosts(options.hosts) if options.hosts else ()


def _study_arguments(parser: Parser, *, study: str = "the study file", cells: str = "") -> None:
    optional: dict[str, Any] = {"nargs": "?"} if "COMMAND" in study else {}
    parser.add_argument("study", type=Path, metavar="STUDY.yaml", help=study, **optional)
    if cells:
        parser.add_argument("cells", nargs="*", metavar="CELL", help=cells)
    _place_arguments(parser)


def _place_arguments(parser: Parser) -> None:
    runs = "where runs are kept (default runs, here or else beside the study file)"
    parser.add_argument("--runs", **DIR, help=runs)
    hosts = "machines over ssh, and how many workers each takes"
    parser.add_argument("--hosts", metavar="HOST:N,...", help=hosts)


def _record_arguments(add: Parser) -> None:
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts the training")
    add("--out", **DIR, help="the run directory (default: a new one below runs/STUDY)")
    add("--study", default="script", metavar="NAME", help="the study that the run belongs to")
    add("--repeats", type=whole(1), metavar="N", default=1, help="run it so often, into DIR, DIR-2, ... (default 1)")
    add("--rate", metavar="REGEX", help="where the output says a rate, if no step is seen")
    add("--batch", **COUNT, help="samples of a step on one worker (default: counted)")
    add("--warmup-steps", **COUNT, default=WARMUP_STEPS, help=f"first steps, not measured (default {WARMUP_STEPS})")
    add("--steps", **COUNT, help="end the training after so many steps")
    option = "an option of the script in which runs differ; runs are repeats only where these are equal"
    add("--option", **SEVERAL, metavar="NAME=VALUE", help=option)
    add("--partition", default="local", metavar="NAME", help="the partition that it runs on", more=True)
    add("--repeat", **COUNT, default=0, help="which repeat it is (default 0)", more=True)
    add("--model-name", metavar="NAME", help="what tables call the model (default: its class)", more=True)
    add("--timer-mode", default="light", metavar="light|strict|off", help="how steps are timed", more=True)
    interval = "how often the host is sampled; 0: never"
    add("--system-interval-s", type=float, default=1.0, metavar="S", help=interval, more=True)


def record(options: argparse.Namespace) -> int:
    """Record the training of any PyTorch script as it is."""
    from horovod_study import records
    from horovod_study.config.doors import accept
    from horovod_study.config.partitions import FolderName
    from horovod_study.measure.clock import utc_stamp
    from horovod_study.recording import command as recorded

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    steps, first = options.steps, options.warmup_steps
    named_options = [text.partition("=") for text in options.option]
    none_left = f"--steps {steps}: no more than --warmup-steps {first}, and none is left to measure"
    refuse(
        "",
        (steps is not None and steps <= first, none_left),
        (not command, "record: no command; write `horovod-study record -- python train.py`"),
        *((not (name and equals), f"--option {name}: is not NAME=VALUE") for name, equals, _ in named_options),
    )
    check_rate("--rate", options.rate)
    measured = named(packaged().options, Role.WINDOW | Role.CLOCK | Role.NAMING)
    common = {name: value for name, value in vars(options).items() if name in measured}
    for name, value in (common if options.batch is None else {**common, "batch": options.batch}).items():
        form = FolderName if name in ("study", "partition") else packaged().options[name].form
        accept(form, value, "record", name=option_name(name))
    common["disk_full"] = "go-on"
    out = options.out or Path("runs") / options.study / f"{utc_stamp()}-{Path(command[0]).name}"
    places = [out, *(out.with_name(f"{out.name}-{number}") for number in range(2, options.repeats + 1))]
    recorded.close_left(out.absolute().parent)
    for place in places:
        records.require_no_run(place)
    own = {name: value for name, _, value in named_options}
    words = options.words[: len(options.words) - len(command)]
    words = ["horovod-study", *words, *["--"] * (words[-1:] != ["--"]), *command]
    requested = {"typed": words, "typed_in": os.getcwd()}
    of_script = {**given(options, "batch", "model_name"), "own": own, "requested": requested}
    for repeat, place in enumerate(places, options.repeat):
        code = recorded.record(command, place, {**common, "repeat": repeat}, of_script, steps=steps, rate=options.rate)
        if code:  # what has failed once is not run again, nor after Ctrl-C
            break
    return code


VERBS = (
    Verb("run", run, _run_arguments, json=False),
    Verb("status", status, _status_arguments),
    Verb("doctor", doctor, _doctor_arguments),
    Verb("predict --next", next_runs, _next_arguments),
)
RECORD = Verb("record", record, _record_arguments, json=False)
