"""The statistical floor of a set of curves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples

from horovod_study.strain import material

LOW, SPAN = material.TARGET_BOUNDS[:, 0], material.TARGET_SPAN


def generated(seed: int, count: int, *, noise_max_mpa: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return curves, targets and noise levels."""
    curves, targets = material.generate(seed, 0, count, noise_max_mpa=noise_max_mpa)
    return curves, targets, material.noise_levels_mpa(seed, 0, count, noise_max_mpa=noise_max_mpa)


def test_known_mean_over_the_generator() -> None:
    """7.29e-5 +- 0.03e-5 over 131,000 curves (G0 1.98e-5, a 1.26e-4) is what the physics' own prototype found."""
    curves, targets, sigmas = generated(11, 60_000)
    bounds = material.bounds(curves[:, 0], targets, sigmas)
    doubt = np.hypot(bounds.mean(axis=1).std() / np.sqrt(len(bounds)), 0.03e-5)

    assert bounds.shape == (60_000, 2) and bounds.dtype == np.float64
    assert bounds.mean() == pytest.approx(7.29e-5, abs=3.5 * doubt)
    assert bounds.mean(axis=0) == pytest.approx([1.98e-5, 1.26e-4], rel=0.03)


def test_equal_to_the_inverse_information_from_numerical_derivatives() -> None:
    curves, targets, sigmas = generated(3, 40)
    strain, physical = curves[:, 0].astype(float), LOW + SPAN * targets
    expected = np.empty((40, 2))
    for k in range(40):
        slopes = []
        for which in range(2):
            step = np.where(np.arange(2) == which, 1e-5, 0.0) * SPAN
            up, down = (material.stress_mpa(*(physical[k] + sign * step), strain[k]) for sign in (1, -1))
            slopes.append((up - down) / 2e-5)
        information = np.array(slopes) @ np.array(slopes).T / sigmas[k] ** 2
        expected[k] = np.linalg.inv(information).diagonal()

    assert material.bounds(curves[:, 0], targets, sigmas) == pytest.approx(expected, rel=1e-5)


def test_least_squares_comes_to_the_bound() -> None:
    """Gauss-Newton from the true targets on 4000 noisy curves: its mean squared error is the floor within 10 %."""
    curves, targets, sigmas = generated(5, 4000)
    strain, stress, flag = (curves[:, k].astype(float) for k in range(3))
    found = LOW + SPAN * targets.astype(float)
    for _ in range(8):
        g0_mpa, a = found[:, :1], found[:, 1:]
        e = np.exp(-a * strain)
        jacobian = np.stack([(1 - e) / a, g0_mpa * (strain * e / a - (1 - e) / a**2)], axis=-1)  # (N, L, P)
        left = (stress - material.stress_mpa(g0_mpa, a, strain)) * flag
        normal = np.einsum("nlp,nlq->npq", jacobian, jacobian)
        found = found + np.linalg.solve(normal, np.einsum("nlp,nl->np", jacobian, left)[..., None])[..., 0]
    squares = ((found - LOW) / SPAN - targets) ** 2

    assert 0.9 < squares.mean() / material.bounds(curves[:, 0], targets, sigmas).mean() < 1.1


@given(factor=st.floats(0.01, 100), seed=st.integers(0, 1000))
@settings(max_examples=examples(20))
def test_the_floor_grows_with_the_square_of_the_noise(factor: float, seed: int) -> None:
    curves, targets, sigmas = generated(seed, 20)
    more = material.noise_levels_mpa(seed, 0, 20, noise_max_mpa=factor)

    assert material.bounds(curves[:, 0], targets, more) == pytest.approx(
        factor**2 * material.bounds(curves[:, 0], targets, sigmas), rel=1e-9
    )


def test_the_padding_and_the_place_in_a_chunk_do_not_matter() -> None:
    curves, targets, sigmas = generated(2, 150)
    strain = curves[:, 0]
    padded = np.concatenate([np.zeros((150, 30), np.float32), strain], axis=1)
    alone = [material.bounds(strain[k : k + 1], targets[k : k + 1], sigmas[k]) for k in range(150)]

    together = material.bounds(strain, targets, sigmas)
    assert np.concatenate(alone) == pytest.approx(together, rel=1e-12)
    assert material.bounds(padded, targets, sigmas) == pytest.approx(together, rel=1e-12)


def test_other_bounds_of_the_targets_rescale_the_floor() -> None:
    """Normalised over twice the span, the same physical doubt is half as large: its square is a quarter."""
    curves, targets, sigmas = generated(2, 50)
    wide = np.array([[0.0, 4000.0], [10.0, 50.0]])
    same = ((LOW + SPAN * targets) - wide[:, 0]) / (wide[:, 1] - wide[:, 0])

    assert material.bounds(curves[:, 0], same, sigmas, target_bounds=wide) == pytest.approx(
        material.bounds(curves[:, 0], targets, sigmas) / 4, rel=1e-6
    )


def test_clean_curves_have_no_floor_and_blind_curves_no_bound() -> None:
    curves, targets, _ = generated(1, 5)
    one_point = np.zeros((1, 201), np.float32)
    one_point[0, -1] = 0.1

    assert (material.bounds(curves[:, 0], targets, 0.0) == 0).all()
    assert np.isinf(material.bounds(one_point, targets[:1], 1.0)).all(), "one point cannot tell two targets"
    assert np.isinf(material.bounds(np.zeros((1, 201)), targets[:1], 1.0)).all()


def test_inputs_are_left_alone() -> None:
    curves, targets, sigmas = generated(1, 70)
    strain = curves[:, 0].astype(np.float64)
    before = strain.copy(), targets.copy(), sigmas.copy()
    material.bounds(strain, targets, sigmas)

    assert all(np.array_equal(*pair) for pair in zip(before, (strain, targets, sigmas), strict=True))


def test_summary_in_normalised_and_in_physical_units() -> None:
    expected = {"mse": 2.5e-4, "g0_mse": 1e-4, "a_mse": 4e-4, "g0_rmse_mpa": 20.0, "a_rmse": 0.4}

    assert material.floor(np.array([1e-3, 4e-3]), 10) == pytest.approx(expected)
    assert material.floor(np.zeros(2), 0) is None
    assert material.floor(np.array([np.inf, 1.0]), 3) is None
    assert material.floor(np.ones(2), 1, estimated=True)["estimated"] is True
