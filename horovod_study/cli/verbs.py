"""What verbs are made from, and what several of them share."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod_study.config.documents import read_bytes
from horovod_study.config.options import Parser
from horovod_study.errors import DataError

PROGRAM = ("verb", "parser", "words", "command", "json", "export")
"""What the program itself keeps among the options of a verb, or uses."""


def whole(low: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number of `low` or more."""

    def parse(text: str) -> int:
        number = int(text) if text.removeprefix("-").isdecimal() else low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {low} or more")
        return number

    return parse


def option_name(name: str) -> str:
    """Return how an option is typed: --fail-on of fail_on."""
    return f"--{name.replace('_', '-')}"


FLAG: Mapping[str, Any] = {"action": "store_true"}
YES: Mapping[str, Any] = {"action": argparse.BooleanOptionalAction, "default": True}
SEVERAL: Mapping[str, Any] = {"action": "append", "default": []}
COUNT: Mapping[str, Any] = {"type": int, "metavar": "N"}
NUMBER: Mapping[str, Any] = {"type": float, "metavar": "X"}
DIR: Mapping[str, Any] = {"type": Path, "metavar": "DIR"}
FILE: Mapping[str, Any] = {"type": Path, "metavar": "FILE"}
PATHS: Mapping[str, Any] = {"type": Path, "nargs": "+", "default": [], "metavar": "RUN_DIR"}
NAME: Mapping[str, Any] = {"metavar": "NAME"}
COLUMNS: dict[str, Any] = {"nargs": "+", "metavar": "WHAT=NAME", "default": []}
COLUMNS |= {"help": "what columns of a table are, where names do not say it: workers=N"}
"""Kinds of options, as `add_argument` takes them: a switch, one that is on, one that may be given again, values."""


def few_need(add: Parser, *options: tuple[str, Mapping[str, Any], str]) -> None:
    """Declare options that --help-all alone shows: the name, kind and help of each."""
    for name, kind, text in options:
        add(f"--{name}", **kind, help=text, more=True)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a verb has to say: lines for a terminal, or with --json the document in one line, and the exit code."""

    document: Mapping[str, Any]
    lines: Iterable[str]
    files: Sequence[Path] | None = None  # what was written, which the document names last
    doubts: Iterable[str] = ()
    exit_code: int = 0

    def show(self, *, as_json: bool, as_files: bool = False) -> int:
        """Print lines, document or the paths of files, doubts on standard error; return the exit code."""
        from horovod_study.records import finite

        if as_json:
            files = {} if self.files is None else {"files": [str(path) for path in self.files]}
            print(json.dumps(finite({**self.document, **files}), allow_nan=False))
        else:
            print(*((self.files or ()) if as_files else self.lines), sep="\n")
        for doubt in self.doubts:
            print(f"doubt: {doubt}", file=sys.stderr)
        return self.exit_code


@dataclass(frozen=True)
class Verb:
    """One verb of the command line: its options, and the function that does it."""

    name: str
    run: Callable[[argparse.Namespace], int | Result] | None = None
    """Returns what there is to say, or the exit code where all is said."""
    add_arguments: Callable[[Parser], None] = lambda parser: None
    summary: str | None = None  # without one, the first line of `run`'s docstring is shown
    verbs: tuple["Verb", ...] = ()
    aliases: tuple[str, ...] = ()
    json: bool = True  # whether it takes --json

    def add_to(self, verbs: Any) -> None:
        """Declare this verb and those below it; a form of another verb, `verb --flag`, is not in the list of verbs."""
        text = self.summary or (self.run and self.run.__doc__) or self.name  # no docstrings under python -OO
        summary = text.splitlines()[0].rstrip(".")
        listed = {} if " " in self.name else {"help": summary[:1].lower() + summary[1:], "aliases": self.aliases}
        parser: Parser = verbs.add_parser(self.name, description=summary + ".", **listed)
        parser.set_defaults(verb=self.run, parser=parser)
        self.add_arguments(parser)
        if self.json and self.run:
            parser.add_argument("--json", **FLAG, help="print one line of JSON")
        if self.verbs:
            below = parser.add_subparsers(title="verbs", metavar="VERB", required=self.run is None)
            for each in self.verbs:
                each.add_to(below)


def add_figure_arguments(parser: Parser) -> None:
    """Declare how wide figures are on paper, and their letters."""
    width, font = {"default": "text", "metavar": "text|column|MM"}, {"default": "sans", "metavar": "sans|serif"}
    wide = "width of the figures on paper: text is 150 mm, column 71 mm (default text)"
    few_need(parser, ("width", width, wide), ("font", font, "letters of the figures (default sans)"))


def figure_look(options: argparse.Namespace) -> Any:
    """Return the look of figures that --width and --font ask for."""
    from horovod_study.report.kit.style import FigureFormat

    return FigureFormat.of(options.width, options.font)


def read_data(path: Path, wanted: str = "a CSV file with workers,samples_per_s") -> bytes:
    """Return the content of a file that should be `wanted`; `-` is standard input."""
    if str(path) != "-":
        return read_bytes(path, error=DataError, again=f"name {wanted}")
    try:
        with open(0, "rb", closefd=False) as stream:
            return stream.read()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name {wanted}") from None


def read_benches(places: Sequence[Path], *, gradient_bytes: float | None) -> list[tuple[dict[str, Any], str]]:
    """Return what network files hold, with their names; of other benchmarks' outputs it is said what was read."""
    from horovod_study.analysis.importers import BENCH_FILE, benches_of, placed_name, text_of
    from horovod_study.text.words import printable

    found = []
    for place in places:
        path = Path(placed_name(str(place))[0])
        text = text_of(read_data(path, BENCH_FILE))
        for content in benches_of(text, source=str(place), gradient_bytes=gradient_bytes):
            found.append((content, str(path)))
            if "read" in content:
                print(printable(f"{path} read as: {content['read']}"), file=sys.stderr)
    return found


def runs_folder(place: Path) -> Path:
    """Return the folder of runs that a place names: itself, or for a study file that of its study below runs_of."""
    if place.suffix not in (".yaml", ".yml"):
        return place
    from horovod_study.studies.study_file import load_study

    name = load_study(place).name
    return runs_of(place, name) / name


def runs_of(file: Path, name: str) -> Path:
    """Return `runs` here, or that beside the study file where there alone the study has runs."""
    here, beside = Path("runs"), file.parent / "runs"
    return beside if (beside / name).is_dir() and not (here / name).is_dir() else here


def kept(out: Path | None, *contents: Any, **how: Any) -> list[Path]:
    """Write files where a verb has an --out, as `write_result` takes them; return the paths."""
    from horovod_study.report.kit.files import write_result

    return write_result(out, *contents, **how) if out else []


def written(paths: Sequence[Path]) -> list[str]:
    """Return for a terminal what was written."""
    return ["", f"written: {', '.join(map(str, paths))}"] if paths else []


def say_left_out(left_out: Mapping[str, str]) -> None:
    """Say on standard error what is among runs and was not read: {name: why}."""
    for name, why in left_out.items():
        print(f"doubt: left out: {name}: {why}", file=sys.stderr)


CURVES = "  {:,} of {:,} curves".format  # what `progress` shows of curves done, curves in all


@contextmanager
def progress(text_of: Callable[..., str]) -> Iterator[Callable[..., None]]:
    """Give a function that shows now and then what `text_of` makes of its arguments, in one line."""
    from horovod_study.text.progress import Line

    with closing(Line()) as line:
        yield lambda *told: line.now_and_then(text_of(*told))


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of these options by name, for a function that takes them under the same names."""
    return {name: getattr(options, name) for name in names}


def until_share(text: str) -> float:
    """Return the half width of intervals that `--until` asks for, relative; ConfigError: that is none."""
    from horovod_study.config.doors import accept
    from horovod_study.config.study_file import Share

    share: float = accept(Share, text, "run", name="--until")
    return share
