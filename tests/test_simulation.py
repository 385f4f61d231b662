"""The simulator against closed forms, brute force, known limits, and published all-reduces that were held out."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.benchmarks import load_benchmark
from make.properties import examples
from make.wording import Golden

from horovod_study.analysis.costs import Link
from horovod_study.analysis.simulate.scaling import (
    CHANGES,
    CHOICES,
    CLOSED_FORM_ERROR,
    GROWTH,
    PARTS,
    Chance,
    Compute,
    Curves,
    Level,
    Network,
    Runtime,
    Scenario,
    Sweep,
    all_doubts,
    allreduce_s,
    carried,
    communicate,
    costs,
    doubts,
    error_of,
    measured,
    network_from,
    ring,
    simulate,
    small_allreduce_s,
    what_if,
)
from horovod_study.errors import AnalysisError, ConfigError

ALPHA, RATE, SIZE = 2e-6, 10e9, 100e6
LINK = Link(alpha_s=ALPHA, bytes_per_s=RATE)
SLOW = Link(alpha_s=20e-6, bytes_per_s=1.25e9)

workers = st.integers(2, 100_000)
alphas, rates, sizes = st.floats(1e-7, 1e-3), st.floats(1e6, 1e12), st.floats(1, 1e11)


def flat(**changes: Any) -> Network:
    """Every worker on a node of its own, all links alike."""
    return Network(**{"intra": LINK, "inter": LINK, "workers_per_node": 1, **changes})


def scenario(**changes: Any) -> Scenario:
    plain: dict[str, Any] = {
        "compute": Compute(mean_s=10e-3),
        "batch": 75,
        "gradient_bytes": SIZE,
        "network": flat(),
        "algorithm": "ring",
    }
    return Scenario(**{**plain, **changes})


def only(one: Scenario, *counts: int, **options: Any) -> pd.DataFrame:
    return simulate({"one": one}, counts, **options)


def scattered(seed: int = 1, steps: int = 500) -> Compute:
    return measured(np.random.default_rng(seed).lognormal(math.log(10e-3), 0.1, steps))


# ---------------------------------------------------------------------------------------------- closed forms


@given(workers, alphas, rates, sizes)
@settings(max_examples=examples(50))
def test_on_one_kind_of_link_costs_are_the_closed_forms(n: int, alpha: float, rate: float, size: float) -> None:
    link = Link(alpha_s=alpha, bytes_per_s=rate)
    rounds, moved = math.ceil(math.log2(n)), 2 * (n - 1) / n * size / rate
    expected = {
        "ring": 2 * (n - 1) * alpha + moved,
        "doubling": rounds * (alpha + size / rate),
        "halving": 2 * rounds * alpha + moved,
        "ps": 2 * alpha + 2 * (n - 1) * size / rate,
    }
    # Nodes of one worker each, and one node for all: the same link, so the same costs.
    for network in (flat(intra=link, inter=link), flat(intra=link, inter=link, workers_per_node=n)):
        for name, seconds in expected.items():
            assert allreduce_s(network, name, n, size) == pytest.approx(seconds, rel=1e-12), name


@given(workers, sizes)
@settings(max_examples=examples(50))
def test_of_several_algorithms_the_quickest_is_taken(n: int, size: float) -> None:
    for name in ("auto", "tree"):
        singles = [allreduce_s(flat(), each, n, size) for each in CHOICES[name]]

        assert allreduce_s(flat(), name, n, size) == min(singles)


@given(st.integers(1, 512), sizes)
@settings(max_examples=examples(50))
def test_hierarchical_on_one_node_is_a_ring(n: int, size: float) -> None:
    network = Network(intra=LINK, inter=SLOW, workers_per_node=512)

    assert allreduce_s(network, "hierarchical", n, size) == pytest.approx(
        allreduce_s(network, "ring", n, size), rel=1e-12
    )


def test_hierarchical_between_nodes_by_hand() -> None:
    """4 nodes of 8: 14 hops and 2 * 7/8 S inside, 6 hops and 2 * 3/4 S through the card."""
    network = Network(intra=LINK, inter=SLOW, workers_per_node=8)
    expected = 14 * ALPHA + 1.75 * SIZE / RATE + 6 * 20e-6 + 1.5 * SIZE / 1.25e9

    assert allreduce_s(network, "hierarchical", 32, SIZE) == pytest.approx(expected, rel=1e-12)


def test_a_ring_over_nodes_adds_latencies_and_flows_at_the_slowest_link() -> None:
    """32 workers on 4 nodes: 62 hops, 8 of them between nodes, as NCCL counts them (nInterSteps = 2 nNodes)."""
    network = Network(intra=LINK, inter=SLOW, workers_per_node=8)

    assert allreduce_s(network, "ring", 32, SIZE) == pytest.approx(
        54 * ALPHA + 8 * 20e-6 + 62 / 32 * SIZE / 1.25e9, rel=1e-12
    )


def test_partners_on_different_nodes_share_the_card() -> None:
    """16 workers on 4 nodes: 2 rounds inside, then 2 in which 4 workers send through one card at once."""
    network = Network(intra=LINK, inter=SLOW, workers_per_node=4)
    expected = 2 * (ALPHA + SIZE / RATE) + 2 * (20e-6 + 4 * SIZE / 1.25e9)

    assert allreduce_s(network, "doubling", 16, SIZE) == pytest.approx(expected, rel=1e-12)


def test_switches_add_latency_and_oversubscription_to_what_crosses_them() -> None:
    levels = (Level(nodes=4, latency_s=1e-6, oversubscription=2.0),)
    network = flat(levels=levels)
    # Partners 1 and 2 apart sit below one switch, those 4 and 8 apart do not.
    expected = 4 * ALPHA + 2 * 1e-6 + (2 + 2 * 2.0) * SIZE / RATE

    assert allreduce_s(network, "doubling", 16, SIZE) == pytest.approx(expected, rel=1e-12)
    # A ring leaves each of four switches once in a round, with one stream, for which the uplinks are wide enough.
    assert allreduce_s(network, "ring", 16, SIZE) == pytest.approx(
        30 * ALPHA + 8 * 1e-6 + 30 / 16 * SIZE / RATE, rel=1e-12
    )
    assert allreduce_s(network, "ring", 4, SIZE) == allreduce_s(flat(), "ring", 4, SIZE)
    narrow = flat(levels=(Level(nodes=4, oversubscription=8.0),))
    assert ring(narrow, 16).s_per_byte == pytest.approx(2 * ring(flat(), 16).s_per_byte)


@pytest.mark.parametrize("n", [4, 8, 64])
def test_a_parameter_server_loses_to_a_ring_beyond_the_size_found_by_hand(n: int) -> None:
    """2 a + 2 (n-1) S b = 2 (n-1) a + 2 (n-1)/n S b at S = n (n-2) / (n-1)^2 a/b."""
    crossover = n * (n - 2) / (n - 1) ** 2 * ALPHA * RATE

    for size, server_is_slower in ((0.99 * crossover, False), (1.01 * crossover, True)):
        server, around = (allreduce_s(flat(), name, n, size) for name in ("ps", "ring"))
        assert bool(server > around) == server_is_slower


def test_as_many_servers_as_workers_move_what_a_ring_moves() -> None:
    for n in (2, 5, 16):
        server = costs(flat(servers=n), "ps", n)[0]

        assert server.s_per_byte == pytest.approx(ring(flat(), n).s_per_byte)
        assert server.latency_s == 2 * ALPHA


@given(st.sampled_from(sorted(CHOICES)), workers, st.integers(1, 64), st.floats(1.0, 100.0), sizes)
@settings(max_examples=examples(50))
def test_a_better_network_is_never_slower(name: str, n: int, g: int, factor: float, size: float) -> None:
    worse = Network(
        intra=LINK, inter=SLOW, workers_per_node=g, levels=(Level(nodes=8, latency_s=1e-6, oversubscription=3.0),)
    )
    for better in (
        replace(worse, inter=worse.inter.times(bandwidth=factor)),
        replace(worse, intra=worse.intra.times(bandwidth=factor)),
        replace(worse, inter=worse.inter.times(alpha=1 / factor)),
        replace(worse, levels=()),
    ):
        assert allreduce_s(better, name, n, size) <= allreduce_s(worse, name, n, size) * (1 + 1e-12)


# ------------------------------------------------------------------------------------- measured all-reduces


SIZES = np.array([8.0, 1e3, 1e6, 1e9])


def swept(workers: int, nodes: int, *, latency_s: float = 1e-5, alone: bool = True, **changes: Any) -> Network:
    """A network of which all-reduces were measured: all latency, then all bytes, in the measured count."""
    sweep = Sweep(
        workers=workers,
        nodes=nodes,
        sizes=SIZES,
        seconds=latency_s + 2 * (workers - 1) / workers * SIZES / RATE,
        **changes,
    )
    measured = Curves(sweeps=(sweep,), intra=LINK, inter=SLOW, alone=alone)
    return Network(intra=LINK, inter=SLOW, workers_per_node=workers // nodes, measured=measured)


def test_a_measured_count_is_reproduced_at_every_size_and_between_two_counts_times_are_between() -> None:
    two, eight = swept(8, 2), swept(32, 8, latency_s=3e-5)
    assert two.measured is not None and eight.measured is not None
    both = replace(two, measured=replace(two.measured, sweeps=(*two.measured.sweeps, *eight.measured.sweeps)))

    for n, sweep in ((8, two.measured.sweeps[0]), (32, eight.measured.sweeps[0])):
        assert allreduce_s(both, "auto", n, SIZES) == pytest.approx(sweep.seconds, rel=1e-12)
        assert error_of(both, "auto", n) == 0
    between = allreduce_s(both, "auto", 16, SIZES)
    assert (two.measured.sweeps[0].seconds < between).all() and (between < eight.measured.sweeps[0].seconds).all()


def test_latency_grows_with_the_levels_of_a_tree_and_bytes_with_their_share_and_congestion() -> None:
    """8 nodes to 64: 3 levels to 6; on one node rounds; a ring grows with the nodes."""
    grown = allreduce_s(swept(8, 8), "auto", 64, np.array([1.0, 1e12]))
    assert grown[0] == pytest.approx(1e-5 * (6 + GROWTH.small) / (3 + GROWTH.small), rel=1e-3)
    assert grown[1] == pytest.approx(2 * 63 / 64 * 1e12 / RATE * (1 + GROWTH.congestion) ** 3, rel=1e-3)
    assert allreduce_s(swept(2, 1), "auto", 8, 1.0) == pytest.approx(3e-5, rel=1e-3)
    assert allreduce_s(swept(8, 8, algorithm="ring"), "auto", 64, 1.0) == pytest.approx(8e-5, rel=1e-3)
    assert carried("tree", 8, 2) == 1 and carried("tree", 24, 3) == 2 and carried("auto", 8, 2) == 1.75


def test_the_error_grows_with_the_distance_from_what_was_measured() -> None:
    errors = [error_of(swept(8, 2), "auto", n) for n in (8, 16, 64, 4096)]

    assert errors == sorted(errors) and errors[0] == 0 < errors[1] < errors[3] < 1
    assert error_of(swept(8, 2), "ring", 8) == error_of(flat(), "auto", 64) == CLOSED_FORM_ERROR
    assert error_of(flat(), "auto", 2) == error_of(flat(), "auto", 1) == 0
    # Nothing was measured on one node, and what is described between nodes holds before what one node showed.
    assert allreduce_s(swept(8, 2), "auto", 4, SIZE) == min(
        allreduce_s(swept(8, 2), each, 4, SIZE) for each in CHOICES["auto"]
    )
    assert error_of(swept(2, 1, alone=False), "auto", 8) == CLOSED_FORM_ERROR


@pytest.mark.parametrize(
    ("text", "column", "ratio"), [("bandwidth=2x", "transfer_s", 0.5), ("latency=0", "latency_s", 0.0)]
)
def test_what_if_changes_what_follows_from_measured_all_reduces(text: str, column: str, ratio: float) -> None:
    before, after = changed(text, algorithm="auto", network=swept(8, 2))

    assert after[column] == pytest.approx(ratio * before[column])
    assert before["allreduce_low_s"] < before["allreduce_s"] < before["allreduce_high_s"]
    assert before["step_low_s"] < before["step_s"] < before["step_high_s"]


def test_published_all_reduces_beyond_the_calibrated_counts() -> None:
    """Machines as in docs/predict.md: what is compared was held out, see benchmarks/allreduce.py."""
    benchmark = load_benchmark("allreduce")
    series = benchmark.read()
    table = benchmark.simulated(series)
    machines = table.groupby("machine")

    assert machines["workers"].nunique().shape[0] >= 4 and all(len(one.sweeps) >= 3 for one in series)
    assert machines["simulated_error"].median().mean() <= 0.15 and table["simulated_error"].median() <= 0.15
    assert 0.90 <= table["covered"].mean() <= 0.98
    assert (machines["simulated_error"].median() < machines["closed_error"].median()).all()


def test_published_steps_beyond_the_two_known_counts() -> None:
    """MLPerf as in docs/predict.md; `steps` simulates what `expected` says in the mean."""
    benchmark = load_benchmark("mlperf")
    trainings = benchmark.read()
    pairs = [(one, target) for one in trainings for target in one.targets]
    errors = [abs(benchmark.expected(*each, benchmark.PRIOR) / each[1].step_s - 1) for each in pairs]

    assert len(trainings) >= 40 and max(target.workers for _, target in pairs) >= 1000
    assert np.median(errors) <= 0.08
    assert replace(trainings[0], benchmark="another").gradient_bytes == 4 * benchmark.OTHER
    for each in pairs[:2]:
        drawn = benchmark.steps(*each, benchmark.PRIOR)
        assert np.exp(np.log(drawn).mean()) == pytest.approx(benchmark.expected(*each, benchmark.PRIOR), rel=0.03)


@pytest.mark.parametrize(
    "change", [{"sizes": SIZES[::-1]}, {"seconds": SIZES[:1]}, {"seconds": 0 * SIZES}, {"workers": 1}, {"nodes": 9}]
)
def test_all_reduces_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(AnalysisError, match="all-reduces: "):
        Sweep(**{"workers": 8, "nodes": 2, "sizes": SIZES, "seconds": SIZES, **change})


def test_latency_grows_with_the_workers_for_a_ring_and_with_their_logarithm_for_trees() -> None:
    counts = [2**k for k in range(1, 15)]
    rings, trees = ([float(allreduce_s(flat(), name, n, 8.0)) for n in counts] for name in ("ring", "doubling"))

    assert all(after / before == pytest.approx(2, rel=0.01) for before, after in pairwise(rings[6:]))
    assert np.ptp(np.diff(trees)) < 1e-12


# ------------------------------------------------------------------------------------------------------- the step


def test_without_stragglers_overlap_and_cycle_a_step_is_computing_and_the_closed_form() -> None:
    for name in ("ring", "doubling", "halving", "hierarchical", "ps"):
        table = only(scenario(algorithm=name), 1, 2, 3, 1000, 100_000)
        for row in table.to_dict("records"):
            n = row["workers"]
            expected = 10e-3 + (allreduce_s(flat(), name, n, SIZE) if n > 1 else 0)
            assert row["step_s"] == pytest.approx(float(expected), rel=1e-12)
            assert row["samples_per_s"] == pytest.approx(75 * n / float(expected), rel=1e-12)
    assert table.loc[0, "efficiency"] == pytest.approx(1.0, rel=1e-12)


def test_strong_scaling_without_a_network_is_linear_and_with_fixed_computing_amdahl() -> None:
    quick = flat(intra=Link(alpha_s=0.0, bytes_per_s=1e30), inter=Link(alpha_s=0.0, bytes_per_s=1e30))
    # 1024 samples: 1 ms that does not depend on the batch, and 9 ms that does.
    one = scenario(network=quick, scaling="strong", batch=1024, fixed_share=0.1, batch_measured=True)
    table = only(one, 1, 2, 16, 1024)

    for row in table.to_dict("records"):
        assert row["speedup"] == pytest.approx(1 / (0.1 + 0.9 / row["workers"]), rel=1e-9)
        assert row["batch"] == 1024 // row["workers"]
    assert only(replace(one, fixed_share=0.0), 1, 64)["speedup"].to_list() == pytest.approx([1.0, 64.0], rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 3000])
def test_the_slowest_of_n_is_that_of_n_draws(n: int) -> None:
    compute = scattered()
    rng = np.random.default_rng(3)
    brute = rng.choice(compute.times_s, (4000, n)).max(axis=1)
    error = 4 * brute.std() / math.sqrt(4000) + 1e-12

    assert compute.expected_slowest_s(n) == pytest.approx(brute.mean(), abs=error)
    drawn = compute.slowest_s(n, Chance(2000, seed=1).slowest)
    assert drawn.mean() == pytest.approx(compute.expected_slowest_s(n), rel=2e-3)
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(brute, [0.1, 0.5, 0.9]), rel=0.02)


def test_the_slowest_of_n_by_hand() -> None:
    """Of 1, 2, 3 ms the slowest of two is 1, 2, 3 with 1/9, 3/9, 5/9."""
    compute = measured(np.array([3e-3, 1e-3, 2e-3]))

    assert compute.expected_slowest_s(2) == pytest.approx((1 + 2 * 3 + 3 * 5) / 9 * 1e-3)
    assert compute.expected_slowest_s(1) == compute.mean_s == pytest.approx(2e-3)
    assert compute.expected_slowest_s(100_000) == pytest.approx(3e-3)


def test_a_given_scatter_has_its_mean_and_its_deviation() -> None:
    compute = Compute(mean_s=10e-3, cv=0.2)
    u = (np.arange(200_000) + 0.5) / 200_000
    one = compute.slowest_s(1, u)

    assert one.mean() == pytest.approx(10e-3, rel=1e-3)
    assert one.std() / one.mean() == pytest.approx(0.2, rel=5e-3)
    rng = np.random.default_rng(1)
    brute = rng.lognormal(math.log(10e-3) - math.log1p(0.04) / 2, math.sqrt(math.log1p(0.04)), (20_000, 50)).max(axis=1)
    assert compute.expected_slowest_s(50) == pytest.approx(brute.mean(), rel=5e-3)
    assert math.isfinite(compute.expected_slowest_s(10_000_000))


def test_parts_add_up_to_the_step() -> None:
    one = scenario(
        compute=scattered(), runtime=Runtime(overhead_s=1e-4, cycle_s=2e-3, negotiation="full", fusion_bytes=SIZE / 4)
    )
    for each in (one, replace(one, buckets=8), replace(one, slow_node=1.4), replace(one, algorithm="auto")):
        table = only(each, 1, 2, 16, 5000)

        assert table[[f"{part}_s" for part in PARTS]].sum(axis=1).to_list() == pytest.approx(table["step_s"].to_list())
        assert (table[[f"{part}_s" for part in PARTS]] >= -1e-15).all().all()


def test_overlap_by_hand() -> None:
    """Two buckets of 1 s each and backward of 2 s: the first starts half-way, so one second is hidden, one is not."""
    link = Link(alpha_s=0.0, bytes_per_s=1e9)
    one = scenario(
        compute=Compute(mean_s=4.0),
        backward_share=0.5,
        gradient_bytes=2e9,
        buckets=2,
        network=flat(inter=link),
        algorithm="ring",
        runtime=Runtime(fusion_bytes=0.0),
    )
    row = only(one, 2).iloc[0]

    assert row["step_s"] == pytest.approx(5.0)
    assert row["transfer_s"] == pytest.approx(1.0)
    assert row["hidden_s"] == pytest.approx(1.0)
    assert row["messages"] == 2


def test_what_waits_while_the_network_is_busy_goes_into_one_message() -> None:
    """Four buckets ready at 1, 2, 3, 4 s of 1 s each, behind a first message that takes 2.5 s more: overhead."""
    link = Link(alpha_s=0.0, bytes_per_s=1e9)
    one = scenario(
        compute=Compute(mean_s=4.0),
        backward_share=1.0,
        gradient_bytes=4e9,
        buckets=4,
        network=flat(inter=link),
        runtime=Runtime(overhead_s=2.5),
    )
    # First message 1 to 4.5 s (one bucket); then all three others: 4.5 + 2.5 + 3 = 10 s.
    assert only(one, 2).iloc[0]["step_s"] == pytest.approx(10.0)
    assert only(one, 2).iloc[0]["messages"] == 2
    # At most two in a message: 4.5 + 4.5 = 9, then 9 + 3.5.
    two = replace(one, runtime=replace(one.runtime, fusion_bytes=2e9))
    assert only(two, 2).iloc[0]["step_s"] == pytest.approx(12.5)


@given(st.floats(1e-4, 3e-2), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=examples(50))
def test_the_wait_for_the_cycle_is_that_of_threads_that_look_apart(cycle: float, apart: float, seed: int) -> None:
    ready = np.random.default_rng(seed).gamma(20, 2e-4, (40, 3))
    cost = costs(flat(), "ring", 3)
    operation = sum(cost[0].parts(1e5))
    found = communicate(
        ready.max(axis=1)[None],
        backward_s=np.zeros((1, 40)),
        gradient_bytes=1e5,
        buckets=1,
        choices=cost,
        runtime=Runtime(cycle_s=cycle),
        negotiation_s=0.0,
        apart=np.full(40, apart),
    )

    # Looks go on from the last that found work, every cycle; the earliest of them must find the gradients too. Where an
    # operation outlasts the cycle the thread looks again at once.
    if operation < cycle:
        busy = ready.max(axis=1) + operation
        waits = np.ceil((busy + apart * cycle) / cycle) * cycle - busy
        assert found["cycle"].mean() == pytest.approx(waits.mean(), abs=1e-9)


def test_a_cycle_longer_than_the_step_makes_steps_of_one_cycle() -> None:
    one = scenario(runtime=Runtime(cycle_s=0.1), gradient_bytes=1e3)

    # Threads that look together would take 100 ms; apart, some find the gradients of only some, and look once more.
    assert 0.1 <= only(one, 2).iloc[0]["step_s"] <= 0.2
    assert only(replace(one, runtime=Runtime()), 2).iloc[0]["cycle_s"] == 0


def test_negotiation_is_counted_in_small_collectives() -> None:
    for kind, collectives in (("none", 0), ("cached", 1), ("full", 5)):
        row = only(scenario(runtime=Runtime(negotiation=kind)), 1000).iloc[0]

        assert row["runtime_s"] == pytest.approx(collectives * 10 * ALPHA)
    assert small_allreduce_s(flat(), 1) == 0


def test_a_slow_node_is_waited_for() -> None:
    one = scenario(network=flat(workers_per_node=4), slow_node=1.5)
    row = only(one, 64).iloc[0]

    assert row["compute_s"] == pytest.approx(10e-3 * (60 + 4 * 1.5) / 64)
    assert row["compute_s"] + row["slowest_s"] == pytest.approx(15e-3)


def test_workers_on_a_node_slow_each_other_down_as_measured(golden: Golden) -> None:
    one = scenario(compute=Compute(mean_s=12e-3), beside=4, crowding={1: 1.0, 4: 1.2}, network=flat(workers_per_node=8))
    table = only(one, 1, 2, 4, 8).set_index("workers")

    beyond = 10e-3 * (1.2 + 4 * 0.2 / 3)
    assert table["compute_s"].to_list() == pytest.approx([10e-3, 10e-3 * (1 + 0.2 / 3), 12e-3, beyond])
    assert table.loc[1, "efficiency"] == pytest.approx(1.0)
    golden(" ".join(doubts(one, [8])), "8 workers", "4 at most")


def test_the_interval_of_fuller_nodes_than_measured_grows_with_the_distance() -> None:
    one = scenario(
        compute=Compute(mean_s=12e-3),
        beside=2,
        crowding={1: 1.0, 2: 1.2},
        network=flat(workers_per_node=8),
        spread={"compute": 0.01},
    )
    table = only(one, 2, 4, 8)
    wide = (table["step_high_s"] / table["step_low_s"]).to_list()
    assert wide[0] < wide[1] < wide[2]
    # 12 ms beside one, and 1 ms more for each further worker: nothing of what is beyond, or twice.
    assert table["compute_s"].to_list() == pytest.approx([12e-3, 16e-3, 24e-3])
    step, low, high = table[["step_s", "step_low_s", "step_high_s"]].iloc[2]
    assert step - low > 0.9 * 12e-3 and high - step > 0.9 * 24e-3
    assert (one.crowding_error(2), one.crowding_error(8)) == (0.0, pytest.approx(math.log(2) / 2))


def test_a_hundred_thousand_workers_are_finite_and_ordered() -> None:
    counts = [2**k for k in range(17)] + [100_000]
    for name in CHOICES:
        one = scenario(compute=scattered(), algorithm=name, spread={"compute": 0.02, "alpha": 0.1, "bandwidth": 0.1})
        table = only(one, *counts)
        numbers = table.select_dtypes("number").to_numpy()

        assert np.isfinite(numbers).all()
        assert table["step_s"].is_monotonic_increasing
        for what in ("step_{}_s", "samples_per_s_{}", "efficiency_{}"):
            middle = table[what.replace("_{}", "")]
            assert (table[what.format("low")] <= middle).all() and (middle <= table[what.format("high")]).all()


def test_equal_input_gives_equal_output_and_order_does_not_matter() -> None:
    one = scenario(compute=scattered(), spread={"compute": 0.02, "alpha": 0.1})
    first, again = only(one, 2, 64, seed=5), only(one, 2, 64, seed=5)

    pd.testing.assert_frame_equal(first, again)
    turned = only(one, 64, 2, seed=5).sort_values("workers", ignore_index=True)
    pd.testing.assert_frame_equal(first, turned)
    shuffled = replace(one, compute=measured(np.random.default_rng(0).permutation(one.compute.times_s)))
    pd.testing.assert_frame_equal(first, only(shuffled, 2, 64, seed=5))


def test_intervals_hold_what_the_constants_leave_open() -> None:
    """Only the bandwidth is uncertain, by 10 %: the transfer's interval is exp(+-1.96 * 0.1) of it."""
    link = replace(LINK, workers=64)
    one = scenario(spread={"bandwidth": 0.1}, network=flat(intra=link, inter=link))
    row = only(one, 64).iloc[0]
    rest = row["step_s"] - row["transfer_s"]

    assert (row["step_low_s"] - rest) / row["transfer_s"] == pytest.approx(math.exp(-0.196), rel=0.06)
    assert (row["step_high_s"] - rest) / row["transfer_s"] == pytest.approx(math.exp(0.196), rel=0.06)
    assert only(scenario(), 2)["step_low_s"].isna().all()
    # Two scenarios that differ in nothing differ by nothing, however uncertain both are.
    both = simulate({"a": one, "b": one}, [64])
    assert both["of_baseline_low"].to_list() == both["of_baseline_high"].to_list() == [1.0, 1.0]


# ---------------------------------------------------------------------------------------------------- what if


def changed(text: str, *counts: int, **changes: Any) -> tuple[pd.Series, pd.Series]:
    table = simulate(what_if(scenario(**changes), [text]), counts or (64,))
    return table.iloc[0], table.iloc[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",".join(["batch=1e9x"] * 9), "more than 1e.12 samples"),
        (",".join(["gradients=1e-9x"] * 40), "allowed: 1e-12 to"),
        ("cycle=5000000", "at most 3,600,000"),
    ],
)
def test_products_and_values_without_end_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(text)


def test_half_the_bytes_take_half_the_transfer() -> None:
    for text in ("gradients=fp16", "gradients=bf16", "gradients=0.5x", "bandwidth=2x"):
        before, after = changed(text)
        assert after["transfer_s"] == pytest.approx(before["transfer_s"] / 2)
        assert after["latency_s"] == before["latency_s"]


@pytest.mark.parametrize(
    ("text", "column", "ratio"),
    [
        ("latency=0.5x", "latency_s", 0.5),
        ("latency=0", "latency_s", 0.0),
        ("batch=8x", "compute_s", 8.0),
        ("batch=600", "compute_s", 8.0),
        ("compute=0.5x", "compute_s", 0.5),
        ("overhead=3x", "runtime_s", 3.0),
        ("batch=8x,gradients=fp16", "transfer_s", 0.5),
    ],
)
def test_what_if_changes_one_part(text: str, column: str, ratio: float) -> None:
    before, after = changed(text, runtime=Runtime(overhead_s=1e-3))

    assert after[column] == pytest.approx(ratio * before[column])


def test_what_if_of_everything_else() -> None:
    assert changed("algorithm=ps")[1]["of_baseline"] < 0.1
    assert changed("servers=64")[1]["step_s"] < changed("algorithm=ps")[1]["step_s"]
    assert changed("workers-per-node=8")[1]["nodes"] == 8
    assert changed("stragglers=none", compute=scattered())[1]["slowest_s"] == pytest.approx(0.0, abs=1e-15)
    assert changed("slow-node=1.5x")[1]["slowest_s"] > 4e-3
    assert changed("buckets=4")[1]["hidden_s"] > 0
    assert changed("buckets=4,fusion=0")[1]["messages"] == 4
    assert changed("cycle=5ms")[1]["cycle_s"] > 0 == changed("cycle=0", runtime=Runtime(cycle_s=5e-3))[1]["cycle_s"]
    assert changed("cache=off")[1]["runtime_s"] == pytest.approx(5 * 6 * ALPHA)
    assert changed("overhead=0", runtime=Runtime(overhead_s=1.0, negotiation="full"))[1]["runtime_s"] == 0
    inside, between = (changed(f"{name}-bandwidth=2x", network=Network(intra=LINK, inter=SLOW, workers_per_node=8))
                       for name in ("intra", "inter"))  # fmt: skip
    assert inside[1]["step_s"] == inside[0]["step_s"] > between[1]["step_s"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bandwith=2x",
            "--what-if bandwith=2x.*did you mean 'bandwidth'",
        ),
        ("bandwidth", "bandwidth.*KEY=VALUE"),
        ("", "KEY=VALUE"),
        ("bandwidth=2", "bandwidth=2"),
        ("bandwidth=0x", ""),
        ("bandwidth=1e999x", ""),
        ("bandwidth=1e10x", r"1e-09x.*1e\+09x"),
        ("cycle=-1", ""),
        ("batch=0", ""),
        ("batch=0.001x", ""),
        ("slow-node=0.5x", ""),
        ("gradients=fp61", "fp61.*fp32.*did you mean 'fp16'"),
        ("algorithm=rings", "ring"),
        ("buckets=many", ""),
        ("cache=maybe", ""),
        ("stragglers=some", ""),
        ("fusion=x", "MiB"),
        ("batch=8x,cycle=soon", "cycle=soon"),
        ("buckets=999999999", "10,000"),
        ("latency=1e9x," * 36 + "latency=1e9x", "alpha is inf"),
    ],
)
def test_a_wrong_what_if_is_one_line(text: str, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message or None) as raised:
        what_if(scenario(), [text])

    assert "\n" not in str(raised.value)


def test_every_change_has_an_example_in_the_tests() -> None:
    source = Path(__file__).read_text(encoding="utf-8")

    assert [key for key in CHANGES if f"{key}=" not in source and not key.startswith("int")] == []


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: only(scenario(), 0), "--workers is 0; it must be at least 1"),
        (lambda: only(scenario(compute=Compute(mean_s=math.inf)), 2), "computing takes inf s"),
        (lambda: only(scenario()), "no worker count was given"),
        (lambda: only(scenario(scaling="strong"), 2, global_batch=0), "--global-batch is 0"),
        (lambda: Link(alpha_s=-1e-6, bytes_per_s=1.0), "alpha is -1e-06 s"),
        (lambda: Link(alpha_s=0.0, bytes_per_s=0.0), "bandwidth is 0 bytes/s"),
        (lambda: network_from({**GOOD, "levels": [{"nodes": 0}]}, source="n"), "levels.0.nodes is 0"),
    ],
)
def test_values_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        make()

    assert "\n" not in str(raised.value)


def test_times_that_cannot_be_are_refused(golden: Golden) -> None:
    for times in ([], [1.0, math.nan], [0.0, 1.0]):
        with golden.raises(AnalysisError):
            measured(np.array(times))


GOOD: dict[str, Any] = {"workers_per_node": 2, "inter": {"alpha_us": 1, "gb_per_s": 2.5}}


def test_a_described_network_is_read() -> None:
    content = {**GOOD, "levels": [{"nodes": 4, "latency_us": 0.5, "oversubscription": 2}], "servers": 3}
    network = network_from(content, source="n.yaml")

    assert (network.inter.alpha_s, network.inter.bytes_per_s) == (1e-6, 2.5e9)
    assert network.intra is network.inter
    assert (network.workers_per_node, network.servers, network.source) == (2, 3, "n.yaml")
    assert network.levels == (Level(nodes=4, latency_s=0.5e-6, oversubscription=2.0),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intr": {}}, r"n\.yaml.*intr"),
        ({"inter": None}, r"n\.yaml"),
        ({"inter": {"alpha_us": 1}}, r"n\.yaml"),
        ({"inter": {"alpha_us": "1 us", "gb_per_s": 1}}, r"n\.yaml.*alpha_us.*1 us"),
        ({"inter": {"alpha_us": 1, "gb_per_s": math.inf}}, "gb_per_s is inf"),
        ({"inter": {"alpha_us": 1, "gb_per_s": 0}}, "gb_per_s.*1e-15"),
        ({"workers_per_node": 2.5}, r"workers_per_node.*2\.5"),
        ({"workers_per_node": True}, "workers_per_node"),
        ({"levels": {"nodes": 3}}, ""),
        ({"levels": [3]}, r"n\.yaml.*levels\.0"),
        ({"levels": [{"nodes": 1, "over": 2}]}, r"n\.yaml.*levels\.0.*over"),
    ],
)
def test_a_network_that_is_wrong_is_one_line(change: dict[str, Any], message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message or None) as raised:
        network_from({**GOOD, **change}, source="n.yaml")

    assert "\n" not in str(raised.value)


def test_what_a_network_needs_is_named(golden: Golden) -> None:
    with golden.raises(ConfigError, match=r"n\.yaml.*workers_per_node"):
        network_from({"inter": GOOD["inter"]}, source="n.yaml")


# ------------------------------------------------------------------------------------------------------ doubts


def test_doubts_travel_with_the_numbers(golden: Golden) -> None:
    words = " | ".join(doubts(scenario(), [1, 64]))
    golden(words)

    words = " | ".join(doubts(scenario(compute=scattered(steps=500)), [1, 501]))
    golden(words, "501 workers", "500 measured")
    assert "slowest of" not in " ".join(doubts(scenario(compute=scattered(steps=500)), [1, 500]))

    strong = scenario(scaling="strong")
    words = " | ".join(doubts(strong, [1, 100], global_batch=75))
    golden(words, "75 workers")
    assert "proportional" not in " ".join(doubts(replace(strong, batch_measured=True), [1, 64]))

    looking = scenario(runtime=Runtime(cycle_s=5e-3))
    assert any(each.startswith("waiting for a cycle of 5 ms supposes") for each in doubts(looking, [2]))

    several = all_doubts(what_if(scenario(), ["gradients=fp16", "batch=2x"]), [2])
    assert any(each.startswith("gradients=fp16: fewer bytes") for each in several)
    assert any(each.startswith("batch=2x: computing is taken as proportional") for each in several)
    assert len(several) == len(set(several))
    assert json.dumps(several)


def test_a_value_that_anchors_made_huge_is_told_in_short(golden: Golden) -> None:
    huge: Any = 1
    for _ in range(40):
        huge = [huge] * 10

    with golden.raises(ConfigError, match="workers_per_node"):
        network_from({**GOOD, "workers_per_node": huge}, source="n.yaml")
