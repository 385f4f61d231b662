"""The file of a study: what is fixed, what is varied, on which partitions, how often; and the cells that come of it.

`experiments/` holds examples, and experiments/README.md explains every key. `run -- COMMAND` writes one.
"""

import itertools
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from horovod_study.analysis.paired import MOST_LAUNCHES
from horovod_study.cluster import identity
from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import Form, accept
from horovod_study.config.partitions import Host, HostName, Line, Partition, find_partition, this_machine
from horovod_study.config.roles import Option, Role, check_field, plain
from horovod_study.config.run import Cell, Placement, available_cores
from horovod_study.config.scripted import PLACE, PLACED, check_rate, scripted
from horovod_study.config.workload import Configuration, Workload, find_workload
from horovod_study.config.yaml_keys import listed, mapping, one_of
from horovod_study.errors import ConfigError, require_keys
from horovod_study.files import write_file, writing
from horovod_study.recording.said import said_workers
from horovod_study.runtimes import BACKENDS, PLACEMENTS, RUNTIMES, TRANSPORTS
from horovod_study.studies.sweep import Asked, StudyCells
from horovod_study.text.progress import say
from horovod_study.text.words import plural

_PLACING = ("workers", "nodes", "workers_per_node", "placement")
_QUESTION = re.compile(r"(speedup|throughput|efficiency) at ([0-9]{1,7})")
_BASELINES = ("plain", "wrapped")
_MAX_CELLS = 200_000
"""More than anybody runs, and few enough to be listed: a study that asks for more has a typing error in it."""
MAX_WORKERS = 100_000
_MAX_NAME_BYTES = 200  # file systems take 255
_AS_THEY_ARE = {  # keys of the file
    each.name: each
    for each in (
        Option(name="account"),
        Option(name="repeats", kind=int, default=3, low=1),
        Option(name="seed", kind=int, default=1, low=0),
        Option(name="timeout_s", kind=float, default=900.0, low=1),
        Option(name="turns", kind=bool, default=False),
        Option(name="workload"),
        Option(name="scaling", choices=("strong", "weak")),
    )
}
_SWEPT = {  # keys of the sweep, beside options of the run
    **{name: Option(name=name, kind=int, default=1, low=1) for name in _PLACING[:3]},
    "placement": Option(name="placement", default="fill", choices=PLACEMENTS),
    "runtime": Option(name="runtime", default="", choices=tuple(RUNTIMES)),
    "backend": Option(name="backend", default="", choices=BACKENDS),
    "transport": Option(name="transport", default="", choices=TRANSPORTS[1:]),
    "global_batch": Option(name="global_batch", kind=int, default=1, low=1),
}
_BUDGET = {name: Option(name=name, kind=float, default=1.0, above=0) for name in ("gpu_hours", "core_hours", "hours")}
_TARGET = Option(name="targets", kind=float, default=1.0, above=0)
_FILLED = (*(name for name in PLACED if name != "global_batch"), "seed")  # places of a command that is typed
_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")
STUDY_KEYS = (
    *("study", "partition", "hosts", "run", "sweep", "baselines", "precision", "question", "targets"),
    *("budget", "script", "command", "rate", *_AS_THEY_ARE),
)


@cache
def _usual(workload: Workload, runtime: str, *, alone: bool = False) -> Mapping[str, Any]:
    """Return options without effect on a runtime, or on one plain worker, at their defaults: one run serves all."""
    options, own = workload.options, workload.communication
    names = [name for name in own if not options[name].matters(runtime)]
    if alone:
        names = [each for each in workload.sweepable if options[each].roles & Role.SEVERAL and each not in own]
    return {name: options[name].default for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyConfig(Asked):
    """A study: what is kept fixed (`run`), what is varied (`sweep`), against which baselines, how often, and where."""

    run: Configuration
    workers: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ("horovod/mpi",)
    varied: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # options of a run or global_batch, crossed
    zipped: tuple[tuple[Mapping[str, Any], ...], ...] = ()  # each: values that go together, crossed with the rest
    nodes: tuple[int, ...] = ()  # full ones, instead of workers; or those that workers are spread over
    workers_per_node: tuple[int, ...] = ()  # none: as many as a node takes
    placements: tuple[str, ...] = ("fill",)
    hosts: tuple[str, ...] = ()  # for placement list
    baselines: tuple[str, ...] = _BASELINES
    repeats: int = 3
    targets: tuple[float, ...] = ()  # test MSEs to which the time is compared; none: chosen from the runs
    question: str = ""  # such as "speedup at 64"; what `predict --next` is about
    identity: Mapping[str, str] = field(default_factory=dict)  # partition -> digest of code and environment there
    _cells: list[Cell] = field(default_factory=list, init=False, repr=False, compare=False)  # once they were asked for

    def __post_init__(self) -> None:
        if not self.partitions:
            object.__setattr__(self, "partitions", {self.run.partition: this_machine(self.run.partition)})

    @property
    def workload(self) -> Workload:
        """What its cells run."""
        return self.run.workload

    @property
    def asked_workers(self) -> int | None:
        """The worker count that the question is about; None without a question."""
        found = _QUESTION.fullmatch(self.question)
        return int(found[2]) if found else None

    @property
    def scaling(self) -> str:
        """`strong` where the batch of all workers together is given, else `weak`."""
        return "strong" if any("global_batch" in axis[0] for axis in self._axes()) else "weak"

    def cells(self) -> list[Cell]:
        """Every run of the study, baselines included, each once, in a stable order (blocks come from the ledger)."""
        if not self._cells:
            self._refuse_too_many(math.prod(map(len, self._axes())) * len(self.partitions), "combinations of values")
            first = dict.fromkeys(run for partition in self.partitions.values() for run in self._wanted(partition))
            self._refuse_too_many(len(first) * self.repeats, "cells")
            told, layouts = self.told(), self._layouts()
            cells = []
            for config, runtime, placement in first:
                label = self._label(config, runtime, placement, told, layouts)
                code = self.identity.get(placement.partition, "")
                cells.append(Cell(config=config, runtime=runtime, placement=placement, identity=code, label=label))
            self._cells.extend(cell.repeated(repeat) for repeat in range(self.repeats) for cell in cells)
        return list(self._cells)

    def wanted(self) -> tuple[tuple[str, str], ...]:
        """Return (cell, baseline) by label, for every cell that has a one-worker baseline in its partition.

        The plain one, else the wrapped one; of several, the one that has most of the study's options in common.
        """
        told = self.told()

        def like(cell: Cell, other: Cell) -> tuple[bool, int]:
            same = [getattr(other.config, name, None) == getattr(cell.config, name, None) for name in told]
            return other.runtime == "serial", sum(same)

        first = [cell for cell in self.cells() if cell.config.repeat == 0]
        alone = [cell for cell in first if cell.placement.workers == 1]
        found = dict[tuple[str, str], None]()
        for cell in first:
            where, runtimes = cell.placement.partition, ("serial", cell.runtime)
            ones = [each for each in alone if each.placement.partition == where and each.runtime in runtimes]
            ones = [each for each in ones if each is not cell]
            if cell.runtime != "serial" and ones:
                found[cell.label, max(ones, key=lambda other: like(cell, other)).label] = None
        return tuple(pair for pair in found if pair[0] != pair[1])

    def _label(
        self, config: Configuration, runtime: str, placement: Placement, told: Iterable[str], layouts: Collection[str]
    ) -> str:
        """Name what a cell is a repeat of: runtime, workers, and whatever else the study varies."""
        parts = [plural(placement.workers, "worker")]
        if not self.workload.starts_ranks or len(self.runtimes) > 1:  # else it is a guess of what the command uses
            parts.insert(0, runtime)
        if len(self.partitions) > 1:
            parts.insert(0, placement.partition)
        if placement.nodes > 1:
            parts.append(f"{placement.nodes} nodes")
        if placement.workers > 1 and len(layouts) > 1:
            parts.append(config.placement)
        if placement.workers > 1 and config.workers_per_node is not None:
            parts.append(f"{config.workers_per_node} per node")
        for name in told:
            if self.workload.options[name].matters(runtime):
                parts.append(f"{name} {plain(getattr(config, name))}")
        return ", ".join(parts)

    def told(self) -> tuple[str, ...]:
        """Return the options of a run that differ between its cells, beside runtime, placement and repeat."""
        strong = ["batch"] if self.scaling == "strong" else []
        names = [name for axis in self._axes() for name in axis[0] if name not in _SWEPT]
        return tuple(dict.fromkeys([*strong, *names]))

    def until(self, precision: float) -> "StudyConfig":
        """Return this study with an aim: its cells alternate, in as many launches as the aim may take."""
        return replace(self, precision=precision, turns=True, repeats=max(self.repeats, MOST_LAUNCHES))

    def _layouts(self) -> set[str]:
        zipped = {row["placement"] for axis in self.zipped for row in axis if "placement" in row}
        return zipped or set(self.placements)

    def _wanted(self, partition: Partition) -> Iterator[tuple[Configuration, str, Placement]]:
        """Yield the first repeat of every run on one partition; what cannot be placed there is a ConfigError."""
        run, workload = self.run.changed(partition=partition.name), self.workload
        shapes: dict[tuple[Any, ...], list[tuple[Placement, dict[str, Any]]]] = {}
        alone: list[tuple[Placement, dict[str, Any]]] = []
        for chosen in itertools.product(*self._axes()):
            values = {name: value for part in chosen for name, value in part.items()}
            variant = run.changed(**{name: value for name, value in values.items() if name in workload.sweepable})
            placing = tuple(values.get(name) for name in _PLACING)
            if placing not in shapes:
                shapes[placing] = self._shapes(partition, dict(zip(_PLACING, placing, strict=True)))
            runs: list[tuple[str, Placement, Mapping[str, Any]]] = []
            if "plain" in self.baselines:
                runs.append(("serial", self._alone(partition), _usual(workload, "serial", alone=True)))
            for runtime in (values["runtime"],) if "runtime" in values else self.runtimes:
                for placement, options in shapes[placing]:
                    if runtime != "serial" and placement.workers == 1:
                        # Where one worker sits means nothing: one run of it serves all placements.
                        alone = alone or [(placement, options)]
                        runs.append((runtime, *alone[0]))
                    elif runtime != "serial":
                        runs.append((runtime, placement, options))
                    elif placement.workers == 1:
                        runs.append((runtime, self._alone(partition), {}))
            for runtime, placement, told in runs:
                backend, _, transport = runtime.partition("/")
                batch = self._batch(values["global_batch"], placement) if "global_batch" in values else {}
                asked = {**_usual(workload, runtime), **batch, **told, "repeat": 0, "study": self.name}
                config = variant.changed(**asked, backend=backend, transport=transport or "none")
                yield config, runtime, placement

    def _axes(self) -> list[Sequence[Mapping[str, Any]]]:
        """Return what is crossed but placements and runtimes: each axis is a list of values that go together."""
        return [*([{name: value} for value in values] for name, values in self.varied.items()), *self.zipped]

    def _refuse_too_many(self, count: int, what: str) -> None:
        if count > _MAX_CELLS:
            raise ConfigError(
                f"{self.here}: these are {count} {what}; a study may have {_MAX_CELLS}: lower repeats, or vary less "
                "under sweep"
            )

    def _batch(self, together: int, placement: Placement) -> dict[str, int]:
        """Return what each worker has of the batch of all of them together."""
        if together % placement.workers:
            raise ConfigError(
                f"{self.here}: global_batch {together} cannot be divided among {placement.workers} workers; give "
                "worker counts that divide it, or another global_batch"
            )
        return {"batch": together // placement.workers}

    def _shapes(self, partition: Partition, given: Mapping[str, Any]) -> list[tuple[Placement, dict[str, Any]]]:
        """Return the placements on a partition with the options that tell the trainer of them, few workers first."""
        own: dict[str, Sequence[Any]] = {"workers": self.workers, "nodes": self.nodes, "placement": self.placements}
        own["workers_per_node"] = self.workers_per_node or (None,)
        own |= {name: (value,) for name, value in given.items() if value is not None}
        nodes, shapes = own["nodes"], []
        for layout, per_node in itertools.product(own["placement"], own["workers_per_node"]):
            counts = {(count * (per_node or partition.slots_per_node), count) for count in nodes}
            if own["workers"]:
                over = nodes if nodes and layout == "spread" else (None,)
                counts = {(count, each) for each in over for count in own["workers"]}
            if "wrapped" in self.baselines:
                counts.add((1, None))
            options = {"placement": layout, "workers_per_node": per_node}
            # Few nodes first; a set has no order of its own.
            for count, each in sorted(counts, key=lambda pair: (pair[0], pair[1] or 0)):
                shapes.append((self._placed(partition, count, each, per_node, layout), options))
        return sorted(shapes, key=lambda shape: shape[0].workers)

    def _placed(
        self, partition: Partition, workers: int, over: int | None, per_node: int | None, layout: str
    ) -> Placement:
        """Return where `workers` go, on `over` nodes if that is given, at most `per_node` (or a full node) on each."""
        here, name = f"{self.here}: sweep", partition.name
        slots = partition.slots_per_node
        if workers > MAX_WORKERS:
            raise ConfigError(f"{here}: {workers} workers are asked for; at most {MAX_WORKERS} can be planned")
        if partition.scheduler == "local":
            needed = over or (1 if per_node is None else math.ceil(workers / per_node))
            if layout == "list" or needed > 1 < workers:
                what = "placement list" if layout == "list" else f"{workers} workers on {needed} nodes"
                what += f" cannot be had on partition {name}, which is one machine"
                raise ConfigError(f"{here}: {what}; name a partition with more nodes")
            return Placement(partition=name, workers=workers, workers_per_node=workers)
        most = per_node or slots
        if layout == "spread" and per_node is None:
            if workers > 1 and over is None and partition.nodes is None:
                wanted = "placement spread needs to know over how many nodes; give nodes or workers_per_node"
                raise ConfigError(f"{here}: {wanted}")
            most = math.ceil(workers / (over or partition.nodes or workers))
        if most > slots:
            raise ConfigError(
                f"{here}: {most} workers per node are asked for, but a node of partition {name} takes {slots} "
                f"({partition.node()}); lower workers_per_node, or raise nodes"
            )
        needed = math.ceil(workers / most)
        listed = layout == "list"
        room = (
            f"partition {name} has {partition.nodes} with room for {partition.capacity} workers; lower workers or nodes"
        )
        names = f"hosts names {len(self.hosts)}: {', '.join(self.hosts)}; name more, or lower workers"
        for offered, what in ((partition.nodes, room), (len(self.hosts) if listed else None, names)):
            if offered is not None and needed > offered:
                raise ConfigError(f"{here}: {workers} workers need {needed} nodes at {most} each, but {what}")
        hosts = self.hosts[:needed] if listed else ()
        most = min(most, workers)
        return Placement(partition=name, workers=workers, workers_per_node=most, layout=layout, hosts=hosts)

    def _alone(self, partition: Partition) -> Placement:
        """Return where a plain worker goes: any node, or the first named one where all others go to named ones."""
        if self.hosts and self._layouts() == {"list"}:
            return Placement(partition=partition.name, layout="list", hosts=self.hosts[:1])
        return Placement(partition=partition.name)


def on_hosts(study: StudyConfig, hosts: Sequence[Host]) -> StudyConfig:
    """Return `study` with its workers on `hosts`, over ssh, in place of where its partitions have them."""
    slots = min(host.slots for host in hosts)
    partitions = {}
    for name, each in study.partitions.items():
        cores = max(each.cores_per_node, slots * each.cores_per_worker)
        there: dict[str, Any] = {"scheduler": "ssh", "hosts": tuple(hosts), "nodes": len(hosts)}
        partitions[name] = each.model_copy(update={**there, "cores_per_node": cores})
    return replace(study, partitions=partitions)


def sweep_of(study: StudyConfig, runs_dir: Path) -> StudyCells:
    """Return the cells of a study, to be run below `runs_dir`, and what is asked of them."""
    told: dict[str, Any] = {each.name: getattr(study, each.name) for each in fields(Asked)}
    told |= {"varied": study.told(), "wanted": () if study.precision is None else study.wanted()}
    directory, cells = runs_dir / study.name, tuple(study.cells())
    return StudyCells(**told, directory=directory, cells=cells, scaling=study.scaling)


def sweep_keys(workload: Workload) -> tuple[str, ...]:
    """Return what a study may vary."""
    return (*_SWEPT, *workload.sweepable, "zip")


class _Account(Form):
    account: Line | None


def load_study(path: Path) -> StudyConfig:
    """Read a study file; whatever is wrong with it is a ConfigError naming the file, the key and the value."""
    content, source = load_yaml(path), str(path)
    accept(_Account, {"account": content.get("account")}, source)
    require_keys(source, content, STUDY_KEYS)
    for key in ("study", "sweep"):
        if key not in content:
            raise ConfigError(f"{source}: key {key!r} is missing; a study needs study and sweep")
    precision = _precision(source, content.get("precision"))
    usual = {} if precision is None else {"turns": True, "repeats": MOST_LAUNCHES}
    given = {
        name: each.check(source, content.get(name, usual.get(name, each.default)))
        for name, each in _AS_THEY_ARE.items()
    }
    if precision is not None and not given["turns"]:
        raise ConfigError(f"{source}: precision is reached in turns; leave turns out, or set it to yes")
    fixed, sweep = (dict(mapping(source, key, content.get(key))) for key in ("run", "sweep"))
    account, named, scaling = (given.pop(each) for each in ("account", "workload", "scaling"))
    workload = scripted(path, content) or find_workload(named, beside=path.parent)
    require_keys(f"{source}: sweep", sweep, sweep_keys(workload))
    partitions = _partitions(source, content, path, account)
    zipped = _zipped(source, workload, sweep.pop("zip", None))
    together = [name for axis in zipped for name in axis[0]]
    _refuse_misplaced(source, workload, fixed, sweep, together)
    if "global_batch" in fixed:
        sweep["global_batch"] = _SWEPT["global_batch"].check(f"{source}: run", fixed.pop("global_batch"))
    named = {"study": content["study"], "partition": next(iter(partitions))}
    run = workload.configure({**fixed, **named}, source=f"{source}: run")
    if (size := len(run.study.encode())) > _MAX_NAME_BYTES:
        what = f"study is a name of {size} bytes; it names a folder"
        raise ConfigError(f"{source}: {what}: at most {_MAX_NAME_BYTES}, better a few words")
    runtimes, left_out = _runtimes(source, workload, sweep, together, partitions.values())
    values = {
        name: _values(source, workload, name, listed(source, sweep, name, []))
        for name in sweep
        if name not in ("workers", "runtime", "backend", "transport")  # these are read by themselves
    }
    budget = mapping(source, "budget", content.get("budget"))
    require_keys(f"{source}: budget", budget, _BUDGET)
    study = StudyConfig(
        name=run.study,
        run=run,
        workers=_worker_counts(source, workload, sweep, together, partitions.values()),
        nodes=values.get("nodes", ()),
        workers_per_node=values.get("workers_per_node", ()),
        placements=values.get("placement", ("fill",)),
        hosts=accept(tuple[HostName, ...], listed(source, content, "hosts", []), f"{source}: hosts"),
        runtimes=runtimes,
        varied={name: values[name] for name in (*workload.sweepable, "global_batch") if name in values},
        zipped=zipped,
        baselines=_baselines(source, workload, content),
        targets=tuple(sorted({_TARGET.check(source, each) for each in listed(source, content, "targets", [])}))[::-1],
        budget={name: _BUDGET[name].check(f"{source}: budget", each) for name, each in budget.items()},
        precision=precision,
        question=_question(source, content.get("question")),
        partitions=partitions,
        identity={name: identity.identify(each) for name, each in partitions.items()},
        left_out=left_out,
        source=path,
        text=path.read_text(encoding="utf-8"),
        **given,
    )
    for fault in _contradictions(study, scaling, fixed, {*sweep, *together}):
        raise ConfigError(f"{source}: {fault}")
    names = [host.name for partition in partitions.values() for host in partition.hosts]
    for host in study.hosts if names else ():
        one_of(source, "hosts", host, names)
    try:
        study.cells()  # for its complaints
    except ConfigError as error:
        if str(error).startswith(source):
            raise
        raise ConfigError(f"{source}: sweep: {str(error).removeprefix('run: ')}") from None
    return study


def _refuse_misplaced(
    source: str, workload: Workload, fixed: Collection[str], sweep: Mapping[str, Any], together: Sequence[str]
) -> None:
    """Refuse what cannot be `fixed` under run, and what is given twice: there, in the sweep, `together` under zip."""
    for name in (each for each in workload.named(Role.RUNTIME | Role.NAMING | Role.PLACEMENT) if each in fixed):
        roles = workload.options[name].roles
        hint = f"sweep.{'runtime' if roles & Role.RUNTIME else name}"
        hint = "the top level of the file" if roles & Role.NAMING else hint
        raise ConfigError(f"{source}: run: {name} cannot be fixed here; it comes from {hint}")
    for name in (*sweep, *together):
        if [*sweep, *together].count(name) > 1:
            raise ConfigError(f"{source}: sweep: {name} is varied twice, once under zip; give it once")
        if name in fixed:
            raise ConfigError(f"{source}: {name} is both fixed under run and varied under sweep; give it once")


def _baselines(source: str, workload: Workload, content: Mapping[str, Any]) -> tuple[str, ...]:
    if content.get("baselines") == []:
        return ()
    # A script that connects its workers may not run without them.
    usual = ["wrapped"] if workload.version else list(_BASELINES)
    return tuple(one_of(source, "baselines", each, _BASELINES) for each in listed(source, content, "baselines", usual))


def _partitions(source: str, content: Mapping[str, Any], path: Path, account: str | None) -> dict[str, Partition]:
    """Return the partitions of the study by name, with its account."""
    partitions: dict[str, Partition] = {}
    for each in listed(source, content, "partition", ["local"]):
        name = check_field(source, "partition", each, Option(), optional=False)
        try:
            partition = find_partition(name, beside=path)
            partition = partition if account is None else partition.model_copy(update={"account": account})
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith(source) else f"{source}: {error}") from None
        if partition.name in partitions:
            raise ConfigError(f"{source}: partition {partition.name} is named twice; give each once")
        partitions[partition.name] = partition
    return partitions


def _values(source: str, workload: Workload, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values of one key of the sweep as what they must be."""
    form = _SWEPT[name] if name in _SWEPT else workload.options[name]
    return tuple(form.check(f"{source}: sweep", value) for value in values)


def _runtimes(
    source: str, workload: Workload, sweep: Mapping[str, Any], together: Sequence[str], partitions: Iterable[Partition]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the runtimes of the sweep or the usual one, and pairs of backend and transport that do not exist."""
    where = f"{source}: sweep"
    apart = [name for name in ("backend", "transport") if name in sweep]
    if not apart:
        usual = workload.usual_runtime
        if usual == "ddp/gloo" and any(each.gpus_per_node for each in partitions):
            usual = "ddp/nccl"
        return _values(source, workload, "runtime", listed(source, sweep, "runtime", [usual])), ()
    if "runtime" in sweep or "runtime" in together:
        raise ConfigError(f"{where}: runtime and {apart[0]} are both given; a runtime is a backend with its transport")
    if "backend" not in sweep:
        raise ConfigError(f"{where}: transport is given without backend; give both, or runtime")
    backends, transports = (
        _values(source, workload, each, listed(source, sweep, each, [])) for each in ("backend", "transport")
    )
    runtimes, left_out = [], []
    for backend in backends:
        own = [runtime for runtime in RUNTIMES if runtime.partition("/")[0] == backend]
        found = [runtime for runtime in own if runtime.partition("/")[2] in transports]
        if len(own) == 1 and (backend == "serial" or not transports):
            found = own
        if not found:
            wrong = f"does not work over {' or '.join(transports)}" if transports else "has several transports"
            raise ConfigError(f"{where}: backend {backend} {wrong}; give transport too: {', '.join(own)}")
        runtimes += found
        if backend != "serial":
            left_out += [f"{backend}/{each}" for each in transports if f"{backend}/{each}" not in own]
    for transport in transports:
        if not any(runtime.endswith(f"/{transport}") for runtime in runtimes):
            others = ", ".join(runtime for runtime in RUNTIMES if runtime.endswith(f"/{transport}"))
            raise ConfigError(
                f"{where}: transport {transport} goes with none of the backends {', '.join(backends)}; leave it out"
                + (f", or add a backend that has it: {others}" if others else "")
            )
    return tuple(dict.fromkeys(runtimes)), tuple(left_out)


def _zipped(source: str, workload: Workload, value: Any) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    """Return the axes along which several keys change together: one mapping of equally long lists is one axis."""
    where = f"{source}: sweep: zip"
    if value is None:
        return ()
    axes = []
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict) or not each:
            raise ConfigError(
                f"{where} must hold lists that go together, such as {{workers: [1, 2], batch: [150, 75]}}"
            )
        require_keys(where, each, (key for key in sweep_keys(workload) if key not in ("zip", "backend", "transport")))
        for name, values in each.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"{where}: {name} is {values!r}; it must be a list, as long as the others")
        if len({len(values) for values in each.values()}) > 1:
            told = ", ".join(f"{name} has {len(values)}" for name, values in each.items())
            raise ConfigError(f"{where}: {told}; lists that go together must be equally long")
        checked = {name: _values(source, workload, name, values) for name, values in each.items()}
        axes.append(tuple(dict(zip(checked, row, strict=True)) for row in zip(*checked.values(), strict=True)))
    return tuple(axes)


def share(text: str) -> float:
    """Return what "2 %" or "0.02" says; ValueError where it is no share between 0 and 1."""
    words = text.strip()
    value = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    if not 0 < value < 1:
        raise ValueError(text)
    return value


def _precision(source: str, value: Any) -> float | None:
    try:
        return None if value is None else share(f"{value}")
    except ValueError:
        raise ConfigError(
            f"{source}: precision: {plain(value)} is none; give the half width of the intervals, such as 2 % or 0.02"
        ) from None


def _question(source: str, value: Any) -> str:
    if value is None:
        return ""
    words = " ".join(f"{value}".split())
    found = _QUESTION.fullmatch(words)
    if found is None or not 1 <= int(found[2]) <= MAX_WORKERS:
        raise ConfigError(
            f"{source}: question: {plain(value)} is none that is known; write speedup at N, throughput at N or "
            f"efficiency at N, N from 1 to {MAX_WORKERS:,}"
        )
    return words


def _contradictions(
    study: StudyConfig, scaling: str | None, fixed: Collection[str], given: Collection[str]
) -> Iterator[str]:
    """Yield in words which keys contradict each other: `fixed` are those under run, `given` those under sweep."""
    if study.scaling == "strong" and ("batch" in fixed or any("batch" in axis[0] for axis in study._axes())):
        yield "batch and global_batch are both given; batch is of each worker, global_batch of all together"
    if scaling == "strong" != study.scaling:
        yield "scaling is strong, but each worker has its batch; give global_batch, which is divided among them"
    if scaling == "weak" != study.scaling:
        yield "scaling is weak, but global_batch is given; give batch, that of each worker"
    layouts, both = study._layouts(), "workers" in given and "nodes" in given
    if both and "spread" not in layouts:
        full = "nodes alone are full ones, and with placement spread they are what the workers are spread over"
        yield f"sweep: workers and nodes are both given; {full}"
    if both and "workers_per_node" in given:
        yield "sweep: workers, nodes and workers_per_node are all given; give two of them"
    if ("list" in layouts) != bool(study.hosts):
        wanted = "give both sweep.placement and hosts, or neither"
        yield f"placement list needs the names of its nodes, and only list has any; {wanted}"
    if study.hosts and len(study.partitions) > 1:
        yield f"hosts are those of one partition, but {len(study.partitions)} are named"


def _worker_counts(
    source: str, workload: Workload, sweep: Mapping[str, Any], together: Sequence[str], partitions: Iterable[Partition]
) -> tuple[int, ...]:
    """`cores` means 1..cores, thinned to powers of two (and the last) above eight; else a list of counts."""
    if "workers" in together or ("nodes" in (*sweep, *together) and "workers" not in sweep):
        return ()
    value = sweep.get("workers", "cores")
    if value == "cores":
        if elsewhere := [partition.name for partition in partitions if partition.scheduler != "local"]:
            raise ConfigError(
                f"{source}: sweep: workers counts up to the cores of this machine, but the study runs on partition "
                f"{elsewhere[0]}; give counts such as [1, 2, 4], or nodes"
            )
        count = available_cores()
        powers = {2**k for k in range(count.bit_length())}
        return tuple(range(1, count + 1)) if count <= 8 else tuple(sorted({*powers, count}))
    counts = value if isinstance(value, list) else [value]
    if not counts:
        raise ConfigError(f"{source}: sweep: workers is empty; give counts such as [1, 2, 4], or cores")
    return tuple(sorted(set(_values(source, workload, "workers", counts))))


def command_study(command: Sequence[str], *, rate: str | None = None, hosts: Sequence[Host] = ()) -> Path:
    """Return the study file, in the working directory, whose cells are `command` with its places filled.

    It is the one that was written when the same command was typed before, or a new one: worker counts 1, 2, 4, ... up
    to what this machine, or the `hosts`, take; without a place for {workers} the count that the command says. `rate`:
    the pattern of the rate in its output. Raises ConfigError for a command without words and for an unknown place.
    """
    if not command:
        raise ConfigError("run: no command; write `horovod-study run -- torchrun --nproc-per-node {workers} train.py`")
    check_rate("--rate", rate)
    places = list(dict.fromkeys(PLACE.findall(" ".join(command))))
    if unknown := [name for name in places if name not in _FILLED]:
        raise ConfigError(
            f"run: nothing is known to put in the place of {{{unknown[0]}}}; there are {{{'}, {'.join(_FILLED)}}}, and "
            "a study file (docs/studies.md) gives others their values"
        )
    most = sum(host.slots for host in hosts) or this_machine().slots_per_node
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    if "workers" not in places:
        counts = [said_workers(command)]
        say(
            f"one worker count, {counts[0]}: the command has no place for another; write {{workers}} where it says "
            "how many, for a speedup"
        )
    line = " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in command)
    content = {"command": line, **({} if rate is None else {"rate": rate})}
    name = _called(command)
    number, path = 1, Path(f"{name}-study.yaml")
    while path.exists():
        known = load_yaml(path)
        if {key: known.get(key) for key in ("command", "rate")} == {"rate": None, **content}:
            return path
        number += 1
        path = Path(f"{name}-{number}-study.yaml")
    # Nobody knows how long a command is.
    study = {"study": path.stem.removesuffix("-study"), **content, "repeats": 3, "timeout_s": 4 * 3600}
    study |= {"sweep": {"workers": counts}, **({} if "workers" in places else {"baselines": []})}
    head = f"# {plural(len(counts), 'worker count')} x 3 repeats; `run: {{steps: 200}}` ends each run after 200 steps\n"
    with writing(path, "type the command in a folder that is writable", error=ConfigError):
        write_file(path, head + yaml.safe_dump(study, sort_keys=False, width=10**6, default_flow_style=None))
    return path


def _called(command: Sequence[str]) -> str:
    """Return what a command is called: its script, its module, else its program."""
    words = " ".join(command).split()  # also of what `bash -c` is given
    ends = r"([^/]+)\.(?:py|sh|bash|ipynb|jl|R)"
    scripts = [found[1] for word in words if (found := re.fullmatch(ends, Path(word).name))]
    modules = [word for before, word in itertools.pairwise(command) if before in ("-m", "--module")]
    name = [*scripts, *modules[-1:], Path(command[0]).name][0]
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "command"
