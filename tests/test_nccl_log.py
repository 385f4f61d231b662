"""NCCL's log lines, as its versions print them, and who owns the file they are in."""

import os
from pathlib import Path

import pytest
from make.wording import Golden

from horovod_study.comm.traffic import Capture, parse


def log(*lines: str) -> str:
    return "".join(f"node1:4711:4720 [0] NCCL INFO {line}\n" for line in lines)


IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.0.1<0>"


@pytest.mark.parametrize(
    ("lines", "nets", "paths", "path"),
    [
        pytest.param(
            (
                IB,
                "Using network IB",
                "Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA",
                "Channel 01/0 : 1[1] -> 2[0] [receive] via NET/IB/1/GDRDMA",
                "Channel 00/0 : 2[0] -> 1[1] [send] via NET/IB/0/GDRDMA/Shared",
                "Channel 00/0 : 2[0] -> 3[1] via P2P/CUMEM",
                "Connected all rings",
            ),
            ["IB mlx5_0", "IB mlx5_1"],
            {"NET/IB": 3, "P2P/CUMEM": 1},
            ["infiniband:mlx5_0", "infiniband:mlx5_1", "p2p"],
            id="InfiniBand between hosts, copies between the GPUs of one",
        ),
        pytest.param(
            (
                "NET/IB : No device found.",
                "NET/Socket : Using [0]eth0:172.16.0.7<0> [1]eth1:172.17.0.7<0>",
                "Using network Socket",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/1",
                "Channel 01/0 : 1[0] -> 0[0] [receive] via NET/Socket/1",
            ),
            ["Socket eth0", "Socket eth1"],
            {"NET/Socket": 2},
            ["tcp:eth1"],
            id="TCP over the second interface",
        ),
        pytest.param(
            ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "Channel 01 : 0[0] -> 1[1] via SHM/CE/direct"),
            [],
            {"SHM/CE": 1, "SHM/direct": 1},
            ["shared memory"],
            id="shared memory of a host",
        ),
        pytest.param(
            (
                "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read",
                "Channel 01/0 : 0[0] -> 1[1] via P2P/IPC comm 0x55aa nRanks 02",
                "Channel 02/0 : 0[0] -> 1[1] via P2P/direct pointer",
                "Channel 03/0 : 0[0] -> 2[2] via P2P/indirect/1[1]",
            ),
            [],
            {"P2P/IPC": 2, "P2P/direct": 1, "P2P/indirect": 1},
            ["p2p"],
            id="copies between GPUs in all their names",
        ),
        pytest.param(
            (
                "NET/OFI Selected Provider is efa (found 4 nics)",
                "Using network AWS Libfabric",
                "Channel 03 : 7[a01d0] -> 14[a01c0] [receive] via NET/AWS Libfabric/3/GDRDMA",
            ),
            ["OFI efa"],
            {"NET/AWS Libfabric": 1},
            ["ofi:efa"],
            id="libfabric of a cloud",
        ),
        pytest.param(
            (
                "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)",
                "Channel 00/0 : 3[3] -> 14[6] [send] via NET/Libfabric/3/GDRDMA",
            ),
            ["OFI cxi"],
            {"NET/Libfabric": 1},
            ["ofi:cxi"],
            id="libfabric of a Cray",
        ),
        pytest.param(
            (
                "NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
            ),
            ["RoCE mlx5_4"],
            {"NET/IB": 1},
            ["roce:mlx5_4"],
            id="what NCCL calls IB may be Ethernet",
        ),
        pytest.param(
            (
                "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB [RO]; OOB ib0:10.1.0.1<0>",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v8/0(1)/GDRDMA",
            ),
            ["IB mlx5_0", "IB mlx5_1", "IB mlx5_2"],
            {"NET/IBext_v8": 1},
            ["infiniband:mlx5_0", "infiniband:mlx5_1"],
            id="ports used as one, through a plugin",
        ),
        pytest.param(
            (
                IB,
                "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2/GDRDMA",
            ),
            ["IB mlx5_0", "IB mlx5_1"],
            {"NET/IB": 1},
            ["infiniband:mlx5_0", "infiniband:mlx5_1"],
            id="ports used as one, in newer words",
        ),
        pytest.param(
            (IB, "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA"),
            ["IB mlx5_0", "IB mlx5_1"],
            {"COLLNET/SHARP": 1},
            ["infiniband"],
            id="sums in the switch",
        ),
        pytest.param((IB, "Using network IB"), ["IB mlx5_0", "IB mlx5_1"], {}, [], id="no channel yet"),
        pytest.param(("Bootstrap : Using eth0:10.0.0.1<0>",), [], {}, [], id="the interface of the start is no path"),
    ],
)
def test_known_lines(lines: tuple[str, ...], nets: list[str], paths: dict[str, int], path: list[str]) -> None:
    assert parse(log(*lines)) == {"version": None, "nets": nets, "paths": paths, "path": path}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL version 2.18.3+cuda12.1\n", "2.18.3+cuda12.1"),
        ("node1:4711:4711 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n", "2.28.9+cuda13.0"),
        ("[2026-05-05 06:16:47] node1:18:18 [3] NCCL INFO NCCL version 2.27.3\n", "2.27.3"),
        ("", None),
    ],
)
def test_the_version_is_found_in_old_and_new_lines(line: str, version: str | None) -> None:
    assert parse(line)["version"] == version


def test_the_log_is_captured_read_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    environ: dict[str, str] = {"OTHER": "1"}
    monkeypatch.setattr(os, "environ", environ)
    capture = Capture(wanted=True)
    file = Path(environ["NCCL_DEBUG_FILE"])

    assert (environ["NCCL_DEBUG"], environ["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    file.write_text(log("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"))
    assert capture.read()["path"] == ["p2p"]
    assert capture.read()["reason"] == ""
    capture.close()
    capture.close()
    assert not file.parent.exists()
    assert environ == {"OTHER": "1"}


def test_a_log_that_nccl_has_not_written_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_DEBUG", raising=False)
    capture = Capture(wanted=True)
    found = capture.read()
    capture.close()

    assert found["path"] == []
    assert "cannot be read (No such file or directory)" in found["reason"]


def test_a_log_without_channels_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.log"))
    (tmp_path / "nccl.log").write_text("NCCL version 2.21.5+cuda12.4\n")
    found = Capture(wanted=True).read()

    golden((found["version"], found["reason"]), "2.21.5+cuda12.4", "NCCL's", "NCCL_DEBUG=INFO")


def test_the_users_own_setting_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    environ = {"NCCL_DEBUG": "WARN"}
    monkeypatch.setattr(os, "environ", environ)
    capture = Capture(wanted=True)

    golden(capture.read()["reason"], "NCCL_DEBUG_FILE")
    capture.close()
    assert environ == {"NCCL_DEBUG": "WARN"}

    name = f"nccl.{os.uname().nodename}.{os.getpid()}"
    (tmp_path / name).write_text(log("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"))
    monkeypatch.setattr(os, "environ", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p"})
    capture = Capture(wanted=True)
    assert capture.read()["path"] == ["shared memory"]
    capture.close()
    assert (tmp_path / name).exists(), "it is the user's file"


def test_nothing_is_captured_where_nccl_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environ)
    Capture(wanted=False).close()

    assert environ == {}
