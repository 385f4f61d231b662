"""The section on synchronisation: its figures, sentences and tables say what the analysis says; silent without data."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_of, figures_only
from make.synthetic_runs import run_table

from horovod_study import records
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis, analyze
from horovod_study.report import grammar as panels
from horovod_study.report.figures import waiting
from horovod_study.report.kit import style
from horovod_study.report.kit.files import to_html
from horovod_study.report.page import html
from horovod_study.report.page.tables import tables as page_tables

pytestmark = pytest.mark.slow

WAYS = (("serial", "none"), ("horovod", "mpi"), ("horovod", "gloo"))
OWN = ("synchronisation", "sync_curves", "transports", "batches", "knees", "batch_curves", "cycle")


def study() -> pd.DataFrame:
    """Return runs against workers, batches and cycles, over two transports."""
    rng = np.random.default_rng(4)
    frames = [run_table((1, 2, 4), ways=WAYS, failed=())]
    for place, batch in enumerate((32, 300, 1024, 2048)):
        runs = run_table((2,), ways=WAYS[1:2], failed=(), batch=batch, seed=place)
        frames.append(runs.assign(run=runs["run"] + f"-{batch}"))
    for place, each in enumerate((0.2, 1.0)):
        runs = run_table((2,), ways=WAYS[1:2], failed=(), seed=20 + place)
        more = 0.5e-3 * each
        frames.append(
            runs.assign(
                run=runs["run"] + f"-cycle-{each}",
                cycle_time_ms=each,
                idle_cycle_time_ms=0.0,
                sync_s=runs["sync_s"] + more,
                step_s=runs["step_s"] + more,
            )
        )
    table = pd.concat(frames, ignore_index=True)
    step = table["step_s"] + 1e-5 * table["batch"] * np.exp(0.01 * rng.standard_normal(len(table)))
    return table.assign(samples_per_s=table["workers"] * table["batch"] / step)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze(study())


def test_all_tables_and_documents_come_back_from_their_files(analysis, tmp_path):
    records.save_tables(tmp_path, analysis.tables(), analysis.documents())
    kept, documents = records.load_tables(tmp_path, TABLES, DOCUMENTS)
    again = Analysis(**kept, **documents)

    assert [to_html(table) for table in page_tables(again)] == [to_html(table) for table in page_tables(analysis)]
    assert {each.name: each.caption for each in figures_of(waiting, again)} == {
        each.name: each.caption for each in figures_of(waiting, analysis)
    }


def test_runs_in_any_order_give_the_same_tables(analysis):
    again = analyze(study().sample(frac=1, random_state=2))

    for name in OWN:
        pd.testing.assert_frame_equal(getattr(analysis, name), getattr(again, name))
    assert json.dumps(analysis.sync_fits, allow_nan=False) == json.dumps(again.sync_fits, allow_nan=False)


def test_the_section_holds_figures_and_tables_once(analysis):
    with figures_only("synchronisation", "transport_ratio", "batch_size"):
        page = html.render(analysis)

    assert page.count('<section id="synchronisation">') == 1 and 'href="#synchronisation"' in page
    for table in ("table-synchronisation", "table-transports", "table-knees", "table-cycle"):
        assert page.count(f'id="{table}"') == 1
    names = [each.name for each in figures_of(waiting, analysis)]
    assert names == ["synchronisation", "transport_ratio", "batch_size"]
    section = page[page.index('<section id="synchronisation">') :]
    assert section[: section.index("</section>")].count("<svg") == 3
    assert ">nan<" not in page and ">inf<" not in page


@pytest.mark.parametrize(
    "runs",
    [
        run_table((1,), ways=WAYS[:1], failed=()),
        run_table((1,), ways=WAYS[:2], failed=()),
        run_table((1, 2, 4), ways=(("ddp", "gloo"),), failed=()),
    ],
    ids=["one plain worker", "one worker", "hidden in backward"],
)
@pytest.mark.usefixtures("no_figures")
def test_where_there_is_nothing_to_show_there_is_no_section(runs):
    analysis = analyze(runs)

    assert figures_of(waiting, analysis) == []
    assert 'id="synchronisation"' not in html.render(analysis)


def test_two_counts_are_a_table_and_no_figure():
    analysis = analyze(run_table((1, 2), ways=WAYS, failed=()))

    assert figures_of(waiting, analysis) == []
    assert "synchronisation" in {table.name for table in page_tables(analysis)}


def test_unknown_values_are_dashes_with_their_reason(golden):
    runs = run_table((1, 2, 4), ways=(("horovod", "mpi"), ("ddp", "gloo")), failed=())
    analysis = analyze(runs)
    (table,) = [table for table in page_tables(analysis) if table.name == "synchronisation"]
    (hidden,) = [group.rows for group in table.groups if "DDP" in group.title]

    (column_of,) = [place for place, column in enumerate(table.columns) if column.head == "Median\nper step"]
    assert [row[column_of] for row in hidden] == ["\u2013", "\u2013"]
    assert "inside backward" in hidden[1][column_of].doubts[0]
    drawing = figures_of(waiting, analysis)[0]
    golden(drawing.caption, "PyTorch DDP/Gloo")


def test_colours_are_those_of_the_other_figures_and_dashes_tell_the_transport(analysis):
    looks = style.series_styles(analysis.points)
    transports = analysis.synchronisation.drop_duplicates("series").set_index("series")["transport"]
    known = transports[transports.isin(list(style.DASHES))]

    assert set(transports.index) <= set(looks)
    assert {name: looks[name].dash for name in known.index} == {name: style.DASHES[known[name]] for name in known.index}


def test_figures_are_the_same_bytes_each_time(analysis):
    for drawing in figures_of(waiting, analysis):
        assert panels.inline(drawing) == panels.inline(drawing), drawing.name


def test_no_axis_label_is_markup(analysis):
    for drawing in figures_of(waiting, analysis):
        assert "mathdefault" not in panels.inline(drawing), drawing.name


@pytest.mark.usefixtures("no_figures")
def test_a_jump_beyond_growth_stands_with_the_indirect_jump():
    runs = run_table((2, 4, 8), ways=WAYS[1:2], failed=())
    far = runs["workers"] > 4
    more = np.where(far, 5e-3, 0.0)
    runs = runs.assign(nodes=np.where(far, 2, 1), sync_s=runs["sync_s"] + more, step_s=runs["step_s"] + more)
    analysis = analyze(runs)
    (row,) = analysis.boundary.to_dict("records")

    assert row["kind"] == "indirect" and row["beyond_low_s"] < 5e-3 < row["beyond_high_s"]
    assert "Beyond<br>growth" in html.render(analysis)
    assert math.isfinite(row["jump_s"]) and row["jump_s"] > row["beyond_s"]
