"""Who is slow, by how much and where: known answers, equal ranks, rows that are missing, and real ranks."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BIN, LAUNCHERS
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.rank_rows import hosts, noise, rows_of
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis.steps.attribution import observe, parts_of
from horovod_study.analysis.steps.explanation import inspect
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE, Stragglers, align, find_stragglers, pop, waiting
from horovod_study.errors import AnalysisError
from horovod_study.records import finite
from horovod_study.report.figures.causes import write_system_of


def found(own_s: np.ndarray, **how: Any) -> Stragglers:
    ranks = own_s.shape[1]
    return find_stragglers(align(rows_of(own_s, **how), workers=ranks, hosts=hosts(ranks)))


def late(steps: int, ranks: int, rank: int, by_s: float) -> np.ndarray:
    """Return what one rank has in addition, (steps, ranks)."""
    return np.where(np.arange(ranks) == rank, by_s, 0.0) * np.ones((steps, 1))


# ------------------------------------------------------------------------------------------------ the own time


def test_own_is_what_lies_between_two_synchronisations() -> None:
    own_s = np.array([[3.0, 2.0], [3.5, 2.5], [4.0, 3.0]]) * 1e-3
    rows = align(rows_of(own_s), workers=2)
    laps = rows.own_laps()
    # The update of the step before, then the other laps of this one.
    expected = 0.1 * own_s[:-1] + 0.9 * own_s[1:]
    assert np.allclose(sum(laps.values()), expected)
    assert list(laps) == ["update", "residual", "data", "forward", "backward"]
    assert rows.follows.tolist() == [False, True, True]


def test_the_first_step_of_a_stretch_is_left_out() -> None:
    own_s = np.full((40, 2), 3e-3)
    assert np.flatnonzero(~align(rows_of(own_s, per_epoch=10), workers=2).follows).tolist() == [0, 10, 20, 30]
    # Within an epoch it is told by the gap: an evaluation of 0.5 s, or a barrier of 0.2 ms.
    for between_s in (0.5, 2e-4):
        rows = align(rows_of(own_s, stretch=8, between_s=between_s), workers=2)
        assert np.flatnonzero(~rows.follows).tolist() == [0, 8, 16, 24, 32]


def test_a_long_residual_is_no_gap() -> None:
    own_s, extra = np.full((40, 2), 3e-3), np.zeros((40, 2))
    extra[20] = 5e-3  # rows were written: outside all laps, but in the same stretch
    rows = align(rows_of(own_s, extra_s={"residual": extra}), workers=2)
    assert np.flatnonzero(~rows.follows).tolist() == [0]
    assert sum(rows.own_laps().values())[19].tolist() == pytest.approx([8e-3, 8e-3])


def test_rows_of_an_older_program_have_no_begin() -> None:
    rows = rows_of(np.full((40, 2), 3e-3), per_epoch=10)
    for columns in rows.values():
        columns["begin_s"] = np.full(40, np.nan)
    there = align(rows, workers=2)
    assert "begin_s" not in there.known
    assert np.flatnonzero(~there.follows).tolist() == [0, 10, 20, 30]


def test_on_a_device_the_host_runs_ahead_and_that_is_no_gap() -> None:
    rows = rows_of(np.full((40, 2), 3e-3), stretch=20)
    for columns in rows.values():
        columns["begin_s"] = columns["begin_s"] + np.random.default_rng(1).uniform(-1e-3, 1e-3, 40)
        columns["sync_host_s"] = np.full(40, 1e-4)
    assert np.flatnonzero(~align(rows, workers=2).follows).tolist() == [0, 20]


# ------------------------------------------------------------------------------------------------- known answers


def test_a_known_example() -> None:
    # Ready after 3, 2 and 2.5 ms: the waits are 0, 1 and 0.5 ms, 0.5 on average.
    seen = found(np.tile([3e-3, 2e-3, 2.5e-3], (101, 1)), transfer_s=5e-4)
    assert seen.steps == 100
    assert seen.skew_s == pytest.approx({"mean": 5e-4, "median": 5e-4, "p90": 5e-4})
    assert seen.spread_s == pytest.approx(1e-3)
    assert seen.period_s == pytest.approx(3.5e-3)
    assert seen.skew_share == pytest.approx(1 / 7)
    assert [round(each.value_s * 1e3, 9) for each in seen.ranks] == [0.75, -0.75, 0.0]
    assert [round(each.wait_s * 1e3, 9) for each in seen.ranks] == [0.0, 1.0, 0.5]
    assert [each.last_share for each in seen.ranks] == [1.0, 0.0, 0.0]
    assert (seen.verdict, seen.slow) == ("named", (0,))


def test_skew_is_that_of_the_attribution() -> None:
    own_s = noise(1, 300, 3)
    rows = rows_of(own_s)
    effective = {"backend": "mpi", "transport": "mpi", "reduction": "flat", "workers": 3, "batch": 75}
    parts = parts_of(observe("run", {}, effective, 0, list(rows.values()), None))
    seen = find_stragglers(align(rows, workers=3))
    assert seen.skew_s is not None
    assert seen.skew_s["mean"] == pytest.approx(parts["skew"][0], rel=1e-12)


@pytest.mark.parametrize("lap", ["data", "forward", "backward", "update", "residual"])
def test_a_rank_that_sleeps_5_ms_is_named_with_its_host_and_its_lap(lap: str) -> None:
    seen = found(noise(3, 300, 4), extra_s={lap: late(300, 4, 1, 5e-3)}, per_epoch=100)
    (slow,) = seen.named
    assert (slow.rank, slow.host, slow.cause) == (1, "node1", lap)
    assert slow.value_s == pytest.approx(5e-3, abs=1e-4)
    assert slow.low_s < slow.value_s < slow.high_s
    assert slow.laps_s[lap] == pytest.approx(5e-3, abs=1e-4)
    assert sum(slow.laps_s.values()) == pytest.approx(slow.value_s, abs=1e-12)


def scatter(seed: int, lap: str, by_s: float = 8e-3) -> dict[str, np.ndarray]:
    """Return what ranks that take turns on a core have in a lap: several times 5 ms, more or less."""
    return {lap: np.random.default_rng(seed).normal(20e-3, by_s, (300, 2))}


def test_a_lap_shows_what_the_scatter_of_another_hides() -> None:
    # Both ranks compute for 20 ms, give or take 8; rank 1 sleeps 5 ms, and now and then it is held up for 0.3 s.
    held_up = np.where(np.random.default_rng(1).random((300, 2)) < 0.02, 0.3, 0.0)
    slept = {**scatter(3, "backward"), "residual": late(300, 2, 1, 5e-3) + held_up}
    (slow,) = found(noise(3, 300, 2), extra_s=slept).named
    assert (slow.rank, slow.cause) == (1, "residual")
    assert slow.cause_low_s < 5e-3 < slow.cause_high_s < 5.5e-3
    assert slow.high_s - slow.low_s > 4 * (slow.cause_high_s - slow.cause_low_s)


def test_what_a_rank_makes_up_for_elsewhere_is_no_lateness() -> None:
    for seed in range(4):
        moved = {
            "residual": late(300, 2, 1, 5e-3),
            "backward": late(300, 2, 0, 5e-3) + scatter(seed, "backward")["backward"],
        }
        seen = found(noise(3, 300, 2), extra_s=moved)
        longer = next(each for each in seen.balanced if each.rank == 1)
        assert (seen.verdict, longer.cause) == ("none", "residual")
        assert min(longer.laps_s, key=longer.laps_s.__getitem__) == "backward"
    several = {"residual": late(300, 2, 1, 5e-3), **{lap: late(300, 2, 0, 2e-3) for lap in ("data", "forward")}}
    (slow,) = found(noise(3, 300, 2), extra_s=several).named
    assert (slow.rank, slow.cause) == (1, "residual")
    assert slow.value_s == pytest.approx(1e-3, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_rank_does_in_every_step_is_seen_where_most_steps_are_disturbed(seed: int) -> None:
    """As of a sharded model on a busy machine: in three of four steps a lap takes up to 40 ms longer."""
    rng = np.random.default_rng(seed)
    disturbed = np.where(rng.random((300, 2)) < 0.75, rng.uniform(0, 40e-3, (300, 2)), 0.0)
    seen = found(
        noise(seed, 300, 2), extra_s={"backward": late(300, 2, 1, 5e-3) + disturbed, "forward": disturbed[::-1]}
    )
    (slow,) = seen.named
    assert (slow.rank, slow.cause) == (1, "backward")
    assert slow.cause_s == pytest.approx(5e-3, abs=1e-3)
    assert found(noise(seed, 300, 2), extra_s={"backward": disturbed}).verdict == "none"


def test_a_rank_that_is_late_in_most_steps_is_late_by_the_median() -> None:
    often = np.where(np.arange(300) % 5 > 0, 5e-3, 0.0)[:, None] * [0, 1]
    (slow,) = found(noise(3, 300, 2), extra_s={"forward": often, **scatter(3, "backward")}).named
    assert (slow.rank, slow.cause) == (1, "forward")
    assert slow.cause_s == pytest.approx(5e-3, abs=2e-4)


@pytest.mark.parametrize(("data_ms", "slow"), [(4.0, (1,)), (7.0, ()), (15.0, (0,))])
def test_who_comes_to_its_loader_earlier_and_waits_for_it_is_not_late(data_ms: float, slow: tuple[int, ...]) -> None:
    """Rank 1 sleeps 5 ms in forward; rank 0 is later with its data, by what that explains or by more."""
    waits = late(300, 2, 0, data_ms * 1e-3) * np.random.default_rng(1).gamma(4, 0.25, (300, 1))
    seen = found(noise(3, 300, 2), extra_s={"forward": late(300, 2, 1, 5e-3), "data": waits})
    assert seen.slow == slow
    (longer,) = [each for each in seen.ranks if each.cause == "forward"]
    assert (longer.rank, longer.balanced) == (1, slow != (1,))
    assert longer.cause_s == pytest.approx(5e-3, abs=1e-4)
    # Of four, it is compared with one that waits as long for its loader.
    more = {"forward": late(300, 4, 1, 5e-3), "data": late(300, 4, 0, data_ms * 1e-3)}
    assert {*found(noise(3, 300, 4), extra_s=more).slow} == {0, 1}


def test_residual_behind_the_begin_of_a_step_is_no_gap() -> None:
    rows = rows_of(noise(3, 300, 2), stretch=100)
    for rank, columns in rows.items():  # such as clipping, which takes another time in each step
        behind = np.random.default_rng(rank).uniform(0, 2e-3, 300)
        columns["begin_s"] = columns["begin_s"] + np.cumsum(behind) - behind
        columns["residual_s"], columns["step_s"] = columns["residual_s"] + behind, columns["step_s"] + behind
    assert np.flatnonzero(~align(rows, workers=2).follows).tolist() == [0, 100, 200]


def test_steps_are_equally_long_whoever_is_late() -> None:
    rows = align(rows_of(noise(3, 300, 2), extra_s={"data": late(300, 2, 1, 5e-3)}), workers=2)
    period = sum(rows.own_laps().values()) + rows.laps["sync"][rows.follows]
    assert np.abs(period[:, 0] - period[:, 1]).max() < 1e-12


def test_a_slow_device_is_slow_in_all_it_computes() -> None:
    own_s = noise(3, 300, 2)
    slow = {lap: share * own_s * [0, 0.3] for lap, share in (("forward", 0.3), ("backward", 0.5), ("update", 0.1))}
    (one,) = found(own_s, extra_s=slow).named
    assert one.cause == "computing"
    mixed = {"data": late(300, 2, 1, 1e-3), "residual": late(300, 2, 1, 1e-3), "backward": late(300, 2, 1, 1e-3)}
    (one,) = found(own_s, extra_s=mixed).named
    assert one.cause == "several"


def test_two_slow_ranks_of_five_are_both_named_with_their_whole_lateness() -> None:
    extra = late(300, 5, 1, 5e-3) + late(300, 5, 4, 2e-3)
    seen = found(noise(5, 300, 5), extra_s={"forward": extra})
    assert seen.slow == (1, 4)
    assert [each.value_s for each in seen.named] == pytest.approx([5e-3, 2e-3], abs=1e-4)


def test_what_is_certain_but_tiny_is_not_worth_a_word() -> None:
    own_s = np.full((400, 2), 10e-3) + np.random.default_rng(1).normal(0, 1e-5, (400, 2))
    seen = found(own_s, extra_s={"forward": late(400, 2, 1, 5e-5)})  # 0.5 % of the step
    assert seen.ranks[1].certain_s > 0
    assert (seen.verdict, seen.slow) == ("none", ())
    assert seen.resolution_s == pytest.approx(0.01 * seen.period_s)


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(2, 6),
    by_ms=st.floats(0.5, 50),
    steps=st.integers(60, 300),
    data=st.data(),
)
def test_a_known_lateness_is_recovered(seed: int, ranks: int, by_ms: float, steps: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    seen = found(noise(seed, steps, ranks), extra_s={"data": late(steps, ranks, rank, by_ms * 1e-3)}, stretch=50)
    assert seen.slow[:1] == (rank,)
    (slow, *_) = seen.named
    assert slow.value_s * 1e3 == pytest.approx(by_ms, abs=0.1)
    assert all(each.wait_s >= 0 for each in seen.ranks)
    assert sum(each.last_share for each in seen.ranks) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 8])
def test_equal_ranks_have_no_slow_one(ranks: int) -> None:
    seeds = range(100)
    named = [seed for seed in seeds if found(noise(seed, 300, ranks, slow=0.8), stretch=100).verdict == "named"]
    assert len(named) <= 5


def test_the_interval_covers_the_truth() -> None:
    hits = 0
    for seed in range(100):
        one = found(noise(seed, 400, 2, slow=0.8), extra_s={"forward": late(400, 2, 1, 1e-3)}).ranks[1]
        hits += one.low_s <= 1e-3 <= one.high_s
    assert 88 <= hits <= 100


def test_ties_are_shared() -> None:
    seen = found(np.full((101, 4), 3e-3))
    assert [each.last_share for each in seen.ranks] == [0.25] * 4


# -------------------------------------------------------------------------------------------- what is not there


def test_a_hidden_wait_leaves_the_laps_before_it(golden: Golden) -> None:
    seen = found(noise(2, 300, 2), extra_s={"data": late(300, 2, 1, 5e-3)}, visible=False)
    assert seen.slow == (1,)
    assert seen.named[0].value_s == pytest.approx(5e-3, abs=1e-4)
    assert seen.laps == ("update", "residual", "data", "forward")
    golden(seen.notes)
    # What is slow in backward cannot be distinguished from waiting there.
    assert found(noise(2, 300, 2), extra_s={"backward": late(300, 2, 1, 5e-3)}, visible=False).verdict == "none"


def test_a_script_that_marks_loading_only_is_compared_in_that(golden: Golden) -> None:
    rows = rows_of(noise(2, 300, 2), extra_s={"data": late(300, 2, 1, 5e-3)})
    for columns in rows.values():
        for lap in ("forward", "backward", "update", "sync"):
            columns["residual_s"] = columns["residual_s"] + columns[f"{lap}_s"]
            columns[f"{lap}_s"] = np.full(300, np.nan)
    seen = find_stragglers(align(rows, workers=2))
    assert (seen.laps, seen.slow) == (("data",), (1,))
    for columns in rows.values():
        columns["data_s"] = np.full(300, np.nan)
    seen = find_stragglers(align(rows, workers=2))
    assert seen.verdict == "unknown"
    golden(seen.why_not)


def test_ranks_that_exchange_nothing_wait_for_nobody(golden: Golden) -> None:
    """Their waits are visible, and there is none: no rank is late, whatever one does longer."""
    rows = rows_of(noise(2, 300, 2), extra_s={"data": late(300, 2, 1, 5e-3)})
    for columns in rows.values():
        columns["step_s"], columns["sync_s"] = columns["step_s"] - columns["sync_s"], np.zeros(300)
        columns["begin_s"] = np.full(300, np.nan)
    there = align(rows, workers=2)
    assert find_stragglers(there).why_not == NO_EXCHANGE
    assert waiting(there)[0] is None
    effective = {"backend": "distributed", "transport": "gloo", "reduction": "own", "workers": 2, "batch": 75}
    seen = observe("run", {}, effective, 0, list(rows.values()), None)
    assert (seen.sync_s, seen.why_no_sync) == (None, NO_EXCHANGE)
    rows[0]["sync_s"][20::10] = 1e-3  # something, in each tenth step
    golden(find_stragglers(align(rows, workers=2)).notes, "28", "299 steps")


def test_one_worker_and_few_steps_are_said(golden: Golden) -> None:
    golden(found(np.full((40, 1), 3e-3)).why_not)
    golden(found(np.full((15, 2), 3e-3)).why_not, "14 steps", "20")


def test_a_rank_that_was_killed_is_compared_as_far_as_it_came(golden: Golden) -> None:
    rows = rows_of(noise(2, 300, 3), extra_s={"data": late(300, 3, 1, 5e-3)})
    rows[2] = {name: values[:200] for name, values in rows[2].items()}
    there = align(rows, workers=3)
    golden(there.notes, "rank 2", "100 steps", "200 steps")
    assert find_stragglers(there).slow == (1,)
    assert find_stragglers(there).steps == 199


def test_ranks_without_rows_are_left_out_and_named(golden: Golden) -> None:
    rows = rows_of(noise(2, 300, 4), extra_s={"data": late(300, 4, 1, 5e-3)})
    del rows[0]
    rows[3] = {name: values[:5] for name, values in rows[3].items()}
    there = align(rows, workers=4, fewest=20, missing={0: "has no file of steps"})
    golden(there.notes, "rank 3", "20 recorded", "step 0", "rank 0")
    assert there.ranks == (1, 2)
    assert find_stragglers(there).slow == (1,)
    del rows[2]
    golden(find_stragglers(align(rows, workers=4, fewest=20)).why_not)


def test_rows_that_cannot_be_compared_are_refused(golden: Golden) -> None:
    rows = rows_of(np.full((40, 2), 3e-3))
    with pytest.raises(AnalysisError) as error:
        align(rows, workers=2, from_step=100, fewest=20, name="runs/a")
    golden(str(error.value), "runs/a", "20 recorded", "step 100")
    rows[1] = {**rows[1], "step": rows[1]["step"] + 1000}
    with pytest.raises(AnalysisError) as error:
        align(rows, workers=2, name="runs/a")
    golden(str(error.value), "runs/a")


def test_nothing_that_is_given_is_changed() -> None:
    rows = rows_of(noise(2, 100, 2))
    before = {rank: {name: values.copy() for name, values in columns.items()} for rank, columns in rows.items()}
    find_stragglers(align(rows, workers=2, from_step=10))
    for rank, columns in rows.items():
        for name, values in columns.items():
            assert np.array_equal(values, before[rank][name], equal_nan=True)


# -------------------------------------------------------------------------------------------------- efficiencies


def test_the_efficiencies_of_the_known_example() -> None:
    seen = pop([1, 1, 1, 0.6], 1.25)
    assert [round(each, 12) for each in finite(seen).values()] == [0.9, 0.8, 0.72]
    assert seen.parallel == pytest.approx(seen.load_balance * seen.communication, abs=1e-12)


def test_the_efficiencies_of_a_run() -> None:
    # 1, 1, 1 and 0.6 s of a step of 1.25 s.
    rows = align(rows_of(np.tile([1.0, 1.0, 1.0, 0.6], (30, 1)), transfer_s=0.25), workers=4)
    seen, _ = waiting(rows)
    assert seen is not None
    assert [round(each, 12) for each in finite(seen).values()] == [0.9, 0.8, 0.72]
    assert waiting(align(rows_of(np.ones((30, 2)), visible=False), workers=2))[0] is None


def changed(rows: dict[int, dict[str, Any]], rank: int, name: str, value: Any, steps: slice = slice(None)) -> None:
    rows[rank][name] = rows[rank][name].copy()
    rows[rank][name][steps] = value


def test_waiting_is_told_rank_by_rank_as_by_all_ranks_side_by_side() -> None:
    """What is known, from which steps on, and over which steps: the same, without laying rows together."""
    own_s = noise(3, 400, 3)
    stretches = rows_of(own_s, stretch=37, per_epoch=150)
    barriers = rows_of(own_s, stretch=40, between_s=2e-4)
    without_update = rows_of(own_s)
    changed(without_update, 1, "update_s", np.nan, slice(7, 8))
    no_begin = rows_of(own_s, stretch=37)
    changed(no_begin, 2, "begin_s", np.nan)
    device = rows_of(own_s, stretch=40, between_s=0.02)  # a gap for the host's clock, none for 10 steps of a device's
    changed(device, 0, "sync_host_s", 1e-4)
    holes = rows_of(own_s)
    changed(holes, 1, "step_s", np.nan, slice(30, 33))
    fewer = rows_of(own_s)
    fewer[2] = {name: values[:250] for name, values in fewer[2].items()}
    every = {"stretches": stretches, "barriers": barriers, "without update": without_update, "no begin": no_begin}
    every |= {"two clocks": device, "holes": holes, "fewer": fewer}
    for name, rows in every.items():
        for from_step in (0, 50):
            aligned = align(rows, workers=3, from_step=from_step)
            pop, skew_s = waiting(aligned)
            own, sync_s = sum(aligned.own_laps().values()), aligned.sync_s
            skew = find_stragglers(aligned).skew_s

            assert pop is not None and skew is not None and sync_s is not None
            useful = np.asarray(own).sum(axis=0)
            parallel = useful.mean() / (useful + sync_s[aligned.follows].sum(axis=0)).max()
            assert pop.parallel == pytest.approx(parallel, rel=1e-12), name
            assert skew_s == pytest.approx(skew["mean"], rel=1e-9), name
    skews = {name: waiting(align(rows, workers=3))[1] for name, rows in every.items()}
    assert len({round(skew, 12) for skew in skews.values()}) >= 6, "each of them counts other steps or laps"


def test_waiting_is_not_known_where_it_cannot_be_seen() -> None:
    hidden = rows_of(noise(3, 100, 2), visible=False)
    few = rows_of(noise(3, 15, 2))
    one_step = rows_of(noise(3, 1, 2))
    found = [waiting(align(rows, workers=2)) for rows in (hidden, few, one_step)]

    assert [pop is None for pop, _ in found] == [True, False, True]
    assert np.isnan([skew_s for _, skew_s in found]).all(), "and a skew of 14 steps is a guess"


# ---------------------------------------------------------------------------------------------------- real ranks


def quietly(check: Callable[[int], None], attempts: int = 4) -> None:
    """Run a check of times again when the machine was busy."""
    for attempt in range(attempts):
        try:
            check(attempt)
            return
        except AssertionError:
            if attempt == attempts - 1:
                raise


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize(("launcher", "backend"), [("mpirun", "horovod"), ("mpirun", "mpi")])
def test_a_real_rank_that_sleeps_is_named(launcher: str, backend: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("slow_rank.py")
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def check(attempt: int) -> None:
        out = tmp_path / str(attempt)
        line = [str(part).format(workers=2) for part in LAUNCHERS[launcher]]
        options = f"--backend {backend} --dataset 4000 --batch 25 --steps 120 --warmup-steps 20 --system-interval-s 0.2"
        result = subprocess.run(
            [*line, str(program), "1", "0.020", str(tmp_path / f"{attempt}.json"), *options.split(), "--out", str(out)],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )
        assert result.returncode == 0, result.stderr
        run, beside = records.recorded_run(out), records.run_side_files(out)
        seen = inspect(run, beside)
        first, second = seen.ranks
        # The collective makes the steps of both ranks equally long ...
        assert first.step_s == pytest.approx(second.step_s, rel=0.03)
        # ... and the time before it says who is late, by how much, and in which lap.
        assert seen.stragglers.slow == (1,)
        (slow,) = seen.stragglers.named
        assert (slow.host, slow.cause) == (os.uname().nodename, "data")
        # A sleep of 20 ms, and what the system added to it.
        rows = align(run.rows, workers=2, from_step=seen.window["first_step"])
        slept_s = np.array(json.loads((tmp_path / f"{attempt}.json").read_text()))[rows.step[rows.follows]].mean()
        assert slept_s >= 20e-3
        assert slow.laps_s["data"] == pytest.approx(slept_s, rel=0.1)
        assert slow.value_s == pytest.approx(slept_s, rel=0.3)
        assert slow.last_share > 0.9
        # What the sensors said is there too.
        parts = {(row["host"], row["part"]) for row in seen.system["rows"]}
        assert {(slow.host, "rank 0"), (slow.host, "rank 1"), (slow.host, "host")} <= parts
        names = {path.name for path in write_system_of(beside, tmp_path / "inspected")}
        assert f"system-{slow.host}.png" in names

    quietly(check)
