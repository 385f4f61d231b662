"""One rule for who is alive, and that nobody has another one."""

import ast
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from make.records import record

import horovod_study
from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.studies import lease

ROOT = Path(horovod_study.__file__).parent
EXCEPTED = {
    "cluster/alive.py": "the rule",
    "measure/environment.py": "reads what the cores of the machine have done",
    "recording/rank/facts.py": "reads the memory of its own process",
    "recording/rank/turns.py": "reads on which cores its own threads are",
    "measure/sensors.py": "reads what a process uses, of ranks whose identity it was given",
    "cluster/process.py": "signals what bears the mark of a run directory in its environment",
}


def ended() -> alive.Process:
    """A process of this host that is gone."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = replace(alive.this_process(), pid=child.pid, began=alive.began(child.pid))
    child.communicate()
    return known


def run_of(process: alive.Process | None, **changes) -> records.RunRecord:
    here: dict[str, object] = {"host": platform.node(), "pid": os.getpid()}
    if process is not None:
        here = {"host": process.host, "pid": process.pid, "process": asdict(process)}
    return record(**{**here, **changes})


# ---------------------------------------------------------------------------------------------------- the rule


def test_this_process_runs_and_one_that_has_ended_does_not():
    assert not alive.this_process().has_ended()
    assert run_of(alive.this_process()).state() == "running"
    assert ended().has_ended()
    assert run_of(ended()).state() == "incomplete"


@pytest.mark.parametrize("change", [{"began": 1}, {"boot": "another"}, {"space": "pid:[1]"}])
def test_a_number_that_was_given_to_another_process_is_incomplete(change):
    """A later process, another boot, a container that was started again: the number is that of this very process."""
    assert run_of(replace(alive.this_process(), **change)).state() == "incomplete"


def test_a_process_on_another_host_is_believed():
    assert run_of(replace(alive.this_process(), host="node9", boot="another", pid=1)).state() == "running"


@pytest.mark.parametrize("started", ["2026-01-01T00:00:00+00:00", "1970-01-01T00:00:00"])
def test_an_older_record_is_over_when_its_number_is_that_of_a_process_that_began_later(started):
    assert run_of(None, started=started).state() == "incomplete"


def test_an_older_record_runs_when_its_process_began_before_it():
    assert run_of(None, started="9999-01-01T00:00:00+00:00").state() == "running"
    assert run_of(None, started="no time").state() == "running"


@pytest.mark.parametrize("pid", [2**22 + 1, 2**70, 0])
def test_numbers_that_no_process_has(pid):
    assert not alive.runs(pid, 1)


def test_a_process_that_waits_for_its_parent_has_ended():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert not alive.runs(child.pid)
    assert alive.began(child.pid) is None
    child.communicate()


def test_a_record_and_a_claim_agree():
    """A run and a claim of the same process are judged alike."""
    for process in (alive.this_process(), ended(), replace(alive.this_process(), began=1)):
        holder = replace(lease.this_process(), **asdict(process))
        claim = lease.Claim(path=Path("x"), generation=1, holder=holder, touched=1e9)
        assert lease.is_stale(claim, present=1e9) == (run_of(process).state() == "incomplete")


def test_the_record_and_each_attempt_say_who_it_is(tmp_path):
    first = run_of(ended())
    records.create_run(tmp_path / "run", first)
    again = replace(first, process=alive.identity(), pid=os.getpid())
    records.resume_run(tmp_path / "run", again, from_step=5, began="2026-01-02T00:00:00+00:00")

    written = json.loads((tmp_path / "run" / "run.json").read_text())

    assert written["process"] == alive.identity() == written["attempts"][1]["process"]
    assert written["attempts"][0]["process"] == first.process
    assert records.read_run(tmp_path / "run").state() == "running"


# ---------------------------------------------------------------------------------------------------- nobody else


def asks_who_is_alive(tree: ast.AST) -> list[int]:
    """Return the lines that probe a process with signal 0, or name /proc/PID/stat."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("kill", "killpg"):
            if node.args and isinstance(node.args[-1], ast.Constant) and node.args[-1].value == 0:
                lines.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pid_exists":
            lines.append(node.lineno)
        elif isinstance(node, ast.JoinedStr):
            if any(isinstance(part, ast.Constant) and str(part.value).endswith("/stat") for part in node.values):
                lines.append(node.lineno)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if isinstance(node.right, ast.Constant) and node.right.value == "stat":
                lines.append(node.lineno)
    return lines


@pytest.mark.slow
def test_nobody_else_asks_who_is_alive():
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in ROOT.rglob("*.py")
        if (lines := asks_who_is_alive(ast.parse(path.read_text(encoding="utf-8"))))
    }

    assert set(found) <= set(EXCEPTED), found
    assert "cluster/alive.py" in found


@pytest.mark.parametrize(
    "text", ["os.kill(pid, 0)", "os.killpg(group, 0)", "f'/proc/{pid}/stat'", "proc / str(pid) / 'stat'"]
)
def test_another_rule_would_be_seen(text):
    assert asks_who_is_alive(ast.parse(text))
