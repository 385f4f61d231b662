"""Planted causes come first in `explain` and `report`, with the right size; without them nothing is said of them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from make.rank_rows import noise, rows_of
from test_inspection import EFFECTIVE, recorded

from horovod_study import api, records
from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.steps.accounting import outside_of, stalls_of, whole_epoch
from horovod_study.analysis.steps.explanation import Explanation, Help, explain
from horovod_study.analysis.study import Analysis
from horovod_study.report.page import html
from horovod_study.report.page.tables import answer_lines
from horovod_study.report.terminal import _runs_beside, page

BATCH, STEPS = 75, 400
NOT_STEADY = (
    "the run is not steady: from step 120 to 200 a step takes 900.0 % longer (3 to 30 ms); the window holds both"
)


@pytest.fixture(autouse=True)
def _of_another_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(EFFECTIVE, "steps_per_epoch")


def train(
    folder: Path,
    name: str,
    workers: int,
    *,
    own_s: np.ndarray | None = None,
    rows: Mapping[str, Any] | None = None,
    threads: int = 1,
    totals: Mapping[str, Any] | None = None,
    **effective: Any,
) -> Path:
    """Write a run of a script: 400 steps of 3 ms, a wait of 0.2 ms where there are several workers.

    `rows`: how they are laid out; `effective`: what its record says beside the usual.
    """
    own = noise(workers, STEPS, workers) if own_s is None else own_s
    made = rows_of(own, **{"transfer_s": 2e-4, **(rows or {})})
    step_s = float(np.mean([columns["step_s"][50:].mean() for columns in made.values()]))
    usual: dict[str, Any] = {"samples_per_s": workers * BATCH / step_s, "step_s": step_s, "steps": STEPS - 50}
    usual |= {"step_s_median": step_s, "window_s": (STEPS - 50) * step_s}
    usual |= {"steady": {"step": 50, "declared": 50, "found_by": "declared", "doubt": ""}}
    how: dict[str, Any] = {
        "backend": "ddp" if workers > 1 else "serial",
        "transport": "gloo" if workers > 1 else "none",
    }
    how |= {"model": "Net", "parameters": 10, "global_batch": workers * BATCH, "train_samples": BATCH * 100}
    how |= {"nodes": 1, "precision": "fp32", "averaging": "backward" if workers > 1 else None}
    how |= {"ranks": [{"host": "node0", "threads": threads}] * workers}
    return recorded(folder / name, made, totals={**usual, **(totals or {})}, **{**how, **effective})


def explained(*places: Path) -> Explanation:
    return explain(*records.recorded_runs(places))


def analysed(folder: Path) -> Analysis:
    return api.analyze(folder)


def of(found: Explanation, name: str) -> Help | None:
    return next((each for each in found.help if each.name == name), None)


def text_of(found: Explanation) -> str:
    return " ".join("\n".join(page(found)).split())


def points(found: Analysis, workers: int = 2) -> pd.Series:
    return found.points[found.points["workers"] == workers].iloc[0]


def epochs(per_epoch: int, between_s: float = 0.0) -> dict[str, Any]:
    return {"per_epoch": per_epoch, "between_s": between_s}


# -------------------------------------------------------------------------------------------------- data not divided


@pytest.mark.parametrize("counted", ["by the record", "in the rows"])
def test_data_that_are_not_divided_come_first(tmp_path: Path, counted: str) -> None:
    told = {"epoch_steps": 100} if counted == "by the record" else {}
    train(tmp_path, "1w", 1, rows=epochs(100), **told)
    train(tmp_path, "2w", 2, rows=epochs(100), **told)
    found = explained(tmp_path)

    first = found.help[0]
    assert first.name == "undivided" and first.gain is not None and first.gain.value == pytest.approx(1.0)
    assert "2 times the work" in first.what and "100 steps" in first.what and first.of == "epochs per hour"
    assert "15,000 samples of 7,500" in found.doubts[0]
    analysis = analysed(tmp_path)
    row = points(analysis)
    assert row["epoch_s_median"] == pytest.approx(100 * row["step_mean_s_median"], rel=1e-3)
    assert "undivided" in row["flags"].split()
    assert any("goes through all of the data" in line for line in answer_lines(analysis))


def test_divided_data_are_not_doubted(tmp_path: Path) -> None:
    train(tmp_path, "1w", 1, rows=epochs(100))
    train(tmp_path, "2w", 2, rows=epochs(50))
    found = explained(tmp_path)

    assert of(found, "undivided") is None and "the data" not in " ".join(found.doubts)
    row = points(analysed(tmp_path))
    assert row["epoch_s_median"] == pytest.approx(50 * row["step_mean_s_median"], rel=1e-3)


def test_data_may_be_divided_among_some_and_epochs_may_be_short(tmp_path: Path) -> None:
    """Four workers with the sampler of two; two whose last batch of three is small."""
    train(tmp_path / "some", "4w", 4, epoch_steps=50)
    some = of(explained(tmp_path / "some"), "undivided")
    assert some is not None and "4 workers go through the data 2 times in an epoch" in some.what
    train(tmp_path / "short", "2w", 2, epoch_steps=3, train_samples=2 * BATCH + 7)
    short = of(explained(tmp_path / "short"), "undivided")
    assert short is not None and "3 steps on each, and would be 2" in short.what
    train(tmp_path / "good", "2w", 2, epoch_steps=2, train_samples=2 * BATCH + 7)
    assert of(explained(tmp_path / "good"), "undivided") is None


def test_a_data_set_without_a_size_is_that_of_one_worker(tmp_path: Path) -> None:
    train(tmp_path, "1w", 1, epoch_steps=100, train_samples=None)
    train(tmp_path, "4w", 4, epoch_steps=100, train_samples=None)
    undivided = of(explained(tmp_path), "undivided")
    assert undivided is not None and undivided.gain is not None and undivided.gain.value == pytest.approx(3.0)
    assert np.isnan(points(analysed(tmp_path), 4)["epoch_s_median"])


# ----------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(("alone", "told"), [(4, True), (1, False)])
def test_other_threads_than_the_baseline_are_told(tmp_path: Path, alone: int, told: bool) -> None:
    train(tmp_path, "1w", 1, threads=alone)
    train(tmp_path, "2w", 2)
    found = explained(tmp_path)

    assert (found.help[:1] != () and found.help[0].name == "threads") == told
    assert any("1 thread, the baseline with 4" in doubt for doubt in found.doubts) == told
    assert any("OMP_NUM_THREADS=1" in doubt for doubt in analysed(tmp_path).provenance["doubts"]) == told


@pytest.mark.parametrize("inside", [False, True])
def test_a_baseline_of_as_many_threads_is_taken_where_there_is_one(tmp_path: Path, inside: bool) -> None:
    """One worker with four threads takes half as long; the speedup is over that with one, alone or in the library."""
    library = {"backend": "ddp", "transport": "gloo"} if inside else {}
    train(tmp_path, "1w", 1, threads=4, own_s=noise(1, STEPS, 1) / 2)
    train(tmp_path, "2w", 2)
    assert explained(tmp_path / "2w", tmp_path / "1w").help[0].name == "threads"
    train(tmp_path, "1w-2", 1, **library)
    found, analysis = explained(tmp_path), analysed(tmp_path)

    row = points(analysis)
    kind = "wrapped" if inside else "plain"
    assert row[f"speedup_{kind}"] == pytest.approx(1.96, abs=0.02) and row["base_threads"] == row["rank_threads"] == 1
    assert np.isnan(row["speedup_plain"]) == inside
    assert of(found, "threads") is None and "threads" not in row["flags"].split()
    assert not any("not compared alike" in doubt for doubt in (*found.doubts, *analysis.provenance["doubts"]))
    alone = analysis.points[analysis.points["workers"] == 1]
    assert alone["repeats"].tolist() == [1, 1] and alone["series"].nunique() == 2
    (cell,) = explain(*records.recorded_runs([tmp_path]), about="2w").cells
    assert cell.efficiency == pytest.approx(0.98, abs=0.01)


def test_threads_part_points_only_where_they_differ_at_one_count(tmp_path: Path) -> None:
    for name, threads in (("a", 1), ("b", 1), ("c", 4)):
        train(tmp_path, name, 2, threads=threads, repeat=ord(name))
    assert sorted(analysed(tmp_path).points["repeats"]) == [1, 2]
    assert {series.rpartition("75 ")[2] for series in analysed(tmp_path).points["series"]} == {"1 thread", "4 threads"}


def test_threads_of_a_machine_of_one_core_are_no_difference(tmp_path: Path) -> None:
    train(tmp_path, "1w", 1, threads=4)
    train(tmp_path, "2w", 2)
    table, runs = records.recorded_runs([tmp_path])
    assert of(explain(table.assign(cores=1), runs), "threads") is None


# ----------------------------------------------------------------------------------------------- time outside of steps


def test_time_outside_of_steps_is_told_with_its_place_and_the_rate_with_it(tmp_path: Path) -> None:
    """2 s after each epoch of 50 steps of about 3.3 ms, and with two workers of 25."""
    train(tmp_path, "1w", 1, rows=epochs(50, 2.0))
    train(tmp_path, "2w", 2, rows=epochs(25, 2.0))
    found = explained(tmp_path)

    cell = found.cells[-1]
    steps_s = 350 * cell.step_s
    share = 26.0 / (26.0 + steps_s)  # the first of them are before the window
    assert cell.outside is not None and cell.outside.where == "after each epoch"
    assert cell.outside_share == pytest.approx(share, rel=2e-3)
    assert cell.whole_samples_per_s == pytest.approx((1 - share) * (cell.samples_per_s or 0), rel=2e-3)
    first = found.help[0]
    assert first.name == "outside" and first.gain is not None
    assert first.gain.value == pytest.approx(share / (1 - share), rel=0.02)
    assert "Outside of steps: 26.0 s, 96 % of all time, 2.00 s after each epoch." in text_of(found)
    analysis = analysed(tmp_path)
    row = points(analysis)
    assert row["outside_share_median"] == pytest.approx(share, rel=2e-3) and "outside" in row["flags"].split()
    assert row["speedup_whole"] == pytest.approx(1.0, rel=0.05) and row["speedup_plain"] > 1.9
    assert any("96 % of the training's time is outside of steps" in line for line in answer_lines(analysis))
    assert "outside of steps" in html.render(analysis)


def test_a_share_of_time_outside_is_in_every_answer(tmp_path: Path) -> None:
    train(tmp_path, "1w", 1)
    train(tmp_path, "2w", 2)
    found = explained(tmp_path)

    assert of(found, "outside") is None and not any("outside of steps" in doubt for doubt in found.doubts)
    assert "Outside of steps: 0" in text_of(found)
    lines = answer_lines(analysed(tmp_path))
    assert any("Outside" in line for line in lines), "a column"
    assert not any("0 % of the training's time" in line for line in lines), "nothing is no headline"


def test_gaps_between_steps_have_their_place() -> None:
    step, step_s = np.arange(100), np.full(100, 0.01)
    gaps = np.where((step % 8 == 0) & (step > 0), 0.5, 0.0)
    begin_s = np.cumsum(gaps + np.concatenate([[0.0], step_s[:-1]]))
    found = outside_of(step, step * 0.0, begin_s, step_s, step * 0.0)
    assert found is not None and (found.where, found.gaps) == ("every 8 steps", 11)
    assert found.seconds == pytest.approx(6.0) and found.share == pytest.approx(6 / 7)
    waited = outside_of(step, step * 0.0, begin_s, step_s, step * 0.0, waits=range(0, 100, 8))
    assert waited is not None and waited.seconds == 0, "a wait for a turn is none of it"


def test_where_time_is_that_no_lap_covers_is_named(tmp_path: Path) -> None:
    stacks = [
        {"where": "outside", "share": 0.61, "name": "gymnasium/step"},
        {"where": "sync", "share": 0.1, "name": "torch/all_reduce"},
    ]
    run = train(tmp_path, "1w", 1, rows={"stretch": 50, "between_s": 0.5}, totals={"stacks": stacks})
    found = explained(run)
    text = text_of(found)
    assert re.search(r"outside of steps 7\d %, of it 61 in gymnasium/step", text) and "all_reduce" not in text
    assert found.cells[0].stacks == (stacks[0],)


# ----------------------------------------------------------------------------------------------------- tensor by tensor


@pytest.mark.parametrize(("calls", "told"), [(62.0, True), (1.0, False)])
def test_calls_for_each_tensor_come_before_a_larger_batch(tmp_path: Path, calls: float, told: bool) -> None:
    seen = {"per_step": calls, "bytes_median": 4224, "bytes_max": 4224, "names": {"all_reduce": calls}}
    run = train(tmp_path, "2w", 2, rows={"transfer_s": 0.02}, averaging="calls", calls=seen)
    found = explained(run)

    names = [each.name for each in found.help]
    assert names[:1] == (["tensors"] if told else ["communication"])
    if told:
        first = found.help[0]
        assert "62 calls of all_reduce" in first.what and "4.22 kB" in first.what
        assert "DistributedDataParallel" in first.what
        assert first.gain is not None and first.gain.value == pytest.approx(0.02 / 0.0036, rel=0.2)


# -------------------------------------------------------------------------------------------------------------- stalls


def test_rare_stalls_cost_the_same_everywhere(tmp_path: Path) -> None:
    """Three steps of 0.3 s in a window of 350."""
    extra = np.zeros((STEPS, 1))
    extra[[100, 200, 300]] = 0.3
    train(tmp_path, "1w", 1, rows={"extra_s": {"forward": extra}})
    found = explained(tmp_path)

    cost_s = 0.9 / 350
    first = found.help[0]
    assert first.name == "stalls" and "3 of 350 steps" in first.what and "computing forward" in first.what
    assert first.gain is not None
    assert first.gain.value == pytest.approx(cost_s / (found.cells[0].step_s - cost_s), rel=0.03)
    analysis = analysed(tmp_path)
    row = points(analysis, 1)
    assert row["stall_s_median"] == pytest.approx(cost_s, rel=0.02) == found.cells[0].stall_s
    milliseconds = f"{1e3 * found.cells[0].stall_s:.2f} ms of the mean step"
    assert text_of(found).count(milliseconds) == 1, "as a doubt; the advice has its gain"
    assert any(milliseconds in doubt for doubt in analysis.provenance["doubts"])


def test_steps_that_open_epochs_are_told_as_the_loader(tmp_path: Path) -> None:
    extra = np.zeros((STEPS, 1))
    extra[::100] = 0.2
    run = train(tmp_path, "1w", 1, rows={"extra_s": {"data": extra}, **epochs(100)})
    stalls = of(explained(run), "stalls")
    assert stalls is not None and "persistent_workers" in stalls.what
    assert of(explained(run), "data") is None or "persistent" in explained(run).help[0].what


def test_even_steps_and_two_kinds_of_steps_have_no_stalls() -> None:
    even, half = np.full(100, 0.01), np.where(np.arange(100) % 2, 0.01, 1.0)
    for step_s in (even, half):
        assert stalls_of(step_s, lambda name: np.zeros(100), ()) is None


def test_a_whole_epoch_is_counted_where_there_are_two() -> None:
    epoch = np.repeat([0.0, 1.0, 2.0], [98, 100, 40])
    assert whole_epoch(epoch, np.full(238, 32.0)) == (100, 3200.0)
    assert whole_epoch(np.zeros(98), np.full(98, 32.0)) is None and whole_epoch(-np.ones(9), np.ones(9)) is None


def test_a_wait_for_data_has_the_size_of_its_lap(tmp_path: Path) -> None:
    run = train(tmp_path, "1w", 1, rows={"extra_s": {"data": np.full((STEPS, 1), 6e-3)}})
    found = explained(run)
    assert found.help[0].name == "data" and found.help[0].gain is not None
    data_s = found.cells[0].parts_s["data"] or 0.0
    assert found.help[0].gain.value == pytest.approx(data_s / (found.cells[0].step_s - data_s)) and data_s > 6e-3


# --------------------------------------------------------------------------------------------- workers that train apart


APART: dict[str, dict[str, Any]] = {
    "none": {"averaging": "none"},
    "parted": {"parted": True},
    "processes": {"processes": 2, "backend": "serial", "transport": "none", "averaging": "none"},
}


@pytest.mark.parametrize("kind", APART)
def test_workers_that_train_apart_have_no_speedup(tmp_path: Path, kind: str) -> None:
    train(tmp_path, "1w", 1)
    train(tmp_path, "2w", 2, **APART[kind])
    found = explained(tmp_path)

    assert found.help[0].name == "apart" and found.cells[-1].efficiency is None
    assert "no speedup is given" in found.doubts[0]
    analysis = analysed(tmp_path)
    row = points(analysis)
    assert row["repeats"] == 1 and "apart" in row["flags"].split()
    assert np.isnan([row["speedup_plain"], row["efficiency_plain"], row["karp_flatt"]]).all()
    assert analysis.fits["series"] == {} and points(analysis, 1)["repeats"] == 1
    assert "no speedup" in answer_lines(analysis)[0]
    assert "no speedup" in re.findall(r"<h1>.*</h1>", html.render(analysis))[0]


def test_the_reason_comes_before_any_number(tmp_path: Path) -> None:
    calls = {"per_step": 62.0, "bytes_median": 4224, "bytes_max": 4224, "names": {"all_reduce": 62.0}}
    stalled = np.zeros((STEPS, 1))
    stalled[[100, 200, 300]] = 0.3
    said = {
        "never average their gradients": train(tmp_path, "none", 2, averaging="none"),
        "processes without a library": train(tmp_path, "processes", 2, **APART["processes"]),
        "more than 10 times the median": train(tmp_path, "stalls", 1, rows={"extra_s": {"forward": stalled}}),
        "is outside of steps": train(tmp_path, "outside", 1, rows=epochs(50, 2.0)),
        "62 calls of all_reduce": train(tmp_path, "tensors", 2, averaging="calls", calls=calls),
    }
    for words, run in said.items():
        lines = page(explained(run))
        assert words in " ".join(" ".join(lines[1 : lines.index("")]).split()), words
        assert " ".join("\n".join(lines).split()).count(words) <= 3


@pytest.mark.parametrize("visible", [True, False])
def test_ranks_that_share_a_metric_exchange_something(tmp_path: Path, visible: bool) -> None:
    calls = {"per_step": 1.0, "bytes_median": 4, "bytes_max": 4, "names": {"all_reduce": 1.0}}
    run = train(tmp_path, "2w", 2, averaging="none", calls=calls, rows={"visible": visible, "transfer_s": 0.01})
    text = text_of(explained(run))
    assert "no exchange" not in text and "communicate less" not in text
    assert ("no gradients are averaged" in text) == visible


def test_no_law_is_made_of_workers_that_train_apart(tmp_path: Path) -> None:
    for workers in (1, 2, 3, 4):
        train(tmp_path, f"{workers}w", workers, **({} if workers == 1 else {"averaging": "none"}))
    assert analysed(tmp_path).fits["series"] == {}


@pytest.mark.parametrize(
    "unknown", [{"averaging": None}, {"ended": "killed"}, {"model": "FSDPNet"}, {"initial_parameter_sha256": None}]
)
def test_missing_digests_are_parted_parameters_only_where_nothing_else_explains_them(
    tmp_path: Path, unknown: dict[str, Any]
) -> None:
    train(tmp_path, "2w", 2, initial_parameter_sha256="a", totals={"parameter_sha256": None})
    train(
        tmp_path / "other", "2w", 2, totals={"parameter_sha256": None}, **{"initial_parameter_sha256": "a", **unknown}
    )
    told = {str(row["run"]): row["apart"] for row in records.run_table(tmp_path).to_dict("records")}
    assert told == {"2w": "parted", "other/2w": ""}


# ------------------------------------------------------------------------------------------------------- disturbed runs


def test_no_advice_follows_from_a_disturbed_run(tmp_path: Path) -> None:
    slow = noise(1, STEPS, 1)
    slow[120:200] += 0.05
    steady = {"steady": {"step": 50, "declared": 50, "found_by": "declared", "doubt": NOT_STEADY}}
    train(tmp_path, "plain", 1)
    train(tmp_path, "1w", 1, own_s=slow, backend="ddp", transport="gloo", totals=steady)
    found = explained(tmp_path)

    assert of(found, "quicker") is None and not any("instead of" in each.what for each in found.help)
    alone = explained(tmp_path / "1w")
    assert {each.name for each in alone.help} <= {"stalls", "unsteady"}
    assert "record 1w again" in text_of(alone)


def test_efficiencies_over_a_disturbed_baseline_are_doubted(tmp_path: Path) -> None:
    slow = noise(1, STEPS, 1)
    slow[120:200] += 0.05
    steady = {"steady": {"step": 50, "declared": 50, "found_by": "declared", "doubt": NOT_STEADY}}
    train(tmp_path, "1w", 1, own_s=slow, totals=steady)
    train(tmp_path, "2w", 2)
    found = explained(tmp_path)

    assert any("the baseline is not steady" in doubt for doubt in found.doubts) and found.growth == ()
    assert any("the baseline is not steady" in doubt for doubt in analysed(tmp_path).provenance["doubts"])


@pytest.mark.parametrize(("slower", "disturbed"), [(20.0, False), (2.0, True)])
def test_a_speedup_that_cannot_be_is_withheld_with_its_reason(tmp_path: Path, slower: float, disturbed: bool) -> None:
    """Of a baseline far too slow, and of one that was disturbed: 37 and 3.8 times with two workers."""
    steady = {"steady": {"step": 50, "declared": 50, "found_by": "declared", "doubt": NOT_STEADY}}
    train(
        tmp_path, "1w", 1, own_s=slower * noise(1, STEPS, 1), rows=epochs(50, 0.1), totals=steady if disturbed else {}
    )
    train(tmp_path, "2w", 2, rows=epochs(25, 0.1))
    why = "the baseline is not steady" if disturbed else "more than twice the workers is no scaling"
    found, analysis = explained(tmp_path), analysed(tmp_path)
    text, answer, written = text_of(found), answer_lines(analysis), html.render(analysis)

    row = points(analysis)
    assert "withheld" in row["flags"].split() and np.isnan([row["speedup_plain"], row["speedup_whole"]]).all()
    assert analysis.breakdown.loc[analysis.breakdown["workers"] == 2, "minus_plain_s"].isna().all()
    assert why in answer[0] and why in found.cells[-1].withheld and why in found.help[0].what
    assert (
        why in re.findall(r"<h1>.*</h1>", written)[0] and f"No speedup is drawn: {found.cells[-1].withheld}" in written
    )
    assert not any(word in said for word in ("there is no baseline", "times as many") for said in (written, *answer))
    assert found.growth == () and f"Unknown: no speedup: {found.cells[-1].withheld}" in text
    assert found.help[0].name == "withheld" and {each.name for each in found.help if each.gain} == {"outside"}
    assert "times the baseline" not in text + " ".join(analysis.provenance["doubts"])


def test_never_is_one_worker_advised(tmp_path: Path) -> None:
    train(tmp_path, "plain", 1)
    train(tmp_path, "1w", 1, own_s=2 * noise(1, STEPS, 1), backend="ddp", transport="gloo")
    assert of(explained(tmp_path), "quicker") is None


# ------------------------------------------------------------------------------------------------------ runs beside one


def test_the_runs_beside_the_one_that_is_asked_about_are_its_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from horovod_study import cli

    train(tmp_path, "1w", 1)
    train(tmp_path, "2w", 2)
    train(tmp_path, "another", 3, parameters=11)
    assert list(_runs_beside(tmp_path / "2w").items()) == [("2w", True), ("1w", True), ("another", False)]
    assert cli.main(["explain", str(tmp_path / "2w")]) == 0
    one = capsys.readouterr().out
    assert cli.main(["explain", str(tmp_path / "1w"), str(tmp_path / "2w")]) == 0
    both = capsys.readouterr().out

    def growth(text: str) -> list[str]:
        lines = text.splitlines()
        start = lines.index("What more workers add to a step")
        return lines[start : lines.index("", start)]

    assert one.startswith("2w: done; ") and growth(one) == growth(both)
    assert re.search(r"workers +against .*\n.*\n +2 +1 worker", one)
    assert "record" not in one.partition("What would help next")[2].partition("What this rests on")[0]


def test_no_command_names_a_run_that_is_there(tmp_path: Path) -> None:
    train(tmp_path, "2w", 2)
    table, runs = records.recorded_runs([tmp_path / "2w"])
    typed = "horovod-study record --out r/2w -- torchrun --nproc-per-node 2 t.py"
    found = explain(table.assign(typed=typed), runs, taken=["2w", "1w"])
    baseline = of(found, "baseline")
    assert baseline is not None and "--out r/1w-2 " in baseline.command


# ---------------------------------------------------------------------------------------------------------------- names


def test_a_slowdown_has_no_karp_flatt_fraction(tmp_path: Path) -> None:
    train(tmp_path, "1w", 1)
    train(tmp_path, "2w", 2, rows={"transfer_s": 0.02})
    row = points(analysed(tmp_path))
    assert row["speedup_plain"] < 1 and np.isnan([row["karp_flatt"], row["karp_flatt_low"]]).all()


def test_collectives_of_torch_are_called_by_their_library(tmp_path: Path) -> None:
    train(tmp_path, "2w", 2, backend="distributed")
    assert records.run_table(tmp_path)["backend"].tolist() == ["ddp"]
    assert "distributed/gloo" not in text_of(explained(tmp_path))


def test_runs_that_say_nothing_of_all_that_say_nothing_new(tmp_path: Path) -> None:
    old = dict.fromkeys(("averaging", "epoch_steps", "calls", "parted", "processes"))
    train(tmp_path, "1w", 1, ranks=[{"host": "node0"}], **old)
    train(tmp_path, "2w", 2, ranks=[{"host": "node0"}] * 2, **old)
    found = explained(tmp_path)
    assert not {each.name for each in found.help} & {"apart", "undivided", "threads", "outside", "stalls", "tensors"}
    table, runs = records.recorded_runs([tmp_path])
    assert scaling_points(table)["apart"].eq("").all() and len(list(runs)) == 2
