"""The design of `run STUDY --tune`: ratios, and the race on simulated machines in both ways of measuring."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.analysis.paired import Slice
from horovod_study.errors import StudyError
from horovod_study.studies.designs import (
    ALONE,
    EQUAL,
    IN_TURNS,
    LIBRARY,
    SHIPPED,
    Candidate,
    Heat,
    Made,
    Race,
    halving,
    ratio_of,
)
from horovod_study.studies.ledger import Ledger
from horovod_study.studies.study_file import StudyCells

# --------------------------------------------------------------------------------------------------- known answers


def slices_of(speeds: Mapping[str, Sequence[float]], rounds: int = 1) -> list[Slice]:
    """Return the slices of candidates whose launches, `rounds` each, ran at these speeds."""
    return [
        Slice(launch=str(place // rounds), round=place % rounds, cell=name, rate=speed)
        for name, each in speeds.items()
        for place, speed in enumerate(each)
    ]


@given(st.lists(st.floats(0.6, 1.6), min_size=4, max_size=4), st.floats(1e-2, 1e6), st.sampled_from([1, 4]))
def test_a_machine_that_drifts_changes_nothing(levels: list[float], unit: float, rounds: int) -> None:
    speeds = {"a": [1.0, 1.1, 0.95, 1.02], "b": [1.2, 1.15, 1.2, 1.3]}
    drifting = {key: [unit * a * b for a, b in zip(levels, each, strict=True)] for key, each in speeds.items()}
    still, moved = (ratio_of(slices_of(each, rounds), "b", "a") for each in (speeds, drifting))

    assert moved.value == pytest.approx(still.value)
    assert (moved.low, moved.high) == (pytest.approx(still.low), pytest.approx(still.high))


@pytest.mark.parametrize(("launches", "rounds", "level_sd"), [(5, 1, 0.0), (3, 12, 0.01)])
def test_the_intervals_cover(launches: int, rounds: int, level_sd: float) -> None:
    """Of stated 95 %: blocks of one launch each, and launches of twelve rounds with levels of their own."""
    generator = np.random.default_rng(4)
    hits = tries = 0
    for _ in range(100):
        truth = generator.normal(0, 0.1, 7)
        levels = np.repeat(generator.normal(0, level_sd, (7, launches)), rounds, axis=1) + truth[:, None]
        logs = levels + generator.normal(0, 0.1, launches * rounds) + generator.normal(0, 0.02, levels.shape)
        slices = slices_of({str(place): np.exp(row).tolist() for place, row in enumerate(logs)}, rounds)
        for place in range(1, 7):
            found, true = ratio_of(slices, str(place), "0"), math.exp(truth[place] - truth[0])
            hits, tries = hits + (found.low <= true <= found.high), tries + 1

    assert 0.93 <= hits / tries <= 0.99


@pytest.mark.parametrize("shared", [1, 2])
def test_candidates_that_share_a_single_round_have_a_ratio_and_no_narrow_interval(shared: int) -> None:
    """A slow candidate may have one whole slice where the others have four."""
    rates, made = {"fast": 110.0, "reference": 100.0, "slow": 50.0}, {"fast": 4, "reference": 4, "slow": shared}
    speeds = {key: [rate * (1 + 0.01 * place) for place in range(made[key])] for key, rate in rates.items()}
    found = ratio_of(slices_of(speeds, 4), "slow", "fast")

    assert found.value == pytest.approx(50 / 110) and found.n == shared
    assert math.isnan(found.low) == (shared == 1)


# --------------------------------------------------------------------------------------------------- simulated races

Effects = dict[str, dict[str, float]]
BEST: Effects = {"a": {"1": 1.0, "2": 0.97, "3": 0.9}, "b": {"1": 1.08, "2": 1.0}, "c": {"1": 0.95}, "d": {"1": 0.6}}
NONE: Effects = {"a": {"1": 1.0, "2": 1.0, "3": 1.0}, "b": {"1": 1.0, "2": 1.0}, "c": {"1": 1.0}, "d": {"1": 1.0}}
TWO: Effects = {"a": {"1": 1.06, "2": 0.97}, "b": {"1": 1.06, "2": 1.0}, "c": {"1": 0.95}, "d": {"1": 0.6}}


def field(effects: Effects) -> list[Candidate]:
    """Return baselines and one candidate per value."""
    return [
        Candidate(name=SHIPPED),
        Candidate(name=LIBRARY, values={"horovod_defaults": True}),
        *(
            Candidate(name=f"{knob}={value}", values={knob: value}, knob=knob)
            for knob, values in effects.items()
            for value in values
        ),
    ]


def true_speed(effects: Effects, each: Candidate) -> float:
    return 0.5 if each.name == LIBRARY else math.prod(effects[knob][value] for knob, value in each.values.items())


PARTS = ("minutes", "start_s", "slice_s", "noise", "drift", "period_s")
MACHINES = {
    "alone": (ALONE, dict(zip(PARTS, (10.0, 0.0, 7.0, 0.02, 0.1, 280.0), strict=True))),
    "turns": (IN_TURNS, dict(zip(PARTS, (3.0, 3.5, 0.26, 0.06, 0.3, 30.0), strict=True))),
}
Done = list[tuple[Heat, list[Slice]]]
Change = Callable[[Heat, Candidate, float], float]


def simulate(
    effects: Effects,
    seed: int,
    way: str = "alone",
    *,
    room: float = math.inf,
    change: Change = lambda heat, each, rate: rate,
    **changes: float,
) -> tuple[Race, Done, float]:
    """Race on a machine that drifts; a rate of 0 is a failed launch. Return also all launches, and the seconds."""
    measured, usual = MACHINES[way]
    at = {**usual, **changes}
    generator = np.random.default_rng(seed)
    race, used_s, wander = Race(field(effects)), 0.0, 0.0
    done: Done = []
    launches = 0

    def run(heat: Heat) -> Made:
        nonlocal used_s, wander, launches
        until_s = 60 * at["minutes"] * (1 if heat.what == "confirm" else 0.6)
        if used_s + len(heat.arms) * used_s / max(1, launches) > until_s:
            return None
        launches += len(heat.arms)
        levels = {each.name: 0.005 * generator.standard_normal() if way == "turns" else 0.0 for each in heat.arms}
        used_s += at["start_s"] * len(levels)
        slices: list[Slice] = []
        left, number = {each.name for each in heat.arms if change(heat, each, 1.0) > 0}, 0
        while left and not (number >= 4 and used_s > until_s):
            for each in (each for each in heat.arms if each.name in left):
                used_s += at["slice_s"]
                wander += at["noise"] / 2 * generator.standard_normal() if way == "alone" else 0.0
                log = levels[each.name] + at["drift"] * math.sin(used_s / at["period_s"]) + wander
                rate = true_speed(effects, each) * math.exp(log + at["noise"] * generator.standard_normal())
                rate = change(heat, each, rate)
                slices.append(Slice(launch=f"{heat.what}/{heat.number}", round=number, cell=each.name, rate=rate))
            number += 1
            left = left if number < heat.rounds else set()
        done.append((heat, slices))
        return slices, {name: "crash" for name in levels if all(each.cell != name for each in slices)}

    def launch(heat: Heat) -> Generator[StudyCells, Ledger, Made]:
        yield from ()  # nothing for an engine
        return run(heat)

    assert not list(halving(race, measured, launch, seed=seed, room=room))
    return race, done, used_s


def launched(done: Done, what: str = "") -> list[str]:
    return [each.name for heat, _ in done for each in heat.arms if heat.what.startswith(what)]


@pytest.mark.slow
@pytest.mark.parametrize(("effects", "best"), [(BEST, 1.08), (TWO, 1.06**2)])
@pytest.mark.parametrize(("way", "tunes", "good"), [("alone", 20, 18), ("turns", 40, 32)])
def test_the_best_is_found_and_the_time_is_kept_to(
    effects: Effects, best: float, way: str, tunes: int, good: int
) -> None:
    """Within 1 % of the truly best: in nine of ten tunes; in eight of ten, of three minutes, in turns."""
    found = [simulate(effects, seed, way) for seed in range(tunes)]
    races = [race for race, _, _ in found if true_speed(effects, race.chosen) > best * (1 - EQUAL)]

    assert len(races) >= good and all(race.chosen.name != SHIPPED for race in races)
    assert max(used_s for _, _, used_s in found) < {"alone": 601, "turns": 200}[way]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "tunes", "least"), [("alone", 20, 19), ("turns", 6, 6)])
def test_where_nothing_helps_the_shipped_settings_are_kept(way: str, tunes: int, least: int) -> None:
    races = [simulate(NONE, seed, way)[0] for seed in range(tunes)]
    kept = [race for race in races if race.chosen.name == SHIPPED]

    assert len(kept) >= least
    assert all(race.text.startswith("not resolved: ") for race in kept)


def test_a_clear_winner_ends_the_race_early_and_is_confirmed_by_launches_of_its_own(golden: Golden) -> None:
    race, done, _ = simulate({"a": {"1": 0.9, "2": 0.8}, "b": {"1": 1.5}, "c": {"1": 0.95}}, 3)
    confirming = launched(done, "confirm")

    assert race.chosen.name == "b=1" and race.text.startswith("resolved: ")
    assert len(launched(done)) < 60
    assert sorted(set(confirming)) == ["b=1", "shipped settings"] and len(confirming) == 10
    assert race.gain(race.chosen, race.confirming).n == 5
    golden(race.text, "b=1")


def test_each_stage_has_half_of_those_before_with_the_shipped_settings() -> None:
    race, done, _ = simulate({"a": {str(place): 1 - place / 100 for place in range(1, 9)}}, 5, noise=0.001, minutes=60)
    names = [[each.name for each in heat.arms] for heat, _ in done]
    stages = list(dict.fromkeys(tuple(sorted(name for name in each if name[0] == "a")) for each in names))

    assert all("shipped settings" in each for each in names)
    assert [len(each) for each in stages] == [8, 5, 3, 2]
    assert stages[1] == tuple(f"a={place}" for place in range(1, 6))
    assert names[0] != names[1], "every launch has an order of its own"
    assert race.chosen.name == SHIPPED and "gains more than 1 %" in race.text


def test_who_is_in_the_slower_half_or_fails_is_not_launched_again() -> None:
    fails: Change = lambda _, each, rate: 0.0 if each.name == "c=1" else rate  # noqa: E731
    race, (_, *later), _ = simulate(BEST, 3, "turns", change=fails)

    assert race.failed == {"c=1": "crash"} and "d=1" in race.slower
    assert not {"d=1", "c=1"} & set(launched(later)) and race.chosen.name == "b=1"


def test_what_does_not_fit_into_memory_together_is_raced_in_parts_with_the_reference() -> None:
    _, done, _ = simulate(BEST, 1, "turns", room=4, minutes=20)
    names = [{each.name for each in heat.arms} for heat, _ in done]

    assert all(len(each) <= 4 and "shipped settings" in each for each in names)
    assert sum(len(each) - 1 for each in names[:3]) == 8


def test_helping_values_are_combined() -> None:
    race, _, _ = simulate(TWO, 2, noise=0.005)
    combined = [each for each in race.arms if len(each.values) > 1]

    assert [dict(sorted(each.values.items())) for each in combined] == [{"a": "1", "b": "1"}]
    assert race.chosen in combined


def test_a_setting_that_fails_is_out_with_its_reason() -> None:
    race, done, _ = simulate(BEST, 1, change=lambda _, each, rate: 0.0 if each.name == "b=1" else rate)

    assert race.failed["b=1"] == "crash" and race.chosen.name != "b=1"
    assert launched(done).count("b=1") == 1


@pytest.mark.parametrize(
    ("speed", "factor"), [(1.5, lambda heat: 1 - 5 / 6 * (heat.number % 2)), (0.98 * 1.15, lambda _: 1 / 1.15)]
)
def test_a_leader_that_is_slow_when_it_is_launched_again_is_not_kept(
    speed: float, factor: Callable[[Heat], float], golden: Golden
) -> None:
    """In some of these launches, or in all of them."""

    def slow(heat: Heat, each: Candidate, rate: float) -> float:
        return rate * (factor(heat) if each.name == "c=1" and heat.what == "confirm" else 1.0)

    race, _, _ = simulate({"c": {"1": speed}}, 4, change=slow)

    assert race.chosen.name == SHIPPED
    golden(race.text, "c=1")


def test_shipped_settings_that_fail_end_the_race(golden: Golden) -> None:
    with golden.raises(StudyError, match="shipped"):
        simulate(BEST, 1, change=lambda _, each, rate: 0.0 if each.name == SHIPPED else rate)


def test_without_time_for_one_block_nothing_is_claimed(golden: Golden) -> None:
    race, _, _ = simulate(BEST, 1, minutes=0.3)

    assert race.chosen.name == SHIPPED and "time" in race.text
    golden(race.text)
