"""Figures of scaling and of what can be chosen: what they draw, and that it is what the analysis says."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn_figures import complaints, drawn, figures_of, light, one
from make.synthetic_runs import run_table

from horovod_study.analysis.series.points import scaling_points
from horovod_study.analysis.study import analyze
from horovod_study.analysis.sync.synchronisation import knee
from horovod_study.report.figures import scaling, waiting
from horovod_study.report.kit.style import COLUMN_WIDTH_IN, PRINT_WIDTH_IN

WAYS = (("serial", "none"), ("horovod", "mpi"), ("horovod", "gloo"))


def table(partition, workers=(1, 2, 4, 8), per_node=4, **options):
    runs = run_table(workers, ways=WAYS, partition=partition, failed=(), **options)
    return runs.assign(run=partition + "/" + runs["run"], nodes=np.ceil(runs["workers"] / per_node))


@pytest.fixture(scope="module")
def study():
    return analyze(pd.concat([table("alpha"), table("gpu2", seed=3, per_node=8)], ignore_index=True))


@pytest.fixture(scope="module")
def swept():
    frames = []
    for batch in (25, 75, 300, 1200):
        runs = table("alpha", (1, 2, 4), batch=batch, seed=batch)
        slower = 1 + batch / 200  # a knee at 200
        laps = [name for name in runs.columns if name.endswith("_s") and name not in ("samples_per_s", "window_s")]
        runs = runs.assign(run=runs["run"] + f"-{batch}", samples_per_s=runs["samples_per_s"] / slower)
        frames.append(runs.assign(**{name: runs[name] * slower for name in laps}))
    return analyze(pd.concat(frames, ignore_index=True))


def lines_of(axes, color):
    return [line for line in axes.get_lines() if line.get_color() == color and line.get_linestyle() != "None"]


# ---------------------------------------------------------------------------------------------------- epoch time


@pytest.mark.slow
def test_the_epoch_time_is_the_training_set_over_the_throughput(study):
    points = study.points

    np.testing.assert_allclose(points["epoch_s_median"], points["train_samples"] / points["samples_per_s_median"])
    np.testing.assert_allclose(points["epoch_s_min"], points["train_samples"] / points["samples_per_s_max"])
    assert (points["epoch_s_low"] < points["epoch_s_median"]).all()


def test_the_efficiency_is_the_ideal_epoch_over_the_measured_one(study):
    for kind in ("plain", "wrapped"):
        known = study.points[study.points[f"efficiency_{kind}"].notna()]
        ratio = known[f"ideal_epoch_{kind}_s"] / known["epoch_s_median"]
        np.testing.assert_allclose(ratio, known[f"efficiency_{kind}"])


def test_an_epoch_of_unknown_size_has_no_time():
    points = scaling_points(table("alpha").assign(train_samples=math.nan))

    assert points[["epoch_s_median", "ideal_epoch_plain_s"]].isna().all(axis=None)


def test_the_ideal_line_of_the_epoch_time_halves_with_twice_the_workers(study):
    drawing = one(scaling, study, "epoch_time")
    (axes,) = drawn(drawing).axes
    ideal = [line for line in axes.get_lines() if line.get_color() == "#6f747d" and len(line.get_xdata()) == 4]

    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(ideal) == 2  # one of each partition
    for line in ideal:
        np.testing.assert_allclose(np.ptp(line.get_xdata() * line.get_ydata()), 0, atol=1e-9)
    for words in ("Baseline (plain)", "training samples / X", "slowest repeat", "base", "Repeats per point: 3"):
        assert words.split()[0] in drawing.caption and words in f"{drawing.caption} base"


def test_the_csv_of_a_figure_holds_what_is_drawn(study):
    drawing = one(scaling, study, "epoch_time")
    (axes,) = drawn(drawing).axes
    dots = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    drawn_values = sorted(float(value) for line in dots for value in line.get_ydata())

    np.testing.assert_allclose(drawn_values, sorted(drawing.data["epoch_s_median"].dropna()))


@pytest.mark.slow
def test_a_data_set_that_grows_has_no_epoch_to_compare(study):
    runs = table("alpha")
    grown = light(study, runs.assign(train_samples=75_000 * runs["workers"]))

    assert scaling.epoch_time(grown) is None and scaling.weak_scaling(grown) is not None


def test_weak_scaling_shows_the_throughput_and_its_ideal(study):
    drawing = one(scaling, study, "weak_scaling")
    (throughput,) = drawn(drawing).axes

    assert throughput.get_ylabel() == "1000 samples/s" and lines_of(throughput, "#6f747d")
    assert set(drawing.data["kind"]) == {"throughput"}


@pytest.mark.slow
def test_strong_scaling_has_an_epoch_figure_and_no_weak_one(study):
    runs = table("alpha")
    strong = runs.assign(batch=600 // runs["workers"], global_batch=600)

    there = light(study, strong)
    assert scaling.epoch_time(there) is not None and scaling.weak_scaling(there) is None


# ---------------------------------------------------------------------------------------------------- regression


def test_the_legend_of_the_regression_has_the_slope_and_its_interval(study):
    drawing = one(scaling, study, "regression")
    (legend,) = drawn(drawing).legends
    texts = [" ".join(text.get_text().split()) for text in legend.get_texts()]
    law = study.fits["series"]["alpha horovod/mpi batch 75"]["laws"]["linear"]
    low, high = law["ci95"]["slope"]

    (own,) = [text for text in texts if text.startswith("alpha: Horovod/MPI")]
    value, bounds = own.partition(": ")[2].partition(": ")[2].removesuffix(" per worker").split(" ", 1)
    assert float(value) == pytest.approx(law["params"]["slope"], abs=0.01)
    assert [float(end) for end in bounds.strip("[]").split(", ")] == pytest.approx([low, high], abs=0.01)
    assert len(texts) == 5  # four series and the ideal line


def test_a_line_through_two_worker_counts_is_no_finding(study):
    two = replace(study, points=study.points[study.points["workers"] <= 2])

    assert scaling.regression(two) is None


# ---------------------------------------------------------------------------------------------------- pairs


def test_the_ratio_of_two_transports_stands_at_every_worker_count_with_its_verdict(study, golden):
    drawing = one(waiting, study, "transport_ratio")
    figure = drawn(drawing)
    throughput = figure.axes[0]
    known = study.transports[(study.transports["quantity"] == "samples_per_s") & (study.transports["workers"] > 1)]
    dots = [line for line in throughput.get_lines() if line.get_linestyle() == "None"]
    filled = sum(len(line.get_xdata()) for line in dots if line.get_markerfacecolor() != "#ffffff")

    golden(drawing.title)
    np.testing.assert_allclose(sorted(v for line in dots for v in line.get_ydata()), sorted(known["ratio"]))
    assert filled == (known["verdict"] == "resolved").sum() > 0
    assert "95 % intervals" in drawing.caption and "Pairs per point: 3" in drawing.caption


def test_nccl_against_mpi_is_named_so(study):
    table_ = study.transports.replace({"a_transport": {"gloo": "nccl"}, "b_transport": {"gloo": "nccl"}})

    assert waiting.transport_ratio(replace(study, transports=table_)).title == "NCCL against MPI"


def test_pairs_that_share_a_series_are_told_apart(study):
    table = study.transports
    drawing = waiting.transport_ratio(replace(study, transports=pd.concat([table, table.assign(a=table["b"])])))

    assert len({(look.color, look.marker) for look in drawing.looks.values()}) == len(drawing.looks) > 1


def test_one_worker_count_makes_no_curve_of_ratios(study):
    few = replace(study, transports=study.transports[study.transports["workers"] <= 2])

    assert waiting.transport_ratio(few) is None


# ---------------------------------------------------------------------------------------------------- batches


@pytest.mark.slow
def test_the_curve_of_the_epoch_is_the_training_set_over_its_throughput(swept):
    curves = swept.batch_curves

    np.testing.assert_allclose(curves["epoch_s"] * curves["samples_per_s"], 75_000)


def test_times_faster_is_relative_to_the_smallest_batch(swept):
    for _, own in swept.batches.groupby(["series", "workers"]):
        base = own.set_index("batch")["samples_per_s_median"]
        np.testing.assert_allclose(own["times_faster"], own["samples_per_s_median"] / base[25])


@pytest.mark.parametrize(
    ("steps", "side"),
    [([1e-3, 1e-3, 1e-3], "below the knee; add batches above"), ([1e-3, 2e-3, 4e-3], "above the knee")],
)
def test_a_knee_without_end_is_said_in_words(steps, side):
    note = knee([32, 64, 128], steps)["note"]

    assert f"every batch measured is {side}" in note and "inf" not in note and "nan" not in note


def test_every_identified_knee_stands_on_its_line(swept, golden):
    drawing = one(waiting, swept, "batch_size")
    _, axes, *_ = drawn(drawing).axes
    strokes = sorted(float(line.get_xdata()[0]) for line in axes.get_lines() if line.get_marker() == "|")
    knees = swept.knees[swept.knees["identified"].astype(bool)]

    np.testing.assert_allclose(strokes, sorted(knees["knee"]))
    golden(drawing.caption)


def test_the_wait_and_the_loss_are_beside_the_throughput(swept):
    drawing = one(waiting, swept, "batch_size")
    *_, wait, lost = drawn(drawing).axes
    parallel = drawing.data[drawing.data["workers"] > 1]

    assert wait.get_ylabel().startswith("Waiting") and lost.get_ylabel().startswith("Lost")
    tops = [max(float(v) for line in axes.get_lines() for v in line.get_ydata()) for axes in (wait, lost)]
    np.testing.assert_allclose(tops, [100 * parallel[name].max() for name in ("overhead_median", "lost")])


def test_two_batches_make_no_figure(swept):
    few = replace(swept, batches=swept.batches[swept.batches["batch"] <= 75])

    assert waiting.batch_size(few) is None


# ---------------------------------------------------------------------------------------------------- both widths


@pytest.mark.slow
@pytest.mark.parametrize("width_in", [PRINT_WIDTH_IN, COLUMN_WIDTH_IN])
def test_nothing_is_cut_off_at_text_width_and_at_column_width(study, swept, width_in):
    choices = ("transport_ratio", "batch_size")
    made = [each for of in (study, swept) for each in figures_of(waiting, of) if each.name in choices]
    made += figures_of(scaling, study)

    assert len(made) == 10
    assert [text for each in made for text in complaints(drawn(each, width_in), each.name)] == []
