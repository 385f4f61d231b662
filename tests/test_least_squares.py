"""The law fitted to many curves: exact on clean ones, as good as can be on noisy ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples

from horovod_study.strain import material
from horovod_study.strain.curves import LawFit, fit_law


def normalised(fit: LawFit) -> np.ndarray:
    return (np.stack([fit.g0_mpa, fit.a], axis=1) - material.TARGET_BOUNDS[:, 0]) / material.TARGET_SPAN


def test_clean_curves_give_their_parameters_back() -> None:
    curves, targets = material.generate(3, 0, 2000, noise_max_mpa=0.0)
    fit = fit_law(curves[:, 0], curves[:, 1], curves[:, 2])

    assert np.abs(normalised(fit) - targets).max() < 1e-6
    assert fit.rms_mpa.max() < 1e-5


def test_noisy_curves_reach_the_cramer_rao_bound() -> None:
    curves, targets = material.generate(11, 0, 5000)
    fit = fit_law(curves[:, 0], curves[:, 1], curves[:, 2])
    bound = material.bounds(curves[:, 0], targets, material.noise_levels_mpa(11, 0, 5000))
    squared = (normalised(fit) - targets) ** 2

    assert 0.9 < squared.mean() / bound.mean() < 1.1
    assert (0.9 < squared.mean(axis=0) / bound.mean(axis=0)).all()
    assert (squared.mean(axis=0) / bound.mean(axis=0) < 1.1).all()
    assert np.median(fit.rms_mpa / material.noise_levels_mpa(11, 0, 5000)) == pytest.approx(1.0, abs=0.03)


@given(
    g0_mpa=st.floats(10, 50_000),
    bend=st.floats(-1.5, 60),
    reach=st.floats(1e-4, 1.0),
    points=st.integers(20, 201),
)
@settings(max_examples=examples(100))
def test_any_law_is_found_far_outside_the_generated_box(g0_mpa: float, bend: float, reach: float, points: int) -> None:
    """`bend` is a times the last strain: from a curve bent upwards over a straight line to a plateau."""
    strain = np.linspace(0, reach, points)[None]
    a = bend / reach
    stress = g0_mpa * strain if abs(a) < 1e-9 else g0_mpa / a * -np.expm1(-a * strain)
    fit = fit_law(strain, stress, np.ones_like(strain))

    assert fit.rms_mpa[0] <= 1e-6 * np.abs(stress).max()
    assert fit.a[0] * reach == pytest.approx(bend, abs=1e-4, rel=1e-4)
    assert fit.g0_mpa[0] == pytest.approx(g0_mpa, rel=1e-4)


def test_padding_and_neighbours_do_not_matter() -> None:
    curves, _ = material.generate(3, 0, 600)
    together = fit_law(curves[:, 0], curves[:, 1], curves[:, 2])
    alone = fit_law(curves[:7, 0], curves[:7, 1], curves[:7, 2])
    longer = np.pad(curves[:7], ((0, 0), (0, 0), (0, 50)), constant_values=0.0)
    longer[:, :2, 201:] = 7.0  # under weight 0
    padded = fit_law(longer[:, 0], longer[:, 1], longer[:, 2])

    assert alone.g0_mpa == pytest.approx(together.g0_mpa[:7], rel=1e-9)
    assert padded.g0_mpa == pytest.approx(alone.g0_mpa, rel=1e-9)
    assert padded.rms_mpa == pytest.approx(alone.rms_mpa, rel=1e-9)


def test_inputs_are_left_alone_and_hopeless_curves_are_nan() -> None:
    strain, stress, weight = np.zeros((3, 2, 30))
    strain[0], stress[0], weight[:] = np.linspace(0, 0.1, 30), np.linspace(0, 50, 30), 1.0
    before = strain.copy(), stress.copy(), weight.copy()
    fit = fit_law(strain, stress, weight)

    assert fit.g0_mpa[0] == pytest.approx(500, rel=1e-6)
    assert np.isnan([fit.g0_mpa[1], fit.a[1], fit.rms_mpa[1]]).all()
    for array, copy in zip((strain, stress, weight), before, strict=True):
        assert np.array_equal(array, copy)
    assert fit_law(strain[:0], stress[:0], weight[:0]).a.shape == (0,)


def test_curves_the_law_does_not_describe_get_the_best_it_can_do() -> None:
    """Nothing near the result is better, for random walks with steps as large as the curve."""
    generator = np.random.default_rng(4)
    strain = np.sort(generator.uniform(0, 0.2, (400, 60)), axis=1)
    stress = np.abs(np.cumsum(generator.normal(0.5, 3.0, (400, 60)), axis=1))
    fit = fit_law(strain, stress, np.ones_like(strain))

    def rms(a: np.ndarray) -> np.ndarray:
        shape = -np.expm1(-a[:, None] * strain) / a[:, None]
        g0_mpa = (shape * stress).sum(axis=1) / (shape**2).sum(axis=1)
        return np.sqrt(np.mean((g0_mpa[:, None] * shape - stress) ** 2, axis=1))

    inside = np.abs(fit.a * strain[:, -1]) < 400  # the others are a plateau from the first point on
    for change in (-0.05, -0.01, 0.01, 0.05):
        nearby = rms(fit.a + change * (np.abs(fit.a) + 1.0))
        assert (fit.rms_mpa[inside] <= nearby[inside] * (1 + 1e-9)).all()
