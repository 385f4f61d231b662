"""The doctor: every check with facts and programs that are put in its place, and once for real."""

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make.wording import Golden
from rich.console import Console
from slurm_cluster import SlurmCluster
from two_hosts import TwoHosts

from horovod_study.cluster import doctor
from horovod_study.cluster.doctor import Finding, checks, examine, exit_code, probe
from horovod_study.cluster.doctor.checks import (
    AREAS,
    CHECKS,
    Answer,
    Machine,
    Said,
    findings,
    gpus_in,
    mpi_of,
    seconds_of,
)
from horovod_study.cluster.partitions import Host, Partition
from horovod_study.cluster.site import free_port
from horovod_study.report import doctor as report

Told = dict[str, tuple[str, str, str]]
"""name -> (verdict, what, remedy)"""

FACTS: dict[str, Any] = {
    "problems": {},
    "host": "node1",
    "packages": {"Python": "3.11.2", "torch": "2.13.0", "horovod": "0.28.1", "mpi4py": "4.1.2", "numpy": "2.4.0"},
    "code": "abc",
    "addresses": {"node1": ["10.0.0.1"]},
    "seen": None,
    "port": 4001,
    "interfaces": {"eth0": {"address": "10.0.0.1", "speed_mbits": 1000}},
    "InfiniBand": {"devices": 0, "ports": "", "locked": 8 * 2**20},
    "gpus": {"rows": [], "cuda": "", "problem": ""},
    "cores": 4,
    "quota": None,
    "memory": 8 * 10**9,
    "load": None,
    "shared memory": 2**35,
    "left over": [],
    "folder": {"place": "/runs", "kind": "ext4", "free": 10**12, "files": 10**6, "problems": {}},
}
"""Of a machine with which nothing is wrong."""


def card(address: str, speed_mbits: int = 1000) -> dict[str, Any]:
    return {"address": address, "speed_mbits": speed_mbits}


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

    def program(self, name: str, text: str, *, beside: bool = False) -> Path:
        """Put a shell script on PATH, or beside Python."""
        path = self.root / ("bin" if beside else "site") / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def python(self, **answers: object) -> None:
        """A Python that knows what to print for programs with a word in them, or fails with a text."""
        cases = []
        for word, answer in answers.items():
            if isinstance(answer, str):
                cases.append(f"*{word}*) echo {shlex.quote(answer)} >&2; exit 1 ;;")
            else:
                rows = answer if isinstance(answer, list) else [answer]
                cases.append(f"*{word}*) echo {shlex.quote(chr(10).join(map(json.dumps, rows)))} ;;")
        self.program("python", 'case "$2$3" in\n' + "\n".join(cases) + "\nesac", beside=True)

    def look(self, *, facts: dict[str, Any] | None = None, **how: Any) -> Machine:
        return Machine(environ=self.environ, facts={**FACTS, **(facts or {})}, **how)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    machine = Place(tmp_path)
    monkeypatch.setattr(probe, "PROC", tmp_path / "proc")
    monkeypatch.setattr(probe, "SYSTEM", tmp_path / "sys")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(checks, "installed", machine.there.get)
    return machine


def told(area: str, look: Machine) -> Told:
    """Return what the checks of an area say."""
    found = findings(area, look, AREAS[area](look))
    assert len({each.name for each in found}) == len(found), "two findings have one name"
    return {each.name: (each.verdict, each.what, each.remedy) for each in found}


def wrong(found: Told) -> dict[str, str]:
    return {name: verdict for name, (verdict, _, _) in found.items() if verdict != "ok"}


def test_the_table_names_each_check_once_with_a_remedy() -> None:
    assert len({(row.area, row.name) for row in CHECKS}) == len(CHECKS)
    assert {row.area for row in CHECKS} == {*AREAS, "ssh"}
    assert {row.otherwise for row in CHECKS} == {"warning", "fail"}
    assert {row.on for row in CHECKS} == {"here", "host", "hosts", "gpu", "slurm"}
    assert all(row.remedy for row in CHECKS)


def test_a_finding_has_the_remedy_and_the_severity_of_the_table_where_it_says_no_other() -> None:
    good, bad = (Said("packages", passes, "two\n  lines").finding("Python") for passes in (True, False))
    other = Said("packages", "warning", "none", "do this", "title").finding("Python")

    assert (good.verdict, good.what, good.remedy) == ("ok", "two lines", "")
    assert (bad.verdict, bad.remedy) == ("fail", "run `make setup`, or pip install '.[train]'")
    assert (other.name, other.verdict, other.remedy) == ("title", "warning", "do this")


def test_a_check_that_breaks_is_a_finding_behind_what_was_found(golden: Golden) -> None:
    def breaks() -> Iterator[Said]:
        yield Said("packages", True, "seen")
        raise OSError("gone")

    result = findings("Python", Machine(environ={}, facts=FACTS), breaks())
    golden([(each.name, each.verdict, each.what) for each in result], "packages", "seen", "gone")


def test_a_fact_that_is_not_known_is_a_finding(place: Place, golden: Golden) -> None:
    look = place.look(facts={"problems": {"interfaces": "TimeoutError: late"}})
    look.facts = {name: fact for name, fact in look.facts.items() if name != "interfaces"}

    golden([told("network", look), wrong(told("machine", look)), told("machine", look)["facts"]], "TimeoutError: late")


def test_a_program_that_hangs_is_killed_with_its_children(place: Place) -> None:
    note = place.root / "child"
    hangs = place.program("hangs", f"sleep 60 & echo $! > {note}; wait")

    for limit_s in (1.0, 10.0, 100.0):  # until the shell has come so far; at once on a quiet machine
        answer = place.look(limit_s=limit_s).call(str(hangs))
        if note.exists() and note.read_text().endswith("\n"):
            break

    assert (answer.code, answer.reason) == (None, f"hangs did not answer within {limit_s:g} s")
    child = Path("/proc", note.read_text().strip(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_why_a_program_did_not_work() -> None:
    assert Answer(1, "", "sinfo: error: no daemon\nbye\n").reason == "no daemon"
    assert Answer(1, "", "x\nImportError: libmpi.so.40: cannot open\n").reason.startswith("ImportError: libmpi.so.40")
    assert Answer(1, "told here\n", "").reason == "told here"
    assert Answer(3, "", "").reason == "exit code 3"
    assert Machine(environ={}).call("/no/such").reason.startswith("/no/such cannot be started (")


def test_objects_are_found_among_other_lines_and_where_mpirun_joins_them(place: Place) -> None:
    place.program("says", 'echo hello; echo \'{"a": 1}{"b": 2}\'; echo 3')

    assert place.look().told("says") == ([{"a": 1}, {"b": 2}], "")


def test_the_environment(place: Place, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    own = place.root / "checkout" / ".venv"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "python").touch()
    (place.root / "other" / "torch").mkdir(parents=True)
    monkeypatch.setattr("horovod_study.__file__", str(place.root / "checkout/horovod_study/__init__.py"))
    place.environ["PYTHONPATH"] = f":{place.root / 'other'}"

    golden(told("Python", place.look()), own, place.root / "other", "numpy")
    monkeypatch.setattr(sys, "prefix", str(own))
    assert told("Python", place.look())["environment"][0] == "ok"


@pytest.mark.slow
def test_the_examination_needs_no_pytorch(tmp_path: Path) -> None:
    """It is there to say that PyTorch is missing."""
    program = "import sys; sys.modules['torch'] = None; from horovod_study import cli; sys.exit(cli.main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "doctor", "--quick", "--json"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["findings"]


def test_nothing_heavy_is_loaded_in_a_quick_examination(place: Place) -> None:
    place.program("python", "exit 9", beside=True)
    place.program("mpirun", "echo 'mpirun (Open MPI) 4.1.8'", beside=True)

    assert [wrong(told(area, place.look(quick=True))) for area in ("PyTorch", "CUDA", "MPI", "Horovod")] == [{}] * 4


TORCH = {"version": "2.13.0", "cuda": None, "gloo": True, "devices": 0, "problem": ""}
CUDA = {**TORCH, "cuda": "12.4", "devices": 2}
GPUS = {"rows": [["0", "H200", "550.1", "0"], ["1", "H200", "550.1", "0"]], "cuda": "12.4", "problem": ""}
BUSY = {**GPUS, "rows": [["0", "H200", "550.1", "93"], ["1", "H200", "550.1", "[N/A]"]]}
NODES_OF_GPUS = Partition(name="alpha", scheduler="slurm", gpus_per_node=8, cores_per_node=48)
MPI4PY = {"version": "4.1.2", "says": "Open MPI v4.1.8, package: ...", "library": "/env/lib/libmpi.so.40"}
HYDRA = "HYDRA build details:\n    Version:    4.2.1"
HVD = {"version": "0.28.1", "MPI": True, "Gloo": True, "NCCL": False, "library": MPI4PY["library"], "by": None}


def test_which_mpi_it_is() -> None:
    said = {
        "mpirun (Open MPI) 4.1.8\n\nReport bugs": "mpirun (Open MPI) 4.1.8",
        "Open MPI v4.1.8, package: Open MPI root@x Distribution, ident: 4.1.8": "Open MPI v4.1.8",
        f"{HYDRA}\n": "HYDRA build details: Version: 4.2.1",
        "Intel(R) MPI Library 2021.12 for Linux* OS": "Intel(R) MPI Library 2021.12",
        "MPI VERSION    : CRAY MPICH version 8.1.28.11 (ANL)": "MPI VERSION : CRAY MPICH version 8.1.28.11",
        "a program": "",
        "": "",
    }
    assert {each: mpi_of(each) for each in said} == said


def mpirun(place: Place, says: str, then: str = "") -> Path:
    """An mpirun that starts one process, whatever it is told."""
    start = then or 'while [ "$1" != -np ]; do shift; done; shift 2; exec "$@"'
    return place.program("mpirun", f'[ "$1" = --version ] && {{ echo "{says}"; exit; }}\n{start}', beside=True)


OPEN_MPI = "mpirun (Open MPI) 4.1.8"


@pytest.mark.parametrize(
    ("says", "then", "answer", "bad"),
    [
        (OPEN_MPI, "", [MPI4PY, MPI4PY, {"size": 2}, {"size": 2}], {}),
        (HYDRA, "", [MPI4PY, MPI4PY, {"size": 1}, {"size": 1}], {"two ranks": "fail"}),
        ("mpirun (Open MPI) 5.0.3", "", [MPI4PY, {"size": 2}], {"mpirun": "fail"}),
        ("prterun (PRRTE) 3.0.2", "", [MPI4PY, {"size": 2}], {}),
        ("a program", "", [MPI4PY, {"size": 2}], {"mpirun": "warning"}),
        (OPEN_MPI, "echo no slots >&2; exit 1", MPI4PY, {"mpi4py": "fail"}),
        (OPEN_MPI, "", "ImportError: libmpi.so.40: cannot open", {"mpi4py": "fail"}),
        (OPEN_MPI, "", [MPI4PY, MPI4PY], {"two ranks": "fail"}),
    ],
)
def test_mpirun_and_mpi4py(place: Place, says: str, then: str, answer: Any, bad: Any, golden: Golden) -> None:
    mpirun(place, says, then)
    place.python(loaded_library=answer)

    found = told("MPI", place.look())
    assert wrong(found) == bad
    golden(found)


@pytest.mark.parametrize(
    ("answer", "how", "bad"),
    [
        (TORCH, {}, {}),
        (CUDA, {"gpus": GPUS}, {}),
        ("OSError: libc10.so: cannot open", {"gpus": GPUS}, {"version": "fail"}),
        ({**TORCH, "gloo": False}, {}, {"version": "warning"}),
        (TORCH, {"gpus": GPUS}, {"PyTorch and GPUs": "warning"}),
        (TORCH, {"partition": NODES_OF_GPUS}, {"PyTorch and GPUs": "warning"}),
        (CUDA, {"partition": NODES_OF_GPUS}, {}),
        ({**CUDA, "cuda": "13.0"}, {"gpus": GPUS}, {"PyTorch and GPUs": "fail"}),
        ({**CUDA, "problem": "out of memory"}, {"gpus": GPUS}, {"PyTorch and GPUs": "fail"}),
        ({**CUDA, "devices": 0}, {"gpus": GPUS}, {"PyTorch and GPUs": "fail"}),
        ({**CUDA, "devices": 1}, {"gpus": GPUS}, {"PyTorch and GPUs": "warning"}),
        (CUDA, {"gpus": {**GPUS, "rows": [], "problem": "Driver/library version mismatch"}}, {"driver": "fail"}),
        (CUDA, {"gpus": BUSY}, {"others": "warning"}),
        ([HVD, {"size": 1}], {}, {}),
        ("ImportError: mpi_lib_v2.so: undefined symbol: _ZN3c10", {}, {"installed": "fail"}),
        ([{**HVD, "MPI": False}, {"size": 1}], {}, {"installed": "warning"}),
        ([{**HVD, "library": "/usr/lib/libmpi.so.12"}, {"size": 1}], {}, {"installed and mpi4py": "fail"}),
        ([HVD], {}, {"installed starts": "fail"}),
        ([HVD, {"size": 2}], {}, {"installed starts": "fail"}),
        ([{**HVD, "by": "MPI"}, {"size": 1}], {"build": "mpi"}, {}),
        ([{**HVD, "by": "host"}, {"size": 1}], {"build": "mpi"}, {"build mpi": "fail"}),
        ([{**HVD, "by": "NCCL", "NCCL": True}, {"size": 1}], {"build": "nccl"}, {}),
        ([HVD, {"size": 1}], {"build": "nccl"}, {"build nccl": "fail"}),
    ],
)
def test_pytorch_gpus_and_horovod(place: Place, answer: Any, how: Any, bad: dict[str, str], golden: Golden) -> None:
    if "build" in how:
        file(place.root / "lib" / "horovod-builds" / how["build"] / "horovod" / "__init__.py", "")
        place.there.clear()
    place.python(torch=answer)
    place.environ["CUDA_VISIBLE_DEVICES"] = "0,7"
    facts = {"gpus": how.get("gpus", FACTS["gpus"])}
    look = place.look(facts=facts, partition=how.get("partition"), known={"library": MPI4PY["library"]})

    areas = ("PyTorch", "CUDA") if "OSError" in str(answer) or "devices" in str(answer) else ("Horovod",)
    found = {name: each for area in areas for name, each in told(area, look).items()}

    assert wrong(found) == bad
    golden(found)


def test_neither_mpirun_nor_mpi4py(place: Place, golden: Golden) -> None:
    place.there.clear()
    place.python(mpi4py="ModuleNotFoundError: No module named 'mpi4py'")

    golden([told("MPI", place.look()), told("Horovod", place.look())], "mpirun", "mpi4py", "Horovod")


def test_a_horovod_that_hangs_ends_with_a_finding(place: Place) -> None:
    place.program("python", f"echo {shlex.quote(json.dumps(HVD))}; exec sleep 60", beside=True)

    found = told("Horovod", place.look(limit_s=1.5))

    assert found["installed starts"][:2] == ("fail", "hvd.init() of one worker python did not answer within 1.5 s")


ETH, IB, DOCKER = {"eth0": card("10.0.0.1")}, {"ib0": card("10.1.0.1", 200_000)}, {"docker0": card("172.17.0.1", 0)}


FAST = {"devices": 1, "ports": "mlx5_0:1", "locked": None}
MAIN = Partition(
    name="mine",
    scheduler="slurm",
    slurm_partition="main",
    nodes=2,
    cores_per_node=4,
    gpus_per_node=2,
    gres="gpu:{gpus}",
)
SEVERAL = {"several": True}
CROWD = "other programs use 2.0 of 4 cores (a 2.0)"


def folder(**change: object) -> dict[str, Any]:
    return {"folder": {**FACTS["folder"], **change}}


@pytest.mark.parametrize(
    ("area", "facts", "how", "bad"),
    [
        ("network", {}, SEVERAL, {}),
        ("network", {"interfaces": {}}, {}, {}),
        ("network", {"interfaces": {}}, SEVERAL, {"interfaces": "fail"}),
        ("network", {"interfaces": ETH | IB}, SEVERAL, {"several networks": "warning"}),
        ("network", {"interfaces": ETH | DOCKER}, SEVERAL, {"several networks": "warning"}),
        ("network", {"interfaces": ETH | IB}, {"several": True, "interface": "ib0"}, {}),
        ("network", {"interfaces": ETH | IB}, {}, {}),
        ("network", {"interfaces": ETH}, {"several": True, "interface": "ib0"}, {"interface": "fail"}),
        ("network", {"addresses": {"node1": ["127.0.1.1"]}}, {}, {}),
        ("network", {"addresses": {"node1": ["127.0.1.1"]}}, {"several": True, "interface": "eth0"}, {}),
        ("network", {"addresses": {"node1": ["127.0.1.1"]}}, SEVERAL, {"own name": "warning"}),
        ("network", {"addresses": {"node1": []}}, {}, {"own name": "warning"}),
        ("network", {}, {"environ": {"HOROVOD_GLOO_IFACE": "eth0"}}, {}),
        ("network", {}, {"environ": {"HOROVOD_GLOO_IFACE": "ib0"}}, {"variables": "fail"}),
        ("network", {}, {"environ": {"NCCL_SOCKET_IFNAME": "eth"}}, {}),
        ("network", {}, {"environ": {"NCCL_SOCKET_IFNAME": "=eth"}}, {"variables": "fail"}),
        ("network", {}, {"environ": {"NCCL_SOCKET_IFNAME": "^docker"}}, {}),
        ("network", {}, {"environ": {"OMPI_MCA_btl_tcp_if_include": "eth0,ib0"}}, {"variables": "fail"}),
        ("network", {}, {"environ": {"OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24"}}, {}),
        ("network", {}, {"environ": {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0"}}, {"variables": "warning"}),
        ("runs folder", {}, {}, {}),
        ("runs folder", folder(kind="tmpfs"), {}, {"kind": "warning"}),
        ("runs folder", {}, {"partition": MAIN}, {"kind": "warning"}),
        ("runs folder", folder(kind="lustre"), {"partition": MAIN}, {}),
        ("runs folder", folder(kind="", files=None), {}, {}),
        ("runs folder", folder(free=10**9), {}, {"space": "warning"}),
        ("runs folder", folder(free=10**8), {}, {"space": "fail"}),
        ("runs folder", folder(files=7), {}, {"space": "warning"}),
        ("runs folder", folder(problems={"writable": "Read-only file system"}), {}, {"writable": "fail"}),
        ("runs folder", folder(problems={"hard links": "Operation not permitted"}), {}, {"hard links": "fail"}),
        ("machine", {}, {"workers": 4}, {}),
        ("machine", {}, {"workers": 5}, {"cores": "warning"}),
        ("machine", {"cores": 1}, {}, {"cores": "warning"}),
        ("machine", {"quota": 1.5}, {}, {"processor quota": "warning"}),
        ("machine", {"quota": 4.0, "memory": None, "shared memory": None}, {}, {}),
        ("machine", {"memory": 10**8}, {}, {"memory": "warning"}),
        ("machine", {"shared memory": 2**26}, {}, {"shared memory": "warning"}),
        ("machine", {"load": CROWD}, {}, {"load": "warning"}),
        ("machine", {"load": CROWD}, {"partition": MAIN}, {}),
        ("machine", {"InfiniBand": FAST}, {}, {}),
        ("machine", {"InfiniBand": {**FAST, "locked": 8 * 2**20}}, {}, {"locked memory": "warning"}),
        ("machine", {"InfiniBand": {**FAST, "ports": ""}}, {}, {"InfiniBand": "warning"}),
        ("machine", {"left over": [(30, "/runs/s/dead"), (31, "/runs/s/dead")]}, {}, {"earlier runs": "warning"}),
    ],
)
def test_what_the_facts_say(
    place: Place, area: str, facts: dict[str, Any], how: dict[str, Any], bad: dict[str, str], golden: Golden
) -> None:
    found = told(area, replace(place.look(facts=facts), **how))

    assert wrong(found) == bad
    golden([found[name] for name in bad] or found)


def with_slurm(place: Place, *, states: Sequence[str] = ("idle", "idle", "up"), sbatch: str = "true") -> None:
    nodes = "\n".join(f"n{n}|4|4000|gpu:2|{states[n]}|1:00:00|{states[2]}|main*" for n in (0, 1))
    place.program("sinfo", f"case \"$*\" in *alpha*) ;; *) cat <<'END'\n{nodes}\nEND\n;; esac")
    for name in ("squeue", "srun", "scancel", "sacct"):
        place.program(name, "true")
    place.program("sbatch", sbatch)


def test_no_slurm_is_fine_unless_it_is_wanted(place: Place, golden: Golden) -> None:
    assert wrong(told("Slurm", place.look())) == {}
    golden(told("Slurm", place.look(partition=MAIN)), "answers", "fail")
    place.program("sinfo", "")
    assert wrong(told("Slurm", place.look())) == {"answers": "warning"}


def test_a_slurm_that_is_what_the_file_says(place: Place, golden: Golden) -> None:
    with_slurm(place)
    place.environ["SLURM_JOB_ID"] = "9"

    found = told("Slurm", place.look(partition=replace(MAIN, memory_per_core_mb=1000)))

    assert wrong(found) == {}
    golden(found, "2 nodes", "job 9", "main")


@pytest.mark.parametrize(
    ("change", "name", "verdict", "says"),
    [
        ({"slurm_partition": "alpha"}, "partition", "fail", ""),
        ({"cores_per_node": 8}, "cores per node", "fail", "8, Slurm knows 4"),
        ({"cores_per_node": 2}, "cores per node", "warning", "2, Slurm knows 4"),
        ({"memory_per_core_mb": 10312}, "memory per node", "fail", "10312, Slurm knows 1000"),
        ({"gpus_per_node": 4}, "GPUs per node", "fail", "4, Slurm knows 2"),
        ({"gpus_per_node": 1}, "GPUs per node", "warning", "1, Slurm knows 2"),
        ({"gres": None}, "GPUs per node", "warning", "gres"),
        ({"time_limit_s": 7200.0}, "time limit", "fail", "7200.0, Slurm knows 3600"),
        ({"nodes": 5}, "nodes", "warning", "5, Slurm knows 2"),
        ({"nodes": None}, "nodes", "warning", "None, Slurm knows 2"),
        ({"modules": ("openmpi/4",)}, "modules", "fail", "openmpi/4"),
    ],
)
def test_a_partition_and_its_file(
    place: Place, change: Any, name: str, verdict: str, says: str, golden: Golden
) -> None:
    with_slurm(place)

    found = told("Slurm", place.look(partition=replace(MAIN, **change)))

    assert wrong(found) == {name: verdict}
    golden(found[name], says)


def test_states_of_a_partition(place: Place, golden: Golden) -> None:
    look = place.look(partition=replace(MAIN, slurm_partition=None))
    found = {}
    for states in (
        ("idle", "idle", "down"),
        ("drained", "down*", "up"),
        ("idle", "down*", "up"),
        ("mixed-", "idle~", "up"),
    ):
        with_slurm(place, states=states)
        found["/".join(states)] = told("Slurm", look)["partition"]

    assert [verdict for verdict, _, _ in found.values()] == ["fail", "fail", "warning", "ok"]
    golden(found)


def test_a_slurm_that_does_not_answer(place: Place, golden: Golden) -> None:
    with_slurm(place)
    place.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")

    assert wrong(told("Slurm", place.look())) == {"answers": "warning"}
    golden(told("Slurm", place.look(partition=MAIN)), "answers", "fail", "Unable to contact slurm controller")


def test_a_job_that_would_be_refused(place: Place, golden: Golden) -> None:
    for said, remedy in {
        "Invalid account or account/partition combination specified": "sacctmgr",
        "Invalid qos specification": "sacctmgr",
        "Requested node configuration is not available": "the lines above",
        "Something else": "sbatch --test-only --job-name",
    }.items():
        with_slurm(place, sbatch=f"echo 'sbatch: error: {said}' >&2; exit 1")
        found = told("Slurm", place.look(partition=MAIN))
        assert wrong(found) == {"sbatch --test-only": "fail"}
        golden(found["sbatch --test-only"], said, remedy)


def test_the_job_that_is_tried_is_that_of_a_study(place: Place) -> None:
    note = place.root / "asked"
    place.environ |= {"SBATCH_ACCOUNT": "wrong", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": "9"}
    with_slurm(place, sbatch=f'echo "$* $SBATCH_ACCOUNT $SLURM_CONF $SLURM_JOB_ID" > {note}')

    told("Slurm", place.look(partition=replace(MAIN, account="a1", qos="high", memory_per_core_mb=1000)))

    asked = note.read_text()
    assert asked.startswith("--test-only --job-name=horovod-study-doctor --partition=main --account=a1 --qos=high ")
    assert "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:2 --mem-per-cpu=1000M --exclusive" in asked
    assert "wrong" not in asked and asked.rstrip().endswith(" /etc/x.conf"), "the caller's own settings are left out"


def test_modules_and_states_of_jobs(place: Place, golden: Golden) -> None:
    with_slurm(place)
    (place.root / "site" / "sacct").unlink()
    place.program("bash", "echo 'Lmod has detected the following error: unknown: openmpi/9' >&2")
    look = place.look(partition=replace(MAIN, modules=("gcc", "openmpi/9")))
    golden([told("Slurm", look)[name] for name in ("modules", "sacct")], "openmpi/9", "sacct")

    place.program("bash", "exit 0")
    assert told("Slurm", look)["modules"][0] == "ok"
    assert "modules" not in told("Slurm", replace(look, quick=True))


def test_gpus_and_time_limits_as_slurm_writes_them() -> None:
    gres = {"gpu:2": 2, "gpu:a100:4(S:0-1),shard:8": 4, "(null)": 0, "gpu:a100:2,gpu:h100:1": 3, "gpu": 1, "N/A": 0}
    limits = {"1:00:00": 3600, "30:00": 1800, "2-12:00:00": 216_000, "infinite": None, "n/a": None}

    assert {each: gpus_in(each) for each in gres} == gres
    assert {each: seconds_of(each) for each in limits} == limits


def test_a_fact_that_breaks_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(probe, "_quota", broken)
    monkeypatch.setattr(probe, "other_load", lambda cores, *, seconds: None)

    found = probe.facts()

    assert found["problems"] == {"quota": "RuntimeError: broken"}
    assert {*found, "quota"} == {*FACTS, "clock"}
    assert found["addresses"].keys() == {platform.node()}


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
    stats = {name: SimpleNamespace(isup=name != "down", speed=1000) for name in cards}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: addresses)
    monkeypatch.setattr("psutil.net_if_stats", lambda: stats)

    assert probe._interfaces() == {"eth0": card("10.77.0.1")}


def test_the_quota_is_the_tightest_of_the_control_groups(place: Place) -> None:
    file(place.root / "proc/self/cgroup", "0::/job/step")
    file(place.root / "sys/fs/cgroup/job/cpu.max", "150000 100000")
    file(place.root / "sys/fs/cgroup/job/step/cpu.max", "250000 100000")
    assert probe._quota() == 1.5

    file(place.root / "proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x")
    file(place.root / "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1")
    file(place.root / "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000")
    assert probe._quota() is None
    file(place.root / "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "50000")
    file(place.root / "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000")
    assert probe._quota() == 0.5


def test_active_ports_of_infiniband(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, 0))
    assert probe._infiniband() == {"devices": 0, "ports": "", "locked": None}
    state = place.root / "sys/class/infiniband/mlx5_0/ports/1/state"
    file(state, "1: DOWN")
    assert probe._infiniband() == {"devices": 1, "ports": "", "locked": None}
    file(state, "4: ACTIVE")
    assert probe._infiniband() == FAST


def test_what_nvidia_smi_says(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", place.environ["PATH"])
    assert probe._gpus() == FACTS["gpus"]
    file(place.root / "proc/driver/nvidia/version", "NVRM version: ...")
    assert probe._gpus()["problem"] == "its module is loaded, but nvidia-smi is not on PATH"

    listed = 'case "$1" in --query*) printf "0, H200, 550.1, 0\\n1, H200, 550.1, 0\\n";; *)'
    place.program("nvidia-smi", f'{listed} echo "| Driver Version: 550.1  CUDA Version: 12.4 |";; esac')
    assert probe._gpus() == GPUS
    place.program("nvidia-smi", "echo 'NVML: Driver/library version mismatch' >&2; exit 18")
    assert probe._gpus()["problem"] == "NVML: Driver/library version mismatch"
    place.program("nvidia-smi", "true")
    assert probe._gpus()["problem"] == "nvidia-smi lists no GPU"


def test_processes_that_earlier_runs_left(place: Place) -> None:
    alive = [(10, "horovod-study", 1, ""), (11, "mpirun", 10, "/runs/alive"), (20, "orted", 1, "/runs/remote")]
    for pid, name, parent, run in [*alive, (21, "python", 20, "/runs/remote"), (30, "python", 1, "/runs/dead")]:
        file(place.root / f"proc/{pid}/stat", f"{pid} ({name}) S {parent} " + "0 " * 31)
        file(place.root / f"proc/{pid}/environ", f"A=1\0HOROVOD_STUDY_CELL={run}\0B=2" if run else "A=1")

    assert probe._left_over() == [(30, "/runs/dead")]


def test_a_folder_that_works(tmp_path: Path) -> None:
    found = probe._folder(tmp_path / "not" / "yet")

    assert (found["place"], found["problems"]) == (str(tmp_path), {})
    assert found["free"] > 0
    assert list(tmp_path.iterdir()) == []
    assert probe._folder(Path("/proc/runs"))["problems"].keys() == {"writable"}


def test_the_file_system_of_a_folder(place: Place) -> None:
    mounts = [("", "ext4"), ("/home", "nfs4"), ("/home/my\\040scratch", "lustre"), ("/run", "tmpfs")]
    file(place.root / "proc/self/mounts", "\n".join(f"x {place.root}{point} {each} rw 0 0" for point, each in mounts))

    for place_, kind in {"data": "ext4", "home/me": "nfs4", "home/my scratch": "lustre", "homes": "ext4"}.items():
        (place.root / place_).mkdir(parents=True)
        assert probe._folder(place.root / place_ / "runs")["kind"] == kind


@pytest.mark.parametrize(
    ("function", "does", "problem"),
    [
        ("link", errno.EPERM, {"hard links": "Operation not permitted"}),
        ("link", lambda there, name: Path(name).write_text("copy"), {"hard links": "they replace each other"}),
        ("replace", errno.EXDEV, {"writable": "Invalid cross-device link"}),
        ("write_bytes", errno.ENOSPC, {"writable": "No space left on device; make room"}),
    ],
)
def test_a_poor_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, does: Any, problem: Any) -> None:
    def refused(*_: object) -> None:
        raise OSError(does, os.strerror(does))

    call: Callable[..., Any] = does if callable(does) else refused
    monkeypatch.setattr(Path if function == "write_bytes" else os, function, call)

    assert probe._folder(tmp_path)["problems"] == problem
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_hosts_reach_each_other_while_both_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TRIES", 4)
    here, there = free_port(), free_port()
    with ThreadPoolExecutor(2) as pool:
        ways = list(pool.map(probe.reached, (here, there), [["127.0.0.1", "127.0.0.2"]] * 2, (there, here)))

    assert ways == [{"127.0.0.1": ("127.0.0.1", ""), "127.0.0.2": ("127.0.0.1", "")}] * 2
    monkeypatch.setattr(probe, "_TRIES", 1)
    assert probe.reached(here, ["127.0.0.1"], there) == {"127.0.0.1": ("", "Connection refused")}


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
        names = {"addresses": {"node1": ["10.0.0.1"], "node2": ["10.0.0.2"]}, "seen": True}
        self.stories: dict[str, dict[str, Any]] = {
            f"node{n}": FACTS | names | {"host": f"node{n}", "interfaces": {"eth0": card(f"10.0.0.{n}")}}
            for n in (1, 2)
        }

    def answer(self, look: Machine, host: str | None, **question: Any) -> tuple[dict[str, Any], str]:
        """Stand in for the probe of a host."""
        assert host is not None
        if question["ask"] == "reached":
            source = {f"10.{net}.0.{3 - n}": f"10.{net}.0.{n}" for net in (0, 1) for n in (1, 2)}
            return {each: (source[each], "") for each in question["addresses"]}, ""
        path, content = question["seen"]
        assert Path(path).read_text() == content
        clock_s = datetime.now(UTC).timestamp() + self.ahead_s
        return {**self.stories[host], "clock": [clock_s, clock_s]}, ""

    def look(self, *named: str, **how: Any) -> Told:
        cases = "\n".join(f"{host}) {action} ;;" for host, action in self.cases.items())
        self.place.program("ssh", FAKE_SSH.format(cases=cases))
        folder = {"folder": {**FACTS["folder"], "place": str(self.place.root)}}
        look = self.place.look(facts=folder, several=True, **how)
        hosts = [Host(name=name, slots=2) for name in named or ("node1", "node2")]
        found = findings("ssh", look, doctor._hosts(look, hosts))
        assert list(self.place.root.glob(".doctor.*")) == [], "the scratch folder is removed"
        assert len({each.name for each in found}) == len(found), "two findings have one name"
        return {each.name: (each.verdict, each.what, each.remedy) for each in found}


@pytest.fixture
def pair(place: Place, monkeypatch: pytest.MonkeyPatch) -> Pair:
    hosts = Pair(place)
    monkeypatch.setattr(doctor, "this_host", lambda name: False)
    monkeypatch.setattr(doctor, "_asked", hosts.answer)
    return hosts


def test_two_hosts_that_work(pair: Pair, golden: Golden) -> None:
    found = pair.look()

    assert wrong(found) == {}
    of_one = ("", " packages", " horovod_study", " runs", " clock")
    own = [f"{host}{what}" for host in ("node1", "node2") for what in of_one]
    assert list(found) == [*own, "host names", "node1 to node2", "node2 to node1"]
    golden(found)


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
        ("strange", "ssh -v HOST true"),
    ],
)
def test_why_ssh_does_not_work(pair: Pair, said: str, remedy: str, golden: Golden) -> None:
    pair.cases["node2"] = f"printf '{said}\\n' >&2; exit 255"

    found = pair.look()

    assert wrong(found) == {"node2": "fail"}, "the other host is looked at"
    golden(found["node2"], remedy)


def test_an_ssh_that_hangs_prints_or_is_not_there(pair: Pair, golden: Golden) -> None:
    pair.cases["node2"] = "exec sleep 60"
    golden(pair.look("node2", limit_s=0.5), "node2", "0.5 s", "fail")
    pair.cases["node2"] = "echo 'Welcome to node2'"
    golden(pair.look()["node2 shell"], "Welcome to node2", "fail")
    (pair.place.root / "site" / "ssh").unlink()
    golden(doctor._login(pair.place.look(), "node2"), "openssh-client")


@pytest.mark.parametrize(
    ("change", "name", "verdict", "what"),
    [
        ({"packages": {**FACTS["packages"], "torch": "2.11.0", "horovod": None}}, "node2 packages", "fail", "2.11.0"),
        ({"code": "def"}, "node2 horovod_study", "fail", "def there, abc here"),
        ({"seen": False}, "node2 runs", "fail", "does not see"),
        ({"cores": 1}, "node2 cores", "warning", "1 core for 2 workers"),
        ({"host": "node1"}, "host names", "fail", "node1, node2 call themselves the same"),
        ({"addresses": {"node2": ["10.0.0.2"], "node1": []}}, "node2 knows node1", "fail", "node1 is unknown there"),
        ({"addresses": {"node2": ["10.0.0.2"], "node1": ["127.0.0.1"]}}, "node2 knows node1", "fail", "127.0.0.1"),
        ({"addresses": {"node2": ["127.0.1.1"], "node1": ["10.0.0.1"]}}, "node2 knows node2", "warning", "127.0.1.1"),
        ({"interfaces": {"eth0": card("10.0.0.1")}}, "node1 to node2", "fail", "no address of its own"),
        ({"memory": 10}, "node2 memory", "warning", "10 bytes"),
        ({"problems": {"quota": "E: x"}}, "node2 facts", "warning", "quota: E: x"),
    ],
)
def test_what_may_be_wrong_with_a_host(pair: Pair, change: dict[str, Any], name: str, verdict: str, what: str) -> None:
    pair.stories["node2"] |= change

    found = pair.look()

    assert found[name][0] == verdict
    assert what in found[name][1]
    assert found[name][2]


def test_the_clock_of_another_host(pair: Pair) -> None:
    assert pair.look()["node2 clock"] == ("ok", "that of this machine", "")
    for ahead_s, text in ((90.0, "ahead of"), (-90.0, "behind")):
        pair.ahead_s = ahead_s
        verdict, what, _ = pair.look()["node2 clock"]
        assert verdict == "warning" and what.endswith(f" s {text} this machine's")


def test_no_python_there(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_asked", lambda look, host, **question: ({}, "sh: python: not found"))

    found = pair.look()
    assert wrong(found) == {"node1 Python": "fail", "node2 Python": "fail"}
    assert found["node2 Python"][1].endswith("does not run there: sh: python: not found")


def test_the_interface_that_is_to_be_used_between_hosts(pair: Pair, golden: Golden) -> None:
    for n in (1, 2):
        pair.stories[f"node{n}"]["interfaces"] = {"eth0": card(f"10.0.0.{n}"), "ib0": card(f"10.1.0.{n}")}

    golden(pair.look()["node1 to node2"], "ok", "through eth0", "through ib0")
    assert wrong(pair.look(interface="ib0")) == {}
    golden(pair.look(interface="ib1")["node1 to node2"], "fail", "ib1", "eth0")


def test_a_quick_examination_only_logs_in_and_a_host_is_named_once(pair: Pair, golden: Golden) -> None:
    assert list(pair.look(quick=True)) == ["node1", "node2"]
    golden(pair.look("node1", "node1", quick=True)["hosts"], "fail", "node1")


def test_the_probe_answers_through_ssh_as_it_does_here(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for real: this machine is asked in the way that another host would be."""
    monkeypatch.undo()
    place.program("ssh", FAKE_SSH.format(cases="none) ;;"))
    file(place.root / "seen", "content")
    seen = {"names": ["localhost"], "seen": [str(place.root / "seen"), "content"]}
    look = Machine(environ={**os.environ, "PATH": f"{place.root / 'site'}:{os.environ['PATH']}"}, limit_s=60.0)

    here, problem = doctor._asked(look, None, ask="facts", runs=str(place.root))
    there, other = doctor._asked(look, "no-such-host", ask="facts", **seen)
    assert doctor._asked(look, "no-such-host", ask="nothing")[0] == {}

    assert (problem, other, here["problems"], there["problems"]) == ("", "", {}, {})
    assert here["folder"]["place"] == str(place.root)
    assert (there["seen"], there["host"], there["code"]) == (True, platform.node(), here["code"])
    assert there["addresses"]["localhost"] == ["127.0.0.1"]


def test_everything_hangs_and_the_doctor_still_answers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia-smi", "mpirun", "sinfo", "squeue", "sbatch", "srun", "scancel", "ssh"):
        place.program(name, "exec sleep 60")
    place.program("python", "exec sleep 60", beside=True)
    monkeypatch.setenv("PATH", place.environ["PATH"])
    monkeypatch.setattr(Machine, "__init__", limited(Machine.__init__))

    result = examine(hosts=[Host(name="node9", slots=1)], runs=place.root / "runs", quick=True)

    text = {(each.area, each.name): each.what for each in result}
    assert text["machine", "facts"] == "could not be told: this machine: python did not answer within 0.3 s"
    assert all("did not answer within" in text[each] for each in (("Slurm", "answers"), ("ssh", "node9")))
    assert exit_code(result) == 1


def limited(init: Callable[..., None]) -> Callable[..., None]:
    return lambda self, **how: init(self, **{**how, "limit_s": 0.3})


def test_a_quick_examination_of_this_machine(tmp_path: Path) -> None:
    result = examine(runs=tmp_path, quick=True)

    assert [each for each in result if each.verdict == "fail"] == []
    assert list(dict.fromkeys(each.area for each in result)) == [area for area in AREAS if area != "PyTorch"]
    assert list(tmp_path.iterdir()) == []
    assert exit_code(result) == 0


@pytest.mark.horovod
def test_a_full_examination_of_this_machine(tmp_path: Path) -> None:
    result = examine(runs=tmp_path)

    assert [each for each in result if each.verdict == "fail"] == []
    told = {(each.area, each.name): each.what for each in result}
    assert told["MPI", "two ranks"].endswith("they found each other")
    assert told["Horovod", "installed starts"] == "hvd.init() of one worker works"
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
    def look(partition: Partition | None) -> Told:
        return told("Slurm", Machine(environ=slurm.environment, facts=FACTS, partition=partition, limit_s=60.0))

    assert wrong(look(MAIN)) == {"sacct": "warning"}
    assert look(MAIN)["partition"][1] == "main is up, 2 of 2 nodes usable"
    assert look(MAIN)["sacct"][1] == "does not work: Slurm accounting storage is disabled"
    bad = wrong(look(replace(MAIN, gpus_per_node=3, cores_per_node=48)))
    assert {*bad} == {"cores per node", "GPUs per node", "sbatch --test-only", "sacct"}
    assert wrong(look(replace(MAIN, slurm_partition="alpha")))["partition"] == "fail"
    assert look(None)["squeue"][0] == "ok"


def test_what_a_partition_says_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(doctor, "_hosts", lambda here, named: asked.insert(len(asked), named) or ())
    monkeypatch.setattr(doctor, "_asked", lambda here, host, **question: (FACTS, ""))
    both = (Host(name="a", slots=1), Host(name="b", slots=1))
    pair = Partition(name="pair", scheduler="ssh", hosts=both, interface="ib0", environment={"NCCL_IB_DISABLE": "1"})
    desk = Partition(name="desk", cores_per_node=9)

    cases: Any = ((pair, ()), (pair, both[:1]), (desk, ()))
    found = [examine(partition=partition, hosts=hosts, runs=tmp_path, quick=True) for partition, hosts in cases]
    verdicts = [{each.name: each.verdict for each in rows} for rows in found]

    assert asked == [both, both[:1]]
    assert (verdicts[0]["interface"], verdicts[0]["variables"]) == ("fail", "warning")
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
    assert [text.plain for text, _ in report._rows(SAMPLE)] == [
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
    assert all(line.startswith(" " * 18 + "word") for line in wrapped[1:])
    assert max(map(len, wrapped[1:])) <= 60
