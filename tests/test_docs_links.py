"""Links of the pages lead somewhere: to a file of the project, and to a heading that is on the page."""

import re
from pathlib import Path

import pytest

from horovod_study.analysis import study

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    {
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(page for page in ROOT.glob("*/README.md") if not page.parent.name.startswith(".")),
        *(ROOT / "benchmarks").glob("*/README.md"),
    }
)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)|^\[[^\]]+\]: *(\S+)", flags=re.MULTILINE)
NOT_HERE = re.compile(r"[a-z][a-z+.-]*:", flags=re.IGNORECASE)


def prose(text: str) -> str:
    """The text without fenced and inline code, in which brackets are no links."""
    fences = re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", fences)


def slugs(text: str) -> set[str]:
    """The anchors that GitHub gives to headings: lower case, no punctuation, hyphens for spaces, numbers for twins."""
    fences = re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^ {0,3}#{1,6} +(.+?) *#* *$", fences, flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        twin = found.get(slug, 0)
        found[slug] = twin + 1
        anchors.add(f"{slug}-{twin}" if twin else slug)
    return anchors


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere, as `target: what is missing`."""
    missing = []
    for match in LINK.finditer(prose(page.read_text(encoding="utf-8"))):
        link = match[1] or match[2]
        if NOT_HERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            missing.append(f"{link}: no such file")
        elif anchor and anchor not in slugs(target.read_text(encoding="utf-8")):
            missing.append(f"{link}: no such heading")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path):
    assert broken(page) == []


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path: Path):
    (tmp_path / "other.md").write_text("# Other page\n\n## Hold-out score\n\n```sh\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md#hold-out-score) [b](other.md#no-heading) [c](gone.md) [d](#page) [e](#pages)\n"
        "[f](https://example.org/x#y) `[g](code.md)`\n\n    [h][1]\n\n[1]: other.md#lost\n"
    )

    assert broken(page) == [
        "other.md#no-heading: no such heading",
        "gone.md: no such file",
        "#pages: no such heading",
        "other.md#lost: no such heading",
    ]


def test_headings_get_the_anchors_of_github():
    text = "# Scoring it: --holdout\n## `a_b` & c\n## Twin\n## Twin\n### [Link](x.md), 2.5 %\n"

    assert slugs(text) == {"scoring-it---holdout", "a_b--c", "twin", "twin-1", "link-25-"}


def test_every_page_is_reached_from_the_readme():
    """Following links from README.md, a reader comes by every page of docs."""
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen:
            continue
        seen.add(page)
        links = (match[1] or match[2] for match in LINK.finditer(prose(page.read_text(encoding="utf-8"))))
        targets = ((page.parent / link.partition("#")[0]).resolve() for link in links if not NOT_HERE.match(link))
        ahead += [each for each in targets if each.suffix == ".md" and each.is_file()]
    assert sorted(page.name for page in (ROOT / "docs").rglob("*.md") if page not in seen) == []


@pytest.mark.parametrize(
    "name", [*(f"{each}.csv" for each in study.TABLES), *(f"{each}.json" for each in study.DOCUMENTS)]
)
def test_the_metrics_book_describes_every_file_of_an_analysis(name: str):
    columns = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").partition("\n## Columns\n")[2]

    assert f"`{name}`" in columns
