"""From the ideal step to the measured one, stragglers, what synchronisation is made of, use of the machine: recorded
runs of a cluster whose truth is known, and the figures of them.
"""

import json
import math

import numpy as np
import pandas as pd
import pytest
from drawn_figures import complaints, drawn, figures_of, light, one
from make.bench_document import document
from make.synthetic_runs import run_table
from make.synthetic_study import truth, write_study

from horovod_study import records
from horovod_study.analysis.machine import network, resources
from horovod_study.analysis.steps import breakdown as losses
from horovod_study.analysis.steps.accounting import account, account_runs
from horovod_study.analysis.study import analyze
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.report.figures import causes
from horovod_study.report.kit.style import COLUMN_WIDTH_IN, PRINT_WIDTH_IN

WORKERS = (1, 2, 8, 16)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = write_study(tmp_path_factory.mktemp("study"), workers=WORKERS, repeats=3, steps=250)
    table, recorded = records.recorded_runs([root])
    accounting = account(table, account_runs(recorded))
    return analyze(table, accounting=accounting, networks=[finite(network.analyze(document()))])


@pytest.fixture(scope="module")
def plain():
    """A study without step rows, sensors or a benchmark: what another script may have recorded."""
    return analyze(run_table((1, 2, 4), failed=()))


def cell(table, series, workers):
    return table[(table["series"] == series) & (table["workers"] == workers)]


# ---------------------------------------------------------------------------------------------------- losses


@pytest.mark.slow
@pytest.mark.parametrize("which", ["study", "plain"])
def test_the_parts_add_up_to_the_measured_step_and_follow_one_another(which, request):
    table = request.getfixturevalue(which).losses
    for _, own in table.groupby(["series", "workers", "nodes", "batch"]):
        parts = own[~own["part"].isin([losses.IDEAL, losses.MEASURED])]
        ideal, measured = (
            float(own.loc[own["part"] == end, "seconds"].iloc[0]) for end in (losses.IDEAL, losses.MEASURED)
        )
        assert ideal + parts["seconds"].sum() == pytest.approx(measured, rel=1e-12)
        assert list(parts["from_s"]) == pytest.approx([ideal, *parts["to_s"].iloc[:-1]])
        assert parts["to_s"].iloc[-1] == pytest.approx(measured)
        if parts["of_loss"].notna().all():
            assert parts["of_loss"].sum() == pytest.approx(1)
    assert len(table) > 0


def test_the_parts_of_a_step_are_those_that_the_runs_were_made_from(study):
    known = truth("alpha", ("horovod", "mpi"), 16, 75)
    own = cell(study.losses, "alpha horovod/mpi batch 75", 16).set_index("part")["seconds"]

    assert own["ideal"] == pytest.approx(known.own_s, rel=0.03)
    assert own["skew"] == pytest.approx(known.skew_s, rel=0.1)
    assert own["transfer"] == pytest.approx(known.transfer_s, rel=0.1)
    assert own["packing"] + own["runtime"] == pytest.approx(known.cycle_s / 2, rel=0.3)
    assert abs(own["computing"]) + abs(own["other"]) + abs(own["unexplained"]) < 0.1 * own["transfer"]


def test_without_a_measurement_of_the_runtime_the_exchange_is_one_part_and_the_note_says_what_to_do(study, golden):
    bare = losses.losses(
        study.breakdown,
        study.points,
        study.attribution.iloc[:0],
        baseline="plain",
        skew_s=pd.Series({("alpha horovod/mpi batch 75", 16, 2, 75): 3e-4}),
    )
    own = cell(bare, "alpha horovod/mpi batch 75", 16).set_index("part")
    other = cell(bare, "alpha horovod/nccl batch 75", 16).set_index("part")

    assert own.loc["skew", "seconds"] == 3e-4
    golden(own.loc["exchange", "note"], "--measure-sync")
    sync = cell(study.breakdown, "alpha horovod/mpi batch 75", 16).set_index("lap").loc["sync", "minus_plain_s"]
    assert own.loc["skew", "seconds"] + own.loc["exchange", "seconds"] == pytest.approx(sync)
    assert "skew" not in other.index and other.loc["waiting", "seconds"] > 0


def test_a_hidden_synchronisation_is_no_wait(plain):
    own = cell(plain.losses, "local ddp/gloo batch 75", 4).set_index("part")["seconds"]

    assert own["hidden"] > 0
    assert not {"waiting", "exchange", "skew"} & set(own.index)


@pytest.mark.slow
def test_the_ideal_step_of_strong_scaling_is_the_baseline_over_the_workers(plain):
    runs = run_table((1, 2, 4), failed=())
    strong = light(plain, runs.assign(batch=600 // runs["workers"], global_batch=600))
    steps = strong.breakdown[strong.breakdown["lap"] == "step"]
    base = steps.loc[steps["backend"] == "serial", "mean_s"].iloc[0]

    assert cell(strong.losses, "local horovod/mpi global batch 600", 4).iloc[0]["seconds"] == pytest.approx(base / 4)


def test_the_figure_of_losses_draws_every_part_of_every_count(study, plain, golden):
    drawing = one(causes, study, "losses")
    heights = [bar.get_height() for bar in drawn(drawing).axes[0].patches]
    parts = study.losses[~study.losses["part"].isin([losses.IDEAL, losses.MEASURED]) & (study.losses["seconds"] != 0)]

    np.testing.assert_allclose(sorted(heights), sorted(1000 * parts["seconds"]))
    assert "10 % quantile" in drawing.caption
    golden(drawing.caption, "PyTorch")
    assert "not measured separately" in one(causes, plain, "losses").caption


# ---------------------------------------------------------------------------------------------------- attribution


def test_the_synchronisation_of_each_cell_is_taken_apart(study):
    table = study.attribution
    own = cell(table, "alpha horovod/mpi batch 75", 16).set_index("part")
    known = truth("alpha", ("horovod", "mpi"), 16, 75)

    assert set(table["workers"]) == {2, 8, 16} and (table["runs"] == 3).all()
    assert own.loc["floor", "seconds"] == pytest.approx(known.transfer_s, rel=0.1)
    whole = sum(own.loc[part, "seconds"] for part in ("floor", "skew", "pack", "rest", "unexplained"))
    assert whole == pytest.approx(own.loc["sync", "seconds"])
    assert own.loc["sync", "of_sync"] == 1
    assert (own["low_s"] <= own["seconds"]).all() and (own["seconds"] <= own["high_s"]).all()


def test_runs_without_the_measurement_have_no_attribution(plain):
    assert plain.attribution.empty
    assert [each.name for each in figures_of(causes, plain)] == ["breakdown", "losses"]


# ---------------------------------------------------------------------------------------------------- stragglers


# ---------------------------------------------------------------------------------------------------- use


def test_use_is_the_median_of_the_runs_that_know_it():
    runs = run_table((1, 2), failed=()).assign(gpu_percent=math.nan, gpu_power_w_per_gpu=math.nan)
    mpi = (runs["backend"] == "horovod") & (runs["transport"] == "mpi") & (runs["workers"] == 2)
    runs.loc[mpi, "gpu_percent"] = [50.0, 70.0, math.nan]
    table = resources.usage(runs)
    row = cell(table, "local horovod/mpi batch 75", 2).iloc[0]

    assert [row[f"gpu_percent_{end}"] for end in ("repeats", "median", "min", "max")] == [2, 60.0, 50.0, 70.0]
    assert math.isnan(row["gpu_percent_low"])  # two repeats
    assert row["gpu_power_w_per_gpu_repeats"] == 0 and math.isnan(row["gpu_power_w_per_gpu_median"])


def test_the_load_over_time_is_that_of_the_profiles():
    runs = run_table((1, 2), ways=(("serial", "none"), ("horovod", "mpi")), repeats=2, failed=())
    profiles = pd.concat(
        [
            pd.DataFrame(
                {
                    "run": name,
                    "part": range(parts),
                    "begin_s": np.arange(parts) * 40 / parts + 5,
                    "end_s": (np.arange(parts) + 1) * 40 / parts + 5,
                    "gpu_percent": np.linspace(0, 90, parts) + 10 * place,
                    **dict.fromkeys(
                        ("step_s", "cpu_percent_per_rank", "rss_mb_per_rank", "gpu_memory_mb", "gpu_power_w"), math.nan
                    ),
                }
            )
            for place, (name, parts) in enumerate(zip(runs.loc[runs["workers"] == 2, "run"], (40, 20), strict=True))
        ],
        ignore_index=True,
    )
    table = resources.load(runs, profiles)

    assert list(table["slice"]) == list(range(resources.SLICES)) and (table["repeats"] == 2).all()
    np.testing.assert_allclose(table["at_s"], np.arange(20) * 2 + 1, atol=0.6)  # since the window began
    assert (np.diff(table["gpu_percent_median"]) > 0).all()
    assert (
        (table["gpu_percent_min"] <= table["gpu_percent_median"])
        & (table["gpu_percent_median"] <= table["gpu_percent_max"])
    ).all()
    assert table["step_s_median"].isna().all()


def test_use_and_power_are_drawn_where_gpus_were_sampled(study):
    drawing = one(causes, study, "usage")
    figure = drawn(drawing)

    assert [axes.get_ylabel() for axes in figure.axes][:2] == ["GPU use / %", "Power of a GPU / W"]
    assert "any kernel ran" in drawing.caption and "Repeats per point: 3" in drawing.caption
    known = drawing.data.loc[drawing.data["workers"] > 1, "gpu_percent_median"]
    dots = {
        round(float(v), 9)
        for line in figure.axes[0].get_lines()
        if line.get_linestyle() == "None"
        for v in line.get_ydata()
    }
    assert {round(value, 9) for value in known} <= dots


def test_nothing_is_drawn_of_a_machine_that_was_not_sampled(plain):
    assert not {"usage", "load"} & {each.name for each in figures_of(causes, plain)}


@pytest.mark.slow
def test_processors_are_drawn_where_there_is_no_gpu(plain, golden):
    runs = run_table((1, 2), failed=())
    sampled = runs.assign(cpu_percent_per_rank=95.0 + runs["repeat"], rss_mb_per_rank=400.0)
    figure = drawn(one(causes, light(plain, sampled), "usage"))

    golden([axes.get_ylabel().replace("\n", "") for axes in figure.axes], "CPU", "/ MB")


# ---------------------------------------------------------------------------------------------------- the machine


def test_a_network_comes_back_from_its_json():
    found = network.analyze(document())
    again = network.restored(json.loads(json.dumps(finite(found), allow_nan=False)), source="bench.json")

    assert finite(again) == finite(found)
    assert again["roofline"] == found["roofline"] and again["fits"] == found["fits"]


@pytest.mark.parametrize("damaged", [{}, {"workers": 2}, {"workers": 2, "roofline": {"networks": 3}}, []])
def test_what_is_no_benchmark_is_refused_by_name(damaged, golden):
    with golden.raises(AnalysisError, match=r"bench/bench\.json"):
        network.restored(damaged, source="bench/bench.json")


def test_the_roofline_stands_in_the_figures_of_a_study(study):
    drawing = one(causes, study, "roofline")

    assert set(drawing.data["kind"]) == {"peak", "roof"}
    assert drawing.data.loc[drawing.data["name"] == "memory", "bytes_per_s"].iloc[0] == pytest.approx(10e9)
    assert one(causes, study, "network").data["way"].nunique() > 1


# ---------------------------------------------------------------------------------------------------- both widths


@pytest.mark.slow
@pytest.mark.parametrize("width_in", [PRINT_WIDTH_IN, COLUMN_WIDTH_IN])
def test_nothing_is_cut_off_at_text_width_and_at_column_width(study, width_in):
    made = figures_of(causes, study)

    assert {each.name for each in made} == {"breakdown", "losses", "roofline", "network", "resources", "usage", "load"}
    assert [text for each in made for text in complaints(drawn(each, width_in), each.name)] == []
