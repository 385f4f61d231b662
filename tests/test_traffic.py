"""The path of the gradients from counters: known answers from made ones, and the real ones of two workers."""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Launch
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study import records
from horovod_study.comm import require_parity, traffic
from horovod_study.comm.traffic import Need, Reading, judge, moved, must_move, received_by_connections
from horovod_study.errors import BackendError
from horovod_study.measure import environment, evidence

MB = 1_000_000


ONE_HOST = Need(within=8 * MB, between=0, total=8 * MB)  # two ranks, 4 MB
APART = Need(within=0, between=4 * MB, total=4 * MB)  # two ranks on two hosts
TWO_AND_TWO = Need(within=8 * MB, between=4 * MB, total=12 * MB)  # four ranks on two hosts


def host(**found: Any) -> Reading:
    return {"connections": {}, "infiniband": {}, "segments": (), **found}


@pytest.mark.parametrize(
    ("found", "need", "path"),
    [
        pytest.param({"connections": {"lo": 8 * MB}}, ONE_HOST, ["tcp:lo"], id="TCP of one host"),
        pytest.param({"segments": ["vader_segment.a.0"]}, ONE_HOST, ["shared memory"], id="a segment confirms"),
        pytest.param({}, ONE_HOST, ["memory"], id="nothing moved and nothing confirms"),
        pytest.param({"connections": {"lo": 4 * MB - 1}}, ONE_HOST, ["memory"], id="below half is noise"),
        pytest.param({"connections": {"lo": 4 * MB}}, ONE_HOST, ["tcp:lo"], id="half is used"),
        pytest.param({"connections": {"eth0": 4 * MB}}, APART, ["tcp:eth0"], id="TCP between hosts"),
        pytest.param(
            {"connections": {"eth0": 4 * MB}, "segments": ["vader_segment.a.0"]},
            TWO_AND_TWO,
            ["shared memory", "tcp:eth0"],
            id="both at once",
        ),
        pytest.param(
            {"connections": {"lo": 100}, "infiniband": {"infiniband:mlx5_0": 4 * MB, "infiniband:mlx5_1": 200}},
            APART,
            ["infiniband:mlx5_0"],
            id="InfiniBand",
        ),
        pytest.param(
            {"infiniband": {"infiniband:mlx5_0": 2 * MB, "infiniband:mlx5_1": 2 * MB}},
            APART,
            ["infiniband:mlx5_0", "infiniband:mlx5_1"],
            id="two ports share the load",
        ),
        pytest.param(
            {"connections": {"ib0": 4 * MB}, "infiniband": {"infiniband:mlx5_0": 4 * MB}},
            APART,
            ["tcp:ib0"],
            id="TCP over an InfiniBand interface is TCP",
        ),
        pytest.param(
            {"connections": {"lo": 2 * MB, "eth0": 10 * MB}},
            TWO_AND_TWO,
            ["tcp:eth0", "tcp:lo"],
            id="an order of ranks that does most between the hosts",
        ),
        pytest.param(
            {"connections": {"lo": 0, "eth0": 12 * MB}, "segments": ["vader_segment.a.0"]},
            TWO_AND_TWO,
            ["tcp:eth0"],
            id="an order of ranks that does all between the hosts leaves nothing for memory",
        ),
    ],
)
def test_known_paths(found: dict[str, Any], need: Need, path: list[str]) -> None:
    assert judge(host(**found), need) == (path, "")


def test_unknown_paths_have_a_reason() -> None:
    assert judge(host(connections=None), ONE_HOST) == (None, "the system does not show this process's connections")
    assert judge(host(connections={"lo": 9 * MB, "eth0": MB}), TWO_AND_TWO) == (
        None,
        "4.0 MB had to pass between the hosts, and no connection or port moved half of it (most: tcp:eth0, 1.0 MB)",
    )


def test_what_must_move() -> None:
    """Two ranks exchange each buffer once in both directions; a rank alone on its host exchanges nothing there."""
    assert must_move(["a", "a"], "a", 1000) == Need(within=2000, between=0, total=2000)
    assert must_move(["a", "a", "a", "a"], "a", 1000) == Need(within=6000, between=0, total=6000)
    assert must_move(["a", "b"], "a", 1000) == Need(within=0, between=1000, total=1000)
    assert must_move(["a", "a", "b", "b"], "b", 1000) == Need(within=2000, between=1000, total=3000)
    assert must_move(["a", "a", "b", "b", "c", "c", "d", "d"], "c", 1000) == Need(within=2000, between=1500, total=3500)


@given(st.dictionaries(st.sampled_from(["lo", "eth0", "infiniband:mlx5_0"]), st.integers(0, 2**62)), st.integers(0, MB))
def test_what_moved_is_the_growth(before: dict[str, int], growth: int) -> None:
    assert moved(before, {name: value + growth for name, value in before.items()}) == dict.fromkeys(before, growth)


def test_counters_that_begin_again_and_new_ones() -> None:
    assert moved({}, {"eth0": 7}) == {"eth0": 7}
    assert moved({"eth0": 2**40}, {"eth0": 7}) == {"eth0": 7}, "a connection that was made again"
    assert moved(None, {"lo": 1}) is None


def test_background_is_subtracted() -> None:
    """Others moved 1 MB in the quiet 0.1 s, so 5 MB of what moved in 0.5 s are theirs."""
    total, quiet = {"lo": 8 * MB, "eth0": 2 * MB}, {"lo": MB, "eth0": MB}

    assert traffic.without_background(total, quiet, total_s=0.5, quiet_s=0.1) == {"lo": 3 * MB, "eth0": 0}
    assert traffic.without_background(None, quiet, total_s=0.5, quiet_s=0.1) is None


# ------------------------------------------------------------------------------------------------ made counters


class System:
    """A made /proc and /sys whose counters can be moved."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys, self.sent = folder / "proc", folder / "sys", 10**12
        self.own: dict[str, int] | None = {"lo": 0}
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "maps").write_text("7f00 rw-s 00000000 00:18 2 /usr/lib/libc.so.6\n")
        port = self.sys / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
        (port / "counters").mkdir(parents=True)
        (port / "link_layer").write_text("InfiniBand\n")
        self.port = port
        self.move()

    def move(self, sent: int = 0) -> None:
        self.sent += sent
        (self.port / "counters" / "port_xmit_data").write_text(f"{self.sent // 4}\n")

    def read(self, *, whole_host: bool) -> Reading:
        own = None if self.own is None else dict(self.own)
        return traffic.read(whole_host=whole_host, proc=self.proc, system=self.sys, connections=lambda: own)


def test_made_counters_are_read(tmp_path: Path) -> None:
    system = System(tmp_path)

    both = system.read(whole_host=True)
    assert both["connections"] == {"lo": 0}
    assert both["infiniband"] == {"infiniband:mlx5_0": 10**12}
    (system.port / "link_layer").write_text("Ethernet\n")
    assert system.read(whole_host=True)["infiniband"] == {"roce:mlx5_0": 10**12}
    assert system.read(whole_host=False)["infiniband"] is None
    no = tmp_path / "no"
    nothing = traffic.read(whole_host=True, proc=no, system=no, connections=lambda: None)
    assert nothing == {"connections": None, "infiniband": {}, "segments": []}


class TwoRanks:
    """As much of a backend as `watch` asks for: rank 0 of two, whose peer gives the same answers or made ones."""

    rank, workers = 0, 2

    def __init__(self, *, other: Mapping[str, Any] | None = None) -> None:
        self.other = other

    def barrier(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value, {**value, **(self.other or {})}]


def watched(system: System, *, hosts: tuple[str, str], step: Callable[[], None], size: int = MB, **more: Any) -> Any:
    return traffic.watch(
        TwoRanks(other=more.get("other")),  # type: ignore[arg-type]
        step,
        hosts=hosts,
        payload_bytes=size,
        counters=system.read,
    )


def test_an_all_reduce_over_each_way(tmp_path: Path) -> None:
    system = System(tmp_path)

    def over_tcp() -> None:
        assert system.own is not None
        system.own["lo"] += MB

    found = watched(system, hosts=("a", "a"), step=over_tcp)
    assert (found["path"], found["reason"], found["ranks"]) == (["tcp:lo"], "", [["tcp:lo"], ["tcp:lo"]])
    assert found["evidence"]["all_reduces"] == 4
    assert found["evidence"]["hosts"]["a"]["within_bytes"] == 8 * MB
    assert found["evidence"]["hosts"]["a"]["connections"] == {"lo": 8 * MB}

    port = {"infiniband": {"infiniband:mlx5_3": 4 * MB}}
    found = watched(system, hosts=("a", "b"), step=lambda: system.move(MB), other=port)
    assert (found["path"], found["ranks"]) == (
        ["infiniband:mlx5_0", "infiniband:mlx5_3"],
        [["infiniband:mlx5_0"], ["infiniband:mlx5_3"]],
    )

    maps = system.proc / "self" / "maps"
    maps.write_text("7f00-7f01 rw-s 00000000 00:18 2 /dev/shm/vader_segment.node1.0.d900001.0\n")
    found = watched(system, hosts=("a", "a"), step=lambda: None)
    assert found["path"] == ["shared memory"]
    assert found["evidence"]["hosts"]["a"]["segments"] == ["vader_segment.node1.0.d900001.0"]

    system.own = None
    assert watched(system, hosts=("a", "a"), step=lambda: None)["path"] is None, "connections are not told"


def test_too_few_bytes_are_no_evidence(tmp_path: Path, golden: Golden) -> None:
    found = watched(System(tmp_path), hosts=("a", "a"), step=lambda: None, size=1000)

    assert (found["path"], found["ranks"]) == (None, [None, None])
    golden(found["reason"], "1000 bytes")


def test_one_host_unknown_makes_the_path_unknown(tmp_path: Path, golden: Golden) -> None:
    system = System(tmp_path)
    found = watched(system, hosts=("a", "b"), step=lambda: system.move(MB), other={"infiniband": {}})

    assert (found["path"], found["ranks"]) == (None, [["infiniband:mlx5_0"], None])
    golden(found["reason"], "4.0 MB")


def test_nccl_tells_what_the_kernel_cannot() -> None:
    watch = {"path": ["memory"], "reason": "", "ranks": [["memory"]] * 2, "evidence": {"all_reduces": 4}}
    logs: list[dict[str, Any]] = [{"path": ["p2p"], "reason": ""}, {"path": ["infiniband:mlx5_0"], "reason": ""}]

    found = traffic.told_by_nccl(watch, logs, ["a", "b"])
    assert (found["path"], found["ranks"]) == (["infiniband:mlx5_0", "p2p"], [["p2p"], ["infiniband:mlx5_0"]])
    assert found["evidence"] == {"all_reduces": 4, "nccl": logs}
    found = traffic.told_by_nccl(watch, [logs[0], {"path": [], "reason": "no log"}], ["a", "b"])
    assert (found["path"], found["reason"], found["ranks"]) == (None, "rank 1 on b: no log", [["p2p"], None])


def test_connections_of_this_process_are_counted_by_the_kernel() -> None:
    """100,000 bytes over lo from here to here; the mode of the sockets is left as it was."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        with socket.create_connection(server.getsockname()) as sender:
            receiver, _ = server.accept()
            sender.setblocking(False)
            before = received_by_connections()
            sender.setblocking(True)
            thread = threading.Thread(target=sender.sendall, args=(b"x" * 100_000,))
            thread.start()
            left = 100_000
            while left:
                left -= len(receiver.recv(left))
            thread.join()
            sender.close()  # what it has sent must not be what is counted
            after = received_by_connections()
            receiver.close()
    assert before is not None and after is not None
    assert after["lo"] - before["lo"] in (100_000, 100_001), "the end of a connection counts as one byte"


# ------------------------------------------------------------------------------------------------ what ranks have


def rank(host: str = "a", cores: tuple[int, ...] = (0, 1), threads: int = 1, **more: Any) -> dict[str, Any]:
    return {"host": host, "cores": list(cores), "threads": threads, "lr": 1e-3, **more}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([rank(threads=2)], None),
        ([rank(), rank()], None),
        ([rank(cores=(0,)), rank(cores=(1,))], None),
        ([rank(threads=2), rank("b", threads=2)], None),
        (
            [rank(threads=2), rank(threads=2)],
            "2 workers x 2 threads on 2 cores of a: they take the cores from each other; use --threads 1, fewer "
            "workers or more cores",
        ),
        (
            [rank("b"), rank(cores=(1,)), rank(cores=(1,)), rank(cores=(0,))],
            "2 workers x 1 thread on 1 core of a: they take the cores from each other; use fewer workers or more cores",
        ),
    ],
)
def test_crowded_cores(ranks: list[dict[str, Any]], text: str | None) -> None:
    assert evidence.oversubscribed(ranks) == text


def test_a_rank_with_another_learning_rate_is_named(golden: Golden) -> None:
    told = [{"host": host, "learning rate": lr} for host, lr in (("a", 1e-3), ("a", 1e-3), ("b", 2e-3))]
    require_parity(SimpleNamespace(gather=lambda _: told[:2]), {"learning rate": 1e-3})
    with pytest.raises(BackendError) as caught:
        require_parity(SimpleNamespace(gather=lambda _: told), {"learning rate": 1e-3})

    golden(str(caught.value), "rank 2", "0.002", "rank 0", "0.001")


def test_settings_in_the_words_of_the_options() -> None:
    settings = {
        "HOROVOD_CYCLE_TIME": {"value": "0.05", "source": "shipped"},
        "HOROVOD_IDLE_CYCLE_TIME": {"value": None, "source": "not in this build"},
        "HOROVOD_FUSION_THRESHOLD": {"value": "2500000", "source": "user"},
        "HOROVOD_CACHE_CAPACITY": {"value": "1024", "source": "library default"},
        "HOROVOD_HIERARCHICAL_ALLREDUCE": {"value": "0", "source": "library default"},
        "OMPI_MCA_mpi_yield_when_idle": {"value": "true", "source": "user"},
        "OMPI_MCA_btl_vader_single_copy_mechanism": {"value": "none", "source": "shipped"},
        "groups": {"value": 3, "source": "asked"},
        "mpi_library": "/lib/libmpi.so",
    }

    assert evidence.communication(settings) == {
        "cycle_time_ms": 0.05,
        "fusion_mb": 2.5,
        "cache_capacity": 1024,
        "hierarchical": False,
        "yield_when_idle": True,
        "single_copy": False,
        "groups": 3,
        "horovod_defaults": False,
    }
    assert evidence.communication({}) == {}


STAT = """cpu  9 9 9 9 9 9 9 9 0 0
cpu0 100 0 0 {0} 7 0 0 0 0 0
cpu1 100 10 10 {1} 9 1 2 3 0 0
cpu2 9999 0 0 0 0 0 0 0 0 0
intr 5 4 3
"""


def test_other_programs_are_what_the_cores_did_beyond_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(evidence, "own_cpu_s", iter([5.0, 5.25]).__next__)
    monkeypatch.setattr(evidence, "now", iter([0.0, 0.0, 0.5]).__next__)
    monkeypatch.setattr(environment, "now", iter([0.0, 0.5]).__next__)
    monkeypatch.setattr(evidence, "sleep", lambda seconds: None)
    (tmp_path / "stat").write_text(STAT.format(500, 500))
    load = evidence.OtherLoad([0, 1], proc=tmp_path)
    (tmp_path / "stat").write_text(STAT.format(525, 510))

    assert load.sample(at_least_s=0.5) == pytest.approx({"seconds": 0.5, "busy_s": 0.65, "own_s": 0.25})


def test_other_load_needs_time_and_a_system_that_tells(tmp_path: Path) -> None:
    assert evidence.OtherLoad([0]).sample(at_least_s=0.0) is None
    assert evidence.OtherLoad([0], proc=tmp_path).sample(at_least_s=0.0) is None


def test_what_the_ranks_use_themselves_is_no_other_program(golden: Golden) -> None:
    ranks = [rank(), rank(), rank("b")]
    samples: list[dict[str, float] | None] = [
        {"seconds": 0.5, "busy_s": 0.9, "own_s": 0.25},
        {"seconds": 0.5, "busy_s": 0.9, "own_s": 0.15},
        None,
    ]

    assert evidence.other_cores(samples, ranks) == {"a": 1.0, "b": None}
    assert evidence.disturbed({"a": 0.2, "b": None}, ranks) is None
    assert evidence.disturbed({"a": 1.0, "b": 1.0}, [rank(cores=(0, 1, 2, 3)), rank("b")]) is None
    golden(evidence.disturbed({"a": 1.0}, ranks[:2]), "1.0", "2 cores")


# ------------------------------------------------------------------------------------------------ real workers

DATA = ("--dataset", "400", "--batch", "20", "--warmup-steps", "0", "--steps", "3", "--no-checkpoint-at-end")


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("launcher", "options", "path"),
    [
        (
            "mpirun",
            ("--backend", "mpi", "--require", "transport=mpi,path=shared-memory,ranks_per_host=2"),
            ["shared memory"],
        ),
        ("horovodrun --gloo", ("--cycle-time-ms", "0.25", "--require", "asked,path=tcp"), ["tcp:lo"]),
        ("torchrun", (), ["tcp:lo"]),
    ],
)
def test_the_path_of_real_workers_who_run_as_required(
    launch: Launch, tmp_path: Path, launcher: str, options: tuple[str, ...], path: list[str]
) -> None:
    done = launch(launcher, 2, *DATA, *options, "--json", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    effective = records.read_run(tmp_path / "run").effective
    printed = json.loads(re.search(r"\{.*\}", done.stdout)[0])  # type: ignore[index]

    assert (effective["path"], effective["path_reason"]) == (path, "")
    assert (printed["path"], printed["reduction"]) == (path, effective["reduction"])
    assert effective["ranks_per_host"] == [2]
    if launcher == "horovodrun --gloo":
        assert [each["communication"]["cycle_time_ms"] for each in effective["ranks"]] == [0.25, 0.25]
    first, second = effective["ranks"]
    assert (first["local_rank"], second["local_rank"]) == (0, 1)
    assert first["pid"] != second["pid"]
    for each in (first, second):
        assert (each["path"], each["device"], each["gpu"], each["threads"]) == (path, "cpu", None, 1)
        assert each["lr"] == pytest.approx(4.7331e-4)
    (here,) = effective["path_evidence"]["hosts"].values()
    payload = effective["path_evidence"]["payload_bytes"]
    assert (payload, here["within_bytes"]) == (4 * effective["parameters"], 2 * 7 * payload)
    if path == ["tcp:lo"]:
        assert here["within_bytes"] <= here["connections"]["lo"] <= 1.1 * here["within_bytes"]
    else:
        assert here["connections"].get("lo", 0) < 0.01 * here["within_bytes"]
        assert any("vader" in name for name in here["segments"])


@pytest.mark.horovod
def test_mpi_over_tcp_is_seen_as_tcp(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI says mpi in both cases; the bytes tell."""
    monkeypatch.setenv("OMPI_MCA_btl", "tcp,self")
    done = launch("mpirun", 2, *DATA, "--backend", "mpi", "--out", str(tmp_path / "run"))

    assert done.returncode == 0, done.stderr
    assert records.read_run(tmp_path / "run").effective["path"] == ["tcp:lo"]
    assert "2 workers (mpi over mpi, flat reduction, through tcp:lo)" in done.stderr
