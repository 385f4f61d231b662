"""The law and the generator."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples

from horovod_study.strain import material


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def test_golden_bytes() -> None:
    """The bytes of shear-exp v1 are part of its definition: a change here is another version."""
    curves, targets = material.generate(7, 0, 1000)

    assert digest(curves)[:16] == "961b47f14d04afe9"
    assert digest(targets)[:16] == "19b4404a845cae01"
    assert digest(material.normal_quantiles())[:16] == "8babbcaf96568f10"


@given(first=st.integers(0, 10**12), count=st.integers(1, 300), cut=st.integers(0, 300), seed=st.integers(0, 2**64))
@settings(max_examples=examples(25))
def test_a_curve_depends_on_seed_and_number_only(first: int, count: int, cut: int, seed: int) -> None:
    cut = min(cut, count)
    whole = material.generate(seed, first, first + count)
    left = material.generate(seed, first, first + cut)
    right = material.generate(seed, first + cut, first + count)

    for k in range(2):
        assert np.array_equal(whole[k], np.concatenate([left[k], right[k]]))


def test_another_seed_gives_other_curves() -> None:
    assert not np.array_equal(material.generate(7, 0, 10)[0], material.generate(8, 0, 10)[0])


def test_layout_of_every_curve() -> None:
    curves, targets = material.generate(3, 0, 3000)
    strain, stress, flag = curves[:, 0], curves[:, 1], curves[:, 2]
    missing = (flag == 0).sum(axis=1)
    origin = (np.arange(3000), missing)

    assert curves.dtype == targets.dtype == np.float32
    assert np.isin(flag, (0, 1)).all()
    assert (np.diff(flag, axis=1) >= 0).all(), "padding is at the left"
    assert (strain[flag == 0] == 0).all() and (stress[flag == 0] == 0).all()
    assert (strain[origin] == 0).all() and (stress[origin] == 0).all(), "the first real point is the exact origin"
    assert (np.diff(strain, axis=1)[flag[:, :-1] == 1] > 0).all()
    assert strain[:, -1].min() >= 0.10 and strain[:, -1].max() <= 0.25
    assert missing.max() <= material.MAX_MISSING
    assert 0.47 < (missing == 0).mean() < 0.55
    assert (0 <= targets).all() and (targets < 1).all()
    assert targets.std(axis=0) == pytest.approx([0.2887, 0.2887], abs=0.01)


def test_clean_curves_are_the_law() -> None:
    curves, targets = material.generate(5, 100, 400, noise_max_mpa=0.0)
    g0_mpa = 1000 + 2000 * targets[:, :1].astype(float)
    a = 25 + 20 * targets[:, 1:].astype(float)

    assert curves[:, 1] == pytest.approx(material.stress_mpa(g0_mpa, a, curves[:, 0].astype(float)), abs=2e-4)


def test_noise_has_the_stated_level() -> None:
    noisy, _ = material.generate(5, 0, 2000)
    clean, _ = material.generate(5, 0, 2000, noise_max_mpa=0.0)
    levels = material.noise_levels_mpa(5, 0, 2000)
    data = (noisy[:, 2] == 1) & (noisy[:, 0] > 0)
    noise = (noisy[:, 1] - clean[:, 1]).astype(float)
    measured = np.sqrt((noise**2 * data).sum(axis=1) / data.sum(axis=1))

    assert levels.min() >= 0 and levels.max() <= 1
    assert (measured / levels)[levels > 0.05] == pytest.approx(1, abs=0.25)
    assert np.median((measured / levels)[levels > 0.05]) == pytest.approx(1, abs=0.01)


def test_filling_tells_the_noise_levels() -> None:
    curves, targets = np.empty((150, 3, 201), np.float32), np.empty((150, 2), np.float32)
    told = material.fill(5, 70, curves, targets, noise_max_mpa=2.0)

    assert np.array_equal(told, material.noise_levels_mpa(5, 70, 220, noise_max_mpa=2.0))
    assert np.array_equal(curves, material.generate(5, 70, 220, noise_max_mpa=2.0)[0])


def test_the_bounds_are_the_physical_values_of_0_and_1() -> None:
    assert material.TARGET_BOUNDS.tolist() == [[1000, 3000], [25, 45]]
    assert material.TARGET_SPAN.tolist() == [2000, 20]


def test_twice_the_largest_noise_is_twice_each_level() -> None:
    assert material.noise_levels_mpa(1, 0, 50, noise_max_mpa=2.0) == pytest.approx(
        2 * material.noise_levels_mpa(1, 0, 50)
    )
