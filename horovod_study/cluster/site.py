"""Where the ranks of a cell are started, and by what: nothing but this machine, hosts over ssh, or an allocation.

A `Site` is what a launch line needs to know beside the cell. Its hosts are in the order of the ranks, and their slots
are the ranks on them. `site_of` makes one from a partition and a placement; `hosts_of_allocation` reads the nodes of a
Slurm job off the environment, because `scontrol` is not on every node's PATH.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import SystemRandom

from horovod_study.cluster.remote import this_host
from horovod_study.config.doors import accept
from horovod_study.config.partitions import Host, Partition
from horovod_study.config.run import Placement
from horovod_study.errors import ConfigError, StudyError, nearest, refuse
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
    common = common_site(partition)
    allocation = partition.scheduler == "slurm"
    if allocation:
        offered = hosts_of_allocation(environ)
        where, remedy = f"job {environ.get('SLURM_JOB_ID', '?')}", "ask for more nodes"
    else:
        offered = partition.hosts
        where, remedy = f"partition {partition.name}", "add them to its hosts, or name them with --hosts"
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
    full = [(asked.slots, host) for host, asked in zip(taken, used, strict=True) if asked.slots > host.slots]
    if full and not allocation and not oversubscribe:  # in a job, Slurm decides that
        (asked, host), *_ = full
        raise StudyError(
            f"{asked} workers are to go to {host.name}, which has {plural(host.slots, 'slot')}; lower "
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
    counts: list[int] = []
    for each in text.split(","):
        matched = re.fullmatch(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?", each)
        if matched is None or int(matched[2] or 1) > _MAX_HOSTS:
            raise StudyError(f"{text!r} is not a list of counts as Slurm writes it, such as 2(x3),1")
        counts += [int(matched[1])] * int(matched[2] or 1)
    return counts
