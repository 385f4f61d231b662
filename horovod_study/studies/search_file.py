"""The file of a hyper-parameter search: what is fixed, which options are varied between which values, how long.

`experiments/search.yaml` is an example and docs/search.md explains every key.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from horovod_study.cluster.yaml_keys import limits, mapping, number, one_of
from horovod_study.config import Cell, local_cell
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, require_keys
from horovod_study.roles import Role, check_field, named
from horovod_study.runtimes import RUNTIMES
from horovod_study.workloads import Configuration, packaged

OPTIONS = packaged().options

_KEYS = ("search", "partition", "runtime", "workers", "trials", "seed", "timeout_s", "run", "space", "pruner")
PARTS = 20
"""A trial is compared with others at twentieths of its budget."""

_ELSEWHERE = {
    **dict.fromkeys(named(OPTIONS, Role.RUNTIME), "runtime at the top of the file"),
    "study": "search at the top of the file",
    "partition": "the top of the file",
    "repeat": "nothing: a search tries each combination once",
}
_SAME_FOR_ALL = (
    *named(OPTIONS, Role.DATA | Role.BUDGET | Role.GUARD | Role.TARGET),
    *(name for name in named(OPTIONS, Role.RATE) if not OPTIONS[name].roles & Role.SWEEPABLE),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """An option that takes one of several values."""

    values: tuple[Any, ...]

    def ends(self) -> tuple[Any, ...]:
        """Return the values that show whether the option can be used."""
        return self.values


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An option that takes any number between two, both included; `log`: each decade is as likely as any other."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def ends(self) -> tuple[Any, ...]:
        """Return the values that show whether the option can be used."""
        return (self.low, self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruner:
    """When a trial that looks hopeless is ended early, with all shares between 0 and 1 of a trial's budget."""

    kind: str = "median"
    startup_trials: int = 5  # median: finished trials before the first is ended early
    warmup: float = 0.15  # median: share of its budget that each trial gets; hyperband: of the shortest trials
    reduction_factor: int = 3  # hyperband: one of so many goes on


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """A search: fixed options (`run`), varied ones (`space`), and how each trial is launched."""

    name: str
    run: Configuration
    space: Mapping[str, Choice | Range]
    trials: int = 20
    runtime: str = "serial"
    workers: int = 1
    seed: int = 1
    timeout_s: float = 3600.0
    pruner: Pruner = field(default_factory=Pruner)

    def cell(self, values: Mapping[str, Any]) -> Cell:
        """Return the run with the varied options set to `values`; ConfigError: they do not fit together."""
        values = {**self.run.to_dict(), **values}
        return local_cell(self.runtime, values, workers=self.workers, source=f"search {self.name}")

    def example(self) -> Cell:
        """Return one valid cell; all are launched alike."""
        ends = [each.ends() for each in self.space.values()]
        problem: ConfigError | None = None
        for values in itertools.islice(itertools.product(*ends), 1000):
            try:
                return self.cell(dict(zip(self.space, values, strict=True)))
            except ConfigError as error:
                problem = problem or error
        raise problem or ConfigError(f"search {self.name}: space is empty; name at least one option to vary")

    def highest(self, name: str) -> Any:
        """Return the largest value that the option `name`, a number, can take."""
        return max(self.space[name].ends()) if name in self.space else getattr(self.run, name)

    def kinds(self) -> dict[str, str]:
        """Return how each varied option is spread: categories, linear or log."""
        return {
            name: "categories" if isinstance(each, Choice) else "log" if each.log else "linear"
            for name, each in self.space.items()
        }

    def meaning(self) -> dict[str, Any]:
        """Return what must be the same whenever the search is continued, or its trials could not be compared."""
        return {
            "run": self.run.to_dict(),
            "space": {name: asdict(each) for name, each in self.space.items()},
            "runtime": self.runtime,
            "workers": self.workers,
        }


def load_search(path: Path) -> SearchConfig:
    """Read a search file; whatever is wrong with it is a ConfigError naming the file, the key and the value."""
    content, source = load_yaml(path), str(path)
    require_keys(source, content, _KEYS)
    for key in ("search", "run", "space"):
        if key not in content:
            raise ConfigError(f"{source}: key {key!r} is missing; a search needs search, run and space")
    fixed, varied = mapping(source, "run", content["run"]), mapping(source, "space", content["space"])
    for name in fixed:
        if name in _ELSEWHERE:
            raise ConfigError(f"{source}: run: {name} cannot be fixed here; it comes from {_ELSEWHERE[name]}")
    run = packaged().configure(
        {**fixed, "study": content["search"], "partition": content.get("partition", "local")}, source=f"{source}: run"
    )
    if not varied:
        raise ConfigError(f"{source}: space is empty; name at least one option to vary, for instance lr")
    space = {str(name): _dimension(source, str(name), value, fixed) for name, value in varied.items()}
    runtime = one_of(source, "runtime", content.get("runtime", "serial"), RUNTIMES)
    numbers = {
        "trials": number(source, content, "trials", 20, int, 1),
        "workers": number(source, content, "workers", 1, int, 1),
        "seed": number(source, content, "seed", 1, int, 0),
        "timeout_s": number(source, content, "timeout_s", 3600.0, float, 1),
    }
    if runtime == "serial" and numbers["workers"] > 1:
        raise ConfigError(
            f"{source}: runtime serial has one worker, but workers is {numbers['workers']}; "
            "name a runtime such as horovod/mpi, or leave workers out"
        )
    search = SearchConfig(
        name=run.study, run=run, space=space, runtime=runtime, pruner=_pruner(source, content), **numbers
    )
    _check_usable(source, search)
    return search


def _dimension(source: str, name: str, value: Any, fixed: Mapping[str, Any]) -> Choice | Range:
    where = f"{source}: space"
    allowed = [each for each in OPTIONS if each not in _ELSEWHERE and each not in _SAME_FOR_ALL]
    if name in _ELSEWHERE:
        raise ConfigError(f"{where}: {name} cannot be searched over; it comes from {_ELSEWHERE[name]}")
    if name in _SAME_FOR_ALL:
        raise ConfigError(
            f"{where}: {name} must be the same in all trials, or their results could not be compared; put it under run"
        )
    require_keys(where, [name], allowed)
    if name in fixed:
        raise ConfigError(f"{source}: {name} is both fixed under run and varied under space; give it once")
    if isinstance(value, list):
        values = tuple(OPTIONS[name].check(where, each) for each in value)
        if len(values) < 2:
            raise ConfigError(f"{where}: {name} has {len(values)} value(s); give at least two, or put it under run")
        if len(set(values)) < len(values):
            raise ConfigError(f"{where}: {name} holds a value twice: {value}; give each once")
        return Choice(values=values)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{where}: {name} is {value!r}; it must be a list of values such as [64, 128], or a range such as "
            "{low: 1e-4, high: 1e-2, log: true}; a single value belongs under run"
        )
    require_keys(f"{where}: {name}", value, ("low", "high", "log", "step"))
    kind = OPTIONS[name].kind
    if kind not in (int, float):
        raise ConfigError(f"{where}: {name} is not a number and has no range; give a list of values")
    for key in ("low", "high"):
        if key not in value:
            raise ConfigError(f"{where}: {name}: key {key!r} is missing; a range needs low and high")
    low, high = (
        check_field(where, f"{name}: {key}", value[key], OPTIONS[name], optional=False) for key in ("low", "high")
    )
    log = check_field(where, f"{name}: log", value.get("log", False), limits(bool), optional=False)
    step = check_field(where, f"{name}: step", value.get("step"), limits(kind, above=0), optional=True)
    if low >= high:
        raise ConfigError(f"{where}: {name}: low is {low} and high is {high}; low must be below high")
    if log and low <= 0:
        raise ConfigError(f"{where}: {name}: low is {low}, but a logarithm needs more than 0; raise low or drop log")
    if log and step is not None:
        raise ConfigError(f"{where}: {name} has both log and step; give one of them")
    return Range(low=low, high=high, log=log, step=step, whole=kind is int)


def _check_usable(source: str, search: SearchConfig) -> None:
    """Raise ConfigError for a value that no combination of the others makes a valid run of."""
    for name, dimension in search.space.items():
        for value in dimension.ends():
            try:
                replace(search, space={**search.space, name: Choice(values=(value,))}).example()
            except ConfigError as error:
                text = str(error).removeprefix(f"search {search.name}: ")
                raise ConfigError(f"{source}: space: {name}: {value} is never valid: {text}") from None


def _pruner(source: str, content: Mapping[str, Any]) -> Pruner:
    value = content.get("pruner", "median")
    where = f"{source}: pruner"
    options = {"kind": value} if isinstance(value, str) else mapping(source, "pruner", value)
    own = {"median": ("startup_trials", "warmup"), "hyperband": ("warmup", "reduction_factor"), "none": ()}
    kind = one_of(where, "kind", options.get("kind", "median"), own)
    require_keys(f"{where} {kind}", options, ("kind", *own[kind]))
    usual = Pruner()
    warmup = number(where, options, "warmup", usual.warmup, float, 0)
    if not 0 <= warmup < 1:
        raise ConfigError(f"{where}: warmup is {warmup}; it is a share of a trial's budget, below 1")
    return Pruner(
        kind=kind,
        startup_trials=number(where, options, "startup_trials", usual.startup_trials, int, 1),
        warmup=warmup,
        reduction_factor=number(where, options, "reduction_factor", usual.reduction_factor, int, 2),
    )


def budget_done(config: Configuration, row: Mapping[str, float]) -> float:
    """Return the share of its budget, 0..1, that a run has used at an evaluation, given its row of epochs.csv."""
    if config.seconds is not None:
        done = row["train_s"] / config.seconds
    elif config.steps is not None:
        done = row["steps"] / (config.warmup_steps + config.steps)
    else:
        done = row["epoch"] / (config.epochs or 1)
    return min(1.0, done)


def with_trials(search: SearchConfig, trials: int | None) -> SearchConfig:
    """Return the search with another number of trials, if one is given."""
    if trials is None:
        return search
    if trials < 1:
        raise ConfigError(f"--trials {trials}: must be 1 or greater")
    return replace(search, trials=trials)
