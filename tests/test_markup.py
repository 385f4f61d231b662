"""Tables as HTML: every text escaped, numbers and warnings marked, cells that span others."""

from html.parser import HTMLParser

from horovod_study.report.kit.files import to_html, to_latex
from horovod_study.text.tables import Cell, Column, Group, Table, table_of, to_lines

EVIL = "<script>alert('&')</script>"


class Reader(HTMLParser):
    """The tags of a text with their attributes, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += [data.strip()] if data.strip() else []


def read(*rows: tuple[str, ...], title: str = "", caption: str = "", **how: str) -> Reader:
    columns = (Column("name", "text", names=True, code=True), Column("a\nb", unit="ms", strong=True))
    table = Table(name="t", caption=caption, columns=columns, groups=(Group(title=title, rows=rows),))
    return Reader(to_html(table, **how))


def test_no_text_becomes_markup() -> None:
    found = read((Cell(EVIL, EVIL, doubts=[EVIL]), EVIL), title=EVIL, caption=EVIL)

    assert "script" not in {tag for tag, _ in found.tags}
    assert 6 == found.words.count(EVIL)


def test_what_a_page_needs_is_marked() -> None:
    found = read(("x", Cell("1", "[0, 2]", "", doubts=["few"])), ("y", Cell("none", warning=True)), title="series")
    tags = [(tag, attributes) for tag, attributes in found.tags if tag in ("td", "th", "small", "br")]

    assert tags == [
        *(("th", {"scope": "col"}), ("th", {"scope": "col"}), ("th", {"scope": "col", "class": "n"})),
        *(("br", {}), ("br", {})),
        ("th", {"scope": "rowgroup", "rowspan": "2"}),
        *(("th", {"scope": "row"}), ("td", {"class": "n strong"}), ("small", {}), ("small", {"class": "missing"})),
        *(("th", {"scope": "row"}), ("td", {"class": "missing"})),
    ]
    assert ["Series", "name", "a", "b", "ms", "series", "x", "1", "[0, 2]", "few", "y", "none"] == found.words


def test_a_warning_takes_the_rest_of_its_row() -> None:
    found = read((Cell("no result", warning=True), ""), ("x", "1"))

    assert ("td", {"class": "missing", "colspan": "2"}) in found.tags
    assert "Series" not in found.words, "no column for titles where no group has one"


def test_a_number_has_its_interval_below_it_on_a_page_only() -> None:
    columns = (Column("value", "interval"), Column("none", "interval"))
    rows = (("1.70 [1.66, 1.75]", Cell("1", "lowest of 3")),)
    table = Table(name="t", title="One", columns=columns, groups=(Group(title="", rows=rows),), notes=("a: a note.",))
    found = Reader(to_html(table))

    assert ["One", "value", "none", "1.70", "[1.66, 1.75]", "1", "lowest of 3", "a: a note."] == found.words
    assert [tag for tag, _ in found.tags if tag == "small"] == ["small"] * 2
    assert "1.70 & {[}1.66, 1.75{]}" in to_latex(table) and "lowest" not in to_latex(table)


def test_what_only_a_page_has_room_for_is_not_printed() -> None:
    columns = (Column("law", "text"), Column("extra", page_only=True), Column("rmse"))
    rows = (("linear", "7", "0.1"), (Cell("power", page_only=True), "8", "0.2"))
    groups = (Group(title="both", rows=rows), Group(title="none printed", rows=rows[1:]))
    table = Table(name="t", title="Laws", columns=columns, groups=groups)

    assert {"extra", "power", "none printed"} <= set(Reader(to_html(table)).words)
    text = to_latex(table)
    assert "linear" in text and "0.1" in text
    assert not [word for word in ("extra", "power", "none printed", "0.2", "7") if word in text.split("toprule")[-1]]


def test_elsewhere_a_cell_is_its_text() -> None:
    assert ["head", "text"] == to_lines(table_of(["head"], [[Cell("text", "below", doubts=["doubt"])]]))
