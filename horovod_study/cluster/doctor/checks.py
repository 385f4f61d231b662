"""The doctor's checks: one table, and what looks for each. The same script makes those of a host, here and over ssh.

A function returns what it found, in words, or raises `Wrong`: how bad that is, and the remedy, are in the table, where
what was found suggests no other. What may crash or hang is asked in a process of its own, which is bounded in time.
"""

import errno
import ipaddress
import json
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import horovod_study
from horovod_study.cluster.allocations import Allocation
from horovod_study.cluster.identity import code_digest, installed
from horovod_study.cluster.launch import cell_environment
from horovod_study.cluster.partitions import Partition
from horovod_study.cluster.pinning import other_load
from horovod_study.cluster.site import free_port
from horovod_study.cluster.slurm import directives
from horovod_study.comm import builds
from horovod_study.config import Cell, Placement, available_cores
from horovod_study.files import unfinished
from horovod_study.measure.clock import sleep
from horovod_study.text.numbers import amount
from horovod_study.text.words import cut, plural
from horovod_study.variables import without_working_directory
from horovod_study.workload.room import available_bytes
from horovod_study.workloads import packaged

PROC, SYSTEM, SHARED = Path("/proc"), Path("/sys"), Path("/dev/shm")
LOAD_S = 60.0  # for a program: from a busy file server PyTorch loads slowly
_PACKAGES = ("torch", "horovod", "mpi4py", "numpy")
_TRIES, _APART_S, _CONNECT_S = 8, 0.5, 1.0  # of another host, which may start later than this one


class Wrong(Exception):
    """What a check has found that is not well; without verdict or remedy those of the table hold."""

    def __init__(self, what: str, remedy: str = "", verdict: str = "", *, printed: str = "") -> None:
        super().__init__(what)
        self.remedy, self.verdict, self.printed = remedy, verdict, printed or what  # all that a program said


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the diagnosis; a warning or a fail says what to do about it."""

    area: str
    name: str
    verdict: str  # ok | warning | fail
    what: str
    remedy: str = ""  # "" of an ok


@dataclass(kw_only=True)
class Machine:
    """A machine, and what it is to be used for."""

    environ: Mapping[str, str]
    runs: Path = Path("runs")
    partition: Partition | None = None
    interface: str | None = None  # to be used between the hosts
    several: bool = False  # hosts
    workers: int = 0  # to be taken by this machine, as far as that is known
    quick: bool = False
    limit_s: float = LOAD_S  # of each program

    @property
    def slurm(self) -> Partition | None:
        """The partition, where it is one of Slurm."""
        return self.partition if self.partition is not None and self.partition.scheduler == "slurm" else None

    @property
    def _path(self) -> str:
        return os.pathsep.join((str(Path(sys.executable).parent), self.environ.get("PATH", "")))

    def which(self, name: str, *, beside: bool = False) -> str | None:
        """Return a program on PATH; `beside`: where launch lines here, beside Python first."""
        return shutil.which(name, path=self._path if beside else self.environ.get("PATH", os.defpath))

    def call(self, *argv: str, given: str = "", environ: Mapping[str, str] | None = None) -> str:
        """Return what a program prints; Wrong: it failed, or did not answer in time: what it started is killed then."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        how: dict[str, Any] = {**pipes, "text": True, "errors": "replace", "start_new_session": True}
        own = self.environ if environ is None else environ
        try:
            process = subprocess.Popen(argv, env=without_working_directory(own), **how)
        except OSError as error:
            raise Wrong(f"{argv[0]} cannot be started ({error.strerror})") from None
        try:
            output, errors = process.communicate(given, timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a descendant in a session of its own may hold the pipes
                process.communicate(timeout=1.0)
            raise Wrong(f"{Path(argv[0]).name} did not answer within {self.limit_s:g} s") from None
        if process.returncode == 0:
            return str(output)
        lines = [line.strip() for line in (errors or output).splitlines() if line.strip()]
        said = [line for line in lines if re.search("error|fatal", line, re.IGNORECASE)] or lines
        last = re.sub(r"^[a-z][\w-]*: (?:error: |fatal: )?(?=\S)", "", said[-1]) if said else ""
        raise Wrong(last or f"exit code {process.returncode}", printed=errors + output)

    def python(self, program: str, *words: str, ranks: Sequence[str] = ()) -> str:
        """Return what a program for this Python prints in the environment of a cell, which has one thread."""
        own = cell_environment(self.environ, path=self._path, out=Path(os.devnull))
        line = (*ranks, sys.executable, "-P", "-c", program, *words)
        return self.call(*line, environ={**own, "OMP_NUM_THREADS": "1"}).strip()

    def ask_slurm(self, *argv: str, given: str = "") -> str:
        """Run a program of Slurm; what the caller's job or settings say must not change its answers."""
        settings = ("SBATCH_", "SALLOC_", "SRUN_", "SINFO_", "SLURM_")
        kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
        environ = {name: each for name, each in self.environ.items() if name in kept or not name.startswith(settings)}
        return self.call(*argv, given=given, environ=environ)


# ------------------------------------------------------------------------------------------------------- software


def _environment(here: Machine) -> str:
    own, used = Path(horovod_study.__file__).resolve().parent.parent / ".venv", Path(sys.prefix)
    text, wrong = f"Python {platform.python_version()} of {used}", []
    if (own / "bin" / "python").exists() and own.resolve() != used.resolve():
        wrong.append(f"this checkout has one of its own, {own}")
    for folder in filter(None, here.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if hidden := [name for name in _PACKAGES if Path(folder, name).is_dir()]:
            wrong.append(f"{folder} of PYTHONPATH puts its {', '.join(hidden)} before those of the environment")
    if wrong:
        raise Wrong("; ".join([text, *wrong]))
    return text


def _packages(here: Machine) -> str:
    missing = [name for name in ("numpy", "PyYAML", "rich", "pyarrow", "torch", "psutil") if installed(name) is None]
    text = ", ".join(f"{name} {installed(name) or 'missing'}" for name in _PACKAGES)
    if missing:
        raise Wrong(f"{text}; without {', '.join(missing)}")
    return f"{text}; horovod_study {horovod_study.__version__} ({code_digest()[:12]})"


_TORCH = """
import sys, torch
from torch import distributed
built, shown = torch.version.cuda, int(sys.argv[1])
text = "PyTorch %s for %s" % (torch.__version__, "CUDA " + built if built else "CPUs")
if not (distributed.is_available() and distributed.is_gloo_available()):
    print("warning", text + ", has no Gloo: leave ddp/gloo out of studies")
elif not built:
    print("warning" if shown else "ok", text + ": GPUs would be idle" * bool(shown))
else:
    count = torch.cuda.device_count()
    for number in range(count):
        ones = torch.ones(64, 64, device="cuda:%d" % number)
        assert float((ones @ ones).sum()) == 64.0 ** 3, "device %d computes wrongly" % number
    verdict = "ok" if count >= shown else "warning" if count else "fail"
    print(verdict, "%s computes on %d of %d GPUs" % (text, count, shown))
"""


def _torch(here: Machine) -> str:
    """Does it load, and compute on all GPUs: those of this machine, or that the partition's file speaks of."""
    rows = [] if here.which("nvidia-smi") is None else here.call("nvidia-smi", "-L").splitlines()
    wanted = here.partition.gpus_per_node if here.partition is not None and not rows else 0
    verdict, _, text = here.python(_TORCH, str(len(rows) or wanted)).splitlines()[-1].partition(" ")
    if verdict == "ok" or (verdict == "fail" and not rows):  # a login node has none of the GPUs
        return text
    hidden = here.environ.get("CUDA_VISIBLE_DEVICES")
    raise Wrong(text + (f"; CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""), verdict=verdict)


def _driver(here: Machine) -> str:
    if here.which("nvidia-smi") is None:
        if (PROC / "driver/nvidia/version").exists():
            raise Wrong("its module is loaded, but nvidia-smi is not on PATH")
        return "no GPU here: runs use the CPUs"
    rows = here.call("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    if not rows:
        raise Wrong("nvidia-smi lists no GPU")
    return f"{plural(len(rows), 'GPU')}: {rows[0]}"


def _mpirun(here: Machine) -> str:
    used = here.which("mpirun", beside=True)
    if used is None:
        raise Wrong("neither beside Python nor on PATH: horovod/mpi and mpi runs cannot start")
    kind = mpi_of(here.call(used, "--version"))
    if re.search(r"(Open MPI\)|prterun\D*) ([5-9]|\d\d)\.", kind):
        text = f"{used} is {kind}: it refuses the options by which horovodrun 0.28.1 starts it (-bind-to, single dash)"
        raise Wrong(text, verdict="fail" if installed("horovod") else "")
    if not kind:
        raise Wrong(f"{used} is none that says its version")
    return f"{used} is {kind}"


def mpi_of(said: str) -> str:
    """Return what an MPI says of itself up to its version, such as `mpirun (Open MPI) 4.1.8`; "" where it has none."""
    found = re.match(r".*?\d+\.\d+[^\s,]*", " ".join(said.split()))
    return found[0][-80:] if found else ""


_RANKS = """
from mpi4py import MPI
from horovod_study.comm.libmpi import loaded_library
told = "mpi4py over %s (%s)" % (" ".join(MPI.Get_library_version().split()[:3]), loaded_library())
print("\\n%d %s" % (MPI.COMM_WORLD.allreduce(1), told), flush=True)
"""


def _two_ranks(here: Machine) -> str:
    """Do mpirun and the library that mpi4py loads belong together."""
    used = here.which("mpirun", beside=True)
    if used is None or installed("mpi4py") is None:
        raise Wrong("mpirun or mpi4py is missing: backend mpi cannot start", verdict="warning")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    open_mpi = re.search("Open MPI|prterun", here.call(used, "--version"))
    placed = [*root, "--host", "localhost:2", "--bind-to", "none"] if open_mpi else []
    size, _, told = here.python(_RANKS, ranks=(used, *placed, "-np", "2")).splitlines()[-1].partition(" ")
    if size != "2":
        raise Wrong(f"mpirun started two, and each takes itself for the only one: {told.rstrip(',')}, but not {used}")
    return f"mpirun started two, and they found each other: {told.rstrip(',')}"


_HOROVOD = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from horovod_study.comm.libmpi import find_open_mpi
find_open_mpi()
import horovod
import horovod.torch as hvd
from horovod_study.comm.builds import gpu_allreduce
from horovod_study.comm.libmpi import loaded_library
by = gpu_allreduce(Path(list(horovod.__path__)[0]))
inside = [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, name + "_built")()]
hvd.init()
told = "%s with %s, GPU tensors by %s, %s" % (horovod.__version__, "+".join(inside), by, loaded_library())
print("\\n%d %s" % (hvd.size(), told), flush=True)
hvd.shutdown()
"""


def _horovod(here: Machine) -> str:
    """The installed one and the builds beside it: do they load, start, and hold what their names say."""
    folder = Path(sys.executable).parent.parent / "lib" / "horovod-builds"
    places = {"installed": ""} if installed("horovod") else {}
    places |= {f"build {name}": str(folder / name) for name in builds.available(folder)}
    if not places:
        raise Wrong("not installed: only runs of serial, ddp, mpi and ps can start", verdict="warning")
    told, wrong = [], ""
    for name, place in places.items():
        try:
            size, _, text = here.python(_HOROVOD, *filter(None, [place])).splitlines()[-1].partition(" ")
            told.append(f"{name}: {text}")
            if size != "1":
                wrong = f"one worker sees {size}: variables of an enclosing job are set"
            elif "mpi" not in text or "gloo" not in text or (name.endswith(" nccl") and "nccl" not in text):
                wrong = "a transport is missing in it"
            elif name == "build mpi" and not re.search("by (MPI|None),", text):
                wrong = "it does not hand GPU tensors to MPI, as its name says"
        except Wrong as error:
            compiled = " (it was compiled for another PyTorch)" if "undefined symbol" in f"{error}" else ""
            told.append(f"{name} does not start")
            wrong = f"{error}{compiled}"
    if wrong:
        raise Wrong(f"{'; '.join(told)}: {wrong}")
    return "; ".join(told)


# -------------------------------------------------------------------------------------------------------- network


def cards() -> dict[str, str]:
    """Return the IPv4 address of each interface that is up and leads to others."""
    stats = psutil.net_if_stats()
    return {
        name: each.address
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for each in addresses
        if each.family == socket.AF_INET and name in stats and stats[name].isup
        if not ipaddress.ip_address(each.address).is_loopback
    }


def _interfaces(here: Machine) -> str:
    found = cards()
    text = "; ".join(f"{name} {address}" for name, address in found.items()) or "only the loopback is up"
    if here.several and not found:
        raise Wrong(text)
    if here.interface is not None and here.interface not in found:
        remedy = "set `interface` in the partition's file to one of these"
        raise Wrong(f"{here.interface} is to be used, which is not up; here are {', '.join(found)}", remedy)
    if here.interface is None and here.several and len(found) > 1:
        text += ": each library chooses by itself, not always the fast one, and may hang in a network of containers"
        raise Wrong(text, "say which with `interface: NAME` in the partition's file", "warning")
    return text


def _addresses(name: str) -> list[str]:
    """Return the IPv4 addresses that a name stands for here; none where it is unknown."""
    with suppress(OSError):
        entries = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        return sorted({str(entry[4][0]) for entry in entries})
    return []


def _own_name(here: Machine) -> str:
    name = platform.node()
    addresses = _addresses(name)
    if not addresses:
        raise Wrong(f"{name} is unknown: PyTorch and Gloo look it up")
    if here.several and here.interface is None and all(each.startswith("127.") for each in addresses):
        raise Wrong(f"{name} is {', '.join(addresses)}: Gloo would listen to this machine only")
    return f"{name} is {', '.join(addresses)}"


def _variables(here: Machine) -> str:
    up = [*cards(), "lo"]
    for variable in ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"):
        text = here.environ.get(variable, "")
        whole = variable != "NCCL_SOCKET_IFNAME" or text.startswith("=")  # else beginnings of names
        for name in text.lstrip("=").split(",") if not re.search(r"\^|/|^$", text) else ():  # all but these; a network
            if not any(each == name or (each.startswith(name) and not whole) for each in up):
                raise Wrong(f"{variable} names {name}, which is not up; here are {', '.join(up)}")
    for variable in ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        if here.environ.get(variable, "0") not in ("", "0"):
            text = f"{variable} is {here.environ[variable]}: NCCL takes a slower way between GPUs"
            raise Wrong(text, "unset it, or set it in the partition's file with `because`", "warning")
    return "none that names an interface that is not up, or takes a fast way from NCCL"


# ---------------------------------------------------------------------------------------------------------- Slurm


def _answers(here: Machine) -> str:
    missing = [name for name in ("sinfo", "squeue", "sbatch", "srun", "scancel") if here.which(name) is None]
    if missing and (here.slurm is not None or len(missing) < 5):
        raise Wrong(f"not on PATH: {', '.join(missing)}", "load its module", "fail" if here.slurm else "")
    if missing:
        return "it is not here"
    try:
        nodes = set(here.ask_slurm("sinfo", "-h", "-N", "-o", "%n").split())
    except Wrong as error:
        raise Wrong(f"sinfo does not answer: {error}", verdict="fail" if here.slurm else "") from None
    job = f"; this shell is in job {here.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in here.environ else ""
    return f"sinfo lists {plural(len(nodes), 'node')}{job}"


def _partition(here: Machine) -> str:
    """Hold what the partition's file says against what Slurm knows of its nodes, the smallest of each."""
    if (wanted := here.slurm) is None:
        return ""
    # name, cores, MB, gres, state, time limit, availability and partition of each node
    where = ["-p", wanted.slurm_partition] if wanted.slurm_partition else []
    told = here.ask_slurm("sinfo", "-h", "-N", "-o", "%n|%c|%m|%G|%T|%l|%a|%P", *where).splitlines()
    rows = [row for row in (line.split("|") for line in told) if len(row) == 8 and (where or row[7].endswith("*"))]
    name = wanted.slurm_partition or "the default partition"
    if not rows:
        raise Wrong(f"{name}: no such partition, or no nodes", "set slurm_partition to one that sinfo lists")
    good = "idle mixed allocated completing reserved planned powered_down powering_up".split()
    bad = [row for row in rows if row[6] != "up" or row[4].rstrip("*~#!%$@^-+").lower() not in good]
    cores, memory_mb = (min(int(re.sub(r"\D.*", "", row[column]) or 0) for row in rows) for column in (1, 2))
    gpus = min(gpus_in(row[3]) for row in rows)
    knows: dict[str, int | None] = {
        "cores_per_node": cores,
        "memory_per_core_mb": memory_mb // max(1, min(cores, wanted.cores_per_node)),
        "gpus_per_node": gpus,
        "time_limit_s": seconds_of(rows[0][5]),
        "nodes": len(rows),
    }
    says = {key: getattr(wanted, key) for key in knows}
    more = [key for key, most in knows.items() if most is not None and says[key] is not None and says[key] > most]
    less = [key for key in ("cores_per_node", "gpus_per_node") if says[key] < (knows[key] or 0)]
    less += [key for key in ("nodes",) if says[key] is None]
    text = f"{name} is {rows[0][6]}, {len(rows) - len(bad)} of {plural(len(rows), 'node')} usable"
    text += f", {bad[0][0]} is {bad[0][4]}" if bad else ""
    text += "".join(
        f"; {key} in the file of {wanted.name} is {says[key]}, Slurm knows {knows[key]}" for key in more + less
    )
    idle = gpus and wanted.gpus_per_node and wanted.gres is None
    text += f"; the file of {wanted.name} has no `gres` (gpu:{{gpus}}): jobs would not be given any GPU" if idle else ""
    if len(bad) == len(rows) or [key for key in more if key != "nodes"]:
        raise Wrong(text, f"set {more[0]} to at most {knows[more[0]]}: no job with more starts" if more else "")
    if bad or less or more or idle:
        raise Wrong(text, "correct the partition's file" if less or more or idle else "", "warning")
    return text


def gpus_in(gres: str) -> int:
    """Return how many GPUs a node has from what sinfo says, such as gpu:a100:4(S:0-1),shard:8."""
    parts = [part.split(":") for part in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")


def seconds_of(limit: str) -> int | None:
    """Return a time limit of Slurm, days-hours:minutes:seconds, in seconds; None where there is no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds if found else None


def _job(here: Machine) -> str:
    """Would Slurm take a job such as those of a study (it is not given one)."""
    if (wanted := here.slurm) is None:
        return ""
    workers, limit_s = wanted.slots_per_node, wanted.time_limit_s or 600.0
    placement = Placement(partition=wanted.name, workers=workers, workers_per_node=workers)
    cell = Cell(config=packaged().configuration(), runtime="serial", placement=placement)
    node = Allocation(partition=wanted.name, nodes=1, tasks=((cell,),), seconds=limit_s, time_limit_s=limit_s)
    options = directives(node, wanted, name="horovod-study-doctor")
    asked = [f"--{option}" + ("" if value is None else f"={value}") for option, value in options]
    try:
        here.ask_slurm("sbatch", "--test-only", *asked, given="#!/bin/sh\ntrue\n")
    except Wrong as error:
        remedy = f"sbatch --test-only {shlex.join(asked)} --wrap true shows it; change the file of {wanted.name}"
        if re.search("configuration|partition spec", f"{error}"):
            remedy = ""
        elif re.search("account|qos", f"{error}", re.IGNORECASE):
            remedy = "set account and qos in the file: sacctmgr show associations user=$USER format=account,qos"
        raise Wrong(f"a job of one full node would be refused: {error}", remedy) from None
    return "a job of one full node would be taken"


# -------------------------------------------------------------------------------------------- folder and machine


def text_of(path: Path) -> str:
    """Return what a file of the system holds, "" where it is not there."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _place(runs: Path) -> Path:
    return next(each for each in (runs.absolute(), *runs.absolute().parents) if each.is_dir())


def _space(here: Machine) -> str:
    """Has the file system of the runs room, and does it last."""
    place, a_run = _place(here.runs), 50 * 10**6  # records and two checkpoints of the shipped model, generously
    mounts = {fields[1]: fields[2] for fields in map(str.split, text_of(PROC / "self/mounts").splitlines())}
    above = [point for point in mounts if place.resolve().is_relative_to(point.replace("\\040", " "))]
    kind = mounts[max(above, key=len)] if above else "an unknown file system"
    free, there = shutil.disk_usage(place).free, os.statvfs(place)
    text = f"{place} is on {kind}, {amount(free)} free"
    if free < 4 * a_run:
        raise Wrong(text)
    shared = "nfs nfs4 lustre gpfs beegfs ceph cifs smb3 9p afs fuse.sshfs fuse.glusterfs".split()
    if kind in ("tmpfs", "ramfs", "overlay"):
        raise Wrong(f"{text}: it is gone with the machine or the container", verdict="warning")
    if here.slurm is not None and kind not in shared:
        raise Wrong(f"{text}: nodes see it only if this machine exports it", verdict="warning")
    if free < 40 * a_run or (there.f_files and there.f_favail < 10_000):
        raise Wrong(f"{text}, {there.f_favail} more files", verdict="warning")
    return text


def _writable(here: Machine) -> str:
    """Does the file system do what run directories and leases rely on."""
    doing = "writing"
    try:
        with unfinished(_place(here.runs) / "doctor", folder=True) as folder:
            one, two, three = (folder / name for name in ("one", "two", "three"))
            one.write_bytes(b"1" * 2**20)
            two.write_text("old")
            os.replace(one, two)
            if two.stat().st_size != 2**20:
                raise Wrong("after a file replaced another, its old content is seen")
            doing = "hard links"
            os.link(two, three)
            with suppress(FileExistsError):
                os.link(two, three)
                raise Wrong("hard links replace each other: two terminals could start the same cell")
    except OSError as error:
        full = "; make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise Wrong(f"{doing}: {error.strerror}{full}") from None
    return "it is; files replace others, two terminals never start the same cell"


def _cores(here: Machine) -> str:
    usable, quota = available_cores(), _quota()
    text = plural(usable, "core")
    if here.workers > usable or usable == 1:
        raise Wrong(f"{text} for {plural(here.workers, 'worker') if here.workers else 'all workers'}: they would share")
    if quota is not None and quota < usable - 0.01:
        raise Wrong(f"the control group allows the time of {quota:g} of {text}: workers are stopped in mid-step")
    return text


def _quota() -> float | None:
    """Return how many cores' worth of time the control group gives, None where it sets no limit."""
    found = []
    for line in text_of(PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        root, names = SYSTEM / "fs/cgroup", ["cpu.max"]
        if "cpu" in controllers.split(","):  # of version 1
            root, names = root / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        inner = root / group.strip("/")
        for folder in (inner, *(each for each in inner.parents if each.is_relative_to(root))):
            words = " ".join(text_of(folder / name) for name in names).split()
            if len(words) == 2 and all(word.isdigit() for word in words):
                found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def _memory(here: Machine) -> str:
    free, shared = available_bytes(), shutil.disk_usage(SHARED).free if SHARED.is_dir() else None
    told = [] if free is None else [f"{amount(free)} free; a worker takes about 500 MB"]
    told += [] if shared is None else [f"{amount(shared)} in /dev/shm, through which MPI and NCCL exchange"]
    # A container gets 64 MiB of shared memory; MPI takes 4 MiB a rank, NCCL more.
    if (free is not None and free < 500 * 10**6) or (shared is not None and shared <= 2**26):
        raise Wrong("; ".join(told))
    return "; ".join(told)


def _load(here: Machine) -> str:
    busy = other_load(sorted(os.sched_getaffinity(0)), seconds=0.3)
    if busy and not (here.slurm is not None and "SLURM_JOB_ID" not in here.environ):  # jobs run on other nodes
        raise Wrong(busy)
    return busy or "nobody computes"


def _infiniband(here: Machine) -> str:
    folder = SYSTEM / "class" / "infiniband"
    active = [path for path in sorted(folder.glob("*/ports/*/state")) if "ACTIVE" in text_of(path)]
    ports = ", ".join(f"{path.parts[-4]}:{path.parts[-2]}" for path in active)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if any(folder.glob("*")) and not ports:
        raise Wrong("there are devices, but no port is active: libraries take TCP without a word")
    if ports and locked != resource.RLIM_INFINITY:
        text = f"{ports}: at most {amount(locked)} may be locked per process: MPI and NCCL cannot use it, or fail"
        raise Wrong(text, "ulimit -l unlimited; LimitMEMLOCK of sshd and slurmd")
    return f"active: {ports}" if ports else "none: TCP between hosts"


# ------------------------------------------------------------------------------------------------------ the table


class Check(NamedTuple):
    """A row of the table."""

    area: str
    name: str
    look: Callable[[Machine], str]  # "": there is nothing to look at
    otherwise: str  # a warning may spoil runs, a fail makes them impossible or wrong
    remedy: str
    on: str = "here"  # host: on each; slow: here, and not in a quick examination


_FOLDER = "give a folder with --runs that all hosts mount, with room, on a file system that does this"
_BUILD = "run `make setup` again: it builds for the PyTorch and the MPI that are there"
CHECKS = (
    Check("machine", "load", _load, "warning", "wait until they have ended, or ask for exclusive nodes", "host"),
    Check("machine", "cores", _cores, "warning", "fewer slots, or ask for more (--cpus-per-task, --cpus)", "host"),
    Check("machine", "memory", _memory, "warning", "end programs; ask for more (--mem, docker --shm-size=1g)", "host"),
    Check("machine", "InfiniBand", _infiniband, "warning", "ibstat says why (cable, subnet manager)", "host"),
    Check("Python", "environment", _environment, "warning", "use that one, or remove it; unset PYTHONPATH"),
    Check("Python", "packages", _packages, "fail", "run `make setup`, or pip install '.[train]'", "host"),
    Check("PyTorch", "loads", _torch, "fail", "make setup (TORCH=cuda for GPUs), or have the driver updated", "slow"),
    Check("CUDA", "driver", _driver, "fail", "in a container or a job, ask for GPUs (--gpus all; --gres=gpu:1)"),
    Check("MPI", "mpirun", _mpirun, "warning", "make setup MPI=wheel; or load the site's MPI, make setup MPI=site"),
    Check("MPI", "two ranks", _two_ranks, "fail", "load the MPI that mpi4py was built with, or make setup", "slow"),
    Check("Horovod", "starts", _horovod, "fail", _BUILD, "slow"),
    Check("network", "interfaces", _interfaces, "fail", "bring the network up (ip link)"),
    Check("network", "own name", _own_name, "warning", "correct /etc/hosts, or give `interface: NAME`"),
    Check("network", "variables", _variables, "fail", "unset it, or name one of these"),
    Check("Slurm", "answers", _answers, "warning", "are slurmctld (scontrol ping) and munge up; is this a login node"),
    Check("Slurm", "partition", _partition, "fail", "sinfo -R says why; wait, or use another partition"),
    Check("Slurm", "sbatch --test-only", _job, "fail", "correct the partition's file: see the line above", "slow"),
    Check("runs folder", "space", _space, "fail", _FOLDER),
    Check("runs folder", "writable", _writable, "fail", _FOLDER),
)


def look(here: Machine, on: Sequence[str] = ("here", "host", "slow")) -> list[Finding]:
    """Return what the checks say, in the order of the table; what breaks is a finding, too."""
    chosen = [each for each in CHECKS if each.on in on and not (here.quick and each.on == "slow")]

    def made(check: Check) -> Finding:
        how = {"area": check.area, "name": check.name}
        try:
            return Finding(**how, verdict="ok", what=cut(" ".join(check.look(here).split()), 400))
        except Wrong as wrong:
            what, remedy = cut(" ".join(f"{wrong}".split()), 400), wrong.remedy or check.remedy
            return Finding(**how, verdict=wrong.verdict or check.otherwise, what=what, remedy=remedy)
        except Exception as error:  # whatever it is, the others go on
            what = f"could not be checked: {cut(' '.join(f'{type(error).__name__}: {error}'.split()), 240)}"
            return Finding(**how, verdict="warning", what=what, remedy="check it yourself")

    first = [made(check) for check in chosen[:1]]  # the load of the others, before these compute themselves
    with ThreadPoolExecutor(4) as pool:
        found = [*first, *pool.map(made, chosen[1:])]
    return [each for each in found if each.what]


def _reached(port: int, addresses: Sequence[str], to: int) -> dict[str, tuple[str, str]]:
    """Try each address of another host, which does the same at the time: which of ours leads there, or the problem."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))  # nothing is read from it
        listener.listen(64)
        found = dict.fromkeys(addresses, ("", "not tried"))
        for _ in range(_TRIES):  # also when all are reached: others may want to reach us
            for address in [each for each, (source, _) in found.items() if not source]:
                try:
                    with socket.create_connection((address, to), timeout=_CONNECT_S) as link:
                        found[address] = (str(link.getsockname()[0]), "")
                except OSError as error:
                    found[address] = ("", str(error.strerror or error))
            sleep(_APART_S)
    return found


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a host says: `{"reached": {...}}`, or the findings, and the facts that the asking one compares."""
    if "reached" in question:
        return _reached(**question["reached"])
    begun_s, (path, content) = datetime.now(UTC).timestamp(), question["seen"]
    found = look(Machine(environ=os.environ, workers=question["workers"]), on=("host",))
    return {
        "findings": [[each.name, each.verdict, each.what, each.remedy] for each in found],
        "host": platform.node(),
        "names": {name: _addresses(name) for name in question["names"]},
        "seen": text_of(Path(path)) == content,
        "port": free_port(),
        "cards": cards(),
        "clock": [begun_s, datetime.now(UTC).timestamp()],
    }


def main() -> None:
    """Answer one question, a line of JSON."""
    print(json.dumps(answer(json.loads(sys.stdin.readline()))), flush=True)
