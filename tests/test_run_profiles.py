"""The tables of single runs, and that the study they are tested on holds the truth it was made from."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make.synthetic_runs import run_table
from make.synthetic_study import gpu_percent, power_w, truth, write_study

from horovod_study import records
from horovod_study.analysis.steps import accounting
from horovod_study.analysis.steps.accounting import account, account_run, account_runs
from horovod_study.analysis.study import DOCUMENTS, TABLES, Analysis, analyze

pytestmark = pytest.mark.slow

WARMUP, STEPS = 40, 340
FAILED = ("alpha", "horovod", "mpi", 12, 75, 1)
REASON = "rank 9 on node2 ended with signal 9 (killed: out of memory)"
WAYS = (("serial", "none"), ("horovod", "nccl"), ("horovod", "mpi"))


def analyzed(runs: Path, **how: object) -> Analysis:
    table, recorded = records.recorded_runs([runs])
    return analyze(table, records.epoch_table(runs), accounting=account(table, account_runs(recorded)))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Analysis]:
    """Runs on alpha, eight GPUs a node: one of 12 workers died."""
    runs = write_study(
        tmp_path_factory.mktemp("synthetic") / "runs",
        ways=WAYS,
        workers=(1, 2, 4, 8, 12),
        steps=STEPS,
        warmup=WARMUP,
        failed={FAILED: REASON},
    )
    return runs, analyzed(runs)


def run_of(found: Analysis, **which: object) -> pd.Series:
    rows = found.runs
    for name, value in which.items():
        rows = rows[rows[name] == value]
    return rows.iloc[0]


# ----------------------------------------------------------------------------------------------- the made-up study


def test_the_analysis_finds_the_truth_of_the_made_up_study(study: tuple[Path, Analysis]):
    _, found = study
    one = truth("alpha", WAYS[0], 1, 75)
    for row in found.points.to_dict("records"):
        known = truth("alpha", (row["backend"], row["transport"]), row["workers"], 75)
        assert row["samples_per_s_median"] == pytest.approx(known.samples_per_s, rel=0.02)
        assert row["speedup_plain"] == pytest.approx(known.samples_per_s / one.samples_per_s, rel=0.02)
        assert row["nodes"] == known.nodes
        assert row["skew_s_median"] == pytest.approx(known.skew_s, rel=0.15) or row["workers"] == 1
    for row in found.synchronisation.to_dict("records"):
        known = truth("alpha", (row["backend"], row["transport"]), row["workers"], 75)
        assert row["sync_s_median"] == pytest.approx(known.sync_s, rel=0.04)


def test_the_made_up_study_gives_only_doubts_that_were_put_in(study: tuple[Path, Analysis]):
    _, found = study

    assert found.provenance["runs"] == {"total": 33, "done": 32, "failed": 1}
    unexpected = [
        doubt
        for doubt in found.provenance["doubts"]
        if "1 of 33 runs gave no result" not in doubt
        and REASON not in doubt
        and "fewer than 3 repeats at 12 workers" not in doubt
    ]
    assert not [doubt for doubt in unexpected if "horovod_defaults" in doubt or "add up" in doubt], unexpected


# ----------------------------------------------------------------------------------------------- the table of runs


def test_every_run_has_its_row_whatever_came_of_it(study: tuple[Path, Analysis]):
    runs, found = study

    assert sorted(found.runs["run"]) == sorted(path.name for path in runs.iterdir())
    assert found.runs["series"].drop_duplicates().tolist() == found.points["series"].drop_duplicates().tolist()
    dead = run_of(found, status="failed")
    assert dead["reason"] == REASON
    assert math.isnan(dead["samples_per_s"]) and math.isnan(dead["speedup_plain"]), "unknown is not zero"
    assert (dead["hosts"], dead["workers"]) == ("node1, node2", 12)
    assert dead["command"].startswith("python -m horovod_study.train --config")


def test_a_run_is_compared_with_the_baseline_of_its_point(study: tuple[Path, Analysis]):
    _, found = study
    for row in found.points[~found.points["missing"]].to_dict("records"):
        mine = found.runs[(found.runs["series"] == row["series"]) & (found.runs["workers"] == row["workers"])]
        assert np.nanmedian(mine["speedup_plain"]) == pytest.approx(row["speedup_plain"])
        assert np.nanmax(mine["efficiency_plain"]) == pytest.approx(row["efficiency_plain_max"])


def test_a_run_knows_the_load_of_its_machine(study: tuple[Path, Analysis]):
    _, found = study
    known = truth("alpha", WAYS[1], 8, 75)
    run = run_of(found, backend="horovod", transport="nccl", workers=8)

    assert run["gpu_percent"] == pytest.approx(gpu_percent(known), rel=0.1)
    assert run["gpu_power_w"] == pytest.approx(8 * power_w(known), rel=0.1)
    assert run["energy_j"] == pytest.approx(8 * power_w(known) * run["window_s"], rel=0.1)
    assert run["energy_of"] == "gpu"


def test_permuted_run_tables_give_the_same_tables(study: tuple[Path, Analysis]):
    runs, found = study
    table, recorded = records.recorded_runs([runs])
    accounts = account_runs(recorded)
    mixed = table.sample(frac=1.0, random_state=3).reset_index(drop=True)
    again = analyze(mixed, accounting=account(mixed, accounts[::-1]))

    for name in ("runs", "run_profiles"):
        assert getattr(again, name).to_csv(index=False) == getattr(found, name).to_csv(index=False)


def test_a_run_table_without_step_rows_or_samples_has_empty_cells():
    found = analyze(run_table(workers=(1, 2)))

    assert list(found.run_profiles.columns) == list(accounting.PROFILE_COLUMNS) and found.run_profiles.empty
    assert len(found.runs) == len(run_table(workers=(1, 2)))
    assert found.runs["gpu_percent"].isna().all() and found.runs["skew_s"].isna().all()
    assert (found.runs["command"] == "").all()


def test_the_tables_come_back_from_their_files(study: tuple[Path, Analysis], tmp_path: Path):
    _, found = study
    records.save_tables(tmp_path, found.tables(), found.documents())
    tables, documents = records.load_tables(tmp_path, TABLES, DOCUMENTS)
    back = Analysis(**tables, **documents)

    for name in ("runs", "run_profiles"):
        assert getattr(back, name).to_csv(index=False) == getattr(found, name).to_csv(index=False)


# ----------------------------------------------------------------------------------------------- the course


def test_parts_weighed_by_their_steps_give_the_run(study: tuple[Path, Analysis]):
    _, found = study
    runs = found.runs.set_index("run")
    for name, parts in found.run_profiles.groupby("run"):
        steps = parts["steps"].to_numpy()
        assert steps.max() - steps.min() <= 1 and len(parts) == min(40, steps.sum() // 8)
        if runs.at[name, "status"] != "done":
            continue
        assert steps.sum() == runs.at[name, "steps"] == STEPS - WARMUP
        assert np.average(parts["step_s"], weights=steps) == pytest.approx(runs.at[name, "step_s"])
        assert (parts["begin_s"] < parts["end_s"]).all() and parts["begin_s"].is_monotonic_increasing
        assert parts["first_step"].iloc[0] == WARMUP


def test_a_part_is_what_its_rows_say(study: tuple[Path, Analysis]):
    """Against the rows themselves, read again."""
    runs, found = study
    name = run_of(found, backend="horovod", transport="mpi", workers=4)["run"]
    part = found.run_profiles[found.run_profiles["run"] == name].iloc[5]
    first, steps = int(part["first_step"]), int(part["steps"])
    ranks = [records.read_steps(runs / name, rank).to_pandas().iloc[first : first + steps] for rank in range(4)]

    assert part["step_s"] == pytest.approx(np.mean([rank["step_s"].mean() for rank in ranks]))
    assert part["begin_s"] == ranks[0]["begin_s"].iloc[0]


def test_a_run_that_died_has_the_course_of_what_it_made(study: tuple[Path, Analysis]):
    _, found = study
    parts = found.run_profiles[found.run_profiles["run"] == run_of(found, status="failed")["run"]]

    assert parts["steps"].sum() == (STEPS - WARMUP) // 3
    assert np.isfinite(parts["step_s"]).all() and np.isfinite(parts["gpu_power_w"]).all()


def test_the_load_of_the_parts_is_that_of_the_machine(study: tuple[Path, Analysis]):
    _, found = study
    known = truth("alpha", WAYS[1], 8, 75)
    parts = found.run_profiles[
        found.run_profiles["run"] == run_of(found, backend="horovod", transport="nccl", workers=8)["run"]
    ]

    assert parts["gpu_memory_mb"].to_numpy() == pytest.approx(1500 + 1.2 * 75)
    # A part at the edge of an evaluation shares its reading with it.
    assert parts["gpu_percent"].max() == pytest.approx(gpu_percent(known), rel=0.03)
    assert parts["gpu_power_w"].max() == pytest.approx(8 * power_w(known), rel=0.03)
    assert parts["package_power_w"].isna().all()


def test_ranks_that_end_apart_count_where_they_have_steps(tmp_path: Path):
    """Rank 1 has half of the rows of rank 0: the first half of the parts is of both, the second of rank 0 alone."""
    runs = write_study(tmp_path, ways=(("horovod", "mpi"),), workers=(2,), repeats=1, steps=200, warmup=40)
    (directory,) = runs.iterdir()
    rows = records.read_steps(directory, 1).slice(0, 120)
    (directory / "steps-00001.arrows").unlink()
    writer = records.StepWriter(directory, 1)
    writer.append({name: rows.column(name).to_numpy() for name in rows.column_names})
    writer.close()

    profile = account_run(records.recorded_run(directory), profile=True).profile

    assert profile is not None
    own = [records.read_steps(directory, rank).to_pandas().set_index("step")["step_s"] for rank in (0, 1)]
    for first, steps, mean in profile[["first_step", "steps", "step_s"]].to_numpy():
        there = [rank.loc[first : first + steps - 1] for rank in own]
        assert mean == pytest.approx(np.mean([each.mean() for each in there if len(each)]))


def test_a_damaged_file_of_samples_leaves_the_course_of_the_steps(tmp_path: Path):
    runs = write_study(tmp_path, ways=(("horovod", "nccl"),), workers=(2,), repeats=1, steps=100, warmup=20)
    (directory,) = runs.iterdir()
    (directory / "system-node1.arrows").write_bytes(b"no Arrow stream")

    profile = account_run(records.recorded_run(directory), profile=True).profile

    assert profile is not None and len(profile) == 10
    assert all(profile[name].isna().all() for name in accounting.LOADS)
    assert profile["step_s"].notna().all()


def test_untimed_steps_have_parts_without_times():
    course = accounting.Course()
    step, nothing = np.arange(100), np.full(100, math.nan)
    course.add_rank(step, lambda name: nothing)

    profile = course.profile({})

    assert profile is not None and profile["steps"].sum() == 100
    assert profile.drop(columns=["part", "first_step", "steps"]).isna().all(axis=None)


def test_readings_stand_for_the_time_since_the_one_before():
    at_s, values = np.array([0.0, 1.0, 3.0, 4.0]), np.array([99.0, 10.0, 20.0, math.nan])
    begin_s, end_s = np.array([0.0, 0.5, 1.0, 3.2, 5.0]), np.array([1.0, 2.0, 3.0, 3.8, 6.0])

    found = accounting.held(at_s, values, begin_s, end_s)

    assert found[:3] == pytest.approx([10.0, (0.5 * 10 + 1.0 * 20) / 1.5, 20.0])
    assert np.isnan(found[3:]).all(), "a reading that is not known, and a time after the last one"
