"""Bandwidths, the straight line and the roofline, from numbers whose answers are known."""

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.bench_document import MODEL, SIZES, WAYS, document
from make.wording import Golden

from horovod_study.analysis.machine.network import analyze, attainable, bus_factor, fit_line, memory_bytes
from horovod_study.errors import AnalysisError
from horovod_study.records import finite


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert (bus_factor("allreduce", 8), bus_factor("allreduce", 4)) == (1.75, 1.5)
    assert bus_factor("allreduce", 2) == bus_factor("broadcast", 8) == 1.0


@given(st.integers(2, 100_000))
def test_the_bus_factor_grows_towards_two(workers: int) -> None:
    assert 1.0 <= bus_factor("allreduce", workers) < bus_factor("allreduce", workers + 1) < 2.0


# ---------------------------------------------------------------------------------------------- alpha and beta


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e11))
def test_an_exact_line_is_found(alpha: float, beta: float) -> None:
    sizes = [4 * 4**k for k in range(14)]
    fit = fit_line("mpi", sizes, [alpha + size / beta for size in sizes])

    # Where one of the two hardly shows within the sizes, rounding hides it.
    if alpha > 1e-4 * 4 / beta and sizes[-1] / beta > 1e-4 * alpha:
        assert fit["alpha_s"] + 613_764 / fit["beta_bytes_per_s"] == pytest.approx(alpha + 613_764 / beta, rel=1e-6)
        assert fit["alpha_s"] == pytest.approx(alpha, rel=1e-3)
        assert fit["beta_bytes_per_s"] == pytest.approx(beta, rel=1e-3)
        assert fit["half_bytes"] == pytest.approx(alpha * beta, rel=1e-2)
    assert fit["rms_relative"] < 1e-6


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    alpha, beta, sizes = 30e-6, 5e9, np.array([4.0 * 4**k for k in range(14)])
    held = []
    for seed in range(300):
        noise = np.exp(0.1 * np.random.default_rng(seed).standard_normal(len(sizes)))
        fit = fit_line("mpi", sizes.tolist(), ((alpha + sizes / beta) * noise).tolist())
        held.append(fit["alpha_ci95_s"][0] <= alpha <= fit["alpha_ci95_s"][1])
        held.append(fit["beta_ci95_bytes_per_s"][0] <= beta <= fit["beta_ci95_bytes_per_s"][1])

    assert 0.92 <= np.mean(held[::2]) <= 0.98
    assert 0.92 <= np.mean(held[1::2]) <= 0.98


def test_the_order_of_sizes_does_not_matter() -> None:
    seconds = [1e-5, 1.3e-5, 2e-5, 1.2e-4]
    forward = fit_line("mpi", [4, 1000, 50_000, 1_000_000], seconds)
    backward = fit_line("mpi", [1_000_000, 50_000, 1000, 4], seconds[::-1])

    assert forward["alpha_s"] == pytest.approx(backward["alpha_s"], rel=1e-9)
    assert forward["beta_ci95_bytes_per_s"] == pytest.approx(backward["beta_ci95_bytes_per_s"], rel=1e-6)


def test_what_does_not_show_has_no_interval() -> None:
    """Large messages alone say nothing about the time of a small one."""
    sizes = [2**26, 2**27, 2**28]
    fit = fit_line("mpi", sizes, [size / 5e9 * wobble for size, wobble in zip(sizes, (1.0, 1.001, 0.999), strict=True)])

    assert fit["beta_bytes_per_s"] == pytest.approx(5e9, rel=0.01)
    assert fit["alpha_ci95_s"][1] > 2 * fit["alpha_ci95_s"][0]


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([4, 8, 8], [1.0, 1.0, 1.0]),
        ([4, 8, 16], [1.0, 0.0, 1.0]),
        ([4, 8, 16], [1.0, math.nan, 1.0]),
    ],
)
def test_a_line_that_cannot_be_fitted(sizes: list[float], seconds: list[float], golden: Golden) -> None:
    with pytest.raises(AnalysisError) as caught:
        fit_line("mpi", sizes, seconds)
    golden(str(caught.value))


# ---------------------------------------------------------------------------------------------------- roofline


def test_the_roof_is_the_lower_of_two() -> None:
    assert attainable(2.0, peak=100e9, bandwidth=10e9) == 20e9
    assert attainable(50.0, peak=100e9, bandwidth=10e9) == 100e9


def test_bytes_of_a_step() -> None:
    assert memory_bytes(parameters=100, activations_per_curve=10, batch=5) == 4 * (1000 + 150)


def test_the_roofline_of_a_document() -> None:
    roofline = analyze(document())["roofline"]
    assert roofline is not None

    assert roofline["peaks_flop_per_s"] == {"float32": 100e9, "bf16": 300e9}
    assert roofline["memory_bytes_per_s"] == pytest.approx(10e9)  # 5 GB/s copied is 10 GB/s read and written
    assert roofline["step_s"] == 2.6e-3
    assert roofline["flop_per_s"] == pytest.approx(159_081_300 / 2.6e-3)
    assert roofline["network_flop_per_byte"] == pytest.approx(159_081_300 / 613_764)
    assert roofline["memory_flop_per_byte"] == pytest.approx(159_081_300 / (4 * (1_534_410 + 3 * 8007 * 75)))
    mpi = roofline["networks"][0]
    seconds = 2e-6 + 613_764 / 6e9
    assert (mpi["way"], mpi["allreduce_s"]) == ("mpi", seconds)
    assert mpi["bytes_per_s"] == pytest.approx(613_764 / seconds)
    assert mpi["final_bytes_per_s"] == pytest.approx(6e9, rel=1e-6)
    assert mpi["ridge_flop_per_byte"] == pytest.approx(100e9 * seconds / 613_764)
    assert mpi["attainable_flop_per_s"] == 100e9
    assert mpi["share_without_overlap"] == pytest.approx(2.6e-3 / (2.6e-3 + seconds))


# -------------------------------------------------------------------------------------------------- a document


def test_points_carry_bandwidths_and_the_names_of_gradients() -> None:
    network = analyze(document(workers=4))
    points = network["points"].set_index(["way", "operation", "place", "bytes"])
    row = points.loc[("horovod/mpi", "allreduce", "in", 613_764)]

    assert row["count"] == 153_441
    assert row["of_model"] == "all gradients"
    assert points.loc[("mpi", "broadcast", "in", 900)]["of_model"] == "conv1.weight"
    assert row["busbw_gb_per_s"] == pytest.approx(1.5 * row["algbw_gb_per_s"])
    assert row["seconds_median"] == pytest.approx(30e-6 + 613_764 / 5e9)
    assert set(network["fits"]) == set(WAYS)
    for way, (alpha, beta) in WAYS.items():
        assert network["fits"][way]["alpha_s"] == pytest.approx(alpha, rel=1e-6)
        assert network["fits"][way]["beta_bytes_per_s"] == pytest.approx(beta, rel=1e-6)
    assert network["doubts"] == []


def test_nothing_given_is_changed_and_everything_is_json() -> None:
    given_document = document()
    before = copy.deepcopy(given_document)
    network = analyze(given_document)

    assert given_document == before
    text = json.dumps(finite(network), allow_nan=False)
    assert json.loads(text)["model"] == MODEL
    assert json.loads(text)["copies"][1] == {
        "name": "host to device, pinned",
        "bytes": None,
        "reason": "no GPU is visible",
        "gb_per_s_median": None,
        "gb_per_s_min": None,
        "gb_per_s_max": None,
    }


def test_wrong_elements_are_counted_and_said(golden: Golden) -> None:
    network = analyze(document(wrong=3))

    assert network["wrong"] == 3
    golden(network["doubts"][0], "3 wrong", "4 bytes")


def test_a_switch_of_protocol_is_a_doubt(golden: Golden) -> None:
    made = document()
    for point in made["jobs"][0]["points"]:
        if point["way"] == "mpi" and point["bytes"] == 16_384:
            point["seconds"] = [3 * seconds for seconds in point["seconds"]]
    doubts = [doubt for doubt in analyze(made)["doubts"] if "straight" in doubt]

    assert len(doubts) == 1
    golden(doubts[0], "16,384 bytes", "S/beta")


def test_doubts_of_the_conditions(golden: Golden) -> None:
    made = document(rounds=2, load=3.5)
    made["jobs"][0]["points"][len(SIZES)]["seconds"] = [1e-6, 9e-6]  # the smallest in place, over MPI
    doubts = analyze(made)["doubts"]

    golden(doubts, "2 rounds", "--rounds", "3.5", "9 sizes", "2 between")


def test_too_few_sizes_leave_the_table_without_a_line(golden: Golden) -> None:
    network = analyze(document(sizes=(4, 613_764)))

    assert network["fits"] == {}
    assert network["roofline"] is not None
    assert network["roofline"]["networks"][0]["final_bytes_per_s"] is None
    golden(network["doubts"], "2 sizes")
