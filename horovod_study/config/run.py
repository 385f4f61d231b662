"""How a run communicates, is measured and placed: the options that come with the package's backends and its session.

A workload that uses them has the fields of `RunConfig` beside its own. The fields of a configuration are at once the
options of a command line (`--batch 75`), the keys of a YAML file (`batch: 75`) and the names recorded as `requested` in
a run directory; `options.py` derives the command line from them. What each is to a study it declares itself (see
`roles.py`); no list of them is written manually.
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

from horovod_study.config.roles import TRUTH, Option, Role, declared, named, option, options_of, plain
from horovod_study.config.workload import COMMUNICATING, COMPUTING, MEASURED, Configuration, Workload, packaged, shared
from horovod_study.errors import ConfigError, nearest, refuse
from horovod_study.runtimes import BACKENDS, PLACEMENTS, TRANSPORTS
from horovod_study.text.words import plural

LAPS = ("data", "compute", "forward", "backward", "sync", "update")
"""Of a step. Steps captured in CUDA graphs have compute, where ordinary ones have forward and backward."""
ORDINARY_LAPS = ("data", "forward", "backward", "sync", "update")
TIMER_MODES = ("off", "light", "strict")
DEVICE = Option(
    default="auto",
    help="where to compute; auto takes a GPU when there is one",
    choices=("auto", "cpu", "cuda"),
    heading=COMPUTING,
    roles=Role.APPLIED,
)
_COMMUNICATION_ROLES = Role.COMMUNICATION | Role.SWEEPABLE | Role.CELL | Role.SEVERAL
communicating = partial(option, heading=COMMUNICATING, roles=_COMMUNICATION_ROLES)
of_horovod = partial(communicating, None, over=("horovod/*",))
of_mpi = partial(communicating, None, over=("*/mpi",), tries=(False, True))
of_ddp = partial(communicating, over=("ddp/*",), hooks=True)
clock = partial(option, heading=MEASURED, roles=Role.CLOCK)
guard = partial(option, heading="workers", roles=Role.GUARD)
probe = partial(option, heading=MEASURED, roles=Role.PROBE)


_HELP = {
    "reduction": "average one flat gradient buffer after backward, or each gradient from a hook during backward",
    "horovod_defaults": "leave Horovod's and MPI's own settings alone instead of the shipped ones",
    "horovod_build": "name of the Horovod to load where several are installed side by side (`make setup BUILDS=...`)",
    "cycle_time_ms": "Horovod: milliseconds between two looks of its thread for gradients to reduce",
    "idle_cycle_time_ms": "Horovod: longest sleep of its thread while there is nothing to reduce; 0 is no such sleep",
    "fusion_mb": "Horovod: gradients are joined to messages of at most so many MB (1e6 bytes); 0 joins none",
    "cache_capacity": "Horovod: how many tensors' negotiations are remembered; 0 negotiates each time",
    "hierarchical": "Horovod: all-reduce within hosts first, then between them",
    "groups": "Horovod with hooks: reduce the gradients in so many groups, each when its last one is there",
    "yield_when_idle": "MPI: give up the core while waiting, instead of polling",
    "single_copy": "MPI on one host: read the other worker's memory in one copy (CMA) instead of through shared memory",
    "thread_priority": "who gets the core when gradients arrive: communication threads by realtime or by short time "
    "slices, or whoever computes (off); auto takes what the system permits where it helps",
    "bucket_mb": "hooks of ddp and mpi: gradients are sent in buckets of about so many MB (default 25)",
    "broadcast_buffers": "ddp: send the network's buffers from rank 0 with every step",
    "bucket_view": "ddp: gradients are views of the buckets, not copies",
    "static_graph": "ddp: the same parameters are used in every step",
    "ps_servers": "ps: how many ranks share the parameter server's work",
    "timer_mode": "how steps are timed: light stamps the ends of laps and reads them in bulk, strict also waits for "
    "the device at each, off times the whole window only",
    "steady": "where the timed window begins: where the steps are found to be steady, at the earliest after "
    "warmup_steps, or right there (declared)",
    "system_interval_s": "seconds between two samples of processors, memory, GPU and power, one sampler per host; 0 "
    "is none",
    "disk_full": "what a run does when step rows find no room: end with the message, or go on training without rows",
    "measure_sync": "measure, after the timed window, what the synchronisation is made of (read it with horovod-study "
    "explain)",
    "measure_ablation": "after the timed window, let blocks of steps with and without communication alternate, whose "
    "difference is what communication costs; the model is put back afterwards",
    "profile": "after the timed window, look into some more steps with this profiler; the model is put back afterwards",
    "profile_steps": "how many steps `profile` looks into",
    "timeline_steps": "Horovod: after the timed window, record its timeline over so many more steps",
    "ranges": "name the laps for an outside profiler: NVTX ranges (nsys) or ITT ranges (VTune)",
    "require": "what must be true of the run, or it ends with exit code 2: asked, or facts such as "
    "transport=mpi,path=shared-memory,ranks_per_host=2",
    "start_timeout_s": "seconds to wait at start for all workers before giving up",
    "stall_timeout_s": "seconds without progress after which a run names the rank it waits for, and ends",
}
"""What options of RunConfig are, in one line each."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Configuration):
    """What backends, session and launchers know of a run that was asked for.

    Options that a study may vary are crossed in the order of the fields, and tables have their columns in it.
    """

    HELP: ClassVar[Mapping[str, str]] = _HELP

    # How the workers communicate.
    device: str = declared(DEVICE)
    backend: str = shared("backend")
    transport: str = shared("transport")
    reduction: str = communicating(
        "auto",
        heading="workers",
        roles=_COMMUNICATION_ROLES | Role.APPLIED,
        choices=("auto", "flat", "hooks"),
        over=("*/*",),
        tries=("flat", "hooks"),
    )
    horovod_defaults: bool = communicating(False, attributed=True, over=("horovod/*", "mpi/*", "ps/*"))
    horovod_build: str | None = of_horovod()
    cycle_time_ms: float | None = of_horovod(
        low=0, attributed=True, variable="HOROVOD_CYCLE_TIME", tries=(0.05, 0.2, 1.0, 5.0), words="cycle {} ms"
    )
    idle_cycle_time_ms: float | None = of_horovod(
        low=0, attributed=True, variable="HOROVOD_IDLE_CYCLE_TIME", tries=(0.0, 1.0, 10.0), words="idle cycle {} ms"
    )
    fusion_mb: float | None = of_horovod(
        low=0, variable="HOROVOD_FUSION_THRESHOLD", hooks=True, tries=(0.0, 0.1), words="fusion {} MB"
    )
    cache_capacity: int | None = of_horovod(low=0, variable="HOROVOD_CACHE_CAPACITY", tries=(0,), words="cache {}")
    hierarchical: bool | None = of_horovod(variable="HOROVOD_HIERARCHICAL_ALLREDUCE", several_hosts=True, tries=(True,))
    groups: int | None = of_horovod(low=1, hooks=True, tries=(1, 2, 4), words="{} groups")
    yield_when_idle: bool | None = of_mpi(variable="OMPI_MCA_mpi_yield_when_idle")
    single_copy: bool | None = of_mpi(variable="OMPI_MCA_btl_vader_single_copy_mechanism")
    thread_priority: str = communicating(
        "auto", choices=("auto", "realtime", "slice", "off"), over=("*/gloo",), tries=("off", "slice", "realtime")
    )
    bucket_mb: float | None = communicating(
        None, above=0, over=("ddp/*", "mpi/*", "ps/*"), hooks=True, tries=(0.1, 0.5), words="buckets {} MB"
    )
    broadcast_buffers: bool = of_ddp(False, tries=(True,))
    bucket_view: bool = of_ddp(True, tries=(False,))
    static_graph: bool = of_ddp(False, tries=(True,))
    ps_servers: int = communicating(1, low=1, over=("ps/*",), tries=(2, 4), words="{} servers")
    # How a run is measured.
    timer_mode: str = clock(
        "light",
        choices=TIMER_MODES,
        roles=Role.CLOCK | Role.CELL,
        words=lambda value: "not timed" if value == "off" else f"{value} timers",
    )
    steady: str = clock("found", choices=("found", "declared"), roles=Role.WINDOW)
    system_interval_s: float = clock(1.0, low=0)
    disk_full: str = clock("end", choices=("end", "go-on"))
    measure_sync: bool = probe(False)
    measure_ablation: bool = probe(False)
    profile: str | None = probe(None, choices=("torch", "cprofile", "nsys", "pyspy", "sync-points"))
    profile_steps: int = probe(50, low=1)
    timeline_steps: int = probe(0, low=0)
    ranges: str = probe("off", choices=("off", "nvtx", "itt"))
    # Where it runs, and as which run of which study.
    require: str | None = guard(None, metavar="FACTS", bare="asked")
    placement: str = shared("placement")
    workers_per_node: int | None = shared("workers_per_node")
    start_timeout_s: float = guard(120.0, above=0)
    stall_timeout_s: float = guard(60.0, above=0)
    study: str = shared("study")
    partition: str = shared("partition")
    repeat: int = shared("repeat")

    @property
    def loss_scaled(self) -> bool:
        """Whether the loss is scaled, so that steps may be skipped."""
        return False

    def unfit(self) -> Iterator[str]:
        """Yield in words what does not fit together, and what to do about it."""
        yield from super().unfit()
        try:
            if self.require is not None:
                requirements(self.require, self.workload.options)
        except ConfigError as error:
            yield f"{error}".removeprefix("run: ")
        if self.backend in ("mpi", "ps") and self.transport not in ("auto", "mpi"):
            yield f"backend {self.backend} works over mpi only, but transport is {self.transport!r}"


OPTIONS = options_of(RunConfig)
COMMUNICATION = named(OPTIONS, Role.COMMUNICATION)
"""How the workers communicate, besides backend and transport; `Option.matters` says which have an effect on what."""


# ------------------------------------------------------------------------------- what a run must be, --require
#
#     asked                      whatever was asked for explicitly is what is in effect
#     transport=mpi              a fact of the run has this value
#     asked,path=shared-memory   several of them

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


def requirements(text: str, options: Mapping[str, Option]) -> tuple[Requirement, ...]:
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
    required: Iterable[Requirement],
    *,
    asked: Iterable[Requirement],
    effective: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> list[str]:
    """Return one text per requirement that the run does not meet: the fact, what is required, what was found and where.

    `effective` and `environment` are those of run.json; `asked` is what the requirement `asked` stands for.
    """
    texts, wanted = [], dict[tuple[str, Any], Requirement]()
    for each in required:
        for one in asked if each.name == ASKED else (each,):
            wanted.setdefault(one[:2], one)
    for one in wanted.values():
        places = _found(one.name, effective, environment)
        wrong = [(where, found) for where, found in places if not _meets(one, found)]
        if wrong:
            everywhere = len(wrong) == len(places) and len({plain(found) for _, found in wrong}) == 1
            where, found = wrong[0]
            told = f"{one.name} is {plain(found)}" + f" at {where}" * (where != "" and not everywhere)
            if one.name == "cores":
                told = f"{where}: {found}"
            elif one.name == "path" and not found:
                unknown = f"the path is not known ({effective['path_reason']})"
                told = unknown if found is None else "one worker moves nothing"
            elif found is None:
                told = f"{one.name} is nothing that {effective['backend']} over {effective['transport']} has or tells"
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


# ---------------------------------------------------------------------------------------- cells and their places


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where the workers of one cell sit: on how many nodes of which partition, and how many on each."""

    partition: str = "local"
    workers: int = 1
    workers_per_node: int = 1  # at most
    layout: str = "fill"  # one of PLACEMENTS
    hosts: tuple[str, ...] = ()  # of layout list: the names of the nodes, in the order of the ranks

    def __post_init__(self) -> None:
        named = f"{len(self.hosts)} are named: {', '.join(self.hosts)}"
        refuse(
            "placement",
            (min(self.workers, self.workers_per_node) < 1, "workers and workers_per_node are both at least 1"),
            (self.layout not in PLACEMENTS, f"{self.layout!r}; allowed: {', '.join(PLACEMENTS)}"),
            (bool(self.hosts) != (self.layout == "list"), "list needs the names of its nodes, and only list has any"),
        )
        asked = f"{self.workers} workers at {self.workers_per_node} per node need {self.nodes} nodes, but {named}"
        refuse("placement", (self.hosts and len(self.hosts) < self.nodes, asked))

    @property
    def nodes(self) -> int:
        """Number of nodes used."""
        return math.ceil(self.workers / self.workers_per_node)

    @property
    def per_node(self) -> tuple[int, ...]:
        """Workers on each node, in the order of the ranks; together `workers`."""
        if self.layout == "spread":
            least, more = divmod(self.workers, self.nodes)
            return (least + 1,) * more + (least,) * (self.nodes - more)
        full, rest = divmod(self.workers, self.workers_per_node)
        return (self.workers_per_node,) * full + ((rest,) if rest else ())

    def meaning(self) -> dict[str, Any]:
        """Return the fields as plain values: without those that came later and have their default."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("partition", "workers", "workers_per_node")}
        if self.layout != "fill":
            values["layout"] = self.layout
        return values | ({"hosts": list(self.hosts)} if self.hosts else {})


def misplaced(config: Configuration, hosts: Sequence[str]) -> str:
    """Say how ranks on `hosts`, one name per rank, sit otherwise than the configuration asks; "" where they do not."""
    counts = Counter(hosts)  # in the order of the ranks
    most, spread = config.workers_per_node, config.placement == "spread"
    if most is None:
        right = not spread or max(counts.values()) - min(counts.values()) <= 1
        asked, rule = "--placement spread", "equally many on each node, but for one"
    else:
        layout = "spread" if spread else "fill"
        wanted = Placement(workers=len(hosts), workers_per_node=most, layout=layout).per_node
        right = tuple(sorted(counts.values(), reverse=True)) == wanted  # which node comes first is nobody's wish
        asked = f"--workers-per-node {most}{' and --placement spread' if spread else ''}"
        rule = "+".join(map(str, wanted[:4])) + "+..." * (len(wanted) > 4) + f" on {plural(len(wanted), 'node')}"
    if right:
        return ""
    (first, count), *others = counts.items()
    where = [f"{count} worker{'s are' if count > 1 else ' is'} on {first}", *(f"{n} on {host}" for host, n in others)]
    told = " and ".join(where) if len(where) <= 4 else f"{', '.join(where[:3])} and so on over {len(where)} nodes"
    return f"{told}, but {asked} means {rule}; place them so when launching, or leave the option out"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study: a configuration, a runtime and a placement, done `repeat` times.

    `identity`: digest of the code and of the environment it is run with, "" where these do not distinguish cells.
    """

    config: Configuration
    runtime: str
    placement: Placement
    identity: str = ""
    arm: str = ""  # the side of a comparison, "A" or "B", that it is a run of
    label: str = field(default="", compare=False)  # for people: what it is a repeat of, e.g. "horovod/mpi, 2 workers"

    @cached_property
    def key(self) -> str:
        """Readable and unique name of the cell's directory; equal for equal content, repeats apart."""
        workload, config = self.config.workload, self.config
        content = {"config": config.meaning(), "runtime": self.runtime, "placement": self.placement.meaning()}
        content |= {"identity": self.identity} if self.identity else {}
        content |= {"workload": workload.identity} if workload.identity else {}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
        name, batch = self.runtime.replace("/", "-"), f"-b{config.batch}"
        if workload.starts_ranks:  # over what, nobody knows, nor a batch that it was not told
            name, batch = "command", batch if config.batch != workload.options["batch"].default else ""
        name = f"{self.arm}-{name}" if self.arm else name
        return f"{name}-{self.placement.workers}w{batch}-r{config.repeat}-{digest}"

    @property
    def name(self) -> str:
        """Its name for people; repeats are counted from 1."""
        return f"{self.label}, repeat {self.config.repeat + 1}"

    def repeated(self, repeat: int) -> "Cell":
        """Return another repeat of a cell that is the first one."""
        if not repeat:
            return self
        # Repeats have seeds of their own: the same start again would hide how much learning scatters.
        return replace(self, config=self.config.changed(repeat=repeat, seed=self.config.seed + repeat))


def local_cell(
    runtime: str, values: Mapping[str, Any], *, workers: int, source: str, workload: Workload | None = None
) -> Cell:
    """Return the cell of `workers` over `runtime` on this machine; ConfigError when its values do not fit together."""
    backend, _, transport = runtime.partition("/")
    values = {**values, "backend": backend, "transport": transport or "none"}
    config = (workload or packaged()).configure(values, source=source)
    placement = Placement(partition=config.partition, workers=workers, workers_per_node=workers)
    return Cell(config=config, runtime=runtime, placement=placement)


def available_cores() -> int:
    """Cores this process may run on (a container or a batch system may allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
