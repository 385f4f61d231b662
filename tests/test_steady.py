"""Where a run is found to be steady: simulated runs whose truth is known, and what `train` makes of it."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.wording import Golden
from numpy.typing import NDArray

from horovod_study import records, train
from horovod_study.measure import steady
from horovod_study.measure.steady import BLOCK_STEPS, BLOCKS, Steady, declared, find_steady, segments

DECLARED = 50
STEP_S = 2.5e-3
Run = NDArray[np.float64]


def noisy(seed: int, steps: int, scatter: float = 0.05, memory: float = 0.0) -> Run:
    """Return step times about STEP_S; `memory` is the correlation of a step with the next one."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=steps) * scatter
    for k in range(1, steps) if memory else ():
        noise[k] = memory * noise[k - 1] + noise[k] * np.sqrt(1 - memory**2)
    return STEP_S * np.exp(noise)


def found(runs: list[Run]) -> list[Steady]:
    return [find_steady(run, DECLARED) for run in runs]


# ------------------------------------------------------------------------------------------------------- simulation


@pytest.mark.slow
@pytest.mark.parametrize("steps", [200, 1000, 3000])
@pytest.mark.parametrize("scatter", [0.01, 0.05, 0.2])
def test_noise_alone_leaves_the_declared_minimum(steps: int, scatter: float) -> None:
    all_found = found([noisy(seed, steps, scatter) for seed in range(60)])

    assert sum(each.step == DECLARED for each in all_found) >= 57, "95 % of the seeds"
    assert sum(not each.doubt for each in all_found) >= 57


@pytest.mark.parametrize(("memory", "least"), [(0.5, 38), (0.9, 30)])
def test_noise_that_comes_in_spells_is_seldom_taken_for_a_warm_up(memory: float, least: int) -> None:
    all_found = found([noisy(seed, 1000, memory=memory) for seed in range(40)])

    assert sum(each.step == DECLARED for each in all_found) >= least


def test_noise_with_heavy_tails_leaves_the_declared_minimum() -> None:
    rngs = [np.random.default_rng(seed) for seed in range(40)]
    all_found = found([STEP_S * np.exp(0.03 * rng.standard_t(2, size=1000)) for rng in rngs])

    assert sum(each.step == DECLARED for each in all_found) >= 38


@pytest.mark.parametrize("steps", [1500, 3000, 20_000])
@pytest.mark.parametrize("slower", [1.05, 1.3, 3.0, 0.8])
def test_a_slow_or_fast_begin_of_300_steps_is_found(steps: int, slower: float) -> None:
    for seed in range(5):
        run = noisy(seed, steps)
        run[: DECLARED + 300] *= slower
        steady = find_steady(run, DECLARED)

        block = max(BLOCK_STEPS, -(-(steps - DECLARED) // BLOCKS))
        assert abs(steady.step - (DECLARED + 300)) <= 2 * block
        assert (steady.declared, steady.found_by, steady.doubt) == (DECLARED, "change-point", "")


def test_a_begin_that_fades_is_cut_where_it_is_hardly_seen_any_more() -> None:
    excess = 0.5 * np.exp(-np.arange(3000) / 100)  # below LEVEL, 2 %, from step 322 on
    cuts = [find_steady(noisy(seed, 3000) * (1 + excess), DECLARED).step for seed in range(20)]

    assert 200 <= min(cuts) and max(cuts) <= 480


def test_steps_of_the_warm_up_have_no_say() -> None:
    run = noisy(1, 1000)
    slow_before = run.copy()
    slow_before[:DECLARED] *= 100

    assert find_steady(slow_before, DECLARED) == find_steady(run, DECLARED)


@pytest.mark.parametrize("place", [50, 60, 200, 399, 900])
def test_one_outlier_moves_nothing(place: int) -> None:
    run = noisy(2, 1000)
    run[place] *= 1000

    assert find_steady(run, DECLARED) == find_steady(noisy(2, 1000), DECLARED)


@pytest.mark.parametrize("every", [7, 25, 100])
def test_pauses_that_come_again_and_again_move_nothing(every: int) -> None:
    run = noisy(3, 2000)
    run[::every] += 0.03

    assert find_steady(run, DECLARED).step == DECLARED


def test_a_slow_spell_after_a_good_begin_is_no_warm_up() -> None:
    run = noisy(4, 3000)
    run[300:340] *= 3

    assert find_steady(run, DECLARED).step == DECLARED


def test_a_slow_begin_is_none_where_such_spells_come_later_too() -> None:
    run = noisy(5, 3000)
    for begin in (DECLARED, 1500, 2500):
        run[begin : begin + 100] *= 1.3

    assert find_steady(run, DECLARED).step == DECLARED


@pytest.mark.parametrize("part", [0.2, 0.32])
def test_a_long_warm_up_is_cut_though_later_levels_alternate(part: float) -> None:
    for seed in range(10):
        run = noisy(seed, 2050)
        end = DECLARED + int(part * 2000)
        run[:end] *= 1.2
        for place in (1, 3):
            run[end:][place * (2050 - end) // 4 : (place + 1) * (2050 - end) // 4] *= 1.03

        assert abs(find_steady(run, DECLARED).step - end) <= 2 * BLOCK_STEPS


@pytest.mark.parametrize("steps", [550, 2050])
def test_a_drift_of_the_whole_run_is_no_warm_up(steps: int) -> None:
    drift = np.linspace(1.0, 1.1, steps)
    all_found = found([noisy(seed, steps) * way for seed in range(10) for way in (drift, drift[::-1])])

    assert {each.step for each in all_found} == {DECLARED}
    assert sum("is not steady" in each.doubt for each in all_found) >= 8


def test_very_slow_first_steps_are_cut_one_by_one() -> None:
    run = noisy(6, 3000)
    run[0], run[1] = 0.5, 0.02

    assert find_steady(run, 0) == Steady(step=2, declared=0, found_by="change-point")


@pytest.mark.parametrize(
    ("change", "words"),
    [(1.08, "a step takes 8.0 % longer (2.5 to 2.7 ms)"), (0.9, "a step takes 10.0 % less (2.5 to 2.25 ms)")],
)
def test_a_later_change_of_level_cuts_nothing_and_is_told(change: float, words: str) -> None:
    run = noisy(7, 2050, 0.001)
    run[1250:] *= change

    assert find_steady(run, DECLARED) == Steady(
        step=DECLARED,
        declared=DECLARED,
        found_by="no change-point",
        doubt=f"the run is not steady: from step 1,250 on {words}; the window holds both",
    )


def test_a_spell_is_told_with_its_end(golden: Golden) -> None:
    run = noisy(8, 2050, 0.001)
    run[1050:1450] *= 1.2

    golden(find_steady(run, DECLARED).doubt, "step 1,050", "1,450", "20.0 %")


def test_a_spell_that_hardly_moves_the_mean_is_not_told() -> None:
    run = noisy(8, 2050, 0.001)
    run[1050:1200] *= 1.05  # 7.5 % of the steps 5 % slower: 0.4 %

    assert find_steady(run, DECLARED).doubt == ""


def test_a_begin_longer_than_a_third_is_not_cut_but_told(golden: Golden) -> None:
    run = noisy(9, 2050, 0.001)
    run[:950] *= 1.2
    steady = find_steady(run, DECLARED)

    assert steady.step == DECLARED
    golden(steady.doubt, "step 950", "16.7 %")


@settings(max_examples=examples(30))
@given(
    seed=st.integers(0, 1000),
    steps=st.integers(0, 600),
    first=st.integers(0, 60),
    scale=st.floats(1e-5, 10.0),
)
def test_the_window_begins_in_the_first_third_and_does_not_depend_on_the_unit(
    seed: int, steps: int, first: int, scale: float
) -> None:
    run = np.random.default_rng(seed).lognormal(-6, 0.3, size=steps)
    first = min(first, steps)
    steady = find_steady(run, first)

    assert first <= steady.step <= first + (steps - first) / 3 + BLOCK_STEPS
    assert find_steady(run * scale, first).step == steady.step


# ------------------------------------------------------------------------------------------------------ partition


def test_the_partition_is_the_best_of_all() -> None:
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 5.0, 5.2, 4.9, 5.1, 5.05, 4.85, 1.0, 1.05, 0.95, 1.1, 0.9])
    bends = values[2:] - 2 * values[1:-1] + values[:-2]
    penalty = 6.0 * np.log(len(values)) * (np.median(np.abs(bends)) * 1.4826) ** 2 / 6

    def cost(begins: tuple[int, ...]) -> float:
        parts = np.split(values, begins[1:])
        return float(sum(((part - part.mean()) ** 2).sum() for part in parts) + penalty * (len(begins) - 1))

    ways = ((0, *rest) for size in range(4) for rest in itertools.combinations(range(1, len(values)), size))

    assert segments(values) == list(min(ways, key=cost)) == [0, 5, 11]


def test_a_million_steps_take_no_time() -> None:
    run = noisy(10, 1_000_000)
    began = process_time()

    assert find_steady(run, DECLARED).step == DECLARED
    assert process_time() - began < 5.0  # 0.05 s of the processor, of which other programs take nothing


# ------------------------------------------------------------------------------------------------------- fallback


def test_too_few_steps_leave_the_declared_minimum_with_the_reason() -> None:
    why = (
        "50 timed steps are too few to find out whether they are steady (at least 60): the window begins where it was "
        "declared"
    )

    assert find_steady(noisy(1, 100), DECLARED) == declared(DECLARED, why)


def test_steps_without_times_leave_the_declared_minimum_with_the_reason(golden: Golden) -> None:
    run = noisy(1, 1000)
    run[500] = np.nan

    golden(find_steady(run, DECLARED).doubt)


# ----------------------------------------------------------------------------------------------------------- train


@pytest.fixture
def trained(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[records.RunRecord, str, Path]]:
    def run(*options: str) -> tuple[records.RunRecord, str, Path]:
        out = tmp_path / "run"
        line = ["--dataset", "400", "--steps", "150", "--warmup-steps", "10", "--out", str(out), "--json", *options]
        assert train.main(line) == 0
        printed = capfd.readouterr()
        assert json.loads(printed.out)["steady"] == records.read_run(out).totals["steady"]
        return records.read_run(out), printed.err, out

    return run


Trained = Callable[..., tuple[records.RunRecord, str, Path]]


@pytest.mark.slow
def test_the_window_is_what_is_left_after_the_warm_up_that_was_found(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Step times are those of the file, the decision is given: 90 steps more than declared are left out."""
    seen: list[tuple[int, int]] = []

    def decide(step_s: Run, first: int) -> Steady:
        seen.append((len(step_s), first))
        return Steady(step=100, declared=first, found_by="change-point", doubt="something to say")

    monkeypatch.setattr(steady, "find_steady", decide)
    record, told, out = trained()
    totals = record.totals
    rows = records.read_steps(out, 0)
    step_s = rows.column("step_s").to_numpy()
    plain = totals["steps"] * 75 / totals["window_s"]

    assert seen == [(160, 10)]
    assert totals["steady"] == {"step": 100, "declared": 10, "found_by": "change-point", "doubt": "something to say"}
    assert (totals["steps"], totals["excluded_steps"], len(rows)) == (60, 100, 160)
    assert totals["samples_per_s"] == plain
    # The measured window without what was cut: the sum of its steps, and the ends of its stretches.
    assert 0 <= totals["window_s"] - step_s[100:].sum() < 0.5 * step_s[100:].sum()
    assert totals["step_s_median"] == float(np.median(step_s[100:]))
    assert "warning: something to say" in told
    golden.line(told, "step 100", "90 steps")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found_by", "doubt"),
    [
        (["--steady", "declared"], "declared", ""),
        (
            ["--timer-mode", "off"],
            "declared",
            "steady steps cannot be found with timer_mode off: the window begins where it was declared",
        ),
    ],
)
def test_a_declared_window_begins_after_the_declared_warm_up(
    trained: Trained, options: list[str], found_by: str, doubt: str
) -> None:
    record, told, _ = trained(*options)

    assert record.totals["steady"] == {"step": 10, "declared": 10, "found_by": found_by, "doubt": doubt}
    assert (record.totals["steps"], record.totals["excluded_steps"]) == (150, 10)
    assert (f"note: {doubt}" in told) == bool(doubt)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_declared_window(trained: Trained, capfd: pytest.CaptureFixture[str]) -> None:
    *_, out = trained()

    assert train.main(["--resume", str(out), "--steps", "200"]) == 0
    assert records.read_run(out).totals["steady"] == {
        "step": 10,
        "declared": 10,
        "found_by": "declared",
        "doubt": "a resumed run begins twice: its window begins where it was declared, not where it is found steady",
    }
