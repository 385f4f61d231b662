"""The documentation as a site: built without a warning, complete, every link inside it leads somewhere, no network."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import docs as site_script

pytest.importorskip("mkdocs", reason="make extras installs MkDocs")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
ANALYSIS = [ROOT / "horovod_study" / "analysis", ROOT / "horovod_study" / "report"]


class Page(HTMLParser):
    """Links, anchors and what a browser would load of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.anchors |= {known[name] for name in ("id", "name") if name in known}
        if tag == "a" and "href" in known:
            self.links.append(known["href"])
        if tag in ("script", "img", "iframe", "source"):
            self.loaded += [known["src"]] if "src" in known else []
        if tag == "link" and known.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(known["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; MkDocs must not have said anything."""
    into = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs.py"), "--into", str(into)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout == f"open {into / 'site' / 'index.html'}\n"
    return into / "site"


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(built.rglob("*.html"))}


def test_every_page_of_docs_is_in_the_navigation(built: Path, pages: dict[Path, Page]) -> None:
    named = {unquote(link) for link in pages[built / "index.html"].links}
    missing = [
        path.relative_to(ROOT / "docs").as_posix()
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() not in named
    ]

    assert missing == [], "add these to nav in mkdocs.yml"


def test_links_and_anchors_inside_the_site(built: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links + page.loaded:
            name, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z][a-z+.-]*:", link) or path.name == "404.html":
                continue
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not target.exists():
                broken.append(f"{path.relative_to(built)}: {link}: no such file")
            elif anchor and target in pages and anchor not in pages[target].anchors and anchor != "__top":
                broken.append(f"{path.relative_to(built)}: {link}: no such place")

    assert broken == []


def test_nothing_is_loaded_from_elsewhere(built: Path, pages: dict[Path, Page]) -> None:
    loaded = {link for page in pages.values() for link in page.loaded if re.match(r"(https?:)?//", link)}
    styles = [path for path in built.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8"))]

    assert loaded == set()
    assert styles == []


def test_every_module_of_the_analysis_wing_is_in_the_reference(built: Path, pages: dict[Path, Page]) -> None:
    known = set().union(*(pages[path].anchors for path in pages if path.parent.name == "api"))
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ANALYSIS
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    ]

    assert sorted(set(modules) - known) == [], "add `::: MODULE` to a page of docs/api"
    assert {"horovod_study.records.read_run", "horovod_study.analysis.fit.least_squares.LawForm.for_mode"} <= known


def test_the_search_knows_pages_and_the_reference(built: Path) -> None:
    found = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"] for entry in found}

    assert "metrics.html#baselines" in places
    assert "api/records.html#horovod_study.records.run_table" in places


# How the pages are gathered


def test_pages_and_what_they_lead_to_are_gathered(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for name, text in {
        "README.md": "# Top",
        "docs/a.md": "[r](../README.md) [e](../x/README.md#k) [f](../x/s.yaml) [d](../x/) [b](sub/b.md)\n\n"
        "`[c](../x/s.yaml)`\n\n"
        "```\n[c](../x/s.yaml)\n```\n\n[one]: ../x/README.md\n[gone](../y.md) [web](https://example.org) [own](#k)",
        "docs/sub/b.md": "![p](../p.png) [a](../a.md)",
        "docs/p.png": "",
        "x/README.md": "[a](../docs/a.md#z) [up](../../outside.md)",
        "x/s.yaml": "",
        "x/unused.yaml": "",
        "outside.md": "",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "outside.md").write_text("not ours")

    found = site_script.gather(root, tmp_path / "pages")

    assert [str(place) for place in found] == ["a.md", "p.png", "sub/b.md", "x/README.md", "x/s.yaml"]
    assert (tmp_path / "pages" / "a.md").read_text() == (
        "[r](index.md) [e](x/README.md#k) [f](x/s.yaml) [d](x/README.md) [b](sub/b.md)\n\n`[c](../x/s.yaml)`\n\n"
        "```\n[c](../x/s.yaml)\n```\n\n[one]: x/README.md\n[gone](../y.md) [web](https://example.org) [own](#k)"
    )
    assert (tmp_path / "pages" / "x" / "README.md").read_text() == "[a](../a.md#z) [up](../../outside.md)"
    assert (tmp_path / "pages" / "sub" / "b.md").read_text() == "![p](../p.png) [a](../a.md)"
