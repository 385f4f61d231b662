"""Forecasts: physical limits, intervals that widen and cover, node boundaries, published curves."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples

from horovod_study.analysis.fit.fitting import fit_series
from horovod_study.analysis.forecast.prediction import predict, score
from horovod_study.analysis.importers import parse_points
from horovod_study.analysis.laws import LAWS
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.records import finite

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


# Speedups, from which sweeps are simulated: every law of the combination and some that are not in it.
TRUTHS = {
    "ideal": lambda n: n,
    "linear": lambda n: 0.8 * n + 0.2,
    "amdahl": lambda n: n / (1 + 0.02 * (n - 1)),
    "amdahl, half lost": lambda n: n / (1 + 0.2 * (n - 1)),
    "gustafson": lambda n: 0.1 + 0.9 * n,
    "usl": lambda n: n / (1 + 0.05 * (n - 1) + 0.001 * n * (n - 1)),
    "power": lambda n: n**0.8,
    "ring": lambda n: n / (1 + 0.3 * (n - 1) / n),
    "ring with latency": lambda n: n / (1 + 0.3 * (n - 1) / n + 0.002 * (n - 1)),
    "tree": lambda n: n / (1 + 0.1 * np.ceil(np.log2(n))),
    "overlap": lambda n: n / (1 + ((n - 1) / n) ** 4) ** 0.25,
}


def points(workers, samples_per_s, **columns):
    return pd.DataFrame({"workers": workers, "samples_per_s": np.asarray(samples_per_s, dtype=float), **columns})


def one(table, workers, **options):
    return predict(table, workers=[workers], **options)[""][0]


curves = st.lists(st.floats(1.0, 1e6), min_size=2, max_size=7)
asked = st.lists(st.integers(1, 100_000), min_size=1, max_size=4)


class TestLimits:
    @given(values=curves, workers=asked, data=st.data())
    @settings(max_examples=examples(150))
    def test_never_above_ideal_never_negative_never_outside_its_interval(self, values, workers, data):
        size = len(values)
        counts = data.draw(st.lists(st.integers(1, 4096), min_size=size, max_size=size, unique=True))
        best = max(x / n for x, n in zip(values, counts, strict=True))
        for forecast in predict(points(counts, values), workers=workers)[""]:
            assert 0 < forecast.samples_per_s <= forecast.workers * best * (1 + 1e-9)
            assert 0 < forecast.low <= forecast.samples_per_s <= forecast.high
            json.dumps(finite(forecast), allow_nan=False)

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

    @pytest.mark.parametrize("truth", TRUTHS)
    @pytest.mark.parametrize("counts", [[1, 2, 4, 8, 16], [1, 2, 3, 4, 6, 8, 12, 16]])
    def test_points_of_one_law_without_noise_are_continued_by_it(self, truth, counts):
        n = np.array(counts, dtype=float)
        forecast = one(points(counts, 100 * TRUTHS[truth](n)), 32)
        assert 100 * TRUTHS[truth](32.0) == pytest.approx(forecast.samples_per_s, rel=0.03)

    def test_more_counts_of_one_law_carry_further(self):
        n = np.arange(1, 17)
        forecast = one(points(n, 100 * TRUTHS["amdahl"](n)), 128)
        assert 100 * TRUTHS["amdahl"](128) == pytest.approx(forecast.samples_per_s, rel=0.01)

    def test_retrograde_scaling_that_the_points_show_is_forecast(self):
        n = np.arange(1, 25)
        forecast = one(points(n, 100 * LAWS["usl"].curve(n, alpha=0.05, beta=0.005)), 64)
        truth = 100 * float(LAWS["usl"].curve(64, alpha=0.05, beta=0.005))
        assert truth == pytest.approx(forecast.samples_per_s, rel=0.03)
        assert "usl" == forecast.law

    @pytest.mark.parametrize(
        ("counts", "rates"),
        [([8, 16], [790, 800]), ([1, 2, 4, 8], [420, 589, 703, 635]), ([1, 2, 4, 8, 16], [100, 195, 380, 700, 560])],
    )
    @pytest.mark.parametrize("told", [{}, {"batch_size": 32.0}])
    def test_where_scaling_has_turned_back_no_more_is_promised(self, counts, rates, told):
        found = predict(points(counts, rates, **told), workers=[2 * counts[-1], 4 * counts[-1]])[""]
        assert rates[-1] * 1.001 >= found[0].samples_per_s >= found[1].samples_per_s * 0.999
        for q, each in zip((2, 4), found, strict=True):
            assert each.low <= rates[-1] * 2 * q / (1 + q * q) * 1.001, "as from the peak of Gunther's law"
            assert f"{rates[-2]:g} at {counts[-2]:g} and {rates[-1]:g} at" in each.doubts[0]

    def test_a_new_node_and_a_neighbour_are_no_turn(self):
        for counts, rates, nodes in (([2, 4, 8], [200, 390, 395], [1, 1, 2]), ([6, 7, 8], [590, 695, 690], [1, 1, 1])):
            found = one(points(counts, rates, nodes=nodes), 16)
            assert found.samples_per_s > 1.3 * rates[-1]
            assert not any("no longer rises" in doubt for doubt in found.doubts)


class TestInterval:
    @given(values=curves, data=st.data())
    @settings(max_examples=examples(60))
    def test_never_narrows_with_distance(self, values, data):
        """From the last known count on, the ratio of the ends of the interval never falls; any points, any nodes."""
        size = len(values)
        counts = data.draw(st.lists(st.integers(1, 512), min_size=size, max_size=size, unique=True))
        per_node = data.draw(st.one_of(st.none(), st.integers(1, 1024)))
        asked = sorted({int(max(counts) * 2 ** (k / 2)) for k in range(1, 22)} - {max(counts)})
        forecasts = predict(points(counts, values), workers=asked, workers_per_node=per_node)[""]
        widths = [math.log(f.high / f.low) for f in forecasts]
        assert all(wider >= width - 1e-9 for width, wider in itertools.pairwise(widths))

    def test_does_not_depend_on_what_else_is_asked(self):
        table = points([1, 2, 4, 8], [100, 190, 365, 700])
        alone = one(table, 32)
        assert alone == predict(table, workers=[4096, 32, 3, 1])[""][1]

    def test_one_wild_repeat_hardly_widens_it(self):
        n = np.repeat([1, 2, 4, 8], 5)
        good = 100 * n * (1 + 0.01 * np.tile([-1.5, -0.5, 0, 0.5, 1.5], 4))
        wild = good.copy()
        wild[-1] *= 0.5
        calm, rough = one(points(n, good), 16), one(points(n, wild), 16)
        assert calm.samples_per_s == pytest.approx(rough.samples_per_s, rel=0.02)
        assert rough.high / rough.low < 1.3 * calm.high / calm.low

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
    @pytest.mark.parametrize("truth", TRUTHS)
    def test_simulated_sweeps_are_covered(self, truth):
        """From N <= 16 with 2 % noise to 32, 64, 128: at least 88 % of 100 seeds, whichever law made the points."""
        n, ahead = np.array([1.0, 2, 4, 8, 16]), np.array([32.0, 64, 128])
        inside, widths = [], []
        for seed in range(100):
            generator = np.random.default_rng(seed)
            known = 100 * TRUTHS[truth](n) * (1 + 0.02 * generator.standard_normal(5))
            measured = 100 * TRUTHS[truth](ahead) * (1 + 0.02 * generator.standard_normal(3))
            forecasts = predict(points(n, known), workers=[32, 64, 128])[""]
            inside += [f.low <= x <= f.high for f, x in zip(forecasts, measured, strict=True)]
            widths.append(forecasts[0].high / forecasts[0].low)
        assert 0.88 <= np.mean(inside)
        assert np.median(widths) < 3  # one doubling ahead: an interval that says something


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

    def test_a_boundary_that_nobody_measured_is_a_wide_interval_and_a_doubt(self, golden):
        known = [1, 2, 3, 4]
        table = points(known, [YOLO[n] for n in known], nodes=1)
        inside, across = predict(table, workers=[4, 16], workers_per_node=4)[""]
        assert (1, 4) == (inside.nodes, across.nodes)
        assert across.high / across.low > 4
        assert across.low < YOLO[16] < across.high
        golden(across.doubts)

    def test_good_scaling_inside_a_node_does_not_promise_the_same_across(self):
        # The same source: BERT, batch 11. 4 workers on one node reach 95 %, 64 on sixteen nodes 36 %.
        table = points([1, 2, 3, 4], [12.861, 25.502, 36.977, 49.044], nodes=1)
        for workers, truth in ((16, 94.63), (64, 300.14)):
            forecast = one(table, workers, workers_per_node=4)
            assert forecast.low < truth < forecast.high < 1.1 * workers * 12.861

    def test_a_ring_with_a_boundary_is_forecast_from_two_nodes_on(self):
        """Inside a node of 8 the step grows with every worker, across nodes as a ring: closed form, no noise."""

        def truth(n):
            n, nodes = np.asarray(n, dtype=float), np.ceil(np.asarray(n) / 8)
            return 100 * n / (1 + 0.05 * (np.minimum(n, 8) - 1) + 0.1 * (1 - 1 / nodes))

        known, asked = [1, 2, 4, 8, 16, 24], [32, 64, 128, 256]
        table = points(known, truth(known), nodes=np.ceil(np.array(known) / 8))
        for forecast in predict(table, workers=asked)[""]:
            assert truth(forecast.workers) == pytest.approx(forecast.samples_per_s, rel=0.10)
            assert forecast.low < truth(forecast.workers) < forecast.high

    def test_contention_inside_a_node_ends_with_the_node(self):
        """Eight workers share one bus and have a third of their speed left; more nodes have more buses."""
        n = np.array([1, 2, 4, 8])
        table = points(n, 100 * n / (1 + 0.3 * (n - 1)), nodes=1)
        forecast = one(table, 64, workers_per_node=8)
        assert forecast.samples_per_s / 64 > 0.7 * 100 / 3.1
        assert one(table, 64, workers_per_node=64).samples_per_s < 0.7 * forecast.samples_per_s

    def test_partly_filled_nodes_stand_between_their_own_kind(self):
        """5 to 7 workers on nodes of 4 have crossed the boundary: they are with 8, not halfway to 4."""
        table = points([1, 2, 4, 8, 16], [100, 196, 384, 400, 800], nodes=[1, 1, 1, 2, 4])
        three, five = predict(table, workers=[3, 5])[""]
        assert (1, 2) == (three.nodes, five.nodes)
        assert 3 * 96 <= three.samples_per_s <= 3 * 98
        assert 5 * 50 == pytest.approx(five.samples_per_s)

    def test_the_node_is_filled_before_the_network_costs_anything(self):
        table = points([1, 2, 4], [100, 196, 384], nodes=1)
        inside, across = predict(table, workers=[8, 9], workers_per_node=8)[""]
        assert (1, 2) == (inside.nodes, across.nodes)
        assert inside.samples_per_s / 8 > 1.02 * across.samples_per_s / 9
        assert [] == [doubt for doubt in inside.doubts if "network" in doubt]

    def test_exposed_synchronisation_lowers_the_forecast_across_nodes(self):
        rows = {"nodes": 1, "batch_size": 10.0}
        quick, slow = (
            one(points([1, 2, 4], [100, 198, 390], sync_s=sync, **rows), 8, workers_per_node=4)
            for sync in (0.001, 0.03)
        )
        assert slow.samples_per_s < 0.99 * quick.samples_per_s
        assert slow.low < 0.9 * quick.low

    def test_nodes_follow_from_workers_per_node_or_from_the_points(self):
        table = points([8, 16], [800, 1590], nodes=[1, 2])
        assert [1, 1, 2, 3] == [f.nodes for f in predict(table, workers=[4, 8, 12, 24])[""]]
        assert [1, 2, 3, 6] == [f.nodes for f in predict(table, workers=[4, 8, 12, 24], workers_per_node=4)[""]]
        assert one(points([8, 16], [800, 1590]), 32).nodes is None
        assert 4 == one(points([8, 16], [800, 1590], workers_per_node=8.0), 32).nodes

    def test_unknown_nodes_are_a_doubt(self):
        assert any("node size unknown" in doubt for doubt in one(points([1, 2, 4], [100, 190, 370]), 8).doubts)


class TestSynchronisation:
    def test_sync_seconds_correct_a_throughput_that_misleads(self):
        """A second worker slows computing once, then every worker adds 5 ms of synchronisation: throughput levels off.

        From throughput alone the level part looks as if it went on; the seconds say that it does not.
        """
        batch, asked = 10.0, [8, 12, 16]
        known = np.array([1, 2, 3, 4])

        def sync_s(n):
            return 0.005 * (np.asarray(n, dtype=float) - 1)

        def samples_per_s(n):
            return np.asarray(n) * batch / (np.where(np.asarray(n) > 1, 0.15, 0.1) + sync_s(n))

        table = points(known, samples_per_s(known), nodes=1)
        told = table.assign(sync_s=sync_s(known), batch_size=batch)
        errors = [
            np.array([f.samples_per_s / samples_per_s(f.workers) - 1 for f in predict(each, workers=asked)[""]])
            for each in (table, told)
        ]
        assert (np.abs(errors[1]) < 0.75 * np.abs(errors[0])).all()
        weights = one(told, 8).weights
        assert "sync linear" == max(weights, key=lambda name: weights[name])

    def test_seconds_count_between_nodes_too(self):
        n = np.array([8, 16, 32])
        seconds = 0.01 * np.log2(n / 4)
        table = points(n, n * 10 / (0.1 + seconds), nodes=n / 8, sync_s=seconds, batch_size=10.0)
        assert one(table, 64).weights["sync tree"] > 0

    def test_seconds_without_batch_sizes_or_only_here_and_there_are_left_alone(self):
        known, rates = [1, 2, 4], [100, 190, 365]
        plain = one(points(known, rates), 16)
        assert plain == one(points(known, rates, sync_s=0.01), 16)
        some = one(points(known, rates, sync_s=[0.01, np.nan, 0.02], batch_size=10.0), 16)
        assert not any(name.startswith("sync ") for name in some.weights)


class TestStrongScaling:
    def test_a_fixed_global_batch_makes_amdahl_likely(self):
        n = np.array([1, 2, 4, 8])
        rates = 100 * LAWS["amdahl"].curve(n, s=0.05)
        weak, strong = (one(points(n, rates, batch_size=batch), 64) for batch in (64.0, 64 / n))
        truth = 100 * float(LAWS["amdahl"].curve(64, s=0.05))
        assert strong.weights["amdahl"] > weak.weights["amdahl"]
        assert "tree of fixed work" in strong.weights
        assert abs(strong.samples_per_s / truth - 1) < abs(weak.samples_per_s / truth - 1)
        assert strong.low < truth < strong.high


def bench(alpha_s, beta_bytes_per_s, *, hosts=2, workers=2, flat_bytes=1e8):
    """The content of a bench.json, as far as a forecast reads it."""
    fit = {"alpha_s": alpha_s, "beta_bytes_per_s": beta_bytes_per_s}
    ranks = [{"host": f"node{rank % hosts}"} for rank in range(workers)]
    return {
        "workers": workers,
        "model": {"flat_bytes": flat_bytes},
        "fits": {"nccl": fit},
        "measured": [{"conditions": {"ranks": ranks}}],
    }


class TestMicroBenchmark:
    def test_an_all_reduce_measured_between_hosts_replaces_the_guess(self, golden):
        """100 MB at 1 GB/s, ring: 2 (n-1)/n 0.1 s beside 0.1 s of computing."""
        table = points([1, 2, 4], [1000, 1990, 3960], nodes=1, batch_size=100.0)
        truth = 16 * 100 / (0.1 * 4000 / 3960 + 2 * 15 / 16 * 0.1)
        guessed = one(table, 16, workers_per_node=4)
        told = one(table, 16, workers_per_node=4, bench=bench(1e-6, 1e9))
        assert truth == pytest.approx(told.samples_per_s, rel=0.05)
        assert abs(told.samples_per_s - truth) < 0.2 * abs(guessed.samples_per_s - truth)
        assert told.low < truth < told.high < guessed.samples_per_s
        golden(told.doubts)

    def test_one_host_says_nothing_of_the_network_but_counts_inside_the_node(self, golden):
        table = points([1, 2], [1000, 1818.2], nodes=1, batch_size=100.0)
        inside, across = predict(table, workers=[8, 16], workers_per_node=8, bench=bench(1e-6, 1e10, hosts=1))[""]
        assert inside.weights["bench"] > 0
        golden(across.doubts)

    def test_without_batch_sizes_it_is_not_used_and_that_is_said(self, golden):
        table = points([1, 2, 4], [1000, 1990, 3960], nodes=1)
        told = one(table, 16, workers_per_node=4, bench=bench(1e-6, 1e9))
        golden(told.doubts)
        assert one(table, 16, workers_per_node=4).samples_per_s == told.samples_per_s

    @pytest.mark.parametrize("broken", [{}, {"model": {}}, {"model": {"flat_bytes": "many"}}])
    def test_a_file_that_is_none(self, broken, golden):
        with golden.raises(AnalysisError, match=r"bench\.json"):
            predict(points([1, 2], [1, 2]), workers=[4], bench=broken)
        with golden.raises(AnalysisError):
            predict(points([1, 2], [1, 2]), workers=[4], bench={**bench(1e-6, 1e9), "fits": {}})


class TestForm:
    def test_json(self):
        found = finite(one(points([1, 2, 4], [100, 190, 370], nodes=1), 4, workers_per_node=4))
        assert ["workers", "nodes", "samples_per_s", "low", "high", "law", "weights", "ideal", "doubts"] == list(found)
        assert (4, 1) == (found["workers"], found["nodes"])
        assert 400 == pytest.approx(found["ideal"])
        assert found == json.loads(json.dumps(found, allow_nan=False))

    def test_weights_name_the_laws_and_sum_to_one(self):
        forecast = one(points([1, 2, 4, 8], [100, 190, 370, 720]), 32)
        laws = {"ring", "ring with latency", "tree", "linear", "power", "constant efficiency", "amdahl", "usl"}
        assert laws == set(forecast.weights)
        assert 1 == pytest.approx(sum(forecast.weights.values()))
        assert {} == one(points([1, 2, 4], [100, 190, 370]), 2).weights

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
        assert first == shuffled
        assert first == one(pd.concat([table, table[::-1]]), 32)
        assert 1000 * first.low == pytest.approx(scaled.low)

    def test_far_requests_and_mixed_units_are_doubted(self, golden):
        golden(one(points([1, 2], [1, 2]), 1000).doubts, "1000 workers", "4 times")
        odd = one(points([1, 2, 4, 8], [100, 200, 400_000, 700]), 16)
        golden(odd.doubts, "4 workers")

    def test_a_point_in_another_unit_does_not_wreck_the_forecast(self):
        rates = [100, 195, 380, 740, 1440]
        for i in range(5):
            mixed = [rate * (1000 if k == i else 1) for k, rate in enumerate(rates)]
            fixed = [rate for k, rate in enumerate(rates) if k != i]
            counts = [n for k, n in enumerate([1, 2, 4, 8, 16]) if k != i]
            found = one(points([1, 2, 4, 8, 16], mixed), 64)
            assert found.samples_per_s == one(points(counts, fixed), 64).samples_per_s
            assert any("mixed units" in doubt for doubt in found.doubts)

    def test_a_million_workers(self):
        for curve in ([100, 200, 400, 800], [100, 150, 160, 150], [1e-9, 1e-9, 1e-9, 1e-9], [1e15, 2e15, 3e15, 3e15]):
            found = one(points([1, 2, 4, 8], curve, nodes=1), 1_000_000, workers_per_node=8)
            assert 0 < found.low <= found.samples_per_s <= found.high <= 1.1 * found.ideal < math.inf

    def test_nothing_asked_is_nothing_forecast(self):
        assert {"": []} == predict(points([1, 2, 4], [100, 190, 360]), workers=[])

    def test_forecast_at_a_measured_count_is_its_median(self):
        table = points([1, 2, 4, 4, 4], [100, 190, 360, 365, 500])
        assert 365 == pytest.approx(one(table, 4).samples_per_s)

    def test_from_a_points_file(self):
        text = "workers,samples_per_s,nodes\n1,331,1\n8,2585,1\n16,5041,2\n"
        forecast = one(parse_points(text, "efficientnet.csv"), 32)
        assert 4 == forecast.nodes
        assert forecast.low < 9379 < forecast.high


class TestBadInput:
    def test_one_distinct_worker_count(self):
        message = "all points have 4 workers; a forecast needs at least 2 distinct worker counts, better 4"
        with pytest.raises(AnalysisError, match=message):
            predict(points([4, 4], [1, 2]), workers=[8])
        with pytest.raises(AnalysisError, match="series 'b'"):
            predict(points([1, 2, 4, 4], [1, 2, 3, 4], series=["a", "a", "b", "b"]), workers=[8])

    @pytest.mark.parametrize("count", [0, -4, 2.5])
    def test_impossible_request(self, count, golden):
        with golden.raises(ConfigError, match=f"{count}"):
            predict(points([1, 2], [1, 2]), workers=[count])

    def test_impossible_node(self, golden):
        with golden.raises(ConfigError, match="--workers-per-node is 0"):
            predict(points([1, 2], [1, 2]), workers=[4], workers_per_node=0)

    def test_impossible_points(self, golden):
        with golden.raises(AnalysisError, match="2 workers"):
            predict(points([1, 2], [1, 0]), workers=[4])


class TestBatch:
    """A batch per worker that changes with the scale, and is told."""

    STEP = staticmethod(lambda n, batch, growth=0.0: 1e-2 + 1e-3 * batch + growth * math.log2(n))

    def table(self, batches, growth=0.0, repeats=1):
        n = np.repeat(list(batches), repeats)
        b = np.repeat(list(batches.values()), repeats).astype(float)
        return points(n, [w * one / self.STEP(w, one, growth) for w, one in zip(n, b, strict=True)], batch_size=b)

    def test_a_step_that_is_linear_in_the_batch_is_followed(self):
        known = self.table({1: 256, 4: 64, 16: 128})

        for workers, batch in ((32, 128), (64, 32), (256, 200)):
            found = one(known, workers, batch=batch)
            truth = workers * batch / self.STEP(workers, batch)
            assert found.batch_size == batch
            assert found.samples_per_s == pytest.approx(truth, rel=0.15)
            assert found.low < truth < found.high

    def test_the_step_has_a_share_that_more_counts_take_over(self):
        weak = self.table({1: 64, 2: 64, 4: 64, 8: 64})
        assert [one(weak.head(k), 16).weights["batch"] for k in (2, 3, 4)] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
        strong = one(self.table({1: 64, 2: 32}), 16)
        assert (strong.law, strong.weights) == ("batch", {"batch": 1.0})

    def test_the_same_batch_told_changes_nothing(self):
        weak, strong = self.table({1: 64, 2: 64, 4: 64}), self.table({1: 64, 2: 32, 4: 16})

        for known, options in ((weak, {"batch": 64}), (strong, {"batch": 4}), (strong, {"global_batch": 64})):
            told, untold = one(known, 16, **options), one(known, 16)
            assert (told.samples_per_s, told.low, told.high) == (untold.samples_per_s, untold.low, untold.high)

    def test_a_global_batch_is_divided(self):
        known = self.table({1: 256, 4: 64, 8: 128})

        by_total = predict(known, workers=[16, 64], global_batch=1024)[""]
        by_worker = predict(known, workers=[16, 64], batch=[64, 16])[""]

        assert by_total == by_worker
        assert [64, 16] == [each.batch_size for each in by_total]

    def test_another_batch_than_the_only_one_known_is_less_sure_and_says_what_it_assumed(self):
        known = self.table({1: 128, 2: 128, 4: 128})

        same, half, tenth = (one(known, 8, batch=batch) for batch in (128, 64, 12.8))

        widths = [math.log(each.high / each.low) for each in (same, half, tenth)]
        assert widths == sorted(widths) and widths[0] < widths[2]
        assert tenth.samples_per_s < half.samples_per_s < same.samples_per_s
        assert same.doubts != half.doubts and any("128 samples per worker" in doubt for doubt in half.doubts)

    def test_batches_that_differ_and_none_told(self):
        known = self.table({1: 256, 4: 64, 16: 128})

        found = one(known, 32)

        assert found.samples_per_s == one(known, 32, batch=128).samples_per_s
        assert any("128 samples per worker" in doubt and "--batch" in doubt for doubt in found.doubts)

    def test_one_sample_shared_by_workers_is_a_loss(self, golden):
        known = self.table({8: 8, 32: 2, 64: 2})

        whole, shared = one(known, 64, batch=1), one(known, 128, batch=0.5)

        assert shared.samples_per_s < 0.9 * whole.samples_per_s
        golden(shared.doubts)

    def test_several_batches_at_one_count_are_points_of_their_own(self):
        n, b = np.array([1, 1, 1, 2, 2]), np.array([16.0, 64.0, 256.0, 64.0, 64.0])
        known = points(n, n * b / (1e-2 + 1e-3 * b), batch_size=b)

        assert one(known, 4, batch=16).samples_per_s == pytest.approx(4 * 16 / self.STEP(4, 16), rel=0.1)

    def test_fewer_workers_than_known_have_a_forecast(self):
        known = self.table({64: 256, 128: 128, 256: 64})

        assert all(0 < each.low < each.samples_per_s < each.high for each in (one(known, n, batch=64) for n in (1, 8)))

    def test_growth_with_the_workers_is_found(self):
        batches = {1: 64, 2: 32, 4: 64, 8: 32, 16: 64, 32: 32}
        flat, growing = (one(self.table(batches, growth), 128, batch=32) for growth in (0.0, 5e-3))

        truth = 128 * 32 / self.STEP(128, 32, 5e-3)
        assert growing.samples_per_s < 0.8 * flat.samples_per_s
        assert growing.samples_per_s == pytest.approx(truth, rel=0.1)

    @pytest.mark.parametrize(
        "options",
        [
            {"batch": 0},
            {"batch": math.inf},
            {"batch": [1, 2]},
            {"batch": 1, "global_batch": 1},
        ],
    )
    def test_impossible_batches(self, options, golden):
        with golden.raises(ConfigError):
            one(self.table({1: 64, 2: 64}), 4, **options)

    def test_points_without_a_batch_have_none_to_change(self):
        with pytest.raises(AnalysisError, match="batch_size"):
            one(points([1, 2, 4], [100, 190, 360]), 8, batch=32)

    def test_hidden_counts_are_forecast_at_their_own_batch(self):
        table = self.table({1: 256, 2: 256, 4: 128, 8: 64, 16: 16})

        told = score(table, laws=())[""]
        untold = score(table.drop(columns="batch_size"), laws=())[""]

        assert told.hidden == [8, 16]
        assert told.laws["combined"]["coverage"] == 1
        assert told.laws["combined"]["worst_ape"] < 0.25 < untold.laws["combined"]["worst_ape"]
