"""A table as a value: declared columns, rows of texts in groups, what is said above and below.

A column says in one word how its cells are made (KINDS); alignment, rounding and dashes follow from that. `to_lines`
prints a table in a terminal; report/kit/files.py writes the same value as LaTeX, CSV and HTML.
"""

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from horovod_study.text.numbers import DIGITS, THIN, alone, fixed, known, percent, quoted, signed, significant

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "\u2013"  # in a cell without a value: unknown is not zero

Row: TypeAlias = Mapping[Any, Any]

SCALES = {
    "ms": 1e3, "\u00b5s": 1e6, "mJ": 1e3, "minutes": 60.0, "%": 100.0, "10\u207b\u2074": 1e4, "10\u2076": 1e-6,
}  # fmt: skip
"""What turns seconds, joules, hours, shares, errors and counts into the unit of a column."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head (`\\n` breaks it), how it makes the text of a row (KINDS), of what, and the unit below it.

    `source` names columns of the row, apart by blanks, or makes the text itself. An interval of the single name N is
    N_median (or N) with N_low and N_high; of an unknown number N the bound N_at_most or N_at_least is told.
    """

    head: str
    how: str = "number"
    source: str | Callable[[Row], str] = ""
    unit: str = ""
    _: KW_ONLY
    digits: int = DIGITS  # of a number without an interval
    under: str = ""  # on a page below the text: a column of texts, or two with the ends of a range
    doubt: str = ""  # on a page below that: a column of warnings
    wrap: float = 0.0  # in print the share of the line that it has, for a text that breaks
    strong: bool = False  # on a page in bold
    code: bool = False  # on a page names to type
    names: bool = False  # on a page the heading of its row
    page_only: bool = False  # not printed: only a page has room for it
    usual: str = ""  # what says nothing where all cells are it

    @property
    def number(self) -> bool:
        """To the right, in the middle of its head; a text to the left."""
        return self.how != "text"

    @property
    def interval(self) -> bool:
        """Cells are `value [low, high]`, and the brackets are under each other."""
        return self.how in ("interval", "rate", "change")


class Cell(str):
    """A text with what only a page has room for; in a terminal and on paper it is the text alone."""

    under: tuple[str, ...]  # below it, in smaller letters
    doubts: tuple[str, ...]  # below that, as warnings
    warning: bool  # the text itself is one, and takes the rest of its row
    page_only: bool  # in the first cell of a row: the row is not printed

    def __new__(
        cls, text: str, *under: str, doubts: Iterable[str] = (), warning: bool = False, page_only: bool = False
    ) -> "Cell":
        """Make a cell; empty lines below the text are left out."""
        made = super().__new__(cls, text)
        made.under, made.doubts = tuple(filter(None, under)), tuple(filter(None, doubts))
        made.warning, made.page_only = warning, page_only
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rows that belong together, with what they share over them; each row has one text per column."""

    title: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What is printed, rounded, and the unrounded numbers behind it (`data`)."""

    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    name: str = ""  # of its files, and of its label
    title: str = ""
    caption: str = ""
    data: "pd.DataFrame | None" = None
    notes: tuple[str, ...] = ()  # under the table


# ---------------------------------------------------------------------------------------------------- cells


def _interval(value: float, low: float | None, high: float | None, digits: int) -> str:
    """Return a value with its interval; ends that are equal are none, such as those of the baseline over itself."""
    if low is not None and low == high:
        return fixed(value, 0) if value == 1 else alone(value)
    return quoted(value, low, high)


def _rate(value: float, low: float | None, high: float | None, digits: int) -> str:
    """Return a value with four digits, as it stands alone elsewhere, and its interval."""
    return " ".join([alone(value, 4), *_interval(value, low, high, digits).split(" ")[1:]])


def _span(low: float, high: float | None, digits: int) -> str:
    texts = (fixed(end, 0) if end.is_integer() else alone(end) for end in (low, high) if end is not None)
    return " to ".join(dict.fromkeys(texts))


KINDS: Mapping[str, Callable[..., str]] = {
    "text": str,
    "count": lambda value, digits: fixed(value, 0),
    "number": alone,
    "share": lambda value, digits: percent(value / 100).removesuffix(f"{THIN}%"),  # in whole per cent from one on
    "chance": lambda p, digits: f"<{THIN}0.001" if p < 0.001 else fixed(p, min(3, max(2, significant(p, 1)))),
    "of": lambda part, whole, digits: " of ".join(dict.fromkeys((fixed(part, 0), fixed(whole, 0)))),  # once if all
    "span": _span,  # `1 to 3`
    "interval": _interval,
    "rate": _rate,
    "change": lambda *values: signed(_interval(*values)),
}  # what makes the text of the known values of a row that `source` names


def _told(column: Column, row: Row, source: str) -> str:
    names = source.split()
    if column.interval and len(names) == 1:
        (name,) = names
        names = [f"{name}_median" if f"{name}_median" in row else name, f"{name}_low", f"{name}_high"]
    if column.how == "text":
        return row[source] if isinstance(row[source], str) else f"{row[source]}"
    scale = SCALES.get(column.unit, 1.0)
    values = [scale * float(row[name]) if known(row[name]) else None for name in names]
    if values[0] is not None:
        return KINDS[column.how](*values, column.digits)
    for bound, sign in ((f"{source}_at_most", "<"), (f"{source}_at_least", ">")):
        if known(row.get(bound)):
            return f"{sign}{THIN}{alone(scale * row[bound], column.digits)}"
    return NOTHING


def _cell(column: Column, row: Row) -> str:
    text = column.source(row) if callable(column.source) else _told(column, row, column.source)
    under = ""
    if column.under:
        ends = " " in column.under
        under = _told(replace(column, how="span" if ends else "text"), row, column.under)
        under = under if " to " in under or not ends else ""
    doubts = [f"{row[column.doubt]}"] if column.doubt else []
    return Cell(text, under, doubts=doubts) if under or doubts else text


def grouped(columns: Sequence[Column], parts: Iterable[tuple[str, Iterable[Row]]]) -> tuple[Group, ...]:
    """Return one group for each title with rows: the texts that the columns make; right of a warning they are empty."""

    def texts(row: Row) -> tuple[str, ...]:
        made: list[str] = []
        for column in columns:
            warned = any(getattr(text, "warning", False) for text in made)
            made.append("" if warned else _cell(column, row))
        return tuple(made)

    rows_of = [(title, tuple(map(texts, own))) for title, own in parts]
    return tuple(Group(title=title, rows=rows) for title, rows in rows_of if rows)


# ---------------------------------------------------------------------------------------------------- tables


def printed(table: Table) -> Table:
    """Return the table without the columns and rows that are for a page only."""
    rows_of = [
        (group, [row for row in group.rows if not getattr(row[0], "page_only", False)]) for group in table.groups
    ]
    groups = tuple(replace(group, rows=tuple(rows)) for group, rows in rows_of if rows)
    kept = [place for place, column in enumerate(table.columns) if not column.page_only]
    return with_columns(replace(table, groups=groups), kept)


def with_columns(table: Table, kept: Sequence[int]) -> Table:
    """Return the table with the columns at these places only."""
    columns = tuple(table.columns[place] for place in kept)
    rows_of = [(group, tuple(tuple(row[place] for place in kept) for row in group.rows)) for group in table.groups]
    return replace(table, columns=columns, groups=tuple(replace(group, rows=rows) for group, rows in rows_of))


def filled(table: Table) -> Table:
    """Return the table without the columns in which no row says anything."""
    texts = [{row[place] for group in table.groups for row in group.rows} for place in range(len(table.columns))]
    told = zip(table.columns, texts, strict=True)
    return with_columns(
        table, [place for place, (column, own) in enumerate(told) if not own <= {NOTHING, "", column.usual}]
    )


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Collection[int] = (0,)) -> Table:
    """Return a table of these rows; the columns at the places `texts` hold words, the others numbers."""
    columns = tuple(Column(head, "text" if place in texts else "number") for place, head in enumerate(heads))
    return Table(columns=columns, groups=(Group(title="", rows=tuple(tuple(row) for row in rows)),))


def to_lines(table: Table, *, indent: int = 0, gap: int = 2) -> list[str]:
    """Return the table for a terminal: heads, then per group its title and one line for each row, none wrapped.

    Columns are `gap` blanks apart; the whole is moved by `indent` blanks. A cell must not hold a line break.
    """
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    rows = [row for group in table.groups for row in group.rows]
    heads = [f"{column.head}\n({column.unit})" if column.unit else column.head for column in table.columns]
    grid = Grid(box=None, show_header=any(heads), padding=(0, gap, 0, 0), pad_edge=False)
    for column, head in zip(table.columns, heads, strict=True):
        grid.add_column(Text(head), justify="right" if column.number else "left", no_wrap=True, vertical="bottom")
    for row in rows:
        grid.add_row(*map(Text, row))
    stream = io.StringIO()
    # So wide that a table is never folded, whatever the terminal.
    Console(file=stream, width=100_000, color_system=None, force_terminal=False).print(grid)
    lines = [f"{'':<{indent}}{line}".rstrip() for line in stream.getvalue().split("\n")[:-1]]
    above = len(lines) - len(rows)
    told, body = lines[:above], iter(lines[above:])
    for group in table.groups:
        told += group.title.split("\n") if group.title else []
        told += [next(body) for _ in group.rows]
    return told
