"""Ratios of cells that alternate: known answers, what is set aside, and how often intervals hold the truth."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from make.benchmarks import load_benchmark

from horovod_study.analysis import paired
from horovod_study.analysis.paired import Pairs, Precision, Slice
from horovod_study.analysis.stats import student, t_quantile
from horovod_study.errors import AnalysisError

ROW = {"block": "a", "launch": 0, "round": 0, "position": 0, "begin_s": 1.0, "end_s": 1.5, "steps": 10}


def slices(differences: list[np.ndarray], drift: float = 0.0, load: float = 0.0) -> list[Slice]:
    """Two cells whose ratio in each round is exp of what is given."""
    found = []
    for launch, values in enumerate(differences):
        for place, value in enumerate(values):
            level = math.exp(drift * place)
            found.append(Slice(launch=f"a/{launch}", round=place, cell="1", rate=100 * level, other_load=load))
            rate = 100 * level * math.exp(value)
            found.append(Slice(launch=f"a/{launch}", round=place, cell="2", rate=rate, other_load=load))
    return found


def plain(differences: list[np.ndarray]) -> Pairs:
    return Pairs(cell=differences, base=[np.zeros_like(each) for each in differences])


def autocorrelated(generator: np.random.Generator, n: int, phi: float) -> np.ndarray:
    values = np.empty(n)
    values[0] = generator.standard_normal()
    for place in range(1, n):
        values[place] = phi * values[place - 1] + math.sqrt(1 - phi**2) * generator.standard_normal()
    return values


class TestPairs:
    def test_a_round_without_one_of_the_cells_is_none(self):
        whole = slices([np.zeros(5)])

        found = paired.pairs([each for each in whole if (each.cell, each.round) != ("2", 3)], "2", "1")

        assert [len(each) for each in found.cell] == [4]

    def test_drift_that_both_feel_drops_out(self):
        found = paired.pairs(slices([np.full(20, 0.4)], drift=0.05), "2", "1")

        estimate = paired.estimate(found)
        assert estimate.ratio.value == pytest.approx(math.exp(0.4))
        assert estimate.half_width == pytest.approx(0, abs=1e-9) and estimate.cancelled == pytest.approx(1)

    def test_a_difference_of_values_that_do_not_scatter_in_a_launch_is_that_of_launches(self):
        made = [
            Slice(launch=f"a/{launch}", round=number, cell=cell, rate=value)
            for launch, known in enumerate((1.0, 2.0, 6.0))
            for number in range(20)
            for cell, value in (("2", known - 4.0), ("1", -4.0))
        ]

        found, launches = paired.difference(paired.pairs(made, "2", "1", ratio=False))

        known = student([1.0, 2.0, 6.0])
        assert launches == 3 and (found.value, found.low, found.high) == pytest.approx((3.0, known.low, known.high))

    def test_what_other_programs_load_is_set_aside_whatever_its_rate(self):
        values = np.array([0.4, 0.4, 5.0, 0.4, 0.4, -5.0])
        loud = [
            Slice(
                launch=s.launch, round=s.round, cell=s.cell, rate=s.rate, other_load=0.5 if s.round in (2, 5) else 0.05
            )
            for s in slices([values])
        ]

        found = paired.pairs(loud, "2", "1")

        assert found.differences[0] == pytest.approx(np.full(4, 0.4))
        assert (found.set_aside, found.shared) == (2, False)

    def test_the_load_of_either_slice_sets_the_round_aside(self):
        one = slices([np.zeros(8)])
        one[0] = Slice(launch="a/0", round=0, cell="1", rate=1.0, other_load=0.3)
        one[3] = Slice(launch="a/0", round=1, cell="2", rate=1.0, other_load=0.3)

        assert paired.pairs(one, "2", "1").set_aside == 2

    def test_of_a_slice_that_was_made_again_the_last_one_counts(self):
        first, again = slices([np.full(8, 0.4)]), slices([np.zeros(8)], load=0.7)
        made = [
            each
            for one, other in zip(again, first, strict=True)
            for each in ((one, other) if one.round < 3 else (other,))
        ]

        found = paired.pairs(made, "2", "1")

        assert found.differences[0] == pytest.approx(np.full(8, 0.4))
        assert (found.set_aside, found.shared) == (6, False), "three slices of each cell were made again"
        assert found.made[0].tolist() == [3, 6, 9, 10, 11, 12, 13, 14]

    def test_a_launch_on_a_busy_machine_ends_with_few_quiet_rounds(self):
        values = np.full(16, 0.4) + 0.001 * np.arange(16) % 3
        for quiet, done in ((3, False), (4, True), (16, True)):
            loud = [replace(s, other_load=0.5 if s.round % 16 < 16 - quiet else 0.0) for s in slices([values])]
            calm = slices([values, values])  # launches before, so that the machine is no shared one
            made = [*calm, *(replace(each, launch="a/2") for each in loud)]

            assert Precision(half_width=0.08).verdict("2", "1", paired.pairs(made, "2", "1")).launch_done is done

    def test_a_launch_without_a_quiet_round_is_the_present_one_all_the_same(self):
        quiet = slices([np.full(40, 0.4)])
        loud = [Slice(launch="a/1", round=s.round, cell=s.cell, rate=s.rate, other_load=1.0) for s in quiet[:20]]

        found = paired.pairs([*quiet, *loud], "2", "1")

        assert [len(each) for each in found.cell] == [40, 0]
        assert not Precision().verdict("2", "1", found).launch_done
        assert paired.estimate(found).launches == 1

    def test_with_too_few_quiet_rounds_all_count_and_the_machine_is_shared(self):
        found = paired.pairs(slices([np.zeros(12)], load=0.7), "2", "1")

        assert found.shared and found.set_aside == 0 and len(found.cell[0]) == 12

    def test_load_that_is_not_known_counts_as_quiet_and_is_counted(self):
        found = paired.pairs(slices([np.zeros(12)], load=math.nan), "2", "1")

        assert not found.shared and found.unknown_load == 12


class TestMemory:
    def test_independent_rounds_have_hardly_any(self):
        generator = np.random.default_rng(1)
        found = [paired.memory([generator.standard_normal(200) for _ in range(3)]) for _ in range(50)]

        assert np.mean([each.variance for each in found]) == pytest.approx(1, rel=0.15)
        assert np.median([each.rounds for each in found]) < 1.6

    @pytest.mark.parametrize(("phi", "time"), [(0.5, 3), (0.8, 9)])
    def test_of_an_autoregressive_process_is_what_theory_says(self, phi, time):
        """(1 + phi) / (1 - phi) rounds say as much as an independent one."""
        generator = np.random.default_rng(2)
        found = [paired.memory([autocorrelated(generator, 1000, phi)]) for _ in range(40)]

        assert np.mean([each.variance for each in found]) == pytest.approx(time, rel=0.15)

    def test_without_scatter_nothing_is_divided(self):
        assert paired.memory([np.ones(10), np.ones(5)]).variance == 0


class TestEstimate:
    def test_a_stall_moves_the_ratio_by_no_more_than_its_bound(self):
        generator = np.random.default_rng(3)
        values = 0.4 + 0.02 * generator.standard_normal(100)
        values[50] = -3.0

        estimate = paired.estimate(plain([values]))

        assert estimate.stalls == 1 and math.log(estimate.ratio.value) == pytest.approx(0.4, abs=0.01)

    def test_one_launch_says_nothing_of_launches(self):
        estimate = paired.estimate(plain([np.random.default_rng(4).standard_normal(50)]))

        assert estimate.launches == 1 and math.isnan(estimate.launch_sd) and estimate.ratio.known

    def test_launches_with_levels_of_their_own_decide_with_students_t(self):
        """Three launches far apart: the interval is that of three values."""
        generator = np.random.default_rng(5)
        levels = np.array([0.0, 0.3, 0.6])
        launches = [each + 0.001 * generator.standard_normal(100) for each in levels]

        estimate = paired.estimate(plain(launches))

        assert estimate.launch_sd == pytest.approx(0.3, rel=0.01)
        assert estimate.half_width == pytest.approx(t_quantile(0.975, 2.0) * 0.3 / math.sqrt(3), rel=0.01)
        assert estimate.round_error < 0.001

    def test_it_is_never_narrower_than_rounds_alone(self):
        generator = np.random.default_rng(6)
        values = generator.standard_normal(50)
        launches = [values, values[::-1], values]  # equal means

        estimate = paired.estimate(plain(launches))

        assert estimate.launch_sd == 0 and estimate.half_width > 1.9 * 0.8 / math.sqrt(150)

    def test_a_launch_that_has_only_begun_is_not_counted(self):
        generator = np.random.default_rng(7)
        whole = [generator.standard_normal(40) for _ in range(3)]

        assert paired.estimate(plain([*whole, whole[0][:5]])).launches == 3
        assert paired.estimate(plain([*whole, whole[0][:20]])).launches == 4

    def test_no_round_is_no_estimate(self):
        assert paired.estimate(plain([])) is None and paired.estimate(plain([np.ones(1)])) is None

    def test_exchanging_the_cells_inverts_the_ratio(self):
        generator = np.random.default_rng(8)
        launches = [generator.standard_normal(30) for _ in range(3)]
        there, back = paired.estimate(plain(launches)), paired.estimate(plain([-each for each in launches]))

        assert there.ratio.value * back.ratio.value == pytest.approx(1)
        assert there.ratio.low * back.ratio.high == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize(("launch_sd", "phi"), [(0.0, 0.0), (0.0, 0.8), (0.2, 0.0), (1.0, 0.5)])
def test_intervals_hold_the_truth(launch_sd, phi):
    """400 studies of four launches; 95 % intervals, give or take five standard deviations of that count."""
    generator = np.random.default_rng(9)
    hits = 0
    for _ in range(400):
        launches = [autocorrelated(generator, 60, phi) + launch_sd * generator.standard_normal() for _ in range(4)]
        ratio = paired.estimate(plain(launches)).ratio
        hits += ratio.low <= 1 <= ratio.high

    assert 0.90 < hits / 400 < 0.995


class TestPrecision:
    def run(
        self, precision: Precision, noise: Callable[[int], np.ndarray], most: int = 12
    ) -> tuple[paired.RatioVerdict, int]:
        launches: list[np.ndarray] = []
        while len(launches) < most:
            whole = noise(2000)
            for length in range(1, 2001):
                verdict = precision.verdict("2", "1", plain([*launches, whole[:length]]))
                if verdict.launch_done:
                    break
            launches.append(whole[:length])
            if verdict.resolved:
                break
        return verdict, sum(map(len, launches))

    def test_it_ends_when_the_width_is_reached_and_not_before(self):
        generator = np.random.default_rng(10)
        verdict, _ = self.run(Precision(half_width=0.03), lambda n: 0.05 * generator.standard_normal(n))

        assert verdict.resolved and verdict.estimate.half_width <= 0.03 and verdict.estimate.launches >= 3
        assert (verdict.rounds, verdict.launches) == (0, 0)

    @pytest.mark.slow
    def test_twice_the_noise_takes_about_four_times_the_rounds(self):
        generator = np.random.default_rng(11)
        few = [self.run(Precision(), lambda n: 0.1 * generator.standard_normal(n))[1] for _ in range(6)]
        many = [self.run(Precision(), lambda n: 0.2 * generator.standard_normal(n))[1] for _ in range(6)]

        assert 2.5 < np.median(many) / np.median(few) < 6

    def test_asking_after_every_round_changes_nothing(self):
        """A launch is judged at the lengths of a schedule, however often it is asked for."""
        generator = np.random.default_rng(12)
        launch = 0.05 * generator.standard_normal(400)
        done = [Precision().verdict("2", "1", plain([launch[:n]])).launch_done for n in range(1, 400)]
        first = done.index(True) + 1

        assert first in {16, 20, 25, 32, 40, 50, 63, 79} and not any(done[: first - 1])

    def test_launches_that_differ_are_said_to_take_more_launches(self):
        generator = np.random.default_rng(13)
        launches = [0.1 * level + 0.01 * generator.standard_normal(50) for level in (0, 1, 2)]
        verdict = Precision().verdict("2", "1", plain(launches))

        assert not verdict.resolved and verdict.launches > 50 and verdict.rounds >= 16 * verdict.launches

    def test_before_anything_is_known_nothing_is_expected(self):
        verdict = Precision().verdict("2", "1", plain([np.zeros(3)]))

        assert (verdict.resolved, verdict.launch_done, verdict.rounds, verdict.launches) == (False, False, None, None)

    def test_each_wanted_ratio_has_its_verdict(self):
        found = Precision().judge(slices([np.full(20, 0.4)] * 3), [("2", "1"), ("3", "1")])

        assert [each.resolved for each in found] == [True, False] and found[1].estimate is None

    @pytest.mark.parametrize("what", [{"half_width": 0.0}, {"half_width": 1.0}, {"launches": 0}, {"launches": 11}])
    def test_an_aim_that_is_none_is_refused(self, what):
        with pytest.raises(AnalysisError):
            Precision(**what)


@pytest.mark.slow
def test_studies_that_stop_by_themselves_hold_the_truth():
    """A short form of benchmarks/turns_coverage.py: it fails where neighbours are taken for independent."""
    module = load_benchmark("turns_coverage")

    several = module.studies(("AR(0.9)", 0.0, Precision(half_width=0.04), 600, 40, 3))
    independent, *_, this, _, _ = module.within(("AR(0.9)", 0.0, 150, 3))

    assert np.mean([each.covers for each in several]) >= 0.85
    assert this > 80 and independent < 60
