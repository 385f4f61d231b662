"""Recommended worker counts: closed forms, intervals that cover, answers beyond what was seen, bad input."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from make.scaling_curves import noisy, points, usl

from horovod_study import cli
from horovod_study.analysis.forecast import recommendation
from horovod_study.analysis.forecast.prediction import Prediction
from horovod_study.analysis.forecast.recommendation import Questions, duration, recommend
from horovod_study.config.doors import asked
from horovod_study.errors import ConfigError
from horovod_study.records import finite

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def answers(table, **questions):
    return recommend(table, asked(Questions, questions, "predict"))[""].answers


def ends(one, name):
    return [getattr(one, f"{name}{end}") for end in ("", "_low", "_high")]


def exactly(monkeypatch, curve, width=0.0):
    """Make the forecast a known curve, so that answers have closed forms."""

    def predict(table, *, workers, **known):
        name = str(table["series"].iloc[0]) if "series" in table else ""
        return {
            name: [
                Prediction(
                    workers=n,
                    nodes=None,
                    samples_per_s=float(curve(n)),
                    low=float(curve(n)) * math.exp(-width),
                    high=float(curve(n)) * math.exp(width),
                    law="x",
                )
                for n in workers
            ]
        }

    monkeypatch.setattr(recommendation, "predict", predict)


class TestClosedForms:
    @pytest.mark.parametrize("s", [0.05, 0.1, 0.02])
    def test_the_knee_of_amdahls_law(self, monkeypatch, s):
        """d log S/d log N = (1 - s) / (1 + s (N - 1)) is a half at N = (1 - s) / s."""
        exactly(monkeypatch, lambda n: usl(n, s, 0.0))
        assert answers(points(COUNTS, usl(COUNTS, s, 0.0)))["knee"].workers == pytest.approx((1 - s) / s, abs=1)

    def test_the_knee_with_another_share(self, monkeypatch):
        """(1 - s) / (1 + s (N - 1)) is 0.8 at N = (1 - s) / (0.8 s) - (1 - s) / s."""
        exactly(monkeypatch, lambda n: usl(n, 0.02, 0.0))
        found = answers(points(COUNTS, usl(COUNTS, 0.02, 0.0)), marginal=0.8)["knee"].workers
        assert found == pytest.approx(0.98 / (0.8 * 0.02) - 0.98 / 0.02, abs=1)

    def test_the_knee_has_the_highest_product_of_speedup_and_efficiency(self, monkeypatch):
        exactly(monkeypatch, lambda n: usl(n, 0.02, 0.0005))
        n = np.arange(1, 513)
        best = n[np.argmax(usl(n, 0.02, 0.0005) ** 2 / n)]
        assert answers(points(COUNTS, usl(COUNTS, 0.02, 0.0005)))["knee"].workers == pytest.approx(best, abs=1)

    def test_ideal_scaling_has_no_knee_up_to_the_last_count_looked_at(self, monkeypatch, golden):
        exactly(monkeypatch, lambda n: 100 * n)
        one = answers(points(COUNTS, 100 * np.array(COUNTS)))["knee"]
        assert (one.workers, one.low, one.high, one.searched_to) == (None, 512, None, 512)
        assert recommendation.in_words(one) == "at least 512"
        golden(one.doubts)

    def test_the_peak_of_usl(self):
        one = answers(noisy(COUNTS, usl(COUNTS, 0.03, 0.001), repeats=5))["usl_peak"]
        truth = math.sqrt(0.97 / 0.001)
        assert one.low <= truth <= one.high
        assert one.workers == pytest.approx(truth, rel=0.15)

    def test_no_peak_where_beta_cannot_be_told_from_zero(self, golden):
        one = answers(noisy(COUNTS, usl(COUNTS, 0.03, 0.0), repeats=5))["usl_peak"]
        assert one.workers is None and one.high is None
        golden(one.why_not)

    def test_deadline_budget_and_cheapest_of_a_known_curve(self, monkeypatch):
        exactly(monkeypatch, lambda n: usl(n, 0.05, 0.0))
        found = answers(points(COUNTS, usl(COUNTS, 0.05, 0.0)), samples=1e6, deadline=1500.0, gpu_hours=4.0)
        n = np.arange(1, 513)
        x = usl(n, 0.05, 0.0)
        assert found["deadline"].workers == n[x >= 1e6 / 1500][0]
        assert found["budget"].workers == n[n * 1e6 / x / 3600 <= 4][-1]
        assert found["cheapest"].workers == 1
        spent, low, high = ends(found["budget"], "gpu_hours")
        assert spent <= 4.0 and low <= spent <= high

    def test_the_knee_to_a_target_on_an_ideal_machine_is_the_critical_count(self, monkeypatch):
        """X = N, E = E_min (1 + N / N_crit): d log(X/E)/d log N = 1 / (1 + N / N_crit), a half at N_crit."""
        exactly(monkeypatch, lambda n: 100 * n)
        needed = {n: 1e6 * (1 + n / 40) for n in (1, 4, 16, 64)}
        found = answers(points(COUNTS, 100 * np.array(COUNTS)), target_samples=needed)
        assert found["target_knee"].workers == pytest.approx(40, abs=1)
        assert found["fastest_to_target"].workers is None  # more workers never harm here
        samples = found["target_knee"].duration_s * found["target_knee"].samples_per_s
        assert samples == pytest.approx(2e6, rel=0.02)

    def test_samples_to_the_target_move_the_fastest_count_down(self, monkeypatch, golden):
        exactly(monkeypatch, lambda n: usl(n, 0.02, 0.0005))
        table = points(COUNTS, usl(COUNTS, 0.02, 0.0005))
        same = answers(table, target_samples={1: 1e6})["fastest_to_target"]
        grown = answers(table, target_samples={n: 1e6 * (1 + n / 40) for n in (1, 4, 16)})["fastest_to_target"]
        assert same.workers == pytest.approx(math.sqrt(0.98 / 0.0005), abs=1)
        assert grown.workers < same.workers
        golden(same.doubts)

    def test_cost_is_price_times_gpu_hours(self):
        one = answers(noisy(COUNTS, usl(COUNTS, 0.05, 0.0), repeats=5), samples=1e6, price_per_gpu_hour=2.5)["cheapest"]
        for name in ("samples_per_s", "duration_s", "gpu_hours", "gpu_hours_per_million_samples", "cost"):
            value, low, high = ends(one, name)
            assert low < value < high
        assert ends(one, "cost") == pytest.approx([2.5 * hours for hours in ends(one, "gpu_hours")])
        assert one.gpu_hours_per_million_samples == pytest.approx(one.workers * 1e6 / one.samples_per_s / 3600)


class TestIntervals:
    def test_drawn_curves_have_the_forecasts_own_intervals(self):
        forecasts = [
            Prediction(workers=n, nodes=None, samples_per_s=100 * n, low=100 * n / 1.3, high=100 * n * 1.1, law="x")
            for n in (1, 2, 4, 8, 16)
        ]
        curves = recommendation._draw(forecasts, 4000, 0)
        low, high = np.exp(np.quantile(curves(np.arange(5))[3:], [0.025, 0.975], axis=0))
        assert low == pytest.approx(np.full(5, 100 / 1.3), rel=0.02)
        assert high == pytest.approx(np.full(5, 110), rel=0.02)

    def test_wider_forecasts_give_wider_answers(self, monkeypatch):
        table = points(COUNTS, usl(COUNTS, 0.05, 0.0))
        spans = []
        for width in (0.0, 0.05, 0.2):
            exactly(monkeypatch, lambda n: usl(n, 0.05, 0.0), width)
            one = answers(table, samples=1e6, deadline=1000)["deadline"]
            spans.append((one.high or math.inf) - one.low)
        assert spans[0] == 0 < spans[1] < spans[2]

    def test_an_answer_beyond_the_measured_counts_is_doubtful(self):
        one = answers(noisy((1, 2, 4, 8), usl((1, 2, 4, 8), 0.02, 0.0), repeats=5), samples=1e6, deadline=700)[
            "deadline"
        ]
        assert one.workers > 8
        assert any(doubt == f"{one.workers} workers are beyond the 8 that were measured" for doubt in one.doubts)

    @pytest.mark.slow
    def test_intervals_of_the_deadline_cover_the_truth(self):
        """The answer inside the measured range: 90 % of the seeds or more, whole counts make it conservative."""
        truth = np.arange(1, 65)[usl(np.arange(1, 65), 0.05, 0.0005) >= 1e6 / 1100][0]
        inside = 0
        for seed in range(60):
            table = noisy(COUNTS, usl(COUNTS, 0.05, 0.0005), repeats=3, sigma=0.02, seed=seed)
            one = recommend(table, asked(Questions, {"samples": 1e6, "deadline": 1100}, "predict"), draws=300)[
                ""
            ].answers["deadline"]
            inside += one.low <= truth <= (one.high or math.inf)
        assert inside >= 54

    @pytest.mark.slow
    def test_intervals_of_the_knee_cover_the_truth(self):
        n = np.arange(1, 513)
        truth = n[np.argmax(usl(n, 0.05, 0.0005) ** 2 / n)]
        inside = 0
        for seed in range(60):
            table = noisy(COUNTS, usl(COUNTS, 0.05, 0.0005), repeats=3, sigma=0.02, seed=seed)
            one = recommend(table, draws=300, seed=seed)[""].answers["knee"]
            inside += one.low <= truth <= (one.high or math.inf)
        assert inside >= 54


class TestImpossible:
    def test_a_deadline_that_nobody_meets_says_what_is_possible(self, golden):
        one = answers(noisy(COUNTS, usl(COUNTS, 0.3, 0.02), repeats=5), samples=1e9, deadline=60.0)["deadline"]
        assert (one.workers, one.low, one.high) == (None, None, None)
        golden(one.why_not, "512 is within")
        assert one.samples_per_s is None and one.cost_high is None
        assert recommendation.in_words(one) == "none"

    def test_a_budget_that_is_too_small_says_what_is_needed(self):
        one = answers(noisy(COUNTS, usl(COUNTS, 0.1, 0.0), repeats=5), samples=1e6, gpu_hours=1.0)["budget"]
        assert one.workers is None
        assert one.why_not == "no count up to 512 is within it; the best, 1, takes 2.77 GPU hours" or (
            one.why_not.startswith("no count up to 512 is within it; the best, 1, takes 2.")
        )

    def test_one_worker_count_has_no_answers_and_the_others_have(self, golden):
        table = pd.concat([points([4], [100]).assign(series="a"), points([1, 2], [100, 190]).assign(series="b")])
        found = recommend(table)
        assert found["a"].answers == {}
        golden(found["a"].why_not, "4 workers")
        assert "knee" in found["b"].answers


class TestBadInput:
    @pytest.mark.parametrize(
        ("questions", "message"),
        [
            ({"price_per_gpu_hour": 0.0}, "--price-per-gpu-hour is 0.0; it must be at least 1e-24"),
            ({"samples": -1.0}, "--samples is -1.0; it must be at least 1e-24"),
            ({"samples": math.nan}, "--samples is nan; it must be a number"),
            ({"samples": 1.0, "deadline": math.inf}, "--deadline is inf; it must be a number"),
            ({"deadline": 60.0}, "--deadline says nothing without samples: "),
            ({"gpu_hours": 1.0}, "--gpu-hours says nothing without samples: "),
            ({"samples": 1.0, "gpu_hours": 0.0}, "--gpu-hours is 0.0; it must be at least 1e-24"),
            ({"samples": 1e308}, "--samples is 1e+308; it must be at most 1e"),
            (
                {"price_per_gpu_hour": 2.0},
                "--price-per-gpu-hour says nothing without samples: give --samples of the whole training, too",
            ),
            (
                {"target_samples": {10**23: 5.0}},
                "it must be a whole number of at most 64 bits",
            ),
            ({"marginal": 0.0}, "--marginal is 0.0; it must be greater than 0"),
            ({"marginal": 1.0}, "--marginal is 1.0; it must be less than 1"),
            ({"target_samples": {1: 0.0}}, "it must be at least 1e-24"),
            ({"target_samples": {0: 5.0}}, "it must be at least 1"),
        ],
    )
    def test_questions_that_cannot_be_asked(self, questions, message):
        with pytest.raises(ConfigError) as caught:
            asked(Questions, questions, "predict")
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("90s", 90), ("45m", 2700), ("1h30m", 5400), ("2.5h", 9000), ("1d", 86400), ("5 min", 300)],
    )
    def test_times(self, text, seconds):
        assert asked(Questions, {"samples": 1, "deadline": text}, "predict").deadline == seconds

    @pytest.mark.parametrize("text", ["", "90", "1x", "h", "-1h", "0h", "1h30", "nan h"])
    def test_what_is_no_time(self, text, golden):
        with golden.raises(ConfigError):
            asked(Questions, {"samples": 1, "deadline": text}, "predict")

    def test_samples_to_a_target(self):
        for words, found in ((["2e6"], {1: 2e6}), (["1:2e6", "8:2.6e6"], {1: 2e6, 8: 2.6e6})):
            assert asked(Questions, {"target_samples": words}, "predict").target_samples == found

    @pytest.mark.parametrize("words", [["x"], ["1:2", "3"], ["0:5"], ["1:-2"], ["a:2"], ["1:nan"], ["1:2", "1:3"]])
    def test_what_are_no_samples(self, words, golden):
        with golden.raises(ConfigError):
            asked(Questions, {"target_samples": words}, "predict")

    @pytest.mark.parametrize(
        ("seconds", "text"), [(45, "45 s"), (750, "12.5 min"), (11520, "3.2 h"), (181440, "2.1 d"), (3600, "1 h")]
    )
    def test_durations_in_words(self, seconds, text):
        assert duration(seconds) == text


class TestOrderAndForm:
    def test_rows_in_any_order_give_the_same_answers_and_stay_as_they_are(self):
        table = noisy(COUNTS, usl(COUNTS, 0.05, 0.001), repeats=5)
        before = table.copy()
        given = {"samples": 1e6, "deadline": 900, "gpu_hours": 5, "target_samples": {1: 1e6, 8: 2e6, 64: 3e6}}
        questions = asked(Questions, given, "predict")
        one = finite(recommend(table, questions)[""])
        pd.testing.assert_frame_equal(table, before)
        again = finite(recommend(table.sample(frac=1, random_state=2), questions)[""])
        assert json.dumps(one, allow_nan=False) == json.dumps(again, allow_nan=False)

    @pytest.mark.parametrize("counts", [(1, 2), (1, 10_000_000), (7, 9), (3, 4, 5, 6, 7)])
    def test_any_counts_give_json_without_nan(self, counts):
        found = recommend(
            points(counts, usl(counts, 0.01, 0.0)),
            asked(Questions, {"samples": 1e6, "deadline": 1, "gpu_hours": 1e-9}, "predict"),
        )
        for one in found[""].answers.values():
            assert one.workers is None or one.low <= one.workers <= (one.high or math.inf)
        json.dumps(finite(found[""]), allow_nan=False)

    def test_knots_hold_the_measured_counts_and_both_sides_of_full_nodes(self):
        found = recommendation.knots(1, 64, (3, 5), 8)
        assert {1, 3, 5, 8, 9, 16, 17, 32, 33, 64} <= set(found)
        assert found == sorted(found)


class TestCommandLine:
    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "points.csv"
        noisy(COUNTS, usl(COUNTS, 0.05, 0.001), repeats=5).to_csv(path, index=False)
        return path

    def run(self, capsys, *words):
        code = cli.main([str(word) for word in ("predict", *words)])
        told = capsys.readouterr()
        return code, told.out, told.err

    def test_the_knee_is_always_printed_below_the_forecasts(self, capsys, file, golden):
        code, out, _ = self.run(capsys, file, "--workers", 128)
        assert code == 0
        golden(out.splitlines()[0], "samples/s", "95 %")
        assert "\n  knee  " in out and "cheapest" not in out

    def test_all_answers_fit_into_100_columns(self, capsys, file):
        words = ("--samples", "75e6", "--deadline", "24h", "--gpu-hours", "300", "--price-per-gpu-hour", "2")
        code, out, _ = self.run(capsys, file, *words, "--target-samples", "1:1e6", "8:2e6", "32:4e6")
        assert code == 0
        for name in ("knee", "peak (USL)", "cheapest", "deadline", "budget", "to target", "knee to target"):
            assert f"\n  {name} " in out
        assert "to pay" in out
        assert max(map(len, out.splitlines())) <= 100

    def test_json(self, capsys, file):
        code, out, _ = self.run(capsys, file, "--samples", "1e6", "--deadline", "1h", "--json")
        found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
        assert code == 0
        one = found["series"][""]["answers"]["deadline"]
        assert {"question", "workers", "low", "high", "searched_to", "doubts", "why_not", "cost"} <= set(one)
        assert one["cost"] is None and one["duration_s"] <= 3600

    def test_without_questions_json_is_as_it_was(self, capsys, file):
        _, out, _ = self.run(capsys, file, "--workers", 128, "--json")
        found = json.loads(out)
        assert set(found) == {"series"}
        assert {"workers", "nodes", "samples_per_s", "low", "high", "law"} <= set(found["series"][""][0])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--recommend", "--price-per-gpu-hour", "0"), "--price-per-gpu-hour is 0.0"),
            (("--deadline", "1h"), ""),
            (("--samples", "1", "--deadline", "soon"), "soon"),
            (("--target-samples", "1:x"), "'x'; it must be a number"),
        ],
    )
    def test_wrong_use_is_one_line(self, capsys, file, words, message, golden):
        code, out, err = self.run(capsys, file, *words)
        assert code == 2 and out == ""
        assert len(err.strip().splitlines()) == 1
        golden(err, message)

    def test_one_worker_count(self, capsys, tmp_path, golden):
        path = tmp_path / "one.csv"
        path.write_text("workers,samples_per_s\n4,100\n4,101\n")
        code, _, err = self.run(capsys, path, "--recommend")
        assert code == 2
        golden(err, "4 workers")
