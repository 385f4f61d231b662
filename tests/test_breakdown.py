"""The breakdown of a step: parts that add up, growth against both baselines, unknown that stays unknown."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from make.synthetic_runs import run_table

from horovod_study.analysis.steps import breakdown

MPI = "local horovod/mpi batch 75"
DDP = "local ddp/gloo batch 75"
PARTS = ["data", "forward", "backward", "sync", "update", "residual"]


def cell(table, series, workers):
    return table[(table["series"] == series) & (table["workers"] == workers)].set_index("lap")


def test_parts_add_up_to_the_step_and_shares_to_one():
    table = breakdown.breakdown(run_table(noise=0.05))

    for (series, workers), rows in table.groupby(["series", "workers"]):
        by_lap = rows.set_index("lap")
        assert by_lap.loc[PARTS, "mean_s"].sum() == pytest.approx(by_lap.at["step", "mean_s"]), (series, workers)
        assert by_lap.loc[PARTS, "share"].sum() == pytest.approx(1.0)


def test_the_growth_of_the_parts_adds_up_to_the_growth_of_the_step():
    eight = cell(breakdown.breakdown(run_table(noise=0.05)), MPI, 8)

    for kind in ("plain", "wrapped"):
        assert eight.loc[PARTS, f"minus_{kind}_s"].sum() == pytest.approx(eight.at["step", f"minus_{kind}_s"])
        assert eight.loc[PARTS, f"growth_{kind}"].sum() == pytest.approx(1.0)
        assert eight.at["step", f"growth_{kind}"] == 1.0


def test_a_planted_wait_is_found_where_it_was_planted():
    runs = run_table((1, 2), noise=0.0, failed=())
    two = (runs["transport"] == "mpi") & (runs["workers"] == 2)
    runs.loc[two, ["sync_s", "step_s"]] += 0.002
    before = cell(breakdown.breakdown(run_table((1, 2), noise=0.0, failed=())), MPI, 2)
    after = cell(breakdown.breakdown(runs), MPI, 2)

    assert after.at["sync", "mean_s"] - before.at["sync", "mean_s"] == pytest.approx(0.002)
    assert after.at["sync", "minus_plain_s"] - before.at["sync", "minus_plain_s"] == pytest.approx(0.002)
    assert after.at["forward", "minus_plain_s"] == before.at["forward", "minus_plain_s"]


def test_a_sync_that_the_backend_cannot_see_stays_unknown_and_says_where_it_is():
    two = cell(breakdown.breakdown(run_table()), DDP, 2)

    assert math.isnan(two.at["sync", "mean_s"]) and math.isnan(two.at["sync", "minus_plain_s"])
    assert two.at["sync", "note"] == "inside backward"
    assert two.at["backward", "note"] == ""


def test_one_repeat_without_a_lap_makes_the_mean_unknown():
    runs = run_table((1, 2), failed=())
    runs.loc[runs.index[(runs["transport"] == "mpi") & (runs["workers"] == 2)][0], "sync_s"] = math.nan

    assert math.isnan(cell(breakdown.breakdown(runs), MPI, 2).at["sync", "mean_s"])


def test_strong_scaling_is_compared_with_an_ideal_share_of_the_baseline():
    ways = (("horovod", "mpi"),)
    tables = [run_table((n,), ways=ways, batch=600 // n, noise=0.0, failed=()) for n in (1, 2)]
    table = breakdown.breakdown(pd.concat(tables, ignore_index=True))
    series = "local horovod/mpi global batch 600"
    one, two = cell(table, series, 1), cell(table, series, 2)

    assert two.at["step", "minus_wrapped_s"] == pytest.approx(two.at["step", "mean_s"] - one.at["step", "mean_s"] / 2)


def test_without_a_baseline_the_growth_is_unknown():
    table = breakdown.breakdown(run_table(ways=(("horovod", "mpi"),), failed=()))

    assert table["minus_plain_s"].isna().all() and table["growth_plain"].isna().all()
    assert cell(table, MPI, 2)["minus_wrapped_s"].notna().all()


def test_the_input_is_not_changed_and_the_order_of_its_rows_does_not_matter():
    runs = run_table()
    before = runs.copy(deep=True)
    table = breakdown.breakdown(runs)

    pd.testing.assert_frame_equal(runs, before)
    pd.testing.assert_frame_equal(table, breakdown.breakdown(runs.sample(frac=1, random_state=5)))


def test_cells_without_a_finished_run_have_no_rows():
    runs = run_table((1, 2), failed=[("horovod", "mpi", 2, repeat) for repeat in range(3)])

    assert cell(breakdown.breakdown(runs), MPI, 2).empty


def test_laps_that_do_not_tile_and_unexplained_time_are_doubted(golden):
    runs = run_table((1, 2), noise=0.0, failed=())
    two = (runs["transport"] == "mpi") & (runs["workers"] == 2)
    runs.loc[two, "sync_s"] *= 0.5
    runs.loc[(runs["backend"] == "ddp") & (runs["workers"] == 2), ["residual_s", "step_s"]] += 0.001

    assert breakdown.doubts(run_table()) == []
    golden(
        breakdown.doubts(runs), "horovod/mpi batch 75", "3 runs", "2 workers", "7.6 %", "ddp/gloo batch 75", "20.9 %"
    )


def test_intervals_of_the_growth_hold_pairs_of_repeats_together(golden):
    """The repeats drift by far more than two workers add; pairs do not."""
    tables = []
    for repeat, drift_s in enumerate((0.0, 0.004, 0.009)):
        runs = run_table((1, 2), ways=(("serial", "none"), ("horovod", "mpi")), repeats=1, noise=0.0, failed=())
        runs[["forward_s", "step_s"]] += drift_s
        tables.append(runs.assign(repeat=repeat, run=runs["run"] + f"-{repeat}"))
    two = cell(breakdown.breakdown(pd.concat(tables, ignore_index=True)), MPI, 2)

    for part in (*PARTS, "step"):
        assert two.at[part, "minus_plain_low_s"] == pytest.approx(two.at[part, "minus_plain_s"])
        assert two.at[part, "minus_plain_high_s"] == pytest.approx(two.at[part, "minus_plain_s"])
    golden(two.at["step", "interval_plain"], "95 %", "3 pairs")


def test_unequal_repeats_are_compared_by_welchs_interval(golden):
    runs = run_table((1, 2), ways=(("serial", "none"), ("horovod", "mpi")), repeats=4, noise=0.03, failed=())
    runs = runs[(runs["backend"] != "serial") | (runs["repeat"] < 3)]
    two = cell(breakdown.breakdown(runs), MPI, 2).loc["step"]

    golden(two["interval_plain"], "95 %", "3 repeats")
    assert two["minus_plain_low_s"] < two["minus_plain_s"] < two["minus_plain_high_s"]
    assert two["base_plain"] == "local serial batch 75"


def test_welchs_interval_is_that_of_scipy():
    ours, theirs = np.array([[5.1], [4.7], [5.6], [5.0]]), np.array([[3.9], [4.2], [4.0]])
    low, high, _ = breakdown.difference_interval(ours, theirs, ("a", "b", "c", "d"), ("a", "b", "c"))
    right = scipy.stats.ttest_ind(ours[:, 0], theirs[:, 0], equal_var=False).confidence_interval()

    assert (low[0], high[0]) == pytest.approx((right.low, right.high))


def test_an_interval_needs_three_repeats(golden):
    two = cell(breakdown.breakdown(run_table((1, 2), repeats=2, failed=())), MPI, 2).loc["step"]

    assert math.isnan(two["minus_plain_low_s"])
    golden(two["interval_plain"], "2 repeats")


def test_the_median_and_the_extremes_of_repeats_are_told_beside_their_mean():
    runs = run_table((1, 2), noise=0.05, failed=())
    one = runs[(runs["transport"] == "mpi") & (runs["workers"] == 2)]["step_s"]
    two = cell(breakdown.breakdown(runs), MPI, 2).loc["step"]

    assert (two["median_s"], two["min_s"], two["max_s"]) == (one.median(), one.min(), one.max())


def test_a_hidden_sync_does_not_break_the_sum_of_a_growth():
    two = cell(breakdown.breakdown(run_table((1, 2), noise=0.02, failed=())), DDP, 2)

    for kind in ("plain", "wrapped"):
        known = two.loc[PARTS, f"minus_{kind}_s"].dropna()
        assert "sync" not in known.index
        assert math.fsum(known) == pytest.approx(two.at["step", f"minus_{kind}_s"], rel=1e-9)


def test_what_the_recording_itself_doubts_is_passed_on(golden):
    runs = run_table((1, 2), noise=0.0, failed=()).assign(rows_lost=0, steady_doubt="")
    two = (runs["transport"] == "mpi") & (runs["workers"] == 2)
    runs.loc[two & (runs["repeat"] == 0), "rows_lost"] = 40
    runs.loc[two, "steady_doubt"] = "the steps still drift"

    golden(breakdown.doubts(runs), "horovod/mpi batch 75", "40 step", "1 run", "2 workers", "6 runs")
