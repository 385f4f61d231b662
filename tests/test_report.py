"""The report: same bytes for the same study, self-contained, everything escaped, honest words, printable figures."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import matplotlib
import pandas as pd
import pytest
from drawn_figures import figures_only
from make.synthetic_runs import evaluation_table, run_table
from make.synthetic_study import write_study

from horovod_study import records
from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis, analyze
from horovod_study.cli import main
from horovod_study.errors import AnalysisError, RecordError
from horovod_study.report import grammar as panels
from horovod_study.report.figures import catalogue
from horovod_study.report.kit import style
from horovod_study.report.page import html
from horovod_study.report.page import tables as sentences
from horovod_study.report.page.tables import tables
from horovod_study.text import numbers, words

pytestmark = pytest.mark.slow

LAPTOP = (("serial", "none"), ("horovod", "mpi"), ("horovod", "gloo"))
EVIL = "<script>alert('x')</script> & $\\frac{$"


@pytest.fixture(scope="module")
def runs():
    return run_table()


@pytest.fixture(scope="module")
def analysis(runs):
    return analyze(runs)


@pytest.fixture(scope="module")
def page(analysis):
    return html.render(analysis)


FIGURES = ("speedup", "efficiency", "breakdown", "throughput", "epoch_time", "losses")
"""Of any study with a parallel series at two worker counts; others need rows that such a study has not."""


@pytest.fixture(scope="module")
def laptop():
    return analyze(run_table((1, 2), ways=LAPTOP, failed=()))


@pytest.fixture(scope="module")
def written(laptop, tmp_path_factory):
    return html.write_report(laptop, tmp_path_factory.mktemp("report"))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_a_number_that_stands_in_several_places_is_the_same_everywhere(noise, golden):
    """Headline, sentences, and the tables of points, parts, losses and pairs, each rounded: the same digits."""
    analysis = analyze(run_table((1, 2, 4), noise=noise, failed=()))
    labels = style.series_labels(analysis.points)
    made = {table.name: table for table in tables(analysis)}
    found = sentences._largest(analysis)

    def plain(text):
        return re.sub(r"(?<=\d) (?=\d{3}\b)", "", re.sub(r"[\u2009\u00a0\u202f]", " ", str(text)))

    def alone(text):
        return float(re.match(r"[\d.]+", plain(text))[0])

    def rows(name):
        """Rows of a table by series and workers, by the heads of their columns."""
        heads = [f"{column.head} {column.unit}".strip() for column in made[name].columns]
        return {
            (group.title.partition(",")[0], row[0]): dict(zip(heads, row, strict=True))
            for group in made[name].groups
            for row in group.rows
        }

    points, parts, lost = rows("points"), rows("breakdown"), rows("losttime")
    one = next(row for (label, _), row in parts.items() if label == "plain PyTorch")
    for place, row in points.items():
        pair = [plain(each).split(" ")[0] for each in (parts[place]["Step ms"], row["Step ms"])]
        digits = min(len(each.partition(".")[2]) for each in pair)  # each has those that its interval is worth
        assert float(pair[0]) == pytest.approx(float(pair[1]), abs=0.51 * 10.0**-digits)
        if "\u2013" in (row["Waiting %"], parts[place]["Waiting ms"]):
            assert row["Waiting %"] == parts[place]["Waiting ms"]
            continue
        share = 100 * alone(parts[place]["Waiting ms"]) / alone(row["Step ms"])
        assert share == pytest.approx(alone(row["Waiting %"]), abs=100 * 0.06 / alone(row["Step ms"]) + 0.6)
        if place in lost:
            grown = alone(row["Step ms"]) - alone(one["Step ms"])
            assert float(plain(lost[place]["Together ms"]).split(" ")[0].replace("\u2212", "-")) == pytest.approx(
                grown, abs=0.11
            )
    row = points[labels[found["series"][0]["series"]], str(found["workers"])]
    text = plain(" ".join(" ".join(paragraph) for paragraph in sentences.sentences(analysis)))
    assert plain(row["Speedup"]) in plain(sentences.headline(analysis)) + text
    assert f"an efficiency of {round(alone(row['Efficiency %']))} %" in text
    assert f"at {plain(row['Throughput samples/s']).split(' ')[0]} samples/s" in text
    assert f"takes {row['Step ms']} ms" in text
    assert f"{row['Waiting %']} % of it waits for gradients" in text
    golden(text, row["Waiting %"])
    heads = [column.head for column in made["transports"].columns]
    ratios = {
        alone(dict(zip(heads, each, strict=True))["B/A"])
        for group in made["transports"].groups
        for each in group.rows
        if each[0] == "samples/s" and str(found["workers"]) in each[1:3]
    }
    said = {alone(each) for each in re.findall(r"(?:ratio|\. \S+ is|^\S+ is) ([\d.]+ \[[^]]*\])", text)}
    assert said
    for value in said:
        assert any(each == pytest.approx(value, rel=0.006) for ratio in ratios for each in (ratio, 1 / ratio))
    for column in made["synchronisation"].columns:  # another statistic of the same quantity says so
        assert column.unit not in ("ms", "s", "%") or column.head.startswith("Median")


# ---------------------------------------------------------------------------------------------------- the analysis


def test_equal_runs_in_any_order_give_equal_analyses(runs, analysis):
    again = analyze(runs.sample(frac=1, random_state=1))

    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(analysis, name), getattr(again, name))
    for name in DOCUMENTS:
        assert json.dumps(getattr(analysis, name), allow_nan=False) == json.dumps(getattr(again, name), allow_nan=False)


def test_the_input_of_the_analysis_is_not_changed(runs):
    before = runs.copy(deep=True)
    analyze(runs)

    pd.testing.assert_frame_equal(runs, before)


def test_fits_are_over_the_plain_baseline_and_say_so(analysis, golden):
    fits = analysis.fits["series"]

    assert list(fits) == [f"local {way} batch 75" for way in ("horovod/mpi", "horovod/gloo", "ddp/gloo")]
    assert {"linear", "amdahl", "gustafson", "usl"} <= set(fits["local horovod/mpi batch 75"]["laws"])
    golden(fits["local horovod/mpi batch 75"]["baseline"], "batch 75", "27985 samples/s")


def test_without_a_plain_worker_everything_is_over_the_wrapped_one(golden):
    analysis = analyze(run_table(ways=(("horovod", "mpi"),), failed=()))

    assert analysis.provenance["baseline"] == "wrapped"
    golden(analysis.fits["series"]["local horovod/mpi batch 75"]["baseline"], "horovod/mpi")
    assert "one worker inside Horovod (horovod/mpi)" in html.render(analysis)


def test_findings_carry_the_numbers_of_the_points(analysis):
    (found,) = analysis.provenance["findings"]
    best = analysis.points.query("series == 'local horovod/mpi batch 75' and workers == 8").iloc[0]

    assert found["workers"] == 8
    assert [each["series"].split()[1] for each in found["series"]] == ["horovod/mpi", "ddp/gloo", "horovod/gloo"]
    assert found["series"][0]["speedup"] == best["speedup_plain"]
    assert [each["resolved"] for each in found["comparisons"]] == [True, None]
    assert found["step"]["share"]["sync"] == pytest.approx(0.223, abs=1e-3)


def test_curves_mark_what_lies_beyond_the_measurement(analysis):
    curves = analysis.curves
    beyond = curves["extrapolated"]

    assert (curves.loc[beyond, "workers"] > 8).all() and (curves.loc[~beyond, "workers"] <= 8).all()
    assert curves["workers"].max() == 12
    assert (curves.groupby("series")["selected"].any()).all()


def test_what_was_saved_and_loaded_gives_the_same_page(analysis, page, tmp_path):
    records.save_tables(tmp_path, analysis.tables(), analysis.documents())
    tables, documents = records.load_tables(tmp_path, TABLES, DOCUMENTS)

    assert html.render(Analysis(**tables, **documents)) == page


def test_a_damaged_analysis_directory_is_refused_in_one_line(analysis, golden):
    with golden.raises(AnalysisError, match=r"points\.csv"):
        Analysis(**{**analysis.tables(), **analysis.documents(), "points": analysis.points.drop(columns="setting")})
    with golden.raises(AnalysisError, match=r"provenance\.json.*99"):
        Analysis(**{**analysis.tables(), **analysis.documents(), "provenance": {"schema": 99}})


@pytest.mark.parametrize(
    "table",
    [
        run_table((1,), ways=(("serial", "none"),), failed=()),
        run_table(
            (1, 2), ways=(("horovod", "mpi"),), failed=[("horovod", "mpi", n, r) for n in (1, 2) for r in range(3)]
        ),
        run_table((2,), ways=(("horovod", "mpi"),), repeats=1, failed=()),
    ],
    ids=["only plain", "all failed", "one parallel run without baseline"],
)
def test_a_study_with_little_in_it_has_a_page_all_the_same(table, tmp_path):
    paths = html.write_report(analyze(table), tmp_path)

    assert paths[0].read_text(encoding="utf-8").count("<h1>") == 1


# ---------------------------------------------------------------------------------------------------- the page


class Outline(HTMLParser):
    """Collects what the tests ask of the page: tags with attributes, ids, heading levels, visible text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.headings = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if "id" in values:
            self.ids.append(values["id"])
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def named(self, tag):
        return [values for name, values in self.tags if name == tag]


def test_headings_are_in_order_tables_have_scopes_plots_have_names(analysis, page):
    outline = Outline(page)
    svgs = outline.named("svg")

    assert outline.headings[0] == 1 and outline.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert all("scope" in values for values in outline.named("th"))
    assert len(svgs) == len(catalogue.drawings(analysis)) >= 4
    assert all(values["role"] == "img" and len(values["aria-label"]) > 20 for values in svgs)


def test_every_id_is_unique_and_every_reference_leads_somewhere(page):
    outline = Outline(page)
    inside = [values["href"][1:] for values in outline.named("a") if values["href"].startswith("#")]
    inside += re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'xlink:href="#([^"]+)"', page)

    assert len(outline.ids) == len(set(outline.ids))
    assert set(inside) <= set(outline.ids)


def test_a_page_with_learning_is_as_sound():
    runs = run_table((1, 2), ways=LAPTOP[:2], failed=(), change={"floor_mse": 6.8e-5, "seed": 1})
    analysis = analyze(runs, evaluation_table(runs), targets=[1e-3, 1e-5])
    page = html.render(analysis)
    outline = Outline(page)
    inside = [values["href"][1:] for values in outline.named("a") if values["href"].startswith("#")]
    inside += re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'xlink:href="#([^"]+)"', page)

    drawn = {drawing.alt for drawing in catalogue.drawings(analysis)}
    assert {drawing.name for drawing in catalogue.drawings(analysis)} == {*FIGURES, "learning", "targets"}
    assert {values["aria-label"] for values in outline.named("svg")} == drawn
    assert len(outline.ids) == len(set(outline.ids)) and set(inside) <= set(outline.ids)
    assert all(after - before <= 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert all("scope" in values for values in outline.named("th"))
    assert "Cramer-Rao" in page and "Repeats of one seed" not in page


def test_links_to_figures_lead_to_files_that_were_written(written):
    links = [values["href"] for values in Outline(written[0].read_text(encoding="utf-8")).named("a")]
    files = {link for link in links if not link.startswith("#")}

    assert {link for link in files if link.endswith(".svg")} == {f"figures/{name}.svg" for name in FIGURES}
    assert {path.relative_to(written[0].parent).as_posix() for path in written[1:]} == files
    assert all(path.stat().st_size > 100 for path in written)


def test_the_headline_says_it_in_words_with_its_interval(page, golden):
    text = page.replace("\u202f", " ")

    assert "<h1>8 workers over Horovod/MPI run 5.91 times as fast as one plain worker</h1>" in text
    golden.line(
        text,
        "8 workers",
        "Horovod/MPI",
        "5.91",
        "5.82",
        "6.00",
        "74 %",
        "PyTorch DDP/Gloo 4.36",
        "4.27",
        "4.45",
        "Horovod/Gloo 3.71",
        "2 repeats",
    )
    assert re.search(
        r"Whether Horovod/MPI is faster than Horovod/Gloo is open: too few repeats \(ratio 1\.\d+\)\.", text
    )


def test_differences_within_the_noise_are_called_unresolved():
    runs = run_table((1, 2), ways=LAPTOP, failed=(), noise=0.0)
    two = runs["workers"] == 2
    runs.loc[two & (runs["transport"] == "mpi"), "samples_per_s"] = [1000.0, 1050.0, 1020.0]
    runs.loc[two & (runs["transport"] == "gloo"), "samples_per_s"] = [990.0, 1040.0, 1030.0]
    text = " ".join(sentences.sentences(analyze(runs))[0])

    assert re.search(r"Horovod/\w+ and Horovod/\w+ are not measurably different \(ratio 1\.0\d* \[0\.[^]]*\]\)", text)


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([600.0, 601.0, 602.0], "2 workers"),
        ([900.0, 1010.0, 1090.0], "2 workers"),
        ([1500.0, 1501.0, 1502.0], "1.50 times"),
    ],
)
def test_the_headline_does_not_dress_up(rates, words, golden):
    runs = run_table((1, 2), ways=LAPTOP[:2], failed=(), noise=0.0)
    runs["samples_per_s"] = 1000.0 + runs["repeat"] % 2
    runs.loc[runs["workers"] == 2, "samples_per_s"] = rates

    golden(sentences.headline(analyze(runs)), words)


def test_failed_runs_doubts_and_the_way_to_repeat_are_on_the_page(page, golden):
    assert "rank 3 ended with exit code 137 (killed: out of memory)" in page
    assert "2 doubts" in page and "1 run without a result" in page
    golden.line(page, "experiments/laptop.yaml")
    assert "Imaginary EPYC 7702 64-Core Processor" in page and "Open MPI 4.1.8" in page


@pytest.mark.usefixtures("no_figures")
def test_a_doubt_that_several_series_share_is_said_once():
    runs = pd.concat([run_table((1, 2), batch=batch, repeats=2, failed=()) for batch in (75, 150)], ignore_index=True)
    runs["run"] = runs["run"] + "-" + runs["batch"].astype(str)
    analysis = analyze(runs)
    page = html.render(analysis)
    few = "at 1 and 2 workers fewer than 3 repeats, so no interval is given and differences cannot be judged."

    assert sum(doubt.endswith(few) for doubt in analysis.provenance["doubts"]) == 6
    assert page.count(few) == 1 and f"6 series: {few}" in page
    which = page.partition(f"6 series: {few}")[2].partition("</td>")[0]
    assert which.count("; ") == 5 and "Horovod/MPI, batch 150" in which


def test_a_sync_that_nobody_saw_is_shown_as_unknown(page, analysis, golden):
    assert "inside backward" in page
    (drawing,) = [each for each in catalogue.drawings(analysis) if each.name == "breakdown"]
    golden(drawing.caption, "PyTorch DDP/Gloo")


def test_text_from_run_files_is_escaped_everywhere():
    # Two partitions, so that their names are in the legends of the figures too.
    tables = [run_table((1, 2), partition=EVIL + name, failed=[("horovod", "mpi", 2, 0)]) for name in ("a", "b")]
    runs = pd.concat(tables, ignore_index=True)
    runs["reason"] = runs["reason"].where(runs["reason"] == "", EVIL)
    runs = runs.assign(study=EVIL, cpu_model=EVIL, host=EVIL, run=runs["run"] + EVIL)
    page = html.render(analyze(runs, commands=[EVIL]))

    own = [values.get("type") for values in Outline(page).named("script")]
    assert "<script>alert(" not in page
    assert page.count("&lt;script&gt;alert(") >= 20
    assert own.count(None) == 1 and set(own) == {None, "application/json"}


def test_a_cell_without_a_result_is_an_open_gap():
    runs = run_table(failed=[("horovod", "mpi", 4, repeat) for repeat in range(3)])
    analysis = analyze(runs)
    (drawing,) = [each for each in catalogue.drawings(analysis) if each.name == "speedup"]

    with figures_only("speedup"):
        assert "no result: failed: rank 3 ended" in html.render(analysis)
    assert drawing.data.query("kind == 'point' and missing == True")["workers"].tolist() == [4]


# ---------------------------------------------------------------------------------------------------- figures


def files(written, suffix):
    found = [path for path in written if path.suffix == suffix and path.parent.name == "figures"]
    assert [path.stem for path in found] == list(FIGURES)
    return found


def test_laws_that_are_not_drawn_do_not_stretch_the_axes(analysis):
    (drawing,) = [each for each in catalogue.drawings(analysis) if each.name == "efficiency"]
    shown = set(drawing.data["law"].dropna())

    assert analysis.curves.loc[~analysis.curves["law"].isin(shown), "efficiency"].max() > 2  # the constant law at 1
    with style.style():
        assert all(axes.get_ylim()[1] < 150 for axes in drawing.draw(6.3).axes)


def test_the_same_study_gives_the_same_bytes(laptop, written, tmp_path):
    again = html.write_report(laptop, tmp_path)

    assert [path.name for path in again] == [path.name for path in written]
    for one, two in zip(written, again, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name


def test_the_same_figure_gives_the_same_bytes_wherever_it_lies_in_memory(analysis):
    (drawing,) = [each for each in catalogue.drawings(analysis) if each.name == "breakdown"]

    # The layout solver orders its unknowns by address: one drawing in eight came out otherwise.
    assert len({panels.inline(drawing) for _ in range(12)}) == 1


def test_pdf_fonts_are_embedded_truetype_and_the_page_has_the_width_of_a_thesis(written):
    for path in files(written, ".pdf"):
        content = path.read_bytes()
        width_pt = float(re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", content)[1])
        assert b"/FontFile2" in content and b"/Type3" not in content, path.name
        assert width_pt == pytest.approx(5.9 * 72), path.name
        assert b"/CreationDate" not in content


def test_svgs_are_valid_and_carry_no_date(written):
    for path in files(written, ".svg"):
        ElementTree.parse(path)
        assert "dc:date" not in path.read_text(encoding="utf-8")


def test_every_figure_comes_with_its_caption_and_its_data(written, golden):
    caption = files(written, ".txt")[0].read_text(encoding="utf-8")
    data = pd.read_csv(files(written, ".csv")[0])

    golden(caption, "PyTorch")
    assert "S(N) = X(N) / X(base)" in caption
    assert set(data["kind"]) == {"point"}
    assert data.loc[data["kind"] == "point", "speedup_plain"].notna().sum() == 5


def test_the_users_matplotlib_settings_have_no_say(laptop):
    drawing = catalogue.drawings(laptop)[0]
    before = panels.inline(drawing)
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.hashsalt": "mine"}):
        after = panels.inline(drawing)

    assert before == after


def test_colours_belong_to_partition_and_backend_markers_to_the_transport_too():
    two = pd.concat([run_table(failed=()), run_table(batch=1024, failed=())], ignore_index=True)
    small = style.series_styles(scaling_points(run_table((1, 2), ways=LAPTOP, failed=())))
    large = style.series_styles(scaling_points(two))

    assert small["local horovod/mpi batch 75"] == large["local horovod/mpi batch 75"]
    assert large["local horovod/mpi batch 1024"].color == large["local horovod/mpi batch 75"].color
    assert len({look.color for look in large.values()}) == 3
    assert small["local horovod/gloo batch 75"].color != small["local horovod/mpi batch 75"].color, "nothing else does"
    assert len({look.marker for look in large.values() if not look.ring}) == 3


def test_series_of_the_same_colour_differ_in_grey():
    runs = run_table((1, 2), ways=LAPTOP[:2], failed=())
    stock = runs[runs["backend"] == "horovod"].assign(horovod_defaults=True)
    looks = style.series_styles(scaling_points(pd.concat([runs, stock], ignore_index=True)))
    tuned, other = looks["local horovod/mpi batch 75"], looks["local horovod/mpi batch 75 stock settings"]

    assert tuned.color == other.color
    assert (tuned.filled, tuned.dash) != (other.filled, other.dash)
    assert other.label == "Horovod/MPI (stock settings)"


def test_a_folder_that_cannot_be_written_is_one_line(analysis, tmp_path, golden):
    (tmp_path / "file").write_text("")

    with golden.raises(RecordError):
        html.write_report(analysis, tmp_path / "file")
    with golden.raises(RecordError):
        catalogue.write_figures(analysis, tmp_path / "file")


# ---------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.6724, 1.6290, 1.7170, "1.67 [1.63, 1.72]"),
        (0.9658, 0.9579, 0.9737, "0.966 [0.958, 0.974]"),
        (10.812, 9.512, 12.312, "10.8 [9.5, 12.3]"),
        (2.266, 0.51, 10.4, "2.3 [0.5, 10.4]"),
        (3.71, None, None, "3.71"),
        (1.0, 1.0, 1.0, "1.00 [1.00, 1.00]"),
        (165383.2, 162500.0, 168300.0, "165\u202f400 [162\u202f500, 168\u202f300]"),
        (-0.0002, -0.05, 0.05, "0.00 [\u22120.05, 0.05]"),
        (0.0, 0.0, 2.61e-16, "0 [0, 2.6e\u221216]"),
        (1.551e-6, 0.0, 2.61e-5, "0.000002 [0.000000, 0.000026]"),
        (None, None, None, "unknown"),
        (float("nan"), 1.0, 2.0, "unknown"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_is_worth(value, low, high, text):
    assert numbers.with_interval(value, low, high) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.percent(0.836), "84\u202f%"),
        (numbers.percent(0.0042), "0.4\u202f%"),
        (numbers.percent(0.0), "0\u202f%"),
        (numbers.milliseconds(0.0036187), "3.62"),
        (numbers.milliseconds(-0.00001), "\u22120.01"),
        (numbers.milliseconds(0.0), "0.00"),
        (numbers.milliseconds(1.2345), "1\u202f234"),
        (numbers.rounded(165383.2), "165\u202f400"),
        (numbers.rounded(0.0), "0"),
        (words.plural(1, "worker"), "1 worker"),
        (words.listed(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_small_words(text, expected):
    assert text == expected


@pytest.mark.usefixtures("no_figures")
def test_what_an_earlier_report_drew_is_gone_with_it_and_nothing_else_is(tmp_path):
    ways = (("serial", "none"), ("horovod", "mpi"))
    last = ("alpha", "horovod", "mpi", 2, 75, 2)
    runs = write_study(tmp_path / "runs", ways=ways, workers=(1, 2), steps=60, failed={last: "lost a worker"})
    tables_ = runs / "analysis" / "tables"
    assert main(["report", str(runs)]) == 0
    assert (tables_ / "failed.csv").is_file()
    (tables_ / "mine.csv").write_text("of the user")

    for each in runs.glob("*"):
        if each.name != "analysis":
            shutil.rmtree(each)
    write_study(runs, ways=ways, workers=(1, 2), steps=60)
    assert main(["report", str(runs)]) == 0

    assert not list(tables_.glob("failed.*")) and (tables_ / "points.csv").is_file()
    assert (tables_ / "mine.csv").read_text() == "of the user"
    (tables_ / "mine.csv").unlink()
    assert main(["report", "--check", str(runs)]) == 0


def test_an_edited_list_of_an_earlier_report_removes_nothing(tmp_path):
    records.write_source(tmp_path, tmp_path, report={"files": ["tables/a.csv", "../b.csv", "figures/c.svg"]})
    assert records.earlier_report(tmp_path) == []
    records.write_source(tmp_path, tmp_path, report={"files": ["tables/a.csv", "figures/c.svg"]})
    assert records.earlier_report(tmp_path) == ["figures/c.svg", "tables/a.csv"]
    source = tmp_path / records.SOURCE
    source.write_text(source.read_text().replace("tables/a.csv", "tables/b.csv"))
    assert records.earlier_report(tmp_path) == []
