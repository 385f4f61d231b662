"""The tool is killed at every step: the next run finishes the study, each cell once, and nothing is lost or left."""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import make.records
import pytest
from rich.console import Console

from horovod_study import records
from horovod_study.cluster.launch import LaunchLine, cell_environment
from horovod_study.cluster.process import marked_processes
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import runner
from horovod_study.studies.study_file import StudyConfig, sweep_of

SEED = 20

# A trainer without Python, because it is started hundreds of times: it notes when it starts, and
# leaves a file of its own in its run directory, so that a directory that was lost or used twice is noticed.
TRAINER = """
echo "$KEY $$" >> "$NOTES"
mkdir -p "$OUT"
echo > "$OUT/trained-by-$$"
sed "s/4242424242/$$/" "$RECORDS.running" > "$OUT/.new" && mv "$OUT/.new" "$OUT/run.json"
case "$TOLD" in
  lingers) sleep 0.3 ;;
  fails) if [ "$(grep -c "$KEY " "$NOTES")" = 1 ]; then echo 'error: the first attempt fails'; exit 1; fi ;;
esac
sed "s/4242424242/$$/" "$RECORDS.done" > "$OUT/.new" && mv "$OUT/.new" "$OUT/run.json"
"""
BEHAVIOUR = {0: "lingers", 1: "fails"}


def make_study() -> StudyConfig:
    run = StrainConfig(study="tiny", seconds=1)
    return StudyConfig(name="tiny", run=run, workers=(1,), runtimes=("horovod/gloo",), baselines=(), repeats=2)


def shell_launch(folder: Path):
    """Return a launch function whose trainers are the shell script above; their records are prepared in `folder`."""

    def launch(cell, config, out, *, resume=False, site=None):
        environment = cell_environment(os.environ, path=os.environ["PATH"], out=out)
        environment |= {
            "KEY": cell.key,
            "OUT": str(out),
            "NOTES": str(folder / "notes.txt"),
            "RECORDS": str(folder / cell.key),
            "TOLD": BEHAVIOUR[cell.config.repeat],
        }
        return LaunchLine(argv=("/bin/sh", "-c", TRAINER), environment=environment)

    return launch


def prepare_records(study: StudyConfig, folder: Path) -> None:
    folder.mkdir()
    for cell in study.cells():
        for status in ("running", "done"):
            record = make.records.record(
                study="tiny",
                key=cell.key,
                repeat=cell.config.repeat,
                status=status,
                pid=4242424242,
                requested=vars(cell.config),
                effective={"backend": "horovod", "workers": 1},
                totals={"samples_per_s": 1000.0} if status == "done" else {},
            )
            (folder / f"{cell.key}.{status}").write_text(json.dumps(asdict(record)))


def run(runs: Path, folder: Path) -> runner.StudyResult:
    with open(os.devnull, "w") as nowhere:
        options = runner.RunOptions(
            command="again", launch=shell_launch(folder), cores=1, grace_s=0.2, smoke=False, watch_load_s=0.0
        )
        return runner.run_sweep(sweep_of(make_study(), runs), options, console=Console(file=nowhere))


class Killer:
    """Ends this process with SIGKILL right before its k-th change to the study's folder, or start of a program.

    Python reports these to audit hooks before they happen. None can be removed, so it listens in forked processes only.
    """

    def __init__(self, runs: Path, k: int, number: int = signal.SIGKILL, ending: str = "") -> None:
        self.runs, self.left, self.number, self.ending = str(runs), k, number, ending

    def __call__(self, event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            paths = (path,) if changes else ()
        elif event in ("os.rename", "os.link"):
            paths = arguments[:2]
        elif event in ("os.mkdir", "os.remove", "os.utime", "os.truncate", "os.chmod"):
            paths = arguments[:1]
        elif event == "subprocess.Popen":
            paths = (self.runs,)
        else:
            return
        if any(str(path).startswith(self.runs) and str(path).endswith(self.ending) for path in paths):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)


def killed_at(runs: Path, folder: Path, k: int) -> int:
    """Run the study in a process that is killed before its k-th change; return how it ended, 0 when it got through."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.addaudithook(Killer(runs, k))
            code = run(runs, folder).exit_code
        except BaseException:
            code = 99
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def check(runs: Path, folder: Path, case: str) -> None:
    """Run the study to its end, and look for what a crash could have broken."""
    for _ in range(3):  # one cell fails at its first attempt, which may have been in any of the runs
        result = run(runs, folder)
        if result.exit_code == 0:
            break
    assert ["done", "done"] == [entry.state for entry in result.ledger.entries], case
    started = [line.split() for line in (folder / "notes.txt").read_text().splitlines()]
    finished: Counter[str] = Counter()
    kept = []
    for mark in (runs / "tiny").rglob("trained-by-*"):
        kept.append(mark.name.removeprefix("trained-by-"))
        assert 1 == len(list(mark.parent.glob("trained-by-*"))), f"{case}: {mark.parent} was used twice"
        if (mark.parent / "run.json").exists():
            record = records.read_run(mark.parent)
            finished[record.key] += record.status == "done"
    assert {cell.key: 1 for cell in make_study().cells()} == finished, f"{case}: each cell finishes once"
    lost = {pid for _, pid in started} - set(kept)  # a trainer that was ended before it made its directory leaves none
    assert len(lost) <= 1, f"{case}: run directories were lost"
    assert [] == marked_processes(str(runs / "tiny")), case


def changes_of_a_whole_run(tmp_path: Path) -> int:
    """Return how many changes a run makes that nobody kills; it fails in one cell, so it is done twice."""
    runs, folder = tmp_path / "whole", tmp_path / "whole-records"
    prepare_records(make_study(), folder)
    counting = tmp_path / "count"
    pid = os.fork()
    if pid == 0:
        killer = Killer(runs, 10**9)
        sys.addaudithook(killer)
        run(runs, folder)
        counting.write_text(str(10**9 - killer.left))
        os._exit(0)
    os.waitpid(pid, 0)
    check(runs, folder, "not killed")
    return int(counting.read_text())


def kill_and_check(tmp_path: Path, k: int) -> None:
    runs, folder = tmp_path / f"runs-{k}", tmp_path / f"records-{k}"
    prepare_records(make_study(), folder)
    code = killed_at(runs, folder, k)
    assert code == -signal.SIGKILL, f"change {k}: {code}"
    if k % 2:  # what was left behind may still be running then, or have finished
        time.sleep(0.4)
    check(runs, folder, f"killed before change {k}")


def sample(count: int) -> set[int]:
    return set(random.Random(SEED).sample(range(1, count + 1), 8))


@pytest.mark.slow
def test_killed_before_any_change_of_a_sample_the_study_is_finished_once(tmp_path):
    count = changes_of_a_whole_run(tmp_path)
    assert count > 30, "the hook sees what the runner does"
    for k in sorted(sample(count)):
        kill_and_check(tmp_path, k)


@pytest.mark.slow
def test_killed_before_every_other_change_the_study_is_finished_once(tmp_path):
    count = changes_of_a_whole_run(tmp_path)
    for k in sorted(set(range(1, count + 1)) - sample(count)):
        kill_and_check(tmp_path, k)


@pytest.mark.slow
def test_killed_again_and_again_the_study_is_finished_once(tmp_path):
    """Every run is killed, each a few changes later than the one before, until one gets through."""
    runs, folder = tmp_path / "runs", tmp_path / "records"
    prepare_records(make_study(), folder)
    k = 1
    while killed_at(runs, folder, k) not in (0, 1):
        k += 3
        assert k < 500
    check(runs, folder, "killed again and again")
