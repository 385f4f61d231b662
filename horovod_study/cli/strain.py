"""`horovod-study strain`: the package's own training: its data, one run, and what was learned."""

import argparse
import math
import shlex
from pathlib import Path

from horovod_study.cli.verbs import COUNT, CURVES, DIR, FILE, FLAG, Result, Verb, progress, whole
from horovod_study.config.options import SET_BY_RANGE_TEST, Parser, add_run_options, add_train_options, run_values
from horovod_study.config.run import available_cores
from horovod_study.errors import DataError, RecordError, refuse


def _generate_arguments(add: Parser) -> None:
    add("--size", default="100000", metavar="N", help="number of curves (default 100000)")
    add("--seed", **COUNT, default=1, help="seed (default 1)")
    add("--out", **DIR, help="directory to make (default: in the cache)")
    add("--processes", type=whole(1), metavar="N", default=available_cores(), help="how many fill the file at once")
    _noise_arguments(add)


def generate(options: argparse.Namespace) -> int:
    """Generate a labelled data set."""
    from horovod_study.measure.clock import now
    from horovod_study.strain import dataset
    from horovod_study.text.progress import say

    size = dataset.parse_size(options.size) or 0
    what = f"--size {options.size}: must be a whole number of curves, for instance 1000000"
    refuse("", (not size, what), error=DataError)
    noise_max_mpa, began = _noise_max_mpa(options), now()
    path = options.out or dataset.cached_path(size, options.seed, noise_max_mpa)
    noise = f"noise up to {noise_max_mpa:g} MPa" if noise_max_mpa else "clean"
    say(f"generating {size:,} curves (seed {options.seed}), {noise}, into {path}")
    if doubt := dataset.page_cache_doubt(size):
        say(f"warning: {doubt}")
    how = {"seed": options.seed, "noise_max_mpa": noise_max_mpa, "threads": options.processes}
    with progress(CURVES) as on_progress:
        dataset.generate(path, size, on_progress=on_progress, **how)
    say(f"generated in {now() - began:.1f} s")
    print(path)
    return 0


def _check_arguments(add: Parser) -> None:
    add("dataset", metavar="PATH|SIZE", help="a data set's directory, or the size of a cached one")
    add("--seed", **COUNT, default=1, help="seed of a cached one (default 1)")
    _noise_arguments(add)


def check(options: argparse.Namespace) -> Result:
    """Read a whole data set, verify it against its side-car and print its statistical floor."""
    from horovod_study.strain import dataset

    path = dataset.path_of(options.dataset, seed=options.seed, noise_max_mpa=_noise_max_mpa(options))
    with progress(CURVES) as on_progress:
        facts = dataset.check(path, on_progress=on_progress)
    return Result(document=facts, lines=dataset.lines(facts))


def _import_arguments(add: Parser) -> None:
    add("path", type=Path, metavar="PATH", help="a CSV, Parquet or .npy file, or the folder of X.npy and Y.npy")
    add("--out", **DIR, required=True, help="the data set's directory to make")
    add("--columns", metavar="strain=NAME,...", help="names of the columns strain, stress, specimen, G0 and a")
    add("--units", metavar="strain=UNIT,...", help="units, where the file does not say: 1, %%, mm/m, Pa, psi, ...")
    add("--targets", type=Path, metavar="FILE", help="a table with specimen, G0 (MPa), a; or a .npy file (N, 2)")
    add("--label", metavar="lsq", help="take G0 and a from a least-squares fit, where no file gives them")
    bounds = "what is 0 and what is 1 for G0 in MPa and for a (default: minimum and maximum of the training set)"
    low_high = ("G0_LOW", "G0_HIGH", "A_LOW", "A_HIGH")
    add("--target-bounds", type=float, nargs=4, metavar=low_high, help=bounds, more=True)
    add("--any-modulus", **FLAG, help="accept an initial slope outside 200 to 15000 MPa", more=True)


def _import_(options: argparse.Namespace) -> Result:
    """Make a data set of your own curves."""
    import numpy as np

    from horovod_study.measure.clock import now
    from horovod_study.strain.curves import NAMES, UNITS, assignments, import_curves, lines, open_curves
    from horovod_study.text.progress import say

    began = now()
    columns, units = assignments("--columns", options.columns, NAMES), assignments("--units", options.units, UNITS)
    curves = open_curves(options.path, columns=columns, units=units, targets=options.targets)
    bounds = None if options.target_bounds is None else np.array(options.target_bounds).reshape(2, 2)
    how = {"label": options.label, "target_bounds": bounds, "any_modulus": options.any_modulus}
    with progress(lambda what, done, of: f"  {what}  {100 * done / max(1, of):4.0f} %  {now() - began:.0f} s") as told:
        provenance = import_curves(curves, options.out, on_progress=told, **how)
    for warning in provenance["warnings"]:
        say(f"warning: {warning}")
    said = [f"{options.out}: imported in {now() - began:.1f} s", *(f"  {text}" for text in lines(provenance))]
    said.append(f"train on it: python -m horovod_study.train --dataset {shlex.quote(str(options.out))}")
    return Result(document={"path": str(options.out), **provenance}, lines=said)


def _noise_arguments(parser: Parser) -> None:
    parser.add_argument("--noise-max", type=float, metavar="MPA", help="largest noise level in MPa (default 1)")
    parser.add_argument("--clean", **FLAG, help="curves without noise, the same as --noise-max 0")


def _noise_max_mpa(options: argparse.Namespace) -> float:
    """Return the largest noise level that --noise-max and --clean mean together."""
    given, clean = options.noise_max, options.clean
    value = 0.0 if clean else 1.0 if given is None else float(given)
    refuse(
        "",
        (clean and given, f"--clean means --noise-max 0, but --noise-max {given} is given; keep one of the two"),
        (not 0 <= value < math.inf, f"--noise-max {value}: must be 0 (clean curves, as --clean) or greater, in MPa"),
        error=DataError,
    )
    return value


def _search_arguments(add: Parser) -> None:
    add("search", type=Path, metavar="SEARCH.yaml", help="the search file; experiments/search.yaml is one")
    add("--trials", **COUNT, help="trials wanted in all (default: as the file says)")
    add("--jobs", **COUNT, default=1, help="trials at a time in this command (default 1)")
    add("--runs", **DIR, default=Path("runs"), help="where runs are kept (default runs)")


def search(options: argparse.Namespace) -> Result:
    """Search for good hyper-parameters: trials proposed by Optuna, several at a time if wanted, resumable."""
    from horovod_study.report.figures.convergence import write_search
    from horovod_study.report.kit.files import figure_lines
    from horovod_study.studies.search import load_search, result_lines, run_search

    command = shlex.join(["horovod-study", *options.words])
    wanted = load_search(options.search, trials=options.trials)
    result = run_search(wanted, options.runs, command=command, jobs=options.jobs)
    figure = write_search(result.study, options.runs / wanted.name)
    return Result(
        document={**result.document, "figure": [str(path) for path in figure]},
        lines=[*result_lines(result.document), *(f"  {line}" for line in figure_lines(figure))],
        exit_code=result.exit_code,
    )


def _lr_range_arguments(add: Parser) -> None:
    add("--config", type=Path, metavar="FILE.yaml", help="read options of the run from a YAML file first")
    add("--low", type=float, default=1e-6, metavar="LR", help="first learning rate (default 1e-6)")
    add("--high", type=float, default=1.0, metavar="LR", help="last learning rate (default 1)")
    add("--out", **DIR, required=True, help="receives the run, the curve and the figure")
    add("--workers", **COUNT, default=1, help="workers that train (default 1)")
    runtime = "how workers communicate: ddp/gloo, ... (default: serial; horovod/mpi for several)"
    add("--runtime", metavar="NAME", help=runtime)
    add_run_options(add, hidden=SET_BY_RANGE_TEST)


def lr_range(options: argparse.Namespace) -> Result:
    """Find a learning rate: train once while it rises, and look where the loss falls fastest and where it diverges."""
    from horovod_study.analysis.learning.convergence import find_rate
    from horovod_study.records import finite
    from horovod_study.report.figures.convergence import write_lr_range
    from horovod_study.studies.bench import range_config, run_range

    config = range_config(options.config, run_values(options), low=options.low, high=options.high)
    how = {"runtime": options.runtime, "command": shlex.join(["horovod-study", *options.words])}
    rates, losses, record = run_range(config, options.out, workers=options.workers, **how)
    found = find_rate(rates, losses)
    paths = write_lr_range(found, options.out, batch=record.effective["global_batch"])
    return Result(
        document={**finite(found), "run_dir": str(options.out / record.key)},
        lines=[*found.lines(), f"figure: {options.out / 'lr_range.png'}"],
        files=paths,
    )


def _learning_curve_arguments(parser: Parser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR", help="run directories, or folders of them")
    parser.add_argument("--out", **FILE, required=True, help="a .png, .pdf or .svg file to write")


def _learning_curve(options: argparse.Namespace) -> Result:
    """Draw the learning curves of one or several runs, finished or not."""
    from horovod_study import records
    from horovod_study.analysis.learning.convergence import convergence
    from horovod_study.analysis.series.points import scaling_points
    from horovod_study.report.figures.convergence import learning_curves

    runs, evaluations = records.run_table(*options.runs), records.epoch_table(*options.runs)
    found = convergence(runs, evaluations, finished=False)
    drawing = learning_curves(scaling_points(runs), found.curves)
    if drawing is None:
        raise RecordError("these runs have no evaluation yet; a run is evaluated after its first epoch")
    drawing.save(options.out)
    return Result(document={}, lines=[f"{options.out}"], files=[options.out], doubts=found.doubts)


_DATA = (
    Verb("generate", generate, _generate_arguments, json=False),
    Verb("check", check, _check_arguments),
    Verb("import", _import_, _import_arguments),
)
_BELOW = (
    Verb("data", summary="Generate, import or check a data set", verbs=_DATA),
    Verb("train", add_arguments=add_train_options, summary="Train one run: python -m horovod_study.train"),
    Verb("search", search, _search_arguments),
    Verb("lr-range", lr_range, _lr_range_arguments),
    Verb("learning-curve", _learning_curve, _learning_curve_arguments, json=False),
)
VERBS = (Verb("strain", summary="The package's own training: data, runs, search", verbs=_BELOW),)
