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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from horovod_study.config.documents import load_yaml
from horovod_study.config.roles import Option, check_field
from horovod_study.config.run import available_cores
from horovod_study.config.variables import visible_gpus
from horovod_study.config.yaml_keys import limits, mapping, one_of
from horovod_study.errors import ConfigError, nearest, require_keys
from horovod_study.text.words import plural

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
        for each in fields(self):
            if (kind := _kind(each.name)) is not None:
                value = check_field(here, each.name, getattr(self, each.name), kind, optional="None" in str(each.type))
                object.__setattr__(self, each.name, value)
        one_of(here, "scheduler", self.scheduler, ("local", "ssh", "slurm"))
        one_of(here, "launcher", self.launcher, LAUNCHERS)
        for fault in self._faults():
            raise ConfigError(f"{here}: {fault}")

    def _faults(self) -> Iterator[str]:
        """Yield in words what does not fit together, or into a job script."""
        cores, each, gpus = self.cores_per_node, self.cores_per_worker, self.gpus_per_node
        if not self.name or set(self.name) & set("/\\\0\n") or self.name.startswith("."):
            yield f"name is {self.name!r}; it names a folder: no slash, line break, leading dot, or empty name"
        texts = [(name, getattr(self, name)) for name in _TEXTS] + [("modules", module) for module in self.modules]
        yield from (
            f"{name} is {f'modules: {value}' if name == 'modules' else value!r}; it must be one line of text"
            for name, value in texts
            if value is not None and _BREAKS.search(value)
        )
        if each > cores:
            yield f"cores_per_worker is {each}, but a node has {cores} cores; lower it"
        if gpus and gpus * each > cores:
            yield (
                f"{gpus} workers per node at {each} cores each need {gpus * each} cores, but a node has {cores}; lower "
                "cores_per_worker"
            )
        if self.gres is not None and not gpus:
            yield f"gres is {self.gres!r}, but gpus_per_node is 0; leave gres out or say how many"
        if self.gres is not None and set(self.gres.replace("{gpus}", "")) & set("{}"):
            yield f"gres is {self.gres!r}; write {{gpus}} where the number of GPUs belongs"
        if (self.scheduler == "ssh") != bool(self.hosts):
            named = f"scheduler is {self.scheduler} and {len(self.hosts) or 'no'} hosts are named"
            yield f"{named}; scheduler ssh needs hosts, and no other has any"
        names = [host.name for host in self.hosts]
        yield from (
            f"hosts names {name} twice; give it once with all its slots: {name}:N"
            for name in names
            if names.count(name) > 1
        )
        for variable, value in self.environment.items():
            if not _VARIABLE.fullmatch(variable):
                yield f"environment: {variable!r} is no name of a variable; use letters, digits, _"
            if "\0" in value or "\n" in value:
                yield f"environment: {variable} is {value!r}; it must be one line of text"

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
_LEAST = {"nodes": 1, "gpus_per_node": 0, "cores_per_node": 1, "cores_per_worker": 1, "memory_per_core_mb": 1}
_TYPES = {"str": str, "bool": bool, "int": int, "float": float}


def _kind(name: str) -> Option | None:
    """Return what `check_field` wants to know of a value; None for what is no single one."""
    annotation = str(Partition.__annotations__[name]).removeprefix("<class '").split("'")[0].split(" ")[0]
    low = 60 if name == "time_limit_s" else _LEAST.get(name)
    return limits(_TYPES[annotation], low=low) if annotation in _TYPES else None


KEYS = tuple(each.name for each in fields(Partition) if each.name != "because")
"""What a partition's file may say."""


def load_partition(path: Path) -> Partition:
    """Read a partition's file; whatever is wrong with it is a ConfigError naming the file, the key and the value."""
    content, source = load_yaml(path), str(path)
    require_keys(source, content, KEYS)
    values = {name: value for name, value in content.items() if name not in ("environment", "hosts", "modules")}
    values.setdefault("name", path.stem)
    if content.get("scheduler", "local") == "local":
        found = {"cores_per_node": available_cores(), "gpus_per_node": gpus_here(), "nodes": 1}
        values = found | values
        if values["nodes"] != 1:
            raise ConfigError(
                f"{source}: nodes is {values['nodes']!r}, but scheduler local is this machine alone; name a scheduler "
                "(ssh, slurm)"
            )
    elif "cores_per_node" not in content:
        raise ConfigError(f"{source}: key 'cores_per_node' is missing; say how many cores a node has")
    values = {"nodes": None, "gpus_per_node": 0, **values}
    for name in ("gpus_per_node", "cores_per_node"):  # what follows computes with these
        values[name] = check_field(source, name, values[name], limits(int, low=_LEAST[name]), optional=False)
    cores, gpus = values["cores_per_node"], values["gpus_per_node"]
    values.setdefault("cores_per_worker", max(1, cores // gpus) if gpus else 1)
    values["environment"], values["because"] = _environment(source, content.get("environment"))
    modules = _list(source, "modules", content.get("modules"), "[gcc/13, openmpi/4.1]")
    values["modules"] = tuple(check_field(source, "modules", each, limits(str), optional=False) for each in modules)
    each = values["cores_per_worker"]  # what is wrong with it Partition says
    slots = gpus or max(1, cores // (each if isinstance(each, int) and each > 0 else 1))
    values["hosts"] = _hosts(source, content.get("hosts"), slots)
    if values["hosts"] and values["nodes"] not in (None, len(values["hosts"])):
        raise ConfigError(
            f"{source}: nodes is {values['nodes']!r}, but {len(values['hosts'])} hosts are named; leave nodes out"
        )
    values["nodes"] = len(values["hosts"]) or values["nodes"]
    try:
        return Partition(**values)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"partition {values['name']}:", f"{source}:", 1)) from None


def _list(source: str, key: str, value: Any, example: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise ConfigError(f"{source}: {key} is {value!r}; it must be a list such as {example}")
    return value or []


def _environment(source: str, value: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return variable -> value, and variable -> why it is set."""
    variables, because, where = {}, {}, f"{source}: environment"
    for name, entry in mapping(source, "environment", value).items():
        if isinstance(entry, dict):
            require_keys(f"{where}: {name}", entry, ("value", "because"))
            if "value" not in entry:
                raise ConfigError(f"{where}: {name}: key 'value' is missing; write {{value: ..., because: ...}}")
            if "because" in entry:
                why = check_field(where, f"{name}: because", entry["because"], limits(str), optional=False)
                because[str(name)] = why
            entry = entry["value"]
        if isinstance(entry, bool):
            raise ConfigError(f"{where}: {name} is {str(entry).lower()}; put it in quotes, or write 0 or 1")
        variables[str(name)] = check_field(where, str(name), entry, limits(str), optional=False)
    return variables, because


def _hosts(source: str, value: Any, slots: int) -> tuple[Host, ...]:
    """Return hosts written as NAME, NAME:SLOTS or {name: NAME, slots: SLOTS}."""
    hosts = []
    for each in _list(source, "hosts", value, "[node1, node2:4]"):
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
