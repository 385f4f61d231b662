"""Where the synchronisation time goes: known answers, simulated ranks, the experiment, and the words."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import make.records
import numpy as np
import pytest
from fake_trainer import fake_launch
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.wording import Golden

from horovod_study import cli, records
from horovod_study.analysis.steps.attribution import (
    INSIDE_BACKWARD,
    Arm,
    Attribution,
    Observation,
    attribute,
    leave_spread,
    observe,
    parts_of,
)
from horovod_study.errors import AnalysisError, ConfigError, StudyError
from horovod_study.records import RunTurns, TurnSlice, finite, read_turns
from horovod_study.report.terminal import attribution_table, write_attribution
from horovod_study.studies import turns
from horovod_study.studies.bench import arms_of, cells_of, run_experiment
from horovod_study.studies.runner import RunOptions

LAPS = {"residual": 0.05, "data": 0.1, "forward": 0.25, "backward": 0.5, "update": 0.1}
"""How the time until the gradients are ready is spread over the laps."""


def rows_of(ready_s: np.ndarray, sync_s: np.ndarray | None) -> list[dict[str, Any]]:
    """Return step rows of each rank whose ready times and syncs are (S, R); the first row comes before them."""
    steps, ranks = ready_s.shape
    ready = np.concatenate([ready_s[:1], ready_s])
    sync = np.full((steps + 1, ranks), np.nan) if sync_s is None else np.concatenate([sync_s[:1], sync_s])
    return [
        {
            "step": np.arange(steps + 1) + 50,
            "epoch": np.zeros(steps + 1, dtype=int),
            **{f"{lap}_s": share * ready[:, rank] for lap, share in LAPS.items() if lap != "update"},
            # The update belongs to the row before: it is the first thing after a synchronisation.
            "update_s": LAPS["update"] * np.concatenate([ready[1:, rank], ready[-1:, rank]]),
            "sync_s": sync[:, rank],
            "compute_s": np.full(len(sync), np.nan),
        }
        for rank in range(ranks)
    ]


def effective(ranks: int, **changes: Any) -> dict[str, Any]:
    return {
        "backend": "horovod",
        "transport": "mpi",
        "reduction": "flat",
        "workers": ranks,
        "batch": 75,
        "settings": {},
        "ranks": [{"host": f"node{rank}"} for rank in range(ranks)],
        **changes,
    }


def bench_of(floor_s: np.ndarray, through_s: np.ndarray | None, pack_s: np.ndarray | None, why: str = "") -> Any:
    return {
        "block": 10,
        "clock": "common",
        "floor_s": floor_s,
        "pack_s": pack_s,
        "through_s": through_s,
        "why_not_through": why,
    }


PARTS = ("floor", "skew", "runtime", "unexplained")  # they add up to the synchronisation


def changed(seen: Observation, **changes: Any) -> Observation:
    return Observation(**{**vars(seen), **changes})


def known(ready: tuple[float, ...], *, floor: float, through: float, extra: float = 0.0, **changes: Any) -> Observation:
    """Return a run without noise: ranks ready after `ready` s each; `through` s and `extra` after the last one."""
    ready_s = np.tile(ready, (40, 1))
    sync_s = ready_s.max(axis=1, keepdims=True) - ready_s + through + extra
    bench = bench_of(np.full(40, floor), np.full(40, through), np.full(40, through / 10))
    return observe("run", {}, effective(len(ready), **changes), 0, rows_of(ready_s, sync_s), bench)


def simulated(
    seed: int,
    *,
    steps: int = 600,
    mean_s: tuple[float, ...] = (2.6e-3, 2.6e-3),
    floor_s: float = 1e-4,
    runtime_s: float = 2e-4,
    hidden_s: float = 0.0,
    leave_s: float = 0.0,
) -> Observation:
    """Return a run of ranks on a common time line, each of which only records its own laps.

    Compute times scatter, slow moments last for several steps, synchronisations scatter, and ranks leave one at times
    that scatter by `leave_s`. `hidden_s` happens in training alone: what nothing measured explains.
    """
    rng = np.random.default_rng(seed)
    ranks = len(mean_s)
    slow = np.zeros(ranks)
    leave = np.zeros(ranks)
    ready, sync = np.empty((steps, ranks)), np.empty((steps, ranks))
    for step in range(steps):
        slow = 0.8 * slow + rng.normal(0, 3e-5, ranks)
        arrive = leave + np.asarray(mean_s) + slow + rng.gamma(4, 2e-5, ranks)
        operation = floor_s + rng.gamma(4, runtime_s / 4) + hidden_s
        after = arrive.max() + operation + rng.normal(0, leave_s, ranks)
        ready[step], sync[step] = arrive - leave, after - arrive
        leave = after
    # A transfer takes as long as it takes; now and then a thread of the runtime comes in between, for milliseconds.
    floor = floor_s * (1 + rng.exponential(0.02, 200)) + np.where(rng.random(200) < 0.6, rng.exponential(3e-3, 200), 0)
    through = floor_s + rng.gamma(4, runtime_s / 4, 200)
    bench = bench_of(floor, through, rng.gamma(9, runtime_s / 90, 200))
    return observe(f"run {seed}", {}, effective(ranks), seed, rows_of(ready, sync), bench)


@pytest.mark.slow
@pytest.mark.parametrize("cost_s", [0.0, 4e-5])
def test_scatter_of_all_reduces_is_no_runtime(cost_s: float) -> None:
    doubted = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        floor, through = 1e-4 * (1 + rng.gamma(1, 0.3, (2, 200)))
        bench = bench_of(floor, through + cost_s, np.full(200, 1e-5))
        ready_s = np.tile((3e-3, 2e-3), (40, 1))
        sync_s = ready_s.max(axis=1, keepdims=True) - ready_s + 2e-4
        found = attribute([observe("run", {}, effective(2), 0, rows_of(ready_s, sync_s), bench)])
        (arm,) = found.arms
        assert arm.seconds["runtime"].low > 0 and arm.seconds["least"].low < cost_s + 5e-6
        doubted += any("not distinguishable from zero" in each for each in found.doubts)

    assert doubted <= 1 if cost_s else doubted >= 18


def one(found: Attribution) -> Arm:
    (arm,) = found.arms
    return arm


def ms(arm: Arm, name: str) -> float:
    return pytest.approx(arm.seconds[name].value * 1e3, abs=1e-9)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------- known answers


def test_a_known_example_is_taken_apart_exactly(golden: Golden) -> None:
    # Ranks ready after 3 and 2 ms: the second waits 1 ms, 0.5 ms on average. Aligned, a synchronisation takes 0.25 ms,
    # of which 0.1 the transfer; in training it takes 0.30 ms after the last rank.
    arm = one(attribute([known((3e-3, 2e-3), floor=1e-4, through=2.5e-4, extra=5e-5)]))
    expected = {
        "step": 3.3,
        "sync": 0.8,
        "skew": 0.5,
        "floor": 0.1,
        "runtime": 0.15,
        "pack": 0.025,
        "rest": 0.125,
        "unexplained": 0.05,
        "wait 0": 0.0,
        "wait 1": 1.0,
    }
    assert {name: ms(arm, name) for name in expected} == expected
    # Its own step without synchronisation takes 2.5 ms on average.
    efficiencies = {name: round(each.value, 6) for name, each in arm.efficiency.items()}
    assert efficiencies == {
        "now": round(2.5 / 3.3, 6),
        "without runtime": round(2.5 / 3.15, 6),
        "without skew": round(2.5 / 2.8, 6),
        "without unexplained": round(2.5 / 3.25, 6),
        "at the floor": round(2.5 / 2.6, 6),
        "without synchronisation": 1.0,
    }
    golden(arm.baseline)


def test_one_worker_alone_is_the_baseline_where_it_was_run() -> None:
    alone = observe(
        "alone", {}, effective(1, backend="serial"), 0, rows_of(np.full((40, 1), 2.4e-3), np.zeros((40, 1))), None
    )
    found = attribute([alone, known((3e-3, 2e-3), floor=1e-4, through=3e-4)])
    arm = one(found)
    assert arm.baseline == "one worker alone"
    assert round(arm.efficiency["now"].value, 6) == round(2.4 / 3.3, 6)
    assert round(arm.efficiency["without synchronisation"].value, 6) == round(2.4 / 2.5, 6)


@settings(max_examples=examples(25))
@given(
    ready=st.lists(st.floats(1e-3, 1e-2), min_size=2, max_size=5),
    floor=st.floats(1e-5, 1e-3),
    runtime=st.floats(-1e-4, 1e-3),
    extra=st.floats(-1e-3, 1e-3),
)
def test_the_parts_always_add_up_to_the_synchronisation(
    ready: list[float], floor: float, runtime: float, extra: float
) -> None:
    arm = one(attribute([known(tuple(ready), floor=floor, through=floor + runtime, extra=extra)]))
    assert sum(arm.seconds[name].value for name in PARTS) == pytest.approx(arm.seconds["sync"].value, abs=1e-12)
    assert arm.seconds["unexplained"].value == pytest.approx(extra, abs=1e-12)


def test_what_cannot_be_explained_stays_negative(golden: Golden) -> None:
    found = attribute([known((2e-3, 2e-3), floor=1e-4, through=5e-4, extra=-2e-4)])
    arm = one(found)
    assert ms(arm, "unexplained") == -0.2
    assert finite(found)["arms"][0]["seconds"]["unexplained"]["value"] == pytest.approx(-2e-4)
    golden(told(found), "0.2")


# ---------------------------------------------------------------------------------------------------- simulation


@pytest.mark.slow
def test_the_parts_of_simulated_ranks_are_within_their_intervals() -> None:
    truth = {"runtime": 2e-4, "unexplained": 1e-4}
    ready = simulated(999, steps=30_000).ready_s
    truth["skew"] = float((ready.max(axis=1) - ready.mean(axis=1)).mean())
    hits = dict.fromkeys(truth, 0)
    for seed in range(40):
        found = one(attribute([simulated(seed, steps=400, hidden_s=1e-4)]))
        for name, value in truth.items():
            hits[name] += found.seconds[name].low <= value <= found.seconds[name].high
    # A 95 % interval of a block bootstrap covers a little less; below 34 of 40 it would be no such interval.
    assert all(count >= 34 for count in hits.values()), hits


def test_repeats_make_an_interval_of_the_scatter_between_them() -> None:
    found = one(attribute([simulated(seed, steps=200) for seed in range(4)]))
    values = np.array([parts_of(simulated(seed, steps=200), seed=1 + seed)["runtime"][0] for seed in range(4)])
    half = 3.182446305 * values.std(ddof=1) / 2  # Student's t with 3 degrees of freedom
    assert found.runs == ("run 0", "run 1", "run 2", "run 3")
    assert found.seconds["runtime"].value == pytest.approx(values.mean())
    assert found.seconds["runtime"].high == pytest.approx(values.mean() + half)


def test_ranks_wait_for_one_that_sleeps() -> None:
    arm = one(attribute([simulated(3, mean_s=(2.6e-3, 7.6e-3, 2.6e-3))]))
    assert arm.seconds["wait 0"].value == pytest.approx(5e-3, abs=2e-4)
    assert arm.seconds["wait 1"].value == pytest.approx(0, abs=1e-6)


def test_how_far_apart_ranks_leave_is_told_and_bounds_the_error() -> None:
    apart = simulated(1, leave_s=5e-5, steps=4000)
    together = simulated(1, leave_s=0.0, steps=4000)
    # The deviation of each of two ranks from their mean is 1 / sqrt(2) of its own scatter.
    assert leave_spread(apart) == pytest.approx(5e-5 / math.sqrt(2), rel=0.1)
    assert leave_spread(together) < 1e-12
    error = parts_of(apart)["skew"][0] - parts_of(together)["skew"][0]
    assert abs(error) < leave_spread(apart)


# -------------------------------------------------------------------------------------------- what cannot be seen


def test_a_wait_inside_backward_is_not_taken_apart(golden: Golden) -> None:
    ready = np.full((40, 2), 3e-3)
    ready[:, 1] = 2e-3
    seen = observe(
        "hooks", {}, effective(2, backend="ddp", transport="gloo", reduction="hooks"), 0, rows_of(ready, None),
        bench_of(np.full(40, 1e-4), None, None, "with hooks ..."),
    )  # fmt: skip
    arm = one(attribute([seen]))
    assert arm.why_not == INSIDE_BACKWARD
    assert not {"sync", "skew", "runtime", "unexplained", "wait 0"} & set(arm.seconds)
    golden(told(attribute([seen])))


def test_with_hooks_the_tail_is_skew_and_what_backward_did_not_hide(golden: Golden) -> None:
    ready = np.tile([3e-3, 2e-3], (40, 1))
    sync = np.tile([2e-4, 1.2e-3], (40, 1))
    bench = bench_of(np.full(40, 1e-4), None, None, "with hooks the transfers begin in backward")
    seen = observe("hooks", {}, effective(2, reduction="hooks"), 0, rows_of(ready, sync), bench)
    arm = one(attribute([seen]))
    assert {name: ms(arm, name) for name in ("sync", "skew", "exposed", "floor")} == {
        "sync": 0.7,
        "skew": 0.5,
        "exposed": 0.2,
        "floor": 0.1,
    }
    assert "unexplained" not in arm.seconds
    golden(told(attribute([seen])))


def test_too_little_to_analyse_is_said(golden: Golden) -> None:
    with pytest.raises(AnalysisError) as error:
        observe("short", {}, effective(2), 0, rows_of(np.full((5, 2), 1e-3), np.full((5, 2), 1e-4)), None)
    golden(str(error.value), "5 timed", "20")
    with pytest.raises(AnalysisError) as error:
        attribute([])
    golden(str(error.value))


def told(found: Attribution) -> str:
    """Return the table in one line."""
    return " ".join(" ".join(attribution_table(found)).split())


def test_the_first_step_of_an_epoch_is_left_out() -> None:
    rows = rows_of(np.full((40, 2), 1e-3), np.full((40, 2), 1e-4))
    for rank in rows:
        rank["epoch"][21:] = 1
        rank["backward_s"][21] = 5.0  # after an evaluation
    assert len(observe("run", {}, effective(2), 0, rows, None).ready_s) == 39
    assert observe("run", {}, effective(2), 0, rows, None).ready_s.max() == pytest.approx(1e-3)


def test_what_makes_the_result_doubtful_is_said(golden: Golden) -> None:
    quiet, busy = simulated(1, steps=300), changed(simulated(2, steps=300), other_cores=1.3)
    uneven = changed(simulated(3, steps=300, leave_s=5e-4), arm="uneven", one_clock=False)
    assert attribute([quiet]).doubts == ()
    first, second, third = attribute([quiet, busy, uneven]).doubts
    golden(first, "1.3 cores", "3 runs")
    golden(second, "3 runs")
    golden(third, "horovod/mpi", "0.3")


def test_every_arm_is_a_cell_in_every_round() -> None:
    how: dict[str, Any] = {"runtimes": ["horovod/mpi", "mpi/mpi"], "workers": 2, "rounds": 3, "cores": 2}
    cells = cells_of({"steps": 30}, "attribution", **how)
    assert list(dict.fromkeys(cell.label for cell in cells)) == [
        "1 worker alone",
        "horovod/mpi, shipped settings",
        "horovod/mpi, horovod_defaults true",
        "horovod/mpi, cycle_time_ms 1, idle_cycle_time_ms 0",
        "horovod/mpi, cycle_time_ms 10, idle_cycle_time_ms 0",
        "mpi/mpi, shipped settings",
        "mpi/mpi, horovod_defaults true",
    ]
    assert Counter(cell.config.repeat for cell in cells) == {0: 7, 1: 7, 2: 7}
    assert all(cell.config.measure_sync for cell in cells) and len({cell.key for cell in cells}) == 21
    assert [each.key for each in cells] == [each.key for each in cells_of({"steps": 30}, "attribution", **how)]
    assert arms_of("ddp/gloo") == [{}]


@pytest.mark.slow
def test_arms_of_a_launch_train_in_turns_and_a_broken_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.02)
    monkeypatch.setattr(turns, "SLICE_S", (0.02, 0.02))
    monkeypatch.setattr("horovod_study.studies.bench.available_cores", lambda: 2)
    options = RunOptions

    def run(told: str, **how: Any) -> list[str]:
        wanted = {"runtimes": ["mpi/mpi"], "workers": 2, "rounds": 2, **how}
        launch = fake_launch({"*": "turns", "mpi/mpi/2/1": told})
        own = partial(options, launch=launch, watch_load_s=0.0)
        monkeypatch.setattr("horovod_study.studies.bench.RunOptions", own)
        return [path.name for path in run_experiment({"steps": 100, "device": "cpu"}, tmp_path, **wanted)]

    def launches() -> dict[str, list[int]]:
        found: dict[str, set[int]] = {}
        for each in read_turns(tmp_path):
            found.setdefault(each.run, set()).add(each.launch)
        return {name: sorted(each) for name, each in found.items()}

    with pytest.raises(StudyError, match=r"mpi/mpi.*repeat 2: ValueError: the loss is not a number"):
        run("turns, fails")
    first = launches()
    names = run("turns, slow", rounds=3)
    assert len(names) == 9 and all(
        max(launches()[name]) == number for name, number in zip(names, [0, 2, 3] * 3, strict=True)
    )
    starts = Counter((tmp_path / "starts.txt").read_text().split())
    again = [name for name in names if "-r1-" in name]
    assert starts == Counter([*names, *again]), "its partners ran at another time"
    assert {name for name, each in first.items() if each == [0]} == {name for name in names if "-r0-" in name}
    assert run("turns", rounds=3) == names
    assert starts == Counter((tmp_path / "starts.txt").read_text().split()), "what is done is not run again"


@pytest.mark.parametrize(
    ("values", "changes", "text"),
    [
        ({"cycle_time_ms": 3.0}, {}, "--cycle-time-ms"),
        ({"seconds": 3.0}, {}, "--measure"),
        (
            {},
            {"workers": 1},
            "--measure",
        ),
        ({}, {"rounds": 0}, "--measure"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused(values: Any, changes: Any, text: str, golden: Golden) -> None:
    wanted = {"runtimes": ["mpi/mpi"], "workers": 2, "rounds": 1, "cores": 4, **changes}
    with pytest.raises(ConfigError) as error:
        cells_of(values, "attribution", **wanted)
    golden(str(error.value), text)


def test_an_unknown_runtime_is_refused_with_the_nearest(golden: Golden) -> None:
    with golden.raises(ConfigError, match="--runtime.*horovod/mpy.*horovod/mpi"):
        cells_of({}, "attribution", runtimes=["horovod/mpy"], workers=2, rounds=1, cores=2)


# -------------------------------------------------------------------------------------------------------- in turns


def turned(
    arm: str, launch: int, *, step: float, floor: float = 1e-4, rounds: int = 20, seed: int = 1, **changes: Any
) -> Observation:
    """Return a run of rounds of 10 steps whose ready times are `step` s on a machine that drifts by 30 %.

    From the tenth round on it is half as fast. The first step of each round is after a wait, and wild.
    """
    drift = np.exp(0.3 * np.random.default_rng(launch).standard_normal(20)) * np.where(np.arange(20) < 10, 1, 2)
    drift = drift[:rounds].repeat(10)  # of all arms of a round
    own = np.exp(0.01 * np.random.default_rng([launch, seed]).standard_normal(10 * rounds))
    workers = 1 if arm == "one worker" else 2
    ready = np.tile((step * drift * own)[:, np.newaxis], (1, workers))
    sync = np.full_like(ready, floor + 2e-4) * drift[:, np.newaxis] if workers > 1 else np.zeros_like(ready)
    ready[::10] = 9.0
    rows = [{name: column[1:] for name, column in each.items()} for each in rows_of(ready, sync)]
    bench = bench_of(np.full(40, floor), np.full(40, floor + 2e-4), np.full(40, 1e-5)) if workers > 1 else None
    slices = {number: (51 + 10 * number, 61 + 10 * number) for number in range(rounds)}
    begins = tuple(range(51, 52 + 10 * rounds, 10))
    loads = dict.fromkeys(slices, 0.0)
    turns = RunTurns(before=(0, *begins), launch=f"arms/{launch:03d}", rounds=slices, other_load=loads)
    facts = effective(workers, **({"backend": "serial"} if workers == 1 else {}))
    seen = observe(f"{launch}-{arm}", {}, facts, launch, rows, bench, turns=turns)
    return changed(seen, arm=arm, **changes)


def test_arms_are_compared_in_the_rounds_that_they_have_in_common() -> None:
    def cycle(ms: int) -> dict[str, Any]:
        return {"HOROVOD_CYCLE_TIME": f"{ms}", "HOROVOD_IDLE_CYCLE_TIME": "0"}

    seen = [
        each
        for launch in range(3)
        for each in (
            turned("one worker", launch, step=1.5e-3, rounds=10, seed=1),  # it is done when the machine becomes slow
            turned("shipped settings", launch, step=2e-3, rounds=12, seed=2),
            turned("cycle 1 ms", launch, step=2.5e-3, seed=3, settings=cycle(1)),
            turned("cycle 10 ms", launch, step=2.5e-3, floor=2e-4, seed=4, settings=cycle(10)),
        )
    ]
    found, apart = attribute(seen), attribute([changed(each, turns=RunTurns()) for each in seen])
    shipped, short, _ = found.arms
    assert [arm.rounds for arm in found.arms] == [30, 30, 30] and {arm.rounds for arm in apart.arms} == {0}
    for arm, other, truth in zip(found.arms, apart.arms, (1.5 / 2.3, 1.5 / 2.8, 1.5 / 2.9), strict=True):
        now, before = arm.efficiency["now"], other.efficiency["now"]
        assert now.value == pytest.approx(truth, rel=0.01) and now.width < 0.02
        assert before.value < 0.95 * truth, "means of whole runs are those of different machines"
    assert shipped.over_shipped is None and short.over_shipped is not None
    assert short.over_shipped.value == pytest.approx(2.8 / 2.3, rel=0.01) and short.over_shipped.width < 0.02
    assert (
        "step over that with shipped settings: 12" in told(found) and "3 runs, 30 rounds" in attribution_table(found)[0]
    )


def test_a_single_launch_and_a_mixture_are_compared_as_before() -> None:
    def both(*launches: int) -> list[Observation]:
        return [turned(arm, each, step=2e-3) for each in launches for arm in ("one worker", "shipped settings")]

    for seen in (both(0), [*both(0, 1), *(changed(each, turns=RunTurns(), run="x", repeat=2) for each in both(2))]):
        apart = [changed(each, turns=RunTurns()) for each in seen]
        # By what they show: from Python 3.13 on a NaN in a dataclass makes it unequal to another one.
        assert repr(one(attribute(seen))) == repr(one(attribute(apart)))


def test_slices_are_found_in_the_steps_of_a_run() -> None:
    def slices(launch: int, *steps: int) -> list[TurnSlice]:
        told = {"block": "arms", "launch": launch, "position": 0, "run": "a", "begin_s": 0.0, "end_s": 1.0}
        return [
            TurnSlice(**told, round=number, steps=each, samples=9, other_load=0.2 if number else None)  # type: ignore[arg-type]
            for number, each in enumerate(steps)
        ]

    run = make.records.record(totals={"turns": {"before": [0, 1, 3, 7, 11, 15, 19, 20], "waited_s": 1.0}})
    found = records.run_turns(run, "a", [*slices(0, 4, 4), *slices(1, 4, 4, 4)])
    assert found.launch == "arms/001", "of a run that was made again the last launch counts"
    assert found.rounds == {0: (7, 11), 1: (11, 15), 2: (15, 19)}, "warm-up may be as long, and is before"
    assert math.isnan(found.other_load[0]) and found.other_load[1] == 0.2
    for none in ([], slices(1, 4, 4, 4, 4, 4), [replace(each, run="b") for each in slices(1, 4)]):
        assert records.run_turns(run, "a", none) == RunTurns(before=(0, 1, 3, 7, 11, 15, 19, 20))


# ------------------------------------------------------------------------------------------------------ the report


def findings() -> Attribution:
    """Return arms of all kinds: an ordinary one, one with a long cycle, one whose parts exceed the whole."""
    seen = [simulated(seed) for seed in range(3)]
    direct = changed(
        known((2.7e-3, 2.5e-3), floor=1e-4, through=2e-4, extra=-4e-5), backend="mpi", arm="shipped settings"
    )
    long = changed(known((2.6e-3, 2.6e-3), floor=1e-4, through=8e-3), arm="cycle 10 ms")
    return attribute([*seen, direct, long])


def test_table_words_and_json_are_written_alike_each_time(tmp_path: Path) -> None:
    found = findings()
    paths = write_attribution(found, tmp_path / "a")
    assert sorted(path.name for path in paths) == ["attribution.json", "attribution.txt"]
    write_attribution(found, tmp_path / "b")
    assert all(path.read_bytes() == (tmp_path / "b" / path.name).read_bytes() for path in paths)
    assert json.loads((tmp_path / "a" / "attribution.json").read_text()) == json.loads(json.dumps(finite(found)))
    text = (tmp_path / "a" / "attribution.txt").read_text()
    assert all(line in text for line in attribution_table(found))


def test_the_table_shows_every_part_with_its_interval_and_shares() -> None:
    lines = attribution_table(attribute([known((3e-3, 2e-3), floor=1e-4, through=2.5e-4, extra=5e-5)]))
    assert lines[0] == "Horovod/MPI, shipped settings (2 workers, batch 75, 1 run)"
    assert [line.split("  ")[1:2] + line.split()[-4:] for line in lines if line.split()[0] == "skew"] == [
        ["", "62.5", "%", "15.2", "%"]
    ]
    assert any("cycle, negotiation" in line for line in lines)
    firsts = [line.split()[0] for line in lines]
    assert firsts[firsts.index("unexplained") + 1] == "efficiency"


def test_the_order_of_the_runs_changes_nothing_but_the_order() -> None:
    seen = [simulated(seed) for seed in range(6)]
    seen = [changed(each, arm=f"cycle {place % 2} ms", repeat=place // 2) for place, each in enumerate(seen)]
    mixed = random.Random(3).sample(seen, len(seen))
    first, second = attribute(seen), attribute(mixed)
    for arm in first.arms:
        other = next(each for each in second.arms if each.arm == arm.arm)
        assert other.seconds["sync"].value == pytest.approx(arm.seconds["sync"].value)


# ---------------------------------------------------------------------------------------------- the command line


def test_options_of_a_run_mean_nothing_for_recorded_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert cli.main(["explain", "--part", "sync", str(tmp_path), "--steps", "5"]) == 2
    golden(capsys.readouterr().err, "--steps", "--measure")


def test_a_folder_without_runs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert cli.main(["explain", "--part", "sync", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    golden(capsys.readouterr().err)
