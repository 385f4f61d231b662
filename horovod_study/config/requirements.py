"""What a run must be, `--require`: read from its text, and compared with what the run found itself to be.

    asked                      whatever was asked for explicitly is what is in effect
    transport=mpi              a fact of the run has this value
    asked,path=shared-memory   several of them

Both halves are pure: `parse` knows only names and values, `unmet` only what is recorded in run.json.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from horovod_study.config.roles import TRUTH, Option, Role, named, plain
from horovod_study.config.workload import Configuration
from horovod_study.errors import ConfigError, nearest
from horovod_study.runtimes import BACKENDS, TRANSPORTS

ASKED = "asked"
PATHS = ("shared-memory", "memory", "tcp", "socket", "infiniband", "roce", "p2p", "nvlink/p2p", "ofi")
"""What `path` may be; `tcp:eth0` names the interface too, `infiniband:mlx5_0` the device. memory: shared memory, or
copies from process to process, which cannot always be distinguished; p2p: from GPU to GPU, over NVLink or PCIe."""


_OWN = {
    "backend": Option(choices=BACKENDS),
    "transport": Option(choices=TRANSPORTS),
    "reduction": Option(choices=("none", "flat", "hooks")),
    "path": Option(),
    **dict.fromkeys(("workers", "nodes", "ranks_per_host", "threads"), Option(kind=int, above=0)),
    "device": Option(),
    "lr": Option(kind=float, above=0),
    "cores": Option(choices=("own",)),
    "mpi": Option(),
}


def facts_of(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return the name of every fact that can be required of runs with these options -> what its value may be."""
    return {**_OWN, **{name: options[name] for name in named(options, Role.COMMUNICATION) if name not in _OWN}}


class Requirement(NamedTuple):
    """One fact and the value it must have; `text` is how it was written."""

    name: str
    value: Any
    text: str


def parse(text: str, options: Mapping[str, Option]) -> tuple[Requirement, ...]:
    """Return the requirements written in `text` of runs with these `options`, `asked` as one with the name asked.

    Raises ConfigError for an unknown name, a value that cannot be, or a name with two values (path may have several:
    within a host and between hosts).
    """
    from horovod_study.config.doors import accept  # pydantic, which --help does without

    facts = facts_of(options)
    found: list[Requirement] = []
    for part in text.split(","):
        part = part.strip()
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if part == ASKED:
            found.append(Requirement(name=ASKED, value=True, text=ASKED))
            continue
        name = name.replace("-", "_")
        if name not in facts:
            raise ConfigError(
                f"run: require names {name!r}{nearest(name, (ASKED, *facts))}; allowed: {ASKED}, or name=value with "
                f"{', '.join(facts)}"
            )
        if not equals or not value:
            named, fact = {"path": "shared-memory", "device": "cpu"}.get(name, "NAME"), facts[name]
            example = {bool: "true", int: "2", float: "0.5", str: named}[fact.kind]
            example = str(fact.choices[-1]) if fact.choices else example
            raise ConfigError(f"run: require has {part!r} without a value; write e.g. {name}={example}")
        if name == "path" and value.partition(":")[0] not in PATHS:
            kind = value.partition(":")[0]
            raise ConfigError(
                f"run: require has path {value!r}{nearest(kind, PATHS)}; allowed: {', '.join(PATHS)}, with :NAME for "
                "one interface or device"
            )
        known = TRUTH.get(value.lower(), value) if facts[name].kind is bool else value
        known = accept(facts[name].form, known, "run: require", name=name)
        found.append(Requirement(name=name, value=known, text=f"{name}={value}"))
    for one in found:
        other = next((each for each in found if each.name == one.name and each.value != one.value), None)
        if other and one.name != "path":
            raise ConfigError(f"run: require has both {one.text} and {other.text}; give one of them")
    return tuple(dict.fromkeys(found))


def asked_for(config: Configuration, *, lr: float) -> tuple[Requirement, ...]:
    """Return what `config` asks for explicitly, as requirements; `lr` is the rate it asks for with all its workers."""
    options = config.workload.options
    names = ("backend", "transport", "device", *config.workload.communication)
    given = {name: getattr(config, name) for name in names if getattr(config, name) != options[name].default}
    facts = {**given, "threads": config.threads, "lr": lr}
    return tuple(Requirement(name=name, value=value, text=f"{name}={plain(value)}") for name, value in facts.items())


def unmet(
    requirements: Iterable[Requirement],
    *,
    asked: Iterable[Requirement],
    effective: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> list[str]:
    """Return one text per requirement that the run does not meet: the fact, what is required, what was found and where.

    `effective` and `environment` are those of run.json; `asked` is what the requirement `asked` stands for.
    """
    texts, wanted = [], dict[tuple[str, Any], Requirement]()
    for each in requirements:
        for one in asked if each.name == ASKED else (each,):
            wanted.setdefault(one[:2], one)
    for one in wanted.values():
        wrong = [(where, found) for where, found in _found(one.name, effective, environment) if not _meets(one, found)]
        if wrong:
            texts.append(f"{one.text} is required, but {_told(one.name, wrong, effective)}")
    return texts


def _found(name: str, effective: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return where a fact was found, "" for the whole run, and its value there."""
    ranks = effective["ranks"]
    if name in ("backend", "transport", "reduction", "workers", "nodes", "path"):
        return [("", effective[name])]
    if name == "ranks_per_host":
        hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
        return [(host, count) for host, count in zip(hosts, effective["ranks_per_host"], strict=True)]
    if name == "mpi":
        library = effective["settings"].get("mpi_library", {}).get("value")
        return [("", " ".join(text for text in (environment["mpi"], library) if text) or None)]
    if name == "cores":
        return [(f"rank {number} on {rank['host']}", _company(number, ranks)) for number, rank in enumerate(ranks)]
    places = [f"rank {number} on {rank['host']}" for number, rank in enumerate(ranks)]
    if name in ("threads", "device", "lr"):
        values = [rank[name] if name != "device" else _device(rank) for rank in ranks]
    else:
        values = [rank["communication"].get(name) for rank in ranks]
    return list(zip(places, values, strict=True))


def _company(number: int, ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return who else may run on the cores of one rank; None when nobody may."""
    own = ranks[number]
    for other, rank in enumerate(ranks):
        shared = sorted(set(own["cores"]) & set(rank["cores"]))
        if other != number and rank["host"] == own["host"] and shared:
            return f"core {shared[0]} is also open to rank {other}"
    return None


def _device(rank: Mapping[str, Any]) -> str:
    return f"{rank['device']} ({rank['gpu']['name']})" if rank.get("gpu") else str(rank["device"])


def _meets(one: Requirement, found: Any) -> bool:
    if one.name == "cores":
        return found is None
    if found is None:
        return False
    if one.name == "path":
        return any(_same_way(one.value, way) for way in found)
    if one.name in ("device", "mpi"):
        return _bare(one.value) in _bare(found)
    if isinstance(one.value, float):
        return math.isclose(one.value, found, rel_tol=1e-6, abs_tol=1e-12)
    return bool(one.value == found)


def _bare(text: str) -> str:
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter in ".:")


def _same_way(wanted: str, way: str) -> bool:
    """Return whether the way that bytes took, such as tcp:eth0 or shared memory, is the one that is wanted."""
    kind, _, name = wanted.partition(":")
    kind = {"socket": "tcp", "nvlink/p2p": "p2p"}.get(kind, kind)
    found, _, found_name = way.partition(":")
    if kind == "memory":
        return found in ("shared memory", "memory")
    return kind.replace("-", " ") == found and (not name or name == found_name)


def _told(name: str, wrong: Sequence[tuple[str, Any]], effective: Mapping[str, Any]) -> str:
    """Say what was found instead, once where it is the same everywhere."""
    where, found = wrong[0]
    if name == "cores":
        return f"{where}: {found}"
    if name == "path" and found is None:
        return f"the path is not known ({effective['path_reason']})"
    if name == "path" and not found:
        return "one worker moves nothing"
    if found is None:
        return f"{name} is nothing that {effective['backend']} over {effective['transport']} has or tells"
    same = len({plain(value) for _, value in wrong}) == 1
    count = len(effective["ranks_per_host"] if name == "ranks_per_host" else effective["ranks"])
    everywhere = same and len(wrong) == count
    text = f"{name} is {plain(found)}"
    return text if not where or everywhere else f"{text} at {where}"
