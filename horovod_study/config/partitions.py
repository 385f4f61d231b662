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
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import Flag, Form, Number, Text, Whole, accept, at_least, matching, wrong
from horovod_study.config.run import available_cores
from horovod_study.config.variables import visible_gpus
from horovod_study.errors import ConfigError, nearest, refuse, short
from horovod_study.text.words import plural

FOLDER = Path("jobs") / "partitions"
"""Where partitions lie, below the working directory, a folder above the study file, or the checkout."""
FolderName = Annotated[
    Text, matching(r"[^/\\\x00\n.][^/\\\x00\n]*", "it names a folder: no slash, line break, leading dot, or empty name")
]
_NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"  # goes into lists with commas and colons, and into commands of a shell
_CHARACTERS = "of letters, digits, '.', '-', '_' (user, port and key of ssh belong in ~/.ssh/config)"
HostName = Annotated[Text, matching(_NAME, f"give the name of a host, {_CHARACTERS}")]
Line = Annotated[Text, matching(r"[^\x00-\x08\x0a-\x1f\x7f]*", "it must be one line of text")]
_Variable = Annotated[Text, matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable has letters, digits, _")]
_Value = Annotated[Text, matching(r"[^\x00\n]*", "it must be one line of text")]
_Gpus = Annotated[Line, matching(r"([^{}]|\{gpus\})*", "write {gpus} where the number of GPUs belongs")]
_Count = Annotated[Whole, at_least(1)]
_TEXT = {"type": ["string", "number"]}
_SETTING = {"type": "object", "required": ["value"], "properties": {"value": _TEXT, "because": {"type": "string"}}}
_SETTINGS = WithJsonSchema({"type": "object", "additionalProperties": {"anyOf": [_TEXT, _SETTING]}})


class Host(Form):
    """A machine by its name, and how many workers it takes."""

    name: HostName
    slots: _Count


class Partition(Form):
    """A kind of node and how to get to it. A slot is what one worker takes: a GPU, or cores where there are none."""

    name: FolderName
    description: Line = ""
    scheduler: Literal["local", "ssh", "slurm"] = "local"
    nodes: Annotated[_Count | None, Field(validate_default=True)] = None  # how many there are; None: unknown
    gpus_per_node: Annotated[Whole, at_least(0)] = 0
    cores_per_node: _Count = 1
    cores_per_worker: Annotated[_Count, Field(validate_default=True)] = None  # type: ignore[assignment]  # cores / GPUs
    memory_per_core_mb: _Count | None = None  # MB (2**20 bytes) as Slurm counts them
    exclusive: Flag = True  # nodes are not shared with other jobs
    interconnect: Line = ""  # for the report, such as "InfiniBand HDR"
    interface: Line | None = None  # network interface for Gloo, NCCL's bootstrap and MPI over TCP
    hosts: tuple[Host, ...] = ()  # of scheduler ssh: where workers go, in this order
    launcher: Literal["auto", "horovodrun", "mpirun", "srun", "torchrun"] = "auto"
    modules: tuple[Line, ...] = ()  # loaded in this order in a job script
    environment: Annotated[Mapping[_Variable, _Value], _SETTINGS] = Field(default_factory=dict)  # set for all workers
    because: SkipJsonSchema[Mapping[str, Text]] = Field(default_factory=dict)  # variable -> why it is set
    # Slurm
    slurm_partition: Line | None = None  # its name there; None: the default one
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    gres: _Gpus | None = None  # how GPUs are asked for, "gpu:{gpus}" or "gpu:a100:{gpus}"; None: no GPUs are
    time_limit_s: Annotated[Number, at_least(60)] | None = None  # longest job allowed there
    requeue: Flag = True
    srun_mpi: Line | None = None  # `srun --mpi=...` for MPI programs; None: MPI is started by mpirun

    @model_validator(mode="before")
    @classmethod
    def _with_reasons(cls, content: Any) -> Any:
        """Take variables apart that are given as {value: ..., because: ...}."""
        if not isinstance(content, Mapping):
            return content
        headings = ("environment", "hosts", "modules")  # with nothing below they are as left out
        content = {name: each for name, each in content.items() if each is not None or name not in headings}
        if not isinstance(told := content.get("environment"), Mapping):
            return content
        found = {name: each if isinstance(each, Mapping) else {"value": each} for name, each in told.items()}
        for name, each in found.items():
            if type(each.get("value")) not in (str, int, float, date) or set(each) - {"value", "because"}:
                write = "write a text, in quotes where YAML takes it for something else, or {value: ..., because: ...}"
                raise wrong(f"environment.{name} is {short(told[name])}; {write}")
        because = {name: each["because"] for name, each in found.items() if "because" in each}
        values = {name: each["value"] for name, each in found.items()}
        return {**content, "environment": values, "because": content.get("because") or because}

    @field_validator("nodes", "cores_per_worker", mode="before")
    @classmethod
    def _left_out(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name == "nodes":
            return 1 if info.data.get("scheduler") == "local" else None
        gpus, cores = info.data.get("gpus_per_node"), info.data.get("cores_per_node", 1)
        return (max(1, cores // gpus) if gpus else 1) if value is None else value

    @field_validator("hosts", mode="before", json_schema_input_type=list[str | Host])
    @classmethod
    def _with_slots(cls, value: Any, info: ValidationInfo) -> Any:
        told = info.data
        slots = told.get("gpus_per_node") or max(1, told.get("cores_per_node", 1) // told.get("cores_per_worker", 1))
        return [_host(each, slots) for each in value] if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        cores, each, gpus = self.cores_per_node, self.cores_per_worker, self.gpus_per_node
        hosts = [host.name for host in self.hosts]
        twice = next(iter(Counter(hosts) - Counter({*hosts})), "")
        ssh = f"scheduler is {self.scheduler} and {len(hosts) or 'no'} hosts are named; scheduler ssh needs hosts,"
        needed = f"{gpus} workers per node at {each} cores each need {gpus * each} cores, but a node has {cores}; lower"
        local = f"nodes is {self.nodes}, but scheduler local is this machine alone; name a scheduler (ssh, slurm)"
        told = self.scheduler == "local" or "cores_per_node" in self.model_fields_set
        unequal = hosts and self.nodes not in (None, len(hosts))
        faults = {
            "cores_per_node is missing; say how many cores a node has": not told,
            f"cores_per_worker is {each}, but a node has {cores} cores; lower it": each > cores,
            f"{needed} cores_per_worker": gpus * each > cores,
            f"gres is {short(self.gres)}, but gpus_per_node is 0; leave gres out or say how many": self.gres
            and not gpus,
            f"{ssh} and no other has any": (self.scheduler == "ssh") != bool(hosts),
            f"hosts names {twice} twice; give it once with all its slots: {twice}:N": twice,
            local: self.scheduler == "local" and self.nodes != 1,
            f"nodes is {self.nodes}, but {len(hosts)} hosts are named; leave nodes out": unequal,
        }
        if found := [text for text, broken in faults.items() if broken]:
            raise wrong(found[0])
        return self

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


def _host(each: Any, slots: int) -> Any:
    """Return a host written as NAME or NAME:SLOTS by its fields; `slots`: of one that says none."""
    if isinstance(each, Host | Mapping):
        return each if isinstance(each, Host) else {"slots": slots, **each}
    if (found := re.fullmatch(f"({_NAME})(?::([1-9][0-9]{{0,8}}))?", str(each).strip())) is None:
        raise wrong(f"{each!r} is no host; write NAME or NAME:WORKERS, {_CHARACTERS}")
    return {"name": found[1], "slots": found[2] or slots}


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts meant by `node1:2,node2:2` or `node1,node2` (one worker each)."""
    form = Annotated[tuple[Host, ...], BeforeValidator(lambda told: [_host(each, 1) for each in told])]
    hosts: tuple[Host, ...] = accept(form, text.split(","), "--hosts")
    return hosts


def load_partition(path: Path) -> Partition:
    """Read a partition's file; whatever is wrong with it is a ConfigError naming the file, the key and the value."""
    content = load_yaml(path)
    refuse(f"{path}", ("because" in content, "unknown key 'because'; it belongs to a variable: NAME: {value, because}"))
    here = {"cores_per_node": available_cores(), "gpus_per_node": gpus_here()}
    found = here if content.get("scheduler", "local") == "local" else {}
    partition: Partition = accept(Partition, {"name": path.stem, **found, **content}, str(path))
    return partition.model_copy(update={"nodes": len(partition.hosts)}) if partition.hosts else partition


def this_machine(name: str = "local") -> Partition:
    """Return the machine this program runs on as a partition: its GPUs if it has any, and the cores it may use."""
    cores = available_cores()
    gpus = min(gpus_here(), cores)
    return Partition(name=name, description="this machine", cores_per_node=cores, gpus_per_node=gpus)


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
    study = None if beside is None else (beside if beside.is_dir() else beside.parent).absolute()
    here, installed = Path.cwd() / FOLDER, Path(__file__).resolve().parents[2] / FOLDER
    above = [] if study is None else [folder / FOLDER for folder in (study, *study.parents)]
    folders = [] if study is None else [study / "partitions"]
    folders = list(dict.fromkeys(place for place in (*folders, here, *above, installed) if place.is_dir()))
    text = str(name_or_path)
    if file := text.endswith((".yaml", ".yml")):
        places = [place / text for place in (study, Path.cwd()) if place is not None]
    else:
        places = [place / f"{text}.yaml" for place in folders if text and not set(text) & set("/\\\0\n")]
    for path in places:
        if path.is_file():
            return load_partition(path)
    if text == "local":
        return this_machine()
    looked = ", ".join(map(str, places if file else folders)) or "no folder jobs/partitions"
    names = sorted({"local", *(path.stem for place in folders for path in place.glob("*.yaml"))})
    known = f"partition {text!r} is not known{nearest(text, names)}; there are {', '.join(names)} in {looked}"
    none = f"partition {text}: there is no such file ({looked}); name an existing YAML file"
    raise ConfigError(none if file else f"{known}; name one of them or the path of a YAML file")
