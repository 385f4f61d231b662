"""`status --watch`: what is shown of a study and of a run on a terminal and in a log, and when it ends."""

import io
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from test_ledger import FAILED, FakeBook, FakeJob, claim, make_study, put_claim, record

from horovod_study import records
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import ledger
from horovod_study.studies import plan as watch
from horovod_study.studies.plan import together
from horovod_study.studies.study_file import sweep_of

RUNNING = {"status": "running", "totals": {}}


def write_steps(directory: Path, steps: int, *, epoch: int = 0, step_s: float = 0.01) -> Path:
    """Write the rows of `steps` steps in batches of 100, as a recorder does."""
    path = directory / "steps-00000.arrows"
    schema = records.step_schema()
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_stream(stream, schema) as writer:
        for first in range(0, steps, 100):
            rows = range(first, min(steps, first + 100))
            values = {"step": list(rows), "epoch": [epoch] * len(rows), "begin_s": [row * step_s for row in rows]}
            values["step_s"] = [step_s] * len(rows)
            columns = [pa.array(values.get(each.name, [0] * len(rows)), each.type) for each in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return path


def console(width: int = 120, *, terminal: bool = False, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=height, color_system=None)


def follow(study, runs_dir, out) -> int:
    return watch.watch(partial(watch.study_view, sweep_of(study, runs_dir)), out)


@pytest.fixture
def study():
    """Return a study of 12 cells of 1050 steps each."""
    return make_study(run=StrainConfig(study="tiny", steps=1000, warmup_steps=50), repeats=2, varied={"batch": (75,)})


@pytest.fixture
def mixed(tmp_path, study, monkeypatch):
    """Make a study with cells in many states; return what looks at it."""
    directory, cells = tmp_path / "tiny", study.cells()
    records.create_run(directory / cells[0].key, record(study, cells[0]))
    for cell, steps in ((cells[1], 525), (cells[2], 0)):
        records.create_run(directory / cell.key, record(study, cell, **RUNNING))
        write_steps(directory / cell.key, steps)
    records.create_run(directory / cells[3].key, record(study, cells[3], **{**FAILED, "reason": "lost " * 40}))
    put_claim(directory, cells[4].key, claim("cancelled", "cancelled by anna"))
    put_claim(directory, cells[5].key, claim(job="4711"))

    class Book:
        def of(self, key):
            waiting = [cell.key for cell in cells[6:]]
            return FakeJob("pending", "Priority", job_id="4712") if key in waiting else None

    monkeypatch.setattr(ledger, "JobBook", lambda directory: Book())
    (directory / ".jobs").mkdir()
    return partial(watch.study_view, sweep_of(study, tmp_path))


# ---------------------------------------------------------------------------------------------------- how far


@pytest.mark.parametrize(
    ("asked", "at", "share", "text"),
    [
        ({"steps": 1000, "warmup_steps": 50}, (525, 0, 5.0), 0.5, "525 of 1,050 steps"),
        ({"steps": 1000, "warmup_steps": 50}, (2000, 0, 5.0), 1.0, "2,000 of 1,050 steps"),
        ({"seconds": 200.0, "warmup_steps": 50}, (525, 0, 50.0), 0.25, "50 s of 3 min 20 s"),
        ({"seconds": 20.0}, (525, 0, 21.5), 1.0, "20 s of 20 s"),
        ({"epochs": 4, "warmup_steps": 10}, (160, 1, 5.0), 0.375, "epoch 2 of 4"),
        ({"epochs": 4, "warmup_steps": 10}, (410, 3, 5.0), 1.0, "epoch 4 of 4"),
        ({}, (1525, 0, 5.0), None, "1,525 steps"),
        ({"steps": 1000}, None, 0.0, "starting"),
    ],
)
def test_share_is_that_of_the_budget(study, asked, at, share, text):
    cell = study.cells()[0]
    run = record(study, cell, requested=asked, effective={"train_samples": 1000, "global_batch": 10}, **RUNNING)

    assert (share, text) == watch.how_far(run, at)


def test_epochs_are_counted_where_nothing_else_is_known(study):
    run = record(study, study.cells()[0], requested={"epochs": 4}, **RUNNING)

    assert (0.25, "epoch 2 of 4") == watch.how_far(run, (99, 1, 5.0))


def test_last_step_is_that_of_the_last_whole_batch(tmp_path):
    path = write_steps(tmp_path, 250, epoch=3, step_s=0.5)
    whole = path.read_bytes()

    assert (250, 3, 125.0) == records.last_step(tmp_path)
    path.write_bytes(whole[: len(whole) - 2000])
    assert (200, 3, 100.0) == records.last_step(tmp_path)
    write_steps(tmp_path, 0)
    assert records.last_step(tmp_path) is None
    path.write_bytes(b"")
    assert records.last_step(tmp_path) is None
    path.write_bytes(b"nonsense")
    assert records.last_step(tmp_path) is None
    assert records.last_step(tmp_path, rank=1) is None


def test_looking_at_a_run_imports_no_pandas(tmp_path):
    write_steps(tmp_path, 10)
    program = (
        "import sys; from pathlib import Path; from horovod_study.records import last_step\n"
        "assert last_step(Path(sys.argv[1])) and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


# --------------------------------------------------------------------------------------------------- what is shown


def test_cells_their_progress_and_what_went_wrong_are_shown(mixed):
    view = mixed()
    rows = {" ".join(line.split()) for line in view.lines}

    assert "study tiny: 1 of 10 cells done (3 running, 4 queued, 1 failed, 1 cancelled)" in view.lines
    (told,) = [line for line in view.lines if "3 of 10 ended" in line]
    assert "left" in told and "process" in view.lines[2]
    for begin, end in (
        ("running horovod/mpi, 1 worker, batch 75, repeat 1 50 %, 525 of 1,050 steps; process", os.uname().nodename),
        ("running horovod/mpi, 2 workers, batch 75, repeat 1 0 %, starting; process", os.uname().nodename),
        ("running serial, 1 worker, batch 75, repeat 2", "job 4711"),
        ("queued", "job 4712 pending (Priority)"),
        ("failed horovod/gloo, 1 worker, batch 75, repeat 1", "lost lost"),
        ("cancelled horovod/gloo, 2 workers, batch 75, repeat 1", "cancelled by anna"),
    ):
        assert any(row.startswith(begin) and end in row for row in rows), begin


def test_lines_are_cut_at_the_width_of_the_terminal(mixed, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    Days(monkeypatch)
    out = console(80, terminal=True)

    assert watch.watch(mixed, out) == 0
    assert "…" in out.file.getvalue() and "lost " * 20 not in out.file.getvalue()


# ---------------------------------------------------------------------------------------------------- time left


def test_time_left_is_shared_by_what_runs_at_a_time(tmp_path, study):
    """A run that is half through goes on as before; of one that has begun the rest of the usual time is left."""
    directory, cells = tmp_path / "tiny", study.cells()
    directory.mkdir()
    for cell in cells[:3]:
        ledger.note_attempt(directory, cell, started="t", state="done", seconds=60.0, exit_code=0, reason="")
    estimate = watch.Estimate(ledger.past_durations(directory))
    for cell, steps in ((cells[0], 525), (cells[1], 20)):
        records.create_run(directory / cell.key, record(study, cell, **RUNNING))
        write_steps(directory / cell.key, steps, step_s=60 / 1050)
    entries = {each.key: each for each in ledger.read_ledger(sweep_of(study, tmp_path)).entries}
    half, begun = (watch._going(directory, entries[cell.key], estimate)[1] for cell in cells[:2])

    def left_s(waiting, *going):
        return together([*going, *map(estimate.of, waiting)], lanes=max(1, len(going))).seconds

    rest_s = 60.0 - 20 * 60 / 1050
    assert 30.0 == pytest.approx(left_s([], half))
    assert rest_s == pytest.approx(left_s([], begun))
    assert 30.0 + 120.0 == pytest.approx(left_s(cells[1:3], half))
    assert (30.0 + rest_s + 120.0) / 2 == pytest.approx(left_s(cells[1:3], half, begun))
    assert rest_s == pytest.approx(left_s([], half, begun))
    assert 120.0 == left_s(cells[1:3])
    assert together([watch.Estimate().of(cells[0]), half]).seconds is None


# ---------------------------------------------------------------------------------------------------- watching


class Days:
    """Stands in for the sleep between two looks: each calls the next function, and the last is Ctrl-C."""

    def __init__(self, monkeypatch, *nights) -> None:
        self.nights, self.slept_s = list(nights), []
        monkeypatch.setattr(watch, "sleep", self)

    def __call__(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if not self.nights:
            raise KeyboardInterrupt
        self.nights.pop(0)()


@pytest.mark.parametrize("terminal", [False, True])
def test_it_ends_when_nothing_runs_or_waits(tmp_path, study, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal gets lines, whatever this test runs in
    out = console(terminal=terminal)

    assert 0 == follow(study, tmp_path, out)

    shown = out.file.getvalue()
    assert "study tiny: 0 of 10 cells done (10 missing)" in shown and "nothing runs and nothing is queued" in shown


def test_log_says_what_has_changed_and_nothing_else(tmp_path, study, monkeypatch, golden):
    directory, cells = tmp_path / "tiny", study.cells()
    for cell in cells[:2]:
        records.create_run(directory / cell.key, record(study, cell, **RUNNING))

    def end(cell, **changes):
        run = records.read_run(directory / cell.key)
        records.finish_run(directory / cell.key, run, **{"finished": "now", "totals": {}, **changes})

    Days(
        monkeypatch,
        lambda: None,
        lambda: end(cells[0], status="failed", reason="lost [worker] 1"),
        lambda: end(cells[1], status="done"),
    )
    out = console()

    assert 0 == follow(study, tmp_path, out)

    golden(
        out.file.getvalue().splitlines(),
        "10 cells",
        "2 running",
        "8 missing",
        "1 worker",
        "batch 75",
        "repeat 1",
        "1 running",
        "1 failed",
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_leaves_quietly(tmp_path, study, monkeypatch, terminal):
    records.create_run(tmp_path / "tiny" / study.cells()[0].key, record(study, study.cells()[0], **RUNNING))
    days = Days(monkeypatch)
    out = console(terminal=terminal)

    assert 0 == follow(study, tmp_path, out)

    assert 1 == len(days.slept_s) and 2.0 <= days.slept_s[0]
    assert "Traceback" not in out.file.getvalue() and "nothing runs" not in out.file.getvalue()


def test_between_two_cells_of_a_runner_it_stays(tmp_path, study, monkeypatch):
    """A runner holds something of the study all the time, also when no cell of its runs."""
    directory = tmp_path / "tiny"
    put_claim(directory, "host-node9", claim())
    days = Days(monkeypatch, lambda: put_claim(directory, "host-node9", claim("done")))
    out = console()

    assert 0 == follow(study, tmp_path, out)

    assert 1 == len(days.slept_s)
    assert out.file.getvalue().startswith("study tiny: 0 of 10 cells done (10 missing)\n")


def test_runner_that_died_is_not_waited_for(tmp_path, study, monkeypatch):
    put_claim(tmp_path / "tiny", "host-node9", claim(), age_s=500.0)
    days = Days(monkeypatch)

    assert 0 == follow(study, tmp_path, console())
    assert [] == days.slept_s


def test_scheduler_is_not_asked_all_the_time(mixed, monkeypatch):
    days = Days(monkeypatch, lambda: None)

    watch.watch(mixed, console())

    assert len(days.slept_s) == 2 and min(days.slept_s) >= 15.0


def test_reading_takes_a_small_share_of_a_core(tmp_path, study, monkeypatch):
    """With thousands of cells a look takes long: they are further apart then."""
    times = iter([0.0, 1.0])
    monkeypatch.setattr(watch, "now", lambda: next(times))
    days = Days(monkeypatch)

    monkeypatch.setattr(ledger, "JobBook", lambda directory: FakeBook(FakeJob("pending")))
    (tmp_path / study.name / ".jobs").mkdir(parents=True, exist_ok=True)
    follow(study, tmp_path, console())

    assert [20.0] == days.slept_s
