"""Pauses: known ones are found with their lap, ranks and rhythm, and noise has none."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.rank_rows import noise, rows_of
from make.wording import Golden

from horovod_study.analysis.steps import inspection
from horovod_study.analysis.steps.pauses import Pauses, Period, StepStatistics, find_pauses
from horovod_study.analysis.steps.rank_steps import align
from horovod_study.measure import recorder
from horovod_study.records import finite

STATISTICS = StepStatistics(
    steps_per_epoch=1000,
    checkpoint_every=700,
    evaluate_every=0.5,
    rows_steps=512,
    rows_s=2.0,
    agree_s=0.25,
    sampler_s=1.0,
)


def found(own_s: np.ndarray, statistics: StepStatistics | None = None, **how: Any) -> Pauses:
    return find_pauses(align(rows_of(own_s, **how), workers=own_s.shape[1]), statistics)


def at(steps: int, ranks: int, places: Any, size_s: float, rank: int | None = None) -> np.ndarray:
    """Return pauses of `size_s` in the steps `places`, on one rank or on all, (steps, ranks)."""
    extra = np.zeros((steps, ranks))
    extra[places, slice(None) if rank is None else rank] = size_s
    return extra


def one(pauses: Pauses) -> Period:
    (period,) = pauses.periods
    return period


# -------------------------------------------------------------------------------------------------- single pauses


@pytest.mark.parametrize("lap", ["data", "forward", "backward", "update", "residual"])
def test_a_pause_on_one_rank_is_found_with_its_lap(lap: str) -> None:
    seen = found(noise(1, 400, 3), extra_s={lap: at(400, 3, [250], 0.04, rank=1)})
    (pause,) = seen.longest
    assert (pause.step, pause.lap, pause.ranks, pause.everywhere, pause.steps) == (250, lap, (1,), False, 1)
    assert pause.size_s == pytest.approx(0.04, abs=1e-3)
    assert seen.count == 1
    assert seen.total_s == pause.size_s
    assert seen.share == pytest.approx(0.04 / (400 * 3.3e-3 + 0.04), rel=0.05)
    assert seen.periods == ()


def test_a_pause_on_all_ranks_and_one_of_the_network() -> None:
    (pause,) = found(noise(1, 400, 3), extra_s={"backward": at(400, 3, [250], 0.04)}).longest
    assert (pause.lap, pause.ranks, pause.everywhere) == ("backward", (0, 1, 2), True)
    transfer = np.full(400, 2e-4)
    transfer[250] = 0.04
    (pause,) = found(noise(1, 400, 3), transfer_s=transfer).longest
    assert (pause.step, pause.lap, pause.everywhere) == (250, "sync", True)


def test_a_pause_has_its_time_in_the_run_and_neighbours_are_one() -> None:
    rows = rows_of(noise(1, 400, 2), extra_s={"data": at(400, 2, [250, 251, 252], 0.02)})
    seen = find_pauses(align(rows, workers=2))
    (pause,) = seen.longest
    assert pause.steps == 3
    assert pause.size_s == pytest.approx(0.06, abs=1e-3)
    assert pause.at_s in rows[0]["begin_s"][250:253]


def test_with_a_hidden_wait_the_paused_rank_is_told_where_it_can_be() -> None:
    (pause,) = found(noise(1, 400, 2), extra_s={"data": at(400, 2, [250], 0.04, rank=1)}, visible=False).longest
    assert (pause.lap, pause.ranks) == ("data", (1,))
    (pause,) = found(noise(1, 400, 2), extra_s={"backward": at(400, 2, [250], 0.04, rank=1)}, visible=False).longest
    assert (pause.lap, pause.everywhere) == ("backward", True)


def test_a_slow_stretch_is_a_level_and_no_pause() -> None:
    own_s = noise(1, 1000, 2)
    own_s[400:700] *= 3
    assert found(own_s).count == 0


def test_only_the_longest_are_listed_and_all_are_counted() -> None:
    places = np.sort(np.random.default_rng(1).choice(np.arange(50, 3000, 3), 40, replace=False))
    sizes = np.linspace(0.02, 0.06, 40)
    extra = np.zeros((3000, 1))
    extra[places, 0] = sizes
    seen = found(noise(1, 3000, 1), extra_s={"data": extra})
    assert (seen.count, len(seen.longest)) == (40, 20)
    assert [each.step for each in seen.longest] == places[::-1][:20].tolist()
    assert seen.periods == ()


def test_few_steps_are_said(golden: Golden) -> None:
    golden(found(np.full((30, 1), 1e-3)).why_not, "30 steps", "50")
    assert finite(found(np.full((30, 1), 1e-3)))["level_s"] is None
    assert found(np.full((60, 1), 1e-3)).count == 0


# -------------------------------------------------------------------------------------------------------- rhythms


def test_rows_written_every_512_steps_are_recognised(golden: Golden) -> None:
    places = np.arange(511, 4000, 512) + 1
    seen = one(found(noise(1, 4000, 2), STATISTICS, extra_s={"residual": at(4000, 2, places, 1.2e-3)}))
    assert (seen.unit, seen.every_steps, seen.count, seen.first_step) == ("steps", 512.0, 7, 512)
    assert (seen.lap, seen.everywhere) == ("residual", True)
    assert seen.size_s == pytest.approx(1.2e-3, abs=3e-4)
    assert seen.every_s == pytest.approx(512 * 3.25e-3, rel=0.05)
    golden(seen.reason, "512 steps")


def test_the_first_step_of_each_epoch_is_recognised(golden: Golden) -> None:
    how = {"extra_s": {"data": at(6000, 2, np.arange(0, 6000, 1000), 0.01)}, "per_epoch": 1000}
    seen = one(found(noise(1, 6000, 2), STATISTICS, **how))
    assert (seen.every_steps, seen.first_step, seen.lap) == (1000.0, 0, "data")
    golden(seen.reason)


def test_a_checkpoint_and_what_comes_as_often(golden: Golden) -> None:
    how = {"extra_s": {"forward": at(6000, 2, np.arange(0, 6000, 700), 0.01)}, "stretch": 700}
    golden(one(found(noise(1, 6000, 2), STATISTICS, **how)).reason)
    how = {"extra_s": {"forward": at(6000, 2, np.arange(100, 6000, 700), 0.01)}}
    golden(one(found(noise(1, 6000, 2), STATISTICS, **how)).reason)


def test_pauses_every_2_seconds_are_regular_in_time_though_not_in_steps(golden: Golden) -> None:
    own_s = noise(1, 12_000, 2)
    own_s *= np.linspace(0.7, 1.6, 12_000)[:, None]  # steps get longer: so many seconds are ever fewer steps
    begin_s = align(rows_of(own_s), workers=2).begin_s
    assert begin_s is not None
    places = np.unique(np.searchsorted(begin_s, np.arange(2.0, begin_s[-1], 2.0)))
    seen = one(found(own_s, STATISTICS, extra_s={"residual": at(12_000, 2, places, 5e-3, rank=0)}))
    assert seen.unit == "seconds"
    assert seen.every_s == pytest.approx(2.0, abs=0.03)
    assert seen.count >= 0.8 * len(places)
    assert (seen.lap, seen.ranks, seen.everywhere) == ("residual", (0,), False)
    golden(seen.reason, "512 steps")


def test_a_sampler_that_looks_every_second_is_recognised(golden: Golden) -> None:
    own_s = noise(1, 12_000, 1)
    own_s *= np.linspace(0.7, 1.6, 12_000)[:, None]
    begin_s = align(rows_of(own_s), workers=1).begin_s
    assert begin_s is not None
    places = np.unique(np.searchsorted(begin_s, np.arange(1.0, begin_s[-1], 1.0)))
    seen = one(found(own_s, STATISTICS, extra_s={"backward": at(12_000, 1, places, 4e-3)}))
    assert seen.every_s == pytest.approx(1.0, abs=0.02)
    golden(seen.reason, "1 s")


def test_a_rhythm_is_found_among_other_pauses_and_with_some_missing() -> None:
    rng = np.random.default_rng(3)
    places = np.arange(100, 8000, 300)
    kept = places[rng.random(len(places)) > 0.15]
    extra = at(8000, 2, kept, 5e-3, rank=1) + at(8000, 2, rng.choice(8000, 12, replace=False), 8e-3, rank=0)
    seen = one(found(noise(1, 8000, 2), extra_s={"update": extra}))
    assert (seen.every_steps, seen.lap, seen.ranks, seen.reason) == (300.0, "update", (1,), "")
    assert len(kept) - 6 <= seen.count <= len(kept) + 1


def test_two_rhythms_are_told_apart() -> None:
    extra = {
        "data": at(9000, 2, np.arange(40, 9000, 400), 5e-3),
        "residual": at(9000, 2, np.arange(77, 9000, 730), 9e-3),
    }
    seen = found(noise(1, 9000, 2), extra_s=extra)
    assert sorted((each.every_steps, each.lap) for each in seen.periods) == [(400.0, "data"), (730.0, "residual")]


@settings(max_examples=examples(25))
@given(every=st.integers(40, 600), first=st.integers(0, 500), seed=st.integers(0, 999), size_ms=st.floats(2, 50))
def test_a_known_rhythm_is_found(every: int, first: int, seed: int, size_ms: float) -> None:
    seen = found(noise(seed, 4000, 1), extra_s={"forward": at(4000, 1, np.arange(first, 4000, every), size_ms * 1e-3)})
    (period, *_) = seen.periods
    assert period.every_steps == every
    assert period.size_s * 1e3 == pytest.approx(size_ms, abs=0.6)
    assert period.first_step == first


NOISES = {
    "normal": lambda rng: rng.normal(3e-3, 1e-4, (2000, 2)),
    "gamma": lambda rng: 2e-3 + rng.gamma(4, 1e-4, (2000, 2)),
    "exponential": lambda rng: 2e-3 + rng.exponential(2e-4, (2000, 2)),
    "slow moments": lambda rng: noise(int(rng.integers(1 << 30)), 2000, 2, slow=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISES)
def test_noise_has_no_pauses_and_no_rhythm(kind: str) -> None:
    seen = [found(NOISES[kind](np.random.default_rng(seed)), STATISTICS) for seed in range(100)]
    assert sum(each.count > 0 for each in seen) <= 5
    assert sum(bool(each.periods) for each in seen) <= 1


@pytest.mark.slow
def test_pauses_at_random_have_no_rhythm() -> None:
    rhythms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        places = rng.choice(4000, int(rng.integers(5, 60)), replace=False)
        rhythms += bool(found(noise(seed, 4000, 1), STATISTICS, extra_s={"data": at(4000, 1, places, 0.01)}).periods)
    assert rhythms <= 5


def test_the_habits_are_those_of_the_trainer() -> None:
    assert (inspection.ROWS_STEPS, inspection.ROWS_S) == (recorder.DRAIN_STEPS, recorder.DRAIN_S)
