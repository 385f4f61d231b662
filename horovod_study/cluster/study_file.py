"""The file of a study: what is fixed, what is varied, on which partitions, how often; and the cells that come of it.

`experiments/` holds examples, and experiments/README.md explains every key.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from horovod_study.config import (
    COMMUNICATION,
    RUN_FIELDS,
    RUNTIMES,
    SWEEPABLE,
    Cell,
    Placement,
    RunConfig,
    available_cores,
    check_field,
    load_yaml,
    matters,
    run_config,
)
from horovod_study.errors import ConfigError, nearest

STUDY_KEYS = ("study", "partition", "repeats", "seed", "timeout_s", "run", "sweep", "baselines", "targets")
SWEEP_KEYS = ("workers", "runtime", *SWEEPABLE)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyConfig:
    """A study: what is kept fixed (`run`), what is varied (`sweep`), against which baselines, how often."""

    name: str
    run: RunConfig
    workers: tuple[int, ...]
    runtimes: tuple[str, ...]
    varied: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    baselines: tuple[str, ...] = ("plain", "wrapped")
    repeats: int = 3
    seed: int = 1
    timeout_s: float = 900.0
    targets: tuple[float, ...] = ()  # test MSEs to which the time is compared; none: chosen from the runs

    def cells(self) -> list[Cell]:
        """Every run of the study, baselines included, each once, in a stable order (blocks come from the ledger)."""
        variants: list[RunConfig] = [self.run]
        for name, values in self.varied.items():
            variants = [replace(variant, **{name: value}) for variant in variants for value in values]
        wanted: list[tuple[RunConfig, str, int]] = []
        for variant in variants:
            if "plain" in self.baselines:
                # Alone, a rate that grows with the workers means nothing: one plain run serves all its values.
                wanted.append((replace(variant, lr_scaling="none"), "serial", 1))
            for runtime in self.runtimes:
                counts = sorted(set(self.workers) | ({1} if "wrapped" in self.baselines else set()))
                wanted += [(variant, runtime, count) for count in counts if runtime != "serial" or count == 1]
        cells: dict[str, Cell] = {}
        for repeat in range(self.repeats):
            for config, runtime, count in wanted:
                backend, _, transport = runtime.partition("/")
                # One run serves all values of an option without effect on this runtime.
                idle: dict[str, Any] = {
                    name: RUN_FIELDS[name].default for name in COMMUNICATION if not matters(name, runtime)
                }
                cell = Cell(
                    config=replace(
                        config,
                        **idle,
                        repeat=repeat,
                        seed=config.seed + repeat,  # the same start again would hide how much learning scatters
                        study=self.name,
                        backend=backend,
                        transport=transport or "none",
                    ),
                    runtime=runtime,
                    placement=Placement(partition=config.partition, workers=count, workers_per_node=count),
                )
                cells.setdefault(cell.key, cell)
        return list(cells.values())


def load_study(path: Path, *, cores: int | None = None) -> StudyConfig:
    """Read a study file. `cores` (default: the available ones) is what `workers: cores` counts up to."""
    content = load_yaml(path)
    source = str(path)
    _known(source, content, STUDY_KEYS)
    for key in ("study", "run", "sweep"):
        if key not in content:
            raise ConfigError(f"{source}: key {key!r} is missing; a study needs study, run and sweep")
    run_values, sweep = _mapping(source, content, "run"), _mapping(source, content, "sweep")
    _known(f"{source}: sweep", sweep, SWEEP_KEYS)
    for name in ("backend", "transport", "study", "partition", "repeat"):
        if name in run_values:
            hint = "sweep.runtime" if name in ("backend", "transport") else "the top level of the file"
            raise ConfigError(f"{source}: run: {name} cannot be fixed here; it comes from {hint}")
    for name in sweep:
        if name in run_values:
            raise ConfigError(f"{source}: {name} is both fixed under run and varied under sweep; give it once")
    run = run_config(
        {**run_values, "study": content["study"], "partition": content.get("partition", "local")},
        source=f"{source}: run",
    )
    runtimes = tuple(_list(source, sweep, "runtime", ["horovod/mpi"]))
    for runtime in runtimes:
        if runtime not in RUNTIMES:
            raise ConfigError(
                f"{source}: sweep: runtime {runtime!r} is not known{nearest(str(runtime), RUNTIMES)}; "
                f"allowed: {', '.join(RUNTIMES)}"
            )
    none = content.get("baselines") == []
    baselines = () if none else tuple(_list(source, content, "baselines", ["plain", "wrapped"]))
    for baseline in baselines:
        if baseline not in ("plain", "wrapped"):
            raise ConfigError(f"{source}: baselines: {baseline!r} is not known; allowed: plain, wrapped")
    varied = {
        name: tuple(
            check_field(f"{source}: sweep", name, value, RUN_FIELDS[name].metadata, optional=name in COMMUNICATION)
            for value in _list(source, sweep, name, [])
        )
        for name in SWEEPABLE
        if name in sweep
    }
    targets = tuple(
        check_field(source, "targets", value, {**_number(float, 0), "low": None, "above": 0}, optional=False)
        for value in _list(source, content, "targets", [])
    )
    numbers = {
        "repeats": check_field(source, "repeats", content.get("repeats", 3), _number(int, 1), optional=False),
        "seed": check_field(source, "seed", content.get("seed", 1), _number(int, 0), optional=False),
        "timeout_s": check_field(
            source, "timeout_s", content.get("timeout_s", 900.0), _number(float, 1), optional=False
        ),
    }
    return StudyConfig(
        name=run.study,
        run=run,
        workers=_worker_counts(source, sweep.get("workers", "cores"), cores or available_cores()),
        runtimes=runtimes,
        varied=varied,
        baselines=baselines,
        targets=tuple(sorted(set(targets), reverse=True)),
        **numbers,
    )


def _number(kind: type, low: float) -> dict[str, Any]:
    return {"kind": kind, "choices": None, "low": low, "above": None}


def _known(source: str, content: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in content:
        if key not in allowed:
            raise ConfigError(
                f"{source}: unknown key {key!r}{nearest(str(key), allowed)}; allowed: {', '.join(allowed)}"
            )


def _mapping(source: str, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content[key]
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: {key} must hold `key: value` lines, not {value!r}")
    return value


def _list(source: str, content: Mapping[str, Any], key: str, default: list[Any]) -> list[Any]:
    value = content.get(key, default)
    values = value if isinstance(value, list) else [value]
    if key in content and not values:
        raise ConfigError(f"{source}: {key} is an empty list; give at least one value or leave the key out")
    return values


def _worker_counts(source: str, value: Any, cores: int) -> tuple[int, ...]:
    """`cores` means 1..cores, thinned to powers of two (and the last) above eight; else a list of counts."""
    if value == "cores":
        if cores <= 8:
            return tuple(range(1, cores + 1))
        powers = [2**k for k in range(int(math.log2(cores)) + 1)]
        return tuple(sorted({*powers, cores}))
    counts = value if isinstance(value, list) else [value]
    checked = [check_field(f"{source}: sweep", "workers", count, _number(int, 1), optional=False) for count in counts]
    if not checked:
        raise ConfigError(f"{source}: sweep: workers is empty; give counts such as [1, 2, 4], or cores")
    return tuple(sorted(set(checked)))
