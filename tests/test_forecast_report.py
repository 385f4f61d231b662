"""The forecast of a study: its table and document, the figure, the section of the page."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_only
from make.synthetic_runs import run_table

from horovod_study.analysis.forecast import recommendation
from horovod_study.analysis.study import analyze
from horovod_study.report.figures import catalogue, scaling
from horovod_study.report.kit import style
from horovod_study.report.page import html
from horovod_study.report.page.tables import tables

WAYS = (("serial", "none"), ("horovod", "mpi"))
MPI = "local horovod/mpi batch 75"


@pytest.fixture(scope="module")
def runs():
    long = run_table((1, 2, 4, 8, 16), ways=WAYS, repeats=2, failed=())
    long["nodes"] = np.ceil(long["workers"] / 4).astype(int)
    short = run_table((1, 2), ways=WAYS, batch=300, repeats=2, failed=())
    single = run_table((4,), ways=WAYS[1:2], batch=600, repeats=2, failed=())
    return pd.concat([long, short, single], ignore_index=True)


@pytest.fixture(scope="module")
def analysis(runs):
    return analyze(runs)


@pytest.fixture(scope="module")
def page(analysis):
    with figures_only("forecast"):
        return html.render(analysis)


class TestTable:
    @pytest.mark.slow
    def test_twice_four_and_eight_times_the_largest_count(self, analysis):
        table = analysis.forecast
        own = table[table["series"] == MPI]
        assert list(own.loc[own["kind"] == "measured", "workers"]) == [1, 2, 4, 8, 16]
        assert list(own.loc[own["kind"] == "forecast", "workers"]) == [32, 64, 128]
        told = own[own["kind"] != "measured"]
        assert (told["low"] <= told["samples_per_s"]).all() and (told["samples_per_s"] <= told["high"]).all()
        assert (told["samples_per_s"] <= told["ideal_samples_per_s"] * 1.001).all()
        assert told["samples_per_s_min"].isna().all()

    def test_full_nodes_between_are_foretold_where_they_are_known(self):
        rows = pd.DataFrame(
            {
                "series": "a",
                "workers": [1, 2, 4, 6],
                "nodes": [1.0, 1.0, 1.0, 2.0],
                "samples_per_s": [100.0, 195.0, 380.0, 540.0],
            }
        )
        found = recommendation.outlook(rows, settings={"a": "batch 75"}, bases={}, fits={})
        told = found.table[found.table["kind"] == "forecast"]
        assert list(told["workers"]) == [8, 12, 16, 24, 32, 48]
        assert list(told["nodes"]) == [2, 3, 4, 6, 8, 12]
        assert (found.table["ideal_samples_per_s"] == 100 * found.table["workers"]).all()

    def test_measured_rows_are_the_medians_and_the_range_of_the_repeats(self, runs, analysis):
        own = runs[(runs["backend"] == "horovod") & (runs["transport"] == "mpi") & (runs["workers"] == 8)]
        row = analysis.forecast.query("series == @MPI and workers == 8").iloc[0]
        assert row["samples_per_s"] == own["samples_per_s"].median()
        assert (row["samples_per_s_min"], row["samples_per_s_max"]) == (
            own["samples_per_s"].min(),
            own["samples_per_s"].max(),
        )

    def test_ideal_is_the_baseline_of_the_study_times_n(self, runs, analysis):
        base = runs.loc[(runs["backend"] == "serial") & (runs["batch"] == 75), "samples_per_s"].median()
        own = analysis.forecast.query("series == @MPI")
        assert np.allclose(own["ideal_samples_per_s"], base * own["workers"])
        assert np.allclose(own["efficiency"], own["samples_per_s"] / own["ideal_samples_per_s"])


class TestDocument:
    def test_scores_and_recommendations_stand_by_the_series(self, analysis):
        one = analysis.holdout["series"][MPI]
        assert one["known"] == [1, 2, 4] and one["hidden"] == [8, 16]
        assert one["laws"]["combined"]["targets"] == 2 and one["rolling"]["targets"] == 3
        assert one["recommendation"]["answers"]["knee"]["searched_to"] == 128
        assert analysis.holdout["summary"]["combined"]["series"] == 1

    def test_short_series_say_why(self, analysis, golden):
        two = analysis.holdout["series"]["local horovod/mpi batch 300"]
        golden(two["why_not"], "2 distinct", "2 stay")
        assert two["no_forecast"].startswith("2 worker counts") and two["recommendation"] is None
        single = analysis.holdout["series"]["local horovod/mpi batch 600"]
        assert single["recommendation"] is None
        assert "local horovod/mpi batch 600" not in set(analysis.forecast["series"])

    @pytest.mark.slow
    def test_it_is_json_without_nan_and_the_same_for_any_order_of_runs(self, runs, analysis):
        again = analyze(runs.sample(frac=1, random_state=4))
        assert json.dumps(again.holdout, allow_nan=False) == json.dumps(analysis.holdout, allow_nan=False)
        pd.testing.assert_frame_equal(again.forecast, analysis.forecast)

    @pytest.mark.usefixtures("no_figures")
    def test_without_parallel_runs_there_is_nothing(self):
        alone = analyze(run_table(ways=WAYS[:1], failed=()))
        assert alone.forecast.empty and list(alone.forecast.columns) == list(recommendation.FORECAST_COLUMNS)
        assert alone.holdout == {"series": {}, "summary": {}}
        assert scaling.forecast(alone) is None and 'id="forecast"' not in html.render(alone)


class TestFigure:
    def test_caption_and_data_are_written_beside_it(self, analysis, tmp_path):
        one = scaling.forecast(analysis)
        assert one.data.equals(analysis.forecast)
        for words in ("both axes logarithmic", "slowest to fastest repeat", "95 % interval", "ideal", "another node"):
            assert words in one.caption
        assert "forecast" in [each.name for each in catalogue.drawings(analysis)]

    def test_forecasts_are_hollow_dashed_and_in_a_band(self, analysis):
        with style.style():
            figure = scaling.forecast(analysis).draw(6.3)
        axes = figure.axes[0]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        marks = [line for line in axes.lines if line.get_marker() == "o"]
        faces = {line.get_markerfacecolor() for line in marks}
        assert len(faces) == 2 and style.PAPER in faces
        assert len(axes.collections) >= 2  # bars and a band
        assert "forecast" in [text.get_text() for text in axes.texts]
        assert "2 nodes" in [text.get_text() for text in axes.texts]


class TestPage:
    def test_error_and_coverage_stand_beside_each_forecast(self, page, golden):
        section = page[page.index('<section id="forecast">') :]
        section = section[: section.index("</section>")]
        assert re.search(r"combined forecast<small>8 by \S[\d.]+.%, 16 by \S[\d.]+.%</small>", section)
        golden.line(section, "2 distinct")
        golden.line(section, "1 distinct")
        assert "knee" in section and "lowest cost per sample" in section
        assert '<a href="#forecast">Laws and forecast</a>' in page

    def test_unscored_is_not_silent(self, analysis, golden):
        made = {table.name: table for table in tables(analysis)}
        groups = {group.title: group for group in made["holdout"].groups}
        ((text, *_),) = groups["Horovod/MPI, batch 600"].rows
        assert text.warning and text.page_only
        golden(text, "1 distinct")
        forecasts = {group.title: group for group in made["forecast"].groups}
        assert "Horovod/MPI, batch 300" in groups and "Horovod/MPI, batch 300" not in forecasts
        assert set(groups) == {group.title for group in made["holdout"].groups} and len(groups) >= len(forecasts)
