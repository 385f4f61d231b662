"""`horovod-study report`, `explain` and `predict`, also `fit`: what recorded runs and measured points say."""

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.cli import verbs
from horovod_study.cli.verbs import COLUMNS, COUNT, DIR, FILE, FLAG, NAME, NUMBER, PATHS, Result, Verb, few_need, given
from horovod_study.config.documents import read_bytes
from horovod_study.config.options import Parser, add_run_options, run_values
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError, RecordError, refuse
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, printable

if TYPE_CHECKING:
    import pandas as pd

_KINDS = ("trace", "tensorboard", "wandb", "mlflow", "extra-p", "zip")


def _report_arguments(add: Parser) -> None:
    add("directory", **DIR, help="runs, a study file, tables of an analysis; or anybody's numbers")
    add("--out", **DIR, help="receives everything (default DIR/analysis)")
    add("--check", **FLAG, help="make every number again from the raw rows, and compare")
    add("--against", type=Path, metavar="BEFORE_DIR", help="begin with the differences to this study")
    add("--paper", **FLAG, help="write DIR/paper too: a LaTeX section for a thesis")
    add("--export", metavar="NAME", help="for other programs; see report --export --help")
    add("--target", type=float, nargs="+", metavar="MSE", help="test MSEs to which the times are compared")
    add("--columns", **COLUMNS)
    add("--tables", **FLAG, help="write only the tables: no figures, no page")
    bench = "of runs: what `horovod-study bench` measured of the machines (default: that of DIR/bench, if any)"
    fail = "with --against: end with 1 if a throughput is certainly lower by so much or more, or a cell has vanished"
    threads = {"type": verbs.whole(1), "metavar": "N"}
    few_need(add, ("threads", threads, "of runs: how many are read at a time (default: one per core, at most 4)"))
    few_need(add, ("bench", {"type": Path, "nargs": "+", "metavar": "bench.json"}, bench))
    verbs.add_figure_arguments(add)
    few_need(
        add,
        ("fail-on", {"metavar": "5%"}, fail),
        ("runs", {"type": Path, "metavar": "RUNS"}, "with --check: where the run directories are now"),
        ("allow", {"nargs": "+", **NAME}, "with --check: doubts that are known and do not end it with 1"),
        ("files", FLAG, "print the path of every file that was written, and nothing else"),
    )


def report(options: argparse.Namespace) -> Result:
    """Write figures, tables and page of a study; check or compare them."""
    from horovod_study import api

    asked = {name: value for name, value in vars(options).items() if name not in verbs.PROGRAM}
    return Result(**api.report(verbs.runs_folder(asked.pop("directory")), **asked))


def _export_arguments(add: Parser) -> None:
    place = "a run directory or a folder of them; extra-p: tables or points; zip: a study"
    add("place", nargs="?", type=Path, metavar="PLACE", help=place)
    kinds = f"{', '.join(_KINDS)} (one file to publish); several with commas or blanks between"
    add("--export", nargs="*", metavar="NAME", help=kinds)
    steps = "of a trace: from A to before B (default all; 1,000 of one rank take 0.8 MB)"
    add("--steps", type=_bounds, metavar="A:B", help=steps)
    out = "the trace, the archive, or a new folder; of several a folder that receives each under its name"
    add("--out", type=Path, metavar="PATH", help=out)


def export(options: argparse.Namespace) -> Result:
    """Write what was recorded for other programs, or a study as one file."""
    from horovod_study import api
    from horovod_study.config.doors import accept, checked

    words, place = list(options.export or ()), options.place
    place = Path(words.pop()) if place is None and words[1:] else place
    kinds = dict.fromkeys(kind for word in words for kind in word.replace(",", " ").split())
    what = "report --export: name what to write and of what, such as PLACE --export trace; see report --export --help"
    refuse("", (not kinds or place is None, what))
    for kind in kinds:
        accept(checked(str, choices=_KINDS), kind, "report", name="--export")
    several, found = len(kinds) > 1, []
    how: dict[str, Any] = {"study_file": place if place.suffix in (".yaml", ".yml") else None}
    how["data"] = verbs.read_data(place) if str(place) == "-" else None
    for kind in kinds:
        out = options.out / kind if several and options.out else options.out
        steps = None if several and kind != "trace" else options.steps
        found.append(api.export(verbs.runs_folder(place), kind, out=out, steps=steps, **how))
    joined: dict[str, Any] = {
        name: [each for told in found for each in told[name]] for name in ("lines", "files", "doubts")
    }
    documents = [told["document"] for told in found]
    return Result(document=documents[0] if len(found) == 1 else {"exports": documents}, **joined)


def _bounds(text: str) -> tuple[int, int]:
    """Return (100, 300) for "100:300"; either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        bounds = int(first or 0), int(last or sys.maxsize)
    except ValueError:
        bounds = (0, 0)
    if not colon or not 0 <= bounds[0] < bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:LAST with 0 <= FIRST < LAST, such as 100:300")
    return bounds


TIMELINE_READ_BYTES = 256_000_000
"""A longer timeline is refused: all of it is in memory at once, and some steps say as much as many."""


def _explain_arguments(add: Parser) -> None:
    places = "run directories, folders of them, a study file; or traces of torch.profiler, or of NCCL Inspector"
    add("places", type=Path, nargs="*", metavar="RUN|STUDY", help=places)
    add("--part", choices=PARTS, help="one view in detail")
    add("--measure", **FLAG, help="make short runs here that say what a synchronisation is")
    add("--out", **DIR, help="receives what is said, as text and JSON, and figures")
    residual = "of --part account: end with 1 where more is unexplained, such as 5%%, of a rank's step or of a growth"
    add("--max-residual", metavar="PERCENT", help=residual, more=True)
    verbs.add_figure_arguments(add)
    apart = "with --measure: run the arms one after the other, also where they could alternate"
    few_need(
        add,
        ("runtime", {"nargs": "+", **NAME}, "with --measure: how workers communicate (default: those usual here)"),
        ("workers", COUNT, "with --measure: workers (default: one per core)"),
        ("rounds", COUNT, "with --measure: launches of all arms (default 5)"),
        ("no-turns", {**FLAG, "default": None}, apart),
    )
    add_run_options(add, hidden=packaged().options)
    add.epilog = "With --measure, options of `horovod-study strain train` too, such as --batch. See docs/explain.md."


def explain(options: argparse.Namespace) -> Result:
    """Explain a run or a study: where the time goes, who is slow."""
    from horovod_study.report.terminal import explained, foreign

    part, places = options.part, options.places
    asked = "--measure" if options.measure else f"--part {part}"
    takers = {"max_residual": "--part account"}  # of options that only these take
    takers |= dict.fromkeys(("runtime", "workers", "rounds", "no_turns", *packaged().options), "--measure")
    idle = {
        verbs.option_name(name): taker for name, taker in takers.items() if getattr(options, name, None) is not None
    }
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
    options.places = [verbs.runs_folder(place) for place in places]
    part = "sync" if options.measure else part
    return Result(**explained(options.places, options.out)) if part is None else PARTS[part](options)


def _steps(options: argparse.Namespace) -> Result:
    """One run: whether its laps add up, which rank is slow, which steps stalled, and what else it recorded."""
    from horovod_study import records
    from horovod_study.analysis.steps.explanation import inspect
    from horovod_study.report.figures.causes import write_system_of
    from horovod_study.report.kit.files import figure_lines
    from horovod_study.report.terminal import result_lines, system_lines

    run, beside = records.recorded_run(options.places[0]), records.run_side_files(options.places[0])
    found, out, look = inspect(run, beside), options.out, verbs.figure_look(options)
    drawn = write_system_of(beside, out, look=look) if out else []
    if options.part == "system":
        lines = system_lines(found) or [f"System: {found.system['why_not']}."]
        return Result(document=records.facts(found, "name", "system"), lines=lines, files=drawn)
    document, lines = records.finite(found), result_lines(found)
    paths = [*verbs.kept(out, {"inspect.json": document, "inspect.txt": lines}), *drawn]
    return Result(document=document, lines=[*lines, *figure_lines(paths)], files=paths)


def _account(options: argparse.Namespace) -> Result:
    """Every step: parts that add up, what none of them covers, and what more workers add."""
    from horovod_study import records
    from horovod_study.analysis.steps.accounting import account as account_all
    from horovod_study.analysis.steps.accounting import account_run, allowed_share, gate
    from horovod_study.report.terminal import account_lines

    allowed = None if options.max_residual is None else allowed_share(options.max_residual)
    left_out: dict[str, str] = {}
    table, runs = records.recorded_runs(options.places, left_out=left_out)
    verbs.say_left_out(left_out)
    found = account_all(table, [account_run(run) for run in runs])
    judged = None if allowed is None else gate(found, allowed)
    document, lines = {**records.finite(found), "gate": records.finite(judged)}, account_lines(found, judged)
    tables = {"accounting.csv": found.cells, "accounting-runs.csv": found.run_rows()}
    paths = verbs.kept(options.out, {"accounting.json": document, "accounting.txt": lines, **tables})
    return Result(document=document, lines=lines, files=paths, exit_code=int(judged is not None and bool(judged.over)))


def _sync(options: argparse.Namespace) -> Result:
    """The synchronisation: transfer, skew, runtime, and what none of them explains."""
    from horovod_study import records
    from horovod_study.analysis.steps.attribution import attribute, observe_run
    from horovod_study.analysis.steps.rank_steps import MIN_STEPS
    from horovod_study.report.terminal import attribution_table, write_attribution
    from horovod_study.studies.bench import DEFAULT_RUNTIMES, run_experiment

    out = options.out or Path("runs/attribution")
    if options.measure:
        how: dict[str, Any] = {"runtimes": options.runtime or DEFAULT_RUNTIMES, "turns": not options.no_turns}
        how |= given(options, "workers", "rounds") | {"command": shlex.join(["horovod-study", *options.words])}
        directories = run_experiment(run_values(options), out, **how)
    else:
        left_out: dict[str, str] = {}
        directories = [directory for directory, _, _ in records.found_runs(*options.places, left_out=left_out)]
        verbs.say_left_out(left_out)
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
    from horovod_study.report.terminal import timeline_lines

    path, text = _read_timeline(options.places[0])
    events, doubts = parse_events(text, source=str(path))
    found = decompose(events, source=str(path), doubts=doubts)
    document, lines = {"source": str(path), **finite(found)}, timeline_lines(found, source=str(path))
    told = [*lines, "", *(f"Doubt: {doubt}." for doubt in found.doubts)]
    files = {"timeline.json": document, "timeline.csv": found.table, "timeline.txt": told}
    paths = verbs.kept(options.out or path.parent / "timeline", files)
    return Result(document=document, lines=lines, files=paths, doubts=found.doubts)


PARTS: Mapping[str, Callable[[argparse.Namespace], Result]] = {
    "steps": _steps,
    "account": _account,
    "sync": _sync,
    "timeline": _timeline,
    "system": _steps,  # processors, memory, GPUs and power of its hosts alone
}
_FORM = "see predict {} --help"


def _predict_arguments(add: Parser) -> None:
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
    add("--columns", **COLUMNS, more=True)
    baseline = "of laws: throughput that counts as speedup 1 (default: per worker at the smallest worker count)"
    target = "the shortest time to a target that takes X samples, or X samples with N workers"
    size: dict[str, Any] = {"type": float, "metavar": "B"}
    knee = "the knee: least gain of one more worker, of the mean one's (default 0.5)"
    few_need(
        add,
        ("baseline", {"type": float, "metavar": "SAMPLES_PER_S"}, baseline),
        ("rolling", FLAG, "with --holdout: hide one count, two, ... up to K"),
        ("workers-per-node", COUNT, "workers that fill a node"),
        ("batch", {**size, "nargs": "+"}, "samples per worker and step there: one, or one per count"),
        ("global-batch", size, "... or of all workers together"),
        ("bench", FILE, "a measured network: bench.json, or as in --simulate"),
        ("gradient-mb", NUMBER, "1e6 bytes of gradients, where FILE has no model"),
        ("gpu-hours", NUMBER, "the fastest count within so many GPU hours"),
        ("price-per-gpu-hour", NUMBER, "... and what it costs"),
        ("target-samples", {"nargs": "+", "metavar": "X|N:X"}, target),
        ("marginal", {**NUMBER, "default": 0.5}, knee),
    )
    add.epilog = "Laws, points files and what the doubts mean: docs/predict.md"


def predict(options: argparse.Namespace) -> Result:
    """Fit laws to anybody's points; forecast, score, recommend worker counts."""
    from horovod_study.analysis.forecast import prediction, recommendation
    from horovod_study.config.doors import asked
    from horovod_study.records import finite

    points = _points(options)
    size = None if options.gradient_mb is None else options.gradient_mb * 1e6
    bench = verbs.read_benches([options.bench], gradient_bytes=size)[-1][0] if options.bench else None
    known, batch = {**given(options, "workers_per_node"), "bench": bench}, given(options, "batch", "global_batch")
    questions: Any = asked(recommendation.Questions, given(options, *recommendation.Questions.model_fields), "predict")
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
        from horovod_study.analysis.fit.fitting import fit_series
        from horovod_study.report.terminal import laws_text

        series = finite(fit_series(points, baseline_samples_per_s=options.baseline))
        notes = [
            "(intervals are 95 %; * is the simplest law that none clearly beats at counts left out; ? is not "
            "identifiable;",
            " loo: median error of a count left out; step times are relative to one worker; details: --json)",
        ]
        return Result(document={"series": series}, lines=[*(laws_text(*each) for each in series.items()), *notes])
    forecasts = prediction.predict(points, workers=options.workers, **known, **batch) if options.workers else {}
    scores = {}
    if scored:
        hide = None if options.holdout is True else options.holdout
        scores = prediction.score(points, hide=hide, rolling=options.rolling, **known)
        _refuse(options, "no forecast can be scored", scores)
    answers = {}
    if recommended or not (options.json or len(options.batch or ()) > 1):
        (each,) = options.batch or [None]  # the batch at every worker count that may be recommended
        answers = recommendation.recommend(points, questions, **known, **{**batch, "batch": each})
    if recommended:
        _refuse(options, "no worker count can be recommended", answers)
    parts = {
        "forecast": {"series": finite(forecasts)},
        "holdout": prediction.scores_document(scores) if scores else {},
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
    lines += [line for name, one in scores.items() for line in prediction.score_lines(name, one, unit)]
    lines += prediction.summary_lines(scores) if len(scores) > 1 else []
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


def _points(options: argparse.Namespace) -> "pd.DataFrame":
    """The table of the command line; what was guessed about it is said on standard error."""
    from horovod_study.analysis.importers import parse_columns
    from horovod_study.api import read_points

    left_out: dict[str, str] = {}
    source = str(options.points)
    data = verbs.read_data(options.points) if source == "-" else None
    points = read_points(source, columns=parse_columns(options.columns), left_out=left_out, data=data)
    verbs.say_left_out(left_out)
    if points.attrs["read"]:
        print(printable(f"{source} read as: {points.attrs['read']}"), file=sys.stderr)
    return points


_TYPICAL_COUNTS = [2**power for power in range(11)]


def _simulate_arguments(add: Parser) -> None:
    add("--simulate", **FLAG, help=argparse.SUPPRESS)
    add("--workers", **COUNT, nargs="+", default=_TYPICAL_COUNTS, help="(default 1 2 4 8 ... 1024)")
    add("--scaling", default="weak", metavar="weak|strong", help="batch per worker or per step fixed")
    add("--run", **PATHS, help="recorded runs: computing")
    bench = "measured networks: bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed; OUT.txt@4x8 says "
    add("--bench", **FILE, nargs="+", default=[], help=bench + "4 nodes with 8 workers each")
    add("--alpha-us", **NUMBER, help="or directly: microseconds of an empty message, ...")
    add("--gb-per-s", **NUMBER, help="... and GB (1e9 bytes) per second")
    add("--compute-ms", **NUMBER, help="instead of runs: computing of a step, and ...")
    add("--gradient-mb", **NUMBER, help="... 1e6 bytes of gradients (default: of the run)")
    what_if = "as bandwidth=2x cycle=0,batch=8x algorithm=ps"
    add("--what-if", nargs="+", default=[], metavar="KEY=VALUE", help=what_if)
    add("--out", **DIR, help="receives figure, CSV, JSON and table")
    few_need(
        add,
        ("global-batch", COUNT, "of strong scaling (default: of the smallest worker count)"),
        ("beside", PATHS, "runs of one worker made then"),
        ("way", NAME, "which way of the networks (default: of the run, else the quickest)"),
        ("network", {"type": Path, "metavar": "FILE.yaml"}, "or a described one, see experiments/networks"),
        ("workers-per-node", COUNT, "workers that fill a node"),
        ("compute-fixed-ms", NUMBER, "the part of --compute-ms that does not depend on the batch, ..."),
        ("compute-cv", NUMBER, "... its standard deviation / mean (default 0)"),
        ("batch", COUNT, "samples per worker and step (default: of the run)"),
        ("buckets", COUNT, "sent during backward (default 1: after backward)"),
        ("algorithm", NAME, "auto, ring, tree, doubling, halving, hierarchical or ps"),
        ("overhead-us", NUMBER, "of the runtime, for each message"),
        ("cycle-ms", NUMBER, "Horovod's cycle; 0: new gradients end it"),
        ("fusion-mb", NUMBER, "MiB that go into one message at most"),
        ("seed", {**COUNT, "default": 1}, "of the simulated steps (default 1)"),
    )
    verbs.add_figure_arguments(add)


def simulate(options: argparse.Namespace) -> Result:
    """Simulate a data-parallel step on up to 10 million workers, and what-ifs."""
    from horovod_study.analysis.simulate import scaling
    from horovod_study.analysis.simulate.calibration import Given, calibrate, largest_of_each_kind, run_times
    from horovod_study.config.documents import load_yaml
    from horovod_study.config.doors import asked
    from horovod_study.records import recorded_run
    from horovod_study.report.figures import bench as shown

    said = asked(Given, given(options, *Given.model_fields), "simulate")
    runs = [run_times(recorded_run(each)) for each in options.run]
    size = runs[0].gradient_bytes if runs and options.gradient_mb is None else (options.gradient_mb or 0.0) * 1e6
    read = verbs.read_benches(options.bench, gradient_bytes=size or None)
    benches, set_aside = largest_of_each_kind(read)
    network = options.network and scaling.network_from(load_yaml(options.network), source=str(options.network))
    calibration = calibrate(
        said,
        network=network,
        runs=runs,
        beside=[run_times(recorded_run(each)) for each in options.beside],
        benches=benches,
        further=[each for each in read if each not in benches],
    )
    scenarios = scaling.what_if(calibration, options.what_if)
    table = scaling.simulate(scenarios, options.workers, global_batch=options.global_batch, seed=options.seed)
    doubts = [*set_aside, *scaling.all_doubts(scenarios, options.workers, global_batch=options.global_batch)]
    document, told = shown.simulation_content(table, calibration, doubts), shown.simulation_text(table, calibration)
    drawn = shown.simulation_drawing(table, calibration)
    files = {"csv": table, "json": document, "txt": drawn.caption}
    contents = {f"simulation.{form}": each for form, each in files.items()}
    contents["simulation_table.txt"] = [told, *(f"doubt: {each}" for each in doubts)]
    paths = verbs.kept(options.out, contents, {"simulation": drawn.draw}, look=verbs.figure_look(options))
    return Result(document=document, lines=[told, *verbs.written(paths)], files=paths or None, doubts=doubts)


def _model_parallel_arguments(add: Parser) -> None:
    add("--model-parallel", **FLAG, help=argparse.SUPPRESS)
    add("--model", type=Path, metavar="FILE.yaml", help="a model in layers, docs/predict.md")
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
    few_need(
        add,
        ("way", NAME, "which way of --bench (default: the quickest for the gradients)"),
        ("optimizer", {"metavar": "adam|adamw|sgd"}, "whose state is kept (default adam)"),
        ("precision", {"metavar": "fp32|tf32|bf16|fp16"}, "of the activations (default fp32)"),
    )


def model_parallel(options: argparse.Namespace) -> Result:
    """Compute whether data or model parallelism fits a model."""
    from dataclasses import asdict

    from horovod_study.analysis.machine import advice
    from horovod_study.config.documents import load_yaml
    from horovod_study.records import read_run
    from horovod_study.strain.room import worker_memory

    source = str(options.model or "")
    model = advice.layered_model(load_yaml(options.model), source=source) if options.model else None
    bench = verbs.read_benches([options.bench], gradient_bytes=math.nan)[-1] if options.bench else None
    recorded = options.run and (asdict(read_run(options.run)), str(options.run))
    case = advice.case_of(vars(options), model=model, bench=bench, run=recorded, memory_of=worker_memory)
    found = advice.advise(case)
    return Result(document=found, lines=advice.lines(found))


VERBS = (
    Verb("report", report, _report_arguments),
    Verb("report --export", export, _export_arguments),
    Verb("explain", explain, _explain_arguments),
    Verb("predict", predict, _predict_arguments, aliases=("fit",)),
    Verb("predict --simulate", simulate, _simulate_arguments),
    Verb("predict --model-parallel", model_parallel, _model_parallel_arguments),
)
