"""The alpha-beta model: known answers, and that laws, forecasts, benchmarks and simulation all use this one."""

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import horovod_study
from horovod_study.analysis.costs import Link, link_of_line, moved_share, ring_messages, rounds, time_at
from horovod_study.analysis.laws import QUANTITY_LAWS
from horovod_study.analysis.machine import network
from horovod_study.analysis.simulate.scaling import Network, allreduce_s
from horovod_study.errors import ConfigError

LINK = Link(alpha_s=2e-6, bytes_per_s=1e9)
ROOT = Path(horovod_study.__file__).parent

counts = st.integers(2, 100_000)
sizes = st.floats(1, 1e11)


def test_counts_by_hand() -> None:
    n = np.array([1.0, 2, 3, 4, 5, 8, 9])

    assert ring_messages(n).tolist() == [0, 2, 4, 6, 8, 14, 16]
    assert moved_share(n) == pytest.approx([0, 1, 4 / 3, 1.5, 1.6, 1.75, 16 / 9])
    assert rounds(n).tolist() == [0, 1, 2, 2, 3, 3, 4]
    assert rounds(2.0 ** np.arange(40)).tolist() == list(range(40)), "logarithms of powers of two are no higher"
    assert rounds(8 * (1 + 1e-12)) == 3, "nor is what differs from one by rounding"


def test_the_quickest_algorithm_by_hand() -> None:
    assert LINK.all_reduce_s(1e6, 1) == (0.0, "none")
    assert LINK.all_reduce_s(8.0, 16) == (pytest.approx(4 * (2e-6 + 8e-9)), "recursive doubling")
    assert LINK.all_reduce_s(1e6, 4) == (pytest.approx(4 * 2e-6 + 1.5e-3), "Rabenseifner")
    assert LINK.half_s(1e6, 4) == pytest.approx(2 * 2e-6 + 0.75e-3) and LINK.half_s(1e6, 1) == 0.0
    assert LINK.message_s(1e6) == pytest.approx(2e-6 + 1e-3)


@given(counts, sizes)
def test_nothing_is_quicker_than_the_bytes_that_must_move(n: int, size: float) -> None:
    seconds, _ = LINK.all_reduce_s(size, n)

    assert seconds >= moved_share(n) * size / 1e9
    assert seconds >= rounds(n) * 2e-6
    assert 2 * LINK.half_s(size, n) >= seconds * (1 - 1e-12), "two halves are one of the algorithms"


@given(counts, sizes)
def test_a_line_through_all_reduces_gives_its_own_times_back(n: int, size: float) -> None:
    link = link_of_line(3e-5, 2e9, n)

    assert rounds(n) * link.alpha_s + moved_share(n) * size / link.bytes_per_s == pytest.approx(3e-5 + size / 2e9)
    assert (link.workers, link_of_line(3e-5, 2e9, 2).alpha_s) == (n, 3e-5)


@given(counts, sizes)
def test_a_network_of_one_kind_of_link_costs_what_the_link_says(n: int, size: float) -> None:
    flat = Network(intra=LINK, inter=LINK)
    names = ("ring", "doubling", "halving")

    assert min(float(allreduce_s(flat, name, n, size)) for name in names) == pytest.approx(
        LINK.all_reduce_s(size, n)[0]
    )
    assert float(QUANTITY_LAWS["ring"].curve(n, 0.0, 2e-6, size / 1e9)) == pytest.approx(
        float(allreduce_s(flat, "ring", n, size))
    )
    assert network.bus_factor("allreduce", n) == moved_share(n)


@pytest.mark.parametrize(("alpha", "rate"), [(-1e-9, 1e9), (math.nan, 1e9), (0.0, 0.0)])
def test_an_impossible_link_is_refused(alpha: float, rate: float) -> None:
    with pytest.raises(ConfigError, match="network: "):
        Link(alpha_s=alpha, bytes_per_s=rate)


@pytest.mark.slow
def test_nobody_counts_rounds_or_moved_bytes_by_hand() -> None:
    """Elsewhere no `2 * (n - 1)` and no ceil of a log2: the model has one place."""

    def by_hand(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("math.ceil", "np.ceil"):
            return "log2" in ast.unparse(node)
        doubled = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and ast.unparse(node.left) == "2"
        return doubled and ast.unparse(node.right) in ("n - 1", "workers - 1", "count - 1", "nodes - 1", "g - 1")

    usl_and_servers = {"analysis/simulate/scaling.py": {"2 * (g - 1)"}}  # a parameter server, which is no all-reduce
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if module == "analysis/costs.py":
            continue
        found = {ast.unparse(each) for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if by_hand(each)}
        assert found <= usl_and_servers.get(module, set()), f"{module}: {found}; see analysis/costs.py"


def test_a_time_is_straight_in_logarithms_between_sizes_and_follows_the_slope_beyond_both_ends() -> None:
    sizes = np.array([1024.0, 2048.0, 4096.0, 4100.0])
    line = 5e-6 + sizes / 1e9
    assert time_at(sizes, line, sizes) == pytest.approx(line, rel=1e-12)
    assert time_at(sizes, line, math.sqrt(1024 * 2048)) == pytest.approx(math.sqrt(line[0] * line[1]))
    far = np.array([10.0, 500.0, 1e4, 1e9])
    assert time_at(sizes, line, far) == pytest.approx(5e-6 + far / 1e9)
    # The nearest size of half the largest tells the slope, not one beside it, which noise would decide.
    noisy = line * np.array([1, 1, 1, 1.01])
    assert time_at(sizes, noisy, 1e6) == pytest.approx(5e-6 + 1e6 / 1e9, rel=0.05)


def test_a_slope_is_never_that_of_a_negative_latency_and_never_flat_beyond_the_largest_size() -> None:
    sizes = np.array([1e3, 1e4, 1e5])
    for seconds in (np.array([1e-5, 1e-5, 1e-3]), np.array([3e-5, 2e-5, 1e-5]), np.array([1e-5, 1e-5, 1e-5])):
        assert time_at(sizes, seconds, 1e6) == pytest.approx(10 * seconds[-1])
    assert time_at(sizes, np.array([3e-5, 2e-5, 1e-5]), 1.0) == 3e-5
    grown = time_at(sizes, np.array([1e-5, 2e-5, 1e-4]), np.geomspace(1, 1e9, 50))
    assert (np.diff(grown) > 0).all() and (grown > 0).all()
