"""Figures as PGF: drawings that LaTeX sets in the letters of the document, through matplotlib's pgf backend."""

import io
import shutil
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import Formatter

from horovod_study.errors import ConfigError
from horovod_study.report.kit.typeset import latex


def need_latex() -> None:
    """Raise ConfigError where PGF files cannot be made: LaTeX measures the letters in them."""
    if shutil.which("pdflatex") is None:
        raise ConfigError(
            "--pgf: pdflatex is not on PATH, and LaTeX measures the letters of PGF files; install it (Debian: apt "
            "install texlive-latex-recommended texlive-pictures), or leave --pgf away and include the PDF files"
        )


def to_pgf(figure: Figure) -> bytes:
    """Return a settled figure as PGF; call it inside `style()`, after other forms: its texts are LaTeX afterwards."""
    as_latex(figure)
    stream = io.BytesIO()
    figure.savefig(stream, format="pgf")
    return stream.getvalue()


def as_latex(figure: Figure) -> None:
    """Turn every text of a settled figure into LaTeX that prints it and does nothing else, names of runs included."""
    ticks: set[int] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_LatexTicks(axis.get_major_formatter()))
            axis.set_minor_formatter(_LatexTicks(axis.get_minor_formatter()))
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                ticks |= {id(tick.label1), id(tick.label2)}
            ticks.add(id(axis.get_offset_text()))
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in ticks:  # ticks are written again from their formatters
            text.set_text("\n".join(latex(line) for line in text.get_text().split("\n")))


class _LatexTicks(Formatter):
    """The texts of another formatter as LaTeX."""

    def __init__(self, inner: Formatter) -> None:
        self.inner = inner

    def __call__(self, value: float, position: int | None = None) -> str:
        return latex(self.inner(value, position))

    def format_ticks(self, values: Any) -> list[str]:
        return ["\n".join(latex(line) for line in text.split("\n")) for text in self.inner.format_ticks(values)]

    def get_offset(self) -> str:
        return latex(self.inner.get_offset())
