"""The doctor: every check with programs put in its place, hosts behind an ssh that is one, and once for real."""

import errno
import json
import os
import platform
import resource
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make.wording import Golden
from rich.console import Console
from slurm_cluster import SlurmCluster
from two_hosts import TwoHosts

from horovod_study.cluster import doctor
from horovod_study.cluster.doctor import Finding, checks, examine, exit_code
from horovod_study.cluster.doctor.checks import CHECKS, Machine, Wrong, gpus_in, mpi_of, seconds_of
from horovod_study.cluster.partitions import Host, Partition
from horovod_study.cluster.site import free_port
from horovod_study.report import doctor as report


def file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class Place:
    """A machine made of small scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("bin", "site", "tools"):
            (root / name).mkdir()
        for name in ("sh", "cat", "sleep", "bash"):  # and nothing else of this machine
            program = next(path for path in (f"/bin/{name}", f"/usr/bin/{name}") if Path(path).exists())
            (root / "tools" / name).symlink_to(program)
        self.environ = {"PATH": f"{root / 'site'}:{root / 'tools'}", "HOME": str(root)}
        self.there = {"torch": "2.13.0", "horovod": "0.28.1", "mpi4py": "4.1.2"}  # installed
        self.cards = {"eth0": "10.0.0.1"}
        self.names = {platform.node(): ["10.0.0.1"]}

    def program(self, name: str, text: str, *, beside: bool = False) -> Path:
        """Put a shell script on PATH, or beside Python."""
        path = self.root / ("bin" if beside else "site") / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def python(self, says: str = "", fails: str = "") -> None:
        """A Python that prints one line, or fails with a text."""
        self.program(
            "python", f"echo {shlex.quote(fails)} >&2; exit 1" if fails else f"echo {shlex.quote(says)}", beside=True
        )

    def look(self, **how: Any) -> Machine:
        return Machine(environ=self.environ, **how)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    machine = Place(tmp_path)
    monkeypatch.setattr(checks, "PROC", tmp_path / "proc")
    monkeypatch.setattr(checks, "SYSTEM", tmp_path / "sys")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(checks, "installed", machine.there.get)
    monkeypatch.setattr(checks, "cards", lambda: machine.cards)
    monkeypatch.setattr(checks, "_addresses", lambda name: machine.names.get(name, []))
    return machine


def told(name: str, here: Machine, area: str = "") -> Finding | None:
    """Return what one check says; None: nothing."""
    row = next(each for each in CHECKS if each.name == name and each.area.startswith(area))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "CHECKS", (row,))
        return next(iter(checks.look(here, on=(row.on,))), None)


def judged(name: str, here: Machine, area: str = "") -> str:
    """Return the verdict and the words of one check, with the remedy."""
    found = told(name, here, area)
    return "" if found is None else f"{found.verdict}: {found.what}" + (f" -> {found.remedy}" if found.remedy else "")


def test_the_table_names_each_check_once_with_a_remedy() -> None:
    assert len({(row.area, row.name) for row in CHECKS}) == len(CHECKS) <= 25
    assert {row.otherwise for row in CHECKS} == {"warning", "fail"}
    assert {row.on for row in CHECKS} == {"here", "host", "slow"} and CHECKS[0].name == "load"
    assert all(row.remedy for row in CHECKS)


def test_a_check_that_breaks_is_a_finding_and_hides_no_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("gone")

    monkeypatch.setattr(checks, "_quota", broken)
    found = {each.name: each for each in checks.look(place.look(), on=("host",))}

    assert (found["cores"].verdict, found["cores"].what) == ("warning", "could not be checked: OSError: gone")
    assert {*found} == {"load", "cores", "memory", "InfiniBand", "packages"}


def test_a_program_that_hangs_is_killed_with_its_children(place: Place) -> None:
    note = place.root / "child"
    hangs = place.program("hangs", f"sleep 60 & echo $! > {note}; wait")

    for limit_s in (1.0, 10.0, 100.0):  # until the shell has come so far; at once on a quiet machine
        with pytest.raises(Wrong, match=f"^hangs did not answer within {limit_s:g} s$"):
            place.look(limit_s=limit_s).call(str(hangs))
        if note.exists() and note.read_text().endswith("\n"):
            break

    child = Path("/proc", note.read_text().strip(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'sinfo: error: no daemon' >&2; echo bye >&2; exit 1", "no daemon"),
        ("echo x; echo 'ImportError: libmpi.so.40: cannot open' >&2; exit 1", "ImportError: libmpi.so.40: cannot open"),
        ("echo told here; exit 1", "told here"),
        ("exit 3", "exit code 3"),
    ],
)
def test_why_a_program_did_not_work(place: Place, script: str, reason: str) -> None:
    with pytest.raises(Wrong) as wrong:
        place.look().call(str(place.program("fails", script)))
    assert str(wrong.value) == reason
    with pytest.raises(Wrong, match=r"^/no/such cannot be started"):
        place.look().call("/no/such")


def test_the_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place.root / "checkout" / ".venv"
    file(own / "bin" / "python", "")
    (place.root / "other" / "torch").mkdir(parents=True)
    monkeypatch.setattr("horovod_study.__file__", str(place.root / "checkout/horovod_study/__init__.py"))
    place.environ["PYTHONPATH"] = f":{place.root / 'other'}"

    found = judged("environment", place.look())
    assert found.startswith("warning: Python 3") and f"one of its own, {own}" in found
    assert f"{place.root / 'other'} of PYTHONPATH puts its torch before" in found
    monkeypatch.setattr(sys, "prefix", str(own))
    del place.environ["PYTHONPATH"]
    assert judged("environment", place.look()).startswith("ok")
    assert "without numpy, PyYAML" in judged("packages", place.look())


@pytest.mark.slow
def test_the_examination_needs_no_pytorch(tmp_path: Path) -> None:
    """It is there to say that PyTorch is missing."""
    program = "import sys; sys.modules['torch'] = None; from horovod_study import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "doctor", "--quick", "--json"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["findings"]


def test_nothing_heavy_is_loaded_in_a_quick_examination(place: Place) -> None:
    assert [told(name, place.look(quick=True)) for name in ("loads", "two ranks", "starts", "sbatch --test-only")] == [
        None
    ] * 4


HYDRA = "HYDRA build details:\n    Version:    4.2.1"
OPEN_MPI = "mpirun (Open MPI) 4.1.8"


def test_which_mpi_it_is() -> None:
    said = {
        "mpirun (Open MPI) 4.1.8\n\nReport bugs": "mpirun (Open MPI) 4.1.8",
        f"{HYDRA}\n": "HYDRA build details: Version: 4.2.1",
        "Intel(R) MPI Library 2021.12 for Linux* OS": "Intel(R) MPI Library 2021.12",
        "MPI VERSION    : CRAY MPICH version 8.1.28.11 (ANL)": "MPI VERSION : CRAY MPICH version 8.1.28.11",
        "a program": "",
        "": "",
    }
    assert {each: mpi_of(each) for each in said} == said


@pytest.mark.parametrize(
    ("says", "python", "mpirun", "ranks"),
    [
        (OPEN_MPI, {"says": "2 mpi4py over Open MPI"}, "ok", "ok"),
        (HYDRA, {"says": "1 mpi4py over Open MPI"}, "ok", "fail: mpirun started two, and each takes itself for the"),
        ("mpirun (Open MPI) 5.0.3", {"says": "2 mpi4py"}, "fail: PLACE is mpirun (Open MPI) 5.0.3: it refuses", "ok"),
        ("a program", {"says": "2 mpi4py"}, "warning: PLACE is none that says its version", "ok"),
        (OPEN_MPI, {"fails": "ImportError: libmpi.so.40: cannot open"}, "ok", "fail: ImportError: libmpi.so.40"),
    ],
)
def test_mpirun_and_mpi4py(place: Place, says: str, python: Any, mpirun: str, ranks: str) -> None:
    start = 'while [ "$1" != -np ]; do shift; done; shift 2; exec "$@"'
    at = place.program("mpirun", f'[ "$1" = --version ] && {{ echo "{says}"; exit; }}\n{start}', beside=True)
    place.python(**python)

    assert judged("mpirun", place.look()).startswith(mpirun.replace("PLACE", str(at)))
    assert judged("two ranks", place.look()).startswith(ranks)


def test_neither_mpirun_nor_mpi4py_nor_horovod(place: Place) -> None:
    place.there.clear()

    assert judged("mpirun", place.look()).startswith("warning: neither beside Python nor on PATH")
    assert judged("two ranks", place.look()).startswith("warning: mpirun or mpi4py is missing")
    assert judged("starts", place.look()).startswith("warning: not installed: only runs of serial")


GPUS = Partition(name="alpha", scheduler="slurm", gpus_per_node=8, cores_per_node=48)


@pytest.mark.parametrize(
    ("python", "gpus", "partition", "found"),
    [
        ({"says": "ok PyTorch 2.13.0 for CPUs"}, 0, None, "ok: PyTorch 2.13.0 for CPUs"),
        ({"says": "warning PyTorch for CPUs: GPUs would be idle"}, 2, None, "warning: PyTorch for CPUs: GPUs would"),
        ({"says": "fail PyTorch computes on 0 of 8 GPUs"}, 0, GPUS, "ok: PyTorch computes on 0 of 8"),
        (
            {"says": "fail PyTorch computes on 0 of 2 GPUs"},
            2,
            None,
            "fail: PyTorch computes on 0 of 2 GPUs; CUDA_VISIB",
        ),
        ({"fails": "OSError: libc10.so: cannot open"}, 0, None, "fail: OSError: libc10.so: cannot open"),
    ],
)
def test_pytorch_and_gpus(place: Place, python: Any, gpus: int, partition: Any, found: str) -> None:
    place.python(**python)
    if gpus:
        place.program(
            "nvidia-smi", 'case "$1" in -L) echo a; echo b;; *) echo "H200, 550.1"; echo "H200, 550.1";; esac'
        )
        place.environ["CUDA_VISIBLE_DEVICES"] = "0,7"
        assert judged("driver", place.look()) == "ok: 2 GPUs: H200, 550.1"

    assert judged("loads", place.look(partition=partition)).startswith(found)


def test_what_nvidia_smi_says(place: Place) -> None:
    assert judged("driver", place.look()).startswith("ok: no GPU here")
    file(place.root / "proc/driver/nvidia/version", "NVRM version: ...")
    assert judged("driver", place.look()).startswith("fail: its module is loaded, but nvidia-smi is not on PATH")
    place.program("nvidia-smi", "echo 'NVML: Driver/library version mismatch' >&2; exit 18")
    assert judged("driver", place.look()).startswith("fail: NVML: Driver/library version mismatch")
    place.program("nvidia-smi", "true")
    assert judged("driver", place.look()).startswith("fail: nvidia-smi lists no GPU")


@pytest.mark.parametrize(
    ("build", "python", "found"),
    [
        ("", {"says": "1 0.28.1 with mpi+gloo, GPU tensors by none, lib"}, "ok: installed: 0.28.1 with mpi+gloo"),
        ("", {"fails": "ImportError: x.so: undefined symbol: _ZN3c10"}, "fail: installed does not start: ImportError"),
        ("", {"says": "1 0.28.1 with gloo, GPU tensors by none, lib"}, "fail: installed: 0.28.1 with gloo"),
        ("", {"says": "2 0.28.1 with mpi+gloo, GPU tensors by none, lib"}, "fail: installed: 0.28.1"),
        ("mpi", {"says": "1 0.28.1 with mpi+gloo, GPU tensors by MPI, lib"}, "ok: build mpi"),
        ("mpi", {"says": "1 0.28.1 with mpi+gloo, GPU tensors by host, lib"}, "fail: build mpi"),
        ("nccl", {"says": "1 0.28.1 with mpi+gloo+nccl, GPU tensors by NCCL, lib"}, "ok: build nccl"),
        ("nccl", {"says": "1 0.28.1 with mpi+gloo, GPU tensors by none, lib"}, "fail: build nccl"),
    ],
)
def test_horovod_and_its_builds(place: Place, build: str, python: Any, found: str) -> None:
    if build:
        file(place.root / "lib" / "horovod-builds" / build / "horovod" / "__init__.py", "")
        place.there.clear()
    place.python(**python)

    assert judged("starts", place.look()).startswith(found)


MAIN = Partition(
    name="mine", scheduler="slurm", slurm_partition="main", nodes=2, cores_per_node=4, gpus_per_node=2,
    gres="gpu:{gpus}",
)  # fmt: skip
SEVERAL = {"several": True}
ETH, IB = {"eth0": "10.0.0.1"}, {"ib0": "10.1.0.1"}


@pytest.mark.parametrize(
    ("name", "cards", "how", "verdict"),
    [
        ("interfaces", ETH, SEVERAL, "ok"),
        ("interfaces", {}, {}, "ok"),
        ("interfaces", {}, SEVERAL, "fail"),
        ("interfaces", ETH | IB, SEVERAL, "warning"),
        ("interfaces", ETH | IB, {"several": True, "interface": "ib0"}, "ok"),
        ("interfaces", ETH | IB, {}, "ok"),
        ("interfaces", ETH, {"several": True, "interface": "ib0"}, "fail"),
        ("variables", ETH, {"environ": {"HOROVOD_GLOO_IFACE": "eth0"}}, "ok"),
        ("variables", ETH, {"environ": {"HOROVOD_GLOO_IFACE": "ib0"}}, "fail"),
        ("variables", ETH, {"environ": {"NCCL_SOCKET_IFNAME": "eth"}}, "ok"),
        ("variables", ETH, {"environ": {"NCCL_SOCKET_IFNAME": "=eth"}}, "fail"),
        ("variables", ETH, {"environ": {"NCCL_SOCKET_IFNAME": "^docker"}}, "ok"),
        ("variables", ETH, {"environ": {"OMPI_MCA_btl_tcp_if_include": "eth0,ib0"}}, "fail"),
        ("variables", ETH, {"environ": {"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24"}}, "ok"),
        ("variables", ETH, {"environ": {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0"}}, "warning"),
    ],
)
def test_the_network(place: Place, name: str, cards: Any, how: Any, verdict: str, golden: Golden) -> None:
    place.cards = cards
    found = judged(name, replace(place.look(), **how))

    assert found.split(":")[0] == verdict
    golden(found)


def test_the_own_name(place: Place) -> None:
    assert judged("own name", place.look(several=True)).startswith("ok")
    place.names = {platform.node(): ["127.0.1.1"]}
    assert judged("own name", place.look()).startswith("ok")
    assert judged("own name", place.look(several=True, interface="eth0")).startswith("ok")
    assert "127.0.1.1: Gloo would listen to this machine only" in judged("own name", place.look(several=True))
    place.names = {}
    assert judged("own name", place.look()).startswith(f"warning: {platform.node()} is unknown")


def test_interfaces_are_those_that_are_up_and_lead_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    v4, v6 = socket.AF_INET, socket.AF_INET6
    cards = {
        "lo": [(v4, "127.0.0.1")],
        "eth0": [(v6, "fe80::1"), (v4, "10.77.0.1")],
        "down": [(v4, "10.9.0.1")],
        "bare": [],
    }
    addresses = {
        name: [SimpleNamespace(family=family, address=address) for family, address in rows]
        for name, rows in cards.items()
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: addresses)
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: SimpleNamespace(isup=name != "down") for name in cards})

    assert checks.cards() == {"eth0": "10.77.0.1"}


# ---------------------------------------------------------------------------------------------------------- Slurm


def with_slurm(place: Place, *, states: Sequence[str] = ("idle", "idle", "up"), sbatch: str = "true") -> None:
    nodes = "\n".join(f"n{n}|4|4000|gpu:2|{states[n]}|1:00:00|{states[2]}|main*" for n in (0, 1))
    place.program("sinfo", f"case \"$*\" in *alpha*) ;; *) cat <<'END'\n{nodes}\nEND\n;; esac")
    for name in ("squeue", "srun", "scancel", "sacct"):
        place.program(name, "true")
    place.program("sbatch", sbatch)


def test_no_slurm_is_fine_unless_it_is_wanted(place: Place, golden: Golden) -> None:
    assert judged("answers", place.look()) == "ok: it is not here"
    assert told("partition", place.look()) is None is told("sbatch --test-only", place.look())
    golden(judged("answers", place.look(partition=MAIN)), "fail")
    place.program("sinfo", "")
    assert judged("answers", place.look()).startswith("warning")


def test_a_slurm_that_is_what_the_file_says(place: Place) -> None:
    with_slurm(place)
    place.environ["SLURM_JOB_ID"] = "9"
    look = place.look(partition=replace(MAIN, memory_per_core_mb=1000))

    assert judged("answers", look) == "ok: sinfo lists 2 nodes; this shell is in job 9"
    assert judged("partition", look) == "ok: main is up, 2 of 2 nodes usable"
    assert judged("sbatch --test-only", look) == "ok: a job of one full node would be taken"


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        ({"slurm_partition": "alpha"}, "fail", "alpha: no such partition"),
        ({"cores_per_node": 8}, "fail", "8, Slurm knows 4"),
        ({"cores_per_node": 2}, "warning", "2, Slurm knows 4"),
        ({"memory_per_core_mb": 10312}, "fail", "10312, Slurm knows 1000"),
        ({"gpus_per_node": 4}, "fail", "4, Slurm knows 2"),
        ({"gpus_per_node": 1}, "warning", "1, Slurm knows 2"),
        ({"gres": None}, "warning", "gres"),
        ({"time_limit_s": 7200.0}, "fail", "7200.0, Slurm knows 3600"),
        ({"nodes": 5}, "warning", "5, Slurm knows 2"),
        ({"nodes": None}, "warning", "None, Slurm knows 2"),
    ],
)
def test_a_partition_and_its_file(place: Place, change: Any, verdict: str, says: str, golden: Golden) -> None:
    with_slurm(place)
    found = judged("partition", place.look(partition=replace(MAIN, **change)))

    assert found.split(":")[0] == verdict
    golden(found, says)


def test_states_of_a_partition(place: Place, golden: Golden) -> None:
    look = place.look(partition=replace(MAIN, slurm_partition=None))
    found = []
    for states in (
        ("idle", "idle", "down"),
        ("drained", "down*", "up"),
        ("idle", "down*", "up"),
        ("mixed-", "idle~", "up"),
    ):
        with_slurm(place, states=states)
        found.append(judged("partition", look))

    assert [each.split(":")[0] for each in found] == ["fail", "fail", "warning", "ok"]
    golden(found)


def test_a_slurm_that_does_not_answer(place: Place) -> None:
    with_slurm(place)
    place.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")

    assert judged("answers", place.look()).startswith("warning: sinfo does not answer: ")
    assert "Unable to contact slurm controller" in judged("answers", place.look(partition=MAIN))


def test_a_job_that_would_be_refused(place: Place, golden: Golden) -> None:
    for said, remedy in {
        "Invalid account or account/partition combination specified": "sacctmgr",
        "Invalid qos specification": "sacctmgr",
        "Requested node configuration is not available": "the line above",
        "Something else": "sbatch --test-only --job-name",
    }.items():
        with_slurm(place, sbatch=f"echo 'sbatch: error: {said}' >&2; exit 1")
        golden(judged("sbatch --test-only", place.look(partition=MAIN)), "fail", said, remedy)


def test_the_job_that_is_tried_is_that_of_a_study(place: Place) -> None:
    note = place.root / "asked"
    place.environ |= {"SBATCH_ACCOUNT": "wrong", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": "9"}
    with_slurm(place, sbatch=f'echo "$* $SBATCH_ACCOUNT $SLURM_CONF $SLURM_JOB_ID" > {note}')

    told("sbatch --test-only", place.look(partition=replace(MAIN, account="a1", qos="high", memory_per_core_mb=1000)))

    asked = note.read_text()
    assert asked.startswith("--test-only --job-name=horovod-study-doctor --partition=main --account=a1 --qos=high ")
    assert "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:2 --mem-per-cpu=1000M --exclusive" in asked
    assert "wrong" not in asked and asked.rstrip().endswith(" /etc/x.conf"), "the caller's own settings are left out"


def test_gpus_and_time_limits_as_slurm_writes_them() -> None:
    gres = {"gpu:2": 2, "gpu:a100:4(S:0-1),shard:8": 4, "(null)": 0, "gpu:a100:2,gpu:h100:1": 3, "gpu": 1, "N/A": 0}
    limits = {"1:00:00": 3600, "30:00": 1800, "2-12:00:00": 216_000, "infinite": None, "n/a": None}

    assert {each: gpus_in(each) for each in gres} == gres
    assert {each: seconds_of(each) for each in limits} == limits


# -------------------------------------------------------------------------------------------- folder and machine


def test_the_quota_is_the_tightest_of_the_control_groups(place: Place) -> None:
    file(place.root / "proc/self/cgroup", "0::/job/step")
    file(place.root / "sys/fs/cgroup/job/cpu.max", "150000 100000")
    file(place.root / "sys/fs/cgroup/job/step/cpu.max", "250000 100000")
    assert checks._quota() == 1.5

    file(place.root / "proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x")
    file(place.root / "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1")
    file(place.root / "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000")
    assert checks._quota() is None
    file(place.root / "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "50000")
    file(place.root / "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000")
    assert checks._quota() == 0.5


def test_active_ports_of_infiniband(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, 0))
    assert judged("InfiniBand", place.look()) == "ok: none: TCP between hosts"
    state = place.root / "sys/class/infiniband/mlx5_0/ports/1/state"
    file(state, "1: DOWN")
    assert judged("InfiniBand", place.look()).startswith("warning: there are devices, but no port is active")
    file(state, "4: ACTIVE")
    assert judged("InfiniBand", place.look()) == "ok: active: mlx5_0:1"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 * 2**20, 0))
    assert judged("InfiniBand", place.look()).startswith("warning: mlx5_0:1: at most 8.39 MB may be locked")


def test_cores_memory_and_who_computes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "available_cores", lambda: 4)
    assert judged("cores", place.look(workers=4)) == "ok: 4 cores"
    assert judged("cores", place.look(workers=5)).startswith("warning: 4 cores for 5 workers: they would share")
    monkeypatch.setattr(checks, "_quota", lambda: 1.5)
    assert judged("cores", place.look()).startswith("warning: the control group allows the time of 1.5 of 4 cores")
    for free, shared, verdict in (
        (8e9, 2**35, "ok"),
        (1e8, 2**35, "warning"),
        (None, 2**26, "warning"),
        (None, 2**30, "ok"),
    ):
        monkeypatch.setattr(checks, "available_bytes", lambda free=free: free)
        monkeypatch.setattr("shutil.disk_usage", lambda _, shared=shared: SimpleNamespace(free=shared))
        assert judged("memory", place.look()).startswith(verdict)
    monkeypatch.setattr(checks, "other_load", lambda cores, *, seconds: "other programs use 2.0 of 4 cores (a 2.0)")
    assert judged("load", place.look()).startswith("warning: other programs use 2.0 of 4")
    assert judged("load", place.look(partition=MAIN)).startswith("ok"), "jobs run on other nodes"


def test_the_room_and_kind_of_a_folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("", "ext4"), ("/home", "nfs4"), ("/home/my\\040scratch", "lustre"), ("/run", "tmpfs")]
    file(place.root / "proc/self/mounts", "\n".join(f"x {place.root}{point} {each} rw 0 0" for point, each in mounts))
    for name in ("data", "home/me", "home/my scratch", "homes", "run/x"):
        (place.root / name).mkdir(parents=True)
    free = [10**12]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free[0]))

    def of(name: str, **how: Any) -> str:
        return judged("space", place.look(runs=place.root / name / "runs", **how))

    assert f"{place.root}/data is on ext4, 1 TB free" in of("data") and "nfs4" in of("home/me")
    assert "lustre" in of("home/my scratch", partition=MAIN) and of("homes", partition=MAIN).startswith("warning")
    assert of("run/x").startswith("warning") and "it is gone with the machine" in of("run/x")
    free[0] = 10**9
    assert of("data").startswith("warning")
    free[0] = 10**8
    assert of("data").startswith("fail")


@pytest.mark.parametrize(
    ("function", "does", "problem"),
    [
        ("link", errno.EPERM, "hard links: Operation not permitted"),
        ("link", lambda there, name: Path(name).write_text("copy"), "hard links replace each other"),
        ("replace", errno.EXDEV, "writing: Invalid cross-device link"),
        ("write_bytes", errno.ENOSPC, "writing: No space left on device; make room"),
        ("", 0, ""),
    ],
)
def test_a_poor_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, does: Any, problem: str) -> None:
    def refused(*_: object) -> None:
        raise OSError(does, os.strerror(does))

    call: Callable[..., Any] = does if callable(does) else refused
    if function:
        monkeypatch.setattr(Path if function == "write_bytes" else os, function, call)

    found = judged("writable", Machine(environ={}, runs=tmp_path / "not" / "yet"))
    monkeypatch.undo()
    assert found.startswith(f"fail: {problem}" if problem else "ok")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------- other hosts


def test_hosts_reach_each_other_while_both_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_TRIES", 4)
    here, there = free_port(), free_port()
    with ThreadPoolExecutor(2) as pool:
        ways = list(pool.map(checks._reached, (here, there), [["127.0.0.1", "127.0.0.2"]] * 2, (there, here)))

    assert ways == [{"127.0.0.1": ("127.0.0.1", ""), "127.0.0.2": ("127.0.0.1", "")}] * 2
    monkeypatch.setattr(checks, "_TRIES", 1)
    assert checks._reached(here, ["127.0.0.1"], there) == {"127.0.0.1": ("", "Connection refused")}


FAKE_SSH = """
while [ "$1" = -o ]; do shift 2; done
host=$1; shift 2
case "$host" in
{cases}
esac
exec sh -c "$*"
"""


class Pair:
    """node1 and node2 behind an ssh that is a script; what they say of themselves can be changed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.cases = {"none": "true"}
        self.ahead_s = 0.0
        names = {"node1": ["10.0.0.1"], "node2": ["10.0.0.2"]}
        packages = ["packages", "ok", told("packages", place.look()).what, ""]  # type: ignore[union-attr]
        self.stories: dict[str, dict[str, Any]] = {
            f"node{n}": {
                "findings": [["cores", "ok", "4 cores", ""], packages],
                "host": f"node{n}",
                "names": names,
                "seen": True,
                "port": 4001,
                "cards": {"eth0": f"10.0.0.{n}"},
            }
            for n in (1, 2)
        }

    def answer(self, look: Machine, host: str, question: Any) -> dict[str, Any]:
        """Stand in for the checks of a host."""
        if "reached" in question:
            source = {f"10.{net}.0.{3 - n}": f"10.{net}.0.{n}" for net in (0, 1) for n in (1, 2)}
            return {each: (source[each], "") for each in question["reached"]["addresses"]}
        path, content = question["seen"]
        assert Path(path).read_text() == content
        return {**self.stories[host], "ahead": self.ahead_s}

    def look(self, *named: str, **how: Any) -> dict[str, Finding]:
        cases = "\n".join(f"{host}) {action} ;;" for host, action in self.cases.items())
        self.place.program("ssh", FAKE_SSH.format(cases=cases))
        look = self.place.look(several=True, runs=self.place.root / "runs", **how)
        found = list(doctor._hosts(look, dict.fromkeys(named or ("node1", "node2"), 2)))
        assert list(self.place.root.glob(".doctor.*")) == [], "the scratch folder is removed"
        assert len({each.name for each in found}) == len(found), "two findings have one name"
        return {each.name: each for each in found}


def wrong(found: dict[str, Finding]) -> dict[str, str]:
    return {name: each.verdict for name, each in found.items() if each.verdict != "ok"}


@pytest.fixture
def pair(place: Place, monkeypatch: pytest.MonkeyPatch) -> Pair:
    place.there |= dict.fromkeys(("numpy", "PyYAML", "rich", "pyarrow", "psutil"), "1")
    hosts = Pair(place)
    monkeypatch.setattr(doctor, "this_host", lambda name: False)
    monkeypatch.setattr(doctor, "_asked", hosts.answer)
    return hosts


def test_two_hosts_that_work(pair: Pair, golden: Golden) -> None:
    found = pair.look()

    assert wrong(found) == {}
    of_one = ("", " packages", " runs", " clock", " names")
    own = [f"{host}{what}" for host in ("node1", "node2") for what in of_one]
    assert list(found) == [*own, "node1 to node2", "node2 to node1"]
    golden([(each.name, each.what) for each in found.values() if "packages" not in each.name])


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("node2: Permission denied (publickey,password).", "ssh-copy-id node2"),
        ("Host key verification failed.", "ssh node2 once yourself"),
        ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\\nHost key verification failed.", "ssh-keygen -R node2"),
        ("ssh: Could not resolve hostname node2: Name or service not known", "~/.ssh/config"),
        ("ssh: connect to host node2 port 22: Connection refused", "start sshd on node2"),
        ("ssh: connect to host node2 port 22: No route to host", "switched on"),
        ("ssh: connect to host node2 port 22: Connection timed out", "switched on"),
        ("Access denied by pam_slurm_adopt: you have no active jobs on this node", "scheduler: slurm"),
        ("Permissions 0666 are too open: UNPROTECTED PRIVATE KEY FILE!\\nPermission denied (publickey).", "chmod 600"),
        ("kex_exchange_identification: Connection closed by remote host", "MaxStartups"),
        ("strange", "ssh -v node2 true"),
    ],
)
def test_why_ssh_does_not_work(pair: Pair, said: str, remedy: str, golden: Golden) -> None:
    pair.cases["node2"] = f"printf '{said}\\n' >&2; exit 255"

    found = pair.look()

    assert wrong(found) == {"node2": "fail"}, "the other host is looked at"
    golden((found["node2"].what, found["node2"].remedy), remedy)


def test_an_ssh_that_hangs_prints_or_is_not_there(pair: Pair) -> None:
    pair.cases["node2"] = "exec sleep 60"
    assert pair.look("node2", limit_s=0.5)["node2"].what == "ssh did not answer within 0.5 s"
    pair.cases["node2"] = "echo 'Welcome to node2'"
    found = pair.look()["node2"]
    assert found.verdict == "fail" and "prints 'Welcome to node2' without" in found.what and "[ -t 1 ]" in found.remedy
    (pair.place.root / "site" / "ssh").unlink()
    assert "openssh-client" in doctor._login(pair.place.look(), "node2").remedy


@pytest.mark.parametrize(
    ("change", "name", "verdict", "what"),
    [
        (
            {"findings": [["packages", "ok", "torch 2.11.0", ""]]},
            "node2 packages",
            "fail",
            "torch 2.11.0 there, torch 2.13",
        ),
        ({"seen": False}, "node2 runs", "fail", "does not see"),
        (
            {"findings": [["cores", "warning", "1 core for 2 workers", "fewer"]]},
            "node2 cores",
            "warning",
            "1 core for 2",
        ),
        ({"host": "node1"}, "node1 names", "fail", "node1, node2 call themselves node1"),
        ({"names": {"node2": ["10.0.0.2"], "node1": []}}, "node2 names", "fail", "node1 is unknown there"),
        ({"names": {"node2": ["10.0.0.2"], "node1": ["127.0.0.1"]}}, "node2 names", "fail", "node1 is 127.0.0.1"),
        ({"cards": {"eth0": "10.0.0.1"}}, "node1 to node2", "fail", "no address of its own"),
    ],
)
def test_what_may_be_wrong_with_a_host(pair: Pair, change: dict[str, Any], name: str, verdict: str, what: str) -> None:
    pair.stories["node2"] |= change
    found = pair.look()[name]

    assert found.verdict == verdict and what in found.what and found.remedy


def test_the_clock_of_another_host(pair: Pair) -> None:
    assert pair.look()["node2 clock"].what == "that of this machine"
    for ahead_s, text in ((90.0, "90.0 s ahead of this machine's"), (-90.0, "90.0 s behind this machine's")):
        pair.ahead_s = ahead_s
        found = pair.look()["node2 clock"]
        assert (found.verdict, found.what) == ("warning", text)


def test_no_python_there(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "this_host", lambda name: False)
    monkeypatch.setattr(sys, "executable", str(pair.place.root / "bin" / "nothing"))

    found = pair.look()
    assert wrong(found) == {"node1 Python": "fail", "node2 Python": "fail"}
    assert "nothing does not run there: " in found["node2 Python"].what


def test_the_interface_that_is_to_be_used_between_hosts(pair: Pair) -> None:
    for n in (1, 2):
        pair.stories[f"node{n}"]["cards"] = {"eth0": f"10.0.0.{n}", "ib0": f"10.1.0.{n}"}

    assert pair.look()["node1 to node2"].what == "through eth0 to 10.0.0.2; through ib0 to 10.1.0.2"
    assert wrong(pair.look(interface="ib0")) == {}
    found = pair.look(interface="ib1")["node1 to node2"]
    assert found.verdict == "fail" and "not through ib1, which is to be used" in found.what


def test_a_quick_examination_only_logs_in(pair: Pair) -> None:
    assert list(pair.look(quick=True)) == ["node1", "node2"]


def test_the_checks_answer_through_ssh_as_they_do_here(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for real: this machine is asked in the way that another host would be."""
    monkeypatch.undo()
    place.program("ssh", FAKE_SSH.format(cases="none) ;;"))
    file(place.root / "seen", "content")
    question = {"names": ["localhost"], "seen": [str(place.root / "seen"), "content"], "workers": 1}
    look = Machine(environ={**os.environ, "PATH": f"{place.root / 'site'}:{os.environ['PATH']}"})

    there = doctor._asked(look, "no-such-host", question)
    assert "problem" in doctor._asked(look, "no-such-host", {})

    assert (there["seen"], there["host"]) == (True, platform.node())
    assert there["names"] == {"localhost": ["127.0.0.1"]} and abs(there["ahead"]) < 1
    found = {name: what for name, _, what, _ in there["findings"]}
    assert found["packages"] == told("packages", look).what  # type: ignore[union-attr]


def test_everything_hangs_and_the_doctor_still_answers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia-smi", "mpirun", "sinfo", "squeue", "sbatch", "srun", "scancel", "ssh"):
        place.program(name, "exec sleep 60")
    monkeypatch.setenv("PATH", place.environ["PATH"])
    init = Machine.__init__
    monkeypatch.setattr(Machine, "__init__", lambda self, **how: init(self, **{**how, "limit_s": 0.3}))

    result = examine(hosts=[Host(name="node9", slots=1)], runs=place.root / "runs", quick=True)

    text = {(each.area, each.name): each.what for each in result}
    late = (("Slurm", "answers"), ("ssh", "node9"), ("MPI", "mpirun"), ("CUDA", "driver"))
    assert all("did not answer within" in text[each] for each in late)
    assert exit_code(result) == 1


def test_a_quick_examination_of_this_machine(tmp_path: Path) -> None:
    result = examine(runs=tmp_path, quick=True)

    assert [each for each in result if each.verdict == "fail"] == []
    assert list(dict.fromkeys(each.area for each in result)) == [
        "machine", "Python", "CUDA", "MPI", "network", "Slurm", "runs folder",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert exit_code(result) == 0


@pytest.mark.horovod
def test_a_full_examination_of_this_machine(tmp_path: Path) -> None:
    result = examine(runs=tmp_path)

    assert [each for each in result if each.verdict == "fail"] == []
    told = {(each.area, each.name): each.what for each in result}
    assert "they found each other" in told["MPI", "two ranks"]
    assert told["Horovod", "starts"].startswith("installed: 0.28.1 with mpi+gloo")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_two_real_hosts_and_one_that_is_cut_off(two_hosts: TwoHosts, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "horovod-study"

    def look(*options: str) -> tuple[int, dict[str, tuple[str, str]]]:
        line: list[str | Path] = [
            program,
            "doctor",
            "--hosts",
            "node1:1,node2:1",
            "--runs",
            tmp_path,
            "--json",
            *options,
        ]
        done = two_hosts.run("node1", line)
        rows = json.loads(done.stdout)["findings"]
        return done.returncode, {
            each["name"]: (each["verdict"], each["what"]) for each in rows if each["area"] == "ssh"
        }

    _, told = look()
    assert [each for each in told if told[each][0] == "fail"] == []
    assert told["node1"] == ("ok", "this machine: launchers need no ssh to it")
    assert told["node2"] == ("ok", "reached over ssh without a password; its shell prints nothing")
    assert told["node2 runs"] == ("ok", f"it sees what is written to {tmp_path} here")
    assert told["node1 to node2"] == ("ok", "through eth0 to 10.77.0.2")
    assert told["node2 to node1"] == ("ok", "through eth0 to 10.77.0.1")

    two_hosts.cut("node2")
    try:
        code, told = look("--quick")
    finally:
        two_hosts.restore("node2")
    assert (code, told["node2"][0]) == (1, "fail")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_a_real_slurm_and_files_that_do_not_fit_it(slurm: SlurmCluster) -> None:
    def look(partition: Partition | None) -> dict[str, str]:
        here = Machine(environ=slurm.environment, partition=partition)
        return {name: judged(name, here) for name in ("answers", "partition", "sbatch --test-only")}

    assert look(MAIN)["partition"] == "ok: main is up, 2 of 2 nodes usable"
    assert {each[:2] for each in look(MAIN).values()} == {"ok"}
    bad = look(replace(MAIN, gpus_per_node=3, cores_per_node=48))
    assert bad["partition"].startswith("fail") and bad["sbatch --test-only"].startswith("fail")
    assert look(replace(MAIN, slurm_partition="alpha"))["partition"].startswith("fail")
    assert look(None)["answers"].startswith("ok")


def test_what_a_partition_says_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(doctor, "_hosts", lambda here, named: asked.insert(len(asked), [*named]) or ())
    both = (Host(name="a", slots=1), Host(name="b", slots=1))
    pair = Partition(name="pair", scheduler="ssh", hosts=both, interface="ib0", environment={"NCCL_IB_DISABLE": "1"})
    desk = Partition(name="desk", cores_per_node=999)

    cases: Any = ((pair, ()), (pair, both[:1]), (desk, ()))
    found = [examine(partition=partition, hosts=hosts, runs=tmp_path, quick=True) for partition, hosts in cases]
    verdicts = [{each.name: each.verdict for each in rows} for rows in found]

    assert asked == [["a", "b"], ["a"]]
    assert (verdicts[0]["interfaces"], verdicts[0]["variables"]) == ("fail", "warning")
    assert verdicts[2]["cores"] == "warning"


SAMPLE = [
    Finding(area="Python", name="version", verdict="ok", what="Python 3.11.2"),
    Finding(area="ssh", name="node2", verdict="fail", what="it refuses the key", remedy="ssh-copy-id node2"),
    Finding(area="ssh", name="node2 clock", verdict="warning", what="it is 3.0 s behind", remedy="start chronyd"),
    Finding(area="Python", name="packages", verdict="ok", what="all there"),
]


def test_plain_values_and_the_exit_code() -> None:
    plain = json.loads(json.dumps(doctor.to_dict(SAMPLE)))

    assert plain["counts"] == {"ok": 2, "warning": 1, "fail": 1}
    assert list(plain["findings"][1].items())[:3] == [("area", "ssh"), ("name", "node2"), ("verdict", "fail")]
    assert list(plain["findings"][1])[3:] == ["what", "remedy"]
    assert (exit_code(SAMPLE), exit_code(SAMPLE[:1]), exit_code([])) == (1, 0, 0)


def test_lines_are_grouped_and_aligned() -> None:
    assert [text.plain for text in report.lines(SAMPLE)] == [
        "Python",
        "  ok       version      Python 3.11.2",
        "  ok       packages     all there",
        "ssh",
        "  fail     node2        it refuses the key",
        "           -> ssh-copy-id node2",
        "  warning  node2 clock  it is 3.0 s behind",
        "           -> start chronyd",
        "",
        "4 checks: 2 ok, 1 warning, 1 fail",
    ]
    assert report.summary(SAMPLE[:1]) == "1 check: 1 ok"
    assert report.summary([SAMPLE[1]] * 2 + [SAMPLE[2]] * 2) == "4 checks: 0 ok, 2 warnings, 2 fails"
    assert report.summary([]) == "0 checks: 0 ok"


def test_colours_are_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    long = [replace(SAMPLE[1], what=" ".join(["word"] * 40), remedy="[try] this")]
    report.show(long, Console(width=60))
    plain = capsys.readouterr().out
    report.show(long, Console(width=60, force_terminal=True, color_system="standard"))
    coloured = capsys.readouterr().out

    assert plain.splitlines()[1] == "  fail     node2  " + " ".join(["word"] * 40)
    assert "\x1b[" not in plain and "-> [try] this" in plain
    assert "\x1b[1;31mfail" in coloured
    wrapped = [line for line in coloured.splitlines() if "word" in line]
    assert len(wrapped) > 2
    assert all(line.startswith(" " * 14 + "word") for line in wrapped[1:])
    assert max(map(len, wrapped[1:])) <= 60
