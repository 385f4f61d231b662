"""Scaling laws: formulas against published values, derivatives, and the questions that parameters answer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_study.analysis.laws import LAWS, USL, amdahl_limit, karp_flatt, usl_bottleneck, usl_limit, usl_peak

fractions = st.floats(0.0, 1.0)


def test_the_laws_and_their_order():
    assert ["linear", "amdahl", "gustafson", "usl"] == list(LAWS)


@pytest.mark.parametrize(
    ("law", "params", "n", "expected"),
    [
        ("linear", {"slope": 0.45, "intercept": 0.2}, 16, 7.4),
        # Amdahl: 5 % serial work, 20 processors: 1 / (0.05 + 0.95 / 20).
        ("amdahl", {"s": 0.05}, 20, 10.256410256410257),
        # Gustafson 1988, "Reevaluating Amdahl's law": s' between 0.4 and 0.8 % on 1024 processors gives 1016 to 1021.
        ("gustafson", {"s": 0.008}, 1024, 1015.816),
        ("gustafson", {"s": 0.004}, 1024, 1019.908),
        ("usl", {"alpha": 0.05, "beta": 0.001, "gamma": 1.0}, 16, 16 / 1.99),
        ("usl", {"alpha": 0.05, "beta": 0.001, "gamma": 2.0}, 16, 32 / 1.99),
    ],
)
def test_curve_has_the_value_of_the_formula(law, params, n, expected):
    assert expected == pytest.approx(float(LAWS[law].curve(n, **params)), rel=1e-12)


@given(s=fractions)
def test_one_worker_has_speedup_one(s):
    assert float(LAWS["amdahl"].curve(1, s=s)) == pytest.approx(1)
    assert float(LAWS["gustafson"].curve(1, s=s)) == pytest.approx(1)
    assert float(LAWS["usl"].curve(1, alpha=s, beta=s / 10)) == pytest.approx(1)


@given(s=fractions)
def test_amdahl_is_usl_without_coherency(s):
    n = np.arange(1, 65)
    assert LAWS["amdahl"].curve(n, s=s) == pytest.approx(LAWS["usl"].curve(n, alpha=s, beta=0.0, gamma=1.0))


@given(alpha=st.floats(0, 0.9), beta=st.floats(1e-6, 0.1))
def test_no_worker_count_beats_the_peak_of_usl(alpha, beta):
    n = np.linspace(1, 3000, 5000)
    curve = LAWS["usl"].curve(n, alpha=alpha, beta=beta)

    assert curve.max() <= usl_limit(alpha, beta) * (1 + 1e-9)
    assert usl_peak(alpha, beta) == pytest.approx(max(1.0, math.sqrt((1 - alpha) / beta)))


def test_limits_of_the_laws():
    assert 20 == amdahl_limit(0.05)
    assert math.inf == amdahl_limit(0)
    assert math.inf == usl_peak(0.05, 0)
    assert 1 == usl_peak(1.2, 0.01)
    assert 20 == usl_limit(0.05, 0)
    assert math.inf == usl_limit(0, 0)
    assert math.inf == LAWS["linear"].limit(slope=0.4, intercept=1.0)
    assert math.inf == LAWS["gustafson"].limit(s=0.5)


def test_the_bottleneck_changes_where_coherency_overtakes_contention():
    assert "contention" == usl_bottleneck(49, alpha=0.05, beta=0.001)
    assert "coherency" == usl_bottleneck(51, alpha=0.05, beta=0.001)
    assert "none" == usl_bottleneck(16, alpha=0, beta=0)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_gradient_agrees_with_differences(name):
    law = LAWS[name]
    values = np.array([0.07, 0.003, 0.9][: len(law.parameters)])
    n = np.array([1.0, 2.0, 5.0, 40.0])

    gradient = law.gradient(n, values)

    for i in range(len(values)):
        step = np.zeros(len(values))
        step[i] = 1e-6
        assert gradient[:, i] == pytest.approx((law.at(n, values + step) - law.at(n, values - step)) / 2e-6, rel=1e-6)


def test_laws_evaluate_many_parameter_sets_at_once():
    many = np.array([[0.1, 0.0, 1.0], [0.0, 0.01, 2.0]])
    assert USL.at([1, 4, 16], many).shape == (2, 3)
    assert USL.gradient([1, 4, 16], many).shape == (2, 3, 3)
    assert USL.at([1, 4, 16], many)[1] == pytest.approx(USL.at([1, 4, 16], many[1]))


@given(s=st.floats(0, 1), n=st.integers(2, 1000))
def test_karp_flatt_finds_the_serial_fraction_of_amdahl(s, n):
    assert s == pytest.approx(float(karp_flatt(LAWS["amdahl"].curve(n, s=s), n)), abs=1e-9)


def test_karp_flatt_known_answer_and_one_worker():
    # (1/1.95 - 1/2) / (1 - 1/2) = 1/39
    fraction = karp_flatt([1.0, 1.95], [1, 2])
    assert math.isnan(fraction[0])
    assert 1 / 39 == pytest.approx(fraction[1])
