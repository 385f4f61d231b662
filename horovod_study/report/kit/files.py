"""Figures and texts of one result, written into one folder."""

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Text

from horovod_study.errors import refuse
from horovod_study.files import csv_of, result_folder, write_file, writing
from horovod_study.report.kit.style import FAMILIES, TEXT, FigureFormat, settled, style, to_bytes, without_glyph
from horovod_study.report.kit.typeset import latex

FORMATS = ("pdf", "svg", "png")


def write_result(
    directory: Path,
    contents: Mapping[str, Any],
    figures: Mapping[str, Callable[[float], Figure]] | None = None,
    *,
    choose: str = "--out",
    look: FigureFormat = TEXT,
    pgf: bool = False,
) -> list[Path]:
    """Write `figures` (name -> what draws it at a width), then `contents` (by file name); return the paths.

    Figures become PDF, SVG, PNG, with `pgf` also PGF for LaTeX, in the width and letters of `look`. A content is a
    text, lines, a table (CSV) or a document (JSON). Raises RecordError, which says to choose a writable `choose`,
    and ConfigError where there is no LaTeX.
    """
    latex_needed = (
        "--pgf: pdflatex is not on PATH, and LaTeX measures the letters of PGF files; install it (Debian: apt install "
        "texlive-latex-recommended texlive-pictures), or leave --pgf away and include the PDF files"
    )
    refuse("", (pgf and shutil.which("pdflatex") is None, latex_needed))
    paths, contents = list[Path](), dict(contents)
    with writing(directory, f"choose a writable {choose}"):
        result_folder(directory)
        with style(look):
            for name, draw in (figures or {}).items():
                figure = settled(draw(look.width_in))
                if boxes := without_glyph(figure):
                    told = f"Boxes stand for letters without a glyph in {' and '.join(FAMILIES[look.font])}: {boxes}"
                    contents[f"{name}.txt"] = f"{contents.get(f'{name}.txt', '')} {told}".lstrip()
                forms = {form: partial(to_bytes, figure, form) for form in FORMATS}
                for form, content in (forms | ({"pgf": partial(to_pgf, figure)} if pgf else {})).items():
                    paths.append(directory / f"{name}.{form}")
                    write_file(paths[-1], content())
        for name, each in contents.items():
            paths.append(directory / name)
            write_file(paths[-1], _as_text(each))
    return paths


def _as_text(content: Any) -> str:
    if isinstance(content, pd.DataFrame):
        return csv_of(content)
    if isinstance(content, Mapping):
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    text = content if isinstance(content, str) else "\n".join(content)
    return text if text.endswith("\n") else f"{text}\n"


def figure_lines(paths: Iterable[Path]) -> list[str]:
    """Return for a terminal where the figures among some written files are."""
    return [f"figure: {path}" for path in paths if path.suffix == ".png"]


def to_pgf(figure: Figure) -> bytes:
    """Return a settled figure as PGF, which LaTeX sets in the letters of the document, through matplotlib's backend.

    Call it inside `style()`, after other forms: its texts are LaTeX afterwards.
    """
    as_latex(figure)
    stream = io.BytesIO()
    figure.savefig(stream, format="pgf")
    return stream.getvalue()


def as_latex(figure: Figure) -> None:
    """Turn every text of a settled figure into LaTeX that prints it and does nothing else, names of runs included."""

    def escaped(text: str) -> str:
        return "\n".join(latex(line) for line in text.split("\n"))

    for text in figure.findobj(Text):
        if isinstance(text, Text):  # those of ticks are written again below
            text.set_text(escaped(text.get_text()))
    for axis, minor in product((axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)), (False, True)):
        low, high = sorted(axis.get_view_interval())
        places = [place for place in axis.get_ticklocs(minor=minor) if low <= place <= high]
        labels = (axis.get_minor_formatter() if minor else axis.get_major_formatter()).format_ticks(places)
        axis.set_ticks(places, labels=[*map(escaped, labels)], minor=minor)
