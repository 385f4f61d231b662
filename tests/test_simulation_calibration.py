"""Constants from runs and benchmarks whose answers are known, and the verb as a user types it."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import make.records
import numpy as np
import pytest
from make.bench_document import MODEL, document
from make.benchmarks import load_benchmark
from make.rank_rows import noise, rows_of
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis.costs import Link
from horovod_study.analysis.machine.network import analyze
from horovod_study.analysis.simulate.calibration import (
    Given,
    RunTimes,
    calibrate,
    measured_network,
    run_times,
)
from horovod_study.analysis.simulate.scaling import (
    Network,
    Scenario,
    all_doubts,
    allreduce_s,
    doubts,
    simulate,
    what_if,
)
from horovod_study.cli import main
from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import asked
from horovod_study.errors import AnalysisError, StudyError
from horovod_study.report.figures.bench import content as bench_content
from horovod_study.report.figures.bench import simulation_content, simulation_drawing, simulation_text
from horovod_study.report.kit.style import style, to_bytes

PARAMETERS = MODEL["parameters"]
BYTES = float(MODEL["flat_bytes"])
WOKEN = {"HOROVOD_CYCLE_TIME": {"value": "0.05"}, "HOROVOD_IDLE_CYCLE_TIME": {"value": "10"}}
NETWORKS = Path(__file__).parents[1] / "experiments" / "networks"


def calibrated(*, runs=(), beside=(), benches=(), network=None, **given: Any) -> Scenario:
    return calibrate(asked(Given, given, "simulate"), runs=runs, beside=beside, benches=benches, network=network)


def bench(**changes: Any) -> dict[str, Any]:
    """A bench.json of two workers on one node: MPI 2 us + S / 6 GB/s, Horovod 30 us + S / 5 GB/s."""
    made = document(**changes)
    for job in made["jobs"]:
        job["conditions"]["settings"] = WOKEN
    return json.loads(json.dumps(bench_content(analyze(made), made)))


def recorded(
    own_s: np.ndarray,
    *,
    batch: int = 75,
    transfer_s: float = 2e-4,
    hosts: int = 1,
    visible: bool = True,
    **effective: Any,
) -> Any:
    """A recorded run of ranks that compute for `own_s`, (S, R); the first five steps are warm-up."""
    ranks = own_s.shape[1]
    what = {
        "backend": "serial" if ranks == 1 else "horovod",
        "transport": "none" if ranks == 1 else "mpi",
        "reduction": "none" if ranks == 1 else "flat",
        "batch": batch,
        "workers": ranks,
        "parameters": PARAMETERS,
        "settings": {} if ranks == 1 else WOKEN,
        "ranks": [{"host": f"node{rank * hosts // ranks}"} for rank in range(ranks)],
        **effective,
    }
    return SimpleNamespace(
        directory=Path(f"run{ranks}x{batch}"),
        record=SimpleNamespace(effective=what),
        workers=ranks,
        rows=rows_of(own_s, transfer_s=transfer_s, visible=visible),
        first_step=5,
    )


def times(own_s: np.ndarray, **changes: Any) -> RunTimes:
    return run_times(recorded(own_s, **changes))


def constant(seconds: float, ranks: int = 1, steps: int = 60) -> np.ndarray:
    return np.full((steps, ranks), seconds)


def at(calibration: Any, *counts: int) -> Any:
    return simulate({"": calibration}, counts).set_index("workers")


# ------------------------------------------------------------------------------------------------------------ runs


def test_the_times_of_a_run_are_those_that_its_workers_had() -> None:
    own = noise(1, 200, 3)
    found = times(own, hosts=2)

    # The update is that of the step before, hence the small difference from step to step.
    assert found.own_s.mean() == pytest.approx(own[6:].mean(), rel=1e-3)
    assert found.own_s.shape == (194, 3) or found.own_s.shape == (195, 3)
    assert (found.workers, found.per_node, found.batch) == (3, 2, 75)
    assert found.gradient_bytes == BYTES
    assert found.backward_share == pytest.approx(0.5, abs=0.01)
    assert found.settings["HOROVOD_IDLE_CYCLE_TIME"] == "10"


def test_runs_that_do_not_say_how_long_they_computed_are_refused() -> None:
    hidden = recorded(noise(1, 100, 2), visible=False)
    short = recorded(noise(1, 20, 1))
    silent = recorded(noise(1, 100, 2))
    silent.rows = {0: silent.rows[0]}
    unmarked = recorded(noise(1, 100, 1))
    unmarked.rows[0]["forward_s"] = np.full(100, np.nan)
    uneven = recorded(noise(1, 100, 2))
    uneven.rows[1] = {name: np.delete(column, 50) for name, column in uneven.rows[1].items()}
    for run, message in (
        (hidden, "the wait for other workers is inside its backward pass"),
        (short, "at least 20 are needed"),
        (silent, "1 of its 2 workers recorded no steps"),
        (unmarked, "recorded without laps"),
        (uneven, "its workers recorded different steps"),
    ):
        with pytest.raises(AnalysisError, match=message):
            run_times(run)


# --------------------------------------------------------------------------------------------------------- networks


def test_the_constants_of_a_benchmark() -> None:
    found = measured_network(bench(), source="b", way=None, size=None)

    assert (found.way, found.raw, found.sweep.workers, found.sweep.nodes, found.per_node) == (
        "horovod/mpi",
        "mpi",
        2,
        1,
        2,
    )
    assert found.link.alpha_s == pytest.approx(2e-6, rel=1e-3)
    assert found.link.bytes_per_s == pytest.approx(6e9, rel=1e-3)
    assert found.overhead_s == pytest.approx(28e-6 + BYTES / 5e9 - BYTES / 6e9, rel=1e-3)


def test_constants_of_more_workers_are_those_of_a_message(golden: Golden) -> None:
    """Eight workers: alpha is of three rounds, and 2 * 7/8 S crosses a link."""
    made = bench(workers=8)
    for rank, each in enumerate(made["measured"][0]["conditions"]["ranks"]):
        each["host"] = f"node{rank // 4}"
    found = measured_network(made, source="b", way="mpi", size=BYTES)

    assert found.link.alpha_s == pytest.approx(2e-6 / 3, rel=1e-3)
    assert found.link.bytes_per_s == pytest.approx(1.75 * 6e9, rel=1e-3)
    assert (found.sweep.nodes, found.per_node) == (2, 4)
    golden(found.doubts)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_calibrated_count_is_reproduced_whatever_the_size(workers: int) -> None:
    made = bench(workers=workers)
    network = calibrated(benches=[(made, "b")], way="mpi", compute_ms=1, batch=1).network
    points = [
        each for each in made["points"] if (each["way"], each["operation"], each["place"]) == ("mpi", "allreduce", "in")
    ]

    for point in points:
        assert allreduce_s(network, "auto", workers, point["bytes"]) == pytest.approx(point["seconds_median"], rel=1e-9)
    assert len(points) > 2


def test_a_size_that_the_line_misses_is_taken_as_it_was_measured() -> None:
    """Half the time of the line at the size of the gradients: twice the bandwidth is used, not the line's."""
    made = bench()
    for point in made["points"]:
        if point["way"] == "mpi" and point["bytes"] == BYTES:
            for name in ("seconds_median", "seconds_min", "seconds_max"):
                point[name] = 2e-6 + BYTES / 12e9
    found = measured_network(made, source="b", way="mpi", size=BYTES)

    assert found.link.bytes_per_s == pytest.approx(12e9, rel=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"fits": {}},
        {"workers": 1},
        {"points": None},
        {"points": []},
        {"model": {}},
        {"measured": []},
    ],
)
def test_a_damaged_benchmark_is_one_line(change: Mapping[str, Any], golden: Golden) -> None:
    with golden.raises(AnalysisError) as raised:
        measured_network({**bench(), **change}, source="b.json", way=None, size=None)

    assert str(raised.value).startswith("b.json: ") and "\n" not in str(raised.value)
    with golden.raises(AnalysisError, match="mip.*mpi"):
        measured_network(bench(), source="b.json", way="mip", size=None)


# ---------------------------------------------------------------------------------------------------- all together


def test_two_workers_from_one_and_a_benchmark_to_rounding(golden: Golden) -> None:
    """Constant times: 3 ms alone, 3.6 ms beside another; the step is that plus the runtime's measured all-reduce."""
    beside = [times(constant(3.6e-3)), times(constant(3.6e-3))]
    found = calibrated(runs=[times(constant(3e-3))], beside=beside, benches=[(bench(), "b")], way="horovod/mpi")
    table = at(found, 1, 2)

    assert table.loc[1, "step_s"] == pytest.approx(3e-3)
    assert table.loc[2, "step_s"] == pytest.approx(3.6e-3 + 30e-6 + BYTES / 5e9, rel=1e-3)
    assert table.loc[2, "compute_s"] == pytest.approx(3.6e-3)
    assert table.loc[2, "efficiency"] == pytest.approx(3.0 / (3.6 + 0.030 + BYTES / 5e6), rel=1e-3)
    golden(found.sources["crowding"], "1.000", "1.200")
    assert "used for" not in " ".join(doubts(found, [1, 2]))


def test_a_run_of_several_workers_is_reproduced(golden: Golden) -> None:
    own = noise(3, 2000, 4)
    run = times(own, transfer_s=7e-4)
    found = calibrated(runs=[run], benches=[(bench(workers=4), "b")])
    table = at(found, 4)

    assert run.sync_s is not None
    assert table.loc[4, "step_s"] == pytest.approx((run.own_s + run.sync_s).mean(), rel=0.01)
    assert table.loc[4, "slowest_s"] == pytest.approx((own.max(axis=1) - own.mean(axis=1)).mean(), rel=0.1)
    golden(found.sources["overhead"], "run4x75")
    golden(doubts(found, [4]))


def test_workers_that_are_slow_together_are_doubted(golden: Golden) -> None:
    together = np.repeat(noise(3, 500, 1), 4, axis=1)
    found = calibrated(runs=[times(together)], benches=[(bench(workers=4), "b")])

    golden(found.doubts)


def test_two_batches_give_a_line(golden: Golden) -> None:
    """1 ms + 20 us per sample."""
    runs = [times(constant(1e-3 + batch * 20e-6), batch=batch) for batch in (100, 200, 400)]
    found = calibrated(runs=runs, alpha_us=1, gb_per_s=1, workers_per_node=1)
    scenario = found

    assert scenario.fixed_share == pytest.approx(1 / 3)
    assert scenario.batch == 100 and scenario.batch_measured
    golden(found.sources["batch"], "1 ms", "20 us", "100", "200", "400")
    eight = simulate(what_if(scenario, ["batch=8x"]), [1]).iloc[-1]
    assert eight["compute_s"] == pytest.approx(17e-3)
    given = calibrated(runs=runs, alpha_us=1, gb_per_s=1, batch=50)
    assert given.compute.mean_s == pytest.approx(2e-3)
    assert given.batch_factor(100) == pytest.approx(1.5)
    assert "proportional" not in " ".join(all_doubts(what_if(scenario, ["batch=8x"]), [1]))


def test_a_given_fixed_part_is_a_line_too() -> None:
    scenario = calibrated(compute_ms=3, compute_fixed_ms=1, batch=100, alpha_us=1, gb_per_s=1, gradient_mb=1)

    assert simulate(what_if(scenario, ["batch=400"]), [1]).iloc[-1]["compute_s"] == pytest.approx(9e-3)
    assert "proportional" not in " ".join(all_doubts(what_if(scenario, ["batch=400"]), [1]))


def test_links_that_were_not_measured_are_said(golden: Golden) -> None:
    one = [times(constant(3e-3))]
    inside = calibrated(runs=one, benches=[(bench(), "b")])
    assert any(each.startswith("links between nodes were not measured") for each in inside.doubts)
    golden(inside.doubts, "2 workers")
    assert inside.network.workers_per_node == 2

    far = bench()
    far["measured"][0]["conditions"]["ranks"][1]["host"] = "node2"
    across = calibrated(runs=one, benches=[(far, "far")])
    assert any(each.startswith("links within a node were not measured") for each in across.doubts)
    assert across.network.workers_per_node == 1

    slow = bench(ways={"mpi": (50e-6, 1e8), "horovod/mpi": (90e-6, 1e8)})
    slow["measured"][0]["conditions"]["ranks"][1]["host"] = "node2"
    both = calibrated(runs=one, benches=[(bench(), "near"), (slow, "far")])
    assert float(both.network.intra.bytes_per_s) == pytest.approx(6e9, rel=1e-3)
    assert float(both.network.inter.bytes_per_s) == pytest.approx(1e8, rel=1e-3)
    assert both.network.workers_per_node == 2
    assert not any("were not measured" in each for each in both.doubts)


def test_what_was_measured_holds_before_what_is_described() -> None:
    link = Link(alpha_s=1.0, bytes_per_s=1.0)
    described = Network(intra=link, inter=link, workers_per_node=16, source="n.yaml")
    found = calibrated(runs=[times(constant(3e-3))], benches=[(bench(), "b")], network=described).network

    assert float(found.intra.bytes_per_s) == pytest.approx(6e9, rel=1e-3)
    assert found.inter is link
    assert found.workers_per_node == 16


def test_settings_of_horovod_become_cycle_fusion_and_negotiation() -> None:
    settings = {
        "HOROVOD_CYCLE_TIME": {"value": "5"},
        "HOROVOD_IDLE_CYCLE_TIME": {"value": "0"},
        "HOROVOD_FUSION_THRESHOLD": {"value": "1000"},
        "HOROVOD_CACHE_CAPACITY": {"value": "0"},
    }
    runtime = calibrated(runs=[times(noise(1, 100, 2), settings=settings)], benches=[(bench(), "b")]).runtime
    assert (runtime.cycle_s, runtime.negotiation, runtime.fusion_bytes) == (5e-3, "full", 1000.0)

    woken = calibrated(runs=[times(noise(1, 100, 2))], benches=[(bench(), "b")]).runtime
    assert (woken.cycle_s, woken.negotiation, woken.fusion_bytes) == (0.0, "cached", 128 * 2**20)
    plain = times(noise(1, 100, 2), backend="mpi", settings={})
    assert calibrated(runs=[plain], benches=[(bench(), "b")], way="mpi").runtime.negotiation == "none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--bench"),
        ({"alpha_us": 1}, ""),
        ({"alpha_us": 1, "gb_per_s": 1}, "--run RUN_DIR"),
        ({"alpha_us": 1, "gb_per_s": 1, "compute_ms": 1}, ""),
        ({"alpha_us": 1, "gb_per_s": 1, "compute_cv": 0.1, "runs": "one"}, "--compute-cv"),
        ({"alpha_us": 1, "gb_per_s": 1, "compute_ms": 1, "runs": "one"}, ""),
        ({"alpha_us": 1, "gb_per_s": 1, "compute_ms": 1, "compute_fixed_ms": 2}, "--compute-fixed-ms"),
        ({"alpha_us": 1, "gb_per_s": 1, "benches": "b", "runs": "one"}, ""),
        ({"alpha_us": 1, "gb_per_s": 1, "runs": "one", "workers_per_node": 0}, "--workers-per-node"),
        (
            {"alpha_us": 1, "gb_per_s": 1, "runs": "one", "beside": "one"},
            "",
        ),
        ({"alpha_us": 1, "gb_per_s": 1, "runs": "one", "beside": "two"}, "--beside"),
        ({"alpha_us": 1, "gb_per_s": 1, "runs": "models"}, ""),
        ({"scaling": "weakly"}, "--scaling is 'weakly' (did you mean 'weak'?)"),
        ({"algorithm": "rng"}, "--algorithm is 'rng' (did you mean 'ring'?)"),
        ({"overhead_us": -1}, "--overhead-us is -1"),
        ({"cycle_ms": math.inf}, "--cycle-ms is inf"),
        ({"gb_per_s": 0}, "--gb-per-s is 0"),
        ({"gradient_mb": math.nan}, "--gradient-mb is nan"),
        ({"alpha": 1}, "'--alpha'"),
    ],
)
def test_what_contradicts_itself_or_is_missing_is_one_line(
    options: dict[str, Any], message: str, golden: Golden
) -> None:
    known: dict[str, Any] = {
        "one": [times(constant(1e-3))],
        "two": [times(constant(1e-3, 2))] * 2,
        "models": [times(constant(1e-3)), times(constant(1e-3), parameters=7)],
        "b": [(bench(), "b")],
    }
    with golden.raises(StudyError, match=re.escape(message) or None) as raised:
        calibrated(**{name: known.get(str(value), value) for name, value in options.items()})

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", sorted(NETWORKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_networks_that_come_along_can_be_used_and_name_their_sources(path: Path) -> None:
    from horovod_study.analysis.simulate.scaling import network_from

    described = load_yaml(path)
    found = calibrated(network=network_from(described, source=path.name), compute_ms=10, gradient_mb=100, batch=32)

    assert described["source"] and "check" in described["description"]
    assert np.isfinite(at(found, 1, 8, 64)["step_s"]).all()


# -------------------------------------------------------------------------------------------------- files and verb


def write_run(directory: Path, own_s: np.ndarray) -> Path:
    ranks = own_s.shape[1]
    made = recorded(own_s)
    effective = {**made.record.effective, "warmup_steps": 5}
    record = make.records.record(key=directory.name, host="node0", requested={"batch": 75}, effective=effective)
    records.create_run(directory, record)
    make.records.write_rows(directory, {rank: made.rows[rank] for rank in range(ranks)})
    records.finish_run(directory, record, status="done", finished="2026-01-01T00:01:00+00:00", totals={})
    return directory


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["predict", "--simulate", *(str(word) for word in words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


GIVEN = ("--compute-ms", 10, "--gradient-mb", 100, "--alpha-us", 5, "--gb-per-s", 12.5, "--batch", 32)


def test_the_verb_with_given_constants(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    code, out, err = call(capsys, *GIVEN, "--algorithm", "ring", "--workers", 1, 2, 100_000, "--json")
    found = json.loads(out)
    rows = found["scenarios"]["baseline"]

    assert code == 0
    for row in rows:
        n = row["workers"]
        expected = 10e-3 + (2 * (n - 1) * 5e-6 + 2 * (n - 1) / n * 100e6 / 12.5e9 if n > 1 else 0.0)
        assert row["step_s"] == pytest.approx(expected, rel=1e-12)
        assert (row["step_low_s"] is None) == (n < 3)  # constants that nobody says more of are those of two workers
    assert found["constants"]["algorithm"] == "ring"
    assert found["sources"]["network"] == "--alpha-us and --gb-per-s"
    assert any("no scatter" in each for each in found["doubts"])
    golden(err)


@pytest.mark.slow
def test_the_verb_from_records(capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden) -> None:
    run = write_run(tmp_path / "one", noise(2, 300, 1))
    (tmp_path / "bench.json").write_text(json.dumps(bench()))
    words = ("--run", run, "--bench", tmp_path / "bench.json", "--workers", 1, 2, 8, 1000, "--seed", 3)
    code, out, err = call(capsys, *words, "--what-if", "bandwidth=2x", "batch=8x,cycle=5", "--out", tmp_path / "out")

    assert code == 0
    for name in ("baseline", "bandwidth=2x", "batch=8x,cycle=5"):
        assert re.search(rf"^{re.escape(name)}\n.*\nworkers +nodes +batch +\(ms\)", out, re.MULTILINE)
    assert re.search(r"^ +1,000 +500 +75 +\d", out, re.MULTILINE)
    assert re.search(rf"computing +(2\.99|3\.00|3\.01) ms \(294 times\); {re.escape(str(run))}\n", out)
    golden(err)
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == sorted(
        [f"simulation.{end}" for end in ("csv", "json", "pdf", "png", "svg", "txt")] + ["simulation_table.txt"]
    )
    found = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert found["scenarios"].keys() == {"baseline", "bandwidth=2x", "batch=8x,cycle=5"}
    assert "Simulated, not measured" in (tmp_path / "out" / "simulation.txt").read_text()
    assert "doubt: computing is known" in (tmp_path / "out" / "simulation_table.txt").read_text()
    again = call(capsys, *words, "--what-if", "bandwidth=2x", "batch=8x,cycle=5")[1]
    assert out.startswith(again.rstrip("\n"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2"], "nothing says what the network does"),
        ([*GIVEN, "--workers", "0"], "--workers is 0; it must be at least 1"),
        ([*GIVEN, "--workers", "2", "--what-if", "bandwith=2x"], r"did you mean 'bandwidth'\?"),
        ([*GIVEN, "--workers", "2", "--scaling", "wek"], r"did you mean 'weak'\?"),
        (["--network", "/none.yaml", "--workers", "2"], "/none.yaml: "),
        (["--run", "/none", "--workers", "2"], "/none/run.json: "),
        (["--bench", "/none.json", "--workers", "2"], "/none.json: .*; name a bench.json"),
        ([*GIVEN, "--workers", "2", "--compute-ms", "nan"], "--compute-ms is nan; it must be a number"),
        ([*GIVEN, "--workers", "2", "--gb-per-s", "0"], "--gb-per-s is 0.0; it must be at least 1e-12"),
        ([*GIVEN, "--workers", "2", "--overhead-us", "-1"], "--overhead-us is -1.0; it must be at least 0"),
        ([*GIVEN, "--workers", "2", "--gb-per-s", "inf"], "--gb-per-s is inf; it must be a number"),
        ([*GIVEN, "--workers", "2", "--seed", "-1"], "--seed is -1; it must be at least 0"),
        ([*GIVEN, "--workers", "2", "--batch", "0"], "--batch is 0; it must be at least 1"),
        ([*GIVEN, "--workers", "2", "--buckets", "0"], "--buckets is 0; it must be at least 1"),
        ([*GIVEN, "--workers", "2", "--cycle-ms", "1e10"], "--cycle-ms is .*; it must be at most"),
        ([*GIVEN, "--workers", "2", "--global-batch", "64"], "add --scaling strong"),
        ([*GIVEN, "--workers", "2", "--way", "mpi"], "--way names one of those in --bench"),
    ],
)
def test_wrong_use_of_the_verb_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[object], message: str
) -> None:
    code, out, err = call(capsys, *words)

    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: .*\n", err)
    assert re.search(message, err)


@pytest.mark.slow
def test_the_figure_shows_every_scenario_and_every_part() -> None:
    found = calibrated(compute_ms=10, compute_cv=0.1, gradient_mb=10, alpha_us=5, gb_per_s=1, batch=32, overhead_us=100)
    scenarios = what_if(found, ["bandwidth=2x", "slow-node=1.5x"])
    table = simulate(scenarios, [1, 4, 64, 1024])
    with style():
        figure = simulation_drawing(table, found).draw(5.9)
        assert to_bytes(figure, "svg") == to_bytes(simulation_drawing(table, found).draw(5.9), "svg")
    words = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert {"baseline", "bandwidth=2x", "slow-node=1.5x", "computing", "transfer of the gradients"} <= set(words)
    assert "waiting for the cycle" not in words

    json.dumps(simulation_content(table, found, []), allow_nan=False)
    bare = table.assign(**{name: math.nan for name in table if re.search("_(low|high)(_s)?$", name)})
    with_ends, without = simulation_text(table, found), simulation_text(bare, found)
    assert "nan" not in with_ends + without
    assert "[95 % interval]" in with_ends and "[" not in without, "brackets are told where there are some"


def test_the_figure_of_the_validation_shows_rounds_and_medians() -> None:
    cases = [{"case": "one", "ratios": [0.95, 1.0, 1.02]}, {"case": "two", "ratios": [1.3]}]
    with style():
        figure = load_benchmark("simulation").draw_validation(cases, width_in=5.9)
        axes = figure.axes[0]

    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    assert [text.get_text() for text in axes.texts] == ["1.00", "1.30"]
    low, high = axes.get_xlim()
    assert low < 0.85 and high > 1.3 and math.isfinite(high)


def test_two_hosts_as_they_were_recorded_are_foretold_within_15_percent() -> None:
    """From two workers on one host and the rate of the link; benchmarks/results/hosts/ has the measured steps."""
    benchmark = load_benchmark("simulation")
    cases = benchmark.recorded_hosts()

    assert [case["case"] for case in cases] == [
        f"recorded: {way}, two hosts" for way in ("horovod/mpi", "horovod/gloo", "ddp/gloo")
    ]
    assert all(abs(case["ratios"][0] - 1) < benchmark.WITHIN == 0.15 for case in cases)
