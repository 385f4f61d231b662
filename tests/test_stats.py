"""The statistics kit: known answers, scipy as a witness, and how often intervals and tests are right in simulation."""

import ast
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden
from scipy import stats as scipy_stats

import horovod_study
from horovod_study.analysis.stats import (
    EXACT_UP_TO,
    LEVEL,
    Z95,
    Interval,
    around,
    bootstrap_means,
    difference,
    fewest_blocks,
    geometric_mean,
    holm,
    lack_of_fit_p,
    log_contrast,
    median_ratio,
    moderated_ratio,
    needed_blocks,
    normal_deviation,
    order_interval,
    paired_ratio,
    percentiles,
    sign_flip_p,
    smallest_p,
    spread,
    standard_error,
    stretch,
    student,
    t_p,
    t_quantile,
    together,
    trimmed_mean,
    welch,
)
from horovod_study.errors import AnalysisError
from horovod_study.records import finite

SEEDS, BLOCKS = 1000, 10
ROOT = Path(horovod_study.__file__).parent

positive = st.floats(0.1, 1e4)


def simulated(effect: float, *, drift: float = 0.10, noise: float = 0.015, seed: int = 1):
    """Logarithms of throughputs of A and B, (SEEDS, BLOCKS) each: shared drift, own noise."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, drift, (SEEDS, BLOCKS))
    a, b = (shared + rng.normal(0, noise, (SEEDS, BLOCKS)) for _ in "AB")
    return a, b + math.log(1 + effect)


# ------------------------------------------------------------------------------------------------------ one place


@pytest.mark.slow
def test_quantiles_and_tails_come_from_the_kit_alone() -> None:
    """Nobody else computes an interval manually; scipy.stats, which takes a second to load, is not needed at all."""
    special = {"stdtr", "stdtrit", "ndtr", "ndtri", "fdtrc", "betainc", "bdtr", "gammaincinv", "chdtri"}
    elsewhere = {"analysis/simulate/scaling.py": "ndtri"}  # draws of a normal maximum, no interval
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                assert not any(name.startswith("scipy.stats") for name in names), f"{module} imports {names}"
            if isinstance(node, ast.Attribute) and module != "analysis/stats.py":
                assert node.attr not in ("ppf", "cdf", "sf", "isf"), f"{module}: .{node.attr}( belongs into stats.py"
                assert node.attr not in special or elsewhere.get(module) == node.attr, f"{module}: {node.attr}"


# ------------------------------------------------------------------------------------------------------ distributions


@pytest.mark.parametrize("p", [0.005, 0.025, 0.8, 0.975, 0.995])
def test_quantiles_of_students_t_are_scipys_to_the_last_bit(p: float) -> None:
    freedom = np.concatenate([np.arange(1.0, 100.0), [0.7, 1.5, 12.34]])

    assert (t_quantile(p, freedom) == scipy_stats.t.ppf(p, freedom)).all()
    assert t_quantile(p, 7.0) == scipy_stats.t.ppf(p, 7)
    assert t_quantile(p, math.inf) == scipy_stats.norm.ppf(p)
    assert scipy_stats.norm.ppf(0.5 + LEVEL / 2) == Z95
    assert math.isnan(t_quantile(p, 0.0)) and math.isnan(t_quantile(p, math.nan))


@given(st.integers(1, 60), st.floats(0.001, 0.999))
def test_tails_are_scipys(n: int, p: float) -> None:
    assert t_p(p, 0.1, float(n)) == pytest.approx(2 * scipy_stats.t.sf(p / 0.1, n))
    assert lack_of_fit_p(10 * p, 1.0, (2, n)) == pytest.approx(scipy_stats.f.sf(10 * p / 2 * n, 2, n))


def test_without_scatter_every_difference_counts_and_none_is_one_of_rounding() -> None:
    assert (t_p(0.0, 0.0, 3.0), t_p(1e-13, 0.0, 3.0), t_p(0.1, 0.0, 3.0)) == (1.0, 1.0, 0.0)
    assert lack_of_fit_p(1e-3, 0.0, (2, 3)) == 0.0
    assert math.isnan(t_p(0.1, math.nan, 3.0))


def test_few_degrees_of_freedom_stretch_an_interval() -> None:
    assert pytest.approx(1.959964, abs=1e-6) == Z95
    assert stretch(2.0) == pytest.approx(4.302653 / 1.959964, rel=1e-6)
    assert stretch(math.inf) == 1.0


# ------------------------------------------------------------------------------------------------------ an interval


def test_what_is_not_known_is_null_and_excludes_nothing() -> None:
    bare = Interval(value=1.5)

    assert finite(bare) == {"value": 1.5, "low": None, "high": None}
    assert not bare.known and not bare.excludes(0) and not bare.exp().known
    assert finite(Interval(value=math.nan))["value"] is None
    assert finite(Interval(value=1.0, low=0.5, high=math.inf))["high"] is None


def test_an_interval_excludes_what_lies_outside_and_not_its_ends() -> None:
    each = Interval(value=2.0, low=1.0, high=4.0)

    assert (each.excludes(0.9), each.excludes(1.0), each.excludes(4.0), each.excludes(4.1)) == (
        True,
        False,
        False,
        True,
    )
    # By what they show: from Python 3.13 on a NaN in a dataclass makes it unequal to another one.
    assert repr(each.negated()) == repr(Interval(value=-2.0, low=-4.0, high=-1.0))
    assert (each.exp().low, each.width) == (math.exp(1.0), 3.0)


# ------------------------------------------------------------------------------------------------------ Student, Welch


def test_the_interval_of_a_mean_is_students() -> None:
    values = np.array([0.01, 0.03, 0.02, 0.05])
    expected = scipy_stats.ttest_1samp(values, 0).confidence_interval()
    found = student(values)

    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (found.value, found.n) == (pytest.approx(0.0275), 4)
    wider = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.99)
    assert student(values, 0.99).high == pytest.approx(wider.high)
    assert around(found.value, float(standard_error(values)), 3.0).low == pytest.approx(found.low)


def test_a_single_value_has_no_interval_and_equal_ones_an_empty_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not student([3.0]).known and student([3.0]).value == 3.0
        assert np.isnan(standard_error([3.0])) and standard_error(np.ones((1, 4)), axis=0).shape == (4,)
    assert (student([2.0, 2.0]).low, student([2.0, 2.0]).high) == (2.0, 2.0)
    assert not student([1.0, math.nan, 2.0]).known


@given(st.lists(positive, min_size=3, max_size=8), st.lists(positive, min_size=3, max_size=8))
def test_a_ratio_of_geometric_means_is_welchs_t_on_logarithms(one: list[float], other: list[float]) -> None:
    if min(np.std(np.log(one)), np.std(np.log(other))) < 1e-6:
        return
    own, theirs = (
        log_contrast([(1, one), (-1, other)]),
        scipy_stats.ttest_ind(*map(np.log, (one, other)), equal_var=False),
    )
    ends = theirs.confidence_interval(0.95)

    assert own.p == pytest.approx(theirs.pvalue)
    assert np.log([own.low, own.high]) == pytest.approx([ends.low, ends.high], rel=1e-6, abs=1e-9)
    assert own.value == pytest.approx(geometric_mean(one) / geometric_mean(other))


def test_a_contrast_of_one_part_is_students_and_needs_three_values() -> None:
    values = [1.02, 1.05, 1.01, 1.04]
    found = log_contrast([(1, values)])

    assert found.p == pytest.approx(scipy_stats.ttest_1samp(np.log(values), 0).pvalue)
    assert np.log([found.low, found.high]) == pytest.approx([student(np.log(values)).low, student(np.log(values)).high])
    few = log_contrast([(1, [1.0, 1.1]), (-1, [1.0, 1.1, 1.2])])
    assert (few.known, math.isnan(few.p), few.n) == (False, True, 2)
    same = log_contrast([(1, [2.0] * 3), (-1, [1.0] * 3)])
    assert (same.value, same.low, same.high, same.p) == (pytest.approx(2.0), same.value, same.value, 0.0)


def test_four_parts_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    draws = np.exp(rng.standard_normal((600, 4, 3)) * np.array([0.01, 0.03, 0.01, 0.02])[None, :, None])
    found = [log_contrast(list(zip((1, -1, -1, 1), rows, strict=True))) for rows in draws]

    assert 0.93 <= np.mean([each.low <= 1 <= each.high for each in found]) <= 0.99


def test_degrees_of_freedom_by_hand_one_and_many_columns() -> None:
    variance, freedom = welch([0.02, 0.03], [5, 4])

    assert (variance, freedom) == (pytest.approx(0.05), pytest.approx(0.05**2 / (0.02**2 / 4 + 0.03**2 / 3)))
    table = np.array([[0.02, 0.0, math.nan], [0.03, 0.0, 1.0]])
    variances, freedoms = welch(table, [5, 4])
    assert (variances[:2], freedoms[:2]) == (pytest.approx([0.05, 0.0]), pytest.approx([freedom, 1.0]))
    assert math.isnan(variances[2])


def test_differences_of_estimates_add_their_errors_in_square() -> None:
    found = difference(Interval(value=5.0, low=2.0, high=6.0), Interval(value=1.0, low=0.5, high=5.0))

    assert (found.value, found.low, found.high) == (4.0, 4.0 - 5.0, pytest.approx(4.0 + math.hypot(1.0, 0.5)))
    one = Interval(value=1.0, low=0.0, high=9.0)
    assert together([one]) is one
    assert repr(together([one, Interval(value=2.0), Interval(value=3.0)])) == repr(student([1.0, 2.0, 3.0]))


# ------------------------------------------------------------------------------------------------------ medians


def test_the_interval_of_a_median_holds_it_and_follows_the_scale() -> None:
    found, scaled = median_ratio([46_000.0, 46_800.0, 47_100.0]), median_ratio([46.0, 46.8, 47.1])

    assert found.low < 46_800.0 < found.high and found.value == pytest.approx(46_800.0)
    assert (1000 * scaled.low, 1000 * scaled.high) == pytest.approx((found.low, found.high))


@pytest.mark.parametrize("repeats", [3, 5, 10])
def test_intervals_of_ratios_of_medians_cover_the_truth_as_often_as_they_say(repeats: int) -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(400):
        x, base = 2.0 * np.exp(0.03 * rng.standard_normal(repeats)), np.exp(0.03 * rng.standard_normal(repeats))
        found = median_ratio(x, base)
        hits += found.low <= 2.0 <= found.high

    assert 0.93 <= hits / 400 <= 0.995


def test_of_few_equal_and_no_repeats() -> None:
    assert median_ratio([5.0, 5.0]).value == pytest.approx(5.0) and not median_ratio([5.0, 5.0]).known
    assert not median_ratio([5.0, 5.1, 5.2], [1.0, 1.1]).known and not median_ratio([1.0, 2.0, 3.0], []).known
    assert (median_ratio([2.0] * 3, [1.0] * 4).low, median_ratio([2.0] * 3, [1.0] * 4).high) == pytest.approx(
        (2.0, 2.0)
    )
    assert all(math.isnan(each) for each in spread([]).values())
    found = spread([0.0, 2.0, 1.0])
    assert (found["median"], found["min"], found["max"], math.isnan(found["low"])) == (1.0, 0.0, 2.0, True)
    assert spread([1.0, 3.0, 2.0])["high"] == median_ratio([1.0, 3.0, 2.0]).high


def test_the_interval_of_order_statistics_by_hand() -> None:
    assert not order_interval(range(5)).known and order_interval(range(5)).value == 2.0
    assert finite(order_interval(range(6))) == {"value": 2.5, "low": 0.0, "high": 5.0}  # 1 - 2/64 = 96.9 %
    assert finite(order_interval(range(10))) == {"value": 4.5, "low": 1.0, "high": 8.0}  # 1 - 22/1024 = 97.9 %


@given(st.integers(1, 200), st.sampled_from([0.9, 0.95, 0.99]))
def test_order_statistics_leave_out_as_much_as_the_binomial_allows(n: int, level: float) -> None:
    found = order_interval(range(n), level)
    if not found.known:
        assert 2 * 0.5**n > 1 - level
        return
    cut = int(found.low)
    assert found.high == n - 1 - cut
    assert scipy_stats.binom.cdf(cut, n, 0.5) <= (1 - level) / 2 < scipy_stats.binom.cdf(cut + 1, n, 0.5)


def test_the_deviation_of_normal_values_from_their_median_distance() -> None:
    values = np.random.default_rng(2).normal(0, 3.0, 20_000)

    assert normal_deviation(np.abs(values)) == pytest.approx(3.0, rel=0.02)


def test_the_mean_without_the_fifths_and_its_error_are_those_of_tukey_and_mclaughlin() -> None:
    """Worked manually: of 1..9 and 100 the two smallest and largest go; winsorised they are 3 3 3 4 5 6 7 8 8 8."""
    mean, error, freedom = trimmed_mean([100.0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    deviations = np.array([3, 3, 3, 4, 5, 6, 7, 8, 8, 8]) - 5.5

    assert (mean, freedom) == (5.5, 5.0)
    assert error == pytest.approx(np.sqrt((deviations**2).sum() / 9) / (0.6 * np.sqrt(10)))
    assert trimmed_mean([3.0]) == (3.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------------ resampling


def test_percentiles_of_draws() -> None:
    found = percentiles(7.0, np.arange(1001.0))

    assert finite(found) == {"value": 7.0, "low": pytest.approx(25.0), "high": pytest.approx(975.0)}


def test_resampled_means_of_normal_values_have_students_interval() -> None:
    values = np.random.default_rng(5).normal(10, 2, (12, 200))
    found = bootstrap_means(values, np.random.default_rng(1), 4000)
    expected = [student(column) for column in values.T]

    assert [each.value for each in found] == pytest.approx([each.value for each in expected])
    assert np.mean([each.width for each in found]) == pytest.approx(np.mean([e.width for e in expected]), rel=0.03)


# ------------------------------------------------------------------------------------------------------ few blocks


def test_without_a_pool_the_interval_is_the_paired_t_of_the_textbook() -> None:
    found = moderated_ratio(np.array([0.1, 0.2, 0.3]), math.nan, 4.0)

    assert found.value == pytest.approx(math.exp(0.2))
    assert math.log(found.high) - 0.2 == pytest.approx(4.30265 * 0.1 / math.sqrt(3), rel=1e-5)
    assert math.log(found.low) == pytest.approx(0.4 - math.log(found.high))
    assert found.n == 3


@pytest.mark.parametrize(("pooled", "variance"), [(0.04, 0.03), (1e-6, 0.01)])
def test_with_a_pool_the_variance_leans_on_it_but_is_no_smaller_than_its_own(pooled: float, variance: float) -> None:
    """(4 * 0.04 + 2 * 0.01) / 6 = 0.03 with 6 degrees of freedom, t = 2.44691."""
    found = moderated_ratio(np.array([0.1, 0.2, 0.3]), pooled, 4.0)

    assert math.log(found.high) - 0.2 == pytest.approx(2.44691 * math.sqrt(variance / 3), rel=1e-5)


def test_one_block_leans_on_the_pool_alone_and_none_says_nothing() -> None:
    assert math.log(moderated_ratio(np.array([0.1]), 0.01, 4.0).high) - 0.1 == pytest.approx(2.77645 * 0.1, rel=1e-5)
    assert not moderated_ratio(np.array([0.1]), math.nan, 4.0).known
    nothing = moderated_ratio(np.array([]), 0.01, 4.0)
    assert math.isnan(nothing.value) and (nothing.known, nothing.n) == (False, 0)


# ---------------------------------------------------------------------------------------------- sign flips, Holm


def test_sign_flips_of_three_values_by_hand() -> None:
    # |1+2+3| = 6 is reached by two of the eight patterns; |1+2-3| = 0 by all.
    assert sign_flip_p([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    assert sign_flip_p([1.0, 2.0, -3.0]) == pytest.approx(1.0)
    # -1+2+3 = 4: (+++), (-++) and their mirror images.
    assert sign_flip_p([-1.0, 2.0, 3.0]) == pytest.approx(4 / 8)


def test_ties_and_single_values_of_sign_flips() -> None:
    assert sign_flip_p([0.5]) == 1.0 and sign_flip_p(np.zeros(4)) == 1.0
    assert sign_flip_p([0.1, 0.1, 0.1, -0.1]) == pytest.approx(10 / 16), "equal sums count, however they were rounded"


def test_sign_flips_beyond_enumeration_are_sampled_and_agree_with_it() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(0.4, 1, (5, EXACT_UP_TO))
    padded = np.concatenate([values, np.zeros((5, 1))], axis=1)  # a zero changes no sum, but forces sampling

    assert sign_flip_p(padded) == pytest.approx(sign_flip_p(values), abs=0.015)
    assert (sign_flip_p(padded) == sign_flip_p(padded)).all(), "seeded"


def test_the_permutation_test_of_scipy_agrees() -> None:
    values = np.random.default_rng(3).normal(0.5, 1, 9)
    expected = scipy_stats.permutation_test(
        (values,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )

    assert sign_flip_p(values) == pytest.approx(expected.pvalue)


def test_holm_by_hand() -> None:
    # 0.01 x 4, 0.02 x 3, 0.03 x 2 raised to 0.06, 0.2 x 1.
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02] and holm([]) == []
    assert holm([0.02, 0.02]) == [0.04, 0.04]


def test_fewest_blocks() -> None:
    assert smallest_p(4) == pytest.approx(2 / 16)
    assert [fewest_blocks(tests) for tests in (1, 2, 3, 4)] == [6, 7, 7, 8]


def test_a_paired_ratio_is_a_geometric_mean(golden: Golden) -> None:
    found = paired_ratio([100.0, 200.0], [200.0, 100.0])

    assert found.ratio.value == pytest.approx(1.0)
    assert found.ratio.p == 1.0
    with golden.raises(AnalysisError):
        paired_ratio([100.0], [0.0])


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9))
def test_exchanging_the_sides_inverts_the_ratio(ratios: list[float]) -> None:
    a, b = np.ones(len(ratios)), np.array(ratios)
    there, back = paired_ratio(a, b).ratio, paired_ratio(b, a).ratio

    assert there.value * back.value == pytest.approx(1.0)
    assert there.p == pytest.approx(back.p)
    assert there.known == back.known == (len(ratios) > 1)
    if there.known:
        assert there.low * back.high == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------------ simulation


def test_three_per_cent_under_ten_per_cent_of_drift_are_found_by_pairs_alone() -> None:
    a, b = simulated(0.03)
    paired = np.mean(sign_flip_p(b - a) < 0.05)
    unpaired = np.mean(scipy_stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue < 0.05)

    assert paired >= 0.9
    assert unpaired < 0.2


def test_a_against_a_is_seldom_a_difference() -> None:
    for noise in (0.005, 0.05):
        a, b = simulated(0.0, noise=noise, seed=4)

        assert np.mean(sign_flip_p(b - a) < 0.05) <= 0.07


def test_the_interval_covers_as_often_as_it_says() -> None:
    a, b = simulated(0.03, seed=5)
    found = [student(each) for each in b - a]

    assert 0.935 <= np.mean([not each.excludes(math.log(1.03)) for each in found]) <= 0.965


@pytest.mark.parametrize("log_sd", [0.01, 0.03])
def test_the_advised_number_of_blocks_resolves_what_it_promises(log_sd: float) -> None:
    number = needed_blocks(log_sd, 0.01)
    values = np.random.default_rng(6).normal(math.log(1.01), log_sd, (400, number))

    assert 0.72 <= np.mean(sign_flip_p(values) < 0.05) <= 0.93
    assert needed_blocks(log_sd, 0.01, tests=3) > number
