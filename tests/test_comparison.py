"""Comparisons: what is said of the blocks, and in which words. The statistics are in tests/test_stats.py."""

import copy

import numpy as np
import pytest
from make.wording import Golden

from horovod_study.analysis.compare.comparison import compare, lines, too_few
from horovod_study.errors import AnalysisError


def arm(samples_per_s: float, **changes) -> dict:
    usual = {
        "samples_per_s": float(samples_per_s),
        "step_s_median": 0.003,
        "step_s_p90": 0.0033,
        "test_mse": 1e-3,
        "parameter_sha256": "same",
        "first_losses": [0.1, 0.09],
    }
    return {**usual, **changes}


def blocks(ratios: list[float], *, workers: int = 2, b: dict | None = None) -> list[dict]:
    """Blocks in which A makes 1000, 1100, 1200, ... samples/s and B so many times as many."""
    rows = []
    for number, ratio in enumerate(ratios, start=1):
        speed = 1000.0 + 100 * number
        sides = {"A": arm(speed), "B": arm(speed * ratio, **(b or {}))}
        rows.append({"workers": workers, "block": number, "first": "AB"[number % 2], **sides})
    return rows


# --------------------------------------------------------------------------------------------------- known answers


def test_too_few_blocks_are_told_before_they_run(golden: Golden) -> None:
    assert too_few(10, 3) == ""
    golden(too_few(4, 1), "4 blocks", "0.125", "0.05", "6 blocks", "--blocks")
    golden(too_few(6, 2), "0.0625", "2 worker", "0.05", "7 blocks")


def verdict(ratios: list[float]) -> str:
    said: str = compare(blocks(ratios))["workers"][0]["verdict"]
    return said


# -------------------------------------------------------------------------------------------------------- in turns


def in_turns(ratios: list[float], *, rounds: int = 40, load: float = 0.0, seed: int = 1) -> list[dict]:
    """Blocks whose rounds scatter by 5 % about these ratios, on a machine that drifts by 30 %."""
    generator = np.random.default_rng(seed)
    found = blocks(ratios)
    for block, ratio in zip(found, ratios, strict=True):
        level = 1000 * np.exp(0.3 * np.sin(np.linspace(0, 9, rounds)))
        a, b = (level * np.exp(0.035 * generator.standard_normal(rounds)) for _ in "AB")
        loads = [load, *(0.0 for _ in range(rounds - 1))]
        block["rounds"] = {"A": a.tolist(), "B": (ratio * b).tolist(), "other_load": loads}
    return found


def test_in_turns_the_answer_is_the_ratio_within_rounds_with_both_components(golden: Golden) -> None:
    (count,) = compare(in_turns([1.05, 1.05, 1.05, 1.05, 1.05], load=1.0))["workers"]
    (apart,) = compare(in_turns([1.0, 1.1, 1.0, 1.1]))["workers"]
    made = count["turns"]

    assert count["resolved"] and count["low"] < 1.05 < count["high"]
    assert [made[name] for name in ("launches", "rounds", "set_aside")] == [5, 195, 5]
    assert made["round_sd"] == pytest.approx(0.05, rel=0.25) and made["cancelled"] > 0.9
    assert apart["turns"]["launch_sd"] == pytest.approx(0.055, rel=0.3) and not apart["resolved"]
    assert apart["blocks"] == 4 and apart["turns"]["rounds"] == 160
    said = "\n".join(lines(compare(in_turns([1.05] * 3))))
    golden(said, "120 rounds", "3 blocks")


def test_a_precision_that_was_not_reached_is_a_doubt(golden: Golden) -> None:
    wide, narrow = (compare(in_turns([1.0, 1.1, 1.0]), aim=aim)["workers"][0] for aim in (0.01, 0.5))

    assert narrow["doubts"] == []
    golden(wide["doubts"][0], "1 %")
    with golden.raises(AnalysisError, match="2 workers"):
        compare(in_turns([1.0], rounds=1))


# -------------------------------------------------------------------------------------------------------- verdicts


def test_a_resolved_difference_in_words(golden: Golden) -> None:
    ratios = [1.025, 1.031, 1.038, 1.029, 1.033, 1.030, 1.027, 1.035]
    found = compare(blocks(ratios))
    (count,) = found["workers"]

    assert count["resolved"]
    golden(count["verdict"], "3.1 %", "2.7", "3.5 %", "= 0.0078")
    assert verdict([1 / ratio for ratio in ratios]).startswith("B is slower: -3.0 %")
    text = lines(found)
    assert text[0].split() == "workers blocks A samples/s B samples/s B/A from to p p (Holm) p90/med A B".split()
    assert "2 workers: B is faster" in "\n".join(text)


def test_an_unresolved_difference_in_words(golden: Golden) -> None:
    golden(verdict([0.99, 1.03, 1.00, 1.02, 0.98, 1.01, 1.02, 0.99]), "-1.0 %", "+2.0 %", "=", "27 blocks", "1 %")
    golden(verdict([1.001, 0.999, 1.002, 0.998, 1.001, 1.0]), "1 %")
    golden(verdict([1.05, 1.06, 1.055]), "6 blocks")
    assert "one block says B/A = 1.100" in verdict([1.1])


def test_holm_over_worker_counts_can_take_a_difference_away() -> None:
    ratios = [1.02, 1.03, 1.04, 1.025, 1.035, 1.03]  # p = 2/64 alone

    assert compare(blocks(ratios))["workers"][0]["resolved"]
    both = compare([*blocks(ratios, workers=1), *blocks(ratios, workers=2)])["workers"]
    assert [count["p_holm"] for count in both] == [pytest.approx(4 / 64)] * 2
    assert not any(count["resolved"] for count in both)


def test_a_block_that_stands_apart_counts_and_is_told(golden: Golden) -> None:
    ratios = [1.05, 1.06, 1.055, 4.2, 1.06, 1.05, 1.065, 1.058, 1.052, 1.061]
    (count,) = compare(blocks(ratios))["workers"]

    assert count["odd_blocks"] == [4]
    assert count["ratio"] == pytest.approx(np.exp(np.mean(np.log(ratios)))), "nothing is left out"
    assert count["resolved"]
    golden(count["verdict"], "5.9 %", "5.0", "6.5 %", "= 0.002")
    golden(count["doubts"][0], "block 4", "B/A = 4.200", "1.059")


def test_learning_is_compared(golden: Golden) -> None:
    same = compare(blocks([1.0, 1.0]))
    golden(same["learning"]["text"])
    rounding = {"parameter_sha256": "other", "first_losses": [0.1, 0.090000009], "test_mse": 1.02e-3}
    near = compare(blocks([1.0, 1.0], b=rounding))["learning"]
    assert near["alike"]
    golden(near["text"], "2 steps", "1.0e-07", "MSE", "1.96 %")
    other = compare(blocks([1.0, 1.0], b={"parameter_sha256": "other", "first_losses": [0.1, 0.08]}))["learning"]
    assert other["alike"] is False
    golden(other["text"])
    lost = compare(blocks([1.0], b={"parameter_sha256": "other", "first_losses": [], "test_mse": None}))["learning"]
    assert lost["alike"] is None
    golden(lost["text"])


def test_unsteady_steps_are_doubted(golden: Golden) -> None:
    (count,) = compare(blocks([1.0, 1.1], b={"step_s_p90": 0.009}))["workers"]

    assert [count[f"{arm}_p90_over_median"] for arm in "ab"] == [pytest.approx(1.1), pytest.approx(3.0)]
    golden(count["doubts"], "3.0 times")


def test_compare_changes_nothing_and_needs_a_block(golden: Golden) -> None:
    given_blocks = blocks([1.0, 1.1, 1.2])
    before = copy.deepcopy(given_blocks)

    assert compare(given_blocks) == compare(given_blocks[::-1])
    assert given_blocks == before
    with golden.raises(AnalysisError):
        compare([])
