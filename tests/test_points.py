"""Scaling points: known answers, baselines that are never substituted, modes, intervals that cover, doubts in words."""

import doctest
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.synthetic_runs import run_table

from horovod_study.analysis.series import points
from horovod_study.analysis.steps.rank_steps import pop
from horovod_study.errors import AnalysisError

ROOT = Path(__file__).parents[1]


def exact(workers=(1, 2, 4), *, throughput, ways=(("serial", "none"), ("horovod", "mpi")), **kwargs):
    """Return a run table whose throughputs are `throughput(backend, workers)` without any scatter."""
    runs = run_table(workers, ways=ways, failed=(), noise=0.0, **kwargs)
    rates = [throughput(row.backend, row.workers) for row in runs.itertuples()]
    return runs.assign(samples_per_s=rates)


def point(table, workers, series="local horovod/mpi batch 75"):
    found = table[(table["series"] == series) & (table["workers"] == workers)]
    assert len(found) == 1
    return found.iloc[0]


# ---------------------------------------------------------------------------------------------------- known answers


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(rate=st.floats(1.0, 1e6), workers=st.sets(st.integers(2, 512), min_size=1, max_size=4))
def test_perfect_scaling_has_speedup_n_and_efficiency_one(rate, workers):
    counts = (1, *sorted(workers))
    table = points.scaling_points(exact(counts, throughput=lambda backend, n: rate * n))
    own = table[table["backend"] == "horovod"]

    for kind in ("plain", "wrapped"):
        assert list(own[f"speedup_{kind}"]) == pytest.approx(list(counts))
        assert list(own[f"efficiency_{kind}"]) == pytest.approx([1.0] * len(counts))
        assert list(own[f"speedup_{kind}_low"]) == pytest.approx(list(counts))
    assert list(own["karp_flatt"].dropna()) == pytest.approx([0.0] * len(workers), abs=1e-12)


def test_each_speedup_is_over_its_own_baseline():
    rates = {("serial", 1): 1000.0, ("horovod", 1): 800.0, ("horovod", 2): 1500.0, ("horovod", 4): 2400.0}
    table = points.scaling_points(exact(throughput=lambda backend, n: rates[backend, n]))
    two, four = point(table, 2), point(table, 4)

    assert (two["speedup_plain"], two["speedup_wrapped"]) == (1.5, 1.875)
    assert (four["efficiency_plain"], four["efficiency_wrapped"]) == (0.6, 0.75)
    assert (four["base_plain_samples_per_s"], four["base_wrapped_samples_per_s"]) == (1000.0, 800.0)
    assert point(table, 1)["speedup_plain"] == 0.8
    assert four["karp_flatt"] == pytest.approx((1 / 2.4 - 1 / 4) / (1 - 1 / 4))


def test_a_point_is_the_median_of_its_repeats_with_their_range():
    runs = exact(throughput=lambda backend, n: 1000.0)
    runs.loc[(runs["backend"] == "horovod") & (runs["workers"] == 2), "samples_per_s"] = [1500.0, 1900.0, 1600.0]
    two = point(points.scaling_points(runs), 2)

    assert two["samples_per_s_median"] == 1600.0
    assert (two["samples_per_s_min"], two["samples_per_s_max"]) == (1500.0, 1900.0)
    assert (two["speedup_plain_min"], two["speedup_plain_max"]) == (1.5, 1.9)
    assert two["repeats"] == 3


@pytest.mark.slow
def test_the_input_is_not_changed_and_the_order_of_its_rows_does_not_matter():
    runs = run_table()
    before = runs.copy(deep=True)
    table = points.scaling_points(runs)
    shuffled = points.scaling_points(runs.sample(frac=1, random_state=3))

    pd.testing.assert_frame_equal(runs, before)
    pd.testing.assert_frame_equal(table, shuffled)
    assert points.doubts(runs, table) == points.doubts(runs.sample(frac=1, random_state=4), shuffled)


def test_series_are_in_the_order_of_what_they_are():
    table = points.scaling_points(pd.concat([run_table(batch=1024), run_table()], ignore_index=True))

    assert list(table["series"].unique())[:4] == [
        "local serial batch 75",
        "local serial batch 1024",
        "local horovod/mpi batch 75",
        "local horovod/mpi batch 1024",
    ]


def test_the_examples_of_the_metrics_book_hold():
    result = doctest.testfile(str(ROOT / "docs" / "metrics.md"), module_relative=False)

    assert result.failed == 0
    assert result.attempted >= 15


@pytest.mark.slow
def test_named_runs_are_taken_as_they_are_and_say_the_same():
    runs = run_table((1, 2, 4))
    named = points.with_series(runs)

    assert points.with_series(named) is named
    pd.testing.assert_frame_equal(points.scaling_points(named), points.scaling_points(runs))
    assert points.doubts(named, points.scaling_points(named)) == points.doubts(runs, points.scaling_points(runs))


# ---------------------------------------------------------------------------------------------------- baselines


def test_without_a_plain_baseline_its_columns_are_empty_and_a_doubt_names_it(golden):
    runs = exact(ways=(("horovod", "mpi"),), throughput=lambda backend, n: 1000.0 * n)
    table = points.scaling_points(runs)

    assert table["speedup_plain"].isna().all() and table["efficiency_plain_low"].isna().all()
    assert list(table["speedup_wrapped"]) == [1.0, 2.0, 4.0]
    golden(points.doubts(runs, table), "horovod/mpi batch 75", "4 workers", "speedup_plain", "fp32", "75000 training")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"partition": "alpha"}, {"batch": 150}, {"precision": "bf16"}, {"train_samples": 1000}]
)
def test_a_baseline_of_other_work_never_stands_in(change):
    runs = exact(throughput=lambda backend, n: 1000.0 * n)
    serial = runs["backend"] == "serial"
    for column, value in change.items():
        runs.loc[serial, column] = value
    table = points.scaling_points(runs)

    assert table.loc[table["backend"] == "horovod", "speedup_plain"].isna().all()


def test_the_wrapped_baseline_has_the_same_settings():
    tuned = exact((1, 2), throughput=lambda backend, n: 1000.0 * n)
    stock = exact((2,), ways=(("horovod", "mpi"),), throughput=lambda backend, n: 700.0 * n)
    table = points.scaling_points(pd.concat([tuned, stock.assign(horovod_defaults=True)], ignore_index=True))
    two = point(table, 2, "local horovod/mpi batch 75 stock settings")

    assert math.isnan(two["speedup_wrapped"])
    assert two["speedup_plain"] == 1.4


def test_one_worker_that_reduces_nothing_is_the_baseline_of_every_reduction():
    flat = exact((1, 2), throughput=lambda backend, n: 1000.0 * n)
    hooks = exact((2,), ways=(("horovod", "mpi"),), throughput=lambda backend, n: 600.0 * n).assign(reduction="hooks")
    table = points.scaling_points(pd.concat([flat, hooks], ignore_index=True))

    assert point(table, 2, "local horovod/mpi batch 75 flat")["speedup_wrapped"] == 2.0
    assert point(table, 2, "local horovod/mpi batch 75 hooks")["speedup_wrapped"] == 1.2


# ---------------------------------------------------------------------------------------------------- failed runs


@pytest.mark.slow
def test_failed_runs_are_counted_with_their_reasons_and_not_filled_in(golden):
    runs = run_table(failed=[("horovod", "gloo", 8, 1), *(("horovod", "mpi", 4, repeat) for repeat in range(3))])
    table = points.scaling_points(runs)
    partly, lost = point(table, 8, "local horovod/gloo batch 75"), point(table, 4)

    assert (partly["repeats"], partly["failed"], partly["missing"]) == (2, 1, False)
    assert (lost["repeats"], lost["failed"], lost["missing"]) == (0, 3, True)
    golden(lost["reasons"], "rank 3", "code 137")
    assert lost[["samples_per_s_median", "speedup_plain", "step_s_median"]].isna().all()
    golden(
        points.doubts(runs, table)[0],
        "39 runs",
        "horovod/mpi batch 75",
        "4 workers",
        "3 runs",
        "horovod/gloo batch 75",
        "8 workers",
        "1 run",
    )


def test_a_run_that_died_before_it_knew_its_settings_is_placed_where_it_belongs():
    runs = run_table((1, 2), failed=[("horovod", "mpi", 2, 2)])
    lost = runs["status"] == "failed"
    runs = runs.assign(
        train_samples=runs["train_samples"].where(~lost), reduction=runs["reduction"].where(~lost, "auto")
    )
    table = points.scaling_points(runs)

    assert point(table, 2)["failed"] == 1
    assert points.failed_runs(runs)["series"].tolist() == ["local horovod/mpi batch 75"]


def test_one_worker_is_of_the_series_of_several_that_all_failed():
    """As by a library that was built without this transport: none of them knows more than how it would average."""
    runs = run_table((1, 2), ways=(("serial", "none"), ("horovod", "mpi"), ("horovod", "nccl")), failed=())
    lost = runs["transport"] == "nccl"
    reduction = runs["reduction"].mask(lost, "flat").mask(lost & (runs["workers"] == 1), "none")
    runs = runs.assign(
        status=runs["status"].mask(lost, "failed"),
        samples_per_s=runs["samples_per_s"].mask(lost),
        train_samples=runs["train_samples"].mask(lost),
        reduction=reduction,
    )

    assert set(points.failed_runs(runs)["series"]) == {"local horovod/nccl batch 75"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("running", ""),
        ("incomplete", ""),
        ("failed", "a\n  b"),
        ("done", None),
    ],
)
def test_every_run_without_a_number_says_why(status, reason, golden):
    runs = exact(throughput=lambda backend, n: 1000.0)
    row = runs.index[-1]
    runs.loc[row, ["status", "reason", "samples_per_s"]] = [status, reason, math.nan]

    golden(point(points.scaling_points(runs), 4)["reasons"])


# ---------------------------------------------------------------------------------------------------- scaling modes


def modes(batches, train_samples=75_000):
    """Return the points of a study with {workers: local batch} over horovod/mpi, and a serial run of each batch."""
    tables = [run_table((n,), ways=(("horovod", "mpi"),), batch=b, failed=()) for n, b in batches.items()]
    size = train_samples if isinstance(train_samples, dict) else dict.fromkeys(batches, train_samples)
    tables = [table.assign(train_samples=size[n]) for n, table in zip(batches, tables, strict=True)]
    serial = [run_table(ways=(("serial", "none"),), batch=b, failed=()) for b in {max(batches.values())}]
    return points.scaling_points(pd.concat([*tables, *serial], ignore_index=True))


def test_a_fixed_local_batch_is_weak_per_step_and_strong_per_epoch():
    own = modes({1: 75, 2: 75, 4: 75}).query("backend == 'horovod'")

    assert set(own["mode"]) == {"weak"}
    assert set(own["work"]) == {"fixed local batch and fixed data set: per-step weak, per-epoch strong"}
    assert own["speedup_plain"].notna().all()


def test_a_fixed_global_batch_is_strong_and_compared_with_one_worker_doing_all_of_it():
    own = modes({1: 600, 2: 300, 4: 150}).query("backend == 'horovod'")

    assert set(own["series"]) == {"local horovod/mpi global batch 600"}
    assert set(own["mode"]) == {"strong"}
    assert list(own["ref_batch"]) == [600, 600, 600]
    assert own["speedup_plain"].notna().all() and own["speedup_wrapped"].notna().all()


def test_a_data_set_that_grows_with_the_workers_is_weak_per_epoch_too(golden):
    table = modes({1: 75, 2: 75, 4: 75}, {1: 75_000, 2: 150_000, 4: 300_000})
    own = table.query("backend == 'horovod'")

    assert set(own["mode"]) == {"weak"}
    golden(own["work"].iloc[0])
    assert own["speedup_plain"].notna().all()


@pytest.mark.slow
def test_mixed_scaling_gets_no_speedup_and_a_doubt(golden):
    runs = pd.concat(
        [run_table((n,), ways=(("horovod", "mpi"),), batch=b, failed=()) for n, b in ((1, 75), (2, 100), (4, 130))],
        ignore_index=True,
    )
    table = points.scaling_points(runs)

    assert set(table["mode"]) == {"mixed"}
    assert table["speedup_wrapped"].isna().all()
    golden(points.doubts(runs, table), "horovod/mpi")


def cells(*batches_and_sizes, backend="horovod", transport="mpi", **change):
    """Return runs of (workers, local batch, training samples), two repeats each, with a throughput of their own."""
    tables = []
    for n, batch, size in batches_and_sizes:
        table = run_table((n,), ways=((backend, transport),), batch=batch, failed=(), noise=0.0, repeats=2, **change)
        tables.append(table.assign(train_samples=size, samples_per_s=100.0 * n + batch))
    runs = pd.concat(tables, ignore_index=True)
    return runs.assign(run=[f"{backend}/{number}" for number in range(len(runs))])


def kinds(runs):
    """Return {series: (mode, worker counts)} of the points of some runs."""
    table = points.scaling_points(runs)
    return {
        name.removeprefix("local horovod/mpi "): (rows["mode"].iloc[0], tuple(rows["workers"]))
        for name, rows in table.groupby("series", sort=False)
    }


def test_two_global_batches_are_two_strong_series_although_local_batches_are_shared():
    runs = cells((1, 128, 1000), (2, 64, 1000), (4, 32, 1000), (1, 64, 1000), (2, 32, 1000), (4, 16, 1000))

    assert kinds(runs) == {"global batch 64": ("strong", (1, 2, 4)), "global batch 128": ("strong", (1, 2, 4))}


def test_a_grid_of_local_batches_is_weak_although_global_batches_are_shared():
    runs = cells(*((n, batch, 1000) for n in (1, 2, 4) for batch in (16, 32, 64)))

    assert kinds(runs) == {f"batch {batch}": ("weak", (1, 2, 4)) for batch in (16, 32, 64)}


def test_two_data_sets_that_grow_are_two_series():
    runs = cells((1, 75, 1000), (2, 75, 2000), (1, 75, 2000), (2, 75, 4000))

    assert kinds(runs) == {
        "batch 75 1000 samples per worker": ("weak", (1, 2)),
        "batch 75 2000 samples per worker": ("weak", (1, 2)),
    }


def test_a_batch_that_changes_in_one_place_is_a_cell_of_its_own():
    runs = cells((1, 75, 1000), (2, 75, 1000), (4, 75, 1000), (8, 150, 1000))
    table = points.scaling_points(runs)

    assert kinds(runs) == {"batch 75": ("weak", (1, 2, 4)), "batch 150": ("single", (8,))}
    assert table.loc[table["workers"] == 8, "speedup_wrapped"].isna().all()
    assert "no_wrapped_baseline" in table.loc[table["workers"] == 8, "flags"].iloc[0].split()


@pytest.mark.slow
def test_a_run_that_fits_two_series_counts_in_one_and_the_other_says_what_it_lacks(golden):
    weak, strong = ((1, 32, 1000), (2, 32, 1000), (4, 32, 1000)), ((1, 128, 1000), (2, 64, 1000))
    runs = cells(*weak, *strong)
    table = points.scaling_points(runs)

    assert kinds(runs) == {"batch 32": ("weak", (1, 2, 4)), "global batch 128": ("strong", (1, 2))}
    golden(points.doubts(runs, table), "batch 128", "4 workers", "horovod/mpi batch 32")


def test_one_worker_count_has_no_mode():
    assert kinds(cells((4, 75, 1000), (4, 150, 1000))) == {"batch 75": ("single", (4,)), "batch 150": ("single", (4,))}


def test_a_strong_point_is_flagged_when_one_worker_with_the_whole_batch_is_missing():
    runs = pd.concat(
        [cells((2, 64, 1000), (4, 32, 1000)), cells((1, 64, 1000), backend="serial", transport="none")],
        ignore_index=True,
    )
    table = points.scaling_points(runs)
    own = table[table["backend"] == "horovod"]

    assert set(own["mode"]) == {"strong"} and list(own["ref_batch"]) == [128, 128]
    assert own["speedup_plain"].isna().all()
    assert all("no_plain_baseline" in flags.split() for flags in own["flags"])


# ---------------------------------------------------------------------------------------------------- other scripts


OPTIONS_OF_OURS = [name for name in points.CHOICES if name not in ("optimizer", "timer_mode")]


def foreign(runs, **known):
    """Return the runs as those of another script, whose options are those of `known` and else not recorded."""
    return runs.assign(**{"model": "ResNet-11689512", **dict.fromkeys(points.CHOICES), **known})


def test_another_script_whose_data_set_has_no_size_is_compared_with_its_own_one_worker_runs():
    runs = cells((1, 75, math.nan), (2, 75, math.nan), (4, 75, math.nan))
    runs = foreign(pd.concat([runs, cells((1, 75, math.nan), backend="serial", transport="none")], ignore_index=True))
    own = points.scaling_points(runs).query("backend == 'horovod'")

    assert set(own["mode"]) == {"weak"}
    assert set(own["work"]) == {"fixed local batch, size of the data set not recorded: weak per step"}
    assert own["speedup_plain"].notna().all() and own["speedup_wrapped"].notna().all()
    assert own["train_samples"].isna().all()


def test_without_a_serial_run_the_speedups_of_another_script_name_their_baseline(golden):
    runs = foreign(cells((1, 75, 1000), (2, 75, 1000), backend="ddp", transport="gloo"))
    table = points.scaling_points(runs)

    assert table["speedup_plain"].isna().all()
    assert table["speedup_wrapped"].iloc[1] == pytest.approx(275 / 175)
    (text,) = [text for text in points.doubts(runs, table) if "speedup" in text]
    assert "no speedup" not in text
    golden(text, "PyTorch DDP", "ddp/gloo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "mode", "batches", "told"),
    [
        ((1000, 800), "weak", (75, 75), ("800 samples", "1000 samples")),
        ((math.nan, 800), "weak", (75, 75), ("800 samples", "not recorded")),
        ((1000, 500), "strong", (64, 32), ("500 samples", "1000 samples")),  # each rank has read its own half
    ],
)
def test_data_sets_of_other_sizes_leave_a_speedup_and_a_doubt(sizes, mode, batches, told):
    runs = foreign(cells((1, batches[0], sizes[0]), (2, batches[1], sizes[1])))
    table = points.scaling_points(runs)

    assert set(table["mode"]) == {mode}
    assert table["speedup_wrapped"].iloc[1] == pytest.approx((200 + batches[1]) / (100 + batches[0]))
    (text,) = [text for text in points.doubts(runs, table) if "the data set has" in text]
    assert all(each in text for each in told) and "2 workers" in text


@pytest.mark.slow
def test_a_serial_run_with_another_data_set_is_a_baseline_where_there_is_none_with_the_same():
    serial = cells((1, 75, 500), backend="serial", transport="none").assign(reduction="none")
    runs = foreign(pd.concat([cells((2, 75, 1000)), serial], ignore_index=True))
    both = foreign(pd.concat([runs, serial.assign(train_samples=1000, samples_per_s=100.0)], ignore_index=True))

    assert point(points.scaling_points(runs), 2, "local horovod/mpi ResNet-11689512 batch 75")["speedup_plain"] == (
        pytest.approx(275 / 175)
    )
    table = points.scaling_points(both)
    (two,) = [row for _, row in table.iterrows() if row["workers"] == 2]
    assert two["speedup_plain"] == pytest.approx(2.75), "that of the same data goes first"
    assert not any("the data set has" in text for text in points.doubts(both, table))


def test_no_data_set_of_another_size_stands_in_for_our_own_training():
    runs = cells((1, 75, 1000), (2, 75, 800))
    assert points.scaling_points(runs)["speedup_wrapped"].isna().iloc[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "batches", "line"),
    [
        (
            "horovod-study record --out runs/2w -- torchrun --nproc-per-node 2 train.py --note 'it'\"'\"'s; x'",
            (75, 75),
            "horovod-study record --out runs/1w -- torchrun --nproc-per-node 1 train.py --note 'it'\"'\"'s; x'",
        ),
        (
            "horovod-study record --out runs/2w -- horovodrun -np 2 python train.py --batch-size=32",
            (32, 16),  # strong scaling: one worker with all of the smallest global batch
            "horovod-study record --out runs/1w -- horovodrun -np 1 python train.py --batch-size=64",
        ),
    ],
)
def test_without_any_baseline_a_doubt_says_what_to_type(typed, batches, line):
    runs = foreign(cells((2, batches[0], 1000), (4, batches[1], 1000)), typed=typed, typed_in="/home/me")
    table = points.scaling_points(runs)
    (text,) = [text for text in points.doubts(runs, table) if "no speedup" in text]

    assert "2 and 4 workers" in text and "/home/me" in text
    assert text.endswith(f": {line}")


def test_a_study_without_any_baseline_is_told_its_line():
    runs = foreign(cells((2, 75, 1000)), declared="script", typed="")
    (text,) = [text for text in points.doubts(runs, points.scaling_points(runs)) if "no speedup" in text]

    assert "baselines: [wrapped]" in text


def test_options_that_another_script_did_not_record_are_empty_and_not_our_defaults():
    runs = foreign(cells((1, 75, 1000), (2, 75, 1000)), optimizer="AdamW", timer_mode="light", horovod_defaults=False)
    both = pd.concat([run_table((1, 2), ways=(("horovod", "mpi"),), failed=()), runs], ignore_index=True)
    table = points.scaling_points(both)
    theirs, ours = table[table["model"] == "ResNet-11689512"], table[table["model"] != "ResNet-11689512"]

    assert (theirs[[*OPTIONS_OF_OURS, "horovod_defaults"]] == "").all(axis=None)
    assert set(theirs["optimizer"]) == {"AdamW"} and set(theirs["timer_mode"]) == {"light"}
    assert (ours["optimizer"] == "adam").all() and (ours["lr"] == 4.7331e-4).all()
    assert list(table["series"].drop_duplicates()) == [
        "local horovod/mpi batch 75",
        "local horovod/mpi ResNet-11689512 batch 75",
    ]
    assert list(theirs["speedup_wrapped"]) == [1.0, 275 / 175]


def test_options_that_another_script_did_record_tell_its_series_apart():
    runs = [foreign(cells((1, 75, 1000), (2, 75, 1000)), optimizer=name) for name in ("SGD", "Adam")]
    table = points.scaling_points(pd.concat(runs, ignore_index=True))

    assert list(table["series"].drop_duplicates()) == [
        "local horovod/mpi ResNet-11689512 batch 75 Adam",
        "local horovod/mpi ResNet-11689512 batch 75 SGD",
    ]


# ---------------------------------------------------------------------------------------------------- flags


def flags(table, **values):
    row = table
    for name, value in values.items():
        row = row[row[name] == value]
    assert len(row) == 1
    return row["flags"].iloc[0].split()


@pytest.mark.slow
def test_flags_say_for_a_machine_what_the_doubts_say_for_a_reader():
    clean = points.scaling_points(
        run_table((1, 2), ways=(("serial", "none"), ("horovod", "mpi")), failed=(), noise=0.0)
    )
    lost = points.scaling_points(run_table(failed=[("horovod", "mpi", 8, repeat) for repeat in range(3)]))
    partly = points.scaling_points(run_table(failed=[("horovod", "mpi", 8, 0)]))
    runs = exact((1, 2, 4), throughput=lambda backend, n: {1: 1000.0, 2: 2300.0, 4: 4004.0}[n])
    runs.loc[(runs["workers"] == 4), "samples_per_s"] = [3990.0, 4004.0, 4010.0]
    runs.loc[(runs["workers"] == 1) & (runs["backend"] == "horovod"), "samples_per_s"] = [800.0, 950.0, 990.0]
    runs.loc[runs["workers"] == 2, "steps"] = 40
    odd = points.scaling_points(runs)

    assert (clean["flags"] == "").all()
    assert flags(lost, backend="horovod", transport="mpi", workers=8) == ["missing", "failed"]
    assert flags(partly, backend="horovod", transport="mpi", workers=8) == ["failed", "few_repeats"]
    assert flags(odd, workers=2) == ["superlinear", "few_steps"]
    assert flags(odd, workers=4) == ["superlinear_unresolved"]
    assert flags(odd, backend="horovod", workers=1) == ["wide_spread"]
    assert set(" ".join(pd.concat([lost, partly, odd])["flags"]).split()) <= set(points.FLAGS)


def test_one_worker_that_is_quicker_than_the_plain_one_is_not_superlinear():
    runs = exact((1, 2), throughput=lambda backend, n: {1: 1000.0, 2: 1990.0}[n])
    runs.loc[(runs["workers"] == 1) & (runs["backend"] == "horovod"), "samples_per_s"] = [1040.0, 1050.0, 1060.0]

    assert flags(points.scaling_points(runs), backend="horovod", workers=1) == []


def test_mixed_scaling_is_flagged_and_not_compared():
    table = points.scaling_points(cells((1, 75, 1000), (2, 100, 1000), (4, 130, 1000)))

    assert set(table["mode"]) == {"mixed"}
    assert all(each == "mixed few_repeats" for each in table["flags"])
    assert table[["speedup_plain", "speedup_wrapped", "karp_flatt", "computation_scalability"]].isna().all(axis=None)


# ---------------------------------------------------------------------------------------------------- ranks


def test_karp_flatt_has_the_interval_of_the_speedup():
    runs = exact(throughput=lambda backend, n: {1: 1000.0, 2: 1600.0, 4: 2400.0}[n])
    runs.loc[(runs["workers"] == 4), "samples_per_s"] = [2300.0, 2400.0, 2450.0]
    four = point(points.scaling_points(runs), 4)

    assert four["karp_flatt"] == pytest.approx((1 / 2.4 - 1 / 4) / (1 - 1 / 4))
    for end, other in (("low", "high"), ("high", "low")):
        speedup = four[f"speedup_plain_{other}"]
        assert four[f"karp_flatt_{end}"] == pytest.approx((1 / speedup - 1 / 4) / (1 - 1 / 4))
    assert four["karp_flatt_low"] < four["karp_flatt"] < four["karp_flatt_high"]


def of_ranks(runs, **values):
    """Return `Accounting.run_rows` of some runs: a row per run with these values, and one of a rank with others."""
    whole = pd.DataFrame({"run": runs["run"], "rank": pd.array([pd.NA] * len(runs), dtype="Int64"), **values})
    ranks = whole.assign(rank=pd.array([0] * len(runs), dtype="Int64"), **dict.fromkeys(values, 99.0))
    return pd.concat([ranks, whole], ignore_index=True).sample(frac=1, random_state=5)


def test_pop_factors_of_one_late_rank_reach_the_points_exactly():
    runs = exact((1, 4), throughput=lambda backend, n: {1: 1000.0, 4: 2880.0}[n])
    found = pop([1, 1, 1, 0.6], 1.25)
    alone = runs["workers"] == 1
    accounting = of_ranks(
        runs,
        load_balance=np.where(alone, 1.0, found.load_balance),
        communication_efficiency=np.where(alone, 1.0, found.communication),
        parallel_efficiency=np.where(alone, 1.0, found.parallel),
        skew_s=np.where(alone, 0.0, 1e-3),
    )
    four = point(points.scaling_points(runs, accounting), 4)

    assert (four["load_balance_median"], four["communication_efficiency_median"]) == (0.9, 0.8)
    assert four["parallel_efficiency_median"] == pytest.approx(0.72, abs=1e-15)
    assert four["skew_s_median"] == 1e-3
    # Efficiency is 0.72 as well: all that is lost is lost by waiting, and the computing itself scales.
    assert four["efficiency_plain"] == 0.72
    assert four["computation_scalability"] == pytest.approx(1.0)


def test_efficiency_is_waiting_times_slower_computing():
    runs = exact((1, 2), throughput=lambda backend, n: {1: 1000.0, 2: 1200.0}[n])
    alone = runs["workers"] == 1  # which the rows say nothing of: one worker waits for nobody
    accounting = of_ranks(
        runs,
        load_balance=np.where(alone, math.nan, 1.0),
        communication_efficiency=np.where(alone, math.nan, 0.8),
        parallel_efficiency=np.where(alone, math.nan, 0.8),
        skew_s=0.0,
    )
    two = point(points.scaling_points(runs, accounting), 2)

    # 2 x 0.8 / 1200 useful seconds for a sample where one worker needs 1 / 1000
    assert two["computation_scalability"] == pytest.approx((1 / 1000) / (2 * 0.8 / 1200))
    assert 0.8 * two["computation_scalability"] == pytest.approx(two["efficiency_plain"]) == pytest.approx(0.6)


def test_what_the_rows_do_not_say_is_empty():
    runs = exact((1, 2), throughput=lambda backend, n: 1000.0 * n)
    known = of_ranks(runs, load_balance=np.where(runs["repeat"] == 1, math.nan, 0.9))
    bare, partly = points.scaling_points(runs), points.scaling_points(runs, known)
    names = [f"{name}_median" for name in points.OF_RANKS]

    assert bare[[*names, "computation_scalability"]].isna().all(axis=None)
    assert partly[names].isna().all(axis=None), "a median over repeats of which one is not known"


# ---------------------------------------------------------------------------------------------------- repeats


def test_single_repeats_join_the_points():
    runs = run_table().sample(frac=1, random_state=2)
    named = points.with_series(runs)
    table = points.scaling_points(runs)
    good = named[named["status"] == "done"]
    medians = good.groupby(["series", "workers", "nodes"])["samples_per_s"].median()

    for row in table.itertuples():
        assert row.samples_per_s_median == medians[row.series, row.workers, row.nodes]


# ---------------------------------------------------------------------------------------------------- intervals


def test_no_interval_from_fewer_than_three_repeats_on_either_side():
    runs = run_table(failed=[("serial", "none", 1, 0)])
    table = points.scaling_points(runs)
    two = point(table, 2)

    assert math.isfinite(two["samples_per_s_ci95_low"]) and math.isfinite(two["speedup_wrapped_low"])
    assert math.isnan(two["speedup_plain_low"]) and math.isnan(two["efficiency_plain_high"])


# ---------------------------------------------------------------------------------------------------- doubts


def texts(runs):
    return points.doubts(runs, points.scaling_points(runs))


@pytest.mark.slow
def test_a_clean_study_has_no_doubts():
    assert texts(run_table(failed=(), noise=0.005)) == []


def test_few_repeats_wide_spread_and_short_windows_are_doubted(golden):
    runs = exact((1, 2), throughput=lambda backend, n: 1000.0 * n * 0.9 ** (n - 1), repeats=2)
    two = (runs["backend"] == "horovod") & (runs["workers"] == 2)
    runs.loc[two, "samples_per_s"] = [1500.0, 1900.0]
    runs.loc[two, "steps"] = 40

    golden(texts(runs), "3 repeats", "1 worker", "horovod/mpi batch 75", "2 workers", "24 %", "40 steps", "100 make")


@pytest.mark.slow
def test_efficiency_above_one_is_doubted_with_causes_only_where_it_is_resolved(golden):
    sure = texts(exact((1, 2), throughput=lambda backend, n: {1: 1000.0, 2: 2300.0}[n]))
    runs = exact((1, 2), throughput=lambda backend, n: 1000.0 * n)
    two = (runs["backend"] == "horovod") & (runs["workers"] == 2)
    runs.loc[two, "samples_per_s"] = [1950.0, 2010.0, 2020.0]

    assert len(sure) == 1
    golden(sure[0], "100 %", "115.0 %")
    golden(texts(runs), "horovod/mpi batch 75", "2 workers", "100 %", "100.5 %")


@pytest.mark.slow
def test_unequal_baselines_are_doubted(golden):
    runs = exact((1, 2), throughput=lambda backend, n: 1000.0 * n * (0.8 if backend == "horovod" else 1))

    golden(texts(runs), "horovod/mpi batch 75", "20 %")


@pytest.mark.slow
def test_what_should_not_differ_between_runs_is_doubted(golden):
    runs = exact((1, 2), throughput=lambda backend, n: 1000.0 * n * 0.9 ** (n - 1)).assign(cores=1)
    runs.loc[runs.index[0], "torch"] = "2.11.0"
    runs = pd.concat([runs, runs[runs["workers"] == 2].assign(horovod_defaults=True)], ignore_index=True)
    runs.loc[0, "study"] = "other"
    found = texts(runs)

    assert any(text.startswith("partition local: torch differs between runs (2.11.0, 2.13.0); ") for text in found)
    assert any("stock communication settings (local horovod/mpi batch 75 stock settings)" in text for text in found)
    golden(found, "2 workers", "1 cores")


# ---------------------------------------------------------------------------------------------------- bad input


def test_a_table_without_runs_or_columns_is_refused_in_one_line(golden):
    with golden.raises(AnalysisError):
        points.scaling_points(run_table().iloc[:0])
    with golden.raises(AnalysisError):
        points.scaling_points(run_table().drop(columns="workers"))


# ---------------------------------------------------------------------------------------------------- where they sit


def test_placements_are_series_of_their_own_and_share_the_plain_baseline():
    ways = (("serial", "none"), ("horovod", "mpi"))
    filled = run_table((1, 2, 4), ways=ways, failed=(), change={"placement": "fill", "workers_per_node": None})
    spread = run_table((2, 4), ways=ways[1:], failed=(), change={"placement": "spread", "workers_per_node": None})
    few = run_table((2, 4), ways=ways[1:], failed=(), change={"placement": "fill", "workers_per_node": 1})
    runs = pd.concat([filled, spread, few], ignore_index=True)
    runs["run"] = [f"run{number}" for number in range(len(runs))]
    table = points.scaling_points(runs)

    assert set(table["setting"]) == {
        "batch 75",
        "batch 75 nodes filled full nodes",
        "batch 75 nodes shared evenly full nodes",
        "batch 75 nodes filled 1 per node",
    }
    assert table["speedup_plain"].notna().all(), "one alone sits nowhere in particular"


def test_checkpoints_are_compared_with_a_baseline_that_writes_as_many():
    runs = pd.concat(
        [
            run_table(
                (1, 2), ways=(("serial", "none"), ("horovod", "mpi")), failed=(), change={"checkpoint_every": each}
            )
            for each in (None, 100, 20)
        ],
        ignore_index=True,
    )
    runs["run"] = [f"run{number}" for number in range(len(runs))]
    slow = (runs["backend"] == "serial") & (runs["checkpoint_every"] == 20)
    runs.loc[slow, "samples_per_s"] /= 2
    table = points.scaling_points(runs)
    two = table[table["workers"] == 2].set_index("setting")["speedup_plain"]

    assert set(table["setting"]) == {
        f"batch 75 {words}"
        for words in ("no checkpoints on the way", "checkpoint every 100 steps", "checkpoint every 20 steps")
    }
    assert two["batch 75 checkpoint every 20 steps"] / two["batch 75 checkpoint every 100 steps"] == pytest.approx(
        2, 0.1
    )


@pytest.mark.slow
def test_one_worker_serves_all_placements_and_the_own_one_first():
    ways = (("serial", "none"), ("horovod", "mpi"))
    filled = run_table((1, 2), ways=ways, failed=(), change={"placement": "fill", "workers_per_node": None})
    spread = run_table((2, 4), ways=ways[1:], failed=(), change={"placement": "spread", "workers_per_node": 2})
    runs = pd.concat([filled, spread], ignore_index=True)
    runs["run"] = [f"run{number}" for number in range(len(runs))]
    shared = points.scaling_points(runs)
    own = run_table((1,), ways=ways[1:], failed=(), change={"placement": "spread", "workers_per_node": 2})
    own = own.assign(run=[f"own{number}" for number in range(len(own))], samples_per_s=1000.0)
    both = points.scaling_points(pd.concat([runs, own], ignore_index=True))

    assert shared["speedup_wrapped"].notna().sum() == 4 and not points.doubts(runs, shared)
    bases = both[both["workers"] > 1].set_index("placement")["base_wrapped_samples_per_s"]
    assert set(bases["spread"]) == {1000.0} and bases["fill"] != 1000.0
