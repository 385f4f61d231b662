"""A table as HTML, for a page whose style knows the classes n (a number), strong, missing (a warning).

Columns and rows that only a page has room for are of class screen-only: the page's style leaves them out of a print.
"""

from collections.abc import Callable, Iterable

import pandas as pd
from markupsafe import Markup, escape

from horovod_study.text.tables import Cell, Column, Group, Row, Table


def by_series(
    frame: pd.DataFrame, cells: Callable[[Row], tuple[str, ...]], title: Callable[[str, pd.DataFrame], str]
) -> tuple[Group, ...]:
    """Return one group per series, in their order: `cells` makes a row of a row, `title` the heading of a series."""
    return tuple(
        Group(title=title(f"{series}", own), rows=tuple(cells(row) for row in own.to_dict("records")))
        for series, own in frame.groupby("series", sort=False)
    )


def to_html(table: Table, *, groups: str = "Series", kind: str = "broad") -> Markup:
    """Return title, caption and table, which scrolls in itself where it is wider than the page, and its notes.

    `groups` heads the titles of the groups, which are before their rows; without any title there is no such column.
    `kind`: the classes of the table; `broad` where its rows have several lines, `flat` where they have one.
    """
    place = f"table-{table.name}"
    titled = any(group.title for group in table.groups)
    heads = [*([Column(head=groups, number=False)] if titled else []), *table.columns]
    lines = [
        Markup('<p class="caption" id="{0}">{1}</p>\n').format(
            place, ". ".join(filter(None, (table.title, table.caption)))
        )
        + Markup('<div class="scroll" role="region" aria-labelledby="{0}" tabindex="0">\n').format(place)
        + Markup('<table aria-labelledby="{0}" class="{1}">').format(place, kind),
        Markup("<thead><tr>") + Markup("").join(map(_head, heads)) + Markup("</tr></thead>"),
    ]
    for group in table.groups:
        unprinted = [bool(getattr(row[0], "page_only", False)) for row in group.rows]
        lines.append(Markup("<tbody{0}>").format(_kinds(screen_only=all(unprinted))))
        for number, row in enumerate(group.rows):
            begin = _title(group.title, len(group.rows)) if titled and number == 0 else ""
            start = Markup("<tr{0}>").format(_kinds(screen_only=unprinted[number] and not begin))
            lines.append(start + begin + Markup("").join(_cells(row, table.columns)) + Markup("</tr>"))
        lines.append(Markup("</tbody>"))
    notes = [Markup('<p class="under">{0}</p>').format(note) for note in table.notes]
    return Markup("\n").join([*lines, Markup("</table>\n</div>"), *notes])


def _head(column: Column) -> Markup:
    words = column.head.split("\n") + ([column.unit] if column.unit else [])
    return Markup('<th scope="col"{0}>{1}</th>').format(
        _kinds(n=column.number, screen_only=column.page_only), _broken(words)
    )


def _kinds(**kinds: bool) -> Markup:
    """Return the attribute class with the names of what is true."""
    names = [name.replace("_", "-") for name, is_it in kinds.items() if is_it]
    return Markup(' class="{0}"').format(" ".join(names)) if names else Markup("")


def _broken(lines: Iterable[str]) -> Markup:
    return Markup("<br>").join(escape(line) for line in lines)


def _title(title: str, rows: int) -> Markup:
    return Markup('<th scope="rowgroup" rowspan="{0}">{1}</th>').format(rows, _content(title))


def _cells(row: Iterable[str], columns: Iterable[Column]) -> Iterable[Markup]:
    places = iter(columns)
    for cell in map(_whole, row):
        column = next(places)
        spans = Markup("")
        if cell.columns > 1:
            for _ in range(cell.columns - 1):
                next(places)
            spans = Markup(' colspan="{0}"').format(cell.columns)
        elif column.interval:
            value, _, interval = cell.partition(" ")
            cell = Cell(value, interval, *cell.under, doubts=cell.doubts)
        look = {"n": column.number, "strong": column.strong or cell.strong, "screen_only": column.page_only}
        kind = _kinds(**{"missing": True} if cell.warning else look)
        names = column.names and not cell.warning and str(cell) != ""  # a heading without words names nothing
        name = Markup('th scope="row"') if names else Markup("td")
        end = "th" if names else "td"
        yield Markup("<{0}{1}{2}>{3}</{4}>").format(name, kind, spans, _content(cell), end)


def _whole(cell: str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _content(text_of: str) -> Markup:
    cell = _whole(text_of)
    text = _broken(cell.split("\n"))
    text = Markup("<code>{0}</code>").format(text) if cell.code else text
    text += Markup("").join(Markup("<small>{0}</small>").format(line) for line in cell.under)
    return text + Markup("").join(Markup('<small class="missing">{0}</small>').format(line) for line in cell.doubts)
