"""One table in three forms: LaTeX for print, Markdown to read, CSV to go on with.

LaTeX is plain ASCII and needs the packages of PACKAGES and nothing else, under any engine: what the standard fonts
lack is written with commands, and what they cannot write is named by its code point. Every text is escaped; no text
of a run can become a command, a formula of a spreadsheet, or markup.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from horovod_study.files import csv_of
from horovod_study.text.numbers import MINUS, THIN
from horovod_study.text.tables import Column, Table, printed
from horovod_study.text.words import one_line

PACKAGES = ("array", "booktabs", "longtable")
"""What the preamble of a document with these tables loads."""

PAGE_LINES = 44
"""A table with more lines than this is a longtable, which breaks over pages; a float would run off its page."""

_TEXT_WIDTH_IN = 5.9


def to_csv(table: Table) -> str:
    """Return the unrounded numbers."""
    assert table.data is not None
    return csv_of(table.data)


def to_markdown(table: Table) -> str:
    """Return the table with its title, caption and notes; the columns are aligned in the text as well."""
    table = printed(table)
    grouped = any(group.title for group in table.groups)
    heads = [*([""] if grouped else []), *(_head(column) for column in table.columns)]
    right = [*([False] if grouped else []), *(column.number for column in table.columns)]
    rows = [
        [_markdown(cell) for cell in [*([group.title if place == 0 else ""] if grouped else []), *row]]
        for group in table.groups
        for place, row in enumerate(group.rows)
    ]
    widths = [max(3, *(_width(row[place]) for row in [heads, *rows])) for place in range(len(heads))]
    rule = ["-" * (width - 1) + (":" if number else "-") for width, number in zip(widths, right, strict=True)]
    lines = [
        f"| {' | '.join(_padded(*cell) for cell in zip(row, widths, right, strict=True))} |"
        for row in [heads, rule, *rows]
    ]
    head = [f"**{_markdown(table.title)}.** {_markdown(table.caption)}", ""]
    return "\n".join([*head, *lines, *(line for note in table.notes for line in ("", _markdown(note)))]) + "\n"


def _head(column: Column) -> str:
    name = column.head.replace("\n", " ")
    return _markdown(f"{name} ({column.unit})" if column.unit else name)


def _padded(text: str, width: int, right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if right else text + fill


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


_MARKDOWN = str.maketrans({**{mark: f"\\{mark}" for mark in "\\`*_|#~!$"}, "&": "&amp;", "<": "&lt;", ">": "&gt;"})


def _markdown(text: str) -> str:
    """Return the text for a cell: no markup, no HTML, no line break, no link."""
    return one_line(text).translate(_MARKDOWN).replace("](", "]\\(").replace("://", ":\\//")


def caption_command(name: str) -> str:
    """Return the command that a document may define to caption a table in its own words."""
    return "\\hs" + "".join(letter for letter in name if letter.isalpha()) + "caption"


def to_latex(table: Table) -> str:
    """Return a `table`, or a `longtable` where it is longer than a page, of rules from booktabs, to be read by \\input.

    Letters get smaller, and texts break, until the table fits into _TEXT_WIDTH_IN.
    """
    table = printed(table)
    size, letter_pt, gap_pt = _size(table)
    command = caption_command(table.name)
    caption = f"\\caption[{{{latex(table.title)}}}]{{{command}}}\\label{{tab:{table.name}}}"
    spec = _spec(table, letter_pt, gap_pt)
    head = [*_header(table), "\\midrule"]
    body = list(_body(table, 72.27 * _TEXT_WIDTH_IN / letter_pt))  # ems that one line of the text holds
    long = len(body) + len(head) - 1 > PAGE_LINES
    notes = [f"\\par\\smallskip{{\\footnotesize {latex(note)}\\par}}" for note in table.notes]
    lines = [
        "% Written by horovod_study; needs " + "".join(f"\\usepackage{{{name}}}" for name in PACKAGES),
        f"% In your own words: \\newcommand{command}{{...}} before this file is read.",
        f"\\providecommand{command}{{{latex(table.title)}. {latex(table.caption)}}}%",
    ]
    if long:
        wide = _wide(table)
        lines += [
            f"\\begingroup{size}\\setlength{{\\tabcolsep}}{{{gap_pt}pt}}\\setlength{{\\LTcapwidth}}{{\\linewidth}}%",
            f"\\begin{{longtable}}{{{spec}}}",
            f"{caption}\\\\",
            *("\\toprule", *head, "\\endfirsthead"),
            f"\\multicolumn{{{wide}}}{{@{{}}l@{{}}}}{{\\itshape {latex(table.title)} (continued)}}\\\\",
            *("\\toprule", *head, "\\endhead", "\\bottomrule", "\\endfoot"),
            *body,
            "\\end{longtable}",
            *(note.replace("\\smallskip", "\\noindent", 1) for note in notes),
            "\\endgroup",
        ]
    else:
        lines += [
            *("\\begin{table}", f"\\centering{size}\\setlength{{\\tabcolsep}}{{{gap_pt}pt}}%"),
            f"{caption}\\par\\vspace{{5pt}}",
            f"\\begin{{tabular}}{{{spec}}}",
            *("\\toprule", *head),
            *body,
            *("\\bottomrule", "\\end{tabular}"),
            *notes,
            "\\end{table}",
        ]
    return "\n".join(lines) + "\n"


def document(names: Sequence[str]) -> str:
    """Return a document that shows the tables of these names, which are beside it: to look at, and to copy from."""
    packages = "".join(f"\\usepackage{{{name}}}\n" for name in PACKAGES)
    shown = "".join(f"\\input{{{name}}}\n" for name in names)
    return (
        "% Shows all tables: pdflatex tables.tex. A thesis needs the packages and an \\input per table.\n"
        "\\documentclass[11pt,a4paper]{article}\n"
        f"\\usepackage[textwidth={_TEXT_WIDTH_IN:g}in,textheight=9.4in]{{geometry}}\n{packages}"
        f"\\begin{{document}}\n\\listoftables\n\\clearpage\n{shown}\\end{{document}}\n"
    )


FORMS: Mapping[str, Callable[[Table], str]] = {"tex": to_latex, "csv": to_csv, "md": to_markdown}
"""A table as a file, by its ending."""

_SIZES = (("\\normalsize", 10.95, 6), ("\\small", 10.0, 5), ("\\footnotesize", 9.0, 4), ("\\scriptsize", 8.0, 3))
"""Sizes of type in a document of 11 pt, and half the gap between columns that goes with each, in pt."""

_NARROW = 0.18  # of the width of the text: a column of broken lines is no narrower


def _size(table: Table) -> tuple[str, float, float]:
    """Return the entry of the largest size, from \\small on, at which the columns fit side by side."""
    for size, letter_pt, gap_pt in _SIZES[1:]:
        ems = sum(
            # a column of broken lines asks for no more
            max(min(_ems(table, place), 15.0), _NARROW * _TEXT_WIDTH_IN * 72.27 / letter_pt)
            if column.wrap
            else _ems(table, place)
            for place, column in enumerate(table.columns)
        )
        if 1.03 * ems * letter_pt + 2 * gap_pt * (_wide(table) - 1) <= 72.27 * _TEXT_WIDTH_IN:
            return size, letter_pt, gap_pt
    return _SIZES[-1]


def _ems(table: Table, place: int) -> float:
    """Return the width of one column at its natural width, estimated from its letters, in ems."""
    column = table.columns[place]
    cells = [row[place] for group in table.groups for row in group.rows]
    heads = [*column.head.split("\n"), f"({column.unit})" if column.unit else ""]
    head = max(_text_ems(line) for line in heads)
    if not column.interval:
        return max([head, *(_text_ems(cell) for cell in cells)])
    values, intervals = zip(*(_halves(cell) for cell in cells), strict=True) if cells else ((), ())
    return max(head, max(map(_text_ems, values), default=0) + max(map(_text_ems, intervals), default=0) + 0.4)


def _text_ems(text: str) -> float:
    return sum(_LETTER_EMS.get(letter, 0.76 if letter.isupper() else 0.51) for letter in text)


_LETTER_EMS = {
    **dict.fromkeys(".,:;'il|!j", 0.28),
    **dict.fromkeys(" []()tfrs/-", 0.39),
    **dict.fromkeys("mwMW%@\u2212\u00d7=+<>", 0.84),
    THIN: 0.17,
}


def _halves(cell: str) -> tuple[str, str]:
    value, _, interval = cell.partition(" ")
    return value, interval


def _wide(table: Table) -> int:
    """Return the columns of the tabular: two for a value with its interval."""
    return sum(2 if column.interval else 1 for column in table.columns)


def _spec(table: Table, letter_pt: float, gap_pt: float) -> str:
    wrapped = {place: min(_ems(table, place), 40.0) for place, column in enumerate(table.columns) if column.wrap}
    others = sum(_ems(table, place) for place in range(len(table.columns)) if place not in wrapped) * letter_pt
    gaps = 2 * gap_pt * (_wide(table) - 1)
    room = max(_NARROW * len(wrapped), 0.97 - (others + gaps) / (72.27 * _TEXT_WIDTH_IN))
    kinds = []
    for place, column in enumerate(table.columns):
        if place in wrapped:
            share = min(
                room * wrapped[place] / sum(wrapped.values()), 1.1 * wrapped[place] * letter_pt / 72.27 / _TEXT_WIDTH_IN
            )
            kinds.append(f">{{\\raggedright\\arraybackslash}}p{{{share:.3f}\\linewidth}}")
        elif column.interval:
            kinds.append("r@{\\hspace{0.4em}}l")
        else:
            kinds.append("r" if column.number else "l")
    return f"@{{}}{''.join(kinds)}@{{}}"


def _header(table: Table) -> Iterator[str]:
    """Yield the lines of the head: names, which end on the same line, then units in parentheses."""
    names = [column.head.split("\n") for column in table.columns]
    deep = max(map(len, names))
    lines = [[""] * (deep - len(name)) + name for name in names]
    units = [f"({column.unit})" if column.unit else "" for column in table.columns]
    for texts in [*zip(*lines, strict=True), *([tuple(units)] if any(units) else [])]:
        cells = (
            f"\\multicolumn{{2}}{{c}}{{{latex(text)}}}" if column.interval else latex(text)
            for text, column in zip(texts, table.columns, strict=True)
        )
        yield f"{' & '.join(cells)} \\\\"


def _body(table: Table, line_ems: float) -> Iterator[str]:
    """Yield the lines of the groups; no page ends right after a title, and a title longer than a line breaks."""
    for place, group in enumerate(table.groups):
        if place:
            yield "\\addlinespace"
        if group.title:
            kind = "p{0.98\\linewidth}" if _text_ems(group.title) > 0.9 * line_ems else "l"
            yield f"\\multicolumn{{{_wide(table)}}}{{@{{}}{kind}@{{}}}}{{\\itshape {_breaking(group.title)}}}\\\\*"
        for row in group.rows:
            cells = []
            for text, column in zip(row, table.columns, strict=True):
                if column.wrap:
                    cells.append(_breaking(text))
                else:
                    cells += [latex(part) for part in (_halves(text) if column.interval else (text,))]
            yield f"{' & '.join(cells)} \\\\"


def _breaking(text: str) -> str:
    """Return the text as LaTeX that may also break after the parts of a path or a name."""
    return latex(text).replace("/", "/\\allowbreak{}").replace("\\_", "\\_\\allowbreak{}")


_ASCII = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "%": "\\%", "#": "\\#", "_": "\\_",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}",
    "|": "\\textbar{}", '"': "''", "`": "{`}",
    "[": "{[}",  # at the start of a row it would be an option of the line break before it
    "]": "{]}", "*": "{*}",
    "-": "{-}",  # two are no dash
}  # fmt: skip
_SIGNS = {
    THIN: "\\,", "\u2009": "\\,", "\u00a0": "~", MINUS: "$-$", "\u2013": "\\textendash{}", "\u2014": "\\textemdash{}",
    "\u2018": "`", "\u2019": "'", "\u201c": "``", "\u201d": "''", "\u2026": "\\ldots{}", "\u00d7": "$\\times$",
    "\u00b7": "$\\cdot$", "\u00b1": "$\\pm$", "\u2264": "$\\le$", "\u2265": "$\\ge$", "\u2248": "$\\approx$",
    "\u2192": "$\\to$", "\u221a": "$\\surd$", "\u221e": "$\\infty$", "\u00b0": "$^\\circ$", "\u00b2": "$^2$",
    "\u00b3": "$^3$", "\u2074": "$^4$", "\u2076": "$^6$", "\u207b": "$^-$", "\u00b5": "$\\mu$", "\u00df": "\\ss{}",
    "\u00e6": "\\ae{}", "\u00c6": "\\AE{}", "\u0153": "\\oe{}", "\u0152": "\\OE{}", "\u00f8": "\\o{}",
    "\u00d8": "\\O{}", "\u0142": "\\l{}", "\u0141": "\\L{}", "\u0131": "\\i{}",
}  # fmt: skip
_GREEK = dict(
    zip(
        "\u03b1\u03b2\u03b3\u03b4\u03b5\u03b6\u03b7\u03b8\u03b9\u03ba\u03bb\u03bc\u03bd\u03be\u03c0\u03c1\u03c3\u03c4\u03c5\u03c6\u03c7\u03c8\u03c9\u0393\u0394\u0398\u039b\u039e\u03a0\u03a3\u03a6\u03a8\u03a9",
        (
            *("alpha", "beta", "gamma", "delta", "varepsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"),
            *("nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "varphi", "chi", "psi", "omega"),
            *("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega"),
        ),
        strict=True,
    )
)
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip


def latex(text: str) -> str:
    """Return the text as LaTeX in ASCII that prints it; letters beyond Latin and Greek as their code points."""
    return "".join(_letters(one_line(text)))


def _letters(text: str) -> Iterable[str]:
    for letter in unicodedata.normalize("NFC", text):
        if letter in _ASCII:
            yield _ASCII[letter]
        elif letter.isascii():
            yield letter
        elif letter in _SIGNS:
            yield _SIGNS[letter]
        elif letter in _GREEK:
            yield f"$\\{_GREEK[letter]}$"
        else:
            parts = unicodedata.normalize("NFD", letter)
            base, marks = parts[0], parts[1:]
            if marks in _ACCENTS and base.isascii() and base.isalpha():
                yield f"\\{_ACCENTS[marks]}{{{base if base not in 'ij' else chr(92) + base}}}"
            else:
                yield f"{{[}}U+{ord(letter):04X}{{]}}"
