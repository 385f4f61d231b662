"""The ledger: what run directories, claims and jobs say about a study, the order of its cells, earlier attempts."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import make.records
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.benchmarks import load_benchmark

from horovod_study import records
from horovod_study.cluster import identity, slurm
from horovod_study.config.doors import adapter
from horovod_study.config.study_file import StudyFile, sweep_form
from horovod_study.errors import ConfigError, RecordError
from horovod_study.runtimes import RUNTIMES
from horovod_study.strain.options import STRAIN, StrainConfig
from horovod_study.studies import lease, ledger
from horovod_study.studies.plan import Estimate
from horovod_study.studies.study_file import StudyConfig, load_study, sweep_of

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def make_study(**changes) -> StudyConfig:
    values = {
        "name": "tiny",
        "run": StrainConfig(study="tiny", seconds=1),
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
        "status": "done",
        "requested": vars(cell.config),
        "totals": {"samples_per_s": 31415.9},
    }
    return make.records.record(**{**values, **changes})


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# ---------------------------------------------------------------------------------------------------- states


def test_a_run_under_the_name_of_another_cell_is_not_its_own(tmp_path):
    study = make_study()
    mine, other, *_ = study.cells()
    records.create_run(tmp_path / "tiny" / other.key, record(study, mine))

    entry = next(entry for entry in ledger.read_ledger(sweep_of(study, tmp_path)).entries if entry.key == other.key)

    assert ("failed", None) == (entry.state, entry.samples_per_s)
    assert mine.key in entry.reason and other.key in entry.reason
    assert other in ledger.read_ledger(sweep_of(study, tmp_path)).to_do(retry=True)


@pytest.mark.parametrize(
    "changes", [{"repeat": 7}, {"study": "large"}, {"partition": "gpu"}, {"requested": {"workers": 64}}]
)
def test_a_run_that_was_asked_for_otherwise_is_not_the_cell_s(tmp_path, changes):
    """The key was changed with the name, but not what the key stands for."""
    study = make_study()
    cell = study.cells()[0]
    records.create_run(tmp_path / "tiny" / cell.key, replace(record(study, cell), **changes))

    entry = ledger.read_ledger(sweep_of(study, tmp_path)).entries[0]

    assert "failed" == entry.state
    assert next(iter(changes)) in entry.reason or "workers" in entry.reason


def test_nothing_recorded_means_everything_is_missing(tmp_path, golden):
    study = make_study()

    found = ledger.read_ledger(sweep_of(study, tmp_path / "runs"))

    assert 10 == len(found.entries) == found.count("missing")
    assert study.cells() == found.to_do(retry=False)
    golden(found.summary(), "10 cells", "10 missing")
    assert not (tmp_path / "runs").exists(), "looking leaves no trace"


def test_each_state_is_read_from_the_run_directories(tmp_path, golden):
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

    found = ledger.read_ledger(sweep_of(study, tmp_path))

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
    golden(found.summary(), "10 cells", "2 running", "1 failed", "3 missing")
    assert [killed, interrupted, unrecorded, *missing] == found.to_do(retry=False)
    assert [failed, killed, interrupted, unrecorded, *missing] == found.to_do(retry=True)


def test_judging_a_cell_needs_no_files():
    study = make_study()
    done = record(study, study.cells()[0])

    assert ("missing", "") == ledger.judge(None, exists=False)
    assert ("incomplete", "ended before it wrote its record") == ledger.judge(None, exists=True)
    assert ("done", "") == ledger.judge(done, exists=True)


def test_runs_of_an_edited_study_file_are_named_and_not_taken_for_cells(tmp_path):
    study = make_study(repeats=1)
    edited = make_study(repeats=1, run=replace(study.run, batch=100))
    for cell in study.cells():
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))

    found = ledger.read_ledger(sweep_of(edited, tmp_path))

    assert 0 == found.count("done")
    assert sorted(cell.key for cell in study.cells()) == list(found.foreign)
    expected = (
        "study tiny: 0 of 5 cells done (5 missing); "
        "5 recorded runs are no cell of this study file (it was edited since?)"
    )
    assert expected == found.summary()


def test_repeats_beyond_those_of_the_file_are_named_as_such(tmp_path, golden):
    study = make_study(repeats=1)
    for cell in study.until(0.04).cells()[:20]:
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))

    found = ledger.read_ledger(sweep_of(study, tmp_path))

    assert (len(found.further), found.foreign) == (15, ())
    golden(found.summary(), "15 recorded", "--until")


def test_damaged_record_is_named(tmp_path, golden):
    study = make_study()
    folder = tmp_path / "tiny" / study.cells()[0].key
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")

    with golden.raises(RecordError, match=r"run\.json.*JSON"):
        ledger.read_ledger(sweep_of(study, tmp_path))


def test_lines_and_json_of_status(tmp_path, golden):
    study = make_study(repeats=1, runtimes=("horovod/mpi",))
    plain, wrapped, _ = study.cells()
    records.create_run(tmp_path / "tiny" / plain.key, record(study, plain))
    records.create_run(
        tmp_path / "tiny" / wrapped.key, record(study, wrapped, status="failed", reason="lost", totals={})
    )
    (tmp_path / "tiny" / lease.ATTEMPTS / f"{wrapped.key}-1").mkdir(parents=True)

    found = ledger.read_ledger(sweep_of(study, tmp_path))

    golden(found.lines(), "samples/s", "1 worker", "repeat 1", "31,416", "horovod/mpi", "2 workers")
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert {**dict.fromkeys(ledger.STATES, 0), "done": 1, "failed": 1, "missing": 1} == document["counts"]
    assert {
        "cell": wrapped.key,
        "name": "horovod/mpi, 1 worker, repeat 1",
        "runtime": "horovod/mpi",
        "workers": 1,
        "partition": "local",
        "batch": 75,
        "repeat": 0,
        "state": "failed",
        "samples_per_s": None,
        "reason": "lost",
        "host": None,
        "job": None,
        "earlier_attempts": 1,
    } == document["rows"][1]


def test_names_tell_apart_what_the_study_varies():
    study = make_study(varied={"batch": (75, 256), "horovod_defaults": (False, True)}, repeats=1)

    names = [cell.name for cell in study.cells()]

    assert len(names) == len(set(names)) == len(study.cells())
    assert "serial, 1 worker, batch 256, repeat 1" in names
    assert "horovod/mpi, 2 workers, batch 75, horovod_defaults true, repeat 1" in names


# ---------------------------------------------------------------------------------------------------- order


@given(seed=st.integers(0, 10**6), repeats=st.integers(1, 4))
def test_a_block_holds_every_cell_of_one_repeat_once(seed, repeats):
    cells = make_study(repeats=repeats).cells()

    ordered = slurm.blocks(cells, seed)

    assert list(range(repeats)) == [block[0].config.repeat for block in ordered]
    for repeat, block in enumerate(ordered):
        assert sorted(c.key for c in cells if c.config.repeat == repeat) == sorted(c.key for c in block)
    assert ordered == slurm.blocks(cells, seed), "the order is a function of the seed"


def test_blocks_are_shuffled_differently_and_by_the_seed():
    cells = make_study(repeats=3).cells()

    def orders(seed):
        return [[(c.runtime, c.placement.workers) for c in block] for block in slurm.blocks(cells, seed)]

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
    assert 2 == ledger.read_ledger(sweep_of(study, tmp_path)).entries[0].earlier_attempts
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


# ---------------------------------------------------------------------------------------------------- claims and jobs


@dataclass
class FakeJob:
    """What a JobBook says of a cell."""

    state: str
    reason: str = ""
    job_id: str = "12"
    restarts: int = 0
    left_out: bool = False


class FakeBook:
    """A JobBook that says the same of every cell."""

    def __init__(self, job: FakeJob) -> None:
        self.job = job

    def of(self, key: str) -> FakeJob:
        return self.job


def claim(state=None, reason="", *, job="", restarts=0, **holder) -> lease.Claim:
    """Return a claim by process 77 on node9, given back as `state` unless that is None."""
    who = replace(lease.this_process(), **{"host": "node9", "pid": 77, "job": job, "restarts": restarts, **holder})
    released = None if state is None else "2026-01-01T00:01:00+00:00"
    return lease.Claim(
        path=Path("x"), generation=1, holder=who, since="then", released=released, state=state or "", reason=reason
    )


def put_claim(directory: Path, key: str, content: lease.Claim, *, age_s: float = 0.0) -> None:
    """Write a claim into a study's folder, touched so long ago."""
    folder = directory / lease.CLAIMS
    folder.mkdir(parents=True, exist_ok=True)
    names = ("what", "since", "released", "state", "reason")
    path = folder / f"{key}.1"
    path.write_text(json.dumps({"holder": asdict(content.holder), **{n: getattr(content, n) for n in names}}))
    touched = lease.server_time(folder) - age_s
    os.utime(path, (touched, touched))


FAILED = {"status": "failed", "reason": "lost a worker", "totals": {}}
STOPPED = {"status": "stopped", "reason": "stopped by SIGTERM", "totals": {}}
ELSEWHERE = {"status": "running", "host": "node9", "pid": 77, "totals": {}}


@pytest.mark.parametrize(
    ("recorded", "claimed", "job", "state", "reason"),
    [
        # claims alone
        (None, claim(), None, "running", "process 77 on node9, starting"),
        (FAILED, claim(), None, "running", "process 77 on node9, starting"),
        (ELSEWHERE, claim(), None, "running", "process 77 on node9"),
        (ELSEWHERE, claim(job="12"), None, "running", "process 77 on node9 in job 12"),
        (FAILED, claim("failed", "x"), None, "failed", "lost a worker"),
        (FAILED, claim("timed out", "timed out after 900 s"), None, "timed out", "timed out after 900 s"),
        (STOPPED, claim("pre-empted"), None, "pre-empted", "stopped by SIGTERM"),
        (None, claim("cancelled", "cancelled by anna"), None, "cancelled", "cancelled by anna"),
        (ELSEWHERE, claim("interrupted"), None, "incomplete", "process 77 on node9 gave it back unfinished"),
        ({}, claim("cancelled"), None, "done", ""),
        # jobs
        (None, None, FakeJob("pending", "Priority"), "queued", "job 12 pending (Priority)"),
        (None, None, FakeJob("pending"), "queued", "job 12 pending"),
        (None, None, FakeJob("running"), "queued", "job 12 runs, waiting for its turn"),
        (FAILED, claim("failed"), FakeJob("pending"), "queued", "job 12 pending"),
        (FAILED, claim("failed"), FakeJob("running"), "queued", "job 12 runs, waiting for its turn"),
        (FAILED, claim("failed", job="12"), FakeJob("running"), "failed", "lost a worker"),
        (FAILED, claim("failed", job="12_3"), FakeJob("running"), "failed", "lost a worker"),
        (
            STOPPED,
            claim("pre-empted", job="12"),
            FakeJob("pending", "BeginTime"),
            "queued",
            "job 12 pending (BeginTime)",
        ),
        (STOPPED, claim("pre-empted", job="12"), FakeJob("running"), "queued", "job 12 runs, waiting for its turn"),
        (
            *(ELSEWHERE, claim("", job="12"), FakeJob("running", restarts=1)),
            *("queued", "job 12 runs, waiting for its turn"),
        ),
        ({}, None, FakeJob("running"), "done", ""),
        (None, None, FakeJob("node failed"), "missing", "job 12 ended: node failed before its turn"),
        (None, None, FakeJob("timed out"), "missing", "job 12 ended: timed out before its turn"),
        (None, None, FakeJob("cancelled", "by anna"), "cancelled", "job 12 ended: cancelled (by anna)"),
        (
            None,
            None,
            FakeJob("unknown", "it never wrote a word"),
            *("missing", "job 12 ended: it never wrote a word before its turn"),
        ),
        (
            None,
            None,
            FakeJob("running", left_out=True),
            *("missing", "job 12 left it out: too little of its time was left"),
        ),
        (ELSEWHERE, None, FakeJob("node failed"), "incomplete", "job 12 ended: node failed"),
        (ELSEWHERE, claim(job="12"), FakeJob("node failed"), "incomplete", "job 12 ended: node failed"),
        (ELSEWHERE, claim(job="12"), FakeJob("timed out"), "timed out", "job 12 ended: timed out"),
        (ELSEWHERE, claim(job="12"), FakeJob("pre-empted"), "pre-empted", "job 12 ended: pre-empted"),
        (ELSEWHERE, claim(job="12"), FakeJob("out of memory"), "failed", "job 12 ended: out of memory"),
        (STOPPED, claim("", job="12"), FakeJob("timed out"), "timed out", "job 12 ended: timed out"),
        (STOPPED, claim("stopped", job="12"), FakeJob("timed out"), "stopped", "stopped by SIGTERM"),
        (FAILED, claim("failed", job="12"), FakeJob("cancelled"), "failed", "lost a worker"),
        (FAILED, claim("failed", job="11"), FakeJob("cancelled"), "failed", "lost a worker"),
        (ELSEWHERE, claim(), FakeJob("cancelled", job_id="11"), "running", "process 77 on node9"),
    ],
)
def test_claims_and_jobs_say_what_no_record_knows(tmp_path, recorded, claimed, job, state, reason):
    study = make_study()
    cell = study.cells()[0]
    if recorded is not None:
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell, **recorded))
    if claimed is not None:
        put_claim(tmp_path / "tiny", cell.key, claimed)

    entry = ledger.read_ledger(sweep_of(study, tmp_path), jobs=FakeBook(job) if job else None).entries[0]
    alone = ledger.read_entry(tmp_path / "tiny", cell, jobs=FakeBook(job) if job else None)

    told, _, believed = entry.reason.partition("; taken for alive until ")
    assert (state, reason) == (entry.state, told)
    assert bool(believed) == (state == "running"), "who cannot be asked is believed until a time that is told"
    assert entry == alone


def test_nobody_is_asked_about_jobs_of_finished_cells(tmp_path):
    study = make_study()
    for cell in study.cells():
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))

    class Book:
        def of(self, key):
            raise AssertionError(key)

    assert 10 == ledger.read_ledger(sweep_of(study, tmp_path), jobs=Book()).count("done")


def test_claim_of_a_dead_process_of_this_host_is_no_claim(tmp_path):
    study = make_study()
    first, second, *_ = study.cells()
    gone = claim(host=os.uname().nodename, pid=dead_pid())
    put_claim(tmp_path / "tiny", first.key, gone)
    put_claim(tmp_path / "tiny", second.key, gone)
    records.create_run(tmp_path / "tiny" / second.key, record(study, second, status="running", pid=dead_pid()))

    found = ledger.read_ledger(sweep_of(study, tmp_path)).entries

    assert ("missing", f"{gone.holder} is gone") == (found[0].state, found[0].reason)
    assert ("incomplete", "its process is gone") == (found[1].state, found[1].reason)


def test_claim_of_this_very_process_says_nothing_new_to_it(tmp_path):
    study = make_study()
    cell = study.cells()[0]
    records.create_run(tmp_path / "tiny" / cell.key, record(study, cell, **STOPPED))
    with lease.acquire(tmp_path / "tiny" / lease.CLAIMS, cell.key, what="a cell"):
        assert "stopped" == ledger.read_entry(tmp_path / "tiny", cell).state


@pytest.mark.parametrize(("silent_for_s", "state"), [(None, "running"), (10.0, "running"), (601.0, "incomplete")])
def test_run_elsewhere_whose_runner_died_is_over_once_it_is_silent(tmp_path, monkeypatch, silent_for_s, state):
    study = make_study()
    cell = study.cells()[0]
    records.create_run(tmp_path / "tiny" / cell.key, record(study, cell, **{**ELSEWHERE, "host": "node8"}))
    put_claim(tmp_path / "tiny", cell.key, claim(boot="another"), age_s=500.0)

    def silent_s(path):
        if silent_for_s is None:
            raise RecordError("read-only")
        return silent_for_s

    monkeypatch.setattr(ledger, "silent_s", silent_s)
    entry = ledger.read_ledger(sweep_of(study, tmp_path)).entries[0]

    reasons = {
        "running": "process 77 on node8; process 77 on node9, who looked after it, is gone",
        "incomplete": "process 77 on node9 is gone, and nothing was written since",
    }
    told, _, end = entry.reason.partition("; taken for alive until ")
    assert (state, reasons[state]) == (entry.state, told)
    assert bool(end) == (silent_for_s == 10.0)


def test_reader_that_may_not_write_takes_nobody_for_dead(tmp_path, monkeypatch):
    study = make_study()
    cell = study.cells()[0]
    put_claim(tmp_path / "tiny", cell.key, claim(boot="another"), age_s=500.0)
    before = ledger.read_ledger(sweep_of(study, tmp_path)).entries[0].state

    def read_only(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lease, "server_time", read_only)

    assert ("missing", "running") == (before, ledger.read_ledger(sweep_of(study, tmp_path)).entries[0].state)


def test_what_is_taken_up_again_and_what_only_on_request(tmp_path):
    study = make_study()
    entries = [ledger.Entry(cell=cell, state=state) for cell, state in zip(study.cells(), ledger.STATES, strict=True)]
    found = ledger.Ledger(sweep=sweep_of(make_study(), tmp_path), entries=tuple(entries))
    state_of = {entry.cell.key: entry.state for entry in entries}

    again = [state_of[cell.key] for cell in found.to_do(retry=False)]
    wanted = [state_of[cell.key] for cell in found.to_do(retry=True)]

    assert ["pre-empted", "stopped", "incomplete", "missing"] == again
    assert ["failed", "timed out", "pre-empted", "cancelled", "stopped", "incomplete", "missing"] == wanted
    assert set(ledger.STATES) - {"done", "running", "queued"} == {*ledger.BY_ITSELF, *ledger.ON_RETRY}


@pytest.mark.parametrize(
    ("changes", "goes_on"),
    [(STOPPED, True), ({"status": "running", "pid": 2**22 + 1}, True), (FAILED, False), ({}, False)],
)
def test_what_goes_on_from_its_checkpoint(tmp_path, changes, goes_on):
    study = make_study()
    cell = study.cells()[0]
    records.create_run(tmp_path / cell.key, record(study, cell, **changes))
    found = records.read_run(tmp_path / cell.key)
    without = ledger.goes_on(found, tmp_path / cell.key)
    (tmp_path / cell.key / "checkpoints").mkdir()
    (tmp_path / cell.key / "checkpoints" / "step-000000005.pt").touch()

    assert (False, goes_on) == (without, ledger.goes_on(found, tmp_path / cell.key))


# ---------------------------------------------------------------------------------------------------- choosing


def test_cells_are_chosen_by_state_key_name_or_the_beginning_of_a_name(tmp_path):
    study = make_study()
    for cell in study.cells()[:3]:
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell, **FAILED))
    found = ledger.read_ledger(sweep_of(study, tmp_path))
    first = found.entries[0]

    def names(*wanted, states=("failed",)):
        return [entry.name for entry in found.select(states, wanted)]

    assert [entry.name for entry in found.entries[:3]] == names()
    assert [first.name] == names(first.key) == names(first.name) == names("serial, 1 worker", first.key)
    both = ["horovod/mpi, 1 worker, repeat 1", "horovod/mpi, 1 worker, repeat 2"]
    assert both == names("horovod/mpi, 1 worker", states=("failed", "missing"))
    assert [] == names(states=("timed out",))


def test_cell_that_is_none_and_cell_in_another_state_are_refused(tmp_path, golden):
    study = make_study()
    cell = study.cells()[0]
    records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))
    found = ledger.read_ledger(sweep_of(study, tmp_path))

    with pytest.raises(ConfigError) as unknown:
        found.select(("failed",), ["seriel, 1 worker, repeat 1"])
    with pytest.raises(ConfigError) as done:
        found.select(("timed out", "failed"), [cell.key])

    golden(str(unknown.value), "1 worker", "repeat 1")
    expected = f"'{cell.key}': is done, but only cells that are failed, timed out can be chosen here"
    assert expected == str(done.value)
    with pytest.raises(ConfigError, match="'' is not a cell"):
        found.select(("failed",), [""])


# ---------------------------------------------------------------------------------------------------- other code


def test_runs_of_other_code_are_told_from_those_of_an_edited_file(tmp_path, monkeypatch, golden):
    directory = tmp_path / "tiny"
    edited = make_study(run=StrainConfig(study="tiny", seconds=2), identity={"local": identity.identify()})
    records.create_run(directory / edited.cells()[0].key, record(edited, edited.cells()[0]))
    old = make_study(identity={"local": "unremembered0"})
    before = make_study(repeats=1)
    for cell in [old.cells()[0], *before.cells()]:
        records.create_run(directory / cell.key, record(before, cell))
    with monkeypatch.context() as patch:
        files = {**identity.code_files(), "train.py": "0" * 64}
        patch.setattr(identity, "code_files", lambda: files)
        patch.setattr(identity, "installed", lambda name: "2.12.0" if name == "torch" else None)
        identity.remember(directory)
        other = make_study(identity={"local": identity.identify()})
    for cell in other.cells()[:2]:
        records.create_run(directory / cell.key, record(other, cell))
    monkeypatch.setattr(identity, "environment", lambda partition=None: {"torch": "2.13.0"})
    monkeypatch.setattr(
        identity, "changes", lambda *known, changes=identity.changes: changes(*known).partition(" and ")[0]
    )
    study = make_study(identity={"local": identity.identify()})

    found = ledger.read_ledger(sweep_of(study, tmp_path))

    assert 10 == found.count("missing")
    assert sorted([edited.cells()[0].key, old.cells()[0].key]) == list(found.foreign)
    assert [(2, "other code (train.py changed since)"), (5, "code of which nothing is remembered")] == [
        (len(each.runs), each.why) for each in found.other_code
    ]
    golden(found.summary(), "10 cells", "10 missing", "2 recorded", "train.py", "5 recorded")
    assert frozenset() == found.current_directories()
    document = found.document()
    assert sorted(cell.key for cell in other.cells()[:2]) == sorted(document["other_code"][0]["runs"])


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, golden):
    study = make_study(repeats=1)
    first, second = (tmp_path / study.name / cell.key for cell in study.cells()[:2])
    first.parent.mkdir()
    first.symlink_to("nowhere")
    (first.parent / "stray").symlink_to("stray")
    (first.parent / "notes.txt").write_text("mine")
    second.mkdir()
    listed = os.listdir

    def refuse(path):  # tests may run as root, who may read everything
        if Path(path) == second:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    found = ledger.read_ledger(sweep_of(study, tmp_path))

    for path, why in ((first, "No such file"), (second, "Permission denied")):
        [entry] = [each for each in found.entries if each.key == path.name]
        assert (entry.state, why in entry.reason) == ("failed", True)
        assert ledger.read_entry(first.parent, entry.cell).state == "failed"
    assert list(found.unreadable) == list(found.document()["unreadable"]) == ["stray"]
    golden(found.summary())


@pytest.mark.parametrize("content", ['{"name": "npm", "version": "1"}', "[]", "no JSON", ""])
def test_a_record_of_another_program_is_told_and_is_no_run(tmp_path, content):
    study = make_study()
    (tmp_path / "tiny" / "npm").mkdir(parents=True)
    (tmp_path / "tiny" / "npm" / "run.json").write_text(content)

    found = ledger.read_ledger(sweep_of(study, tmp_path))

    assert (list(found.unreadable), found.foreign) == (["npm"], ())
    assert "npm holds no run that can be read: run.json" in found.summary()


def test_only_the_runs_of_present_cells_are_analysed(tmp_path):
    study = make_study(repeats=1)
    edited = make_study(repeats=1, run=replace(study.run, batch=100))
    for each in (study, edited):
        for cell in each.cells()[:2]:
            records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))
            (tmp_path / "tiny" / cell.key / "epochs.csv").write_text(
                ",".join(records.EPOCH_COLUMNS) + "\n" + ",".join("1" * len(records.EPOCH_COLUMNS)) + "\n"
            )

    only = ledger.read_ledger(sweep_of(edited, tmp_path)).current_directories()

    wanted = sorted(cell.key for cell in edited.cells()[:2])
    assert wanted == sorted(only)
    table, runs = records.recorded_runs([tmp_path / "tiny"], only)
    assert wanted == list(table["run"]) == list(records.epoch_table(tmp_path / "tiny", only=only)["run"])
    assert wanted == [run.name for run in runs]
    assert 4 == len(records.run_table(tmp_path / "tiny")) == len(records.epoch_table(tmp_path / "tiny"))
    with pytest.raises(RecordError, match="holds no runs"):
        records.run_table(tmp_path / "tiny", only=frozenset())


# ---------------------------------------------------------------------------------------------------- many cells


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark("ledger")


@pytest.fixture
def many(benchmark, tmp_path):
    """Return a study of 240 cells in two states."""
    (tmp_path / "many.yaml").write_text(benchmark.study_text(240))
    study = load_study(tmp_path / "many.yaml")
    benchmark.fake_runs(study.cells(), tmp_path / "many", lambda n: FAILED if n % 4 == 0 else {})
    return study


def test_finished_cells_are_read_once(tmp_path, many, monkeypatch):
    first = ledger.read_ledger(sweep_of(many, tmp_path))
    read = []
    monkeypatch.setattr(ledger, "read_run", lambda path: read.append(path.name) or records.read_run(path))

    again = ledger.read_ledger(sweep_of(many, tmp_path))

    assert (240, 180, 60) == (len(first.entries), first.count("done"), first.count("failed"))
    assert first == again
    assert sorted(entry.key for entry in first.entries if entry.state == "failed") == sorted(read)


def test_finished_cell_that_was_changed_is_read_again(tmp_path, many):
    entry = ledger.read_ledger(sweep_of(many, tmp_path)).entries[1]
    path = tmp_path / "many" / entry.key / "run.json"
    path.write_text(path.read_text().replace("31415.9", "27182.8"))  # as long as before

    assert 27182.8 == ledger.read_ledger(sweep_of(many, tmp_path)).entries[1].samples_per_s


def test_finished_cell_that_was_removed_is_missing(tmp_path, many):
    entry = ledger.read_ledger(sweep_of(many, tmp_path)).entries[1]
    (tmp_path / "many" / entry.key / "run.json").unlink()
    (tmp_path / "many" / entry.key).rmdir()

    assert "missing" == ledger.read_ledger(sweep_of(many, tmp_path)).entries[1].state


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 1}', '{"schema": 2, "runs": {}}', '{"schema": 1, "runs": 3}']
)
def test_damaged_cache_is_read_past(tmp_path, many, content):
    first = ledger.read_ledger(sweep_of(many, tmp_path))
    (tmp_path / "many" / ".ledger.json").write_text(content)

    assert first == ledger.read_ledger(sweep_of(many, tmp_path))
    assert 180 == len(json.loads((tmp_path / "many" / ".ledger.json").read_text())["runs"])


def test_damaged_lines_of_the_cache_are_read_past(tmp_path, many):
    first = ledger.read_ledger(sweep_of(many, tmp_path))
    path = tmp_path / "many" / ".ledger.json"
    content = json.loads(path.read_text())
    content["runs"] = {key: [None, 3, "x"][number % 3] for number, key in enumerate(content["runs"])}
    path.write_text(json.dumps(content))

    assert first == ledger.read_ledger(sweep_of(many, tmp_path))


def test_folder_that_cannot_be_written_has_a_status_too(tmp_path, many, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger, "write_file", full)

    assert 180 == ledger.read_ledger(sweep_of(many, tmp_path)).count("done")


def test_small_studies_leave_no_cache(tmp_path):
    study = make_study()
    for cell in study.cells():
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))
    ledger.read_ledger(sweep_of(study, tmp_path))

    assert sorted(cell.key for cell in study.cells()) == sorted(os.listdir(tmp_path / "tiny"))


def test_benchmark_measures_and_says_so(benchmark, tmp_path):
    result = {
        "measured": "2026-01-01",
        "machine": {"cpu_model": "CPU", "cores": 2, "python": "3.11", "load_1min": 0.5},
        "cells": 10_000,
        "record_bytes": 6000,
        "rounds": 3,
        "seconds": {"plan": [1.0, 2.0, 3.0], "status": [0.5, 0.7, 0.6], "status again": [0.25, 0.25, 0.5]},
    }

    page = benchmark.lines(result)

    assert [
        "| plan | 2.00 (1.00 - 3.00) | 5 |",
        "| status | 0.60 (0.50 - 0.70) | 2 |",
        "| status again | 0.25 (0.25 - 0.50) | 2 |",
    ] == page[-3:]
    assert 10_000 == len(_load(benchmark, tmp_path).cells())


def _load(benchmark, folder):
    (folder / "many.yaml").write_text(benchmark.study_text(10_000))
    return load_study(folder / "many.yaml")


# ---------------------------------------------------------------------------------------------------- shipped studies


def test_the_laptop_study_is_small(monkeypatch):
    monkeypatch.setattr("horovod_study.studies.study_file.available_cores", lambda: 2)
    study = load_study(EXPERIMENTS / "laptop.yaml")

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
    for key in (*StudyFile.model_fields, *adapter(sweep_form(STRAIN)).json_schema()["properties"], *RUNTIMES):
        assert f"`{key}`" in text, key


def test_of_a_large_study_status_lists_what_wants_attention_and_counts_the_rest(tmp_path, golden):
    study = make_study(repeats=60)
    cells = study.cells()
    for cell in cells[:3]:
        records.create_run(tmp_path / "tiny" / cell.key, record(study, cell))
    for cell in cells[3:50]:
        failed = record(study, cell, status="failed", reason="out of memory")
        records.create_run(tmp_path / "tiny" / cell.key, failed)
    lines = ledger.read_ledger(sweep_of(study, tmp_path)).lines()

    assert 300 == len(cells)
    assert 42 == len(lines)
    assert {"failed"} == {line.split()[0] for line in lines[1:-1]}
    golden(lines[-1], "3 done", "7 failed", "250 missing", "--json")
