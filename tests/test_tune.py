"""Tuning: ratios, the race on simulated machines in both ways of measuring, its record, and one real tune."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fake_trainer import fake_launch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.analysis.paired import Slice
from horovod_study.cli import main
from horovod_study.cluster.process import marked_processes
from horovod_study.config import Cell
from horovod_study.errors import ConfigError, StudyError
from horovod_study.records import RunRecord, read_run
from horovod_study.report.tune import run_lines, table
from horovod_study.studies import racing, turns
from horovod_study.studies import tune as tune_module
from horovod_study.studies.attempt import Attempt, CellRun, record_of
from horovod_study.studies.interruption import Interruption
from horovod_study.studies.racing import ALONE, EQUAL, IN_TURNS, Candidate, Race, Stage, Trial, ratio_of, wanted
from horovod_study.studies.study_file import load_study
from horovod_study.studies.tune import TuneRequest, library_values, run_tune, shipped_values, space, tune_request
from horovod_study.workload.options import STRAIN, StrainConfig

RUNTIME = "horovod/mpi"

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


def test_a_slow_launch_is_found() -> None:
    def slow(speeds: dict[str, Sequence[float]]) -> list[tuple[str, float]]:
        trials = [
            Trial(launch=each.launch, candidate=each.cell, rounds=((0, each.rate, None),)) for each in slices_of(speeds)
        ]
        return [(each.candidate, each.samples_per_s) for each in racing.slow_launches(trials)]

    assert slow({"a": [100, 101, 99, 100], "b": [110, 11, 108, 109], "c": [90, 90, 91, 90]}) == [("b", 11)]
    assert slow({"a": [100, 10], "b": [110, 11], "c": [90, 9]}) == [], "the machine was slow"
    assert slow({"a": [1, 1, 1], "b": [2, 2, 2], "c": [2, 2 / 6, 2]}) == [("c", 2 / 6)]


# --------------------------------------------------------------------------------------------------- simulated races

Effects = dict[str, dict[str, float]]
BEST: Effects = {"a": {"1": 1.0, "2": 0.97, "3": 0.9}, "b": {"1": 1.08, "2": 1.0}, "c": {"1": 0.95}, "d": {"1": 0.6}}
NONE: Effects = {"a": {"1": 1.0, "2": 1.0, "3": 1.0}, "b": {"1": 1.0, "2": 1.0}, "c": {"1": 1.0}, "d": {"1": 1.0}}
TWO: Effects = {"a": {"1": 1.06, "2": 0.97}, "b": {"1": 1.06, "2": 1.0}, "c": {"1": 0.95}, "d": {"1": 0.6}}


def field(effects: Effects) -> list[Candidate]:
    """Return baselines and one candidate per value."""
    return [
        Candidate(name="shipped settings", kind="shipped"),
        Candidate(name="library defaults", kind="library", values={"horovod_defaults": True}),
        *(
            Candidate(name=f"{knob}={value}", kind="effect", values={knob: value}, knob=knob)
            for knob, values in effects.items()
            for value in values
        ),
    ]


def true_speed(effects: Effects, each: Candidate) -> float:
    return 0.5 if each.kind == "library" else math.prod(effects[knob][value] for knob, value in each.values.items())


PARTS = ("minutes", "start_s", "slice_s", "noise", "drift", "period_s")
MACHINES = {
    "alone": (ALONE, dict(zip(PARTS, (10.0, 0.0, 7.0, 0.02, 0.1, 280.0), strict=True))),
    "turns": (IN_TURNS, dict(zip(PARTS, (3.0, 3.5, 0.26, 0.06, 0.3, 30.0), strict=True))),
}
Done = list[tuple[Stage, list[Slice]]]
Change = Callable[[Stage, Candidate, float], float]


def simulate(
    effects: Effects,
    seed: int,
    way: str = "alone",
    *,
    room: float = math.inf,
    rounds: int = 6,
    change: Change = lambda stage, each, rate: rate,
    **changes: float,
) -> tuple[Race, Done, float]:
    """Race on a machine that drifts; a rate of 0 is a failed launch. Return also all launches, and the seconds."""
    measured, usual = MACHINES[way]
    at = {**usual, **changes}
    generator = np.random.default_rng(seed)
    race, used_s, wander = Race(field(effects), measured, seed=seed, rounds=rounds, room=room), 7.0, 0.0
    done: Done = []
    launches, most = measured["confirm"]
    reserved_s = min(launches * 3 * (at["start_s"] + at["slice_s"] * most), 0.4 * 60 * at["minutes"])
    for stage in race.run():
        confirms = stage.what == "race" and race.leader() is not race.candidates[0]
        until_s = 60 * at["minutes"] - (reserved_s if confirms else 0.0)
        if used_s + len(stage.candidates) * (at["start_s"] + min(stage.rounds, 4) * at["slice_s"]) > until_s:
            continue
        levels = {
            each.name: 0.005 * generator.standard_normal() if way == "turns" else 0.0 for each in stage.candidates
        }
        used_s += at["start_s"] * len(levels)
        slices: list[Slice] = []
        left, number = {each.name for each in stage.candidates if change(stage, each, 1.0) > 0}, 0
        while left and not (number >= 4 and used_s > until_s):
            for each in (each for each in stage.candidates if each.name in left):
                used_s += at["slice_s"]
                wander += at["noise"] / 2 * generator.standard_normal() if way == "alone" else 0.0
                log = levels[each.name] + at["drift"] * math.sin(used_s / at["period_s"]) + wander
                rate = true_speed(effects, each) * math.exp(log + at["noise"] * generator.standard_normal())
                rate = change(stage, each, rate)
                slices.append(Slice(launch=stage.launch, round=number, cell=each.name, rate=rate))
            left &= set(wanted(stage, slices))
            number += 1
        for key in levels:
            own = tuple((each.round, each.rate, None) for each in slices if each.cell == key)
            race.add(Trial(launch=stage.launch, candidate=key, rounds=own, reason="" if own else "crash"))
        done.append((stage, slices))
    return race, done, used_s


def launched(done: Done, what: str = "") -> list[str]:
    return [each.name for stage, _ in done for each in stage.candidates if stage.what.startswith(what)]


@pytest.mark.slow
@pytest.mark.parametrize(("effects", "best"), [(BEST, 1.08), (TWO, 1.06**2)])
@pytest.mark.parametrize(("way", "tunes", "good"), [("alone", 20, 18), ("turns", 12, 9)])
def test_the_best_is_found_and_the_time_is_kept_to(
    effects: Effects, best: float, way: str, tunes: int, good: int
) -> None:
    """Within 1 % of the truly best: in nine of ten tunes; in three of four of three minutes in turns."""
    found = [simulate(effects, seed, way) for seed in range(tunes)]
    races = [race for race, _, _ in found if true_speed(effects, race.chosen) > best * (1 - EQUAL)]

    assert len(races) >= good and all(race.confirmed for race in races)
    assert max(used_s for _, _, used_s in found) < {"alone": 601, "turns": 200}[way]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "tunes", "least"), [("alone", 20, 19), ("turns", 6, 6)])
def test_where_nothing_helps_the_shipped_settings_are_kept(way: str, tunes: int, least: int) -> None:
    races = [simulate(NONE, seed, way)[0] for seed in range(tunes)]
    kept = [race for race in races if race.chosen.kind == "shipped"]

    assert len(kept) >= least
    assert all(race.stop != "resolved" and race.text.startswith("not resolved: ") for race in kept)


def test_a_clear_winner_ends_the_race_early_and_is_confirmed_by_launches_of_its_own(golden: Golden) -> None:
    race, done, _ = simulate({"a": {"1": 0.9, "2": 0.8}, "b": {"1": 1.5}, "c": {"1": 0.95}}, 3)
    confirming = launched(done, "confirm")

    assert (race.chosen.name, race.stop, race.confirmed) == ("b=1", "resolved", True)
    assert len(launched(done)) < 60
    assert sorted(set(confirming)) == ["b=1", "library defaults", "shipped settings"] and len(confirming) == 15
    assert ratio_of(race.slices("confirm"), race.chosen.name, "shipped settings").n == 5
    golden(race.text, "b=1")


def test_each_stage_has_half_of_those_before_with_both_baselines() -> None:
    race, done, _ = simulate({"a": {str(place): 1 - place / 100 for place in range(1, 9)}}, 5, noise=0.001)
    names = [[each.name for each in stage.candidates] for stage, _ in done]
    stages = list(dict.fromkeys(tuple(sorted(name for name in each if name[0] == "a")) for each in names))

    assert all({"shipped settings", "library defaults"} <= set(each) for each in names)
    assert len(stages[0]) == 8 and stages[1] == ("a=1", "a=2", "a=3", "a=4")
    assert names[0] != names[1], "every block has an order of its own"
    assert race.stop == "kept", "it is over when nobody else is left"


def test_who_is_resolved_to_be_slower_leaves_a_heat_and_the_baselines_stay(golden: Golden) -> None:
    fails: Change = lambda _, each, rate: 0.0 if each.name == "c=1" else rate  # noqa: E731
    race, ((first, slices), *later), _ = simulate(BEST, 3, "turns", change=fails)
    made = {each.name: sum(one.cell == each.name for one in slices) for each in first.candidates}

    assert made["d=1"] in (4, 5, 7)
    golden(race.states["d=1"])
    assert made["shipped settings"] == made["library defaults"] == made["b=1"] == first.rounds == 8
    assert race.states["c=1"] == "failed: crash"
    assert not {"d=1", "c=1"} & set(launched(later)) and race.chosen.name == "b=1"


def test_what_does_not_fit_into_memory_together_is_raced_in_parts_with_the_reference() -> None:
    _, done, _ = simulate(BEST, 1, "turns", room=4, minutes=20)
    names = [{each.name for each in stage.candidates} for stage, _ in done]

    assert all(len(each) <= 4 and "shipped settings" in each for each in names)
    assert sum(len(each) - 1 for each in names[:3]) == 8


def test_helping_values_are_combined() -> None:
    race, _, _ = simulate(TWO, 2, noise=0.005)
    combined = [each for each in race.candidates if each.kind == "combination"]

    assert [dict(sorted(each.values.items())) for each in combined] == [{"a": "1", "b": "1"}]
    assert race.chosen.kind == "combination"


def test_a_setting_that_fails_is_out_with_its_reason() -> None:
    race, done, _ = simulate(BEST, 1, change=lambda _, each, rate: 0.0 if each.name == "b=1" else rate)

    assert race.states["b=1"] == "failed: crash" and race.chosen.name != "b=1"
    assert launched(done).count("b=1") == 1


@pytest.mark.parametrize("blocks", [(2, 6, 10), (3,)])
def test_a_fast_setting_that_falls_into_a_slow_mode_is_neither_confirmed_nor_chosen(blocks: tuple[int, ...]) -> None:
    """In the first stage, and in a later one."""

    def slow(stage: Stage, each: Candidate, rate: float) -> float:
        return rate / 6 if each.name == "a=2" and stage.number in blocks else rate

    race, done, _ = simulate({"a": {"1": 1.2, "2": 2.0, "3": 0.9, "4": 0.9}}, 1, change=slow)

    assert race.slow()["a=2"] and race.chosen.name == "a=1", "nor does it take out what it is faster than"
    assert "a=2" not in launched(done, "confirm")


@pytest.mark.parametrize(
    ("speed", "factor"), [(1.5, lambda stage: 1 - 5 / 6 * (stage.number % 2)), (0.98 * 1.15, lambda _: 1 / 1.15)]
)
def test_a_leader_that_is_slow_when_it_is_launched_again_is_not_kept(
    speed: float, factor: Callable[[Stage], float], golden: Golden
) -> None:
    """In some of these launches, or in all of them."""

    def slow(stage: Stage, each: Candidate, rate: float) -> float:
        return rate * (factor(stage) if each.name == "c=1" and stage.what == "confirm" else 1.0)

    race, _, _ = simulate({"c": {"1": speed}}, 4, rounds=2, change=slow)

    assert (race.chosen.kind, race.stop, race.confirmed) == ("shipped", "kept", False)
    golden(race.text, "c=1")


def test_shipped_settings_that_keep_failing_end_the_race(golden: Golden) -> None:
    with golden.raises(StudyError, match="3 times"):
        simulate(BEST, 1, change=lambda _, each, rate: 0.0 if each.kind == "shipped" else rate)


def test_without_time_for_one_block_nothing_is_claimed(golden: Golden) -> None:
    race, _, _ = simulate(BEST, 1, minutes=0.3)

    assert race.chosen.kind == "shipped" and race.stop == "budget"
    golden(race.text)


SETTINGS = {
    "HOROVOD_CYCLE_TIME": "0.05",
    "HOROVOD_IDLE_CYCLE_TIME": "10",
    "HOROVOD_FUSION_THRESHOLD": "134217728",
    "HOROVOD_CACHE_CAPACITY": "1024",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}
RECORDED = {name: {"value": value, "source": "shipped"} for name, value in SETTINGS.items()}
EFFECTIVE: dict[str, Any] = {"reduction": "flat", "nodes": 1, "parameters": 153_441, "settings": RECORDED}


def request(**changes: Any) -> TuneRequest:
    values: dict[str, Any] = {"runtime": RUNTIME, "workers": 2, "cores": 2, "turns": False, **changes}
    return tune_request(None, values.pop("given", {}), workload=STRAIN, **values)


def tried(runtime: str = RUNTIME, effective: Mapping[str, Any] = EFFECTIVE, **changes: Any) -> Any:
    """Return the candidates by name, and why which knobs are left out."""
    candidates, left_out = space(request(runtime=runtime, **changes), effective)
    return {each.name: each.values for each in candidates}, left_out


def test_values_that_are_shipped_anyway_are_no_candidates(golden: Golden) -> None:
    found = shipped_values(EFFECTIVE, STRAIN)
    names, left_out = tried()

    assert (found["cycle_time_ms"], found["yield_when_idle"], found["single_copy"]) == (0.05, True, False)
    assert list(names)[:3] == ["shipped settings", "library defaults", "reduction=hooks"]
    assert names.keys() >= {"cycle_time_ms=0.2", "idle_cycle_time_ms=0", "yield_when_idle=false", "single_copy=true"}
    assert not names.keys() & {"reduction=flat", "cycle_time_ms=0.05", "idle_cycle_time_ms=10", "bucket_mb=0.1"}
    golden(left_out["hierarchical"])
    golden(left_out["threads"])
    assert "bucket_mb" not in left_out


def test_captured_steps_are_tried_without_hooks_only(golden: Golden) -> None:
    names, left_out = tried(given={"cuda_graphs": True})

    assert all(each.get("reduction") != "hooks" for each in names.values())
    assert list(names)[:2] == ["shipped settings", "library defaults"]
    golden(left_out["groups"], "CUDA")
    assert left_out["reduction"].startswith("would be refused: ") and "; " not in left_out["reduction"]
    assert library_values("ddp/gloo", StrainConfig(cuda_graphs=True)) == {"thread_priority": "off"}


def test_knobs_of_hooks_bring_the_hooks_with_them() -> None:
    names, _ = tried(knobs=["groups"])
    with_hooks, _ = tried(knobs=["groups"], effective={**EFFECTIVE, "reduction": "hooks"})

    assert names["groups=1 with hooks"] == {"reduction": "hooks", "groups": 1}
    assert with_hooks["groups=1"] == {"groups": 1}


def test_a_build_without_the_idle_cycle_is_not_asked_for_it(golden: Golden) -> None:
    recorded = {**RECORDED, "HOROVOD_IDLE_CYCLE_TIME": {"value": None, "source": "not in this build"}}
    names, left_out = tried(effective={**EFFECTIVE, "settings": recorded})

    assert not any("idle_cycle" in name for name in names)
    golden(left_out["idle_cycle_time_ms"])


def test_threads_are_varied_where_there_are_cores() -> None:
    assert list(tried(knobs=["threads"], cores=8)[0])[2:] == ["threads=2", "threads=4"]


@pytest.mark.parametrize("runtime", ["horovod/mpi", "horovod/gloo", "ddp/gloo", "mpi/mpi", "ps/mpi"])
def test_every_candidate_is_a_run_that_can_be_asked_for(runtime: str) -> None:
    wanted_ = request(runtime=runtime, workers=4, cores=8)
    candidates, _ = space(wanted_, {"reduction": "flat", "settings": {}})
    configs = [wanted_.cell(each).config for each in candidates]

    assert len(configs) > 3 and {f"{each.backend}/{each.transport}" for each in configs} == {runtime}
    assert {(each.seconds, each.checkpoint_at_end, each.study) for each in configs} == {(2.0, False, "tune")}


def test_library_defaults_are_what_the_libraries_do_by_themselves() -> None:
    of_ddp = {"reduction": "hooks", "broadcast_buffers": True, "bucket_view": False, "thread_priority": "off"}

    assert library_values("horovod/mpi", StrainConfig()) == {"reduction": "hooks", "horovod_defaults": True}
    assert library_values("ddp/gloo", StrainConfig()) == of_ddp
    assert library_values("mpi/mpi", StrainConfig()) == {"horovod_defaults": True}


def test_a_configuration_file_for_a_long_run_is_shortened(tmp_path: Path) -> None:
    assert request().config == StrainConfig(seconds=2.0, study="tune", evaluate_every=1e6, checkpoint_at_end=False)
    path = tmp_path / "run.yaml"
    path.write_text("batch: 32\nepochs: 100\ncheckpoint_every: 10\nreduction: hooks\nlr: 1e-3\n")
    config = tune_request(path, {"widths": "4-8-16"}, workers=2, cores=2, workload=STRAIN).config

    assert (config.batch, config.lr, config.widths) == (32, 1e-3, "4-8-16")
    assert (config.seconds, config.epochs, config.checkpoint_every, config.reduction) == (2.0, None, None, "auto")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"workers": 4}, "--workers is 4, but this machine offers 2 cores; "),
        ({"given": {"threads": 2}}, "--workers is 2 with 2 threads each, but this machine offers 2 cores"),
        ({"workers": 1}, "--workers is 1; it must be at least 2"),
        ({"minutes": 0.0}, "--minutes is 0; it must be greater than 0"),
        ({"minutes": math.nan}, "--minutes is nan; it must be greater than 0"),
        ({"rounds": 0}, "--rounds is 0; it must be at least 1"),
        ({"runtime": "horovod/mpl"}, "'horovod/mpl' is not known (did you mean 'horovod/mpi'?); allowed: "),
        ({"runtime": "serial"}, "'serial' does not communicate"),
        ({"knobs": ["cycle_time"]}, "knob 'cycle_time' is not known (did you mean 'cycle_time_ms'?); allowed: "),
        ({"knobs": ["bucket_mb"]}, "knob bucket_mb has no effect over horovod/mpi; knobs that do something over "),
        ({"knobs": ["hierarchical"]}, "knob hierarchical means something on several hosts only"),
        ({"values": ["groups"]}, "--knob 'groups'; write NAME=VALUE,VALUE,... such as cycle_time_ms=0.1,1"),
        ({"values": ["groups=two"]}, "--knob: groups is 'two'; it must be a whole number"),
        ({"values": ["cycle_time_ms=-1"]}, "--knob: cycle_time_ms is -1.0; it must be at least 0"),
        ({"values": ["yield_when_idle=maybe"]}, "--knob: yield_when_idle is 'maybe'; it must be true or false"),
        ({"given": {"fusion_mb": 3}}, "--fusion-mb has no place here; it is varied; use --knob fusion_mb=VALUE,..."),
        ({"given": {"backend": "ddp"}}, "--backend has no place here; use --runtime"),
        ({"given": {"epochs": 3}}, "--epochs has no place here; leave it out"),
        ({"given": {"batch": 0}}, "tune: batch is 0; it must be at least 1"),
    ],
)
def test_bad_input(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        request(**changes)

    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_input_on_the_command_line(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["tune", "--minutes", "-1"]) == 2
    golden(capsys.readouterr().err, "--minutes")
    assert main(["tune", "--workers", "10000"]) == 2
    assert main(["tune", "--secnods", "1"]) == 2
    golden.line(capsys.readouterr().err, "--secnods", "--seconds")


# ---------------------------------------------------------------------------------------------------------- the tune


class FakeTrainer:
    """In the place of the engine: launches of 7 s with 1 % of noise; `speeds` of option=value tell what is fast."""

    def __init__(self, speeds: dict[str, float], *, stop_after: int | None = None, fails: str = "") -> None:
        self.speeds, self.stop_after, self.fails = speeds, stop_after, fails
        self.launched: list[str] = []

    def __call__(self, run: CellRun, stop: Interruption) -> Attempt:
        if len(self.launched) == self.stop_after:
            raise KeyboardInterrupt
        return self.launch(run.cell, run.out.name)

    def launch(self, cell: Cell, name: str) -> Attempt:
        self.launched.append(name)
        speed = 0.4 if cell.config.horovod_defaults else 1.0
        for text, factor in self.speeds.items():
            option, _, value = text.partition("=")
            speed *= factor if str(getattr(cell.config, option)).lower() == value else 1.0
        if self.fails and str(getattr(cell.config, self.fails.partition("=")[0])) == self.fails.partition("=")[2]:
            return ended("failed", 3.0, reason="rank 1 ended by signal 11")
        generator = np.random.default_rng(int(name.rpartition("-")[2]))
        speed *= 40_000 * math.exp(0.01 * generator.standard_normal())
        totals = {"samples_per_s": speed, "step_s_median": 150 / speed, "step_s_p90": 165 / speed}
        environment = {"cpu_model": "Some CPU", "torch": "2.13.0", "horovod": "0.28.1", "mpi": "Open MPI 4"}
        record = replace(
            record_of(cell, "now", ""), status="done", totals=totals, effective=EFFECTIVE, environment=environment
        )
        return ended("done", 7.0, record=record)


def ended(state: str, seconds: float, *, reason: str = "", record: RunRecord | None = None) -> Attempt:
    log = Path("launch.log")
    return Attempt(state=state, reason=reason, record=record, exit_code=0, log=log, started="now", seconds=seconds)


KNOBS = ["cycle_time_ms", "yield_when_idle", "cache_capacity", "groups"]
SPEEDS = {"cycle_time_ms=0.2": 1.1, "cycle_time_ms=5.0": 0.4, "yield_when_idle=false": 0.9, "cache_capacity=0": 1.05}


def tune(out: Path, trainer: FakeTrainer, **changes: Any) -> Any:
    return run_tune(request(knobs=KNOBS, **changes), out, command="horovod-study tune", attempt=trainer)


def test_a_tune_ends_with_lines_that_a_study_file_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    document = tune(tmp_path, FakeTrainer(SPEEDS, fails="groups=4"))
    told = capsys.readouterr().err.splitlines()
    (tmp_path / "study.yaml").write_text(
        "\n".join(["study: s", "sweep: {runtime: horovod/mpi, workers: 2}", *run_lines(document)])
    )
    study = load_study(tmp_path / "study.yaml")

    assert document["chosen"] == "cycle_time_ms=0.2 cache_capacity=0" and document["stop"] == "resolved"
    assert (study.runtimes, study.run.cycle_time_ms, study.run.cache_capacity) == (("horovod/mpi",), 0.2, 0)
    runtime = {"backend": "horovod", "transport": "mpi", "threads": 1}
    assert document["settings"] == {**runtime, "cycle_time_ms": 0.2, "cache_capacity": 0}
    asked = {"widths": "15-38-197", "batch": 75, "workers": 2, "nodes": 1, "runtime": "horovod/mpi"}
    versions = {"cpu_model": "Some CPU", "package": None, "torch": "2.13.0", "horovod": "0.28.1", "mpi": "Open MPI 4"}
    assert document["for"] == {"parameters": 153_441, **asked, **versions}
    assert document["gain_over_shipped"]["ratio"] == pytest.approx(1.1 * 1.05, rel=0.02)
    assert 1.1 < document["gain_over_shipped"]["low"] and document["gain_over_shipped"]["blocks"] == 5
    assert document["gain_over_library"]["ratio"] == pytest.approx(1.1 * 1.05 / 0.4, rel=0.03)
    failed = next(row for row in document["candidates"] if row["name"] == "groups=4 with hooks")
    assert failed["launches"] == 0
    golden(failed["verdict"], "rank 1", "signal 11", "launch.log")
    assert json.loads((tmp_path / "result.json").read_text()) == document
    golden(told[0], "horovod/mpi", "2 workers", "batch 75", "2 s", "10 min")
    golden(told[1], "9 min 53 s")
    assert any("; best: cycle_time_ms=0.2 cache_capacity=0, 1.1" in line for line in told)


def test_the_time_is_kept_to(tmp_path: Path, golden: Golden) -> None:
    trainer = FakeTrainer({})
    document = tune(tmp_path, trainer, minutes=3.0, given={"horovod_build": "nccl"})

    assert document["used_s"] <= 180 and len(trainer.launched) == 25
    golden(document["verdict"])
    assert document["settings"] == {"backend": "horovod", "transport": "mpi", "threads": 1, "horovod_build": "nccl"}
    assert document["gain_over_shipped"] is None and "  horovod_build: nccl" in run_lines(document)


def test_an_interrupted_tune_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    tune(tmp_path, FakeTrainer(SPEEDS, stop_after=4))

    golden(capsys.readouterr().err, "4 launches")
    tune(tmp_path, trainer := FakeTrainer(SPEEDS))
    assert trainer.launched[0] == "launch-0001", "it begins again"


def test_shipped_settings_that_do_not_run_are_an_error_at_once(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(StudyError, match=r"horovod/mpi.*rank 1.*signal 11.*launch\.log"):
        tune(tmp_path, FakeTrainer({}, fails="cycle_time_ms=None"))


def test_nothing_to_vary_is_an_error(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(StudyError):
        run_tune(request(knobs=["threads"]), tmp_path, command="tune", attempt=FakeTrainer({}))


def test_a_setting_in_the_environment_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    tune(tmp_path, FakeTrainer({}), minutes=0.3)

    golden(capsys.readouterr().err, "HOROVOD_CYCLE_TIME")


@pytest.mark.slow
def test_a_tune_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.02)
    monkeypatch.setattr(turns, "SLICE_S", (0.02, 0.02))
    monkeypatch.setattr(tune_module, "TURNS_MINUTES", 2.0)

    def launched() -> int:
        return len((tmp_path / "runs" / "starts.txt").read_text().splitlines())

    def run(rounds: int) -> dict[str, Any]:
        wanted = request(turns=True, rounds=rounds, knobs=["yield_when_idle", "single_copy"], given={"device": "cpu"})
        assert (wanted.alone, wanted.minutes) == ("", 2.0)
        return dict(run_tune(wanted, tmp_path, command="tune", launch=fake_launch({"*": "turns"})))

    first = run(1)
    race = [each for each in first["candidates"] if each["kind"] != "combination"]

    assert first["in_turns"] is True and first["launches"] == launched() >= 5
    assert len(race) == 6 and all(each["launches"] >= 1 and each["samples_per_s"] > 0 for each in race)
    assert all(each["blocks"] >= 4 for each in race if each["kind"] == "effect")


def first_look(directory: Path, told: str, **changes: Any) -> Any:
    """Begin a tune whose trainers behave as `told`; return what its only launch came to."""
    wanted = request(given={"seconds": 0.01}, knobs=["threads"])
    with pytest.raises(StudyError) as error:
        run_tune(wanted, directory, command="tune", launch=fake_launch({"*": told}))
    return str(error.value)


FAILURES = {"user error": "10 curves", "killed": "SIGKILL", "own reason": "", "no launcher": "/nonexistent/launcher"}


@pytest.mark.parametrize(("told", "reason"), FAILURES.items())
def test_a_failed_launch_has_a_reason(tmp_path: Path, told: str, reason: str, golden: Golden) -> None:
    said = first_look(tmp_path, told)

    golden(said, reason)
    assert said.endswith(f"see {tmp_path}/logs/launch-0001.log")
    assert read_run(tmp_path / "runs" / "launch-0001").status == "failed"


def test_a_launch_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_module, "_START_UP_S", 1.0)
    said = first_look(tmp_path, "hang")

    assert "timed out after 1.1 s; see " in said
    assert not marked_processes(str(tmp_path))


def test_a_launch_that_was_interrupted_before_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "runs" / "launch-0001").mkdir(parents=True)
    said = first_look(tmp_path, "done")

    assert "there is nothing to vary" in said, "the first look has ended well"
    assert read_run(tmp_path / "runs" / "launch-0001").status == "done"


@pytest.mark.parametrize("minutes", [10.0, 0.3])
def test_the_table_tells_what_was_chosen_and_why(tmp_path: Path, minutes: float, golden: Golden) -> None:
    """Also of a tune without a single whole block."""
    lines = table(tune(tmp_path, FakeTrainer(SPEEDS, fails="groups=4"), minutes=minutes))

    assert lines[0] == "Horovod/MPI, 2 workers, batch 75"
    assert sum(line.startswith("  * ") for line in lines) == 1
    golden("\n".join(lines), *(["cycle_time_ms=0.2 cache_capacity=0", ", measured again"] if minutes > 1 else []))


@pytest.mark.slow
@pytest.mark.horovod
def test_a_tune_of_real_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str], launch: Any) -> None:
    """Two knobs over direct MPI: every launch a run of its own, then a run that takes the settings."""
    out = tmp_path / "tune"
    words = "--runtime mpi/mpi --workers 2 --seconds 0.3 --rounds 2 --minutes 0.3 --no-turns --dataset 4000"
    words += " --warmup-steps 5 --knobs yield_when_idle reduction --knob reduction=hooks,flat"
    code = main(["tune", *words.split(), "--out", str(out), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    document = json.loads(printed.out)

    assert document["launches"] >= 1, printed.err  # on a busy machine the time is over after the first
    first = read_run(out / "runs" / "launch-0001")
    assert (first.status, first.effective["backend"], first.effective["workers"]) == ("done", "mpi", 2)
    assert first.requested["seconds"] == 0.3 and not list((out / "runs").rglob("*.pt"))
    assert document["runtime"] == "mpi/mpi" and document["for"]["parameters"] == 153_441
    lines = yaml.safe_load("\n".join(run_lines(document)))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(lines["run"]))
    short = ["--dataset", "4000", "--steps", "5", "--warmup-steps", "0", "--no-checkpoint-at-end", "--batch", "75"]
    options = ["--config", str(tmp_path / "run.yaml"), "--backend", "mpi", *short]
    done = launch("mpirun", 2, *options, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    record = read_run(tmp_path / "run")
    assert record.effective["backend"] == "mpi"
    assert {name: record.requested[name] for name in lines["run"]} == lines["run"]
