"""The doctor: every check with programs put in its place, hosts behind an ssh that is one, and once for real."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
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

    def plant(self, things: dict[str, str]) -> None:
        """Put in place files (a/b), variables (A_B) and shell scripts (a): python beside itself, others on PATH."""
        for name, text in things.items():
            text = text.replace("ROOT", str(self.root))
            if name.replace("_", "").isupper():
                self.environ[name] = text
                continue
            path = self.root / (name if "/" in name else f"{'bin' if name == 'python' else 'site'}/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n" if "/" in name else f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    def look(self, **how: Any) -> Machine:
        own = {"environ": self.environ, "runs": self.root / "runs", "python": str(self.root / "bin" / "python")}
        return Machine(**{**own, **how})

    def judged(self, name: str, **how: Any) -> str:
        """Return the verdict and the words of one check, with the remedy; "": it says nothing."""
        [row] = [each for each in doctor.table() if each.name == name and each.area != "ssh"]
        row = row._replace(command=re.sub("(?=/sys/|/proc/)", str(self.root), row.command))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(doctor, "table", lambda: (row,))
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


# ------------------------------------------------------------------------------- planted faults, and what is said

MAIN = Partition(
    name="mine", scheduler="slurm", slurm_partition="main", nodes=2, cores_per_node=4, gpus_per_node=2,
    cores_per_worker=1, gres="gpu:{gpus}",
)  # fmt: skip


def slurm(*states: str, **more: str) -> dict[str, str]:
    """Return the programs of a Slurm with two nodes in these states; "up" is that of the partition."""
    one, two, up = states or ("idle", "idle", "up")
    nodes = "\n".join(f"4|4000|gpu:2|{each}|1:00:00|{up}|main*" for each in (one, two))
    sinfo = f"case \"$*\" in *alpha*) ;; *%n) echo n0; echo n1;; *) cat <<'END'\n{nodes}\nEND\n;; esac"
    return dict.fromkeys(("squeue", "srun", "scancel", "sbatch"), "true") | {"sinfo": sinfo} | more


def part(**changes: Any) -> dict[str, Any]:
    return {"partition": MAIN.model_copy(update=changes)}


def disk(kind: str, free_kb: int) -> dict[str, str]:
    return {"df": f"echo Filesystem; echo x {kind} 9 9 {free_kb} 1% /x"}


def cards(**more: str) -> dict[str, str]:
    """Return a psutil with these network interfaces, one that is down, and lo."""
    known = {"lo": "127.0.0.1", "down": "10.9.0.1", **more}
    text = f"""from types import SimpleNamespace as S
net_if_stats = lambda: {{name: S(isup=name != "down") for name in {known}}}
net_if_addrs = lambda: {{name: [S(family=S(name="AF_INET"), address=each)] for name, each in {known}.items()}}"""
    return {"fake/psutil.py": text, "PYTHONPATH": "ROOT/fake"}


NAME, MPI_4 = platform.node(), {"mpirun": "echo 'mpirun (Open MPI) 4.1.8'"}
ETH, BOTH = cards(eth0="10.0.0.1"), cards(eth0="10.0.0.1", ib0="10.1.0.1")
REAL: dict[str, Any] = {"python": sys.executable}
MORE, IB0 = {**REAL, "several": True}, {**REAL, "interface": "ib0"}
GETENT, LOOPBACK = {"getent": "echo 10.0.0.1 STREAM"}, {"getent": "echo 127.0.1.1 STREAM"}
SYS_NET, PORT = {"sys/class/net/eth0/address": ""}, "sys/class/infiniband/mlx5_0/ports/1/state"
GROUP = {"proc/self/cgroup": "0::/job/step", "nproc": "echo 4", "sys/fs/cgroup/job/step/cpu.max": "max 100000"}
STAT = {"proc/stat": "cpu 0 0 0 0 0 0 0 0"}
BUSY = STAT | {"sleep": "echo cpu 100 0 0 900 0 0 0 0 > ROOT/proc/stat"}
OUT = "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1"
REFUSED = slurm(sbatch="echo 'allocation failure: Invalid account' >&2; exit 1")

PLANTED: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    # check, what is in its place, how it is asked, and what it says: its begin ... and what comes later
    ("mpirun", {}, {}, "warning: neither beside Python nor on PATH"),
    ("mpirun", MPI_4, {}, "ok: ROOT/site/mpirun; mpirun (Open MPI) 4.1.8"),
    ("options", {"mpirun": "echo 'mpirun (Open MPI) 5.0.3'"}, {}, "fail: ROOT/site/mpirun; mpirun (Open MPI) 5.0.3:"),
    ("options", MPI_4, {}, "ok"),
    ("two ranks", {"mpirun": "echo 2 see each other"}, {}, "ok: 2 see each other"),
    ("two ranks", {"mpirun": "echo 1 see each other; echo 1 see each other"}, {}, "fail: 1 see each other; 1 see"),
    ("loads", {"python": "echo PyTorch 2.13.0 for CPUs"}, {}, "ok: PyTorch 2.13.0 for CPUs"),
    ("loads", {"python": "echo 'OSError: libc10.so: no' >&2; exit 1"}, {}, "fail: OSError: libc10.so: no"),
    ("starts", {"python": "echo installed: 0.28.1"}, {}, "ok: installed: 0.28.1"),
    ("starts", {"python": "echo 'ImportError: undefined symbol: _ZN3' >&2; exit 1"}, {}, "fail: ImportError: undef"),
    ("starts", {"lib/horovod-builds/nccl/horovod/__init__.py": "", "python": 'echo "$3"'}, {},
     "ok: installed; ROOT/bin/../lib/horovod-builds/nccl"),
    ("driver", {}, {}, "ok: no GPU here"),
    ("driver", {"nvidia-smi": "true"}, {}, "fail: its module is loaded, but nvidia-smi is not on PATH, or lists"),
    ("driver", {"nvidia-smi": "echo 'NVML: version mismatch' >&2; exit 18"}, {}, "fail: NVML: version mismatch"),
    ("driver", {"proc/driver/nvidia/version": "NVRM"}, {}, "fail: its module is loaded"),
    ("holders", {"nvidia-smi": "true"}, {}, ""),
    ("holders", {"nvidia-smi": "echo python, 4711"}, {}, "warning: python, 4711: others hold GPUs"),
    ("packages", {"python": "echo torch 2.13.0; echo horovod missing"}, {}, "ok: torch 2.13.0; horovod missing"),
    ("packages", {"python": "echo numpy 2; echo torch missing"}, {}, "fail: numpy 2; torch missing"),
    ("PYTHONPATH", {"PYTHONPATH": "ROOT:ROOT/other", "other/torch/x": ""}, {}, "warning: ROOT/other puts its torch"),
    ("cores", {"nproc": "echo 4"}, {"workers": 4}, "ok: 4 cores for 4 workers"),
    ("cores", {"nproc": "echo 4"}, {"workers": 5}, "warning: 4 cores for 5 workers: they would share"),
    ("quota", GROUP | {"sys/fs/cgroup/cpu.max": "150000 100000"}, {}, "warning: the time of 1.5 of 4 cores: the cont"),
    ("quota", GROUP | {"sys/fs/cgroup/job/step/cpu.max": "50000 100000"}, {}, "warning: the time of 0.5 of 4 cores"),
    ("memory", {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   8000000 kB"}, {}, "ok: 8000 MB"),
    ("memory", {"proc/meminfo": "MemAvailable: 400000 kB"}, {}, "warning: 400 MB free: a worker takes about 500"),
    ("/dev/shm", {"df": f"echo Filesystem; echo shm 9 9 {2**16} 1% /dev/shm"}, {}, "warning: 65 MB in /dev/shm: MPI"),
    ("load", STAT | {"sleep": "echo cpu 1 0 0 900 0 0 0 0 > ROOT/proc/stat"}, {}, "ok"),
    ("load", BUSY, {}, "warning: other programs use 2.0 cores"),
    ("load", BUSY, part(), "ok"),  # jobs run on other nodes
    ("InfiniBand", {}, {}, "ok: none: TCP between hosts"),
    ("InfiniBand", {PORT: "1: DOWN"}, {}, "warning: no port is active: libraries take TCP"),
    ("InfiniBand", {PORT: "4: ACTIVE"}, {}, f"ok: ROOT/{PORT}:4: ACTIVE"),
    ("locked memory", {}, {}, ""),
    ("locked memory", {PORT: "4: ACTIVE"}, {}, " ... : "),  # what it finds is the machine's
    ("interfaces", ETH, MORE, "ok: eth0 10.0.0.1"),
    ("interfaces", cards(), MORE, "fail: what is to be used between the hosts is not up"),
    ("interfaces", ETH, IB0, "fail: eth0 10.0.0.1: what is to be used between the hosts is not"),
    ("choice", BOTH, MORE, "warning: eth0 10.0.0.1; ib0 10.1.0.1; each library chooses by itself"),
    ("choice", BOTH, {**MORE, **IB0}, "ok"),
    ("variables", SYS_NET | {"HOROVOD_GLOO_IFACE": "eth0"}, {}, ""),
    ("variables", SYS_NET | {"GLOO_SOCKET_IFNAME": "ib0"}, {}, "warning: ib0 is to be used, which is not up"),
    ("variables", SYS_NET | {"NCCL_IB_DISABLE": "1"}, {}, "warning: NCCL_IB_DISABLE=1: libraries fail, or take a slow"),
    ("own name", GETENT, {"several": True}, f"ok: {NAME} is 10.0.0.1"),
    ("own name", LOOPBACK, {"several": True, "interface": "eth0"}, "ok"),
    ("own name", LOOPBACK, {"several": True}, f"warning: {NAME} is 127.0.1.1: PyTorch and Gloo look"),
    ("own name", {"getent": "exit 2"}, {}, f"warning: {NAME} is unknown"),
    ("room", disk("ext4", 10**7), {}, "ok: ext4, 10000 MB free"),
    ("room", disk("ext4", 10**5), {}, "fail: ext4, 100 MB free"),
    ("lasts", disk("tmpfs", 10**7), {}, "warning: tmpfs, 10000 MB free: it is gone with the machine"),
    ("shared", disk("nfs4", 10**7), part(), "ok"),
    ("shared", disk("ext4", 10**7), part(), "warning: ext4, 10000 MB free: nodes see it only if"),
    ("writable", {"ln": "echo 'ln: Operation not permitted' >&2; exit 1"}, {}, "fail: Operation not permitted: files"),
    ("writable", {"ln": 'cp -f "$1" "$2"'}, {}, "fail"),  # hard links that replace each other
    ("writable", {"flock": "exit 1"}, {}, "fail"),
    ("writable", {"mv": "echo 'mv: No space left on device' >&2; exit 1"}, {}, "fail: No space left on device"),
    ("writable", {"mv": "true"}, {}, "fail"),
    ("writable", {}, {}, "ok: files replace others"),
    ("answers", {}, {}, "ok: it is not here"),
    ("answers", {}, part(), "warning: squeue, sbatch, srun or scancel is not on PATH"),
    ("answers", slurm() | {"SLURM_JOB_ID": "9"}, part(memory_per_core_mb=1000), "ok: 2 nodes; this is job 9"),
    ("answers", slurm() | {"sinfo": OUT}, {}, "warning: Unable to contact slurm controller"),
    ("partition", {}, part(), "fail: "),
    ("partition", slurm(), part(slurm_partition="alpha"), "fail: ... no such partition"),
    ("partition", slurm(), part(cores_per_node=8), "fail: ... 8, Slurm knows 4"),
    ("partition", slurm(), part(memory_per_core_mb=10312), "fail: ... 10312, Slurm knows 1000"),
    ("partition", slurm(), part(gpus_per_node=4), "fail: ... 4, Slurm knows 2"),
    ("partition", slurm(), part(gres=None), "fail: ... gres"),
    ("partition", slurm(), part(time_limit_s=7200.0), "fail: ... 7200.0, Slurm knows 3600"),
    ("partition", slurm(), part(nodes=5), "fail: ... 5, Slurm knows 2"),
    ("partition", slurm("drained", "down*", "up"), part(slurm_partition=None), "fail: ... none of its nodes is usable"),
    ("partition", slurm("mixed-", "idle~", "up"), part(slurm_partition=None), "ok: "),
    ("sbatch --test-only", slurm(), part(), ""),
    ("sbatch --test-only", REFUSED, part(), "fail: allocation failure: Invalid account: a job of one full node would "
     "be refused ... sacctmgr show associations ... time_limit_s"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "planted", "how", "found"), PLANTED)
def test_what_is_planted_is_found(place: Place, name: str, planted: dict[str, str], how: Any, found: str) -> None:
    place.plant(planted)

    said = place.judged(name, **how)

    begin, *later = found.replace("ROOT", str(place.root)).split(" ... ")
    assert said.startswith(begin) and all(each in said for each in later) and bool(said) == bool(found)
    assert not list(place.root.glob("run*")), "nothing is left beside the folder of the runs"


def test_the_job_that_is_tried_is_that_of_a_study(place: Place) -> None:
    note = place.root / "asked"
    place.environ |= {"SBATCH_ACCOUNT": "wrong", "SLURM_CONF": "/etc/x.conf", "SLURM_NTASKS": "9"}
    place.plant(slurm(sbatch=f'echo "$* $SBATCH_ACCOUNT $SLURM_CONF $SLURM_NTASKS" > {note}'))

    place.judged("sbatch --test-only", **part(account="a1", qos="high", constraint="[a*|b]", memory_per_core_mb=9))
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
        self.other: dict[str, Any] = {}  # of node2

    def look(self, *named: str, **how: Any) -> dict[str, Finding]:
        cases = "\n".join(f"{host}) {action} ;;" for host, action in self.cases.items())
        self.place.plant({"ssh": FAKE_SSH.format(cases=cases)})
        here = self.place.look(several=True, **how)
        found = doctor.diagnosis(here, dict.fromkeys(named or ("node1", "node2"), 2))
        assert list(self.place.root.glob(".doctor.*")) == [], "the scratch folder is removed"
        own = [each for each in found if each.area == "ssh"]
        assert len({each.name for each in own}) == len(own), "two findings have one name"
        return {each.name: each for each in own}


@pytest.fixture
def pair(place: Place, monkeypatch: pytest.MonkeyPatch) -> Pair:
    hosts, asked = Pair(place), doctor._asked
    rows = [each for each in doctor.table() if each.area == "ssh" or each.name == "packages"]

    def ask(here: Machine, host: str, checks: Any, variables: Any) -> dict[str, Any]:
        says = hosts.says | (hosts.other if host == "node2" else {})
        said = [(each, says.get(each.name, "")) for each in checks]
        rows = [row._replace(command=text if "exit" in text else f"echo {text}") for row, text in said]
        told = asked(here, host, rows, variables)
        known = {"host": says.get("host", host), "ahead": says.get("ahead", told.get("ahead"))}
        return told if "problem" in told else told | known

    monkeypatch.setattr(doctor, "table", lambda: tuple(rows))
    monkeypatch.setattr(doctor, "this_host", lambda name: False)
    monkeypatch.setattr(doctor, "_asked", ask)
    return hosts


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
    assert list(pair.look(quick=True)) == ["node1", "node2"], "a quick examination only logs in"


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
        ({"host": "node1"}, "node1 host name", "node1, node2 call themselves node1"),
        ({"ahead": 90.0}, "node2 clock", "90.0 s ahead of this machine's"),
        ({"ahead": -90.0}, "node2 clock", "90.0 s behind this machine's"),
    ],
)
def test_what_may_be_wrong_with_a_host(pair: Pair, change: dict[str, Any], name: str, what: str) -> None:
    pair.other = change
    found = pair.look()

    alike = {"node2 host name": "fail"} if "host name" in name else {}
    assert wrong(found) == {name: "warning" if "clock" in name else "fail"} | alike
    assert found[name].what == what and found[name].remedy


def test_no_python_there(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    look = pair.place.look(several=True)
    monkeypatch.setattr(sys, "executable", str(pair.place.root / "bin" / "nothing"))
    pair.look("none")
    assert "nothing does not run there: " in doctor._asked(look, "node2", [], {"PYTHON": "x"})["problem"]


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
    known = "127.0.0.1) echo 10.0.0.1 S;; node1) echo 127.0.0.1 S;; node2) echo 10.0.0.2 S;;"
    place.plant({"getent": f'case "$2" in {known} *) exit 2;; esac'})
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
    place.plant({"ssh": FAKE_SSH.format(cases="none) ;;")})
    look = Machine(environ={**os.environ, "PATH": f"{place.root / 'site'}:{os.environ['PATH']}"})
    rows = [each for each in doctor.table() if each.name == "packages" and each.command]

    there, here = (doctor._asked(look, host, rows, {"PYTHON": sys.executable}) for host in ("no-such-host", ""))

    assert there["host"] == platform.node() and abs(there["ahead"]) < 1
    assert there["said"] == here["said"] and "torch" in there["said"][0][1]


# ------------------------------------------------------------------------------------------------ examinations


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
    where: dict[str, Any] = {"name": "pair", "scheduler": "ssh", "cores_per_node": 1, "hosts": both, "interface": "ib0"}
    pair = Partition(**where, environment={"NCCL_IB_DISABLE": "1"})
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")

    desk = Partition(name="desk", cores_per_node=999)
    for partition, hosts in ((pair, ()), (pair, both[:1]), (desk, ()), (MAIN, ())):
        doctor.examine(partition=partition, hosts=hosts, runs=tmp_path, quick=True)

    assert [[*slots] for _, slots in asked] == [["a", "b"], ["a"], [], ["n1", "n2"]]
    assert [here.several for here, _ in asked] == [True, False, False, True]
    assert (asked[0][0].interface, asked[0][0].environ["NCCL_IB_DISABLE"], asked[2][0].workers) == ("ib0", "1", 999)


@pytest.mark.cluster
def test_two_real_hosts_and_one_that_is_cut_off(two_hosts: TwoHosts, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "horovod-study"

    def look(*options: str) -> tuple[int, dict[str, tuple[str, str]]]:
        words = ["doctor", "--hosts", "node1:1,node2:1", "--runs", str(tmp_path), "--json", *options]
        done = two_hosts.run("node1", [str(program), *words])
        rows = [each for each in json.loads(done.stdout)["findings"] if each["area"] == "ssh"]
        return done.returncode, {each["name"]: (each["verdict"], each["what"]) for each in rows}

    _, told = look()
    assert [each for each in told if told[each][0] == "fail"] == []
    assert told["node1"] == ("ok", "this machine: launchers need no ssh to it")
    assert told["node2"][0] == told["node2 runs"][0] == "ok"
    assert told["node1 way"] == ("ok", "to node2 from 10.77.0.1")

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
    Finding(area="Python", name="packages", verdict="ok", what="[try] this"),
]


def test_plain_values_the_exit_code_and_lines_that_are_grouped_and_aligned() -> None:
    plain = json.loads(json.dumps(doctor.document(SAMPLE)))

    assert plain["counts"] == {"ok": 2, "warning": 1, "fail": 1}
    assert list(plain["findings"][1]) == ["area", "name", "verdict", "what", "remedy"]
    assert (exit_code(SAMPLE), exit_code(SAMPLE[:1]), exit_code([])) == (1, 0, 0)
    assert doctor.lines(SAMPLE) == [
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
