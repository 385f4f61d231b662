"""The doctor's checks: a table of them, and for each area the function that looks.

A function gives `Said`: which check, whether it passes, and what was found, in words. The table says the rest: on what
it is made, how bad it is when it does not pass, and the remedy, where what was found suggests no better one. Of a host
are those that need its facts alone (`probe`). What may crash or hang is asked in a process of its own.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import horovod_study
from horovod_study.cluster.allocations import Allocation
from horovod_study.cluster.identity import installed
from horovod_study.cluster.launch import cell_environment
from horovod_study.cluster.partitions import Partition
from horovod_study.cluster.slurm import directives
from horovod_study.comm import builds
from horovod_study.config import Cell, Placement
from horovod_study.text.numbers import amount
from horovod_study.text.words import cut, plural
from horovod_study.variables import without_working_directory
from horovod_study.workloads import packaged


class Check(NamedTuple):
    """A row of the table; its names are those that are shown."""

    area: str
    name: str
    on: str  # here: this machine | host: each | hosts: each against this one | gpu, slurm: where there is one
    otherwise: str  # when it does not pass: a warning may spoil runs, a fail makes them impossible or wrong
    remedy: str


_MPI = "make setup MPI=wheel; or load the site's MPI first and make setup MPI=site"
_AGAIN = "run `make setup` again: it builds for the PyTorch and the MPI that are there"
_FOLDER = "give a folder with --runs that all hosts mount, on a file system that does this"
_SAME = "make setup there, in the same state as here, or use one folder for all hosts"
CHECKS = (
    Check("Python", "environment", "here", "warning", "use that one, or remove it"),
    Check("Python", "PYTHONPATH", "here", "warning", "unset PYTHONPATH, unless that is what you want"),
    Check("Python", "packages", "here", "fail", "run `make setup`, or pip install '.[train]'"),
    Check("PyTorch", "version", "here", "fail", "run `make setup` again"),
    Check("CUDA", "driver", "here", "fail", "in a container or a job, ask for GPUs (--gpus all; --gres=gpu:1)"),
    Check("CUDA", "others", "gpu", "warning", "look with nvidia-smi who it is; wait, or hide those GPUs"),
    Check("CUDA", "PyTorch and GPUs", "gpu", "fail", "make setup TORCH=cuda, or have the driver updated"),
    Check("MPI", "mpirun", "here", "warning", _MPI),
    Check("MPI", "mpi4py", "here", "fail", "load the module of the MPI it was built with, or make setup again"),
    Check("MPI", "two ranks", "here", "fail", _MPI),
    Check("Horovod", "version", "here", "warning", "make setup, or leave horovod out of sweep.runtime"),
    Check("Horovod", "loads", "here", "fail", _AGAIN),
    Check("Horovod", "and mpi4py", "here", "fail", _AGAIN),
    Check("Horovod", "starts", "here", "fail", "see MPI, and /dev/shm and the limits of this machine"),
    Check("network", "interfaces", "here", "fail", "bring the network up (ip link)"),
    Check("network", "interface", "here", "fail", "set `interface` in the partition's file to one of these"),
    Check("network", "several networks", "here", "warning", "say which with `interface: NAME` in the partition's file"),
    Check("network", "own name", "here", "warning", "correct /etc/hosts, or give `interface: NAME`"),
    Check("network", "variables", "here", "fail", "unset it, or name one of these"),
    Check("Slurm", "answers", "here", "warning", "are slurmctld (scontrol ping) and munge up; is this a login node"),
    Check("Slurm", "partition", "slurm", "fail", "sinfo -R says why; wait, or use another partition"),
    Check("Slurm", "nodes", "slurm", "warning", "correct the partition's file"),
    Check("Slurm", "sbatch --test-only", "slurm", "fail", "correct the partition's file: see the lines above"),
    Check("Slurm", "modules", "slurm", "fail", "correct `modules` in the file: module avail shows what there is"),
    Check("Slurm", "squeue", "slurm", "warning", "nothing to do: sacct or the run directories are asked"),
    Check("Slurm", "sacct", "slurm", "warning", "nothing to do: a job killed before its first cell shows as missing"),
    Check("runs folder", "kind", "here", "warning", _FOLDER),
    Check("runs folder", "space", "here", "fail", "make room, or give a folder on another disk with --runs"),
    Check("runs folder", "writable", "here", "fail", _FOLDER),
    Check("runs folder", "hard links", "here", "fail", _FOLDER),
    Check("machine", "cores", "host", "warning", "lower its slots to its cores, or ask for more (--cpus-per-task)"),
    Check("machine", "processor quota", "host", "warning", "raise the limit (docker run --cpus), or run fewer workers"),
    Check("machine", "memory", "host", "warning", "end other programs, or ask for more memory (--mem)"),
    Check("machine", "shared memory", "host", "warning", "docker run --shm-size=1g; chmod 1777 /dev/shm; clean it"),
    Check("machine", "load", "host", "warning", "wait until they have ended, or ask for exclusive nodes"),
    Check("machine", "InfiniBand", "host", "warning", "ibstat says why (cable, subnet manager)"),
    Check("machine", "locked memory", "host", "warning", "ulimit -l unlimited; LimitMEMLOCK of sshd and slurmd"),
    Check("machine", "earlier runs", "host", "warning", "kill them, or `run` the same study, which ends them"),
    Check("machine", "facts", "host", "warning", "check it yourself"),
    Check("ssh", "worry", "host", "warning", "that of this check, there"),
    Check("ssh", "hosts", "hosts", "fail", "name it once, with its slots added: NAME:2"),
    Check("ssh", "login", "hosts", "fail", "try it yourself: ssh -v HOST true"),
    Check("ssh", "shell", "hosts", "fail", "in ~/.bashrc there, print in interactive shells only: [ -t 1 ]"),
    Check("ssh", "Python", "hosts", "fail", "have the project in a folder that all hosts mount, or at the same path"),
    Check("ssh", "packages", "hosts", "fail", _SAME),
    Check("ssh", "horovod_study", "hosts", "fail", _SAME),
    Check("ssh", "runs", "hosts", "fail", "give a folder that all hosts mount with --runs"),
    Check("ssh", "clock", "hosts", "warning", "have one time server keep all clocks right (chronyd)"),
    Check("ssh", "host names", "hosts", "fail", "give each a name of its own (hostnamectl set-hostname)"),
    Check("ssh", "knows", "hosts", "fail", "correct /etc/hosts there, or use names that its DNS knows"),
    Check("ssh", "to", "hosts", "fail", "a firewall, or no network in common: open all ports between them"),
)

LOAD_S = 60.0  # for a program: from a busy file server PyTorch loads slowly


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the diagnosis; a warning or a fail says what to do about it."""

    area: str
    name: str
    verdict: str  # ok | warning | fail
    what: str
    remedy: str = ""  # "" of an ok


class Said(NamedTuple):
    """What a function says of one of its checks."""

    check: str
    passes: bool | str  # or the verdict
    what: str
    remedy: str = ""  # "": that of the table
    name: str = ""  # "": that of the check

    def finding(self, area: str) -> Finding:
        """Return it with what the table knows."""
        row = next(each for each in CHECKS if (each.area, each.name) == (area, self.check))
        verdict = self.passes if isinstance(self.passes, str) else "ok" if self.passes else row.otherwise
        remedy = "" if verdict == "ok" else self.remedy or row.remedy
        what = cut(" ".join(self.what.split()), 400)
        return Finding(area=area, name=self.name or self.check, verdict=verdict, what=what, remedy=remedy)


def findings(area: str, here: "Machine", rows: Iterable[Said]) -> list[Finding]:
    """Return what the checks of an area say, as they are made; what breaks is a finding, too."""
    found = []
    try:
        for said in rows:
            found.append(said.finding(area))
    except Exception as error:  # whatever it is, the other areas go on
        fact = str(error.args[0]) if isinstance(error, KeyError) else ""
        why = here.facts["problems"].get(fact, f"{type(error).__name__}: {error}")
        what = f"could not be checked: {cut(' '.join(why.split()), 240)}"
        found.append(Finding(area=area, name=area, verdict="warning", what=what, remedy="check it yourself"))
    return found


class Answer(NamedTuple):
    """What came of a program; `code` is None of one that did not start or did not end in time."""

    code: int | None
    output: str
    errors: str = ""

    @property
    def reason(self) -> str:
        """Why it did not work, in one line."""
        lines = [line.strip() for line in (self.errors or self.output).splitlines() if line.strip()]
        said = [line for line in lines if re.search("error|fatal", line, re.IGNORECASE)] or lines
        return re.sub(r"^[a-z][\w-]*: (?:error: |fatal: )?(?=\S)", "", said[-1]) if said else f"exit code {self.code}"


@dataclass(kw_only=True)
class Machine:
    """A machine by its facts and its programs, and what it is to be used for."""

    environ: Mapping[str, str]
    facts: Mapping[str, Any] = field(default_factory=dict)  # of `probe`
    runs: Path = Path("runs")
    partition: Partition | None = None
    interface: str | None = None  # to be used between the hosts
    several: bool = False  # hosts
    workers: int = 0  # to be taken by this machine, as far as that is known
    quick: bool = False
    limit_s: float = 20.0  # of each program
    known: dict[str, Any] = field(default_factory=dict)  # what areas found that later ones compare with

    @property
    def slurm(self) -> Partition | None:
        """The partition, where it is one of Slurm."""
        return self.partition if self.partition is not None and self.partition.scheduler == "slurm" else None

    def which(self, name: str, *, beside: bool = False) -> str | None:
        """Return a program on PATH; `beside`: where launch lines here, beside Python first."""
        return shutil.which(name, path=self._path if beside else self.environ.get("PATH", os.defpath))

    @property
    def _path(self) -> str:
        return os.pathsep.join((str(Path(sys.executable).parent), self.environ.get("PATH", "")))

    @property
    def of_a_cell(self) -> dict[str, str]:
        """The environment of a cell, without the ranks of an enclosing job."""
        return {**cell_environment(self.environ, path=self._path, out=Path(os.devnull)), "OMP_NUM_THREADS": "1"}

    def call(self, *argv: str, given: str = "", environ: Mapping[str, str] | None = None) -> Answer:
        """Run a program in this environment, or in `environ`; after its time it and what it started are killed."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        pipes |= {"text": True, "errors": "replace", "start_new_session": True}
        own = self.environ if environ is None else environ
        try:
            process = subprocess.Popen(argv, **pipes, env=without_working_directory(own))
        except OSError as error:
            return Answer(None, f"{argv[0]} cannot be started ({error.strerror})")
        try:
            output, errors = process.communicate(given, timeout=self.limit_s)
            return Answer(process.returncode, output, errors)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            output = ""
            with suppress(subprocess.TimeoutExpired):  # a descendant in a session of its own may hold the pipes
                output, _ = process.communicate(timeout=1.0)
            return Answer(None, output, f"{Path(argv[0]).name} did not answer within {self.limit_s:g} s")

    def ask_slurm(self, *argv: str, given: str = "") -> Answer:
        """Run a program of Slurm; what the caller's job or settings say must not change its answers."""
        settings = ("SBATCH_", "SALLOC_", "SRUN_", "SINFO_", "SQUEUE_", "SACCT_", "SLURM_")
        kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
        environ = {name: each for name, each in self.environ.items() if name in kept or not name.startswith(settings)}
        return self.call(*argv, given=given, environ=environ)

    def told(self, *argv: str, **how: Any) -> tuple[list[dict[str, Any]], str]:
        """Run a program; return the JSON objects among the lines that it prints, and what went wrong."""
        answer, found = self.call(*argv, **how), []
        for line in answer.output.replace("}{", "}\n{").splitlines():  # mpirun may join those of its ranks
            with suppress(ValueError, TypeError):  # of other lines
                found.append({**json.loads(line)})
        return found, "" if answer.code == 0 else answer.reason


def _python(here: Machine) -> Iterator[Said]:
    own, used = Path(horovod_study.__file__).resolve().parent.parent / ".venv", Path(sys.prefix)
    other = (own / "bin" / "python").exists() and own.resolve() != used.resolve()
    python = f"Python {here.facts['packages']['Python']} of {used}"
    yield Said("environment", not other, python + (f", but this checkout has one of its own, {own}" if other else ""))
    for folder in filter(None, here.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if hidden := [name for name in ("torch", "horovod", "mpi4py", "numpy") if Path(folder, name).is_dir()]:
            yield Said("PYTHONPATH", False, f"{folder} puts its {', '.join(hidden)} before those of the environment")
    missing = [name for name in ("numpy", "PyYAML", "rich", "pyarrow", "torch", "psutil") if installed(name) is None]
    there = f"without {', '.join(missing)}" if missing else "with what it needs"
    yield Said("packages", not missing, f"horovod_study {horovod_study.__version__}, {there}")


_ABOUT_TORCH = """
import json, torch
found = {
    "version": torch.__version__, "cuda": torch.version.cuda, "devices": 0, "problem": "",
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
}
if torch.version.cuda:
    try:
        found["version"] += " with NCCL " + ".".join(map(str, torch.cuda.nccl.version()))
        found["devices"] = torch.cuda.device_count()
        for number in range(found["devices"]):
            ones = torch.ones(64, 64, device="cuda:%d" % number)
            assert float((ones @ ones).sum()) == 64.0 ** 3, "device %d computes wrongly" % number
    except Exception as error:
        found["problem"] = str(error)
print(json.dumps(found))
"""


def _torch(here: Machine) -> Iterator[Said]:
    if here.quick:
        return
    answers, problem = here.told(sys.executable, "-c", _ABOUT_TORCH, environ=here.of_a_cell)
    if not answers:
        yield Said("version", False, f"PyTorch {installed('torch') or ''} does not load: {problem}")
        return
    found = here.known["torch"] = answers[-1]
    text = f"PyTorch {found['version']}, for {'CUDA ' + found['cuda'] if found['cuda'] else 'CPUs'}"
    lacks = "" if found["gloo"] else ", has no Gloo: leave ddp/gloo out of studies"
    yield Said("version", "warning" if lacks else "ok", text + lacks)


def _cuda(here: Machine) -> Iterator[Said]:
    gpus, asked = here.facts["gpus"], here.partition.gpus_per_node if here.partition is not None else 0
    rows, newest, there = gpus["rows"], gpus["cuda"], plural(len(gpus["rows"]), "GPU")
    said = f"{there} ({rows[0][1]}), driver {rows[0][2]} for CUDA {newest}" if rows else "none here: runs use the CPUs"
    yield Said("driver", not gpus["problem"], f"NVIDIA driver: {gpus['problem'] or said}")
    if busy := ", ".join(row[0] for row in rows if row[3].isdigit() and int(row[3]) > 10):
        yield Said("others", False, f"at work already: GPU {busy}; runs would share with whoever uses them")
    torch = here.known.get("torch")
    if torch is None or not (rows or asked):
        return
    if torch["cuda"] is None:
        text = "PyTorch is built for CPUs: GPUs would be idle"
        yield Said("PyTorch and GPUs", "warning", text, 'make setup TORCH=cuda BUILDS="nccl mpi"')
    elif rows and newest and int(torch["cuda"].split(".")[0]) > int(newest.split(".")[0]):
        yield Said("PyTorch and GPUs", False, f"PyTorch is built for CUDA {torch['cuda']}, the driver is for {newest}")
    elif rows:
        hidden = f"CUDA_VISIBLE_DEVICES is {here.environ.get('CUDA_VISIBLE_DEVICES', 'not set')!r}"
        why = torch["problem"] or (hidden if torch["devices"] < len(rows) else "")
        worst = "fail" if torch["problem"] or not torch["devices"] else "warning"
        text = f"PyTorch computes on {torch['devices']} of {there}"
        yield Said("PyTorch and GPUs", worst if why else "ok", f"{text}: {why}" if why else text)


_ABOUT_MPI4PY = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
from horovod_study.comm.libmpi import loaded_library
about = {"version": mpi4py.__version__, "says": MPI.Get_library_version(), "library": loaded_library()}
print(json.dumps(about), flush=True)
MPI.Init()
print(json.dumps({"size": MPI.COMM_WORLD.allreduce(1)}), flush=True)
"""


def _mpi(here: Machine) -> Iterator[Said]:
    """Is the mpirun that will be used that of the library that mpi4py loads."""
    used = here.which("mpirun", beside=True)
    kind = mpi_of(here.call(used, "--version").output) if used else ""
    if used is None:
        yield Said("mpirun", False, "neither beside Python nor on PATH: horovod/mpi and mpi runs cannot start")
    elif re.search(r"(Open MPI\)|prterun\D*) ([5-9]|\d\d)\.", kind):
        text = f"{used} is {kind}: it refuses the options by which horovodrun 0.28.1 starts it (-bind-to, single dash)"
        yield Said("mpirun", "fail" if installed("horovod") else "warning", text)
    else:
        yield Said("mpirun", bool(kind), f"{used} is {kind or 'none that says its version'}")
    if here.quick:
        return
    root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    placed = [*root, "--host", "localhost:2", "--bind-to", "none"] if re.search("Open MPI|prterun", kind) else []
    line = [used, *placed, "-np", "2"] if used else []
    answers, problem = here.told(*line, sys.executable, "-c", _ABOUT_MPI4PY, environ=here.of_a_cell)
    if not answers:
        yield Said("mpi4py", "fail" if installed("mpi4py") else "warning", f"backend mpi cannot start: {problem}")
        return
    found, sizes = answers[0], {each["size"] for each in answers if "size" in each}
    here.known["library"] = found["library"]
    loads = f"{mpi_of(found['says'])} ({found['library'] or 'library unknown'})"
    yield Said("mpi4py", True, f"{found['version']} loads {loads}")
    if used is not None:
        alone = f"each takes itself for the only one: mpi4py loads {loads}, but {used} is {kind}"
        what = "they found each other" if sizes == {2} else alone if 1 in sizes else f"that failed: {problem}"
        yield Said("two ranks", sizes == {2}, f"mpirun started two, and {what}")


def mpi_of(said: str) -> str:
    """Return what an MPI says of itself up to its version, such as `mpirun (Open MPI) 4.1.8`; "" where it has none."""
    found = re.match(r".*?\d+\.\d+[^\s,]*", " ".join(said.split()))
    return found[0][-80:] if found else ""


_ABOUT_HOROVOD = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from horovod_study.comm.horovod import find_open_mpi
find_open_mpi()
import horovod
import horovod.torch as hvd
from horovod_study.comm.builds import gpu_allreduce
from horovod_study.comm.libmpi import loaded_library
print(json.dumps({
    "version": horovod.__version__, "MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": bool(hvd.nccl_built()),
    "library": loaded_library(), "by": gpu_allreduce(Path(list(horovod.__path__)[0])),
}), flush=True)
hvd.init()
print(json.dumps({"size": hvd.size()}))
hvd.shutdown()
"""


def _horovod(here: Machine) -> Iterator[Said]:
    """The installed one and the builds beside it: do they load, with which transports, and start."""
    version, folder = installed("horovod"), Path(sys.executable).parent.parent / "lib" / "horovod-builds"
    places = {"installed": ""} if version else {}
    places |= {f"build {name}": str(folder / name) for name in builds.available(folder)}
    if not places:
        yield Said("version", False, "Horovod is not installed: only runs of serial, ddp, mpi and ps can start")
    elif here.quick:
        yield Said("version", True, f"Horovod {version or ''}: {', '.join(places)} (not loaded in a quick examination)")
    else:
        for name, place in places.items():
            yield from _build(here, name, place)


def _build(here: Machine, name: str, place: str) -> Iterator[Said]:
    line = [sys.executable, "-c", _ABOUT_HOROVOD, *filter(None, [place])]
    found, problem = here.told(*line, environ=here.of_a_cell)
    if not found:
        compiled = " (it was compiled for another PyTorch)" if "undefined symbol" in problem else ""
        yield Said("loads", False, f"it does not load: {problem}{compiled}", name=name)
        return
    about, ended = found[0], found[-1]
    inside = [word for word in ("MPI", "Gloo", "NCCL") if about[word]]
    hands = {"NCCL": "go over NCCL", "MPI": "are handed to MPI (CUDA-aware?)", "host": "go through the host"}
    tensors = f"; GPU tensors {hands[about['by']]}" if about["by"] in hands else ""
    text = f"Horovod {about['version']} with {', '.join(inside) or 'no transport at all'}{tensors}"
    if (name == "build nccl" and not about["NCCL"]) or (name == "build mpi" and about["by"] not in (None, "MPI")):
        yield Said("loads", False, f"{text}: not what its name says", 'make setup BUILDS="nccl mpi"', name)
    else:
        yield Said("loads", "ok" if {"MPI", "Gloo"} <= set(inside) else "warning", text, name=name)
    mine, other = about["library"], here.known.get("library")
    if mine and other and os.path.realpath(mine) != os.path.realpath(other):
        text = f"Horovod loads {mine}, mpi4py loads {other}: one mpirun cannot serve both"
        yield Said("and mpi4py", False, text, name=f"{name} and mpi4py")
    good = ended.get("size") == 1 and not problem
    text = "works" if good else problem or f"sees {ended.get('size')} workers: variables of an enclosing job are set"
    yield Said("starts", good, f"hvd.init() of one worker {text}", name=f"{name} starts")


def _network(here: Machine) -> Iterator[Said]:
    """Which interfaces would be used between hosts; what the own name stands for, where Gloo listens; variables."""
    found = here.facts["interfaces"]
    cards = {name: f"{name} {each['address']} ({each['speed_mbits'] or '?'} Mbit/s)" for name, each in found.items()}
    yield Said("interfaces", bool(found) or not here.several, "; ".join(cards.values()) or "only the loopback is up")
    inner = [name for name in found if name.startswith(("docker", "virbr", "br-", "cni", "lxc", "podman", "flannel"))]
    if here.interface is not None and here.interface not in found:
        yield Said("interface", False, f"{here.interface} is to be used, which is not up; here are {', '.join(found)}")
    elif here.interface is None and here.several and len(found) > 1:
        trap = f"; {', '.join(inner)} lead to containers of this machine, where libraries may hang" if inner else ""
        text = f"{', '.join(found)}: each library chooses by itself, and not always the fast one{trap}"
        yield Said("several networks", False, text)
    name = here.facts["host"]
    addresses = here.facts["addresses"][name]
    text = f"{name} is {', '.join(addresses) or 'unknown: PyTorch and Gloo look it up'}"
    lost = here.several and here.interface is None and all(each.startswith("127.") for each in addresses)
    text += ": Gloo would listen to this machine only" if lost else ""
    yield Said("own name", bool(addresses) and not lost, text)
    for variable in ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"):
        text = here.environ.get(variable, "")
        whole = variable != "NCCL_SOCKET_IFNAME" or text.startswith("=")  # else beginnings of names
        for name in text.lstrip("=").split(",") if not re.search(r"\^|/|^$", text) else ():  # all but these; a network
            if not any(each == name or (each.startswith(name) and not whole) for each in (*found, "lo")):
                yield Said("variables", False, f"{variable} names {name}, which is not up; here are {', '.join(found)}")
    for variable in ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        if here.environ.get(variable, "0") not in ("", "0"):
            text = f"{variable} is {here.environ[variable]}: NCCL takes a slower way between GPUs"
            yield Said("variables", "warning", text, "unset it, or set it in the partition's file with `because`")


def _slurm(here: Machine) -> Iterator[Said]:
    """Does it answer, and is the partition what its file says."""
    wanted = here.slurm
    missing = [name for name in ("sinfo", "squeue", "sbatch", "srun", "scancel") if here.which(name) is None]
    worst = "warning" if wanted is None else "fail"
    if missing:
        unneeded = wanted is None and len(missing) == 5
        yield Said("answers", "ok" if unneeded else worst, f"not on PATH: {', '.join(missing)}", "load its module")
        return
    where = ["-p", wanted.slurm_partition] if wanted is not None and wanted.slurm_partition else []
    # name, cores, MB, gres, state, time limit, availability and partition of each node
    answer = here.ask_slurm("sinfo", "-h", "-N", "-o", "%n|%c|%m|%G|%T|%l|%a|%P", *where)
    if answer.code != 0:
        yield Said("answers", worst, f"sinfo does not answer: {answer.reason}")
        return
    rows = [line.split("|") for line in answer.output.splitlines() if line.count("|") == 7]
    job = f"; this shell is in job {here.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in here.environ else ""
    yield Said("answers", True, f"sinfo lists {plural(len({row[0] for row in rows}), 'node')}{job}")
    if wanted is not None:
        rows = rows if where else [row for row in rows if row[7].endswith("*")]
        yield from _nodes(wanted, rows)
        if not here.quick:
            yield from _submission(here, wanted)
    for line in ("squeue -h --me -o %T", "sacct -X -n -P -o JobID,State"):
        answer = here.ask_slurm(*line.split())
        text = "answers" if answer.code == 0 else f"does not work: {answer.reason}"
        yield Said(line.split()[0], answer.code == 0, text)


def _nodes(wanted: Partition, rows: list[list[str]]) -> Iterator[Said]:
    """Hold what the partition's file says against what Slurm knows of its nodes, the smallest of each."""
    name = wanted.slurm_partition or "the default partition"
    if not rows:
        yield Said(
            "partition", False, f"{name}: no such partition, or no nodes", "set slurm_partition to one that sinfo lists"
        )
        return
    good = "idle mixed allocated completing reserved planned powered_down powering_up".split()
    bad = [row for row in rows if row[6] != "up" or row[4].rstrip("*~#!%$@^-+").lower() not in good]
    text = f"{name} is {rows[0][6]}, {len(rows) - len(bad)} of {plural(len(rows), 'node')} usable"
    worst = "fail" if len(bad) == len(rows) else "warning" if bad else "ok"
    yield Said("partition", worst, f"{text}; {bad[0][0]} is {bad[0][4]}" if bad else text)
    cores, memory_mb = (min(int(re.sub(r"\D.*", "", row[column]) or 0) for row in rows) for column in (1, 2))
    gpus = min(gpus_in(row[3]) for row in rows)
    knows: tuple[tuple[str, str, int | None, str], ...] = (  # name, key, what Slurm knows, verdict of more
        ("cores per node", "cores_per_node", cores, "fail"),
        ("memory per node", "memory_per_core_mb", memory_mb // min(cores, wanted.cores_per_node), "fail"),
        ("GPUs per node", "gpus_per_node", gpus, "fail"),
        ("time limit", "time_limit_s", seconds_of(rows[0][5]), "fail"),
        ("nodes", "nodes", len(rows), "warning"),
    )
    for name, key, most, verdict in knows:
        says = getattr(wanted, key)
        text = f"{key} in the file of {wanted.name} is {says}, Slurm knows {most}"
        if says is None and key == "nodes":
            yield Said("nodes", False, f"{text}: a study that needs more would wait forever", f"set nodes to {most}")
        elif says is not None and most is not None and says > most:
            yield Said("nodes", verdict, text, f"set {key} to at most {most}: no job with more starts", name)
        elif says != most and key in ("cores_per_node", "gpus_per_node"):
            yield Said("nodes", False, text, f"set {key} to {most}, unless the rest is to be left alone", name)
    if gpus and wanted.gpus_per_node and wanted.gres is None:
        text = f"the file of {wanted.name} has no `gres`: jobs would not be given any GPU"
        yield Said("nodes", False, text, "set gres: gpu:{gpus} in the file", "GPUs per node")


def _submission(here: Machine, wanted: Partition) -> Iterator[Said]:
    """Would Slurm take a job such as those of a study (it is not given one), and can its modules be loaded."""
    workers, limit_s = wanted.slots_per_node, wanted.time_limit_s or 600.0
    placement = Placement(partition=wanted.name, workers=workers, workers_per_node=workers)
    cell = Cell(config=packaged().configuration(), runtime="serial", placement=placement)
    node = Allocation(partition=wanted.name, nodes=1, tasks=((cell,),), seconds=limit_s, time_limit_s=limit_s)
    options = directives(node, wanted, name="horovod-study-doctor")
    asked = [f"--{option}" + ("" if value is None else f"={value}") for option, value in options]
    answer = here.ask_slurm("sbatch", "--test-only", *asked, given="#!/bin/sh\ntrue\n")
    text = "a job of one full node would be " + ("taken" if answer.code == 0 else f"refused: {answer.reason}")
    remedy = f"sbatch --test-only {shlex.join(asked)} --wrap true shows it; change the file of {wanted.name}"
    if re.search("configuration|partition spec", answer.reason):
        remedy = ""
    elif re.search("account|qos", answer.reason, re.IGNORECASE):
        remedy = "set account and qos in the file: sacctmgr show associations user=$USER format=account,qos"
    yield Said("sbatch --test-only", answer.code == 0, text, remedy)
    if wanted.modules:
        # Whatever module does, it says what is wrong on standard error, and not always by its exit code.
        answer = here.ask_slurm("bash", "-l", "-c", 'module load "$@"', "doctor", *wanted.modules)
        good = answer.code == 0 and not re.search("error|not found", answer.errors, re.IGNORECASE)
        yield Said("modules", good, f"module load {' '.join(wanted.modules)}{'' if good else ': ' + answer.reason}")


def gpus_in(gres: str) -> int:
    """Return how many GPUs a node has from what sinfo says, such as gpu:a100:4(S:0-1),shard:8."""
    parts = [part.split(":") for part in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")


def seconds_of(limit: str) -> int | None:
    """Return a time limit of Slurm, days-hours:minutes:seconds, in seconds; None where there is no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds if found else None


def _folder(here: Machine) -> Iterator[Said]:
    """Does the file system of the runs last, has it room, and does it what run directories and leases rely on."""
    found, a_run = here.facts["folder"], 50 * 10**6  # records and two checkpoints of the shipped model, generously
    place, kind, free = found["place"], found["kind"], found["free"]
    shared = "nfs nfs4 lustre gpfs beegfs ceph cifs smb3 9p afs fuse.sshfs fuse.glusterfs".split()
    hidden = ": nodes see it only if this machine exports it" if here.slurm is not None and kind not in shared else ""
    lost = ": it is gone with the machine or the container" if kind in ("tmpfs", "ramfs", "overlay") else ""
    yield Said("kind", not (lost or hidden), f"{place} is on {kind or 'an unknown file system'}{lost or hidden}")
    few = found["files"] is not None and found["files"] < 10_000
    text = f"{amount(free)} free, and a run takes up to about {amount(a_run)}"
    worst = "fail" if free < 4 * a_run else "warning" if few or free < 40 * a_run else "ok"
    yield Said("space", worst, text + (f"; only {found['files']} more files" if few else ""))
    goods = {"writable": "it is, and files replace others", "hard links": "two terminals never start the same cell"}
    for name, good in goods.items():
        wrong = found["problems"].get(name, "")
        yield Said(name, not wrong, wrong or good)


def machine(here: Machine) -> Iterator[Said]:
    """What may disturb a run or a measurement on a machine."""
    facts = here.facts
    if usable := facts.get("cores"):
        crowd = plural(here.workers, "worker") if here.workers > usable else "all workers" if usable == 1 else ""
        text = plural(usable, "core") + (f" for {crowd}: they would share them" if crowd else "")
        yield Said("cores", not crowd, text)
        if (quota := facts.get("quota")) is not None and quota < usable - 0.01:
            text = f"the control group allows the time of {quota:g} of {usable} cores: workers are stopped in mid-step"
            yield Said("processor quota", False, text)
    if (free := facts.get("memory")) is not None:
        yield Said("memory", free >= 500 * 10**6, f"{amount(free)} free for this process; a worker takes about 500 MB")
    if (free := facts.get("shared memory")) is not None:
        text = f"{amount(free)} free in /dev/shm, through which MPI and NCCL exchange"
        yield Said("shared memory", free > 2**26, text)  # a container gets 64 MiB; MPI takes 4 MiB a rank, NCCL more
    if "load" in facts:
        load = facts["load"]
        elsewhere = here.slurm is not None and "SLURM_JOB_ID" not in here.environ
        yield Said("load", elsewhere or not load, "jobs run on other nodes" if elsewhere else load or "nobody computes")
    if fast := facts.get("InfiniBand"):
        idle, ports, locked = fast["devices"] > len(fast["ports"]) == 0, fast["ports"], fast["locked"]
        text = "there are devices, but no port is active: libraries take TCP without a word"
        yield Said("InfiniBand", not idle, text if idle else f"active: {ports}" if ports else "none: TCP between hosts")
        if ports and locked is not None:
            text = f"at most {amount(locked)} per process: MPI and NCCL cannot use InfiniBand ({ports}), or fail"
            yield Said("locked memory", False, text)
    if "left over" in facts:
        left = facts["left over"]
        which = ", ".join(sorted({folder for _, folder in left})[:3])
        text = f"processes of {which} still run, though their launcher is gone" if left else "left no processes behind"
        kill = f"kill {' '.join(str(pid) for pid, _ in left)} (or `run` the same study, which ends them)"
        yield Said("earlier runs", not left, text, kill)
    if facts["problems"]:
        yield Said("facts", False, "could not be told: " + "; ".join(map(": ".join, facts["problems"].items())))


AREAS: Mapping[str, Callable[[Machine], Iterator[Said]]] = {
    "Python": _python,
    "PyTorch": _torch,
    "CUDA": _cuda,
    "MPI": _mpi,
    "Horovod": _horovod,
    "network": _network,
    "Slurm": _slurm,
    "runs folder": _folder,
    "machine": machine,
}
