"""The statistics of a comparison: known answers, and how often it is right in simulation."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from horovod_study.analysis.comparison import (
    EXACT_UP_TO,
    compare,
    fewest_blocks,
    holm,
    log_interval,
    median_interval,
    needed_blocks,
    ratio_of,
    sign_flip_p,
    smallest_p,
    too_few,
)
from horovod_study.errors import AnalysisError
from horovod_study.report.figures.comparison import write_comparison

SEEDS, BLOCKS = 1000, 10


def arm(samples_per_s: float, **changes) -> dict:
    usual = {
        "samples_per_s": float(samples_per_s),
        "step_s_median": 0.003,
        "step_s_p90": 0.0033,
        "test_mse": 1e-3,
        "parameter_sha256": "same",
        "first_losses": [0.1, 0.09],
    }
    return {**usual, **changes}


def blocks(ratios: list[float], *, workers: int = 2, b: dict | None = None) -> list[dict]:
    """Blocks in which A makes 1000, 1100, 1200, ... samples/s and B so many times as many."""
    rows = []
    for number, ratio in enumerate(ratios, start=1):
        speed = 1000.0 + 100 * number
        sides = {"A": arm(speed), "B": arm(speed * ratio, **(b or {}))}
        rows.append({"workers": workers, "block": number, "first": "AB"[number % 2], **sides})
    return rows


def simulated(effect: float, *, drift: float = 0.10, noise: float = 0.015, seed: int = 1):
    """Logarithms of throughputs of A and B, (SEEDS, BLOCKS) each: shared drift, own noise."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, drift, (SEEDS, BLOCKS))
    a, b = (shared + rng.normal(0, noise, (SEEDS, BLOCKS)) for _ in "AB")
    return a, b + math.log(1 + effect)


# --------------------------------------------------------------------------------------------------- known answers


def test_sign_flips_of_three_values_by_hand() -> None:
    # |1+2+3| = 6 is reached by two of the eight patterns; |1+2-3| = 0 by all.
    assert sign_flip_p([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    assert sign_flip_p([1.0, 2.0, -3.0]) == pytest.approx(1.0)
    # -1+2+3 = 4: (+++), (-++) and their mirror images.
    assert sign_flip_p([-1.0, 2.0, 3.0]) == pytest.approx(4 / 8)


def test_sign_flips_beyond_enumeration_are_sampled_and_agree_with_it() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(0.4, 1, (5, EXACT_UP_TO))
    padded = np.concatenate([values, np.zeros((5, 1))], axis=1)  # a zero changes no sum, but forces sampling

    assert sign_flip_p(padded) == pytest.approx(sign_flip_p(values), abs=0.015)
    assert (sign_flip_p(padded) == sign_flip_p(padded)).all(), "seeded"


def test_the_permutation_test_of_scipy_agrees() -> None:
    values = np.random.default_rng(3).normal(0.5, 1, 9)
    expected = stats.permutation_test(
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
    assert holm([0.02]) == [0.02]


def test_the_interval_is_student_s() -> None:
    values = np.array([0.01, 0.03, 0.02, 0.05])
    expected = stats.ttest_1samp(values, 0).confidence_interval()

    assert log_interval(values) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_the_interval_of_the_median_by_hand() -> None:
    assert median_interval(range(5)) == (2.0, None, None)
    assert median_interval(range(6)) == (2.5, 0.0, 5.0)  # 1 - 2/64 = 96.9 %
    assert median_interval(range(10)) == (4.5, 1.0, 8.0)  # 1 - 22/1024 = 97.9 %


def test_fewest_blocks() -> None:
    assert smallest_p(4) == pytest.approx(2 / 16)
    assert [fewest_blocks(tests) for tests in (1, 2, 3, 4)] == [6, 7, 7, 8]
    assert too_few(10, 3) == ""
    assert too_few(4, 1) == (
        "4 blocks cannot resolve any difference: the smallest possible p is 0.125; 0.05 needs at least 6 blocks "
        "(--blocks 6)"
    )
    assert "0.0312, 0.0625 after Holm over 2 worker counts; 0.05 needs at least 7 blocks" in too_few(6, 2)


def test_a_ratio_is_a_geometric_mean() -> None:
    found = ratio_of([100.0, 200.0], [200.0, 100.0])

    assert found.ratio == pytest.approx(1.0)
    assert found.p == 1.0
    with pytest.raises(AnalysisError, match="not a positive number; run that block again"):
        ratio_of([100.0], [0.0])


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9))
def test_exchanging_the_sides_inverts_the_ratio(ratios: list[float]) -> None:
    a, b = np.ones(len(ratios)), np.array(ratios)
    there, back = ratio_of(a, b), ratio_of(b, a)

    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert there.p == pytest.approx(back.p)
    if there.low is not None and back.high is not None:
        assert there.low * back.high == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------------ simulation


def test_three_per_cent_under_ten_per_cent_of_drift_are_found_by_pairs_alone() -> None:
    a, b = simulated(0.03)
    paired = np.mean(sign_flip_p(b - a) < 0.05)
    unpaired = np.mean(stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue < 0.05)

    assert paired >= 0.9
    assert unpaired < 0.2


def test_a_against_a_is_seldom_a_difference() -> None:
    for noise in (0.005, 0.05):
        a, b = simulated(0.0, noise=noise, seed=4)

        assert np.mean(sign_flip_p(b - a) < 0.05) <= 0.07


def test_the_interval_covers_as_often_as_it_says() -> None:
    a, b = simulated(0.03, seed=5)
    low, high = log_interval(b - a)

    assert 0.935 <= np.mean((low <= math.log(1.03)) & (math.log(1.03) <= high)) <= 0.965


@pytest.mark.parametrize("log_sd", [0.01, 0.03])
def test_the_advised_number_of_blocks_resolves_what_it_promises(log_sd: float) -> None:
    number = needed_blocks(log_sd, 0.01)
    values = np.random.default_rng(6).normal(math.log(1.01), log_sd, (400, number))

    assert 0.72 <= np.mean(sign_flip_p(values) < 0.05) <= 0.93
    assert needed_blocks(log_sd, 0.01, tests=3) > number


# -------------------------------------------------------------------------------------------------------- verdicts


def test_a_resolved_difference_in_words() -> None:
    ratios = [1.025, 1.031, 1.038, 1.029, 1.033, 1.030, 1.027, 1.035]
    found = compare(blocks(ratios))
    (count,) = found.counts

    assert count.resolved
    assert count.verdict == "B is faster by 3.1 % (2.7 - 3.5 %), resolved (p = 0.0078)"
    assert compare(blocks([1 / ratio for ratio in ratios])).counts[0].verdict.startswith("B is slower by 3.0 %")
    text = found.lines()
    assert text[0].split() == "workers blocks A samples/s B samples/s B/A 95 % interval p p (Holm) p90/med A, B".split()
    assert "2 workers: B is faster" in "\n".join(text)


def test_an_unresolved_difference_in_words() -> None:
    found = compare(blocks([0.99, 1.03, 1.00, 1.02, 0.98, 1.01, 1.02, 0.99]))

    assert found.counts[0].verdict.startswith("not resolved: the difference lies between -1.0 % and +2.0 % (p = 0.")
    assert "; about 27 blocks would resolve 1 %" in found.counts[0].verdict
    near = compare(blocks([1.001, 0.999, 1.002, 0.998, 1.001, 1.0]))
    assert near.counts[0].verdict.endswith("A and B are no more than 1 % apart")
    few = compare(blocks([1.05, 1.06, 1.055]))
    assert "no difference can be with fewer than 6 blocks" in few.counts[0].verdict
    assert "one block says B/A = 1.100" in compare(blocks([1.1])).counts[0].verdict


def test_holm_over_worker_counts_can_take_a_difference_away() -> None:
    ratios = [1.02, 1.03, 1.04, 1.025, 1.035, 1.03]  # p = 2/64 alone

    assert compare(blocks(ratios)).counts[0].resolved
    both = compare([*blocks(ratios, workers=1), *blocks(ratios, workers=2)])
    assert [count.p_holm for count in both.counts] == [pytest.approx(4 / 64)] * 2
    assert not any(count.resolved for count in both.counts)


def test_a_block_that_stands_apart_counts_and_is_told() -> None:
    ratios = [1.05, 1.06, 1.055, 4.2, 1.06, 1.05, 1.065, 1.058, 1.052, 1.061]
    (count,) = compare(blocks(ratios)).counts

    assert count.odd == (4,)
    assert count.speed.ratio == pytest.approx(np.exp(np.mean(np.log(ratios)))), "nothing is left out"
    assert count.resolved
    assert count.verdict.startswith("B is typically faster by 5.9 % (5.0 - 6.5 %), resolved (p = 0.002)")
    assert count.doubts[0].startswith("block 4 stands apart (B/A = 4.200, usually 1.059): ")


def test_learning_is_compared() -> None:
    same = compare(blocks([1.0, 1.0]))
    assert same.learning.text == "both learn the same: the parameters at the end agree bit for bit"
    rounding = {"parameter_sha256": "other", "first_losses": [0.1, 0.090000009], "test_mse": 1.02e-3}
    near = compare(blocks([1.0, 1.0], b=rounding)).learning
    assert near.alike
    assert (
        "first 2 steps differ by up to 1.0e-07 of their size; the test MSE at the end differs by up to 1.96 %"
        in near.text
    )
    other = compare(blocks([1.0, 1.0], b={"parameter_sha256": "other", "first_losses": [0.1, 0.08]})).learning
    assert other.alike is False
    assert other.text.startswith("they do not learn the same")
    lost = compare(blocks([1.0], b={"parameter_sha256": "other", "first_losses": [], "test_mse": None})).learning
    assert lost.alike is None
    assert lost.text == "losses of the first steps were not recorded"


def test_unsteady_steps_are_doubted() -> None:
    (count,) = compare(blocks([1.0, 1.1], b={"step_s_p90": 0.009})).counts

    assert count.stability == (pytest.approx(1.1), pytest.approx(3.0))
    assert "B is unsteady: one step in ten takes at least 3.0 times the median step" in count.doubts


def test_compare_changes_nothing_and_needs_a_block() -> None:
    given_blocks = blocks([1.0, 1.1, 1.2])
    before = copy.deepcopy(given_blocks)

    assert compare(given_blocks).to_dict() == compare(given_blocks[::-1]).to_dict()
    assert given_blocks == before
    with pytest.raises(AnalysisError, match="no block has both its runs"):
        compare([])


def test_the_figure_and_its_files(tmp_path: Path) -> None:
    found = compare([*blocks([1.0, 1.01, 0.99, 1.0], workers=1), *blocks([1.1, 1.1, 1.12, 5.0], workers=2)])
    runs = {"A": {"text": "horovod/mpi"}, "B": {"text": "mpi/mpi"}, "workers": "not taken"}
    paths = write_comparison(found, runs, tmp_path)

    assert [path.name for path in paths] == [f"comparison.{form}" for form in ("pdf", "svg", "png", "txt", "json")]
    assert (tmp_path / "comparison.txt").read_text().startswith("Throughput of B (mpi/mpi) as a multiple of that of A")
    assert '"typical_ratio"' in (tmp_path / "comparison.json").read_text()
    again = write_comparison(found, runs, tmp_path / "again")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
