"""A run that made some of its slices beside another program: what is set aside is set aside for every number."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make.rank_rows import rows_of
from make.records import FINISHED, record, write_rows
from make.waiting import PATIENCE_S

import horovod_study as hs
from horovod_study import records
from horovod_study.analysis.audit import RULES, recount
from horovod_study.analysis.steps import attribution
from horovod_study.analysis.steps.attribution import observe_run
from horovod_study.cli import main
from horovod_study.records import RecordedRun, TurnSlice, recorded_run, run_side_files, run_table

STEPS, SLICES, WARMUP, BATCH = 20, 12, 20, 75
OWN_S = {1: 6e-3, 2: 8e-3}
SLOWER = 2.5
"""By so much a step beside the other program is."""


def write_run(folder: Path, workers: int, launch: int, loud: set[int]) -> list[TurnSlice]:
    """Write a finished run of SLICES slices after its warm-up, those of `loud` rounds disturbed; return them."""
    name, steps = f"w{workers}-r{launch}", WARMUP + STEPS * SLICES
    opens = [WARMUP + STEPS * number for number in range(SLICES + 1)]
    slow = np.ones((steps, workers))
    for number in loud:
        slow[WARMUP + STEPS * number : WARMUP + STEPS * (number + 1)] = SLOWER
    noise = np.random.default_rng(100 * launch + workers).normal(1, 0.01, slow.shape)
    rows = rows_of(OWN_S[workers] * slow * noise, opens=opens)
    timed = {rank: {lap: values[WARMUP:] for lap, values in columns.items()} for rank, columns in rows.items()}
    window_s = max(float(each["step_s"].sum()) for each in timed.values())
    samples = STEPS * SLICES * BATCH * workers
    summaries = [
        {
            "mean": {lap: float(values.mean()) for lap, values in columns.items()},
            "median": {lap: float(np.median(values)) for lap, values in columns.items()},
            "step_s_p90": float(np.quantile(columns["step_s"], 0.9)),
        }
        for columns in timed.values()
    ]
    effective = {
        "backend": "horovod" if workers > 1 else "serial",
        "transport": "mpi" if workers > 1 else "none",
        "workers": workers,
        "nodes": 1,
        "batch": BATCH,
        "global_batch": BATCH * workers,
        "train_samples": 75_000,
        "precision": "fp32",
        "reduction": "bucketed" if workers > 1 else "none",
        "warmup_steps": WARMUP,
        "ranks": [{"host": "node1"}] * workers,
    }
    begun = record(study="shared", key=name, repeat=launch, effective=effective, host="node1", pid=1)
    records.create_run(folder / name, begun)
    write_rows(folder / name, rows)
    totals = {
        "samples_per_s": samples / window_s,
        "window_s": window_s,
        "steps": STEPS * SLICES,
        "excluded_steps": WARMUP,
        "turns": {"before": opens, "waited_s": 1.0},
        **records.step_totals(summaries),
    }
    records.finish_run(folder / name, begun, status="done", finished=FINISHED, totals=totals)
    return [
        TurnSlice(
            block="local",
            launch=launch,
            round=number,
            position=workers - 1,
            run=name,
            begin_s=2.0 * number,
            end_s=2.0 * number + float(rows[0]["step_s"][first : first + STEPS].sum()),
            steps=STEPS,
            samples=STEPS * BATCH * workers,
            other_load=1.0 if number in loud else 0.0,
        )
        for number, first in enumerate(opens[:-1])
    ]


def write_study(folder: Path, loud: set[int]) -> Path:
    slices = [each for launch in range(3) for workers in OWN_S for each in write_run(folder, workers, launch, loud)]
    records.append_turns(folder, slices)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of which a third of the rounds is disturbed."""
    return write_study(tmp_path_factory.mktemp("runs") / "shared", {1, 2, 5, 9})


def test_every_number_of_a_run_is_of_the_same_steps(shared: Path) -> None:
    for row in run_table(shared).to_dict("records"):
        run = recorded_run(shared / row["run"])
        steps = np.concatenate([columns["step_s"] for columns in run.rows.values()])
        timed = {rank: columns["step_s"][columns["step"] >= WARMUP] for rank, columns in run.rows.items()}

        assert steps.max() < 1.5 * np.median(steps), "no disturbed step is left"
        assert row["steps"] == STEPS * (SLICES - 4) == len(timed[0])
        assert row["samples_per_s"] == pytest.approx(BATCH * row["workers"] / row["step_s"], rel=1e-3)
        assert row["step_s"] == pytest.approx(np.mean([each.mean() for each in timed.values()]))
        assert row["step_s_median"] == max(np.median(each) for each in timed.values())


def test_where_hardly_a_step_was_quiet_the_synchronisation_is_that_of_all_steps(
    tmp_path: Path, monkeypatch: Any
) -> None:
    seen: list[RecordedRun] = []
    monkeypatch.setattr(records, "read_synchronisation", lambda directory: {})
    monkeypatch.setattr(attribution, "observe_run", lambda run, slices: seen.append(run) or observe_run(run, slices))
    slices = [*write_run(tmp_path, 1, 0, set()), *write_run(tmp_path, 2, 0, set(range(10)))]
    records.append_turns(tmp_path, slices)

    assert main(["explain", "--part", "sync", str(tmp_path / "w2-r0"), "--out", str(tmp_path / "out")]) == 0
    assert [len(each["step"]) for each in seen[0].rows.values()] == [WARMUP + STEPS * SLICES] * 2


def test_the_run_as_it_wrote_itself_down_is_there_and_agrees_with_its_rows(shared: Path) -> None:
    run = recorded_run(shared / "w2-r0")

    assert len(run.whole().rows[0]["step"]) == WARMUP + STEPS * SLICES
    assert run.whole().record == records.read_run(shared / "w2-r0")
    found = recount(run, run_side_files(run.directory)).findings
    assert [each.text for each in found if RULES[each.name].severity == "error"] == []


def test_page_tables_and_explain_say_one_thing(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = hs.analyze(shared)
    assert main(["explain", str(shared), "--json"]) == 0
    cells = {each["workers"]: each for each in json.loads(capsys.readouterr().out)["cells"]}

    for row in study.points.to_dict("records"):
        n, rate = row["workers"], row["samples_per_s_median"]
        parts = study.breakdown[(study.breakdown["workers"] == n) & (study.breakdown["lap"] == "step")]
        assert rate == pytest.approx(n * BATCH / parts["mean_s"].iloc[0], rel=0.02)
        assert row["speedup_plain"] == pytest.approx(rate / row["base_plain_samples_per_s"])
        assert cells[n]["samples_per_s"] == pytest.approx(rate)
        assert cells[n]["step_s"] == pytest.approx(parts["mean_s"].iloc[0])
    (told,) = [each for each in study.provenance["doubts"] if "set aside" in each]
    assert "33" in told


def test_on_a_machine_that_is_shared_throughout_all_of_it_counts(tmp_path: Path) -> None:
    loud = set(range(SLICES)) - {3, 7}
    folder = write_study(tmp_path / "shared", loud)

    run = recorded_run(folder / "w1-r0")
    assert not run.aside and len(run.rows[0]["step"]) == WARMUP + STEPS * SLICES
    assert run.record == records.read_run(folder / "w1-r0")


def test_a_run_that_did_not_alternate_is_as_it_is(shared: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "alone", 1, 0, {1, 2})

    run = recorded_run(tmp_path / "alone" / "w1-r0")
    assert run.record == records.read_run(tmp_path / "alone" / "w1-r0") and not run.aside


BESIDE = """
study: beside
run: {dataset: 2000, batch: 75, seconds: 2, warmup_steps: 10, system_interval_s: 0}
sweep: {workers: [1, 2], runtime: [horovod/mpi]}
baselines: [plain, wrapped]
turns: yes
repeats: 2
"""


@pytest.mark.slow
@pytest.mark.horovod
def test_beside_a_program_that_burns_a_core_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.yaml").write_text(BESIDE)
    burner = (
        "import time\nwhile True:\n end = time.monotonic() + 2\n while time.monotonic() < end: pass\n time.sleep(3)"
    )
    beside = subprocess.Popen([sys.executable, "-c", burner])
    try:
        assert main(["run", "beside.yaml", "--oversubscribe"]) == 0
    finally:
        beside.kill()
        beside.wait(PATIENCE_S)

    study = hs.read_analysis(tmp_path / "runs" / "beside" / "analysis")
    for row in study.points.to_dict("records"):
        for kind in ("plain", "wrapped") if row["backend"] != "serial" else ("plain",):
            ratio = row["samples_per_s_median"] / row[f"base_{kind}_samples_per_s"]
            assert row[f"speedup_{kind}"] == pytest.approx(ratio)
    for run in map(recorded_run, records_below(tmp_path / "runs" / "beside")):
        found = recount(run, run_side_files(run.directory)).findings
        assert [each.text for each in found if RULES[each.name].severity == "error"] == []


def records_below(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/run.json"))
