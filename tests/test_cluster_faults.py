"""What goes wrong between hosts ends in bounded time, says what and where, leaves nothing behind, and can be repeated.

The link is slow (40 Mbit/s: 0.12 s per step) while faults happen, so that they happen in mid-run, and fast when the
study is completed.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from make.pair_study import RUNTIMES, PairStudy, ranks
from make.waiting import PATIENCE_S, until
from two_hosts import RATE, HostProcess, Running, TwoHosts

from horovod_study.cluster.remote import MARKER

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.horovod]
SWEEP = {"workers": [2], "placement": ["spread"], "runtime": list(RUNTIMES)}
SLOW = "40mbit"
IN_MID_RUN = 5_000_000  # bytes: eight exchanges, of which seven were the trainer's look at the network


@pytest.fixture
def study(two_hosts: TwoHosts, tmp_path: Path) -> Iterator[PairStudy]:
    """One cell of two workers on two hosts for each runtime; the hosts are whole again afterwards."""
    yield PairStudy(
        two_hosts,
        tmp_path,
        run={"steps": 100, "stall_timeout_s": 5, "start_timeout_s": 60},
        sweep=SWEEP,
        baselines=[],
        timeout_s=300,
    )
    two_hosts.restore("node2")
    two_hosts.limit(RATE)
    for _, process in [(name, each) for name in two_hosts.names for each in two_hosts.processes(name)]:
        os.kill(process.pid, signal.SIGKILL)


def test_a_host_that_is_not_reached_is_named_and_nothing_starts(study: PairStudy):
    study.hosts.cut("node2")

    code, output = study.run("run")

    assert code == 2, output
    assert "error: 1 of 2 hosts cannot be used (node2: ssh: connect to host node2 port 22: " in output.splitlines()[-1]
    assert "(`horovod-study doctor --hosts node2`)" in output.splitlines()[-1]
    assert study.records() == []
    assert study.status()["counts"]["missing"] == len(RUNTIMES)
    assert study.left() == []


def strike(study: PairStudy, process: HostProcess, harm: Callable[[Running], None], restore: Callable[[], None]) -> str:
    """Do harm to each cell in mid-run, given its rank on node2; return what the runner said when it had ended."""
    hosts, struck = study.hosts, set[str]()

    def next_ranks() -> list[Running]:
        return [each for each in ranks(hosts.processes("node2")) if each.environment[MARKER] not in struck]

    def remain(cell: str) -> bool:
        return any(each.environment.get(MARKER) == cell for _, each in study.left())

    try:
        for _ in RUNTIMES:
            until(lambda: bool(next_ranks()) or process.poll() is not None, "the next cell starts")
            if process.poll() is not None:
                break  # too early: what it said and the states of the cells tell why
            rank, before = next_ranks()[0], hosts.sent("node2")
            until(lambda before=before: hosts.sent("node2") > before + IN_MID_RUN, "gradients are exchanged")
            struck.add(cell := rank.environment[MARKER])
            harm(rank)
            until(lambda cell=cell: not remain(cell), f"no process of {cell} is left")
            restore()
        return str(process.communicate(timeout=PATIENCE_S)[0])
    except BaseException:
        process.kill()
        raise


def test_faults_in_mid_run_end_their_cell_only_and_are_made_up_for_later(study: PairStudy):
    hosts = study.hosts
    hosts.limit(SLOW)

    with study.start("run", "--no-smoke") as process:
        output = strike(study, process, lambda rank: os.kill(rank.pid, signal.SIGKILL), lambda: None)
    check_failed(study, process, output, ("rank 1",))

    def gone_behind_the_link() -> None:
        until(lambda: hosts.processes("node2") == [], "nothing is left behind the cut link")
        hosts.restore("node2")

    with study.start("run", "--no-smoke") as process:
        output = strike(study, process, lambda rank: hosts.cut("node2"), gone_behind_the_link)
    # The side that speaks last decides: each rank sees the other one's host fall silent.
    check_failed(study, process, output, ("rank 1 on node2", "rank 0 on node1"))

    hosts.limit(RATE)
    code, output = study.run("run", "--no-smoke")
    assert code == 0, output
    rows = study.status()["rows"]
    assert [(row["state"], row["earlier_attempts"]) for row in rows] == [("done", 2)] * len(RUNTIMES)
    assert study.left() == []


def check_failed(study: PairStudy, process: HostProcess, output: str, reasons: tuple[str, ...]) -> None:
    """All cells have failed with one of `reasons`, which `run` and `status` give, and nothing is left anywhere."""
    assert process.returncode == 1, output
    for row in study.status()["rows"]:
        assert row["state"] == "failed", output
        assert row["reason"].startswith(reasons), output
        assert row["reason"] in output
    until(lambda: study.left() == [], "nothing is left on either host")


def test_what_a_killed_runner_leaves_is_ended_by_its_successor(two_hosts: TwoHosts, tmp_path: Path):
    study = PairStudy(two_hosts, tmp_path, run={"steps": 100}, sweep=SWEEP | {"runtime": ["horovod/mpi"]}, baselines=[])
    try:
        two_hosts.limit(SLOW)
        with study.start("run", "--no-smoke") as process:
            until(lambda: bool(ranks(two_hosts.processes("node2"))), "a cell starts")
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert ranks(two_hosts.processes("node2")) != []
    finally:
        two_hosts.limit(RATE)

    code, output = study.run("run", "--no-smoke")
    assert code == 0, output
    assert [row["state"] for row in study.status()["rows"]] == ["done"]
    assert study.left() == []
