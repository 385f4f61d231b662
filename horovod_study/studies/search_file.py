"""The file of a hyper-parameter search: what is fixed, which options are varied between which values, how long.

`experiments/search.yaml` is an example and docs/search.md explains every key.
"""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner

from horovod_study.cluster.yaml_keys import limits, mapping, number, one_of
from horovod_study.config import Cell, local_cell
from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, first_line, require_keys
from horovod_study.roles import Role, check_field, named
from horovod_study.runtimes import RUNTIMES
from horovod_study.workloads import Configuration, packaged

OPTIONS = packaged().options
PARTS = 20
"""A trial is compared with others at twentieths of its budget."""

_KEYS = ("search", "partition", "runtime", "workers", "trials", "seed", "timeout_s", "run", "space", "pruner")
_ELSEWHERE = {
    **dict.fromkeys(named(OPTIONS, Role.RUNTIME), "runtime at the top of the file"),
    "study": "search at the top of the file",
    "partition": "the top of the file",
    "repeat": "nothing: a search tries each combination once",
}
_SAME = "it must be the same in all trials, or their results could not be compared; put it under run"
_NOT_VARIED = {
    **{name: f"it comes from {place}" for name, place in _ELSEWHERE.items()},
    **dict.fromkeys(named(OPTIONS, Role.DATA | Role.BUDGET | Role.GUARD | Role.TARGET), _SAME),
    **{name: _SAME for name in named(OPTIONS, Role.RATE) if not OPTIONS[name].roles & Role.SWEEPABLE},
}


def ends(values: BaseDistribution) -> tuple[Any, ...]:
    """Return the values that show whether an option can be used."""
    return tuple(getattr(values, "choices", ()) or (getattr(values, name) for name in ("low", "high")))


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchConfig:
    """A search: fixed options (`run`), varied ones (`space`), and how each trial is launched."""

    name: str
    run: Configuration
    space: Mapping[str, BaseDistribution]
    trials: int
    runtime: str
    workers: int
    seed: int
    timeout_s: float
    pruner: BasePruner

    def cell(self, values: Mapping[str, Any]) -> Cell:
        """Return the run with the varied options set to `values`; ConfigError: they do not fit together."""
        values = {**self.run.to_dict(), **values}
        return local_cell(self.runtime, values, workers=self.workers, source=f"search {self.name}")

    def example(self) -> Cell:
        """Return one valid cell; all are launched alike."""
        problem: ConfigError | None = None
        for values in itertools.islice(itertools.product(*map(ends, self.space.values())), 1000):
            try:
                return self.cell(dict(zip(self.space, values, strict=True)))
            except ConfigError as error:
                problem = problem or error
        assert problem is not None, "a space is never empty"
        raise problem

    def highest(self, name: str) -> Any:
        """Return the largest value that the option `name`, a number, can take."""
        return max(ends(self.space[name])) if name in self.space else getattr(self.run, name)

    def meaning(self) -> dict[str, Any]:
        """Return what must be the same whenever the search is continued, or its trials could not be compared."""
        space = {name: vars(each) for name, each in self.space.items()}
        whole = {"run": self.run.to_dict(), "space": space, "runtime": self.runtime, "workers": self.workers}
        return dict(json.loads(json.dumps(whole)))  # as it comes back from the journal: lists for tuples


def load_search(path: Path, *, trials: int | None = None) -> SearchConfig:
    """Read a search file; whatever is wrong with it is a ConfigError naming the file, the key and the value.

    `trials`: of the command line, in place of the file's.
    """
    content, source = load_yaml(path), str(path)
    require_keys(source, content, _KEYS)
    for key in (key for key in ("search", "run", "space") if key not in content):
        raise ConfigError(f"{source}: key {key!r} is missing; a search needs search, run and space")
    fixed, varied = mapping(source, "run", content["run"]), mapping(source, "space", content["space"])
    for name in (name for name in fixed if name in _ELSEWHERE):
        raise ConfigError(f"{source}: run: {name} cannot be fixed here; it comes from {_ELSEWHERE[name]}")
    named_by = {"study": content["search"], "partition": content.get("partition", "local")}
    run = packaged().configure({**fixed, **named_by}, source=f"{source}: run")
    if not varied:
        raise ConfigError(f"{source}: space is empty; name at least one option to vary, for instance lr")
    runtime, workers = content.get("runtime", "serial"), number(source, content, "workers", 1, int, 1)
    if one_of(source, "runtime", runtime, RUNTIMES) == "serial" and workers > 1:
        raise ConfigError(
            f"{source}: runtime serial has one worker, but workers is {workers}; "
            "name a runtime such as horovod/mpi, or leave workers out"
        )
    if trials is not None:
        content["trials"] = number("strain search", {"--trials": trials}, "--trials", 20, int, 1)
    search = SearchConfig(
        name=run.study,
        run=run,
        space={str(name): _dimension(source, str(name), value, fixed) for name, value in varied.items()},
        trials=number(source, content, "trials", 20, int, 1),
        runtime=runtime,
        workers=workers,
        seed=number(source, content, "seed", 1, int, 0),
        timeout_s=number(source, content, "timeout_s", 3600.0, float, 1),
        pruner=_pruner(source, content.get("pruner", "median")),
    )
    for name, value in ((name, value) for name, values in search.space.items() for value in ends(values)):
        try:
            replace(search, space={**search.space, name: CategoricalDistribution([value])}).example()
        except ConfigError as error:
            text = str(error).removeprefix(f"search {search.name}: ")
            raise ConfigError(f"{source}: space: {name}: {value} is never valid: {text}") from None
    return search


def _dimension(source: str, name: str, value: Any, fixed: Mapping[str, Any]) -> BaseDistribution:
    where = f"{source}: space"
    if name in _NOT_VARIED:
        raise ConfigError(f"{where}: {name} cannot be searched over: {_NOT_VARIED[name]}")
    require_keys(where, [name], [each for each in OPTIONS if each not in _NOT_VARIED])
    if name in fixed:
        raise ConfigError(f"{source}: {name} is both fixed under run and varied under space; give it once")
    option = OPTIONS[name]
    if isinstance(value, list):
        values = [option.check(where, each) for each in value]
        if len(values) < 2 or len(set(values)) < len(values):
            raise ConfigError(f"{where}: {name} is {value}; give two or more different values, or put it under run")
        return CategoricalDistribution(values)
    if not isinstance(value, dict) or option.kind not in (int, float):
        raise ConfigError(
            f"{where}: {name} is {value!r}; it must be a list of values such as [64, 128], or of a number a range such "
            "as {low: 1e-4, high: 1e-2, log: true}; a single value belongs under run"
        )
    keys = {"low": option, "high": option, "log": limits(bool), "step": limits(option.kind, above=0)}
    require_keys(f"{where}: {name}", value, keys)
    for key in (key for key in ("low", "high") if key not in value):
        raise ConfigError(f"{where}: {name}: key {key!r} is missing; a range needs low and high")
    told = {"log": False, "step": 1 if option.kind is int else None, **value}
    how = {key: check_field(where, f"{name}: {key}", told[key], keys[key], optional=key == "step") for key in keys}
    try:
        return (IntDistribution if option.kind is int else FloatDistribution)(**how)
    except ValueError as error:
        raise ConfigError(f"{where}: {name}: {first_line(error)}") from None


def _pruner(source: str, value: Any) -> BasePruner:
    """Return Optuna's pruner, which counts in `PARTS` of a budget; a warm-up is a share of it."""
    where = f"{source}: pruner"
    options = {"kind": value} if isinstance(value, str) else mapping(source, "pruner", value)
    own = {"median": ("startup_trials", "warmup"), "hyperband": ("warmup", "reduction_factor"), "none": ()}
    kind = one_of(where, "kind", options.get("kind", "median"), own)
    require_keys(f"{where} {kind}", options, ("kind", *own[kind]))
    if (warmup := number(where, options, "warmup", 0.15, float, 0)) >= 1:
        raise ConfigError(f"{where}: warmup is {warmup}; it is a share of a trial's budget, below 1")
    first = max(1, math.ceil(warmup * PARTS - 1e-9))
    startup = number(where, options, "startup_trials", 5, int, 1)
    factor = number(where, options, "reduction_factor", 3, int, 2)
    if kind == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=PARTS, reduction_factor=factor)
    return MedianPruner(n_startup_trials=startup, n_warmup_steps=first) if kind == "median" else NopPruner()


def budget_done(config: Configuration, row: Mapping[str, float]) -> float:
    """Return the share of its budget, 0..1, that a run has used at an evaluation, given its row of epochs.csv."""
    if config.seconds is not None:
        return min(1.0, row["train_s"] / config.seconds)
    if config.steps is not None:
        return min(1.0, row["steps"] / (config.warmup_steps + config.steps))
    return min(1.0, row["epoch"] / (config.epochs or 1))
