"""A workload: a training as studies know it, and all that they know of it.

A cell of a study is a workload with values of its options, a placement, a runtime and a number of the repeat. What is
planned, launched, judged, compared, tuned and reported is found from the options' roles; nobody asks what is trained.
The package's own is in strain/options.py; another one is a Python file that holds `WORKLOAD = workload(...)`, and
that a study names: `workload: mine.py`. Its program is started with the values of a cell as a YAML file and leaves a
run directory, through `horovod_study.recorder` or through `records`.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from horovod_study.config.documents import read_bytes
from horovod_study.config.roles import Option, Role, declared, named, options_of
from horovod_study.errors import ConfigError
from horovod_study.runtimes import BACKENDS, PLACEMENTS, TRANSPORTS

HEADINGS = (
    *("data", "how long", "what is learned, and how", "workers", "how the workers communicate", "computing"),
    *("measuring", "naming"),
)
"""Of `--help`, in their order."""
LENGTH, LEARNED, COMMUNICATING, COMPUTING, MEASURED = HEADINGS[1], HEADINGS[2], HEADINGS[4], HEADINGS[5], HEADINGS[6]


_HELP = {
    "batch": "samples per worker and step",
    "seed": "seed of the initial parameters and of the order of the data",
    "threads": "compute threads per worker; the workers of a host should not have more threads than it has cores",
    "epochs": "train for so many passes over the training set; 10 if no other budget is given",
    "seconds": "or for so many seconds of timed window",
    "steps": "or for so many timed steps",
    "warmup_steps": "first steps, trained and recorded but outside the timed window",
    "backend": "how workers communicate; auto looks at how the run was launched",
    "transport": "what carries the gradients; auto takes what the launch provides",
    "placement": "how the workers are put on nodes: fill one before the next, spread them evenly, or on a list of "
    "nodes; a run "
    "placed otherwise ends",
    "workers_per_node": "how many workers share a node at most; a run placed otherwise ends",
    "study": "name of the study the run belongs to",
    "partition": "name of the machine or partition it runs on",
    "repeat": "number of this repeat, from 0",
}
_COUNT = partial(Option, kind=int, low=1)
_NUMBER = partial(Option, kind=int, low=0)
_LENGTH: Mapping[str, Any] = {"heading": LENGTH, "roles": Role.BUDGET}
_LIBRARY: Mapping[str, Any] = {"heading": "workers", "roles": Role.RUNTIME | Role.APPLIED, "default": "auto"}
_ON_NODES: Mapping[str, Any] = {"heading": "workers", "roles": Role.PLACEMENT | Role.CELL | Role.SEVERAL}
_NAMING: Mapping[str, Any] = {"heading": "naming", "roles": Role.NAMING}
_VARIED = Role.SWEEPABLE | Role.CELL
_SHARED = {
    "batch": _COUNT(default=1, heading=LEARNED, roles=Role.LEARNING | _VARIED | Role.APPLIED),
    "seed": _NUMBER(default=1, heading=LEARNED),
    "threads": _COUNT(
        default=1,
        heading=COMPUTING,
        roles=Role.COMPUTING | _VARIED,
        tries=(1, 2, 4, 8),
        words=lambda value: f"{value:g} thread{'' if value == 1 else 's'}",
    ),
    "epochs": _COUNT(**_LENGTH, words="{:g} epochs"),
    "seconds": Option(**_LENGTH, kind=float, above=0, words="{:g} s"),
    "steps": _COUNT(**_LENGTH, words="{:g} steps"),
    "warmup_steps": _NUMBER(default=50, heading=LENGTH, roles=Role.WINDOW | Role.APPLIED),
    "backend": Option(**_LIBRARY, choices=("auto", *BACKENDS)),
    "transport": Option(**_LIBRARY, choices=("auto", *TRANSPORTS)),
    "placement": Option(
        **_ON_NODES,
        default="fill",
        choices=PLACEMENTS,
        words=lambda value: {"fill": "nodes filled", "spread": "nodes shared evenly"}.get(value, "named nodes"),
    ),
    "workers_per_node": _COUNT(
        **_ON_NODES, words=lambda value: "full nodes" if value == "shipped" else f"{value} per node"
    ),
    "study": Option(**_NAMING, default="train"),
    "partition": Option(**_NAMING, default="local"),
    "repeat": _NUMBER(**_NAMING, default=0),
}
SHARED: Mapping[str, Option] = {name: replace(each, help=_HELP[name]) for name, each in _SHARED.items()}
"""What every workload has, because studies set or read it."""


def shared(name: str) -> Any:
    """Declare a field that every configuration has."""
    return declared(SHARED[name])


class Configuration:
    """What one run was asked for: values of the options of a workload, checked when they are made, and never changed.

    Subclasses are frozen dataclasses; their fields are the options. What it became (learning rate after scaling, ...)
    is recorded separately.
    """

    workload: ClassVar["Workload"]

    # Annotations only: the fields of SHARED, which every subclass has.
    batch: int
    seed: int
    threads: int
    epochs: int | None
    seconds: float | None
    steps: int | None
    warmup_steps: int
    backend: str
    transport: str
    placement: str
    workers_per_node: int | None
    study: str
    partition: str
    repeat: int

    def __post_init__(self) -> None:
        from horovod_study.config.doors import accept  # pydantic, which --help does without

        vars(self).update(accept(self.workload.form, vars(self), "run"))
        self.check_together()

    @property
    def no_hooks(self) -> tuple[str, str] | None:
        """The option with which no hooks see the gradients, and why; None where hooks do."""
        return None

    def check_together(self, source: str = "run") -> None:
        """Raise ConfigError for values that are right each and do not fit together."""
        for text in self.unfit():
            raise ConfigError(f"{source}: {text}")

    def unfit(self) -> Iterator[str]:
        """Yield in words what does not fit together, and what to do about it."""
        given = [name for name in self.workload.budgets if getattr(self, name) is not None]
        if len(given) > 1:
            yield f"{' and '.join(given)} are both given; give one of {', '.join(self.workload.budgets)}"
        if self.backend == "serial" and self.transport not in ("auto", "none"):
            yield f"backend serial has no transport, but transport is {self.transport!r}; leave transport out"
        for name in ("study", "partition"):
            value = getattr(self, name)
            if not value or set(value) & set("/\\\0\n") or value.startswith("."):
                yield f"{name} is {value!r}; it names a folder: no slash, line break, leading dot, or empty name"

    def meaning(self) -> dict[str, Any]:
        """Return the fields that tell cells apart: without options that came later and have their default."""
        options = self.workload.options
        return {
            name: value
            for name, value in vars(self).items()
            if not options[name].later or value != options[name].default
        }

    def changed(self, **values: Any) -> Self:
        """Return it with some values changed, which came in by a door: only how they fit together is asked again."""
        if unknown := [name for name in values if name not in self.workload.options]:
            raise TypeError(f"no such option: {', '.join(unknown)}")
        made = object.__new__(type(self))
        vars(made).update(vars(self) | values)
        made.check_together()
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """What studies, launchers and reports know of a training."""

    name: str
    configuration: type[Configuration]
    command: Callable[[Path, Path, bool], tuple[str, ...]]
    """Returns the arguments for the Python of every rank, from the YAML file with a cell's values, the run directory,
    and whether to go on from a checkpoint there."""
    samples: str = "samples"  # what a batch consists of, for readers
    model: str = ""  # what is trained where a record names no model
    threads_of: Callable[[Configuration], int] = lambda config: config.threads  # and processes of a worker that compute
    samples_of_epoch: Callable[[Configuration], float | None] = lambda config: None
    """Returns the samples of all workers in one pass over the data, as far as that is known beforehand."""
    rate_of: Callable[[Mapping[str, Any], int], float | None] = lambda requested, workers: None
    """Returns the learning rate that so many workers have, by the options that a record says were asked for."""
    small: Mapping[str, Any] | None = None
    """Values that make the options' defaults a run of seconds, to try whether workers can communicate; None: the
    options of the cell itself do, for a few steps."""
    arguments: Callable[[Configuration, Mapping[str, Any]], tuple[str, ...]] = lambda config, placed: ()
    """Returns further arguments, which depend on the values of a cell and on where it is placed (launch.placed)."""
    starts_ranks: bool = False  # `command` is started once and starts its ranks itself, instead of as every rank
    usual_runtime: str = "horovod/mpi"  # of a study that names none; ddp/gloo stands for ddp/nccl where there are GPUs
    waits: bool = True  # it can wait between two steps: it is recorded by a session of this package
    folder: Path | None = None  # it runs there, in the environment of the shell; None: it is the package's, or made so
    note: str = ""  # told before it runs
    file: Path | None = None  # it was declared in; None: the package
    version: str = ""  # of what it runs; "": the content of its file

    def __post_init__(self) -> None:
        self.configuration.workload = self

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """The options of a run, by name."""
        return options_of(self.configuration)

    @cached_property
    def form(self) -> Any:
        """The pydantic model of the values of all options: what a command line or a file may say of a run."""
        from pydantic import Field

        from horovod_study.config.doors import keyed

        helped = {each.name: Annotated[each.form, Field(description=each.help)] for each in self.options.values()}
        return keyed(self.name, helped)

    def named(self, *roles: Role) -> tuple[str, ...]:
        """Return the names of the options that have one of `roles`, in their order."""
        return named(self.options, *roles)

    @cached_property
    def budgets(self) -> tuple[str, ...]:
        """How long a run is; it has at most one of these."""
        return self.named(Role.BUDGET)

    @cached_property
    def communication(self) -> tuple[str, ...]:
        """How workers communicate, besides backend and transport; `Option.matters`: which have an effect on what."""
        return self.named(Role.COMMUNICATION)

    @cached_property
    def sweepable(self) -> tuple[str, ...]:
        """What a study may vary, in the order in which it is crossed."""
        return self.named(Role.SWEEPABLE)

    @cached_property
    def distinguishing(self) -> tuple[str, ...]:
        """What makes runs different experiments: runs that differ in one of these are never repeats of each other."""
        return (*self.sweepable, *(name for name in self.named(Role.CELL) if name not in self.sweepable))

    @cached_property
    def quiet(self) -> dict[str, Any]:
        """Of runs that are made only to be timed: nothing is evaluated or written on the way."""
        return {name: each.quiet for name, each in self.options.items() if each.quiet is not ...}

    @cached_property
    def tuned(self) -> dict[str, tuple[Any, ...]]:
        """What `run --tune` varies, and the values that it tries."""
        return {name: each.tries for name, each in self.options.items() if each.tries}

    @cached_property
    def identity(self) -> str:
        """Name and digest of the file it was declared in, "" for the package's own."""
        if self.file is None or self.version:
            return self.version and f"{self.name} {self.version}"
        content = read_bytes(self.file, error=ConfigError, again="a workload is a Python file that stays where it is")
        return f"{self.name} {hashlib.sha256(content).hexdigest()[:12]}"

    def configure(self, values: Mapping[str, Any], *, source: str = "run") -> Configuration:
        """Make a configuration of option or YAML values; an unknown name is refused with the nearest known one."""
        from horovod_study.config.doors import accept

        made = object.__new__(self.configuration)
        vars(made).update(
            {name: each.default for name, each in self.options.items()} | accept(self.form, values, source)
        )
        made.check_together(source)
        return made


def configuration(name: str, options: Mapping[str, Option]) -> type[Configuration]:
    """Return the class of the configurations of a workload with these options."""
    fields = [(each, Any, declared(its)) for each, its in options.items()]
    kind: dict[str, Any] = {"bases": (Configuration,), "frozen": True, "kw_only": True}
    return make_dataclass(f"{name.title()}Configuration", fields, **kind)


def workload(name: str, file: str, options: Mapping[str, Option], **about: Any) -> Workload:
    """Return the workload that the Python file `file` declares and runs: `python FILE --config CELL.yaml --out DIR`.

    `options` come beside SHARED ones and replace those of the same name; `about`: further fields of Workload.
    """
    path, made = Path(file).resolve(), configuration(name, {**SHARED, **options})

    def command(config: Path, directory: Path, resume: bool) -> tuple[str, ...]:
        return (str(path), "--config", str(config), "--resume" if resume else "--out", str(directory))

    return Workload(**{"name": name, "configuration": made, "command": command, "file": path, **about})


_LOADED: dict[Path, Workload] = {}


def load_workload(path: Path) -> Workload:
    """Return the workload that a Python file declares as WORKLOAD; the file is executed, once. Raises ConfigError."""
    path = path.resolve()
    if path not in _LOADED:
        name = f"workload_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        spec, found, why = importlib.util.spec_from_file_location(name, path), None, "no Python file"
        if spec is not None and spec.loader is not None and path.is_file():
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
                found, why = getattr(module, "WORKLOAD", None), "declares no WORKLOAD"
            except Exception as error:  # of a file that somebody else wrote
                why = f"cannot be loaded as a workload: {type(error).__name__}: {error}"
        if not isinstance(found, Workload):
            raise ConfigError(f"{path}: {why}; write WORKLOAD = horovod_study.config.workload.workload(...) in it")
        _LOADED[path] = found
    return _LOADED[path]


@cache
def packaged() -> Workload:
    """Return the package's own workload, that of studies that name none; it is loaded by name, others by their file."""
    found: Workload = import_module("horovod_study.strain.options").WORKLOAD
    return found


def find_workload(name: str | None, *, beside: Path = Path()) -> Workload:
    """Return the workload called `name`: a Python file in the folder `beside`, or the package's own (None)."""
    return packaged() if name in (None, packaged().name) else load_workload(beside / str(name))
