"""`bench timers`: the statistics on simulated blocks, the blocks themselves, and the verb."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from make.wording import Golden

from horovod_study import cli
from horovod_study.analysis import paired
from horovod_study.analysis.compare.comparison import exceeds, interval, timer_cost, way
from horovod_study.analysis.stats import trimmed_mean
from horovod_study.comm import detect, open_backend
from horovod_study.config.run import LAPS
from horovod_study.errors import ConfigError
from horovod_study.measure.clock import LapClock
from horovod_study.programs import timers
from horovod_study.programs.timers import measure
from horovod_study.records import read_step_column
from horovod_study.report.terminal import timers_text
from horovod_study.strain import dataset as data
from horovod_study.strain.graphs import RING, CapturedStep
from horovod_study.strain.options import StrainConfig
from horovod_study.studies.bench import measure_timers

STEP_S = 2.5e-3


# ------------------------------------------------------------------------------------------------------ statistics


def case(
    *,
    rounds: int = 200,
    light_percent: float = 0.1,
    scatter: float = 0.02,
    control_percent: float = 0.0,
    drain_s: float = 0.0,
    seed: int = 1,
    others: float | None = 0.0,
) -> dict[str, Any]:
    """Return what `measure` gives for blocks of 5 steps on a machine that drifts by 30 % and is disturbed at times."""
    rng = np.random.default_rng(seed)
    drift = 1 + 0.3 * np.sin(np.arange(rounds) / 20)

    def blocks(percent: float) -> list[float]:
        noise = np.exp(scatter * rng.normal(size=rounds)) * np.where(rng.random(rounds) < 0.05, 1.5, 1.0)
        return (5 * STEP_S * drift * noise * (1 + percent / 100)).tolist()

    variants = {"off": 0.0, "light": light_percent, "strict": 1.0, "control": control_percent}
    return {
        "runtime": "serial",
        "workers": 1,
        "batch": 75,
        "device": "cpu",
        "ways": list(variants),
        "steps": dict.fromkeys(variants, 5),
        "block_s": {name: blocks(percent) for name, percent in variants.items()},
        "drains": {name: [[512, drain_s if name != "light" else 3 * drain_s]] * 4 for name in variants},
        "calls_s": {"off": 1e-7, "light": 2e-6, "strict": 2.5e-6},
        "seconds": 60.0,
        "other_cores": others,
        "measured": "2026-01-01T00:00:00+00:00",
        "environment": {"cpu_model": "a processor", "cores": 2, "torch": "2"},
    }


def test_disturbances_as_long_as_a_block_widen_the_interval_of_slices_more_than_that_of_blocks() -> None:
    found = case(rounds=1000, seed=3)  # one block in twenty takes half as long again
    of_blocks = way(timer_cost(found), "strict")
    off, strict = (-np.log(found["block_s"][name]) for name in ("off", "strict"))
    of_slices = paired.estimate(paired.Pairs(cell=[off], base=[strict]))
    assert of_slices is not None
    width = of_blocks["high"] - of_blocks["low"]
    assert of_blocks["low"] < 1.0 < of_blocks["high"] and 100 * of_slices.half_width > 1.5 * width / 2


@pytest.mark.parametrize("rounds", [12, 60])
def test_the_interval_holds_the_truth_as_often_as_it_says(rounds: int) -> None:
    hits = 0
    for seed in range(300):
        light = way(timer_cost(case(rounds=rounds, light_percent=0.7, seed=seed)), "light")
        hits += light["low"] <= 0.7 <= light["high"]

    assert 0.91 <= hits / 300 <= 0.985


def test_what_costs_half_a_per_cent_is_resolved_under_drift_and_disturbances() -> None:
    """1000 rounds of 4 blocks of 5 steps of 2.5 ms are 50 s."""
    cheap = timer_cost(case(rounds=1000, light_percent=0.05))
    dear = timer_cost(case(rounds=1000, light_percent=1.0))

    assert cheap["resolution_percent"] < 0.25
    assert "below 0.5 %: yes" in cheap["verdict"]
    assert "below 0.5 %: no;" in dear["verdict"]
    assert (exceeds(cheap, 0.5), exceeds(dear, 0.5), exceeds(dear, 1.0)) == (False, True, False)


def test_a_verdict_that_cannot_be_given_says_how_long_it_would_take(golden: Golden) -> None:
    cost = timer_cost(case(rounds=30, light_percent=0.45))

    golden(cost["verdict"], "0.5 %", "2.0 us", "0.0")
    assert not exceeds(cost, 0.5)


def test_writing_is_added_to_every_mode() -> None:
    """Mode off writes 512 rows in 1.28 ms, 2.5 us a step; light takes three times as long: 5 us, 0.2 %, more."""
    plain, writing = (timer_cost(case(rounds=1000, drain_s=seconds)) for seconds in (0.0, 1.28e-3))
    base_s = np.exp(trimmed_mean(np.log(np.array(case(rounds=1000)["block_s"]["off"]) / 5))[0])

    light, before = way(writing, "light"), way(plain, "light")
    assert light["writing_percent"] == pytest.approx(100 * 5e-6 / base_s)
    assert light["percent"] - before["percent"] == pytest.approx(100 * 5e-6 / base_s)
    assert way(writing, "strict")["percent"] == way(plain, "strict")["percent"]
    assert writing["off_step_s"] - plain["off_step_s"] == pytest.approx(2.5e-6)


def test_a_control_that_is_not_zero_and_a_busy_machine_are_doubts(golden: Golden) -> None:
    doubts = timer_cost(case(rounds=300, control_percent=3.0, others=1.5))["doubts"]

    golden(doubts[0])
    golden(doubts, "1.5 cores")
    assert timer_cost(case(rounds=10))["doubts"][0].startswith("only 10 rounds")
    assert timer_cost(case(rounds=1000))["doubts"] == []


def test_fewer_than_five_rounds_have_no_interval() -> None:
    cost = timer_cost(case(rounds=3))
    light = way(cost, "light")

    assert (light["low"], light["high"], cost["resolution_percent"]) == (None, None, None)
    assert "below 0.5 %: not resolved;" in cost["verdict"]
    assert interval(light) == f"{light['percent']:.2f} %"


# ---------------------------------------------------------------------------------------------------------- report


def test_the_table_tells_all_ways_and_the_verdicts(golden: Golden) -> None:
    cases = [case(rounds=60), {**case(rounds=60, seed=2), "batch": 1024}]
    costs = [timer_cost(each) for each in cases]
    table = timers_text(costs, cases)

    golden(table, "batch 75", "1 worker", "60 rounds", "5 steps", "60 s")
    assert table.count("off again (control)") == 2
    assert table.endswith(f"batch 1024, 1 worker: {costs[1]['verdict']}")


# ---------------------------------------------------------------------------------------------------------- blocks


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timers") / "data"
    data.generate(path, 400, seed=3)
    return path


def measured(
    dataset: Path, folder: Path, computing: Mapping[str, Any] = MappingProxyType({}), **values: Any
) -> dict[str, Any]:
    plan = {"dataset": str(dataset), "seconds": 1.0, "rounds": 5, "steps_per_block": 2, **values}
    config = StrainConfig(backend="serial", batch=10, device="cpu", **computing)
    threads = torch.get_num_threads()
    try:
        return measure(plan, config, open_backend(config, detect({})), folder=folder)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_all_ways_take_turns_on_one_model(dataset: Path, tmp_path: Path) -> None:
    found = measured(dataset, tmp_path, rounds=6)

    assert found["ways"] == ["off", "light", "strict", "control"]
    assert {name: len(blocks) for name, blocks in found["block_s"].items()} == dict.fromkeys(found["ways"], 6)
    assert all(seconds > 0 for blocks in found["block_s"].values() for seconds in blocks)
    assert 0 < found["calls_s"]["off"] < 1e-3 and 0 < found["calls_s"]["light"] < 1e-3
    cost = timer_cost({"runtime": "serial", **found})
    assert [each["way"] for each in cost["variants"]] == ["light", "strict"]
    json.dumps(cost, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["device", "memory"])
def test_captured_steps_take_turns_too(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str, golden: Golden
) -> None:
    """Replayed on the host: off and light share one graph, strict has one for each phase; all move one model."""
    monkeypatch.setenv("HOROVOD_STUDY_REPLAY_ON_HOST", "1")
    taken: dict[bool, int] = {False: 0, True: 0}
    take = CapturedStep.take

    def counted(self: CapturedStep, batch: Any, clock: LapClock) -> torch.Tensor:
        taken["forward" in self.laps] += 1
        return take(self, batch, clock)

    monkeypatch.setattr(CapturedStep, "take", counted)
    # An epoch of 300 training curves has 30 steps: blocks of 25 and the step before them begin another one each time.
    found = measured(dataset, tmp_path, {"cuda_graphs": True, "loader": loader}, rounds=3, steps_per_block=25)

    assert found["ways"] == ["off", "light", "strict", "control"]
    golden(found["device"], "CUDA")
    assert found["rows_per_drain"] <= RING // 8, "or a loss would be read that was overwritten"
    warm_up = 2 * (20 + 1)
    assert taken == {False: warm_up + 3 * 26 * 4, True: 26 * 4}
    known = {
        mode: [
            lap for lap in LAPS if not np.isnan(read_step_column(next((tmp_path / mode).iterdir()), f"{lap}_s")).any()
        ]
        for mode in ("light", "strict")
    }
    data_lap = ["data"] if loader == "memory" else []
    assert known["light"] == [*data_lap, "compute"]
    assert known["strict"] == [*data_lap, "forward", "backward", "sync", "update"]


@pytest.mark.slow
def test_the_order_is_shuffled_anew_in_every_round(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    block = timers._ModelSteps.block
    monkeypatch.setattr(
        timers._ModelSteps, "block", lambda self, variant: (order.append(id(variant)), block(self, variant))[1]
    )
    measured(dataset, tmp_path, rounds=20)
    rounds = np.array(order[-80:]).reshape(20, 4)

    assert all(len(set(row)) == 4 for row in rounds.tolist())
    assert len({tuple(row) for row in rounds.tolist()}) > 8


def test_what_a_mode_costs_is_found(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only moves when a step is made, 2.5 ms, or mode light stamps its begin, which takes 0.1 ms."""
    moment = 0.0

    def spend(seconds: float) -> None:
        nonlocal moment
        moment += seconds

    class Slow(LapClock):
        def begin(self, at: Any = None) -> None:
            spend(1e-4)
            super().begin(at)

    step, opened = timers.train_step, timers.open_clock
    monkeypatch.setattr(timers, "now", lambda: moment)
    monkeypatch.setattr(timers, "train_step", lambda *values: (spend(STEP_S), step(*values))[1])
    monkeypatch.setattr(
        timers, "open_clock", lambda mode, device, stamps: Slow() if mode == "light" else opened(mode, device)
    )
    cost = timer_cost({"runtime": "serial", **measured(dataset, tmp_path, rounds=6)})

    light = way(cost, "light")
    assert cost["off_step_s"] == pytest.approx(STEP_S)
    others = (cost["control"], way(cost, "strict"))
    assert [each["percent"] for each in others] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert light["percent"] == pytest.approx(4.0), "0.1 of 2.5 ms"
    assert light["calls_us"] == pytest.approx(100.0)
    assert exceeds(cost, 3.9) and not exceeds(cost, 4.1)


def measured_in(
    folder: Path, workers: Sequence[int] = (1,), over: str = "ddp/gloo", **values: Any
) -> list[dict[str, Any]]:
    plan = {"dataset": str(folder), "seconds": 1.0, **values}
    options = {"device": "cpu"}
    return measure_timers(folder, plan, batch=[75], workers=workers, over=over, options=options, told=lambda text: None)


@pytest.mark.parametrize(
    ("workers", "over", "message"),
    [
        ([1000], "horovod/mpi", "bench timers: --workers is 1000, but this machine offers "),
        ([1], "serial", "bench timers: --over is 'serial'; allowed: "),
        ([1], "ddp/glo", "bench timers: --over is 'ddp/glo' (did you mean 'ddp/gloo'?); allowed: "),
    ],
)
def test_what_cannot_be_measured_here_is_refused(
    tmp_path: Path, workers: Sequence[int], over: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        measured_in(tmp_path, workers, over)

    assert str(caught.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 2}, "--rounds"),
        ({"rounds": 50_000}, "20,000"),
        ({"steps_per_block": 0}, "--steps-per-block"),
        ({"seconds": 0.0}, "--seconds"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(
    tmp_path: Path, values: dict[str, Any], message: str, golden: Golden
) -> None:
    with golden.raises(ConfigError, match=message):
        measured_in(tmp_path, **values)


def test_a_launch_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    for name, value in {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with golden.raises(ConfigError, match="2 ranks.*--work"):
        measured_in(tmp_path)


# ------------------------------------------------------------------------------------------------------------ verb


@pytest.mark.horovod
def test_the_verb_measures_one_worker_and_two(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    line = ["bench", "timers", "--dataset", str(dataset), "--workers", "1", "2", "--batch", "10", "--out", str(out)]
    code = cli.main([*line, "--rounds", "5", "--steps-per-block", "2", "--json", "--fail-above", "100000"])
    printed = json.loads(capsys.readouterr().out)

    assert code == 0
    assert [(each["runtime"], each["workers"]) for each in printed["cases"]] == [("serial", 1), ("horovod/mpi", 2)]
    assert [len(each["hosts"]) for each in printed["measured"]] == [1, 2]
    assert sorted(path.name for path in out.iterdir()) == ["jobs", "timers.json", "timers.txt"]
    assert list(out.glob("jobs/*/rows")) == []


@pytest.mark.slow
def test_the_verb_fails_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("horovod_study.studies.bench.measure_timers", lambda *_, **__: [case(light_percent=3.0)])
    line = ["bench", "timers", "--dataset", "400", "--out", str(tmp_path)]

    assert cli.main([*line, "--fail-above", "2"]) == 1
    assert "below 2 %: no;" in capsys.readouterr().out
    assert cli.main([*line, "--fail-above", "4"]) == 0
    assert cli.main(line) == 0
