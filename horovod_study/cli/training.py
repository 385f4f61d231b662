"""`horovod-study train` and `identify`: train one run, and use what it learned."""

import argparse
import json
from pathlib import Path

from horovod_study.cli.verbs import Verb
from horovod_study.options import Parser, add_read_options, add_train_options, read_values


def identify_arguments(parser: Parser) -> None:
    parser.add_argument("curves", type=Path, metavar="CURVES", help="a curve file or folder, as for data import")
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="RUN_DIR|CHECKPOINT",
        help="a training run, or one of its checkpoints",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row per specimen with every number")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png|pdf|svg", help="draw measured points, both laws and the residuals"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    parser.add_argument(
        "--disagree",
        type=float,
        default=3.0,
        metavar="N",
        help="standard errors from which on network and fit disagree (default 3)",
    )
    add_read_options(parser.add_argument_group("reading the curves"))


def identify(options: argparse.Namespace) -> int:
    """Find G0 and a of measured curves with a trained network and by a fit of the law."""
    from horovod_study.progress import Line, say
    from horovod_study.report.figures import identified
    from horovod_study.workload import identify as identifying
    from horovod_study.workload.curves import ReadOptions, read_curves

    identified.check_outputs(options.curves, csv_path=options.csv, plot=options.plot)
    reading = ReadOptions(**read_values(options))
    model, target_bounds = identifying.open_model(options.model)
    line = Line()

    def on_progress(what: str, done: int, total: int) -> None:
        if line.due():
            line.show(f"  {what}  {done / total if total else 1.0:4.0%}")

    try:
        curves = read_curves(options.curves, reading, on_progress=on_progress)
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


VERBS = (
    Verb("train", None, add_train_options, summary="Train one run; the same as python -m horovod_study.train"),
    Verb("identify", identify, identify_arguments),
)
