"""`horovod-study data`: generate, check and import data sets."""

import argparse
import json
import math
import shlex
from pathlib import Path

from horovod_study.cli.verbs import Verb, curve_progress
from horovod_study.config import available_cores
from horovod_study.errors import DataError
from horovod_study.options import Parser, add_read_options, read_values
from horovod_study.text.tables import table_of, to_lines


def generate_arguments(parser: Parser) -> None:
    parser.add_argument("--size", default="100000", metavar="N", help="number of curves (default 100000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory to make (default: in the cache)")
    parser.add_argument(
        "--processes", type=int, default=available_cores(), metavar="N", help="processes that fill the file"
    )
    _noise_arguments(parser)


def generate(options: argparse.Namespace) -> int:
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
    with curve_progress() as on_progress:
        dataset.generate(
            path,
            size,
            seed=options.seed,
            noise_max_mpa=noise_max_mpa,
            processes=options.processes,
            on_progress=on_progress,
        )
    say(f"generated in {now() - began:.1f} s")
    print(path)
    return 0


def check_arguments(parser: Parser) -> None:
    parser.add_argument("dataset", metavar="PATH|SIZE", help="a data set's directory, or the size of a cached one")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of a cached one (default 1)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    _noise_arguments(parser)


def check(options: argparse.Namespace) -> int:
    """Read a whole data set, verify it against its side-car and print its statistical floor."""
    from horovod_study.text.numbers import amount
    from horovod_study.workload import dataset

    path = dataset.path_of(options.dataset, seed=options.seed, noise_max_mpa=_noise_max_mpa(options))
    with curve_progress() as on_progress:
        facts = dataset.check(path, on_progress=on_progress)
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
    print(f"{facts['path']}: good", *to_lines(table_of(("", ""), rows, texts=(0, 1)), indent=2), sep="\n")
    return 0


def import_arguments(parser: Parser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a file with curves, or a folder of files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the data set's directory to make")
    parser.add_argument(
        "--label", metavar="lsq", help="take G0 and a from a least-squares fit, where no file gives them"
    )
    parser.add_argument(
        "--target-bounds",
        type=float,
        nargs=4,
        metavar=("G0_LOW", "G0_HIGH", "A_LOW", "A_HIGH"),
        help="what is 0 and what is 1 for G0 in MPa and for a (default: minimum and maximum of the training set)",
    )
    add_read_options(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def import_(options: argparse.Namespace) -> int:
    """Make a data set of your own curves."""
    import numpy as np

    from horovod_study.measure.clock import now
    from horovod_study.progress import Line, say
    from horovod_study.workload.curves import ReadOptions
    from horovod_study.workload.curves.importing import import_curves, lines

    line, began = Line(), now()

    def on_progress(what: str, done: int, total: int) -> None:
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
            on_progress=on_progress,
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


def _noise_arguments(parser: Parser) -> None:
    parser.add_argument("--noise-max", type=float, metavar="MPA", help="largest noise level in MPa (default 1)")
    parser.add_argument("--clean", action="store_true", help="curves without noise, the same as --noise-max 0")


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


VERBS = (
    Verb(
        "data",
        None,
        lambda parser: None,
        summary="Generate, import or check a data set",
        verbs=(
            Verb("generate", generate, generate_arguments),
            Verb("check", check, check_arguments),
            Verb("import", import_, import_arguments),
        ),
    ),
)
