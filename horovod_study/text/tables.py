"""A table as a value: columns with heads and units, rows of texts in groups, what is said above and below.

`to_lines` prints it in a terminal; report/kit writes the same value as LaTeX, Markdown and CSV (typeset.py) and as HTML
(markup.py).
"""

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "\u2013"
"""In a cell without a value: unknown is not zero."""


Row: TypeAlias = Mapping[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column: its head (`\\n` breaks it), the unit under it, and what is in it."""

    head: str
    unit: str = ""
    number: bool = True  # to the right, in the middle of its head; a text to the left
    interval: bool = False  # its cells are `value [low, high]`, and the brackets are under each other
    wrap: bool = False  # a text that may break into lines
    strong: bool = False  # on a page in bold
    names: bool = False  # on a page the heading of its row
    page_only: bool = False  # not printed: only a page has room for it
    cell: Callable[[Row], str] | None = field(default=None, compare=False)  # makes the text of a row


def text_column(head: str, what: str | Callable[[Row], str], **how: Any) -> Column:
    """Return a column of texts: those of column `what` of the rows, or what it makes of a row."""
    cell = (lambda row: f"{row[what]}") if isinstance(what, str) else what
    return Column(head=head, number=False, cell=cell, **how)


class Cell(str):
    """A text with what only a page has room for; in a terminal and on paper it is the text alone."""

    under: tuple[str, ...]  # below it, in smaller letters
    doubts: tuple[str, ...]  # below that, as warnings
    code: bool  # a name to type
    strong: bool
    warning: bool  # the text itself is one
    columns: int  # that it spans
    page_only: bool  # in the first cell of a row: the row is not printed

    def __new__(
        cls,
        text: str,
        *under: str,
        doubts: Iterable[str] = (),
        code: bool = False,
        strong: bool = False,
        warning: bool = False,
        columns: int = 1,
        page_only: bool = False,
    ) -> "Cell":
        """Make a cell; empty lines below the text are left out."""
        made = super().__new__(cls, text)
        made.under, made.doubts = tuple(filter(None, under)), tuple(filter(None, doubts))
        made.code, made.strong, made.warning = code, strong, warning
        made.columns, made.page_only = columns, page_only
        return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rows that belong together, with what they share over them; each row has one text per column.

    On a page a cell may span several columns; then those are left out.
    """

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


def row_of(columns: Iterable[Column], row: Row) -> tuple[str, ...]:
    """Return the texts that the columns make of a row."""
    return tuple("" if column.cell is None else column.cell(row) for column in columns)


def table_of(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Collection[int] = (0,)) -> Table:
    """Return a table of these rows; the columns at the places `texts` hold words, the others numbers."""
    columns = tuple(Column(head=head, number=place not in texts) for place, head in enumerate(heads))
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
    shown = any(heads)
    grid = Grid(box=None, show_header=shown, padding=(0, gap, 0, 0), pad_edge=False)
    for column, head in zip(table.columns, heads, strict=True):
        grid.add_column(Text(head), justify="right" if column.number else "left", no_wrap=True, vertical="bottom")
    for row in rows:
        grid.add_row(*map(Text, row))
    stream = io.StringIO()
    # So wide that a table is never folded, whatever the terminal.
    console = Console(file=stream, width=100_000, color_system=None, force_terminal=False)
    console.print(grid)
    lines = [f"{'':<{indent}}{line}".rstrip() for line in stream.getvalue().split("\n")[:-1]]
    above = len(lines) - len(rows)
    told, body = lines[:above], iter(lines[above:])
    for group in table.groups:
        told += group.title.split("\n") if group.title else []
        told += [next(body) for _ in group.rows]
    return told
