"""`horovod-study fit` and `predict`: what measured points say of more workers."""

import argparse
import sys
import textwrap
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
from horovod_study.errors import AnalysisError
from horovod_study.options import Parser
from horovod_study.text.tables import table_of, to_lines
from horovod_study.text.words import cut, printable

if TYPE_CHECKING:
    import pandas as pd


def _fit_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--baseline",
        type=float,
        metavar="SAMPLES_PER_S",
        help="throughput that counts as speedup 1 (default: per worker at the smallest worker count)",
    )
    parser.epilog = "Laws, points files and what the doubts mean: docs/fit.md"
    _points_arguments(parser)


def fit(options: argparse.Namespace) -> Result:
    """Fit scaling laws to anybody's points."""
    from horovod_study.analysis.fit.fitting import fit_series

    points = _points(options)
    fits = fit_series(points, baseline_samples_per_s=options.baseline)
    series = {name: one.to_dict() for name, one in fits.items()}
    notes = (
        "(intervals are 95 %; * is the simplest law that none clearly beats at counts left out; loo: median",
        " error of a worker count that is left out of the fit; step times are relative to one worker; details: --json)",
    )
    lines = [*(_fit_text(name, one) for name, one in series.items()), *notes]
    return Result(document={"series": series}, lines=lines)


def _fit_text(name: str, one: dict[str, Any]) -> str:
    """One series for the eye: the laws that fit, then the names of those that do not, then the doubts."""
    lines = [f"{cut(printable(name), 60) or 'all points'}: speedup relative to {one['baseline']}"]
    if one["assumed"]:
        lines.append(f"  assumed: {one['assumed']}")
    unknown, refused, told = [], [], set()
    for law, fitted in one["laws"].items():
        if not fitted["applies"]:
            refused.append(law)
            if law != one["selected"]:
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
    quality += [] if fitted["loo_error"] is None else [f"loo {100 * fitted['loo_error']:.1f} %"]
    for what in ("knee", "peak") if selected else ():
        if (fitted[what] or 0) > 1:
            low, high = fitted[f"{what}_ci95"] or (None, None)
            interval = "" if low is None else f" [{low:.3g}, {'no end' if high is None else format(high, '.3g')}]"
            quality.append(f"{what} at {fitted[what]:.4g}{interval} workers")
    quality += [] if fitted["limit"] is None or not selected else [f"never above {fitted['limit']:.4g}"]
    return [f"{mark} {law:<10} {'  '.join(parts)}; {', '.join(quality)}"]


def _predict_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add("--workers", **COUNT, nargs="+", help="worker counts to forecast")
    add("--workers-per-node", **COUNT, help="workers that fill a node")
    add("--batch", type=float, nargs="+", metavar="B", help="samples per worker and step there: one, or one per count")
    add("--global-batch", type=float, metavar="B", help="... or of all workers together")
    add("--bench", **FILE, help="a measured network: bench.json, or as in simulate")
    add("--gradient-mb", **NUMBER, help="1e6 bytes of gradients, where FILE has no model")
    add(
        "--holdout",
        type=int,
        nargs="?",
        const=True,
        metavar="K",
        help="score the forecasts: hide the K largest worker counts (default: the upper half) and forecast them",
    )
    add("--rolling", **FLAG, help="with --holdout: hide one count, two, ... up to K")
    add("--recommend", **FLAG, help="how many workers: knee, peak, cheapest")
    add("--samples", **NUMBER, help="samples of the whole training, for ...")
    add("--deadline", metavar="TIME", help="... the fewest workers that finish in time (90m, 1h30m)")
    add("--gpu-hours", **NUMBER, help="... the fastest count within so many GPU hours")
    add("--price-per-gpu-hour", **NUMBER, help="... and what it costs")
    add(
        "--target-samples",
        nargs="+",
        metavar="X|N:X",
        help="the shortest time to a target that takes X samples, or X samples with N workers",
    )
    add(
        "--marginal",
        **NUMBER,
        default=0.5,
        help="the knee: least gain of one more worker, of the mean one's (default 0.5)",
    )
    _points_arguments(parser)


def predict(options: argparse.Namespace) -> Result:
    """Forecast the throughput of larger worker counts from anybody's points, score that, recommend worker counts."""
    from horovod_study.analysis.forecast import holdout, recommendation
    from horovod_study.analysis.forecast.prediction import predict as predict_points

    points = _points(options)
    size = None if options.gradient_mb is None else options.gradient_mb * 1e6
    bench = read_benches([options.bench], gradient_bytes=size)[-1][0] if options.bench else None
    known: dict[str, Any] = {"workers_per_node": options.workers_per_node, "bench": bench}
    questions = _questions(options)
    recommended = options.recommend or questions != recommendation.Questions()
    if not (options.workers or options.holdout is not None or recommended):
        raise AnalysisError("nothing is asked for: give --workers to forecast, --holdout or --recommend")
    if options.rolling and options.holdout is None:
        raise AnalysisError("--rolling says how to hide worker counts: give --holdout, too, or leave it out")
    batch = {"batch": options.batch, "global_batch": options.global_batch}
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
        "forecast": {"series": {name: [one.to_dict() for one in each] for name, each in forecasts.items()}},
        "holdout": holdout.to_dict(scores) if scores else {},
        "recommendation": {"series": {name: one.to_dict() for name, one in answers.items()}},
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
    from horovod_study.analysis.forecast.recommendation import Questions, samples_of, seconds_of

    return Questions(
        marginal=options.marginal,
        samples=options.samples,
        deadline_s=None if options.deadline is None else seconds_of(options.deadline),
        gpu_hours=options.gpu_hours,
        price_per_gpu_hour=options.price_per_gpu_hour,
        samples_to_target=None if options.target_samples is None else samples_of(options.target_samples),
    )


def _points_arguments(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "points",
        type=Path,
        metavar="POINTS.csv",
        help="a table with columns workers, samples_per_s, or names that say as much; - is stdin; or a log of a "
        "training (LOG@8: of 8 workers), a folder of them, or of runs",
    )
    add("--columns", **COLUMNS)
    add("--json", **FLAG, help="print one line of JSON")


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


VERBS = (Verb("fit", fit, _fit_arguments), Verb("predict", predict, _predict_arguments))
