"""Partitions as data: what a node of one is, how jobs get there, and what its runs need around them.

A partition is a YAML file, `jobs/partitions/NAME.yaml` or any path; `jobs/README.md` explains every key. The keys are
the fields of `Partition`. Two of them have a form of their own in the file:

    environment:
      NCCL_DEBUG: WARN                                   NAME: value, or with the reason why it is set:
      NCCL_P2P_DISABLE: {value: 1, because: "..."}
    hosts: [node1, node2:4]                              of scheduler ssh: a name, with the workers it takes
"""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from horovod_study.cluster.yaml_keys import limits, mapping, one_of
from horovod_study.config import available_cores
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, nearest, require_keys
from horovod_study.roles import Option, check_field
from horovod_study.text.words import plural
from horovod_study.variables import visible_gpus

LAUNCHERS = ("auto", "horovodrun", "mpirun", "srun", "torchrun")
FOLDER = Path("jobs") / "partitions"
"""Where partitions lie, below the working directory, a folder above the study file, or the checkout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine by its name, and how many workers it takes."""

    name: str
    slots: int

    def __post_init__(self) -> None:
        host_name("host", self.name)
        if self.slots < 1:
            raise ConfigError(f"host {self.name}: slots is {self.slots}; allowed: 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A kind of node and how to get to it. A slot is what one worker takes: a GPU, or cores where there are none."""

    name: str
    description: str = ""
    scheduler: str = "local"  # local | ssh | slurm
    nodes: int | None = 1  # how many there are; None: unknown
    gpus_per_node: int = 0
    cores_per_node: int = 1
    cores_per_worker: int = 1  # cpus per task: cores / GPUs unless said
    memory_per_core_mb: int | None = None  # MB (2**20 bytes) as Slurm counts them
    exclusive: bool = True  # nodes are not shared with other jobs
    interconnect: str = ""  # for the report, such as "InfiniBand HDR"
    interface: str | None = None  # network interface for Gloo, NCCL's bootstrap and MPI over TCP
    hosts: tuple[Host, ...] = ()  # of scheduler ssh: where workers go, in this order
    launcher: str = "auto"  # one of LAUNCHERS
    modules: tuple[str, ...] = ()  # loaded in this order in a job script
    environment: Mapping[str, str] = field(default_factory=dict)  # set for all workers
    because: Mapping[str, str] = field(default_factory=dict)  # variable -> why it is set
    # Slurm
    slurm_partition: str | None = None  # its name there; None: the default one
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None  # how GPUs are asked for, "gpu:{gpus}" or "gpu:a100:{gpus}"; None: no GPUs are
    time_limit_s: float | None = None  # longest job allowed there
    requeue: bool = True
    srun_mpi: str | None = None  # `srun --mpi=...` for MPI programs; None: MPI is started by mpirun

    def __post_init__(self) -> None:
        here = f"partition {self.name}"
        for name, (allowed, optional) in _KINDS.items():
            object.__setattr__(self, name, check_field(here, name, getattr(self, name), allowed, optional=optional))
        if not self.name or set(self.name) & set("/\\\0\n") or self.name.startswith("."):
            raise ConfigError(
                f"{here}: name is {self.name!r}; it names a folder: no slash, line break, leading dot, or empty name"
            )
        one_of(here, "scheduler", self.scheduler, ("local", "ssh", "slurm"))
        one_of(here, "launcher", self.launcher, LAUNCHERS)
        for name in (*_TEXTS, *(f"modules: {module}" for module in self.modules)):
            value = getattr(self, name) if name in _TEXTS else name
            if value is not None and _BREAKS.search(value):
                raise ConfigError(f"{here}: {name.split(':')[0]} is {value!r}; it must be one line of text")
        if self.cores_per_worker > self.cores_per_node:
            raise ConfigError(
                f"{here}: cores_per_worker is {self.cores_per_worker}, but a node has {self.cores_per_node} cores; "
                "lower it"
            )
        if self.gpus_per_node and self.gpus_per_node * self.cores_per_worker > self.cores_per_node:
            raise ConfigError(
                f"{here}: {self.gpus_per_node} workers per node at {self.cores_per_worker} cores each need "
                f"{self.gpus_per_node * self.cores_per_worker} cores, but a node has {self.cores_per_node}; lower "
                "cores_per_worker"
            )
        if self.gres is not None and not self.gpus_per_node:
            raise ConfigError(f"{here}: gres is {self.gres!r}, but gpus_per_node is 0; leave gres out or say how many")
        if self.gres is not None and set(self.gres.replace("{gpus}", "")) & set("{}"):
            raise ConfigError(f"{here}: gres is {self.gres!r}; write {{gpus}} where the number of GPUs belongs")
        if (self.scheduler == "ssh") != bool(self.hosts):
            raise ConfigError(
                f"{here}: scheduler is {self.scheduler} and {len(self.hosts) or 'no'} hosts are named; scheduler ssh "
                "needs hosts, and no other has any"
            )
        names = [host.name for host in self.hosts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{here}: hosts names {name} twice; give it once with all its slots: {name}:N")
        for variable, value in self.environment.items():
            if not _VARIABLE.fullmatch(variable):
                raise ConfigError(f"{here}: environment: {variable!r} is no name of a variable; use letters, digits, _")
            if "\0" in value or "\n" in value:
                raise ConfigError(f"{here}: environment: {variable} is {value!r}; it must be one line of text")

    @property
    def slots_per_node(self) -> int:
        """Workers that a node takes without sharing; of hosts that differ, as many as the smallest takes."""
        if self.hosts:
            return min(host.slots for host in self.hosts)
        return self.gpus_per_node or max(1, self.cores_per_node // self.cores_per_worker)

    @property
    def capacity(self) -> int | None:
        """Workers that all nodes together take; None where the number of nodes is unknown."""
        return None if self.nodes is None else self.nodes * self.slots_per_node

    def node(self) -> str:
        """Say in words what a node is."""
        gpus = f"{plural(self.gpus_per_node, 'GPU')} and " if self.gpus_per_node else ""
        return f"{gpus}{plural(self.cores_per_node, 'core')}"


_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXTS = (
    *("description", "interconnect", "interface", "slurm_partition", "account", "qos", "constraint", "gres"),
    "srun_mpi",
)
_KINDS: Mapping[str, tuple[Option, bool]] = {
    **{name: (limits(str), False) for name in ("name", "description", "interconnect", "scheduler", "launcher")},
    **{name: (limits(str), True) for name in _TEXTS if name not in ("description", "interconnect")},
    **{name: (limits(bool), False) for name in ("exclusive", "requeue")},
    "nodes": (limits(int, low=1), True),
    "gpus_per_node": (limits(int, low=0), False),
    "cores_per_node": (limits(int, low=1), False),
    "cores_per_worker": (limits(int, low=1), False),
    "memory_per_core_mb": (limits(int, low=1), True),
    "time_limit_s": (limits(float, low=60), True),
}
KEYS = tuple(each.name for each in fields(Partition) if each.name != "because")
"""What a partition's file may say."""


def load_partition(path: Path) -> Partition:
    """Read a partition's file; whatever is wrong with it is a ConfigError naming the file, the key and the value."""
    content, source = load_yaml(path), str(path)
    require_keys(source, content, KEYS)
    values = {name: value for name, value in content.items() if name not in ("environment", "hosts", "modules")}
    values.setdefault("name", path.stem)
    if content.get("scheduler", "local") == "local":
        values.setdefault("cores_per_node", available_cores())
        values.setdefault("gpus_per_node", gpus_here())
        values.setdefault("nodes", 1)
        if values["nodes"] != 1:
            raise ConfigError(
                f"{source}: nodes is {values['nodes']!r}, but scheduler local is this machine alone; name a scheduler "
                "(ssh, slurm)"
            )
    elif "cores_per_node" not in content:
        raise ConfigError(f"{source}: key 'cores_per_node' is missing; say how many cores a node has")
    else:
        values.setdefault("nodes", None)
    for name in ("gpus_per_node", "cores_per_node"):  # what follows computes with these
        if name in values:
            values[name] = check_field(source, name, values[name], _KINDS[name][0], optional=False)
    gpus = values.get("gpus_per_node", 0)
    values.setdefault("cores_per_worker", max(1, values["cores_per_node"] // gpus) if gpus else 1)
    values["environment"], values["because"] = _environment(source, content.get("environment"))
    values["modules"] = _modules(source, content.get("modules"))
    slots = gpus or max(1, values["cores_per_node"] // _whole(values["cores_per_worker"]))
    values["hosts"] = _hosts(source, content.get("hosts"), slots)
    if values["hosts"] and values["nodes"] is None:
        values["nodes"] = len(values["hosts"])
    if values["hosts"] and values["nodes"] != len(values["hosts"]):
        raise ConfigError(
            f"{source}: nodes is {values['nodes']!r}, but {len(values['hosts'])} hosts are named; leave nodes out"
        )
    try:
        return Partition(**values)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"partition {values['name']}:", f"{source}:", 1)) from None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1  # what is wrong with it Partition says


def _environment(source: str, value: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return variable -> value, and variable -> why it is set."""
    variables, because = {}, {}
    for name, entry in mapping(source, "environment", value).items():
        where = f"{source}: environment"
        if isinstance(entry, dict):
            require_keys(f"{where}: {name}", entry, ("value", "because"))
            if "value" not in entry:
                raise ConfigError(f"{where}: {name}: key 'value' is missing; write {{value: ..., because: ...}}")
            if "because" in entry:
                because[str(name)] = check_field(
                    where, f"{name}: because", entry["because"], limits(str), optional=False
                )
            entry = entry["value"]
        if isinstance(entry, bool):
            raise ConfigError(f"{where}: {name} is {str(entry).lower()}; put it in quotes, or write 0 or 1")
        variables[str(name)] = check_field(where, str(name), entry, limits(str), optional=False)
    return variables, because


def _modules(source: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigError(f"{source}: modules is {value!r}; it must be a list such as [gcc/13, openmpi/4.1]")
    return tuple(check_field(source, "modules", each, limits(str), optional=False) for each in value)


def _hosts(source: str, value: Any, slots: int) -> tuple[Host, ...]:
    """Return hosts written as NAME, NAME:SLOTS or {name: NAME, slots: SLOTS}."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigError(f"{source}: hosts is {value!r}; it must be a list such as [node1, node2:4]")
    hosts = []
    for each in value:
        if isinstance(each, dict):
            require_keys(f"{source}: hosts", each, ("name", "slots"))
            name, count = each.get("name"), each.get("slots", slots)
        else:
            name, colon, count = str(each).partition(":")
            count = count if colon else slots
        name = host_name(f"{source}: hosts", name or "")
        count = check_field(source, f"hosts: slots of {name}", count, limits(int, low=1), optional=False)
        hosts.append(Host(name=name, slots=count))
    return tuple(hosts)


def host_name(source: str, value: Any) -> str:
    """Return the name of a host, which goes into lists with commas and colons, and into commands of a shell."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(value)):
        raise ConfigError(
            f"{source}: {str(value)!r} is no name of a host; use letters, digits, '.', '-', '_' (slots are behind a "
            "colon in the partition's file; user, port and key of ssh belong in ~/.ssh/config)"
        )
    return str(value)


def this_machine(name: str = "local") -> Partition:
    """Return the machine this program runs on as a partition: its GPUs if it has any, and the cores it may use."""
    cores, gpus = available_cores(), gpus_here()
    return Partition(
        name=name,
        description="this machine",
        cores_per_node=cores,
        gpus_per_node=min(gpus, cores),
        cores_per_worker=max(1, cores // gpus) if gpus else 1,
    )


def gpus_here() -> int:
    """Return how many NVIDIA GPUs a program on this machine sees, without loading a library to ask."""
    names = visible_gpus(os.environ)
    present = len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    if names is None:
        return present
    there = itertools.takewhile(lambda name: not name.isdecimal() or int(name) < present, names)
    return min(present, len(list(there)))


def find_partition(name_or_path: str, *, beside: Path | None = None) -> Partition:
    """Return the partition of that name, or in that file; `beside` is the study file (or its folder) that names it.

    A path ends in .yaml and is looked for from the study file, then from the working directory. A name is looked for
    in `partitions/` beside the study file, then in `jobs/partitions/` below the working directory, the folders above
    the study file, and the checkout of this package. `local`, this machine, needs no file.
    """
    folder = None if beside is None else (beside if beside.is_dir() else beside.parent).absolute()
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        places = [place / text for place in (folder, Path.cwd()) if place is not None]
        for path in places:
            if path.is_file():
                return load_partition(path)
        raise ConfigError(f"partition {text}: there is no such file ({_joined(places)}); name an existing YAML file")
    folders = list(dict.fromkeys(_folders(folder)))
    if text and not set(text) & set("/\\\0\n"):
        for place in folders:
            if (place / f"{text}.yaml").is_file():
                return load_partition(place / f"{text}.yaml")
        if text == "local":
            return this_machine()
    names = sorted({"local", *(path.stem for place in folders for path in place.glob("*.yaml"))})
    raise ConfigError(
        f"partition {text!r} is not known{nearest(text, names)}; there are {', '.join(names)} in {_joined(folders)}; "
        "name one of them or the path of a YAML file"
    )


def _folders(study: Path | None) -> list[Path]:
    below = [] if study is None else [study / "partitions"]
    above = [] if study is None else [folder / FOLDER for folder in (study, *study.parents)]
    places = [*below, Path.cwd() / FOLDER, *above, Path(__file__).resolve().parents[2] / FOLDER]
    return [place for place in places if place.is_dir()]


def _joined(places: list[Path]) -> str:
    return ", ".join(str(place) for place in places) or "no folder jobs/partitions"
