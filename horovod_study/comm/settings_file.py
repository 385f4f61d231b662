"""A settings file: communication settings that were found by `horovod-study tune`, and what they were found for.

    for:                     what was tuned; another model or runtime is refused, anything else that differs is said
      parameters: 153441
      widths: 15-38-197
      runtime: horovod/mpi
      workers: 2
      ...
    settings:                names and values of options of `train`
      backend: horovod
      transport: mpi
      cycle_time_ms: 0.2

`train --settings FILE` takes the settings where neither its YAML file nor its command line says otherwise.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from horovod_study.documents import load_yaml
from horovod_study.errors import ConfigError, StudyError, nearest, require_known
from horovod_study.files import write_file, writing
from horovod_study.roles import Option, Role
from horovod_study.runtimes import CARRIED, RUNTIMES
from horovod_study.variables import whole_number
from horovod_study.workloads import Configuration, Workload

_WHOLE = ("parameters", "batch", "workers", "nodes")
_HERE = ("cpu_model", "package", "torch", "horovod", "mpi")
_NAMES = {"cpu_model": "processor", "package": "horovod_study", "mpi": "MPI", "horovod": "Horovod", "torch": "PyTorch"}


def allowed_settings(workload: Workload) -> tuple[str, ...]:
    """Return the keys of `settings`: how workers communicate and compute, and nothing about what is learned."""
    tuned = (name for name in workload.tuned if name not in workload.communication)
    return (*workload.named(Role.RUNTIME), *tuned, *workload.communication)


def for_keys(workload: Workload) -> tuple[str, ...]:
    """Return the keys of `for`: the shape of the model as its workload says it, how it is run, and where."""
    return ("parameters", *workload.named(Role.MODEL), "batch", "workers", "nodes", "runtime", *_HERE)


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsFile:
    """The content of a settings file, checked."""

    path: Path
    sha256: str
    made_for: Mapping[str, Any]  # for_keys; parameters, the shape of the model and runtime are always there
    values: Mapping[str, Any]  # allowed_settings

    @property
    def runtime(self) -> str:
        """The runtime that was tuned, such as horovod/mpi."""
        return str(self.made_for["runtime"])

    def require_fit(
        self, config: Configuration, *, parameters: int, launcher: str, launched: str, asked_backend: str | None
    ) -> None:
        """Raise ConfigError in one line when the run is of another model, or communicates in another way.

        `config` has the settings in it already. `launcher` and `launched` (a backend) are what `comm.detect` says,
        `asked_backend` what the user asked for beside the file.
        """
        if self.misfits(config) or self.made_for["parameters"] != parameters:
            shape = self.shape(config.workload)
            own = ", ".join(f"{name} {getattr(config, name)}" for name in shape)
            raise ConfigError(
                f"{self.path}: the settings are for a model of {', '.join(f'{each} {shape[each]}' for each in shape)} "
                f"with {self.made_for['parameters']:,} parameters, this run trains {own} with {parameters:,}; run "
                "`horovod-study tune` with this model, or leave --settings out"
            )
        backend, _, transport = self.runtime.partition("/")
        runs = launched if config.backend == "auto" else config.backend
        if runs != backend or config.transport not in ("auto", transport):
            over = "" if config.transport == "auto" else f"/{config.transport}"
            raise ConfigError(
                f"{self.path}: the settings are for runtime {self.runtime}, this run asks for {runs}{over}; run "
                f"`horovod-study tune --runtime {runs}{over or '/...'}`, or leave --settings out"
            )
        if launcher not in CARRIED[self.runtime][1].seen_as and not (launcher == "none" and asked_backend == backend):
            start = CARRIED[self.runtime][1].start
            how = "by no launcher, as one worker" if launcher == "none" else f"by {launcher}"
            raise ConfigError(
                f"{self.path}: the settings are for runtime {self.runtime}, but this run was started {how}; start it "
                f"with `{start} {self.made_for.get('workers') or 'N'} ...`, or leave --settings out"
            )

    def shape(self, workload: Workload) -> dict[str, Any]:
        """Return the options that say of which shape the model was that was tuned."""
        return {name: self.made_for[name] for name in workload.named(Role.MODEL)}

    def misfits(self, config: Configuration) -> list[str]:
        """Return the options in which the model of a run has another shape."""
        options = config.workload.options
        tuned = self.shape(config.workload).items()
        return [name for name, value in tuned if not options[name].same(value, getattr(config, name))]

    def matches(self, facts: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each fact of the file that is known of the run whether the two are equal."""
        return {
            name: self.made_for[name] == facts[name]
            for name in self.made_for
            if self.made_for.get(name) is not None and facts.get(name) is not None
        }

    def warning(self, facts: Mapping[str, Any]) -> str:
        """Return one line about what differs from what was tuned, "" when nothing does."""
        differing = [name for name, same in self.matches(facts).items() if not same]
        if not differing:
            return ""
        texts = [f"{_NAMES.get(name, name)} {self.made_for[name]} (here {facts[name]})" for name in differing]
        return f"warning: {self.path}: settings were found for {', '.join(texts)}; others may be better here"

    def record(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what run.json says about the file."""
        return {"path": str(self.path.absolute()), "sha256": self.sha256, "matches": self.matches(facts)}


def read_settings(path: Path, workload: Workload) -> SettingsFile:
    """Read a settings file for runs of `workload`; what is missing, unknown or not allowed is a ConfigError naming it.

    Facts and settings are in the order of the file.
    """
    content = load_yaml(path)
    for key in content:
        if key not in ("for", "settings"):
            raise ConfigError(
                f"{path}: unknown key {key!r}{nearest(str(key), ('for', 'settings'))}; a settings file has the keys "
                "for and settings, and is written by `horovod-study tune`"
            )
    allowed_for, allowed = for_keys(workload), allowed_settings(workload)
    made_for, values = (
        _section(path, content, key, names, workload) for key, names in (("for", allowed_for), ("settings", allowed))
    )
    for name in ("parameters", *workload.named(Role.MODEL), "runtime"):
        if made_for.get(name) is None:
            raise ConfigError(f"{path}: for: {name} is missing; it says what the settings are for")
    for name, value in made_for.items():
        each = Option(name=name, kind=int, low=1) if name in _WHOLE else workload.options.get(name, Option(name=name))
        made_for[name] = None if value is None else each.check(f"{path}: for", value)
    runtime = made_for["runtime"]
    tunable = [each for each in RUNTIMES if each != "serial"]
    require_known(f"{path}: for: runtime", runtime, tunable)
    backend, _, transport = runtime.partition("/")
    for name, value in values.items():
        each = workload.options[name]
        values[name] = each.check(f"{path}: settings", value)
        if name in workload.communication and values[name] != each.default and not each.matters(runtime):
            raise ConfigError(f"{path}: settings: {name} has no effect on {runtime}; leave it out")
    for name, needed in (("backend", backend), ("transport", transport)):
        if values.setdefault(name, needed) != needed:
            raise ConfigError(
                f"{path}: settings: {name} is {values[name]!r}, but the file is for runtime {runtime}; write {needed}"
            )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return SettingsFile(path=path, sha256=digest, made_for=made_for, values=values)


def _section(
    path: Path, content: Mapping[str, Any], key: str, allowed: Sequence[str], workload: Workload
) -> dict[str, Any]:
    section = content.get(key)
    if not isinstance(section, dict):
        raise ConfigError(
            f"{path}: {key} must hold `key: value` lines, not {section!r}; `horovod-study tune` writes such files"
        )
    for name in section:
        if name not in allowed:
            known = name in workload.options
            why = "is not a communication setting" if known else f"is not known{nearest(str(name), allowed)}"
            raise ConfigError(f"{path}: {key}: {name!r} {why}; allowed: {', '.join(allowed)}")
    return dict(section)


def write_settings(
    path: Path, *, made_for: Mapping[str, Any], values: Mapping[str, Any], comments: Sequence[str]
) -> None:
    """Write a settings file, the comments above it; the old one is replaced completely. Facts may be None."""
    body = {"for": {name: value for name, value in made_for.items() if value is not None}}
    text = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    text += "\n" + yaml.safe_dump(body, sort_keys=False, width=1000)
    text += "\n" + yaml.safe_dump({"settings": dict(values)}, sort_keys=False, width=1000)
    with writing(path, "choose a writable --out", error=StudyError):
        write_file(path, text)


_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS")


def nodes_of(environ: Mapping[str, str], workers: int) -> int | None:
    """Return on how many hosts the workers sit when each has as many as this one; None when the launcher tells not."""
    for name in _LOCAL_SIZES:
        if here := whole_number(name, environ, low=1):
            return math.ceil(workers / here)
    return 1 if workers == 1 else None
