"""What a run must be, `--require`: read from its text, and compared with what the run found itself to be.

    asked                      whatever was asked for explicitly is what is in effect
    transport=mpi              a fact of the run has this value
    asked,path=shared-memory   several of them

Both halves are pure: `parse` knows only names and values, `unmet` only what is recorded in run.json.
"""

import math
from collections.abc import Iterable, Mapping
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
    for part in map(str.strip, text.split(",")):
        if part == ASKED:
            found.append(Requirement(name=ASKED, value=True, text=ASKED))
            continue
        name, _, value = (piece.strip() for piece in part.partition("="))
        name, way = name.replace("-", "_"), value.partition(":")[0]
        if (fact := facts.get(name)) is None:
            allowed = f"{ASKED}, or name=value with {', '.join(facts)}"
            why = f"names {name!r}{nearest(name, (ASKED, *facts))}; allowed: {allowed}"
        elif not value:
            text_like = {"path": "shared-memory", "device": "cpu"}.get(name, "NAME")
            example = {bool: "true", int: "2", float: "0.5", str: text_like}[fact.kind]
            why = f"has {part!r} without a value; write e.g. {name}={fact.choices[-1] if fact.choices else example}"
        elif name == "path" and way not in PATHS:
            allowed = f"{', '.join(PATHS)}, with :NAME for one interface or device"
            why = f"has path {value!r}{nearest(way, PATHS)}; allowed: {allowed}"
        else:
            known = TRUTH.get(value.lower(), value) if fact.kind is bool else value
            known = accept(fact.form, known, "run: require", name=name)
            others = [each.text for each in found if each.name == name != "path" and each.value != known]
            found.append(Requirement(name=name, value=known, text=f"{name}={value}"))
            if not others:
                continue
            why = f"has both {others[0]} and {found[-1].text}; give one of them"
        raise ConfigError(f"run: require {why}")
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
        places = _found(one.name, effective, environment)
        wrong = [(where, found) for where, found in places if not _meets(one, found)]
        if wrong:
            everywhere = len(wrong) == len(places) and len({plain(found) for _, found in wrong}) == 1
            where, found = wrong[0]
            told = _told(one.name, found, effective) + (
                f" at {where}" if where and found is not None and not everywhere else ""
            )
            if one.name == "cores":
                told = f"{where}: {found}"
            texts.append(f"{one.text} is required, but {told}")
    return texts


def _found(name: str, effective: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return where a fact was found, "" for the whole run, and its value there."""
    ranks = effective["ranks"]
    if name in ("backend", "transport", "reduction", "workers", "nodes", "path"):
        return [("", effective[name])]
    if name == "ranks_per_host":
        return list(zip(dict.fromkeys(rank["host"] for rank in ranks), effective["ranks_per_host"], strict=True))
    if name == "mpi":
        library = effective["settings"].get("mpi_library", {}).get("value")
        return [("", " ".join(text for text in (environment["mpi"], library) if text) or None)]
    found = []
    for number, rank in enumerate(ranks):
        if name == "cores":  # who else may run on them; None when nobody may
            others = ((at, sorted({*rank["cores"]} & {*each["cores"]}), each["host"]) for at, each in enumerate(ranks))
            shared = ((at, cores) for at, cores, host in others if at != number and host == rank["host"] and cores)
            value = next((f"core {cores[0]} is also open to rank {at}" for at, cores in shared), None)
        elif name == "device":
            value = f"{rank['device']} ({rank['gpu']['name']})" if rank.get("gpu") else str(rank["device"])
        else:
            value = rank[name] if name in ("threads", "lr") else rank["communication"].get(name)
        found.append((f"rank {number} on {rank['host']}", value))
    return found


def _meets(one: Requirement, found: Any) -> bool:
    if one.name == "cores" or found is None:
        return one.name == "cores" and found is None
    if one.name == "path":
        return any(_same_way(one.value, way) for way in found)
    if one.name in ("device", "mpi"):
        required, there = ("".join(c for c in text.lower() if c.isalnum() or c in ".:") for text in (one.value, found))
        return required in there
    if isinstance(one.value, float):
        return math.isclose(one.value, found, rel_tol=1e-6, abs_tol=1e-12)
    return bool(one.value == found)


def _same_way(wanted: str, way: str) -> bool:
    """Return whether the way that bytes took, such as tcp:eth0 or shared memory, is the one that is wanted."""
    kind, _, name = wanted.partition(":")
    kind = {"socket": "tcp", "nvlink/p2p": "p2p"}.get(kind, kind)
    found, _, found_name = way.partition(":")
    if kind == "memory":
        return found in ("shared memory", "memory")
    return kind.replace("-", " ") == found and (not name or name == found_name)


def _told(name: str, found: Any, effective: Mapping[str, Any]) -> str:
    """Say what was found instead."""
    if name == "path" and not found:
        return (
            "one worker moves nothing" if found is not None else f"the path is not known ({effective['path_reason']})"
        )
    if found is None:
        return f"{name} is nothing that {effective['backend']} over {effective['transport']} has or tells"
    return f"{name} is {plain(found)}"
