"""Points of a study whose cells alternated: the ratios of rounds, both components, and what is doubtful."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make.synthetic_runs import run_table

from horovod_study.analysis import paired
from horovod_study.analysis.series import points
from horovod_study.analysis.series.points import StudyTurns, slices_of, study_turns
from horovod_study.analysis.study import analyze
from horovod_study.analysis.sync.synchronisation import ROUNDS
from horovod_study.records import TurnSlice, append_turns
from horovod_study.report.figures import scaling
from horovod_study.report.page.tables import tables

SPEEDUPS = {("serial", 1): 1.0, ("horovod", 1): 0.9, ("horovod", 2): 1.7, ("ddp", 1): 0.9, ("ddp", 2): 1.53}
WAYS = (("serial", "none"), ("horovod", "mpi"))


def study(launches=3, rounds=60, load=0.0, loud=1, noise=0.02, launch_sd=0.0, seed=1, ways=WAYS):
    """Runs whose own throughputs are far off, and slices that know better; `load` beside every `loud`-th round."""
    runs = run_table((1, 2), ways=ways, failed=(), noise=0.3)
    generator = np.random.default_rng(seed)
    slices = []
    for repeat in range(launches):
        for row in runs[runs["repeat"] == repeat].itertuples():
            level = math.log(1000 * SPEEDUPS[row.backend, row.workers]) + launch_sd * generator.standard_normal()
            slices += [
                paired.Slice(
                    launch=f"local/{repeat:03d}",
                    round=number,
                    cell=row.run,
                    rate=math.exp(level + noise * generator.standard_normal() + 0.3 * math.sin(number)),
                    other_load=load * (number % loud == 0),
                )
                for number in range(rounds)
            ]
    return runs, StudyTurns(slices)


def point(table, workers):
    (row,) = table[(table["backend"] == "horovod") & (table["workers"] == workers)].to_dict("records")
    return row


def test_speedup_and_efficiency_are_those_of_rounds():
    runs, turns = study()
    two = point(points.scaling_points(runs, turns=turns), 2)

    assert two["speedup_plain"] == pytest.approx(1.7, rel=0.01)
    assert two["speedup_wrapped"] == pytest.approx(1.7 / 0.9, rel=0.01)
    assert two["efficiency_plain"] == pytest.approx(two["speedup_plain"] / 2)
    assert two["speedup_plain_low"] < 1.7 < two["speedup_plain_high"] < 1.1 * two["speedup_plain_low"]
    assert (two["turns_launches"], two["turns_rounds"], two["turns_shared"]) == (3, 180, 0)
    assert two["turns_round_sd"] == pytest.approx(0.02 * math.sqrt(2), rel=0.15)
    assert two["turns_cancelled"] > 0.9, "the machine moved by 20 %, and the ratio did not"


def test_launches_with_levels_of_their_own_are_a_component():
    runs, turns = study(launch_sd=0.1)
    two = point(points.scaling_points(runs, turns=turns), 2)

    assert two["turns_launch_sd"] > 10 * two["turns_round_error"]
    assert two["speedup_plain_high"] / two["speedup_plain_low"] > 1.1


def test_without_turns_nothing_changes():
    runs, turns = study(launches=1)
    alone, single = points.scaling_points(runs), points.scaling_points(runs, turns=turns)

    assert "turns_launches" not in alone and list(points.scaling_points(runs, turns=StudyTurns([]))) == list(alone)
    assert point(single, 2)["speedup_plain"] == point(alone, 2)["speedup_plain"], "one launch says nothing of launches"
    assert math.isnan(point(single, 2)["turns_launches"])
    runs, turns = study(launches=1, load=0.7)
    loud = points.doubts(runs, points.scaling_points(runs, turns=turns))
    assert len([doubt for doubt in loud if "shared machine" in doubt]) == 1, "of one launch, too"


def test_the_baseline_itself_stays_one():
    runs, turns = study()
    table = points.scaling_points(runs, turns=turns)
    (plain,) = table[table["backend"] == "serial"].to_dict("records")

    assert plain["speedup_plain"] == 1 and math.isnan(plain["turns_launches"])


@pytest.mark.slow
def test_what_is_doubtful_is_said():
    runs, turns = study(launches=2, load=0.7)
    table = points.scaling_points(runs, turns=turns)
    said = [doubt for doubt in points.doubts(runs, table) if "shared machine" in doubt or "two launches" in doubt]

    assert len(said) == 2 and all("horovod/mpi" in doubt for doubt in said)
    runs, turns = study()
    quiet = points.doubts(runs, points.scaling_points(runs, turns=turns))
    assert not [doubt for doubt in quiet if "shared machine" in doubt or "two launches" in doubt]


@pytest.mark.parametrize(("loud", "share"), [(4, ["25"]), (20, []), (1, [])])
def test_the_share_of_rounds_that_are_set_aside_is_told_once(loud, share):
    runs, turns = study(load=0.7, loud=loud, ways=(*WAYS, ("ddp", "gloo")))
    told = [each for each in points.doubts(runs, points.scaling_points(runs, turns=turns)) if "set aside" in each]

    assert [re.findall(r"(\d+)\s%", each) for each in told] == [share] * bool(share), told


@pytest.mark.parametrize("launch_sd", [0.0, 0.1])
@pytest.mark.parametrize(("loud", "noise"), [(1, 0.02), (3, 0.02), (1, 0.4), (3, 0.4)])
def test_a_speedup_is_the_ratio_of_the_throughputs_that_stand_beside_it(loud, noise, launch_sd):
    runs, turns = study(load=0.7, loud=loud, noise=noise, launch_sd=launch_sd, ways=(*WAYS, ("ddp", "gloo")))
    found = analyze(runs, turns=turns)

    for row in found.points[found.points["workers"] > 1].to_dict("records"):
        for kind in ("plain", "wrapped"):
            ratio = row["samples_per_s_median"] / row[f"base_{kind}_samples_per_s"]
            assert row[f"speedup_{kind}"] == pytest.approx(ratio)
            assert row[f"speedup_{kind}_low"] < ratio < row[f"speedup_{kind}_high"]
            assert row["epoch_s_median"] * row["samples_per_s_median"] == pytest.approx(row["train_samples"])
    for each in found.provenance["findings"]:
        for series in each["series"]:
            assert series["speedup"] == pytest.approx(series["samples_per_s"] / each["base_samples_per_s"])
        for pair in each["comparisons"]:
            rates = {series["series"]: series["samples_per_s"] for series in each["series"]}
            assert pair["ratio"] == pytest.approx(rates[pair["faster"]] / rates[pair["slower"]])


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "open_at"), [(None, ""), (0.5, ""), (1e-4, "asked for at 1 (+- ")])
def test_what_is_wider_than_was_asked_for_is_a_doubt(precision, open_at):
    runs, turns = study()

    told = [
        each for each in points.doubts(runs, points.scaling_points(runs, turns=turns), precision) if "asked" in each
    ]

    assert len(told) == bool(open_at)
    assert all(open_at in each and ", 2 (+- " in each and each.startswith("local horovod/mpi") for each in told)


def test_the_order_of_the_slices_says_nothing():
    runs, turns = study()
    mixed = StudyTurns(list(reversed([each for group in turns._of_run.values() for each in group])))

    pd.testing.assert_frame_equal(points.scaling_points(runs, turns=mixed), points.scaling_points(runs, turns=turns))


def test_a_whole_analysis_has_them():
    runs, turns = study()
    found = analyze(runs, turns=turns)

    assert point(found.points, 2)["speedup_plain"] == pytest.approx(1.7, rel=0.01)
    assert "turns_launch_sd" in found.tables()["points"]


@pytest.mark.slow
def test_two_backends_are_compared_within_rounds_too():
    runs, turns = study(ways=(*WAYS, ("ddp", "gloo")))
    found, alone = (
        analyze(runs, turns=given).transports.query("quantity == 'samples_per_s' and workers == 2").iloc[0]
        for given in (turns, None)
    )
    truth = 0.9 if found["b_backend"] == "ddp" else 1 / 0.9

    assert found["ratio"] == pytest.approx(truth, rel=0.01) and found["ratio_low"] < truth < found["ratio_high"]
    assert found["difference"] == pytest.approx(found["a_value"] * (found["ratio"] - 1))
    assert (found["test"], found["pairs"], found["verdict"]) == (ROUNDS, 3, "resolved")
    assert alone["test"] != ROUNDS and alone["ratio_high"] / alone["ratio_low"] > 1.2


@pytest.mark.slow
def test_captions_say_what_the_ratios_are_and_bars_are_their_intervals():
    runs, turns = study()
    for found, words, ends in (
        (analyze(runs, turns=turns), "within rounds", "low"),
        (analyze(runs), "of median", "min"),
    ):
        drawn = scaling.speedup(found)
        assert words in drawn.caption and f"speedup_plain_{ends}" in drawn.data.columns
        assert words in next(table.caption for table in tables(found) if table.name == "points")


def test_slices_of_a_folder_below_have_its_name():
    row = TurnSlice(
        block="local",
        launch=2,
        round=0,
        position=0,
        run="x",
        begin_s=1.0,
        end_s=1.5,
        steps=5,
        samples=100,
        other_load=None,
    )

    (found,) = slices_of([row, replace(row, samples=0)], "a")

    assert (found.launch, found.cell, found.rate) == ("a/local/002", "a/x", 200.0) and math.isnan(found.other_load)
    assert slices_of([replace(row, other_load=0.2)])[0] == paired.Slice(
        launch="local/002", round=0, cell="x", rate=200.0, other_load=0.2
    )


@pytest.mark.parametrize("above", [False, True])
def test_the_turns_of_a_study_are_found_beside_its_runs(tmp_path, above):
    directory = tmp_path / "study"
    directory.mkdir()
    rows = [
        TurnSlice(
            block="local",
            launch=launch,
            round=number,
            position=place,
            run=run,
            begin_s=number,
            end_s=number + 0.5,
            steps=1,
            samples=10 * (1 + place),
            other_load=0.0,
        )
        for launch in (0, 1, 2)
        for number in range(20)
        for place, run in enumerate(("one", "two"))
    ]
    append_turns(directory, rows)

    found = study_turns(tmp_path if above else directory)
    prefix = "study/" if above else ""

    assert found.estimate([f"{prefix}two"], [f"{prefix}one"]).ratio.value == pytest.approx(2)
