"""The tables for a thesis: numbers as sure as their intervals, LaTeX and CSV, text that stays text."""

import ast
import io
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.rich_study import WAYS, rich_analysis, rich_runs
from make.synthetic_runs import run_table

import horovod_study
from horovod_study.analysis.study import analyze
from horovod_study.errors import RecordError
from horovod_study.report import export
from horovod_study.report.kit import files
from horovod_study.report.kit.files import latex, to_csv, to_latex
from horovod_study.report.page.tables import answer_lines, headline, tables, write_tables
from horovod_study.text import numbers
from horovod_study.text.tables import Column, Group, Table, table_of, to_lines

pytestmark = pytest.mark.slow

PACKAGE = Path(horovod_study.__file__).parent
EVIL = "\\input{/etc/passwd} $x_1$ 50% & #1 {~^} [t] *b* | `c` <b>'\"\n=cmd()"


def test_a_table_in_a_terminal_is_aligned_by_what_is_seen():
    heads = ("state", "cell", "rate\n/s", "reason")
    rows = [("done", "a", "1,234", ""), ("failed", "b\u00e9\u65e5\u672c", "12", f"[red]{'no' * 70}[/]")]
    lines = to_lines(table_of(heads, rows, texts=(0, 1, 3)), indent=1)

    assert lines == [
        "                  rate",
        " state   cell       /s  reason",
        " done    a       1,234",
        f" failed  b\u00e9\u65e5\u672c     12  [red]{'no' * 70}[/]",
    ]


ALIGNED_BY_HAND = {
    "report/figures/bench.py": "the layout of nccl-tests, which other programs read",
    "text/tables.py": "the place where it is done",
}
"""Modules that pad texts with blanks -> why they need no Table."""


def padding(source: str) -> int:
    """Return how often a source text pads: with ljust, rjust or center, or with an alignment in an f-string."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in ("ljust", "rjust", "center")]
    specs = [
        ast.unparse(node.format_spec) for node in nodes if isinstance(node, ast.FormattedValue) and node.format_spec
    ]
    return len(calls) + sum(bool(re.match(r"f.[^{]?[<>^]", spec)) for spec in specs)


def test_tables_are_aligned_in_one_place():
    found = {path.relative_to(PACKAGE).as_posix(): padding(path.read_text()) for path in PACKAGE.rglob("*.py")}

    assert [padding(text) for text in ("f'{x:>3}'", "f'{x:.3f}'", "x.rjust(3)", "f'{x:*^{n}}'")] == [1, 0, 1, 1]
    assert set(ALIGNED_BY_HAND) == {module for module, count in found.items() if count}


def test_groups_share_the_widths_of_their_columns():
    columns = (Column("", "text"), Column("time", unit="s"))
    groups = (Group(title="one\nmore", rows=(("a", "1"),)), Group(title="two", rows=(("bcd", "12.345"),)))

    told = ["       time", "        (s)", "one", "more", "a         1", "two", "bcd  12.345"]
    assert told == to_lines(Table(columns=columns, groups=groups))


@pytest.fixture(scope="module")
def runs():
    return rich_runs(reason=EVIL)


@pytest.fixture(scope="module")
def analysis(runs):
    return rich_analysis(runs)


@pytest.fixture(scope="module")
def made(analysis):
    return {table.name: table for table in tables(analysis)}


@pytest.fixture(scope="module")
def written(analysis, tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    return directory, write_tables(tables(analysis), directory)


def test_the_answer_in_a_terminal_has_the_numbers_of_the_page(analysis, made):
    points = made["points"]
    analysis = replace(analysis, runs=analysis.runs.assign(wall_s=36.0, device="cpu"))
    lines = answer_lines(analysis)

    assert lines[0] == headline(analysis).replace(numbers.THIN, " ") + "."
    shown = [line.split() for line in lines]
    for row in (row for group in points.groups for row in group.rows):
        texts = dict(zip((column.head for column in points.columns), row, strict=True))
        wanted = [texts["Workers"], *texts["Throughput"].replace(numbers.THIN, " ").split()]
        assert any(
            words[: len(wanted)] == wanted or words[:1] + words[2 : len(wanted) + 1] == wanted for words in shown
        )
    assert not any("Karp" in line or "Waiting" in line for line in lines)
    hours = 0.01 * analysis.runs["workers"].sum()
    assert f"{len(analysis.runs)} runs" in lines[-1] and f"{hours:,.3g} worker hours" in lines[-1]


def test_the_answer_counts_the_doubts_and_shows_none(analysis):
    analysis = replace(analysis, runs=analysis.runs.assign(wall_s=36.0, device="cpu"))
    doubted = replace(analysis, provenance={**analysis.provenance, "doubts": ["first thing", "second thing"]})

    before, after = answer_lines(analysis), answer_lines(doubted)

    assert sum("2 doubts" in line or "doubts: see" in line for line in after) == 1
    assert not any("first thing" in line for line in after)
    assert len(after) >= len(before)


def cells(table):
    return [row for group in table.groups for row in group.rows]


# ---------------------------------------------------------------------------------------------------- digits


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.827, 0.708, 0.946, "0.83 [0.71, 0.95]"),  # the two examples of the Particle Data Group
        (0.827, 0.46, 1.194, "0.8 [0.5, 1.2]"),
        (3.91237, 3.9110, 3.9137, "3.9124 [3.9110, 3.9137]"),
        (165383.2, 162500.0, 168300.0, "165\u202f400 [162\u202f500, 168\u202f300]"),
        (2.266, 0.51, 10.4, "2.3 [0.5, 10.4]"),  # the shorter arm
        (1.0, 0.211, 1.0, "1.00 [0.21, 1.00]"),  # on its bound: a third of the longer one
        (1.4523, 1.031, 1.9, "1.45 [1.03, 1.90]"),  # 1.0 would hide that it is more than one
        (-0.0002, -0.05, 0.05, "0.00 [\u22120.05, 0.05]"),
        (2.0, 2.0, 2.0, "2.00 [2.00, 2.00]"),
        (10.110893672537507, 10.110893672537505, 10.110893672537509, "10.1 [10.1, 10.1]"),  # no width but rounding
        (1234.5, None, None, "1\u202f234"),
        (0.012345, None, None, "0.0123"),
        (float("nan"), 1.0, 2.0, ""),
        (None, None, None, ""),
    ],
)
def test_a_number_ends_where_its_uncertainty_ends(value, low, high, text):
    assert numbers.quoted(value, low, high) == text


@given(
    st.floats(-1e7, 1e7),
    st.floats(0.1, 1e6),
    st.floats(0.1, 1e6),
)
@settings(max_examples=examples(200))
def test_rounding_moves_nothing_by_more_than_its_uncertainty_allows(value, below, above):
    decimals = numbers.places(value, value - below, value + above)
    unit = 10.0**-decimals
    shorter = max(min(below, above), max(below, above) / 3)

    assert unit <= shorter * 1.001 + 1e-12 * abs(value)  # the last digit is a digit of the uncertainty
    assert unit >= shorter * 10**-2.6  # and at most the second (the third next to 0 or 1) of them
    assert not numbers.fixed(-unit / 10, decimals).startswith("\u2212")


# ---------------------------------------------------------------------------------------------------- which tables


def test_a_rich_study_has_every_table_and_a_poor_one_those_it_has_data_for(made):
    poor = {table.name for table in tables(analyze(run_table((1, 2), ways=WAYS, repeats=2, failed=())))}

    assert set(made) == {
        *("points", "laws", "breakdown", "losttime", "synchronisation", "boundary", "transports"),
        *("batches", "knees", "forecast", "holdout", "workers", "learning", "targets", "resources"),
        *("measurement", "environment", "doubts", "failed"),
    }
    assert {"points", "breakdown", "measurement", "doubts"} <= poor
    assert not poor & {"boundary", "knees", "learning", "targets", "resources", "failed"}


def test_numbers_are_those_of_the_analysis_with_their_units(analysis, made):
    row = analysis.points.set_index(["series", "workers"]).loc[("alpha horovod/nccl batch 75", 8)]
    points = made["points"]
    heads = [column.head for column in points.columns]
    group = next(each for each in points.groups if each.title == "alpha: Horovod/NCCL, batch 75, weak scaling")
    printed = dict(zip(heads, next(each for each in group.rows if each[0] == "8"), strict=True))

    low, high = row["speedup_plain_low"], row["speedup_plain_high"]
    assert printed["Speedup"] == numbers.quoted(row["speedup_plain"], low, high)
    assert printed["Efficiency"] == f"{100 * row['speedup_plain'] / 8:.1f}"
    parts = (
        analysis.breakdown.set_index(["series", "workers", "lap"]).sort_index().loc[("alpha horovod/nccl batch 75", 8)]
    )
    assert float(printed["Step"]) == pytest.approx(1000 * parts.loc["step", "mean_s"], rel=5e-3)
    units = {column.head: column.unit for column in points.columns}
    assert (units["Throughput"], units["Step"], units["Efficiency"]) == ("samples/s", "ms", "%")


def test_the_parts_of_a_step_add_up_as_printed(made):
    for name in ("breakdown", "losttime"):
        table = made[name]
        first = next(place for place, column in enumerate(table.columns) if column.interval)
        for row in cells(table):
            whole, *laps = (text.partition(" ")[0].replace("\u2212", "-").replace("\u202f", "") for text in row[first:])
            known = [float(lap) for lap in laps if lap != "\u2013"]
            last = 10.0 ** -len(whole.partition(".")[2])
            assert {len(lap.partition(".")[2]) for lap in laps if lap != "\u2013"} <= {len(whole.partition(".")[2])}
            assert sum(known) == pytest.approx(float(whole), abs=0.5 * (len(laps) + 1) * last)


def test_unknown_is_a_dash_and_nothing_is_nan(made, written):
    nccl = next(group for group in made["points"].groups if "gpu_2" in group.title and "NCCL, batch 75" in group.title)
    assert nccl.rows[-1][:2] == ("16", "4")
    assert set(nccl.rows[-1][3:-1]) == {"\u2013"}
    assert nccl.rows[-1][2] == "0 of 3"
    for path in written[1]:
        assert not re.search(r"\b([Nn]a[Nn]|[Ii]nf|None|<NA>)\b", path.read_text()), path.name


def test_doubts_stand_at_the_numbers_they_are_about(made):
    notes = dict(note.split(": ", 1) for note in made["points"].notes)
    place = [column.head for column in made["points"].columns].index("Notes")
    marked = {mark for row in cells(made["points"]) for mark in row[place].split(", ") if mark}

    assert marked == set(notes)
    assert "no run of this cell gave a result." in notes.values()


def test_the_holdout_table_says_how_fewer_hidden_counts_came_out(made):
    (told,) = made["holdout"].groups[0].title.under

    assert told.startswith("hiding one count, then two, and so on: 3 forecasts, median error ")


def test_print_has_the_jump_of_the_step_which_a_verdict_may_be_about(made):
    assert "Jump of" in to_latex(made["boundary"]) and "boundary" in export.RESULTS


def test_laws_name_the_selected_one_and_keep_the_rest_for_the_csv(analysis, made):
    series, fit = next(iter(analysis.fits["series"].items()))
    rows = made["laws"].groups[0].rows
    selected = [row[0] for row in rows if row[-1] == "selected"]

    assert len(selected) == 1
    assert {"linear", "Amdahl", "Gustafson", "USL"} <= {row[0] for row in rows}
    own = made["laws"].data[made["laws"].data["series"] == series]
    assert set(own["law"]) == set(fit["laws"])
    assert own.set_index(["law", "parameter"])["value"]["usl", "alpha"] == fit["laws"]["usl"]["params"]["alpha"]


def test_the_same_study_in_any_order_gives_the_same_bytes(tmp_path):
    runs = run_table((1, 2), ways=WAYS)
    first = write_tables(tables(analyze(runs)), tmp_path / "one")
    second = write_tables(tables(analyze(runs.sample(frac=1, random_state=3))), tmp_path / "two")

    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_folder_that_cannot_be_written_is_one_line(analysis, tmp_path, golden):
    (tmp_path / "file").write_text("")
    with golden.raises(RecordError):
        write_tables(tables(analysis), tmp_path / "file")


# ---------------------------------------------------------------------------------------------------- two forms


def small(*rows, columns=None, title="G", **changes):
    columns = columns or (Column("Name", "text"), Column("Time", "interval", unit="ms"))
    data = pd.DataFrame([dict(enumerate(row)) for row in rows])
    values = {"name": "t", "title": "T", "caption": "C.", "columns": columns, "data": data}
    return Table(**{**values, "groups": (Group(title=title, rows=tuple(rows)),), **changes})


def test_csv_keeps_every_digit_and_units_in_the_names(analysis, made):
    again = pd.read_csv(io.StringIO(to_csv(made["points"])))

    assert {"samples_per_s_median", "step_s_median", "speedup_plain_low", "waiting_share"} <= set(again.columns)
    for name in ("samples_per_s_median", "speedup_plain", "speedup_plain_high"):
        assert list(again[name].dropna()) == list(analysis.points[name].dropna())


def test_no_text_of_a_csv_is_a_formula():
    frame = pd.DataFrame({"name": ["=1+1", "@SUM(A1)", "-x", "+y", "fine", None], "value": [-1.0, 2, 3, 4, 5, 6]})
    text = to_csv(replace(small(("a", "1")), data=frame))

    assert text.splitlines()[1:] == ["'=1+1,-1.0", "'@SUM(A1),2.0", "'-x,3.0", "'+y,4.0", "fine,5.0", ",6.0"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 50% #1 $x$", "50\\% \\#1"),
        ("{~^}\\", ""),
        ("[x] *y", ""),
        ("a--b", ""),
        ("\u22120.5\u202f\u00b5s \u2013", "$-$0.5\\,$\\mu$s"),
        ("Gr\u00f6\u00dfe, \u0141\u00f3d\u017a, na\u00efve", ""),
        ("\u03b1 = \u03b2", "="),
        ("\u6f22 \U0001f600", "}U+1F600{"),
        ("a\nb\x00c\u202ed", ""),
    ],
)
def test_every_letter_has_its_latex(text, expected, golden):
    golden(latex(text), expected)


@given(st.text())
@example(EVIL)
@settings(max_examples=examples(200))
def test_latex_is_ascii_and_has_no_command_but_ours(text):
    result = latex(text)

    assert result.isascii()
    assert "\n" not in result
    ours = {
        *re.findall(r"\\[A-Za-z]+", "".join(files.LETTERS.values())),
        "\\i",
        "\\j",
        "\\u",
        "\\r",
        "\\H",
        "\\v",
        "\\c",
    }
    assert set(re.findall(r"\\[A-Za-z]+", result)) <= ours
    depth = 0
    for mark in re.findall(r"(?<!\\)[{}]", result.replace("\\\\", "")):
        depth += 1 if mark == "{" else -1
        assert depth >= 0
    assert depth == 0
    assert not re.search(r"(?<!\\)[%#&_]", re.sub(r"\\['`^~=.\"uHvcr]\{", "", result))


def test_a_table_that_is_longer_than_a_page_breaks_over_pages():
    rows = tuple((f"{place}", "1.0 [0.9, 1.1]") for place in range(files.PAGE_LINES))
    short, long = to_latex(small(*rows[:20])), to_latex(small(*rows))

    assert "\\begin{table}" in short
    assert "longtable}" in long
    assert long.count("\\toprule") == 2
    for text in (short, long):
        assert "\\caption[{T}]{\\hstcaption}\\label{tab:t}" in text
        assert "\\providecommand\\hstcaption{T. C.}" in text
        assert "\\multicolumn{2}{c}{(ms)}" in text


# ---------------------------------------------------------------------------------------------------- in print


def pdflatex(directory, name, *, preamble=None):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (texlive-latex-recommended): no table is compiled")
    environment = {**os.environ, "max_print_line": "1000"}
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", name]
    for _ in range(3):  # longtable finds its widths, and the list of tables its pages, in the next round
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_all_tables_compile_and_fit_the_width_of_a_thesis(written, tmp_path):
    for path in written[1]:
        shutil.copy(path, tmp_path)
    log = pdflatex(tmp_path, "tables.tex")

    assert re.findall(r"(?:Overfull \\hbox|LaTeX Warning).*", log) == []


def test_hostile_text_compiles_to_itself(tmp_path):
    names = (EVIL, "\u03b1\u2264\u00e9 \u6f22 \U0001f600", "[0pt] first of a row", "* starred", "a--b ``c'' ?` !`")
    table = small(*((name, "\u22120.5 [\u22121.0, \u2013]") for name in names), title=EVIL, caption=EVIL, notes=(EVIL,))
    (tmp_path / "t.tex").write_text(to_latex(table))
    (tmp_path / "all.tex").write_text(files.document(["t"]))
    pdflatex(tmp_path, "all.tex")
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext is not installed (poppler-utils): the text of the PDF is not read")
    text = subprocess.run(["pdftotext", "-layout", "all.pdf", "-"], cwd=tmp_path, capture_output=True, text=True).stdout

    assert "\\input{/etc/passwd} $x 1$ 50% & #1" in " ".join(text.split())  # an underscore of CM is a line
    assert "[0pt] first of a row" in text
    assert "* starred" in text
    assert "root:" not in text
