"""The learning-rate range test: known answers, doubts, the run as a child process, the figure."""

import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.waiting import until
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis.learning.convergence import find_rate, smoothed
from horovod_study.cli import main
from horovod_study.cluster.launch import LaunchLine, cell_environment
from horovod_study.cluster.process import marked_processes
from horovod_study.errors import AnalysisError, ConfigError, RecordError, StudyError
from horovod_study.records import finite
from horovod_study.report.figures.convergence import drawing, write_lr_range
from horovod_study.studies.bench import range_config, run_range
from horovod_study.studies.runner import RunOptions


def curve(steps: int = 1000, *, low: float = 1e-6, high: float = 1.0, falls: float = 1e-3, diverges: float = 1e-2):
    """Return rates and losses: ln(loss) falls along a logistic curve, steepest at `falls`, and shoots up at `diverges`.

    The loss falls from 1 to 0.01; the slope at `falls` is -ln(100) / (4 * 0.5) = -2.3 per ln(rate).
    """
    rates = low * (high / low) ** (np.arange(steps) / steps)
    fall = 1 / (1 + np.exp(-(np.log(rates) - math.log(falls)) / 0.5))
    losses = np.exp(-math.log(100) * fall)
    return rates, np.where(rates < diverges, losses, losses * (rates / diverges) ** 6)


# ----------------------------------------------------------------------------------------------------- known answers


def test_a_known_curve_is_read(golden: Golden) -> None:
    test = find_rate(*curve())

    assert test.steepest_rate == pytest.approx(1e-3, rel=0.02)
    assert test.slope == pytest.approx(-2.3, rel=0.1), "a little flatter over half a decade"
    assert test.diverged_rate == pytest.approx(1e-2 * 2 ** (1 / 6), rel=0.1), "where the loss is twice the smallest"
    assert test.careful_rate == test.diverged_rate / 10 == test.suggested
    assert test.lowest_loss == pytest.approx(0.01, rel=0.1)
    assert test.doubts == ()
    golden(test.reason, f"{test.suggested:.2g}")


@given(
    falls=st.floats(1e-5, 1e-3),
    noise=st.floats(0.0, 0.1),
    steps=st.integers(600, 2000),
    seed=st.integers(0, 2**32 - 1),
)
def test_noise_and_outliers_move_the_answer_little(falls: float, noise: float, steps: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rates, losses = curve(steps, falls=falls, diverges=30 * falls)
    losses = losses * np.exp(noise * generator.standard_normal(steps))
    losses[generator.integers(0, steps, steps // 100)] *= 1000
    test = find_rate(rates, losses)

    assert test.steepest_rate == pytest.approx(falls, rel=0.45)
    assert test.diverged_rate == pytest.approx(30 * falls, rel=0.4)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_units_of_loss_and_rate_do_not_matter(loss_unit: float, rate_unit: float) -> None:
    rates, losses = curve(300)
    one, other = find_rate(rates, losses), find_rate(rates * rate_unit, losses * loss_unit)

    assert other.suggested == pytest.approx(one.suggested * rate_unit)
    assert other.steepest_rate == pytest.approx(one.steepest_rate * rate_unit)
    assert other.slope == pytest.approx(one.slope)


def test_the_running_median_is_centred_and_counts_what_is_no_number_as_infinite() -> None:
    losses = np.array([5.0, 1.0, 100.0, 2.0, 3.0, np.nan, np.nan])

    assert smoothed(losses, 3).tolist() == [5.0, 5.0, 2.0, 3.0, 3.0, math.inf, math.inf]
    assert smoothed(np.arange(9.0), 5).tolist() == list(range(9)), "a straight line stays as it is"


def test_the_input_is_not_changed() -> None:
    rates, losses = curve(200)
    losses[150:] = np.nan
    before = rates.copy(), losses.copy()
    find_rate(rates, losses)

    np.testing.assert_array_equal(rates, before[0])
    np.testing.assert_array_equal(losses, before[1])


def test_a_loss_that_stops_being_a_number_has_diverged() -> None:
    rates, losses = curve(diverges=2.0)
    losses[800:] = np.nan
    test = find_rate(rates, losses)

    assert test.diverged_rate == pytest.approx(rates[800], rel=0.15)
    assert json.dumps(finite(test), allow_nan=False)


def test_an_upset_that_is_overcome_is_no_divergence() -> None:
    rates, losses = curve(diverges=0.1)
    losses[670:] *= 1.3  # the smallest loss is at 1e-2, before the upset
    losses[700:730] *= 50  # at 1.6e-2
    test = find_rate(rates, losses)

    assert test.lowest_rate == pytest.approx(1e-2, rel=0.2)
    assert test.diverged_rate == pytest.approx(0.1 * (2 / 1.3) ** (1 / 6), rel=0.1)


# ------------------------------------------------------------------------------------------------------------ doubts


def doubts(rates, losses) -> str:
    return "\n".join(find_rate(rates, losses).doubts)


def test_without_divergence_the_steepest_descent_is_suggested_with_a_doubt(golden: Golden) -> None:
    test = find_rate(*curve(diverges=2.0))

    assert test.diverged_rate is None and test.careful_rate is None
    assert test.suggested == test.steepest_rate == pytest.approx(1e-3, rel=0.02)
    golden(test.reason)
    golden(test.doubts, "0.99", "--high")


def test_a_loss_that_never_falls_suggests_nothing(golden: Golden) -> None:
    rates, _ = curve()
    test = find_rate(rates, np.full(len(rates), 0.3))

    assert (test.suggested, test.steepest_rate) == (None, None)
    golden(test.reason)
    golden("\n".join(test.doubts), "90 %")


def test_other_doubts(golden: Golden) -> None:
    rates, _ = curve()
    rising = 0.3 * np.maximum(1.0, (rates / 1e-5) ** 2)

    golden(doubts(rates, rising), "90 %", "--low")
    golden(doubts(*curve(falls=3e-6, diverges=2e-5)))
    golden(doubts(*curve(falls=4e-6, diverges=1e-2)))
    golden(doubts(*curve(falls=5e-5, diverges=1.1e-2)), "25-fold")
    golden(doubts(*curve(100)), "100 steps", "5.9 decades", "600 --steps")


def test_a_suggestion_is_never_beyond_the_smallest_loss(golden: Golden) -> None:
    """The loss is smallest at 3e-3, twice that from 1e-2 to 0.5 at times, and diverges there."""
    rates, losses = curve(diverges=0.5)
    losses[(rates > 4e-3) & (rates < 0.5)] *= 1.5
    test = find_rate(rates, losses)

    assert test.careful_rate > test.lowest_rate == test.suggested
    golden(test.reason)


def test_an_early_rise_below_the_suggestion_is_a_doubt(golden: Golden) -> None:
    rates, losses = curve(falls=1e-5, diverges=0.1)
    losses[600:640] *= 3  # at 4e-3
    losses[650:700] *= 0.9

    golden(doubts(rates, losses), "2 times", "0.004")


@pytest.mark.parametrize(
    ("rates", "losses", "message"),
    [
        (np.ones(3), np.ones(3), "3 losses.*3 rates.*50 steps.*--steps"),
        (np.arange(1.0, 61), np.ones(61), "61 losses.*60 rates"),
        (np.ones(60), np.ones(60), ""),
        (np.arange(60.0), np.ones(60), ""),
        (np.arange(1.0, 61), np.full(60, np.nan), "--low"),
    ],
)
def test_what_is_no_range_test_is_refused(rates, losses, message: str, golden: Golden) -> None:
    with golden.raises(AnalysisError, match=message or None):
        find_rate(rates, losses)


# ----------------------------------------------------------------------------------------------------------- the run


def test_the_configuration_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("batch: 256\nepochs: 20\nlr: 1e-3\nschedule: cosine\nlr_warmup_steps: 500\ntarget_mse: 1e-4\n")
    config = range_config(path, {"optimizer": "sgd"}, low=1e-5, high=0.5)

    assert (config.batch, config.optimizer, config.steps, config.epochs) == (256, "sgd", 1000, None)
    assert (config.schedule, config.lr, config.lr_end) == ("range", 1e-5, 0.5)
    assert (config.warmup_steps, config.lr_warmup_steps, config.target_mse) == (0, 0, None)
    assert range_config(path, {"epochs": "2"}, low=1e-5, high=0.5).epochs == 2


@pytest.mark.parametrize(
    ("given", "low", "high", "message"),
    [
        ({"lr": "1"}, 1e-6, 1, "--lr has no place here; use --low and --high"),
        ({"lr_warmup_steps": "1"}, 1e-6, 1, "--lr-warmup-steps has no place here; leave it out"),
        ({"seconds": "1"}, 1e-6, 1, "--seconds has no place here; use --steps or --epochs"),
        ({"backend": "mpi"}, 1e-6, 1, "--backend has no place here; use --runtime"),
        ({"steps": "20"}, 1e-6, 1, "--steps is 20; a range test needs at least 50"),
        ({"batch": "0"}, 1e-6, 1, "lr-range: batch is 0; it must be at least 1"),
        ({}, 1, 0.1, "--low is 1 and --high is 0.1; it must be 0 < low < high"),
        ({}, 0, 0.1, "--low is 0 and --high is 0.1; it must be 0 < low < high"),
        ({}, 1e-3, math.inf, "--high is inf"),
    ],
)
def test_options_that_have_no_place_are_refused(given: dict, low: float, high: float, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        range_config(None, given, low=low, high=high)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runtime": "horvod/mpi"}, "--runtime.*horvod/mpi.*horovod/mpi"),
        ({"workers": 2, "runtime": "serial"}, "--workers.*--runtime"),
        ({"workers": 0}, "--workers"),
        ({"workers": 3}, "--workers.*2 cores"),
    ],
)
def test_launches_that_cannot_work_are_refused(tmp_path: Path, options: dict, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message):
        ranged(range_config(None, {}, low=1e-6, high=1), tmp_path, **options)


TRAINER = """
import os, sys
from pathlib import Path
import numpy as np, yaml
from horovod_study import records
told, out = sys.argv[1], Path(sys.argv[2])
if told == "no start":
    print("error: no such data set"); sys.exit(2)
asked = {**yaml.safe_load(Path(sys.argv[3]).read_text()), "workers": int(sys.argv[4])}
record = records.RunRecord(study=asked["study"], key=out.name, repeat=0, partition="local", status="running",
    started="2026-01-01T00:00:00+00:00", host=os.uname().nodename, pid=os.getpid(), requested=asked,
    effective={"global_batch": 150, "steps_per_epoch": 10}, environment={})
records.create_run(out, record)
if told == "hangs":
    import time; time.sleep(60)
for rank in (0, 1):
    rows = 60 if told != "stopped" else 30
    columns = {name: np.zeros(rows) for name in records.step_schema().names}
    columns["step"], columns["loss"] = np.arange(rows), np.linspace(1, 0.1, rows) * (1 + rank)
    if told == "diverged":
        columns["loss"][40:] = np.nan
    writer = records.StepWriter(out, rank)
    writer.append(columns)
    writer.close()
if told == "done":
    records.finish_run(out, record, status="done", finished="now", totals={})
else:
    print("ValueError: something"); sys.exit(1)
"""


def ranged(config, folder: Path, told: str = "done", **options):
    """Make a range test on two cores, whose run goes as told."""

    def launch(cell, config: Path, out: Path, **options) -> LaunchLine:
        environment = cell_environment(os.environ, path=os.environ["PATH"], out=out)
        argv = (sys.executable, "-c", TRAINER, told, str(out), str(config), str(cell.placement.workers))
        return LaunchLine(argv=argv, environment=environment)

    with pytest.MonkeyPatch.context() as patch:
        how = {"launch": launch, "watch_load_s": 0.0, "grace_s": 0.3}
        patch.setattr("horovod_study.studies.bench.RunOptions", partial(RunOptions, **how))
        patch.setattr("horovod_study.studies.bench.available_cores", lambda: 2)
        return run_range(config, folder, **options)


def test_rates_and_losses_of_a_run(tmp_path: Path, capsys, golden: Golden) -> None:
    config = range_config(None, {"steps": 60}, low=1e-4, high=1e-1)
    rates, losses, record = ranged(config, tmp_path, "done", workers=2, runtime="mpi/mpi")

    assert rates == pytest.approx(1e-4 * 1000 ** (np.arange(60) / 60))
    assert losses == pytest.approx(np.linspace(1.5, 0.15, 60), rel=1e-6), "the mean of both workers"
    assert record.effective["global_batch"] == 150
    golden.line(capsys.readouterr().err, "60 steps", "0.0001", "0.1")
    again = ranged(config, tmp_path, "no start", workers=2, runtime="mpi/mpi")
    assert again[0].tolist() == rates.tolist(), "what has finished is read and not run again"
    other = ranged(range_config(None, {"steps": 60}, low=1e-4, high=1), tmp_path, workers=2, runtime="mpi/mpi")
    assert other[0][-1] > rates[-1] and other[2].key != record.key, "another test is another run in the same folder"


@pytest.mark.slow
def test_a_range_test_whose_command_was_killed_goes_on(tmp_path: Path) -> None:
    config = range_config(None, {"steps": 60}, low=1e-4, high=1e-1)
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from test_lr_range import *; "
        f"ranged(range_config(None, {{'steps': 60}}, low=1e-4, high=1e-1), Path({str(tmp_path)!r}), 'hangs')"
    )
    one = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: list(tmp_path.glob("*/run.json")), "the run started")
    one.kill()
    one.wait()
    assert marked_processes(str(tmp_path.resolve())), "the trainer outlives a command that is killed"

    rates, _, _ = ranged(config, tmp_path)
    assert len(rates) == 60 and marked_processes(str(tmp_path.resolve())) == []
    assert len(list((tmp_path / ".attempts").iterdir())) == 1


def test_a_run_that_ended_because_it_diverged_is_a_result(tmp_path: Path) -> None:
    _, losses, _ = ranged(range_config(None, {"steps": 60}, low=1e-4, high=1), tmp_path, "diverged")

    assert np.isfinite(losses[:40]).all() and np.isnan(losses[40:]).all()


@pytest.mark.parametrize(("told", "message"), [("no start", ""), ("stopped", "code 1")])
def test_a_run_that_failed_is_an_error(tmp_path: Path, told: str, message: str, golden: Golden) -> None:
    with golden.raises(StudyError, match=message or None):
        ranged(range_config(None, {"steps": 60}, low=1e-4, high=1), tmp_path, told)


@pytest.mark.slow
def test_a_real_range_test(tmp_path: Path, capsys) -> None:
    words = [
        "--dataset",
        "400",
        "--batch",
        "10",
        "--widths",
        "4-4-8",
        "--steps",
        "60",
        "--low",
        "1e-5",
        "--high",
        "1e3",
    ]
    assert main(["strain", "lr-range", "--out", str(tmp_path), *words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)

    assert (facts["low"], facts["steps"]) == (1e-5, 60)
    assert facts["high"] == pytest.approx(1e3 ** (59 / 60) * 1e-5 ** (1 / 60))
    assert {Path(name).suffix for name in facts["files"]} == {".pdf", ".svg", ".png", ".txt", ".csv", ".json"}
    steps = records.read_steps(Path(facts["run_dir"]), 0)
    assert steps.num_rows == 60


# ---------------------------------------------------------------------------------------------------------- the figure


@pytest.mark.slow
def test_the_figure_and_what_is_written_beside_it(tmp_path: Path, golden: Golden) -> None:
    test = find_rate(*curve(300))
    paths = write_lr_range(test, tmp_path / "a", batch=75)
    again = write_lr_range(test, tmp_path / "b", batch=75)

    assert [path.name for path in paths] == [f"lr_range.{end}" for end in ("pdf", "svg", "png", "txt", "csv", "json")]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again], "equal bytes"
    text = (tmp_path / "a" / "lr_range.txt").read_text()
    assert text == drawing(test, batch=75).caption + "\n"
    golden(text, "300 steps", "75 curves", "1e-06", "0.95", "2 times")
    assert json.loads((tmp_path / "a" / "lr_range.json").read_text())["suggested"] == test.suggested


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "nan", "monotone"])
def test_a_figure_of_whatever_came_out(tmp_path: Path, kind: str) -> None:
    rates, losses = curve(120, diverges=2.0)
    if kind == "flat":
        losses[:] = 0.3
    if kind == "nan":
        losses[60:] = np.nan
        losses[50:60] = 1e30
    assert write_lr_range(find_rate(rates, losses), tmp_path, batch=75)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").write_text("")
    with golden.raises(RecordError, match="file/x.*--out"):
        write_lr_range(find_rate(*curve(100)), tmp_path / "file" / "x", batch=75)
