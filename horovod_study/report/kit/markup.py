"""A table as HTML, for a page whose style knows the classes n (a number), strong, missing (a warning).

Columns and rows that only a page has room for are of class screen-only: the page's style leaves them out of a print.
"""

from collections.abc import Iterable

from markupsafe import Markup, escape

from horovod_study.text.tables import Cell, Column, Table


def to_html(table: Table, *, groups: str = "Series", kind: str = "broad") -> Markup:
    """Return title, caption and table, which scrolls in itself where it is wider than the page, and its notes.

    `groups` heads the titles of the groups, which are before their rows; without any title there is no such column.
    `kind`: the classes of the table; `broad` where its rows have several lines, `flat` where they have one.
    """
    place = f"table-{table.name}"
    titled = any(group.title for group in table.groups)
    heads = [*([Column(groups, "text")] if titled else []), *table.columns]
    lines = [
        Markup('<p class="caption" id="{0}">{1}</p>\n').format(
            place, ". ".join(filter(None, (table.title, table.caption)))
        )
        + Markup('<div class="scroll" role="region" aria-labelledby="{0}" tabindex="0">\n').format(place)
        + Markup('<table aria-labelledby="{0}" class="{1}">').format(place, kind),
        Markup("<thead><tr>")
        + Markup("").join(
            Markup('<th scope="col"{0}>{1}</th>').format(
                _kinds(n=column.number, screen_only=column.page_only),
                _broken([*column.head.split("\n"), *filter(None, [column.unit])]),
            )
            for column in heads
        )
        + Markup("</tr></thead>"),
    ]
    for group in table.groups:
        unprinted = [bool(getattr(row[0], "page_only", False)) for row in group.rows]
        lines.append(Markup("<tbody{0}>").format(_kinds(screen_only=all(unprinted))))
        title = Markup('<th scope="rowgroup" rowspan="{0}">{1}</th>').format(len(group.rows), _content(group.title))
        for number, row in enumerate(group.rows):
            begin = title if titled and number == 0 else ""
            start = Markup("<tr{0}>").format(_kinds(screen_only=unprinted[number] and not begin))
            lines.append(start + begin + Markup("").join(_cells(row, table.columns)) + Markup("</tr>"))
        lines.append(Markup("</tbody>"))
    notes = [Markup('<p class="under">{0}</p>').format(note) for note in table.notes]
    return Markup("\n").join([*lines, Markup("</table>\n</div>"), *notes])


def _kinds(**kinds: bool) -> Markup:
    """Return the attribute class with the names of what is true."""
    names = [name.replace("_", "-") for name, is_it in kinds.items() if is_it]
    return Markup(' class="{0}"').format(" ".join(names)) if names else Markup("")


def _broken(lines: Iterable[str]) -> Markup:
    return Markup("<br>").join(escape(line) for line in lines)


def _cells(row: tuple[str, ...], columns: tuple[Column, ...]) -> Iterable[Markup]:
    for place, (text, column) in enumerate(zip(row, columns, strict=True)):
        if getattr(text, "warning", False):
            rest = len(row) - place
            spans = Markup(' colspan="{0}"').format(rest) if rest > 1 else ""
            yield Markup('<td class="missing"{0}>{1}</td>').format(spans, _content(text))
            return
        if column.interval:
            value, _, interval = text.partition(" ")
            text = Cell(value, interval, *getattr(text, "under", ()), doubts=getattr(text, "doubts", ()))
        # A heading without words names nothing.
        begin, end = ('th scope="row"', "th") if column.names and text != "" else ("td", "td")
        kinds = _kinds(n=column.number, strong=column.strong, screen_only=column.page_only)
        yield Markup("<{0}{1}>{2}</{3}>").format(Markup(begin), kinds, _content(text, code=column.code), end)


def _content(text: str, *, code: bool = False) -> Markup:
    content = _broken(text.split("\n"))
    content = Markup("<code>{0}</code>").format(content) if code else content
    content += Markup("").join(Markup("<small>{0}</small>").format(line) for line in getattr(text, "under", ()))
    doubts = (Markup('<small class="missing">{0}</small>').format(line) for line in getattr(text, "doubts", ()))
    return content + Markup("").join(doubts)
