"""What goes wrong between hosts ends in bounded time, says what and where, leaves nothing behind, and can be repeated.

The link is slow (20 Mbit/s: 0.25 s per step) while faults happen, so that they happen in mid-run, and fast when the
study is completed.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pair_study import RUNTIMES, PairStudy, ranks
from two_hosts import RATE, TwoHosts

from horovod_study.cluster.remote import MARKER

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.horovod]
SLOW = "20mbit"
START_S = 180.0  # until a cell exchanges gradients, on a loaded machine
END_S = 60.0  # from a fault to the end of the last rank; about 10 s on a quiet machine
IN_MID_RUN_BYTES = 5_000_000  # eight exchanges, of which seven were the trainer's look at the network


@pytest.fixture
def study(two_hosts: TwoHosts, tmp_path: Path) -> Iterator[PairStudy]:
    """One cell of two workers on two hosts for each runtime; the hosts are whole again afterwards."""
    yield PairStudy(
        two_hosts,
        tmp_path,
        run={"steps": 100, "stall_timeout_s": 5, "start_timeout_s": 60},
        sweep={"workers": [2], "placement": ["spread"], "runtime": list(RUNTIMES)},
        baselines=[],
        timeout_s=300,
    )
    two_hosts.mend("node2")
    two_hosts.limit(RATE)
    for _, process in [(name, each) for name in two_hosts.names for each in two_hosts.processes(name)]:
        os.kill(process.pid, signal.SIGKILL)


def within(seconds: float, what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.3)


def test_a_host_that_is_not_reached_is_named_and_nothing_starts(study: PairStudy):
    study.hosts.cut("node2")

    code, output = study.run("run")

    assert code == 2, output
    assert "fail: node2: " in output  # what doctor says
    assert "error: 1 of 2 hosts cannot be used (node2: ssh: connect to host node2 port 22: " in output.splitlines()[-1]
    assert study.records() == []
    assert study.status()["counts"]["missing"] == len(RUNTIMES)
    assert study.left() == []


@pytest.mark.parametrize("fault", ["worker killed", "link cut"])
def test_a_fault_in_mid_run_ends_its_cell_only(study: PairStudy, fault: str):
    hosts = study.hosts
    hosts.limit(SLOW)
    struck: set[str] = set()

    def strike_next() -> None:
        """Wait until a further cell is in mid-run, do it harm, and see its ranks end everywhere."""
        rank = next(each for each in ranks(hosts.processes("node2")) if each.environment[MARKER] not in struck)
        cell = rank.environment[MARKER]
        before = hosts.sent("node2")
        within(START_S, "gradients are exchanged", lambda: hosts.sent("node2") - before > IN_MID_RUN_BYTES)
        struck.add(cell)
        if fault == "worker killed":
            os.kill(rank.pid, signal.SIGKILL)
        else:
            hosts.cut("node2")

        def ended() -> bool:
            return not [name for name, each in study.left() if each.environment.get(MARKER) == cell or name == "node2"]

        if fault == "worker killed":  # the runner goes on, so that node2 has the ranks of the next cell soon
            within(
                END_S, "the cell ends", lambda: not [e for _, e in study.left() if e.environment.get(MARKER) == cell]
            )
        else:
            within(END_S, "the cell ends, and nothing is left behind the cut link", ended)
            hosts.mend("node2")

    def another() -> bool:
        found = [each for each in ranks(hosts.processes("node2")) if each.environment[MARKER] not in struck]
        return bool(found) or process.poll() is not None

    with study.start("run", "--no-smoke") as process:
        try:
            for _ in RUNTIMES:
                within(START_S, "the next cell starts", another)
                strike_next()
            output, _ = process.communicate(timeout=END_S)
        except BaseException:
            process.kill()
            raise

    assert process.returncode == 1, output
    rows = study.status()["rows"]
    assert [row["state"] for row in rows] == ["failed"] * len(RUNTIMES), output
    for row in rows:
        # The side that speaks first decides: each rank sees the other one's host fall silent.
        said = ("rank 1", "rank 0 on node1") if fault == "link cut" else ("rank 1",)
        assert row["reason"].startswith(said), rows
        assert row["reason"] in output
    within(END_S, "nothing is left on either host", lambda: study.left() == [])

    hosts.limit(RATE)
    code, output = study.run("run")
    assert code == 0, output
    assert [row["state"] for row in study.status()["rows"]] == ["done"] * len(RUNTIMES)
    assert study.left() == []


def test_a_runner_killed_in_mid_run_leaves_nothing_that_its_successor_does_not_end(study: PairStudy):
    hosts = study.hosts
    hosts.limit(SLOW)
    with study.start("run", "--no-smoke") as process:
        within(START_S, "a cell starts", lambda: bool(ranks(hosts.processes("node2"))))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert study.left() != []

    hosts.limit(RATE)
    code, output = study.run("run", "--no-smoke")
    assert code == 0, output
    assert [row["state"] for row in study.status()["rows"]] == ["done"] * len(RUNTIMES)
    assert study.left() == []
