"""The runs of a report in a real browser: the list, the page of one run, its address, the keyboard, a phone."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, Seen, axe_core, chromium, opened, violations
from drawn_figures import figures_only
from make.synthetic_study import write_study

from horovod_study import records
from horovod_study.analysis.steps.accounting import account, account_runs
from horovod_study.analysis.study import Analysis, analyze
from horovod_study.report.page import html

REASON = "rank 1 ended: <img src=x onerror=document.title='broken'>"
EVIL = "a\"b'</script><b onclick=alert(1)>%20&#x27;"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    runs = write_study(
        tmp_path_factory.mktemp("browser") / "runs",
        ways=(("serial", "none"), ("horovod", "nccl")),
        workers=(1, 2, 10),
        repeats=13,
        steps=150,
        warmup=30,
        failed={("alpha", "horovod", "nccl", 2, 75, 2): REASON},
    )
    table, recorded = records.recorded_runs([runs])
    made = analyze(table, records.epoch_table(runs), accounting=account(table, account_runs(recorded), views=False))
    named = dict.fromkeys(made.runs["run"][:1], EVIL)
    return dataclasses.replace(
        made,
        **{name: getattr(made, name).replace({"run": named}) for name in ("runs", "run_profiles", "accounting")},
        provenance={**made.provenance, "doubts": [*made.provenance["doubts"], f"{EVIL}: somebody wrote this."]},
    )


@pytest.fixture(scope="module")
def report(found: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    with figures_only():
        path.write_text(html.render(found), encoding="utf-8")
    return path


@pytest.fixture
def seen(browser: Any, report: Path) -> Iterator[Seen]:
    with opened(browser, report) as page:
        yield page
        assert page.thrown == [] and [text for text in page.said if text.startswith("error")] == []
        assert [each for each in page.asked if not each.startswith("file:")] == []


def rows(page: Any) -> list[list[str]]:
    return page.eval_on_selector_all(
        "#runs .runs-list tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_the_list_shows_finds_and_sorts(seen: Seen, found: Analysis):
    page, count = seen.page, len(found.runs)
    assert len(rows(page)) == 50 and f"The first 50 of {count} runs." in page.inner_text("#runs [role=status]")

    page.locator(".runs-more button").click()
    assert len(rows(page)) == count
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 51, "the reader goes on where they were"

    page.fill("#runs-search", "rank 1 ENDED")
    assert [row[4] for row in rows(page)] == ["failed"]
    page.fill("#runs-search", "no such run")
    assert rows(page) == [] and "No run is like that." in page.inner_text("#runs [role=status]")
    page.fill("#runs-search", "")

    page.select_option("#runs-workers", "10")
    assert {row[2] for row in rows(page)} == {"10 on 2 nodes"} and len(rows(page)) == 13
    page.select_option("#runs-status", label="failed")
    assert rows(page) == []
    page.select_option("#runs-workers", "")
    assert len(rows(page)) == 1
    page.select_option("#runs-status", "")

    head = page.locator(".runs-list").get_by_role("columnheader", name="samples/s")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator(".runs-more button").click()
    speeds = [float(row[5].replace("\u202f", "").replace("\u2013", "nan")) for row in rows(page)]
    known = [speed for speed in speeds if speed == speed]
    assert known == sorted(known) and speeds[-1] != speeds[-1], "what is not known stands last"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert float(rows(page)[0][5].replace("\u202f", "")) == max(known)


def test_a_run_has_a_page_and_an_address(seen: Seen, found: Analysis):
    page = seen.page
    page.select_option("#runs-workers", "10")
    page.locator("#runs .runs-list tbody a").first.press("Enter")
    name = page.inner_text("#run-heading")
    run = found.runs.set_index("run").loc[name]
    assert page.evaluate("document.activeElement.id") == "run-heading"
    assert page.evaluate("decodeURIComponent(location.hash)") == f"#run={name}"
    text = page.inner_text("#run-page")
    assert "node1, node2" in text and f"--out runs/{name}" in text and "None." in text
    numbers = page.eval_on_selector_all(".run-numbers dl > div", "all => all.map(each => each.innerText)")
    assert any(line.startswith("Throughput") and f"{run['samples_per_s']:.0f}"[:2] in line for line in numbers)
    plots = page.eval_on_selector_all(".run-lines svg", "all => all.map(each => each.getAttribute('aria-label'))")
    assert [label.split(":")[0] for label in plots] == [
        *("Step", "Waiting for gradients", "Processor, per rank", "Memory, per rank", "GPU use", "GPU memory"),
        "Power of all GPUs",
    ]
    assert "NaN" not in page.inner_html("#run-page")
    page.get_by_text("The numbers behind these lines").click()
    folded = page.locator("#run-page details[open] tbody tr")
    folded.first.wait_for()  # the rows are made when the fold opens
    assert folded.count() == 15
    page.get_by_text("Mean step of its 10 ranks").click()
    ranks = page.get_by_role("region", name="Mean step of each rank").locator("tbody tr")
    ranks.first.wait_for()
    assert ranks.count() == 10

    page.get_by_role("button", name="Next run").click()
    page.wait_for_function("name => document.getElementById('run-heading').textContent !== name", arg=name)
    page.go_back()
    page.wait_for_function("name => document.getElementById('run-heading').textContent === name", arg=name)
    page.keyboard.press("Escape")
    page.locator("#run-page").wait_for(state="detached")
    assert page.evaluate("document.activeElement.textContent") == name, "the keyboard is where it was"


def test_an_address_opens_its_run_and_an_unknown_one_is_told(browser: Any, report: Path, found: Analysis):
    failed = found.runs.loc[found.runs["status"] == "failed", "run"].iloc[0]
    with opened(browser, report) as seen:
        seen.page.goto(f"{report.as_uri()}#run={failed}")
        seen.page.wait_for_selector("#run-heading")
        text = seen.page.inner_text("#run-page")
        assert f"failed: {REASON}" in text and "Doubts that name this run" in text
        assert seen.page.title() != "broken"
        seen.page.goto(f"{report.as_uri()}#run=nobody%")
        seen.page.wait_for_selector("#run-place .alert")
        assert "no run called nobody%" in seen.page.inner_text("#run-place")
        assert seen.thrown == []


def test_a_hostile_name_is_a_name(seen: Seen, found: Analysis):
    page = seen.page
    page.fill("#runs-search", "onclick")
    page.get_by_role("link", name=EVIL).click()
    assert page.inner_text("#run-heading") == EVIL
    assert f"{EVIL}: somebody wrote this." in page.inner_text("#run-page .doubts")
    assert page.locator("#runs b, #runs img").count() == 0


def test_the_runs_are_accessible(seen: Seen, found: Analysis):
    page, source = seen.page, axe_core()
    page.locator("#runs .runs-list tbody a").nth(20).click()
    page.wait_for_selector("#run-page")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert [each for each in violations(page, source) if "run" in each] == []


def test_the_runs_fit_a_phone_and_paper(browser: Any, report: Path):
    with opened(browser, report, **PHONE) as seen:
        seen.page.locator("#runs .runs-list tbody a").nth(40).tap()
        seen.page.wait_for_selector("#run-page")
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
        seen.page.emulate_media(media="print")
        assert not seen.page.locator(".runs-list").is_visible() and seen.page.locator("#run-page").is_visible()


def test_without_a_script_the_plain_table_is_there(browser: Any, report: Path, found: Analysis):
    with opened(browser, report, java_script_enabled=False) as seen:
        seen.page.locator("#runs summary").click()
        assert seen.page.locator("#runs .runs-plain tbody tr").count() == len(found.runs)


def test_a_thousand_runs_stay_usable(browser: Any, report: Path, tmp_path: Path):
    """The page makes the rows that are shown, and no others, also with twenty times as many runs."""
    text = report.read_text(encoding="utf-8")
    head, begin, rest = text.partition('id="runs-data">')
    block, end, tail = rest.partition("</script>")
    data = json.loads(block)
    many = 20

    def longer(value: Any, size: int) -> Any:
        if isinstance(value, list) and len(value) == size:
            return value * many
        if isinstance(value, dict):
            return {name: longer(each, size) for name, each in value.items()}
        return value

    count = len(data["names"])
    large = {name: longer(data[name], count) for name in data if name not in ("names", "laps", "doubts", "ranks")}
    large |= {
        "names": [f"{n}/{name}" for n in range(many) for name in data["names"]],
        "ranks": {},
        "doubts": {"of": [], "at": []},
    }
    large |= {"laps": [[title, color, values * many] for title, color, values in data["laps"]]}
    path = tmp_path / "report.html"
    safe = json.dumps(large).replace("<", "\\u003c")
    path.write_text(f"{head}{begin}{safe}{end}{tail}", encoding="utf-8")

    with opened(browser, path) as seen:
        assert seen.page.locator("#runs .runs-list tbody tr").count() == 50
        seen.page.fill("#runs-search", "19/")
        assert f"The first 50 of {count} runs of 1040 in all." in seen.page.inner_text("#runs [role=status]")
        assert seen.page.locator("#runs .runs-list tbody tr").count() == 50
        assert seen.thrown == []
