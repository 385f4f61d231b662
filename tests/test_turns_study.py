"""Studies whose cells alternate: every one is run and kept as without turns, whatever ends them."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import make.records
import pytest
from make.waiting import until
from make.wording import Golden
from rich.console import Console
from test_runner import make_study, run, states

from horovod_study.analysis.audit import RULES, recount
from horovod_study.cluster.process import marked_processes
from horovod_study.config.workload import workload
from horovod_study.errors import ConfigError, RecordError
from horovod_study.records import (
    TurnSlice,
    create_run,
    finish_run,
    read_run,
    read_steps,
    read_turns,
    recorded_run,
    run_side_files,
)
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import ledger, turns
from horovod_study.studies.ledger import read_ledger
from horovod_study.studies.plan import plan_study
from horovod_study.studies.runner import RunOptions, run_sweep
from horovod_study.studies.study_file import load_study, sweep_of
from horovod_study.studies.turns import SPARE, WORKER_MB, AlternatingCells, alternating, groups, worker_mb

STEPS = 600


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.05)
    monkeypatch.setattr(turns, "SLICE_S", (0.1, 0.1))


def study(**changes: Any) -> Any:
    return make_study(**{"turns": True, "run": StrainConfig(study="tiny", steps=STEPS), **changes})


def slices(runs: Path) -> list[TurnSlice]:
    return sorted(read_turns(runs / "tiny"), key=lambda each: (each.launch, each.begin_s))


@pytest.mark.slow
def test_all_cells_of_a_repeat_alternate_and_every_slice_is_kept(tmp_path: Path) -> None:
    seen: list[str] = []

    def look() -> None:  # as `status` does, in another program
        while not any("waits for its turn" in each for each in seen) and not over.wait(0.02):
            for path in list((tmp_path / "tiny").glob("*/run.json")):
                with suppress(RecordError):
                    seen.append(ledger._where(read_run(path.parent)))

    over = threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    result, _ = run(study(), tmp_path, {"*": "turns"})
    over.set()
    thread.join()
    found = slices(tmp_path)

    assert states(result) == ["done"] * 6
    assert {(each.block, each.launch) for each in found} == {("local", 0), ("local", 1)}
    for entry in result.ledger.entries:
        own = [each for each in found if each.run == entry.key]
        assert {each.launch for each in own} == {entry.cell.config.repeat}
        rounds = list(dict.fromkeys(each.round for each in own))  # a slice may have been made again
        assert rounds == list(range(len(rounds))) and len(rounds) > 2
        assert STEPS / 2 < sum(each.steps for each in own) < STEPS  # all but the warm-up
    assert any("waits for its turn" in each for each in seen)
    for one, other in pairwise(found):
        assert one.launch != other.launch or one.end_s <= other.begin_s + 1e-3
    assert marked_processes(str(tmp_path)) == []


def test_one_that_fails_and_one_that_asks_for_no_turn_hold_up_nobody(tmp_path: Path, golden: Golden) -> None:
    told = {"*": "turns", "horovod/mpi/1/0": "turns, fails", "serial/1/0": "done"}
    result, _ = run(study(repeats=1), tmp_path, told)
    by_name = {entry.name.partition(", repeat")[0]: entry for entry in result.ledger.entries}

    assert by_name["horovod/mpi, 1 worker"].state == "failed"
    golden(by_name["horovod/mpi, 1 worker"].reason)
    assert by_name["serial, 1 worker"].state == by_name["horovod/mpi, 2 workers"].state == "done"
    assert {each.run for each in slices(tmp_path)} == {by_name["horovod/mpi, 2 workers"].key}


@pytest.mark.slow
def test_the_time_in_which_a_cell_waits_counts_for_no_limit(tmp_path: Path) -> None:
    config = StrainConfig(study="tiny", steps=1500)
    alternating = study(repeats=1, run=config, runtimes=("horovod/mpi", "horovod/gloo", "ddp/gloo"), timeout_s=9.0)
    began = time.monotonic()
    result, _ = run(alternating, tmp_path, {"*": "turns"})

    assert time.monotonic() - began > 9.0
    assert set(states(result)) == {"done"}


@pytest.mark.slow
def test_after_a_request_to_stop_nobody_waits_and_the_next_run_goes_on(tmp_path: Path) -> None:
    def stop() -> None:
        until(lambda: len(list((tmp_path / "tiny").glob("*/run.json"))) == 3)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    endless = study(repeats=1, run=StrainConfig(study="tiny", steps=10**8))
    thread = threading.Thread(target=stop)
    thread.start()
    stopped, _ = run(endless, tmp_path, {"*": "turns"}, grace_s=20.0)
    thread.join()

    assert stopped.exit_code == 130
    assert states(stopped) == ["stopped"] * 3
    assert marked_processes(str(tmp_path)) == []
    assert slices(tmp_path) == []

    result, _ = run(endless, tmp_path, {"*": "done"})
    assert states(result) == ["done"] * 3


PROGRAM = """
import sys; sys.path.insert(0, {tests!r})
from pathlib import Path
from test_turns_study import *
run(study(repeats=1, run=StrainConfig(study="tiny", steps=10**8)), Path(sys.argv[1]), {{"*": "turns"}})
"""


@pytest.mark.slow
def test_when_the_runner_is_killed_those_that_wait_end_by_themselves(tmp_path: Path) -> None:
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    runner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    until(lambda: len(list((tmp_path / "tiny").glob("*/run.json"))) == 3)
    time.sleep(1.0)
    runner.kill()
    runner.wait()

    until(lambda: marked_processes(str(tmp_path)) == [])
    for path in (tmp_path / "tiny").glob("*/run.json"):
        assert (read_run(path.parent).status, read_run(path.parent).reason) == ("stopped", "nobody gives turns")


def test_cells_come_into_blocks_that_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(runtimes=("horovod/mpi", "ddp/gloo"), workers=(1, 2, 4))

    def grouped(memory_mb: float, *, here: bool = True, each_mb: float | None = None) -> list[AlternatingCells]:
        free = SimpleNamespace(available=1e6 * memory_mb)
        monkeypatch.setattr("horovod_study.studies.turns.psutil.virtual_memory", lambda: free)
        return groups(sweep_of(made, tmp_path), made.cells(), lambda cell: here, each_mb=each_mb)

    all_of_it = grouped(1e9)
    little = grouped(4.5 * WORKER_MB)
    elsewhere = grouped(1e9, here=False)
    small = grouped(4.5 * WORKER_MB, each_mb=WORKER_MB / 10)

    assert [(part.block, len(part.cells)) for part in all_of_it] == [("local", 7), ("local", 7)]
    assert [len(part.cells) for part in small] == [7, 7]
    for parts in (all_of_it, little, elsewhere):
        assert sorted(cell.key for part in parts for cell in part.cells) == sorted(cell.key for cell in made.cells())
    for part in little:
        assert not part.block or sum(cell.placement.workers for cell in part.cells) <= 4.5
    assert [part.block for part in little][: len(little) // 2] == ["local", "local-2", ""]
    assert {part.block for part in elsewhere} == {""}
    assert [part.block for part in groups(sweep_of(study(turns=False), tmp_path), made.cells(), lambda cell: True)] == [
        ""
    ]


def test_what_a_worker_needs_is_what_others_have_needed_and_a_precision_takes_three_launches_at_least(
    tmp_path: Path,
    golden: Golden,
) -> None:
    made = study(repeats=10, precision=0.02)
    plan = plan_study(read_ledger(sweep_of(made, tmp_path)), retry=True)
    three = study(repeats=3)

    assert worker_mb(tmp_path) is None and len(plan.cells) == 30
    assert plan.seconds == plan_study(read_ledger(sweep_of(three, tmp_path)), retry=True).seconds
    golden.line(plan.lines(), "30 cells")
    for folder, used_mb in ((".smoke/a", 200.0), ("b", 300.0)):
        record = make.records.record(study="tiny", key=folder[-1])
        create_run(tmp_path / folder, record)
        totals = {"rss_mb_max": 900.0, "pss_mb_max": used_mb}
        finish_run(tmp_path / folder, record, status="done", finished="now", totals=totals)
        assert worker_mb(tmp_path) == SPARE * used_mb


def test_the_plan_says_which_cells_alternate_and_why_others_do_not(tmp_path: Path, golden: Golden) -> None:
    made = study()
    plan = plan_study(read_ledger(sweep_of(made, tmp_path)), retry=True)
    still = workload("still", __file__, {}, waits=False)
    mine = study(run=still.configure({"study": "tiny", "steps": 5}, source="test"))
    blocks, alone = alternating(sweep_of(mine, tmp_path), mine.cells())

    golden.line(plan.lines(), "2 blocks", "3 cells")
    assert [len(each) for each in plan.document()["turns"]["blocks"]] == [3, 3]
    assert blocks == [] and set(alone.values()) == {"workload still cannot wait between two steps"}
    without = study(turns=False)
    assert plan_study(read_ledger(sweep_of(without, tmp_path)), retry=True).document()["turns"]["blocks"] == []


def test_the_study_file_says_it(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("study: s\nturns: yes\nrun: {seconds: 1}\nsweep: {workers: [1]}\n")
    assert load_study(path).turns
    path.write_text("study: s\nturns: 3\nrun: {seconds: 1}\nsweep: {workers: [1]}\n")
    with pytest.raises(ConfigError, match="turns"):
        load_study(path)


REAL = """
study: real
turns: yes
run: {dataset: 2000, batch: 25, steps: 100, warmup_steps: 10}
sweep: {workers: [2], runtime: [horovod/mpi, horovod/gloo, ddp/gloo, mpi/mpi]}
baselines: [plain]
repeats: 1
"""


@pytest.mark.slow
@pytest.mark.horovod
def test_real_workers_over_every_library(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(REAL)
    sweep, how = (
        sweep_of(load_study(tmp_path / "real.yaml"), tmp_path),
        RunOptions(command="", smoke=False, oversubscribe=True),
    )
    result = run_sweep(sweep, how, console=Console(file=io.StringIO()))
    folder = tmp_path / "real"
    found: dict[str, list[TurnSlice]] = {entry.key: [] for entry in result.ledger.entries}
    for each in read_turns(folder):
        found[each.run].append(each)

    assert states(result) == ["done"] * 5
    for key, own in found.items():
        record = read_run(folder / key)
        steps = read_steps(folder / key, 0).num_rows
        assert steps == 110 and own and sum(each.steps for each in own) <= steps
        assert record.totals["turns"]["waited_s"] > 0 and len(record.totals["turns"]["before"]) > len(own)
        recounted = recount(recorded_run(folder / key), run_side_files(folder / key))
        assert [each.text for each in recounted.findings if RULES[each.name].severity == "error"] == []
