"""The doctor: every check with programs put in its place, hosts behind an ssh that is one, and once for real."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make.wording import Golden
from slurm_cluster import SlurmCluster
from two_hosts import TwoHosts

from horovod_study.cluster import doctor
from horovod_study.cluster.doctor import Check, Finding, Machine, exit_code, gpus_in, seconds_of
from horovod_study.cluster.launch import free_port
from horovod_study.config.partitions import Host, Partition

TOOLS = "sh cat sleep awk df getent grep head uname nproc sort wc paste sed dirname id env mv ln flock mkdir rm true"


class Place:
    """A machine made of small scripts, with a /proc and a /sys of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.environ = root, {"PATH": f"{root / 'site'}:{root / 'tools'}", "HOME": str(root)}
        for name in ("bin", "site", "tools"):
            (root / name).mkdir()
        for name in TOOLS.split():
            (root / "tools" / name).symlink_to(shutil.which(name) or "")

    def program(self, name: str, text: str, *, beside: bool = False) -> Path:
        """Put a shell script on PATH, or beside Python."""
        path = self.root / ("bin" if beside else "site") / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def look(self, **how: Any) -> Machine:
        own = {"environ": self.environ, "runs": self.root / "runs", "python": str(self.root / "bin" / "python")}
        return Machine(**{**own, **how})

    def row(self, row: Check) -> Check:
        command = row.command.replace("/sys/", f"{self.root}/sys/").replace("/proc/", f"{self.root}/proc/")
        return row._replace(command=command)

    def judged(self, name: str, **how: Any) -> str:
        """Return the verdict and the words of one check, with the remedy; "": it says nothing."""
        [row] = [each for each in doctor.table() if each.name == name and each.area != "ssh"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(doctor, "table", lambda: (self.row(row),))
            found = doctor.diagnosis(self.look(**how), {})
        return "; ".join(f"{each.verdict}: {each.what}{each.remedy and f' -> {each.remedy}'}" for each in found)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_table_names_each_check_once_with_what_it_asks_and_a_remedy() -> None:
    rows = doctor.table()

    assert len({(row.area, row.name) for row in rows}) == len(rows) and 30 <= len(rows) <= 40
    assert {row.otherwise for row in rows} == {"warning", "fail"} and rows[0].name == "load"
    assert {row.where for row in rows} == {"host", "hosts", "here", "slow", "slurm", "try", "login"}
    assert all(row.remedy and bool(row.command) == (row.where != "login") for row in rows)


def test_what_a_command_that_fails_or_hangs_says(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    note = place.root / "child"

    def row(command: str, **more: Any) -> Check:
        return Check(area="a", name="n", where="here", otherwise="fail", remedy="r", command=command, **more)

    rows = [
        (row("echo 'sinfo: error: no daemon' >&2; echo bye >&2; exit 1"), "no daemon"),
        (row("echo x; echo 'ImportError: libmpi.so.40: no' >&2; exit 1"), "x; ImportError: libmpi.so.40: no"),
        (row("echo told here; exit 1", wrong="it is broken"), "told here: it is broken"),
        (row("exit 3"), "exit code 3"),
        (row("echo one", passes="two", wrong="not two"), "one: not two"),
        (row(f"sleep 60 & echo $! > {note}; wait"), "it did not answer within 2 s"),
    ]
    monkeypatch.setattr(doctor, "table", lambda: tuple(row for row, _ in rows))

    found = doctor.diagnosis(place.look(limit_s=2.0), {})

    assert [each.what for each in found] == [text for _, text in rows]
    assert {each.verdict for each in found} == {"fail"}
    child = Path("/proc", note.read_text().strip(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z", "what it started is killed, too"


@pytest.mark.slow
def test_the_examination_needs_no_pytorch(tmp_path: Path) -> None:
    """It is there to say that PyTorch is missing."""
    program = "import sys; sys.modules['torch'] = None; from horovod_study import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "doctor", "--quick", "--json"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["findings"]


# --------------------------------------------------------------------------------------------- software and machine


@pytest.mark.parametrize(
    ("name", "programs", "found"),
    [
        ("mpirun", {}, "warning: neither beside Python nor on PATH"),
        ("mpirun", {"mpirun": "echo 'mpirun (Open MPI) 4.1.8'"}, "ok: ROOT/site/mpirun; mpirun (Open MPI) 4.1.8"),
        ("mpirun", {"mpirun": "printf 'HYDRA build details:\\n  Version:    4.2.1\\n'"}, "ok: ROOT/site/mpirun"),
        ("options", {"mpirun": "echo 'mpirun (Open MPI) 5.0.3'"}, "fail: ROOT/site/mpirun; mpirun (Open MPI) 5.0.3:"),
        ("options", {"mpirun": "echo 'mpirun (Open MPI) 4.1.8'"}, "ok"),
        ("options", {}, ""),
        ("two ranks", {"mpirun": "echo 2 see each other"}, "ok: 2 see each other"),
        ("two ranks", {"mpirun": "echo 1 see each other; echo 1 see each other"}, "fail: 1 see each other; 1 see"),
        ("two ranks", {"mpirun": "echo 'ImportError: libmpi.so.40: no' >&2; exit 1"}, "fail: ImportError: libmpi"),
        ("loads", {"python": "echo PyTorch 2.13.0 for CPUs"}, "ok: PyTorch 2.13.0 for CPUs"),
        ("loads", {"python": "echo 'OSError: libc10.so: no' >&2; exit 1"}, "fail: OSError: libc10.so: no"),
        ("starts", {"python": "echo installed: 0.28.1"}, "ok: installed: 0.28.1"),
        ("starts", {"python": "echo 'ImportError: x.so: undefined symbol: _ZN3' >&2; exit 1"}, "fail: ImportError: x"),
        ("driver", {}, "ok: no GPU here"),
        ("driver", {"nvidia-smi": "echo H200, 550.1; echo H200, 550.1"}, "ok: H200, 550.1; H200, 550.1"),
        ("driver", {"nvidia-smi": "true"}, "fail: its module is loaded, but nvidia-smi is not on PATH, or lists"),
        ("driver", {"nvidia-smi": "echo 'NVML: version mismatch' >&2; exit 18"}, "fail: NVML: version mismatch"),
        ("holders", {}, ""),
        ("holders", {"nvidia-smi": "true"}, ""),
        ("holders", {"nvidia-smi": "echo python, 4711"}, "warning: python, 4711: others hold GPUs"),
        ("packages", {"python": "echo torch 2.13.0; echo horovod missing"}, "ok: torch 2.13.0; horovod missing"),
        ("packages", {"python": "echo numpy 2; echo torch missing"}, "fail: numpy 2; torch missing"),
    ],
)  # fmt: skip
def test_programs(place: Place, name: str, programs: dict[str, str], found: str) -> None:
    for each, text in programs.items():
        place.program(each, text, beside=each == "python")

    said = place.judged(name)

    assert said.startswith(found.replace("ROOT", str(place.root))) and bool(said) == bool(found)


def test_a_driver_without_its_program(place: Place) -> None:
    place.file("proc/driver/nvidia/version", "NVRM")
    assert place.judged("driver").startswith("fail: : its module is loaded".replace(": :", ":"))


def test_each_build_of_horovod_is_started(place: Place) -> None:
    place.file("lib/horovod-builds/nccl/horovod/__init__.py", "")
    place.program("python", 'echo "$3"', beside=True)
    assert place.judged("starts").startswith(f"ok: installed; {place.root}/bin/../lib/horovod-builds/nccl")


def test_what_pythonpath_hides(place: Place) -> None:
    (place.root / "other" / "torch").mkdir(parents=True)
    place.environ["PYTHONPATH"] = f"{place.root}:{place.root / 'other'}"
    assert place.judged("PYTHONPATH").startswith(f"warning: {place.root / 'other'} puts its torch before")


def test_cores_quota_and_memory(place: Place) -> None:
    place.program("nproc", "echo 4")
    assert place.judged("cores", workers=4) == "ok: 4 cores for 4 workers"
    assert place.judged("cores", workers=5).startswith("warning: 4 cores for 5 workers: they would share")
    place.file("proc/self/cgroup", "0::/job/step")
    assert place.judged("quota") == ""
    for name, most in (("job/step/cpu.max", "max"), ("cpu.max", "150000")):
        place.file(f"sys/fs/cgroup/{name}", f"{most} 100000")
    assert place.judged("quota").startswith("warning: the time of 1.5 of 4 cores: the control group stops workers")
    place.file("sys/fs/cgroup/job/step/cpu.max", "50000 100000")
    assert "0.5 of 4 cores" in place.judged("quota")
    for free, verdict in ((8_000_000, "ok: 8000 MB"), (400_000, "warning: 400 MB free: a worker takes about 500")):
        place.file("proc/meminfo", f"MemTotal: 9 kB\nMemAvailable:   {free} kB")
        assert place.judged("memory").startswith(verdict)
    for free, verdict in ((2**25, "ok"), (2**16, "warning: 65 MB in /dev/shm: MPI and NCCL exchange through it")):
        place.program("df", f"echo Filesystem; echo shm 9 9 {free} 1% /dev/shm")
        assert place.judged("/dev/shm").startswith(verdict)


def test_who_computes(place: Place) -> None:
    for busy, verdict in ((1, "ok"), (100, "warning: other programs use 2.0 cores")):
        place.file("proc/stat", "cpu 0 0 0 0 0 0 0 0")
        place.program("sleep", f"echo cpu {busy} 0 0 900 0 0 0 0 > {place.root}/proc/stat")
        assert place.judged("load").startswith(verdict)
    place.file("proc/stat", "cpu 0 0 0 0 0 0 0 0")
    assert place.judged("load", partition=MAIN).startswith("ok"), "jobs run on other nodes"


def test_infiniband_and_the_memory_that_may_be_locked(place: Place) -> None:
    assert place.judged("InfiniBand") == "ok: none: TCP between hosts" and place.judged("locked memory") == ""
    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert place.judged("InfiniBand").startswith("warning: no port is active: libraries take TCP")
    place.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    assert place.judged("InfiniBand").startswith(
        f"ok: {place.root}/sys/class/infiniband/mlx5_0/ports/1/state:4: ACTIVE"
    )
    assert place.judged("locked memory").split(":")[0] in ("ok", "warning")


# -------------------------------------------------------------------------------------------- network and folder

ETH, BOTH = {"eth0": "10.0.0.1"}, {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}
PSUTIL = """
from types import SimpleNamespace as S
cards = {cards!r}
net_if_stats = lambda: {{name: S(isup=name != "down") for name in cards}}
net_if_addrs = lambda: {{name: [S(family=S(name="AF_INET"), address=each)] for name, each in cards.items()}}
"""


@pytest.mark.parametrize(
    ("name", "cards", "how", "verdict"),
    [
        ("interfaces", ETH, {"several": True}, "ok: eth0 10.0.0.1"),
        ("interfaces", {}, {}, ""),
        ("interfaces", {}, {"several": True}, "fail: what is to be used between the hosts is not up"),
        ("interfaces", ETH, {"interface": "ib0"}, "fail: eth0 10.0.0.1: what is to be used between the hosts is not"),
        ("interfaces", BOTH, {"interface": "ib0"}, "ok"),
        ("choice", BOTH, {"several": True}, "warning: eth0 10.0.0.1; ib0 10.1.0.1; each library chooses by itself"),
        ("choice", BOTH, {"several": True, "interface": "ib0"}, "ok"),
        ("choice", BOTH, {}, "ok"),
    ],
)
def test_interfaces(place: Place, name: str, cards: dict[str, str], how: Any, verdict: str) -> None:
    place.file("fake/psutil.py", PSUTIL.format(cards={"lo": "127.0.0.1", "down": "10.9.0.1", **cards}))
    place.environ["PYTHONPATH"] = str(place.root / "fake")
    said = place.judged(name, python=sys.executable, **how)
    assert said.startswith(verdict) and bool(said) == bool(verdict)


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ("HOROVOD_GLOO_IFACE=eth0", ""),
        ("GLOO_SOCKET_IFNAME=ib0", "warning: ib0 is to be used, which is not up"),
        ("NCCL_IB_DISABLE=1", "warning: NCCL_IB_DISABLE=1: libraries fail, or take a slower way"),
        ("NCCL_P2P_DISABLE=0", ""),
    ],
)
def test_variables(place: Place, variable: str, found: str) -> None:
    place.file("sys/class/net/eth0/address", "")
    name, _, value = variable.partition("=")
    place.environ[name] = value
    said = place.judged("variables")
    assert said.startswith(found) and bool(said) == bool(found)


def test_the_own_name(place: Place) -> None:
    name = platform.node()
    place.program("getent", "echo 10.0.0.1 STREAM")
    assert place.judged("own name", several=True) == f"ok: {name} is 10.0.0.1"
    place.program("getent", "echo 127.0.1.1 STREAM")
    assert place.judged("own name") == f"ok: {name} is 127.0.1.1"
    assert place.judged("own name", several=True, interface="eth0").startswith("ok")
    assert place.judged("own name", several=True).startswith(f"warning: {name} is 127.0.1.1: PyTorch and Gloo look")
    place.program("getent", "exit 2")
    assert place.judged("own name").startswith(f"warning: {name} is unknown")


@pytest.mark.parametrize(
    ("name", "kind", "free_kb", "how", "found"),
    [
        ("room", "ext4", 10**7, {}, "ok: ext4, 10000 MB free"),
        ("room", "ext4", 10**5, {}, "fail: ext4, 100 MB free"),
        ("lasts", "tmpfs", 10**7, {}, "warning: tmpfs, 10000 MB free: it is gone with the machine"),
        ("lasts", "nfs4", 10**7, {}, "ok"),
        ("shared", "nfs4", 10**7, {"slurm": True}, "ok"),
        ("shared", "ext4", 10**7, {"slurm": True}, "warning: ext4, 10000 MB free: nodes see it only if"),
        ("shared", "ext4", 10**7, {}, ""),
    ],
)
def test_the_room_and_kind_of_a_folder(place: Place, name: str, kind: str, free_kb: int, how: Any, found: str) -> None:
    place.program("df", f"echo Filesystem; echo x {kind} 9 9 {free_kb} 1% /x")
    said = place.judged(name, partition=MAIN if how else None)
    assert said.startswith(found) and bool(said) == bool(found)


@pytest.mark.parametrize(
    ("program", "text", "verdict"),
    [
        ("ln", "echo 'ln: Operation not permitted' >&2; exit 1", "fail: Operation not permitted: files are not"),
        ("ln", 'cp -f "$1" "$2"', "fail"),  # hard links that replace each other
        ("flock", "exit 1", "fail"),
        ("mv", "echo 'mv: No space left on device' >&2; exit 1", "fail: No space left on device"),
        ("mv", "true", "fail"),
        ("", "", "ok: files replace others"),
    ],
)
def test_a_poor_folder(place: Place, program: str, text: str, verdict: str) -> None:
    if program:
        place.program(program, text)
    runs = place.root / "below" / "runs"
    runs.parent.mkdir()

    assert place.judged("writable", runs=runs).startswith(verdict)
    assert list(runs.parent.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------- Slurm

MAIN = Partition(
    name="mine", scheduler="slurm", slurm_partition="main", nodes=2, cores_per_node=4, gpus_per_node=2,
    cores_per_worker=1, gres="gpu:{gpus}",
)  # fmt: skip


def with_slurm(place: Place, *, states: tuple[str, str, str] = ("idle", "idle", "up"), sbatch: str = "true") -> None:
    nodes = "\n".join(f"4|4000|gpu:2|{states[n]}|1:00:00|{states[2]}|main*" for n in (0, 1))
    place.program("sinfo", f"case \"$*\" in *alpha*) ;; *%n) echo n0; echo n1;; *) cat <<'END'\n{nodes}\nEND\n;; esac")
    for name in ("squeue", "srun", "scancel"):
        place.program(name, "true")
    place.program("sbatch", sbatch)


def test_no_slurm_is_fine_unless_it_is_wanted(place: Place) -> None:
    assert place.judged("answers") == "ok: it is not here"
    assert place.judged("partition") == "" == place.judged("sbatch --test-only")
    assert place.judged("answers", partition=MAIN).startswith("warning: squeue, sbatch, srun or scancel is not on PATH")
    assert place.judged("partition", partition=MAIN).startswith("fail: ")


def test_a_slurm_that_is_what_the_file_says(place: Place) -> None:
    with_slurm(place)
    place.environ["SLURM_JOB_ID"] = "9"
    wanted = MAIN.model_copy(update={"memory_per_core_mb": 1000})

    assert place.judged("answers", partition=wanted) == "ok: 2 nodes; this is job 9"
    assert place.judged("partition", partition=wanted).startswith("ok: 4|4000|gpu:2|idle")
    assert place.judged("sbatch --test-only", partition=wanted) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"slurm_partition": "alpha"}, "no such partition"),
        ({"cores_per_node": 8}, "8, Slurm knows 4"),
        ({"memory_per_core_mb": 10312}, "10312, Slurm knows 1000"),
        ({"gpus_per_node": 4}, "4, Slurm knows 2"),
        ({"gres": None}, "gres"),
        ({"time_limit_s": 7200.0}, "7200.0, Slurm knows 3600"),
        ({"nodes": 5}, "5, Slurm knows 2"),
    ],
)
def test_a_partition_and_its_file(place: Place, change: Any, says: str) -> None:
    with_slurm(place)
    found = place.judged("partition", partition=MAIN.model_copy(update=change))
    assert found.startswith("fail: ") and says in found


@pytest.mark.parametrize(
    ("states", "usable"),
    [
        (("idle", "idle", "down"), False),
        (("drained", "down*", "up"), False),
        (("idle", "down*", "up"), True),
        (("mixed-", "idle~", "up"), True),
    ],
)
def test_states_of_a_partition(place: Place, states: Any, usable: bool) -> None:
    with_slurm(place, states=states)
    found = place.judged("partition", partition=MAIN.model_copy(update={"slurm_partition": None}))
    assert found.startswith("ok: ") if usable else "none of its nodes is usable" in found


def test_a_slurm_that_does_not_answer(place: Place) -> None:
    with_slurm(place)
    place.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in place.judged("answers")


def test_a_job_that_would_be_refused(place: Place) -> None:
    with_slurm(place, sbatch="echo 'allocation failure: Invalid account' >&2; exit 1")
    found = place.judged("sbatch --test-only", partition=MAIN)
    assert found.startswith("fail: allocation failure: Invalid account: a job of one full node would be refused")
    assert "sacctmgr show associations" in found and "time_limit_s" in found


def test_the_job_that_is_tried_is_that_of_a_study(place: Place) -> None:
    note = place.root / "asked"
    place.environ |= {"SBATCH_ACCOUNT": "wrong", "SLURM_CONF": "/etc/x.conf", "SLURM_NTASKS": "9"}
    with_slurm(place, sbatch=f'echo "$* $SBATCH_ACCOUNT $SLURM_CONF $SLURM_NTASKS" > {note}')

    place.judged(
        "sbatch --test-only",
        partition=MAIN.model_copy(
            update={"account": "a1", "qos": "high", "constraint": "[a*|b]", "memory_per_core_mb": 9}
        ),
    )

    asked = note.read_text()
    assert asked.startswith("--test-only --job-name=horovod-study-doctor --partition=main --account=a1 --qos=high ")
    assert "--constraint=[a*|b] --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:2 --mem-per-cpu=9M" in asked
    assert "wrong" not in asked and asked.rstrip().endswith(" /etc/x.conf"), "the caller's own settings are left out"


def test_gpus_and_time_limits_as_slurm_writes_them() -> None:
    gres = {"gpu:2": 2, "gpu:a100:4(S:0-1),shard:8": 4, "(null)": 0, "gpu:a100:2,gpu:h100:1": 3, "gpu": 1, "N/A": 0}
    limits = {"1:00:00": 3600, "30:00": 1800, "2-12:00:00": 216_000, "infinite": None, "n/a": None}

    assert {each: gpus_in(each) for each in gres} == gres
    assert {each: seconds_of(each) for each in limits} == limits


# ---------------------------------------------------------------------------------------------------- other hosts

FAKE_SSH = """
while [ "$1" = -o ]; do shift 2; done
host=$1; shift 2
case "$host" in
{cases}
esac
exec sh -c "$*"
"""


class Pair:
    """node1 and node2 behind an ssh that is a script; each is this machine, and says what a test wants it to."""

    def __init__(self, place: Place) -> None:
        self.place, self.cases = place, {"none": "true"}
        self.says = {"packages": "torch 2.13.0", "runs": "it sees", "names": "ok", "way": "to the other"}
        self.other: dict[str, str] = {}  # of node2
        self.extra: dict[str, float] = {}  # what each answers beside it
        self.host = {"node1": "node1", "node2": "node2"}

    def look(self, *named: str, **how: Any) -> dict[str, Finding]:
        cases = "\n".join(f"{host}) {action} ;;" for host, action in self.cases.items())
        self.place.program("ssh", FAKE_SSH.format(cases=cases))
        here = self.place.look(several=True, **how)
        found = doctor.diagnosis(here, dict.fromkeys(named or ("node1", "node2"), 2))
        assert list(self.place.root.glob(".doctor.*")) == [], "the scratch folder is removed"
        own = [each for each in found if each.area == "ssh"]
        assert len({each.name for each in own}) == len(own), "two findings have one name"
        return {each.name: each for each in own}


@pytest.fixture
def pair(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    hosts, asked = Pair(place), doctor._asked
    rows = [each for each in doctor.table() if each.area == "ssh" or each.name == "packages"]

    def ask(here: Machine, host: str, checks: Any, variables: Any) -> dict[str, Any]:
        says = hosts.says | (hosts.other if host == "node2" else {})
        rows = [each._replace(command=says.get(each.name, "")) for each in checks]
        rows = [
            each._replace(command=f"echo {each.command}" if "exit" not in each.command else each.command)
            for each in rows
        ]
        told = asked(here, host, rows, variables)
        return {**told, "host": hosts.host.get(host, host)} | hosts.extra if "problem" not in told else told

    monkeypatch.setattr(doctor, "table", lambda: tuple(rows))
    monkeypatch.setattr(doctor, "this_host", lambda name: False)
    monkeypatch.setattr(doctor, "_asked", ask)
    yield hosts


def wrong(found: dict[str, Finding]) -> dict[str, str]:
    return {name: each.verdict for name, each in found.items() if each.verdict != "ok"}


def test_two_hosts_that_work(pair: Pair) -> None:
    found = pair.look()

    assert wrong(found) == {}
    of_one = ("", " packages", " runs", " names", " way", " clock")
    assert sorted(found) == sorted(f"{host}{what}" for host in ("node1", "node2") for what in of_one)
    assert found["node2"].what == "reached over ssh without a password; its shell prints nothing"
    assert found["node2 packages"].what == "the versions and the source of this machine"
    assert found["node2 clock"].what == "that of this machine"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("node2: Permission denied (publickey,password).", "ssh-copy-id node2"),
        ("Host key verification failed.", "ssh node2 once yourself"),
        ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\\nHost key verification failed.", "ssh-keygen -R node2"),
        ("ssh: Could not resolve hostname node2: Name or service not known", "~/.ssh/config"),
        ("ssh: connect to host node2 port 22: Connection refused", "start sshd on node2"),
        ("ssh: connect to host node2 port 22: No route to host", "switched on"),
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


def test_an_ssh_that_prints_or_is_not_there(pair: Pair) -> None:
    pair.cases["node2"] = "echo 'Welcome to node2'"
    found = pair.look()["node2"]
    assert found.verdict == "fail" and "prints 'Welcome to node2' without" in found.what and "[ -t 1 ]" in found.remedy
    pair.place.environ["PATH"] = str(pair.place.root / "tools")
    assert "openssh-client" in pair.look("node2")["node2"].remedy


@pytest.mark.parametrize(
    ("change", "name", "what"),
    [
        ({"packages": "torch 2.11.0"}, "node2 packages", "torch 2.11.0; here torch 2.13.0"),
        ({"runs": "exit 1"}, "node2 runs", "it does not see what is written to the folder of the runs here"),
        ({"names": "echo node1 is 127.0.0.1 there; exit 1"}, "node2 names", "node1 is 127.0.0.1 there"),
        ({"way": "echo to node1 refused; exit 1"}, "node2 way", "to node1 refused: no TCP connection to a free port"),
    ],
)
def test_what_may_be_wrong_with_a_host(pair: Pair, change: dict[str, str], name: str, what: str) -> None:
    pair.other = change
    found = pair.look()

    assert wrong(found) == {name: "fail"} and found[name].what == what and found[name].remedy


def test_two_hosts_of_one_name_and_a_clock_that_is_ahead(pair: Pair) -> None:
    pair.host["node2"] = "node1"
    assert pair.look()["node1 host name"].what == "node1, node2 call themselves node1"
    for ahead_s, text in ((90.0, "90.0 s ahead of this machine's"), (-90.0, "90.0 s behind this machine's")):
        pair.extra = {"ahead": ahead_s}
        found = pair.look()["node2 clock"]
        assert (found.verdict, found.what) == ("warning", text)


def test_no_python_there(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    look = pair.place.look(several=True)
    monkeypatch.setattr(sys, "executable", str(pair.place.root / "bin" / "nothing"))
    pair.look("none")
    assert "nothing does not run there: " in doctor._asked(look, "node2", [], {"PYTHON": "x"})["problem"]


def test_a_quick_examination_only_logs_in(pair: Pair) -> None:
    assert list(pair.look(quick=True)) == ["node1", "node2"]


NAMES = {"127.0.0.1": "10.0.0.1", "node1": "127.0.0.1", "node2": "10.0.0.2", "": "x"}


@pytest.mark.parametrize(
    ("names", "how", "found"),
    [
        ("node2", {}, "ok"),
        ("node1 node2", {}, "fail: node1 is 127.0.0.1 there"),
        ("node1 node2", {"IFACE": "eth0", "SELF": "node1"}, "ok"),
        ("node3", {}, "fail: node3 is unknown there"),
    ],
)
def test_names_on_a_host(place: Place, names: str, how: dict[str, str], found: str) -> None:
    known = "".join(f"{name}) echo {address} STREAM;; " for name, address in NAMES.items() if name)
    place.program("getent", f'case "$2" in {known} *) exit 2;; esac')
    [row] = [each for each in doctor.table() if each.name == "names"]
    variables = {"NAMES": names, "SELF": "x", "IFACE": "", "PYTHON": "/none/python"} | how

    [said] = doctor._asked(place.look(), "", [row], variables)["said"]

    judged = doctor._judged(row, *said[1:], here=place.look())
    assert f"{judged.verdict}: {judged.what}".startswith(found)


def test_a_host_connects_to_the_others_while_they_try() -> None:
    [row] = [each for each in doctor.table() if each.name == "way"]
    for peers, verdict in (("localhost", "ok"), ("192.0.2.1.invalid", "fail")):
        variables = {"PYTHON": sys.executable, "PORT": str(free_port()), "PEERS": peers}
        [said] = doctor._asked(Machine(), "", [row], variables)["said"]
        assert doctor._judged(row, *said[1:], here=Machine()).verdict == verdict
        assert (said[1] == "to localhost from 127.0.0.1\n") == (verdict == "ok")


def test_the_script_answers_through_ssh_as_it_does_here(place: Place) -> None:
    """Once for real: this machine is asked in the way that another host would be."""
    place.program("ssh", FAKE_SSH.format(cases="none) ;;"))
    look = Machine(environ={**os.environ, "PATH": f"{place.root / 'site'}:{os.environ['PATH']}"})
    rows = [each for each in doctor.table() if each.name == "packages" and each.command]

    there, here = (doctor._asked(look, host, rows, {"PYTHON": sys.executable}) for host in ("no-such-host", ""))

    assert there["host"] == platform.node() and abs(there["ahead"]) < 1
    assert there["said"] == here["said"] and "torch" in there["said"][0][1]


# ------------------------------------------------------------------------------------------------ examinations


def test_everything_hangs_and_the_doctor_still_answers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia-smi", "mpirun", "sinfo", "squeue", "sbatch", "srun", "scancel"):
        place.program(name, "exec sleep 60")

    result = doctor.diagnosis(place.look(limit_s=1.0, quick=True), {})

    text = {(each.area, each.name): each.what for each in result}
    late = (("Slurm", "answers"), ("MPI", "mpirun"), ("CUDA", "driver"))
    assert all("did not answer within" in text[each] for each in late) and exit_code(result) == 1


def test_a_quick_examination_of_this_machine(tmp_path: Path) -> None:
    result = doctor.examine(runs=tmp_path, quick=True)

    assert [each for each in result if each.verdict == "fail"] == []
    areas = ["machine", "Python", "CUDA", "MPI", "network", "Slurm", "runs folder"]
    assert list(dict.fromkeys(each.area for each in result)) == areas
    assert list(tmp_path.iterdir()) == [] and exit_code(result) == 0


@pytest.mark.horovod
def test_a_full_examination_of_this_machine(tmp_path: Path) -> None:
    result = doctor.examine(runs=tmp_path)

    assert [each for each in result if each.verdict == "fail"] == []
    told = {(each.area, each.name): each.what for each in result}
    assert told["MPI", "two ranks"].startswith("2 see each other")
    assert told["Horovod", "starts"].startswith("installed: 0.28.1 with mpi+gloo")
    assert list(tmp_path.iterdir()) == []


def test_what_a_partition_says_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Machine, dict[str, int]]] = []
    monkeypatch.setattr(doctor, "diagnosis", lambda here, slots: asked.append((here, slots)))
    both = (Host(name="a", slots=1), Host(name="b", slots=1))
    where = {"name": "pair", "scheduler": "ssh", "cores_per_node": 1, "hosts": both, "interface": "ib0"}
    pair = Partition(**where, environment={"NCCL_IB_DISABLE": "1"})
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")

    for partition, hosts in (
        (pair, ()),
        (pair, both[:1]),
        (Partition(name="desk", cores_per_node=999), ()),
        (MAIN, ()),
    ):
        doctor.examine(partition=partition, hosts=hosts, runs=tmp_path, quick=True)

    assert [[*slots] for _, slots in asked] == [["a", "b"], ["a"], [], ["n1", "n2"]]
    assert [here.several for here, _ in asked] == [True, False, False, True]
    assert (asked[0][0].interface, asked[0][0].environ["NCCL_IB_DISABLE"], asked[2][0].workers) == ("ib0", "1", 999)


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
        rows = [each for each in json.loads(done.stdout)["findings"] if each["area"] == "ssh"]
        return done.returncode, {each["name"]: (each["verdict"], each["what"]) for each in rows}

    _, told = look()
    assert [each for each in told if told[each][0] == "fail"] == []
    assert told["node1"] == ("ok", "this machine: launchers need no ssh to it")
    assert told["node2"] == ("ok", "reached over ssh without a password; its shell prints nothing")
    assert told["node2 runs"][0] == "ok"
    assert told["node1 way"] == ("ok", "to node2 from 10.77.0.1")
    assert told["node2 way"] == ("ok", "to node1 from 10.77.0.2")

    two_hosts.cut("node2")
    try:
        code, told = look("--quick")
    finally:
        two_hosts.restore("node2")
    assert (code, told["node2"][0]) == (1, "fail")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_a_real_slurm_and_files_that_do_not_fit_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    def look(partition: Partition | None) -> dict[str, str]:
        here = Machine(environ=slurm.environment, partition=partition, runs=tmp_path)
        return {each.name: each.verdict for each in doctor.diagnosis(here, {}) if each.area == "Slurm"}

    assert look(MAIN) == dict.fromkeys(("answers", "partition", "sbatch --test-only"), "ok")
    bad = look(MAIN.model_copy(update={"gpus_per_node": 3, "cores_per_node": 48}))
    assert (bad["partition"], bad["sbatch --test-only"]) == ("fail", "fail")
    assert look(MAIN.model_copy(update={"slurm_partition": "alpha"}))["partition"] == "fail"
    assert look(None) == {"answers": "ok"}


SAMPLE = [
    Finding(area="Python", name="version", verdict="ok", what="Python 3.11.2"),
    Finding(area="ssh", name="node2", verdict="fail", what="it refuses the key", remedy="ssh-copy-id node2"),
    Finding(area="ssh", name="node2 clock", verdict="warning", what="it is 3.0 s behind", remedy="start chronyd"),
    Finding(area="Python", name="packages", verdict="ok", what="all there"),
]


def test_plain_values_and_the_exit_code() -> None:
    plain = json.loads(json.dumps(doctor.document(SAMPLE)))

    assert plain["counts"] == {"ok": 2, "warning": 1, "fail": 1}
    assert list(plain["findings"][1]) == ["area", "name", "verdict", "what", "remedy"]
    assert (exit_code(SAMPLE), exit_code(SAMPLE[:1]), exit_code([])) == (1, 0, 0)


def test_lines_are_grouped_and_aligned() -> None:
    assert doctor.lines([*SAMPLE[:3], replace(SAMPLE[3], what="[try] this")]) == [
        "Python",
        "  ok  version   Python 3.11.2",
        "  ok  packages  [try] this",
        "ssh",
        "  fail     node2        it refuses the key",
        "                        -> ssh-copy-id node2",
        "  warning  node2 clock  it is 3.0 s behind",
        "                        -> start chronyd",
        "",
        "4 checks: 2 ok, 1 warning, 1 fail",
    ]
