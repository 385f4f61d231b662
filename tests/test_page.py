"""The page: what pointing at its figures says, what its script may do, the headline, hostile names."""

import base64
import hashlib
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import get_args

import matplotlib
import pandas as pd
import pytest
from make.synthetic_runs import run_table
from matplotlib.figure import Figure

from horovod_study.analysis.series import culprits
from horovod_study.analysis.study import analyze
from horovod_study.report import grammar as panels
from horovod_study.report.figures import catalogue, convergence
from horovod_study.report.grammar import side_by_side
from horovod_study.report.kit import style
from horovod_study.report.page import html, tables
from horovod_study.report.page.tables import REMEDIES, doubts_of
from horovod_study.text import numbers

pytestmark = pytest.mark.slow

MPI = (("serial", "none"), ("horovod", "mpi"))
HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "\"&'<>",
    "{{7*7}}",
    "{% raw %}",
    "<!--<script>",
    "\u202eetartsefni\u2066",
    "\U0001f680 \u2028 \u2029",
    "$\\frac{$",
)


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts of its scripts by type."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words = [], [], []
        self._script = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("type", "text/javascript") if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script is None:
            self.words.append(data)
        elif self.scripts and self.scripts[-1][0] is self._script:
            self.scripts[-1] = (self._script, self.scripts[-1][1] + data)
        else:
            self.scripts.append((self._script, data))


def tips_of(page, name):
    """Return what pointing at the marks of a figure says: x and y in its SVG, and the text."""
    svg = page.partition(f'<figure id="figure-{name}"')[2].partition("</figure>")[0]
    found = re.findall(
        r'<(?:circle c|rect )x="([\d.]+)" (?:c)?y="([\d.]+)"[^>]*class="spot"[^>]*><title>(.*?)</title>', svg
    )
    return [(float(x), float(y), unescape(text)) for x, y, text in found]


def data_of(page, name):
    """Return the CSV that the page carries for a figure, None for none."""
    found = re.search(
        r'<script type="application/json">(.*?)</script>',
        page.partition(f'"figure-{name}"')[2].partition("</figure>")[0],
    )
    return found and json.loads(found[1])


@pytest.fixture(scope="module")
def analysis():
    return analyze(run_table(ways=(*MPI, ("horovod", "gloo"))))


@pytest.fixture(scope="module")
def page(analysis):
    return html.render(analysis)


# ---------------------------------------------------------------------------------------------------- one file


def test_the_page_forbids_requests_and_every_script_but_its_own(page):
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    (script,) = [text for kind, text in Elements(page).scripts if kind == "text/javascript"]
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")

    assert "default-src 'none'" in policy.replace("&#39;", "'")
    assert f"script-src 'sha256-{digest}'" in policy.replace("&#39;", "'")
    assert policy.count("unsafe") == 1 and "style-src 'unsafe-inline'" in policy.replace("&#39;", "'")


def test_the_page_asks_for_nothing_and_is_whole_without_its_script(page):
    elements = Elements(page)
    links = [values.get("href", "") for tag, values in elements.tags if tag in ("a", "link", "use")]
    tags = {tag for tag, _ in elements.tags}

    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in page and "url(http" not in page
    assert not any(":" in link or link.startswith("//") for link in links)
    assert not {"img", "iframe", "link", "object", "embed", "base", "form", "button", "input"} & tags
    assert not [name for _, values in elements.tags for name in values if name.startswith("on")]
    assert len(page.encode("utf-8")) < 1_500_000


def test_the_contents_lead_to_every_section_in_its_order(page):
    contents = page.partition('<nav aria-label="Contents">')[2].partition("</nav>")[0]
    sections = re.findall(r'<section id="([^"]+)"', page)

    assert re.findall(r'href="#([^"]+)"', contents) == sections and len(sections) > 5
    assert '<main id="main"' in page and 'href="#main"' in page


# ---------------------------------------------------------------------------------------------------- figures


def test_every_figure_says_the_values_of_its_marks(page, analysis):
    assert all(tips_of(page, drawing.name) for drawing in catalogue.drawings(analysis))


def test_what_pointing_says_is_the_table_of_points(page, analysis):
    tips = {text for _, _, text in tips_of(page, "speedup")}
    row = analysis.points.query("series == 'local horovod/mpi batch 75' and workers == 8").iloc[0]
    value = numbers.with_interval(row["speedup_plain"], row["speedup_plain_low"], row["speedup_plain_high"])
    text = value.replace(" ", "\u00d7 ", 1)

    assert f"Horovod/MPI: 8 workers: {text}, 3 repeats" in tips
    assert "Horovod/Gloo: 8 workers: 3.71\u00d7, 2 repeats" in tips
    assert len(tips) == len(tips_of(page, "speedup")) == 9


def test_the_place_of_a_tip_is_the_place_of_its_mark(page):
    used = {
        (round(float(x), 1), round(float(y), 1)) for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', page)
    }
    near = {(round(x + a / 10, 1), round(y + b / 10, 1)) for x, y in used for a in (-1, 0, 1) for b in (-1, 0, 1)}

    assert {(x, y) for x, y, _ in tips_of(page, "speedup")} <= near


def test_a_bar_is_pointed_at_where_it_is_drawn():
    def draw(width_in):
        figure = Figure(figsize=(width_in, 3))
        axes = figure.subplots()
        axes.set(xlim=(0, 4), ylim=(0, 10))
        panels.mark(axes.plot([1, 2], [3, math.nan]), series="line", tips=["one", "nowhere"])
        panels.mark(axes.bar([1, 3], [5, 6]), series="bars", tips=["first", "<second>"])
        return figure

    svg = panels.inline(SimpleNamespace(name="d", draw=draw))
    spots = ElementTree.fromstring(svg).findall(".//*[@class='spot']")

    assert [each[0].text for each in spots] == ["line: one", "bars: first", "bars: <second>"]
    heights = [float(each.get("height")) for each in spots[1:]]
    assert heights[1] / heights[0] == pytest.approx(6 / 5, rel=0.01)


def test_files_of_a_figure_do_not_know_of_the_page(analysis, monkeypatch):
    (speedup,) = [each for each in catalogue.drawings(analysis) if each.name == "speedup"]

    def as_file(form):
        with style.style():
            return style.to_bytes(style.settled(speedup.draw(5.9)), form)

    marked = as_file("svg")
    monkeypatch.setattr(panels, "mark", lambda *_, **__: None)

    assert as_file("svg") == marked and b"3 repeats" not in marked


def test_the_data_of_a_figure_travel_with_it_while_they_are_few(page, analysis, monkeypatch):
    (speedup,) = [each for each in catalogue.drawings(analysis) if each.name == "speedup"]
    rows = speedup.data.to_csv(index=False, lineterminator="\n")

    assert data_of(page, "speedup") == (rows if len(rows) <= html.MAX_CSV else None)
    assert data_of(page, "throughput").startswith("series,setting,")
    monkeypatch.setattr(html, "MAX_CSV", len(rows) - 1)
    assert data_of(html.render(analysis), "speedup") is None, "its button leads to the file"


# ---------------------------------------------------------------------------------------------------- the headline


def told(analysis, **changes):
    """Return the two lines of the headline of an analysis in which these values of the largest finding are other."""
    found = max(analysis.provenance["findings"], key=lambda each: each["workers"])
    best = {**found["series"][0], **changes.pop("best", {})}
    step = changes.pop("step", {})
    step = None if step is None else {**found["step"], **step}
    found = {**found, "series": [best, *found["series"][1:]], "step": step, **changes.pop("found", {})}
    other = replace(analysis, provenance={**analysis.provenance, "findings": [found]}, **changes)
    return tables.subheadline(other).replace("\u202f", " ")


GROWTH = {"data": 0.1, "forward": 0.1, "backward": 0.2, "sync": 0.52, "update": 0.08}


def knee(analysis, **values):
    answer = {"workers": 11, "low": 9, "high": 14, "searched_to": 64, "doubts": [], "why_not": None} | values
    name = max(analysis.provenance["findings"], key=lambda each: each["workers"])["series"][0]["series"]
    return {"series": {name: {"recommendation": {"answers": {"knee": answer}}}}, "summary": {}}


@pytest.mark.parametrize(
    ("counts", "cores", "why"),
    [((1, 2), 64, "2 worker counts, and a law is tested by three or more"), ((1, 2, 4), 4, "its machine has 4 cores")],
)
def test_a_study_of_few_counts_or_of_one_full_machine_forecasts_nothing_and_says_why(counts, cores, why):
    runs = run_table(counts, partition="local", failed=()).assign(device="cpu", cores=cores, nodes=1)
    made = analyze(runs)
    page = html.render(made)

    assert (made.forecast["kind"] == "forecast").sum() == 0 and "forecast" not in {
        each.name for each in catalogue.drawings(made)
    }
    assert page.count(why) == 1, "in one line for all series"
    sections = re.findall(r'<section id="([a-z-]+)"', page)
    if len(counts) == 2:
        assert sections == "scaling step synchronisation forecast doubts points".split()
        assert made.curves.empty and '"speedup-law' not in page
    else:
        assert 'id="table-laws"' in page and sections[-1] == "points"


def test_of_all_sections_at_most_eight_follow_inside_a_step():
    after = [place for place in html.SECTIONS if place not in ("scaling", "step")]

    assert len(after) <= 8


@pytest.mark.parametrize(("last", "of_three", "flat"), [(0.9, 3, True), (0.4, 3, False), (0.4, 1, True)])
def test_learning_curves_that_stay_flat_in_most_repeats_are_left_out(last, of_three, flat):
    rows = [("a", 1, 1, 75, 100, 1.0, 3, 3), ("a", 1, 1, 75, 200, last, of_three, 3)]
    columns = ["series", "workers", "nodes", "batch", "samples", "test_mse_median", "evaluations", "repeats"]

    assert convergence.is_flat(pd.DataFrame(rows, columns=columns)) is flat


def test_doubts_are_grouped_and_what_is_missing_comes_first(golden):
    part = "a, 2 workers over one plain worker: 6 % of T(N) - T(1) is unexplained"
    told = {
        "a: repeats spread by 20 % at 1 worker.": "unsteady",
        "a: no plain baseline.": "baseline",
        "1 of 4 runs gave no result.": "missing",
        "odd.": "other",
        part: "parts",
    }

    found = doubts_of({"doubts": [*told], "doubt_kinds": [*told.values()]}, {"a": "Horovod/MPI"}, {})

    golden([each.text for each in found], "4 runs", "Horovod/MPI", "20 %", "1 worker", "2 workers", "6 %", "odd.")
    assert all(each.remedy and each.command for each in found)


def test_a_doubt_has_the_remedy_of_its_kind_whatever_its_words():
    table, *kinds = get_args(culprits.Kind)

    found = doubts_of({"doubts": [f"{place}." for place in range(len(kinds))], "doubt_kinds": kinds}, {}, {})

    assert tuple(REMEDIES) == (table, *kinds)
    assert [(each.remedy, each.command) for each in found] == [REMEDIES[kind] for kind in kinds]


def test_what_to_do_about_the_numbers_of_a_table_is_nothing_that_runs_a_study():
    told, kinds = ["of a table.", "a: repeats spread by 20 % at 1 worker."], ["table", "unsteady"]

    of_runs, of_table = (
        doubts_of({"doubts": told[first:], "doubt_kinds": kinds[first:]}, {"a": "A"}, {})[-1] for first in (1, 0)
    )

    assert of_runs.text == of_table.text
    assert "run STUDY" in of_runs.command and "run STUDY" not in of_table.command
    assert "table" in of_table.remedy


@pytest.mark.usefixtures("no_figures")
def test_doubts_are_in_sight_the_worst_first_and_each_says_what_to_type(analysis):
    told = [f"a{place}: repeats spread by 20 % at {place} workers." for place in range(html.MAX_ROWS + 1)]
    doubts = {"doubts": [*told, "1 of 4 runs gave no result."], "doubt_kinds": [*["unsteady"] * len(told), "missing"]}
    doubted = replace(analysis, provenance={**analysis.provenance, **doubts})
    shown = html.render(doubted).partition('<section id="doubts"')[2].partition("</section>")[0]
    sight = shown.partition("<details")[0]

    assert sight.count("repeats spread") == len(told)
    assert sight.index("gave no result") < sight.index("repeats spread")
    assert sight.count(f"<code>horovod-study run {analysis.provenance['commands'][0].split()[-1]}") == len(told) + 1


@pytest.mark.usefixtures("no_figures")
def test_what_to_type_names_the_run_with_most_workers_of_the_series(analysis):
    runs = analysis.runs[analysis.runs["status"] == "done"].sort_values("workers", kind="stable")
    names = dict(zip(runs["series"], runs["run"], strict=True))
    doubts = [*(f"{series}: parts do not add up, case {place}." for place, series in enumerate(names)), "odd."]
    kinds = {"doubts": doubts, "doubt_kinds": [*["parts"] * len(names), "other"]}
    shown = html.render(replace(analysis, provenance={**analysis.provenance, **kinds}))

    assert len(set(names.values())) > 2
    for run in (*names.values(), runs["run"].iloc[-1]):
        assert re.search(rf"<code>horovod-study explain \S*{re.escape(run)}</code>", shown)
    assert "RUN_DIR" not in shown


def test_marks_of_several_series_at_one_count_do_not_hide_each_other():
    rows = pd.DataFrame({"workers": [1, 2, 1, 2, 4], "speedup": [1.0, 1.9, 1.01, 1.2, math.nan]})

    at = side_by_side(rows, "speedup", 2, 5.0)

    assert at[2] - at[0] > 0.02 and at[0] + at[2] == pytest.approx(2)
    assert list(at[[1, 3, 4]]) == [2, 2, 4], "values that differ are left where they belong"


def test_the_headline_names_loss_and_knee(analysis, golden):
    growth = {lap: GROWTH.get(lap, 0.0) for lap in analysis.provenance["findings"][0]["step"]["growth"]}

    golden(told(analysis, step={"growth": growth}, holdout=knee(analysis)), "52 %", "11 workers", "14")
    golden(told(analysis, step={"growth": growth}, holdout=knee(analysis, workers=5, low=4, high=7)), "5 workers")


@pytest.mark.parametrize(
    "change",
    [
        {"step": None},
        {"step": {"growth": {**GROWTH, "sync": None}}},
        {"step": {"growth": {**GROWTH, "sync": 1.3}}},
        {"step": {"grown_s": None}},
        {"step": {"grown_s": -0.001}},
        {"best": {"high": None, "low": None}},
        {"best": {"high": 8.2}},
        {"best": {"speedup": None}},
        {"found": {"mode": "mixed"}},
    ],
    ids=["no step", "hidden", "others shrank", "no growth", "shorter", "no interval", "ideal", "no base", "mixed"],
)
def test_a_loss_that_the_data_do_not_support_is_not_named(analysis, change):
    assert "loss" not in told(analysis, **change, holdout=knee(analysis))


@pytest.mark.parametrize(
    "values",
    [{"workers": None}, {"high": None}, {"low": float("nan")}, {"why_not": "too few"}, {"doubts": ["far beyond"]}],
    ids=lambda values: next(iter(values)),
)
def test_a_knee_that_is_open_or_doubtful_is_not_named(analysis, values):
    text = told(analysis, holdout=knee(analysis, **values))

    assert "cost more" not in text and "nan" not in text.lower()


def test_without_a_forecast_there_is_no_knee(analysis):
    assert "cost more" not in told(analysis, holdout={"series": {}, "summary": {}})
    assert tables.subheadline(analyze(run_table((1,), ways=MPI[:1], failed=()))) == ""


@pytest.mark.parametrize(
    ("partition", "start"),
    [("local", "<h1>2 workers over Horovod/MPI run"), ("alpha", "<h1>On alpha, 2 workers over Horovod/MPI run")],
)
@pytest.mark.usefixtures("no_figures")
def test_the_headline_says_where_unless_it_is_here(partition, start):
    assert start in html.render(analyze(run_table((1, 2), ways=MPI, failed=(), partition=partition)))


# ---------------------------------------------------------------------------------------------------- hostile names


@pytest.fixture(scope="module")
def hostile():
    tables = [run_table((1, 2), ways=MPI, repeats=2, failed=[("horovod", "mpi", 2, 0)], partition=f"{name} {side}")
              for name in HOSTILE[:1] for side in "ab"]  # fmt: skip
    runs = pd.concat(tables, ignore_index=True)
    text = " ".join(HOSTILE)
    runs["reason"] = runs["reason"].where(runs["reason"] == "", text)
    runs = runs.assign(study=text, cpu_model=text, host=text, os=text, run=[f"{text} {i}" for i in range(len(runs))])
    runs["partition"] = runs["partition"] + " " + text
    return html.render(analyze(runs, commands=[text]))


def test_hostile_names_add_no_element_and_no_attribute(hostile, page):
    evil, good = Elements(hostile), Elements(page)
    kinds = {(tag, name) for tag, values in good.tags for name in values}

    assert {tag for tag, _ in evil.tags} <= {tag for tag, _ in good.tags} | {"details", "summary", "pattern"}
    assert not [
        name for _, values in evil.tags for name in values if name.startswith("on") or name in ("src", "srcdoc")
    ]
    assert len([each for each in evil.scripts if each[0] == "text/javascript"]) == 1
    assert {kind for kind in ((tag, name) for tag, values in evil.tags for name in values) if kind[0] == "a"} <= kinds
    assert "49" not in re.findall(r"partition (.*?) \u00b7", " ".join(evil.words))


def test_hostile_names_reach_the_script_as_they_are(hostile):
    for kind, text in Elements(hostile).scripts:
        assert kind == "text/javascript" or not set("<>&\u2028\u2029") & set(text)
    assert any(HOSTILE[0] in text for _, _, text in tips_of(hostile, "speedup"))
    assert '{"svg":' not in hostile.partition("<main")[0]


@pytest.mark.parametrize("text", HOSTILE)
def test_json_in_a_script_element_comes_back_as_it_was(text):
    safe = panels.script_json({text: [text]})

    assert not set("<>&\u2028\u2029") & set(safe)
    assert json.loads(safe) == {text: [text]}


def test_equal_analyses_give_equal_pages_wherever_they_are_drawn(analysis, page):
    with matplotlib.rc_context({"figure.dpi": 150}):
        assert html.render(analysis) == page
