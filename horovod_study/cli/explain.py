"""`horovod-study explain`: where the time of recorded steps goes, on one page or, with --part, one view in detail."""

import argparse
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from horovod_study.cli.verbs import (
    COUNT,
    DIR,
    FLAG,
    Result,
    Verb,
    add_figure_arguments,
    figure_look,
    given,
    option_name,
    runs_folder,
    say_left_out,
)
from horovod_study.config.documents import read_bytes
from horovod_study.config.options import Parser, add_run_options, run_values
from horovod_study.config.workload import packaged
from horovod_study.errors import RecordError, refuse

TIMELINE_READ_BYTES = 256_000_000
"""A longer timeline is refused: all of it is in memory at once, and some steps say as much as many."""


def _explain_arguments(parser: Parser) -> None:
    add = parser.add_argument
    places = "run directories, folders of them, a study file; or traces of torch.profiler, or of NCCL Inspector"
    add("places", type=Path, nargs="*", metavar="RUN|STUDY", help=places)
    add("--part", choices=PARTS, help="one view in detail")
    add("--measure", **FLAG, help="make short runs here that say what a synchronisation is")
    add("--out", **DIR, help="receives what is said, as text and JSON, and figures")
    residual = "of --part account: end with 1 where more is unexplained, such as 5%%, of a rank's step or of a growth"
    add("--max-residual", metavar="PERCENT", help=residual, more=True)
    add("--json", **FLAG, help="print one line of JSON")
    add_figure_arguments(parser)
    for name, kind, text in (
        ("runtime", {"nargs": "+", "metavar": "NAME"}, "how workers communicate (default: those usual here)"),
        ("workers", COUNT, "workers (default: one per core)"),
        ("rounds", COUNT, "launches of all arms (default 5)"),
        ("no-turns", {**FLAG, "default": None}, "run the arms one after the other, also where they could alternate"),
    ):
        add(f"--{name}", **kind, help=f"with --measure: {text}", more=True)
    add_run_options(parser, hidden=packaged().options)
    parser.epilog = "With --measure, options of `horovod-study strain train` too, such as --batch. See docs/explain.md."


def explain(options: argparse.Namespace) -> Result:
    """Explain a run or a study: where the time goes, who is slow."""
    from horovod_study.report.explanation import explained
    from horovod_study.report.terminal import foreign

    part, places = options.part, options.places
    asked = "--measure" if options.measure else f"--part {part}"
    takers = {"max_residual": "--part account"}  # of options that only these take
    takers |= dict.fromkeys(("runtime", "workers", "rounds", "no_turns", *packaged().options), "--measure")
    idle = {option_name(name): taker for name, taker in takers.items() if getattr(options, name, None) is not None}
    several = part in ("steps", "timeline", "system") and places[1:]
    refuse(
        "explain",
        *((asked != taker, f"{name} is for {taker}, and cannot change recorded runs; leave it out")
          for name, taker in idle.items()),
        (options.measure and (places or part not in (None, "sync")),
         "--measure makes runs of its own, for --part sync; name no run and no other part"),
        (not options.measure and not places, "name run directories, or a folder of them; or give --measure"),
        (several, f"--part {part} looks at one run; name one"),
    )  # fmt: skip
    told = foreign(places, options.out) if part is None else None
    if told is not None:
        return Result(**told)
    options.places = [runs_folder(place) for place in places]
    part = "sync" if options.measure else part
    return Result(**explained(options.places, options.out)) if part is None else PARTS[part](options)


def _steps(options: argparse.Namespace) -> Result:
    """One run: whether its laps add up, which rank is slow, what paused, and what else it recorded."""
    from horovod_study import records
    from horovod_study.analysis.steps.inspection import inspect
    from horovod_study.report.figures.inspection import result_lines, system_lines, write_inspection, write_system_of
    from horovod_study.report.kit.files import figure_lines

    run, beside = records.recorded_run(options.places[0]), records.run_side_files(options.places[0])
    found, out, look = inspect(run, beside), options.out, figure_look(options)
    if options.part == "system":
        lines = system_lines(found) or [f"System: {found.system['why_not']}."]
        paths = write_system_of(run, beside, out, look=look) if out else []
        return Result(document=records.facts(found, "name", "system"), lines=lines, files=paths)
    paths = write_inspection(found, run, beside, out, look=look) if out else []
    return Result(document=records.finite(found), lines=[*result_lines(found), *figure_lines(paths)], files=paths)


def _account(options: argparse.Namespace) -> Result:
    """Every step: parts that add up, what none of them covers, and what more workers add."""
    from horovod_study import records
    from horovod_study.analysis.steps.accounting import account as account_all
    from horovod_study.analysis.steps.accounting import account_run, allowed_share, gate
    from horovod_study.report.terminal import account_lines, write_accounting

    allowed = None if options.max_residual is None else allowed_share(options.max_residual)
    left_out: dict[str, str] = {}
    table, runs = records.recorded_runs(options.places, left_out=left_out)
    say_left_out(left_out)
    found = account_all(table, [account_run(run) for run in runs])
    judged = None if allowed is None else gate(found, allowed)
    paths = write_accounting(found, judged, options.out) if options.out else []
    document, code = {**records.finite(found), "gate": judged}, 1 if judged is not None and judged.over else 0
    return Result(document=document, lines=account_lines(found, judged), files=paths, exit_code=code)


def _sync(options: argparse.Namespace) -> Result:
    """The synchronisation: transfer, skew, runtime, and what none of them explains."""
    from horovod_study import records
    from horovod_study.analysis.steps.attribution import attribute, observe_run
    from horovod_study.analysis.steps.rank_steps import MIN_STEPS
    from horovod_study.report.terminal import attribution_table, write_attribution
    from horovod_study.studies.attribute import DEFAULT_RUNTIMES, run_experiment

    out = options.out or Path("runs/attribution")
    if options.measure:
        how: dict[str, Any] = {"runtimes": options.runtime or DEFAULT_RUNTIMES, "turns": not options.no_turns}
        how |= given(options, "workers", "rounds") | {"command": shlex.join(["horovod-study", *options.words])}
        directories = run_experiment(run_values(options), out, **how)
    else:
        left_out: dict[str, str] = {}
        directories = [directory for directory, _, _ in records.found_runs(*options.places, left_out=left_out)]
        say_left_out(left_out)
    slices = cache(records.read_turns)
    seen = []
    for directory in directories:
        run = records.recorded_run(directory, name=str(directory))
        timed_steps = (sum(each["step"] >= run.first_step) for each in run.rows.values())
        if run.aside and min(timed_steps, default=0) < 3 * MIN_STEPS:
            run = run.whole()  # too few are quiet beside other programs: all steps count, with a doubt
        try:
            seen.append(observe_run(run, slices(directory.resolve().parent)))
        except RecordError as error:
            raise RecordError(f"{error}; run it again, with --timer-mode light") from None
        if run.workers > 1 and run.synchronisation is None:
            records.read_synchronisation(directory)  # which raises, and says why
    found = attribute(seen)
    paths = write_attribution(found, out)
    return Result(document=records.finite(found), lines=attribution_table(found), files=paths, doubts=found.doubts)


def _read_timeline(place: Path) -> tuple[Path, str]:
    """Return the file and the text of a Horovod timeline: the file `place`, or that of the run directory `place`."""
    from horovod_study.records import TIMELINE

    path, what = (place / TIMELINE, "this run has no timeline") if place.is_dir() else (place, "no such file")
    again = "record fewer steps (train --timeline-steps, or hvd.start_timeline and hvd.stop_timeline)"
    missing = f"{what}; record one with train --timeline-steps 50, over Horovod"
    content = read_bytes(path, again=again, max_bytes=TIMELINE_READ_BYTES, missing=missing)
    return path, content.decode("utf-8", errors="replace")


def _timeline(options: argparse.Namespace) -> Result:
    """Horovod's collectives, from its timeline: negotiation, queue, copies, transfer."""
    from horovod_study.analysis.steps.timeline import decompose, parse_events
    from horovod_study.records import finite
    from horovod_study.report.terminal import timeline_lines, write_timeline

    path, text = _read_timeline(options.places[0])
    events, doubts = parse_events(text, source=str(path))
    found = decompose(events, source=str(path), doubts=doubts)
    paths = write_timeline(found, options.out or path.parent / "timeline", source=str(path))
    document = {"source": str(path), **finite(found)}
    return Result(document=document, lines=timeline_lines(found, source=str(path)), files=paths, doubts=found.doubts)


PARTS: Mapping[str, Callable[[argparse.Namespace], Result]] = {
    "steps": _steps,
    "account": _account,
    "sync": _sync,
    "timeline": _timeline,
    "system": _steps,  # processors, memory, GPUs and power of its hosts alone
}
VERBS = (Verb("explain", explain, _explain_arguments),)
