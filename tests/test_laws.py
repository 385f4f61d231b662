"""Scaling laws: formulas against published values, derivatives, and the questions that parameters answer."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from horovod_study import laws
from horovod_study.analysis.fit.fitting import fit, fit_series
from horovod_study.analysis.fit.rows import places
from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS
from horovod_study.analysis.laws.costs import karp_flatt
from horovod_study.errors import AnalysisError

fractions = st.floats(0.0, 1.0)


def test_the_laws_and_their_order():
    names = ["linear", "amdahl", "gustafson", "usl", "power", "log2", "ring", "tree", "overlap", "constant"]
    assert names == list(LAWS)
    assert ["constant", "linear", "power", "log2", "ring", "tree"] == list(QUANTITY_LAWS)


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

    assert curve.max() <= LAWS["usl"].limit_of(alpha=alpha, beta=beta) * (1 + 1e-9)
    assert LAWS["usl"].peak_of(alpha=alpha, beta=beta) == pytest.approx(max(1.0, math.sqrt((1 - alpha) / beta)))


def test_limits_of_the_laws():
    assert 20 == LAWS["amdahl"].limit_of(s=0.05)
    assert math.inf == LAWS["amdahl"].limit_of(s=0)
    assert math.inf == LAWS["usl"].peak_of(alpha=0.05, beta=0)
    assert 1 == LAWS["usl"].peak_of(alpha=1.2, beta=0.01)
    assert 20 == LAWS["usl"].limit_of(alpha=0.05, beta=0)
    assert math.inf == LAWS["usl"].limit_of(alpha=0, beta=0)
    assert math.inf == LAWS["linear"].limit_of(slope=0.4, intercept=1.0)
    assert math.inf == LAWS["gustafson"].limit_of(s=0.5)


def test_the_bottleneck_changes_where_coherency_overtakes_contention():
    assert "contention" == LAWS["usl"].bottleneck_of(49, alpha=0.05, beta=0.001)
    assert "coherency" == LAWS["usl"].bottleneck_of(51, alpha=0.05, beta=0.001)
    assert "none" == LAWS["usl"].bottleneck_of(16, alpha=0, beta=0)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_gradient_agrees_with_differences(name):
    law = LAWS[name]
    values = np.array([0.07, 0.003, 1.9, 0.8] if name == "overlap" else [0.07, 0.003, 0.9][: len(law.parameters)])
    n = np.array([1.0, 2.0, 5.0, 40.0])

    gradient = law.gradient(n, values)

    for i in range(len(values)):
        step = np.zeros(len(values))
        step[i] = 1e-6
        assert gradient[:, i] == pytest.approx((law.at(n, values + step) - law.at(n, values - step)) / 2e-6, rel=1e-6)


def test_laws_evaluate_many_parameter_sets_at_once():
    many = np.array([[0.1, 0.0, 1.0], [0.0, 0.01, 2.0]])
    usl = LAWS["usl"]
    assert usl.at([1, 4, 16], many).shape == (2, 3)
    assert usl.gradient([1, 4, 16], many).shape == (2, 3, 3)
    assert usl.at([1, 4, 16], many)[1] == pytest.approx(usl.at([1, 4, 16], many[1]))


@given(s=st.floats(0, 1), n=st.integers(2, 1000))
def test_karp_flatt_finds_the_serial_fraction_of_amdahl(s, n):
    assert s == pytest.approx(float(karp_flatt(LAWS["amdahl"].curve(n, s=s), n)), abs=1e-9)


def test_karp_flatt_known_answer_and_one_worker():
    # (1/1.95 - 1/2) / (1 - 1/2) = 1/39
    fraction = karp_flatt([1.0, 1.95], [1, 2])
    assert math.isnan(fraction[0])
    assert 1 / 39 == pytest.approx(fraction[1])


def test_ring_and_tree_cost_tables():
    # 2 (n - 1) messages of 1/n of the buffer each; up and down a tree of ceil(log2 n) levels.
    assert [0, 2 + 0.5, 6 + 0.75, 14 + 0.875] == pytest.approx(
        QUANTITY_LAWS["ring"].curve(np.array([1, 2, 4, 8]), 0.0, 1, 0.5).tolist()
    )
    assert [0, 2, 4, 4, 6, 6, 8] == QUANTITY_LAWS["tree"].curve(np.array([1, 2, 3, 4, 5, 8, 9]), 0.0, 1).tolist()
    assert QUANTITY_LAWS["tree"].curve(2.0 ** np.arange(24), 0.0, 0.5).tolist() == list(range(24))


@pytest.mark.parametrize(
    ("law", "mode", "params", "n", "expected"),
    [
        ("power", "weak", {"scale": 2.0, "exponent": 0.5}, 16, 8.0),
        ("log2", "weak", {"intercept": 1.0, "slope": 1.5}, 8, 5.5),
        ("constant", "weak", {"level": 3.0}, 99, 3.0),
        ("ring", "weak", {"alpha": 0.01, "beta": 0.2, "gamma": 1.0}, 8, 8 / (1 + 0.14 + 0.35)),
        ("ring", "strong", {"alpha": 0.01, "beta": 0.2, "gamma": 1.0}, 8, 1 / (0.125 + 0.14 + 0.35)),
        ("tree", "weak", {"hop": 0.05, "gamma": 1.0}, 9, 9 / 1.4),
        ("tree", "strong", {"hop": 0.05, "gamma": 1.0}, 8, 1 / (0.125 + 0.3)),
        # 3, 4 and 5: a step of 1 beside an exchange of 0.75 makes 1.25 with g = 2.
        ("overlap", "weak", {"alpha": 0.375, "beta": 0.0, "g": 2.0, "gamma": 1.0}, 2, 2 / 1.25),
        ("overlap", "strong", {"alpha": 0.3, "beta": 0.15 / 2 * 2 / 3, "g": 1.0, "gamma": 1.0}, 4, 1 / (0.25 + 1.875)),
    ],
)
def test_curves_of_steps(law, mode, params, n, expected):
    assert expected == pytest.approx(float(LAWS[law].for_mode(mode).curve(n, **params)), rel=1e-12)


def test_a_node_boundary_has_constants_of_its_own(golden):
    ring, tree = LAWS["ring"].across(), LAWS["tree"].across()
    where = places([4, 6, 8], [1, 2, 2], per_node=4)
    # Six workers on two nodes of four: four and two, so the fullest node has four.
    assert [4, 4, 4] == where[2].tolist()
    assert [4, 3, 4] == places([4, 6, 8], [1, 2, 2])[2].tolist()
    assert [1, 2, 3] == places([4, 5, 12], per_node=4)[1].tolist()
    found = ring.at(where, np.array([0.01, 0.2, 0.03, 0.5, 1.0]))
    inside = 2 * 3 * 0.01 + 2 * 3 / 4 * 0.2
    multi_node = 2 * 1 * 0.03 + 2 * 1 / 2 * 0.5
    assert [4 / (1 + inside), 6 / (1 + inside + multi_node), 8 / (1 + inside + multi_node)] == pytest.approx(
        found.tolist()
    )
    assert [4 / 1.4, 6 / 1.8, 8 / 1.8] == pytest.approx(tree.at(where, np.array([0.1, 0.2, 1.0])).tolist())
    with golden.raises(AnalysisError, match="3 nodes.*2 workers"):
        places([2], [3])


@given(
    alpha=st.floats(0, 0.2), beta=st.floats(0, 0.5), n=st.integers(2, 4096), mode=st.sampled_from(["weak", "strong"])
)
def test_overlap_lies_between_the_ring_and_the_longer_part(alpha, beta, n, mode):
    def speedup(g):
        return float(LAWS["overlap"].for_mode(mode).curve(n, alpha=alpha, beta=beta, g=g))

    serial = float(LAWS["ring"].for_mode(mode).curve(n, alpha=alpha, beta=beta))
    own = 1 / n if mode == "strong" else 1.0
    hidden = (
        own * n / max(own, float(QUANTITY_LAWS["ring"].curve(n, 0.0, alpha, beta))) / (1 if mode == "weak" else own * n)
    )
    assert serial == pytest.approx(speedup(1.0), rel=1e-9)
    assert serial * (1 - 1e-9) <= speedup(2.0) <= speedup(8.0) * (1 + 1e-9)
    assert speedup(64.0) == pytest.approx(hidden, rel=0.012)


@given(alpha=st.floats(1e-5, 0.05), beta=st.floats(0, 0.45))
def test_the_peak_of_a_ring_over_fixed_work(alpha, beta):
    ring = LAWS["ring"].for_mode("strong")
    n = np.geomspace(1, 1e5, 20_000)
    peak = ring.peak_of(alpha=alpha, beta=beta, gamma=1.0)
    assert max(1.0, math.sqrt((1 - 2 * beta) / (2 * alpha))) == pytest.approx(peak)
    assert ring.curve(n, alpha=alpha, beta=beta).max() <= ring.limit_of(alpha=alpha, beta=beta, gamma=1.0) * (1 + 1e-9)


def test_limits_and_peaks_of_steps():
    ring, tree, overlap = LAWS["ring"], LAWS["tree"], LAWS["overlap"]
    assert 50 == ring.limit_of(alpha=0.01, beta=0.2, gamma=1.0)
    assert math.inf == ring.peak_of(alpha=0.01, beta=0.2, gamma=1.0) == ring.limit_of(alpha=0.0, beta=0.2, gamma=1.0)
    assert 2.5 == ring.for_mode("strong").limit_of(alpha=0.0, beta=0.2, gamma=1.0)
    # 1/N + 2 hop log2 N over 1, 2, 4, 8, ...: 1, 0.6, 0.45, 0.425, 0.4625
    assert 8 == tree.for_mode("strong").peak_of(hop=0.05, gamma=1.0)
    assert 1 / 0.425 == pytest.approx(tree.for_mode("strong").limit_of(hop=0.05, gamma=1.0))
    assert math.inf == tree.peak_of(hop=0.05, gamma=1.0)
    assert 1 / 0.12 == pytest.approx(overlap.limit_of(alpha=0.06, beta=0.1, g=2.0, gamma=1.0))
    serial = overlap.for_mode("strong").peak_of(alpha=0.01, beta=0.1, g=1.0, gamma=1.0)
    assert serial == pytest.approx(LAWS["ring"].for_mode("strong").peak_of(alpha=0.01, beta=0.1, gamma=1.0), rel=0.01)


def test_the_knee():
    # Eager, Zahorjan and Lazowska 1989: the most S^2/N. For Amdahl's law that is at (1 - s)/s.
    assert 19 == pytest.approx(LAWS["amdahl"].knee_of(s=0.05), rel=1e-3)
    assert math.inf == LAWS["gustafson"].knee_of(s=0.3)
    n = np.arange(1, 200)
    usl = {"alpha": 0.05, "beta": 0.001, "gamma": 1.0}
    worth = LAWS["usl"].curve(n, **usl) ** 2 / n
    assert n[worth.argmax()] == pytest.approx(LAWS["usl"].knee_of(**usl), abs=1)
    assert LAWS["usl"].knee_of(**usl) < LAWS["usl"].peak_of(alpha=0.05, beta=0.001)


def test_a_fit_leaves_the_law_alone():
    n = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    fitted = fit(LAWS["amdahl"], n, LAWS["amdahl"].curve(n, s=0.05))
    assert 0.05 == pytest.approx(fitted.params_["s"])
    assert 20 == pytest.approx(fitted.limit())
    assert 19 == pytest.approx(fitted.knee(), rel=1e-3)
    assert "contention" == fitted.bottleneck()


def test_fit_with_nodes():
    n = np.array([1, 2, 3, 4, 8, 12, 16, 32, 64], dtype=float)
    ring, nodes = LAWS["ring"].across(), np.array([1, 1, 1, 1, 2, 3, 4, 8, 16])
    truth = np.array([0.01, 0.1, 0.02, 0.3, 1.0])
    fitted = fit(LAWS["ring"], n, ring.at(places(n, nodes), truth), nodes=nodes)
    assert dict(zip(ring.parameters, truth, strict=True)) == pytest.approx(fitted.params_, rel=1e-5)
    # Without nodes, they are filled as the fullest one was.
    assert fitted([128], [32]) == pytest.approx(fitted([128]))
    assert fitted([128], [128]) != pytest.approx(fitted([128]))
    assert "communication" == fitted.bottleneck()


def measured(seed=1, repeats=5):
    """Workers (25, 1) and speedups of a USL with 2 % noise."""
    n = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], repeats)
    noise = 1 + 0.02 * np.random.default_rng(seed).standard_normal(len(n))
    return n[:, np.newaxis], LAWS["usl"].curve(n, alpha=0.05, beta=0.001) * noise


class TestEstimators:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:fewer than one worker")  # data that are no scaling
    @pytest.mark.parametrize("name", sorted(LAWS))
    def test_checks_of_scikit_learn(self, name):
        results = check_estimator(clone(LAWS[name]), on_fail=None, on_skip=None)

        assert len(results) > 50
        assert [] == [each["check_name"] for each in results if each["status"] == "failed"]

    def test_what_is_fitted_is_what_the_study_says(self):
        X, y = measured()
        law, fitted = laws.USL().fit(X, y), fit(LAWS["usl"], X[:, 0], y)

        assert fitted.params_ == {"alpha": law.alpha_, "beta": law.beta_, "gamma": law.gamma_}
        assert law.intervals_ == fitted.intervals_
        assert (law.peak(), law.limit(), law.knee()) == (fitted.peak(), fitted.limit(), fitted.knee())
        assert law.predict([[3.0], [32.0]]) == pytest.approx(fitted([3.0, 32.0]))
        assert 0.05 == pytest.approx(laws.Amdahl().fit(X, 1 / (0.05 + 0.95 / X[:, 0])).serial_)

    def test_tools_of_scikit_learn_take_them(self):
        X, y = measured()

        left_out = cross_val_predict(laws.USL(), X, y, groups=X[:, 0], cv=LeaveOneGroupOut())
        rings = LAWS["ring"].for_mode("strong").curve(X[:, 0], alpha=0.01, beta=0.2)
        folds = KFold(5, shuffle=True, random_state=0)
        search = GridSearchCV(laws.Ring(), {"mode": ["weak", "strong"]}, cv=folds).fit(X, rings)
        piped = make_pipeline(FunctionTransformer(), laws.USL()).fit(X, y)

        assert np.median(np.abs(left_out / y - 1)) < 0.05
        assert "strong" == search.best_params_["mode"]
        assert piped.predict(X) == pytest.approx(laws.USL().fit(X, y).predict(X))
        assert {"mode": "strong", "quantity": False, "multi_node": False, "scaled": True} == laws.Tree(
            mode="strong"
        ).get_params()

    def test_a_weight_is_as_many_rows(self):
        X, y = measured(repeats=1)
        weight = np.array([1, 3, 0, 2, 1])

        weighted, repeated = laws.USL().fit(X, y, weight), laws.USL().fit(np.repeat(X, weight, 0), np.repeat(y, weight))

        assert weighted.alpha_ == pytest.approx(repeated.alpha_, rel=1e-6)

    def test_nodes_are_the_second_column(self):
        n, nodes = np.array([1.0, 2, 3, 4, 8, 12, 16, 32, 64]), np.array([1.0, 1, 1, 1, 2, 3, 4, 8, 16])
        truth = np.array([0.01, 0.1, 0.02, 0.3, 1.0])

        ring = laws.Ring().fit(np.stack([n, nodes], axis=1), LAWS["ring"].across().at(places(n, nodes), truth))

        assert truth == pytest.approx(
            [ring.alpha_, ring.beta_, ring.alpha_across_, ring.beta_across_, ring.gamma_], rel=1e-4
        )

    @pytest.mark.parametrize(
        ("law", "why"),
        [
            (laws.Ring(mode="Strong"), "mode is 'Strong'; allowed: weak, strong"),
            (laws.Overlap(quantity=True), "quantity: is a law of speedups only"),
            (laws.USL(multi_node=True), "multi_node: has no constants across nodes"),
            (laws.Tree(multi_node=True), "multi_node: X needs a second column"),
        ],
    )
    def test_what_a_law_has_not_is_refused(self, law, why):
        with pytest.raises(AnalysisError, match=why):
            law.fit(*measured())

    def test_impossible_rows_are_refused_or_told(self):
        X, y = measured()
        with pytest.raises(AnalysisError, match="weights must be 0 or more"):
            laws.USL().fit(X, y, -np.ones(len(y)))
        with pytest.warns(UserWarning, match="fewer than one worker"):
            assert {} == laws.USL().fit(-X, y).intervals_

    def test_nothing_is_left_of_an_earlier_fit(self):
        X, y = measured()
        law = laws.USL().fit(X, y).fit(X[[0, 5, 10]], y[[0, 5, 10]])
        assert not hasattr(law, "gamma_") and {"alpha", "beta"} == set(law.params_)

    def test_half_a_law_is_refused_where_it_is_written(self):
        for wrong in (
            {"name": "half"},
            {"name": "half", "bounds": {"a": (0, 1)}},
            {"name": "usl", "bounds": {"a": (0, 1)}},
        ):
            with pytest.raises(TypeError):
                type(
                    "Half",
                    (laws.Law,),
                    {**wrong, **({"curve": lambda self, n, a: a} if "usl" in wrong.values() else {})},
                )
        assert "half" not in LAWS and isinstance(LAWS["usl"], laws.USL)

    def test_a_law_of_one_s_own_is_fitted_beside_the_others(self):
        class Root(laws.Law):
            """S = level sqrt(N)."""

            name, label, text = "root", "square root", "S = level sqrt(N)"
            bounds = {"level": (0.0, math.inf)}  # noqa: RUF012

            def curve(self, n, level):
                return level * np.sqrt(n)

        try:
            table = pd.DataFrame({"workers": [1, 2, 4, 8, 16] * 3})
            noise = 1 + 1e-3 * np.random.default_rng(0).standard_normal(15)
            series = fit_series(table.assign(samples_per_s=100 * np.sqrt(table["workers"]) * noise))[""]
        finally:
            del LAWS["root"]

        assert "root" == series.selected
        assert 1 == pytest.approx(series.fits["root"].params_["level"], rel=3e-3)
        assert math.inf == series.fits["root"].peak() == series.fits["root"].limit()
