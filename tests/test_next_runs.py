"""The next best measurement: what known points leave open, and what `predict --next` says of it."""

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from fake_trainer import fake_launch
from rich.console import Console

from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.forecast.recommendation import next_lines as lines
from horovod_study.analysis.forecast.recommendation import next_runs
from horovod_study.cli import main
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.records import finite
from horovod_study.studies.runner import RunOptions, run_sweep
from horovod_study.studies.study_file import load_study, sweep_of


def points(counts=(1, 2, 4, 8), runs=3, noise=0.01, seed=1):
    generator = np.random.default_rng(seed)
    rows = [
        (n, 1000 * n / (1 + 0.02 * (n - 1)) * math.exp(noise * generator.standard_normal()))
        for n in counts
        for _ in range(runs)
    ]
    return pd.DataFrame(rows, columns=["workers", "samples_per_s"])


def step_of(table, target=64, candidates=(1, 2, 4, 8, 16, 32), seconds=60.0):
    (step,) = next_runs(table, target, candidates=candidates, seconds=seconds).values()
    return step


def test_runs_close_to_the_target_narrow_most():
    by_count = {each["workers"]: each["narrower"] for each in step_of(points()).choices if each["runs"] == 1}

    assert by_count[32] > by_count[16] > max([by_count.get(n, 0.0) for n in (1, 2, 4, 8)])


def test_the_first_choice_gains_most_per_gpu_hour():
    step = step_of(points())
    gains = [each["per_gpu_hour"] for each in step.choices]

    assert gains == sorted(gains, reverse=True)
    for each in step.choices:
        assert each["gpu_hours"] == pytest.approx(each["workers"] * each["runs"] * 60 / 3600)
        assert each["per_gpu_hour"] == pytest.approx(each["narrower"] / each["gpu_hours"])


def test_what_is_expected_is_what_a_run_on_the_forecast_then_gives():
    """The truth is made to be the forecast: the interval after the run is near the one that was promised."""
    table = points()
    step = step_of(table, candidates=(32,))
    expected = next(each for each in step.choices if each["runs"] == 1)
    (at,) = predict(table, workers=[32])[""]
    then = pd.concat([table, pd.DataFrame({"workers": [32], "samples_per_s": [at.samples_per_s]})], ignore_index=True)
    (after,) = predict(then, workers=[64])[""]

    assert math.log(expected["high"] / expected["low"]) == pytest.approx(math.log(after.high / after.low), rel=0.35)


def test_a_run_at_the_target_itself_leaves_little_open():
    choices = step_of(points(), candidates=(64,)).choices

    assert choices[0]["narrower"] > 0.7


def test_what_gains_nothing_is_left_out():
    assert all(each["narrower"] >= 0.01 for each in step_of(points()).choices)
    assert step_of(points(counts=(1, 2, 4, 8, 64), runs=5), target=64, candidates=(1,)).choices == []


def test_it_is_shown_with_costs_and_intervals():
    step = step_of(points())
    text = lines("", step, most=2)

    assert len(text) == 3 and "64 workers" in text[0] and "GPU hours" in text[1] and "narrower" in text[1]
    assert (
        lines("", step_of(points(counts=(1, 2, 4, 8, 64), runs=5), candidates=(1,)))[1]
        .strip()
        .startswith("no further run")
    )


@pytest.mark.parametrize(("table", "candidates"), [(points(counts=(4,)), (8,)), (points(), ())])
def test_where_nothing_can_be_said_it_says_why(table, candidates):
    with pytest.raises(AnalysisError):
        next_runs(table, 64, candidates=candidates, seconds=1.0)


def test_points_with_nodes_and_batches_are_taken_too():
    table = points().assign(series="a", nodes=1.0, batch_size=32.0, sync_s=0.001)
    found = next_runs(table, 64, candidates=(16, 32), seconds=10.0)

    assert set(found) == {"a"} and finite(found["a"])["target"] == 64


STUDY = """
study: asked
run: {seconds: 2}
sweep: {workers: [1, 2, 4], runtime: horovod/mpi}
repeats: 2
question: speedup at 64
"""


@pytest.mark.slow
def test_a_study_says_what_to_measure_next_for_its_question(tmp_path, capsys):
    path = tmp_path / "asked.yaml"
    path.write_text(STUDY)
    how = {"launch": fake_launch({}), "cores": 4, "smoke": False, "pin": False, "watch_load_s": 0.0}
    run_sweep(
        sweep_of(load_study(path), tmp_path / "runs"),
        RunOptions(command="", **how),
        console=Console(file=io.StringIO()),
    )

    code = main(["predict", str(path), "--runs", str(tmp_path / "runs"), "--next", "--json"])
    (step,) = json.loads(capsys.readouterr().out)["series"].values()

    assert code == 0 and step["target"] == 64 and step["low"] < step["samples_per_s"] < step["high"]
    assert {each["workers"] for each in step["choices"]} <= {1, 2, 4}
    assert main(["predict", str(path), "--runs", str(tmp_path / "runs"), "--next", "16"]) == 0
    assert "at 16 workers" in capsys.readouterr().out


@pytest.mark.parametrize("question", ["speedup at 0", "speedup at many", "how fast", "speedup at 1000000"])
def test_a_question_that_is_not_known_is_refused(tmp_path, question):
    path = tmp_path / "asked.yaml"
    path.write_text(STUDY.replace("speedup at 64", question))

    with pytest.raises(ConfigError, match="question"):
        load_study(path)
