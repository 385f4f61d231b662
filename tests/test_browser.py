"""report.html in a real browser: with and without script, by mouse and by keyboard, at night, on a phone, on paper."""

import csv
import io
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from browser import PHONE, axe_core, chromium, opened, violations
from make.rich_study import WAYS, rich_analysis, rich_runs
from make.synthetic_runs import run_table

from horovod_study.analysis.importers import parse_points
from horovod_study.analysis.series import exchange
from horovod_study.analysis.study import analyze
from horovod_study.report.figures.catalogue import drawings
from horovod_study.report.kit.style import series_labels
from horovod_study.report.page import html
from horovod_study.text.numbers import with_interval

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=window.evil=1>\"'--></script><script>window.evil=1</script>${window.evil=1}"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def analysis():
    return rich_analysis(rich_runs(partitions={"gpu2": 4}))


@pytest.fixture(scope="module")
def report(browser, analysis, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(analysis), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def brief(browser, tmp_path_factory):
    """The page of a study of two worker counts."""
    path = tmp_path_factory.mktemp("brief") / "report.html"
    path.write_text(html.render(analyze(run_table((1, 2), partition="local"))), encoding="utf-8")
    return path


@pytest.fixture
def seen(browser, report):
    """The page on a desk with everything in it: messages, requests and errors are checked after each test."""
    with opened(browser, report) as found:
        yield found
        assert [text for text in found.said if not text.startswith(("log", "info", "debug"))] == []
        assert [url for url in found.asked if not url.startswith("blob:")] == [report.as_uri()]
        assert found.thrown == []


def unfold(page):
    """Open all that is folded."""
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


def drawn(page, name):
    """The geometry of a figure as it is shown now: rounded boxes of all its visible parts, within its SVG."""
    return page.evaluate(
        """(name) => {
            const svg = document.querySelector(`figure[data-figure="${name}"] .canvas > svg`);
            const from = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("*")]
            .map((each) => [each, each.getBoundingClientRect()])
            .filter(([each, box]) => box.width + box.height > 0 && getComputedStyle(each).visibility === "visible")
            .map(([each, box]) => [box.x - from.x, box.y - from.y, box.width, box.height].map((x) => Math.round(x)))
            .map((sides) => sides.join(" "));
        }""",
        name,
    )


# ---------------------------------------------------------------------------------------------------- what is there


def test_every_figure_is_drawn_and_the_page_is_small(seen, report, analysis):
    names = [drawing.name for drawing in drawings(analysis)]
    unfold(seen.page)
    shown = seen.page.eval_on_selector_all("figure[data-figure]", "all => all.map((each) => each.dataset.figure)")
    assert sorted(shown) == sorted(names)
    for name in names:
        svg = seen.page.locator(f"figure[data-figure={name}] .canvas > svg")
        box = svg.bounding_box()
        assert box["width"] > 200 and box["height"] > 80, name
        assert svg.get_attribute("aria-label"), name
        assert len(drawn(seen.page, name)) > 20, name
    assert report.stat().st_size < 5_000_000


# ---------------------------------------------------------------------------------------------------- pointing


def known_point(page, analysis):
    """The spot of a point of the speedup figure, with what it says, its series and the number that must be in it."""
    row = analysis.points[(analysis.points["workers"] == 8) & (analysis.points["transport"] == "nccl")].iloc[0]
    label = series_labels(analysis.points)[row["series"]]
    expected = with_interval(row["speedup_plain"], row["speedup_plain_low"], row["speedup_plain_high"])
    spots = page.locator("figure[data-figure=speedup] .spot")
    texts = spots.locator("title").all_text_contents()
    places = [
        place
        for place, text in enumerate(texts)
        if text.startswith(label) and "8 workers" in text and expected.split()[0] in text
    ]
    assert places, (label, expected, texts)
    return spots.nth(places[0]), texts[places[0]], expected


def middle(page, spot):
    """Where on the screen a spot is."""
    spot.scroll_into_view_if_needed()
    box = spot.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_pointing_at_a_point_says_its_value(seen, analysis):
    spot, text, expected = known_point(seen.page, analysis)
    under = seen.page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).querySelector('title').textContent", middle(seen.page, spot)
    )

    assert under.split(":")[1] == text.split(":")[1], "marks of two series may lie on each other"
    assert all(part in text for part in expected.replace(",", "").replace("[", "").replace("]", "").split())


def test_the_keyboard_walks_along_the_points_and_says_the_same(seen, analysis):
    page = seen.page
    _, text, _ = known_point(page, analysis)
    tooltip = page.locator("figure[data-figure=speedup] .tooltip[role=status]")
    page.locator("figure[data-figure=speedup] .plot").focus()
    page.keyboard.press("Home")
    seen_texts = []
    titles = page.locator("figure[data-figure=speedup] .spot title").all_text_contents()
    for _ in titles:
        seen_texts.append(tooltip.inner_text())
        page.keyboard.press("ArrowRight")

    assert text in seen_texts and seen_texts == titles
    page.keyboard.press("ArrowLeft")
    assert tooltip.inner_text() == seen_texts[-2]
    page.keyboard.press("Escape")
    assert not tooltip.is_visible()


# ---------------------------------------------------------------------------------------------------- buttons


def test_an_entry_of_the_legend_hides_its_series_and_no_other(seen):
    page = seen.page
    inside = "figure[data-figure=speedup] .canvas > svg"
    keys, whole = page.locator(f"{inside} [data-legend] text"), drawn(page, "speedup")
    assert keys.count() >= 2

    for number in range(keys.count()):
        key = keys.nth(number)
        series = key.evaluate("(each) => each.parentElement.dataset.legend")
        own = page.locator(f'{inside} [data-series="{series}"]')
        assert own.locator("title").count() > 0 and own.count() > own.locator("title").count()
        key.focus()
        page.keyboard.press(("Enter", "Space")[number % 2])
        gone = page.locator(f"{inside} .gone").evaluate_all("all => all.map((each) => each.dataset.series)")
        assert gone == [series] * own.count() and key.get_attribute("aria-pressed") == "false"
        page.locator("figure[data-figure=speedup] .plot").press("Home")
        told = page.locator("figure[data-figure=speedup] .tooltip").inner_text()
        assert told not in own.locator("title").all_text_contents(), "nothing is told of a hidden series"
        key.click()
    assert drawn(page, "speedup") == whole


def test_the_theme_button_turns_the_page_dark_and_light(seen):
    page = seen.page
    button = page.locator("button[data-action=theme]")

    def paper():
        numbers = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
        return sum(int(each) for each in numbers[:3]) / 3

    assert paper() > 200
    label = button.get_attribute("aria-label")
    button.click()
    assert paper() < 60
    assert button.get_attribute("aria-label") != label
    button.click()
    assert paper() > 200


def test_buttons_save_the_figure_and_its_numbers(seen, analysis):
    page = seen.page
    drawing = next(each for each in drawings(analysis) if each.name == "speedup")

    def saved(action):
        with page.expect_download() as download:
            page.locator(f"figure[data-figure=speedup] button[data-action={action}]").click()
        return download.value.suggested_filename, download.value.path().read_text(encoding="utf-8")

    name, text = saved("svg")
    assert name == "speedup.svg"
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--c" not in text

    name, text = saved("csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert name == "speedup.csv"
    assert len(rows) == len(drawing.data)
    assert list(rows[0]) == list(drawing.data.columns)
    assert float(rows[0]["workers"]) == drawing.data["workers"].iloc[0]


# ---------------------------------------------------------------------------------------------------- other ways


def test_without_scripts_everything_is_shown_and_nothing_is_dead(browser, report, analysis):
    with opened(browser, report, java_script_enabled=False) as found:
        page = found.page
        unfold(page)
        figures = page.locator("figure[data-figure]")
        assert figures.count() == len(drawings(analysis))
        for number in range(figures.count()):
            box = figures.nth(number).locator(".canvas > svg").bounding_box()
            assert box["width"] > 200 and box["height"] > 80
        assert page.locator("button, input, select").count() == 0
        page.locator("nav a", has_text="Doubts").click()
        assert page.locator("#doubts h2").bounding_box()["y"] < 900
        assert (found.asked[0], found.thrown) == (report.as_uri(), [])


WIDER = """() => {
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
    const wide = document.documentElement.clientWidth;
    return [document.scrollingElement.scrollWidth, wide, [...document.querySelectorAll("body *")]
        .filter((each) => !each.closest(".scroll, .plot, pre, svg, math"))
        .filter((each) => each.getBoundingClientRect().right > wide + 1)
        .map((each) => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 40)}`).slice(0, 5)];
}"""


MAX_PAGES = 6
"""Of paper, with what is folded left out."""


def pages_of(browser, path, to):
    """How many pages of A4 a page is printed on."""
    with opened(browser, path) as found:
        found.page.pdf(path=to, format="A4", prefer_css_page_size=True)
    return len(re.findall(rb"/Type\s*/Page\b", to.read_bytes()))


@pytest.fixture(scope="module")
def pages(browser, brief, tmp_path_factory):
    """The page of a study of two counts, of a table of seven rows, of a table of twenty series, and of 96 runs."""
    folder = tmp_path_factory.mktemp("pages")
    seven = "workers,img/s\n1,955\n2,1879\n4,3549\n8,6531\n16,9897\n32,15074\n64,17900\n"
    machine = "on a machine with a name that is as long as those of published results (80 GB)"
    table = [
        f"{name} {machine},{count},{count * batch},{90 * count**0.9 * (1 + 0.01 * repeat)}"
        for name in ("gnmt", "transformer", "resnet", "bert", "dlrm")
        for batch in (32, 64, 128, 256)
        for count in (8, 16, 64, 128, 512)
        for repeat in range(3)
    ]
    twenty = "\n".join(("model,workers,global batch,samples_per_s", *table)) + "\n"
    runs = rich_runs(partitions={"alpha": 8, "gpu2": 4}, ways=(*WAYS, ("ddp", "gloo"))).query("batch == 75")
    made = {"study": rich_analysis(runs)}
    for name, text in (("seven", seven), ("twenty", twenty)):
        made[name] = analyze(exchange.run_rows(parse_points(text, name), name))
    assert len(runs) == 96
    found = {"brief": brief}
    for name, analysis in made.items():
        found[name] = folder / name / "report.html"
        found[name].parent.mkdir()
        found[name].write_text(html.render(analysis), encoding="utf-8")
    return found


@pytest.mark.parametrize("name", ["brief", "seven", "twenty", "study"])
def test_what_is_printed_are_six_pages_at_most(browser, pages, name, tmp_path):
    assert 2 <= pages_of(browser, pages[name], tmp_path / "printed.pdf") <= MAX_PAGES


@pytest.mark.parametrize("scripts", [True, False])
def test_a_phone_scrolls_down_only(browser, report, scripts):
    with opened(browser, report, **PHONE, java_script_enabled=scripts) as found:
        scrolled, wide, beyond = found.page.evaluate(WIDER)

        assert beyond == []
        assert scrolled <= wide == 360
        assert found.page.locator("figure .canvas > svg").first.is_visible()


AMISS = """() => {
    const box = (each) => each.getBoundingClientRect(), found = [];
    for (const each of document.querySelectorAll(".plot"))
        if (innerWidth >= 1280 && each.scrollWidth > each.clientWidth + 1)
            found.push(`scrolls: ${each.closest("figure").id}`);
    for (const each of document.querySelectorAll(".scroll"))
        if (each.scrollWidth > each.clientWidth + 1
            && (getComputedStyle(each).overflowX !== "auto" || each.tabIndex !== 0))
            found.push(`cannot be reached: ${each.getAttribute("aria-labelledby")}`);
    for (const figure of document.querySelectorAll("figure")) {
        const texts = [...figure.querySelectorAll(".canvas > svg text")].map((each) => [each.textContent, box(each)])
            .filter(([, at]) => at.width && at.height);
        texts.forEach(([one, a], place) => texts.slice(place + 1).forEach(([other, b]) => {
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 2 && tall > 0.5 * Math.min(a.height, b.height)) found.push(`${figure.id}: ${one} on ${other}`);
        }));
    }
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
        if (node.parentElement.closest("svg, math, pre, code, script, style, .tooltip")) continue;
        for (const word of node.textContent.matchAll(/[^\\s\\/\u00ad-]+/g)) {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            const tops = new Set([...range.getClientRects()].map((each) => Math.round(each.top / 4)));
            if (tops.size > 1) found.push(`broken: ${word[0]}`);
        }
    }
    return found.slice(0, 9);
}"""
"""Scrollbars in figures of a wide screen, columns out of reach, texts on texts, names broken inside a word."""


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_is_clipped_covered_broken_or_out_of_reach(browser, report, pages, width):
    viewport = {"width": width, "height": 900}
    for path in (report, *pages.values()):
        with opened(browser, path, viewport=viewport) as found:
            scrolled, wide, beyond = found.page.evaluate(WIDER)
            assert (beyond, scrolled) == ([], wide)
            assert found.page.evaluate(AMISS) == []
    with opened(browser, report, viewport=viewport) as found:
        inside = found.page.evaluate(
            """() => {
                const box = (each) => each.getBoundingClientRect();
                const list = document.querySelector("nav ul");
                return [...list.querySelectorAll("a")].every((each) =>
                    box(each).left >= 0 && box(each).right <= box(list).right + 6
                    && box(each).bottom <= box(list).bottom + 1);
            }"""
        )
        assert inside


def test_a_finger_shows_the_value_of_a_point(browser, report, analysis):
    with opened(browser, report, **PHONE) as found:
        spot, text, _ = known_point(found.page, analysis)
        found.page.touchscreen.tap(*middle(found.page, spot))

        assert text in found.page.locator("figure[data-figure=speedup] .tooltip").inner_text()


A4_PX = round((210 - 24) / 25.4 * 96)
"""The width of what is printed on A4, within the margins of the page."""


def test_on_paper_nothing_is_cut_off_and_the_colours_are_those_of_the_day(browser, report, tmp_path):
    viewport = {"width": A4_PX, "height": 1000}
    with opened(browser, report, viewport=viewport, color_scheme="dark") as found:
        page = found.page
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")

        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ink = page.evaluate("getComputedStyle(document.querySelector('figure text, figure path')).fill")
        assert sum(int(each) for each in re.findall(r"\d+", ink)[:3]) < 300 or "none" in ink
        cut = page.evaluate(
            """(wide) => [...document.querySelectorAll("table, .canvas > svg, pre, dl")]
                .map((each) => [each, each.getBoundingClientRect()])
                .filter(([each, box]) => box.right > wide + 1 || each.scrollWidth > each.clientWidth + 1)
                .map(([each, box]) => `${each.tagName} ${each.getAttribute("aria-labelledby")}: to ${box.right}`)""",
            A4_PX,
        )
        assert cut == []
        small = page.evaluate(
            """(least) => [...document.querySelectorAll("body *:not(svg *, script, style)")]
                .filter((each) => each.checkVisibility() && [...each.childNodes].some((own) => own.nodeType === 3
                    && own.textContent.trim()))
                .filter((each) => parseFloat(getComputedStyle(each).fontSize) < least)
                .map((each) => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 40)}`)""",
            7.5 * 96 / 72 - 0.01,
        )
        assert small == [], "letters below 7.5 pt"
        assert page.locator("button:visible, nav:visible").count() == 0
        assert not page.locator("#table-breakdown").is_visible(), "what is folded stays folded"
        page.pdf(path=tmp_path / "report.pdf", format="A4", prefer_css_page_size=True)
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext is not installed (poppler-utils): the text of the printed page is not read")
    text = subprocess.run(["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, text=True).stdout
    for word in ("Laws and forecast", "Doubts", "What to type", "How it was measured", "All points"):
        assert word in text, word
    for word in ("Definitions", "How to read", "Karp-Flatt"):
        assert word not in text, "it is folded"


# ---------------------------------------------------------------------------------------------------- for everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_barriers_are_found(browser, report, scheme):
    source = axe_core()
    with opened(browser, report, color_scheme=scheme) as found:
        found.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")

        assert violations(found.page, source) == []


def test_tab_reaches_every_control_and_shows_where_it_is(seen):
    page = seen.page
    wanted = page.evaluate(
        """() => {
            window.wanted = [...document.querySelectorAll("a[href], button, summary, input, select, [tabindex='0']")]
                .filter((each) => each.checkVisibility());
            return window.wanted.length;
        }"""
    )
    reached, unseen = set(), []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        number, visible, words = page.evaluate(
            """() => {
                const at = document.activeElement, look = getComputedStyle(at);
                const ring = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 1;
                return [window.wanted.indexOf(at), ring, `${at.tagName} ${at.textContent.slice(0, 30)}`];
            }"""
        )
        if number >= 0:
            reached.add(number)
            if not visible:
                unseen.append(words)

    assert len(reached) == wanted
    assert unseen == []


def test_names_from_run_files_are_text_and_run_nothing(browser, tmp_path):
    runs = run_table((1, 2), ways=(("serial", "none"), ("horovod", "mpi")), failed=(("horovod", "mpi", 2, 2),))
    runs = runs.assign(study=f"s{EVIL}", partition=f"p{EVIL}", host=EVIL, cpu_model=EVIL, run=runs["run"] + EVIL)
    runs["transport"] = runs["transport"].replace("mpi", EVIL)
    runs["reason"] = runs["reason"].where(runs["status"] == "done", EVIL)
    path = tmp_path / "report.html"
    path.write_text(html.render(analyze(runs)), encoding="utf-8")
    with opened(browser, path) as found:
        page = found.page
        page.locator("figure[data-figure=speedup] .plot").focus()
        page.keyboard.press("Home")

        assert page.evaluate("window.evil") is None
        assert page.locator("img").count() == 0
        assert found.thrown == []
        assert [text for text in found.said if text.startswith(("error", "warning"))] == []
        assert found.asked == [path.as_uri()]
        for where in (".eyebrow", "#doubts", "#points"):
            assert EVIL in page.locator(where).text_content(), where
        assert any(EVIL in text for text in page.locator(".spot title").all_text_contents())
