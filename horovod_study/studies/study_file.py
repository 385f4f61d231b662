"""The file of a study: what is fixed, what is varied, on which partitions, how often; and the cells that come of it.

`experiments/` holds examples, and experiments/README.md explains every key. `run -- COMMAND` writes one.
"""

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml

from horovod_study.analysis.paired import MOST_LAUNCHES
from horovod_study.cluster import identity
from horovod_study.config.documents import load_yaml
from horovod_study.config.doors import Whole, accept, at_least
from horovod_study.config.partitions import Host, Partition, find_partition, this_machine
from horovod_study.config.roles import Role, plain
from horovod_study.config.run import Cell, Placement, available_cores
from horovod_study.config.scripted import PLACE, PLACED, check_rate, scripted
from horovod_study.config.study_file import MAX_WORKERS, StudyFile, sweep_form
from horovod_study.config.workload import Configuration, Workload, find_workload
from horovod_study.errors import ConfigError, nearest, refuse
from horovod_study.files import write_file, writing
from horovod_study.recording.said import said_workers
from horovod_study.text.progress import say
from horovod_study.text.words import plural

_Axes = Sequence[Mapping[str, Any]]
_BASELINES = ("plain", "wrapped")
_PLACING = ("workers", "nodes", "workers_per_node", "placement")
_MAX_CELLS = 200_000
"""More than anybody runs, and few enough to be listed: a study that asks for more has a typing error in it."""
_MAX_NAME_BYTES = 200  # file systems take 255
_FILLED = (*(name for name in PLACED if name != "global_batch"), "seed")  # places of a command that is typed
_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")


@cache
def _usual(workload: Workload, runtime: str, *, alone: bool = False) -> Mapping[str, Any]:
    """Return options without effect on a runtime, or on one plain worker, at their defaults: one run serves all."""
    options, own = workload.options, workload.communication
    names = [name for name in own if not options[name].matters(runtime)]
    if alone:
        names = [each for each in workload.sweepable if options[each].roles & Role.SEVERAL and each not in own]
    return {name: options[name].default for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the file of a study says of all of its cells."""

    name: str
    partitions: Mapping[str, Partition] = field(default_factory=dict)  # by name; those of the cells at least
    seed: int = 1  # of the order within a repeat
    timeout_s: float = 900.0  # of a cell
    turns: bool = False  # the cells of a repeat alternate, where they fit together
    precision: float | None = None  # the half width of each wanted ratio's interval that ends it, relative
    budget: Mapping[str, float] = field(default_factory=dict)  # hours, gpu_hours, core_hours; more is asked about
    source: Path | None = None  # the file
    text: str = ""  # that file as it was read

    @property
    def here(self) -> str:
        """What messages about it begin with."""
        return str(self.source or f"study {self.name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCells(Asked):
    """Cells in the folder of a study, and what is the same for all of them.

    `study_file.sweep_of` makes it of a study's file, the program inside a job of the job's folder.
    """

    directory: Path  # RUNS/<name>
    cells: tuple[Cell, ...]
    part: bool = False  # of a design: they are run in their order, and other runs in the folder are its, too
    equal_steps: bool = False  # cells that alternate make as many steps as that of them which makes most, in one go
    least_steps: int = 1  # of a slice, however long they take
    wanted: tuple[tuple[str, str], ...] = ()  # ratios: labels of cell and base
    scaling: str = "weak"  # strong: the batch of all workers together is given

    def partition_of(self, cell: Cell) -> Partition:
        """Return where a cell of it goes."""
        return self.partitions[cell.placement.partition]


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
    def scaling(self) -> str:
        """`strong` where the batch of all workers together is given, else `weak`."""
        return "strong" if any("global_batch" in axis[0] for axis in self._axes()) else "weak"

    def cells(self) -> list[Cell]:
        """Every run of the study, baselines included, each once, in a stable order (blocks come from the ledger)."""
        if not self._cells:
            combinations = math.prod(map(len, self._axes())) * len(self.partitions)
            few = combinations <= _MAX_CELLS  # else they are not even listed
            places = self.partitions.values() if few else ()
            first = dict.fromkeys(run for partition in places for run in self._wanted(partition))
            count = len(first) * self.repeats
            if not few or count > _MAX_CELLS:
                asked = f"{count} cells" if few else f"{combinations} combinations of values"
                most = f"a study may have {_MAX_CELLS}: lower repeats, or vary less under sweep"
                raise ConfigError(f"{self.here}: these are {asked}; {most}")
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
        several, options = placement.workers > 1, self.workload.options
        guessed = self.workload.starts_ranks and len(self.runtimes) == 1  # of what a command uses
        parts = [
            (len(self.partitions) > 1, placement.partition),
            (not guessed, runtime),
            (True, plural(placement.workers, "worker")),
            (placement.nodes > 1, f"{placement.nodes} nodes"),
            (several and len(layouts) > 1, config.placement),
            (several and config.workers_per_node is not None, f"{config.workers_per_node} per node"),
            *((options[name].matters(runtime), f"{name} {plain(getattr(config, name))}") for name in told),
        ]
        return ", ".join(part for wanted, part in parts if wanted)

    def told(self) -> tuple[str, ...]:
        """Return the options of a run that differ between its cells, beside runtime, placement and repeat."""
        strong = ["batch"] if self.scaling == "strong" else []
        names = [name for axis in self._axes() for name in axis[0] if name in self.workload.options]
        return tuple(name for name in dict.fromkeys([*strong, *names]) if name not in _PLACING)

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
                together, count, batch = values.get("global_batch"), placement.workers, {}
                if together is not None:
                    batch = {"batch": together // count}
                    uneven = f"global_batch {together} cannot be divided among {count} workers"
                    more = "give worker counts that divide it, or another global_batch"
                    refuse(self.here, (together % count, f"{uneven}; {more}"))
                asked = {**_usual(workload, runtime), **batch, **told, "repeat": 0, "study": self.name}
                config = variant.changed(**asked, backend=backend, transport=transport or "none")
                yield config, runtime, placement

    def _axes(self) -> list[Sequence[Mapping[str, Any]]]:
        """Return what is crossed but placements and runtimes: each axis is a list of values that go together."""
        return [*([{name: value} for value in values] for name, values in self.varied.items()), *self.zipped]

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
        name, slots, listed = partition.name, partition.slots_per_node, layout == "list"
        local, most = partition.scheduler == "local", per_node or slots
        if local:
            most = math.ceil(workers / over) if over else min(workers, per_node or workers)
        elif layout == "spread" and per_node is None:
            most = math.ceil(workers / (over or partition.nodes or workers))
        needed, away = math.ceil(workers / most), not local
        asked = f"{workers} workers need {needed} nodes at {most} each, but"
        what = "placement list" if listed else f"{workers} workers on {over or needed} nodes"
        one = f"{what} cannot be had on partition {name}, which is one machine; name a partition with more nodes"
        nowhere = layout == "spread" and workers > 1 and {per_node, over, partition.nodes} == {None}
        dense = f"{most} workers per node are asked for, but a node of partition {name} takes {slots} "
        dense += f"({partition.node()}); lower workers_per_node, or raise nodes"
        few = f"{asked} partition {name} has {partition.nodes} with room for {partition.capacity} workers; lower "
        named = f"{asked} hosts names {len(self.hosts)}: {', '.join(self.hosts)}; name more, or lower workers"
        refuse(
            f"{self.here}: sweep",
            (workers > MAX_WORKERS, f"{workers} workers are asked for; at most {MAX_WORKERS} can be planned"),
            (local and (listed or needed > 1 < workers), one),
            (away and nowhere, "placement spread needs to know over how many nodes; give nodes or workers_per_node"),
            (away and most > slots, dense),
            (away and needed > (partition.nodes or needed), f"{few}workers or nodes"),
            (listed and needed > len(self.hosts), named),
        )
        if local:
            return Placement(partition=name, workers=workers, workers_per_node=workers)
        hosts, most = self.hosts[:needed] if listed else (), min(most, workers)
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
        partitions[name] = accept(Partition, {**vars(each), **there, "cores_per_node": cores}, f"partition {name}")
    return replace(study, partitions=partitions)


def sweep_of(study: StudyConfig, runs_dir: Path) -> StudyCells:
    """Return the cells of a study, to be run below `runs_dir`, and what is asked of them."""
    told: dict[str, Any] = {each.name: getattr(study, each.name) for each in fields(Asked)}
    told["wanted"] = () if study.precision is None else study.wanted()
    directory, cells = runs_dir / study.name, tuple(study.cells())
    return StudyCells(**told, directory=directory, cells=cells, scaling=study.scaling)


@contextmanager
def _told_of(source: str, where: str = "") -> Iterator[None]:
    """Let what is refused inside begin with the file, and where in it."""
    try:
        yield
    except ConfigError as error:
        text = str(error).removeprefix("run: ")
        raise ConfigError(text if text.startswith(source) else f"{source}: {where}{text}") from None


def load_study(path: Path) -> StudyConfig:
    """Read a study file; whatever is wrong with it is a ConfigError naming the file, the key and the value."""
    content, source = load_yaml(path), str(path)
    file: StudyFile = accept(StudyFile, content, source)
    workload = scripted(path, content) or find_workload(file.workload, beside=path.parent)
    pairs = "backend and transport are given; write runtime: [horovod/mpi, ddp/gloo]"
    refuse(f"{source}: sweep", ({"backend", "transport"} <= {*(file.sweep or {})} - {*workload.sweepable}, pairs))
    told = accept(sweep_form(workload), file.sweep or {}, f"{source}: sweep")
    axes, fixed = told.pop("zip", None) or (), dict(file.run or {})
    sweep = {name: values and tuple(dict.fromkeys(values)) for name, values in told.items()}
    with _told_of(source):
        found = [find_partition(name, beside=path) for name in dict.fromkeys(file.partition)]
    for rule in _contradictions(file, workload, sweep, axes, found):
        refuse(source, rule)
    if file.account is not None:
        found = [each.model_copy(update={"account": file.account}) for each in found]
    partitions = {each.name: each for each in found}
    if "global_batch" in fixed:
        count = Annotated[Whole, at_least(1)]
        sweep["global_batch"] = (accept(count, fixed.pop("global_batch"), f"{source}: run", name="global_batch"),)
    named = {"study": file.study, "partition": found[0].name}
    run = workload.configure({**fixed, **named}, source=f"{source}: run")
    aim = file.precision is not None
    usual = workload.usual_runtime
    usual = "ddp/nccl" if usual == "ddp/gloo" and any(each.gpus_per_node for each in found) else usual
    # A script that connects its workers may not run without them.
    baselines = (("wrapped",) if workload.version else _BASELINES) if file.baselines is None else file.baselines
    own = {name: getattr(file, name) for name in ("hosts", "precision", "seed", "timeout_s")}
    own |= {name: sweep[name] for name in ("nodes", "workers_per_node") if name in sweep}
    own |= {"targets": tuple(sorted(set(file.targets), reverse=True)), "question": file.question or ""}
    own |= {"budget": dict(file.budget or {}), "repeats": file.repeats or (MOST_LAUNCHES if aim else 3)}
    own |= {"baselines": baselines, "turns": aim if file.turns is None else file.turns}
    rows = [[dict(zip(axis, row, strict=True)) for row in zip(*axis.values(), strict=True)] for axis in axes]
    study = StudyConfig(
        name=run.study,
        run=run,
        workers=_worker_counts(sweep, axes),
        placements=sweep.get("placement", ("fill",)),
        runtimes=sweep.get("runtime", (usual,)),
        varied={name: sweep[name] for name in (*workload.sweepable, "global_batch") if name in sweep},
        zipped=tuple(map(tuple, rows)),
        partitions=partitions,
        identity={name: identity.identify(each) for name, each in partitions.items()},
        source=path,
        text=path.read_text(encoding="utf-8"),
        **own,
    )
    with _told_of(source, "sweep: "):
        study.cells()  # for its complaints
    return study


def _contradictions(
    file: StudyFile, workload: Workload, sweep: Mapping[str, Any], axes: _Axes, found: Sequence[Partition]
) -> Iterator[tuple[object, str]]:
    """Yield which keys of a file contradict each other, for `refuse`: `axes` are those under zip."""
    fixed, names = file.run or {}, [*sweep, *(name for axis in axes for name in axis)]
    given = {**sweep, **{name: values for axis in axes for name, values in axis.items()}}
    for name, count in Counter(names).items():
        yield count > 1, f"sweep: {name} is varied twice, once under zip; give it once"
    for axis in axes:
        lengths = {len(values) for values in axis.values()}
        told = ", ".join(f"{name} has {len(values)}" for name, values in axis.items()) or "there are none"
        long = "give lists that are equally long, as {workers: [1, 2], batch: [150, 75]}"
        yield len(lengths) != 1 or 0 in lengths, f"sweep: zip: {told}; {long}"
    both, layouts = {"workers", "nodes"} <= {*names}, given.get("placement", ("fill",))
    full = "nodes alone are full ones, and with placement spread they are what the workers are spread over"
    yield both and "spread" not in layouts, f"sweep: workers and nodes are both given; {full}"
    three = "workers, nodes and workers_per_node are all given; give two of them"
    yield both and "workers_per_node" in names, f"sweep: {three}"
    size = len(file.study.encode())
    name_of = f"study is a name of {size} bytes; it names a folder: at most {_MAX_NAME_BYTES}, better a few words"
    yield size > _MAX_NAME_BYTES, name_of
    in_turns = "precision is reached in turns; leave turns out, or set it to yes"
    yield file.precision is not None and file.turns is False, in_turns
    for name, count in (Counter(file.partition) | Counter(each.name for each in found)).items():
        yield count > 1, f"partition {name} is named twice; give each once"
    for name in (each for each in workload.named(Role.RUNTIME | Role.NAMING | Role.PLACEMENT) if each in fixed):
        roles = workload.options[name].roles
        hint = f"sweep.{'runtime' if roles & Role.RUNTIME else name}"
        hint = "the top level of the file" if roles & Role.NAMING else hint
        yield True, f"run: {name} cannot be fixed here; it comes from {hint}"
    for name in given:
        yield name in fixed, f"{name} is both fixed under run and varied under sweep; give it once"
    batches = {*given, *fixed} & {"batch", "global_batch"}
    strong = "global_batch" in batches
    twice = "batch and global_batch are both given; batch is of each worker, global_batch of all together"
    yield len(batches) > 1, twice
    of_all = "scaling is strong, but each worker has its batch; give global_batch, which is divided among them"
    yield file.scaling == "strong" and not strong, of_all
    of_each = "scaling is weak, but global_batch is given; give batch, that of each worker"
    yield file.scaling == "weak" and strong, of_each
    wanted = "give both sweep.placement and hosts, or neither"
    listed = f"placement list needs the names of its nodes, and only list has any; {wanted}"
    yield ("list" in layouts) != bool(file.hosts), listed
    yield file.hosts and len(found) > 1, f"hosts are those of one partition, but {len(found)} are named"
    hosts = dict.fromkeys(host.name for each in found for host in each.hosts)
    for name in (each for each in file.hosts if hosts and each not in hosts):
        yield True, f"hosts {name!r} is not known{nearest(name, hosts)}; allowed: {', '.join(hosts)}"
    elsewhere = "".join([each.name for each in found if each.scheduler != "local"][:1])
    here = f"sweep: workers counts up to the cores of this machine, but the study runs on partition {elsewhere}; "
    counted = given.get("workers") is None and ("workers" in given or "nodes" not in given)
    yield elsewhere and counted, f"{here}give counts such as [1, 2, 4], or nodes"


def _worker_counts(sweep: Mapping[str, Any], axes: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """`cores` means 1..cores, thinned to powers of two (and the last) above eight; else a list of counts."""
    zipped = [name for axis in axes for name in axis]
    if "workers" in zipped or ("nodes" in (*sweep, *zipped) and "workers" not in sweep):
        return ()
    if (counts := sweep.get("workers")) is not None:
        return tuple(sorted(set(counts)))
    count = available_cores()
    powers = {2**k for k in range(count.bit_length())}
    return tuple(range(1, count + 1)) if count <= 8 else tuple(sorted({*powers, count}))


def command_study(command: Sequence[str], *, rate: str | None = None, hosts: Sequence[Host] = ()) -> Path:
    """Return the study file, in the working directory, whose cells are `command` with its places filled.

    It is the one that was written when the same command was typed before, or a new one: worker counts 1, 2, 4, ... up
    to what this machine, or the `hosts`, take; without a place for {workers} the count that the command says. `rate`:
    the pattern of the rate in its output. Raises ConfigError for a command without words and for an unknown place.
    """
    places = list(dict.fromkeys(PLACE.findall(" ".join(command))))
    unknown = [name for name in places if name not in _FILLED]
    if unknown or not command:
        nothing = "no command; write `horovod-study run -- torchrun --nproc-per-node {workers} train.py`"
        others = f"there are {{{'}, {'.join(_FILLED)}}}, and a study file (docs/studies.md) gives others their values"
        strange = f"nothing is known to put in the place of {{{''.join(unknown[:1])}}}; {others}"
        raise ConfigError(f"run: {strange if command else nothing}")
    check_rate("--rate", rate)
    most = sum(host.slots for host in hosts) or this_machine().slots_per_node
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    if "workers" not in places:
        counts = [said_workers(command)]
        lone = f"one worker count, {counts[0]}: the command has no place for another"
        say(f"{lone}; write {{workers}} where it says how many, for a speedup")
    line = " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in command)
    content = {"command": line, **({} if rate is None else {"rate": rate})}
    names = (f"{_called(command)}{(number and f'-{number + 1}') or ''}-study.yaml" for number in itertools.count())
    for path in map(Path, names):
        if not path.exists():
            break
        known = load_yaml(path)
        if {key: known.get(key) for key in ("command", "rate")} == {"rate": None, **content}:
            return path
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
