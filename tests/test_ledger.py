"""The ledger: what the run directories say about a study, the order of its cells, its lock, earlier attempts."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_study import records
from horovod_study.cluster import ledger
from horovod_study.cluster.progress import Estimate
from horovod_study.cluster.study_file import STUDY_KEYS, SWEEP_KEYS, StudyConfig, load_study
from horovod_study.config import RUNTIMES, RunConfig
from horovod_study.errors import RecordError, StudyError

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def make_study(**changes) -> StudyConfig:
    values = {
        "name": "tiny",
        "run": RunConfig(study="tiny", seconds=1),
        "workers": (1, 2),
        "runtimes": ("horovod/mpi", "horovod/gloo"),
        "repeats": 2,
    }
    return StudyConfig(**{**values, **changes})


def record(study, cell, **changes) -> records.RunRecord:
    values = {
        "study": study.name,
        "key": cell.key,
        "repeat": cell.config.repeat,
        "partition": "local",
        "status": "done",
        "started": "2026-01-01T00:00:00+00:00",
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "requested": cell.config.to_dict(),
        "effective": {},
        "environment": {},
        "totals": {"samples_per_s": 31415.9},
    }
    return records.RunRecord(**{**values, **changes})


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# ---------------------------------------------------------------------------------------------------- states


def test_nothing_recorded_means_everything_is_missing(tmp_path):
    study = make_study()

    found = ledger.read_ledger(study, tmp_path / "runs")

    assert 10 == len(found.entries) == found.count("missing")
    assert study.cells() == found.to_do(retry=False)
    assert "study tiny: 0 of 10 cells done (10 missing)" == found.summary()
    assert not (tmp_path / "runs").exists(), "looking leaves no trace"


def test_each_state_is_read_from_the_run_directories(tmp_path):
    study = make_study()
    done, failed, alive, killed, interrupted, unrecorded, elsewhere, *missing = study.cells()
    for cell, changes in (
        (done, {}),
        (failed, {"status": "failed", "reason": "out of\n memory", "totals": {}}),
        (alive, {"status": "running"}),
        (killed, {"status": "running", "pid": dead_pid()}),
        (interrupted, {"status": "running", "pid": dead_pid(), "reason": "interrupted"}),
        (elsewhere, {"status": "running", "host": "node9", "pid": 77}),
    ):
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell, **changes))
    (tmp_path / "tiny" / unrecorded.key).mkdir()
    (tmp_path / "tiny" / unrecorded.key / "epochs.csv").touch()
    (tmp_path / "tiny" / missing[0].key).mkdir()  # an empty folder is nothing

    found = ledger.read_ledger(study, tmp_path)

    expected = [
        ("done", "", 31415.9),
        ("failed", "out of memory", None),
        ("running", f"process {os.getpid()} on {os.uname().nodename}", None),
        ("incomplete", "its process is gone", None),
        ("incomplete", "interrupted", None),
        ("incomplete", "ended before it wrote its record", None),
        ("running", "process 77 on node9", None),
        *[("missing", "", None)] * 3,
    ]
    assert expected == [(entry.state, entry.reason, entry.samples_per_s) for entry in found.entries]
    assert "study tiny: 1 of 10 cells done (2 running, 1 failed, 3 incomplete, 3 missing)" == found.summary()
    assert [killed, interrupted, unrecorded, *missing] == found.to_do(retry=False)
    assert [failed, killed, interrupted, unrecorded, *missing] == found.to_do(retry=True)


def test_judging_a_cell_needs_no_files():
    study = make_study()
    cell = study.cells()[0]

    missing = ledger.judge(study, cell, exists=False, record=None)
    done = ledger.judge(study, cell, exists=True, record=record(study, cell), earlier=2)

    assert ("missing", 0) == (missing.state, missing.earlier_attempts)
    assert ("done", 2) == (done.state, done.earlier_attempts)


def test_runs_of_an_edited_study_file_are_named_and_not_taken_for_cells(tmp_path):
    study = make_study(repeats=1)
    edited = make_study(repeats=1, run=replace(study.run, batch=100))
    for cell in study.cells():
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))

    found = ledger.read_ledger(edited, tmp_path)

    assert 0 == found.count("done")
    assert sorted(cell.key for cell in study.cells()) == list(found.foreign)
    expected = (
        "study tiny: 0 of 5 cells done (5 missing); "
        "5 recorded runs are no cell of this study file (it was edited since?)"
    )
    assert expected == found.summary()


def test_damaged_record_is_named(tmp_path):
    study = make_study()
    folder = tmp_path / "tiny" / study.cells()[0].key
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")

    with pytest.raises(RecordError, match=r"run\.json: is not valid JSON .*; move the directory away"):
        ledger.read_ledger(study, tmp_path)


def test_lines_and_json_of_status(tmp_path):
    study = make_study(repeats=1, runtimes=("horovod/mpi",))
    plain, wrapped, _ = study.cells()
    records.create_run(tmp_path / "tiny" / plain.key, record(study, plain))
    records.create_run(
        tmp_path / "tiny" / wrapped.key, record(study, wrapped, status="failed", reason="lost", totals={})
    )
    (tmp_path / "tiny" / ledger.ATTEMPTS / f"{wrapped.key}-1").mkdir(parents=True)

    found = ledger.read_ledger(study, tmp_path)

    assert [
        "state    cell                              samples/s  reason",
        "done     serial, 1 worker, repeat 1           31,416",
        "failed   horovod/mpi, 1 worker, repeat 1              lost; attempt 2",
        "missing  horovod/mpi, 2 workers, repeat 1",
    ] == found.lines()
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert {"done": 1, "running": 0, "failed": 1, "stopped": 0, "incomplete": 0, "missing": 1} == document["counts"]
    assert {
        "cell": wrapped.key,
        "name": "horovod/mpi, 1 worker, repeat 1",
        "runtime": "horovod/mpi",
        "workers": 1,
        "batch": 75,
        "repeat": 0,
        "state": "failed",
        "samples_per_s": None,
        "reason": "lost",
        "earlier_attempts": 1,
    } == document["rows"][1]


def test_names_tell_apart_what_the_study_varies():
    study = make_study(varied={"batch": (75, 256), "horovod_defaults": (False, True)}, repeats=1)

    names = [ledger.cell_name(study, cell) for cell in study.cells()]

    assert len(names) == len(set(names)) == len(study.cells())
    assert "serial, 1 worker, batch 256, repeat 1" in names
    assert "horovod/mpi, 2 workers, batch 75, horovod_defaults true, repeat 1" in names


# ---------------------------------------------------------------------------------------------------- order


@given(seed=st.integers(0, 10**6), repeats=st.integers(1, 4))
def test_a_block_holds_every_cell_of_one_repeat_once(seed, repeats):
    cells = make_study(repeats=repeats).cells()

    ordered = ledger.blocks(cells, seed)

    assert list(range(repeats)) == [block[0].config.repeat for block in ordered]
    for repeat, block in enumerate(ordered):
        assert sorted(c.key for c in cells if c.config.repeat == repeat) == sorted(c.key for c in block)
    assert ordered == ledger.blocks(cells, seed), "the order is a function of the seed"


def test_blocks_are_shuffled_differently_and_by_the_seed():
    cells = make_study(repeats=3).cells()

    def orders(seed):
        return [[(c.runtime, c.placement.workers) for c in block] for block in ledger.blocks(cells, seed)]

    first, second, third = orders(1)
    assert not first == second == third
    assert orders(1) != orders(2)


# ---------------------------------------------------------------------------------------------------- attempts


def test_earlier_attempts_are_kept_with_their_output_and_not_analysed(tmp_path):
    study = make_study()
    cell = study.cells()[0]
    directory = tmp_path / "tiny"
    (directory / "logs").mkdir(parents=True)
    for text in ("first", "second"):
        records.create_run(directory / cell.key, record(study, cell, status="failed", reason=text, totals={}))
        ledger.log_path(directory, cell).write_text(f"{text} output")
        ledger.set_aside(directory, cell)
    records.create_run(directory / cell.key, record(study, cell))

    for number, text in ((1, "first"), (2, "second")):
        kept = directory / ".attempts" / f"{cell.key}-{number}"
        assert text == records.read_run(kept).reason
        assert f"{text} output" == (kept / "output.log").read_text()
    assert 2 == ledger.read_ledger(study, tmp_path).entries[0].earlier_attempts
    assert [cell.key] == [path.name for path in records.run_directories(tmp_path)]


def test_setting_aside_survives_being_cut_short(tmp_path, monkeypatch):
    study = make_study()
    cell = study.cells()[0]
    (tmp_path / "logs").mkdir()
    records.create_run(tmp_path / cell.key, record(study, cell))
    ledger.log_path(tmp_path, cell).write_text("output")

    def cut(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", cut)
        ledger.set_aside(tmp_path, cell)

    assert tmp_path / ".attempts" / f"{cell.key}-1" == ledger.set_aside(tmp_path, cell)
    assert "output" == (tmp_path / ".attempts" / f"{cell.key}-1" / "output.log").read_text()
    assert ledger.set_aside(tmp_path, cell) is None


def test_durations_are_those_of_finished_attempts_and_damage_is_passed_over(tmp_path):
    cell = make_study().cells()[1]
    for state, seconds in (("done", 12.34), ("failed", 1.0)):
        ledger.note_attempt(
            tmp_path, cell, started="now", state=state, seconds=seconds, exit_code=None, reason="a, 'b'\"\n"
        )
    with (tmp_path / "attempts.csv").open("ab") as stream:
        stream.write(b"now,key,horovod/mpi,2,done\nnow,key,horovod/mpi,\xff,done,3,0,\nnow,k")

    assert [("horovod/mpi", 1, 12.34)] == ledger.past_durations(tmp_path)
    assert [] == ledger.past_durations(tmp_path / "nowhere")


# ---------------------------------------------------------------------------------------------------- lock

HOLD = """
import sys, pathlib
from horovod_study.cluster.ledger import study_lock
with study_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "tiny")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert "held\n" == process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_second_command_is_told_who_runs_the_study(tmp_path, holder):
    with pytest.raises(StudyError) as caught, ledger.study_lock(tmp_path / "tiny"):
        pass

    expected = (
        f"{tmp_path / 'tiny'}: the study is being run by process {holder.pid} on {os.uname().nodename}; "
        "wait for it, or stop it and run again"
    )
    assert expected == str(caught.value)


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_lock_ends_with_its_holder(tmp_path, holder, end):
    if end:
        holder.send_signal(end)
    holder.communicate()

    with ledger.study_lock(tmp_path / "tiny"):
        assert {"pid": os.getpid(), "host": os.uname().nodename} == json.loads((tmp_path / "tiny/.lock").read_text())


def test_unwritable_folder_is_named_with_the_way_out(tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")

    with pytest.raises(StudyError, match=r"runs/tiny: cannot be written \(.*\); choose a writable folder with --runs"):
        with ledger.study_lock(tmp_path / "runs" / "tiny"):
            pass


# ---------------------------------------------------------------------------------------------------- shipped studies


def test_laptop_study_takes_three_minutes_on_two_cores():
    study = load_study(EXPERIMENTS / "laptop.yaml", cores=2)

    assert 15 == len(study.cells())
    assert {"serial", "horovod/mpi", "horovod/gloo"} == {cell.runtime for cell in study.cells()}
    assert 150 <= Estimate().left(study.cells()).seconds <= 200


def test_readme_explains_every_key_and_its_example_holds(tmp_path):
    text = (EXPERIMENTS / "README.md").read_text()
    example = tmp_path / "example.yaml"
    example.write_text(text.partition("```yaml\n")[2].partition("```")[0])

    study = load_study(example)

    assert "each 5 times: 60 cells" in text
    assert 60 == len(study.cells())
    for key in (*STUDY_KEYS, *SWEEP_KEYS, *RUNTIMES):
        assert f"`{key}`" in text, key
