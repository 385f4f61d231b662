"""Convergence: known answers, the exact split of a speedup to a target, censored times, odd curves, doubts in words."""

import math
from pathlib import Path

import make.records
import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_of, figures_only
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.synthetic_runs import evaluation_table, run_table

from horovod_study import records
from horovod_study.analysis.learning import convergence as learned
from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis, analyze
from horovod_study.cli import main
from horovod_study.errors import AnalysisError, ConfigError, RecordError
from horovod_study.report.figures import convergence as figures
from horovod_study.report.kit.style import style
from horovod_study.report.page import html, tables
from horovod_study.strain.options import STRAIN
from horovod_study.studies.study_file import load_study
from horovod_study.text import numbers

FLOOR = 6.8e-5
PLAIN_AND_MPI = (("serial", "none"), ("horovod", "mpi"))


def crossed(samples, train_s, wall_s, test_mse, target=1e-3):
    of = {"samples": samples, "train_s": train_s, "wall_s": wall_s, "test_mse": test_mse}
    run = {name: np.array(values, dtype=float) for name, values in of.items()}
    found = learned.crossing({**run, "workers": 1, "energy_per_sample_j": math.nan}, target)
    return {name: found[name] for name in ("reached", "at_first", "samples", "train_s", "wall_s")}


def curves(losses, *, runs=None, samples_per_epoch=1000.0, rate=100.0, evaluation_s=1.0):
    """Return (runs, evaluations) of runs whose test MSEs after each epoch are given, by run: `rate` samples/s each."""
    runs = run_table((1, 2), ways=PLAIN_AND_MPI, failed=(), noise=0.0, repeats=3) if runs is None else runs
    rows = []
    for run in runs.to_dict("records"):
        own = losses(run) if callable(losses) else losses
        speed = rate(run) if callable(rate) else rate
        for place, mse in enumerate(own):
            epoch = place + 1
            train_s = epoch * samples_per_epoch / speed
            rows.append(
                {
                    "run": run["run"],
                    "epoch": float(epoch),
                    "steps": 10.0 * epoch,
                    "samples": epoch * samples_per_epoch,
                    "train_s": train_s,
                    "wall_s": train_s + epoch * evaluation_s,
                    "train_mse": mse,
                    "test_mse": mse,
                    "g0_rmse_mpa": 1.0,
                    "a_rmse": 1.0,
                    "lr": 1e-3,
                }
            )
    return runs.assign(excluded_steps=0, floor_mse=FLOOR), pd.DataFrame(rows)


def row(table, backend, workers, **values):
    found = table[(table["backend"] == backend) & (table["workers"] == workers)]
    for name, value in values.items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


def of(values):
    return np.asarray(values, dtype=float)


# ---------------------------------------------------------------------------------------------------- one run


def test_a_target_is_met_where_the_logarithm_of_the_error_crosses_it():
    found = crossed([100, 200], [1.0, 3.0], [2.0, 6.0], [1e-2, 1e-4])

    assert found == {"reached": True, "at_first": False, "samples": 150.0, "train_s": 2.0, "wall_s": 4.0}


def test_the_first_evaluation_at_the_target_counts_even_if_the_error_rises_again():
    found = crossed([1, 2, 3], [1, 2, 3], [1, 2, 3], [1e-2, 1e-3, 5e-2])

    assert (found["reached"], found["samples"], found["at_first"]) == (True, 2.0, False)


def test_a_target_met_at_the_first_evaluation_says_so():
    found = crossed([100, 200], [1, 2], [1, 2], [1e-4, 1e-5])

    assert found == {"reached": True, "at_first": True, "samples": 100.0, "train_s": 1.0, "wall_s": 1.0}


@pytest.mark.parametrize("before", [math.inf, math.nan])
def test_nothing_is_interpolated_from_an_error_that_is_no_number(before):
    found = crossed([100, 200], [1, 2], [1, 2], [before, 1e-5])

    assert (found["samples"], found["train_s"], found["at_first"]) == (200.0, 2.0, False)


def test_a_target_that_is_not_met_leaves_a_lower_bound():
    found = crossed([100, 200], [1, 2], [3, 4], [1e-2, math.inf])

    assert found == {"reached": False, "at_first": False, "samples": 200.0, "train_s": 2.0, "wall_s": 4.0}


def test_the_rate_of_a_power_law_is_its_exponent():
    samples = of([100, 200, 400, 800])
    rate, half = learned.convergence_rate(samples, 3 * samples**-0.7)

    assert rate == pytest.approx(0.7)
    assert half == pytest.approx(0.0, abs=1e-7)
    assert all(math.isnan(value) for value in learned.convergence_rate(samples[:2], samples[:2] ** -0.7))
    assert all(math.isnan(value) for value in learned.convergence_rate(of([5, 5, 5]), of([1, 2, 3])))


# ---------------------------------------------------------------------------------------------------- time to target


def test_twice_the_throughput_and_a_quarter_more_samples_make_a_speedup_of_1_6():
    def losses(run):
        slower = 1.25 if run["workers"] == 2 else 1.0
        return [1e-2 * math.exp(-epoch / slower) for epoch in range(1, 9)]

    runs, evaluations = curves(losses, rate=lambda run: 100.0 * run["workers"])
    found = learned.convergence(runs, evaluations, targets=[1e-2 * math.exp(-4)]).targets
    two = row(found, "horovod", 2)

    assert two["throughput_ratio"] == pytest.approx(2.0)
    assert two["statistical_efficiency"] == pytest.approx(0.8)
    assert two["speedup"] == pytest.approx(1.6)
    assert (two["samples"], two["train_s"]) == (pytest.approx(5000.0), pytest.approx(25.0))
    # 25 s = 20 s for the 4000 samples of one worker + 5 s for a quarter more; 5 evaluations of 1 s are outside.
    assert (two["same_samples_s"], two["more_samples_s"]) == (pytest.approx(20.0), pytest.approx(5.0))
    assert (two["wall_s"], two["outside_s"]) == (pytest.approx(30.0), pytest.approx(5.0))
    assert two["speedup_wall"] == pytest.approx(44.0 / 30.0)
    assert two["overhead_ratio"] == pytest.approx((44.0 / 40.0) / (30.0 / 25.0))
    assert (two["base"], two["base_series"], two["base_samples"]) == ("plain", "local serial batch 75", 4000.0)
    assert not two["censored"]


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(seed=st.integers(0, 10_000), epochs=st.integers(1, 6), scatter=st.floats(0.0, 0.5))
def test_speedup_is_exactly_throughput_ratio_times_statistical_efficiency(seed, epochs, scatter):
    runs = run_table((1, 2, 4), ways=PLAIN_AND_MPI, failed=(), noise=0.05, seed=seed)
    evaluations = evaluation_table(runs, epochs=epochs, waste={2: 1.3, 4: 1.7}, scatter=scatter, seed=seed)
    table = learned.convergence(runs, evaluations, targets=[2e-3, 1e-3, 5e-4, 1e-5]).targets
    known = table[table["speedup"].notna()]
    split = known["throughput_ratio"] * known["statistical_efficiency"]

    assert list(split) == pytest.approx(list(known["speedup"]), rel=1e-12)
    assert list(split * known["overhead_ratio"]) == pytest.approx(list(known["speedup_wall"]), rel=1e-12)
    assert list(known["same_samples_s"] + known["more_samples_s"]) == pytest.approx(list(known["train_s"]), rel=1e-12)
    assert (table["speedup"].isna() == (table["censored"] | table["base_train_s"].isna())).all()
    assert (table["train_s"].isna() == table["train_s_at_least"].notna()).all()
    assert (table["train_s_at_least"].isna() != table["censored"]).all()


def test_the_split_is_that_of_the_median_run_with_the_spread_of_all():
    speeds = {0: 100.0, 1: 80.0, 2: 50.0}
    runs, evaluations = curves([1e-2, 1e-3], rate=lambda run: speeds[run["repeat"]])
    found = row(learned.convergence(runs, evaluations, targets=[1e-3]).targets, "horovod", 2)

    assert (found["train_s"], found["train_s_min"], found["train_s_max"]) == (25.0, 20.0, 40.0)
    assert found["speedup"] == 1.0
    assert found["speedup_low"] < 1.0 < found["speedup_high"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "expected"),
    [
        # per repeat: does it meet the target; of repeats that do not, all end at 2 epochs = 20 s
        ((True, True, True), (20.0, False, math.nan)),
        ((True, True, False), (20.0, False, math.nan)),
        ((True, False, False), (math.nan, True, 20.0)),
        ((False, False, False), (math.nan, True, 20.0)),
    ],
)
def test_repeats_that_miss_the_target_are_censored_and_not_dropped(last, expected):
    runs, evaluations = curves(lambda run: [1e-2, 1e-3 if last[run["repeat"]] else 2e-3])
    found = row(learned.convergence(runs, evaluations, targets=[1e-3]).targets, "horovod", 2)
    train_s, censored, at_least = expected

    assert (found["reached"], found["repeats"]) == (sum(last), 3)
    assert found["censored"] == censored
    assert [found["train_s"], found["train_s_at_least"]] == pytest.approx([train_s, at_least], nan_ok=True)
    assert math.isnan(found["train_s_max"]) == (not all(last))


def test_a_short_run_that_missed_the_target_leaves_the_median_open_when_it_could_change_it():
    # One repeat stopped after 1 epoch (10 s) without the target; the others meet it after 2 and 3 epochs.
    runs, evaluations = curves(lambda run: {0: [1e-2], 1: [1e-2, 1e-3], 2: [1e-2, 5e-3, 1e-3]}[run["repeat"]])
    found = row(learned.convergence(runs, evaluations, targets=[1e-3]).targets, "horovod", 2)

    assert found["censored"]  # the missing time is above 10 s: the median is anywhere from 20 s to 30 s
    assert (found["train_s_at_least"], found["train_s_min"]) == (20.0, 20.0)


def test_a_censored_side_bounds_the_speedup():
    runs, evaluations = curves(lambda run: [1e-2, 1e-3 if run["workers"] == 1 else 2e-3])
    slow = row(learned.convergence(runs, evaluations, targets=[1e-3]).targets, "horovod", 2)
    runs, evaluations = curves(lambda run: [1e-2, 1e-3 if run["workers"] == 2 else 2e-3])
    fast = row(learned.convergence(runs, evaluations, targets=[1e-3]).targets, "horovod", 2)

    assert (slow["speedup_at_most"], math.isnan(slow["speedup"])) == (1.0, True)
    assert (fast["speedup_at_least"], math.isnan(fast["speedup"])) == (1.0, True)


def test_default_targets_lie_between_the_first_and_the_best_common_to_all():
    runs, evaluations = curves(lambda run: [8e-3, 4e-3, 1e-3 if run["workers"] == 1 else 1.3e-3])
    table = learned.convergence(runs, evaluations).targets
    levels = sorted(table["target_mse"].unique())

    assert levels == [0.0013, 0.0024, 0.0044]
    assert not table["censored"].any()


def test_a_cell_that_hardly_learns_does_not_set_the_targets_of_the_others():
    runs, evaluations = curves(lambda run: [8e-3, 7e-3] if run["workers"] == 2 else [8e-3, 1e-3])

    assert learned.convergence(runs, evaluations).targets["target_mse"].min() == 0.001


def test_where_nothing_is_common_the_middle_cell_sets_the_targets_and_others_are_censored():
    runs, evaluations = curves(lambda run: [8e-3, 9e-3] if run["workers"] == 2 else [8e-3, 1e-3])
    table = learned.convergence(runs, evaluations).targets

    assert table["target_mse"].min() == 0.001
    assert row(table, "horovod", 2, target_mse=0.001)["censored"]


def test_one_evaluation_makes_a_curve_of_one_point_and_no_targets():
    runs, evaluations = curves([5e-3])
    found = learned.convergence(runs, evaluations)

    assert len(found.curves) == 3 and found.targets.empty
    assert found.learning["rate"].isna().all()
    assert set(found.learning["best_mse_median"]) == {5e-3}


@pytest.mark.parametrize("target", [0.0, -1e-3, math.nan, math.inf])
def test_a_target_must_be_an_error(target, golden):
    runs, evaluations = curves([5e-3])

    with golden.raises(AnalysisError, match="MSE.*1e-4"):
        learned.convergence(runs, evaluations, targets=[target])


# ---------------------------------------------------------------------------------------------------- curves and bests


def test_curves_are_medians_over_the_repeats_evaluated_there():
    runs, evaluations = curves(lambda run: {0: [4e-3, 1e-3], 1: [5e-3, 2e-3], 2: [9e-3, 3e-3, 2e-3]}[run["repeat"]])
    own = learned.convergence(runs, evaluations).curves.query("backend == 'horovod' and workers == 2")

    assert own["samples"].tolist() == [1000, 2000, 3000]
    assert own["evaluations"].tolist() == [3, 3, 1]
    assert own["test_mse_median"].tolist() == [5e-3, 2e-3, 2e-3]
    assert own["test_mse_max"].tolist() == [9e-3, 3e-3, 2e-3]
    assert own["efficiency"].tolist() == pytest.approx([FLOOR / 5e-3, FLOOR / 2e-3, FLOOR / 2e-3])


def test_the_best_is_that_of_the_median_run_and_the_worse_of_two():
    runs, evaluations = curves(lambda run: {0: [4e-3, 1e-3, 2e-3], 1: [5e-3, 2e-3], 2: [9e-3]}[run["repeat"]])
    three = row(learned.convergence(runs, evaluations).learning, "horovod", 2)
    pair = runs["repeat"] < 2
    two = row(learned.convergence(runs[pair], evaluations).learning, "horovod", 2)

    assert (three["best_mse_median"], three["best_samples"], three["best_epoch"]) == (2e-3, 2000.0, 2.0)
    assert (three["best_mse_min"], three["best_mse_max"]) == (1e-3, 9e-3)
    assert (two["best_mse_median"], two["repeats"]) == (2e-3, 2)


def test_rates_have_an_interval_from_repeats_or_from_the_regression():
    def losses(run):
        return [1e-2 * epoch ** -(0.9 + 0.1 * run["repeat"]) for epoch in range(1, 6)]

    runs, evaluations = curves(losses)
    three = row(learned.convergence(runs, evaluations).learning, "horovod", 2)
    one = row(learned.convergence(runs[runs["repeat"] == 0], evaluations).learning, "horovod", 2)

    assert three["rate"] == pytest.approx(1.0)
    assert three["rate_low"] < 0.9 and three["rate_high"] > 1.1 and three["rate_interval"] == "repeats"
    assert one["rate"] == pytest.approx(0.9) and one["rate_interval"] == "regression"


def test_a_run_that_diverged_is_worse_than_any_other_and_is_doubted(golden):
    runs, evaluations = curves(
        lambda run: [4e-3, math.nan] if run["workers"] == 2 and run["repeat"] < 2 else [4e-3, 1e-3]
    )
    found = learned.convergence(runs, evaluations, targets=[1e-3])
    two = row(found.learning, "horovod", 2)
    last = found.curves.query("workers == 2").iloc[-1]

    assert (two["diverged"], two["best_mse_median"]) == (2, 4e-3)
    assert math.isnan(two["final_mse_median"]) and math.isnan(last["test_mse_median"]) and last["test_mse_min"] == 1e-3
    assert row(found.targets, "horovod", 2)["censored"]
    golden(found.doubts, "2 workers", "3 runs", "MSE")


def test_older_runs_without_a_floor_have_no_efficiency():
    runs, evaluations = curves([4e-3, 1e-3])
    for older in (runs.drop(columns="floor_mse"), runs.assign(floor_mse=None)):
        found = learned.convergence(older, evaluations)

        assert found.learning["efficiency"].isna().all() and found.curves["floor_mse"].isna().all()
        assert found.learning["best_mse_median"].notna().all()


def test_the_input_is_not_changed_and_its_order_does_not_matter():
    runs = run_table(failed=())
    evaluations = evaluation_table(runs)
    before = evaluations.copy(deep=True)
    found = learned.convergence(runs, evaluations)
    again = learned.convergence(runs.sample(frac=1, random_state=1), evaluations.sample(frac=1, random_state=2))

    pd.testing.assert_frame_equal(evaluations, before)
    for name in ("curves", "learning", "targets"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(again, name))
    assert found.doubts == again.doubts


# ---------------------------------------------------------------------------------------------------- doubts


def test_an_error_below_the_floor_is_called_a_bug(golden):
    runs, evaluations = curves(lambda run: [1e-3, 0.8 * FLOOR if run["workers"] == 2 else 0.95 * FLOOR])
    (text,) = learned.convergence(runs, evaluations).doubts

    golden(text, "horovod/mpi batch 75", "2 workers", "MSE", "5.44e-05", "0.9", "6.8e-05")


def test_repeats_of_one_seed_and_of_several_budgets_are_doubted(golden):
    runs, evaluations = curves([4e-3, 1e-3])
    same = runs.assign(seed=1, schedule="cosine", budget=[f"{5 + each % 2} epochs" for each in range(len(runs))])
    own = runs.assign(seed=runs["repeat"] + 1)
    texts = learned.convergence(same, evaluations).doubts

    assert learned.convergence(own, evaluations).doubts == ()
    golden(texts[-1], "MSE", "1 worker", "horovod/mpi batch 75", "2 workers")
    golden(texts[0], "5 epochs", "6 epochs")


def test_a_long_warm_up_is_doubted(golden):
    runs, evaluations = curves([4e-3, 1e-3])
    (text,) = learned.convergence(runs.assign(excluded_steps=3), evaluations, targets=[1e-3]).doubts

    golden(text, "22 %", "warmup_steps")


# ---------------------------------------------------------------------------------------------------- series


def swept(**choices):
    """Return (runs, evaluations) of plain and Horovod runs for every value of one choice."""
    ((name, values),) = choices.items()
    tables = []
    for value in values:
        runs = run_table((1, 2), ways=PLAIN_AND_MPI, failed=(), change={name: value, "floor_mse": FLOOR})
        tables.append(runs.assign(run=runs["run"] + f"-{value}"))
    runs = pd.concat(tables, ignore_index=True)
    return runs, evaluation_table(runs, waste={2: 1.2})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("lr", (1e-4, 0.02), ("lr 1e-4", "lr 0.02")),
        ("widths", ("8-20-100", "15-38-197"), ("widths 8-20-100", "widths 15-38-197")),
        ("optimizer", ("adam", "sgd"), ("adam", "sgd")),
        ("schedule", ("constant", "cosine"), ("constant schedule", "cosine schedule")),
        ("input_scaling", ("none", "fixed"), ("raw inputs", "fixed input scaling")),
        ("loader", ("memory", "prefetch"), ("loader memory", "loader prefetch")),
        ("threads", (1, 2), ("1 thread", "2 threads")),
        ("compile", (False, True), ("not compiled", "compiled")),
    ],
)
def test_runs_of_different_options_are_different_points_and_only_what_varies_is_named(name, values, words):
    runs, _ = swept(**{name: values})
    table = scaling_points(runs)

    assert list(table["setting"].unique()) == [f"batch 75 {word}" for word in words]
    assert set(table["repeats"]) == {3} and len(table) == 6
    assert table["speedup_plain"].notna().all()


def test_a_plain_worker_is_the_baseline_of_every_scaling_of_the_learning_rate(golden):
    plain = run_table((1,), ways=PLAIN_AND_MPI[:1], failed=(), change={"lr_scaling": "none"})
    wrapped = [
        run_table((1, 2), ways=PLAIN_AND_MPI[1:], failed=(), change={"lr_scaling": each}) for each in ("none", "sqrt")
    ]
    wrapped[1]["run"] += "sqrt"
    table = scaling_points(pd.concat([plain, *wrapped], ignore_index=True))
    fixed = scaling_points(pd.concat([plain, wrapped[1]], ignore_index=True))

    assert table["speedup_plain"].notna().all()
    golden(list(table["setting"].unique()), "batch 75")
    assert set(fixed["setting"]) == {"batch 75"}, "nothing to tell apart"


def test_every_option_that_a_study_can_sweep_separates_points():
    from horovod_study.analysis.series.points import CELL

    assert set(STRAIN.sweepable) <= set(CELL)


# ---------------------------------------------------------------------------------------------------- files


def write_run(directory: Path, *, workers=1, requested=None, effective=None, epochs=((1, 4e-3), (2, 1e-3))) -> None:
    record = make.records.record(
        study="tiny", key=directory.name, status="done", host="node1",
        requested={"precision": "fp32", "epochs": 2, **(requested or {})},
        effective={
            "backend": "serial", "transport": "none", "reduction": "none", "workers": workers, "nodes": 1, "batch": 75,
            "global_batch": 75, "train_samples": 7500, **(effective or {}),
        },
        totals={"samples_per_s": 1000.0, "window_s": 15.0, "steps": 200, "excluded_steps": 0},
    )  # fmt: skip
    records.create_run(directory, record)
    for epoch, mse in epochs:
        values = dict.fromkeys(records.EPOCH_COLUMNS, 1.0)
        values |= {"epoch": epoch, "samples": 7500 * epoch, "train_s": 7.5 * epoch, "wall_s": 8.0 * epoch}
        records.append_epoch(directory, {**values, "test_mse": mse})


def test_runs_from_before_the_options_read_as_they_were_done(tmp_path):
    write_run(tmp_path / "old")
    write_run(tmp_path / "new", requested={"lr": 1e-3, "seed": 3, "epochs": 5}, effective={"floor_mse": FLOOR})
    table = records.run_table(tmp_path).set_index("run")

    assert table.loc["old", ["optimizer", "widths", "loader", "memory_format"]].tolist() == [
        "adam", "15-38-197", "memory", "channels-last",
    ]  # fmt: skip
    assert (table.at["old", "lr"], table.at["new", "lr"]) == (4.7331e-4, 1e-3)
    assert (table.at["new", "seed"], table.at["new", "budget"]) == (3, "5 epochs")
    assert math.isnan(table.at["old", "floor_mse"]) and table.at["new", "floor_mse"] == FLOOR


def test_the_epoch_table_has_a_row_per_evaluation_and_drops_a_torn_one(tmp_path, golden):
    write_run(tmp_path / "a", epochs=((1, math.nan), (1.5, 2e-3)))
    write_run(tmp_path / "b", epochs=())
    with (tmp_path / "a" / "epochs.csv").open("a") as stream:
        stream.write("2,200,150")
    table = records.epoch_table(tmp_path)

    assert table["run"].tolist() == ["a", "a"]
    assert table["epoch"].tolist() == [1.0, 1.5] and math.isnan(table["test_mse"][0])
    assert records.epoch_table(tmp_path / "a")["run"].tolist() == ["a", "a"]
    assert records.epoch_table(tmp_path / "b").empty
    (tmp_path / "a" / "epochs.csv").write_text("epoch,steps\n1,2\n")
    with golden.raises(RecordError, match=r"epochs\.csv"):
        records.epoch_table(tmp_path / "a")
    assert records.epoch_table(tmp_path).empty


@pytest.mark.slow
def test_tables_and_documents_survive_the_files(tmp_path):
    runs, evaluations = swept(lr=(1e-4, 1e-3))
    analysis = analyze(runs, evaluations, targets=[1e-3, 1e-5])
    records.save_tables(tmp_path, analysis.tables(), analysis.documents())
    tables, documents = records.load_tables(tmp_path, TABLES, DOCUMENTS)
    with figures_only("learning", "targets"):
        page = html.render(analysis)
        again = html.render(Analysis(**tables, **documents))

    assert again == page
    assert 'id="learning"' in page and 'id="figure-targets"' in page
    assert page.replace("\u202f", " ").count("> 16") + page.count("&gt;") > 0, "bounds are shown"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_an_analysis_without_evaluations_has_no_section_on_learning():
    page = html.render(analyze(run_table((1,), ways=PLAIN_AND_MPI[:1], failed=())))

    assert 'id="learning"' not in page and "Time to target: the median run" not in page


# ---------------------------------------------------------------------------------------------------- words, figures


@pytest.mark.slow
def test_the_words_give_the_best_the_floor_and_the_split():
    def losses(run):
        slower = 1.25 if run["workers"] == 2 else 1.0
        return [1e-2 * math.exp(-epoch / slower) for epoch in range(1, 9)]

    runs, evaluations = curves(losses, rate=lambda run: 100.0 * run["workers"])
    text = tables.learned(analyze(runs, evaluations, targets=[1e-2 * math.exp(-4), 1e-6]))

    assert [each.replace("\u202f", " ") for each in text] == [
        "The smallest test MSE is 3.35e\u22126, reached by plain PyTorch, 1 worker (batch 75) after 8 epochs "
        "and 80.0 s of training; the statistical floor of the test curves is 6.8e\u22125, an efficiency of 2 027 %.",
    ]


@pytest.mark.slow
def test_a_study_of_single_workers_is_headed_by_what_it_learned(golden):
    runs, evaluations = swept(lr=(1e-4, 1e-3))
    alone = runs[runs["backend"] == "serial"]

    golden(tables.headline(analyze(alone, evaluations)), "MSE")
    assert tables.headline(analyze(alone, evaluations)).endswith(("with batch 75 lr 1e-4", "with batch 75 lr 1e-3"))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (6.8e-5, 2, "6.8e\u22125"),
        (1e-3, 2, "1e\u22123"),
        (2.9041e-4, 3, "2.9e\u22124"),
        (10.0, 2, "1e1"),
        (None, 2, "unknown"),
    ],
)
def test_errors_are_written_briefly(value, digits, text):
    assert numbers.scientific(value, digits) == text


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_plain_worker_is_one_series_whatever_it_was_told_of_several():
    runs, evaluations = swept(lr_scaling=("none", "sqrt", "linear"))
    analysis = analyze(runs, evaluations)
    plain = analysis.points[analysis.points["series"] == "local serial batch 75"]

    assert plain["repeats"].tolist() == [9]
    assert not analysis.points.duplicated(["series", "workers", "nodes"]).any() and "" not in set(
        analysis.points["series"]
    )
    assert "sqrt lr scaling" in html.render(analysis)


def drawn(analysis):
    return {each.name: each for each in figures_of(figures, analysis)}


@pytest.mark.slow
def test_every_figure_draws_the_floor_and_says_it(tmp_path, golden):
    runs, evaluations = swept(lr_scaling=("none", "sqrt", "linear"))
    made = drawn(analyze(runs, evaluations, targets=[2e-3, 1e-5]))

    assert list(made) == ["learning", "targets"]
    golden(made["learning"].caption)
    golden(made["targets"].caption, "=")
    with style():
        for each in made.values():
            lines = [line for axes in each.draw(5.9).axes for line in axes.lines]
            floors = [line for line in lines if set(line.get_ydata()) == {FLOOR}]
            assert bool(floors) == (each.name != "targets"), each.name
        texts = [text.get_text() for axes in made["targets"].draw(5.9).axes for text in axes.texts]
    assert any(text.startswith(">") for text in texts), "a target that was not met is a lower bound"


@pytest.mark.slow
def test_a_plain_baseline_stands_beside_the_bars_of_every_setting():
    plain = run_table((1,), ways=PLAIN_AND_MPI[:1], failed=())
    wrapped = [
        run_table((2,), ways=PLAIN_AND_MPI[1:], failed=(), change={"lr_scaling": each}) for each in ("none", "sqrt")
    ]
    wrapped[1]["run"] += "sqrt"
    runs = pd.concat([plain, *wrapped], ignore_index=True)
    table = drawn(analyze(runs, evaluation_table(runs), targets=[1e-3]))["targets"].data

    assert table["backend"].tolist() == ["serial", "horovod", "horovod"]


@pytest.mark.slow
def test_many_lines_are_spread_over_rows_and_what_is_left_out_is_said(golden):
    runs, evaluations = swept(lr=(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3))
    drawing = figures.learning_curves(scaling_points(runs), learned.convergence(runs, evaluations).curves)

    golden(drawing.caption, "Further settings")
    with style():
        assert len(drawing.draw(5.9).axes) == 6


def test_worker_counts_that_are_left_out_are_said(golden):
    runs = run_table((1, 2, 4, 8), failed=())
    found = learned.convergence(runs, evaluation_table(runs))
    drawing = figures.learning_curves(scaling_points(runs), found.curves)

    golden(drawing.caption)
    assert set(drawing.data["workers"]) == {1, 2, 4, 8}


@pytest.mark.slow
def test_a_learning_curve_of_a_few_runs_from_the_command_line(tmp_path, capsys, golden):
    write_run(tmp_path / "a", effective={"floor_mse": FLOOR})
    write_run(tmp_path / "b", requested={"lr": 1e-3})

    out = str(tmp_path / "x" / "c.svg")
    assert main(["strain", "learning-curve", str(tmp_path / "a"), str(tmp_path / "b"), "--out", out]) == 0
    text = (tmp_path / "x" / "c.svg").read_text()
    assert text.startswith("<?xml") and capsys.readouterr().out.strip().endswith("c.svg")
    assert main(["strain", "learning-curve", str(tmp_path / "a"), "--out", str(tmp_path / "c.gif")]) == 2
    golden(capsys.readouterr().err, "c.gif")


def test_runs_without_an_evaluation_have_no_learning_curve(tmp_path, capsys, golden):
    write_run(tmp_path / "a", epochs=())

    assert main(["strain", "learning-curve", str(tmp_path), "--out", str(tmp_path / "c.png")]) == 2
    golden(capsys.readouterr().err)


@pytest.mark.slow
def test_analyze_takes_targets_and_writes_the_tables(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a")

    assert (
        main(["report", "--tables", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--target", "2e-3", "1e-9"])
        == 0
    )
    table = pd.read_csv(tmp_path / "out" / "targets.csv")
    assert table["target_mse"].tolist() == [2e-3, 1e-9]
    assert table["censored"].tolist() == [False, True]
    assert table["train_s"].tolist() == pytest.approx([11.25, math.nan], nan_ok=True)
    assert {"convergence.csv", "learning.csv", "evaluations.csv"} <= {
        each.name for each in (tmp_path / "out").iterdir()
    }


# ---------------------------------------------------------------------------------------------------- study files


def test_a_study_file_may_name_targets(tmp_path):
    path = tmp_path / "study.yaml"
    head = "study: s\nrun: {dataset: 1000, epochs: 2}\nsweep: {workers: [1]}\n"
    path.write_text(head + "targets: [5e-4, 0.001, 1e-3]\n")

    assert load_study(path).targets == (1e-3, 5e-4)
    assert [cell.config.seed for cell in load_study(path).cells()] == [1, 1, 2, 2, 3, 3]
    for wrong, message in (
        ("0", "it must be greater than 0"),
        ("soon", "it must be a number"),
        ("[]", "give at least one value"),
    ):
        path.write_text(head + f"targets: {wrong}\n")
        with pytest.raises(ConfigError, match=f"targets .*{message}"):
            load_study(path)


@pytest.mark.parametrize("name", ["convergence", "sensitivity_lr", "sensitivity_batch", "sensitivity_width"])
def test_the_shipped_studies_are_small_and_count_every_step(name, monkeypatch):
    monkeypatch.setattr("horovod_study.studies.study_file.available_cores", lambda: 2)
    study = load_study(Path(__file__).parents[1] / "experiments" / f"{name}.yaml")

    assert study.name == name
    assert study.run.warmup_steps == 0 and study.run.epochs is not None
    assert 9 <= len(study.cells()) <= 24
