"""Forecasts: physical limits, intervals that widen and cover, node boundaries, published curves."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod_study.analysis.fitting import fit_series
from horovod_study.analysis.laws import LAWS
from horovod_study.analysis.points_file import parse_points
from horovod_study.analysis.prediction import predict
from horovod_study.errors import AnalysisError

# Published total throughputs: (source, {workers: samples/s}, workers that are forecast from the others).
PUBLISHED = [
    # github.com/tensorpack/benchmarks, ResNet-MultiGPU/README.md: ResNet-50, 8 P100, weak scaling, img/s.
    ("tensorpack replicated", {1: 228, 2: 427, 4: 802, 8: 1612}, [8]),
    ("tensorflow/benchmarks replicated", {1: 225.73, 2: 424.54, 4: 789.51, 8: 1580.58}, [8]),
    # github.com/tensorflow/docs, r1/guide/performance/benchmarks.md: K80 on EC2 and GCE, img/s.
    ("InceptionV3, 8 GPUs", {1: 29.3, 2: 55.0, 4: 109, 8: 216}, [8]),
    ("ResNet-50, 64 GPUs", {1: 52.4, 8: 378, 16: 751, 32: 1388, 64: 2744}, [64]),
    ("InceptionV3, 64 GPUs", {1: 29.7, 8: 229, 16: 459, 32: 902, 64: 1783}, [32, 64]),
    # github.com/NVIDIA/DeepLearningExamples, READMEs of BERT: DGX A100, sequences/s.
    ("BERT-Large PyTorch tf32", {8: 2486, 16: 4979, 32: 9859, 64: 19815, 128: 38866, 256: 75706}, [64, 128, 256]),
    ("BERT-Large Paddle tf32", {8: 851, 16: 1601, 32: 3240, 64: 6329, 128: 12273, 256: 24047}, [64, 128, 256]),
    ("BERT-Large TensorFlow fp16", {8: 572.112, 32: 2197.44, 128: 8723.1, 256: 16705}, [256]),
    # github.com/deepmodeling/deepmd-kit, doc/train/parallel-training.md: one host of 8 GPUs.
    ("DeePMD water", {1: 68.89, 2: 125.3, 4: 226.84, 8: 463.28}, [8]),
    # github.com/extra-p/extradeep: CIFAR-10 on nodes of 4 GPUs, whole job, which is why it saturates.
    ("CIFAR-10 job", {2: 326.8, 4: 480.8, 6: 523.6, 8: 568.2, 12: 645.2, 16: 694.4, 20: 709.3}, [12, 16, 20]),
]


# github.com/siasosp23/artifacts, traces of Pollux (OSDI 2021): YOLOv3, batch 8, 4 T4 per node.
YOLO = {1: 24.53, 2: 44.86, 3: 54.85, 4: 63.88, 8: 39.10, 16: 107.76, 32: 165.52, 64: 345.30}


def points(workers, samples_per_s, **columns):
    return pd.DataFrame({"workers": workers, "samples_per_s": np.asarray(samples_per_s, dtype=float), **columns})


def one(table, workers, **options):
    return predict(table, workers=[workers], **options)[""][0]


curves = st.lists(st.floats(1.0, 1e6), min_size=2, max_size=7)
asked = st.lists(st.integers(1, 100_000), min_size=1, max_size=4)


class TestLimits:
    @given(values=curves, workers=asked, data=st.data())
    @settings(max_examples=150, deadline=None)
    def test_never_above_ideal_never_negative_never_outside_its_interval(self, values, workers, data):
        size = len(values)
        counts = data.draw(st.lists(st.integers(1, 4096), min_size=size, max_size=size, unique=True))
        best = max(x / n for x, n in zip(values, counts, strict=True))
        for forecast in predict(points(counts, values), workers=workers)[""]:
            assert 0 < forecast.samples_per_s <= forecast.workers * best * (1 + 1e-9)
            assert 0 < forecast.low <= forecast.samples_per_s <= forecast.high
            json.dumps(forecast.to_dict(), allow_nan=False)

    def test_perfect_scaling_goes_on(self):
        forecast = one(points([1, 2, 4, 8], [100, 200, 400, 800], nodes=[1, 1, 2, 4]), 64)
        assert 6400 == pytest.approx(forecast.samples_per_s)
        assert 5000 < forecast.low
        assert forecast.high < 6800

    def test_three_points_that_only_usl_can_follow(self):
        forecast = one(points([2, 3, 16], [2169.0, 2581.0, 218.0]), 3023)
        assert 0 < forecast.low <= forecast.samples_per_s <= forecast.high

    def test_super_linear_points_raise_the_ceiling_to_the_best_rate_known(self):
        forecast = one(points([16, 64, 256], [173.26, 765.04, 3001.43]), 512)
        assert forecast.samples_per_s <= 512 * 765.04 / 64
        assert forecast.low < 5893.14 < forecast.high

    def test_a_single_low_point_at_the_end_is_not_read_as_collapse(self):
        # Without the column `nodes` a boundary at 8 workers looks like retrograde scaling.
        forecast = one(points([1, 2, 3, 4, 8], [24.5, 44.9, 54.8, 63.9, 39.1]), 64)
        assert 39.0 <= forecast.samples_per_s

    def test_retrograde_scaling_that_the_points_show_is_forecast(self):
        n = np.arange(1, 25)
        forecast = one(points(n, 100 * LAWS["usl"].curve(n, alpha=0.05, beta=0.005)), 64)
        truth = 100 * float(LAWS["usl"].curve(64, alpha=0.05, beta=0.005))
        assert truth == pytest.approx(forecast.samples_per_s, rel=0.03)
        assert "usl" == forecast.law


class TestInterval:
    def test_widens_with_distance(self):
        table = points([1, 2, 4, 8], [100, 190, 365, 700])
        forecasts = predict(table, workers=[9, 16, 32, 64, 128, 1024])[""]
        widths = [math.log(f.high / f.low) for f in forecasts]
        assert widths == sorted(widths)
        assert widths[-1] > 2 * widths[0]

    def test_noisier_repeats_widen_it(self):
        n = np.repeat([1, 2, 4, 8], 5)
        wave = np.tile([-1.5, -0.5, 0, 0.5, 1.5], 4)
        calm, rough = (one(points(n, 100 * n * (1 + noise * wave)), 16) for noise in (0.005, 0.08))
        assert rough.high / rough.low > 1.3 * calm.high / calm.low

    def test_between_measured_counts(self):
        table = points([1, 2, 4, 8], [100, 190, 365, 700])
        measured, between = one(table, 4), one(table, 6)
        assert 365 == pytest.approx(measured.samples_per_s)
        assert measured.low < 365 < measured.high
        assert "interpolated" == between.law
        assert 365 < between.samples_per_s < 700
        assert between.high / between.low > measured.high / measured.low

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("law", "params"),
        [
            ("linear", {"slope": 0.8, "intercept": 0.2}),
            ("amdahl", {"s": 0.02}),
            ("amdahl", {"s": 0.2}),
            ("gustafson", {"s": 0.1}),
            ("usl", {"alpha": 0.05, "beta": 0.001}),
        ],
    )
    def test_simulated_sweeps_are_covered(self, law, params):
        """From N <= 16 with 2 % noise to 24, 32, 64: at least 88 %, whichever law made the points."""
        n, ahead = np.array([1, 2, 4, 8, 16]), np.array([24, 32, 64])
        inside = []
        for seed in range(100):
            generator = np.random.default_rng(seed)
            known = 100 * LAWS[law].curve(n, **params) * (1 + 0.02 * generator.standard_normal(5))
            truth = 100 * LAWS[law].curve(ahead, **params) * (1 + 0.02 * generator.standard_normal(3))
            forecasts = predict(points(n, known), workers=ahead.tolist())[""]
            inside += [f.low <= x <= f.high for f, x in zip(forecasts, truth, strict=True)]
        assert 0.88 <= np.mean(inside)


class TestPublishedCurves:
    def test_closer_than_every_single_law_and_covered(self):
        errors = {name: [] for name in (*LAWS, "forecast")}
        inside = []
        for _, curve, targets in PUBLISHED:
            known = {n: x for n, x in curve.items() if n < min(targets)}
            table = points(list(known), list(known.values()))
            fitted = fit_series(table)[""]
            for forecast in predict(table, workers=targets)[""]:
                truth = curve[forecast.workers]
                errors["forecast"].append(abs(forecast.samples_per_s / truth - 1))
                inside.append(forecast.low <= truth <= forecast.high)
                for name, law in fitted.fits.items():
                    guess = float(law(forecast.workers)) * fitted.base_samples_per_s
                    errors[name].append(abs(guess / truth - 1))

        median = {name: float(np.median(values)) for name, values in errors.items()}
        assert "forecast" == min(median, key=lambda name: median[name]), median
        assert median["forecast"] < 0.03
        assert 0.85 <= np.mean(inside)


class TestNodes:
    def test_beyond_a_boundary_that_was_measured_only_the_points_beyond_count(self):
        known = [1, 2, 3, 4, 8]
        table = points(known, [YOLO[n] for n in known], nodes=[1, 1, 1, 1, 2])
        forecasts = predict(table, workers=[16, 32, 64])[""]
        assert [4, 8, 16] == [f.nodes for f in forecasts]
        for forecast in forecasts:
            assert forecast.low < YOLO[forecast.workers] < forecast.high
            assert YOLO[forecast.workers] == pytest.approx(forecast.samples_per_s, rel=0.4)

    def test_a_boundary_that_nobody_measured_is_a_wide_interval_and_a_doubt(self):
        known = [1, 2, 3, 4]
        table = points(known, [YOLO[n] for n in known], nodes=1)
        inside, across = predict(table, workers=[4, 16], workers_per_node=4)[""]
        assert (1, 4) == (inside.nodes, across.nodes)
        assert across.high / across.low > 4
        assert across.low < YOLO[16] < across.high
        assert any("no measured point spans several nodes" in doubt for doubt in across.doubts)

    def test_good_scaling_inside_a_node_does_not_promise_the_same_across(self):
        # The same source: BERT, batch 11. 4 workers on one node reach 95 %, 64 on sixteen nodes 36 %.
        table = points([1, 2, 3, 4], [12.861, 25.502, 36.977, 49.044], nodes=1)
        for workers, truth in ((16, 94.63), (64, 300.14)):
            forecast = one(table, workers, workers_per_node=4)
            assert forecast.low < truth < forecast.high < 1.1 * workers * 12.861

    def test_exposed_synchronisation_lowers_the_forecast_across_nodes(self):
        rows = {"nodes": 1, "batch_size": 10.0}
        quick, slow = (
            one(points([1, 2, 4], [100, 198, 390], sync_s=sync, **rows), 8, workers_per_node=4)
            for sync in (0.001, 0.03)
        )
        assert slow.samples_per_s < 0.6 * quick.samples_per_s

    def test_nodes_follow_from_workers_per_node_or_from_the_points(self):
        table = points([8, 16], [800, 1590], nodes=[1, 2])
        assert [1, 1, 2, 3] == [f.nodes for f in predict(table, workers=[4, 8, 12, 24])[""]]
        assert [1, 2, 3, 6] == [f.nodes for f in predict(table, workers=[4, 8, 12, 24], workers_per_node=4)[""]]
        assert one(points([8, 16], [800, 1590]), 32).nodes is None
        assert 4 == one(points([8, 16], [800, 1590], workers_per_node=8.0), 32).nodes

    def test_unknown_nodes_are_a_doubt(self):
        assert any("nodes are not known" in doubt for doubt in one(points([1, 2, 4], [100, 190, 370]), 8).doubts)


class TestForm:
    def test_json(self):
        found = one(points([1, 2, 4], [100, 190, 370], nodes=1), 4, workers_per_node=4).to_dict()
        assert ["workers", "nodes", "samples_per_s", "low", "high", "law"] == list(found)
        assert (4, 1) == (found["workers"], found["nodes"])

    def test_series_come_sorted_and_requests_in_their_order(self):
        table = points([1, 2, 4] * 2, [100, 190, 370, 50, 99, 190], series=["b"] * 3 + ["a"] * 3)
        found = predict(table, workers=[16, 8, 16])
        assert ["a", "b"] == list(found)
        assert [16, 8, 16] == [f.workers for f in found["a"]]

    def test_row_order_unit_and_input(self):
        table = points([1, 2, 4, 8] * 3, [100, 190, 365, 700, 101, 191, 366, 695, 99, 188, 360, 702])
        copy = table.copy(deep=True)
        first, shuffled = one(table, 32), one(table.sample(frac=1, random_state=1), 32)
        scaled = one(table.assign(samples_per_s=table["samples_per_s"] * 1000), 32)

        pd.testing.assert_frame_equal(copy, table)
        assert first == one(table, 32)
        assert first.samples_per_s == pytest.approx(shuffled.samples_per_s)
        assert 1000 * first.low == pytest.approx(scaled.low)

    def test_far_requests_and_mixed_units_are_doubted(self):
        assert any("1000 workers is more than 4 times away" in d for d in one(points([1, 2], [1, 2]), 1000).doubts)
        odd = one(points([1, 2, 4, 8], [100, 200, 400_000, 700]), 16)
        assert any("throughput at 4 workers contradicts the other points" in doubt for doubt in odd.doubts)

    def test_from_a_points_file(self):
        text = "workers,samples_per_s,nodes\n1,331,1\n8,2585,1\n16,5041,2\n"
        forecast = one(parse_points(text, "efficientnet.csv"), 32)
        assert 4 == forecast.nodes
        assert forecast.low < 9379 < forecast.high


class TestBadInput:
    def test_one_distinct_worker_count(self):
        message = "all have 4 workers; a forecast needs at least 2 distinct worker counts, better 4"
        with pytest.raises(AnalysisError, match=message):
            predict(points([4, 4], [1, 2]), workers=[8])
        with pytest.raises(AnalysisError, match="series 'b'"):
            predict(points([1, 2, 4, 4], [1, 2, 3, 4], series=["a", "a", "b", "b"]), workers=[8])

    @pytest.mark.parametrize("count", [0, -4, 2.5])
    def test_impossible_request(self, count):
        with pytest.raises(AnalysisError, match=f"cannot forecast {count} workers: worker counts are whole numbers"):
            predict(points([1, 2], [1, 2]), workers=[count])

    def test_impossible_node(self):
        with pytest.raises(AnalysisError, match="0 workers per node: a node has at least 1 worker"):
            predict(points([1, 2], [1, 2]), workers=[4], workers_per_node=0)

    def test_impossible_points(self):
        with pytest.raises(AnalysisError, match="0 at 2 workers is no throughput"):
            predict(points([1, 2], [1, 0]), workers=[4])
