"""Pauses: known ones are found with their lap, ranks and rhythm, and noise has none."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.rank_rows import noise, rows_of
from make.wording import Golden

from horovod_study.analysis.steps.explanation import find_pauses
from horovod_study.analysis.steps.rank_steps import align
from horovod_study.records import finite


def found(own_s: np.ndarray, **how: Any) -> SimpleNamespace:
    return find_pauses(align(rows_of(own_s, **how), workers=own_s.shape[1]))


def at(steps: int, ranks: int, places: Any, size_s: float, rank: int | None = None) -> np.ndarray:
    """Return pauses of `size_s` in the steps `places`, on one rank or on all, (steps, ranks)."""
    extra = np.zeros((steps, ranks))
    extra[places, slice(None) if rank is None else rank] = size_s
    return extra


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
    assert seen.every_steps is None


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
    assert seen.every_steps is None


def test_few_steps_are_said(golden: Golden) -> None:
    golden(found(np.full((30, 1), 1e-3)).why_not, "30 steps", "50")
    assert finite(found(np.full((30, 1), 1e-3)))["level_s"] is None
    assert found(np.full((60, 1), 1e-3)).count == 0


# -------------------------------------------------------------------------------------------------------- rhythms


@settings(max_examples=examples(25))
@given(every=st.integers(40, 600), first=st.integers(0, 500), seed=st.integers(0, 999), size_ms=st.floats(2, 50))
def test_a_known_rhythm_is_found(every: int, first: int, seed: int, size_ms: float) -> None:
    seen = found(noise(seed, 4000, 1), extra_s={"forward": at(4000, 1, np.arange(first, 4000, every), size_ms * 1e-3)})
    assert seen.every_steps == every


def test_a_rhythm_is_found_with_some_missing() -> None:
    places = np.arange(100, 8000, 300)
    kept = places[np.random.default_rng(3).random(len(places)) > 0.15]
    assert found(noise(1, 8000, 2), extra_s={"update": at(8000, 2, kept, 5e-3, rank=1)}).every_steps == 300


NOISES = {
    "normal": lambda rng: rng.normal(3e-3, 1e-4, (2000, 2)),
    "gamma": lambda rng: 2e-3 + rng.gamma(4, 1e-4, (2000, 2)),
    "exponential": lambda rng: 2e-3 + rng.exponential(2e-4, (2000, 2)),
    "slow moments": lambda rng: noise(int(rng.integers(1 << 30)), 2000, 2, slow=0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NOISES)
def test_noise_has_no_pauses_and_no_rhythm(kind: str) -> None:
    seen = [found(NOISES[kind](np.random.default_rng(seed))) for seed in range(100)]
    assert sum(each.count > 0 for each in seen) <= 5
    assert sum(each.every_steps is not None for each in seen) <= 1


@pytest.mark.slow
def test_pauses_at_random_have_no_rhythm() -> None:
    rhythms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        places = rng.choice(4000, int(rng.integers(5, 60)), replace=False)
        rhythms += bool(found(noise(seed, 4000, 1), extra_s={"data": at(4000, 1, places, 0.01)}).every_steps)
    assert rhythms <= 5
