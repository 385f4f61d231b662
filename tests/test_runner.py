"""The runner: cells run once each, whatever ends them is recorded with its reason, and nothing is left behind."""

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fake_trainer import fake_launch
from make.waiting import PATIENCE_S, until
from rich.console import Console

from horovod_study import records
from horovod_study.cluster import slurm
from horovod_study.cluster.launch import Site
from horovod_study.cluster.process import marked_processes, stop_marked
from horovod_study.config.documents import load_yaml
from horovod_study.config.partitions import Host, parse_hosts
from horovod_study.config.run import Placement
from horovod_study.errors import StudyError
from horovod_study.strain.options import StrainConfig, strain_config
from horovod_study.studies import attempt, lease, ledger, runner, study_file
from horovod_study.studies.attempt import Interruption, failure_reason
from horovod_study.studies.plan import Estimate, TimeLeft
from horovod_study.studies.study_file import StudyConfig, sweep_of
from horovod_study.text.progress import duration

COMMAND = "horovod-study run tiny.yaml"
TESTS = Path(__file__).parent
QUICK = {"smoke": False, "watch_load_s": 0.0}
slow = pytest.mark.slow
LIMIT_S = 8.0  # of cells: much longer than a trainer of these tests takes on a busy machine


def make_study(**changes) -> StudyConfig:
    values = {
        "name": "tiny",
        "run": StrainConfig(study="tiny", seconds=1),
        "workers": (1, 2),
        "runtimes": ("horovod/mpi",),
        "repeats": 2,
    }
    return StudyConfig(**{**values, **changes})


def run(study, runs, behaviour=None, console=None, **options):
    """Run `study` with fake trainers; return the result and what was printed, `tmp_path` written as RUNS."""
    console = console or Console(file=io.StringIO(), force_terminal=False)
    arguments = {"command": COMMAND, "launch": fake_launch(behaviour or {}), "cores": 2, "grace_s": 0.3, **QUICK}
    start = runner.show_plan if options.pop("only_plan", False) else runner.run_sweep
    result = start(sweep_of(study, runs), runner.RunOptions(**{**arguments, **options}), console=console)
    return result, console.file.getvalue().replace(str(runs), "RUNS")


def starts(runs) -> list[str]:
    path = runs / "tiny" / "starts.txt"
    return path.read_text().splitlines() if path.exists() else []


def states(result) -> list[str]:
    return [entry.state for entry in result.ledger.entries]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------------------------------------------- the way it goes


@pytest.mark.slow
def test_every_cell_runs_once_in_the_order_of_the_blocks(tmp_path):
    study = make_study()

    result, output = run(study, tmp_path)

    assert 0 == result.exit_code
    assert ["done"] * 6 == states(result)
    assert [cell.key for block in slurm.blocks(study.cells(), study.seed) for cell in block] == starts(tmp_path)
    lines = re.sub(r", \d+ s(;|$)", r", S s\1", output, flags=re.M).splitlines()
    lines = [re.sub(r"about .* left( \(a guess\))?", "T left", line) for line in lines]
    names = [[cell.name for cell in block] for block in slurm.blocks(study.cells(), study.seed)]
    rates = [f"{'2,000' if '2 workers' in name else '1,000'} samples/s, S s" for name in names[0] + names[1]]
    assert [
        "study tiny: 0 of 6 cells done (6 missing)",
        "order: one block per repeat, each shuffled with seed 1",
        "6 to run, T left; records in RUNS/tiny, output in RUNS/tiny/logs",
        *[
            f"[{number}/6] done {name}: {rate}" + ("; T left" if number < 6 else "")
            for number, (name, rate) in enumerate(zip(names[0] + names[1], rates, strict=True), 1)
        ],
        "study tiny: 6 of 6 cells done",
    ] == lines


@pytest.mark.slow
def test_second_run_finds_nothing_to_do(tmp_path, golden):
    run(make_study(), tmp_path)

    result, output = run(make_study(), tmp_path)

    assert 0 == result.exit_code
    assert 6 == len(starts(tmp_path))
    golden(output, "6 cells")


def test_cell_file_repeats_the_cell(tmp_path):
    study = make_study(repeats=1)

    run(study, tmp_path)

    for cell in study.cells():
        assert cell.config == strain_config(load_yaml(tmp_path / "tiny" / "cells" / f"{cell.key}.yaml"))
        log = (tmp_path / "tiny" / "logs" / f"{cell.key}.log").read_text()
        assert f"--config {tmp_path}/tiny/cells/{cell.key}.yaml --out {tmp_path}/tiny/{cell.key}\n" in log


def test_plan_runs_and_writes_nothing(tmp_path):
    result, output = run(make_study(), tmp_path, only_plan=True)

    assert 0 == result.exit_code
    assert [] == list(tmp_path.iterdir())
    assert "6 to run, about 36 s left (a guess); records in RUNS/tiny, output in RUNS/tiny/logs\n" in output


# ---------------------------------------------------------------------------------------------------- failures

FAILURES = [
    ("user error", "batch 75 is larger than the shard of 10 curves; use a smaller --batch"),
    ("traceback", "ValueError: the loss is not a number (exit code 1)"),
    ("killed", "ended by SIGKILL, having printed nothing"),
    ("own reason", "device lost in step 7"),
    (
        "no launcher",
        "/nonexistent/launcher cannot be started (No such file or directory); check it, or run `make setup` again",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "reason"), FAILURES)
def test_failed_cell_is_shown_with_its_reason_and_the_rest_goes_on(tmp_path, behaviour, reason):
    study = make_study(repeats=1)

    result, output = run(study, tmp_path, {"horovod/mpi/2/0": behaviour})

    assert 1 == result.exit_code
    assert ["done", "done", "failed"] == states(result)
    log = f"RUNS/tiny/logs/{study.cells()[2].key}.log"
    assert re.search(rf"failed horovod/mpi, 2 workers, repeat 1: {re.escape(reason)} \(after \d s; see {log}\)", output)
    assert output.endswith(
        "study tiny: 2 of 3 cells done (1 failed)\n"
        f"  failed: horovod/mpi, 2 workers, repeat 1: {reason}; see {log}\n"
        f"try the failed ones again with: {COMMAND}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["user error", "traceback"])  # before and after the trainer wrote its record
def test_failed_cell_is_in_the_run_table_with_what_the_report_needs(tmp_path, behaviour, golden):
    study = make_study(repeats=1)
    run(study, tmp_path, {"horovod/mpi/2/0": behaviour})

    row = records.run_table(tmp_path).query("status == 'failed'").iloc[0]

    expected = {"study": "tiny", "backend": "horovod", "transport": "mpi", "workers": 2, "batch": 75, "repeat": 0}
    if behaviour == "user error":
        expected |= {"reduction": "flat", "nodes": 1, "global_batch": 150, "precision": "fp32"}
        record = records.read_run(tmp_path / "tiny" / study.cells()[2].key)
        golden(record.effective["source"])
        assert record.finished is not None
    assert expected == {name: row[name] for name in expected}
    assert dict(FAILURES)[behaviour] == row["reason"]


def test_failed_cell_is_tried_again_and_the_old_attempt_is_kept(tmp_path, golden):
    study = make_study(repeats=1)
    cell = study.cells()[2]
    run(study, tmp_path, {"horovod/mpi/2/0": "traceback"})

    result, output = run(study, tmp_path)

    assert 0 == result.exit_code
    assert 4 == len(starts(tmp_path))
    golden.line(output, "3 cells", "1 failed")
    kept = tmp_path / "tiny" / ".attempts" / f"{cell.key}-1"
    golden(records.read_run(kept).reason, "ValueError", "code 1")
    assert "ValueError" in (kept / "output.log").read_text()


def test_without_retry_failed_cells_are_left_alone(tmp_path, golden):
    study = make_study(repeats=1)
    run(study, tmp_path, {"horovod/mpi/2/0": "traceback"})

    result, output = run(study, tmp_path, retry=False)

    assert 1 == result.exit_code
    assert 3 == len(starts(tmp_path))
    golden(output)


@pytest.mark.parametrize(
    "behaviour", [pytest.param("hang", marks=slow), pytest.param("hang before the record", marks=slow), "grandchild"]
)
def test_time_limit_ends_every_process_of_the_cell(tmp_path, behaviour):
    study = make_study(repeats=1, timeout_s=LIMIT_S)

    result, _ = run(study, tmp_path, {"horovod/mpi/1/0": behaviour})

    assert ["done", "timed out", "done"] == states(result)
    assert f"timed out after {LIMIT_S:g} s" == result.ledger.entries[1].reason
    assert [] == marked_processes(str(tmp_path / "tiny"))
    if behaviour == "grandchild":
        pid = int((tmp_path / "tiny" / study.cells()[1].key / "grandchild.pid").read_text())
        assert not alive(pid)


@pytest.mark.slow
def test_run_that_finished_before_the_time_limit_stays_done(tmp_path):
    study = make_study(repeats=1, timeout_s=LIMIT_S)

    result, _ = run(study, tmp_path, {"horovod/mpi/1/0": "hang after the end"})

    assert ["done", "done", "done"] == states(result)
    assert [] == marked_processes(str(tmp_path / "tiny"))


def test_more_workers_than_cores_are_refused_before_anything_runs(tmp_path, golden):
    with golden.raises(StudyError, match="2 workers.*1 core"):
        run(make_study(), tmp_path, cores=1)

    assert [] == starts(tmp_path)


def test_missing_launcher_is_found_before_anything_runs(tmp_path, golden):
    def launch(cell, config, out, *, site):
        raise StudyError("runtime horovod/mpi needs the program horovodrun")

    with golden.raises(StudyError):
        run(make_study(), tmp_path, launch=launch)

    assert [] == starts(tmp_path)


def held_elsewhere(directory, key) -> None:
    """Claim a cell as a runner on another host would have done it just now."""
    claims = directory / lease.CLAIMS
    claims.mkdir(parents=True, exist_ok=True)
    holder = {**asdict(lease.this_process()), "pid": 77, "host": "node9", "boot": "another"}
    content = {"holder": holder, "what": key, "since": "2026-01-01T00:00:00+00:00"}
    last = lease.latest(claims, key)
    (claims / f"{key}.{last.generation + 1 if last else 1}").write_text(json.dumps(content))


def test_cell_that_runs_elsewhere_is_left_alone(tmp_path):
    study = make_study(repeats=1)
    run(study, tmp_path)
    key = study.cells()[2].key
    manifest = tmp_path / "tiny" / key / "run.json"
    changes = {"status": "running", "host": "node9", "finished": None}
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changes}))
    held_elsewhere(tmp_path / "tiny", key)

    result, output = run(study, tmp_path)

    assert 1 == result.exit_code
    assert 3 == len(starts(tmp_path))
    pid = records.read_run(manifest.parent).pid
    assert f"repeat 1 runs already (process {pid} on node9; taken for alive until " in output


def test_cell_that_another_runner_took_meanwhile_is_left_alone(tmp_path, golden):
    """Planned while it was free, claimed when its turn comes."""
    study = make_study(repeats=1)
    order = slurm.blocks(study.cells(), study.seed)[0]
    launch = fake_launch({})

    def launch_and_claim(cell, config, out, **options):
        if (tmp_path / "tiny" / "cells" / f"{order[0].key}.yaml").exists() and cell == order[0]:
            held_elsewhere(tmp_path / "tiny", order[1].key)
        return launch(cell, config, out, **options)

    result, output = run(study, tmp_path, launch=launch_and_claim)

    assert [order[0].key, order[2].key] == starts(tmp_path)
    golden.line(output, order[1].name, "process 77", "node9")
    assert 1 == result.exit_code


# ---------------------------------------------------------------------------------------------------- interruptions

SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_runner import COMMAND, QUICK, make_study
from fake_trainer import fake_launch
from horovod_study import records
from horovod_study.studies import attempt, ledger, runner
from horovod_study.errors import StudyError
from horovod_study.studies.study_file import sweep_of

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def then_die(call):
    def wrapper(*arguments, **options):
        call(*arguments, **options)
        die()
    return wrapper

point = {point!r}
if point:
    when, name = point.split()
    module = next(each for each in (runner, attempt, ledger, records) if hasattr(each, name))
    setattr(module, name, die if when == "before" else then_die(getattr(module, name)))
try:
    launch = fake_launch({behaviour!r})
    options = runner.RunOptions(command=COMMAND, launch=launch, cores=2, grace_s=0.3, **QUICK)
    result = runner.run_sweep(sweep_of(make_study(**{study!r}), Path({runs!r})), options)
except StudyError as error:
    sys.exit(f"error: {{error}}")
sys.exit(result.exit_code)
"""


def start_runner(runs, behaviour=None, point="", study=None, grace_s=0.3, **options):
    code = SCRIPT.replace("grace_s=0.3", f"grace_s={grace_s}").format(
        tests=str(TESTS), runs=str(runs), behaviour=behaviour or {}, point=point, study=study or {}
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], **{**pipes, **options})


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow), pytest.param(signal.SIGHUP, marks=slow)]
)
def test_interrupted_run_leaves_no_process_and_says_how_to_go_on(tmp_path, number):
    study = make_study(repeats=1)
    order = slurm.blocks(study.cells(), study.seed)[0]
    second = order[1]
    name = f"{second.runtime}/{second.placement.workers}/0"
    process = start_runner(tmp_path, {name: "grandchild"}, study={"repeats": 1})
    until((tmp_path / "tiny" / second.key / "grandchild.pid").exists)

    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)

    assert 128 + number == process.returncode, output
    expected = [
        "study tiny: 1 of 3 cells done (1 incomplete, 1 missing)",
        f"interrupted in {second.name}; continue with: {COMMAND}",
    ]
    assert expected == output.splitlines()[-2:]
    assert [] == marked_processes(str(tmp_path / "tiny"))
    entry = ledger.read_entry(tmp_path / "tiny", second)
    assert ("incomplete", "interrupted") == (entry.state, entry.reason)

    result, _ = run(study, tmp_path)
    assert 0 == result.exit_code
    assert [order[0].key, second.key, second.key, order[2].key] == starts(tmp_path)


@pytest.mark.slow
def test_stopped_cell_with_a_checkpoint_is_resumed_and_one_without_starts_anew(tmp_path):
    study = make_study(repeats=1)
    plain, wrapped, _ = study.cells()
    behaviour = {"serial/1/0": "stopped with a checkpoint", "horovod/mpi/1/0": "stopped"}

    result, output = run(study, tmp_path, behaviour)

    assert 1 == result.exit_code
    assert ["stopped", "stopped", "done"] == states(result)
    assert output.endswith(
        "study tiny: 1 of 3 cells done (2 stopped)\n"
        "  stopped: serial, 1 worker, repeat 1: stopped by SIGUSR1\n"
        "  stopped: horovod/mpi, 1 worker, repeat 1: stopped by SIGUSR1\n"
        f"continue with: {COMMAND}\n"
    )

    log = ledger.log_path(tmp_path / "tiny", plain)
    before = log.read_text()
    result, output = run(study, tmp_path)

    assert 0 == result.exit_code
    assert sorted([f"{plain.key} resumed", wrapped.key]) == sorted(starts(tmp_path)[3:])
    assert before == (tmp_path / "tiny" / plain.key / "output-1.log").read_text(), "nothing is overwritten"
    assert "--resume" in log.read_text() and "--out" in ledger.log_path(tmp_path / "tiny", wrapped).read_text()
    assert not (tmp_path / "tiny" / ".attempts" / f"{plain.key}-1").exists()
    assert (tmp_path / "tiny" / ".attempts" / f"{wrapped.key}-1").exists()
    assert [("done", "resumed after step 5"), ("done", ""), ("done", "")] == [
        (entry.state, entry.reason) for entry in result.ledger.entries
    ]
    rows = (tmp_path / "tiny" / "attempts.csv").read_text().splitlines()
    assert 1 == sum(f'{plain.key},serial,1,"done, resumed"' in row for row in rows)
    assert 2 == len(ledger.past_durations(tmp_path / "tiny")), "half a cell says nothing about a whole one"


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["user error", "killed"])  # before and after the trainer took up the record
def test_resumed_cell_that_fails_is_shown_with_its_reason_and_goes_on_only_if_it_was_killed(tmp_path, behaviour):
    study = make_study(repeats=1)
    two = study.cells()[2]
    run(study, tmp_path, {"horovod/mpi/2/0": "stopped with a checkpoint"})

    result, _ = run(study, tmp_path, {"horovod/mpi/2/0": behaviour})

    assert ["done", "done", "failed"] == states(result)
    assert dict(FAILURES)[behaviour] == result.ledger.entries[2].reason
    attempts = records.read_run(tmp_path / "tiny" / two.key).attempts
    assert [(0, "stopped", "stopped by SIGUSR1"), (5, "failed", dict(FAILURES)[behaviour])] == [
        (each["from_step"], each["status"], each["reason"]) for each in attempts
    ]

    result, _ = run(study, tmp_path)

    assert ["done", "done", "done"] == states(result)
    last = f"{two.key} resumed" if behaviour == "killed" else two.key
    assert [two.key, f"{two.key} resumed", last] == [each for each in starts(tmp_path) if two.key in each]


@pytest.mark.slow
def test_interrupted_cell_is_asked_for_a_checkpoint_and_goes_on_from_it(tmp_path, golden):
    study = make_study(repeats=1)
    first = slurm.blocks(study.cells(), study.seed)[0][0]
    code = SCRIPT.replace("grace_s=0.3", "grace_s=20")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code.format(
                tests=str(TESTS),
                runs=str(tmp_path),
                behaviour={"*": "stops when asked"},
                point="",
                study={"repeats": 1},
            ),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "tiny" / first.key / "ready").exists)

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)

    assert 130 == process.returncode
    name = first.name
    golden(output.splitlines()[-3:], "3 cells", "1 stopped", "2 missing", name, "SIGUSR1", COMMAND)

    result, _ = run(study, tmp_path)
    assert 0 == result.exit_code
    assert f"{first.key} resumed" == starts(tmp_path)[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow)])
def test_second_signal_gives_no_grace(tmp_path, number):
    study = make_study(repeats=1)
    first = slurm.blocks(study.cells(), study.seed)[0][0]
    code = SCRIPT.replace("grace_s=0.3", "grace_s=60").format(
        tests=str(TESTS), runs=str(tmp_path), behaviour={"*": "grandchild"}, point="", study={"repeats": 1}
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    until((tmp_path / "tiny" / first.key / "grandchild.pid").exists)

    process.send_signal(number)
    time.sleep(1.0)
    assert process.poll() is None, "still waiting for the worker that is deaf to SIGTERM"
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)

    assert 128 + number == process.returncode
    assert [] == marked_processes(str(tmp_path / "tiny"))


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
@pytest.mark.parametrize("moment", ["ended while it starts", "ended after its start"])
@pytest.mark.slow
def test_a_restart_that_a_signal_ends_keeps_its_checkpoint(tmp_path, moment, end):
    """The signal goes to the trainer alone: the runner learns of it by its end."""
    study = make_study(repeats=1, workers=(1,), baselines=("plain",), runtimes=("serial",))
    [cell] = study.cells()
    checkpoint = tmp_path / "tiny" / cell.key / "checkpoints" / "step-000000005.pt"
    run(study, tmp_path, {"*": "stopped with checkpoint"})
    assert checkpoint.exists()
    run(study, tmp_path, {"*": f"{moment} {end}"})
    assert checkpoint.exists()

    result, _ = run(study, tmp_path)

    assert ["done"] == states(result)
    assert f"{cell.key} resumed" == (tmp_path / "tiny" / "starts.txt").read_text().splitlines()[-1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", sorted({"stop_marked", "require_free", "keep_log", "write_file", "note_attempt"}))
@pytest.mark.slow
def test_a_runner_that_is_killed_at_any_step_of_a_restart_keeps_the_checkpoint(tmp_path, step, when):
    study = make_study(repeats=1, workers=(1,), baselines=("plain",), runtimes=("serial",))
    [cell] = study.cells()
    run(study, tmp_path, {"*": "stopped with checkpoint"})
    module = {"write_file": attempt, "keep_log": ledger, "note_attempt": ledger}.get(step, runner)
    whole = getattr(module, step)

    class Killed(BaseException):
        pass

    def killed(*arguments, **options):
        if when == "after":
            whole(*arguments, **options)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, step, killed)
        run(study, tmp_path, {"*": "ended while it starts SIGTERM"})
    assert (tmp_path / "tiny" / cell.key / "checkpoints" / "step-000000005.pt").exists()

    result, _ = run(study, tmp_path)

    assert ["done"] == states(result)
    assert f"{cell.key} resumed" == (tmp_path / "tiny" / "starts.txt").read_text().splitlines()[-1]


def test_a_run_that_somebody_trains_in_a_cell_s_directory_is_left_alone(tmp_path):
    """`train --resume` beside `run`: without a claim on the cell, with one on the run."""
    study = make_study(repeats=1, workers=(1,), baselines=("plain",), runtimes=("serial",))
    [cell] = study.cells()
    out = tmp_path / "tiny" / cell.key
    run(study, tmp_path, {"*": "stopped with checkpoint"})
    before = (out / "run.json").read_bytes()

    with lease.hold_run(out):
        run(study, tmp_path)
        assert 1 == len((tmp_path / "tiny" / "starts.txt").read_text().splitlines())
        assert before == (out / "run.json").read_bytes()
    assert ["done"] == states(run(study, tmp_path)[0])


def test_a_run_of_another_cell_does_not_count_as_done(tmp_path):
    study = make_study(repeats=2, workers=(1,), baselines=("plain",), runtimes=("serial",))
    first, second = study.cells()
    run(study, tmp_path)
    shutil.rmtree(tmp_path / "tiny" / second.key)
    shutil.copytree(tmp_path / "tiny" / first.key, tmp_path / "tiny" / second.key)

    result, _ = run(study, tmp_path)

    assert ["done", "done"] == states(result)
    assert second.key == records.read_run(tmp_path / "tiny" / second.key).key
    assert first.key == records.read_run(tmp_path / "tiny" / ".attempts" / f"{second.key}-1").key


KILL_POINTS = [
    "before plan_study",
    "before set_aside",
    "before write_file",
    "before CellProcess",
    "after CellProcess",
    "before finish_run",
    "after finish_run",
    "before create_run",
    "after create_run",
    "before note_attempt",
    "after note_attempt",
    "before _conclude",
]


@pytest.mark.parametrize("point", KILL_POINTS)
@pytest.mark.slow
def test_killed_at_any_point_the_next_run_does_what_is_missing_and_only_that(tmp_path, point):
    """The first of three cells, in their order, crashes before and the second after its record is written."""
    study = make_study(repeats=1)
    order = slurm.blocks(study.cells(), study.seed)[0]
    names = [f"{cell.runtime}/{cell.placement.workers}/0" for cell in order]
    behaviour = {names[0]: "user error", names[1]: "traceback"}
    process = start_runner(tmp_path, behaviour, point, study={"repeats": 1})
    process.communicate(timeout=PATIENCE_S)
    assert -signal.SIGKILL == process.returncode
    stop_marked(str(tmp_path / "tiny"), grace_s=0)  # "after CellProcess" leaves the cell running: see the next test
    finished = [
        entry.cell.key for entry in ledger.read_ledger(sweep_of(study, tmp_path)).entries if entry.state == "done"
    ]

    result, _ = run(study, tmp_path)

    assert 0 == result.exit_code
    assert ["done"] * 3 == states(result)
    again = starts(tmp_path)
    assert all(again.count(key) == 1 for key in finished)
    assert {cell.key for cell in order} == set(again)
    assert 0 == run(study, tmp_path)[0].exit_code
    assert again == starts(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["hang before the record", "grandchild"])
def test_what_a_killed_runner_leaves_behind_is_stopped_by_the_next(tmp_path, behaviour):
    study = make_study(repeats=1)
    first = slurm.blocks(study.cells(), study.seed)[0][0]
    process = start_runner(tmp_path, {"*": behaviour}, study={"repeats": 1})
    until(lambda: len(starts(tmp_path)) == 1)
    if behaviour == "grandchild":
        until((tmp_path / "tiny" / first.key / "grandchild.pid").exists)
    process.kill()
    process.communicate()
    left = len(marked_processes(str(tmp_path / "tiny")))
    assert left == (2 if behaviour == "grandchild" else 1)

    result, output = run(study, tmp_path)

    assert output.startswith(f"stopped what an interrupted run of this study left behind ({left} processes)\n")
    assert 0 == result.exit_code
    assert 4 == len(starts(tmp_path))
    assert [] == marked_processes(str(tmp_path / "tiny"))


@pytest.mark.slow
def test_second_runner_is_refused_and_starts_nothing(tmp_path):
    process = start_runner(tmp_path, {"*": "hang"})
    until(lambda: len(starts(tmp_path)) == 1)

    with pytest.raises(StudyError, match=rf"the study is being run by process {process.pid} on "):
        run(make_study(), tmp_path)

    assert 1 == len(starts(tmp_path))
    assert process.poll() is None
    assert 1 == len(marked_processes(str(tmp_path / "tiny"))), "the first one's cell goes on"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)


# ---------------------------------------------------------------------------------------------------- claims


def released(runs, cell) -> tuple[str, str]:
    claim = lease.latest(runs / "tiny" / lease.CLAIMS, cell.key)
    assert claim.released is not None
    return claim.state, claim.reason


@pytest.mark.slow
def test_claims_are_given_back_with_how_the_cells_ended(tmp_path):
    study = make_study(repeats=1, timeout_s=LIMIT_S, runtimes=("horovod/mpi", "ddp/gloo"))
    behaviour = {"horovod/mpi/1/0": "traceback", "horovod/mpi/2/0": "hang", "ddp/gloo/1/0": "stopped"}

    run(study, tmp_path, behaviour)

    assert [
        ("done", ""),
        ("failed", "ValueError: the loss is not a number (exit code 1)"),
        ("timed out", f"timed out after {LIMIT_S:g} s"),
        ("stopped", "stopped by SIGUSR1"),
        ("done", ""),
    ] == [released(tmp_path, cell) for cell in study.cells()]


def test_cell_that_somebody_else_took_over_is_ended_and_its_directory_left_to_him(tmp_path, monkeypatch, golden):
    """As when this host was cut off for minutes, and another one has begun the cell meanwhile."""
    monkeypatch.setattr(runner, "_CHECK_S", 0.1)
    study = make_study(repeats=1, workers=(1,), baselines=("plain",), runtimes=("serial",))
    [cell] = study.cells()
    launch = fake_launch({"*": "hang"})
    directory = tmp_path / "tiny"

    def launch_and_lose(cell, config, out, **options):
        if config.name.startswith(cell.key):
            held_elsewhere(directory, cell.key)
        return launch(cell, config, out, **options)

    result, _ = run(study, tmp_path, launch=launch_and_lose)

    assert ["running"] == states(result), "the other one runs it"
    assert [] == marked_processes(str(directory))
    claim = lease.read_claim(directory / lease.CLAIMS, cell.key, 1)
    golden((claim.state, claim.reason), "interrupted")
    if (directory / cell.key / "run.json").exists():
        assert "running" == records.read_run(directory / cell.key).status, "nothing was written into his record"


def test_cells_that_would_not_end_in_the_time_left_are_not_begun(tmp_path, golden):
    study = make_study(repeats=1)
    console = Console(file=io.StringIO(), force_terminal=False)

    with Interruption("pre-empted") as stop:
        broken_off = runner.Grid(
            sweep=sweep_of(study, tmp_path),
            console=console,
            stop=stop,
            options=runner.RunOptions(command="", launch=fake_launch({})),
            lasts_s=5.0,  # less than the guess for horovod, 7 s, and more than that for serial, 4 s
        ).run(study.cells())

    assert "" == broken_off
    assert [study.cells()[0].key] == starts(tmp_path)
    golden.line(console.file.getvalue(), "horovod/mpi", "2 workers", "repeat 1")


@pytest.mark.slow
def test_pre_empted_cell_is_called_so_and_goes_on_from_its_checkpoint(tmp_path):
    study = make_study(repeats=1)
    cell = study.cells()[0]
    stop = Interruption("pre-empted")

    def launch(*arguments, **options):
        threading.Thread(target=stop_when_ready, daemon=True).start()
        return fake_launch({"*": "stops when asked"})(*arguments, **options)

    def stop_when_ready():
        until((tmp_path / "tiny" / cell.key / "ready").exists)
        stop.requested = True

    console = Console(file=io.StringIO(), force_terminal=False)
    how = {"options": runner.RunOptions(command="", launch=launch, grace_s=20)}
    broken_off = runner.Grid(sweep=sweep_of(study, tmp_path), console=console, stop=stop, **how).run(study.cells())

    assert "serial, 1 worker, repeat 1" == broken_off
    assert ("pre-empted", "stopped by SIGUSR1") == released(tmp_path, cell)
    assert "pre-empted" == ledger.read_entry(tmp_path / "tiny", cell).state
    result, _ = run(study, tmp_path)
    assert 0 == result.exit_code
    assert [cell.key, f"{cell.key} resumed"] == [each for each in starts(tmp_path) if cell.key in each]


# ---------------------------------------------------------------------------------------------------- cancel, retry


def cancel(study, runs, *which) -> tuple[int, str]:
    console = Console(file=io.StringIO(), force_terminal=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "GRACE_S", 0.3)
        return runner.cancel_cells(sweep_of(study, runs), which=which, console=console), console.file.getvalue()


@pytest.mark.slow
def test_cancelled_cell_writes_a_checkpoint_and_the_others_go_on(tmp_path, golden):
    study = make_study(repeats=1)
    first = slurm.blocks(study.cells(), study.seed)[0][0]
    name = first.name
    behaviour = {f"{first.runtime}/{first.placement.workers}/0": "stops when asked"}
    process = start_runner(tmp_path, behaviour, study={"repeats": 1}, grace_s=20)
    until((tmp_path / "tiny" / first.key / "ready").exists)

    assert (1, f"cancelled: {name}\n") == cancel(study, tmp_path, name)

    output, _ = process.communicate(timeout=PATIENCE_S)
    assert 1 == process.returncode, output
    assert f"  cancelled: {name}: stopped by SIGUSR1\n" in output
    golden.line(output, "3 cells", "1 cancelled")
    assert 3 == len(starts(tmp_path))

    result, _ = run(study, tmp_path, retry=False)
    assert 3 == len(starts(tmp_path)), "whoever cancelled it meant it"

    console = Console(file=io.StringIO())
    options = runner.RunOptions(command=COMMAND, launch=fake_launch({}), cores=2, **QUICK)
    result = runner.retry_cells(sweep_of(study, tmp_path), options, which=[name], console=console)
    assert 0 == result.exit_code
    assert f"{first.key} resumed" == starts(tmp_path)[-1]


@pytest.mark.slow
def test_cancelling_all_ends_the_runner_too(tmp_path):
    study = make_study()
    process = start_runner(tmp_path, {"*": "hang"})
    until(lambda: len(marked_processes(str(tmp_path / "tiny"))) == 1 and starts(tmp_path))

    count, output = cancel(study, tmp_path)

    assert (1, 1) == (count, output.count("cancelled: ")), output
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert 130 == process.returncode, output
    assert 1 == len(starts(tmp_path))
    assert [] == marked_processes(str(tmp_path / "tiny"))
    assert (0, "") == cancel(study, tmp_path)


def test_cancelled_before_its_turn_a_cell_is_left_out(tmp_path, golden):
    study = make_study(repeats=1)
    order = slurm.blocks(study.cells(), study.seed)[0]
    launch = fake_launch({})

    def launch_and_cancel(cell, config, out, **options):
        if cell == order[0] and config.name.startswith(cell.key):
            assert 1 == cancel(study, tmp_path, order[1].key)[0]
        return launch(cell, config, out, **options)

    result, output = run(study, tmp_path, launch=launch_and_cancel)

    assert [order[0].key, order[2].key] == starts(tmp_path)
    golden.line(output, order[1].name)
    assert 1 == result.ledger.count("cancelled")


@pytest.mark.slow
def test_cell_of_a_killed_runner_is_cancelled_with_its_processes(tmp_path, golden):
    study = make_study(repeats=1)
    process = start_runner(tmp_path, {"*": "hang"}, study={"repeats": 1})
    until(lambda: starts(tmp_path))
    process.kill()
    process.communicate()
    key = starts(tmp_path)[0]

    count, _ = cancel(study, tmp_path, key)

    assert 1 == count
    assert [] == marked_processes(str(tmp_path / "tiny"))
    entry = next(each for each in ledger.read_ledger(sweep_of(study, tmp_path)).entries if each.key == key)
    golden((entry.state, entry.reason), "cancelled")


def test_retry_takes_up_failed_cells_only_and_refuses_others(tmp_path, golden):
    study = make_study()
    run(make_study(repeats=1), tmp_path, {"horovod/mpi/2/0": "traceback"})
    before = starts(tmp_path)

    def retry(*which):
        options = runner.RunOptions(command=COMMAND, launch=fake_launch({}), cores=2, **QUICK)
        return runner.retry_cells(sweep_of(study, tmp_path), options, which=which, console=Console(file=io.StringIO()))

    with golden.raises(StudyError, match="1 worker.*repeat 1"):
        retry("serial, 1 worker, repeat 1")

    result = retry()

    assert [study.cells()[2].key] == starts(tmp_path)[len(before) :]
    assert (3, 3) == (result.ledger.count("done"), result.ledger.count("missing"))


# ---------------------------------------------------------------------------------------------------- before a sweep


def test_workers_share_cores_when_that_is_asked_for_and_it_is_said(tmp_path, golden):
    with golden.raises(StudyError, match="--oversubscribe"):
        run(make_study(repeats=1), tmp_path, cores=1)

    result, output = run(make_study(repeats=1), tmp_path, cores=1, oversubscribe=True)

    assert 0 == result.exit_code
    golden.line(output, "2 workers", "1 core")


def test_over_budget_is_refused_without_a_terminal_unless_told_yes(tmp_path):
    study = make_study(repeats=1, budget={"hours": 0.001})
    message = r"over the budget: 0.005 hours of 0.001; give --yes to run it all the same, or shrink the study"

    with pytest.raises(StudyError, match=message):
        run(study, tmp_path)

    assert [] == starts(tmp_path)
    assert 0 == run(study, tmp_path, yes=True)[0].exit_code


def test_days_without_a_budget_are_asked_about(tmp_path, golden):
    study = make_study(repeats=1, run=StrainConfig(study="tiny", seconds=86_400))

    with golden.raises(StudyError, match="3 cells.*72 h.*--yes"):
        run(study, tmp_path)


@pytest.mark.parametrize(("answer", "started"), [("y", 3), ("n", 0), ("", 0)])
def test_on_a_terminal_the_question_is_asked(tmp_path, monkeypatch, answer, started, golden):
    study = make_study(repeats=1, budget={"hours": 0.001})
    console = Console(file=io.StringIO(), force_terminal=True, force_interactive=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer + "\n" if answer else ""))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    if started:
        run(study, tmp_path, console=console)
    else:
        with golden.raises(StudyError):
            run(study, tmp_path, console=console)

    assert started == len(starts(tmp_path))
    assert "run it? [y/N]" in console.file.getvalue()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1:2,node2:2", [("node1", 2), ("node2", 2)]),
        ("a, b", [("a", 1), ("b", 1)]),
        ("10.0.0.1", [("10.0.0.1", 1)]),
    ],
)
def test_hosts_as_they_are_written(text, hosts):
    assert hosts == [(host.name, host.slots) for host in parse_hosts(text)]


@pytest.mark.parametrize("text", ["", "node1:", "node1:x", "node1,,node2", "a b", "-oProxyCommand=x"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(StudyError, match="host"):
        parse_hosts(text)


def test_given_hosts_take_the_place_of_this_machine():
    study = study_file.on_hosts(make_study(workers=(2,), repeats=1), parse_hosts("node1:1,node2:1"))

    [plain, alone, two] = study.cells()
    assert ["ssh"] == [partition.scheduler for partition in study.partitions.values()]
    assert ((1,), (1,), (1, 1)) == tuple(cell.placement.per_node for cell in (plain, alone, two))


def test_a_host_given_twice_is_refused():
    with pytest.raises(StudyError, match="partition local: hosts names a twice; give it once with all its slots: a:N"):
        study_file.on_hosts(make_study(workers=(2,), repeats=1), parse_hosts("a,b,a"))


# ---------------------------------------------------------------------------------------------------- placement


def ranks_on(*hosts) -> records.RunRecord:
    study = make_study(repeats=1)
    record = attempt.record_of(study.cells()[2], "then", "")
    return replace(record, effective={**record.effective, "ranks": [{"host": host} for host in hosts]})


TWO_EACH = Site(hosts=(Host(name="node1", slots=2), Host(name="node2", slots=2)))
PLACED = [
    (("node1", "node1", "node2", "node2"), TWO_EACH, ""),
    (("node1.cluster.org", "node1.cluster.org", "node2.cluster.org", "node2.cluster.org"), TWO_EACH, ""),
    (("gpu-a", "gpu-a", "gpu-b", "gpu-b"), TWO_EACH, ""),  # known to ssh by other names
    (("node1",) * 4, TWO_EACH, "node1: 4 instead of node1: 2, node2: 2"),
    (("gpu-a",) * 4, TWO_EACH, "gpu-a: 4 instead of node1: 2, node2: 2"),
    (("node1", "node2", "node2", "node2"), TWO_EACH, "node1: 1, node2: 3 instead of node1: 2, node2: 2"),
    (("node1", "node1", "node3", "node3"), TWO_EACH, "node1: 2, node3: 2 instead of node1: 2, node2: 2"),
    (("vm",) * 4, replace(TWO_EACH, allocation=True), ""),  # nodes that are all this one machine
    (("node1",) * 4, replace(TWO_EACH, allocation=True), "node1: 4 instead of node1: 2, node2: 2"),
    ((), TWO_EACH, ""),
    (("anything",) * 4, Site(), ""),
]


@pytest.mark.parametrize(("hosts", "site", "told"), PLACED)
def test_hosts_of_the_ranks_are_compared_with_the_placement(hosts, site, told):
    cell = replace(make_study().cells()[0], placement=Placement(workers=4, workers_per_node=2))

    wrong = attempt.misplaced(ranks_on(*hosts), cell, site)

    assert wrong == (
        told and f"its workers ran on other hosts than asked for: {told}; check the launcher and the hosts"
    )


def test_run_on_other_hosts_than_asked_for_has_failed(tmp_path, monkeypatch):
    study = make_study(repeats=1)
    cell = replace(study.cells()[2], placement=Placement(workers=2, workers_per_node=1))
    out = tmp_path / "tiny" / cell.key
    site = Site(hosts=(Host(name=os.uname().nodename, slots=1), Host(name="node2", slots=1)))
    asked = []
    monkeypatch.setattr(attempt, "stop_marked_on", lambda *arguments, **_: asked.append(arguments))
    runner.Grid(
        sweep=sweep_of(study, tmp_path),
        console=Console(file=io.StringIO()),
        stop=Interruption(),
        options=runner.RunOptions(command="", launch=fake_launch({"*": "tells its ranks"})),
        site_of=lambda cell: site,
    ).run([cell])

    record = records.read_run(out)
    assert "failed" == record.status
    assert f"its workers ran on other hosts than asked for: {os.uname().nodename}: 2 instead of" in record.reason
    assert [] == asked, "it ended by itself"


# ---------------------------------------------------------------------------------------------------- on a terminal


@pytest.mark.slow
def test_terminal_gets_a_line_per_cell_and_what_runs(tmp_path):
    """A real pseudo-terminal: lines stay, the one below them is redrawn and gone at the end."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONUTF8": "1"}
    environ.pop("NO_COLOR", None)
    behaviour = {"horovod/mpi/2/0": "traceback"}
    process = start_runner(tmp_path, behaviour, study={"repeats": 1}, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    raw = b""
    while True:
        try:
            raw += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert 1 == process.wait(timeout=PATIENCE_S)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", raw.decode())

    lines = re.sub(r"\s+", " ", text)

    assert re.search(r"\[\d/3\] done serial, 1 worker, repeat 1: 1,000 samples/s, \d s", lines)
    assert re.search(r"\[\d/3\] failed horovod/mpi, 2 workers, repeat 1: .*ValueError.* \(after \d s; see ", lines)
    assert re.search(r"[012] of 3 ended, \d s, about \d+ s left \(a guess\); running horovod/mpi, 1 worker, rep", text)
    assert text.rstrip().splitlines()[-1].startswith("try the failed ones again with: ")


# ---------------------------------------------------------------------------------------------------- time left


def test_time_left_is_a_guess_until_every_runtime_has_been_seen():
    plain, wrapped, two = make_study(repeats=1).cells()
    estimate = Estimate()
    assert TimeLeft(seconds=4 + 7 + 7, guess=True) == estimate.left([plain, wrapped, two])

    estimate.add(plain.runtime, plain.placement.workers, 10.0)
    assert TimeLeft(seconds=10 + 7 + 7, guess=True) == estimate.left([plain, wrapped, two])

    estimate.add(wrapped.runtime, wrapped.placement.workers, 20.0)
    assert TimeLeft(seconds=40.0, guess=False) == estimate.left([wrapped, two])
    estimate.add(two.runtime, two.placement.workers, 30.0)
    assert TimeLeft(seconds=50.0, guess=False) == estimate.left([wrapped, two])
    assert TimeLeft(seconds=38.0, guess=False) == estimate.left([wrapped, two], running_s=12.0)
    assert TimeLeft(seconds=30.0, guess=False) == estimate.left([wrapped, two], running_s=99.0)
    assert TimeLeft(seconds=0.0, guess=False) == estimate.left([])


def test_without_a_budget_in_seconds_nothing_is_known_before_the_first_cell(golden):
    plain, wrapped, _ = make_study(repeats=1, run=StrainConfig(epochs=3)).cells()
    estimate = Estimate()

    golden(str(estimate.left([plain, wrapped])))
    estimate.add(plain.runtime, plain.placement.workers, 7.0)
    assert "about 7 s left (a guess)" == str(estimate.left([wrapped]))


def test_estimate_of_a_resumed_study_rests_on_its_finished_cells(tmp_path):
    study = make_study(repeats=1)
    run(study, tmp_path)

    _, output = run(make_study(repeats=2), tmp_path, only_plan=True)

    assert re.search(r"3 to run, about \d s left; records", output)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (7199, "2 h")]
)
def test_durations_read_well(seconds, text):
    assert text == duration(seconds)


# ---------------------------------------------------------------------------------------------------- reasons

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    {call}
{error}"""


def tagged(tag: str, text: str) -> str:
    return "\n".join(tag + line for line in text.splitlines())


def test_reason_of_a_worker_comes_before_what_its_peers_and_launcher_say(golden):
    lost = "horovod.common.exceptions.HorovodInternalError: Connection closed by peer"
    log = "\n".join(
        [
            "$ horovodrun --gloo -np 2 python -m horovod_study.train",
            tagged("[0]<stderr>:", TRACEBACK.format(call="synchronize()", error=lost)),
            tagged("[1]<stderr>:", TRACEBACK.format(call="step()", error="RuntimeError: out of memory")),
            TRACEBACK.format(
                call="run()", error="RuntimeError: Horovod detected that one or more processes exited with non-zero"
            ),
        ]
    )

    golden(failure_reason(log, 1), "RuntimeError", "code 1")


def test_reason_of_chained_tracebacks_is_the_last_of_the_chain_and_ranks_do_not_mix(golden):
    first = TRACEBACK.format(call="open()", error="FileNotFoundError: no such file")
    second = TRACEBACK.format(call="load()", error="DataLost: the data set is gone")
    chain = f"{first}\n\nDuring handling of the above exception, another exception occurred:\n\n{second}"
    lines = tagged("[1,0]<stderr>:", chain).splitlines()
    others = tagged("[1,1]<stderr>:", "step 1\nstep 2\nstep 3").splitlines()
    mixed = "\n".join(line for pair in zip(lines, others * 9, strict=False) for line in pair)

    golden(failure_reason(mixed, 1), "DataLost", "code 1")


RULE = "-" * 74
TOLD_TO_END = "error: ended by signal 15 (SIGTERM); start it again"
CRASH = TRACEBACK.format(call="f()", error="Crash: boom")
NO_SLOTS = "There are not enough slots available in the system to satisfy the 4\nslots that were requested:\n\n  python"
REASONS = [
    ("[1,1]<stderr>:error: the data set is truncated; make it again\n", 2, "the data set is truncated; make it again"),
    (f"{TOLD_TO_END}\n{CRASH}", 1, "Crash: boom (exit code 1)"),
    (
        f"[1,0]<stderr>:{TOLD_TO_END}\n{RULE}\nmpirun noticed that process rank 1 with PID 0 on node vm exited on "
        f"signal 9 (Killed).\n{RULE}",
        137,
        "rank 1 was killed by SIGKILL",
    ),
    (
        f"[0]<stderr>:{CRASH.replace('Crash', 'HorovodInternalError')}\n".replace("\n", "\n[0]<stderr>:")
        + "\nProcess 1 exit with status code 139.\nProcess 0 exit with status code 143.\n",
        1,
        "rank 1 was killed by SIGSEGV",
    ),
    (
        "Process 1 exit with status code 255.\nTerminating remaining workers after failure of Process 1.\n"
        "Process 0 exit with status code 137.\nhorovodrun: process 1 ended first, with exit code 255\n",
        1,
        "rank 1 was killed on its host, or the connection to it broke (exit code 255 of ssh)",
    ),
    (
        "Process 0 exit with status code 143.\nTerminating remaining workers after failure of Process 1.\n"
        "Process 1 exit with status code 137.\n",
        1,
        "rank 1 was killed by SIGKILL",
    ),
    ("Root Cause:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 77)\n", 1, "rank 1 was killed by SIGKILL"),
    ("step 1\nerror: ended by signal 15", -9, "ended by SIGKILL; the last line was: error: ended by signal 15"),
    (f"{RULE}\n{NO_SLOTS}\n{RULE}\n", 1, f"{' '.join(NO_SLOTS.split())} (exit code 1)"),
    ("step 1\rstep 2\r", 3, "step 2 (exit code 3)"),
    ("$ python\n", -9, "ended by SIGKILL, having printed nothing"),
    ("$ python\nbye\n", 0, "bye (exit code 0 without a finished record)"),
    ("", -99, "ended by signal 99, having printed nothing"),
    ("x" * 400, 1, "x" * 297 + "..."),
]


@pytest.mark.parametrize(("log", "exit_code", "reason"), REASONS)
def test_reason_from_what_was_printed(log, exit_code, reason):
    assert reason == failure_reason(log, exit_code)


def test_retry_with_nothing_to_retry_says_so_once(tmp_path, golden):
    output = io.StringIO()
    options = runner.RunOptions(command=COMMAND, launch=fake_launch({}), cores=2, **QUICK)
    result = runner.retry_cells(sweep_of(make_study(), tmp_path), options, console=Console(file=output, width=200))

    assert 1 == result.exit_code
    assert 1 == output.getvalue().count("study tiny")
    golden(output.getvalue())
