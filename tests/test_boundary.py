"""Node boundaries: planted jumps are found, absent ones are not, and what a comparison mixes is said."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_of, figures_only
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.synthetic_runs import run_table

from horovod_study import records
from horovod_study.analysis.series import points
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis, analyze
from horovod_study.analysis.sync import synchronisation
from horovod_study.report import grammar as panels
from horovod_study.report.figures import waiting as drawn
from horovod_study.report.page import html
from horovod_study.report.page.tables import place, tables

MPI = "local horovod/mpi batch 75"
PAIR = ((1, (1,)), (2, (2,)), (2, (1, 1)))
"""One worker, two on one node, and one on each of two nodes."""

FILLED = ((1, (1,)), (2, (2,)), (4, (4,)), (5, (4, 1)), (8, (4, 4)))


def node_table(
    cells=PAIR, *, jump_ms=8.0, ways=(("serial", "none"), ("horovod", "mpi")), repeats=3, noise=0.01, seed=3
):
    """Return a run table of cells (workers, workers on each node), where any further node costs `jump_ms` a step."""
    rng = np.random.default_rng(seed)
    frames = []
    for number, (workers, per_node) in enumerate(cells):
        chosen = [way for way in ways if way[0] != "serial" or number == 0]
        part = run_table((workers,), ways=chosen, repeats=repeats, noise=noise, failed=(), seed=seed + number)
        parallel, nodes = part["backend"] != "serial", len(per_node)
        extra_s = np.where(parallel & (nodes > 1), jump_ms / 1000 * (1 + noise * rng.standard_normal(len(part))), 0.0)
        step_s = part["step_s"] + extra_s
        frames.append(
            part.assign(
                run=part["run"] + f"-{'-'.join(map(str, per_node))}",
                nodes=np.where(parallel, nodes, 1),
                per_node=records.per_node(
                    [{"host": f"node{node}"} for node, count in enumerate(per_node) for _ in range(count)]
                ),
                path="tcp:eth0" if nodes > 1 else "shared memory" if workers > 1 else "",
                sync_s=part["sync_s"] + extra_s,
                sync_s_median=part["sync_s"] + extra_s,
                step_s=step_s,
                step_s_median=step_s,
                samples_per_s=part["global_batch"] / step_s,
            )
        )
    return pd.concat(frames, ignore_index=True)


def boundary_doubts(table: pd.DataFrame) -> list[str]:
    return [*synchronisation.jump_doubts(table), *synchronisation.fit_doubts(table)]


def said(analysis: Analysis) -> str:
    """The rows of the boundaries as the page and a thesis have them."""
    (table,) = tables(analysis, "boundary")
    return "; ".join(", ".join([text, *getattr(text, "under", ())]) for row in table.groups[0].rows for text in row)


def analysed(*arguments, **options) -> Analysis:
    return analyze(node_table(*arguments, **options))


# ---------------------------------------------------------------------------------------------------- known answers


def test_equal_workers_on_two_nodes_are_compared_directly_and_the_planted_jump_is_in_the_interval(golden):
    (row,) = synchronisation.boundaries(node_table()).to_dict("records")

    assert (row["series"], row["kind"]) == (MPI, "direct")
    assert (row["fewer_workers"], row["fewer_nodes"], row["fewer_per_node"]) == (2, 1, "1x2")
    assert (row["more_workers"], row["more_nodes"], row["more_per_node"]) == (2, 2, "2x1")
    assert (row["fewer_path"], row["more_path"]) == ("shared memory", "tcp:eth0")
    assert row["low_s"] < 0.008 < row["high_s"]
    assert row["jump_s"] == pytest.approx(row["more_sync_s"] - row["fewer_sync_s"])
    assert row["resolved"] is True
    assert row["step_low_s"] < 0.008 < row["step_high_s"]
    golden(row["interval"], "95 %", "3 pairs")
    assert row["note"] == ""


def test_without_a_jump_nothing_is_resolved():
    (row,) = synchronisation.boundaries(node_table(jump_ms=0.0)).to_dict("records")

    assert row["low_s"] < 0 < row["high_s"]
    assert row["resolved"] is False


def test_a_node_that_takes_time_off_is_resolved_too(golden):
    analysis = analysed(jump_ms=-0.3)
    (row,) = analysis.boundary.to_dict("records")

    assert row["jump_s"] == pytest.approx(-0.0003, rel=0.1)
    assert row["low_s"] < row["high_s"] < 0
    assert row["resolved"] is True
    golden(said(analysis), "0.3", "resolved")


@pytest.mark.slow
def test_the_interval_is_right_about_as_often_as_it_says():
    covered = []
    for seed in range(40):
        table = node_table(PAIR[1:], ways=(("horovod", "mpi"),), repeats=4, noise=0.03, seed=10 * seed)
        (row,) = synchronisation.boundaries(table).to_dict("records")
        covered.append(row["low_s"] <= 0.008 <= row["high_s"])

    assert 0.87 <= np.mean(covered) <= 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_on_one_node_there_is_no_boundary_and_no_section():
    analysis = analysed(PAIR[:2])

    assert analysis.boundary.empty
    assert set(analysis.nodes["nodes"]) == {1}
    assert "boundary" not in {each.name for each in figures_of(drawn, analysis)}
    assert "boundary" not in {table.name for table in tables(analysis)}
    assert "Across nodes" not in html.render(analysis)


def test_along_a_filled_curve_the_step_to_the_next_node_is_indirect_and_says_what_it_mixes(golden):
    (row,) = synchronisation.boundaries(node_table(FILLED)).to_dict("records")

    assert row["kind"] == "indirect"
    assert (row["fewer_workers"], row["fewer_nodes"]) == (4, 1)
    assert (row["more_workers"], row["more_nodes"], row["more_per_node"]) == (5, 2, "1x4 1x1")
    golden(row["note"])


def test_the_step_from_one_worker_is_not_taken_for_that_of_the_node(golden):
    (row,) = synchronisation.boundaries(node_table(((1, (1,)), (2, (1, 1))))).to_dict("records")

    assert row["kind"] == "indirect"
    golden(row["note"])


def test_fill_and_spread_at_several_counts_give_a_direct_jump_each_and_every_boundary_an_indirect_one():
    cells = (*FILLED, (2, (1, 1)), (4, (2, 2)), (8, (2, 2, 2, 2)))
    table = synchronisation.boundaries(node_table(cells))

    assert [
        (row["kind"], row["fewer_workers"], row["fewer_nodes"], row["more_workers"], row["more_nodes"])
        for row in table.to_dict("records")
    ] == [("direct", 2, 1, 2, 2), ("direct", 4, 1, 4, 2), ("indirect", 4, 1, 5, 2), ("direct", 8, 2, 8, 4)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_placements_that_are_series_of_their_own_elsewhere_are_compared_here(golden):
    table = node_table()
    table["placement"] = np.where(table["nodes"] == 2, "spread", "fill")
    table["workers_per_node"] = None
    analysis = analyze(table)
    (row,) = analysis.boundary.to_dict("records")

    assert {f"{MPI} nodes filled", f"{MPI} nodes shared evenly"} <= set(analysis.points["series"])
    assert (row["series"], row["kind"], row["fewer_nodes"], row["more_nodes"]) == (MPI, "direct", 1, 2)
    assert row["low_s"] < 0.008 < row["high_s"]
    golden(said(analysis))
    assert "Across nodes" in html.render(analysis)


def test_nodes_filled_in_other_ways_are_cells_of_their_own():
    cells = ((2, (2,)), (6, (4, 2)), (6, (3, 3)))
    table = synchronisation.by_nodes(node_table(cells, ways=(("horovod", "mpi"),)))

    assert list(table["per_node"]) == ["1x2", "1x4 1x2", "2x3"]
    assert list(table["repeats"]) == [3, 3, 3]


# ---------------------------------------------------------------------------------------------------- what is not known


@pytest.mark.slow
def test_two_repeats_give_a_jump_without_an_interval_and_a_verdict(golden):
    analysis = analysed(repeats=2)
    (row,) = analysis.boundary.to_dict("records")

    assert row["jump_s"] == pytest.approx(0.008, rel=0.05)
    assert math.isnan(row["low_s"]) and row["resolved"] is None
    golden(row["note"], "3 repeats")
    golden(said(analysis))


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_hidden_synchronisation_is_told_by_the_step(golden):
    analysis = analysed(ways=(("serial", "none"), ("ddp", "gloo")))
    (row,) = analysis.boundary.to_dict("records")

    assert math.isnan(row["jump_s"]) and row["resolved"] is None
    assert row["step_low_s"] < 0.008 < row["step_high_s"]
    golden(row["note"])
    assert "boundary" not in {each.name for each in figures_of(drawn, analysis)}
    golden(said(analysis))
    assert "Across nodes" in html.render(analysis)


def test_means_stand_in_for_the_whole_series_where_some_run_knows_no_median():
    table = node_table()
    table["sync_s_median"] *= 0.5
    assert set(synchronisation.by_nodes(table)["per_step"]) == {"median"}

    table.loc[table.index[-1], "sync_s_median"] = math.nan
    known = synchronisation.by_nodes(table)

    assert set(known["per_step"]) == {"mean"}
    assert known["sync_s_median"].max() == pytest.approx(table["sync_s"].nlargest(2).iloc[1])


def test_runs_recorded_before_paths_and_hosts_were_are_read(golden):
    table = node_table().drop(columns=["per_node", "path", "sync_s_median"])
    (row,) = synchronisation.boundaries(table).to_dict("records")

    assert (row["more_per_node"], row["more_path"]) == ("", "")
    assert row["low_s"] < 0.008 < row["high_s"]
    golden(boundary_doubts(table), MPI, "2 workers", "2 nodes")


def test_paths_that_cannot_be_are_doubted(golden):
    table = node_table()
    table.loc[table["nodes"] == 2, "path"] = "shared memory"
    table.loc[table.index[-1], "path"] = "tcp:eth0"

    golden(boundary_doubts(table)[:2], MPI, "2 workers", "2 nodes", "tcp:eth0")


def test_a_series_that_never_ran_on_one_node_has_nothing_to_compare_with(golden):
    table = node_table(((2, (1, 1)), (4, (2, 2))), ways=(("horovod", "mpi"),))

    assert synchronisation.boundaries(table).empty
    golden(boundary_doubts(table), MPI, "2 nodes")


@pytest.mark.slow
def test_laws_are_fitted_to_the_placement_on_the_fewest_nodes(golden):
    cells = ((1, (1,)), (2, (2,)), (4, (4,)), (2, (1, 1)), (4, (2, 2)))
    both, alone = analysed(cells), analysed(cells[:3])

    assert both.fits["series"][MPI]["laws"] == alone.fits["series"][MPI]["laws"]
    golden(both.provenance["doubts"], MPI, "4 workers")


# ---------------------------------------------------------------------------------------------------- properties


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(jump_ms=st.floats(0.5, 50), seed=st.integers(0, 1000))
def test_order_of_rows_does_not_matter_the_input_stays_and_sides_add_up(jump_ms, seed):
    table = node_table(jump_ms=jump_ms, seed=seed)
    before = table.copy(deep=True)
    found = synchronisation.boundaries(table)
    again = synchronisation.boundaries(table.sample(frac=1, random_state=seed))

    pd.testing.assert_frame_equal(table, before)
    pd.testing.assert_frame_equal(found, again)
    row = found.iloc[0]
    assert row["fewer_sync_s"] + row["jump_s"] == pytest.approx(row["more_sync_s"])
    assert row["low_s"] <= row["jump_s"] <= row["high_s"]
    assert row["jump_s"] == pytest.approx(jump_ms / 1000, rel=0.1)


# ---------------------------------------------------------------------------------------------------- the report


@pytest.mark.slow
def test_runs_that_have_series_already_give_the_same_jumps():
    table = node_table(FILLED)
    table["placement"] = ["fill" if place % 2 else "spread" for place in range(len(table))]
    named = points.with_series(table)
    placed = synchronisation.over_placements(named)

    assert named["series"].nunique() > placed["series"].nunique()
    for made in (synchronisation.boundaries, synchronisation.by_nodes):
        pd.testing.assert_frame_equal(made(placed), made(table))
    assert synchronisation.jump_doubts(placed) == synchronisation.jump_doubts(table)
    assert synchronisation.fit_doubts(named) == synchronisation.fit_doubts(table)


@pytest.mark.slow
def test_the_report_has_the_jump_and_where_it_was_carried(golden):
    analysis = analysed(((1, (1,)), (2, (2,)), (2, (1, 1))), jump_ms=9.1)
    with figures_only("boundary"):
        page = html.render(analysis)

    golden(said(analysis), "9.2", "8.7", "0.49", "9.68", "tcp:eth0", "2 workers")
    assert 'id="table-boundary"' in page and '<section id="nodes">' in page and 'id="figure-boundary"' in page


@pytest.mark.slow
def test_an_unresolved_jump_is_said_to_be_one(golden):
    analysis = analysed(jump_ms=0.0)

    golden(said(analysis), "2 workers", "not resolved")


@pytest.mark.slow
def test_the_figure_marks_the_boundary_and_writes_the_paths(golden):
    drawing = drawn.boundary(analysed(FILLED))
    text = " ".join(panels.inline(drawing).split())

    assert "2 nodes" in text
    assert "Horovod/MPI: shared memory, then tcp:eth0" in text
    golden(drawing.caption)
    assert set(drawing.data["kind"]) == {"point", "jump"} and set(synchronisation.NODE_COLUMNS) <= set(
        drawing.data.columns
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_what_was_saved_and_loaded_gives_the_same_page(tmp_path):
    analysis = analysed(
        (*FILLED, (2, (1, 1)), (4, (2, 2))), ways=(("serial", "none"), ("horovod", "mpi"), ("ddp", "gloo"))
    )
    records.save_tables(tmp_path, analysis.tables(), analysis.documents())
    tables, documents = records.load_tables(tmp_path, TABLES, DOCUMENTS)

    assert html.render(Analysis(**tables, **documents)) == html.render(analysis)
    json.dumps(analysis.provenance, allow_nan=False)


@pytest.mark.parametrize(
    ("workers", "nodes", "per_node", "words"),
    [
        (2, 1, "1x2", "2 workers"),
        (5, 2, "1x4 1x1", "5 workers"),
        (60, 8, "7x8 1x4", "60 workers"),
        (4, 2, "", "4 workers"),
    ],
)
def test_places_in_words(workers, nodes, per_node, words, golden):
    golden(place(workers, nodes, per_node), words)


def test_workers_per_node_are_counted_from_the_recorded_ranks():
    ranks = [{"host": host} for host in ("a", "a", "b", "c", "c")]

    assert records.per_node(ranks) == "2x2 1x1"
    assert records.per_node([]) == ""
    assert records.per_node([{"host": "a"}, {"gpu": None}]) == ""
