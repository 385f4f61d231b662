"""Figures and texts of one result, written into one folder; a table as LaTeX for print, CSV to go on with, HTML.

LaTeX is plain ASCII and needs PACKAGES and nothing else, under any engine. Every text is escaped; no text of a run can
become a command or a formula of a spreadsheet.
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from horovod_study.files import csv_of, result_folder, write_file, writing
from horovod_study.report.kit.style import FAMILIES, TEXT, FigureFormat, settled, style, to_bytes, without_glyph
from horovod_study.text.numbers import MINUS, THIN
from horovod_study.text.tables import Cell, Column, Table, printed
from horovod_study.text.words import one_line, plural

FORMATS = ("pdf", "svg", "png")


def write_result(
    directory: Path,
    contents: Mapping[str, Any],
    figures: Mapping[str, Callable[[float], Figure]] | None = None,
    *,
    choose: str = "--out",
    look: FigureFormat = TEXT,
) -> list[Path]:
    """Write `figures` (name -> what draws it at a width), then `contents` (by file name); return the paths.

    Figures become PDF, SVG, PNG in the width and letters of `look`. A content is a text, lines, a table (CSV) or a
    document (JSON). Raises RecordError, which says to choose a writable `choose`.
    """
    paths, contents = list[Path](), dict(contents)
    with writing(directory, f"choose a writable {choose}"):
        result_folder(directory)
        with style(look):
            for name, draw in (figures or {}).items():
                figure = settled(draw(look.width_in))
                if boxes := without_glyph(figure):
                    told = f"Boxes stand for letters without a glyph in {' and '.join(FAMILIES[look.font])}: {boxes}"
                    contents[f"{name}.txt"] = f"{contents.get(f'{name}.txt', '')} {told}".lstrip()
                paths += [write_file(directory / f"{name}.{form}", to_bytes(figure, form)) for form in FORMATS]
        for name, each in contents.items():
            text = csv_of(each) if isinstance(each, pd.DataFrame) else each
            if isinstance(each, Mapping):
                text = json.dumps(each, indent=1, allow_nan=False)
            text = text if isinstance(text, str) else "\n".join(text)
            paths.append(write_file(directory / name, text if text.endswith("\n") else f"{text}\n"))
    return paths


def figure_lines(paths: Iterable[Path]) -> list[str]:
    """Return for a terminal where the figures among some written files are."""
    return [f"figure: {path}" for path in paths if path.suffix == ".png"]


TEMPLATES = Environment(
    loader=PackageLoader("horovod_study", "report/page/templates"),
    undefined=StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)  # what makes pages: every text in them is escaped

PACKAGES = "".join(f"\\usepackage{{{name}}}" for name in ("array", "booktabs", "graphicx", "longtable"))
"""What the preamble of a document with these tables loads."""

PAGE_LINES = 44  # a table with more is a longtable, which breaks over pages; a float would run off its page


def page_file(name: str) -> str:
    """Return the text of a file of page/static or page/templates."""
    return files("horovod_study.report.page").joinpath(name).read_text(encoding="utf-8")


def to_csv(table: Table) -> str:
    """Return the unrounded numbers."""
    assert table.data is not None
    return csv_of(table.data)


def caption_command(name: str) -> str:
    """Return the command that a document may define to caption a table in its own words."""
    return "\\hs" + "".join(letter for letter in name if letter.isalpha()) + "caption"


def to_latex(table: Table) -> str:
    """Return a `table`, or a `longtable` where it is longer than a page, of rules from booktabs, to be read by \\input.

    A `table` that is wider than the line, of a text or of a column, is made as wide as that.
    """
    table = printed(table)
    names = [column.head.split("\n") for column in table.columns]  # which end on the same line, then units
    lines = [[""] * (max(map(len, names)) - len(name)) + name for name in names]
    units = tuple(f"({column.unit})" * bool(column.unit) for column in table.columns)
    heads = [
        [
            f"\\multicolumn{{2}}{{c}}{{{latex(text)}}}" if column.interval else latex(text)
            for text, column in zip(texts, table.columns, strict=True)
        ]
        for texts in [*zip(*lines, strict=True), *([units] if any(units) else [])]
    ]

    def cells(row: tuple[str, ...]) -> Iterator[str]:  # two of a value with its interval
        for text, column in zip(row, table.columns, strict=True):
            parts = text.partition(" ")[::2] if column.interval else (text,)
            yield from map(_breaking if column.wrap else latex, parts)

    def kind(column: Column) -> str:
        if column.wrap:
            return f">{{\\raggedright\\arraybackslash}}p{{{column.wrap:g}\\linewidth}}"
        return "r@{\\hspace{0.4em}}l" if column.interval else "r" if column.number else "l"

    groups = [(group.title, [[*cells(row)] for row in group.rows]) for group in table.groups]
    count = len(heads) + len(groups) - 1 + sum(bool(title) + len(rows) for title, rows in groups)
    text = TEX.get_template("table.tex.j2").render(
        table=table,
        heads=heads,
        groups=groups,
        long=count > PAGE_LINES,
        wide=sum(2 if column.interval else 1 for column in table.columns),
        spec=f"{{@{{}}{''.join(map(kind, table.columns))}@{{}}}}",
        command=caption_command(table.name),
        packages=PACKAGES,
    )
    return f"{text.rstrip()}\n"


def document(names: Sequence[str]) -> str:
    """Return a document that shows the tables of these names, which are beside it: to look at, and to copy from."""
    return TEX.get_template("tables.tex.j2").render(names=names, packages=PACKAGES) + "\n"


FORMS: Mapping[str, Callable[[Table], str]] = {"tex": to_latex, "csv": to_csv}  # a table as a file, by its ending


def _breaking(text: str) -> str:
    """Return the text as LaTeX that may also break after the parts of a path or a name."""
    return latex(text).replace("/", "/\\allowbreak{}").replace("\\_", "\\_\\allowbreak{}")


_SIGNS = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "%": "\\%", "#": "\\#", "_": "\\_",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}",
    "|": "\\textbar{}", '"': "''", "`": "{`}",
    "[": "{[}",  # at the start of a row it would be an option of the line break before it
    "]": "{]}", "*": "{*}",
    "-": "{-}",  # two are no dash
    THIN: "\\,", "\u2009": "\\,", "\u00a0": "~", MINUS: "$-$", "\u2013": "\\textendash{}", "\u2014": "\\textemdash{}",
    "\u2018": "`", "\u2019": "'", "\u201c": "``", "\u201d": "''", "\u2026": "\\ldots{}", "\u00d7": "$\\times$",
    "\u00b7": "$\\cdot$", "\u00b1": "$\\pm$", "\u2264": "$\\le$", "\u2265": "$\\ge$", "\u2248": "$\\approx$",
    "\u2192": "$\\to$", "\u221a": "$\\surd$", "\u221e": "$\\infty$", "\u00b0": "$^\\circ$", "\u00b2": "$^2$",
    "\u00b3": "$^3$", "\u2074": "$^4$", "\u2076": "$^6$", "\u207b": "$^-$", "\u00b5": "$\\mu$", "\u00df": "\\ss{}",
    "\u00e6": "\\ae{}", "\u00c6": "\\AE{}", "\u0153": "\\oe{}", "\u0152": "\\OE{}", "\u00f8": "\\o{}",
    "\u00d8": "\\O{}", "\u0142": "\\l{}", "\u0141": "\\L{}", "\u0131": "\\i{}",
}  # fmt: skip
_GREEK = (
    "03b1 alpha 03b2 beta 03b3 gamma 03b4 delta 03b5 varepsilon 03b6 zeta 03b7 eta 03b8 theta 03b9 iota 03ba kappa "
    "03bb lambda 03bc mu 03bd nu 03be xi 03c0 pi 03c1 rho 03c3 sigma 03c4 tau 03c5 upsilon 03c6 varphi 03c7 chi "
    "03c8 psi 03c9 omega 0393 Gamma 0394 Delta 0398 Theta 039b Lambda 039e Xi 03a0 Pi 03a3 Sigma 03a6 Phi 03a8 Psi "
    "03a9 Omega"
).split()
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip
LETTERS = {
    **{chr(int(code, 16)): f"$\\{name}$" for code, name in zip(_GREEK[::2], _GREEK[1::2], strict=True)},
    **_SIGNS,
}  # what prints a letter that is not written as itself; those with accents follow from _ACCENTS


def latex(text: str) -> str:
    """Return the text as LaTeX in ASCII that prints it; letters beyond Latin and Greek as their code points."""
    letters = unicodedata.normalize("NFC", one_line(text))
    return "".join(LETTERS.get(letter) or (letter if letter.isascii() else _accented(letter)) for letter in letters)


def _accented(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    base, accent = parts[0], _ACCENTS.get(parts[1:])
    if accent is None or not (base.isascii() and base.isalpha()):
        return f"{{[}}U+{ord(letter):04X}{{]}}"
    return f"\\{accent}{{{base if base not in 'ij' else chr(92) + base}}}"


TEMPLATES.filters |= {"latex": latex, "breaking": _breaking, "counted": plural}
_MARKS: dict[str, Any] = {"block_start_string": "<%", "block_end_string": "%>", "comment_start_string": "<#"}
_MARKS |= {"variable_start_string": "<<", "variable_end_string": ">>"}
TEX = TEMPLATES.overlay(**_MARKS, autoescape=False)  # the same for LaTeX, which `latex` alone escapes


def to_html(table: Table, *, groups: str = "Series", kind: str = "broad") -> Markup:
    """Return title, caption and table, which scrolls in itself where it is wider than the page, and its notes.

    `groups` heads the titles of the groups, which are before their rows; without any title there is no such column.
    `kind`: the classes of the table; `broad` where its rows have several lines, `flat` where they have one.
    """
    titled = any(group.title for group in table.groups)
    made = []
    for group in table.groups:
        hidden = [["screen-only"] * bool(getattr(row[0], "page_only", False)) for row in group.rows]
        rows = [
            ([] if titled and place == 0 else hidden[place], [*_cells(row, table.columns)])
            for place, row in enumerate(group.rows)
        ]
        made.append((group.title, ["screen-only"] * all(hidden), rows))
    text = TEMPLATES.get_template("table.html.j2").render(
        table=table,
        kind=kind,
        titled=titled,
        groups=made,
        heads=[*([Column(groups, "text")] if titled else []), *table.columns],
    )
    return Markup(text.rstrip("\n"))


def _cells(row: tuple[str, ...], columns: tuple[Column, ...]) -> Iterator[tuple[str, Column, int]]:
    """Yield text and column of each cell, and over how many columns a warning goes, which is the last one."""
    for place, (text, column) in enumerate(zip(row, columns, strict=True)):
        if getattr(text, "warning", False):
            yield text, column, len(row) - place
            return
        if column.interval:
            value, _, interval = text.partition(" ")
            text = Cell(value, interval, *getattr(text, "under", ()), doubts=getattr(text, "doubts", ()))
        yield text, column, 0
