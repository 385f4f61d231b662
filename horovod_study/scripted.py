"""Anybody's training as a workload: a study file names its script, or the whole command that starts it.

    script: train.py --batch-size {batch} --hidden {hidden}                     launched as all cells are
    command: torchrun --nproc-per-node {workers} train.py --hidden {hidden}     launches its ranks by itself
    sweep: {workers: [1, 2], runtime: ddp/gloo, hidden: [64, 128], NCCL_ALGO: [Ring, Tree]}

What is varied is what the line has a place for, {hidden}, and variables of the environment, NCCL_ALGO. Values are put
into the words of the line, and no shell reads them. The training is recorded as by `horovod-study record`; with `steps`
under `run` it is ended after so many.
"""

import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from horovod_study.documents import load_yaml, read_bytes
from horovod_study.errors import ConfigError
from horovod_study.roles import Option, Role
from horovod_study.workloads import SHARED, Configuration, Workload, configuration, load_workload

PROGRAM = "horovod_study.programs.script"
PLACED = ("workers", "nodes", "workers_per_node", "hosts", "host", "global_batch", "repeat")
"""Has a place in the line if wanted, and is not given under `run`."""
WARMUP_STEPS = 10
"""Fewer than of our own training: scripts of others may be short, and the rest of the warm-up is found."""
_PLACE = re.compile(r"\{(\w+)\}")
_HOROVOD = re.compile(r"^[ \t]*(import|from)[ \t]+horovod\b", re.MULTILINE)
_OVER_TORCH = re.compile(  # in a script whose workers meet in torch.distributed
    r"torch\.distributed|init_process_group|^[ \t]*(import|from)[ \t]+"
    r"(accelerate|deepspeed|lightning|pytorch_lightning|transformers)\b",
    re.MULTILINE,
)
_TORCH_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"}
SCRIPT = re.compile(r"([^/]+)\.(?:py|sh|bash|ipynb|jl|R)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_OF_THE_STUDY = ("workers", "nodes", "workers_per_node", "placement", "runtime", "backend", "transport", "global_batch")


def workload_at(path: Path) -> Workload:
    """Return the workload of a Python file that declares it, or of a study file that names a script or a command."""
    if path.suffix not in (".yaml", ".yml"):
        return load_workload(path)
    found = scripted(path, load_yaml(path))
    if found is None:
        raise ConfigError(f"{path}: names neither script nor command")
    return found


def scripted(path: Path, content: Mapping[str, Any]) -> Workload | None:
    """Return the workload that the study file `path` describes by `script` or `command`, None where it has neither.

    Raises ConfigError for a line without words, a place that nothing fills, and a value that has no place.
    """
    given = [name for name in ("script", "command") if name in content]
    if not given:
        return None
    if len(given) > 1 or "workload" in content:
        raise ConfigError(f"{path}: give one of script, command and workload")
    kind = given[0]
    try:
        words = shlex.split(str(content[kind]))
    except ValueError as error:
        raise ConfigError(f"{path}: {kind}: {error}; quote as for a shell") from None
    if not words:
        raise ConfigError(f"{path}: {kind} is empty; write e.g. train.py --batch-size {{batch}}")
    if kind == "script":
        words[0] = str((path.parent / words[0]).resolve())
        if not Path(words[0]).is_file():
            raise ConfigError(f"{path}: script {words[0]} is no file; it is looked for beside the study file")
    places = {name for word in words for name in _PLACE.findall(word)}
    rate = check_rate(f"{path}: rate", content.get("rate"))
    if rate is not None and kind == "script":
        raise ConfigError(f"{path}: rate is what the output of a command says; the steps of a script are counted")
    factors = _factors(path, content, places)
    variables = tuple(name for name in factors if name not in places)
    missing = places - set(SHARED) - set(factors) - set(PLACED)
    if missing:
        raise ConfigError(f"{path}: {kind} has a place for {min(missing)}, which neither run nor sweep gives")
    warmup = replace(SHARED["warmup_steps"], default=WARMUP_STEPS)

    def command(config: Path, directory: Path, resume: bool) -> tuple[str, ...]:
        return ("-m", PROGRAM, "--config", str(config), "--out", str(directory))

    def arguments(config: Configuration, placed: Mapping[str, Any]) -> tuple[str, ...]:
        values = {**config.to_dict(), **placed, "global_batch": config.batch * placed["workers"]}
        own = [f"--own={name}" for name in factors if values[name] is not None]
        set_to = [f"--set={name}={values[name]}" for name in variables if values[name] is not None]
        end = [f"--steps={config.warmup_steps + config.steps}"] if config.steps and "steps" not in places else []
        said = [] if rate is None else [f"--rate={rate}"]
        return (*own, *set_to, *end, *said, *(["--command"] if kind == "command" else []), "--", *filled(words, values))

    return Workload(
        name=Path(words[0]).stem,
        configuration=configuration("script", {**SHARED, "warmup_steps": warmup, **factors}),
        command=command,
        arguments=arguments,
        starts_ranks=kind == "command",
        usual_runtime=_usual_runtime(words),
        file=path.resolve(),
        version=_version(kind, [*words, *filter(None, [rate])]),
    )


def command_name(command: Sequence[str]) -> str:
    """Return what a command is called: its script, its module, else its program."""
    scripts = [found[1] for word in command if (found := SCRIPT.fullmatch(Path(word).name))]
    modules = [word for before, word in itertools.pairwise(command) if before in ("-m", "--module")]
    name = [*scripts, *modules[-1:], Path(command[0]).name][0]
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "command"


def check_rate(source: str, value: Any) -> str | None:
    """Return a pattern whose first group is the rate that a line of output says; ConfigError where it is none."""
    if value is None:
        return None
    try:
        groups = re.compile(f"{value}").groups
    except re.error as error:
        raise ConfigError(f"{source}: {value} is no regular expression ({error})") from None
    if not groups:
        raise ConfigError(f"{source}: {value} has no group; put the number in one: 'speed: ([0-9.]+)'")
    return f"{value}"


def filled(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words of a line with values in their places."""
    return [_PLACE.sub(lambda place: str(values.get(place[1], place[0])), word) for word in words]


def _factors(path: Path, content: Mapping[str, Any], places: set[str]) -> dict[str, Option]:
    """Return the options of the script that the file gives values, by name; ConfigError where one has no place."""
    given: dict[str, list[Any]] = {}
    run, sweep = (content.get(name) for name in ("run", "sweep"))
    rows = sweep.get("zip") if isinstance(sweep, Mapping) else None
    for source in (run, sweep, *(rows if isinstance(rows, list) else [rows])):
        for name, values in source.items() if isinstance(source, Mapping) else ():
            if name != "zip" and name not in _OF_THE_STUDY:
                given.setdefault(str(name), []).extend(values if isinstance(values, list) else [values])
    taken = ("threads", "warmup_steps", "steps")  # by the program, which applies them
    for name in given:
        if name not in places and name not in taken and not _VARIABLE.fullmatch(name):
            raise ConfigError(
                f"{path}: {name} has a value, but the line has no place for it: write {{{name}}} where it goes; "
                "variables of the environment are in capitals"
            )
    return {
        name: Option(
            name=name,
            kind=_kind(values),
            help=f"{{{name}}} of the line",
            roles=Role.SWEEPABLE | Role.CELL | (Role.LEARNING if name in places else Role.COMPUTING),
        )
        for name, values in given.items()
        # A length that the script is told is an option of its own: the program may still end it after some steps.
        if name not in SHARED or (name in places and SHARED[name].roles & Role.BUDGET)
    }


def _kind(values: Iterable[Any]) -> type:
    kinds = {type(value) for value in values}
    return next((kind for kind in (bool, int) if kinds == {kind}), float if kinds <= {int, float} else str)


def _usual_runtime(words: Sequence[str]) -> str:
    """Return the runtime that a line is taken to use, by its launcher and by what the script in it imports."""
    launchers = {Path(word).name for word in words}
    if "horovodrun" in launchers:
        return "horovod/gloo" if "--gloo" in words else "horovod/mpi"
    text = "\n".join(_content(word).decode(errors="replace") for word in words if word.endswith(".py"))
    over_torch = launchers & _TORCH_LAUNCHERS or _OVER_TORCH.search(text)
    return "ddp/gloo" if over_torch and not _HOROVOD.search(text) else "horovod/mpi"


def _version(kind: str, words: Sequence[str]) -> str:
    """Return a digest of the line and of the script, if it is named."""
    digest = hashlib.sha256(repr((kind, [Path(words[0]).name, *words[1:]])).encode())
    for word in words:
        if word.endswith(".py"):
            digest.update(_content(word))
    return digest.hexdigest()[:12]


def _content(script: str) -> bytes:
    """Return what the script holds; nothing where there is none."""
    path = Path(script)
    return read_bytes(path, error=ConfigError, again="name the script that trains") if path.is_file() else b""
