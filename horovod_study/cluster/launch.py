"""Where the ranks of a cell are started, and by what: nothing but this machine, hosts over ssh, or an allocation.

The hosts of a `Site` are in the order of the ranks, and their slots are the ranks on them. The nodes of a Slurm job are
read off the environment, because `scontrol` is not on every node's PATH.

Which launcher starts a runtime on this machine, over ssh and in a job says `runtimes.CARRIED`; a partition's `launcher`
comes before these where it can. Ranks that no launcher tells of each other meet at MASTER_ADDR. Each command is
followed by `--config CELL.yaml --out DIR`, or `--resume DIR` for a cell that goes on from its checkpoint.
"""

import hashlib
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import SystemRandom
from typing import Any

from horovod_study.cluster.remote import (
    ALIVE_OPTIONS,
    SLURM_STARTS,
    SLURM_TELLS,
    SSH_OPTIONS,
    SUBMIT_OPTIONS,
    this_host,
)
from horovod_study.cluster.remote import MARKER as MARKER
from horovod_study.config.doors import accept
from horovod_study.config.limits import mpi_hindrance
from horovod_study.config.partitions import Host, Partition
from horovod_study.config.run import Cell, Placement
from horovod_study.config.variables import (
    OF_HOROVOD,
    SHELL,
    is_set,
    keeping_the_shell,
    refuse_other_than_numbers,
    without_working_directory,
)
from horovod_study.errors import ConfigError, StudyError, nearest, refuse
from horovod_study.runtimes import CARRIED
from horovod_study.text.words import plural

PORTS = (20_000, 32_767)  # Where ranks meet: above what services use, below what systems give to outgoing connections
_MAX_HOSTS = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What a launch line needs to know beside the cell."""

    hosts: tuple[Host, ...] = ()  # in the order of the ranks, slots = ranks on it; empty: this machine, not over ssh
    launcher: str = "auto"  # auto | horovodrun | mpirun | srun | torchrun; used where it can start the runtime
    interface: str | None = None  # network interface between the hosts
    allocation: bool = False  # inside a Slurm job, whose nodes are `hosts`: remote processes are started by srun
    srun_mpi: str | None = None  # `srun --mpi=...` for MPI programs
    cores_per_worker: int | None = None  # given to each rank by srun; None: not said
    environment: Mapping[str, str] = field(default_factory=dict)  # of the partition, for every rank
    port: int | None = None  # where rank 0 is met by the others, for launchers that do not arrange that; None: chosen
    here: bool = False  # the only host is this machine: nothing has to be started elsewhere

    def __post_init__(self) -> None:
        card = r"[A-Za-z0-9][\w.:@-]*"
        if self.interface is not None and not re.fullmatch(f"{card}(,{card})*", self.interface):
            raise ConfigError(f"interface {self.interface!r}: not a network interface, such as eth0 or ib0")

    @property
    def alone(self) -> bool:
        """Whether nothing is started on another machine than this one."""
        return not self.hosts or self.here


HERE = Site()  # This machine, and nothing said of it


def common_site(partition: Partition) -> Site:
    """Return what holds wherever workers of a partition go."""
    names = ("launcher", "interface", "environment", "srun_mpi", "cores_per_worker")
    return Site(**{name: getattr(partition, name) for name in names})


def site_of(
    partition: Partition, placement: Placement, *, environ: Mapping[str, str] = os.environ, oversubscribe: bool = False
) -> Site:
    """Return where the workers of `placement` go.

    On Slurm that is the job whose `environ` this is; else the partition's hosts, or this machine where there are
    none. The first hosts needed are taken, those of a placement `list` by their names.
    Raises StudyError where there are too few hosts, one is unknown, or one would get more workers than it has slots
    (unless `oversubscribe`).
    """
    common, allocation = common_site(partition), partition.scheduler == "slurm"
    offered = hosts_of_allocation(environ) if allocation else partition.hosts
    where, remedy = f"partition {partition.name}", "add them to its hosts, or name them with --hosts"
    if allocation:
        where, remedy = f"job {environ.get('SLURM_JOB_ID', '?')}", "ask for more nodes"
    many = f"{placement.workers} workers at {placement.workers_per_node} per node need {placement.nodes} nodes, but "
    by_name = {host.name: host for host in offered}
    unknown = [name for name in placement.hosts if name not in by_name]
    there = f"{where}{nearest((*unknown, '')[0], by_name)}; it has {', '.join(by_name)}"
    few = f"{many}{where} has {len(offered)} ({', '.join(by_name)}); {remedy}"
    lone = f"{many}{where} is this machine alone; name hosts with --hosts, or raise workers_per_node"
    refuse(
        "",
        (not offered and placement.nodes > 1, lone),
        (offered and unknown, f"placement: host {(*unknown, '')[0]!r} is not in {there}"),
        (offered and not placement.hosts and len(offered) < placement.nodes, few),
        error=StudyError,
    )
    if not offered:
        return common
    taken = [by_name[name] for name in placement.hosts or by_name][: placement.nodes]
    used = tuple(Host(name=host.name, slots=count) for host, count in zip(taken, placement.per_node, strict=True))
    for host, asked in zip(taken, used, strict=True) if not (allocation or oversubscribe) else ():  # Slurm decides that
        if asked.slots > host.slots:
            raise StudyError(
                f"{asked.slots} workers are to go to {host.name}, which has {plural(host.slots, 'slot')}; lower "
                "workers_per_node, or use --oversubscribe"
            )
    own = environ.get("SLURMD_NODENAME") if allocation else None  # how a node is called in its job
    first = own == used[0].name if own else this_host(used[0].name)
    return replace(
        common,
        hosts=used,
        allocation=allocation,
        port=free_port() if first else SystemRandom().randint(*PORTS),
        here=first and len(used) == 1,
    )


def free_port() -> int:
    """Return a port of this machine on which nobody listens now."""
    for port in SystemRandom().sample(range(PORTS[0], PORTS[1] + 1), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise StudyError(f"no free port from {PORTS[0]} to {PORTS[1]} on this machine; end what occupies them")


def hosts_of_allocation(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the nodes of the Slurm job that `environ` is of, with the tasks that Slurm counts on each as slots.

    Raises StudyError outside of a job, or when what Slurm says cannot be understood.
    """
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    names, counted = expand_nodelist(nodelist) if nodelist else [], environ.get("SLURM_TASKS_PER_NODE")
    slots = expand_counts(counted) if counted and nodelist else [1] * len(names)
    outside = "this is not inside a Slurm job (SLURM_JOB_NODELIST is not set); submit with `run`, or start it inside "
    told = f"SLURM_JOB_NODELIST names {len(names)} nodes ({nodelist}), and SLURM_TASKS_PER_NODE tells of {len(slots)} "
    refuse(
        "",
        (not nodelist, f"{outside}an allocation made by salloc"),
        (len(slots) != len(names), f"{told}({counted}); both must be those of the job"),
        error=StudyError,
    )
    hosts = [{"name": name, "slots": count} for name, count in zip(names, slots, strict=True)]
    return tuple(accept(list[Host], hosts, "SLURM_JOB_NODELIST"))


_RANGE = r"([0-9]{1,18})(?:-([0-9]{1,18}))?"
_ONE = _RANGE.replace("([", "(?:[")
_PART = rf"(?:[^\[\],\s]|\[{_ONE}(?:,{_ONE})*\])+"


def expand_nodelist(text: str) -> list[str]:
    """Return the names in a list of nodes as Slurm writes it, such as `n[1-3,07-09],gpu5`, in its order."""
    ranges = " ".join(re.findall(r"\[([^\[\]]*)\]", text))
    ends = [(int(first), int(last or first)) for first, last in re.findall(_RANGE, ranges)]
    if not re.fullmatch(f"{_PART}(?:,{_PART})*", text) or not all(0 <= b - a < _MAX_HOSTS for a, b in ends):
        raise StudyError(f"{text!r} is not a list of nodes as Slurm writes it, such as n[1-3,07-09],gpu5")
    names: list[str] = []
    for part in re.findall(_PART, text):  # between the commas outside of brackets
        found = [""]
        for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
            spans = re.findall(_RANGE, ranges)  # numbers have the leading zeros of the first of their range
            numbers = [f"{n:0{len(a)}}" for a, b in spans for n in range(int(a), int(b or a) + 1)]
            found = [name + ending for name in found for ending in ([literal] if literal else numbers)]
        names += found
    return names


def expand_counts(text: str) -> list[int]:
    """Return the numbers in a list such as `2(x3),1`: 2, 2, 2, 1."""
    parts = [re.fullmatch(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?", each) for each in text.split(",")]
    if any(part is None or int(part[2] or 1) > _MAX_HOSTS for part in parts):
        raise StudyError(f"{text!r} is not a list of counts as Slurm writes it, such as 2(x3),1")
    return [int(part[1]) for part in parts if part is not None for _ in range(int(part[2] or 1))]


_HOROVODRUN = {"mpi": ("--mpi",), "gloo": ("--gloo",), "nccl": ()}  # NCCL starts over whichever controller was built

# What an enclosing mpirun, horovodrun, torchrun or srun tells its workers about themselves. A cell that inherited it
# would take itself for a worker of that job. Settings a user chooses (OMPI_MCA_btl, HOROVOD_CYCLE_TIME, ...) stay.
_SCRUBBED_PREFIXES = tuple("OMPI_ PMIX_ PMI_ PRTE_ TORCHELASTIC_ HOROVOD_GLOO_RENDEZVOUS_".split()) + SUBMIT_OPTIONS
_SCRUBBED_NAMES = frozenset(
    """
    HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE
    HOROVOD_HOSTNAME HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_ELASTIC
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME
    MASTER_ADDR MASTER_PORT
    """.split()
)
_KEPT_PREFIXES = ("OMPI_MCA_", "OMPI_ALLOW_RUN_AS_ROOT", "PMIX_MCA_", "PMIX_INSTALL_PREFIX")
_JOB_PARAMETERS = tuple(  # written by mpirun itself, though they look like a user's settings
    f"OMPI_MCA_{name}"
    for name in """
    ess pmix initial_wdir mpi_oversubscribe shmem_RUNTIME_QUERY_hint orte_app_num orte_bound_at_launch orte_ess_
    orte_hnp_uri orte_jobfam_session_dir orte_launch orte_local_daemon_uri orte_num_nodes orte_precondition_transports
    orte_tag_output orte_top_session_dir
    """.split()
)


# What is handed to ranks that mpirun starts on another host, which know nothing of this one's environment.
_PASSED_PREFIXES = tuple(
    "HOROVOD_ NCCL_ GLOO_ UCX_ FI_ OMP_ MKL_ KMP_ OPENBLAS_ MALLOC_ TORCH PYTORCH_ PYTHON CUDA_ LD_ DYLD_".split()
)
_PASSED_NAMES = frozenset("PATH OPAL_PREFIX MASTER_ADDR MASTER_PORT LANG LC_ALL TZ VIRTUAL_ENV XDG_CACHE_HOME".split())

# A daemon or a connection whose other end is gone is noticed after 10 + 3 * 5 s, not after eight minutes.
_KEEPALIVE = {"oob_tcp_keepalive_time": "10", "oob_tcp_keepalive_intvl": "5", "oob_tcp_keepalive_probes": "3"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchLine:
    """What to execute, and the whole environment to execute it in."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    remote: tuple[str, ...] = ()  # hosts, other than this machine or not, where processes of the cell may be left
    allocation: bool = False  # these are reached by srun, not by ssh


@dataclass(frozen=True, kw_only=True, slots=True)
class Starting:
    """By what ranks are started, and where they go."""

    python: Path  # the interpreter; launchers are taken from its folder, else from PATH
    environ: Mapping[str, str]
    root: bool = False  # Open MPI starts for root only when told to
    which: Callable[..., str | None] = shutil.which
    site: Site = HERE  # all its hosts see the same files under the same paths


def launch_line(cell: Cell, start: Starting, *, config: Path, out: Path, resume: bool = False) -> LaunchLine:
    """Return how to start `cell`, given its configuration file and its run directory.

    A launcher that is missing is a StudyError saying how to get it, and so is the program that a command begins with.
    """
    workload = cell.config.workload
    if (folder := workload.folder) is not None:
        start = replace(start, environ=keeping_the_shell({**start.environ, **start.site.environment}))
    workers = cell.placement.workers
    hosts = start.site.hosts or (Host(name="localhost", slots=workers),)
    told = {name: getattr(cell.placement, name) for name in ("workers", "nodes", "workers_per_node")}
    told |= {"hosts": _with_slots(hosts), "host": hosts[0].name}  # what a command may be told
    command = workload.command(config.absolute(), out.absolute(), resume)
    job = (*command, *workload.arguments(cell.config, told))
    if folder is not None and workload.starts_ranks:
        require_program(job[job.index("--") + 1], folder, start.environ[f"{SHELL}PATH"], start.which)
    line = program_line(cell.runtime, workers, job, start, out=out, starts_ranks=workload.starts_ranks)
    if folder is None or workload.starts_ranks:
        return line
    # What the ranks of a script leave becomes a run where they were launched.
    return replace(line, argv=(str(start.python), *job[: job.index("--")], "--launcher", "--", *line.argv))


def require_program(word: str, folder: Path, path: str, which: Callable[..., str | None] = shutil.which) -> None:
    """Raise StudyError where a shell in `folder`, with `path` as PATH, would not find the program `word`."""
    search = os.pathsep.join(str(folder / each) for each in path.split(os.pathsep))
    file, own = folder / word, Path(sys.executable).parent / Path(word).name
    if which(str(file) if "/" in word else word, path=search) is not None:
        return
    if "/" not in word:
        wrong = f"is not on PATH; activate the environment that has it, or write {own if own.exists() else 'its path'}"
    elif file.is_file():
        wrong = f"may not be executed; chmod +x {shlex.quote(word)}, or write what runs it, as in `bash {word}`"
    else:
        wrong = f"is not in {folder}, the folder of the study file"
    raise StudyError(f"command: {word} {wrong} (~, $NAME and NAME=VALUE are for a shell: bash -c '...')")


def program_line(
    runtime: str, workers: int, job: Sequence[str], start: Starting, *, out: Path, starts_ranks: bool = False
) -> LaunchLine:
    """Return how to start `workers` ranks of `python *job` over `runtime`, marked as the job in the folder `out`.

    `starts_ranks`: the job does that itself, and is started once.
    """
    site, python = start.site, start.python
    alone = "launcher srun starts ranks inside a Slurm job only; use launcher auto, or scheduler slurm"
    placed = ", ".join(f"{host.name}: {host.slots}" for host in site.hosts)
    unequal = site.hosts and sum(host.slots for host in site.hosts) != workers
    refuse(
        "",
        (unequal, f"{workers} workers cannot be placed as {placed}; the numbers must add up"),
        (site.launcher == "srun" and not site.allocation and not starts_ranks, alone),
        error=StudyError,
    )
    if starts_ranks and site.allocation:
        site = replace(site, here=False)  # it may start them by srun, also on this node
        start = replace(start, site=site)
    path = site.environment.get("PATH", start.environ.get("PATH", ""))
    search = os.pathsep.join(part for part in (str(python.parent), path) if part)
    starter = ""  # the program that starts the ranks: a method of _Ranks, or "srun+mpi", with srun's own for MPI
    if not starts_ranks:
        _, transport = CARRIED[runtime]
        offered = transport.here if site.alone else transport.in_job if site.allocation else transport.over_ssh
        if site.srun_mpi is None:
            offered = tuple(each for each in offered if each != "srun+mpi")
        asked = [each for each in offered if each.partition("+")[0] == site.launcher]
        starter = (*asked, *offered, "")[0]
    if starter == "mpirun" or (starter == "horovodrun" and not runtime.endswith("/gloo")):
        here = workers if site.alone else max(host.slots for host in site.hosts)
        if hindrance := mpi_hindrance(here):
            raise StudyError(hindrance)
    environment = cell_environment(start.environ, path=search, out=out, site=site)
    # What ranks need to find each other, beside what their launcher tells them and where they meet.
    if site.interface is not None and not site.alone:
        names = {"horovod/gloo": ("HOROVOD_GLOO_IFACE",), "ddp/gloo": ("GLOO_SOCKET_IFNAME",)}
        for name in ("NCCL_SOCKET_IFNAME",) if runtime.endswith("/nccl") else names.get(runtime, ()):
            environment.setdefault(name, site.interface)
    if site.allocation and not site.alone and starter in ("mpirun", "horovodrun"):
        environment["SLURM_CPU_BIND"] = "none"  # of mpirun's daemons, which srun starts, and so of their ranks
    if runtime.startswith("horovod/") and _meets_by_itself(runtime, starter):
        environment.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    if _meets_by_itself(runtime, starter) or (starts_ranks and not site.alone):
        digest = hashlib.sha256(str(out.absolute()).encode()).digest()
        chosen = PORTS[0] + int.from_bytes(digest[:4], "big") % (PORTS[1] - PORTS[0] + 1)  # where nobody has chosen one
        environment["MASTER_ADDR"] = site.hosts[0].name if site.hosts else "localhost"
        environment["MASTER_PORT"] = str(site.port or chosen)
    refuse_other_than_numbers(environment)
    command: dict[str, Any] = {"runtime": runtime, "workers": workers, "search": search, "start": start}
    command |= {"job": (str(python), *job), "environ": environment, "own_mpi": starter.endswith("+mpi")}
    argv = getattr(_Ranks(**command), starter.partition("+")[0] or "plain")()
    remote = () if site.alone else tuple(host.name for host in site.hosts)
    return LaunchLine(argv=argv, environment=environment, remote=remote, allocation=site.allocation)


def _meets_by_itself(runtime: str, starter: str) -> bool:
    """Return whether the ranks find each other without their launcher, which may tell them nothing of it."""
    backend, _, transport = runtime.partition("/")
    gloo = transport == "gloo" or (transport == "nccl" and starter == "srun")
    return starter in ("mpirun", "srun") and (gloo or (backend == "ddp" and transport != "mpi"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ranks:
    """The ranks that are to run `job` in the environment `environ`; a method for each launcher gives its command."""

    runtime: str
    workers: int
    search: str  # folders in which programs are looked for
    start: Starting
    job: tuple[str, ...]
    environ: Mapping[str, str]
    own_mpi: bool  # MPI as the launcher has it

    def plain(self) -> tuple[str, ...]:
        """No launcher: one process, or one that starts the ranks itself."""
        return self.job

    def torchrun(self) -> tuple[str, ...]:
        python, *words = self.job
        standalone = ("--standalone", "--nproc-per-node", str(self.workers))
        return (python, "-m", "torch.distributed.run", *standalone, *words)

    def mpirun(self) -> tuple[str, ...]:
        site, program = self.start.site, self._program("mpirun")
        flags = ["--allow-run-as-root"] if self.start.root else []
        # Without a host list Open MPI counts physical cores and refuses the second hardware thread of each.
        flags += ["--host", f"localhost:{self.workers}" if site.alone else _each_rank(site)]
        flags += ["--bind-to", "none"]
        if not site.alone:
            self._refuse_what_a_shell_would_run(program)
            # Else the ranks come in an order of mpirun's own: this machine first, or as the job has its nodes.
            flags += ["--map-by", "seq", *self._between(program)]
            flags += [part for name in sorted(self.environ) if self._passed(name) for part in ("-x", name)]
        return (program, *flags, "-np", str(self.workers), *self.job)

    def horovodrun(self) -> tuple[str, ...]:
        """Start ranks by mpirun, or over Gloo by itself."""
        site, program = self.start.site, self._program("horovodrun")
        flags = [*_HOROVODRUN[self.runtime.partition("/")[2]], "-np", str(self.workers)]
        if not site.alone:
            self._refuse_what_a_shell_would_run(program)
            # Else mpirun begins with this machine, whatever the order of the hosts. Over Gloo no host must be repeated,
            # and NCCL may start over either.
            in_order = self.runtime == "horovod/mpi"
            flags += ["-H", _each_rank(site, ":1") if in_order else _with_slots(site.hosts)]
            flags += ["--disable-cache"]  # else it does not look whether a host is still there
            flags += [] if site.interface is None else ["--network-interface", site.interface]
            flags += ["--binding-args=-bind-to none -map-by seq"] if in_order else []
            if self.runtime != "horovod/gloo":
                flags += [f"--mpi-args={shlex.join(self._between(program, given=('btl_tcp_if_include',)))}"]
        return (program, *flags, *self.job)

    def srun(self) -> tuple[str, ...]:
        site = self.start.site
        # One name for each rank, in their order: also where nodes have different numbers of them.
        flags = [f"--nodes={len(site.hosts)}", f"--ntasks={self.workers}", "--distribution=arbitrary"]
        flags += [f"--nodelist={_each_rank(site)}"]
        flags += [] if site.cores_per_worker is None else [f"--cpus-per-task={site.cores_per_worker}"]
        flags += [f"--mpi={site.srun_mpi if self.own_mpi else 'none'}", "--export=ALL", "--input=none"]
        # s for the others, once a rank has ended in good order
        flags += ["--kill-on-bad-exit=1", "--wait=60"]
        return (self._program("srun"), *flags, *self.job)

    def _program(self, name: str) -> str:
        found = self.start.which(name, path=self.search)
        if found is None:
            remedy = "load Slurm's commands in the job" if name == "srun" else "run `make setup`"
            raise StudyError(
                f"runtime {self.runtime} needs the program {name}, which is neither in {self.start.python.parent} nor "
                f"on PATH; {remedy}, or leave {self.runtime} out of sweep.runtime"
            )
        return found

    def _between(self, program: str, given: Sequence[str] = ()) -> list[str]:
        """Return mpirun's options for its daemons on other hosts, without the parameters `given` otherwise."""
        site = self.start.site
        options = ["--prefix", str(self.start.python.parent.parent)] if self._is_own(program) else []
        parameters = dict(_KEEPALIVE)
        if site.interface is not None:
            parameters |= {"btl_tcp_if_include": site.interface, "oob_tcp_if_include": site.interface}
        if not site.allocation:
            parameters["plm_rsh_args"] = " ".join((*SSH_OPTIONS, *ALIVE_OPTIONS))
        for name, value in parameters.items():
            if name not in given and f"OMPI_MCA_{name}" not in self.environ:
                options += ["--mca", name, value]
        return options

    def _passed(self, name: str) -> bool:
        if name in self.start.site.environment or name in _PASSED_NAMES:
            return not name.startswith("OMPI_MCA_")  # mpirun hands these on by itself
        # Which of this machine's GPUs are visible is no matter of others, unless the partition sets it.
        return name.startswith(_PASSED_PREFIXES) and name != "CUDA_VISIBLE_DEVICES"

    def _refuse_what_a_shell_would_run(self, program: str) -> None:
        """Raise StudyError for what horovodrun and mpirun put into a command of a shell without quoting it.

        Everything else they quote, or send past the shell: arguments, values of variables, the working directory of
        mpirun's ranks.
        """
        name = Path(program).name
        if self.start.site.allocation and name == "mpirun":  # srun starts no shell
            return
        own = {each: value for each, value in self.environ.items() if each.startswith("OMPI_MCA_")}
        risky = {f"variable {each}": value for each, value in own.items() if re.search(r"[\"$`\\\n]", value)}
        path = str(self.start.python.parent.parent) if self._is_own(program) else ""
        what, path = ("working directory", str(Path.cwd())) if self.runtime == "horovod/gloo" else ("environment", path)
        risky |= {} if re.fullmatch(r"[\w./:@%+=,~-]*", path) else {what: path}
        why = f"would be read by a shell on the other hosts, because {name} does not quote it; let it have "
        rules = ((True, f"{what} {value!r} {why}letters, digits and ./:@%+=,_~- only") for what, value in risky.items())
        refuse("", *rules, error=StudyError)

    def _is_own(self, program: str) -> bool:
        """Return whether a launcher is the environment's own, which nobody finds on another host by himself."""
        return Path(program).parent == self.start.python.parent


def _with_slots(hosts: Sequence[Host]) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def _each_rank(site: Site, ending: str = "") -> str:
    """Return the host of each rank, one after the other."""
    return ",".join(host.name + ending for host in site.hosts for _ in range(host.slots))


def cell_environment(environ: Mapping[str, str], *, path: str, out: Path, site: Site = HERE) -> dict[str, str]:
    """Return `environ` without the ranks of an enclosing job, with `path` as PATH and marked as the cell in `out`.

    What `site` sets for its partition is added; inside a Slurm job what srun and mpirun need to know of it stays.
    """
    starts = SLURM_STARTS if site.allocation and not site.alone else frozenset[str]()
    kept = {name: value for name, value in environ.items() if name in starts or not describes_enclosing_job(name)}
    if not site.alone:  # functions of a shell and the like, which cannot be written into another's command
        kept = {name: value for name, value in kept.items() if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)}
    if starts:
        # Slots of mpirun, however the job was asked for.
        slots, nodes = max(host.slots for host in site.hosts), len(site.hosts)
        kept["SLURM_TASKS_PER_NODE"] = f"{slots}(x{kept.get('SLURM_JOB_NUM_NODES', nodes)})"
    # Unbuffered, so that the log of a killed cell holds all that was printed.
    made = {**kept, **site.environment, "PATH": path, "PYTHONUNBUFFERED": "1", MARKER: str(out.absolute())}
    empty = {f"HOROVOD_{name}" for name in OF_HOROVOD if not is_set(f"HOROVOD_{name}", made)}
    return without_working_directory({name: value for name, value in made.items() if name not in empty})


def describes_enclosing_job(name: str) -> bool:
    """Return whether a variable tells the ranks of a job about themselves."""
    if name.startswith(_JOB_PARAMETERS):
        return True
    if name.startswith("SLURM"):
        return name not in SLURM_TELLS
    return name in _SCRUBBED_NAMES or (name.startswith(_SCRUBBED_PREFIXES) and not name.startswith(_KEPT_PREFIXES))
