"""`horovod-study predict`, also `fit`: what measured points say of more workers."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.cli.verbs import (
    COLUMNS,
    COUNT,
    FILE,
    FLAG,
    NUMBER,
    Result,
    Verb,
    read_benches,
    read_data,
    say_left_out,
)
from horovod_study.config.options import Parser
from horovod_study.errors import AnalysisError
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, printable

if TYPE_CHECKING:
    import pandas as pd

_FORM = "see predict {} --help"


def _predict_arguments(parser: Parser) -> None:
    add = parser.add_argument
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
    add("--json", **FLAG, help="print one line of JSON")
    add("--columns", **COLUMNS, more=True)
    baseline = "of laws: throughput that counts as speedup 1 (default: per worker at the smallest worker count)"
    add("--baseline", type=float, metavar="SAMPLES_PER_S", help=baseline, more=True)
    add("--rolling", **FLAG, help="with --holdout: hide one count, two, ... up to K", more=True)
    add("--workers-per-node", **COUNT, help="workers that fill a node", more=True)
    batch = "samples per worker and step there: one, or one per count"
    add("--batch", type=float, nargs="+", metavar="B", help=batch, more=True)
    add("--global-batch", type=float, metavar="B", help="... or of all workers together", more=True)
    add("--bench", **FILE, help="a measured network: bench.json, or as in --simulate", more=True)
    add("--gradient-mb", **NUMBER, help="1e6 bytes of gradients, where FILE has no model", more=True)
    add("--gpu-hours", **NUMBER, help="the fastest count within so many GPU hours", more=True)
    add("--price-per-gpu-hour", **NUMBER, help="... and what it costs", more=True)
    target = "the shortest time to a target that takes X samples, or X samples with N workers"
    add("--target-samples", nargs="+", metavar="X|N:X", help=target, more=True)
    marginal = "the knee: least gain of one more worker, of the mean one's (default 0.5)"
    add("--marginal", **NUMBER, default=0.5, help=marginal, more=True)
    parser.epilog = "Laws, points files and what the doubts mean: docs/fit.md"


def predict(options: argparse.Namespace) -> Result:
    """Fit laws to anybody's points; forecast, score, recommend worker counts."""
    from horovod_study.analysis.forecast import holdout, recommendation
    from horovod_study.analysis.forecast.prediction import predict as predict_points
    from horovod_study.records import finite

    points = _points(options)
    size = None if options.gradient_mb is None else options.gradient_mb * 1e6
    bench = read_benches([options.bench], gradient_bytes=size)[-1][0] if options.bench else None
    known: dict[str, Any] = {"workers_per_node": options.workers_per_node, "bench": bench}
    batch = {"batch": options.batch, "global_batch": options.global_batch}
    questions = _questions(options)
    recommended = options.recommend or questions != recommendation.Questions()
    if options.rolling and options.holdout is None:
        raise AnalysisError("--rolling says how to hide worker counts: give --holdout, too, or leave it out")
    laws = not (options.workers or options.holdout is not None or recommended)
    if laws and any(each is not None for each in (*known.values(), *batch.values())):
        raise AnalysisError("nothing is asked for: give --workers to forecast, --holdout or --recommend")
    if laws:
        return _laws(points, options.baseline)
    if options.baseline is not None:
        raise AnalysisError("--baseline: is of the laws; leave it out, or --workers, --holdout and --recommend")
    forecasts = predict_points(points, workers=options.workers, **known, **batch) if options.workers else {}
    scores = {}
    if options.holdout is not None:
        hide = None if options.holdout is True else options.holdout
        scores = holdout.score(points, hide=hide, rolling=options.rolling, **known)
        _refuse(options, "no forecast can be scored", {name: one.why_not for name, one in scores.items()})
    answers = {}
    if recommended or not (options.json or len(options.batch or ()) > 1):
        each, *more = options.batch or [None]  # the batch at every worker count that may be recommended
        if more:
            raise AnalysisError(
                "--recommend looks at every worker count: give --batch with one value, or --global-batch"
            )
        answers = recommendation.recommend(points, questions, **known, **{**batch, "batch": each})
    if recommended:
        _refuse(options, "no worker count can be recommended", {name: one.why_not for name, one in answers.items()})
    parts = {
        "forecast": {"series": finite(forecasts)},
        "holdout": holdout.document(scores) if scores else {},
        "recommendation": {"series": finite(answers)},
    }
    # One thing asked for is the document; of several, the first is, and the others are keys of it.
    first, *others = [name for name, known in zip(parts, (forecasts, scores, answers), strict=True) if known]
    unit = points.attrs.get("unit", "samples/s")
    lines = [line for name, each in forecasts.items() for line in _forecast_lines(name, each, unit)]
    lines += [line for scored in scores.values() for line in holdout.lines(scored, unit)]
    lines += holdout.summary_lines(scores) if len(scores) > 1 else []
    only = None if recommended else ("knee",)
    lines += [line for answer in answers.values() for line in recommendation.lines(answer, only=only, unit=unit)]
    return Result(document={**parts[first], **{name: parts[name] for name in others}}, lines=lines)


def _forecast_lines(name: str, forecasts: Sequence[Any], unit: str) -> list[str]:
    rows = [
        (f"{one.workers:,} workers", f"{one.samples_per_s:,.6g}", f"[{one.low:,.6g}, {one.high:,.6g}]", one.law)
        for one in forecasts
    ]
    return [
        f"{cut(printable(name), 60) or 'all points'}: {unit} with 95 % interval",
        *to_lines(table_of(("",) * 4, rows, texts=(2, 3)), indent=2),
        *(f"  doubt: {doubt}" for doubt in dict.fromkeys(doubt for one in forecasts for doubt in one.doubts)),
    ]


def _refuse(options: argparse.Namespace, what: str, why_not: Mapping[str, str]) -> None:
    """Raise AnalysisError where every series has a reason against `what` was asked for; the first one is told."""
    if all(why_not.values()):
        name, first = next(iter(why_not.items()))
        where = f"{options.points}, series {name!r}" if name else str(options.points)
        raise AnalysisError(f"{where}: {what}: {first}")


def _questions(options: argparse.Namespace) -> Any:
    """The questions about worker counts that were asked on the command line."""
    from horovod_study.analysis.forecast.recommendation import Questions
    from horovod_study.config.doors import asked

    return asked(Questions, {name: getattr(options, name) for name in Questions.model_fields}, "predict")


def _laws(points: "pd.DataFrame", baseline: float | None) -> Result:
    """The scaling laws of each series."""
    from horovod_study.analysis.fit.fitting import fit_series
    from horovod_study.records import finite
    from horovod_study.report.laws import laws_text

    series = finite(fit_series(points, baseline_samples_per_s=baseline))
    notes = (
        "(intervals are 95 %; * is the simplest law that none clearly beats at counts left out; loo: median",
        " error of a worker count that is left out of the fit; step times are relative to one worker; details: --json)",
    )
    return Result(document={"series": series}, lines=[*(laws_text(name, one) for name, one in series.items()), *notes])


def _points(options: argparse.Namespace) -> "pd.DataFrame":
    """The table of the command line; what was guessed about it is said on standard error."""
    from horovod_study.analysis.importers import parse_columns
    from horovod_study.api import read_points

    left_out: dict[str, str] = {}
    source = str(options.points)
    data = read_data(options.points) if source == "-" else None
    points = read_points(source, columns=parse_columns(options.columns), left_out=left_out, data=data)
    say_left_out(left_out)
    if points.attrs["read"]:
        print(printable(f"{source} read as: {points.attrs['read']}"), file=sys.stderr)
    return points


VERBS = (Verb("predict", predict, _predict_arguments, aliases=("fit",)),)
