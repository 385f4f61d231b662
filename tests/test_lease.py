"""Leases: of many who try one succeeds, a dead holder is succeeded by one other, a living one by nobody."""

import errno
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest
from fake_trainer import fake_launch
from hypothesis import given
from hypothesis import strategies as st
from make.waiting import PATIENCE_S, until
from rich.console import Console

from horovod_study.cluster import alive
from horovod_study.cluster import slurm as jobs
from horovod_study.errors import StudyError
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import lease, runner
from horovod_study.studies.attempt import Interruption
from horovod_study.studies.study_file import StudyConfig, sweep_of

RACERS, NAMES = 8, 50


def someone(**changes) -> lease.Holder:
    """Return a holder on another host, whose process cannot be seen from here."""
    return replace(lease.this_process(), **{"host": "node9", "boot": "another", "pid": 77, **changes})


def write_claim(folder: Path, name: str, generation: int, holder: lease.Holder, **content) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{generation}"
    values = {"holder": asdict(holder), "what": "cell", "since": "2026-01-01T00:00:00+00:00", **content}
    path.write_text(json.dumps(values))
    return path


def after(seconds: float):
    """Return the clock of a file server so many seconds from now."""
    return lambda folder: lease.server_time(folder) + seconds


def dead() -> lease.Holder:
    """Return a holder on this host that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    began = alive.began(process.pid)
    process.wait()
    return replace(lease.this_process(), pid=process.pid, began=began)


# ---------------------------------------------------------------------------------------------------- one holder


def test_claim_says_who_holds_it_and_then_how_it_ended(tmp_path):
    held = lease.acquire(tmp_path / "claims", "cell-1", what="the first cell")

    during = lease.latest(tmp_path / "claims", "cell-1")
    held.release("timed out", "after\n 3 s")
    held.release("done", "only the first word counts")
    afterwards = lease.latest(tmp_path / "claims", "cell-1")

    assert (1, "the first cell", None, "") == (during.generation, during.what, during.released, during.state)
    assert lease.this_process() == during.holder
    assert during.mine and not afterwards.mine
    assert ("timed out", "after 3 s") == (afterwards.state, afterwards.reason)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", afterwards.released)
    assert ["cell-1.1"] == os.listdir(tmp_path / "claims"), "nothing else is left"


def test_block_gives_it_back_also_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), lease.acquire(tmp_path, "cell", what="a cell"):
        1 / 0  # noqa: B018

    with lease.acquire(tmp_path, "cell", what="a cell") as again:
        assert 2 == again.claim.generation
    assert {"cell": 2} == lease.generations(tmp_path)


def test_nobody_has_held_what_was_never_taken(tmp_path):
    assert lease.latest(tmp_path / "nowhere", "cell") is None
    assert {} == lease.generations(tmp_path / "nowhere")


def test_many_generations_are_counted_and_other_names_left_alone(tmp_path):
    for _ in range(12):
        lease.acquire(tmp_path, "a", what="a").release()
    lease.acquire(tmp_path, "a-b", what="b").release()
    (tmp_path / ".claim-half").touch()
    (tmp_path / "notes.txt").touch()

    assert {"a": 12, "a-b": 1} == lease.generations(tmp_path)
    assert 12 == lease.latest(tmp_path, "a").generation


# ---------------------------------------------------------------------------------------------------- races


def race(folder, names, start, winners, without_links=False):
    if without_links:
        forbid_links(os)
    start.wait()
    for name in names:
        try:
            lease.acquire(Path(folder), name, what=name)
        except lease.Held:
            continue
        winners.put((name, os.getpid()))
    start.wait()  # whoever ends first must not look dead to the others


def forbid_links(module):
    def link(*arguments, **options):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    module.link = link


def run_race(folder, names, **options) -> list[str]:
    """Return the names that were won, one for each winner, in a race of RACERS processes."""
    context = multiprocessing.get_context("fork")
    start, winners = context.Barrier(RACERS), context.Queue()
    racers = [context.Process(target=race, args=(folder, names, start, winners), kwargs=options) for _ in range(RACERS)]
    for racer in racers:
        racer.start()
    won = [winners.get(timeout=PATIENCE_S) for _ in names]
    for racer in racers:
        racer.join(PATIENCE_S)
        assert 0 == racer.exitcode
    assert winners.empty()
    return sorted(name for name, _ in won)


@pytest.mark.slow
@pytest.mark.parametrize("without_links", [False, True])
def test_of_many_who_race_for_a_name_exactly_one_wins(tmp_path, without_links):
    names = [f"cell-{number:02}" for number in range(NAMES)]

    assert names == run_race(tmp_path, names, without_links=without_links)
    assert dict.fromkeys(names, 1) == lease.generations(tmp_path)


@pytest.mark.slow
def test_of_many_who_succeed_a_dead_holder_exactly_one_wins(tmp_path):
    names = [f"cell-{number:02}" for number in range(NAMES)]
    gone = dead()
    for name in names:
        write_claim(tmp_path, name, 1, gone)

    assert names == run_race(tmp_path, names)
    assert dict.fromkeys(names, 2) == lease.generations(tmp_path)


# ---------------------------------------------------------------------------------------------------- on this host

HOLD = """
import sys, pathlib
from horovod_study.studies.lease import hold_study
with hold_study(pathlib.Path(sys.argv[1])):
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


def test_second_command_is_told_who_runs_the_study_since_when(tmp_path, holder):
    with pytest.raises(lease.Held) as caught:
        lease.hold_study(tmp_path / "tiny")

    since = lease.latest(tmp_path / "tiny" / ".claims", "study").since
    expected = (
        f"{tmp_path / 'tiny'}: the study is being run by process {holder.pid} on {os.uname().nodename} since {since}; "
        "wait for it, or stop it and run again"
    )
    assert expected == str(caught.value)
    assert holder.pid == caught.value.claim.holder.pid


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_lease_ends_with_its_holder(tmp_path, holder, end):
    if end:
        holder.send_signal(end)
    holder.communicate()

    with lease.hold_study(tmp_path / "tiny") as held:
        assert (2, os.getpid()) == (held.claim.generation, held.claim.holder.pid)


def test_living_holder_is_not_succeeded_however_long_it_is_silent(tmp_path, holder):
    with pytest.raises(lease.Held, match=r"since [^ ]+; wait"):
        lease.acquire(tmp_path / "tiny" / ".claims", "study", what="the study", present=after(1e6))


@pytest.mark.parametrize("change", [{"host": "laptop-of-yesterday"}, {"boot": "before"}, {"space": "pid:[1]"}])
def test_until_when_a_holder_is_believed_that_cannot_be_asked_is_told(tmp_path, change):
    """A machine that has another name now is another one, as far as anybody can tell."""
    write_claim(tmp_path / ".claims", "run", 1, replace(lease.this_process(), **change))
    os.utime(tmp_path / ".claims" / "run.1", (0, lease.server_time(tmp_path) - 60))
    end = r"since 2026-01-01T00:00:00\+00:00 \(taken for alive until (.*) UTC, unless it is heard of again\); wait"
    told = []
    for ask in (lease.hold_run, lease.require_free):
        with pytest.raises(lease.Held, match=end) as held:
            ask(tmp_path)
        told += re.findall(end, str(held.value))

    assert told[0] == told[1]
    left_s = datetime.fromisoformat(f"{told[0]}+00:00").timestamp() - lease.server_time(tmp_path)
    assert left_s == pytest.approx(60, abs=30)


def test_process_does_not_take_from_itself(tmp_path, golden):
    with lease.acquire(tmp_path, "cell", what="a cell"):
        with golden.raises(lease.Held):
            lease.acquire(tmp_path, "cell", what="a cell")


@pytest.mark.parametrize("change", [{"began": 12}, {"pid": 2**22 + 1}])
def test_number_of_a_process_that_began_at_another_time_is_no_holder(tmp_path, change):
    write_claim(tmp_path, "cell", 1, replace(lease.this_process(), **change))

    assert 2 == lease.acquire(tmp_path, "cell", what="a cell").claim.generation


@pytest.mark.parametrize("change", [{"boot": "before"}, {"space": "pid:[1]"}, {"host": "node9"}])
def test_what_cannot_be_seen_from_here_is_judged_by_its_silence(tmp_path, change):
    """Also another boot: two machines of one cluster may both be called localhost."""
    write_claim(tmp_path, "cell", 1, replace(lease.this_process(), pid=2**22 + 1, **change))

    with pytest.raises(lease.Held):
        lease.acquire(tmp_path, "cell", what="a cell")
    assert 2 == lease.acquire(tmp_path, "cell", what="a cell", present=after(lease.STALE_S + 1)).claim.generation


def test_process_that_has_ended_but_was_not_waited_for_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert alive.began(process.pid) is None
    process.wait()


# ---------------------------------------------------------------------------------------------------- other hosts


@given(age_s=st.floats(-1e6, 1e6))
def test_other_host_is_gone_when_nothing_was_heard_for_long_by_the_servers_clock(age_s):
    """A clock that was set back makes the claim one of the future: its holder lives."""
    claim = lease.Claim(path=Path("x"), generation=1, holder=someone(), touched=1e9)

    assert (age_s > lease.STALE_S) == lease.is_stale(claim, present=1e9 + age_s)


def test_clocks_of_hosts_do_not_count(tmp_path, monkeypatch, golden):
    write_claim(tmp_path, "cell", 1, someone(), since="1999-01-01T00:00:00+00:00")
    monkeypatch.setattr(time, "time", lambda: 0.0)

    with golden.raises(lease.Held, match=r"process 77.*node9.*1999-01-01T00:00:00\+00:00"):
        lease.acquire(tmp_path, "cell", what="a cell")


@pytest.mark.parametrize(("ended", "free"), [({"12_3"}, True), ({"13"}, False), (set(), False)])
def test_holder_in_a_job_is_gone_when_the_job_has_ended(tmp_path, ended, free, golden):
    write_claim(tmp_path, "cell", 1, someone(job="12_3"))

    try:
        lease.acquire(tmp_path, "cell", what="a cell", ended=ended.__contains__)
        taken = True
    except lease.Held as held:
        taken = False
        golden(str(held), "process 77", "node9", "12_3")

    assert free == taken


@pytest.mark.parametrize(
    ("state", "outcome"), [("CANCELLED", "done"), ("RUNNING", "left alone"), ("COMPLETING", "left alone")]
)
def test_cell_of_a_job_that_was_killed_is_run_at_once(tmp_path, monkeypatch, state, outcome):
    """The job could not give back its claim, and was heard of a moment ago."""
    study = StudyConfig(name="tiny", run=StrainConfig(study="tiny", seconds=1), workers=(1,), baselines=(), repeats=1)
    cell = study.cells()[0]
    write_claim(tmp_path / lease.CLAIMS, cell.key, 1, someone(job="12_1"))
    of_job = {"study": "tiny", "partition": "local", "nodes": 1, "time_limit_s": 60.0, "written": "then"}
    jobs.write_job(tmp_path, jobs.Job(name="tiny-1", tasks=(("x",), (cell.key,)), job_id="12", **of_job))
    monkeypatch.setattr(
        runner, "JobBook", lambda folder: jobs.JobBook(folder, ask=lambda command: f"12_1|12|1|{state}|None|tiny-1|")
    )
    console = Console(file=io.StringIO(), width=200)

    runner.Grid(
        sweep=replace(sweep_of(study, tmp_path), directory=tmp_path),
        console=console,
        stop=Interruption(),
        options=runner.RunOptions(command="", launch=fake_launch({})),
    ).run([cell])

    assert outcome in console.file.getvalue()
    assert (2 if outcome == "done" else 1) == lease.latest(tmp_path / lease.CLAIMS, cell.key).generation


@pytest.mark.parametrize(("restarts", "free"), [("1", True), ("0", False)])
def test_job_that_was_requeued_succeeds_itself_at_once(tmp_path, monkeypatch, restarts, free):
    monkeypatch.setenv("SLURM_JOB_ID", "14")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    write_claim(tmp_path, "cell", 1, someone(job="12_2", restarts=0))

    claim = lease.latest(tmp_path, "cell")

    assert ("12_2", int(restarts)) == (lease.this_process().job, lease.this_process().restarts)
    assert free == lease.is_stale(claim, present=claim.touched)


# ---------------------------------------------------------------------------------------------------- touching


def test_holder_touches_its_claim_by_itself(tmp_path):
    before = threading.enumerate()
    held = lease.acquire(tmp_path, "cell", what="a cell", refresh_s=0.02)
    (toucher,) = (each for each in threading.enumerate() if each not in before)
    os.utime(held.claim.path, (1, 1))

    until(lambda: lease.latest(tmp_path, "cell").touched > 1e9, "the claim is touched")
    held.release()
    toucher.join(PATIENCE_S)

    assert not toucher.is_alive()


def test_holder_sees_that_it_was_succeeded_and_does_not_disturb(tmp_path):
    held = lease.acquire(tmp_path, "cell", what="a cell")
    before = held.refresh()
    write_claim(tmp_path, "cell", 2, someone())

    assert (True, False, False) == (before, held.refresh(), held.refresh())
    held.release("done")
    assert ("done", None) == (lease.read_claim(tmp_path, "cell", 1).state, lease.latest(tmp_path, "cell").released)


def test_server_that_is_away_for_a_while_loses_nothing(tmp_path, monkeypatch):
    held = lease.acquire(tmp_path, "cell", what="a cell")

    def away(*arguments):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", away)
        assert held.refresh()
    assert held.refresh()
    held.release()


# ---------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("content", [b"", b'{"holder": {"pid": 1', b"[]", b'{"holder": 3}', b"{}", b"\xff\xfe"])
def test_claim_that_was_not_signed_is_held_until_it_is_old(tmp_path, content, golden):
    (tmp_path / "cell.1").write_bytes(content)

    assert lease.latest(tmp_path, "cell").holder is None
    with golden.raises(lease.Held, match=r"cell\.1.*120 s"):
        lease.acquire(tmp_path, "cell", what="a cell")
    assert 2 == lease.acquire(tmp_path, "cell", what="a cell", present=after(121)).claim.generation
    assert content == (tmp_path / "cell.1").read_bytes()


def test_link_whose_answer_was_lost_counts(tmp_path, monkeypatch):
    link = os.link

    def link_and_lose_the_answer(*arguments, **options):
        link(*arguments, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)

    assert 1 == lease.acquire(tmp_path, "cell", what="a cell").claim.generation
    with pytest.raises(lease.Held):
        lease.acquire(tmp_path, "cell", what="a cell")


def test_folder_that_cannot_be_written_is_named_with_the_way_out(tmp_path, monkeypatch, golden):
    (tmp_path / "runs").write_text("a file where the folder should be")
    with golden.raises(StudyError, match="--runs"):
        lease.hold_study(tmp_path / "runs" / "tiny")

    def read_only(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "link", read_only)
    with pytest.raises(StudyError) as caught:
        lease.hold_study(tmp_path / "tiny")
    expected = f"{tmp_path / 'tiny'}: cannot be written (Read-only file system); choose a writable folder with --runs"
    assert expected == str(caught.value)
    assert [] == os.listdir(tmp_path / "tiny" / ".claims")


def test_full_disk_at_the_end_is_told(tmp_path, monkeypatch, golden):
    held = lease.acquire(tmp_path, "cell", what="a cell")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lease, "write_file", full)
    with golden.raises(StudyError, match=r"cell\.1"):
        held.release("done")
